"""From runs to figures: means, standard errors, and differences of paired runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hieropo.core.arrays import Array

FIRST = 3  # runs that are told one by one, so that anyone can make them again


@dataclass(frozen=True, slots=True)
class Summary:
    """One algorithm at one point of a figure.

    Parameters
    ----------
    place : dict
        What is the case at that point, by column.
    algorithm : str
    runs : int
    mean, se : float
        Mean over runs, and its standard error; of one run, not a number.
    difference, difference_se : float
        To the algorithm that all are compared with, in the same runs.
    first : tuple of float
        The first runs.
    """

    place: Mapping[str, Any]
    algorithm: str
    runs: int
    mean: float
    se: float
    difference: float
    difference_se: float
    first: tuple[float, ...]

    def columns(self) -> dict[str, Any]:
        """One row of a table."""
        rest = {name: getattr(self, name) for name in self.__slots__ if name != "place"}
        return {**self.place, **rest, "first": list(self.first)}


def standard_error(values: Array) -> float:
    """Of the mean of independent values (R,)."""
    return float(values.std(ddof=1) / np.sqrt(values.size)) if values.size > 1 else float("nan")


def summarised(
    place: Mapping[str, Any], runs: Sequence[Mapping[str, float]], names: Sequence[str], compared_with: str
) -> list[Summary]:
    """One :class:`Summary` for each name, from paired runs in their order."""
    values = {name: np.array([run[name] for run in runs]) for name in names}
    other = values.get(compared_with)
    found = []
    for name, each in values.items():
        gap = each - other if other is not None else np.full(each.size, np.nan)
        found.append(
            Summary(
                place, name, each.size, float(each.mean()), standard_error(each),
                float(gap.mean()), standard_error(gap), tuple(each[:FIRST].tolist()),
            )
        )  # fmt: skip
    return found
