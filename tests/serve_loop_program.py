"""Serve a simulated world for some refreshes: delayed rewards, drift and a new action; print what happened.

Run as ``python serve_loop_program.py <directory> [--refreshes 30] [--decisions 600] [--seed 0] [--drift 0.02]``; writes
one JSON document. The world has 30 tasks and 3 actions, and a fourth one after a third of the time, which the incumbent
takes first. The effects of actions move a little from day to day (``--drift``, the sd of a step). Each day decisions
are made, rewards come after them, windows close, and a refresh learns. Off-policy estimates of yesterday's log for
today's policy are compared with today's rewards.

Where today's policy learned from yesterday's rows, the estimate is cross-fitted: each fifth of the rows is weighted by
the policy that the refresh would have learned without it. ``covered_in_sample`` counts the intervals of estimates that
take today's policy on the rows from which it learned.
"""

import argparse
import asyncio
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hieropo import HierOPO
from hieropo.errors import HieropoWarning
from hieropo.serve import Service, Settings
from hieropo.serve.deciding import Engine
from hieropo.serve.learning import RunningTotal, current, learned, with_rows
from hieropo.serve.messages import DecideRequest, Decision, Reward
from hieropo.serve.segments import read_rows

TASKS, ACTIONS, NOISE = 30, ("a", "b", "c"), 0.5
FOLDS = 5


class World:
    """Expected rewards that drift."""

    def __init__(self, seed: int, drift: float) -> None:
        self.rng, self.step = np.random.default_rng(seed), drift
        self.effects = {action: self.draw(0.2 * place) for place, action in enumerate(ACTIONS)}

    def draw(self, mean: float) -> np.ndarray:
        return mean + self.rng.normal(scale=[0.4, 0.3], size=(TASKS, 2))

    def drift(self) -> None:
        for action in self.effects:
            self.effects[action] = self.effects[action] + self.step * self.rng.normal(size=(TASKS, 2))

    def mean(self, task: int, age: float, action: str) -> float:
        intercept, slope = self.effects[action][task]
        return float(intercept + slope * age)

    def first_log(self, rows: int) -> pa.Table:
        task, age = self.rng.integers(TASKS, size=rows), self.rng.normal(size=rows)
        action = self.rng.choice(ACTIONS, size=rows)
        means = [self.mean(t, x, a) for t, x, a in zip(task, age, action, strict=True)]
        return pa.table(
            {"task": task, "action": action, "reward": means + NOISE * self.rng.normal(size=rows), "age": age}
        )


def served_day(
    service: Service, world: World, decisions: int, day: int, incumbent: str | None
) -> dict[str, float]:
    """Decide and reward for a day, and close its windows; return regret and mean reward."""
    rng = world.rng
    requests = [
        DecideRequest(
            task=int(rng.integers(TASKS)), context={"age": float(rng.normal())}, decision_id=f"{day}-{n}",
            incumbent=incumbent,
        )
        for n in range(decisions)
    ]  # fmt: skip
    answers = asyncio.run(service.decide(requests))
    rewards, regret = [], 0.0
    for request, answer in zip(requests, answers, strict=True):
        task, age = int(request.task), request.context["age"]
        mean = world.mean(task, age, answer.action)
        regret += max(world.mean(task, age, action) for action in world.effects) - mean
        rewards.append(
            Reward(f"r{answer.decision_id}", answer.decision_id, mean + NOISE * float(rng.normal()))
        )
    order = rng.permutation(len(rewards))  # late, and in another order
    service.clock._origin += 30_000_000
    statuses = asyncio.run(service.reward([rewards[place] for place in order]))
    assert all(status.status == "recorded" for status in statuses)
    service.clock._origin += 60_000_000
    service.start("seal")
    service.wait()
    values = np.array([reward.value for reward in rewards])
    return {
        "regret": regret / decisions,
        "reward": float(values.mean()),
        "se": float(values.std() / np.sqrt(decisions)),
    }


Estimate = tuple[float, float]


def predicted(parts: Sequence[tuple[pa.Table, Engine]], service: Service) -> Estimate:
    """Return the SNIPS estimate of a policy's reward from the parts of a day's log, and its standard error.

    Each part is weighted by a policy of its own, which draws as the service does, with the same floor and no control
    share.
    """
    ratio = np.concatenate([ratios(rows, engine, service) for rows, engine in parts])
    reward = np.concatenate([rows["reward"].to_numpy() for rows, _ in parts])
    mean = (ratio * reward).sum() / ratio.sum()
    return float(mean), float(np.sqrt(np.sum((ratio * (reward - mean)) ** 2)) / ratio.sum())


