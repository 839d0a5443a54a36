"""Ids found again: texts by their bytes, whole numbers in a table."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

import numpy as np

from hieropo.core.jit import compiled

_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_S32, _S8 = np.uint64(32), np.uint64(8)


@compiled
def _hashed(data, start, stop):
    h = np.uint64(stop - start) * _ODD
    t = start
    while t < stop:
        word = np.uint64(0)
        for k in range(min(8, stop - t)):
            word = (word << _S8) | np.uint64(data[t + k])
        h = (h ^ word) * _MIX
        h ^= h >> _S32
        t += 8
    h *= _ODD
    return h ^ (h >> _S32)


@compiled
def _equal(data, start, stop, own, first, last):
    if stop - start != last - first:
        return False
    same = True
    for k in range(stop - start):
        same &= data[start + k] == own[first + k]
    return same


@compiled
def find_texts(data, ends, slots, own, own_ends, count, out):
    """Number of each text (k,), new ones after ``count``; how many there are then.

    Text i is ``data[ends[i] : ends[i + 1]]``, and those known are kept in ``own`` and ``own_ends`` alike, which have
    room for all. ``slots`` (a power of 2, 2) holds hashes and numbers, counted from 1; 0 is free.
    """
    mask = np.uint64(len(slots) - 1)
    for i in range(out.size):
        start, stop = ends[i], ends[i + 1]
        h = _hashed(data, start, stop)
        spot = np.int64(h & mask)
        while True:
            number = np.int64(slots[spot, 1]) - 1
            if number < 0:
                first = own_ends[count]
                for k in range(stop - start):
                    own[first + k] = data[start + k]
                own_ends[count + 1] = first + stop - start
                slots[spot, 0], slots[spot, 1] = h, np.uint64(count + 1)
                out[i] = count
                count += 1
                break
            if slots[spot, 0] == h and _equal(data, start, stop, own, own_ends[number], own_ends[number + 1]):
                out[i] = number
                break
            spot = np.int64(np.uint64(spot + 1) & mask)
    return count


@compiled
def spread_slots(old, slots):
    """Put hashes and numbers into more slots."""
    mask = np.uint64(len(slots) - 1)
    for i in range(len(old)):
        if old[i, 1]:
            spot = np.int64(old[i, 0] & mask)
            while slots[spot, 1]:
                spot = np.int64(np.uint64(spot + 1) & mask)
            slots[spot, 0], slots[spot, 1] = old[i, 0], old[i, 1]


@compiled
def find_numbers(numbers, table, out, fresh):
    """``out[t] = table[numbers[t]]``; how many distinct numbers have no entry, -1, and are put into ``fresh``.

    They are marked by -2 until the caller enters them.
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
