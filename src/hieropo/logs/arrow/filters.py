"""Filters of the rows of a log, applied as early as a source can.

As text a filter is a small part of SQL:

    filter  = and ("or" and)*
    and     = not ("and" not)*
    not     = "not" not | "(" filter ")" | test
    test    = column ("=" | "!=" | "<>" | "<" | "<=" | ">" | ">=") value
            | column ["not"] "in" "(" value ("," value)* ")"
            | column ["not"] "between" value "and" value
            | column "is" ["not"] "null"

A column is a name, in double quotes or backquotes where it is more than letters, digits and underscores; a value is a
number, a text in single quotes, true or false. A test of a null is neither true nor false.
"""

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hieropo.errors import InputError, SchemaError
from hieropo.logs.arrow.arrays import decoded
from hieropo.logs.arrow.log_source import BATCH_ROWS, LogSource, Part, PartedSource, regroup, source_repr
from hieropo.logs.arrow.schema import check_columns, is_number, is_text

Value = str | int | float | bool

_TOKENS = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*')|(?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`)|(?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\b)
    |(?P<word>[^\W\d]\w*)|(?P<sign><=|>=|<>|!=|==|=|<|>)|(?P<mark>[(),])|(?P<odd>\S.*)|(?P<end>$))""",
    re.VERBOSE | re.DOTALL,
)
_WORDS = {"and", "or", "not", "in", "between", "is", "null", "true", "false"}
_SIGNS: dict[str, tuple[Callable[..., Any], str, str]] = {  # Arrow, SQL, and the opposite
    "=": (operator.eq, "=", "!="), "!=": (operator.ne, "<>", "="), "<": (operator.lt, "<", ">="),
    "<=": (operator.le, "<=", ">"), ">": (operator.gt, ">", "<="), ">=": (operator.ge, ">=", "<"),
}  # fmt: skip


@dataclass(frozen=True)
class Filter:
    """A filter for one source.

    Parameters
    ----------
    expression : pyarrow.compute.Expression
        Over the columns of the source.
    columns : tuple of str
        Columns that it reads.
    text : str
        Text for messages.
    sql : str or None
        The filter in the SQL that DuckDB, PostgreSQL and polars share; None where it was not given as text.
    """

    expression: Any
    columns: tuple[str, ...]
    text: str
    sql: str | None

    def passing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that pass."""
        return _comparable(batch, self.columns).filter(self.expression)


def bound_filter(filter_: Any, schema: pa.Schema, name: str) -> Filter:
    """Return a filter for a source with this schema, from a text or a pyarrow Expression.

    Raises
    ------
    InputError
        The text cannot be read (the message has the place and the expected token), or a column is compared with a value
        of another type.
    SchemaError
        A column is missing.
    """
    if isinstance(filter_, str):
        bound = _Parser(filter_, schema, name).filter()
        _check_types(bound.expression, schema, bound.columns, filter_, name)
        return bound
    if not isinstance(filter_, pc.Expression):
        raise InputError(
            f"A filter is a text such as \"day >= '2026-01-01'\" or a pyarrow Expression such as "
            f"pyarrow.compute.field('day') >= ..., not of type {type(filter_).__name__}."
        )
    _check_types(filter_, schema, schema.names, str(filter_), name)
    columns = tuple(column for column in schema.names if not _can_do_without(filter_, schema, column))
    return Filter(filter_, columns, str(filter_), None)


def sql_name(column: str) -> str:
    """Quote the name of a column."""
    return '"' + column.replace('"', '""') + '"'


class _Test(NamedTuple):
    expression: Any
    sql: str


