"""Models of the logging policy: shares of actions in each task, a logit on contexts, and their calibration.

Shares. With n_sa rows of action a among the n_s rows of task s, shares have a Dirichlet prior with mean pi (the shares
of all tasks) and concentration c, and

    p_sa = (n_sa + c pi_a) / (n_s + c)

A row is predicted without itself (leave-one-out): with n_sa - 1 and n_s - 1 where a is its action. Under this prior the
expectation of 1{action = a} / p, given the other rows, is exactly 1. The concentration maximises the leave-one-out log
score.

Logit on contexts.

    P(a | s, x) = lambda_sa e_a / Lambda,    e_a = exp(b_a + W_a' x) for eligible a, else 0

    Lambda = sum over actions b of lambda_sb e_b

with lambda_sa ~ Gamma(c pi_a, rate c); with e = 1 it gives the shares above. Given b and W, the fixed point of

    lambda_sa = (n_sa + c pi_a) / (D_sa + c),   D_sa = sum over the rows of s of e_a / Lambda

adds up to 1 over the actions. It is the conditional mean of lambda, with the latent times of Caron and Doucet (Journal
of Computational and Graphical Statistics 21, 2012) at their conditional means. With the same e in all rows it is the
posterior mean of the Dirichlet. A row is predicted without itself by subtracting it from n and D. Given the
leave-one-out lambda of each row, b and W are those of a logit with the offset log lambda. Both are learned by
alternation. D may be estimated from a sample of a task's rows.
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
_ONE_ACTION = 0.99  # share of rows, in tasks with one action, from which a log counts as deterministic
_MIN_PROBABILITY = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Shares of actions in each task, shrunk to those of all tasks; made by :func:`learn_shares`.

    Attributes
    ----------
    counts : (m + 1, K) array
        n_sa; the last row is a task without rows, so that the row -1 is an unknown task.
    rows : (m + 1,) array
        n_s.
    population : (K,) array
        pi, adds to 1; 0 for actions that were never taken.
    concentration : float
        c: the number of rows from which a task's own rows weigh more than the shares of all tasks.
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
        """Return the number of actions K."""
        return self.population.size

    def strengths(self, task: Codes, mask: Mask | None = None, taken: Codes | None = None) -> Array:
        """Return shares p (n, K) for rows of these tasks, 0 for actions that are not eligible.

        With the actions ``taken`` (n,) of rows that were learned from, each row is predicted without itself.
        """
        numerator = self.counts[task] + self.concentration * self.population
        denominator = self.rows[task] + self.concentration
        if taken is not None:
            numerator[np.arange(task.size), taken] -= 1.0
            denominator = denominator - 1.0
        shares = numerator / denominator[:, None]
        return shares if mask is None else np.where(mask, shares, 0.0)

    def taken(self, task: Codes, action: Codes) -> Array:
        """Return the leave-one-out probability (n,) of the action taken, where all actions were eligible."""
        numerator = self.counts[task, action] - 1.0 + self.concentration * self.population[action]
        return np.asarray(numerator / (self.rows[task] - 1.0 + self.concentration))


def learn_shares(counts: Counts) -> Shares:
    """Estimate shares of actions in each task, and their variation between tasks.

    For a concentration c, pi is the mean of the tasks' shares with the weights n_s / (1 + (n_s - 1) / (1 + c)), the
    inverse of their variances; c maximises the leave-one-out log score of the rows.

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
            f"Counts of shape {table.shape} with the sum {table.sum():g} are not counts of actions (m, K). Give counts "
            "of at least 0, with at least one row."
        )
    rows = table.sum(axis=1)
    task, action = np.nonzero(table)
    times = table[task, action]

    def score(log_c: float) -> float:
        c = float(np.exp(log_c))
        numerator = times - 1.0 + c * _population(table, rows, c)[action]
        return float(times @ np.log(numerator / (rows[task] - 1.0 + c)))

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
    scores = [score(log_c) for log_c in points]
    best = int(first_largest(scores))
    bounds = points[max(best - 1, 0)], points[min(best + 1, grid - 1)]
    refined = minimize_scalar(
        lambda log_c: -score(log_c), bounds=bounds, method="bounded", options={"xatol": 0.02}
    )
    return float(refined.x if -refined.fun > scores[best] else points[best])


