"""The crossed prior with a mixture of spreads: against the enumeration of all scales, and against one spread."""

from dataclasses import replace

import numpy as np
import pytest
from reference.labels import Array, Enumerated
from reference.spreads import SpreadsProblem, enumerated

from hieropo._utils.packed import packed_size
from hieropo.errors import InputError, NumericalError
from hieropo.evaluation.by_posterior.value_distributions import total, value_distributions
from hieropo.model.attribution import attribution, without_tasks
from hieropo.model.crossed.described import condition_units
from hieropo.model.crossed.hierarchy import CrossedHierarchy, Spreads
from hieropo.model.crossed.posterior import condition_crossed
from hieropo.model.crossed.spreads import SpreadPosterior
from hieropo.model.metadata import Metadata
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Keys


def problem(m: int = 5, K: int = 3, p: int = 1, n: int = 60, seed: int = 0) -> SpreadsProblem:
    """Rows of few tasks, of which some have no or large interactions."""
    rng = np.random.default_rng(seed)
    scales, weights = np.array([0.0, 1.0, 5.0]), np.array([0.2, 0.6, 0.2])
    task, action = rng.integers(0, m, n), rng.integers(0, K, n)
    x = np.column_stack([np.ones(n), rng.standard_normal((n, p - 1))])
    theta = (
        rng.standard_normal(p) + 0.3 * rng.standard_normal((1, K, p)) + 0.5 * rng.standard_normal((m, 1, p))
    )
    theta = theta + 0.3 * rng.choice(scales, (m, 1, 1), p=weights) * rng.standard_normal((m, K, p))
    reward = np.einsum("np,np->n", x, theta[task, action]) + rng.standard_normal(n)
    eye = np.eye(p)
    noise = np.linspace(0.8, 1.2, K)
    return SpreadsProblem(
        task, action, x, reward, 0.09 * eye, 0.25 * eye, 0.09 * eye, noise, scales, weights, m
    )


def moments_of(log: SpreadsProblem) -> Moments:
    m, K, p = log.n_tasks, len(log.noise_var), log.x.shape[1]
    some = Moments.from_arrays(log.task * K + log.action, log.x, log.reward)
    sums, rows = np.zeros((m * K, packed_size(p + 2))), np.zeros(m * K)
    sums[some.tasks.astype(int)], rows[some.tasks.astype(int)] = some.sums, some.rows
    return Moments(Keys(np.arange(m)), p, sums.reshape(m, K, -1), rows.reshape(m, K), np.zeros((m, K)))


def hierarchy_of(log: SpreadsProblem) -> CrossedHierarchy:
    return CrossedHierarchy(
        log.action_cov,
        log.level_cov,
        log.interaction_cov,
        log.noise_var,
        spreads=Spreads(log.scales, log.weights),
    )


def posterior_of(log: SpreadsProblem) -> SpreadPosterior:
    posterior = condition_units(moments_of(log), hierarchy_of(log))
    assert isinstance(posterior, SpreadPosterior)
    return posterior


def sds(truth: Enumerated) -> Array:
    return np.sqrt(np.einsum("sisi->si", truth.cov))


@pytest.mark.parametrize(("m", "K", "p", "n", "seed"), [(4, 3, 1, 40, 0), (5, 3, 1, 60, 1), (5, 2, 2, 80, 2)])
def test_it_agrees_with_the_enumeration_of_all_scales(m: int, K: int, p: int, n: int, seed: int) -> None:
    log = problem(m, K, p, n, seed)
    truth, posterior = enumerated(log), posterior_of(log)
    sd = sds(truth)
    assert posterior.log_evidence == pytest.approx(truth.log_evidence, abs=0.01)
    np.testing.assert_allclose(posterior.responsibilities[:m], truth.responsibilities, atol=5e-3)
    means, covs = posterior.joint(np.arange(m))
    np.testing.assert_allclose((means - truth.mean) / sd, 0, atol=5e-3)
    np.testing.assert_allclose(np.sqrt(np.einsum("sii->si", covs)) / sd, 1, atol=0.02)
    table = posterior.table()
    np.testing.assert_allclose(table.means.reshape(m, -1), means, atol=1e-10)


