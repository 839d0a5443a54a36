"""Sealed segments: decisions whose windows have closed, joined with their rewards, as Parquet files; and the manifest.

The log is the folder ``log``: each file is a segment, and `hieropo fit`, pandas and DuckDB read the folder as it lies.
Decisions that are no rows (never activated, or without a reward where none stands for that) are in ``others``, and
every reward as it came in ``rewards``. A file is written, synced and renamed, and its folder synced, before the
manifest names it. The manifest is replaced last, in one step; files that it does not name are leftovers of a process
that died, and are removed at the next start.
"""

import hashlib
import os
import shutil
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from hieropo.errors import ArtifactError
from hieropo.serve.columns import LEFT_OUT, RecordColumns
from hieropo.serve.journal import DEFERRED, EVENT, Journal
from hieropo.serve.messages import Event, Message, VersionState
from hieropo.serve.settings import Several
from hieropo.storage import layout

FOLDERS = ("log", "others", "rewards", "moments")
MANIFEST = layout.Kind("manifest", "the manifest of a service", 1)


class Segment(Message, frozen=True):
    """A sealed segment.

    Parameters
    ----------
    number : int
    first, last : int
        Numbers of its decisions in the journal.
    rewards : int
        Number of the last reward that was sealed with it.
    rows : int
        Of the log.
    files : dict
        Length and SHA-256 of each file, by its path.
    moments : str
        Directory of its LogMoments; empty where the log has no row.
    edition : int
        Counts the rewritings.
    """

    number: int
    first: int
    last: int
    rewards: int
    rows: int
    files: dict[str, tuple[int, str]]
    moments: str = ""
    edition: int = 0

    def path(self, folder: str) -> str | None:
        """Return the path of its file in a folder; None without one."""
        return next((name for name in self.files if name.startswith(folder + "/")), None)


class StoredVersion(Message, frozen=True):
    """A version of the policy in the manifest; ``through`` is the last segment that it learned from."""

    number: int
    state: VersionState
    reason: str
    created: str
    through: int
    folder: str


class Manifest(Message, frozen=True):
    """All that the service has beside the journal.

    Parameters
    ----------
    columns : dict
        Of :class:`RecordColumns`.
    created : int
        Time of the first start in microseconds, from which ages are counted.
    segments : tuple of Segment
    versions : tuple of StoredVersion
    active : int
        Number of the version that decides.
    sums, sums_through, sums_exponent, sums_last : str, int, int, int
        The running sums: directory, last segment, and as of :class:`RunningTotal`.
    base : str
        Directory of the moments with which the sums begin.
    editions : int
        Counts the directories of sums, so that none is written over.
    stale : tuple of int
        Versions that learned from forgotten rows and are not retired yet.
    """

    columns: dict[str, Any]
    created: int
    segments: tuple[Segment, ...] = ()
    versions: tuple[StoredVersion, ...] = ()
    active: int = 0
    sums: str = ""
    sums_through: int = 0
    sums_exponent: int = 0
    sums_last: int = 0
    base: str = ""
    editions: int = 0
    stale: tuple[int, ...] = ()

    @property
    def sealed_through(self) -> int:
        """Return the number of the last sealed decision."""
        return self.segments[-1].last if self.segments else 0

    def names(self) -> set[str]:
        """Return the paths of all files and directories that belong to the state."""
        names = {name for segment in self.segments for name in segment.files}
        names |= {segment.moments for segment in self.segments}
        names |= {version.folder for version in self.versions if version.state != "removed"}
        return (names | {self.sums, self.base}) - {""}

    def version(self, number: int) -> StoredVersion | None:
        """Return a version by its number."""
        return next((version for version in self.versions if version.number == number), None)

    def with_version(self, version: StoredVersion) -> "Manifest":
        """Return the manifest with a version added or replaced."""
        others = tuple(other for other in self.versions if other.number != version.number)
        ordered = sorted((*others, version), key=lambda one: one.number)
        return msgspec.structs.replace(self, versions=tuple(ordered))


