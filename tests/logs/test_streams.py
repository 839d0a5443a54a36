"""Iterators of batches, lazy frames, and Arrow IPC."""

import polars as pl
import pyarrow as pa
import pyarrow.feather
import pytest
from sample_logs import ROLES, TABLE, N, ipc_file

from hieropo.errors import InputError, LogError, SchemaError
from hieropo.logs.opening import open_log
from hieropo.logs.reading import read
from hieropo.rows.batches import Roles


class TestIterators:
    def test_items_are_taken_one_after_the_other(self):
        taken = []

        def items():
            for start in range(0, N, 100):
                taken.append(start)
                yield TABLE.slice(start, 100)

        source = open_log(items())
        assert not source.rereadable
        assert taken == [0]
        next(read(source, ROLES, batch_rows=50))
        assert taken == [0]

    def test_items_get_the_types_of_the_first(self):
        items = [
            pa.table({"s": ["a"], "r": [1.5]}),
            pa.table({"r": [2], "s": pa.array(["b"]).dictionary_encode()}),
        ]
        (batch,) = read(iter(items), Roles("s", None, "r"))
        assert (batch.task.tolist(), batch.reward.tolist()) == (["a", "b"], [1.5, 2.0])

    @pytest.mark.parametrize(
        ("second", "message"),
        [
            (
                pa.table({"s": ["b"], "r": [2.5]}),
                "'r' is double in item 1 of the list_iterator.*int64 in the first",
            ),
            (pa.table({"s": ["b"]}), "Item 1 of the .* lacks column 'r'"),
        ],
    )
    def test_an_item_that_does_not_fit_is_named(self, second, message):
        with pytest.raises(SchemaError, match=message):
            list(read(iter([pa.table({"s": ["a"], "r": [1]}), second]), Roles("s", None, "r")))

    def test_other_items_are_refused(self):
        with pytest.raises(InputError, match=r"Item 0 .* is of type dict; .*from_pylist"):
            open_log(iter([{"s": "a"}]))
        with pytest.raises(LogError, match="has no rows"):
            open_log(iter([]))

    def test_an_error_of_the_iterator_is_its_own(self):
        def items():
            yield TABLE
            raise RuntimeError("the tap ran dry")

        with pytest.raises(RuntimeError, match="ran dry"):
            list(read(items(), ROLES))


class TestLazyFrames:
    def test_only_the_columns_asked_for_are_computed(self):
        frame = pl.LazyFrame({"s": [1, 2], "r": [1.0, 2.0]})
        frame = frame.with_columns(bad=pl.col("s").cast(pl.String).str.to_date(strict=True))
        (batch,) = read(frame, Roles("s", None, "r"))
        assert batch.task.tolist() == [1, 2]
        with pytest.raises(LogError, match="The polars LazyFrame cannot be run: "):
            list(open_log(frame).batches(["bad"]))

    def test_a_query_that_names_no_column_is_refused_at_once(self):
        with pytest.raises(LogError, match=r"LazyFrame cannot be run: .*nowhere"):
            open_log(pl.LazyFrame({"s": [1]}).select("nowhere"))


class TestIpc:
    @pytest.mark.parametrize("name", ["log.arrow", "log.arrows"])
    def test_a_torn_file_is_named(self, name, tmp_path):
        whole = ipc_file(TABLE, tmp_path, name).read_bytes()
        for cut in (0, 1, 7, 100, len(whole) // 2, len(whole) - 8, len(whole) - 1):
            (tmp_path / name).write_bytes(whole[:cut])
            with pytest.raises(LogError, match=rf"{name}' (cannot be read|is of no format)"):
                open_log(tmp_path / name)

    def test_a_file_that_was_edited_is_not_read_outside_of_itself(self, tmp_path):
        codes = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 1], pa.int32()), ["a", "b"])
        path = ipc_file(pa.table({"s": codes, "r": [1.0] * 4}), tmp_path)
        content = path.read_bytes()
        place = content.index(pa.array([0, 1, 0, 1], pa.int32()).buffers()[1].to_pybytes())
        path.write_bytes(content[:place] + b"\xff\x00\x00\x00" + content[place + 4 :])
        with pytest.raises(LogError, match=r"log\.arrow' cannot be read as Arrow IPC"):
            list(read(path, Roles("s", None, "r")))

    def test_feather_with_compression_is_read(self, tmp_path):
        pyarrow.feather.write_feather(TABLE, tmp_path / "log.feather", compression="zstd")
        assert sum(len(batch) for batch in read(tmp_path / "log.feather", ROLES)) == N

    def test_feather_of_version_1_is_refused(self, tmp_path):
        (tmp_path / "log.feather").write_bytes(b"FEA1 and more")
        with pytest.raises(LogError, match="Feather version 1"):
            open_log(tmp_path / "log.feather")

    def test_types_are_widened_over_files(self, tmp_path):
        ipc_file(pa.table({"s": ["a"], "r": [1]}), tmp_path, "1.arrow")
        ipc_file(pa.table({"r": [1.5], "s": pa.array(["b"]).dictionary_encode()}), tmp_path, "2.feather")
        (batch,) = read(tmp_path, Roles("s", None, "r"))
        assert (batch.task.tolist(), batch.reward.tolist()) == (["a", "b"], [1.0, 1.5])
