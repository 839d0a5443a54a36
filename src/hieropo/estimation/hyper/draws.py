"""Draw hierarchies from their posterior, with all theta integrated out.

mu, nodes and tasks are integrated exactly by the steps up (:mod:`steps`), so that only the standard deviations and
correlations of each covariance and sigma^2 are left: a vector eta of at most some twenty numbers, without constraints,
from whose density :mod:`importance` draws.

Priors are in units of the data: s^2 is the residual variance of one least-squares fit to all rows and s_j = s / (root
mean square of feature j), so that no result depends on the units of the reward or of a column. With the k free standard
deviations of a covariance, v_j = (sd_j / s_j)^2 and T = v_1 + ... + v_k, about the variance between tasks over all:

    T / (1 + T)          Beta(k + 1, 3)
    v_1 / T, ..., v_k / T  Dirichlet(2, ..., 2)
    correlations         LKJ with exponent 4: density ~ |R|^3 (Lewandowski, Kurowicka and Joe 2009)
    log(sigma^2 / s^2)   N(0, 3^2); without identification sigma^2 / s^2 has the density 2 / (1 + x)^3
    mu                   as the hierarchy has it, flat by default

A prior that is flat in an sd, or in its log, favours small ones: where the log hardly identifies a variance, intervals
of theta have too small a coverage at any fixed variance. One that is flat in a single variance has not (Morris and
Tang, Statistical Science 26, 2011); with several variances it has to increase a little. One that is about flat in log
sigma^2 gives a small noise where only the prior determines it; one that is flat in sigma^2 takes any split of the
variance of rewards as equally likely.
The exponents 2, 3 and 4 were set by simulation of 10 to 100 tasks of four features (docs/results/coverage.md).

Several parametrisations may be averaged, as likely as each other before the log: their posterior probabilities are
proportional to their evidence, the integral of likelihood times prior. All share the scales, and the priors are proper.

Features that lie to one side of zero, such as the factors of a matrix of ratings, have a direction that carries the
level of a task's rewards. How much levels differ between tasks says nothing of the rest. With D the standard
deviations of the features, z = D^-1 phi, and u the direction of their mean m,

    Sigma_0 = D^-1 (v_1 s^2 / (1 + m'm) u u' + v_2 s^2 (I - u u')) D^-1

so that level and rest have one variance each, in units of what the features do to rewards. It is one of the
parametrisations where no feature is constant and m'm > 1: rewards then tell more of the level than of other directions.
"""

from dataclasses import dataclass
from math import lgamma, log, pi
from typing import Literal, NamedTuple

import numpy as np

from hieropo._utils.arrays import Array, Codes, normalised
from hieropo._utils.packed import packed_size, padded, unpack
from hieropo.estimation.hyper.importance import Diagnosis, averaged, resampled, sample
from hieropo.estimation.hyper.mixed import HyperDraws, prior_scales
from hieropo.model.gaussian import minus
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.posterior import parents_of
from hieropo.model.steps import up, upper_factor
from hieropo.moments.statistics import Moments

Freedom = Literal["full", "diag", "common", "level", "sds", "isotropic", "scale"]

_TAIL, _EVEN, _LKJ, _NOISE_SD = 3.0, 2.0, 4.0, 3.0  # of the priors
_LEAST, _MOST = 0.1, 10.0  # sd, in units of its prior scale, to start from, however open a log leaves it
_SHRUNK = 0.9  # correlations to start from, in units of the estimate's
_NOISELESS = 1e-9  # share of s^2 below which sigma^2 is held: it would run off to zero
_DRAWS = 100
_CONSTANT = 1e-6  # sd of a feature in units of its root mean square, below which it counts as constant
_LOWEST = -25.0  # x below which a variance can be too small for float64; no draw with any weight lies there


