"""The crossed prior with kinds of tasks: against the enumeration of all kinds, and against one kind."""

from dataclasses import replace
from math import factorial

import numpy as np
import pytest
from reference.kinds import KindsProblem, enumerated
from reference.labels import Array, Enumerated

from hieropo._utils.packed import packed_size
from hieropo.errors import InputError, MismatchError
from hieropo.evaluation.by_posterior.value_distributions import total, value_distributions
from hieropo.model.attribution import attribution
from hieropo.model.crossed.described import condition_units
from hieropo.model.crossed.hierarchy import CrossedHierarchy, Kinds, Spreads
from hieropo.model.crossed.kinds import KindPosterior, flat_prior, kinds_basis, terms_of_kinds
from hieropo.model.crossed.labels import LabelPosterior
from hieropo.model.crossed.posterior import CrossedPosterior, condition_crossed
from hieropo.model.crossed.propagation import Factors, TaskTerms, propagate
from hieropo.model.crossed.spreads import SpreadPosterior
from hieropo.model.crossed.steps import ObservedUnits
from hieropo.model.gaussian import Gaussian
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Keys

CENTRES = np.array([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.5]])


def problem(m: int = 6, p: int = 1, n: int = 150, seed: int = 0, size: float = 1.0) -> KindsProblem:
    """Rows of few tasks of two kinds and three actions."""
    rng = np.random.default_rng(seed)
    task, action = rng.integers(0, m, n), rng.integers(0, 3, n)
    x = np.column_stack([np.ones(n), rng.standard_normal((n, p - 1))])
    effects = np.zeros((m, 3, p))
    effects[:, :, 0] = size * CENTRES[np.arange(m) % 2]
    theta = effects + 0.5 * rng.standard_normal((m, 1, p)) + 0.2 * rng.standard_normal((m, 3, p))
    reward = np.einsum("np,np->n", x, theta[task, action]) + rng.standard_normal(n)
    eye = np.eye(p)
    noise = np.linspace(0.8, 1.2, 3)
    return KindsProblem(
        task, action, x, reward, 0.09 * eye, 0.25 * eye, 0.04 * eye, 0.5 * eye, noise, np.array([0.5, 0.5]), m
    )


def moments_of(log: KindsProblem) -> Moments:
    m, K, p = log.n_tasks, len(log.noise_var), log.x.shape[1]
    some = Moments.from_arrays(log.task * K + log.action, log.x, log.reward)
    sums, rows = np.zeros((m * K, packed_size(p + 2))), np.zeros(m * K)
    sums[some.tasks.astype(int)], rows[some.tasks.astype(int)] = some.sums, some.rows
    return Moments(Keys(np.arange(m)), p, sums.reshape(m, K, -1), rows.reshape(m, K), np.zeros((m, K)))


def hierarchy_of(log: KindsProblem) -> CrossedHierarchy:
    n, p = len(log.weights), log.x.shape[1]
    centres = np.zeros((n, 3, p))
    centres[:, :, 0] = np.vstack([CENTRES, np.zeros((max(n - 2, 0), 3))])[:n]
    kinds = Kinds(log.weights, log.effect_cov, centres)
    return CrossedHierarchy(log.action_cov, log.level_cov, log.interaction_cov, log.noise_var, kinds=kinds)


def posterior_of(log: KindsProblem) -> KindPosterior:
    posterior = condition_units(moments_of(log), hierarchy_of(log))
    assert isinstance(posterior, KindPosterior)
    return posterior


def sds(truth: Enumerated) -> Array:
    return np.sqrt(np.einsum("sisi->si", truth.cov))


@pytest.mark.parametrize(("m", "p", "n", "seed"), [(6, 1, 150, 0), (5, 2, 150, 1), (6, 1, 90, 2)])
def test_it_agrees_with_the_enumeration_of_all_kinds(m: int, p: int, n: int, seed: int) -> None:
    log = problem(m, p, n, seed)
    truth, posterior = enumerated(log), posterior_of(log)
    sd = sds(truth)
    orders = factorial(len(log.weights))  # each a mode of the same weight
    assert posterior.log_evidence + np.log(orders) == pytest.approx(truth.log_evidence, abs=0.05)
    share = posterior.responsibilities[:m]
    np.testing.assert_allclose(
        (share @ share.T)[~np.eye(m, dtype=bool)], truth.alike[~np.eye(m, dtype=bool)], atol=0.02
    )
    means, covs = posterior.joint(np.arange(m))
    np.testing.assert_allclose((means - truth.mean) / sd, 0, atol=0.02)
    np.testing.assert_allclose(np.sqrt(np.einsum("sii->si", covs)) / sd, 1, atol=0.03)
    table = posterior.table()
    np.testing.assert_allclose(table.means.reshape(m, -1), means, atol=1e-10)


