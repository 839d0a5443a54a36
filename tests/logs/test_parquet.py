import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from sample_logs import ROLES, TABLE, N, parquet_file, parquet_folder

from hieropo.errors import LogError, SchemaError
from hieropo.logs.opening import open_log
from hieropo.logs.reading import read
from hieropo.rows.batches import Roles


class TestParquet:
    def test_files_are_read_in_the_order_of_their_paths(self, tmp_path):
        folder = parquet_folder(TABLE, tmp_path)
        stores = [task for batch in read(folder, ROLES) for task in batch.task]
        assert stores == TABLE["store"].to_pylist()

    def test_row_numbers_are_those_of_the_file(self, tmp_path):
        pq.write_table(pa.table({"s": ["a"] * 5, "r": [1.0] * 5}), tmp_path / "1.parquet")
        pq.write_table(pa.table({"s": ["a"] * 5, "r": [1.0, None, 1.0, 1.0, 1.0]}), tmp_path / "2.parquet")
        with pytest.raises(LogError, match=r"row 1 of '.*2\.parquet': null"):
            list(read(tmp_path, Roles("s", None, "r"), batch_rows=4))

    def test_types_are_widened_over_files(self, tmp_path):
        pq.write_table(pa.table({"s": pa.array([1, 2], pa.int8()), "r": [1, 2]}), tmp_path / "1.parquet")
        pq.write_table(pa.table({"s": pa.array([3, 4], pa.int64()), "r": [1.5, 2]}), tmp_path / "2.parquet")
        pq.write_table(pa.table({"r": [1.5], "s": [5], "new": ["x"]}), tmp_path / "3.parquet")
        (batch,) = read(tmp_path, Roles("s", None, "r"))
        assert batch.task.tolist() == [1, 2, 3, 4, 5]
        assert batch.reward.tolist() == [1.0, 2.0, 1.5, 2.0, 1.5]
        with pytest.raises(SchemaError, match=r"'new' is missing from .*1\.parquet.*though other files"):
            list(read(tmp_path, Roles("new", None, "r")))

    def test_values_that_the_wider_type_cannot_hold_are_refused(self, tmp_path):
        pq.write_table(pa.table({"s": [2**53 + 1], "r": [1.0]}), tmp_path / "1.parquet")
        pq.write_table(pa.table({"s": [1.5], "r": [1.0]}), tmp_path / "2.parquet")
        with pytest.raises(SchemaError, match=r"'s' of .*1\.parquet' is int64, but double over all files"):
            list(read(tmp_path, Roles("s", None, "r")))

    def test_texts_and_categories_are_read_together(self, tmp_path):
        for part, column in enumerate(
            [
                pa.array(["a", "b"] * 50).dictionary_encode(),
                pa.array(["b", "c"] * 50),
                pa.array([f"long and distinct {i}" for i in range(100)], pa.large_string()),
            ]
        ):
            pq.write_table(pa.table({"s": column, "r": np.arange(100.0)}), tmp_path / f"{part}.parquet")
        tasks = [
            task for batch in read(tmp_path, Roles("s", None, "r"), batch_rows=64) for task in batch.task
        ]
        assert tasks[:3] == ["a", "b", "a"]
        assert tasks[100:102] == ["b", "c"]
        assert tasks[-1] == "long and distinct 99"

    def test_types_that_do_not_fit_name_the_file(self, tmp_path):
        pq.write_table(pa.table({"s": ["a"], "r": [1.0]}), tmp_path / "1.parquet")
        pq.write_table(pa.table({"s": [1], "r": [1.0]}), tmp_path / "2.parquet")
        with pytest.raises(SchemaError, match=r"2\.parquet' does not fit the files before it.*1\.parquet"):
            open_log(tmp_path)

    def test_a_file_without_rows_among_others_is_fine(self, tmp_path):
        pq.write_table(TABLE.slice(0, 0), tmp_path / "0.parquet")
        pq.write_table(TABLE, tmp_path / "1.parquet")
        assert sum(len(batch) for batch in read(tmp_path, ROLES)) == N

    def test_a_torn_file_is_named(self, tmp_path):
        whole = parquet_file(TABLE, tmp_path).read_bytes()
        torn = tmp_path / "torn.parquet"
        torn.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(LogError, match=r"torn\.parquet' cannot be read as Parquet.*cut off"):
            open_log(torn)
        with pytest.raises(LogError, match=r"torn\.parquet' cannot be read"):
            open_log(tmp_path)
        torn.write_bytes(b"")
        with pytest.raises(LogError, match=r"torn\.parquet'.*empty \(0 bytes\)"):
            open_log(torn)

    def test_a_file_with_torn_pages_is_named(self, tmp_path):
        path = tmp_path / "log.parquet"
        pq.write_table(TABLE, path, compression="gzip")
        content = bytearray(path.read_bytes())
        content[100 : len(content) // 2] = b"\x00" * (len(content) // 2 - 100)
        path.write_bytes(bytes(content))
        with pytest.raises(
            LogError, match=r"log\.parquet' is damaged: it should hold 1000 rows, but reading fails after 0"
        ):
            list(read(path, ROLES))

    def test_table_formats_are_refused(self, tmp_path):
        pq.write_table(TABLE, tmp_path / "part.parquet")
        (tmp_path / "_delta_log").mkdir()
        with pytest.raises(LogError, match=r"is a Delta table.*delta_scan"):
            open_log(tmp_path)
        (tmp_path / "_delta_log").rmdir()
        (tmp_path / "metadata").mkdir()
        (tmp_path / "metadata" / "v1.metadata.json").write_text("{}")
        with pytest.raises(LogError, match=r"is an Iceberg table.*iceberg_scan"):
            open_log(tmp_path)

    def test_a_dataset_with_a_torn_file_is_named(self, tmp_path):
        pq.write_table(TABLE, tmp_path / "1.parquet")
        (tmp_path / "2.parquet").write_bytes(b"PAR1")
        with pytest.raises(LogError, match=r"Arrow dataset cannot be read.*2\.parquet"):
            list(read(ds.dataset(tmp_path), ROLES))
