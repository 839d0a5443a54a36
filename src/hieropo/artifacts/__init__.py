"""A policy on disk: one directory, mapped into memory, replaced as a whole."""

from hieropo.artifacts.load import StoredPolicy, load_policy, verify_policy
from hieropo.artifacts.save import save_policy

__all__ = ["StoredPolicy", "load_policy", "save_policy", "verify_policy"]