def test_sums_over_tasks_and_probabilities_of_harm_are_those_of_the_enumeration() -> None:
    log = problem(5, 3, 1, 60, 3)
    truth, posterior = enumerated(log), posterior_of(log)
    vectors = np.random.default_rng(1).standard_normal((2, 5, 3))
    vectors -= vectors.mean(axis=2, keepdims=True)
    fleet = total(posterior, vectors)
    flat = vectors.reshape(2, -1)
    cov = flat @ truth.cov.reshape(15, 15) @ flat.T
    sd = np.sqrt(np.diagonal(cov))
    np.testing.assert_allclose((fleet.means[0] - flat @ truth.mean.ravel()) / sd, 0, atol=0.02)
    np.testing.assert_allclose(np.sqrt(np.diagonal(fleet.covs[0])) / sd, 1, atol=0.1)  # of five tasks
    values = value_distributions(posterior, vectors)
    from scipy.special import ndtr

    means = np.einsum("jsi,ksi->kjs", truth.means, vectors)
    variances = np.einsum("ksi,jsisl,ksl->kjs", vectors, truth.covs, vectors)
    below = np.einsum("j,kjs->ks", truth.weights, ndtr(-means / np.sqrt(variances)))
    np.testing.assert_allclose(values.below, below, atol=5e-3)
    single = ndtr(-values.mean / values.sd)
    assert np.abs(single - below).max() > 0.02  # the mixture is no Gaussian of its mean and sd


@pytest.mark.parametrize(("m", "p", "n", "seed"), [(6, 1, 90, 2), (6, 1, 90, 9), (5, 2, 80, 2)])
def test_shares_of_tasks_are_those_of_the_enumeration_and_add_to_the_mean(
    m: int, p: int, n: int, seed: int
) -> None:
    log = problem(m, 3, p, n, seed)
    truth, posterior = enumerated(log), posterior_of(log)
    d = posterior.dim
    scores = posterior.moments.scores(slice(0, m), np.zeros(d), posterior.noise_variances)
    shares = np.einsum("sizj,zj->siz", np.tensordot(truth.weights, truth.covs, 1), scores)
    np.testing.assert_allclose(shares.sum(axis=2), truth.mean, atol=1e-10)  # the law of total expectation
    split = [attribution(posterior, s, np.eye(d)) for s in range(m)]
    got = np.stack([one.tasks for one in split])
    np.testing.assert_allclose((got - shares) / sds(truth)[:, :, None], 0, atol=0.02)
    np.testing.assert_allclose(got.sum(axis=2), np.stack([one.means for one in split]), atol=1e-7)
    assert not any(one.prior.any() for one in split)
    means, covs = without_tasks(posterior, 2, np.eye(d), np.array([2, 4]))
    assert np.isfinite(means).all()
    assert (np.einsum("njj->nj", covs) > 0).all()


def test_covariances_given_the_scales_are_those_of_the_enumeration_in_every_view() -> None:
    log = problem(6, 3, 1, 90, 9)
    truth, given = enumerated(log), posterior_of(log).central()
    covs = np.tensordot(truth.weights, truth.covs, 1)
    rows, units = np.arange(6), np.eye(3)
    own = given.joint(rows)[1]
    np.testing.assert_allclose(
        np.sqrt(np.einsum("sii->si", own)), np.sqrt(np.einsum("sisi->si", covs)), rtol=0.01
    )
    _, within, shared = given.along(np.tile(units, (6, 1, 1)), slice(0, 6))
    np.testing.assert_allclose(within + shared @ shared.swapaxes(1, 2), own, atol=1e-12)
    across = np.stack([given.across(s, units, np.tile(units, (6, 1, 1)), slice(0, 6)) for s in range(6)])
    np.testing.assert_allclose(across, across.transpose(2, 3, 0, 1), atol=1e-12)
    assert np.linalg.eigvalsh(across.reshape(18, 18))[0] > 0
    np.testing.assert_allclose(given.joint(np.array([-1]))[0], posterior_of(log).joint(np.array([-1]))[0])


