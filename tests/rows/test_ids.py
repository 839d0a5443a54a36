import datetime as dt
import enum
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pytest

from hieropo.errors import InputError, LogError
from hieropo.rows.ids import abbreviate, decode_id, encode_id, hashed, id_array, is_null, plain
from hieropo.rows.keys import GrowingKeys, Keys


class Color(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    "value", [None, float("nan"), np.float64("nan"), np.datetime64("NaT"), pd.NaT, pd.NA]
)
def test_nulls_of_every_library_are_seen(value):
    assert is_null(value)
    with pytest.raises(InputError, match="missing value"):
        plain(value)
    with pytest.raises(LogError, match=r"Column 'store', row 11: the id is"):
        id_array(["a", value], "store", 10)


@pytest.mark.parametrize(
    ("value", "twin"),
    [
        (np.int8(3), 3),
        (np.uint64(2**63), 2**63),
        (np.True_, True),
        (np.float32(0.5), 0.5),
        (np.str_("a"), "a"),
        (Color.RED, "red"),
        (np.datetime64("2024-01-02"), dt.date(2024, 1, 2)),
        (np.datetime64("2024-01"), dt.date(2024, 1, 1)),
        (np.datetime64("2024-01-02T03:04:05.000006000", "ns"), dt.datetime(2024, 1, 2, 3, 4, 5, 6)),
        (pd.Timestamp("2024-01-02"), dt.datetime(2024, 1, 2)),
        (pd.Timestamp("2024-01-02", tz="UTC"), dt.datetime(2024, 1, 2, tzinfo=dt.UTC)),
    ],
)
def test_plain_gives_the_twin_of_the_standard_library(value, twin):
    found = plain(value)
    assert found == twin
    assert type(found) is type(twin)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("inf"), "not finite"),
        (2.0**53, r"The id 9007199254740992.0 is a float64 of size 2\*\*53 or more.*Int64"),
        (np.float32(-(2**24)), r"The id -16777216.0 is a float32 of size 2\*\*24 or more"),
        (("a", [1]), "of type list cannot be an id"),
        (("a", None), "stands for a missing value"),
        (np.datetime64("2024-01-01T00:00:00.000000001", "ns"), "no exact datetime"),
        (np.datetime64("30000-01-01"), "no exact datetime"),
        (pd.Timestamp("2024-01-01T00:00:00.000000001"), "finer than a microsecond"),
    ],
)
def test_plain_refuses_what_has_no_twin(value, message):
    with pytest.raises(InputError, match=message):
        plain(value)


@pytest.mark.parametrize(
    "value",
    [
        "a",
        "\u00e9\ud800",
        "",
        0,
        -(2**70),
        True,
        False,
        0.1,
        -0.0,
        5e-324,
        b"\x00\xff",
        Decimal("1.50"),
        dt.date(2024, 2, 29),
        dt.datetime(2024, 2, 29, 1, 2, 3, 4),
        dt.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=dt.timezone(dt.timedelta(hours=2))),
        UUID(int=7),
        ("a", 3, dt.date(2024, 2, 29)),
    ],
)
def test_json_keeps_value_and_type(value):
    found = decode_id(encode_id(value))
    assert found == value
    assert type(found) is type(value)
    assert repr(found) == repr(value) or isinstance(value, dt.datetime)


def test_equal_tuples_have_one_hash_and_others_another():
    assert hashed(("a", 1)) == hashed(("a", np.int64(1))) == hashed(("a", 1.0))
    assert len({hashed(key) for key in [("a", 1), ("a", "1"), ("a1",), ("a", "", 1), "a"]}) == 5


def test_tuples_are_ids_of_their_own():
    assert id_array([("a", 1), ("b", 2)], "task").tolist() == [("a", 1), ("b", 2)]
    keys, codes = Keys.factorize([("a", 1), ("b", 2), ("a", 1)])
    assert (keys.values.tolist(), codes.tolist()) == ([("a", 1), ("b", 2)], [0, 1, 0])


