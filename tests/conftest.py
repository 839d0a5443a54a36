"""Settings that every test shares.

Drawn examples are the same in every run (``HYPOTHESIS_PROFILE=search`` draws new ones, and more). No example
has a deadline: the first call of a compiled kernel takes seconds. Their cache stays where the
package puts it, so that a second run compiles nothing.
"""

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

import hieropo

settings.register_profile(
    "fixed", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_configure() -> None:
    """Drop compiled kernels that are older than a source of kernels.

    numba sees an edit of the file that holds a function, but not of a file that this function calls into.
    """
    core = Path(hieropo.__file__).parent / "core"
    newest = max(path.stat().st_mtime for path in (core / "jit.py", *core.glob("kernels*.py")))
    for path in (core / "__pycache__").glob("*.nb[ci]"):
        if path.stat().st_mtime < newest:
            path.unlink(missing_ok=True)
