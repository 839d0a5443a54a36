"""The likelihood of noise_var and task_cov given moments, its slope and curvatures; mu is profiled or integrated out.

With S = Sigma_0 / sigma^2, C_s = sum w phi phi' and A_s = (S + C_s^-1)^-1 (rows of the step up: C_s is not inverted),
a_s the matching vector and c_s what is left of the reward squares,

    P = sum A_s     mu = P^-1 sum a_s     u_s = a_s - A_s mu     RSS = sum c_s - mu' sum a_s
    -2 log L = N log(2 pi sigma^2) + RSS / sigma^2 + sum log|I + C_s S|   (+ log|P| for REML, N = n - d; else N = n)

sigma^2 = RSS / N is profiled out. For changes Delta of S, with K(Delta) = sum A_s Delta A_s, v(Delta) = sum A_s Delta
u_s, W = sum u_s u_s' and V = P^-1 for REML, V = 0 for ML,

    slope      <P - K(.) V - W / sigma^2, Delta>
    expected   <Delta, K(Delta)> - 2 sum tr(Delta A_s Delta A_s V A_s) + <K(Delta), V K(Delta) V>
               - <P - K(.) V, Delta>^2 / N
    observed   2 (sum u_s' Delta A_s Delta u_s - v(Delta)' P^-1 v(Delta)) / sigma^2 - <W / sigma^2, Delta>^2 / N
               - (the first three terms of the expected one)

All of them are Gram matrices of the entries of A_s and u_s over tasks. Tasks are worked on in pieces that stay in the
cache; with many tasks nothing else is kept, u_s is taken around a mean that is given, and sums are moved to the right
one afterwards, which is exact but in the first term of the observed curvature.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import Literal

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.packed import packed_size, triangle, unpack
from hieropo._utils.threads import in_threads, processors
from hieropo.estimation.psd import feature_root, to_vector
from hieropo.estimation.shapes import Shape, along, bent, inside, named, packed_positions
from hieropo.model.steps import up, upper_factor
from hieropo.moments.in_shards import AnyMoments, MomentsInShards, totals
from hieropo.moments.statistics import Moments

Criterion = Literal["reml", "ml"]

KEPT = 8192  # tasks whose A_s are kept, so that the mean is known when they are used
_CROSSED = 2048  # tasks from which the second term of the expected curvature is taken: it is a share d / m of the first
_PIECES = 8  # sums do not depend on the number of threads


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """The profile likelihood of one S.

    Attributes
    ----------
    deviance : float
        -2 log likelihood (REML or ML), profiled over noise_var and mu.
    noise_var : float
        The best sigma^2 for this S.
    mean, information : (d,) and (d, d) arrays
        mu, and P.
    half, spread : (d, d) arrays
        half' half = P^-1, on the span of mu where that is given; V.
    degrees : float
        N.
    rounding : float
        Rounding error of the deviance, from the subtraction of sums of squares.
    held : bool
        noise_var is at its floor, and not profiled out.
    """

    deviance: float
    noise_var: float
    mean: Array
    information: Array
    half: Array
    spread: Array
    degrees: float
    rounding: float
    held: bool


@dataclass(frozen=True, slots=True, eq=False)
class Likelihood:
    """Value, slope and curvatures at one S.

    Attributes
    ----------
    profile : Profile
    shape : Shape
        The entries of S in which derivatives are taken.
    gradient, expected, observed : (k,), (k, k) and (k, k) arrays
        Slope, expected and observed second derivative, in the coordinates of ``shape``.
    """

    profile: Profile
    shape: Shape
    gradient: Array
    expected: Array
    observed: Array

    @property
    def deviance(self) -> float:
        """-2 log likelihood, profiled over noise_var and mu."""
        return self.profile.deviance

    @property
    def noise_var(self) -> float:
        """The best sigma^2 for this S."""
        return self.profile.noise_var

    @property
    def slope(self) -> Array:
        """The derivative as a symmetric matrix (d, d), or (d,) for a diagonal shape."""
        return self.gradient if self.shape.size == 1 else self.shape.matrix(self.gradient)

    @property
    def curvature(self) -> Array:
        """Expected second derivative by entries of S, (d, d, d, d), or (d, d) for a diagonal shape."""
        if self.shape.size == 1:
            return self.expected
        basis = np.array([self.shape.matrix(unit) for unit in np.eye(self.shape.parameters)])
        return np.asarray(np.einsum("aij,ab,bkl->ijkl", basis, self.expected, basis, optimize=True))


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """Sums over tasks.

    Attributes
    ----------
    grams : tuple
        For each block of the shape, of (X, u) with itself: X the entries of the block's rows of A_s, u those of u_s.
    waves, crosses : tuple of two
        Of entries of A_s with those of u_s u_s', and of A_s V A_s, as :func:`shapes.inside` has them; or empty.
    """

    grams: tuple[Array, ...]
    waves: tuple[Array, ...]
    crosses: tuple[Array, ...]

    def __add__(self, other: "_Sums") -> "_Sums":
        return _Sums(
            tuple(map(np.add, self.grams, other.grams)),
            tuple(map(np.add, self.waves, other.waves)),
            tuple(map(np.add, self.crosses, other.crosses)),
        )


@dataclass(frozen=True, eq=False)
class Problem:
    """The restricted or full likelihood that is maximised.

    Attributes
    ----------
    moments : Moments or MomentsInShards
        Of m tasks with rows.
    criterion : {"reml", "ml"}
    floor : float
        Smallest noise_var, in squared reward units, for rewards without noise.
    span : (k, d) array or None
        mu is a combination of these rows, and zero without any ("ml" only); None lets it be anything.
    """

    moments: AnyMoments
    criterion: Criterion
    floor: float
    span: Array | None = None

    @cached_property
    def total(self) -> Array:
        """Sums over tasks, packed."""
        return np.asarray(totals(self.moments).sums.sum(axis=0))

    @property
    def gram(self) -> Array:
        """Sum of w phi phi' over all rows (d, d)."""
        return unpack(self.total, self.moments.dim)

    def thinned(self, every: int) -> "Problem":
        """Return the problem of every so many-th task."""
        if every == 1:
            return self
        if isinstance(self.moments, MomentsInShards):
            return replace(self, moments=self.moments.thinned(every))
        return replace(self, moments=self.moments.at(np.arange(0, len(self.moments), every)))

    def transformed(self, T: Array) -> "Problem":
        """Return the problem in features T phi, in which S is T'^-1 S T^-1; see :meth:`shift`."""
        span = self.span
        if span is not None:
            span = np.asarray(np.linalg.solve(T.T, span.T).T, dtype=np.float64)
        return replace(self, moments=self.moments.transformed(T), span=span)

    def shift(self, T: Array | None) -> float:
        """Return the change of the deviance in features T phi: that of log|P|."""
        if T is None or self.criterion == "ml":
            return 0.0
        return 2 * float(np.linalg.slogdet(T)[1])


