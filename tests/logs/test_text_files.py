"""CSV and JSON lines: the types of their columns, their missing values, and what is wrong in which line."""

import csv
import datetime as dt
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hieropo.errors import HieropoWarning, InputError, LogError, SchemaError
from hieropo.logs.formats import csv_files, json_lines
from hieropo.logs.opening import open_log
from hieropo.logs.reading import distinct_values, read
from hieropo.rows.batches import Roles


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few lines, so that types are joined over many of them."""
    monkeypatch.setattr(csv_files, "_BLOCK", 64)
    monkeypatch.setattr(json_lines, "_BLOCK", 64)


def written(folder, text, name="log.csv"):
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / name


def column(source, name="x", **options):
    log = open_log(source, **options)
    return [value for batch in log.batches([name], 7) for value in batch.column(name).to_pylist()]


NUMBERS = [*map(str, range(100)), "1.5"]


class TestTypesOfCsv:
    @pytest.mark.parametrize(
        ("texts", "expected"),
        [
            (["1", "-2"], [1, -2]),
            (["1", "2.5"], [1.0, 2.5]),
            ([".5", "1e3"], [0.5, 1000.0]),
            (["007", "8"], ["007", "8"]),
            (["0", "0.5"], [0.0, 0.5]),
            (["12345678901234567890"], [12345678901234567890]),
            (["123456789012345678901234"], ["123456789012345678901234"]),
            (["12345678901234567", "1.5"], ["12345678901234567", "1.5"]),
            (["9007199254740993", "1.5"], ["9007199254740993", "1.5"]),
            (["0x10"], ["0x10"]),
            (["True", "false"], [True, False]),
            (["true", "1"], ["true", "1"]),
            (["2026-01-31"], [dt.date(2026, 1, 31)]),
            (["2026-01-31", "2026-01-31 10:00"], [dt.datetime(2026, 1, 31), dt.datetime(2026, 1, 31, 10)]),
            (["2026-01-31T10:00:00Z"], [dt.datetime(2026, 1, 31, 10, tzinfo=dt.UTC)]),
            (["1", "NA", " 3 "], [1, None, 3]),
            (["Namibia", "NA", ""], ["Namibia", "NA", None]),
            (["NA", "null"], [None, None]),
            (["", "a"], [None, "a"]),
            (['""', "a"], ["", "a"]),
            (['"a\nb"', '"say ""x"""'], ["a\nb", 'say "x"']),
        ],
    )
    def test_are_those_of_all_values(self, texts, expected, tmp_path):
        found = column(written(tmp_path, "i,x\n" + "".join(f"{i},{text}\n" for i, text in enumerate(texts))))
        assert found == expected
        assert [type(value) for value in found] == [type(value) for value in expected]

    @pytest.mark.usefixtures("small_blocks")
    def test_a_late_id_makes_all_of_them_text(self, tmp_path):
        path = written(tmp_path, "x\n" + "\n".join([*map(str, range(200)), "A7", "3"]) + "\n")
        assert column(path) == [*map(str, range(200)), "A7", "3"]

    @pytest.mark.usefixtures("small_blocks")
    def test_a_late_text_in_a_column_of_numbers_is_named(self, tmp_path):
        rows = [f"s,{number}" for number in NUMBERS]
        path = written(tmp_path, "\n".join(["s,r", *rows, "s,twelve", "s,1", ""]))
        said = (
            r"'r' of the CSV file .* cannot be a reward.*Line 103 of '.*log\.csv': 'twelve' is not a number"
        )
        with pytest.raises(SchemaError, match=said):
            read(path, Roles("s", None, "r"))
        assert distinct_values(path, "s") == ("s",)

    def test_it_is_named_in_whichever_file_it_stands(self, tmp_path):
        written(tmp_path, "s,r\na,1\nb,2\n", "1.csv")
        written(tmp_path, "r,s\n3,a\n\n\n4,b\n2026-01-01,b\n", "2.csv")
        with pytest.raises(SchemaError, match=r"Line 6 of '.*2\.csv': '2026-01-01' is not a number"):
            read(tmp_path, Roles("s", None, "r"))
        assert column(tmp_path, "s") == ["a", "b", "a", "b", "b"]

    @pytest.mark.parametrize(
        ("values", "why"),
        [
            (["5", "1,5"], "'1,5' is not a number"),
            (["5", "012"], "'012' has leading zeros"),
            (
                ["0.5", "99999999999999999"],
                "'99999999999999999' is a whole number that a decimal number would round",
            ),
        ],
    )
    def test_why_a_column_is_text_is_said(self, values, why, tmp_path):
        path = written(tmp_path, "s;r\n" + "".join(f"a;{value}\n" for value in values))
        with pytest.raises(SchemaError, match=f"Line 3 .*: {why}"):
            read(path, Roles("s", None, "r"))

    def test_lines_are_counted_with_those_inside_of_values(self, tmp_path):
        path = written(tmp_path, 's,r\n"a\n\nb",1\n\n"c",oops\n')
        with pytest.raises(SchemaError, match="Line 6 of"):
            read(path, Roles("s", None, "r"))

    @pytest.mark.usefixtures("small_blocks")
    def test_may_be_stated(self, tmp_path):
        path = written(tmp_path, "zip,r,day\n" + "1234,1,2026-01-01\n" * 50 + "02345,NA,\n")
        log = open_log(path, types={"zip": "integer", "r": "number", "day": pa.string()})
        assert [str(field.type) for field in log.schema] == ["int64", "double", "string"]
        assert column(path, "zip", types={"zip": pa.int32()})[-1] == 2345
        late = written(tmp_path, "x\n" + "1\n" * 50 + "oops\n", "late.csv")
        with pytest.raises(
            LogError, match=r"Column 'x', line 52 of '.*late\.csv': 'oops' is not a number, the stated type"
        ):
            column(late, types={"x": "number"})

    def test_statements_that_name_nothing(self, tmp_path):
        path = written(tmp_path, "x\n1\n")
        with pytest.raises(InputError, match="'numbr' of column 'x' is none of text, integer"):
            open_log(path, types={"x": "numbr"})
        with pytest.raises(InputError, match="types= names 'y', which is no column of text"):
            open_log(path, types={"y": "number"})
        with pytest.raises(InputError, match="states its own types"):
            open_log(pa.table({"x": [1]}), types={"x": "text"})

    @given(
        st.lists(
            st.one_of(
                st.integers(-(10**17), 10**17).map(str), st.integers(0, 9).map(str),
                st.floats(allow_nan=False).map(repr),
                st.sampled_from(["", "NA", "true", "2026-01-31", "2026-01-31T10:20:30", "007", "a", "-0.0", " 1"]),
                st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=4),
            ),
            min_size=1, max_size=12,
        )
    )  # fmt: skip
    def test_are_what_a_look_at_every_value_says(self, tmp_path_factory, texts):
        path = tmp_path_factory.mktemp("csv") / "log.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["i", "x"], *enumerate(texts)])
        assert column(path) == slowly(texts)


