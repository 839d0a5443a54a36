"""The one pass over a log: its moments, the groups and metadata of its tasks, and a sketch of its rows.

The parts of the log are assigned to workers, one thread each, by their sizes alone. Every worker adds its rows in
order, and at the end the workers are added in order. So the same log on the same number of threads gives the same sums
to the last bit, whichever thread was faster. So does a pass that resumes from the sums of all workers after a file.

Every worker has sums of all tasks that it meets, which have to be made, and added to those of the others. Where a log
has few rows of each task, this takes longer than a second worker saves. The first batch tells how many tasks the log
has; workers beyond one for each ``_ROWS_OF_TASK`` rows of a task are dropped, and the others decode ahead in a thread.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import groupby
from math import expm1
from threading import Lock
from typing import Any

from hieropo._utils.arrays import Array
from hieropo._utils.threads import processors
from hieropo.errors import HieropoError, InputError, LogError
from hieropo.features.maps import FeatureMap
from hieropo.logs.arrow.log_source import LogSource, Part, empty, located, parts_of, release_unused
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.opening import open_log
from hieropo.logs.reading import check_log, read_again
from hieropo.model.task_levels import TaskLevels
from hieropo.passes.action_numbers import Joining
from hieropo.passes.checked_rows import Reducer
from hieropo.passes.rejection import constant_reward, settle
from hieropo.passes.worker import PassResult, Worker
from hieropo.rows.batches import Roles

Results = Sequence[PassResult]
_LARGE = 2**20  # fewer rows are read by all workers: their sums take little time
_ROWS_OF_TASK = 16  # rows of a task from which on another worker saves more than its sums cost


def sums(  # noqa: PLR0913 - where to begin, what to do after a file, and who takes bad rows
    source: Any,
    features: FeatureMap,
    roles: Roles,
    before: TaskLevels | None = None,
    *,
    per_action: bool = False,
    threads: int | None = None,
    start: tuple[int, Results] | None = None,
    after_file: Callable[[int, Results], None] | None = None,
    rejects: Rejects | None = None,
    offset: Array | None = None,
    reducers: Sequence[Reducer] = (),
) -> PassResult:
    """Return the sums over all rows of a log; groups and metadata of tasks are added to those known ``before``.

    Parameters
    ----------
    source : LogSource or anything that ``open_log`` takes
    features : FeatureMap
    roles : Roles
    before : TaskLevels, optional
    per_action : bool
        Keep sums per action, as :class:`Moments` do.
    threads : int, optional
        Threads; by default as many as there are processors or parts. Each is a worker, unless tasks have few rows.
    start : (files, sums of each worker), optional
        Resumes after so many files, with as many workers as there are sums; ``threads`` and ``before`` are not used.
    after_file : callable, optional
        Called in this thread with the number of files done and the sums of each worker, as ``start`` takes them, after
        every file. The sums are copied when they are asked for, which has to be before the callable returns; their
        moments are per action wherever the map allows that. Files are then read one after the other.
    rejects : Rejects, optional
        Collects the rows that cannot be used, which :func:`rejection.settle` judges.
    offset : (d,) array, optional
        Offset of the moments; ``start`` has its own.
    reducers : sequence of Reducer
        Take the checked rows too; the values that they make are theirs.

    Raises
    ------
    SchemaError
        A column is missing, there twice, or of a type that cannot play its role.
    LogError, UnknownActionError, InputError
        A row cannot be used (the first such row, however many threads read), or there is no row.
    """
    log = open_log(source, lenient=rejects is not None)
    _, result = joined_sums(
        log, features, roles, before, per_action=lambda _: per_action, threads=threads, start=start,
        after_file=after_file, rejects=rejects, offset=offset, reducers=reducers,
    )  # fmt: skip
    return result


def joined_sums(  # noqa: PLR0913 - as `sums`
    log: LogSource,
    features: FeatureMap,
    roles: Roles,
    before: TaskLevels | None = None,
    *,
    per_action: Callable[[FeatureMap], bool],
    joining: Joining = "none",
    threads: int | None = None,
    start: tuple[int, Results] | None = None,
    after_file: Callable[[int, Results], None] | None = None,
    rejects: Rejects | None = None,
    offset: Array | None = None,
    reducers: Sequence[Reducer] = (),
    whole: bool = True,
) -> tuple[FeatureMap, PassResult]:
    """Return the feature map with the actions that joined it in the pass, and the sums over all rows.

    Parameters
    ----------
    whole : bool
        False for a part of a log: whoever has all parts settles the rows that were set aside, and refuses a log without
        rows that count.
    joining : {"none", "new", "all"}
        Which actions of the rows join those of the map, as of :class:`ActionNumbers`.
    per_action : callable
        Returns True for a map whose sums are kept per action; raises for a map that is refused.

    The other parameters, and errors, are those of :func:`sums`. Neither ``start`` nor ``after_file`` goes with joining.
    """
    check_log(log, roles, lenient=rejects is not None)
    release_unused()  # what decoded the log before, and below what decodes it here
    parts = parts_of(log, roles.columns)
    done, starts = (0, [None] * max(1, min(threads or processors(), len(parts)))) if start is None else start
    shares = _assigned(parts, len(starts))
    is_per_action = per_action(features)
    workers = [
        Worker(
            features, roles, per_action=is_per_action, joining=joining, before=before, start=worker_start,
            rejects=rejects, offset=offset, expected=sum(parts[p].n_rows for p in share if parts[p].file >= done),
        )
        for worker_start, share in zip(starts, shares, strict=True)
    ]  # fmt: skip
    for reducer in reducers:
        reducer.begin(parts)
    begun: dict[int, Iterator[int]] = {}
    failure = _FirstError(log, parts, strict=rejects is None)
    if start is None and len(workers) > 1 and sum(part.n_rows for part in parts) >= _LARGE:
        begun[0] = _first_batch(workers[0], parts, reducers, failure)
        kept = _enough(workers[0], parts, len(workers))
        if kept < len(workers):
            workers, shares = workers[:kept], _assigned(parts, kept)
            parts = [Part.of(part, partial(_ahead, part)) for part in parts]
    if after_file is None:
        remaining = [[p for p in share if parts[p].file >= done] for share in shares]
        _run(workers, parts, reducers, remaining, begun, failure)
    else:
        files = [file for file, _ in groupby(part.file for part in parts)]
        for file in files:
            if file >= done:
                remaining = [[p for p in share if parts[p].file == file] for share in shares]
                _run(workers, parts, reducers, remaining, begun, failure)
                with closing(_States(workers)) as states:
                    after_file(file + 1, states)
    features = Worker.joined(workers)
    release_unused()
    result = _together(log, roles, before, workers, features, per_action(features), rejects)
    if whole:
        _settle(result, log, roles, rejects)
    return features, result


def _settle(result: PassResult, log: LogSource, roles: Roles, rejects: Rejects | None) -> None:
    """Warn about the rows of a log that were set aside, and refuse a log without rows that count."""
    if rejects is not None:
        rejects.source = log
        moments = result.moments
        settle(rejects, roles, result.sketch.rows, moments.keys, constant_reward(moments))
    refuse_nothing(result.sketch.rows, result.moments.n_rows, log.name, roles)


def _assigned(parts: Sequence[Part], workers: int) -> list[list[int]]:
    """Return the parts that each worker reads: the next part goes to the worker with the fewest rows."""
    shares: list[list[int]] = [[] for _ in range(workers)]
    rows = [0] * workers
    for p, part in enumerate(parts):
        worker = rows.index(min(rows))
        shares[worker].append(p)
        rows[worker] += max(1, part.n_rows)
    return shares


def _reading(worker: Worker, p: int, parts: Sequence[Part], reducers: Sequence[Reducer]) -> Iterator[int]:
    return worker.read(parts[p], [reducer.part(p) for reducer in reducers])


def _first_batch(
    worker: Worker, parts: Sequence[Part], reducers: Sequence[Reducer], failure: "_FirstError"
) -> Iterator[int]:
    """Add the first batch of the first part; return the rest of the part."""
    reading = _reading(worker, 0, parts, reducers)
    try:
        next(reading, None)
    except Exception as error:  # noqa: BLE001 - raised with the name of its part
        failure.add(0, error)
    failure.raise_any()
    return reading


def _enough(worker: Worker, parts: Sequence[Part], workers: int) -> int:
    """Return how many workers save time, by the tasks among the first rows."""
    rows = sum(part.n_rows for part in parts)
    tasks = _tasks_of_log(worker.n_tasks, worker.n_rows, rows)
    return int(min(max(rows / tasks // _ROWS_OF_TASK, 1), workers))


def _tasks_of_log(distinct: int, some: int, rows: int) -> float:
    """Return an estimate of the tasks among all rows, from ``distinct`` ones among some rows.

    That of tasks with equal shares, M (1 - exp(-some / M)) = distinct; at most one for each row. Tasks with unequal
    shares are more, but the rare ones have few rows.
    """
    low, high = float(max(distinct, 1)), float(max(rows, distinct, 1))
    for _ in range(60):
        middle = (low + high) / 2
        few = -middle * expm1(-some / middle) < distinct
        low, high = (middle, high) if few else (low, middle)
    return high


def _ahead(part: Part) -> Iterator[Any]:
    """Yield the batches of a part; the next one is decoded in a thread meanwhile."""
    batches = part.batches()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, batches, None)
            yield batch
            del batch


class _FirstError:
    """The first part, in the order of the log, that cannot be read, and its error."""

    def __init__(self, log: LogSource, parts: Sequence[Part], *, strict: bool) -> None:
        self._log, self._strict = log, strict
        self._parts, self.first = parts, len(parts)
        self.error: Exception | None = None
        self._lock = Lock()

    def add(self, p: int, error: Exception) -> None:
        """Keep an error unless an earlier part has one."""
        with self._lock:
            if p < self.first:
                self.first, self.error = p, error

    def raise_any(self) -> None:
        """Raise the error, with the place of its row, or else the name of its part."""
        if self.error is None:
            return
        with located(self._log, may_set_aside=self._strict):
            known = isinstance(self.error, InputError) and self.error.row is not None
            if isinstance(self.error, HieropoError) and len(self._parts) > 1 and not known:
                self.error.add_note(f"In {self._parts[self.first].name}.")
            raise self.error


def _run(
    workers: Sequence[Worker],
    parts: Sequence[Part],
    reducers: Sequence[Reducer],
    shares: Sequence[Sequence[int]],
    begun: dict[int, Iterator[int]],
    failure: "_FirstError",
) -> None:
    """Let every worker read its share, and the rest of a part that is begun; raise the error of the first bad part."""

    def work(worker: int) -> None:
        for p in shares[worker]:
            try:
                if p <= failure.first:
                    reading = begun.pop(p, None) or _reading(workers[worker], p, parts, reducers)
                    any(
                        p > failure.first for _ in reading
                    )  # to the end of the part, or until it is not wanted
            except Exception as error:  # noqa: BLE001 - the thread that waits raises the first of them
                failure.add(p, error)

    busy = [worker for worker, share in enumerate(shares) if share]
    if len(busy) == 1:
        work(busy[0])
    elif busy:
        _in_threads(work, busy, failure)
    failure.raise_any()


def _in_threads(work: Callable[[int], None], busy: Sequence[int], failure: _FirstError) -> None:
    with ThreadPoolExecutor(len(busy)) as pool:
        try:
            for future in [pool.submit(work, lane) for lane in busy]:
                future.result()
        except BaseException:  # an interrupt: no worker goes on
            failure.first = -1
            raise


class _States(Sequence[PassResult]):
    """The sums of each worker, copied when they are asked for: one copy at a time is in memory."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers

    def __len__(self) -> int:
        return len(self._workers)

    def __getitem__(self, worker: Any) -> Any:
        return self._workers[worker].summed()

    def close(self) -> None:
        """Drop the workers, which go on to read."""
        self._workers = []


def _together(
    log: LogSource,
    roles: Roles,
    before: TaskLevels | None,
    workers: Sequence[Worker],
    features: FeatureMap,
    per_action: bool,  # noqa: FBT001 - as `sums` has it
    rejects: Rejects | None,
) -> PassResult:
    """Return the sum of the workers; where they contradict each other, name the row."""
    try:
        return Worker.together(workers, features, per_action=per_action)
    except LogError:
        if log.rereadable and (roles.levels or roles.metadata):
            task_levels = TaskLevels(roles) if before is None else before.copy()
            with located(log):
                for batch in read_again(log, roles, rejects):
                    task_levels.add(batch)
        raise


def refuse_nothing(rows: int, counted: float, name: str, roles: Roles) -> None:
    """Raise LogError for a log without rows, or without one that counts."""
    if not rows:
        raise empty(name)
    if not counted:
        raise LogError(
            f"Column {roles.weight!r}, the weight, is 0 in every row, so that no row counts. Name another column."
        )
