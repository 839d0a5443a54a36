"""A column of text that is named as times is read as times of ISO 8601, in files and frames that state their types."""

import json
import warnings
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hieropo import HierOPO, LogMoments
from hieropo.doctor import examine
from hieropo.errors import HieropoWarning, LogError, SchemaError

COLUMNS = {"task": "store", "action": "offer", "reward": "profit"}
START = datetime(2024, 1, 1)


def log(form: str = "%Y-%m-%dT%H:%M:%S", n: int = 240, **others: Any) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {
        "store": [f"s{k}" for k in rng.integers(0, 6, n)],
        "offer": rng.choice(["gift", "none"], n).tolist(),
        "profit": rng.normal(5.0, 1.0, n).tolist(),
        "when": [(START + timedelta(hours=k)).strftime(form) for k in range(n)],
        **others,
    }


def parquet(columns: dict[str, Any], path: Path) -> Path:
    pq.write_table(pa.table(columns), path / "log.parquet")
    return path / "log.parquet"


def json_lines(columns: dict[str, Any], path: Path) -> Path:
    rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    (path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path / "log.jsonl"


SOURCES = {
    "Parquet": parquet,
    "JSON lines": json_lines,
    "Arrow": lambda columns, _: pa.table(columns),
    "pandas": lambda columns, _: pd.DataFrame(columns),
    "categories": lambda columns, _: pd.DataFrame(columns).astype({"when": "category"}),
    "polars": lambda columns, _: pl.DataFrame(columns),
}


def fitted(source: Any, **options: Any) -> HierOPO:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HieropoWarning)
        return HierOPO().fit(source, **COLUMNS, time="when", **options)


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("form", ["%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S+02:00"])
def test_text_of_iso_8601_is_read_as_the_time_stamps_are(make: Any, form: str, tmp_path: Path) -> None:
    columns = log(form)
    stamps = pa.table(log(when=pa.array([datetime.strptime(text, form) for text in columns["when"]])))
    facts = examine(make(columns, tmp_path), **COLUMNS, time="when").facts["time"]
    hours = 2 if "+" in form else 0
    assert facts["first"] == f"{START - timedelta(hours=hours):%Y-%m-%d %H:%M}"
    learner = fitted(make(columns, tmp_path))
    assert np.array_equal(learner.policy_.table.means, fitted(stamps).policy_.table.means)


def test_a_value_that_is_no_time_stops_with_its_place_and_is_set_aside(tmp_path: Path) -> None:
    columns = log()
    columns["when"][7] = "yesterday"
    source = parquet(columns, tmp_path)
    with pytest.raises(
        LogError, match=r"Column 'when', row 7: 'yesterday' is not a time without a zone .*--lenient"
    ):
        fitted(source)
    with pytest.warns(
        HieropoWarning, match=r"1 with a value that is missing or no time of ISO 8601 in 'when'"
    ):
        HierOPO().fit(source, **COLUMNS, time="when", lenient=True)


def test_times_with_a_zone_beside_times_without_are_refused(tmp_path: Path) -> None:
    columns = log()
    columns["when"][7] += "Z"
    with pytest.raises(LogError, match=r"row 7: '2024-01-01T07:00:00Z' is not a time without a zone"):
        fitted(parquet(columns, tmp_path))


@pytest.mark.parametrize("form", ["%d.%m.%Y", "%d/%m/%Y %H:%M", "%b %d %Y"])
def test_other_text_is_refused_with_the_way_to_convert_it(form: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"cannot be a time.*pandas\.to_datetime.*ISO 8601"):
        fitted(parquet(log(form), tmp_path))


def test_a_column_that_is_named_like_times_is_not_taken_but_told() -> None:
    columns = log()
    columns["timestamp"] = columns.pop("when")
    guesses = examine(pa.table(columns), **COLUMNS).guesses
    assert any("--time timestamp" in guess for guess in guesses)


def test_csv_with_other_dates_says_how_to_write_them(tmp_path: Path) -> None:
    pd.DataFrame(log("%d.%m.%Y")).to_csv(tmp_path / "log.csv", index=False)
    with pytest.raises(SchemaError, match=r"'01\.01\.2024' is neither.*pandas\.to_datetime.*2024-05-31"):
        fitted(tmp_path / "log.csv")


def test_moments_evaluations_and_more_rows_read_them_too(tmp_path: Path) -> None:
    source = parquet(log(), tmp_path)
    learner = fitted(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HieropoWarning)
        assert LogMoments.of(source, **COLUMNS, time="when").moments.n_rows == 240
        assert learner.evaluate(source, time="when").rows == 240
        assert learner.partial_fit(source).moments_.n_rows == 480
