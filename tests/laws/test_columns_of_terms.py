"""Columns of terms are the same from every source, and equal a slow twin in plain Python, for any schema."""

import json
import math
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hieropo import Gaussian, Hierarchy, HierOPO, HieropoWarning, LogMoments, PooledOPO, load_learner
from hieropo.errors import InputError, LogError
from hieropo.features.terms.learned import LearnedTerms
from hieropo.features.terms.terms import Cat, Cross, Cyclic, Number, YesNo
from hieropo.logs.encoding import EncodedSource, encoded_rows, opened_requests
from hieropo.logs.opening import open_log
from hieropo.passes.designs import design_of
from hieropo.passes.feature_choice import feature_map
from hieropo.rows.batches import Roles

ZONE = "America/New_York"
TYPES = {
    "x": pa.float64(),
    "n": pa.int64(),
    "d": pa.string(),
    "v": pa.bool_(),
    "at": pa.timestamp("us", tz=ZONE),
}
LEVELS = ["phone", "web", "", "None", "nan", "NA", "001", "é", "日本", "a b", "'", "other"]
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "x": st.one_of(st.floats(-1e6, 1e6), st.sampled_from([0.0, -0.0, 1e-300, 1e60])),
    "n": st.one_of(st.integers(0, 5), st.integers(-(2**53), 2**53)),
    "d": st.sampled_from(LEVELS),
    "v": st.booleans(),
    "at": st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1)).map(lambda t: t.replace(tzinfo=UTC)),
}
NAMES = list(TYPES)


