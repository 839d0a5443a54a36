"""hieropo: one learner of all tasks."""

from pathlib import Path

import numpy as np
from contract import Log, run

from hieropo import HierOPO, load_learner
from hieropo.features import embedding


class Default:
    """HierOPO() as it comes; actions chosen at random were said to be so."""

    def fit(self, log: Log) -> None:
        columns = {"task": "task", "action": "action", "reward": "reward", "context": list(log.columns)}
        self.learner = HierOPO(logging="random").fit(log.table, **columns)

    def choose(self, requests: Log) -> np.ndarray:
        return self.learner.predict(requests.table)

    def choose_eligible(self, requests: Log, may: np.ndarray) -> np.ndarray:
        known = np.isin(requests.actions, self.learner.features_.actions)
        lists = [requests.actions[row & known].tolist() for row in may]
        return self.learner.predict(requests.table.append_column("may", [lists]), eligible="may")

    def scores(self, requests: Log) -> np.ndarray:
        ranked = self.learner.decide(requests.table, id=[], top=requests.actions.size).table
        action = np.searchsorted(requests.actions, ranked["action"].to_numpy(zero_copy_only=False))
        scores = np.full((len(requests.table), requests.actions.size), -np.inf)
        scores[ranked["row"].to_numpy(), action] = ranked["mean"].to_numpy()
        return scores

    def interval(self, request: Log, action: object) -> tuple:
        values = {name: request.table[name][0].as_py() for name in ("task", *request.columns)}
        choice = self.learner.choose({**values, "may": [action]}, eligible="may")
        return choice.mean - 1.96 * choice.sd, choice.mean + 1.96 * choice.sd

    def save(self, folder: Path) -> None:
        self.learner.save(folder / "policy")

    def load(self, folder: Path) -> None:
        self.learner = load_learner(folder / "policy")


class Movies:
    """HierOPO on the features of actions."""

    def fit(self, log: Log) -> None:
        features = embedding(log.actions.tolist(), log.features)
        learner = HierOPO(features=features, logging="random")
        self.learner = learner.fit(log.table, task="task", action="action", reward="reward")

    def choose(self, requests: Log) -> np.ndarray:
        return self.learner.predict(requests.table, eligible="offered")


if __name__ == "__main__":
    run({"HierOPO": Default}, {"HierOPO": Movies})
