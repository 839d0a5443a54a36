"""A checksum for every row, so that one task of millions is read and checked without the rest.

The checksum of a row is the CRC-32 of its number, its look-up code, its count of rows, its mean and its
covariance, one after the other in little-endian 64-bit words.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 15


def row_checksums(
    codes: NDArray[Any],
    rows: NDArray[np.float64],
    means: NDArray[np.float64],
    covs: NDArray[np.float64],
    first: int = 0,
) -> NDArray[np.uint32]:
    """Return the checksum of each row (m,), from codes and rows (m,), means (m, d), covs (m, d (d + 1) / 2).

    ``first`` is the number of the first row.
    """
    dim = means.shape[1]
    width = 3 + dim + covs.shape[1]
    checks = np.empty(codes.size, dtype=np.uint32)
    words = np.empty((min(CHUNK, max(codes.size, 1)), width), dtype="<i8")
    for start in range(0, codes.size, CHUNK):
        part = slice(start, min(start + CHUNK, codes.size))
        count = part.stop - start
        words[:count, 0] = np.arange(first + start, first + part.stop)
        words[:count, 1] = codes[part].view("<i8")
        words[:count, 2] = rows[part].view("<i8")
        words[:count, 3 : 3 + dim] = means[part].view("<i8")
        words[:count, 3 + dim :] = covs[part].view("<i8")
        data = words.data.cast("B")
        stride = 8 * width
        checks[part] = [crc32(data[offset : offset + stride]) for offset in range(0, count * stride, stride)]
    return checks


@dataclass(frozen=True, slots=True)
class RowBytes:
    """The rows of a mapped table as bytes, to check one row at a time.

    Parameters
    ----------
    header : struct.Struct
        Number of the row, code of the id, count of rows.
    counts, checks : memoryview
        Count of rows and checksum of each task.
    means, covs : memoryview
        Bytes; ``mean_size`` and ``cov_size`` of them for each task.
    """

    header: Struct
    counts: Any
    checks: memoryview
    means: memoryview
    covs: memoryview
    mean_size: int
    cov_size: int

    def intact(self, row: int, code: int) -> bool:
        """Return True where a row, with the code of its id, has its checksum."""
        mean, cov = row * self.mean_size, row * self.cov_size
        check = crc32(self.header.pack(row, code, self.counts[row]))
        check = crc32(self.means[mean : mean + self.mean_size], check)
        return crc32(self.covs[cov : cov + self.cov_size], check) == self.checks[row]
