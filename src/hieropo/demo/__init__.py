"""The demonstration on a log that ships with the package: split, fit, evaluate, decide, and save.

Uses the public API.
"""

from hieropo.demo.log import SCENARIOS, Scenario
from hieropo.demo.run import Left, compare, leave_behind
from hieropo.demo.value import Estimate, Findings, Judgement, snips

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
