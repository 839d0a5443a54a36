"""The first pass over a log: its sums, its folds, a sample of its rows, and their overlap with a fit."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo._utils.threads import in_threads, processors
from hieropo.errors import LogError, UnknownActionError
from hieropo.evaluation.passes.subject import AsSites
from hieropo.features.maps import FeatureMap
from hieropo.logging_policy.logged_propensities import TINY, LoggedPscores, PscoreCheck
from hieropo.logging_policy.propensities import LoggedActions, LoggingModel
from hieropo.moments.clusters import ClusterAccumulator, correlated
from hieropo.moments.row_sketch import RowSketch, RowSketcher
from hieropo.moments.statistics import Moments
from hieropo.passes.positive import PositiveSums
from hieropo.passes.worker import accumulator, add_rows, placed
from hieropo.rows.batches import Batch
from hieropo.rows.ids import hashed_ids
from hieropo.rows.keys import GrowingKeys, Keys

FOLDS = 5


def hashed(first_row: int, n: int, seed: int) -> NDArray[np.uint64]:
    """Return a hash of the number of each of n rows of a log (splitmix64)."""
    return _mixed(np.arange(first_row, first_row + n, dtype=np.uint64), seed)


def _mixed(numbers: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        x = numbers + np.uint64(seed % 2**32) * np.uint64(0x9E3779B97F4A7C15)
        x = (x + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return hashes


def row_folds(first_row: int, n: int, folds: int, seed: int) -> Codes:
    """Return the fold of each of n rows of a log: a hash of its number, the same in every pass."""
    return (hashed(first_row, n, seed) % np.uint64(folds)).astype(np.int64)


def fold_of(batch: Batch, folds: int, seed: int) -> Codes:
    """Return the fold of each row of a batch, by its number, or by its cluster, which no two folds then share."""
    if batch.cluster is None:
        return row_folds(batch.first_row, len(batch), folds, seed)
    return (_mixed(hashed_ids(batch.cluster), seed) % np.uint64(folds)).astype(np.int64)


NUMBERS = 50_000_000  # limit on the numbers that _DRAWS draws over all sampled rows read
_DRAWS = 100
_ALL, _SHRINK = 2.0**64, 0.8  # bound of hashes that takes all rows; its factor where rows are too many


@dataclass(frozen=True, eq=False)
class RowSample:
    """Rows of a log, or a random sample of them.

    Parameters
    ----------
    key : (n,) uint64
        A hash of each row's number.
    task, action, fold : (n,) int
        Task as a row of the tables, action, and fold of each row.
    reward, weight : (n,) array
    context : (n, c) array
    pscore : (n,) array
        NaN where the log has none.
    mask : (n, K) or (n, 0) bool
        Eligible actions.
    cluster : (n,) uint64
        A hash of each row's cluster; that of its number where rows form none.
    """

    key: NDArray[np.uint64]
    task: Codes
    action: Codes
    fold: Codes
    reward: Array
    weight: Array
    context: Array
    pscore: Array
    mask: Mask
    cluster: NDArray[np.uint64]

    def at(self, rows: NDArray[np.intp]) -> "RowSample":
        """Return some of the rows."""
        return RowSample(*(getattr(self, column.name)[rows] for column in fields(self)))

    @property
    def eligible(self) -> Mask | None:
        """Eligible actions (n, K); None where all are."""
        return self.mask if self.mask.shape[1] else None

    @cached_property
    def stratum(self) -> Codes:
        """Stratum of each row (n,): a number for each task and set of eligible actions."""
        if self.eligible is None:
            return np.asarray(np.unique(self.task, return_inverse=True)[1])
        packed = np.packbits(self.mask, axis=1)
        table = np.column_stack([self.task.astype(np.int64).view(np.uint8).reshape(-1, 8), packed])
        rows = np.ascontiguousarray(table).view(np.dtype((np.void, table.shape[1])))
        return np.asarray(np.unique(rows[:, 0], return_inverse=True)[1])


class RowSampler:
    """Draws a sample of rows, batch by batch; the mutable edge of a pass over a log.

    Parameters
    ----------
    n_actions, columns : int
        K, and context columns c.
    seed : int
        Of folds and of the sample.
    max_rows : int, optional
        Largest sample.
    """

    def __init__(self, n_actions: int, columns: int, seed: int, max_rows: int | None = None) -> None:
        self._seed = seed
        self._max_rows = max_rows or max(1, NUMBERS // (_DRAWS * (columns + 2 + n_actions // 8)))
        self._bound, self._size = _ALL, 0
        self._parts: list[RowSample] = []

    def add(self, batch: Batch, task: Codes, codes: Codes, mask: Mask | None) -> None:
        """Take the rows whose hash is below the bound, and lower the bound while they are too many."""
        n = len(batch)
        key = hashed(batch.first_row, n, self._seed + 1)  # not the hash of the folds
        rows = np.flatnonzero(key < self._bound) if self._bound < _ALL else np.arange(n)
        self._parts.append(
            RowSample(
                key[rows],
                task[rows],
                codes[rows],
                fold_of(batch, FOLDS, self._seed)[rows],
                batch.reward[rows],
                batch.weights.counts(n)[rows],
                batch.context[rows],
                np.full(rows.size, np.nan) if batch.pscore is None else batch.pscore[rows],
                np.zeros((rows.size, 0), dtype=np.bool_) if mask is None else mask[rows],
                key[rows] if batch.cluster is None else hashed_ids(batch.cluster)[rows],
            )
        )
        self._size += rows.size
        while self._size > self._max_rows:
            self._bound *= _SHRINK
            self._parts = [part.at(np.flatnonzero(part.key < self._bound)) for part in self._parts]
            self._size = sum(part.key.size for part in self._parts)

    def sample(self) -> RowSample:
        """Return the sample."""
        names = [column.name for column in fields(RowSample)]
        return RowSample(*(np.concatenate([getattr(part, name) for part in self._parts]) for name in names))


Overlap = Literal["no", "yes", "partly"]

_UNCHECKED = (
    "Propensities are not checked against the actions: rows are a random sample (sampling_weight), and the checks need "
    "every row of the log."
)
_SHARED = (
    "Propensities are not checked against the actions: rows form clusters, which may share one draw of the action, and "
    "the checks need rows whose actions were drawn one by one."
)
_ROUNDING = 1e-9
_MIN_ROWS = 4  # of a task whose equal sums are no coincidence
_ALL_ROWS, _SOME_ROWS = 0.9, 0.02  # shares of rows in tasks with equal sums


@dataclass(frozen=True, eq=False)
class FirstPass:
    """Statistics of a log from one pass.

    Parameters
    ----------
    moments : Moments
        Of its rows.
    counts : (m, K) int
        Rows of each action in each task, in the order of ``moments.keys``.
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

    moments: Moments
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


