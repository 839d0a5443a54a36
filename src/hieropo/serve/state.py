"""The state directory: its lock, manifest, segments, versions and sums, and the steps that change them.

Every step writes its files first and replaces the manifest last, so that a process that dies leaves the old state or
the new one.
"""

import datetime as dt
import os
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from hieropo.errors import ArtifactError, HieropoError, InputError, MismatchError
from hieropo.estimation.sites import refuse_likelihood
from hieropo.learners.hieropo import HierOPO
from hieropo.learners.loading import load_learner
from hieropo.passes.log_moments import LogMoments
from hieropo.serve.columns import RecordColumns
from hieropo.serve.deciding import Engine
from hieropo.serve.journal import Journal, mark_sealed, prune
from hieropo.serve.learning import RunningTotal, base_moments, with_rows, without_rows
from hieropo.serve.segments import (
    Closed,
    Manifest,
    Segment,
    StoredVersion,
    check_files,
    closed,
    read_manifest,
    read_rows,
    remove_leftovers,
    sync_folder,
    with_reasons,
    write_manifest,
    write_segment,
)
from hieropo.serve.settings import Settings
from hieropo.serve.usable import REFUSED, KnownGroups, left_out, refused_rows
from hieropo.storage.load import verify_policy

if sys.platform != "win32":
    import fcntl


class RetiredError(InputError):
    """A version that is to act is retired."""


