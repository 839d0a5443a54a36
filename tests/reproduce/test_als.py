"""Alternating least squares against its definition, on any number of threads, and on MovieLens where that is."""

import numpy as np
import pytest
from real_data import real_table

from hieropo import InputError, LogError
from hieropo.reproduce.movielens.als import Factors, factorize


def sparse(
    seed: int, m: int = 30, p: int = 20, share: float = 0.4
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values at random places, not in order; the last row and column are there, row 3 and column 5 have none."""
    rng = np.random.default_rng(seed)
    there = rng.random((m, p)) < share
    there[3], there[:, 5], there[-1, -1] = False, False, True
    row, column = np.nonzero(there)
    order = rng.permutation(row.size)
    return row[order], column[order], rng.normal(3.0, 1.0, row.size)


def slow(row, column, value, rng, rank: int, ridge: float, iterations: int) -> Factors:
    """One normal equation after the other, from the definition."""
    m, p = row.max() + 1, column.max() + 1
    U, V = np.zeros((m, rank)), rng.standard_normal((p, rank)) / np.sqrt(rank)
    for _ in range(iterations):
        for mine, at, other, to in ((U, row, V, column), (V, column, U, row)):
            for s in range(len(mine)):
                X, y = other[to[at == s]], value[at == s]
                mine[s] = np.linalg.solve(X.T @ X + ridge * np.eye(rank), X.T @ y)
    return Factors(U, V)


@pytest.mark.parametrize("rank", [1, 3, 7, 8, 9, 16, 17])
@pytest.mark.parametrize("ridge", [1.0, 0.03])
def test_it_is_one_normal_equation_after_the_other(rank: int, ridge: float) -> None:
    row, column, value = sparse(rank)
    found = factorize(row, column, value, np.random.default_rng(5), rank=rank, ridge=ridge, iterations=3)
    expected = slow(row, column, value, np.random.default_rng(5), rank, ridge, 3)
    assert found.rows == pytest.approx(expected.rows, rel=1e-8, abs=1e-9)
    assert found.columns == pytest.approx(expected.columns, rel=1e-8, abs=1e-9)
    assert not found.rows[3].any()
    assert not found.columns[5].any()


def objective(found: Factors, row, column, value, ridge: float) -> float:
    rest = value - (found.rows[row] * found.columns[column]).sum(axis=1)
    return float(rest @ rest + ridge * ((found.rows**2).sum() + (found.columns**2).sum()))


@pytest.mark.slow
def test_each_pass_lowers_the_objective_and_the_end_is_a_stationary_point() -> None:
    row, column, value = sparse(1)
    passes = [
        factorize(row, column, value, np.random.default_rng(0), rank=3, iterations=k) for k in (1, 2, 5, 500)
    ]
    values = [objective(each, row, column, value, 1.0) for each in passes]
    assert values == sorted(values, reverse=True)
    end = passes[-1]
    rest = end.residuals(row, column, value)
    slope = np.zeros_like(end.rows)
    np.add.at(slope, row, -rest[:, None] * end.columns[column])
    assert slope + end.rows == pytest.approx(np.zeros_like(slope), abs=1e-6)


def test_neither_the_order_of_values_nor_the_number_of_threads_matters() -> None:
    row, column, value = sparse(2, m=200, p=90)
    found = factorize(row, column, value, np.random.default_rng(0), rank=4, iterations=2, threads=1)
    for threads in (2, 3):
        other = factorize(row, column, value, np.random.default_rng(0), rank=4, iterations=2, threads=threads)
        assert np.array_equal(other.rows, found.rows)
        assert np.array_equal(other.columns, found.columns)
    order = np.lexsort((column, row))
    other = factorize(
        row[order].astype(np.int16), column[order].astype(np.uint8), value[order].tolist(), np.random.default_rng(0),
        rank=4, iterations=2,
    )  # fmt: skip
    assert other.rows == pytest.approx(found.rows, abs=1e-10)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"value": [1.0, np.nan]}, LogError, r"value\[1\] is nan"),
        ({"row": [], "column": [], "value": []}, LogError, "no values"),
        ({"row": [0, 1, 2]}, InputError, "do not fit"),
        ({"row": [0, -1]}, InputError, "row is of type int64 from -1 on"),
        ({"column": [0.0, 1.0]}, InputError, "column is of type float64"),
        ({"rank": 0}, InputError, "rank=0"),
        ({"ridge": 0.0}, InputError, "ridge=0.0"),
        ({"ridge": float("nan")}, InputError, "ridge=nan"),
        ({"iterations": 0}, InputError, "iterations=0"),
    ],
)
def test_what_cannot_be_used_is_refused(change: dict, error: type[Exception], said: str) -> None:
    given = {"row": [0, 1], "column": [1, 0], "value": [1.0, 2.0], "rank": 1, **change}
    with pytest.raises(error, match=said):
        factorize(rng=np.random.default_rng(0), **given)


@pytest.mark.slow
def test_the_ratings_of_movielens_leave_the_residual_that_is_known() -> None:
    from hieropo.reproduce.movielens.ratings import read_ratings
    from hieropo.reproduce.settings import settings_of, shipped

    path = real_table("ml1m_ratings_notime.parquet")
    ratings = read_ratings(path, settings_of(shipped(), "paper.toml").movielens.counts)
    for seed in (0, 1):
        found = factorize(ratings.user, ratings.movie, ratings.rating, np.random.default_rng(seed), rank=10)
        rest = found.residuals(ratings.user, ratings.movie, ratings.rating)
        assert rest.std() == pytest.approx(0.7596, abs=5e-4)  # the paper rounds it to .759
