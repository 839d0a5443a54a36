"""Moments of more tasks than memory holds, read shard by shard: sums over tasks are sums over shards.

:class:`MomentsInShards` has the names of :class:`Moments` for all that needs sums over tasks alone, and loads one shard
after the other for the rest. Tasks are numbered in the order of the shards.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.text import counted
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Keys

IN_MEMORY = 2**27  # bytes of sums up to which a part of the tasks is taken into memory
_SHIPPED = 2**19  # numbers of tasks, 4 MiB, that travel to workers with each of their tasks
Load = Callable[[int], Moments]
Run = Callable[[Callable[[Moments], Any], Load, Sequence[int]], Iterator[Any]]


@dataclass(frozen=True, eq=False, repr=False)
class MomentsInShards:
    """The moments of all tasks of a log, of which one shard is in memory at a time.

    Parameters
    ----------
    total : Moments
        Sums over all tasks, as moments of one task.
    shard_tasks : tuple of int
        The number of tasks of each shard.
    observed_tasks, observed_units : int
        Tasks with rows; units with rows.
    load : callable
        Returns the moments of a shard, with any ids.
    run : callable, optional
        :meth:`map` on other machines: takes a function of moments, ``load`` and numbers of shards, and yields the
        values in the order of the numbers. Function and ``load`` are pickled. Default: one shard after the other.
    """

    total: Moments
    shard_tasks: tuple[int, ...]
    observed_tasks: int
    observed_units: int
    load: Load
    run: Run | None = None

    def __len__(self) -> int:
        return sum(self.shard_tasks)

    def __repr__(self) -> str:
        tasks, shards = counted(len(self), "task"), counted(len(self.shard_tasks), "shard")
        return f"MomentsInShards({tasks}, {counted(self.n_rows, 'row')}, {shards})"

    @property
    def n_rows(self) -> float:
        """The number of rows of all tasks, by their weights."""
        return self.total.n_rows

    @property
    def unit_dim(self) -> int:
        """Features p of a unit."""
        return self.total.unit_dim

    @property
    def dim(self) -> int:
        """The number d = K p of features of the feature map."""
        return self.total.dim

    @property
    def n_actions(self) -> int:
        """The number K of units of a task."""
        return self.total.n_actions

    @property
    def per_action(self) -> bool:
        """True where sums are kept per action."""
        return self.total.per_action

    @property
    def sampled(self) -> bool:
        """True where rows have sampling weights."""
        return self.total.sampled

    @property
    def features(self) -> str | None:
        """Fingerprint of the feature map."""
        return self.total.features

    @property
    def offset(self) -> Array | None:
        """The offset (d,) of the rewards."""
        return self.total.offset

    @property
    def unit_offset(self) -> Array | None:
        """The offset (p,) of the rewards."""
        return self.total.unit_offset

    @property
    def nbytes(self) -> int:
        """Bytes of the sums of all tasks."""
        return 8 * len(self) * (self.total.sums.size + 2 * self.total.rows.size)

    def shards(self) -> Iterator[Moments]:
        """Yield the moments of each shard that has tasks, in their order."""
        for k, tasks in enumerate(self.shard_tasks):
            if tasks:
                yield self.load(k)

    def map(self, work: Callable[[Moments], Any]) -> Iterator[Any]:
        """Yield the value of a function for the moments of each shard that has tasks, in their order."""
        if self.run is None:
            return map(work, self.shards())
        return self.run(work, self.load, [k for k, tasks in enumerate(self.shard_tasks) if tasks])

    def none(self) -> Moments:
        """Return the moments of no task."""
        return self.total.at(np.zeros(0, dtype=np.int64))

    def mapped(self, change: Callable[[Moments], Moments]) -> "MomentsInShards":
        """Return these moments with every shard changed by a function that is linear and keeps the tasks."""
        load = self.load
        return replace(self, total=change(self.total), load=lambda shard: change(load(shard)))

    def dense(self) -> "MomentsInShards":
        """Return the moments of all features of the map."""
        return self.mapped(Moments.dense) if self.per_action else self

    def transformed(self, T: Array) -> "MomentsInShards":
        """Return the moments of the features T phi of units, as :meth:`Moments.transformed`."""
        return self.mapped(lambda moments: moments.transformed(T))

    def refuse_negative(self) -> None:
        """Raise NumericalError where the sums of a unit are no sums of rows."""
        for _ in self.map(Moments.refuse_negative):
            pass

    def with_rows(self) -> "MomentsInShards":
        """Return the moments of the tasks that have rows; of all features of the map."""
        if self.observed_tasks == len(self):
            return self
        load, rows = self.load, self.map(lambda shard: np.count_nonzero(_rows_of_tasks(shard)))
        sizes = tuple(int(next(rows)) if tasks else 0 for tasks in self.shard_tasks)

        def observed(shard: int) -> Moments:
            whole = load(shard)
            return whole.at(np.flatnonzero(_rows_of_tasks(whole)))

        return replace(self, shard_tasks=sizes, load=observed)

    def rows_of_tasks(self) -> Array:
        """Return the number of rows (m,) of each task."""
        return self.of_tasks(_rows_of_tasks)

    def of_tasks(self, values: Callable[[Moments], Array]) -> Array:
        """Return a number (m,) of each task, by a function of the moments of a shard."""
        copies = self.map(lambda shard: np.array(values(shard)))  # views would keep all shards mapped
        return np.concatenate([np.zeros(0), *copies])

    def summed(self, values: Callable[[Moments], float]) -> float:
        """Return the sum over shards of a function of their moments."""
        return float(sum(self.map(values)))

    def at(self, rows: Codes) -> "Moments | MomentsInShards":
        """Return the moments of the tasks with some numbers, ascending: in memory up to 128 MiB, else in shards."""
        some = self._some(self._by_shard(rows)[0])
        return some if some.nbytes > IN_MEMORY else some.in_memory()

    def gathered(self, rows: Codes) -> Moments:
        """Return the moments of the tasks with some numbers, in memory, in their order."""
        of_shards, shard_of_row = self._by_shard(rows)
        position = np.empty(rows.size, dtype=np.int64)
        position[np.argsort(shard_of_row, kind="stable")] = np.arange(rows.size)
        return self._some(of_shards, self.total).in_memory().at(position)

    def _by_shard(self, rows: Codes) -> tuple[list[Codes], Codes]:
        """Return the tasks' numbers within each shard, and the shard of each task."""
        ends = np.array([0, *accumulate(self.shard_tasks)])
        shard_of_row = np.searchsorted(ends, rows, side="right") - 1
        return [rows[shard_of_row == k] - ends[k] for k in range(len(self.shard_tasks))], shard_of_row

    def replaced(self, rows: Codes, moments: Moments) -> "MomentsInShards":
        """Return the moments with those of the tasks with some numbers (n,) replaced by ``moments``, in their order."""
        of_shards, shard_of_row = self._by_shard(rows)
        load = self.load

        def changed(shard: int) -> Moments:
            whole, new = load(shard), np.flatnonzero(shard_of_row == shard)
            if not new.size:
                return whole
            values: dict[str, Any] = {}
            for name in ("sums", "rows", "log_precision"):
                values[name] = np.array(getattr(whole, name))
                values[name][of_shards[shard]] = getattr(moments, name)[new]
            return replace(whole, **values)

        every = [np.arange(tasks) for tasks in self.shard_tasks]
        return replace(self, load=changed, run=None)._some(every)

    def thinned(self, every: int) -> "Moments | MomentsInShards":
        """Return the moments of about one task in ``every``: of some of the shards, which are random parts."""
        filled = [k for k, tasks in enumerate(self.shard_tasks) if tasks]
        step = min(every, len(filled))
        chosen = set(filled[::step])
        stride = every // step
        counts = [
            np.arange(0, tasks if k in chosen else 0, stride, dtype=np.int64)
            for k, tasks in enumerate(self.shard_tasks)
        ]
        some = self._some(counts)
        return some if some.nbytes > IN_MEMORY else some.in_memory()

    def in_memory(self) -> Moments:
        """Return the moments of all tasks in memory, with numbers for ids."""
        parts = list(self.shards()) or [self.none()]

        def stacked(name: str) -> Any:
            return np.concatenate([getattr(part, name) for part in parts])

        return replace(
            parts[0],
            keys=Keys(np.arange(len(self))),
            sums=stacked("sums"),
            rows=stacked("rows"),
            log_precision=stacked("log_precision"),
            squares=stacked("squares") if self.sampled else None,
        )

    def _some(self, rows: list[Codes], total: Moments | None = None) -> "MomentsInShards":
        """Return the moments of some tasks of each shard; ``total`` is theirs, where it is known."""
        load, sizes = self.load, tuple(len(some) for some in rows)

        def chosen(shard: int) -> Moments:
            whole = load(shard)
            return whole if sizes[shard] == self.shard_tasks[shard] else whole.at(rows[shard])

        part = MomentsInShards(self.total, sizes, 0, 0, chosen)
        tasks = units = 0
        totals = []
        for shard in part.shards():
            tasks += int(np.count_nonzero(_rows_of_tasks(shard)))
            units += int(np.count_nonzero(shard.rows))
            if total is None:
                totals.append(total_of(shard))
        summed = total if total is not None else _sum_of_totals(totals, self.total)
        run = self.run if sum(sizes) <= _SHIPPED else None
        return MomentsInShards(summed, sizes, tasks, units, chosen, run)


def _rows_of_tasks(moments: Moments) -> Array:
    return moments.rows.sum(axis=1) if moments.per_action else np.asarray(moments.rows)


def _sum_of_totals(totals: list[Moments], like: Moments) -> Moments:
    if not totals:
        return total_of(like.at(np.zeros(0, dtype=np.int64)))
    names = ("sums", "rows", "log_precision", *(("squares",) if like.sampled else ()))
    return replace(totals[0], **{name: sum(getattr(one, name) for one in totals) for name in names})


def total_of(moments: Moments) -> Moments:
    """Return the sums over all tasks, as moments of one task."""

    def summed(values: Array) -> Array:
        return np.asarray(values.sum(axis=0)[None])

    return replace(
        moments,
        keys=Keys(np.zeros(1, dtype=np.int64)),
        sums=summed(moments.sums),
        rows=summed(moments.rows),
        log_precision=summed(moments.log_precision),
        squares=None if moments.squares is None else summed(moments.squares),
    )


AnyMoments = Moments | MomentsInShards


def totals(moments: AnyMoments) -> Moments:
    """Return moments with the same sums over all tasks: of one task where these are in shards, else themselves."""
    return moments.total if isinstance(moments, MomentsInShards) else moments
