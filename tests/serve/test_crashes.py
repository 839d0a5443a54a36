import json
import subprocess
import sys
from pathlib import Path

import pytest
from served_worlds import run, wait_for_windows

from hieropo.errors import ArtifactError
from hieropo.serve import Service, Settings
from hieropo.serve.journal import FullError
from hieropo.serve.messages import DecideRequest

PROGRAM = Path(__file__).parents[1] / "serve_crash_program.py"


@pytest.mark.slow
def test_a_service_that_is_killed_loses_nothing_and_has_nothing_twice(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), "5"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert (found["kills"], found["faults"], found["errors"]) == (5, [], [])
    assert found["decisions"] > 50


def state_with_a_segment(policy: Path, folder: Path) -> Path:
    service = Service(folder / "state", Settings(window=10.0), policy=policy)
    run(service.decide([DecideRequest(task=1, context={"age": 0.0}) for _ in range(20)]))
    wait_for_windows(service)
    service.start("seal")
    service.wait()
    service.close()
    return folder / "state"


def test_a_damaged_state_is_refused_and_the_message_says_what_to_do(policy: Path, tmp_path: Path) -> None:
    state = state_with_a_segment(policy, tmp_path)
    manifest = state / "manifest.json"
    whole = manifest.read_bytes()
    for damaged in (whole[:-30], whole.replace(b'"active": 1', b'"active": 2'), b""):
        manifest.write_bytes(damaged)
        with pytest.raises(ArtifactError, match=r"Restore manifest\.json from a backup"):
            Service(state)
    manifest.unlink()
    with pytest.raises(ArtifactError, match=r"manifest\.json is missing"):
        Service(state)
    manifest.write_bytes(whole)
    (segment,) = (state / "log").iterdir()
    rows = segment.read_bytes()
    segment.write_bytes(rows[:-10])
    with pytest.raises(ArtifactError, match="another length"):
        Service(state)
    segment.write_bytes(rows)
    journal = state / "journal.sqlite"
    pages = journal.read_bytes()
    journal.write_bytes(pages[:100] + b"\xff" * 4096 + pages[4196:])
    with pytest.raises(ArtifactError, match=r"journal .* is damaged"):
        Service(state)
    journal.write_bytes(pages)
    Service(state).close()


def test_a_manifest_from_an_older_backup_is_refused(policy: Path, tmp_path: Path) -> None:
    service = Service(tmp_path / "state", policy=policy)
    service.close()
    older = (tmp_path / "state" / "manifest.json").read_bytes()
    state_with_a_segment(policy, tmp_path)
    (tmp_path / "state" / "manifest.json").write_bytes(older)
    with pytest.raises(ArtifactError, match="older copy"):
        Service(tmp_path / "state")


def test_leftovers_of_a_process_that_died_are_removed(policy: Path, tmp_path: Path) -> None:
    state = state_with_a_segment(policy, tmp_path)
    leftovers = [state / "log" / "000002-000.parquet", state / "log" / ".000002-000.parquet.partial"]
    for path in leftovers:
        path.write_bytes(b"torn")
    Service(state).close()
    assert not any(path.exists() for path in leftovers)


def test_a_full_disk_is_refused_and_recovers(policy: Path, tmp_path: Path) -> None:
    service = Service(tmp_path / "state", policy=policy)
    request = DecideRequest(task=1, context={"age": 0.0})
    service.journal.run(lambda connection: connection.execute("PRAGMA max_page_count = 20").fetchone())
    with pytest.raises(FullError):
        run(service.decide([request] * 1000))
    assert not service.ready().ready
    incumbent = DecideRequest(task=1, context={"age": 0.0}, incumbent="gift")
    assert run(service.decide([incumbent] * 1000))[0].mode == "fallback"
    service.journal.run(lambda connection: connection.execute("PRAGMA max_page_count = 1000000").fetchone())
    assert run(service.decide([request]))[0].mode == "explore"
    assert service.ready().ready
    service.close()
