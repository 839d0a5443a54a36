"""The hierarchical linear model: priors, levels and metadata of tasks, and the exact posterior given moments.

May import ``moments`` and below. A hierarchy is given here; :mod:`hieropo.estimation` learns one.
"""

from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy, Level
from hieropo.model.metadata import Metadata
from hieropo.model.posterior import Posterior, condition
from hieropo.model.table import PosteriorTable
from hieropo.model.task_levels import TaskLevels

__all__ = [
    "Gaussian",
    "Hierarchy",
    "Level",
    "Metadata",
    "Posterior",
    "PosteriorTable",
    "TaskLevels",
    "condition",
]
