"""Learners in the manner of scikit-learn: HierOPO and its baselines, loaded and saved, with their summaries.

May import ``evaluation``, ``doctor`` and below.
"""

from hieropo.learners.baselines import FlatOPO, OracleOPO, PooledOPO
from hieropo.learners.hieropo import HierOPO
from hieropo.learners.loading import load_learner
from hieropo.learners.population import PopulationSummary

__all__ = [
    "FlatOPO",
    "HierOPO",
    "OracleOPO",
    "PooledOPO",
    "PopulationSummary",
    "load_learner",
]
