"""Sharded moments of a Spark frame, or of files that workers read."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hieropo._utils.arrays import Array
from hieropo._utils.packed import packed_size
from hieropo.errors import InputError, LogError
from hieropo.features.maps import FeatureMap, feature_map_from_dict
from hieropo.features.terms.parsing import terms_of
from hieropo.features.terms.terms import Effect
from hieropo.learners.in_shards import moments_of_tasks
from hieropo.logs.arrow.log_source import LogSource, empty, over_parts
from hieropo.logs.arrow.schema import check_columns
from hieropo.logs.bad_rows.rejects import Rejected, Rejects, check_listing
from hieropo.logs.engines.tables import StreamSource
from hieropo.logs.formats.paths import find_files
from hieropo.logs.opening import open_log
from hieropo.logs.reading import check_log, distinct_ids, distinct_values, first_rows, read
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.row_sketch import RowSketch
from hieropo.passes.clusters import ClustersOfRows, check_cluster
from hieropo.passes.designs import Design, design_of, is_formula, read_design
from hieropo.passes.feature_choice import FeatureChoice, map_with, reward_offset, with_first_origin
from hieropo.passes.log_moments import LogMoments, given_roles, has_per_action_sums
from hieropo.passes.rejection import constant_reward, settle
from hieropo.passes.sharded import DEFAULT_SHARDS, ShardedMoments, ShardWriter, merged, split
from hieropo.passes.summing import joined_sums, refuse_nothing
from hieropo.passes.worker import PassResult, accumulator
from hieropo.rows.batches import Roles, column_tuple
from hieropo.rows.ids import object_array
from hieropo.rows.keys import Keys
from hieropo.rows.task_hash import check_shards
from hieropo.spark.hashing import SHARD, map_batches, quoted, with_shards
from hieropo.spark.sources import FrameSource, GroupedFiles, arrow_schema
from hieropo.spark.workers import VALUE_DDL, check_workers, nonempty, session_of, slots_of, valued, values_of

How = Literal["auto", "rows", "partitions", "files"]
_FIRST_ROWS = 8192  # rows from which origins are chosen, as on one machine
_MOST_LISTED = 10_000  # rows that were set aside that a list has
_PARTITIONS = 4  # of shuffled rows for each task slot, so that slots that end early are not idle for long
_MOST_PARTIAL = 2**30  # bytes of the partial sums of a worker
_MOST_MERGED = 2**33  # bytes of the partial sums that the driver merges
_FAR_PATH = "://"
_LISTING = "rejected.parquet"


class Part(NamedTuple):
    """The report of a part of the log: its number, rows that were kept, those that were set aside, and its directory.

    Every attempt at a part has a directory of its own, so that one that still runs changes nothing of another.
    """

    number: int
    kept: int
    rejects: Rejects | None
    folder: str

    @property
    def listing(self) -> Path:
        """The file that lists the rows that were set aside."""
        return Path(self.folder) / _LISTING

    @property
    def shards(self) -> Path:
        """The directory of the shards of a group of files."""
        return Path(self.folder) / "shards"


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
        Of the shards, beside which each attempt makes its own; all workers and the driver see it.
    shards : int
    lenient, listed : bool
        Rows that cannot be used are set aside; they are listed in files in the folder.
    """

    features: Mapping[str, Any]
    roles: Mapping[str, Any]
    offset: Sequence[float] | None
    folder: str
    shards: int
    lenient: bool
    listed: bool

    def sums(self, source: Any, number: int) -> tuple[LogMoments, Part]:
        """Return the moments of the rows of a source, by one thread, and the report of the part with a number."""
        features, roles = feature_map_from_dict(self.features), Roles(**self.roles)
        folder = tempfile.mkdtemp(prefix="attempt-", dir=Path(self.folder).parent)
        listing = Path(folder) / _LISTING if self.listed else None
        rejects = Rejects(file=listing, features=features) if self.lenient else None
        design = design_of(features, open_log(source), roles, lenient=self.lenient)
        offset = None if self.offset is None else np.array(self.offset)
        clusters = ClustersOfRows(features, offset, per_action=has_per_action_sums(features))
        _, summed = joined_sums(
            design.source, features, design.roles, per_action=has_per_action_sums, threads=1, rejects=rejects,
            offset=offset, reducers=() if roles.cluster is None else [clusters], whole=False,
        )  # fmt: skip
        if roles.cluster is not None:
            summed = replace(summed, clusters=clusters.table())
        if rejects is not None:
            if self.listed:
                rejects.finish(summed.sketch.rows, summed.moments.keys)  # writes the list
            rejects.forget(summed.moments.keys)  # a report is small
        return LogMoments(features, design.roles, summed), Part(number, summed.sketch.rows, rejects, folder)


