"""Serve a simulated world for some refreshes: delayed rewards, drift and a new action; print what happened.

Run as ``python serve_loop_program.py <directory> [--refreshes 30] [--decisions 600] [--seed 0]``; writes one JSON
document. The world has 30 tasks and 3 actions, and a fourth one after a third of the time, which the incumbent takes
first. The effects of actions move a little from day to day. Each day decisions are made, rewards come after them,
windows close, and a refresh learns. Off-policy estimates of yesterday's log for today's policy are compared with
today's rewards.
"""

import argparse
import asyncio
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hieropo import HierOPO
from hieropo.errors import HieropoWarning
from hieropo.serve import Service, Settings
from hieropo.serve.messages import DecideRequest, Decision, Reward
from hieropo.serve.segments import read_rows

TASKS, ACTIONS, NOISE = 30, ("a", "b", "c"), 0.5


class World:
    """Expected rewards that drift."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.effects = {action: self.draw(0.2 * place) for place, action in enumerate(ACTIONS)}

    def draw(self, mean: float) -> np.ndarray:
        return mean + self.rng.normal(scale=[0.4, 0.3], size=(TASKS, 2))

    def drift(self) -> None:
        for action in self.effects:
            self.effects[action] = self.effects[action] + self.rng.normal(scale=0.02, size=(TASKS, 2))

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


def predicted(rows: pa.Table, service: Service) -> tuple[float, float] | None:
    """Return the IPS estimate of the reward of the active policy from a day's log, and its standard error.

    The active policy draws as the service does, with the same floor and no control share.
    """
    requests = [
        DecideRequest(task=task, context={"age": age})
        for task, age in zip(rows["task"].to_pylist(), rows["age"].to_pylist(), strict=True)
    ]
    decisions = [msgspec.json.decode(made.answer, type=Decision) for made in service._prepared(requests)]
    actions, propensity, reward = (rows[name].to_pylist() for name in ("action", "propensity", "reward"))
    ratio = np.array(
        [
            next((entry.probability for entry in decision.probabilities if entry.action == action), 0.0)
            for decision, action in zip(decisions, actions, strict=True)
        ]
    ) / np.array(propensity)
    values = ratio * np.array(reward)
    mean = values.sum() / ratio.sum()  # self-normalised
    return float(mean), float(np.sqrt(np.sum((ratio * (np.array(reward) - mean)) ** 2)) / ratio.sum())


def run(folder: Path, refreshes: int, decisions: int, seed: int) -> dict[str, Any]:
    """Serve the world, and return what was found."""
    warnings.simplefilter("ignore", HieropoWarning)
    folder.mkdir(parents=True, exist_ok=True)
    world = World(seed)
    columns = {"task": "task", "action": "action", "reward": "reward", "context": ["age"]}
    first = HierOPO(logging="random").fit(world.first_log(300), **columns).save(folder / "policy")
    settings = Settings(
        window=60.0, exploration="sampling", floor=0.1, control=0.2, swap="not-worse", half_life=90.0 * 15,
    )  # fmt: skip
    service = Service(folder / "state", settings, policy=first, seed=seed)
    days: list[float] = []
    covered: list[bool] = []
    swaps, yesterday = 0, None
    for day in range(refreshes):
        start = refreshes // 3
        if day == start:
            world.effects["d"] = world.draw(0.8)
        incumbent = "d" if start <= day < start + 3 else None  # then the policy knows it
        estimate = None if yesterday is None or incumbent else predicted(yesterday, service)
        found = served_day(service, world, decisions, day, incumbent)
        if estimate is not None:
            covered.append(abs(estimate[0] - found["reward"]) <= 1.96 * np.hypot(estimate[1], found["se"]))
        segments = service.state.manifest.segments[-1:]
        rows = read_rows(service.state.path, segments, "log", service.state.columns)
        yesterday = None if incumbent else rows
        job = service.start("refresh")
        service.wait()
        ended = service.job(job.job_id)
        swaps += ended is not None and " is active" in str(ended.result)
        days.append(found["regret"])
        world.drift()
    found = {
        "refreshes": refreshes, "swaps": swaps, "regret_first_days": float(np.mean(days[:3])),
        "regret_last_days": float(np.mean(days[-3:])), "days": [round(day, 4) for day in days],
        "intervals": len(covered), "covered": int(np.sum(covered)),
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
    given = parser.parse_args()
    sys.stdout.write(json.dumps(run(given.directory, given.refreshes, given.decisions, given.seed)) + "\n")
