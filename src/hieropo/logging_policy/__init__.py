"""The policy that made the log: its propensities, logged or estimated, and its knowledge of tasks.

May import ``model`` and below.
"""

from hieropo.logging_policy.action_logit import calibration
from hieropo.logging_policy.cells import Cells
from hieropo.logging_policy.choice_logits import choice_logits
from hieropo.logging_policy.incumbents import Reactions, informed_metadata
from hieropo.logging_policy.logged_propensities import check_pscores
from hieropo.logging_policy.propensities import LoggingModel, learn_model

__all__ = [
    "Cells",
    "LoggingModel",
    "Reactions",
    "calibration",
    "check_pscores",
    "choice_logits",
    "informed_metadata",
    "learn_model",
]
