"""The second pass over a log: the choices of the policy in every row, their sums, and checks of predictions."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo.evaluation.diagnostics.predictive import Checks, PredictiveChecks
from hieropo.evaluation.passes.first_pass import eligible
from hieropo.evaluation.passes.subject import AnyPolicy
from hieropo.features.maps import FeatureMap
from hieropo.logging_policy.incumbents import ranks
from hieropo.moments.units import one_action
from hieropo.rows.batches import Batch
from hieropo.rows.keys import Keys

_NARROW = 8  # columns up to which adding one after the other is quicker than sorting


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of a log, with what a policy would do in them.

    Parameters
    ----------
    batch : Batch
    place : (n,) int
        Row of each task in the tables.
    codes : (n,) int
        The logged action.
    mask : (n, K) bool or None
        Eligible actions.
    index : (n,) int
        The policy's action; where a gate keeps the incumbent, the logged one.
    kept : (n,) bool
        Mask of the rows in which a gate keeps the incumbent.
    """

    batch: Batch
    place: Codes
    codes: Codes
    mask: Mask | None
    index: Codes
    kept: Mask


class Reader(Protocol):
    """A consumer of rows, batch by batch."""

    def add(self, rows: Rows) -> None:
        """Add a batch of rows."""


def judge(batches: Iterable[Batch], policy: AnyPolicy, keys: Keys, readers: Sequence[Reader]) -> None:
    """Compute the action of the policy in every row, and pass the rows to the readers, which share the processors.

    Parameters
    ----------
    batches : iterable of Batch
    policy : LCBPolicy or GatedPolicy
        With a feature map that lists actions.
    keys : Keys
        All tasks of the log.
    readers : sequence of Reader
    """
    features = policy.features
    assert features is not None
    waiting: Future[None] | None = None
    with ThreadPoolExecutor(1) as pool:
        for batch in batches:
            codes = features.action_codes(batch.action, first_row=batch.first_row)
            mask = eligible(features, batch, codes)
            place = np.asarray(keys.require(batch.task))
            found = policy.choose_many(batch.task, batch.context, eligible=mask, first_row=batch.first_row)
            chosen = found.index[:, 0]
            kept = chosen < 0
            rows = Rows(batch, place, codes, mask, np.where(kept, codes, chosen), kept)
            if waiting is not None:
                waiting.result()
            waiting = pool.submit(readers[-1].add, rows)
            for reader in readers[:-1]:
                reader.add(rows)
        if waiting is not None:
            waiting.result()


class FeatureSums:
    """Sum of w phi(x, a) for each task: of the policy's actions, and of the logged ones.

    Parameters
    ----------
    features : FeatureMap
    m : int
        Tasks.

    Attributes
    ----------
    shift : ActionFeatures or None
        Mean features of the actions of the cross-fitted policies less those of the policy, where these differ.
    """

    def __init__(self, features: FeatureMap, m: int) -> None:
        self.shift: ActionFeatures | None = None
        self._new, self._old = (ActionFeatures(features, m) for _ in range(2))
        self._weight = np.zeros(m)
        self._actions = np.zeros((2, len(features.actions or ())))

    def add(self, rows: Rows) -> None:
        """Add rows."""
        batch = rows.batch
        weight = batch.weights.counts(len(batch))
        self._weight += np.bincount(rows.place, weight, minlength=self._weight.size)
        self._new.add(rows.place, batch.context, rows.index, weight)
        self._old.add(rows.place, batch.context, rows.codes, weight)
        count = self._actions.shape[1]
        self._actions += [np.bincount(codes, weight, count) for codes in (rows.index, rows.codes)]

    @property
    def weight(self) -> Array:
        """Weight of each task (m,)."""
        return self._weight

    @property
    def actions(self) -> Array:
        """Shares (2, K) of the rows in which the policy takes each action, and in which the log has it."""
        return np.asarray(self._actions / self._weight.sum())

    @property
    def new(self) -> Array:
        """Of the policy's actions, (m, d)."""
        return self._new.sums

    @property
    def old(self) -> Array:
        """Of the logged actions, (m, d)."""
        return self._old.sums


class ActionFeatures:
    """Sum of w phi(x, a) for each of m tasks.

    Parameters
    ----------
    features : FeatureMap
    m : int
        Tasks.
    """

    def __init__(self, features: FeatureMap, m: int) -> None:
        self._features, self._tasks = features, m
        self._own = one_action(features)
        self._actions = len(features.actions or ())
        width = features.dim if self._own is None else self._own.dim
        self._total = np.zeros((m if self._own is None else m * self._actions, width))

    def add(self, place: Codes, context: Array, codes: Codes, weight: Array) -> None:
        """Add rows of weight (n,) with actions ``codes`` (n,) in contexts (n, c) of the tasks at ``place`` (n,)."""
        if self._own is None:
            add_by(self._total, place, self._features.phi(context, codes) * weight[:, None])
        else:
            own = self._own.phi(context, np.zeros(codes.size, dtype=np.int64)) * weight[:, None]
            add_by(self._total, place * self._actions + codes, own)

    @property
    def sums(self) -> Array:
        """Of each task, (m, d)."""
        return self._total.reshape(self._tasks, self._features.dim)


