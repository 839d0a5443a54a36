"""Accumulation of moments per action, each with its own features (1, x)."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import triangle
from hieropo.errors import InputError
from hieropo.features.maps import FeatureMap
from hieropo.features.per_action import Crossed, checked_codes
from hieropo.moments.accumulation import BatchSums, RunningSums
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


class UnitAccumulator(BatchSums):
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

    _per_action = True

    def __init__(self, features: FeatureMap, *, offset: Array | None = None, expected: int = 0) -> None:
        row = one_action(features)
        if row is None or features.actions is None:
            raise InputError(
                f"The feature map {features!r} does not give each action its own coefficients, so that moments of "
                "single actions do not exist. Use per_action(...) or indicator(...), or an Accumulator."
            )
        self._row = row
        offset = None if offset is None else offset[: row.dim].copy()
        running = RunningSums(
            row.dim - row.intercept, len(features.actions), offset=_of_rows(offset, row), expected=expected
        )  # the 1 of z is the intercept's too
        super().__init__(running, row.dim, features.fingerprint, offset)

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
        actions = checked_codes(action, self.running.blocks, tasks.size)
        phi = self._row.phi(context, np.zeros(tasks.size, dtype=np.int64))
        x = phi[:, int(self._row.intercept) :]
        table, values, weights = check_rows(x, reward, weight, precision, sampling_weight)
        place = self.running.keys.rows_of_ids(tasks)
        self.running.add(place, table, values, weights, in_block=actions)
        return place

    @property
    def unit_dim(self) -> int:
        """The features p of a unit."""
        return self._row.dim

    def widen(self, n_actions: int) -> None:
        """Make room for more actions: codes may then be up to ``n_actions``, exclusive."""
        self.running.arrange(np.arange(self.running.blocks), n_actions)

    def arrange(self, features: FeatureMap, position: Codes) -> None:
        """Turn the sums into those of another map: action a becomes its action ``position[a]``."""
        self._features = features.fingerprint
        self.running.arrange(position, len(features.actions or ()))

    def _slots(self) -> Slots:
        """Return the slots of the sums of units in tables (m, K, (p + 2)(p + 3) / 2)."""
        p, count = self._row.dim, self._row.dim + 2
        entry = np.arange(count)  # of z = (1, x, r, 1) in (x, r, 1)
        if self._row.intercept:
            entry = np.concatenate([[p], np.arange(p + 1)])
        i, j = triangle(count)
        low, high = np.minimum(entry[i], entry[j]), np.maximum(entry[i], entry[j])
        source = packed_slots(int(entry.max()) + 1).source[0, high * (high + 1) // 2 + low]
        shape = (self.running.blocks, source.size)
        return Slots(np.tile(source, (shape[0], 1)), np.arange(math.prod(shape)).reshape(shape))

    def _dense_slots(self) -> Slots:
        """Return the slots of the sums of units in tables (m, (d + 2)(d + 3) / 2) of all d = K p features."""
        p, K = self._row.dim, self.running.blocks
        i, j = triangle(p + 2)
        slots = self._slots()
        target = np.empty_like(slots.target)
        for action in range(K):
            entries = np.concatenate([action * p + np.arange(p), [K * p, K * p + 1]])
            target[action] = entries[j] * (entries[j] + 1) // 2 + entries[i]
        return Slots(slots.source, target)

    @classmethod
    def after(cls, features: FeatureMap, moments: Moments) -> Self:
        """Return an accumulator that continues from these moments, as if their rows had been added to it."""
        accumulator = cls(features, offset=moments.unit_offset)
        return accumulator._continue(moments, accumulator._slots())

    @classmethod
    def together_dense(cls, workers: "Sequence[UnitAccumulator]", *, drop: bool) -> Moments:
        """Return the moments of all d = K p features; as :meth:`Accumulator.together`."""
        first, K = workers[0], workers[0].running.blocks
        offset, slots = None if first._offset is None else np.tile(first._offset, K), first._dense_slots()
        return cls._joined(workers, K * first._dim, offset, slots, per_action=False, drop=drop)
