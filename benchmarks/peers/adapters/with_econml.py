"""EconML: a doubly robust policy forest with the number of the task as a feature."""

import numpy as np
from contract import Log, run
from econml.policy import DRPolicyForest


class Forest:
    """DRPolicyForest with its defaults."""

    def fit(self, log: Log) -> None:
        self.actions = log.actions
        columns = np.concatenate([log.task[:, None].astype(float), log.x], axis=1)
        self.forest = DRPolicyForest(n_jobs=1, random_state=0)
        self.forest.fit(log.reward, log.action, X=columns)

    def choose(self, requests: Log) -> np.ndarray:
        columns = np.concatenate([requests.task[:, None].astype(float), requests.x], axis=1)
        return self.actions[self.forest.predict(columns)]


if __name__ == "__main__":
    run({"EconML, DRPolicyForest": Forest})
