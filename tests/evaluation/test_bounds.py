"""The theory's bounds: constants, coverage and every formula against slow twins, and that they bound what is lost."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from reference.dense import Array
from scipy import stats

from hieropo.errors import InputError, MismatchError, NumericalError
from hieropo.evaluation.by_posterior.bounds import (
    PROVED,
    assumptions,
    bounds,
    coverage,
    exact_constant,
    largest_delta,
    loss_factor,
    paper_constant,
    proof_step,
)
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy, Level
from hieropo.model.metadata import Metadata
from hieropo.model.posterior import Posterior, condition
from hieropo.moments.statistics import Moments

ROOT = Path(__file__).resolve().parents[2]
M, D = 5, 3


def spread(rng: np.random.Generator, d: int = D, *, condition_number: float = 10.0) -> Array:
    """A covariance with the given ratio of largest to smallest eigenvalue."""
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return turn @ np.diag(condition_number ** -np.linspace(0, 1, d)) @ turn.T


def rows(rng: np.random.Generator, n: int, d: int = D) -> Array:
    """Features of length at most 1, more of them along some directions than along others."""
    phi = rng.standard_normal((n, d)) * 0.5 ** np.arange(d)
    return phi / np.maximum(1.0, np.linalg.norm(phi, axis=1))[:, None]


def log(rng: np.random.Generator, n: int = 60, m: int = M, d: int = D) -> Moments:
    task = np.concatenate([np.arange(m), rng.integers(0, m, n - m)])
    return Moments.from_arrays(task, rows(rng, n, d), rng.standard_normal(n))


def posterior(seed: int = 0, *, flat: bool = False, condition_number: float = 10.0, n: int = 60) -> Posterior:
    rng = np.random.default_rng(seed)
    cov, hyper = (spread(rng, condition_number=condition_number) for _ in range(2))
    prior = None if flat else Gaussian(np.zeros(D), 4 * hyper)
    return condition(log(rng, n), Hierarchy(prior, cov, 0.3))


def largest(matrix: Array) -> float:
    return float(np.linalg.eigvalsh(matrix)[-1])


def grams(moments: Moments) -> Array:
    return np.array([moments.gram(task) for task in moments.tasks])


# Constants


@pytest.mark.parametrize("d", [1, 2, 3, 7, 40, 300])
def test_the_papers_constant_is_above_the_exact_one_where_it_is_proved(d: int) -> None:
    for delta in (PROVED, 0.2, 0.05, 1e-3, 1e-9):
        exact = exact_constant(d, delta)
        assert exact == pytest.approx(np.sqrt(stats.chi2.isf(delta, d)), rel=1e-10)
        assert exact < paper_constant(d, delta)


@pytest.mark.parametrize("d", [3, 4, 10, 100, 1000])
def test_beyond_the_largest_delta_the_papers_constant_is_too_small(d: int) -> None:
    limit = largest_delta(d)
    assert PROVED < limit < 1
    for delta, true in ((limit - 1e-6, True), (limit + 1e-6, False), ((1 + limit) / 2, False), (0.8, True)):
        assert (paper_constant(d, delta) >= exact_constant(d, delta)) == true


@pytest.mark.parametrize("d", [1, 2])
def test_with_one_or_two_features_the_papers_constant_is_never_too_small(d: int) -> None:
    assert largest_delta(d) == 1.0
    for u in np.geomspace(1e-6, 30, 200):
        assert paper_constant(d, np.exp(-u)) >= exact_constant(d, np.exp(-u))


def test_the_exact_constant_holds_for_all_features_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    away, phi = rng.standard_normal((20_000, 3)), rng.standard_normal((400, 3))
    phi /= np.linalg.norm(phi, axis=1)[:, None]
    inside = (np.abs(away @ phi.T) <= exact_constant(3, 0.1)).all(axis=1).mean()
    assert inside == pytest.approx(0.9, abs=0.015)  # 400 directions are not quite all
    assert (np.linalg.norm(away, axis=1) <= exact_constant(3, 0.1)).mean() == pytest.approx(0.9, abs=0.0065)


# Coverage


def slow_gamma(over: Array, under: Array) -> float:
    """Largest gamma with over - gamma under positive semi-definite, by bisection."""
    low, high = 0.0, 1e3
    for _ in range(100):
        middle = (low + high) / 2
        if np.linalg.eigvalsh(over - middle * under)[0] >= -1e-13:
            low = middle
        else:
            high = middle
    return low


@pytest.mark.parametrize("kind", ["default", "one", "each", "rank one"])
def test_gamma_is_the_largest_that_the_assumption_allows(kind: str) -> None:
    rng = np.random.default_rng(4)
    moments = log(rng)
    best = {
        "default": None,
        "one": spread(rng),
        "each": np.array([spread(rng) for _ in range(M)]),
        "rank one": np.outer([1, 2, 3.0], [1, 2, 3.0]),
    }[kind]
    found = coverage(moments, best=best, length=0.7)
    goals = np.broadcast_to(0.49 * np.eye(D) if best is None else best, (M, D, D))
    slow = [slow_gamma(G / n, B) for G, n, B in zip(grams(moments), moments.rows, goals, strict=True)]
    np.testing.assert_allclose(found, slow, rtol=1e-8)
    np.testing.assert_allclose(
        coverage(moments, best=best, length=0.7, common=True), np.full(M, min(slow)), rtol=1e-8
    )


def test_gamma_is_zero_where_a_direction_of_the_best_was_not_tried() -> None:
    moments = Moments.from_arrays(["a", "a", "b", "b"], [[1.0, 0], [0.5, 0], [0, 1.0], [1.0, 0]], [0.0] * 4)
    np.testing.assert_allclose(coverage(moments), [0.0, 0.5])
    assert coverage(moments)[0] == 0.0
    along = np.outer([1.0, 0], [1.0, 0])
    np.testing.assert_allclose(coverage(moments, best=along), [0.625, 0.5])
    np.testing.assert_allclose(coverage(moments, best=along[::-1, ::-1]), [0.0, 0.5])


def test_any_gamma_does_for_a_task_without_rows_which_is_not_the_common_one() -> None:
    moments = log(np.random.default_rng(0)).covering(Moments.from_arrays(["new"], [[0.0] * D], [0.0]).keys)
    found = coverage(moments, common=True)
    assert np.isinf(found[-1])
    assert np.isfinite(found[:-1]).all()
    assert np.isinf(coverage(moments.select(["new"]), common=True)).all()


def test_weights_are_repetitions() -> None:
    rng = np.random.default_rng(3)
    phi, reward = rows(rng, 8), np.zeros(8)
    repeated = np.repeat(np.arange(8), np.arange(1, 9))
    once = Moments.from_arrays(["a"] * 8, phi, reward, np.arange(1.0, 9))
    many = Moments.from_arrays(["a"] * 36, phi[repeated], reward[repeated])
    hierarchy = Hierarchy(Gaussian(np.zeros(D), np.eye(D)), np.eye(D), 1.0)
    for one, other in zip(
        bounds(condition(once, hierarchy)).tasks, bounds(condition(many, hierarchy)).tasks, strict=True
    ):
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=1e-10)


# Every formula, as written down with inverses


def inverse(matrix: Array) -> Array:
    return np.linalg.solve(matrix, np.eye(len(matrix)))


def slow_bounds(post: Posterior, gamma: Array, best: Array, factor: float) -> dict[str, list[float]]:
    """The formulas of the paper and of the module's head for each task, best (m, d, d) with norm 1 at most."""
    cov, noise, prior = post.hierarchy.task_cov, post.hierarchy.noise_var, post.hierarchy.hyper
    moments, d, m = post.moments, post.dim, len(post.moments)
    precision = 0.0 if prior is None else 1 / largest(prior.cov)
    sums: dict[str, list[float]] = {}
    for s in range(m):
        least = 1 / largest(cov) + gamma[s] * moments.rows[s] / noise
        over, even = precision, precision
        for z in range(m):
            length = 1 / np.linalg.eigvalsh(best[z])[0]
            over += 1 / (largest(cov) + noise * length / (gamma[z] * moments.rows[z]))
            even += 1 / (largest(cov) + noise / (gamma[z] * moments.rows[z]))
        left = condition(moments.select([k for k in range(m) if k != s]), post.hierarchy).hyper.cov
        wide = largest(cov + left)
        ratio = max(np.linalg.eigvals(inverse(cov) @ post.hyper.cov).real)
        alone = np.inf if prior is None else largest(cov + prior.cov)
        squares = {
            "theorem_1": 1 / least,
            "task_term": 1 / least,
            "hyper_term": 1 / over,
            "claim_2": 1 / even,
            "flat": 1 / (1 / alone + gamma[s] * moments.rows[s] / noise),
            "repaired": (1 + ratio) / least,
            "leave_one_out": 1 / (1 / wide + gamma[s] * moments.rows[s] / noise),
            "posterior": largest(post.task(int(moments.tasks[s])).cov) / d,
        }
        for name, value in squares.items():
            sums.setdefault(name, []).append(factor * np.sqrt(d * value))
    return sums


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("kind", ["default", "each"])
def test_bounds_are_the_formulas(kind: str, *, flat: bool) -> None:
    post = posterior(1, flat=flat)
    rng = np.random.default_rng(8)
    best = np.array([0.9 * spread(rng) for _ in range(M)]) if kind == "each" else None
    found = bounds(post, delta=0.1, best=best, common=kind == "each")
    whole = np.broadcast_to(np.eye(D), (M, D, D)) if best is None else best
    assert found.constant == pytest.approx(np.sqrt(5 * D * np.log(10)))
    slow = slow_bounds(post, found.gamma, whole, 2 * found.constant)
    for name in ("theorem_1", "task_term", "hyper_term", "flat", "repaired", "leave_one_out", "posterior"):
        np.testing.assert_allclose(getattr(found.tasks, name), slow[name], rtol=1e-8, err_msg=name)
    assert found.tasks.diagonal is None
    np.testing.assert_allclose(
        found.tasks.theorem_2, np.add(slow["task_term"], slow["hyper_term"]), rtol=1e-8
    )


