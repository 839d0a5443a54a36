"""The documents of a directory of sharded moments; :mod:`hieropo.passes.sharded` describes the directory."""

import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo.errors import ArtifactError
from hieropo.features.maps import FeatureMap
from hieropo.moments.statistics import Moments
from hieropo.rows.batches import Roles
from hieropo.rows.task_hash import HASH
from hieropo.storage import layout
from hieropo.storage.directories import plain_json, read_features
from hieropo.storage.mapped import MappedFile, open_directory
from hieropo.storage.moments import read_moments, read_sums, stored_ids
from hieropo.storage.save import IdKind

_SHARD, _PART = re.compile(r"shard-\d{5}"), re.compile(r"part-\d{5}")


@dataclass(frozen=True, eq=False)
class Plan:
    """All that the shards of one directory have in common.

    Parameters
    ----------
    features : FeatureMap
        With its origin, and the list of actions.
    roles : Roles
    n_shards : int
        A power of two.
    offset : tuple of float or None
        The offset of the rewards of a unit, as of :class:`Moments`.
    inputs : mapping
        Names what the shards are made of, as JSON can hold it: a job that goes on must have the same.
    """

    features: FeatureMap
    roles: Roles
    n_shards: int
    offset: tuple[float, ...] | None
    inputs: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types."""
        return {
            "hash": HASH,
            "shards": self.n_shards,
            "features": self.features.to_dict(),
            "features_fingerprint": self.features.fingerprint,
            "columns": self.roles.to_dict(),
            "offset": None if self.offset is None else list(self.offset),
            "inputs": dict(self.inputs),
        }

    @classmethod
    def from_document(cls, folder: Path, document: Mapping[str, Any], kind: layout.Kind) -> "Plan":
        """Return the plan of a document.

        Raises
        ------
        ArtifactError
            The tasks were assigned by a hash, or the features by a map, that this release does not have.
        """
        if document["hash"] != HASH:
            raise ArtifactError(
                f"{folder}: the tasks are in shards by the hash {document['hash']!r}, and this release has {HASH!r}. "
                f"Read it with the release that wrote it ({document['written_by']}), or make the moments again."
            )
        features = read_features(folder, document, kind)
        assert features is not None
        offset = document["offset"]
        return cls(
            features, Roles(**document["columns"]), document["shards"], None if offset is None else tuple(offset),
            document["inputs"],
        )  # fmt: skip

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the plan, which every shard names."""
        return hashlib.sha256(layout.encode(self.to_dict())).hexdigest()


def shard_name(shard: int) -> str:
    """Return the name of the directory of a shard."""
    return f"shard-{shard:05d}"


def part_name(part: int) -> str:
    """Return the name of the directory of a part of a log."""
    return f"part-{part:05d}"


def parts_in(folder: Path) -> list[Path]:
    """Return the directories of the parts of a log, in the order of their numbers."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _PART.fullmatch(path.name) and path.is_dir())


def check_directory(folder: Path) -> None:
    """Refuse a directory into which shards must not be written.

    Raises
    ------
    ArtifactError
        Its parent is no directory; it is a file, or holds other files.
    """
    if not folder.parent.is_dir():
        raise ArtifactError(
            f"{folder} cannot be written, because {folder.parent} is not a directory. Make it first."
        )
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ArtifactError(f"{folder} is a file, and sharded moments are a directory. Give another path.")
    documents = {layout.PLAN.document, layout.SHARDS.document}
    others = sorted(
        path.name
        for path in folder.iterdir()
        if path.name not in documents
        and not path.name.startswith(".")
        and not (_SHARD.fullmatch(path.name) or _PART.fullmatch(path.name))
    )
    if others:
        raise ArtifactError(
            f"{folder} is a directory with other files ({', '.join(others[:3])}), not sharded moments. Give another "
            "path, or move its content away."
        )


def write_document(folder: Path, kind: layout.Kind, entries: Mapping[str, Any]) -> None:
    """Write a document in one step: a reader finds the old one or the new one.

    Raises
    ------
    ArtifactError
        It cannot be written.
    InputError
        An entry would not be read back equal.
    """
    data = layout.encode({**layout.head(kind), **entries})
    part = folder / f".{kind.document}.{secrets.token_hex(6)}"
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(folder / kind.document)
    except OSError as error:
        part.unlink(missing_ok=True)
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ArtifactError(
            f"{folder / kind.document} was not written: {reason}. Check the space on the disk, quotas and permissions."
        ) from error


def read_document(folder: Path, kind: layout.Kind) -> dict[str, Any] | None:
    """Return the document of a directory; None where it has none.

    Raises
    ------
    ArtifactError
        It cannot be read, is torn, edited or of another format version.
    """
    try:
        data = (folder / kind.document).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ArtifactError(f"{folder} cannot be read: {error.strerror}. Check its permissions.") from error
    return layout.decode(data, folder, kind)


def checked_inputs(inputs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the inputs of a plan as JSON reads them back; errors as :func:`plain_json`."""
    return plain_json(inputs or {})


@dataclass(frozen=True, eq=False)
class StoredShard:
    """The directory of one shard, mapped.

    Parameters
    ----------
    path : Path
    document : mapping
    files : mapping
    """

    path: Path
    document: Mapping[str, Any]
    files: Mapping[str, MappedFile]

    @classmethod
    def open(cls, path: Path) -> "StoredShard":
        """Map the files of a shard, whose lengths are checked.

        Raises
        ------
        ArtifactError
            There is none; or it is torn, edited or of another format version; the message names the file.
        """
        return cls(*open_directory(path, layout.SUMS))

    @property
    def checksum(self) -> str:
        """The SHA-256 of its document, which holds those of all its files."""
        return str(self.document["sha256"])

    @property
    def provenance(self) -> Mapping[str, Any]:
        """The shard's entry of its place, its plan and its totals."""
        entry: Mapping[str, Any] = self.document["provenance"]
        return entry

    def sums(self) -> Any:
        """Return the sums with ids, groups and metadata of tasks, after a check of every byte."""
        return read_sums(self.files, "", self.document["sums"], self.document["features_fingerprint"])

    def moments(self) -> Moments:
        """Return the moments as views of the mapped file, with numbers in place of the ids of tasks; unchecked."""
        entry = self.document["sums"]
        return read_moments(
            self.files[layout.MOMENTS], entry["dim"], entry["actions"], self.document["features_fingerprint"],
            entry["offset"], short=entry.get("short", False), numbered=True,
        )  # fmt: skip

    def ids(self) -> NDArray[Any]:
        """Return the ids of the tasks; unchecked."""
        return np.array(stored_ids(self.files[layout.MOMENTS], "id").values())

    def id_kind(self) -> IdKind:
        """Return the kind of the ids, and the bytes of their buffers."""
        column = self.files[layout.MOMENTS].entry["columns"]["id"]
        return IdKind(column["kind"], tuple(size for _, size in column["buffers"]))

    def verify(self) -> None:
        """Check every byte; errors as :meth:`MappedFile.verify`."""
        for file in self.files.values():
            file.verify()


def total_to_dict(total: Moments, observed_tasks: int, observed_units: int) -> dict[str, Any]:
    """Return the sums over all tasks as JSON's types."""
    return {
        "sums": total.sums[0].tolist(),
        "rows": total.rows[0].tolist(),
        "log_precision": total.log_precision[0].tolist(),
        "observed_tasks": observed_tasks,
        "observed_units": observed_units,
    }


def array_of(entry: Any) -> Array:
    """Return numbers of a document as an array."""
    return np.asarray(entry, dtype=np.float64)
