"""Weights that count the rows of which a reward is the mean: found, and told from counts of equal rows."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hieropo import HierOPO
from hieropo.doctor import examine
from hieropo.errors import HieropoWarning

COLUMNS = {"task": "store", "action": "offer", "reward": "profit"}
KIND = "weights may count averaged rows"


def clicks(seed: int, n: int = 6_000, clicked: float = 0.3) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "store": rng.integers(0, 10, n),
            "offer": rng.choice(["a", "b"], n),
            "profit": rng.random(n) < clicked,
        }
    ).astype({"profit": float})


def means(rows: pd.DataFrame, size: int) -> pd.DataFrame:
    """One row for each group of ``size`` rows of a store and offer, with the mean reward and the number of rows."""
    part = rows.groupby(["store", "offer"]).cumcount() // size
    grouped = rows.assign(part=part).groupby(["store", "offer", "part"], as_index=False)
    return grouped.agg(profit=("profit", "mean"), n=("profit", "size")).drop(columns="part")


def findings(log: pd.DataFrame, **columns: Any) -> list[str]:
    return [finding.kind for finding in examine(log, **COLUMNS, **columns).findings]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_means_of_rows_are_found_with_the_role_that_fits_them(seed: int, noise: float) -> None:
    rows = clicks(seed)
    rows["profit"] += noise * np.random.default_rng(seed).standard_normal(len(rows))
    log = means(rows, 20)
    assert KIND in findings(log, weight="n")
    assert KIND not in findings(log, precision="n")
    with pytest.warns(HieropoWarning, match="narrow.*name the column as precision: precision='n'"):
        HierOPO().fit(log, **COLUMNS, weight="n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HieropoWarning)
        sd = HierOPO().fit(rows, **COLUMNS).summary().noise_sd.value
        assert HierOPO().fit(log, **COLUMNS, precision="n").summary().noise_sd.value == pytest.approx(
            sd, rel=0.1
        )


@pytest.mark.parametrize("values", [[0.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0], [0.5, 1.0, 1.5, 2.0]])
def test_counts_of_equal_rows_are_not(values: list[float]) -> None:
    rows = clicks(0)
    rows["profit"] = np.random.default_rng(0).choice(values, len(rows))
    log = rows.groupby([*rows.columns], as_index=False).size().rename(columns={"size": "n"})
    assert log["n"].mean() > 3
    assert KIND not in findings(log, weight="n")


def test_discounts_and_small_weights_are_not() -> None:
    rows = means(clicks(0), 20)
    assert KIND not in findings(rows.assign(n=0.9 ** np.arange(len(rows))), weight="n")
    assert KIND not in findings(rows.assign(n=np.arange(len(rows)) % 4), weight="n")
