"""What directories of all kinds have in common: how they are written, their provenance and their feature map."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hieropo.artifacts import layout
from hieropo.artifacts.swap import replacing
from hieropo.core.features import FeatureMap, feature_map_from_dict
from hieropo.errors import ArtifactError, InputError


@contextmanager
def writing(path: str | os.PathLike[str], kind: layout.Kind) -> Iterator[Path]:
    """Give an empty directory to write into, which takes the place of ``path`` at the end.

    Raises
    ------
    ArtifactError
        Something else stands at ``path``, or it cannot be written; what stood there is untouched.
    """
    target = Path(os.path.realpath(path))
    try:
        with replacing(target, lambda place: layout.check_replaceable(place, kind)) as folder:
            yield folder
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ArtifactError(
            f"{target} was not written: {reason}. What stood there before is as it was. "
            "Is the disk full, a quota used up, or the directory closed to this user?"
        ) from error


def plain_json(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return a provenance as it comes back from JSON.

    Raises
    ------
    InputError
        An entry would not come back equal.
    """
    try:
        twin = json.loads(json.dumps(dict(provenance), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"The provenance is not JSON: {error}. Use texts, numbers and lists.") from error
    for key, value in provenance.items():
        if twin.get(key) != value:
            raise InputError(
                f"The provenance entry {key!r} = {value!r} would come back as {twin.get(key)!r}. "
                "JSON has text keys, and lists but no tuples."
            )
    return dict(twin)


def read_features(folder: Path, document: Mapping[str, Any], kind: layout.Kind) -> FeatureMap | None:
    """Read the feature map of a document; None where it has none.

    Raises
    ------
    ArtifactError
        This release cannot read it, or reads another map.
    """
    entry = document["features"]
    if entry is None:
        return None
    try:
        features = feature_map_from_dict(entry)
    except InputError as error:
        raise ArtifactError(
            f"{folder}: {kind.document} holds a feature map that this release cannot read ({error}). It "
            f"was written by {document['written_by']}: use that release, or make it again."
        ) from error
    if features.fingerprint != document["features_fingerprint"]:
        raise other_number(folder, "the fingerprint of the feature map is another than when it was saved")
    return features


def other_number(folder: Path, problem: str) -> ArtifactError:
    """Build the error for files that are whole and yet say something else than when they were written."""
    return ArtifactError(
        f"{folder}: {problem}. The files are whole, so this release computes something else than the one "
        "that saved it. Use that release, or fit and save again."
    )


def unreadable(folder: Path, entry: str, error: Exception) -> ArtifactError:
    """Build the error for an entry of a policy's document that does not describe a value."""
    reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    return ArtifactError(
        f"{folder}: the entry {entry!r} of {layout.POLICY.document} cannot be read: {reason}. The checksum is right, "
        "so the file was edited, or written by another program. The policy cannot be inspected, judged or learned on. "
        "Take the directory from a copy, or fit and save again."
    )
