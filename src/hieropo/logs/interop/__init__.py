"""Logs of other tools and shapes: Open Bandit Pipeline, Vowpal Wabbit, decisions whose rewards come later."""

from hieropo.logs.interop.joining import JoinedLog, join_rewards
from hieropo.logs.interop.matching import JoinReport
from hieropo.logs.interop.obp import action_dist, from_obp, to_obp
from hieropo.logs.interop.vw.log import VWLog, from_vw
from hieropo.logs.interop.vw.writing import Written, to_vw

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
