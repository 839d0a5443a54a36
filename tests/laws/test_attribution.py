"""The laws of shares: prior, own rows and the rows of other tasks add to the posterior mean, whatever the posterior."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from reference.dense import Array
from unit_logs import log

from hieropo import HierOPO
from hieropo._utils.packed import packed_size
from hieropo.model.attribution import attribution, without_tasks
from hieropo.model.crossed.described import condition_units
from hieropo.model.crossed.hierarchy import CrossedHierarchy, CrossedLevel
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy, Level
from hieropo.model.metadata import Metadata
from hieropo.model.posterior import condition
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Keys

TASKS = [0, 10, 20, 30, 40, 50]
CLOSE = 1e-10


def spread(d: int, seed: int, rank: int | None = None) -> Array:
    root = np.random.default_rng(seed).standard_normal((d, d if rank is None else rank))
    return root @ root.T / d


def dense_cases() -> dict[str, Hierarchy]:
    d, regions = 3, {task: f"region {task % 20}" for task in TASKS}
    hyper = Gaussian(np.array([1.0, -2.0, 0.5]), spread(d, 1))
    countries = {"region 0": "north", "region 10": "south"}
    levels = (Level(spread(d, 2), regions), Level(spread(d, 3), countries))
    known = Metadata(Keys(np.array(TASKS)), np.random.default_rng(4).standard_normal((6, 2)), ("size", "age"))
    plain = Hierarchy(None, spread(d, 5), 1.3)
    return {
        "flat": plain,
        "proper": replace(plain, hyper=hyper),
        "singular": Hierarchy(Gaussian(hyper.mean, spread(d, 6, 1)), spread(d, 7, 1), 0.7),
        "pooled": replace(plain, hyper=hyper).pooled(),
        "oracle": replace(plain, hyper=hyper).oracle(hyper.mean),
        "separate": replace(plain, hyper=hyper).flat(),
        "tree": replace(plain, levels=levels),
        "proper tree": replace(plain, levels=levels, hyper=hyper),
        "metadata": replace(plain, metadata=known),
        "tree with metadata": replace(plain, levels=levels, metadata=known),
    }


def dense_moments() -> Moments:
    rng = np.random.default_rng(0)
    task = np.array(TASKS)[rng.integers(0, 5, 60)]  # the last task has no rows
    phi = np.column_stack([np.ones(60), rng.standard_normal((60, 2))])
    phi[task == 0, 1:] = 0.0  # a task that shows one direction
    made = Moments.from_arrays(task, phi, 5 + rng.standard_normal(60), weight=rng.uniform(0.5, 2, 60))
    return made.covering(Keys(np.array(TASKS)))


def crossed_cases() -> dict[str, CrossedHierarchy]:
    p, regions = 3, {task: f"region {task % 20}" for task in TASKS}
    plain = CrossedHierarchy(spread(p, 1), spread(p, 2), spread(p, 3), np.array([0.5, 1.0, 2.0, 1.5]))
    zero = np.zeros((p, p))
    countries = {"region 0": "north", "region 10": "south"}
    levels = (
        CrossedLevel(spread(p, 4), spread(p, 5), regions),
        CrossedLevel(spread(p, 6), spread(p, 7), countries),
    )
    known = Metadata(Keys(np.array(TASKS)), np.random.default_rng(4).standard_normal((6, 1)), ("size",))
    P = 2 * p
    padded = [np.pad(spread(p, seed), (0, p)) for seed in (2, 3, 4, 5)]
    described = CrossedHierarchy(spread(P, 1), padded[0], padded[1], plain.noise_var, metadata=known)
    described_levels = (
        CrossedLevel(padded[2], padded[3], regions),
        CrossedLevel(padded[0], padded[1], countries),
    )
    return {
        "crossed": plain,
        "no effect": CrossedHierarchy(zero, spread(p, 2), zero, plain.noise_var),
        "singular": CrossedHierarchy(spread(p, 1, 1), spread(p, 2, 1), zero, plain.noise_var),
        "groups": replace(plain, levels=levels),
        "described": described,
        "described groups": replace(described, levels=described_levels),
    }


@cache
def crossed_moments() -> Moments:
    return log(n=120).units().covering(Keys(np.array(TASKS)))


def learned(**settings: Any) -> Any:
    """Posterior of a learner, whose rewards lie far from 0."""
    rng = np.random.default_rng(1)
    task, action, x = rng.integers(0, 6, 150), rng.integers(0, 3, 150), rng.normal(size=150)
    reward = 100 + rng.normal(size=(6, 3))[task, action] + 0.5 * x + rng.normal(size=150)
    table = pa.table({"task": task, "action": action, "x": x, "reward": reward})
    columns = {"task": "task", "action": "action", "reward": "reward", "context": ["x"]}
    return HierOPO(logging="random", **settings).fit(table, **columns).posterior_


OFFSET, UNIT_OFFSET = np.array([5.0, -1.0, 0.3]), np.tile([3.0, 1.0, -2.0], 4)
GIVEN: dict[str, tuple[Callable[[], Any], Any]] = {
    **{f"dense: {name}": (dense_moments, one) for name, one in dense_cases().items()},
    **{f"crossed: {name}": (crossed_moments, one) for name, one in crossed_cases().items()},
}
MADE: dict[str, Callable[[], Any]] = {
    "dense, offset": lambda: condition(dense_moments().around(OFFSET), dense_cases()["proper tree"]),
    "dense, flat, offset": lambda: condition(dense_moments().around(OFFSET), dense_cases()["flat"]),
    "crossed, offset": lambda: condition_units(
        crossed_moments().around(UNIT_OFFSET), crossed_cases()["crossed"]
    ),
    "groups, offset": lambda: condition_units(
        crossed_moments().around(UNIT_OFFSET), crossed_cases()["described groups"]
    ),
    "mixture of crossed": learned,
    "mixture of dense": lambda: learned(task_cov="diag", uncertainty="integrated"),
    "first order": lambda: learned(task_cov="diag", uncertainty="first-order"),
}


def conditioned(moments: Any, hierarchy: Any) -> Any:
    return (condition if not moments.per_action else condition_units)(moments, hierarchy)


@cache
def posterior_of(name: str) -> Any:
    if name in MADE:
        return MADE[name]()
    make, hierarchy = GIVEN[name]
    return conditioned(make(), hierarchy)


def changed(moments: Any, row: int, *, rows: float = 1.0, rewards: float = 1.0) -> Any:
    """Moments where the rows of one task count ``rows`` times, and their rewards are multiplied."""
    sums, counts, d = moments.sums.copy(), moments.rows.copy(), moments.unit_dim
    sums[row] *= rows
    counts[row] *= rows
    sums[row, ..., packed_size(d) : packed_size(d) + d] *= rewards
    return replace(moments, sums=sums, rows=counts)


@pytest.mark.slow
@pytest.mark.parametrize("row", [0, 2, 5])
@pytest.mark.parametrize("name", [*GIVEN, *MADE])
def test_shares_add_to_the_posterior_mean(name: str, row: int) -> None:
    posterior = posterior_of(name)
    split = attribution(posterior, row, np.eye(posterior.dim))
    want = posterior.task(posterior.moments.keys.id_of(row)).mean
    size = np.abs(split.prior) + np.abs(split.tasks).sum(axis=1) + np.abs(want)
    assert np.abs(split.means - want).max() <= CLOSE * np.abs(want).max()
    assert (np.abs(split.prior + split.tasks.sum(axis=1) - want) <= CLOSE * size).all()


@pytest.mark.parametrize("name", GIVEN)
def test_a_share_is_what_rewards_of_that_task_add(name: str) -> None:
    make, hierarchy = GIVEN[name]
    posterior, row = posterior_of(name), 2
    split = attribution(posterior, row, np.eye(posterior.dim))
    for other in (1, 2, 3, 5):
        doubled = conditioned(changed(make(), other, rewards=2.0), hierarchy)
        added = doubled.means(slice(row, row + 1))[0] - posterior.means(slice(row, row + 1))[0]
        np.testing.assert_allclose(split.tasks[:, other], added, rtol=1e-9, atol=1e-9)
    if "separate" in name or "oracle" in name:  # nothing is shared
        assert not np.delete(split.tasks, row, axis=1).any()


@pytest.mark.parametrize("name", GIVEN)
def test_leaving_a_task_out_is_a_posterior_without_its_rows(name: str) -> None:
    make, hierarchy = GIVEN[name]
    posterior, row, vectors = posterior_of(name), 2, np.eye(posterior_of(name).dim)
    others = np.array([1, 2, 3, 5])  # the last has no rows in some moments
    means, covs = without_tasks(posterior, row, vectors, others)
    change = attribution(posterior, row, vectors).changes
    for mean, cov, other in zip(means, covs, others, strict=True):
        left = conditioned(changed(make(), int(other), rows=0.0), hierarchy)
        want = left.joint(np.array([row]))
        np.testing.assert_allclose(mean, want[0][0], rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(cov, want[1][0], rtol=1e-8, atol=1e-8)
        less = conditioned(changed(make(), int(other), rows=1 - 1e-6), hierarchy)
        slope = (less.means(slice(row, row + 1))[0] - posterior.means(slice(row, row + 1))[0]) * 1e6
        np.testing.assert_allclose(change[:, other], slope, rtol=1e-3, atol=1e-5)


def test_without_the_only_task_that_shows_a_direction_nothing_is_known() -> None:
    moments = Moments.from_arrays([0, 0, 1], np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), [1.0, 2.0, 3.0])
    posterior = condition(moments, Hierarchy(None, np.eye(2), 1.0))
    means, covs = without_tasks(posterior, 1, np.eye(2), np.array([0, 1]))
    assert np.isnan(means[0]).all()
    assert np.isnan(covs[0]).all()
    assert np.isfinite(means[1]).all()


def test_shares_of_a_mixture_are_those_of_its_hierarchies_by_their_weights() -> None:
    posterior, vectors = posterior_of("mixture of crossed"), np.eye(6)
    parts = [attribution(part, 1, vectors) for part in posterior.parts()]
    want = sum(w * part.tasks for w, part in zip(posterior.weights, parts, strict=True))
    np.testing.assert_allclose(attribution(posterior, 1, vectors).tasks, want, rtol=1e-10)
