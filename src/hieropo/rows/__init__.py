"""Rows of a log and the ids in them: roles of columns, checked batches, tasks and actions that are found again.

May import ``_kernels`` and ``_utils``. Files and frames come later, in :mod:`hieropo.logs`.
"""

from hieropo.rows.actions import Actions
from hieropo.rows.batches import Batch, Roles
from hieropo.rows.eligible import Eligible
from hieropo.rows.keys import Keys
from hieropo.rows.rules import Rule

__all__ = [
    "Actions",
    "Batch",
    "Eligible",
    "Keys",
    "Roles",
    "Rule",
]
