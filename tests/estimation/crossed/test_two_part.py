"""Two-part likelihoods: sums of both parts, their posterior, and its sum, beside slow truth."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from unit_logs import Log

from hieropo.errors import InputError
from hieropo.estimation.crossed.two_part import (
    TwoPart,
    TwoPartHierarchies,
    TwoPartPosterior,
    integrate_two_part,
)
from hieropo.evaluation.by_posterior.value_distributions import total
from hieropo.features.maps import per_action
from hieropo.moments.statistics import Moments

ACTIONS = ["a", "b", "c"]


def a_log(seed: int = 0, *, tasks: int = 8, rows: int = 40, columns: int = 0, share: float = 0.3) -> Log:
    """Draw a log of zeros and lognormal amounts with effects of actions on both parts."""
    rng = np.random.default_rng([1604, seed])
    n = tasks * rows
    task, action = np.repeat(np.arange(tasks), rows), rng.integers(0, 3, n)
    effect = 0.4 * rng.standard_normal((2, 1, 3)) + 0.4 * rng.standard_normal((2, tasks, 1))
    paid = rng.random(n) < share * np.exp(np.minimum(effect[0][task, action], 0.8))
    amount = np.exp(2.0 + effect[1][task, action] + rng.standard_normal(n))
    context = rng.standard_normal((n, columns))
    features = per_action(ACTIONS, [f"x{j}" for j in range(columns)])
    return Log(features, task, action, context, np.where(paid, amount, 0.0), np.ones(n))


def summed(log: Log) -> Moments:
    """Return the moments of a log with those of its positive rewards, summed row by row."""
    paid = log.where(log.reward > 0)
    positive = replace(paid, reward=np.log(paid.reward)).units().covering(log.units().keys)
    moments = log.units()
    positive = positive.at(positive.keys.locate(moments.keys.values))
    return moments.with_positive(positive.sums, positive.rows)


@pytest.fixture(scope="module")
def moments() -> Moments:
    return summed(a_log())


@pytest.fixture(scope="module")
def posterior(moments: Moments) -> TwoPartPosterior:
    return TwoPartPosterior(moments, integrate_two_part(moments))


class TestSums:
    @pytest.mark.parametrize("columns", [0, 2])
    def test_are_those_of_pseudo_rewards_row_by_row(self, columns: int) -> None:
        log = a_log(columns=columns)
        moments, paid = summed(log), log.reward > 0
        scale = TwoPart.of(moments)
        logs = np.log(np.where(paid, log.reward, 1.0))
        assert scale == pytest.approx((paid.mean(), logs[paid].mean(), log.reward.mean()))
        conversion = scale.mean * (paid - scale.share) / scale.share
        amounts = scale.mean * (1.0 + logs - scale.log_mean)
        assert scale.conversion(moments).allclose(replace(log, reward=conversion).units(), rtol=1e-11)
        of_paid = replace(log, reward=amounts).where(paid).units().covering(moments.keys)
        assert scale.amounts(moments).allclose(of_paid, rtol=1e-11)

    def test_do_not_depend_on_the_offset_of_rewards(self, moments: Moments) -> None:
        moved = moments.around(np.full(3, 1.5))
        for name in ("conversion", "amounts"):
            sums = (getattr(TwoPart.of(some), name)(some) for some in (moments, moved))
            first, second = sums
            assert first.allclose(second, rtol=1e-9)

    def test_add_and_subtract(self) -> None:
        log = a_log()
        parts = [log.where(np.arange(len(log.task)) % 3 == k) for k in range(3)]
        whole, some = summed(log), [summed(part) for part in parts]
        added = some[0] + some[1] + some[2]
        assert added.positive is not None
        assert whole.positive is not None
        assert added.positive.allclose(whole.positive, rtol=1e-11)
        left = whole - some[1]
        assert left.positive is not None
        assert left.positive.allclose((some[0] + some[2]).positive, rtol=1e-9)  # type: ignore[arg-type]

    def test_too_few_amounts_are_refused(self) -> None:
        log = a_log(tasks=2, rows=5)
        with pytest.raises(InputError, match=r"of 10 rewards are above 0.*at least 20 above 0"):
            TwoPart.of(summed(log))
        with pytest.raises(InputError, match=r"320 of 320 rewards are above 0"):
            TwoPart.of(summed(replace(a_log(), reward=np.ones(320))))

    def test_moments_without_them_are_refused(self, posterior: TwoPartPosterior, moments: Moments) -> None:
        with pytest.raises(InputError, match="do not say which rewards are 0"):
            TwoPartPosterior(replace(moments, positive=None), posterior.hierarchy)


def dense(moments: Moments, hierarchy: Any) -> tuple[np.ndarray, np.ndarray]:
    """Means and covariance of all theta_sa, p = 1, by one dense system; beta has a variance far above all others."""
    m, K = moments.rows.shape
    task, action = np.divmod(np.arange(m * K), K)
    prior = 1e5 * float(hierarchy.noise_var.max()) + np.zeros((m * K, m * K))
    prior += float(hierarchy.action_cov[0, 0]) * (action[:, None] == action)
    prior += float(hierarchy.level_cov[0, 0]) * (task[:, None] == task)
    prior += float(hierarchy.interaction_cov[0, 0]) * np.eye(m * K)
    noise = np.tile(hierarchy.noise_var, m)
    gram, cross = moments.unit_sums[:, 0] / noise, moments.unit_sums[:, 1] / noise
    inside = np.linalg.solve(np.eye(m * K) + gram[:, None] * prior, np.column_stack([cross, np.eye(m * K)]))
    return prior @ inside[:, 0], prior @ inside[:, 1:]


class TestPosterior:
    def test_under_a_pair_of_hierarchies_is_the_sum_of_two_dense_ones(
        self, posterior: TwoPartPosterior, moments: Moments
    ) -> None:
        node = int(posterior.weights.argmax())
        part = list(posterior.parts())[node]
        first, second = (list(member.parts()) for member in (posterior.conversion, posterior.amounts))
        i, j = posterior.hierarchy.pairs[node]
        scale = posterior.hierarchy.scale
        truth = [
            dense(scale.conversion(moments), first[i].hierarchy),
            dense(scale.amounts(moments), second[j].hierarchy),
        ]
        mean, cov = truth[0][0] + truth[1][0], truth[0][1] + truth[1][1]
        np.testing.assert_allclose(part.table().means.reshape(-1), mean, rtol=1e-3, atol=1e-4 * scale.mean)
        np.testing.assert_allclose(part.table().covs.reshape(-1), np.diagonal(cov), rtol=1e-3)
        _, joint = part.joint(np.array([2]))
        np.testing.assert_allclose(
            joint[0], cov[6:9, 6:9], rtol=1e-3, atol=1e-4 * float(np.diagonal(cov).max())
        )
        vectors = np.random.default_rng(0).standard_normal((2, len(moments), 3))
        vectors[1] -= vectors[1].mean(axis=1, keepdims=True)
        fleet_mean, fleet_cov = part.total(vectors)
        flat = vectors.reshape(2, -1)
        np.testing.assert_allclose(fleet_mean, flat @ mean, rtol=1e-3, atol=1e-3 * scale.mean)
        np.testing.assert_allclose(
            fleet_cov, flat @ cov @ flat.T, rtol=2e-3, atol=1e-3 * np.diagonal(cov).max()
        )
        projected, variance = part.project(
            np.ascontiguousarray(vectors.swapaxes(0, 1)), slice(0, len(moments))
        )
        np.testing.assert_allclose(projected.sum(axis=0), fleet_mean, rtol=1e-9)
        assert (variance > 0).all()

    def test_pairs_mix_to_the_sum_of_both_parts(self, posterior: TwoPartPosterior) -> None:
        table = posterior.table()
        for got, parts in (
            (table.means, [part.table().means for part in (posterior.conversion, posterior.amounts)]),
            (table.covs, [part.table().covs for part in (posterior.conversion, posterior.amounts)]),
        ):
            np.testing.assert_allclose(got, parts[0] + parts[1], rtol=1e-12)
        laws = [(part.table().means, part.table().covs) for part in posterior.parts()]
        mean = sum(weight * law[0] for weight, law in zip(posterior.weights, laws, strict=True))
        second = sum(
            weight * (law[1] + (law[0] - mean) ** 2)
            for weight, law in zip(posterior.weights, laws, strict=True)
        )
        np.testing.assert_allclose(mean, table.means, rtol=1e-10)
        np.testing.assert_allclose(second, table.covs, rtol=0.05)

    def test_effects_of_both_parts_are_independent(self, posterior: TwoPartPosterior) -> None:
        both = posterior.hierarchy
        assert both.no_effect == pytest.approx(both.conversion.no_effect * both.amounts.no_effect, rel=1e-6)
        assert both.weights.sum() == pytest.approx(1.0)
        difference = np.zeros((1, len(posterior.moments), 3))
        difference[0, :, 0], difference[0, :, 1] = 1.0, -1.0
        law = total(posterior, difference)
        exactly = law.weights[(law.means[:, 0] == 0.0) & (law.covs[:, 0, 0] == 0.0)].sum()
        assert exactly == pytest.approx(both.no_effect, rel=1e-6)

    def test_the_central_hierarchy_has_the_noise_of_a_row(self, posterior: TwoPartPosterior) -> None:
        both = posterior.hierarchy
        parts = both.conversion.central().noise_var.mean(), both.amounts.central().noise_var.mean()
        assert both.central().noise_var.mean() == pytest.approx(
            parts[0] + parts[1] / both.scale.share, rel=0.02
        )
        assert posterior.central().table().means.shape == posterior.table().means.shape
        parts = posterior.conversion.central().log_evidence, posterior.amounts.central().log_evidence
        assert posterior.central().log_evidence == pytest.approx(sum(parts))

    def test_json_makes_the_same_hierarchies(self, posterior: TwoPartPosterior, moments: Moments) -> None:
        again = TwoPartHierarchies.from_dict(posterior.hierarchy.to_dict())
        np.testing.assert_array_equal(TwoPartPosterior(moments, again).table().means, posterior.table().means)
        assert again.weights.tolist() == posterior.hierarchy.weights.tolist()

    def test_tasks_without_amounts_or_rows_have_their_prior(self) -> None:
        log = a_log()
        log = replace(log, reward=np.where(log.task == 3, 0.0, log.reward))
        some = summed(log)
        posterior = TwoPartPosterior(some, integrate_two_part(some))
        row = some.keys.find(3)
        amounts, prior = posterior.amounts.table(), posterior.amounts.new_task()
        np.testing.assert_allclose(amounts.means[row].reshape(-1), prior.mean, rtol=1e-9)
        assert posterior.conversion.table().means[row].mean() < posterior.conversion.new_task().mean.mean()


def slice_samples(log: Log, hierarchy: Any, scale: TwoPart, draws: int) -> np.ndarray:
    """Draw theta^c_sa (draws, m K) by elliptical slices: Bernoulli rows whose probability is P (1 + theta^c / E)."""
    m, K, rng = 8, 3, np.random.default_rng(1)
    task, action = np.divmod(np.arange(m * K), K)
    prior = 100.0 + float(hierarchy.action_cov[0, 0]) / scale.mean**2 * (action[:, None] == action)
    prior = prior + float(hierarchy.level_cov[0, 0]) / scale.mean**2 * (task[:, None] == task)
    prior = prior + (float(hierarchy.interaction_cov[0, 0]) / scale.mean**2 + 1e-9) * np.eye(m * K)
    root, unit = np.linalg.cholesky(prior), log.task * K + log.action
    n, paid = np.bincount(unit, minlength=m * K), np.bincount(unit, log.reward > 0, m * K)

    def log_density(theta: np.ndarray) -> float:
        p = scale.share * (1.0 + theta)
        if p.min() <= 0.0 or p.max() >= 1.0:
            return -np.inf
        return float(paid @ np.log(p) + (n - paid) @ np.log1p(-p))

    theta, samples = np.zeros(m * K), np.empty((draws, m * K))
    current = log_density(theta)
    for k in range(draws):
        other, level = root @ rng.standard_normal(m * K), current + np.log(rng.random())
        angle = rng.uniform(0, 2 * np.pi)
        low, high = angle - 2 * np.pi, angle
        while True:
            new = theta * np.cos(angle) + other * np.sin(angle)
            density = log_density(new)
            if density > level:
                theta, current = new, density
                break
            low, high = (angle, high) if angle < 0 else (low, angle)
            angle = rng.uniform(low, high)
        samples[k] = theta
    return scale.mean * samples[draws // 10 :]


@pytest.mark.slow
def test_zeros_as_gaussian_rewards_are_near_their_own_likelihood(posterior: TwoPartPosterior) -> None:
    """Means within .4 posterior standard deviations, these within 20 %: 320 rows of which a third are above 0."""
    nodes = list(posterior.conversion.parts())
    part = nodes[int(posterior.conversion.weights.argmax())]
    samples = slice_samples(a_log(), part.hierarchy, posterior.hierarchy.scale, 20_000)
    mean, sd = part.table().means.reshape(-1), np.sqrt(part.table().covs.reshape(-1))
    assert np.abs((samples.mean(axis=0) - mean) / sd).max() < 0.4
    np.testing.assert_allclose(samples.std(axis=0), sd, rtol=0.2)
