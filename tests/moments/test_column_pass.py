"""The ranges of the compiled pass allow the values that the rules of rows allow."""

import numpy as np
import pytest

from hieropo.moments.column_pass import LIMITS
from hieropo.rows.columns import RULES


@pytest.mark.parametrize("role", LIMITS)
def test_values_within_the_range_of_a_role_are_those_that_no_rule_refuses(role: str) -> None:
    low, high = LIMITS[role]
    with np.errstate(over="ignore"):  # beyond the range of times is infinity
        values = np.array([low, high, 0.5, np.nextafter(low, -np.inf), np.nextafter(high, np.inf), np.nan])
    refused = np.any([rule.breaks(values) for rule in RULES[role]], axis=0)
    assert refused.tolist() == [False, False, False, True, True, True]
