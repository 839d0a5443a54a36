"""Rows from standard input, kept in a temporary file, so that they can be read more than once."""

import atexit
import shutil
import sys
import tempfile
import zlib
from functools import cache
from pathlib import Path

from hieropo.errors import InputError

_START = 4096  # bytes from which the format is recognised
_GZIP, _ZSTD, _BZIP2 = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh"


@cache
def standard_input() -> Path:
    """Read standard input to its end and return a file with its bytes, whose ending says its format.

    Parquet, Arrow IPC, and CSV or JSON lines, compressed by gzip or not, are recognised by their first bytes. The file
    is removed when the program ends.

    Raises
    ------
    InputError
        Standard input is a terminal, empty, or compressed in another way.
    """
    if sys.stdin.isatty():
        raise InputError(
            "The input '-' is standard input, and that is a terminal, which has no rows. Pipe a table in, such as "
            "`cat rows.csv | hieropo ... -`, or name a file."
        )
    stream = sys.stdin.buffer
    start = stream.read(_START)
    ending = _ending(start)
    folder = tempfile.TemporaryDirectory(prefix="hieropo-")
    path = Path(folder.name) / f"standard-input{ending}"
    atexit.register(folder.cleanup)
    with path.open("wb") as file:
        file.write(start)
        shutil.copyfileobj(stream, file, 2**20)
    return path


def _ending(start: bytes) -> str:
    if not start.strip():
        raise InputError("Standard input is empty, so there is no row. Check the command before the pipe.")
    if start[:4] == b"PAR1":
        return ".parquet"
    if start[:6] == b"ARROW1" or start[:4] == b"\xff\xff\xff\xff":
        return ".arrow"
    if start[:2] == _GZIP:
        return _text_ending(_unzipped(start)) + ".gz"
    if start.startswith((_ZSTD, _BZIP2)):
        raise InputError(
            "Standard input is compressed by zstd or bzip2, so that its format cannot be seen. Decompress it before "
            "the pipe, such as `zstd -dc rows.csv.zst | hieropo ... -`."
        )
    return _text_ending(start)


def _unzipped(start: bytes) -> bytes:
    """Return the first bytes of what gzip compressed, as far as these bytes of it say."""
    return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS).decompress(start)


def _text_ending(start: bytes) -> str:
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"{"):
        return ".jsonl"
    line = text.splitlines()[0] if text else b""
    return ".tsv" if b"\t" in line and b"," not in line else ".csv"
