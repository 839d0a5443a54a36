"""Tables of results become frames of every kind."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from hieropo import SchemaError
from hieropo.logs.arrow.result_table import ResultTable
from hieropo.logs.arrow.writing import task_id_columns

TABLE = ResultTable.of(
    {"task": ["a", "b"], "gain": np.array([0.25, np.nan]), "passed": np.array([True, False])}
)


def test_a_table_becomes_arrow_pandas_and_polars() -> None:
    assert TABLE.table.to_pydict() == {"task": ["a", "b"], "gain": [0.25, None], "passed": [True, False]}
    assert pa.table(TABLE).equals(TABLE.table)
    frame = TABLE.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert frame["gain"].tolist()[0] == 0.25
    assert TABLE.to_polars().equals(pl.DataFrame(TABLE))
    assert TABLE.to_dict()["task"] == ["a", "b"]


def test_columns_are_arrays() -> None:
    assert len(TABLE) == 2
    assert TABLE.columns == ("task", "gain", "passed")
    assert np.isnan(TABLE["gain"][1])
    assert TABLE["task"].tolist() == ["a", "b"]
    with pytest.raises(SchemaError, match=r"no column 'gian'. Its columns: 'task', 'gain', 'passed'"):
        TABLE["gian"]


def test_a_table_shows_its_first_rows() -> None:
    lines = ["2 rows, 3 columns", "task  gain  passed", "a     0.25  True", "b           False"]
    assert repr(TABLE).splitlines() == lines
    long = ResultTable.of({"n": range(30)})
    assert repr(long).endswith("... 20 more rows")
    assert "<b>" not in ResultTable.of({"<b>": ["<b>"]})._repr_html_()


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(Exception, match="polars is not installed"):
        TABLE.to_polars()


def test_tasks_of_several_columns_are_columns_of_their_own_types() -> None:
    columns = task_id_columns(("city", "branch"), [("Delft", 3), ("Gouda", 7)])
    assert pa.table(columns).to_pydict() == {"city": ["Delft", "Gouda"], "branch": [3, 7]}
    assert task_id_columns(None, ["all"]) == {}
