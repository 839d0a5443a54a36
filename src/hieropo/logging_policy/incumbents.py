"""Logs of an informed incumbent: its choices as metadata of tasks, and tests of its knowledge and its learning.

The model takes actions as independent of theta_s given the context. An incumbent that knew theta_s took good actions
more often. An action that was hardly taken in a task is then likely to be bad there, and a prior that is the same for
all tasks overrates it. If the incumbent was frozen, that is, did not learn from these rows, its shares are metadata of
the task:

    theta_sa = mu_a + kappa (g_sa - mean of g_a over tasks) + u_sa,   g_sa = log p(a | s) - mean over a of log p(a | s)

with p(a | s) the share of a in the task's rows, shrunk to that of all tasks, and one kappa, learned with mu. For a
softmax of beta theta_sa, kappa is 1 / beta. With contexts, an incumbent that knew slopes took an action at those x
where it is good. Then g are the coefficients of a logit of its choices in each task (:mod:`choice_logits`), with one
kappa for intercepts and one for slopes, since it may have known only one of them. If the incumbent learned from these
rows, its choices repeat the information of the rewards, and must not be used.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import packed_size, triangle, unpack
from hieropo._utils.ties import ROUNDING
from hieropo.errors import InputError, NumericalError
from hieropo.features.maps import FeatureMap
from hieropo.features.per_action import Crossed
from hieropo.logging_policy.action_logit import learn_shares
from hieropo.logging_policy.choice_logits import choice_logits
from hieropo.model.crossed.hierarchy import CrossedHierarchy, typical_noise
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.metadata import Metadata
from hieropo.model.posterior import condition
from hieropo.moments.statistics import Moments

Logging = Literal["random", "frozen", "adaptive", "unknown"]

NAME = "how often the incumbent took the action"
WHERE = "in which contexts the incumbent took the action"
CLEAR = math.log(10.0)  # log evidence for the incumbent's choices, from which a fit uses them by itself
KNEW = 4.0  # kappa in standard errors from which the incumbent is reported as informed
_MAX_DIM = 200  # features up to which joint posteriors of tasks are used
_MIN_RANGE = 0.01  # of log shares, below which they are taken as equal
_MAX_TASKS = 2_000  # that are used to test the knowledge of the incumbent


def action_counts(moments: Moments, features: FeatureMap) -> Array:
    """Return the rows of each action in each task, (m, K), from the sums of intercepts; weighted.

    Raises
    ------
    InputError
        The map does not give each action an intercept of its own.
    """
    if not has_intercepts(features):
        raise InputError(
            "logging='frozen' uses the shares of actions as metadata of intercepts, and this feature map does not give "
            "each action an intercept of its own. Use features='per-action' or 'indicator'."
        )
    count = len(features.actions or ())
    if moments.per_action:
        return np.asarray(moments.sums[:, :, packed_size(moments.unit_dim + 1)])
    ones = np.asarray(moments.sums)[:, packed_size(moments.dim + 1) :][:, : moments.dim]  # sum w phi
    return np.asarray(ones[:, :: moments.dim // count])


def has_intercepts(features: FeatureMap) -> bool:
    """Return True where each action has an intercept of its own."""
    return isinstance(features, Crossed) and features.table is None and features.intercept


def log_shares(counts: Array) -> Array:
    """Return g (m, K): logs of shrunken shares, less their mean over actions; 0 for actions that were never taken."""
    # sums of weights may be less than one row
    shares = learn_shares(np.where(counts > 0, np.maximum(counts, 1.0), 0.0))
    taken = shares.population > 0
    logs = np.zeros_like(counts, dtype=np.float64)
    logs[:, taken] = np.log(shares.strengths(np.arange(len(counts)))[:, taken])
    logs[:, taken] -= logs[:, taken].mean(axis=1, keepdims=True)
    return logs


def informed_metadata(moments: Moments, features: FeatureMap) -> Metadata | None:
    """Return the incumbent's choices as metadata of each task: X_s (d, 1), or (d, 2) with contexts.

    Without contexts X_s has g_sa at the intercept of each action. With contexts its first column has the intercepts of
    the task's logit of choices, and its second the slopes.

    None where choices do not vary between tasks; without contexts, where shares vary no more than at random.

    Raises
    ------
    InputError
        As :func:`action_counts`.
    """
    counts = action_counts(moments, features)
    m, count = counts.shape
    width = moments.dim // count
    values = np.zeros((m, count, width, min(width, 2)))
    if width == 1:
        values[:, :, 0, 0] = log_shares(counts)
    elif m:
        logits = choice_logits(counts, *_context_sums(moments, count))
        values[:, :, 0, 0], values[:, :, 1:, 1] = logits[:, :, 0], logits[:, :, 1:]
    values = values.reshape(m, moments.dim, -1)
    if m < 2:
        return None
    size = np.abs(values).max(axis=(0, 1))
    least = np.full_like(size, _MIN_RANGE) if width == 1 else np.maximum(ROUNDING * size, 1e-300)
    differ = np.ptp(values, axis=0).max(axis=0) >= least
    if not np.any(differ):
        return None
    names = np.array([NAME, WHERE])[: values.shape[2]][differ]
    return Metadata(moments.keys, values[:, :, differ], tuple(names.tolist()))


def uses_choices(hierarchy: Any) -> bool:
    """Return True where a hierarchy takes the incumbent's choices as metadata of its tasks."""
    metadata = getattr(hierarchy, "metadata", None)
    return metadata is not None and not {NAME, WHERE}.isdisjoint(metadata.names)


