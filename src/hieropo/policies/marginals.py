"""The posteriors of tasks as a policy reads them, from a table in memory or mapped from files."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from hieropo._kernels import backend
from hieropo._utils.arrays import Array, Codes, normalised
from hieropo._utils.packed import packed_size, unpack
from hieropo.errors import InputError, LogError, MismatchError, UnknownTaskError, warn
from hieropo.model.gaussian import Gaussian
from hieropo.model.table import HasTable, PosteriorTable
from hieropo.rows.ids import id_array, is_null, matching_known_id, plain
from hieropo.rows.keys import Unseen

RowNumbers = int | Codes  # the number of the first row, or the numbers of all

MAX_COMPARED = 10  # unknown tasks of a batch that are compared with the known ones


def row_number(numbers: RowNumbers, row: int) -> int:
    """Return the number of a row, from the number of the first one or the numbers of all."""
    return int(numbers[row]) if isinstance(numbers, np.ndarray) else numbers + row


class Marginal(NamedTuple):
    """Row of one task in arrays of means and covariances, for compiled loops."""

    means: Array
    covs: Array
    row: int

    def gaussian(self) -> Gaussian:
        """Return the posterior of the task; for a table without separate marginals."""
        mean = self.means[self.row].copy()
        return Gaussian.trusted(mean, unpack(self.covs[self.row], mean.size))

    def of_actions(self, actions: Codes) -> "Marginal":
        """Return the marginals of these actions (n,) of the task, one after the other."""
        return Marginal(self.means[self.row][actions][None], self.covs[self.row][actions][None], 0)


class TaskMarginals:
    """The posteriors of all tasks and of an unseen one, as the compiled loops read them.

    Parameters
    ----------
    source : PosteriorTable or Posterior
    unseen : "prior" or "error"

    Attributes
    ----------
    n_separate : int
        K where the table holds a separate marginal for each of K actions, else 0.
    means, covs : (m, d), (m, d (d + 1) / 2) array
        With separate marginals (m, K, p), (m, K, p (p + 1) / 2), with p = d / K.

    Raises
    ------
    InputError
        ``unseen`` is neither.
    MismatchError
        The table's arrays do not fit its dimension and number of tasks.
    """

    __slots__ = ("_keys", "covs", "dim", "fingerprint", "means", "n_separate", "prior", "table", "unseen")

    n_separate: int
    covs: Array
    dim: int
    means: Array
    prior: Marginal
    table: PosteriorTable

    def __init__(self, source: PosteriorTable | HasTable, unseen: Unseen) -> None:
        if unseen not in ("prior", "error"):
            raise InputError(
                f'unseen={unseen!r} is not a choice for tasks that are not in the log. Set it to "prior" (act on the '
                'prior) or "error" (refuse).'
            )
        self.table = table = source.table() if isinstance(source, HasTable) else source
        self.fingerprint: str | None = getattr(getattr(source, "moments", None), "features", None)
        self.unseen = unseen
        self.dim = d = int(table.dim)
        self._keys = table.keys
        self.means = normalised(np.asarray(table.means, dtype=np.float64))
        self.covs = normalised(np.asarray(table.covs, dtype=np.float64))
        mean, cov = (np.asarray(part, dtype=np.float64) for part in (table.prior_means, table.prior_covs))
        self.prior = Marginal(mean[None].copy(), cov[None].copy(), 0)
        self.n_separate = table.n_marginals if table.per_action else 0
        lead = (self.n_separate,) if table.per_action else ()
        m, p = len(table.keys), d // max(self.n_separate, 1)
        shapes = self.means.shape, self.covs.shape, mean.shape, cov.shape
        single = (*lead, p), (*lead, packed_size(p))
        needed = (m, *single[0]), (m, *single[1]), *single
        if shapes != needed:
            raise MismatchError(
                f"A table of {m} tasks and dimension {d} has means {shapes[0]}, packed covariances {shapes[1]} "
                f"and a prior of {shapes[2]} and {shapes[3]}; it needs {needed[0]}, {needed[1]}, {needed[2]} and "
                f"{needed[3]}."
            )

    def loops(self) -> Any:
        """Return the backend (compiled or reference) for tables of this size, the same for every request."""
        return backend.choice(self.covs.size * self.means.shape[-1])

    def find(self, task: Any) -> Marginal:
        """Return the posterior of one task, or the prior of an unseen one.

        Raises
        ------
        UnknownTaskError
            Where ``unseen`` is "error".
        LogError
            The id is null.
        """
        row = self._keys.find(task)
        if row < 0:
            self._check_null(task, None)
            self._check_unknown([(task, None)])
        return self.at(row)

    def at(self, row: int) -> Marginal:
        """Return the posterior in one row of the table; at -1 the prior of an unseen task."""
        return self.prior if row < 0 else Marginal(self.means, self.covs, row)

    def of_rows(self, rows: Codes) -> tuple[Array, Array]:
        """Return means (n, K or 1, p) and packed covariances of rows (n,) of the table; at -1 those of the prior."""
        known = rows >= 0
        means = np.broadcast_to(self.prior.means, (rows.size, *self.prior.means.shape[1:])).copy()
        covs = np.broadcast_to(self.prior.covs, (rows.size, *self.prior.covs.shape[1:])).copy()
        means[known], covs[known] = self.means[rows[known]], self.covs[rows[known]]
        return (means, covs) if self.n_separate else (means[:, None], covs[:, None])

    def locate(self, tasks: Any, first_row: RowNumbers = 0, located: Codes | None = None) -> Codes:
        """Return the row of each task (n,), -1 for the prior; errors as :meth:`find`, rows from ``first_row``.

        ``located`` are these rows, where ``table.keys.locate(tasks)`` has found them already.
        """
        if isinstance(tasks, str | bytes):
            raise InputError(
                f"tasks={tasks!r} is one text. Give a sequence with one id for each request, such as [{tasks!r}]."
            )
        ids = tasks if isinstance(tasks, np.ndarray) else list(tasks)
        try:
            found = self._keys.locate(ids) if located is None else located
            rows = normalised(np.asarray(found, dtype=np.int64))
        except LogError:
            id_array(
                ids, "task", 0 if isinstance(first_row, np.ndarray) else first_row
            )  # raises the same, with the row's number
            raise
        unknown = np.flatnonzero(rows < 0)
        if unknown.size:
            if not (isinstance(ids, np.ndarray) and ids.dtype.kind in "iu"):
                for row in unknown.tolist():
                    self._check_null(ids[row], row_number(first_row, row))
            first: dict[Any, int] = {}
            for row in unknown[:MAX_COMPARED].tolist():
                first.setdefault(ids[row], row_number(first_row, row))
            self._check_unknown(list(first.items()), rows.size if unknown.size == rows.size > 1 else 0)
        return rows

    @staticmethod
    def _check_null(task: Any, row: int | None) -> None:
        if is_null(task):
            place = "The task of a request" if row is None else f"The task of row {row}"
            raise LogError(
                f"{place} is {task!r}, and each task has its own policy. Give every request a task id."
            )

    def _check_unknown(self, tasks: Sequence[tuple[Any, int | None]], n_all_unknown: int = 0) -> None:
        """Refuse unknown tasks, each with its row, or warn of the first whose id resembles a known one.

        ``n_all_unknown`` is the number of requests where no task of them is known, else 0.
        """
        if self.unseen == "error":
            raise UnknownTaskError(self._keys.unknown_message(*tasks[0]))
        for task, row in tasks:
            known = matching_known_id(task, self._keys)
            if known is not None:
                none_known = (
                    f" None of these {n_all_unknown:,} requests is of a known task." if n_all_unknown else ""
                )
                warn(_alike_message(task, row, known) + none_known)
                return


def _alike_message(task: Any, row: int | None, known: Any) -> str:
    """Return the warning that the id of an unknown task resembles that of a known one."""
    place = "" if row is None else f" (row {row})"
    with suppress(InputError):
        task = plain(task)
    if type(task) is type(known):
        return (
            f"Task {task!r}{place} is unknown, but {known!r} is known; the prior is used. If they are the same task, "
            "write its id as in the log."
        )
    return (
        f"Task {task!r}{place} is of type {type(task).__name__} and unknown, but {known!r} of type "
        f"{type(known).__name__} is known; the prior is used. Give ids in the type of the log."
    )
