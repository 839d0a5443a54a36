"""The laws of tasks as a policy reads them, from a table in memory or mapped from files."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hieropo._kernels import backend
from hieropo._utils.arrays import Array, normalised
from hieropo._utils.packed import pack, packed_size, unpack
from hieropo.errors import InputError, LogError, MismatchError, UnknownTaskError, warn
from hieropo.model.gaussian import Gaussian
from hieropo.rows.ids import KnownIds, id_array, is_null, matching_known_id, plain

Rows = NDArray[np.int64]
Unseen = Literal["prior", "error"]

LOOKED_AT = 10  # unknown tasks of a batch that are compared with those that are known


class TaskKeys(KnownIds, Protocol):
    """Places of tasks in a table."""

    def locate(self, ids: Any, /) -> Rows:
        """Row of each id (n,), -1 where unknown."""

    def unknown_message(self, key: Any, row: int | None = None, /) -> str:
        """Say what is wrong with an id that is not here."""


class TaskTable(Protocol):
    """The posterior of every task: in memory, or mapped from files.

    ``covs`` holds upper triangles by columns, entry (i <= j) at j (j + 1) / 2 + i.
    """

    @property
    def keys(self) -> TaskKeys:
        """Ids of the m tasks."""

    @property
    def means(self) -> Array:
        """Means (m, d)."""

    @property
    def covs(self) -> Array:
        """Packed covariances (m, d (d + 1) / 2)."""

    @property
    def prior(self) -> Gaussian:
        """Law of a task that is not in the table."""

    @property
    def dim(self) -> int:
        """Dimension d."""


@runtime_checkable
class UnitTable(Protocol):
    """The posterior of every task where each action has coefficients of its own: K laws of p features a task.

    What two actions of a task have in common is not in it: their laws stand side by side, each on its own.
    """

    @property
    def keys(self) -> TaskKeys:
        """Ids of the m tasks."""

    @property
    def means(self) -> Array:
        """Means (m, K, p)."""

    @property
    def covs(self) -> Array:
        """Packed covariances (m, K, p (p + 1) / 2)."""

    @property
    def prior_means(self) -> Array:
        """Means (K, p) of a task that is not in the table."""

    @property
    def prior_covs(self) -> Array:
        """Packed covariances (K, p (p + 1) / 2) of a task that is not in the table."""

    @property
    def dim(self) -> int:
        """Dimension d = K p."""


@runtime_checkable
class HasTable(Protocol):
    """Anything that gives a table on demand, such as a Posterior."""

    def table(self) -> TaskTable | UnitTable:
        """Posterior of every task."""


class Marginal(NamedTuple):
    """Addresses of one task's mean and covariance, or of those of its actions, for compiled loops."""

    means: Array
    covs: Array
    row: int

    def gaussian(self) -> Gaussian:
        """Unpacked, as a value; of a task whose table has one law."""
        mean = self.means[self.row].copy()
        return Gaussian.trusted(mean, unpack(self.covs[self.row], mean.size))

    def picked(self, actions: Rows) -> "Marginal":
        """Return the laws of these actions (n,), one after the other, of a task that has a law for each."""
        return Marginal(self.means[self.row][actions][None], self.covs[self.row][actions][None], 0)


