import copy
import dataclasses
import datetime as dt
import hashlib
import json
import math
import subprocess
import sys
from fractions import Fraction
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hieropo.errors import InputError, LogError, SchemaError, UnknownActionError
from hieropo.features.maps import (
    Columns,
    Crossed,
    FeatureMap,
    embedding,
    feature_map_from_dict,
    indicator,
    per_action,
)
from hieropo.moments.units import one_action

TABLE = [[1.0, 3.0], [1.0, 9.0], [0.5, -2.0]]
MAPS = {
    "columns": Columns(("price", "age")),
    "indicator": indicator(["a", "b", "c"]),
    "per_action": per_action(["a", "b", "c"], ["price", "age"]),
    "per_action, no intercept": per_action(["a", "b", "c"], ["price", "age"], intercept=False),
    "embedding": embedding(["a", "b", "c"], TABLE),
    "embedding, contexts": embedding(["a", "b", "c"], TABLE, ["price", "age"], table_names=["base", "size"]),
    "embedding, no intercept": embedding(["a", "b", "c"], TABLE, ["price", "age"], intercept=False),
    "columns, far": Columns(("price", "age")).recentred((0.25, 1.0), "age"),
    "per_action, far": per_action(["a", "b", "c"], ["price", "age"]).recentred((1e6, -3.0)),
    "per_action, no intercept, far": per_action(["a", "b", "c"], ["price", "age"], intercept=False).recentred(
        (1024.0, 1.0), "price"
    ),
    "embedding, far": embedding(["a", "b", "c"], TABLE, ["price", "age"]).recentred((0.0, 40.0)),
}
CROSSED = {name: features for name, features in MAPS.items() if features.actions is not None}

ids = st.one_of(
    st.text(),
    st.integers(),
    st.booleans(),
    st.floats(-(2.0**53), 2.0**53, exclude_min=True, exclude_max=True),  # larger ones may be rounded
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(dt.UTC)),
    st.uuids(),
    st.binary(),
)


def contexts_for(features, n, rng):
    return rng.standard_normal((n, len(features.columns)))


def measured_by_definition(row, features):
    """x - origin, or x_j - (origin_j / origin_p) x_p but for the reference column p; exact, rounded once."""
    at = None if features.reference_column is None else features.columns.index(features.reference_column)
    row, origin = [[Fraction(float(value)) for value in values] for values in (row, features.origin)]
    if at is None:
        return [float(x - o) for x, o in zip(row, origin, strict=True)]
    return [
        float(x if j == at else x - o / origin[at] * row[at])
        for j, (x, o) in enumerate(zip(row, origin, strict=True))
    ]


def by_definition(features, context, codes):
    """phi from its definition, one row at a time: table[a] (x) (1, x), x measured from the origin."""
    if features.origin is not None:
        context = [measured_by_definition(row, features) for row in context]
    if features.actions is None:
        return np.array(context).reshape(-1, len(features.columns))
    table = np.eye(len(features.actions)) if features.table is None else features.table
    rows = []
    for x, code in zip(context, codes, strict=True):
        rows.append(np.kron(table[code], [*([1.0] if features.intercept else []), *x]))
    return np.array(rows)


@pytest.mark.parametrize("features", MAPS.values(), ids=MAPS)
class TestEveryMap:
    def test_is_a_feature_map(self, features):
        assert isinstance(features, FeatureMap)
        assert len(features.names) == features.dim
        assert len(set(features.names)) == features.dim

    def test_phi_is_its_definition(self, features):
        rng = np.random.default_rng(1)
        context = contexts_for(features, 7, rng)
        codes = rng.integers(0, 3, 7)
        found = features.phi(context, None if features.actions is None else codes)
        away = 0.0 if features.reference_column is None else 1e-15  # a multiple of a column is rounded
        np.testing.assert_allclose(found, by_definition(features, context, codes), rtol=0, atol=away)
        assert found.dtype == np.float64
        assert found.flags.c_contiguous
        assert found.flags.writeable

    def test_no_rows_give_no_features(self, features):
        empty = np.empty((0, len(features.columns)))
        codes = None if features.actions is None else np.empty(0, dtype=np.int64)
        assert features.phi(empty, codes).shape == (0, features.dim)

    def test_round_trip_through_json(self, features):
        again = feature_map_from_dict(json.loads(json.dumps(features.to_dict())))
        assert again == features
        assert hash(again) == hash(features)
        assert again.fingerprint == features.fingerprint
        assert again.names == features.names
        assert type(again) is type(features)

    def test_is_immutable(self, features):
        with pytest.raises(dataclasses.FrozenInstanceError):
            features.columns = ()
        assert copy.deepcopy(features) == features

    def test_wrong_contexts_are_refused(self, features):
        codes = None if features.actions is None else [0]
        width = len(features.columns)
        with pytest.raises(LogError, match=rf"shape \(1, {width + 1}\); shape \(n, {width}\) is needed"):
            features.phi(np.zeros((1, width + 1)), codes)
        with pytest.raises(LogError, match="is needed"):
            features.phi(np.zeros(width), codes)
        if width:
            with pytest.raises(LogError, match="Column 'price', row 0: nan is not a context"):
                features.phi(np.full((1, width), np.nan), codes)


