"""Open Bandit Pipeline: its learners of one policy for all rows, with the task as 0/1 columns."""

import numpy as np
from by_hand import Coded
from contract import Log, run
from obp.policy import IPWLearner, QLearner
from sklearn.linear_model import LogisticRegression, Ridge

LARGEST = 1_000  # tasks as dense columns


class Pooled:
    """The columns and decisions of both learners."""

    codes_actions = True

    def columns(self, log: Log) -> np.ndarray:
        code = self.tasks.codes(log.task)
        if self.tasks.known.size > LARGEST:
            raise MemoryError(f"{self.tasks.known.size} tasks as dense 0/1 columns")
        return np.concatenate([log.x, np.eye(self.tasks.known.size)[code] * (code >= 0)[:, None]], axis=1)

    def choose(self, requests: Log) -> np.ndarray:
        return self.actions[self.learner.predict(self.columns(requests))[:, :, 0].argmax(axis=1)]


class Ipw(Pooled):
    """IPWLearner with a logistic regression; it takes rewards that are not negative."""

    def fit(self, log: Log) -> None:
        self.tasks, self.actions = Coded(log.task), log.actions
        self.learner = IPWLearner(log.actions.size, base_classifier=LogisticRegression(max_iter=1_000))
        action = np.searchsorted(log.actions, log.action)
        reward = log.reward - min(log.reward.min(), 0.0)
        self.learner.fit(self.columns(log), action, reward, pscore=log.p)


class Q(Pooled):
    """QLearner with a ridge regression."""

    def fit(self, log: Log) -> None:
        self.tasks, self.actions = Coded(log.task), log.actions
        self.learner = QLearner(log.actions.size, base_model=Ridge())
        self.learner.fit(
            self.columns(log), np.searchsorted(log.actions, log.action), log.reward, pscore=log.p
        )


if __name__ == "__main__":
    run({"sb-obp, IPWLearner": Ipw, "sb-obp, QLearner": Q})