def test_sums_over_tasks_and_probabilities_of_harm_are_those_of_the_enumeration() -> None:
    log = problem(6, 1, 100, 3, size=0.7)
    truth, posterior = enumerated(log), posterior_of(log)
    vectors = np.random.default_rng(1).standard_normal((2, 6, 3))
    vectors -= vectors.mean(axis=2, keepdims=True)
    fleet = total(posterior, vectors)
    flat = vectors.reshape(2, -1)
    sd = np.sqrt(np.diagonal(flat @ truth.cov.reshape(18, 18) @ flat.T))
    np.testing.assert_allclose((fleet.means[0] - flat @ truth.mean.ravel()) / sd, 0, atol=0.1)
    np.testing.assert_allclose(np.sqrt(np.diagonal(fleet.covs[0])) / sd, 1, atol=0.15)
    values = value_distributions(posterior, vectors)
    from scipy.special import ndtr

    means = np.einsum("jsi,ksi->kjs", truth.means, vectors)
    variances = np.einsum("ksi,jsisl,ksl->kjs", vectors, truth.covs, vectors)
    below = np.einsum("j,kjs->ks", truth.weights, ndtr(-means / np.sqrt(variances)))
    np.testing.assert_allclose(values.below, below, atol=0.03)


def test_shares_of_tasks_are_those_of_the_enumeration_and_add_to_the_mean() -> None:
    log = problem(seed=2)
    truth, posterior = enumerated(log), posterior_of(log)
    m, d = log.n_tasks, posterior.dim
    scores = posterior.moments.scores(slice(0, m), np.zeros(d), posterior.noise_variances)
    shares = np.einsum("sizj,zj->siz", np.tensordot(truth.weights, truth.covs, 1), scores)
    for s in range(m):
        split = attribution(posterior, s, np.eye(d))
        np.testing.assert_allclose((split.tasks - shares[s]) / sds(truth)[s][:, None], 0, atol=1e-4)
        np.testing.assert_allclose(split.tasks.sum(axis=1), split.means, atol=1e-7)
        assert not split.prior.any()


@pytest.mark.parametrize("p", [1, 2])
def test_one_kind_is_the_prior_without_kinds(p: int) -> None:
    log = problem(6, p, 120, 4)
    one = replace(hierarchy_of(log), kinds=Kinds(np.ones(1), log.effect_cov, np.zeros((1, 3, p))))
    posterior = condition_units(moments_of(log), one)
    plain = condition_crossed(
        moments_of(log), replace(one, kinds=None, action_cov=log.action_cov + log.effect_cov)
    )
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
            np.testing.assert_allclose(first, second, rtol=1e-6, atol=1e-7)


def test_a_new_task_is_the_mixture_of_the_kinds() -> None:
    log = replace(problem(6, 1, 300, 5), weights=np.array([0.25, 0.75]))
    posterior = posterior_of(log)
    law, effects = posterior.new_task(), posterior.effects()[:, :, 0]
    np.testing.assert_allclose(law.mean, log.weights @ effects, atol=1e-9)
    between = (log.weights * (effects - law.mean[None]).T) @ (effects - law.mean[None])
    assert (np.diagonal(law.cov) > np.diagonal(between) + 0.25 + 0.04).all()
    assert posterior.responsibilities[-1].tolist() == log.weights.tolist()


def test_the_order_of_the_tasks_does_not_matter() -> None:
    log = problem(6, 1, 120, 6)
    order = np.random.default_rng(0).permutation(6)
    turned = replace(log, task=order[log.task])
    first, second = posterior_of(log), posterior_of(turned)
    np.testing.assert_allclose(second.table().means[order], first.table().means, atol=1e-7)
    np.testing.assert_allclose(second.responsibilities[order], first.responsibilities[:6], atol=1e-7)


def test_many_rounds_do_not_make_the_factors_grow() -> None:
    """Rounding left factors that are not symmetric; what is not grew t-fold in every round."""
    log = problem(6, 1, 120, 7)
    tasks = np.concatenate([log.task + 6 * k for k in range(10)])
    more = np.tile(log.action, 10), np.tile(log.x, (10, 1)), np.tile(log.reward, 10)
    log = replace(log, task=tasks, action=more[0], x=more[1], reward=more[2], n_tasks=60)
    units = ObservedUnits.of(moments_of(log), log.noise_var)
    about = TaskTerms.of(units, log.interaction_cov, log.level_cov, np.eye(3), np.ones(1))
    basis = kinds_basis(log.action_cov, log.effect_cov, 2, 3)
    terms, share = terms_of_kinds(about, basis), np.tile(np.eye(2), (30, 1))
    start = Factors.averaged(terms, share)
    law, factors = propagate(terms, log.weights, flat_prior(basis), start, close=0.0, rounds=60)
    assert not law.converged
    assert np.abs(factors.precision - factors.precision.swapaxes(1, 2)).max() == 0
    assert np.abs(factors.precision).max() < 1e3


