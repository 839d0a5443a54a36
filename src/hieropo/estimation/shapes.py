"""The shapes that Sigma_0 may have: full, diagonal, in blocks, one variance for all, a multiple of a given matrix.

And the noise variance that rows within tasks identify.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import packed_size, triangle, unpack
from hieropo.estimation.psd import congruence, feature_root, to_matrix, to_vector
from hieropo.moments.in_shards import AnyMoments, MomentsInShards, totals
from hieropo.moments.spread import about_fit, about_mean

FULL_DIM = 16  # features up to which full covariances are tried without being asked for

Named = Literal["full", "diag", "isotropic"]
Name = Literal["full", "diag", "isotropic", "block", "scaled"]

_UNTOLD = (
    1e-2  # of the residual variance of one fit to all rows: least noise_var where no task shows the noise
)
_NOISELESS = 1e-13  # of the variance of rewards: least noise_var where tasks show it
_MOST_TASKS = 10_000


@dataclass(frozen=True, eq=False)
class Shape:
    """S of dimension d as a vector x of its free entries, in coordinates that keep inner products.

    Attributes
    ----------
    name : str
    blocks, size : int
        S has ``blocks`` blocks of ``size`` on its diagonal and is zero elsewhere.
    tied : (d,) array or None
        S is the only entry of x times diag(tied), and blocks have size 1.
    """

    name: Name
    blocks: int
    size: int
    tied: Array | None = None

    @property
    def dim(self) -> int:
        """Dimension d of S."""
        return self.blocks * self.size

    @property
    def parameters(self) -> int:
        """Free entries k."""
        return 1 if self.tied is not None else self.blocks * packed_size(self.size)

    def matrix(self, x: Array) -> Array:
        """Return S (d, d) for x."""
        if self.tied is not None:
            return np.diag(x[0] * self.tied)
        return self._whole(to_matrix(x.reshape(self.blocks, -1), self.size))

    def vector(self, S: Array) -> Array:
        """Return x for the part of S that has this shape; for the mean of its diagonal, where it is tied."""
        if self.tied is not None:
            return np.array([np.diagonal(S) @ self.tied / self.tied.sum()])
        return to_vector(self.parts(S)).ravel()

    def starts(self, S: Array) -> list[Array]:
        """Return the x to start from: two where one variance replaces unequal ones, as there may be two minima."""
        if self.tied is None:
            return [self.vector(S)]
        values = np.diagonal(S)[self.tied > 0]
        least, most = 1 / np.mean(1 / values, keepdims=True), values.mean(keepdims=True)
        return [least] if most[0] <= 2 * least[0] else [least, most]

    def parts(self, S: Array) -> Array:
        """Return the diagonal blocks (..., blocks, size, size) of S (..., d, d)."""
        split = S.reshape(*S.shape[:-2], self.blocks, self.size, self.blocks, self.size)
        block = np.arange(self.blocks)
        diagonal_blocks: Array = np.moveaxis(split[..., block, :, block, :], 0, -3)
        return diagonal_blocks

    def frame(self, information: Array) -> Array:
        """Return T (blocks, size, size) such that in X = T^-1 S T'^-1 the blocks of ``information`` about mu are I."""
        if self.tied is not None:
            return np.full((1, 1, 1), (self.tied.sum() / (np.diagonal(information) @ self.tied)) ** 0.5)
        roots = np.array([feature_root(part) for part in self.parts(information)])
        return np.linalg.solve(roots, np.eye(self.size)).swapaxes(1, 2)

    def uncorrelated(self, gram: Array) -> Array | None:
        """Return T block-diagonal such that features T phi are uncorrelated within blocks; None where they nearly are.

        A change of coordinates that keeps the shape, for features that lie far from 0 compared with their spread.
        """
        if self.size == 1:
            return None
        roots = np.array([feature_root(part) for part in self.parts(gram)])
        diagonal = np.diagonal(roots, axis1=1, axis2=2)
        if (diagonal > 0.1 * np.linalg.norm(roots, axis=2)).all():
            return None
        return self._whole(np.linalg.solve(roots, np.eye(self.size)))

    def packed_form(self, form: Array, turn: Array | None) -> Array:
        """Return the curvature in the packed entries of S, from the curvature in x of features T phi.

        An entry off the diagonal counts once.
        """
        if self.tied is not None:
            return form
        if turn is not None:
            back = np.linalg.solve(self.parts(turn).swapaxes(1, 2), np.eye(self.size))
            change = congruence(np.asarray(back, dtype=np.float64))
            form = change.T @ form @ change
        once = np.tile(to_vector(np.ones((self.size, self.size))), self.blocks)
        return form * np.outer(once, once)

    @cached_property
    def columns(self) -> list[tuple[Codes | slice, Codes]]:
        """For each block, which packed entries hold the rows of the block, and where in these (size, d) each stands."""
        d = self.dim
        if self.blocks == 1:
            return [(slice(0, packed_size(d)), packed_positions(d))]
        slots_of_blocks: list[tuple[Codes | slice, Codes]] = []
        for rows in packed_positions(d).reshape(self.blocks, self.size, d):
            entries = np.unique(rows)
            slots_of_blocks.append((entries, np.searchsorted(entries, rows)))
        return slots_of_blocks

    @cached_property
    def pairs(self) -> tuple[Codes, Codes]:
        """Packed entries of the diagonal blocks (blocks, q), and of the blocks above them (pairs, size^2)."""
        p, b = self.size, self.blocks
        slots = packed_positions(self.dim).reshape(b, p, b, p).swapaxes(1, 2)
        i, j = triangle(p)
        return slots[np.arange(b), np.arange(b)][:, i, j], slots[np.triu_indices(b, 1)].reshape(-1, p * p)

    def _whole(self, parts: Array) -> Array:
        S = np.zeros((self.blocks, self.size, self.blocks, self.size))
        block = np.arange(self.blocks)
        S[block, :, block, :] = parts
        return S.reshape(self.dim, self.dim)


