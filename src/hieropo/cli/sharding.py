"""Sharded moments on the command line: a part of a log, a merge, and what they report."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hieropo._utils.text import counted, whole
from hieropo.cli.console import print_json, usage_error
from hieropo.cli.source import STANDARD_INPUT, Rows


@dataclass(frozen=True)
class PartOption:
    """The value of ``--part``: the number of a part, and into how many parts the files of the log are cut, or 0.

    Parameters
    ----------
    number, count : int
    """

    number: int
    count: int

    def __str__(self) -> str:
        """Return the value as it was given."""
        return f"{self.number}/{self.count}" if self.count else str(self.number)


def part_option(_: click.Context, __: click.Parameter, value: str | None) -> PartOption | None:
    """Read ``--part``."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,5})(?:/(\d{1,5}))?", value)
    if match is None:
        raise click.BadParameter(
            f"{value!r} is neither a number, such as 3, nor a part of several, such as 3/8."
        )
    number, count = int(match[1]), int(match[2] or 0)
    if match[2] is not None and not 1 <= number <= count:
        raise click.BadParameter(
            f"{value!r} is no part: of {count} parts the first is 1 and the last {count}."
        )
    return PartOption(number, count)


def shards_option(_: click.Context, __: click.Parameter, value: int | None) -> int | None:
    """Check ``--shards``."""
    from hieropo.errors import InputError
    from hieropo.rows.task_hash import check_shards

    if value is not None:
        try:
            check_shards(value)
        except InputError as error:
            raise click.BadParameter(str(error)) from error
    return value


@dataclass(frozen=True)
class Target:
    """The directory of the shards of a log, or of one part of it.

    Parameters
    ----------
    output : Path
    shards : int
    part : PartOption or None
    files : LogFiles or None
        The files of the part; None where it is all of the log.
    inputs : dict
        Names, lengths and times of change of all files that are read.
    """

    output: Path
    shards: int
    part: PartOption | None
    files: Any
    inputs: dict[str, Any]

    @classmethod
    def of(cls, output: str, shards: int | None, part: PartOption | None, rows: Rows) -> "Target | None":
        """Return the target of ``--shards`` and ``--part``; None without either."""
        if shards is None:
            if part is not None:
                usage_error("--part is for moments in shards: give --shards too, such as --shards 16.")
            return None
        files = _files_of_part(part, rows)
        paths = files.files if files is not None else _files(rows)
        identities = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in paths]
        inputs = {**rows.to_dict(), "part": None if part is None else str(part), "files": identities}
        return cls(Path(output), shards, part, files, inputs)

    @property
    def folder(self) -> Path:
        """Return the directory to write."""
        from hieropo.storage.shards import part_name

        return self.output if self.part is None else self.output / part_name(self.part.number)

    @property
    def finished(self) -> Any:
        """Return the shards that are written already, of the same inputs; None where there are none."""
        from hieropo.passes.sharded import ShardedMoments
        from hieropo.storage import layout

        if not (self.folder / layout.SHARDS.document).is_file():
            return None
        sharded = ShardedMoments.open(self.folder)
        return (
            sharded if sharded.n_shards == self.shards and dict(sharded.plan.inputs) == self.inputs else None
        )

    def prepare(self) -> None:
        """Refuse a directory that cannot be written, before a long pass over a log; make that of the parts."""
        from hieropo.storage.shards import check_directory

        check_directory(self.output)
        if self.part is not None:
            self.output.mkdir(exist_ok=True)
            check_directory(self.folder)

    def write(self, moments: Any, provenance: dict[str, Any]) -> Any:
        """Write the shards, and return them; a job that was stopped goes on from the shards that are done."""
        from hieropo.passes.sharded import ShardedMoments

        part = {} if self.part is None else {"part": [self.part.number, self.part.count]}
        return ShardedMoments.of(
            moments, self.folder, shards=self.shards, provenance={**provenance, **part}, inputs=self.inputs
        )

    def report(self, sharded: Any, more: dict[str, Any], *, as_json: bool) -> None:
        """Print what was written."""
        report_shards(sharded, str(self.folder), more, as_json=as_json, part=self.part is not None)


def _files_of_part(part: PartOption | None, rows: Rows) -> Any:
    """Return the files of a part; None where it is all of the log."""
    if part is None or not part.count:
        return None
    if _is_no_path(rows):
        usage_error(f"--part {part} cuts the files of a log into parts, and {rows} is no log in files.")
    from hieropo.logs.formats.paths import find_files, part_of_files

    return part_of_files(find_files(rows.place), part.number, part.count)


def _files(rows: Rows) -> Sequence[Path]:
    """Return the files of all rows; none of a query or of standard input."""
    from hieropo.logs.formats.paths import find_files

    return () if _is_no_path(rows) else find_files(rows.place).files


def _is_no_path(rows: Rows) -> bool:
    return rows.sql is not None or rows.place == STANDARD_INPUT


def merge_shards(paths: Sequence[str], output: str, shards: int | None) -> Any:
    """Merge directories of sharded moments, or the parts in a directory, and return the result."""
    from hieropo.passes.sharded import ShardedMoments, merged, parts_of_log
    from hieropo.storage.shards import parts_in

    inputs: list[Any] = []
    for path in paths:
        inputs += parts_of_log(path) if parts_in(Path(path)) else [ShardedMoments.open(path)]
    return merged(inputs, output, shards=shards, provenance={"merged": list(paths)})


def report_shards(
    sharded: Any, output: str, more: dict[str, Any], *, as_json: bool, part: bool = False
) -> None:
    """Print what a directory of sharded moments holds."""
    from hieropo.rows.ids import abbreviate

    features = sharded.features
    actions = None if features.actions is None else list(features.actions)
    tasks = sharded.sums().shard_tasks
    report = {
        "moments": output, "rows": whole(sharded.n_rows), "tasks": len(sharded), "shards": sharded.n_shards,
        "tasks_of_shards": [min(tasks), max(tasks)], "actions": actions, "features": features.dim,
        "columns": sharded.roles.to_dict(), "bytes": sharded.nbytes, **more,
    }  # fmt: skip
    if as_json:
        print_json(report)
        return
    listed = "actions described by columns" if actions is None else f"the actions {abbreviate(actions, 10)}"
    parent = shlex.quote(str(Path(output).parent))
    following = f"moments merge {parent} -o OUT" if part else f"fit {shlex.quote(output)} -o policy"
    click.echo(
        f"{output} holds the moments of {counted(sharded.n_rows, 'row')} of {counted(len(sharded), 'task')} in "
        f"{counted(sharded.n_shards, 'shard')}: {counted(features.dim, 'feature')}, {listed}; "
        f"{sharded.nbytes / 1e6:,.1f} MB.\n"
        f"Columns: {', '.join(f'{role} {column}' for role, column in sharded.roles.items())}.\n"
        f"Next: hieropo {following}"
    )
