"""Dialects of SQL: names of types, quoted columns and text."""

from collections.abc import Mapping
from dataclasses import dataclass

from hieropo.errors import InputError

_NOT_IN_BIGQUERY = '!"$()*,./;?@[\\]^`{}~'  # BigQuery has no column whose name holds one of these


@dataclass(frozen=True, slots=True)
class Dialect:
    """A dialect of SQL.

    Parameters
    ----------
    name : str
        Name for the command line and for sqlglot.
    product : str
        Name for messages.
    double : str
        Type of a 64-bit float.
    text : str
        Type of text.
    mark : str
        Sign around the name of a column; doubled within it.
    has_escapes : bool
        A backslash in a text literal begins an escape.
    is_tested : bool
        The tests run the text on a server or an engine of this dialect.
    forbidden : str
        Signs that no column of such a database has in its name.
    """

    name: str
    product: str
    double: str
    text: str
    mark: str = '"'
    has_escapes: bool = False
    is_tested: bool = True
    forbidden: str = "\0"

    def column(self, name: str) -> str:
        """Return the quoted name of a column.

        Raises
        ------
        InputError
            No column of such a database can have this name.
        """
        signs = [sign for sign in self.forbidden if sign in name]
        if signs or not name:
            held = f"holds {signs[0]!r}" if signs else "is empty"
            raise InputError(
                f"The name of column {name!r} {held}, and {self.product} allows no such column, so that no text can "
                "name it. Rename the column in the query, as with: select ... as other_name."
            )
        return f"{self.mark}{name.replace(self.mark, 2 * self.mark)}{self.mark}"

    def literal(self, text: str) -> str:
        """Return a text in single quotes."""
        if not self.has_escapes:
            return "'" + text.replace("'", "''") + "'"
        for sign, escaped in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\r", "\\r")):
            text = text.replace(sign, escaped)
        return f"'{text}'"

    def number(self, value: float) -> str:
        """Return a number as a constant of type double; text keeps all digits in every dialect."""
        return f"cast('{value!r}' as {self.double})"

    def as_double(self, expression: str) -> str:
        """Return an expression cast to double."""
        return f"cast({expression} as {self.double})"


DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect("duckdb", "DuckDB", "double", "varchar"),
        Dialect("postgres", "PostgreSQL", "double precision", "text"),
        Dialect("spark", "Spark SQL", "double", "string", mark="`", has_escapes=True),
        Dialect(
            "bigquery", "BigQuery", "float64", "string", mark="`", has_escapes=True, is_tested=False,
            forbidden="\0" + _NOT_IN_BIGQUERY,
        ),
        Dialect("snowflake", "Snowflake", "double", "varchar", has_escapes=True, is_tested=False),
    )
}  # fmt: skip
_OTHER_NAMES = {"postgresql": "postgres"}


def dialect_of(name: str) -> Dialect:
    """Return a dialect by its name.

    Raises
    ------
    InputError
        The name is not known.
    """
    dialect = DIALECTS.get(_OTHER_NAMES.get(name.lower(), name.lower()))
    if dialect is None:
        raise InputError(
            f"The dialect {name!r} of SQL is not known, so that no text can be written for it. Name one of "
            f"{', '.join(DIALECTS)}."
        )
    return dialect


def check_by_parser(text: str, dialect: Dialect) -> None:
    """Parse a text by sqlglot, where no server of this dialect runs in the tests.

    Raises
    ------
    InputError
        sqlglot is not installed, or cannot parse the text.
    """
    if dialect.is_tested:
        return
    try:
        import sqlglot
    except ImportError as error:
        raise InputError(
            f"sqlglot is not installed, and the text for {dialect.product}, which no test runs there, is at least "
            "parsed before it is given out. Install it: pip install 'hieropo[warehouse]'."
        ) from error
    try:
        sqlglot.parse_one(text, dialect=dialect.name)
    except sqlglot.errors.SqlglotError as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"sqlglot cannot parse the text for {dialect.product}: {reason} Is the query written in its dialect?"
        ) from error
