"""A table of results: Arrow inside, a frame of any kind outside."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hieropo._utils.text import counted, table
from hieropo.errors import InputError, SchemaError
from hieropo.logs.arrow.arrays import as_numpy
from hieropo.rows.ids import abbreviate

_SHOWN = 10  # rows of a repr


@dataclass(frozen=True, eq=False)
class ResultTable:
    """A table of results, such as the gains of all tasks.

    Anything that takes Arrow data takes it (``polars.DataFrame(found)``, ``duckdb``, ``pyarrow.table(found)``).

    Parameters
    ----------
    table : pa.Table
    """

    table: Any

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> Self:
        """Return a table of columns by name; NaN becomes null."""
        arrays = {
            name: values
            if isinstance(values, pa.Array | pa.ChunkedArray)
            else pa.array(values, from_pandas=True)
            for name, values in columns.items()
        }
        return cls(pa.table(arrays))

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(self.table.column_names)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.table.num_rows)

    def __getitem__(self, column: str) -> NDArray[Any]:
        """Return a column as an array (n,); a null number is NaN.

        Raises
        ------
        SchemaError
            There is no such column.
        """
        if column not in self.table.column_names:
            raise SchemaError(
                f"The table has no column {column!r}. Its columns: {abbreviate(self.columns, 40)}."
            )
        values = self.table.column(column).combine_chunks()
        return as_numpy(values)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Export the table by the Arrow C stream."""
        return self.table.__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame.

        Raises
        ------
        InputError
            pandas is not installed.
        """
        frame_package("pandas")
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        """Return a polars DataFrame.

        Raises
        ------
        InputError
            polars is not installed.
        """
        return frame_package("polars").from_arrow(self.table)

    def to_dict(self) -> dict[str, list[Any]]:
        """Return each column as a list, by name; nulls are None."""
        columns: dict[str, list[Any]] = self.table.to_pydict()
        return columns

    def _first_rows(self) -> list[list[str]]:
        first = self.table.slice(0, _SHOWN)
        return [[_text(value) for value in row.values()] for row in first.to_pylist()]

    def __repr__(self) -> str:
        more = f"\n... {counted(len(self) - _SHOWN, 'more row')}" if len(self) > _SHOWN else ""
        size = f"{counted(len(self), 'row')}, {counted(len(self.columns), 'column')}"
        return f"{size}\n{table([list(self.columns), *self._first_rows()])}{more}"

    def _repr_html_(self) -> str:
        caption = f"{counted(len(self), 'row')}" + (f", the first {_SHOWN}" if len(self) > _SHOWN else "")
        return html_table(self.columns, self._first_rows(), caption)


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    """Return a table of texts as HTML, escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    caption = escape(caption)
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)


def frame_package(name: str) -> Any:
    """Return the package of a kind of data frame; InputError where it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            f"{name} is not installed, so this table cannot become a frame of it: pip install {name}. Its Arrow table "
            "is in the attribute table."
        ) from error
