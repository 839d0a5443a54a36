"""Options of programs that repeat runs, and runs in processes."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from tables import provenance, read_table, table, write

from hieropo.reproduce.experiment import workers

S = TypeVar("S")
R = TypeVar("R")


class Options(NamedTuple):
    """Options of a command line, and the command that repeats it."""

    share: float
    out: Path
    processes: int
    command: str
    only: tuple[str, ...] = ()


def options(doc: str | None, out: Path, program: str) -> Options:
    """Read ``--share``, ``--out`` and ``--processes``; ``program`` is the name of the file, with .py."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="share of the runs to make")
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument(
        "--only", action="append", default=[], help="a setting; others keep their row of the table"
    )
    chosen = parser.parse_args()
    command = f"python experiments/{program}" + (f" --share {chosen.share}" if chosen.share != 1 else "")
    return Options(chosen.share, chosen.out, chosen.processes, command, tuple(chosen.only))


def repeated(
    one_run: Callable[[S, int], R],
    runs: Mapping[S, int],
    chosen: Options,
    *,
    least: int = 2,
    told: Callable[[S, list[R]], str],
    chunk: int = 5,
) -> dict[S, list[R]]:
    """Make the runs of each setting: the asked share of its number, but no fewer than ``least``.

    ``told`` says on the standard error stream what came out of a setting.
    """
    results = {}
    with workers(chosen.processes) as pool:
        waiting = {
            setting: pool.map(
                partial(one_run, setting), range(max(least, round(chosen.share * number))), chunksize=chunk
            )
            for setting, number in runs.items()
        }
        for setting, found in waiting.items():
            results[setting] = list(found)
            sys.stderr.write(f"{told(setting, results[setting])}\n")
    return results


def one_table(
    doc: str | None,
    out: Path,
    one_run: Callable[[str, int], R],
    runs: Mapping[str, int],
    row: Callable[[str, list[R]], dict[str, str]],
    head: Sequence[str],
) -> None:
    """Make the runs of a program, and write the paragraphs ``head`` and a table with the ``row`` of each setting.

    With ``--only`` rows of other settings, and the command, stay as they are in the table; a new row is its last.
    """
    chosen = options(doc, out, f"{out.stem}.py")
    if chosen.only:
        runs = {name: runs[name] for name in chosen.only}
    results = repeated(one_run, runs, chosen, told=lambda name, found: f"{name}: {row(name, found)}")
    rows = [row(name, found) for name, found in results.items()]
    if chosen.only:
        text = chosen.out.read_text("utf-8")
        first = next(iter(rows[0]))
        new = {cells[first]: cells for cells in rows}
        rows = [new.pop(cells[first], cells) for cells in read_table(text, head[0])] + list(new.values())
        made = next(line for line in text.splitlines() if line.startswith("Made by "))
        write(
            chosen.out, [*head, table(list(rows[0]), [list(cells.values()) for cells in rows]), f"{made}\n"]
        )
        return
    body = table(list(rows[0]), [list(cells.values()) for cells in rows])
    write(chosen.out, [*head, body, provenance(chosen.command)])
