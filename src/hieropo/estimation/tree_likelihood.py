"""The likelihood of every level's covariance in a tree, and its slope; mu is profiled or integrated out.

A tree has levels k = 0 .. L, the tasks being level 0, and the root above level L: theta_n ~ N(theta_parent(n),
Sigma_k), or N(Z_n theta_parent(n), Sigma_0) for tasks with metadata. With S_k = Sigma_k / sigma^2, one step up gives
each node A_n and a_n (:mod:`likelihood` has them for the tasks), what its children say summed; the root keeps P, b and
c. Then

    mu = P^-1 b     RSS = c - mu' b
    -2 log L = N log(2 pi sigma^2) + RSS / sigma^2 + sum_n log|I + G_n S_k|   (+ log|P| for REML, N = n - D; else N = n)

and sigma^2 = RSS / N. With m_p and sigma^2 V_p the posterior of a node's parent given all rows (V = P^-1 at the root
for REML, 0 for ML), u_n = a_n - A_n m_p and R_n = A_n - A_n V_p A_n,

    slope in S_k       sum_n R_n - u_n u_n' / sigma^2
    curvature in S_k   <Delta, sum_n R_n Delta R_n> - <sum_n R_n, Delta>^2 / N

The slope is exact. The curvature leaves out what ties the nodes of a level to each other and the levels to one another:
an estimate learns that from the slopes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.packed import Index, pack, packed_size, padded, unpack
from hieropo.estimation.likelihood import Criterion
from hieropo.model.metadata import Design
from hieropo.model.posterior import flat_root
from hieropo.model.steps import Parents, down, square_roots, up, upper_factor
from hieropo.moments.statistics import turned

_PIECE = 4096  # nodes worked on at once
_SAMPLE = 8192  # nodes of a level from which its curvature is taken


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Rows of the lowest nodes and how all nodes hang together, as arrays.

    Attributes
    ----------
    rows : (N, (d + 2)(d + 3) / 2) array
        Packed sums of the lowest nodes, as ``Moments.sums``.
    dim : int
        Features d.
    parents : tuple of int arrays
        ``parents[k][i]`` is the place, at the level above, of node i of level k; of the last level all are 0, the root.
    n_rows, log_precision : float
        Rows, and sum of c q log v, of all nodes together.
    design : Design or None
        What is known of the lowest nodes.
    names : tuple of str
        Of the covariances, for messages, from that of the lowest nodes upwards.
    """

    rows: Array
    dim: int
    parents: tuple[Index, ...]
    n_rows: float
    log_precision: float
    design: Design | None = None
    names: tuple[str, ...] = ("the covariances of the levels",)

    @property
    def root_dim(self) -> int:
        """Coefficients of the root."""
        return self.dim if self.design is None else self.design.root_dim

    def turned(self, T: Array, back: Array) -> "Tree":
        """Return the tree of the features T phi; ``back`` is T^-T."""
        design = None if self.design is None else self.design.turned(back)
        return replace(self, rows=turned(self.rows, T), design=design)


@dataclass(frozen=True, slots=True, eq=False)
class TreeLikelihood:
    """Value and slopes at one (S_0, ..., S_L).

    Attributes
    ----------
    deviance, noise_var, rest : float
        As in :class:`likelihood.Likelihood`; and RSS.
    slopes : (L + 1, d, d) array
        At ``noise_var``.
    expected : (L + 1, d, d) array
        sum_n R_n.
    squares : tuple of (q, q) or (r, r) arrays
        Gram matrices of the packed R_n of each level; with directions t_i, sum_n (t_i' R_n t_j)^2.
    degrees : int
        N, or 0 where sigma^2 is held at the floor.
    """

    deviance: float
    noise_var: float
    rest: float
    slopes: Array
    expected: Array
    squares: tuple[Array, ...]
    degrees: float


