"""The coefficients of all tasks as a table."""

from typing import Any

import numpy as np

from hieropo._utils.packed import packed_size
from hieropo.logs.arrow.result_table import ResultTable
from hieropo.logs.arrow.writing import task_id_columns
from hieropo.rows.batches import TaskColumns


def coefficient_table(
    posteriors: Any, names: tuple[str, ...], task: TaskColumns, rows: Any = None, differing: Any = None
) -> ResultTable:
    """Return a table with a row for each coefficient of each task: its posterior mean and sd.

    Parameters
    ----------
    posteriors : PosteriorTable
        Of m tasks and d coefficients.
    names : (d,) str
    task : str, tuple of str or None
        Columns of task ids; None gives no such column.
    rows : (n,) int, optional
        Rows of the tasks to show. Default: all.
    differing : (m,) array, optional
        Probability that effects of actions in a task are unusually large; a further column ``differs``.
    """
    m, size = len(posteriors.keys), posteriors.means.shape[-1]
    rows = np.arange(m) if rows is None else np.asarray(rows)
    variances = np.asarray(posteriors.covs)[rows][..., [packed_size(j + 1) - 1 for j in range(size)]]
    ids = np.repeat(posteriors.keys.values[rows], len(names))
    return ResultTable.of(
        {
            **task_id_columns(task, ids),
            "coefficient": list(names) * len(rows),
            "mean": np.asarray(posteriors.means)[rows].reshape(-1),
            "sd": np.sqrt(np.maximum(variances, 0.0)).reshape(-1),
            **({} if differing is None else {"differs": np.repeat(differing[rows], len(names))}),
        }
    )
