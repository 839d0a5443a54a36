"""Run the text of sums in a database, for a query whose columns it describes."""

import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from hieropo.errors import InputError
from hieropo.features.maps import FeatureMap
from hieropo.logs.arrow.filters import bound_filter
from hieropo.logs.arrow.schema import check_columns, is_number
from hieropo.logs.encoding import kind_of
from hieropo.logs.engines.sql import POSTGRES, open_query, sql
from hieropo.passes.feature_choice import FeatureChoice
from hieropo.passes.warehouse.dialects import DIALECTS
from hieropo.passes.warehouse.expressions import EXACT_KIND
from hieropo.passes.warehouse.sums import summed_in_table
from hieropo.passes.warehouse.text import sums_text
from hieropo.passes.worker import PassResult
from hieropo.rows.batches import Roles

_WORDS = {
    "text": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "date": "time",
    "time": "time",
}


def summed_in_database(
    query: str,
    connection: Any,
    features: FeatureChoice,
    roles: Roles,
    *,
    dialect: str | None = None,
    row_filter: str | None = None,
) -> tuple[FeatureMap, Roles, PassResult]:
    """Return the feature map, the roles and the sums of a query, which the database computes.

    Raises
    ------
    InputError
        The database or its dialect is not known, the query fails, or features or roles have no SQL text.
    SchemaError
        A column is missing, or of a type that cannot play its role.
    LogError
        Rows of the log cannot be used; the message has the number of each column.
    """
    source = open_query(sql(query, connection))
    listed = [("term" if role == "context" else role, column) for role, column in roles.items()]
    check_columns(source.schema, listed, source.name)
    if row_filter is not None:
        condition = bound_filter(row_filter, source.schema, source.name).sql
        query = f"select * from (\n{query.strip().rstrip(';')}\n) as log where {condition}"
    kinds = {column: _kind(source.schema.field(column).type) for column in roles.columns}
    text = sums_text(query, dialect or _dialect(connection), features, roles, kinds)
    return summed_in_table(open_query(sql(text, connection)))


def _kind(arrow_type: pa.DataType) -> str:
    """Return the kind of a column of an Arrow type."""
    if pa.types.is_integer(arrow_type) and arrow_type.bit_width == 64:
        return "integer"
    if pa.types.is_decimal(arrow_type):
        return f"{EXACT_KIND}{arrow_type.precision}, {arrow_type.scale})"
    if is_number(arrow_type) and not pa.types.is_boolean(arrow_type):
        return "number"
    return kind_of(arrow_type) or "text"


def stated_kinds(types: Mapping[str, str]) -> dict[str, str]:
    """Return the kinds of columns whose types a user states.

    Raises
    ------
    InputError
        A type is not known.
    """
    for column, word in types.items():
        if word not in _WORDS:
            raise InputError(
                f"The type {word!r} of column {column!r} is not known, so that no text can be written for it. Write "
                f"one of {', '.join(_WORDS)}."
            )
    return {column: _WORDS[word] for column, word in types.items()}


def _dialect(connection: Any) -> str:
    """Return the name of the dialect of a database."""
    if isinstance(connection, str | os.PathLike):
        return "postgres" if os.fspath(connection).lower().startswith(POSTGRES) else "duckdb"
    if type(connection).__module__.split(".")[0].lstrip("_") == "duckdb":
        return "duckdb"
    try:
        vendor = str(connection.adbc_get_info()["vendor_name"])
    except (AttributeError, KeyError, TypeError):
        vendor = type(connection).__module__
    name = {"postgresql": "postgres", "apache spark": "spark"}.get(vendor.lower(), vendor.lower())
    if name not in DIALECTS:
        raise InputError(
            f"The connection is to {vendor!r}, whose dialect of SQL is not known, so that no text can be written for "
            f"it. Name the nearest dialect, dialect=...: {', '.join(DIALECTS)}."
        )
    return name
