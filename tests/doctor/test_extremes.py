"""Numbers far from all others are found with their rows, however a column is cut, and hardly ever where none is."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hieropo.doctor.statistics.column_summaries import KEPT, Extremes


def collected(
    values: np.ndarray, parts: int = 1, counted: Callable[[int], bool] = lambda _: True
) -> Extremes:
    found = Extremes()
    for k, rows in enumerate(np.array_split(np.arange(values.size), parts)):
        if rows.size:
            found.add(values[rows], int(rows[0]), counted=counted(k))
    return found


def normal(n: int, seed: int = 0, **at: float) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=n)
    for row, value in at.items():
        values[int(row[1:])] = value
    return values


@pytest.mark.parametrize("n", [12, 17, 30, 300, 100_000])
@pytest.mark.parametrize("value", [-999.0, 60.0, 3.4e38, -1e70])
def test_one_far_off_is_found_whatever_the_number_of_rows(n: int, value: float) -> None:
    values = normal(n, r7=value)
    found = collected(values, 3).outlying(n)
    assert found is not None
    assert (found.rows, found.values) == ((7,), (value,))
    others = np.delete(values, 7)
    assert found.mean == pytest.approx(others.mean())
    assert found.sd == pytest.approx(others.std())
    assert found.distance == pytest.approx(abs(value - others.mean()) / others.std())
    assert found.farthest == pytest.approx(np.abs(others - others.mean()).max() / others.std())
    square = (value - others.mean()) ** 2
    assert found.share == pytest.approx(square / (square + others.var() * (n - 1)))


def test_several_are_found_together_and_a_larger_one_hides_none() -> None:
    values = normal(300, r3=-999.0, r77=-999.0, r150=1e6, r299=-998.0)
    found = collected(values).outlying(300)
    assert found is not None
    assert found.rows == (3, 77, 150, 299)
    assert found.values == (-999.0, -999.0, 1e6, -998.0)
    assert found.sd == pytest.approx(np.delete(values, [3, 77, 150, 299]).std())


def test_the_parts_of_a_column_add_in_any_order() -> None:
    rng = np.random.default_rng(1)
    for values in (normal(500, r9=80.0), np.round(normal(500, r9=80.0)), np.sort(normal(500, r9=80.0))):
        values[rng.integers(500, size=40)] = np.nan
        values[9] = 80.0
        whole = collected(values).outlying(500)
        assert whole is not None
        for parts in (2, 7, 100):
            ends = np.array_split(np.arange(500), parts)
            made = [Extremes() for _ in ends]
            for one, rows in zip(made, ends, strict=True):
                one.add(values[rows], int(rows[0]))
            total = Extremes()
            for k in rng.permutation(parts):
                total.update(made[k])
            for other in (total, collected(values, parts)):
                found = other.outlying(500)
                assert found is not None
                assert (found.rows, found.values) == (whole.rows, whole.values)
                np.testing.assert_allclose(found[2:], whole[2:], rtol=1e-12)
                assert other.ends() == total.ends()


def test_rows_that_are_not_counted_are_named_and_say_nothing_of_the_others() -> None:
    values = normal(1000, r900=50.0)
    found = collected(values, 10, counted=lambda k: k < 5).outlying(1000)
    assert found is not None
    assert found.rows == (900,)
    assert found.sd == pytest.approx(values[:500].std(), rel=0.05)


def test_few_distinct_numbers_and_clusters_are_no_outliers() -> None:
    zeros = np.zeros(500)
    one_event = np.where(np.arange(500) == 3, 1.0, 0.0)
    cluster = np.where(np.arange(500) < KEPT, 1000.0, normal(500))
    rounded = np.full(500, 0.1) + np.where(np.arange(500) == 3, 1e-17, 0.0)
    for values in (zeros, one_event, cluster, rounded, normal(9, r3=100.0)):
        assert collected(values).outlying(values.size) is None
    assert Extremes().outlying(0) is None


SHAPES: dict[str, Callable[[Any, int], np.ndarray]] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "exponential": lambda rng, n: rng.exponential(size=n),
    "lognormal": lambda rng, n: rng.lognormal(size=n),
    "Student, three degrees": lambda rng, n: rng.standard_t(3, size=n),
    "clicks": lambda rng, n: (rng.random(n) < 0.02) * 1.0,
    "counts": lambda rng, n: rng.poisson(0.3, n) * 1.0,
    "spending": lambda rng, n: (rng.random(n) < 0.1) * rng.lognormal(2, 1, n),
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [10, 30, 300, 3000])
def test_columns_without_an_error_hardly_ever_have_one(shape: str, n: int) -> None:
    rng = np.random.default_rng(n)
    found = sum(collected(SHAPES[shape](rng, n)).outlying(n) is not None for _ in range(300))
    assert found <= 0.03 * 300
