"""The design of a log: terms are learned by one read of their columns, and the source is encoded by them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from hieropo.errors import LogError, SchemaError
from hieropo.features.terms.learned import LearnedTerm, LearnedTerms
from hieropo.features.terms.learning import Resolved, SourceColumn, declared_times, learn, resolve
from hieropo.features.terms.parsing import terms_of
from hieropo.features.terms.sketch import UNIT
from hieropo.features.terms.statistics import ColumnStatistics, LevelsError, LogColumns
from hieropo.features.terms.terms import EachColumn, Effect, Term, Terms
from hieropo.logs.arrow.arrays import as_numpy, decoded
from hieropo.logs.arrow.log_source import LogSource, over_parts
from hieropo.logs.arrow.schema import MIXED, is_number
from hieropo.logs.arrow.times_of_text import with_times
from hieropo.logs.encoding import EncodedSource, encoded, kind_of, log_columns, source_columns
from hieropo.passes.effects import learned_effects
from hieropo.rows.batches import Roles

NAMED = ("per-action", "indicator", "columns")
_BY_TYPE = (
    None,
    "per-action",
    "columns",
)  # choices whose context columns are terms by their types where needed

Result = TypeVar("Result")

_NUMBER = re.compile(r"\s*[+-]?(0|[1-9]\d*)?(\.\d*)?([eE][+-]?\d+)?\s*")


@dataclass(frozen=True, slots=True)
class Design:
    """A log as the pass reads it.

    Parameters
    ----------
    choice : FeatureMap, LearnedTerms, name or None
        The feature map, or the choice from which the actions of the log make one.
    source : LogSource
        With context columns of numbers.
    roles : Roles
        Whose context columns are those of the design.
    """

    choice: Any
    source: LogSource
    roles: Roles


def is_formula(choice: object) -> bool:
    """Return True for a formula, terms, or a list of them."""
    return isinstance(choice, Terms | Term | list | tuple) or (
        isinstance(choice, str) and choice not in NAMED
    )


def sources_of(choice: object) -> tuple[str, ...]:
    """Return the columns of the log that a choice of features names."""
    if is_formula(choice):
        return terms_of(choice).columns  # type: ignore[arg-type]  # a formula
    columns: tuple[str, ...] = getattr(choice, "sources", getattr(choice, "columns", ()))
    return columns


def read_design(
    choice: Any,
    source: LogSource,
    roles: Roles,
    read: Callable[[Design], Result],
    *,
    lenient: bool = False,
    once: bool = False,
) -> Result:
    """Return the result of a pass over the design of a log, where numbers of the context may be missing.

    A log of complete numbers is read once, as it is. Where the pass meets a row that cannot be used, and a context
    column of numbers has missing values, terms by type give these a column of their own, and a second pass reads the
    log. A lenient pass, which would set such rows aside, and one that may run ``once`` alone search for missing
    values before.

    Parameters
    ----------
    choice, source, roles, lenient
        As of :func:`design_of`.
    read : callable
        The pass; it raises LogError for a row that cannot be used.
    once : bool
        The pass cannot be repeated, as where it keeps a checkpoint.

    Raises
    ------
    SchemaError, InputError, LogError
        As of :func:`design_of`, and of the pass.
    """
    source = with_times(source, roles.time, lenient=lenient)
    design = design_of(choice, source, roles, lenient=lenient, holes=lenient or once)
    try:
        return read(design)
    except LogError:
        if design.source is not source or not _has_holes(choice, source, roles):
            raise
    return read(design_of(choice, source, roles, holes=True))


def design_of(
    choice: Any, source: LogSource, roles: Roles, *, lenient: bool = False, holes: bool = False
) -> Design:
    """Return a log with the columns that its features read; as it is where these are numbers already.

    Terms are learned by one read of their columns. A column of text that is named as times is read as such, where it is
    written by ISO 8601. Context columns of text, dates or times, and numbers with missing
    values, are taken by their types where no formula says otherwise.

    Parameters
    ----------
    choice : FeatureMap, LearnedTerms, formula, terms, name or None
    source : LogSource
        It must be possible to read it again.
    roles : Roles
        Whose context columns are those of the log.
    lenient : bool
        Rows that cannot be used are set aside.
    holes : bool
        Search columns of numbers for missing values, by one read up to the first.

    Raises
    ------
    SchemaError
        A column is missing, or cannot be a term of its kind.
    InputError
        There are more columns than allowed, or more levels than can be counted.
    """
    source = with_times(source, roles.time, lenient=lenient)
    if isinstance(choice, LearnedTerms):
        roles = replace(roles, context=choice.names)
        return Design(choice, EncodedSource(source, choice, lenient=lenient), roles)
    if getattr(choice, "terms", None) is not None and not isinstance(choice, Terms):
        roles = replace(roles, context=choice.columns)
        return Design(choice, encoded(source, choice, lenient=lenient), roles)
    if is_formula(choice):
        learned = _learned(_checked(terms_of(choice), roles), source, roles, choice)
        assert learned is not None
    elif choice in _BY_TYPE and (
        _has_other_types(source, roles) or (holes and _has_holes(choice, source, roles))
    ):
        by_type = _by_type(source, roles, choice)
        if by_type is None:
            return Design(choice, source, roles)
        learned = by_type
    else:
        return Design(choice, source, roles)
    roles = replace(roles, context=learned.names)
    return Design(learned, EncodedSource(source, learned, lenient=lenient), roles)


def _checked(terms: Terms, roles: Roles) -> Terms:
    """Return the terms; refuse context columns that they do not read."""
    if EachColumn() in terms.terms:
        if not roles.context:
            raise SchemaError(
                f"The formula {str(terms)!r} has a '.', which stands for the context columns, and none is named. Name "
                "them, context=[...], or write their names in the formula."
            )
        return terms
    unread = [column for column in roles.context if column not in terms.columns]
    if unread:
        named = f" Maps by name are {', '.join(map(repr, NAMED))}." if len(terms.terms) == 1 else ""
        raise SchemaError(
            f"context={list(roles.context)} names {unread[0]!r}, which the formula {str(terms)!r} does not read. Leave "
            f"context out, or add a term; a '.' in the formula stands for every context column.{named}"
        )
    return terms


def _has_other_types(source: LogSource, roles: Roles) -> bool:
    """Return True where a context column holds text, dates or times, and terms can read all of them."""
    schema = source.schema
    if any(schema.names.count(column) != 1 for column in roles.context):
        return False
    fields = [schema.field(column) for column in roles.context]
    others = [field for field in fields if not is_number(field.type)]
    readable = all(kind_of(field.type) is not None and field.type != MIXED for field in others)
    return bool(others) and readable


def _has_holes(choice: Any, source: LogSource, roles: Roles) -> bool:
    """Return True where all context columns hold numbers, a value is missing, and terms by type can stand for it."""
    schema = source.schema
    if choice not in _BY_TYPE or any(schema.names.count(column) != 1 for column in roles.context):
        return False
    if not all(is_number(schema.field(column).type) for column in roles.context) or not roles.context:
        return False
    return _lacks_values(source, roles.context)


def _lacks_values(source: LogSource, columns: Sequence[str]) -> bool:
    """Return True where a value of some columns of numbers is missing."""
    elsewhere = over_parts(source, columns, partial(_lacks_values, columns=columns))
    if elsewhere is not None:
        return any(elsewhere)
    return any(_is_missing(column) for batch in source.batches(columns) for column in batch.columns)


def _is_missing(column: pa.Array) -> bool:
    """Return True where a value of an array of numbers is null or NaN."""
    if column.null_count:
        return True
    column = decoded(column)
    return pa.types.is_floating(column.type) and bool(np.isnan(as_numpy(column)).any())


def _statistics(
    terms: Terms, source: LogSource, roles: Roles
) -> tuple[Sequence[Resolved], Mapping[str, SourceColumn], LogColumns]:
    context = roles.context if EachColumn() in terms.terms else ()
    columns = declared_times(terms, source_columns(source, tuple(dict.fromkeys([*context, *terms.columns]))))
    resolved = resolve(terms, context, columns)
    values = terms.missing == "prior"
    return resolved, columns, log_columns(source, resolved, columns, weight=roles.weight, values=values)


def _learned(terms: Terms, source: LogSource, roles: Roles, choice: Any) -> LearnedTerms:
    resolved, columns, statistics = _statistics(terms, source, roles)
    effects = learned_effects(terms, source, roles, columns, statistics)
    return _map(terms, resolved, columns, statistics, roles, choice, effects)


def _by_type(source: LogSource, roles: Roles, choice: Any) -> LearnedTerms | None:
    """Return terms by the types of the context columns; None where a column of text holds numbers or ids."""
    terms = Terms((EachColumn(),))
    try:
        resolved, columns, statistics = _statistics(terms, source, roles)
    except LevelsError:
        return None
    if any(
        _holds_numbers(statistics.columns[name]) for name, column in columns.items() if column.kind == "text"
    ):
        return None
    return _map(terms, resolved, columns, statistics, roles, choice)


def _holds_numbers(column: ColumnStatistics) -> bool:
    """Return True for text of which at least half of the rows are numbers, and more than few different ones."""
    numeric = [level for level in column.levels if level.strip() and _NUMBER.fullmatch(level)]
    rows = sum(column.levels[level] for level in numeric)
    return len(numeric) > 1 and 2 * rows >= max(sum(column.levels.values()), UNIT)


def _map(
    terms: Terms,
    resolved: Sequence[Resolved],
    columns: Mapping[str, SourceColumn],
    statistics: LogColumns,
    roles: Roles,
    choice: Any,
    effects: Mapping[Effect, LearnedTerm] | None = None,
) -> LearnedTerms:
    taken = tuple(column for role, column in roles.items() if role != "context")
    intercept = roles.action is None or choice == "columns"
    return learn(terms, resolved, columns, statistics, effects=effects, intercept=intercept, taken=taken)