def always_one_action(counts: Counts) -> str | None:
    """Return the reason why the task seems to determine the action (no overlap); None where it does not.

    The criterion: at least 99 % of the rows, of tasks with several rows, lie in tasks with one action, and so few mixed
    tasks have a probability below 0.001 if all tasks had the shares of all rows. That probability is exact for no mixed
    task, and a Poisson approximation otherwise.

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
    one_action = several & (table.max(axis=1) == rows)
    mixed = int(np.count_nonzero(several) - np.count_nonzero(one_action))
    shares = total / total.sum()
    lengths, times = np.unique(rows[several], return_counts=True)
    top = shares.max()
    # log probability of one action in all rows of a task
    logs = lengths * np.log(top) + np.log(((shares / top) ** lengths[:, None]).sum(axis=1))
    if not several.any() or rows[one_action].sum() < _ONE_ACTION * rows[several].sum():
        return None
    if (pdtr(mixed, times @ -np.expm1(logs)) if mixed else np.exp(times @ logs)) >= _MIN_PROBABILITY:
        return None
    which = f"all but {counted(mixed, 'task')}" if mixed else "every task"
    same = counted(int(np.count_nonzero(one_action)), "task")
    return f"{which} with several rows got one and the same action in all of them ({same})"


_EDGES = np.array([0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0])
_MIN_EXPECTED = 30.0  # expected number of other actions from which too few of them are not a coincidence
_NEIGHBOURS = 4_000  # rows that are compared with their nearest row
FEW_TASKS = 30  # below, rows are taken as independent


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """The calibration of estimated propensities, on rows that they were not estimated from.

    Attributes
    ----------
    predicted, observed : (B,) array
        Reliability curve: mean probability of an eligible action, and its frequency, by bins of the probability.
    pairs : (B,) int array
        Pairs of a row and an eligible action in each bin; empty bins are left out.
    slope, slope_se : float
        Calibration slope: the s of P(a)^s / sum_b P(b)^s with the largest likelihood, by one Newton step from 1. Below
        1 probabilities are too extreme, above 1 not extreme enough.
    score : float
        Mean log probability of the action taken.
    score_population : float
        The same with the shares of all tasks together.
    gain, gain_se : float
        Gain in mean log score by contexts over the shares; 0 without contexts.
    agreement, agreement_predicted : float
        Frequency with which the row with the nearest context has the same action, and its expectation; NaN without
        contexts.
    agreement_z : float
        Their difference in standard errors; 0 without contexts. Far above 0, the model misses an effect of contexts.
    rows : int
        Number of rows measured.
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
    """Return the mean of values (n,) and its standard error, clustered by task from 30 tasks on."""
    n, mean = values.size, float(values.mean())
    names, codes = np.unique(task, return_inverse=True)
    deviation = values - mean
    if names.size >= FEW_TASKS:
        m = names.size
        totals = np.bincount(codes, deviation)
        return mean, float(np.sqrt(totals @ totals * m / (m - 1)) / n)
    return mean, float(np.sqrt(deviation @ deviation / max(n - 1, 1) / n))


def _bin(probability: Array) -> Codes:
    index = np.searchsorted(_EDGES, probability, side="right") - 1
    return np.clip(index, 0, _EDGES.size - 2).astype(np.int64)


def calibration(
    probabilities: Array,
    shares: Array,
    population: Array,
    action: Codes,
    task: Codes,
    nearest: "Nearest | None",
) -> Calibration:
    """Return the calibration of probabilities of actions.

    Parameters
    ----------
    chance, shares, population : (n, K) array
        Leave-one-out probabilities by the model, by the shares of the task and by those of all tasks; 0 where an action
        could not be taken.
    action, task : (n,) int
    nearest : Nearest, optional
        Pairs of rows with the nearest contexts.
    """
    index = np.arange(action.size)
    possible = probabilities[probabilities > 0]
    bins, size = _bin(possible), _EDGES.size - 1
    sums, pairs = np.bincount(bins, possible, size), np.bincount(bins, minlength=size)
    taken = np.bincount(_bin(probabilities[index, action]), minlength=size)
    filled = pairs > 0
    slope, slope_se = _slope(probabilities, action, task)
    gain, gain_se = clustered(np.log(probabilities[index, action] / shares[index, action]), task)
    agreement, expected, z = (
        (np.nan, np.nan, 0.0) if nearest is None else nearest.agreement(probabilities, action)
    )
    return Calibration(
        predicted=sums[filled] / pairs[filled],
        observed=taken[filled] / pairs[filled],
        pairs=pairs[filled],
        slope=slope,
        slope_se=slope_se,
        score=float(np.log(probabilities[index, action]).mean()),
        score_population=float(np.log(population[index, action]).mean()),
        gain=gain,
        gain_se=gain_se,
        agreement=agreement,
        agreement_predicted=expected,
        agreement_z=z,
        rows=action.size,
    )


