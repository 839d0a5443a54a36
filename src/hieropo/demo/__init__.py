"""The whole way of the data on a log that ships with the package: split, fit, judge, decide, leave behind."""

from hieropo.demo.findings import Findings
from hieropo.demo.run import Left, compare, leave_behind
from hieropo.demo.scenarios import SCENARIOS, Scenario
from hieropo.demo.value import Estimate, Judgement, snips

__all__ = [
    "SCENARIOS",
    "Estimate",
    "Findings",
    "Judgement",
    "Left",
    "Scenario",
    "compare",
    "leave_behind",
    "snips",
]
