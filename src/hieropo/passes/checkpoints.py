"""A pass over a log that can be killed at any moment and resumes after the last file that was read completely.

Before the first row and after every file a checkpoint is written: the sums of each worker, the feature map, and the
files of the log. A pass that finds a checkpoint resumes with the same number of workers, and so ends with the same bits
as a pass that was never stopped. Files that were read must be unchanged; files that come after them are read anyway.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hieropo.errors import ArtifactError, InputError, LogError, MismatchError
from hieropo.features.maps import FeatureMap
from hieropo.features.terms.learned import LearnedTerms
from hieropo.logs.arrow.log_source import LogSource, files_of
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.reading import FirstRows, first_rows
from hieropo.model.task_levels import TaskLevels
from hieropo.passes.checked_rows import Reducer
from hieropo.passes.feature_choice import (
    FeatureChoice,
    feature_map,
    first_map,
    reward_offset,
    with_first_origin,
)
from hieropo.passes.summing import joined_sums, sums
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
    choice: FeatureChoice | LearnedTerms,
    roles: Roles,
    per_action: Callable[[FeatureMap], bool],
    *,
    rejects: Rejects | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    reducers: Sequence[Reducer] = (),
) -> tuple[FeatureMap, PassResult]:
    """Return the feature map of a log and the sums over its rows; a checkpoint that was written is kept.

    A map without an origin gets one near the first rows, where its columns lie far from 0.

    Parameters
    ----------
    source : LogSource
    choice : FeatureMap or name of one or LearnedTerms, optional
        As :func:`feature_choice.feature_map` takes it.
    roles : Roles
    per_action : callable
        Returns True for a map whose sums are kept per action; raises for a map that is refused.
    rejects : Rejects, optional
        Collects the rows that cannot be used.
    checkpoint : path, optional
        Directory in which the progress of the pass is kept, and from which it resumes.
    threads, reducers
        As of :func:`summing.sums`.

    Raises
    ------
    InputError
        A checkpoint of a log that is not in files, or together with ``rejects``.
    MismatchError
        The checkpoint is of another log, of other columns or settings, or a file that was read has changed.
    ArtifactError
        The checkpoint cannot be read or written.
    SchemaError, LogError, UnknownActionError
        The log cannot be used.
    """
    if checkpoint is not None:
        return _with_checkpoints(
            source, choice, roles, per_action, rejects, Path(checkpoint), threads, reducers
        )

    @cache  # a given map without contexts needs no rows but for its rewards
    def first() -> FirstRows:
        action = () if roles.action is None else (roles.action,)
        return first_rows(source, (roles.reward, *roles.context, *action))

    features, joining = first_map(choice, source, roles, rejects, first)
    features = with_first_origin(features, first())
    if rejects is not None:
        rejects.features = features if joining == "none" else None
    features, summed = joined_sums(
        source, features, roles, per_action=per_action, joining=joining, rejects=rejects, threads=threads,
        offset=reward_offset(features, first(), roles.reward), reducers=reducers,
    )  # fmt: skip
    if rejects is not None:
        rejects.features = features
    return features, summed


def _with_checkpoints(
    source: LogSource,
    choice: FeatureChoice | LearnedTerms,
    roles: Roles,
    per_action: Callable[[FeatureMap], bool],
    rejects: Rejects | None,
    path: Path,
    threads: int | None,
    reducers: Sequence[Reducer],
) -> tuple[FeatureMap, PassResult]:
    files = _files(source, rejects)
    identities = [_identity(file) for file in files]
    description = {
        "schema": {name: str(source.schema.field(name).type) for name in roles.columns},
        "files": identities,
    }
    map_id = choice if choice is None or isinstance(choice, str) else choice.fingerprint  # type: ignore[union-attr]  # a formula is learned
    settings = {**roles.to_dict(), "features": map_id, "filter": getattr(source, "where", None)}

    @cache  # a pass that resumes may not need them
    def first() -> FirstRows:
        return first_rows(source, (roles.reward, *roles.context))

    def chosen_map() -> FeatureMap:
        return with_first_origin(feature_map(choice, source, roles), first())

    check_replaceable(path, CHECKPOINT)
    with _with_remedy(path):
        checkpoint = read_checkpoint(path)
        if checkpoint is not None:
            _check_same(checkpoint, description, settings)
        features = _features(checkpoint, description, chosen_map)
        is_per_action = per_action(features)

    def keep(done: int, workers: Sequence[PassResult]) -> None:
        if done:
            _refuse_changed(identities[done - 1], files[done - 1])
        write_checkpoint(
            path,
            StoredCheckpoint(
                description, done, settings, features, [stored_sums(worker) for worker in workers]
            ),
        )

    start = None
    if checkpoint is None:
        keep(0, [])
    elif checkpoint.worker_sums:
        start = checkpoint.files, [summed_from(worker, roles) for worker in checkpoint.worker_sums]
    offset = reward_offset(features, first(), roles.reward) if start is None else None
    summed = sums(
        source,
        features,
        roles,
        per_action=is_per_action,
        threads=threads,
        start=start,
        after_file=keep,
        offset=offset,
        reducers=reducers,
    )
    return features, summed


def _files(source: LogSource, rejects: Rejects | None) -> Sequence[Path]:
    """Return the files of a log; raise where checkpoints are not possible."""
    files = files_of(source)
    if files is None:
        raise InputError(
            f"The log is the {source.name}, and a checkpoint needs a log in files (with a filter: in Parquet files): "
            "only of files is it known later how much was read. Leave the checkpoint out, or write the rows to "
            "files."
        )
    if rejects is not None:
        raise InputError(
            "A checkpoint was asked for together with lenient or rejects, and a checkpoint does not keep the rows "
            "that were set aside. Leave lenient and rejects out, or the checkpoint."
        )
    return files


def _identity(file: Path) -> dict[str, Any]:
    """Return the identity of a file: names of folders and file, length, time of change, a hash of its end."""
    status = file.stat()
    with file.open("rb") as opened:
        opened.seek(max(0, status.st_size - _END))
        end = hashlib.sha256(opened.read(_END)).hexdigest()
    columns = [part for part in file.parent.parts if "=" in part]  # folders that name a column
    return {
        "path": str(file), "name": "/".join([*columns, file.name]), "bytes": status.st_size,
        "modified": status.st_mtime_ns, "end": end,
    }  # fmt: skip


def _refuse_changed(identity: Mapping[str, Any], file: Path) -> None:
    """Raise LogError where a file changed while it was read."""
    if _identity(file) != identity:
        raise LogError(
            f"The file {str(file)!r} changed while it was read, so that its rows may be incomplete. Is it still "
            "being written? Begin again when it is complete."
        )


_CHANGES = {
    "name": "is another file",
    "bytes": "has another length",
    "modified": "was changed",
    "end": "has another end",
}


def _check_same(
    checkpoint: StoredCheckpoint, description: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    """Raise MismatchError for the checkpoint of another pass."""
    for name, then in checkpoint.settings.items():
        if settings.get(name) != then:
            raise MismatchError(
                f"The checkpoint was made with {name}={then!r}, and this pass has {name}={settings.get(name)!r}."
            )
    for column, then in checkpoint.log["schema"].items():
        now = description["schema"][column]
        if now != then:
            raise MismatchError(
                f"The checkpoint is of a log whose column {column!r} has the type {then}; in this "
                f"log it is {now}."
            )
    _check_read(checkpoint.log["files"][: checkpoint.files], description["files"])


def _check_read(read: Sequence[Mapping[str, Any]], files: Sequence[Mapping[str, Any]]) -> None:
    """Raise MismatchError for a log whose first files are not those that were read."""
    for then, now in zip(read, files, strict=False):
        for key, change in _CHANGES.items():
            if then[key] != now[key]:
                raise MismatchError(
                    f"The checkpoint is of another log: {now['path']!r} {change} since it was read as "
                    f"{then['path']!r}."
                )
    if len(read) > len(files):
        lost = read[len(files)]["path"]
        raise MismatchError(f"The checkpoint is of another log: {lost!r} was read and is missing now.")


@contextmanager
def _with_remedy(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add the remedy to errors about a checkpoint from which the pass cannot resume."""
    try:
        yield
    except (ArtifactError, MismatchError) as error:
        error.add_note(f"Remove the checkpoint {os.fspath(path)} to begin anew, or name another directory.")
        raise


def _features(
    checkpoint: StoredCheckpoint | None, description: Mapping[str, Any], choose: Callable[[], FeatureMap]
) -> FeatureMap:
    """Return the map of the checkpoint; where files changed, check that it is still that of the log."""
    if checkpoint is None:
        return choose()
    if checkpoint.log["files"] == description["files"]:
        return checkpoint.features
    features = choose()
    if checkpoint.worker_sums and features != checkpoint.features:
        raise MismatchError(
            "Files were added or changed since the checkpoint was made, and the actions with them: the log has "
            f"{list(features.actions or ())}, the checkpoint {list(checkpoint.features.actions or ())}."
        )
    return features


def stored_sums(result: PassResult) -> Sums:
    """Return the sums of a pass as they are stored."""
    levels = list(result.task_levels.levels().values())
    return Sums(result.moments, result.sketch, levels, result.task_levels.known, result.clusters)


def summed_from(stored: Sums, roles: Roles) -> PassResult:
    """Return the sums of a pass from stored sums."""
    levels = TaskLevels.of(roles, stored.levels, stored.known)
    return PassResult(stored.moments, levels, stored.sketch, stored.clusters)
