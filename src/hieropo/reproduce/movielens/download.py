"""MovieLens 1M from GroupLens, into a cache, checked."""

import hashlib
import os
import urllib.error
import urllib.request
from pathlib import Path

from hieropo.errors import ArtifactError, InputError

URL = "https://files.grouplens.org/datasets/movielens/ml-1m.zip"
SIZE = 5_917_549
SHA256 = "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20"

TERMS = f"""\
MovieLens 1M belongs to GroupLens, University of Minnesota. Its terms in short, of which README in the archive has all:
it is for research; it may not be passed on, nor used for profit, without their leave; nothing may suggest that they
endorse what is done with it; they warrant nothing; a publication cites F. M. Harper and J. A. Konstan, The MovieLens
Datasets: History and Context, ACM TiiS 5 (4), 2015. Source: {URL} ({SIZE / 1e6:.1f} MB).
"""


def cached() -> Path:
    """Return the path of a downloaded archive: under XDG_CACHE_HOME, or ``.cache`` at home."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "hieropo" / "ml-1m.zip"


def download(target: Path, *, url: str = URL, sha256: str = SHA256, size: int = SIZE) -> Path:
    """Download an archive, check it, and store it by an atomic replacement.

    Raises
    ------
    InputError
        It cannot be reached, or has another checksum.
    ArtifactError
        The cache cannot be written.
    """
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            content = answer.read(size + 1)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise InputError(
            f"{url} cannot be reached: {error}. Get the file with a browser, and name it with --data."
        ) from error
    checksum = hashlib.sha256(content).hexdigest()
    if checksum != sha256:
        raise InputError(
            f"The file from {url} is not the known MovieLens 1M: {len(content):,} bytes of {size:,}, SHA-256 "
            f"{checksum}. The download may have been cut short; try again, or name a file with --data."
        )
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        partial.replace(target)
    except OSError as error:
        raise ArtifactError(
            f"{target} cannot be written: {error.strerror or error}. Set XDG_CACHE_HOME."
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return target
