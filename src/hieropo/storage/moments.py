"""Moments on disk, with the levels and metadata of tasks: in a policy, a checkpoint, or a directory of their own."""

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
from hieropo.moments.clusters import ClusterTable
from hieropo.moments.row_sketch import RowSketch
from hieropo.moments.statistics import Moments
from hieropo.rows.batches import Roles
from hieropo.rows.ids import id_array
from hieropo.rows.keys import Keys
from hieropo.storage import layout
from hieropo.storage.columns import IdColumn, open_ids
from hieropo.storage.directories import plain_json, read_features, writing
from hieropo.storage.mapped import MappedFile, open_directory

Files = Mapping[str, MappedFile]
_CHUNK = 1 << 16  # rows that are compared at a time


@dataclass(frozen=True, eq=False)
class Sums:
    """The result of a pass over rows: moments, fingerprint, levels and metadata of tasks.

    Parameters
    ----------
    moments : Moments
    sketch : RowSketch
        A fingerprint of the rows.
    levels : sequence of mappings
        The parent of each child, level by level, from the tasks upwards.
    known : mapping
        Numbers (c,) known of each task; empty without metadata.
    clusters : ClusterTable or None
        Sums of the clusters of the rows.
    """

    moments: Moments
    sketch: RowSketch
    levels: Sequence[Mapping[Any, Any]] = ()
    known: Mapping[Any, Array] = field(default_factory=dict)
    clusters: ClusterTable | None = None


def flat(values: Any) -> Any:
    """Return an array (m, ...) as one row of numbers for each task, (m, k)."""
    array = np.asarray(values)
    return array.reshape(len(array), int(np.prod(array.shape[1:])))


def read_parents(file: MappedFile) -> dict[Any, Any]:
    """Return the parent of each child from the table of a level."""
    children, parents = (stored_ids(file, name).values().tolist() for name in ("child", "parent"))
    return dict(zip(children, parents, strict=True))


def stored_ids(file: MappedFile, column: str) -> IdColumn:
    """Return a column of ids of a file."""
    count = len(file.entry["columns"][column]["buffers"])
    return open_ids(file.kind_of(column), tuple(file.bytes_of(column, number) for number in range(count)))


def write_moments(path: Path, moments: Moments, sums: Any = None) -> dict[str, Any]:
    """Write the table of moments and return its entry; ``sums``, if given, are written in place of those of moments."""
    from hieropo.storage import arrow

    columns = {
        "id": arrow.ids(moments.keys.values),
        "rows": arrow.numbers(moments.rows),
        "log_precision": arrow.numbers(moments.log_precision),
        "sums": arrow.numbers(flat(moments.sums if sums is None else sums)),
    }
    if moments.squares is not None:
        columns["squares"] = arrow.numbers(flat(moments.squares))
    if moments.positive is not None:
        columns["positive_rows"] = arrow.numbers(moments.positive.rows)
        columns["positive_sums"] = arrow.numbers(flat(moments.positive.sums))
    return arrow.write_table(path, columns)


def stored_offset(moments: Moments) -> list[float] | None:
    """Return the offset of a unit as JSON can hold it."""
    return None if moments.unit_offset is None else moments.unit_offset.tolist()


