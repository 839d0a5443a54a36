"""Tests of standardised residuals, curvature along columns, and sentences on misfits of the model.

A residual z is N(0, 1) under the model. The tests need sums over groups of rows (tasks, actions)
alone. Each is insensitive to the faults of the others:

    unequal noise   between groups, by the analysis of variance of y = min(|z|, 3) (Levene's idea; in Contributions to
                    Probability and Statistics, 1960), and for the most unlike group by a gamma law of its mean; along a
                    number x, by the correlation of y and x (Koenker, Journal of Econometrics 17, 1981). The variance
                    of y is estimated and not that of a normal, so that heavy tails alone do not matter.
    heavy tails     by b = n sum z^4 / (sum z^2)^2 within groups, which differences between them do not affect. Under
                    normal residuals mean and variance of b are exact, 3 n / (n + 2) and
                    24 n^2 (n - 1) / ((n + 2)^2 (n + 4) (n + 6)); sums over groups are brought to normality as by
                    Anscombe and Glynn (Biometrika 70, 1983).
    a wrong scale   by mean z^2 - 1 and its estimated variance.

Residuals of one task are not independent. With row i left out, corr(z_i, z_j)^2 = h_ij^2 / ((1 - h_i) (1 - h_j)) and
sum_j h_ij^2 <= h_i, so that a sum of an even function of z has at most about 1 + h / (1 - h) times the variance of
independent ones; rows that were not learned from, of which a share rho of the variance is the task's, have at most
1 + n rho^2 times. Both make the tests conservative.

Were psi (n,) a further feature, with one coefficient for all tasks, its score at 0 would be psi' W e / sigma^2 with the
posterior's residuals e = r - phi' mean_s and the weights W. Given all else of the model it is normal with mean 0 and

    variance    psi' W psi / sigma^2 -+ Var(sum_s c_s' theta_s | log),    c_s = sum_{rows of s} w psi phi / sigma^2

minus where the rows were learned from (the fit explains it), plus where they were not (it is uncertain).
The second term is that of a sum over tasks, :func:`value_distributions.total`. psi is the square of a column, less its
regression on the features, in all rows or in those of one action; on rows that were not learned from also 1. All of
this is in the Moments of (phi, squares) with e for the reward, and does not depend on where a column has its
origin. They are kept for some tasks, evenly spaced, where those of all would be many.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, gammainc, gammaincc, ndtr, ndtri

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import packed_size, unpack
from hieropo._utils.text import agreeing
from hieropo._utils.ties import first_largest, first_smallest, ordered
from hieropo.evaluation.by_posterior.value_distributions import total
from hieropo.evaluation.diagnostics.task_distances import TaskDistances
from hieropo.model.protocol import TaskPosterior
from hieropo.moments.statistics import add_rows
from hieropo.rows.columns import RowWeights
from hieropo.rows.ids import plain
from hieropo.rows.keys import Keys

SHARES = (0.5, 0.8, 0.95)
_FIELDS = (
    "rows", "free", "total", "square", "fourth", "size", "size_square", "in_50", "in_80", "in_95", "tie"
)  # fmt: skip
_HALF_WIDTHS = ndtri([(1 + share) / 2 for share in SHARES])
_MAX_SIZE = 3.0  # at which |z| is cut in tests of the noise
_MIN_TAIL_ROWS = 8.0  # free rows of a group for a test of tails
_MIN_ROWS = 20.0  # free rows for an estimate of the variance of y


def residual_columns(z: Array, free: Array, tie: Array) -> Array:
    """Return the columns to sum over rows, (C, n), from residuals z, shares free = 1 - h, and h / (1 - h) or rho."""
    absolute = np.abs(z)
    size, square = np.minimum(absolute, _MAX_SIZE), z * z
    inside = [(absolute <= width).astype(np.float64) for width in _HALF_WIDTHS]
    return np.stack([np.ones(z.size), free, z, square, square * square, size, size * size, *inside, tie])


def summed(columns: Array, codes: Codes, groups: int, counts: Array | None = None) -> Array:
    """Sum columns (C, n) over the rows of each group, (C, groups), each row ``counts`` (n,) times."""
    weighted = columns if counts is None else columns * counts
    return np.stack([np.bincount(codes, column, minlength=groups) for column in weighted])


@dataclass(frozen=True, slots=True, eq=False)
class Residuals:
    """Sums of standardised residuals over the rows of each of G groups.

    Parameters
    ----------
    sums : (C, G) array
        Of :func:`residual_columns`.
    learned : bool
        True where the rows were learned from, and left out one at a time.
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
        """Upper bound on the variance of sums of an even function of z, relative to independence; groups are tasks."""
        rows, tie = np.maximum(self.of("rows"), 1.0), self.of("tie")
        return np.asarray(1.0 + (tie / rows if self.learned else tie * tie / rows))


