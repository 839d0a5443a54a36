"""The crossed prior with metadata and levels, exactly: against all random effects conditioned on all rewards."""

from typing import Any

import numpy as np
import pytest
from reference.crossed_tree import DenseTree, TreeProblem
from reference.dense import Array

from hieropo._utils.packed import unpack
from hieropo.model.crossed.described import Prepared, condition_units
from hieropo.model.crossed.hierarchy import CrossedHierarchy, CrossedLevel
from hieropo.model.crossed.steps import GroupSums, RootSums, UnitMessages
from hieropo.model.crossed.tree import Ladder, Tree, climb
from hieropo.model.metadata import Metadata
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Keys

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def cov(rng: np.random.Generator, p: int, rank: int) -> Array:
    root = rng.standard_normal((p, rank))
    return root @ root.T


def problem(
    seed: int = 0, *, p: int = 2, K: int = 3, m: int = 7, c: int = 1, sizes: tuple[int, ...] = (),
    rank: int | None = None, each: bool = False, n: int = 90,
) -> TreeProblem:  # fmt: skip
    rng = np.random.default_rng(seed)
    r = p if rank is None else rank
    P = p + c if each else p * (1 + c)
    action_cov = cov(rng, P, P if rank is None else rank)
    if each:
        action_cov[p:] = action_cov[:, p:] = 0.0
    covs = [(cov(rng, p, r), cov(rng, p, r)) for _ in range(1 + len(sizes))]
    counts, parents = [m, *sizes], []
    for below, above in zip(counts, sizes, strict=False):
        parents.append([int(g) for g in np.append(np.arange(above), rng.integers(0, above, below - above))])
    metadata = rng.standard_normal((m, K, p, c) if each else (m, c))
    task, action = rng.integers(0, m - 1, n), rng.integers(0, K, n)  # the last task has no rows
    action[task == 0] = 0
    x = np.column_stack([np.ones(n), rng.standard_normal((n, p - 1))])
    return TreeProblem(
        task,
        action,
        x,
        3 * rng.standard_normal(n),
        action_cov,
        covs,
        parents,
        rng.uniform(0.5, 2, K),
        metadata,
    )


def ids(k: int) -> str:
    return f"task {k}"


def moments_of(problem: TreeProblem) -> Moments:
    m, K, p = problem.n_tasks, len(problem.noise_var), problem.x.shape[1]
    some = Moments.from_arrays(problem.task * K + problem.action, problem.x, problem.reward)
    whole = some.covering(Keys(np.arange(m * K)))
    order = np.argsort(whole.tasks)
    sums = whole.sums[order].reshape(m, K, -1)
    rows, log_precision = (a[order].reshape(m, K) for a in (whole.rows, whole.log_precision))
    keys = np.array([ids(s) for s in range(m)], dtype=object)
    return Moments(Keys(keys), p, sums, rows, log_precision)


def padded(cov: Array, P: int) -> Array:
    out = np.zeros((P, P))
    out[: len(cov), : len(cov)] = cov
    return out


def hierarchy_of(problem: TreeProblem) -> CrossedHierarchy:
    m, P = problem.n_tasks, len(problem.action_cov)
    levels = []
    for k, parents in enumerate(problem.parents):
        parent = {(ids(s) if k == 0 else f"{k - 1}: {s}"): f"{k}: {g}" for s, g in enumerate(parents)}
        levels.append(CrossedLevel(*(padded(c, P) for c in problem.covs[k + 1]), parent, f"level {k}"))
    known = None
    if problem.metadata.size:
        values = problem.metadata
        keys = np.array([ids(s) for s in range(m)], dtype=object)
        flat = values if values.ndim == 2 else values.reshape(m, -1, values.shape[-1])
        known = Metadata(keys, flat, centre=np.zeros(flat.shape[1:]))
    return CrossedHierarchy(
        problem.action_cov, *(padded(c, P) for c in problem.covs[0]), problem.noise_var, tuple(levels), known
    )


