"""A table of a TOML file as a frozen dataclass: each key known, each value of its type."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hieropo.errors import InputError

T = TypeVar("T")

_WORDS = {int: "a whole number", float: "a number", str: "text", tuple: "a list", dict: "a table"}


def read(cls: type[T], table: Any, place: str) -> T:
    """Return the dataclass ``cls`` with the values of ``table``, which stands at ``place``.

    Raises
    ------
    InputError
        A key is missing or unknown, or a value is of another type; names key and place.
    """
    if not isinstance(table, Mapping):
        raise InputError(f"{place} is {table!r}; a table is needed.")
    kinds = get_type_hints(cls)
    known = {each.name: each for each in fields(cls)}  # type: ignore[arg-type]  # a dataclass
    strange = [key for key in table if key not in known]
    if strange:
        raise InputError(
            f"{place} has the unknown setting {strange[0]!r}; it may have {', '.join(sorted(known))}. Is it misspelt?"
        )
    lost = [name for name, each in known.items() if name not in table and not _optional(each)]
    if lost:
        raise InputError(
            f"{place} lacks the setting {lost[0]!r}. Take it from the file that comes with hieropo."
        )
    return cls(**{key: _value(kinds[key], value, f"{place}.{key}") for key, value in table.items()})


def changed(value: T, table: Mapping[str, Any], place: str) -> T:
    """Return ``value``, a dataclass of optional settings, with those of ``table`` instead of its own.

    Raises
    ------
    InputError
        As :func:`read`.
    """
    found = read(type(value), table, place)
    return replace(value, **{key: getattr(found, key) for key in table})  # type: ignore[type-var]  # a dataclass


def _optional(each: Any) -> bool:
    return each.default is not MISSING or each.default_factory is not MISSING


def _value(kind: Any, value: Any, place: str) -> Any:
    """``value`` as ``kind``, which is a type that settings use."""
    if is_dataclass(kind):
        return read(kind, value, place)  # type: ignore[arg-type]  # a class, not an instance
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        if value not in inner:
            raise InputError(f"{place} is {value!r}; one of {', '.join(map(repr, inner))} is needed.")
        return value
    if origin in (Union, UnionType):
        return _one_of(inner, value, place)
    wanted = origin or kind
    accepted = {float: (int, float), tuple: (list, tuple), dict: (Mapping,)}.get(wanted, (wanted,))
    if not isinstance(value, accepted) or isinstance(value, bool):
        raise InputError(f"{place} is {value!r}; {_WORDS[wanted]} is needed.")
    if wanted is tuple:
        return tuple(_value(inner[0], each, f"{place}[{k}]") for k, each in enumerate(value))
    if wanted is dict:
        return {key: _value(inner[1], each, f"{place}.{key}") for key, each in value.items()}
    return wanted(value)


def _one_of(kinds: tuple[Any, ...], value: Any, place: str) -> Any:
    for kind in kinds:
        try:
            return _value(kind, value, place)
        except InputError as error:
            last = error
    raise last