def test_maps_differ_by_fingerprint():
    prints = {features.fingerprint for features in MAPS.values()}
    assert len(prints) == len(MAPS)
    assert Columns(("a",)) != "a"


@pytest.mark.parametrize("features", CROSSED.values(), ids=CROSSED)
def test_candidates_are_phi_of_every_action(features):
    rng = np.random.default_rng(2)
    context = contexts_for(features, 5, rng)
    found = features.candidates(context)
    assert found.shape == (5, 3, features.dim)
    for code in range(3):
        np.testing.assert_array_equal(found[:, code], features.phi(context, np.full(5, code)))


def test_a_map_without_contexts_needs_none():
    features = indicator(["a", "b"])
    np.testing.assert_array_equal(features.phi(None, [1, 0]), [[0, 1], [1, 0]])
    np.testing.assert_array_equal(features.candidates(None)[0], np.eye(2))


def test_an_origin_is_a_change_of_coordinates_within_a_family():
    plain = per_action(["a", "b"], ["price", "age"])
    far = plain.recentred((20.5, -3.0))
    assert far != plain
    assert far.equivalence_id == plain.equivalence_id == plain.fingerprint
    assert far.recentred(None) == plain == plain.recentred((0.0, 0))
    assert far.origin == (20.5, -3.0)
    assert far.names == plain.names
    multiples = Columns(("price", "age"), (2.0, 4.0), "age")
    assert multiples.phi([[7.0, 2.0]]).tolist() == [[6.0, 2.0]]
    assert multiples.recentred(None) == Columns(("price", "age")) == multiples.recentred((0.0, 4.0), "age")
    own = one_action(far)
    assert own.origin == far.origin
    np.testing.assert_array_equal(own.phi([[21.5, 0.0]], [0]), [[1.0, 1.0, 3.0]])


@pytest.mark.parametrize(
    ("origin", "reference", "intercept", "error", "message"),
    [
        ((1.0,), None, True, InputError, r"one finite number for each of the columns \['price', 'age'\]"),
        ((1.0, math.nan), None, True, InputError, "one finite number"),
        ((1.0, 2.0), "age", True, InputError, "reference_column='age' is for maps without an intercept"),
        ((1.0, 2.0), None, False, InputError, "name that column, reference_column="),
        ((1.0, 2.0), "aged", False, SchemaError, "did you mean 'age'"),
        ((1.0, 0.0), "age", False, InputError, "are no multiples of it"),
    ],
)
def test_wrong_origins_are_refused(origin, reference, intercept, error, message):
    with pytest.raises(error, match=message):
        per_action(["a"], ["price", "age"], intercept=intercept).recentred(origin, reference)


def test_names_say_action_and_context():
    assert MAPS["per_action"].names[:3] == ("a", "a:price", "a:age")
    assert MAPS["embedding, contexts"].names == (
        "base",
        "base:price",
        "base:age",
        "size",
        "size:price",
        "size:age",
    )
    assert MAPS["embedding"].names == ("feature0", "feature1")
    assert indicator(["3", 3]).names == ("'3'", "3")


def test_an_identity_table_is_the_map_per_action():
    assert embedding(["a", "b"], np.eye(2), ["x"]) == per_action(["a", "b"], ["x"])
    assert embedding(["a", "b"], np.eye(2), ["x"], table_names=["one", "two"]).names[0] == "one"


def test_many_actions_take_no_square_table():
    features = indicator(range(100_000))
    assert features.dim == 100_000
    assert features.phi(None, [99_999])[0, -1] == 1.0


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ([np.int64(1), np.int32(2)], [1, 2]),
        (np.array([1, 2], dtype=np.uint8), [1, 2]),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.array(["2024-01-01"], dtype="datetime64[D]"), [dt.date(2024, 1, 1)]),
        (np.array(["2024-01-01"], dtype="datetime64[ns]"), [dt.datetime(2024, 1, 1)]),
        (np.array([True, False]), [True, False]),
    ],
)
def test_the_fingerprint_does_not_see_where_a_scalar_came_from(given, same):
    assert indicator(given) == indicator(same)
    assert indicator(given).actions == tuple(same)
    assert [type(action) for action in indicator(given).actions] == [type(action) for action in same]


