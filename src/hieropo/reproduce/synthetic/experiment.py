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
        Reading of the choices that the paper leaves open: the name of an alternative, or ``AS_SET``.
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
    config = settings.synthetic
    grid = [Cell(sd, config.tasks, n) for sd in config.hyper_sd for n in config.rows_grid]
    grid += [Cell(sd, m, config.rows) for sd in config.hyper_sd for m in config.tasks_grid]
    algorithms_by_cell = dict.fromkeys(grid, settings.algorithms)
    alternatives = config.alternatives
    compared = tuple(settings.named[name] for name in alternatives.algorithms)
    for n in alternatives.rows:
        algorithms_by_cell.setdefault(Cell(alternatives.hyper_sd, config.tasks, n), compared)
        algorithms_by_cell |= {
            Cell(alternatives.hyper_sd, config.tasks, n, name): compared for name in alternatives.of
        }
    return algorithms_by_cell


def hierarchy(config: Synthetic, hyper_sd: float) -> Hierarchy:
    """Return the hierarchy from which tasks are drawn."""
    return synthetic_hierarchy(hyper_sd, dim=config.dim, task_sd=config.task_sd, noise_sd=config.noise_sd)


def draw(config: Synthetic, cell: Cell, rng: np.random.Generator) -> World:
    """Draw mu, the tasks, a log and the contexts of the evaluation."""
    open_ = config.open if cell.reading == AS_SET else config.reading(cell.reading)
    prior, m, shape = hierarchy(config, cell.hyper_sd), cell.tasks, (config.actions, config.dim)
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
    config = settings.synthetic
    return Experiment(
        name="synthetic",
        depends={
            "seed": settings.seed,
            "algorithms": [asdict(algorithm) for algorithm in settings.algorithms],
            "problem": [config.dim, config.actions, config.noise_sd, config.task_sd],
            "open": asdict(config.open),
            "alternatives": config.alternatives.of,
        },
        runs=dict.fromkeys(cells(settings), config.runs),
        one_run=partial(one_run, settings),
    )
