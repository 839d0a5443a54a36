"""James-Stein estimates of the means of tasks, action by action."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Codes = NDArray[np.int64]


def james_stein(task: Codes, action: Codes, reward: Array, shape: tuple[int, int]) -> Array:
    """Means of each task and action (m, K) drawn to those of their action, one moment estimate an action.

    An action without rows in a task has the mean of the action; one without any row has none, -inf.
    """
    m, actions = shape
    cell = task * actions + action
    count, total = (np.bincount(cell, values, m * actions).reshape(m, actions) for values in (None, reward))
    mean = total / np.maximum(count, 1)
    noise = float(((reward - mean.reshape(-1)[cell]) ** 2).sum() / max(reward.size - (count > 0).sum(), 1))
    score = np.full((m, actions), -np.inf)
    for a in range(actions):
        seen = count[:, a] > 0
        if not seen.any():
            continue
        y, v = mean[seen, a], noise / count[seen, a]
        centre = float((y / v).sum() / (1 / v).sum())
        between = max(float((((y - centre) ** 2 - v) / v).sum() / (1 / v).sum()), 0.0)
        centre = float((y / (v + between)).sum() / (1 / (v + between)).sum())
        score[:, a] = centre
        score[seen, a] = (between * y + v * centre) / (between + v)
    return score
