"""The coefficients of all tasks as a table."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.packed import packed_size
from hieropo.estimation.crossed.mixture import CrossedMixture
from hieropo.logs.arrow.result_table import ResultTable
from hieropo.logs.arrow.writing import task_id_columns
from hieropo.rows.batches import TaskColumns


def coefficient_table(
    posteriors: Any,
    names: tuple[str, ...],
    task: TaskColumns,
    rows: Any = None,
    of_tasks: Mapping[str, NDArray[Any]] = MappingProxyType({}),
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
    of_tasks : mapping
        Further columns (m,), as :func:`of_tasks` gives them.
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
            **{name: np.repeat(values[rows], len(names)) for name, values in of_tasks.items()},
        }
    )


def of_tasks(posterior: CrossedMixture) -> dict[str, NDArray[Any]]:
    """Return columns (m,) of the tasks that a mixture over them adds to their coefficients."""
    columns: dict[str, NDArray[Any]] = {}
    if posterior.differing is not None:
        columns["differs"] = posterior.differing
    kinds = posterior.task_kinds
    if kinds is not None:
        columns |= {"kind": kinds.kind, "kind_probability": kinds.probability.max(axis=1)}
    return columns