def read_manifest(state: Path) -> Manifest | None:
    """Return the manifest of a state; None for a new state.

    Raises
    ------
    ArtifactError
        It is damaged, or missing beside a journal.
    """
    path = state / MANIFEST.document
    if not path.exists():
        if (state / "journal.sqlite").exists() or any((state / name).exists() for name in FOLDERS):
            raise ArtifactError(
                f"{path} is missing, and {state} holds a journal or segments, so that it is not known which of them "
                "belong to the record. Restore manifest.json from a backup of this state. Do not start with an empty "
                "one: acknowledged events would be lost."
            )
        return None
    try:
        document = layout.decode(path.read_bytes(), state, MANIFEST)
        return msgspec.convert(document["manifest"], Manifest)
    except (ArtifactError, KeyError, msgspec.ValidationError) as error:
        raise ArtifactError(
            f"The manifest of the service cannot be used: {error} It says which files belong to the record, so "
            f"that the service does not start without it. Restore {path.name} from a backup of this state; segments "
            "and journal are untouched."
        ) from error


def write_manifest(state: Path, manifest: Manifest) -> None:
    """Replace the manifest in one step; it is on disk when this returns."""
    raw = layout.encode({**layout.head(MANIFEST), "manifest": msgspec.to_builtins(manifest), "files": {}})
    target = state / MANIFEST.document
    partial = state / f".{MANIFEST.document}.partial"
    with partial.open("wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target)
    sync_folder(state)


def sync_folder(folder: Path) -> None:
    """Write the names of a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_rows(state: Path, name: str, table: pa.Table) -> tuple[int, str]:
    """Write a Parquet file under its name in the state; return its length and SHA-256 once it is on disk."""
    target = state / name
    target.parent.mkdir(exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    pq.write_table(table, partial, compression="zstd")
    with partial.open("rb+") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        length = file.seek(0, os.SEEK_END)
        os.fsync(file.fileno())
    partial.replace(target)
    sync_folder(target.parent)
    return length, digest


def remove_leftovers(state: Path, manifest: Manifest) -> None:
    """Remove files and directories that the manifest does not name."""
    named = manifest.names()
    for folder in (*FOLDERS, "versions", "sums", "base", "incoming"):
        for path in sorted((state / folder).glob("*")) + sorted((state / folder).glob(".*")):
            if f"{folder}/{path.name}" not in named:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    with suppress(FileNotFoundError):
                        path.unlink()


def check_files(state: Path, manifest: Manifest) -> None:
    """Check that every file of the manifest is there, of the right length.

    Raises
    ------
    ArtifactError
        A file is missing or has another length.
    """
    for segment in manifest.segments:
        for name, (length, _) in segment.files.items():
            path = state / name
            if not path.exists() or path.stat().st_size != length:
                raise ArtifactError(
                    f"{path} is {'of another length' if path.exists() else 'missing'}, and the manifest counts its "
                    "rows as recorded. Restore it from a backup of this state, and start again."
                )
    for name in manifest.names():
        if not (state / name).exists():
            raise ArtifactError(
                f"{state / name} is missing, and the manifest names it. Restore it from a backup of this state."
            )


@dataclass(frozen=True, slots=True)
class Closed:
    """Decisions whose windows have closed, in their order, and the rewards that go with them.

    Parameters
    ----------
    first, last : int
        Numbers of the decisions.
    rewards_through : int
        Number of the last reward.
    events : list of Event
    reward : list of float or None
        By the rule of the settings.
    counts : list of int
        Rewards in the window.
    reasons : list of str
        Empty for a row of the log; else why the decision is none.
    rewards : pa.Table
        Every reward as it came.
    """

    first: int
    last: int
    rewards_through: int
    events: list[Event]
    reward: list[float | None]
    counts: list[int]
    reasons: list[str]
    rewards: pa.Table = field(repr=False)


def joined(values: Sequence[float], several: Several) -> float | None:
    """Return the reward of a decision from those in its window, in the order of their arrival."""
    if not values:
        return None
    if several == "sum":
        total = 0.0
        for value in values:
            total += value
        return total
    return {"first": values[0], "last": values[-1], "max": max(values)}[several]


def closed(
    journal: Journal, manifest: Manifest, several: Several, default: float | None, limit: int
) -> Closed | None:
    """Return the decisions that can be sealed now, at most ``limit``; None without one.

    They are the next decisions in the order of the journal, up to the first whose window is open.
    """
    now = int(journal.run(lambda _: journal.clock()))  # every reward of an earlier time is on disk
    connection = journal.connect()
    try:
        connection.execute("BEGIN")
        decisions = _next_decisions(connection, manifest.sealed_through, now, limit)
        if not decisions:
            return None
        last = decisions[-1][0]
        through = connection.execute("SELECT coalesce(max(seq), 0) FROM rewards").fetchone()[0]
        rewards = connection.execute(
            "SELECT r.id, d.id, r.decision, r.value, r.at, r.client_at, r.late FROM rewards r JOIN decisions d "
            "ON d.seq = r.decision WHERE r.seq <= ? AND r.decision <= ? AND r.sealed = 0 ORDER BY r.seq",
            (through, last),
        ).fetchall()
    finally:
        connection.close()
    in_window: dict[int, list[float]] = {}
    for _, _, decision, value, _, _, late in rewards:
        if not late:
            in_window.setdefault(decision, []).append(value)
    values, counts, reasons = [], [], []
    for seq, state, _, _ in decisions:
        received = in_window.get(seq, [])
        value = joined(received, several)
        value = default if value is None else value
        reason = "not activated" if state == DEFERRED else "" if value is not None else "no reward"
        values.append(value)
        counts.append(len(received))
        reasons.append(reason)
    events = [EVENT.decode(event) for _, _, _, event in decisions]
    return Closed(
        decisions[0][0], last, int(through), events, values, counts, reasons, _reward_table(rewards)
    )


def with_reasons(batch: Closed, reasons: Mapping[int, str]) -> Closed:
    """Return a batch with further reasons for decisions, by their positions, to be no row of the log."""
    return replace(batch, reasons=[reasons.get(row) or reason for row, reason in enumerate(batch.reasons)])


def _next_decisions(connection: sqlite3.Connection, after: int, now: int, limit: int) -> list[Any]:
    rows = connection.execute(
        "SELECT seq, state, deadline, event FROM decisions WHERE seq > ? ORDER BY seq LIMIT ?", (after, limit)
    ).fetchall()
    stop = next((place for place, row in enumerate(rows) if row[2] >= now), len(rows))
    return rows[:stop]


def _reward_table(rewards: Sequence[Any]) -> pa.Table:
    ids, decisions, _, values, times, client, late = zip(*rewards, strict=True) if rewards else [()] * 7
    return pa.table(
        {
            "reward_id": pa.array(ids, pa.string()),
            "decision_id": pa.array(decisions, pa.string()),
            "value": pa.array(values, pa.float64()),
            "at": pa.array(times, pa.timestamp("us", tz="UTC")),
            "client_at": pa.array(client, pa.string()),
            "late": pa.array([bool(flag) for flag in late], pa.bool_()),
        }
    )


def write_segment(state: Path, columns: RecordColumns, number: int, batch: Closed) -> Segment:
    """Write the files of a segment, without its moments; nothing names them yet."""
    table = columns.table(batch.events, batch.reward, batch.counts)
    is_row = pa.array([not reason for reason in batch.reasons])
    others = table.append_column(LEFT_OUT, pa.array(batch.reasons, pa.string())).filter(
        pa.array([bool(reason) for reason in batch.reasons])
    )
    segment = Segment(number, batch.first, batch.last, batch.rewards_through, 0, {})
    return with_files(state, segment, table.filter(is_row), others, batch.rewards)


def with_files(state: Path, segment: Segment, log: pa.Table, others: pa.Table, rewards: pa.Table) -> Segment:
    """Write the tables of a segment that have rows, and return the segment with their files."""
    files = {}
    for folder, table in (("log", log), ("others", others), ("rewards", rewards)):
        if table.num_rows:
            name = f"{folder}/{segment.number:06d}-{segment.edition:03d}.parquet"
            files[name] = write_rows(state, name, table)
    return msgspec.structs.replace(segment, rows=log.num_rows, files=files)


def read_rows(state: Path, segments: Iterable[Segment], folder: str, columns: RecordColumns) -> pa.Table:
    """Return the rows of some segments in a folder, in their order."""
    names = [name for name in (segment.path(folder) for segment in segments) if name is not None]
    tables = [pq.ParquetFile(state / name).read() for name in names]
    if tables:
        return pa.concat_tables(tables, promote_options="default")
    return columns.schema().empty_table() if folder != "rewards" else _reward_table(())
