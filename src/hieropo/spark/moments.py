"""Sharded moments of a Spark frame, or of files that workers read."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from hieropo._utils.arrays import Array
from hieropo.errors import InputError, LogError
from hieropo.features.maps import FeatureMap, feature_map_from_dict
from hieropo.features.terms.learned import LearnedTerms
from hieropo.logs.arrow.log_source import empty
from hieropo.logs.arrow.schema import check_columns
from hieropo.logs.engines.tables import StreamSource, TableSource
from hieropo.logs.formats.paths import find_files, part_of_files
from hieropo.logs.opening import open_log
from hieropo.logs.reading import check_log, distinct_values, first_rows
from hieropo.passes.designs import design_of, is_formula, sources_of
from hieropo.passes.feature_choice import (
    FeatureChoice,
    check_choice,
    map_with,
    reward_offset,
    with_first_origin,
)
from hieropo.passes.log_moments import LogMoments, has_per_action_sums
from hieropo.passes.sharded import DEFAULT_SHARDS, ShardedMoments, ShardWriter, merged, split
from hieropo.passes.summing import joined_sums
from hieropo.rows.batches import Roles, column_tuple
from hieropo.rows.task_hash import check_shards
from hieropo.spark.hashing import SHARD, quoted, with_shards
from hieropo.spark.workers import (
    REPORT_DDL,
    check_workers,
    collected,
    nonempty,
    reported,
    session_of,
    slots_of,
)

How = Literal["auto", "rows", "files"]
_FIRST_ROWS = 8192  # rows from which origins are chosen, as on one machine
_FAR_PATH = "://"


@dataclass(frozen=True, slots=True)
class Job:
    """All that a worker needs to sum rows, as values that can be shipped.

    Parameters
    ----------
    features : dict
        The feature map, with its actions and its origin.
    roles : dict
        Whose context columns are those of the log.
    offset : list of float or None
    folder : str
        Where shards are written; all workers and the driver see it.
    shards : int
    """

    features: Mapping[str, Any]
    roles: Mapping[str, Any]
    offset: Sequence[float] | None
    folder: str
    shards: int

    def sums(self, source: Any) -> LogMoments:
        """Return the moments of the rows of a source, by one thread."""
        features, roles = feature_map_from_dict(self.features), Roles(**self.roles)
        design = design_of(features, open_log(source), roles)
        _, summed = joined_sums(
            design.source, features, design.roles, per_action=has_per_action_sums, threads=1,
            offset=None if self.offset is None else np.array(self.offset),
        )  # fmt: skip
        return LogMoments(features, design.roles, summed)


def moments(
    rows: Any,
    *,
    out: str | os.PathLike[str],
    features: FeatureChoice = None,
    shards: int = DEFAULT_SHARDS,
    how: How = "auto",
    spark: Any = None,
    groups: int | None = None,
    **columns: Any,
) -> ShardedMoments:
    """Sum the rows of a Spark frame, or of files, into moments in shards, which :meth:`HierOPO.fit` takes.

    The sums are those of :meth:`LogMoments.of`, to rounding. Retried and speculative tasks write the same shards.

    Parameters
    ----------
    rows : DataFrame or path
        A frame of any source; or a path or glob that :func:`open_log` takes, which every worker sees.
    out : path
        Directory of the moments in shards, on a file system that the driver and every worker see. Its parts are written
        beside it and removed at the end.
    features : FeatureMap, LearnedTerms or {"per-action", "indicator", "columns"}, optional
        As of :meth:`LogMoments.of`. Terms must have been learned before: ``features.terms`` of moments of some rows.
    shards : int
        A power of two.
    how : {"auto", "rows", "files"}
        "rows": rows are re-partitioned by the hash of their task, and each shard is summed where its rows arrive.
        "files": workers read groups of files of about equal bytes, and their partial sums are merged by the driver, in
        the order of the groups; it pays above some nine rows for each task and worker. "auto": "files" for a path,
        "rows" for a frame.
    spark : SparkSession, optional
        Default: the active session.
    groups : int, optional
        Groups of files. Default: as many as task slots, or files.
    **columns
        Names of columns by role, as of :meth:`LogMoments.of`.

    Returns
    -------
    ShardedMoments

    Raises
    ------
    InputError, SchemaError, LogError, UnknownActionError
        The rows cannot be used; the message has the partition or the group, and the row in it.
    """
    check_choice(features)
    roles = Roles(**{"task": None, "action": None, "reward": None, **_with_context(features, columns)})
    _refuse_choice(features, roles)
    check_shards(shards)
    is_path = isinstance(rows, str | os.PathLike)
    way = ("files" if is_path else "rows") if how == "auto" else how
    _refuse_way(way, is_path=is_path, out=out)
    session = session_of(None if is_path else rows, spark)
    check_workers(session)
    folder = _empty_folder(out)
    parts = Path(tempfile.mkdtemp(prefix=f"{folder.name}.parts-", dir=folder.parent))
    try:
        if way == "files":
            made = _of_files(session, rows, features, roles, parts, shards, groups)
        else:
            frame = session.read.parquet(os.fspath(rows)) if is_path else rows
            made = _of_rows(frame, features, roles, parts, shards)
        return merged(made, folder, provenance={"summed": "on Spark", "how": way})
    finally:
        shutil.rmtree(parts, ignore_errors=True)


def _empty_folder(out: str | os.PathLike[str]) -> Path:
    """Return the directory of the result; raise where something is in it."""
    folder = Path(os.path.realpath(out))
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(
            f"{folder} exists and is not empty, and shards of this run cannot be added to it. Remove it, or give "
            "another directory: out=...."
        )
    return folder


def _with_context(features: FeatureChoice, columns: Mapping[str, Any]) -> dict[str, Any]:
    unknown = [name for name in columns if name not in Roles.names()]
    if unknown:
        raise TypeError(
            f"moments() got {unknown[0]!r}; it takes the names of columns by role: {list(Roles.names())}."
        )
    return {**columns, "context": columns.get("context") or sources_of(features)}


def _refuse_choice(features: FeatureChoice, roles: Roles) -> None:
    if is_formula(features):
        raise InputError(
            f"The features {str(features)!r} are a formula, whose levels and knots are learned by a read of all rows, "
            "which is not done on Spark. Learn them from some rows, LogMoments.of(frame.limit(100_000).toArrow(), "
            "features=...), and give what these learned: features=moments.features.terms."
        )
    if roles.cluster is not None:
        raise InputError(
            f"cluster={roles.cluster!r} was given, and Spark's workers make no sums of clusters. Leave it out, or make "
            "the moments of the files with `hieropo moments --shards S --part K/N`."
        )


def _refuse_way(way: str, *, is_path: bool, out: Any) -> None:
    if way not in ("rows", "files"):
        raise InputError(f"how={way!r} is not known; 'auto', 'rows' or 'files' is needed.")
    if way == "files" and not is_path:
        raise InputError(
            "how='files' needs the path of the files, and a frame was given. Give the path, or how='rows'."
        )
    if _FAR_PATH in os.fspath(out):
        raise InputError(
            f"{os.fspath(out)!r} is the address of an object store, and shards are files that appear in one step. Give "
            "a path of a file system that the driver and all workers see, and copy the directory when it is whole."
        )


def _of_rows(
    frame: Any, features: FeatureChoice, roles: Roles, parts: Path, shards: int
) -> list[ShardedMoments]:
    """Sum re-partitioned rows; return the one directory of shards that the workers wrote."""
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import to_arrow_schema

    listed = [("term" if role == "context" else role, column) for role, column in roles.items()]
    check_columns(
        to_arrow_schema(frame.schema), listed, "Spark frame"
    )  # Spark itself ignores the case of names
    chosen = frame.select(*(f.col(quoted(column)) for column in roles.columns))
    sample = TableSource(chosen.limit(_FIRST_ROWS).toArrow(), "first rows of the Spark frame")
    if not sample.n_rows:
        raise empty("Spark frame")

    def actions(column: str) -> Sequence[Any]:
        distinct = chosen.select(f.col(quoted(column))).distinct().toArrow()
        return distinct_values(TableSource(distinct, "actions of the Spark frame"), column)

    job, writer = _begun(features, roles, sample, actions, parts / "rows", shards)
    names = list(roles.columns)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _summed_partition(batches, job, names)

    shuffled = with_shards(chosen, column_tuple(roles.task), shards).repartitionById(shards, SHARD)
    collected(shuffled.mapInArrow(work, REPORT_DDL), "the rows of shard")
    done = writer.done
    for k in range(shards):
        if k not in done:  # no row is of this shard
            writer.write_shard(k, _no_moments(writer))
    return [writer.finish()]


def _summed_partition(
    batches: Iterator[pa.RecordBatch], job: Job, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Sum the rows of one partition, write its shards, and yield a report; nothing for no rows."""
    batches = nonempty(batches)
    first = next(batches, None)
    if first is None:
        return
    announced: set[int] = set()

    def kept() -> Iterator[pa.RecordBatch]:
        for batch in chain([first], batches):
            announced.update(batch.column(SHARD).unique().to_pylist())
            yield batch.select(names)

    def summed() -> float:
        schema = first.schema.remove(first.schema.get_field_index(SHARD))
        total = job.sums(
            StreamSource(kept(), pa.schema([schema.field(name) for name in names]), "Spark partition")
        )
        writer = ShardWriter.resume(job.folder)
        for k, part in enumerate(split(total, job.shards)):
            if len(part) != 0 and k not in announced:
                raise LogError(
                    f"Task {part.tasks[0]!r} is of shard {k}, and Spark sent its rows to {sorted(announced)}. "
                    "This is an error of hieropo: please report the type of the column of tasks."
                )
            if len(part):
                writer.write_shard(k, part)
        return total.n_rows

    yield reported(int(first.column(SHARD)[0].as_py()), summed)