@dataclass(frozen=True, slots=True)
class _Request:
    """The moments that were asked for.

    Parameters
    ----------
    features : FeatureChoice
    roles : Roles
    shards : int
    lenient : bool
    rejects : path or None
    """

    features: FeatureChoice
    roles: Roles
    shards: int
    lenient: bool
    rejects: str | os.PathLike[str] | None


class _Summed(NamedTuple):
    """Moments in shards, the reports of the parts of the log, in their order, the way they were summed, and the log.

    The log tells the places of rows; None where rows are shuffled.
    """

    made: list[ShardedMoments]
    parts: list[Part]
    how: str
    source: LogSource | None = None


def moments(  # noqa: PLR0913 - as of `LogMoments.of`
    rows: Any,
    *,
    out: str | os.PathLike[str],
    features: FeatureChoice = None,
    shards: int = DEFAULT_SHARDS,
    how: How = "auto",
    spark: Any = None,
    groups: int | None = None,
    lenient: bool = False,
    rejects: str | os.PathLike[str] | None = None,
    **columns: Any,
) -> ShardedMoments:
    """Sum the rows of a Spark frame, or of files, into moments in shards, which :meth:`HierOPO.fit` takes.

    The sums are those of :meth:`LogMoments.of`, to rounding. Of a task that is retried or runs twice, the attempt whose
    report Spark takes counts.

    Parameters
    ----------
    rows : DataFrame or path
        A frame of any source; or a path or glob that :func:`open_log` takes, which every worker sees.
    out : path
        Directory of the moments in shards, on a file system that the driver and every worker see. Its parts are written
        beside it and removed at the end.
    features : formula, list of terms, FeatureMap, LearnedTerms or {"per-action", "indicator", "columns"}, optional
        As of :meth:`LogMoments.of`. Workers count levels and sketch quantiles by one read of the columns, and the
        driver adds them: the terms are those of one machine. Effects, ``effect(column)``, must be learned before.
    shards : int
        A power of two.
    how : {"auto", "rows", "partitions", "files"}
        "rows": rows are re-partitioned by the hash of their task, and each shard is summed where its rows arrive.
        "partitions": the partitions of a frame are summed where they are, in as many groups as there are task slots,
        and the driver merges the partial sums in the order of the groups. "files": the same for groups of files of
        about equal bytes, which workers read without Spark. "auto": "files" for a path. For a frame it counts the rows
        and (approximately) the tasks, and takes "partitions" where the partial sums of all groups have fewer bytes than
        the rows and fit the memory (1 GiB a group, 8 GiB in all), and else "rows".
    spark : SparkSession, optional
        Default: the active session.
    groups : int, optional
        Groups of files or partitions. Default: as many as task slots; never more than there are files or partitions.
    lenient : bool
        Set rows aside that cannot be used, as :meth:`LogMoments.of` does: a warning counts them by reason, and
        ``provenance["set_aside"]`` of the result has the counts. Rows of a frame are numbered in the order of the
        groups of partitions, or of the shuffled partitions where rows are re-partitioned.
    rejects : path, optional
        A .parquet or .csv file that lists the first 10,000 of them, or of those that make the sums fail.
    **columns
        Names of columns by role, as of :meth:`LogMoments.of`. With ``cluster`` the same read sums clusters.

    Returns
    -------
    ShardedMoments

    Raises
    ------
    InputError, SchemaError, LogError, UnknownActionError
        The rows cannot be used; the message has the partition or the group, and the row in it.
    """
    roles = given_roles("moments", features, columns)
    check_cluster(roles)
    check_shards(shards)
    is_path = isinstance(rows, str | os.PathLike)
    if how == "auto" and is_path:
        how = "files"
    _refuse_way(how, is_path=is_path, out=out)
    check_listing(rejects, rows)
    request = _Request(features, roles, shards, lenient or rejects is not None, rejects)
    session = session_of(None if is_path else rows, spark)
    check_workers(session)
    folder = _empty_folder(out)
    parts = Path(tempfile.mkdtemp(prefix=f"{folder.name}.parts-", dir=folder.parent))
    try:
        if how == "files":
            summed = _of_files(session, rows, request, parts, groups)
        else:
            frame = session.read.parquet(os.fspath(rows)) if is_path else rows
            summed = _of_frame(frame, request, parts, how, groups, slots_of(session))
        rejected = _settled(summed, request, lenient=lenient)
        set_aside = {} if rejected is None else {"set_aside": rejected.to_dict()}
        return merged(summed.made, folder, provenance={"summed": "on Spark", "how": summed.how, **set_aside})
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


