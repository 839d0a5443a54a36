"""What kind of numbers a column holds: its range, mean and spread, and its few distinct values."""

from typing import Literal

import numpy as np

from hieropo._utils.arrays import Array

Kind = Literal["constant", "binary", "count", "few values", "continuous"]

FEW = 20  # distinct values that are told apart


class Numbers:
    """A column of numbers in the making; two of them add in any order."""

    def __init__(self) -> None:
        self.rows = 0
        self.low, self.high, self.mean, self._away = np.inf, -np.inf, 0.0, 0.0
        self.whole = True
        self.values: dict[float, int] | None = {}

    def add(self, values: Array) -> None:
        """Add values (n,); NaN are left out."""
        if values.size and np.isnan(values.min()):
            values = values[~np.isnan(values)]
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # beyond the reach of a float there is no mean, no spread
            mean = float(values.mean())
            away = values - mean
            self._combine(values.size, mean, float(away @ away))
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.whole = self.whole and bool((values == np.rint(values)).all())
        if self.values is not None:
            self._tell_apart(values)

    def _combine(self, rows: int, mean: float, away: float) -> None:
        total = self.rows + rows
        step = mean - self.mean
        self._away += away + step * step * self.rows * rows / total
        self.mean += step * rows / total
        self.rows = total

    def _tell_apart(self, values: Array) -> None:
        assert self.values is not None
        if np.unique(values[:256]).size > FEW:
            self.values = None
            return
        found, counts = np.unique(values, return_counts=True)
        self._count(dict(zip(found[: FEW + 1].tolist(), counts.tolist(), strict=False)))

    def _count(self, found: dict[float, int]) -> None:
        assert self.values is not None
        for value, count in found.items():
            self.values[value] = self.values.get(value, 0) + count
        if len(self.values) > FEW:
            self.values = None

    def update(self, other: "Numbers") -> None:
        """Add what another one has collected."""
        if not other.rows:
            return
        self._combine(other.rows, other.mean, other._away)
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.whole = self.whole and other.whole
        if self.values is not None and other.values is not None:
            self._count(other.values)
        else:
            self.values = None

    @property
    def sd(self) -> float:
        """Standard deviation, 0 of no rows; not finite where squares are beyond the reach of a float."""
        return float(np.sqrt(self._away / self.rows)) if self.rows else 0.0

    @property
    def kind(self) -> Kind:
        """What kind of numbers they are."""
        if self.rows and self.low == self.high:
            return "constant"
        if self.values is not None and len(self.values) == 2:
            return "binary"
        if self.whole and self.low >= 0:
            return "count"
        return "continuous" if self.values is None else "few values"
