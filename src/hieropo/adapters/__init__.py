"""Logs of other tools and shapes: the Open Bandit Pipeline, decisions whose rewards come later."""

from hieropo.adapters.join_report import JoinReport
from hieropo.adapters.joining import JoinedLog, join_rewards
from hieropo.adapters.obp import action_dist, from_obp, to_obp

__all__ = ["JoinReport", "JoinedLog", "action_dist", "from_obp", "join_rewards", "to_obp"]
