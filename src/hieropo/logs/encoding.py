"""Encode the context columns of a source: from text, booleans and times to the columns of numbers of learned terms."""

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hieropo._utils.arrays import Array, Mask
from hieropo._utils.threads import processors
from hieropo.errors import LogError, SchemaError
from hieropo.features.terms.effects import FOLDS
from hieropo.features.terms.learned import LearnedColumn, LearnedTerms, Refusal
from hieropo.features.terms.learning import Resolved, SourceColumn
from hieropo.features.terms.statistics import LogColumns, Wanted, wanted
from hieropo.features.terms.values import Kind, Values
from hieropo.logs.arrow.arrays import as_numpy, decoded, ids, is_utf8, numbers, plain_texts
from hieropo.logs.arrow.log_source import BATCH_ROWS, LogSource, Part, WrappedSource, over_parts, parts_of
from hieropo.logs.arrow.schema import SOURCE, check_columns, holds_text
from hieropo.logs.arrow.times_of_text import times_of
from hieropo.logs.formats.paths import TEXTS, find_files
from hieropo.logs.formats.text_types import text_numbers
from hieropo.logs.opening import open_log
from hieropo.logs.reading import context_matrix

_IN_WORDS = {"text": "text", "time": "a time", "boolean": "a boolean", "number": "a number"}
_UNUSABLE = {"infinite": np.inf, "huge": 1e300}
_WHY = {
    "missing": "null, and the log that the features were learned from had no missing value there. Fill the value in or "
    "drop such rows; or fit with missing='prior', which takes it as an unknown value.",
    "infinite": "an infinite value, which is not a context. Drop such rows, or fill the value in.",
    "huge": "a number so large that its powers do not fit a float64. Does it stand for a missing value? Drop such "
    "rows, or rescale the column.",
}


