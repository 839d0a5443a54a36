"""Cross-fitting: policies learned without a fold of the rows, for the evaluation of that fold."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo._utils.packed import pack, packed_size, unpack
from hieropo._utils.progress import steps
from hieropo._utils.text import counted
from hieropo._utils.threads import in_threads, processors
from hieropo.errors import HieropoWarning, NumericalError
from hieropo.evaluation.passes.judging import Predictions
from hieropo.evaluation.passes.subject import Subject
from hieropo.features.maps import FeatureMap
from hieropo.features.per_action import Crossed
from hieropo.moments.statistics import Moments
from hieropo.passes.identifiability import gram_blocks, open_actions, sizes
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.ids import plain
from hieropo.rows.keys import Keys

_MAX_NAMED = 5
_PIECE = 2048  # tasks marginalised at once
_ROUNDING = 1e-9  # rounding error of the scaled sums of squares of an action in a task
REMEDY = "Leave rare actions out, merge them, use task_cov='crossed', or evaluate on later rows."


class Judge:
    """A policy and its predictions, by the codes of a feature map of which it may lack actions.

    Parameters
    ----------
    policy : LCBPolicy
    log : Keys
        The tasks of the log, all known to the policy.
    features : FeatureMap
        The map whose codes are used.
    """

    def __init__(self, policy: LCBPolicy, log: Keys, features: FeatureMap) -> None:
        assert policy.features is not None
        keys: Any = policy.table.keys  # of a table with ids
        self.policy = policy
        self._table_rows = np.asarray(keys.require(log.values))
        self._predictions = Predictions(np.asarray(policy.table.means), policy.features)
        self._known_codes: Codes | None = None
        if policy.features.fingerprint != features.fingerprint:
            self._known_codes = features.action_codes(policy.features.actions)
            self._policy_codes = np.full(len(features.actions or ()), -1)
            self._policy_codes[self._known_codes] = np.arange(self._known_codes.size)

    def choose(self, tasks: Any, context: Array, mask: Mask | None) -> Codes:
        """Return the chosen actions (n,); the first eligible one in rows where the policy has no eligible action."""
        if self._known_codes is None:
            return np.asarray(self.policy.choose_many(tasks, context, eligible=mask).index[:, 0])
        if mask is None:
            return np.asarray(self._known_codes[self.policy.choose_many(tasks, context).index[:, 0]])
        mask_of_known = mask[:, self._known_codes]
        chosen: Codes = mask.argmax(axis=1)
        rows = np.flatnonzero(mask_of_known.any(axis=1))
        if rows.size:
            best = self.policy.choose_many(tasks[rows], context[rows], eligible=mask_of_known[rows]).index[
                :, 0
            ]
            chosen[rows] = self._known_codes[best]
        return chosen

    def own_features(self, context: Array) -> Array | None:
        """Return the features (n, p) of contexts (n, c) that all actions have; None where they depend on the action."""
        return self._predictions.own_features(context)

    def predict(self, task: Codes, context: Array, codes: Codes, own: Array | None = None) -> Array:
        """Predict the rewards of actions (n,) in contexts (n, c) of the tasks ``task`` (n,) of the log.

        An action that the policy lacks gets the mean prediction of all others. ``own`` are the :meth:`own_features` of
        the contexts, where they are there already.
        """
        table_rows = self._table_rows[task]
        if self._known_codes is None:
            return self._predictions.of(table_rows, context, codes, own)
        codes_of_policy = self._policy_codes[codes]
        predictions = self._predictions.of(table_rows, context, np.maximum(codes_of_policy, 0), own)
        unknown = np.flatnonzero(codes_of_policy < 0)
        if unknown.size:
            others = [
                self._predictions.of(table_rows[unknown], context[unknown], np.full(unknown.size, k))
                for k in range(self._known_codes.size)
            ]
            predictions[unknown] = np.mean(others, axis=0)
        return predictions


@dataclass(frozen=True, eq=False)
class CrossFit:
    """Policies, each learned without one fold of the rows.

    Attributes
    ----------
    policies : tuple of LCBPolicy
        One for each fold; none where they could not be learned.
    missing : tuple of int
        Codes of actions that no policy has, since the rows outside some fold do not identify their coefficients.
    refused : str or None
        Reason why there are no policies.
    rests : tuple of Moments
        Moments of the rows that each was learned from.
    """

    policies: tuple[LCBPolicy, ...]
    missing: tuple[int, ...] = ()
    refused: str | None = None
    rests: tuple[Moments, ...] = ()

    def limits(self, features: FeatureMap, counts: Codes) -> tuple[str, ...]:
        """Return sentences about missing actions, of which the log has ``counts`` (K,) rows."""
        if not self.missing or self.refused is not None:
            return ()
        text = (
            f"Without a fifth of the rows the coefficients of {named(features, self.missing, counts)} are not "
            "identified: importance-weighted estimates are of policies that were learned without "
            f"{self._them}. {REMEDY}"
        )
        return (text,)

    def withheld(self, features: FeatureMap, counts: Codes, rows: int) -> str:
        """Return the reason to withhold estimates of a policy that takes missing actions in ``rows`` rows."""
        return (
            f"in {counted(rows, 'row')} the policy takes {named(features, self.missing, counts)}, and policies that "
            f"were learned without a fifth of the rows cannot take {self._them}"
        )

    @property
    def _them(self) -> str:
        return "it" if len(self.missing) == 1 else "them"


def cross_fit(
    subject: Subject, parts: Sequence[Moments], counts: Codes, base: Moments | None = None
) -> CrossFit:
    """Learn, for each fold of the rows of ``base``, a policy from the other folds.

    Where these do not identify the coefficients of some actions, all policies are learned without those actions.

    Parameters
    ----------
    subject : Subject
    parts : sequence of Moments
    counts : (K,) int array
        Rows of each action, for messages.
    base : Moments, optional
        Default: the moments that the policy was learned from.
    """
    all_moments: Any = subject.moments if base is None else base
    features = subject.features
    rests: list[Any] = in_threads(lambda part: all_moments - part, parts, processors())
    without_fold = tuple(rests)
    missing: tuple[int, ...] = ()
    try:
        if not all_moments.per_action:
            size = sizes(gram_blocks(all_moments, features))
            missing = tuple(sorted({code for rest in rests for code in open_actions(rest, features, size)}))
            if missing:
                rests, features = _without(rests, subject, missing, size)
        return CrossFit(tuple(_learned(subject, rests, features)), missing, rests=without_fold)
    except NumericalError as error:
        return CrossFit((), missing, _refusal(subject.features, missing, counts, error))


def _learned(subject: Subject, rests: Sequence[Moments], features: FeatureMap) -> list[LCBPolicy]:
    """Learn a policy from each of some moments; the folds share the processors."""
    numbers = iter(steps(range(len(rests)), "Learning without fold", len(rests)))
    lock = Lock()

    def learned(rest: Moments) -> LCBPolicy:
        with lock:
            next(numbers)
        return LCBPolicy(subject.relearn(rest, features), features, pessimism=subject.plain.pessimism)

    with warnings.catch_warnings():  # of the process, so that threads must not set them
        warnings.simplefilter("ignore", HieropoWarning)  # given when the policy was learned
        return in_threads(learned, rests, processors())


def _without(
    rests: list[Any], subject: Subject, missing: tuple[int, ...], size: Array
) -> tuple[list[Moments], FeatureMap]:
    features = subject.features
    assert isinstance(features, Crossed)
    if not subject.by_words:
        raise NumericalError("Settings that are arrays over features need all actions.")
    if len(missing) == len(features.actions):
        raise NumericalError("No action has enough rows.")
    reduced = [without_actions(rest, features, missing, size) for rest in rests]
    return [moments for moments, _ in reduced], reduced[0][1]


def _refusal(features: FeatureMap, missing: tuple[int, ...], counts: Codes, error: NumericalError) -> str:
    needed = (
        "Importance-weighted estimates on rows that the policy was learned from need cross-fitted policies"
    )
    if missing:
        return (
            f"{needed}, and without a fifth of the rows the coefficients of {named(features, missing, counts)} are not "
            f"identified. {error} {REMEDY}"
        )
    return f"{needed}, and without a fifth of the rows none could be learned. {error}"


def named(features: FeatureMap, codes: tuple[int, ...], counts: Codes) -> str:
    """Return the names of actions, each with its number of rows, as text."""
    actions = features.actions or ()
    texts = [f"{plain(actions[k])!r} ({counted(int(counts[k]), 'row')})" for k in codes[:_MAX_NAMED]]
    more = f", ... ({len(codes) - _MAX_NAMED} more)" if len(codes) > _MAX_NAMED else ""
    return f"the action{'s' * (len(codes) > 1)} {', '.join(texts)}{more}"


def without_actions(
    moments: Moments, features: Crossed, actions: Sequence[int], size: Array
) -> tuple[Moments, Crossed]:
    """Return the moments of d = K p features, and the map, without actions that have coefficients of their own.

    The coefficients of action a in a task are eliminated as free parameters, S - S_.a S_aa^+ S_a. What remains of rows
    of these actions informs the noise variance alone.

    Parameters
    ----------
    moments : Moments
    features : Crossed
        Their feature map, with separate coefficients for each action.
    actions : sequence of int
        Codes of the actions to leave out.
    size : (K, p) array
        Roots of the sums of squares of each action's features in a log with these rows, as the scale for rounding.
    """
    count, d = len(features.actions), moments.dim
    p, remaining_actions = d // count, np.setdiff1d(np.arange(count), actions)
    fewer = replace(features, actions=tuple(features.actions[k] for k in remaining_actions))
    positions = np.append((remaining_actions[:, None] * p + np.arange(p)).reshape(-1), [d, d + 1])
    sums, rows = np.empty((len(moments), packed_size(fewer.dim + 2))), moments.rows.copy()
    for start in range(0, len(moments), _PIECE):
        part = slice(start, start + _PIECE)
        matrices = unpack(moments.sums[part], d + 2)
        for action in actions:
            coefficients = np.arange(action * p, (action + 1) * p)
            explained, rank = _explained(
                matrices[:, coefficients[:, None], coefficients],
                matrices[:, coefficients[:, None], [d, d + 1]],
                size[action],
            )
            matrices[:, d:, d:] -= explained
            rows[part] -= rank
        sums[part] = pack(matrices[:, positions[:, None], positions])
    offset = None if moments.offset is None else moments.offset[positions[:-2]]
    remaining = Moments(
        moments.keys, fewer.dim, sums, rows, moments.log_precision, fewer.fingerprint, unit_offset=offset
    )
    return remaining, fewer


def _explained(gram: Array, c: Array, size: Array) -> tuple[Array, Codes]:
    """Return c' G^+ c (n, 2, 2) for G (n, p, p) in units of ``size`` (p,) and c (n, p, 2); and the ranks (n,)."""
    safe = np.where(size > 0, size, 1.0)
    values, vectors = np.linalg.eigh(gram / np.outer(safe, safe))
    determined = values > _ROUNDING
    rotated = np.swapaxes(vectors, 1, 2) @ (c / safe[:, None])
    scaled = rotated * np.where(determined, 1.0 / np.where(determined, values, 1.0), 0.0)[:, :, None]
    return np.swapaxes(rotated, 1, 2) @ scaled, determined.sum(axis=1)
