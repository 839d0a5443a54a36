"""Effects of actions that walk in all tasks alike: their evidence, their paths, and the error of their end.

With the walks of :mod:`hieropo.moments.periods`, and c_a(t) = beta(t) + alpha_a(t) the coefficients of action a that
all tasks have in common,

    c_a(t) = e_a - (w_a,t + ... + w_a,T)        Cov(w_a,k, w_b,k) = (zeta [a = b] + xi) sigma^2 W (time from k on)

e = c(E) flat, and w the changes from each of the T periods to the next, the last to the end. zeta is the rate at which
actions move apart; xi, that at which all rewards move together, decides nothing, and is averaged over. Levels and
interactions of tasks, and their walks, are integrated out: the information of the rows is

    exp(-1/2 (c' Pi c - 2 c' h + q))        of c = X e - U w

so that with V = X' Pi X, B = V^-1 X' Pi U, M = U' Pi U - U' Pi X B and s = U' h - B' X' h

    Cov(w) = (M + Q^-1)^-1        E w = -Cov(w) s        Cov(e) = V^-1 + B Cov(w) B'

Q the covariance of w. V^-1 is the error of means of actions that a fit to rows less their path claims. The rest,
B Cov(w) B', is the error of that path, which all tasks have in common. Both are independent.
"""

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import unpack
from hieropo.model.steps import upper_factor
from hieropo.moments.periods import NOTHING_SHARED, PeriodSums, Shared, UnitFactors, level_root
from hieropo.rows.task_hash import of_least_hashes

_ROOM, _FIRST_ROOM = 2**24, 2**22  # doubles of the products of units; where a walk is only looked for
_USUAL, _WIDEST = 200, 400  # changes w, above which periods are put together; and at most
_LEAST = 4  # periods


CLEAR = float(np.log(10.0))  # log odds above which a walk is taken as there


def share_of_walk(log_odds: float) -> float:
    """Return the share of a rate that is taken: 1 where a walk is clear, else the probability that there is one."""
    return 1.0 if log_odds > CLEAR else float(1 / (1 + np.exp(-log_odds)))


class TaskModel(NamedTuple):
    """Parts of the model that each task has of its own, in units of the noise.

    Attributes
    ----------
    start : (p, p) array
        M_0, regular.
    walk : (p, p) array
        A root of kappa W.
    level : (p, p) array
        L.
    eta : float
    noise_ratio : (K, T) array
        Noise variances of rows.
    constant : (p,) array
        Coefficients of the features that give a constant 1.
    shared : Shared
    """

    start: Array
    walk: Array
    level: Array
    eta: float
    noise_ratio: Array
    constant: Array
    shared: Shared = NOTHING_SHARED


class PathInformation(NamedTuple):
    """Information of rows about the paths of all actions, in the order (action, period, feature): d = K T p numbers.

    Attributes
    ----------
    information : (d, d) array
        Pi.
    score : (d,) array
        h.
    square : float
        q.
    log_det : float
        Log determinant of the covariance of the rows over that of independent rows, given the paths.
    """

    information: Array
    score: Array
    square: float
    log_det: float

    @classmethod
    def of(cls, periods: PeriodSums, tasks: TaskModel) -> Self:
        """Integrate interactions and levels of all tasks out."""
        p, (_, K, T) = periods.dim, periods.sums.shape[:3]
        d = K * T * p
        root = _level_root(periods.since, tasks)
        within, cross = np.zeros((K, 1 + T * p, 1 + T * p)), np.zeros((1 + d, 1 + d))
        log_det = 0.0
        moving = bool(tasks.walk.any())
        for piece in periods.pieces(paths=moving):
            one = (_moving if moving else _still)(periods.at(piece), tasks, root)
            n, r = len(one.along), root.shape[1]
            spread = np.eye(r) + np.einsum("xr,nkxs->nrs", root, one.along[:, :, 1:])
            rows = [one.along[:, :, :1].sum(axis=1), one.along[:, :, 1:].reshape(n, d, r)]
            factor = np.linalg.cholesky(spread)
            log_det += one.log_det + 2.0 * float(np.log(np.diagonal(factor, axis1=1, axis2=2)).sum())
            half = np.linalg.solve(factor, np.concatenate(rows, axis=1).swapaxes(1, 2)).reshape(n * r, 1 + d)
            cross += half.T @ half
            within += one.within
        information, actions = np.zeros((K, T * p, K, T * p)), np.arange(K)
        information[actions, :, actions] = within[:, 1:, 1:]
        score = within[:, 1:, 0].reshape(d) - cross[1:, 0]
        square = float(within[:, 0, 0].sum() - cross[0, 0])
        return cls(information.reshape(d, d) - cross[1:, 1:], score, square, log_det)


