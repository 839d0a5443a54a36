"""Sharded moments: the moments of a log as a directory of shards, for tasks that do not fit the memory of one machine.

Any engine writes them, and :meth:`HierOPO.fit` learns from them with one shard in memory at a time. The directory:

    DIR/plan.json        all that the shards have in common: written before the first shard
    DIR/shard-00000/     the moments of the tasks of shard 0: a directory as :meth:`LogMoments.save` writes it
    DIR/shard-00001/     ...
    DIR/shards.json      written after the last shard; a directory without it is unfinished
    DIR/part-00003/      the sharded moments of part 3 of a log, until they are merged

``plan.json`` names the hash by which tasks are assigned to shards (:mod:`hieropo.rows.task_hash`), the number S of
shards, a power of two, the feature map with its origin and actions, the columns by role, the offset of the rewards, and
the inputs that the shards are made of. ``shards.json`` repeats these and adds the totals over all tasks, a sketch of
the rows, and for each shard its tasks, its rows and the SHA-256 of its document, which holds those of its files. Both
end in their own SHA-256.

The contract for a writer, in one process or on many machines with one file system:

    writer = ShardWriter.begin(path, features, roles, shards=16, offset=None, inputs={...})  # the same on each machine
    for k in range(16):
        if k not in writer.done:
            writer.write_shard(k, moments)  # LogMoments of the tasks of shard k; atomic; to repeat it is harmless
    sharded = writer.finish()  # once, on any machine

``begin`` accepts a directory with the same plan, so that a job that was stopped goes on from the shards that are done,
and refuses one with another plan. ``write_shard`` brings moments to the plan's feature map, origin and offset, and
refuses a task of another shard. Sums of one shard that come in pieces are added in a fixed order before they are
written (:func:`merged` does), so that bits do not depend on which piece came first.

Shards and parts add, split and join exactly: :func:`merged` adds sharded moments of different rows, of any numbers of
shards, and :meth:`ShardedMoments.joined` gives the :class:`LogMoments` in memory.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.text import counted
from hieropo._utils.threads import in_threads, processors
from hieropo.errors import ArtifactError, InputError, MismatchError, warn
from hieropo.features.maps import FeatureMap, merged_map
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.in_shards import MomentsInShards, Run, total_of
from hieropo.moments.recentring import at_final_origin
from hieropo.moments.row_sketch import RowSketch
from hieropo.moments.statistics import Moments
from hieropo.passes.checkpoints import stored_sums, summed_from
from hieropo.passes.log_moments import LogMoments, common_roles, moments_on
from hieropo.passes.shards_in_memory import on_plan, plus, refuse_strangers, split, tasks_at, together
from hieropo.passes.worker import PassResult
from hieropo.rows.batches import Roles
from hieropo.rows.ids import abbreviate
from hieropo.rows.keys import Keys
from hieropo.rows.task_hash import check_shards, shards_of
from hieropo.storage import layout
from hieropo.storage.columns import encode_ids
from hieropo.storage.directories import plain_json
from hieropo.storage.moments import write_moments_file
from hieropo.storage.save import IdKind
from hieropo.storage.shards import (
    Plan,
    StoredShard,
    array_of,
    check_directory,
    checked_inputs,
    parts_in,
    read_document,
    shard_name,
    total_to_dict,
    write_document,
)

__all__ = ["ShardWriter", "ShardedMoments", "holds_shards", "merged", "parts_of_log", "split"]

DEFAULT_SHARDS = 16
_SOME = 0.02  # share of common rows above chance, from which on they count as the same rows
_MERGING_THREADS = 4  # each of which has the parts of one shard in memory


@dataclass(frozen=True, eq=False)
class ShardWriter:
    """Writes the shards of one directory, from one process or from many; the module describes the contract.

    Parameters
    ----------
    path : Path
    plan : Plan
    """

    path: Path
    plan: Plan

    @classmethod
    def begin(
        cls,
        path: str | os.PathLike[str],
        features: FeatureMap,
        roles: Roles,
        *,
        shards: int = DEFAULT_SHARDS,
        offset: Array | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> Self:
        """Begin a directory of shards, or go on with one of the same plan.

        Parameters
        ----------
        path : path
            Its parent must exist; it must not exist, be empty, or hold shards of the same plan.
        features : FeatureMap
            With all actions, and the origin of its columns.
        roles : Roles
        shards : int
            A power of two.
        offset : (p,) array, optional
            The offset of the rewards of a unit (``moments.unit_offset`` of the largest part); None is 0.
        inputs : mapping, optional
            Names what the shards are made of, such as files and their lengths; anything that JSON can hold.

        Raises
        ------
        InputError
            ``shards`` is no power of two; ``inputs`` is not JSON.
        ArtifactError
            The directory holds other files, or cannot be written.
        MismatchError
            The directory was begun with another plan; names the first difference.
        """
        folder = Path(os.path.realpath(path))
        numbers = None if offset is None or not np.any(offset) else tuple(float(o) for o in offset)
        plan = Plan(features, roles, check_shards(shards), numbers, checked_inputs(inputs))
        check_directory(folder)
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise ArtifactError(
                f"{folder} cannot be made: {error.strerror}. Check the permissions of {folder.parent}."
            ) from error
        document = read_document(folder, layout.PLAN)
        if document is None:
            write_document(folder, layout.PLAN, plan.to_dict())
        else:
            _refuse_other_plan(folder, Plan.from_document(folder, document, layout.PLAN), plan)
        return cls(folder, plan)

    @classmethod
    def resume(cls, path: str | os.PathLike[str]) -> Self:
        """Go on with a directory that was begun, by its plan.

        Raises
        ------
        ArtifactError
            It holds no plan, or one that is torn, edited or of another release.
        """
        folder = Path(os.path.realpath(path))
        document = read_document(folder, layout.PLAN)
        if document is None:
            raise ArtifactError(
                f"{folder} has no {layout.PLAN.document}, so no shards were begun there. Check the path, or begin with "
                "ShardWriter.begin."
            )
        return cls(folder, Plan.from_document(folder, document, layout.PLAN))

    @property
    def done(self) -> frozenset[int]:
        """The shards that are written, whole and of this plan."""
        return frozenset(k for k in range(self.plan.n_shards) if self._stored(k) is not None)

    def _stored(self, shard: int) -> StoredShard | None:
        """Return a shard that is written; None where there is none, or one of another plan."""
        folder = self.path / shard_name(shard)
        if layout.kind_of(folder) is not layout.SUMS:
            return None
        stored = StoredShard.open(folder)
        return stored if stored.provenance.get("plan") == self.plan.fingerprint else None

    def write_shard(self, shard: int, moments: LogMoments) -> None:
        """Write one shard; a shard that is there is replaced in one step.

        Parameters
        ----------
        shard : int
            0 .. S - 1.
        moments : LogMoments
            Of tasks of this shard; none is allowed. They are brought to the feature map and the offset of the plan.

        Raises
        ------
        InputError
            There is no such shard; a task belongs to another one.
        MismatchError
            Feature map or columns differ from those of the plan by more than actions, origin and checked columns.
        ArtifactError
            The shard cannot be written.
        """
        if not 0 <= shard < self.plan.n_shards:
            raise InputError(
                f"There is no shard {shard}: this plan has the shards 0 to {self.plan.n_shards - 1}."
            )
        refuse_strangers(moments.tasks, shard, self.plan.n_shards)
        self._write(shard, moments)

    def _write(self, shard: int, moments: LogMoments) -> None:
        """Write a shard whose tasks were assigned by the hash."""
        aligned = on_plan(moments, self.plan)
        seen = aligned.moments.rows.reshape(len(aligned), aligned.moments.n_actions)
        total = total_of(aligned.moments)
        provenance = {
            "shard": shard,
            "shards": self.plan.n_shards,
            "plan": self.plan.fingerprint,
            "total": total_to_dict(total, int(seen.any(axis=1).sum()), int(np.count_nonzero(seen))),
        }
        write_moments_file(
            self.path / shard_name(shard),
            self.plan.features,
            self.plan.roles,
            stored_sums(aligned.summed),
            provenance,
        )

    def finish(
        self, *, sketch: RowSketch | None = None, provenance: Mapping[str, Any] | None = None
    ) -> "ShardedMoments":
        """Write the document of all shards, and return them.

        Parameters
        ----------
        sketch : RowSketch, optional
            Of the rows of all shards; default unknown.
        provenance : mapping, optional
            Anything that JSON can hold, for the reader.

        Raises
        ------
        ArtifactError
            A shard is missing; or the document cannot be written.
        """
        stored = [self._stored(k) for k in range(self.plan.n_shards)]
        missing = [k for k, shard in enumerate(stored) if shard is None]
        if missing:
            raise ArtifactError(
                f"{self.path} lacks {counted(len(missing), 'shard')} of {self.plan.n_shards}: {abbreviate(missing)}. "
                "Run the job again: it goes on from the shards that are done."
            )
        shards = [shard for shard in stored if shard is not None]
        totals = [shard.provenance["total"] for shard in shards]
        n_rows = [float(shard.document["rows"]) for shard in shards]
        known = RowSketch.unknown(round(sum(n_rows))) if sketch is None else sketch
        entries = [
            {"name": shard_name(k), "tasks": shard.document["tasks"], "rows": rows, "sha256": shard.checksum}
            for k, (shard, rows) in enumerate(zip(shards, n_rows, strict=True))
        ]
        write_document(
            self.path,
            layout.SHARDS,
            {
                **self.plan.to_dict(),
                "rows": sum(n_rows),
                "tasks": sum(entry["tasks"] for entry in entries),
                "total": _added(totals),
                "row_sketch": known.to_dict(),
                "provenance": plain_json(provenance or {}),
                "entries": entries,
            },
        )
        return ShardedMoments.open(self.path)


def _refuse_other_plan(folder: Path, begun: Plan, plan: Plan) -> None:
    """Raise MismatchError where a directory was begun with another plan."""
    one, other = begun.to_dict(), plan.to_dict()
    for name, value in one.items():
        if other[name] != value:
            text, now = (
                (str(part["features_fingerprint"])[:12] if name.startswith("features") else repr(part[name]))
                for part in (one, other)
            )
            raise MismatchError(
                f"{folder} was begun with {name.removesuffix('_fingerprint')} {text}, and this job has {now}: shards "
                "of both cannot be read together. Give another directory, or remove this one to begin anew."
            )


def _added(totals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum of totals, in their order."""
    added = {
        name: reduce(np.add, [array_of(total[name]) for total in totals]).tolist()
        for name in ("sums", "rows", "log_precision")
    }
    counts = {name: sum(total[name] for total in totals) for name in ("observed_tasks", "observed_units")}
    return {**added, **counts}


