"""The result of predictive checks, as a value."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.text import counted, whole
from hieropo._utils.ties import ordered
from hieropo.evaluation.diagnostics import misfits as faults
from hieropo.evaluation.diagnostics.misfits import (
    SHARES,
    Bend,
    Misfit,
    NoiseTest,
    Outlier,
    Residuals,
    noise_between,
)
from hieropo.evaluation.diagnostics.task_distances import TaskDistances
from hieropo.rows.ids import plain
from hieropo.rows.keys import Keys

LEVEL = 0.01
_OF_VALUES = ("heavy tails", "few values")  # kinds of faults that single rewards show


@dataclass(frozen=True, eq=False, repr=False)
class PredictiveChecks:
    """Rewards compared with their predictions by the model; made by :class:`predictive.Checks`.

    Attributes
    ----------
    keys : Keys
        The m tasks of the posterior.
    actions : tuple of ids, or None
        The K actions.
    columns : tuple of str
        The context columns.
    learned_from : bool
        True where the rows were learned from; each was then left out in turn.
    learned_rows : float
        Rows that were learned from, by their weights.
    by_task, by_action : Residuals
        Standardised residuals by task (m,) and action (K,); the latter None where there are no actions.
    pit : (20,) array
        Rewards by the probability that the model gives to smaller ones, in 20 equal bins; flat under the model.
    alone : float
        Rows of which no other row says anything, so that they check nothing.
    gram : (K, c + 3, c + 3) array
        For each action, or for all, sums of products of 1, the size of a residual, the columns and the prediction.
    bends : tuple of Bend
        Tests of the squares of context columns.
    distances : TaskDistances or None
        Of each task to what the others say of it; None for rows that were not learned from.
    outliers : tuple of Outlier
        The largest residuals.
    values : tuple of float or None
        The distinct rewards, where there are few.
    level : float
        Probability of any finding where the model is right.
    """

    keys: Keys
    actions: tuple[Any, ...] | None
    columns: tuple[str, ...]
    learned_from: bool
    learned_rows: float
    by_task: Residuals
    by_action: Residuals | None
    pit: Array
    alone: float
    gram: Array
    bends: tuple[Bend, ...]
    distances: TaskDistances | None
    outliers: tuple[Outlier, ...]
    values: tuple[float, ...] | None
    level: float = LEVEL

    @property
    def rows(self) -> float:
        """Rows that were checked, by their weights."""
        return float(self.by_task.rows.sum())

    @property
    def mean(self) -> float:
        """Mean of all standardised residuals, 0 under the model."""
        return float(self.by_task.all.mean[0])

    @property
    def sd(self) -> float:
        """Root mean square of all standardised residuals, 1 under the model."""
        return float(self.by_task.all.sd[0])

    @property
    def coverage(self) -> Array:
        """Shares of rewards in their 50, 80 and 95 % intervals, (3,)."""
        return np.asarray(self.by_task.all.coverage[0])

    @cached_property
    def misfits(self) -> tuple[Misfit, ...]:
        """All tests that were made, the least likely first.

        ``p`` is the chance that any of them shows as much where the model is right (Bonferroni); ``said`` is None where
        that is more than ``level``, or where what was found is too small to matter.
        """
        made = list(self._faults())
        if faults.outweighing(self.by_task.all, self.outliers):  # that row makes up what else would be said
            made = [each if each.kind in _OF_VALUES else each._replace(said=None) for each in made]
        found = []
        for each in made:
            p = min(each.p * len(made), 1.0)
            found.append(each._replace(p=p, said=each.said if p <= self.level else None))
        return tuple(found[k] for k in ordered([each.p for each in found]))

    @property
    def findings(self) -> tuple[str, ...]:
        """Faults of the model, in words; empty where there is none."""
        return tuple(each.said for each in self.misfits if each.said is not None)

    def _faults(self) -> Iterator[Misfit]:
        noise, tails = list(self._noise_faults()), None
        values = self.values if self._has_few_values else None
        if values is not None:
            kinds = [("action", self.by_action), ("task", self.by_task)]
            told = [(kind, groups) for kind, groups in kinds if groups is not None]
            yield faults.of_values(values, told, self.sd)
            noise = [each._replace(said=None) for each in noise]  # it follows from the values
        else:
            parts = [self.by_task] if self.by_action is None else [self.by_task, self.by_action]
            along = next(each.effect for each in noise if each.kind == faults.ALONG)
            tails = faults.of_tails(parts, along, self.outliers)
        yield faults.of_scale(self.by_task.all, self._inflation, self.learned_rows)
        yield from noise
        means = (
            faults.of_level(self.bends, self.actions),
            faults.of_curvature(self.bends, self.columns, self.actions, self.level),
        )
        yield from (each for each in (tails, *means) if each is not None)
        if self.by_action is not None and self.actions is not None and self.learned_from:
            yield faults.of_actions(self.by_action, self.actions)
        if self.distances is not None and self.distances.free.any():
            yield from faults.of_tasks(self.distances, self.keys, self.level)

    @property
    def _has_few_values(self) -> bool:
        """Return whether rewards are few values; not where one of three or more is far from the others in one row."""
        if self.values is None or self.rows < 2 * len(self.values):
            return False
        return len(self.values) <= 2 or not faults.outweighing(self.by_task.all, self.outliers)

    def _noise_faults(self) -> Iterator[Misfit]:
        if self._task_noise is not None:
            yield faults.of_noise("task", self.by_task, self._task_noise, self.keys.values, self.level)
        groups = self.by_action
        if groups is not None and self.actions is not None:
            found = noise_between(groups, np.full(groups.rows.size, self._inflation))
            if found is not None:
                yield faults.of_noise("action", groups, found, self.actions, self.level)
        yield faults.of_noise_along(self.gram, self._inflation, self.columns)

    @cached_property
    def _task_noise(self) -> NoiseTest | None:
        return noise_between(self.by_task, self.by_task.inflation)

    @property
    def _inflation(self) -> float:
        """Of sums over rows of many tasks."""
        rows = self.by_task.of("rows")
        return float(self.by_task.inflation @ rows / max(rows.sum(), 1.0))

    def worst_tasks(self, count: int = 5) -> list[dict[str, Any]]:
        """Return the tasks least like the model says.

        Of each its rows, the sd of its residuals, ``p_noise`` that its noise is that of the others, ``p_unlike`` that
        its coefficients are from their family, and ``p``, honest for having looked at all tasks twice.
        """
        m, noise = len(self.keys), self._task_noise
        each = np.ones(m) if noise is None else noise.each
        apart = np.ones(m) if self.distances is None else self.distances.p
        least = np.minimum(each, apart)
        order: Codes = ordered(least, -self.by_task.rows)[:count]
        return [
            {
                "task": plain(self.keys.values[s]), "rows": whole(self.by_task.rows[s]),
                "sd": float(self.by_task.sd[s]),
                "p_noise": float(each[s]), "p_unlike": float(apart[s]), "p": min(float(2 * m * least[s]), 1.0),
            }
            for s in order.tolist()
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types."""
        found: dict[str, Any] = {
            "rows": whole(self.rows),
            "learned_from": self.learned_from,
            "alone": whole(self.alone),
            "mean": self.mean,
            "sd": self.sd,
            "coverage": _shares(self.coverage),
            "pit": [whole(count) for count in self.pit.tolist()],
            "tests": [each._asdict() for each in self.misfits],
            "worst_tasks": self.worst_tasks(),
            "outliers": [{**each._asdict(), "task": plain(each.task)} for each in self.outliers],
        }
        groups = self.by_action
        if groups is not None and self.actions is not None:
            found["actions"] = [
                {
                    "action": plain(action), "rows": whole(groups.rows[a]), "mean": float(groups.mean[a]),
                    "sd": float(groups.sd[a]), "coverage": _shares(groups.coverage[a]),
                }
                for a, action in enumerate(self.actions)
            ]  # fmt: skip
        return found

    def __repr__(self) -> str:
        return (
            f"PredictiveChecks({counted(self.rows, 'row')}, sd {self.sd:.3f}, "
            f"{self.coverage[2]:.1%} in 95 % intervals, {counted(len(self.findings), 'finding')})"
        )


def _shares(coverage: Array) -> dict[str, float]:
    return {f"{share:g}": float(found) for share, found in zip(SHARES, coverage, strict=True)}
