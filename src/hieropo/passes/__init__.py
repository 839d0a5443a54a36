"""The one parallel pass over a log: moments, groups and metadata of tasks, and a sketch of the rows.

May import ``logs``, ``storage`` and below.
"""

from hieropo.passes.feature_choice import feature_map
from hieropo.passes.identifiability import refuse_undetermined
from hieropo.passes.log_moments import LogMoments
from hieropo.passes.summing import sums

__all__ = [
    "LogMoments",
    "feature_map",
    "refuse_undetermined",
    "sums",
]
