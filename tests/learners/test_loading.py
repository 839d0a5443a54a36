"""A learner comes back from disk as it was saved, and learns on as if it had never left."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hieropo.errors import ArtifactError
from hieropo.learners.baselines import FlatOPO, OracleOPO, PooledOPO
from hieropo.learners.hieropo import HierOPO
from hieropo.learners.loading import load_learner
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy
from hieropo.policies.gating import GatedPolicy

COLUMNS: dict[str, Any] = {"task": "store", "action": "offer", "reward": "profit", "context": ["visits"]}
DIM = 6


def log(seed: int, n: int = 600) -> pa.Table:
    rng = np.random.default_rng(seed)
    store, offer, visits = rng.integers(12, size=n), rng.integers(3, size=n), rng.normal(size=n)
    profit = 0.3 * offer + rng.normal(size=12)[store] * 0.2 + 0.1 * visits * offer + rng.normal(size=n)
    region = np.array(["north", "south", "west"])[store % 3]
    return pa.table(
        {"store": store, "offer": np.array(["a", "b", "c"])[offer], "visits": visits, "profit": profit,
         "region": region, "size": np.linspace(-1, 1, 12)[store]}
    )  # fmt: skip


LEARNERS = {
    "plain": (HierOPO(pessimism=0.4), {}),
    "diag": (HierOPO(task_cov="diag", pessimism=0.4), {}),
    "level": (HierOPO(level=0.9, unseen="error"), {}),
    "tree": (HierOPO(task_cov="diag"), {"levels": ["region"], "metadata": ["size"]}),
    "crossed": (HierOPO(task_cov="crossed"), {}),
    "block": (HierOPO(task_cov="block", uncertainty="plug-in"), {}),
    "array": (HierOPO(task_cov=np.diag(np.arange(1.0, DIM + 1))), {}),
    "gaussian": (HierOPO(hyper=Gaussian(np.zeros(DIM), np.eye(DIM))), {}),
    "known": (HierOPO(known=Hierarchy(None, 0.1 * np.eye(DIM), 1.0)), {}),
    "flat": (FlatOPO(), {}),
    "pooled": (PooledOPO(pessimism=0.0), {}),
    "oracle": (OracleOPO(np.zeros(DIM)), {}),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")
@pytest.mark.parametrize("name", LEARNERS)
def test_what_is_loaded_predicts_learns_on_and_saves_as_what_was_saved(name: str, tmp_path: Path) -> None:
    learner, more = LEARNERS[name]
    learner.fit(log(1), **COLUMNS, **more)
    learner.save(tmp_path / "first")
    loaded = load_learner(tmp_path / "first")
    assert type(loaded) is type(learner)
    requests = log(2, 100)
    assert loaded.predict(requests).tolist() == learner.predict(requests).tolist()
    loaded.save(tmp_path / "again")
    for file in sorted((tmp_path / "first").iterdir()):
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes(), file.name
    both = [each.partial_fit(log(3)) for each in (learner, loaded)]
    old, new = (each.posterior_.table() for each in both)
    assert np.array_equal(old.means, new.means)
    assert np.array_equal(old.covs, new.covs)


def test_the_summary_of_what_is_loaded_says_nothing_of_times(tmp_path: Path) -> None:
    learner = HierOPO().fit(log(1), **COLUMNS)
    learner.save(tmp_path / "first")
    before, after = str(learner.summary()).split(), str(load_learner(tmp_path / "first").summary()).split()
    assert after == before[: before.index("Time:")]


def test_a_gate_is_loaded_and_its_tasks_are_left_alone(tmp_path: Path) -> None:
    learner = HierOPO().fit(log(1), **COLUMNS)
    gated = GatedPolicy(learner.policy_, np.linspace(0, 1, 12), 0.5)
    learner.save(tmp_path / "gated", policy=gated)
    loaded = load_learner(tmp_path / "gated")
    requests = log(2, 50)
    chosen = loaded.predict(requests)
    passed = gated.passes(requests["store"].to_numpy())
    assert [action is not None for action in chosen] == passed.tolist()
    assert 0 < passed.sum() < 50


def test_a_policy_without_its_learner_is_refused_with_what_to_do(tmp_path: Path) -> None:
    from hieropo.storage.save import save_policy

    learner = HierOPO().fit(log(1), **COLUMNS)
    save_policy(learner.policy_, tmp_path / "bare")
    with pytest.raises(
        ArtifactError, match=r"saved without a learner.s settings.* It can decide.*Fit again and save"
    ):
        load_learner(tmp_path / "bare")
