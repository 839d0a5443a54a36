"""A file that lists rejected rows in the order of the log, in whichever order and thread they were found."""

import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from hieropo.errors import ArtifactError, InputError
from hieropo.sources.arrays import decoded
from hieropo.sources.sifting import Fault
from hieropo.sources.writing import TABLE_SUFFIXES, check_target, write_tables

_BLOCK = 65_536  # rows written at once


class Listing:
    """Rows that wait, in an unnamed file beside the one that they go to, until they can be written in order.

    Parameters
    ----------
    target : Path
    unit : "row" or "line"
        What the numbers count: rows of the whole log from 0, or lines of a file from 1.

    Raises
    ------
    InputError
        The file is of another format than Parquet and CSV.
    ArtifactError
        It cannot be written.
    """

    def __init__(self, target: Path, unit: str = "row") -> None:
        self.schema = pa.schema(
            [
                ("file", pa.string()),
                (unit, pa.int64()),
                ("column", pa.string()),
                ("value", pa.string()),
                ("reason", pa.string()),
            ]
        )
        if target.suffix.lower() not in TABLE_SUFFIXES:
            raise InputError(
                f"{str(target)!r} cannot list rejected rows: its name has to end in {' or '.join(TABLE_SUFFIXES)}."
            )
        check_target(target)
        self._target = target
        try:
            self._waiting: IO[bytes] = tempfile.TemporaryFile(dir=target.parent)  # noqa: SIM115 - it lives as long as this
        except OSError as error:
            raise ArtifactError(
                f"{target} cannot be written: {error.strerror or error}. Is the disk full, or the folder closed to "
                "this user?"
            ) from error
        weakref.finalize(self, self._waiting.close)  # where the log was not read to its end
        self._writer = pa.ipc.new_file(self._waiting, self.schema)
        self._first_rows: list[int] = []

    def add(self, found: pa.RecordBatch, faults: Sequence[Fault], first_row: int, place: str) -> None:
        """Keep the faults of one batch."""
        parts = [self._listed(found.column(fault.column), fault, first_row, place) for fault in faults]
        self.take(pa.Table.from_batches(parts).combine_chunks().sort_by("row"), first_row)

    def take(self, table: pa.Table, first: int) -> None:
        """Keep rows as they will be listed, at least one and in order; ``first`` is a number before all of theirs."""
        self._writer.write_table(table, max_chunksize=table.num_rows)
        self._first_rows.append(first)

    def write(self) -> None:
        """Write all in the order of the log."""
        self._writer.close()
        self._waiting.seek(0)
        write_tables(self._target, self._in_order(pa.ipc.open_file(self._waiting)))
        self._waiting.close()

    def _in_order(self, reader: Any) -> Iterator[pa.Table]:
        held: list[pa.RecordBatch] = []
        for k in np.argsort(self._first_rows, kind="stable").tolist():
            held.append(reader.get_batch(k))
            if sum(batch.num_rows for batch in held) >= _BLOCK:
                yield pa.Table.from_batches(held)
                held = []
        yield pa.Table.from_batches(held, self.schema)

    def _listed(self, column: pa.Array, fault: Fault, first_row: int, place: str) -> pa.RecordBatch:
        rows = np.flatnonzero(fault.bad)
        n = rows.size
        values = decoded(column).filter(pa.array(fault.bad))
        try:
            texts = values.cast(pa.string())
        except pa.ArrowException:  # lists, and bytes that are no text
            texts = pa.array(
                [None if value is None else str(value) for value in values.to_pylist()], pa.string()
            )
        return pa.RecordBatch.from_arrays(
            [pa.array([place] * n), pa.array(first_row + rows), pa.array([fault.column] * n), texts,
             pa.array([fault.reason] * n)],
            schema=self.schema,
        )  # fmt: skip


def check_listing(file: str | os.PathLike[str] | None, log: Any) -> None:
    """Refuse a list of rejected rows that would become part of the log.

    Raises
    ------
    InputError
        Names both.
    """
    if file is None or not isinstance(log, str | os.PathLike):
        return
    target, source = Path(file).resolve(), Path(log).resolve()
    if source == target or source in target.parents or fnmatch(str(target), str(source)):  # a glob
        raise InputError(
            f"{str(file)!r} cannot list rejected rows: it would become part of the log, {str(log)!r}. Give another "
            "path."
        )
