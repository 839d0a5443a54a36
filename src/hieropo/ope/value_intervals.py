"""Intervals for statistics that are sums of ratios of means, from sums over tasks alone.

With z_i (k,) known of every row and Z their sum, a statistic sum_j (a_j' Z) / (b_j' Z) moves, to first order, by g' z_i
when row i comes in, with

    g = sum_j (a_j - rho_j b_j) / (b_j' Z),   rho_j = (a_j' Z) / (b_j' Z),   g' Z = 0

So its variance is g' (sum_i z_i z_i') g where rows are independent, and sum_s (g' Z_s)^2, Z_s the sum of a task, where
only tasks are. An end of an interval is the farther of two: t's, and that of a studentised bootstrap (Hall, The
Bootstrap and Edgeworth Expansion, 1992), which follows the skewness that rare rewards and large weights bring; t's is
the safer where tails are heavy on both sides.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.ties import reaches
from hieropo.errors import InputError

FEW_TASKS = 30  # below, rows are taken as independent
_GROUPS = (
    401  # into which tasks are dealt where there are more: their sums have the skewness of the whole as well
)
_FEW_GROUPS = 20  # below, they tell nothing of it
_DRAWS = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class Ratios:
    """base + sum_j (a_j' Z) / (b_j' Z).

    Parameters
    ----------
    above, below : (J, k) array
        a_j and b_j.
    base : float
        A number that does not vary, such as the least reward, kept apart since it would take digits off the rest.
    """

    above: Array
    below: Array
    base: float = 0.0

    def value(self, total: Array) -> Array:
        """Return the statistic for sums Z (..., k)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found: Array = ((total @ self.above.T) / (total @ self.below.T)).sum(axis=-1)
        return self.base + found

    def slope(self, total: Array) -> Array:
        """Return g (..., k): the statistic moves by g' z_i when row i comes in."""
        over = total @ self.below.T
        ratio = (total @ self.above.T) / over
        found: Array = (1 / over) @ self.above - (ratio / over) @ self.below
        return found

    def minus(self, other: "Ratios") -> "Ratios":
        """Return the difference of two statistics."""
        above, below = np.concatenate([self.above, -other.above]), np.concatenate([self.below, other.below])
        return Ratios(above, below, self.base - other.base)

    def times(self, factor: float) -> "Ratios":
        """Return a multiple of the statistic."""
        return Ratios(factor * self.above, self.below, factor * self.base)


@dataclass(frozen=True, slots=True)
class Interval:
    """A statistic, its standard error and an interval.

    Attributes
    ----------
    value, se, low, high : float
    by : {"tasks", "rows"}
        What was taken as independent.
    """

    value: float
    se: float
    low: float
    high: float
    by: str


