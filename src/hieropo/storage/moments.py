"""Moments on disk, and where tasks stand: in a policy, in checkpoints, or in a directory of their own."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.packed import packed_size
from hieropo.errors import ArtifactError
from hieropo.features.maps import FeatureMap
from hieropo.moments.row_sketch import RowSketch
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitMoments
from hieropo.rows.batches import Roles
from hieropo.rows.ids import id_array
from hieropo.rows.keys import Keys
from hieropo.storage import layout
from hieropo.storage.columns import IdColumn, open_ids
from hieropo.storage.directories import plain_json, read_features, writing
from hieropo.storage.mapped import MappedFile, open_directory

Files = Mapping[str, MappedFile]
_CHUNK = 1 << 16  # rows that are put back together at a time


@dataclass(frozen=True, eq=False)
class Sums:
    """The sums that a pass over rows leaves.

    Parameters
    ----------
    moments : Moments or UnitMoments
    sketch : RowSketch
        A fingerprint of the rows.
    levels : sequence of mappings
        The parent of each child, level by level, from the tasks upwards.
    known : mapping
        Numbers (c,) known of each task; empty without metadata.
    """

    moments: Moments | UnitMoments
    sketch: RowSketch
    levels: Sequence[Mapping[Any, Any]] = ()
    known: Mapping[Any, Array] = field(default_factory=dict)


def flat(values: Any) -> Any:
    """One row of numbers for each task, (m, ...) to (m, k)."""
    array = np.asarray(values)
    return array.reshape(len(array), int(np.prod(array.shape[1:])))


def read_parents(file: MappedFile) -> dict[Any, Any]:
    """Read that table."""
    children, parents = (stored_ids(file, name).values().tolist() for name in ("child", "parent"))
    return dict(zip(children, parents, strict=True))


def stored_ids(file: MappedFile, column: str) -> IdColumn:
    """Read a column of ids."""
    count = len(file.entry["columns"][column]["buffers"])
    return open_ids(file.kind_of(column), tuple(file.bytes_of(column, number) for number in range(count)))


def write_moments(path: Path, moments: Moments | UnitMoments, sums: Any = None) -> dict[str, Any]:
    """Write the table of moments; return its entry. ``sums`` are written in place of theirs."""
    from hieropo.storage import arrow

    columns = {
        "id": arrow.ids(moments.keys.values),
        "rows": arrow.numbers(moments.rows),
        "log_precision": arrow.numbers(moments.log_precision),
        "sums": arrow.numbers(flat(moments.sums if sums is None else sums)),
    }
    if moments.squares is not None:
        columns["squares"] = arrow.numbers(flat(moments.squares))
    return arrow.write_table(path, columns)


def stored_offset(moments: Moments | UnitMoments) -> list[float] | None:
    """Return the offset, of units that of one action, as JSON can hold it."""
    offset = moments.units.offset if isinstance(moments, UnitMoments) else moments.offset
    return None if offset is None else offset.tolist()


def parent_columns(parents: Mapping[Any, Any]) -> dict[str, Any]:
    """Make the columns of the table that says who hangs on whom."""
    from hieropo.storage import arrow

    children, above = (id_array(list(each), "child") for each in (parents, parents.values()))
    return {"child": arrow.ids(children), "parent": arrow.ids(above)}


def read_moments(
    file: MappedFile,
    dim: int,
    actions: int,
    features: str | None,
    offset: Sequence[float] | None,
    *,
    short: bool = False,
) -> Moments | UnitMoments:
    """Read the table of moments of ``dim`` features, as views of the file; of units where there are ``actions``."""
    keys = Keys(stored_ids(file, "id").values())
    known = None if offset is None else np.array(offset, dtype=np.float64)
    if not actions:
        sums = file.array("sums", "<f8", packed_size(dim + 2))
        rows, log_precision = file.array("rows", "<f8"), file.array("log_precision", "<f8")
        squares = file.array("squares", "<f8", packed_size(dim + 2)) if _sampled(file) else None
        return Moments(keys, dim, sums, rows, log_precision, features, squares, known)
    p = dim // actions
    sums = file.array("sums", "<f8", actions * packed_size(p + (1 if short else 2)))
    rows, log_precision = (file.array(name, "<f8", actions) for name in ("rows", "log_precision"))
    if short:
        sums = _lengthened(sums, len(keys) * actions, p)
    squares = file.array("squares", "<f8", actions * packed_size(p + 2)) if _sampled(file) else None
    return UnitMoments.of(keys, p, sums, rows, log_precision, features, squares, known)


def _sampled(file: MappedFile) -> bool:
    """Return whether the table holds the sums that sampling weights need."""
    return "squares" in file.entry["columns"]


def _doubled(p: int) -> NDArray[np.int64]:
    """Where, in packed sums of z = (1, x, r, 1), the entries stand that those of the last 1 repeat."""
    first = np.arange(p + 1)
    return np.append(first * (first + 1) // 2, 0)


def _shortened(moments: UnitMoments) -> Array | None:
    """Sums of units without the last 1 of z = (1, x, r, 1), where it repeats the first to the last bit; else None."""
    p = moments.unit_dim
    sums = np.ascontiguousarray(moments.units.sums)
    size = packed_size(p + 1)
    for start in range(0, len(sums), _CHUNK):
        part = sums[start : start + _CHUNK].view(np.int64)
        if not np.array_equal(part[:, size:], part[:, _doubled(p)]):
            return None
    return sums[:, :size].reshape(len(moments), moments.n_actions * size)


def _lengthened(sums: Array, units: int, p: int) -> Array:
    size = packed_size(p + 1)
    whole = np.empty((units, packed_size(p + 2)))
    whole[:, :size] = sums.reshape(units, size)
    whole[:, size:] = whole[:, _doubled(p)]
    return whole


def write_sums(folder: Path, prefix: str, sums: Sums) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write all tables; return what the document says of them, and the entries of their files.

    Of a task the table of moments holds at most (d + 2)(d + 3) / 2 + 2 numbers, d the features; of units as many for
    each action with its p features, or (p + 1)(p + 2) / 2 + 2 where the first feature is an intercept.
    """
    from hieropo.storage import arrow

    moments, apart = sums.moments, isinstance(sums.moments, UnitMoments)
    short = _shortened(moments) if isinstance(moments, UnitMoments) else None
    files = {f"{prefix}moments.arrow": write_moments(folder / f"{prefix}moments.arrow", moments, short)}
    for number, parents in enumerate(sums.levels):
        name = f"{prefix}level-{number}.arrow"
        files[name] = arrow.write_table(folder / name, parent_columns(parents))
    if sums.known:
        name, values = f"{prefix}metadata.arrow", np.array(list(sums.known.values()), dtype=np.float64)
        columns = {"id": arrow.ids(id_array(list(sums.known), "task")), "values": arrow.numbers(values)}
        files[name] = arrow.write_table(folder / name, columns)
    about = {
        "dim": moments.dim,
        "actions": moments.n_actions if isinstance(moments, UnitMoments) else 0,
        "offset": stored_offset(moments),
        **({"short": short is not None} if apart else {}),
        "levels": len(sums.levels),
        "metadata": len(next(iter(sums.known.values()))) if sums.known else 0,
        "sketch": sums.sketch.to_dict(),
    }
    return about, files


def read_sums(files: Files, prefix: str, about: Mapping[str, Any], features: str) -> Sums:
    """Read what :func:`write_sums` wrote, all of it checked; the moments may be views of the file."""
    for name, each in files.items():
        if name.startswith(prefix):
            each.verify()
    moments = read_moments(
        files[f"{prefix}moments.arrow"],
        about["dim"],
        about["actions"],
        features,
        about["offset"],
        short=about.get("short", False),
    )
    levels = [read_parents(files[f"{prefix}level-{number}.arrow"]) for number in range(about["levels"])]
    known = {}
    if about["metadata"]:
        file = files[f"{prefix}metadata.arrow"]
        values = file.array("values", "<f8", about["metadata"])
        known = dict(zip(stored_ids(file, "id").values().tolist(), values, strict=True))
    return Sums(moments, RowSketch.from_dict(about["sketch"]), levels, known)


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
