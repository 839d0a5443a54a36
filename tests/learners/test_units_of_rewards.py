"""The unit of the rewards does not matter to a fit; units whose powers do not fit a float64 are refused by name."""

import numpy as np
import pyarrow as pa
import pytest

from hieropo import HierOPO, LogError

ROLES = {"task": "store", "action": "offer", "reward": "profit"}


def log(unit: float = 1.0, *, walk: float = 0.0) -> pa.Table:
    """Return a log in which effects of actions walk, in all stores alike, and one store has large effects."""
    rng = np.random.default_rng(3)
    store, offer, time = np.repeat(np.arange(20), 15), rng.integers(0, 4, 300), rng.random(300)
    effects = 0.2 * rng.normal(size=4) + rng.normal(size=(20, 1)) + 0.15 * rng.normal(size=(20, 4))
    effects[0] += 4.0 * rng.normal(size=4)
    path = walk * np.cumsum(rng.normal(size=(50, 4)), axis=0) / 50**0.5
    profit = effects[store, offer] + path[(50 * time).astype(int), offer] + rng.normal(size=300)
    table = {"store": store, "offer": offer, "when": time, "profit": unit * profit}
    return pa.table({**table, "visits": rng.normal(size=300)})


@pytest.mark.parametrize("context", [(), ("visits",)])
@pytest.mark.parametrize("unit", [1e-60, 10.0, 1e8, 1e60])
def test_another_unit_gives_the_same_answer(unit: float, context: tuple[str, ...]) -> None:
    one, other = (
        HierOPO(logging="random").fit(log(u), **ROLES, context=context).policy_.table for u in (1.0, unit)
    )
    np.testing.assert_allclose(other.means / unit, one.means, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(other.covs / unit**2, one.covs, rtol=1e-6)


def test_another_unit_gives_the_same_answer_where_actions_walk() -> None:
    one, other = (HierOPO(logging="random").fit(log(u, walk=4.0), **ROLES, time="when") for u in (1.0, 1e3))
    assert one.drift_ is not None
    assert one.drift_.zeta > 0.0
    np.testing.assert_allclose(other.policy_.table.means / 1e3, one.policy_.table.means, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(other.policy_.table.covs / 1e6, one.policy_.table.covs, rtol=1e-6)


@pytest.mark.parametrize("unit", [1e-71, 1e-154, 1e-200, 1e-310])
@pytest.mark.parametrize("settings", [{}, {"task_cov": "diag"}])
def test_rewards_whose_powers_are_zero_are_refused_with_a_factor(unit: float, settings: dict) -> None:
    with pytest.raises(LogError, match=r"Column 'profit': rewards have a size of .* Rescale the column"):
        HierOPO(logging="random", **settings).fit(log(unit), **ROLES)


def test_rewards_that_are_all_zero_are_not_called_small() -> None:
    constant = log().set_column(3, "profit", pa.array(np.zeros(300)))
    with pytest.raises(LogError, match="All rewards are 0"):
        HierOPO(logging="random").fit(constant, **ROLES)
