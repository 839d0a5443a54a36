"""Models of the actions that were taken: shares of each task, a logit on contexts, and their calibration.

With n_sa rows of action a among the n_s rows of task s, shares vary by a Dirichlet law with mean pi (what all tasks do)
and concentration c, and

    p_sa = (n_sa + c pi_a) / (n_s + c)

A row is predicted without itself: with n_sa - 1 and n_s - 1 where a is its action. Under that law the expectation of
1{action = a} / p, given the other rows, is exactly 1. The concentration maximises the log score of all rows so
predicted.

    P(a | s, x) = lambda_sa e_a / Lambda,    e_a = exp(b_a + W_a' x) for eligible a, else 0

    Lambda = sum over actions b of lambda_sb e_b

with lambda_sa ~ Gamma(c pi_a, rate c): without e, the shares of :mod:`action_logit`. Given b and W, the
fixed point of

    lambda_sa = (n_sa + c pi_a) / (D_sa + c),   D_sa = sum over the rows of s of e_a / Lambda

which adds up to 1 over the actions, is the conditional mean of lambda with the latent times of Caron and Doucet
(Journal of Computational and Graphical Statistics 21, 2012) at theirs; with one e for all rows it is the posterior
mean of the Dirichlet law. A row is predicted without itself by taking it out of n and D. Given the lambda of each row
without itself, b and W are those of a logit with the offset log lambda; both are learned in turns. D may be taken
from a sample of a task's rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array, Codes, Mask, sealed
from hieropo._utils.text import counted
from hieropo._utils.ties import first_largest
from hieropo.errors import InputError

Counts = NDArray[np.integer] | Array

LOWEST, HIGHEST = float(np.log(1e-3)), float(np.log(1e6))  # of the log concentration
_GRID = 12
_ALONE = 0.99  # share of rows, in tasks with one action, from which on a log counts as deterministic
_CHANCE = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Shrunken shares of actions; made by :func:`learn_shares`.

    Attributes
    ----------
    counts : (m + 1, K) array
        n_sa; the last row is a task without rows, so that the row -1 is an unknown task.
    rows : (m + 1,) array
        n_s.
    population : (K,) array
        pi, adds to 1; 0 for actions that were never taken.
    concentration : float
        c: from this number of rows on a task's own rows weigh more than the population's share.
    """

    counts: Array
    rows: Array
    population: Array
    concentration: float

    def __post_init__(self) -> None:
        for array in (self.counts, self.rows, self.population):
            sealed(array)

    @property
    def n_actions(self) -> int:
        """K."""
        return self.population.size

    def strengths(self, task: Codes, mask: Mask | None = None, taken: Codes | None = None) -> Array:
        """Return shares p (n, K) for rows of these tasks, 0 for actions that are not eligible.

        With the actions ``taken`` (n,), for rows that were learned from, each is said without its own row.
        """
        above = self.counts[task] + self.concentration * self.population
        below = self.rows[task] + self.concentration
        if taken is not None:
            above[np.arange(task.size), taken] -= 1.0
            below = below - 1.0
        found = above / below[:, None]
        return found if mask is None else np.where(mask, found, 0.0)

    def taken(self, task: Codes, action: Codes) -> Array:
        """Probability (n,) of the action taken where all were eligible, without the row itself."""
        above = self.counts[task, action] - 1.0 + self.concentration * self.population[action]
        return np.asarray(above / (self.rows[task] - 1.0 + self.concentration))


