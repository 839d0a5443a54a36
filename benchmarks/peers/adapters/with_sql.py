"""The two queries of a team that has a database: the best mean of each task, and the best action for all."""

import duckdb
import numpy as np
from contract import Log, best_offered, run

BEST_FOR_ALL = "select action from log group by action order by avg(reward) desc limit 1"
MEANS = "select action, avg(reward) as mean from log group by action"
BEST_OF_TASK = """
    select distinct on (task) task, action from (
        select task, action, avg(reward) as mean from log group by task, action
    ) order by task, mean desc
"""


class BestForAll:
    """One action for all requests."""

    def fit(self, log: Log) -> None:
        with duckdb.connect() as database:
            database.register("log", log.table)
            self.action = database.sql(BEST_FOR_ALL).fetchall()[0][0]

    def choose(self, requests: Log) -> np.ndarray:
        return np.full(len(requests.table), self.action)


class BestOfTask(BestForAll):
    """The action with the best mean of the task, else the best for all."""

    def fit(self, log: Log) -> None:
        super().fit(log)
        with duckdb.connect() as database:
            database.register("log", log.table)
            self.best = database.sql(BEST_OF_TASK).to_arrow_table()

    def choose(self, requests: Log) -> np.ndarray:
        with duckdb.connect() as database:
            best, table = self.best, requests.table.append_column("row", [np.arange(len(requests.table))])
            database.register("best", best)
            database.register("requests", table)
            query = (
                "select coalesce(action, ?) as action from requests left join best using (task) order by row"
            )
            found = database.execute(query, [self.action]).to_arrow_table()
        return found["action"].to_numpy(zero_copy_only=False)


class BestMovie:
    """The offered action with the best mean in the log, without its features."""

    def fit(self, log: Log) -> None:
        with duckdb.connect() as database:
            database.register("log", log.table)
            self.means = database.sql(MEANS).to_arrow_table()
        self.mean = log.reward.mean()

    def choose(self, requests: Log) -> np.ndarray:
        of_action = np.full(requests.actions.size, self.mean)
        of_action[self.means["action"].to_numpy()] = self.means["mean"].to_numpy()
        return best_offered(requests.offered, of_action[requests.offered])


if __name__ == "__main__":
    run(
        {"SQL, best action for all": BestForAll, "SQL, best mean of the task": BestOfTask},
        {"SQL, best action for all": BestMovie},
    )
