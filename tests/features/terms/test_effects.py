"""Effects of levels equal their definitions, level by level, and are learned as they were drawn."""

import json

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from hieropo.features.terms.doubts import directions
from hieropo.features.terms.effects import (
    FOLDS,
    LearnedEffect,
    Variances,
    learned_variances,
    log_evidence,
    nested,
    posteriors,
)

RNG = np.random.default_rng(8)
K = 3


def drawn(levels: int, variances: Variances, rate: float = 4.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Effects (m, K), and the rows and sums of their rewards."""
    effects = RNG.multivariate_normal(np.zeros(K), variances.prior(K), levels)
    rows = RNG.poisson(rate, (levels, K)).astype(float)
    return effects, rows, rows * effects + np.sqrt(rows * variances.noise) * RNG.normal(size=(levels, K))


def test_posteriors_and_evidence_are_those_of_each_level_by_itself() -> None:
    variances = Variances(0.3, 0.2, 1.5)
    _, rows, sums = drawn(6, variances)
    rows[0] = sums[0] = 0.0
    means, covs = posteriors(rows, sums, variances)
    evidence = 0.0
    for n, s, mean, cov in zip(rows, sums, means, covs, strict=True):
        information = np.linalg.solve(variances.prior(K), np.eye(K)) + np.diag(n / variances.noise)
        assert cov @ information == pytest.approx(np.eye(K), abs=1e-12)
        assert mean == pytest.approx(np.linalg.solve(information, s / variances.noise))
        seen = n > 0
        if seen.any():
            noise = np.diag(variances.noise / n[seen])
            of = s[seen] / n[seen]
            prior = variances.prior(K)[np.ix_(seen, seen)]
            evidence += multivariate_normal(np.zeros(len(of)), prior + noise).logpdf(of)
            evidence -= multivariate_normal(np.zeros(len(of)), noise).logpdf(of)
    assert log_evidence(rows, sums, variances) == pytest.approx(evidence)


@pytest.mark.parametrize(
    "true", [Variances(0.1, 0.1, 1.0), Variances(0.0, 0.2, 1.0), Variances(0.3, 0.0, 2.0)]
)
def test_variances_are_learned_as_effects_were_drawn(true: Variances) -> None:
    _, rows, sums = drawn(3000, true)
    learned = learned_variances(rows, sums, true.noise)
    assert learned[:2] == pytest.approx(true[:2], rel=0.25, abs=0.012)


def test_levels_without_effects_have_none() -> None:
    none = Variances(0.0, 0.0, 1.0)
    found = [learned_variances(*drawn(300, none)[1:], 1.0) for _ in range(20)]
    assert sum(variances == none for variances in found) >= 15


def test_columns_are_told_by_other_tasks_and_marks_find_the_covariances() -> None:
    variances = Variances(0.4, 0.3, 1.0)
    parts = [drawn(50, variances, 1.0)[1:] for _ in range(FOLDS)]
    rows, sums = (np.array(values) for values in zip(*parts, strict=True))
    rows[:, 7] = sums[:, 7] = 0.0
    rows[:, 8], sums[:, 8] = rows[:, 9], sums[:, 9]  # equal levels, whose columns differ by their marks alone
    effect = LearnedEffect(("a", "b", "c"), ("store",), nested(rows), nested(sums), variances)
    assert effect == LearnedEffect.from_dict(json.loads(json.dumps(effect.to_dict())))
    assert effect.names("city") == ("effect of city", "effect of city on a", "effect of city on b")
    positions, part = np.array([3, 3, 8, 9, 7, -1]), np.array([2, FOLDS, FOLDS, FOLDS, FOLDS, 1])
    columns = effect.encode(positions, part).T
    for row, without in ((0, [2]), (1, [])):
        kept = [k for k in range(FOLDS) if k not in without]
        (mean,), (cov,) = posteriors(rows[kept].sum(axis=0)[[3]], sums[kept].sum(axis=0)[[3]], variances)
        assert columns[row] == pytest.approx([mean.mean(), mean[0] - mean.mean(), mean[1] - mean.mean()])
        basis = np.array([[1 / 3, 2 / 3, -1 / 3], [1 / 3, -1 / 3, 2 / 3], [1 / 3, -1 / 3, -1 / 3]])
        (doubtful,), roots = directions((effect.doubts(1),), np.array([[9.0, *columns[row]]]))
        assert doubtful == 0
        assert (roots[0].T @ roots[0])[1:, 1:] == pytest.approx(basis.T @ cov @ basis)
    assert columns[2] == pytest.approx(columns[3], rel=1e-12)
    assert not columns[4:].any()
    roots = directions((effect.doubts(0),), columns)[1]
    assert np.array_equal(roots[4], roots[5])
    assert (roots[4].T @ roots[4])[0, 0] == pytest.approx(0.4 + 0.3 / 3)


def test_effects_on_all_actions_alike_are_one_column() -> None:
    variances = Variances(0.4, 0.0, 1.0)
    rows, sums = (np.array([values] * FOLDS) for values in drawn(10, variances)[1:])
    effect = LearnedEffect(("a", "b", "c"), ("store",), nested(rows), nested(sums), variances)
    assert effect.names("city") == ("effect of city",)
    assert effect.encode(np.arange(10), None).shape == (1, 10)