def slowly(texts):
    """Values of a quoted column, one by one, from the definition."""
    for reader in (whole, number, boolean, day, moment):
        try:
            found = [None if missing(text) else reader(text.strip(WHITE)) for text in texts]
        except ValueError:
            continue
        if any(value is None for value in found) and all(value is None for value in found):
            return found
        if reader is whole and any(not 0 <= v + 2**63 < 2**64 for v in found if v is not None):
            return texts
        if reader is number and any(w(text) for text in texts):
            return texts
        return found
    return texts


WHITE = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


def missing(text):
    return text.strip(WHITE) in ("", "NA", "N/A", "n/a", "NULL", "null", "None", "#N/A")


def w(text):
    text = text.strip(WHITE)
    return text.lstrip("+-").isdigit() and len(text) > 15 and abs(int(text)) > 2**53


def code(text):
    text = text.removeprefix("-")
    return len(text) > 1 and text[0] == "0" and text[1] != "."


def whole(text):
    if code(text) or not text.isascii() or not text.removeprefix("-").isdigit():
        raise ValueError(text)
    return int(text)


def number(text):
    if code(text) or not text.isascii() or "_" in text or text.lower().lstrip("+-") in ("infinity", "nan"):
        raise ValueError(text)
    return float(text)


def boolean(text):
    return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else number("x")


def day(text):
    return dt.date.fromisoformat(text) if len(text) == 10 and text.isascii() else number("x")


def moment(text):
    return dt.datetime.fromisoformat(text) if len(text) > 9 and text.isascii() else number("x")


