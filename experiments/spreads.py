"""Intervals of standard deviations between tasks and groups: how often they hold, and reach 0.

    python experiments/spreads.py                # writes docs/results/spreads.md; some minutes on two processors
    python experiments/spreads.py --share 0.05 --out /tmp/spreads.md

Noise is N(0, 1) throughout. "One mean a task" has the same number of rows in each task and nothing but an intercept,
"uneven" numbers of rows that are geometric with that mean, and ten times as many in the first task. "Actions" has four
actions, taken at random, each with a mean of its own, with sds 0, 0.1, 0.5 and 1; "slopes" an intercept and two slopes
with sds 1, 0.3 and 0.1 and correlations of 0.6. In "regions" tasks of one mean lie in regions, three each, and both
vary. The hierarchy is learned with ``task_cov="auto"``, and counted is how often a 95 % interval of
``profile_intervals`` holds the sd that the tasks, or regions, were drawn with. (What ``summary`` prints is as wide, or
reaches to its estimate where that lies outside.) The share of runs is one figure; its standard error is after +-. A
seed gives the same figures with any number of processes.
"""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from numpy.typing import NDArray
from repeating import options, repeated
from tables import figure, provenance, table, write

from hieropo import Moments, estimate, estimate_levels
from hieropo.estimation.hyper.profile_intervals import profile_intervals

Array = NDArray[np.float64]

SEED = 20261128
WANTED = 0.93
OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "spreads.md"
INTRODUCTION = """\
Coverage of 95 % intervals of standard deviations between tasks (and regions), and the share of them that begin at 0.
The logs are explained at the head of `experiments/spreads.py`; noise has an sd of 1. The seed is {seed}. After ± stands
one Monte Carlo standard error. The goal is {wanted} in every line; {met} of {lines} have it within two standard
errors, and the least is {least}.
"""


@dataclass(frozen=True)
class Setting:
    """A kind of log, tasks, rows a task, the true sds, of regions last, and how many runs."""

    world: str
    tasks: int
    rows: int
    sds: tuple[float, ...]
    runs: int = 300


SETTINGS = (
    *(
        Setting("one mean a task", tasks, rows, (sd,))
        for tasks, rows in ((3, 20), (5, 10), (10, 2), (10, 10), (20, 20), (50, 10), (100, 5))
        for sd in (0.0, 0.1, 0.3, 1.0, 3.0)
    ),
    *(Setting("uneven", tasks, 8, (sd,)) for tasks in (10, 30) for sd in (0.0, 0.1, 0.3, 1.0)),
    *(
        Setting("actions", tasks, rows, (0.0, 0.1, 0.5, 1.0), 200)
        for tasks, rows in ((10, 20), (30, 8), (100, 6))
    ),
    *(Setting("slopes", tasks, rows, (1.0, 0.3, 0.1), 200) for tasks, rows in ((10, 20), (30, 8), (100, 6))),
    *(Setting("regions", 36, 5, sds, 200) for sds in ((0.0, 0.3), (0.3, 0.0), (0.5, 0.5))),
)


@dataclass(frozen=True)
class Run:
    """Of each sd, whether its interval holds it and whether that begins at 0; and the upper ends."""

    holds: tuple[bool, ...]
    from_zero: tuple[bool, ...]
    upper: tuple[float, ...]


def one_run(setting: Setting, run: int) -> Run:
    """Draw a log, learn from it and look at the intervals."""
    rng = np.random.default_rng([SEED, SETTINGS.index(setting), run])
    m, sds = setting.tasks, np.array(setting.sds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if setting.world == "regions":
            region = np.arange(m) % (m // 3)
            theta = (sds[0] * rng.normal(size=m) + sds[1] * rng.normal(size=m // 3)[region])[:, None]
            moments = drawn(theta, np.repeat(np.arange(m), setting.rows), "one mean a task", rng)
            found = estimate_levels(moments, levels={"region": dict(enumerate(region.tolist()))})
        else:
            share = 0.6 if setting.world == "slopes" else 0.0
            cov = (share + (1 - share) * np.eye(sds.size)) * np.outer(sds, sds)
            theta = rng.multivariate_normal(np.zeros(sds.size), cov, size=m)
            rows = np.full(m, setting.rows)
            if setting.world == "uneven":
                rows = rng.geometric(1 / setting.rows, size=m)
                rows[0] = 10 * setting.rows
            moments = drawn(theta, np.repeat(np.arange(m), rows), setting.world, rng)
            found = estimate(moments)
        intervals = profile_intervals(moments, found, 0.95)
    assert intervals is not None
    ends = [intervals[at] for at in sorted(intervals)]
    return Run(
        tuple(bool(each.lower <= sd <= each.upper) for each, sd in zip(ends, setting.sds, strict=True)),
        tuple(each.lower == 0 for each in ends),
        tuple(each.upper for each in ends),
    )


def drawn(theta: Array, task: NDArray[np.int64], world: str, rng: np.random.Generator) -> Moments:
    """Moments of rows of these tasks."""
    n, d = task.size, theta.shape[1]
    if world == "actions":
        phi = np.eye(d)[rng.integers(d, size=n)]
    else:
        phi = np.column_stack([np.ones(n), rng.normal(size=(n, d - 1))])
    return Moments.from_arrays(task, phi, 1 + (phi * theta[task]).sum(axis=1) + rng.normal(size=n))


def held(runs: list[Run]) -> tuple[Array, Array]:
    """Share of runs whose interval holds each sd, and its standard error."""
    holds = np.array([run.holds for run in runs], dtype=np.float64)
    return holds.mean(axis=0), np.sqrt(holds.var(axis=0, ddof=1) / len(runs))


def lines(setting: Setting, runs: list[Run]) -> list[tuple[str, ...]]:
    """A line of the table for each sd."""
    shares, errors = held(runs)
    zero = np.mean([run.from_zero for run in runs], axis=0)
    upper = np.median([run.upper for run in runs], axis=0)
    of = ("tasks", "regions") if setting.world == "regions" else ("tasks",) * len(setting.sds)
    rows = f"about {setting.rows}" if setting.world == "uneven" else str(setting.rows)
    return [
        (
            setting.world, str(setting.tasks), rows, of[j], f"{sd:g}", figure(shares[j], errors[j]),
            f"{zero[j]:.2f}", f"{upper[j]:.2f}",
        )
        for j, sd in enumerate(setting.sds)
    ]  # fmt: skip


def main() -> None:
    """Run all settings and write the table."""
    chosen = options(__doc__, OUT, "spreads.py")
    results = repeated(
        one_run,
        {each: each.runs for each in SETTINGS},
        chosen,
        told=lambda setting, runs: f"{setting}: {held(runs)[0].round(3)}",
    )
    shares, errors = (np.concatenate(each) for each in zip(*map(held, results.values()), strict=True))
    met = int(np.count_nonzero(shares >= WANTED - 2 * errors))
    columns = ("log", "tasks", "rows a task", "sd of", "true sd", "holds", "begins at 0", "median upper end")
    body = [line for setting, runs in results.items() for line in lines(setting, runs)]
    write(
        chosen.out,
        [
            "# Intervals of standard deviations\n",
            INTRODUCTION.format(
                seed=SEED, wanted=WANTED, met=met, lines=shares.size, least=f"{shares.min():.3f}"
            ),
            provenance(chosen.command),
            table(columns, body),
        ],
    )


if __name__ == "__main__":
    main()
