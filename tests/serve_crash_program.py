"""Kill a service at random moments under load, and check that nothing that it acknowledged is lost or there twice.

Run as ``python serve_crash_program.py <directory> <kills> [seed]``; writes one JSON document with what was found. Each
serving process is a fork of this one. It decides, rewards, seals, refreshes, changes versions and forgets a task, and
writes every acknowledged event into a pipe. After each kill another fork opens the state, checks it, and closes it.
"""

import asyncio
import json
import os
import random
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hieropo.errors import HieropoWarning, InputError
from hieropo.serve import Service, Settings
from hieropo.serve.journal import EVENT, SEALED
from hieropo.serve.learning import RunningTotal, with_rows
from hieropo.serve.messages import DecideRequest, Decision, Reward
from hieropo.serve.segments import read_rows

SETTINGS = Settings(window=0.15, seal_rows=400, swap="always", keep_answers=1e6, half_life=60.0)
FORGOTTEN = 11  # the task that is forgotten again and again


@dataclass
class Acknowledged:
    """The events that the service acknowledged."""

    decisions: dict[str, tuple[int, float]] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)

    def add(self, line: str) -> None:
        kind, *values = json.loads(line)
        if kind == "decision":
            self.decisions[values[0]] = (values[1], values[2])
        elif kind == "reward":
            self.rewards[values[0]] = values[1]
        else:
            self.jobs[kind] = self.jobs.get(kind, 0) + 1


