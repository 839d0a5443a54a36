"""An experiment as a value, its runs in parallel processes, their journal, and the folder of its results.

The first lines of a journal hold the values that runs depend on. A line that was torn by a crash is dropped. Runs
depend on nothing but these values and their seed, so that their order and their process do not matter.
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
    package = Path(hieropo.__file__).resolve().parent
    top = _git(package, "rev-parse", "--show-toplevel")
    if top is None or package != Path(top) / "src" / "hieropo":  # the repository is not that of hieropo
        return f"release {hieropo.__version__}"
    changed = _git(package, "status", "--porcelain", "--", str(package))
    return f"{_git(package, 'rev-parse', 'HEAD')}{' with changes' if changed else ''}"


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        completed = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.strip()


Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run: numbers by name."""

    cell: str
    run: int
    figures: dict[str, float]

    @property
    def key(self) -> Key:
        """Return the cell and the number of the run, which identify it."""
        return (self.cell, self.run)


class Journal:
    """The file of finished runs of one experiment.

    Parameters
    ----------
    path : Path
        Created if it does not exist.
    depends : dict
        JSON values that the runs depend on; a file of runs that depend on others is refused.
    commit : str
        Of the sources that make the runs from now on; written to the file.

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
        finished = list(runs)
        try:
            self._append({"cell": run.cell, "run": run.run, **run.figures} for run in finished)
        except OSError as error:
            raise _unusable(self._path, error) from error
        self.runs |= {run.key: run for run in finished}

    def _append(self, lines: Iterable[dict[str, Any]]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> None:
        lines, end = _complete_lines(self._path)
        for number, line in enumerate(lines, start=1):
            try:
                self._add_line(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ArtifactError(
                    f"Line {number} of {self._path} is not a run. Was the file edited? Delete it, and the runs are "
                    "made again."
                ) from error
        os.truncate(self._path, end)

    def _add_line(self, line: dict[str, Any]) -> None:
        if "depends" in line:
            _refuse_other(self._path, line["depends"], self._depends)
            self.commits.append(str(line["commit"]))
            return
        run = Run(str(line.pop("cell")), int(line.pop("run")), {k: float(v) for k, v in line.items()})
        self.runs[run.key] = run


def _complete_lines(path: Path) -> tuple[list[bytes], int]:
    """Return the complete lines, and the position of the end of the last one."""
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    return content[:end].splitlines(), end


def _refuse_other(path: Path, theirs: Any, ours: dict[str, Any]) -> None:
    if theirs == ours:
        return
    different = [name for name in ours if not isinstance(theirs, dict) or theirs.get(name) != ours[name]]
    raise ArtifactError(
        f"{path} holds runs that were made with other settings ({', '.join(different) or 'more of them'} differ). Name "
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
    previous = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def workers(processes: int | None = None) -> Iterator[ProcessPoolExecutor]:
    """Return a pool of spawned processes, which inherit no threads, each with one thread of linear algebra.

    An exception in the block cancels the work that has not begun.
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


def as_completed(work: Callable[[P], R], pieces: Sequence[P], processes: int | None) -> Iterator[tuple[P, R]]:
    """Yield pieces of work with their results, in the order in which they are done.

    Raises
    ------
    EndedProcessError
        A process was killed; out of memory is the usual cause.
    """
    max_running = 2 * (processes or processors())
    with workers(processes) as pool:
        remaining, running = iter(pieces), dict[Future[R], P]()
        try:
            while True:
                for piece in remaining:
                    running[pool.submit(work, piece)] = piece
                    if len(running) >= max_running:
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

Progress = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of a figure; hashable."""

    @property
    def text(self) -> str:
        """Return all of its fields as a key of the journal."""
        raise NotImplementedError

    @property
    def columns(self) -> dict[str, Any]:
        """Return the values of the point, by column of a table."""
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
        Number of runs at each point of a figure.
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
        return sum(run.get(REFUSED, 0) > 0 for runs in self.runs.values() for run in runs)


def make_folder(path: str | Path) -> Path:
    """Make a folder if it does not exist.

    Raises
    ------
    ArtifactError
        It cannot be made.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(
            f"The folder {folder} cannot be made: {error.strerror}. Name another one with -o."
        ) from error
    return folder


def run_missing(experiment: Experiment, out: Path, processes: int | None, progress: Progress) -> Results:
    """Make the runs that are missing in the folder.

    Parameters
    ----------
    experiment : Experiment
    out : Path
        Folder with the journal of finished runs.
    processes : int or None
        None: one for each processor. The figures do not depend on it.
    progress : callable
        Called with the number of finished runs and the number of all runs.

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
    progress(done, len(wanted))
    for (_, runs), finished in (
        as_completed(partial(_piece, experiment.one_run), pieces, processes) if pieces else ()
    ):
        journal.add(finished)
        done += len(runs)
        progress(done, len(wanted))
    runs_of = {
        cell: [journal.runs[cell.text, run].figures for run in range(number)]
        for cell, number in experiment.runs.items()
    }
    return Results(runs_of, tuple(journal.commits))


def _piece(one_run: Callable[[Any, int], dict[str, float]], piece: tuple[Any, Sequence[int]]) -> list[Run]:
    cell, runs = piece
    finished = []
    for run in runs:
        try:
            finished.append(Run(cell.text, run, one_run(cell, run)))
        except HieropoError as error:
            error.add_note(f"(In run {run} of {cell.text}.)")
            raise
    return finished