def diagonal_posterior() -> Posterior:
    """One feature a row and diagonal covariances: Assumption 4."""
    rng = np.random.default_rng(2)
    task = np.repeat(np.arange(M), 12)
    phi = np.eye(D)[np.tile(np.arange(D), 20)] * rng.uniform(0.5, 1, (60, 1))
    prior = Gaussian(np.zeros(D), np.diag([1.0, 2.0, 3.0]))
    hierarchy = Hierarchy(prior, np.diag([0.01, 0.2, 1.0]), 0.3)
    return condition(Moments.from_arrays(task, phi, rng.standard_normal(60)), hierarchy)


def test_claim_two_is_given_where_all_is_diagonal_and_is_the_smaller_one() -> None:
    post = diagonal_posterior()
    best = np.diag([0.1, 0.3, 1.0])
    found = bounds(post, best=best)
    slow = slow_bounds(post, found.gamma, np.broadcast_to(best, (M, D, D)), 2 * found.constant)
    assert found.tasks.diagonal is not None
    np.testing.assert_allclose(found.tasks.diagonal, np.add(slow["task_term"], slow["claim_2"]), rtol=1e-8)
    assert (found.tasks.diagonal < found.tasks.theorem_2).all()
    same = bounds(post)
    np.testing.assert_allclose(same.tasks.diagonal, same.tasks.theorem_2, rtol=1e-12)
    assert bounds(post, best=best + 1e-3).tasks.diagonal is None
    assert bounds(post, best=np.array([best] * M)).tasks.diagonal is None


