"""What a sceptic would do with a log: one action for all, one regression for all tasks, one for each task."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hieropo.core.arrays import Array, Codes
from hieropo.core.features import FeatureMap
from hieropo.core.packed import unpack
from hieropo.core.ties import first_largest
from hieropo.core.units import UnitMoments, one_action
from hieropo.evaluation.folds import FOLDS
from hieropo.evaluation.kept_rows import Kept
from hieropo.evaluation.subject import AnyMoments

_PIECE = 2048  # tasks at once
MOST = 4e8  # features of all candidates in all rows
WORK = 2e9  # multiplications that regressions of all tasks may take
_NOTHING = 1e-12


@dataclass(frozen=True, eq=False)
class Blocks:
    """Sums over the rows of each task, by actions where these have coefficients of their own (B = K), else B = 1.

    Parameters
    ----------
    gram, cross : (m, B, p, p), (m, B, p) array
        Sums of w phi phi', and of w phi r.
    weight, rewards : (m,) array
        Sums of w, and of w r.
    n_rows : float
        Rows of all tasks.
    offset : (B, p) array
        Coefficients of a prediction that was taken off r.
    intercept : bool
        Whether the first feature is 1.
    """

    gram: Array
    cross: Array
    weight: Array
    rewards: Array
    n_rows: float
    offset: Array
    intercept: bool


def work_of(features: FeatureMap, tasks: int) -> float:
    """Return about how many multiplications :func:`separate` takes for all folds."""
    b, p = _shape(features)
    return float(FOLDS * tasks * b * p**3)


def _shape(features: FeatureMap) -> tuple[int, int]:
    own = one_action(features)
    return (1, features.dim) if own is None else (len(features.actions or ()), own.dim)


def blocks_of(moments: AnyMoments, features: FeatureMap, *, together: bool = False) -> Blocks:
    """Return the sums of each task of some moments, or of all tasks together."""
    b, p = _shape(features)
    own, sums = one_action(features), np.asarray(moments.sums)
    if together:
        sums = sums.sum(axis=0, keepdims=True)
    m, apart = len(sums), isinstance(moments, UnitMoments)
    gram, cross, last = np.empty((m, b, p, p)), np.empty((m, b, p)), np.empty((m, 2))
    for start in range(0, m, _PIECE):
        part = slice(start, start + _PIECE)
        if apart:
            units = unpack(sums[part], p + 2)
            gram[part], cross[part] = units[..., :p, :p], units[..., :p, p]
            last[part] = units[..., p:, p + 1].sum(axis=1)
            continue
        d, at = moments.dim, np.arange(b)
        whole = unpack(sums[part], d + 2)
        blocks = whole[:, :d, :d].reshape(-1, b, p, b, p)
        gram[part] = blocks[:, at, :, at, :].swapaxes(0, 1)
        cross[part], last[part] = whole[:, :d, d].reshape(-1, b, p), whole[:, d:, d + 1]
    offset = np.zeros((b, p)) if moments.offset is None else moments.offset.reshape(b, p)
    count = float(moments.n_rows)
    return Blocks(gram, cross, last[:, 1], last[:, 0], count, offset, own is not None and own.intercept)


def ridge(blocks: Blocks) -> Array:
    """Return the coefficients (m, B, p) of a ridge regression of each task by itself.

    One row's worth of penalty draws the coefficients of an action towards the mean reward of the task, whatever the
    action. Of all tasks together it is the pooled regression.
    """
    p = blocks.gram.shape[-1]
    size = np.einsum("sbjj->j", blocks.gram) / max(blocks.n_rows, 1.0)
    penalty = np.where(size > _NOTHING, size, 1.0)
    aim = np.zeros(blocks.cross.shape)
    if blocks.intercept:
        aim[:, :, 0] = (blocks.rewards / np.where(blocks.weight > 0, blocks.weight, 1.0))[:, None]
    left = blocks.gram + penalty * np.eye(p)
    right = blocks.cross + penalty * aim
    return np.asarray(np.linalg.solve(left, right[..., None])[..., 0] + blocks.offset)


def action_scores(kept: Kept, chance: Array, n_actions: int) -> Array:
    """Return what each action is worth, taken always, by the rows outside each fold: weighted means (folds, K).

    An action that has no such row is worth -inf.
    """
    sums = np.zeros((2, FOLDS, n_actions))
    weight = kept.weight / chance
    for total, values in zip(sums, (weight, weight * kept.reward), strict=True):
        np.add.at(total, (kept.fold, kept.action), values)
    weights, rewards = sums.sum(axis=1, keepdims=True) - sums
    some = weights > _NOTHING * max(float(weight.sum()), 1.0)
    return np.asarray(np.where(some, rewards / np.where(some, weights, 1.0), -np.inf))


def best(scores: Array, mask: NDArray[np.bool_] | None) -> Codes:
    """Return the eligible action (n,) with the largest score (n, K); the first eligible one where none has a score."""
    if mask is not None:
        scores = np.where(mask, np.maximum(scores, -np.finfo(np.float64).max), -np.inf)
    return first_largest(scores)
