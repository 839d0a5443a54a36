"""Arrow arrays become ids and numbers of numpy, without a guess."""

from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.text import counted
from hieropo.errors import LogError
from hieropo.rows.ids import Ids, refuse_rounded_in

EXACT = 2**53  # up to here a float64 holds every whole number


def is_uuid(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is the UUID extension."""
    return getattr(kind, "extension_name", "") == "arrow.uuid"


def decoded(column: pa.Array) -> pa.Array:
    """A dictionary-encoded array in full; any other array as it is."""
    if not pa.types.is_dictionary(column.type):
        return column
    return plain_texts(column.dictionary).take(column.indices)


def plain_texts(column: pa.Array) -> pa.Array:
    """Return texts and bytes as all kernels of Arrow take them, which there are too few of for views."""
    kind = _plain_type(column.type)
    return column if kind is None else column.cast(kind)


def without_views(found: pa.RecordBatch) -> pa.RecordBatch:
    """Replace columns of views, as polars makes them, by plain ones, which all kernels take."""
    for k, field in enumerate(found.schema):
        plain = _plain_type(field.type)
        if plain is not None:
            found = found.set_column(k, field.name, found.column(k).cast(plain))
    return found


def _plain_type(kind: pa.DataType) -> pa.DataType | None:
    """The type without views of a column of views, or of lists of them."""
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = _plain_type(kind.value_type)
        return None if inner is None else pa.large_list(inner)
    return None


def numbers(column: pa.Array, name: str, first_row: int) -> Array:
    """Values of a column of numbers, booleans or decimals as float64 (n,).

    Raises
    ------
    LogError
        A null, or a whole number that float64 cannot hold; names the column and the row.
    """
    column = _without_nulls(column, name, first_row)
    column = decoded(column)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8 and values.size:
        large = (values > EXACT) | (values < -EXACT if values.dtype.kind == "i" else False)
        if large.any():
            row = int(large.argmax())
            raise LogError(
                f"Column {name!r}, row {first_row + row}: {values[row]} is above 2**53 and would be "
                "rounded as a number. Is it an id rather than a quantity? Use it as a task or an action, "
                "or scale it."
            )
    exact: Array = values.astype(np.float64, copy=False)
    return exact


def times(column: pa.Array, name: str, first_row: int) -> NDArray[Any]:
    """Values of a column of dates, time stamps or numbers as datetime64 or float64 (n,); zones become UTC.

    Raises
    ------
    LogError
        As :func:`numbers`.
    """
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        return numbers(column, name, first_row)
    column = decoded(_without_nulls(column, name, first_row))
    instants: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return instants


def ids(column: pa.Array, name: str, first_row: int) -> Ids:
    """Values of a column as ids (n,), as they went in.

    Whole numbers come as int64 (uint64 where they are), dates and times without a zone as datetime64, all
    else as an object array: str, bool, float, bytes, Decimal, UUID, datetime with a zone. Decimals without a
    fraction come as whole numbers.

    Raises
    ------
    LogError
        A null, a NaN, or a float that :func:`ids.may_be_rounded`; names the column and the row.
    """
    column = _without_nulls(column, name, first_row)
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _from_dictionary(column, name, first_row)
    if pa.types.is_integer(kind):
        wide = np.uint64 if pa.types.is_uint64(kind) else np.int64
        whole: Ids = column.to_numpy(zero_copy_only=False).astype(wide, copy=False)
        return whole
    if pa.types.is_date(kind):
        column = column.cast(pa.date32())
    if pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None):
        instants: Ids = column.to_numpy(zero_copy_only=False)
        return instants
    if pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return _objects(column, name, first_row)
    return _from_distinct(column, name, first_row)


def _from_dictionary(column: pa.Array, name: str, first_row: int) -> Ids:
    entries = column.dictionary
    odd = entries.null_count or pa.types.is_floating(entries.type) or not is_utf8(entries)
    if odd or len(entries) > len(column):
        return ids(decoded(column), name, first_row)  # entries that no row uses are not looked at
    return _taken(ids(entries, name, first_row), column)


def _objects(column: pa.Array, name: str, first_row: int) -> Ids:
    values = column.to_numpy(zero_copy_only=False)
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(0, dtype=bool)
    if missing.any():
        raise LogError(
            f"Column {name!r}, row {first_row + int(missing.argmax())}: the id is NaN. A row without it "
            "cannot be used: was a join incomplete? Drop such rows, or give them an id of their own."
        )
    if values.dtype.kind == "f":
        refuse_rounded_in(values, f"Column {name!r}", first_row)
    objects: Ids = values.astype(object)
    return objects


def _from_distinct(column: pa.Array, name: str, first_row: int) -> Ids:
    """One Python object for each distinct value, then a look-up: strings cost little this way."""
    uuid = is_uuid(column.type)
    if uuid:
        column = column.storage
    elif pa.types.is_timestamp(column.type):
        column = _whole_microseconds(column, name)
    encoded = column.dictionary_encode()
    try:
        found: list[Any] = encoded.dictionary.to_pylist()
    except UnicodeDecodeError as error:
        raise _not_utf8(column, name, first_row) from error
    if uuid:
        found = [UUID(bytes=value) for value in found]
    elif pa.types.is_decimal(column.type) and column.type.scale <= 0:
        found = [int(value) for value in found]
    values = np.empty(len(found), dtype=object)
    values[:] = found
    return _taken(values, encoded)


def is_utf8(texts: pa.Array) -> bool:
    """Return whether texts are of UTF-8, which Arrow takes on trust."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _not_utf8(column: pa.Array, name: str, first_row: int) -> LogError:
    row = next(i for i in range(len(column)) if not is_utf8(column.slice(i, 1)))
    return LogError(
        f"Column {name!r}, row {first_row + row}: the bytes of this text are not UTF-8. Was it written in another "
        "encoding, or is the file damaged? Write it anew as UTF-8, or make the column binary where bytes are meant."
    )


def _taken(values: Ids, encoded: pa.Array) -> Ids:
    rows: Ids = values[encoded.indices.to_numpy(zero_copy_only=False)]
    return rows


def _whole_microseconds(column: pa.Array, name: str) -> pa.Array:
    try:
        return column.cast(pa.timestamp("us", tz=column.type.tz))
    except pa.ArrowInvalid as error:
        raise LogError(
            f"Column {name!r} of type {column.type} holds times finer than a microsecond, which cannot be "
            "ids with a time zone. Round them, or cast them to text."
        ) from error


def _without_nulls(column: pa.Array, name: str, first_row: int) -> pa.Array:
    if pa.types.is_dictionary(column.type) and column.dictionary.null_count:
        column = decoded(column)
    if column.null_count:
        row = pc.index(column.is_null(), value=True).as_py()
        rest = column.null_count - 1
        more = f" (and {rest} more in this batch of {counted(len(column), 'row')})" if rest else ""
        raise LogError(
            f"Column {name!r}, row {first_row + row}: null{more}. Nothing is filled in or dropped "
            "silently: drop such rows, or fill the value in. pandas hands NaN and None over as null."
        )
    return column


def lists(column: pa.Array, name: str, first_row: int) -> tuple[Ids, NDArray[np.int64]]:
    """Entries of a column of lists as ids (total,), and where each row's begin, (n + 1,).

    Raises
    ------
    LogError
        A null list, an empty one, a null in one, a float that may be a rounded id; names the column and the row.
    """
    column = _without_nulls(column, name, first_row)
    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    if (lengths == 0).any():
        row = first_row + int((lengths == 0).argmax())
        raise LogError(
            f"Column {name!r}, row {row}: the list is empty, so there is nothing to choose from. Drop "
            "such rows, or list the actions that can be taken."
        )
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    entries = column.flatten()
    if entries.null_count:
        entry = pc.index(entries.is_null(), value=True).as_py()
        row = first_row + int(np.searchsorted(starts, entry, side="right")) - 1
        raise LogError(f"Column {name!r}, row {row}: the list holds a null. Leave out what is not an action.")
    if pa.types.is_floating(entries.type):
        rows = first_row + np.repeat(np.arange(lengths.size), lengths)
        refuse_rounded_in(entries.to_numpy(zero_copy_only=False), f"Column {name!r}", rows)
    return ids(entries, name, first_row), starts