class _Units(NamedTuple):
    """Products of the reward and the features in each period (C = 1 + T p columns), interactions integrated out.

    Attributes
    ----------
    within : (K, C, C) array
        Summed over tasks.
    along : (n, K, C, r) array
        Of each unit, along the root (T p, r) of the covariance of levels.
    log_det : float
    """

    within: Array
    along: Array
    log_det: float


def _moving(periods: PeriodSums, tasks: TaskModel, root: Array) -> _Units:
    """Integrate interactions out, which walk."""
    factors = UnitFactors.at_start(periods, tasks.noise_ratio, tasks.walk, paths=True)
    regular = factors.information + np.linalg.solve(tasks.start, np.eye(periods.dim))
    solved = np.linalg.solve(regular, factors.scores)
    left = factors.products - factors.scores.swapaxes(2, 3) @ solved
    log_det = factors.log_det.sum() + np.linalg.slogdet(regular @ tasks.start)[1].sum()
    return _Units(left.sum(axis=0), left[:, :, :, 1:] @ root, float(log_det))


def _still(periods: PeriodSums, tasks: TaskModel, root: Array) -> _Units:
    """Integrate interactions out, which do not move: products of two periods are then of rank p, and never formed."""
    p, (n, K, T) = periods.dim, periods.sums.shape[:3]
    S = unpack(periods.sums / tasks.noise_ratio[..., None], p + 2).reshape(n, K, T, p + 2, p + 2)
    columns, r = 1 + T * p, root.shape[1]
    scores = np.empty((n, K, p, columns))
    scores[..., 0] = S[..., :p, p].sum(axis=2)
    scores[..., 1:] = S[..., :p, :p].transpose(0, 1, 4, 2, 3).reshape(n, K, p, T * p)
    regular = S[..., :p, :p].sum(axis=2) + np.linalg.solve(tasks.start, np.eye(p))
    factor = np.linalg.cholesky(regular)
    half = scores / factor if p == 1 else np.linalg.solve(factor, scores)
    total = S.sum(axis=0)
    within, periods_of = np.zeros((K, columns, columns)), np.arange(T)
    blocks = np.zeros((K, T, p, T, p))
    blocks[:, periods_of, :, periods_of] = total[:, :, :p, :p].swapaxes(0, 1)
    within[:, 1:, 1:] = blocks.reshape(K, T * p, T * p)
    within[:, 0, 0] = total[:, :, p, p].sum(axis=1)
    within[:, 0, 1:] = within[:, 1:, 0] = total[:, :, :p, p].reshape(K, T * p)
    flat = np.ascontiguousarray(half.transpose(1, 0, 2, 3)).reshape(K, n * p, columns)
    within -= flat.swapaxes(1, 2) @ flat
    of_periods = root.reshape(T, p, r)
    along = np.empty((n, K, columns, r))
    along[:, :, 0] = np.einsum("nktp,tpr->nkr", S[..., :p, p], of_periods)
    along[:, :, 1:] = (S[..., :p, :p] @ of_periods).reshape(n, K, T * p, r)
    along -= half.swapaxes(2, 3) @ (half[..., 1:] @ root)
    log_det = (
        2.0 * np.log(np.diagonal(factor, axis1=2, axis2=3)).sum() + n * K * np.linalg.slogdet(tasks.start)[1]
    )
    return _Units(within, along, float(log_det))


def _level_root(since: Array, tasks: TaskModel) -> Array:
    """Return R (T p, r) such that R R' is the covariance of the level of a task and its walk, as paths have it."""
    T, p = since.size, len(tasks.level)
    first = np.tile(upper_factor(tasks.level)[0], (T, 1))
    if tasks.eta <= 0.0 and tasks.shared.task <= 0.0:
        return first
    walk = level_root(since, tasks.eta, tasks.shared.task)
    return np.concatenate([first, (walk[:, None, :] * tasks.constant[:, None]).reshape(T * p, -1)], axis=1)


