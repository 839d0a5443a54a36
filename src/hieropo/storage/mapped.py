"""Memory maps of all files of a directory, consistent while writers replace it."""

import hashlib
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo.errors import ArtifactError, warn
from hieropo.storage.directories import displaced, has_writer
from hieropo.storage.layout import Kind, damaged, decode, kind_of

ARROW_MAGIC = b"ARROW1"
ATTEMPTS, PAUSE = 50, 0.01  # together longer than a live writer leaves the path without a directory

Opened = tuple[Path, dict[str, Any], dict[str, "MappedFile"]]


def open_directory(path: Path, kind: Kind) -> Opened:
    """Return the directory, its document and its memory-mapped files.

    An error counts only if its directory is still the one at ``path``; otherwise a writer has replaced it, and the new
    one is opened.

    Raises
    ------
    ArtifactError
        There is no directory of this kind, it may not be read, its document has changed, or a file has another length.
    """
    try:
        opened = _map_settled(path, kind) or _map_remaining(path, kind)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}. Check its permissions.") from error
    if opened is None:
        raise ArtifactError(f"{path} was replaced {ATTEMPTS} times while it was being opened. Try again.")
    if opened[0] != path:
        warn(
            f"{path} is missing, because the process that was replacing it died. Its previous content, "
            f"{opened[0].name}, is read in its place. Save again, or rename that directory to {path.name}.",
        )
    return opened


def _map_settled(path: Path, kind: Kind) -> Opened | None:
    for _ in range(ATTEMPTS):
        opened = _map_files(path, kind)
        if opened is not None:
            return opened
        if not (has_writer(path) or path.exists()):
            break
        time.sleep(PAUSE)
    return None


def _map_remaining(path: Path, kind: Kind) -> Opened | None:
    place = path if path.exists() else displaced(path)
    if place is None:
        raise ArtifactError(f"{path} does not exist. Give the path of a directory that holds {kind.called}.")
    return _map_files(place, kind)


def _map_files(place: Path, kind: Kind) -> Opened | None:
    """Map the files of a directory; return None where it does not exist, or was replaced meanwhile."""
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
    """An open directory, whose files can be opened even after another directory has taken its name."""

    path: Path
    descriptor: int | None
    status: os.stat_result

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["Folder"]:
        """Open the directory for the length of a context."""
        descriptor = os.open(path, os.O_RDONLY) if os.open in os.supports_dir_fd else None
        try:
            yield cls(path, descriptor, path.stat() if descriptor is None else os.fstat(descriptor))
        finally:
            if descriptor is not None:
                os.close(descriptor)

    @property
    def held(self) -> bool:
        """Return True where the directory stays open when it is renamed; not on Windows, which opens no directories."""
        return self.descriptor is not None

    def in_place(self) -> bool:
        """Return True where the path still leads to this directory."""
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
            There is no document, or the path is a file.
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
                f"{self.path} is a file. Give the directory that holds {kind.document}."
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
    """One mapped file and its entry in the document: length, checksum, position of each column."""

    folder: Path
    name: str
    entry: dict[str, Any]
    data: mmap.mmap

    @cached_property
    def rows(self) -> int:
        """Return the number of rows of the table."""
        return int(self.entry["rows"])

    def verify(self) -> None:
        """Check the whole file against its checksum, once.

        Raises
        ------
        ArtifactError
            It has changed since it was written.
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
        """Return a column as a view, (rows,) or (rows, width).

        Raises
        ------
        ArtifactError
            The file has too few bytes.
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


def digest_of(file: BufferedReader) -> str:
    """Return the SHA-256 of the bytes of an open file as text."""
    return hashlib.file_digest(file, "sha256").hexdigest()


def sha256(data: Any) -> str:
    """Return the SHA-256 of a buffer as text."""
    view = memoryview(data)
    digest = hashlib.sha256()
    for start in range(0, len(view), 1 << 24):  # releases the interpreter lock for each piece
        digest.update(view[start : start + (1 << 24)])
    return digest.hexdigest()
