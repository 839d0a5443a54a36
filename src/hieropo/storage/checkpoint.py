"""A checkpoint of a pass over a log: a directory that is replaced after every file."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hieropo.features.maps import FeatureMap
from hieropo.storage import layout
from hieropo.storage.directories import displaced, read_features, remove, writing
from hieropo.storage.mapped import open_directory
from hieropo.storage.moments import Sums, read_sums, write_sums


@dataclass(frozen=True, eq=False)
class StoredCheckpoint:
    """The state of a pass so far.

    Parameters
    ----------
    log : mapping
        Description of the log, as JSON can hold it.
    files : int
        Number of its files that were read.
    settings : mapping
        Settings of the pass, as JSON can hold them.
    features : FeatureMap
    worker_sums : sequence of Sums
        The sums of each worker.
    """

    log: Mapping[str, Any]
    files: int
    settings: Mapping[str, Any]
    features: FeatureMap
    worker_sums: Sequence[Sums]


def write_checkpoint(path: str | os.PathLike[str], checkpoint: StoredCheckpoint) -> None:
    """Write a checkpoint; it replaces the one at ``path`` in one step.

    Raises
    ------
    ArtifactError
        ``path`` holds something else, or cannot be written.
    """
    document = {
        **layout.head(layout.CHECKPOINT),
        "files_read": checkpoint.files,
        "rows": sum(sums.sketch.rows for sums in checkpoint.worker_sums),
        "settings": dict(checkpoint.settings),
        "features": checkpoint.features.to_dict(),
        "features_fingerprint": checkpoint.features.fingerprint,
        "log": dict(checkpoint.log),
    }
    with writing(path, layout.CHECKPOINT) as folder:
        workers: list[dict[str, Any]] = []
        files: dict[str, Any] = {}
        for number, sums in enumerate(checkpoint.worker_sums):
            entry, written = write_sums(folder, _prefix(number), sums)
            workers.append(entry)
            files |= written
        document |= {"lanes": workers, "files": files}
        (folder / layout.CHECKPOINT.document).write_bytes(layout.encode(document))


def read_checkpoint(path: str | os.PathLike[str]) -> StoredCheckpoint | None:
    """Return a checkpoint after a check of every byte; None where ``path`` does not exist or is empty.

    Raises
    ------
    ArtifactError
        A file is torn or edited, or the format is that of another release.
    """
    place = Path(path)
    if not (place.exists() and any(place.iterdir())) and displaced(place) is None:
        return None
    folder, document, files = open_directory(place, layout.CHECKPOINT)
    features = read_features(folder, document, layout.CHECKPOINT)
    assert features is not None
    worker_sums = [
        read_sums(files, _prefix(number), entry, features.fingerprint)
        for number, entry in enumerate(document["lanes"])
    ]
    return StoredCheckpoint(
        document["log"], document["files_read"], document["settings"], features, worker_sums
    )


def remove_checkpoint(path: str | os.PathLike[str]) -> None:
    """Remove a checkpoint.

    Raises
    ------
    ArtifactError
        ``path`` holds something else.
    """
    layout.check_replaceable(Path(path), layout.CHECKPOINT)
    remove(Path(path))


def _prefix(worker: int) -> str:
    return f"lane-{worker}-"
