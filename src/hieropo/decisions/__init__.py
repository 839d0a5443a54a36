"""From requests to decisions: requests are read, priors of new tasks computed, and actions chosen.

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
