"""Parts of expectation propagation: Phi from a root alone, evidence without new factors, scales that are left out."""

import numpy as np
import pytest
from numpy.typing import NDArray

from hieropo._kernels.reference.gaussians import inverted, phi
from hieropo.model.crossed import propagation
from hieropo.model.crossed.propagation import (
    Cavities,
    Factors,
    TaskTerms,
    one_round,
    propagate,
)

Array = NDArray[np.float64]
PRIOR = np.array([0.0, 1.0, 1.0])
WEIGHTS = np.array([0.2, 0.7, 0.1])


@pytest.fixture
def terms() -> TaskTerms:
    """Six tasks, three scales, z of three numbers."""
    rng = np.random.default_rng(3)
    roots = rng.standard_normal((3, 6, 3, 5))
    return TaskTerms(
        roots @ roots.swapaxes(2, 3) / 5, rng.standard_normal((3, 6, 3)), rng.standard_normal((3, 6))
    )


def test_phi_is_that_of_the_inverse(terms: TaskTerms) -> None:
    np.testing.assert_allclose(
        phi(terms.information, terms.score), inverted(terms.information, terms.score)[2]
    )


def test_the_evidence_at_the_fixed_point_is_that_of_the_propagation(terms: TaskTerms) -> None:
    law, factors = propagate(terms, WEIGHTS, PRIOR)
    cavities = Cavities.of(PRIOR, factors)
    ratios = cavities.log_ratios(terms)
    np.testing.assert_allclose(ratios, law.log_ratios, atol=1e-6)
    assert cavities.log_evidence(ratios, np.log(WEIGHTS)) == pytest.approx(law.log_evidence, abs=1e-6)


def test_the_evidence_is_stationary_in_the_factors(terms: TaskTerms) -> None:
    law, factors = propagate(terms, WEIGHTS, PRIOR)
    away = Factors.averaged(terms, WEIGHTS)

    def change(share: float) -> float:
        cavities = Cavities.of(PRIOR, factors.between(away, share))
        return cavities.log_evidence(cavities.log_ratios(terms), np.log(WEIGHTS)) - law.log_evidence

    assert abs(change(0.02)) < 1e-3
    assert change(0.02) / change(0.01) == pytest.approx(4, rel=0.1)


def test_scales_of_small_responsibility_are_left_out_of_the_factors(terms: TaskTerms) -> None:
    factors = Factors.averaged(terms, WEIGHTS)
    unlikely = terms._replace(constant=terms.constant + np.array([0.0, 0.0, -30.0])[:, None])
    every = one_round(unlikely, np.log(WEIGHTS), PRIOR, factors)
    some = one_round(unlikely, np.log(WEIGHTS), PRIOR, factors, least=1e-9)
    np.testing.assert_allclose(some.precision, every.precision, atol=1e-9)
    np.testing.assert_allclose(some.shift, every.shift, atol=1e-9)
    assert some.log_evidence == every.log_evidence
    assert every.means[2].any()
    assert not some.means[2].any()


def test_accelerated_rounds_end_where_plain_ones_do(terms: TaskTerms) -> None:
    terms = terms._replace(score=0.5 * terms.score)
    law, factors = propagate(terms, WEIGHTS, PRIOR)
    assert law.converged
    plain = Factors.averaged(terms, WEIGHTS)
    for _ in range(400):
        step = one_round(terms, np.log(WEIGHTS), PRIOR, plain)
        plain = plain.between(Factors(step.precision, step.shift), 0.5)
    np.testing.assert_allclose(law.responsibilities, step.responsibilities, atol=1e-8)
    np.testing.assert_allclose(factors.precision, plain.precision, atol=1e-7)
    np.testing.assert_allclose(factors.shift, plain.shift, atol=1e-7)


def test_rounds_whose_acceleration_fails_are_taken_without(
    terms: TaskTerms, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, _ = propagate(terms, WEIGHTS, PRIOR)
    monkeypatch.setattr(
        propagation._Mixing, "next", lambda *given: Factors(-1e3 * given[2].precision, given[2].shift)
    )
    law, _ = propagate(terms, WEIGHTS, PRIOR)
    assert law.converged
    np.testing.assert_allclose(law.mean, right.mean, atol=1e-8)


def test_factors_that_are_nearly_no_gaussian_are_those_of_the_start(
    terms: TaskTerms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(propagation, "_FLAT", np.inf)
    start = Factors.averaged(terms, WEIGHTS)
    law, factors = propagate(terms, WEIGHTS, PRIOR, rounds=2)
    assert not law.converged
    np.testing.assert_array_equal(factors.precision, start.precision)
    np.testing.assert_array_equal(
        law.responsibilities, one_round(terms, np.log(WEIGHTS), PRIOR, start).responsibilities
    )


def test_a_task_of_one_scale_has_the_factor_of_its_rows(terms: TaskTerms) -> None:
    known = terms._replace(constant=terms.constant + np.array([30.0, 0.0, 0.0])[:, None])
    step = one_round(known, np.log(WEIGHTS), PRIOR, Factors.averaged(terms, WEIGHTS), least=1e-8)
    np.testing.assert_array_equal(step.precision, terms.information[0])
    np.testing.assert_array_equal(step.shift, terms.score[0])