def learn_shares(counts: Counts) -> Shares:
    """Learn shares, and how much tasks differ.

    For a concentration c, pi is the mean of the tasks' shares with the weights n_s / (1 + (n_s - 1) / (1 + c)), the
    inverse of their variances; c maximises the log score of rows that are predicted without themselves.

    Parameters
    ----------
    counts : (m, K) int
        Rows of each action in each task.

    Raises
    ------
    InputError
        There are no rows, or a count is negative.
    """
    table = np.asarray(counts, dtype=np.float64)
    if table.ndim != 2 or not (table >= 0).all() or not table.sum():
        raise InputError(
            f"Counts of shape {table.shape} with the sum {table.sum():g} are no counts of actions (m, K): they must "
            "not be negative, and at least one row is needed."
        )
    rows = table.sum(axis=1)
    task, action = np.nonzero(table)
    times = table[task, action]

    def score(log_c: float) -> float:
        c = float(np.exp(log_c))
        above = times - 1.0 + c * _population(table, rows, c)[action]
        return float(times @ np.log(above / (rows[task] - 1.0 + c)))

    c = float(np.exp(largest(score)))
    return Shares(
        np.concatenate([table, np.zeros((1, table.shape[1]))]),
        np.append(rows, 0.0),
        _population(table, rows, c),
        c,
    )


def _population(counts: Array, rows: Array, c: float) -> Array:
    total = (1.0 / (1.0 + np.maximum(rows - 1.0, 0.0) / (1.0 + c))) @ counts
    return np.asarray(total / total.sum())


def largest(score: Callable[[float], float], grid: int = _GRID) -> float:
    """Return the log concentration with the largest score: the best of a grid, refined."""
    from scipy.optimize import minimize_scalar

    points = np.linspace(LOWEST, HIGHEST, grid)
    scores = [score(each) for each in points]
    best = int(first_largest(scores))
    around = points[max(best - 1, 0)], points[min(best + 1, grid - 1)]
    found = minimize_scalar(
        lambda each: -score(each), bounds=around, method="bounded", options={"xatol": 0.02}
    )
    return float(found.x if -found.fun > scores[best] else points[best])


def always_one_action(counts: Counts) -> str | None:
    """Say why the actions of a log look as if each task always got the same one; None where they do not.

    At least 99 % of the rows, of tasks with several, lie in tasks with one action, though with the shares of all rows
    so few mixed tasks have a probability below 0.001: exact where there are none, else about that of a Poisson law.

    Parameters
    ----------
    counts : (m, K) int
        Rows of each action in each task.
    """
    from scipy.special import pdtr

    table = np.asarray(counts, dtype=np.float64)
    table = table[table.sum(axis=1) > 0]
    total, rows = table.sum(axis=0), table.sum(axis=1)
    if np.count_nonzero(total) < 2:
        return "the log has one action only"
    several = rows >= 2
    alone = several & (table.max(axis=1) == rows)
    mixed = int(np.count_nonzero(several) - np.count_nonzero(alone))
    shares = total / total.sum()
    lengths, times = np.unique(rows[several], return_counts=True)
    top = shares.max()
    logs = lengths * np.log(top) + np.log(
        ((shares / top) ** lengths[:, None]).sum(axis=1)
    )  # of one action alone
    if not several.any() or rows[alone].sum() < _ALONE * rows[several].sum():
        return None
    if (pdtr(mixed, times @ -np.expm1(logs)) if mixed else np.exp(times @ logs)) >= _CHANCE:
        return None
    which = f"all but {counted(mixed, 'task')}" if mixed else "every task"
    same = counted(int(np.count_nonzero(alone)), "task")
    return f"{which} with several rows got one and the same action in all of them ({same})"


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
        from scipy.spatial import cKDTree

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


