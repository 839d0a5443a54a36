"""One step up and one step down the tree for all nodes of a level, from which every posterior is computed.

With F F' = Sigma_0 (any rank), L L' = I + F'G F, V = L^-1 F' and W = V [B G], nothing is ever inverted:

    up      [P b; b' c'] = [G B; B' c] - W'W
    down    Sigma~ = V'V,   M = F K^-1 F^+ on the range of F

Where F'G F is larger than 1e4, so that these would cost digits, the same from R'R = G (pivoted, any rank), without a
subtraction that cancels:

    up      H H' = I + (R F)(R F)',  X = H^-1 [y R],  [P b; b' c'] = X'X, c' += c - |y|^2
    down    L from reflections of [I; R F]

``[[P, b], [b', c']]`` is the message of a node to its parent; ``[[G, B], [B', sum w r^2 / sigma^2]]`` is that of the
rows to the node. The same step serves every level, and the scalar at the root is the evidence. The shrinkage of a node
is M = (I + Sigma_0 G)^-1, the weight of its parent's coefficients in its posterior mean.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from hieropo._kernels import backend
from hieropo._utils.arrays import Array, Codes, normalised
from hieropo._utils.packed import packed_size
from hieropo._utils.threads import in_threads, processors

T = TypeVar("T")

_CHUNK = 16_384  # tasks a piece of work: results do not depend on the number of threads
_MANY_PARENTS = 256
_REGULAR = 1e-6  # smallest singular value of a factor, in units of the largest, that may be divided by


def pivot_tolerance(d: int) -> float:
    """Return the share of a diagonal entry below which a pivot is a rounding error."""
    return 8.0 * d * float(np.finfo(np.float64).eps)


def upper_factor(cov: Array) -> tuple[Array, bool]:
    """Return F upper triangular with F F' = cov (d, d), and True where F is well conditioned."""
    (root,) = square_roots(cov[None])
    triangular: Array = np.asarray(np.linalg.qr(root[::-1].T, mode="r"))
    factor = np.ascontiguousarray(triangular.T[::-1, ::-1])
    sizes = np.linalg.norm(factor, axis=1)
    values = np.linalg.svd(factor / np.where(sizes > 0, sizes, 1.0)[:, None], compute_uv=False)
    return factor, bool(values.size and values[-1] > _REGULAR * values[0])


def square_roots(covs: Array) -> Array:
    """Return C with C C' = cov for covs (k, d, d), singular or not, accurate for columns of any scale."""
    scale = np.sqrt(np.maximum(np.diagonal(covs, axis1=1, axis2=2), 0.0))
    safe = np.where(scale > 0, scale, 1.0)
    values, vectors = np.linalg.eigh(covs / (safe[:, :, None] * safe[:, None, :]))
    factors: Array = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    return scale[:, :, None] * factors


def pivoted_roots(covs: Array) -> Array:
    """Return C with C C' = cov for covs (k, d, d), by Cholesky with pivots: in a tenth of the time of `square_roots`.

    Variances below rounding are left out.
    """
    from scipy.linalg.lapack import dpstrf

    roots = np.zeros_like(covs)
    for k, cov in enumerate(covs):
        scale = np.sqrt(np.maximum(np.diagonal(cov), 0.0))
        if not scale.any():
            continue
        safe = np.where(scale > 0, scale, 1.0)
        factor, pivots, rank, _ = dpstrf(cov / (safe[:, None] * safe), tol=pivot_tolerance(len(cov)), lower=1)
        order = pivots - 1
        roots[k, order, :rank] = scale[order, None] * np.tril(factor)[:, :rank]
    return roots


@dataclass(frozen=True, slots=True, eq=False)
class Parents:
    """Gaussians of parents N(m, C C'), with C = F inner + outer in terms of the children's factor F."""

    means: Array
    inner: Array
    outer: Array
    lower: bool

    @classmethod
    def of(cls, means: Array, roots: Array, factor: Array, *, regular: bool) -> "Parents":
        """Return parents from means (k, d) and roots C (k, d, d), in terms of the factor F (d, d)."""
        k, d = means.shape
        if regular:
            whitened = np.linalg.solve(factor, roots)
            lower_root = np.linalg.qr(np.swapaxes(whitened, 1, 2), mode="r")
            return cls(
                means, np.ascontiguousarray(np.swapaxes(lower_root, 1, 2)), np.zeros((0, d, d)), lower=True
            )
        side_by_side = np.swapaxes(roots, 0, 1).reshape(d, k * d)
        solution = np.linalg.lstsq(factor, side_by_side, rcond=None)[0]
        inner = np.ascontiguousarray(np.swapaxes(solution.reshape(d, k, d), 0, 1))
        return cls(means, inner, np.ascontiguousarray(roots - factor @ inner), lower=False)


