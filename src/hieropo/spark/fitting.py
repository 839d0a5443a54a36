"""A fit to moments in shards whose likelihoods are summed by Spark's workers."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from hieropo.learners.hieropo import HierOPO
from hieropo.moments.in_shards import Load
from hieropo.moments.statistics import Moments
from hieropo.passes.sharded import ShardedMoments
from hieropo.spark.workers import VALUE_DDL, check_workers, session_of, slots_of, valued, values_of

_WAVES = 2  # tasks of Spark for each slot, so that slots that end early are not idle for long


def fit(shards: Any, spark: Any = None, learner: HierOPO | None = None) -> HierOPO:
    """Fit a learner to moments in shards, with one shard after the other on each worker.

    An evaluation of a likelihood is a sum over tasks: workers map the shards, and the driver adds their sums in the
    order of the shards. So the result has the bits of ``learner.fit(shards)``. Parts of the tasks, on which learning
    starts, are read by the driver, which also writes the policy.

    Parameters
    ----------
    shards : path or ShardedMoments
        On a file system that the driver and every worker see. Small ones (64 MiB) are joined on the driver.
    spark : SparkSession, optional
        Default: the active session.
    learner : HierOPO, optional
        Default: ``HierOPO()``.

    Returns
    -------
    HierOPO
        The learner, fitted.

    Raises
    ------
    ArtifactError, InputError, LogError, NumericalError
        As of :meth:`HierOPO.fit`, or the workers cannot run hieropo.
    """
    session = session_of(None, spark)
    check_workers(session)
    sharded = shards if isinstance(shards, ShardedMoments) else ShardedMoments.open(os.path.realpath(shards))
    whole = replace(sharded, path=sharded.path.absolute(), run=OnWorkers(session, _WAVES * slots_of(session)))
    return (HierOPO() if learner is None else learner).fit(whole)


@dataclass(frozen=True)
class OnWorkers:
    """Runs a function of the moments of each shard on Spark's workers; on a worker itself, there.

    Parameters
    ----------
    session : SparkSession
    tasks : int
        Largest number of tasks of Spark for one function.
    """

    session: Any
    tasks: int

    def __call__(self, work: Callable[[Moments], Any], load: Load, numbers: Sequence[int]) -> Iterator[Any]:
        """Yield the values of the function in the order of the numbers of the shards."""
        shards, count = list(numbers), len(numbers)

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for position in batch.column(0).to_pylist():
                    yield valued(position, partial(_value, work, load, shards[position]))

        positions = self.session.range(0, count, 1, min(count, self.tasks))
        return iter(values_of(positions.mapInArrow(task, VALUE_DDL)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _engine_of_worker, ()


def _value(work: Callable[[Moments], Any], load: Load, shard: int) -> Any:
    return work(load(shard))


def _engine_of_worker() -> Callable[..., Iterator[Any]]:
    """Return the engine that moments have where they were shipped to."""
    return _in_turn


def _in_turn(work: Callable[[Moments], Any], load: Load, numbers: Sequence[int]) -> Iterator[Any]:
    return (work(load(shard)) for shard in numbers)