def tree_likelihood(
    tree: Tree,
    ratios: Sequence[Array],
    criterion: Criterion,
    floor: float,
    *,
    noise_var: float | None = None,
    directions: Sequence[Array] | None = None,
) -> TreeLikelihood:
    """Evaluate at the ratios S_k, (d, d) each.

    Parameters
    ----------
    tree, ratios, criterion
    floor : float
        Smallest noise_var.
    noise_var : float, optional
        sigma^2; default the best one for these ratios.
    directions : sequence of (r, d) arrays, optional
        Rows t_i of each level, for the squares of :class:`TreeLikelihood`.

    Raises
    ------
    NumericalError
        The root is not determined.
    """
    D = tree.root_dim
    stages: list[tuple[Array, Array, Array]] = []
    rows, log_det = tree.rows, 0.0
    for k, (ratio, parent) in enumerate(zip(ratios, tree.parents, strict=True)):
        factor, _ = upper_factor(ratio if k == 0 else padded(ratio, D))
        said, part = up(rows, 1.0, factor, np.arange(len(rows)), len(rows))
        stages.append((rows, said, factor))
        log_det += part
        above = int(tree.parents[k + 1].size) if k + 1 < len(tree.parents) else 1
        if k == 0 and tree.design is not None:
            rows = tree.design.lifted(said, parent, above)
        else:
            rows = summed(said, parent, above)
    joint = unpack(rows[0], D + 1)
    root, log_det_P = flat_root(joint[:D, :D], joint[:D, D])
    degrees = tree.n_rows - (D if criterion == "reml" else 0)
    rest = max(float(joint[D, D] - joint[:D, D] @ root.mean), 0.0)
    if noise_var is None:
        noise_var = max(rest / degrees, floor) if degrees > 0 else floor
    deviance = degrees * np.log(2 * np.pi * noise_var) + rest / noise_var + log_det - tree.log_precision
    cov = root.cov
    if criterion == "reml":
        deviance += log_det_P
    else:
        cov = np.zeros((D, D))
    slopes, expected, squares = _slopes(tree, stages, root.mean[None], cov[None], noise_var, directions)
    free = degrees if noise_var > floor else 0
    return TreeLikelihood(float(deviance), noise_var, rest, slopes, expected, squares, free)


def summed(said: Array, parent: Index, above: int) -> Array:
    """Sum packed rows by parent."""
    if above == 1:
        return np.asarray(said.sum(axis=0, keepdims=True))
    total = np.zeros((above, said.shape[1]))
    np.add.at(total, parent, said)
    return total


def _slopes(
    tree: Tree,
    stages: list[tuple[Array, Array, Array]],
    means: Array,
    covs: Array,
    noise_var: float,
    directions: Sequence[Array] | None,
) -> tuple[Array, Array, tuple[Array, ...]]:
    """Walk down, from the root's mean and covariance (in units of noise_var), and collect each level's sums."""
    d = tree.dim
    slopes, expected, squares = [], [], []
    for k in reversed(range(len(stages))):
        rows, said, factor = stages[k]
        design = tree.design if k == 0 else None
        along = None if directions is None else directions[k]
        slope, full, square = _level(said, tree.parents[k], means, covs, d, design, noise_var, along)
        slopes.append(slope)
        expected.append(full)
        squares.append(square)
        if k:
            parents = Parents.of(means, square_roots(covs), factor, regular=False)
            means, packed, _ = down(rows, 1.0, factor, tree.parents[k], parents)
            covs = unpack(packed, means.shape[1])
    return np.array(slopes[::-1]), np.array(expected[::-1]), tuple(squares[::-1])


def _level(
    said: Array,
    parent: Index,
    means: Array,
    covs: Array,
    d: int,
    design: Design | None,
    noise_var: float,
    directions: Array | None,
) -> tuple[Array, Array, Array]:
    """Slope, expected part and Gram matrix of one level; of its nodes' coordinates the first d vary."""
    size = d if design is not None else means.shape[1]
    q, n = packed_size(size), len(said)
    every = -(-n // _SAMPLE)
    slope, expected = np.zeros((size, size)), np.zeros((size, size))
    square = np.zeros((packed_size(d) if directions is None else len(directions),) * 2)
    for start in range(0, n, _PIECE):
        part = slice(start, min(start + _PIECE, n))
        A, a, at = unpack(said[part], size), said[part, q : q + size], parent[part]
        m, V = means[at], covs[at]
        if design is not None:
            m, V = design.spread(m, V, part)
        u = a - np.einsum("nij,nj->ni", A, m)
        R = A - A @ V @ A
        slope -= u.T @ u / noise_var
        expected += R.sum(axis=0)
        some = R[(-start) % every :: every, :d, :d]
        square += every * (_gram(some) if directions is None else _along(some, directions))
    slope += expected
    return (slope + slope.T)[:d, :d] / 2, expected[:d, :d], square


def _gram(matrices: Array) -> Array:
    """Gram matrix (q, q) of packed matrices (k, d, d)."""
    rows = pack(matrices)
    return np.asarray(rows.T @ rows)


def _along(matrices: Array, directions: Array) -> Array:
    """Sum of (t_i' R t_j)^2 over matrices R (k, d, d), for rows t_i of ``directions`` (r, d)."""
    turned = directions @ matrices @ directions.T
    return np.asarray((turned * turned).sum(axis=0))