def parent_columns(parents: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the columns of the table of children and their parents."""
    from hieropo.storage import arrow

    return {
        "child": arrow.ids(id_array(list(parents), "child")),
        "parent": arrow.ids(id_array(list(parents.values()), "child")),
    }


def read_moments(
    file: MappedFile,
    dim: int,
    actions: int,
    features: str | None,
    offset: Sequence[float] | None,
    *,
    short: bool = False,
    numbered: bool = False,
) -> Moments:
    """Return the moments of a table as views of the file; per action where ``actions`` is not 0.

    ``numbered`` moments have the numbers of rows in place of the ids of tasks, which are then not read.
    """
    keys = Keys(np.arange(file.rows) if numbered else stored_ids(file, "id").values())
    offset_array = None if offset is None else np.array(offset, dtype=np.float64)
    if not actions:
        sums = file.array("sums", "<f8", packed_size(dim + 2))
        rows, log_precision = file.array("rows", "<f8"), file.array("log_precision", "<f8")
        squares = file.array("squares", "<f8", packed_size(dim + 2)) if _sampled(file) else None
        return Moments(keys, dim, sums, rows, log_precision, features, squares, offset_array)
    p = dim // actions
    sums = file.array("sums", "<f8", actions * packed_size(p + (1 if short else 2)))
    rows, log_precision = (file.array(name, "<f8", actions) for name in ("rows", "log_precision"))
    if short:
        sums = _with_last_column(sums, len(keys) * actions, p)
    squares = file.array("squares", "<f8", actions * packed_size(p + 2)) if _sampled(file) else None
    shape = (len(keys), actions, packed_size(p + 2))
    squares = None if squares is None else squares.reshape(shape)
    moments = Moments(keys, p, sums.reshape(shape), rows, log_precision, features, squares, offset_array)
    if "positive_sums" not in file.entry["columns"]:
        return moments
    positive = file.array("positive_sums", "<f8", actions * shape[2])
    return moments.with_positive(positive.reshape(shape), file.array("positive_rows", "<f8", actions))


def _sampled(file: MappedFile) -> bool:
    """Return True where the table holds sums of squared weights, which sampling weights need."""
    return "squares" in file.entry["columns"]


def _copies_of_last_column(p: int) -> NDArray[np.int64]:
    """Return the positions, in packed sums of z = (1, x, r, 1), of the first column, which equals the last."""
    first = np.arange(p + 1)
    return np.append(first * (first + 1) // 2, 0)


def _without_last_column(moments: Moments) -> Array | None:
    """Return packed sums without the last column of z = (1, x, r, 1), if it equals the first bit for bit; else None."""
    p = moments.unit_dim
    sums = np.ascontiguousarray(moments.unit_sums)
    size = packed_size(p + 1)
    for start in range(0, len(sums), _CHUNK):
        part = sums[start : start + _CHUNK].view(np.int64)
        if not np.array_equal(part[:, size:], part[:, _copies_of_last_column(p)]):
            return None
    return sums[:, :size].reshape(len(moments), moments.n_actions * size)


def _with_last_column(sums: Array, n_blocks: int, p: int) -> Array:
    """Return packed sums (n_blocks, ...) with the last column of z copied from the first."""
    size = packed_size(p + 1)
    full = np.empty((n_blocks, packed_size(p + 2)))
    full[:, :size] = sums.reshape(n_blocks, size)
    full[:, size:] = full[:, _copies_of_last_column(p)]
    return full


def write_sums(folder: Path, prefix: str, sums: Sums) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write all tables; return their entry in the document, and the entries of their files.

    The table of moments holds at most (d + 2)(d + 3) / 2 + 2 numbers for each task, d the number of features. For
    task-action blocks of p features it holds as many for each block, or (p + 1)(p + 2) / 2 + 2 where the first feature
    is an intercept.
    """
    from hieropo.storage import arrow

    moments = sums.moments
    short = _without_last_column(moments) if moments.per_action else None
    files = {f"{prefix}moments.arrow": write_moments(folder / f"{prefix}moments.arrow", moments, short)}
    for number, parents in enumerate(sums.levels):
        name = f"{prefix}level-{number}.arrow"
        files[name] = arrow.write_table(folder / name, parent_columns(parents))
    if sums.known:
        name, values = f"{prefix}metadata.arrow", np.array(list(sums.known.values()), dtype=np.float64)
        columns = {"id": arrow.ids(id_array(list(sums.known), "task")), "values": arrow.numbers(values)}
        files[name] = arrow.write_table(folder / name, columns)
    if sums.clusters is not None:
        name = f"{prefix}{layout.CLUSTERS}"
        files[name] = arrow.write_table(folder / name, _cluster_columns(sums.clusters, moments))
    entry = {
        "dim": moments.dim,
        "actions": moments.n_actions if moments.per_action else 0,
        "offset": stored_offset(moments),
        **({"short": short is not None} if moments.per_action else {}),
        "levels": len(sums.levels),
        "metadata": len(next(iter(sums.known.values()))) if sums.known else 0,
        "clusters": sums.clusters is not None,
        "sketch": sums.sketch.to_dict(),
    }
    return entry, files


def read_sums(files: Files, prefix: str, entry: Mapping[str, Any], features: str) -> Sums:
    """Return the sums that :func:`write_sums` wrote, after a check of all files; moments may be views of a file."""
    for name, mapped in files.items():
        if name.startswith(prefix):
            mapped.verify()
    moments = read_moments(
        files[f"{prefix}moments.arrow"],
        entry["dim"],
        entry["actions"],
        features,
        entry["offset"],
        short=entry.get("short", False),
    )
    levels = [read_parents(files[f"{prefix}level-{number}.arrow"]) for number in range(entry["levels"])]
    known = {}
    if entry["metadata"]:
        file = files[f"{prefix}metadata.arrow"]
        values = file.array("values", "<f8", entry["metadata"])
        known = dict(zip(stored_ids(file, "id").values().tolist(), values, strict=True))
    clusters = None
    if entry.get("clusters"):
        clusters = _read_clusters(files[f"{prefix}{layout.CLUSTERS}"], moments)
    return Sums(moments, RowSketch.from_dict(entry["sketch"]), levels, known, clusters)


def _cluster_columns(clusters: ClusterTable, moments: Moments) -> dict[str, Any]:
    """Return the columns of the table of clusters: row of the task in the table of moments, action, id and sums."""
    from hieropo.storage import arrow

    row, table = np.asarray(moments.keys.require(clusters.tasks.values)), clusters.around(moments.unit_offset)
    return {
        "id": arrow.ids(clusters.ids.values[clusters.cluster]),
        "task": arrow.numbers(row[clusters.task].astype(np.int64)),
        "action": arrow.numbers(clusters.action.astype(np.int64)),
        "sums": arrow.numbers(table.sums),
    }


def _read_clusters(file: MappedFile, moments: Moments) -> ClusterTable:
    """Return the sums of clusters of a table, as views of the file."""
    ids, cluster = Keys.factorize(stored_ids(file, "id").values())
    sums = file.array("sums", "<f8", moments.unit_dim + 2)
    return ClusterTable(
        moments.keys,
        ids,
        file.array("task", "<i8"),
        file.array("action", "<i8"),
        cluster,
        sums,
        moments.unit_offset,
    )


@dataclass(frozen=True, eq=False)
class StoredMoments:
    """The content of a moments directory.

    Parameters
    ----------
    path : Path
    features : FeatureMap
        The feature map of the moments.
    roles : Roles
        The columns of the log.
    sums : Sums
    provenance : dict
        As it was given to ``write_moments_file``.
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
    """Write moments to a directory; they replace moments at ``path`` in one step.

    A reader finds the old or the new moments at any time, also when this process is killed or the disk is full.

    Raises
    ------
    ArtifactError
        ``path`` holds something else, or cannot be written; its content is unchanged.
    InputError
        An id or an entry of ``provenance`` would not be read back equal.
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
        entry, files = write_sums(folder, "", sums)
        document |= {"sums": entry, "files": files}
        (folder / layout.SUMS.document).write_bytes(layout.encode(document))
    return Path(os.path.realpath(path))


def read_moments_file(path: str | os.PathLike[str]) -> StoredMoments:
    """Return the moments that :func:`write_moments_file` wrote, after a check of every byte.

    Raises
    ------
    ArtifactError
        There are none, or they are torn, edited or of another format version; the message names the file.
    """
    folder, document, files = open_directory(Path(path), layout.SUMS)
    features = read_features(folder, document, layout.SUMS)
    assert features is not None
    sums = read_sums(files, "", document["sums"], features.fingerprint)
    if sums.moments.n_rows != document["rows"] or sums.moments.dim != features.dim:
        raise ArtifactError(
            f"{folder}: the tables hold {sums.moments.n_rows:g} rows and {sums.moments.dim} features, and the document "
            f"states {document['rows']:g} and {features.dim}, so the directory was edited. Make the moments again."
        )
    return StoredMoments(folder, features, Roles(**document["columns"]), sums, document["provenance"])


def holds_moments(source: object) -> bool:
    """Return True for the path of a directory of moments."""
    return isinstance(source, str | os.PathLike) and layout.kind_of(Path(source)) is layout.SUMS
