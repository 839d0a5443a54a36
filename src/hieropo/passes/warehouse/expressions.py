"""Columns of a query as SQL expressions: numbers, columns of a feature map, and the checks of each row."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from hieropo.errors import InputError
from hieropo.features.terms.learned import LearnedTerm, LearnedTerms
from hieropo.features.terms.terms import Cat, Cross, Log, Number, YesNo
from hieropo.passes.warehouse.dialects import Dialect
from hieropo.rows.batches import Roles
from hieropo.rows.columns import HUGE

EXACT = 2.0**53 - 1  # whole numbers beyond it may have been rounded by the cast to a double
EXACT_KIND = "numeric("
_LARGEST = 1.7976931348623157e308
_ABOVE_0 = ("precision", "sampling_weight", "pscore")
_REMEDY = "Learn the terms, or make the moments, of the rows themselves: hieropo moments, or LogMoments.of."


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that a row must meet to be summed.

    Parameters
    ----------
    role, column : str
    missing : bool
        The condition fails for a missing value; else for a value outside of the allowed range.
    condition : str
        True in SQL for a usable row.
    """

    role: str
    column: str
    missing: bool
    condition: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the query, as the inner select names it.

    Parameters
    ----------
    alias : str
    role, name : str
    expression : str
    checks : tuple of Check
    exact : str
        SQL type of exact numbers, which some databases forget where a value may be null; "" for other types.
    """

    alias: str
    role: str
    name: str
    expression: str
    checks: tuple[Check, ...]
    exact: str = ""

    @property
    def key(self) -> str:
        """The column as one by which rows are grouped, and selected."""
        return f"cast({self.alias} as {self.exact})" if self.exact else self.alias

    @property
    def null(self) -> str:
        """A null of its type."""
        return f"cast(null as {self.exact})" if self.exact else "null"


@dataclass(frozen=True, slots=True)
class Columns:
    """Writes columns of a query in a dialect.

    Parameters
    ----------
    dialect : Dialect
    kinds : mapping
        Kinds of columns, as far as they are known: "number", "integer", "boolean", "text", "time", or exact numbers
        of a size, "numeric(10, 2)".
    """

    dialect: Dialect
    kinds: Mapping[str, str]

    def id(self, alias: str, role: str, name: str) -> Column:
        """Return a column of ids, which must not be null."""
        kind = self.kinds.get(name, "")
        exact = kind if kind.startswith(EXACT_KIND) else ""
        return Column(
            alias, role, name, self.dialect.column(name), (self._present(alias, role, name),), exact
        )

    def number(self, alias: str, role: str, name: str, *, may_miss: bool = False) -> Column:
        """Return a column of numbers within the range of its role.

        Raises
        ------
        InputError
            The column is known to hold text or times.
        """
        kind = self.kinds.get(name, "number")
        if kind in ("text", "time"):
            raise InputError(
                f"Column {name!r} (role {role}) of the query holds {'text' if kind == 'text' else 'dates or times'}, "
                f"and sums in a database are of numbers. {_advice(role, kind)}"
            )
        quoted = self.dialect.column(name)
        expression = self.dialect.as_double(quoted)
        if kind == "boolean":  # few dialects cast a boolean to a double
            expression = self.dialect.as_double(f"case when {quoted} then 1 when not {quoted} then 0 end")
        limit = EXACT if kind == "integer" else _LARGEST if role == "metadata" else HUGE
        value = Check(
            role, name, missing=False, condition=self._within(alias, role, limit, may_miss=may_miss)
        )
        present = () if may_miss else (self._present(alias, role, name),)
        return Column(alias, role, name, expression, (*present, value))

    def text(self, alias: str, role: str, name: str, *, may_miss: bool = False) -> Column:
        """Return a column of text."""
        present = () if may_miss else (self._present(alias, role, name),)
        return Column(alias, role, name, self.dialect.column(name), present)

    def _present(self, alias: str, role: str, name: str) -> Check:
        return Check(role, name, missing=True, condition=f"{alias} is not null")

    def _within(self, alias: str, role: str, limit: float, *, may_miss: bool) -> str:
        """Return the condition that a number is in its range; null and NaN are in none."""
        number = self.dialect.number
        least = number(0.0 if role == "weight" else -limit)
        most = number(1.0 if role == "pscore" else limit)
        within = f"{alias} between {least} and {most}"
        if role in _ABOVE_0:
            within = f"{alias} > {number(0.0)} and {alias} <= {most}"
        return f"({alias} is null or {within})" if may_miss else f"({within})"


def _advice(role: str, kind: str) -> str:
    if role != "context":
        return "Cast it in the query."
    if kind == "text":
        return (
            "Give features that have learned its levels: those of moments or of a policy of some of the rows "
            "(features=moments.features.terms, --features DIRECTORY)."
        )
    return "Compute a number from it in the query, such as extract(hour from at) as hour."


def role_columns(columns: Columns, roles: Roles, task: Sequence[str]) -> list[Column]:
    """Return the columns of all roles but the context."""
    written = [columns.id(f"task_{k}", "task", name) for k, name in enumerate(task)]
    if roles.action is not None:
        written.append(columns.id("action_id", "action", roles.action))
    if roles.cluster is not None:
        written.append(columns.id("cluster_id", "cluster", roles.cluster))
    written.append(columns.number("reward", "reward", roles.reward))
    for role in ("pscore", "weight", "precision", "sampling_weight"):
        name = getattr(roles, role)
        if name is not None:
            written.append(columns.number(role, role, name))
    written += [columns.id(f"level_{k}", "level", name) for k, name in enumerate(roles.levels)]
    written += [columns.number(f"metadata_{k}", "metadata", name) for k, name in enumerate(roles.metadata)]
    if roles.time is not None:
        written.append(columns.id("time_of_choice", "time", roles.time))
    return written


def context_columns(columns: Columns, names: Sequence[str]) -> tuple[list[Column], list[str]]:
    """Return the context columns of numbers, and the features that they are."""
    written = [columns.number(f"c_{k}", "context", name) for k, name in enumerate(names)]
    return written, [column.alias for column in written]


def term_columns(columns: Columns, terms: LearnedTerms) -> tuple[list[Column], list[str]]:
    """Return the context columns that learned terms read, and the features that the terms make of them.

    Raises
    ------
    InputError
        A term has no text here; names it and says why.
    """
    for term in terms.terms:
        for part in term.factors or (term,):
            if not isinstance(part.term, Number | YesNo | Cat | Log):
                raise InputError(
                    f"The term {part.term} has no SQL text, so that a database cannot sum its columns: numbers, "
                    f"booleans, categories, logarithms and their products have one. {_REMEDY}"
                )
    written = []
    for k, source in enumerate(terms.columns):
        kinds = {source.name: "boolean"} if source.kind == "boolean" else {}
        typed = Columns(columns.dialect, {**kinds, **columns.kinds})
        writes = typed.text if source.kind == "text" else typed.number
        written.append(writes(f"c_{k}", "context", source.name, may_miss=source.missing))
    writer = _TermText(columns.dialect, {column.name: column.alias for column in written})
    features = [columns.dialect.number(1.0)] if terms.intercept else []
    for term in terms.terms:
        features.extend(writer.term(term))
    features += [
        writer.choice([(f"{writer.aliases[group[0]]} is null", 1.0)], 0.0) for group in terms.indicators
    ]
    logs = [
        part.term for term in terms.terms for part in (term.factors or (term,)) if isinstance(part.term, Log)
    ]
    return [_with_logs(column, logs, columns.dialect) for column in written], features


def _with_logs(column: Column, logs: Sequence[Log], dialect: Dialect) -> Column:
    """Return a column with a check for each logarithm of it."""
    checks = tuple(
        Check(
            "context", column.name, missing=False,
            condition=f"({column.alias} is null or {column.alias} > {dialect.number(-log.plus)})",
        )
        for log in logs
        if log.column == column.name
    )  # fmt: skip
    return Column(column.alias, column.role, column.name, column.expression, (*column.checks, *checks))


@dataclass(frozen=True, slots=True)
class _TermText:
    """Writes the columns of learned terms; a missing value is 0 in all of them."""

    dialect: Dialect
    aliases: Mapping[str, str]

    def term(self, term: LearnedTerm) -> Iterator[str]:
        """Yield the columns of a term in their order."""
        if isinstance(term.term, Cross):
            for factors in product(*(list(self.term(factor)) for factor in term.factors)):
                yield "(" + " * ".join(factors) + ")"
            return
        alias = self.aliases[term.term.columns[0]]
        if isinstance(term.term, Cat):
            yield from self._category(term, alias)
        elif isinstance(term.term, Log):
            shifted = f"({alias} + {self.dialect.number(float(term.term.plus))})"
            zero = self.dialect.number(0.0)
            yield f"case when {shifted} > {zero} then ln({shifted}) else {zero} end"
        else:
            yield f"coalesce({alias}, {self.dialect.number(0.0)})"

    def _category(self, term: LearnedTerm, alias: str) -> Iterator[str]:
        levels = [f"{alias} = {self._level(level)}" for level in term.levels]
        for level in levels[: None if term.other else -1]:
            if term.other:
                known = " or ".join(other for other in levels if other != level)
                zeros = f"{alias} is null{f' or {known}' if known else ''}"
                yield self.choice([(level, 1.0), (zeros, 0.0)], -1.0)
            else:
                yield self.choice([(level, 1.0), (levels[-1], -1.0)], 0.0)

    def _level(self, level: Any) -> str:
        return self.dialect.literal(level) if isinstance(level, str) else self.dialect.number(float(level))

    def choice(self, cases: Sequence[tuple[str, float]], otherwise: float) -> str:
        """Return the text of a choice among numbers."""
        number = self.dialect.number
        tests = " ".join(f"when {condition} then {number(value)}" for condition, value in cases)
        return f"(case {tests} else {number(otherwise)} end)"
