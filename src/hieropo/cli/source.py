"""The options that say where rows are and which of them count: the same for every command that reads a log."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from hieropo.cli.console import usage_error


def _types(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for each in value:
        column, sign, kind = each.rpartition("=")
        if not (column and sign and kind):
            raise click.BadParameter(f"{each!r} is not COL=TYPE, such as zip=text.")
        found[column] = kind
    return found


_OPTIONS = (
    click.option(
        "--filter", "filter", metavar="TEST",
        help="Use only the rows that pass, such as \"day >= '2026-01-31' and country in ('NL', 'BE')\".",
    ),
    click.option(
        "--sql", metavar="QUERY",
        help="Read the rows of this query; the path is then that of a DuckDB file, or a URL such as "
        "postgresql://user@host/database.",
    ),
    click.option(
        "--type", "types", metavar="COL=TYPE", multiple=True, callback=_types,
        help="State the type of a column of CSV, JSON lines or names of folders: text, integer, number, boolean, date, "
        "time. Default: the type that all of its values have. May be given again.",
    ),
)  # fmt: skip


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that :meth:`Rows.of` reads."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Rows:
    """Rows as they are named on the command line.

    Parameters
    ----------
    place : str
        A path, a glob, or the path or URL of a database.
    filter : str or None
        Which of them count.
    sql : str or None
        A query of a database.
    types : dict
        Types that are stated.
    """

    place: str
    filter: str | None
    sql: str | None
    types: dict[str, str]

    @classmethod
    def of(cls, place: str, given: dict[str, Any]) -> "Rows":
        """Take what ``source_options`` gave out of the other options."""
        return cls(place, given.pop("filter"), given.pop("sql"), given.pop("types"))

    def open(self, *, rereadable: bool = False, lenient: bool = False) -> Any:
        """Open them as a log."""
        from hieropo.sources import open_log, sql

        source = self.place if self.sql is None else sql(self.sql, self.place)
        return open_log(source, filter=self.filter, rereadable=rereadable, types=self.types, lenient=lenient)

    def refuse_options(self, what: str) -> None:
        """End with a usage error where more is said than a path."""
        if self.filter is not None or self.sql is not None or self.types:
            usage_error(f"--filter, --sql and --type are for rows; {self.place} is {what}.")

    def __str__(self) -> str:
        """How they are called in messages."""
        return self.shown if self.filter is None else f"{self.shown} where {self.filter}"

    @property
    def shown(self) -> str:
        """The place, without a password."""
        if "://" not in self.place:
            return self.place
        from hieropo.sources.sql import without_password

        return without_password(self.place)

    def words(self) -> str:
        """As words of a command."""
        more = [] if self.sql is None else ["--sql", self.sql]
        more += [] if self.filter is None else ["--filter", self.filter]
        more += [word for column, kind in self.types.items() for word in ("--type", f"{column}={kind}")]
        return shlex.join([self.shown, *more])

    def to_dict(self, role: str = "log") -> dict[str, Any]:
        """What a policy keeps of them."""
        more = {"sql": self.sql, "filter": self.filter, "types": self.types}
        return {role: self.shown, **{name: value for name, value in more.items() if value}}
