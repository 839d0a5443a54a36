"""The prior of the paper's experiment on MovieLens beside the one that HierOPO learns from the logged rows alone."""

from dataclasses import asdict
from functools import partial

import numpy as np

from hieropo.estimation.hyper.uncertainty import learn
from hieropo.model.posterior import condition
from hieropo.reproduce.experiment import Experiment
from hieropo.reproduce.judging import with_first_accepted
from hieropo.reproduce.movielens.experiment import Cell, Problem, draw
from hieropo.reproduce.settings import Settings

GIVEN_MEAN, LEARNED_MEAN = "error of the mean, given prior", "error of the mean, learned prior"
SD, NOISE = "sd between users, learned / given", "noise sd, learned / given"
FIGURES = (GIVEN_MEAN, LEARNED_MEAN, SD, NOISE)


def one_run(settings: Settings, problem: Problem, cell: Cell, run: int) -> dict[str, float]:
    """Return the figures of one log.

    Errors of the posterior mean of mu, given the log, are distances from the mean of the largest cluster in units of
    the root of the trace of its covariance.
    """
    world = draw(settings, problem, cell, run)
    given = world.prior
    learned, _ = with_first_accepted(lambda shape: learn(world.moments, shape))
    size = float(np.sqrt(np.trace(given.task_cov)))
    means = condition(world.moments, given).hyper.mean, learned.posterior.hyper.mean
    errors = [float(np.linalg.norm(mean - world.root)) / size for mean in means]
    sd = float(np.sqrt(np.trace(learned.hierarchy.task_cov))) / size
    noise = float(np.sqrt(learned.hierarchy.noise_var / given.noise_var))
    return dict(zip(FIGURES, (*errors, sd, noise), strict=True))


def experiment(settings: Settings, problem: Problem) -> Experiment:
    """Return the results of the first few runs at every other n of the paper's experiment."""
    config = settings.movielens
    fixed = {
        name: value for name, value in asdict(config).items()
        if name not in ("runs", "few_runs", "rows_grid", "alternatives")
    }  # fmt: skip
    return Experiment(
        name="prior",
        depends={"seed": settings.seed, "ratings": problem.checksum, **fixed, "figures": list(FIGURES)},
        runs=dict.fromkeys([Cell(n) for n in config.rows_grid[::2]], min(config.few_runs, config.runs)),
        one_run=partial(one_run, settings, problem),
        journal="prior_runs.jsonl",
    )
