"""Rows by period: sums of each unit in each stretch of time, and the moments of rows whose coefficients moved.

Interactions of a unit (task s, action a), and the level of a task, walk from the first period to the end of the log:

    r = phi' (c_a + gamma_sa(t)) + u_s(t) + e        e ~ N(0, sigma_a^2), c_a = beta + alpha_a
    Cov(gamma_sa(t), gamma_sa(t')) = M_0 + kappa sigma^2 W min(t, t')
    Cov(u_s(t), u_s(t')) = l^2 + eta sigma^2 min(t, t')

or, where interactions fade at the rate lambda, Cov(gamma_sa(t), gamma_sa(t')) = exp(-lambda |t - t'|) M_0,

with t = 0 in the first period; a period counts as its mean time. A policy acts at the end, t = E. Given c_a and u_s the
rows of a unit are as informative about gamma_sa(E) as exp(-1/2 (g' J g - 2 g' h + c)): a filter over the periods
gives the law of gamma_sa(E) given them, from which its prior N(0, M_0 + kappa sigma^2 W E) is divided out. J, h and c,
moved by c_a + u_s, are the sums of rows at the end of the log that tell the same, and take the place of the sums.

c_a is taken as a fit without drift has it, and u_s(t) as its mean given the rows of the task. An error of u_s moves all
actions of a task alike. Rewards are taken less u_s(t) - u_s(E). Where levels move (eta > 0), errors of u_s(t) reach the
differences of actions that were taken at different times: sums are multiplied by f_sa <= 1, so that the information of
a unit about its difference from the others of its task is, in trace, that of the system with u_s(t) integrated out.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from hieropo._kernels import backend
from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import pack, packed_size, triangle, unpack
from hieropo.moments.statistics import Moments

_PIECE = 2**20  # doubles of one array while tasks are worked on
_RIDGE = 1e-9  # of the largest eigenvalue, below which information is none


@dataclass(frozen=True, slots=True, eq=False)
class PeriodSums:
    """Sums of the rows of each unit of some moments, period by period.

    Attributes
    ----------
    sums : (m, K, T, q) array
        Packed sums of z = (phi, r - o' phi, 1), as :class:`Moments` have them.
    times : (T,) array
        Mean time of the rows of each period, rising.
    end : float
        Time of the last row.
    dim : int
        p.
    unit : str
        That of times: "" for numbers, else as numpy has it, such as "us".
    """

    sums: Array
    times: Array
    end: float
    dim: int
    unit: str = ""

    @property
    def since(self) -> Array:
        """Time (T,) from the first period to each."""
        return np.asarray(self.times - self.times[0])

    @property
    def span(self) -> float:
        """Time E from the first period to the end."""
        return float(self.end - self.times[0])

    @property
    def rows(self) -> Array:
        """Rows (T,) of each period, where they have no precisions."""
        return np.asarray(self.sums[..., -1].sum(axis=(0, 1)))

    def at(self, tasks: Codes | slice) -> Self:
        """Return the sums of some tasks."""
        return replace(self, sums=self.sums[tasks])

    def less(self, coefficients: Array) -> Self:
        """Return the sums for rewards less phi' c of their action and period, c (K, T, p) or (K, 1, p)."""
        p, c = self.dim, np.broadcast_to(coefficients, (*self.sums.shape[1:3], self.dim))
        at = unpack(np.arange(packed_size(p + 2), dtype=np.float64), p + 2).astype(
            np.int64
        )  # places of z z' among the packed sums
        sums = self.sums.copy()
        cross = sums[..., at[:p, p]]
        fits = np.einsum("mktij,ktj->mkti", sums[..., at[:p, :p]], c)
        sums[..., at[:p, p]] = cross - fits
        sums[..., at[p, p]] += ((fits - 2.0 * cross) * c).sum(axis=-1)
        sums[..., at[p, p + 1]] -= (sums[..., at[:p, p + 1]] * c).sum(axis=-1)
        return replace(self, sums=sums)

    def together(self, index: Codes) -> Self:
        """Return the sums of fewer periods; ``index`` (T,) is the one each is in, from 0 by 1."""
        first = np.flatnonzero(np.diff(index, prepend=-1))
        if first.size == index.size:
            return self
        rows = self.rows
        times = np.add.reduceat(rows * self.times, first) / np.add.reduceat(rows, first)
        return replace(self, sums=np.add.reduceat(self.sums, first, axis=2), times=in_order(times, self.end))

    def whitened(self, shared: float) -> tuple[Self, Array]:
        """Return the sums of independent rows that are as informative as rows that share a part of their error.

        The rows of a unit and period share an error of the variance ``shared``, in units of their noise. The second
        value are the log determinants (m, K, T) of I + shared 1 1'.
        """
        if shared <= 0.0:
            return self, np.zeros(self.sums.shape[:3])
        ones = self.sums[..., -(self.dim + 2) :]
        i, j = triangle(self.dim + 2)
        spread = 1.0 + shared * ones[..., -1]
        sums = self.sums - (shared / spread)[..., None] * ones[..., i] * ones[..., j]
        return replace(self, sums=sums), np.log(spread)

    def times_precision(self, precision: Array) -> Self:
        """Return the sums of rows of the precisions (m,) of their tasks."""
        if (precision == 1.0).all():
            return self
        return replace(self, sums=self.sums * precision[:, None, None, None])

    def pieces(self, *, paths: bool = False) -> list[slice]:
        """Return slices of tasks that are worked on together; ``paths`` as :meth:`UnitFactors.at_start` has it."""
        m, K, T = self.sums.shape[:3]
        columns = self.dim * T if paths else T
        step = max(int(_PIECE / (K * (columns + 1 + self.dim) ** 2)), 1)
        return [slice(first, min(first + step, m)) for first in range(0, m, step)]


def in_order(times: Array, end: float) -> Array:
    """Return mean times (T,) of periods that do not fall and are not after the end, where rounding made them so."""
    return np.asarray(np.minimum(np.maximum.accumulate(times), end))


class _Columns(NamedTuple):
    """Columns that a filter carries beside the reward, in each period or in all.

    They are ``width`` of z = (phi, r, 1), from ``first`` on.
    """

    width: int
    first: int
    by_period: bool = True

    def as_codes(self) -> Codes:
        """Return the three as one array."""
        return np.array([self.width, self.first, self.by_period], dtype=np.int64)


class UnitFactors(NamedTuple):
    """Information of the rows of units about their coefficients at one end of the log, the walk integrated out.

    Column 0 of ``scores`` and ``products`` is the reward. The next C are the levels of the T periods; or the level of
    all periods, where levels do not move; or the p features in each of the T periods, or in all together.

    Attributes
    ----------
    information : (m, K, p, p) array
    scores : (m, K, p, 1 + C) array
    products : (m, K, 1 + C, 1 + C) array
    log_det : (m, K) array
        Log determinant of the covariance of the rows over that of independent rows, given the coefficients.
    """

    information: Array
    scores: Array
    products: Array
    log_det: Array

    @classmethod
    def at_start(
        cls, periods: PeriodSums, noise_ratio: Array, walk: Array, *, paths: bool = False, fading: float = 0.0
    ) -> Self:
        """Return the information about the coefficients in the first period, by a filter from the end.

        Parameters
        ----------
        periods : PeriodSums
        noise_ratio : (K, T) array
            Noise variances of rows over sigma^2.
        walk : (p, p) array
            A root of kappa W; where coefficients fade, of the covariance to which they tend.
        paths : bool
            True for the features in each period in place of the levels.
        fading : float
            The rate at which coefficients return to 0; 0 for a walk. Above 0 the features of all periods together are
            in the place of the levels.
        """
        order, p = np.arange(len(periods.times))[::-1], periods.dim
        columns = _Columns(p, 0, by_period=fading <= 0.0) if paths or fading > 0.0 else _Columns(1, p + 1)
        gaps = -np.diff(periods.since[order], append=0.0)
        kept, variances = _steps(gaps, fading)
        moves = np.stack([variances, np.ones(gaps.size), kept], axis=1)
        return cls._filtered(periods, order, moves, noise_ratio, walk, None, columns)

    @classmethod
    def at_end(
        cls,
        periods: PeriodSums,
        noise_ratio: Array,
        walk: Array,
        start: Array,
        center: Array,
        *,
        one_level: bool = False,
        fading: float = 0.0,
    ) -> Self:
        """Return the information about the changes of coefficients at the end from ``center``.

        They are ~ N(0, ``start``) in the first period. Parameters are those of :meth:`at_start`, and

        start : (p, p) array
            M_0 over sigma^2, regular.
        center : (K, p) array
            c_a; column 0 is the reward less phi' c_a.
        one_level : bool
            True where levels do not move.
        """
        order = np.arange(len(periods.times))
        gaps = np.diff(periods.times, append=periods.end)
        columns = _Columns(1, periods.dim + 1, by_period=not one_level)
        if fading > 0.0:
            periods, center = periods.less(center[:, None]), np.zeros_like(center)
        prior = regular_inverse(start), center
        kept, variances = _steps(gaps, fading)
        moves = np.stack([variances, 1.0 / kept, np.ones(gaps.size)], axis=1)
        factors = cls._filtered(periods, order, moves, noise_ratio, walk, prior, columns).about(center)
        at_end = prior_at_end(start, walk, periods.span, fading)
        log_det = np.linalg.slogdet(start)[1] - np.linalg.slogdet(at_end)[1]
        information = factors.information - regular_inverse(at_end)
        empty = ~periods.sums.any(axis=(2, 3))
        information[empty] = 0.0
        return factors._replace(
            information=information, log_det=np.where(empty, 0.0, factors.log_det + log_det)
        )

    @classmethod
    def _filtered(
        cls,
        periods: PeriodSums,
        order: Codes,
        moves: Array,
        noise_ratio: Array,
        walk: Array,
        prior: tuple[Array, Array] | None,
        columns: "_Columns",
    ) -> Self:
        """Filter the periods in some order; after each, coefficients move, as ``filter_units`` has it.

        ``prior`` is the information (p, p) of coefficients before the first, and their means (K, p).
        """
        p, (m, K, T, q) = periods.dim, periods.sums.shape
        C, units = columns.width * (T if columns.by_period else 1), m * K
        information, scores = np.zeros((units, p, p)), np.zeros((units, p, 1 + C))
        products, log_det = np.zeros((units, 1 + C, 1 + C)), np.zeros(units)
        if prior is not None:
            score = prior[1] @ prior[0]
            information += prior[0]
            scores[:, :, 0] = np.tile(score, (m, 1))
            products[:, 0, 0] = np.tile((score * prior[1]).sum(axis=1), m)
        backend.periods(periods.sums.size).filter_units(
            np.ascontiguousarray(periods.sums).reshape(units, T, q), np.ascontiguousarray(noise_ratio),
            np.ascontiguousarray(order), moves, np.ascontiguousarray(walk), columns.as_codes(),
            information, scores, products, log_det,
        )  # fmt: skip
        shape = m, K
        return cls(
            information.reshape(*shape, p, p), scores.reshape(*shape, p, 1 + C),
            products.reshape(*shape, 1 + C, 1 + C), log_det.reshape(shape),
        )  # fmt: skip

    def about(self, center: Array) -> Self:
        """Return the same about the coefficients less ``center`` (K, p), and rewards less phi' c."""
        fitted = (self.information @ center[..., None])[..., 0]
        along = np.einsum("kp,mkpc->mkc", center, self.scores)
        scores, products = self.scores.copy(), self.products.copy()
        scores[..., 0] -= fitted
        products[..., 0, :] -= along
        products[..., :, 0] -= along
        products[..., 0, 0] += (fitted * center).sum(axis=-1)
        return self._replace(scores=scores, products=products)

    def less(self, level: Array) -> Self:
        """Return the same for rewards less the levels (m, T) of their tasks and periods."""
        T = level.shape[1]
        change = np.zeros((len(level), 1, 1 + T, 1 + T)) + np.eye(1 + T)
        change[:, :, 1:, 0] = -level[:, None]
        products = change.swapaxes(2, 3) @ self.products @ change
        return self._replace(scores=self.scores @ change, products=products)


def _steps(gaps: Array, fading: float) -> tuple[Array, Array]:
    """Return the share that is left of coefficients after some times (T,), and what they gain of a covariance."""
    if fading <= 0.0:
        return np.ones(gaps.size), gaps
    return np.exp(-fading * gaps), -np.expm1(-2.0 * fading * gaps)


def prior_at_end(start: Array, walk: Array, span: float, fading: float) -> Array:
    """Return the covariance (p, p), ``span`` after the first period, of coefficients of ``start`` there."""
    kept, variance = _steps(np.array([span]), fading)
    return np.asarray(kept[0] ** 2 * start + variance[0] * walk @ walk.T)


class TaskSystems(NamedTuple):
    """Information about all coefficients of tasks, walks of units and of levels integrated out.

    Attributes
    ----------
    information : (m, K p, K p) array
    score : (m, K p) array
    square : (m,) array
    log_det : (m,) array
    """

    information: Array
    score: Array
    square: Array
    log_det: Array

    @classmethod
    def of(cls, factors: UnitFactors, root: Array | None) -> Self:
        """Integrate the levels out, whose covariance, along the columns of the factors, is that of a root (C, r)."""
        m, K, p, columns = factors.scores.shape
        products = factors.products.sum(axis=1)
        blocks, actions = np.zeros((m, K, p, K, p)), np.arange(K)
        blocks[:, actions, :, actions] = factors.information.swapaxes(0, 1)
        information = blocks.reshape(m, K * p, K * p)
        scores = factors.scores.reshape(m, K * p, columns)
        square, log_det = products[:, 0, 0].copy(), factors.log_det.sum(axis=1)
        if root is None:
            return cls(information, scores[:, :, 0], square, log_det)
        spread = np.eye(root.shape[1]) + root.T @ products[:, 1:, 1:] @ root
        along = np.concatenate(
            [root.T @ products[:, 1:, :1], root.T @ scores[:, :, 1:].swapaxes(1, 2)], axis=2
        )
        cross = along.swapaxes(1, 2) @ np.linalg.solve(spread, along)
        information -= cross[:, 1:, 1:]
        score = scores[:, :, 0] - cross[:, 1:, 0]
        return cls(information, score, square - cross[:, 0, 0], log_det + np.linalg.slogdet(spread)[1])


def walk_root(since: Array, rate: float) -> Array:
    """Return R (T, T) with R R' = rate min(t, t') for the rising times t of ``since``."""
    return np.asarray(np.tril(np.sqrt(rate * np.diff(since, prepend=0.0)) * np.ones((since.size, 1))))


def level_root(since: Array, eta: float, shared: float) -> Array:
    """Return a root (T, r) of the covariance of levels that gain ``eta`` in one unit of time from ``since`` = 0 on.

    In each period they have, besides, an independent part of the variance ``shared``.
    """
    walk = walk_root(since, eta)
    if shared <= 0.0:
        return walk
    own = np.sqrt(shared) * np.eye(since.size)
    return own if eta <= 0.0 else np.concatenate([walk, own], axis=1)


class Shared(NamedTuple):
    """Variances that rows of one period have in common, in units of the noise: a cause that no column names.

    Attributes
    ----------
    unit : float
        Of the rows of a task and action.
    task : float
        Of all rows of a task.
    """

    unit: float = 0.0
    task: float = 0.0


NOTHING_SHARED = Shared()


@dataclass(frozen=True, slots=True, eq=False)
class Walks:
    """The walks of interactions and levels, in units of the noise.

    Attributes
    ----------
    center : (K, p) array
        c_a, less the offset of the moments.
    start : (p, p) array
        M_0.
    walk : (p, p) array
        A root of kappa W; where interactions fade, of M_0.
    level : float
        l^2, the variance of levels in the first period.
    eta : float
    noise_ratio : (K,) array
        sigma_a^2 / sigma^2.
    period_noise : (T,) array
        Noise variances of the rows of a period over those of their actions.
    shared : Shared
    fading : float
        The rate at which interactions return to 0; 0 for a walk.
    """

    center: Array
    start: Array
    walk: Array
    level: float
    eta: float
    noise_ratio: Array
    period_noise: Array
    shared: Shared = NOTHING_SHARED
    fading: float = 0.0

    @property
    def _levels_move(self) -> bool:
        return self.eta > 0.0 or self.shared.task > 0.0

    def prior(self, span: float) -> Array:
        """Return the covariance (p, p) of interactions at the end, ``span`` after the first period."""
        return prior_at_end(self.start, self.walk, span, self.fading)

    def at_end(self, moments: Moments, periods: PeriodSums, precision: Array) -> Moments:
        """Return the moments of rows at the end of the log that tell what the rows of ``moments`` tell.

        ``precision`` (m,) are the precisions of the rows of tasks, which the moments do not have.
        """
        return counted_at_end(
            moments, periods, precision, self, lambda some, constant, _: self.ends(some, constant)
        )

    def ends(self, periods: PeriodSums, constant: Array) -> "Ends":
        """Return the information of units about their coefficients at the end.

        ``periods`` are sums of independent rows of one precision, and phi' ``constant`` (p,) is 1.
        """
        from_center = UnitFactors.at_end(
            periods, self.noise_ratio[:, None] * self.period_noise, self.walk, self.start, self.center,
            one_level=not self._levels_move, fading=self.fading,
        )  # fmt: skip
        prior = regular_inverse(self.prior(periods.span))
        since = periods.since if self._levels_move else np.zeros(1)
        levels = _Levels.of(from_center, prior, since, self.level, self.eta, self.shared.task)
        units = from_center.less(levels.mean)
        information, score, square = units.information, units.scores[..., 0], units.products[..., 0, 0]
        log_det = units.log_det
        if self._levels_move:
            f, fits = levels.share[..., None], (levels.inverse @ score[..., None])[..., 0]
            square = square - (1.0 - levels.share) * (score * fits).sum(axis=-1)
            information, score = f[..., None] * information, f * score
            log_det = log_det + levels.log_det
        middle = self.center + levels.end[:, None, None] * constant
        return Ends(information, score, square, log_det, middle)


class Ends(NamedTuple):
    """The information of units about their coefficients at the end, given the effects of actions and levels.

    It is exp(-1/2 (g' J g - 2 g' h + q)) of g, the coefficients less ``middle``.

    Attributes
    ----------
    information : (m, K, p, p) array
        J.
    score : (m, K, p) array
        h.
    square, log_det : (m, K) array
        q, and the log determinant of the covariance of the rows over that of independent rows.
    middle : (m, K, p) array
        Coefficients of actions and levels.
    """

    information: Array
    score: Array
    square: Array
    log_det: Array
    middle: Array

    def sums(self, constant: Array) -> Array:
        """Return sums of z z' (m, K, p + 2, p + 2) over the noise; phi' ``constant`` (p,) is 1."""
        information, cross, back = self.information, self.score, self.middle
        moved = (information @ back[..., None])[..., 0]
        square = self.square + 2.0 * (back * cross).sum(axis=-1) + (back * moved).sum(axis=-1)
        cross = cross + moved
        ones = information @ constant
        joint = np.zeros((*square.shape, len(constant) + 2, len(constant) + 2))
        p = len(constant)
        joint[..., :p, :p] = (information + information.swapaxes(-1, -2)) / 2
        joint[..., :p, p], joint[..., :p, p + 1] = cross, ones
        joint[..., p, p], joint[..., p, p + 1], joint[..., p + 1, p + 1] = (
            square,
            cross @ constant,
            ones @ constant,
        )
        return joint


def counted_at_end(
    moments: Moments,
    periods: PeriodSums,
    precision: Array,
    walks: Walks,
    ends: Callable[[PeriodSums, Array, slice], Ends],
) -> Moments:
    """Return the moments of rows as they count at the end.

    Parameters
    ----------
    moments : Moments
    periods : PeriodSums
        Of the same rows.
    precision : (m,) array
        Precisions of the rows of tasks.
    walks : Walks
        With the noise.
    ends : callable
        Returns the information of some tasks from sums of independent rows of one precision, the coefficients that
        give a constant 1, and the places of the tasks.
    """
    sums, log_precision = np.empty_like(moments.sums), moments.log_precision.copy()
    constant = nearest_constant(moments)
    for piece in periods.pieces():
        of_task = precision[piece, None, None, None]
        independent, of_shared = periods.at(piece).whitened(walks.shared.unit)
        units = ends(independent.times_precision(precision[piece]), constant, piece)
        sums[piece] = pack(units.sums(constant) * walks.noise_ratio[:, None, None] / of_task)
        rows = periods.sums[piece][..., -1].reshape(*units.log_det.shape, -1)
        log_precision[piece] -= units.log_det + rows @ np.log(walks.period_noise) + of_shared.sum(axis=2)
    empty = moments.rows == 0
    sums[empty] = 0.0
    log_precision[empty] = moments.log_precision[empty]
    return replace(moments, sums=sums, log_precision=log_precision)


def nearest_constant(moments: Moments) -> Array:
    """Return coefficients (p,) of the features that come nearest to a constant 1: exact with an intercept."""
    p = moments.unit_dim
    total = unpack(moments.unit_sums.sum(axis=0)[None], p + 2)[0]
    return np.asarray(np.linalg.lstsq(total[:p, :p], total[:p, p + 1], rcond=1e-12)[0])


class _Levels(NamedTuple):
    """The levels of tasks over time, given their rows.

    Attributes
    ----------
    mean : (m, T) array
        Of u_s, less c_a.
    end : (m,) array
        The same in the last period, without the part that only its rows share.
    share : (m, K) array
        f_sa.
    log_det : (m, K) array
        Of the walk of levels; divided among the actions of a task by their rows.
    inverse : (m, K, p, p) array
        Of the information of units; empty where levels do not move.
    """

    mean: Array
    end: Array
    share: Array
    log_det: Array
    inverse: Array

    @classmethod
    def of(
        cls, factors: UnitFactors, prior: Array, since: Array, level: float, eta: float, shared: float
    ) -> Self:
        """Integrate interactions out, whose information before the log is ``prior``, and take levels at their means."""
        scores, T = factors.scores, since.size
        regular = factors.information + prior
        within = (factors.products - scores.swapaxes(2, 3) @ np.linalg.solve(regular, scores)).sum(axis=1)
        walk = level_root(since, eta, shared)
        root = np.concatenate([np.full((T, 1), np.sqrt(level)), walk], axis=1)
        spread = np.eye(root.shape[1]) + root.T @ within[:, 1:, 1:] @ root
        changes = np.linalg.solve(spread, root.T @ within[:, 1:, :1])
        mean = (root @ changes)[..., 0]
        end = mean[:, -1]
        if shared > 0.0:
            end = end - np.sqrt(shared) * changes[:, -1, 0]
        if eta <= 0.0 and shared <= 0.0:
            none = np.zeros(scores.shape[:2])
            return cls(mean, end, none + 1.0, none, np.zeros(0))
        spread = np.eye(walk.shape[1]) + walk.T @ factors.products.sum(axis=1)[:, 1:, 1:] @ walk
        rows = np.maximum(factors.products[..., 1:, 1:].sum(axis=(-1, -2)), 0.0)
        part = rows / np.maximum(rows.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        inverse = _inverse(factors.information)
        log_det = np.linalg.slogdet(spread)[1][:, None] * part
        return cls(mean, end, _share(factors, inverse, walk, spread), log_det, inverse)


def _share(factors: UnitFactors, inverse: Array, walk: Array, spread: Array) -> Array:
    """Return f_sa (m, K): information about differences between actions, over that with levels that do not move."""
    along = walk.T @ factors.scores[..., 1:].swapaxes(2, 3)
    solved = np.linalg.solve(spread[:, None], along)
    own = factors.information - along.swapaxes(2, 3) @ solved
    to_all = factors.information - along.swapaxes(2, 3) @ solved.sum(axis=1, keepdims=True)
    left = _differences(own, to_all, inverse)
    usual = _differences(factors.information, factors.information, inverse)
    share = left / np.where(usual > _RIDGE, usual, 1.0)
    return np.where(usual > _RIDGE, np.clip(share, _RIDGE, 1.0), 1.0)


def _differences(own: Array, to_all: Array, inverse: Array) -> Array:
    """Return the information (m, K) of units about their difference from all others of the task, as a trace."""
    together = _inverse(to_all.sum(axis=1))
    left = own - to_all @ together[:, None] @ to_all.swapaxes(2, 3)
    return np.asarray((left * inverse).sum(axis=(2, 3)))


def _inverse(matrices: Array) -> Array:
    """Return the inverses of symmetric matrices (..., p, p), of their part that is not 0."""
    if matrices.shape[-1] == 1:
        regular = matrices > np.finfo(np.float64).tiny
        return np.where(regular, 1.0 / np.where(regular, matrices, 1.0), 0.0)
    values, vectors = np.linalg.eigh((matrices + matrices.swapaxes(-1, -2)) / 2)
    regular = values > _RIDGE * values.max(axis=-1, keepdims=True, initial=np.finfo(np.float64).tiny)
    inverse = np.where(regular, 1.0 / np.where(regular, values, 1.0), 0.0)
    return np.asarray((vectors * inverse[..., None, :]) @ vectors.swapaxes(-1, -2))


def regular_inverse(matrix: Array) -> Array:
    """Return the inverse of a regular matrix."""
    return np.asarray(np.linalg.solve(matrix, np.eye(len(matrix))), dtype=np.float64)