class TestCsvThatIsNotWhole:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a,b\n1,2\n3\n", r"Line 3 of '.*log\.csv' has 1 values, where the header names 2.*cut off"),
            ('a,b\n"x\ny",2\n3,4,5\n', r"Line 4 of .* has 3 values"),
            ('a,b\n1,2\n3,"x\n4,5\n', r"log\.csv': a quote that is opened after line 2 is never closed"),
            (b"a,b\n1,\xff\n", r"log\.csv', about line 2: these bytes are not UTF-8.*latin-1"),
            ("a,b\n1,2\n".encode("utf-16"), "not UTF-8"),
            ("", r"log\.csv' is empty \(0 bytes\)"),
            ("a,b\n", "has no rows"),
            ("a,b", "has no rows"),
            ("\n\n", r"is empty \(2 bytes\)"),
        ],
    )
    def test_says_where(self, text, message, tmp_path):
        with pytest.raises(LogError, match=message):
            open_log(written(tmp_path, text))

    def test_a_quote_inside_of_a_value_is_no_harm(self, tmp_path):
        assert column(written(tmp_path, 'i,x\n1,5" pipe\n')) == ['5" pipe']

    def test_a_name_that_stands_twice(self, tmp_path):
        with pytest.raises(SchemaError, match=r"names 'a' more than once.*put a line with the names"):
            open_log(written(tmp_path, "a,b,a\n1,2,3\n"))

    def test_a_last_line_without_its_end_is_warned_about(self, tmp_path):
        with pytest.warns(HieropoWarning, match=r"log\.csv' does not end with a line end.*last value"):
            assert column(written(tmp_path, "x\n1\n25")) == [1, 25]

    def test_a_mark_of_byte_order_and_windows_line_ends_are_read(self, tmp_path):
        assert column(written(tmp_path, b"\xef\xbb\xbfx,y\r\n1,2\r\n")) == [1]

    def test_a_torn_compressed_file_is_named(self, tmp_path):
        whole = gzip.compress(b"x,y\n" + b"".join(b"%d,%d\n" % (i, i * i) for i in range(5000)))
        for cut in (1, 5, 20, len(whole) // 2, len(whole) - 9, len(whole) - 1):
            with pytest.raises(LogError, match=r"log\.csv\.gz'"):
                open_log(written(tmp_path, whole[:cut], "log.csv.gz"))


def lines(folder, *objects, name="log.jsonl"):
    return written(folder, "".join(json.dumps(each) + "\n" for each in objects), name)


class TestTypesOfJsonLines:
    @pytest.mark.parametrize(
        "values",
        [
            [1, 2, None], [1, 2.5], [True, None], ["2026-01-31", "x"], ["2026-01-31", "2026-02-01"], ["1", "2"],
            [12345678901234567890, 1], [2**53 + 1, 2], [["a", "b"], [], ["2026-01-31"]], [None, None],
            [{"k": 1}, {"l": ["x"]}], ["é", ""], [1e300, -1.5],
        ],
    )  # fmt: skip
    @pytest.mark.usefixtures("small_blocks")
    def test_values_are_what_is_written(self, values, tmp_path):
        found = column(lines(tmp_path, *({"x": value, "more": i} for i, value in enumerate(values))))
        if isinstance(values[0], dict):
            found = [{name: each for name, each in value.items() if each is not None} for value in found]
        assert found == values
        if values != [1, 2.5]:
            assert [type(value) for value in found] == [type(value) for value in values]

    def test_a_key_that_is_not_there_is_a_null(self, tmp_path):
        assert column(lines(tmp_path, {"x": 1}, {"y": 2}, {})) == [1, None, None]

    @pytest.mark.parametrize("late", ["x", [1], True, {"k": 1}, 2**70])
    @pytest.mark.usefixtures("small_blocks")
    def test_a_late_value_of_another_type_is_named(self, late, tmp_path):
        rows = [*({"s": "a", "r": i, "n": i} for i in range(40)), {"s": "b", "r": late}, {"s": "c", "r": 1}]
        path = lines(tmp_path, *rows)
        with pytest.raises(SchemaError, match=r"'r' of the .*Line 41 of '.*log\.jsonl'"):
            read(path, Roles("s", None, "r"))
        assert distinct_values(path, "s") == ("a", "b", "c")
        with pytest.raises(SchemaError, match="Line 41"):
            list(open_log(path).batches(["r"]))

    @pytest.mark.usefixtures("small_blocks")
    def test_decimals_do_not_round_whole_numbers(self, tmp_path):
        path = lines(tmp_path, *({"x": i} for i in (2**53 + 1, *range(20))), {"x": 0.5})
        with pytest.raises(SchemaError, match=r"Line 22 .*whole numbers beyond .*decimals"):
            column(path)

    def test_nor_in_one_block(self, tmp_path):
        with pytest.raises(SchemaError, match="Line 2 "):
            column(lines(tmp_path, {"x": 0.5}, {"x": 2**53 + 1}))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('{"x":1}\n{"x":\n', r"Line 2 of '.*log\.jsonl' cannot be read as JSON"),
            ('{"x":1}\n\n{"x":1,"x":2}\n', "Line 3 .*'x' stands twice"),
            ('[{"x":1}]', "it is one JSON array.*only JSON lines.*lines=True"),
            ("1\n", "Line 1 .*it holds 1, not an object"),
            ('{\n"x": 1\n}\n', "Line 1 .*cannot be read as JSON.*Each line has to be one object"),
            (b'{"x":"\xff"}\n', "Line 1|UTF"),
            ("", "has no rows"),
            ("\n\n", "has no rows"),
        ],
    )
    def test_lines_that_cannot_be_read(self, text, message, tmp_path):
        with pytest.raises(LogError, match=message):
            column(written(tmp_path, text, "log.jsonl"))

    def test_a_number_too_large_for_a_float(self, tmp_path):
        path = written(tmp_path, '{"x":1}\n{"x":1e400}\n', "log.jsonl")
        with pytest.raises(LogError, match=r"Line 2 of .*too big"):
            column(path)

    def test_types_may_be_stated(self, tmp_path):
        path = lines(tmp_path, {"x": "2026-01-31", "n": 1}, {"x": "2026-02-01", "n": 2})
        assert column(path, types={"x": "date"}) == [dt.date(2026, 1, 31), dt.date(2026, 2, 1)]
        assert column(path, "n", types={"n": "number"}) == [1.0, 2.0]
        with pytest.raises(LogError, match=r"Column 'x', line 1 of '.*': '2026-01-31' is not a number"):
            column(path, types={"x": "number"})

    @given(
        st.lists(
            st.dictionaries(
                st.sampled_from(["x", "y"]),
                st.one_of(st.none(), st.booleans(), st.integers(-(2**64), 2**65),
                          st.floats(allow_nan=False, allow_infinity=False),
                          st.text(max_size=3), st.lists(st.text(max_size=2), max_size=2), st.just("2026-01-31")),
            ),
            min_size=1, max_size=8,
        )
    )  # fmt: skip
    def test_are_what_a_look_at_every_value_says(self, tmp_path_factory, objects):
        path = lines(tmp_path_factory.mktemp("json"), *objects)
        for name in {name for each in objects for name in each}:
            values = [each.get(name) for each in objects]
            kinds = {type(value) for value in values} - {type(None)}
            whole = [value for value in values if type(value) is int]
            fits = all(-(2**63) <= v < 2**63 for v in whole) or all(0 <= v < 2**64 for v in whole)
            rounds = float in kinds and any(abs(v) > 2**53 for v in whole)
            if (len(kinds) > 1 and kinds != {int, float}) or not fits or rounds:
                with pytest.raises(SchemaError, match=r"Line \d+ of"):
                    column(path, name)
            else:
                assert column(path, name) == values


