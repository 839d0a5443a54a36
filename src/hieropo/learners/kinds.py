"""Kinds of tasks that a log shows, in a summary."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.brief import brief
from hieropo._utils.packed import unpack
from hieropo._utils.text import paragraph, table
from hieropo.estimation.crossed.kinds import TaskKinds
from hieropo.estimation.crossed.mixture import CrossedMixture
from hieropo.moments.in_shards import totals
from hieropo.report import Block, Grid, Text
from hieropo.rows.ids import plain

_HEAD = ("kind", "tasks", "share", "best action")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of tasks.

    Attributes
    ----------
    kind : int
        Its number, 1 for the largest.
    tasks : int
        Tasks of the log whose most probable kind it is.
    share : float
        Mean of its probability over the tasks of the log.
    best_action : id
        The action of the largest mean reward in tasks of this kind, over the contexts of the log.
    """

    kind: int
    tasks: int
    share: float
    best_action: Any

    __repr__ = brief


def kinds_of(posterior: Any, actions: Sequence[Any] | None) -> tuple[tuple[Kind, ...], str]:
    """Return the kinds of tasks that a log shows, and a sentence on them; nothing where it shows none."""
    kinds = posterior.task_kinds if isinstance(posterior, CrossedMixture) else None
    if kinds is None:
        return (), ""
    means = kinds.effects @ _mean_features(posterior)
    best = means.argmax(axis=1).tolist()
    seen = posterior.moments.rows.any(axis=1)
    some = kinds.probability[seen]
    counts = np.bincount(some.argmax(axis=1), minlength=some.shape[1])
    names = list(range(means.shape[1])) if actions is None else list(actions)
    listed = tuple(
        Kind(k + 1, int(counts[k]), float(some[:, k].mean()), names[best[k]]) for k in range(some.shape[1])
    )
    return listed, _verdict(kinds, some)


def _mean_features(posterior: CrossedMixture) -> Array:
    """Mean features (p,) of an action over the rows of the log."""
    moments = posterior.log_moments
    p = moments.unit_dim
    sums = unpack(totals(moments).sums.sum(axis=(0, 1)), p + 2)
    return np.asarray(sums[:p, p + 1] / sums[p + 1, p + 1])


def _verdict(kinds: TaskKinds, probability: Array) -> str:
    n = probability.shape[1]
    certain = int(np.count_nonzero(probability.max(axis=1) > 0.9))
    return (
        f"Tasks are of several kinds (log Bayes factor against one kind {kinds.log_odds:.1f}). The probability of {n} "
        f"kinds is {kinds.numbers[n]:.2g}. For {certain} of {len(probability)} tasks one kind has a probability above "
        ".9. The best action of a kind has the largest mean reward over its tasks; a single task may have another best "
        "action."
    )


def kinds_in_words(kinds: Sequence[Kind], verdict: str) -> list[str]:
    """Return the kinds as a table with its explanation; nothing where there are none."""
    return [table([_HEAD, *_lines(kinds)]) + "\n" + paragraph(verdict)] if kinds else []


def kinds_blocks(kinds: Sequence[Kind], verdict: str) -> list[Block]:
    """Return the kinds as a table of a report; nothing where there are none."""
    if not kinds:
        return []
    return [Grid(_HEAD, tuple(tuple(line) for line in _lines(kinds)), "Kinds of tasks"), Text(verdict)]


def _lines(kinds: Sequence[Kind]) -> list[list[str]]:
    return [
        [str(one.kind), f"{one.tasks:,}", f"{one.share:.0%}", str(plain(one.best_action))] for one in kinds
    ]
