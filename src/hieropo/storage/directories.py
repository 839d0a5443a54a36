"""Atomic replacement of directories, and the parts that all kinds have: provenance and feature map.

The new directory is written beside its target, under a hidden name, and locked while its writer lives. Where
the target exists, the kernel exchanges the two names in one step. Where it cannot (some network file
systems), the old directory is renamed first, and :func:`displaced` finds it if the writer dies in between.
"""

import ctypes
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hieropo._utils.directory_locks import lock_directory, locked, open_directory
from hieropo.errors import ArtifactError, InputError
from hieropo.features.maps import FeatureMap, feature_map_from_dict
from hieropo.storage import layout

RENAME_EXCHANGE = 2  # Linux; the swap flag of macOS has the same value
CURRENT_DIRECTORY = -100 if sys.platform == "linux" else -2


@contextmanager
def replacing(target: Path, check: Callable[[Path], None]) -> Iterator[Path]:
    """Yield an empty directory to write into; on a clean exit it becomes ``target``, otherwise it is removed.

    Parameters
    ----------
    target : Path
        Its parent must exist.
    check : callable
        Called with ``target`` before anything is written, and again before it is replaced. Raises where ``target``
        must be kept.
    """
    with locked(target.parent):
        check(target)
        _remove_leftovers(target)
    folder, lock = _claim(target)
    try:
        yield folder
        for path in (*folder.iterdir(), folder):
            _sync(path)
        with locked(target.parent):
            check(target)
            _publish(folder, target)
            _sync(target.parent)
            _remove_leftovers(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove(target: Path) -> None:
    """Remove a directory, and the leftovers of writers that died beside it."""
    target = Path(os.path.realpath(target))
    with locked(target.parent):
        for folder in (*_siblings(target, "replaced"), target):
            with suppress(FileNotFoundError):
                folder.rename(_sibling(target, "saving"))  # in one step: a reader never finds a part of it
        _remove_leftovers(target)


def displaced(target: Path) -> Path | None:
    """Return the directory that was displaced from a missing ``target`` by a writer that died; None without one."""
    with suppress(OSError):
        return max(_siblings(target, "replaced"), key=lambda path: path.stat().st_ctime_ns, default=None)
    return None


def has_writer(target: Path) -> bool:
    """Return True where a writer of ``target`` is at work beside it, or died there."""
    with suppress(OSError):
        return bool(_siblings(target, "saving|replaced"))
    return False


def _sibling(target: Path, role: str) -> Path:
    return target.with_name(f".{target.name}.{role}-{secrets.token_hex(6)}")


def _siblings(target: Path, roles: str) -> list[Path]:
    target = Path(os.path.realpath(target))
    hidden = re.compile(rf"\.{re.escape(target.name)}\.({roles})-[0-9a-f]{{12}}")
    return [path for path in target.parent.iterdir() if hidden.fullmatch(path.name)]


def _claim(target: Path) -> tuple[Path, int | None]:
    """Make and lock a hidden directory beside ``target``; return it with its lock."""
    while True:
        folder = _sibling(target, "saving")
        folder.mkdir()
        lock = open_directory(folder)
        if lock is not None:
            lock_directory(lock, wait=True)
        if folder.exists():  # until it was locked, another writer may have taken it for a leftover
            return folder, lock
        if lock is not None:
            os.close(lock)


def _publish(folder: Path, target: Path) -> None:
    if not target.exists() or not any(target.iterdir()):
        folder.rename(target)  # replaces an empty directory
    elif not exchange(folder, target):
        old = _sibling(target, "replaced")
        target.rename(old)
        try:
            folder.rename(target)
        except BaseException:
            old.rename(target)
            raise


def exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step; return False where the system or file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform != "win32" else None
    call = getattr(libc, "renameat2" if sys.platform == "linux" else "renameatx_np", None)
    if call is None:
        return False
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    names = CURRENT_DIRECTORY, os.fsencode(one), CURRENT_DIRECTORY, os.fsencode(other)
    return bool(call(*names, RENAME_EXCHANGE) == 0)


def _remove_leftovers(target: Path) -> None:
    for folder in _siblings(target, "replaced") if target.exists() else ():
        shutil.rmtree(folder, ignore_errors=True)
    for folder in _siblings(target, "saving"):
        _remove_abandoned(folder)


def _remove_abandoned(folder: Path) -> None:
    lock = open_directory(folder)
    if lock is None:
        return
    try:
        if lock_directory(
            lock, wait=False
        ):  # held until the folder is removed, so that no writer can claim it
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _sync(path: Path) -> None:
    if sys.platform == "win32":  # fsync there needs a descriptor that can write, and directories have none
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing(path: str | os.PathLike[str], kind: layout.Kind) -> Iterator[Path]:
    """Yield an empty directory to write into, which replaces ``path`` at the end.

    Raises
    ------
    ArtifactError
        ``path`` holds something else, or cannot be written; its content is unchanged.
    """
    target = Path(os.path.realpath(path))
    try:
        with replacing(target, lambda place: layout.check_replaceable(place, kind)) as folder:
            yield folder
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ArtifactError(
            f"{target} was not written: {reason}. Its previous content is unchanged. Check the space on the disk, "
            "quotas and permissions."
        ) from error


def plain_json(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return a provenance as JSON reads it back.

    Raises
    ------
    InputError
        An entry would not be read back equal.
    """
    try:
        decoded = json.loads(json.dumps(dict(provenance), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"The provenance is not JSON: {error}. Use texts, numbers and lists.") from error
    for key, value in provenance.items():
        if decoded.get(key) != value:
            raise InputError(
                f"The provenance entry {key!r} = {value!r} would be read back as {decoded.get(key)!r}. "
                "Use text keys, and lists in place of tuples."
            )
    return dict(decoded)


def read_features(folder: Path, document: Mapping[str, Any], kind: layout.Kind) -> FeatureMap | None:
    """Return the feature map of a document; None where it has none.

    Raises
    ------
    ArtifactError
        This release cannot read it, or computes another fingerprint.
    """
    entry = document["features"]
    if entry is None:
        return None
    try:
        features = feature_map_from_dict(entry)
    except InputError as error:
        raise ArtifactError(
            f"{folder}: {kind.document} holds a feature map that this release cannot read ({error}). It was written by "
            f"{document['written_by']}. Use that release, or make {kind.called} again."
        ) from error
    if features.fingerprint != document["features_fingerprint"]:
        raise other_number(folder, "the fingerprint of the feature map differs from the saved one")
    return features


def other_number(folder: Path, problem: str) -> ArtifactError:
    """Return the error for intact files from which this release computes another number than was saved."""
    return ArtifactError(
        f"{folder}: {problem}. The files are intact, so this release computes another number than the one that saved "
        "it. Use that release, or fit and save again."
    )


def unreadable(folder: Path, entry: str, error: Exception) -> ArtifactError:
    """Return the error for an entry of a policy's document that does not describe a value."""
    reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    return ArtifactError(
        f"{folder}: the entry {entry!r} of {layout.POLICY.document} cannot be read: {reason}. The checksum is right, "
        "so the file was edited, or written by another program. The policy cannot be inspected, evaluated or updated. "
        "Restore the directory from a copy, or fit and save again."
    )