def ratios(rows: pa.Table, engine: Engine, service: Service) -> np.ndarray:
    """Return the probability of each row's action under a policy over its propensity, (n,)."""
    requests = [
        DecideRequest(task=task, context={"age": age})
        for task, age in zip(rows["task"].to_pylist(), rows["age"].to_pylist(), strict=True)
    ]
    active, service.engine = service.engine, engine
    decisions = [msgspec.json.decode(made.answer, type=Decision) for made in service._prepared(requests)]
    service.engine = active
    probabilities = [
        next((entry.probability for entry in decision.probabilities if entry.action == action), 0.0)
        for decision, action in zip(decisions, rows["action"].to_pylist(), strict=True)
    ]
    return np.array(probabilities) / rows["propensity"].to_numpy()


def without_each(
    rows: pa.Table, before: RunningTotal, service: Service, folder: Path
) -> list[tuple[pa.Table, Engine]]:
    """Return each fifth of a day's rows, and the policy that a refresh learns from all other rows."""
    state, settings = service.state, service.settings
    created = state.manifest.created
    fold = np.arange(rows.num_rows) % FOLDS
    parts = []
    for number in range(FOLDS):
        total = with_rows(before, rows.filter(pa.array(fold != number)), state.columns, settings, created)
        learner, _ = learned(current(total, settings, created), state.learner())
        path = folder / "folds" / f"{state.manifest.segments[-1].number}-{number}"
        learner.save(path, provenance={"noise_sd": learner.noise_sd})
        parts.append((rows.filter(pa.array(fold == number)), Engine.load(0, path, state.columns)))
    return parts


def covers(estimate: Estimate, day: dict[str, float]) -> bool:
    """Return True where a day's mean reward is in the 95 % interval of its estimate."""
    return bool(abs(estimate[0] - day["reward"]) <= 1.96 * np.hypot(estimate[1], day["se"]))


def run(folder: Path, refreshes: int, decisions: int, seed: int, drift: float) -> dict[str, Any]:
    """Serve the world, and return what was found."""
    warnings.simplefilter("ignore", HieropoWarning)
    (folder / "folds").mkdir(parents=True, exist_ok=True)
    world = World(seed, drift)
    columns = {"task": "task", "action": "action", "reward": "reward", "context": ["age"]}
    first = HierOPO(logging="random").fit(world.first_log(300), **columns).save(folder / "policy")
    settings = Settings(
        window=60.0, exploration="sampling", floor=0.1, control=0.2, swap="not-worse", half_life=90.0 * 15,
    )  # fmt: skip
    service = Service(folder / "state", settings, policy=first, seed=seed)
    days: list[float] = []
    covered, in_sample = 0, 0
    intervals, swaps = 0, 0
    yesterday, before = None, service.state.total()
    for day in range(refreshes):
        start = refreshes // 3
        if day == start:
            world.effects["d"] = world.draw(0.8)
        incumbent = "d" if start <= day < start + 3 else None  # then the policy knows it
        estimates = None
        if yesterday is not None and not incumbent:
            version = service.state.manifest.version(service.engine.number)
            unseen = version is not None and version.through < service.state.manifest.segments[-1].number
            whole = [(yesterday, service.engine)]
            parts = whole if unseen else without_each(yesterday, before, service, folder)
            estimates = predicted(parts, service), predicted(whole, service)
        found = served_day(service, world, decisions, day, incumbent)
        if estimates is not None:
            intervals += 1
            covered += covers(estimates[0], found)
            in_sample += covers(estimates[1], found)
        segments = service.state.manifest.segments[-1:]
        rows = read_rows(service.state.path, segments, "log", service.state.columns)
        yesterday, before = None if incumbent else rows, service.state.total()
        job = service.start("refresh")
        service.wait()
        ended = service.job(job.job_id)
        swaps += ended is not None and " is active" in str(ended.result)
        days.append(found["regret"])
        world.drift()
    found = {
        "refreshes": refreshes, "swaps": swaps, "regret_first_days": float(np.mean(days[:3])),
        "regret_last_days": float(np.mean(days[-3:])), "days": [round(day, 4) for day in days],
        "intervals": intervals, "covered": covered, "covered_in_sample": in_sample,
        "knows_the_new_action": "d" in service.engine.actions, "calibration_z": calibration(service),
    }  # fmt: skip
    service.close()
    return found


def calibration(service: Service) -> float:
    """Return the standardised mean of 1 / p - K over all rows, which has mean 0 where propensities are right.

    The expectation of 1 / p of the action that was drawn is the number K of actions with a positive probability.
    """
    rows = read_rows(service.state.path, service.state.manifest.segments, "log", service.state.columns)
    excess = 1.0 / rows["propensity"].to_numpy() - pc.list_value_length(rows["eligible"]).to_numpy()
    return float(excess.mean() / (excess.std() / np.sqrt(excess.size)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    for name, value in (("refreshes", 30), ("decisions", 600), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--drift", type=float, default=0.02)
    given = parser.parse_args()
    found = run(given.directory, given.refreshes, given.decisions, given.seed, given.drift)
    sys.stdout.write(json.dumps(found) + "\n")