def first_pass(  # noqa: PLR0913 - one parameter for each part of the sums
    batches: Iterable[Batch],
    features: FeatureMap,
    *,
    per_action: bool,
    estimating: bool = False,
    seed: int = 0,
    offset: Array | None = None,
    sampler: RowSampler | None = None,
    correlation: Array | None = None,
    sites: AsSites | None = None,
    positive: bool = False,
) -> FirstPass:
    """Return the statistics of a log from one pass.

    Parameters
    ----------
    batches : iterable of Batch
    features : FeatureMap
        With a list of actions.
    per_action : bool
        True for sums per action, as in :class:`Moments`.
    estimating : bool
        True to estimate propensities.
    seed : int
        Of the folds and of the rows that propensities are estimated from.
    offset : (d,) array, optional
        Of the moments that the log is compared with.
    sampler : RowSampler, optional
        Also gets the rows.
    correlation : (K,) or (1,) array, optional
        Correlations of rewards within clusters, by which the moments are those of correlated rows.
    sites : callable, optional
        As of :class:`Subject`.
    positive : bool
        True for moments with the sums over positive rewards.

    Raises
    ------
    LogError, UnknownActionError, InputError
        A row cannot be used.
    """
    width, low, high = len(features.actions or ()), np.inf, -np.inf
    task_keys = GrowingKeys()
    counts, weight = np.zeros((0, width), dtype=np.int64), np.zeros(0)
    total = _LogSums(features, correlation, per_action=per_action, offset=offset, positive=positive)
    sketcher = RowSketcher(features.actions)
    logged, logged_actions = LoggedPscores(features.actions or ()), None
    if estimating:
        rng = np.random.default_rng(seed)
        logged_actions = LoggedActions(width, rng=rng, columns=len(features.columns), folds=FOLDS)
    pscores = clustered = False
    for batch in batches:
        clustered = batch.cluster is not None
        codes = _codes(features, batch)
        total.add(batch if sites is None else sites(batch, codes), codes)
        _sketch(sketcher, batch, codes)
        task = task_keys.rows(batch.task)
        counts, weight = _grown(counts, weight, len(task_keys))
        np.add.at(counts.reshape(-1), task * width + codes, 1)
        weight += np.bincount(task, batch.weight, weight.size)
        low, high = min(low, float(batch.reward.min())), max(high, float(batch.reward.max()))
        mask = eligible(features, batch, codes)
        if sampler is not None:
            sampler.add(batch, task, codes, mask)
        if batch.pscore is not None:
            _refuse_tiny(batch)
            pscores = True
            logged.add(task, codes, batch.pscore, mask)
        if logged_actions is not None:
            fold = fold_of(batch, FOLDS, seed)
            logged_actions.add(task, codes, batch.context, mask, fold=fold)
    if not len(task_keys):
        raise LogError(
            "The weight is 0 in every row, so that no row counts and nothing can be evaluated. Name another column of "
            "weights, or none."
        )
    moments = total.moments()
    check = logged.check() if pscores else None
    unchecked = _UNCHECKED if moments.sampled else _SHARED if clustered else None
    if check is not None and unchecked is not None:
        check = replace(check, findings=(unchecked,))
    return FirstPass(
        moments, counts[: len(task_keys)], weight[: len(task_keys)], low, high, sketcher.sketch(), check,
        None if logged_actions is None else logged_actions.learn(),
    )  # fmt: skip


