"""Halves of real experiments: the learned hierarchy against pooling everything and sharing nothing.

    python experiments/halves.py --data DIR     # writes docs/results/halves.md; about four minutes
    HIEROPO_DATA=DIR python experiments/halves.py --halves 5 --logs kenya thornton --out /tmp/halves.md

Units (pupils, persons, stations) of a randomised experiment are dealt into two halves at random, 50 times. Learners
read one half, or a quarter of it. The rows of the other half say what their policies are worth: with w = 1{action =
the policy's} / propensity, the self-normalised estimate is V = sum w r / sum w. Where actions were dealt out in fixed
numbers within strata, the propensity in a held-out row, given the half that was learned from, is the share among the
held-out rows of its stratum. Nobody may choose an action of propensity zero.

All learners have their defaults; where a fit is refused
(`NumericalError`), it is made with `task_cov="diag"` or else `"isotropic"`, as the message advises, and counted.

Standard errors. Halves overlap, so that the spread S of a difference over J halves, divided by sqrt(J), shrinks with J
while the log stays the same. Three errors of paired differences do not:

- corrected: S sqrt(1/J + 1), the correction of Nadeau and Bengio (2003) with as many rows held out as not. It is for
  other rows of the same tasks, and counts learning as well as judging. The quarter has the same factor: it comes from
  the overlap of the held-out rows, and smaller parts to learn from overlap less.
- units, tasks: each row's contribution to the error of the difference, averaged over the halves and summed by unit or
  by task; the root of the sum of squares. It takes the fitted policies as given; the second is for other tasks too,
  and is left out for fewer than 30.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fitting import fit
from numpy.typing import NDArray
from repeating import workers
from studies import STUDIES, Codes, Mask, Study, codes
from tables import figure, provenance, table, write

from hieropo import FlatOPO, HierOPO, PooledOPO
from hieropo.demo.value import ENOUGH_TASKS, Estimate, snips

Array = NDArray[np.float64]

SEED, HALVES = 20221208, 50
PARTS = (1.0, 0.25)  # of the training half
OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "halves.md"
HIER, POOLED, SEPARATE, ONE, INCUMBENT = "HierOPO", "PooledOPO", "FlatOPO", "one action", "incumbent"
LEARNERS: dict[str, type[HierOPO]] = {HIER: HierOPO, POOLED: PooledOPO, SEPARATE: FlatOPO}
POLICIES = (HIER, POOLED, SEPARATE, ONE, INCUMBENT)


@dataclass(frozen=True, eq=False)
class Half:
    """Held-out value of each policy, learned on one half; the fits refused; rows that learners read."""

    values: dict[str, Estimate]
    refused: tuple[str, ...]
    rows: int


class Difference(NamedTuple):
    """HierOPO less another policy, in reward units, with the standard errors explained above."""

    value: float
    corrected: float
    units: float
    tasks: float


def deal(study: Study, half: int, part: float) -> tuple[Mask, Mask]:
    """Rows to learn from, and rows held out; the same held-out rows for every ``part``."""
    rng = np.random.default_rng([SEED, half])
    order = rng.permutation(int(study.unit.max()) + 1)
    middle = order.size // 2
    mine, held_out = np.zeros((2, order.size), dtype=np.bool_)
    mine[order[: round(part * middle)]] = True
    held_out[order[middle:]] = True
    return mine[study.unit], held_out[study.unit]


def choices(learner: HierOPO, study: Study, rows: Mask, chance: Array) -> Codes:
    """Code of the action chosen in each of the rows, among those with a chance (rows, K)."""
    known = np.array([study.actions.index(name) for name in learner.features_.actions or ()])
    found = learner.policy_.choose_many(
        study.task[rows], study.context[rows], eligible=chance[:, known] > 0, threads=1
    )
    return np.asarray(known[found.index[:, 0]], dtype=np.int64)


def one_action(study: Study, train: Mask, chance: Array) -> Codes:
    """The action with the best self-normalised training mean, or the best that has a chance (rows, K) in a row."""
    means = np.full(len(study.actions), -np.inf)
    action = study.action[train]
    pscore = np.take_along_axis(study.chance(train), action[:, None], axis=1)[:, 0]
    for k in np.unique(action):
        means[k] = snips(study.reward[train], (action == k) / pscore).value
    order = np.argsort(-means, kind="stable")
    return np.asarray(order[(chance[:, order] > 0).argmax(axis=1)], dtype=np.int64)


def one_half(study: Study, half: int, part: float) -> Half:
    """Learn every policy on one part of a half and judge it on the other half."""
    train, held_out = deal(study, half, part)
    chance, rows = study.chance(held_out), study.rows(train)
    chosen, refused = {ONE: one_action(study, train, chance)}, []
    for name, make in LEARNERS.items():
        found = fit(make(), rows, task="task", action="action", reward="reward", context=study.columns)
        chosen[name] = choices(found.learner, study, held_out, chance)
        refused += [name] * found.refused
    values = {INCUMBENT: snips(study.reward, held_out.astype(np.float64))}
    for name, action in chosen.items():
        weight = np.zeros(held_out.size)
        pscore = np.take_along_axis(chance, action[:, None], axis=1)[:, 0]
        weight[held_out] = (study.action[held_out] == action) / pscore
        values[name] = snips(study.reward, weight)
    return Half(values, tuple(refused), int(train.sum()))


def corrected_error(values: Array) -> float:
    """Standard error of the mean of one figure over J overlapping halves (J,): S sqrt(1/J + 1)."""
    return float(values.std(ddof=1) * np.sqrt(1 / values.size + 1)) if values.size > 1 else np.nan


def difference(study: Study, halves: Iterable[Half], other: str) -> Difference:
    """HierOPO less ``other``, averaged over halves."""
    each = [half.values[HIER] - half.values[other] for half in halves]
    mean = Estimate.average(each)
    task = codes(study.task)
    over_tasks = mean.se_over(task) if task.max() + 1 >= ENOUGH_TASKS else np.nan
    spread = corrected_error(np.array([one.value for one in each]))
    return Difference(mean.value, spread, mean.se_over(study.unit), over_tasks)


def value(halves: Iterable[Half], name: str) -> tuple[float, float]:
    """Mean value of a policy over halves, and the spread over halves divided by sqrt(J)."""
    found = np.array([half.values[name].value for half in halves])
    return float(found.mean()), float(found.std(ddof=1) / np.sqrt(found.size)) if found.size > 1 else np.nan


Results = dict[tuple[str, float], list[Half]]


def value_table(halves: list[Half], study: Study) -> str:
    """All policies on one log."""
    rows = []
    for name in POLICIES:
        cells = ["", "", "", ""]
        if name != HIER:
            found = difference(study, halves, name)
            cells = [f"{found.value:+.4f}", *(figure(error, np.nan, 4) for error in found[1:])]
        rows.append([name, figure(*value(halves, name), 4), *cells])
    head = ["policy", "value ± spread over halves / √J", "HierOPO less it"]
    return table([*head, "error, corrected", "error, units", "error, tasks"], rows)


@dataclass(frozen=True)
class Claim:
    """HierOPO against complete pooling and against separate policies, and which of the two is better."""

    pooled: Difference
    separate: Difference

    @property
    def better(self) -> tuple[str, Difference]:
        """The rival with the larger mean value."""
        return (POOLED, self.pooled) if self.pooled.value < self.separate.value else (SEPARATE, self.separate)

    @property
    def below(self) -> bool:
        """More than one corrected standard error below the better of the two."""
        found = self.better[1]
        return found.value < -found.corrected

    @property
    def above(self) -> bool:
        """More than one corrected standard error above each of the two."""
        return all(found.value > found.corrected for found in (self.pooled, self.separate))


def claims(results: Results, studies: dict[str, Study]) -> dict[tuple[str, float], Claim]:
    """One claim for each log and part."""
    return {
        (name, part): Claim(*(difference(studies[name], halves, rival) for rival in (POOLED, SEPARATE)))
        for (name, part), halves in results.items()
    }


def claim_table(results: Results, studies: dict[str, Study]) -> str:
    """HierOPO against pooled and separate policies."""
    rows = []
    for (name, part), claim in claims(results, studies).items():
        size = np.mean([half.rows for half in results[name, part]]) / len(np.unique(studies[name].task))
        found = claim.better[1]
        rows.append([
            f"{name}, {part:g}", f"{size:.1f}",
            *(f"{each.value:+.4f} ± {each.corrected:.4f}" for each in (claim.pooled, claim.separate)),
            claim.better[0], f"{found.value / found.corrected:+.1f}",
            "below" if claim.below else "above both" if claim.above else "",
        ])  # fmt: skip
    head = [
        "log, part of the half",
        "rows a task",
        "HierOPO - PooledOPO",
        "HierOPO - FlatOPO",
        "better of the two",
    ]
    return table([*head, "HierOPO less it, in errors", "verdict"], rows)


def first_table(results: Results) -> str:
    """Values on the first half alone."""
    rows = [[f"{name}, {part:g}", *(f"{halves[0].values[policy].value:.6f}" for policy in POLICIES)]
            for (name, part), halves in results.items()]  # fmt: skip
    return table(["log, part", *POLICIES], rows)


def verdict(results: Results, studies: dict[str, Study]) -> str:
    """The claim, and what the table says of it."""
    found = claims(results, studies)
    low = [f"{name} ({part:g})" for (name, part), claim in found.items() if claim.below]
    high = [f"{name} ({part:g})" for (name, part), claim in found.items() if claim.above]
    return (
        "The claim: the learned hierarchy is never more than one standard error (the corrected one, here after ±) "
        "below the better of complete pooling and separate policies, and in some log more than one above both.\n\n"
        f"- Below: {', '.join(low) or 'nowhere'}.\n- Above both: {', '.join(high) or 'nowhere'}.\n"
    )


def report(results: Results, studies: dict[str, Study], command: str) -> list[str]:
    """Paragraphs and tables of the results."""
    count = len(next(iter(results.values())))
    text = [
        "# Halves of real experiments",
        (
            f"Policies learned on one half of a randomised experiment and evaluated on the other: {count} halves, "
            f"seed {SEED}. Method and standard errors are explained at the head of `experiments/halves.py`, the logs "
            "in `experiments/studies.py`. The data are not part of the repository."
        ),
        provenance(command),
        "## The claim",
        verdict(results, studies),
        claim_table(results, studies),
    ]
    for (name, part), halves in results.items():
        study = studies[name]
        refused = [policy for half in halves for policy in half.refused]
        about = " ".join((STUDIES[name].__doc__ or "").split()) if part == PARTS[0] else ""
        text += [
            f"## {name}, {part:g} of the half",
            (
                f"{about} {len(study.task):,} rows, {len(np.unique(study.task))} tasks, {len(study.actions)} actions; "
                f"{np.mean([half.rows for half in halves]):,.0f} rows to learn from. Fits refused: "
                f"{', '.join(f'{policy} {times}' for policy, times in Counter(refused).items()) or 'none'}."
            ).strip(),
            value_table(halves, study),
        ]
    return [
        *text,
        "## The first half alone",
        "Values, for `tests/repository/test_results.py`.",
        first_table(results),
    ]


@lru_cache(maxsize=1)
def load(name: str, folder: Path) -> Study:
    """One log; kept, since a process works on many halves of it."""
    return STUDIES[name](folder)


def _job(job: tuple[str, Path, int, float]) -> Half:
    name, folder, half, part = job
    return one_half(load(name, folder), half, part)


def run(names: Iterable[str], folder: Path, halves: int, processes: int) -> Results:
    """All halves of all logs."""
    jobs = [(name, folder, half, part) for name in names for part in PARTS for half in range(halves)]
    found: Results = {}
    with workers(processes) as pool:
        for (name, _, _, part), half in zip(jobs, pool.map(_job, jobs), strict=True):
            found.setdefault((name, part), []).append(half)
    return found


def main(argv: list[str] | None = None) -> None:
    """Run everything and write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("HIEROPO_DATA"), help="folder of the tables"
    )
    parser.add_argument("--halves", type=int, default=HALVES)
    parser.add_argument("--logs", nargs="+", choices=list(STUDIES), default=list(STUDIES))
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(argv)
    if args.data is None:
        parser.error("name the folder of the tables: --data DIR, or HIEROPO_DATA=DIR")
    results = run(args.logs, Path(args.data), args.halves, args.processes)
    studies = {name: load(name, Path(args.data)) for name in args.logs}
    command = f"python experiments/halves.py --data DIR --halves {args.halves} --logs {' '.join(args.logs)}"
    write(args.out, report(results, studies, command))
    sys.stdout.write(f"{args.out} written.\n")


if __name__ == "__main__":
    main()
