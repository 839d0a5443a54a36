"""STAR with schools as tasks: one part of the default learner replaced at a time, on halves of the log.

    python experiments/pupils.py --data DIR     # writes docs/results/pupils.md; some five minutes

The halves, and the held-out estimate of a policy's value, are those of ``experiments/halves.py``; the first 20 are
those of the comparison with other tools. A pupil has a row in each of up to four grades, all in one half. The log does
not name the pupils. Replaced are

- interactions: the hierarchy of the default, with the mean of its variances for all columns, uncorrelated;
- levels: those of the default are added to the interactions, so that actions share no level;
- ridge: a regression of each action on [x, x (x) school], its one precision by evidence (MacKay's fixed point), the
  model of bayesianbandits in the comparison;
- pupils: the default with ``cluster=`` the pupil; and, where nothing should happen, with the pupils' ids permuted.

Errors are corrected for the overlap of halves, as in ``experiments/halves.py``.
"""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from halves import Array, Codes, Mask, Study, choices, corrected_error, deal, snips
from repeating import workers
from studies import STUDIES, codes
from tables import provenance, table, write

from hieropo import CrossedHierarchy, FlatOPO, HierOPO

HALVES, OF_PEERS = 40, 20
OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "pupils.md"
DEFAULT, CLUSTERED = "HierOPO", "HierOPO, cluster=pupil"
ROUNDS = 500


def fitted(study: Study, train: Mask, pupil: Codes | None = None, **settings: object) -> HierOPO:
    """Learn from some rows; ``pupil`` (n,) are the clusters of all rows."""
    rows = study.rows(train)
    names = {"task": "task", "action": "action", "reward": "reward", "context": list(study.columns)}
    if pupil is not None:
        rows, names = rows.append_column("pupil", pa.array(pupil[train])), {**names, "cluster": "pupil"}
    return HierOPO(logging="random", **settings).fit(rows, **names)


def one_size(central: CrossedHierarchy) -> CrossedHierarchy:
    """Return the hierarchy with one variance of interactions for all columns."""
    p = central.unit_dim
    return replace(central, interaction_cov=np.trace(central.interaction_cov) / p * np.eye(p))


def no_levels(central: CrossedHierarchy) -> CrossedHierarchy:
    """Return the hierarchy with levels that actions do not share."""
    return replace(
        central, level_cov=0 * central.level_cov, interaction_cov=central.interaction_cov + central.level_cov
    )


def ridge(study: Study, train: Mask, held_out: Mask, chance: Array) -> Codes:
    """Choose by a regression of each action on [x, x (x) school]."""
    x, task = np.column_stack([np.ones(len(study.context)), study.context]), codes(study.task)
    p, m = x.shape[1], int(task.max()) + 1

    def columns(rows: Mask) -> Array:
        phi = np.zeros((int(rows.sum()), p + m * p))
        phi[:, :p] = x[rows]
        phi[np.arange(len(phi))[:, None], p + task[rows][:, None] * p + np.arange(p)] = x[rows]
        return phi

    requests, scores = columns(held_out), np.full(chance.shape, -np.inf)
    for a in range(len(study.actions)):
        rows = train & (study.action == a)
        phi, reward = columns(rows), study.reward[rows]
        values, vectors = np.linalg.eigh(phi.T @ phi)
        values, score = np.maximum(values, 0.0), vectors.T @ (phi.T @ reward)
        prior, noise = 1.0, 1.0  # precisions
        for _ in range(ROUNDS):
            mean = noise * score / (prior + noise * values)
            free = float((noise * values / (prior + noise * values)).sum())
            rest = float(reward @ reward - 2 * mean @ score + values @ mean**2)
            prior, noise = free / float(mean @ mean), (reward.size - free) / rest
        scores[:, a] = requests @ (vectors @ mean)
    return np.where(chance > 0, scores, -np.inf).argmax(axis=1)


