"""Work on a worker: one thread for each task slot, and errors that come back as rows."""

import os
import pickle  # noqa: TID251 - between a session and its workers, as Spark itself does
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import hieropo
from hieropo.errors import HieropoError, InputError, LogError

_VALUE = pa.schema([("number", pa.int64()), ("value", pa.binary())])
VALUE_DDL = "number bigint, value binary"  # of _VALUE
_MISSING = re.compile(r"No module named '([^']+)'|PyArrow|PYTHON_VERSION_MISMATCH")


def prepare_worker() -> None:
    """Let the passes of this process use one thread, as its task slot does.

    Raises
    ------
    InputError
        hieropo was shipped as a zip, from which compiled loops cannot be cached.
    """
    if not Path(hieropo.__file__).is_file():
        raise InputError(
            f"hieropo was shipped as {Path(hieropo.__file__).parent}, and its compiled loops need files on disk. Ship "
            "a packed environment in place of a zip by addPyFile: see the page 'When one machine is not enough'."
        )
    os.environ["HIEROPO_THREADS"] = "1"


def session_of(frame: Any, spark: Any) -> Any:
    """Return the session that was given, that of a frame, or the active one.

    Raises
    ------
    InputError
        There is none.
    """
    if spark is not None:
        return spark
    session = getattr(frame, "sparkSession", None)
    if session is None:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
    if session is None:
        raise InputError(
            "There is no active Spark session, so that no worker can read the files. Give one: spark=...."
        )
    return session


def slots_of(session: Any) -> int:
    """Return the number of task slots, by which Spark cuts a range."""
    from pyspark.sql import functions as f

    return int(session.range(4096).select(f.spark_partition_id()).distinct().count())


def check_workers(session: Any) -> None:
    """Run an empty task on a worker, so that a Python that cannot run hieropo is told before any row is read.

    Raises
    ------
    InputError
        The Python of the workers lacks a module, is of another version, or has another release of hieropo.
    """
    release = hieropo.__version__

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield valued(0, lambda: _refuse_other_release(release))

    try:
        values_of(session.range(0, 1, 1, 1).mapInArrow(work, VALUE_DDL))
    except HieropoError:
        raise
    except Exception as error:  # classes of errors differ between a session and a Spark Connect client
        missing = _MISSING.search(str(error))
        if missing is None:
            raise
        lacks = f"has no module {missing[1]!r}" if missing[1] else "lacks PyArrow, or is another version"
        raise InputError(
            f"The Python of Spark's workers (PYSPARK_PYTHON={os.environ.get('PYSPARK_PYTHON', 'python3')!r}) {lacks}, "
            "so that no worker can read a row. Set PYSPARK_PYTHON, before the session starts, to the Python of an "
            f"environment with hieropo[spark] and Python {sys.version_info.major}.{sys.version_info.minor} on every "
            "worker, or ship one: see the page 'When one machine is not enough'."
        ) from None


def _refuse_other_release(release: str) -> None:
    """Raise InputError where this worker has another release of hieropo than the driver."""
    if hieropo.__version__ != release:
        raise InputError(
            f"A worker of Spark has hieropo {hieropo.__version__}, and this session has {release}: sums and policies "
            "of two releases do not mix. Ship the environment of this session: see the page 'When one machine is not "
            "enough'."
        )


def valued(number: int, work: Callable[[], Any]) -> pa.RecordBatch:
    """Return the value of one task, or its error, as a row that :func:`values_of` reads."""
    try:
        prepare_worker()
        value = work()
    except HieropoError as error:
        value = error
    columns = [pa.array([number], pa.int64()), pa.array([pickle.dumps(value)], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=_VALUE)


def values_of(frame: Any, part: str | None = None) -> list[Any]:
    """Run a frame of rows that :func:`valued` makes; return the values in the order of their numbers.

    Raises
    ------
    HieropoError
        That of the first task that has one; a LogError with the number of its ``part``, where that is given.
    """
    values = []
    for row in sorted(frame.toArrow().to_pylist(), key=lambda row: row["number"]):
        value = pickle.loads(row["value"])  # noqa: S301 - of a worker of this session
        if isinstance(value, HieropoError):
            if part is None:
                raise value
            text = " ".join([str(value), *getattr(value, "__notes__", [])])
            raise LogError(f"{text} In {part} {row['number']}, whose rows are numbered from 0.")
        values.append(value)
    return values


def nonempty(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches that have rows."""
    return (batch for batch in batches if batch.num_rows)
