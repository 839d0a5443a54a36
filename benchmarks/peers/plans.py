"""Plans of the comparison: seeds, halves and limits of a run, quick or full."""

from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class Plan:
    """Seeds, halves and limits of a run.

    CPU seconds for a log of values, for all logs of values of a method, the same two of a slow method, and for a log of
    the scale; memory in GB.
    """

    quick: bool
    seeds: int
    halves: int
    seconds: float
    budget: float
    slow_seconds: float
    slow_budget: float
    scale_seconds: float
    memory: float
    resume: bool = False
    assemble: bool = False

    def for_method(self, *, slow: bool) -> "Plan":
        """Return the plan of a method, with the limits of slow ones where it is one."""
        return replace(self, seconds=self.slow_seconds, budget=self.slow_budget) if slow else self

    def worlds(self, of: dict) -> list[str]:
        return [name for name, world in of.items() if world.quick or not self.quick]


QUICK = Plan(
    quick=True,
    seeds=5,
    halves=5,
    seconds=5,
    budget=30,
    slow_seconds=5,
    slow_budget=30,
    scale_seconds=30,
    memory=6,
)
FULL = Plan(
    quick=False,
    seeds=20,
    halves=20,
    seconds=60,
    budget=900,
    slow_seconds=60,
    slow_budget=900,
    scale_seconds=900,
    memory=8,
)
LIMITS = {
    "seeds": "seeds",
    "halves": "halves",
    "seconds": "CPU s for a log of values",
    "budget": "CPU s for all logs of values of a method",
    "slow_seconds": "CPU s for a log of values in slow methods",
    "slow_budget": "CPU s for all logs of values of a slow method",
    "scale_seconds": "CPU s for a log of the scale",
}


def cuts(plan: dict) -> list[str]:
    """Return words for each limit of a recorded plan that is below that of its kind of run."""
    whole = asdict(QUICK if plan["quick"] else FULL)
    return [
        f"{plan[name]:g} {words} in place of {whole[name]:g}"
        for name, words in LIMITS.items()
        if plan[name] < whole[name]
    ]
