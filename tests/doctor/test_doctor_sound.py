"""Logs that nothing is wrong with, of several shapes: none is said to stop learning, and few to limit it."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from hieropo import Examination, examine

SEEDS = 40
Rng = np.random.Generator


def log_of(
    rng: Rng,
    sizes: np.ndarray,
    shares: np.ndarray,
    reward: Callable[[np.ndarray], np.ndarray],
    contexts: int = 0,
) -> pa.Table:
    """Rows of tasks in random order; each action is drawn with the share (m, K) that its task gives it."""
    task = rng.permutation(np.repeat(np.arange(sizes.size), sizes))
    m, count = sizes.size, shares.shape[1]
    cumulated = shares.cumsum(axis=1)
    action = (rng.random(task.size)[:, None] > cumulated[task]).sum(axis=1).clip(max=count - 1)
    theta = rng.normal(0, 0.5, (m, count)) + rng.normal(0, 0.5, count)
    x = rng.normal(size=(task.size, contexts)) * rng.uniform(0.3, 3, contexts) + rng.normal(size=contexts)
    mean = theta[task, action] + x @ rng.normal(0, 0.3, contexts)
    columns = {f"x{j}": x[:, j] for j in range(contexts)}
    return pa.table(
        {"task": task, "action": action, "reward": reward(mean), "pscore": shares[task, action], **columns}
    )


def same(shares: list[float], tasks: int) -> np.ndarray:
    return np.tile(shares, (tasks, 1))


def normal(rng: Rng) -> pa.Table:
    return log_of(
        rng, np.full(60, 40), same([0.5, 0.3, 0.2], 60), lambda mean: mean + rng.normal(size=mean.size), 3
    )


def clicks(rng: Rng) -> pa.Table:
    tasks = 100
    chance = lambda mean: (rng.random(mean.size) < 0.1 * np.exp(0.3 * mean).clip(max=5)).astype(float)  # noqa: E731
    return log_of(rng, rng.integers(20, 120, tasks), same([0.25] * 4, tasks), chance)


def counts(rng: Rng) -> pa.Table:
    return log_of(
        rng,
        np.full(30, 80),
        same([0.4, 0.4, 0.2], 30),
        lambda mean: rng.poisson(np.exp(mean)).astype(float),
        1,
    )


def spending(rng: Rng) -> pa.Table:
    """Money: most spend nothing, some much."""
    amount = lambda mean: (rng.random(mean.size) < 0.3) * rng.lognormal(2 + 0.3 * mean, 1.0)  # noqa: E731
    return log_of(rng, np.full(50, 100), same([0.5, 0.5], 50), amount, 2)


def uneven(rng: Rng) -> pa.Table:
    """Few large tasks and many small ones."""
    sizes = np.maximum((2000 / np.arange(1, 301) ** 1.1).astype(int), 2)
    return log_of(rng, sizes, same([0.3, 0.3, 0.2, 0.2], 300), lambda mean: mean + rng.normal(size=mean.size))


def tiny(rng: Rng) -> pa.Table:
    """Many tasks of a few rows."""
    return log_of(
        rng, rng.integers(1, 8, 800), same([0.5, 0.5], 800), lambda mean: mean + rng.normal(size=mean.size)
    )


def designed(rng: Rng) -> pa.Table:
    """Shares that a design draws for each task, whatever is good there."""
    shares = 0.1 + 0.7 * rng.dirichlet([2.0, 2.0, 2.0], 80)
    shares /= shares.sum(axis=1, keepdims=True)
    return log_of(rng, np.full(80, 50), shares, lambda mean: mean + rng.normal(size=mean.size), 2)


def many_actions(rng: Rng) -> pa.Table:
    shares = rng.dirichlet(np.full(40, 5.0))
    return log_of(
        rng, np.full(40, 200), same(shares.tolist(), 40), lambda mean: mean + rng.normal(size=mean.size)
    )


def stratified(rng: Rng) -> pa.Table:
    """Each action once in each block of a task, in random order."""
    blocks, tasks, count = 10, 40, 4
    task = np.repeat(np.arange(tasks), blocks * count)
    action = np.concatenate([rng.permutation(count) for _ in range(tasks * blocks)])
    theta = rng.normal(0, 0.5, (tasks, count))
    return pa.table(
        {
            "task": task, "action": action, "reward": theta[task, action] + rng.normal(size=task.size),
            "pscore": np.full(task.size, 1 / count),
        }
    )  # fmt: skip


def dosed(rng: Rng) -> pa.Table:
    """Contexts move the probabilities of actions, which are logged."""
    n, tasks = 3000, 50
    task, x = rng.integers(tasks, size=n), rng.normal(size=n)
    chance = 0.1 + 0.8 / (1 + np.exp(-1.5 * x))
    action = (rng.random(n) < chance).astype(int)
    theta = rng.normal(0, 0.5, (tasks, 2))
    return pa.table(
        {
            "task": task, "action": action, "reward": theta[task, action] + 0.5 * x + rng.normal(size=n),
            "pscore": np.where(action == 1, chance, 1 - chance), "x0": x,
        }
    )  # fmt: skip


SHAPES = [normal, clicks, counts, spending, uneven, tiny, designed, many_actions, stratified, dosed]


def found_in(log: pa.Table) -> Examination:
    contexts = [name for name in log.schema.names if name.startswith("x")]
    return examine(log, task="task", action="action", reward="reward", pscore="pscore", context=contexts)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_a_sound_log_is_hardly_ever_found_fault_with(shape: Callable[[Rng], pa.Table]) -> None:
    limits: Counter[str] = Counter()
    for seed in range(SEEDS):
        found = found_in(shape(np.random.default_rng(seed)))
        assert not found.stops, str(found)
        limits.update(each.kind for each in found.of("limits"))
    assert limits.total() <= 0.05 * SEEDS, limits


def test_what_the_incumbent_seems_to_be_is_right_for_designs() -> None:
    """Without a column of times, what does not react to rewards is not told from what does."""
    rng = np.random.default_rng(0)
    seems = {shape.__name__: found_in(shape(rng)).facts["incumbent"]["seems"] for shape in SHAPES}
    assert seems == {
        "normal": "random", "clicks": "random", "counts": "random", "spending": "random", "uneven": "random",
        "tiny": "random", "designed": "frozen or adaptive", "many_actions": "random",
        "stratified": "in turns", "dosed": "random",
    }  # fmt: skip
