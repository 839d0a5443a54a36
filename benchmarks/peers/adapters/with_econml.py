"""EconML: doubly robust policy forests and trees with the number of the task as a feature."""

import numpy as np
from contract import Log, run
from econml.policy import DRPolicyForest, DRPolicyTree


class Learner:
    """The columns and decisions of both learners."""

    def columns(self, log: Log) -> np.ndarray:
        return np.concatenate([log.task[:, None].astype(float), log.x], axis=1)

    def fit(self, log: Log) -> None:
        self.actions, self.learner = log.actions, self.make()
        self.learner.fit(log.reward, log.action, X=self.columns(log))

    def choose(self, requests: Log) -> np.ndarray:
        return self.actions[self.learner.predict(self.columns(requests))]


class Forest(Learner):
    """DRPolicyForest with its defaults."""

    def make(self) -> DRPolicyForest:
        return DRPolicyForest(n_jobs=1, random_state=0)


class Tree(Learner):
    """DRPolicyTree with its defaults."""

    def make(self) -> DRPolicyTree:
        return DRPolicyTree(random_state=0)


if __name__ == "__main__":
    run({"EconML, DRPolicyForest": Forest, "EconML, DRPolicyTree": Tree})
