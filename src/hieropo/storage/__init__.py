"""Policies, moments and checkpoints on disk: directories that are mapped into memory and replaced as a whole.

May import ``policies``, ``estimation`` and below.
"""

from hieropo.storage.load import StoredPolicy, load_policy, verify_policy
from hieropo.storage.moments import read_moments_file, write_moments_file
from hieropo.storage.save import save_policy

__all__ = [
    "StoredPolicy",
    "load_policy",
    "read_moments_file",
    "save_policy",
    "verify_policy",
    "write_moments_file",
]
