"""James-Stein estimates by action, without contexts, in numpy."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "experiments"))
import numpy as np
from by_hand import Coded
from contract import Log, run
from james_stein import james_stein


class JamesStein:
    """Means of each task and action drawn to those of the action."""

    codes_actions = True

    def fit(self, log: Log) -> None:
        self.tasks, self.actions = Coded(log.task), log.actions
        action = np.searchsorted(log.actions, log.action)
        shape = self.tasks.known.size, log.actions.size
        self.means = james_stein(self.tasks.codes(log.task), action, log.reward, shape)
        self.of_action = np.array([log.reward[action == k].mean() for k in range(shape[1])])

    def scores(self, requests: Log) -> np.ndarray:
        code = self.tasks.codes(requests.task)
        return np.where(code[:, None] < 0, self.of_action, self.means[code])

    def choose(self, requests: Log) -> np.ndarray:
        return self.actions[self.scores(requests).argmax(axis=1)]


if __name__ == "__main__":
    run({"James-Stein by action": JamesStein})
