"""Moments of units: a unit is one action within one task, with its own features (1, x)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import packed_size, triangle, unpack
from hieropo._utils.text import counted
from hieropo.errors import InputError, LogError, MismatchError
from hieropo.features.maps import FeatureMap
from hieropo.features.per_action import Crossed
from hieropo.moments.accumulation import RunningSums, merged
from hieropo.moments.regions import Slots, packed_slots
from hieropo.moments.statistics import Moments
from hieropo.rows.columns import check_rows
from hieropo.rows.ids import id_array
from hieropo.rows.keys import Keys


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


@dataclass(frozen=True, slots=True, eq=False)
class UnitMoments:
    """The additive statistics of every unit, in m K (p + 2)(p + 3) / 2 numbers.

    They form a commutative group under ``+`` and ``-`` as :class:`hieropo.moments.statistics.Moments` do, and are the
    moments of d = K p features without the products of features of two actions, which are zero.

    Attributes
    ----------
    keys : Keys
        The m tasks.
    n_actions : int
        K.
    units : Moments
        Of the units: action a of the task in row s is unit ``s K + a``, and this number is its key.
    """

    keys: Keys
    n_actions: int
    units: Moments

    def __post_init__(self) -> None:
        if len(self.units) != len(self.keys) * self.n_actions or self.n_actions < 1:
            raise InputError(
                f"{len(self.units)} units do not fit {len(self.keys)} tasks of {self.n_actions} actions each."
            )

    @classmethod
    def of(
        cls,
        keys: Keys,
        unit_dim: int,
        sums: Array,
        rows: Array,
        log_precision: Array,
        features: str | None = None,
        squares: Array | None = None,
        offset: Array | None = None,
    ) -> Self:
        """Return unit moments from arrays, shaped as the properties.

        ``sums`` and ``squares`` are (m, K, .), ``rows`` and ``log_precision`` (m, K), ``offset`` (p,) that of a unit.
        """
        shape = rows.size, packed_size(unit_dim + 2)
        more = None if squares is None else squares.reshape(shape)
        units = Moments(
            Keys(np.arange(rows.size)), unit_dim, sums.reshape(shape), rows.reshape(-1),
            log_precision.reshape(-1), features, more, offset,
        )  # fmt: skip
        return cls(keys, rows.shape[1], units)

    @property
    def tasks(self) -> NDArray[Any]:
        """The ids of the tasks, as they were given, shape (m,)."""
        return self.keys.values

    @property
    def features(self) -> str | None:
        """The fingerprint of the feature map."""
        return self.units.features

    @property
    def offset(self) -> Array | None:
        """The offset (d,) for the features of the map: that of the units, repeated for each action."""
        return None if self.units.offset is None else np.tile(self.units.offset, self.n_actions)

    @property
    def unit_dim(self) -> int:
        """The number p of features of one action."""
        return self.units.dim

    @property
    def dim(self) -> int:
        """The number d = K p of features of the feature map."""
        return self.n_actions * self.units.dim

    @property
    def sums(self) -> Array:
        """The packed sums of w z z', z = (1, x, r, 1), shape (m, K, (p + 2)(p + 3) / 2)."""
        return self.units.sums.reshape(len(self), self.n_actions, self.units.sums.shape[1])

    @property
    def squares(self) -> Array | None:
        """The packed sums of c (q v)^2 z z', shaped as ``sums``; None for rows without sampling weights."""
        squares = self.units.squares
        return None if squares is None else squares.reshape(self.sums.shape)

    @property
    def sampled(self) -> bool:
        """True where rows have sampling weights: they are a random sample of more rows."""
        return self.units.sampled

    @property
    def rows(self) -> Array:
        """The number of rows of each unit, sum c q, shape (m, K)."""
        return self.units.rows.reshape(len(self), self.n_actions)

    @property
    def log_precision(self) -> Array:
        """The sum of c q log v of each unit, shape (m, K)."""
        return self.units.log_precision.reshape(len(self), self.n_actions)

    @property
    def n_rows(self) -> float:
        """The number of rows of all units, by their weights: sum c q."""
        return self.units.n_rows

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return (
            f"UnitMoments({counted(len(self), 'task')} of {counted(self.n_actions, 'action')}, "
            f"{counted(self.n_rows, 'row')}, {counted(self.unit_dim, 'feature')} each)"
        )

    def select(self, tasks: object) -> Self:
        """Return the moments of these tasks only, in this order; raises as :meth:`Moments.select`."""
        rows = self.keys.require(tasks)
        if np.unique(rows).size != rows.size:
            twice = self.keys.values[np.flatnonzero(np.bincount(rows) > 1)[:1]].tolist()[0]
            raise InputError(
                f"Task {twice!r} is selected twice; its rows would count twice. Name each task once."
            )
        return self.at(rows)

    def at(self, rows: Any) -> Self:
        """Return the moments of the tasks in some rows of ``keys``."""
        squares = None if self.squares is None else self.squares[rows]
        return type(self).of(
            Keys(self.keys.values[rows]), self.unit_dim, self.sums[rows], self.rows[rows],
            self.log_precision[rows], self.features, squares, self.units.offset,
        )  # fmt: skip

    def covering(self, keys: Keys) -> Self:
        """Return these moments with every task of ``keys``; tasks that are new have no rows."""
        union, _ = self.keys.union(keys)
        if len(union) == len(self):
            return self
        units = self.units.covering(Keys(np.arange(len(union) * self.n_actions)))
        return type(self)(union, self.n_actions, units)

    def with_actions(self, position: Codes, n_actions: int, features: str | None) -> Self:
        """Return the moments for a map with ``n_actions`` actions, these at the positions ``position`` (K,).

        The other actions have no rows. ``features`` is the fingerprint of that map.
        """

        def expanded(values: Array) -> Array:
            table = np.zeros((len(self), n_actions, *values.shape[2:]))
            table[:, position] = values
            return table

        sums, rows, log_precision = expanded(self.sums), expanded(self.rows), expanded(self.log_precision)
        squares = None if self.squares is None else expanded(self.squares)
        return type(self).of(
            self.keys, self.unit_dim, sums, rows, log_precision, features, squares, self.units.offset
        )

    def information(self, rows: Codes, noise_var: Array) -> Array:
        """Return the sum of v phi phi' / sigma^2 (d, d) over the rows of the tasks at ``rows``, for noise_var (K,)."""
        K, p = self.n_actions, self.unit_dim
        blocks = np.zeros((K, p, K, p))
        blocks[range(K), :, range(K)] = (
            unpack(self.sums[rows].sum(axis=0), p + 2)[:, :p, :p] / noise_var[:, None, None]
        )
        return blocks.reshape(self.dim, self.dim)

    def scores(self, rows: Any, theta: Array, noise_var: Array) -> Array:
        """Return sum v phi (r - phi' theta_s) / sigma^2 (n, d) of the tasks at ``rows``; as :meth:`Moments.scores`."""
        p, K = self.unit_dim, self.n_actions
        sums = unpack(self.sums[rows], p + 1)
        offset = 0.0 if self.offset is None else self.offset
        blocks = np.broadcast_to(theta - offset, (len(sums), self.dim)).reshape(-1, K, p)
        residual = sums[:, :, :p, p] - np.einsum("naij,naj->nai", sums[:, :, :p, :p], blocks)
        return np.asarray((residual / noise_var[:, None]).reshape(len(sums), self.dim))

    @property
    def per_action(self) -> bool:
        """Return True: sums are one block an action; those of :class:`Moments` are over all actions."""
        return True

    def scale(self, factor: float) -> Self:
        """Return the moments with every weight c multiplied by a positive ``factor``."""
        return type(self)(self.keys, self.n_actions, self.units.scale(factor))

    def __radd__(self, other: object) -> Self:
        return self if other == 0 else NotImplemented  # so that sum() of moments works

    def __add__(self, other: Self) -> Self:
        return self._combine(other, 1)

    def __sub__(self, other: Self) -> Self:
        return self._combine(other, -1)

    def __neg__(self) -> Self:
        return type(self)(self.keys, self.n_actions, -self.units)

    def _combine(self, other: Self, sign: int) -> Self:
        if not isinstance(other, UnitMoments):
            return NotImplemented
        if self.n_actions != other.n_actions:
            raise MismatchError(
                f"Moments of {self.n_actions} actions and moments of {other.n_actions} actions do not combine: they "
                "were made by different feature maps. Make both again with one map."
            )
        keys, place = self.keys.union(other.keys)
        renumbered = replace(other.units, keys=Keys(_numbers(place, self.n_actions)))
        try:
            units = self.units + renumbered if sign > 0 else self.units - renumbered
        except LogError as error:  # it names a unit, by an internal number
            raise LogError(
                "These moments do not add: a sum is too large for a float64. Rescale the columns of large values."
            ) from error
        return type(self)(keys, self.n_actions, units)

    def allclose(self, other: "UnitMoments", rtol: float = 1e-12) -> bool:
        """Return True where both hold the same tasks, in any order, with the same rows and sums to rounding."""
        if self.n_actions != other.n_actions or len(self) != len(other):
            return False
        place = other.keys.locate(self.keys.values)
        return not (place < 0).any() and self.units.allclose(other.at(place).units, rtol)

    def dense(self) -> Moments:
        """Return the moments of all d = K p features of the map, with (d + 2)(d + 3) / 2 numbers a task."""
        p, d, K = self.unit_dim, self.dim, self.n_actions
        i, j = triangle(p + 2)

        def dense(table: Array) -> Array:
            full = np.zeros((len(self), packed_size(d + 2)))
            for action in range(K):
                entries = np.concatenate([action * p + np.arange(p), [d, d + 1]])
                full[:, entries[j] * (entries[j] + 1) // 2 + entries[i]] += table[:, action]
            return full

        squares = None if self.squares is None else dense(self.squares)
        rows, log_precision = self.rows.sum(axis=1), self.log_precision.sum(axis=1)
        return Moments(
            self.keys, d, dense(self.sums), rows, log_precision, self.features, squares, self.offset
        )

    def around(self, offset: Array | None) -> Self:
        """Return the same moments with sums around another offset (d,), the same for each action."""
        unit_offset = None if offset is None else offset[: self.unit_dim].copy()
        return replace(self, units=self.units.around(unit_offset))


def _numbers(rows: Codes, n_actions: int) -> Codes:
    """Return the numbers of the units of the tasks in these rows."""
    return (rows[:, None] * n_actions + np.arange(n_actions)).reshape(-1)


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
    def after(cls, features: FeatureMap, moments: UnitMoments) -> Self:
        """Return an accumulator that continues from these moments, as if their rows had been added to it."""
        accumulator = cls(features, offset=moments.offset)
        slots, m = accumulator._unit_slots(), len(moments)
        sums = moments.sums.reshape(m, slots.target.size).copy()
        squares = None if moments.squares is None else moments.squares.reshape(sums.shape).copy()
        pairs = np.stack([moments.rows, moments.log_precision], axis=2).reshape(m, 2 * moments.n_actions)
        accumulator.running.start(moments.keys, sums, squares, slots, pairs)
        return accumulator

    def __len__(self) -> int:
        return len(self.running)

    def moments(self) -> UnitMoments:
        """Return the moments of all batches so far."""
        return self.together([self], drop=False)

    @staticmethod
    def together(workers: "Sequence[UnitAccumulator]", *, drop: bool) -> UnitMoments:
        """Return the moments of the batches of all workers; as :meth:`Accumulator.together`."""
        first = workers[0]
        slots = first._unit_slots()
        total = merged([worker.running for worker in workers], slots, slots.target.size, drop=drop)
        total.refuse_overflow()
        keys, sums, pairs = total.keys, total.sums, total.pairs
        shape = (len(keys), *slots.target.shape)
        rows, log_precision = (np.ascontiguousarray(pairs[..., k]) for k in (0, 1))
        squares = None if total.squares is None else total.squares.reshape(shape)
        return UnitMoments.of(
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
