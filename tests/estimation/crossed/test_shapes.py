"""Relative sizes of columns: own sizes against equal ones."""

import numpy as np
import pytest
from reference.dense import Array
from scipy.optimize import minimize

from hieropo.estimation.crossed import shapes as module
from hieropo.estimation.crossed.shapes import (
    TAU,
    Pattern,
    Scaling,
    Shapes,
    _equal_or_own,
    _log_evidence,
    _log_odds_of_own,
    _mode,
    _negative,
    learn_shapes,
)
from hieropo.features.maps import indicator, per_action
from hieropo.moments.spread import in_unit_of_fit
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitAccumulator


def drawn(sizes: Array, seed: int, n: int = 20, scale: float = 1.0) -> Moments:
    """An intercept and columns whose coefficients have these standard deviations, times .2, .5 and .3; 60 tasks."""
    rng = np.random.default_rng(seed)
    m, K, p = 60, 5, sizes.size
    theta = 0.2 * rng.standard_normal((1, K, p)) + 0.5 * rng.standard_normal((m, 1, p))
    theta = (theta + 0.3 * rng.standard_normal((m, K, p))) * sizes
    task, action = rng.integers(0, m, m * n), rng.integers(0, K, m * n)
    x = rng.standard_normal((m * n, p - 1))
    phi = np.column_stack([np.ones(m * n), x])
    reward = np.einsum("np,np->n", phi, theta[task, action]) + rng.standard_normal(m * n)
    total = UnitAccumulator(per_action(range(K), [f"x{j}" for j in range(p - 1)]))
    total.add(task, action, x * scale, reward)
    return total.moments()


def spread(moments: Moments, shapes: Shapes) -> float:
    """Largest over smallest standard deviation of the columns of M, in scaled columns."""
    inverse = Scaling.of(moments).inverse
    sd = np.sqrt(np.diagonal(inverse.T @ shapes.interaction @ inverse))
    return float(sd.max() / sd.min())


@pytest.mark.parametrize("seed", range(3))
def test_sizes_are_equal_where_the_log_does_not_tell_them(seed: int) -> None:
    moments = drawn(np.ones(6), seed)
    shapes, equal = learn_shapes(moments), Shapes.equal(moments)
    np.testing.assert_allclose(shapes.interaction, equal.interaction, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(shapes.action, equal.action, rtol=1e-12, atol=1e-12)
    assert np.ptp(shapes.mode[12:18]) > 0  # a search of a similar log starts from the mode


@pytest.mark.parametrize("n", [20, 400])
def test_equal_sizes_are_those_of_the_largest_evidence_however_many_rows_there_are(n: int) -> None:
    moments = drawn(np.ones(3), 0, n=n)
    scaling, pattern = Scaling.of(moments), Pattern.of(3)
    mode = _mode(moments, scaling, pattern, None, 5.0)
    equal = np.concatenate(_equal_or_own(moments, scaling, pattern, None, mode))
    assert (equal.reshape(3, 3) == equal[::3, None]).all()

    def negative(sizes: Array) -> float:
        at = np.append(np.repeat(sizes, 3), mode[9:])
        return -_log_evidence(moments, scaling, pattern, at, None)[0]

    best = minimize(negative, equal[::3], method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-6})
    assert negative(equal[::3]) == pytest.approx(best.fun, abs=0.02)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("factor", [1.0, 1e4])
def test_a_search_ends_at_the_mode_however_many_rows_there_are(seed: int, factor: float) -> None:
    moments = in_unit_of_fit(drawn(np.array([1.0, 0.1, 2.0]), seed, n=50).scale(factor))
    scaling, pattern = Scaling.of(moments), Pattern.of(3)
    mode = _mode(moments, scaling, pattern, None, 5.0)

    def negative(at: Array) -> tuple[float, Array]:
        value, slope = _negative(moments, scaling, pattern, mode + at, None)
        return value - start, slope

    start = _negative(moments, scaling, pattern, mode, None)[0]
    options = {"maxfun": 2000, "ftol": 1e-14, "gtol": 1e-9}
    best = minimize(negative, np.zeros(mode.size), jac=True, method="L-BFGS-B", options=options)
    assert best.fun > -0.2  # of log evidence