class _Parser:
    """Recursive-descent parser with one token of look-ahead; a negation is passed down to the tests."""

    def __init__(self, text: str, schema: pa.Schema, name: str) -> None:
        self._text, self._schema, self._name = text, schema, name
        self._columns: dict[str, None] = {}
        self._end = 0
        self._step()

    def filter(self) -> Filter:
        """Return the whole text as a filter."""
        test = self._disjunction(negated=False)
        if self._kind != "end":
            raise self._expected("'and' or 'or' or the end")
        return Filter(test.expression, tuple(self._columns), self._text, test.sql)

    def _disjunction(self, *, negated: bool) -> _Test:
        return self._chain("or", partial(self._chain, "and", self._negation), negated=negated)

    def _chain(self, word: str, read: Callable[..., _Test], *, negated: bool) -> _Test:
        tests = [read(negated=negated)]
        while self._take(word):
            tests.append(read(negated=negated))
        return _combine(tests, every=(word == "and") != negated)

    def _negation(self, *, negated: bool) -> _Test:
        if self._take("not"):
            return self._negation(negated=not negated)
        if self._take("("):
            test = self._disjunction(negated=negated)
            self._require(")")
            return test
        return self._test(negated=negated)

    def _test(self, *, negated: bool) -> _Test:
        column = self._column()
        if self._take("is"):
            missing = self._take("not") == negated
            self._require("null")
            null = pc.field(column).is_null()
            return _Test(null if missing else ~null, f"{sql_name(column)} IS {'' if missing else 'NOT '}NULL")
        negated = self._take("not") != negated
        compared = partial(self._compared, column, negated=negated)
        if self._take("in"):
            self._require("(")
            tests = [compared("=", self._value())]
            while self._take(","):
                tests.append(compared("=", self._value()))
            self._require(")")
            return _combine(tests, every=negated)
        if self._take("between"):
            low = compared(">=", self._value())
            self._require("and")
            return _combine([low, compared("<=", self._value())], every=not negated)
        if self._kind != "sign":
            raise self._expected("=, !=, <, <=, >, >=, in, between or is")
        sign = {"==": "=", "<>": "!="}.get(self._token, self._token)
        self._step()
        return compared(sign, self._value())

    def _compared(self, column: str, sign: str, value: Value, *, negated: bool) -> _Test:
        """Return the test of a column against a value, or the opposite test."""
        compare, sql, _ = _SIGNS[_SIGNS[sign][2] if negated else sign]
        literal = _value_as(column, value, self._schema.field(column).type, self._name)
        written = "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value).upper()
        return _Test(compare(pc.field(column), literal), f"{sql_name(column)} {sql} {written}")

    def _column(self) -> str:
        token = self._token
        if self._kind == "quoted":
            column = token[1:-1].replace(2 * token[0], token[0])
        elif self._kind == "word" and token.lower() not in _WORDS:
            column = token
        else:
            raise self._expected("the name of a column")
        try:
            check_columns(self._schema, [("filter", column)], self._name)
        except SchemaError as error:
            if any(name.startswith(f"{column} ") for name in self._schema.names):
                raise SchemaError(f"{error} Write a name with blanks in double quotes.") from None
            raise
        self._columns[column] = None
        self._step()
        return column

    def _value(self) -> Value:
        token, kind = self._token, self._kind
        value: Value
        if kind == "text":
            value = token[1:-1].replace("''", "'")
        elif kind == "number":
            value = int(token) if re.fullmatch(r"-?\d+", token) else float(token)
        elif kind == "word" and token.lower() in ("true", "false"):
            value = token.lower() == "true"
        else:
            hint = f"; write a text in single quotes, {token!r}" if kind == "word" else ""
            raise self._expected("a number, a text in single quotes, true or false" + hint)
        self._step()
        return value

    def _take(self, token: str) -> bool:
        matches = self._kind in ("word", "mark") and self._token.lower() == token
        if matches:
            self._step()
        return matches

    def _require(self, token: str) -> None:
        if not self._take(token):
            raise self._expected(repr(token))

    def _step(self) -> None:
        match = _TOKENS.match(self._text, self._end)
        assert match is not None
        self._kind = str(match.lastgroup)
        self._token, self._end = match[self._kind], match.end()
        if self._kind == "odd":
            raise self._expected("a name, a number, a text in single quotes or a sign")

    def _expected(self, expected: str) -> InputError:
        """Return the error for an unexpected token."""
        token = "its end" if self._kind == "end" else repr(self._token)
        return InputError(
            f"The filter {self._text!r} cannot be read at character {self._end - len(self._token) + 1}, {token}: "
            f"{expected} was expected. An example of a filter: day >= '2026-01-01' and country in ('NL', 'BE')."
        )


def _combine(tests: Sequence[_Test], *, every: bool) -> _Test:
    if len(tests) == 1:
        return tests[0]
    join, word = (operator.and_, " AND ") if every else (operator.or_, " OR ")
    return _Test(
        reduce(join, (test.expression for test in tests)), f"({word.join(test.sql for test in tests)})"
    )