def test_one_instant_has_one_text():
    east = dt.datetime(2024, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    assert encode_id(east) == encode_id(dt.datetime(2024, 1, 1, tzinfo=dt.UTC))


@pytest.mark.parametrize(
    "stored", [{"date": "yesterday"}, {"colour": "red"}, [1], None, {"date": 3}, 0.5, {}]
)
def test_a_stored_id_that_was_edited_is_refused(stored):
    with pytest.raises(InputError, match="stored id"):
        decode_id(stored)


@pytest.mark.parametrize(
    ("ids", "dtype"),
    [
        ([1, 2], np.int64),
        (np.array([1, 2], dtype=np.int8), np.int64),
        (np.array([1, 2], dtype=np.uint16), np.uint64),
        (np.array(["2024-01-01"], dtype="datetime64[D]"), np.dtype("datetime64[D]")),
        (["a", 1], object),
        ([True, False], object),
        (np.array(["a", "b"]), object),
        ([("a", 1), ("a", 2)], object),
        (pd.Series(["a", "b"]), object),
        ([], object),
    ],
)
def test_id_arrays_keep_ids_as_given(ids, dtype):
    found = id_array(ids, "task")
    assert found.dtype == dtype
    assert found.tolist() == (ids.tolist() if isinstance(ids, np.ndarray) else list(ids))
    assert [type(value) for value in found.tolist()[:1]] == [
        type(value) for value in (ids.tolist() if isinstance(ids, np.ndarray) else list(ids))[:1]
    ]


def test_ids_that_cannot_be_used_name_column_and_row():
    with pytest.raises(
        LogError, match=r"'task', row 6: the id \['b'\] is of type list, which cannot be hashed"
    ):
        id_array(["a", ["b"]], "task", 5)
    with pytest.raises(LogError, match="row 1: the id is NaT"):
        id_array(np.array(["2024-01-01", "NaT"], dtype="datetime64[s]"), "task")
    with pytest.raises(InputError, match="one id a row"):
        id_array(np.zeros((2, 2), dtype=int), "task")
    with pytest.raises(InputError, match="Ids must be an array or a list"):
        id_array("abc", "task")


def test_long_lists_are_abbreviated():
    assert abbreviate(range(7), shown=2) == "0, 1, ... (5 more)"
    assert abbreviate(["a"]) == "'a'"


# -- places ------------------------------------------------------------------------------------------------------------


def dictionary_places(batches: list[Any]) -> tuple[list[Any], list[list[int]]]:
    """The index by definition: distinct ids of each batch as `Keys.factorize` orders them, numbered as they appear."""
    index: dict[Any, int] = {}
    found = []
    for batch in batches:
        keys, codes = Keys.factorize(batch)
        for key in keys.values.tolist():
            index.setdefault(key, len(index))
        found.append([index[keys.values.tolist()[code]] for code in codes])
    return list(index), found


@pytest.mark.parametrize(
    "batches",
    [
        [np.array([5, 3, 5, 9]), np.array([9, 4, 3]), np.array([0])],
        [np.array([5, 3]), np.array([10**12, 3]), np.array([4, 10**12])],  # too far apart for an array
        [np.array([5, 3]), np.array([-1, 3])],
        [np.array([5, 3]), ["a", 3, "b"], np.array([3, 7])],
        [["b", "a"], ["a", "c"]],
        [np.array([2**63], dtype=np.uint64), np.array([1])],
        [np.array([1, 0]), np.zeros(0, dtype=np.int64), np.array([2])],
    ],
)
def test_places_grow_in_order_of_appearance_whatever_the_ids(batches: list[Any]) -> None:
    places = GrowingKeys()
    known, expected = dictionary_places(batches)
    assert [places.rows(batch).tolist() for batch in batches] == expected
    assert len(places) == len(known)
    assert places.keys().values.tolist() == known
    assert places.keys().values.dtype == (
        np.int64 if all(type(key) is int and key < 2**62 for key in known) else object
    )


def test_dates_have_places_and_come_back_as_dates() -> None:
    days = np.array(["2024-01-02", "2024-01-01", "2024-01-02"], dtype="datetime64[D]")
    places = GrowingKeys()
    assert places.rows(days).tolist() == [1, 0, 1]
    assert places.keys().values.dtype == days.dtype
    assert places.keys().values.tolist() == sorted(set(days.tolist()))


def test_a_null_has_no_place() -> None:
    with pytest.raises(LogError, match="row 1"):
        GrowingKeys().rows(["a", None])


@pytest.mark.parametrize(
    ("ids", "row"),
    [
        (np.array([1.0, 2.0**53]), 1),
        (["a", 2.0**53], 1),
        ([np.float64(2.0**60), 3.5], 0),
        (np.array([0, 2**11], np.float16), 1),
    ],
)
def test_floats_that_may_be_rounded_are_no_ids(ids, row):
    with pytest.raises(LogError, match=f"Column 'store', row {10 + row}: the id .* is a float"):
        id_array(ids, "store", 10)
    with pytest.raises(InputError, match=r"The id .* is a float"):
        Keys([1, 2]).find(ids[row])


def test_whole_numbers_of_64_bits_below_0_and_beyond_are_not_rounded():
    ids = [-1, 2**63, 2**63 + 1]
    assert Keys(ids).values.tolist() == ids
    assert Keys(ids).locate([2**63 + 1]).tolist() == [2]
