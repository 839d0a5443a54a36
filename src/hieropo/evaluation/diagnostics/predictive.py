"""Predictive checks of rewards: every row against its prediction by all other rows.

For a row of precision v that was learned from, with h = v phi' cov_s phi / sigma^2 and e = r - phi' mean_s, the
posterior without the row predicts it with

    residual  e / (1 - h),    variance  sigma^2 / (v (1 - h))

exactly, for known hyper-parameters: taking it out is a step of rank one. A row of weight k is k rows, and one of them
is left out at a time; of a row of weight c < 1, c is left out. So a pass over the log checks the model on rows that it
was not learned from, and no fit is repeated. Learned hyper-parameters are taken as known; a single row changes them
by about 1/n. A row that was not learned from is predicted with residual e, variance
sigma^2 / v + phi' cov_s phi. Whole tasks are left out in :mod:`task_distances`; features that the model does not have,
and other misfits, are tested in :mod:`misfits`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from hieropo._kernels import backend
from hieropo._utils.arrays import Array, Codes, normalised
from hieropo._utils.packed import packed_size, triangle
from hieropo._utils.ties import ROUNDING, ordered
from hieropo.errors import InputError, MismatchError
from hieropo.evaluation.diagnostics.misfits import (
    Curves,
    Misfit,
    Outlier,
    Residuals,
    ScoreTest,
    residual_columns,
    summed,
)
from hieropo.evaluation.diagnostics.task_distances import task_distances
from hieropo.evaluation.diagnostics.verdict import PredictiveChecks
from hieropo.features.maps import FeatureMap
from hieropo.model.crossed.task_noise import row_precision
from hieropo.model.protocol import SinglePosterior, TaskPosterior
from hieropo.moments.units import one_action
from hieropo.rows.columns import RowWeights, check_codes, check_rows, contexts

__all__ = ["Checks", "Misfit", "Outlier", "PredictiveChecks", "ScoreTest"]


BINS = 20
_PIECE = 2**19  # numbers of phi worked on at once
_MIN_FREE = 1e-6  # 1 - h up to which no other row predicts the row
_N_OUTLIERS = 5
_MAX_VALUES = 12  # distinct rewards up to which they are listed
_MAX_ACTIONS = 64  # up to which noise along a number is tested within actions
_NO_MASK = np.zeros((0, 0), dtype=np.bool_)


class Checks:
    """Sums rows for predictive checks, batch by batch; the mutable edge of a pass over a log.

    Parameters
    ----------
    posterior : a posterior
        With all tasks of the log (a task that was not learned from is one without rows). Rows that were learned from
        are left out under the central hierarchy of a mixture, and under the uncorrected one of a correction; rows that
        were not are predicted by mean and covariance of the mixture.
    features : FeatureMap
        The map that the posterior was learned with.
    learned_from : bool
        True where the posterior was learned from the given rows, all of them and each once.

    Raises
    ------
    MismatchError
        The posterior was learned with another map.

    Examples
    --------
    >>> from hieropo.features.maps import indicator
    >>> from hieropo import Gaussian, Hierarchy, Moments, condition
    >>> task, action, reward = [0, 0, 1, 1], [0, 1, 0, 1], [1.0, 2.0, 1.5, 2.5]
    >>> arms = indicator(["a", "b"])
    >>> log = Moments.from_arrays(task, arms.phi(None, action), reward)
    >>> checks = Checks(condition(log, Hierarchy(None, [[1.0, 0.0], [0.0, 1.0]], 1.0)), arms, learned_from=True)
    >>> checks.add(task, action, None, reward)
    >>> result = checks.checks()
    >>> result.rows, round(result.sd, 3), result.findings
    (4.0, 0.25, ())
    """

    def __init__(self, posterior: TaskPosterior, features: FeatureMap, *, learned_from: bool) -> None:
        made_with = posterior.moments.features
        if features.dim != posterior.dim or made_with not in (None, features.fingerprint):
            raise MismatchError(
                f"The posterior of {posterior.dim} features was not learned with this map of {features.dim}, or its "
                "actions and columns are in another order. Pass the map that the log was read with."
            )
        self._central: SinglePosterior | None = posterior.central() if learned_from else None
        self._posterior: TaskPosterior = posterior if self._central is None else self._central
        self._features, self._learned, self._mixture = features, learned_from, posterior
        self._action_map = one_action(features)
        actions = features.actions
        self._count = 0 if actions is None else len(actions)
        self._blocks = self._count if self._action_map is not None else 1
        self._means, self._covs = _tables(self._posterior, self._blocks)
        self._noise = self._posterior.noise_variances
        m, width, c = len(posterior.moments.keys), self._means.shape[1], len(features.columns)
        expected = int(posterior.moments.n_rows) if learned_from else 0
        self._curves = Curves(m, width, c, self._blocks, learned=learned_from, expected=expected)
        self._tasks = np.zeros((_N_COLUMNS, m))
        self._actions = np.zeros((_N_COLUMNS, self._count))
        self._pit = np.zeros(BINS)
        self._gram = np.zeros((self._count if 0 < self._count <= _MAX_ACTIONS else 1, c + 3, c + 3))
        self._origin: tuple[Array, Array] | None = None
        self._level: float | None = None  # mean prediction of the first rows
        self._seen, self._alone = 0, 0.0
        self._outliers: list[tuple[float, int, int]] = []
        self._values: Array | None = np.zeros(0)

    def add(
        self,
        task: ArrayLike,
        action: ArrayLike | None,
        context: ArrayLike | None,
        reward: ArrayLike,
        weight: ArrayLike | None = None,
        precision: ArrayLike | None = None,
        *,
        number: ArrayLike | None = None,
    ) -> None:
        """Add rows; those of weight 0 count as absent, those of weight k as k rows, left out one at a time.

        Parameters
        ----------
        task : (n,) int
            Rows of the tasks in ``posterior.moments.keys``.
        action : (n,) int or None
            Codes, as the map's ``action_codes`` gives them; None for a map that lists no actions.
        context : (n, c) array or None
            Of the columns that the map reads.
        reward, weight, precision : (n,) array
            As the posterior was learned from.
        number : (n,) int, optional
            Numbers of the rows, for outliers; by default rows are counted in their order.

        Raises
        ------
        InputError, LogError
            Lengths differ; there is no such task or action; a value is missing or not finite.
        """
        _, r, weights = check_rows(np.zeros((np.size(reward), 0)), reward, weight, precision)
        rows = check_codes(task, r.shape, self._tasks.shape[1], "task")
        weights = weights._replace(precision=row_precision(self._mixture, rows, weights.precision))
        if (action is None) != (self._features.actions is None):
            raise InputError(
                "Actions go with a feature map that lists them, and this one "
                + ("does: pass their codes." if action is None else "lists none: leave them out.")
            )
        codes = None if action is None else check_codes(action, r.shape, self._count, "action")
        x = contexts(context, self._features.columns, rows=r.size)
        if len(x) != r.size:
            raise InputError(
                f"{len(x)} contexts do not fit {r.size} rewards; each row needs one context and one reward."
            )
        numbers = self._seen + np.arange(r.size) if number is None else np.asarray(number, dtype=np.int64)
        step = max(1, _PIECE // max(self._means.shape[1], len(self._tasks)))
        for start in range(0, r.size, step):
            part = slice(start, start + step)
            self._piece(
                numbers[part],
                rows[part],
                None if codes is None else codes[part],
                x[part],
                r[part],
                weights.some(part),
            )

    def _piece(
        self, number: Codes, task: Codes, action: Codes | None, x: Array, r: Array, weights: RowWeights
    ) -> None:
        zeros = np.zeros(task.size, dtype=np.int64)
        phi = (
            self._action_map.phi(x, zeros) if self._action_map is not None else self._features.phi(x, action)
        )
        rows = _Rows(task, zeros if action is None else action, self._standardised(x), number)
        self._seen += r.size
        if weights.weight is not None and not weights.weight.all():
            used = np.flatnonzero(weights.weight)
            rows, phi, r, weights = (
                rows.some(used),
                phi[used],
                r[used],
                weights.some(used),
            )
        if not r.size:
            return
        self._note_values(r)
        mean, variance = self._predicted(rows.task, rows.action, phi)
        self._curves.add(rows.task, rows.action, phi, rows.scaled, r - mean, weights)
        counts = weights.counts(r.size)
        noise = self._noise[rows.action if self._noise.size > 1 else np.zeros(r.size, dtype=np.int64)]
        noise = noise if weights.precision is None else noise / weights.precision
        if self._learned:
            z, free, tie = _left_out(r - mean, variance, np.minimum(counts, 1.0), noise)
        else:
            z, free, tie = _predicted_anew(r - mean, variance, noise)
        used = np.flatnonzero(free > _MIN_FREE)
        self._alone += float(counts.sum() - counts[used].sum())
        if used.size < free.size:
            rows, z, free, tie, r, mean, counts = (
                rows.some(used), z[used], free[used], tie[used], r[used], mean[used], counts[used]
            )  # fmt: skip
        if self._level is None and mean.size:
            self._level = float(mean.mean())
        self._sum(rows, z, free, tie, r - (self._level or 0.0) - (r - mean) / free, counts)

    def _sum(self, rows: "_Rows", z: Array, free: Array, tie: Array, expected: Array, counts: Array) -> None:
        columns = residual_columns(z, free, tie)
        self._tasks += summed(columns, rows.task, self._tasks.shape[1], counts)
        if self._count:
            self._actions += summed(columns, rows.action, self._count, counts)
        self._pit += np.bincount(np.minimum((BINS * ndtr(z)).astype(np.int64), BINS - 1), counts, BINS)
        size = Residuals(columns, self._learned).of("size")
        factors = np.concatenate(
            [np.ones((z.size, 1)), size[:, None], rows.scaled, expected[:, None]], axis=1
        )
        for a in range(len(self._gram)):
            part = np.flatnonzero(rows.action == a) if len(self._gram) > 1 else slice(None)
            self._gram[a] += (factors[part] * counts[part, None]).T @ factors[part]
        self._note_outliers(z, rows)

    def _predicted(self, task: Codes, action: Codes, phi: Array) -> tuple[Array, Array]:
        """Return mean and variance of phi' theta of each row."""
        n = task.size
        table_row = task if self._blocks == 1 else task * self._blocks + action
        index = np.full((n, 1), -1, dtype=np.int64)
        bound, mean, sd = np.full((3, n, 1), np.nan)
        prior = np.zeros((1, self._means.shape[1])), np.zeros((1, self._covs.shape[1]))
        bad = backend.choice(self._covs.size * self._means.shape[-1]).choose(
            self._means, self._covs, *prior, normalised(table_row), normalised(phi[:, None]), _NO_MASK, 0.0,
            index, bound, mean, sd,
        )  # fmt: skip
        if bad >= 0:
            raise InputError(
                f"The features of row {self._seen - n + bad} are so large that a prediction overflows."
            )
        return mean[:, 0], sd[:, 0] ** 2

    def _standardised(self, x: Array) -> Array:
        """Return columns less the mean, over the sd, of the first rows."""
        if self._origin is None:
            sd = x.std(axis=0)
            self._origin = x.mean(axis=0), np.where(sd > 0, sd, 1.0)
        return np.asarray((x - self._origin[0]) / self._origin[1])

    def _note_values(self, reward: Array) -> None:
        if self._values is None:
            return
        values = np.union1d(self._values, reward[:1000])
        if values.size <= _MAX_VALUES:
            values = np.union1d(values, reward[1000:])
        self._values = values if values.size <= _MAX_VALUES else None

    def _note_outliers(self, z: Array, rows: "_Rows") -> None:
        if not z.size:
            return
        size = np.abs(z)
        least = float(np.partition(size, max(z.size - _N_OUTLIERS, 0))[max(z.size - _N_OUTLIERS, 0)])
        top = np.flatnonzero(size >= least * (1.0 - ROUNDING))
        top = top[ordered(-size[top])[:_N_OUTLIERS]]
        new = zip(z[top].tolist(), rows.number[top].tolist(), rows.task[top].tolist(), strict=True)
        candidates = [*self._outliers, *new]
        self._outliers = [
            candidates[k] for k in ordered([-abs(outlier[0]) for outlier in candidates])[:_N_OUTLIERS]
        ]

    def checks(self) -> PredictiveChecks:
        """Return the checks of all rows so far.

        Raises
        ------
        InputError
            No row was checked.
        """
        if not self._tasks[0].any():
            raise InputError(
                f"None of {self._seen} rows can be checked"
                + (": no other row has the features of any of them." if self._alone else ". Add rows first.")
            )
        keys = self._posterior.moments.keys
        return PredictiveChecks(
            keys=keys,
            actions=self._features.actions,
            columns=self._features.columns,
            learned_from=self._learned,
            learned_rows=float(self._posterior.moments.n_rows),
            by_task=Residuals(self._tasks.copy(), self._learned),
            by_action=Residuals(self._actions.copy(), self._learned) if self._count else None,
            pit=self._pit.copy(),
            alone=self._alone,
            gram=self._gram.copy(),
            score_tests=tuple(self._curves.score_tests(self._posterior, self._noise)),
            distances=None if self._central is None else task_distances(self._central),
            outliers=_outliers(self._outliers, keys.values),
            values=None if self._values is None else tuple(self._values.tolist()),
        )


