"""The paper's experiment on MovieLens, one run at a time."""

from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo.errors import InputError
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy
from hieropo.moments.statistics import Moments
from hieropo.reproduce import experiment as experiments
from hieropo.reproduce.experiment import Experiment
from hieropo.reproduce.judging import World, losses
from hieropo.reproduce.movielens.als import Factors, factorize
from hieropo.reproduce.movielens.clusters import Clusters, best_of
from hieropo.reproduce.movielens.ratings import Ratings
from hieropo.reproduce.settings import Algorithm, MovieLens, MovieLensOpen, Settings
from hieropo.reproduce.synthetic.experiment import AS_SET
from hieropo.rows.keys import Keys

_FACTORS, _CLUSTERS, _USERS = 1, 2, 3  # in seeds: the use of the random numbers, beside the runs


@dataclass(frozen=True, slots=True)
class Cell(experiments.Cell):
    """One point of a figure: the number of rows n of all tasks, and a reading of what the paper leaves open."""

    rows: int
    reading: str = AS_SET

    @property
    def text(self) -> str:
        """Return all of its fields as a key of the journal."""
        return f"rows {self.rows}, {self.reading}"


@dataclass(frozen=True, eq=False)
class Problem:
    """The factors and clusters of the ratings, which all runs share.

    Parameters
    ----------
    users : (m, k) array
        Factors.
    movies : (p, k) array
    clusters : dict
        Clusters of users that all runs share, by the reading of the choices that the paper leaves open.
    counts, means : (p,) arrays
        Number of ratings of each movie, and their mean.
    residual_sd : float
        Of the ratings around the products of factors.
    checksum : str
        Of the ratings.
    """

    users: Array
    movies: Array
    clusters: dict[MovieLensOpen, Clusters]
    counts: Array
    means: Array
    residual_sd: float
    checksum: str


def make_problem(settings: Settings, ratings: Ratings) -> Problem:
    """Return the factors of the ratings, and the clusters of users where all runs share them."""
    config = settings.movielens
    factors = factors_of(config, ratings, np.random.default_rng([settings.seed, _FACTORS]))
    residuals = factors.residuals(ratings.user, ratings.movie, ratings.rating)
    readings = [config.open, *(config.reading(name) for name in config.alternatives.of)]
    clusters = {
        reading: _clustered(config, reading, factors.rows, np.random.default_rng([settings.seed, _CLUSTERS]))
        for reading in readings
        if reading.clusters_found == "once"
    }
    counts = np.bincount(ratings.movie).astype(np.float64)
    means = np.bincount(ratings.movie, weights=ratings.rating) / counts
    return Problem(
        factors.rows, factors.columns, clusters, counts, means, float(residuals.std()), ratings.checksum
    )


def _clustered(config: MovieLens, open_: MovieLensOpen, users: Array, rng: np.random.Generator) -> Clusters:
    return best_of(users, config.clusters, rng, starts=open_.starts, tolerance=open_.tolerance)


def factors_of(config: MovieLens, ratings: Ratings, rng: np.random.Generator) -> Factors:
    """Return the factors of users (rows) and movies (columns)."""
    return factorize(
        ratings.user, ratings.movie, ratings.rating, rng,
        rank=config.rank, ridge=config.ridge, iterations=config.iterations,
    )  # fmt: skip


def cells(settings: Settings) -> dict[Cell, tuple[Algorithm, ...]]:
    """Return every point of every figure, with the algorithms that are compared there."""
    config, alternatives = settings.movielens, settings.movielens.alternatives
    algorithms_by_cell = dict.fromkeys([Cell(n) for n in config.rows_grid], settings.algorithms)
    compared = tuple(settings.named[name] for name in alternatives.algorithms)
    for n in alternatives.rows:
        algorithms_by_cell.setdefault(Cell(n), compared)
        algorithms_by_cell |= {Cell(n, name): compared for name in alternatives.of}
    return algorithms_by_cell


def prior(config: MovieLens, open_: MovieLensOpen, clusters: Clusters) -> Hierarchy:
    """Return the prior: mu ~ N(mu_q, Sigma_q) of the centres, Sigma_0 of the largest cluster."""
    centres, count = clusters.means, len(clusters.means)
    share = clusters.weights if open_.centres == "by size" else np.full(count, 1.0 / count)
    mean = share @ centres
    cov = (share[:, None] * (centres - mean)).T @ (centres - mean)
    if open_.hyper_cov == "sample":
        cov = cov * count / (count - 1)
    return Hierarchy(Gaussian(mean, cov), clusters.covs[clusters.largest], config.noise_sd**2)


@dataclass(frozen=True, eq=False)
class Rows:
    """The random draws of a run.

    Parameters
    ----------
    clusters : Clusters
    theta : (m, d) array
        Parameters of the tasks 0 .. m-1.
    movies : (p, d) array
        Their features phi.
    task, action : (n,) int arrays
        Of each row; the action is the position among the row's movies.
    candidates : (n, K) int array
        The movies that could be taken in each row.
    reward : (n,) array
    judged : (m, E, K) int array
        The movies of each context of the evaluation.
    """

    clusters: Clusters
    theta: Array
    movies: Array
    task: Codes
    candidates: Codes
    action: Codes
    reward: Array
    judged: Codes

    @property
    def movie(self) -> Codes:
        """Return the movie that was taken in each row."""
        return self.candidates[np.arange(self.task.size), self.action]


