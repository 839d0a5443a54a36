"""Files of a policy directory as memory maps, safe from mixing when the directory is replaced meanwhile."""

import hashlib
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo.artifacts.layout import damaged

ARROW_MAGIC = b"ARROW1"


@dataclass(frozen=True)
class Folder:
    """An open directory; its files are found even after another directory has taken its name."""

    path: Path
    descriptor: int | None

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["Folder"]:
        """Hold the directory open."""
        descriptor = os.open(path, os.O_RDONLY) if os.open in os.supports_dir_fd else None
        try:
            yield cls(path, descriptor)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def is_at(self, path: Path) -> bool:
        """Whether a path leads to this directory now; True where the system cannot tell."""
        if self.descriptor is None:
            return True
        try:
            return os.path.samestat(path.stat(), os.fstat(self.descriptor))
        except FileNotFoundError:
            return False

    def _file(self, name: str) -> int:
        if self.descriptor is None:
            return os.open(self.path / name, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        return os.open(name, os.O_RDONLY, dir_fd=self.descriptor)

    def read(self, name: str) -> bytes:
        """Return the bytes of one file."""
        with os.fdopen(self._file(name), "rb") as file:
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
