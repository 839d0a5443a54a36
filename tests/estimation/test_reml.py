"""REML and ML: the deviance against brute force, published fits, certified optima, odd logs."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from real_data import real_table

from hieropo import HieropoWarning, InputError, LogError, Moments, NumericalError, condition, estimate
from hieropo._utils.packed import pack
from hieropo.estimation import reml as estimation
from hieropo.estimation.baseline_priors import empirical_flat, pooled_noise
from hieropo.estimation.likelihood import Problem, evaluate, likelihood
from hieropo.estimation.psd import minimise, nearest_psd, to_matrix, to_vector
from hieropo.estimation.reml import compare
from hieropo.estimation.shapes import Shape, named, scaled
from hieropo.reproduce.synthetic.simulation import synthetic_hierarchy, synthetic_run

COV = np.array([[1.0, 0.5, 0.0], [0.5, 2.0, -0.3], [0.0, -0.3, 0.25]])


def rows(
    seed: int, m: int, n: int, cov: np.ndarray, noise_var: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    d = len(cov)
    theta = np.arange(1.0, d + 1) + rng.multivariate_normal(np.zeros(d), cov, size=m)
    task, phi = np.repeat(np.arange(m), n), rng.standard_normal((m * n, d))
    return task, phi, (phi * theta[task]).sum(axis=1) + np.sqrt(noise_var) * rng.standard_normal(m * n)


def draw(seed: int, m: int, n: int, cov: np.ndarray = COV, noise_var: float = 1.0) -> Moments:
    return Moments.from_arrays(*rows(seed, m, n, cov, noise_var))


def brute_deviance(task, phi, reward, ratio, criterion) -> float:
    """-2 log likelihood from the covariance of all rewards, by its definition."""
    n, d = phi.shape
    same = task[:, None] == task[None, :]
    V = np.eye(n) + same * (phi @ ratio @ phi.T)
    P = phi.T @ np.linalg.solve(V, phi)
    rest = reward - phi @ np.linalg.solve(P, phi.T @ np.linalg.solve(V, reward))
    degrees = n - d if criterion == "reml" else n
    squares = rest @ np.linalg.solve(V, rest)
    found = degrees * (np.log(2 * np.pi * squares / degrees) + 1) + np.linalg.slogdet(V)[1]
    return found + (np.linalg.slogdet(P)[1] if criterion == "reml" else 0.0)


RATIOS = [np.diag([5.0, 2.0, 0.1]) + 0.3, np.diag([1.0, 0.0, 0.0]), np.outer([1, 2, 3], [1, 2, 3]) / 10.0]


@pytest.mark.parametrize("criterion", ["reml", "ml"])
@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("n", [2, 6])
def test_the_deviance_is_the_likelihood_of_the_rewards(criterion, ratio, n) -> None:
    log = rows(0, 9, n, COV, 0.4)
    found = likelihood(Moments.from_arrays(*log), ratio, criterion, 0.0)
    assert found.deviance == pytest.approx(brute_deviance(*log, ratio, criterion), rel=1e-10)


@pytest.mark.parametrize("criterion", ["reml", "ml"])
@pytest.mark.parametrize("n", [2, 6])
def test_the_slope_is_the_derivative(criterion, n) -> None:
    log = rows(1, 12, n, COV, 0.4)
    moments, ratio = Moments.from_arrays(*log), RATIOS[0]
    full = likelihood(moments, ratio, criterion, 0.0)
    diagonal = likelihood(moments, ratio, criterion, 0.0, diagonal=True)
    for i in range(3):
        for j in range(i + 1):
            change = np.zeros((3, 3))
            change[i, j] = change[j, i] = 1e-5
            rise = brute_deviance(*log, ratio + change, criterion) - brute_deviance(
                *log, ratio - change, criterion
            )
            slope = full.slope[i, j] * (1 if i == j else 2)
            assert slope == pytest.approx(rise / 2e-5, rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(diagonal.slope, np.diagonal(full.slope), rtol=1e-9)
    np.testing.assert_allclose(diagonal.curvature, np.einsum("iijj->ij", full.curvature), rtol=1e-9)


@pytest.mark.slow
def test_the_curvature_is_the_expected_second_derivative() -> None:
    # at the truth, the variance of the slope is twice the expected curvature (information equality)
    cov, task, phi = 0.5 * COV, *rows(0, 15, 4, COV, 1.0)[:2]
    rng, runs = np.random.default_rng(3), 4000
    theta = rng.multivariate_normal([1.0, 2.0, 3.0], cov, size=(runs, 15))
    rewards = np.einsum("td,rtd->rt", phi, theta[:, task]) + rng.standard_normal((runs, 60))
    moments = [Moments.from_arrays(task, phi, reward) for reward in rewards]
    for criterion in ("reml", "ml"):
        found = [likelihood(each, cov, criterion, 0.0) for each in moments]
        slopes = np.array([np.diagonal(each.slope) for each in found])
        curvature = np.einsum("iijj->ij", found[0].curvature)
        np.testing.assert_allclose(
            np.cov(slopes.T), 2 * curvature, rtol=0.15, atol=0.15 * curvature.max(), err_msg=criterion
        )


def sleepstudy() -> Moments:
    path = real_table("sleepstudy.parquet")
    table = pq.read_table(path)
    days = table["Days"].to_numpy()
    return Moments.from_arrays(
        table["Subject"].to_pylist(), np.column_stack([np.ones(len(days)), days]), table["Reaction"]
    )


@pytest.mark.parametrize(
    ("criterion", "deviance", "sds", "noise_sd"),
    [("reml", 1743.628, [24.740, 5.922], 25.592), ("ml", 1751.939, [23.780, 5.717], 25.592)],
)
def test_it_gives_the_published_fit_of_sleepstudy(criterion, deviance, sds, noise_sd) -> None:
    # Bates et al., Fitting linear mixed-effects models using lme4, J. Stat. Softw. 67(1), 2015
    found = estimate(sleepstudy(), "full", criterion)
    assert found.chosen.deviance == pytest.approx(deviance, abs=6e-4)
    np.testing.assert_allclose(np.sqrt(np.diagonal(found.hierarchy.task_cov)), sds, atol=6e-4)
    assert np.sqrt(found.hierarchy.noise_var) == pytest.approx(noise_sd, abs=6e-4)
    assert found.chosen.evaluations <= 8


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["full", "diag", "isotropic"])
@pytest.mark.parametrize("criterion", ["reml", "ml"])
@pytest.mark.parametrize(
    ("m", "n", "cov"),
    [(60, 8, COV), (200, 2, COV), (12, 6, COV), (80, 20, np.diag([2.0, 0.0, 0.0])), (40, 9, 0 * COV)],
)
@pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")
def test_no_change_of_the_estimate_is_better(shape, criterion, m, n, cov) -> None:
    moments = draw(7, m, n, cov)
    found = estimate(moments, shape, criterion)
    best, ratio = found.chosen.deviance, found.hierarchy.task_cov / found.hierarchy.noise_var
    rng = np.random.default_rng(0)
    for size in (1e-1, 1e-2, 1e-3):
        for _ in range(10):
            change = rng.standard_normal((3, 3))
            change = {
                "full": change + change.T,
                "diag": np.diag(np.diagonal(change)),
                "isotropic": change[0, 0] * np.eye(3),
            }[shape]
            other = to_matrix(nearest_psd(to_vector(ratio + size * change), 3), 3)
            there = likelihood(moments, other, criterion, 0.0, diagonal=True).deviance
            assert there >= best - 1e-8 * abs(best)
    assert found.chosen.predicted_decrease <= 1e-9 * abs(best)


def test_estimates_are_near_the_truth() -> None:
    for n in (2, 5, 40):
        moments = draw(0, 3000, n, COV, 0.49)
        if n == 2:
            with pytest.warns(HieropoWarning, match="more rows"):
                found = estimate(moments, "full").hierarchy
        else:
            found = estimate(moments, "full").hierarchy
        assert found.noise_var == pytest.approx(0.49, rel=0.2 if n == 2 else 0.05)
        np.testing.assert_allclose(found.task_cov, COV, atol=0.15)


def test_the_scale_and_rotation_of_features_do_not_matter() -> None:
    task, phi, reward = rows(1, 60, 12, COV, 1.0)
    plain = estimate(Moments.from_arrays(task, phi, reward), "full").hierarchy
    scale = np.array([1e4, 1.0, 1e-4])
    scaled = estimate(Moments.from_arrays(task, phi * scale, reward), "full").hierarchy
    np.testing.assert_allclose(scaled.task_cov * np.outer(scale, scale), plain.task_cov, rtol=1e-3, atol=1e-4)
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]
    turned = estimate(Moments.from_arrays(task, phi @ turn, reward), "full").hierarchy
    np.testing.assert_allclose(turn @ turned.task_cov @ turn.T, plain.task_cov, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("sd", [1e-5, 1e5])
def test_the_scale_of_rewards_does_not_matter(sd: float) -> None:
    task, phi, reward = rows(1, 60, 12, COV, 1.0)
    plain = estimate(Moments.from_arrays(task, phi, reward)).hierarchy
    scaled = estimate(Moments.from_arrays(task, phi, sd * reward)).hierarchy
    np.testing.assert_allclose(scaled.task_cov / sd**2, plain.task_cov, rtol=1e-3, atol=1e-4)
    assert scaled.noise_var / sd**2 == pytest.approx(plain.noise_var, rel=1e-4)


def test_tasks_that_are_alike_are_found_alike() -> None:
    found = estimate(draw(2, 500, 10, 0 * COV))
    assert np.linalg.eigvalsh(found.hierarchy.task_cov)[-1] < 0.02
    assert [fit.shape for fit in found.compared] == ["pooled", "diag"]


def test_evidence_chooses_the_shape() -> None:
    assert estimate(draw(3, 300, 20, COV)).chosen.shape == "full"
    assert estimate(draw(3, 300, 20, np.diag([1.0, 2.0, 0.3]))).chosen.shape == "diag"


def test_many_features_are_fitted_on_the_diagonal() -> None:
    found = estimate(draw(0, 12, 60, np.diag(np.linspace(0.1, 1.0, 40))))
    assert found.chosen.shape == "diag"
    assert found.hierarchy.task_cov.shape == (40, 40)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_reward_without_noise_is_warned_about(scale: float) -> None:
    rng = np.random.default_rng(0)
    task, phi = np.repeat(np.arange(20), 6), rng.standard_normal((120, 2))
    reward = scale * (phi * rng.standard_normal((20, 2))[task]).sum(axis=1)
    moments = Moments.from_arrays(task, phi, reward)
    with pytest.warns(HieropoWarning, match="without noise"):
        posterior = condition(moments, estimate(moments).hierarchy)
    assert np.isfinite(posterior.table().means).all()
    assert np.isfinite(posterior.log_evidence)


def odd(kind: str) -> Moments:
    task, phi, reward = rows(0, 10, 5, COV, 1.0)
    enormous = np.repeat(np.arange(50), [2000] + [1] * 49)
    change = {
        "two tasks": lambda: (task % 2, phi, reward),
        "all tasks identical": lambda: (task, np.tile(phi[:5], (10, 1)), np.tile(reward[:5], 10)),
        "one row a task": lambda: (np.arange(50), phi, reward),
        "one enormous task": lambda: (task[enormous], phi[enormous], reward[enormous]),
        "more features than rows": lambda: (
            task, np.hstack([phi, np.random.default_rng(1).standard_normal((50, 9))]), reward,
        ),
        "reward constant": lambda: (task, np.hstack([np.ones((50, 1)), phi]), np.full(50, 3.0)),
        "reward zero": lambda: (task, phi, 0 * reward),
        "constant feature": lambda: (task, np.hstack([np.ones((50, 1)), phi]), reward),
    }  # fmt: skip
    return Moments.from_arrays(*change[kind]())


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["two tasks", "all tasks identical", "one row a task", "one enormous task", "more features than rows",
     "reward constant", "reward zero", "constant feature"],
)  # fmt: skip
@pytest.mark.parametrize("shape", ["auto", "full", "diag", "isotropic"])
@pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")
def test_odd_logs_get_a_sensible_answer(kind: str, shape) -> None:
    moments = odd(kind)
    if (kind, shape) == (
        "more features than rows",
        "full",
    ):  # 78 entries from 10 tasks of 5 rows: a flat likelihood
        with pytest.raises(NumericalError, match="diag"):
            estimate(moments, shape)
        return
    found = estimate(moments, shape)
    posterior = condition(moments, found.hierarchy)
    assert np.isfinite(posterior.table().means).all()
    assert np.isfinite(posterior.table().covs).all()
    assert found.hierarchy.noise_var > 0


@pytest.mark.parametrize("kind", ["zero", "copy", "sum"])
@pytest.mark.parametrize("shape", ["auto", "full", "diag", "isotropic"])
def test_a_feature_that_says_nothing_new_is_named(kind: str, shape) -> None:
    task, phi, reward = rows(0, 10, 8, COV, 1.0)
    extra = {"zero": 0 * phi[:, 0], "copy": phi[:, 1], "sum": phi.sum(axis=1)}[kind]
    with pytest.raises(NumericalError, match="feature"):
        estimate(Moments.from_arrays(task, np.column_stack([phi, extra]), reward), shape)


def test_one_task_has_nobody_to_differ_from() -> None:
    with pytest.warns(HieropoWarning, match="one task"):
        found = estimate(draw(0, 1, 30))
    assert not found.hierarchy.task_cov.any()


def test_nothing_and_nonsense_are_refused() -> None:
    with pytest.raises(LogError, match="no rows"):
        estimate(Moments.zero(2))
    with pytest.raises(InputError, match="round"):
        estimate(draw(0, 5, 5), "round")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="map"):
        estimate(draw(0, 5, 5), criterion="map")  # type: ignore[arg-type]


def test_pooled_noise_is_the_residual_variance_of_least_squares() -> None:
    rng = np.random.default_rng(0)
    phi, reward = rng.standard_normal((50, 3)), rng.standard_normal(50)
    rest = np.linalg.lstsq(phi, reward)[1][0]
    moments = Moments.from_arrays(rng.integers(0, 5, 50), phi, reward)
    assert pooled_noise(moments) == pytest.approx(rest / 47, rel=1e-10)


def test_the_flat_prior_has_the_usual_size() -> None:
    moments = draw(4, 200, 20)
    flat = empirical_flat(estimate(moments).hierarchy, moments)
    np.testing.assert_allclose(np.diagonal(flat.task_cov), np.diagonal(COV) + np.array([1, 4, 9]), rtol=0.3)
    assert not flat.hyper.cov.any()


def test_the_quadratic_is_minimised_over_the_cone() -> None:
    rng = np.random.default_rng(0)
    for d in (2, 4, 6):
        k = d * (d + 1) // 2
        root = rng.standard_normal((k, 2 * k))
        form, slope, start = root @ root.T / k + np.eye(k), 5 * rng.standard_normal(k), to_vector(np.eye(d))
        best = minimise(slope, form, start, lambda v, d=d: nearest_psd(v, d))
        gradient = to_matrix(
            slope + form @ (best - start), d
        )  # optimal: itself >= 0, and orthogonal to the point
        assert np.linalg.eigvalsh(gradient)[0] >= -1e-9
        assert np.linalg.eigvalsh(to_matrix(best, d))[0] >= -1e-9
        assert abs((gradient * to_matrix(best, d)).sum()) <= 1e-8


@pytest.mark.parametrize("offset", [1e2, 1e3, 1e4])
def test_where_a_column_has_its_zero_does_not_matter_to_the_full_shape(offset: float) -> None:
    rng = np.random.default_rng(0)
    task, action, year = rng.integers(0, 80, 2000), rng.integers(0, 2, 2000), rng.integers(0, 4, 2000)
    theta, trend = rng.standard_normal((80, 2)), rng.standard_normal(80)
    reward = theta[task, action] + trend[task] * year + rng.standard_normal(2000)

    def fit(zero: float) -> float:
        each = (action[:, None] == [0, 1]).astype(float)
        phi = np.hstack([each, each * (year[:, None] + zero)])
        return estimate(Moments.from_arrays(task, phi, reward), "full", "ml").chosen.deviance

    assert fit(offset) == pytest.approx(fit(0.0), rel=1e-8)


def test_moments_of_turned_features_are_those_of_the_rows() -> None:
    task, phi, reward = rows(0, 5, 7, COV, 1.0)
    T = np.random.default_rng(1).standard_normal((2, 3))
    turned = Moments.from_arrays(task, phi, reward).transformed(T)
    assert turned.allclose(Moments.from_arrays(task, phi @ T.T, reward))
    assert sum([turned, turned]).allclose(turned + turned)


V = np.array([[2.0, 1.0, 0.0], [1.0, 0.5, 0.0], [0.0, 0.0, 1.0]])  # singular
WIDE = np.kron(np.eye(2), [[1.0, 0.4], [0.4, 0.6]])


def shapes_of(d: int) -> list[Shape]:
    return [named("full", d), named("diag", d), named("isotropic", d), named("block", d, 2)]


def second_differences(value, x: np.ndarray, step: float) -> np.ndarray:
    units = step * np.eye(len(x))
    return np.array(
        [
            [value(x + a + b) - value(x + a - b) - value(x - a + b) + value(x - a - b) for a in units]
            for b in units
        ]
    ) / (4 * step**2)


@pytest.mark.parametrize("criterion", ["reml", "ml"])
@pytest.mark.parametrize("k", range(4))
def test_slope_and_observed_curvature_are_derivatives_along_every_shape(criterion, k: int) -> None:
    log = rows(2, 7, 5, WIDE, 0.4)
    shape = shapes_of(4)[k]
    x = shape.vector(WIDE + 0.3 * np.eye(4))
    found = evaluate(Problem(Moments.from_arrays(*log), criterion, 0.0), shape.matrix(x), shape)

    def brute(x: np.ndarray) -> float:
        return brute_deviance(*log, shape.matrix(x), criterion)

    assert found.deviance == pytest.approx(brute(x), rel=1e-10)
    rise = [(brute(x + h) - brute(x - h)) / 2e-5 for h in 1e-5 * np.eye(len(x))]
    np.testing.assert_allclose(found.gradient, rise, rtol=1e-5, atol=1e-6)
    bend = second_differences(brute, x, 1e-3)
    np.testing.assert_allclose(found.observed, bend, rtol=1e-3, atol=1e-4 * np.abs(bend).max())


@pytest.mark.parametrize("criterion", ["reml", "ml"])
def test_curvatures_along_a_shape_are_those_of_all_changes_along_it(criterion) -> None:
    problem = Problem(draw(5, 30, 4, WIDE), criterion, 0.0)
    whole = evaluate(problem, WIDE, named("full", 4))
    for shape in shapes_of(4):
        part = evaluate(problem, WIDE, shape)
        along = np.array([to_vector(shape.matrix(unit)) for unit in np.eye(shape.parameters)])
        np.testing.assert_allclose(part.gradient, along @ whole.gradient, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(part.expected, along @ whole.expected @ along.T, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(part.observed, along @ whole.observed @ along.T, rtol=1e-9, atol=1e-9)


def many(m: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return rows(seed, m, 3, np.array([[1.0, 0.3], [0.3, 0.5]]), 0.5)


def batched_deviance(phi: np.ndarray, reward: np.ndarray, ratio: np.ndarray, criterion: str) -> float:
    """As brute_deviance, from phi (m, n, d) and reward (m, n) of tasks with n rows each."""
    m, n, d = phi.shape
    cov = np.eye(n) + phi @ ratio @ phi.swapaxes(1, 2)
    solved = np.linalg.solve(cov, np.concatenate([phi, reward[:, :, None]], axis=2))
    P = np.einsum("sni,snj->ij", phi, solved[:, :, :d])
    mu = np.linalg.solve(P, np.einsum("sni,sn->i", phi, solved[:, :, d]))
    degrees = m * n - (d if criterion == "reml" else 0)
    squares = np.einsum("sn,sn->", reward - phi @ mu, solved[:, :, d] - solved[:, :, :d] @ mu)
    found = degrees * (np.log(2 * np.pi * squares / degrees) + 1) + np.linalg.slogdet(cov)[1].sum()
    return found + (np.linalg.slogdet(P)[1] if criterion == "reml" else 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("criterion", ["reml", "ml"])
@pytest.mark.parametrize("kind", ["full", "diag"])
def test_with_many_tasks_the_likelihood_is_the_same(criterion, kind) -> None:
    task, phi, reward = many(9000)  # more than are kept in memory
    shape, ratio = named(kind, 2), np.array([[1.5, 0.2], [0.2, 0.7]])
    ratio = shape.matrix(shape.vector(ratio))
    x = shape.vector(ratio)
    problem = Problem(Moments.from_arrays(task, phi, reward), criterion, 0.0)
    center = evaluate(problem, ratio, shape).profile.mean + 1e-3  # near the mean, as after a step
    found = evaluate(problem, ratio, shape, center)

    def brute(x: np.ndarray) -> float:
        return batched_deviance(phi.reshape(-1, 3, 2), reward.reshape(-1, 3), shape.matrix(x), criterion)

    assert found.deviance == pytest.approx(brute(x), rel=1e-12)
    rise = [(brute(x + h) - brute(x - h)) / 2e-4 for h in 1e-4 * np.eye(len(x))]
    np.testing.assert_allclose(found.gradient, rise, rtol=1e-5, atol=1e-3)
    bend = second_differences(brute, x, 1e-3)
    np.testing.assert_allclose(found.observed, bend, rtol=0.02, atol=0.02 * np.abs(bend).max())


def test_with_many_tasks_the_fit_starts_on_some_and_ends_on_all() -> None:
    task, phi, reward = many(40_000)
    found = estimate(Moments.from_arrays(task, phi, reward), "full", "ml")
    ratio = found.hierarchy.task_cov / found.hierarchy.noise_var
    value = batched_deviance(phi.reshape(-1, 3, 2), reward.reshape(-1, 3), ratio, "ml")
    assert found.chosen.deviance == pytest.approx(value, rel=1e-12)
    for change in np.random.default_rng(0).standard_normal((6, 2, 2)):
        other = ratio + 1e-3 * (change + change.T)
        assert batched_deviance(phi.reshape(-1, 3, 2), reward.reshape(-1, 3), other, "ml") > value
    assert found.chosen.evaluations <= 5


def regime(d: int, m: int, n: int, *, rank: int | None = None, seed: int = 0, sd: float = 1.0) -> Moments:
    rng = np.random.default_rng(seed)
    task, phi = np.repeat(np.arange(m), n), rng.standard_normal((m * n, d))
    phi[:, 0] = 1.0
    theta = 1.0 + rng.standard_normal((m, rank or d)) @ rng.standard_normal((rank or d, d)) / np.sqrt(d)
    return Moments.from_arrays(task, phi, (phi * theta[task]).sum(axis=1) + sd * rng.standard_normal(m * n))


@pytest.mark.slow
@pytest.mark.parametrize("criterion", ["reml", "ml"])
@pytest.mark.parametrize(
    ("d", "m", "n", "rank"),
    [(4, 100, 50, None), (10, 100, 50, None), (4, 100, 50, 3), (10, 100, 50, 6), (6, 1000, 4, None),
     (2, 10, 20, None), (4, 10, 50, None), (4, 10, 50, 2), (3, 10, 8, None), (4, 5000, 20, None)],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")
def test_few_evaluations_are_enough(d: int, m: int, n: int, rank, criterion) -> None:
    for seed in range(3):
        found = estimate(regime(d, m, n, rank=rank, seed=seed), "full", criterion).chosen
        assert found.evaluations <= 8
        assert found.predicted_decrease <= 1e-10 * abs(found.deviance)


@pytest.mark.parametrize("criterion", ["reml", "ml"])
def test_directions_that_start_collapsed_open_again(criterion) -> None:
    from hieropo.estimation.reml import _fit

    problem = Problem(draw(3, 60, 8, COV), criterion, 1e-12)
    best = estimate(problem.moments, "full", criterion)
    for start in (np.zeros((3, 3)), np.diag([1.0, 0.0, 0.0]), np.diag([0.0, 1e6, 1e-6])):
        found = _fit(problem, named("full", 3), start)
        assert found.fit.deviance == pytest.approx(best.chosen.deviance, abs=1e-6)
        np.testing.assert_allclose(found.ratio * best.hierarchy.noise_var, best.hierarchy.task_cov, atol=1e-3)


@pytest.mark.parametrize("criterion", ["reml", "ml"])
@pytest.mark.parametrize(("m", "n", "cov"), [(60, 8, WIDE), (200, 3, WIDE), (10, 9, WIDE), (40, 9, 0 * WIDE)])
@pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")
def test_no_change_of_the_blocks_is_better(criterion, m: int, n: int, cov: np.ndarray) -> None:
    moments, shape = draw(7, m, n, cov), named("block", 4, 2)
    found = estimate(moments, "block", criterion, blocks=2)
    assert not found.hierarchy.task_cov[:2, 2:].any()
    best, ratio = found.chosen.deviance, found.hierarchy.task_cov / found.hierarchy.noise_var
    rng = np.random.default_rng(0)
    for size in (1e-1, 1e-2, 1e-3):
        for _ in range(10):
            change = shape.vector(ratio) + size * rng.standard_normal(shape.parameters)
            other = shape.matrix(nearest_psd(change, 2))
            assert likelihood(moments, other, criterion, 0.0, diagonal=True).deviance >= best - 1e-8 * abs(
                best
            )
    assert (found.chosen.shape, found.chosen.parameters) == ("block", 6)
    whole, diagonal = estimate(moments, "full", criterion), estimate(moments, "diag", criterion)
    assert whole.chosen.deviance <= best + 1e-6
    assert best <= diagonal.chosen.deviance + 1e-6


@pytest.mark.parametrize("blocks", [1, 4])
def test_one_block_is_full_and_blocks_of_one_are_the_diagonal(blocks: int) -> None:
    moments = draw(1, 50, 9, WIDE)
    found = estimate(moments, "block", blocks=blocks)
    other = estimate(moments, "full" if blocks == 1 else "diag")
    assert found.chosen.deviance == pytest.approx(other.chosen.deviance, rel=1e-10)
    np.testing.assert_allclose(found.hierarchy.task_cov, other.hierarchy.task_cov, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("criterion", ["reml", "ml"])
@pytest.mark.parametrize(
    "shape", [V, np.eye(3), COV, np.outer([1e3, 1.0, 1e-3], [1e3, 1.0, 1e-3]), np.diag([0.0, 4.0, 0.0])]
)
def test_a_multiple_of_a_given_matrix_is_the_best_multiple(criterion, shape: np.ndarray) -> None:
    log = rows(4, 15, 7, shape / np.abs(shape).max(), 0.4)
    found = estimate(Moments.from_arrays(*log), shape, criterion)
    factor = found.hierarchy.task_cov[1, 1] / shape[1, 1] / found.hierarchy.noise_var
    np.testing.assert_allclose(
        found.hierarchy.task_cov, factor * found.hierarchy.noise_var * shape, rtol=1e-12
    )
    best = brute_deviance(*log, factor * shape, criterion)
    assert found.chosen.deviance == pytest.approx(best, rel=1e-9)
    assert (found.chosen.shape, found.chosen.parameters) == ("scaled", 1)
    for times in (0.0, 0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        assert brute_deviance(*log, times * factor * shape, criterion) >= best - 1e-9 * abs(best)
    if shape is COV:
        turned, T = scaled(COV, np.eye(3))
        np.testing.assert_allclose(T.T @ turned.matrix(np.ones(1)) @ T, COV, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("criterion", ["reml", "ml"])
@pytest.mark.parametrize("kind", ["full", "diag", "isotropic", "block", "scaled"])
def test_the_estimate_tells_how_the_deviance_bends(criterion, kind: str) -> None:
    rng = np.random.default_rng(6)
    task, phi = np.repeat(np.arange(25), 8), rng.standard_normal((200, 4))
    theta = 1.0 + rng.multivariate_normal(np.zeros(4), 4 * WIDE, size=25)
    reward = (phi * theta[task]).sum(axis=1) + 0.3 * rng.standard_normal(200)
    if kind in {"full", "block"}:
        phi[:, :2] @= np.array([[1.0, 5.0], [0.0, 0.3]])  # far from uncorrelated: fitted in other coordinates
    log = (task, phi, reward)
    given = WIDE + 0.2 if kind == "scaled" else kind
    found = estimate(Moments.from_arrays(*log), given, criterion, blocks=2)
    ratio = found.hierarchy.task_cov / found.hierarchy.noise_var
    entries = {
        "full": pack(ratio),
        "diag": np.diagonal(ratio).copy(),
        "isotropic": ratio[0, :1].copy(),
        "block": np.concatenate([pack(ratio[:2, :2]), pack(ratio[2:, 2:])]),
        "scaled": ratio[0, :1] / (WIDE + 0.2)[0, 0],
    }[kind]
    i, j = np.array([(a, b) for b in range(4) for a in range(b + 1)]).T

    def matrix(x: np.ndarray) -> np.ndarray:
        if kind == "scaled":
            return x[0] * (WIDE + 0.2)
        S = np.zeros((4, 4))
        if kind == "full":
            S[i, j] = S[j, i] = x
        elif kind == "block":
            for k in (0, 1):
                S[2 * k, 2 * k], S[2 * k + 1, 2 * k + 1] = x[3 * k], x[3 * k + 2]
                S[2 * k, 2 * k + 1] = S[2 * k + 1, 2 * k] = x[3 * k + 1]
        else:
            S[range(4), range(4)] = x
        return S

    np.testing.assert_allclose(matrix(entries), ratio, rtol=1e-10)
    assert np.linalg.eigvalsh(ratio)[0] > 0.4  # so that there are matrices all around
    bend = second_differences(lambda x: brute_deviance(*log, matrix(x), criterion), entries, 2e-2)
    np.testing.assert_allclose(found.curvature, bend, rtol=2e-2, atol=3e-3 * np.abs(bend).max())
    assert found.degrees == 200 - (4 if criterion == "reml" else 0)
    assert found.expected_curvature is not None
    assert np.linalg.eigvalsh(found.expected_curvature)[0] > 0
    assert found.expected_curvature.shape == found.curvature.shape


def test_auto_takes_blocks_where_there_are_many_features() -> None:
    rng = np.random.default_rng(0)
    task, action = np.repeat(np.arange(120), 90), rng.integers(0, 6, 120 * 90)
    x = np.column_stack([np.ones(task.size), rng.standard_normal((task.size, 2))])
    theta = rng.standard_normal((120, 6, 1)) * np.array([1.0, 0.8, -0.6]) + 0.3 * rng.standard_normal(
        (120, 6, 3)
    )
    phi = np.zeros((task.size, 6, 3))
    phi[np.arange(task.size), action] = x
    reward = (x * theta[task, action]).sum(axis=1) + rng.standard_normal(task.size)
    moments = Moments.from_arrays(task, phi.reshape(-1, 18), reward)
    found = estimate(moments, blocks=6)
    assert [fit.shape for fit in found.compared] == ["pooled", "diag", "block"]
    assert found.chosen.shape == "block"
    assert found.chosen.parameters == 36
    assert found.chosen.score(120) > found.compared[1].score(120)
    assert estimate(moments).chosen.shape == "diag"


def test_shapes_are_compared_on_one_scale() -> None:
    log = rows(3, 40, 12, COV, 1.0)
    moments = Moments.from_arrays(*log)
    fits = {fit.shape: fit for fit in compare(moments)}
    assert list(fits) == ["separate", "pooled", "isotropic", "diag", "full"]
    assert {name: fit.parameters for name, fit in fits.items()} == {
        "separate": 3, "pooled": 3, "isotropic": 4, "diag": 6, "full": 9,
    }  # fmt: skip
    falling = [fits[name].deviance for name in ("pooled", "isotropic", "diag", "full")]
    assert falling == sorted(falling, reverse=True)
    for name in ("isotropic", "diag", "full"):
        assert fits[name].deviance == pytest.approx(estimate(moments, name, "ml").chosen.deviance, rel=1e-10)
    assert fits["pooled"].deviance == pytest.approx(brute_deviance(*log, np.zeros((3, 3)), "ml"), rel=1e-10)
    assert fits["full"].score(40) == -(fits["full"].deviance + 9 * np.log(40)) / 2


def test_every_task_for_itself_has_its_mean_at_zero() -> None:
    task, phi, reward = rows(3, 12, 6, COV, 1.0)

    def brute(sizes: np.ndarray) -> float:
        cov = np.eye(72) + (task[:, None] == task[None, :]) * (phi @ np.diag(sizes) @ phi.T)
        squares = reward @ np.linalg.solve(cov, reward)
        return 72 * (np.log(2 * np.pi * squares / 72) + 1) + np.linalg.slogdet(cov)[1]

    best = compare(Moments.from_arrays(task, phi, reward))[0]
    assert best.shape == "separate"
    grid = [np.array([a, b, c]) for a in (1, 2, 4) for b in (2, 6, 18) for c in (5, 12, 30)]
    assert best.deviance <= min(brute(sizes) for sizes in grid)
    from scipy.optimize import minimize

    found = minimize(lambda log_sizes: brute(np.exp(log_sizes)), np.log([2.0, 5.0, 10.0]), tol=1e-10)
    assert best.deviance == pytest.approx(found.fun, rel=1e-8)


@pytest.mark.parametrize("shift", [0.0, 50.0])
def test_every_task_for_itself_varies_around_one_level_of_rewards(shift: float) -> None:
    rng = np.random.default_rng(5)
    task, action = np.repeat(np.arange(12), 8), rng.integers(2, size=96)
    phi = np.eye(2)[action]
    reward = shift + (phi * (1.0 + rng.standard_normal((12, 2)))[task]).sum(axis=1) + rng.standard_normal(96)

    def brute(sizes: np.ndarray) -> float:
        cov = np.eye(96) + (task[:, None] == task[None, :]) * (phi @ np.diag(sizes) @ phi.T)
        half = np.linalg.cholesky(cov)
        y, one = np.linalg.solve(half, np.column_stack([reward, np.ones(96)])).T
        squares = y @ y - (y @ one) ** 2 / (one @ one)
        return 96 * (np.log(2 * np.pi * squares / 96) + 1) + np.linalg.slogdet(cov)[1]

    best = compare(Moments.from_arrays(task, phi, reward))[0]
    assert (best.shape, best.parameters) == ("separate", 3)
    from scipy.optimize import minimize

    found = minimize(lambda log_sizes: brute(np.exp(log_sizes)), np.zeros(2), tol=1e-10)
    assert best.deviance == pytest.approx(found.fun, rel=1e-8)


def test_a_level_of_rewards_alone_leaves_nothing_to_be_separate_in() -> None:
    rng = np.random.default_rng(6)
    reward = np.repeat(rng.standard_normal(20), 5) + rng.standard_normal(100)
    fits = compare(Moments.from_arrays(np.repeat(np.arange(20), 5), np.ones((100, 1)), reward))
    assert [fit.shape for fit in fits] == ["pooled", "isotropic", "diag", "full"]


@pytest.mark.parametrize("kind", ["two tasks", "all tasks identical", "one row a task", "one enormous task",
                                  "reward constant", "reward zero", "constant feature"])  # fmt: skip
@pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")
def test_odd_logs_get_a_sensible_answer_in_every_other_shape(kind: str) -> None:
    moments = odd(kind)
    d = moments.dim
    for task_cov, blocks in (("block", d), ("block", 1), (np.eye(d) + 0.5, None), (np.ones((d, d)), None)):
        found = estimate(moments, task_cov, blocks=blocks)
        table = condition(moments, found.hierarchy).table()
        assert np.isfinite(table.means).all()
        assert np.isfinite(table.covs).all()
        assert np.isfinite(found.curvature).all()
        assert found.hierarchy.noise_var > 0
    assert all(np.isfinite(fit.deviance) for fit in compare(moments))


def test_shapes_that_do_not_fit_are_refused() -> None:
    moments = draw(0, 5, 5)
    with pytest.raises(InputError, match="blocks="):
        estimate(moments, "block")
    with pytest.raises(InputError, match="2"):
        estimate(moments, "block", blocks=2)
    with pytest.raises(InputError, match="zero"):
        estimate(moments, np.zeros((3, 3)))
    with pytest.raises(InputError, match="3 features"):
        estimate(moments, np.eye(2))
    with pytest.raises(NumericalError, match="task_cov"):
        estimate(moments, np.diag([1.0, -1.0, 1.0]))


def test_one_task_has_no_shape() -> None:
    with pytest.warns(HieropoWarning, match="one task"):
        found = estimate(draw(0, 1, 30), "full")
    assert found.chosen.shape == "pooled"
    assert found.curvature.shape == (0, 0)
    assert [fit.shape for fit in compare(draw(0, 1, 30))] == ["separate", "pooled"]


@pytest.mark.filterwarnings("ignore:No task has more rows")
def test_auto_keeps_the_diagonal_where_more_does_not_converge(monkeypatch) -> None:
    # 50 rows of 100 tasks: the full shape needs some hundred passes on this log
    rng = np.random.default_rng([20221208, 100, 50, 50, 7])
    _, log = synthetic_run(synthetic_hierarchy(0.5), 100, 50, rng)
    moments = Moments.from_arrays(log.task, log.phi, log.reward)
    monkeypatch.setattr(estimation, "HOPE", np.inf)
    monkeypatch.setattr(estimation, "_EVALUATIONS", 20)
    with pytest.warns(HieropoWarning, match="The diagonal task_cov is kept"):
        found = estimate(moments)
    assert found.chosen.shape == "diag"
    with pytest.raises(NumericalError, match="did not converge"):
        estimate(moments, "full")


@pytest.mark.parametrize("kind", ["zero", "copy", "sum"])
def test_a_feature_that_says_nothing_new_is_named_in_every_other_shape(kind: str) -> None:
    task, phi, reward = rows(0, 10, 8, COV, 1.0)
    extra = {"zero": 0 * phi[:, 0], "copy": phi[:, 1], "sum": phi.sum(axis=1)}[kind]
    moments = Moments.from_arrays(task, np.column_stack([phi, extra]), reward)
    for task_cov in ("block", np.eye(4), np.ones((4, 4))):
        with pytest.raises(NumericalError, match="feature"):
            estimate(moments, task_cov, blocks=2)
    with pytest.raises(NumericalError, match="feature"):
        compare(moments)
