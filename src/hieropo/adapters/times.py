"""Times of two streams on one axis: instants, local times or plain numbers, never mixed."""

import datetime as dt
import math
import re
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from hieropo.errors import InputError, LogError, SchemaError
from hieropo.sources.arrays import decoded
from hieropo.sources.schema import is_text

Kind = Literal["instant", "local", "number"]

_SPAN = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]+)\s*", re.IGNORECASE)
_SECONDS = {"ms": 1e-3, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_TICKS = {"us": 10**6, "ns": 10**9}


@dataclass(frozen=True, slots=True)
class Clock:
    """How times are read as numbers of ticks.

    Attributes
    ----------
    kind : "instant", "local" or "number"
        Times with a zone, times without one, numbers of the caller's own unit.
    unit : "us" or "ns"
        A tick, unless times are numbers.
    zone : str, optional
        In which times without a zone are to be understood.
    """

    kind: Kind
    unit: str
    zone: str | None

    def ticks(self, column: pa.Array, name: str, first_row: int) -> pa.Array:
        """Times of a column as int64 ticks since 1970, or as float64 where they are numbers.

        Raises
        ------
        LogError
            A text that is no time, a time that its zone has twice or never, a number that is not finite.
        """
        column = decoded(column)
        if self.kind == "number":
            return self._numbers(column, name, first_row)
        if is_text(column.type):
            return self._from_text(column, name, first_row)
        try:
            if not kinds.is_timestamp(column.type):
                column = column.cast(pa.timestamp("s"))
            if column.type.tz is None and self.zone is not None:
                column = pc.assume_timezone(column, self.zone)
            return column.cast(pa.timestamp(self.unit, column.type.tz)).cast(pa.int64())
        except pa.ArrowException as error:
            raise LogError(
                f"Column {name!r}, rows {first_row} to {first_row + len(column) - 1}: a time cannot be placed "
                f"({str(error).strip().splitlines()[0]}). Where clocks go back an hour comes twice: log times in UTC."
            ) from error

    def _numbers(self, column: pa.Array, name: str, first_row: int) -> pa.Array:
        values = column.cast(pa.float64(), safe=False)
        row = pc.index(pc.is_finite(values), value=False).as_py()
        if row >= 0:
            raise LogError(
                f"Column {name!r}, row {first_row + row}: {values[row]} is no time. Drop such rows, or mend it."
            )
        return values

    def _from_text(self, column: pa.Array, name: str, first_row: int) -> pa.Array:
        try:
            return column.cast(pa.timestamp(self.unit, "UTC")).cast(pa.int64())
        except pa.ArrowException:
            pass
        texts = column.to_pylist()
        return pa.array(
            [self._tick(text, f"Column {name!r}, row {first_row + k}") for k, text in enumerate(texts)]
        )

    def _tick(self, text: str, place: str) -> int:
        try:
            found = dt.datetime.fromisoformat(text)
        except ValueError:
            raise LogError(f"{place}: {text!r} is no time in the form 2026-01-31T12:00:00Z.") from None
        return int(self.tick(found, place))

    def tick(self, value: Any, place: str) -> int | float:
        """Ticks of one time: a datetime, a date, a text in ISO form, or a number.

        Raises
        ------
        InputError
            It is of another kind than the times of the streams.
        """
        if self.kind == "number":
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InputError(
                    f"{place}: {value!r} is no finite number, but the times of the streams are numbers."
                )
            return float(value)
        if isinstance(value, str):
            return self._tick(value, place)
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            value = dt.datetime(value.year, value.month, value.day)  # a zone is asked for below
        if not isinstance(value, dt.datetime):
            raise InputError(
                f"{place}: {value!r} is no time. Give a datetime, or a text such as 2026-01-31T12:00:00Z."
            )
        column = pa.array([value])
        if (value.tzinfo is None) and self.kind == "instant" and self.zone is None:
            raise LogError(
                f"{place}: {value.isoformat()} has no time zone, but other times have one. Add it, or say in which "
                "zone such times are, zone='UTC'."
            )
        if value.tzinfo is not None and self.kind == "local":
            raise LogError(
                f"{place}: {value.isoformat()} has a time zone, but the times of the streams have none. Say in which "
                "zone those are, zone='UTC'."
            )
        found: int = self.ticks(column, place, 0)[0].as_py()
        return found

    def span(self, window: Any) -> int | float:
        """Ticks of a length of time: a timedelta, a text such as ``"24h"``, or a number where times are numbers.

        Raises
        ------
        InputError
            It is none, or not above 0.
        """
        number = not isinstance(window, bool) and isinstance(window, int | float)
        if self.kind == "number" and number and math.isfinite(window) and window > 0:
            return float(window)
        seconds = None if number or self.kind == "number" else _seconds(window)
        if seconds is None or seconds <= 0:
            form = (
                "a number above 0, in the unit of the time columns, which are numbers"
                if self.kind == "number"
                else f"a time such as '30min', '24h' or '7d' (units {', '.join(_SECONDS)}), or a timedelta above 0"
            )
            raise InputError(f"The window {window!r} is not {form}.")
        return round(seconds * _TICKS[self.unit])

    def shown(self, tick: float) -> str:
        """A time for a person to read."""
        if self.kind == "number":
            return f"{tick:.12g}"
        zone = "UTC" if self.kind == "instant" else None
        stamp = pa.scalar(int(tick), pa.timestamp(self.unit)).cast(pa.timestamp("s"), safe=False)
        text: str = stamp.as_py().isoformat(sep=" ")
        return f"{text} {zone}" if zone else text

    def shown_span(self, ticks: float) -> str:
        """A length of time for a person to read."""
        if self.kind == "number":
            return f"{ticks:.6g}"
        seconds = ticks / _TICKS[self.unit]
        for unit in ("d", "h", "min", "s"):
            if seconds >= _SECONDS[unit]:
                return f"{seconds / _SECONDS[unit]:.3g} {unit}"
        return f"{seconds * 1e3:.3g} ms"


def _seconds(window: Any) -> float | None:
    if isinstance(window, dt.timedelta):
        return window.total_seconds()
    match = _SPAN.fullmatch(window) if isinstance(window, str) else None
    scale = None if match is None else _SECONDS.get(match[2].lower())
    return None if match is None or scale is None else float(match[1]) * scale


def clock(columns: list[tuple[str, pa.DataType]], zone: str | None) -> Clock:
    """Agree on one clock for the time columns (description, type) of two streams: times, dates, text or numbers.

    Raises
    ------
    SchemaError
        One stream has zones and the other has none, or one has times and the other numbers.
    InputError
        ``zone`` is no time zone, or there is nothing for it to do.
    """
    found = [_kind(kind, zone) for _, kind in columns]
    if len(set(found)) > 1:
        said = " and ".join(f"{name} {_SAID[kind]}" for (name, _), kind in zip(columns, found, strict=True))
        raise SchemaError(
            f"{said}; they cannot be compared. Say in which zone times without one are, zone='UTC' (or --zone), or "
            "bring both to one kind."
        )
    if zone is not None:
        _check_zone(zone, found[0])
    fine = any(kinds.is_timestamp(kind) and kind.unit == "ns" for _, kind in columns)
    return Clock(found[0], "ns" if fine else "us", zone)


_SAID = {"instant": "has a time zone", "local": "has no time zone", "number": "is a number"}


def _kind(kind: pa.DataType, zone: str | None) -> Kind:
    if is_text(kind):
        return "instant"
    if kinds.is_timestamp(kind) or kinds.is_date(kind):
        return "local" if getattr(kind, "tz", None) is None and zone is None else "instant"
    return "number"


def _check_zone(zone: str, kind: Kind) -> None:
    if kind == "number":
        raise InputError(f"The zone {zone!r} was given, but the times are numbers.")
    try:
        pc.assume_timezone(pa.array([0], pa.timestamp("s")), zone)
    except (pa.ArrowException, TypeError):
        raise InputError(
            f"{zone!r} is no time zone; a name such as 'UTC' or 'Europe/Amsterdam' is needed."
        ) from None