def _slope(probabilities: Array, action: Codes, task: Codes) -> tuple[float, float]:
    """Return the slope after one Newton step from s = 1, sum (log p_a - E log p) / sum Var log p, and its error."""
    logs = np.log(np.where(probabilities > 0, probabilities, 1.0))
    mean = (probabilities * logs).sum(axis=1)
    information = float((probabilities * logs**2).sum() - mean @ mean)
    if information <= 1e-9 * action.size:
        return 1.0, np.inf  # all probabilities of a row are equal, so the slope is not identified
    scores = (logs[np.arange(action.size), action] - mean) * (action.size / information)
    step, se = clustered(scores, task)
    return 1.0 + step, se


@dataclass(frozen=True, slots=True, eq=False)
class Nearest:
    """Pairs of rows with similar contexts.

    Attributes
    ----------
    row, other : (q,) int array
        Some rows of a sample, and for each the row with the nearest context.
    """

    row: Codes
    other: Codes

    @classmethod
    def of(cls, context: Array, task: Codes, *, within: bool) -> "Nearest | None":
        """Return the pairs in contexts (n, c), in standard deviations; ``within`` tasks with at least 20 rows.

        None where there are under 20 such rows, or no contexts.
        """
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
        two = cKDTree(points[rows]).query(points[rows], k=2)[1]
        other = np.where(two[:, 0] == np.arange(rows.size), two[:, 1], two[:, 0])
        same = (task[rows] == task[rows[other]]) | (not within)
        return cls(rows[same], rows[other[same]])

    def agreement(self, probabilities: Array, action: Codes) -> tuple[float, float, float]:
        """Return the frequency of equal actions in pairs, its expectation, and their difference in standard errors.

        Under correct probabilities pairs without a common row are independent. A row is the nearest of at most a few
        others, so twice the variance of independent pairs is used.
        """
        same = (action[self.row] == action[self.other]).astype(np.float64)
        expected = (probabilities[self.row] * probabilities[self.other]).sum(axis=1)
        sd = np.sqrt(2.0 * float((expected * (1.0 - expected)).sum()))
        z = float((same - expected).sum()) / max(sd, 1.0)
        return float(same.mean()), float(expected.mean()), z


def determined(remaining: float, expected: float, rows: int, share: float) -> bool:
    """Return True where the share ``remaining`` of other actions is at most ``share`` of the ``expected`` one."""
    return bool(expected * rows >= _MIN_EXPECTED and remaining <= share * expected)


_RIDGES = (1.0, 30.0, 1000.0)
_TUNED_ON = 20_000  # rows on which the ridge and the concentration are chosen
_SAME = 1e-7  # difference in log score of a row below the accuracy of fits
_ROUNDS = 4  # of the alternation
_STEPS, _CLOSE = 60, 1e-6  # of the fixed point
_MIN_GAIN = 1e-4  # in log score of a row, below which the alternation stops
_PRIOR_ROWS = 2.0  # rows that the mean of all tasks counts as, where D of a task is estimated from a sample


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
        """Return a part of the rows."""
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
    complete : (m + 1,) bool
        Tasks whose D is the sum over all their rows.
    strength : (m + 1, K) array
        lambda.
    """

    counts: Array
    prior: Array
    concentration: float
    complete: Mask
    strength: Array

    def leave_one_out(self, task: Codes, odds: Array, taken: Codes) -> Array:
        """Return lambda (n, K) of each row's task without that row, whose context effects are e (n, K)."""
        strength = self.strength[task]
        numerator = self.counts[task] + self.prior
        exposure = numerator / np.where(strength > 0, strength, 1.0) - self.concentration
        of_row = odds / (strength * odds).sum(axis=1, keepdims=True)
        sampled = ~self.complete[task]
        of_row[sampled] = exposure[sampled] / self.counts[task[sampled]].sum(axis=1, keepdims=True)
        numerator[np.arange(task.size), taken] -= 1.0
        return np.asarray(numerator / (np.maximum(exposure - of_row, 0.0) + self.concentration))


