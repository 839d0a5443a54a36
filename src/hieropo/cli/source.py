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
        A path or a glob.
    filter : str or None
        Which of them count.
    types : dict
        Types that are stated.
    """

    place: str
    filter: str | None
    types: dict[str, str]

    @classmethod
    def of(cls, place: str, given: dict[str, Any]) -> "Rows":
        """Take what ``source_options`` gave out of the other options."""
        return cls(place, given.pop("filter"), given.pop("types"))

    def open(self, *, rereadable: bool = False) -> Any:
        """Open them as a log."""
        from hieropo.sources import open_log

        return open_log(self.place, filter=self.filter, rereadable=rereadable, types=self.types)

    def refuse_options(self, what: str) -> None:
        """End with a usage error where more is said than a path."""
        if self.filter is not None or self.types:
            usage_error(f"--filter and --type are for rows; {self.place} is {what}.")

    def __str__(self) -> str:
        """How they are called in messages."""
        return self.place if self.filter is None else f"{self.place} where {self.filter}"

    def words(self) -> str:
        """As words of a command."""
        more = [] if self.filter is None else ["--filter", self.filter]
        more += [word for column, kind in self.types.items() for word in ("--type", f"{column}={kind}")]
        return shlex.join([self.place, *more])

    def to_dict(self, role: str = "log") -> dict[str, Any]:
        """What a policy keeps of them."""
        more = {"filter": self.filter, "types": self.types}
        return {role: self.place, **{name: value for name, value in more.items() if value}}
