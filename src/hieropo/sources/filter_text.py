"""A filter as text: comparisons of a column with a value, joined by and, or, not; a small part of SQL.

    filter  = and ("or" and)*
    and     = not ("and" not)*
    not     = "not" not | "(" filter ")" | test
    test    = column ("=" | "!=" | "<>" | "<" | "<=" | ">" | ">=") value
            | column ["not"] "in" "(" value ("," value)* ")"
            | column ["not"] "between" value "and" value
            | column "is" ["not"] "null"

A column is a name, in double quotes where it is more than letters, digits and underscores; a value is a number, a text
in single quotes, true or false.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from hieropo.errors import InputError

Value = str | int | float | bool

_TOKENS = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*')|(?P<quoted>"(?:[^"]|"")+")|(?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\b)
    |(?P<word>[^\W\d]\w*)|(?P<sign><=|>=|<>|!=|==|=|<|>|\(|\)|,))""",
    re.VERBOSE,
)
_WORDS = {"and", "or", "not", "in", "between", "is", "null", "true", "false"}
_SIGNS = {"==": "=", "<>": "!="}
_NEGATED = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class Compared:
    """A column beside a value; true where the sign holds, unknown where the column is null."""

    column: str
    sign: str
    value: Value


@dataclass(frozen=True)
class Missing:
    """Whether a column is null."""

    column: str
    missing: bool


@dataclass(frozen=True)
class Joined:
    """All of some tests, or any of them."""

    every: bool
    tests: tuple["Test", ...]


Test = Compared | Missing | Joined


def parsed_filter(text: str) -> Test:
    """Read a filter.

    Raises
    ------
    InputError
        It cannot be read; says at which place, and what was expected there.
    """
    reader = _Reader(text)
    found = reader.any_of()
    if reader.kind:
        raise reader.wrong("'and' or 'or' or the end")
    return found


def negated(test: Test) -> Test:
    """The test that holds where this one does not; where this one is unknown, so is that."""
    if isinstance(test, Compared):
        return Compared(test.column, _NEGATED[test.sign], test.value)
    if isinstance(test, Missing):
        return Missing(test.column, not test.missing)
    return Joined(not test.every, tuple(negated(each) for each in test.tests))


def columns_of(test: Test) -> tuple[str, ...]:
    """Names of the columns that a test reads, each once."""
    if isinstance(test, Joined):
        return tuple(dict.fromkeys(name for each in test.tests for name in columns_of(each)))
    return (test.column,)


def sql_of(test: Test) -> str:
    """Write a test in the SQL that DuckDB, PostgreSQL and polars share."""
    if isinstance(test, Joined):
        return "(" + (" AND " if test.every else " OR ").join(sql_of(each) for each in test.tests) + ")"
    if isinstance(test, Missing):
        return f"{sql_name(test.column)} IS {'' if test.missing else 'NOT '}NULL"
    sign = "<>" if test.sign == "!=" else test.sign
    return f"{sql_name(test.column)} {sign} {_sql_value(test.value)}"


def sql_name(column: str) -> str:
    """Quote the name of a column."""
    return '"' + column.replace('"', '""') + '"'


def _sql_value(value: Value) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).upper() if isinstance(value, bool) else repr(value)


class _Reader:
    """Reads a filter from left to right; looks one token ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        self.kind = self.token = ""
        self._step()

    def any_of(self) -> Test:
        return self._joined("or", self._all_of, every=False)

    def _all_of(self) -> Test:
        return self._joined("and", self._one, every=True)

    def _joined(self, word: str, read: Callable[[], Test], *, every: bool) -> Test:
        tests = [read()]
        while self._take(word):
            tests.append(read())
        return tests[0] if len(tests) == 1 else Joined(every, tuple(tests))

    def _one(self) -> Test:
        if self._take("not"):
            return negated(self._one())
        if self._take("("):
            found = self.any_of()
            self._need(")")
            return found
        return self._test()

    def _test(self) -> Test:
        column = self._column()
        if self._take("is"):
            missing = not self._take("not")
            self._need("null")
            return Missing(column, missing)
        unlike = self._take("not")
        if self._take("in"):
            found: Test = self._among(column)
        elif self._take("between"):
            low = self._value()
            self._need("and")
            found = Joined(
                every=True, tests=(Compared(column, ">=", low), Compared(column, "<=", self._value()))
            )
        elif self.kind == "sign" and self.token not in "(),":
            sign = _SIGNS.get(self.token, self.token)
            self._step()
            found = Compared(column, sign, self._value())
        else:
            raise self.wrong("=, !=, <, <=, >, >=, in, between or is")
        return negated(found) if unlike else found

    def _among(self, column: str) -> Test:
        self._need("(")
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        self._need(")")
        return Joined(every=False, tests=tuple(Compared(column, "=", value) for value in values))

    def _column(self) -> str:
        token = self.token
        if self.kind == "quoted":
            name = token[1:-1].replace('""', '"')
        elif self.kind == "word" and token.lower() not in _WORDS:
            name = token
        else:
            raise self.wrong("the name of a column")
        self._step()
        return name

    def _value(self) -> Value:
        token, kind = self.token, self.kind
        value: Value
        if kind == "text":
            value = token[1:-1].replace("''", "'")
        elif kind == "number":
            value = int(token) if re.fullmatch(r"-?\d+", token) else float(token)
        elif kind == "word" and token.lower() in ("true", "false"):
            value = token.lower() == "true"
        else:
            more = f"; text stands in single quotes, {token!r}" if kind == "word" else ""
            raise self.wrong("a number, a text in single quotes, true or false" + more)
        self._step()
        return value

    def _take(self, token: str) -> bool:
        found = self.kind in ("word", "sign") and self.token.lower() == token
        if found:
            self._step()
        return found

    def _need(self, token: str) -> None:
        if not self._take(token):
            raise self.wrong(repr(token))

    def _step(self) -> None:
        self._start = self._end + len(self._text[self._end :]) - len(self._text[self._end :].lstrip())
        if self._start == len(self._text):
            self.kind, self.token = "", ""
            return
        found = _TOKENS.match(self._text, self._end)
        if found is None:
            self.kind, self.token = "odd", self._text[self._start :]
            raise self.wrong("a name, a number, a text in single quotes or a sign")
        self.kind = str(found.lastgroup)
        self.token, self._end = found[self.kind], found.end()

    def wrong(self, expected: str) -> InputError:
        """Say what was expected at this place."""
        there = repr(self.token) if self.kind else "its end"
        return InputError(
            f"The filter {self._text!r} cannot be read at character {self._start + 1}, {there}: {expected} was "
            "expected. A filter is such as day >= '2026-01-01' and country in ('NL', 'BE')."
        )
