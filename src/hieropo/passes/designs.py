"""The design of a log: terms are learned by one read of their columns, and the source is encoded by them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hieropo.errors import InputError, SchemaError
from hieropo.features.terms.learned import LearnedTerms
from hieropo.features.terms.learning import Resolved, SourceColumn, declared_times, learn, resolve
from hieropo.features.terms.parsing import terms_of
from hieropo.features.terms.sketch import UNIT
from hieropo.features.terms.statistics import ColumnStatistics, LevelsError, LogColumns
from hieropo.features.terms.terms import EachColumn, Term, Terms
from hieropo.logs.arrow.log_source import LogSource
from hieropo.logs.arrow.schema import MIXED, is_number
from hieropo.logs.encoding import EncodedSource, encoded, kind_of, log_columns, source_columns
from hieropo.rows.batches import Roles

NAMED = ("per-action", "indicator", "columns")

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


def design_of(choice: Any, source: LogSource, roles: Roles, *, lenient: bool = False) -> Design:
    """Return a log with the columns that its features read; as it is where these are numbers already.

    Terms are learned by one read of their columns. Context columns of text, dates or times are taken by their types
    where no formula says otherwise.

    Parameters
    ----------
    choice : FeatureMap, LearnedTerms, formula, terms, name or None
    source : LogSource
        It must be possible to read it again.
    roles : Roles
        Whose context columns are those of the log.
    lenient : bool
        Rows that cannot be used are set aside.

    Raises
    ------
    SchemaError
        A column is missing, or cannot be a term of its kind.
    InputError
        There are more columns than allowed, or more levels than can be counted.
    """
    if isinstance(choice, LearnedTerms):
        roles = replace(roles, context=choice.names)
        return Design(choice, EncodedSource(source, choice, lenient=lenient), roles)
    if getattr(choice, "terms", None) is not None and not isinstance(choice, Terms):
        roles = replace(roles, context=choice.columns)
        return Design(choice, encoded(source, choice, lenient=lenient), roles)
    if is_formula(choice):
        learned = _learned(_checked(terms_of(choice), roles), source, roles, choice)
        assert learned is not None
    elif choice in (None, "per-action", "columns") and _has_other_types(source, roles):
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


def _statistics(
    terms: Terms, source: LogSource, roles: Roles
) -> tuple[Sequence[Resolved], Mapping[str, SourceColumn], LogColumns]:
    context = roles.context if EachColumn() in terms.terms else ()
    columns = declared_times(terms, source_columns(source, tuple(dict.fromkeys([*context, *terms.columns]))))
    resolved = resolve(terms, context, columns)
    medians = terms.missing == "prior"
    return resolved, columns, log_columns(source, resolved, columns, weight=roles.weight, medians=medians)


def _learned(terms: Terms, source: LogSource, roles: Roles, choice: Any) -> LearnedTerms:
    resolved, columns, statistics = _statistics(terms, source, roles)
    return _map(terms, resolved, columns, statistics, roles, choice)


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
) -> LearnedTerms:
    taken = tuple(column for role, column in roles.items() if role != "context")
    intercept = roles.action is None or choice == "columns"
    return learn(terms, resolved, columns, statistics, intercept=intercept, taken=taken)


def refuse_other_context(features: Any, context: Sequence[str]) -> None:
    """Raise InputError where named context columns are not those that a feature map reads."""
    sources = sources_of(features)
    if tuple(context) not in (sources, tuple(features.columns)):
        raise InputError(
            f"context={list(context)} differs from the columns {list(sources)} that the features read. Leave context "
            "out."
        )
