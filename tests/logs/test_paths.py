"""Which files a path names, and columns that folders name."""

import datetime as dt
import os
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sample_logs import ROLES, TABLE, N, csv_file, hive_folder, json_lines, parquet_file

from hieropo.errors import HieropoWarning, InputError, LogError, SchemaError
from hieropo.logs.opening import open_log
from hieropo.logs.reading import distinct_values, read
from hieropo.rows.batches import Roles


class TestPaths:
    def test_what_is_not_there(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        pq.write_table(TABLE, tmp_path / "clicks.parquet")
        with pytest.raises(
            InputError,
            match=r"no file or folder 'click\.parquet'; relative paths start at .*Did you "
            r"mean 'clicks\.parquet'\?",
        ):
            open_log("click.parquet")
        with pytest.raises(InputError, match=r"expanduser"):
            open_log("~/click.parquet")
        with pytest.raises(InputError, match=r"No file matches 'x/\*\.parquet'.*Relative paths start at"):
            open_log("x/*.parquet")

    def test_a_name_with_a_bracket_is_a_name_where_it_is_there(self, tmp_path):
        shutil.copy(parquet_file(TABLE, tmp_path), tmp_path / "log[1].parquet")
        assert open_log(tmp_path / "log[1].parquet").n_rows == N

    def test_a_format_is_known_by_its_first_bytes(self, tmp_path):
        shutil.move(parquet_file(TABLE, tmp_path), tmp_path / "log.csv")
        assert open_log(tmp_path / "log.csv").name.startswith("Parquet file")

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("log.xlsx", r"log\.xlsx' is of no format that can be read. Hand over pandas\.read_excel"),
            ("log.duckdb", r"it is a database. Give a query: open_log\(sql\("),
            ("log", r"neither its ending nor its first bytes are known.*\.csv"),
            ("log.parquet.gz", "of no format that can be read"),
        ],
    )
    def test_files_that_are_not_read(self, name, message, tmp_path):
        (tmp_path / name).write_bytes(b"something")
        with pytest.raises(LogError, match=message):
            open_log(tmp_path / name)

    def test_folders_without_a_log(self, tmp_path):
        with pytest.raises(LogError, match=r"There is no log in the folder .*\(it is empty\)"):
            open_log(tmp_path)
        (tmp_path / "notes.txt").write_text("a note")
        with pytest.raises(LogError, match=r"it holds files ending in \.txt"):
            open_log(tmp_path)

    def test_files_of_other_kinds_in_a_folder_are_not_left_out_without_a_word(self, tmp_path):
        parquet_file(TABLE, tmp_path)
        (tmp_path / "_SUCCESS").touch()
        assert open_log(tmp_path).n_rows == N
        (tmp_path / "more.txt").write_text("task,action\n")
        with pytest.warns(HieropoWarning, match=r"1 Parquet file is read, but '.*more\.txt' not"):
            assert open_log(tmp_path).n_rows == N

    def test_linked_files_and_folders_are_read(self, tmp_path):
        for name in ("log", "elsewhere"):
            (tmp_path / name).mkdir()
            csv_file(TABLE, tmp_path / name)
        (tmp_path / "log" / "more").symlink_to(tmp_path / "elsewhere")
        for path in (tmp_path / "log", tmp_path / "log" / "**" / "*.csv"):
            assert open_log(path).n_rows == 2 * N

    def test_links_that_lead_nowhere_or_back_are_refused(self, tmp_path):
        csv_file(TABLE, tmp_path)
        link = tmp_path / "more.csv"
        link.symlink_to("gone.csv")
        for path in (tmp_path, tmp_path / "*.csv", link):
            with pytest.raises(LogError, match=r"more\.csv' is a link that leads nowhere"):
                open_log(path)
        link.unlink()
        (tmp_path / "again").symlink_to(tmp_path)
        with pytest.raises(LogError, match=r"again' is a link to a folder that contains it"):
            open_log(tmp_path)

    def test_what_cannot_be_read_twice_is_refused_and_not_waited_for(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        csv_file(TABLE, tmp_path)
        os.mkfifo("pipe.csv")  # opened, it would wait for a writer
        for path in ("pipe.csv", ".", "*.csv"):
            with pytest.raises(InputError, match=r"'pipe\.csv' is a pipe or a device"):
                open_log(path)
        with pytest.raises(InputError, match="standard input cannot be"):
            open_log("-")

    def test_a_part_that_may_not_be_read_is_not_left_out(self, tmp_path):
        """In a process that has no right to read everything, as root has."""
        (tmp_path / "day").mkdir()
        for folder in (tmp_path, tmp_path / "day"):
            csv_file(TABLE, folder)
        (tmp_path / "day").chmod(0)
        program = (
            "import ctypes, sys\n"
            "for capability in (1, 2):\n"
            "    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)\n"
            "import os\n"
            "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1], *sys.argv[2:]])\n"
        )
        inner = (
            "import sys\n"
            "from hieropo import InputError\n"
            "from hieropo.logs import open_log\n"
            "for path in sys.argv[1:]:\n"
            "    try:\n"
            "        print(open_log(path).n_rows)\n"
            "    except InputError as error:\n"
            "        print(error)\n"
        )
        try:
            done = subprocess.run(
                [sys.executable, "-c", program, inner, str(tmp_path), str(tmp_path / "**" / "*.csv")],
                capture_output=True, text=True, check=True, timeout=60,
            )  # fmt: skip
        finally:
            (tmp_path / "day").chmod(0o700)
        told = done.stdout.splitlines()
        assert len(told) == 2, done
        assert all("day' cannot be read: permission denied" in line for line in told), told

    def test_a_folder_of_two_formats_is_not_guessed_at(self, tmp_path):
        parquet_file(TABLE, tmp_path)
        csv_file(TABLE, tmp_path)
        with pytest.raises(
            LogError,
            match=r"holds files of several formats: CSV, Parquet\. A log has one\. Name its files by a glob.*\*\*",
        ):
            open_log(tmp_path)
        assert open_log(tmp_path / "*.csv").n_rows == N

    def test_a_glob_that_also_matches_other_files_is_refused(self, tmp_path):
        csv_file(TABLE, tmp_path)
        (tmp_path / "log.txt").write_text("a note")
        with pytest.raises(LogError, match=r"also matches a file that is no log: .*log\.txt"):
            open_log(tmp_path / "log.*")


def folders(root, values, column="day", make=parquet_file):
    table = pa.table({"s": ["a", "b"], "r": [1.0, 2.0]})
    for value in values:
        (root / f"{column}={value}").mkdir(parents=True)
        make(table, root / f"{column}={value}")
    return root


class TestFoldersThatNameColumns:
    def test_rows_are_those_of_the_log_in_one_file(self, tmp_path):
        table = TABLE.sort_by("offer")
        table = table.set_column(table.schema.get_field_index("w"), "w", pa.array(np.arange(N) / N))
        source = open_log(hive_folder(table, tmp_path))
        assert source.n_rows == N
        assert set(source.schema.names) == set(TABLE.column_names)
        for found, expected in zip(read(source, ROLES), read(table, ROLES), strict=True):
            assert found.action.tolist() == expected.action.tolist()
            assert found.task.tolist() == expected.task.tolist()
            np.testing.assert_array_equal(found.context, expected.context)
            np.testing.assert_array_equal(found.weight, expected.weight)

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            (["2", "10"], (2, 10)),
            (["01", "10"], ("01", "10")),
            (["2026-01-31", "2026-02-01"], (dt.date(2026, 1, 31), dt.date(2026, 2, 1))),
            (["a%20b", "NL"], ("NL", "a b")),
            (["1", "x"], ("1", "x")),
        ],
    )
    def test_types_are_those_of_all_values(self, values, expected, tmp_path):
        for make in (parquet_file, csv_file, json_lines):
            folders(tmp_path / make.__name__, values, make=make)
            found = distinct_values(tmp_path / make.__name__, "day")
            assert found == tuple(sorted(expected))
            tasks = [batch.task.tolist() for batch in read(tmp_path / make.__name__, Roles("day", None, "r"))]
            assert set(sum(tasks, [])) == set(expected)  # noqa: RUF017

    def test_types_may_be_stated(self, tmp_path):
        folders(tmp_path, ["1", "2"])
        assert distinct_values(open_log(tmp_path, types={"day": "text"}), "day") == ("1", "2")
        with pytest.raises(LogError, match=r"Column 'day', .*day=1.*'1' is not a date"):
            open_log(tmp_path, types={"day": "date"})

    def test_a_missing_value_is_a_null_of_a_row(self, tmp_path):
        folders(tmp_path, ["1", "__HIVE_DEFAULT_PARTITION__"])
        with pytest.raises(LogError, match=r"'day', row 0 of '.*log\.parquet': null"):
            distinct_values(tmp_path, "day")

    def test_a_column_of_the_files_comes_before_that_of_their_folders(self, tmp_path):
        folders(tmp_path, ["x", "y"], column="s")
        assert distinct_values(tmp_path, "s") == ("a", "b")

    def test_a_folder_that_does_not_name_the_column(self, tmp_path):
        folders(tmp_path, ["1"])
        parquet_file(pa.table({"s": ["a"], "r": [0.0]}), tmp_path)
        assert len(distinct_values(tmp_path, "s")) == 2
        with pytest.raises(
            SchemaError, match=r"Column 'day' is missing from .*log\.parquet', although other files"
        ):
            distinct_values(tmp_path, "day")

    def test_below_a_glob(self, tmp_path):
        folders(tmp_path, ["1", "2", "3"])
        assert distinct_values(tmp_path / "day=[12]" / "*.parquet", "day") == (1, 2)
