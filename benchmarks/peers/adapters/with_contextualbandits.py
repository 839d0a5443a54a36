"""contextualbandits: LinUCB on [x, task, x (x) task], and a policy of each task; both exploit when they decide."""

import numpy as np
from by_hand import Coded, wide
from contextualbandits.online import LinUCB
from contract import Log, run

LARGEST = 4_000  # columns of a dense matrix for each action


def policy(actions: np.ndarray) -> LinUCB:
    return LinUCB(
        actions.size, alpha=0.1, lambda_=1.0, beta_prior=None, smoothing=None, njobs=1, random_state=1
    )


class Wide:
    """One policy of all tasks on dense columns."""

    codes_actions = True

    def columns(self, log: Log) -> np.ndarray:
        phi = np.concatenate([np.ones((len(log.x), 1)), log.x], axis=1)
        count = self.tasks.known.size * phi.shape[1]
        if count > LARGEST:
            raise MemoryError(f"{count} columns need a dense matrix of their square for each action")
        return wide(phi, self.tasks.codes(log.task), self.tasks.known.size).toarray()[:, 1:]

    def fit(self, log: Log) -> None:
        self.tasks, self.actions = Coded(log.task), log.actions
        self.policy = policy(log.actions)
        self.policy.fit(self.columns(log), np.searchsorted(log.actions, log.action), log.reward)

    def scores(self, requests: Log) -> np.ndarray:
        return self.policy.decision_function(self.columns(requests))

    def choose(self, requests: Log) -> np.ndarray:
        return self.actions[self.policy.predict(self.columns(requests), exploit=True).astype(int)]


class PerTask:
    """One policy a task, on contexts alone."""

    codes_actions = True

    def fit(self, log: Log) -> None:
        self.actions, self.policies = log.actions, {}
        code = np.searchsorted(log.actions, log.action)
        x = log.x if log.x.shape[1] else np.zeros((len(log.task), 1))
        order = np.argsort(log.task, kind="stable")
        tasks, first = np.unique(log.task[order], return_index=True)
        for task, rows in zip(tasks, np.split(order, first[1:]), strict=True):
            self.policies[task] = policy(log.actions).fit(x[rows], code[rows], log.reward[rows])

    def choose(self, requests: Log) -> np.ndarray:
        chosen = np.empty(len(requests.task), dtype=self.actions.dtype)
        x = requests.x if requests.x.shape[1] else np.zeros((len(requests.task), 1))
        for task in np.unique(requests.task):
            rows = requests.task == task
            chosen[rows] = self.actions[self.policies[task].predict(x[rows], exploit=True).astype(int)]
        return chosen


if __name__ == "__main__":
    run(
        {
            "contextualbandits, LinUCB on [x, x (x) task]": Wide,
            "contextualbandits, LinUCB of each task": PerTask,
        }
    )
