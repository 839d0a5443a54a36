"""The hash of a task id is one number for equal ids of all types, as documented, and spreads tasks evenly."""

import datetime as dt
from decimal import Decimal
from hashlib import md5
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hieropo.errors import InputError
from hieropo.rows.ids import object_array
from hieropo.rows.task_hash import shards_of, task_hash, task_hashes

LOW = 0xFFFFFFFF


def mix(x):
    x ^= x >> 16
    x = x * 0x21F0AAAD & LOW
    x ^= x >> 15
    x = x * 0x735A2D97 & LOW
    return x ^ x >> 15


def number(n):
    n &= 2**64 - 1
    return mix((n & LOW) ^ mix(n >> 32))


@given(st.integers(-(2**63), 2**63 - 1))
def test_whole_numbers_have_the_documented_hash(n):
    assert task_hash(n) == number(n) == task_hashes(np.array([n], dtype=np.int64))[0]


@given(st.text())
def test_texts_have_the_first_four_bytes_of_md5(text):
    digest = md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()
    assert task_hash(text) == int.from_bytes(digest[:4], "big") == task_hashes(object_array([text]))[0]


def test_these_numbers_never_change():
    ids = [
        0,
        1,
        -1,
        2**40,
        "",
        "store 7",
        "Zürich",
        b"store 7",
        ("Utrecht", 3),
        UUID(int=5),
        dt.date(2020, 1, 1),
        0.5,
    ]
    assert [task_hash(key) for key in ids] == [
        0, 2261973619, 3313243744, 2278856384, 3558706393, 2176456817, 272269850, 2176456817,
        2317966887, 1948102490, 3713240305, 2520388654,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "equal",
    [
        [3, 3.0, Decimal(3), np.int64(3), np.uint64(3)],
        [1, True, 1.0],
        [0.5, Decimal("0.5"), np.float32(0.5)],
        [dt.date(2020, 1, 1), np.datetime64("2020-01-01"), np.datetime64("2020-01-01", "ns")],
        [
            dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC),
            dt.datetime(2020, 1, 1, 13, tzinfo=dt.timezone(dt.timedelta(hours=1))),
        ],
        [("a", 1), ("a", 1.0), ("a", True)],
    ],
)
def test_equal_ids_have_equal_hashes(equal):
    assert len({task_hash(key) for key in equal}) == 1
    assert len(set(task_hashes(object_array(equal)).tolist())) == 1


def test_times_as_an_array_have_the_hashes_of_times_one_by_one():
    days = np.array(["1969-12-31", "2024-02-29"], dtype="datetime64[D]")
    assert (
        task_hashes(days).tolist()
        == [task_hash(day) for day in days]
        == [task_hash(day.item()) for day in days]
    )


@pytest.mark.parametrize(
    "ids",
    [np.arange(20_000), np.arange(20_000) << 33, object_array([f"user-{n}" for n in range(20_000)]),
     object_array([(f"user-{n % 50}", n // 50) for n in range(20_000)])],
)  # fmt: skip
def test_tasks_spread_evenly_over_shards(ids):
    counts = np.bincount(shards_of(ids, 16), minlength=16)
    assert np.square(counts - 1250).sum() / 1250 < 45  # chi-squared of 15 degrees of freedom


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.text(), min_size=1))
def test_a_shard_is_two_of_twice_as_many(ids):
    array = object_array(ids)
    assert (shards_of(array, 32) >> 1 == shards_of(array, 16)).all()
    assert not shards_of(array, 1).any()


@pytest.mark.parametrize("shards", [0, 3, -2, 2**17, 1.0, "16"])
def test_a_number_of_shards_that_is_no_power_of_two_is_refused(shards):
    with pytest.raises(InputError, match="power of two"):
        shards_of(np.arange(3), shards)
