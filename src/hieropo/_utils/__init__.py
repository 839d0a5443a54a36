"""Small tools without statistics: text for terminals, threads, memory layouts, comparisons up to rounding.

May import :mod:`hieropo.errors` alone. The help of a command loads this package, so it loads no numpy by itself.
"""

from hieropo._utils.text import counted, paragraph, table

__all__ = ["counted", "paragraph", "table"]
