"""Types of PostgreSQL that Arrow does not have: exact numbers, enumerations and others."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from hieropo.errors import LogError
from hieropo.sources.arrays import EXACT
from hieropo.sources.filters import sql_name

_LONG = r"^-?[0-9]{16,}(\.0*)?$"


@dataclass(frozen=True)
class SqlColumn:
    """A column of a query: as it is asked for, and as it is read.

    Parameters
    ----------
    field : pa.Field
        As the log has it.
    selected : str
        In the query.
    numeric : bool
        Whether it comes as the text of exact numbers.
    """

    field: pa.Field
    selected: str
    numeric: bool = False

    def read(self, values: pa.Array, first_row: int) -> pa.Array:
        """Values as the log has them.

        Raises
        ------
        LogError
            A whole number has more digits than a float keeps; names column and row.
        """
        if isinstance(values, pa.ExtensionArray) and values.type != self.field.type:
            values = values.storage
        if not self.numeric:
            return values
        try:
            numbers = values.cast(self.field.type)
        except pa.ArrowInvalid as error:
            raise LogError(
                f"Column {self.field.name!r}, in the rows from {first_row} on: {str(error).strip()}. Nothing can be "
                "learned from numeric 'NaN': leave such rows out."
            ) from error
        if pa.types.is_floating(numbers.type):
            self._refuse_rounded(values, numbers, first_row)
        return numbers

    def _refuse_rounded(self, texts: pa.Array, numbers: pa.Array, first_row: int) -> None:
        large = pc.greater_equal(pc.abs(numbers), float(EXACT))
        if pc.any(large).as_py():
            large = pc.and_(large, pc.match_substring_regex(texts, _LONG))
        if pc.any(large).as_py():
            row = pc.index(large, value=True).as_py()
            raise LogError(
                f"Column {self.field.name!r}, row {first_row + row}: {texts[row].as_py()}, of type numeric, is beyond "
                f"2**53 and may be rounded. If it is an id, select {self.field.name}::text or ::bigint; if it is a "
                "number, ::double precision."
            )


def postgres_column(found: pa.Field) -> SqlColumn:
    """Say how a column is read, by the field that its driver gives it.

    numeric(p, s) becomes a decimal, numeric without limits a float, and types without an Arrow type (enumerations,
    addresses) text. Fields of other databases stay as they are.
    """
    name, metadata = sql_name(found.name), found.metadata or {}
    kind = metadata.get(b"ADBC:postgresql:typname", b"").decode()
    if kind == "numeric":
        number = _decimal(int(metadata.get(b"POSTGRESQL:typmod", b"-1")))
        return SqlColumn(pa.field(found.name, number), name, numeric=True)
    if kind:
        return SqlColumn(pa.field(found.name, pa.string()), f"{name}::text as {name}")
    if getattr(found.type, "extension_name", "") == "arrow.json":
        return SqlColumn(pa.field(found.name, found.type.storage_type), name)
    return SqlColumn(pa.field(found.name, found.type), name)


def _decimal(modifier: int) -> pa.DataType:
    """Type of numeric(p, s), whose modifier is 4 + 65536 p + s."""
    precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
    if modifier < 4 or precision > 38 or scale > precision:
        return pa.float64()
    return pa.decimal128(precision, scale)
