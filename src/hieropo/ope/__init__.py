"""Off-policy estimates that do not rest on the model: IPS, SNIPS, doubly robust, intervals, randomisation tests.

May import ``moments`` and below.
"""

from hieropo.ope.off_policy import OffPolicyMoments, OffPolicySums
from hieropo.ope.randomisation import no_effect, tasks_alike
from hieropo.ope.shrinkage import shrink
from hieropo.ope.value_estimates import ValueEstimate, empirical_bernstein

__all__ = [
    "OffPolicyMoments",
    "OffPolicySums",
    "ValueEstimate",
    "empirical_bernstein",
    "no_effect",
    "shrink",
    "tasks_alike",
]
