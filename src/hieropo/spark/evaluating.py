"""The evaluation of a policy on the rows of a Spark frame: workers write the rows, the driver streams them."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hieropo.errors import ArtifactError
from hieropo.evaluation.evaluation import Evaluation
from hieropo.learners.loading import load_evaluable
from hieropo.logs.arrow.log_source import Part, WrappedSource, empty, parts_of
from hieropo.logs.opening import open_log
from hieropo.spark.hashing import map_batches
from hieropo.spark.workers import VALUE_DDL, check_workers, nonempty, session_of, valued, values_of


def evaluate(frame: Any, policy: Any, *, folder: str | os.PathLike[str], **options: Any) -> Evaluation:
    """Evaluate a policy on the rows of a Spark frame, as :meth:`HierOPO.evaluate` does on a log.

    Workers write the rows as Parquet, once, in the order of the partitions; the driver reads these files batch by
    batch, two or three times. So the numbers are those of ``evaluate(frame.toArrow())``, with all comparisons and
    tests, and the driver holds the tasks of the frame and a batch, not the rows. It does the arithmetic alone: some
    microseconds a row.

    Parameters
    ----------
    frame : DataFrame
        Read once. All its columns are written: select those of the evaluation where there are many more.
    policy : path or HierOPO
        The directory of a policy that a learner saved, or the fitted learner.
    folder : path
        A directory that the driver and every worker see. The files are in a new one within it, and removed at the end.
    **options
        As of :meth:`HierOPO.evaluate`.

    Returns
    -------
    Evaluation

    Raises
    ------
    InputError, SchemaError, LogError, ArtifactError, UnknownActionError, UnknownTaskError
        As of :meth:`HierOPO.evaluate`; or the workers cannot run hieropo, or cannot write to the folder.
    """
    check_workers(session_of(frame, None))
    learner = load_evaluable(policy) if isinstance(policy, str | os.PathLike) else policy
    place = Path(os.path.realpath(folder))
    if not place.is_dir():
        raise ArtifactError(
            f"{place} is no directory, and workers write the rows there for the driver to read. Make it, on a file "
            "system that all of them see."
        )
    files = tempfile.mkdtemp(prefix=".rows-", dir=place)
    Path(files).chmod(0o777)  # workers may run as another user
    try:
        _write(frame, files)
        evaluation: Evaluation = learner.evaluate(_WrittenFrame(files), **options)
        return evaluation
    finally:
        shutil.rmtree(files, ignore_errors=True)


class _WrittenFrame(WrappedSource):
    """The files of a frame as its log: rows have their numbers in the frame, since the files are removed.

    Parameters
    ----------
    files : str
        The folder.
    """

    def __init__(self, files: str) -> None:
        super().__init__(open_log(files))
        self.name = "Spark frame"

    def parts(self, columns: Sequence[str]) -> Sequence[Part]:
        """Return the parts of the files."""
        return parts_of(self._source, columns)

    def place_of(self, row: int) -> str:
        """Return the number of a row in the frame."""
        return f"row {row}"


def _write(frame: Any, files: str) -> None:
    """Let workers write each partition that has rows into a file of its own, which appears in one step.

    Raises
    ------
    LogError
        The frame has no rows.
    """

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        first = next(batches := nonempty(batches), None)
        if first is not None:
            number, attempt = context.partitionId(), context.taskAttemptId()
            yield valued(
                number, partial(_written, chain([first], batches), first.schema, files, number, attempt)
            )

    if not values_of(map_batches(frame, task, VALUE_DDL)):
        raise empty("Spark frame")


def _written(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, files: str, number: int, attempt: int
) -> int:
    """Write one partition; return its rows.

    Raises
    ------
    ArtifactError
        The folder cannot be written.
    """
    rows, place = 0, Path(files) / f"{number:06d}.parquet"
    hidden = place.with_name(f".{place.name}.{attempt}")
    try:
        with pq.ParquetWriter(hidden, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
        hidden.replace(place)
    except OSError as error:
        raise ArtifactError(
            f"A worker cannot write to {files}: {error.strerror or error}. Give folder= a directory that the driver "
            "and every worker see and may write to."
        ) from error
    return rows
