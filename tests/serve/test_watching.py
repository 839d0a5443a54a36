import numpy as np
import pytest

from hieropo.serve.watching import evidence


@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_false_alarms_are_no_more_often_than_stated_at_any_time(alpha: float) -> None:
    rng = np.random.default_rng(0)
    alarms = np.mean([(evidence(rng.normal(size=1000)) >= 1 / alpha).any() for _ in range(2000)])
    assert alarms <= alpha + 3 * np.sqrt(alpha * (1 - alpha) / 2000)
    assert alarms > alpha / 20  # and the test is not idle


def test_a_shift_is_found() -> None:
    rng = np.random.default_rng(1)
    crossed = [(evidence(rng.normal(size=300) + 0.5) >= 100).any() for _ in range(100)]
    assert np.mean(crossed) == 1.0
