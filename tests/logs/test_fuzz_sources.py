"""Whatever a log holds, it is read or refused in hieropo's own words; no statistic is ever not finite.

Schemas and values are drawn; files are torn at every place, or have a byte of theirs changed.
"""

import bz2
import datetime as dt
import gzip
import io
import json
import math
import warnings
from collections import Counter
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hieropo.doctor.examine import examine
from hieropo.errors import HieropoError, HieropoWarning, LogError
from hieropo.logs.opening import open_log
from hieropo.logs.reading import distinct_values
from hieropo.passes.log_moments import LogMoments

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
TEXTS = st.sampled_from(
    ["", "a", "b", " ", "é", "日本", "\x00", "a\nb", '"', ",", "nan", "007", "null", "\U0001f600"]
)
FLOATS = st.sampled_from(
    [0.0, -0.0, 0.5, 1.0, -1.0, 3.25, math.nan, math.inf, -math.inf, 1e308, 5e-324, 1e17]
)
DAYS = st.dates(dt.date(1600, 1, 1), dt.date(2200, 1, 1))
TIMES = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))


def whole(kind):
    bits, signed = kind.bit_width, str(kind).startswith("int")
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.one_of(st.integers(0, 3), st.sampled_from([least, most]))


TYPES = [
    *((kind, whole(kind)) for kind in INTEGERS),
    *((kind, FLOATS) for kind in (pa.float64(), pa.float64(), pa.float32())),
    (pa.float16(), st.sampled_from([np.float16(value) for value in (0.0, 1.5, math.nan, 60000.0)])),
    *((kind, TEXTS) for kind in (pa.string(), pa.string(), pa.large_string(), pa.string_view())),
    (pa.dictionary(pa.int8(), pa.string()), TEXTS),
    (pa.dictionary(pa.int32(), pa.int64()), st.integers(0, 3)),
    (pa.bool_(), st.booleans()),
    (pa.date32(), DAYS),
    (pa.timestamp("us"), TIMES),
    (pa.timestamp("ns", tz="Europe/Amsterdam"), TIMES),
    (pa.time64("us"), st.times()),
    (pa.duration("s"), st.timedeltas(dt.timedelta(0), dt.timedelta(9))),
    (
        pa.decimal128(20, 2),
        st.sampled_from([Decimal("1.25"), Decimal("0.00"), Decimal("99999999999999999.99")]),
    ),
    (pa.binary(), st.binary(max_size=2)),
    (pa.binary(16), st.binary(min_size=16, max_size=16)),
    (pa.uuid(), st.integers(0, 3).map(lambda i: UUID(int=i).bytes)),
    (pa.list_(pa.string()), st.lists(TEXTS, max_size=2)),
    (pa.list_(pa.int64(), 2), st.lists(st.integers(0, 2), min_size=2, max_size=2)),
    (pa.struct([("k", pa.int64())]), st.fixed_dictionaries({"k": st.integers(0, 2)})),
    (pa.map_(pa.string(), pa.int64()), st.just([("k", 1)])),
    (pa.null(), st.none()),
]
GOOD = {  # columns with which a log can be learned from, so that some of the drawn ones are
    "task": (pa.string(), st.sampled_from("abc")),
    "action": (pa.int64(), st.integers(0, 1)),
    "reward": (pa.float64(), st.sampled_from([0.0, 1.0, 2.5])),
    "pscore": (pa.float64(), st.sampled_from([0.5, 1.0])),
    "x": (pa.float64(), st.sampled_from([0.0, 1.0, -2.0])),
}


@st.composite
def tables(draw):
    """Tables of a few rows; each column is good, or of any type with any values."""
    rows = draw(st.sampled_from([0, 1, 2, 7, 20]))
    names, columns = [], []
    for name, good in GOOD.items():
        if draw(st.integers(0, 19)) == 0:
            continue
        kind, values = good if draw(st.integers(0, 3)) else draw(st.sampled_from(TYPES))
        if draw(st.integers(0, 5)) == 0:
            values = st.one_of(st.none(), values)
        cells = draw(st.lists(values, min_size=rows, max_size=rows))
        names.append("task" if draw(st.integers(0, 49)) == 0 else name)
        columns.append(made(cells, kind))
    return pa.Table.from_arrays(columns, names=names)


