"""Moments of units: a unit is one action within one task, with features (1, x) of its own."""

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
    """Return the map of the features (1, x) that a map with coefficients for each action repeats; None for others.

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

    They form a commutative group under ``+`` and ``-`` as :class:`hieropo.moments.statistics.Moments` do, and hold what
    the moments of d = K p features hold: those of features of two actions are zero.

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
        """Put together from arrays, as the properties give them.

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
        """The ids of the tasks, as given, shape (m,)."""
        return self.keys.values

    @property
    def features(self) -> str | None:
        """Fingerprint of the feature map."""
        return self.units.features

    @property
    def offset(self) -> Array | None:
        """Offset (d,) of the features of the map: that of the units, the same for each action."""
        return None if self.units.offset is None else np.tile(self.units.offset, self.n_actions)

    @property
    def unit_dim(self) -> int:
        """Features p of one action."""
        return self.units.dim

    @property
    def dim(self) -> int:
        """Features d = K p of the feature map."""
        return self.n_actions * self.units.dim

    @property
    def sums(self) -> Array:
        """Packed sums of w z z', z = (1, x, r, 1), shape (m, K, (p + 2)(p + 3) / 2)."""
        return self.units.sums.reshape(len(self), self.n_actions, self.units.sums.shape[1])

    @property
    def squares(self) -> Array | None:
        """Packed sums of c (q v)^2 z z', shaped as ``sums``; only of rows that have sampling weights."""
        found = self.units.squares
        return None if found is None else found.reshape(self.sums.shape)

    @property
    def sampled(self) -> bool:
        """Return whether rows have sampling weights: chance kept them of more."""
        return self.units.sampled

    @property
    def rows(self) -> Array:
        """Rows of each unit, sum c q, shape (m, K)."""
        return self.units.rows.reshape(len(self), self.n_actions)

    @property
    def log_precision(self) -> Array:
        """Sum of c q log v of each unit, shape (m, K)."""
        return self.units.log_precision.reshape(len(self), self.n_actions)

    @property
    def n_rows(self) -> float:
        """Rows of all units together, by their weights: sum c q."""
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
        at = self.keys.require(tasks)
        if np.unique(at).size != at.size:
            twice = self.keys.values[np.flatnonzero(np.bincount(at) > 1)[:1]].tolist()[0]
            raise InputError(
                f"Task {twice!r} is selected twice; its rows would count twice. Name each task once."
            )
        return self.at(at)

    def at(self, rows: Any) -> Self:
        """Return the moments of the tasks at some places of ``keys``."""
        squares = None if self.squares is None else self.squares[rows]
        return type(self).of(
            Keys(self.keys.values[rows]), self.unit_dim, self.sums[rows], self.rows[rows],
            self.log_precision[rows], self.features, squares, self.units.offset,
        )  # fmt: skip

    def covering(self, keys: Keys) -> Self:
        """Return these moments with every task of ``keys`` present, without rows where it had none."""
        union, _ = self.keys.union(keys)
        if len(union) == len(self):
            return self
        units = self.units.covering(Keys(np.arange(len(union) * self.n_actions)))
        return type(self)(union, self.n_actions, units)

    def among(self, place: Codes, n_actions: int, features: str | None) -> Self:
        """Return the moments for a map that has these actions at ``place`` (K,) among its ``n_actions``.

        The others have no rows. ``features`` is the fingerprint of that map.
        """

        def spread(values: Array) -> Array:
            table = np.zeros((len(self), n_actions, *values.shape[2:]))
            table[:, place] = values
            return table

        sums, rows, log_precision = spread(self.sums), spread(self.rows), spread(self.log_precision)
        squares = None if self.squares is None else spread(self.squares)
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

    @property
    def per_action(self) -> bool:
        """Return True: sums are one block an action; those of :class:`Moments` are over all actions."""
        return True

    def scale(self, factor: float) -> Self:
        """Multiply every weight c by a positive ``factor``: rows count for less, or for more."""
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
        except LogError as error:  # it names a unit, by a number that nobody gave
            raise LogError(
                "Two moments do not add: a sum would not fit a float64. Rescale the columns of large values."
            ) from error
        return type(self)(keys, self.n_actions, units)

    def allclose(self, other: "UnitMoments", rtol: float = 1e-12) -> bool:
        """Return whether both hold the same tasks, in any order, with the same rows and sums to rounding."""
        if self.n_actions != other.n_actions or len(self) != len(other):
            return False
        place = other.keys.locate(self.keys.values)
        return not (place < 0).any() and self.units.allclose(other.at(place).units, rtol)

    def dense(self) -> Moments:
        """Return the moments of all d = K p features of the map, of (d + 2)(d + 3) / 2 numbers a task."""
        p, d, K = self.unit_dim, self.dim, self.n_actions
        i, j = triangle(p + 2)

        def dense(table: Array) -> Array:
            whole = np.zeros((len(self), packed_size(d + 2)))
            for action in range(K):
                place = np.concatenate([action * p + np.arange(p), [d, d + 1]])
                whole[:, place[j] * (place[j] + 1) // 2 + place[i]] += table[:, action]
            return whole

        squares = None if self.squares is None else dense(self.squares)
        rows, log_precision = self.rows.sum(axis=1), self.log_precision.sum(axis=1)
        return Moments(
            self.keys, d, dense(self.sums), rows, log_precision, self.features, squares, self.offset
        )

    def around(self, offset: Array | None) -> Self:
        """Return the same moments with sums around another offset (d,), the same for each action."""
        own = None if offset is None else offset[: self.unit_dim].copy()
        return replace(self, units=self.units.around(own))


def _numbers(rows: Codes, n_actions: int) -> Codes:
    """Numbers of the units of the tasks in these rows."""
    return (rows[:, None] * n_actions + np.arange(n_actions)).reshape(-1)


def _of_rows(offset: Array | None, row: Crossed) -> Array | None:
    """An offset of (1, x), or of x, as one of (x, 1)."""
    if offset is None:
        return None
    return np.roll(offset, -1) if row.intercept else np.append(offset, 0.0)


class UnitAccumulator:
    """Moments of units in the making, batch by batch; the mutable edge of a pass over a log.

    Parameters
    ----------
    features : Crossed
        With coefficients of its own for each action: ``per_action(...)`` or ``indicator(...)``.
    offset : (d,) array, optional
        Of the moments; the same for each action.

    Raises
    ------
    InputError
        The map is another one.
    """

    def __init__(self, features: FeatureMap, *, offset: Array | None = None) -> None:
        row = one_action(features)
        if row is None or features.actions is None:
            raise InputError(
                f"{features!r} does not give each action coefficients of its own, so that its moments do not fall "
                "apart into those of actions. Use per_action(...) or indicator(...), or an Accumulator."
            )
        self._row = row
        self._features = features.fingerprint
        self._n_actions = len(features.actions)
        self._offset = None if offset is None else offset[: row.dim].copy()
        self.running = RunningSums(
            row.dim - row.intercept, self._n_actions, offset=_of_rows(self._offset, row)
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
    ) -> None:
        """Add a batch.

        Parameters
        ----------
        task : (n,) ids
        action : (n,) int
            Codes, as the map's ``action_codes`` gives them.
        context : (n, c) array or None
            Of the columns that the map reads.
        reward, weight, precision, sampling_weight : (n,) array
            As in :meth:`Moments.from_arrays`.

        Raises
        ------
        InputError, LogError
            Lengths differ; a code is none of an action; a value is missing or not finite.
        """
        tasks = id_array(task, "task")
        actions = self._check(action, tasks.size)
        phi = self._row.phi(context, np.zeros(tasks.size, dtype=np.int64))
        own = phi[:, int(self._row.intercept) :]
        table, values, weights = check_rows(own, reward, weight, precision, sampling_weight)
        self.running.add(self.running.places.of_checked(tasks), table, values, weights, which=actions)

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
            raise InputError(f"Action code {codes[row]} (row {row}) is not in 0 .. {self._n_actions - 1}.")
        return codes

    def _spots(self) -> Slots:
        """Return where the sums of units lie in tables (m, K, (p + 2)(p + 3) / 2)."""
        p, count = self._row.dim, self._row.dim + 2
        entry = np.arange(count)  # of z = (1, x, r, 1) in (x, r, 1)
        if self._row.intercept:
            entry = np.concatenate([[p], np.arange(p + 1)])
        i, j = triangle(count)
        low, high = np.minimum(entry[i], entry[j]), np.maximum(entry[i], entry[j])
        source = packed_slots(int(entry.max()) + 1).source[0, high * (high + 1) // 2 + low]
        target = np.arange(self._n_actions * source.size).reshape(self._n_actions, source.size)
        return Slots(np.tile(source, (self._n_actions, 1)), target)

    def _dense_spots(self) -> Slots:
        """Return where the sums of units lie in tables (m, (d + 2)(d + 3) / 2) of all d = K p features."""
        p, K = self._row.dim, self._n_actions
        i, j = triangle(p + 2)
        spots = self._spots()
        target = np.empty_like(spots.target)
        for action in range(K):
            place = np.concatenate([action * p + np.arange(p), [K * p, K * p + 1]])
            target[action] = place[j] * (place[j] + 1) // 2 + place[i]
        return Slots(spots.source, target)

    @classmethod
    def after(cls, features: FeatureMap, moments: UnitMoments) -> Self:
        """Go on after these moments: the next row is added as if theirs had been added here."""
        found = cls(features, offset=moments.offset)
        spots, m = found._spots(), len(moments)
        sums = moments.sums.reshape(m, spots.target.size).copy()
        squares = None if moments.squares is None else moments.squares.reshape(sums.shape).copy()
        pairs = np.stack([moments.rows, moments.log_precision], axis=2).reshape(m, 2 * moments.n_actions)
        found.running.start(moments.keys, sums, squares, spots, pairs)
        return found

    def __len__(self) -> int:
        return len(self.running)

    def moments(self) -> UnitMoments:
        """Return the moments of all batches so far."""
        return self.together([self], drop=False)

    @staticmethod
    def together(lanes: "Sequence[UnitAccumulator]", *, drop: bool) -> UnitMoments:
        """Return the moments of the batches of all these; as :meth:`Accumulator.together`."""
        one = lanes[0]
        spots = one._spots()
        found = merged([lane.running for lane in lanes], spots, spots.target.size, drop=drop)
        found.refuse_overflow()
        keys, sums, pairs = found.keys, found.sums, found.pairs
        shape = (len(keys), *spots.target.shape)
        rows, log_precision = (np.ascontiguousarray(pairs[..., k]) for k in (0, 1))
        squares = None if found.squares is None else found.squares.reshape(shape)
        return UnitMoments.of(
            keys, one._row.dim, sums.reshape(shape), rows, log_precision, one._features, squares, one._offset
        )

    @staticmethod
    def together_dense(lanes: "Sequence[UnitAccumulator]", *, drop: bool) -> Moments:
        """Return the moments of all d = K p features; as :meth:`Accumulator.together`."""
        one = lanes[0]
        d = one._n_actions * one._row.dim
        found = merged([lane.running for lane in lanes], one._dense_spots(), packed_size(d + 2), drop=drop)
        found.refuse_overflow()
        rows, log_precision = np.ascontiguousarray(found.pairs.sum(axis=1).T)
        offset = None if one._offset is None else np.tile(one._offset, one._n_actions)
        return Moments(found.keys, d, found.sums, rows, log_precision, one._features, found.squares, offset)
