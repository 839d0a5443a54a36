"""Task-level covariates (metadata): theta_s ~ N(theta_parent + X_s kappa, Sigma_0), one kappa for all tasks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.brief import brief
from hieropo._utils.packed import pack, packed_size, unpack
from hieropo.errors import InputError, LogError, UnknownTaskError
from hieropo.model.gaussian import frozen
from hieropo.rows.ids import plain
from hieropo.rows.keys import Keys

_PIECE = 2048  # tasks worked on at once


@dataclass(frozen=True, slots=True, eq=False)
class Metadata:
    """Task-level covariates, such as the size of a store.

    With g_s (c,) minus its mean over the tasks, ``X_s = I_d (x) g_s'``: every coefficient of theta_s depends linearly
    on every covariate, with coefficients kappa (d c) that are learned with mu. ``values`` of shape (m, d, c) are X_s.

    Parameters
    ----------
    tasks : (m,) ids
    values : (m, c) or (m, d, c) array
    names : sequence of c str, optional
        Names of the covariates, for messages.
    centre : array of the shape of one task's values, optional
        Zero point of the values; default their mean over the tasks.

    Raises
    ------
    LogError
        A value is not finite.
    InputError
        Shapes do not fit, a task is named twice, or a column has one value for all tasks.
    """

    tasks: Any
    values: Array
    names: tuple[str, ...] = ()
    centre: Array = field(default_factory=lambda: np.zeros(0))

    __repr__ = brief

    def __post_init__(self) -> None:
        put = object.__setattr__
        keys = self.tasks if isinstance(self.tasks, Keys) else _distinct(self.tasks)
        put(self, "tasks", keys)
        values = _numbers(self.values)
        if values.ndim not in (2, 3) or len(values) != len(keys) or not values.shape[-1]:
            raise InputError(
                f"Metadata of shape {values.shape} do not fit {len(keys)} tasks; ({len(keys)}, c) is needed, one row "
                "for each task and at least one column."
            )
        names = tuple(self.names) or tuple(f"metadata {k}" for k in range(values.shape[-1]))
        if len(names) != values.shape[-1]:
            raise InputError(
                f"{len(names)} names do not fit metadata of {values.shape[-1]} columns: {list(names)}."
            )
        put(self, "names", names)
        _check(values, keys, names)
        put(self, "values", frozen(values))
        put(self, "centre", frozen(self.centre if self.centre.size else values.mean(axis=0)))

    def root_dim(self, dim: int) -> int:
        """Return the number of coefficients of the root, mu and kappa, for tasks of ``dim`` features."""
        return dim + int(self.values.shape[-1]) * (dim if self.values.ndim == 2 else 1)

    def design(self, dim: int, keys: Keys) -> "Design":
        """Return the design Z_s = [I X_s] of these tasks.

        Raises
        ------
        UnknownTaskError
            A task has no metadata.
        InputError
            X_s are of another dimension.
        """
        if self.values.ndim == 3 and self.values.shape[1] != dim:
            raise InputError(f"Metadata X_s have {self.values.shape[1]} rows, and the tasks {dim} features.")
        rows = self.tasks.locate(keys.values)
        if (rows < 0).any():
            lost = keys.values[rows < 0]
            raise UnknownTaskError(
                f"Task {plain(lost[0])!r} has rows and no metadata ({lost.size} such tasks). Every task of the "
                "log needs its metadata; add them, or leave the rows of these tasks out."
            )
        return Design(self.values[rows] - self.centre, dim)

    def one(self, dim: int, values: ArrayLike) -> Array:
        """Return Z (d, D) of a task with these ``values``; errors as :meth:`row`."""
        matrix: Array = Design(self.row(values)[None], dim).matrix(slice(0, 1))[0]
        return matrix

    def row(self, values: ArrayLike) -> Array:
        """Return the ``values`` of a task, (c,) or (d, c), around the centre.

        Raises
        ------
        InputError, LogError
            The values are of another shape, or not finite.
        """
        row = _numbers(values)
        if row.shape != self.values.shape[1:]:
            raise InputError(
                f"The metadata of a task, {list(self.names)}, are of shape {self.values.shape[1:]}; got {row.shape}."
            )
        if not np.isfinite(row).all():
            raise LogError(
                f"The metadata {row.tolist()} of a task are not finite. Fill in the missing values."
            )
        return np.asarray(row - self.centre)


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """The designs Z_s = [I X_s] of N tasks: theta_s = Z_s (theta_parent, kappa) + u_s.

    Attributes
    ----------
    values : (N, c) or (N, d, c) array
        Covariates, centred.
    dim : int
        Features d.
    """

    values: Array
    dim: int

    @property
    def root_dim(self) -> int:
        """The number D of coefficients of theta_parent and kappa."""
        return self.dim + int(self.values.shape[-1]) * (self.dim if self.values.ndim == 2 else 1)

    def matrix(self, part: slice) -> Array:
        """Return Z (k, d, D) of some tasks."""
        d, values = self.dim, self.values[part]
        Z = np.zeros((len(values), d, self.root_dim))
        Z[:, range(d), range(d)] = 1.0
        if values.ndim == 3:
            Z[:, :, d:] = values
        else:
            c = values.shape[1]
            for j in range(d):
                Z[:, j, d + j * c : d + (j + 1) * c] = values
        return Z

    def transformed(self, back: Array) -> "Design":
        """Return the design for coefficients ``back`` theta; values (N, c) stay, since kappa changes with theta."""
        return self if self.values.ndim == 2 else Design(back @ self.values, self.dim)

    def parent_messages(self, messages: Array, parent: Codes, n_parents: int) -> Array:
        """Return sums by parent of [[Z'AZ, Z'a], [., c]], from packed messages [[A, a], [a', c]] (N, q) of tasks."""
        d, D = self.dim, self.root_dim
        total = np.zeros((n_parents, packed_size(D + 1)))
        for start in range(0, len(messages), _PIECE):
            part = slice(start, start + _PIECE)
            Z = np.zeros((len(messages[part]), d + 1, D + 1))
            Z[:, :d, :D] = self.matrix(part)
            Z[:, d, D] = 1.0
            joint = unpack(messages[part], d + 1) @ Z
            if n_parents == 1:
                total[0] += pack(np.tensordot(Z, joint, axes=([0, 1], [0, 1])))
            else:
                np.add.at(total, parent[part], pack(np.swapaxes(Z, 1, 2) @ joint))
        return total

    def project(self, means: Array, covs: Array, part: slice) -> tuple[Array, Array]:
        """Return Z m and Z V Z' of some tasks, from means (k, D) and covariances (k, D, D) of their parents."""
        Z = self.matrix(part)
        return np.einsum("nij,nj->ni", Z, means), Z @ covs @ np.swapaxes(Z, 1, 2)

    def project_roots(self, means: Array, roots: Array, part: slice) -> tuple[Array, Array]:
        """Return Z m, and roots (k, d, d) of Z C C' Z', from means (k, D) and roots C (k, D, D) of the parents."""
        Z = self.matrix(part)
        triangular = np.linalg.qr(np.swapaxes(Z @ roots, 1, 2), mode="r")
        return np.einsum("nij,nj->ni", Z, means), np.ascontiguousarray(np.swapaxes(triangular, 1, 2))

    def average(self, mean: Array, cov: Array) -> tuple[Array, Array]:
        """Return mean and covariance (d, d) of Z x, x ~ N(mean, cov), for a task drawn at random."""
        d, n = self.dim, len(self.values)
        first, second = np.zeros(d), np.zeros((d, d))
        for start in range(0, n, _PIECE):
            part = slice(start, start + _PIECE)
            Z = self.matrix(part)
            projected = Z @ mean
            first += projected.sum(axis=0)
            second += projected.T @ projected + (Z @ cov @ np.swapaxes(Z, 1, 2)).sum(axis=0)
        middle = first / n
        return middle, second / n - np.outer(middle, middle)


def _distinct(tasks: object) -> Keys:
    keys, codes = Keys.factorize(tasks)
    if len(keys) != codes.size:
        twice = keys.values[np.bincount(codes).argmax()]
        raise InputError(f"Task {plain(twice)!r} has more than one row of metadata. Keep one row a task.")
    return Keys(keys.values[codes])  # numbers come back sorted; the values are in the order given


def _numbers(values: Any) -> Array:
    array: NDArray[Any] = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise InputError(
            f"Metadata are of type {array.dtype}; numbers are needed. Code categories as 0/1 columns."
        )
    return np.asarray(array, dtype=np.float64)


def _check(values: Array, keys: Keys, names: Sequence[str]) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = (int(k) for k in np.argwhere(bad)[0][[0, -1]])
        raise LogError(
            f"Metadata column {names[column]!r} is not finite for task {plain(keys.values[row])!r}. Fill the value "
            "in, or leave the column out."
        )
    if values.ndim == 2 and len(values) > 1:
        same = values.max(axis=0) - values.min(axis=0) <= 1e-12 * np.abs(values).max(axis=0)
        if same.any():
            raise InputError(
                f"Metadata column {names[int(same.argmax())]!r} has one value for all tasks, so that it explains "
                "none of their differences. Leave it out."
            )