@dataclass(frozen=True, eq=False)
class ShardedMoments:
    """The moments of a log in shards on disk, which are read one at a time; for more tasks than memory holds.

    :meth:`HierOPO.fit` takes one, or its path. ``hieropo moments LOG --shards 16 -o DIR`` writes one, too.

    Attributes
    ----------
    path : Path
    plan : Plan
        Feature map, columns, number of shards.
    run : callable or None
        Maps a function over the shards on other machines, as :class:`MomentsInShards` takes it.

    Examples
    --------
    >>> import pyarrow as pa, tempfile
    >>> log = pa.table({"store": [1, 1, 2], "offer": ["a", "b", "a"], "profit": [1.0, 2.0, 0.5]})
    >>> moments = LogMoments.of(log, task="store", action="offer", reward="profit")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sharded = ShardedMoments.of(moments, f"{folder}/shards", shards=4)
    ...     print(sharded, sharded.joined())
    ShardedMoments(2 tasks, 3 rows, 4 shards) LogMoments(2 tasks, 3 rows, actions ('a', 'b'))
    """

    path: Path
    plan: Plan
    _document: Mapping[str, Any] = field(repr=False)
    _verified: set[int] = field(default_factory=set, repr=False)
    run: Run | None = field(default=None, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as a path; a process opens the directory, and checks the bytes of a shard, once."""
        return _opened, (str(self.path), self.checksum)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a directory of sharded moments. The bytes of a shard are checked when it is first read.

        Raises
        ------
        ArtifactError
            The directory holds none, is unfinished, torn, edited or of another release; the message says which.
        """
        folder = Path(path)
        document = read_document(folder, layout.SHARDS)
        if document is None:
            raise ArtifactError(_why_not_open(folder))
        plan = Plan.from_document(folder, document, layout.SHARDS)
        names = [entry["name"] for entry in document["entries"]]
        if names != [shard_name(k) for k in range(plan.n_shards)]:
            raise ArtifactError(
                f"{folder}: {layout.SHARDS.document} lists {len(names)} shards, and its plan has {plan.n_shards}. It "
                "was edited. Restore it from a copy, or make it again."
            )
        return cls(folder, plan, document)

    @classmethod
    def of(
        cls,
        moments: LogMoments,
        path: str | os.PathLike[str],
        *,
        shards: int = DEFAULT_SHARDS,
        provenance: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> Self:
        """Write moments that are in memory as shards; parameters and errors as of :meth:`ShardWriter.begin`."""
        writer = ShardWriter.begin(
            path,
            moments.features,
            moments.roles,
            shards=shards,
            offset=moments.moments.unit_offset,
            inputs=inputs,
        )
        done = writer.done
        for k, part in enumerate(split(moments, shards)):
            if k not in done:
                writer._write(k, part)
        writer.finish(sketch=moments.summed.sketch, provenance=provenance)
        return cls.open(path)

    @classmethod
    def merged(
        cls, inputs: Sequence["ShardedMoments"], path: str | os.PathLike[str], *, shards: int | None = None
    ) -> "ShardedMoments":
        """Add sharded moments of different rows, and write the sum; as :func:`merged`."""
        return merged(inputs, path, shards=shards)

    @property
    def features(self) -> FeatureMap:
        """The feature map."""
        return self.plan.features

    @property
    def roles(self) -> Roles:
        """The columns."""
        return self.plan.roles

    @property
    def n_shards(self) -> int:
        """The number S of shards."""
        return self.plan.n_shards

    @property
    def checksum(self) -> str:
        """The SHA-256 of the document, which holds those of all shards."""
        return str(self._document["sha256"])

    @property
    def n_rows(self) -> float:
        """The number of rows of all tasks, by their weights."""
        return float(self._document["rows"])

    @property
    def sketch(self) -> RowSketch:
        """The sketch of the rows of all shards."""
        return RowSketch.from_dict(self._document["row_sketch"])

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Facts that the writer stored for the reader."""
        entry: Mapping[str, Any] = self._document["provenance"]
        return entry

    @property
    def total(self) -> Moments:
        """The sums over all tasks, as moments of one task."""
        entry, features = self._document["total"], self.plan.features
        sums, rows, log_precision = (
            array_of(entry[name])[None] for name in ("sums", "rows", "log_precision")
        )
        offset = None if self.plan.offset is None else np.array(self.plan.offset)
        unit_dim = features.dim // (rows.shape[1] if rows.ndim == 2 else 1)
        keys = Keys(np.zeros(1, dtype=np.int64))
        return Moments(keys, unit_dim, sums, rows, log_precision, features.fingerprint, None, offset)

    @property
    def nbytes(self) -> int:
        """Bytes of the files of all shards."""
        folders = (self.path / entry["name"] for entry in self._document["entries"])
        return sum(file.stat().st_size for folder in folders for file in folder.iterdir())

    @property
    def cluster_rows(self) -> int:
        """The number of sums of clusters of all shards."""
        return sum(self._stored(k).files[layout.CLUSTERS].rows for k in range(self.n_shards))

    def __len__(self) -> int:
        return int(self._document["tasks"])

    def __repr__(self) -> str:
        return (
            f"ShardedMoments({counted(len(self), 'task')}, {counted(self.n_rows, 'row')}, "
            f"{counted(self.n_shards, 'shard')})"
        )

    def shard(self, shard: int) -> LogMoments:
        """Return the moments of the tasks of one shard, as views of mapped files, after a check of every byte.

        Raises
        ------
        ArtifactError
            The shard is missing, torn, edited, or not the one that was finished; the message names the file.
        """
        stored = self._stored(shard)
        return LogMoments(self.features, self.roles, summed_from(stored.sums(), self.roles))

    def shards(self) -> Iterator[LogMoments]:
        """Yield the moments of each shard, in their order; one is in memory at a time where none is kept."""
        for k in range(self.n_shards):
            yield self.shard(k)

    def range(self, shard: int, shards: int) -> LogMoments:
        """Return the moments of one shard of another number of shards: a part of one of these, or several joined.

        Raises
        ------
        InputError
            ``shards`` is no power of two.
        ArtifactError
            As :meth:`shard`.
        """
        if check_shards(shards) <= self.n_shards:
            share = self.n_shards // shards
            return together([self.shard(k) for k in range(shard * share, (shard + 1) * share)])
        part = self.shard(shard * self.n_shards // shards)
        return tasks_at(part, np.flatnonzero(shards_of(part.tasks, shards) == shard))

    def joined(self) -> LogMoments:
        """Return the moments of all shards in memory, with the sketch of the rows; errors as :meth:`shard`."""
        joined = together(list(self.shards()))
        return replace(joined, summed=replace(joined.summed, sketch=self.sketch))

    def sums(self, features: FeatureMap | None = None) -> MomentsInShards:
        """Return the sums as learning reads them: shard by shard, with numbers in place of ids.

        ``features`` is a map with more actions, or with another origin; default that of the plan.
        """
        entry, tasks = self._document["total"], tuple(item["tasks"] for item in self._document["entries"])
        sums = MomentsInShards(
            self.total, tasks, entry["observed_tasks"], entry["observed_units"], self._numbered, self.run
        )
        if features is None or features.fingerprint == self.features.fingerprint:
            return sums
        return sums.mapped(lambda moments: moments_on(moments, self.features, features))

    def outline(self) -> LogMoments:
        """Return the sums over all tasks, as the moments of a log of one task."""
        summed = PassResult(self.total, TaskLevels(self.roles), self.sketch)
        return LogMoments(self.features, self.roles, summed)

    def ids(self, shard: int) -> NDArray[Any]:
        """Return the ids of the tasks of one shard; errors as :meth:`shard`."""
        stored = self._stored(shard)
        if shard not in self._verified:
            stored.verify()
            self._verified.add(shard)
        return stored.ids()

    def id_kind(self) -> IdKind:
        """Return the kind of the ids of all tasks, and the bytes that they take on disk."""
        kinds = [
            self._stored(k).id_kind() for k, entry in enumerate(self._document["entries"]) if entry["tasks"]
        ]
        names = {one.kind for one in kinds}
        if len(names) > 1:  # such as texts in one shard, texts and numbers in another
            buffers = [encode_ids(self.ids(k), "json")[1] for k in range(self.n_shards)]
            sizes = 8 * (len(self) + 1), sum(int(text.size) for _, text in buffers)
            return IdKind("json", sizes)
        columns = zip(*(one.sizes for one in kinds), strict=True)
        summed = [sum(sizes) for sizes in columns]
        if len(summed) == 2:  # every shard has one offset more than tasks
            summed[0] = 8 * (len(self) + 1)
        return IdKind(next(iter(names)), tuple(summed))

    def _numbered(self, shard: int) -> Moments:
        stored = self._stored(shard)
        if shard not in self._verified:
            stored.verify()
            self._verified.add(shard)
        return stored.moments()

    def _stored(self, shard: int) -> StoredShard:
        if not 0 <= shard < self.n_shards:
            raise InputError(
                f"There is no shard {shard}: these moments have the shards 0 to {self.n_shards - 1}."
            )
        entry = self._document["entries"][shard]
        stored = StoredShard.open(self.path / entry["name"])
        if stored.checksum != entry["sha256"]:
            raise layout.damaged(self.path, entry["name"], "is not the shard that the document names")
        return stored


@lru_cache(maxsize=4)
def _opened(path: str, checksum: str) -> ShardedMoments:
    """Return the sharded moments of a directory, which this process opens once.

    Raises
    ------
    ArtifactError
        They are other ones than those that were sent here.
    """
    sharded = ShardedMoments.open(path)
    if sharded.checksum != checksum:
        raise ArtifactError(
            f"{path} holds other sharded moments than when this job began, so that sums of both would be mixed. Do not "
            "write to a directory that is read; give new moments a new one."
        )
    return sharded


def _why_not_open(folder: Path) -> str:
    """Return the reason why a directory is not one of finished shards."""
    parts = parts_in(folder)
    if parts:
        return (
            f"{folder} holds {counted(len(parts), 'part')} of a log that were not merged. Merge them first: hieropo "
            f"moments merge {folder} -o OUT"
        )
    if layout.kind_of(folder) is layout.PLAN:
        writer = ShardWriter.resume(folder)
        return (
            f"{folder} holds {len(writer.done)} of {writer.plan.n_shards} shards: the job that wrote them has not "
            "finished. Run it again: it goes on from the shards that are done."
        )
    other = layout.kind_of(folder)
    holds = "" if other is None else f" It holds {other.called}."
    return f"{folder} has no {layout.SHARDS.document}, so it does not hold sharded moments.{holds} Check the path."


def as_shards(source: object) -> ShardedMoments | None:
    """Return given sharded moments, or those at a path; None for anything else.

    Raises
    ------
    ArtifactError
        The directory is unfinished, or holds parts that were not merged.
    """
    if isinstance(source, ShardedMoments):
        return source
    return ShardedMoments.open(source) if holds_shards(source) else None  # type: ignore[arg-type]  # it is a path


def holds_shards(source: object) -> bool:
    """Return True for the path of a directory of sharded moments, finished or not, or of parts of a log."""
    if not isinstance(source, str | os.PathLike):
        return False
    return layout.kind_of(Path(source)) in (layout.SHARDS, layout.PLAN) or bool(parts_in(Path(source)))


def parts_of_log(path: str | os.PathLike[str]) -> list[ShardedMoments]:
    """Return the parts of a log in a directory, in the order of their numbers.

    Raises
    ------
    ArtifactError
        A part is missing or unfinished.
    """
    parts = [ShardedMoments.open(folder) for folder in parts_in(Path(path))]
    counts = {part.provenance["part"][1] for part in parts if part.provenance.get("part", [0, 0])[1]}
    for count in counts:
        present = {part.provenance["part"][0] for part in parts if part.provenance.get("part")}
        missing = sorted(set(range(1, count + 1)) - present)
        if missing or len(counts) > 1:
            raise ArtifactError(
                f"{path} holds parts of a log that was cut into {' and into '.join(map(str, sorted(counts)))} parts"
                f"{', and lacks ' + abbreviate(missing) if missing else ''}. Merge parts of one division only: remove "
                "those of the others, and run the jobs of the missing parts."
            )
    return parts


def merged(
    inputs: Sequence[ShardedMoments],
    path: str | os.PathLike[str],
    *,
    shards: int | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> ShardedMoments:
    """Add sharded moments of different rows, shard by shard; a merge that was stopped goes on.

    The sums of a shard are added in the order of ``inputs``, so that their bits depend on that order alone. At most
    four threads have a shard each in memory.

    Parameters
    ----------
    inputs : sequence of ShardedMoments
        Of one kind of feature map; lists of actions may differ where each action has its own coefficients.
    path : path
        The directory to write.
    shards : int, optional
        Default: that of the first input.
    provenance : mapping, optional

    Raises
    ------
    InputError
        No input.
    MismatchError
        Feature maps or columns differ by more than lists of actions, origins and checked columns.
    ArtifactError
        An input is damaged; the directory cannot be written, or holds shards of another plan.

    Warns
    -----
    HieropoWarning
        Many rows of one input are also in the inputs before it.
    """
    if not inputs:
        raise InputError("No sharded moments were given to merge. Give at least one directory.")
    features, offset = _common_map(inputs)
    roles = reduce(common_roles, (one.roles for one in inputs))
    sketch = _common_sketch(inputs)
    n_shards = inputs[0].n_shards if shards is None else check_shards(shards)
    names = {"merged": [one.checksum for one in inputs]}
    writer = ShardWriter.begin(path, features, roles, shards=n_shards, offset=offset, inputs=names)
    done = writer.done

    def write(k: int) -> None:
        pieces = (on_plan(one.range(k, n_shards), writer.plan) for one in inputs)
        writer._write(k, reduce(plus, pieces))

    in_threads(write, [k for k in range(n_shards) if k not in done], min(processors(), _MERGING_THREADS))
    return writer.finish(sketch=sketch, provenance=provenance)


def _common_map(inputs: Sequence[ShardedMoments]) -> tuple[FeatureMap, Array | None]:
    """Return the feature map of all inputs at its final origin, and the offset of the input with most rows."""
    largest = max(inputs, key=lambda one: one.n_rows)  # the first of equal ones
    features = reduce(merged_map, (one.features for one in inputs), largest.features)

    offset = largest.outline().within(features).moments.offset
    totals = (one.outline().within(features).moments for one in inputs)
    total = reduce(Moments.__add__, (one.around(offset) for one in totals))
    final, final_features = at_final_origin(total, features)
    return final_features, final.unit_offset


def _common_sketch(inputs: Sequence[ShardedMoments]) -> RowSketch:
    """Return the sketch of the rows of all inputs; warn where rows count twice."""
    sketch = inputs[0].sketch
    for number, one in enumerate(inputs[1:], 2):
        share = one.sketch.share_in(sketch)
        if share is not None and share > _SOME:
            warn(
                f"About {share:.0%} of the rows of the moments {one.path} (number {number}) are also in earlier "
                "inputs, and count twice. If the same rows were summed at two places, leave one input out."
            )
        sketch = sketch + one.sketch
    return sketch
