"""The journal: decisions and rewards that are not sealed yet, in SQLite, written by one thread with group commit.

``synchronous=FULL`` in WAL mode: a commit returns when its pages are on disk. Operations that wait together are
committed together, so that one fsync serves all of them. An operation checks before it writes, so that an error of one
leaves the others of its group alone.
"""

import asyncio
import hashlib
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from hieropo.errors import ArtifactError, InputError
from hieropo.serve.messages import Event, Reward

DEFERRED, ACTIVE, SEALED = 0, 1, 2
_GROUP = 2_000  # operations in one commit
_SCHEMA = """
CREATE TABLE IF NOT EXISTS decisions (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, digest BLOB, deadline INTEGER NOT NULL,
    state INTEGER NOT NULL, event BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS rewards (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, decision INTEGER NOT NULL, value REAL NOT NULL,
    at INTEGER NOT NULL, client_at TEXT, late INTEGER NOT NULL, sealed INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS rewards_of_decision ON rewards (decision);
CREATE TABLE IF NOT EXISTS spent (hash BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, argument TEXT,
    state TEXT NOT NULL, result TEXT);
"""

EVENT = msgspec.json.Decoder(Event)


class ConflictError(InputError):
    """An id comes again with another body."""


class FullError(Exception):
    """The record cannot take more now: the queue is full, or the disk."""


