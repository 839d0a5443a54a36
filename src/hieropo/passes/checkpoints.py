"""A pass over a log that may be killed at any moment and goes on after the last file that was read whole.

Before the first row and after every file a checkpoint is written: what each lane has summed, the feature map, and what
the log is. A pass that finds one goes on after it with as many lanes, so that it ends with the same bits as one that
was never stopped. Files that were read must be as they were then; those that come after them are read anyway.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hieropo.errors import ArtifactError, InputError, LogError, MismatchError
from hieropo.features.maps import FeatureMap
from hieropo.logs.arrow.log_source import LogSource, files_of
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.model.task_levels import TaskLevels
from hieropo.passes.feature_choice import FeatureChoice, feature_map, measured_near, reward_offset
from hieropo.passes.summing import sums
from hieropo.passes.worker import PassResult
from hieropo.rows.batches import Roles
from hieropo.storage.checkpoint import StoredCheckpoint, read_checkpoint, write_checkpoint
from hieropo.storage.layout import CHECKPOINT, check_replaceable
from hieropo.storage.moments import Sums

_END = (
    1 << 14
)  # bytes at the end of a file that are hashed: there Parquet and Arrow files say what is in them


def features_and_sums(
    source: LogSource,
    choice: FeatureChoice,
    roles: Roles,
    apart: Callable[[FeatureMap], bool],
    *,
    rejects: Rejects | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    threads: int | None = None,
) -> tuple[FeatureMap, PassResult]:
    """Choose the feature map of a log, and sum over its rows; a checkpoint that was written stays where it is.

    The map measures its columns from near the first rows, where they lie far from 0 and it has no origin of its own.

    Parameters
    ----------
    source : LogSource
    choice : FeatureMap or name of one, optional
        As :func:`feature_choice.feature_map` takes it.
    roles : Roles
    apart : callable
        Says of the map whether actions are kept apart, or refuses it.
    rejects : Rejects, optional
        Takes rows that cannot be used.
    checkpoint : path, optional
        Directory in which to keep how far the pass has come, and from which to go on.
    threads : int, optional
        As of :func:`summing.sums`.

    Raises
    ------
    InputError
        A checkpoint of a log that does not lie in files, or with ``rejects``.
    MismatchError
        The checkpoint is of another log, of other columns or settings, or a file that was read has changed.
    ArtifactError
        The checkpoint cannot be read or written.
    SchemaError, LogError, UnknownActionError
        The log cannot be used.
    """
    if checkpoint is not None:
        return _with_checkpoints(source, choice, roles, apart, rejects, Path(checkpoint), threads)
    features = _chosen(source, choice, roles, rejects)
    if rejects is not None:
        rejects.features = features
    kept, offset = apart(features), reward_offset(features, source, roles.reward)
    return features, sums(
        source, features, roles, apart=kept, rejects=rejects, threads=threads, offset=offset
    )


def _chosen(
    source: LogSource, choice: FeatureChoice, roles: Roles, rejects: Rejects | None = None
) -> FeatureMap:
    return measured_near(feature_map(choice, source, roles, rejects), source)


def _with_checkpoints(
    source: LogSource,
    choice: FeatureChoice,
    roles: Roles,
    apart: Callable[[FeatureMap], bool],
    rejects: Rejects | None,
    path: Path,
    threads: int | None,
) -> tuple[FeatureMap, PassResult]:
    files = _files(source, rejects)
    marks = [_mark(file) for file in files]
    log = {"schema": {name: str(source.schema.field(name).type) for name in roles.columns}, "files": marks}
    named = choice if choice is None or isinstance(choice, str) else choice.fingerprint
    asked = {**roles.to_dict(), "features": named, "filter": getattr(source, "where", None)}
    check_replaceable(path, CHECKPOINT)
    with _beginning_anew(path):
        found = read_checkpoint(path)
        if found is not None:
            _check_same(found, log, asked)
        features = _features(found, log, lambda: _chosen(source, choice, roles))
        kept = apart(features)

    def keep(done: int, lanes: Sequence[PassResult]) -> None:
        if done:
            _refuse_changed(marks[done - 1], files[done - 1])
        write_checkpoint(
            path, StoredCheckpoint(log, done, asked, features, [stored_sums(lane) for lane in lanes])
        )

    start = None
    if found is None:
        keep(0, [])
    elif found.lanes:
        start = found.files, [summed_from(lane, roles) for lane in found.lanes]
    offset = reward_offset(features, source, roles.reward) if start is None else None
    summed = sums(
        source, features, roles, apart=kept, threads=threads, start=start, after_file=keep, offset=offset
    )
    return features, summed


def _files(source: LogSource, rejects: Rejects | None) -> Sequence[Path]:
    """Return the files of a log, where there can be checkpoints."""
    files = files_of(source)
    if files is None:
        raise InputError(
            f"Checkpoints are for logs in files (with a filter: in Parquet files), and this is the {source.name}: how "
            "much of it was read cannot be told later. Leave the checkpoint out, or write the rows to files."
        )
    if rejects is not None:
        raise InputError(
            "A checkpoint does not keep which rows were set aside: leave lenient and rejects out, or the checkpoint."
        )
    return files


def _mark(file: Path) -> dict[str, Any]:
    """Return the marks of a file: names of folders and file, length, time of change, a hash of its end."""
    status = file.stat()
    with file.open("rb") as opened:
        opened.seek(max(0, status.st_size - _END))
        end = hashlib.sha256(opened.read(_END)).hexdigest()
    named = [part for part in file.parent.parts if "=" in part]  # folders that name a column
    return {
        "path": str(file), "name": "/".join([*named, file.name]), "bytes": status.st_size,
        "modified": status.st_mtime_ns, "end": end,
    }  # fmt: skip


def _refuse_changed(mark: Mapping[str, Any], file: Path) -> None:
    """Refuse a file that changed while it was read."""
    if _mark(file) != mark:
        raise LogError(
            f"{str(file)!r} changed while it was read. Is it still being written? Begin again when it is whole."
        )


_SAID = {
    "name": "is another file",
    "bytes": "has another length",
    "modified": "was changed",
    "end": "has another end",
}


def _check_same(found: StoredCheckpoint, log: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that another pass has left."""
    for name, then in found.settings.items():
        if asked.get(name) != then:
            raise MismatchError(
                f"The checkpoint was made with {name}={then!r}, and now it is {asked.get(name)!r}."
            )
    for column, then in found.log["schema"].items():
        now = log["schema"][column]
        if now != then:
            raise MismatchError(
                f"The checkpoint is of a log whose column {column!r} is {then}, and now it is {now}."
            )
    _check_read(found.log["files"][: found.files], log["files"])


