"""Find a directory and map all its files at one moment, whatever a writer does meanwhile."""

import hashlib
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo.errors import ArtifactError, warn
from hieropo.storage.directories import aside, attended
from hieropo.storage.layout import Kind, damaged, decode, kind_of

ARROW_MAGIC = b"ARROW1"
ATTEMPTS, PAUSE = 50, 0.01  # together longer than any live writer leaves a path without what was there

Opened = tuple[Path, dict[str, Any], dict[str, "MappedFile"]]


def open_directory(path: Path, kind: Kind) -> Opened:
    """Return the directory, its document and its files, mapped.

    A fault counts only where the directory in which it was found still stands at ``path``; otherwise a writer
    has replaced it, and whatever stands there now is opened.

    Raises
    ------
    ArtifactError
        There is none of this kind, it may not be read, its document was changed or a file has another length.
    """
    try:
        opened = _map_settled(path, kind) or _map_remaining(path, kind)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}. May this user read it?") from error
    if opened is None:
        raise ArtifactError(f"{path} was replaced {ATTEMPTS} times while it was being opened. Try again.")
    if opened[0] != path:
        warn(
            f"{path} is missing: the process that was replacing it died. Read instead: {opened[0].name}, "
            f"what stood there. Save again, or rename that directory to {path.name}.",
        )
    return opened


def _map_settled(path: Path, kind: Kind) -> Opened | None:
    for _ in range(ATTEMPTS):
        opened = _map_files(path, kind)
        if opened is not None:
            return opened
        if not (attended(path) or path.exists()):
            break
        time.sleep(PAUSE)
    return None


def _map_remaining(path: Path, kind: Kind) -> Opened | None:
    place = path if path.exists() else aside(path)
    if place is None:
        raise ArtifactError(
            f"{path} does not exist. Check the path, of a directory that holds {kind.called}."
        )
    return _map_files(place, kind)


def _map_files(place: Path, kind: Kind) -> Opened | None:
    """Map the files of a directory; None where there is none, or another took its place meanwhile."""
    try:
        with Folder.open(place) as folder:
            try:
                document = decode(folder.read(kind), place, kind)
                files = {name: folder.map(name, entry) for name, entry in document["files"].items()}
            except (ArtifactError, OSError):
                if folder.in_place():
                    raise
                return None
            return (place, document, files) if folder.held or folder.in_place() else None
    except (FileNotFoundError, NotADirectoryError):
        return None


@dataclass(frozen=True)
class Folder:
    """An open directory; its files are found even after another directory has taken its name."""

    path: Path
    descriptor: int | None
    status: os.stat_result

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["Folder"]:
        """Hold the directory open."""
        descriptor = os.open(path, os.O_RDONLY) if os.open in os.supports_dir_fd else None
        try:
            yield cls(path, descriptor, path.stat() if descriptor is None else os.fstat(descriptor))
        finally:
            if descriptor is not None:
                os.close(descriptor)

    @property
    def held(self) -> bool:
        """Whether the files are this directory's wherever it is moved; Windows opens no directories."""
        return self.descriptor is not None

    def in_place(self) -> bool:
        """Whether the path leads to this directory now."""
        try:
            return os.path.samestat(self.path.stat(), self.status)
        except OSError:
            return False

    def _file(self, name: str) -> int:
        if self.descriptor is None:
            return os.open(self.path / name, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        return os.open(name, os.O_RDONLY, dir_fd=self.descriptor)

    def read(self, kind: Kind) -> bytes:
        """Return the bytes of the document.

        Raises
        ------
        ArtifactError
            There is none, or no directory.
        """
        try:
            descriptor = self._file(kind.document)
        except FileNotFoundError as error:
            other = kind_of(self.path)
            holds = "" if other is None else f" It holds {other.called}."
            raise ArtifactError(
                f"{self.path} has no {kind.document}, so it does not hold {kind.called}.{holds} Check the path."
            ) from error
        except NotADirectoryError as error:
            raise ArtifactError(
                f"{self.path} is a file. Hand in the directory that holds {kind.document}."
            ) from error
        with os.fdopen(descriptor, "rb") as file:
            return file.read()

    def map(self, name: str, entry: dict[str, Any]) -> "MappedFile":
        """Map one file, whose length must be that of its entry in the document.

        Raises
        ------
        ArtifactError
            The file is missing, of another length, or does not begin and end as an Arrow file does.
        """
        try:
            descriptor = self._file(name)
        except FileNotFoundError as error:
            raise damaged(self.path, name, "is missing") from error
        try:
            size = os.fstat(descriptor).st_size
            if size != entry["bytes"]:
                raise damaged(self.path, name, f"has {size} bytes and was written with {entry['bytes']}")
            file = MappedFile(self.path, name, entry, mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(descriptor)
        if file.data[:6] != ARROW_MAGIC or file.data[-6:] != ARROW_MAGIC:
            raise damaged(self.path, name, "does not begin and end as an Arrow file does")
        return file


@dataclass(frozen=True)
class MappedFile:
    """One mapped file and its entry in the document: length, checksum, place of each column."""

    folder: Path
    name: str
    entry: dict[str, Any]
    data: mmap.mmap

    @cached_property
    def rows(self) -> int:
        """Number of rows of the table."""
        return int(self.entry["rows"])

    def verify(self) -> None:
        """Read the whole file, once.

        Raises
        ------
        ArtifactError
            It is not as it was written.
        """
        if not self._intact:
            raise damaged(self.folder, self.name, "does not have the checksum that it was written with")

    @cached_property
    def _intact(self) -> bool:
        return bool(sha256(self.data) == self.entry["sha256"])

    def bytes_of(self, column: str, buffer: int = 0) -> memoryview:
        """Return the bytes of one buffer of a column: its values, or offsets (0) and text (1)."""
        start, length = self.entry["columns"][column]["buffers"][buffer]
        return memoryview(self.data)[start : start + length]

    def array(self, column: str, dtype: str, width: int | None = None) -> NDArray[Any]:
        """View a column as an array (rows,) or (rows, width).

        Raises
        ------
        ArtifactError
            The file holds less than that.
        """
        start, length = self.entry["columns"][column]["buffers"][0]
        count = self.rows * (1 if width is None else width)
        if length < count * np.dtype(dtype).itemsize or start + length > len(self.data):
            raise damaged(self.folder, self.name, f"has too few bytes ({length}) in column {column!r}")
        values = np.frombuffer(self.data, dtype=dtype, count=count, offset=start)
        return values if width is None else values.reshape(self.rows, width)

    def kind_of(self, column: str) -> str:
        """Return the kind of ids that a column holds."""
        return str(self.entry["columns"][column]["kind"])


def sha256(data: Any) -> str:
    """SHA-256 of a buffer, as text."""
    view = memoryview(data)
    digest = hashlib.sha256()
    for start in range(0, len(view), 1 << 24):  # releases the interpreter lock for each piece
        digest.update(view[start : start + (1 << 24)])
    return digest.hexdigest()