@dataclass(frozen=True, slots=True, eq=False)
class ActionLogit:
    """Effects of contexts and tasks on actions; made by :func:`learn_logit`.

    The last of F + 1 fits is on all rows; the others each leave a fold out.

    Attributes
    ----------
    mean, scale : (c,) array
        Mean and sd of contexts; x is in standard deviations. The scale of a constant column is infinite.
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
        """Return the concentration c of shares, given contexts."""
        return self.effects[-1].concentration

    def probabilities(
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
            Actions and folds of rows that were learned from: each is predicted without itself, by the logit without its
            fold.
        """
        x = (context - self.mean) / self.scale
        weights = np.empty((task.size, self.intercept.shape[1]))
        fit = np.full(task.size, len(self.effects) - 1) if fold is None else fold
        for f in np.unique(fit):
            rows = np.flatnonzero(fit == f)
            odds = context_odds(
                self.intercept[f], self.slope[f], x[rows], None if mask is None else mask[rows]
            )
            effects = self.effects[f]
            if taken is None:
                weights[rows] = effects.strength[task[rows]] * odds
            else:
                weights[rows] = effects.leave_one_out(task[rows], odds, taken[rows]) * odds
        return normalised(weights)


def context_odds(intercept: Array, slope: Array, x: Array, mask: Mask | None) -> Array:
    """Return e (n, K), up to a factor for each row."""
    logits = intercept + x @ slope
    if mask is not None:
        logits = np.where(mask, logits, -np.inf)
    return np.asarray(np.exp(logits - logits.max(axis=1, keepdims=True)))


def normalised(strength: Array) -> Array:
    """Return rows (n, K) divided by their sums; rows of zeros stay."""
    total = strength.sum(axis=1, keepdims=True)
    return np.asarray(strength / np.where(total > 0, total, 1.0))