def test_the_fingerprint_sees_types_orders_and_every_bit():
    assert indicator(["3"]) != indicator([3])
    assert indicator(["a", "b"]) != indicator(["b", "a"])
    assert per_action(["a"], ["x", "y"]) != per_action(["a"], ["y", "x"])
    assert embedding(["a"], [[0.1]]) != embedding(["a"], [[math.nextafter(0.1, 1)]])


def test_the_fingerprint_is_stable_over_runs_and_versions():
    features = embedding(["a", 3, dt.date(2024, 1, 1)], [[0.1, 1e-300], [2, -0.0], [1 / 3, 5]], ["x"])
    text = (
        '{"actions":["a",3,{"date":"2024-01-01"}],"columns":["x"],"intercept":true,"map":"crossed",'
        '"table":[[0.1,1e-300],[2.0,-0.0],[0.3333333333333333,5.0]],"table_names":null}'
    )
    known = hashlib.sha256(text.encode()).hexdigest()
    assert features.fingerprint == known
    program = (
        "import datetime as dt; from hieropo.features.maps import embedding; day = dt.date(2024, 1, 1); "
        "print(embedding(['a', 3, day], [[.1, 1e-300], [2, -0.], [1 / 3, 5]], ['x']).fingerprint)"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == known


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_round_trip_keeps_every_action_and_bit(data):
    actions = data.draw(st.lists(ids, min_size=1, max_size=6, unique=True))
    columns = data.draw(st.lists(st.text(), max_size=3, unique=True))
    width = data.draw(st.integers(1, 3))
    floats = st.floats(allow_nan=False, allow_infinity=False)
    table = data.draw(st.none() | arrays(np.float64, (len(actions), width), elements=floats))
    features = Crossed(tuple(actions), table, tuple(columns), intercept=True)
    again = feature_map_from_dict(json.loads(json.dumps(features.to_dict())))
    assert again == features
    assert again.fingerprint == features.fingerprint
    assert again.actions == features.actions
    assert [type(action) for action in again.actions] == [type(action) for action in actions]
    assert again.columns == tuple(columns)
    if features.table is None:
        assert again.table is None
    else:
        assert again.table.tobytes() == np.asarray(table).tobytes()
    np.testing.assert_array_equal(again.action_codes(actions), np.arange(len(actions)))


@pytest.mark.parametrize(
    ("actions", "ids", "codes"),
    [
        (["a", "b"], ["b", "a", "b"], [1, 0, 1]),
        (["a", "b"], np.array(["b", "a"]), [1, 0]),
        ([30, -10, 20], np.array([20, 30, -10], dtype=np.int16), [2, 0, 1]),
        ([30, 10], np.array([10, 30], dtype=np.uint64), [1, 0]),
        ([30, 10], np.array([10, 30], dtype=object), [1, 0]),
        ([30, 10], [10.0, 30.0], [1, 0]),
        ([2**70, 1], [1, 2**70], [1, 0]),
        ([True, False], np.array([False, True]), [1, 0]),
        ([0.5, 1.5], np.array([1.5, 0.5]), [1, 0]),
        ([dt.date(2024, 1, 1)], np.array(["2024-01-01"] * 2, dtype="datetime64[D]"), [0, 0]),
        ([dt.datetime(2024, 1, 1)], np.array(["2024-01-01"], dtype="datetime64[ns]"), [0]),
        ([dt.datetime(2024, 1, 1)], [np.datetime64("2024-01-01T00:00")], [0]),
        ([UUID(int=1), "a"], ["a", UUID(int=1)], [1, 0]),
        (["a"], [], []),
    ],
)
def test_action_codes(actions, ids, codes):
    found = indicator(actions).action_codes(ids)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.array(codes, dtype=np.int64))


@pytest.mark.parametrize(
    ("actions", "ids", "message"),
    [
        (
            ["left", "right"],
            ["left", "rihgt"],
            r"'rihgt' \(row 101\).*did you mean 'right'.*knows 2: 'left', 'right'",
        ),
        ([3, 4], ["3"], r"'3' \(row 100\).*knows 3 of type int, but this is of type str"),
        (["3", "4"], np.array([3]), r"3 \(row 100\).*knows '3' of type str, but this is of type int"),
        (list(range(50)), [51], r"knows 50: 0, 1, 2, 3, 4, ... \(45 more\)"),
        ([dt.date(2024, 1, 1)], np.array(["2024-01-02"], dtype="datetime64[D]"), "2024-01-02"),
        (["a"], [("a", 1)], r"\('a', 1\) \(row 100\)"),
    ],
)
def test_unknown_actions_name_value_row_and_hint(actions, ids, message):
    with pytest.raises(UnknownActionError, match=message):
        indicator(actions).action_codes(ids, first_row=100)


