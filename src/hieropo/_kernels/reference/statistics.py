"""Sums and hashes of rows in plain numpy: the reference for ``_kernels.statistics``."""

import numpy as np

from hieropo._utils.arrays import Array, Codes, Hashes
from hieropo._utils.packed import triangle

_PIECE = 2**18  # products computed at once
ODD, MARK = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MINUS_ZERO = np.uint64(1 << 63)


@np.errstate(all="ignore")
def accumulate(code: Codes, phi: Array, reward: Array, weight: Array, sums: Array) -> None:
    """Add n rows. code (n,), phi (n, d), reward (n,), weight (n,) or empty; sums (m, (d + 2)(d + 3) / 2)."""
    Z = np.column_stack([phi, reward, np.ones(len(phi))])
    add_products(code, Z, weight, sums, np.arange(sums.shape[1]))


@np.errstate(all="ignore")
def add_products(code: Codes, Z: Array, weight: Array, sums: Array, slots: Codes) -> None:
    """Add ``w z z'`` of rows z (n, k), in their order, to entries ``slots`` of the rows ``code`` of ``sums``."""
    i, j = triangle(Z.shape[1])
    step = max(1, _PIECE // i.size)
    for start in range(0, len(Z), step):
        part = slice(start, start + step)
        left, right, codes = Z[part], Z[part], code[part]
        if weight.size:
            has_weight = weight[part] != 0.0
            codes, right = codes[has_weight], right[has_weight]
            left = right * weight[part][has_weight, None]
        offsets = codes[:, None] * sums.shape[1] + slots
        np.add.at(sums.reshape(-1), offsets.ravel(), (left[:, j] * right[:, i]).ravel())


@np.errstate(over="ignore")
def hash_rows(reward: Codes, context: Codes, code: Codes, out: Codes) -> None:
    """Hash n rows: bits of reward (n,) and context (n, c) as int64, code (n,) or empty; out (n,) int64."""
    total, power = np.zeros(reward.size, dtype=np.uint64), ODD
    for column in (reward, *context.T):
        bits = column.view(np.uint64)
        total += np.where(bits == _MINUS_ZERO, np.uint64(0), bits) * power
        power = power * ODD
    out[:] = finished(total, code).view(np.int64)


@np.errstate(over="ignore")
def finished(total: Hashes, code: Codes) -> Hashes:
    """Mix sums over the columns of rows (n,), and the codes of the rows where there are any, into hashes."""
    if code.size:
        total = total + (code.astype(np.uint64) + np.uint64(1)) * MARK
    total = (total ^ (total >> np.uint64(30))) * _MIX1
    total = (total ^ (total >> np.uint64(27))) * _MIX2
    return total ^ (total >> np.uint64(31))