@pytest.mark.parametrize(
    ("change", "now"), [(lambda lines: [*lines, lines[-1]], "more"), (lambda lines: lines[:-1], "1")]
)
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, change, now, ending):
    path = tmp_path / f"log.{ending}"
    lines = ["x", "1", "2"] if ending == "csv" else ['{"x": 1}', '{"x": 2}']
    path.write_text("\n".join(lines) + "\n")
    log = open_log(path)
    assert sum(batch.num_rows for batch in log.batches(["x"])) == 2
    path.write_text("\n".join(change(lines)) + "\n")
    with pytest.raises(
        LogError, match=rf"log.{ending}' changed while it was read: it had 2 rows, and now it has {now}"
    ):
        list(log.batches(["x"]))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.csv", "x,y\n1,a\n2,b\n"),
        ("quoted.csv", '"x","y"\n1,a\n2,b\n'),
        ("log.tsv", "x\ty\n1\ta\n2\tb\n"),
        ("log.jsonl", '{"x": 1, "y": "a"}\n{"x": 2, "y": "b"}\n'),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_byte_order_mark_is_no_part_of_a_file(name, text, suffix, tmp_path):
    content = ("\ufeff" + text).encode()
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder, gzip.compress(content) if suffix else content, name + suffix)
    assert (column(tmp_path), column(tmp_path, "y")) == ([1, 2] * 2, ["a", "b"] * 2)


def test_booleans_with_holes_are_booleans(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("a,vip\n1,true\n2,\n3,FALSE\n")
    column = pa.Table.from_batches(open_log(path).batches(["vip"]))["vip"]
    assert column.type == pa.bool_()
    assert column.to_pylist() == [True, None, False]
