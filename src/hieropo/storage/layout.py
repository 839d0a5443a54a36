"""The files of each kind of directory, and the document that describes them.

The document, such as ``policy.json``, ends in the SHA-256 of all its bytes before, and names every other file with its
length and SHA-256, so that no byte of the directory can change unseen.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hieropo._utils.packed import pack
from hieropo.errors import ArtifactError, NumericalError
from hieropo.estimation.crossed.mixture import CrossedHierarchies
from hieropo.estimation.crossed.two_part import TwoPartHierarchies
from hieropo.estimation.crossed.walking import RateError, WalkingHierarchies
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.task_noise import TaskNoise
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Grouping, Hierarchy, Level
from hieropo.model.metadata import Metadata
from hieropo.model.table import PosteriorTable
from hieropo.rows.keys import Keys

AnyHierarchy = Hierarchy | CrossedHierarchies | CrossedHierarchy
_CROSSED: dict[str, type[CrossedHierarchies] | type[CrossedHierarchy]] = {
    "crossed": CrossedHierarchies, "crossed given": CrossedHierarchy, "two-part": TwoPartHierarchies,
    "crossed walking": WalkingHierarchies,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of directory.

    Parameters
    ----------
    name : str
        Its name in the entry "format" of the document, after "hieropo", and in the file name of the document.
    called : str
        Its name in a sentence.
    version : int
        The format version that this release writes and reads.
    """

    name: str
    called: str
    version: int

    @property
    def document(self) -> str:
        """Return the file name of the document."""
        return f"{self.name}.json"


POLICY = Kind("policy", "a policy", 10)
SUMS = Kind("moments", "moments", 4)
CHECKPOINT = Kind("checkpoint", "a checkpoint", 3)
SHARDS = Kind("shards", "sharded moments", 1)
PLAN = Kind("plan", "a plan of sharded moments", 1)
TASKS = "tasks.arrow"
LOOKUP = "lookup.arrow"
MOMENTS = "moments.arrow"
METADATA = "metadata.arrow"
CLUSTERS = "clusters.arrow"
NOISE = "noise.arrow"
DRIFT = "drift.arrow"
GATE = "gate.arrow"


def level_file(number: int) -> str:
    """Return the file name of the table with the parents of one level."""
    return f"level-{number}.arrow"


def encode(document: dict[str, Any]) -> bytes:
    """Return the document as bytes, one entry a line, ending in its own checksum.

    Raises
    ------
    TypeError
        A value is not JSON.
    NumericalError
        A number is not finite; names its entry.
    """
    entries = [f" {json.dumps(key)}: {_encoded(key, value)}" for key, value in document.items()]
    body = ("{\n" + ",\n".join(entries)).encode()
    return body + _closing(body)


