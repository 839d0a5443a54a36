"""Rows of a task that depend on each other as one unit, against sums of the units by brute force."""

import numpy as np
import pytest
from cluster_tables import gain_error

from hieropo import MismatchError
from hieropo.ope.joined_rows import JoinedRows
from hieropo.ope.off_policy import OffPolicyMoments, OffPolicySums
from hieropo.ope.value_estimates import values


def a_log(n: int = 600, tasks: int = 12) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "task": rng.integers(tasks, size=n), "reward": rng.normal(size=n), "p": rng.uniform(0.2, 0.8, n),
        "target": rng.integers(2, size=n) * 1.0, "q": rng.normal(size=n), "v": rng.normal(size=n),
        "count": rng.integers(4, size=n) * 1.0,
    }  # fmt: skip


def summed(
    log: dict[str, np.ndarray], dependent: np.ndarray | None, *, weighted: bool = False, parts: int = 3
) -> OffPolicyMoments:
    sums = OffPolicySums(-5.0, 5.0, 600)
    for rows in np.array_split(np.arange(log["reward"].size), parts):
        columns = [log[name][rows] for name in ("task", "reward", "p", "target", "q", "v")]
        counts = log["count"][rows] if weighted else None
        sums.add(*columns, counts, dependent=None if dependent is None else dependent[rows])
    return sums.moments()


def repeated(log: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    rows = np.repeat(np.arange(log["task"].size), log["count"].astype(int))
    return {name: column[rows] for name, column in log.items()}


def some_rows(log: dict[str, np.ndarray]) -> np.ndarray:
    """Return which rows depend on others of their task: some of every other task."""
    return (log["task"] % 2 == 0) & (log["q"] > -0.5)


def test_the_error_of_a_gain_is_that_of_the_units() -> None:
    log = a_log()
    dependent = some_rows(log)
    moments = summed(log, dependent)
    unit = np.unique(np.where(dependent, -1 - log["task"], np.arange(600)), return_inverse=True)[1]
    expected = gain_error(log, unit)
    estimate = next(value for value in values(moments, rng=np.random.default_rng(0)) if value.name == "DR")
    assert estimate.gain_se == pytest.approx(expected, rel=1e-9)
    assert estimate.by == "rows"
    size = np.bincount(unit).astype(float)
    assert moments.joined is not None
    assert moments.joined.number == size.size
    assert moments.joined.effective == pytest.approx(size.sum() ** 2 / (size**2).sum())
    np.testing.assert_allclose(moments.joined.groups.sum(axis=0), moments.total, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("parts", [1, 7])
def test_a_weight_is_so_many_rows_in_any_batches(parts: int) -> None:
    log = a_log()
    one = summed(log, some_rows(log), weighted=True, parts=parts).joined
    whole = repeated(log)
    other = summed(whole, some_rows(whole)).joined
    assert one is not None
    assert other is not None
    np.testing.assert_allclose(one.squares, other.squares, rtol=1e-10, atol=1e-9)
    assert (one.number, one.effective) == pytest.approx((other.number, other.effective))


def test_rows_that_do_not_depend_on_others_leave_all_estimates_as_they_are() -> None:
    log = a_log()
    of_none = summed(log, np.zeros(600, dtype=np.bool_))
    assert of_none.joined is None
    estimates = [values(m, rng=np.random.default_rng(0)) for m in (of_none, summed(log, None))]
    assert estimates[0] == estimates[1]
    with pytest.raises(MismatchError, match="depend on each other, do not add"):
        _ = summed(log, some_rows(log)) + summed(log, None)


def test_without_rows_there_are_no_units() -> None:
    assert JoinedRows(3).units() is None
