"""A checkpoint of a pass over a log: a directory that is replaced after every file."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hieropo.features.maps import FeatureMap
from hieropo.storage import layout
from hieropo.storage.directories import aside, read_features, remove, writing
from hieropo.storage.mapped import open_directory
from hieropo.storage.moments import Sums, read_sums, write_sums


@dataclass(frozen=True, eq=False)
class StoredCheckpoint:
    """The state of a pass so far.

    Parameters
    ----------
    log : mapping
        What the log was, as JSON can hold it.
    files : int
        How many of its files were read.
    settings : mapping
        What the pass was asked for, as JSON can hold it.
    features : FeatureMap
    lanes : sequence of Sums
        What each lane had summed.
    """

    log: Mapping[str, Any]
    files: int
    settings: Mapping[str, Any]
    features: FeatureMap
    lanes: Sequence[Sums]


def write_checkpoint(path: str | os.PathLike[str], found: StoredCheckpoint) -> None:
    """Write a checkpoint in place of the one that stands there; it is the old one or the new one at any moment.

    Raises
    ------
    ArtifactError
        Something else stands at ``path``, or it cannot be written.
    """
    document = {
        **layout.head(layout.CHECKPOINT),
        "files_read": found.files,
        "rows": sum(lane.sketch.rows for lane in found.lanes),
        "settings": dict(found.settings),
        "features": found.features.to_dict(),
        "features_fingerprint": found.features.fingerprint,
        "log": dict(found.log),
    }
    with writing(path, layout.CHECKPOINT) as folder:
        lanes: list[dict[str, Any]] = []
        files: dict[str, Any] = {}
        for number, lane in enumerate(found.lanes):
            about, written = write_sums(folder, _prefix(number), lane)
            lanes.append(about)
            files |= written
        document |= {"lanes": lanes, "files": files}
        (folder / layout.CHECKPOINT.document).write_bytes(layout.encode(document))


def read_checkpoint(path: str | os.PathLike[str]) -> StoredCheckpoint | None:
    """Open what :func:`write_checkpoint` wrote, and check every byte of it; None where nothing stands.

    Raises
    ------
    ArtifactError
        It is torn, edited or of another release's format.
    """
    place = Path(path)
    if not (place.exists() and any(place.iterdir())) and aside(place) is None:
        return None
    folder, document, files = open_directory(place, layout.CHECKPOINT)
    features = read_features(folder, document, layout.CHECKPOINT)
    assert features is not None
    lanes = [
        read_sums(files, _prefix(number), about, features.fingerprint)
        for number, about in enumerate(document["lanes"])
    ]
    return StoredCheckpoint(document["log"], document["files_read"], document["settings"], features, lanes)


def remove_checkpoint(path: str | os.PathLike[str]) -> None:
    """Remove a checkpoint, whose work is done.

    Raises
    ------
    ArtifactError
        Something else stands at ``path``.
    """
    layout.check_replaceable(Path(path), layout.CHECKPOINT)
    remove(Path(path))


def _prefix(lane: int) -> str:
    return f"lane-{lane}-"
