"""The files of a directory of each kind, and the one document that describes it.

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

from hieropo.errors import ArtifactError
from hieropo.estimation.crossed.mixture import CrossedHierarchies
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Grouping, Hierarchy, Level
from hieropo.model.metadata import Metadata
from hieropo.policies.marginals import TaskTable, UnitTable
from hieropo.rows.keys import Keys

AnyHierarchy = Hierarchy | CrossedHierarchies | CrossedHierarchy
_CROSSED: dict[str, type[CrossedHierarchies] | type[CrossedHierarchy]] = {
    "crossed": CrossedHierarchies, "crossed given": CrossedHierarchy,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of directory.

    Parameters
    ----------
    name : str
        In the entry "format" of the document, after "hieropo", and in the name of the document.
    called : str
        The same in a sentence.
    version : int
        The one that this release writes and reads.
    """

    name: str
    called: str
    version: int

    @property
    def document(self) -> str:
        """Name of the document."""
        return f"{self.name}.json"


POLICY = Kind("policy", "a policy", 6)
SUMS = Kind("moments", "moments", 2)
CHECKPOINT = Kind("checkpoint", "a checkpoint", 2)
TASKS = "tasks.arrow"
LOOKUP = "lookup.arrow"
MOMENTS = "moments.arrow"
METADATA = "metadata.arrow"
GATE = "gate.arrow"


def level_file(number: int) -> str:
    """Name of the table that holds the parents of one level."""
    return f"level-{number}.arrow"


def encode(document: dict[str, Any]) -> bytes:
    """Write the document, one entry a line, closed by its own checksum.

    Raises
    ------
    TypeError, ValueError
        A value is not JSON.
    """
    entries = [f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in document.items()]
    body = ("{\n" + ",\n".join(entries)).encode()
    return body + _closing(body)


def _closing(body: bytes) -> bytes:
    return f',\n "sha256": "{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()


def kind_of(folder: Path) -> Kind | None:
    """Return the kind that a directory states; None where it has no document, or none that this user may see."""
    if not os.access(folder, os.X_OK):
        return None
    return next((kind for kind in (POLICY, SUMS, CHECKPOINT) if (folder / kind.document).is_file()), None)


def head(kind: Kind) -> dict[str, Any]:
    """Begin a document."""
    from hieropo import __version__

    return {"format": f"hieropo {kind.name}", "version": kind.version, "written_by": f"hieropo {__version__}"}


def decode(raw: bytes, folder: Path, kind: Kind) -> dict[str, Any]:
    """Read the document of ``folder``.

    Raises
    ------
    ArtifactError
        Not of this kind, of another version of the format, torn or edited.
    """
    document = _whole(raw, folder, kind)
    if document["version"] != kind.version:
        raise ArtifactError(
            f"{folder}: {kind.document} is of format version {document['version']}, written by "
            f"{document.get('written_by')}; this release reads version {kind.version} alone. Read it with the release "
            "that wrote it, or make it again with this one."
        )
    return document


def _whole(raw: bytes, folder: Path, kind: Kind) -> dict[str, Any]:
    """Read the document of any version."""
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


def from_gaussian(law: Gaussian | None) -> dict[str, Any] | None:
    """Write a Gaussian; None stays None."""
    return None if law is None else {"mean": law.mean.tolist(), "cov": law.cov.tolist()}


def to_gaussian(entry: dict[str, Any] | None) -> Gaussian | None:
    """Read a Gaussian, to the last bit."""
    return None if entry is None else Gaussian.trusted(_array(entry["mean"]), _array(entry["cov"]))


def from_prior(table: TaskTable | UnitTable) -> dict[str, Any] | None:
    """Write the law of a task that is not in the table; packed covariances where each action has a law of its own."""
    if isinstance(table, UnitTable):
        return {"mean": np.asarray(table.prior_means).tolist(), "cov": np.asarray(table.prior_covs).tolist()}
    return from_gaussian(table.prior)


def from_hierarchy(hierarchy: AnyHierarchy | None) -> dict[str, Any] | None:
    """Write a hierarchy; who hangs on whom, and what is known of tasks, lies in tables of its own."""
    if hierarchy is None:
        return None
    named = {"levels": [{"name": level.name} for level in hierarchy.levels]}
    known = {} if hierarchy.metadata is None else {"metadata": _about(hierarchy.metadata)}
    if isinstance(hierarchy, CrossedHierarchies | CrossedHierarchy):
        return {**hierarchy.to_dict(), **named, **known}
    return {
        "hyper": from_gaussian(hierarchy.hyper),
        "task_cov": hierarchy.task_cov.tolist(),
        "noise_var": float(hierarchy.noise_var),
        "levels": [{"name": level.name, "cov": level.cov.tolist()} for level in hierarchy.levels],
        **known,
    }


def _about(metadata: Metadata) -> dict[str, Any]:
    return {"names": list(metadata.names), "centre": metadata.centre.tolist()}


def to_metadata(entry: dict[str, Any], tasks: Keys, values: Any) -> Metadata:
    """Read metadata, given their table: ids (m,) and one row of numbers for each."""
    centre = _array(entry["centre"])
    return Metadata(tasks, values.reshape(len(values), *centre.shape), tuple(entry["names"]), centre)


def to_hierarchy(
    entry: dict[str, Any],
    parents: Callable[[int], dict[Any, Any]],
    metadata: Callable[[dict[str, Any]], Metadata],
) -> AnyHierarchy:
    """Read a hierarchy; ``parents`` gives the parent of every child of a level, ``metadata`` what is known of tasks."""
    known = metadata(entry["metadata"]) if "metadata" in entry else None
    kind = _CROSSED.get(entry.get("kind", ""))
    if kind is not None:
        groups = tuple(Grouping(parents(k), level["name"]) for k, level in enumerate(entry["levels"]))
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
    """Read means (K, p) and packed covariances (K, p (p + 1) / 2) of a task that is not in the table."""
    return _array(entry["mean"]), _array(entry["cov"])


def _array(values: list[Any]) -> Any:
    return np.array(values, dtype=np.float64)


def damaged(folder: Path, name: str, finding: str) -> ArtifactError:
    """Build the error for a file that is not as it was written."""
    return ArtifactError(
        f"{folder}: {name} {finding}. The directory was torn (copied in part, disk failure) or edited by "
        "hand. Take it from a copy, or make it again."
    )


def check_replaceable(target: Path, kind: Kind = POLICY) -> None:
    """Refuse a target that a save must not replace: all but nothing, an empty directory and one of this kind alone.

    Raises
    ------
    ArtifactError
        The target is something else; says what.
    """
    if not target.parent.is_dir():
        raise ArtifactError(f"{target} cannot be written: {target.parent} is no directory. Make it first.")
    if not target.exists():
        return
    if not target.is_dir():
        raise ArtifactError(f"{target} is a file, and what is written is a directory. Give another path.")
    names = {path.name for path in target.iterdir()}
    if not names:
        return
    advice = "Give another path, or move what stands there away."
    if kind.document not in names:
        raise ArtifactError(
            f"{target} is a directory with other things in it ({_few(names)}), not {kind.called}. {advice}"
        )
    try:
        document = _whole((target / kind.document).read_bytes(), target, kind)
    except ArtifactError as error:
        raise ArtifactError(f"{target} may be something else than {kind.called}: {error} {advice}") from error
    strange = names - {kind.document} - document["files"].keys()
    if strange:
        raise ArtifactError(f"{target} holds files that hieropo did not write ({_few(strange)}). {advice}")


def _few(names: set[str]) -> str:
    return ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
