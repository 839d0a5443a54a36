"""What should be known of a log before learning from it.

May import ``logging_policy``, ``passes`` and below.
"""

from hieropo.doctor.examination import Examination, Finding
from hieropo.doctor.examine import examine

__all__ = ["Examination", "Finding", "examine"]
