import gzip
import io
import random
import tarfile
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hieropo.errors import ArtifactError
from hieropo.serve.uploads import incoming, unpacked


def entry(name: str, **given: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    content = given.pop("content", b"x")
    info.size = len(content) if given.get("type", tarfile.REGTYPE) == tarfile.REGTYPE else 0
    for key, value in given.items():
        setattr(info, key, value)
    return info, content


def archive(path: Path, *entries: tuple[tarfile.TarInfo, bytes], mode: Any = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return path


def test_files_come_out_as_they_went_in_with_or_without_a_folder_around_them(tmp_path: Path) -> None:
    plain = archive(tmp_path / "a", entry("./one", content=b"1"), entry("sub/two", content=b"22"))
    folder = unpacked(plain, tmp_path / "plain", most=100)
    assert folder == tmp_path / "plain"
    assert (folder / "one").read_bytes() + (folder / "sub/two").read_bytes() == b"122"
    zipped = archive(tmp_path / "b", entry("policy", type=tarfile.DIRTYPE), entry("policy/one"), mode="w:gz")
    assert unpacked(zipped, tmp_path / "zipped", most=100) == tmp_path / "zipped" / "policy"


@pytest.mark.parametrize(
    "entries",
    [
        [entry("../out")],
        [entry("a/../../out")],
        [entry("/tmp/out")],
        [entry("c:\\out")],
        [entry("link", type=tarfile.SYMTYPE, linkname="/etc/passwd")],
        [entry("link", type=tarfile.LNKTYPE, linkname="../out")],
        [entry("pipe", type=tarfile.FIFOTYPE)],
        [entry("device", type=tarfile.CHRTYPE)],
        [entry("a"), entry("a")],
        [entry("a"), entry("./a")],
        [entry("a"), entry("a/b")],
        [entry("/".join("abcdefghij"))],
        [entry("large", content=b"x" * 101)],
        [entry("large", content=b"x" * 60), entry("larger", content=b"x" * 60)],
    ],
)
def test_no_entry_leaves_the_folder_or_goes_over_the_limits(
    tmp_path: Path, entries: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    sent = archive(tmp_path / "sent", *entries)
    with pytest.raises(ArtifactError, match="nothing of it was kept"):
        unpacked(sent, tmp_path / "policy", most=100)
    assert {path.name for path in tmp_path.iterdir()} == {"sent", "policy"}
    assert not Path("/tmp/out").exists()


def test_torn_and_foreign_files_are_refused(tmp_path: Path) -> None:
    whole = archive(tmp_path / "whole", entry("one", content=bytes(50_000)), mode="w:gz").read_bytes()
    bomb = gzip.compress(bytes(10_000_000))
    for number, content in enumerate(
        (b"", b"hello", whole[:-30], whole[:40], bomb, b"\x1f\x8b" + bytes(100))
    ):
        sent = tmp_path / f"sent{number}"
        sent.write_bytes(content)
        with pytest.raises(ArtifactError, match="nothing of it was kept"):
            unpacked(sent, tmp_path / f"policy{number}", most=10**6)


def header(kind: bytes, content: bytes, size: int | None = None) -> bytes:
    """Return an extended header as bytes, padded to blocks; ``size`` is the one that it declares."""
    info = tarfile.TarInfo("ext")
    info.type, info.size = kind, len(content) if size is None else size
    return (
        info.tobuf(tarfile.USTAR_FORMAT if info.size < 8**11 else tarfile.GNU_FORMAT)
        + content
        + bytes(-len(content) % 512)
    )


def pax(name: str, value: str) -> bytes:
    """Return a record of an extended header, whose first number is its own length."""
    rest = f" {name}={value}\n"
    size = next(n for n in range(len(rest), len(rest) + 9) if n == len(str(n)) + len(rest))
    return f"{size}{rest}".encode()


LAST = tarfile.TarInfo("one").tobuf() + bytes(1024)


@pytest.mark.parametrize(
    "headers",
    [
        header(tarfile.XHDTYPE, pax("comment", "x" * 70_000)),
        header(tarfile.XGLTYPE, pax("comment", "x" * 70_000)),
        header(tarfile.GNUTYPE_LONGNAME, b"x" * 70_000),
        header(tarfile.XHDTYPE, b"", 8**11),  # declares 8 GiB
        header(tarfile.GNUTYPE_LONGLINK, b"", 2**62),
        header(tarfile.XHDTYPE, pax("comment", "x")) * 5_000,  # tarfile goes a recursion deeper for each
        header(tarfile.GNUTYPE_LONGNAME, b"name") * 5_000,
        b"".join(
            header(tarfile.XHDTYPE, pax("comment", "x" * 60_000)) + tarfile.TarInfo(f"f{number}").tobuf()
            for number in range(300)
        ),
    ],
    ids=["pax", "global", "longname", "declared", "declared more", "chain", "chain of names", "many"],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_extended_headers_are_limited(tmp_path: Path, headers: bytes, *, zipped: bool) -> None:
    content = headers + LAST
    (tmp_path / "sent").write_bytes(gzip.compress(content, 1) if zipped else content)
    tracemalloc.start()
    with pytest.raises(ArtifactError, match=r"has headers of more than 65,536 bytes .* or 16,777,216 in all"):
        unpacked(tmp_path / "sent", tmp_path / "policy", most=10**9)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 2**24


def test_changed_bytes_of_an_archive_are_no_other_error(tmp_path: Path) -> None:
    rng = random.Random(0)
    long = entry("a/" + "long" * 40, content=b"1")  # has an extended header
    content = archive(tmp_path / "whole", entry("one"), long, entry("two")).read_bytes()[:6_000]
    for number in range(200):
        changed = bytearray(content)
        for _ in range(rng.choice([1, 1, 5])):
            changed[rng.randrange(len(changed))] = rng.choice(b"0179xgLK \x00\x80\xff")
        sent = tmp_path / "sent"
        sent.write_bytes(
            bytes(changed) if number % 2 else gzip.compress(content)[: rng.randrange(400)] + changed
        )
        with suppress(ArtifactError):
            unpacked(sent, tmp_path / f"policy{number}", most=10**6)


def test_an_upload_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError), incoming(tmp_path) as folder:
        (folder / "archive").write_bytes(b"x") and folder.mkdir()
    assert list((tmp_path / "incoming").iterdir()) == []