def test_what_all_others_say_is_right_where_one_task_says_almost_all() -> None:
    rng = np.random.default_rng(5)
    heavy = Moments.from_arrays([0] * 200, 1e4 * rows(rng, 200), np.zeros(200))
    post = condition(
        heavy + log(rng).select([1, 2, 3]),
        Hierarchy(Gaussian(np.zeros(D), 1e4 * np.eye(D)), 1e-8 * np.eye(D), 0.3),
    )
    found = bounds(post, length=1e4, best=np.eye(D))
    gamma = found.gamma
    top = 1e8
    for s, task in enumerate(post.moments.tasks.tolist()):
        others = post.moments.select([k for k in post.moments.tasks.tolist() if k != task])
        wide = top * largest(post.hierarchy.task_cov + condition(others, post.hierarchy).hyper.cov)
        v = 1 / (1 / wide + gamma[s] * post.moments.rows[s] / 0.3)
        assert found.tasks.leave_one_out[s] == pytest.approx(2 * found.constant * np.sqrt(D * v), rel=1e-9)


# Laws


@pytest.mark.slow
@pytest.mark.parametrize("condition_number", [1.0, 1e2, 1e6])
@pytest.mark.parametrize("flat", [False, True])
def test_theorem_two_is_above_what_holds_without_its_proof(condition_number: float, *, flat: bool) -> None:
    for seed in range(20):
        post = posterior(seed, flat=flat, condition_number=condition_number, n=5 + 6 * seed + 15)
        rng = np.random.default_rng(seed)
        for best in (None, spread(rng), np.array([spread(rng) for _ in range(M)])):
            for found in (bounds(post, best=best), bounds(post, best=best, common=True)):
                for each in (found.tasks, found.new_task):
                    joint = np.hypot(each.task_term, each.hyper_term)
                    assert (each.leave_one_out <= joint * (1 + 1e-9)).all()
                    assert (joint <= each.theorem_2).all()
                    assert (each.theorem_1 <= each.leave_one_out * (1 + 1e-9)).all()
                    assert (each.leave_one_out <= each.flat * (1 + 1e-9)).all()
                if best is None:
                    assert (found.tasks.posterior <= found.tasks.leave_one_out * (1 + 1e-9)).all()


