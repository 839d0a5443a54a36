"""Decisions in one worker, without a session."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hieropo import HierOPO

pytest.importorskip("pyspark")


def test_a_worker_decides_by_a_policy_that_was_saved_in_place_of_another(tmp_path: Path) -> None:
    from hieropo.spark.deciding import _decided

    rng = np.random.default_rng(0)
    task, action = np.repeat(np.arange(5), 20), np.tile(["a", "b"], 50)
    for best in ("a", "b"):
        reward = rng.normal(size=100) + 10.0 * (action == best)
        log = pa.table({"task": task, "action": action, "reward": reward})
        HierOPO().fit(log, task="task", action="action", reward="reward").save(tmp_path / "policy")
        decided = _decided(str(tmp_path / "policy"), pa.table({"task": [0, 1]}), {"id": None, "top": 1})
        assert decided["action"].to_pylist() == [best, best]
