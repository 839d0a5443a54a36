"""The first pass over a log: its sums, its folds, kept rows, and whether a policy was learned from these rows."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo.errors import LogError
from hieropo.evaluation.passes.subject import AnyMoments
from hieropo.features.maps import FeatureMap
from hieropo.logging_policy.logged_propensities import TINY, LoggedPscores, PscoreCheck
from hieropo.logging_policy.propensities import LoggedActions, LoggingModel
from hieropo.moments.row_sketch import RowSketch, RowSketcher
from hieropo.passes.worker import accumulator, add_rows, placed
from hieropo.rows.batches import Batch
from hieropo.rows.keys import GrowingKeys, Keys

FOLDS = 5


def hashed(first_row: int, n: int, seed: int) -> NDArray[np.uint64]:
    """Return a hash of the number of each of n rows of a log (splitmix64)."""
    with np.errstate(over="ignore"):
        x = np.arange(first_row, first_row + n, dtype=np.uint64) + np.uint64(seed % 2**32) * np.uint64(
            0x9E3779B97F4A7C15
        )
        x = (x + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return found


def fold_of(first_row: int, n: int, folds: int, seed: int) -> Codes:
    """Return the fold of each of n rows of a log: a hash of its number, the same in every pass."""
    return (hashed(first_row, n, seed) % np.uint64(folds)).astype(np.int64)


NUMBERS = 50_000_000  # that a hundred draws over all kept rows may touch
_DRAWS = 100
_ALL, _FEWER = 2.0**64, 0.8


@dataclass(frozen=True, eq=False)
class Kept:
    """Rows of a log.

    Parameters
    ----------
    key : (n,) uint64
        A hash of each row's number.
    place, action, fold : (n,) int
        Its task as a row of the tables, its action, and its part of the log.
    reward, weight : (n,) array
    context : (n, c) array
    pscore : (n,) array
        NaN where the log has none.
    mask : (n, K) or (n, 0) bool
        Eligible actions.
    """

    key: NDArray[np.uint64]
    place: Codes
    action: Codes
    fold: Codes
    reward: Array
    weight: Array
    context: Array
    pscore: Array
    mask: Mask

    def at(self, rows: NDArray[np.intp]) -> "Kept":
        """Return some of the rows."""
        return Kept(*(getattr(self, each.name)[rows] for each in fields(self)))

    @property
    def eligible(self) -> Mask | None:
        """Eligible actions (n, K); None where all are."""
        return self.mask if self.mask.shape[1] else None

    @cached_property
    def stratum(self) -> Codes:
        """Rows of one task with the same eligible actions share a number."""
        if self.eligible is None:
            return np.asarray(np.unique(self.place, return_inverse=True)[1])
        packed = np.packbits(self.mask, axis=1)
        table = np.column_stack([self.place.astype(np.int64).view(np.uint8).reshape(-1, 8), packed])
        rows = np.ascontiguousarray(table).view(np.dtype((np.void, table.shape[1])))
        return np.asarray(np.unique(rows[:, 0], return_inverse=True)[1])


class KeptRows:
    """Keeps rows, batch by batch; the mutable edge of a pass over a log.

    Parameters
    ----------
    n_actions, columns : int
        K, and context columns c.
    seed : int
        Of folds and of the rows that are kept.
    most : int, optional
        Rows that may be kept.
    """

    def __init__(self, n_actions: int, columns: int, seed: int, most: int | None = None) -> None:
        self._seed = seed
        self._most = most or max(1, NUMBERS // (_DRAWS * (columns + 2 + n_actions // 8)))
        self._bound, self._size = _ALL, 0
        self._parts: list[Kept] = []

    def add(self, batch: Batch, place: Codes, codes: Codes, mask: Mask | None) -> None:
        """Keep those rows whose hash is below the bound, which falls whenever there are too many."""
        n = len(batch)
        key = hashed(batch.first_row, n, self._seed + 1)  # not the hash of the folds
        rows = np.flatnonzero(key < self._bound) if self._bound < _ALL else np.arange(n)
        self._parts.append(
            Kept(
                key[rows],
                place[rows],
                codes[rows],
                fold_of(batch.first_row, n, FOLDS, self._seed)[rows],
                batch.reward[rows],
                batch.weights.counts(n)[rows],
                batch.context[rows],
                np.full(rows.size, np.nan) if batch.pscore is None else batch.pscore[rows],
                np.zeros((rows.size, 0), dtype=np.bool_) if mask is None else mask[rows],
            )
        )
        self._size += rows.size
        while self._size > self._most:
            self._bound *= _FEWER
            self._parts = [part.at(np.flatnonzero(part.key < self._bound)) for part in self._parts]
            self._size = sum(part.key.size for part in self._parts)

    def kept(self) -> Kept:
        """Return all rows that are kept."""
        return Kept(*(np.concatenate([getattr(p, each.name) for p in self._parts]) for each in fields(Kept)))


Seen = Literal["no", "yes", "partly"]

_UNCHECKED = (
    "Propensities are not checked against the actions: rows were kept by chance (sampling_weight), and the checks take "
    "every row of the log."
)
_ROUNDING = 1e-9
_TELLING = 4  # rows from which on equal sums of a task are no coincidence
_MOST, _SOME = 0.9, 0.02  # shares of rows in tasks with equal sums


@dataclass(frozen=True, eq=False)
class FirstPass:
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
        Check of the logged propensities; None without any.
    estimated : LoggingModel or None
        Model of estimated propensities; None unless they were requested.
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


def first_pass(
    batches: Iterable[Batch],
    features: FeatureMap,
    *,
    apart: bool,
    estimating: bool = False,
    seed: int = 0,
    offset: Array | None = None,
    kept: KeptRows | None = None,
) -> FirstPass:
    """Return the statistics of a log from one pass.

    Parameters
    ----------
    batches : iterable of Batch
    features : FeatureMap
        With a list of actions.
    apart : bool
        True for sums per action, as in :class:`UnitMoments`.
    estimating : bool
        True to estimate propensities.
    seed : int
        Of the folds and of the rows that propensities are estimated from.
    offset : (d,) array, optional
        Of the moments that the log is compared with.
    kept : KeptRows, optional
        Also collects the rows.

    Raises
    ------
    LogError, UnknownActionError, InputError
        A row cannot be used.
    """
    width, low, high = len(features.actions or ()), np.inf, -np.inf
    places = GrowingKeys()
    counts, weight = np.zeros((0, width), dtype=np.int64), np.zeros(0)
    total = accumulator(features, per_action=apart, offset=offset)
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
        place = places.rows(batch.task)
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
    return FirstPass(
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
    parts = [accumulator(features, per_action=apart, offset=offset) for _ in range(folds)]
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


def learned_from(log: FirstPass, learned: AnyMoments, sketch: RowSketch) -> Seen:
    """Return the overlap of a log with the rows that a policy was learned from: "yes" (all rows), "partly" or "no".

    Rows are compared by their fingerprint where they differ from one another. Otherwise, as for clicks without
    contexts, tasks are compared by number of rows and sums, which cannot detect that some rows of a task are the same.
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
