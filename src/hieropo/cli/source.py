"""The options that say where rows are, which count, which columns play which role, and which features are made."""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hieropo.cli.console import names, usage_error


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
        from hieropo.logs.engines.sql import sql
        from hieropo.logs.opening import open_log

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
        from hieropo.logs.engines.sql import without_password

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


MAPS = ("per-action", "indicator", "columns")


def _features(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is None or value in MAPS or value.endswith(".json"):
        return value
    raise click.BadParameter(
        f"{value!r} is none of {', '.join(MAPS)}, nor a .json file that holds a feature map."
    )


_ROLES = (
    click.option("--task", metavar="COL", help="Column that names the task: the unit with its own policy."),
    click.option("--reward", metavar="COL", help="Column of rewards; larger is better."),
    click.option(
        "--action", metavar="COL", help="Column of actions. Without one the context describes the action taken."
    ),
    click.option("--context", metavar="A,B,C", callback=names, help="Columns known before the action, numbers."),
    click.option("--pscore", metavar="COL", help="Column of logged propensities; checked, not used for the fit."),
    click.option(
        "--weight", metavar="COL", help="Column of counts or discounts; a row of weight k equals the row k times."
    ),
    click.option(
        "--precision", metavar="COL",
        help="Column of known relative precisions; the variance of a reward is the noise variance divided by it, and "
        "the row counts once.",
    ),
    click.option(
        "--sampling-weight", metavar="COL",
        help="Column of 1 / P(the row was kept), where rows of a larger log were kept by chance.",
    ),
    click.option(
        "--levels", metavar="A,B", callback=names,
        help="Columns of groups that tasks belong to, the widest first, such as region,store. For the "
        "algorithm hier alone.",
    ),
    click.option(
        "--metadata", metavar="A,B", callback=names,
        help="Columns of numbers known of a task, the same in all its rows. For the algorithm hier alone.",
    ),
    click.option(
        "--eligible", metavar="COL",
        help="Column with a list of the actions that could be taken; checked, not used for the fit. Requests need it "
        "too, and a choice never leaves its list.",
    ),
    click.option(
        "--time", metavar="COL",
        help="Column that says when the action was chosen; not learned from. Choices that react to rewards, and "
        "rewards that drift, are looked for only where it is named and rows are in its order.",
    ),
    click.option(
        "--guess/--no-guess", default=True, show_default=True,
        help="Take the only column with a well-known name, such as user_id or propensity, for a task, action, reward, "
        "pscore, weight or sampling weight that is not named. Each guess is printed.",
    ),
)  # fmt: skip
_FEATURES = (
    click.option(
        "--features", metavar="MAP", callback=_features,
        help="per-action: a linear model of the context for each action (default with actions and context). "
        "indicator: one coefficient an action (default with actions alone). columns: the context as it is "
        "without an intercept (default without actions). Or a .json file with a feature map.",
    ),
)  # fmt: skip


def eligible_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--eligible`` and ``--all-eligible``, which :func:`eligible_of` reads, to a command that has a policy."""
    named = click.option(
        "--eligible", metavar="COL",
        help="Column with a list of the actions that can be taken. Default: as in the log of the fit.",
    )  # fmt: skip
    every = click.option(
        "--all-eligible", is_flag=True,
        help="Every action can be taken in each row, though the log of the fit listed those that could.",
    )  # fmt: skip
    return named(every(command))


def eligible_of(given: dict[str, Any]) -> Any:
    """Take what ``eligible_options`` gave: a column, False where every action can be taken, None where neither."""
    column, every = given.pop("eligible"), given.pop("all_eligible")
    if column is not None and every:
        usage_error("--eligible lists the actions that can be taken, and --all-eligible says all; give one.")
    return False if every else column


def role_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of roles."""
    for option in reversed(_ROLES):
        command = option(command)
    return command


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of roles and features."""
    for option in reversed(_FEATURES):
        command = option(command)
    return role_options(command)


def roles_of(schema: Any, features: Any, given: dict[str, Any]) -> tuple[Any, list[str]]:
    """Columns of each role, named or guessed; guesses are told on standard error."""
    from hieropo.logs.arrow.schema import guess_roles
    from hieropo.rows.batches import Roles

    named = {role: given[role] for role in Roles.names() if role in given}
    named["context"] = given["context"] or getattr(features, "columns", ())
    acting = features != "columns" and getattr(features, "actions", ()) is not None
    guessed = ("task", "reward", "pscore", "weight", "sampling_weight", *(["action"] if acting else []))
    roles, told = guess_roles(schema, named, guessed if given["guess"] else ())
    for sentence in told:
        click.echo(f"Note: {sentence}", err=True)
    if roles.action is None and not roles.context and features in (None, "columns"):
        usage_error("Give --action, the column of the actions, or --context, columns that describe them.")
    return roles, told


def chosen_features(choice: str | None) -> Any:
    """Name of a feature map, or the map that lies in a file."""
    if choice is None or choice in MAPS:
        return choice
    from hieropo.errors import InputError
    from hieropo.features.maps import feature_map_from_dict

    try:
        return feature_map_from_dict(_mapping(choice))
    except FileNotFoundError as error:
        raise InputError(
            f"There is no file {choice}, from which to read the feature map. Check the path."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{choice} does not hold a feature map ({error}). Write one with json.dumps(features.to_dict())."
        ) from error


def _mapping(path: str) -> dict[str, Any]:
    stored = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    if not isinstance(stored, dict):
        raise TypeError(f"it holds a {type(stored).__name__}")
    return stored
