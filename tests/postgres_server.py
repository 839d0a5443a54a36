"""A PostgreSQL server of the tests' own: in a temporary folder, on a socket there, gone afterwards.

PostgreSQL refuses to run as root; there it runs as nobody.
"""

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

USER = "tester"


def programs() -> Path | None:
    """The folder of initdb and postgres, of the newest version that is installed."""
    known = shutil.which("initdb")
    if known is not None and (home := Path(known).resolve().parent).joinpath("postgres").exists():
        return home
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    return max(found, key=lambda path: int(re.sub(r"\D", "", path.parent.name) or 0), default=None)


@contextmanager
def running() -> Iterator[str]:
    """Start a server; yields its URL. Skips where none is installed and `make test` cannot install one."""
    home = programs()
    if home is None:
        reason = (
            "no PostgreSQL server is installed: initdb is neither on PATH nor in /usr/lib/postgresql/*/bin"
        )
        if os.geteuid() == 0 and shutil.which("apt-get"):
            pytest.fail(f"{reason}; `make test` installs it, or apt-get install postgresql")
        pytest.skip(reason)
    other = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    whom: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
    if other is not None:
        whom = {"user": other.pw_uid, "group": other.pw_gid, "extra_groups": []}
        os.chown(folder, other.pw_uid, other.pw_gid)
    try:
        made = subprocess.run(
            [home / "initdb", "-D", folder / "data", "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "-N"],
            capture_output=True, text=True, check=False, cwd=folder, **whom,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [home / "postgres", "-D", folder / "data", "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"],
                stdout=log, stderr=log, cwd=folder, **whom,
            )  # fmt: skip
        try:
            _wait(server, folder)
            yield f"postgresql://{USER}@/postgres?host={folder}"
        finally:
            server.send_signal(signal.SIGINT)  # without waiting for clients
            server.wait(60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(server: "subprocess.Popen[bytes]", folder: Path) -> None:
    lock = folder / "data" / "postmaster.pid"
    for _ in range(1200):
        if lock.exists() and lock.read_text().rstrip().endswith("ready"):
            return
        assert server.poll() is None, (folder / "log").read_text()
        time.sleep(0.05)
    raise AssertionError((folder / "log").read_text())
