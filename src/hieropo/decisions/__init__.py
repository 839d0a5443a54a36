"""Requests in, decisions out: requests are read, tasks that are new to the policy placed, actions chosen.

May import ``passes`` and below.
"""

from hieropo.decisions.deciding import Decisions, decide
from hieropo.decisions.new_tasks import NewTasks
from hieropo.decisions.requests import Requests, read_requests

__all__ = [
    "Decisions",
    "NewTasks",
    "Requests",
    "decide",
    "read_requests",
]