class LevelAxis(NamedTuple):
    """The direction of features that carries the level of rewards.

    Attributes
    ----------
    sd : (d,) array
        D, standard deviations of the features.
    axis : (d,) array
        u.
    length : float
        sqrt(1 + m'm), the root mean square of z along u.
    """

    sd: Array
    axis: Array
    length: float

    @classmethod
    def of(cls, moments: Moments) -> "LevelAxis | None":
        """Return the direction; None where a feature is constant, or m'm is 1 or less."""
        d = moments.dim
        sums = unpack(moments.sums.sum(axis=0)[None], d + 2)[0]
        count = sums[d + 1, d + 1]
        mean, square = sums[:d, d + 1] / count, np.diagonal(sums)[:d] / count
        sd = np.sqrt(np.maximum(square - mean**2, 0.0))
        if d == 1 or (sd <= _CONSTANT * np.sqrt(square)).any():
            return None
        m = mean / sd
        size = float(m @ m)
        return cls(sd, m / np.sqrt(size), float(np.sqrt(1.0 + size))) if size > 1.0 else None

    def root(self, scale: float, level: Array, rest: Array) -> Array:
        """Return F (H, d, d) upper triangular, F F' = Sigma_0 with v_1, v_2 = level^2, rest^2 (H,) and s ``scale``."""
        along, other = level / self.length, rest
        root = np.eye(self.sd.size) * other[:, None, None]
        root = root + np.outer(self.axis, self.axis) * (along - other)[:, None, None]
        root *= (scale / self.sd)[:, None]
        upper: Array = np.asarray(np.linalg.qr(np.swapaxes(root[:, ::-1], 1, 2)).R)
        upper = upper * np.where(np.diagonal(upper, axis1=1, axis2=2) < 0, -1.0, 1.0)[:, :, None]
        factor: Array = np.swapaxes(upper, 1, 2)[:, ::-1, ::-1]
        return factor

    def shares(self, cov: Array, scale: float) -> Array:
        """Return sqrt (v_1, v_2) of a covariance (d, d), by its mean square along u and beside it."""
        whole = cov * np.outer(self.sd, self.sd) / scale**2
        along = float(self.axis @ whole @ self.axis)
        rest = max(float(np.trace(whole)) - along, 0.0) / (self.sd.size - 1)
        return np.array([np.sqrt(max(along, 0.0)) * self.length, np.sqrt(rest)])


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Covariances D R D, with standard deviations D that are free in groups, and R free or held.

    An sd is ``unit * -log Phi(-x)``: as x grows, first like Phi(x), then like x^2 / 2, so that a density that is flat
    down to sd = 0 becomes one with normal tails.

    Attributes
    ----------
    scale : (d,) array
        s_j of the prior, in units of theta; of one group, all in one proportion.
    unit : float
        In units of ``scale``: about the least sd that the data can tell from zero.
    group : (d,) int array
        Which x a feature has.
    held : (d, d) array or None
        Upper triangular C with C C' = R; None where R is free.
    level : LevelAxis, optional
        In place of D R D: the two sds are those of level and rest, in units of s.
    """

    scale: Array
    unit: float
    group: Codes
    held: Array | None
    level: LevelAxis | None = None

    @property
    def sds(self) -> int:
        """Free standard deviations."""
        return int(self.group.max()) + 1

    @property
    def size(self) -> int:
        """Numbers in eta."""
        return self.sds + (packed_size(self.scale.size - 1) if self.held is None else 0)

    def factors(self, eta: Array) -> Array:
        """Return F (H, d, d) upper triangular, with F F' the covariance of each eta (H, k)."""
        from scipy.special import log_ndtr

        sds = -self.unit * log_ndtr(-eta[:, : self.sds])
        if self.level is not None:
            return np.ascontiguousarray(self.level.root(float(self.scale[0]), sds[:, 0], sds[:, 1]))
        root = self.held if self.held is not None else _roots(eta[:, self.sds :], self.scale.size)
        return np.ascontiguousarray((self.scale * sds[:, self.group])[:, :, None] * root)

    def log_prior(self, eta: Array) -> Array:
        """Return the log density of eta (H, k): prior times Jacobian."""
        from scipy.special import log_ndtr

        x = np.maximum(eta[:, : self.sds], _LOWEST)
        above = log_ndtr(-x)
        jacobian = log(self.unit) - x * x / 2 - log(2 * pi) / 2 - above
        sd, k = -self.unit * above, self.sds
        v = sd * sd
        total = v.sum(axis=1)
        beta = lgamma(k + 1 + _TAIL) - lgamma(k + 1) - lgamma(_TAIL)
        dirichlet = lgamma(_EVEN * k) - k * lgamma(_EVEN)
        shares = (_EVEN - 1) * np.log(v / total[:, None]) + np.log(2 * sd) + jacobian
        value: Array = (
            shares.sum(axis=1) + np.log(total) - (k + 1 + _TAIL) * np.log1p(total) + beta + dirichlet
        )
        return value if self.held is not None else value + _log_lkj(eta[:, self.sds :], self.scale.size)

    def sd_coordinates(self, sds: Array) -> Array:
        """Return x of sds in units of ``scale``."""
        from scipy.special import ndtri_exp

        return np.asarray(-ndtri_exp(-np.maximum(sds, _LEAST * self.unit) / self.unit))