class _LogSums:
    """Sums rows to moments, of correlated rows where their correlations within clusters are given."""

    def __init__(
        self,
        features: FeatureMap,
        correlation: Array | None,
        *,
        per_action: bool,
        offset: Array | None,
        expected: int = 0,
        positive: bool = False,
    ) -> None:
        self._features, self._correlation = features, correlation
        self._positive = PositiveSums(features) if positive else None
        self._total = accumulator(features, per_action=per_action, offset=offset, expected=expected)
        self._clusters = None
        if correlation is not None:
            self._clusters = ClusterAccumulator(features, offset, per_action=per_action)

    def add(self, batch: Batch, codes: Codes, rows: Codes | None = None) -> None:
        """Add the rows of a batch, or those at ``rows``, with the codes (n,) of their actions."""
        with placed(batch):
            add_rows(self._total, self._features, batch, codes, slice(None) if rows is None else rows)
        if self._clusters is not None:
            self._clusters.add(batch, codes, rows)
        if self._positive is not None:
            self._positive.add(batch, codes, rows)

    def moments(self) -> Moments:
        """Return the moments of the rows so far."""
        moments = self._total.moments()
        if self._positive is not None:
            return self._positive.beside(moments)
        if self._clusters is None or self._correlation is None:
            return moments
        return correlated(moments, self._clusters.table().at(moments), self._correlation)


def _grown(counts: Codes, weight: Array, tasks: int) -> tuple[Codes, Array]:
    """Return the tables with room for at least ``tasks`` tasks."""
    if tasks <= len(counts):
        return counts, weight
    added = max(tasks, 2 * len(counts)) - len(counts)
    blank = np.zeros((added, counts.shape[1]), dtype=np.int64)
    return np.concatenate([counts, blank]), np.concatenate([weight, np.zeros(added)])


def _sketch(sketcher: RowSketcher, batch: Batch, codes: Codes) -> None:
    """Add each row once, whatever its weight."""
    if batch.rows is None:
        sketcher.add(batch.reward, batch.context, codes)
        return
    first = np.unique(batch.rows, return_index=True)[1]
    sketcher.add(batch.reward[first], batch.context[first], codes[first])


def _refuse_tiny(batch: Batch) -> None:
    """Refuse propensities whose inverse squares overflow a float."""
    assert batch.pscore is not None
    row = int(batch.pscore.argmin())
    if batch.pscore[row] < TINY:
        column = None if batch.roles is None else batch.roles.pscore
        raise LogError.in_row(
            batch.number(row),
            f"Column {column!r}, row {batch.number(row)}: {batch.pscore[row]:g} is the propensity of the logged "
            "action, so small that the row would outweigh all others. Is it a density, or a product that underflowed? "
            "Leave such rows out, or evaluate with propensities='estimated'.",
            lenient=False,
        )


