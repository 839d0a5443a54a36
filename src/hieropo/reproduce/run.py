"""``hieropo reproduce`` without its command line: settings in, a filled folder out."""

from dataclasses import dataclass, replace
from pathlib import Path

from hieropo.reproduce.beyond import experiment as beyond
from hieropo.reproduce.beyond import report as beyond_report
from hieropo.reproduce.experiment import TeeSource, folder, make
from hieropo.reproduce.figures import need_matplotlib
from hieropo.reproduce.movielens import experiment as movielens
from hieropo.reproduce.movielens import report as movielens_report
from hieropo.reproduce.movielens.ratings import read_ratings
from hieropo.reproduce.settings import Settings, settings_of, settings_text
from hieropo.reproduce.synthetic import experiment as synthetic
from hieropo.reproduce.synthetic import report as synthetic_report
from hieropo.reproduce.writing import Origin, Summary


@dataclass(frozen=True)
class Asked:
    """What a command asks for.

    Parameters
    ----------
    out : Path
        Folder for results, and for the runs to go on from.
    settings : str, optional
        File of settings; default the one that ships.
    runs, seed : int, optional
        Instead of those in the settings.
    processes : int, optional
        Default: one for each processor.
    pictures : bool
        Whether figures are drawn.
    """

    out: Path
    settings: str | None = None
    runs: int | None = None
    seed: int | None = None
    processes: int | None = None
    pictures: bool = True

    def command(self, name: str) -> str:
        """The command that makes the same figures."""
        name_of = None if self.settings is None else Path(self.settings).name
        options = {"--settings": name_of, "--runs": self.runs, "--seed": self.seed}
        words = [f"{option} {value}" for option, value in options.items() if value is not None]
        return " ".join(["hieropo reproduce", name, "-o DIR", *words])


def read_settings(asked: Asked) -> tuple[Settings, str]:
    """Settings with what a command changes, and their text.

    Raises
    ------
    InputError
        The file cannot be used; figures are asked for and matplotlib is not there.
    """
    if asked.pictures:
        need_matplotlib()
    text, name = settings_text(asked.settings)
    settings = settings_of(text, name)
    return settings if asked.seed is None else replace(settings, seed=asked.seed), text


def reproduce_movielens(
    asked: Asked, ratings: str | Path, watch: TeeSource
) -> tuple[list[Summary], list[Summary]]:
    """Make the runs on MovieLens that are missing; write tables and pictures, of the paper's experiment and beyond.

    Raises
    ------
    InputError, LogError
        The ratings cannot be used.
    """
    settings, text = read_settings(asked)
    what = settings.movielens
    if asked.runs is not None:
        fewer = replace(settings.beyond, runs=min(asked.runs, settings.beyond.runs))
        settings = replace(settings, movielens=replace(what, runs=asked.runs), beyond=fewer)
    read = read_ratings(ratings, what.counts)
    out = folder(asked.out)
    given = movielens.problem(settings, read)
    results = make(movielens.experiment(settings, given), out, asked.processes, watch)
    origin = Origin(asked.command("movielens --data PATH"), settings.seed, text, results.commits)
    papers = movielens_report.report(settings, given, results, origin, out, pictures=asked.pictures)
    results = make(beyond.experiment(settings, given), out, asked.processes, watch)
    origin = replace(origin, commits=results.commits)
    return papers, beyond_report.report(settings, results, origin, out, pictures=asked.pictures)


def reproduce_synthetic(asked: Asked, watch: TeeSource) -> list[Summary]:
    """Make the runs of the synthetic problems that are missing; write tables and pictures."""
    settings, text = read_settings(asked)
    if asked.runs is not None:
        settings = replace(settings, synthetic=replace(settings.synthetic, runs=asked.runs))
    out = folder(asked.out)
    results = make(synthetic.experiment(settings), out, asked.processes, watch)
    origin = Origin(asked.command("synthetic"), settings.seed, text, results.commits)
    return synthetic_report.report(settings, results, origin, out, pictures=asked.pictures)