_RIDGES = (1.0, 30.0, 1000.0)
_TUNED_ON = 20_000  # rows that the ridge and the concentration are chosen on
_SAME = 1e-7  # of a row's log score, which is less than fits are exact to
_ROUNDS = 4
_STEPS, _CLOSE = 60, 1e-6  # of the fixed point
_WORTH = 1e-4  # of a turn, in log score a row
_STAND_IN = 2.0  # rows that the mean of all tasks counts as, where a task is known by a sample


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Rows of a log, in random order.

    Attributes
    ----------
    task, action, fold : (n,) int
    context : (n, c) array
    mask : (n, K) bool or None
        Eligible actions.
    """

    task: Codes
    action: Codes
    fold: Codes
    context: Array
    mask: Mask | None

    def rows(self, part: "slice | Mask | Codes") -> "Sample":
        """Return some of them."""
        mask = None if self.mask is None else self.mask[part]
        return Sample(self.task[part], self.action[part], self.fold[part], self.context[part], mask)


@dataclass(frozen=True, slots=True, eq=False)
class TaskEffects:
    """Strengths of the actions in each task.

    Attributes
    ----------
    counts : (m + 1, K) array
        n_sa; the last row is an unknown task.
    prior : (K,) array
        c pi.
    concentration : float
        c.
    whole : (m + 1,) bool
        Tasks whose D is of all their rows.
    strength : (m + 1, K) array
        lambda.
    """

    counts: Array
    prior: Array
    concentration: float
    whole: Mask
    strength: Array

    def without_itself(self, task: Codes, pull: Array, taken: Codes) -> Array:
        """Return lambda (n, K) of each row's task without that row, which has the pull e (n, K)."""
        strength = self.strength[task]
        above = self.counts[task] + self.prior
        exposure = above / np.where(strength > 0, strength, 1.0) - self.concentration
        own = pull / (strength * pull).sum(axis=1, keepdims=True)
        part = ~self.whole[task]
        own[part] = exposure[part] / self.counts[task[part]].sum(axis=1, keepdims=True)
        above[np.arange(task.size), taken] -= 1.0
        return np.asarray(above / (np.maximum(exposure - own, 0.0) + self.concentration))


@dataclass(frozen=True, slots=True, eq=False)
class ActionLogit:
    """Effects of contexts and tasks; made by :func:`learn_logit`.

    The last of F + 1 is of all rows, the others leave a fold out.

    Attributes
    ----------
    mean, scale : (c,) array
        Of contexts; x is in standard deviations. An infinite scale for a column that does not vary.
    intercept, slope : (F + 1, K), (F + 1, c, K) array
        b and W.
    effects : tuple of TaskEffects
        F + 1 of them.
    ridge : float
        Prior precision of each slope.
    """

    mean: Array
    scale: Array
    intercept: Array
    slope: Array
    effects: tuple[TaskEffects, ...]
    ridge: float

    @property
    def concentration(self) -> float:
        """c: how little tasks differ beyond their contexts."""
        return self.effects[-1].concentration

    def chances(
        self,
        task: Codes,
        context: Array,
        mask: Mask | None,
        *,
        taken: Codes | None = None,
        fold: Codes | None = None,
    ) -> Array:
        """Return P(a | s, x), (n, K); 0 for a row of which no eligible action was ever taken.

        Parameters
        ----------
        task : (n,) int
        context : (n, c) array
        mask : (n, K) bool or None
        taken, fold : (n,) int, optional
            Of rows that were learned from: each is then said without itself, and by the logit without its fold.
        """
        x = (context - self.mean) / self.scale
        found = np.empty((task.size, self.intercept.shape[1]))
        part = np.full(task.size, len(self.effects) - 1) if fold is None else fold
        for f in np.unique(part):
            rows = np.flatnonzero(part == f)
            pull = pulls(self.intercept[f], self.slope[f], x[rows], None if mask is None else mask[rows])
            effects = self.effects[f]
            if taken is None:
                found[rows] = effects.strength[task[rows]] * pull
            else:
                found[rows] = effects.without_itself(task[rows], pull, taken[rows]) * pull
        return normalised(found)


def pulls(intercept: Array, slope: Array, x: Array, mask: Mask | None) -> Array:
    """Return e (n, K), up to a factor for each row."""
    found = intercept + x @ slope
    if mask is not None:
        found = np.where(mask, found, -np.inf)
    return np.asarray(np.exp(found - found.max(axis=1, keepdims=True)))


def normalised(strength: Array) -> Array:
    """Make rows (n, K) add to 1; rows of zeros stay."""
    total = strength.sum(axis=1, keepdims=True)
    return np.asarray(strength / np.where(total > 0, total, 1.0))


