"""Moments on disk: a directory as that of a policy is, without a policy."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hieropo.artifacts import layout
from hieropo.artifacts.directories import plain_json, read_features, writing
from hieropo.artifacts.mapped import open_directory
from hieropo.artifacts.sums import Sums, read_sums, write_sums
from hieropo.core.features import FeatureMap
from hieropo.core.logs import Roles
from hieropo.errors import ArtifactError


@dataclass(frozen=True, eq=False)
class StoredMoments:
    """The content of a moments directory.

    Parameters
    ----------
    path : Path
    features : FeatureMap
        The map that the sums were made with.
    roles : Roles
        The columns that they were made of.
    sums : Sums
    provenance : dict
        As it was handed in.
    """

    path: Path
    features: FeatureMap
    roles: Roles
    sums: Sums
    provenance: Mapping[str, Any]


def write_moments_file(
    path: str | os.PathLike[str],
    features: FeatureMap,
    roles: Roles,
    sums: Sums,
    provenance: Mapping[str, Any],
) -> Path:
    """Write moments to a directory, in place of those that stand there, if some do.

    A reader finds the old ones or the new ones at any moment, also when this process is killed or the disk is full.

    Raises
    ------
    ArtifactError
        Something else stands at ``path``, or it cannot be written; what stood there is untouched.
    InputError
        An id or an entry of ``provenance`` would not come back equal.
    """
    document = {
        **layout.head(layout.SUMS),
        "rows": sums.moments.n_rows,
        "tasks": len(sums.moments),
        "features": features.to_dict(),
        "features_fingerprint": features.fingerprint,
        "columns": roles.to_dict(),
        "provenance": plain_json(provenance),
    }
    with writing(path, layout.SUMS) as folder:
        about, files = write_sums(folder, "", sums)
        document |= {"sums": about, "files": files}
        (folder / layout.SUMS.document).write_bytes(layout.encode(document))
    return Path(os.path.realpath(path))


def read_moments_file(path: str | os.PathLike[str]) -> StoredMoments:
    """Open what :func:`write_moments_file` wrote, and check every byte of it.

    Raises
    ------
    ArtifactError
        There are none, or they are torn, edited or of a newer format; names the file.
    """
    folder, document, files = open_directory(Path(path), layout.SUMS)
    features = read_features(folder, document, layout.SUMS)
    assert features is not None
    sums = read_sums(files, "", document["sums"], features.fingerprint)
    if sums.moments.n_rows != document["rows"] or sums.moments.dim != features.dim:
        raise ArtifactError(
            f"{folder}: the tables hold {sums.moments.n_rows:g} rows and {sums.moments.dim} features, and the document "
            f"says {document['rows']:g} and {features.dim}. Make it again."
        )
    return StoredMoments(folder, features, Roles(**document["columns"]), sums, document["provenance"])


def holds_moments(source: object) -> bool:
    """Return whether something is the path of a moments directory."""
    return isinstance(source, str | os.PathLike) and layout.kind_of(Path(source)) is layout.SUMS
