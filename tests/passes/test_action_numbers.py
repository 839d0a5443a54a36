"""A fit finds the actions in the pass that sums the rows: the same map and sums as with the actions known before."""

import datetime as dt
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hieropo import FlatOPO, HierOPO, InputError, LogError, LogMoments, MismatchError
from hieropo.errors import HieropoWarning
from hieropo.features.maps import Columns, indicator, per_action
from hieropo.logs.arrow.log_source import WrappedSource
from hieropo.logs.opening import open_log
from hieropo.passes.checkpoints import features_and_sums
from hieropo.passes.log_moments import has_per_action_sums
from hieropo.passes.summing import sums
from hieropo.rows.batches import Roles

IDS: dict[str, Any] = {
    "text": [f"offer {k}" for k in (7, 2, 9, 4, 0)],
    "whole": [7, -2, 9, 4, 0],
    "float": [0.5, -2.25, 9.0, 4.0, 0.0],
    "date": [dt.date(2026, 1, day) for day in (7, 2, 9, 4, 1)],
    "time": [dt.datetime(2026, 1, 1, hour, tzinfo=dt.UTC) for hour in (7, 2, 9, 4, 1)],
    "bytes": [b"q", b"b", b"z", b"d", b"a"],
}
ROLES = Roles("store", "offer", "margin", context=("age",))
NAMED = {"task": "store", "action": "offer", "reward": "margin", "context": ["age"]}


def log_table(kind: str = "text", n: int = 3000, *, late: bool = True) -> pa.Table:
    """Rows whose actions come one after the other, the last ones late, if ``late``."""
    rng = np.random.default_rng(5)
    code = rng.integers(0, 5, n)
    code = np.sort(code) if late else code
    table = {
        "store": [f"store {k}" for k in rng.integers(0, 30, n)],
        "offer": pa.array(IDS[kind]).take(pa.array(code)),
        "age": rng.integers(18, 90, n).astype(float),
        "margin": rng.standard_normal(n) + 0.2 * code,
        "v": rng.uniform(0.5, 2.0, n),
        "s": rng.uniform(1.0, 3.0, n),
    }
    return pa.table(table)


def in_files(table: pa.Table, path: Path, files: int = 6) -> Path:
    path.mkdir()
    step = -(-len(table) // files)
    for k in range(files):
        pq.write_table(table.slice(k * step, step), path / f"{k}.parquet")
    return path


class CountedSource(WrappedSource):
    """A source that counts the rows of every column that it hands out."""

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.rows: dict[str, int] = {}

    def batches(self, columns: Sequence[str], batch_rows: int = 1000) -> Iterator[pa.RecordBatch]:
        for batch in super().batches(columns, batch_rows):
            for column in columns:
                self.rows[column] = self.rows.get(column, 0) + batch.num_rows
            yield batch


def test_the_actions_cost_no_read_of_their_own() -> None:
    source = CountedSource(open_log(log_table(), rereadable=True))
    features, summed = features_and_sums(source, None, ROLES, has_per_action_sums)
    assert features == per_action(sorted(IDS["text"]), ["age"])
    assert summed.sketch.rows == 3000
    assert source.rows == {
        "store": 3000,
        **dict.fromkeys(("offer", "age", "margin"), 4000),
    }  # and a first batch


@pytest.mark.slow
@pytest.mark.parametrize("few", [0, 10**9])  # rows are read in place, or as batches
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("kind", IDS)
def test_map_and_sums_are_those_of_actions_known_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, threads: int, few: int
) -> None:
    monkeypatch.setattr("hieropo.passes.worker._FEW", few)
    table = log_table(kind)
    source = open_log(in_files(table, tmp_path / "log"), rereadable=True)
    known = per_action(sorted(IDS[kind]), ["age"])
    features, summed = features_and_sums(source, None, ROLES, has_per_action_sums, threads=threads)
    origin = features.recentred(None)
    assert origin == known
    direct = sums(source, features, ROLES, per_action=True, threads=threads, offset=summed.moments.offset)
    assert summed.moments.features == direct.moments.features == features.fingerprint
    for name in ("sums", "rows", "log_precision"):
        assert getattr(summed.moments, name).tobytes() == getattr(direct.moments, name).tobytes()
    assert summed.moments.tasks.tolist() == direct.moments.tasks.tolist()
    assert summed.sketch.to_dict() == direct.sketch.to_dict()


@pytest.mark.parametrize(
    "weights", [{"precision": "v"}, {"sampling_weight": "s"}, {"precision": "v", "weight": "s"}]
)
def test_rows_with_weights_of_every_role_are_given_more_actions(weights: dict[str, str]) -> None:
    table = log_table()
    roles = Roles("store", "offer", "margin", context=("age",), **weights)
    source = CountedSource(open_log(table, rereadable=True))  # batches of a thousand rows
    features, summed = features_and_sums(source, None, roles, has_per_action_sums)
    direct = sums(source, features, roles, per_action=True, offset=summed.moments.offset)
    for name in ("sums", "rows", "log_precision", "squares"):
        np.testing.assert_array_equal(getattr(summed.moments, name), getattr(direct.moments, name))