class ChangeInformation(NamedTuple):
    """Information of the rows about the changes w, the means of actions at the end integrated out.

    Attributes
    ----------
    information : (K, T p, K, T p) array
        M, for changes in units of the root of the time of each, and of W.
    score : (K, T p) array
        s in these units.
    square : float
    to_end : (K p, K, T p) array
        B in these units.
    end : (K, p) array
        V^-1 X' h.
    unit : (T, p, p) array
        Roots of the covariance of each w at a rate of 1.
    """

    information: Array
    score: Array
    square: float
    to_end: Array
    end: Array
    unit: Array

    @classmethod
    def of(cls, paths: PathInformation, periods: PeriodSums, walk: Array) -> Self:
        """Take paths as changes of the covariance ``walk`` (p, p), W, in one unit of time."""
        p, (_, K, T) = periods.dim, periods.sums.shape[:3]
        first = paths.information.reshape(K, T, p, K, T, p).cumsum(axis=1).cumsum(axis=4)
        score = paths.score.reshape(K, T, p).cumsum(axis=1)
        of_end, end_score = first[:, -1].reshape(K * p, K * T * p), score[:, -1].reshape(K * p)
        V = first[:, -1, :, :, -1].reshape(K * p, K * p)
        inverse = _scaled_inverse(V)
        to_end = inverse @ of_end
        M = first.reshape(K * T * p, K * T * p) - of_end.T @ to_end
        s = score.reshape(-1) - to_end.T @ end_score
        gaps = np.sqrt(np.diff(periods.times, append=periods.end))
        unit = gaps[:, None, None] * upper_factor(walk)[0]
        M = np.einsum("kix,akiblj,ljy->akxbly", unit, M.reshape(K, T, p, K, T, p), unit, optimize=True)
        s = np.einsum("kix,aki->akx", unit, s.reshape(K, T, p))
        to_end = np.einsum("eaki,kix->eakx", to_end.reshape(K * p, K, T, p), unit)
        end = inverse @ end_score
        return cls(
            M.reshape(K, T * p, K, T * p), s.reshape(K, T * p), paths.square - float(end_score @ end),
            to_end.reshape(K * p, K, T * p), end.reshape(K, p), unit,
        )  # fmt: skip

    def _solved(self, zeta: float, xi: float) -> tuple[Array, Array, Array]:
        """Return a root R (K, k) of zeta I + xi J, and I + F' M F and F' s for F of R."""
        K, width = self.score.shape
        of_all = self._sums_over_actions[1]
        if zeta <= 0.0:
            R, M = np.full((K, 1), np.sqrt(xi)), xi * of_all
        else:
            own = float(np.sqrt(zeta))
            common = (float(np.sqrt(zeta + K * xi)) - own) / K
            R, half = own * np.eye(K) + common, own * common * self._sums_over_actions[0]
            M = (
                own**2 * self.information
                + half
                + half.transpose(1, 2, 0)[:, :, None]
                + common**2 * of_all[:, None]
            )
        size = R.shape[1] * width
        M = M.reshape(size, size)
        return R, np.eye(size) + (M + M.T) / 2, (R.T @ self.score).reshape(-1)

    @property
    def _sums_over_actions(self) -> tuple[Array, Array]:
        """Sums of M over its first action (T p, K, T p), and over both (T p, T p)."""
        of_first = self.information.sum(axis=0)
        return of_first, of_first.sum(axis=1)

    def log_evidence(self, zeta: float, xi: float, dof: float) -> float:
        """Return the log evidence of the rates, with ``dof`` degrees of freedom and the noise at its mode."""
        if zeta <= 0.0 and xi <= 0.0:
            return -0.5 * dof * float(np.log(self.square))
        _, spread, score = self._solved(zeta, xi)
        factor = np.linalg.cholesky(spread)
        half = solve_triangular(factor, score, lower=True)
        return float(-0.5 * dof * np.log(self.square - half @ half) - np.log(np.diagonal(factor)).sum())

    def path(self, zeta: float, xi: float) -> tuple[Array, Array, Array]:
        """Return c(t) - c(E) (K, T, p) and c(E) (K, p) at their means, and the error B Cov(w) B' of the end."""
        K, width = self.score.shape
        p = self.end.shape[1]
        R, spread, score = self._solved(zeta, xi)
        k = R.shape[1]
        to_end = np.einsum("eai,ax->exi", self.to_end, R).reshape(K * p, k * width)
        solved = np.linalg.solve(spread, np.concatenate([score[:, None], to_end.T], axis=1))
        w = R @ -solved[:, 0].reshape(k, width)
        changes = np.einsum("kix,akx->aki", self.unit, w.reshape(K, -1, p))
        before = -changes[:, ::-1].cumsum(axis=1)[:, ::-1]
        end = self.end + np.einsum("eai,ai->e", self.to_end, w).reshape(K, p)
        error = to_end @ solved[:, 1:]
        return before, end, (error + error.T) / 2


