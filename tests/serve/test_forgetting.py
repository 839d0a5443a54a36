from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from served_worlds import rewards_of, run, wait_for_windows

from hieropo.serve import Service, Settings
from hieropo.serve.messages import DecideRequest, Reward

SETTINGS = Settings(window=10.0, swap="always", exploration="none", keep_answers=1e6)
GONE, SUBJECT = "store 3", "person-of-interest"


def feed(service: Service, numbers: Iterable[int], *, without: str | None = None) -> None:
    """Decide and reward; every draw is by the number alone, so that leaving some out changes nothing else."""
    requests = []
    for number in numbers:
        task, subject = f"store {number % 12}", SUBJECT if number % 5 == 0 else f"person {number}"
        if without not in (task, subject):
            requests.append(
                DecideRequest(
                    task=task,
                    context={"age": float(np.sin(number))},
                    decision_id=f"d{number}",
                    subject=subject,
                )
            )
    decisions = run(service.decide(requests))
    values = {d.decision_id: rewards_of([d], int(d.decision_id[1:]))[0] for d in decisions}
    run(service.reward([Reward(f"r-{id_}", id_, value) for id_, value in values.items()]))


def forget(service: Service, kind: str, name: str, *, purge: bool = True) -> str:
    started = service.start(f"forget-{kind}", service.forgotten_argument(kind, name, purge=purge))
    service.wait()
    ended = service.job(started.job_id)
    assert ended is not None
    assert ended.state == "done", ended
    return str(ended.result)


def files_with(folder: Path, text: str) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def plain_files(service: Service, folder: Path) -> Path:
    """Write Parquet files again without compression or dictionaries, in which a text would hide."""
    folder.mkdir()
    for path in service.state.path.rglob("*.parquet"):
        frame = pd.read_parquet(path)
        (folder / f"{path.parent.name}-{path.name}.csv").write_text(frame.to_csv())
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("task", GONE), ("subject", SUBJECT)])
def test_no_byte_of_an_id_and_no_bit_of_its_rows_is_left(
    text_policy: Path, tmp_path: Path, kind: str, name: str
) -> None:
    tables = {}
    for label, without in (("saw", None), ("never", name)):
        service = Service(tmp_path / label, SETTINGS, policy=text_policy, seed=0)
        feed(service, range(150), without=without)
        wait_for_windows(service)
        service.start("seal")
        service.wait()
        feed(service, range(150, 300), without=without)
        wait_for_windows(service)
        service.start("seal")
        service.wait()
        feed(service, range(300, 320), without=without)  # still open
        if label == "saw":  # bytes of ids can be seen where there are any
            places = {
                Path(path).relative_to(service.state.path).parts[0]
                for path in files_with(service.state.path, name)
            }
            assert places >= (
                {"versions", "moments", "base", "journal.sqlite-wal"} if kind == "task" else {"log"}
            )
            assert files_with(plain_files(service, tmp_path / "before"), name)
        forget(service, kind, name)
        tables[label] = (
            service.engine.policy.table.means.tobytes(), service.engine.policy.table.covs.tobytes(),
            service.state.total().moments.tasks.tolist(),
        )  # fmt: skip
        if label == "saw":
            assert files_with(service.state.path, name) == []
            assert files_with(plain_files(service, tmp_path / "plain"), name) == []
            log_ = pd.read_parquet(service.state.path / "log")
            assert name not in set(log_["store"]) | set(log_["subject"])
            assert len(log_) == (275 if kind == "task" else 240)
        service.close()
        assert files_with(tmp_path / "saw", name) == []
    assert tables["saw"] == tables["never"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("task", GONE), ("subject", SUBJECT)])
def test_no_hash_of_a_forgotten_decision_or_reward_is_left(
    text_policy: Path, tmp_path: Path, kind: str, name: str
) -> None:
    hashes = {}
    for label, without in (("saw", None), ("never", name)):
        settings = Settings(window=1.0, swap="always", exploration="none", keep_answers=0)
        service = Service(tmp_path / label, settings, policy=text_policy, seed=0)
        feed(service, range(40), without=without)
        wait_for_windows(service)
        service.start("seal")
        service.wait()
        if label == "saw":
            forget(service, kind, name)
        query = "SELECT hash FROM spent ORDER BY hash"
        hashes[label] = service.journal.run(lambda connection: connection.execute(query).fetchall())  # noqa: B023
        service.close()
    assert hashes["never"]
    assert hashes["saw"] == hashes["never"]


def test_without_purge_versions_are_retired_and_cannot_act(text_policy: Path, tmp_path: Path) -> None:
    service = Service(tmp_path / "state", SETTINGS, policy=text_policy, seed=0)
    feed(service, range(60))
    wait_for_windows(service)
    assert "1 version(s) retired" in forget(service, "task", GONE, purge=False)
    assert [version.state for version in service.versions().versions] == ["retired", "active"]
    with pytest.raises(ValueError, match="retired"):
        service.activate(1)
    assert "0 sealed and 0 open" in forget(service, "task", "store nobody")
    service.close()