class NoiseTest(NamedTuple):
    """A test of noise that differs between groups.

    Parameters
    ----------
    p : float
        Of equal noise in all groups.
    variation : float
        Coefficient of variation of the noise sd between groups.
    p_by_group : (G,) array
        Two-sided p of each group against the others.
    """

    p: float
    variation: float
    p_by_group: Array


def noise_between(groups: Residuals, inflation: Array) -> NoiseTest | None:
    """Test for equal noise in all groups; None where rows are too few.

    Parameters
    ----------
    groups : Residuals
    inflation : (G,) array
        Variance of a sum over a group relative to that of independent rows.
    """
    rows, sums = groups.of("rows"), groups.of("size")
    has_rows = rows > 0
    n, count = float(rows.sum()), int(has_rows.sum())
    if count < 2 or float(groups.of("free").sum()) - count < _MIN_ROWS:
        return None
    means, overall = sums / np.maximum(rows, 1.0), float(sums.sum()) / n
    variance = float((groups.of("size_square") - means * sums).sum()) / (n - count)
    if variance <= 1e-12:
        return None  # all residuals are equal in size
    squares = rows * (means - overall) ** 2
    ratio = float((squares / inflation).sum()) / (count - 1) / variance
    between = float(squares.sum()) - float(inflation[has_rows].sum()) * variance * (count - 1) / count
    variation = np.sqrt(max(between / (n - float(rows @ rows) / n), 0.0)) / overall
    p = float(fdtrc(count - 1, n - count, ratio))
    p_by_group = _p_by_group(groups, means, overall, variance * inflation)
    return NoiseTest(p, float(variation), np.where(has_rows, p_by_group, 1.0))


def _p_by_group(groups: Residuals, means: Array, overall: float, variance: Array) -> Array:
    """Return two-sided p of the mean of y of each group, by the gamma distribution with its mean and variance.

    The lower tail of that gamma is too light for few rows, since |z| has a density at 0; there the chi-squared tail of
    sum z^2 is taken where it is heavier.
    """
    rows, free = np.maximum(groups.of("rows"), 1.0), groups.of("free")
    shape = overall * overall / (variance * np.maximum(1.0 / rows - 1.0 / groups.of("rows").sum(), 1e-300))
    x = shape * means / overall
    small = gammainc(free / 2.0, groups.of("square") * free / rows / 2.0)
    lower = np.maximum(gammainc(shape, x), np.where(free > 0, small, 1.0))
    return np.asarray(np.minimum(2.0 * np.minimum(gammaincc(shape, x), lower), 1.0))


