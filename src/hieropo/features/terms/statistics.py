"""Statistics of the columns of a log from which terms are learned; they add in any order of rows and parts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo.errors import InputError
from hieropo.features.terms.sketch import Quantiles, fixed_point, totals
from hieropo.features.terms.terms import Cat, Cross, Cyclic, DatePart, Effect, Ordered, Spline, Term
from hieropo.features.terms.values import Kind, Values, on_clock
from hieropo.rows.columns import HUGE

MOST_LEVELS = 100_000  # distinct levels of a category that are counted

HOUR = 3_600_000_000  # microseconds
PARTS = ("hour", "weekday", "month", "quarter")


class LevelsError(InputError):
    """A category has more levels than can be counted."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The statistics of a column that its terms need, beyond missing values and the range.

    ``values`` asks for the distribution of its values, whatever their kind.
    """

    levels: bool = False
    quantiles: bool = False
    values: bool = False
    zones: tuple[str | None, ...] = ()

    def __or__(self, other: "Wanted") -> "Wanted":
        zones = tuple(dict.fromkeys([*self.zones, *other.zones]))
        return Wanted(
            self.levels or other.levels, self.quantiles or other.quantiles, self.values or other.values, zones
        )


def wanted(terms: Iterable[Term], *, values: bool) -> dict[str, Wanted]:
    """Return the statistics that terms need of each column; ``values`` needs the distribution of each, too."""
    by_column: dict[str, Wanted] = {}
    for term in terms:
        for factor in term.factors if isinstance(term, Cross) else [term]:
            (column,) = factor.columns
            levels = isinstance(factor, Cat | Effect) or (isinstance(factor, Ordered) and not factor.levels)
            zones = (factor.zone,) if isinstance(factor, Cyclic | DatePart) else ()
            needs = Wanted(levels, isinstance(factor, Spline), values, zones)
            by_column[column] = by_column.get(column, Wanted()) | needs
    return by_column


def part_of(clock: NDArray[np.int64], part: str) -> NDArray[np.int64]:
    """Return the hour 0..23, weekday 0..6 from Monday, month 1..12 or quarter 1..4 of microseconds on a clock (n,)."""
    if part == "hour":
        return np.asarray(clock // HOUR % 24)
    if part == "weekday":
        return np.asarray((clock // (24 * HOUR) + 3) % 7)  # 1 January 1970 was a Thursday
    month = clock.view("M8[us]").astype("M8[M]").astype(np.int64) % 12 + 1
    return month if part == "month" else (month + 2) // 3


@dataclass
class ColumnStatistics:
    """Statistics of one column.

    Attributes
    ----------
    missing : bool
        A row that counts has no value.
    low, high : float
        Range of the numbers; low > high without any.
    levels : dict
        Weight of each level in fixed point.
    quantiles : Quantiles
    parts : dict of (zone, part) to a set of int
        The hours, weekdays, months and quarters that occur.
    """

    name: str
    wanted: Wanted
    missing: bool = False
    low: float = np.inf
    high: float = -np.inf
    levels: dict[Any, int] = field(default_factory=dict)
    quantiles: Quantiles = field(default_factory=Quantiles)
    parts: dict[tuple[str | None, str], set[int]] = field(default_factory=dict)
    present: bool = False

    def add(self, values: Values, weight: NDArray[np.int64]) -> None:
        """Add rows with weights in fixed point; infinite and huge numbers are left out, as reading refuses them.

        Raises
        ------
        LevelsError
            There are more levels than can be counted.
        """
        counts = weight > 0
        self.missing |= bool((values.missing & counts).any())
        kept = counts & ~values.missing
        if values.numbers is not None:
            kept &= np.abs(values.numbers) <= HUGE
        self.present |= bool(kept.any())
        if not kept.any():
            return
        rows: Any = slice(None) if kept.all() else kept
        if values.numbers is not None:
            self._add_numbers(values.numbers[rows], weight[rows])
        elif values.codes is not None and (self.wanted.levels or self.wanted.values):
            sums = totals(values.codes[rows], weight[rows], len(values.texts))
            self._count({text: int(n) for text, n in zip(values.texts, sums, strict=True) if n})
        elif values.instants is not None:
            self._add_instants(values.instants[rows], values.zone)
            if self.wanted.values:
                self.quantiles.add(values.instants[rows].astype(np.float64), weight[rows])

    def _add_numbers(self, numbers: Array, weight: NDArray[np.int64]) -> None:
        self.low, self.high = min(self.low, float(numbers.min())), max(self.high, float(numbers.max()))
        if self.wanted.levels:
            levels, codes = np.unique(numbers + 0.0, return_inverse=True)
            self._count(dict(zip(levels.tolist(), totals(codes, weight, levels.size).tolist(), strict=True)))
        if self.wanted.quantiles or self.wanted.values:
            self.quantiles.add(numbers, weight)

    def _add_instants(self, instants: NDArray[np.int64], zone_of_column: str | None) -> None:
        self.low, self.high = min(self.low, float(instants.min())), max(self.high, float(instants.max()))
        for zone in self.wanted.zones:
            clock = on_clock(instants, zone or zone_of_column)
            for part in PARTS:
                self.parts.setdefault((zone, part), set()).update(np.unique(part_of(clock, part)).tolist())

    def _count(self, counts: Mapping[Any, int]) -> None:
        for level, count in counts.items():
            self.levels[level] = self.levels.get(level, 0) + count
        if len(self.levels) > MOST_LEVELS:
            raise LevelsError(
                f"Column {self.name!r} has more than {MOST_LEVELS:,} different values, as ids have, and a category has "
                "a column for each frequent one. Leave it out, use it as the task or a level, or group its values."
            )

    def distribution(self, kind: Kind, zone: str | None) -> tuple[Values, Array]:
        """Return the m values that the column takes, and the weight (m,) of each."""
        if kind == "text":
            texts = tuple(sorted(self.levels))
            none = np.zeros(len(texts), dtype=np.bool_)
            weights = np.array([self.levels[text] for text in texts], dtype=np.float64)
            return Values("text", none, codes=np.arange(len(texts)), texts=texts), weights
        numbers, weights = self.quantiles.values()
        none = np.zeros(numbers.size, dtype=np.bool_)
        if kind == "time":
            return Values("time", none, instants=np.rint(numbers).astype(np.int64), zone=zone), weights
        return Values(kind, none, numbers=numbers), weights

    def merge(self, other: "ColumnStatistics") -> None:
        """Add the statistics of other rows."""
        self.missing |= other.missing
        self.present |= other.present
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self._count(other.levels)
        self.quantiles.merge(other.quantiles)
        for key, values in other.parts.items():
            self.parts.setdefault(key, set()).update(values)


class LogColumns:
    """Statistics of all columns of a log, and which of them are missing in the same rows.

    Parameters
    ----------
    wanted : mapping of a column to Wanted
    """

    columns: dict[str, ColumnStatistics]

    def __init__(self, wanted: Mapping[str, Wanted]) -> None:
        self.columns = {name: ColumnStatistics(name, needs) for name, needs in wanted.items()}
        self._pattern = [0] * len(self.columns)  # columns with one number are missing in the same rows

    def add(self, columns: Mapping[str, Values], weight: Array | None = None) -> None:
        """Add n rows: the values of each column, and their weights (n,).

        Raises
        ------
        LevelsError
            As :meth:`ColumnStatistics.add`.
        """
        rows = len(next(iter(columns.values()))) if columns else 0
        fixed = fixed_point(weight, rows)
        counts = fixed > 0
        masks = []
        for name, statistics in self.columns.items():
            values = columns[name]
            statistics.add(values, fixed)
            missing = values.missing & counts
            masks.append(missing.tobytes() if missing.any() else b"")
        self._refine(masks)

    def merge(self, other: "LogColumns") -> None:
        """Add the statistics of other rows."""
        for name, statistics in self.columns.items():
            statistics.merge(other.columns[name])
        self._refine(other._pattern)

    def _refine(self, keys: Sequence[Any]) -> None:
        numbers: dict[Any, int] = {}
        self._pattern = [
            numbers.setdefault(pair, len(numbers)) for pair in zip(self._pattern, keys, strict=True)
        ]

    def missing_together(self, columns: Sequence[str]) -> list[tuple[str, ...]]:
        """Return those of the columns that have missing values, grouped by the rows in which they are missing."""
        pattern = dict(zip(self.columns, self._pattern, strict=True))
        groups: dict[int, list[str]] = {}
        for column in columns:
            if self.columns[column].missing:
                groups.setdefault(pattern[column], []).append(column)
        return [tuple(group) for group in groups.values()]
