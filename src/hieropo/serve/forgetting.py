"""Forgetting a task or a subject: its rows, its share in sums and policies, and every byte of its id.

Touched segments are written again without the rows; the sums and their moments are made again of what is left; the
policy is learned anew; versions that had learned from the rows are retired. The journal is rewritten, since a database
keeps deleted bytes in free pages. Each part is repeatable, so that a job that was interrupted starts again.
"""

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hieropo.errors import HieropoError
from hieropo.passes.log_moments import LogMoments
from hieropo.policies.gating import GatedPolicy
from hieropo.serve.columns import RecordColumns
from hieropo.serve.deciding import id_array
from hieropo.serve.journal import EVENT, SEALED, hash_of
from hieropo.serve.learning import RunningTotal, current, evaluated, learned, with_rows
from hieropo.serve.segments import Manifest, Segment, read_rows, with_files
from hieropo.serve.state import State
from hieropo.storage.load import load_policy


def is_of(columns: RecordColumns, kind: str, id: Any) -> Callable[[pa.Table], Any]:  # noqa: A002
    """Return a function that gives the mask of a table's rows of a task or subject."""

    def mask(table: pa.Table) -> Any:
        if kind == "subject":
            equal = pc.fill_null(pc.equal(table.column("subject"), id), fill_value=False)
            return equal.to_numpy().astype(np.bool_)
        parts = id if isinstance(id, tuple) else (id,)
        rows = np.ones(table.num_rows, dtype=np.bool_)
        for (name, _), part in zip(columns.task, parts, strict=True):
            rows &= pc.equal(table.column(name), part).to_numpy().astype(np.bool_)
        return rows

    return mask


def forget(state: State, kind: str, id: Any, *, purge: bool) -> str:  # noqa: A002
    """Forget a task or a subject, and return a sentence with the numbers.

    Parameters
    ----------
    state : State
    kind : {"task", "subject"}
    id : id
        A tuple where several columns name a task.
    purge : bool
        Remove the versions that learned from the rows, too. Without it they are retired, and still hold the id.
    """
    mask = is_of(state.columns, kind, id)
    gone: list[tuple[str, str]] = []
    rewritten: dict[int, Segment] = {}
    for segment in state.manifest.segments:
        replaced, ids = _without(state, segment, mask)
        gone += ids
        if replaced is not None:
            rewritten[segment.number] = replaced
    state.forget_groups()
    in_journal = state.open_journal.run(_delete(kind, id, gone))
    task = id if kind == "task" else None
    stale = _stale(state, rewritten, task)
    in_base = task is not None and _holds(state.base(), task)
    old = state.manifest.names()
    if rewritten or in_base or stale:
        _replace(state, rewritten, task if in_base else None, stale)
    reason = _relearn(state, purge=purge) if state.manifest.stale else ""
    _remove(state, old - state.manifest.names())
    sealed = sum(of == "d" for of, _ in gone)
    return (
        f"{sealed:,} sealed and {in_journal:,} open decisions removed, {len(rewritten):,} segments written again."
        f"{reason}"
    )


def _stale(state: State, rewritten: dict[int, Segment], task: Any) -> tuple[int, ...]:
    """Return the versions that learned from a rewritten segment, or that know the task."""
    since = min(rewritten, default=0)
    versions = [version for version in state.manifest.versions if version.state != "removed"]
    stale = set(state.manifest.stale) | {
        version.number for version in versions if version.through >= since > 0
    }
    for version in versions if task is not None else ():
        policy = load_policy(state.path / version.folder).policy
        if _knows(policy.table.keys, task):
            stale.add(version.number)
    return tuple(sorted(stale))


def _knows(keys: Any, task: Any) -> bool:
    return bool(len(keys)) and int(keys.locate(id_array([task]))[0]) >= 0


def _holds(moments: LogMoments, task: Any) -> bool:
    return _knows(moments.moments.keys, task)


def _remove(state: State, names: set[str]) -> None:
    for name in names:
        path = state.path / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _without(
    state: State, segment: Segment, mask: Callable[[pa.Table], Any]
) -> tuple[Segment | None, list[tuple[str, str]]]:
    """Return a segment written again without some rows; None where it has none of them.

    With it go the pairs ("d", id) of the decisions that are gone, and ("r", id) of their rewards.
    """
    tables: dict[str, pa.Table] = {}
    gone: list[str] = []
    for folder in ("log", "others"):
        if segment.path(folder) is None:
            tables[folder] = state.columns.schema().empty_table()
            continue
        table = read_rows(state.path, [segment], folder, state.columns)
        rows = mask(table)
        gone += table.column("decision_id").filter(pa.array(rows)).to_pylist()
        tables[folder] = table.filter(pa.array(~rows))
    if not gone:
        return None, []
    rewards = read_rows(state.path, [segment], "rewards", state.columns)
    taken = pc.is_in(rewards.column("decision_id"), pa.array(gone, pa.string()))
    reward_ids = rewards.column("reward_id").filter(taken).to_pylist()
    edited = msgspec.structs.replace(segment, edition=segment.edition + 1, moments="", files={})
    edited = with_files(state.path, edited, tables["log"], tables["others"], rewards.filter(pc.invert(taken)))
    ids = [("d", id_) for id_ in gone] + [("r", id_) for id_ in reward_ids]
    return state.with_moments(edited), ids


