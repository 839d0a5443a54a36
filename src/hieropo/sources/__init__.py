"""Anything with rows becomes validated batches: files, Arrow, pandas, polars, DuckDB, iterators."""

from hieropo.core.logs import Batch, Roles
from hieropo.sources.log_source import LogSource
from hieropo.sources.opening import open_log
from hieropo.sources.requests import Requests, read_requests
from hieropo.sources.rows import distinct_values, first_contexts, read
from hieropo.sources.schema import guess_roles
from hieropo.sources.sql import sql

__all__ = [
    "Batch",
    "LogSource",
    "Requests",
    "Roles",
    "distinct_values",
    "first_contexts",
    "guess_roles",
    "open_log",
    "read",
    "read_requests",
    "sql",
]