class Clock:
    """Time in microseconds that never goes back, and that a change of the system's clock does not move.

    It starts at the system's time, or at the last recorded one if that is later.
    """

    def __init__(self, last: int = 0) -> None:
        self._origin = max(last, time.time_ns() // 1_000)
        self._start = time.monotonic_ns() // 1_000

    def __call__(self) -> int:
        """Return the time now."""
        return self._origin + time.monotonic_ns() // 1_000 - self._start


@dataclass(slots=True)
class Operation:
    """A piece of work for the writer: ``apply`` runs inside a transaction, its result goes to ``future``."""

    apply: Callable[[sqlite3.Connection], Any]
    future: Any
    loop: asyncio.AbstractEventLoop | None = None


class Journal:
    """The journal of one service.

    Parameters
    ----------
    path : Path
        Of the database.
    limit : int
        Operations that may wait.

    Raises
    ------
    ArtifactError
        The database is damaged.
    """

    path: Path
    clock: Clock
    full: bool

    def __init__(self, path: Path, *, limit: int = 10_000) -> None:
        self.path, self._limit = path, limit
        try:
            connection = self.connect()
            connection.executescript(_SCHEMA)
            (result,) = connection.execute("PRAGMA quick_check").fetchone()
        except sqlite3.DatabaseError as error:
            raise _damaged(path, str(error)) from error
        if result != "ok":
            raise _damaged(path, str(result))
        self.clock = Clock(self.fact(connection, "last_at"))
        connection.close()
        self._queue: deque[Operation] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self.full = False  # the last commit failed
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        self._thread.start()

    def connect(self) -> sqlite3.Connection:
        """Return a connection of its own, for reading in another thread."""
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=30, check_same_thread=False)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    @staticmethod
    def fact(connection: sqlite3.Connection, name: str) -> int:
        """Return a number of the journal, 0 where it was never set."""
        row = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return 0 if row is None else int(row[0])

    @property
    def waiting(self) -> int:
        """Return the number of operations that wait."""
        return len(self._queue)

    def run(self, apply: Callable[[sqlite3.Connection], Any]) -> Any:
        """Run an operation, and return its result once it is on disk."""
        future: Future[Any] = Future()
        self._put(Operation(apply, future))
        return future.result()

    def submit(
        self, apply: Callable[[sqlite3.Connection], Any], loop: asyncio.AbstractEventLoop, weight: int = 1
    ) -> asyncio.Future[Any]:
        """Return a future of an operation's result, which is set once it is on disk.

        Raises
        ------
        FullError
            Too many operations wait.
        """
        if len(self._queue) + weight > self._limit:
            raise FullError("The queue of the record is full")
        future: asyncio.Future[Any] = loop.create_future()
        self._put(Operation(apply, future, loop))
        return future

    def _put(self, operation: Operation) -> None:
        with self._wake:
            if self._closing:
                raise FullError("The service is shutting down")
            self._queue.append(operation)
            self._wake.notify()

    def close(self) -> None:
        """Write all that waits, and stop."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _write(self) -> None:
        connection = self.connect()
        while True:
            with self._wake:
                while not self._queue and not self._closing:
                    self._wake.wait()
                if not self._queue:
                    break
                group = [self._queue.popleft() for _ in range(min(len(self._queue), _GROUP))]
            self._commit(connection, group)
        connection.close()

    def _commit(self, connection: sqlite3.Connection, group: Sequence[Operation]) -> None:
        results: list[tuple[Operation, Any, BaseException | None]] = []
        try:
            connection.execute("BEGIN IMMEDIATE")
            for operation in group:
                try:
                    results.append((operation, operation.apply(connection), None))
                except sqlite3.Error:
                    raise
                except Exception as error:  # noqa: BLE001 - it goes to the one who asked
                    results.append((operation, None, error))
            connection.execute("INSERT OR REPLACE INTO facts VALUES ('last_at', ?)", (self.clock(),))
            connection.execute("COMMIT")
            self.full = False
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self.full = True
            failure = FullError(f"The record could not be written: {error}")
            results = [(operation, None, failure) for operation in group]
        _publish(results)

    def erase(self) -> None:
        """Rewrite the database so that no deleted byte is left in it or in its write-ahead log."""
        connection = self.connect()
        connection.execute("VACUUM")
        for _ in range(200):
            (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if not busy:
                break
            time.sleep(0.02)
        connection.close()


def _publish(results: Sequence[tuple[Operation, Any, BaseException | None]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Operation, Any, BaseException | None]]] = {}
    for operation, result, error in results:
        if operation.loop is not None:
            by_loop.setdefault(operation.loop, []).append((operation, result, error))
        elif error is None:
            operation.future.set_result(result)
        else:
            operation.future.set_exception(error)
    for loop, part in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, part)


def _resolve(results: Sequence[tuple[Operation, Any, BaseException | None]]) -> None:
    for operation, result, error in results:
        if operation.future.done():
            continue
        if error is None:
            operation.future.set_result(result)
        else:
            operation.future.set_exception(error)


def _damaged(path: Path, finding: str) -> ArtifactError:
    return ArtifactError(
        f"The journal {path} is damaged ({finding}), so that decisions and rewards that were acknowledged may be "
        "missing. Stop, keep a copy of the whole state, and restore the state from a backup; `sqlite3 "
        f"{path.name} .recover` shows the rows that can still be read."
    )


class NewDecision(Struct, frozen=True, gc=False):
    """A decision to be recorded.

    Parameters
    ----------
    id : str
    digest : bytes or None
        Of the request's body; None where the service made the id, so that it cannot be known already.
    deadline : int
        Microseconds.
    state : int
        ACTIVE or DEFERRED.
    event : bytes
        The encoded event.
    """

    id: str
    digest: bytes | None
    deadline: int
    state: int
    event: bytes


Stored = bytes | ConflictError | None


def record_decisions(
    decisions: Sequence[NewDecision], *, separate: bool = False
) -> Callable[[sqlite3.Connection], list[Stored]]:
    """Return the operation that records decisions; it gives the stored event of each that was known, else None.

    Parameters
    ----------
    decisions : sequence of NewDecision
        With ids that differ.
    separate : bool
        The decisions are of several requests: the error of one is its result, and the others are recorded.

    Raises
    ------
    ConflictError
        A known id comes with another body; nothing is recorded.
    """

    def apply(connection: sqlite3.Connection) -> list[Stored]:
        known = _known(connection, [decision for decision in decisions if decision.digest is not None])
        results: list[Stored] = [known.get(decision.id) for decision in decisions] if known else []
        if not separate:
            for result in results:
                if isinstance(result, ConflictError):
                    raise result
        fresh = [decision for decision in decisions if decision.id not in known] if known else decisions
        _insert(connection, fresh)
        return results or [None] * len(decisions)

    return apply


_VALUES = {  # rows of one statement: sqlite3 leaves the interpreter's lock once a statement
    1 << bits: "INSERT INTO decisions (id, digest, deadline, state, event) VALUES "
    + ", ".join(["(?, ?, ?, ?, ?)"] * (1 << bits))
    for bits in range(9)
}


def _insert(connection: sqlite3.Connection, decisions: Sequence[NewDecision]) -> None:
    first, left = 0, len(decisions)
    while left:
        size = min(256, 1 << (left.bit_length() - 1))
        values = chain.from_iterable(map(astuple, decisions[first : first + size]))
        connection.execute(_VALUES[size], list(values))
        first, left = first + size, left - size


def _rows_of(connection: sqlite3.Connection, query: str, keys: Sequence[Any]) -> list[Any]:
    """Return the rows of a query that ends with IN, for any number of keys."""
    rows: list[Any] = []
    for first in range(0, len(keys), 256):
        part = keys[first : first + 256]
        size = 1 << (len(part) - 1).bit_length()  # few statements, which sqlite3 keeps compiled
        part = [*part, *[part[-1]] * (size - len(part))]
        rows += connection.execute(f"{query} ({', '.join('?' * size)})", part).fetchall()
    return rows


def _known(connection: sqlite3.Connection, given: Sequence[NewDecision]) -> dict[str, bytes | ConflictError]:
    """Return the stored events of known ids, and the errors of those that cannot be repeated."""
    if not given:
        return {}
    ids = [decision.id for decision in given]
    rows = _rows_of(connection, "SELECT id, digest, event FROM decisions WHERE id IN", ids)
    stored = {id_: (digest, event) for id_, digest, event in rows}
    left = {hash_of("d", id_): id_ for id_ in ids if id_ not in stored}
    spent = _rows_of(connection, "SELECT hash FROM spent WHERE hash IN", list(left))
    known: dict[str, bytes | ConflictError] = {left[bytes(digest)]: _spent() for (digest,) in spent}
    for decision in given:
        if decision.id in stored:
            digest, event = stored[decision.id]
            known[decision.id] = bytes(event) if digest == decision.digest else _other_body()
    return known


def _spent() -> ConflictError:
    return ConflictError(
        "The decision was made long ago and its answer is no longer kept, so that it cannot be repeated. Use "
        "a new decision_id for a new decision."
    )


def _other_body() -> ConflictError:
    return ConflictError(
        "The decision_id was used before with another body, and one id names one decision. Send the first body "
        "again to repeat its answer, or use a new decision_id."
    )


def activate(id: str, now: Callable[[], int]) -> Callable[[sqlite3.Connection], bytes | str]:  # noqa: A002
    """Return the operation that activates a deferred decision: its event, "unknown" or "late"."""

    def apply(connection: sqlite3.Connection) -> bytes | str:
        row = connection.execute(
            "SELECT seq, state, deadline, event FROM decisions WHERE id = ?", (id,)
        ).fetchone()
        if row is None:
            return "unknown"
        seq, state, deadline, event = row
        if state == DEFERRED:
            if now() > deadline:
                return "late"
            connection.execute("UPDATE decisions SET state = ? WHERE seq = ?", (ACTIVE, seq))
        return bytes(event)

    return apply


def record_rewards(
    rewards: Sequence[Reward], now: Callable[[], int]
) -> Callable[[sqlite3.Connection], list[str]]:
    """Return the operation that records rewards and gives the status of each.

    Raises
    ------
    ConflictError
        A known id comes with another body, or twice with different ones; nothing is recorded.
    """

    def apply(connection: sqlite3.Connection) -> list[str]:
        at, statuses, rows = now(), [], []
        in_batch: dict[str, Reward] = {}
        for reward in rewards:
            status, decision = _status(connection, reward, in_batch, at)
            statuses.append(status)
            if status in ("recorded", "late") and decision is not None:
                in_batch[reward.reward_id] = reward
                rows.append(
                    (reward.reward_id, decision, reward.value, at, reward.client_at, status == "late")
                )
        connection.executemany(
            "INSERT INTO rewards (id, decision, value, at, client_at, late) VALUES (?, ?, ?, ?, ?, ?)", rows
        )
        return statuses

    return apply


def _status(
    connection: sqlite3.Connection, reward: Reward, in_batch: dict[str, Reward], at: int
) -> tuple[str, int | None]:
    before = in_batch.get(reward.reward_id)
    if before is not None:
        if before == reward:
            return "duplicate", None
        raise _conflict()
    row = connection.execute(
        "SELECT r.value, r.client_at, d.id FROM rewards r LEFT JOIN decisions d ON d.seq = r.decision WHERE r.id = ?",
        (reward.reward_id,),
    ).fetchone()
    if row is not None:
        if row[0] == reward.value and row[1] == reward.client_at and row[2] in (None, reward.decision_id):
            return "duplicate", None
        raise _conflict()
    if is_spent(connection, "r", reward.reward_id):
        return "duplicate", None
    decision = connection.execute(
        "SELECT seq, deadline FROM decisions WHERE id = ?", (reward.decision_id,)
    ).fetchone()
    if decision is None:
        return ("late" if is_spent(connection, "d", reward.decision_id) else "unknown"), None
    return ("recorded" if at <= decision[1] else "late"), int(decision[0])


def _conflict() -> ConflictError:
    return ConflictError(
        "A reward_id was used before with another body, and one id names one reward. Nothing of this request was "
        "recorded. Use a new reward_id for a new reward."
    )


def hash_of(kind: str, id: str) -> bytes:  # noqa: A002 - the caller's word
    """Return the hash under which an id stays known after its answer is dropped."""
    return hashlib.blake2b(f"{kind}{id}".encode(), digest_size=16).digest()


def is_spent(connection: sqlite3.Connection, kind: str, id: str) -> bool:  # noqa: A002
    """Return True for an id whose decision or reward is sealed, and whose answer is no longer kept."""
    row = connection.execute("SELECT 1 FROM spent WHERE hash = ?", (hash_of(kind, id),)).fetchone()
    return row is not None


def mark_sealed(decisions: int, rewards: int) -> Callable[[sqlite3.Connection], None]:
    """Return the operation that marks decisions and rewards up to these numbers as sealed."""

    def apply(connection: sqlite3.Connection) -> None:
        connection.execute(
            "UPDATE decisions SET state = ? WHERE seq <= ? AND state <> ?", (SEALED, decisions, SEALED)
        )
        connection.execute(
            "UPDATE rewards SET sealed = 1 WHERE seq <= ? AND decision <= ? AND sealed = 0",
            (rewards, decisions),
        )
        connection.execute("INSERT OR REPLACE INTO facts VALUES ('sealed_through', ?)", (decisions,))

    return apply


def prune(before: int) -> Callable[[sqlite3.Connection], None]:
    """Return the operation that drops the answers of sealed decisions with a deadline before a time."""

    def apply(connection: sqlite3.Connection) -> None:
        rows = connection.execute(
            "SELECT seq, id FROM decisions WHERE state = ? AND deadline < ? ORDER BY seq LIMIT 20000",
            (SEALED, before),
        ).fetchall()
        if not rows:
            return
        last = rows[-1][0]
        gone = connection.execute(
            "SELECT r.id FROM rewards r JOIN decisions d ON d.seq = r.decision WHERE r.sealed = 1 AND d.state = ? "
            "AND d.deadline < ? AND d.seq <= ?", (SEALED, before, last),
        ).fetchall()  # fmt: skip
        hashes = [(hash_of("d", id_),) for _, id_ in rows] + [(hash_of("r", id_),) for (id_,) in gone]
        connection.executemany("INSERT OR IGNORE INTO spent VALUES (?)", hashes)
        connection.executemany("DELETE FROM rewards WHERE id = ? AND sealed = 1", gone)
        connection.executemany("DELETE FROM decisions WHERE seq = ?", [(seq,) for seq, _ in rows])

    return apply
