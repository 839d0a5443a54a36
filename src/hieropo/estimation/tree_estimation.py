"""The likelihood of the covariances of every level of a tree, and its maximum.

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

As for two levels (:mod:`reml`), each step goes to the minimiser over the positive semi-definite matrices of a
quadratic with the exact slope. Its curvature, approximate for a tree, is corrected by BFGS from the slopes seen so far.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.blas_threads import one_blas_thread
from hieropo._utils.packed import pack, packed_size, padded, unpack
from hieropo._utils.ties import first_largest
from hieropo.errors import NumericalError, warn
from hieropo.estimation.likelihood import Criterion
from hieropo.estimation.psd import congruence, feature_root, minimise, nearest_psd, to_matrix, to_vector
from hieropo.estimation.reml import (
    HOPE,
    SAME_SCORE,
    Estimate,
    Fit,
    TaskCov,
    check_choices,
    first_guess,
    noise_to_start,
    with_rows,
)
from hieropo.estimation.shapes import Named, Shape, full_is_possible, named
from hieropo.model.hierarchy import Hierarchy, Level
from hieropo.model.metadata import Design, Metadata
from hieropo.model.posterior import flat_root, parents_of
from hieropo.model.steps import Parents, down, square_roots, up, upper_factor
from hieropo.moments.statistics import Moments, transformed_sums

_PIECE = 4096  # nodes worked on at once
_SAMPLE = 8192  # nodes of a level from which its curvature is taken


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """The rows of the lowest nodes and the parents of all nodes, as arrays.

    Attributes
    ----------
    rows : (N, (d + 2)(d + 3) / 2) array
        Packed sums of the lowest nodes, as ``Moments.sums``.
    dim : int
        Features d.
    parents : tuple of int arrays
        ``parents[k][i]`` is the row, at the level above, of the parent of node i of level k; 0 at the last level.
    n_rows, log_precision : float
        Rows, and sum of c q log v, of all nodes together.
    design : Design or None
        Metadata of the lowest nodes.
    names : tuple of str
        Of the covariances, for messages, from that of the lowest nodes upwards.
    """

    rows: Array
    dim: int
    parents: tuple[Codes, ...]
    n_rows: float
    log_precision: float
    design: Design | None = None
    names: tuple[str, ...] = ("the covariances of the levels",)

    @property
    def root_dim(self) -> int:
        """Coefficients of the root."""
        return self.dim if self.design is None else self.design.root_dim

    def transformed(self, T: Array, back: Array) -> "Tree":
        """Return the tree of the features T phi; ``back`` is T^-T."""
        design = None if self.design is None else self.design.transformed(back)
        return replace(self, rows=transformed_sums(self.rows, T), design=design)


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
        Smallest allowed noise_var.
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
    passed: list[tuple[Array, Array, Array]] = []
    rows, log_det = tree.rows, 0.0
    for k, (ratio, parent) in enumerate(zip(ratios, tree.parents, strict=True)):
        factor, _ = upper_factor(ratio if k == 0 else padded(ratio, D))
        messages, part = up(rows, 1.0, factor, np.arange(len(rows)), len(rows))
        passed.append((rows, messages, factor))
        log_det += part
        n_parents = int(tree.parents[k + 1].size) if k + 1 < len(tree.parents) else 1
        if k == 0 and tree.design is not None:
            rows = tree.design.parent_messages(messages, parent, n_parents)
        else:
            rows = summed(messages, parent, n_parents)
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
    slopes, expected, squares = _slopes(tree, passed, root.mean[None], cov[None], noise_var, directions)
    free = degrees if noise_var > floor else 0
    return TreeLikelihood(float(deviance), noise_var, rest, slopes, expected, squares, free)


def summed(messages: Array, parent: Codes, n_parents: int) -> Array:
    """Return packed messages summed by parent."""
    if n_parents == 1:
        return np.asarray(messages.sum(axis=0, keepdims=True))
    sums = np.zeros((n_parents, messages.shape[1]))
    np.add.at(sums, parent, messages)
    return sums


def _slopes(
    tree: Tree,
    passed: list[tuple[Array, Array, Array]],
    means: Array,
    covs: Array,
    noise_var: float,
    directions: Sequence[Array] | None,
) -> tuple[Array, Array, tuple[Array, ...]]:
    """Return slopes, expected parts and Gram matrices of all levels, by one pass down from the root."""
    d = tree.dim
    slopes, expected, squares = [], [], []
    for k in reversed(range(len(passed))):
        rows, messages, factor = passed[k]
        design = tree.design if k == 0 else None
        along = None if directions is None else directions[k]
        slope, expected_part, square = _level(
            messages, tree.parents[k], means, covs, d, design, noise_var, along
        )
        slopes.append(slope)
        expected.append(expected_part)
        squares.append(square)
        if k:
            parents = Parents.of(means, square_roots(covs), factor, regular=False)
            means, packed, _ = down(rows, 1.0, factor, tree.parents[k], parents)
            covs = unpack(packed, means.shape[1])
    return np.array(slopes[::-1]), np.array(expected[::-1]), tuple(squares[::-1])


def _level(
    messages: Array,
    parent: Codes,
    means: Array,
    covs: Array,
    d: int,
    design: Design | None,
    noise_var: float,
    directions: Array | None,
) -> tuple[Array, Array, Array]:
    """Return slope, expected part and Gram matrix of one level; of its nodes' coordinates the first d vary."""
    size = d if design is not None else means.shape[1]
    q, n = packed_size(size), len(messages)
    stride = -(-n // _SAMPLE)
    slope, expected = np.zeros((size, size)), np.zeros((size, size))
    square = np.zeros((packed_size(d) if directions is None else len(directions),) * 2)
    for start in range(0, n, _PIECE):
        part = slice(start, min(start + _PIECE, n))
        A, a, parent_rows = unpack(messages[part], size), messages[part, q : q + size], parent[part]
        m, V = means[parent_rows], covs[parent_rows]
        if design is not None:
            m, V = design.project(m, V, part)
        u = a - np.einsum("nij,nj->ni", A, m)
        R = A - A @ V @ A
        slope -= u.T @ u / noise_var
        expected += R.sum(axis=0)
        sample = R[(-start) % stride :: stride, :d, :d]
        square += stride * (_gram(sample) if directions is None else _along(sample, directions))
    slope += expected
    return (slope + slope.T)[:d, :d] / 2, expected[:d, :d], square


def _gram(matrices: Array) -> Array:
    """Return the Gram matrix (q, q) of packed matrices (k, d, d)."""
    rows = pack(matrices)
    return np.asarray(rows.T @ rows)


def _along(matrices: Array, directions: Array) -> Array:
    """Return the sum of (t_i' R t_j)^2 over matrices R (k, d, d), for rows t_i of ``directions`` (r, d)."""
    turned = directions @ matrices @ directions.T
    return np.asarray((turned * turned).sum(axis=0))


_EVALUATIONS = 500
_TOLERANCE = 1e-11  # of the deviance, for the predicted decrease of the next step
_NOTHING = 1e-9
_REMEMBERED = 30  # slopes that the curvature learns from
_LOST = 1e100  # curvature, in round coordinates about 1, beyond which all is rounding


@dataclass(frozen=True, slots=True, eq=False)
class TreeFit:
    """A fitted tree.

    Attributes
    ----------
    covs : (L + 1, d, d) array
        Covariance of each level, from the lowest nodes upwards.
    noise_var : float
    fit : Fit
    compared : tuple of Fit
        All shapes tried.
    """

    covs: Array
    noise_var: float
    fit: Fit
    compared: tuple[Fit, ...] = ()


@one_blas_thread
def estimate_levels(
    moments: Moments,
    task_cov: TaskCov = "auto",
    criterion: Criterion = "reml",
    *,
    levels: Mapping[str, Mapping[Any, Any]] | None = None,
    metadata: Metadata | None = None,
) -> Estimate:
    """Estimate noise_var, task_cov and the covariances of all levels.

    Parameters
    ----------
    moments : Moments
    task_cov : {"auto", "full", "diag", "isotropic"}
        Shape of all covariances; "auto" takes "diag" or "full", as BIC says.
    criterion : {"reml", "ml"}
    levels : mapping of name to parents, from the tasks upwards
        Of each level the mapping of child to node, as in ``Level``.
    metadata : Metadata, optional
        Metadata of the tasks.

    Raises
    ------
    LogError, NumericalError
        As :func:`reml.estimate`.
    InputError, UnknownTaskError
        A task has no parent in the tree, or no metadata.

    Warns
    -----
    HieropoWarning
        As :func:`reml.estimate`.
    """
    check_choices(moments, task_cov, criterion)
    active = with_rows(moments)
    d = moments.dim
    known = [Level(np.zeros((d, d)), parent, name) for name, parent in (levels or {}).items()]
    shape_of = Hierarchy(None, np.zeros((d, d)), 1.0, tuple(known), metadata)
    tree = tree_of(active, shape_of)
    _warn_of_levels(tree, shape_of)
    best = estimate_units(active, tree, task_cov, criterion)
    hierarchy = replace(
        shape_of,
        task_cov=best.covs[0],
        noise_var=best.noise_var,
        levels=tuple(
            Level(cov, level.parent, level.name) for cov, level in zip(best.covs[1:], known, strict=True)
        ),
    )
    return Estimate(hierarchy, criterion, best.fit, best.compared)


def estimate_units(moments: Moments, tree: Tree, task_cov: TaskCov, criterion: Criterion) -> TreeFit:
    """Fit one shape to all levels of a tree, or with "auto" the one that BIC prefers.

    Parameters
    ----------
    moments : Moments
        Of the lowest nodes.
    tree : Tree
        Over those of them that have rows.
    task_cov, criterion
        As :func:`estimate_levels`.
    """
    noise_var, floor = noise_to_start(moments)
    start, d, m = first_guess(moments, noise_var) / noise_var, tree.dim, len(tree.rows)
    names: list[Named] = ["diag"] if task_cov == "auto" else [task_cov]
    if task_cov == "auto" and full_is_possible(d, m):
        names.append("full")
    fits = [estimate_tree(tree, named(names[0], d), criterion, start, floor)]
    for name in names[1:]:
        if not _may_win(tree, named(name, d), fits[0], criterion):
            continue
        try:
            fits.append(estimate_tree(tree, named(name, d), criterion, start, floor))
        except NumericalError as error:
            warn(f"Diagonal covariances are kept, because others did not converge: {error}")
    best = fits[int(first_largest([fit.fit.score(m) for fit in fits], room=SAME_SCORE))]
    return replace(best, compared=tuple(fit.fit for fit in fits))


def _may_win(tree: Tree, shape: Shape, diagonal: TreeFit, criterion: Criterion) -> bool:
    """Return True where the predicted decrease of the full shape, from the best diagonal one, exceeds its BIC penalty.

    The predicted decrease is that of a step that may leave the cone, an upper bound of that of one that stays in it.
    """
    current = tree_likelihood(
        tree, list(diagonal.covs / diagonal.noise_var), criterion, 0.0, noise_var=diagonal.noise_var
    )
    slope, form = (
        np.concatenate([dual(slope_matrix, shape) for slope_matrix in current.slopes]),
        _form(current, shape),
    )
    size = np.sqrt(np.maximum(np.diagonal(form), np.finfo(np.float64).tiny))
    step = np.linalg.lstsq(form / np.outer(size, size), slope / size, rcond=1e-10)[0]
    entries = len(diagonal.covs) * shape.parameters - diagonal.fit.parameters
    return bool(HOPE * (slope / size @ step) / 2 > entries * np.log(len(tree.rows)))


def tree_of(moments: Moments, hierarchy: Hierarchy) -> Tree:
    """Return the tree whose lowest nodes are the tasks of ``moments``, all with rows."""
    keys, parents = moments.keys, []
    for k in range(len(hierarchy.levels) + 1):
        keys, parent = parents_of(keys, hierarchy.levels, k)
        parents.append(parent)
    metadata = hierarchy.metadata
    design = None if metadata is None else metadata.design(hierarchy.dim, moments.keys)
    log_precision = float(moments.log_precision.sum())
    names = ("task_cov", *(f"the covariance of level {_name(hierarchy, k)}" for k in range(len(parents) - 1)))
    return Tree(moments.sums, moments.dim, tuple(parents), moments.n_rows, log_precision, design, names)


def _name(hierarchy: Hierarchy, k: int) -> str:
    return repr(hierarchy.levels[k].name or k)


def _warn_of_levels(tree: Tree, hierarchy: Hierarchy) -> None:
    """Warn of a level whose covariance no log can tell: it has one node, or a node for each of its children."""
    for k, (below, above) in enumerate(pairwise(tree.parents)):
        child, children = "task", "tasks"
        if k > 0:
            child, children = (f"{word} of level {_name(hierarchy, k - 1)}" for word in ("node", "nodes"))
        problem = "one node, so that nothing shows how its nodes differ"
        if above.size == below.size > 1:
            problem = (
                f"a node for each {child}, so that differences between its nodes cannot be told from those between "
                f"{children}"
            )
        if above.size in (1, below.size):
            warn(
                f"Level {_name(hierarchy, k)} has {problem}. Its standard deviation is not learned from this log. "
                "Leave the level out, or name groups of several tasks, and several of them."
            )


def estimate_tree(tree: Tree, shape: Shape, criterion: Criterion, start: Array, floor: float) -> TreeFit:
    """Fit one shape to all levels.

    Parameters
    ----------
    tree : Tree
    shape : Shape
        Full, diagonal or isotropic.
    criterion : {"reml", "ml"}
    start : (d, d) array
        S to start the lowest level from, in units of noise_var; the others start from half of it.
    floor : float
        Smallest allowed noise_var.

    Raises
    ------
    NumericalError
        The root is not determined, or no convergence.
    """
    shift = 0.0
    T: Array = np.eye(tree.dim)
    if shape.size > 1:
        lower = feature_root(unpack(tree.rows.sum(axis=0), tree.dim + 2)[: tree.dim, : tree.dim])
        lower = lower / np.sqrt(tree.n_rows)
        T, T_inverse_t = np.linalg.solve(lower, T), lower.T
        if criterion == "reml":
            copies = 1 if tree.design is None or tree.design.values.ndim == 3 else tree.root_dim // tree.dim
            shift = 2 * copies * float(np.linalg.slogdet(T_inverse_t)[1])
        tree, start = tree.transformed(T, T_inverse_t), T_inverse_t @ start @ T_inverse_t.T
    ratios, current, evaluations, predicted_decrease = _descend(tree, shape, criterion, start, floor)
    parameters = len(ratios) * shape.parameters
    fit = Fit(shape.name, current.deviance + shift, parameters, evaluations, predicted_decrease)
    return TreeFit(T.T @ ratios @ T * current.noise_var, current.noise_var, fit)


def _descend(
    tree: Tree, shape: Shape, criterion: Criterion, start: Array, floor: float
) -> tuple[Array, TreeLikelihood, int, float]:
    """Minimise the deviance over all levels' S, each scaled by the root of its curvature."""
    levels = len(tree.parents)
    first = [start, *([start / 2] * (levels - 1))]
    x = np.concatenate([shape.vector(start_ratio) for start_ratio in first])

    def at(x: Array) -> TreeLikelihood:
        ratios = [shape.matrix(v) for v in x.reshape(levels, -1)]
        return tree_likelihood(tree, ratios, criterion, floor)

    def slope(likelihood: TreeLikelihood) -> Array:
        return np.concatenate([dual(matrix, shape) for matrix in likelihood.slopes])

    current, evaluations = at(x), 1
    g = slope(current)
    # where the log says nothing, as of a level with one node, a move by the size of the start costs next to nothing
    diagonal = np.diagonal(start)
    size = diagonal if shape.parameters == tree.dim else np.full(shape.parameters, diagonal.mean())
    least = np.diag(np.tile(_NOTHING / size**2, levels))
    changes: list[tuple[Array, Array]] = []
    predicted_decrease = np.inf
    while evaluations < _EVALUATIONS:
        form = _learned(_form(current, shape) + least, changes)
        goal, predicted_decrease = _step(x, g, form, _frame(current.expected, shape))
        near = predicted_decrease <= max(_TOLERANCE * abs(current.deviance), _NOTHING)
        length = 1.0
        while not near and evaluations < _EVALUATIONS:
            point = x + length * (goal - x)
            trial = at(point)
            evaluations += 1
            if trial.deviance <= current.deviance - 1e-4 * length * predicted_decrease:
                after = slope(trial)
                changes = [*changes[1 - _REMEMBERED :], (point - x, after - g)]
                x, current, g = point, trial, after
                break
            length /= 2
            near = length * predicted_decrease <= 1e-13 * max(1.0, abs(current.deviance))
        if near:
            ratios = np.array([shape.matrix(v) for v in x.reshape(levels, -1)])
            return ratios, current, evaluations, predicted_decrease
    simpler = "Leave" if shape.size == 1 else "Try task_cov='diag', or leave"
    raise NumericalError(
        f"Learning {' and '.join(tree.names)}, of dimension {tree.dim}, did not converge in {evaluations} "
        f"evaluations: the next one would still change the log likelihood by {predicted_decrease / 2:.3g}, since the "
        f"log identifies too few of the variances. {simpler} out a level that has few groups."
    )


def dual(slope: Array, shape: Shape) -> Array:
    """Return the derivative in the free entries of a shape, from that in the matrix (d, d)."""
    if shape.tied is not None:
        return np.array([np.diagonal(slope) @ shape.tied])
    return to_vector(shape.parts(slope)).ravel()


def _form(current: TreeLikelihood, shape: Shape) -> Array:
    """Return the approximate curvature in the free entries of all levels."""
    k, levels = shape.parameters, len(current.squares)
    form = np.zeros((levels, k, levels, k))
    for level, square in enumerate(current.squares):
        form[level, :, level, :] = level_form(square, shape)
    full = form.reshape(levels * k, levels * k)
    if current.degrees:
        expected = np.concatenate([dual(matrix, shape) for matrix in current.expected])
        full -= np.outer(expected, expected) / current.degrees
    return full


def level_form(square: Array, shape: Shape) -> Array:
    """Return <Delta, sum R Delta R> over the free entries of one level, from the Gram matrix of the packed R."""
    d = shape.dim
    if shape.size == 1:
        pairs = unpack(np.diagonal(square), d)  # sum R_ij^2
        return pairs if shape.tied is None else np.array([[shape.tied @ pairs @ shape.tied]])
    full = unpack(np.moveaxis(unpack(square, d), 0, -1), d).transpose(2, 0, 3, 1)
    basis = to_matrix(np.eye(packed_size(d)), d).reshape(-1, d * d)
    return np.asarray(basis @ full.reshape(d * d, d * d) @ basis.T)


def _learned(form: Array, changes: list[tuple[Array, Array]]) -> Array:
    """Return the curvature corrected by BFGS, such that it reproduces the observed changes of the slope."""
    for move, change in changes:
        curved = form @ move
        size, slope_change = float(move @ curved), float(move @ change)
        if slope_change > 1e-3 * size > 0:
            form = form + np.outer(change, change) / slope_change - np.outer(curved, curved) / size
    return form


def _step(x: Array, g: Array, form: Array, frame: Array) -> tuple[Array, float]:
    """Return the minimiser of the quadratic over the cone, by coordinates S = T X T' in which it is well scaled."""
    blocks, p, _ = frame.shape
    turn = congruence(frame)
    size = _sizes(turn.T @ form @ turn, blocks)
    if (size <= 0).any():
        form = _magnitudes(form, frame)
        size = _sizes(turn.T @ form @ turn, blocks)
    frame = frame / np.maximum(size, np.finfo(np.float64).tiny)[:, None, None] ** 0.25
    half = np.linalg.solve(frame, to_matrix(x.reshape(blocks, -1), p))
    here = to_vector(np.linalg.solve(frame, half.swapaxes(1, 2))).ravel()
    turn = congruence(frame)
    slope, form = turn.T @ g, turn.T @ form @ turn
    if not (np.isfinite(slope).all() and np.isfinite(form).all() and np.abs(form).max() < _LOST):
        raise NumericalError(
            "The likelihood of the covariances is not finite near the estimate: features or rewards are so large, or "
            "so small, that products of them do not fit a float64. Rescale such columns."
        )
    values, vectors = np.linalg.eigh(form)
    if values[0] < 0:  # what the approximation left out
        form = (vectors * np.maximum(values, _NOTHING * values[-1])) @ vectors.T
    goal = minimise(slope, form, here, lambda v: nearest_psd(v, p))
    move = goal - here
    return turn @ goal, -float(slope @ move + move @ form @ move / 2)


def _sizes(form: Array, blocks: int) -> Array:
    """Return the mean curvature of each block."""
    return np.asarray(np.diagonal(form).reshape(blocks, -1).mean(axis=1))


def _magnitudes(form: Array, frame: Array) -> Array:
    """Return the curvature with the magnitude of each eigenvalue, in coordinates X, S = T X T', of each block.

    Where the level's own curvature is nearly all that of noise_var, as with one row a node, the approximation can be
    negative on the whole. A step of a length of that size then goes downhill all the same.
    """
    turn = congruence(frame)
    one = np.broadcast_to(np.eye(frame.shape[1]), frame.shape)
    back = congruence(np.asarray(np.linalg.solve(frame, one), dtype=np.float64))
    values, vectors = np.linalg.eigh(turn.T @ form @ turn)
    return np.asarray(back.T @ ((vectors * np.abs(values)) @ vectors.T) @ back)


def _frame(expected: Array, shape: Shape) -> Array:
    """Return T (blocks, p, p) such that T'(sum R_n) T is the identity, as far as it is not zero."""
    if shape.size == 1:
        return np.ones((len(expected) * shape.parameters, 1, 1))
    values, vectors = np.linalg.eigh(expected)
    least = 1e-8 * values[:, -1:]
    return np.asarray(vectors / np.sqrt(np.maximum(values, np.where(least > 0, least, 1.0)))[:, None, :])
