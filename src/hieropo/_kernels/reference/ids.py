"""Ids of texts and numbers in plain numpy: the reference for ``_kernels.ids``, with the same hashes and slots."""

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
    stored: Bytes,
    stored_ends: Codes,
    count: int,
    out: Codes,
) -> int:
    """Write the number of each of the texts ``which`` (k,), new ones from ``count`` on; return the new count.

    Text i is ``data[ends[i] : ends[i + 1]]``; known texts are stored in ``stored`` and ``stored_ends`` alike, with
    room for all. ``slots`` (a power of 2,) is a hash table of half a hash and the number from 1 on; 0 is free.
    """
    start, size = ends[which], ends[which + 1] - ends[which]
    hashes = _hashed(data, start, size)
    out[:] = _known(data, start, size, hashes, slots, stored, stored_ends)
    new: dict[bytes, int] = {}
    missing = np.flatnonzero(out < 0)
    firsts = []
    for t in missing.tolist():
        text = data[start[t] : start[t] + size[t]].tobytes()
        if text not in new:
            new[text] = count + len(new)
            firsts.append(t)
        out[t] = new[text]
    joined = np.frombuffer(b"".join(new), dtype=np.uint8)
    begin, total = int(stored_ends[count]), count + len(new)
    stored[begin : begin + joined.size] = joined
    stored_ends[count + 1 : total + 1] = begin + np.cumsum(size[firsts])
    _enter((hashes[firsts] << _S32) | np.arange(count + 1, total + 1, dtype=np.uint64), slots)
    return total


def spread_slots(old: Hashes, slots: Hashes) -> None:
    """Enter the texts of old slots in a larger table of slots."""
    _enter(old[old != 0], slots)


def find_numbers(numbers: NDArray[np.integer], table: NDArray[np.int32], out: Codes, fresh: Codes) -> int:
    """Set ``out[t] = table[numbers[t]]``; return how many distinct ones have no entry (-1); ``fresh`` gets them.

    These have the entry -2 until the caller enters them and calls :func:`enter_numbers`.
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
    """Fill in entries of the table that were missing in ``out``."""
    missing = out < 0
    out[missing] = table[numbers[missing]]


def _words(data: Bytes) -> Hashes:
    """Return the 8 bytes from each position on, as a number; the last 7 positions have none."""
    return np.ndarray(max(data.size - 7, 0), dtype=np.uint64, buffer=data, strides=(1,))


def _last_word(data: Bytes, start: Codes, size: Codes) -> Hashes:
    """Return the last 8 bytes of each text, or all of a shorter one."""
    words = np.zeros(size.size, dtype=np.uint64)
    long = size >= 8
    if long.any():
        words[long] = _words(data)[start[long] + size[long] - 8]
    for k in range(int(size[~long].max(initial=0))):
        rows = np.flatnonzero(~long & (size > k))
        words[rows] = (words[rows] << _S8) | data[start[rows] + k].astype(np.uint64)
    return words


@np.errstate(over="ignore")
def _hashed(data: Bytes, start: Codes, size: Codes) -> Hashes:
    """Return 32 bits from the bytes of each text."""
    h = size.astype(np.uint64) * _ODD
    for k in range(0, int(size.max(initial=0)) - 8, 8):
        rows = np.flatnonzero(size - 8 > k)
        h[rows] = (h[rows] ^ _words(data)[start[rows] + k]) * _MIX
        h[rows] ^= h[rows] >> _S32
    h = (h ^ _last_word(data, start, size)) * _MIX
    h = (h ^ (h >> _S32)) * _ODD
    return h >> _S32


def _equal(first: Bytes, first_start: Codes, second: Bytes, second_start: Codes, size: Codes) -> Mask:
    """Return True for each pair of texts of one size that are equal."""
    equal: Mask = _last_word(first, first_start, size) == _last_word(second, second_start, size)
    for k in range(0, int(size.max(initial=0)) - 8, 8):
        rows = np.flatnonzero(equal & (size - 8 > k))
        equal[rows] = _words(first)[first_start[rows] + k] == _words(second)[second_start[rows] + k]
    return equal


def _known(
    data: Bytes, start: Codes, size: Codes, hashes: Hashes, slots: Hashes, stored: Bytes, stored_ends: Codes
) -> Codes:
    """Return the number of each text, -1 where none of its slots up to a free one has it."""
    numbers = np.full(start.size, -1)
    mask = slots.size - 1
    slot, rows = hashes.astype(np.int64) & mask, np.arange(start.size)
    while rows.size:
        entry = slots[slot[rows]]
        rows, entry = rows[entry != 0], entry[entry != 0]
        number = (entry & _LOW).astype(np.int64) - 1
        same = (entry >> _S32 == hashes[rows]) & (stored_ends[number + 1] - stored_ends[number] == size[rows])
        candidates = np.flatnonzero(same)
        same[candidates] = _equal(
            data, start[rows[candidates]], stored, stored_ends[number[candidates]], size[rows[candidates]]
        )
        numbers[rows[same]] = number[same]
        rows = rows[~same]
        slot[rows] = (slot[rows] + 1) & mask
    return numbers


def _enter(entries: Hashes, slots: Hashes) -> None:
    """Put each entry into the first free slot from that of its hash on."""
    mask = slots.size - 1
    slot = (entries >> _S32).astype(np.int64) & mask
    while entries.size:
        free, first = np.unique(slot, return_index=True)
        first = first[slots[free] == 0]
        slots[slot[first]] = entries[first]
        remaining = np.ones(entries.size, dtype=np.bool_)
        remaining[first] = False
        entries, slot = entries[remaining], (slot[remaining] + 1) & mask
