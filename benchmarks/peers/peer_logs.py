"""The logs of the comparison, in folders: train.parquet, requests.parquet, meta.json, and the truth beside them.

Simulated logs are those of ``experiments/claims.py``: the rewards of a task are mean + effect of the action + level +
their interaction, in every coefficient of the contexts. The truth (truth.npz) holds the expected reward of each action
in each request, the shares of the incumbent and the weight of the request. Real logs are the studies of
``experiments/studies.py`` in repeated halves; their truth is the held-out half. MovieLens logs are the rows of
``hieropo reproduce``, the paper's setting: a task is a user, each row offers 10 movies with their factors as features.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import paths  # noqa: F401  experiments are found
import pyarrow as pa
import pyarrow.parquet as pq
from claims import Log, World, drawn
from halves import deal
from studies import STUDIES, Study, codes

from hieropo.reproduce.movielens import experiment as movielens
from hieropo.reproduce.movielens.ratings import read_ratings
from hieropo.reproduce.settings import settings_of, shipped

SEED = 20261201
REQUESTS = 5_000  # of a world with contexts, and at least one for each task

CONTEXTS = World("", 50, 20, columns=7, actions=5)
INDEPENDENT = replace(CONTEXTS, action=0.5, level=0.0, interaction=0.5)


@dataclass(frozen=True)
class Simulated:
    """A world, its words, whether it is in the quick comparison, and the number of its stream of random numbers."""

    words: str
    world: World
    quick: bool = True
    number: int = -1


def structured(tasks: int, rows: int) -> World:
    return replace(CONTEXTS, tasks=tasks, rows=rows)


WORLDS = {
    "independent-1000": Simulated("independent coefficients, 1,000 rows", INDEPENDENT),
    "independent-5000": Simulated("independent coefficients, 5,000 rows", replace(INDEPENDENT, rows=100)),
    "structured-1000": Simulated("action + level + interaction, 1,000 rows", CONTEXTS),
    "structured-5000": Simulated("action + level + interaction, 5,000 rows", replace(CONTEXTS, rows=100)),
    "plain": Simulated("no contexts, 60 tasks x 25 rows", World("")),
    "noisy": Simulated("no contexts, noise 10 x in one action", World("", reward="noisy")),
    "binary": Simulated("no contexts, binary rewards", World("", reward="binary")),
    "sparse": Simulated("no contexts, no effect in 90 % of tasks", World("", action=0.0, interaction=0.6, few=-0.1)),
    "many": Simulated("no contexts, 50 actions, 50 tasks x 100 rows", World("", 50, 100, actions=50)),
    "tasks-10": Simulated("no contexts, 10 tasks x 100 rows", World("", 10, 100)),
    "rows-5": Simulated("no contexts, 500 tasks x 5 rows", World("", 500, 5)),
    "tasks-10000": Simulated("no contexts, 10,000 tasks x 25 rows", World("", 10_000, 25), quick=False),
    "binary-contexts": Simulated(
        "binary, contexts, 50 tasks x 100 rows", replace(CONTEXTS, rows=100, reward="binary"), quick=False
    ),
}  # fmt: skip
WORLDS = {name: replace(world, number=number) for number, (name, world) in enumerate(WORLDS.items())}
# Value against rows a task, in the structured world.
BY_ROWS = {
    "by-rows-5": Simulated("5 rows a task", structured(50, 5), number=13),
    "structured-1000": replace(WORLDS["structured-1000"], words="20 rows a task"),
    "structured-5000": replace(WORLDS["structured-5000"], words="100 rows a task"),
    "by-rows-300": Simulated("300 rows a task", structured(50, 300), quick=False, number=16),
    "by-rows-1000": Simulated("1,000 rows a task", structured(50, 1_000), quick=False, number=17),
}
# No choice gains or loses here: what a tool claims to gain is the error.
NO_EFFECT = {
    "none": Simulated("no contexts, 60 tasks x 25 rows", World("", action=0.0, interaction=0.0), number=23),
    "none-contexts": Simulated(
        "8 coefficients, 50 tasks x 20 rows", replace(CONTEXTS, action=0.0, interaction=0.0), number=24
    ),
}  # fmt: skip
# Time against tasks, 100 rows a task.
BY_TASKS = {
    f"by-tasks-{tasks}": Simulated(f"{tasks:,} tasks", structured(tasks, 100), tasks <= 10_000, number)
    for number, tasks in enumerate((100, 1_000, 10_000, 100_000), 18)
}
MILLION = Simulated(
    "1,000,000 tasks x 10 rows, no contexts", World("", 1_000_000, 10), quick=False, number=22
)
SCALE = {"a-million-tasks": MILLION}
# The paper's MovieLens setting by rows of all 100 users.
MOVIELENS = {
    f"movielens-{rows}": Simulated(f"{rows:,} rows", World("", 100, rows // 100), rows in (500, 5_000))
    for rows in (500, 2_000, 5_000, 20_000)
}
ALL = {**BY_ROWS, **WORLDS, **NO_EFFECT, **BY_TASKS, **SCALE, **MOVIELENS}


def write_folder(folder: Path, actions: list, context: list, train: pa.Table, requests: pa.Table) -> None:
    """Write what a peer reads; the actions are sorted."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(train, folder / "train.parquet")
    pq.write_table(requests, folder / "requests.parquet")
    meta = {"actions": actions, "context": context}
    (folder / "meta.json").write_text(json.dumps(meta) + "\n", encoding="utf-8")


