"""The result of predictive checks, as a value."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.text import counted, whole
from hieropo._utils.ties import ordered
from hieropo.evaluation.diagnostics import misfits as tests
from hieropo.evaluation.diagnostics.misfits import (
    SHARES,
    Misfit,
    NoiseTest,
    Outlier,
    Residuals,
    ScoreTest,
    noise_between,
)
from hieropo.evaluation.diagnostics.task_distances import TaskDistances
from hieropo.rows.ids import plain
from hieropo.rows.keys import Keys

LEVEL = 0.01
_FROM_SINGLE_ROWS = ("heavy tails", "few values")  # kinds of misfits that single rewards show


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
        Rows whose features no other row has, so that they check nothing.
    gram : (K, c + 3, c + 3) array
        For each action, or for all, sums of products of 1, the size of a residual, the columns and the prediction.
    score_tests : tuple of ScoreTest
        Tests of a constant and of the squares of context columns.
    distances : TaskDistances or None
        Of each task from its prediction by the others; None for rows that were not learned from.
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
    score_tests: tuple[ScoreTest, ...]
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
        """All tests, by p.

        ``p`` is the probability that any of them reaches its result under the model (Bonferroni); ``finding`` is None
        where that is more than ``level``, or where the effect is too small to matter.
        """
        misfits = list(self._misfits())
        if tests.outweighing(self.by_task.all, self.outliers):  # the other findings follow from that row
            misfits = [m if m.kind in _FROM_SINGLE_ROWS else m._replace(finding=None) for m in misfits]
        corrected = []
        for misfit in misfits:
            p = min(misfit.p * len(misfits), 1.0)
            corrected.append(misfit._replace(p=p, finding=misfit.finding if p <= self.level else None))
        return tuple(corrected[k] for k in ordered([misfit.p for misfit in corrected]))

    @property
    def findings(self) -> tuple[str, ...]:
        """Sentences on misfits of the model; empty where there is none."""
        return tuple(misfit.finding for misfit in self.misfits if misfit.finding is not None)

    def _misfits(self) -> Iterator[Misfit]:
        noise, tails = list(self._noise_misfits()), None
        values = self.values if self._has_few_values else None
        if values is not None:
            kinds = [("action", self.by_action), ("task", self.by_task)]
            by_kind = [(kind, groups) for kind, groups in kinds if groups is not None]
            yield tests.of_values(values, by_kind, self.sd)
            noise = [misfit._replace(finding=None) for misfit in noise]  # it follows from the values
        else:
            parts = [self.by_task] if self.by_action is None else [self.by_task, self.by_action]
            along = next(misfit.effect for misfit in noise if misfit.kind == tests.ALONG)
            tails = tests.of_tails(parts, along, self.outliers)
        yield tests.of_scale(self.by_task.all, self._inflation, self.learned_rows)
        yield from noise
        means = (
            tests.of_level(self.score_tests, self.actions),
            tests.of_curvature(self.score_tests, self.columns, self.actions, self.level),
        )
        yield from (misfit for misfit in (tails, *means) if misfit is not None)
        if self.by_action is not None and self.actions is not None and self.learned_from:
            yield tests.of_actions(self.by_action, self.actions)
        if self.distances is not None and self.distances.free.any():
            yield from tests.of_tasks(self.distances, self.keys, self.level)

    @property
    def _has_few_values(self) -> bool:
        """True where rewards are few values, unless one of three or more is an outlier in one row."""
        if self.values is None or self.rows < 2 * len(self.values):
            return False
        return len(self.values) <= 2 or not tests.outweighing(self.by_task.all, self.outliers)

    def _noise_misfits(self) -> Iterator[Misfit]:
        if self._task_noise is not None:
            yield tests.of_noise("task", self.by_task, self._task_noise, self.keys.values, self.level)
        groups = self.by_action
        if groups is not None and self.actions is not None:
            test = noise_between(groups, np.full(groups.rows.size, self._inflation))
            if test is not None:
                yield tests.of_noise("action", groups, test, self.actions, self.level)
        yield tests.of_noise_along(self.gram, self._inflation, self.columns)

    @cached_property
    def _task_noise(self) -> NoiseTest | None:
        return noise_between(self.by_task, self.by_task.inflation)

    @property
    def _inflation(self) -> float:
        """Of sums over rows of many tasks."""
        rows = self.by_task.of("rows")
        return float(self.by_task.inflation @ rows / max(rows.sum(), 1.0))

    def worst_tasks(self, count: int = 5) -> list[dict[str, Any]]:
        """Return the tasks that fit the model worst.

        Each has its rows, the sd of its residuals, ``p_noise`` of equal noise, ``p_unlike`` of coefficients from the
        same population as the others, and ``p``, corrected for both tests of all tasks.
        """
        m, noise = len(self.keys), self._task_noise
        p_noise = np.ones(m) if noise is None else noise.p_by_group
        p_unlike = np.ones(m) if self.distances is None else self.distances.p
        least = np.minimum(p_noise, p_unlike)
        order: Codes = ordered(least, -self.by_task.rows)[:count]
        return [
            {
                "task": plain(self.keys.values[s]), "rows": whole(self.by_task.rows[s]),
                "sd": float(self.by_task.sd[s]),
                "p_noise": float(p_noise[s]), "p_unlike": float(p_unlike[s]), "p": min(float(2 * m * least[s]), 1.0),
            }
            for s in order.tolist()
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types."""
        result: dict[str, Any] = {
            "rows": whole(self.rows),
            "learned_from": self.learned_from,
            "alone": whole(self.alone),
            "mean": self.mean,
            "sd": self.sd,
            "coverage": _shares(self.coverage),
            "pit": [whole(count) for count in self.pit.tolist()],
            "tests": [misfit._asdict() for misfit in self.misfits],
            "worst_tasks": self.worst_tasks(),
            "outliers": [{**row._asdict(), "task": plain(row.task)} for row in self.outliers],
        }
        groups = self.by_action
        if groups is not None and self.actions is not None:
            result["actions"] = [
                {
                    "action": plain(action), "rows": whole(groups.rows[a]), "mean": float(groups.mean[a]),
                    "sd": float(groups.sd[a]), "coverage": _shares(groups.coverage[a]),
                }
                for a, action in enumerate(self.actions)
            ]  # fmt: skip
        return result

    def __repr__(self) -> str:
        return (
            f"PredictiveChecks({counted(self.rows, 'row')}, sd {self.sd:.3f}, "
            f"{self.coverage[2]:.1%} in 95 % intervals, {counted(len(self.findings), 'finding')})"
        )


def _shares(coverage: Array) -> dict[str, float]:
    return {f"{share:g}": float(inside) for share, inside in zip(SHARES, coverage, strict=True)}
