"""The one pass over a log: its moments, where its tasks stand, and a fingerprint of its rows.

The parts of the log are dealt out to lanes, one thread each, by their sizes alone; every lane adds its rows in order,
and at the end the lanes are added in order. So the same log on the same number of threads gives the same sums to the
last bit, whichever thread was faster, and so does a pass that goes on from what all lanes held after some file.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import groupby
from threading import Lock
from typing import Any

from hieropo._utils.arrays import Array
from hieropo._utils.threads import processors
from hieropo.errors import HieropoError, LogError
from hieropo.features.maps import FeatureMap
from hieropo.logs.arrow.log_source import LogSource, Part, empty, parts_of
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.opening import open_log
from hieropo.logs.reading import check_log, read
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.units import UnitMoments
from hieropo.passes.rejection import constant_reward, settle
from hieropo.passes.worker import PassResult, Worker
from hieropo.rows.batches import Roles

Lanes = Sequence[PassResult]


def sums(  # noqa: PLR0913 - where to begin, what to do after a file, and who takes bad rows
    source: Any,
    features: FeatureMap,
    roles: Roles,
    before: TaskLevels | None = None,
    *,
    apart: bool = False,
    threads: int | None = None,
    start: tuple[int, Lanes] | None = None,
    after_file: Callable[[int, Lanes], None] | None = None,
    rejects: Rejects | None = None,
    offset: Array | None = None,
) -> PassResult:
    """Sum over all rows of a log; where tasks stand is added to what was known ``before``.

    Parameters
    ----------
    source : LogSource or anything that ``open_log`` takes
    features : FeatureMap
    roles : Roles
    before : Placement, optional
    apart : bool
        Whether to keep actions apart, as :class:`UnitMoments` do.
    threads : int, optional
        Lanes; by default as many as there are processors or parts.
    start : (files, sums of each lane), optional
        Goes on after so many files, with as many lanes as there are sums; ``threads`` and ``before`` are not used.
    after_file : callable, optional
        Called in this thread with the number of files done and the sums of each lane, as ``start`` takes them, after
        every file. Those sums are copied when they are asked for, which has to be before it returns; their moments keep
        actions apart wherever each has coefficients of its own. Files are read one after the other then.
    rejects : Rejects, optional
        Takes the rows that cannot be used; what it took is judged by :func:`rejection.settle`.
    offset : (d,) array, optional
        Of the moments; ``start`` has its own.

    Raises
    ------
    SchemaError
        A column is missing, there twice, or of a type that cannot play its role.
    LogError, UnknownActionError, InputError
        A row cannot be used: the first one, however many threads read; or there is none.
    """
    log = open_log(source, lenient=rejects is not None)
    check_log(log, roles, lenient=rejects is not None)
    parts = parts_of(log, roles.columns)
    done, held = (0, [None] * max(1, min(threads or processors(), len(parts)))) if start is None else start
    shares = _dealt(parts, len(held))
    lanes = [
        Worker(
            features, roles, apart=apart, before=before, start=each, rejects=rejects, offset=offset,
            expected=sum(parts[p].n_rows for p in share if parts[p].file >= done),
        )
        for each, share in zip(held, shares, strict=True)
    ]  # fmt: skip
    if after_file is None:
        _run(lanes, parts, [[p for p in share if parts[p].file >= done] for share in shares])
    else:
        files = [file for file, _ in groupby(part.file for part in parts)]
        for file in files:
            if file >= done:
                _run(lanes, parts, [[p for p in share if parts[p].file == file] for share in shares])
                with closing(_States(lanes)) as states:
                    after_file(file + 1, states)
    found = _together(log, roles, before, lanes, apart, rejects)
    if rejects is not None:
        moments = found.moments
        rows = moments.units if isinstance(moments, UnitMoments) else moments
        settle(rejects, roles, found.sketch.rows, moments.keys, constant_reward(rows))
    _refuse_nothing(found, log, roles)
    return found


def _dealt(parts: Sequence[Part], lanes: int) -> list[list[int]]:
    """Return which parts each lane reads: the next one goes to the lane that has the fewest rows."""
    shares: list[list[int]] = [[] for _ in range(lanes)]
    rows = [0] * lanes
    for p, part in enumerate(parts):
        lane = rows.index(min(rows))
        shares[lane].append(p)
        rows[lane] += max(1, part.n_rows)
    return shares


class _Trouble:
    """The first part, in the order of the log, that cannot be read, and why."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.first = len(parts)
        self.error: Exception | None = None
        self._lock = Lock()

    def add(self, p: int, error: Exception) -> None:
        """Keep an error unless an earlier part has one."""
        with self._lock:
            if p < self.first:
                self.first, self.error = p, error


def _run(lanes: Sequence[Worker], parts: Sequence[Part], shares: Sequence[Sequence[int]]) -> None:
    """Let every lane read its share; raise for the first part that cannot be read."""
    trouble = _Trouble(parts)

    def work(lane: int) -> None:
        for p in shares[lane]:
            try:
                _read(lanes[lane], parts[p], lambda: p <= trouble.first)  # noqa: B023 - called before p moves on
            except Exception as error:  # noqa: BLE001 - the thread that waits raises the first of them
                trouble.add(p, error)

    busy = [lane for lane, share in enumerate(shares) if share]
    if len(busy) == 1:
        work(busy[0])
    elif busy:
        _in_threads(work, busy, trouble)
    if trouble.error is not None:
        if isinstance(trouble.error, HieropoError) and len(parts) > 1:
            trouble.error.add_note(f"In {parts[trouble.first].name}.")
        raise trouble.error


def _read(lane: Worker, part: Part, wanted: Callable[[], bool]) -> None:
    """Read a part while it is wanted."""
    if wanted():
        for _ in lane.read(part):
            if not wanted():
                return


def _in_threads(work: Callable[[int], None], busy: Sequence[int], trouble: _Trouble) -> None:
    with ThreadPoolExecutor(len(busy)) as pool:
        try:
            for each in [pool.submit(work, lane) for lane in busy]:
                each.result()
        except BaseException:  # an interrupt: no lane goes on
            trouble.first = -1
            raise


class _States(Sequence[PassResult]):
    """The sums of each lane, copied when they are asked for: one lane's copy at a time is in memory."""

    def __init__(self, lanes: Sequence[Worker]) -> None:
        self._lanes = lanes

    def __len__(self) -> int:
        return len(self._lanes)

    def __getitem__(self, lane: Any) -> Any:
        return self._lanes[lane].summed()

    def close(self) -> None:
        """Nothing can be asked for any more: the lanes go on."""
        self._lanes = []


def _together(
    log: LogSource,
    roles: Roles,
    before: TaskLevels | None,
    lanes: Sequence[Worker],
    apart: bool,  # noqa: FBT001 - as `sums` has it
    rejects: Rejects | None,
) -> PassResult:
    """Add the lanes; where they contradict each other, say in which row."""
    try:
        return Worker.together(lanes, apart=apart)
    except LogError:
        if log.rereadable and (roles.levels or roles.metadata):
            task_levels = TaskLevels(roles) if before is None else before.copy()
            for batch in read(log, roles, rejects=None if rejects is None else rejects.silent()):
                task_levels.add(batch)
        raise


def _refuse_nothing(found: PassResult, log: LogSource, roles: Roles) -> None:
    if not found.sketch.rows:
        raise empty(log.name)
    if not found.moments.n_rows:
        raise LogError(
            f"Column {roles.weight!r}: the weight is 0 in every row, so no row counts. Name another column."
        )
