"""The sums of a factorisation in plain numpy: the reference for ``_kernels.ratings``."""

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import pack, packed_size

LANES = 8  # factors of a row of V are padded to a multiple of it
_PIECE = 2**18  # products computed at once


def by_code(code: Codes, other: Codes, value: Array, start: Codes, others: Codes, values: Array) -> None:
    """Sort n triples stably by their code; start (m + 1,) receives the first index of each code."""
    order = np.argsort(code, kind="stable")
    start[0] = 0
    np.cumsum(np.bincount(code, minlength=start.size - 1), out=start[1:])
    others[:], values[:] = other[order], value[order]


@np.errstate(all="ignore")
def cross_products(
    start: Codes, others: Codes, values: Array, first: int, last: int, k: int, V: Array, sums: Array
) -> None:
    """Set packed sums of [[v v', v y], [. , .]] of the rows first .. last: sums[s] gets G = sum v v' and B = sum y v.

    V is flat: for each of the others k factors and then zeros, up to whole vectors of eight; and zeros for one more.
    """
    factors, size = V.reshape(-1, -(-k // LANES) * LANES)[:, :k], packed_size(k)
    step = max(1, _PIECE // max(size + k, 1))
    sums[first:last, : size + k] = 0.0
    code = np.repeat(np.arange(first, last), np.diff(start[first : last + 1]))
    for begin in range(start[first], start[last], step):
        part = slice(begin, min(begin + step, start[last]))
        v, y = factors[others[part]], values[part]
        products = np.concatenate([pack(v[:, :, None] * v[:, None]), v * y[:, None]], axis=1)
        np.add.at(
            sums, (code[begin - start[first] : part.stop - start[first], None], np.arange(size + k)), products
        )
