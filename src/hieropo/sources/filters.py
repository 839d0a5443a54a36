"""Filters: which rows of a log count, read as early as a source can."""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hieropo.errors import InputError
from hieropo.sources.arrays import decoded
from hieropo.sources.filter_text import Compared, Missing, Test, columns_of, parsed_filter, sql_of
from hieropo.sources.log_source import BATCH_ROWS, LogSource, Part, Piece, files_of, regroup
from hieropo.sources.schema import check_columns, is_number, is_text

_SIGNS = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True)
class Filter:
    """A filter for one source.

    Parameters
    ----------
    expression : pyarrow.compute.Expression
        Over the columns of the source.
    columns : tuple of str
        Those that it reads.
    text : str
        For messages.
    sql : str or None
        The same for SQL, where it was given as text.
    """

    expression: Any
    columns: tuple[str, ...]
    text: str
    sql: str | None

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that pass."""
        return _comparable(batch, self.columns).filter(self.expression)


def bound_filter(given: Any, schema: pa.Schema, name: str) -> Filter:
    """Make a filter for a source with this schema from a text, or from a pyarrow Expression.

    Raises
    ------
    InputError
        It cannot be read, or compares a column with a value of another kind.
    SchemaError
        A column is not there.
    """
    if isinstance(given, str):
        test = parsed_filter(given)
        columns = columns_of(test)
        check_columns(schema, [("filter", column) for column in columns], name)
        found = Filter(_expression(test, schema, name), columns, given, sql_of(test))
        _tried(found.expression, schema, columns, given, name)
        return found
    if not isinstance(given, pc.Expression):
        raise InputError(
            f"A filter is a text such as \"day >= '2026-01-01'\" or a pyarrow Expression such as "
            f"pyarrow.compute.field('day') >= ..., not of type {type(given).__name__}."
        )
    _tried(given, schema, schema.names, str(given), name)
    columns = tuple(column for column in schema.names if not _binds(given, schema, column))
    return Filter(given, columns, str(given), None)


def _expression(test: Test, schema: pa.Schema, name: str) -> Any:
    if isinstance(test, Compared):
        return _SIGNS[test.sign](pc.field(test.column), _literal(test, schema.field(test.column).type, name))
    if isinstance(test, Missing):
        null = pc.field(test.column).is_null()
        return null if test.missing else ~null
    join = operator.and_ if test.every else operator.or_
    return reduce(join, (_expression(each, schema, name) for each in test.tests))


def _literal(test: Compared, kind: pa.DataType, name: str) -> Any:
    """The value of a test as the type of its column."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    value = test.value
    if isinstance(value, str) and not is_text(kind):
        try:
            return pa.scalar(value).cast(kind)
        except (pa.ArrowException, NotImplementedError) as error:
            raise _unlike(test, kind, name, "") from error
    boolean = pa.types.is_boolean(kind)
    fits = boolean if isinstance(value, bool) else is_number(kind) and not boolean
    if not fits and not isinstance(value, str):
        raise _unlike(test, kind, name, f" Write '{value}', in quotes." if is_text(kind) else "")
    return pa.scalar(value)


def _unlike(test: Compared, kind: pa.DataType, name: str, hint: str) -> InputError:
    return InputError(
        f"The filter compares column {test.column!r} of the {name}, of type {kind}, with {test.value!r}, which is no "
        f"such value.{hint} Dates are such as '2026-01-31', times such as '2026-01-31 10:00:00'."
    )


def _tried(expression: Any, schema: pa.Schema, columns: Sequence[str], text: str, name: str) -> None:
    """Refuse a filter that the types of the columns do not allow."""
    try:
        _none(schema, columns).filter(expression)
    except (pa.ArrowException, NotImplementedError, TypeError) as error:
        raise InputError(
            f"The filter {text} does not go with the columns of the {name}: {str(error).strip()}."
        ) from error


def _binds(expression: Any, schema: pa.Schema, without: str) -> bool:
    """Whether a filter can do without a column."""
    try:
        _none(schema, [name for name in schema.names if name != without]).filter(expression)
    except pa.ArrowException:
        return False
    return True


def _none(schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
    fields = [schema.field(column) for column in columns]
    kinds = [field.with_type(pa.large_string()) if _is_view(field.type) else field for field in fields]
    return pa.schema(kinds).empty_table()


def _comparable(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """With text that Arrow can compare, which views are not."""
    for column in columns:
        if _is_view(batch.schema.field(column).type):
            plain = decoded(batch.column(column)).cast(pa.large_string())
            batch = batch.set_column(batch.schema.get_field_index(column), column, plain)
    return batch


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind.value_type if pa.types.is_dictionary(kind) else kind))


def filtered(log: LogSource, given: Any) -> LogSource:
    """Keep the rows of a source that pass a filter; rows are then counted among those.

    Raises
    ------
    InputError, SchemaError
        As :func:`bound_filter`.
    """
    found = bound_filter(given, log.schema, log.name)
    for way, wrap in (("filtered", None), ("pruned", FilteredParts)):
        source = getattr(log, way)(found) if hasattr(log, way) else None
        if source is not None:
            return source if wrap is None else wrap(source, found)
    return FilteredSource(log, found)


class FilteredSource:
    """The rows of a source that pass a filter."""

    def __init__(self, source: LogSource, by: Filter) -> None:
        self.name = f"{source.name} where {by.text}"
        self.schema = source.schema
        self.rereadable = source.rereadable
        self.n_rows: int | None = None
        self._source, self._filter = source, by

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield the rows that pass, with these columns only."""
        found = self._source.batches(_both(columns, self._filter), batch_rows)
        return regroup((self._filter.kept(batch).select(list(columns)) for batch in found), batch_rows)


class FilteredParts:
    """The rows of files that pass a filter, in parts: they are counted when it is opened."""

    rereadable = True

    def __init__(self, source: Any, by: Filter) -> None:
        self.name = f"{source.name} where {by.text}"
        self.where = by.text
        self.files: Sequence[Path] | None = files_of(source)
        self.schema: pa.Schema = source.schema
        self._source, self._filter = source, by
        self._rows = [
            sum(by.kept(batch).num_rows for batch in part.batches())
            for part in self._source.parts(by.columns)
        ]
        self.n_rows = sum(self._rows)

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield the rows that pass, with these columns only."""
        return regroup((batch for part in self.parts(columns) for batch in part.batches()), batch_rows)

    def parts(self, columns: Sequence[str]) -> list[Piece]:
        """The parts of the files in which a row passes."""
        found, row = [], 0
        parts = self._source.parts(_both(columns, self._filter))
        for part, rows in zip(parts, self._rows, strict=True):
            if rows:
                kept = Piece.of(part, partial(_kept, part, tuple(columns), self._filter))
                found.append(replace(kept, first_row=row, n_rows=rows))
            row += rows
        return found


def _kept(part: Part, columns: Sequence[str], by: Filter) -> Iterator[pa.RecordBatch]:
    for batch in part.batches():
        yield by.kept(batch).select(list(columns))


def _both(columns: Sequence[str], by: Filter) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*columns, *by.columns]))
