"""Hooks for schemathesis, which sends requests that it makes from the service's own description.

``SCHEMATHESIS_HOOKS=tests/schemathesis_hooks.py st run http://127.0.0.1:8000/openapi.json --checks all``

A description cannot say that an id names one body for ever. So valid ids of decisions and rewards are replaced by new
ones in every request.
"""

import re
import secrets
from typing import Any

import schemathesis

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:  # noqa: ARG001
    """Give every decision and reward of a request an id that was never used."""
    for body in case.body if isinstance(case.body, list) else [case.body]:
        for name in ("decision_id", "reward_id") if isinstance(body, dict) else ():
            if isinstance(body.get(name), str) and _ID.fullmatch(body[name]):
                body[name] = secrets.token_hex(8)
