"""A policy for every task, learned from the logged feedback of all of them.

The public names are listed in ``__all__``. Each loads its module when it is first used, so that
``import hieropo`` alone loads neither numba nor pyarrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hieropo.errors import (
    ArtifactError,
    HieropoError,
    HieropoWarning,
    InputError,
    LogError,
    MismatchError,
    NumericalError,
    SchemaError,
    UnknownActionError,
    UnknownTaskError,
)

if TYPE_CHECKING:
    from hieropo.artifacts import load_policy, save_policy
    from hieropo.baselines import FlatOPO, OracleOPO, PooledOPO
    from hieropo.core.accumulation import Accumulator
    from hieropo.core.assumptions import assumptions
    from hieropo.core.bounds import bounds
    from hieropo.core.estimation import Estimate, estimate
    from hieropo.core.features import Columns, embedding, indicator, per_action
    from hieropo.core.gating import GatedPolicy
    from hieropo.core.gaussian import Gaussian
    from hieropo.core.hierarchy import Hierarchy, Level
    from hieropo.core.metadata import Metadata
    from hieropo.core.policy import Choice, Choices, LCBPolicy, SamplingPolicy
    from hieropo.core.posterior import Posterior, condition
    from hieropo.core.statistics import Moments
    from hieropo.core.tree_estimation import estimate_levels
    from hieropo.doctor import Examination, Finding, examine
    from hieropo.evaluation import Evaluation
    from hieropo.learners import HierOPO
    from hieropo.loading import load_learner
    from hieropo.log_moments import LogMoments
    from hieropo.sources import open_log, sql

__version__ = "0.1.0.dev0"

__all__ = [
    "Accumulator",
    "ArtifactError",
    "Choice",
    "Choices",
    "Columns",
    "Estimate",
    "Evaluation",
    "Examination",
    "Finding",
    "FlatOPO",
    "GatedPolicy",
    "Gaussian",
    "HierOPO",
    "Hierarchy",
    "HieropoError",
    "HieropoWarning",
    "InputError",
    "LCBPolicy",
    "Level",
    "LogError",
    "LogMoments",
    "Metadata",
    "MismatchError",
    "Moments",
    "NumericalError",
    "OracleOPO",
    "PooledOPO",
    "Posterior",
    "SamplingPolicy",
    "SchemaError",
    "UnknownActionError",
    "UnknownTaskError",
    "__version__",
    "assumptions",
    "bounds",
    "condition",
    "embedding",
    "estimate",
    "estimate_levels",
    "examine",
    "indicator",
    "load_learner",
    "load_policy",
    "open_log",
    "per_action",
    "save_policy",
    "sql",
]

_HOMES = {
    "hieropo.artifacts": ("load_policy", "save_policy"),
    "hieropo.core.estimation": ("Estimate", "estimate"),
    "hieropo.core.features": ("Columns", "embedding", "indicator", "per_action"),
    "hieropo.core.gating": ("GatedPolicy",),
    "hieropo.core.gaussian": ("Gaussian",),
    "hieropo.core.hierarchy": ("Hierarchy", "Level"),
    "hieropo.core.policy": ("Choice", "Choices", "LCBPolicy", "SamplingPolicy"),
    "hieropo.core.posterior": ("Posterior", "condition"),
    "hieropo.core.accumulation": ("Accumulator",),
    "hieropo.core.assumptions": ("assumptions",),
    "hieropo.core.bounds": ("bounds",),
    "hieropo.core.statistics": ("Moments",),
    "hieropo.core.metadata": ("Metadata",),
    "hieropo.core.tree_estimation": ("estimate_levels",),
    "hieropo.baselines": ("FlatOPO", "OracleOPO", "PooledOPO"),
    "hieropo.doctor": ("Examination", "Finding", "examine"),
    "hieropo.evaluation": ("Evaluation",),
    "hieropo.learners": ("HierOPO",),
    "hieropo.loading": ("load_learner",),
    "hieropo.log_moments": ("LogMoments",),
    "hieropo.sources": ("open_log", "sql"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