def test_a_new_task_is_one_without_rows() -> None:
    post = posterior(3)
    more = post.moments.covering(Moments.from_arrays(["new"], [[0.0] * D], [0.0]).keys)
    alone, among = bounds(post), bounds(condition(more, post.hierarchy))
    for one, row in zip(alone.new_task, among.tasks, strict=True):
        if one is not None:
            assert row is not None
            np.testing.assert_allclose(one, row[-1], rtol=1e-10)
            assert one >= row[:-1].max() or one is alone.new_task.hyper_term


def test_bounds_of_all_tasks_together_share_the_probability() -> None:
    post = posterior(3)
    together, each = bounds(post, delta=0.1, together=True), bounds(post, delta=0.1 / M)
    assert together.delta == pytest.approx(0.02)
    np.testing.assert_array_equal(together.tasks.theorem_2, each.tasks.theorem_2)
    assert (together.tasks.theorem_2 > bounds(post, delta=0.1).tasks.theorem_2).all()


def test_the_unit_of_features_does_not_matter() -> None:
    post = posterior(6)
    L, hierarchy = 7.0, post.hierarchy
    assert hierarchy.hyper is not None
    scaled = Hierarchy(Gaussian(np.zeros(D), hierarchy.hyper.cov / L**2), hierarchy.task_cov / L**2, 0.3)
    other = condition(post.moments.transformed(L * np.eye(D)), scaled)
    one, two = bounds(post), bounds(other, length=L)
    np.testing.assert_allclose(one.gamma, two.gamma, rtol=1e-10)
    for a, b in zip(one.tasks, two.tasks, strict=True):
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.parametrize("pessimism", [None, 0.0, 0.1, 1.0, 50.0, -2.0])
@pytest.mark.parametrize("condition_number", [1.0, 1e4])
def test_no_theta_within_the_constant_loses_more(pessimism: float | None, condition_number: float) -> None:
    rng = np.random.default_rng(11)
    post = posterior(9, condition_number=condition_number)
    found = bounds(post, delta=0.2, constant="exact", pessimism=pessimism)
    p = found.constant if pessimism is None else pessimism
    worst = 0.0
    for s in range(M):
        law = post.task(s)
        root = np.linalg.cholesky(law.cov)
        for _ in range(200):
            phi = rows(rng, 3 * 4).reshape(3, 4, D)
            sd = np.sqrt(np.einsum("xki,ij,xkj->xk", phi, law.cov, phi))
            taken = (phi @ law.mean - p * sd).argmax(axis=1)
            out = rng.standard_normal(D)
            theta = law.mean + root @ out * found.constant / np.linalg.norm(out)
            values = phi @ theta
            loss = (values.max(axis=1) - values[np.arange(3), taken]).mean()
            for name in ("posterior", "leave_one_out", "repaired", "theorem_2", "flat"):
                assert loss <= getattr(found.tasks, name)[s] * (1 + 1e-9), name
            worst = max(worst, loss / found.tasks.posterior[s])
    assert worst > (0.1 if abs(p) <= found.constant else 0.05)  # else the bound would be tested by nothing


