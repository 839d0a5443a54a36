"""Policies: by lower confidence bounds, by posterior sampling, and with a gate that keeps the incumbent.

May import ``model`` and below.
"""

from hieropo.policies.candidates import Candidates
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import Choice, Choices, LCBPolicy
from hieropo.policies.marginals import TaskMarginals
from hieropo.policies.sampling import SamplingPolicy

__all__ = [
    "Candidates",
    "Choice",
    "Choices",
    "GatedPolicy",
    "LCBPolicy",
    "SamplingPolicy",
    "TaskMarginals",
]
