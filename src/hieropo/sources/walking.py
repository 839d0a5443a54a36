"""All files below a folder, or that a pattern names: where a part of them cannot be seen, that is an error."""

import errno
import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path

from hieropo.errors import InputError, LogError

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