@pytest.mark.parametrize(
    ("weights", "centres", "words"),
    [
        ([1.0], np.zeros((2, 3, 1)), "shape"),
        ([0.5, 0.6], np.zeros((2, 3, 1)), "weights"),
        ([0.5, 0.5], np.full((2, 3, 1), np.nan), "centres"),
        ([0.5, 0.5], np.zeros((2, 3, 2)), "shape"),
        ([], np.zeros((0, 3, 1)), "shape"),
    ],
)
def test_kinds_that_are_none_are_refused(weights: list[float], centres: Array, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Kinds(np.array(weights), np.eye(1), centres)


def test_kinds_do_not_go_with_spreads_nor_with_other_actions() -> None:
    hierarchy = hierarchy_of(problem())
    with pytest.raises(InputError, match="spreads"):
        replace(hierarchy, spreads=Spreads(np.ones(1), np.ones(1)))
    with pytest.raises(MismatchError, match="centres"):
        replace(hierarchy, kinds=Kinds(np.ones(1), np.eye(1), np.zeros((1, 4, 1))))


def test_a_hierarchy_with_kinds_is_stored_to_the_last_bit() -> None:
    hierarchy = hierarchy_of(problem())
    again = CrossedHierarchy.from_dict(hierarchy.to_dict())
    assert again.kinds is not None
    assert again.to_dict() == hierarchy.to_dict()


OF_ONE_LABEL = {  # what describes one Gaussian of all coefficients
    "arrays", "parent_messages", "parents", "prior_arrays", "second_moments", "square",
}  # fmt: skip


def hierarchies() -> tuple[Moments, dict[type, CrossedHierarchy]]:
    """Hierarchies with kinds and with spreads for one log, in which the last action has no rows."""
    log = problem(6, 2, 200)
    seen = log.action < 2
    log = replace(log, task=log.task[seen], action=log.action[seen], x=log.x[seen], reward=log.reward[seen])
    kinds = hierarchy_of(log)
    spreads = replace(kinds, kinds=None, spreads=Spreads(np.array([0.5, 1.5]), np.array([0.6, 0.4])))
    return moments_of(log), {KindPosterior: kinds, SpreadPosterior: spreads}


def with_labels(of: type) -> LabelPosterior:
    moments, some = hierarchies()
    posterior = condition_units(moments, some[of])
    assert isinstance(posterior, of)
    return posterior


def views(of: type) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


@pytest.mark.parametrize("of", [KindPosterior, SpreadPosterior])
def test_they_have_all_views(of: type) -> None:
    assert views(CrossedPosterior) - views(of) - OF_ONE_LABEL <= (
        {"effects"} if of is SpreadPosterior else set()
    )


def assert_same(one: Gaussian, other: Gaussian) -> None:
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-7)
    np.testing.assert_allclose(one.cov, other.cov, atol=1e-7)


@pytest.mark.parametrize("of", [KindPosterior, SpreadPosterior])
def test_a_new_action_is_one_without_rows(of: type) -> None:
    posterior = with_labels(of)
    assert_same(posterior.new_action(), posterior.action(2))
    for task in range(6):
        assert_same(posterior.unit_new_action(task), posterior.unit(task, 2))
    assert_same(posterior.unit_new_action("new", unseen="prior"), posterior.unit("new", 2, unseen="prior"))


@pytest.mark.parametrize("of", [KindPosterior, SpreadPosterior])
def test_differences_and_covariances_between_tasks_are_those_of_joint_laws(of: type) -> None:
    posterior = with_labels(of)
    law, contrast = posterior.task(1), np.kron([1.0, -1.0, 0.0], np.eye(2))
    assert_same(
        posterior.difference(1, 0, 1), Gaussian.trusted(contrast @ law.mean, contrast @ law.cov @ contrast.T)
    )
    np.testing.assert_array_equal(posterior.cov_between(1, 1), law.cov)
    both = np.zeros((6, 6, 6))  # (coefficients, tasks, coefficients) of the sum of two tasks
    both[:, [1, 4]] = np.eye(6)[:, None]
    between = posterior.cov_between(1, 4)
    expected = law.cov + posterior.task(4).cov + between + between.T
    np.testing.assert_allclose(posterior.total(both)[1], expected, atol=1e-9)
