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
    NotFittedError,
    NumericalError,
    SchemaError,
    UnknownActionError,
    UnknownTaskError,
)

if TYPE_CHECKING:
    from hieropo.decisions.decisions import Decisions
    from hieropo.doctor.examination import Examination, Finding
    from hieropo.doctor.examine import examine
    from hieropo.estimation.reml import Estimate, estimate
    from hieropo.estimation.tree_estimation import estimate_levels
    from hieropo.evaluation.by_posterior.bounds import assumptions, bounds
    from hieropo.evaluation.evaluation import Evaluation
    from hieropo.features.maps import Columns, embedding, indicator, per_action
    from hieropo.features.terms import (
        ByType,
        Cat,
        Cross,
        Cyclic,
        DatePart,
        Effect,
        Log,
        Number,
        Ordered,
        Spline,
        Terms,
        YesNo,
        parse,
    )
    from hieropo.learners.baselines import FlatOPO, OracleOPO, PooledOPO
    from hieropo.learners.hieropo import HierOPO
    from hieropo.learners.loading import load_learner
    from hieropo.logs.engines.sql import sql
    from hieropo.logs.opening import open_log
    from hieropo.model.crossed.hierarchy import CrossedHierarchy, CrossedLevel
    from hieropo.model.gaussian import Gaussian
    from hieropo.model.hierarchy import Hierarchy, Level
    from hieropo.model.metadata import Metadata
    from hieropo.model.posterior import Posterior, condition
    from hieropo.moments.accumulation import Accumulator
    from hieropo.moments.statistics import Moments
    from hieropo.passes.log_moments import LogMoments
    from hieropo.passes.sharded import ShardedMoments
    from hieropo.policies.gating import GatedPolicy
    from hieropo.policies.lower_bound import Choice, Choices, LCBPolicy, SamplingPolicy
    from hieropo.storage.load import load_policy
    from hieropo.storage.save import save_policy

__version__ = "0.1.0.dev0"

__all__ = [
    "Accumulator",
    "ArtifactError",
    "ByType",
    "Cat",
    "Choice",
    "Choices",
    "Columns",
    "Cross",
    "CrossedHierarchy",
    "CrossedLevel",
    "Cyclic",
    "DatePart",
    "Decisions",
    "Effect",
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
    "Log",
    "LogError",
    "LogMoments",
    "Metadata",
    "MismatchError",
    "Moments",
    "NotFittedError",
    "Number",
    "NumericalError",
    "OracleOPO",
    "Ordered",
    "PooledOPO",
    "Posterior",
    "SamplingPolicy",
    "SchemaError",
    "ShardedMoments",
    "Spline",
    "Terms",
    "UnknownActionError",
    "UnknownTaskError",
    "YesNo",
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
    "parse",
    "per_action",
    "save_policy",
    "sql",
]

_HOMES = {
    "hieropo.storage": ("load_policy", "save_policy"),
    "hieropo.model.crossed.hierarchy": ("CrossedHierarchy", "CrossedLevel"),
    "hieropo.estimation.reml": ("Estimate", "estimate"),
    "hieropo.features.maps": ("Columns", "embedding", "indicator", "per_action"),
    "hieropo.features.terms": (
        "ByType",
        "Cat",
        "Cross",
        "Cyclic",
        "DatePart",
        "Effect",
        "Log",
        "Number",
        "Ordered",
        "Spline",
        "Terms",
        "YesNo",
        "parse",
    ),
    "hieropo.policies.gating": ("GatedPolicy",),
    "hieropo.model.gaussian": ("Gaussian",),
    "hieropo.model.hierarchy": ("Hierarchy", "Level"),
    "hieropo.policies.lower_bound": ("Choice", "Choices", "LCBPolicy", "SamplingPolicy"),
    "hieropo.model.posterior": ("Posterior", "condition"),
    "hieropo.moments.accumulation": ("Accumulator",),
    "hieropo.evaluation.by_posterior.bounds": ("assumptions", "bounds"),
    "hieropo.moments.statistics": ("Moments",),
    "hieropo.model.metadata": ("Metadata",),
    "hieropo.estimation.tree_estimation": ("estimate_levels",),
    "hieropo.learners.baselines": ("FlatOPO", "OracleOPO", "PooledOPO"),
    "hieropo.decisions.decisions": ("Decisions",),
    "hieropo.doctor": ("Examination", "Finding", "examine"),
    "hieropo.evaluation": ("Evaluation",),
    "hieropo.learners.hieropo": ("HierOPO",),
    "hieropo.learners.loading": ("load_learner",),
    "hieropo.passes.log_moments": ("LogMoments",),
    "hieropo.passes.sharded": ("ShardedMoments",),
    "hieropo.logs": ("open_log", "sql"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
