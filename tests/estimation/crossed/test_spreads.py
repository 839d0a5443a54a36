"""A mixture of spreads that a log shows, and that other logs do not: chosen, integrated, stored, used."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hieropo import HierOPO, load_learner
from hieropo.cli.inspection import differs_in_words
from hieropo.errors import InputError
from hieropo.estimation.crossed.integration import _averaged, integrate_crossed
from hieropo.estimation.crossed.mixture import CrossedHierarchies, condition_hierarchies
from hieropo.estimation.crossed.shapes import Shapes
from hieropo.estimation.crossed.spreads import _Approximation, _Sums, mixed_spreads
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import condition_crossed
from hieropo.model.crossed.propagation import TaskTerms, effects_basis, propagate
from hieropo.model.crossed.steps import ObservedUnits
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Keys

ODD = 3  # the first tasks of the log of odd tasks


def rows(odd: int, seed: int = 0, *, m: int = 50, usual: float = 0.2) -> dict[str, Any]:
    """25 rows of each of m tasks and 4 actions; the first ``odd`` have interactions of sd 3 in place of ``usual``."""
    rng = np.random.default_rng(seed)
    task, action = np.repeat(np.arange(m), 25), rng.integers(0, 4, 25 * m)
    size = np.where(np.arange(m) < odd, 3.0, usual)
    theta = 0.5 * rng.standard_normal((m, 1)) + size[:, None] * rng.standard_normal((m, 4))
    reward = theta[task, action] + rng.standard_normal(task.size)
    return {
        "task": [f"t{s}" for s in task],
        "action": action,
        "reward": reward,
        "p": np.full(task.size, 0.25),
    }


def fitted(log: dict[str, Any]) -> HierOPO:
    return HierOPO(logging="random", spreads="auto").fit(
        pa.table(log), task="task", action="action", reward="reward"
    )


@pytest.fixture(scope="module")
def odd() -> HierOPO:
    return fitted(rows(ODD))


def moments_of(learner: HierOPO) -> Moments:
    moments: Moments = learner.posterior_.moments
    return moments


def test_odd_tasks_are_found_and_all_weights_add_to_one(odd: HierOPO) -> None:
    hierarchies: CrossedHierarchies = odd.hierarchy_
    assert hierarchies.mixed_spreads
    assert hierarchies.spread_odds > np.log(10)
    assert hierarchies.weights.sum() == pytest.approx(1)
    assert hierarchies.conditioned.sum() == pytest.approx(1)
    mean_square = (hierarchies.spread_weights * np.square(hierarchies.spread_scales)).sum(axis=1)
    np.testing.assert_allclose(mean_square, 1)
    differing = odd.posterior_.differing
    assert (differing[:ODD] > 0.9).all()
    assert (differing[ODD:] < 0.2).all()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_log_of_one_spread_has_the_answer_of_one_spread(seed: int) -> None:
    moments = moments_of(fitted(rows(0, seed, m=30)))
    auto, one = integrate_crossed(moments, spreads="auto"), integrate_crossed(moments)
    assert json.dumps(auto.to_dict()) == json.dumps(one.to_dict())
    assert condition_hierarchies(moments, auto).differing is None


@pytest.mark.slow
def test_both_are_averaged_by_their_evidence(odd: HierOPO) -> None:
    moments = moments_of(odd)
    one = integrate_crossed(moments)
    assert not one.mixed_spreads
    mixed = mixed_spreads(moments, one.shapes, (0.1, 0.5, 0.8), 1.0)
    assert mixed is not None
    both = _averaged(one, mixed._replace(log_odds=float(np.log(9.0))))
    assert len(both) == len(one) + mixed.weights.size
    np.testing.assert_allclose(both.weights[: len(one)], 0.1 * one.weights)
    np.testing.assert_allclose(both.conditioned[len(one) :], 0.9 * mixed.few)
    assert both.spreads(0) is None
    assert both.no_effect == pytest.approx(0.1 * one.no_effect)


def test_the_evidence_of_a_mixture_is_that_of_an_expansion_around_another(odd: HierOPO) -> None:
    moments = moments_of(odd)
    units, shapes = ObservedUnits.of(moments, np.ones(4)), Shapes.equal(moments)
    basis = effects_basis(0.04 * shapes.action, 4)
    prior = np.where(np.arange(basis.shape[1]) < basis.shape[1] - 1, 1.0, 0.0)
    scales = np.array([0.0, 0.2, 3.0])
    terms = TaskTerms.of(units, shapes.interaction, 0.25 * shapes.level, basis, scales)
    at, other = np.array([0.1, 0.8, 0.1]), np.array([0.3, 0.4, 0.3])
    law, _ = propagate(terms, at, prior)
    exact, _ = propagate(terms, other, prior)
    ratios = np.exp(law.log_ratios - law.log_ratios.max(axis=0))
    expanded = law.log_evidence + np.log(other @ ratios).sum() - np.log(at @ ratios).sum()
    assert expanded == pytest.approx(exact.log_evidence, abs=0.1)
    assert abs(exact.log_evidence - law.log_evidence) > 1


def test_a_log_of_few_tasks_has_one_spread() -> None:
    few = moments_of(fitted(rows(1, m=6)))
    assert mixed_spreads(few, Shapes.equal(few), (0.1, 0.5, 0.3), 1.0) is None


@pytest.mark.slow
def test_a_policy_is_saved_loaded_and_learns_on_with_its_spreads(odd: HierOPO, tmp_path: Path) -> None:
    odd.save(tmp_path / "policy")
    again = load_learner(tmp_path / "policy")
    assert json.dumps(again.hierarchy_.to_dict()) == json.dumps(odd.hierarchy_.to_dict())
    requests = pa.table({"task": [f"t{s}" for s in range(8)] + ["new"]})
    assert again.predict(requests).tolist() == odd.predict(requests).tolist()
    again.partial_fit(pa.table(rows(ODD)))
    assert again.hierarchy_.mixed_spreads
    assert (again.posterior_.differing[:ODD] > 0.9).all()


@pytest.mark.slow
def test_what_the_log_shows_is_in_the_summary_the_coefficients_and_the_explanation(odd: HierOPO) -> None:
    assert f"in {ODD} of 50 tasks" in str(odd.summary()).replace("\n", " ")
    table = odd.coefficients("t1").table
    assert min(table["differs"].to_pylist()) > 0.9
    assert "differs" not in fitted(rows(0, 1, m=30)).coefficients().table.column_names
    explanation = odd.explain("t1", {})
    assert explanation is not None
    assert "probability above 0.99" in differs_in_words(0.999)
    assert "probability 0.97" in differs_in_words(0.971)


def test_an_evaluation_uses_the_mixture_in_single_tasks(odd: HierOPO) -> None:
    evaluation = odd.evaluate(pa.table(rows(ODD)), propensities="none")
    assert 0 < evaluation.model.difference.mean < 2
    assert evaluation.passed[:ODD].all()


def test_an_unknown_setting_of_spreads_is_refused() -> None:
    with pytest.raises(InputError, match="spreads='many'"):
        HierOPO(spreads="many").fit(pa.table(rows(0, m=4)), task="task", action="action", reward="reward")  # type: ignore[arg-type]


def of_log(moments: Moments) -> _Sums:
    return _Sums.of(moments, Shapes.equal(moments), 0.5)


def test_the_evidence_of_one_spread_is_that_of_its_hierarchy(odd: HierOPO) -> None:
    moments = moments_of(odd)
    sums, noise, level = of_log(moments), 0.9, 0.5
    terms = sums.given(level, noise)
    actions, scales = [0.0, 0.1, 0.7], [0, 5, 9]
    ours = np.array([terms.of_one_spread(a)[scales] for a in actions])
    exact = np.empty_like(ours)
    for i, a in enumerate(actions):
        for j, v in enumerate(sums.scales[scales]):
            parts = (noise * size**2 * np.eye(1) for size in (a, level, v))
            exact[i, j] = condition_crossed(moments, CrossedHierarchy(*parts, np.full(4, noise))).log_evidence
    np.testing.assert_allclose(ours - ours[0, 0], exact - exact[0, 0], atol=1e-6)


def test_factors_of_one_size_of_the_actions_give_the_evidence_of_others(odd: HierOPO) -> None:
    terms = of_log(moments_of(odd)).given(0.5, 1.0)
    near = _Approximation.first(terms, 0.2)
    for a in (0.05, 0.2, 0.8):
        own = near.at(terms, a).given(terms, a).mixture
        assert near.given(terms, a).mixture == pytest.approx(own, abs=0.02)
    values = near.along_actions(terms, np.array([0.2, 0.4]))
    exact = [near.given(terms, a).mixture for a in (0.2, 0.4)]
    assert values[1] - values[0] == pytest.approx(exact[1] - exact[0], abs=0.3)


def test_the_evidence_is_continuous_in_the_noise_variance_where_actions_have_several_coefficients() -> None:
    rng = np.random.default_rng(0)
    task, action, x = np.repeat(np.arange(20), 15), rng.integers(0, 4, 300), rng.standard_normal(300)
    size = np.where(np.arange(20) < 3, 4.0, 0.15)[task]
    reward = (
        size * rng.standard_normal((20, 4))[task, action] + 0.3 * x * (action == 1) + rng.standard_normal(300)
    )
    some = Moments.from_arrays(task * 4 + action, np.column_stack([np.ones(300), x]), reward)
    sums, counts = np.zeros((80, some.sums.shape[1])), np.zeros(80)
    sums[some.tasks.astype(int)], counts[some.tasks.astype(int)] = some.sums, some.rows
    moments = Moments(
        Keys(np.arange(20)), 2, sums.reshape(20, 4, -1), counts.reshape(20, 4), np.zeros((20, 4))
    )
    cov = np.array([[0.5002, 0.0272], [0.0272, 0.4998]])
    for_log = _Sums.of(moments, Shapes(cov, np.eye(2), np.eye(2), np.ones(4), np.zeros(10)), 0.4)
    near = _Approximation.first(for_log.given(0.4, 1.0), 0.1)
    values = [near.given(for_log.given(0.4, 1.0 + 1e-9 * k), 0.1).mixture for k in range(40)]
    assert np.ptp(values) < 1e-4


def test_evidence_of_any_size_is_averaged(odd: HierOPO) -> None:
    moments = moments_of(odd)
    one = integrate_crossed(moments)
    mixed = mixed_spreads(moments, one.shapes, (0.1, 0.5, 0.8), 1.0)
    assert mixed is not None
    both = _averaged(one, mixed._replace(log_odds=5_000.0))
    np.testing.assert_array_equal(both.weights, mixed.weights)
