"""Find the files that a path names, and their format; a part of them that cannot be read is an error."""

import errno
import glob
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from hieropo._utils.text import agreeing, counted
from hieropo.errors import InputError, LogError, warn

WILD = re.compile(r"[*?\[]")


def files_below(folder: Path) -> list[Path]:
    """Return the files of a folder and its subfolders, in order; names like .x or _x are left out.

    Links are followed.

    Raises
    ------
    PermissionError
        A folder may not be read.
    LogError
        A link leads nowhere, or back to a folder that it lies in.
    """
    return sorted(_walk(folder, ()))


def _walk(folder: Path, parents: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    status = folder.stat()
    folder_id = (status.st_dev, status.st_ino)
    if folder_id in parents:
        raise LogError(
            f"{str(folder)!r} is a link to a folder that contains it, so that its files never end. Remove the link, or "
            "name the files by a glob."
        )
    with os.scandir(folder) as listing:
        entries = list(listing)
    for entry in entries:
        if entry.name.startswith((".", "_")):
            continue
        path = folder / entry.name
        if entry.is_dir():
            yield from _walk(path, (*parents, folder_id))
        else:
            refuse_unusual(path)
            yield path


def files_matching(pattern: str) -> list[Path]:
    """Return the files that a glob names, in order.

    Raises
    ------
    PermissionError
        A folder in which files could match may not be read.
    LogError
        A link leads nowhere.
    """
    parts = Path(pattern).parts
    for k, part in enumerate(parts):
        if WILD.search(part):
            for folder in _glob(str(Path(*parts[: k + ("**" in part)]))):
                if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    files = [path for path in _glob(pattern) if not path.is_dir()]
    for path in files:
        refuse_unusual(path)
    return sorted(files)


def _glob(pattern: str) -> list[Path]:
    return [Path(name) for name in glob.glob(pattern, recursive=True)]  # noqa: PTH207


def refuse_unusual(path: Path) -> None:
    """Refuse a path that is no file which can be read more than once.

    Raises
    ------
    LogError
        A link that leads nowhere.
    InputError
        A pipe, a terminal or the like.
    """
    if not path.exists():
        raise LogError(
            f"{str(path)!r} is a link that leads nowhere, so its rows are missing. Was a file moved or removed? "
            "Correct or remove the link."
        )
    if not path.is_file():
        raise InputError(
            f"{str(path)!r} is a pipe or a device, which cannot be read twice, as a log has to be. Write its rows to a "
            "file, and name that."
        )


FORMATS: dict[str, tuple[str, ...]] = {
    "Parquet": (".parquet", ".parq", ".pq"),
    "CSV": (".csv", ".tsv", ".tab"),
    "JSON lines": (".jsonl", ".ndjson", ".json"),
    "Arrow IPC": (".arrow", ".ipc", ".feather", ".arrows"),
}
DATABASES = (".duckdb", ".ddb")
TEXTS = ("CSV", "JSON lines")
_COMPRESSED = (".gz", ".bz2", ".zst")
_MAGIC = {b"PAR1": "Parquet", b"ARRO": "Arrow IPC"}
_READERS = {
    ".orc": "pyarrow.orc.read_table(path)",
    ".xlsx": "pandas.read_excel(path)",
    ".xls": "pandas.read_excel(path)",
    ".avro": "polars.read_avro(path)",
}
_COMPANIONS = re.compile(
    r"^(readme|licen[cs]e|notice)\b|\.(md|crc|md5|sha256)$", re.IGNORECASE
)  # files that lie beside logs and are never a part of them
_ASK_QUERY = "Give a query: open_log(sql('select ...', {})), or --sql 'select ...' on the command line."
_SQL = re.compile(r"\s*(select|with|from|values|table|describe)\s+\S+", re.IGNORECASE)
_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


@dataclass(frozen=True)
class LogFiles:
    """The files of a log, in order and of one format; folders below ``root`` may name columns."""

    kind: str
    files: tuple[Path, ...]
    root: Path
    name: str


def find_files(source: str | os.PathLike[str]) -> LogFiles:
    """Return the files of a log: one file, all of a folder and its subfolders, or those of a glob; ordered by path.

    In a folder, files and folders whose names begin with a dot or an underscore are left out: tools that write such
    folders use these names for their own files. Links are followed.

    Raises
    ------
    InputError
        The path does not exist, this user may not read a part of it, or it is SQL, a URL or a pipe.
    LogError
        No file of a known format, files of several formats, a table format whose folder also holds deleted rows, a link
        that leads nowhere.

    Warns
    -----
    HieropoWarning
        A folder also holds files of other kinds, which are not read.
    """
    text = os.fspath(source)
    _refuse_non_paths(text)
    path = Path(text)
    try:
        if path.is_dir():
            return _in_folder(path)
        if not path.exists():
            return _in_glob(text)
        refuse_unusual(path)
        kind = _format_of(path, read_start=True)
        if kind is None:
            raise LogError(_unknown_format(path))
        return LogFiles(kind, (path,), path.parent, f"{kind} file {str(path)!r}")
    except PermissionError as error:
        raise InputError(
            f"{str(error.filename or path)!r} cannot be read: permission denied. Give this user the right to read it, "
            "and every folder above it."
        ) from error


def part_of_files(log: LogFiles, number: int, count: int) -> LogFiles:
    """Return part ``number`` (from 1) of ``count`` parts of the files of a log, in order, of about equal bytes.

    Raises
    ------
    LogError
        There are fewer files than parts.
    """
    files = log.files
    if len(files) < count:
        raise LogError(
            f"{log.name} has {len(files)} files, and {count} parts were asked for: a part has at least one file. Ask "
            f"for {len(files)} parts at most."
        )
    ends = [0]
    sizes = [file.stat().st_size for file in files]
    total, passed = sum(sizes), 0
    for k, size in enumerate(sizes):
        passed += size
        left, needed = len(files) - k - 1, count - len(ends)
        if needed and (left <= needed or passed * count >= total * len(ends)):
            ends.append(k + 1)
    ends = [*ends[:count], len(files)]
    part = files[ends[number - 1] : ends[number]]
    return replace(log, files=part, name=f"{log.name}, part {number} of {count}")


def _in_folder(folder: Path) -> LogFiles:
    _refuse_table_formats(folder)
    paths = files_below(folder)
    files = [path for path in paths if _format_of(path) is not None]
    if not files:
        others = sorted({path.suffix for path in paths if path.suffix})
        contents = f"it holds files ending in {', '.join(others)}" if others else "it is empty"
        raise LogError(
            f"There is no log in the folder {str(folder)!r} or below ({contents}). Its files must end in "
            f"{_known_endings()}."
        )
    kind = _only_format(files, f"The folder {str(folder)!r} holds files", folder)
    ignored = [path for path in paths if _format_of(path) is None and not _COMPANIONS.search(path.name)]
    if ignored:
        others_text = f" and {len(ignored) - 1:,} more" if ignored[1:] else ""
        warn(
            f"In the folder {str(folder)!r} {counted(len(files), f'{kind} file')} {agreeing(len(files), 'is', 'are')} "
            f"read, but {str(ignored[0])!r}{others_text} not: this ending belongs to no format of logs. If the file is "
            "a part of the log, rename it."
        )
    return LogFiles(kind, tuple(files), folder, f"{kind} folder {str(folder)!r}")


def _in_glob(pattern: str) -> LogFiles:
    if not WILD.search(pattern):
        if Path(pattern).is_symlink():
            refuse_unusual(Path(pattern))
        raise InputError(_not_found(Path(pattern)))
    files = files_matching(pattern)
    if not files:
        raise InputError(
            f"No file matches {pattern!r}. ** stands for any folders, * for any part of a name; the files of a folder "
            f"need a further /*. {_relative_hint(Path(pattern))}"
        )
    unknown = [path for path in files if _format_of(path) is None]
    if unknown:
        raise LogError(f"{pattern!r} also matches a file that is no log: {_unknown_format(unknown[0])}")
    fixed_parts = []
    for part in Path(pattern).parts:
        if WILD.search(part):
            break
        fixed_parts.append(part)
    root = Path(*fixed_parts)
    kind = _only_format(files, f"The files that match {pattern!r} are", root)
    return LogFiles(kind, tuple(files), root, f"{kind} files {pattern!r}")


def _only_format(files: Iterable[Path], subject: str, root: Path) -> str:
    kinds = sorted({str(_format_of(path)) for path in files})
    if len(kinds) > 1:
        raise LogError(
            f"{subject} of several formats: {', '.join(kinds)}. A log has one. Name its files by a glob, such as "
            f"{str(root / '**' / '*')!r} with their ending."
        )
    return kinds[0]


def _format_of(path: Path, *, read_start: bool = False) -> str | None:
    """Return the format of a file by its name, None if unknown; with ``read_start`` its first bytes are tried first."""
    if read_start:
        with path.open("rb") as file:
            kind = _MAGIC.get(file.read(4))
        if kind is not None:
            return kind
    name = path.name.lower()
    for ending in _COMPRESSED:
        shorter = name.removesuffix(ending)
        if shorter != name:
            return next((kind for kind in TEXTS if shorter.endswith(FORMATS[kind])), None)
    return next((kind for kind, endings in FORMATS.items() if name.endswith(endings)), None)


def _known_endings() -> str:
    return ", ".join(ending for endings in FORMATS.values() for ending in endings)


def _unknown_format(path: Path) -> str:
    text = f"{str(path)!r} is of no format that can be read"
    if path.suffix.lower() in _READERS:
        return f"{text}. Hand over {_READERS[path.suffix.lower()]}."
    if path.suffix.lower() in DATABASES:
        return f"{text}: it is a database. {_ASK_QUERY.format(repr(str(path)))}"
    return (
        f"{text}: neither its ending nor its first bytes are known. Endings are {_known_endings()}, and "
        f"{' or '.join(_COMPRESSED)} after those of text. Is it empty, or the wrong file? If it is a log, rename it."
    )


def _refuse_table_formats(folder: Path) -> None:
    delta = (folder / "_delta_log").is_dir()
    if delta or any((folder / "metadata").glob("*.metadata.json")):
        kind, call = ("a Delta", "delta_scan") if delta else ("an Iceberg", "iceberg_scan")
        raise LogError(
            f"{str(folder)!r} is {kind} table: its Parquet files also hold deleted and replaced rows. "
            f"Read it through its own format, for example duckdb.sql(\"from {call}('{folder}')\"), and "
            "hand that over."
        )


def _not_found(path: Path) -> str:
    if str(path) == "-":
        return (
            "'-' is no file: a log is read more than once, and standard input cannot be. Write it to a file."
        )
    text = f"There is no file or folder {str(path)!r}{_relative_hint(path, '; r')}"
    if path.parts and path.parts[0].startswith("~"):
        text += "; write Path(...).expanduser() for a path that begins with ~"
    similar = (
        get_close_matches(path.name, [p.name for p in path.parent.glob("*")], n=1, cutoff=0.75)
        if path.name
        else []
    )
    return text + (
        f". Did you mean {str(path.parent / similar[0])!r}?" if similar else ". Check the spelling."
    )


def _relative_hint(path: Path, first_letter: str = "R") -> str:
    return "" if path.is_absolute() else f"{first_letter}elative paths start at {str(Path.cwd())!r}"


def _refuse_non_paths(text: str) -> None:
    if _SQL.match(text) and not Path(text).exists():
        raise InputError(
            f"{shortened(text)} looks like SQL, but a str is taken as a path. Name the connection of the query: "
            "open_log(sql(query, connection)), or hand over duckdb.sql(query)."
        )
    if _URL.match(text):
        raise InputError(_url_message(text))
    if text == ":memory:":
        raise InputError(
            f"{text} is DuckDB's database without a file, and needs a query that reads files. "
            f"{_ASK_QUERY.format(repr(text))} Write from 'log.parquet' in it."
        )
    if not text:
        raise InputError("The path of the log is empty. Name a file or a folder.")


def _url_message(text: str) -> str:
    if text.lower().startswith(("postgres://", "postgresql://", "duckdb://")):
        return f"This is a database. {_ASK_QUERY.format('url')}"
    return (
        f"{shortened(text)} is a URL; only local paths are opened. Hand over "
        "pyarrow.dataset.dataset(url, format='parquet') or duckdb.read_parquet(url)."
    )


def shortened(text: str) -> str:
    """Quote a text, cut to 60 characters."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
