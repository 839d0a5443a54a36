"""Relative standard deviations of columns, and relative noise variances of actions, in the crossed prior.

Columns come in units of their own. In coefficients of columns that are centred and scaled by their standard deviation
over the rows of the log, theta = T'kappa, the covariances are diagonal,

    A = T' diag(exp 2 t_A) T s^2,  and L and M alike            noise  s^2 exp(w_a)

    t_Aj ~ N(g_A, TAU^2) around a common g_A,  exp g_A half-Cauchy         w_a ~ Cauchy(0, WIDTH)

so that few columns with few rows keep one standard deviation, and many rows may show others. A column without spread
(the intercept) has a g of its own: that an action is better says nothing of how its effect depends on contexts. So have
columns of metadata, of which L and M are zero (:class:`Pattern`). Both
are taken at their joint mode, unless the log is for one size of all columns, t_j = g in A, in L and in M. By Laplace's
method the log Bayes factor of own sizes against equal ones is the gain of log evidence from equal sizes to the mode,
and for each of A, L and M

    - sum_j [ (t_j - mean t)^2 / (2 TAU^2) + (1 - 1 / n) log(1 + TAU^2 I_j) / 2 ]
    + min(log h(d) + log(2 pi / (I_0 + 1)) / 2, 0)

over the n columns with spread, I_j = 2 N v_j^2 as below; d is the log size of the intercept less theirs, I_0 the
information on it, and h(d) = 2 d / (pi^2 sinh d) the density of the difference between logs of two half-Cauchy
variables. Where it is below 0, sizes are equal. The common standard deviations are integrated afterwards by
:mod:`mixture`. The slope of the evidence is that of the complete data, averaged (Fisher's identity): with C_j and k_j
the variance (at s = 1) and mean of one of N coefficients given the log, sums over the N of them,

    d log evidence / d t_j = sum (C_j + k_j^2 dof / q) exp(-2 t_j) - N

    d log evidence / d w_a = (sum of squared residuals dof / q + sum tr G C)_a / 2 - n_a / 2

with s^2 integrated, q its sum of squares and dof its degrees of freedom, residuals and G in units of exp w_a.
Of many tasks a part, spread evenly over their numbers of rows, tells relative sizes well enough.

Coefficients of different columns may be correlated, A = T' D_A R_A D_A T s^2 with D_A = diag(exp t_A), and L and M
alike. Each R is I unless the evidence is for correlations: with W = D^-1 S D^-1 the sum of N second moments of
standardised coefficients, averaged over the posterior, R = C C' and rows of C of length 1,

    d log evidence / d R = R^-1 (W - N R) R^-1 / 2        R ~ LKJ(2)

    log Bayes factor >= gain of log evidence + log det R at the mode  -  1/2 sum_{i<j} log(1 + 2 N v_i v_j / (3 + P))

for P columns, by Laplace's method, where an r_ij has variance 1 / (3 + P) a priori. With H_u = Z'V^-1 Z of the rows
Z of a unit, of covariance V, in standardised coefficients, the information on r_ij near I is the sum of H_ii H_jj +
H_ij^2, at most 2 N v_i v_j; v_i, the mean of H_ii, is the second moment of posterior means of column i over its
variance. The evidence has to be ten to one, and N v_i v_j a multiple of the prior's information: few rows want few
parameters.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import packed_size, unpack
from hieropo.errors import NumericalError
from hieropo.estimation.crossed.few_rows import FewRows
from hieropo.model.crossed.hierarchy import UNTOLD, CrossedHierarchy
from hieropo.model.crossed.posterior import SecondMoments, condition_crossed
from hieropo.model.crossed.turned import TurnedEvidence, pays
from hieropo.moments.in_shards import AnyMoments, MomentsInShards, totals
from hieropo.moments.spread import about_fit, in_unit_of_fit
from hieropo.moments.statistics import Moments

TAU = 0.5  # sd of the log standard deviations of columns around their common one
WIDTH = 0.1  # of the Cauchy law of log noise variances of actions
START = 0.3  # standard deviations in units of the noise, at first
_EQUAL = 1e-6  # difference of log sizes that counts as none
_CONSTANT = 1e-6  # sd of a column in units of its root mean square, below which it counts as constant
_LEAST = 1e-8  # noise variance that counts as none, as a share of the variance of rewards about one fit
_EVALUATIONS = 60
_RELATIVE, _NATS = 1e-7, 0.01  # a step that gains less log evidence ends a search: of its size, and in itself
_FARTHEST = 12.0  # |t|
_LOUDEST = UNTOLD  # times that a noise variance may be the common one, or the inverse
_TWO = 2.0  # rows of an action from which on they tell something of its noise
_FEW_ROWS = 0.01  # share of all rows that those of single-row actions may be, for their noise to be untold
_MOST_CORRELATED = 12  # columns up to which correlations are learned
_SHAPE = 2.0  # of the LKJ law of correlations
_INFORMED = 2.0  # information on a correlation in units of the prior's, from which on Laplace's method holds
_ODDS = 2.3  # log of the Bayes factor from which coefficients are correlated
_DIGITS = 30  # binary digits of sums by which tasks are sorted
_NEARLY = 0.99  # share of that bound, on logs, from which on noise is taken to be the same in all actions


class Pattern(NamedTuple):
    """Columns in which A, and L and M, are not zero.

    Attributes
    ----------
    action, task : (P,) array of bool
    """

    action: NDArray[np.bool_]
    task: NDArray[np.bool_]

    @classmethod
    def of(cls, unit_dim: int, features: int | None = None, *, common: bool = False) -> "Pattern":
        """All columns; or the ``features`` first ones, and A alone in those of metadata behind them.

        Metadata that are ``common`` have one coefficient for all actions, so that A is zero there, too.
        """
        task = np.arange(unit_dim) < (unit_dim if features is None else features)
        return cls(task if common else np.ones_like(task), task)

    @property
    def parts(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """Of A, L and M."""
        return self.action, self.task, self.task


class Scaling(NamedTuple):
    """Columns centred and scaled: theta = T'kappa.

    Attributes
    ----------
    transform : (p, p) array
        T.
    inverse : (p, p) array
        T^-1.
    constant : (p,) array of bool
        Columns without spread, such as an intercept.
    """

    transform: Array
    inverse: Array
    constant: NDArray[np.bool_]

    @classmethod
    def of(cls, moments: Moments) -> "Scaling":
        """Centre and scale the columns by their mean and standard deviation over all rows.

        Noise is that of a row of mean precision, so that the unit of precisions is free.
        A column without spread is scaled by its size, and centres nothing. Without such a column (an intercept) nothing
        is centred, since a shift of a column would not be a change of coefficients.
        """
        p = moments.unit_dim
        sums = unpack(moments.unit_sums.sum(axis=0)[None], p + 2)[0]
        count = sums[p + 1, p + 1] or 1.0
        mean, square = sums[:p, p + 1] / count, np.diagonal(sums)[:p] / count
        sd = np.sqrt(np.maximum(square - mean**2, 0.0))
        constant = sd <= _CONSTANT * np.sqrt(square)
        scale = np.where(constant, np.sqrt(square), sd)
        scale = np.where(scale > 0, scale, 1.0)
        transform = np.diag(1.0 / scale)
        ones = np.flatnonzero(constant & (mean != 0))
        if ones.size:
            first = ones[0]
            transform[~constant, first] -= (mean / (scale * mean[first]))[~constant]
        transform *= np.exp(-moments.log_precision.sum() / max(moments.n_rows, 1.0) / 2)
        return cls(transform, np.linalg.solve(transform, np.eye(p)).astype(np.float64), constant)

    def covariance(self, log_sds: Array, free: NDArray[np.bool_], factor: Array | None = None) -> Array:
        """Covariance T' D C C' D T of theta, D = diag(exp t), with 0 in columns that are not ``free``.

        ``factor`` is C, default I.
        """
        root = self.transform * np.where(free, np.exp(log_sds), 0.0)[:, None]
        if factor is not None:
            root = factor.T @ root
        return np.asarray(root.T @ root)


class Shapes(NamedTuple):
    """Covariances of theta where the common standard deviation is that of the noise, and noise variances.

    Attributes
    ----------
    action, level, interaction : (p, p) array
        A, L and M over a^2 s^2, l^2 s^2 and m^2 s^2.
    noise_ratio : (K,) array
        exp w_a.
    mode : (3 P + K,) array
        (t_A, t_L, t_M, w) at their joint mode, from which a search on similar rows starts; empty where not learned.
    """

    action: Array
    level: Array
    interaction: Array
    noise_ratio: Array
    mode: Array = np.zeros(0)

    @classmethod
    def equal(cls, moments: Moments, pattern: Pattern | None = None) -> "Shapes":
        """One standard deviation for all scaled columns, one noise variance for all actions."""
        scaling, zero = Scaling.of(moments), np.zeros(moments.unit_dim)
        parts = (pattern or Pattern.of(moments.unit_dim)).parts
        action, level, interaction = (scaling.covariance(zero, free) for free in parts)
        return cls(action, level, interaction, np.ones(moments.n_actions))


class TasksInOrder(NamedTuple):
    """Tasks that have rows, by their numbers of rows, from which parts are taken evenly.

    Attributes
    ----------
    moments : Moments or MomentsInShards
    units : int
        Observed units.
    rows : (t,) int array
        Rows of the tasks in the moments; the order of the moments does not matter.
    """

    moments: AnyMoments
    units: int
    rows: Codes

    @classmethod
    def of(cls, moments: AnyMoments) -> "TasksInOrder":
        """Sort the tasks by rows, then by squares of rewards, then by all sums; those with equal sums are alike."""
        column, ones = packed_size(moments.unit_dim + 1) - 1, np.ones(moments.n_actions)

        def of_rewards(some: Moments) -> Array:
            return to_digits(some.sums[:, :, column] @ ones)

        def of_all(some: Moments) -> Array:
            sums = some.sums.reshape(len(some), -1)
            return to_digits(sums @ np.random.default_rng(0).random(sums.shape[1]))

        if isinstance(moments, MomentsInShards):
            per_task = moments.rows_of_tasks()
            squares, combined = moments.of_tasks(of_rewards), moments.of_tasks(of_all)
            units = moments.observed_units
        else:
            per_task, squares, combined = moments.rows @ ones, of_rewards(moments), of_all(moments)
            units = int(np.count_nonzero(moments.rows))
        seen = np.flatnonzero(per_task)
        order = seen[np.lexsort((combined[seen], squares[seen], per_task[seen]))]
        return cls(moments, units, order)

    def part(self, units: int) -> AnyMoments:
        """Return the moments of some tasks with about ``units`` observed units; of all tasks from half of them on."""
        if 2 * units >= self.units:
            return self.moments
        t = self.rows.size
        count = max(int(t * units / self.units), 1)
        return self.moments.at(np.sort(self.rows[((np.arange(count) + 0.5) * t / count).astype(np.int64)]))


def to_digits(values: Array) -> Array:
    """Return values (n,) to 30 binary digits, so that those that are equal but for rounding are equal."""
    digits, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(np.ldexp(digits, _DIGITS)), exponent - _DIGITS))


def part_of_tasks(moments: AnyMoments, units: int) -> AnyMoments:
    """Return the moments of some tasks with about ``units`` observed units, spread evenly over their numbers of rows.

    All tasks where they have no more than twice as many. The order of the tasks does not matter.
    """
    return TasksInOrder.of(moments).part(units)


def with_untold_noise(shapes: Shapes, moments: AnyMoments) -> Shapes:
    """Return the shapes with the largest noise that is possible for actions of one row, where these are few.

    One row tells neither the noise of its action nor, therefore, its effect: the mode of the noise is that of all
    other actions, but the mean of its law does not exist. With the noise of the others one reward far from theirs would
    make its action the choice of all tasks.
    """
    rows = totals(moments).rows.sum(axis=0)
    single = (rows > 0) & (rows < _TWO)
    if rows[single].sum() > _FEW_ROWS * rows.sum():
        return shapes
    return shapes._replace(noise_ratio=np.where(single, UNTOLD, shapes.noise_ratio))


def learn_shapes(moments: Moments, pattern: Pattern | None = None, start: Array | None = None) -> Shapes:
    """Return relative variances of columns and of the noise of actions, and correlations, at their mode.

    ``start`` is the mode of a log that shares most rows, from which the search starts.

    Raises
    ------
    NumericalError
        As :func:`condition_crossed`.
    """
    moments = in_unit_of_fit(moments)
    p, most = moments.unit_dim, np.log(_LOUDEST)
    scaling, columns = Scaling.of(moments), pattern or Pattern.of(p)
    rows = _few_rows(moments, scaling, columns)
    mode = _mode(moments, scaling, columns, rows, most, start)
    if np.abs(mode[3 * p :]).max() > _NEARLY * most:  # rewards of some actions are as good as equal
        mode = _mode(moments, scaling, columns, rows, 0.0)
    log_noise = mode[3 * p :]
    log_sds = _equal_or_own(moments, scaling, columns, rows, mode)
    factors = _correlations(moments, scaling, columns, log_sds, log_noise)
    log_noise = log_noise - np.median(log_noise)
    action, level, interaction = (
        scaling.covariance(t - t[free].mean(), free, factor)
        for t, free, factor in zip(log_sds, columns.parts, factors, strict=True)
    )
    return Shapes(action, level, interaction, np.exp(log_noise), mode)


Factors = tuple[Array, Array, Array]


def _correlations(
    moments: Moments, scaling: Scaling, pattern: Pattern, log_sds: list[Array], log_noise: Array
) -> Factors:
    """Return C of A, L and M: I, or the mode of the correlations where the evidence is for them."""
    p = moments.unit_dim
    action = level = interaction = np.eye(p)
    if _some_noise(moments) and 1 < p <= _MOST_CORRELATED and not FewRows.pays(moments):
        search = _CorrelationSearch(moments, scaling, pattern, log_sds, log_noise)
        factors = action, level, interaction
        start = search.evidence(factors, shares=True)
        for part in (2, 1, 0):  # most coefficients first
            learned = search.learned(part, factors, start)
            if learned is not factors:
                factors, start = learned, search.evidence(learned, shares=True)
        return factors
    return action, level, interaction


class _CorrelationSearch(NamedTuple):
    """Correlations of one part of the prior, standard deviations and noise variances kept."""

    moments: Moments
    scaling: Scaling
    pattern: Pattern
    log_sds: list[Array]
    log_noise: Array

    def learned(self, part: int, factors: Factors, start: "_Evidence") -> Factors:
        """Return the factors with C of A (part 0), L or M at its mode; unchanged where the Bayes factor is below 10.

        ``start`` is the evidence of ``factors``, with shares.
        """
        from scipy.optimize import minimize

        free = np.flatnonzero(self.pattern.parts[part])
        i, j = np.tril_indices(free.size, -1)
        if not i.size:
            return factors
        share = np.clip(start.shares[part][free], 0.0, 1.0)
        prior = 2 * _SHAPE - 1 + free.size
        information = start.counts[part] * share[i] * share[j]
        if information.mean() < _INFORMED * prior:
            return factors
        information *= 2.0
        least = _ODDS + 0.5 * float(np.log1p(information / prior).sum())
        score = start.squares[part][np.ix_(free, free)][i, j]
        if (
            0.5 * float((score**2 / (information + 1.0)).sum()) <= 0.5 * least
        ):  # the gain that a Newton step expects
            return factors

        def negative(z: Array) -> tuple[float, Array]:
            root, length = _root_of_correlations(z, free.size)
            evidence = self.evidence(_with_part(factors, part, root, free))
            square = evidence.squares[part][np.ix_(free, free)]
            diagonal = np.diagonal(root)
            value = evidence.value - start.value + 2 * (_SHAPE - 1) * float(np.log(diagonal).sum())
            slope = _along_root(root, square, evidence.counts[part]) + 2 * (_SHAPE - 1) * np.diag(
                1 / diagonal
            )
            slope -= root * (slope * root).sum(axis=1)[:, None]
            return -value, -(slope / length[:, None])[i, j]

        solved = minimize(
            negative, np.zeros(i.size), jac=True, method="L-BFGS-B",
            options={"maxfun": _EVALUATIONS, "ftol": 1e-7},
        )  # fmt: skip
        if -solved.fun <= least:
            return factors
        return _with_part(factors, part, _root_of_correlations(solved.x, free.size)[0], free)

    def evidence(self, factors: Factors, *, shares: bool = False) -> "_Evidence":
        return _Evidence.of(
            self.moments, self.scaling, self.pattern, self.log_sds, self.log_noise, factors, shares=shares
        )


def _root_of_correlations(z: Array, n: int) -> tuple[Array, Array]:
    """Return C, the lower triangle (I + z) with rows of length 1, and the lengths before."""
    lower = np.eye(n)
    lower[np.tril_indices(n, -1)] = z
    length = np.sqrt((lower**2).sum(axis=1))
    return lower / length[:, None], length


def _with_part(factors: Factors, part: int, root: Array, free: Codes) -> Factors:
    """Return the factors with C of one part in place; I in columns that are not ``free``."""
    whole = np.eye(len(factors[part]))
    whole[np.ix_(free, free)] = root
    action, level, interaction = (whole if k == part else factor for k, factor in enumerate(factors))
    return action, level, interaction


def _along_root(root: Array, square: Array, count: float) -> Array:
    """Slope of the log evidence along C: R^-1 (W - N R) R^-1 C = C^-T (C^-1 W C^-T - N I)."""
    from scipy.linalg import solve_triangular

    half = solve_triangular(root, square, lower=True)
    white = solve_triangular(root, half.T, lower=True) - count * np.eye(len(root))
    return np.asarray(solve_triangular(root, white, lower=True, trans="T"))


def _mode(
    moments: Moments,
    scaling: Scaling,
    pattern: Pattern,
    rows: FewRows | None,
    farthest: float,
    near: Array | None = None,
) -> Array:
    """Return the joint mode of (t_A, t_L, t_M, w) with w from -``farthest`` to ``farthest``.

    With v_j the share of the second moment of N coefficients of a column that their posterior means have, the
    information on t_j is about 2 N v_j^2. A search that starts ``near`` the mode, and one of few rows of many columns,
    take their steps in units of that. Else v = 1: from afar, larger steps end in worse modes of logs that tell little.
    """
    from scipy.optimize import minimize

    p, K = moments.unit_dim, moments.n_actions
    start = np.append(np.full(3 * p, np.log(START)), np.zeros(K))
    most = np.append(np.full(3 * p, _FARTHEST), np.full(K, farthest))
    near = None if near is None or near.size != start.size else np.clip(near, -most, most)
    if near is not None:
        start = near
    counts = _counts(moments)
    scaled = near is not None or rows is not None
    share = _shares(moments, scaling, pattern, start, rows) if scaled else np.ones(3 * p)
    information = 2.0 * counts * np.square(share) + 1.0 / TAU**2
    unit = 1.0 / np.sqrt(np.append(information, moments.rows.sum(axis=0) / 2 + 1.0 / WIDTH))
    limits = np.stack([(-most - start) / unit, (most - start) / unit], axis=1)
    limits[: 3 * p][~np.concatenate(pattern.parts)] = 0.0
    zero = _zero(moments)

    def negative(y: Array) -> tuple[float, Array]:
        value, slope = _negative(moments, scaling, pattern, start + unit * y, rows)
        return value - zero, unit * slope

    if farthest == 0.0:
        limits[3 * p :] = 0.0
    solved = minimize(
        negative, np.zeros(start.size), jac=True, method="L-BFGS-B", bounds=limits,
        options={"maxfun": _EVALUATIONS, "ftol": _least_gain(moments), "gtol": 1e-3},
    )  # fmt: skip
    return np.asarray(start + unit * solved.x)


def _least_gain(moments: Moments) -> float:
    """Return the gain of a step that ends a search, relative to a log evidence of the order of the number of rows.

    A relative gain alone would be nats of 10 million rows, and end a search far from the mode: one nat is 1.4 standard
    errors of a size.
    """
    return min(_RELATIVE, _NATS / max(moments.n_rows, 1.0))


def _few_rows(moments: Moments, scaling: Scaling, pattern: Pattern) -> FewRows | None:
    """Return roots of the rows where they pay; they know no columns of metadata."""
    every_column = all(free.all() for free in pattern.parts)
    if not (_some_noise(moments) and every_column and FewRows.pays(moments)):
        return None
    return FewRows.of(moments, scaling.transform)


def _counts(moments: Moments) -> Array:
    """Return N (3 P,) of the columns of A, L and M."""
    tasks, units = np.count_nonzero(moments.rows.any(axis=1)), np.count_nonzero(moments.rows)
    return np.repeat(np.array([moments.n_actions, tasks, units], dtype=np.float64), moments.unit_dim)


def _shares(moments: Moments, scaling: Scaling, pattern: Pattern, x: Array, rows: FewRows | None) -> Array:
    """Return v (3 P,) of the columns of A, L and M at (t_A, t_L, t_M, w)."""
    *log_sds, log_noise = _split(x, moments.unit_dim)
    if rows is None:
        evidence = _Evidence.of(moments, scaling, pattern, log_sds, log_noise, shares=True)
        share = np.concatenate(evidence.shares)
    else:
        share = -rows.variance_slope(log_sds, log_noise) / _counts(moments)
    return np.clip(np.where(np.concatenate(pattern.parts), share, 0.0), 0.0, 1.0)


def _equal_or_own(
    moments: Moments, scaling: Scaling, pattern: Pattern, rows: FewRows | None, mode: Array
) -> list[Array]:
    """Return t_A, t_L and t_M: those of the mode, or equal ones where the log is not for sizes of their own.

    Sizes of logs with metadata, and of one column, are those of the mode.
    """
    from scipy.optimize import minimize

    p = moments.unit_dim
    own = list(_split(mode, p)[:3])
    if p == 1 or not pattern.task.all() or not _some_noise(moments):
        return own
    log_noise, of_mode = mode[3 * p :], _log_evidence(moments, scaling, pattern, mode, rows)[0]
    information = 2.0 * _counts(moments) * np.square(_shares(moments, scaling, pattern, mode, rows))
    information = information.reshape(3, p)
    start = np.array([t[~scaling.constant].mean() if not scaling.constant.all() else t.mean() for t in own])
    unit = 1.0 / np.sqrt(information.sum(axis=1) + 1.0)

    def gain(
        y: Array,
    ) -> tuple[float, Array]:  # of the mode: a search stops at a relative change of this alone
        at = np.append(np.repeat(start + unit * y, p), log_noise)
        value, slope = _log_evidence(moments, scaling, pattern, at, rows)
        return of_mode - value, -unit * slope[: 3 * p].reshape(3, p).sum(axis=1)

    equal = minimize(
        gain, np.zeros(3), jac=True, method="L-BFGS-B",
        bounds=np.stack([(-_FARTHEST - start) / unit, (_FARTHEST - start) / unit], axis=1),
        options={"maxfun": _EVALUATIONS, "ftol": 1e-4, "gtol": 1e-2},
    )  # fmt: skip
    odds = float(equal.fun) + sum(
        _log_odds_of_own(t, share, scaling.constant) for t, share in zip(own, information, strict=True)
    )
    return own if odds > 0 else [np.full(p, size) for size in start + unit * equal.x]


def _log_odds_of_own(t: Array, information: Array, constant: NDArray[np.bool_]) -> float:
    """Return what the prior and the width of the likelihood add to the gain of log evidence, for A, L or M."""
    others = t[~constant]
    away = others - others.mean() if others.size else others
    width = float(np.log1p(TAU**2 * information[~constant]).sum()) * (1 - 1 / max(others.size, 1))
    odds = -float(away @ away) / (2 * TAU**2) - 0.5 * width
    if others.size and constant.any():
        d = abs(float(t[constant].mean() - others.mean()))
        density = np.log(2 / np.pi**2) + (np.log(d / np.sinh(d)) if d > _EQUAL else 0.0)
        volume = 0.5 * np.log(2 * np.pi / (1.0 + float(information[constant].sum())))
        odds += min(float(density + volume), 0.0)
    return odds


def _some_noise(moments: Moments) -> bool:
    """Return True if rewards vary, so that they may have noise."""
    return bool(least_noise(moments) > np.finfo(np.float64).tiny)


def least_noise(moments: AnyMoments) -> float:
    """Return a noise variance beside which that of a log counts as none, wherever rewards have their zero."""
    return _LEAST * about_fit(totals(moments))


def _zero(moments: AnyMoments) -> float:
    """Return minus a log evidence from which a search measures its own, so that where it stops depends on no unit.

    Rewards in another unit, and another unit of precisions, move all log evidences by the same number, and a search
    stops at a relative change.
    """
    total = totals(moments)
    of_squares = 0.5 * (moments.n_rows - moments.unit_dim) * float(np.log(about_fit(total)))
    return of_squares - 0.5 * float(np.sum(total.log_precision))


def refuse_explained(square: float) -> None:
    """Raise where nothing is left of the rewards that noise could be learned from."""
    if not square > np.finfo(np.float64).tiny:
        raise NumericalError(
            "The coefficients explain all rewards exactly, so that the variance of the noise cannot be learned. Are "
            "all rewards of the log equal? If not, give a hierarchy with a known noise variance: "
            "known=CrossedHierarchy(...)."
        )


def _split(x: Array, p: int) -> tuple[Array, Array, Array, Array]:
    return x[:p], x[p : 2 * p], x[2 * p : 3 * p], x[3 * p :]


def _negative(
    moments: Moments, scaling: Scaling, pattern: Pattern, x: Array, rows: FewRows | None = None
) -> tuple[float, Array]:
    """Minus the log posterior density of (t_A, t_L, t_M, w), and its slope; by ``rows`` where they are given."""
    p = moments.unit_dim
    *log_sds, log_noise = _split(x, p)
    value, slope = _log_evidence(moments, scaling, pattern, x, rows)
    slope[: 3 * p][~np.concatenate(pattern.parts)] = 0.0
    kinds = scaling.constant & pattern.task, ~scaling.constant & pattern.task, ~pattern.task
    for k, (t, free) in enumerate(zip(log_sds, pattern.parts, strict=True)):
        for group in (kind & free for kind in kinds):
            if group.any():
                more, along = _log_prior(t[group])
                value += more
                slope[k * p : k * p + p][group] += along
    value -= float(np.log1p((log_noise / WIDTH) ** 2).sum())
    slope[3 * p :] -= 2 * log_noise / (WIDTH**2 + log_noise**2)
    return -float(value), -slope


def _log_evidence(
    moments: Moments, scaling: Scaling, pattern: Pattern, x: Array, rows: FewRows | None
) -> tuple[float, Array]:
    """Log evidence of (t_A, t_L, t_M, w), and its slope; by ``rows`` where they are given."""
    *log_sds, log_noise = _split(x, moments.unit_dim)
    if rows is not None:
        return rows.evidence(log_sds, log_noise, moments.n_rows - moments.unit_dim, least_noise(moments))
    evidence = _Evidence.of(moments, scaling, pattern, log_sds, log_noise)
    return evidence.value, evidence.slope()


class _Evidence(NamedTuple):
    """Log evidence with s^2 integrated, and what its slope is made of.

    Attributes
    ----------
    value : float
    squares : three (p, p) arrays
        W of A, L and M.
    counts : three float
        N.
    shares : three (p,) arrays
        v; empty unless asked for.
    noise : (K,) array
        Slope along w.
    """

    value: float
    squares: tuple[Array, Array, Array]
    counts: tuple[float, float, float]
    shares: tuple[Array, ...]
    noise: Array

    @classmethod
    def of(
        cls,
        moments: Moments,
        scaling: Scaling,
        pattern: Pattern,
        log_sds: list[Array],
        log_noise: Array,
        factors: Factors | None = None,
        *,
        shares: bool = False,
    ) -> "_Evidence":
        action, level, interaction = (
            scaling.covariance(t, free, None if factors is None else factors[k])
            for k, (t, free) in enumerate(zip(log_sds, pattern.parts, strict=True))
        )
        condition = TurnedEvidence if pays(moments) else condition_crossed
        posterior = condition(moments, CrossedHierarchy(action, level, interaction, np.exp(log_noise)))
        dof = moments.n_rows - moments.unit_dim
        square = max(posterior.square, 0.0) + dof * least_noise(moments)
        refuse_explained(square)
        value = posterior.log_evidence + posterior.square / 2 - dof / 2 * np.log(square)
        second = posterior.second_moments(dof / square)
        squares = _standardised(second, scaling, log_sds)
        counts = float(moments.n_actions), float(second.tasks), float(second.units)
        share: tuple[Array, ...] = ()
        if shares:
            uncertain = _standardised(posterior.second_moments(0.0), scaling, log_sds)
            share = tuple(np.diagonal(w - c) / n for w, c, n in zip(squares, uncertain, counts, strict=True))
        noise = 0.5 * (second.noise - moments.rows.sum(axis=0))
        return cls(float(value), squares, counts, share, noise)

    def slope(self) -> Array:
        """Slope along (t_A, t_L, t_M, w) where nothing is correlated."""
        parts = [np.diagonal(square) - n for square, n in zip(self.squares, self.counts, strict=True)]
        return np.concatenate([*parts, self.noise])


def _standardised(
    second: SecondMoments, scaling: Scaling, log_sds: list[Array]
) -> tuple[Array, Array, Array]:
    """Sums W of second moments of coefficients over their standard deviations."""
    action, level, interaction = (
        (scaling.inverse.T @ total @ scaling.inverse) * np.exp(-t[:, None] - t)
        for t, total in zip(log_sds, (second.action, second.level, second.interaction), strict=True)
    )
    return action, level, interaction


def _log_prior(t: Array) -> tuple[float, Array]:
    """Log density of log standard deviations (p,) around a common g, at the best g, and its slope."""
    p, centre, variance = t.size, float(t.mean()), TAU**2 / t.size
    g = centre
    for _ in range(50):  # maximise  -(g - centre)^2 / (2 variance) + g - log(1 + exp 2 g)
        share = 1.0 / (1.0 + np.exp(-2.0 * g))
        slope = -(g - centre) / variance + 1.0 - 2.0 * share
        step = slope / (1.0 / variance + 4.0 * share * (1.0 - share))
        g += float(step)
        if abs(step) < 1e-12:
            break
    away = t - centre
    value = (
        -float(away @ away) / (2 * TAU**2) - (g - centre) ** 2 / (2 * variance) + g - np.logaddexp(0.0, 2 * g)
    )
    return float(value), -away / TAU**2 + (g - centre) / (variance * p)