def _roots(z: Array, d: int) -> Array:
    """Return C (H, d, d) upper triangular, C C' a correlation matrix, from canonical partial correlations tanh z."""
    lower, remaining = np.zeros((len(z), d, d)), np.ones((len(z), d))
    first = 0
    for j in range(d):
        part = z[:, first : first + d - 1 - j]
        lower[:, j, j] = remaining[:, j]
        lower[:, j + 1 :, j] = np.tanh(part) * remaining[:, j + 1 :]
        remaining[:, j + 1 :] /= np.cosh(part)
        first += d - 1 - j
    return lower[:, ::-1, ::-1]


def _partial(correlation: Array) -> Array:
    """Undo :func:`_roots` for one regular matrix (d, d)."""
    lower = np.linalg.cholesky(correlation[::-1, ::-1])
    remaining, partials = np.ones(len(lower)), [np.zeros(0)]
    for j in range(len(lower)):
        partials.append(np.arctanh(lower[j + 1 :, j] / remaining[j + 1 :]))
        remaining[j + 1 :] /= np.cosh(partials[-1])
    return np.concatenate(partials)


def _log_lkj(z: Array, d: int) -> Array:
    """Return the log density of z under LKJ: tanh z of column j is Beta(b, b), b = exponent + (d - 2 - j) / 2."""
    b = np.concatenate([np.full(d - 1 - j, _LKJ + (d - 2 - j) / 2) for j in range(d)])
    constant = sum(2 * lgamma(x) - lgamma(2 * x) + (2 * x - 1) * log(2.0) for x in b.tolist())
    density: Array = -2 * (np.logaddexp(z, -z) - log(2.0)) @ b - constant
    return density


@dataclass(frozen=True, slots=True, eq=False)
class Parametrisation:
    """A map from eta to hierarchies: families of all covariances, from the tasks upwards, and log(sigma^2 / s^2).

    Attributes
    ----------
    families : tuple of Family
        Of Sigma_0, then of each level.
    noise : float
        s^2.
    held_noise : float or None
        sigma^2, where it is held.
    noise_identified : bool
        True where the log identifies sigma^2.
    start : (p,) array
        eta of the estimate, moved off zero variances and correlations of one.
    """

    families: tuple[Family, ...]
    noise: float
    held_noise: float | None
    noise_identified: bool
    start: Array

    def _parts(self, eta: Array) -> list[tuple[Family, Array]]:
        ends = np.cumsum([family.size for family in self.families])
        return list(zip(self.families, np.split(eta[:, : ends[-1]], ends[:-1], axis=1), strict=True))

    def split(self, eta: Array) -> tuple[list[Array], Array]:
        """Return factors (H, d, d) of each covariance, and sigma^2 (H,), from eta (H, p)."""
        factors = [family.factors(part) for family, part in self._parts(eta)]
        if self.held_noise is not None:
            return factors, np.full(len(eta), self.held_noise)
        return factors, self.noise * np.exp(eta[:, -1])

    def log_prior(self, eta: Array) -> Array:
        """Return the log prior density (H,) of eta (H, p)."""
        total: Array = np.sum([family.log_prior(part) for family, part in self._parts(eta)], axis=0)
        if self.held_noise is not None:
            return total
        if self.noise_identified:
            total = total - (eta[:, -1] / _NOISE_SD) ** 2 / 2 - log(2 * pi * _NOISE_SD**2) / 2
        else:
            total = total + log(2) + eta[:, -1] - 3 * np.logaddexp(0.0, eta[:, -1])
        return total