def _refuse_way(way: str, *, is_path: bool, out: Any) -> None:
    if way not in get_args(How):
        raise InputError(f"how={way!r} is not known; 'auto', 'rows', 'partitions' or 'files' is needed.")
    if way == "files" and not is_path:
        raise InputError(
            "how='files' needs the path of the files, and a frame was given. Give the path, or how='auto'."
        )
    if _FAR_PATH in os.fspath(out):
        raise InputError(
            f"{os.fspath(out)!r} is the address of an object store, and shards are files that appear in one step. Give "
            "a path of a file system that the driver and all workers see, and copy the directory when it is whole."
        )


def _settled(summed: _Summed, request: _Request, *, lenient: bool) -> Rejected | None:
    """Return and warn about the rows that were set aside of all parts; refuse a log of which none is left.

    Raises
    ------
    LogError
        As :func:`settle`; or no row counts.
    """
    kept = sum(part.kept for part in summed.parts)
    rejected = None
    if request.lenient:
        total, rows, room = Rejects(lenient=lenient, file=request.rejects), 0, _MOST_LISTED
        total.source = summed.source
        for part in summed.parts:
            assert part.rejects is not None
            listed = None
            if request.rejects is not None and room:
                listed = pq.read_table(part.listing).slice(0, room)
                room -= listed.num_rows
            total.merge(part.rejects, rows, listed)
            rows += part.kept + part.rejects.rows
        tasks = _with_rows(summed.made, total.tasks)
        rejected = settle(total, request.roles, kept, tasks, _constant_reward(summed.made))
    refuse_nothing(kept, sum(made.n_rows for made in summed.made), "Spark frame", request.roles)
    return rejected


def _constant_reward(made: Sequence[ShardedMoments]) -> float | None:
    """Return the reward that all rows share; None where rewards differ."""
    rewards = {constant_reward(sharded.total) for sharded in made if sharded.n_rows}
    return rewards.pop() if len(rewards) == 1 else None


def _with_rows(made: Sequence[ShardedMoments], tasks: Sequence[Any]) -> Keys:
    """Return those of some tasks that have rows."""
    keys = Keys.factorize(object_array(list(tasks)))[0]
    some = [moments_of_tasks(sharded, sharded.sums(), keys).keys.values.tolist() for sharded in made]
    return Keys.factorize(object_array([task for part in some for task in part]))[0]


def _of_frame(
    frame: Any, request: _Request, parts: Path, how: How, groups: int | None, slots: int
) -> _Summed:
    """Sum the rows of a frame where its partitions are, or re-partitioned by task."""
    roles = request.roles
    listed = [("term" if role == "context" else role, column) for role, column in roles.items()]
    check_columns(
        arrow_schema(frame), listed, "Spark frame", texts=request.lenient
    )  # Spark itself ignores the case of names
    _refuse_effects(request.features)
    chosen = frame.select(*map(quoted, roles.columns))
    first = chosen.limit(_FIRST_ROWS).toArrow()
    if not first.num_rows:
        raise empty("Spark frame")
    source = FrameSource(chosen, first)

    def summed(design: Design) -> _Summed:
        feature_map, offset = _chosen(design, source, request)
        job = _job(feature_map, request, offset, parts)
        count = groups or slots
        if how == "partitions" or (
            how == "auto" and _partial_sums_are_small(chosen, feature_map, roles, count)
        ):
            return _in_groups(FrameSource(chosen.coalesce(count), first), job, "partitions")
        writer = _begun(job, feature_map, offset, design.roles)
        return _by_task(chosen, job, writer, _PARTITIONS * slots)

    return read_design(request.features, source, roles, summed, lenient=request.lenient)


