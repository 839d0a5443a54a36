"""Find a policy directory and map all its files at one moment, whatever a writer does meanwhile."""

import warnings
from pathlib import Path
from typing import Any

from hieropo.artifacts.layout import DOCUMENT, decode
from hieropo.artifacts.mapped import Folder, MappedFile
from hieropo.artifacts.swap import aside
from hieropo.errors import ArtifactError, HieropoWarning

ATTEMPTS = 20

Opened = tuple[Path, dict[str, Any], dict[str, MappedFile]]


def open_directory(path: Path) -> Opened:
    """Return the directory, its document and its files, mapped.

    Raises
    ------
    ArtifactError
        There is no policy, it may not be read, its document was changed or a file has another length.
    """
    for _ in range(ATTEMPTS):
        place = _find(path)
        opened = _map_files(place, path)
        if opened is not None:
            if place != path:
                warnings.warn(
                    f"{path} is missing: the process that was replacing it died. Read instead: {place.name}, "
                    f"the policy that stood there. Save again, or rename that directory to {path.name}.",
                    HieropoWarning,
                    stacklevel=4,
                )
            return opened
    raise ArtifactError(f"{path} was replaced {ATTEMPTS} times while it was being opened. Try again.")


def _find(path: Path) -> Path:
    try:
        if path.exists():
            return path
        found = aside(path)
        missing = found is None and not path.exists()
    except OSError as error:
        raise _unreadable(path, error) from error
    if missing:
        raise ArtifactError(f"{path} does not exist. Check the path: a policy is a directory.")
    return found or path


def _map_files(place: Path, path: Path) -> Opened | None:
    """Map the files of a directory; None where a writer replaced it meanwhile, so ``path`` is another."""
    try:
        with Folder.open(place) as folder:
            try:
                document = decode(folder.read(DOCUMENT), place)
                files = {name: folder.map(name, entry) for name, entry in document["files"].items()}
            except (ArtifactError, FileNotFoundError):
                if not folder.is_at(path) and (place == path or path.exists()):
                    return None
                raise
            return place, document, files
    except FileNotFoundError as error:
        if not place.exists():
            return None
        raise ArtifactError(f"{place} has no {DOCUMENT}, so it is not a policy. Check the path.") from error
    except NotADirectoryError as error:
        raise ArtifactError(f"{place} is a file. Hand in the directory that holds {DOCUMENT}.") from error
    except OSError as error:
        raise _unreadable(place, error) from error


def _unreadable(path: Path, error: OSError) -> ArtifactError:
    return ArtifactError(f"{path} cannot be read: {error.strerror}. May this user read it?")
