"""Why a policy chooses an action in a task: the rival, the shares of prior and rows, and what would turn the choice.

May import ``report``, ``policies``, ``model`` and below.
"""

from hieropo.explanation.explain import explain
from hieropo.explanation.explanation import Explanation
from hieropo.explanation.row_influences import LogOfFit

__all__ = ["Explanation", "LogOfFit", "explain"]
