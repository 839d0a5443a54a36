"""Whatever ends a save, the policy at its path is the old one or the new one, and loads."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from crash_program import Stand

from hieropo.errors import ArtifactError
from hieropo.storage import directories

PROGRAM = Path(__file__).parents[1] / "crash_program.py"

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="the program forks processes in order to kill them"
)
slow = pytest.mark.slow


def outcomes_of(folder: Path, *what: str) -> Any:
    command = [sys.executable, str(PROGRAM), str(folder), *what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_save_that_fails_before_any_of_its_steps_leaves_the_old_policy_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without killing: an error of the system in the n-th step of the replacement, for every n."""
    stand, seen, failed = Stand(tmp_path, tasks=5), [], True
    while failed:
        stand.save(stand.old)
        steps = iter(range(len(seen)))
        with monkeypatch.context() as patch:
            for name in ("locked", "_claim", "_sync", "exchange"):
                patch.setattr(directories, name, failing(getattr(directories, name), steps))
            try:
                stand.save(stand.new)
                failed = False
            except ArtifactError as error:
                assert "Input/output error" in str(error)  # noqa: PT017 - the last save succeeds
        seen.append(stand.there())
        assert stand.siblings() == ["policy"]
    old = seen.count("old")
    assert seen == ["old"] * old + ["new"] * (len(seen) - old)
    assert old > 6


def failing(step: Callable[..., Any], steps: Iterator[int]) -> Callable[..., Any]:
    """Return a step that raises once the others are used up."""

    def fail(*given: Any, **named: Any) -> Any:
        if next(steps, None) is None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return step(*given, **named)

    return fail


@pytest.fixture(scope="module")
def outcomes() -> Iterator[Any]:
    """Run all but the full disk in one process, since starting one takes longest."""
    steps, crowd = "killed_before_every_step", "many_savers_and_readers"
    more = (crowd, f"{crowd}:apart", "killed_at_random", "out_of_space", "no_rights")
    with TemporaryDirectory() as folder:
        Path(folder).chmod(
            0o755
        )  # a user without rights must get as far as the directory that is closed to it
        yield outcomes_of(Path(folder), steps, f"{steps}:apart", *more)


@slow
@pytest.mark.parametrize("system", ["", ":apart"])
def test_a_save_killed_before_any_of_its_steps(system: str, outcomes: Any) -> None:
    found = outcomes[f"killed_before_every_step{system}"]
    old = found["seen"].count("old")
    assert found["seen"] == ["old"] * old + ["new"] * (len(found["seen"]) - old)
    assert 10 < old < len(found["seen"]) - 1
    assert found["status"] == 0
    assert found["siblings"] == ["policy"]


@slow
def test_saves_killed_at_random_moments(outcomes: Any) -> None:
    found = outcomes["killed_at_random"]
    assert len(found["seen"]) == 16
    assert found["torn"] > 0
    assert found["siblings"] == ["policy"]


@slow
def test_files_that_may_not_grow(outcomes: Any) -> None:
    *failures, success = outcomes["out_of_space"]["seen"]
    assert len(failures) > 20
    for status, error, there, siblings in failures:
        assert (status, there, siblings) == (1, "old", ["policy"])
        assert "was not written: File too large" in error
    assert success == [0, "", "new", ["policy"]]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(tmp_path)], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip("this user may not mount a file system")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@slow
def test_a_full_disk(small_disk: Path) -> None:
    seen = outcomes_of(small_disk, "full_disk")["full_disk"]["seen"]
    failures = [found for found in seen if found[0]]
    assert 0 < len(failures) < len(seen)
    assert seen == failures + [[0, "", "new", ["policy"]]] * (len(seen) - len(failures))
    for status, error, there, siblings in failures:
        assert (status, there, siblings) == (1, "old", ["policy"])
        assert "was not written: No space left on device" in error


@slow
def test_a_user_without_rights(outcomes: Any) -> None:
    found = outcomes["no_rights"]
    assert (found["there"], found["siblings"]) == ("old", ["policy"])
    assert (found["saved"][0], found["loaded"][0]) == (1, 1), found
    assert "was not written: Permission denied" in found["saved"][1]
    assert "cannot be read: Permission denied" in found["loaded"][1]


@slow
@pytest.mark.parametrize("system", ["", ":apart"])
def test_two_savers_and_two_readers_of_one_path(system: str, outcomes: Any) -> None:
    found = outcomes[f"many_savers_and_readers{system}"]
    assert found["ends"] == [[0, ""]] * 4
    assert found["siblings"] == ["policy"]
