"""Time of a refresh of the service: new rows that are sealed, sums, a fit, its judgement, a version on disk, the swap.

    python benchmarks/serve_refresh.py [--tasks 10000] [--rows 1000000] [--actions 10] [--contexts 3] [--profile]

The rows are segments as the service writes them, made by arrays. With ``--journal N`` so many decisions with rewards
lie in the journal, too, and are sealed first: their time is told apart. Coefficients are actions times (contexts + 1).
"""

import argparse
import cProfile
import pstats
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import record

from hieropo import HierOPO
from hieropo.serve import Service, Settings
from hieropo.serve.journal import ACTIVE, NewDecision, record_decisions
from hieropo.serve.messages import Decision, Event, Probability
from hieropo.serve.segments import Segment, with_files


def world(tasks: int, actions: int, contexts: int) -> np.ndarray:
    """Return coefficients (tasks, actions, contexts + 1)."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(actions, contexts + 1))
    return shared + 0.5 * rng.normal(size=(tasks, actions, contexts + 1))


def drawn(truth: np.ndarray, rows: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """Return tasks, actions, contexts and rewards."""
    rng = np.random.default_rng(seed)
    task, action = rng.integers(truth.shape[0], size=rows), rng.integers(truth.shape[1], size=rows)
    context = rng.normal(size=(rows, truth.shape[2] - 1))
    phi = np.column_stack([np.ones(rows), context])
    reward = (truth[task, action] * phi).sum(axis=1) + rng.normal(size=rows)
    return task, action, context, reward


def table(truth: np.ndarray, rows: int, seed: int) -> pa.Table:
    """Return a log."""
    task, action, context, reward = drawn(truth, rows, seed)
    columns = {f"x{c}": context[:, c] for c in range(context.shape[1])}
    return pa.table({"task": task, "action": action, "reward": reward, **columns})


def sealed(service: Service, truth: np.ndarray, rows: int, segments: int) -> None:
    """Put rows into the state as segments."""
    state = service.state
    schema = state.columns.schema()
    actions = truth.shape[1]
    for number in range(1, segments + 1):
        n = rows // segments
        log = table(truth, n, number)
        constant = {
            "decision_id": pa.array([f"{number}-{row}" for row in range(n)]),
            "decided_at": pa.array(np.arange(n) + state.manifest.created, pa.timestamp("us", tz="UTC")),
            "propensity": np.full(n, 1.0 / actions),
            "eligible": pa.array([list(range(actions))] * n, schema.field("eligible").type),
            "mode": pa.array(["explore"] * n), "policy_version": pa.array(np.ones(n), pa.int32()),
            "predicted_mean": np.zeros(n), "predicted_sd": np.ones(n), "control": pa.array(np.zeros(n, dtype=bool)),
            "n_rewards": pa.array(np.ones(n), pa.int32()),
        }  # fmt: skip
        arrays = []
        for field in schema:
            values = log[field.name] if field.name in log.column_names else constant.get(field.name)
            arrays.append(pa.nulls(n, field.type) if values is None else values)
        whole = pa.table(arrays, schema=schema)
        none = schema.empty_table()
        segment = with_files(state.path, Segment(number, 0, 0, 0, 0, {}), whole, none, none)
        state.change(
            lambda manifest, new=segment: msgspec.structs.replace(
                manifest, segments=(*manifest.segments, new)
            )
        )


def journaled(service: Service, truth: np.ndarray, rows: int) -> None:
    """Put decisions with rewards, whose windows are closed, into the journal."""
    names = [f"x{c}" for c in range(truth.shape[2] - 1)]
    actions = list(range(truth.shape[1]))
    shares = [Probability(action, 1.0 / len(actions)) for action in actions]
    encode = msgspec.json.Encoder().encode
    at = service.clock() - 10_000_000
    for start in range(0, rows, 10_000):
        task, action, context, reward = (
            part.tolist() for part in drawn(truth, min(10_000, rows - start), start)
        )
        new = []
        for row in range(len(task)):
            id_ = f"j{start + row:012d}"
            decision = Decision(
                id_, action[row], 1.0 / len(actions), shares, "explore", 1, task_known=True, unseen=[],
                reward_deadline="2026-01-01T00:00:00.000+00:00",
            )  # fmt: skip
            event = Event(
                task[row],
                dict(zip(names, context[row], strict=True)),
                at,
                decision,
                actions,
                mean=0.0,
                sd=1.0,
            )
            new.append(NewDecision(id_, None, at + 1, ACTIVE, encode(event)))
        service.journal.run(record_decisions(new))

        def rewards(connection: Any, first: int = start, values: list[float] = reward) -> None:
            connection.executemany(
                "INSERT INTO rewards (id, decision, value, at, late) VALUES (?, ?, ?, ?, 0)",
                [(f"r{first + k}", first + k + 1, value, at) for k, value in enumerate(values)],
            )

        service.journal.run(rewards)


@contextmanager
def timed(steps: dict[str, dict[str, float]], name: str, *, profile: bool = False) -> Iterator[None]:
    clock, cpu = time.perf_counter(), time.process_time()
    profiler = cProfile.Profile(time.process_time) if profile else None
    if profiler is not None:
        profiler.enable()
    yield
    if profiler is not None:
        profiler.disable()
    steps[name] = {"clock": time.perf_counter() - clock, "cpu": time.process_time() - cpu}
    if profiler is not None:
        pstats.Stats(profiler).sort_stats("cumtime").print_stats(45)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in (
        ("tasks", 10_000),
        ("rows", 1_000_000),
        ("actions", 10),
        ("contexts", 3),
        ("segments", 4),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--journal", type=int, default=0)
    parser.add_argument("--folder")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    truth = world(given.tasks, given.actions, given.contexts)
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        first = table(truth, 20 * given.tasks, 10**6)
        contexts = [f"x{c}" for c in range(given.contexts)]
        learner = HierOPO(logging="random").fit(
            first, task="task", action="action", reward="reward", context=contexts
        )
        settings = Settings(window=1.0, swap="better")
        service = Service(folder / "state", settings, policy=learner.save(folder / "policy"))
        steps: dict[str, dict[str, float]] = {}
        sealed(service, truth, given.rows, given.segments)
        if given.journal:
            journaled(service, truth, given.journal)
            with timed(steps, "seal", profile=given.profile):
                service.state.seal()
        with timed(steps, "refresh", profile=given.profile):
            print(service._refresh(None))
        service.close()
    sizes = {name: getattr(given, name) for name in ("tasks", "rows", "segments", "journal")}
    coefficients = given.actions * (given.contexts + 1)
    record.finish("serve_refresh", {**sizes, "coefficients": coefficients, "steps": steps})


if __name__ == "__main__":
    main()
