"""Effects of the levels of a category as draws around 0: learned variances, posterior means and covariances."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo.features.terms.doubts import Doubt

FOLDS = 5  # parts of the tasks; rows of one see the effects of the rows of the others
MOST = 10_000  # levels with an effect of their own, the most frequent
MOST_ACTIONS = 20
_LEAST_GAIN = 1.0  # of the log evidence, for a variance to be above 0
_GRID = np.geomspace(1e-4, 1e2, 25)  # variances of effects, in units of the noise
_FINE = np.geomspace(10**-0.25, 10**0.25, 9)


class Variances(NamedTuple):
    """Variances of the effects of levels: of that on all actions, of that on each action, and of the noise."""

    main: float
    own: float
    noise: float

    def prior(self, n_actions: int) -> Array:
        """Return the covariance (K, K) of the effects of a level on the actions."""
        return self.main * np.ones((n_actions, n_actions)) + self.own * np.eye(n_actions)


def posteriors(rows: Array, sums: Array, variances: Variances) -> tuple[Array, Array]:
    """Return means (m, K) and covariances (m, K, K) of the effects of m levels.

    With n rows of sum s under each action, D = diag(n) / noise and prior covariance P they are V s / noise and
    V = P (I + D P)^-1.

    Parameters
    ----------
    rows, sums : (m, K)
        Rows, and sums of rewards less all but the effect, by level and action.
    variances : Variances
    """
    prior = variances.prior(rows.shape[-1])
    inner = np.eye(len(prior)) + (rows / variances.noise)[..., None] * prior
    covs = np.swapaxes(np.linalg.solve(np.swapaxes(inner, -1, -2), prior), -1, -2)
    covs = (covs + np.swapaxes(covs, -1, -2)) / 2.0
    return (covs @ (sums / variances.noise)[..., None])[..., 0], covs


def log_evidence(rows: Array, sums: Array, variances: Variances) -> float:
    """Return the log evidence of the variances of effects, less that of none; arguments as of :func:`posteriors`.

    With the variances a on all actions and b on each, d = n / noise and t = s / noise: effects on each action first,
    each by itself, then that on all, which has the information J = sum d / (1 + b d) and the score sum t / (1 + b d).
    """
    information, score = rows / variances.noise, sums / variances.noise
    shrinkage = 1.0 + variances.own * information
    of_all = (information / shrinkage).sum(axis=1)
    fit = variances.own * (score**2 / shrinkage).sum(axis=1)
    fit = fit + variances.main * (score / shrinkage).sum(axis=1) ** 2 / (1.0 + variances.main * of_all)
    log_det = np.log(shrinkage).sum(axis=1) + np.log1p(variances.main * of_all)
    return float(0.5 * (fit - log_det).sum())


def learned_variances(rows: Array, sums: Array, noise: float) -> Variances:
    """Return the variances of effects with the largest evidence; 0 for one without which it is hardly less."""
    none = Variances(0.0, 0.0, noise)

    def best(candidates: Sequence[Variances]) -> tuple[float, Variances]:
        return max((log_evidence(rows, sums, candidate), candidate) for candidate in candidates)

    def climbed(start: Variances, grid: Array, *, main: bool, own: bool) -> tuple[float, Variances]:
        mains = start.main * grid if main else [0.0]
        owns = start.own * grid if own else [0.0]
        return best([Variances(float(a), float(b), noise) for a in mains for b in owns])

    chosen = (0.0, none)
    for main, own in ((True, False), (False, True), (True, True)):
        candidate = climbed(
            Variances(noise, noise, noise), _GRID[:: 1 if main != own else 2], main=main, own=own
        )
        candidate = climbed(candidate[1], _FINE, main=main, own=own)
        if candidate[0] > chosen[0] + _LEAST_GAIN:
            chosen = candidate
    return chosen[1]


class Solved(NamedTuple):
    """The columns (FOLDS + 1, levels, q) of the levels, and their doubts; the last part is given all rows."""

    columns: Array
    doubt: tuple[Array, Array]


@dataclass(frozen=True)
class LearnedEffect:
    """The sums from which the effects of the levels of a column follow.

    Parameters
    ----------
    actions : tuple of str
        Labels of the K actions.
    task : tuple of str
        Columns of the log that name the task.
    rows, sums : tuple
        (FOLDS, levels, K), rows and sums of rewards less those of task and action, by part of the tasks.
    variances : Variances
    """

    actions: tuple[str, ...]
    task: tuple[str, ...]
    rows: tuple[tuple[tuple[float, ...], ...], ...]
    sums: tuple[tuple[tuple[float, ...], ...], ...]
    variances: Variances

    @property
    def width(self) -> int:
        """The number q of columns: 1, or that of actions where effects differ between actions."""
        return len(self.actions) if self.variances.own else 1

    def names(self, column: str) -> tuple[str, ...]:
        """Return the names of the columns of the effects of the levels of a column."""
        names = (f"effect of {column}", *(f"effect of {column} on {action}" for action in self.actions))
        return names[: self.width]

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as JSON can hold them."""
        return {
            "actions": list(self.actions), "task": list(self.task), "variances": list(self.variances),
            "rows": [[list(r) for r in part] for part in self.rows],
            "sums": [[list(r) for r in part] for part in self.sums],
        }  # fmt: skip

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "LearnedEffect":
        """Return the sums that :meth:`to_dict` wrote."""
        rows, sums = (nested(stored[name]) for name in ("rows", "sums"))
        return cls(
            tuple(stored["actions"]), tuple(stored["task"]), rows, sums, Variances(*stored["variances"])
        )

    @cached_property
    def solved(self) -> Solved:
        """The columns of all levels, given the rows of other parts of the tasks, and given all rows."""
        rows, sums = np.array(self.rows), np.array(self.sums)
        rows, sums = (np.concatenate([s.sum(axis=0) - s, s.sum(axis=0)[None]]) for s in (rows, sums))
        K = len(self.actions)
        basis = np.concatenate([np.full((K, 1), 1.0 / K), np.eye(K)[:, :-1] - 1.0 / K], axis=1)[
            :, : self.width
        ]
        means, covs = posteriors(rows, sums, self.variances)
        columns = means @ basis
        covs = np.concatenate(
            [self.variances.prior(K)[None], covs.reshape(-1, K, K)]
        )  # of a level that the log did not have, first
        values, vectors = np.linalg.eigh(basis.T @ covs @ basis)
        roots = np.sqrt(np.maximum(values, 0.0))[:, :, None] * np.swapaxes(vectors, 1, 2)
        marks = _distinct(np.concatenate([[0.0], columns[..., 0].ravel()]))
        columns[..., 0] = marks[1:].reshape(columns.shape[:-1])
        marks, first = np.unique(marks, return_index=True)
        return Solved(columns, (marks, roots[first]))

    def encode(self, positions: NDArray[np.int64], parts: NDArray[np.int64] | None) -> Array:
        """Return the columns (q, n) of levels in n positions, -1 for an unknown one, in rows of parts of the tasks.

        Without parts the rows are requests, for which the effects are given all rows of the log.
        """
        columns = self.solved.columns
        of = np.full(positions.size, FOLDS) if parts is None else parts
        values = columns[of, np.maximum(positions, 0)]
        return np.where(positions < 0, 0.0, values.T)

    def doubts(self, start: int) -> Doubt:
        """Return the posterior covariances of the columns, of which the first has the position ``start``."""
        marks, roots = self.solved.doubt
        return Doubt(start + np.arange(self.width), marks, roots)


def _distinct(values: Array) -> Array:
    """Return numbers of which none is repeated but 0, by units in the last place."""
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    for k in np.flatnonzero((np.diff(ascending) == 0) & (ascending[1:] != 0)).tolist():
        ascending[k + 1] = np.nextafter(max(ascending[k], ascending[k + 1]), np.inf)
    distinct = np.empty_like(ascending)
    distinct[order] = ascending
    return distinct


def nested(table: Any) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """Return an array or nested lists (a, b, c) as tuples."""
    return tuple(tuple(tuple(float(value) for value in row) for row in part) for part in table)
