"""Rows of a log and the ids in them: roles of columns, checked batches, tasks and actions that are found again.

May import ``_kernels`` and ``_utils``. Files and frames come later, in :mod:`hieropo.logs`.
"""

from hieropo.rows.actions import Actions
from hieropo.rows.batches import Batch, Eligible, Roles
from hieropo.rows.columns import Rule
from hieropo.rows.keys import Keys

__all__ = [
    "Actions",
    "Batch",
    "Eligible",
    "Keys",
    "Roles",
    "Rule",
]
