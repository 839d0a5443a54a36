"""An experiment as a value, its runs in processes, and the folder that it fills."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from hieropo.errors import ArtifactError, HieropoError
from hieropo.reproduce.journal import Journal, Run
from hieropo.reproduce.judging import REFUSED
from hieropo.reproduce.processes import as_they_come
from hieropo.reproduce.provenance import commit

CHUNK = 5  # runs that a process makes before it reports

Watch = Callable[[int, int], object]


class Cell(Protocol):
    """One point of a figure; a value that can be a key."""

    @property
    def text(self) -> str:
        """All of it, as a key of the journal."""

    @property
    def columns(self) -> dict[str, Any]:
        """What a table says of it."""


@dataclass(frozen=True, eq=False)
class Experiment:
    """What is to be run.

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
    """Figures of every run, in order, by cell; and the commits that made them."""

    runs: Mapping[Any, Sequence[dict[str, float]]]
    commits: tuple[str, ...]

    @property
    def refused(self) -> int:
        """Runs in which a shape of Sigma_0 could not be learned."""
        return sum(run.get(REFUSED, 0) > 0 for found in self.runs.values() for run in found)


def folder(path: str | Path) -> Path:
    """Make a folder where it is not there.

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


def make(experiment: Experiment, out: Path, processes: int | None, watch: Watch) -> Results:
    """Make the runs that the folder does not have yet.

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
