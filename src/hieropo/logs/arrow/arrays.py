"""Convert Arrow arrays to numpy: numbers, ids, times and lists of ids; a value that would change is an error."""

from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.text import counted
from hieropo.errors import LogError
from hieropo.rows.batches import TaskColumns
from hieropo.rows.ids import ONE_TASK, Ids, object_array, plain, refuse_rounded_in
from hieropo.rows.keys import Keys

EXACT = 2**53  # up to here a float64 holds every whole number
_IN_PLACE = {pa.from_numpy_dtype(f"{kind}{size}"): f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)}
_IN_PLACE |= {pa.float32(): "f4", pa.float64(): "f8", pa.bool_(): "bits"}


def is_uuid(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is the UUID extension."""
    return getattr(kind, "extension_name", "") == "arrow.uuid"


def decoded(column: pa.Array) -> pa.Array:
    """Return a dictionary-encoded array decoded; any other array as it is."""
    if not pa.types.is_dictionary(column.type):
        return column
    return plain_texts(column.dictionary).take(column.indices)


def plain_texts(column: pa.Array) -> pa.Array:
    """Return texts and bytes without views, for which many functions of Arrow are missing."""
    kind = _plain_type(column.type)
    return column if kind is None else column.cast(kind)


def without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace string and binary views, which polars makes, by plain types, which all functions of Arrow take."""
    for k, field in enumerate(batch.schema):
        plain_type = _plain_type(field.type)
        if plain_type is not None:
            batch = batch.set_column(k, field.name, batch.column(k).cast(plain_type))
    return batch


def _plain_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type without views of a column of views, or of lists of them; None for other types."""
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = _plain_type(kind.value_type)
        return None if inner is None else pa.large_list(inner)
    return None


def as_numpy(column: pa.Array) -> NDArray[Any]:
    """Return the values of a column as an array, in place where they are numbers without nulls.

    Arrow's own ``to_numpy`` loads pandas, if it is installed, and that takes longer than a small log.
    """
    dtype, start, stop = _IN_PLACE.get(column.type), column.offset, column.offset + len(column)
    if dtype is None or column.null_count or start == stop:
        values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return values
    data = column.buffers()[1]
    if dtype == "bits":
        bits = np.frombuffer(data, np.uint8)[start // 8 : (stop + 7) // 8]
        return np.unpackbits(bits, count=stop - start // 8 * 8, bitorder="little")[start % 8 :].view(np.bool_)
    return np.frombuffer(data, dtype, stop)[start:]


def numbers(column: pa.Array, name: str, first_row: int, advice: str = "") -> Array:
    """Return the values of a column of numbers, booleans or decimals as float64 (n,).

    ``advice`` is a further sentence for the message about a null.

    Raises
    ------
    LogError
        A null, or a whole number that float64 cannot hold; names the column and the row.
    """
    column = _without_nulls(column, name, first_row, advice)
    column = decoded(column)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    values = as_numpy(column)
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8 and values.size:
        too_large = (values > EXACT) | (values < -EXACT if values.dtype.kind == "i" else False)
        if too_large.any():
            row = int(too_large.argmax())
            raise LogError.in_row(
                first_row + row,
                f"Column {name!r}, row {first_row + row}: {values[row]} is above 2**53 and would be rounded as a "
                "float. Is it an id rather than a quantity? Use it as a task or an action, or rescale it.",
            )
    floats: Array = values.astype(np.float64, copy=False)
    return floats


def times(column: pa.Array, name: str, first_row: int) -> NDArray[Any]:
    """Return the values of a column of dates, time stamps or numbers as datetime64 or float64 (n,), zones in UTC.

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
    """Return the values of a column as ids (n,), unchanged.

    Whole numbers become int64 (uint64 stays uint64), dates and times without a zone datetime64, all other types an
    object array: str, bool, float, bytes, Decimal, UUID, datetime with a zone. Decimals without a fraction become whole
    numbers.

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
        whole: Ids = as_numpy(column).astype(wide, copy=False)
        return whole
    if pa.types.is_date(kind):
        column = column.cast(pa.date32())
    if pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None):
        instants: Ids = column.to_numpy(zero_copy_only=False)
        return instants
    if pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return _as_objects(column, name, first_row)
    return _from_distinct(column, name, first_row)


def task_ids(batch: pa.RecordBatch, task: TaskColumns, first_row: int) -> Ids:
    """Return the task ids (n,) of a batch: of one column as :func:`ids`, of several as tuples, of none ``ONE_TASK``."""
    if isinstance(task, str):
        return ids(batch.column(task), task, first_row)
    entries, rows = task_entries(batch, task, first_row)
    return entries[rows]


def task_entries(
    batch: pa.RecordBatch, task: tuple[str, ...] | None, first_row: int
) -> tuple[Ids, NDArray[np.int32]]:
    """Return the distinct tasks of several columns, as tuples, and the position (n,) of each row's task in them.

    Raises
    ------
    LogError
        As :func:`ids`.
    """
    rows = np.zeros(batch.num_rows, dtype=np.int64)
    if task is None:
        return object_array([ONE_TASK]), rows.astype(np.int32)
    columns = []
    for name in task:
        keys, codes = Keys.factorize(ids(batch.column(name), name, first_row))
        columns.append((keys.values, codes))
        _, rows = np.unique(rows * max(len(keys), 1) + codes, return_inverse=True)
    _, first, rows = np.unique(rows, return_index=True, return_inverse=True)
    parts = [[plain(value) for value in values[codes[first]]] for values, codes in columns]
    return object_array(list(zip(*parts, strict=True))), rows.astype(np.int32)


def _from_dictionary(column: pa.Array, name: str, first_row: int) -> Ids:
    entries = column.dictionary
    needs_decoding = entries.null_count or pa.types.is_floating(entries.type) or not is_utf8(entries)
    if needs_decoding or len(entries) > len(column):
        return ids(decoded(column), name, first_row)  # checks only the entries that a row uses
    return _look_up(ids(entries, name, first_row), column)


def _as_objects(column: pa.Array, name: str, first_row: int) -> Ids:
    values = as_numpy(column)
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(0, dtype=bool)
    if missing.any():
        row = first_row + int(missing.argmax())
        raise LogError.in_row(
            row,
            f"Column {name!r}, row {row}: the id is NaN, and a row without an id cannot be used. Was a join "
            "incomplete? Drop such rows, or give them an id of their own.",
        )
    if values.dtype.kind == "f":
        refuse_rounded_in(values, f"Column {name!r}", first_row)
    objects: Ids = values.astype(object)
    return objects


def _from_distinct(column: pa.Array, name: str, first_row: int) -> Ids:
    """Return ids as objects, one Python object for each distinct value, which saves memory and time for strings."""
    uuid = is_uuid(column.type)
    if uuid:
        column = column.storage
    elif pa.types.is_timestamp(column.type):
        column = _whole_microseconds(column, name)
    encoded = column.dictionary_encode()
    try:
        entries: list[Any] = encoded.dictionary.to_pylist()
    except UnicodeDecodeError as error:
        raise _not_utf8(column, name, first_row) from error
    if uuid:
        entries = [UUID(bytes=value) for value in entries]
    elif pa.types.is_decimal(column.type) and column.type.scale <= 0:
        entries = [int(value) for value in entries]
    return _look_up(object_array(entries), encoded)


def is_utf8(texts: pa.Array) -> bool:
    """Return whether all texts are valid UTF-8, which Arrow does not check by itself."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _not_utf8(column: pa.Array, name: str, first_row: int) -> LogError:
    row = next(i for i in range(len(column)) if not is_utf8(column.slice(i, 1)))
    return LogError.in_row(
        first_row + row,
        f"Column {name!r}, row {first_row + row}: the bytes of this text are not UTF-8. Was it written in another "
        "encoding, or is the file damaged? Write it again as UTF-8, or make the column binary where bytes are meant.",
        lenient=False,
    )


def _look_up(values: Ids, encoded: pa.Array) -> Ids:
    rows: Ids = values[as_numpy(encoded.indices)]
    return rows


def _whole_microseconds(column: pa.Array, name: str) -> pa.Array:
    try:
        return column.cast(pa.timestamp("us", tz=column.type.tz))
    except pa.ArrowInvalid as error:
        raise LogError(
            f"Column {name!r} of type {column.type} holds times finer than a microsecond, which cannot be "
            "ids with a time zone. Round them, or cast them to text."
        ) from error


def _without_nulls(column: pa.Array, name: str, first_row: int, advice: str = "") -> pa.Array:
    if pa.types.is_dictionary(column.type) and column.dictionary.null_count:
        column = decoded(column)
    if column.null_count:
        row = pc.index(column.is_null(), value=True).as_py()
        others = column.null_count - 1
        more = f" (and {others} more in this batch of {counted(len(column), 'row')})" if others else ""
        raise LogError.in_row(
            first_row + row,
            f"Column {name!r}, row {first_row + row}: null{more}. Nothing is filled in or dropped silently: drop such "
            f"rows, or fill the value in. NaN and None of pandas count as null.{advice}",
        )
    return column


def lists(column: pa.Array, name: str, first_row: int) -> tuple[Ids, NDArray[np.int64]]:
    """Return the entries of a column of lists as ids (total,), and the offsets of the rows in them, (n + 1,).

    Raises
    ------
    LogError
        A null list, an empty one, a null in one, a float that may be a rounded id; names the column and the row.
    """
    column = _without_nulls(column, name, first_row)
    lengths = as_numpy(pc.list_value_length(column))
    if (lengths == 0).any():
        row = first_row + int((lengths == 0).argmax())
        raise LogError.in_row(
            row,
            f"Column {name!r}, row {row}: the list is empty, so there is no action to choose from. Drop such rows, or "
            "list the actions that can be taken.",
        )
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    entries = column.flatten()
    if entries.null_count:
        entry = pc.index(entries.is_null(), value=True).as_py()
        row = first_row + int(np.searchsorted(starts, entry, side="right")) - 1
        raise LogError.in_row(
            row,
            f"Column {name!r}, row {row}: the list holds a null, which is no action. Remove it from the list.",
        )
    if pa.types.is_floating(entries.type):
        rows = first_row + np.repeat(np.arange(lengths.size), lengths)
        refuse_rounded_in(as_numpy(entries), f"Column {name!r}", rows)
    return ids(entries, name, first_row), starts