def draw(settings: Settings, problem: Problem, cell: Cell, run: int) -> World:
    """Draw users, a log and the contexts of the evaluation."""
    rows, open_ = draw_rows(settings, problem, cell, run), _open(settings, cell)
    hierarchy = prior(settings.movielens, open_, rows.clusters)
    moments = Moments.from_arrays(rows.task, rows.movies[rows.movie], rows.reward)
    return World(
        hierarchy,
        rows.clusters.means[rows.clusters.largest],
        rows.theta,
        moments.covering(Keys(np.arange(len(rows.theta)))),
        rows.movies[rows.judged],
        np.full(len(rows.theta), 1.0 / len(rows.theta)),
    )


def draw_rows(settings: Settings, problem: Problem, cell: Cell, run: int) -> Rows:
    """Draw users, the rows of a log under uniform actions, and the contexts of the evaluation."""
    config, open_ = settings.movielens, _open(settings, cell)
    rng = np.random.default_rng([settings.seed, cell.rows, run])
    clusters = clusters_of(settings, problem, open_, run)
    theta = _users(settings, open_, problem, clusters, rng)
    movies = np.vstack([problem.movies, np.zeros((open_.unrated_movies, problem.movies.shape[1]))])
    task = rng.integers(config.tasks, size=cell.rows)
    if open_.rows_of_tasks == "even":
        task = np.arange(cell.rows) % config.tasks
    candidates = draw_contexts(movies, (cell.rows, config.actions), rng)
    action = rng.integers(config.actions, size=cell.rows)
    phi = movies[candidates[np.arange(cell.rows), action]]
    reward = draw_rewards(theta[task], phi, config.noise_sd, rng)
    judged = draw_contexts(movies, (config.tasks, open_.evaluation_contexts, config.actions), rng)
    return Rows(clusters, theta, movies, task, candidates, action, reward, judged)


def _open(settings: Settings, cell: Cell) -> MovieLensOpen:
    """Return the reading of a cell of the choices that the paper leaves open."""
    config = settings.movielens
    return config.open if cell.reading == AS_SET else config.reading(cell.reading)


def clusters_of(settings: Settings, problem: Problem, open_: MovieLensOpen, run: int) -> Clusters:
    """Return the clusters that all runs share, or those of one run, which are the same at every n."""
    shared = problem.clusters.get(open_)
    if shared is not None:
        return shared
    rng = np.random.default_rng([settings.seed, _CLUSTERS, run])
    return _clustered(settings.movielens, open_, problem.users, rng)


def _users(
    settings: Settings, open_: MovieLensOpen, problem: Problem, clusters: Clusters, rng: np.random.Generator
) -> Array:
    """Return the parameters of the tasks."""
    m, k = settings.movielens.tasks, clusters.largest
    if open_.users_drawn == "once":
        rng = np.random.default_rng([settings.seed, _USERS])
    if open_.truth == "drawn":
        return Gaussian(clusters.means[k], clusters.covs[k]).sample(rng, m)
    members = np.flatnonzero(clusters.labels == k)
    if members.size < m:
        raise InputError(
            f"The largest cluster has {members.size} users; movielens.tasks asks for {m} of them."
        )
    chosen = rng.choice(members, m, replace=False)
    return np.asarray(problem.users[chosen], dtype=np.float64)


def draw_contexts(movies: Array, shape: tuple[int, ...], rng: np.random.Generator) -> Codes:
    """Draw contexts, each a uniformly drawn set of distinct movies along the last axis."""
    drawn = rng.integers(len(movies), size=shape)
    while True:
        ordered = np.sort(drawn, axis=-1)
        repeated = (ordered[..., 1:] == ordered[..., :-1]).any(axis=-1)
        if not repeated.any():
            return drawn
        drawn[repeated] = rng.integers(len(movies), size=(int(repeated.sum()), shape[-1]))


def draw_rewards(theta: Array, phi: Array, noise_sd: float, rng: np.random.Generator) -> Array:
    """Draw rewards (n,) of rows with theta (n, d) and phi (n, d)."""
    rewards = np.einsum("nd,nd->n", phi, theta) + noise_sd * rng.standard_normal(len(phi))
    return np.asarray(rewards, dtype=np.float64)


def one_run(settings: Settings, problem: Problem, cell: Cell, run: int) -> dict[str, float]:
    """Return mean suboptimality by algorithm in one run of a cell, and the number of refused structures."""
    return losses(draw(settings, problem, cell, run), cells(settings)[cell])


def experiment(settings: Settings, problem: Problem) -> Experiment:
    """Return the results of all runs of the experiment."""
    config = settings.movielens
    fixed = {
        name: value for name, value in asdict(config).items() if name not in ("runs", "few_runs", "rows_grid")
    }
    return Experiment(
        name="movielens",
        depends={
            "seed": settings.seed,
            "algorithms": [asdict(algorithm) for algorithm in settings.algorithms],
            "ratings": problem.checksum,
            **{name: value for name, value in fixed.items() if name != "alternatives"},
            "alternatives": config.alternatives.of,
        },
        runs={
            cell: config.runs if cell.reading == AS_SET else min(config.runs, config.alternatives.runs)
            for cell in cells(settings)
        },
        one_run=partial(one_run, settings, problem),
    )