def _delete(kind: str, id: Any, sealed: list[tuple[str, str]]) -> Callable[[sqlite3.Connection], int]:  # noqa: A002
    """Return the operation that deletes a task's or a subject's decisions, rewards and hashes, and old jobs.

    ``sealed`` are ids of decisions and rewards in segments, of which the journal may hold hashes.
    """
    task = list(id) if isinstance(id, tuple) else id

    def apply(connection: sqlite3.Connection) -> int:
        rows = connection.execute("SELECT seq, id, state, event FROM decisions").fetchall()
        ids, open_ = [], 0
        for seq, decision, state, raw in rows:
            event = EVENT.decode(raw)
            if (event.subject if kind == "subject" else event.task) == task:
                ids.append((seq, decision))
                open_ += state != SEALED
        rewards = [
            row
            for seq, _ in ids
            for row in connection.execute("SELECT id FROM rewards WHERE decision = ?", (seq,))
        ]
        connection.executemany("DELETE FROM rewards WHERE decision = ?", [(seq,) for seq, _ in ids])
        connection.executemany("DELETE FROM decisions WHERE seq = ?", [(seq,) for seq, _ in ids])
        hashes = [(hash_of(*pair),) for pair in sealed] + [(hash_of("r", r),) for (r,) in rewards]
        connection.executemany("DELETE FROM spent WHERE hash = ?", hashes)
        connection.execute("DELETE FROM jobs WHERE state IN ('done', 'failed')")
        return open_

    return apply


def _replace(state: State, rewritten: dict[int, Segment], task: Any, stale: tuple[int, ...]) -> None:
    """Put the rewritten segments and sums in place, in one step."""
    manifest = state.manifest
    segments = tuple(rewritten.get(segment.number, segment) for segment in manifest.segments)
    base = state.base()
    name = manifest.base
    if task is not None:
        sketch = base.summed.sketch
        base = base.without([task])
        base = type(base)(
            base.features, base.roles, type(base.summed)(base.moments, base.summed.task_levels, sketch)
        )
        name = f"base/{manifest.editions + 1:03d}"
        base.save(state.path / name)
    rows = read_rows(state.path, segments, "log", state.columns)
    total = with_rows(RunningTotal(base), rows, state.columns, state.settings, manifest.created)
    sums = f"sums/{manifest.editions + 1:06d}"
    (state.path / "sums").mkdir(exist_ok=True)
    total.moments.save(state.path / sums)
    through = segments[-1].number if segments else 0

    def edit(current_manifest: Manifest) -> Manifest:
        return msgspec.structs.replace(
            current_manifest, segments=segments, base=name, sums=sums, sums_through=through,
            sums_exponent=total.exponent, sums_last=total.last, editions=manifest.editions + 2,
            stale=stale,
        )  # fmt: skip

    state.change(edit)


def _relearn(state: State, *, purge: bool) -> str:
    """Learn anew, activate the result, and retire the versions that had learned from the rows."""
    learner, stale = state.learner(), state.manifest.stale
    moments = current(state.total(), state.settings, state.manifest.created)
    renewed, _ = learned(moments, learner)
    before: Any = learner.policy_
    gated = _gated(state, renewed, before) if isinstance(before, GatedPolicy) else None
    number = state.offer(renewed, "learned anew after forgetting", state.manifest.sums_through, gated)
    state.activate(number)

    def edit(manifest: Manifest) -> Manifest:
        for version in manifest.versions:
            if version.number in stale and version.state != "removed":
                new = "removed" if purge else "retired"
                manifest = manifest.with_version(msgspec.structs.replace(version, state=new, reason=""))
        return msgspec.structs.replace(manifest, stale=())

    state.change(edit)
    done = "removed" if purge else "retired"
    return f" Version {number} was learned anew; {len(stale):,} version(s) {done}."


def _gated(state: State, learner: Any, gate: GatedPolicy) -> GatedPolicy:
    """Return a renewed policy with its gate computed anew; where rows cannot tell, the incumbent keeps all tasks."""
    rows = read_rows(state.path, state.manifest.segments, "log", state.columns)
    settings = replace(state.settings, max_harm=gate.max_harm)
    active = state.manifest.version(state.manifest.active)
    assert active is not None
    try:
        evaluation = evaluated(learner, state.path / active.folder, rows, settings)
        return evaluation.gate(gate.max_harm, incumbent=gate.incumbent)
    except HieropoError:
        harm = np.full(len(learner.policy_.table.keys), np.nan)
        return GatedPolicy(learner.policy_, harm, gate.max_harm, gate.incumbent)