def test_the_bound_by_the_posterior_is_reached() -> None:
    # One feature, actions +1 and -1: the best theta for the other action is kappa sd away.
    nothing = Moments.from_arrays(["a"], [[0.0]], [0.0])
    post = condition(nothing, Hierarchy(Gaussian([0.0], [[0.0]]), [[4.0]], 1.0))
    found = bounds(post, constant="exact")
    assert found.tasks.posterior[0] == pytest.approx(2 * 2.0 * stats.norm.isf(0.025))


# The step of the proof


def crooked() -> Posterior:
    """Two features. One task looked along one direction; many others know the mean, which is all alike in them."""
    e = 1e-4
    phi = np.array([np.sqrt(e), 1.0]) / np.sqrt(1 + e)
    moments = Moments.from_arrays([0] * 40, np.tile(phi, (40, 1)), np.zeros(40))
    hierarchy = Hierarchy(Gaussian(np.zeros(2), 1e-5 * np.eye(2)), np.diag([1.0, e]), 1e-4)
    return condition(moments, hierarchy)


def test_the_papers_proof_of_theorem_two_fails_for_a_general_task_covariance() -> None:
    post = crooked()
    cov, mean_cov, d = post.hierarchy.task_cov, post.hyper.cov, 2
    G = post.moments.gram(0) / post.hierarchy.noise_var
    product = inverse(inverse(cov) + G) @ inverse(cov)
    assert max(np.abs(np.linalg.eigvals(product))) <= 1 + 1e-12  # what the proof looks at
    norm = np.linalg.norm(product, 2)
    assert norm > 10  # what it uses it for
    # Its conclusion, that the hyper-parameter term is at most d lambda_1(Sigma-bar) for every G_* <= I:
    worst = np.linalg.eigh(product @ mean_cov @ product.T)[1][:, -1]
    second = np.outer(worst, worst)
    assert np.trace(product @ mean_cov @ product.T @ second) > d * largest(mean_cov)
    found = proof_step(post)
    assert found.norm[0] == pytest.approx(norm, rel=1e-9)
    assert found.ratio[0] == pytest.approx(largest(product @ mean_cov @ product.T) / (d * largest(mean_cov)))
    assert found.ratio[0] > 1
    # The theorem holds all the same, and so do the others.
    width = np.sqrt(np.trace(post.task(0).cov @ second))
    said = bounds(post)
    for name in ("posterior", "leave_one_out", "repaired", "theorem_2"):
        assert 2 * said.constant * width <= getattr(said.tasks, name)[0] * (1 + 1e-9)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_step_is_right_for_isotropic_and_for_diagonal_problems(scale: float) -> None:
    rng = np.random.default_rng(1)
    prior = Gaussian(np.zeros(D), spread(rng))
    alike = condition(log(rng), Hierarchy(prior, scale * np.eye(D), 0.3))
    for post in (alike, diagonal_posterior()):
        found = proof_step(post)
        assert (found.norm <= 1 + 1e-9).all()
        assert (found.ratio <= 1 + 1e-9).all()


