"""bayesianbandits: agents whose arms have empirical-Bayes regressions, on [x, x (x) task] or of each task."""

import numpy as np
import scipy.sparse as sp
from bayesianbandits import Arm, ContextualAgent, EmpiricalBayesNormalRegressor, EpsilonGreedy
from by_hand import Coded, intercept, wide
from contract import Log, best_offered, run


def agent(actions: np.ndarray, *, sparse: bool) -> ContextualAgent:
    arms = [Arm(action, learner=EmpiricalBayesNormalRegressor(sparse=sparse)) for action in actions.tolist()]
    return ContextualAgent(arms, EpsilonGreedy(epsilon=0.0), random_seed=0)


class Wide:
    """One agent; each arm has a regression on [x, x (x) task]."""

    def columns(self, log: Log) -> sp.csc_array:
        code = self.tasks.codes(log.task)
        return sp.csc_array(wide(intercept(log.x), code, self.tasks.known.size))

    def fit(self, log: Log) -> None:
        self.tasks, self.agent = Coded(log.task), agent(log.actions, sparse=True)
        columns = self.columns(log).tocsr()
        for arm in self.agent.arms:
            rows = log.action == arm.action_token
            arm.learner.fit(sp.csc_array(columns[rows]), log.reward[rows])

    def choose(self, requests: Log) -> np.ndarray:
        return np.array(self.agent.pull(self.columns(requests)))

    def scores(self, requests: Log) -> np.ndarray:
        columns = self.columns(requests)
        by_action = {arm.action_token: arm.learner.predict(columns) for arm in self.agent.arms}
        return np.column_stack([by_action[action] for action in requests.actions.tolist()])

    def interval(self, request: Log, action: object) -> tuple:
        arm = next(arm for arm in self.agent.arms if arm.action_token == action)
        draws = arm.learner.sample(self.columns(request), size=1_000)
        return tuple(np.quantile(draws, (0.025, 0.975)))


class PerTask:
    """One agent a task; a new task has an agent without rows."""

    def fit(self, log: Log) -> None:
        self.actions, self.agents, phi = log.actions, {}, intercept(log.x)
        order = np.argsort(log.task, kind="stable")
        tasks, first = np.unique(log.task[order], return_index=True)
        for task, rows in zip(tasks, np.split(order, first[1:]), strict=True):
            self.agents[task] = agent(log.actions, sparse=False)
            for arm in self.agents[task].arms:
                mine = rows[log.action[rows] == arm.action_token]
                if mine.size:
                    arm.learner.fit(phi[mine], log.reward[mine])

    def choose(self, requests: Log) -> np.ndarray:
        chosen, phi = np.empty(len(requests.task), dtype=self.actions.dtype), intercept(requests.x)
        for task in np.unique(requests.task):
            rows = requests.task == task
            chosen[rows] = self.agents.get(task, agent(self.actions, sparse=False)).pull(phi[rows])
        return chosen

    def interval(self, request: Log, action: object) -> tuple:
        arm = next(arm for arm in self.agents[request.task[0]].arms if arm.action_token == action)
        return tuple(np.quantile(arm.learner.sample(intercept(request.x), size=1_000), (0.025, 0.975)))


class WideMovies:
    """One regression on [phi, phi (x) task], with phi the features of actions."""

    def fit(self, log: Log) -> None:
        self.tasks = Coded(log.task)
        columns = wide(log.features[log.action], self.tasks.codes(log.task), self.tasks.known.size)
        self.learner = EmpiricalBayesNormalRegressor(sparse=True).fit(sp.csc_array(columns), log.reward)

    def choose(self, requests: Log) -> np.ndarray:
        code = np.repeat(self.tasks.codes(requests.task), requests.offered.shape[1])
        columns = wide(requests.features[requests.offered.ravel()], code, self.tasks.known.size)
        scores = self.learner.predict(sp.csc_array(columns))
        return best_offered(requests.offered, scores.reshape(requests.offered.shape))


class PerTaskMovies:
    """One regression a task on the features of actions."""

    def fit(self, log: Log) -> None:
        self.learners, phi = {}, log.features[log.action]
        for task in np.unique(log.task):
            rows = log.task == task
            self.learners[task] = EmpiricalBayesNormalRegressor(sparse=False).fit(phi[rows], log.reward[rows])

    def choose(self, requests: Log) -> np.ndarray:
        scores = np.zeros(requests.offered.shape)
        for task in np.unique(requests.task):
            if task in self.learners:
                rows = requests.task == task
                of_action = self.learners[task].predict(requests.features)
                scores[rows] = of_action[requests.offered[rows]]
        return best_offered(requests.offered, scores)


if __name__ == "__main__":
    run(
        {"bayesianbandits, [x, x (x) task]": Wide, "bayesianbandits, agent of each task": PerTask},
        {
            "bayesianbandits, [x, x (x) task]": WideMovies,
            "bayesianbandits, agent of each task": PerTaskMovies,
        },
    )
