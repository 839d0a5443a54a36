"""The map that a log teaches: levels, knots and kinds of columns, as JSON; and its columns of numbers."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array, Mask
from hieropo.errors import InputError, SchemaError
from hieropo.features.terms.doubts import Doubt
from hieropo.features.terms.effects import LearnedEffect
from hieropo.features.terms.parsing import parse
from hieropo.features.terms.splines import natural_spline
from hieropo.features.terms.statistics import part_of
from hieropo.features.terms.terms import (
    TOLD_COLUMNS,
    Cat,
    Cross,
    Cyclic,
    DatePart,
    Effect,
    Log,
    Number,
    Ordered,
    Spline,
    Term,
    Terms,
    YesNo,
)
from hieropo.features.terms.values import DAY, Kind, Values, on_clock
from hieropo.rows.columns import HUGE

_LONGEST = 40  # characters of a level in the name of a column
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True)
class Unknown:
    """The design columns of a value that is not known: their means over the log, and their covariance.

    Parameters
    ----------
    means : tuple of pairs of str and tuple of float
        For each term of the column, as text, the means of its columns; a mark is in the first.
    root : tuple of tuple of float
        L (r, k) of the covariance L'L of the columns of its terms, interactions aside.
    """

    means: tuple[tuple[str, tuple[float, ...]], ...]
    root: tuple[tuple[float, ...], ...]

    def mean(self, term: Term) -> Array:
        """Return the means (k,) of the columns of a term."""
        return np.array(dict(self.means)[str(term)], dtype=np.float64)

    def to_dict(self) -> dict[str, Any]:
        """Return the value as JSON can hold it."""
        return {
            "means": {term: list(mean) for term, mean in self.means},
            "root": [list(row) for row in self.root],
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Unknown":
        """Return the value that :meth:`to_dict` wrote."""
        means = tuple((term, tuple(mean)) for term, mean in stored["means"].items())
        return cls(means, tuple(tuple(row) for row in stored["root"]))


@dataclass(frozen=True, slots=True)
class LearnedColumn:
    """A column of the log that terms read.

    Parameters
    ----------
    name : str
    kind : {"number", "boolean", "text", "time"}
    zone : str or None
        Time zone of a column of times.
    missing : bool
        The log had missing values in it.
    unknown : Unknown or None
        The columns of an unknown value, where ``missing="prior"``.
    """

    name: str
    kind: Kind
    zone: str | None = None
    missing: bool = False
    unknown: "Unknown | None" = None

    def identity(self) -> dict[str, Any]:
        """Return the part that decides which map it is, as JSON; ``unknown`` only fills in values of requests."""
        return {"name": self.name, "kind": self.kind, "zone": self.zone, "missing": self.missing}


@dataclass(frozen=True, slots=True)
class LearnedTerm:
    """A term with all that a log taught about it.

    Parameters
    ----------
    term : Term
    levels : tuple
        Levels of a category in their order; those of the last one are coded by -1 unless there are ``other`` ones.
    other : bool
        The log has rarer levels, which are one class.
    knots : tuple of float
    factors : tuple of LearnedTerm
        Of an interaction.
    effect : LearnedEffect or None
        Of an effect; None where the log shows no variation between levels, so that the term has no columns.
    """

    term: Term
    levels: tuple[Any, ...] = ()
    other: bool = False
    knots: tuple[float, ...] = ()
    factors: tuple["LearnedTerm", ...] = ()
    effect: LearnedEffect | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its columns, by the names that the user gave."""
        return tuple(_names(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the term as JSON can hold it."""
        entries = {"levels": list(self.levels), "other": self.other, "knots": list(self.knots)}
        factors = {"factors": [factor.to_dict() for factor in self.factors]} if self.factors else {}
        effect = {} if self.effect is None else {"effect": self.effect.to_dict()}
        return {
            "term": str(self.term),
            **effect,
            **{name: value for name, value in entries.items() if value},
            **factors,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "LearnedTerm":
        """Return the term that :meth:`to_dict` wrote."""
        (term,) = parse(stored["term"])
        return cls(
            term,
            tuple(stored.get("levels", ())),
            bool(stored.get("other", False)),
            tuple(stored.get("knots", ())),
            tuple(cls.from_dict(factor) for factor in stored.get("factors", ())),
            LearnedEffect.from_dict(stored["effect"]) if "effect" in stored else None,
        )


class Refusal(NamedTuple):
    """Rows (n,) whose value in a column cannot be used, and why."""

    column: str
    reason: str
    rows: Mask


class Encoded(NamedTuple):
    """The d columns (n,) of a design; rows that are refused; and rows with unknown levels, by column."""

    columns: list[Array]
    refused: list[Refusal]
    unknown: dict[str, Mask]


@dataclass(frozen=True)
class LearnedTerms:
    """A formula with all that a log taught about it: context columns become d columns of numbers.

    Parameters
    ----------
    formula : Terms
        As it was given.
    columns : tuple of LearnedColumn
        The columns that are read.
    terms : tuple of LearnedTerm
    indicators : tuple of tuple of str
        Columns that were missing in the same rows of the log; each group has one column, 1 where they are missing.
    intercept : bool
        The design begins with a column of ones.
    notes : tuple of str
        Sentences on columns that were left out.
    taken : tuple of str
        Names of columns that play other roles, which no column of the design has.
    """

    formula: Terms
    columns: tuple[LearnedColumn, ...]
    terms: tuple[LearnedTerm, ...]
    indicators: tuple[tuple[str, ...], ...] = ()
    intercept: bool = False
    notes: tuple[str, ...] = field(default=(), compare=False)
    taken: tuple[str, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the d columns, each once, such as ``price``, ``device=phone`` and ``price (missing)``."""
        names = ["intercept"] if self.intercept else []
        names += [name for term in self.terms for name in term.names]
        names += [f"{', '.join(group)} (missing)" for group in self.indicators]
        unique: dict[str, None] = {}
        for name in names:
            while name in unique or name in self.taken:  # a level may be called as anything
                name += "'"  # noqa: PLW2901
            unique[name] = None
        return tuple(unique)

    @property
    def fingerprint(self) -> str:
        """A text that equal maps share."""
        return json.dumps(self.identity(), sort_keys=True)

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the columns that are read."""
        return tuple(column.name for column in self.columns)

    @property
    def plain(self) -> tuple[str, ...]:
        """The columns that are those of the log as they are: numbers without missing values."""
        complete = {column.name for column in self.columns if not column.missing}
        numbers = [term.term.column for term in self.terms if isinstance(term.term, Number)]
        return tuple(name for name in numbers if name in complete and name in self.names)

    @property
    def leveled(self) -> tuple[str, ...]:
        """The columns of which some values are levels with coefficients of their own, and others are not."""
        parts = [part for term in self.terms for part in (term.factors or (term,))]
        kinds = {column.name: column.kind for column in self.columns}
        return tuple(
            dict.fromkeys(
                part.term.columns[0]
                for part in parts
                if isinstance(part.term, Cat | DatePart | Effect)
                or (isinstance(part.term, Ordered) and kinds[part.term.column] == "text")
            )
        )

    def of(self, name: str) -> LearnedColumn:
        """Return a column that is read, by its name."""
        return next(column for column in self.columns if column.name == name)

    @cached_property
    def doubts(self) -> tuple[Doubt, ...]:
        """The covariances of columns about values that are not known."""
        starts = np.cumsum([int(self.intercept), *(len(term.names) for term in self.terms)])
        found = []
        for column in self.columns:
            places = [
                start + np.arange(len(term.names))
                for term, start in zip(self.terms, starts[:-1].tolist(), strict=True)
                if not isinstance(term.term, Cross) and term.term.columns == (column.name,)
            ]
            if column.unknown is not None and places and column.unknown.root:
                positions = np.concatenate(places)
                first = next(term.term for term in self.terms if term.term.columns == (column.name,))
                root = np.array(column.unknown.root)[None]
                found.append(Doubt(positions, column.unknown.mean(first)[:1], root))
        found += [
            term.effect.doubts(start)
            for term, start in zip(self.terms, starts[:-1].tolist(), strict=True)
            if term.effect is not None
        ]
        return tuple(found)

    @property
    def task(self) -> tuple[str, ...]:
        """The columns that name the task, which rows of a log need for the effects of levels; empty without any."""
        return next((term.effect.task for term in self.terms if term.effect is not None), ())

    def encode(self, values: Mapping[str, Values], parts: NDArray[np.int64] | None = None) -> Encoded:
        """Return the d columns of n rows, from the values of each source column.

        A missing value is 0 in the columns of its terms and 1 in its indicator where the log had missing values, else
        refused or taken as unknown, as ``formula.missing`` says. An unknown level is "other" where the log had such,
        else the mean of the levels. ``parts`` (n,) are the parts of the tasks of rows of a log, for effects of levels.
        """
        return _Encoder(self, values, parts).encoded()

    def identity(self) -> dict[str, Any]:
        """Return all that decides the columns of rows with known values, as JSON; equal maps have equal ones."""
        return {
            "columns": [column.identity() for column in self.columns],
            "terms": [term.to_dict() for term in self.terms],
            "indicators": [list(group) for group in self.indicators],
            "intercept": self.intercept,
            "names": list(self.names),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the map as JSON can hold it; :meth:`from_dict` reads it back exactly."""
        unknown = {c.name: c.unknown.to_dict() for c in self.columns if c.unknown is not None}
        return {
            "formula": str(self.formula), **self.identity(), "unknown": unknown, "notes": list(self.notes),
            "taken": list(self.taken),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "LearnedTerms":
        """Return the map that :meth:`to_dict` wrote."""
        unknown = {name: Unknown.from_dict(value) for name, value in stored["unknown"].items()}
        columns = tuple(
            LearnedColumn(**column, unknown=unknown.get(column["name"])) for column in stored["columns"]
        )
        return cls(
            parse(stored["formula"]),
            columns,
            tuple(LearnedTerm.from_dict(term) for term in stored["terms"]),
            tuple(tuple(group) for group in stored["indicators"]),
            bool(stored["intercept"]),
            tuple(stored["notes"]),
            tuple(stored["taken"]),
        )

    def checked(self) -> "LearnedTerms":
        """Return the map; raise where it has no column, or more than are allowed.

        Raises
        ------
        SchemaError
            No column varies.
        InputError
            The message has the number of columns of each term.
        """
        if not self.names or self.names == ("intercept",):
            raise SchemaError(
                f"No feature is left of {str(self.formula)!r}: {' '.join(self.notes) or 'no column varies.'} Name "
                "other context columns, or none."
            )
        limit = self.formula.max_columns
        if len(self.names) > limit:
            widest = sorted(self.terms, key=lambda term: -len(term.names))[:3]
            listed = ", ".join(f"{term.term} has {len(term.names):,}" for term in widest)
            raise InputError(
                f"The features {str(self.formula)!r} have {len(self.names):,} columns for each action, and {limit} are "
                f"allowed: {listed}. Memory grows with the square of their number, time with the cube. Lower "
                f"max_levels or df, leave terms out, or allow more: '{self.formula.terms[0]} + ...; "
                f"max_columns={len(self.names)}'."
            )
        return self

    def described(self) -> str:
        """Return sentences on the terms: their columns, levels, and the columns that were left out."""
        sentences = [f"The features are {' + '.join(str(term.term) for term in self.terms)}."]
        for term in self.terms:
            if isinstance(term.term, Cat | DatePart) and term.names:
                last = "other" if term.other else _label(term.term, term.levels[-1])
                sentences.append(
                    f"{_subject(term.term)} has {len(term.levels)} levels"
                    f"{' and other ones' if term.other else ''}; coefficients are differences from their mean, and "
                    f"that of {last!r} is minus the sum of the others."
                )
        sentences += [_effect_in_words(term) for term in self.terms if term.effect is not None]
        if self.indicators:
            listed = ", ".join(f"{', '.join(group)} (missing)" for group in self.indicators)
            sentences.append(f"Missing values have columns of their own: {listed}.")
        sentences.extend(self.notes)
        if len(self.names) > TOLD_COLUMNS:
            sentences.append(
                f"There are {len(self.names)} columns for each action, which is many: time grows with the cube of "
                "their number, and tasks with few rows say little about each."
            )
        return " ".join(sentences)


def _effect_in_words(term: LearnedTerm) -> str:
    assert term.effect is not None
    main, own, noise = (float(np.sqrt(value)) for value in term.effect.variances)
    return (
        f"{term.term.columns[0]} has effects of {len(term.levels):,} levels, draws around 0 with an sd of {main:.3g} "
        f"on all actions and of {own:.3g} on each, where the noise has one of {noise:.3g}; a new level is 0 with "
        "these, and rows of the log have effects that the rows of other tasks tell."
    )


def terms_differences(one: LearnedTerms | None, other: LearnedTerms | None) -> list[str]:
    """Return the differences between the terms of two feature maps, in words; the first of each kind."""
    if one is None or other is None:
        return (
            []
            if one is other
            else [f"terms that make columns in the {'second' if one is None else 'first'} only"]
        )
    if one.identity() == other.identity():
        return []
    differences = []
    if one.formula.terms != other.formula.terms:
        return [f"the formulas {str(one.formula)!r} and {str(other.formula)!r}"]
    for left, right in zip(one.columns, other.columns, strict=False):
        if left.identity() != right.identity():
            differences.append(
                f"column {left.name!r} ({_column_in_words(left)}) and {right.name!r} ({_column_in_words(right)})"
            )
            break
    for mine, theirs in zip(one.terms, other.terms, strict=False):
        if mine != theirs:
            differences.append(f"{mine.term} {_learned_in_words(mine)} and {_learned_in_words(theirs)}")
            break
    return differences or [f"columns {list(one.names)} and {list(other.names)}"]


def _column_in_words(column: LearnedColumn) -> str:
    zone = "" if column.zone is None else f", zone {column.zone}"
    return f"{column.kind}{zone}, {'with' if column.missing else 'without'} missing values"


def _learned_in_words(term: LearnedTerm) -> str:
    if term.knots:
        return f"with knots {[float(f'{knot:.6g}') for knot in term.knots]}"
    return f"with levels {list(term.levels)}{' and other ones' if term.other else ''}"


class _Encoder:
    """The encoding of n rows by one map."""

    def __init__(
        self, learned: LearnedTerms, values: Mapping[str, Values], parts: NDArray[np.int64] | None
    ) -> None:
        self._learned = learned
        self._parts = parts
        self._fills: dict[str, Mask] = {}
        self._zeros: dict[str, Mask] = {}
        self._refused: list[Refusal] = []
        self._unknown: dict[str, Mask] = {}
        self._values = {column.name: self._usable(column, values[column.name]) for column in learned.columns}
        self._n = len(next(iter(values.values())))

    def encoded(self) -> Encoded:
        learned = self._learned
        columns = [np.ones(self._n)] if learned.intercept else []
        for term in learned.terms:
            columns.extend(self._term(term))
        columns += [self._values[group[0]].missing.astype(np.float64) for group in learned.indicators]
        return Encoded(columns, self._refused, self._unknown)

    def _usable(self, column: LearnedColumn, values: Values) -> Values:
        """Return the values with a stand-in for those that are missing or unusable; note refusals."""
        missing, numbers = values.missing, values.numbers
        if missing.any() and not column.missing:
            if self._learned.formula.missing == "refuse":
                self._refused.append(Refusal(column.name, "missing", missing))
            else:
                self._fills[column.name] = missing
        elif missing.any():
            self._zeros[column.name] = missing
        if numbers is None:
            return values
        if not missing.any() and (np.abs(numbers) <= HUGE).all():
            return values
        infinite, huge = np.isinf(numbers), np.isfinite(numbers) & (np.abs(numbers) > HUGE)
        for reason, bad in (("infinite", infinite), ("huge", huge)):
            if bad.any():
                self._refused.append(Refusal(column.name, reason, bad))
        return replace(values, numbers=np.where(missing | infinite | huge, 0.0, numbers))

    def _term(self, term: LearnedTerm) -> Array:
        if isinstance(term.term, Cross):
            block = self._term(term.factors[0])
            for factor in term.factors[1:]:
                right = self._term(factor)
                block = (block[:, None, :] * right[None, :, :]).reshape(-1, self._n)
            return block
        (column,) = term.term.columns
        values = self._values[column]
        columns: Array = _BLOCKS[type(term.term)](self, term, values)
        zeros, fills = self._zeros.get(column), self._fills.get(column)
        if fills is not None:
            unknown = self._learned.of(column).unknown
            assert unknown is not None
            columns = np.where(fills, unknown.mean(term.term)[:, None], columns)
        return columns if zeros is None else np.where(zeros, 0.0, columns)

    def _number(self, _: LearnedTerm, values: Values) -> Array:
        assert values.numbers is not None
        return values.numbers[None, :]

    def _log(self, term: LearnedTerm, values: Values) -> Array:
        assert isinstance(term.term, Log)
        shifted = self._number(term, values) + term.term.plus
        bad = (shifted[0] <= 0) & ~values.missing
        if bad.any():
            self._refused.append(Refusal(term.term.column, f"not above {-term.term.plus + 0.0:g}", bad))
        shifted[shifted <= 0] = 1.0
        return np.asarray(np.log(shifted))

    def _spline(self, term: LearnedTerm, values: Values) -> Array:
        if len(term.knots) < 2:
            return np.zeros((0, self._n))
        assert values.numbers is not None
        return np.ascontiguousarray(natural_spline(values.numbers, term.knots)[:, 1:].T)

    def _category(self, term: LearnedTerm, values: Values) -> Array:
        k = len(term.levels)
        positions, missing = positions_of(term.levels, values), values.missing
        unknown = positions < 0
        if unknown.any():
            self._note_unknown(term.term.columns[0], unknown & ~missing)
            positions = np.where(missing, k + 1, np.where(unknown, k, positions))
        contrasts = np.concatenate([_contrasts(k, other=term.other), np.zeros((len(term.names), 1))], axis=1)
        return np.take(contrasts, positions, axis=1)

    def _effect(self, term: LearnedTerm, values: Values) -> Array:
        if term.effect is None:
            return np.zeros((0, self._n))
        positions = np.where(values.missing, -1, positions_of(term.levels, values))
        self._note_unknown(term.term.columns[0], (positions < 0) & ~values.missing)
        return term.effect.encode(positions, self._parts)

    def _note_unknown(self, column: str, unknown: Mask) -> None:
        if unknown.any():
            before = self._unknown.get(column)
            self._unknown[column] = unknown if before is None else before | unknown

    def _date_part(self, term: LearnedTerm, values: Values) -> Array:
        assert isinstance(term.term, DatePart)
        parts = part_of(_clock(values, term.term.zone), term.term.part).astype(np.float64)
        return self._category(term, Values("number", values.missing, parts))

    def _ordered(self, term: LearnedTerm, values: Values) -> Array:
        column = term.term.columns[0]
        if values.numbers is not None:
            levels = np.array(term.levels[1:], dtype=np.float64)
            block = (values.numbers[None, :] >= levels[:, None]).astype(np.float64)
        else:
            positions = positions_of(term.levels, values)
            steps = np.arange(1, len(term.levels))
            block = (positions[None, :] >= steps[:, None]).astype(np.float64)
            unknown = (positions < 0) & ~values.missing
            self._note_unknown(column, unknown)
            block[:, unknown] = 0.5
        return block

    def _cyclic(self, term: LearnedTerm, values: Values) -> Array:
        cyclic = term.term
        assert isinstance(cyclic, Cyclic)
        if isinstance(cyclic.period, float):
            assert values.numbers is not None
            phase = np.mod(values.numbers, cyclic.period) / cyclic.period
        else:
            phase = _phase(_clock(values, cyclic.zone), cyclic.period)
        angles = 2.0 * np.pi * np.arange(1, cyclic.harmonics + 1)[:, None] * phase
        return np.stack([np.sin(angles), np.cos(angles)], axis=1).reshape(-1, self._n)


_BLOCKS: dict[type[Term], Any] = {
    Number: _Encoder._number,
    YesNo: _Encoder._number,
    Cat: _Encoder._category,
    Effect: _Encoder._effect,
    Ordered: _Encoder._ordered,
    Spline: _Encoder._spline,
    Cyclic: _Encoder._cyclic,
    DatePart: _Encoder._date_part,
    Log: _Encoder._log,
}


def _clock(values: Values, zone: str | None) -> NDArray[np.int64]:
    assert values.instants is not None
    return on_clock(values.instants, zone or values.zone)


def _phase(clock: NDArray[np.int64], period: str) -> Array:
    """Return the phase in [0, 1) of microseconds on a clock (n,) within the day, the week or the year."""
    if period == "day":
        return np.asarray((clock % DAY) / DAY)
    if period == "week":
        return np.asarray(((clock + 3 * DAY) % (7 * DAY)) / (7 * DAY))
    years = clock.view("M8[us]").astype("M8[Y]")
    start = years.astype("M8[us]").astype(np.int64)
    end = (years + 1).astype("M8[us]").astype(np.int64)
    return np.asarray((clock - start) / (end - start))


def positions_of(levels: Sequence[Any], values: Values) -> NDArray[np.int64]:
    """Return the position of each value (n,) among the levels; -1 for none of them."""
    if values.codes is not None:
        index = {level: position for position, level in enumerate(levels)}
        of_text = np.array([*(index.get(text, -1) for text in values.texts), -1], dtype=np.int64)
        return of_text[values.codes]
    assert values.numbers is not None
    known = np.array(levels, dtype=np.float64)
    positions = np.clip(np.searchsorted(known, values.numbers), 0, known.size - 1)
    return np.where(known[positions] == values.numbers, positions, -1)


def _contrasts(k: int, *, other: bool) -> Array:
    """Return the sum-to-zero codes of k levels and of any other one, (columns, k + 1)."""
    width = k if other else k - 1
    contrasts = np.zeros((width, k + 1))
    np.fill_diagonal(contrasts, 1.0)
    contrasts[:, k if other else k - 1] = -1.0
    if not other:
        contrasts[:, k] = 0.0  # a level that the log does not have: the mean of the levels
    return contrasts


def _names(term: LearnedTerm) -> Iterator[str]:
    """Yield the names of the columns of a term."""
    description = term.term
    if isinstance(description, Cross):
        for pair in product(*(factor.names for factor in term.factors)):
            yield ":".join(pair)
    elif isinstance(description, Cat | DatePart):
        for level in term.levels[: None if term.other else -1]:
            yield f"{_subject(description)}={_label(description, level)}"
    elif isinstance(description, Effect):
        yield from () if term.effect is None else term.effect.names(description.column)
    elif isinstance(description, Ordered):
        yield from (f"{description.column}>={_label(description, level)}" for level in term.levels[1:])
    else:
        yield from _names_of_numbers(term)


def _names_of_numbers(term: LearnedTerm) -> Iterator[str]:
    """Yield the names of the columns of a spline, a cycle, a number, a boolean or a logarithm."""
    description = term.term
    if isinstance(description, Spline):
        yield from (f"{description.column}@{knot:.6g}" for knot in term.knots[1:])
    elif isinstance(description, Cyclic):
        yield from _waves(description)
    else:
        yield _name(description)


def _waves(term: Cyclic) -> Iterator[str]:
    """Yield the names of the sines and cosines of a cycle."""
    period = term.period if isinstance(term.period, str) else f"{term.period:g}"
    for harmonic in range(1, term.harmonics + 1):
        speed = "" if harmonic == 1 else f"{harmonic} "
        yield from (f"{wave}({speed}{period} of {term.column})" for wave in ("sin", "cos"))


def _name(term: Term) -> str:
    """Return the name of the only column of a number, a boolean or a logarithm."""
    (column,) = term.columns
    if isinstance(term, YesNo):
        return f"{column}=yes"
    if isinstance(term, Log):
        return f"log({column}{f' + {term.plus:g}' if term.plus else ''})"
    return column


def _subject(term: Term) -> str:
    return f"{term.part} of {term.column}" if isinstance(term, DatePart) else term.columns[0]


def _label(term: Term, level: Any) -> str:
    """Return a level as a user writes it."""
    if isinstance(term, DatePart) and term.part == "weekday":
        return _WEEKDAYS[int(level)]
    if isinstance(term, DatePart) and term.part == "month":
        return _MONTHS[int(level) - 1]
    text = str(int(level)) if isinstance(level, float) and level.is_integer() else str(level)
    shown = "".join(character if character.isprintable() else " " for character in text)
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 3] + "..."
