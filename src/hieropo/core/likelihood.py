"""The likelihood of noise_var and task_cov given moments, its slope and curvature; mu is profiled or integrated out.

With S = Sigma_0 / sigma^2, C_s = sum w phi phi' and A_s = (S + C_s^-1)^-1 (rows of the step up: C_s is not inverted),
a_s the matching vector and c_s what is left of the reward squares,

    P = sum A_s     mu = P^-1 sum a_s     u_s = a_s - A_s mu     RSS = sum c_s - mu' sum a_s
    -2 log L = N log(2 pi sigma^2) + RSS / sigma^2 + sum log|I + C_s S|   (+ log|P| for REML, N = n - d; else N = n)

sigma^2 = RSS / N is profiled out. In S, with W = sum u_s u_s' and Q = sum A_s P^-1 A_s (REML only):

    slope      P - Q - W / sigma^2
    curvature  the expected second derivative, with K(Delta) = sum A_s Delta A_s:  <Delta, K(Delta)>
               - 2 <Delta, sum A_s Delta A_s P^-1 A_s> + <K(Delta), P^-1 K(Delta) P^-1> - <P - Q, Delta>^2 / N
               (the middle two for REML only)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hieropo.core.packed import Array, pack, packed_size, unpack
from hieropo.core.statistics import Moments
from hieropo.core.steps import up, upper_factor
from hieropo.errors import NumericalError

Criterion = Literal["reml", "ml"]
Shape = Literal["full", "diag", "isotropic"]

_ENTRIES = 2**21  # matrix entries worked on at once
_SAMPLE = 8192  # tasks from which the REML part of the curvature is taken
_KEPT = 2**26  # entries of all A_s that may be kept between the two passes over tasks


@dataclass(frozen=True, slots=True, eq=False)
class Likelihood:
    """Value, slope and curvature at one S.

    Attributes
    ----------
    deviance : float
        -2 log likelihood (REML or ML), profiled over noise_var and mu.
    noise_var : float
        The best sigma^2 for this S.
    mean, information : (d,) and (d, d) arrays
        mu, and P.
    slope : (d, d) array, or (d,) for a diagonal shape
    curvature : (d, d, d, d) array, or (d, d) for a diagonal shape
    """

    deviance: float
    noise_var: float
    mean: Array
    information: Array
    slope: Array
    curvature: Array


def likelihood(
    moments: Moments, ratio: Array, criterion: Criterion, floor: float, *, diagonal: bool = False
) -> Likelihood:
    """Evaluate at S = ``ratio``.

    Parameters
    ----------
    moments : Moments
        Of m tasks with rows.
    ratio : (d, d) array
        S = task_cov / noise_var, positive semi-definite of any rank.
    criterion : {"reml", "ml"}
    floor : float
        Smallest noise_var, in squared reward units, for rewards without noise.
    diagonal : bool
        Slope and curvature along diagonal changes of S only, at O(m d^3) instead of O(m d^4).

    Raises
    ------
    NumericalError
        The population mean is not determined.
    """
    d, m = moments.dim, len(moments)
    factor, _ = upper_factor(ratio)
    keep = m * packed_size(d + 1) <= _KEPT
    parent = np.arange(m) if keep else np.zeros(m, dtype=np.int64)
    rows, log_det = up(moments.sums, 1.0, factor, parent, m if keep else 1)
    total = unpack(rows.sum(axis=0), d + 1)
    P, b = total[:d, :d], total[:d, d]
    inverse, log_det_P = _inverse(P)
    mean: Array = inverse @ b
    degrees = moments.n_rows - (d if criterion == "reml" else 0)
    rest = max(float(total[d, d] - b @ mean), 0.0)
    noise_var = max(rest / degrees, floor) if degrees > 0 else floor
    deviance = (
        degrees * np.log(2 * np.pi * noise_var) + rest / noise_var + log_det - float(moments.log_weight.sum())
    )
    if criterion == "reml":
        deviance += log_det_P
    spread = inverse if criterion == "reml" else np.zeros((d, d))
    tasks = _tasks(moments, factor, rows if keep else None)
    slopes = _diagonal_slopes if diagonal else _slopes
    slope, expected, curvature = slopes(tasks, m, P, mean, spread, noise_var)
    if noise_var > floor:  # else it is held, and not profiled out
        curvature = curvature - np.multiply.outer(expected, expected) / degrees
    return Likelihood(float(deviance), noise_var, mean, P, slope, curvature)


def _inverse(P: Array) -> tuple[Array, float]:
    """P^-1 and log|P|, with columns of any scale."""
    scale = np.sqrt(np.diagonal(P))
    if not (scale > 0).all():
        raise NumericalError(
            f"The population mean is not determined: feature {int(np.argmin(scale))} is constant zero. Leave it out."
        )
    square = np.outer(scale, scale)
    try:
        lower = np.linalg.cholesky(P / square)
    except np.linalg.LinAlgError as error:
        raise NumericalError(
            "The population mean is not determined: features are copies of each other in every task. Leave one out."
        ) from error
    if np.diagonal(lower).min() < 1e-7:
        raise NumericalError(
            f"The population mean is not determined: feature {int(np.diagonal(lower).argmin())} is, in every task, the "
            "same combination of other features. Leave it out."
        )
    log_det = 2 * float(np.log(np.diagonal(lower)).sum() + np.log(scale).sum())
    inverse = np.linalg.solve(P / square, np.eye(len(P))) / square
    return (inverse + inverse.T) / 2, log_det


def _tasks(moments: Moments, factor: Array, rows: Array | None) -> Iterator[tuple[Array, Array, Array]]:
    """Pieces of tasks: packed A (k, q), A (k, d, d) and a (k, d)."""
    d = moments.dim
    q, step = packed_size(d), max(1, _ENTRIES // (d * d))
    for start in range(0, len(moments), step):
        if rows is None:
            sums = moments.sums[start : start + step]
            part, _ = up(sums, 1.0, factor, np.arange(len(sums)), len(sums))
        else:
            part = rows[start : start + step]
        yield part[:, :q], unpack(part, d), part[:, q : q + d]


def _slopes(
    tasks: Iterator[tuple[Array, Array, Array]],
    m: int,
    P: Array,
    mean: Array,
    spread: Array,
    noise_var: float,
) -> tuple[Array, Array, Array]:
    """Slope, its expected part P - Q, and curvature with noise_var held; ``spread`` is P^-1, or 0 for ML."""
    d = len(P)
    lean, every = bool(spread.any()), -(-m // _SAMPLE)  # a curvature need not be exact
    W, squares, crosses = np.zeros((d, d)), np.zeros((packed_size(d),) * 2), np.zeros((packed_size(d),) * 2)
    for packed, A, a in tasks:
        u = a - A @ mean
        W += u.T @ u
        squares += packed.T @ packed
        if lean:
            some = A[::every]
            crosses += every * packed[::every].T @ pack((some @ spread) @ some)
    pairs, mixed = _pairs(squares, d), _pairs(crosses, d)
    expected = P - np.einsum("ijkl,jk->il", pairs, spread)
    form = pairs.reshape(d * d, d * d)
    lost = form @ np.kron(spread, spread) @ form
    curvature = pairs - mixed - mixed.transpose(1, 0, 3, 2) + lost.reshape(d, d, d, d)
    slope = expected - W / noise_var
    return (slope + slope.T) / 2, expected, curvature


def _pairs(gram: Array, d: int) -> Array:
    """sum_s A_s[i, k] B_s[j, l] with axes (i, j, k, l), from the Gram matrix of packed A_s and B_s."""
    return unpack(np.moveaxis(unpack(gram, d), 0, -1), d).transpose(2, 0, 3, 1)


def _diagonal_slopes(
    tasks: Iterator[tuple[Array, Array, Array]],
    m: int,
    P: Array,
    mean: Array,
    spread: Array,
    noise_var: float,
) -> tuple[Array, Array, Array]:
    """As :func:`_slopes`, along diagonal changes."""
    d = len(P)
    lean, every = bool(spread.any()), -(-m // _SAMPLE)
    W, curvature, outer = np.zeros(d), np.zeros((d, d)), np.zeros((d, d, d))
    for _, A, a in tasks:
        u = a - A @ mean
        W += (u * u).sum(axis=0)
        curvature += (A * A).sum(axis=0)
        if lean:
            outer += np.matmul(A.transpose(1, 2, 0), A.transpose(1, 0, 2))  # sum_s A_s[j, i] A_s[j, k]
            some = A[::every]
            curvature -= 2 * every * (some * (some @ spread @ some)).sum(axis=0)
    expected = np.diagonal(P) - np.einsum("jik,ik->j", outer, spread)
    curvature += outer.reshape(d, d * d) @ (spread @ outer @ spread).reshape(d, d * d).T
    return expected - W / noise_var, expected, curvature
