"""The logs that ship with the package, and the roles of their columns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hieropo.baselines import FlatOPO, PooledOPO
from hieropo.core.logs import Roles
from hieropo.learners import HierOPO

Learner = Callable[[], HierOPO]


@dataclass(frozen=True)
class Scenario:
    """A shipped log and what is compared on it.

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
