"""Text in a column that is named as numbers: refused by place and value, or set aside row by row."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from command_line import called
from hypothesis import given
from hypothesis import strategies as st

from hieropo import HierOPO, HieropoWarning, LogError, LogMoments, SchemaError, examine
from hieropo.logs.arrow.schema import guess_roles
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.formats.text_types import text_numbers
from hieropo.logs.opening import open_log
from hieropo.logs.reading import read
from hieropo.rows.batches import Roles

COLUMNS = {"task": "store", "action": "offer", "reward": "profit", "context": ["age"]}
ROLES = Roles("store", "offer", "profit", context=("age",))
BAD = {7: "n/a?", 20: "-", 33: "1,234", 50: "12 EUR"}  # of the column of rewards


def rows(n=120, bad=BAD, **others):
    rng = np.random.default_rng(0)
    store, gift, age = np.arange(n) % 8, rng.integers(0, 2, n), rng.normal(40, 10, n).round(2)
    profit = (gift + 0.05 * store + 0.1 * age + rng.normal(0, 0.3, n)).round(3)
    columns = {
        "store": [f"s{each}" for each in store],
        "offer": [("none", "gift")[each] for each in gift],
        "profit": [bad.get(k, value) for k, value in enumerate(profit.tolist())],
        "age": age.tolist(),
    }
    return {**columns, **others}


def as_csv(path, columns):
    path = path / "log.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def as_json(path, columns):
    path = path / "log.jsonl"
    lines = (
        json.dumps(dict(zip(columns, each, strict=True))) for each in zip(*columns.values(), strict=True)
    )
    path.write_text("\n".join(lines) + "\n")
    return path


def texts(columns):
    return pa.table({**columns, "profit": [str(value) for value in columns["profit"]]})


def as_parquet(path, columns):
    pq.write_table(texts(columns), path / "log.parquet")
    return path / "log.parquet"


SOURCES = {
    "CSV": as_csv,
    "JSON lines": as_json,
    "Parquet": as_parquet,
    "Arrow": lambda _, columns: texts(columns),
    "pandas": lambda _, columns: texts(columns).to_pandas(),
    "categories": lambda _, columns: texts(columns).to_pandas().astype({"profit": "category"}),
    "polars": lambda _, columns: pl.from_arrow(texts(columns)),
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_rows_without_a_number_are_set_aside_with_their_values(tmp_path, make):
    listed, clean = tmp_path / "rejects.csv", {
        name: [value for k, value in enumerate(values) if k not in BAD]
        for name, values in rows(bad={}).items()
    }  # fmt: skip
    with pytest.warns(
        HieropoWarning,
        match=r"4 not a number in 'profit' \(first in (row 7, counted from 0|line [89] of '.*'): n/a\?\)",
    ):
        learner = HierOPO(uncertainty="plug-in").fit(
            make(tmp_path, rows()), **COLUMNS, lenient=True, rejects=listed
        )
    expected = HierOPO(uncertainty="plug-in").fit(pa.table(clean), **COLUMNS)
    np.testing.assert_allclose(learner.moments_.sums, expected.moments_.sums, rtol=1e-12)
    found = pa.csv.read_csv(listed).select(["row", "column", "value", "reason"]).to_pylist()
    assert found == [
        {"row": row, "column": "profit", "value": value, "reason": "not a number"}
        for row, value in BAD.items()
    ]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (as_csv, r"Line 9 of '.*log\.csv': 'n/a\?' is not a number.*--lenient"),
        (
            as_json,
            r"mixed type.*Line 8 of '.*log\.jsonl': 'n/a\?' is text, but the column had a number before.*--lenient",
        ),
        (as_parquet, r"Row 7 holds 'n/a\?'\. Rows count from 0\..*--lenient"),
        (SOURCES["pandas"], r"Row 7 holds 'n/a\?'\..*--lenient"),
    ],
)  # fmt: skip
def test_strictly_the_first_of_them_stops_with_its_place_and_what_to_do(tmp_path, make, said):
    source = make(tmp_path, rows())
    for use in (HierOPO().fit, LogMoments.of):
        with pytest.raises(SchemaError, match=f"(?s)Column 'profit' of the .*{said}"):
            use(source, **COLUMNS)


@pytest.mark.parametrize(
    ("make", "line"), [(as_csv, "Line 2 of '.*': '-' is neither a number"), (as_json, "'-' in line 1 of")]
)
def test_the_first_value_of_a_column_may_be_the_one_that_is_wrong(tmp_path, make, line):
    source = make(tmp_path, rows(bad={0: "-"}))
    with pytest.raises(SchemaError, match=line):
        HierOPO().fit(source, **COLUMNS)
    (batch,) = read(source, ROLES, rejects=Rejects())
    assert len(batch) == 119


def test_a_decimal_comma_is_named(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("store;offer;profit;age\na;x;1;2\na;y;1,5;3\n")
    with pytest.raises(SchemaError, match=r"'1,5' is not a number \(decimals need a point"):
        HierOPO().fit(path, **COLUMNS)


@pytest.mark.parametrize(
    ("value", "arguments"),
    [("1,209.5", "thousands=','"), ("1,209", "thousands=','"), ("1209,5", "decimal=','")],
)
def test_commas_are_told_with_the_way_to_read_them(tmp_path, value, arguments):
    path = as_csv(tmp_path, rows(bad=dict.fromkeys([0, 7, 20], value)))
    way = f"pandas.read_csv(path, {'' if arguments[0] == 't' else 'sep=..., '}{arguments}) reads such numbers"
    with pytest.raises(SchemaError) as refused:  # the first value makes the column text
        HierOPO().fit(path, **COLUMNS)
    with pytest.warns(HieropoWarning, match="may be the largest values of 'profit'") as warned:
        HierOPO().fit(path, **COLUMNS, lenient=True)
    (finding,) = [each for each in examine(path, **COLUMNS).findings if each.kind == "unusable value"]
    for text in (str(refused.value), str(warned[0].message), finding.next):
        assert way in text
    with pytest.warns(HieropoWarning) as warned:  # units are no separators
        HierOPO().fit(as_csv(tmp_path, rows(bad={7: "12 EUR"})), **COLUMNS, lenient=True)
    assert "Numbers with commas" not in str(warned[0].message)


def test_a_column_of_text_that_holds_numbers_alone_is_read_leniently_and_that_is_said():
    table = texts(rows(bad={}))
    with pytest.raises(SchemaError, match="All of its values are numbers"):
        HierOPO().fit(table, **COLUMNS)
    with pytest.warns(HieropoWarning, match="'profit' is of type text, and its values were read as numbers"):
        learner = HierOPO(uncertainty="plug-in").fit(table, **COLUMNS, lenient=True)
    strict = HierOPO(uncertainty="plug-in").fit(pa.table(rows(bad={})), **COLUMNS)
    np.testing.assert_allclose(learner.moments_.sums, strict.moments_.sums, rtol=1e-12)


def test_a_wrong_column_is_no_log_without_rows(tmp_path):
    with pytest.raises(LogError, match=r"120 not a number in 'offer'.*Is it the right column"):
        HierOPO().fit(
            as_csv(tmp_path, rows()),
            **COLUMNS | {"reward": "offer", "action": "age", "context": []},
            lenient=True,
        )


def test_a_click_or_a_dash_is_no_log_of_clicks_alone(tmp_path):
    clicks = rows(profit=["-" if k % 3 else 1 for k in range(120)][::-1])
    clicks["profit"][:60] = [1] * 60
    with pytest.raises(LogError, match="Does a missing reward mean another value, such as 0"):
        HierOPO().fit(as_csv(tmp_path, clicks), **COLUMNS, lenient=True)


@pytest.mark.parametrize("make", [as_csv, as_json])
def test_ids_of_mixed_kinds_are_never_read_as_text_that_merges_them(tmp_path, make):
    source = make(tmp_path, rows(store=[*[1, "1"] * 59, 2, "x"]))
    if make is as_csv:
        with pytest.raises(
            SchemaError, match=r"Line 121.*'x' is not a whole number, the stated type of the column"
        ):
            read(open_log(source, types={"store": "integer"}, lenient=True), ROLES, rejects=Rejects())
    else:
        with pytest.raises(SchemaError, match=r"'store'.*mixed type.*cannot be a task"):
            read(open_log(source, lenient=True), ROLES, rejects=Rejects())


@pytest.mark.parametrize("make", [as_csv, as_json])
def test_a_value_that_is_not_of_a_stated_type_is_set_aside_too(tmp_path, make):
    source = make(tmp_path, rows(bad={k: str(value) for k, value in enumerate(rows()["profit"])}))
    stated = open_log(source, types={"profit": "number"}, lenient=True)
    rejects = Rejects()
    assert sum(len(batch) for batch in read(stated, ROLES, rejects=rejects)) == 116
    assert rejects.rows == 4
    with pytest.raises(
        LogError, match=r"line (9|8) of .*'n/a\?' is not a number, the stated type of the column"
    ):
        list(read(open_log(source, types={"profit": "number"}), ROLES))


def test_contexts_far_from_0_keep_their_digits_beside_text(tmp_path):
    stamps = [1.7e9 + k for k in range(120)]
    source = as_csv(tmp_path, rows(bad={}, age=[*stamps[:5], "later", *stamps[6:]]))
    with pytest.warns(HieropoWarning, match="1 not a number in 'age'"):
        learner = HierOPO(uncertainty="plug-in").fit(source, **COLUMNS, lenient=True)
    assert learner.features_.origin is not None


def test_the_doctor_counts_them(tmp_path):
    found = examine(as_csv(tmp_path, rows()), **COLUMNS)
    (finding,) = [each for each in found.findings if each.kind == "unusable value"]
    assert (finding.severity, finding.place) == (
        "stops",
        f"column 'profit' from line 9 of {str(tmp_path / 'log.csv')!r}",
    )
    assert "4 rows" in finding.text
    assert "first in line 9 of" in finding.text
    assert finding.text.endswith("n/a?.")


def test_a_propensity_with_text_in_it_is_not_left_out_without_a_word(tmp_path):
    source = open_log(as_csv(tmp_path, rows(propensity=[0.5] * 119 + ["half"])))
    roles, told = guess_roles(source.schema, {"task": "store", "action": "offer", "reward": "profit"})
    assert roles.pscore is None
    assert any("'propensity' is not taken as the propensity" in each and "'half'" in each for each in told)


NUMBERS = st.one_of(
    st.floats().map(repr),
    st.integers(-(2**53), 2**53).map(str),
    st.sampled_from(["+1", "1.", ".5", "-.5E3", "1e999", "Infinity", "-inf", "NaN", " 2 ", "007"]),
)
OTHERS = st.sampled_from(
    ["-", "+", ".", "1,5", "1_000", "0x10", "1e", "e5", "\u0661", "1 2", "12 EUR", "nan(1)", "True"]
)


@pytest.mark.slow
@given(st.lists(st.one_of(NUMBERS, OTHERS, st.text(max_size=3), st.none()), max_size=8))
def test_text_is_a_number_where_python_reads_one_without_its_liberties(values):
    found = text_numbers(pa.array(values, pa.string()))
    for value, number, missing, wrong in zip(
        values, found.values.to_pylist(), found.missing, found.wrong, strict=True
    ):
        assert missing + wrong + (number is not None) == 1
        if number is not None:
            np.testing.assert_equal(number, float(value))
        elif value is not None and not missing and value.isascii() and "_" not in value:
            with pytest.raises(ValueError, match="could not convert"):
                float(value.strip())


def test_whole_numbers_that_would_be_rounded_are_told_apart():
    found = text_numbers(pa.array(["9007199254740993", "-9007199254740993", "9007199254740992", "9e15"]))
    assert found.rounded.tolist() == [True, True, False, False]


@pytest.mark.slow
def test_the_command_line_does_so_too(tmp_path):
    as_csv(tmp_path, rows())

    def hieropo(*words):
        return called(*words, folder=tmp_path)

    named = ["--task", "store", "--action", "offer", "--reward", "profit", "--context", "age"]
    strict = hieropo("fit", "log.csv", "-o", "p", *named)
    assert strict.exit_code == 1
    assert "Line 9 of 'log.csv': 'n/a?' is not a number" in strict.stderr
    lenient = hieropo("fit", "log.csv", "-o", "p", *named, "--lenient", "--json")
    assert json.loads(lenient.stdout)["rejected"]["rows"] == 4
    assert hieropo("evaluate", "p", "log.csv", "--lenient").exit_code == 0
    assert hieropo("moments", "log.csv", "-o", "m", *named, "--lenient").exit_code == 0
    assert hieropo("doctor", "log.csv", *named).exit_code == 1
