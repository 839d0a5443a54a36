"""Examination of a log before learning: facts and findings.

May import ``logging_policy``, ``passes`` and below.
"""

from hieropo.doctor.examination import Examination, Finding
from hieropo.doctor.examine import examine

__all__ = ["Examination", "Finding", "examine"]