def _context_sums(moments: Moments, count: int) -> tuple[Array, Array]:
    """Return the sums of x over the rows of each action, (m, K, c), and of x x' over all rows, (m, c, c)."""
    if moments.per_action:
        p = moments.unit_dim
        of_actions = moments.sums[:, :, packed_size(p + 1) + 1 : packed_size(p + 1) + p]
        return of_actions, unpack(moments.sums.sum(axis=1), p)[:, 1:, 1:]
    m, d = len(moments), moments.dim
    width, sums = d // count, np.asarray(moments.sums)
    first = sums[:, packed_size(d + 1) :][:, :d].reshape(m, count, width)[:, :, 1:]
    rows, columns = triangle(width - 1)
    squares = np.zeros((m, width - 1, width - 1))
    for start in range(1, d, width):
        column = start + columns
        squares[:, rows, columns] += sums[:, column * (column + 1) // 2 + start + rows]
    squares[:, columns, rows] = squares[:, rows, columns]
    return first, squares


def knowledge(moments: Moments, features: FeatureMap, hierarchy: Hierarchy) -> float | None:
    """Return kappa over its standard error, given the covariances of a hierarchy; None where it cannot be estimated.

    For two kappas it is the sum of both so scaled, over the standard error of that sum. It is approximately standard
    normal where the incumbent knew nothing of the tasks, and large where it did. It is also large for an incumbent that
    learned from these rows, which :class:`Reactions` tests.
    """
    if not has_intercepts(features) or hierarchy.levels or hierarchy.metadata is not None:
        return None
    sample = (
        moments.select(moments.tasks[:: -(-len(moments) // _MAX_TASKS)])
        if len(moments) > _MAX_TASKS
        else moments
    )
    metadata = informed_metadata(sample, features)
    if metadata is None:
        return None
    try:
        root = condition(sample, replace(hierarchy, hyper=None, metadata=metadata)).hyper
    except NumericalError:
        return None
    kappa = slice(moments.dim, None)
    sd = root.sd[kappa]
    if not (sd > 0).all():
        return None
    z, correlation = root.mean[kappa] / sd, root.cov[kappa, kappa] / np.outer(sd, sd)
    return float(z.sum() / np.sqrt(correlation.sum())) if correlation.sum() > 0 else None


def crossed_knowledge(moments: Moments, features: FeatureMap, hierarchy: CrossedHierarchy) -> float | None:
    """Return :func:`knowledge` under the crossed prior; None also where there are too many coefficients."""
    K, d = moments.n_actions, moments.dim
    if d > _MAX_DIM or hierarchy.levels or hierarchy.metadata is not None:
        return None
    sample = (
        moments.at(slice(None, None, -(-len(moments) // _MAX_TASKS)))
        if len(moments) > _MAX_TASKS
        else moments
    )
    cov = np.tile(hierarchy.level_cov, (K, K)) + np.kron(np.eye(K), hierarchy.interaction_cov)
    return knowledge(sample.dense(), features, Hierarchy(None, cov, typical_noise(hierarchy.noise_var)))


@dataclass(frozen=True, slots=True)
class Reaction:
    """The result of the test that actions do not react to earlier rewards.

    Attributes
    ----------
    z : float
        Approximately standard normal under the null; positive where an action is more frequent after high rewards.
    tasks : int
        Number of tasks with two rows or more.
    """

    z: float
    tasks: int

    @property
    def p_value(self) -> float:
        """Return the two-sided p-value."""
        from scipy.special import ndtr

        return float(2 * ndtr(-abs(self.z)))


class Reactions:
    """Sums e_t (share of a_t after row t - share of a_t in all rows) over each task, batch by batch.

    e_t is the residual of the reward of row t. Given all actions of a log whose incumbent did not learn from it, e_t
    has mean 0, whatever the incumbent knew. Sums over tasks are then independent with mean 0.

    Parameters
    ----------
    counts : (m, K) int
        Rows of each action in each task, of the whole log.
    """

    def __init__(self, counts: Codes) -> None:
        self._counts, self._rows = counts, counts.sum(axis=1)
        self._before, self._sofar = np.zeros_like(counts), np.zeros(len(counts), dtype=np.int64)
        self._sums = np.zeros(len(counts))

    def add(self, task: Codes, codes: Codes, residual: Array) -> None:
        """Add rows in the order of time: task row, action and residual (n,)."""
        width = self._counts.shape[1]
        rank, cell_rank = ranks(task), ranks(task * width + codes)
        total, later = self._rows[task], self._rows[task] - (self._sofar[task] + rank + 1)
        same = self._counts[task, codes] - (self._before[task, codes] + cell_rank + 1)
        share = np.divide(same, later, out=np.zeros(task.size), where=later > 0)
        difference = np.where(
            later > 0, share - (self._counts[task, codes] - 1) / np.maximum(total - 1, 1), 0.0
        )
        self._sums += np.bincount(
            task, residual * difference * later / np.maximum(total, 1), minlength=self._sums.size
        )
        np.add.at(self._before, (task, codes), 1)
        self._sofar += np.bincount(task, minlength=self._sofar.size)

    def reaction(self) -> Reaction:
        """Return the test of all rows so far."""
        sums = self._sums[self._rows >= 2]
        sd = float(np.sqrt((sums**2).sum()))
        return Reaction(float(sums.sum()) / sd if sd > 0 else 0.0, int(sums.size))


def ranks(groups: Codes) -> Codes:
    """Return the number of earlier rows of the same group, for each row (n,)."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    if not ordered.size:
        return ordered
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    lengths = np.diff(np.append(starts, ordered.size))
    result = np.empty(ordered.size, dtype=np.int64)
    result[order] = np.arange(ordered.size) - np.repeat(starts, lengths)
    return result
