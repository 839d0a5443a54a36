"""Rewards that are handed in beside the other columns, as scikit-learn does with y."""

from typing import Any

import numpy as np
import pyarrow as pa

from hieropo._utils.text import counted
from hieropo.errors import InputError, SchemaError
from hieropo.logs.arrow.log_source import LogSource
from hieropo.logs.engines.tables import TableSource


def with_rewards(log: LogSource, rewards: Any, column: str) -> LogSource:
    """Return the rows of a log with rewards (n,) as a further column; the rows are kept in memory.

    Raises
    ------
    InputError
        Not one reward a row.
    SchemaError
        The log has a column of that name with other values.
    """
    values = np.asarray(rewards)
    table = pa.Table.from_batches(list(log.batches(log.schema.names)), log.schema)
    if values.shape != (table.num_rows,):
        raise InputError(
            f"y has the shape {values.shape}, and the {log.name} has {counted(table.num_rows, 'row')}. Give one reward "
            "a row, in the order of the rows."
        )
    if column in table.column_names:
        if not np.array_equal(table.column(column).to_numpy(), values):
            raise SchemaError(
                f"y holds the rewards, and the {log.name} has a column of rewards {column!r} with other values. Leave "
                "out one of them."
            )
        return TableSource(table, log.name)
    return TableSource(table.append_column(column, pa.array(values)), f"{log.name} with y")