def parametrise(
    moments: Moments, hierarchy: Hierarchy, freedom: Freedom, *, noise_identified: bool = True
) -> Parametrisation:
    """Return the parametrisation of the free parameters of a hierarchy.

    Parameters
    ----------
    moments : Moments
        Give the scales of the priors.
    hierarchy : Hierarchy
        The estimate: where to start, and what is held.
    freedom : {"full", "diag", "common", "level", "sds", "isotropic", "scale"}
        "full": all sds and correlations. "diag": all sds, without correlations. "common": one sd in units of the prior
        scales s_j, without correlations. "level": one sd of the level and one of the rest; moments of a
        :class:`LevelAxis` only. "sds": all sds; correlations are held. "isotropic": one sd for all features.
        "scale": each covariance is a free multiple of that in ``hierarchy``.
    noise_identified : bool
        True where the log identifies sigma^2 apart from differences between tasks.
    """
    s2, scale = prior_scales(moments)
    active = moments.tasks[moments.rows > 0]
    keys = moments.select(active).keys
    families, starts = [], []
    for k, cov in enumerate([hierarchy.task_cov, *(level.cov for level in hierarchy.levels)]):
        unit = min(1.0, float(np.sqrt(active.size / moments.n_rows)) / len(keys) ** 0.25)
        if freedom == "level":
            axis = LevelAxis.of(moments)
            assert axis is not None
            family = Family(np.full(2, np.sqrt(s2)), unit, np.arange(2), np.eye(2), axis)
            start = family.sd_coordinates(np.clip(axis.shares(cov, np.sqrt(s2)), _LEAST, _MOST))
        else:
            family, start = _family(cov, scale, unit, freedom)
        families.append(family)
        starts.append(start)
        keys, _ = parents_of(keys, hierarchy.levels, k)
    held = hierarchy.noise_var if hierarchy.noise_var < _NOISELESS * s2 else None
    if held is None:
        starts.append(np.array([np.log(hierarchy.noise_var / s2)]))
    return Parametrisation(tuple(families), s2, held, noise_identified, np.concatenate(starts))


def _family(cov: Array, scale: Array, unit: float, freedom: Freedom) -> tuple[Family, Array]:
    d = len(scale)
    sd = np.sqrt(np.maximum(np.diagonal(cov), 0.0))
    together, separate = np.zeros(d, dtype=np.int64), np.arange(d)
    safe = np.where(sd > 0, sd, 1.0)
    correlation = np.where(np.outer(sd, sd) > 0, cov / np.outer(safe, safe), np.eye(d))
    if freedom == "isotropic":
        family = Family(np.full(d, np.exp(np.log(scale).mean())), unit, together, np.eye(d))
        return family, family.sd_coordinates(np.maximum(sd[:1] / family.scale[:1], _LEAST))
    if freedom == "scale":
        share = float(np.exp(np.log(safe / scale)[sd > 0].mean())) if sd.any() else 1.0
        family = Family(sd / share if sd.any() else scale, unit, together, upper_factor(correlation)[0])
        return family, family.sd_coordinates(np.array([max(share, _LEAST)]))
    if freedom == "common":
        family = Family(scale, unit, together, np.eye(d))
        share = np.exp(np.log(np.clip(sd / scale, _LEAST, _MOST)).mean(keepdims=True))
        return family, family.sd_coordinates(share)
    free = freedom == "full"
    held = np.eye(d) if freedom == "diag" else upper_factor(correlation)[0]
    family = Family(scale, unit, separate, None if free else held)
    start = family.sd_coordinates(np.clip(sd / scale, _LEAST, _MOST))
    if not free:
        return family, start
    return family, np.concatenate([start, _partial(_SHRUNK * correlation + (1 - _SHRUNK) * np.eye(d))])


