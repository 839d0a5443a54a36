"""A fit to moments in shards whose likelihoods are summed by Spark's workers."""

import os
import pickle  # noqa: TID251 - between a session and its workers, as Spark itself does
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from hieropo.errors import HieropoError
from hieropo.learners.hieropo import HierOPO
from hieropo.moments.in_shards import Load
from hieropo.moments.statistics import Moments
from hieropo.passes.sharded import ShardedMoments
from hieropo.spark.workers import check_workers, prepare_worker, session_of, slots_of

_VALUE = pa.schema([("position", pa.int64()), ("value", pa.binary())])
_VALUE_DDL = "position bigint, value binary"  # of _VALUE
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
            prepare_worker()
            for batch in batches:
                for position in batch.column(0).to_pylist():
                    value = _value_or_error(work, load, shards[position])
                    yield pa.RecordBatch.from_arrays(
                        [pa.array([position], pa.int64()), pa.array([value], pa.binary())], schema=_VALUE
                    )

        positions = self.session.range(0, count, 1, min(count, self.tasks))
        table = positions.mapInArrow(task, _VALUE_DDL).toArrow().sort_by("position")
        for value in table.column("value"):
            result = pickle.loads(value.as_py())  # noqa: S301 - of a worker of this session
            if isinstance(result, HieropoError):
                raise result
            yield result

    def __reduce__(self) -> tuple[Any, ...]:
        return _engine_of_worker, ()


def _value_or_error(work: Callable[[Moments], Any], load: Load, shard: int) -> bytes:
    try:
        return pickle.dumps(work(load(shard)))
    except HieropoError as error:
        return pickle.dumps(error)


def _engine_of_worker() -> Callable[..., Iterator[Any]]:
    """Return the engine that moments have where they were shipped to."""
    return _in_turn


def _in_turn(work: Callable[[Moments], Any], load: Load, numbers: Sequence[int]) -> Iterator[Any]:
    return (work(load(shard)) for shard in numbers)
