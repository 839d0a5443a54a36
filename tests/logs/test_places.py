"""Messages name a row where the reader finds it: by the line of its file of text, else by its number from 0."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hieropo import HierOPO, open_log
from hieropo.doctor import examine
from hieropo.errors import HieropoWarning, LogError, UnknownActionError
from hieropo.logs import read
from hieropo.logs.arrow.log_source import place_of
from hieropo.logs.interop.joining import join_rewards
from hieropo.rows.batches import Roles

COLUMNS = {"task": "store", "action": "offer", "reward": "profit"}
ROWS = [("a", "gift", 1.0), ("b", "none", 2.0), ("a", "none", None), ("b", "gift", 3.0), ("a", "gift", 2.5)]
WAY_OUT = "lenient=True, on the command line --lenient"


def rows(times: int = 4) -> pa.Table:
    """The fifth part of the rows has no reward, first row 2."""
    names = ("store", "offer", "profit")
    return pa.table(dict(zip(names, map(list, zip(*ROWS * times, strict=True)), strict=True)))


def csv(path: Path, lines: list[str], header: str = "store,offer,profit") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def plain(path: Path) -> Path:
    return csv(path, [f"{store},{offer},{'' if r is None else r}" for store, offer, r in ROWS * 4])


def refused(log: Any, **options: Any) -> str:
    with pytest.raises(LogError) as error:
        HierOPO().fit(log, **COLUMNS, **options)
    return str(error.value)


def test_csv_names_the_line_of_an_editor_and_the_way_out(tmp_path: Path) -> None:
    text = refused(plain(tmp_path / "log.csv"))
    assert text.startswith(f"Column 'profit', line 4 of {str(tmp_path / 'log.csv')!r}: null")
    assert WAY_OUT in text
    assert "Rows count from 0" not in text


def test_lines_of_csv_with_values_of_several_lines_and_empty_lines(tmp_path: Path) -> None:
    log = csv(tmp_path / "log.csv", ['"a\n1",gift,1', "", 'b,"no\nne",2', "b,gift,"])
    assert "line 7 of" in refused(log)


def test_the_second_file_has_its_own_lines(tmp_path: Path) -> None:
    csv(tmp_path / "1.csv", ["a,gift,1", "b,none,2"])
    csv(tmp_path / "2.csv", ["a,gift,1", "b,none,"])
    assert f"line 3 of {str(tmp_path / '2.csv')!r}" in refused(tmp_path)


def test_json_lines_with_a_blank_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        '{"store": "a", "offer": "x", "profit": 1}\n\n{"store": "a", "offer": "y", "profit": null}\n'
    )
    assert f"line 3 of {str(path)!r}" in refused(path)


def test_frames_and_parquet_name_the_row_and_the_number_of_the_first(tmp_path: Path) -> None:
    pq.write_table(rows(), tmp_path / "log.parquet")
    for log in (tmp_path / "log.parquet", rows(), pl.from_arrow(rows())):
        text = refused(log)
        assert text.startswith("Column 'profit', row 2: null")
        assert WAY_OUT in text
        assert text.endswith("Rows count from 0.")


def test_several_files_of_parquet_name_the_file_and_its_row(tmp_path: Path) -> None:
    pq.write_table(rows().slice(0, 2), tmp_path / "1.parquet")
    pq.write_table(rows().slice(1, 4), tmp_path / "2.parquet")
    assert f"row 1 of {str(tmp_path / '2.parquet')!r}: null" in refused(tmp_path)


def test_a_filter_says_among_which_rows_it_counts(tmp_path: Path) -> None:
    text = refused(open_log(plain(tmp_path / "log.csv"), filter="store = 'a'"))
    assert "row 1 of those where store = 'a': null" in text


def test_reading_batches_names_the_same_place(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="line 4 of"):
        list(read(plain(tmp_path / "log.csv"), Roles("store", "offer", "profit")))


def test_an_action_that_the_map_does_not_know_is_on_its_line(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HieropoWarning)
        learner = HierOPO().fit(rows(), **COLUMNS, lenient=True)
    other = csv(tmp_path / "log.csv", ["a,gift,1", "b,none,2", "a,bonus,2"])
    with pytest.raises(UnknownActionError, match="line 4 of"):
        learner.evaluate(other)
    weighted = pa.table({**rows().drop_null().to_pydict(), "n": [3.0] * 16})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HieropoWarning)
        learner = HierOPO().fit(weighted, **COLUMNS, weight="n")
    other = csv(
        tmp_path / "log.csv", ["a,gift,1,3", "b,none,2,4", "a,bonus,2,2"], header="store,offer,profit,n"
    )
    with pytest.raises(UnknownActionError, match="line 4 of"):
        learner.evaluate(other)


def test_the_doctor_and_a_fit_name_the_same_place(tmp_path: Path) -> None:
    log = plain(tmp_path / "log.csv")
    finding = examine(log, **COLUMNS).findings[0]
    place = f"line 4 of {str(log)!r}"
    assert finding.place == f"column 'profit' from {place}"
    assert f"first in {place}." in str(finding)
    assert place in refused(log)
    assert "first in row 2. Rows count from 0." in str(examine(rows(), **COLUMNS).findings[0])


def test_the_doctor_names_lines_of_rewards_far_from_all_others(tmp_path: Path) -> None:
    values = [f"{'ab'[k % 2]},{'xy'[k // 2 % 2]},{k % 7}" for k in range(2_000)]
    values[10] = values[40] = "a,x,1e6"
    log = csv(tmp_path / "log.csv", values)
    places = [finding.place for finding in examine(log, **COLUMNS).findings]
    assert f"column 'profit', lines 12, 42 of {str(log)!r}" in places


def test_rows_set_aside_are_on_their_lines(tmp_path: Path) -> None:
    log = plain(tmp_path / "log.csv")
    with pytest.warns(HieropoWarning, match=r"first in line 4 of '.*log.csv'\) were set aside"):
        learner = HierOPO().fit(log, **COLUMNS, lenient=True)
    assert learner.rejected_.reasons[0].to_dict()["place"] == f"line 4 of {str(log)!r}"


def test_a_strict_decision_names_the_line(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HieropoWarning)
        learner = HierOPO().fit(rows(), **COLUMNS, lenient=True)
    requests = csv(tmp_path / "requests.csv", ["a,1", ",2"], header="store,visit")
    with pytest.raises(LogError, match=r"Column 'store', line 3 of '.*requests.csv': null"):
        learner.decide(requests, strict=True)
    with pytest.warns(HieropoWarning, match=r"first in line 3 of '.*requests.csv'"):
        learner.decide(requests)


def test_the_place_is_counted_through_files(tmp_path: Path) -> None:
    csv(tmp_path / "1.csv", ["a,gift,1", "b,none,2"])
    csv(tmp_path / "2.csv", ["a,gift,1", "b,none,2"])
    log = open_log(tmp_path)
    assert [place_of(log, k).split("/")[-1] for k in range(4)] == ["1.csv'", "1.csv'", "2.csv'", "2.csv'"]
    assert [place_of(log, k).split(" of ")[0] for k in range(4)] == ["line 2", "line 3"] * 2


def test_the_list_of_rows_has_the_lines_of_files_of_text(tmp_path: Path) -> None:
    csv(tmp_path / "log" / "1.csv", ['"a\n1",gift,1', '"a\n1",none,', "", "b,gift,"])
    csv(tmp_path / "log" / "2.csv", [*["b,none,2", "a,gift,1"] * 3, ",none,"])
    listed = tmp_path / "bad.csv"
    with pytest.warns(HieropoWarning, match="set aside"):
        HierOPO().fit(tmp_path / "log", **COLUMNS, lenient=True, rejects=listed)
    found = pl.read_csv(listed).select("row", "line", "column").rows()
    assert found == [(1, 4, "profit"), (2, 7, "profit"), (9, 8, "store"), (9, 8, "profit")]


def test_the_list_of_rows_of_a_frame_has_no_lines(tmp_path: Path) -> None:
    with pytest.warns(HieropoWarning, match="set aside"):
        HierOPO().fit(rows(), **COLUMNS, lenient=True, rejects=tmp_path / "bad.csv")
    assert pl.read_csv(tmp_path / "bad.csv").columns == ["file", "row", "column", "value", "reason"]


def test_a_join_names_the_lines_of_both_streams(tmp_path: Path) -> None:
    shown = csv(tmp_path / "shown.csv", ["1,2026-01-01T00:00:00Z", "1,2026-01-01T00:00:00Z"], header="id,at")
    came = csv(tmp_path / "came.csv", ["1,2026-01-01T01:00:00Z,1", "1,,1"], header="id,at,reward")
    options: dict[str, Any] = {"id": "id", "time": "at", "window": "24h", "default": 0.0}
    with pytest.raises(LogError, match=r"line 3 of '.*came.csv': the value is null"):
        join_rewards(shown, came, **options)
    with pytest.raises(LogError, match=r"in line 2 of '.*shown.csv' and line 3 of '.*shown.csv'"):
        join_rewards(shown, pa.table({"id": [1], "at": ["2026-01-01T01:00:00Z"], "reward": [1.0]}), **options)


def test_an_evaluation_names_the_line_of_the_largest_residual(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = [f"{'ab'[k % 2]},{'xy'[k // 2 % 2]},{rng.normal():.4f}" for k in range(400)]
    values[17] = "b,x,60"
    log = csv(tmp_path / "log.csv", values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HieropoWarning)
        evaluation = HierOPO().fit(log, **COLUMNS).evaluate(log)
    assert evaluation.checks is not None
    text = next(text for text in evaluation.checks.findings if "lies" in text)
    assert text.startswith(f"The reward of line 19 of {str(log)!r}, task 'b', lies")