def _begun(
    features: FeatureChoice, roles: Roles, sample: Any, actions_of: Any, folder: Path, shards: int
) -> tuple[Job, ShardWriter]:
    """Choose the feature map from first rows and all actions; return the job, and the writer of a directory for it."""
    feature_map, design_roles, offset = _chosen(features, roles, sample, actions_of)
    job = _job(feature_map, roles, offset, folder, shards)
    unit = None
    if offset is not None:
        units = len(feature_map.actions or (0,)) if has_per_action_sums(feature_map) else 1
        unit = offset[: feature_map.dim // units]
    return job, ShardWriter.begin(folder, feature_map, design_roles, shards=shards, offset=unit)


def _job(features: FeatureMap, roles: Roles, offset: Array | None, folder: Path, shards: int) -> Job:
    """Return the work of one worker, as values that travel to it."""
    return Job(
        features.to_dict(), roles.to_dict(), None if offset is None else offset.tolist(), str(folder), shards
    )


def _chosen(
    features: FeatureChoice, roles: Roles, sample: Any, actions_of: Any
) -> tuple[FeatureMap, Roles, Array | None]:
    """Return the feature map with actions and a first origin, the roles of its design, and the offset of rewards."""
    design = design_of(features, sample, roles)
    if design.source is not sample and _terms(features) is None:
        raise InputError(
            f"The context columns {list(roles.context)} are not all numbers, so that their levels are learned by a "
            "read of all rows, which is not done on Spark. Learn them from some rows, "
            "LogMoments.of(frame.limit(100_000).toArrow(), ...), and give what these learned: "
            "features=moments.features.terms."
        )
    check_log(design.source, design.roles, lenient=False)
    given = getattr(features, "actions", None)
    actions = (given or actions_of(roles.action)) if roles.action is not None else ()
    feature_map = map_with(design.choice, design.roles, actions)
    first = first_rows(design.source, (roles.reward, *design.roles.context))
    feature_map = with_first_origin(feature_map, first)
    return feature_map, design.roles, reward_offset(feature_map, first, roles.reward)


def _terms(features: Any) -> Any:
    return features if isinstance(features, LearnedTerms) else getattr(features, "terms", None)


def _no_moments(writer: ShardWriter) -> LogMoments:
    """Return moments of no task for the plan of a writer."""
    from hieropo.model.task_levels import TaskLevels
    from hieropo.moments.row_sketch import RowSketch
    from hieropo.passes.worker import PassResult, accumulator

    plan = writer.plan
    total = accumulator(plan.features, per_action=has_per_action_sums(plan.features))
    return LogMoments(
        plan.features, plan.roles, PassResult(total.moments(), TaskLevels(plan.roles), RowSketch.none())
    )


def _of_files(
    session: Any,
    path: Any,
    features: FeatureChoice,
    roles: Roles,
    parts: Path,
    shards: int,
    groups: int | None,
) -> list[ShardedMoments]:
    """Let workers sum groups of files; return the directories of shards, in the order of the groups."""
    from pyspark.sql import functions as f

    files = find_files(path)
    source = open_log(path)
    sample = TableSource(pa.Table.from_batches([first_rows(source, roles.columns).batch]), source.name)
    count = min(groups or slots_of(session), len(files.files))

    def actions(column: str) -> Sequence[Any]:
        return distinct_values(source, column)

    feature_map, _, offset = _chosen(features, roles, sample, actions)
    job = _job(feature_map, roles, offset, parts, shards)
    location = os.fspath(path)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield reported(number, partial(_summed_group, job, location, number, count))

    numbers = session.range(1, count + 1).withColumn("group", (f.col("id") - 1).cast("int"))
    collected(numbers.repartitionById(count, "group").mapInArrow(work, REPORT_DDL), "group")
    return [ShardedMoments.open(parts / f"group-{k:05d}") for k in range(1, count + 1)]


def _summed_group(job: Job, path: str, number: int, count: int) -> float:
    """Sum one group of files and write its shards; a group that is written already is not read again."""
    total = job.sums(part_of_files(find_files(path), number, count))
    ShardedMoments.of(total, Path(job.folder) / f"group-{number:05d}", shards=job.shards)
    return total.n_rows