_N_COLUMNS = len(residual_columns(*np.zeros((3, 1))))


class _Rows(NamedTuple):
    """Task, action, standardised context columns and number of each row."""

    task: Codes
    action: Codes
    scaled: Array
    number: Codes

    def some(self, rows: Codes) -> "_Rows":
        return _Rows(self.task[rows], self.action[rows], self.scaled[rows], self.number[rows])


def _left_out(residual: Array, variance: Array, counts: Array, noise: Array) -> tuple[Array, Array, Array]:
    """Return standardised residuals with ``counts`` of each row left out, 1 - h, and h / (1 - h)."""
    h = counts * variance / noise
    free = 1.0 - h
    safe = np.where(free > _MIN_FREE, free, 1.0)
    return residual / (safe * np.sqrt(noise + variance / safe)), free, h / safe


def _predicted_anew(residual: Array, variance: Array, noise: Array) -> tuple[Array, Array, Array]:
    """Return standardised residuals of rows that were not learned from, 1, and the share of theta in their variance."""
    total = noise + variance
    return residual / np.sqrt(total), np.ones(residual.size), variance / total


def _tables(posterior: TaskPosterior, blocks: int) -> tuple[Array, Array]:
    """Return means and packed covariances of tasks, or of the blocks of each task one after the other."""
    table = posterior.table()
    means, covs = np.asarray(table.means), np.asarray(table.covs)
    if means.ndim == 2 and blocks > 1:
        p = posterior.dim // blocks
        i, j = triangle(p)
        first = p * np.arange(blocks)[:, None]
        covs = covs[:, ((first + j) * (first + j + 1) // 2 + first + i).reshape(-1)]
    p = posterior.dim // blocks
    return normalised(means.reshape(-1, p)), normalised(covs.reshape(-1, packed_size(p)))


def _outliers(rows: Sequence[tuple[float, int, int]], tasks: NDArray[np.generic]) -> tuple[Outlier, ...]:
    return tuple(Outlier(number, tasks[s : s + 1].tolist()[0], z) for z, number, s in rows)
