"""The first pass over a log: its sums, what was done how often, and whether a policy was learned from these rows."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hieropo.core.arrays import Array, Codes
from hieropo.core.features import FeatureMap
from hieropo.core.keys import Keys, Places
from hieropo.core.logged_actions import LoggedActions
from hieropo.core.logged_propensities import TINY, LoggedPscores, PscoreCheck
from hieropo.core.logs import Batch
from hieropo.core.propensities import LoggingModel
from hieropo.core.row_sketch import RowSketch, RowSketcher
from hieropo.errors import LogError
from hieropo.evaluation.folds import FOLDS, fold_of
from hieropo.evaluation.kept_rows import KeptRows
from hieropo.evaluation.subject import AnyMoments
from hieropo.lanes import accumulator, add_rows, placed

Seen = Literal["no", "yes", "partly"]

_UNCHECKED = (
    "Propensities are not checked against the actions: rows were kept by chance (sampling_weight), and the checks take "
    "every row of the log."
)
_ROUNDING = 1e-9
_TELLING = 4  # rows from which on equal sums of a task are no coincidence
_MOST, _SOME = 0.9, 0.02  # shares of rows in tasks with equal sums


@dataclass(frozen=True, eq=False)
class Survey:
    """A log at a glance.

    Parameters
    ----------
    moments : Moments or UnitMoments
        Of its rows.
    counts : (m, K) int
        Rows of each action in each task that a pass brings, in the order of ``moments.keys``.
    weight : (m,) array
        Rows of each task by their weights c; as many, unless some weights are fractions or very large.
    low, high : float
        Range of the rewards.
    sketch : RowSketch
        A fingerprint of the rows.
    logged : PscoreCheck or None
        What logged propensities are, where there are any.
    estimated : LoggingModel or None
        Propensities as estimated, where that was asked for.
    """

    moments: AnyMoments
    counts: Codes
    weight: Array
    low: float
    high: float
    sketch: RowSketch
    logged: PscoreCheck | None = None
    estimated: LoggingModel | None = None

    @property
    def keys(self) -> Keys:
        """The m tasks."""
        return self.moments.keys


def survey(
    batches: Iterable[Batch],
    features: FeatureMap,
    *,
    apart: bool,
    estimating: bool = False,
    seed: int = 0,
    offset: Array | None = None,
    kept: KeptRows | None = None,
) -> Survey:
    """Sum over all rows.

    Parameters
    ----------
    batches : iterable of Batch
    features : FeatureMap
        With a list of actions.
    apart : bool
        Whether to keep actions apart, as :class:`UnitMoments` do.
    estimating : bool
        Whether to estimate propensities.
    seed : int
        Of the folds and of the rows that propensities are estimated from.
    offset : (d,) array, optional
        Of the moments that the log is compared with.
    kept : KeptRows, optional
        Takes the rows, too.

    Raises
    ------
    LogError, UnknownActionError, InputError
        A row cannot be used.
    """
    width, low, high = len(features.actions or ()), np.inf, -np.inf
    places = Places()
    counts, weight = np.zeros((0, width), dtype=np.int64), np.zeros(0)
    total = accumulator(features, apart=apart, offset=offset)
    sketcher = RowSketcher(features.actions)
    logged, taken = LoggedPscores(features.actions or ()), None
    if estimating:
        rng = np.random.default_rng(seed)
        taken = LoggedActions(width, rng=rng, columns=len(features.columns), folds=FOLDS)
    pscores = False
    for batch in batches:
        codes = _codes(features, batch)
        with placed(batch):
            add_rows(total, features, batch, codes)
        _sketch(sketcher, batch, codes)
        place = places.of(batch.task)
        counts, weight = _grown(counts, weight, len(places))
        np.add.at(counts.reshape(-1), place * width + codes, 1)
        weight += np.bincount(place, batch.weight, weight.size)
        low, high = min(low, float(batch.reward.min())), max(high, float(batch.reward.max()))
        mask = eligible(features, batch, codes)
        if kept is not None:
            kept.add(batch, place, codes, mask)
        if batch.pscore is not None:
            _refuse_tiny(batch)
            pscores = True
            logged.add(place, codes, batch.pscore, mask)
        if taken is not None:
            fold = fold_of(batch.first_row, len(batch), FOLDS, seed)
            taken.add(place, codes, batch.context, mask, fold=fold)
    if not len(places):
        raise LogError(
            "The weight is 0 in every row, so that no row counts and nothing can be judged. Name another column of "
            "weights, or none."
        )
    moments = total.moments()
    check = logged.check() if pscores else None
    if check is not None and moments.sampled:
        check = replace(check, findings=(_UNCHECKED,))
    return Survey(
        moments, counts[: len(places)], weight[: len(places)], low, high, sketcher.sketch(), check,
        None if taken is None else taken.learn(),
    )  # fmt: skip


def _grown(counts: Codes, weight: Array, tasks: int) -> tuple[Codes, Array]:
    """Tables with room for so many tasks."""
    if tasks <= len(counts):
        return counts, weight
    more = max(tasks, 2 * len(counts)) - len(counts)
    blank = np.zeros((more, counts.shape[1]), dtype=np.int64)
    return np.concatenate([counts, blank]), np.concatenate([weight, np.zeros(more)])


def _sketch(sketcher: RowSketcher, batch: Batch, codes: Codes) -> None:
    """Add each row once, however often its weight lets it come."""
    if batch.rows is None:
        sketcher.add(batch.reward, batch.context, codes)
        return
    first = np.unique(batch.rows, return_index=True)[1]
    sketcher.add(batch.reward[first], batch.context[first], codes[first])


def _refuse_tiny(batch: Batch) -> None:
    """Refuse propensities whose inverse squares are beyond a float's reach."""
    assert batch.pscore is not None
    row = int(batch.pscore.argmin())
    if batch.pscore[row] < TINY:
        column = None if batch.roles is None else batch.roles.pscore
        raise LogError(
            f"Column {column!r}, row {batch.number(row)}: {batch.pscore[row]:g} is the propensity of an action "
            "that was taken, and so small that the row would outweigh every other one. Is it a density, or a product "
            "that ran out of digits? Leave such rows out, or judge with propensities='estimated'."
        )


