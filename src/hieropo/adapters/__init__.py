"""Logs of other tools and shapes: Open Bandit Pipeline, Vowpal Wabbit, decisions whose rewards come later."""

from hieropo.adapters.joining import JoinedLog, join_rewards
from hieropo.adapters.matching import JoinReport
from hieropo.adapters.obp import action_dist, from_obp, to_obp
from hieropo.adapters.vw_log import VWLog, from_vw
from hieropo.adapters.vw_writing import Written, to_vw

__all__ = [
    "JoinReport",
    "JoinedLog",
    "VWLog",
    "Written",
    "action_dist",
    "from_obp",
    "from_vw",
    "join_rewards",
    "to_obp",
    "to_vw",
]
