"""Small tools without any statistics: text for terminals, threads, memory layouts, choices among equal numbers.

May import :mod:`hieropo.errors` alone.
"""

from hieropo._utils.blas_threads import one_blas_thread
from hieropo._utils.packed import pack, triangle, unpack
from hieropo._utils.text import counted, paragraph, table
from hieropo._utils.threads import in_threads
from hieropo._utils.ties import first_largest

__all__ = [
    "counted",
    "first_largest",
    "in_threads",
    "one_blas_thread",
    "pack",
    "paragraph",
    "table",
    "triangle",
    "unpack",
]