def likelihood(
    moments: Moments, ratio: Array, criterion: Criterion, floor: float, *, diagonal: bool = False
) -> Likelihood:
    """Evaluate at S = ``ratio`` of any shape, with slope and curvatures along all changes, or along diagonal ones.

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
        At O(m d^3) instead of O(m d^4).

    Raises
    ------
    NumericalError
        The population mean is not determined.
    """
    shape = named("diag" if diagonal else "full", moments.dim)
    return evaluate(Problem(moments, criterion, floor), ratio, shape)


def evaluate(problem: Problem, ratio: Array, shape: Shape, center: Array | None = None) -> Likelihood:
    """Return the likelihood, with derivatives along a shape; ``center`` is near mu, default that of S = 0."""
    d, m = problem.moments.dim, len(problem.moments)
    factor, _ = upper_factor(ratio)
    if m <= KEPT and isinstance(problem.moments, Moments):
        rows, log_det = up(problem.moments.sums, 1.0, factor, np.arange(m), m)
        profile = _profiled(problem, rows.sum(axis=0), log_det)
        center, step = profile.mean, _step(d)
        pieces = (rows[start : start + step] for start in range(0, m, step))
        sums = reduce(_Sums.__add__, _sums(pieces, shape, center, profile.spread, -(-m // _CROSSED)))
    else:
        center = pooled(problem).mean if center is None else center
        total, log_det, sums = _all_streamed(problem.moments, factor, shape, center)
        profile = _profiled(problem, total, log_det)
    slope, expected, observed = _assembled(sums, profile, shape, profile.mean - center)
    if shape.tied is not None:
        lift = shape.tied
        slope = (lift @ slope)[None]
        expected, observed = (lift @ expected @ lift)[None, None], (lift @ observed @ lift)[None, None]
    return Likelihood(profile, shape, slope, expected, observed)


def pooled(problem: Problem) -> Profile:
    """Return the likelihood at S = 0."""
    return _profiled(problem, problem.total[: packed_size(problem.moments.dim + 1)], 0.0)


def _profiled(problem: Problem, total: Array, log_det: float) -> Profile:
    d = problem.moments.dim
    joint = unpack(total, d + 1)
    P, b = joint[:d, :d], joint[:d, d]
    half, mean, spread = np.zeros((d, d)), np.zeros(d), np.zeros((d, d))
    degrees = problem.moments.n_rows - (d if problem.criterion == "reml" else 0)
    span = np.eye(d) if problem.span is None else problem.span
    if len(span):
        root = feature_root(span @ P @ span.T)
        half[: len(span)] = np.linalg.solve(root, span)
        mean = half.T @ (half @ b)
        if problem.criterion == "reml":
            spread = half.T @ half
            log_det += 2 * float(np.log(np.diagonal(root)).sum())
    rest = max(float(joint[d, d] - b @ mean), 0.0)
    noise_var = max(rest / degrees, problem.floor) if degrees > 0 else problem.floor
    precisions = float(totals(problem.moments).log_precision.sum())
    deviance = float(degrees * np.log(2 * np.pi * noise_var) + rest / noise_var + log_det - precisions)
    squares = float(problem.total[packed_size(d + 1) - 1])
    rounding = float(np.finfo(np.float64).eps) * (abs(deviance) + squares / noise_var)
    held = noise_var <= problem.floor
    return Profile(deviance, noise_var, mean, P, half, spread, degrees, rounding, held=held)


def _step(d: int) -> int:
    """Return the number of tasks whose A_s fit the cache."""
    return min(1024, max(256, 2**18 // packed_size(d + 1)))


def _all_streamed(
    moments: AnyMoments, factor: Array, shape: Shape, center: Array
) -> tuple[Array, float, _Sums]:
    """Return the sums of :func:`_stream`, one shard after the other where moments are in shards."""
    if isinstance(moments, Moments):
        return _stream(moments, factor, shape, center)
    work = partial(_stream, factor=factor, shape=shape, center=center)
    total, log_det, sums = zip(*moments.map(work), strict=True)
    return sum(total), sum(log_det), reduce(_Sums.__add__, sums)


def _stream(moments: Moments, factor: Array, shape: Shape, center: Array) -> tuple[Array, float, _Sums]:
    """Return totals of the step up, sum log|I + C_s S|, and sums around ``center``, without keeping A_s."""
    d, m = moments.dim, len(moments)
    step, size = _step(d), -(-m // _PIECES)
    parent = np.arange(step)

    def work(first: int) -> tuple[Array, float, _Sums]:
        total, log_dets = np.zeros(packed_size(d + 1)), []

        def pieces() -> Iterator[Array]:
            for start in range(first, min(first + size, m), step):
                part = moments.sums[start : min(start + step, first + size)]
                rows, log_det = up(part, 1.0, factor, parent[: len(part)], len(part))
                log_dets.append(log_det)
                np.add(total, rows.sum(axis=0), out=total)
                yield rows

        sums = reduce(_Sums.__add__, _sums(pieces(), shape, center, np.zeros((d, d)), 1))
        return total, sum(log_dets), sums

    results = in_threads(work, range(0, m, size), processors())
    totals, log_dets, sums = zip(*results, strict=True)
    return sum(totals), sum(log_dets), reduce(_Sums.__add__, sums)


def _sums(pieces: Iterator[Array], shape: Shape, center: Array, spread: Array, every: int) -> Iterator[_Sums]:
    """Yield the sums of each piece; its rows hold packed A_s and a_s, and a_s is overwritten by u_s."""
    d = shape.dim
    q, reml = packed_size(d), bool(spread.any())
    center_map = np.zeros((q, d))
    for i, entries in enumerate(packed_positions(d)):
        center_map[entries, i] = center  # A @ turn = A_s center
    lower, upper = triangle(d)
    buffer = np.empty((q, _step(d)))
    for rows in pieces:
        A, u = rows[:, :q], rows[:, q : q + d]
        u -= A @ center_map
        across, products = u.T.copy(), buffer[:, : len(rows)]
        for j in range(d):  # u_i u_j, i <= j
            np.multiply(across[: j + 1], across[j], out=products[packed_size(j) : packed_size(j + 1)])
        crosses: tuple[Array, ...] = ()
        if reml:
            some = rows[::every]
            wide = unpack(some, d)
            middle = (wide @ spread @ wide)[:, lower, upper]
            crosses = tuple(every * found for found in inside(some[:, :q].T, middle.T, shape))
        grams = []
        for block, (entries, _) in enumerate(shape.columns):
            u_columns = slice(q + block * shape.size, q + (block + 1) * shape.size)
            both = (
                rows[:, : q + d] if shape.blocks == 1 else np.hstack([rows[:, entries], rows[:, u_columns]])
            )
            grams.append(both.T @ both)
        yield _Sums(tuple(grams), inside(A.T, products, shape), crosses)


def _assembled(sums: _Sums, profile: Profile, shape: Shape, shift: Array) -> tuple[Array, Array, Array]:
    """Return slope and curvatures from sums around a mean that is ``shift`` below mu."""
    p, noise_var = shape.size, profile.noise_var
    i, j = triangle(p)
    once = to_vector(np.ones((p, p)))
    K_, v_, w_ = [], [], []
    for block, (_, at) in enumerate(shape.columns):
        gram = sums.grams[block]
        u = len(gram) - p
        K_.append(along(gram, at))
        v_.append((gram[at[i], (u + j)[:, None]] + gram[at[j], (u + i)[:, None]]) * (once / 2)[:, None])
        w_.append(gram[u + i, u + j] * once)
    K, v = np.concatenate(K_), np.concatenate(v_)  # (k, d, d) and (k, d)
    shift_of_v = K @ shift
    w = np.concatenate(w_) - 2 * v @ shift + shift_of_v @ shift
    v = v - shift_of_v
    form, wave = to_vector(shape.parts(K)).reshape(len(K), -1), bent(sums.waves, shape)
    linear_part = to_vector(shape.parts(profile.information)).ravel()
    if profile.spread.any():
        spread_K = K @ profile.spread
        linear_part = linear_part - np.trace(spread_K, axis1=1, axis2=2)
        if sums.crosses:  # else a share d / m of the first term, and left out with its like
            k = len(linear_part)
            form = form + spread_K.reshape(k, -1) @ spread_K.swapaxes(1, 2).reshape(k, -1).T
            form = form - 2 * bent(sums.crosses, shape)
    half = v @ profile.half.T
    observed = 2 * (wave - half @ half.T) / noise_var - form
    w = w / noise_var
    if not profile.held:
        form = form - np.outer(linear_part, linear_part) / profile.degrees
        observed = observed - np.outer(w, w) / profile.degrees
    return linear_part - w, (form + form.T) / 2, (observed + observed.T) / 2
