"""What every source of rows offers."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa

from hieropo.errors import LogError
from hieropo.sources.arrays import decoded

BATCH_ROWS = 65_536


@runtime_checkable
class LogSource(Protocol):
    """Rows that can be read as Arrow record batches, in one order.

    Every source cuts its rows at the same places: each batch has ``batch_rows`` rows, the last one fewer. So
    the same rows give the same sums to the last bit, wherever they come from.
    """

    @property
    def name(self) -> str:
        """What it is, for messages."""

    @property
    def schema(self) -> pa.Schema:
        """Names and Arrow types of the columns."""

    @property
    def n_rows(self) -> int | None:
        """Number of rows; None where it is not known before reading."""

    @property
    def rereadable(self) -> bool:
        """Whether ``batches`` may be called more than once."""

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns only, in the order asked for."""


def regroup(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Cut and join batches so that each has ``rows`` rows and only the last has fewer; none is empty."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, rows - count)
            held.append(part)
            start += part.num_rows
            count += part.num_rows
            if count == rows:
                yield _joined(held)
                held, count = [], 0
    if held:
        yield _joined(held)


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    try:
        return pa.concat_batches(parts)
    except pa.ArrowException:  # dictionaries that do not fit the type of their indices together
        return pa.concat_batches([_decoded(part) for part in parts])


def _decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([decoded(column) for column in batch.columns], names=batch.schema.names)


def empty(name: str) -> LogError:
    """Say that a source has no rows."""
    return LogError(
        f"The {name} has no rows. Is it the right one, and did an earlier filter or join leave anything?"
    )
