"""MovieLens from bandit feedback alone: only the factors of the movies are known, not the rating matrix.

Users come from everywhere, not from one cluster. What is learned from the log stands beside priors that know the rating
matrix, and beside rankings of movies that are the same for everybody.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo.estimation.baseline_priors import empirical_flat, pooled_noise
from hieropo.estimation.hyper.uncertainty import learn
from hieropo.estimation.tree_estimation import estimate_levels
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.posterior import condition
from hieropo.moments.statistics import Moments
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.reproduce import experiment as experiments
from hieropo.reproduce.experiment import Experiment
from hieropo.reproduce.judging import SIMPLER, simplest_that_holds
from hieropo.reproduce.movielens.clusters import Clusters
from hieropo.reproduce.movielens.experiment import Problem, clusters_of, prior, rewarded, shown
from hieropo.reproduce.settings import Settings
from hieropo.rows.keys import Keys

LEARNED, MOST_RATED, BEST_RATED = "learned from the log", "most rated movie", "best rated movie"
VALUE, LOSS = "value in stars", "suboptimality"
TENTH = "value in stars of the user whom a tenth are below"
WORSE_THAN_MOST, WORSE_THAN_BEST = (
    f"worse off than by the {MOST_RATED}",
    f"worse off than by the {BEST_RATED}",
)
FIGURES = (VALUE, TENTH, LOSS, WORSE_THAN_MOST, WORSE_THAN_BEST)


@dataclass(frozen=True, slots=True)
class Cell(experiments.Cell):
    """One point of a figure: the number of rows n of all users."""

    rows: int

    @property
    def text(self) -> str:
        """Return all of its fields as a key of the journal."""
        return f"rows {self.rows}"


@dataclass(frozen=True, eq=False)
class Log:
    """The random draws of a run.

    Parameters
    ----------
    users : (m,) int array
        Of all users; they are the tasks 0 .. m-1.
    movie, reward : (n,) arrays
        Of each row.
    moments : Moments
    judged : (m, E, K) int array
        Movies of each context in which policies are judged.
    clusters : Clusters
        Of all users, from the rating matrix.
    """

    users: Codes
    movie: Codes
    reward: Array
    moments: Moments
    judged: Codes
    clusters: Clusters


def draw(settings: Settings, given: Problem, cell: Cell, run: int) -> Log:
    """Draw users, a log under uniform actions, and contexts."""
    what = settings.movielens
    m = what.tasks
    rng = np.random.default_rng(
        [settings.seed, cell.rows, run, 1]
    )  # other numbers than the paper's experiment has
    users = rng.choice(len(given.users), m, replace=False)
    task = rng.integers(m, size=cell.rows)
    movie = shown(given.movies, (cell.rows, what.actions), rng)
    movie = movie[np.arange(cell.rows), rng.integers(what.actions, size=cell.rows)]
    reward = rewarded(given.users[users[task]], given.movies[movie], what.noise_sd, rng)
    moments = Moments.from_arrays(task, given.movies[movie], reward).covering(Keys(np.arange(m)))
    judged = shown(given.movies, (m, what.open.evaluation_contexts, what.actions), rng)
    return Log(users, movie, reward, moments, judged, clusters_of(settings, given, what.open, run))


Chooser = Callable[[Settings, Problem, Log], Codes]


def _by_policy(posterior: Any, settings: Settings, given: Problem, log: Log) -> Codes:
    """Return the actions of the lower-bound policy of a posterior, (m, E)."""
    m, contexts, _ = log.judged.shape
    policy = LCBPolicy(posterior, pessimism=settings.beyond.pessimism)
    phi = given.movies[log.judged].reshape(m * contexts, -1, given.movies.shape[1])
    return policy.choose_many(np.repeat(np.arange(m), contexts), phi=phi, threads=1).index.reshape(
        m, contexts
    )


def _papers(settings: Settings, given: Problem, log: Log) -> Codes:
    """Return the paper's prior, from the centres and the largest cluster."""
    what = settings.movielens
    return _by_policy(condition(log.moments, prior(what, what.open, log.clusters)), settings, given, log)


def _own_cluster(settings: Settings, given: Problem, log: Log) -> Codes:
    """Learn with the known mean and covariance of each user's own cluster."""
    found = np.empty(log.judged.shape[:2], dtype=np.int64)
    of = log.clusters.labels[log.users]
    for k in np.unique(of):
        center = Gaussian(log.clusters.means[k], np.zeros_like(log.clusters.covs[k]))
        posterior = condition(
            log.moments, Hierarchy(center, log.clusters.covs[k], settings.movielens.noise_sd**2)
        )
        found[of == k] = _by_policy(posterior, settings, given, log)[of == k]
    return found