@pytest.mark.parametrize(
    "sizes", [[1.0, 0.05, 0.2, 0.7, 1.5, 3.0], [2.0, 0.1, 0.1, 0.1], [0.1, 1.5, 1.5, 1.5]]
)
def test_sizes_that_the_log_shows_stay_those_of_the_mode(
    sizes: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = drawn(np.array(sizes), 3)
    shapes = learn_shapes(moments)
    assert spread(moments, shapes) > 2
    monkeypatch.setattr(module, "_equal_or_own", lambda *log: list(log[-1][:-5].reshape(3, -1)))
    of_mode = learn_shapes(moments)
    np.testing.assert_array_equal(shapes.interaction, of_mode.interaction)
    np.testing.assert_array_equal(shapes.action, of_mode.action)


@pytest.mark.parametrize("sizes", [np.ones(4), np.array([1.0, 0.05, 0.3, 2.0])])
def test_the_unit_of_columns_does_not_choose(sizes: Array) -> None:
    one, other = drawn(sizes, 1), drawn(sizes, 1, scale=1e3)
    assert spread(one, learn_shapes(one)) == pytest.approx(spread(other, learn_shapes(other)), rel=1e-3)


def test_one_column_keeps_its_mode() -> None:
    rng = np.random.default_rng(2)
    total = UnitAccumulator(indicator(range(3)))
    total.add(rng.integers(0, 9, 200), rng.integers(0, 3, 200), None, rng.standard_normal(200))
    moments = total.moments()
    np.testing.assert_array_equal(learn_shapes(moments).level, Shapes.equal(moments).level)


def test_the_bayes_factor_is_that_of_quadrature_where_one_size_varies() -> None:
    """Two columns with spread, of M: t = g -+ e / sqrt(2), e ~ N(0, TAU^2); all else kept."""
    moments = drawn(np.array([1.0, 1.0, 1.0]), 4, n=60)
    scaling, pattern = Scaling.of(moments), Pattern.of(3)
    at = np.append(np.log(np.repeat([0.2, 0.5, 0.3], 3)), np.zeros(5))

    def log_evidence(e: float) -> float:
        x = at.copy()
        x[7:9] += np.array([-e, e]) / np.sqrt(2)
        return _log_evidence(moments, scaling, pattern, x, None)[0]

    e = np.linspace(-1.2, 1.2, 61)
    values = np.array([log_evidence(one) for one in e.tolist()])
    prior = -0.5 * np.square(e / TAU) - 0.5 * np.log(2 * np.pi * TAU**2)
    most = values.max()
    whole = most + np.log(np.trapezoid(np.exp(values - most + prior), e))
    want = whole - log_evidence(0.0)
    best = float(e[(values + prior).argmax()])
    information = -np.gradient(np.gradient(values, e), e)[30]
    t = np.array([-best, best]) / np.sqrt(2)
    odds = _log_odds_of_own(t, np.full(2, information), np.zeros(2, dtype=bool))
    assert log_evidence(best) - log_evidence(0.0) + odds == pytest.approx(want, abs=0.1)


def test_the_odds_of_an_own_intercept_are_a_density_times_a_width() -> None:
    d = np.linspace(-40, 40, 80_001)
    with np.errstate(invalid="ignore", over="ignore"):
        density = np.exp(np.log(2 / np.pi**2) + np.log(np.where(d == 0, 1.0, d / np.sinh(d))))
    assert np.trapezoid(density, d) == pytest.approx(1.0, abs=1e-6)
    constant = np.array([True, False, False])
    apart = _log_odds_of_own(np.array([1.0, -1.0, -1.0]), np.array([50.0, 0.0, 0.0]), constant)
    want = np.log(2 / np.pi**2 * 2 / np.sinh(2)) + 0.5 * np.log(2 * np.pi / 51)
    assert apart == pytest.approx(want)
    assert _log_odds_of_own(np.array([-1.0, -1.0, -1.0]), np.zeros(3), constant) <= 0.0
