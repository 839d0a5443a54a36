"""From terms and statistics of a log to the map that its rows are encoded with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.text import thousands
from hieropo.errors import SchemaError
from hieropo.features.terms.doubts import unknown_mean, unknown_root
from hieropo.features.terms.learned import LearnedColumn, LearnedTerm, LearnedTerms, Unknown
from hieropo.features.terms.sketch import UNIT
from hieropo.features.terms.statistics import ColumnStatistics, LogColumns
from hieropo.features.terms.terms import (
    ByType,
    Cat,
    Cross,
    Cyclic,
    DatePart,
    EachColumn,
    Effect,
    Log,
    Number,
    Ordered,
    Spline,
    Term,
    Terms,
    YesNo,
    quoted_name,
)
from hieropo.features.terms.values import DAY, Kind

_CYCLES = {"day": "hour", "week": "weekday", "year": "month"}
_FEW_TEXTS = 50  # so many different texts, or more rows than twice as many, are a category in any case
_FEWEST_PARTS = 3  # different hours, weekdays or months that a cycle needs to be taken by type
_KINDS: dict[type[Term], tuple[tuple[Kind, ...], str]] = {
    Number: (("number", "boolean"), "numbers"),
    YesNo: (("boolean",), "booleans"),
    Effect: (("text", "number", "boolean"), "text, numbers or booleans"),
    Cat: (("text", "number", "boolean"), "text, numbers or booleans"),
    Ordered: (("text", "number"), "text or numbers"),
    Spline: (("number",), "numbers"),
    DatePart: (("time",), "dates or times"),
    Log: (("number",), "numbers"),
}
_ADVICE = {
    "text": "Text is a category: write category({}), or ordered({}, 'low', 'high').",
    "time": "A time has cycles and parts: write cyclic({}, 'week') or date_part({}, 'month').",
    "boolean": "A boolean is a yes or no: write {} alone.",
    "number": "Numbers are taken as they are: write {} alone, spline({}, 4) or category({}).",
}


@dataclass(frozen=True, slots=True)
class Resolved:
    """A term whose type is known; ``by_type`` where the log may leave it out because it does not vary."""

    term: Term
    by_type: bool = False


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """The kind of a column of a source, and the time zone of a column of times."""

    kind: Kind
    zone: str | None = None


def resolve(terms: Terms, context: Sequence[str], columns: Mapping[str, SourceColumn]) -> list[Resolved]:
    """Return the terms with the types of their columns.

    Parameters
    ----------
    terms : Terms
    context : sequence of str
        The columns that ``.`` stands for.
    columns : mapping of str to SourceColumn

    Raises
    ------
    SchemaError
        A column cannot be a term of its kind; the message has its kind and the terms that fit.
    """
    resolved: dict[Term, Resolved] = {}
    for term in terms:
        parts = [ByType(column) for column in context] if isinstance(term, EachColumn) else [term]
        for part in parts:
            for found in _resolved(part, columns):
                resolved.setdefault(found.term, found)
    return list(resolved.values())


def declared_times(terms: Terms, columns: Mapping[str, SourceColumn]) -> dict[str, SourceColumn]:
    """Return the kinds of columns, where text that a cycle or a part of a date reads is a time, ISO 8601."""
    declared = dict(columns)
    for term in terms:
        for factor in term.factors if isinstance(term, Cross) else [term]:
            is_time = isinstance(factor, DatePart) or (
                isinstance(factor, Cyclic) and isinstance(factor.period, str)
            )
            if is_time and columns[factor.columns[0]].kind == "text":
                declared[factor.columns[0]] = SourceColumn("time")
    return declared


def _resolved(term: Term, columns: Mapping[str, SourceColumn]) -> list[Resolved]:
    if isinstance(term, ByType):
        return [Resolved(found, by_type=True) for found in _by_type(term.column, columns[term.column].kind)]
    if isinstance(term, Cross):
        return [Resolved(Cross(*(_factor(factor, columns) for factor in term.factors)))]
    _check_kind(term, columns)
    return [Resolved(term)]


def _by_type(column: str, kind: Kind) -> list[Term]:
    if kind == "time":
        return [Cyclic(column, period) for period in _CYCLES]
    simple: dict[str, type[Number] | type[YesNo] | type[Cat]] = {
        "number": Number,
        "boolean": YesNo,
        "text": Cat,
    }
    return [simple[kind](column)]


def _factor(term: Term, columns: Mapping[str, SourceColumn]) -> Term:
    if not isinstance(term, ByType):
        _check_kind(term, columns)
        return term
    if columns[term.column].kind == "time":
        name = quoted_name(term.column)
        raise SchemaError(
            f"Column {term.column!r} holds times, and an interaction does not say which cycle is meant. Write "
            f"cyclic({name}, 'week') in place of {name}."
        )
    return _by_type(term.column, columns[term.column].kind)[0]


def _check_kind(term: Term, columns: Mapping[str, SourceColumn]) -> None:
    (column,) = term.columns
    kind, zone = columns[column].kind, columns[column].zone
    kinds, need = _KINDS.get(type(term), (("number",), "numbers"))
    if isinstance(term, Cyclic):
        kinds, need = (
            (("time",), "dates or times") if isinstance(term.period, str) else (("number",), "numbers")
        )
    name = quoted_name(column)
    if kind not in kinds:
        raise SchemaError(
            f"{term} needs {need}, and column {column!r} holds {_IN_WORDS[kind]}. {_ADVICE[kind].replace('{}', name)}"
        )
    if term.zone is not None and zone is None:
        raise SchemaError(
            f"{term} asks for a time zone, and column {column!r} holds times without one, so that they cannot be moved "
            "to it. Give the column a time zone, or leave zone= out to take its clock as it is."
        )
    if isinstance(term, Ordered):
        _check_levels(term, kind)


_IN_WORDS = {"text": "text", "time": "times", "boolean": "booleans", "number": "numbers"}


def _check_levels(term: Ordered, kind: Kind) -> None:
    of_text = bool(term.levels) and isinstance(term.levels[0], str)
    if kind == "text" and not of_text:
        raise SchemaError(
            f"{term}: column {term.column!r} holds text, whose order is not known. List its levels from the lowest to "
            "the highest, such as ordered(size, 'small', 'large')."
        )
    if kind == "number" and of_text:
        raise SchemaError(
            f"{term}: column {term.column!r} holds numbers, and the levels are text. Write numbers."
        )


def learn(
    terms: Terms,
    resolved: Sequence[Resolved],
    columns: Mapping[str, SourceColumn],
    statistics: LogColumns,
    *,
    effects: Mapping[Effect, LearnedTerm] | None = None,
    intercept: bool = False,
    taken: Sequence[str] = (),
) -> LearnedTerms:
    """Return the map of a log.

    Parameters
    ----------
    terms : Terms
        As they were given.
    resolved : sequence of Resolved
        As :func:`resolve` returns them.
    columns : mapping of str to SourceColumn
    statistics : LogColumns
        Of all rows that count.
    effects : mapping of Effect to LearnedTerm, optional
        Those of the formula.
    intercept : bool
        Begin with a column of ones.
    taken : sequence of str
        Names of columns that play other roles.

    Raises
    ------
    SchemaError
        A column has no value at all, or no feature is left.
    InputError
        There are more columns than allowed.
    """
    learned: list[LearnedTerm] = []
    notes: list[str] = []
    for found in resolved:
        of_columns = [statistics.columns[name] for name in found.term.columns]
        _refuse_empty(of_columns)
        if found.by_type and isinstance(found.term, Cat):
            _refuse_free_text(of_columns[0])
        if found.by_type and _is_constant(found.term, of_columns[0]):
            if not isinstance(found.term, Cyclic):
                notes.append(f"Column {of_columns[0].name!r} has one value only, and is left out.")
            continue
        if isinstance(found.term, Effect):
            effect = (effects or {})[found.term]
            if effect.effect is None:
                notes.append(
                    f"The log shows no effects of the levels of {found.term.column!r}, which is left out."
                )
                continue
            learned.append(effect)
        else:
            learned.append(_learned(found.term, statistics))
    if not any(isinstance(term.term, Cyclic) for term in learned):
        notes += [
            f"Column {found.term.columns[0]!r} has too few different hours, weekdays and months for cycles, and is "
            "left out."
            for found in resolved
            if found.by_type and isinstance(found.term, Cyclic) and found.term.period == "day"
        ]
    used = tuple(dict.fromkeys(name for term in learned for name in term.term.columns))
    groups = statistics.missing_together(used)
    return LearnedTerms(
        terms,
        tuple(_column(name, columns[name], statistics.columns[name], learned, terms) for name in used),
        tuple(learned),
        tuple(groups),
        intercept,
        tuple(notes),
        tuple(taken),
    ).checked()


def _refuse_empty(columns: Sequence[ColumnStatistics]) -> None:
    for column in columns:
        if not column.present:
            raise SchemaError(
                f"Column {column.name!r} has no value in any row of the log, so it says nothing. Leave it out; was a "
                "join incomplete?"
            )


def _refuse_free_text(column: ColumnStatistics) -> None:
    """Raise SchemaError for a column whose values are hardly ever the same, unless a formula calls it a category."""
    levels, rows = len(column.levels), sum(column.levels.values()) / UNIT
    if levels > _FEW_TEXTS and 2 * levels > rows:
        raise SchemaError(
            f"Column {column.name!r} has {levels:,} different texts in {thousands(rows)} rows, as ids and free text "
            "have, so that it is no category. Leave it out, make columns of numbers of it, or say that it is one: "
            f"category({quoted_name(column.name)})."
        )


def _is_constant(term: Term, column: ColumnStatistics) -> bool:
    """Return True for a column that does not vary enough for its term."""
    if isinstance(term, Cyclic):
        assert isinstance(term.period, str)
        if term.period == "year" and column.high - column.low < 365 * DAY:
            return True
        return len(column.parts.get((term.zone, _CYCLES[term.period]), ())) < _FEWEST_PARTS
    if isinstance(term, Cat):
        return len(column.levels) < 2
    return column.low >= column.high


def _column(
    name: str,
    column: SourceColumn,
    statistics: ColumnStatistics,
    learned: Sequence[LearnedTerm],
    terms: Terms,
) -> LearnedColumn:
    known = LearnedColumn(name, column.kind, column.zone, statistics.missing)
    if terms.missing == "refuse" or statistics.missing:
        return known
    parts = [part for term in learned for part in (term.factors or (term,)) if part.term.columns == (name,)]
    parts = [part for part in parts if part.effect is None]  # an unknown level is 0, with its variance
    parts = list({part.term: part for part in parts if part.names}.values())
    alone = [term for term in learned if term in parts]
    if not parts:
        return known
    values, weights = statistics.distribution(column.kind, column.zone)

    def design(of: Sequence[LearnedTerm]) -> Array:
        return np.array(
            LearnedTerms(Terms((ByType(name),)), (known,), tuple(of)).encode({name: values}).columns
        )

    means = tuple((str(part.term), tuple(unknown_mean(design([part]), weights).tolist())) for part in parts)
    root = unknown_root(design(alone), weights) if alone else np.zeros((0, 0))
    return replace(known, unknown=Unknown(means, tuple(map(tuple, root.tolist()))))


def _learned(term: Term, statistics: LogColumns) -> LearnedTerm:
    if isinstance(term, Cross):
        return LearnedTerm(term, factors=tuple(_learned(factor, statistics) for factor in term.factors))
    column = statistics.columns[term.columns[0]]
    if isinstance(term, Cat):
        frequent = sorted(column.levels, key=lambda level: (-column.levels[level], level))[: term.max_levels]
        return LearnedTerm(term, tuple(sorted(frequent)), len(frequent) < len(column.levels))
    if isinstance(term, Ordered):
        return LearnedTerm(term, _ordered_levels(term, column))
    if isinstance(term, DatePart):
        parts = column.parts.get((term.zone, term.part), set())
        return LearnedTerm(term, tuple(map(float, sorted(parts))))
    if isinstance(term, Spline):
        shares = [j / term.df for j in range(term.df + 1)]
        knots = tuple(sorted(set(column.quantiles.at(shares))))
        return LearnedTerm(term, knots=knots)
    return LearnedTerm(term)


def _ordered_levels(term: Ordered, column: ColumnStatistics) -> tuple[object, ...]:
    levels = term.levels or tuple(sorted(column.levels))
    if len(levels) > 100 and not term.levels:
        raise SchemaError(
            f"{term}: column {column.name!r} has {len(levels):,} different numbers, and each is a step. Use "
            f"spline({quoted_name(column.name)}, 4), or list fewer levels."
        )
    return tuple(levels)