def kind_of(kind: pa.DataType) -> Kind | None:
    """Return the kind of the values of an Arrow type; None for lists, bytes and other types that no term reads."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if holds_text(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    return "time" if pa.types.is_date(kind) or pa.types.is_timestamp(kind) else None


def source_columns(log: LogSource, columns: Sequence[str]) -> dict[str, SourceColumn]:
    """Return the kinds of some columns of a log.

    Raises
    ------
    SchemaError
        A column is missing, there twice, or of a type that no term reads.
    """
    check_columns(log.schema, [("term", column) for column in columns], log.name)
    found = {}
    for column in columns:
        arrow_type = log.schema.field(column).type
        kind = kind_of(arrow_type)
        if kind is None:
            problem = (
                "has no value in any row"
                if pa.types.is_null(arrow_type)
                else f"is of Arrow type {arrow_type}"
            )
            raise SchemaError(
                f"Column {column!r} of the {log.name} {problem}, and features are made of numbers, text, booleans, "
                "dates and times. Leave it out, or cast it."
            )
        found[column] = SourceColumn(kind, getattr(arrow_type, "tz", None) if kind == "time" else None)
    return found


def log_columns(
    log: LogSource,
    resolved: Sequence[Resolved],
    columns: Mapping[str, SourceColumn],
    *,
    weight: str | None = None,
    values: bool = False,
) -> LogColumns:
    """Return the statistics that terms need of the columns of a log, by one read of these columns.

    The result is the same for any order of rows and any number of threads. A row whose weight is 0, or none, does not
    count.

    Raises
    ------
    InputError
        A category has too many levels.
    LogError
        A value cannot be read.
    SchemaError
        The log has no column ``weight``, or it cannot be a weight.
    """
    if weight is not None:
        check_columns(log.schema, [("weight", weight)], log.name, texts=True)
    terms = [found.term for found in resolved]
    needs = wanted(terms, values=values)
    read = [*needs, *([weight] if weight is not None and weight not in needs else [])]
    work = partial(log_columns, resolved=resolved, columns=columns, weight=weight, values=values)
    if (elsewhere := over_parts(log, read, work)) is not None:
        return _merged(elsewhere, needs)
    parts = parts_of(log, read)

    def collected(share: Sequence[Part]) -> LogColumns:
        statistics = LogColumns(needs)
        for part in share:
            row = part.first_row
            for batch in part.batches():
                read_values = {
                    name: column_values(batch.column(name), _expected(name, columns[name]), row)[0]
                    for name in needs
                }
                statistics.add(read_values, None if weight is None else loose_numbers(batch.column(weight)))
                row += batch.num_rows
        return statistics

    workers = min(processors(), len(parts))
    if workers < 2:
        return collected(parts)
    with ThreadPoolExecutor(workers) as pool:
        return _merged(pool.map(collected, [parts[k::workers] for k in range(workers)]), needs)


def _merged(parts: Iterable[LogColumns], needs: Mapping[str, Wanted]) -> LogColumns:
    total = LogColumns(needs)
    for part in parts:
        total.merge(part)
    return total


def _expected(name: str, column: SourceColumn) -> LearnedColumn:
    return LearnedColumn(name, column.kind, column.zone)


def loose_numbers(column: pa.Array) -> Array:
    """Return a column as numbers, NaN where there is none; reading refuses or sets aside such rows."""
    column = decoded(column)
    values = text_numbers(column).values if holds_text(column.type) else column.cast(pa.float64(), safe=False)
    return np.asarray(as_numpy(values.fill_null(np.nan)), dtype=np.float64)


def task_parts(batch: pa.RecordBatch, task: Sequence[str]) -> NDArray[np.int64]:
    """Return the part 0 .. FOLDS - 1 that the task of each row is in, by a hash of its id as text."""
    total = np.zeros(batch.num_rows, dtype=np.int64)
    for name in task:
        texts = decoded(batch.column(name)).cast(pa.string()).fill_null("").dictionary_encode()
        hashes = np.array(
            [zlib.crc32(text.encode()) for text in texts.dictionary.to_pylist()], dtype=np.int64
        )
        total = 31 * total + hashes[as_numpy(texts.indices)] if len(hashes) else total
    return np.asarray(total % FOLDS)


def column_values(column: pa.Array, expected: LearnedColumn, first_row: int) -> tuple[Values, list[Refusal]]:
    """Return the values of an Arrow array as terms read them, and the rows whose value is none of this kind.

    Raises
    ------
    LogError
        The array is of another kind than the column of the log, or a value cannot be read; names the first row.
    """
    is_text = holds_text(column.type)
    if pa.types.is_null(column.type):
        return _all_missing(expected, len(column)), []
    kind = kind_of(column.type)
    if expected.kind == "text" and is_text:
        return _texts(column, expected.name, first_row), []
    if expected.kind == "time" and (kind == "time" or is_text):
        return _times(column, expected, first_row)
    if expected.kind == "number" and is_text:
        return _numbers_of_text(column, expected, first_row)
    if expected.kind == "number" and kind in ("number", "boolean"):
        return _numbers(column, "number", expected.name, first_row), []
    if expected.kind == "boolean" and kind in ("boolean", "number"):
        return _booleans(column, expected, first_row)
    raise _another_kind(column, expected, first_row)


def _another_kind(column: pa.Array, expected: LearnedColumn, first_row: int) -> LogError:
    present = decoded(column).is_valid()
    row = max(pc.index(present, value=True).as_py(), 0)
    kind = kind_of(column.type)
    value = decoded(column)[row].as_py()
    return LogError.in_row(
        first_row + row,
        f"Column {expected.name!r}, row {first_row + row}: {str(value)[:40]!r} is "
        f"{_IN_WORDS[kind] if kind else f'of Arrow type {column.type}'}, and the log that the features were learned "
        f"from had {_IN_WORDS[expected.kind]} there. Give the column that type; for files "
        "of text, state it (types=, --type).",
        lenient=False,
    )


def _all_missing(expected: LearnedColumn, n: int) -> Values:
    missing = np.ones(n, dtype=np.bool_)
    if expected.kind == "text":
        return Values("text", missing, codes=np.full(n, -1, dtype=np.int64))
    if expected.kind == "time":
        return Values("time", missing, instants=np.zeros(n, dtype=np.int64), zone=expected.zone)
    return Values(expected.kind, missing, numbers=np.zeros(n))


def _texts(column: pa.Array, name: str, first_row: int) -> Values:
    if not pa.types.is_dictionary(column.type):
        column = plain_texts(column).dictionary_encode()
    if column.dictionary.null_count:
        column = plain_texts(decoded(column)).dictionary_encode()
    entries = plain_texts(column.dictionary)
    if not is_utf8(entries):
        ids(column.drop_null(), name, first_row)  # names the row
    missing = as_numpy(column.is_null())
    codes = np.asarray(as_numpy(column.indices.fill_null(0)), dtype=np.int64)
    return Values("text", missing, codes=np.where(missing, -1, codes), texts=tuple(entries.to_pylist()))


def _numbers(column: pa.Array, kind: Kind, name: str, first_row: int) -> Values:
    column = decoded(column)
    missing = as_numpy(column.is_null())
    filled = column.fill_null(False if pa.types.is_boolean(column.type) else 0) if missing.any() else column
    values = numbers(filled, name, first_row)
    if values.dtype.kind == "f" and pa.types.is_floating(column.type):
        is_nan = np.isnan(values)
        if is_nan.any():
            missing, values = missing | is_nan, np.where(is_nan, 0.0, values)
    return Values(kind, missing, numbers=values)


def _numbers_of_text(
    column: pa.Array, expected: LearnedColumn, first_row: int
) -> tuple[Values, list[Refusal]]:
    parsed = text_numbers(column)
    wrong = (parsed.wrong & ~parsed.missing) | parsed.rounded
    if not wrong.any() and not parsed.missing.all():
        raise _another_kind(column, expected, first_row)
    floats = np.asarray(as_numpy(parsed.values.fill_null(0.0)), dtype=np.float64)
    is_nan = np.isnan(floats)
    values = Values("number", parsed.missing | is_nan, numbers=np.where(is_nan, 0.0, floats))
    return values, [Refusal(expected.name, "not a number", wrong)] if wrong.any() else []


def _booleans(column: pa.Array, expected: LearnedColumn, first_row: int) -> tuple[Values, list[Refusal]]:
    values = _numbers(column, "boolean", expected.name, first_row)
    assert values.numbers is not None
    wrong = ~np.isin(values.numbers, (0.0, 1.0)) & ~values.missing
    return values, [Refusal(expected.name, "neither true nor false", wrong)] if wrong.any() else []


def _times(column: pa.Array, expected: LearnedColumn, first_row: int) -> tuple[Values, list[Refusal]]:
    column = decoded(column)
    refused: list[Refusal] = []
    if holds_text(column.type):
        column, refused = _times_of_text(column, expected)
    zone = getattr(column.type, "tz", None)
    if (zone is None) != (expected.zone is None):
        has, had = ("no time zone", "one") if zone is None else (f"the time zone {zone}", "none")
        raise LogError.in_row(
            first_row,
            f"Column {expected.name!r}, row {first_row}: the times have {has}, and those of the log that the features "
            f"were learned from had {had}. Give both a zone, or neither.",
            lenient=False,
        )
    try:
        instants = column.cast(pa.timestamp("us", tz=zone), safe=False).cast(pa.int64())
    except pa.ArrowException as error:
        raise LogError(
            f"Column {expected.name!r}, rows from {first_row} on: a time cannot be counted in microseconds ({error}). "
            "Correct it, or drop such rows."
        ) from error
    missing = as_numpy(column.is_null())
    return Values(
        "time", missing, instants=np.asarray(as_numpy(instants.fill_null(0)), np.int64), zone=expected.zone
    ), refused  # fmt: skip


def _times_of_text(column: pa.Array, expected: LearnedColumn) -> tuple[pa.Array, list[Refusal]]:
    """Return text as times, ISO 8601, and the rows with other text; JSON has no times."""
    times, wrong = times_of(column, pa.timestamp("us", tz=expected.zone))
    return times, [Refusal(expected.name, "not a time", wrong)] if wrong.any() else []


class Encoder:
    """Encodes record batches by one map, and counts the rows with levels that it does not know; for any threads.

    Parameters
    ----------
    learned : LearnedTerms
    task : sequence of str
        Columns that name the tasks of rows of a log, which see the effects of levels that other tasks tell; empty for
        requests.
    """

    def __init__(self, learned: LearnedTerms, task: Sequence[str] = ()) -> None:
        self.learned = learned
        self._task = tuple(task)
        self.unknown: dict[str, int] = {}
        self._lock = Lock()

    def encode(
        self, batch: pa.RecordBatch, first_row: int
    ) -> tuple[list[Array], list[Refusal], dict[str, Mask]]:
        """Return the d columns (n,), the refused rows, and the rows with unknown levels by column.

        Raises
        ------
        LogError
            A column is of another kind than that of the log.
        """
        values, refused = {}, []
        for column in self.learned.columns:
            values[column.name], bad = column_values(batch.column(column.name), column, first_row)
            refused += bad
        encoded = self.learned.encode(values, task_parts(batch, self._task) if self._task else None)
        with self._lock:
            for name, rows in encoded.unknown.items():
                self.unknown[name] = self.unknown.get(name, 0) + int(np.count_nonzero(rows))
        return encoded.columns, _first_of_each([*refused, *encoded.refused]), encoded.unknown

    def refuse(self, refused: Sequence[Refusal], batch: pa.RecordBatch, first_row: int) -> None:
        """Raise LogError for the first refused row, if any."""
        if not refused:
            return
        first = min(refused, key=lambda refusal: int(refusal.rows.argmax()))
        row, column = int(first.rows.argmax()), first.column
        why = _WHY.get(first.reason)
        if why is None:
            value = str(batch.column(column)[row].as_py())[:40]
            why = (
                f"{value!r} is {first.reason}, and the features need one that is. Correct the value, or drop such rows."
                if not first.reason.startswith("not above")
                else f"{value!r} is {first.reason}, so that it has no logarithm. Drop such rows, or write plus=..."
            )
        count = int(np.count_nonzero(first.rows))
        more = f" (and {count - 1:,} more in this batch of {batch.num_rows:,} rows)" if count > 1 else ""
        raise LogError.in_row(first_row + row, f"Column {column!r}, row {first_row + row}{more}: {why}")


def _first_of_each(refused: Sequence[Refusal]) -> list[Refusal]:
    """Return the refusals, each row of a column with its first reason alone: an unreadable value is missing, too."""
    before: dict[str, Mask] = {}
    kept = []
    for refusal in refused:
        rows = refusal.rows & ~before.get(refusal.column, np.zeros_like(refusal.rows))
        before[refusal.column] = refusal.rows | before.get(refusal.column, refusal.rows)
        if rows.any():
            kept.append(refusal._replace(rows=rows))
    return kept


class EncodedSource(WrappedSource):
    """A source whose context columns are replaced by the columns of numbers of learned terms.

    Parameters
    ----------
    source : LogSource
    learned : LearnedTerms
    lenient : bool
        True: a refused row has NaN in the columns of its term, so that reading sets it aside. False: it is an error.

    Raises
    ------
    SchemaError
        A column that the terms read is missing.
    """

    encoder: Encoder
    schema: Any

    def __init__(self, source: LogSource, learned: LearnedTerms, *, lenient: bool = False) -> None:
        super().__init__(source)
        check_columns(source.schema, [("term", column) for column in learned.sources], source.name)
        task = learned.task if all(name in source.schema.names for name in learned.task) else ()
        self.encoder, self._lenient, self._task = Encoder(learned, task), lenient, task
        self._position = {name: position for position, name in enumerate(learned.names)}
        self._sources = _sources_of(learned)
        kept = [field for field in source.schema if field.name not in self._position]
        made = [_field(name, self._sources.get(name)) for name in learned.names]
        self.schema = pa.schema([*kept, *made])

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns, encoded where they are those of the terms."""
        needed, encodes = self._needed(columns)
        batches = self._source.batches(needed, batch_rows)
        return self._encoded(batches, columns, 0) if encodes else batches

    def parts(self, columns: Sequence[str]) -> Sequence[Part]:
        """Return the parts of the source, encoded while they are read."""
        needed, encodes = self._needed(columns)
        parts = parts_of(self._source, needed)
        if not encodes:
            return parts
        return [Part.of(part, partial(self._part, part, columns)) for part in parts]

    def _part(self, part: Part, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return self._encoded(part.batches(), columns, part.first_row)

    def _needed(self, columns: Sequence[str]) -> tuple[list[str], bool]:
        others = [column for column in columns if column not in self._position]
        encodes = len(others) < len(columns)
        made_of = (*self.encoder.learned.sources, *self._task) if encodes else ()
        return list(dict.fromkeys([*others, *made_of])), encodes

    def _encoded(
        self, batches: Iterator[pa.RecordBatch], columns: Sequence[str], row: int
    ) -> Iterator[pa.RecordBatch]:
        schema = None
        for batch in batches:
            design, refused, _ = self.encoder.encode(batch, row)
            if refused and not self._lenient:
                self.encoder.refuse(refused, batch, row)
            null = self._marked(design, refused)
            arrays = [
                batch.column(column)
                if column not in self._position
                else pa.array(design[self._position[column]], mask=null.get(column))
                for column in columns
            ]
            if schema is None:
                schema = [
                    pa.field(column, array.type, metadata=self.schema.field(column).metadata)
                    for column, array in zip(columns, arrays, strict=True)
                ]
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(schema))
            row += batch.num_rows

    def _marked(self, design: list[Array], refused: Sequence[Refusal]) -> dict[str, Mask]:
        """Return which rows are null, by column, where a refused value has no number; write the others to the design.

        Each is in the first column that its source column is encoded in, so that reading sets the row aside once.
        """
        null: dict[str, Mask] = {}
        for refusal in refused:
            made = (name for name, source in self._sources.items() if source == refusal.column)
            name = next(made, next(iter(self._position)))
            if refusal.reason in _UNUSABLE:
                column = design[self._position[name]].copy()  # it may be a view of the source
                column[refusal.rows] = _UNUSABLE[refusal.reason]
                design[self._position[name]] = column
            else:
                null[name] = refusal.rows | null.get(name, np.zeros(refusal.rows.size, dtype=np.bool_))
        return null