class Split(NamedTuple):
    """A root F of a covariance, and I = F inner + outer, row by row; ``outer`` is empty where F is regular."""

    factor: Array
    inner: Array
    outer: Array

    @classmethod
    def of(cls, cov: Array) -> "Split":
        """Return the split of a covariance (d, d)."""
        factor, regular = upper_factor(cov)
        identity = np.eye(len(factor))
        if regular:
            inner: Array = np.asarray(np.linalg.solve(factor, identity), dtype=np.float64)
            return cls(factor.ravel(), inner.ravel(), np.zeros(0))
        inner = np.ascontiguousarray(np.linalg.lstsq(factor, identity, rcond=None)[0], dtype=np.float64)
        return cls(factor.ravel(), inner.ravel(), (identity - factor @ inner).ravel())


def _over_chunks(n: int, work: Callable[[int, int], T]) -> list[T]:
    starts = range(0, n, _CHUNK)
    return in_threads(lambda start: work(start, min(start + _CHUNK, n)), starts, processors())


def up(rows: Array, scale: float, factor: Array, parent: Codes, n_parents: int) -> tuple[Array, float]:
    """Return messages summed by parent (n_parents, q), from packed rows (m, >= q), and sum log|I + G Sigma_0|."""
    d = factor.shape[0]
    q = packed_size(d + 1)
    rows, tolerance, loops = normalised(rows), pivot_tolerance(d), backend.steps(rows.shape[0] * q)

    def work(first: int, last: int) -> tuple[Array, float]:
        out = np.zeros((n_parents, q))
        return out, loops.step_up(rows, first, last, scale, factor, tolerance, parent, out)

    if n_parents > _MANY_PARENTS:  # one sum for each parent and piece would cost more than it saves
        return work(0, rows.shape[0])
    total, log_det = np.zeros((n_parents, q)), 0.0
    for part, part_log_det in _over_chunks(rows.shape[0], work):
        total += part
        log_det += part_log_det
    return total, log_det


def down(
    rows: Array, scale: float, factor: Array, parent: Codes, parents: Parents, *, shrinkage: bool = False
) -> tuple[Array, Array, Array]:
    """Return the posteriors of nodes: means (m, d), packed covariances (m, d (d + 1) / 2), and M C (m, d, d).

    M C is the shrinkage times the root of the parent's covariance; it is computed with ``shrinkage``, else empty.
    """
    m, d = rows.shape[0], factor.shape[0]
    rows, tolerance, loops = normalised(rows), pivot_tolerance(d), backend.steps(m * packed_size(d + 1))
    means, covs = np.empty((m, d)), np.empty((m, packed_size(d)))
    MC = np.empty((m if shrinkage else 0, d, d))
    parent_arrays = (normalised(parents.means), parents.inner, parents.outer, parents.lower)

    def work(first: int, last: int) -> None:
        outputs = (means, covs, MC)
        loops.step_down(rows, first, last, scale, factor, tolerance, parent, parent_arrays, outputs)

    _over_chunks(m, work)
    return means, covs, MC


@dataclass(frozen=True, slots=True, eq=False)
class TreeLevel:
    """The nodes of one level, N(parent, F F') each, with the packed messages that reach them from below.

    Attributes
    ----------
    rows : (n, >= q) array
        Packed messages [[G, B], [B', c]] of the nodes' rows, or of their children.
    scale : float
        Multiple in which the messages are taken: 1 / sigma^2 for sums of rows, else 1.
    factor : (d, d) array
        F, a root of the covariance of the nodes around their parents.
    regular : bool
        True where F is well conditioned.
    """

    rows: Array
    scale: float
    factor: Array
    regular: bool

    @classmethod
    def of(cls, rows: Array, scale: float, cov: Array) -> "TreeLevel":
        """Return the level with this covariance (d, d) of nodes around their parents."""
        return TreeLevel(rows, scale, *upper_factor(cov))

    def given(self, means: Array, part: slice) -> tuple[Array, Array]:
        """Return means and packed covariances of some nodes whose parents are known to be ``means`` (n, d)."""
        n, d = means.shape
        known = Parents(means, np.zeros((n, d, d)), np.zeros((0, d, d)), lower=True)
        means, covs, _ = down(self.rows[part], self.scale, self.factor, np.arange(n), known)
        return means, covs

    def shrinkage(self, part: slice) -> Array:
        """Return M = (I + Sigma G)^-1 of some nodes, (n, d, d): their shrinkage towards their parents."""
        d, rows = len(self.factor), self.rows[part]
        parents = Parents.of(np.zeros((1, d)), np.eye(d)[None], self.factor, regular=self.regular)
        # C = F inner + outer with inner triangular is a rotation of I, so undo it: M C C' = M
        root = self.factor @ parents.inner[0] + (parents.outer[0] if parents.outer.size else 0.0)
        first = np.zeros(len(rows), dtype=np.int64)
        shrinkage: Array = down(rows, self.scale, self.factor, first, parents, shrinkage=True)[2] @ root.T
        return shrinkage
