"""The paper's synthetic problems, one run at a time."""

from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo.model.hierarchy import Hierarchy
from hieropo.moments.statistics import Moments
from hieropo.reproduce import experiment as experiments
from hieropo.reproduce.experiment import Experiment
from hieropo.reproduce.judging import World, losses
from hieropo.reproduce.settings import Algorithm, Open, Settings, Synthetic
from hieropo.reproduce.synthetic.simulation import (
    draw_log,
    draw_tasks,
    synthetic_features,
    synthetic_hierarchy,
)

AS_SET = "as set"


@dataclass(frozen=True, slots=True)
class Cell(experiments.Cell):
    """One point of a figure.

    Parameters
    ----------
    hyper_sd : float
        sigma_q.
    tasks, rows : int
        m, and n of all tasks together.
    reading : str
        Which of the readings of what the paper leaves open: its name among the alternatives, or ``AS_SET``.
    """

    hyper_sd: float
    tasks: int
    rows: int
    reading: str = AS_SET

    @property
    def key(self) -> tuple[int, ...]:
        """Return the numbers that, with seed and run, seed the random draws; equal in all readings."""
        return (self.tasks, self.rows, round(1000 * self.hyper_sd))

    @property
    def text(self) -> str:
        """Return all of its fields as a key of the journal."""
        return f"hyper_sd {self.hyper_sd:g}, tasks {self.tasks}, rows {self.rows}, {self.reading}"


def cells(settings: Settings) -> dict[Cell, tuple[Algorithm, ...]]:
    """Return every point of every figure, with the algorithms that are compared there."""
    what = settings.synthetic
    grid = [Cell(sd, what.tasks, n) for sd in what.hyper_sd for n in what.rows_grid]
    grid += [Cell(sd, m, what.rows) for sd in what.hyper_sd for m in what.tasks_grid]
    found = dict.fromkeys(grid, settings.algorithms)
    other = what.alternatives
    some = tuple(settings.named[name] for name in other.algorithms)
    for n in other.rows:
        found.setdefault(Cell(other.hyper_sd, what.tasks, n), some)
        found |= {Cell(other.hyper_sd, what.tasks, n, name): some for name in other.of}
    return found


def hierarchy(what: Synthetic, hyper_sd: float) -> Hierarchy:
    """Return the hierarchy from which tasks are drawn."""
    return synthetic_hierarchy(hyper_sd, dim=what.dim, task_sd=what.task_sd, noise_sd=what.noise_sd)


def draw(what: Synthetic, cell: Cell, rng: np.random.Generator) -> World:
    """Draw mu, the tasks, a log and the contexts of the evaluation."""
    open_ = what.open if cell.reading == AS_SET else what.reading(cell.reading)
    prior, m, shape = hierarchy(what, cell.hyper_sd), cell.tasks, (what.actions, what.dim)
    truth = draw_tasks(prior, np.arange(m), rng)
    task = rng.integers(m, size=cell.rows) if open_.rows_of_tasks == "drawn" else np.arange(cell.rows) % m
    if open_.contexts:
        pool = synthetic_features((open_.contexts, *shape), rng)
        candidates = pool[rng.integers(open_.contexts, size=cell.rows)]
    else:
        pool = np.empty((0, *shape))
        candidates = synthetic_features((cell.rows, *shape), rng)
    log = draw_log(truth, task, candidates, rng)
    moments = Moments.from_arrays(log.task, log.phi, log.reward).covering(truth.keys)
    judged = _judged(open_, m, pool, shape, rng)
    return World(prior, truth.root, truth.theta, moments, judged, _weights(open_, task, m))


def _judged(open_: Open, m: int, pool: Array, shape: tuple[int, int], rng: np.random.Generator) -> Array:
    """Return the candidates in the contexts of the evaluation, (m, E, K, d)."""
    if open_.evaluated_on == "own":
        return synthetic_features((m, open_.evaluation_contexts, *shape), rng)
    common = (
        pool
        if open_.evaluated_on == "logged"
        else synthetic_features((open_.evaluation_contexts, *shape), rng)
    )
    return np.broadcast_to(common, (m, *common.shape))


def _weights(open_: Open, task: Codes, m: int) -> Array:
    if open_.averaged_over == "tasks":
        return np.full(m, 1.0 / m)
    return np.bincount(task, minlength=m) / task.size


def one_run(settings: Settings, cell: Cell, run: int) -> dict[str, float]:
    """Return mean suboptimality by algorithm in one run of a cell, and the number of refused structures."""
    rng = np.random.default_rng([settings.seed, *cell.key, run])
    return losses(draw(settings.synthetic, cell, rng), cells(settings)[cell])


def experiment(settings: Settings) -> Experiment:
    """Return the results of all runs of the experiment."""
    what = settings.synthetic
    return Experiment(
        name="synthetic",
        depends={
            "seed": settings.seed,
            "algorithms": [asdict(each) for each in settings.algorithms],
            "problem": [what.dim, what.actions, what.noise_sd, what.task_sd],
            "open": asdict(what.open),
            "alternatives": what.alternatives.of,
        },
        runs=dict.fromkeys(cells(settings), what.runs),
        one_run=partial(one_run, settings),
    )