def _sources_of(learned: LearnedTerms) -> dict[str, str]:
    """Return the source column of each column that is made of one alone."""
    names = iter(learned.names[int(learned.intercept) :])
    found = {}
    for term in learned.terms:
        for name in (next(names) for _ in term.names):
            found[name] = term.term.columns[0]
    return found


def _field(name: str, source: str | None) -> pa.Field:
    return pa.field(
        name, pa.float64(), metadata=None if source in (None, name) else {SOURCE: source.encode()}
    )


def _terms_of(features: Any) -> LearnedTerms | None:
    """Return the learned terms of a feature map; None for a map without any, and for a formula."""
    terms = features if isinstance(features, LearnedTerms) else getattr(features, "terms", None)
    return terms if isinstance(terms, LearnedTerms) else None


def encoded(source: LogSource, features: Any, *, lenient: bool = False) -> LogSource:
    """Return a source with the columns of a feature map: encoded where the map has terms, else as it is."""
    learned = _terms_of(features)
    if learned is None or isinstance(source, EncodedSource):
        return source
    return EncodedSource(source, learned, lenient=lenient)


def encoded_rows(features: Any, rows: Sequence[Mapping[str, Any]]) -> Array:
    """Return the context columns (n, c) of a feature map for n rows, each a mapping of column to value.

    Raises
    ------
    SchemaError
        A row lacks a column that the map reads.
    LogError
        A value cannot be used; the message has the column and the row.
    """
    sources: tuple[str, ...] = getattr(features, "sources", features.columns)
    for number, row in enumerate(rows):
        lost = [column for column in sources if column not in row]
        if lost:
            raise SchemaError(
                f"Row {number} lacks the context column {lost[0]!r}; the policy reads {list(sources)}. Give a value "
                "for each of these."
            )
    arrays = {column: [row[column] for row in rows] for column in sources}
    try:
        table = pa.table(arrays)
    except pa.ArrowException as error:
        raise LogError(
            f"The values of a context column are not of one type: {error}. Give each column values of one type."
        ) from error
    source = encoded(open_log(table), features)
    return np.concatenate(
        [context_matrix(batch, features.columns, 0) for batch in source.batches(features.columns)]
    )


