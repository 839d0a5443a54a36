"""Ids found again: texts by their bytes, whole numbers in a table."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

import numba
import numpy as np

from hieropo._kernels.jit import compiled
from hieropo._kernels.simd.pointers import fetch_ahead, pointer, word_at

_AT_ONCE = 32  # texts that are found together, so that their memory is fetched in parallel
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_S32, _S8 = np.uint64(32), np.uint64(8)
_LOW = np.uint64(0xFFFFFFFF)
_NEW = -1


@compiled
def _last_word(base, start, stop):
    """Return the last 8 bytes of a text, or all of a shorter one."""
    if stop - start >= 8:
        return word_at(base + stop - 8)
    bytes_of = numba.carray(pointer(base + start, numba.uint8), (stop - start,))
    word = np.uint64(0)
    for k in range(stop - start):
        word = (word << _S8) | np.uint64(bytes_of[k])
    return word


@compiled
def _hashed(base, start, stop):
    """Return 32 bits from the bytes of a text."""
    h = np.uint64(stop - start) * _ODD
    for t in range(start, stop - 8, 8):
        h = (h ^ word_at(base + t)) * _MIX
        h ^= h >> _S32
    h = (h ^ _last_word(base, start, stop)) * _MIX
    h = (h ^ (h >> _S32)) * _ODD  # every bit affects the low bits before the last product
    return h >> _S32


@compiled
def _equal(left, right, size):
    """Return True if two texts of one size, at these addresses, are equal."""
    for k in range(0, size - 8, 8):
        if word_at(left + k) != word_at(right + k):
            return False
    return _last_word(left, 0, size) == _last_word(right, 0, size)


@compiled
def _find(base, start, stop, h, slots, known, ends):
    """Return the number of a text, or -1 - s for a new text and its slot s."""
    mask, size = slots.size - 1, stop - start
    slot = np.int64(h) & mask
    while slots[slot]:
        number = np.int64(slots[slot] & _LOW) - 1
        if (
            slots[slot] >> _S32 == h
            and ends[number + 1] - ends[number] == size
            and _equal(base + start, known + ends[number], size)
        ):
            return number
        slot = (slot + 1) & mask
    return _NEW - slot


@compiled
def _fetch(hashes, m, slots, known, ends):
    """Prefetch the slots, then the ends of their texts, then the texts."""
    mask = slots.size - 1
    for i in range(m):
        fetch_ahead(slots.ctypes.data + 8 * (np.int64(hashes[i]) & mask))
    for i in range(m):
        number = np.int64(slots[np.int64(hashes[i]) & mask] & _LOW)
        fetch_ahead(ends.ctypes.data + 8 * max(number - 1, 0))
    for i in range(m):
        number = np.int64(slots[np.int64(hashes[i]) & mask] & _LOW)
        fetch_ahead(known + ends[max(number - 1, 0)])


@compiled
def find_texts(data, ends, which, slots, stored, stored_ends, count, out):
    """Write the number of each of the texts ``which`` (k,), new ones from ``count`` on; return the new count.

    Text i is ``data[ends[i] : ends[i + 1]]``; known texts are stored in ``stored`` and ``stored_ends`` alike, with
    room for all. ``slots`` (a power of 2,) is a hash table of half a hash and the number from 1 on; 0 is free.
    """
    hashes = np.empty(_AT_ONCE, dtype=np.uint64)
    base, known = data.ctypes.data, stored.ctypes.data
    for begin in range(0, out.size, _AT_ONCE):
        m = min(_AT_ONCE, out.size - begin)
        for i in range(m):
            text = which[begin + i]
            hashes[i] = _hashed(base, ends[text], ends[text + 1])
        _fetch(hashes, m, slots, known, stored_ends)
        for i in range(m):
            text = which[begin + i]
            start, stop = ends[text], ends[text + 1]
            number = _find(base, start, stop, hashes[i], slots, known, stored_ends)
            if number < 0:
                slots[_NEW - number] = (hashes[i] << _S32) | np.uint64(count + 1)
                number, first = count, stored_ends[count]
                for k in range(stop - start):
                    stored[first + k] = data[start + k]
                count += 1
                stored_ends[count] = first + stop - start
            out[begin + i] = number
    return count


@compiled
def spread_slots(old, slots):
    """Enter the texts of old slots in a larger table of slots."""
    mask = slots.size - 1
    for i in range(old.size):
        if old[i]:
            slot = np.int64(old[i] >> _S32) & mask
            while slots[slot]:
                slot = (slot + 1) & mask
            slots[slot] = old[i]


@compiled
def find_numbers(numbers, table, out, fresh):
    """Set ``out[t] = table[numbers[t]]``; return how many distinct ones have no entry (-1); ``fresh`` gets them.

    These have the entry -2 until the caller enters them and calls :func:`enter_numbers`.
    """
    count = 0
    for t in range(numbers.size):
        number = np.uint64(numbers[t])
        entry = table[number]
        out[t] = entry
        if entry == -1:
            table[number] = -2
            fresh[count] = numbers[t]
            count += 1
    return count


@compiled
def enter_numbers(numbers, table, out):
    """Fill in entries of the table that were missing in ``out``."""
    for t in range(numbers.size):
        if out[t] < 0:
            out[t] = table[np.uint64(numbers[t])]
