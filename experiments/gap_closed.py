"""Gap closed: how much of the way from separate policies to the oracle a hierarchy goes that is learned from the log.

    python experiments/gap_closed.py                 # writes docs/results/gap_closed.md; about four minutes
    python experiments/gap_closed.py --runs 20 --out /tmp/gap.md

The synthetic problem of arXiv 2212.04720: d = 4 features, K = 5 actions, phi(x, a) uniform on [-1/2, 1/2]^4, theta_s
~ N(mu, sigma_0^2 I), mu ~ N(0, sigma_q^2 I), sigma_0 = sigma = 1/2, actions logged uniformly, alpha = 0.1. In each run
all learners see one log, and are judged by the true suboptimality in 100 fresh contexts of every task. With the mean
losses of FlatOPO and OracleOPO, which both know every variance (and the oracle mu too),

    gap closed = (Flat - learner) / (Flat - Oracle).

Its standard error over runs is that of the mean of ``(Flat - learner) - gap (Flat - Oracle)``, divided by the mean of
``Flat - Oracle`` (delta method for a ratio of paired means). The share says little where Flat and Oracle hardly differ,
as with few tasks of many rows. A seed gives the same figures with any number of processes.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from fitting import fit
from numpy.typing import NDArray
from repeating import workers
from tables import figure, provenance, table, write

from hieropo import FlatOPO, Hierarchy, HierOPO, OracleOPO, PooledOPO
from hieropo.reproduce.synthetic.simulation import (
    SimulatedLog,
    TrueTasks,
    suboptimality,
    synthetic_features,
    synthetic_hierarchy,
    synthetic_run,
)

Array = NDArray[np.float64]

SEED, RUNS, SIDE_RUNS = 20221208, 300, 100
DIM, ACTIONS, CONTEXTS = 4, 5, 100
NAMES = tuple(f"x{j}" for j in range(DIM))
OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "gap_closed.md"
FIRST = 3  # runs whose figures are written down one by one, for the tests


@dataclass(frozen=True)
class Setting:
    """Tasks m, rows n of the whole log, and the standard deviation sigma_q of each coefficient of mu."""

    tasks: int
    rows: int
    hyper_sd: float

    @property
    def prior(self) -> Hierarchy:
        """The hierarchy that tasks are drawn from."""
        return synthetic_hierarchy(self.hyper_sd, dim=DIM)


@dataclass(frozen=True)
class Run:
    """Mean suboptimality by learner, the shape of Sigma_0 that the default chose, whether it warned, fits refused."""

    loss: dict[str, float]
    shape: str
    warned: bool
    refused: tuple[str, ...]


GOAL = Setting(100, 500, 0.5)
SIDES = (
    *(Setting(m, 500, 0.5) for m in (10, 20, 50, 200)),
    *(Setting(100, n, 0.5) for n in (50, 100, 200, 1000)),
    *(Setting(10, n, 0.5) for n in (50, 1000)),
    *(Setting(m, n, 1.0) for m, n in ((10, 50), (10, 500), (100, 500))),
)

FLAT, ORACLE, DEFAULT = "FlatOPO, all known", "OracleOPO, all known", "HierOPO, default"
KNOWN = "HierOPO, all known"
Learners = dict[str, Callable[[TrueTasks, Hierarchy], HierOPO]]

LEARNERS: Learners = {
    ORACLE: lambda truth, prior: OracleOPO(truth.root, known=prior),
    KNOWN: lambda _, prior: HierOPO(known=prior),
    FLAT: lambda _, prior: FlatOPO(known=prior),
    DEFAULT: lambda _, __: HierOPO(),
    "HierOPO, isotropic": lambda _, __: HierOPO(task_cov="isotropic"),
    "HierOPO, diag": lambda _, __: HierOPO(task_cov="diag"),
    "HierOPO, full": lambda _, __: HierOPO(task_cov="full"),
    "PooledOPO": lambda _, __: PooledOPO(),
    "FlatOPO, learned": lambda _, __: FlatOPO(),
}


def table_of(log: SimulatedLog) -> pa.Table:
    """The log as a user would have it: no list of actions, the columns describe the action taken."""
    columns = {name: log.phi[:, j] for j, name in enumerate(NAMES)}
    return pa.table({"task": log.task, "reward": log.reward, **columns})


def parts(learned: Hierarchy, prior: Hierarchy) -> dict[str, Hierarchy]:
    """Hierarchies in which some part is true and the others are what the log taught."""
    return {
        "mu, with a flat hyper-prior": Hierarchy(None, prior.task_cov, prior.noise_var),
        "mu and sigma": Hierarchy(None, prior.task_cov, learned.noise_var),
        "mu and Sigma_0": Hierarchy(None, learned.task_cov, prior.noise_var),
    }


def one_run(setting: Setting, seed: int, *, split: bool = False) -> Run:
    """Draw tasks and a log, fit every learner to it and judge it by the truth.

    Parameters
    ----------
    setting : Setting
    seed : int
        Number of the run.
    split : bool
        Also judge HierOPO with a part of the hierarchy known.
    """
    rng = np.random.default_rng([SEED, setting.tasks, setting.rows, round(100 * setting.hyper_sd), seed])
    prior = setting.prior
    truth, log = synthetic_run(prior, setting.tasks, setting.rows, rng, n_actions=ACTIONS)
    candidates = synthetic_features((setting.tasks, CONTEXTS, ACTIONS, DIM), rng)

    def loss(learner: HierOPO) -> float:
        requests = np.repeat(truth.tasks, CONTEXTS)
        phi = candidates.reshape(-1, ACTIONS, DIM)
        index = learner.policy_.choose_many(requests, phi=phi, threads=1).index
        return float(suboptimality(truth.theta, candidates, index.reshape(setting.tasks, CONTEXTS)).mean())

    rows = table_of(log)
    roles = {"task": "task", "reward": "reward", "context": NAMES}
    fits = {name: fit(make(truth, prior), rows, **roles) for name, make in LEARNERS.items()}
    default = fits[DEFAULT].learner
    if split:
        known = parts(default.hierarchy_, prior)
        fits.update({name: fit(HierOPO(known=each), rows, **roles) for name, each in known.items()})
    return Run(
        {name: loss(each.learner) for name, each in fits.items()},
        str(default.estimate_.chosen.shape),
        fits[DEFAULT].warned,
        tuple(name for name, each in fits.items() if each.refused),
    )


def gap_closed(flat: Array, learner: Array, oracle: Array) -> tuple[float, float]:
    """Share of the way from ``flat`` to ``oracle``, from paired losses (R,), and its standard error.

    The error is not a number for a single run.
    """
    way = float((flat - oracle).mean())
    share = float((flat - learner).mean()) / way
    rest = (flat - learner) - share * (flat - oracle)
    error = float(rest.std(ddof=1)) / np.sqrt(rest.size) if rest.size > 1 else np.nan
    return share, float(error / abs(way))


def losses(runs: Iterable[Run]) -> dict[str, Array]:
    """Losses (R,) by learner."""
    found = list(runs)
    return {name: np.array([run.loss[name] for run in found]) for name in found[0].loss}


def _gap(loss: dict[str, Array], name: str) -> str:
    return figure(*gap_closed(loss[FLAT], loss[name], loss[ORACLE]))


def _mean(values: Array) -> str:
    return figure(float(values.mean()), float(values.std(ddof=1) / np.sqrt(values.size)), 4)


def goal_table(runs: list[Run]) -> str:
    """All learners in the setting of the goal."""
    loss = losses(runs)
    names = list(LEARNERS)
    rows = [[name, _mean(loss[name]), _gap(loss, name)] for name in names]
    return table(["learner", "mean suboptimality", "gap closed"], rows)


def cost_table(runs: list[Run]) -> str:
    """Table of the cost of learning each part."""
    loss = losses(runs)
    rows = [
        ["mu, with its true hyper-prior", KNOWN],
        *([name, name] for name in loss if name not in LEARNERS),
        ["mu, sigma and Sigma_0 = c I", "HierOPO, isotropic"],
        ["mu, sigma and a diagonal Sigma_0", "HierOPO, diag"],
        ["mu, sigma and any Sigma_0", "HierOPO, full"],
        ["mu, sigma, Sigma_0 and its shape (the default)", DEFAULT],
    ]
    return table(["learned from the log", "gap closed"], ([label, _gap(loss, name)] for label, name in rows))


def side_table(runs: dict[Setting, list[Run]]) -> str:
    """The gap closed in every setting."""
    names = [name for name in LEARNERS if name not in (FLAT, ORACLE)]
    rows = []
    for setting, found in runs.items():
        loss = losses(found)
        shapes = Counter(run.shape for run in found)
        refused = Counter(name for run in found for name in run.refused)
        rows.append([
            f"{setting.tasks}, {setting.rows}, {setting.hyper_sd}",
            str(len(found)),
            *(_gap(loss, name) for name in names),
            ", ".join(f"{shape} {count}" for shape, count in shapes.most_common()),
            str(sum(run.warned for run in found)),
            "; ".join(f"{name}: {count}" for name, count in refused.most_common()),
        ])  # fmt: skip
    return table(["m, n, sigma_q", "runs", *names, "shape by default", "runs warned", "fits refused"], rows)


def first_table(runs: list[Run]) -> str:
    """The first runs one by one."""
    rows = [[name, *(f"{run.loss[name]:.6f}" for run in runs[:FIRST])] for name in LEARNERS]
    return table(["learner", *(f"run {k}" for k in range(len(runs[:FIRST])))], rows)


def simulate(runs: int, side_runs: int, processes: int) -> dict[Setting, list[Run]]:
    """All runs of all settings, that of the goal first."""
    jobs = [(GOAL, seed) for seed in range(runs)]
    jobs += [(setting, seed) for setting in SIDES for seed in range(side_runs)]
    found: dict[Setting, list[Run]] = {}
    with workers(processes) as pool:
        for (setting, _), run in zip(jobs, pool.map(_job, jobs, chunksize=5), strict=True):
            found.setdefault(setting, []).append(run)
    return found


def _job(job: tuple[Setting, int]) -> Run:
    return one_run(*job, split=job[0] == GOAL)


def report(runs: dict[Setting, list[Run]], command: str) -> list[str]:
    """Paragraphs and tables of the results."""
    goal = runs[GOAL]
    share, error = gap_closed(*(losses(goal)[name] for name in (FLAT, DEFAULT, ORACLE)))
    return [
        "# Gap closed with nothing known",
        (
            f"**{share:.3f} ± {error:.3f}** of the way from FlatOPO to OracleOPO, both of which know the hierarchy, is "
            f"closed by `HierOPO()`, which learns all of it from the log: m = {GOAL.tasks} tasks, n = {GOAL.rows} rows "
            f"in all, sigma_q = {GOAL.hyper_sd}, {len(goal)} paired runs. The goal is 0.90."
        ),
        (
            "The problem, the definition and the standard errors are explained at the head of "
            f"`experiments/gap_closed.py`. The seed is {SEED}. After ± stands one Monte Carlo standard error."
        ),
        provenance(command),
        "## The setting of the goal",
        goal_table(goal),
        "## The cost of learning",
        "HierOPO in the same runs, where only the named parts are learned and the others are true.",
        cost_table(goal),
        "## Other settings",
        (
            "The shape and the warnings are those of the default. A fit that was refused "
            '(`NumericalError`) was made with `task_cov="diag"` or `"isotropic"` instead, as the message advises.'
        ),
        side_table(runs),
        f"## The first {FIRST} runs of the goal's setting",
        "Mean suboptimality, for `tests/repository/test_results.py`.",
        first_table(goal),
    ]


def main(argv: list[str] | None = None) -> None:
    """Run everything and write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of the goal's setting")
    parser.add_argument("--side-runs", type=int, default=SIDE_RUNS, help="runs of each other setting")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(argv)
    runs = simulate(args.runs, args.side_runs, args.processes)
    command = f"python experiments/gap_closed.py --runs {args.runs} --side-runs {args.side_runs}"
    write(args.out, report(runs, command))
    sys.stdout.write(f"{args.out} written.\n")


if __name__ == "__main__":
    main()
