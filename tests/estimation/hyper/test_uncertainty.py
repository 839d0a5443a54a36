"""The uncertainty of a learned hierarchy: the mixture and the first-order correction against brute force and laws."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from hieropo import (
    Gaussian,
    Hierarchy,
    HieropoWarning,
    InputError,
    LCBPolicy,
    Level,
    Metadata,
    MismatchError,
    Moments,
    UnknownTaskError,
    condition,
    estimate,
    estimate_levels,
)
from hieropo._utils.packed import pack, unpack
from hieropo.estimation.hyper import importance
from hieropo.estimation.hyper.corrected import HyperError, correct
from hieropo.estimation.hyper.draws import CollapsedLikelihood, LevelAxis, draw_hierarchies, parametrise
from hieropo.estimation.hyper.importance import Diagnosis, averaged, pareto_tail, sample
from hieropo.estimation.hyper.intervals import draw_intervals
from hieropo.estimation.hyper.mixed import HyperDraws, mix, normal_mixture_quantile
from hieropo.estimation.hyper.uncertainty import (
    Learned,
    condition_with,
    hyper_uncertainty_from_dict,
    hyper_uncertainty_to_dict,
    learn,
)
from hieropo.reproduce.synthetic.simulation import synthetic_hierarchy, synthetic_run

COV = np.array([[1.0, 0.3], [0.3, 0.25]])
THREE = np.array([[1.0, 0.8, 0.0], [0.8, 1.0, 0.3], [0.0, 0.3, 1.0]])


def rows(
    seed: int, m: int, n: int, cov: np.ndarray = COV, noise_sd: float = 0.7
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    d = len(cov)
    theta = np.arange(1.0, d + 1) + rng.multivariate_normal(np.zeros(d), cov, size=m)
    task, phi = np.repeat(np.arange(m), n), rng.standard_normal((m * n, d))
    return task, phi, (phi * theta[task]).sum(axis=1) + noise_sd * rng.standard_normal(m * n)


def draw(seed: int, m: int, n: int, cov: np.ndarray = COV, noise_sd: float = 0.7) -> Moments:
    return Moments.from_arrays(*rows(seed, m, n, cov, noise_sd))


def sds(learned: Learned) -> np.ndarray:
    table = learned.posterior.table()
    return np.sqrt(np.diagonal(unpack(table.covs, table.dim), axis1=1, axis2=2))


METHODS = ["integrated", "first-order", "plug-in"]

# What is drawn from


def test_the_collapsed_likelihood_is_the_evidence_of_trees_metadata_and_proper_hyper_priors() -> None:
    moments = draw(0, 6, 4)
    region = {s: "NS"[s % 2] for s in range(6)}
    values = Metadata(np.arange(6), np.arange(6.0)[:, None] ** 2)
    proper = Gaussian(np.array([0.5, -0.2]), np.array([[2.0, 0.3], [0.3, 1.0]]))
    level = (Level(0.4 * COV, region),)
    cases = [
        Hierarchy(None, COV, 0.3),
        Hierarchy(proper, COV, 0.3),
        Hierarchy(None, COV, 0.3, level),
        Hierarchy(proper, COV, 0.3, level),
        Hierarchy(None, COV, 0.3, metadata=values),
        Hierarchy(None, COV, 0.3, level, metadata=values),
    ]
    for hierarchy in cases:
        space = parametrise(moments, hierarchy, "full")
        eta = space.start + np.linspace(-0.5, 0.5, 3)[:, None]
        factors, noise_vars = space.split(eta)
        found = CollapsedLikelihood(moments, hierarchy)(factors, noise_vars)
        for h in range(3):
            covs = [f[h] @ f[h].T for f in factors]
            levels = tuple(replace(at, cov=c) for at, c in zip(hierarchy.levels, covs[1:], strict=True))
            one = replace(hierarchy, task_cov=covs[0], noise_var=float(noise_vars[h]), levels=levels)
            assert found[h] == pytest.approx(condition(moments, one).log_evidence, rel=1e-11)


def to_one_side(moments: Moments, by: float = 3.0) -> Moments:
    """The log whose features are larger by ``by``, with the same rewards."""
    d = moments.dim
    turn = np.eye(d + 2)
    turn[:d, d + 1] = by
    sums = turn @ unpack(moments.sums, d + 2) @ turn.T
    return replace(moments, sums=pack(sums))


@pytest.mark.parametrize(
    ("freedom", "free"), [("full", 6), ("sds", 3), ("isotropic", 1), ("scale", 1), ("level", 2)]
)
def test_priors_are_densities(freedom, free) -> None:
    cov = np.diag([1.0, 0.25, 0.5]) + 0.1
    moments = draw(0, 5, 4, cov)
    moments = to_one_side(moments) if freedom == "level" else moments
    space = parametrise(moments, Hierarchy(None, cov, 0.5), freedom)
    assert space.start.size == free + 1
    _, _, diagnosis = sample(space.log_prior, space.start)
    assert diagnosis.good
    assert diagnosis.log_integral == pytest.approx(0.0, abs=0.05)


def test_where_the_noise_is_not_told_any_noise_is_as_likely_up_to_that_of_one_fit() -> None:
    space = parametrise(draw(0, 5, 4), Hierarchy(None, COV, 0.5), "full", noise_identified=False)
    points, weights, diagnosis = sample(space.log_prior, space.start)
    assert diagnosis.log_integral == pytest.approx(0.0, abs=0.05)
    share = space.split(points)[1] / space.noise
    for at in (0.1, 0.3, 1.0):
        assert weights @ (share < at) == pytest.approx(1 - (1 + at) ** -2, abs=0.04)


def test_the_prior_is_finite_where_standard_deviations_are_zero_in_float64() -> None:
    space = parametrise(draw(0, 5, 4, np.eye(3)), Hierarchy(None, np.eye(3), 0.5), "full")
    eta = np.tile(space.start, (4, 1))
    eta[:, 0] = [-10.0, -30.0, -40.0, -1e4]
    found = space.log_prior(eta)
    assert np.isfinite(found).all()
    assert (found[1:] < found[0] - 300).all()


def test_the_prior_of_the_share_and_of_correlations_is_the_one_that_is_said() -> None:
    cov = np.eye(3)
    space = parametrise(draw(0, 5, 4, cov), Hierarchy(None, cov, 0.5), "full")
    points, weights, _ = sample(space.log_prior, space.start)
    factors, noise_vars = space.split(points)
    covs = factors[0] @ factors[0].swapaxes(1, 2)
    v = np.diagonal(covs, axis1=1, axis2=2) / space.families[0].scale ** 2
    share = v.sum(axis=1) / (1 + v.sum(axis=1))
    assert weights @ share == pytest.approx(4 / 7, abs=0.03)  # Beta(k + 1, 3)
    assert weights @ (v[:, 0] / v.sum(axis=1)) == pytest.approx(1 / 3, abs=0.03)
    r = covs[:, 0, 2] / np.sqrt(covs[:, 0, 0] * covs[:, 2, 2])
    assert weights @ r == pytest.approx(0.0, abs=0.03)
    assert weights @ r**2 == pytest.approx(1 / (2 * 4.5 + 1), abs=0.02)  # (1 + r) / 2 ~ Beta(4.5, 4.5)
    assert weights @ np.log(noise_vars / space.noise) ** 2 == pytest.approx(9.0, rel=0.1)


def test_level_and_rest_have_a_variance_each_in_units_of_what_features_do_to_rewards() -> None:
    """Dense: D^-1 (v_1 / (1 + m'm) u u' + v_2 (I - u u')) D^-1 s^2, so that rewards vary by v_1 and v_2 s^2."""
    task, phi, reward = rows(3, 12, 6, THREE)
    phi = phi * [1.0, 0.1, 5.0] + [2.0, -0.1, 4.0]
    moments = Moments.from_arrays(task, phi, reward)
    axis, cov = LevelAxis.of(moments), np.diag([1.0, 9.0, 0.1])
    z = phi / phi.std(axis=0)
    np.testing.assert_allclose(axis.axis, z.mean(axis=0) / np.linalg.norm(z.mean(axis=0)))
    assert axis.length == pytest.approx(np.sqrt(1 + z.mean(axis=0) @ z.mean(axis=0)))
    space = parametrise(moments, Hierarchy(None, cov, 0.5), "level")
    factor = space.split(np.stack([space.start, space.start - 0.4]))[0][0]
    assert (np.tril(factor, -1) == 0).all()
    u, along = axis.axis, np.eye(3) - np.outer(axis.axis, axis.axis)
    for found in factor @ factor.swapaxes(1, 2) / space.noise:
        whole = found * np.outer(axis.sd, axis.sd)
        v = u @ whole @ u * axis.length**2, np.trace(whole @ along) / 2
        np.testing.assert_allclose(whole, v[0] / axis.length**2 * np.outer(u, u) + v[1] * along, atol=1e-12)
    start = factor[0] @ factor[0].T * np.outer(axis.sd, axis.sd)
    estimate_ = cov * np.outer(axis.sd, axis.sd)
    assert u @ start @ u == pytest.approx(u @ estimate_ @ u)
    assert np.trace(start) == pytest.approx(np.trace(estimate_))


def test_features_around_zero_or_with_a_constant_have_no_axis_of_the_level() -> None:
    task, phi, reward = rows(3, 12, 6, THREE)
    assert LevelAxis.of(Moments.from_arrays(task, phi, reward)) is None
    assert LevelAxis.of(Moments.from_arrays(task, phi + 2.0, reward)) is not None
    phi[:, 1] = 1.0
    assert LevelAxis.of(Moments.from_arrays(task, phi + 2.0, reward)) is None


@pytest.mark.slow
def test_levels_that_differ_little_are_learned_beside_the_rest() -> None:
    """Of 60 tasks of 10 rows whose level hardly differs, the mixture finds that better than one sd a feature does."""
    rng, d, m = np.random.default_rng(4), 6, 60
    centre = np.array([2.0, -1.5, 1.0, -2.0, 0.5, 1.5])
    u = centre / np.linalg.norm(centre)
    cov = 0.2 * (np.eye(d) - np.outer(u, u)) + 0.005 * np.outer(u, u)
    theta = rng.standard_normal(d) + rng.multivariate_normal(np.zeros(d), cov, m)
    task, phi = np.repeat(np.arange(m), 10), centre + rng.standard_normal((10 * m, d))
    reward = (phi * theta[task]).sum(axis=1) + 0.7 * rng.standard_normal(10 * m)
    learned = learn(Moments.from_arrays(task, phi, reward))
    diagonal = learn(learned.moments, "diag")
    assert learned.method == diagonal.method == "integrated"

    def error(one: Learned) -> float:
        of_rewards = np.einsum("sd,nd->sn", one.posterior.table().means - theta, phi)
        return float(np.square(of_rewards).mean())

    assert error(learned) < 0.95 * error(diagonal)
    assert learned.diagnosis.log_integral > diagonal.diagnosis.log_integral + 10
    along = u @ learned.hierarchy.task_cov @ u
    assert along < 0.25 * np.trace(learned.hierarchy.task_cov) / d


@pytest.mark.parametrize("freedom", ["sds", "isotropic", "scale"])
def test_an_estimate_inside_is_where_the_search_starts(freedom) -> None:
    cov = 0.6 * np.eye(3) if freedom == "isotropic" else np.diag([1.0, 0.5, 2.0]) + 0.3
    space = parametrise(draw(0, 30, 6, cov), Hierarchy(None, cov, 0.5), freedom)
    (factors,), noise_vars = space.split(space.start[None])
    np.testing.assert_allclose(factors[0] @ factors[0].T, cov, rtol=1e-9, atol=1e-12)
    assert noise_vars[0] == pytest.approx(0.5)


def test_free_correlations_start_near_those_of_the_estimate() -> None:
    cov = np.array([[1.0, 0.5, -0.2], [0.5, 2.0, 0.1], [-0.2, 0.1, 0.5]])
    space = parametrise(draw(0, 30, 6, cov), Hierarchy(None, cov, 0.5), "full")
    (factors,), _ = space.split(space.start[None])
    found = factors[0] @ factors[0].T
    np.testing.assert_allclose(found, 0.9 * cov + 0.1 * np.diag(np.diagonal(cov)), rtol=1e-9)
    assert (np.tril(factors[0], -1) == 0).all()


# The sampler


def test_the_sampler_integrates_a_bent_density() -> None:
    """x_1 ~ N(0, 1), x_j | x_1 ~ N(x_1^2 / 5, 0.5^2): skewed, bent, and known."""

    def density(x: np.ndarray) -> np.ndarray:
        away = (x[:, 1:] - x[:, :1] ** 2 / 5) / 0.5
        return -(x[:, 0] ** 2 + (away**2).sum(axis=1)) / 2

    points, weights, diagnosis = sample(density, np.full(4, 0.7))
    assert diagnosis.good
    assert diagnosis.log_integral == pytest.approx(2 * np.log(2 * np.pi) + 3 * np.log(0.5), abs=0.05)
    np.testing.assert_allclose(weights @ points, [0, 0.2, 0.2, 0.2], atol=0.12)
    np.testing.assert_allclose(weights @ points**2, [1, 0.37, 0.37, 0.37], atol=0.15)  # 0.5^2 + 3 / 25


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9])
def test_the_tail_of_weights_is_that_of_the_pareto_law_they_follow(k) -> None:
    uniform = (np.arange(20_000) + 0.5) / 20_000
    assert pareto_tail(-k * np.log(uniform)) == pytest.approx(k, abs=0.1)


def test_tied_weights_have_the_tail_of_a_bounded_law_or_none_that_can_be_told() -> None:
    ones = np.zeros(200)
    assert pareto_tail(ones) == -np.inf
    half = np.where(np.arange(200) < 100, 3.0, 0.0)
    assert pareto_tail(half) == pareto_tail(half + 1e-15 * np.arange(200)) == -np.inf
    few = np.where(np.arange(200) < 4, 3.0, 0.0)
    assert np.isnan(pareto_tail(few))
    assert np.isnan(pareto_tail(ones[:20]))
    several = np.where(np.arange(200) < 10, 3.0, 0.0)
    assert pareto_tail(several) == -np.inf


def test_a_density_that_no_t_distribution_is_like_is_said_to_be_bad() -> None:
    heavy = lambda x: -0.6 * np.log1p((x * x).sum(axis=1) * 1e4)  # noqa: E731 - as short as it is
    _, _, diagnosis = sample(heavy, np.zeros(12))
    assert not diagnosis.good


# The mixture against brute force


def grid_truth(task, phi, reward) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """d = 1: weights over a dense grid of (Sigma_0, sigma^2), conditional mean and sd of theta_0, and the evidence.

    From the covariance of all rewards, with mu integrated over Lebesgue measure; priors by their definition.
    """
    n, x = reward.size, phi[:, 0]
    s2 = np.sum((reward - x * (x @ reward) / (x @ x)) ** 2) / (n - 1)
    scale2 = s2 * n / (x @ x)
    same = task[:, None] == task[None, :]
    log_v, log_noise = np.linspace(-9, 5, 85), np.linspace(-2.5, 0.6, 45)
    step = (log_v[1] - log_v[0]) * (log_noise[1] - log_noise[0])
    log_p, means, spreads, variances = [], [], [], []
    for a in log_v:
        v = np.exp(a)
        for b in log_noise:
            noise = s2 * np.exp(b)
            V = noise * np.eye(n) + v * scale2 * same * np.outer(x, x)
            Vx, Vr = np.linalg.solve(V, x), np.linalg.solve(V, reward)
            P = x @ Vx
            mu = (x @ Vr) / P
            rest = reward - x * mu
            log_lik = -0.5 * (
                (n - 1) * np.log(2 * np.pi)
                + np.linalg.slogdet(V)[1]
                + np.log(P)
                + rest @ np.linalg.solve(V, rest)
            )
            prior = stats.betaprime.logpdf(v, 2, 3) + a + stats.norm.logpdf(b, 0, 3)
            c = v * scale2 * x * (task == 0)  # cov(theta_0, rewards)
            k = 1 - c @ Vx
            log_p.append(log_lik + prior)
            means.append(mu + c @ np.linalg.solve(V, rest))
            spreads.append(v * scale2 - c @ np.linalg.solve(V, c) + k * k / P)
            variances.append(v * scale2)
    log_p = np.array(log_p)
    weights = np.exp(log_p - log_p.max())
    evidence = log_p.max() + np.log(weights.sum() * step)
    return weights / weights.sum(), np.array(means), np.sqrt(spreads), np.sqrt(variances), evidence


@pytest.mark.slow
def test_one_feature_integrated_equals_a_dense_grid() -> None:
    log = rows(5, 6, 4, np.array([[0.3]]))
    weights, means, spreads, between, evidence = grid_truth(*log)
    learned = learn(Moments.from_arrays(*log))
    assert learned.method == "integrated"
    mean = weights @ means
    sd = np.sqrt(weights @ (spreads**2 + (means - mean) ** 2))
    law = learned.posterior.task(0)
    assert law.mean[0] == pytest.approx(mean, abs=0.02 * sd)
    assert law.sd[0] == pytest.approx(sd, rel=0.02)
    assert learned.diagnosis.log_integral == pytest.approx(evidence, abs=0.02)
    for level in (0.025, 0.25, 0.9):
        found = learned.posterior.components(0).quantile([1.0], level)
        assert found == pytest.approx(normal_mixture_quantile(weights, means, spreads, level), abs=0.04 * sd)
    order = np.argsort(between)
    ends = np.interp([0.025, 0.5, 0.975], np.cumsum(weights[order]), between[order])
    found = {each.name: each for each in draw_intervals(learned.hyper_uncertainty, learned.hierarchy, 0.95)}[
        "sd[0]"
    ]
    np.testing.assert_allclose([found.lower, found.estimate, found.upper], ends, rtol=0.08, atol=0.02)


def test_a_quantile_of_a_mixture_is_where_its_distribution_has_the_level() -> None:
    weights, means, spreads = np.array([0.2, 0.5, 0.3]), np.array([-3.0, 0.0, 4.0]), np.array([0.5, 2.0, 0.0])
    for level in (0.01, 0.3, 0.69, 0.95):
        x = normal_mixture_quantile(weights, means, spreads, level)
        below = weights[:2] @ stats.norm.cdf((x - means[:2]) / spreads[:2])
        if x == pytest.approx(4.0):  # the part that has no spread steps over the level
            assert below <= level <= below + weights[2]
        else:
            assert below + weights[2] * (x >= 4.0) == pytest.approx(level, abs=1e-9)


@pytest.mark.slow
def test_views_of_a_mixture_are_the_law_of_total_covariance_over_its_parts() -> None:
    moments = draw(1, 5, 6)
    posterior = learn(moments).posterior
    w = posterior.draws.weights
    parts = [condition(moments, posterior.draws.hierarchy(h, posterior.hierarchy)) for h in range(len(w))]
    table = posterior.table()
    joint = np.array([np.concatenate([p.task(0).mean, p.task(3).mean]) for p in parts])
    away = joint - w @ joint
    inside = sum(
        wh * np.block([[p.task(0).cov, p.cov_between(0, 3)], [p.cov_between(3, 0), p.task(3).cov]])
        for wh, p in zip(w, parts, strict=True)
    )
    truth = inside + (away * w[:, None]).T @ away
    np.testing.assert_allclose(posterior.task(0).mean, (w @ joint)[:2], rtol=1e-12)
    np.testing.assert_allclose(posterior.task(0).cov, truth[:2, :2], rtol=1e-10)
    np.testing.assert_allclose(posterior.cov_between(0, 3), truth[:2, 2:], rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(unpack(table.covs, 2)[3], truth[2:, 2:], rtol=1e-9)
    np.testing.assert_allclose(table.means[3], posterior.task(3).mean, rtol=1e-12)
    mus = np.array([p.hyper.mean for p in parts])
    between = ((mus - w @ mus) * w[:, None]).T @ (mus - w @ mus)
    covs = np.tensordot(w, [p.hyper.cov for p in parts], 1)
    np.testing.assert_allclose(posterior.hyper.cov, covs + between, rtol=1e-10)
    np.testing.assert_allclose(table.prior.cov, posterior.new_task().cov)
    np.testing.assert_allclose(posterior.new_task().cov, posterior.hyper.cov + posterior.hierarchy.task_cov)


def test_the_spread_of_a_mixture_is_at_least_that_of_its_parts_on_average() -> None:
    posterior = learn(draw(2, 8, 5)).posterior
    parts = posterior.components(4)
    gap = posterior.task(4).cov - np.tensordot(parts.weights, parts.covs, 1)
    assert np.linalg.eigvalsh(gap)[0] >= -1e-14
    assert np.linalg.eigvalsh(gap)[-1] > 0


@pytest.mark.slow
def test_a_tree_and_metadata_are_integrated_too() -> None:
    moments = draw(3, 12, 5)
    region = {s: "ABC"[s % 3] for s in range(12)}
    values = Metadata(np.arange(12), np.linspace(-1, 1, 12)[:, None])
    found = estimate_levels(moments, levels={"region": region}, metadata=values)
    learned = learn(moments, estimated=found)
    assert learned.method == "integrated"
    assert learned.hyper_uncertainty.level_covs.shape[1:] == (1, 2, 2)
    assert np.ptp(learned.hyper_uncertainty.level_covs[:, 0, 0, 0]) > 0
    w, posterior = learned.hyper_uncertainty.weights, learned.posterior
    nodes = np.array([part.node(0, "B").mean for part in posterior.parts()])
    np.testing.assert_allclose(posterior.node(0, "B").mean, w @ nodes, rtol=1e-12)
    assert posterior.new_task("B", metadata=[0.3]).cov.shape == (2, 2)
    names = [each.name for each in learned.hyper_intervals()]
    assert {"noise sd", "sd[1]", "region sd[0]", "region correlation[0, 1]", "mean[1]", "kappa[0]"} <= set(
        names
    )
    with pytest.raises(InputError, match="integrated"):
        learn(moments, estimated=found, uncertainty="first-order")


# The first-order correction


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["full", "diag"])
def test_the_correction_is_the_movement_of_posteriors_by_finite_differences(shape) -> None:
    moments = draw(4, 9, 4)
    estimated = estimate(moments, "full").hierarchy
    hierarchy = replace(
        estimated, task_cov=estimated.task_cov + 0.3 * np.eye(2)
    )  # inside the cone, not at the optimum
    entries = {"full": [(0, 0), (0, 1), (1, 1)], "diag": [(0, 0), (1, 1)]}[shape]
    rng = np.random.default_rng(0)
    root = rng.standard_normal((len(entries),) * 2)
    error = HyperError(2, root @ root.T, 30)
    noise_var, step = hierarchy.noise_var, 1e-5

    def at(deltas: list[tuple[tuple[int, int], float]]) -> np.ndarray:
        cov = hierarchy.task_cov.copy()
        for (i, j), by in deltas:
            cov[i, j] += by * noise_var
            cov[j, i] = cov[i, j]
        return cov

    def mean(cov: np.ndarray, task: int) -> np.ndarray:
        return condition(moments, replace(hierarchy, task_cov=cov)).task(task).mean

    def own(cov: np.ndarray, task: int) -> np.ndarray:
        """sigma^2 S~: the covariance with mu known."""
        known = Gaussian(np.zeros(2), np.zeros((2, 2)))
        return condition(moments, replace(hierarchy, task_cov=cov, hyper=known)).task(task).cov

    plain, found = condition(moments, hierarchy), correct(moments, hierarchy, error)
    laws = []
    for task in range(9):
        moves = np.array(
            [(mean(at([(e, step)]), task) - mean(at([(e, -step)]), task)) / (2 * step) for e in entries]
        )
        wide = 1e-3
        bend = np.zeros((2, 2))  # E of the second-order term of sigma^2 S~, which is negative
        for a, first in enumerate(entries):
            for b, second in enumerate(entries):
                corners = [
                    sign_a * sign_b * own(at([(first, sign_a * wide), (second, sign_b * wide)]), task)
                    for sign_a in (-1, 1)
                    for sign_b in (-1, 1)
                ]
                bend += error.cov[a, b] * sum(corners) / (4 * wide**2) / 2
        extra = moves.T @ error.cov @ moves - bend
        np.testing.assert_allclose(found.task(task).cov - plain.task(task).cov, extra, rtol=1e-4)
        laws.append(moves)
    both = laws[2].T @ error.cov @ laws[5]
    np.testing.assert_allclose(found.cov_between(2, 5) - plain.cov_between(2, 5), both, rtol=1e-5)
    covs = unpack(found.table().covs, 2)
    np.testing.assert_allclose(covs, [found.task(s).cov for s in range(9)], rtol=1e-12)


def test_the_correction_never_shrinks_a_covariance() -> None:
    moments = draw(5, 40, 3)
    found, plain = (learn(moments, uncertainty=u).posterior for u in ("first-order", "plug-in"))
    gaps = unpack(found.table().covs - plain.table().covs, 2)
    assert np.linalg.eigvalsh(gaps).min() >= -1e-14
    assert np.linalg.eigvalsh(found.hyper.cov - plain.hyper.cov)[0] >= 0


def test_shapes_with_fewer_entries_are_what_the_full_formula_gives() -> None:
    moments = draw(6, 30, 4)
    for task_cov in ("diag", "isotropic", "block", COV):
        blocks = 2 if isinstance(task_cov, str) and task_cov == "block" else None
        learned = learn(moments, task_cov, uncertainty="first-order", blocks=blocks)
        whole = HyperError(2, learned.hyper_uncertainty.of_entries, learned.hyper_uncertainty.degrees)
        truth = correct(moments, learned.hierarchy, whole).table()
        np.testing.assert_allclose(learned.posterior.table().covs, truth.covs, rtol=1e-10)


def test_with_many_tasks_both_ways_agree() -> None:
    moments = draw(7, 1500, 4)
    integrated, corrected, plain = (learn(moments, "full", uncertainty=u) for u in METHODS)
    np.testing.assert_allclose(sds(integrated), sds(corrected), rtol=0.02)
    assert np.mean(sds(corrected) / sds(plain)) > 1.0
    ends = [np.array([each[2:] for each in learned.hyper_intervals()]) for learned in (integrated, corrected)]
    assert len(ends[0]) == len(ends[1]) == 6
    widths = np.ptp(ends[1], axis=1)
    assert (np.abs(ends[0] - ends[1]) < 0.35 * widths[:, None]).all()
    assert learn(moments, "full").method == "first-order"


# Laws of both


@pytest.mark.parametrize("shift", [0.0, 2.0])
@pytest.mark.parametrize("method", METHODS)
def test_units_of_reward_and_columns_do_not_matter(method, shift) -> None:
    task, phi, reward = rows(8, 12, 5)
    by = np.array([1e3, 1e-4])
    phi = phi + shift
    one = learn(Moments.from_arrays(task, phi, reward), uncertainty=method)
    other = learn(Moments.from_arrays(task, phi * by, 7.0 * reward), uncertainty=method)
    np.testing.assert_allclose(sds(other) * by / 7.0, sds(one), rtol=1e-4)
    np.testing.assert_allclose(
        other.posterior.new_task().sd * by / 7.0, one.posterior.new_task().sd, rtol=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_permuted_tasks_give_permuted_answers(method) -> None:
    task, phi, reward = rows(9, 8, 5)
    names = np.array(list("hdbfaceg"), dtype=object)
    one = learn(Moments.from_arrays(task, phi, reward), uncertainty=method)
    other = learn(Moments.from_arrays(names[task[::-1]], phi[::-1], reward[::-1]), uncertainty=method)
    for s in (0, 5):
        np.testing.assert_allclose(other.posterior.task(names[s]).cov, one.posterior.task(s).cov, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_every_run_gives_the_same_bits_and_so_does_what_was_written_down(method) -> None:
    moments = draw(10, 7, 5)
    learned, again = (learn(moments, uncertainty=method) for _ in range(2))
    np.testing.assert_array_equal(learned.posterior.table().covs, again.posterior.table().covs)
    hyper_uncertainty = hyper_uncertainty_from_dict(
        json.loads(json.dumps(hyper_uncertainty_to_dict(learned.hyper_uncertainty)))
    )
    back = condition_with(moments, learned.hierarchy, hyper_uncertainty).table()
    np.testing.assert_array_equal(back.means, learned.posterior.table().means)
    np.testing.assert_array_equal(back.covs, learned.posterior.table().covs)
    np.testing.assert_array_equal(back.prior.cov, learned.posterior.table().prior.cov)


def test_level_covariances_are_written_down_too() -> None:
    draws = HyperDraws(
        np.array([0.25, 0.75]), np.array([COV, 2 * COV]), np.ones(2), np.array([[COV], [3 * COV]])
    )
    back = hyper_uncertainty_from_dict(json.loads(json.dumps(draws.to_dict())))
    np.testing.assert_array_equal(back.level_covs, draws.level_covs)
    central = back.mean(Hierarchy(None, COV, 1.0, (Level(COV, {0: 0}),)))
    np.testing.assert_allclose(central.task_cov, 1.75 * COV, rtol=1e-15)
    np.testing.assert_allclose(central.levels[0].cov, 2.5 * COV, rtol=1e-15)


@pytest.mark.parametrize("method", METHODS)
def test_a_task_without_rows_gets_the_law_of_a_new_one(method) -> None:
    moments = draw(11, 6, 5)
    wide = moments.covering(type(moments.keys)(np.arange(8)))
    posterior = learn(wide, uncertainty=method).posterior
    for law in (posterior.task(7), posterior.task("never seen")):
        np.testing.assert_allclose(law.cov, posterior.new_task().cov, rtol=1e-9)
        np.testing.assert_allclose(law.mean, posterior.new_task().mean, rtol=1e-9)
    with pytest.raises(UnknownTaskError):
        posterior.task("never seen", unseen="error")


@pytest.mark.parametrize("method", METHODS)
def test_a_policy_bounds_by_the_wider_spread(method) -> None:
    moments, phi = draw(12, 6, 5), np.array([0.5, -1.0])
    posterior = learn(moments, uncertainty=method).posterior
    mean, var = posterior.task(2).project(phi)
    found = LCBPolicy(posterior, level=0.975).lower_bound(2, phi)
    assert found == pytest.approx(mean - stats.norm.ppf(0.975) * np.sqrt(var), rel=1e-9)
    if method != "plug-in":
        assert posterior.lower_bound(2, phi, 0.975) == pytest.approx(found, abs=0.5 * np.sqrt(var))


def test_added_rows_refresh_what_was_learned() -> None:
    learned = learn(draw(13, 6, 5))
    more = learned.moments + draw(14, 6, 50)
    fresh = condition_with(more, learned.hierarchy, learned.hyper_uncertainty)
    assert (fresh.task(0).sd < learned.posterior.task(0).sd).all()


# What is chosen, and odd logs


@pytest.mark.slow
def test_few_tasks_are_integrated_and_ten_tasks_do_not_show_that_a_correlation_is_zero() -> None:
    hierarchy = synthetic_hierarchy(0.5)
    _, log = synthetic_run(hierarchy, 10, 100, np.random.default_rng(0))
    learned = learn(Moments.from_arrays(log.task, log.phi, log.reward))
    assert learned.method == "integrated"
    assert learned.estimate.chosen.shape == "diag"
    free = learned.hyper_uncertainty.task_covs[:, 0, 1] != 0
    assert learned.hyper_uncertainty.weights[free].sum() > 0.1
    assert "10 tasks, 11 free parameters" in learned.why
    diagonal = learn(learned.moments, "diag")
    assert (diagonal.hyper_uncertainty.task_covs[:, 0, 1] == 0).all()
    plain = learn(learned.moments, uncertainty="plug-in")
    assert sds(learned).mean() > 1.1 * sds(plain).mean()


@pytest.mark.slow
def test_simpler_covariances_are_averaged_by_their_evidence() -> None:
    """Shares are those of the evidence; half of the draws and more are of the family that the log was drawn from."""
    for cov, simplest in ((np.eye(3), "common"), (np.diag([1.0, 0.01, 4.0]), "diag"), (THREE, "full")):
        moments = draw(18, 100, 10, cov)
        learned = learn(moments)
        evidence = {
            freedom: draw_hierarchies(moments, learned.estimate.hierarchy, (freedom,))[1].log_integral
            for freedom in ("full", "diag", "common")
        }
        assert max(evidence, key=evidence.__getitem__) == simplest
        draws = learned.hyper_uncertainty
        uncorrelated = (draws.task_covs[:, [0, 0, 1], [1, 2, 2]] == 0).all(axis=1)
        assert draws.weights[uncorrelated].sum() == pytest.approx(
            1 / (1 + np.exp(evidence["full"] - np.logaddexp(evidence["diag"], evidence["common"]))), abs=0.01
        )
        assert learned.diagnosis.log_integral == pytest.approx(
            np.logaddexp.reduce(list(evidence.values())) - np.log(3)
        )


def test_shares_of_several_densities_and_their_effective_points() -> None:
    parts = [Diagnosis(100, 50.0, 0.2, 1.0), Diagnosis(300, 200.0, 0.5, 2.0), Diagnosis(9, 1.0, 9.0, -20.0)]
    diagnosis, shares = averaged(parts)
    weights = [np.full(50, 1 / 50), np.full(200, 1 / 200), np.ones(1)]
    together = np.concatenate([share * w for share, w in zip(shares, weights, strict=True)])
    assert shares.sum() == pytest.approx(1)
    assert shares[1] / shares[0] == pytest.approx(np.e)
    assert diagnosis.effective == pytest.approx(1 / (together @ together))
    assert diagnosis.points == 409
    assert diagnosis.tail == 0.5  # that of a density without a share does not count


@pytest.mark.slow
def test_many_parameters_hold_correlations_and_very_many_go_to_first_order() -> None:
    eight = draw(15, 12, 10, np.eye(8))
    learned = learn(eight, "full")
    correlations = [unpack_correlation(cov) for cov in learned.hyper_uncertainty.task_covs]
    assert learned.method == "integrated"
    np.testing.assert_allclose(
        correlations, np.broadcast_to(correlations[0], (len(correlations), 8, 8)), atol=1e-9
    )
    many = draw(16, 12, 30, np.eye(25))
    assert learn(many).method == "first-order"
    with pytest.raises(InputError, match="26 parameters are free"):
        learn(many, uncertainty="integrated")


def test_many_tasks_that_leave_a_variance_open_are_integrated() -> None:
    open_, closed = (draw(17, 400, 4, np.diag([1.0, v])) for v in (0.01, 1.0))
    assert "leaves a variance between tasks uncertain" in learn(open_).why
    assert learn(open_).method == "integrated"
    assert learn(closed).method == "first-order"


def unpack_correlation(cov: np.ndarray) -> np.ndarray:
    sd = np.sqrt(np.diagonal(cov))
    return cov / np.outer(sd, sd)


def test_one_task_teaches_nothing_of_others() -> None:
    with pytest.warns(HieropoWarning, match="one task"):
        learned = learn(draw(0, 1, 10))
    assert learned.method == "plug-in"
    assert learned.hyper_uncertainty is None
    assert [each.name for each in learned.hyper_intervals()] == ["mean[0]", "mean[1]"]


def odd_logs() -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    _, phi, reward = rows(0, 1, 10)
    far = rows(3, 10, 6)
    return {
        "two tasks": rows(0, 2, 10),
        "equal tasks": (np.repeat(np.arange(5), 10), np.tile(phi, (5, 1)), np.tile(reward, 5)),
        "no differences": rows(1, 6, 10, 0 * COV),
        "a singular covariance": rows(2, 20, 8, np.ones((2, 2))),
        "a far intercept": (far[0], np.column_stack([np.ones(60), far[1]]), far[2] + 1e5),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", odd_logs())
@pytest.mark.parametrize("method", ["auto", "first-order"])
def test_odd_logs_give_finite_and_wider_laws(name, method) -> None:
    moments = Moments.from_arrays(*odd_logs()[name])
    learned, plain = learn(moments, uncertainty=method), learn(moments, uncertainty="plug-in")
    assert learned.method == ("integrated" if method == "auto" else method)
    assert sds(learned).mean() > sds(plain).mean()
    for each in learned.hyper_intervals():
        assert np.isfinite(each[1:]).all()
        assert each.lower <= each.estimate <= each.upper


@pytest.mark.slow
@pytest.mark.parametrize(
    ("log", "text", "method"),
    [
        (rows(3, 6, 10, COV, 0.0), "without noise", "integrated"),
        (rows(4, 6, 10, 0 * COV, 0.0), "without noise", "plug-in"),
        ((*rows(5, 6, 10)[:2], np.zeros(60)), "without noise", "plug-in"),
        (rows(6, 20, 1), "Intervals would not hold", "integrated"),
    ],
)
def test_logs_that_hardly_show_the_noise_are_told_and_still_answered(log, text, method) -> None:
    with pytest.warns(HieropoWarning) as caught:
        learned = learn(Moments.from_arrays(*log))
    assert any(text in str(each.message) for each in caught)
    assert learned.method == method
    assert np.isfinite(sds(learned)).all()
    assert bool(learned.hyper_intervals()) == ("Intervals" not in text)
    if text == "without noise" and method == "integrated":
        assert np.ptp(learned.hyper_uncertainty.noise_vars) == 0
        assert (learned.hyper_uncertainty.weights @ learned.hyper_uncertainty.task_covs.reshape(-1, 4))[
            0
        ] > 0.1


def test_bad_draws_are_told(monkeypatch) -> None:
    monkeypatch.setattr(importance, "_ENOUGH", 10**6)
    moments = draw(0, 6, 5)
    with pytest.warns(HieropoWarning, match="first order instead"):
        assert learn(moments).method == "first-order"
    with pytest.warns(HieropoWarning, match="are unreliable: .* may be too wide or too narrow"):
        assert learn(moments, uncertainty="integrated").method == "integrated"


def test_a_tree_that_is_too_large_is_told(monkeypatch) -> None:
    monkeypatch.setattr("hieropo.estimation.hyper.uncertainty._MAX_TREE_TASKS", 5)
    moments = draw(0, 8, 5)
    found = estimate_levels(moments, levels={"region": {s: s % 2 for s in range(8)}})
    with pytest.warns(HieropoWarning, match="variances are taken as known: groups with 8 tasks"):
        assert learn(moments, estimated=found).method == "plug-in"


def test_wrong_words_and_shapes_are_refused() -> None:
    moments = draw(0, 6, 5)
    hierarchy = Hierarchy(None, COV, 0.5)
    with pytest.raises(InputError, match="one of 'auto'"):
        learn(moments, uncertainty="bayes")
    with pytest.raises(InputError, match="kind 'x'"):
        hyper_uncertainty_from_dict({"kind": "x"})
    with pytest.raises(InputError, match=r"add to 0\.9"):
        HyperDraws(np.array([0.4, 0.5]), np.array([COV, COV]), np.ones(2), np.zeros((2, 0, 2, 2)))
    with pytest.raises(InputError, match="do not fit"):
        HyperDraws(np.array([1.0]), np.array([COV, COV]), np.ones(1), np.zeros((1, 0, 2, 2)))
    with pytest.raises(InputError, match=r"\(3, 3\)"):
        HyperError(2, np.eye(5), 3)
    with pytest.raises(MismatchError, match="levels"):
        mix(moments, hierarchy, HyperDraws(np.ones(1), COV[None], np.ones(1), np.zeros((1, 1, 2, 2))))
    with pytest.raises(MismatchError, match="3 features"):
        correct(moments, hierarchy, HyperError(3, np.eye(3), 3))
    with pytest.raises(InputError, match="is not a probability"):
        learn(moments).hyper_intervals(1.0)
    with pytest.raises(InputError, match="is not a probability"):
        learn(moments).posterior.lower_bound(0, [1.0, 0.0], 0.0)


@pytest.mark.slow
def test_intervals_hold_as_often_as_they_say_where_those_of_a_plug_in_do_not() -> None:
    """80 worlds of 12 tasks, nothing known: 95 % intervals of theta."""
    covered: dict[str, list[float]] = {"auto": [], "plug-in": []}
    for world in range(80):
        task, phi, reward = rows(1000 + world, 12, 6, COV)
        rng = np.random.default_rng(1000 + world)
        theta = np.arange(1.0, 3) + rng.multivariate_normal(np.zeros(2), COV, size=12)  # as drawn in rows
        moments = Moments.from_arrays(task, phi, reward)
        estimated = estimate(moments)
        for method, shares in covered.items():
            learned = learn(moments, uncertainty=method, estimated=estimated)
            away = np.abs(theta - learned.posterior.table().means)
            shares.append(float((away < 1.96 * sds(learned)).mean()))
    assert 0.935 <= np.mean(covered["auto"]) <= 0.985
    assert np.mean(covered["plug-in"]) < np.mean(covered["auto"])
