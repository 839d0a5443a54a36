"""Parts of a log by a hash of each row's number, the same in every pass."""

import numpy as np
from numpy.typing import NDArray

from hieropo.core.arrays import Codes

FOLDS = 5


def hashed(first_row: int, n: int, seed: int) -> NDArray[np.uint64]:
    """Return a hash of the number of each of n rows of a log (splitmix64)."""
    with np.errstate(over="ignore"):
        x = np.arange(first_row, first_row + n, dtype=np.uint64) + np.uint64(seed % 2**32) * np.uint64(
            0x9E3779B97F4A7C15
        )
        x = (x + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return found


def fold_of(first_row: int, n: int, folds: int, seed: int) -> Codes:
    """Return the fold of each of n rows of a log: a hash of its number, the same in every pass."""
    return (hashed(first_row, n, seed) % np.uint64(folds)).astype(np.int64)
