"""A column of text that is named as the column of times, read as times of ISO 8601.

CSV files know no times, and their columns are read by their values. Parquet, frames and JSON lines state their types;
text there stays text, but in the column that the caller names as times. All values have a time zone, or none has: an
order of local times beside times with a zone would not be known.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from hieropo._utils.arrays import Mask
from hieropo.errors import LogError
from hieropo.logs.arrow.arrays import as_numpy, decoded, plain_texts
from hieropo.logs.arrow.log_source import BATCH_ROWS, LogSource, Part, WrappedSource, parts_of
from hieropo.logs.arrow.schema import TIME_OF_TEXT, is_text

_KINDS = (pa.timestamp("us"), pa.timestamp("us", tz="UTC"))


def with_times(source: LogSource, column: str | None, *, lenient: bool = False) -> LogSource:
    """Return a source in which a column of text has times; the source as it is where that column is no such text.

    It stays as it is where the first value is not of ISO 8601, where a source can be read once only, and where other
    machines read it.

    Parameters
    ----------
    source : LogSource
    column : str or None
        The column that is named as times.
    lenient : bool
        True: a value that is no time becomes null, so that reading sets its row aside. False: it is an error.
    """
    if column is None or source.schema.names.count(column) != 1 or hasattr(source, "each"):
        return source
    kind = source.schema.field(column).type
    if not is_text(kind.value_type if pa.types.is_dictionary(kind) else kind) or not source.rereadable:
        return source
    first = _first_text(source, column)
    of_first = next(
        (kind for kind in _KINDS if first is not None and not times_of(first, kind)[1].any()), None
    )
    return source if of_first is None else _TimesOfText(source, column, of_first, lenient=lenient)


def _first_text(source: LogSource, column: str) -> pa.Array | None:
    """Return the first value of a column that is not null, as an array; None where all are."""
    for part in parts_of(source, [column]):
        for batch in part.batches():
            texts = plain_texts(decoded(batch.column(0))).drop_null()
            if len(texts):
                return texts.slice(0, 1)
    return None


def times_of(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """Return text of ISO 8601 as time stamps of a type, null where it is none, and which values (n,) are none."""
    texts = plain_texts(decoded(texts)).cast(pa.string())
    try:
        return texts.cast(kind), np.zeros(len(texts), dtype=np.bool_)
    except pa.ArrowInvalid:
        encoded = texts.dictionary_encode()
    parsed = [_time_of(text, kind) for text in encoded.dictionary]
    times = pa.array(parsed, kind).take(encoded.indices)
    return times, as_numpy(times.is_null()) & as_numpy(texts.is_valid())


def _time_of(text: pa.Scalar, kind: pa.DataType) -> Any:
    try:
        return text.cast(kind).as_py()
    except pa.ArrowInvalid:
        return None


class _TimesOfText(WrappedSource):
    """A source with one column of text read as times of one type."""

    schema: Any

    def __init__(self, source: LogSource, column: str, kind: pa.DataType, *, lenient: bool) -> None:
        super().__init__(source)
        self._column, self._kind, self._lenient = column, kind, lenient
        self._field = pa.field(column, kind, metadata={TIME_OF_TEXT: b""})
        self.schema = source.schema.set(source.schema.get_field_index(column), self._field)

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns only."""
        batches = self._source.batches(columns, batch_rows)
        return self._with_times(batches, 0) if self._column in columns else batches

    def parts(self, columns: Sequence[str]) -> Sequence[Part]:
        """Return the parts of the source."""
        parts = parts_of(self._source, columns)
        if self._column not in columns:
            return parts
        return [Part.of(part, partial(self._of_part, part)) for part in parts]

    def _of_part(self, part: Part) -> Iterator[pa.RecordBatch]:
        return self._with_times(part.batches(), part.first_row)

    def _with_times(self, batches: Iterator[pa.RecordBatch], row: int) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            position = batch.schema.get_field_index(self._column)
            texts = batch.column(position)
            times, wrong = times_of(texts, self._kind)
            if wrong.any() and not self._lenient:
                self._refuse(texts, wrong, row)
            yield batch.set_column(position, self._field, times)
            row += batch.num_rows

    def _refuse(self, texts: pa.Array, wrong: Mask, first_row: int) -> None:
        row = int(wrong.argmax())
        zone = "with" if self._kind.tz else "without"
        raise LogError.in_row(
            first_row + row,
            f"Column {self._column!r}, row {first_row + row}: {str(texts[row])[:40]!r} is not a time {zone} a zone "
            "in the form of ISO 8601, and the first value of the column is. Write all values like the first, or drop "
            "such rows.",
        )
