"""Choices among equal numbers follow a rule, not their rounding."""

from collections.abc import Callable

import numpy as np
import pytest

from hieropo._utils.ties import ROUNDING, exceeds, first_largest, first_smallest, levels, ordered, reaches

ULP = 1e-15  # relative, as sums differ between machines


def shaken(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return values * (1.0 + ULP * rng.uniform(-1, 1, values.shape))


@pytest.mark.parametrize("choose", [first_largest, first_smallest, levels, ordered])
def test_rounding_changes_no_choice(choose: Callable[[np.ndarray], np.ndarray]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = rng.integers(-3, 4, 12) / 3.0 * 10.0 ** rng.integers(-200, 200)
        wanted = choose(values)
        for _ in range(5):
            np.testing.assert_array_equal(choose(shaken(values, rng)), wanted)


def test_values_that_differ_are_taken_as_numpy_takes_them() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(50, 20))
    np.testing.assert_array_equal(first_largest(values, axis=1), values.argmax(axis=1))
    np.testing.assert_array_equal(first_smallest(values, axis=0), values.argmin(axis=0))
    for row in values:
        np.testing.assert_array_equal(ordered(row), np.argsort(row))
        np.testing.assert_array_equal(levels(row), np.argsort(np.argsort(row)))


def test_of_equal_values_the_first_comes_first_and_the_next_key_decides_after_that() -> None:
    near = 1.0 + ULP
    assert int(first_largest([0.0, 1.0, near])) == 1
    assert int(first_smallest([2.0, near, 1.0])) == 1
    assert int(first_largest([1.0, 1.0 + 1e-4], room=1e-3)) == 0
    assert ordered([near, 1.0, 0.0, 1.0]).tolist() == [2, 0, 1, 3]
    assert ordered([near, 1.0, 0.0], [0.5, 0.2, 9.0]).tolist() == [2, 1, 0]
    assert levels([3.0, near, 1.0]).tolist() == [1, 0, 0]


def test_numbers_that_are_not_finite_have_their_place() -> None:
    values = [np.nan, np.inf, -np.inf, 1.0, np.inf, np.nan]
    assert int(first_largest(values)) == 1
    assert int(first_largest([np.nan, -np.inf, -5.0])) == 2
    assert int(first_largest([-np.inf, -np.inf])) == 0
    assert ordered(values).tolist() == [2, 3, 1, 4, 0, 5]
    assert levels([]).tolist() == []


def test_a_limit_that_is_met_but_for_rounding_is_met() -> None:
    assert reaches(30.0 * (1 - ULP), 30.0)
    assert not reaches(30.0 * (1 - 10 * ROUNDING), 30.0)
    assert not exceeds(0.5 * (1 + ULP), 0.5)
    assert exceeds(0.5 * (1 + 10 * ROUNDING), 0.5)