def learn_logit(shares: Shares, sample: Sample, folds: int) -> ActionLogit:
    """Learn the effects of contexts and tasks.

    Parameters
    ----------
    shares : Shares
        Of all rows.
    sample : Sample
        All rows, or some of each task.
    folds : int
    """
    mean, spread = sample.context.mean(axis=0), sample.context.std(axis=0)
    scale = np.where(spread > 1e-12 * np.abs(mean), spread, np.inf)
    turns = _Turns(shares, sample, (sample.context - mean) / scale)
    small = turns.whole_tasks()
    log_c, ridge = float(np.log(shares.concentration)), _RIDGES[0]
    effects = turns.effects(None, log_c)
    offset, fitted, last = effects.strength[sample.task], None, -np.inf
    for turn in range(_ROUNDS):
        if turn == 1 and mean.size:
            ridge = turns.best_ridge(offset, folds)
        fitted = turns.fit(offset, ridge, fitted)
        log_c = largest(partial(small.score, fitted), grid=6)
        effects = turns.effects(fitted, log_c, effects.strength)
        offset, score = turns.left_out(fitted, effects)
        if score - last < _WORTH:
            break
        last = score
    assert fitted is not None
    fits = [turns.fit(offset, ridge, fitted, without=f) for f in range(folds)]
    every = tuple(turns.effects(each, log_c, effects.strength) for each in fits)
    K, coefficients = shares.n_actions, np.array([*fits, fitted])
    slope = coefficients[:, K:].reshape(folds + 1, -1, K)
    return ActionLogit(mean, scale, coefficients[:, :K], slope, (*every, effects), ridge)


