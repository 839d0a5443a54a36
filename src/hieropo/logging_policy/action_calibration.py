"""Whether estimated propensities are calibrated, and whether contexts settle the action altogether."""

from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from hieropo._utils.arrays import Array, Codes

_EDGES = np.array([0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0])
_TELLING = 30.0  # actions that do not go as predicted, from which on too few are no coincidence
_NEIGHBOURS = 4_000  # rows that are compared with the nearest
FEW_TASKS = 30  # below, rows are taken as independent


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """How estimated propensities fare on rows that they were not estimated from.

    Attributes
    ----------
    predicted, observed : (B,) array
        Reliability: mean probability of an eligible action, and how often it was taken, by bins of the probability.
    pairs : (B,) int array
        Pairs of a row and an eligible action in each bin; only bins with some.
    slope, slope_se : float
        s that fits the actions best in P(a)^s / sum_b P(b)^s, by one Newton step from 1: below 1 where probabilities
        are too extreme, above where too timid.
    score : float
        Mean log probability of the action taken.
    score_population : float
        The same of the shares of all tasks together.
    gain, gain_se : float
        What contexts add to the mean log score of the shares; 0 where there are none.
    agreement, agreement_predicted : float
        How often the row with the nearest context has the same action, and how often it should; NaN without contexts.
    agreement_z : float
        The difference in standard errors; 0 without contexts. Far above 0: contexts say more than the model knows.
    rows : int
        Rows that all of this was measured on.
    """

    predicted: Array
    observed: Array
    pairs: Codes
    slope: float
    slope_se: float
    score: float
    score_population: float
    gain: float
    gain_se: float
    agreement: float
    agreement_predicted: float
    agreement_z: float
    rows: int


def clustered(values: Array, task: Codes) -> tuple[float, float]:
    """Return the mean of values (n,) and its standard error, with tasks as clusters from 30 of them on."""
    n, mean = values.size, float(values.mean())
    names, codes = np.unique(task, return_inverse=True)
    away = values - mean
    if names.size >= FEW_TASKS:
        m = names.size
        totals = np.bincount(codes, away)
        return mean, float(np.sqrt(totals @ totals * m / (m - 1)) / n)
    return mean, float(np.sqrt(away @ away / max(n - 1, 1) / n))


def _bin(chance: Array) -> Codes:
    found = np.searchsorted(_EDGES, chance, side="right") - 1
    return np.clip(found, 0, _EDGES.size - 2).astype(np.int64)


def calibration(
    chance: Array, shares: Array, population: Array, action: Codes, task: Codes, nearest: "Nearest | None"
) -> Calibration:
    """Measure calibration.

    Parameters
    ----------
    chance, shares, population : (n, K) array
        Probabilities by the model, by the shares alone and by the population's shares; 0 where an action could not be
        taken. Each row's without the row itself.
    action, task : (n,) int
    nearest : Nearest, optional
        The rows with the nearest contexts.
    """
    at = np.arange(action.size)
    possible = chance[chance > 0]
    bins, size = _bin(possible), _EDGES.size - 1
    sums, pairs = np.bincount(bins, possible, size), np.bincount(bins, minlength=size)
    hits = np.bincount(_bin(chance[at, action]), minlength=size)
    some = pairs > 0
    slope, slope_se = _slope(chance, action, task)
    gain, gain_se = clustered(np.log(chance[at, action] / shares[at, action]), task)
    agreement, expected, z = (np.nan, np.nan, 0.0) if nearest is None else nearest.agreement(chance, action)
    return Calibration(
        predicted=sums[some] / pairs[some],
        observed=hits[some] / pairs[some],
        pairs=pairs[some],
        slope=slope,
        slope_se=slope_se,
        score=float(np.log(chance[at, action]).mean()),
        score_population=float(np.log(population[at, action]).mean()),
        gain=gain,
        gain_se=gain_se,
        agreement=agreement,
        agreement_predicted=expected,
        agreement_z=z,
        rows=action.size,
    )


def _slope(chance: Array, action: Codes, task: Codes) -> tuple[float, float]:
    """One Newton step from s = 1: by sum (log p_a - E log p) / sum Var log p; its error by tasks."""
    logs = np.log(np.where(chance > 0, chance, 1.0))
    mean = (chance * logs).sum(axis=1)
    information = float((chance * logs**2).sum() - mean @ mean)
    if information <= 1e-9 * action.size:
        return 1.0, np.inf  # all probabilities of a row are equal: nothing to be steep or flat
    each = (logs[np.arange(action.size), action] - mean) * (action.size / information)
    step, se = clustered(each, task)
    return 1.0 + step, se


@dataclass(frozen=True, slots=True, eq=False)
class Nearest:
    """Pairs of rows with about the same context.

    Attributes
    ----------
    row, other : (q,) int array
        Of some rows of a sample the nearest by context.
    """

    row: Codes
    other: Codes

    @classmethod
    def of(cls, context: Array, task: Codes, *, within: bool) -> "Nearest | None":
        """Find them in contexts (n, c) in standard deviations; ``within`` tasks with at least 20 rows."""
        rows = np.arange(task.size)
        points = context
        if within:
            counts = np.bincount(task, minlength=1)
            rows = np.argsort(np.where(counts[task] >= 20, task, counts.size), kind="stable")
            rows = rows[: int((counts[task] >= 20).sum())]
            far = 10.0 * (1.0 + np.abs(context).max(initial=0.0)) * np.sqrt(max(context.shape[1], 1))
            points = np.concatenate([context, far * task[:, None].astype(np.float64)], axis=1)
        rows = rows[:_NEIGHBOURS]
        if rows.size < 20 or not context.shape[1]:
            return None
        found = cKDTree(points[rows]).query(points[rows], k=2)[1]
        other = np.where(found[:, 0] == np.arange(rows.size), found[:, 1], found[:, 0])
        same = (task[rows] == task[rows[other]]) | (not within)
        return cls(rows[same], rows[other[same]])

    def agreement(self, chance: Array, action: Codes) -> tuple[float, float, float]:
        """Return how often both rows have one action, how often they should, and the difference in standard errors.

        Under right probabilities pairs without a common row are independent; a row is the nearest of a few others at
        most, and twice the variance of independent pairs is taken.
        """
        same = (action[self.row] == action[self.other]).astype(np.float64)
        expected = (chance[self.row] * chance[self.other]).sum(axis=1)
        spread = np.sqrt(2.0 * float((expected * (1.0 - expected)).sum()))
        z = float((same - expected).sum()) / max(spread, 1.0)
        return float(same.mean()), float(expected.mean()), z


def settled(left: float, expected: float, rows: int, share: float) -> bool:
    """Say whether actions that go other ways, a share ``left`` of rows where ``expected``, are too few."""
    return bool(expected * rows >= _TELLING and left <= share * expected)
