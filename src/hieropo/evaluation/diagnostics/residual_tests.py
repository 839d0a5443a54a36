"""Tests of standardised residuals, each against one fault of a model: unequal noise, heavy tails, a wrong scale.

A residual z is N(0, 1) under the model. Sums over groups of rows (tasks, actions) are all that is kept. The tests are
made so that one fault does not pass for another:

    unequal noise   between groups, by the analysis of variance of y = min(|z|, 3) (Levene's idea; in Contributions to
                    Probability and Statistics, 1960), and for the most unlike group by a gamma law of its mean; along a
                    number x, by the correlation of y and x (Koenker, Journal of Econometrics 17, 1981). The spread of y
                    is measured and not taken from the normal law, so that heavy tails alone do no harm.
    heavy tails     by b = n sum z^4 / (sum z^2)^2 within groups, which does not see what differs between them. Under
                    normal residuals mean and variance of b are exact, 3 n / (n + 2) and
                    24 n^2 (n - 1) / ((n + 2)^2 (n + 4) (n + 6)); sums over groups are brought to normality as by
                    Anscombe and Glynn (Biometrika 70, 1983).
    a wrong scale   by mean z^2 - 1, its spread measured.

Residuals of one task are not independent. With row i left out, corr(z_i, z_j)^2 = h_ij^2 / ((1 - h_i) (1 - h_j)) and
sum_j h_ij^2 <= h_i, so that a sum of an even function of z has at most about 1 + h / (1 - h) times the variance of
independent ones; rows that were not learned from, of which a share rho of the variance is the task's, have at most
1 + n rho^2 times. Both only make the tests more careful.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import fdtrc, gammainc, gammaincc, ndtr, ndtri

from hieropo._utils.arrays import Array, Codes

SHARES = (0.5, 0.8, 0.95)
_FIELDS = (
    "rows", "free", "total", "square", "fourth", "size", "size_square", "in_50", "in_80", "in_95", "tie"
)  # fmt: skip
_HALF_WIDTHS = ndtri([(1 + share) / 2 for share in SHARES])
_MOST = 3.0  # of |z| in tests of the noise
_TAIL_ROWS = 8.0  # free rows of a group in which tails can be seen
_SPREAD_ROWS = 20.0  # free rows that tell the spread of y


def residual_columns(z: Array, free: Array, tie: Array) -> Array:
    """Return what is summed of each row, (C, n): residuals z, shares free = 1 - h, and h / (1 - h) or rho."""
    away = np.abs(z)
    size, square = np.minimum(away, _MOST), z * z
    inside = [(away <= width).astype(np.float64) for width in _HALF_WIDTHS]
    return np.stack([np.ones(z.size), free, z, square, square * square, size, size * size, *inside, tie])


def summed(columns: Array, codes: Codes, groups: int, counts: Array | None = None) -> Array:
    """Sum columns (C, n) over the rows of each group, (C, groups), each row as often as ``counts`` (n,) says."""
    weighed = columns if counts is None else columns * counts
    return np.stack([np.bincount(codes, column, minlength=groups) for column in weighed])


@dataclass(frozen=True, slots=True, eq=False)
class Residuals:
    """Sums of standardised residuals over the rows of each of G groups.

    Parameters
    ----------
    sums : (C, G) array
        Of :func:`residual_columns`.
    learned : bool
        Whether the rows were learned from, and left out one at a time.
    """

    sums: Array
    learned: bool

    def of(self, field: str) -> Array:
        """Return one of the sums (G,)."""
        return np.asarray(self.sums[_FIELDS.index(field)])

    @property
    def rows(self) -> Array:
        """Rows of each group, by their weights."""
        return self.of("rows")

    @property
    def mean(self) -> Array:
        """Mean residual of each group; 0 where it has no rows."""
        return np.asarray(self.of("total") / np.maximum(self.of("rows"), 1.0))

    @property
    def sd(self) -> Array:
        """Root mean square of the residuals of each group; 1 under the model, and where there are no rows."""
        rows = self.of("rows")
        return np.asarray(np.sqrt(np.where(rows > 0, self.of("square") / np.maximum(rows, 1.0), 1.0)))

    @property
    def coverage(self) -> Array:
        """Share of the rewards of each group in their 50, 80 and 95 % intervals, (G, 3)."""
        inside = np.stack([self.of(field) for field in ("in_50", "in_80", "in_95")], axis=1)
        rows = self.of("rows")[:, None]
        return np.asarray(np.where(rows > 0, inside / np.maximum(rows, 1.0), SHARES))

    @property
    def all(self) -> "Residuals":
        """The same with all rows as one group."""
        return Residuals(self.sums.sum(axis=1, keepdims=True), self.learned)

    @property
    def inflation(self) -> Array:
        """Return how much more, at most, sums of an even function of z vary than if independent; groups are tasks."""
        rows, tie = np.maximum(self.of("rows"), 1.0), self.of("tie")
        return np.asarray(1.0 + (tie / rows if self.learned else tie * tie / rows))


class NoiseTest(NamedTuple):
    """A test of noise that differs between groups.

    Parameters
    ----------
    p : float
        Of equal noise in all groups.
    variation : float
        How much the noise sd varies between groups: their sd as a share of their mean.
    each : (G,) array
        p of each group against the others, two-sided.
    """

    p: float
    variation: float
    each: Array


def noise_between(groups: Residuals, inflation: Array) -> NoiseTest | None:
    """Test whether groups have the same noise; None where rows are too few to tell.

    Parameters
    ----------
    groups : Residuals
    inflation : (G,) array
        How much more a sum over a group varies than that of independent rows.
    """
    rows, sums = groups.of("rows"), groups.of("size")
    some = rows > 0
    n, count = float(rows.sum()), int(some.sum())
    if count < 2 or float(groups.of("free").sum()) - count < _SPREAD_ROWS:
        return None
    means, middle = sums / np.maximum(rows, 1.0), float(sums.sum()) / n
    variance = float((groups.of("size_square") - means * sums).sum()) / (n - count)
    if variance <= 1e-12:
        return None  # all residuals are equal in size
    away = rows * (means - middle) ** 2
    ratio = float((away / inflation).sum()) / (count - 1) / variance
    between = float(away.sum()) - float(inflation[some].sum()) * variance * (count - 1) / count
    variation = np.sqrt(max(between / (n - float(rows @ rows) / n), 0.0)) / middle
    p = float(fdtrc(count - 1, n - count, ratio))
    each = _apart(groups, means, middle, variance * inflation)
    return NoiseTest(p, float(variation), np.where(some, each, 1.0))


def _apart(groups: Residuals, means: Array, middle: float, variance: Array) -> Array:
    """Two-sided p of the mean of y of each group, by the gamma law with its mean and variance.

    Below, that law is too light for few rows, since |z| has a density at 0; there the chi-squared law of sum z^2 is
    taken where it is the heavier.
    """
    rows, free = np.maximum(groups.of("rows"), 1.0), groups.of("free")
    shape = middle * middle / (variance * np.maximum(1.0 / rows - 1.0 / groups.of("rows").sum(), 1e-300))
    x = shape * means / middle
    small = gammainc(free / 2.0, groups.of("square") * free / rows / 2.0)
    lower = np.maximum(gammainc(shape, x), np.where(free > 0, small, 1.0))
    return np.asarray(np.minimum(2.0 * np.minimum(gammaincc(shape, x), lower), 1.0))


def noise_along(gram: Array, inflation: float) -> tuple[Array, Array]:
    """Test whether noise changes along numbers, within groups.

    Parameters
    ----------
    gram : (G, q + 2, q + 2) array
        Sums over the rows of each group of v v', v = (1, y, x_1 .. x_q).
    inflation : float

    Returns
    -------
    p : (q,) array
    effect : (q,) array
        Change of the noise sd for each sd of x, as a share of itself.
    """
    rows, whole = gram[:, 0, 0], gram.sum(axis=0)
    n, q = float(rows.sum()), len(whole) - 2
    if n - len(rows) < _SPREAD_ROWS:
        return np.ones(q), np.zeros(q)
    middle = gram[:, 0] / np.sqrt(np.maximum(rows, 1.0))[:, None]
    cov = (whole - middle.T @ middle) / n
    spread = np.sqrt(np.maximum(np.diagonal(cov), 0.0))
    told = spread > 1e-7 * np.sqrt(np.diagonal(whole) / n)
    along = np.where(told[2:] & told[1], cov[1, 2:] / np.where(told[2:], spread[2:], 1.0), 0.0)
    t = along / (spread[1] if told[1] else 1.0) * np.sqrt(n / inflation)
    return 2.0 * ndtr(-np.abs(t)), along * n / max(float(whole[0, 1]), 1e-300)


class Tails(NamedTuple):
    """Excess kurtosis of residuals within groups, and p of none."""

    excess: float
    p: float


def heavy_tails(partitions: Sequence[Residuals]) -> Tails | None:
    """Test for heavy tails within the groups of every partition: what only one of them shows is unequal noise."""
    found = [each for each in map(_tails, partitions) if each is not None]
    if not found:
        return None
    return Tails(min(each.excess for each in found), max(each.p for each in found))


def _tails(groups: Residuals) -> Tails | None:
    n = groups.of("free")
    own = (n >= _TAIL_ROWS) & (groups.of("square") > 0)
    if not own.any():
        return None
    n, rows = n[own], groups.of("rows")[own]
    b = rows * groups.of("fourth")[own] / groups.of("square")[own] ** 2
    variance = 24.0 * n * n * (n - 1.0) / ((n + 2.0) ** 2 * (n + 4.0) * (n + 6.0))
    skew = 6.0 * (n * n - 5.0 * n + 2.0) / ((n + 7.0) * (n + 9.0))
    skew *= np.sqrt(6.0 * (n + 3.0) * (n + 5.0) / (n * (n - 2.0) * (n - 3.0)))
    total = float((n * n * variance).sum())
    away = float((n * (b - 3.0 * n / (n + 2.0))).sum()) / np.sqrt(total)
    g = float((n**3 * variance**1.5 * skew).sum()) / total**1.5
    excess = float((b * (n + 2.0)).sum() / n.sum()) - 3.0
    return Tails(excess, float(ndtr(-_normalised(away, g))))


def _normalised(x: float, g: float) -> float:
    """Bring x of mean 0, variance 1 and skewness g > 0 to a normal one, by a cube root."""
    a = 6.0 + 8.0 / g * (2.0 / g + np.sqrt(1.0 + 4.0 / (g * g)))
    ratio = (1.0 - 2.0 / a) / max(1.0 + x * np.sqrt(2.0 / (a - 4.0)), 1e-12)
    return float((1.0 - 2.0 / (9.0 * a) - np.cbrt(ratio)) / np.sqrt(2.0 / (9.0 * a)))


def wrong_scale(groups: Residuals, inflation: float, noise_rows: float) -> tuple[float, float]:
    """Return the root mean square of all residuals, and two-sided p that it is 1.

    ``noise_rows`` is the number of rows that the noise may have been learned from, apart from these; inf for none.
    """
    n = float(groups.of("rows").sum())
    if n < _SPREAD_ROWS:
        return 1.0, 1.0
    square = float(groups.of("square").sum()) / n
    spread = max(float(groups.of("fourth").sum()) / n - square * square, 1e-12)
    t = (square - 1.0) / np.sqrt(spread / n * inflation + 2.0 * square * square / noise_rows)
    return float(np.sqrt(square)), float(2.0 * ndtr(-abs(t)))
