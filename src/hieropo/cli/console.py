"""The common behaviour of all commands: exit codes, errors, warnings, JSON, shared options and a progress line.

Exit codes: 0 done; 1 the data or a file cannot be used; 2 the command line cannot be understood; 130
interrupted; 141 the reader of the output, such as ``head``, has gone. Standard output holds the result alone; errors,
warnings and progress go to standard error.
"""

import errno
import json
import math
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from hieropo._utils import progress
from hieropo._utils.blas_threads import one_blas_thread
from hieropo._utils.text import as_json
from hieropo.errors import HieropoError

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # takes a type argument in the newest releases alone

DEBUG = "hieropo.debug"
WARNINGS = "hieropo.warnings"
CHECKPOINT = "hieropo.checkpoint"
INTERRUPTED = 130
NO_READER = 141  # 128 + SIGPIPE, as shells report a program that such a signal ends
FOREIGN = (
    ".csv",
    ".tsv",
    ".json",
    ".jsonl",
    ".ndjson",
    ".feather",
    ".arrow",
    ".orc",
    ".xlsx",
)

Line = progress.Line  # commands take it from this module


class Program(click.Group):
    """A group of commands that turns exceptions into a message and an exit code; ``--debug`` shows the traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; write an exception as one message on standard error."""

        def show(message: Warning | str, *_: Any, **__: Any) -> None:
            ctx.meta.setdefault(WARNINGS, []).append(str(message))
            click.echo(f"Warning: {message}", err=True)

        with one_blas_thread, warnings.catch_warnings():
            warnings.showwarning = show
            try:
                return super().invoke(ctx)
            except (click.ClickException, click.exceptions.Exit, click.Abort):
                raise
            except KeyboardInterrupt:
                click.echo(f"\nInterrupted. {_left(ctx.meta.get(CHECKPOINT))}", err=True)
                ctx.exit(INTERRUPTED)
            except Exception as error:
                if isinstance(error, OSError) and error.errno == errno.EPIPE:
                    _leave_closed_pipe()
                    ctx.exit(NO_READER)
                if ctx.meta.get(DEBUG):
                    raise
                raise click.ClickException(_message(error)) from error


def _leave_closed_pipe() -> None:
    """Send what is still buffered for a closed pipe nowhere, so that the end of the process writes no error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _left(checkpoint: str | None) -> str:
    if checkpoint is None or not Path(checkpoint).is_dir():
        return "No partly written file is left."
    return f"{checkpoint} holds the sums of the files that were read. The same command goes on from them."


def _message(error: Exception) -> str:
    notes = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
    if isinstance(error, HieropoError):
        return f"{error}{notes}"
    if isinstance(error, OSError):
        return _os_message(error)
    if isinstance(error, MemoryError):
        return (
            f"Out of memory ({error}). Use fewer context columns or actions: memory grows with their square."
        )
    return (
        f"{type(error).__name__}: {error}. This is an error in hieropo. Please report it, with the traceback that "
        "--debug prints."
    )


def _os_message(error: OSError) -> str:
    problem = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    remedies = {
        errno.EACCES: "Check that this user may open it and every folder above it.",
        errno.EPERM: "Check that this user may open it and every folder above it.",
        errno.ENOENT: "Check the path.",
        errno.ENOSPC: "Make room on the disk, or give another path.",
        errno.EROFS: "Give a path that can be written.",
    }
    remedy = remedies.get(error.errno or 0, "Check the path, its permissions and the space left on the disk.")
    return f"{problem}. {remedy}"


def shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--json``, passed on as ``as_json``, and ``--debug``."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")
    debug = click.option(
        "--debug", is_flag=True, expose_value=False, callback=_remember_debug,
        help="Print the traceback of an error."
    )  # fmt: skip
    return as_json(debug(command))


def _remember_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click calls so
    ctx.meta[DEBUG] = value


def rejects_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--lenient/--strict`` and ``--rejects``, which set the handling of unusable rows."""
    lenient = click.option(
        "--lenient/--strict", default=False, show_default=True,
        help="Lenient: set aside unusable rows (a missing value, text for a number, a propensity of 0, ...), count "
        "them and go on, unless they are more than half. Strict: stop at the first.",
    )  # fmt: skip
    rejects = click.option(
        "--rejects", metavar="FILE",
        help="Write a list of the unusable rows to this .parquet or .csv file: file, row (from 0, in the whole log), "
        "line (from 1, in files of text), column, value, reason.",
    )  # fmt: skip
    return lenient(rejects(command))