def _partial_sums_are_small(frame: Any, features: FeatureMap, roles: Roles, groups: int) -> bool:
    """Return True where partial sums of groups have fewer bytes than the rows, and fit workers and the driver.

    Tasks, and clusters of a task and action, are counted by a sketch, to some percent.
    """
    from pyspark.sql import functions as f

    ids = f.xxhash64(*map(quoted, column_tuple(roles.task))) if roles.task else f.lit(0)
    counts = [f.count(f.lit(1)), f.approx_count_distinct(ids)]
    if roles.cluster is not None:
        names = (*column_tuple(roles.task), *column_tuple(roles.action), roles.cluster)
        counts.append(f.approx_count_distinct(f.xxhash64(*map(quoted, names))))
    row = frame.agg(*(count.alias(str(k)) for k, count in enumerate(counts))).toArrow().to_pylist()[0]
    rows, tasks, clusters = (*map(int, row.values()), 0)[:3]
    units = _units(features)
    partial = 8 * tasks * units * (packed_size(features.dim // units + 1) + 3)
    partial += 8 * clusters * (features.dim // units + 5)
    shuffled = 8 * rows * (1 + len(roles.columns))
    return partial <= _MOST_PARTIAL and groups * partial <= min(shuffled, _MOST_MERGED)


def _by_task(frame: Any, job: Job, writer: ShardWriter, partitions: int) -> _Summed:
    """Sum rows that are re-partitioned by task into the one directory of shards that the workers write."""
    from pyspark.sql import functions as f

    names = list(frame.columns)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _summed_partition(batches, job, names)

    count = min(job.shards, 1 << (partitions.bit_length() - 1))  # a power of two, as the number of shards
    with_numbers = with_shards(frame, column_tuple(writer.plan.roles.task), job.shards)
    place = (f.col(quoted(SHARD)) * f.lit(count) / f.lit(job.shards)).cast("int")
    shuffled = with_numbers.repartitionById(count, place)
    reports = values_of(map_batches(shuffled, work, VALUE_DDL), "shuffled part")
    for part in reports:
        for shard in sorted(Path(part.folder).glob("shard-*")):
            shard.rename(writer.path / shard.name)
    done = writer.done
    for k in range(job.shards):
        if k not in done:  # no row is of this shard
            writer.write_shard(k, _no_moments(writer))
    return _Summed([writer.finish()], reports, "rows")


def _refuse_effects(features: FeatureChoice) -> None:
    terms = terms_of(features) if is_formula(features) else ()  # type: ignore[arg-type]  # a formula
    effects = [term for term in terms if isinstance(term, Effect)]
    if effects:
        raise InputError(
            f"{effects[0]} is learned from all rewards of its tasks and actions, which is not done on Spark. Learn it "
            "from some rows, LogMoments.of(frame.limit(100_000).toArrow(), features=...), and give what these "
            "learned: features=moments.features.terms."
        )


def _summed_partition(
    batches: Iterator[pa.RecordBatch], job: Job, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Sum the rows of one partition, write its shards, and yield a report; nothing for no rows."""
    from pyspark import TaskContext

    batches = nonempty(batches)
    first = next(batches, None)
    if first is None:
        return
    announced: set[int] = set()
    number = TaskContext.get().partitionId()

    def kept() -> Iterator[pa.RecordBatch]:
        for batch in chain([first], batches):
            announced.update(batch.column(SHARD).unique().to_pylist())
            yield batch.select(names)

    def summed() -> Part:
        schema = pa.schema([first.schema.field(name) for name in names])
        total, part = job.sums(StreamSource(kept(), schema, "Spark partition"), number)
        writer = ShardWriter(Path(part.folder), ShardWriter.resume(job.folder).plan)
        for k, shard in enumerate(split(total, job.shards)):
            if len(shard) != 0 and k not in announced:
                raise LogError(
                    f"Task {shard.tasks[0]!r} is of shard {k}, and Spark sent its rows to {sorted(announced)}. "
                    "This is an error of hieropo: please report the type of the column of tasks."
                )
            if len(shard):
                writer.write_shard(k, shard)
        return part

    yield valued(number, summed)


def _begun(job: Job, features: FeatureMap, offset: Array | None, roles: Roles) -> ShardWriter:
    """Return the writer of a directory of shards for a job."""
    unit = None if offset is None else offset[: features.dim // _units(features)]
    return ShardWriter.begin(job.folder, features, roles, shards=job.shards, offset=unit)


def _units(features: FeatureMap) -> int:
    """Return the number of sums of a task: one for each action, or one."""
    return len(features.actions or (0,)) if has_per_action_sums(features) else 1


def _job(features: FeatureMap, request: _Request, offset: Array | None, parts: Path) -> Job:
    """Return the work of one worker, as values that travel to it; its directory is a new one."""
    return Job(
        features.to_dict(), request.roles.to_dict(), None if offset is None else offset.tolist(),
        tempfile.mkdtemp(prefix="shards-", dir=parts), request.shards, request.lenient, request.rejects is not None,
    )  # fmt: skip


def _chosen(design: Design, source: LogSource, request: _Request) -> tuple[FeatureMap, Array | None]:
    """Return the feature map with actions and a first origin, and the offset of rewards."""
    check_log(design.source, design.roles, lenient=request.lenient)
    given = getattr(request.features, "actions", None)
    actions = () if design.roles.action is None else given or _actions(design, source, request)
    feature_map = map_with(design.choice, design.roles, actions)
    first = first_rows(design.source, (design.roles.reward, *design.roles.context))
    feature_map = with_first_origin(feature_map, first)
    return feature_map, reward_offset(feature_map, first, design.roles.reward)


def _actions(design: Design, source: LogSource, request: _Request) -> Sequence[Any]:
    """Return the actions of all rows, or of those that can be used where others are set aside."""
    assert design.roles.action is not None
    if not request.lenient:
        return distinct_values(source, design.roles.action)
    work = partial(_usable_actions, choice=design.choice, roles=request.roles)
    parts = over_parts(source, request.roles.columns, work) or []
    actions = distinct_ids(object_array(list(part)) for part in parts)
    if not actions:
        raise LogError(
            "No row can be used, so that no action is left. Is it the right column, and was a join complete?"
        )
    return actions


def _usable_actions(source: LogSource, choice: Any, roles: Roles) -> tuple[Any, ...]:
    """Return the actions of the rows of a part that are not set aside."""
    design = design_of(choice, source, roles, lenient=True)
    batches = read(design.source, design.roles, rejects=Rejects())
    return distinct_ids(batch.action for batch in batches if batch.action is not None)


def _no_moments(writer: ShardWriter) -> LogMoments:
    """Return moments of no task for the plan of a writer."""
    plan = writer.plan
    per_action = has_per_action_sums(plan.features)
    total, clusters = accumulator(plan.features, per_action=per_action), None
    if plan.roles.cluster is not None:
        clusters = ClustersOfRows(plan.features, None, per_action=per_action).table()
    result = PassResult(total.moments(), TaskLevels(plan.roles), RowSketch.none(), clusters)
    return LogMoments(plan.features, plan.roles, result)


def _of_files(
    session: Any, path: str | os.PathLike[str], request: _Request, parts: Path, groups: int | None
) -> _Summed:
    """Let workers sum groups of files into a directory of shards each, in the order of the groups."""
    count = min(groups or slots_of(session), len(find_files(path).files))
    source = GroupedFiles(session, path, count, lenient=request.lenient)

    def summed(design: Design) -> _Summed:
        feature_map, offset = _chosen(design, source, request)
        return _in_groups(source, _job(feature_map, request, offset, parts), "files")

    return read_design(request.features, source, request.roles, summed, lenient=request.lenient)


def _in_groups(source: FrameSource | GroupedFiles, job: Job, how: str) -> _Summed:
    """Sum the groups of a source into a directory of shards each, in the order of the groups."""
    reports = source.each_numbered(partial(_summed_group, job), "group")
    return _Summed([ShardedMoments.open(part.shards) for part in reports], reports, how, source)


def _summed_group(job: Job, source: LogSource, number: int) -> Part:
    """Sum one group, write its shards, and return its report."""
    total, part = job.sums(source, number)
    ShardedMoments.of(total, part.shards, shards=job.shards)
    return part
