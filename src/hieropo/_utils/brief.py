"""A repr of one short line for values that hold arrays and many fields."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from hieropo._utils.text import counted

_LINE = 240  # letters of a repr without its name
_LONGEST = 100  # letters of one field
_SHOWN = 4  # entries of a tuple
_NUMBERS = 6  # entries of an array


def brief(value: Any) -> str:
    """Return the type and the fields of a dataclass or named tuple in one line; the ``__repr__`` of such classes.

    Fields that equal their default are left out, large arrays are shown by their shape, and long texts and tuples by
    their beginning.
    """
    text = ""
    for name, entry in _fields(value):
        part = f"{', ' if text else ''}{name}={_shown(entry)}"
        if len(text) + len(part) > _LINE:
            text += ", ..."
            break
        text += part
    return f"{type(value).__name__}({text})"


def _fields(value: Any) -> list[tuple[str, Any]]:
    if not is_dataclass(value):
        return list(value._asdict().items())
    named = [
        (field, getattr(value, field.name)) for field in fields(value) if field.repr and field.name[0] != "_"
    ]
    return [(field.name, entry) for field, entry in named if not _is_default(field, entry)]


def _is_default(field: Any, entry: Any) -> bool:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    if default is MISSING or type(entry) is not type(default) or hasattr(entry, "dtype"):
        return False
    return bool(entry == default)


def _shown(entry: Any) -> str:
    text = _text(entry)
    return text if len(text) <= _LONGEST else _shortened(entry, text)


def _text(entry: Any) -> str:
    if hasattr(entry, "dtype") and hasattr(entry, "shape"):
        return _array(entry) if entry.shape else _text(entry.item())
    if isinstance(entry, float):
        return f"{entry:.6g}"
    if isinstance(entry, tuple | list) and not hasattr(entry, "_fields"):
        return _sequence(entry)
    if isinstance(entry, Mapping):
        return repr(dict(entry))
    return " ".join(repr(entry).split())


def _array(array: Any) -> str:
    if array.ndim != 1 or array.size > _NUMBERS:
        return f"<{' x '.join(map(str, array.shape))} {array.dtype}>"
    return f"[{', '.join(_text(entry) for entry in array.tolist())}]"


def _sequence(entries: tuple[Any, ...] | list[Any]) -> str:
    texts = [_text(entry) for entry in entries[:_SHOWN]]
    more = [f"... {len(entries) - _SHOWN:,} more"] if len(entries) > _SHOWN else []
    inner = ", ".join([*texts, *more])
    if isinstance(entries, list):
        return f"[{inner}]"
    return f"({inner},)" if len(entries) == 1 else f"({inner})"


def _shortened(entry: Any, text: str) -> str:
    if isinstance(entry, str):
        return f"{text[: _LONGEST - 3]}...{text[-1]}"
    if isinstance(entry, Mapping):
        return f"<{counted(len(entry), 'key')}>"
    if isinstance(entry, tuple | list) and not hasattr(entry, "_fields"):
        kinds = {type(part).__name__ for part in entry}
        return f"<{len(entry):,} {kinds.pop() if len(kinds) == 1 else 'values'}>"
    return f"{type(entry).__name__}(...)"
