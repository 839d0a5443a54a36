"""Ids found again in plain numpy: the definition that ``_kernels.ids`` answers to, with the same hashes and slots."""

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Codes, Hashes, Mask

Bytes = NDArray[np.uint8]

_ODD, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_S32, _S8, _LOW = np.uint64(32), np.uint64(8), np.uint64(0xFFFFFFFF)


def find_texts(
    data: Bytes,
    ends: Codes,
    which: Codes,
    slots: Hashes,
    own: Bytes,
    own_ends: Codes,
    count: int,
    out: Codes,
) -> int:
    """Number of each of the texts ``which`` (k,), new ones after ``count``; return how many there are then.

    Text i is ``data[ends[i] : ends[i + 1]]``, and those known are kept in ``own`` and ``own_ends`` alike, which have
    room for all. ``slots`` (a power of 2,) finds them: half a hash, and the number from 1 on; 0 is free.
    """
    start, size = ends[which], ends[which + 1] - ends[which]
    hashes = _hashed(data, start, size)
    out[:] = _known(data, start, size, hashes, slots, own, own_ends)
    fresh: dict[bytes, int] = {}
    missing = np.flatnonzero(out < 0)
    firsts = []
    for t in missing.tolist():
        text = data[start[t] : start[t] + size[t]].tobytes()
        if text not in fresh:
            fresh[text] = count + len(fresh)
            firsts.append(t)
        out[t] = fresh[text]
    whole = np.frombuffer(b"".join(fresh), dtype=np.uint8)
    begin, total = int(own_ends[count]), count + len(fresh)
    own[begin : begin + whole.size] = whole
    own_ends[count + 1 : total + 1] = begin + np.cumsum(size[firsts])
    _enter((hashes[firsts] << _S32) | np.arange(count + 1, total + 1, dtype=np.uint64), slots)
    return total


def spread_slots(old: Hashes, slots: Hashes) -> None:
    """Put texts into more slots."""
    _enter(old[old != 0], slots)


def find_numbers(numbers: NDArray[np.integer], table: NDArray[np.int32], out: Codes, fresh: Codes) -> int:
    """Set ``out[t] = table[numbers[t]]``; return how many distinct numbers have no entry, -1: they go to ``fresh``.

    They are marked by -2 until the caller enters them, and calls :func:`enter_numbers`.
    """
    out[:] = table[numbers]
    missing = numbers[out == -1]
    if missing.size:
        distinct, first = np.unique(missing, return_index=True)
        fresh[: distinct.size] = missing[np.sort(first)]
        table[distinct] = -2
        return int(distinct.size)
    return 0


def enter_numbers(numbers: NDArray[np.integer], table: NDArray[np.int32], out: Codes) -> None:
    """Put what is in the table now where it had no entry."""
    missing = out < 0
    out[missing] = table[numbers[missing]]


def _words(data: Bytes) -> Hashes:
    """Return the 8 bytes from each place on, as a number; at the end of the data fewer places."""
    return np.ndarray(max(data.size - 7, 0), dtype=np.uint64, buffer=data, strides=(1,))


def _last_word(data: Bytes, start: Codes, size: Codes) -> Hashes:
    """Return the last 8 bytes of each text, or all of a shorter one."""
    found = np.zeros(size.size, dtype=np.uint64)
    long = size >= 8
    if long.any():
        found[long] = _words(data)[start[long] + size[long] - 8]
    for k in range(int(size[~long].max(initial=0))):
        at = np.flatnonzero(~long & (size > k))
        found[at] = (found[at] << _S8) | data[start[at] + k].astype(np.uint64)
    return found


@np.errstate(over="ignore")
def _hashed(data: Bytes, start: Codes, size: Codes) -> Hashes:
    """Return 32 bits from the bytes of each text."""
    h = size.astype(np.uint64) * _ODD
    for k in range(0, int(size.max(initial=0)) - 8, 8):
        at = np.flatnonzero(size - 8 > k)
        h[at] = (h[at] ^ _words(data)[start[at] + k]) * _MIX
        h[at] ^= h[at] >> _S32
    h = (h ^ _last_word(data, start, size)) * _MIX
    h = (h ^ (h >> _S32)) * _ODD
    return h >> _S32


def _equal(one: Bytes, one_start: Codes, two: Bytes, two_start: Codes, size: Codes) -> Mask:
    """Say which texts of one size are the same."""
    found: Mask = _last_word(one, one_start, size) == _last_word(two, two_start, size)
    for k in range(0, int(size.max(initial=0)) - 8, 8):
        at = np.flatnonzero(found & (size - 8 > k))
        found[at] = _words(one)[one_start[at] + k] == _words(two)[two_start[at] + k]
    return found


def _known(
    data: Bytes, start: Codes, size: Codes, hashes: Hashes, slots: Hashes, own: Bytes, own_ends: Codes
) -> Codes:
    """Return the number of each text, -1 where it has none: it is looked for until a slot is free."""
    found = np.full(start.size, -1)
    mask = slots.size - 1
    spot, at = hashes.astype(np.int64) & mask, np.arange(start.size)
    while at.size:
        held = slots[spot[at]]
        at, held = at[held != 0], held[held != 0]
        number = (held & _LOW).astype(np.int64) - 1
        same = (held >> _S32 == hashes[at]) & (own_ends[number + 1] - own_ends[number] == size[at])
        maybe = np.flatnonzero(same)
        same[maybe] = _equal(data, start[at[maybe]], own, own_ends[number[maybe]], size[at[maybe]])
        found[at[same]] = number[same]
        at = at[~same]
        spot[at] = (spot[at] + 1) & mask
    return found


def _enter(entries: Hashes, slots: Hashes) -> None:
    """Put each entry into the first free slot from its own on."""
    mask = slots.size - 1
    spot = (entries >> _S32).astype(np.int64) & mask
    while entries.size:
        free, first = np.unique(spot, return_index=True)
        first = first[slots[free] == 0]
        slots[spot[first]] = entries[first]
        left = np.ones(entries.size, dtype=np.bool_)
        left[first] = False
        entries, spot = entries[left], (spot[left] + 1) & mask
