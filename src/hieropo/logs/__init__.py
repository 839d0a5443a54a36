"""Logs come in: files, frames, Arrow streams and databases become checked batches of rows.

May import ``features`` and below. ``formats`` reads files, ``engines`` frames, streams and databases, ``bad_rows`` sets
unusable rows aside, and ``interop`` reads and writes logs of other tools.
"""

from hieropo.logs.arrow.log_source import LogSource
from hieropo.logs.arrow.schema import guess_roles
from hieropo.logs.engines.sql import sql
from hieropo.logs.opening import open_log
from hieropo.logs.reading import distinct_values, first_rows, read

__all__ = [
    "LogSource",
    "distinct_values",
    "first_rows",
    "guess_roles",
    "open_log",
    "read",
    "sql",
]