# Ends


def test_ends_are_zero_and_infinity_and_never_nan() -> None:
    rng = np.random.default_rng(0)
    moments = log(rng)
    known = Gaussian(np.zeros(D), np.zeros((D, D)))
    pooled = bounds(condition(moments, Hierarchy(None, np.zeros((D, D)), 0.3)))
    assert (pooled.tasks.theorem_1 == 0).all()
    assert np.isinf(pooled.tasks.repaired).all()  # Sigma-bar is not below any multiple of zero
    assert np.isfinite(pooled.tasks.leave_one_out).all()
    sure = bounds(condition(moments, Hierarchy(known, np.zeros((D, D)), 0.3)))
    for each in (sure.tasks, sure.new_task):
        assert all((v == 0).all() for v in each if v is not None)
    oracle = bounds(condition(moments, Hierarchy(known, np.eye(D), 0.3)))
    for name in ("theorem_2", "flat", "repaired", "leave_one_out"):
        np.testing.assert_allclose(getattr(oracle.tasks, name), oracle.tasks.theorem_1, rtol=1e-12)
    thin = Moments.from_arrays([0, 0, 1], np.eye(3)[[0, 1, 2]], np.zeros(3))
    unknown = bounds(condition(thin, Hierarchy(None, np.eye(3), 0.3)))
    assert np.isinf(unknown.tasks.flat).all()
    assert np.isinf(unknown.tasks.theorem_2).all()
    assert np.isinf(unknown.tasks.leave_one_out).all()
    assert np.isfinite(unknown.tasks.posterior).all()
    assert np.isfinite(unknown.tasks.repaired).all()
    one = bounds(condition(log(rng, m=1), Hierarchy(None, np.eye(D), 0.3)))
    assert np.isfinite(one.tasks.leave_one_out).all()
    for found in (pooled, sure, oracle, unknown, one):
        for each in (found.tasks, found.new_task):
            assert not any(np.isnan(v).any() for v in each if v is not None)


def test_what_cannot_be_bounded_is_refused_with_a_reason() -> None:
    post = posterior()
    for delta in (0.0, 1.0, -0.1, np.nan):
        with pytest.raises(InputError, match="not a probability"):
            bounds(post, delta=delta)
    with pytest.raises(InputError, match="constant='exact'"):
        bounds(post, delta=0.999)
    assert bounds(post, delta=0.999, constant="exact").constant < 1
    with pytest.raises(InputError, match="'paper' or 'exact'"):
        bounds(post, constant="pointwise")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="finite number"):
        bounds(post, pessimism=np.nan)
    with pytest.raises(InputError, match="positive and finite"):
        bounds(post, length=0.0)
    with pytest.raises(MismatchError, match=r"\(3, 3\) or \(5, 3, 3\)"):
        coverage(post.moments, best=np.eye(4))
    with pytest.raises(InputError, match="best is zero"):
        coverage(post.moments, best=np.zeros((D, D)))
    with pytest.raises(NumericalError, match="negative eigenvalue"):
        coverage(post.moments, best=-np.eye(D))
    level = Level(np.eye(D), dict.fromkeys(range(M), "all"))
    deep = condition(post.moments, Hierarchy(None, np.eye(D), 1.0, (level,)))
    for ask in (bounds, proof_step):
        with pytest.raises(InputError, match=r"share one mean.*certifies the same loss"):
            ask(deep)


# What holds


def held(found: tuple) -> dict[str, bool | None]:
    return {each.name: each.holds for each in found}


