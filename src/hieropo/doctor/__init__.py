"""What should be known of a log before learning from it."""

from hieropo.doctor.examination import Examination
from hieropo.doctor.examine import examine
from hieropo.doctor.finding import Finding

__all__ = ["Examination", "Finding", "examine"]