def _scaled_inverse(V: Array) -> Array:
    """Return the inverse of an information matrix, of the part that is not 0, whatever the units of its columns."""
    scale = np.sqrt(np.maximum(np.diagonal(V), np.finfo(np.float64).tiny))
    values, vectors = np.linalg.eigh(V / scale / scale[:, None])
    regular = values > 1e-10
    inverse = np.where(regular, 1.0 / np.where(regular, values, 1.0), 0.0)
    return np.asarray((vectors * inverse) @ vectors.T / scale / scale[:, None])


class ActionWalk(NamedTuple):
    """The walk of effects of actions in all tasks alike.

    Attributes
    ----------
    zeta : float
        Variance that an effect gains in a unit of time, in units of the noise.
    log_odds : float
        Log of the ratio of the evidence for the walk to that without it.
    before : (K, T, p) array
        c(t) - c(E).
    end : (K, p) array
        c(E), less the offset of the moments.
    error : (K p, K p) array
        Covariance of the error of the path at the end, in units of the noise.
    """

    zeta: float
    log_odds: float
    before: Array
    end: Array
    error: Array


def learn_action_walk(
    periods: PeriodSums,
    walk: Array,
    tasks: TaskModel,
    apart: tuple[Array, Array],
    together: tuple[Array, Array],
    rows: float,
) -> ActionWalk | None:
    """Return the walk of actions that a log shows, whatever its odds; None with too many actions and columns for one.

    Parameters
    ----------
    periods : PeriodSums
        Of rows of the precisions of their tasks.
    walk : (p, p) array
        W.
    tasks : TaskModel
    apart, together : tuple of arrays
        Standard deviations that actions gain over the log, each on its own and all alike: 0 first, and the logs of
        their prior masses.
    rows : float
    """
    coarse, index = _coarser(periods)
    if coarse is None:
        return None
    p, K = coarse.dim, coarse.sums.shape[1]
    ratio = tasks.noise_ratio[:, [int(np.flatnonzero(index == k)[0]) for k in range(index.max() + 1)]]
    paths = PathInformation.of(coarse, tasks._replace(noise_ratio=ratio))
    changes = ChangeInformation.of(paths, coarse, walk)
    span, dof = periods.span, rows - K * p
    rates, common = ((axis[0] ** 2 / span).tolist() for axis in (apart, together))
    table = np.array([[changes.log_evidence(zeta, xi, dof) for xi in common] for zeta in rates])
    table += apart[1][:, None] + together[1]
    of_zeta, of_xi = logsumexp(table, axis=1), logsumexp(table[1:], axis=0)
    log_odds = float(logsumexp(of_zeta[1:]) - of_zeta[0])
    of_zeta, of_xi = (np.exp(of - logsumexp(of)) for of in (of_zeta[1:], of_xi))
    zeta = share_of_walk(log_odds) * float(of_zeta @ apart[0][1:]) ** 2 / span
    xi = float(of_xi @ together[0]) ** 2 / span
    before, end, error = changes.path(zeta, xi)
    return ActionWalk(zeta, log_odds, before[:, index], end, error)


def tasks_of_paths(tasks: NDArray[Any], periods: PeriodSums, *, first: bool) -> Codes | None:
    """Return the positions of the tasks that paths are learned from; None for all.

    ``tasks`` are their ids (m,); ``first`` is True where a walk is only looked for.
    """
    p, (m, K, _) = periods.dim, periods.sums.shape[:3]
    room = _FIRST_ROOM if first else _ROOM
    enough = max(room // (K * (1 + _most_periods(periods) * p) ** 2), 1)
    return of_least_hashes(tasks, enough) if m > enough else None


def _most_periods(periods: PeriodSums) -> int:
    K, T = periods.sums.shape[1:3]
    return int(min(max(_USUAL // (K * periods.dim), _LEAST), T))


def _coarser(periods: PeriodSums) -> tuple[PeriodSums | None, Codes]:
    """Return sums of fewer periods, so that paths are short, and the period of each; None where that is too few."""
    p, (_, K, T) = periods.dim, periods.sums.shape[:3]
    most = _most_periods(periods)
    if K * p * most > _WIDEST:
        return None, np.arange(T)
    index = np.arange(T) * most // T
    return periods.together(index), index
