"""Archives of policy directories that clients send, unpacked under limits and without trusting any name in them."""

import gzip
import shutil
import stat
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp
from typing import IO

from hieropo.errors import ArtifactError

FOLDER = "incoming"  # of the state; nothing in it outlives a start
_MAX_FILES, _MAX_DEPTH = 10_000, 8
_MAX_HEADER, _MAX_HEADERS = (
    1 << 16,
    1 << 24,
)  # bytes: of one entry with its extended headers, and of all entries
_BLOCK = 1 << 20


@contextmanager
def incoming(state: Path) -> Iterator[Path]:
    """Yield a new directory for one upload, and remove it."""
    (state / FOLDER).mkdir(exist_ok=True)
    folder = Path(mkdtemp(dir=state / FOLDER))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unpacked(archive: Path, target: Path, *, most: int) -> Path:
    """Unpack a tar archive, plain or with gzip, and return the directory that holds the policy.

    Parameters
    ----------
    archive : Path
    target : Path
        A directory that does not exist.
    most : int
        Largest number of bytes of all files together, unpacked.

    Raises
    ------
    ArtifactError
        It is no archive or is torn; it is too large or has too many files; its headers are too large; an entry is no
        plain file or directory, or its name leads out of the archive.
    """
    target.mkdir()
    try:
        with _uncompressed(archive) as raw:
            source = _Source(raw)
            tar = tarfile.TarFile(fileobj=source)  # type: ignore[arg-type]  # all of it that is used
            for entry in _few(source.entries(tar), most):
                place = target.joinpath(*_parts(entry))
                if entry.isdir():
                    place.mkdir(parents=True, exist_ok=True)
                else:
                    _write(tar.extractfile(entry), place)
    except (FileExistsError, NotADirectoryError) as error:
        raise _refused("has two entries of one name") from error
    except (tarfile.TarError, EOFError, OSError, zlib.error, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk
        raise _refused("is torn, or is no tar archive") from error
    return _policy_folder(target)


def _uncompressed(archive: Path) -> IO[bytes] | gzip.GzipFile:
    with archive.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return gzip.GzipFile(archive) if zipped else archive.open("rb")


class _Source:
    """The bytes of an archive, with a limit on those that tarfile reads as headers.

    tarfile reads an extended header of any size into memory, keeps all of them, and one recursion deeper for each that
    follows another.

    Parameters
    ----------
    raw : binary file
        Not compressed any more.
    """

    def __init__(self, raw: IO[bytes] | gzip.GzipFile) -> None:
        self._raw = raw
        self._left, self._all_left = _MAX_HEADER, _MAX_HEADERS
        self._in_header = True  # as TarFile reads the first one when it is made

    def entries(self, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        """Yield the entries of the archive; reads between two of them are of data."""
        while True:
            self._in_header = True
            entry = tar.next()
            if entry is None:
                return
            self._in_header, self._left = False, _MAX_HEADER
            yield entry

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; refuse headers beyond the limits."""
        if self._in_header:
            wanted = _MAX_HEADERS + 1 if size < 0 else size
            self._left -= wanted
            self._all_left -= wanted
            if min(self._left, self._all_left) < 0:
                raise _refused(
                    f"has headers of more than {_MAX_HEADER:,} bytes for an entry, or {_MAX_HEADERS:,} in all"
                )
        return self._raw.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move, and return the new position."""
        return self._raw.seek(offset, whence)

    def tell(self) -> int:
        """Return the position."""
        return self._raw.tell()


def _few(entries: Iterator[tarfile.TarInfo], most: int) -> Iterator[tarfile.TarInfo]:
    """Yield the entries, as long as they are few and small enough together."""
    size = 0
    for count, entry in enumerate(entries):
        size += entry.size
        if count >= _MAX_FILES or not 0 <= entry.size <= size <= most:
            raise _refused(f"has more than {_MAX_FILES:,} entries, or more than {most:,} bytes")
        yield entry
    if not size:
        raise _refused("is empty")


def _parts(entry: tarfile.TarInfo) -> tuple[str, ...]:
    """Return the parts of an entry's name, which stay below the target."""
    if not (entry.isreg() or entry.isdir()):
        raise _refused("has an entry that is neither a plain file nor a directory")
    path = PurePosixPath(entry.name)
    plain = "\\" not in entry.name and "\0" not in entry.name and ":" not in entry.name
    if path.is_absolute() or ".." in path.parts or not plain or len(path.parts) > _MAX_DEPTH:
        raise _refused("has a file whose path is absolute, contains '..', or is none of a policy")
    return path.parts


def _write(file: IO[bytes] | None, place: Path) -> None:
    assert file is not None  # of a plain file
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("xb") as out:
        shutil.copyfileobj(file, out, _BLOCK)
    place.chmod(stat.S_IRUSR | stat.S_IWUSR)


def _policy_folder(folder: Path) -> Path:
    """Return the folder itself, or the only directory in it."""
    entries = list(folder.iterdir())
    return entries[0] if len(entries) == 1 and entries[0].is_dir() else folder


def _refused(finding: str) -> ArtifactError:
    return ArtifactError(
        f"The archive {finding}, so that nothing of it was kept. Send a policy directory as it was saved: "
        "tar -czf policy.tar.gz -C DIR ."
    )
