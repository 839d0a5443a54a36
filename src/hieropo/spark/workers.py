"""Work on a worker: one thread for each task slot, and errors that come back as rows."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import hieropo
from hieropo.errors import HieropoError, InputError, LogError

REPORT = pa.schema([("number", pa.int64()), ("rows", pa.float64()), ("error", pa.string())])
REPORT_DDL = "number bigint, rows double, error string"  # of REPORT


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


def reported(number: int, work: Callable[[], float]) -> pa.RecordBatch:
    """Return the report of one task: its number, its rows, and the message of an error, without a Java trace."""
    try:
        prepare_worker()
        rows, error = work(), None
    except HieropoError as raised:
        rows, error = 0.0, " ".join([str(raised), *getattr(raised, "__notes__", [])])
    columns = [pa.array([number], pa.int64()), pa.array([rows], pa.float64()), pa.array([error], pa.string())]
    return pa.RecordBatch.from_arrays(columns, schema=REPORT)


def collected(frame: Any, part: str) -> list[tuple[int, float]]:
    """Run a frame of reports; return the number and the rows of each, in the order of numbers.

    Raises
    ------
    LogError
        A worker could not use its rows: the message of the first, with its ``part``.
    """
    reports = sorted(frame.toArrow().to_pylist(), key=lambda report: report["number"])
    for report in reports:
        if report["error"] is not None:
            raise LogError(f"{report['error']} In {part} {report['number']}, whose rows are numbered from 0.")
    return [(report["number"], report["rows"]) for report in reports]


def nonempty(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches that have rows."""
    return (batch for batch in batches if batch.num_rows)
