"""Metadata of tasks as further columns of each action: theta_sa = Z_sa theta~_sa, Z_sa = [I X_sa].

Rows x of unit (s, a) are rows Z_sa'x of P coefficients, so that its sums are Z_sa' G_sa Z_sa and so on: exact, and made
anew from the sums on disk. The prior of theta~_sa is that of :mod:`hierarchy`, with L = M = 0 in the columns of
metadata, which are constant in a task.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import pack, packed_size, unpack
from hieropo.model.metadata import Design, Metadata
from hieropo.moments.statistics import Moments

_ROOM = 2**21  # doubles of one array while units are worked on


@dataclass(frozen=True, slots=True, eq=False)
class UnitDesigns:
    """Z_sa (p, P) of every unit of some tasks.

    Attributes
    ----------
    values : (m, c) or (m, K, p, c) array
        Metadata around their centre: of a task, or X_sa of its actions.
    n_actions, dim : int
        K, p.
    """

    values: Array
    n_actions: int
    dim: int

    @classmethod
    def of(cls, metadata: Metadata, moments: Moments) -> "UnitDesigns":
        """Look the metadata of all tasks up; errors as :meth:`Metadata.design`."""
        K, p = moments.n_actions, moments.unit_dim
        values = metadata.design(K * p, moments.keys).values
        return cls(values if values.ndim == 2 else values.reshape(len(values), K, p, -1), K, p)

    @property
    def unit_dim(self) -> int:
        """Coefficients P of one action, with those of metadata."""
        c = int(self.values.shape[-1])
        return self.dim + c * (self.dim if self.values.ndim == 2 else 1)

    def of_units(self, tasks: Codes, actions: Codes) -> Array:
        """Z (n, p, P) of some units."""
        values = self.values[tasks] if self.values.ndim == 2 else self.values[tasks, actions]
        return np.asarray(Design(values, self.dim).matrix(slice(None)))

    def of_tasks(self, tasks: Codes | slice) -> Array:
        """Z (n, K, p, P) of some tasks; (n, 1, p, P) where it is the same for all actions."""
        values = self.values[tasks]
        flat = values[:, None] if values.ndim == 2 else values
        n, k = flat.shape[:2]
        Z = Design(flat.reshape(n * k, *flat.shape[2:]), self.dim).matrix(slice(None))
        return np.asarray(Z.reshape(n, k, self.dim, self.unit_dim))

    def one(self, values: Array) -> Array:
        """Z (K or 1, p, P) of a task with metadata ``values`` around their centre, (c,) or (d, c)."""
        shaped = values if values.ndim == 1 else values.reshape(self.n_actions, self.dim, -1)
        return np.asarray(UnitDesigns(shaped[None], self.n_actions, self.dim).of_tasks(slice(0, 1))[0])

    def average(self) -> tuple[Array, Array]:
        """Mean of Z over tasks (K or 1, p, P), and Z_r (r, ...) with sum Z_r C Z_r' = mean of Z C Z' for any C."""
        designs = self.of_tasks(slice(None))
        flat = designs.reshape(len(designs), -1)
        if self.values.ndim == 2:  # Z is linear in (1, z)
            ones = np.column_stack([np.ones(len(designs)), self.values]) / np.sqrt(max(len(designs), 1))
            root: Array = np.asarray(np.linalg.qr(ones, mode="r"))
            bare = Design(root[:, 1:], self.dim).matrix(slice(None))
            bare[:, :, : self.dim] *= root[:, :1, None]
            roots = bare.reshape(len(root), -1)
        else:
            roots = np.asarray(np.linalg.qr(flat / np.sqrt(max(len(designs), 1)), mode="r"))
        shape = designs.shape[1:]
        return flat.mean(axis=0).reshape(shape), roots.reshape(-1, *shape)

    def described(self, moments: Moments) -> Moments:
        """Return the moments of all P columns."""
        p, P, K = self.dim, self.unit_dim, self.n_actions
        sums = np.zeros((moments.unit_sums.shape[0], packed_size(P + 2)))
        for units in self._pieces(moments):
            turn = np.zeros((len(units), p + 2, P + 2))
            turn[:, :p, :P] = self.of_units(*np.divmod(units, K))
            turn[:, p, P] = turn[:, p + 1, P + 1] = 1.0
            sums[units] = pack(turn.swapaxes(1, 2) @ unpack(moments.unit_sums[units], p + 2) @ turn)
        offset = moments.unit_offset
        return Moments(
            moments.keys, P, sums.reshape(len(moments), K, -1), moments.rows, moments.log_precision,
            unit_offset=None if offset is None else np.append(offset, np.zeros(P - p)),
        )  # fmt: skip

    def _pieces(self, moments: Moments) -> Iterator[Codes]:
        seen = np.flatnonzero(moments.unit_sums.any(axis=1))
        step = max(1, _ROOM // (self.unit_dim + 2) ** 2)
        for first in range(0, seen.size, step):
            yield seen[first : first + step]

    def lifted(self, vectors: Array, tasks: slice) -> Array:
        """Return Z_s'v of vectors (n, J, d) of some tasks, (n, J, K P)."""
        n, J, _ = vectors.shape
        K, p, P = self.n_actions, self.dim, self.unit_dim
        out = np.empty((n, J, K, P))
        step = max(1, _ROOM // (K * p * P))
        for first in range(0, n, step):
            part = slice(first, min(first + step, n))
            Z = self.of_tasks(slice(tasks.start + part.start, tasks.start + part.stop))
            weights = vectors[part].reshape(-1, J, K, p)
            out[part] = np.einsum("njap,napq->njaq", weights, np.broadcast_to(Z, (len(Z), K, p, P)))
        return out.reshape(n, J, K * P)


def sides(Z: Array, n_actions: int) -> Array:
    """Block-diagonal matrices (..., K p, K P) of Z (..., K or 1, p, P)."""
    *lead, _, p, P = Z.shape
    out = np.zeros((*lead, n_actions, p, n_actions, P))
    actions = np.arange(n_actions)
    out[..., actions, :, actions, :] = np.moveaxis(np.broadcast_to(Z, (*lead, n_actions, p, P)), -3, 0)
    return out.reshape(*lead, n_actions * p, n_actions * P)
