"""Guesses of the roles of columns, where their names leave no doubt."""

import re
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from hieropo.core.ids import abbreviate
from hieropo.core.logs import Roles
from hieropo.errors import SchemaError
from hieropo.sources.schema import MIXED, NOTE, can_play

KNOWN = {
    "task": (
        "task", "task_id", "user", "user_id", "customer", "customer_id", "client_id", "member_id", "account_id",
        "tenant", "tenant_id", "store", "store_id", "campaign", "campaign_id", "site_id", "school_id", "patient_id",
        "subject_id", "visitor_id",
    ),
    "action": (
        "action", "action_id", "action_taken", "chosen_action", "arm", "arm_id", "item_id", "offer", "offer_id",
        "treatment", "variant", "variant_id",
    ),
    "reward": (
        "reward", "rewards", "outcome", "payoff", "click", "clicked", "conversion", "converted", "response", "profit",
    ),
    "pscore": (
        "pscore", "propensity", "propensity_score", "prob", "probability", "action_prob", "action_probability",
        "action_propensity", "logging_prob", "logging_propensity", "logged_propensity", "behavior_prob",
        "behaviour_prob",
    ),
    "weight": ("case_weight", "row_weight"),
    "sampling_weight": ("sampling_weight", "inverse_sampling_probability"),
    "eligible": ("eligible", "eligible_actions", "available_actions", "action_set"),
    "time": (
        "time", "timestamp", "ts", "datetime", "date", "event_time", "event_timestamp", "decision_time", "created_at",
        "decided_at", "logged_at", "occurred_at",
    ),
}  # fmt: skip
_COSTS = {
    "cost", "costs", "loss", "losses", "regret", "penalty", "latency", "error", "errors", "churn", "churned",
}  # fmt: skip
_NEEDED = ("task", "reward")


def guess_roles(
    schema: pa.Schema, given: Mapping[str, Any], guessed: Collection[str] = tuple(KNOWN)
) -> tuple[Roles, list[str]]:
    """Complete the roles that were given by those that names of columns leave no doubt about.

    A role is guessed only where exactly one column bears a well-known name of it: letters and digits are compared,
    so that ``userId`` is ``user_id``. Columns that were given a role are left out, and so are columns whose type
    cannot play an optional role. Contexts, levels and metadata are never guessed.

    Parameters
    ----------
    schema : pa.Schema
    given : mapping
        Column, or columns, of each role that the caller names; None and empty ones are not given.
    guessed : collection of str
        Roles that may be guessed.

    Returns
    -------
    roles : Roles
    told : list of str
        A sentence for each guess, and for each role that more than one column could play.

    Raises
    ------
    SchemaError
        The task or the reward is neither given nor can be told.
    """
    named = {role: columns for role, columns in given.items() if columns}
    taken = {column for columns in named.values() for column in _listed(columns)}
    free = [column for column in schema.names if column not in taken]
    told = []
    for role, names in KNOWN.items():
        if role in named or role not in guessed:
            continue
        found = _bearing(schema, free, role)
        if len(found) == 1:
            named[role] = found[0]
            told.append(f"Column {found[0]!r} is taken as the {_said(role)}, by its name.")
        elif found and role not in _NEEDED:
            told.append(f"No column is taken as the {_said(role)}: {_either(found)} could be.")
        elif not found and (called := _called(free, names)):
            told.append(_unfitting(schema.field(called[0]), role))
    for role in _NEEDED:
        if role not in named:
            raise SchemaError(_unknown(role, schema, free))
    return Roles(**{"action": None, **named}), told


def like_a_cost(name: str) -> bool:
    """Return whether a column is named like something of which less is better."""
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).casefold())
    return not _COSTS.isdisjoint(words)


def _listed(columns: Any) -> tuple[Any, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _bearing(schema: pa.Schema, free: list[str], role: str) -> list[str]:
    """Columns that bear a well-known name of a role."""
    found = _called(free, KNOWN[role])
    if role in _NEEDED or len(set(found)) < len(found):
        return found
    return [column for column in found if can_play(schema.field(column).type, role)]


def _called(columns: list[str], names: tuple[str, ...]) -> list[str]:
    bare = {_bare(name) for name in names}
    return [column for column in columns if _bare(column) in bare]


def _bare(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


def _unfitting(field: pa.Field, role: str) -> str:
    """Say that a column is named like a role that its type cannot play."""
    why = (field.metadata or {}).get(NOTE.encode())
    more = "" if why is None else f" {why.decode()}"
    return (
        f"Column {field.name!r} is not taken as the {_said(role)}, as its name suggests, since its type is "
        f"{'mixed' if field.type == MIXED else field.type}.{more}"
    )


def _said(role: str) -> str:
    return {"pscore": "propensity", "eligible": "list of eligible actions"}.get(role, role)


def _either(columns: list[str]) -> str:
    return " and ".join(repr(column) for column in columns)


def _unknown(role: str, schema: pa.Schema, free: list[str]) -> str:
    name = f"Name it: {role}='...', on the command line --{role}."
    found = _bearing(schema, free, role)
    if found:
        return (
            f"More than one column could be the {role}, {_either(found)}, and nothing is guessed then. {name}"
        )
    costs = [column for column in free if like_a_cost(column)] if role == "reward" else []
    if costs:
        return (
            f"No column is known to be the reward, and {costs[0]!r} looks like a cost. Larger rewards are better: make "
            f"a column of -{costs[0]} and name that, reward='...', on the command line --reward."
        )
    such = ", ".join(KNOWN[role][:4])
    return (
        f"The role {role} needs a column, and none bears a well-known name of one (such as {such}). {name} Columns: "
        f"{abbreviate(schema.names, 40)}."
    )
