"""Partitions of the tasks: steps of all starts side by side, held against one start at a time in plain formulas."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import gammaln, xlogy

from hieropo.estimation.crossed.kind_partitions import PartitionSearch, Scales, partitions, sizes_of_kinds
from hieropo.estimation.crossed.shapes import Shapes
from hieropo.features.maps import per_action
from hieropo.model.crossed.kinds import flat_prior
from hieropo.model.crossed.steps import ObservedUnits
from hieropo.moments.units import UnitAccumulator

Array = NDArray[np.float64]
EFFECTS = np.array([[1.0, 0.0, -1.0], [-1.0, 1.0, 0.0], [0.0, -1.0, 1.2]])


def scales(size: float = 1.0, m: int = 18) -> Scales:
    """Tasks s, s + 3, ... are of one kind; a hierarchy near the one that the log has."""
    rng = np.random.default_rng(5)
    task, action = np.repeat(np.arange(m), 24), rng.integers(0, 3, 24 * m)
    theta = size * EFFECTS[np.arange(m) % 3] + 0.5 * rng.standard_normal((m, 1))
    sums = UnitAccumulator(per_action(["a", "b", "c"], []))
    sums.add(task, action, np.zeros((task.size, 0)), theta[task, action] + rng.standard_normal(task.size))
    moments = sums.moments()
    return Scales(
        ObservedUnits.of(moments, np.ones(3)), Shapes.equal(moments), 0.2, 0.5, max(0.8 * size, 0.2), 1.0
    )


def one_start(search: PartitionSearch, centres: Array) -> list[float]:
    """Bounds of the log evidence after each step from one start, with a precision and its inverse."""
    n, where = len(centres), search.scales
    basis = where.basis(n, max(where.a, 0.05), max(where.m, 0.05))
    below = [basis.below(k) for k in range(n)]
    G, B = search.about.information[0], search.about.score[0]
    log_weights, bounds = np.full(n, -np.log(n)), []
    for _ in range(12):
        joint = np.array([
            [B[s] @ c - 0.5 * c @ G[s] @ c + w for c, w in zip(centres, log_weights, strict=True)]
            for s in range(len(B))
        ])  # fmt: skip
        shares = np.exp(joint - np.logaddexp.reduce(joint, axis=1)[:, None])
        counts = shares.sum(axis=0)
        log_weights = np.log((counts + 1) / (counts.sum() + n))
        precision = np.diag(flat_prior(basis))
        shift = np.zeros(len(precision))
        for k in range(n):
            precision = precision + below[k].T @ np.tensordot(shares[:, k], G, 1) @ below[k]
            shift = shift + below[k].T @ (shares[:, k] @ B)
        mean = np.linalg.solve(precision, shift)
        centres = np.array([matrix @ mean for matrix in below])
        phi = 0.5 * (shift @ mean - np.linalg.slogdet(precision)[1])
        bounds.append(float(phi - xlogy(shares, shares).sum() + sizes_of_kinds(counts)))
    return bounds


@pytest.mark.parametrize("n", [2, 3])
def test_starts_side_by_side_are_single_starts(n: int) -> None:
    search, rng = PartitionSearch.of(scales(), 0.3), np.random.default_rng(0)
    starts = np.array([search.start(n, rng) for _ in range(4)])
    constant = float(search.about.constant.sum())
    found = [one.bound - constant for one in search.steps(starts)]
    assert len(found) == 4
    for bound, centres in zip(found, starts, strict=True):
        bounds = one_start(search, centres)
        assert all(after > before - 0.05 for before, after in pairwise(bounds))
        assert min(abs(bound - one) for one in bounds) < 1e-9
        assert bound == pytest.approx(bounds[-1], abs=0.1)


def test_the_partition_of_the_kinds_is_the_first() -> None:
    first = partitions(scales(), (2, 3, 4), -np.inf)[0]
    assert first.n == 3
    of = first.shares.argmax(axis=1).reshape(-1, 3)
    assert (of == of[0]).all()
    assert len(set(of[0].tolist())) == 3


def test_a_start_that_is_far_below_is_left_early() -> None:
    search, rng = PartitionSearch.of(scales(0.0), 0.1), np.random.default_rng(1)
    starts = np.array([search.start(2, rng) for _ in range(4)])
    every = search.steps(starts)
    some = search.steps(starts, max(one.bound for one in every) + 30.0)
    pairs = list(zip(some, every, strict=True))
    assert all(one.bound <= other.bound for one, other in pairs)
    assert any(one.bound < other.bound - 1e-3 for one, other in pairs)
    assert partitions(search.scales, (2, 3), every[0].bound + 30.0) == []


def test_sizes_of_kinds_are_all_orders_of_the_dirichlet_multinomial() -> None:
    counts = np.array([[5.0, 3.0, 1.0], [3.0, 3.0, 3.0]])
    for row, value in zip(counts, sizes_of_kinds(counts).tolist(), strict=True):
        exact = gammaln(3) + sum(gammaln(c + 1) for c in row) - gammaln(row.sum() + 3) + np.log(6)
        assert value == pytest.approx(exact)
