"""The pass over rows in plain numpy: the reference for ``rows`` and ``partition_buffers`` of ``_kernels``.

The arguments are those of the compiled loops, addresses of memory included. Arguments that serve speed alone are not
used: rows are not buffered, and the buffers of a block stay unchanged.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._kernels.circulant import BLOCK, KINDS, CirculantLayout
from hieropo._kernels.reference.statistics import ODD, add_products, finished
from hieropo._utils.arrays import Array, Codes

_ROWS = 2**14  # rows of columns that are read at once
_ENTRIES = 2**18  # of sums that are moved at once
_MINUS_ZERO = np.uint64(1 << 63)


@np.errstate(all="ignore")
def add_columns(
    start: int,
    columns: Codes,
    limits: Array,
    code: Codes,
    action: Codes,
    phi: Any,
    sketch: Any,
    sums: Any,
    buffers: Any,
    block: Any,
    work: Any,
) -> int:
    """Add rows from number ``start`` on up to a bad one, or until the sketch is full; return the next row.

    Parameters
    ----------
    start : int
    columns : (k, 3) int
        Address, kind and row of a block of each column. The first are hashed: the reward, then the contexts. A weight
        is that of the row ``phi.weight``.
    limits : (k, 2) float
        Least and largest value.
    code, action : (n,) int
        Code of the sums of each row; its action, or empty.
    phi, sketch, sums : Phi, Hashing, Sums
        As of :mod:`column_pass`.
    buffers, block, work : object
        Not used.
    """
    del buffers, block, work
    block_rows, c = columns[:, 2].tolist(), phi.columns
    while start < code.size:
        room = (sketch.kept.size - int(sketch.state[0])) // BLOCK * BLOCK
        stop = start + min(code.size - start, room, _ROWS)
        values = _read(columns, start, stop)
        good = _first_bad(values, limits)
        if good < stop - start:
            good = good // BLOCK * BLOCK
        codes, actions = code[start : start + good], action[start : start + good]
        if not good:
            return start
        values = values[:, :good]
        _keep(_hashes(values[: c + 1], sketch.marks, actions), sketch)
        weight = values[block_rows.index(phi.weight)] if phi.weight >= 0 else np.zeros(0)
        Z = _features(values[1 : c + 1], actions, phi)
        reward = _subtract_known(values[0], Z, phi.known)
        _add(codes, np.column_stack([Z, reward, np.ones(good)]), weight, sums)
        start += good
        if start < stop:
            return start
    return start


def add_matrix(code: Codes, phi: Array, reward: Array, weight: Array, sums: Any, work: Any) -> None:
    """Add rows of features (n, d) and rewards (n,); weight (n,) or empty."""
    del work
    _add(code, np.column_stack([phi, reward, np.ones(reward.size)]), weight, sums)


def flush_buffers(begin: int, end: int, buffers: Any, sums: Any, work: Any) -> None:
    """Add the rows of some partition buffers to the sums, in the order in which they came."""
    del work
    size, count = 4 if buffers.narrow else 8, sums.entries
    for k in range(begin, end):
        n, first = int(buffers.fill[k]), k * buffers.room
        rows = at(buffers.rows + first * buffers.stride, np.dtype("u1"), n * buffers.stride).reshape(n, -1)
        Z = rows[:, : size * count].copy().view(f"f{size}").astype(np.float64)
        code = rows[:, buffers.last : buffers.last + size].copy().view(f"i{size}")[:, 0].astype(np.int64)
        Z[:, -1] = 1.0
        weight = buffers.weights[first : first + n] if buffers.weighted else np.zeros(0)
        _add(code, Z, weight, sums)
        buffers.fill[k] = 0


def move_sums(
    address: int,
    length: int,
    first: int,
    count: int,
    rows: Codes,
    source: Codes,
    target: Codes,
    table: Array,
    back: bool,  # noqa: FBT001  # as compiled loops take it
) -> bool:
    """Add the sums of ``count`` codes from ``first`` on, which lie at an address, to a table.

    Entry ``source[a, e]`` of the sums of slot s, action a is entry ``table[rows[s], target[a, e]]``; with ``back`` it
    is copied from there. Returns True if all changed entries are finite.
    """
    sums = at(address, np.dtype("f8"), count * length).reshape(count, length)
    flat, finite = table.reshape(-1), True
    step = max(_ENTRIES // max(source.shape[1], 1), 1)
    for begin in range(0, count, step):
        some = sums[begin : begin + step]
        s, a = np.divmod(np.arange(first + begin, first + begin + len(some)), len(source))
        in_sums = np.arange(len(some))[:, None], source[a]
        in_table = rows[s][:, None] * table.shape[1] + target[a]
        if back:
            some[in_sums] = flat[in_table]
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            np.add.at(flat, in_table.ravel(), some[in_sums].ravel())
        finite &= bool(np.isfinite(flat[in_table]).all())
    return finite


def pack_sums(address: int, length: int, count: int, source: Codes) -> bool:
    """Move entries ``source`` (q,) of each of ``count`` sums together, q <= length, in the order of the codes.

    Returns True if all of them are finite.
    """
    sums = at(address, np.dtype("f8"), count * length)
    packed = sums.reshape(count, length)[:, source]
    sums[: packed.size] = packed.ravel()
    return bool(np.isfinite(packed).all())


def clean_blocks(columns: Codes, limits: Array, n: int) -> int:
    """Return the rows before the first block with a value out of its limits.

    columns (k, 2) address and kind, limits (k, 2).
    """
    for start in range(0, n, _ROWS):
        stop = min(start + _ROWS, n)
        good = _first_bad(_read(columns, start, stop), limits)
        if good < stop - start:
            return start + good // BLOCK * BLOCK
    return n


class _Memory:
    """Numbers at an address, for numpy."""

    def __init__(self, address: int, kind: np.dtype[Any], count: int) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (count,),
            "typestr": kind.str,
            "version": 3,
        }


def at(address: int, kind: np.dtype[Any], count: int) -> NDArray[Any]:
    """Return numbers at an address as an array, without a copy; their owner must keep the memory."""
    return np.asarray(_Memory(address, kind, count)) if count else np.zeros(0, dtype=kind)


def _read(columns: Codes, start: int, stop: int) -> Array:
    """Return numbers start to stop of each column, (k, n) as float64."""
    block = np.empty((len(columns), stop - start))
    for values, (address, kind) in zip(block, columns[:, :2].tolist(), strict=True):
        dtype = np.dtype(KINDS[kind])
        values[:] = at(address + start * dtype.itemsize, dtype, values.size)
    return block


def _first_bad(values: Array, limits: Array) -> int:
    """Return the number of rows before the first with a value out of its limits."""
    good = ((values >= limits[:, :1]) & (values <= limits[:, 1:])).all(axis=0)
    return good.size if good.all() else int(good.argmin())


@np.errstate(over="ignore")
def _hashes(values: Array, marks: Codes, action: Codes) -> NDArray[np.uint64]:
    """Return the hashes that `hash_rows` gives rows of a reward and contexts."""
    total, power = np.zeros(values.shape[1], dtype=np.uint64), ODD
    for column in values:
        bits = column.view(np.uint64)
        total += np.where(bits == _MINUS_ZERO, np.uint64(0), bits) * power
        power = power * ODD
    return finished(total, marks[action] if marks.size else marks)


def _keep(hashes: NDArray[np.uint64], sketch: Any) -> None:
    """Keep distinct hashes up to the limit."""
    small = np.unique(hashes[hashes <= sketch.limit])
    count = int(sketch.state[0])
    sketch.kept[count : count + small.size] = small
    sketch.state[0] = count + small.size


def _features(contexts: Array, action: Codes, phi: Any) -> Array:
    """Return table[a] (x) (1, x - origin), (n, d); an empty table stands for 1, without the intercept."""
    x = _measured(contexts, phi.origin, phi.reference).T
    if not phi.table.size:
        return x
    if phi.intercept:
        x = np.column_stack([np.ones(len(x)), x])
    elif not x.shape[1]:
        return np.asarray(phi.table[action])
    return np.asarray((phi.table[action][:, :, None] * x[:, None]).reshape(len(x), -1))


def _measured(contexts: Array, origin: Array, reference: int) -> Array:
    """Return contexts less the origin, or less its multiples of the reference column."""
    measured = contexts.copy()
    for j, origin_j in enumerate(origin.tolist()):
        if reference < 0:
            measured[j] -= origin_j
        elif j != reference:
            ratio = origin_j / origin[reference]
            measured[j] = (measured[j] - origin_j) - (contexts[reference] - origin[reference]) * ratio
    return measured


def _subtract_known(reward: Array, Z: Array, known: Array) -> Array:
    """Return the rewards less their prediction by the coefficients ``known`` of (phi, 1)."""
    for j, slope in enumerate(known[:-1].tolist()):
        if slope != 0.0:
            reward = reward - Z[:, j] * slope
    return reward - known[-1] if known.size else reward


def _add(code: Codes, Z: Array, weight: Array, sums: Any) -> None:
    if code.size:
        size = (int(code.max()) + 1) * sums.length
        running = at(sums.base, np.dtype("f8"), size).reshape(-1, sums.length)
        add_products(code, Z, weight, running, CirculantLayout(sums.entries).offsets())