def _groups(settings: Settings, given: Problem, log: Log) -> Codes:
    """Learn with the cluster of each user as a known group; all else is estimated, with diagonal covariances.

    They are what "auto" comes to here, after a search of the others that takes longer than all the rest.
    """
    levels = {"cluster": dict(enumerate(log.clusters.labels[log.users].tolist()))}

    def learned(shape: Any) -> Any:
        estimated = estimate_levels(log.moments, shape, levels=levels)
        return learn(log.moments, shape, estimated=estimated).posterior

    return _by_policy(simplest_that_holds(learned, SIMPLER[1:])[0], settings, given, log)


def _learned(settings: Settings, given: Problem, log: Log) -> Codes:
    """Learn with all hyper-parameters estimated."""
    found, _ = simplest_that_holds(lambda shape: learn(log.moments, shape))
    return _by_policy(found.posterior, settings, given, log)


def _flat(settings: Settings, given: Problem, log: Log) -> Codes:
    """Learn every user separately, with estimated sizes of coefficients and noise."""
    found, _ = simplest_that_holds(lambda shape: learn(log.moments, shape, uncertainty="plug-in"))
    return _by_policy(
        condition(log.moments, empirical_flat(found.hierarchy, log.moments)), settings, given, log
    )


def _pooled(settings: Settings, given: Problem, log: Log) -> Codes:
    """Learn one model for all users (complete pooling)."""
    d = log.moments.dim
    one = Hierarchy(None, np.zeros((d, d)), pooled_noise(log.moments))
    return _by_policy(condition(log.moments, one), settings, given, log)


def _ranked(score: Array, log: Log) -> Codes:
    return np.asarray(score[log.judged].argmax(axis=2), dtype=np.int64)


def _best_of_the_log(settings: Settings, given: Problem, log: Log) -> Codes:
    """Rank movies by their mean reward in the log, shrunk to the mean of all movies."""
    count = np.bincount(log.movie, minlength=len(given.movies))
    total = np.bincount(log.movie, weights=log.reward, minlength=len(given.movies))
    added = settings.beyond.added_rows
    return _ranked((total + added * log.reward.mean()) / (count + added), log)


CHOOSERS: dict[str, Chooser] = {
    "own cluster known": _own_cluster,
    "the paper's prior": _papers,
    "clusters known as groups": _groups,
    LEARNED: _learned,
    "each user alone": _flat,
    "all users as one": _pooled,
    "best movie of the log": _best_of_the_log,
    BEST_RATED: lambda _, given, log: _ranked(given.means, log),
    MOST_RATED: lambda _, given, log: _ranked(given.counts, log),
}
AS_LOGGED = "as logged"
NAMES = (*CHOOSERS, AS_LOGGED)


def one_run(settings: Settings, given: Problem, cell: Cell, run: int) -> dict[str, float]:
    """Return every figure of every policy, by ``policy: figure``."""
    log = draw(settings, given, cell, run)
    stars = np.einsum("sekd,sd->sek", given.movies[log.judged], given.users[log.users], optimize=True)
    values = {AS_LOGGED: stars.mean(axis=(1, 2))}
    for name, choose in CHOOSERS.items():
        index = choose(settings, given, log)
        values[name] = np.take_along_axis(stars, index[..., None], axis=2)[..., 0].mean(axis=1)
    best = stars.max(axis=2).mean(axis=1)
    found: dict[str, float] = {}
    for name, value in values.items():
        figures = (
            value.mean(),
            np.quantile(value, 0.1),
            (best - value).mean(),
            (value < values[MOST_RATED]).mean(),
            (value < values[BEST_RATED]).mean(),
        )
        found |= {f"{name}: {figure}": float(each) for figure, each in zip(FIGURES, figures, strict=True)}
    return found


def experiment(settings: Settings, given: Problem) -> Experiment:
    """Return the results of all runs of the experiment."""
    what = asdict(settings.movielens)
    kept = ("rank", "ridge", "iterations", "noise_sd", "clusters", "tasks", "actions", "open")
    return Experiment(
        name="beyond",
        depends={
            "seed": settings.seed,
            "ratings": given.checksum,
            **{name: what[name] for name in kept},
            "pessimism": settings.beyond.pessimism,
            "added_rows": settings.beyond.added_rows,
            "figures": [NAMES, FIGURES],
        },
        runs=dict.fromkeys([Cell(n) for n in settings.beyond.rows_grid], settings.beyond.runs),
        one_run=partial(one_run, settings, given),
        journal="beyond_runs.jsonl",
    )
