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

_FACTORS, _CLUSTERS, _USERS = 1, 2, 3  # what random numbers are for, beside the runs


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
        Those of the users that all runs share, by the reading of what the paper leaves open.
    counts, means : (p,) arrays
        Number of ratings of each movie, and their mean.
    residual_sd : float
        Of the ratings around what the factors say.
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


def problem(settings: Settings, ratings: Ratings) -> Problem:
    """Return the factors of the ratings, and the clusters of users where all runs share them."""
    what = settings.movielens
    factors = factors_of(what, ratings, np.random.default_rng([settings.seed, _FACTORS]))
    rest = factors.residuals(ratings.user, ratings.movie, ratings.rating)
    readings = [what.open, *(what.reading(name) for name in what.alternatives.of)]
    clusters = {
        each: _clustered(what, each, factors.rows, np.random.default_rng([settings.seed, _CLUSTERS]))
        for each in readings
        if each.clusters_found == "once"
    }
    counts = np.bincount(ratings.movie).astype(np.float64)
    means = np.bincount(ratings.movie, weights=ratings.rating) / counts
    return Problem(
        factors.rows, factors.columns, clusters, counts, means, float(rest.std()), ratings.checksum
    )


def _clustered(what: MovieLens, open_: MovieLensOpen, users: Array, rng: np.random.Generator) -> Clusters:
    return best_of(users, what.clusters, rng, starts=open_.starts, tolerance=open_.tolerance)


def factors_of(what: MovieLens, ratings: Ratings, rng: np.random.Generator) -> Factors:
    """Return the factors of users (rows) and movies (columns)."""
    return factorize(
        ratings.user, ratings.movie, ratings.rating, rng,
        rank=what.rank, ridge=what.ridge, iterations=what.iterations,
    )  # fmt: skip


def cells(settings: Settings) -> dict[Cell, tuple[Algorithm, ...]]:
    """Return every point of every figure, with the algorithms that are compared there."""
    what, other = settings.movielens, settings.movielens.alternatives
    found = dict.fromkeys([Cell(n) for n in what.rows_grid], settings.algorithms)
    some = tuple(settings.named[name] for name in other.algorithms)
    for n in other.rows:
        found.setdefault(Cell(n), some)
        found |= {Cell(n, name): some for name in other.of}
    return found


def prior(what: MovieLens, open_: MovieLensOpen, clusters: Clusters) -> Hierarchy:
    """Return the prior: mu ~ N(mu_q, Sigma_q) of the centres, Sigma_0 of the largest cluster."""
    centres, count = clusters.means, len(clusters.means)
    share = clusters.weights if open_.centres == "by size" else np.full(count, 1.0 / count)
    mean = share @ centres
    spread = (share[:, None] * (centres - mean)).T @ (centres - mean)
    if open_.hyper_cov == "sample":
        spread = spread * count / (count - 1)
    return Hierarchy(Gaussian(mean, spread), clusters.covs[clusters.largest], what.noise_sd**2)


def draw(settings: Settings, given: Problem, cell: Cell, run: int) -> World:
    """Draw users, a log and the contexts of the evaluation."""
    what = settings.movielens
    open_ = what.open if cell.reading == AS_SET else what.reading(cell.reading)
    rng = np.random.default_rng([settings.seed, cell.rows, run])
    clusters = clusters_of(settings, given, open_, run)
    hierarchy = prior(what, open_, clusters)
    root = clusters.means[clusters.largest]
    theta = _users(settings, open_, given, clusters, rng)
    movies = np.vstack([given.movies, np.zeros((open_.unrated_movies, given.movies.shape[1]))])
    task = rng.integers(what.tasks, size=cell.rows)
    if open_.rows_of_tasks == "even":
        task = np.arange(cell.rows) % what.tasks
    moments = logged(theta, task, movies[shown(movies, (cell.rows, what.actions), rng)], what.noise_sd, rng)
    judged = movies[shown(movies, (what.tasks, open_.evaluation_contexts, what.actions), rng)]
    return World(hierarchy, root, theta, moments, judged, np.full(what.tasks, 1.0 / what.tasks))


def clusters_of(settings: Settings, given: Problem, open_: MovieLensOpen, run: int) -> Clusters:
    """Return the clusters that all runs share, or those of one run, which are the same at every n."""
    shared = given.clusters.get(open_)
    if shared is not None:
        return shared
    rng = np.random.default_rng([settings.seed, _CLUSTERS, run])
    return _clustered(settings.movielens, open_, given.users, rng)


def _users(
    settings: Settings, open_: MovieLensOpen, given: Problem, clusters: Clusters, rng: np.random.Generator
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
    return np.asarray(given.users[chosen], dtype=np.float64)


def shown(movies: Array, shape: tuple[int, ...], rng: np.random.Generator) -> Codes:
    """Draw contexts, each a uniformly drawn set of distinct movies along the last axis."""
    found = rng.integers(len(movies), size=shape)
    while True:
        ordered = np.sort(found, axis=-1)
        doubled = (ordered[..., 1:] == ordered[..., :-1]).any(axis=-1)
        if not doubled.any():
            return found
        found[doubled] = rng.integers(len(movies), size=(int(doubled.sum()), shape[-1]))


def logged(
    theta: Array, task: Codes, candidates: Array, noise_sd: float, rng: np.random.Generator
) -> Moments:
    """Return the moments of a log under uniform actions, with every task."""
    rows = np.arange(task.size)
    phi = candidates[rows, rng.integers(candidates.shape[1], size=task.size)]
    reward = rewarded(theta[task], phi, noise_sd, rng)
    return Moments.from_arrays(task, phi, reward).covering(Keys(np.arange(len(theta))))


def rewarded(theta: Array, phi: Array, noise_sd: float, rng: np.random.Generator) -> Array:
    """Draw rewards (n,) of rows with theta (n, d) and phi (n, d)."""
    found = np.einsum("nd,nd->n", phi, theta) + noise_sd * rng.standard_normal(len(phi))
    return np.asarray(found, dtype=np.float64)


def one_run(settings: Settings, given: Problem, cell: Cell, run: int) -> dict[str, float]:
    """Return mean suboptimality by algorithm in one run of a cell, and the number of refused structures."""
    return losses(draw(settings, given, cell, run), cells(settings)[cell])


def experiment(settings: Settings, given: Problem) -> Experiment:
    """Return the results of all runs of the experiment."""
    what = settings.movielens
    kept = {
        name: value for name, value in asdict(what).items() if name not in ("runs", "few_runs", "rows_grid")
    }
    return Experiment(
        name="movielens",
        depends={
            "seed": settings.seed,
            "algorithms": [asdict(each) for each in settings.algorithms],
            "ratings": given.checksum,
            **{name: value for name, value in kept.items() if name != "alternatives"},
            "alternatives": what.alternatives.of,
        },
        runs={
            cell: what.runs if cell.reading == AS_SET else min(what.runs, what.alternatives.runs)
            for cell in cells(settings)
        },
        one_run=partial(one_run, settings, given),
    )
