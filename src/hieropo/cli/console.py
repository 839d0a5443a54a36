"""How every command meets its caller: exit codes, errors, warnings, JSON, progress.

Exit codes: 0 done; 1 the data or a file cannot be used; 2 the command line cannot be understood; 130 interrupted.
Standard output holds the answer alone; errors, warnings and progress go to standard error.
"""

import errno
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import click

from hieropo.errors import HieropoError

DEBUG = "hieropo.debug"
INTERRUPTED = 130
PATIENCE = 1.0  # seconds before a progress line appears
PAUSE = 0.2  # seconds between two updates of it


class Program(click.Group):
    """A group whose commands end in a message and an exit code, never in a traceback (save with ``--debug``)."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; turn what it raises into one line on standard error."""
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except (click.ClickException, click.exceptions.Exit, click.Abort):
                raise
            except KeyboardInterrupt:
                click.echo("\nInterrupted; a file or directory that was not finished is not there.", err=True)
                ctx.exit(INTERRUPTED)
            except Exception as error:
                if ctx.meta.get(DEBUG) or (isinstance(error, OSError) and error.errno == errno.EPIPE):
                    raise
                raise click.ClickException(_one_message(error)) from error


def _one_message(error: Exception) -> str:
    if isinstance(error, HieropoError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error}. Check the path and its permissions."
    if isinstance(error, MemoryError):
        return f"Out of memory ({error}). Hand in fewer columns, or a feature map of lower dimension."
    return f"{type(error).__name__}: {error}. hieropo did not foresee this; please report it with what --debug prints."


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(f"Warning: {message}", err=True)


def _remember_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001  # click's call
    ctx.meta[DEBUG] = value


def shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--json`` (passed on as ``as_json``) and ``--debug``."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON value, and nothing else.")
    debug = click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_remember_debug,
        help="On an error, print the traceback.",
    )
    return as_json(debug(command))


def print_json(value: Any) -> None:
    """Write one JSON value; ids that JSON does not have (dates, UUIDs) as text, NaN and infinity never."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False, default=str))


def usage_error(message: str) -> NoReturn:
    """End with exit code 2."""
    raise click.UsageError(message, click.get_current_context())


def names(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Split ``a,b,c`` of an option into column names."""
    found = tuple(name.strip() for name in (value or "").split(",") if name.strip())
    repeated = sorted({name for name in found if found.count(name) > 1})
    if repeated:
        raise click.BadParameter(f"{repeated[0]!r} is named twice.")
    return found


def tracked(items: Iterable[Any], label: str, total: int | None, size: Callable[[Any], int]) -> Iterator[Any]:
    """Pass items on; after a second, say on a terminal how many rows went by.

    Parameters
    ----------
    items : iterable
    label : str
        Such as ``"Reading"``.
    total : int or None
        Number of rows, where it is known.
    size : callable
        Rows of one item.
    """
    if not sys.stderr.isatty():
        yield from items
        return
    shown = begun = time.monotonic()
    rows, lines = 0, 0
    try:
        for item in items:
            yield item
            rows += size(item)
            now = time.monotonic()
            if now - begun > PATIENCE and now - shown > PAUSE:
                share = f" of {total:,} ({rows / total:.0%})" if total else ""
                click.echo(f"\r{label}: {rows:,} rows{share}\x1b[K", nl=False, err=True)
                shown, lines = now, lines + 1
    finally:
        if lines:
            click.echo("\r\x1b[K", nl=False, err=True)
