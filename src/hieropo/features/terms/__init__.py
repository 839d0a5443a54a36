"""Terms over context columns: formulas, the map that a log teaches, and its columns of numbers.

May import ``rows`` and below. Knows no frames: columns come as arrays of numpy.
"""

from hieropo.features.terms.parsing import parse, terms_of
from hieropo.features.terms.terms import (
    ByType,
    Cat,
    Cross,
    Cyclic,
    DatePart,
    Effect,
    Log,
    Number,
    Ordered,
    Spline,
    Term,
    Terms,
    YesNo,
)

__all__ = [
    "ByType",
    "Cat",
    "Cross",
    "Cyclic",
    "DatePart",
    "Effect",
    "Log",
    "Number",
    "Ordered",
    "Spline",
    "Term",
    "Terms",
    "YesNo",
    "parse",
    "terms_of",
]
