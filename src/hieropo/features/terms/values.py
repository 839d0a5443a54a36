"""Columns as arrays of numpy, whatever they came from: the one form that terms learn from and read."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array, Codes, Mask

Kind = Literal["number", "boolean", "text", "time"]

SECOND = 1_000_000  # microseconds
DAY = 86_400 * SECOND
_QUARTER = 900 * SECOND  # clocks are changed at full quarters of an hour


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """The n values of one column.

    Parameters
    ----------
    kind : {"number", "boolean", "text", "time"}
    missing : (n,) bool
    numbers : (n,) float64
        Of numbers and booleans (0 or 1); 0 where missing.
    codes : (n,) int64
        Of text: the position of the value in ``texts``; -1 where missing.
    texts : tuple of str
        The distinct texts.
    instants : (n,) int64
        Of times: microseconds since 1970 in UTC, or on the clock of no zone; 0 where missing.
    zone : str or None
        Time zone of a column of times.
    """

    kind: Kind
    missing: Mask
    numbers: Array | None = None
    codes: Codes | None = None
    texts: tuple[str, ...] = ()
    instants: NDArray[np.int64] | None = None
    zone: str | None = None

    def __len__(self) -> int:
        return int(self.missing.size)


def on_clock(instants: NDArray[np.int64], zone: str | None) -> NDArray[np.int64]:
    """Return microseconds since 1970 on the clock of a time zone, from microseconds in UTC (n,)."""
    if zone is None or zone == "UTC" or not instants.size:
        return instants
    days, day = np.unique(instants // DAY, return_inverse=True)
    first = np.array([_offset(zone, int(start) * DAY) for start in days])
    last = np.array([_offset(zone, (int(start) + 1) * DAY - _QUARTER) for start in days])
    offsets = first[day]
    changing = (first != last)[day]
    if changing.any():
        quarters, quarter = np.unique(instants[changing] // _QUARTER, return_inverse=True)
        offsets[changing] = np.array([_offset(zone, int(start) * _QUARTER) for start in quarters])[quarter]
    return np.asarray(instants + offsets)


@lru_cache(maxsize=100_000)
def _offset(zone: str, instant: int) -> int:
    """Return the offset of a zone from UTC, in microseconds, at an instant; that of year 1 or 9999 beyond them."""
    try:
        when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=instant)
        offset = when.astimezone(ZoneInfo(zone)).utcoffset()
    except OverflowError:
        return 0
    return 0 if offset is None else offset // timedelta(microseconds=1)
