"""The evidence by rows is that by sums, with its slope, for units of any rank."""

import numpy as np
import pytest

from hieropo.estimation.crossed.few_rows import FewRows
from hieropo.estimation.crossed.shapes import Pattern, Scaling, _negative
from hieropo.model.crossed.steps import ObservedUnits, RootSums, UnitMessages
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Keys


def made(m: int, K: int, p: int, n: int, seed: int) -> Moments:
    """Moments of n rows of m tasks, with precisions; some tasks and actions have none."""
    rng = np.random.default_rng(seed)
    unit = rng.integers(0, (m - 1) * K, n)
    unit = unit[unit % K != 1]
    x = np.column_stack(
        [np.ones(unit.size), rng.standard_normal((unit.size, p - 1)) * np.geomspace(0.1, 10, p - 1)]
    )
    reward = rng.standard_normal(m)[unit // K] + rng.standard_normal(unit.size) + x[:, 1]
    some = Moments.from_arrays(unit, x, reward, precision=rng.uniform(0.5, 2.0, unit.size))
    sums, rows, log_precision = np.zeros((m * K, some.sums.shape[1])), np.zeros(m * K), np.zeros(m * K)
    at = some.tasks.astype(int)
    sums[at], rows[at], log_precision[at] = some.sums, some.rows, some.log_precision
    shape = m, K
    return Moments(
        Keys(np.arange(m)), p, sums.reshape(m, K, -1), rows.reshape(shape), log_precision.reshape(shape)
    )


@pytest.mark.parametrize(("m", "K", "p", "n"), [(6, 3, 18, 90), (30, 2, 17, 120), (4, 4, 20, 70)])
def test_value_and_slope_are_those_by_sums(m: int, K: int, p: int, n: int) -> None:
    moments = made(m, K, p, n, seed=p)
    scaling = Scaling.of(moments)
    rows = FewRows.of(moments, scaling.transform)
    rng = np.random.default_rng(0)
    for _ in range(3):
        x = np.append(rng.normal(-1.0, 1.0, 3 * p), rng.normal(0.0, 0.3, K))
        pattern = Pattern.of(moments.unit_dim)
        value, slope = _negative(moments, scaling, pattern, x)
        value_by_rows, slope_by_rows = _negative(moments, scaling, pattern, x, rows)
        assert value_by_rows == pytest.approx(value, rel=1e-9)
        np.testing.assert_allclose(slope_by_rows, slope, rtol=0, atol=1e-7 * np.abs(slope).max())


@pytest.mark.parametrize(("m", "K", "p", "n"), [(6, 3, 18, 90), (30, 2, 17, 120)])
def test_messages_to_the_root_are_those_by_sums(m: int, K: int, p: int, n: int) -> None:
    moments = made(m, K, p, n, seed=p)
    rng, ratio = np.random.default_rng(1), np.geomspace(0.5, 2.0, K)
    level, interaction = (root @ root.T for root in 0.3 * rng.standard_normal((2, p, p)))
    root_sums = FewRows.of(moments, np.eye(p)).way_up(level, interaction, ratio)
    for level_var, interaction_var in ((0.4, 0.2), (3.0, 0.0)):
        got = root_sums(level_var, interaction_var)
        messages = UnitMessages(ObservedUnits.of(moments, ratio), interaction_var * interaction)
        right = RootSums.of(messages, level_var * level)
        for name in RootSums._fields:
            expected = np.asarray(getattr(right, name))
            close = 1e-9 * max(float(np.abs(expected).max()), 1e-300)
            np.testing.assert_allclose(getattr(got, name), expected, rtol=0, atol=close)


def test_it_is_taken_where_units_have_few_rows_and_many_columns() -> None:
    assert FewRows.pays(made(6, 3, 18, 90, seed=0))
    assert not FewRows.pays(made(6, 3, 18, 900, seed=0))
    assert not FewRows.pays(made(6, 3, 8, 20, seed=0))