@pytest.mark.parametrize("p", [1, 2])
def test_one_spread_is_the_prior_without_a_mixture(p: int) -> None:
    log = problem(6, 3, p, 90, 4)
    one = replace(log, scales=np.array([0.0, 1.0, 5.0]), weights=np.array([0.0, 1.0, 0.0]))
    posterior = posterior_of(one)
    plain = condition_crossed(moments_of(log), replace(hierarchy_of(log), spreads=None))
    assert posterior.log_evidence == pytest.approx(plain.log_evidence, abs=1e-8)
    vectors = np.random.default_rng(2).standard_normal((2, 6, 3 * p))
    for got, expected in (
        (posterior.table().means, plain.table().means),
        (posterior.table().covs, plain.table().covs),
        (posterior.total(vectors), plain.total(vectors)),
        (posterior.new_task().cov, plain.new_task().cov),
        (posterior.action(1).cov, plain.action(1).cov),
        (posterior.hyper.cov, plain.hyper.cov),
    ):
        for first, second in zip(got, expected, strict=True):
            np.testing.assert_allclose(first, second, rtol=1e-7, atol=1e-8)


def test_a_new_task_has_the_mixture_of_the_prior() -> None:
    log = problem(6, 3, 1, 90, 5)
    posterior = posterior_of(log)
    more = np.diagonal(posterior.new_task().cov) - [posterior.action(a).cov[0, 0] for a in range(3)]
    np.testing.assert_allclose(more, 0.25 + 0.09 * Spreads(log.scales, log.weights).mean_square)
    assert posterior.responsibilities[-1].tolist() == log.weights.tolist()


def test_the_order_of_the_tasks_does_not_matter() -> None:
    log = problem(6, 3, 1, 90, 6)
    order = np.random.default_rng(0).permutation(6)
    turned = replace(log, task=order[log.task])
    first, second = posterior_of(log), posterior_of(turned)
    np.testing.assert_allclose(second.table().means[order], first.table().means, atol=1e-8)
    np.testing.assert_allclose(second.responsibilities[order], first.responsibilities[:6], atol=1e-8)


def test_differences_are_zero_where_actions_have_no_effect() -> None:
    log = replace(problem(6, 3, 1, 90, 7), action_cov=np.zeros((1, 1)))
    none = replace(log, scales=np.zeros(2), weights=np.array([0.5, 0.5]))
    values = value_distributions(posterior_of(none), np.tile([1.0, -1.0, 0.0], (6, 1)))
    np.testing.assert_array_equal(values.mean, 0)
    np.testing.assert_array_equal(values.sd, 0)


def test_one_task_alone_is_refused_or_has_the_probabilities_of_the_enumeration() -> None:
    log = problem(1, 3, 1, 30, 8)
    truth = enumerated(log)
    try:
        posterior = posterior_of(log)
    except NumericalError:
        return
    np.testing.assert_allclose(posterior.responsibilities[:1], truth.responsibilities, atol=0.02)


@pytest.mark.parametrize(
    ("scales", "weights", "words"),
    [
        ([1.0], [0.5, 0.5], "shapes"),
        ([-1.0, 1.0], [0.5, 0.5], "scales"),
        ([np.nan, 1.0], [0.5, 0.5], "scales"),
        ([0.0, 1.0], [0.5, 0.6], "weights"),
        ([], [], "shapes"),
    ],
)
def test_spreads_that_are_none_are_refused(scales: list[float], weights: list[float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Spreads(np.array(scales), np.array(weights))


def test_spreads_do_not_go_with_metadata() -> None:
    hierarchy = hierarchy_of(problem())
    with pytest.raises(InputError, match="metadata"):
        replace(hierarchy, metadata=Metadata(Keys(np.arange(5)), np.arange(5.0)[:, None], ("z",)))


def test_a_hierarchy_with_spreads_is_stored_to_the_last_bit() -> None:
    hierarchy = hierarchy_of(problem())
    again = CrossedHierarchy.from_dict(hierarchy.to_dict())
    assert again.spreads is not None
    assert again.to_dict() == hierarchy.to_dict()