def packed_positions(d: int) -> Codes:
    """Return where entry (i, j) of a symmetric d x d matrix stands in its packed triangle (d, d)."""
    low, high = np.minimum.outer(np.arange(d), np.arange(d)), np.maximum.outer(np.arange(d), np.arange(d))
    return np.asarray(high * (high + 1) // 2 + low)


def named(name: Named | Literal["block"], d: int, blocks: int = 1) -> Shape:
    """Return the shape of that name in d dimensions; ``blocks`` for "block"."""
    if name == "full":
        return Shape(name, 1, d)
    if name == "block":
        return Shape(name, blocks, d // blocks)
    return Shape(name, d, 1, np.ones(d) if name == "isotropic" else None)


def full_is_possible(d: int, m: int) -> bool:
    """Return whether "auto" may try full covariances of d features, with m tasks."""
    return 1 < d <= FULL_DIM and d < m


def scaled(V: Array, gram: Array) -> tuple[Shape, Array]:
    """Return the shape c V, and M regular such that in features M phi it is c diag(1, ..., 1, 0, ..., 0).

    With V = F F', M has the rows of F' and, of the features themselves, those that F' phi does not stand for already;
    ``gram`` of all rows says how large each is.
    """
    from scipy.linalg import qr

    d = len(V)
    size = np.sqrt(np.maximum(np.diagonal(V), 0.0))
    size[size == 0] = 1.0
    values, vectors = np.linalg.eigh(V / np.outer(size, size))
    kept = values > 8 * d * np.finfo(np.float64).eps * max(values[-1], 0.0)
    factor = (vectors * size[:, None] * np.sqrt(np.maximum(values, 0.0)))[:, kept]
    pivots = qr((factor * np.sqrt(np.diagonal(gram))[:, None]).T, mode="r", pivoting=True)[1]
    others = np.sort(pivots[factor.shape[1] :])
    T = np.concatenate([factor.T, np.eye(d)[others]])
    return Shape("scaled", d, 1, (np.arange(d) < factor.shape[1]).astype(np.float64)), T


def inside(first: Array, second: Array, shape: Shape) -> tuple[Array, ...]:
    """Return sums over tasks of products of packed entries (q, tasks) of two matrices within each block of the shape.

    Of the diagonal blocks (blocks, q_b, q_b), and of those above them (pairs, p^2, p^2): no other products tell how the
    blocks of S bend the deviance.
    """
    if shape.blocks == 1:
        return ((first @ second.T)[None],)
    first = np.ascontiguousarray(first)
    return tuple(first[at] @ second[at].swapaxes(1, 2) for at in shape.pairs)


def along(gram: Array, at: Codes) -> Array:
    """Return sums of A_s Delta B_s, symmetrised, for unit changes Delta of a block (..., q, d, d), from Gram matrices.

    Entry (i, k) of the block's rows of A_s stands at ``at[i, k]``.
    """
    i, j = triangle(len(at))
    some = gram[..., at[i][:, :, None], at[j][:, None, :]] + gram[..., at[j][:, :, None], at[i][:, None, :]]
    once = to_vector(np.ones((len(at), len(at))))
    return (some + some.swapaxes(-1, -2)) * (once / 4)[:, None, None]


def bent(inside: tuple[Array, ...], shape: Shape) -> Array:
    """Return sums of tr(Delta A_s Delta' B_s) for unit changes of the shape (k, k), from the sums within blocks."""
    b, p = shape.blocks, shape.size
    q = packed_size(p)
    form, block = np.zeros((b, q, b, q)), np.arange(b)
    form[block, :, block] = to_vector(along(inside[0], packed_positions(p)))
    if b > 1:
        above = to_vector(along(inside[1], np.arange(p * p).reshape(p, p)))
        low, high = np.triu_indices(b, 1)
        form[low, :, high] = above
        form[high, :, low] = above.swapaxes(1, 2)
    return form.reshape(b * q, b * q)


def noise_inside(moments: AnyMoments) -> tuple[float, float, str]:
    """Return the residual variance within tasks, the smallest allowed noise_var, and a warning about both, or ""."""
    floor = _NOISELESS * (about_mean(totals(moments)) or 1.0)
    most_tasks = min(2000, max(100, 10**8 // moments.dim**3))
    counts = moments.rows_of_tasks() if isinstance(moments, MomentsInShards) else moments.rows
    largest = np.argsort(-counts, kind="stable")[:most_tasks]
    squares, free = _residuals(moments, largest)
    if not (free > 0).any() and len(moments) > len(largest):
        squares, free = _residuals(moments, np.arange(0, len(moments), -(-len(moments) // _MOST_TASKS)))
    if not (free > 0).any():
        warning = (
            f"No task has more rows than its features ({moments.dim}) can fit, so noise and differences between "
            "tasks are distinguished by the shape of task_cov alone; noise_var is kept above 1 % of the residual "
            "variance of one fit to all rows. Log more rows of each task, or use fewer features."
        )
        total_variance = about_fit(totals(moments))
        return max(total_variance, floor), max(_UNTOLD * total_variance, floor), warning
    noise_var = float(squares[free > 0].sum() / free[free > 0].sum())
    warning = f"Rewards are without noise given the features; noise_var is kept at {floor:.3g}, far below the rewards."
    return max(noise_var, floor), floor, warning if noise_var <= floor else ""


def _residuals(moments: AnyMoments, tasks: NDArray[np.int64]) -> tuple[Array, NDArray[np.int64]]:
    """Return residual sums of squares of one least-squares fit a task, and the residual degrees of freedom."""
    d = moments.dim
    some = moments.gathered(tasks) if isinstance(moments, MomentsInShards) else moments.at(tasks)
    joint = unpack(some.sums, d + 1)
    scale = np.sqrt(np.diagonal(joint[:, :d, :d], axis1=1, axis2=2))
    safe = np.where(scale > 0, scale, 1.0)
    values, vectors = np.linalg.eigh(joint[:, :d, :d] / (safe[:, :, None] * safe[:, None, :]))
    identified = values > 1e-12
    projected = np.einsum("sij,si->sj", vectors, joint[:, :d, d] / safe)
    explained = np.where(identified, projected**2 / np.where(identified, values, 1.0), 0.0).sum(axis=1)
    return np.maximum(joint[:, d, d] - explained, 0.0), some.rows - identified.sum(axis=1)
