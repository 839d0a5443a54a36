"""Options for the source of rows, its filter, the roles of columns, and the feature map."""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from hieropo.cli.console import names, one_or_more, usage_error


def _types(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in value:
        column, sign, kind = text.rpartition("=")
        if not (column and sign and kind):
            raise click.BadParameter(f"{text!r} is not COL=TYPE. Write zip=text, for example.")
        found[column] = kind
    return found


_OPTIONS = (
    click.option(
        "--filter", "filter", metavar="TEST",
        help="Use only the rows that pass this test, such as \"day >= '2026-01-31' and country in ('NL', 'BE')\".",
    ),
    click.option(
        "--sql", metavar="QUERY",
        help="Read the rows of this query. The path is then a DuckDB file, a URL such as "
        "postgresql://user@host/database, or :memory: for a query of files: select * from 'log.parquet'.",
    ),
    click.option(
        "--type", "types", metavar="COL=TYPE", multiple=True, callback=_types,
        help="Type of a column of CSV, JSON lines or folder names: text, integer, number, boolean, date, time. "
        "Default: the type that fits all of its values. May be given several times.",
    ),
)  # fmt: skip


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that :meth:`Rows.of` reads."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


STANDARD_INPUT = "-"


@dataclass(frozen=True)
class Rows:
    """The source of rows that a command line names.

    Parameters
    ----------
    place : str
        A path, a glob, ``-`` for standard input, or the path or URL of a database.
    filter : str or None
        A test that rows must pass.
    sql : str or None
        A query of the database.
    types : dict
        Types of columns by name.
    """

    place: str
    filter: str | None
    sql: str | None
    types: dict[str, str]

    @classmethod
    def of(cls, place: str, given: dict[str, Any]) -> "Rows":
        """Return the rows of ``source_options``, and remove these options from ``given``."""
        return cls(place, given.pop("filter"), given.pop("sql"), given.pop("types"))

    def open(self, *, rereadable: bool = False, lenient: bool = False, files: Any = None) -> Any:
        """Open the rows as a log; of some of its files where ``files`` are given."""
        from hieropo.logs.engines.sql import sql
        from hieropo.logs.opening import open_log

        source = files or (self._path() if self.sql is None else sql(self.sql, self.place))
        return open_log(source, filter=self.filter, rereadable=rereadable, types=self.types, lenient=lenient)

    def _path(self) -> Any:
        """Return the path of the rows; for standard input, that of a file with its bytes."""
        if self.place != STANDARD_INPUT:
            return self.place
        from hieropo.logs.formats.standard_input import standard_input

        return standard_input()

    def open_for(self, features: Any, *, rereadable: bool = False, lenient: bool = False) -> Any:
        """Open the rows as requests of a feature map: text of its terms is read as text from files of text."""
        from hieropo.logs.encoding import stated_types
        from hieropo.logs.formats.paths import TEXTS, find_files

        opened = self.open(rereadable=rereadable, lenient=lenient)
        types = stated_types(opened, features)
        if not types or self.sql is not None or find_files(self._path()).kind not in TEXTS:
            return opened
        return replace(self, types={**types, **self.types}).open(rereadable=rereadable, lenient=lenient)

    def refuse_options(self) -> None:
        """Raise a usage error where an option for rows is given with moments."""
        if self.filter is not None or self.sql is not None or self.types:
            usage_error(
                f"--filter, --sql and --type are for rows, and {self.place} holds moments, which have no rows. Leave "
                "them out here, and give them to `hieropo moments`."
            )

    def __str__(self) -> str:
        """Return the name of the rows for messages."""
        return self.shown if self.filter is None else f"{self.shown} where {self.filter}"

    @property
    def shown(self) -> str:
        """Return the place without a password, for messages."""
        if self.place == STANDARD_INPUT:
            return "standard input"
        if "://" not in self.place:
            return self.place
        from hieropo.logs.engines.sql import without_password

        return without_password(self.place)

    def words(self) -> str:
        """Return the rows as words of a command."""
        more = [] if self.sql is None else ["--sql", self.sql]
        more += [] if self.filter is None else ["--filter", self.filter]
        more += [word for column, kind in self.types.items() for word in ("--type", f"{column}={kind}")]
        return shlex.join(["LOG" if self.place == STANDARD_INPUT else self.shown, *more])

    def to_dict(self, role: str = "log") -> dict[str, Any]:
        """Return the rows as a policy stores them in its provenance."""
        more = {"sql": self.sql, "filter": self.filter, "types": self.types}
        return {role: self.shown, **{name: value for name, value in more.items() if value}}


MAPS = ("per-action", "indicator", "columns")


def _features(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is None or value in MAPS or value.endswith(".json") or Path(value).is_dir():
        return value
    from hieropo.errors import InputError
    from hieropo.features.terms.parsing import parse

    try:
        parse(value)
    except InputError as error:
        raise click.BadParameter(
            f"{value!r} is none of {', '.join(MAPS)}, no .json file with a feature map, and no formula. {error}"
        ) from error
    return value


_ROLES = (
    click.option(
        "--task", metavar="COL", multiple=True, callback=one_or_more,
        help="Column of task ids. Each task (store, user, ...) gets a policy of its own. Given several times, the "
        "columns name a task together. Without one, and without a column of a well-known name, all rows are one task.",
    ),
    click.option("--reward", metavar="COL", help="Column of rewards; larger is better."),
    click.option(
        "--action", metavar="COL",
        help="Column of actions. Without one, the context columns must describe the action taken.",
    ),
    click.option(
        "--context", metavar="A,B,C", callback=names,
        help="Columns that are known before the action: numbers, text (a category), booleans, dates, times."
    ),
    click.option(
        "--pscore", metavar="COL",
        help="Column of logged propensities: the probability with which the logging policy took the action. Checked, "
        "not used for the fit.",
    ),
    click.option(
        "--weight", metavar="COL", help="Column of counts or discounts; a row of weight k equals the row k times."
    ),
    click.option(
        "--precision", metavar="COL",
        help="Column of known relative precisions: the variance of a reward is the noise variance divided by it. The "
        "row counts once.",
    ),
    click.option(
        "--sampling-weight", metavar="COL",
        help="Column of 1 / P(the row was kept), where the log is a random sample of a larger one.",
    ),
    click.option(
        "--levels", metavar="A,B", callback=names,
        help="Columns of groups of tasks, the widest first, such as region,store. With --algorithm hier only.",
    ),
    click.option(
        "--metadata", metavar="A,B", callback=names,
        help="Columns of numbers known of a task, the same in all its rows. With --algorithm hier only.",
    ),
    click.option(
        "--cluster", metavar="COL",
        help="Column of clusters: rows of one session, day, class or visit, whose rewards share a cause. The "
        "correlation within a task and an action is learned. With --algorithm hier only.",
    ),
    click.option(
        "--eligible", metavar="COL",
        help="Column with a list of the actions that could be taken. Checked, not used for the fit. Requests need the "
        "column too, and the policy chooses only from its lists.",
    ),
    click.option(
        "--time", metavar="COL",
        help="Column of the time of the choice. Not used for the fit. Adaptive logging and drifting rewards are "
        "detected only with this column, and rows in its order.",
    ),
    click.option(
        "--guess/--no-guess", default=True, show_default=True,
        help="Where the task, action, reward, pscore, weight or sampling weight is not named, take the only column "
        "with a well-known name for it, such as user_id or propensity. Each guess is printed.",
    ),
)  # fmt: skip
_FEATURES = (
    click.option(
        "--features", metavar="MAP", callback=_features,
        help="A formula of the context columns, such as \"device + spline(price, 4) + device:price\". "
        "Or per-action: a linear model of the context for each action (default with actions and context). "
        "indicator: one mean reward for each action (default with actions alone). columns: the context columns as they "
        "are, without an intercept (default without actions). Or a .json file with a feature map. Or the "
        "directory of a policy or of moments, whose levels and knots are used again.",
    ),
)  # fmt: skip


def eligible_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--eligible`` and ``--all-eligible``, which :func:`eligible_of` reads."""
    named = click.option(
        "--eligible", metavar="COL",
        help="Column with a list of the actions that can be taken. Default: as in the log of the fit.",
    )  # fmt: skip
    every = click.option(
        "--all-eligible", is_flag=True,
        help="All actions can be taken in every row, although the log of the fit has a column of eligible actions.",
    )  # fmt: skip
    return named(every(command))


def eligible_of(given: dict[str, Any]) -> Any:
    """Return the column of eligible actions, False for ``--all-eligible``, None without either; remove both options."""
    column, all_eligible = given.pop("eligible"), given.pop("all_eligible")
    if column is not None and all_eligible:
        usage_error(
            f"--eligible {column} restricts the actions, and --all-eligible does not. Give one of them."
        )
    return False if all_eligible else column


def role_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the roles of columns."""
    for option in reversed(_ROLES):
        command = option(command)
    return command


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the roles of columns and for features."""
    for option in reversed(_FEATURES):
        command = option(command)
    return role_options(command)


def roles_of(schema: Any, features: Any, given: dict[str, Any]) -> tuple[Any, list[str]]:
    """Return the roles of columns, named or guessed, and the guesses; print the guesses on standard error."""
    from hieropo.logs.arrow.schema import guess_roles
    from hieropo.passes.designs import sources_of
    from hieropo.rows.batches import Roles

    named = {role: given[role] for role in Roles.names() if role in given}
    named["context"] = given["context"] or sources_of(features)
    has_actions = features != "columns" and getattr(features, "actions", ()) is not None
    guessable = (
        "task",
        "reward",
        "pscore",
        "weight",
        "sampling_weight",
        *(["action"] if has_actions else []),
    )
    roles, guesses = guess_roles(schema, named, guessable if given["guess"] else ())
    for sentence in guesses:
        click.echo(f"Note: {sentence}", err=True)
    if roles.action is None and not roles.context and features in (None, "columns"):
        usage_error(
            "No column of the log is named or known as the action. Give --action, the column of the actions, or "
            "--context, the columns that describe the action taken."
        )
    return roles, guesses


def note_of_unused(source: Any, roles: Any, features: Any) -> str:
    """Return a note on the columns of a log that play no role, where no context is named; else ""."""
    schema = getattr(source, "schema", None)
    if schema is None:
        return ""
    free = [column for column in schema.names if column not in roles.columns]
    if not free or roles.context or features is not None or roles.action is None:
        return ""
    return (
        f"No context is named, and {names_of(free)} {'play' if len(free) > 1 else 'plays'} no role. Name columns that "
        f"are known before the action, such as --context {free[0]}: numbers, text, dates or times."
    )


def names_of(columns: list[str]) -> str:
    """Return the names of columns for a sentence, the first few of many."""
    from hieropo.rows.ids import abbreviate

    return f"column {columns[0]!r}" if len(columns) == 1 else f"the columns {abbreviate(columns, 8)}"


def chosen_features(choice: str | None) -> Any:
    """Return the name of a feature map, a formula, the terms of a directory, or the map of a .json file."""
    if choice is not None and Path(choice).is_dir():
        return _terms_in(choice)
    if choice is None or not choice.endswith(".json"):
        return choice
    from hieropo.errors import InputError
    from hieropo.features.maps import feature_map_from_dict

    try:
        return feature_map_from_dict(_mapping(choice))
    except FileNotFoundError as error:
        raise InputError(
            f"There is no file {choice} with a feature map. Check the path of --features."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{choice} does not hold a feature map ({error}). Write one with json.dumps(features.to_dict()) in Python."
        ) from error


def _terms_in(directory: str) -> Any:
    """Return the terms of the policy or the moments in a directory."""
    from hieropo.passes.log_moments import as_moments
    from hieropo.storage.load import load_policy

    moments = as_moments(directory)
    features = load_policy(directory).features if moments is None else moments.features
    terms = getattr(features, "terms", None)
    if terms is None:
        usage_error(
            f"--features {directory}: its features have no terms, since its context columns are numbers. Leave "
            "--features out."
        )
    return terms


def _mapping(path: str) -> dict[str, Any]:
    stored = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    if not isinstance(stored, dict):
        raise TypeError(f"it holds a {type(stored).__name__}")
    return stored
