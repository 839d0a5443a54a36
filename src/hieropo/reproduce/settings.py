"""Settings of the experiments, read from one TOML file; the one that ships is ``paper.toml``."""

import tomllib
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from hieropo.errors import InputError
from hieropo.reproduce.movielens_settings import Beyond, MovieLens
from hieropo.reproduce.reading import changed, read

Prior = Literal["oracle", "hierarchical", "flat", "pooled", "learned"]
Word = Literal["calibrated", "simultaneous", "theorem"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A prior of the tasks, and how far below its mean an action is valued; ``paper.toml`` says what words mean."""

    name: str
    prior: Prior
    pessimism: float | Word
    level: float = 0.95


@dataclass(frozen=True, slots=True)
class Open:
    """Settings of the synthetic problem that the paper leaves open; ``paper.toml`` explains each."""

    contexts: int = 0
    evaluation_contexts: int = 100
    evaluated_on: Literal["own", "common", "logged"] = "own"
    rows_of_tasks: Literal["drawn", "even"] = "drawn"
    averaged_over: Literal["tasks", "rows"] = "tasks"

    def check(self, place: str) -> None:
        """Refuse numbers that are none and choices that do not go together."""
        if self.contexts < 0 or self.evaluation_contexts < 1:
            raise InputError(
                f"{place} has {self.contexts} contexts and {self.evaluation_contexts} evaluation_contexts; at least 0 "
                "and 1 are needed."
            )
        if self.evaluated_on == "logged" and not self.contexts:
            raise InputError(
                f"{place} judges in the contexts of the log, of which each row has its own: say how many `contexts` "
                "the log draws from."
            )


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Other readings of the paper, each a change of :class:`Open`, and where they are compared."""

    hyper_sd: float
    rows: tuple[int, ...]
    algorithms: tuple[str, ...]
    of: dict[str, dict[str, int | str]]


@dataclass(frozen=True, slots=True)
class Synthetic:
    """The synthetic problem."""

    runs: int
    dim: int
    actions: int
    noise_sd: float
    task_sd: float
    hyper_sd: tuple[float, ...]
    tasks: int
    rows: int
    rows_grid: tuple[int, ...]
    tasks_grid: tuple[int, ...]
    open: Open = field(default_factory=Open)
    alternatives: Alternatives = field(default_factory=lambda: Alternatives(1.0, (), (), {}))

    def check(self) -> None:
        """Refuse numbers that cannot be; every reading of the paper too."""
        whole = (self.runs, self.dim, self.actions, self.tasks, self.rows, *self.rows_grid, *self.tasks_grid)
        if min(whole) < 1 or min(self.noise_sd, self.task_sd, *self.hyper_sd) <= 0:
            raise InputError(
                "synthetic has a number of runs, rows, tasks, ... below 1, or an sd that is not positive."
            )
        self.open.check("synthetic.open")
        for name in self.alternatives.of:
            self.reading(name).check(f"synthetic.alternatives.of.{name!r}")

    def reading(self, name: str) -> Open:
        """Return the open settings in another of their readings."""
        return changed(self.open, self.alternatives.of[name], f"synthetic.alternatives.of.{name!r}")


@dataclass(frozen=True)
class Settings:
    """All of them.

    Parameters
    ----------
    seed : int
    algorithms : tuple of Algorithm
    synthetic : Synthetic
    movielens : MovieLens
    beyond : Beyond
    """

    seed: int
    algorithms: tuple[Algorithm, ...]
    synthetic: Synthetic
    movielens: MovieLens
    beyond: Beyond

    def __post_init__(self) -> None:
        names = [each.name for each in self.algorithms]
        twice = {name for name in names if names.count(name) > 1}
        if not names or twice:
            raise InputError(f"Algorithms need names of their own; there are {names}.")
        for place, experiment in (("synthetic", self.synthetic), ("movielens", self.movielens)):
            lost = set(experiment.alternatives.algorithms) - set(names)
            if lost:
                raise InputError(f"{place}.alternatives names {min(lost)!r}, which is no algorithm: {names}.")
            experiment.check()
        self.beyond.check()

    @cached_property
    def named(self) -> dict[str, Algorithm]:
        """The algorithms by name."""
        return {each.name: each for each in self.algorithms}


def shipped() -> str:
    """The settings that come with the package, as text."""
    return (files("hieropo.reproduce") / "paper.toml").read_text(encoding="utf-8")


def settings_of(text: str, name: str) -> Settings:
    """Read settings; ``name`` is that of their file, for messages.

    Raises
    ------
    InputError
        The text is no TOML, or a setting is missing, unknown or of another type.
    """
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name} is not TOML: {error}.") from error
    try:
        return read(Settings, table, "the file")
    except InputError as error:
        error.add_note(f"(In {name}.)")
        raise


def settings_text(path: str | Path | None) -> tuple[str, str]:
    """Text and name of a file of settings; of the one that ships where there is no path.

    Raises
    ------
    InputError
        The file cannot be read.
    """
    if path is None:
        return shipped(), "paper.toml"
    try:
        return Path(path).read_text(encoding="utf-8-sig"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The settings {path} cannot be read: {error}. Name a TOML file.") from error
