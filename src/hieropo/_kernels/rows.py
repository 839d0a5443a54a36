"""The pass over rows: columns of any type, in place, to the sums of ``w z z'`` of each task, z = (phi, reward, 1).

Rows are processed in blocks that fit in the first cache: columns become float64, are checked and hashed, then laid out
as rows. While a row is added to the sums of its task, those of a later row are fetched.

The sums of a task have the layout of `circulant.CirculantLayout`.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

import numba
import numpy as np
from numba import float32, float64, int32, int64

from hieropo._kernels.circulant import BLOCK
from hieropo._kernels.circulant_updates import add_circulant
from hieropo._kernels.jit import compiled, inlined
from hieropo._kernels.partition_buffers import LINE, MOST, buffer_rows
from hieropo._kernels.simd.pointers import bits_of, fetch_ahead, lay_rows, less_product, pointer

_AHEAD = 16  # rows between the fetch of sums and their update
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MARK = np.uint64(0xD6E8FEB86659FD93)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_LARGEST = np.finfo(np.float64).max
_SIGN = np.uint64(1) << np.uint64(63)
_S30, _S27, _S31, _ONE = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(1)


@inlined
def _copy(source, out):
    for t in range(out.size):
        out[t] = source[t]


@inlined
def _take(source, low, high, power, out, hashes):
    good = True
    for t in range(out.size):
        value = np.float64(source[t])
        good &= (value >= low) & (value <= high)  # NaN does not
        out[t] = value
        bits = bits_of(value)
        hashes[t] += np.uint64(0) if bits == _SIGN else bits * power
    return good


@compiled
def _read(address, kind, start, low, high, power, out, hashes):
    """Write numbers of a column from ``start`` on to ``out``, as float64; return True if all are in [low, high].

    ``kind`` is the index of the column's type in `circulant.KINDS`. The bits of each number (of 0 for -0), times
    ``power``, are added to the hash of its row.
    """
    n = (out.size,)
    if kind == 0:
        return _take(numba.carray(pointer(address + 4 * start, float32), n), low, high, power, out, hashes)
    if kind == 1:
        return _take(numba.carray(pointer(address + 8 * start, float64), n), low, high, power, out, hashes)
    if kind == 2:
        return _take(numba.carray(pointer(address + 4 * start, int32), n), low, high, power, out, hashes)
    return _take(numba.carray(pointer(address + 8 * start, int64), n), low, high, power, out, hashes)


@compiled
def _fetch_block(address, kind, start):
    """Prefetch the numbers of a later block."""
    size = 4 if kind in (0, 2) else 8
    for line in range(0, BLOCK * size, LINE):
        fetch_ahead(address + start * size + line)


@compiled
def _finish_hashes(marks, action, hashes):
    """Finish the hashes of rows from sums over their columns, as `hash_rows` does."""
    for t in range(hashes.size):
        total = hashes[t]
        if marks.size:
            total += (np.uint64(marks[action[t]]) + _ONE) * _MARK
        total = (total ^ (total >> _S30)) * _MIX1
        total = (total ^ (total >> _S27)) * _MIX2
        hashes[t] = total ^ (total >> _S31)


@compiled
def _keep_small(hashes, limit, seen, kept, count):
    """Append hashes up to the limit to ``kept``, except for recent ones; return the new number of hashes."""
    for t in range(hashes.size):
        h = hashes[t]
        if h <= limit:
            slot = np.int64(h & np.uint64(seen.size - 1))
            if seen[slot] != h:
                seen[slot] = h
                kept[count] = h
                count += 1
    return count


@compiled
def _cross(C, columns, table, intercept, action, P):
    """Write the features table[a] (x) (1, x) of rows to the rows of P; contexts are the first rows of C."""
    n, width = action.size, columns + intercept
    for i in range(table.shape[1]):
        for t in range(n):
            P[i * width, t] = table[action[t], i]
        for j in range(
            columns - 1, -1, -1
        ):  # downwards: without an intercept, j = 0 overwrites the table's entry
            for t in range(n):
                P[i * width + intercept + j, t] = P[i * width, t] * C[j, t]


@compiled
def _measure(C, origin, reference, n):
    """Subtract an origin, or its multiples of the reference, from the first rows of C, as `FeatureMap.measured`."""
    for j in range(origin.size):
        origin_j = origin[j]
        if reference < 0:
            for t in range(n):
                C[j, t] = less_product(C[j, t], origin_j, 1.0)
        elif j != reference:
            ratio, point = origin_j / origin[reference], origin[reference]
            for t in range(n):
                reference_value = less_product(C[reference, t], point, 1.0)
                C[j, t] = less_product(less_product(C[j, t], origin_j, 1.0), reference_value, ratio)


@compiled
def _subtract_known(Z, known, n):
    """Subtract the prediction by the coefficients ``known`` of (phi, 1) from the rewards, the row after phi in Z."""
    last = known.size - 1
    for j in range(last):
        if known[j] != 0.0:
            for t in range(n):
                Z[last, t] = less_product(Z[last, t], Z[j, t], known[j])
    if known[last] != 0.0:
        for t in range(n):
            Z[last, t] = less_product(Z[last, t], known[last], 1.0)


@inlined
def _update(code, start, rows, ahead_to, sums, left, right, weight):
    """Add rows, laid out in ``left`` and ``right``, to the sums of their codes; weight (rows,) or empty.

    Sums of rows before number ``ahead_to`` are fetched while earlier rows are added.
    """
    size = 8 * sums.length
    lines = min(size // LINE, MOST)
    for t in range(rows):
        ahead = start + t + _AHEAD
        if ahead < ahead_to:
            address = sums.base + code[ahead] * size
            for line in range(lines):
                fetch_ahead(address + LINE * line)
        if weight.size and weight[t] == 0.0:
            continue
        address, row = sums.base + code[start + t] * size, t * sums.row
        add_circulant(address, left, row, right, row, sums.entries, sums.diagonals, sums.width, sums.last)


@compiled
def _add_laid(code, start, rows, ahead_to, sums, work, weight):
    """Add rows laid out in ``work.right`` and, where they have weights, in ``work.left``."""
    _update(code, start, rows, ahead_to, sums, work.left if weight.size else work.right, work.right, weight)


@compiled
def add_columns(start, columns, limits, code, action, phi, sketch, sums, buffers, block, work):
    """Add rows from number ``start`` on up to a bad one, or until the sketch is full; return the next row.

    Parameters
    ----------
    start : int
    columns : (k, 3) int
        Address, kind and row of ``block.C`` of each column. The first are hashed: the reward, then the contexts.
    limits : (k, 2) float
        Least and largest value.
    code, action : (n,) int
        Code of the sums of each row; its action, or empty.
    phi, sketch, sums, buffers, block, work : Phi, Hashing, Sums, PartitionBuffers, Block, Work
    """
    n = code.size
    C = block.C
    contexts = phi.columns
    while start < n:
        m = min(BLOCK, n - start)
        block_action = action[start : start + m] if action.size else action
        hashes = block.hashes[:m]
        hashes[:] = 0
        power, good = _ODD, True  # of all rows of the block, so that none is added twice
        for k in range(len(columns)):
            _fetch_block(columns[k, 0], columns[k, 1], start + BLOCK)
            good &= _read(
                columns[k, 0], columns[k, 1], start, limits[k, 0], limits[k, 1],
                power if k <= contexts else np.uint64(0), C[columns[k, 2], :m], hashes,
            )  # fmt: skip
            power *= _ODD
        if not good or sketch.state[0] + BLOCK > sketch.kept.size:
            return start
        _finish_hashes(sketch.marks, block_action, hashes)
        sketch.state[0] = _keep_small(hashes, sketch.limit, sketch.seen, sketch.kept, sketch.state[0])
        _measure(C, phi.origin, phi.reference, m)
        Z = C
        if phi.table.size:
            Z = block.P
            _cross(C, contexts, phi.table, phi.intercept, block_action, Z)
            _copy(C[contexts], Z[sums.entries - 2, :m])
        if phi.known.size:
            _subtract_known(Z, phi.known, m)
        weight = C[phi.weight, :m] if phi.weight >= 0 else C[0, :0]
        if buffers.room:
            buffer_rows(code, start, m, Z, weight, buffers, sums, work)
        else:
            lay_rows(Z, work.right, sums.row, m, sums.entries, sums.again)
            if weight.size:
                for j in range(sums.entries):
                    for t in range(m):
                        block.W[j, t] = weight[t] * Z[j, t]
                lay_rows(block.W, work.left, sums.row, m, sums.entries, 0)
            _add_laid(code, start, m, n, sums, work, weight)
        start += m
    return start


@compiled
def add_matrix(code, phi, reward, weight, sums, work):
    """Add rows of features (n, d) and rewards (n,); weight (n,) or empty."""
    n, d = phi.shape
    z = d + 2
    right, left = work.right, work.left
    for start in range(0, n, BLOCK):
        m = min(BLOCK, n - start)
        block_weight = weight[start : start + m] if weight.size else weight
        for t in range(m):
            row = t * sums.row
            for j in range(d):
                right[row + j] = phi[start + t, j]
            right[row + d] = reward[start + t]
            right[row + d + 1] = 1.0
            for j in range(sums.again):
                right[row + z + j] = right[row + j]
            if block_weight.size:
                for j in range(z):
                    left[row + j] = block_weight[t] * right[row + j]
        _add_laid(code, start, m, n, sums, work, block_weight)


@compiled
def _fetch_row(row):
    """Prefetch a row of a table."""
    address = row.ctypes.data
    for line in range(min(8 * row.size // LINE + 1, MOST)):
        fetch_ahead(address + LINE * line)


@compiled
def move_sums(address, length, first, count, rows, source, target, table, back):
    """Add the sums of ``count`` codes from ``first`` on, which lie at an address, to a table.

    Entry ``source[a, e]`` of the sums of slot s, action a is entry ``table[rows[s], target[a, e]]``; with ``back`` it
    is copied from there. Returns True if all changed entries are finite.
    """
    blocks, finite = len(source), True
    s, a = first // blocks, first % blocks
    for k in range(count):
        later = s + _AHEAD // blocks
        if later < rows.size:
            _fetch_row(table[rows[later]])
        sums = numba.carray(pointer(address + 8 * length * k, float64), (length,))
        row, in_sums, in_table = table[rows[s]], source[a], target[a]
        if back:
            for e in range(in_sums.size):
                sums[np.uint64(in_sums[e])] = row[np.uint64(in_table[e])]
        else:
            for e in range(in_sums.size):
                total = row[np.uint64(in_table[e])] + sums[np.uint64(in_sums[e])]
                row[np.uint64(in_table[e])] = total
                finite &= abs(total) <= _LARGEST
        a += 1
        if a == blocks:
            s, a = s + 1, 0
    return finite


@compiled
def pack_sums(address, length, count, source):
    """Move entries ``source`` (q,) of each of ``count`` sums together, q <= length, in the order of the codes.

    Returns True if all of them are finite.
    """
    q, copy, finite = source.size, np.empty(length), True
    for s in range(count):
        sums = numba.carray(pointer(address + 8 * length * s, float64), (length,))
        packed = numba.carray(pointer(address + 8 * q * s, float64), (q,))
        for e in range(length):
            copy[e] = sums[e]
        for e in range(q):
            packed[e] = copy[np.uint64(source[e])]
        for e in range(q):
            finite &= abs(packed[e]) <= _LARGEST
    return finite


@compiled
def clean_blocks(columns, limits, n):
    """Return the rows before the first block with a value out of its limits.

    columns (k, 2) address and kind, limits (k, 2).
    """
    values, hashes, no_power = np.empty(BLOCK), np.zeros(BLOCK, dtype=np.uint64), np.uint64(0)
    for start in range(0, n, BLOCK):
        m = min(BLOCK, n - start)
        for k in range(len(columns)):
            address, kind = columns[k, 0], columns[k, 1]
            if not _read(address, kind, start, limits[k, 0], limits[k, 1], no_power, values[:m], hashes[:m]):
                return start
    return n