def noise_along(gram: Array, inflation: float) -> tuple[Array, Array]:
    """Test for noise that changes along numbers, within groups.

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
    rows, total = gram[:, 0, 0], gram.sum(axis=0)
    n, q = float(rows.sum()), len(total) - 2
    if n - len(rows) < _MIN_ROWS:
        return np.ones(q), np.zeros(q)
    means = gram[:, 0] / np.sqrt(np.maximum(rows, 1.0))[:, None]
    cov = (total - means.T @ means) / n
    sd = np.sqrt(np.maximum(np.diagonal(cov), 0.0))
    varies = sd > 1e-7 * np.sqrt(np.diagonal(total) / n)
    slope = np.where(varies[2:] & varies[1], cov[1, 2:] / np.where(varies[2:], sd[2:], 1.0), 0.0)
    t = slope / (sd[1] if varies[1] else 1.0) * np.sqrt(n / inflation)
    return 2.0 * ndtr(-np.abs(t)), slope * n / max(float(total[0, 1]), 1e-300)


class Tails(NamedTuple):
    """Excess kurtosis of residuals within groups, and p of none."""

    excess: float
    p: float


def heavy_tails(partitions: Sequence[Residuals]) -> Tails | None:
    """Test for heavy tails within the groups of every partition; tails in one partition alone are unequal noise."""
    tails = [result for result in map(_tails, partitions) if result is not None]
    if not tails:
        return None
    return Tails(min(result.excess for result in tails), max(result.p for result in tails))


def _tails(groups: Residuals) -> Tails | None:
    n = groups.of("free")
    enough = (n >= _MIN_TAIL_ROWS) & (groups.of("square") > 0)
    if not enough.any():
        return None
    n, rows = n[enough], groups.of("rows")[enough]
    b = rows * groups.of("fourth")[enough] / groups.of("square")[enough] ** 2
    variance = 24.0 * n * n * (n - 1.0) / ((n + 2.0) ** 2 * (n + 4.0) * (n + 6.0))
    skew = 6.0 * (n * n - 5.0 * n + 2.0) / ((n + 7.0) * (n + 9.0))
    skew *= np.sqrt(6.0 * (n + 3.0) * (n + 5.0) / (n * (n - 2.0) * (n - 3.0)))
    total = float((n * n * variance).sum())
    statistic = float((n * (b - 3.0 * n / (n + 2.0))).sum()) / np.sqrt(total)
    g = float((n**3 * variance**1.5 * skew).sum()) / total**1.5
    excess = float((b * (n + 2.0)).sum() / n.sum()) - 3.0
    return Tails(excess, float(ndtr(-_normalised(statistic, g))))


def _normalised(x: float, g: float) -> float:
    """Return x of mean 0, variance 1 and skewness g > 0 transformed to about N(0, 1), by a cube root."""
    a = 6.0 + 8.0 / g * (2.0 / g + np.sqrt(1.0 + 4.0 / (g * g)))
    ratio = (1.0 - 2.0 / a) / max(1.0 + x * np.sqrt(2.0 / (a - 4.0)), 1e-12)
    return float((1.0 - 2.0 / (9.0 * a) - np.cbrt(ratio)) / np.sqrt(2.0 / (9.0 * a)))


def wrong_scale(groups: Residuals, inflation: float, noise_rows: float) -> tuple[float, float]:
    """Return the root mean square of all residuals, and two-sided p that it is 1.

    ``noise_rows`` is the number of rows that the noise may have been learned from, apart from these; inf for none.
    """
    n = float(groups.of("rows").sum())
    if n < _MIN_ROWS:
        return 1.0, 1.0
    square = float(groups.of("square").sum()) / n
    variance = max(float(groups.of("fourth").sum()) / n - square * square, 1e-12)
    t = (square - 1.0) / np.sqrt(variance / n * inflation + 2.0 * square * square / noise_rows)
    return float(np.sqrt(square)), float(2.0 * ndtr(-abs(t)))


_MAX_SUMS = 2**21  # numbers in the sums
_MAX_VECTORS = 2**23  # numbers in vectors that are summed over at once
_MAX_WORK = 4e9  # operations up to which actions are tested singly, some seconds
_MIN_RESIDUAL = 1e-6  # share of a feature that the others do not explain


class ScoreTest(NamedTuple):
    """The score test of one feature that is not in the model.

    Parameters
    ----------
    column : int
        The context column of which it is the square; -1 for the constant 1.
    action : int
        The action to whose rows it is limited; -1 for all.
    score : float
        N(0, 1) under the model; its sign is that of the coefficient.
    effect : float
        Root mean square of its effect on the mean reward, in noise sds of a row of weight 1.
    p : float
        Two-sided.
    """

    column: int
    action: int
    score: float
    effect: float
    p: float


class Curves:
    """Sums the moments of features that the model does not have, batch by batch.

    Parameters
    ----------
    m : int
        Tasks of the posterior.
    width : int
        Features of a row.
    columns : int
        Context columns c.
    actions : int
        K where each action has features of its own, else 1.
    learned : bool
        True where the rows were learned from.
    expected : int
        Rows to come at least, where that is known.
    """

    def __init__(
        self, m: int, width: int, columns: int, actions: int, *, learned: bool, expected: int = 0
    ) -> None:
        self._expected = expected
        self._size = width + columns + 2
        size = packed_size(self._size)
        self._width, self._columns, self._actions, self._learned = width, columns, actions, learned
        self._task_step = max(1, -(-m * actions * size // _MAX_SUMS))
        units = -(-m // self._task_step) * actions
        self._sums = np.zeros((units, size))
        self._rows = np.zeros(units)

    def add(
        self,
        task: Codes,
        action: Codes,
        phi: Array,
        standardised: Array,
        residual: Array,
        weights: RowWeights,
    ) -> None:
        """Add rows of tasks (n,): own features (n, width), columns (n, c), residuals (n,) and weights."""
        rows = np.flatnonzero(task % self._task_step == 0) if self._task_step > 1 else slice(None)
        units = task[rows] // self._task_step * self._actions + (action[rows] if self._actions > 1 else 0)
        table = np.concatenate([phi[rows], standardised[rows] ** 2], axis=1)
        row_weights = weights.some(rows)
        add_rows(units, table, residual[rows], row_weights.factors(), self._sums, expected=self._expected)
        self._rows += np.bincount(units, row_weights.counts(units.size), self._rows.size)

    def score_tests(self, posterior: TaskPosterior, noise_var: Array) -> list[ScoreTest]:
        """Test all features that the model does not have already.

        Parameters
        ----------
        posterior : a posterior
            From which the residuals come.
        noise_var : (K,) or (1,) array
            Of the actions, or of all rows.
        """
        m, d, K = len(posterior.moments.keys), posterior.dim, self._actions
        columns = [*([] if self._learned else [-1]), *range(self._columns)]
        single_actions = (
            list(range(K)) if K > 1 and float(K + 1) * len(columns) * m * d * d <= _MAX_WORK else []
        )
        features = [(column, action) for column in columns for action in (-1, *single_actions)]
        matrices = unpack(self._sums, self._size).reshape(-1, K, self._size, self._size)
        step, tests = max(1, _MAX_VECTORS // max(m * d, 1)), list[ScoreTest]()
        for start in range(0, len(features), step):
            tests.extend(self._tested(features[start : start + step], matrices, posterior, noise_var))
        return tests

    def _missing(self, column: int, joint: Array) -> Array:
        """Return the feature as a combination (size,) of (phi, squares, e, 1), from sums of their products.

        It is zero where the square is a combination of features, as for a column of two values.
        """
        k, size = self._width, self._size
        form = np.zeros(size)
        if column < 0:
            form[-1] = 1.0
            return form
        scale = np.sqrt(np.diagonal(joint))
        scale = np.where(scale > 0, scale, 1.0)
        scaled, known, square = joint / np.outer(scale, scale), [*range(k), size - 1], k + column
        fit = np.linalg.lstsq(scaled[np.ix_(known, known)], scaled[known, square], rcond=1e-12)[0]
        if scaled[square, square] - scaled[known, square] @ fit > _MIN_RESIDUAL:
            form[known], form[square] = -fit * scale[square] / scale[known], 1.0
        return form

    def _tested(
        self, features: list[tuple[int, int]], matrices: Array, posterior: TaskPosterior, noise_var: Array
    ) -> Iterator[ScoreTest]:
        k, units = self._width, self._rows.reshape(-1, self._actions)
        vectors = np.zeros((len(features), len(posterior.moments.keys), posterior.dim))
        sums = np.zeros((len(features), 3))
        for j, (column, action) in enumerate(features):
            of_action = slice(None) if action < 0 else slice(action, action + 1)
            form = self._missing(column, matrices[:, of_action].sum(axis=(0, 1)))
            product = (
                matrices[:, of_action]
                @ form
                / (noise_var[of_action] if noise_var.size > 1 else noise_var)[:, None]
            )
            c = np.zeros((*units.shape, k))
            c[:, of_action] = product[..., :k]
            vectors[j, :: self._task_step] = c.reshape(len(units), -1)
            sums[j] = product[..., -2].sum(), (product @ form).sum(), units[:, of_action].sum()
        explained = np.diagonal(total(posterior, vectors).gaussian().cov)
        for feature, (score, full, n), part in zip(features, sums.tolist(), explained.tolist(), strict=True):
            variance = full - part if self._learned else full + part
            if n > 1 and variance > _MIN_RESIDUAL * full:
                z = score / np.sqrt(variance)
                effect = np.sqrt(max(z * z - 1.0, 0.0) / n)
                yield ScoreTest(*feature, float(z), float(effect), float(2.0 * ndtr(-abs(z))))


# least effects that are reported
_VARIATION, _RATIO = 0.1, 1.25  # of noise sds: between groups, and of one group to all
_SLOPE = 0.1  # change of the noise sd with one sd of a number
_EXCESS = 1.0  # kurtosis
_LARGE_EFFECT, _SHIFT = 0.05, 0.1  # noise sds
_SCALE = 1.1  # of residuals
_DISTANCE_RATIO = 1.4  # of squared distances
_MANY = 0.02  # share of tasks
_MAX_NAMED = 3  # tasks or columns in a sentence
_MIN_SD_ROWS = 30  # rows for an estimate of an sd
_HALF = 0.5  # of all squares
ALONG = "noise along numbers"
_GIVE_PRECISIONS = (
    "Intervals are too wide where the noise is small, and too narrow where it is large. Give rows a precision in "
    "proportion to 1 / noise variance (precision=, --precision), and fit again."
)


class Misfit(NamedTuple):
    """Result of a test: its kind, p, effect size, and the sentence to report, or None where the effect is too small."""

    kind: str
    p: float
    effect: float
    finding: str | None


class Outlier(NamedTuple):
    """A row whose reward is far from its prediction by all other rows: number, task, standardised residual, and place.

    The place is such as "line 3 of 'log.csv'"; None where it is not known.
    """

    row: int
    task: Any
    residual: float
    place: str | None = None

    @property
    def text(self) -> str:
        """The place, or the number, and the task."""
        place = f"row {self.row:,}" if self.place is None else self.place
        return f"{place}{' (counted from 0)' if place.startswith('row') else ''}, task {plain(self.task)!r}"


def or_inverse(ratio: float) -> float:
    """Return the ratio or its inverse, whichever is larger."""
    return max(ratio, 1.0 / max(ratio, 1e-9))


def of_values(values: Sequence[float], partitions: Sequence[tuple[str, Residuals]], sd: float) -> Misfit:
    """Test for few distinct rewards; no sentence where their sd is the same in all groups of each partition."""
    if len(values) == 1:
        text = f"All rewards are {values[0]:g}: there is nothing to learn from them."
        return Misfit("few values", 0.0, 1.0, text)
    description = (
        f"two values only, {values[0]:g} and {values[1]:g}"
        if len(values) == 2
        else f"{len(values)} values only"
    )
    ends = {}
    for kind, groups in partitions:
        sds = groups.sd[groups.rows >= _MIN_SD_ROWS] / max(sd, 1e-300)
        if sds.size > 1:
            ends[kind] = float(sds.min()), float(sds.max())
    differ = {kind for kind, (low, high) in ends.items() if high > (1.0 + _VARIATION) * low}
    between = ""
    if "action" in differ:
        low, high = ends["action"]
        between = f" (by action {low:.2g} to {high:.2g} times that of all rows)"
    text = (
        f"Rewards take {description}. Their variance then depends on their mean{between}, while the model has one noise"
        " variance. Estimates of means remain valid; their intervals are too wide where rewards vary little and too "
        "narrow where they vary much. Do not use intervals for single rewards."
    )
    return Misfit("few values", 0.0, float(len(values)), None if ends and not differ else text)


def of_scale(residuals: Residuals, inflation: float, learned_rows: float) -> Misfit:
    """Test for rewards that vary more or less than the model predicts."""
    sd, p = wrong_scale(residuals, inflation, np.inf if residuals.learned else max(learned_rows, 1.0))
    where = "" if residuals.learned else ", and than those that it was learned from"
    text = (
        f"Rewards vary {'more' if sd > 1 else 'less'} than the model says{where}: residuals are {sd:.2g} times as "
        "large as expected. Is noise_var right, and are all rewards in the same unit?"
    )
    return Misfit("scale", p, sd, text if or_inverse(sd) >= _SCALE else None)


def of_noise(
    kind: str, groups: Residuals, test: NoiseTest, names: Sequence[Any] | NDArray[Any], level: float
) -> Misfit:
    """Test for noise that differs between groups with these ``names``."""
    ratio = groups.sd / max(float(groups.all.sd[0]), 1e-300)
    ratio_or_inverse = np.maximum(ratio, 1.0 / np.maximum(ratio, 1e-9))
    single = test.p_by_group * len(names)
    p = min(2.0 * min(test.p, float(single.min())), 1.0)
    clear = np.flatnonzero((single <= level) & (ratio_or_inverse >= _RATIO))
    clear = clear[ordered(single[clear])]
    if clear.size:
        examples = ", ".join(
            f"{plain(names[g])!r} (sd {ratio[g]:.2g} times that of all rows)"
            for g in clear[:_MAX_NAMED].tolist()
        )
        more = f" and {clear.size - _MAX_NAMED:,} more" if clear.size > _MAX_NAMED else ""
        size = f"most clearly in {kind} {examples}{more}"
    else:
        size = f"its sd varies by {test.variation:.0%} of its mean"
    matters = min(test.variation, _variation(groups)) >= _VARIATION or clear.size
    text = f"Noise differs between {kind}s: {size}. {_GIVE_PRECISIONS}"
    return Misfit(f"noise by {kind}", p, test.variation, text if matters else None)


def _variation(groups: Residuals) -> float:
    """Return the sd of the sds of groups by their mean; small where groups differ in the shape of noise alone."""
    rows = groups.of("rows")
    mean = float(rows @ groups.sd) / max(float(rows.sum()), 1.0)
    return float(np.sqrt(rows @ (groups.sd - mean) ** 2 / max(float(rows.sum()), 1.0))) / max(mean, 1e-300)


def of_noise_along(gram: Array, inflation: float, columns: Sequence[str]) -> Misfit:
    """Test for noise that changes with a context column or with the prediction."""
    p, effect = noise_along(gram, inflation)
    index = int(ordered(p, -np.abs(effect))[0])
    name = f"column {columns[index]!r}" if index < len(columns) else "the predicted reward"
    change = f"the noise sd changes by {effect[index]:+.0%} for each standard deviation of {name}"
    text = f"Noise changes with {name}: {change}. {_GIVE_PRECISIONS}"
    matters = abs(effect[index]) >= _SLOPE
    return Misfit(ALONG, min(p.size * float(p[index]), 1.0), float(effect[index]), text if matters else None)


def outweighing(residuals: Residuals, outliers: Sequence[Outlier]) -> float:
    """Return the share of one row in the squares of all residuals, where it is more than a half; else 0."""
    square = float(residuals.of("square").sum())
    share = outliers[0].residual ** 2 / square if outliers and square > 0 else 0.0
    return share if share > _HALF else 0.0


def of_tails(partitions: Sequence[Residuals], along: float, outliers: Sequence[Outlier]) -> Misfit | None:
    """Test for heavy tails within the groups of every partition; None where rows are too few.

    ``along`` is the relative change of the noise sd with one sd of a number, which makes tails heavy by itself:
    residuals with log sd ~ N(0, b^2) have the excess kurtosis 3 (exp(4 b^2) - 1).
    """
    tails = heavy_tails(partitions) or heavy_tails([partitions[0].all])
    if tails is None:
        return None
    if share := outweighing(partitions[0].all, outliers):
        text = (
            f"The reward of {outliers[0].text}, lies {outliers[0].residual:+.3g} noise sds from "
            f"its prediction by all other rows, and makes up {share:.0%} of the sum of squared residuals. It widens "
            "all intervals and masks other faults. Is it an error, or does it stand for a missing value? Correct it or "
            "leave that row out, and fit again."
        )
        return Misfit("heavy tails", tails.p, tails.excess, text)
    worst = ""
    if outliers:
        worst = f"; the largest residual, {outliers[0].residual:+.3g} sds, is that of {outliers[0].text}"
    text = (
        f"Rewards have heavy tails (excess kurtosis {tails.excess:.2g}{worst}). A few rows have much influence on "
        "all estimates. Check them for errors, clip rewards, or take their logarithm."
    )
    excess_beyond_noise = tails.excess - 3.0 * np.expm1(4.0 * min(along * along, 4.0))
    return Misfit("heavy tails", tails.p, tails.excess, text if excess_beyond_noise >= _EXCESS else None)


def of_level(score_tests: Sequence[ScoreTest], actions: Sequence[Any] | None) -> Misfit | None:
    """Test for a shift of rewards, in rows that were not learned from."""
    tests = [test for test in score_tests if test.column < 0]
    if not tests:
        return None
    worst, matters = _worst(tests)
    text = (
        f"Rewards{_of(worst, actions)} are {'above' if worst.score > 0 else 'below'} their predictions, by "
        f"{worst.effect:.2g} noise sds on average. Have rewards changed over time, or their unit?"
    )
    return Misfit("level", min(len(tests) * worst.p, 1.0), worst.effect, text if matters else None)


def of_curvature(
    score_tests: Sequence[ScoreTest], columns: Sequence[str], actions: Sequence[Any] | None, level: float
) -> Misfit | None:
    """Test for a mean reward that is curved along a context column."""
    tests = [test for test in score_tests if test.column >= 0]
    if not tests:
        return None
    worst, matters = _worst(tests)
    others = {columns[e.column] for e in tests if e.effect >= _LARGE_EFFECT and e.p * len(tests) <= level}
    others.discard(columns[worst.column])
    more = f" It also curves along {', '.join(map(repr, sorted(others)[:_MAX_NAMED]))}." if others else ""
    text = (
        f"The mean reward{_of(worst, actions)} curves {'up' if worst.score > 0 else 'down'} along column "
        f"{columns[worst.column]!r}, where the features are linear, by {worst.effect:.2g} noise sds (root mean "
        f"square).{more} Add the square of the column, or transform it."
    )
    return Misfit("curvature", min(len(tests) * worst.p, 1.0), worst.effect, text if matters else None)


def _worst(tests: Sequence[ScoreTest]) -> tuple[ScoreTest, bool]:
    large = [test for test in tests if test.effect >= _LARGE_EFFECT]
    candidates = large or tests
    index = ordered([test.p for test in candidates], [-test.effect for test in candidates])[0]
    return candidates[int(index)], bool(large)


def _of(test: ScoreTest, actions: Sequence[Any] | None) -> str:
    return "" if test.action < 0 or actions is None else f" of action {actions[test.action]!r}"


def of_actions(groups: Residuals, actions: Sequence[Any]) -> Misfit:
    """Test for an action whose rewards differ from their predictions, in rows that were learned from."""
    t = np.abs(groups.of("total")) / np.sqrt(np.maximum(groups.of("rows"), 1.0))
    a = int(first_largest(t))
    mean = float(groups.mean[a])
    text = (
        f"Rewards of action {actions[a]!r} differ from their predictions by {mean:+.2g} noise sds on average: the "
        "features do "
        "not distinguish it from the others. Give it a feature of its own."
    )
    p = min(2.0 * t.size * float(ndtr(-t[a])), 1.0)
    return Misfit("level by action", p, mean, text if abs(mean) >= _SHIFT else None)


def of_tasks(distances: TaskDistances, keys: Keys, level: float) -> list[Misfit]:
    """Test for tasks unlike the others, and for more or less variation between tasks than Sigma_0 implies."""
    p, count = distances.p, int((distances.free > 0).sum())
    s = int(first_smallest(p))
    beyond = int((p * count <= level).sum())
    name = plain(keys.values[s])
    square, expected = distances.square[s], distances.free[s]
    far = f"its squared distance to their prediction is {square:.3g}, where about {expected} is expected"
    if beyond > max(_MAX_NAMED, _MANY * count):
        text = (
            f"{beyond:,} of {count:,} tasks are too far from their prediction by the others, {name!r} the most ({far})"
            ": tasks vary in ways that task_cov does not allow. Learn a task_cov of another shape, or describe tasks "
            "by "
            "levels or metadata."
        )
    else:
        others = beyond - 1
        more = (
            f", and {others:,} more {agreeing(others, 'is', 'are')} too far or_inverse" if others > 0 else ""
        )
        text = (
            f"Task {name!r} is unlike the others: {far}{more}. Does it belong to the same population? It inflates the "
            "variation between tasks. Leave it out, or give it a group of its own."
        )
    ratio, ratio_p = distances.ratio(p * count > level)  # the outlying tasks are reported above
    variation = (
        f"Tasks differ {'more' if ratio > 1 else 'less'} than task_cov says: squared distances are {ratio:.2g} times "
        "those expected. Learn task_cov from the log."
    )
    effect = float(distances.square[s] / max(distances.free[s], 1))
    return [
        Misfit("unlike task", min(count * float(p[s]), 1.0), effect, text),
        Misfit(
            "likeness",
            ratio_p,
            ratio,
            variation if or_inverse(ratio) >= _DISTANCE_RATIO and not beyond else None,
        ),
    ]