def in_fork(work: Callable[[int], None]) -> tuple[int, int]:
    """Start work in a process of its own; return its id and the end of a pipe from which its lines are read."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = 1
        try:
            warnings.simplefilter("ignore", HieropoWarning)
            work(writing)
            status = 0
        except BaseException as error:  # noqa: BLE001 - nothing may leave a fork
            os.write(writing, (json.dumps(["error", type(error).__name__, str(error)]) + "\n").encode())
        os._exit(status)
    os.close(writing)
    return child, reading


class Load:
    """Clients and jobs of one serving process, which tells what was acknowledged."""

    def __init__(self, service: Service, seed: int, pipe: int) -> None:
        self.service, self.seed, self.pipe, self.rng = service, seed, pipe, random.Random(seed)

    def tell(self, *values: Any) -> None:
        os.write(self.pipe, (json.dumps(values) + "\n").encode())

    async def client(self, name: int) -> None:
        for number in range(10**9):
            decisions = await self.decide(f"{self.seed}-{name}-{number}")
            if self.rng.random() < 0.7:
                await self.reward(decisions)
            await asyncio.sleep(0.001)

    async def decide(self, id_: str) -> list[Decision]:
        task = self.rng.randrange(12)
        batch = [
            DecideRequest(
                task=task, context={"age": self.rng.gauss(0, 1)}, decision_id=f"{id_}-{k}", subject=f"s{k}"
            )
            for k in range(self.rng.choice([1, 1, 5]))
        ]
        decisions = await self.service.decide(batch)
        for decision in decisions:
            self.tell("decision", decision.decision_id, task, decision.propensity)
        return decisions

    async def reward(self, decisions: list[Decision]) -> None:
        rewards = [Reward(f"r-{d.decision_id}", d.decision_id, self.rng.gauss(0, 1)) for d in decisions]
        statuses = await self.service.reward(rewards)
        for reward, status in zip(rewards, statuses, strict=True):
            if status.status in ("recorded", "late"):
                self.tell("reward", reward.reward_id, reward.value)

    async def jobs(self) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(12))
            kind = self.rng.choice(["seal", "seal", "refresh", "forget-task", "activate"])
            if kind == "activate":
                await self.activate()
                continue
            argument = None
            if kind == "forget-task":
                purge = self.rng.random() < 0.5
                argument = self.service.forgotten_argument("task", str(FORGOTTEN), purge=purge)
            await asyncio.to_thread(self.service.start, kind, argument)
            self.tell(kind)

    async def activate(self) -> None:
        versions = [v.number for v in self.service.versions().versions if v.state == "offered"]
        if versions:
            with suppress(InputError):  # retired meanwhile
                await asyncio.to_thread(self.service.activate, self.rng.choice(versions))
            self.tell("activate")

    async def all_at_once(self) -> None:
        await asyncio.gather(self.jobs(), *(self.client(name) for name in range(4)))


def serving(state: Path, seed: int) -> Callable[[int], None]:
    """Return the work of a serving process, which never ends by itself."""

    def work(pipe: int) -> None:
        asyncio.run(Load(Service(state, SETTINGS, seed=seed), seed, pipe).all_at_once())

    return work


def checking(state: Path, acknowledged: Acknowledged, *, learn: bool) -> Callable[[int], None]:
    """Return the work of a process that opens a state after a crash, and writes what is wrong with it."""

    def work(pipe: int) -> None:
        found = faults(state, acknowledged, learn=learn)
        os.write(pipe, (json.dumps(["faults", found]) + "\n").encode())

    return work


def faults(state: Path, acknowledged: Acknowledged, *, learn: bool) -> list[str]:
    """Open a state, let it finish its jobs, and return what is wrong with it."""
    service = Service(state, SETTINGS)
    service.wait()
    record, wrong = service.state, []
    connection = service.journal.connect()
    unsealed, journal_rewards = [], []
    for id_, status, event in connection.execute("SELECT id, state, event FROM decisions").fetchall():
        if status != SEALED:
            unsealed.append((id_, EVENT.decode(event).decision.propensity))
    journal_rewards = connection.execute("SELECT id, value FROM rewards WHERE sealed = 0").fetchall()
    connection.close()
    segments = record.manifest.segments
    sealed = []
    for folder in ("log", "others"):
        rows = read_rows(record.path, segments, folder, record.columns)
        sealed += list(zip(rows["decision_id"].to_pylist(), rows["propensity"].to_pylist(), strict=True))
    rows = read_rows(record.path, segments, "rewards", record.columns)
    rewards = journal_rewards + list(
        zip(rows["reward_id"].to_pylist(), rows["value"].to_pylist(), strict=True)
    )
    wrong += differences("decision", unsealed + sealed, {
        id_: propensity for id_, (task, propensity) in acknowledged.decisions.items() if task != FORGOTTEN
    })  # fmt: skip
    forgettable = {id_ for id_, (task, _) in acknowledged.decisions.items() if task == FORGOTTEN}
    wrong += differences("reward", rewards, {
        id_: value for id_, value in acknowledged.rewards.items() if id_[2:] not in forgettable
    })  # fmt: skip
    on_disk = {f"log/{path.name}" for path in (record.path / "log").glob("*")}
    named = {name for segment in segments for name in segment.files if name.startswith("log/")}
    if on_disk != named:
        wrong.append(f"files beside the manifest: {sorted(on_disk ^ named)}")
    if learn:
        wrong += unequal_sums(record)
    service.close()
    return wrong


def differences(kind: str, there: list[tuple[str, float]], expected: dict[str, float]) -> list[str]:
    """Return acknowledged events that are missing or changed, and events that are there twice."""
    values = dict(there)
    wrong = [
        f"{kind} {id_} is lost or changed" for id_, value in expected.items() if values.get(id_) != value
    ]
    if len(values) != len(there):
        wrong.append(f"{len(there) - len(values)} {kind}(s) are there twice")
    return wrong


def unequal_sums(record: Any) -> list[str]:
    """Return a fault where the running sums are not those of one pass over all rows, to the bit."""
    record.seal()
    kept = record.summed()
    rows = read_rows(record.path, record.manifest.segments, "log", record.columns)
    once = with_rows(RunningTotal(record.base()), rows, record.columns, SETTINGS, record.manifest.created)
    one, other = (total.moments.moments for total in (kept, once))
    same = one.sums.tobytes() == other.sums.tobytes() and one.rows.tobytes() == other.rows.tobytes()
    return [] if same else ["the running sums are not those of one pass"]


def killed(state: Path, acknowledged: Acknowledged, seed: int, after: float) -> list[str]:
    """Let a service work, kill it after some time, and return the errors of its own."""
    child, pipe = in_fork(serving(state, seed))
    if after > 0.1:  # a shorter time is from the start, in which it recovers
        select.select([pipe], [], [], 60)
    text = read_until(pipe, time.monotonic() + after)
    os.kill(child, signal.SIGKILL)
    while part := os.read(pipe, 1 << 16):
        text += part
    os.close(pipe)
    os.waitpid(child, 0)
    errors = []
    for line in text.decode().splitlines():
        if line.startswith('["error"'):
            errors.append(line)
        elif line.endswith("]"):  # the last one may be torn
            acknowledged.add(line)
    return errors


def read_until(pipe: int, deadline: float) -> bytes:
    """Return what comes through a pipe until a time, or until its other end is closed."""
    text = b""
    while (remaining := deadline - time.monotonic()) > 0:
        if select.select([pipe], [], [], remaining)[0]:
            part = os.read(pipe, 1 << 16)
            if not part:
                break
            text += part
    return text


def checked(state: Path, acknowledged: Acknowledged, *, learn: bool) -> list[str]:
    """Return what another process finds wrong with a state."""
    child, pipe = in_fork(checking(state, acknowledged, learn=learn))
    with os.fdopen(pipe) as lines:
        answers = [json.loads(line) for line in lines]
    os.waitpid(child, 0)
    return [
        fault for kind, *rest in answers for fault in (rest[0] if kind == "faults" else [": ".join(rest)])
    ] or ([] if answers else ["the check died"])


def prepared(folder: Path) -> Path:
    """Make a policy and a state in a process of its own, and return the state."""
    from served_worlds import saved

    state = folder / "state"

    def work(_: int) -> None:
        Service(state, SETTINGS, policy=saved(folder)).close()

    child, pipe = in_fork(work)
    with os.fdopen(pipe) as lines:
        text = lines.read()
    os.waitpid(child, 0)
    assert not text, text
    return state


def tear(state: Path, rng: random.Random) -> None:
    """Put the beginning of a page that was never acknowledged at the end of the write-ahead log."""
    wal = state / "journal.sqlite-wal"
    if wal.exists() and wal.stat().st_size:
        with wal.open("ab") as file:
            file.write(rng.randbytes(rng.randrange(1, 4000)))


def run(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kill a service so often, and return what was found."""
    rng = random.Random(seed)
    state, acknowledged = prepared(folder), Acknowledged()
    found: dict[str, Any] = {"kills": 0, "torn": 0, "faults": [], "errors": []}
    for number in range(kills):
        after = 0.01 + rng.choice([0.05, 0.2, 0.5, 1.0]) * rng.random()
        found["errors"] += killed(state, acknowledged, seed * 100_000 + number, after)
        found["kills"] += 1
        if rng.random() < 0.2:
            tear(state, rng)
            found["torn"] += 1
        if number % 5 == 4 or number == kills - 1:
            found["faults"] += checked(state, acknowledged, learn=number % 25 == 24 or number == kills - 1)
        if found["faults"]:
            break
    found |= {
        "decisions": len(acknowledged.decisions), "rewards": len(acknowledged.rewards), "jobs": acknowledged.jobs,
    }  # fmt: skip
    return found


if __name__ == "__main__":
    sys.stdout.write(
        json.dumps(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0))
    )