def eligible(features: FeatureMap, batch: Batch, codes: Codes) -> NDArray[np.bool_] | None:
    """Return which actions could be taken in each row (n, K); None where all could.

    Raises
    ------
    LogError
        An action was taken that its list does not have.
    """
    if batch.eligible is None:
        return None
    mask = batch.eligible.mask(features)
    lost = np.flatnonzero(~mask[np.arange(codes.size), codes])
    if lost.size:
        row = int(lost[0])
        roles = batch.roles
        raise LogError(
            f"Column {None if roles is None else roles.eligible!r}, row {batch.number(row)}: the action taken, "
            f"{(features.actions or ())[codes[row]]!r}, is not in its list of actions. Lists name all that could be "
            "taken when the action was chosen; add it, or leave such rows out."
        )
    return mask


def fold_moments(
    batches: Iterable[Batch],
    features: FeatureMap,
    folds: int,
    seed: int,
    *,
    apart: bool,
    offset: Array | None = None,
) -> list[AnyMoments]:
    """Sum over the rows of each fold."""
    parts = [accumulator(features, apart=apart, offset=offset) for _ in range(folds)]
    for batch in batches:
        codes, fold = _codes(features, batch), fold_of(batch.first_row, len(batch), folds, seed)
        for k, part in enumerate(parts):
            rows = np.flatnonzero(fold == k)
            if rows.size:
                with placed(batch):
                    add_rows(part, features, batch, codes, rows)
    return [part.moments() for part in parts]


def _codes(features: FeatureMap, batch: Batch) -> Codes:
    return features.action_codes(batch.action, first_row=batch.first_row)


def learned_from(log: Survey, learned: AnyMoments, sketch: RowSketch) -> Seen:
    """Say whether a policy was learned from the rows of a log: "yes" from all of them, "partly" from some.

    Told by the fingerprint of rows where they differ from one another; else, as for clicks without contexts, by tasks
    with the same number of rows and the same sums, which does not show that some rows of a task are the same.
    """
    moments = log.moments
    place = np.asarray(learned.keys.locate(moments.keys.values))
    known = place >= 0
    mine, theirs = (_flat(each) for each in (moments.around(learned.offset), learned))
    rows = mine[0]
    share = log.sketch.share_in(sketch)
    if share is not None:
        whole = bool(
            known.all() and (rows <= theirs[0][place] * (1.0 + _ROUNDING)).all()
        )  # no more rows of a task than were learned from
        return "yes" if share >= _MOST and whole else "partly" if share > _SOME else "no"
    same = known.copy()
    equal = np.isclose(rows[known], theirs[0][place[known]], rtol=_ROUNDING, atol=0.0)
    same[known] = equal & _near(mine[1][known], theirs[1][place[known]])
    total = max(float(rows.sum()), 1e-300)
    if float(rows[same].sum()) / total >= _MOST:
        return "yes"
    return "partly" if float(rows[same & (rows >= _TELLING)].sum()) / total > _SOME else "no"


def _flat(moments: AnyMoments) -> tuple[Array, Array]:
    m = len(moments)
    return moments.rows.reshape(m, -1).sum(axis=1), np.asarray(moments.sums).reshape(m, -1)


def _near(mine: NDArray[np.float64], theirs: NDArray[np.float64]) -> NDArray[np.bool_]:
    size = np.abs(theirs).max(axis=1, initial=0.0, keepdims=True)
    near: NDArray[np.bool_] = (np.abs(mine - theirs) <= _ROUNDING * np.maximum(size, 1e-300)).all(axis=1)
    return near
