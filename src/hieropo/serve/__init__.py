"""A decision service: requests, decisions with propensities, rewards, refresh, and forgetting, kept on disk.

May import ``learners`` and below. It needs ``pip install 'hieropo[serve]'``.
"""

from hieropo.serve.service import Service
from hieropo.serve.settings import Settings

__all__ = ["Service", "Settings"]