def eligible(features: FeatureMap, batch: Batch, codes: Codes) -> NDArray[np.bool_] | None:
    """Return the mask of eligible actions in each row (n, K); None where all are eligible.

    Raises
    ------
    LogError
        The list of a row lacks its logged action.
    """
    if batch.eligible is None:
        return None
    mask = batch.eligible.mask(features)
    unlisted = np.flatnonzero(~mask[np.arange(codes.size), codes])
    if unlisted.size:
        row = int(unlisted[0])
        roles = batch.roles
        raise LogError.in_row(
            batch.number(row),
            f"Column {None if roles is None else roles.eligible!r}, row {batch.number(row)}: the logged action, "
            f"{(features.actions or ())[codes[row]]!r}, is not in its list of actions. A list needs all actions that "
            "were eligible when one was chosen. Add it, or leave such rows out.",
            lenient=False,
        )
    return mask


def fold_moments(  # noqa: PLR0913 - as of the first pass
    batches: Iterable[Batch],
    features: FeatureMap,
    folds: int,
    seed: int,
    *,
    per_action: bool,
    offset: Array | None = None,
    expected: int = 0,
    correlation: Array | None = None,
    sites: AsSites | None = None,
    positive: bool = False,
) -> list[Moments]:
    """Return the moments of each fold; ``expected`` is the number of rows of the log, where it is known.

    ``correlation``, ``sites`` and ``positive`` are as of :func:`first_pass`.
    """
    parts = [
        _LogSums(
            features,
            correlation,
            per_action=per_action,
            offset=offset,
            expected=expected,
            positive=positive,
        )
        for _ in range(folds)
    ]
    for batch in batches:
        codes, fold = _codes(features, batch), fold_of(batch, folds, seed)
        summed = batch if sites is None else sites(batch, codes)
        for k, part in enumerate(parts):
            rows = np.flatnonzero(fold == k)
            if rows.size:
                part.add(summed, codes, rows)
    return in_threads(lambda part: part.moments(), parts, processors())


def _codes(features: FeatureMap, batch: Batch) -> Codes:
    try:
        return features.action_codes(batch.action, first_row=batch.first_row)
    except UnknownActionError as error:
        if error.row is None or batch.rows is None:
            raise
        number = batch.number(
            error.row - batch.first_row
        )  # rows were repeated by their weights, or set aside
        raise UnknownActionError.in_row(number, error.text_at(f"row {number}"), lenient=False) from None


def learned_from(log: FirstPass, learned: Moments, sketch: RowSketch, *, by_rows: bool = False) -> Overlap:
    """Return the overlap of a log with the rows that a policy was learned from: "yes" (all rows), "partly" or "no".

    Rows are compared by their fingerprint where they differ from one another. Otherwise, as for clicks without
    contexts, tasks are compared by number of rows and sums, which cannot detect that some rows of a task are the same;
    ``by_rows``: by numbers of rows alone, where sums are not those of the rows.
    """
    moments = log.moments
    position = np.asarray(learned.keys.locate(moments.keys.values))
    known = position >= 0
    (rows, sums), (learned_rows, learned_sums) = _flat(moments.around(learned.offset)), _flat(learned)
    share = log.sketch.share_in(sketch)
    if share is not None:
        no_more_rows = bool(known.all() and (rows <= learned_rows[position] * (1.0 + _ROUNDING)).all())
        return "yes" if share >= _ALL_ROWS and no_more_rows else "partly" if share > _SOME_ROWS else "no"
    same = known.copy()
    equal = np.isclose(rows[known], learned_rows[position[known]], rtol=_ROUNDING, atol=0.0)
    same[known] = equal & (by_rows or _near(sums[known], learned_sums[position[known]]))
    total = max(float(rows.sum()), 1e-300)
    if float(rows[same].sum()) / total >= _ALL_ROWS:
        return "yes"
    return "partly" if float(rows[same & (rows >= _MIN_ROWS)].sum()) / total > _SOME_ROWS else "no"


def _flat(moments: Moments) -> tuple[Array, Array]:
    """Return the rows (m,) and the sums (m, q) of each task."""
    m = len(moments)
    return moments.rows.reshape(m, -1).sum(axis=1), np.asarray(moments.sums).reshape(m, -1)


def _near(sums: Array, learned: Array) -> NDArray[np.bool_]:
    """Return True for each task whose sums (k, q) are equal within rounding."""
    size = np.abs(learned).max(axis=1, initial=0.0, keepdims=True)
    near: NDArray[np.bool_] = (np.abs(sums - learned) <= _ROUNDING * np.maximum(size, 1e-300)).all(axis=1)
    return near
