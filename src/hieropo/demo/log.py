"""The logs that ship with the package, the roles of their columns, and their rows as arrays."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo.errors import HieropoWarning, InputError
from hieropo.learners.baselines import FlatOPO, PooledOPO
from hieropo.learners.hieropo import HierOPO
from hieropo.logs.opening import open_log
from hieropo.logs.reading import read
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.batches import Roles
from hieropo.rows.keys import Keys

Learner = Callable[[], HierOPO]


@dataclass(frozen=True)
class Scenario:
    """A shipped log, and the policies that are compared on it.

    Parameters
    ----------
    name : str
        Of the Parquet file.
    about, task_noun, unit : str
        What the log is, what a task is (in the plural), what a reward is.
    roles : Roles
    learners : pairs of a name and a function that makes a learner
    incumbent : str
        Name of the policy that every other one is compared with.
    notes : tuple of str
        What the numbers do not say.
    judged_on, made_by_incumbent : (column, value), optional
        Rows on which policies are judged, and rows that show the incumbent; default all.
    eligible : callable, optional
        Whether an action can be taken in a task; default always.
    question : str
        Title of the report.
    """

    name: str
    about: str
    task_noun: str
    unit: str
    roles: Roles
    learners: tuple[tuple[str, Learner], ...]
    incumbent: str
    notes: tuple[str, ...]
    judged_on: tuple[str, str] | None = None
    made_by_incumbent: tuple[str, str] | None = None
    eligible: Callable[[Any, Any], bool] | None = None
    question: str = ""


def one_action() -> HierOPO:
    """Learner of the single action with the largest mean reward."""
    return PooledOPO("indicator", pessimism=0.0)


_LEARNERS: tuple[tuple[str, Learner], ...] = (
    ("HierOPO", HierOPO),
    ("FlatOPO", FlatOPO),
    ("PooledOPO", PooledOPO),
)

SCENARIOS = {
    "thornton": Scenario(
        name="thornton",
        about="incentives drawn at random to collect the result of a test in rural Malawi (Thornton 2008)",
        task_noun="villages",
        unit="share that collects the result, less 0.08 for each dollar of incentive",
        roles=Roles("villnum", "incentive", "reward", "pscore", context=("age", "distvct")),
        learners=(*_LEARNERS, ("one action for all", one_action)),
        incumbent="the incentives as drawn",
        notes=(
            "The 0.08 and the cuts between the four incentives are choices of this demonstration.",
            "Propensities are the shares of the incentives in the whole log; they differ between villages.",
        ),
        question="Should each village get the incentive that was learned for it, and not one drawn at random?",
    ),
    "obd": Scenario(
        name="obd",
        about="fashion items in three places of three campaigns, ZOZOTOWN (Open Bandit Dataset, sample)",
        task_noun="places",
        unit="clicks an impression",
        roles=Roles("task", "item", "click", "propensity"),
        learners=_LEARNERS,
        incumbent="Thompson sampling as logged",
        notes=(
            "Policies learn from the random and the Thompson sampling log, and are judged on the random one.",
            "Contexts are left out: every visitor of a place gets the same item.",
        ),
        judged_on=("behavior_policy", "random"),
        made_by_incumbent=("behavior_policy", "bts"),
        eligible=lambda task, item: str(task).partition("-")[0] == str(item).partition("-")[0],
    ),
}


class DemoLog:
    """The rows of a scenario as arrays, n rows of m tasks."""

    rows: Any
    reward: Array
    context: Array
    pscore: Array
    keys: Keys
    tasks: Codes
    judged: Mask
    incumbent: Mask

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        with as_file(files("hieropo.data") / f"{scenario.name}.parquet") as path:
            source = open_log(path)
            self.rows = next(source.batches(source.schema.names, batch_rows=2**30))
        batch = next(iter(read(self.rows, scenario.roles, batch_rows=2**30)))
        if batch.action is None or batch.pscore is None:
            raise InputError(f"The log {scenario.name!r} needs actions and propensities.")
        self.action: NDArray[Any] = batch.action
        self.reward, self.context, self.pscore = batch.reward, batch.context, batch.pscore
        self.keys, self.tasks = Keys.factorize(batch.task)
        self.judged = self._where(scenario.judged_on)
        self.incumbent = self._where(scenario.made_by_incumbent)

    def _where(self, condition: tuple[str, str] | None) -> Mask:
        if condition is None:
            return np.ones(len(self.tasks), dtype=np.bool_)
        column, value = condition
        mask: Mask = np.array(self.rows.column(column).to_pylist(), dtype=np.str_) == value
        return mask

    def __len__(self) -> int:
        return len(self.tasks)

    def fit(self, learner: HierOPO, rows: Any) -> HierOPO:
        """Return a learner fitted to some rows of the log."""
        roles = self.scenario.roles
        with warnings.catch_warnings():  # what these logs cannot show the demonstration says itself, once
            warnings.simplefilter("ignore", HieropoWarning)
            return learner.fit(
                rows, task=roles.task, action=roles.action, reward=roles.reward, pscore=roles.pscore,
                context=_context(learner, roles.context),
            )  # fmt: skip

    def eligible(self, actions: tuple[Any, ...]) -> Mask | None:
        """Return the mask of actions that each task allows, (m, K)."""
        allowed = self.scenario.eligible
        if allowed is None:
            return None
        return np.array([[allowed(task, action) for action in actions] for task in self.keys.values.tolist()])

    def follows(self, policy: LCBPolicy) -> Mask:
        """Return True for rows (n,) with the action that the policy chooses there."""
        assert policy.features is not None
        actions = policy.features.actions or ()
        mask = self.eligible(actions)
        if policy.features.columns:
            mask = None if mask is None else mask[self.tasks]
            index = policy.choose_many(self.keys.values[self.tasks], self.context, eligible=mask).index[:, 0]
        else:  # one choice a task
            none = np.empty((len(self.keys), 0))
            index = policy.choose_many(self.keys.values, none, eligible=mask).index[self.tasks, 0]
        same: Mask = index == policy.features.action_codes(self.action)
        return same


def _context(learner: HierOPO, columns: tuple[str, ...]) -> tuple[str, ...]:
    return () if learner.features == "indicator" else columns