def made(cells, kind):
    if pa.types.is_dictionary(kind):
        return pa.array(cells, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(cells, kind)


def as_parquet(table, folder):
    pq.write_table(table, folder / "log.parquet", row_group_size=3)
    return folder / "log.parquet"


def as_ipc(table, folder):
    with pa.ipc.new_file(folder / "log.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return folder / "log.arrow"


def as_csv(table, folder):
    pacsv.write_csv(table, folder / "log.csv")
    return folder / "log.csv"


def as_json(table, folder):
    lines = [json.dumps(row, default=str) + "\n" for row in table.to_pylist()]
    (folder / "log.jsonl").write_text("".join(lines))
    return folder / "log.jsonl"


FORMS = {
    "table": lambda table, _: table,
    "small batches": lambda table, _: table.to_reader(max_chunksize=2),
    "batches without rows": lambda table, _: (
        part
        for start in range(0, table.num_rows + 2, 2)
        for part in (table.slice(0, 0), table.slice(start, 2))
    ),
    "parquet": as_parquet,
    "ipc": as_ipc,
    "csv": as_csv,
    "json lines": as_json,
    "polars": lambda table, _: pl.from_arrow(table),
    "lazy": lambda table, _: pl.from_arrow(table).lazy(),
    "pandas": lambda table, _: table.to_pandas(),
}
ROLES = {"task": "task", "action": "action", "reward": "reward"}
FEWEST = 5  # drawn inputs that have to be read, and to be refused, of some hundred


def read_or_refused(source, **roles):
    """Moments and an examination, each finite or refused; True where there are moments."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HieropoWarning)
        try:
            moments = LogMoments.of(source, **roles)
        except HieropoError:
            return None
    assert np.isfinite(moments.moments.sums).all()
    assert moments.n_rows == int(np.asarray(moments.moments.rows).sum()) > 0
    return moments


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_any_table_gives_finite_moments_or_a_refusal(form, tmp_path_factory):
    seen = Counter()

    @given(
        table=tables(), more=st.sampled_from([{}, {"pscore": "pscore"}, {"context": ["x"]}, {"weight": "x"}])
    )
    def check(table, more):
        try:
            source = FORMS[form](table, tmp_path_factory.mktemp("log"))
        except (Exception, pl.exceptions.PanicException):  # noqa: BLE001 - each library has its own
            return  # this form cannot hold such a table
        seen["refused" if read_or_refused(source, **ROLES, **more) is None else "read"] += 1

    check()
    assert min(seen["read"], seen["refused"]) >= FEWEST, seen


def test_any_table_is_examined_or_refused():
    seen = Counter()

    @settings(max_examples=100)  # so many that a floor of them can be asked for
    @given(table=tables())
    def check(table):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HieropoWarning)
            try:
                examination = examine(table, **ROLES, context=["x"])
            except HieropoError:
                seen["refused"] += 1
                return
        json.dumps(examination.to_dict(), allow_nan=False, default=str)
        seen["examined"] += 1

    check()
    assert min(seen["examined"], seen["refused"]) >= FEWEST, seen


NAMES = ["log.csv", "log.tsv", "log.jsonl", "log.csv.gz", "log.parquet", "log.arrow", "log.arrows"]
GARBAGE = st.one_of(
    st.binary(max_size=60),
    st.text(st.sampled_from(list("task,reward\n\r\"';\t|10.5eE-+naNA{}[]:\\ \x00é")), max_size=60).map(
        str.encode
    ),
)


@pytest.mark.parametrize("name", NAMES)
def test_any_bytes_are_read_or_refused(name, tmp_path_factory):
    seen = Counter()

    @settings(max_examples=100)
    @given(content=GARBAGE, headed=st.booleans())
    def check(content, headed):
        path = tmp_path_factory.mktemp("log") / name
        if headed:
            start = {"csv": b"task,action,reward\na,0,1\n", "tsv": b"task\taction\treward\na\t0\t1\n"}
            content = start.get(name[4:7], b'{"task":"a","action":0,"reward":1}\n') + content
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        seen["refused" if read_or_refused(path, **ROLES) is None else "read"] += 1

    check()
    assert seen["refused"] >= FEWEST, seen
    if not name.startswith(("log.parquet", "log.arrow")):  # of these formats no garbage is a file
        assert seen["read"] >= 1, seen


def log_of(rows):
    return pa.table(
        {
            "task": [f"t{i % 3}" for i in range(rows)],
            "action": [i % 2 for i in range(rows)],
            "reward": [i / 4 for i in range(rows)],
            "note": [f"note {i} é" for i in range(rows)],
        }
    )


def parquet(table, **options):
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def ipc(table, make, **options):
    sink = io.BytesIO()
    with make(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=5)
    return sink.getvalue()


def csv(table):
    sink = io.BytesIO()
    pacsv.write_csv(table, sink)
    return sink.getvalue()


def json_lines(table):
    return "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()


LOG = log_of(12)
FILES = {
    "plain.parquet": parquet(LOG, compression="none", row_group_size=5),
    "zstd.parquet": parquet(LOG, compression="zstd"),
    "log.arrow": ipc(LOG, pa.ipc.new_file),
    "log.feather": ipc(LOG, pa.ipc.new_file, compression="zstd"),
    "log.arrows": ipc(LOG, pa.ipc.new_stream),
    "log.csv.gz": gzip.compress(csv(LOG)),
    "log.jsonl.gz": gzip.compress(json_lines(LOG)),
    "log.csv.zst": pa.compress(csv(LOG), "zstd", asbytes=True),
    "log.csv.bz2": bz2.compress(csv(LOG)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_off_anywhere_is_refused_by_its_name(name, tmp_path):
    whole = FILES[name]
    path = tmp_path / name
    path.write_bytes(whole)
    assert read_or_refused(path, **ROLES).n_rows == LOG.num_rows
    for cut in range(0, len(whole), 1 + len(whole) // 300):
        path.write_bytes(whole[:cut])
        with pytest.raises(LogError) as caught:
            LogMoments.of(path, **ROLES)
        assert name in str(caught.value) + " ".join(getattr(caught.value, "__notes__", ())), cut


def test_one_that_is_cut_off_among_others_is_named(tmp_path):
    for name in ("1.parquet", "2.parquet", "3.parquet"):
        (tmp_path / name).write_bytes(FILES["zstd.parquet"])
    (tmp_path / "2.parquet").write_bytes(FILES["zstd.parquet"][:-20])
    with pytest.raises(LogError, match=r"2\.parquet"):
        LogMoments.of(tmp_path, **ROLES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["log.csv", "log.jsonl"])
def test_text_that_is_cut_off_is_refused_or_warned_about_or_ends_with_a_whole_row(name, tmp_path):
    """Text says nowhere how long it is: what ends with a whole row cannot be told from a shorter log."""
    table = LOG.set_column(3, "note", pa.array([i + 0.5 for i in range(12)]))
    whole = csv(table) if name == "log.csv" else json_lines(table)
    path = tmp_path / name
    seen = {"refused": 0, "warned": 0, "whole": 0}
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                log = open_log(path)
                rows = [row for batch in log.batches(log.schema.names) for row in batch.to_pylist()]
            except LogError as error:
                seen["refused"] += name in str(error)
                rows = None
        if rows is None:
            continue
        if heard:
            assert [name in str(warning.message) for warning in heard] == [True]
            seen["warned"] += 1
        else:
            assert rows == table.slice(0, len(rows)).to_pylist()
            assert whole[:cut].endswith(b"\n" if name == "log.csv" else (b"\n", b"}"))
            seen["whole"] += 1
    assert sum(seen.values()) == len(whole)
    assert seen["whole"] <= 2 * table.num_rows
    assert seen["warned"] < seen["refused"] / 3


@pytest.mark.slow
@pytest.mark.parametrize("name", [*list(FILES)[:6]])
def test_a_changed_byte_is_refused_or_gives_finite_moments(name, tmp_path):
    whole, rng, seen = FILES[name], np.random.default_rng(0), Counter()
    path = tmp_path / name
    for place in rng.integers(0, len(whole), 150):
        content = bytearray(whole)
        content[place] ^= int(rng.integers(1, 256))
        path.write_bytes(bytes(content))
        seen["refused" if read_or_refused(path, **ROLES) is None else "read"] += 1
    assert seen["refused"] >= FEWEST, seen
    assert seen["read"] >= (FEWEST if name == "plain.parquet" else 0), seen


def test_ids_of_any_column_are_listed_or_refused():
    for kind, _ in TYPES:
        table = pa.table({"id": made([None, None], kind)})
        with pytest.raises(HieropoError):
            distinct_values(table, "id")
    with pytest.raises(HieropoError):
        open_log(pa.table({}))


@pytest.mark.parametrize("column", ["task", "action"])
def test_text_that_is_not_utf8_is_refused_by_its_row(column, tmp_path):
    texts = pa.array([b"a", b"b", b"a\xff", b"a"]).view(pa.string())
    table = LOG.slice(0, 4)
    place = table.schema.get_field_index(column)
    for kind in (texts, texts.dictionary_encode()):
        bad = table.set_column(place, column, kind)
        pq.write_table(bad, tmp_path / "log.parquet")
        for source in (bad, tmp_path / "log.parquet"):
            for use in (LogMoments.of, examine):
                with pytest.raises(LogError, match=f"Column '{column}', row 2: .*not UTF-8"):
                    use(source, **ROLES)


def test_a_path_may_hold_odd_letters(tmp_path: Path) -> None:
    folder = tmp_path / "a b'c é"
    folder.mkdir()
    pq.write_table(LOG, folder / "x[1].parquet")
    assert read_or_refused(folder, **ROLES).n_rows == 12
    assert read_or_refused(folder / "x[1].parquet", **ROLES).n_rows == 12