def _encoded(key: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise NumericalError(
            f"The entry {key!r} has a number that is not finite, and nothing was written. Values of the log are so "
            "large or so small that products of their powers leave the range of a float64. Write its columns in units "
            "in which values are near 1, and fit again."
        ) from error


def _closing(body: bytes) -> bytes:
    return f',\n "sha256": "{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()


def kind_of(folder: Path) -> Kind | None:
    """Return the kind of a directory; None where it has no document, or none that this user may read."""
    if not os.access(folder, os.X_OK):
        return None
    return next(
        (kind for kind in (POLICY, SUMS, CHECKPOINT, SHARDS, PLAN) if (folder / kind.document).is_file()),
        None,
    )


def head(kind: Kind) -> dict[str, Any]:
    """Return the first entries of a document: format, version and release."""
    from hieropo import __version__

    return {"format": f"hieropo {kind.name}", "version": kind.version, "written_by": f"hieropo {__version__}"}


def decode(raw: bytes, folder: Path, kind: Kind) -> dict[str, Any]:
    """Return the document of ``folder``.

    Raises
    ------
    ArtifactError
        It is of another kind or format version, torn or edited.
    """
    document = _decode_any_version(raw, folder, kind)
    if document["version"] != kind.version:
        raise ArtifactError(
            f"{folder}: {kind.document} has format version {document['version']}, written by "
            f"{document.get('written_by')}; this release reads only version {kind.version}. Read it with the release "
            "that wrote it, or make it again with this one."
        )
    return document


def _decode_any_version(raw: bytes, folder: Path, kind: Kind) -> dict[str, Any]:
    """Return the document of any format version."""
    try:
        document = json.loads(raw)
    except ValueError as error:
        raise damaged(folder, kind.document, f"cannot be read as JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != f"hieropo {kind.name}":
        raise ArtifactError(
            f"{folder}: {kind.document} does not describe {kind.called} of hieropo. Check the path."
        )
    length = len(_closing(b""))
    if _closing(raw[:-length]) != raw[-length:]:
        raise damaged(folder, kind.document, "does not have the checksum that it was written with")
    return document


def from_gaussian(gaussian: Gaussian | None) -> dict[str, Any] | None:
    """Return a Gaussian as types of JSON; None stays None."""
    return None if gaussian is None else {"mean": gaussian.mean.tolist(), "cov": gaussian.cov.tolist()}


def to_gaussian(entry: dict[str, Any] | None) -> Gaussian | None:
    """Return the Gaussian of an entry, equal to the last bit."""
    return None if entry is None else Gaussian.trusted(_array(entry["mean"]), _array(entry["cov"]))


def from_prior(table: PosteriorTable) -> dict[str, Any] | None:
    """Return the prior of a task that is not in the table; packed covariances where actions have separate marginals."""
    if table.per_action:
        return {"mean": np.asarray(table.prior_means).tolist(), "cov": np.asarray(table.prior_covs).tolist()}
    return from_gaussian(table.prior)


def from_hierarchy(hierarchy: AnyHierarchy | None) -> dict[str, Any] | None:
    """Return a hierarchy as types of JSON; parents of nodes and values of metadata are stored in tables."""
    if hierarchy is None:
        return None
    named = {"levels": [{"name": level.name} for level in hierarchy.levels]}
    known = {} if hierarchy.metadata is None else {"metadata": _metadata_entry(hierarchy.metadata)}
    if isinstance(hierarchy, CrossedHierarchies | CrossedHierarchy):
        return {**hierarchy.to_dict(), **named, **known, **_noise_entry(hierarchy), **_rate_entry(hierarchy)}
    return {
        "hyper": from_gaussian(hierarchy.hyper),
        "task_cov": hierarchy.task_cov.tolist(),
        "noise_var": float(hierarchy.noise_var),
        "levels": [{"name": level.name, "cov": level.cov.tolist()} for level in hierarchy.levels],
        **known,
    }


def _noise_entry(hierarchy: AnyHierarchy) -> dict[str, Any]:
    noise = task_noise(hierarchy)
    return (
        {}
        if noise is None
        else {"task_noise": {"degrees": noise.degrees, "mean_variance": noise.mean_variance}}
    )


def _rate_entry(hierarchy: AnyHierarchy) -> dict[str, Any]:
    error = rate_error(hierarchy)
    return {} if error is None else {"rate_error": list(error.root.shape[1:])}


def rate_error(hierarchy: AnyHierarchy) -> RateError | None:
    """Return the error of the rate of drift in single tasks; None where there is none."""
    return hierarchy.rate_error if isinstance(hierarchy, WalkingHierarchies) else None


def task_noise(hierarchy: AnyHierarchy) -> TaskNoise | None:
    """Return the noise of tasks of a hierarchy; None where noise is equal."""
    return hierarchy.task_noise if isinstance(hierarchy, CrossedHierarchies) else None


def _metadata_entry(metadata: Metadata) -> dict[str, Any]:
    return {"names": list(metadata.names), "centre": metadata.centre.tolist()}


def to_metadata(entry: dict[str, Any], tasks: Keys, values: Any) -> Metadata:
    """Return metadata from their table: ids (m,) of tasks and one row of numbers for each."""
    centre = _array(entry["centre"])
    return Metadata(tasks, values.reshape(len(values), *centre.shape), tuple(entry["names"]), centre)


def to_hierarchy(
    entry: dict[str, Any],
    parents: Callable[[int], dict[Any, Any]],
    metadata: Callable[[dict[str, Any]], Metadata],
    noise: Callable[[dict[str, Any]], TaskNoise],
    rates: Callable[[list[int]], RateError],
) -> AnyHierarchy:
    """Return the hierarchy of an entry.

    ``parents`` reads the parents of a level; ``metadata``, ``noise`` and ``rates``, the error of the rate of drift,
    read those of tasks.
    """
    known = metadata(entry["metadata"]) if "metadata" in entry else None
    kind = _CROSSED.get(entry.get("kind", ""))
    if kind is not None:
        groups = tuple(Grouping(parents(k), level["name"]) for k, level in enumerate(entry["levels"]))
        of_tasks = noise(entry["task_noise"]) if "task_noise" in entry else None
        if kind is CrossedHierarchies:
            return CrossedHierarchies.from_dict(entry, groups, known, of_tasks)
        if kind is WalkingHierarchies:
            error = rates(entry["rate_error"]) if "rate_error" in entry else None
            return WalkingHierarchies.from_dict(entry, groups, known, of_tasks, error)
        return kind.from_dict(entry, groups, known)
    levels = tuple(
        Level(_array(level["cov"]), parents(number), name=level["name"])
        for number, level in enumerate(entry["levels"])
    )
    return Hierarchy(
        hyper=to_gaussian(entry["hyper"]),
        task_cov=_array(entry["task_cov"]),
        noise_var=entry["noise_var"],
        levels=levels,
        metadata=known,
    )


def to_prior(entry: dict[str, Any]) -> tuple[Any, Any]:
    """Return means and packed covariances of a task that is not in the table, as :func:`from_prior` wrote them."""
    mean, cov = _array(entry["mean"]), _array(entry["cov"])
    return mean, cov if mean.ndim == 2 else pack(cov)


def _array(values: list[Any]) -> Any:
    return np.array(values, dtype=np.float64)


def damaged(folder: Path, name: str, finding: str) -> ArtifactError:
    """Return the error for a file that has changed since it was written."""
    return ArtifactError(
        f"{folder}: {name} {finding}. The directory is damaged (copied in part, disk failure) or was edited. Restore "
        "it from a copy, or make it again."
    )


def check_replaceable(target: Path, kind: Kind = POLICY) -> None:
    """Refuse a target that a save must not replace: only an empty directory or one of this kind may exist there.

    Raises
    ------
    ArtifactError
        The target is something else; the message names it.
    """
    if not target.parent.is_dir():
        raise ArtifactError(
            f"{target} cannot be written, because {target.parent} is not a directory. Make it first."
        )
    if not target.exists():
        return
    if not target.is_dir():
        raise ArtifactError(f"{target} is a file, and {kind.called} is a directory. Give another path.")
    names = {path.name for path in target.iterdir()}
    if not names:
        return
    advice = "Give another path, or move its content away."
    if kind.document not in names:
        raise ArtifactError(
            f"{target} is a directory with other files ({_few(names)}), not {kind.called}, and would be replaced. "
            f"{advice}"
        )
    try:
        document = _decode_any_version((target / kind.document).read_bytes(), target, kind)
    except ArtifactError as error:
        raise ArtifactError(f"{target} may not be {kind.called}: {error} {advice}") from error
    unknown = names - {kind.document} - document["files"].keys()
    if unknown:
        raise ArtifactError(
            f"{target} holds files that hieropo did not write ({_few(unknown)}), and would be replaced. {advice}"
        )


def _few(names: set[str]) -> str:
    return ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
