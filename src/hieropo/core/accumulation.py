"""Moments in the making, batch by batch."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hieropo.core.ids import id_array
from hieropo.core.keys import Codes, Keys, Places
from hieropo.core.packed import packed_size
from hieropo.core.statistics import Array, Moments, add_rows, check_rows, refuse_overflow
from hieropo.errors import InputError


class RunningSums:
    """Sums in the making, ``each`` of them side by side for every task; they grow as tasks appear.

    Parameters
    ----------
    dim : int
        Features of a row.
    each : int
        Sums of a task.
    """

    def __init__(self, dim: int, each: int = 1) -> None:
        self._each = each
        self._places = Places()
        self._sums = np.zeros((0, packed_size(dim + 2)))
        self._rows = np.zeros(0, dtype=np.int64)
        self._log_weight = np.zeros(0)

    @classmethod
    def after(cls, keys: Keys, dim: int, sums: Array, rows: Codes, log_weight: Array) -> Self:
        """Go on after what :meth:`collected` returned."""
        found = cls(dim, rows.size // max(len(keys), 1) or 1)
        found._places = Places.after(keys)
        found._sums, found._rows, found._log_weight = sums.copy(), rows.copy(), log_weight.copy()
        return found

    def __len__(self) -> int:
        return len(self._places)

    def add(self, place: Codes, phi: Array, reward: Array, weight: Array, which: Any = 0) -> None:
        """Add checked rows (n,) of the tasks in these places to the sums number ``which`` (n,) of each."""
        self._grow(len(self._places) * self._each)
        add_rows(place * self._each + which, phi, reward, weight, self._sums, self._rows, self._log_weight)

    def places(self, tasks: NDArray[Any]) -> Codes:
        """Place of each task (n,) of an `id_array`; new ones get a new place."""
        return self._places.of_checked(tasks)

    def _grow(self, size: int) -> None:
        have = self._rows.size
        if size <= have:
            return
        extra = max(size, 2 * have) - have
        self._sums = np.concatenate([self._sums, np.zeros((extra, self._sums.shape[1]))])
        self._rows = np.concatenate([self._rows, np.zeros(extra, dtype=np.int64)])
        self._log_weight = np.concatenate([self._log_weight, np.zeros(extra)])

    def collected(self) -> tuple[Keys, Array, Codes, Array]:
        """Return copies of what there is: the m tasks, sums (m each, q), rows and sums of log w (m each,).

        Raises
        ------
        LogError
            Squares of very large values went beyond float64.
        """
        keys = self._places.keys()
        m = len(keys)
        n = m * self._each
        sums = self._sums[:n].copy()
        refuse_overflow(keys, sums.reshape(m, self._each * sums.shape[1]))
        return keys, sums, self._rows[:n].copy(), self._log_weight[:n].copy()


class Accumulator:
    """Moments in the making, batch by batch; the mutable edge of a pass over a log.

    Parameters
    ----------
    dim : int
        Features d.
    features : str, optional
        Fingerprint of the feature map.
    """

    def __init__(self, dim: int, *, features: str | None = None) -> None:
        self._dim = dim
        self._features = features
        self._running = RunningSums(dim)

    def add(self, task: object, phi: ArrayLike, reward: ArrayLike, weight: ArrayLike | None = None) -> None:
        """Add a batch; arguments and errors as in :meth:`Moments.from_arrays`."""
        table, values, weights = check_rows(phi, reward, weight)
        tasks = id_array(task, "task")
        if table.shape[1] != self._dim or tasks.size != values.size:
            raise InputError(
                f"A batch of phi {table.shape}, {tasks.size} task ids and {values.size} rewards does not fit "
                f"{self._dim} features."
            )
        self._running.add(self._running.places(tasks), table, values, weights)

    @classmethod
    def after(cls, moments: Moments) -> Self:
        """Go on after these moments: the next row is added as if theirs had been added here."""
        found = cls(moments.dim, features=moments.features)
        found._running = RunningSums.after(
            moments.keys, moments.dim, moments.sums, moments.rows, moments.log_weight
        )
        return found

    def __len__(self) -> int:
        return len(self._running)

    def moments(self) -> Moments:
        """Return the moments of all batches so far."""
        keys, sums, rows, log_weight = self._running.collected()
        return Moments(keys, self._dim, sums, rows, log_weight, self._features)
