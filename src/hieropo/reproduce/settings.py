"""Settings of the experiments, read from one TOML file; the one that ships is ``paper.toml``."""

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hieropo.errors import InputError

T = TypeVar("T")

_WORDS = {int: "a whole number", float: "a number", str: "text", tuple: "a list", dict: "a table"}


def read(cls: type[T], table: Any, location: str) -> T:
    """Return the dataclass ``cls`` with the values of ``table``, which is at ``place`` in the file.

    Raises
    ------
    InputError
        A key is missing or unknown, or a value is of another type; names key and place.
    """
    if not isinstance(table, Mapping):
        raise InputError(f"{location} is {table!r}; a table is needed.")
    types = get_type_hints(cls)
    known_fields = {setting.name: setting for setting in fields(cls)}  # type: ignore[arg-type]  # a dataclass
    unknown = [key for key in table if key not in known_fields]
    if unknown:
        raise InputError(
            f"{location} has the unknown setting {unknown[0]!r}; it may have {', '.join(sorted(known_fields))}. Is it "
            "misspelt?"
        )
    missing = [name for name, setting in known_fields.items() if name not in table and not _optional(setting)]
    if missing:
        raise InputError(
            f"{location} lacks the setting {missing[0]!r}. Take it from the file that comes with hieropo."
        )
    return cls(**{key: _value(types[key], value, f"{location}.{key}") for key, value in table.items()})


def with_changes(value: T, table: Mapping[str, Any], location: str) -> T:
    """Return ``value``, a dataclass of optional settings, with the settings of ``table`` replaced.

    Raises
    ------
    InputError
        As :func:`read`.
    """
    changes = read(type(value), table, location)
    return replace(value, **{key: getattr(changes, key) for key in table})  # type: ignore[type-var]  # a dataclass


def _optional(setting: Any) -> bool:
    return setting.default is not MISSING or setting.default_factory is not MISSING


def _value(type_: Any, value: Any, location: str) -> Any:
    """Return ``value`` as ``type_``, one of the types of settings."""
    if is_dataclass(type_):
        return read(type_, value, location)  # type: ignore[arg-type]  # a class, not an instance
    origin, inner = get_origin(type_), get_args(type_)
    if origin is Literal:
        if value not in inner:
            raise InputError(f"{location} is {value!r}; one of {', '.join(map(repr, inner))} is needed.")
        return value
    if origin in (Union, UnionType):
        return _one_of(inner, value, location)
    expected = origin or type_
    accepted = {float: (int, float), tuple: (list, tuple), dict: (Mapping,)}.get(expected, (expected,))
    if not isinstance(value, accepted) or isinstance(value, bool):
        raise InputError(f"{location} is {value!r}; {_WORDS[expected]} is needed.")
    if expected is tuple:
        return tuple(_value(inner[0], item, f"{location}[{k}]") for k, item in enumerate(value))
    if expected is dict:
        return {key: _value(inner[1], item, f"{location}.{key}") for key, item in value.items()}
    return expected(value)


def _one_of(types: tuple[Any, ...], value: Any, location: str) -> Any:
    for type_ in types:
        try:
            return _value(type_, value, location)
        except InputError as error:
            last = error
    raise last


@dataclass(frozen=True, slots=True)
class Counts:
    """The expected content of a file of ratings."""

    ratings: int
    users: int
    movies: int
    by_rating: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MovieLensOpen:
    """The choices that the paper leaves open in its experiment on MovieLens."""

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

    def check(self, location: str) -> None:
        """Refuse numbers that are not finite."""
        if (
            min(self.starts, self.evaluation_contexts) < 1
            or self.unrated_movies < 0
            or not self.tolerance > 0
        ):
            raise InputError(
                f"{location} has starts, evaluation_contexts, unrated_movies, tolerance of {self.starts}, "
                f"{self.evaluation_contexts}, {self.unrated_movies}, {self.tolerance}; at least 1, 1, 0 and a positive "
                "number are needed."
            )


@dataclass(frozen=True, slots=True)
class Beyond:
    """Settings of learning from bandit feedback alone."""

    runs: int
    rows_grid: tuple[int, ...]
    pessimism: float
    added_rows: float

    def check(self) -> None:
        """Refuse numbers out of range."""
        if min(self.runs, *self.rows_grid) < 1 or not self.added_rows > 0:
            raise InputError("beyond has runs or rows below 1, or added_rows that are not positive.")


