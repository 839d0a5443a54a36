"""Completion in shells: paths for arguments and files, columns of the log for roles."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

_STATED = (
    ".parquet",
    ".parq",
    ".pq",
    ".arrow",
    ".ipc",
    ".feather",
    ".arrows",
)  # formats that state their columns
_TEXTS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
_COLUMNS = ("COL", "A,B", "A,B,C")
_FILES = ("FILE", "OUT", "PATH")

Items = list[CompletionItem]


def add_completion(group: click.Group) -> None:
    """Let the shell complete paths and columns in all commands of a group."""
    for command in group.commands.values():
        if isinstance(command, click.Group):
            add_completion(command)
        for parameter in command.params:
            complete = _completer(parameter)
            if complete is not None:
                setattr(parameter, "shell_complete", complete)  # noqa: B010 - as its parameter shell_complete=


def _completer(parameter: click.Parameter) -> Callable[[click.Context, str], Items] | None:
    if not isinstance(parameter.type, click.types.StringParamType):
        return None
    metavar = parameter.metavar or ""
    if metavar == "DIR":
        return lambda _, incomplete: [CompletionItem(incomplete, type="dir")]
    if isinstance(parameter, click.Argument) or metavar.startswith(_FILES):
        return lambda _, incomplete: [CompletionItem(incomplete, type="file")]
    return _columns if metavar in _COLUMNS else None


def _columns(context: click.Context, incomplete: str) -> Items:
    """Return the columns of the log that begin as the last of the names so far."""
    before, comma, last = incomplete.rpartition(",")
    given = [
        context.params.get("log"),
        context.params.get("requests"),
        *context.args[-1:],
    ]  # args: not parsed yet
    path = next((path for path in given if path), None)
    names = [] if path is None else column_names_of(Path(path))
    return [CompletionItem(f"{before}{comma}{name}") for name in names if name.startswith(last)]


def column_names_of(path: Path) -> list[str]:
    """Return the names of the columns of a file, without reading its rows; none where that is not possible."""
    from hieropo.errors import HieropoError

    suffix = path.suffix.lower()
    try:
        if suffix in _TEXTS:
            with path.open(encoding="utf-8-sig", newline="") as file:
                return next(csv.reader(file, delimiter=_TEXTS[suffix]), [])
        if suffix in _STATED:
            from hieropo.logs.opening import open_log

            return list(open_log(path).schema.names)
    except (OSError, UnicodeDecodeError, csv.Error, HieropoError):
        pass
    return []


def script_of(shell: str, command: Any) -> str:
    """Return the lines that a shell runs to complete this command."""
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None
    return completion(command, {}, "hieropo", "_HIEROPO_COMPLETE").source()