def test_assumptions_are_told_apart() -> None:
    post = diagonal_posterior()
    found = held(assumptions(post))
    assert found == {
        "two levels": True,
        "hierarchy known": True,
        "Gaussian rewards, linear in the features": None,
        "actions depend on theta through the context alone": None,
        "features of bounded length (Assumption 1)": None,
        "well-explored tasks (Assumptions 2 and 3)": True,
        "one feature a row, diagonal covariances (Assumption 4)": True,
        "delta at most 1/e": True,
        "the policy is as pessimistic as its bound": True,
        "the proof of theorem 2, claim 1": True,
    }
    other = held(assumptions(post, delta=0.5, pessimism=0.1, length=0.5, learned=True, best=np.ones((D, D))))
    for name in (
        "hierarchy known",
        "features of bounded length (Assumption 1)",
        "one feature a row, diagonal covariances (Assumption 4)",
        "delta at most 1/e",
        "the policy is as pessimistic as its bound",
    ):
        assert other[name] is False, name


def test_assumptions_say_what_was_found() -> None:
    words = {each.name: each.words for each in assumptions(crooked())}
    assert "1 of 1 task never tried some direction" in words["well-explored tasks (Assumptions 2 and 3)"]
    assert "above 1 in 1 of 1 task;" in words["the proof of theorem 2, claim 1"]
    assert "sums of phi phi' of 1 task." in words["one feature a row, diagonal covariances (Assumption 4)"]
    assert held(assumptions(crooked()))["the proof of theorem 2, claim 1"] is False


def test_assumptions_are_checked_for_trees_metadata_and_empty_logs() -> None:
    post = posterior()
    level = Level(np.eye(D), dict.fromkeys(range(M), "all"))
    metadata = Metadata(post.moments.keys.values, np.arange(5.0)[:, None])
    for hierarchy in (
        Hierarchy(None, np.eye(D), 1.0, (level,)),
        Hierarchy(None, np.eye(D), 1.0, metadata=metadata),
    ):
        found = held(assumptions(condition(post.moments, hierarchy)))
        assert found["two levels"] is False
        assert found["well-explored tasks (Assumptions 2 and 3)"] is True
        assert "the proof of theorem 2, claim 1" not in found
    empty = Moments.from_arrays([0], [[1.0] * D], [0.0]) - Moments.from_arrays([0], [[1.0] * D], [0.0])
    found = held(assumptions(condition(empty, Hierarchy(Gaussian(np.zeros(D), np.eye(D)), np.eye(D), 1.0))))
    assert found["well-explored tasks (Assumptions 2 and 3)"] is None
    assert found["features of bounded length (Assumption 1)"] is None


# The committed table


@pytest.fixture(scope="module")
def experiment() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "experiments")
        yield importlib.import_module("bounds")


def test_the_first_runs_are_the_committed_ones(experiment: ModuleType) -> None:
    text = (ROOT / "docs" / "results" / "bounds.md").read_text(encoding="utf-8")
    stored = {
        line["run"]: line for line in importlib.import_module("tables").read_table(text, "## The first runs")
    }
    for k, setting in enumerate(experiment.SETTINGS):
        for run in range(experiment.FIRST):
            rng = np.random.default_rng([experiment.SEED, k, run])
            found = experiment.row(experiment.draw(setting, rng), None, rng, certify=False)
            for name, value in zip(experiment.NAMES, found, strict=True):
                if name != "certificate":  # is drawn, at some cost
                    # One choice of thousands may turn on the last digit of another processor.
                    near = pytest.approx(value, rel=1e-6, abs=2e-5)
                    assert float(stored[f"{setting.label}, run {run}"][name]) == near, (setting, run, name)


def test_more_pessimism_than_the_constant_costs_more() -> None:
    assert loss_factor(2.0, None) == 4.0
    assert loss_factor(2.0, 0.0) == 4.0
    assert loss_factor(2.0, 3.0) == 5.0
    assert loss_factor(2.0, -3.0) == 5.0