@dataclass(frozen=True, slots=True)
class MovieLensAlternatives:
    """Other readings of the paper, each a change of :class:`MovieLensOpen`, and the points where they are compared."""

    runs: int
    rows: tuple[int, ...]
    algorithms: tuple[str, ...]
    of: dict[str, dict[str, int | float | str]]


@dataclass(frozen=True, slots=True)
class MovieLens:
    """Settings of the experiment on MovieLens."""

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
        """Refuse numbers out of range."""
        counts = (self.runs, self.few_runs, self.alternatives.runs)
        numbers = (*counts, self.rank, self.iterations, self.clusters, self.tasks, self.actions)
        if min(*numbers, *self.rows_grid) < 1 or not min(self.ridge, self.noise_sd) > 0:
            raise InputError(
                "movielens has a number of runs, tasks, actions, ... below 1, or its ridge or noise_sd is not positive."
            )
        self.open.check("movielens.open")
        for name in self.alternatives.of:
            self.reading(name).check(f"movielens.alternatives.of.{name!r}")

    def reading(self, name: str) -> MovieLensOpen:
        """Return the open choices in another reading."""
        return with_changes(self.open, self.alternatives.of[name], f"movielens.alternatives.of.{name!r}")


Prior = Literal["oracle", "hierarchical", "flat", "pooled", "learned"]
Word = Literal["calibrated", "simultaneous", "theorem"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm: prior of the tasks and pessimism; ``paper.toml`` explains the values."""

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

    def check(self, location: str) -> None:
        """Refuse numbers that are not finite, and choices that contradict each other."""
        if self.contexts < 0 or self.evaluation_contexts < 1:
            raise InputError(
                f"{location} has {self.contexts} contexts and {self.evaluation_contexts} evaluation_contexts; at least "
                "0 and 1 are needed."
            )
        if self.evaluated_on == "logged" and not self.contexts:
            raise InputError(
                f"{location} evaluates in the contexts of the log, where each row has a context of its own. Set "
                "`contexts`, the number of contexts from which the log draws."
            )


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Other readings of the paper, each a change of :class:`Open`, and the points where they are compared."""

    hyper_sd: float
    rows: tuple[int, ...]
    algorithms: tuple[str, ...]
    of: dict[str, dict[str, int | str]]


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Settings of the synthetic problem."""

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
        """Refuse numbers out of range, in every reading of the paper."""
        numbers = (
            self.runs,
            self.dim,
            self.actions,
            self.tasks,
            self.rows,
            *self.rows_grid,
            *self.tasks_grid,
        )
        if min(numbers) < 1 or min(self.noise_sd, self.task_sd, *self.hyper_sd) <= 0:
            raise InputError(
                "synthetic has a number of runs, rows, tasks, ... below 1, or an sd that is not positive."
            )
        self.open.check("synthetic.open")
        for name in self.alternatives.of:
            self.reading(name).check(f"synthetic.alternatives.of.{name!r}")

    def reading(self, name: str) -> Open:
        """Return the open settings in another of their readings."""
        return with_changes(self.open, self.alternatives.of[name], f"synthetic.alternatives.of.{name!r}")


@dataclass(frozen=True)
class Settings:
    """All settings.

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
        names = [algorithm.name for algorithm in self.algorithms]
        repeated = {name for name in names if names.count(name) > 1}
        if not names or repeated:
            raise InputError(f"Algorithms need names of their own; there are {names}.")
        for location, experiment in (("synthetic", self.synthetic), ("movielens", self.movielens)):
            unknown = set(experiment.alternatives.algorithms) - set(names)
            if unknown:
                raise InputError(
                    f"{location}.alternatives names {min(unknown)!r}, which is no algorithm: {names}."
                )
            experiment.check()
        self.beyond.check()

    @cached_property
    def named(self) -> dict[str, Algorithm]:
        """Return the algorithms by name."""
        return {algorithm.name: algorithm for algorithm in self.algorithms}


def shipped() -> str:
    """Return the settings that ship with the package, as text."""
    return (files("hieropo.reproduce") / "paper.toml").read_text(encoding="utf-8")


def settings_of(text: str, name: str) -> Settings:
    """Return settings from text; ``name`` is that of their file, for messages.

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
    """Return text and name of a file of settings; of the shipped one without a path.

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
