"""A log of actions that have coefficients of their own, and its moments."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from reference.dense import Array

from hieropo.features.maps import Crossed, per_action
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitAccumulator


@dataclass(frozen=True)
class Log:
    """Rows of a log, and the map that reads them."""

    features: Crossed
    task: Array
    action: Array
    context: Array
    reward: Array
    weight: Array

    def where(self, keep: Any) -> "Log":
        arrays = (self.task, self.action, self.context, self.reward, self.weight)
        return Log(self.features, *(array[keep] for array in arrays))

    def units(self, pieces: int = 1) -> Moments:
        total = UnitAccumulator(self.features)
        for part in np.array_split(np.arange(len(self.task)), pieces):
            some = self.where(part)
            total.add(some.task, some.action, some.context, some.reward, some.weight)
        return total.moments()

    def dense(self) -> Moments:
        phi = self.features.phi(self.context, self.action)
        return Moments.from_arrays(
            self.task, phi, self.reward, self.weight, features=self.features.fingerprint
        )


def log(m: int = 6, K: int = 4, c: int = 2, n: int = 80, *, seed: int = 0, whole: bool = False) -> Log:
    """Draw a log; of whole numbers, whose sums are exact; the last action is taken once, the last task once."""
    rng = np.random.default_rng(seed)
    features = per_action([f"a{k}" for k in range(K)], [f"x{j}" for j in range(c)])
    task, action = 10 * rng.integers(0, m - 1, n), rng.integers(0, K - 1, n)
    task[0], action[0] = 10 * (m - 1), 0
    action[1] = K - 1
    if whole:
        return Log(
            features,
            task,
            action,
            rng.integers(-9, 10, (n, c)).astype(float),
            rng.integers(-9, 10, n).astype(float),
            np.ones(n),
        )
    return Log(
        features, task, action, rng.standard_normal((n, c)), rng.standard_normal(n), rng.uniform(0.5, 2.0, n)
    )
