"""Hierarchies learned from moments: restricted maximum likelihood, and the uncertainty of what it learned.

May import ``model``, ``logging_policy`` and below.
"""

from hieropo.estimation.learning import Learning, Settings, learning
from hieropo.estimation.reml import Estimate, estimate
from hieropo.estimation.tree_estimation import estimate_levels

__all__ = [
    "Estimate",
    "Learning",
    "Settings",
    "estimate",
    "estimate_levels",
    "learning",
]
