"""scikit-learn: a ridge regression for each task or of all tasks, its penalty by cross-validation."""

import numpy as np
from by_hand import intercept
from contract import Log, best_offered, run
from sklearn.linear_model import RidgeCV

PENALTIES = np.logspace(-2, 3, 11)


def action_columns(phi: np.ndarray, action: np.ndarray, count: int) -> np.ndarray:
    """Contexts in the columns of their action, zero elsewhere, (n, K p)."""
    columns = np.zeros((len(phi), count, phi.shape[1]))
    columns[np.arange(len(phi)), action] = phi
    return columns.reshape(len(phi), -1)


class PerTask:
    """One model a task with a coefficient for each action and context; one for all where a task has too few rows."""

    codes_actions = True

    def fit(self, log: Log) -> None:
        self.actions, self.models = log.actions, {}
        columns = action_columns(intercept(log.x), np.searchsorted(log.actions, log.action), log.actions.size)
        self.pooled = RidgeCV(PENALTIES).fit(columns, log.reward)
        order = np.argsort(log.task, kind="stable")
        tasks, first = np.unique(log.task[order], return_index=True)
        for task, rows in zip(tasks, np.split(order, first[1:]), strict=True):
            if rows.size >= 3:
                self.models[task] = RidgeCV(PENALTIES).fit(columns[rows], log.reward[rows])

    def scores(self, requests: Log) -> np.ndarray:
        phi, count = intercept(requests.x), self.actions.size
        scores = np.empty((len(phi), count))
        for task in np.unique(requests.task):
            rows = requests.task == task
            model = self.models.get(task, self.pooled)
            for k in range(count):
                columns = action_columns(phi[rows], np.full(rows.sum(), k), count)
                scores[rows, k] = model.predict(columns)
        return scores

    def choose(self, requests: Log) -> np.ndarray:
        return self.actions[self.scores(requests).argmax(axis=1)]


class Pooled:
    """One model of all tasks, with a coefficient for each action and context."""

    codes_actions = True

    def fit(self, log: Log) -> None:
        self.actions = log.actions
        columns = action_columns(intercept(log.x), np.searchsorted(log.actions, log.action), log.actions.size)
        self.model = RidgeCV(PENALTIES).fit(columns, log.reward)

    def scores(self, requests: Log) -> np.ndarray:
        phi, count = intercept(requests.x), self.actions.size
        by_action = [action_columns(phi, np.full(len(phi), k), count) for k in range(count)]
        return np.column_stack([self.model.predict(columns) for columns in by_action])

    def choose(self, requests: Log) -> np.ndarray:
        return self.actions[self.scores(requests).argmax(axis=1)]


class PooledMovies:
    """One model of all tasks on the features of actions."""

    def fit(self, log: Log) -> None:
        self.model = RidgeCV(PENALTIES).fit(log.features[log.action], log.reward)

    def choose(self, requests: Log) -> np.ndarray:
        return best_offered(requests.offered, self.model.predict(requests.features)[requests.offered])


class PerTaskMovies:
    """One model a task on the features of actions; one for all where a task has too few rows."""

    def fit(self, log: Log) -> None:
        phi, self.models = log.features[log.action], {}
        self.pooled = RidgeCV(PENALTIES).fit(phi, log.reward)
        for task in np.unique(log.task):
            rows = log.task == task
            if rows.sum() >= 3:
                self.models[task] = RidgeCV(PENALTIES).fit(phi[rows], log.reward[rows])

    def choose(self, requests: Log) -> np.ndarray:
        scores = np.empty(requests.offered.shape)
        for task in np.unique(requests.task):
            rows = requests.task == task
            of_action = self.models.get(task, self.pooled).predict(requests.features)
            scores[rows] = of_action[requests.offered[rows]]
        return best_offered(requests.offered, scores)


if __name__ == "__main__":
    run(
        {"scikit-learn, RidgeCV of each task": PerTask, "scikit-learn, RidgeCV of all tasks": Pooled},
        {
            "scikit-learn, RidgeCV of each task": PerTaskMovies,
            "scikit-learn, RidgeCV of all tasks": PooledMovies,
        },
    )
