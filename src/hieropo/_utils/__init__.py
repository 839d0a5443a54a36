"""Small tools without any statistics: text for terminals, threads, memory layouts, choices among equal numbers.

May import :mod:`hieropo.errors` alone. The help of a command loads this package, so it loads no numpy by itself.
"""

from hieropo._utils.text import counted, paragraph, table

__all__ = ["counted", "paragraph", "table"]
