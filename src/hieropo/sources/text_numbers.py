"""Text in columns that are named as numbers: what can be read as one, and which values cannot."""

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hieropo.core.arrays import Mask
from hieropo.core.logs import Roles
from hieropo.sources.arrays import EXACT, decoded
from hieropo.sources.schema import NUMBER_ROLES, holds_text

LONG = "^[+-]?[0-9]{16,}$"
_NUMBER = r"^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity|nan)$"  # what a cast takes
_MISSING = ["", "NA", "N/A", "n/a", "NULL", "null", "None", "#N/A"]


class TextNumbers(NamedTuple):
    """Texts (n,) as numbers.

    Attributes
    ----------
    values : float64 array
        Null where there is no number.
    missing, wrong, rounded : (n,) bool
        Nothing is there; what is there is not a number; a whole number that a float64 would round.
    """

    values: pa.Array
    missing: Mask
    wrong: Mask
    rounded: Mask


def cleaned(texts: pa.Array) -> pa.Array:
    """Without blanks around values, and null where a word says that a value is missing."""
    trimmed = pc.utf8_trim_whitespace(texts)
    words = pc.is_in(trimmed, pa.array(_MISSING, trimmed.type))
    return pc.if_else(words, pa.scalar(None, trimmed.type), trimmed)


def text_numbers(texts: pa.Array) -> TextNumbers:
    """Read texts as numbers, as CSV files are: a point before decimals, and nothing between thousands."""
    texts = cleaned(decoded(texts).cast(pa.large_string()))
    found = pc.match_substring_regex(texts, _NUMBER, ignore_case=True)
    values = pc.if_else(found, texts, pa.scalar(None, texts.type)).cast(pa.float64())
    exact = pc.match_substring_regex(texts, f"^[+-]?0*{EXACT}$")
    large = pc.and_(pc.match_substring_regex(texts, LONG), pc.greater_equal(pc.abs(values), float(EXACT)))
    large = pc.and_not(large, exact)
    return TextNumbers(values, _mask(texts.is_null()), _mask(pc.invert(found)), _mask(large))


def text_columns(found: pa.RecordBatch, roles: Roles) -> list[str]:
    """Columns of text that are named as numbers."""
    return [
        column
        for role, column in roles.items()
        if role in NUMBER_ROLES and holds_text(found.schema.field(column).type)
    ]


def with_numbers(found: pa.RecordBatch, columns: Iterable[str]) -> pa.RecordBatch:
    """Replace columns of text by their numbers, null where there is none."""
    for column in columns:
        values = text_numbers(found.column(column)).values
        found = found.set_column(found.schema.get_field_index(column), column, values)
    return found


def _mask(found: pa.Array) -> Mask:
    mask: Mask = found.fill_null(False).to_numpy(zero_copy_only=False)  # noqa: FBT003 - Arrow's own argument
    return mask