def checkpoint_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--checkpoint``, the directory of the sums of an unfinished pass over a long log."""
    option = click.option(
        "--checkpoint", metavar="DIR", callback=_kept,
        help="Write the sums so far to this directory after every file of the log. After an interruption the same "
        "command goes on from them. Removed when all is done.",
    )  # fmt: skip
    return option(command)


def _kept(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
    ctx.meta[CHECKPOINT] = value
    return value


def refuse_inside(log: str, target: str | None) -> None:
    """Refuse to write into the folder of a log, where the next reader would read it as a part of the log."""
    if (
        target is not None
        and Path(log).is_dir()
        and Path(target).resolve().is_relative_to(Path(log).resolve())
    ):
        usage_error(
            f"{target} would lie in the log {log}, and would be read as a part of it. Give a path outside the log."
        )


def done_with(checkpoint: str | None) -> None:
    """Remove a checkpoint after its result is written."""
    if checkpoint is not None:
        from hieropo.storage.checkpoint import remove_checkpoint

        remove_checkpoint(checkpoint)


def takes_rejects(given: dict[str, Any]) -> bool:
    """Return True where unusable rows are set aside or listed; False where the first one is an error."""
    return bool(given["lenient"]) or given["rejects"] is not None


class _Pessimism(_ParamType):
    """A number, or ``cv``."""

    name = "pessimism"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word ``cv``, or the number as a float."""
        return value if value == "cv" else click.FLOAT.convert(value, param, ctx)


def pessimism_options(
    default: str, *, cv: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add ``--pessimism`` and ``--level``, of which one may be given; ``cv`` allows ``--pessimism cv``."""
    more = " cv: choose X by cross-validation." if cv else ""
    pessimism = click.option(
        "--pessimism", type=_Pessimism() if cv else float, metavar="X|cv" if cv else "X", callback=_one_of_two,
        help="Choose the action with the largest lower bound, mean - X * sd of its expected reward. "
        f"Default: {default}.{more}",
    )  # fmt: skip
    level = click.option(
        "--level", type=float, metavar="P", callback=_one_of_two,
        help="In place of --pessimism: the credible level of a single lower bound, such as 0.95.",
    )  # fmt: skip
    return lambda command: pessimism(level(command))


def probability(_: click.Context, __: click.Parameter, value: float) -> float:
    """Return a number between 0 and 1; a callback of options."""
    if not 0.0 < value < 1.0:
        raise click.BadParameter(f"{value} is not between 0 and 1. Write 95 % as 0.95.")
    return value


def _one_of_two(ctx: click.Context, option: click.Parameter, value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number.")
    if value is not None and option.name == "level":
        probability(ctx, option, value)
    given = ctx.meta.setdefault("hieropo.bound", [])
    if value is not None:
        given.append(option.name)
    if len(given) > 1:
        raise click.UsageError("--pessimism and --level both set the lower bound. Give one of them.", ctx)
    return value


def print_json(value: dict[str, Any]) -> None:
    """Write one JSON object, with the warnings so far; ids that JSON lacks (dates, UUIDs) become text."""
    shown = click.get_current_context().meta.get(WARNINGS, [])
    text = json.dumps(
        {**as_json(value), "warnings": shown}, indent=2, ensure_ascii=False, allow_nan=False, default=str
    )
    click.echo(text)


def example(*lines: str) -> str:
    """Return example commands for the end of a help text, which click does not wrap."""
    title = "Example:" if len(lines) == 1 else "Examples:"
    return "\n".join(["\b", title, *(f"  {line}" for line in lines)])


def usage_error(message: str) -> NoReturn:
    """Raise a usage error, which ends the command with exit code 2."""
    raise click.UsageError(message, click.get_current_context())


def names(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Split ``a,b,c`` of an option into column names."""
    return tuple(name.strip() for name in (value or "").split(",") if name.strip())


def one_or_more(
    _: click.Context, __: click.Parameter, values: tuple[str, ...]
) -> str | tuple[str, ...] | None:
    """Return the one value of an option that may be given several times; several as a tuple, none as None."""
    return values if len(values) > 1 else values[0] if values else None