def one_half(study: Study, half: int) -> tuple[dict[str, float], list[list[float]]]:
    """Gains over the incumbent by learner, and the standard deviations learned without and with pupils."""
    train, held_out = deal(study, half, 1.0)
    chance = study.chance(held_out)
    default, clustered = fitted(study, train), fitted(study, train, study.unit)
    central = default.hierarchy_.central()
    shuffled = study.unit.copy()
    shuffled[train] = np.random.default_rng(half).permutation(study.unit[train])
    flat = FlatOPO().fit(
        study.rows(train), task="task", action="action", reward="reward", context=list(study.columns)
    )
    learners: dict[str, Callable[[], HierOPO]] = {
        DEFAULT: lambda: default,
        "interactions of one size": lambda: fitted(study, train, known=one_size(central)),
        "levels not shared": lambda: fitted(study, train, known=no_levels(central)),
        "FlatOPO": lambda: flat,
        CLUSTERED: lambda: clustered,
        "HierOPO, cluster=pupil permuted": lambda: fitted(study, train, shuffled),
    }
    chosen = {name: choices(learner(), study, held_out, chance) for name, learner in learners.items()}
    chosen["ridge of each action"] = ridge(study, train, held_out, chance)
    incumbent = snips(study.reward, held_out.astype(np.float64)).value
    gains = {}
    for name, action in chosen.items():
        weight = np.zeros(held_out.size)
        pscore = np.take_along_axis(chance, action[:, None], axis=1)[:, 0]
        weight[held_out] = (study.action[held_out] == action) / pscore
        gains[name] = snips(study.reward, weight).value - incumbent
    sds = [
        np.sqrt(np.diag(one.hierarchy_.central().interaction_cov)).tolist() for one in (default, clustered)
    ]
    correlation = clustered.cluster_correlation_
    return gains, [*sds, np.atleast_1d(np.asarray(correlation, dtype=np.float64)).tolist()]


def compared(gains: dict[str, Array], name: str, other: str, part: slice) -> str:
    """Return the mean difference of two learners over some halves, and its corrected error."""
    difference = gains[name][part] - gains[other][part]
    return "" if name == other else f"{difference.mean():+.4f} ± {corrected_error(difference):.4f}"


def report(
    results: list[tuple[dict[str, float], list[list[float]]]], study: Study, command: str
) -> list[str]:
    """Paragraphs and tables of the results."""
    gains = {name: np.array([half[name] for half, _ in results]) for name in results[0][0]}
    parts = {
        f"halves 1 to {OF_PEERS}": slice(0, OF_PEERS),
        "the others": slice(OF_PEERS, None),
        "all": slice(None),
    }
    rows = [
        [
            name,
            f"{gains[name].mean():.4f}",
            *(compared(gains, name, DEFAULT, part) for part in parts.values()),
            compared(gains, name, "ridge of each action", slice(None)),
        ]
        for name in gains
    ]
    head = ["learner", "gain", *(f"less HierOPO, {part}" for part in parts), "less the ridge, all"]
    sds = [np.mean([learned[k] for _, learned in results], axis=0) for k in range(3)]
    columns = ["intercept", *study.columns]
    learned = [
        [name, *(f"{sd:.3f}" for sd in values)]
        for name, values in zip((DEFAULT, CLUSTERED), sds, strict=False)
    ]
    return [
        "# The pupils of STAR",
        (
            f"Schools as tasks; one part of the default replaced at a time, {len(results)} halves. Gains are over the "
            "incumbent on the held-out half, in standard deviations of the scores; after ± the error corrected for the "
            "overlap of halves. Method and learners are explained at the head of `experiments/pupils.py`."
        ),
        provenance(command),
        table(head, rows),
        "Standard deviations of interactions (school x class type) that are learned, by column, means of the halves:",
        table(["learner", *columns], learned),
        f"Correlation of a pupil's scores in a class type, by class type: {', '.join(f'{r:.2f}' for r in sds[2])}.",
    ]


@lru_cache(maxsize=1)
def load(folder: Path) -> Study:
    """The log; kept, since a process works on many halves of it."""
    return STUDIES["star"](folder)


def _job(job: tuple[Path, int]) -> tuple[dict[str, float], list[list[float]]]:
    return one_half(load(job[0]), job[1])


def main(argv: list[str] | None = None) -> None:
    """Run all halves and write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("HIEROPO_DATA"), help="folder of the tables"
    )
    parser.add_argument("--halves", type=int, default=HALVES)
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(argv)
    if args.data is None:
        parser.error("name the folder of the tables: --data DIR, or HIEROPO_DATA=DIR")
    folder = Path(args.data)
    with workers(args.processes) as pool:
        results = list(pool.map(_job, [(folder, half) for half in range(args.halves)]))
    command = f"python experiments/pupils.py --data DIR --halves {args.halves}"
    write(args.out, report(results, load(folder), command))
    sys.stdout.write(f"{args.out} written.\n")


if __name__ == "__main__":
    main()
