"""The real tables that some tests need: their folder, and the rule for tests without it.

HIEROPO_DATA names the folder; otherwise it is ``shared/data`` beside the repository. A test whose table is absent is
skipped, but not where the folder is there or was named: then a table is missing by mistake, and the test fails.
"""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("HIEROPO_DATA", ROOT.parent / "shared" / "data"))

needs_data = pytest.mark.skipif(
    not ("HIEROPO_DATA" in os.environ or DATA.is_dir()),
    reason="no folder of real tables; HIEROPO_DATA names it",
)


def real_table(name: str) -> Path:
    """Return the path of a table, or skip the test where there is no folder of tables at all."""
    path = DATA / name
    if path.is_file():
        return path
    if "HIEROPO_DATA" in os.environ or DATA.is_dir():
        pytest.fail(f"{path} is missing, although {DATA} is the folder of real tables")
    pytest.skip("no folder of real tables; HIEROPO_DATA names it")