@dataclass(frozen=True, eq=False)
class Sample:
    """Sums of rows that give the spread of statistics.

    Tasks are taken as independent where they are as good as 30 or more of equal size, (sum n_s)^2 / sum n_s^2;
    otherwise rows are, and then nothing is said of tasks that are not among them.

    Parameters
    ----------
    tasks : (m, k) array
        Z_s of each task; the last entry counts rows, n_s.
    squares : (k, k) array
        sum z z' over all rows.
    groups : (B, k) array
        Sums of z over groups of rows.
    rng : numpy Generator
        For the bootstrap.
    """

    tasks: Array
    squares: Array
    groups: Array
    rng: np.random.Generator

    @cached_property
    def total(self) -> Array:
        """Z, (k,)."""
        return np.asarray(self.tasks.sum(axis=0))

    @cached_property
    def effective_tasks(self) -> float:
        """(sum n_s)^2 / sum n_s^2."""
        rows = self.tasks[:, -1]
        squares = float(rows @ rows)
        return float(rows.sum()) ** 2 / squares if squares > 0 else 0.0

    @property
    def by(self) -> str:
        """The units that are taken as independent, "tasks" or "rows"."""
        return "tasks" if reaches(self.effective_tasks, FEW_TASKS) else "rows"

    def variance(self, ratios: Ratios) -> float:
        """Variance of a statistic."""
        g = ratios.slope(self.total)
        if self.by == "tasks":
            m = np.count_nonzero(self.tasks[:, -1])
            return float(((self.tasks @ g) ** 2).sum()) * m / (m - 1)
        n = float(self.total[-1])
        return max(float(g @ self.squares @ g), 0.0) * n / max(n - 1.0, 1.0)

    def interval(self, ratios: Ratios, level: float) -> Interval:
        """Return an interval of which ``level`` are to hold the truth.

        Raises
        ------
        InputError
            The level is no probability.
        """
        from scipy.special import stdtrit

        if not 0.0 < level < 1.0:
            raise InputError(f"level={level!r} is not a probability in (0, 1).")
        if (self.total @ ratios.below.T == 0).any():  # no weight at all
            return Interval(np.nan, np.inf, -np.inf, np.inf, self.by)
        value, se = float(ratios.value(self.total)), float(np.sqrt(self.variance(ratios)))
        dof = max((self.effective_tasks if self.by == "tasks" else float(self.total[-1])) - 1.0, 1.0)
        below = above = float(stdtrit(dof, (1 + level) / 2))
        t = self.studentised(ratios) if se > 0 else np.zeros(0)
        if t.size > _DRAWS / 2:
            low, high = np.quantile(t, [(1 - level) / 2, (1 + level) / 2])
            below, above = max(below, float(high)), max(above, -float(low))
        return Interval(value, se, value - below * se, value + above * se, self.by)

    def studentised(self, ratios: Ratios) -> Array:
        """Draw (statistic* - statistic) / se*, of groups drawn with replacement; none where there are few."""
        times, groups = self._times, self._dealt
        if not times.size:
            return np.zeros(0)
        J = len(ratios.above)
        parts = groups @ np.concatenate([ratios.above, ratios.below]).T
        own = Ratios(np.eye(2 * J)[:J], np.eye(2 * J)[J:])
        totals = times @ parts
        squares = times @ (parts[:, :, None] * parts[:, None, :]).reshape(len(parts), 4 * J * J)
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = own.slope(totals)
            spread = np.einsum("bi,bij,bj->b", slope, squares.reshape(-1, 2 * J, 2 * J), slope)
            centre = own.value(parts.sum(axis=0))
            # Less than rounding leaves of a spread is none.
            spread[spread <= 1e-20 * centre**2] = 0.0
            t = (own.value(totals) - centre) / np.sqrt(spread * len(parts) / (len(parts) - 1))
        found: Array = t[np.isfinite(t)]
        return found

    @cached_property
    def _dealt(self) -> Array:
        sums = self.groups
        if self.by == "tasks":
            sums = self.tasks
            if len(sums) > _GROUPS:
                padded = np.zeros((-(-len(sums) // _GROUPS) * _GROUPS, sums.shape[1]))
                padded[: len(sums)] = sums
                sums = padded.reshape(-1, _GROUPS, sums.shape[1]).sum(axis=0)
        return sums[sums[:, -1] > 0]

    @cached_property
    def _times(self) -> Array:
        """Return how often each group is drawn, (draws, groups)."""
        b = len(self._dealt)
        if b < _FEW_GROUPS:
            return np.zeros((0, b))
        return self.rng.multinomial(b, np.full(b, 1 / b), size=_DRAWS).astype(np.float64)


def empirical_bernstein(
    value: float, variance: float, spread: float, n: float, level: float
) -> tuple[float, float]:
    """Interval that holds for any n, of a mean of n independent values whose range is ``spread``.

    mean +- (sqrt(2 variance log(3 / (1 - level)) / n) + 3 spread log(3 / (1 - level)) / n), both sides together
    (Audibert, Munos and Szepesvari, Theoretical Computer Science 410, 2009, theorem 1).

    Parameters
    ----------
    value, variance : float
        Mean and sample variance of one value.
    spread : float
        Largest less smallest value possible.
    n : float
    level : float
    """
    log = float(np.log(3.0 / (1.0 - level)))
    half = float(np.sqrt(2.0 * variance * log / n)) + 3.0 * spread * log / n
    return value - half, value + half
