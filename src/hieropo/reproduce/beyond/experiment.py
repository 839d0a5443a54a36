"""MovieLens from bandit feedback alone: only the factors of the movies are known, not the rating matrix.

Users come from all clusters. Policies that are learned from the log are compared with priors that use the rating matrix
and with rankings of movies that are the same for all users.
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
from hieropo.reproduce.judging import SIMPLER, with_first_accepted
from hieropo.reproduce.movielens.clusters import Clusters
from hieropo.reproduce.movielens.experiment import Problem, clusters_of, draw_contexts, draw_rewards, prior
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


def draw(settings: Settings, problem: Problem, cell: Cell, run: int) -> Log:
    """Draw users, a log under uniform actions, and contexts."""
    config = settings.movielens
    m = config.tasks
    # the 1 makes the numbers independent of those of the paper's experiment
    rng = np.random.default_rng([settings.seed, cell.rows, run, 1])
    users = rng.choice(len(problem.users), m, replace=False)
    task = rng.integers(m, size=cell.rows)
    movie = draw_contexts(problem.movies, (cell.rows, config.actions), rng)
    movie = movie[np.arange(cell.rows), rng.integers(config.actions, size=cell.rows)]
    reward = draw_rewards(problem.users[users[task]], problem.movies[movie], config.noise_sd, rng)
    moments = Moments.from_arrays(task, problem.movies[movie], reward).covering(Keys(np.arange(m)))
    judged = draw_contexts(problem.movies, (m, config.open.evaluation_contexts, config.actions), rng)
    return Log(users, movie, reward, moments, judged, clusters_of(settings, problem, config.open, run))


Chooser = Callable[[Settings, Problem, Log], Codes]


def _by_policy(posterior: Any, settings: Settings, problem: Problem, log: Log) -> Codes:
    """Return the actions of the lower-bound policy of a posterior, (m, E)."""
    m, contexts, _ = log.judged.shape
    policy = LCBPolicy(posterior, pessimism=settings.beyond.pessimism)
    phi = problem.movies[log.judged].reshape(m * contexts, -1, problem.movies.shape[1])
    return policy.choose_many(np.repeat(np.arange(m), contexts), phi=phi, threads=1).index.reshape(
        m, contexts
    )


def _papers(settings: Settings, problem: Problem, log: Log) -> Codes:
    """Return the paper's prior, from the centres and the largest cluster."""
    config = settings.movielens
    return _by_policy(
        condition(log.moments, prior(config, config.open, log.clusters)), settings, problem, log
    )


def _own_cluster(settings: Settings, problem: Problem, log: Log) -> Codes:
    """Learn with the known mean and covariance of each user's own cluster."""
    index = np.empty(log.judged.shape[:2], dtype=np.int64)
    labels = log.clusters.labels[log.users]
    for k in np.unique(labels):
        center = Gaussian(log.clusters.means[k], np.zeros_like(log.clusters.covs[k]))
        posterior = condition(
            log.moments, Hierarchy(center, log.clusters.covs[k], settings.movielens.noise_sd**2)
        )
        index[labels == k] = _by_policy(posterior, settings, problem, log)[labels == k]
    return index


def _groups(settings: Settings, problem: Problem, log: Log) -> Codes:
    """Learn with the cluster of each user as a known group; all else is estimated, with diagonal covariances.

    "auto" chooses them here, too, after a search that takes longer than all the rest.
    """
    levels = {"cluster": dict(enumerate(log.clusters.labels[log.users].tolist()))}

    def learned(shape: Any) -> Any:
        estimated = estimate_levels(log.moments, shape, levels=levels)
        return learn(log.moments, shape, estimated=estimated).posterior

    return _by_policy(with_first_accepted(learned, SIMPLER[1:])[0], settings, problem, log)


def _learned(settings: Settings, problem: Problem, log: Log) -> Codes:
    """Learn with all hyper-parameters estimated."""
    learned, _ = with_first_accepted(lambda shape: learn(log.moments, shape))
    return _by_policy(learned.posterior, settings, problem, log)


def _flat(settings: Settings, problem: Problem, log: Log) -> Codes:
    """Learn every user separately, with estimated sizes of coefficients and noise."""
    learned, _ = with_first_accepted(lambda shape: learn(log.moments, shape, uncertainty="plug-in"))
    return _by_policy(
        condition(log.moments, empirical_flat(learned.hierarchy, log.moments)), settings, problem, log
    )


def _pooled(settings: Settings, problem: Problem, log: Log) -> Codes:
    """Learn one model for all users (complete pooling)."""
    d = log.moments.dim
    hierarchy = Hierarchy(None, np.zeros((d, d)), pooled_noise(log.moments))
    return _by_policy(condition(log.moments, hierarchy), settings, problem, log)


def _ranked(score: Array, log: Log) -> Codes:
    return np.asarray(score[log.judged].argmax(axis=2), dtype=np.int64)


def _best_of_the_log(settings: Settings, problem: Problem, log: Log) -> Codes:
    """Rank movies by their mean reward in the log, shrunk to the mean of all movies."""
    count = np.bincount(log.movie, minlength=len(problem.movies))
    total = np.bincount(log.movie, weights=log.reward, minlength=len(problem.movies))
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
    BEST_RATED: lambda _, problem, log: _ranked(problem.means, log),
    MOST_RATED: lambda _, problem, log: _ranked(problem.counts, log),
}
AS_LOGGED = "as logged"
NAMES = (*CHOOSERS, AS_LOGGED)


def one_run(settings: Settings, problem: Problem, cell: Cell, run: int) -> dict[str, float]:
    """Return every figure of every policy, by ``policy: figure``."""
    log = draw(settings, problem, cell, run)
    stars = np.einsum("sekd,sd->sek", problem.movies[log.judged], problem.users[log.users], optimize=True)
    values = {AS_LOGGED: stars.mean(axis=(1, 2))}
    for name, choose in CHOOSERS.items():
        index = choose(settings, problem, log)
        values[name] = np.take_along_axis(stars, index[..., None], axis=2)[..., 0].mean(axis=1)
    best = stars.max(axis=2).mean(axis=1)
    results: dict[str, float] = {}
    for name, value in values.items():
        figures = (
            value.mean(),
            np.quantile(value, 0.1),
            (best - value).mean(),
            (value < values[MOST_RATED]).mean(),
            (value < values[BEST_RATED]).mean(),
        )
        results |= {
            f"{name}: {figure}": float(number) for figure, number in zip(FIGURES, figures, strict=True)
        }
    return results


def experiment(settings: Settings, problem: Problem) -> Experiment:
    """Return the results of all runs of the experiment."""
    config = asdict(settings.movielens)
    names = ("rank", "ridge", "iterations", "noise_sd", "clusters", "tasks", "actions", "open")
    return Experiment(
        name="beyond",
        depends={
            "seed": settings.seed,
            "ratings": problem.checksum,
            **{name: config[name] for name in names},
            "pessimism": settings.beyond.pessimism,
            "added_rows": settings.beyond.added_rows,
            "figures": [NAMES, FIGURES],
        },
        runs=dict.fromkeys([Cell(n) for n in settings.beyond.rows_grid], settings.beyond.runs),
        one_run=partial(one_run, settings, problem),
        journal="beyond_runs.jsonl",
    )
