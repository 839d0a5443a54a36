"""Terms of a formula over context columns, as immutable values whose text is the formula."""

import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Literal, get_args
from zoneinfo import ZoneInfo

from hieropo.errors import InputError

Missing = Literal["refuse", "prior"]
DatePartName = Literal["hour", "weekday", "month", "quarter"]

MAX_LEVELS = 10  # frequent levels of a category that have columns of their own
MAX_COLUMNS = 128  # columns of a design that are allowed unless said otherwise
TOLD_COLUMNS = 32  # columns above which their number is told
PERIODS: dict[str, float | None] = {"day": 86_400.0, "week": 604_800.0, "year": None}
DATE_PARTS = get_args(DatePartName)
_PLAIN = re.compile(r"[^\W\d]\w*\Z")


def quoted_name(name: str) -> str:
    """Return the name of a column as a formula writes it: in backquotes unless it is a plain word."""
    return name if _PLAIN.match(name) else "`" + name.replace("`", "``") + "`"


def quoted_text(text: str) -> str:
    """Return text as a literal of a formula, in single quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def literal(value: str | float | bool) -> str:  # noqa: FBT001 - it is written, not a switch
    """Return a text or a number as a literal of a formula."""
    return quoted_text(value) if isinstance(value, str) else repr(value)


class Term:
    """A term of a formula; subclasses are frozen dataclasses whose first field is the column."""

    __slots__ = ()
    function: ClassVar[str]
    varargs: ClassVar[str | None] = None

    def __str__(self) -> str:
        """Return the term as a formula; the parser reads an equal term back."""
        column, *settings = fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
        arguments = [quoted_name(getattr(self, column.name))]
        for setting in settings:
            value = getattr(self, setting.name)
            if setting.name == self.varargs:
                arguments.extend(map(literal, value))
            elif setting.default is MISSING:
                arguments.append(literal(value))
            elif value != setting.default:
                arguments.append(f"{setting.name}={literal(value)}")
        return f"{self.function}({', '.join(arguments)})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (self.column,)  # type: ignore[attr-defined]  # of the subclass

    @property
    def zone(self) -> str | None:
        """The time zone in which the column is read; None for that of the column."""
        return None


def _check_column(term: Term, column: object) -> None:
    if not isinstance(column, str) or not column:
        raise InputError(
            f"{type(term).__name__}({column!r}) names no column. Give the name of one column as text."
        )


def _whole(term: Term, name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(
            f"{type(term).__name__}: {name}={value!r} is not a whole number from {least} to {most:,}. Give such a "
            "number."
        )


def _check_zone(term: Term, zone: object) -> None:
    if zone is None:
        return
    try:
        if not isinstance(zone, str):
            raise TypeError  # noqa: TRY301 - one message for all
        ZoneInfo(zone)
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise InputError(
            f"{type(term).__name__}: zone={zone!r} is no time zone that this machine knows. Give a name such as "
            "'Europe/Amsterdam' or 'UTC'."
        ) from error


@dataclass(frozen=True, slots=True)
class EachColumn(Term):
    """Every context column by its type, written ``.`` in a formula."""

    def __str__(self) -> str:
        """Return the term as a formula."""
        return "."

    @property
    def columns(self) -> tuple[str, ...]:
        """No column is named."""
        return ()


@dataclass(frozen=True, slots=True)
class ByType(Term):
    """A column by its type: a number as it is, text as a category, a boolean as yes or no, a time as cycles.

    Examples
    --------
    >>> str(ByType("price")), str(ByType("unit price"))
    ('price', '`unit price`')
    """

    column: str

    def __post_init__(self) -> None:
        _check_column(self, self.column)

    def __str__(self) -> str:
        """Return the term as a formula."""
        return quoted_name(self.column)


@dataclass(frozen=True, slots=True)
class Number(Term):
    """A number as it is: one column, x."""

    column: str
    function = "number"

    def __post_init__(self) -> None:
        _check_column(self, self.column)


@dataclass(frozen=True, slots=True)
class YesNo(Term):
    """A boolean: one column, 1 for yes and 0 for no."""

    column: str
    function = "yes_no"

    def __post_init__(self) -> None:
        _check_column(self, self.column)


@dataclass(frozen=True, slots=True)
class Cat(Term):
    """A category: its most frequent levels, coded to sum to zero, and "other" for all rarer ones.

    With levels l_1 < ... < l_k, and "other" last where the log has rarer ones, column j is 1 for l_j, -1 for the last
    level and 0 otherwise. A coefficient is the difference of a level from the mean of the levels; that of the last
    level is minus the sum of the others.

    Parameters
    ----------
    column : str
        Text, numbers or booleans.
    max_levels : int
        Number of levels with a column; rarer ones are "other". Ties are broken by the order of the levels.
    """

    column: str
    max_levels: int = MAX_LEVELS
    function = "category"

    def __post_init__(self) -> None:
        _check_column(self, self.column)
        _whole(self, "max_levels", self.max_levels, 1, 10_000)


@dataclass(frozen=True, slots=True)
class Effect(Term):
    """Effects of the levels of a category that has very many, as draws around 0 with learned variances.

    The reward of level c under action a is u_c + v_ca higher, u_c ~ N(0, main variance), v_ca ~ N(0, own variance). The
    columns are the posterior means of u_c + mean(v_c) and, for each action but the last, of v_ca - mean(v_c), given the
    rewards of the log; in a row of the log, given those of other tasks alone. The posterior covariance enters the lower
    bounds. A level that the log did not have is 0, with the variances themselves.

    Parameters
    ----------
    column : str
        Text, numbers or booleans.
    """

    column: str
    function = "effect"

    def __post_init__(self) -> None:
        _check_column(self, self.column)


@dataclass(frozen=True, slots=True)
class Ordered(Term):
    """An ordered category: one column for each step, 1 at and above its level.

    The coefficient of a step is the difference between a level and the one below.

    Parameters
    ----------
    column : str
    levels : tuple of str or float
        From the lowest to the highest. Without any: the distinct numbers of the log in their order.
    """

    column: str
    levels: tuple[Any, ...] = ()
    function = "ordered"
    varargs: ClassVar[str | None] = "levels"

    def __post_init__(self) -> None:
        _check_column(self, self.column)
        given: Any = self.levels
        levels = (given,) if isinstance(given, str) else tuple(given)
        levels = tuple(float(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in levels)
        object.__setattr__(self, "levels", levels)
        kinds = {type(level) for level in levels}
        if kinds not in ({str}, {float}, set()) or len(set(levels)) < len(levels) or len(levels) == 1:
            raise InputError(
                f"Ordered({self.column!r}, levels={list(levels)}): at least two levels are needed, all text or all "
                "numbers, none of them twice. List them from the lowest to the highest."
            )
        if kinds == {float} and list(levels) != sorted(levels):
            raise InputError(
                f"Ordered({self.column!r}, levels={list(levels)}): numbers that are levels must grow. Sort them, or "
                "leave them out."
            )


@dataclass(frozen=True, slots=True)
class Spline(Term):
    """A natural cubic spline with knots at quantiles of the log, and linear beyond them.

    The basis is cardinal: with knots t_0 < ... < t_df, column j is the natural cubic spline that is 1 at t_j and 0 at
    the other knots, j = 1 ... df. A coefficient is the value at t_j less the value at t_0.

    Parameters
    ----------
    column : str
        Numbers.
    df : int
        Degrees of freedom, the number of columns. Ties among the quantiles leave fewer.
    """

    column: str
    df: int = 4
    function = "spline"

    def __post_init__(self) -> None:
        _check_column(self, self.column)
        _whole(self, "df", self.df, 1, 50)

    def __str__(self) -> str:
        """Return the term as a formula."""
        return f"spline({quoted_name(self.column)}, {self.df})"


@dataclass(frozen=True, slots=True)
class Cyclic(Term):
    """Sines and cosines of a cycle: of the day, the week or the year of a time, or of a number with a period.

    Harmonic h of phase u in [0, 1) has the columns sin(2 pi h u) and cos(2 pi h u). The week begins on Monday; the year
    has the length of that calendar year.

    Parameters
    ----------
    column : str
        Dates or times; numbers where ``period`` is a number.
    period : {"day", "week", "year"} or float
    harmonics : int
    zone : str, optional
        Time zone of the clock, such as "Europe/Amsterdam". Default: that of the column.
    """

    column: str
    period: str | float
    harmonics: int = 1
    zone: str | None = None
    function = "cyclic"

    def __post_init__(self) -> None:
        _check_column(self, self.column)
        _whole(self, "harmonics", self.harmonics, 1, 20)
        period = self.period
        if isinstance(period, int | float) and not isinstance(period, bool):
            period = float(period)
            object.__setattr__(self, "period", period)
        usable = (
            period in PERIODS
            if isinstance(period, str)
            else isinstance(period, float) and 1e-70 < period < 1e70
        )
        if not usable:
            raise InputError(
                f"Cyclic({self.column!r}, {self.period!r}): the period is none of {', '.join(map(repr, PERIODS))}, and "
                "no number above 0. Give one of these."
            )
        _check_zone(self, self.zone)
        if self.zone is not None and not isinstance(period, str):
            raise InputError(
                f"Cyclic({self.column!r}, {period!r}, zone={self.zone!r}): a number has no time zone. Leave it out."
            )


@dataclass(frozen=True, slots=True)
class DatePart(Term):
    """A part of a date or time as a category: its hour, weekday, month or quarter.

    Parameters
    ----------
    column : str
        Dates or times.
    part : {"hour", "weekday", "month", "quarter"}
    zone : str, optional
        As of :class:`Cyclic`.
    """

    column: str
    part: str
    zone: str | None = None
    function = "date_part"

    def __post_init__(self) -> None:
        _check_column(self, self.column)
        if self.part not in DATE_PARTS:
            raise InputError(
                f"DatePart({self.column!r}, {self.part!r}): the part is none of {', '.join(map(repr, DATE_PARTS))}. "
                "Give one of these."
            )
        _check_zone(self, self.zone)


@dataclass(frozen=True, slots=True)
class Log(Term):
    """The natural logarithm of a number: one column, log(x + plus). A value with x + plus <= 0 is refused."""

    column: str
    plus: float = 0.0
    function = "log"

    def __post_init__(self) -> None:
        _check_column(self, self.column)
        plus: Any = self.plus
        if not isinstance(plus, int | float) or isinstance(plus, bool) or not abs(plus) < 1e70:
            raise InputError(
                f"Log({self.column!r}, plus={self.plus!r}): a number is needed. Give one, or none."
            )
        object.__setattr__(self, "plus", float(self.plus))


@dataclass(frozen=True, slots=True, init=False)
class Cross(Term):
    """An interaction: the products of the columns of its factors.

    Parameters
    ----------
    *factors : str or Term
        At least two; a text is a formula of one term, such as "device".
    """

    factors: tuple[Term, ...]

    def __init__(self, *factors: "str | Term") -> None:
        flat: list[Term] = []
        for factor in factors:
            term: Any = ByType(factor) if isinstance(factor, str) else factor
            if not isinstance(term, Term) or isinstance(term, EachColumn | Effect):
                raise InputError(
                    f"Cross: {str(factor)!r} is no factor of an interaction. Give names of columns, or terms such as "
                    "Spline."
                )
            flat.extend(term.factors if isinstance(term, Cross) else [term])
        if len(flat) < 2 or len(set(flat)) < len(flat):
            raise InputError(
                f"{':'.join(map(str, flat)) or 'Cross()'} is no interaction: two or more different terms are needed. "
                "Name each once."
            )
        object.__setattr__(self, "factors", tuple(flat))

    def __str__(self) -> str:
        """Return the term as a formula."""
        return ":".join(map(str, self.factors))

    def __repr__(self) -> str:
        """Return the call that makes the term."""
        return f"Cross({', '.join(map(repr, self.factors))})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read, once each."""
        return tuple(dict.fromkeys(column for factor in self.factors for column in factor.columns))