def requests_of(log: Log, columns: int, rng: np.random.Generator) -> tuple:
    """Tasks, contexts and weights (n,) of the requests by which a policy is judged."""
    tasks = log.theta.shape[0]
    count = max(REQUESTS // tasks, 1) if columns else 1
    task = np.repeat(np.arange(tasks), count)
    return task, rng.standard_normal((task.size, columns)), np.repeat(log.weight, count) / count


def simulate(name: str, seed: int, folder: Path) -> None:
    """Draw a log of a world, with requests and truth."""
    world = ALL[name].world
    rng = np.random.default_rng([SEED, ALL[name].number, seed])
    log = drawn(world, rng)
    context = [f"x{j}" for j in range(world.columns)]
    task, x, weight = requests_of(log, world.columns, rng)
    requests = pa.table({"task": task, **{column: x[:, j] for j, column in enumerate(context)}})
    write_folder(folder, list(range(world.actions)), context, log.table(), requests)
    np.savez(folder / "truth.npz", truth=log.means(x, task), shares=log.shares, weight=weight, task=task)


def movielens_folders(names: list[str], runs: int, data: Path, work: Path) -> dict[str, list[Path]]:
    """Draw the runs of the paper's MovieLens experiment that are not there yet; folders of each number of rows."""
    folders = {name: [work / f"{name}-{run}" for run in range(runs)] for name in names}
    missing = [
        (name, run, folder)
        for name, of_name in folders.items()
        for run, folder in enumerate(of_name)
        if not (folder / "truth.npz").exists()
    ]
    if missing:
        settings = settings_of(shipped(), "the shipped settings")
        ratings = read_ratings(data / "ml1m_ratings_notime.parquet", settings.movielens.counts)
        problem = movielens.make_problem(settings, ratings)
        for name, run, folder in missing:
            world = ALL[name].world
            cell = movielens.Cell(world.tasks * world.rows)
            movielens_folder(movielens.draw_rows(settings, problem, cell, run), folder)
    return folders


def movielens_folder(rows: movielens.Rows, folder: Path) -> None:
    """Write a run: an action is a movie, ``offered`` are those of the row, the requests are the contexts judged."""
    tasks, count, offered = rows.judged.shape

    def lists(movies: np.ndarray) -> pa.Array:
        return pa.FixedSizeListArray.from_arrays(pa.array(movies.ravel()), offered)

    train = pa.table({
        "task": rows.task, "action": rows.movie, "reward": rows.reward, "p": np.full(rows.task.size, 1 / offered),
        "offered": lists(rows.candidates),
    })  # fmt: skip
    task = np.repeat(np.arange(tasks), count)
    requests = pa.table({"task": task, "offered": lists(rows.judged)})
    write_folder(folder, list(range(len(rows.movies))), [], train, requests)
    np.save(folder / "features.npy", rows.movies)
    truth = np.einsum("sekd,sd->sek", rows.movies[rows.judged], rows.theta).reshape(-1, offered)
    np.savez(
        folder / "truth.npz", truth=truth, shares=np.full(offered, 1 / offered), task=task,
        weight=np.full(task.size, 1 / task.size), offered=rows.judged.reshape(-1, offered),
    )  # fmt: skip


def half_folder(study: Study, half: int, folder: Path) -> None:
    """Cut a half of a real log; the other half is the requests."""
    train, held = deal(study, half, 1.0)
    chance = study.chance(train)
    p = np.take_along_axis(chance, study.action[train][:, None], axis=1)[:, 0]
    task = pa.array(codes(study.task))
    rows = (
        study.rows(train).set_column(0, "task", task.filter(pa.array(train))).append_column("p", pa.array(p))
    )
    order = np.argsort(np.array(study.actions))
    may = study.chance(held)[:, order] > 0
    eligible = pa.FixedSizeListArray.from_arrays(pa.array(may.ravel()), order.size)
    requests = study.rows(held).drop_columns(["action", "reward"]).append_column("eligible", eligible)
    requests = requests.set_column(0, "task", task.filter(pa.array(held)))
    write_folder(folder, sorted(study.actions), list(study.columns), rows, requests)


def studies(data: Path) -> dict:
    """Randomised logs by name."""
    return {name: make(data) for name, make in STUDIES.items()}


def capability_logs(folder: Path) -> None:
    """Write the small logs by which abilities are tried: as it should be, with NaN, without p, with text actions."""
    rng = np.random.default_rng([SEED, 0])
    world = replace(CONTEXTS, tasks=8, rows=60, columns=2, actions=3)
    log = drawn(world, rng)
    task, x, _ = requests_of(log, 2, rng)
    train = log.table()
    requests = pa.table({"task": task[:200], "x0": x[:200, 0], "x1": x[:200, 1]})
    names = np.array(["small", "medium", "large"])
    holes = train["x0"].to_numpy().copy()
    holes[::20] = np.nan

    def put(name: str, column: str, values: object) -> pa.Table:
        return train.set_column(train.column_names.index(column), name, pa.array(values))

    logs = {
        "plain": train, "nan": put("x0", "x0", holes), "no_p": train.drop_columns("p"),
        "text": put("action", "action", names[log.action].tolist()),
    }  # fmt: skip
    for name, table in logs.items():
        actions = sorted(names.tolist()) if name == "text" else [0, 1, 2]
        write_folder(folder / name, actions, ["x0", "x1"], table, requests)
