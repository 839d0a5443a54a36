"""64-bit hashes of numbers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Codes, Hashes

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mixed(x: Hashes) -> Hashes:
    """Return a hash of each number (n,) (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def with_values(hashes: Hashes, values: NDArray[Any]) -> Hashes:
    """Return hashes (n,) that a further value of each row (n,) enters; -0.0 is 0.0."""
    with np.errstate(over="ignore"):
        return mixed(hashes * GOLDEN + (values.astype(np.float64) + 0.0).view(np.uint64))


def sample_of(hashes: Hashes, group: Hashes, most: int) -> Codes:
    """Return the positions, ascending, of ``most`` rows: a sample that does not depend on the order of rows.

    Rows of the least hashes are taken. Rows of one ``group`` (n,) are alike, and share a hash; each enters with its
    number in the group, so that the sample has about its share of each group.
    """
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    number = np.arange(order.size) - np.repeat(starts, np.diff(np.append(starts, order.size)))
    keys = np.empty_like(hashes)
    with np.errstate(over="ignore"):
        keys[order] = mixed(hashes[order] + number.astype(np.uint64) * GOLDEN)
    return np.sort(np.argpartition(keys, most)[:most]).astype(np.int64)
