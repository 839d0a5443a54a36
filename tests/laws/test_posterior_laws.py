"""The laws of the posterior: it is the conditioned joint Gaussian, and what follows from that."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from reference.dense import Array, Dense, Problem
from reference.measure import ROUNDINGS, Measure, norm
from strategies import hierarchy_of, moments_of, problems, seeds

from hieropo.errors import HieropoError, MismatchError, NumericalError, UnknownTaskError
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy, Level
from hieropo.model.posterior import Posterior, condition
from hieropo.moments.statistics import Moments

PLAIN = 1e-10  # relative, where the law names no other measure


def law(gaussian: Gaussian) -> tuple[Array, Array]:
    return gaussian.mean, gaussian.cov


def unpacked(packed: Array, dim: int) -> Array:
    """Symmetric matrix of its upper triangle by columns: entry (i <= j) at j (j + 1) / 2 + i."""
    return np.array(
        [[packed[max(i, j) * (max(i, j) + 1) // 2 + min(i, j)] for j in range(dim)] for i in range(dim)]
    )


def assert_near(got: Gaussian, want: Gaussian, tolerance: float = PLAIN) -> None:
    """Assert that two laws are one; the mean relative to its own size or the spread, whichever is larger."""
    size = max(norm(want.cov), norm(got.cov))
    assert norm(got.cov - want.cov) <= tolerance * size
    assert norm(got.mean - want.mean) <= tolerance * (norm(want.mean) + np.sqrt(size))


def assert_same(got: Gaussian, want: Gaussian, measure: Measure) -> None:
    measure.assert_law(law(got), law(want), "one of two that must be equal")


def assert_is_dense(post: Posterior, dense: Dense) -> None:
    """Assert every quantity of a posterior."""
    measure, problem = Measure(dense), dense.problem
    measure.assert_law(law(post.hyper), dense.hyper, "the root")
    measure.assert_evidence(post.log_evidence)
    measure.assert_law(law(post.new_task()), dense.new_task(), "a new task")
    for k, (_, up) in enumerate(problem.levels):
        for name in set(up.values()):
            measure.assert_law(law(post.node(k, name)), dense.node(k, name), f"node {name}")
            if k == 0:
                measure.assert_law(law(post.new_task(name)), dense.new_task(name), f"a new task at {name}")
    for s in problem.tasks:
        measure.assert_law(law(post.task(s)), dense.task(s), f"task {s!r}")
        for z in problem.tasks:
            scale = np.sqrt(norm(dense.task(s)[1]) * norm(dense.task(z)[1]))
            measure.assert_cov(post.cov_between(s, z), dense.cov_between(s, z), scale, f"tasks {s!r}, {z!r}")
    assert_table_is_dense(post, dense, measure)


def assert_table_is_dense(post: Posterior, dense: Dense, measure: Measure) -> None:
    table, problem = post.table(), dense.problem
    ids = list(table.keys.values.tolist())
    assert table.dim == problem.dim
    assert sorted(map(repr, ids)) == sorted(map(repr, problem.tasks))
    for row, s in enumerate(ids):
        measure.assert_law(
            (table.means[row], unpacked(table.covs[row], table.dim)), dense.task(s), f"row of {s!r}"
        )
        assert table.rows[row] == sum(t == s for t in problem.task)
    measure.assert_law(law(table.prior), dense.new_task(), "the table's prior")


# Equality with the dense truth


@given(problems())
@settings(max_examples=120)
def test_it_is_the_conditioned_joint_gaussian(problem: Problem) -> None:
    assert_is_dense(condition(moments_of(problem), hierarchy_of(problem)), Dense(problem))


@pytest.mark.slow
@given(problems(flat=True))
@settings(max_examples=60)
def test_it_is_with_a_flat_hyper_prior(problem: Problem) -> None:
    dense, moments, hierarchy = Dense(problem), moments_of(problem), hierarchy_of(problem)
    if dense.determinacy < 1e-14:
        event("mu is not determined")
        with pytest.raises(NumericalError):
            condition(moments, hierarchy)
    elif Measure(dense).kappa < 1e8:
        event("mu is determined")
        assert_is_dense(condition(moments, hierarchy), dense)


def graded(exponent: int, rank: int, *, flat: bool, dim: int = 4) -> Problem:
    """Four tasks with ||G|| = 10^exponent and G of one rank, but for the last, which has no rows."""
    rng = np.random.default_rng(1000 + 10 * exponent + rank)
    noise_var, ids, n = 0.49, ["a", "b", "c"], 6
    task = [s for s in ids for _ in range(n)]
    blocks = []
    for _ in ids:
        rows = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, dim))
        blocks.append(rows * np.sqrt(10.0**exponent * noise_var) / max(norm(rows), 1e-300))
    phi = np.concatenate(blocks)
    factor = rng.standard_normal((dim, dim))
    reward = phi @ rng.standard_normal(dim) + np.sqrt(noise_var) * rng.standard_normal(len(task))
    return Problem(
        task=task,
        phi=phi,
        reward=reward,
        precision=np.linspace(0.5, 2.0, len(task)),
        task_cov=np.eye(dim) / 4,
        noise_var=noise_var,
        hyper_mean=np.arange(dim) / dim,
        hyper_cov=None if flat else factor @ factor.T / dim,
        levels=((np.diag([1.0, 0.5, 0.0, 0.25]), {"a": 0, "b": 0, "c": 1, "d": 1}),),
    )


@pytest.mark.slow
@pytest.mark.parametrize("exponent", range(-12, 7, 2))
@pytest.mark.parametrize("rank", range(5))
def test_1e10_holds_at_every_scale_and_rank(exponent: int, rank: int) -> None:
    problem = graded(exponent, rank, flat=False)
    dense, post = Dense(problem), condition(moments_of(problem), hierarchy_of(problem))
    assert_is_dense(post, dense)
    for got, truth in [(post.hyper, dense.hyper), *((post.task(s), dense.task(s)) for s in "abcd")]:
        assert norm(got.cov - truth[1]) <= PLAIN * norm(truth[1])
        assert norm(got.mean - truth[0]) <= PLAIN * norm(truth[0])


@pytest.mark.slow
@pytest.mark.parametrize("exponent", range(-12, 7, 2))
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_1e10_holds_with_a_flat_hyper_prior(exponent: int, rank: int) -> None:
    problem = graded(exponent, rank, flat=True)
    assert_is_dense(condition(moments_of(problem), hierarchy_of(problem)), Dense(problem))


@pytest.mark.slow
@pytest.mark.parametrize("exponent", range(-9, 0))
@pytest.mark.parametrize("size", [1.0, 1000.0])
@pytest.mark.parametrize("order", ["zxy", "xyz", "xzy"])
@pytest.mark.parametrize("n", [2, 8])
def test_features_that_nearly_coincide_cost_no_digits(exponent: int, size: float, order: str, n: int) -> None:
    # x and y differ by 5 * 10^exponent: no pivot is rounding, and none is far above it. A factor of G that
    # drops such a pivot with its row, or that is not pivoted, is off by the root of eps.
    rng = np.random.default_rng(1)
    x, z = rng.standard_normal((2, n))
    column = {"x": x, "y": x + 5 * 10.0**exponent * rng.standard_normal(n), "z": z}
    for levels in [(), ((np.diag([0.5, 0.0, 1.0]), {"a": "N"}),)]:
        problem = Problem(
            task=["a"] * n,
            phi=size * np.column_stack([column[name] for name in order]),
            reward=size * rng.standard_normal(n),
            precision=np.ones(n),
            task_cov=np.eye(3),
            noise_var=1.0,
            hyper_mean=np.zeros(3),
            hyper_cov=np.diag([1.0, 2.0, 0.5]),
            levels=levels,
        )
        assert_is_dense(condition(moments_of(problem), hierarchy_of(problem)), Dense(problem))


# Limits


@given(problems())
@settings(max_examples=40)
def test_no_data_gives_the_prior(problem: Problem) -> None:
    hierarchy = hierarchy_of(problem)
    post = condition(Moments.zero(problem.dim), hierarchy)
    assert post.log_evidence == 0.0
    assert_near(post.hyper, Gaussian(problem.hyper_mean, problem.hyper_cov), 1e-13)
    marginal = Gaussian(problem.hyper_mean, hierarchy.flat().task_cov + 0 * problem.hyper_cov)
    for s in problem.levels[0][1] if problem.levels else ():
        assert_near(post.task(s), marginal, 1e-13)
    assert_near(post.new_task(), marginal, 1e-13)
    assert_near(post.task("never seen"), marginal, 1e-13)


@pytest.mark.slow
@given(problems())
@settings(max_examples=40)
def test_task_cov_zero_pools(problem: Problem) -> None:
    hierarchy = hierarchy_of(problem).pooled()
    post = condition(moments_of(problem), hierarchy)
    one = replace(
        problem, task=["all"] * len(problem.task), levels=(), task_cov=np.zeros_like(problem.task_cov)
    )
    dense = Dense(one)
    measure = Measure(dense)
    measure.assert_law(law(post.hyper), dense.hyper, "the root")
    for s in problem.task:
        measure.assert_law(law(post.task(s)), dense.hyper, f"task {s!r}")
    measure.assert_evidence(post.log_evidence)


@pytest.mark.slow
@given(problems())
@settings(max_examples=40)
def test_hyper_cov_zero_is_the_oracle(problem: Problem) -> None:
    hierarchy, moments = hierarchy_of(problem), moments_of(problem)
    known = Hierarchy(
        hyper=Gaussian(problem.hyper_mean, np.zeros_like(problem.task_cov)),
        task_cov=problem.task_cov,
        noise_var=problem.noise_var,
        levels=hierarchy.levels,
    )
    oracle, post = condition(moments, hierarchy.oracle(problem.hyper_mean)), condition(moments, known)
    dense = Dense(replace(problem, hyper_cov=np.zeros_like(problem.task_cov)))
    assert_is_dense(oracle, dense)
    assert_is_dense(post, dense)
    np.testing.assert_array_equal(oracle.hyper.mean, problem.hyper_mean)
    assert not oracle.hyper.cov.any()


@given(problems(max_tasks=1))
@settings(max_examples=40)
def test_one_task_makes_hier_and_flat_equal(problem: Problem) -> None:
    hierarchy, moments = hierarchy_of(problem), moments_of(problem)
    measure = Measure(Dense(problem))
    hier, flat = condition(moments, hierarchy), condition(moments, hierarchy.flat())
    for s in problem.tasks:
        assert_same(flat.task(s), hier.task(s), measure)
    assert abs(flat.log_evidence - hier.log_evidence) <= 2 * measure.evidence_room()


@pytest.mark.slow
@given(problems())
@settings(max_examples=40)
def test_oracle_below_hier_below_flat(problem: Problem) -> None:
    hierarchy, moments = hierarchy_of(problem), moments_of(problem)
    relative = Measure(Dense(problem)).relative
    oracle = condition(moments, hierarchy.oracle(problem.hyper_mean))
    hier, flat = condition(moments, hierarchy), condition(moments, hierarchy.flat())
    for s in problem.tasks:
        for smaller, larger in [(oracle, hier), (hier, flat)]:
            gap = np.linalg.eigvalsh(larger.task(s).cov - smaller.task(s).cov)
            assert gap[0] >= -relative * norm(larger.task(s).cov)


@given(problems())
@settings(max_examples=40)
def test_every_covariance_is_symmetric_and_psd(problem: Problem) -> None:
    post = condition(moments_of(problem), hierarchy_of(problem))
    for gaussian in [post.hyper, post.new_task(), *(post.task(s) for s in problem.tasks)]:
        np.testing.assert_array_equal(gaussian.cov, gaussian.cov.T)
        assert np.linalg.eigvalsh(gaussian.cov)[0] >= -ROUNDINGS * norm(gaussian.cov)


# Invariance


@given(problems(), seeds)
@settings(max_examples=40)
def test_order_of_rows_and_names_of_tasks_do_not_matter(problem: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(problem.task))
    names = dict(zip(problem.tasks, rng.permutation(len(problem.tasks)).tolist(), strict=True))
    renamed = replace(
        problem,
        task=[names[problem.task[t]] for t in order],
        phi=problem.phi[order],
        reward=problem.reward[order],
        precision=problem.precision[order],
        levels=tuple(
            (cov, {names[s] if k == 0 else s: node for s, node in up.items()})
            for k, (cov, up) in enumerate(problem.levels)
        ),
    )
    measure = Measure(Dense(problem))
    one = condition(moments_of(problem), hierarchy_of(problem))
    other = condition(moments_of(renamed), hierarchy_of(renamed))
    assert_same(other.hyper, one.hyper, measure)
    for s in problem.tasks:
        assert_same(other.task(names[s]), one.task(s), measure)
    assert abs(other.log_evidence - one.log_evidence) <= measure.evidence_room()


@pytest.mark.slow
@given(problems(), seeds)
@settings(max_examples=40)
def test_rotating_features_rotates_the_answers(problem: Problem, seed: int) -> None:
    turn, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((problem.dim, problem.dim)))

    def turned(cov: Array) -> Array:
        new = turn @ cov @ turn.T
        return (new + new.T) / 2

    rotated = replace(
        problem,
        phi=problem.phi @ turn.T,
        task_cov=turned(problem.task_cov),
        hyper_mean=turn @ problem.hyper_mean,
        hyper_cov=turned(problem.hyper_cov),
        levels=tuple((turned(cov), up) for cov, up in problem.levels),
    )
    measure = Measure(Dense(rotated))
    one = condition(moments_of(problem), hierarchy_of(problem))
    other = condition(moments_of(rotated), hierarchy_of(rotated))
    for s in problem.tasks:
        want = turn @ one.task(s).mean, turned(one.task(s).cov)
        measure.assert_law(law(other.task(s)), want, f"rotated task {s!r}")
    assert abs(other.log_evidence - one.log_evidence) <= measure.evidence_room()


@pytest.mark.slow
@given(problems(), st.integers(-20, 20))
@settings(max_examples=40)
def test_the_unit_of_the_reward_is_free(problem: Problem, power: int) -> None:
    unit = 2.0**power
    other_unit = replace(
        problem,
        reward=unit * problem.reward,
        task_cov=unit**2 * problem.task_cov,
        noise_var=unit**2 * problem.noise_var,
        hyper_mean=unit * problem.hyper_mean,
        hyper_cov=unit**2 * problem.hyper_cov,
        levels=tuple((unit**2 * cov, up) for cov, up in problem.levels),
    )
    measure = Measure(Dense(problem))
    one = condition(moments_of(problem), hierarchy_of(problem))
    other = condition(moments_of(other_unit), hierarchy_of(other_unit))
    for s in problem.tasks:
        measure.assert_law(
            (other.task(s).mean / unit, other.task(s).cov / unit**2), law(one.task(s)), f"task {s!r}"
        )
    change = -len(problem.task) * np.log(unit)
    assert abs(other.log_evidence - one.log_evidence - change) <= measure.evidence_room() + PLAIN * abs(
        change
    )


# Deletion


def kept(problem: Problem, keep: Array) -> Problem:
    return replace(
        problem,
        task=[s for s, k in zip(problem.task, keep, strict=True) if k],
        phi=problem.phi[keep],
        reward=problem.reward[keep],
        precision=problem.precision[keep],
    )


@pytest.mark.slow
@given(problems(), seeds)
@settings(max_examples=40)
def test_subtracting_a_task_is_never_having_seen_it(problem: Problem, seed: int) -> None:
    gone = problem.tasks[seed % len(problem.tasks)] if problem.tasks else None
    own = np.array([s == gone for s in problem.task], dtype=bool)
    hierarchy = hierarchy_of(problem)
    after = condition(moments_of(problem) - moments_of(kept(problem, own)), hierarchy)
    never = condition(moments_of(kept(problem, ~own)), hierarchy)
    measure = Measure(Dense(problem))
    assert_same(after.hyper, never.hyper, measure)
    for s in problem.tasks:
        assert_same(after.task(s), never.task(s), measure)
    assert abs(after.log_evidence - never.log_evidence) <= measure.evidence_room()


@given(st.integers(1, 4), seeds, st.integers(-3, 3))
def test_subtracting_some_rows_is_never_having_seen_them(dim: int, seed: int, exponent: int) -> None:
    rng = np.random.default_rng(seed)
    n, size = 14, 10.0**exponent
    task = rng.integers(0, 2, n)
    phi, reward = size * rng.standard_normal((n, dim)), rng.standard_normal(n)
    gone = rng.random(n) < 0.6
    hierarchy = Hierarchy(hyper=Gaussian(np.zeros(dim), np.eye(dim)), task_cov=np.eye(dim), noise_var=1.0)
    everything = Moments.from_arrays(task, phi, reward)
    after = condition(everything - Moments.from_arrays(task[gone], phi[gone], reward[gone]), hierarchy)
    never = condition(Moments.from_arrays(task[~gone], phi[~gone], reward[~gone]), hierarchy)
    # What was added and taken away leaves its rounding behind, of eps times what had been there.
    room = PLAIN + 64 * np.finfo(float).eps * size**2 * n * dim
    for s in (0, 1):
        assert_near(after.task(s), never.task(s), room)


@pytest.mark.parametrize("dim", [1, 3])
def test_moments_of_no_rows_are_named(dim: int) -> None:
    rng = np.random.default_rng(0)
    hierarchy = Hierarchy(hyper=Gaussian(np.zeros(dim), np.eye(dim)), task_cov=np.eye(dim), noise_var=1.0)
    few = Moments.from_arrays(
        ["north"] * 2 + ["south"] * 2, rng.standard_normal((4, dim)), rng.standard_normal(4)
    )
    other = Moments.from_arrays(["south"] * 9, rng.standard_normal((9, dim)), rng.standard_normal(9))
    with pytest.raises(HieropoError, match="south"):
        condition(few - other, hierarchy)


# Refusals


def simple(dim: int, *, hyper: Gaussian | None = None, levels: tuple[Level, ...] = ()) -> Hierarchy:
    return Hierarchy(hyper=hyper, task_cov=np.eye(dim), noise_var=1.0, levels=levels)


@pytest.mark.parametrize("exponent", [-12, -6, 0, 3, 6])
@pytest.mark.parametrize("n", [0, 1, 2])
def test_flat_with_too_few_rows_is_not_determined(exponent: int, n: int) -> None:
    rng = np.random.default_rng(n)
    phi = 10.0 ** (exponent / 2) * rng.standard_normal((n, 3))
    moments = Moments.from_arrays(np.arange(n), phi, np.ones(n)) if n else Moments.zero(3)
    with pytest.raises(NumericalError, match=r"hyper"):
        condition(moments, simple(3))


@pytest.mark.parametrize("exponent", [-12, -6, 0, 3, 6])
def test_flat_with_an_unseen_direction_is_not_determined(exponent: int) -> None:
    rng = np.random.default_rng(3)
    phi = 10.0 ** (exponent / 2) * rng.standard_normal((30, 4))
    phi[:, 2] = phi[:, 0] - phi[:, 1] / 3
    with pytest.raises(NumericalError, match=r"hyper"):
        condition(Moments.from_arrays(rng.integers(0, 5, 30), phi, rng.standard_normal(30)), simple(4))


def test_dimensions_must_agree() -> None:
    moments = Moments.from_arrays(["a"], np.ones((1, 3)), [1.0])
    with pytest.raises(MismatchError, match="3"):
        condition(moments, simple(2, hyper=Gaussian(np.zeros(2), np.eye(2))))


def two_nodes() -> Posterior:
    moments = Moments.from_arrays(["a", "b"], np.eye(2), [1.0, 2.0])
    level = Level(np.eye(2), {"a": "N", "b": "S", "empty": "S"})
    return condition(moments, simple(2, hyper=Gaussian(np.zeros(2), np.eye(2)), levels=(level,)))


def test_an_unknown_task_gets_the_prior_or_an_error() -> None:
    post = two_nodes()
    assert_near(post.task("c"), post.new_task(), 0.0)
    with pytest.raises(UnknownTaskError, match="'c'"):
        post.task("c", unseen="error")
    with pytest.raises(HieropoError, match="guess"):
        post.task("c", unseen="guess")  # type: ignore[arg-type]


@pytest.mark.parametrize("null", [None, np.nan])
def test_a_null_task_is_refused(null: object) -> None:
    with pytest.raises(HieropoError):
        two_nodes().task(null)


def test_a_task_without_rows_is_no_unknown_task() -> None:
    post = two_nodes()
    assert_near(post.task("empty", unseen="error"), post.new_task("S"), 1e-15)


@pytest.mark.parametrize(
    "ask",
    [
        lambda post: post.new_task("W"),
        lambda post: post.node(0, "W"),
        lambda post: post.node(1, "N"),
        lambda post: post.node(-1, "N"),
        lambda post: post.cov_between("a", "nobody"),
        lambda post: post.cov_between("nobody", "a"),
    ],
)
def test_an_unknown_name_is_an_error(ask: Callable[[Posterior], object]) -> None:
    with pytest.raises(HieropoError):
        ask(two_nodes())
