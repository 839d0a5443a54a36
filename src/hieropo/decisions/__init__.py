"""From requests to decisions: requests are read, priors of new tasks computed, and actions chosen.

May import ``passes`` and below.
"""

from hieropo.decisions.deciding import choose, decide
from hieropo.decisions.decisions import Counts, Decisions
from hieropo.decisions.new_tasks import NewTasks
from hieropo.decisions.requests import Requests, read_requests

__all__ = [
    "Counts",
    "Decisions",
    "NewTasks",
    "Requests",
    "choose",
    "decide",
    "read_requests",
]
