"""What a log can answer: refusals and warnings in the words of its own columns, actions and features."""

import inspect
import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo.core.columns import Checked
from hieropo.core.features import FeatureMap
from hieropo.core.ids import plain
from hieropo.core.logs import Batch
from hieropo.core.packed import packed_size, unpack
from hieropo.core.statistics import Moments
from hieropo.errors import HieropoWarning, InputError, NumericalError

_HUGE = 1e150  # the squares of smaller values, and sums of many of them, fit a float64
_COPIES = 3  # the running sums, the moments, the posterior
_FEW = 10  # rows that say nothing of how often an action comes
_SHOWN = 6


def refuse_huge(batch: Batch) -> None:
    """Refuse a reward or a context whose square does not fit a float64.

    Raises
    ------
    LogError
        Names the column, the row and the value.
    """
    assert batch.roles is not None
    columns = [(batch.roles.reward, batch.reward), *zip(batch.roles.context, batch.context.T, strict=True)]
    for name, values in columns:
        Checked(values, name, batch.first_row).refuse(
            np.abs(values) > _HUGE,
            "is so large that its square does not fit a float64. Does it stand for a missing value, or is the unit too "
            "small? Drop such rows, or rescale the column.",
        )


def refuse_too_large(tasks: int, features: int) -> None:
    """Refuse moments that the memory of this machine cannot hold.

    Raises
    ------
    InputError
        Says what is needed and what there is.
    """
    need = float(tasks) * packed_size(features + 2) * 8 * _COPIES
    have = _memory()
    if need > have:
        raise InputError(
            f"{features:,} features for {tasks:,} tasks take at least {need / 2**30:,.1f} GiB of memory, and this "
            f"machine has {have / 2**30:,.1f}. It grows with tasks times the square of the features. Name fewer "
            "context columns, or describe many actions by a few numbers each: embedding(actions, table)."
        )


def _memory() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not every system says
        return np.inf


def warn_of_actions(column: str, actions: Sequence[Any], rows: int) -> None:
    """Warn of a log whose actions leave nothing to choose, or hardly ever come twice."""
    if len(actions) == 1:
        warn(
            f"Column {column!r} holds one action, {actions[0]!r}, in all rows: the policy can choose no other."
        )
    elif rows > _FEW and 2 * len(actions) > rows:
        warn(
            f"Column {column!r} holds {len(actions):,} different actions in {rows:,} rows, so hardly any comes twice "
            "and little can be learned of each. Is it a quantity rather than the name of an action? Cut it into a few "
            "classes, or make it a context column and name no action."
        )


def other_type(known: Any, task: Any, row: str) -> str | None:
    """Text of a warning where tasks, none of them known, are of another type than those of the log; else None.

    Parameters
    ----------
    known, task : id
        A task of the log, and one of those that are unknown.
    row : str
        What a row is, such as "request".
    """
    if type(known) is type(task):
        return None
    mine, theirs = plain(known), plain(task)
    if type(mine) is type(theirs):
        return None
    return (
        f"No {row} is of a task that the log had: their ids are of type {type(theirs).__name__}, such as {theirs!r}, "
        f"those of the log of type {type(mine).__name__}, such as {mine!r}. Is it the right column? Bring its ids to "
        "the type that they had in the log."
    )


def refuse_undetermined(moments: Moments, features: FeatureMap, tolerance: float | None = None) -> None:
    """Refuse a log that leaves a coefficient open; with a flat hyper-prior nothing else would tell it.

    The scaled Gram matrix of all rows together then has an eigenvalue of zero, up to ``tolerance``.

    Raises
    ------
    NumericalError
        Names the features concerned, the likely cause and what to do.
    """
    d = moments.dim
    gram = unpack(moments.sums.sum(axis=0), d + 2)[:d, :d]
    size = np.sqrt(np.diagonal(gram))
    safe = np.where(size > 0, size, 1.0)
    values, vectors = np.linalg.eigh(gram / np.outer(safe, safe))
    room = 1e3 * d * float(np.finfo(np.float64).eps) if tolerance is None else tolerance
    left_open = vectors[:, values < room]
    if not left_open.size:
        return
    concerned = np.flatnonzero(np.linalg.norm(left_open, axis=1) > 1e-3)
    seen = concerned.size - left_open.shape[1]
    vary = f"only {seen} combination{'s' * (seen > 1)} of these {concerned.size}" if seen else "none of them"
    raise NumericalError(
        f"This log does not determine the coefficients of {_listed([features.names[j] for j in concerned])}: in its "
        f"rows {vary} can be told. {_cause(moments.n_rows, size, concerned, features)} In Python, a hyper-prior can "
        "fill the gap: known=Hierarchy(hyper=Gaussian(mean, cov), ...)."
    )


def _cause(rows: int, size: NDArray[np.float64], concerned: NDArray[np.int64], features: FeatureMap) -> str:
    if rows < features.dim:
        return f"It has fewer rows ({rows:,}) than there are features ({features.dim:,}): name fewer columns."
    if not size[concerned].any():
        return "They are 0 in every row: leave that column out."
    actions, intercept = features.actions, bool(getattr(features, "intercept", False))
    if actions is None:
        return _tied([features.names[j] for j in concerned], intercept=False)
    if getattr(features, "table", 0) is not None:
        return (
            "Columns, of the log or of the table of actions, are copies or sums of each other: leave one out."
        )
    each = features.dim // len(actions)
    rare = sorted({actions[k] for k in concerned // each}, key=actions.index)
    if len(rare) < len(actions):
        return (
            f"Too few rows, or too few different contexts, come with the action {_listed(rare)}: leave it out of the "
            "log, put rare actions together, or use the features 'indicator'."
        )
    spots = sorted(set((concerned % each).tolist()))
    return _tied(
        [features.columns[k - intercept] for k in spots if k >= intercept], intercept=intercept and 0 in spots
    )


def _tied(columns: list[str], *, intercept: bool) -> str:
    if not intercept:
        return f"The columns {_listed(columns)} are copies or sums of each other: leave one out."
    if len(columns) == 1:
        return (
            f"Column {columns[0]!r} is constant, or so far from 0 that its spread is lost in rounding: leave it out, "
            "or subtract its mean."
        )
    return (
        f"A sum of the columns {_listed(columns)} is constant, as where each class of a category has its 0/1 column: "
        "leave one out."
    )


def _listed(names: Sequence[Any]) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > _SHOWN else ""
    return ", ".join(repr(name) for name in names[:_SHOWN]) + more


def warn(text: str) -> None:
    """Warn at the line that called into this package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "hieropo":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, HieropoWarning, stacklevel=level)
