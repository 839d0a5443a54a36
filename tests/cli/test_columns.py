"""Columns of text, times and holes on the command line, from a raw CSV file to decisions."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from command_line import FIT, answers, refuses


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a log and requests as CSV."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    n = 400
    log = pd.DataFrame(
        {
            "store": rng.integers(0, 6, n), "offer": rng.choice(["gift", "none"], n),
            "price": rng.gamma(2.0, 4.0, n).round(2), "device": rng.choice(["phone", "web", "7", None], n),
            "at": pd.date_range("2026-01-01", periods=n, freq="5h"),
        }
    )  # fmt: skip
    log["profit"] = (2.0 * (log.device == "phone") * (log.offer == "gift") + rng.normal(size=n)).round(3)
    log.to_csv("log.csv", index=False)
    requests = log.head(6).drop(columns=["offer", "profit"]).assign(device=["7", "7", None, "9", "7", "7"])
    requests.to_csv("requests.csv", index=False)
    return tmp_path


@pytest.mark.usefixtures("site")
def test_a_raw_file_becomes_a_policy_decisions_and_moments() -> None:
    found = answers(
        "fit", "log.csv", *FIT, "--algorithm", "pooled", "-o", "policy", "--context", "device,price,at"
    )
    assert "category(device) + number(price) + cyclic(at, 'day')" in " ".join(found.split())
    assert "3 levels" in found
    decided = json.loads(answers("decide", "policy", "requests.csv", "-o", "decisions.parquet", "--json"))
    assert (decided["requests"], decided["other_levels"]) == (6, {"device": 1})  # 7 is text, as in the log
    decisions = pq.read_table("decisions.parquet")
    assert decisions["action"].null_count == 0
    assert decisions["device_known"].to_pylist() == [True, True, True, False, True, True]  # null is no level
    formula = ["--features", "device + spline(price, 3)"]
    assert "14 features" in answers(
        "moments", "log.csv", *FIT, *formula, "-o", "moments", "--filter", "price >= 3"
    )
    answers("moments", "log.csv", *FIT, "--features", "moments", "-o", "more", "--filter", "price < 3")
    assert "14 features" in answers("moments", "merge", "moments", "more", "-o", "both")
    at = "device=phone,price=3,at=2026-01-05 10:00:00"
    assert "device=phone = 1" in answers("inspect", "policy", "--task", "3", "--at", at)


@pytest.mark.usefixtures("site")
def test_errors_of_formulas_and_unused_columns_are_told() -> None:
    out = [*FIT, "--algorithm", "pooled", "-o", "policy"]
    assert "at position 9" in refuses(2, "fit", "log.csv", *out, "--features", "device + spline(price, 99)")
    assert "Did you mean 'price'?" in refuses(1, "fit", "log.csv", *out, "--features", "device + prise")
    assert "the columns 'price', 'device', 'at' play no role" in " ".join(
        answers("fit", "log.csv", *out).split()
    )
