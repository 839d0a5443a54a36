"""The paper's synthetic problems (arXiv 2212.04720), through the public interface.

The reference values are means over 300 runs of an implementation of their own, which shares no code with
this one. Each run draws mu, theta_s and one log that all three algorithms see.
"""

import numpy as np
import pytest

from hieropo.model.hierarchy import Hierarchy
from hieropo.model.posterior import condition
from hieropo.moments.statistics import Moments
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.reproduce.synthetic.simulation import (
    SimulatedLog,
    TrueTasks,
    suboptimality,
    synthetic_features,
    synthetic_hierarchy,
    synthetic_run,
)

RUNS, REFERENCE_RUNS, CONTEXTS, ACTIONS, PESSIMISM = 150, 300, 100, 5, 0.1

# sigma_q, tasks, rows, mean suboptimality of OracleOPO, HierOPO, FlatOPO
SETTINGS = [
    (0.5, 10, 500, (0.0235, 0.0242, 0.0263)),
    (1.0, 10, 50, (0.0545, 0.0737, 0.2205)),
    (1.0, 100, 500, (0.0552, 0.0572, 0.2211)),
]


def losses(prior: Hierarchy, truth: TrueTasks, log: SimulatedLog, rng: np.random.Generator) -> list[float]:
    """Mean suboptimality over tasks and evaluation contexts of the three algorithms."""
    moments = Moments.from_arrays(log.task, log.phi, log.reward)
    candidates = synthetic_features((len(truth.tasks), CONTEXTS, ACTIONS, prior.dim), rng)
    requests = np.repeat(truth.tasks, CONTEXTS)
    found = []
    for hierarchy in (prior.oracle(truth.root), prior, prior.flat()):
        policy = LCBPolicy(condition(moments, hierarchy), pessimism=PESSIMISM)
        choices = policy.choose_many(requests, phi=candidates.reshape(-1, ACTIONS, prior.dim))
        index = choices.index[:, 0].reshape(len(truth.tasks), CONTEXTS)
        found.append(float(suboptimality(truth.theta, candidates, index).mean()))
    return found


def assert_as_the_reference(
    hyper_sd: float, n_tasks: int, n_rows: int, reference: tuple[float, ...], n_runs: int
) -> None:
    prior = synthetic_hierarchy(hyper_sd)
    runs = []
    for seed in range(n_runs):
        rng = np.random.default_rng([20221208, n_tasks, n_rows, seed])
        truth, log = synthetic_run(prior, n_tasks, n_rows, rng, n_actions=ACTIONS)
        runs.append(losses(prior, truth, log, rng))
    loss = np.array(runs)
    error = loss.std(axis=0, ddof=1) * np.sqrt(1 / n_runs + 1 / REFERENCE_RUNS)
    assert (np.abs(loss.mean(axis=0) - reference) <= 3 * error).all()
    # What the paper's figures show. The runs are paired, so that differences are sharp.
    for better, worse in [(0, 1), (1, 2)]:
        gap = loss[:, worse] - loss[:, better]
        assert gap.mean() > 3 * gap.std(ddof=1) / np.sqrt(n_runs)


def test_few_runs_of_the_smallest_problem_agree_with_the_reference() -> None:
    assert_as_the_reference(*SETTINGS[1], n_runs=25)


@pytest.mark.slow
@pytest.mark.parametrize(("hyper_sd", "n_tasks", "n_rows", "reference"), SETTINGS)
def test_mean_suboptimality_is_the_references(
    hyper_sd: float, n_tasks: int, n_rows: int, reference: tuple[float, ...]
) -> None:
    assert_as_the_reference(hyper_sd, n_tasks, n_rows, reference, RUNS)