@pytest.mark.slow
def test_the_order_of_rows_does_not_order_the_actions() -> None:
    table = log_table()
    for rows in (np.arange(3000), np.arange(3000)[::-1], np.random.default_rng(0).permutation(3000)):
        learner = HierOPO().fit(table.take(pa.array(rows)), **NAMED)
        assert learner.features_.actions == tuple(sorted(IDS["text"]))
        assert learner.moments_.rows.sum(axis=0).tolist() == [
            table["offer"].to_pylist().count(action) for action in sorted(IDS["text"])
        ]


@pytest.mark.parametrize("learner", [HierOPO(task_cov="diag", uncertainty="plug-in"), FlatOPO()])
def test_moments_of_all_features_have_the_actions_too(learner: Any) -> None:
    table = log_table()
    learner.fit(table, **NAMED)
    again = type(learner)(**{**learner.get_params(), "features": learner.features_}).fit(table, **NAMED)
    assert learner.moments_.allclose(again.moments_, rtol=1e-14)
    assert learner.moments_.features == again.moments_.features


def test_an_action_of_rows_that_are_set_aside_alone_is_none() -> None:
    table = log_table(late=False)
    gone = [None if offer == "offer 9" else value for offer, value in zip(
        table["offer"].to_pylist(), table["margin"].to_pylist(), strict=True
    )]  # fmt: skip
    table = table.set_column(table.column_names.index("margin"), "margin", pa.array(gone))
    with pytest.warns(HieropoWarning, match="were set aside"):
        moments = LogMoments.of(table, **NAMED, lenient=True)
    assert moments.features.actions == ("offer 0", "offer 2", "offer 4", "offer 7")


def test_lists_of_a_lenient_log_are_checked_against_all_actions() -> None:
    table = log_table(n=300, late=False).append_column(
        "can", pa.array([[*IDS["text"], *(["nobody's"] if k == 7 else [])] for k in range(300)])
    )
    with pytest.warns(HieropoWarning, match=r"1 of 300 rows .* a list with an unknown action"):
        moments = LogMoments.of(table, **NAMED, eligible="can", lenient=True)
    assert moments.n_rows == 299


def test_a_log_of_which_no_row_is_left_is_refused() -> None:
    table = log_table(n=100)
    for column, value in (("margin", None), ("offer", None)):
        values = pa.array([value] * 100, table[column].type)
        with pytest.raises(LogError, match="100 of 100 rows"):
            LogMoments.of(
                table.set_column(table.column_names.index(column), column, values), **NAMED, lenient=True
            )


@pytest.mark.slow
def test_new_actions_join_in_partial_fit_without_a_read_of_their_own() -> None:
    table = log_table()
    learner = HierOPO().fit(table.slice(0, 1500), **NAMED)
    assert len(learner.features_.actions) == 3
    stream = pa.RecordBatchReader.from_batches(table.schema, table.slice(1500).to_batches())  # is read once
    learner.partial_fit(stream)
    whole = HierOPO(features=learner.features_).fit(table, **NAMED)
    assert learner.features_.actions == tuple(sorted(IDS["text"]))
    assert learner.moments_.allclose(whole.moments_, rtol=1e-12)
    before = learner.features_
    learner.partial_fit(table.slice(0, 100))
    assert learner.features_ == before


def test_new_actions_of_another_type_do_not_join() -> None:
    learner = HierOPO().fit(log_table("text"), **NAMED)
    with pytest.raises(MismatchError, match=r"actions are of the types \['str'\] and \['int'\]"):
        learner.partial_fit(log_table("whole"))


def test_an_action_that_cannot_be_written_down_stops_the_pass_where_it_comes() -> None:
    nanoseconds = pa.array(np.arange(20) + 1, pa.timestamp("ns"))
    table = log_table(n=20).set_column(1, "offer", nanoseconds)
    with pytest.raises(InputError, match="microsecond"):
        LogMoments.of(table, **NAMED)


def test_an_indicator_grows_too() -> None:
    table = log_table()
    moments = LogMoments.of(table, task="store", action="offer", reward="margin")
    assert moments.features == indicator(sorted(IDS["text"]))
    assert moments.moments.rows.sum() == 3000


def test_a_map_without_actions_takes_actions_of_any_type() -> None:
    nanoseconds = pa.array(np.arange(3000) % 3 + 1, pa.timestamp("ns"))
    table = log_table().set_column(1, "offer", nanoseconds)
    learner = HierOPO("columns").fit(table, **NAMED)
    assert learner.features_ == Columns(("age",))


def test_missing_actions_of_a_polars_frame_are_refused_with_their_place() -> None:
    frame = pl.DataFrame({"task": ["a", "b"], "action": [None, "x"], "reward": [1.0, 2.0]})
    with pytest.raises(LogError, match="Column 'action', row 0"):
        LogMoments.of(frame, task="task", action="action", reward="reward")
