"""Accumulation of moments per action, each with its own features (1, x)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import packed_size, triangle
from hieropo.errors import InputError
from hieropo.features.maps import FeatureMap
from hieropo.features.per_action import Crossed
from hieropo.moments.accumulation import RunningSums, merged
from hieropo.moments.regions import Slots, packed_slots
from hieropo.moments.statistics import Moments
from hieropo.rows.columns import check_rows
from hieropo.rows.ids import id_array


def one_action(features: FeatureMap | None) -> Crossed | None:
    """Return the map of the features (1, x) of one action; None for maps that do not give each action coefficients.

    Examples
    --------
    >>> from hieropo.features.maps import per_action
    >>> one_action(per_action(["left", "right"], ["age"])).phi([[7.0]], [0])
    array([[1., 7.]])
    """
    if not isinstance(features, Crossed) or features.table is not None:
        return None
    return replace(features, actions=(0,))


def _of_rows(offset: Array | None, row: Crossed) -> Array | None:
    """Return an offset of (1, x), or of x, as an offset of (x, 1)."""
    if offset is None:
        return None
    return np.roll(offset, -1) if row.intercept else np.append(offset, 0.0)


class UnitAccumulator:
    """Moments of units in the making, from batches of rows; the mutable edge of a pass over a log.

    Parameters
    ----------
    features : Crossed
        Gives each action its own coefficients: ``per_action(...)`` or ``indicator(...)``.
    offset : (d,) array, optional
        Offset of the moments, the same for each action.
    expected : int
        Rows to come at least, where that is known.

    Raises
    ------
    InputError
        The map does not give each action its own coefficients.
    """

    running: RunningSums

    def __init__(self, features: FeatureMap, *, offset: Array | None = None, expected: int = 0) -> None:
        row = one_action(features)
        if row is None or features.actions is None:
            raise InputError(
                f"The feature map {features!r} does not give each action its own coefficients, so that moments of "
                "single actions do not exist. Use per_action(...) or indicator(...), or an Accumulator."
            )
        self._row = row
        self._features = features.fingerprint
        self._n_actions = len(features.actions)
        self._offset = None if offset is None else offset[: row.dim].copy()
        self.running = RunningSums(
            row.dim - row.intercept, self._n_actions, offset=_of_rows(self._offset, row), expected=expected
        )  # the 1 of z is the intercept's too

    def add(
        self,
        task: object,
        action: ArrayLike,
        context: ArrayLike | None,
        reward: ArrayLike,
        weight: ArrayLike | None = None,
        precision: ArrayLike | None = None,
        sampling_weight: ArrayLike | None = None,
    ) -> Codes:
        """Add a batch and return the number of each row's task.

        Parameters
        ----------
        task : (n,) ids
        action : (n,) int
            Codes, as the map's ``action_codes`` gives them.
        context : (n, c) array or None
            The columns that the map reads.
        reward, weight, precision, sampling_weight : (n,) array
            As in :meth:`Moments.from_arrays`.

        Raises
        ------
        InputError, LogError
            Lengths differ; a code is of no action; a value is missing or not finite.
        """
        tasks = id_array(task, "task")
        actions = self._check(action, tasks.size)
        phi = self._row.phi(context, np.zeros(tasks.size, dtype=np.int64))
        x = phi[:, int(self._row.intercept) :]
        table, values, weights = check_rows(x, reward, weight, precision, sampling_weight)
        place = self.running.keys.rows_of_ids(tasks)
        self.running.add(place, table, values, weights, in_block=actions)
        return place

    def _check(self, action: ArrayLike, n: int) -> Codes:
        codes = np.asarray(action)
        if codes.shape != (n,) or (codes.dtype.kind not in "iu" and n):
            raise InputError(
                f"Action codes of shape {codes.shape} and type {codes.dtype} do not fit {n} task ids: whole numbers "
                f"of shape ({n},) are needed. Ids become codes by the feature map's action_codes(ids)."
            )
        codes = codes.astype(np.int64, copy=False)
        bad = (codes < 0) | (codes >= self._n_actions)
        if bad.any():
            row = int(bad.argmax())
            raise InputError(
                f"Action code {codes[row]} (row {row}) is not in 0 .. {self._n_actions - 1}. Ids become codes by the "
                "feature map's action_codes(ids)."
            )
        return codes

    @property
    def unit_dim(self) -> int:
        """The features p of a unit."""
        return self._row.dim

    def widen(self, n_actions: int) -> None:
        """Make room for more actions: codes may then be up to ``n_actions``, exclusive."""
        self.running.arrange(np.arange(self._n_actions), n_actions)
        self._n_actions = n_actions

    def arrange(self, features: FeatureMap, position: Codes) -> None:
        """Turn the sums into those of another map: action a becomes its action ``position[a]``."""
        self._n_actions, self._features = len(features.actions or ()), features.fingerprint
        self.running.arrange(position, self._n_actions)

    def _unit_slots(self) -> Slots:
        """Return the slots of the sums of units in tables (m, K, (p + 2)(p + 3) / 2)."""
        p, count = self._row.dim, self._row.dim + 2
        entry = np.arange(count)  # of z = (1, x, r, 1) in (x, r, 1)
        if self._row.intercept:
            entry = np.concatenate([[p], np.arange(p + 1)])
        i, j = triangle(count)
        low, high = np.minimum(entry[i], entry[j]), np.maximum(entry[i], entry[j])
        source = packed_slots(int(entry.max()) + 1).source[0, high * (high + 1) // 2 + low]
        target = np.arange(self._n_actions * source.size).reshape(self._n_actions, source.size)
        return Slots(np.tile(source, (self._n_actions, 1)), target)

    def _dense_slots(self) -> Slots:
        """Return the slots of the sums of units in tables (m, (d + 2)(d + 3) / 2) of all d = K p features."""
        p, K = self._row.dim, self._n_actions
        i, j = triangle(p + 2)
        slots = self._unit_slots()
        target = np.empty_like(slots.target)
        for action in range(K):
            entries = np.concatenate([action * p + np.arange(p), [K * p, K * p + 1]])
            target[action] = entries[j] * (entries[j] + 1) // 2 + entries[i]
        return Slots(slots.source, target)

    @classmethod
    def after(cls, features: FeatureMap, moments: Moments) -> Self:
        """Return an accumulator that continues from these moments, as if their rows had been added to it."""
        accumulator = cls(features, offset=moments.unit_offset)
        slots, m = accumulator._unit_slots(), len(moments)
        sums = moments.sums.reshape(m, slots.target.size).copy()
        squares = None if moments.squares is None else moments.squares.reshape(sums.shape).copy()
        pairs = np.stack([moments.rows, moments.log_precision], axis=2).reshape(m, 2 * moments.n_actions)
        accumulator.running.start(moments.keys, sums, squares, slots, pairs)
        return accumulator

    def __len__(self) -> int:
        return len(self.running)

    def moments(self) -> Moments:
        """Return the moments of all batches so far."""
        return self.together([self], drop=False)

    @staticmethod
    def together(workers: "Sequence[UnitAccumulator]", *, drop: bool) -> Moments:
        """Return the moments of the batches of all workers; as :meth:`Accumulator.together`."""
        first = workers[0]
        slots = first._unit_slots()
        total = merged([worker.running for worker in workers], slots, slots.target.size, drop=drop)
        total.refuse_overflow()
        keys, sums, pairs = total.keys, total.sums, total.pairs
        shape = (len(keys), *slots.target.shape)
        rows, log_precision = (np.ascontiguousarray(pairs[..., k]) for k in (0, 1))
        squares = None if total.squares is None else total.squares.reshape(shape)
        return Moments(
            keys,
            first._row.dim,
            sums.reshape(shape),
            rows,
            log_precision,
            first._features,
            squares,
            first._offset,
        )

    @staticmethod
    def together_dense(workers: "Sequence[UnitAccumulator]", *, drop: bool) -> Moments:
        """Return the moments of all d = K p features; as :meth:`Accumulator.together`."""
        first = workers[0]
        d = first._n_actions * first._row.dim
        total = merged(
            [worker.running for worker in workers], first._dense_slots(), packed_size(d + 2), drop=drop
        )
        total.refuse_overflow()
        rows, log_precision = np.ascontiguousarray(total.pairs.sum(axis=1).T)
        offset = None if first._offset is None else np.tile(first._offset, first._n_actions)
        return Moments(total.keys, d, total.sums, rows, log_precision, first._features, total.squares, offset)
