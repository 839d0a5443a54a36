"""An experiment as a value, its runs in parallel processes, their journal, and the folder of its results.

The first lines say what runs depend on. A line that was torn by a crash is dropped; runs depend on nothing but
their seed, so that it does not matter who made which of them when.
"""

import json
import multiprocessing
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import hieropo
from hieropo._utils.threads import processors
from hieropo.errors import ArtifactError, HieropoError
from hieropo.reproduce.judging import REFUSED


def commit() -> str:
    """Return the commit of the sources, marked where they have changed since; the version without a repository."""
    here = Path(hieropo.__file__).resolve().parent
    top = _git(here, "rev-parse", "--show-toplevel")
    if (
        top is None or here != Path(top) / "src" / "hieropo"
    ):  # an installation that lies in some other repository
        return f"release {hieropo.__version__}"
    changed = _git(here, "status", "--porcelain", "--", str(here))
    return f"{_git(here, 'rev-parse', 'HEAD')}{' with changes' if changed else ''}"


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run: numbers by name."""

    cell: str
    run: int
    found: dict[str, float]

    @property
    def key(self) -> Key:
        """Return the identity of the run, which tells it from others."""
        return (self.cell, self.run)


class Journal:
    """The file of finished runs of one experiment.

    Parameters
    ----------
    path : Path
        Made where it is not there.
    depends : dict
        JSON values that the runs depend on; a file of runs that depend on others is refused.
    commit : str
        Which sources make the runs from now on; kept beside them.

    Raises
    ------
    ArtifactError
        The file belongs to other settings, is damaged, or cannot be written.
    """

    def __init__(self, path: Path, depends: dict[str, Any], commit: str) -> None:
        self._path = path
        self._depends = json.loads(json.dumps(depends))
        self.runs: dict[Key, Run] = {}
        self.commits: list[str] = []
        try:
            if path.exists():
                self._read()
            if commit not in self.commits:
                self.commits.append(commit)
                self._append([{"depends": self._depends, "commit": commit}])
        except OSError as error:
            raise _unusable(path, error) from error

    def add(self, runs: Iterable[Run]) -> None:
        """Write runs to the disk; they are flushed when this returns."""
        found = list(runs)
        try:
            self._append({"cell": each.cell, "run": each.run, **each.found} for each in found)
        except OSError as error:
            raise _unusable(self._path, error) from error
        self.runs |= {each.key: each for each in found}

    def _append(self, lines: Iterable[dict[str, Any]]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> None:
        whole, end = _whole_lines(self._path)
        for number, line in enumerate(whole, start=1):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ArtifactError(
                    f"Line {number} of {self._path} is not a run. Was the file edited? Delete it, and the runs are "
                    "made again."
                ) from error
        os.truncate(self._path, end)

    def _take(self, line: dict[str, Any]) -> None:
        if "depends" in line:
            _refuse_other(self._path, line["depends"], self._depends)
            self.commits.append(str(line["commit"]))
            return
        run = Run(str(line.pop("cell")), int(line.pop("run")), {k: float(v) for k, v in line.items()})
        self.runs[run.key] = run


def _whole_lines(path: Path) -> tuple[list[bytes], int]:
    """Return the complete lines, and the position of the end of the last one."""
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    return content[:end].splitlines(), end


def _refuse_other(path: Path, theirs: Any, ours: dict[str, Any]) -> None:
    if theirs == ours:
        return
    unlike = [name for name in ours if not isinstance(theirs, dict) or theirs.get(name) != ours[name]]
    raise ArtifactError(
        f"{path} holds runs that were made with other settings ({', '.join(unlike) or 'more of them'} differ). Name "
        "another folder with -o, or delete that file."
    )


def _unusable(path: Path, error: OSError) -> ArtifactError:
    return ArtifactError(
        f"{path} cannot be written or read: {error.strerror or error}. Name another folder with -o."
    )


P = TypeVar("P")
R = TypeVar("R")

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class EndedProcessError(HieropoError):
    """Raised where a process that made runs ended by itself."""


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes that are started in a context."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def workers(processes: int | None = None) -> Iterator[ProcessPoolExecutor]:
    """Return a pool of spawned processes, which inherit no threads, each with one thread of linear algebra.

    What waits is dropped where the block is left by an exception.
    """
    with environment(ONE_THREAD):
        pool = ProcessPoolExecutor(
            processes or processors(),
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_end_with_parent,
        )
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        pool.shutdown()


def _end_with_parent() -> None:
    """End this process as soon as the process that started it ends."""
    parent = multiprocessing.parent_process()

    def wait_and_end() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait_and_end, daemon=True).start()


def as_they_come(work: Callable[[P], R], pieces: Sequence[P], processes: int | None) -> Iterator[tuple[P, R]]:
    """Yield pieces of work with their results, in the order in which they are done.

    Raises
    ------
    EndedProcessError
        A process was killed; out of memory is the usual cause.
    """
    ahead = 2 * (processes or processors())
    with workers(processes) as pool:
        rest, running = iter(pieces), dict[Future[R], P]()
        try:
            while True:
                for piece in rest:
                    running[pool.submit(work, piece)] = piece
                    if len(running) >= ahead:
                        break
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        except BrokenProcessPool as error:
            raise EndedProcessError(
                "A process that made runs was ended from outside; memory may have run out. The same command goes on "
                "from the runs that are done; --processes 1 needs least memory."
            ) from error


CHUNK = 5  # runs that a process makes before it reports

TeeSource = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of a figure; hashable."""

    @property
    def text(self) -> str:
        """Return all of its fields as a key of the journal."""
        raise NotImplementedError

    @property
    def columns(self) -> dict[str, Any]:
        """Return the entries of its row of a table."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Experiment:
    """The runs to make.

    Parameters
    ----------
    name : str
    depends : dict
        JSON values that the figures of a run depend on.
    runs : mapping of a cell to a number
        How many runs each point of a figure gets.
    one_run : callable
        Cell and number of the run to figures by name. It goes to other processes, and gives the same there.
    journal : str
        Name of the file of finished runs.
    """

    name: str
    depends: dict[str, Any]
    runs: Mapping[Any, int]
    one_run: Callable[[Any, int], dict[str, float]]
    journal: str = "runs.jsonl"


@dataclass(frozen=True, eq=False)
class Results:
    """The results of every run, in order, by cell; and the commits that made them."""

    runs: Mapping[Any, Sequence[dict[str, float]]]
    commits: tuple[str, ...]

    @property
    def refused(self) -> int:
        """Return the number of runs in which a structure of Sigma_0 could not be estimated."""
        return sum(run.get(REFUSED, 0) > 0 for found in self.runs.values() for run in found)


def folder(path: str | Path) -> Path:
    """Make a folder if it does not exist.

    Raises
    ------
    ArtifactError
        It cannot be made.
    """
    found = Path(path)
    try:
        found.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(
            f"The folder {found} cannot be made: {error.strerror}. Name another one with -o."
        ) from error
    return found


def make(experiment: Experiment, out: Path, processes: int | None, watch: TeeSource) -> Results:
    """Make the runs that are missing in the folder.

    Parameters
    ----------
    experiment : Experiment
    out : Path
        Folder with the journal of finished runs.
    processes : int or None
        None: one for each processor. The figures do not depend on it.
    watch : callable
        Told how many runs are done, of how many.

    Raises
    ------
    ArtifactError
        The folder holds runs of other settings, or cannot be written.
    HieropoError
        A run failed; names it.
    """
    depends = {"experiment": experiment.name, **experiment.depends}
    journal = Journal(out / experiment.journal, depends, commit())
    wanted = [(cell, run) for cell, number in experiment.runs.items() for run in range(number)]
    missing: dict[Any, list[int]] = {}
    for cell, run in wanted:
        if (cell.text, run) not in journal.runs:
            missing.setdefault(cell, []).append(run)
    pieces = [
        (cell, runs[start : start + CHUNK])
        for cell, runs in missing.items()
        for start in range(0, len(runs), CHUNK)
    ]
    done = len(wanted) - sum(len(runs) for _, runs in pieces)
    watch(done, len(wanted))
    for (_, runs), found in (
        as_they_come(partial(_piece, experiment.one_run), pieces, processes) if pieces else ()
    ):
        journal.add(found)
        done += len(runs)
        watch(done, len(wanted))
    runs_of = {
        cell: [journal.runs[cell.text, run].found for run in range(number)]
        for cell, number in experiment.runs.items()
    }
    return Results(runs_of, tuple(journal.commits))


def _piece(one_run: Callable[[Any, int], dict[str, float]], piece: tuple[Any, Sequence[int]]) -> list[Run]:
    cell, runs = piece
    found = []
    for run in runs:
        try:
            found.append(Run(cell.text, run, one_run(cell, run)))
        except HieropoError as error:
            error.add_note(f"(In run {run} of {cell.text}.)")
            raise
    return found