@st.composite
def logs(draw: st.DrawFn) -> pa.Table:
    """A log of 4 to 12 rows; some columns have holes."""
    n = draw(st.integers(4, 12))
    columns = {}
    for name, kind in TYPES.items():
        holes = draw(st.booleans())
        value = st.one_of(st.none(), VALUES[name]) if holes else VALUES[name]
        column = draw(st.lists(value, min_size=n, max_size=n))
        if all(entry is None for entry in column):
            column[0] = draw(VALUES[name])
        columns[name] = pa.array(column, kind)
    rest = {
        "store": pa.array([k % 2 for k in range(n)]),
        "offer": pa.array(["a", "b"] * (n // 2) + ["a"] * (n % 2)),
    }
    return pa.table({**columns, **rest, "sales": pa.array([float(k % 3) for k in range(n)])})


FORMULAS = st.sampled_from(
    ["x + d + v", ". + d:x", "category(n, max_levels=2) + cyclic(at, 'day', harmonics=2)", "d:v + cyclic(at, 'week')",
     "x + n + v; missing='prior'", "category(d, max_levels=1) + yes_no(v)", "category(v) + cyclic(x, 7)"]
)  # fmt: skip


def roles_for(formula: str) -> Roles:
    return Roles("store", "offer", "sales", context=tuple(NAMES) if "." in formula.split() else ())


def truth(terms: LearnedTerms, row: Mapping[str, Any]) -> list[float]:
    """The columns of one row, by loops over plain Python values."""
    columns = [] if not terms.intercept else [1.0]
    for term in terms.terms:
        columns += _term(terms, term, row)
    return columns + [float(_is_missing(row[group[0]])) for group in terms.indicators]


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _term(terms: LearnedTerms, learned: Any, row: Mapping[str, Any]) -> list[float]:  # noqa: PLR0911
    term = learned.term
    if isinstance(term, Cross):
        product = [1.0]
        for factor in learned.factors:
            product = [left * right for left in product for right in _term(terms, factor, row)]
        return product
    column = terms.of(term.column)
    value = row[term.column]
    if _is_missing(value):
        if column.missing:
            return [0.0] * len(learned.names)
        assert column.unknown is not None
        return column.unknown.mean(term).tolist()
    if isinstance(term, Number | YesNo):
        return [float(value)]
    if isinstance(term, Cyclic):
        return _cycle(term, value)
    assert isinstance(term, Cat)
    levels = list(learned.levels)
    coded = [*levels, None] if learned.other else levels
    place = levels.index(value) if value in levels else len(coded) - 1 if learned.other else None
    if place is None:
        return [0.0] * (len(coded) - 1)
    return [-1.0 if place == len(coded) - 1 else float(j == place) for j in range(len(coded) - 1)]


def _cycle(term: Cyclic, value: Any) -> list[float]:
    if isinstance(term.period, float):
        phase = (value % term.period) / term.period
    else:
        clock = value.astimezone(ZoneInfo(ZONE)).replace(tzinfo=None)
        start = datetime(clock.year, clock.month, clock.day) - timedelta(
            days=clock.weekday() * (term.period == "week")
        )
        length = {"day": timedelta(days=1), "week": timedelta(days=7), "year": None}[term.period]
        if length is None:
            start, length = (
                datetime(clock.year, 1, 1),
                datetime(clock.year + 1, 1, 1) - datetime(clock.year, 1, 1),
            )
        phase = (clock - start) / length
    return [
        wave(2 * math.pi * h * phase) for h in range(1, term.harmonics + 1) for wave in (math.sin, math.cos)
    ]


def columns_of(source: Any, terms: LearnedTerms) -> Any:
    table = pa.Table.from_batches(source.batches(terms.names))
    return np.column_stack([table[name].to_numpy() for name in terms.names])


SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(logs(), logs(), FORMULAS)
def test_columns_equal_a_twin_in_plain_python(log: pa.Table, requests: pa.Table, formula: str) -> None:
    try:
        found = design_of(formula, open_log(log), roles_for(formula))
    except InputError as error:
        assert "No feature is left" in str(error)  # noqa: PT017 - the only reason that a drawn log has
        return
    terms = found.choice
    for table in (log, requests):
        rows = table.to_pylist()
        refused = [
            any(_is_missing(row[c.name]) and not c.missing for c in terms.columns)
            and terms.formula.missing == "refuse"
            for row in rows
        ]
        if any(refused):
            with pytest.raises(LogError, match=rf"row {refused.index(True)}\b"):
                columns_of(EncodedSource(open_log(table), terms), terms)
        kept = table.filter(pa.array([not bad for bad in refused]))
        if not kept.num_rows:
            continue
        design = columns_of(EncodedSource(open_log(kept), terms), terms)
        expected = [truth(terms, row) for row in kept.to_pylist()]
        np.testing.assert_allclose(design, expected, rtol=1e-12, atol=1e-9)
    assert LearnedTerms.from_dict(json.loads(json.dumps(terms.to_dict()))) == terms


@settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=SLOW,
)
@given(log=logs(), formula=FORMULAS)
def test_every_source_gives_the_same_bits(tmp_path: Path, log: pa.Table, formula: str) -> None:
    log = log.set_column(2, "d", log["d"].fill_null("web"))  # a CSV file has no empty text beside null
    try:
        features = feature_map(design_of(formula, open_log(log), roles_for(formula)).choice, log, Roles(
            "store", "offer", "sales", context=design_of(formula, open_log(log), roles_for(formula)).choice.names
        ))  # fmt: skip
    except InputError:
        return
    terms = features.terms  # type: ignore[attr-defined]  # of a map with terms
    expected = columns_of(opened_requests(log, features), terms)
    pq.write_table(log, tmp_path / "log.parquet", row_group_size=3)
    lines = [
        json.dumps({k: v.isoformat() if isinstance(v, datetime) else v for k, v in row.items()})
        for row in log.to_pylist()
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    quoted = pa.csv.WriteOptions(quoting_style="needed")
    pa.csv.write_csv(log, tmp_path / "log.csv", quoted)
    sources = [
        tmp_path / "log.parquet", tmp_path / "log.jsonl", tmp_path / "log.csv", log.to_batches(max_chunksize=2),
        pa.RecordBatchReader.from_batches(log.schema, log.to_batches(max_chunksize=5)), pl.from_arrow(log),
        log.set_column(2, "d", log["d"].dictionary_encode()), log.to_pandas(),
    ]  # fmt: skip
    for source in sources:
        assert np.array_equal(columns_of(opened_requests(source, features), terms), expected), type(source)
    assert np.array_equal(encoded_rows(features, log.to_pylist()), expected)
    one_by_one = [encoded_rows(features, [row]) for row in log.to_pylist()]
    assert np.array_equal(np.concatenate(one_by_one), expected)


def modest(table: pa.Table) -> pa.Table:
    """Return the table with numbers up to a million: posteriors of larger ones may overflow."""
    for name in ("x", "n"):
        values, most = table[name], pa.scalar(10**6, table.schema.field(name).type)
        least = pa.scalar(-(10**6), most.type)
        values = pc.if_else(pc.greater(values, most), most, pc.if_else(pc.less(values, least), least, values))
        table = table.set_column(table.column_names.index(name), name, values)
    return table


@settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=SLOW,
)
@given(log=logs().map(modest), requests=logs().map(modest), formula=FORMULAS)
def test_a_policy_of_any_schema_decides_as_the_twin_does(
    tmp_path: Path, log: pa.Table, requests: pa.Table, formula: str
) -> None:
    try:
        context = NAMES if "." in formula.split() else ()
        roles = {"task": "store", "action": "offer", "reward": "sales", "context": context}
        features = LogMoments.of(log, features=formula, **roles).features
    except (InputError, HieropoWarning):
        return
    d = features.dim
    known = Hierarchy(hyper=Gaussian(np.zeros(d), np.eye(d)), task_cov=np.eye(d), noise_var=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such logs are small
        learner = HierOPO(features, known=known).fit(log, task="store", action="offer", reward="sales")
        loaded = load_learner(learner.save(tmp_path / "policy"))
    terms = features.terms  # type: ignore[attr-defined]  # of a map with terms
    complete = [c.name for c in terms.columns if not c.missing and terms.formula.missing == "refuse"]
    rows = [row for row in requests.to_pylist() if not any(_is_missing(row[name]) for name in complete)]
    if rows:
        table = pa.Table.from_pylist(rows, schema=requests.schema)
        expected = [learner.policy_.choose(row["store"], truth(terms, row)).action for row in rows]
        assert loaded.predict(table).tolist() == expected
        assert [
            loaded.predict(pa.Table.from_pylist([row], schema=table.schema))[0] for row in rows
        ] == expected


def store_log(n: int = 240, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    device = rng.choice(["phone", "web", "tablet"], n)
    log = pd.DataFrame(
        {
            "store": rng.integers(0, 6, n), "offer": rng.choice(["a", "b"], n), "device": device,
            "price": np.where(rng.random(n) < 0.1, np.nan, rng.gamma(2.0, 4.0, n)), "vip": rng.random(n) < 0.4,
            "at": pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 10**7, n), unit="s"),
        }
    )  # fmt: skip
    return log.assign(sales=2.0 * (device == "phone") * (log.offer == "a") + rng.normal(size=n))


CONTEXT = ["device", "price", "vip", "at"]


def test_a_policy_keeps_its_map_through_saving_loading_merging_and_more_rows(tmp_path: Path) -> None:
    log = store_log()
    roles = {"task": "store", "action": "offer", "reward": "sales"}
    learner = PooledOPO().fit(log, context=CONTEXT, **roles)
    assert learner.features_.columns[:4] == ("device=phone", "device=tablet", "price", "vip=yes")
    loaded = load_learner(learner.save(tmp_path / "policy"))
    assert loaded.features_ == learner.features_
    requests = store_log(50, 1).drop(columns=["offer", "sales"])
    assert loaded.predict(requests).tolist() == learner.predict(requests).tolist()
    phone = requests.device == "phone"
    assert set(learner.predict(requests)[phone]) == {"a"}
    half = PooledOPO(learner.features_).fit(log[:100], **roles).partial_fit(log[100:], context=CONTEXT)
    np.testing.assert_allclose(
        half.moments_.sums.sum(axis=0), learner.moments_.sums.sum(axis=0), rtol=1e-9, atol=1e-9
    )


def test_a_new_level_is_counted_and_another_type_is_refused_with_its_row() -> None:
    learner = PooledOPO("device + price").fit(store_log(), task="store", action="offer", reward="sales")
    requests = store_log(4, 2)[["store", "device", "price"]].assign(
        device=["phone", "fridge", "web", "fridge"]
    )
    source = opened_requests(requests, learner.features_)
    assert learner.predict(source).shape == (4,)
    assert source.encoder.unknown == {"device": 2}  # type: ignore[attr-defined]  # an EncodedSource
    with pytest.raises(LogError, match=r"'device', row 0: '7' is a number, .* had text"):
        learner.predict(requests.assign(device=7))
    with pytest.raises(LogError, match=r"'device', row 2: null, .*missing='prior'"):
        learner.predict(requests.assign(device=["phone", "web", None, "web"]))
    with pytest.raises(InputError, match="lacks the context column 'price'"):
        encoded_rows(learner.features_, [{"device": "web"}])


def test_text_of_a_request_file_is_text_though_it_looks_like_a_number(tmp_path: Path) -> None:
    log = store_log().assign(device=["001", "A7"] * 120)
    learner = PooledOPO("device").fit(log, task="store", action="offer", reward="sales")
    (tmp_path / "requests.csv").write_text("store,device\n1,001\n2,8\n")
    known = columns_of(opened_requests(tmp_path / "requests.csv", learner.features_), learner.features_.terms)
    assert known.tolist() == [[1.0], [0.0]]


@pytest.mark.slow
@pytest.mark.parametrize(("unit", "zero"), [(1000.0, 0.0), (1e-3, 1e6)])
def test_decisions_depend_neither_on_units_nor_on_the_zero_of_numbers(unit: float, zero: float) -> None:
    rng = np.random.default_rng(0)
    store, offer, price = rng.integers(0, 20, 1500), rng.integers(0, 3, 1500), rng.gamma(2.0, 3.0, 1500)
    profit = rng.normal(size=(20, 3))[store, offer] * 0.3 + 0.05 * offer * price + rng.normal(size=1500)
    tables = [
        pa.table({"store": store, "offer": offer, "price": prices, "profit": profit})
        for prices in (price, zero + unit * price)
    ]
    roles = {"task": "store", "action": "offer", "reward": "profit", "context": ["price"]}
    plain, moved = (HierOPO().fit(table, **roles).decide(table).table for table in tables)
    assert moved["action"].equals(plain["action"])
    for name in ("mean", "sd"):
        assert moved[name].to_numpy() == pytest.approx(plain[name].to_numpy(), abs=1e-6)