class _Turns:
    """Blocks of coefficients that are learned in turns, and their rows; coefficients are (b, W) as one vector."""

    def __init__(self, shares: Shares, sample: Sample, x: Array) -> None:
        from scipy.sparse import csr_matrix

        self._shares, self._sample, self._x = shares, sample, x
        m, n = len(shares.counts), sample.task.size
        self._adds = csr_matrix((np.ones(n), (sample.task, np.arange(n))), shape=(m, n))
        self._kept = np.bincount(sample.task, minlength=m).astype(np.float64)
        self._whole = self._kept >= shares.rows

    def whole_tasks(self) -> "_Turns":
        """Return some tasks with all their rows in the sample: what the concentration is chosen on."""
        names, first = np.unique(self._sample.task, return_index=True)
        names = names[np.argsort(first)]
        most = np.searchsorted(np.cumsum(self._kept[names]), _TUNED_ON)
        names = np.sort(names[: max(int(most), 1)])
        rows = np.flatnonzero(np.isin(self._sample.task, names))
        part = self._sample.rows(rows)
        part = replace(part, task=np.searchsorted(names, part.task))
        shares = self._shares
        return _Turns(
            replace(
                shares, counts=shares.counts[np.append(names, -1)], rows=shares.rows[np.append(names, -1)]
            ),
            part,
            self._x[rows],
        )

    def _pulls(self, coefficients: Array | None) -> Array:
        sample, K = self._sample, self._shares.n_actions
        if coefficients is None:
            coefficients = np.zeros(K + K * self._x.shape[1])
        return pulls(coefficients[:K], coefficients[K:].reshape(-1, K), self._x, sample.mask)

    def effects(self, coefficients: Array | None, log_c: float, start: Array | None = None) -> TaskEffects:
        """Return the fixed point; without coefficients, tasks that are all the same."""
        c, shares, task = float(np.exp(log_c)), self._shares, self._sample.task
        strength = np.tile(shares.population, (len(shares.counts), 1)) if start is None else start
        above = shares.counts + c * shares.population
        pull = self._pulls(coefficients)
        for _ in range(0 if coefficients is None else _STEPS):
            ratio = pull / np.einsum("nk,nk->n", strength[task], pull)[:, None]
            exposure = self._adds @ ratio
            if not self._whole.all():
                guess = exposure + _STAND_IN * ratio.mean(axis=0)
                guess *= (shares.rows / (strength * guess).sum(axis=1))[:, None]
                exposure = np.where(self._whole[:, None], exposure, guess)
            new = above / (exposure + c)
            new /= new.sum(
                axis=1, keepdims=True
            )  # as at the fixed point, where strength adds D up to the rows
            recentred, strength = float(np.abs(new - strength).max()), new
            if recentred < _CLOSE:
                break
        return TaskEffects(shares.counts, c * shares.population, c, self._whole, strength)

    def left_out(self, coefficients: Array, effects: TaskEffects) -> tuple[Array, float]:
        """Return lambda (n, K) of each row without itself, and the mean log score of all rows."""
        pull, action = self._pulls(coefficients), self._sample.action
        found = effects.without_itself(self._sample.task, pull, action)
        chance = normalised(found * pull)[np.arange(action.size), action]
        return found, float(np.log(chance).mean())

    def score(self, coefficients: Array, log_c: float) -> float:
        """Return that score for a concentration."""
        return self.left_out(coefficients, self.effects(coefficients, log_c))[1]

    def fit(
        self, offset: Array, ridge: float, start: Array | None, without: int = -1, most: int | None = None
    ) -> Array:
        """Fit coefficients for strengths (n, K) of each row, without a fold."""
        sample = self._sample
        rows = np.flatnonzero(sample.fold[:most] != without)
        part = sample.rows(rows)
        return _fit(offset[rows], self._x[rows], part.mask, part.action, ridge, start)

    def best_ridge(self, offset: Array, folds: int) -> float:
        """Return the ridge with the best log score of two folds that were left out."""
        K, scores = self._shares.n_actions, []
        for ridge in _RIDGES:
            total = 0.0
            for f in range(min(folds, 2)):
                found = self.fit(offset, ridge, None, without=f, most=_TUNED_ON)
                rows = np.flatnonzero(self._sample.fold[:_TUNED_ON] == f)
                part = self._sample.rows(rows)
                pull = pulls(found[:K], found[K:].reshape(-1, K), self._x[rows], part.mask)
                chance = normalised(offset[rows] * pull)[np.arange(rows.size), part.action]
                total += float(np.log(chance).sum())
            scores.append(total)
        room = _SAME * min(self._sample.fold.size, _TUNED_ON)
        return _RIDGES[::-1][int(first_largest(scores[::-1], room=room))]  # of equal ones the strongest


def _fit(
    offset: Array, x: Array, mask: Mask | None, action: Codes, ridge: float, start: Array | None
) -> Array:
    """Coefficients (b, W), of the multinomial logit with log strengths as offset; ridge on W, 1 on b."""
    n, K = offset.shape
    possible = offset > 0 if mask is None else mask & (offset > 0)
    base = np.where(possible, np.log(np.where(possible, offset, 1.0)), -np.inf)
    at, scale = np.arange(n), 1.0 / max(n, 1)
    penalty = np.concatenate([np.ones(K), np.full(x.shape[1] * K, ridge)])

    def loss(z: Array) -> tuple[float, Array]:
        eta = base + z[:K] + x @ z[K:].reshape(-1, K)
        eta -= eta.max(axis=1, keepdims=True)
        chance = np.exp(eta)
        total = chance.sum(axis=1, keepdims=True)
        value = float(np.log(total).sum() - eta[at, action].sum())
        chance /= total
        chance[at, action] -= 1.0
        slope = np.concatenate([chance.sum(axis=0), (x.T @ chance).ravel()])
        return scale * (value + 0.5 * float(penalty @ z**2)), scale * (slope + penalty * z)

    from scipy.optimize import minimize

    origin = np.zeros(penalty.size) if start is None else start
    options = {"maxiter": 300, "gtol": 1e-6, "ftol": 1e-10}
    return np.asarray(minimize(loss, origin, jac=True, method="L-BFGS-B", options=options).x)