FUNCTIONS: dict[str, type[Term]] = {
    term.function: term for term in (Number, YesNo, Cat, Effect, Ordered, Spline, Cyclic, DatePart, Log)
}


@dataclass(frozen=True, slots=True)
class Terms:
    """A sum of terms over context columns, the formula of a feature map; a log turns it into columns of numbers.

    Parameters
    ----------
    terms : tuple of Term
    missing : {"refuse", "prior"}
        Behaviour for a missing value in a column that had none in the log: refuse the row, or take the columns of its
        terms as for an unknown value, with their means over the log; their covariance then enters the lower bound. A
        column that had missing values has an indicator of its own in any case.
    max_columns : int
        Number of columns above which a log is refused.

    Raises
    ------
    InputError
        There is no term, or a setting is none of its choices.

    Examples
    --------
    >>> print(Terms((ByType("device"), Spline("price", 4), Cross("device", "price"))))
    device + spline(price, 4) + device:price
    """

    terms: tuple[Term, ...]
    missing: Missing = "refuse"
    max_columns: int = MAX_COLUMNS

    def __post_init__(self) -> None:
        terms = tuple(dict.fromkeys(self.terms))
        object.__setattr__(self, "terms", terms)
        if not terms or not all(isinstance(term, Term) for term in terms):
            raise InputError(
                f"features={list(terms)!r} holds no terms. Give names of columns, or terms such as Spline('price', 4)."
            )
        if self.missing not in get_args(Missing):
            raise InputError(
                f"missing={self.missing!r} is not a choice for missing values. Set it to 'refuse' or 'prior'."
            )
        limit: Any = self.max_columns
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= 100_000:
            raise InputError(
                f"max_columns={limit!r} is not a whole number from 1 to 100,000. Give such a number."
            )

    def __str__(self) -> str:
        """Return the formula; :func:`parse` reads equal terms back."""
        settings = [
            f"{name}={literal(getattr(self, name))}"
            for name, default in (("missing", "refuse"), ("max_columns", MAX_COLUMNS))
            if getattr(self, name) != default
        ]
        formula = " + ".join(map(str, self.terms))
        return f"{formula}; {', '.join(settings)}" if settings else formula

    def __iter__(self) -> Iterator[Term]:
        return iter(self.terms)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are named, once each in the order of the terms."""
        return tuple(dict.fromkeys(column for term in self.terms for column in term.columns))
