"""Ids found again: texts by their bytes, whole numbers in a table."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

import numpy as np

from hieropo.core.jit import compiled
from hieropo.core.kernels_pointers import fetch_ahead, word_at

HASH, NUMBER, START, SIZE = 0, 1, 2, 3  # what a slot holds of a text; its number counts from 1, 0 is free
_AT_ONCE = 32  # texts that are looked for together, so that memory is waited for once
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_S32, _S8 = np.uint64(32), np.uint64(8)


@compiled
def _tail(data, start, stop):
    word = np.uint64(0)
    for k in range(start, stop):
        word = (word << _S8) | np.uint64(data[k])
    return word


@compiled
def _hashed(data, start, stop):
    h = np.uint64(stop - start) * _ODD
    base = data.ctypes.data
    t = start
    while t + 8 <= stop:
        h = (h ^ word_at(base + t)) * _MIX
        h ^= h >> _S32
        t += 8
    h = ((h ^ _tail(data, t, stop)) * _MIX) ^ (h >> _S32)
    h *= _ODD
    return h ^ (h >> _S32)


@compiled
def _equal(data, start, stop, own, first):
    left, right = data.ctypes.data + start, own.ctypes.data + first
    size, k = stop - start, 0
    while k + 8 <= size:
        if word_at(left + k) != word_at(right + k):
            return False
        k += 8
    return _tail(data, start + k, stop) == _tail(own, first + k, first + size)


@compiled
def _find(data, start, stop, h, slots, own, own_ends, count):
    """Slot of a text, which is entered with number ``count`` where it is new."""
    mask = np.int64(len(slots) - 1)
    spot = np.int64(h & np.uint64(mask))
    while slots[spot, NUMBER]:
        slot = slots[spot]
        if (
            slot[HASH] == h
            and slot[SIZE] == stop - start
            and _equal(data, start, stop, own, np.int64(slot[START]))
        ):
            return spot
        spot = (spot + 1) & mask
    first = own_ends[count]
    for k in range(stop - start):
        own[first + k] = data[start + k]
    own_ends[count + 1] = first + stop - start
    slots[spot, HASH], slots[spot, NUMBER], slots[spot, START], slots[spot, SIZE] = (
        h,
        count + 1,
        first,
        stop - start,
    )
    return spot


@compiled
def find_texts(data, ends, which, slots, own, own_ends, count, out):
    """Number of each of the texts ``which`` (k,), new ones after ``count``; how many there are then.

    Text i is ``data[ends[i] : ends[i + 1]]``, and those known are kept in ``own`` and ``own_ends`` alike, which have
    room for all. ``slots`` (a power of 2, 4) finds them by their hashes.
    """
    mask = np.uint64(len(slots) - 1)
    hashes = np.empty(_AT_ONCE, dtype=np.uint64)
    table, known = slots.ctypes.data, own.ctypes.data
    for begin in range(0, out.size, _AT_ONCE):
        m = min(_AT_ONCE, out.size - begin)
        for i in range(m):
            text = which[begin + i]
            hashes[i] = _hashed(data, ends[text], ends[text + 1])
            fetch_ahead(table + 32 * np.int64(hashes[i] & mask))
        for i in range(m):
            fetch_ahead(known + np.int64(slots[np.int64(hashes[i] & mask), START]))
        for i in range(m):
            text = which[begin + i]
            start, stop = ends[text], ends[text + 1]
            spot = _find(data, start, stop, hashes[i], slots, own, own_ends, count)
            out[begin + i] = np.int64(slots[spot, NUMBER]) - 1
            count = max(count, out[begin + i] + 1)
    return count


@compiled
def spread_slots(old, slots):
    """Put texts into more slots."""
    mask = np.int64(len(slots) - 1)
    for i in range(len(old)):
        if old[i, NUMBER]:
            spot = np.int64(old[i, HASH] & np.uint64(mask))
            while slots[spot, NUMBER]:
                spot = (spot + 1) & mask
            for k in range(4):
                slots[spot, k] = old[i, k]


@compiled
def find_numbers(numbers, table, out, fresh):
    """``out[t] = table[numbers[t]]``; how many distinct numbers have no entry, -1, and are put into ``fresh``.

    They are marked by -2 until the caller enters them, and calls :func:`enter_numbers`.
    """
    count = 0
    for t in range(numbers.size):
        number = np.uint64(numbers[t])
        place = table[number]
        out[t] = place
        if place == -1:
            table[number] = -2
            fresh[count] = numbers[t]
            count += 1
    return count


@compiled
def enter_numbers(numbers, table, out):
    """Put what is in the table now where it had no entry."""
    for t in range(numbers.size):
        if out[t] < 0:
            out[t] = table[np.uint64(numbers[t])]