CASES: dict[str, dict[str, Any]] = {
    "metadata": {"c": 2},
    "metadata of an intercept": {"p": 1, "c": 1},
    "numbers for each action": {"c": 2, "each": True},
    "levels": {"c": 0, "sizes": (3,)},
    "two levels": {"c": 0, "sizes": (4, 2)},
    "levels of an intercept": {"c": 0, "p": 1, "sizes": (3,)},
    "metadata and levels": {"c": 1, "sizes": (4, 2)},
    "singular": {"c": 1, "sizes": (3,), "rank": 1},
    "without actions' effects": {"c": 0, "sizes": (3,), "rank": 0},
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_conditioned_joint_gaussian(name: str) -> None:
    given = problem(**CASES[name])
    truth, got = DenseTree(given), condition_units(moments_of(given), hierarchy_of(given))
    K, p, m = truth.K, truth.p, given.n_tasks
    assert got.log_evidence == pytest.approx(truth.log_evidence, rel=1e-10)
    mean, cov_ = truth.mean[: truth.P], truth.cov[: truth.P, : truth.P]
    np.testing.assert_allclose(got.hyper.mean, mean, **CLOSE)
    np.testing.assert_allclose(got.hyper.cov, cov_, **CLOSE)
    table = got.table()
    every, covs = got.joint(np.arange(m))
    for s in range(m):
        mean, cov_ = truth.joint(truth.task(s))
        law = got.task(ids(s))
        np.testing.assert_allclose(law.mean, mean, **CLOSE)
        np.testing.assert_allclose(law.cov, cov_, **CLOSE)
        np.testing.assert_allclose(every[s], mean, **CLOSE)
        np.testing.assert_allclose(covs[s], cov_, **CLOSE)
        np.testing.assert_allclose(table.means[s].reshape(-1), mean, **CLOSE)
        for a in range(K):
            at = slice(a * p, a * p + p)
            np.testing.assert_allclose(unpack(table.covs[s, a], p), cov_[at, at], **CLOSE)
            np.testing.assert_allclose(got.unit(ids(s), a).cov, cov_[at, at], **CLOSE)


@pytest.mark.parametrize("name", CASES)
def test_sums_over_tasks_have_the_covariance_between_tasks(name: str) -> None:
    given = problem(**CASES[name])
    truth, got = DenseTree(given), condition_units(moments_of(given), hierarchy_of(given))
    vectors = np.random.default_rng(1).standard_normal((2, given.n_tasks, truth.K * truth.p))
    matrix = np.array([
        sum(vectors[j, s] @ truth.task(s) for s in range(given.n_tasks)) for j in range(2)
    ])  # fmt: skip
    mean, cov_ = truth.joint(matrix)
    found = got.total(vectors)
    np.testing.assert_allclose(found[0], mean, **CLOSE)
    np.testing.assert_allclose(found[1], cov_, **CLOSE)
    means, own, shared = got.along(np.ascontiguousarray(vectors[:, 2:5].swapaxes(0, 1)), slice(2, 5))
    for k, s in enumerate(range(2, 5)):
        mean, cov_ = truth.joint(vectors[:, s] @ truth.task(s))
        np.testing.assert_allclose(means[k], mean, **CLOSE)
        np.testing.assert_allclose(own[k] + shared[k] @ shared[k].T, cov_, **CLOSE)


@pytest.mark.parametrize("name", CASES)
def test_new_tasks_have_the_law_of_their_groups_and_metadata(name: str) -> None:
    given = problem(**CASES[name])
    truth, got = DenseTree(given), condition_units(moments_of(given), hierarchy_of(given))
    rng, c = np.random.default_rng(3), given.metadata.shape[-1]
    each = given.metadata.ndim == 4
    z = rng.standard_normal((truth.K, truth.p, c) if each else c)
    known = {} if not c else {"metadata": z.reshape(-1, c) if each else z}
    groups: list[tuple[int | None, int]] = [(None, 0)]
    groups += [(k, 1) for k in range(len(given.parents))]
    for level, group in groups:
        mean, cov_ = truth.joint(truth.new_task(level, group, z))
        place = {} if level is None else {"parent": f"{level}: {group}", "level": level}
        law = got.new_task(**place, **known)
        np.testing.assert_allclose(law.mean, mean, **CLOSE)
        np.testing.assert_allclose(law.cov, cov_, **CLOSE)
    table, law = got.table(), got.new_task()  # metadata drawn from those of the log
    np.testing.assert_allclose(table.prior_means.reshape(-1), law.mean, **CLOSE)
    laws = [truth.joint(truth.new_task(None, 0, one)) for one in given.metadata]
    mean = np.mean([one for one, _ in laws], axis=0)
    spread = np.mean([two + np.outer(one - mean, one - mean) for one, two in laws], axis=0)
    np.testing.assert_allclose(law.mean, mean, **CLOSE)
    np.testing.assert_allclose(law.cov, spread, **CLOSE)
    p = truth.p
    for a in range(truth.K):
        at = slice(a * p, a * p + p)
        np.testing.assert_allclose(unpack(table.prior_covs[a], p), spread[at, at], **CLOSE)


def test_without_effects_every_difference_is_exactly_zero() -> None:
    given = problem(c=0, sizes=(4, 2), p=2)
    p, zero = 2, np.zeros((2, 2))
    covs = [(cov(np.random.default_rng(k), p, p), zero) for k in range(3)]
    still = TreeProblem(
        given.task, given.action, given.x, given.reward, zero, covs, given.parents, given.noise_var, given.metadata
    )  # fmt: skip
    got = condition_units(moments_of(still), hierarchy_of(still))
    means = got.table().means
    np.testing.assert_array_equal(means, np.broadcast_to(means[:, :1], means.shape))
    v = np.zeros((1, given.n_tasks, 3, p))
    v[:, :, 0], v[:, :, 2] = 1.0, -1.0
    mean, variance = got.total(v.reshape(1, given.n_tasks, -1))
    assert mean == 0.0
    assert variance == 0.0


@pytest.mark.parametrize("size", [0.3, 1e3], ids=["formed", "information too large to be formed"])
@pytest.mark.parametrize("name", ["levels", "two levels", "levels of an intercept", "singular"])
def test_messages_along_the_interaction_of_groups_are_those_of_the_steps(name: str, size: float) -> None:
    given = problem(**CASES[name])
    moments, h = moments_of(given), hierarchy_of(given)
    if h.metadata is not None:
        moments = Prepared.of(moments, h, h.noise_var).inner
    tree = Tree.of(moments, h.levels, h.noise_var)
    groups = GroupSums.of(UnitMessages(tree.units, h.interaction_cov), h.level_cov, tree.groups)
    ladder, sds = Ladder.of(moments, h.levels, h.noise_var), np.array([0.0, 1.0, size])
    covs = [(level.level_cov, level.interaction_cov) for level in h.levels]
    for some in (sds, *sds[:, None]):
        for sd, got in zip(some, ladder.to_root(groups, covs, some), strict=True):
            right, _ = climb(groups, tree, [(covs[0][0], sd**2 * covs[0][1]), *covs[1:]], moments.n_actions)
            for field in RootSums._fields:
                expected = np.asarray(getattr(right, field))
                close = 1e-10 * max(float(np.abs(expected).max()), 1e-300)
                np.testing.assert_allclose(getattr(got, field), expected, rtol=0, atol=close)