class CollapsedLikelihood:
    """log p(rewards | phi, hierarchy) of many hierarchies that differ in covariances and noise alone.

    Equal to ``condition(...).log_evidence``; see there for the errors.
    """

    def __init__(self, moments: Moments, hierarchy: Hierarchy) -> None:
        active = moments.select(moments.tasks[moments.rows > 0])
        self._hierarchy = hierarchy
        self._hyper = None if hierarchy.hyper is None else hierarchy.hyper.plus(minus(active.offset))
        self._rows = normalised(active.sums)
        self._n, self._log_precision = active.n_rows, float(active.log_precision.sum())
        self._parents: list[tuple[Codes, int]] = []
        keys = active.keys
        for k in range(len(hierarchy.levels) + 1):
            keys, parent = parents_of(keys, hierarchy.levels, k)
            self._parents.append((parent, len(keys)))
        metadata = hierarchy.metadata
        self._design = None if metadata is None else metadata.design(hierarchy.dim, active.keys)

    def __call__(self, factors: list[Array], noise_vars: Array) -> Array:
        """Return the log evidence (H,), from upper triangular factors (H, d, d) of each covariance and sigma^2 (H,)."""
        D, log_dets = self._hierarchy.root_dim, np.zeros(noise_vars.size)
        tops = np.empty((noise_vars.size, packed_size(D + 1)))
        for h, noise_var in enumerate(noise_vars.tolist()):
            rows, scale = self._rows, 1.0 / noise_var
            for k, (parent, n_parents) in enumerate(self._parents):
                if k == 0 and self._design is not None:
                    messages, part = up(rows, scale, factors[0][h], np.arange(len(rows)), len(rows))
                    rows = self._design.parent_messages(messages, parent, n_parents)
                else:
                    factor = factors[k][h] if k == 0 else padded(factors[k][h], D)
                    rows, part = up(rows, scale, factor, parent, n_parents)
                scale = 1.0
                log_dets[h] += part
            tops[h] = rows[0]
        noise = self._n * np.log(2 * pi * noise_vars) - self._log_precision
        log_evidence: Array = -0.5 * (noise + log_dets + self._root(unpack(tops, D + 1)))
        return log_evidence

    def _root(self, tops: Array) -> Array:
        """Return -2 log of the integral over mu (H,), from the messages at the root (H, D + 1, D + 1)."""
        D, hyper = self._hierarchy.root_dim, self._hyper
        P, b, rest = tops[:, :D, :D], tops[:, :D, D], tops[:, D, D]
        if hyper is None:
            size = np.sqrt(np.diagonal(P, axis1=1, axis2=2))
            square, right = P / (size[:, :, None] * size[:, None, :]), b / size
            rest = rest + 2 * np.log(size).sum(axis=1) - D * log(2 * pi)
        else:
            factor = upper_factor(hyper.cov)[0]
            e = b - P @ hyper.mean
            square, right = np.eye(D) + factor.T @ P @ factor, e @ factor
            rest = rest - (b + e) @ hyper.mean
        lower = np.linalg.cholesky(square)
        solved = np.linalg.solve(lower, right[:, :, None])[:, :, 0]
        log_det = 2 * np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
        deviance: Array = rest - (solved * solved).sum(axis=1) + log_det
        return deviance


def draw_hierarchies(
    moments: Moments, hierarchy: Hierarchy, freedoms: tuple[Freedom, ...], *, noise_identified: bool = True
) -> tuple[HyperDraws, Diagnosis]:
    """Draw from the posterior of the hierarchy, with no random numbers: the same log gives the same draws.

    The log integral of the :class:`Diagnosis` is the evidence log p(rewards | phi), with the hierarchy integrated out.

    Parameters
    ----------
    moments, hierarchy, noise_identified
        As :func:`parametrise`; at most ``MOST_VARIABLES`` numbers may be free.
    freedoms : tuple of Freedom
        Those that are averaged by their evidence; one or more.
    """
    likelihood = CollapsedLikelihood(moments, hierarchy)
    samples = [
        _sampled(parametrise(moments, hierarchy, freedom, noise_identified=noise_identified), likelihood)
        for freedom in freedoms
    ]
    diagnosis, probabilities = averaged([sample.diagnosis for sample in samples])
    weights = np.concatenate(
        [share * sample.weights for share, sample in zip(probabilities, samples, strict=True)]
    )
    factors = [np.concatenate(parts) for parts in zip(*(sample.factors for sample in samples), strict=True)]
    noise_vars = np.concatenate([sample.noise_vars for sample in samples])
    scale = prior_scales(moments)[1]
    size = ((factors[0] / np.where(scale > 0, scale, 1.0)[:, None]) ** 2).sum(axis=(1, 2))
    family = np.repeat(np.arange(len(samples)), [sample.weights.size for sample in samples])
    rows, kept_weights = resampled(weights, np.lexsort((size, family)), _DRAWS)
    covs = [f[rows] @ np.swapaxes(f[rows], 1, 2) for f in factors]
    levels = np.moveaxis(np.array(covs[1:]).reshape(-1, *covs[0].shape), 0, 1)
    return HyperDraws(kept_weights, covs[0], noise_vars[rows], levels), diagnosis


class _Sample(NamedTuple):
    """Weighted draws under one parametrisation: factors of covariances, and noise variances."""

    factors: list[Array]
    noise_vars: Array
    weights: Array
    diagnosis: Diagnosis


def _sampled(space: Parametrisation, likelihood: CollapsedLikelihood) -> _Sample:
    def density(eta: Array) -> Array:
        return likelihood(*space.split(eta)) + space.log_prior(eta)

    points, weights, diagnosis = sample(density, space.start)
    return _Sample(*space.split(points), weights, diagnosis)