def learn_logit(shares: Shares, sample: Sample, folds: int) -> ActionLogit:
    """Estimate the effects of contexts and tasks, by alternation between them.

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
    blocks = _LogitBlocks(shares, sample, (sample.context - mean) / scale)
    tuning = blocks.complete_tasks()
    log_c, ridge = float(np.log(shares.concentration)), _RIDGES[0]
    effects = blocks.effects(None, log_c)
    offset, fitted, last = effects.strength[sample.task], None, -np.inf
    for iteration in range(_ROUNDS):
        if iteration == 1 and mean.size:
            ridge = blocks.best_ridge(offset, folds)
        fitted = blocks.fit(offset, ridge, fitted)
        log_c = largest(partial(tuning.score, fitted), grid=6)
        effects = blocks.effects(fitted, log_c, effects.strength)
        offset, score = blocks.leave_one_out(fitted, effects)
        if score - last < _MIN_GAIN:
            break
        last = score
    assert fitted is not None
    fits = [blocks.fit(offset, ridge, fitted, without=f) for f in range(folds)]
    effects_by_fold = tuple(blocks.effects(coefficients, log_c, effects.strength) for coefficients in fits)
    K, stacked = shares.n_actions, np.array([*fits, fitted])
    slope = stacked[:, K:].reshape(folds + 1, -1, K)
    return ActionLogit(mean, scale, stacked[:, :K], slope, (*effects_by_fold, effects), ridge)


class _LogitBlocks:
    """The two blocks of the alternation on a sample: lambda of tasks, and coefficients (b, W) as one vector."""

    def __init__(self, shares: Shares, sample: Sample, x: Array) -> None:
        from scipy.sparse import csr_matrix

        self._shares, self._sample, self._x = shares, sample, x
        m, n = len(shares.counts), sample.task.size
        self._sum_by_task = csr_matrix((np.ones(n), (sample.task, np.arange(n))), shape=(m, n))
        self._sampled_rows = np.bincount(sample.task, minlength=m).astype(np.float64)
        self._complete = self._sampled_rows >= shares.rows

    def complete_tasks(self) -> "_LogitBlocks":
        """Return the blocks of some tasks with all their rows in the sample, on which the concentration is chosen."""
        names, first = np.unique(self._sample.task, return_index=True)
        names = names[np.argsort(first)]
        count = np.searchsorted(np.cumsum(self._sampled_rows[names]), _TUNED_ON)
        names = np.sort(names[: max(int(count), 1)])
        rows = np.flatnonzero(np.isin(self._sample.task, names))
        part = self._sample.rows(rows)
        part = replace(part, task=np.searchsorted(names, part.task))
        shares = self._shares
        return _LogitBlocks(
            replace(
                shares, counts=shares.counts[np.append(names, -1)], rows=shares.rows[np.append(names, -1)]
            ),
            part,
            self._x[rows],
        )

    def _odds(self, coefficients: Array | None) -> Array:
        sample, K = self._sample, self._shares.n_actions
        if coefficients is None:
            coefficients = np.zeros(K + K * self._x.shape[1])
        return context_odds(coefficients[:K], coefficients[K:].reshape(-1, K), self._x, sample.mask)

    def effects(self, coefficients: Array | None, log_c: float, start: Array | None = None) -> TaskEffects:
        """Return lambda at the fixed point; without coefficients, the shares of all tasks together."""
        c, shares, task = float(np.exp(log_c)), self._shares, self._sample.task
        strength = np.tile(shares.population, (len(shares.counts), 1)) if start is None else start
        numerator = shares.counts + c * shares.population
        odds = self._odds(coefficients)
        for _ in range(0 if coefficients is None else _STEPS):
            ratio = odds / np.einsum("nk,nk->n", strength[task], odds)[:, None]
            exposure = self._sum_by_task @ ratio
            if not self._complete.all():
                estimate = exposure + _PRIOR_ROWS * ratio.mean(axis=0)
                estimate *= (shares.rows / (strength * estimate).sum(axis=1))[:, None]
                exposure = np.where(self._complete[:, None], exposure, estimate)
            new = numerator / (exposure + c)
            new /= new.sum(axis=1, keepdims=True)  # holds at the fixed point
            change, strength = float(np.abs(new - strength).max()), new
            if change < _CLOSE:
                break
        return TaskEffects(shares.counts, c * shares.population, c, self._complete, strength)

    def leave_one_out(self, coefficients: Array, effects: TaskEffects) -> tuple[Array, float]:
        """Return lambda (n, K) of each row without itself, and the mean leave-one-out log score."""
        odds, action = self._odds(coefficients), self._sample.action
        strength = effects.leave_one_out(self._sample.task, odds, action)
        chance = normalised(strength * odds)[np.arange(action.size), action]
        return strength, float(np.log(chance).mean())

    def score(self, coefficients: Array, log_c: float) -> float:
        """Return the mean leave-one-out log score at a concentration."""
        return self.leave_one_out(coefficients, self.effects(coefficients, log_c))[1]

    def fit(
        self, offset: Array, ridge: float, start: Array | None, without: int = -1, most: int | None = None
    ) -> Array:
        """Return the coefficients at given lambda (n, K) of each row, fitted without one fold."""
        sample = self._sample
        rows = np.flatnonzero(sample.fold[:most] != without)
        part = sample.rows(rows)
        return _fit(offset[rows], self._x[rows], part.mask, part.action, ridge, start)

    def best_ridge(self, offset: Array, folds: int) -> float:
        """Return the ridge with the largest cross-validated log score in two folds."""
        K, scores = self._shares.n_actions, []
        for ridge in _RIDGES:
            total = 0.0
            for f in range(min(folds, 2)):
                fitted = self.fit(offset, ridge, None, without=f, most=_TUNED_ON)
                rows = np.flatnonzero(self._sample.fold[:_TUNED_ON] == f)
                part = self._sample.rows(rows)
                odds = context_odds(fitted[:K], fitted[K:].reshape(-1, K), self._x[rows], part.mask)
                chance = normalised(offset[rows] * odds)[np.arange(rows.size), part.action]
                total += float(np.log(chance).sum())
            scores.append(total)
        room = _SAME * min(self._sample.fold.size, _TUNED_ON)
        return _RIDGES[::-1][int(first_largest(scores[::-1], room=room))]  # the strongest of equal ones


def _fit(
    offset: Array, x: Array, mask: Mask | None, action: Codes, ridge: float, start: Array | None
) -> Array:
    """Return coefficients (b, W) of the multinomial logit with the offset log lambda; ridge on W, 1 on b."""
    n, K = offset.shape
    possible = offset > 0 if mask is None else mask & (offset > 0)
    base = np.where(possible, np.log(np.where(possible, offset, 1.0)), -np.inf)
    index, scale = np.arange(n), 1.0 / max(n, 1)
    penalty = np.concatenate([np.ones(K), np.full(x.shape[1] * K, ridge)])

    def loss(z: Array) -> tuple[float, Array]:
        eta = base + z[:K] + x @ z[K:].reshape(-1, K)
        eta -= eta.max(axis=1, keepdims=True)
        chance = np.exp(eta)
        total = chance.sum(axis=1, keepdims=True)
        value = float(np.log(total).sum() - eta[index, action].sum())
        chance /= total
        chance[index, action] -= 1.0
        slope = np.concatenate([chance.sum(axis=0), (x.T @ chance).ravel()])
        return scale * (value + 0.5 * float(penalty @ z**2)), scale * (slope + penalty * z)

    from scipy.optimize import minimize

    origin = np.zeros(penalty.size) if start is None else start
    options = {"maxiter": 300, "gtol": 1e-6, "ftol": 1e-10}
    return np.asarray(minimize(loss, origin, jac=True, method="L-BFGS-B", options=options).x)
