"""Sufficient statistics of a log: sums for each task, which add and subtract and can be moved to another origin.

May import ``features`` and below. Sums are made from arrays and batches; the pass over a log is :mod:`hieropo.passes`.
"""

from hieropo.moments.accumulation import Accumulator
from hieropo.moments.recentring import recentred
from hieropo.moments.row_sketch import RowSketch
from hieropo.moments.statistics import Moments

__all__ = [
    "Accumulator",
    "Moments",
    "RowSketch",
    "recentred",
]
