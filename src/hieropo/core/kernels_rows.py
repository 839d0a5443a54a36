"""The pass over rows: columns of any type, in place, to the sums of ``w z z'`` of each task, z = (phi, reward, 1).

Rows go through in blocks that stay in the first cache: columns become float64, are checked and hashed, then laid out as
rows; while a row is added to the sums of its task, those of a later row are fetched.

The sums of a task lie as `layout.Turns` says.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

import math

import numba
import numpy as np
from numba import float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64

from hieropo.core.jit import compiled, inlined
from hieropo.core.kernels_pointers import add_turns, fetch_ahead, lay_rows, less_product, pointer

BLOCK = 128  # rows
KINDS = ("f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")  # types of columns, by their number
_AHEAD = 8  # rows between the fetch of sums and their update
_LINE = 64  # bytes
_MOST = 32  # lines that are fetched for a row: the processor goes on by itself
_EXACT = 9007199254740992.0  # 2**53, up to which float64 holds every whole number
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MARK = np.uint64(0xD6E8FEB86659FD93)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SIGN = np.uint64(1) << np.uint64(63)
_S30, _S27, _S31, _ONE = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(1)


@inlined
def _copy(source, out):
    for t in range(out.size):
        out[t] = source[t]


@compiled
def _read(address, kind, start, out):
    """Numbers of a column from number ``start`` on, as float64; kind is its place in `KINDS`."""
    n = (out.size,)
    if kind == 0:
        _copy(numba.carray(pointer(address + 4 * start, float32), n), out)
    elif kind == 1:
        _copy(numba.carray(pointer(address + 8 * start, float64), n), out)
    elif kind == 2:
        _copy(numba.carray(pointer(address + start, int8), n), out)
    elif kind == 3:
        _copy(numba.carray(pointer(address + 2 * start, int16), n), out)
    elif kind == 4:
        _copy(numba.carray(pointer(address + 4 * start, int32), n), out)
    elif kind == 5:
        _copy(numba.carray(pointer(address + 8 * start, int64), n), out)
    elif kind == 6:
        _copy(numba.carray(pointer(address + start, uint8), n), out)
    elif kind == 7:
        _copy(numba.carray(pointer(address + 2 * start, uint16), n), out)
    elif kind == 8:
        _copy(numba.carray(pointer(address + 4 * start, uint32), n), out)
    else:
        _copy(numba.carray(pointer(address + 8 * start, uint64), n), out)


@compiled
def _within(values, low, high):
    """Whether all values lie in [low, high]; NaN does not."""
    good = True
    for t in range(values.size):
        good &= (values[t] >= low) & (values[t] <= high)
    return good


@compiled
def _hash_column(bits, power, out):
    """Add the bits of a column, times a power of an odd number, to the hashes of its rows."""
    for t in range(out.size):
        b = np.uint64(bits[t])
        out[t] += np.uint64(0) if b == _SIGN else b * power


@compiled
def _hash_block(bits, slots, hashed, marks, action, out):
    """Hashes of rows, as `hash_rows` gives them, whose columns lie in rows of ``bits``."""
    out[:] = 0
    power = _ODD
    for k in range(hashed):
        _hash_column(bits[slots[k]], power, out)
        power *= _ODD
    for t in range(out.size):
        total = out[t]
        if marks.size:
            total += (np.uint64(marks[action[t]]) + _ONE) * _MARK
        total = (total ^ (total >> _S30)) * _MIX1
        total = (total ^ (total >> _S27)) * _MIX2
        out[t] = total ^ (total >> _S31)


@compiled
def _keep_small(hashes, limit, seen, kept, count):
    """Keep hashes up to the limit, but for those that were seen lately; how many are kept then."""
    for t in range(hashes.size):
        h = hashes[t]
        if h <= limit:
            spot = np.int64(h & np.uint64(seen.size - 1))
            if seen[spot] != h:
                seen[spot] = h
                kept[count] = h
                count += 1
    return count


@compiled
def _cross(C, columns, table, intercept, action, P):
    """Features table[a] (x) (1, x) of rows whose contexts are the first rows of C, to the rows of P."""
    n, width = action.size, columns + intercept
    for i in range(table.shape[1]):
        for t in range(n):
            P[i * width, t] = table[action[t], i]
        for j in range(
            columns - 1, -1, -1
        ):  # without an intercept the first one takes the place of the table's entry
            for t in range(n):
                P[i * width + intercept + j, t] = P[i * width, t] * C[j, t]


@compiled
def _measure(C, origin, pivot, n):
    """Measure the first columns, rows of C, from an origin, or in multiples of the pivot; as `origins.measured`."""
    for j in range(origin.size):
        away = origin[j]
        if pivot < 0:
            for t in range(n):
                C[j, t] = less_product(C[j, t], away, 1.0)
        elif j != pivot:
            ratio, point = away / origin[pivot], origin[pivot]
            for t in range(n):
                far = less_product(C[pivot, t], point, 1.0)
                C[j, t] = less_product(less_product(C[j, t], away, 1.0), far, ratio)


@compiled
def _update(code, start, rows, sums, left, right, weight):
    """Add rows, laid out in ``left`` and ``right``, to the sums of their codes; weight (rows,) or empty."""
    chunks, shift, length, turns, width, last = (
        sums.chunks,
        sums.shift,
        sums.length,
        sums.turns,
        sums.width,
        sums.last,
    )
    mask, size = (1 << shift) - 1, 8 * length
    lines = min(size // _LINE, _MOST)
    across = right.shape[1]
    left, right = left.reshape(-1), right.reshape(-1)
    for t in range(rows):
        ahead = start + t + _AHEAD
        if ahead < code.size:
            s = code[ahead]
            place = chunks[s >> shift] + (s & mask) * size
            for line in range(lines):
                fetch_ahead(place + _LINE * line)
        s = code[start + t]
        if weight.size and weight[t] == 0.0:
            continue
        add_turns(
            chunks[s >> shift] + (s & mask) * size, left, t * across, right, t * across, turns, width, last
        )


@compiled
def _count(code, start, weight, counted, shift):
    """Add to the number of rows and to the sum of log w of each code; counted are addresses of pairs of them."""
    mask = (1 << shift) - 1
    for t in range(weight.size):
        if weight[t] != 0.0:
            s = code[start + t]
            pair = numba.carray(pointer(counted[s >> shift] + (s & mask) * 16, float64), (2,))
            pair[0] += 1.0
            pair[1] += math.log(weight[t])


@compiled
def add_columns(start, columns, limits, code, action, phi, sketch, sums, work):
    """Add rows from number ``start`` on until one of them, or the sketch, needs a look; returns its number.

    Parameters
    ----------
    start : int
    columns : (k, 3) int
        Address, kind and row of ``work.C`` of each column. The first ones are hashed: the reward, then the contexts.
    limits : (k, 2) float
        What values may be.
    code, action : (n,) int
        Whose sums each row goes to; its action, or empty.
    phi, sketch, sums, work : Phi, Hashing, Sums, Work
    """
    n = code.size
    C = work.C
    contexts = phi.columns
    none = np.empty(0)
    while start < n:
        m = min(BLOCK, n - start)
        own = action[start : start + m] if action.size else action
        good = True  # of all rows of the block, so that none is added twice
        for k in range(len(columns)):
            values = C[columns[k, 2], :m]
            _read(columns[k, 0], columns[k, 1], start, values)
            good &= _within(values, limits[k, 0], limits[k, 1])
        if not good or sketch.state[0] + BLOCK > sketch.kept.size:
            return start
        _hash_block(work.bits, columns[:, 2], contexts + 1, sketch.marks, own, work.hashes[:m])
        sketch.state[0] = _keep_small(
            work.hashes[:m], sketch.limit, sketch.seen, sketch.kept, sketch.state[0]
        )
        if phi.origin.size:
            _measure(C, phi.origin, phi.pivot, m)
        Z, count = C, contexts + 2
        if phi.table.size:
            Z, count = work.P, sums.entries
            _cross(C, contexts, phi.table, phi.intercept, own, Z)
            Z[count - 2, :m] = C[contexts, :m]
        lay_rows(Z, work.right, m, count, sums.again)
        if phi.weight >= 0:
            weight = C[phi.weight, :m]
            for j in range(count):
                for t in range(m):
                    work.W[j, t] = weight[t] * Z[j, t]
            lay_rows(work.W, work.left, m, count, 0)
            _update(code, start, m, sums, work.left, work.right, weight)
            _count(code, start, weight, sums.counted, sums.counted_shift)
        else:
            _update(code, start, m, sums, work.right, work.right, none)
            if sums.counted.size:
                _count(code, start, work.ones[:m], sums.counted, sums.counted_shift)
        start += m
    return start


@compiled
def add_matrix(code, phi, reward, weight, sums, left, right):
    """Add rows of features (n, d) and rewards (n,); weight (n,) or empty."""
    n, d = phi.shape
    z = d + 2
    for start in range(0, n, BLOCK):
        m = min(BLOCK, n - start)
        for t in range(m):
            for j in range(d):
                right[t, j] = phi[start + t, j]
            right[t, d] = reward[start + t]
            right[t, d + 1] = 1.0
            for j in range(sums.again):
                right[t, z + j] = right[t, j]
        if weight.size:
            own = weight[start : start + m]
            for t in range(m):
                for j in range(z):
                    left[t, j] = own[t] * right[t, j]
            _update(code, start, m, sums, left, right, own)
            _count(code, start, own, sums.counted, sums.counted_shift)
        else:
            _update(code, start, m, sums, right, right, weight)
            if sums.counted.size:
                _count(code, start, np.ones(m), sums.counted, sums.counted_shift)


@compiled
def move_sums(address, length, first, count, rows, source, target, table, back):
    """Add the sums of ``count`` codes from ``first`` on, which lie at an address, to a table; ``back`` puts them there.

    Entry ``source[a, e]`` of the sums of place s, action a is entry ``table[rows[s], target[a, e]]``.
    """
    each = len(source)
    s, a = first // each, first % each
    for k in range(count):
        sums = numba.carray(pointer(address + 8 * length * k, float64), (length,))
        row, here, there = table[rows[s]], source[a], target[a]
        if back:
            for e in range(here.size):
                sums[np.uint64(here[e])] = row[np.uint64(there[e])]
        else:
            for e in range(here.size):
                row[np.uint64(there[e])] += sums[np.uint64(here[e])]
        a += 1
        if a == each:
            s, a = s + 1, 0


@compiled
def clean_blocks(columns, limits, n):
    """Rows before the first block with a value out of its limits; columns (k, 2) address and kind, limits (k, 2)."""
    values = np.empty(BLOCK)
    for start in range(0, n, BLOCK):
        m = min(BLOCK, n - start)
        for k in range(len(columns)):
            _read(columns[k, 0], columns[k, 1], start, values[:m])
            if not _within(values[:m], limits[k, 0], limits[k, 1]):
                return start
    return n


@compiled
def look_up(index, codes, out):
    """``out[t] = codes[index[t]]``."""
    for t in range(index.size):
        out[t] = codes[np.uint32(index[t])]