def _value_as(column: str, value: Value, kind: pa.DataType, name: str) -> Any:
    """Return the value of a test as the type of its column."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    hint = f" Write '{value}', in quotes." if is_text(kind) else ""
    mismatch = InputError(
        f"The filter compares column {column!r} of the {name}, of type {kind}, with {value!r}, which is of another "
        f"type.{hint} Write a date as '2026-01-31', a time as '2026-01-31 10:00:00'."
    )
    if isinstance(value, str):
        try:
            return pa.scalar(value) if is_text(kind) else pa.scalar(value).cast(kind)
        except (pa.ArrowException, NotImplementedError) as error:
            raise mismatch from error
    boolean = pa.types.is_boolean(kind)
    if not (boolean if isinstance(value, bool) else is_number(kind) and not boolean):
        raise mismatch
    return pa.scalar(value)


def _check_types(expression: Any, schema: pa.Schema, columns: Sequence[str], text: str, name: str) -> None:
    """Refuse a filter that the types of the columns do not allow."""
    try:
        _empty_table(schema, columns).filter(expression)
    except (pa.ArrowException, NotImplementedError, TypeError) as error:
        raise InputError(
            f"The filter {text} does not fit the types of the columns of the {name}: {str(error).strip()}."
        ) from error


def _can_do_without(expression: Any, schema: pa.Schema, without: str) -> bool:
    """Return whether a filter can be evaluated without a column."""
    try:
        _empty_table(schema, [name for name in schema.names if name != without]).filter(expression)
    except pa.ArrowException:
        return False
    return True


def _empty_table(schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
    fields = [schema.field(column) for column in columns]
    kinds = [field.with_type(pa.large_string()) if _is_view(field.type) else field for field in fields]
    return pa.schema(kinds).empty_table()


def _comparable(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return a batch without views of text, which Arrow cannot compare."""
    for column in columns:
        if _is_view(batch.schema.field(column).type):
            texts = decoded(batch.column(column)).cast(pa.large_string())
            batch = batch.set_column(batch.schema.get_field_index(column), column, texts)
    return batch


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind.value_type if pa.types.is_dictionary(kind) else kind))


def filtered(log: LogSource, filter_: Any) -> LogSource:
    """Return a source of the rows that pass a filter; rows are numbered among those.

    Raises
    ------
    InputError, SchemaError
        As :func:`bound_filter`.
    """
    row_filter = bound_filter(filter_, log.schema, log.name)
    for method, wrap in (("filtered", None), ("pruned", FilteredParts)):
        source = getattr(log, method)(row_filter) if hasattr(log, method) else None
        if source is not None:
            return source if wrap is None else wrap(source, row_filter)
    return FilteredSource(log, row_filter)


class FilteredSource:
    """The rows of a source that pass a filter."""

    name: str
    schema: Any
    rereadable: bool

    __repr__ = source_repr

    def __init__(self, source: LogSource, row_filter: Filter) -> None:
        self.name = f"{source.name} where {row_filter.text}"
        self.schema = source.schema
        self.rereadable = source.rereadable
        self.n_rows: int | None = None
        self._source, self._filter = source, row_filter

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield the rows that pass, with these columns only."""
        batches = self._source.batches(_with_filter_columns(columns, self._filter), batch_rows)
        return regroup((self._filter.passing(batch).select(list(columns)) for batch in batches), batch_rows)

    def place_of(self, row: int) -> str:
        """Return the number of a row among those that pass."""
        return _place_among_passing(row, self._filter)


class FilteredParts(PartedSource):
    """The rows of files that pass a filter, in parts; they are counted when the source is opened."""

    name: str
    where: str
    files: Sequence[Path]
    schema: Any
    n_rows: int

    def __init__(self, source: Any, row_filter: Filter) -> None:
        self.name = f"{source.name} where {row_filter.text}"
        self.where = row_filter.text
        self.files = source.files
        self.schema = source.schema
        self._source, self._filter = source, row_filter
        self._rows = [
            sum(row_filter.passing(batch).num_rows for batch in part.batches())
            for part in self._source.parts(row_filter.columns)
        ]
        self.n_rows = sum(self._rows)

    def parts(self, columns: Sequence[str]) -> list[Part]:
        """Return the parts of the files in which a row passes."""
        passing_parts, row = [], 0
        parts = self._source.parts(_with_filter_columns(columns, self._filter))
        for part, rows in zip(parts, self._rows, strict=True):
            if rows:
                passing = Part.of(part, partial(_passing_batches, part, tuple(columns), self._filter))
                passing_parts.append(replace(passing, first_row=row, n_rows=rows))
            row += rows
        return passing_parts

    def place_of(self, row: int) -> str:
        """Return the number of a row among those that pass."""
        return _place_among_passing(row, self._filter)


def _place_among_passing(row: int, row_filter: Filter) -> str:
    return f"row {row} of those where {row_filter.text}"


def _passing_batches(part: Part, columns: Sequence[str], row_filter: Filter) -> Iterator[pa.RecordBatch]:
    for batch in part.batches():
        yield row_filter.passing(batch).select(list(columns))


def _with_filter_columns(columns: Sequence[str], row_filter: Filter) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*columns, *row_filter.columns]))