def test_null_actions_are_refused():
    with pytest.raises(LogError, match="'action', row 1: the id is None"):
        indicator(["a"]).action_codes(["a", None])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: indicator([]), InputError, "list of actions is empty"),
        (
            lambda: indicator(["a", "b", "a"]),
            InputError,
            r"'a' is listed twice, at positions 0 \('a'\) and 2",
        ),
        (lambda: indicator([1, True]), InputError, r"True is listed twice, at positions 0 \(1\) and 1"),
        (lambda: indicator(["a", None]), InputError, "Action 1: None cannot be an id"),
        (lambda: indicator([("a", "b")]), InputError, "Action 0: .*tuple"),
        (lambda: Crossed("abc", None), InputError, "must be a list of ids; got 'abc'"),
        (lambda: indicator("abc"), InputError, "must be a list of ids; got 'abc'"),
        (lambda: per_action(["a"], "age"), SchemaError, "bare string 'age'"),
        (lambda: per_action(["a"], ["x", "y", "x"]), SchemaError, "'x' is named twice, at positions 0 and 2"),
        (lambda: per_action(["a"], ["x", 3]), SchemaError, "column 1 is 3"),
        (lambda: per_action(["a"], [], intercept=False), InputError, "no features"),
        (lambda: embedding(["a", "b"], [[1.0]]), InputError, r"shape \(1, 1\); \(2, e\) is needed"),
        (lambda: embedding(["a"], [1.0]), InputError, r"shape \(1,\)"),
        (lambda: embedding(["a"], np.empty((1, 0))), InputError, r"shape \(1, 0\)"),
        (lambda: embedding(["a"], [["x"]]), InputError, "not a matrix of numbers"),
        (lambda: embedding(["a", "b"], [[1.0], [1.0, 2.0]]), InputError, "not a matrix of numbers"),
        (
            lambda: embedding(["a", "b"], [[1.0], [np.nan]]),
            InputError,
            r"nan in row 1 \(action 'b'\), column 0",
        ),
        (lambda: embedding(["a"], [[1.0]], table_names=["x", "y"]), InputError, "2 table_names"),
        (
            lambda: Crossed(("a",), None, table_names=("x",)),
            InputError,
            "table_names were given without a table",
        ),
        (lambda: Columns(()), SchemaError, "at least one"),
        (lambda: Columns(("x", "x")), SchemaError, "named twice"),
    ],
)
def test_maps_that_cannot_be(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (None, "depend on the action"),
        ([-1], r"code -1 \(row 0\) is not in 0 .. 2"),
        ([0, 3], r"code 3 \(row 1\)"),
        (["a"], r"action_codes\(ids\)"),
        ([[0]], r"shape \(1, 1\)"),
        ([0, 1, 2], "1 contexts do not fit 3 actions"),
    ],
)
def test_codes_that_cannot_be(codes, message):
    with pytest.raises(InputError, match=message):
        MAPS["per_action"].phi(np.zeros((2 if codes == [0, 3] else 1, 2)), codes)


def test_columns_knows_no_actions():
    features = MAPS["columns"]
    for call in (
        lambda: features.phi(np.zeros((1, 2)), [0]),
        lambda: features.candidates(np.zeros((1, 2))),
        lambda: features.action_codes(["a"]),
    ):
        with pytest.raises(InputError, match="has no action ids"):
            call()
    given = np.zeros((1, 2))
    features.phi(given)[0, 0] = 1.0
    assert given[0, 0] == 0.0


def test_contexts_are_arranged_by_name():
    features = MAPS["per_action"]
    np.testing.assert_array_equal(features.arrange([[1.0, 2.0]], ["age", "price"]), [[2.0, 1.0]])
    with pytest.raises(SchemaError, match=r"'age' is missing \(did you mean 'agee'\?\)"):
        features.arrange([[1.0, 2.0]], ["agee", "price"])
    with pytest.raises(
        SchemaError, match=r"'prices' is unknown to the feature map \(did you mean 'price'\?\)"
    ):
        features.arrange([[1.0, 2.0, 3.0]], ["age", "price", "prices"])


def test_tables_are_copied_and_read_only():
    table = np.array(TABLE)
    features = embedding(["a", "b", "c"], table)
    table[0, 0] = 7.0
    assert features.table[0, 0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        features.table[0, 0] = 7.0


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"map": "quadratic"}, "kind 'quadratic'; this version reads"),
        ({}, "kind None"),
        ({"map": "columns"}, "lacks the entry 'columns'"),
        ({**MAPS["indicator"].to_dict(), "actions": [{"colour": "red"}]}, "no known type"),
    ],
)
def test_stored_maps_that_were_edited_are_refused(stored, message):
    with pytest.raises(InputError, match=message):
        feature_map_from_dict(stored)