def add_by(total: Array, rows: Codes, values: Array) -> None:
    """Add values (n, p) to the rows (n,) of total (r, p)."""
    if values.shape[1] <= _NARROW or not rows.size:
        for j in range(values.shape[1]):
            np.add.at(total[:, j], rows, values[:, j])
        return
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    total[ordered[starts]] += np.add.reduceat(values[order], starts, axis=0)


class Predictions:
    """Predictions phi' mean of the rewards of actions, from a table of posterior means.

    Parameters
    ----------
    means : (m, d) or (m, K, p) array
        Of the tasks in the order of the log's keys.
    features : FeatureMap
    """

    def __init__(self, means: Array, features: FeatureMap) -> None:
        self._own = one_action(features)
        self._features = features
        count = len(features.actions or ())
        shape = (
            (len(means), features.dim) if self._own is None else (len(means), count, features.dim // count)
        )
        self._means = np.asarray(means).reshape(shape)

    def own_features(self, context: Array) -> Array | None:
        """Return the features (n, p) of contexts (n, c) that all actions have; None where they depend on the action."""
        return None if self._own is None else self._own.phi(context, np.zeros(len(context), dtype=np.int64))

    def of(self, place: Codes, context: Array, codes: Codes, own: Array | None = None) -> Array:
        """Predict the reward of an action (n,) in a context (n, c) of the task in a row (n,).

        ``own`` are the :meth:`own_features` of the contexts, where they are there already.
        """
        own = self.own_features(context) if own is None else own
        if own is None:
            return np.asarray(np.einsum("nd,nd->n", self._features.phi(context, codes), self._means[place]))
        return np.asarray(np.einsum("np,np->n", own, self._means[place, codes]))


class Contexts:
    """Rows that stand for a task: up to a number of them, evenly spaced, with what the policy does there.

    Parameters
    ----------
    counts : (m,) int
        Rows of each task.
    most : int
        Kept of each.
    """

    def __init__(self, counts: Codes, most: int) -> None:
        self._every = np.maximum(1, -(-counts // most))
        self._seen = np.zeros(counts.size, dtype=np.int64)
        self._parts: list[tuple[Codes, Any, Codes, Any, Any]] = []

    def add(self, rows: Rows) -> None:
        """Keep those whose turn it is."""
        turn = (self._seen[rows.place] + ranks(rows.place)) % self._every[rows.place] == 0
        self._seen += np.bincount(rows.place, minlength=self._seen.size)
        at = np.flatnonzero(turn)
        batch = rows.batch
        weight = batch.weights.some(at).counts(at.size)
        mask = None if rows.mask is None else rows.mask[at]
        self._parts.append((rows.place[at], batch.context[at], rows.index[at], weight, mask))

    def collected(self) -> tuple[Codes, Array, Codes, Array, Mask | None]:
        """Return task row, context, the policy's action, weight and eligible actions of what was kept."""
        parts = self._parts
        masks = [part[4] for part in parts]
        return (
            np.concatenate([part[0] for part in parts]),
            np.concatenate([part[1] for part in parts]),
            np.concatenate([part[2] for part in parts]),
            np.concatenate([part[3] for part in parts]),
            None if masks[0] is None else np.concatenate(masks),
        )


class Checking:
    """Hands rows of a log to predictive checks.

    Parameters
    ----------
    posterior : Posterior or one with the same views
        With all tasks of the log.
    features : FeatureMap
    keys : Keys
        The tasks of the log.
    learned_from : bool
        True where the posterior was learned from these rows; each is then predicted without itself.
    """

    def __init__(self, posterior: Any, features: FeatureMap, keys: Keys, *, learned_from: bool) -> None:
        self._checks = Checks(posterior, features, learned_from=learned_from)
        self._at = np.asarray(posterior.moments.keys.require(keys.values))

    def add(self, rows: Rows) -> None:
        """Add a batch of rows."""
        batch = rows.batch
        number = batch.first_row + np.arange(len(batch)) if batch.rows is None else batch.rows
        self._checks.add(
            self._at[rows.place],
            rows.codes,
            batch.context,
            batch.reward,
            batch.weight,
            batch.precision,
            number=number,
        )

    def checks(self) -> PredictiveChecks:
        """Return the checks of all rows so far."""
        return self._checks.checks()
