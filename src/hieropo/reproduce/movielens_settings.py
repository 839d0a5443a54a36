"""Settings of the experiments on MovieLens; ``paper.toml`` says what each means."""

from dataclasses import dataclass, field
from typing import Literal

from hieropo.errors import InputError
from hieropo.reproduce.reading import changed


@dataclass(frozen=True, slots=True)
class Counts:
    """What a file of ratings has to hold."""

    ratings: int
    users: int
    movies: int
    by_rating: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MovieLensOpen:
    """What the paper leaves open of its experiment on MovieLens."""

    clusters_found: Literal["each run", "once"] = "each run"
    starts: int = 1
    tolerance: float = 1e-3
    truth: Literal["factors", "drawn"] = "factors"
    users_drawn: Literal["each run", "once"] = "each run"
    unrated_movies: int = 0
    centres: Literal["alike", "by size"] = "alike"
    hyper_cov: Literal["sample", "population"] = "sample"
    evaluation_contexts: int = 100
    rows_of_tasks: Literal["drawn", "even"] = "drawn"

    def check(self, place: str) -> None:
        """Refuse numbers that are none."""
        if (
            min(self.starts, self.evaluation_contexts) < 1
            or self.unrated_movies < 0
            or not self.tolerance > 0
        ):
            raise InputError(
                f"{place} has starts, evaluation_contexts, unrated_movies, tolerance of {self.starts}, "
                f"{self.evaluation_contexts}, {self.unrated_movies}, {self.tolerance}; at least 1, 1, 0 and a positive "
                "number are needed."
            )


@dataclass(frozen=True, slots=True)
class Beyond:
    """What bandit feedback alone gives."""

    runs: int
    rows_grid: tuple[int, ...]
    pessimism: float
    added_rows: float

    def check(self) -> None:
        """Refuse numbers that cannot be."""
        if min(self.runs, *self.rows_grid) < 1 or not self.added_rows > 0:
            raise InputError("beyond has runs or rows below 1, or added_rows that are not positive.")


@dataclass(frozen=True, slots=True)
class MovieLensAlternatives:
    """Other readings of the paper, each a change of :class:`MovieLensOpen`, and where they are compared."""

    runs: int
    rows: tuple[int, ...]
    algorithms: tuple[str, ...]
    of: dict[str, dict[str, int | float | str]]


@dataclass(frozen=True, slots=True)
class MovieLens:
    """The experiment on MovieLens."""

    runs: int
    few_runs: int
    rank: int
    ridge: float
    iterations: int
    noise_sd: float
    clusters: int
    tasks: int
    actions: int
    rows_grid: tuple[int, ...]
    counts: Counts
    open: MovieLensOpen = field(default_factory=MovieLensOpen)
    alternatives: MovieLensAlternatives = field(default_factory=lambda: MovieLensAlternatives(1, (), (), {}))

    def check(self) -> None:
        """Refuse numbers that cannot be."""
        counts = (self.runs, self.few_runs, self.alternatives.runs)
        whole = (*counts, self.rank, self.iterations, self.clusters, self.tasks, self.actions)
        if min(*whole, *self.rows_grid) < 1 or not min(self.ridge, self.noise_sd) > 0:
            raise InputError(
                "movielens has a number of runs, tasks, actions, ... below 1, or its ridge or noise_sd is not positive."
            )
        self.open.check("movielens.open")
        for name in self.alternatives.of:
            self.reading(name).check(f"movielens.alternatives.of.{name!r}")

    def reading(self, name: str) -> MovieLensOpen:
        """What is left open, read otherwise."""
        return changed(self.open, self.alternatives.of[name], f"movielens.alternatives.of.{name!r}")
