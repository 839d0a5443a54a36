"""Which files a path names, and of which format they are; where a part of them cannot be seen, that is an error."""

import errno
import glob
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from hieropo.errors import InputError, LogError, warn

WILD = re.compile(r"[*?\[]")


def files_below(folder: Path) -> list[Path]:
    """Return the files of a folder and of those below it, in order; those with names like .x or _x are left out.

    Links are followed.

    Raises
    ------
    PermissionError
        A folder may not be read.
    LogError
        A link leads nowhere, or back to a folder that it lies in.
    """
    return sorted(_walked(folder, ()))


def _walked(folder: Path, above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    status = folder.stat()
    here = (status.st_dev, status.st_ino)
    if here in above:
        raise LogError(
            f"{str(folder)!r} is a link to a folder that it lies in, so that its files never end. Remove the link, or "
            "name the files by a glob."
        )
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if entry.name.startswith((".", "_")):
            continue
        path = folder / entry.name
        if entry.is_dir():
            yield from _walked(path, (*above, here))
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
            for folder in _named(str(Path(*parts[: k + ("**" in part)]))):
                if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    found = [path for path in _named(pattern) if not path.is_dir()]
    for path in found:
        refuse_unusual(path)
    return sorted(found)


def _named(pattern: str) -> list[Path]:
    return [Path(each) for each in glob.glob(pattern, recursive=True)]  # noqa: PTH207


def refuse_unusual(path: Path) -> None:
    """Refuse what is no file that can be read more than once.

    Raises
    ------
    LogError
        A link that leads nowhere.
    InputError
        A pipe, a terminal or the like.
    """
    if not path.exists():
        raise LogError(
            f"{str(path)!r} is a link that leads nowhere. Was a file moved or removed? Mend the link or remove it."
        )
    if not path.is_file():
        raise InputError(
            f"{str(path)!r} is no file but a pipe or a device, which cannot be read twice, as a log is. Write it to a "
            "file, and name that."
        )


FORMATS = {
    "Parquet": (".parquet", ".parq", ".pq"),
    "CSV": (".csv", ".tsv", ".tab"),
    "JSON lines": (".jsonl", ".ndjson", ".json"),
    "Arrow IPC": (".arrow", ".ipc", ".feather", ".arrows"),
}
DATABASES = (".duckdb", ".ddb")
TEXTS = ("CSV", "JSON lines")
_COMPRESSED = (".gz", ".bz2", ".zst")
_MAGIC = {b"PAR1": "Parquet", b"ARRO": "Arrow IPC"}
_OTHERS = {
    ".orc": "pyarrow.orc.read_table(path)",
    ".xlsx": "pandas.read_excel(path)",
    ".xls": "pandas.read_excel(path)",
    ".avro": "polars.read_avro(path)",
}
_BESIDE = re.compile(
    r"^(readme|licen[cs]e|notice)\b|\.(md|crc|md5|sha256)$", re.IGNORECASE
)  # beside logs, never of them
_SAY = "Say what to read: open_log(sql('select ...', {})), or --sql 'select ...' on the command line."
_SQL = re.compile(r"\s*(select|with|from|values|table|describe)\s+\S+", re.IGNORECASE)
_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """Files of one format that are a log, in order; folders below ``root`` may name columns."""

    kind: str
    files: tuple[Path, ...]
    root: Path
    name: str


def find_files(source: str | os.PathLike[str]) -> Found:
    """Find the files of a log: one file, all of a folder and below, or those that a glob names; ordered by path.

    Of a folder, files and folders whose names begin with a dot or an underscore are left out, as the writers of such
    folders mean it. Links are followed.

    Raises
    ------
    InputError
        Nothing is there, or this user may not read it or a part of it; it is SQL, a URL, a pipe.
    LogError
        No file of a known format, files of several, a table format whose folder also holds dead rows, a link that leads
        nowhere.

    Warns
    -----
    HieropoWarning
        A folder also holds files of other kinds, which are not read.
    """
    text = os.fspath(source)
    _refuse_other_texts(text)
    path = Path(text)
    try:
        if path.is_dir():
            return _inside(path)
        if not path.exists():
            return _matching(text)
        refuse_unusual(path)
        kind = _format_of(path, look=True)
        if kind is None:
            raise LogError(_unknown(path))
        return Found(kind, (path,), path.parent, f"{kind} file {str(path)!r}")
    except PermissionError as error:
        raise InputError(
            f"{str(error.filename or path)!r} cannot be read: permission denied. Is it open to this user, and every "
            "folder above it?"
        ) from error


def _inside(folder: Path) -> Found:
    _refuse_table_formats(folder)
    shown = files_below(folder)
    files = [path for path in shown if _format_of(path) is not None]
    if not files:
        others = sorted({path.suffix for path in shown if path.suffix})
        has = f"it holds files ending in {', '.join(others)}" if others else "it is empty"
        raise LogError(
            f"There is no log in the folder {str(folder)!r} or below ({has}). Its files must end in {_endings()}."
        )
    kind = _only_format(files, f"The folder {str(folder)!r} holds files", folder)
    left = [path for path in shown if _format_of(path) is None and not _BESIDE.search(path.name)]
    if left:
        more = f" and {len(left) - 1:,} more" if left[1:] else ""
        warn(
            f"Of the folder {str(folder)!r} {len(files):,} {kind} files are read, and {str(left[0])!r}{more} not: the "
            "ending is of no log. If it is a part of the log, rename it."
        )
    return Found(kind, tuple(files), folder, f"{kind} folder {str(folder)!r}")


def _matching(pattern: str) -> Found:
    if not WILD.search(pattern):
        if Path(pattern).is_symlink():
            refuse_unusual(Path(pattern))
        raise InputError(_not_found(Path(pattern)))
    files = files_matching(pattern)
    if not files:
        raise InputError(
            f"No file matches {pattern!r}. ** stands for any folders, * for any part of a name; what lies in a folder "
            f"is named by a further /*. {_start(Path(pattern))}"
        )
    strays = [path for path in files if _format_of(path) is None]
    if strays:
        raise LogError(f"{pattern!r} also matches a file that is no log: {_unknown(strays[0])}")
    fixed = []
    for part in Path(pattern).parts:
        if WILD.search(part):
            break
        fixed.append(part)
    root = Path(*fixed)
    kind = _only_format(files, f"The files that match {pattern!r} are", root)
    return Found(kind, tuple(files), root, f"{kind} files {pattern!r}")


def _only_format(files: Iterable[Path], what: str, root: Path) -> str:
    kinds = sorted({str(_format_of(path)) for path in files})
    if len(kinds) > 1:
        raise LogError(
            f"{what} of several formats: {', '.join(kinds)}. Which is the log? Name it by a glob, such as "
            f"{str(root / '**' / '*')!r} with its ending."
        )
    return kinds[0]


def _format_of(path: Path, *, look: bool = False) -> str | None:
    """Format of a file, told by its name; with ``look`` first by how it begins."""
    if look:
        with path.open("rb") as file:
            known = _MAGIC.get(file.read(4))
        if known is not None:
            return known
    name = path.name.lower()
    for ending in _COMPRESSED:
        shorter = name.removesuffix(ending)
        if shorter != name:
            return next((kind for kind in TEXTS if shorter.endswith(FORMATS[kind])), None)
    return next((kind for kind, endings in FORMATS.items() if name.endswith(endings)), None)


def _endings() -> str:
    return ", ".join(ending for endings in FORMATS.values() for ending in endings)


def _unknown(path: Path) -> str:
    text = f"{str(path)!r} is of no format that is read"
    if path.suffix.lower() in _OTHERS:
        return f"{text}. Hand over {_OTHERS[path.suffix.lower()]}."
    if path.suffix.lower() in DATABASES:
        return f"{text}: it is a database. {_SAY.format(repr(str(path)))}"
    return (
        f"{text}: neither its ending nor its first bytes are known. Endings are {_endings()}, and "
        f"{' or '.join(_COMPRESSED)} after those of text. Rename it, or is it empty or another file?"
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
    text = f"There is no file or folder {str(path)!r}{_start(path, '; r')}"
    if path.parts and path.parts[0].startswith("~"):
        text += "; write Path(...).expanduser() for a path that begins with ~"
    near = (
        get_close_matches(path.name, [p.name for p in path.parent.glob("*")], n=1, cutoff=0.75)
        if path.name
        else []
    )
    return text + (f". Did you mean {str(path.parent / near[0])!r}?" if near else ". Check the spelling.")


def _start(path: Path, begin: str = "R") -> str:
    return "" if path.is_absolute() else f"{begin}elative paths start at {str(Path.cwd())!r}"


def _refuse_other_texts(text: str) -> None:
    if _SQL.match(text) and not Path(text).exists():
        raise InputError(
            f"{short(text)} looks like SQL, but a str is taken as a path. Say where it runs: "
            "open_log(sql(query, connection)), or hand over duckdb.sql(query)."
        )
    if _URL.match(text):
        raise InputError(_of_url(text))
    if not text:
        raise InputError("The path of the log is empty. Name a file or a folder.")


def _of_url(text: str) -> str:
    if text.lower().startswith(("postgres://", "postgresql://", "duckdb://")):
        return f"This is a database. {_SAY.format('url')}"
    return (
        f"{short(text)} is a URL; only local paths are opened. Hand over "
        "pyarrow.dataset.dataset(url, format='parquet') or duckdb.read_parquet(url)."
    )


def short(text: str) -> str:
    """Quote the beginning of a text."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
