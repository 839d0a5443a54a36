"""The hash of a task id, by which tasks are assigned to shards: one documented function for each type of id.

A hash has 32 bits. Of S = 2^b shards, shard k holds the tasks whose hash has the upper b bits k:

    k = hash >> (32 - b)

So shard k of S is the shards 2 k and 2 k + 1 of 2 S: shards split and merge. With all values modulo 2^32,

    mix(x):      x ^= x >> 16;  x *= 0x21f0aaad;  x ^= x >> 15;  x *= 0x735a2d97;  x ^= x >> 15
    number(n):   mix((n mod 2^32) ^ mix(floor(n / 2^32)))             n in two's complement of 64 bits

    whole numbers, booleans     number(n); of 0 <= n < 2^32 it is mix(n)
    other numbers               number(h), h Python's hash of the number
    dates, times, datetime64    number(n), n the microseconds since 1970 (UTC where there is a zone), rounded down
    texts, bytes, UUIDs         the first 4 bytes of MD5 of the UTF-8 text or of the bytes, the first byte highest
    tuples (several columns)    h = 0;  for each part:  h = mix(h ^ hash of the part)

Both factors are below 2^31, so that a product of 32 bits with them fits a signed 64-bit integer, and any SQL computes
the hash: whole numbers by shifts and products, texts from ``substr(md5(id), 1, 8)``. Ids that are equal have equal
hashes, whatever their types: 3, 3.0 and Decimal(3) are one id, and so are a date and its midnight.
"""

import datetime as dt
from decimal import Decimal
from hashlib import md5
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Codes
from hieropo.errors import InputError
from hieropo.rows.ids import instant, object_array, plain

HASH = "hieropo-1"  # the name of these functions in a manifest
BITS = 32
MOST_SHARDS = 2**16

Hashes32 = NDArray[np.uint32]

_FIRST, _SECOND = np.uint32(0x21F0AAAD), np.uint32(0x735A2D97)
_LOW = 0xFFFFFFFF


def of_least_hashes(ids: NDArray[Any], most: int) -> Codes:
    """Return the positions of the ``most`` ids of the least hashes, ascending: a sample, whatever the order of ids."""
    return np.sort(np.argsort(task_hashes(ids), kind="stable")[:most])


def task_hashes(ids: NDArray[Any]) -> Hashes32:
    """Return the hash (m,) of each id.

    Parameters
    ----------
    ids : (m,) array of int64, uint64, datetime64 or object
        As :class:`Keys` hold them.

    Raises
    ------
    InputError
        A value cannot be an id.
    """
    if ids.dtype.kind in "iu":
        return _numbers(ids.astype(np.uint64, copy=False))
    if ids.dtype.kind == "M":
        return _numbers(ids.astype("datetime64[us]").view(np.int64).view(np.uint64))
    hashes = np.empty(ids.size, dtype=np.uint32)
    hash_of: dict[Any, int] = {}
    tuples: dict[int, list[int]] = {}
    for row, key in enumerate(ids.tolist()):
        if type(key) is str:
            hashes[row] = _text(key)
        elif type(key) is tuple:
            tuples.setdefault(len(key), []).append(row)
        else:
            value = hash_of.get(key)
            hashes[row] = hash_of.setdefault(key, task_hash(key)) if value is None else value
    for size, rows in tuples.items():
        hashes[rows] = _of_tuples(ids[rows].tolist(), size)
    return hashes


def _of_tuples(keys: list[tuple[Any, ...]], size: int) -> Hashes32:
    """Return the hash of each of some tuples of ``size`` parts."""
    combined = np.zeros(len(keys), dtype=np.uint32)
    for part in range(size):
        combined = _mix(combined ^ task_hashes(object_array([key[part] for key in keys])))
    return combined


def task_hash(key: object) -> int:
    """Return the hash of one id.

    Raises
    ------
    InputError
        The value cannot be an id.
    """
    if not isinstance(key, np.datetime64 | dt.datetime):
        key = plain(key)
    if isinstance(key, str):
        return _text(key)
    if isinstance(key, bytes | UUID):
        return _of_bytes(key if isinstance(key, bytes) else key.bytes)
    if isinstance(key, tuple):
        return int(_of_tuples([key], len(key))[0])
    if isinstance(key, int | float | Decimal):
        whole = int(key) if key == int(key) else hash(key)
        return _number(whole)
    return _number(_microseconds(key))


def shards_of(ids: NDArray[Any], n_shards: int) -> NDArray[np.int64]:
    """Return the shard (m,) of each id, of ``n_shards``; errors as :func:`task_hashes` and :func:`check_shards`."""
    return shards_of_hashes(task_hashes(ids), n_shards)


def shards_of_hashes(hashes: Hashes32, n_shards: int) -> NDArray[np.int64]:
    """Return the shard (m,) of each hash, of ``n_shards``; errors as :func:`check_shards`."""
    bits = check_shards(n_shards).bit_length() - 1
    return hashes.astype(np.int64) >> (BITS - bits)


def check_shards(n_shards: object) -> int:
    """Return a number of shards.

    Raises
    ------
    InputError
        It is no power of two from 1 to 65,536.
    """
    if isinstance(n_shards, int) and 1 <= n_shards <= MOST_SHARDS and not n_shards & (n_shards - 1):
        return n_shards
    raise InputError(
        f"shards={n_shards!r}: the number of shards has to be a power of two from 1 to {MOST_SHARDS}, so that shards "
        "split into halves. Give 16, or 64 for tens of millions of tasks."
    )


def _mix(x: Hashes32) -> Hashes32:
    x = x ^ (x >> np.uint32(16))
    x = x * _FIRST
    x = x ^ (x >> np.uint32(15))
    x = x * _SECOND
    return np.asarray(x ^ (x >> np.uint32(15)), dtype=np.uint32)


def _numbers(words: NDArray[np.uint64]) -> Hashes32:
    low, high = words.astype(np.uint32), (words >> np.uint64(BITS)).astype(np.uint32)
    return _mix(low ^ _mix(high))


def _number(n: int) -> int:
    return int(_numbers(np.array([n & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64))[0])


def _text(text: str) -> int:
    return _of_bytes(text.encode("utf-8", "surrogatepass"))


def _of_bytes(data: bytes) -> int:
    return int.from_bytes(md5(data, usedforsecurity=False).digest()[:4], "big")


def _microseconds(key: object) -> int:
    """Return the microseconds since 1970 of a date or a time, rounded down."""
    if isinstance(key, dt.datetime) and key.tzinfo is not None:
        epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        return (key - epoch) // dt.timedelta(microseconds=1)
    moment = instant(key)
    if moment is None:
        raise InputError(
            f"The task id {key!r} of type {type(key).__name__} has no hash, so that its shard is not known. Use text, "
            "whole numbers, dates or UUIDs as ids."
        )
    return int(moment.astype("datetime64[us]").view(np.int64))