def _check_read(read: Sequence[Mapping[str, Any]], files: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a log whose first files are not those that were read."""
    for then, now in zip(read, files, strict=False):
        for part, said in _SAID.items():
            if then[part] != now[part]:
                raise MismatchError(
                    f"The checkpoint is of another log: {now['path']!r} {said} since it was read as {then['path']!r}."
                )
    if len(read) > len(files):
        lost = read[len(files)]["path"]
        raise MismatchError(f"The checkpoint is of another log: {lost!r} was read and is not here.")


@contextmanager
def _beginning_anew(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say what to do about a checkpoint that cannot be gone on from."""
    try:
        yield
    except (ArtifactError, MismatchError) as error:
        error.add_note(f"Remove the checkpoint {os.fspath(path)} to begin anew, or name another directory.")
        raise


def _features(
    found: StoredCheckpoint | None, log: Mapping[str, Any], choose: Callable[[], FeatureMap]
) -> FeatureMap:
    """Return the map of the checkpoint, where need be after a look at whether it is still that of the log."""
    if found is None:
        return choose()
    if found.log["files"] == log["files"]:
        return found.features
    features = choose()
    if found.lanes and features != found.features:
        raise MismatchError(
            "Files were added or changed since the checkpoint was made, and with them the actions: "
            f"{list(features.actions or ())} are not {list(found.features.actions or ())}."
        )
    return features


def stored_sums(summed: PassResult) -> Sums:
    """Return what is written to disk."""
    levels = list(summed.task_levels.levels().values())
    return Sums(summed.moments, summed.sketch, levels, summed.task_levels.known)


def summed_from(stored: Sums, roles: Roles) -> PassResult:
    """Return what was written to disk."""
    return PassResult(stored.moments, TaskLevels.of(roles, stored.levels, stored.known), stored.sketch)