class TaskMarginals:
    """The laws of all tasks and of an unseen one, as the compiled loops read them.

    Parameters
    ----------
    source : PosteriorTable, UnitTable or Posterior
    unseen : "prior" or "error"

    Attributes
    ----------
    apart : int
        K where each action has a law of its own, else 0.
    means, covs : (m, d), (m, d (d + 1) / 2) array
        Where each action has a law of its own (m, K, p), (m, K, p (p + 1) / 2), with p = d / K.

    Raises
    ------
    InputError
        ``unseen`` is something else.
    MismatchError
        The table's arrays do not fit its dimension and number of tasks.
    """

    __slots__ = ("_keys", "apart", "covs", "dim", "fingerprint", "means", "prior", "table", "unseen")

    apart: int
    covs: Array
    dim: int
    means: Array
    prior: Marginal
    table: TaskTable | UnitTable

    def __init__(self, source: TaskTable | UnitTable | HasTable, unseen: Unseen) -> None:
        if unseen not in ("prior", "error"):
            raise InputError(f'unseen={unseen!r}; choose "prior" (act on the prior) or "error" (refuse).')
        self.table = table = source.table() if isinstance(source, HasTable) else source
        self.fingerprint: str | None = getattr(getattr(source, "moments", None), "features", None)
        self.unseen = unseen
        self.dim = d = int(table.dim)
        self._keys = table.keys
        self.means = normalised(np.asarray(table.means, dtype=np.float64))
        self.covs = normalised(np.asarray(table.covs, dtype=np.float64))
        mean, cov = _prior(table)
        self.prior = Marginal(mean[None].copy(), cov[None].copy(), 0)
        self.apart = len(mean) if isinstance(table, UnitTable) else 0
        lead = (self.apart,) if isinstance(table, UnitTable) else ()
        m, p = len(table.keys), d // max(self.apart, 1)
        found = self.means.shape, self.covs.shape, mean.shape, cov.shape
        laws = (*lead, p), (*lead, packed_size(p))
        needed = (m, *laws[0]), (m, *laws[1]), *laws
        if found != needed:
            raise MismatchError(
                f"A table of {m} tasks and dimension {d} has means {found[0]}, packed covariances {found[1]} "
                f"and a prior of {found[2]} and {found[3]}; {needed[0]}, {needed[1]}, {needed[2]} and {needed[3]} "
                "are needed."
            )

    def loops(self) -> Any:
        """Return the code that scores by these laws, the same one for every request."""
        return backend.choice(self.covs.size * self.means.shape[-1])

    def find(self, task: Any) -> Marginal:
        """Law of one task.

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
        """Law in one row of the table, of the unseen task at -1."""
        return self.prior if row < 0 else Marginal(self.means, self.covs, row)

    def locate(self, tasks: Any, first_row: int = 0) -> Rows:
        """Row of each task (n,), -1 for the prior; raises as :meth:`find`, counting from ``first_row``."""
        if isinstance(tasks, str | bytes):
            raise InputError(f"The tasks are {tasks!r}; one id a request is needed, such as [{tasks!r}].")
        ids = tasks if isinstance(tasks, np.ndarray) else list(tasks)
        try:
            rows = normalised(np.asarray(self._keys.locate(ids), dtype=np.int64))
        except LogError:
            id_array(ids, "task", first_row)  # raises the same, with the row's number
            raise
        unknown = np.flatnonzero(rows < 0)
        if unknown.size:
            if not (isinstance(ids, np.ndarray) and ids.dtype.kind in "iu"):
                for row in unknown.tolist():
                    self._check_null(ids[row], first_row + row)
            first: dict[Any, int] = {}
            for row in unknown[:LOOKED_AT].tolist():
                first.setdefault(ids[row], first_row + row)
            self._check_unknown(list(first.items()), rows.size if unknown.size == rows.size > 1 else 0)
        return rows

    @staticmethod
    def _check_null(task: Any, row: int | None) -> None:
        if is_null(task):
            place = "The task of a request" if row is None else f"The task of row {row}"
            raise LogError(f"{place} is {task!r}. A request names its task.")

    def _check_unknown(self, tasks: Sequence[tuple[Any, int | None]], everything: int = 0) -> None:
        """Refuse unknown tasks, each with its row, or warn of the first that reads as one that is known.

        ``everything`` is the number of all tasks where none of them is known.
        """
        if self.unseen == "error":
            raise UnknownTaskError(self._keys.unknown_message(*tasks[0]))
        for task, row in tasks:
            twin = matching_known_id(task, self._keys)
            if twin is not None:
                warn(
                    _unlike(task, row, twin)
                    + (f" None of these {everything:,} requests is of a known task." if everything else "")
                )
                return


def _unlike(task: Any, row: int | None, twin: Any) -> str:
    """Say that an unknown task reads as a known one."""
    place = "" if row is None else f" (row {row})"
    with suppress(InputError):
        task = plain(task)
    if type(task) is type(twin):
        return (
            f"Task {task!r}{place} is unknown, but {twin!r} is known; the prior is used. Are they one task? Hand ids "
            "in as they were written in the log."
        )
    return (
        f"Task {task!r}{place} is of type {type(task).__name__} and unknown, but {twin!r} of type "
        f"{type(twin).__name__} is known; the prior is used. Hand ids in as the log's type."
    )


def _prior(table: TaskTable | UnitTable) -> tuple[Array, Array]:
    """Mean and packed covariance of a task that is not in the table, or of each of its actions."""
    if isinstance(table, UnitTable):
        means, covs = table.prior_means, table.prior_covs
        return np.asarray(means, dtype=np.float64), np.asarray(covs, dtype=np.float64)
    return table.prior.mean, pack(table.prior.cov)
