"""mabwiser: a policy of each task, and one with clusters of rows on contexts and the task as 0/1 columns."""

import numpy as np
from by_hand import Coded
from contract import Log, run
from mabwiser.mab import MAB, LearningPolicy, NeighborhoodPolicy

LARGEST = 1_000  # tasks as dense columns


class PerTask:
    """LinGreedy without exploration in each task, EpsilonGreedy where there are no contexts."""

    def fit(self, log: Log) -> None:
        self.policies, self.dtype = {}, log.actions.dtype
        order = np.argsort(log.task, kind="stable")
        tasks, first = np.unique(log.task[order], return_index=True)
        rule = (
            LearningPolicy.LinGreedy(epsilon=0, l2_lambda=1)
            if log.x.size
            else LearningPolicy.EpsilonGreedy(0)
        )
        for task, rows in zip(tasks, np.split(order, first[1:]), strict=True):
            self.policies[task] = MAB(log.actions.tolist(), rule)
            self.policies[task].fit(log.action[rows], log.reward[rows], log.x[rows] if log.x.size else None)

    def choose(self, requests: Log) -> np.ndarray:
        chosen = np.empty(len(requests.task), dtype=self.dtype)
        for task in np.unique(requests.task):
            rows = requests.task == task
            chosen[rows] = self.policies[task].predict(requests.x[rows] if requests.x.size else None)
        return chosen


class Clusters:
    """Clusters of contexts and tasks, with LinGreedy in each."""

    def columns(self, log: Log) -> np.ndarray:
        code = self.tasks.codes(log.task)
        if self.tasks.known.size > LARGEST:
            raise MemoryError(f"{self.tasks.known.size} tasks as dense 0/1 columns")
        return np.concatenate([log.x, np.eye(self.tasks.known.size)[code] * (code >= 0)[:, None]], axis=1)

    def fit(self, log: Log) -> None:
        self.tasks = Coded(log.task)
        self.policy = MAB(
            log.actions.tolist(),
            LearningPolicy.LinGreedy(epsilon=0, l2_lambda=1),
            NeighborhoodPolicy.Clusters(5),
        )
        self.policy.fit(log.action, log.reward, self.columns(log))

    def choose(self, requests: Log) -> np.ndarray:
        return np.array(self.policy.predict(self.columns(requests)))


if __name__ == "__main__":
    run({"mabwiser, policy of each task": PerTask, "mabwiser, Clusters": Clusters})
