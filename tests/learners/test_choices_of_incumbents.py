"""A fit uses what the incumbent knew where the log shows that it knew something before, and nowhere else."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hieropo import HierOPO, LogMoments, load_learner
from hieropo.errors import HieropoWarning

TASKS, ROWS, ACTIONS = 60, 25, 4
COLUMNS = {"task": "store", "action": "offer", "reward": "profit", "time": "at"}
Choose = Callable[[np.ndarray, np.ndarray, np.ndarray, np.random.Generator], np.ndarray]


def drawn(choose: Choose, seed: int = 1) -> pa.Table:
    """A log in the order of time; ``choose`` draws actions (m,) from theta, sums and rows of each action so far."""
    rng = np.random.default_rng(seed)
    theta = 0.5 * rng.standard_normal((TASKS, 1)) + 0.4 * rng.standard_normal((TASKS, ACTIONS))
    sums, rows, parts = np.zeros((TASKS, ACTIONS)), np.zeros((TASKS, ACTIONS)), []
    store = np.arange(TASKS)
    for _ in range(ROWS):
        offer = choose(theta, sums, rows, rng)
        profit = theta[store, offer] + rng.standard_normal(TASKS)
        sums[store, offer] += profit
        rows[store, offer] += 1
        parts.append((store, offer, profit))
    store, offer, profit = (np.concatenate(part) for part in zip(*parts, strict=True))
    return pa.table({"store": store, "offer": offer, "profit": profit, "at": np.arange(store.size)})


def by_shares(shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    shares = shares / shares.sum(axis=1, keepdims=True)
    return (rng.random((TASKS, 1)) > shares.cumsum(axis=1)).sum(axis=1).clip(0, ACTIONS - 1)


def knew(theta: np.ndarray, sums: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    del sums, rows
    return by_shares(np.exp(2 * theta), rng)


def learned(theta: np.ndarray, sums: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    del theta
    return np.asarray(
        (sums / (rows + 1) + rng.standard_normal(rows.shape) / np.sqrt(rows + 1)).argmax(axis=1)
    )


def habits(theta: np.ndarray, sums: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Shares that differ between tasks, and have nothing to do with rewards."""
    del theta, sums, rows
    return by_shares(np.exp(np.random.default_rng(5).standard_normal((TASKS, ACTIONS))), rng)


def alike(theta: np.ndarray, sums: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    del theta, sums, rows
    return rng.integers(ACTIONS, size=TASKS)


def fitted(log: pa.Table, **settings: object) -> HierOPO:
    columns = {**COLUMNS, "time": "at" if "at" in log.column_names else None}
    return HierOPO(**settings).fit(log, **columns)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def used() -> HierOPO:
    return fitted(drawn(knew))


def test_choices_of_an_incumbent_that_knew_are_evidence(used: HierOPO) -> None:
    assert used.logging == "unknown"
    assert used.logging_ == "frozen"
    told = fitted(drawn(knew), logging="frozen")
    assert np.array_equal(used.posterior_.table().means, told.posterior_.table().means)
    (finding,) = (finding for finding in used.findings_ if finding.kind == "the incumbent knew something")
    assert finding.severity == "note"
    assert "logging='random'" in finding.next
    assert "How often the incumbent took each action" in used.summary().note


@pytest.mark.slow
def test_a_loaded_policy_is_judged_by_the_same_rule(used: HierOPO, tmp_path: Path) -> None:
    used.save(tmp_path / "policy")
    loaded = load_learner(tmp_path / "policy")
    assert loaded.logging_ == "frozen"
    ours, theirs = (
        learner.evaluate(drawn(knew), propensities="none", randomise=False) for learner in (used, loaded)
    )
    assert ours.limits == theirs.limits == ()
    assert ours.model.difference.mean == theirs.model.difference.mean


def test_rows_that_are_added_may_be_choices_of_the_policy(tmp_path: Path, used: HierOPO) -> None:
    used.save(tmp_path / "policy")
    with pytest.warns(HieropoWarning, match="does not use shares"):
        more = load_learner(tmp_path / "policy").partial_fit(drawn(alike, 2))
    assert more.logging_ == "unknown"


SILENT = {
    "learned from these rows": lambda: drawn(learned),
    "habits": lambda: drawn(habits),
    "alike": lambda: drawn(alike),
    "a cost": lambda: drawn(knew).set_column(2, "profit", pc.negate(drawn(knew)["profit"])),
    "no time": lambda: drawn(knew).drop(["at"]),
    "unordered": lambda: drawn(knew).set_column(3, "at", pa.array(np.random.default_rng(0).permutation(TASKS * ROWS))),
    "one time": lambda: drawn(knew).set_column(3, "at", pa.array(np.zeros(TASKS * ROWS))),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SILENT)
def test_choices_are_not_used_where_the_log_does_not_ask_for_it(name: str) -> None:
    log = SILENT[name]()
    learner = fitted(log)
    assert learner.logging_ == "unknown"
    without = fitted(log, logging="random")
    assert np.array_equal(learner.posterior_.table().means, without.posterior_.table().means)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_moments_hold_no_order_and_ask_for_nothing() -> None:
    assert HierOPO().fit(LogMoments.of(drawn(knew), **COLUMNS)).logging_ == "unknown"


def test_a_word_of_the_user_comes_first() -> None:
    assert fitted(drawn(knew), logging="adaptive").logging_ == "adaptive"