def encoded_texts(features: Any, texts: Mapping[str, str]) -> Array:
    """Return the context columns (c,) of a feature map with terms for one row whose values are written as text.

    An empty text is a missing value.

    Raises
    ------
    LogError
        A text is no value of the kind of its column; names the column.
    """
    arrays = {}
    for column in features.terms.columns:
        text = texts[column.name]
        array = pa.array([text or None], pa.string())
        if column.kind in ("number", "boolean") and text:
            try:
                array = array.cast(pa.float64() if column.kind == "number" else pa.bool_())
            except pa.ArrowInvalid as error:
                raise LogError(
                    f"{text!r} is not {_IN_WORDS[column.kind]}, which the column {column.name!r} holds. Correct it."
                ) from error
        arrays[column.name] = array
    source = encoded(open_log(pa.table(arrays)), features)
    (batch,) = source.batches(features.columns)
    return np.asarray(context_matrix(batch, features.columns, 0)[0])


def stated_types(log: LogSource, features: Any) -> dict[str, str]:
    """Return the types that columns of a text file need, where it was read with other types than the log had.

    A text that looks like a number in a file of requests is text where the log had text.
    """
    learned = _terms_of(features)
    if learned is None:
        return {}
    types = {}
    for column in learned.columns:
        if column.kind == "text" and log.schema.names.count(column.name) == 1:
            arrow_type = log.schema.field(column.name).type
            if not holds_text(arrow_type) and not pa.types.is_null(arrow_type):
                types[column.name] = "text"
    return types


def opened_requests(
    source: Any, features: Any, *, rereadable: bool = False, lenient: bool = False
) -> LogSource:
    """Open requests, or another log for a fitted feature map, with the columns of the map.

    Raises
    ------
    SchemaError
        A column that the terms of the map read is missing.
    LogError, InputError
        As :func:`open_log`.
    """
    return encoded(
        opened_log(source, features, rereadable=rereadable, lenient=lenient), features, lenient=lenient
    )


def opened_log(source: Any, features: Any, *, rereadable: bool = False, lenient: bool = False) -> LogSource:
    """Open a log; from a file of text, columns that are text to the terms of a feature map are read as text.

    Raises
    ------
    LogError, InputError
        As :func:`open_log`.
    """
    log = open_log(source, rereadable=rereadable, lenient=lenient)
    types = stated_types(log, features)
    if types and isinstance(source, str | os.PathLike) and find_files(source).kind in TEXTS:
        return open_log(source, types=types, lenient=lenient)
    return log