class State:
    """The record and the policies of one service, open in one process.

    Parameters
    ----------
    path : Path
        The directory; made where it does not exist.
    settings : Settings
    policy : path, optional
        The first policy of a new state; not read where the state has one.

    Raises
    ------
    ArtifactError
        Another process uses the state, or a file of it is damaged; the message says what to do.
    InputError
        A new state without a policy, or with one that cannot be served.
    """

    path: Path
    settings: Settings
    manifest: Manifest
    columns: RecordColumns

    def __init__(self, path: Path, settings: Settings, policy: str | os.PathLike[str] | None = None) -> None:
        self.path, self.settings = Path(path), settings
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock_file = _locked(self.path)
        self._changing = threading.RLock()
        self.journal: Journal | None = None
        self._groups: KnownGroups | None = None
        try:
            self._open(policy)
        except BaseException:
            self.close()
            raise

    def _open(self, policy: str | os.PathLike[str] | None) -> None:
        manifest = read_manifest(self.path)
        if manifest is None:
            if policy is None:
                raise InputError(
                    f"{self.path} is a new state, and has no policy to decide with. Name one: --policy DIR."
                )
            manifest = self._create(policy)
        self.manifest = manifest
        self.columns = RecordColumns.from_dict(manifest.columns)
        remove_leftovers(self.path, manifest)
        check_files(self.path, manifest)
        self.journal = Journal(self.path / "journal.sqlite", limit=self.settings.queue)
        self._reconcile()

    def _create(self, policy: str | os.PathLike[str]) -> Manifest:
        remove_leftovers(self.path, Manifest({}, 0))
        learner = load_learner(policy)
        verify_policy(policy)
        columns = columns_of(learner)
        for folder in ("versions", "base"):
            (self.path / folder).mkdir(exist_ok=True)
        base = base_moments(learner)
        (base if self.settings.base else without_rows(base)).save(self.path / "base" / "000")
        version = self._saved(learner, 1, "the first policy", 0, gated=learner.policy_)
        created = dt.datetime.now(dt.UTC)
        manifest = Manifest(
            columns.to_dict(), int(created.timestamp() * 1e6), base="base/000", active=1
        ).with_version(msgspec.structs.replace(version, state="active"))
        write_manifest(self.path, manifest)
        return manifest

    def _reconcile(self) -> None:
        """Finish a sealing that was interrupted after its manifest was written."""
        journal = self.open_journal
        connection = journal.connect()
        marked = journal.fact(connection, "sealed_through")
        connection.close()
        through = self.manifest.sealed_through
        if through < marked:
            raise ArtifactError(
                f"The manifest of {self.path} ends with decision {through:,}, and the journal sealed {marked:,}: "
                "the manifest is an older copy, and segments are missing from it. Restore manifest.json, journal and "
                "segments from one backup."
            )
        if through > marked:
            journal.run(mark_sealed(through, self.manifest.segments[-1].rewards))

    @property
    def open_journal(self) -> Journal:
        """Return the journal, which is open."""
        assert self.journal is not None
        return self.journal

    def close(self) -> None:
        """Write all that waits, and give the state free."""
        if self.journal is not None:
            self.journal.close()
        os.close(self._lock_file)

    def change(self, edit: Callable[[Manifest], Manifest]) -> Manifest:
        """Replace the manifest; it is on disk when this returns."""
        with self._changing:
            manifest = edit(self.manifest)
            write_manifest(self.path, manifest)
            self.manifest = manifest
            return manifest

    def engine(self, number: int | None = None) -> Engine:
        """Return a version that decides; by default the active one."""
        version = self.manifest.version(self.manifest.active if number is None else number)
        assert version is not None
        return Engine.load(version.number, self.path / version.folder, self.columns)

    def learner(self) -> HierOPO:
        """Return the active policy as a fitted learner."""
        version = self.manifest.version(self.manifest.active)
        assert version is not None
        return load_learner(self.path / version.folder)

    # sealing

    def seal(self) -> int:
        """Seal all decisions whose windows have closed; return the number of new segments."""
        made = 0
        limit = int(self.settings.seal_rows)
        while True:
            batch = closed(
                self.open_journal, self.manifest, self.settings.several, self.settings.default, limit
            )
            if batch is None:
                break
            number = self.manifest.segments[-1].number + 1 if self.manifest.segments else 1
            segment = self._written(number, self._without_contradictions(batch))

            def edit(manifest: Manifest, segment: Segment = segment) -> Manifest:
                return msgspec.structs.replace(manifest, segments=(*manifest.segments, segment))

            self.change(edit)
            self.open_journal.run(mark_sealed(batch.last, batch.rewards_through))
            made += 1
        keep = int(self.settings.keep_answers * 1e6)
        self.open_journal.run(prune(self.open_journal.clock() - keep))
        return made

    def _without_contradictions(self, batch: Closed) -> Closed:
        """Return a batch in which rows that contradict earlier ones in their groups are no rows of the log."""
        if not self.columns.levels and not self.columns.metadata:
            return batch
        if self._groups is None:
            self._groups = KnownGroups(self.columns, self.base().summed.task_levels)
            self._groups.reasons(read_rows(self.path, self.manifest.segments, "log", self.columns))
        rows = [row for row, reason in enumerate(batch.reasons) if not reason]
        table = self.columns.table([batch.events[row] for row in rows], [0.0] * len(rows), [0] * len(rows))
        return with_reasons(batch, dict(zip(rows, self._groups.reasons(table), strict=True)))

    def forget_groups(self) -> None:
        """Learn the groups of tasks anew at the next sealing: rows were taken out of the record."""
        self._groups = None

    def _written(self, number: int, batch: Closed) -> Segment:
        """Write a segment and its moments; rows that the learner refuses are no rows of the log."""
        segment = write_segment(self.path, self.columns, number, batch)
        rows = read_rows(self.path, [segment], "log", self.columns)
        try:
            return self._with_moments(segment, rows)
        except HieropoError:
            of_log = [row for row, reason in enumerate(batch.reasons) if not reason]
            refused = refused_rows(rows, self._summed_alone)
            batch = with_reasons(batch, {of_log[row]: REFUSED for row in refused})
            return self.with_moments(write_segment(self.path, self.columns, number, batch))

    def with_moments(self, segment: Segment) -> Segment:
        """Write the LogMoments of a segment; a segment whose rows do not sum has none."""
        try:
            return self._with_moments(segment, read_rows(self.path, [segment], "log", self.columns))
        except HieropoError:
            return segment

    def _with_moments(self, segment: Segment, rows: pa.Table) -> Segment:
        if not rows.num_rows:
            return segment
        moments = self._summed_alone(rows)
        (self.path / "moments").mkdir(exist_ok=True)
        name = f"moments/{segment.number:06d}-{segment.edition:03d}"
        moments.save(self.path / name)
        sync_folder(self.path / "moments")
        return msgspec.structs.replace(segment, moments=name)

    def _summed_alone(self, rows: pa.Table) -> LogMoments:
        """Return the moments of rows alone; errors as :func:`with_rows`."""
        none, settings = RunningTotal(without_rows(self.base())), replace(self.settings, half_life=None)
        return with_rows(none, rows, self.columns, settings, self.manifest.created).moments

    # learning

    def base(self) -> LogMoments:
        """Return the moments with which the sums begin."""
        return LogMoments.load(self.path / self.manifest.base)

    def total(self) -> RunningTotal:
        """Return the running sums as far as they were kept."""
        manifest = self.manifest
        if not manifest.sums:
            return RunningTotal(self.base())
        moments = LogMoments.load(self.path / manifest.sums)
        return RunningTotal(moments, manifest.sums_exponent, manifest.sums_last)

    def summed(self) -> RunningTotal:
        """Return the running sums over all segments, and keep them."""
        manifest, total = self.manifest, self.total()
        new = [segment for segment in manifest.segments if segment.number > manifest.sums_through]
        if not new:
            return total
        rows = read_rows(self.path, new, "log", self.columns)
        total = with_rows(total, rows, self.columns, self.settings, manifest.created)
        self.keep_sums(total, new[-1].number)
        return total

    def keep_sums(self, total: RunningTotal, through: int) -> None:
        """Write the running sums, and drop the former ones."""
        old = self.manifest.sums
        (self.path / "sums").mkdir(exist_ok=True)
        name = f"sums/{self.manifest.editions:06d}"
        total.moments.save(self.path / name)
        self.change(
            lambda manifest: msgspec.structs.replace(
                manifest, sums=name, sums_through=through, sums_exponent=total.exponent, sums_last=total.last,
                editions=manifest.editions + 1,
            )
        )  # fmt: skip
        if old:
            shutil.rmtree(self.path / old, ignore_errors=True)

    def left_out(self, after: int = 0) -> dict[str, int]:
        """Return the number of decisions that are no rows to learn from, by reason, in segments after a number."""
        segments = [segment for segment in self.manifest.segments if segment.number > after]
        return left_out(self.path, segments, self.columns, self.base().features)

    def new_rows(self) -> pa.Table:
        """Return the rows of segments that the active version has not learned from."""
        version = self.manifest.version(self.manifest.active)
        assert version is not None
        new = [segment for segment in self.manifest.segments if segment.number > version.through]
        return read_rows(self.path, new, "log", self.columns)

    # versions

    def refuse_other_ids(self, learner: HierOPO) -> None:
        """Refuse a policy that reads the columns of the record as other types.

        Raises
        ------
        MismatchError
        """
        given, held = columns_of(learner), self.columns
        pairs = [((held.action, held.action_kind), (given.action, given.action_kind))]
        if len(learner.moments_.tasks):
            pairs += zip((*held.task, *held.values), (*given.task, *given.values), strict=False)
        other = next((pair for pair in pairs if pair[0] != pair[1]), None)
        if other is not None:
            (column, kind), (name, other_kind) = other
            raise MismatchError(
                f"The record has the column {column!r} of type {kind}, and the policy reads {name!r} of type "
                f"{other_kind} in its place, so that it would know no task, action or context of the record. Fit it on "
                "a log with the columns and types of the record, or start a new state."
            )

    def offer(self, learner: HierOPO, reason: str, through: int, gated: Any = None) -> int:
        """Save a version of the policy, and return its number; it does not act yet."""
        number = max((version.number for version in self.manifest.versions), default=0) + 1
        version = self._saved(learner, number, reason, through, gated)
        try:
            Engine.load(number, self.path / version.folder, self.columns)
        except HieropoError:
            shutil.rmtree(self.path / version.folder, ignore_errors=True)
            raise
        self.change(lambda manifest: manifest.with_version(version))
        return number

    def _saved(
        self, learner: HierOPO, number: int, reason: str, through: int, gated: Any = None
    ) -> StoredVersion:
        folder = f"versions/{number:06d}"
        learner.save(
            self.path / folder, policy=gated, provenance={"noise_sd": learner.noise_sd, "through": through}
        )
        created = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        return StoredVersion(number, "offered", reason, created, through, folder)

    def activate(self, number: int) -> Engine:
        """Make a version the active one, and return it, ready to decide; the choice is on disk.

        Raises
        ------
        LookupError, RetiredError
            There is no such version; it is retired.
        """
        with self._changing:
            version = self.manifest.version(number)
            if version is None:
                raise LookupError(f"There is no version {number}. GET /v1/policies lists the versions.")
            if version.state in ("retired", "removed"):
                raise RetiredError(
                    f"Version {number} is {version.state}: it learned from rows that were to be forgotten. Activate "
                    "another version."
                )
            engine = self.engine(number)

            def edit(manifest: Manifest) -> Manifest:
                before = manifest.version(manifest.active)
                if before is not None and before.state == "active":
                    manifest = manifest.with_version(msgspec.structs.replace(before, state="offered"))
                manifest = manifest.with_version(msgspec.structs.replace(version, state="active"))
                return msgspec.structs.replace(manifest, active=number)

            self.change(edit)
            return engine


def columns_of(learner: HierOPO) -> RecordColumns:
    """Return the columns of a record that a learner's policy reads.

    Raises
    ------
    InputError
        The policy is not served, since its refreshes could not learn from rewards of the record.
    """
    refuse_likelihood(learner.likelihood, "the service", "its refreshes learn from sums, without the rows")
    levels = list(reversed(list(learner._task_levels.levels().values())))
    return RecordColumns.of(
        learner.roles_, learner.features_, learner.moments_.tasks[:1000],
        [list(parents.values()) for parents in levels],
    )  # fmt: skip


def _locked(path: Path) -> int:
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    if sys.platform == "win32":
        return descriptor
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ArtifactError(
            f"Another process serves {path}, and two would write one record. Stop that one first, or give this one a "
            "state of its own."
        ) from error
    return descriptor
