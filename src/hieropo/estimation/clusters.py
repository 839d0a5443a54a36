"""Correlations of rewards within clusters, learned by EM.

The mean residual of each cluster c, of n_c rows of action a, tells rho_a, and so do the residuals about these means.
Given the log, let

    B_c = E (sum_i e_i)^2 / n_c,  W_a = E sum_i e_i^2 - sum_c B_c,  e_i = r_i - phi_i' theta_s

over the posterior of theta_s under the rho so far. The next rho_a maximises the expected log density of the errors,

    -1/2 [(N_a - C_a) log(1 - rho) + sum_c log(1 - rho + n_c rho) + N_a log v(rho)]
    v(rho) = [W_a / (1 - rho) + sum_c B_c / (1 - rho + n_c rho)] / N_a

for N_a rows in C_a clusters. Actions share strength: rho_a is drawn to the common rho, which maximises the sum over
actions, by a normal density of standard deviation 0.15. The hierarchy is learned anew for each rho. The search starts
at the rho that clusters of one unit tell by an analysis of variance, and its steps are extrapolated by secants. All rho
are 0 where twice the log evidence with them is not log C above that without, for C clusters (the criterion of Schwarz);
and where moments are kept per action, and actions were drawn for each row, not for each cluster.

Where units have thousands of clusters beyond the first of each, the analysis of variance alone tells rho, without any
hierarchy (:func:`by_variances`).

The crossed prior integrates rho instead where it can (:mod:`crossed.correlation`), around the mode that is found here.

Sources: Dempster, Laird and Rubin, JRSS B 39, 1977; Searle, Casella and McCulloch, Variance Components, 1992, 8.3;
Schwarz, Annals of Statistics 6, 1978.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import packed_size, triangle
from hieropo._utils.progress import say
from hieropo.moments.clusters import ClusterSums, correlated
from hieropo.moments.statistics import Moments
from hieropo.rows.task_hash import of_least_hashes

_LARGEST = 0.99  # correlation
_SPREAD = 0.15  # standard deviation of the correlations of actions around the common one
_ENOUGH = 0.002  # change of every correlation at which the search ends
_MOST_STEPS = 25
_SLOWEST = 0.2  # share of the distance to the mode that a step of EM is taken for at least
_FEWEST_TASKS, _CLUSTERS = 200, 10_000  # of the part that EM learns from
VARIANCES_OF = 30_000  # clusters of the part whose variances are analysed
_LEAST_FREE = 20.0  # degrees of freedom between and within clusters from which these tell where to start
_ENOUGH_FREE = 3_000.0  # of all actions, from which these tell rho; log(B / W) has a standard error of .026
_FREE_OF_ACTION = 100.0  # of each action, where actions have correlations of their own
_ROUNDS = 3  # of the precisions of variances, which depend on the correlation
_CONSTANT = 1e-9  # relative differences of features that are rounding errors
_CERTAIN = 12.0  # standard errors of log(B / W) from which there is a correlation


def learn_correlations(
    moments: Moments, clusters: ClusterSums, learn: Callable[[Moments], Any], *, in_parts: bool = False
) -> Array:
    """Return rho of each action (K,), or of all rows (1,) where moments are not kept per action.

    Parameters
    ----------
    moments : Moments
        Of the rows, taken as independent.
    clusters : ClusterSums
        Of the same rows.
    learn : callable
        Returns the posterior that is learned from other moments, with its evidence.
    in_parts : bool
        True where a part of the tasks may be learned from: one with some 30,000 clusters for variances, or 10,000 for
        EM, and at least 200 tasks. A hash of their ids chooses them, so that the order of tasks does not matter.
    """
    if in_parts:
        moments, clusters = _part(moments, clusters, VARIANCES_OF)
    if (clusters.size <= 1.0).all() or (moments.per_action and not clusters.drawn_once):
        return np.zeros(moments.n_actions)
    by_analysis = by_variances(moments, clusters)
    if by_analysis is not None:
        return by_analysis
    if in_parts:
        moments, clusters = _part(moments, clusters, _CLUSTERS)
    found = search_correlations(moments, clusters, learn)
    if np.isnan(found.without):
        found = found._replace(without=learn(moments).log_evidence)
    return found.rho if _gain(found) > np.log(clusters.size.size) else np.zeros_like(found.rho)


def _gain(found: "Found") -> float:
    """Return twice the gain of log evidence at the last correlations of a search, which are near the mode."""
    return 2.0 * float(found.posterior.log_evidence - found.without)


def _part(moments: Moments, clusters: ClusterSums, most: int) -> tuple[Moments, ClusterSums]:
    """Return the tasks of the least hashes that have about so many sums of clusters; all where there are not more."""
    enough = tasks_to_learn_from(len(moments), clusters.size.size, most)
    if len(moments) <= enough:
        return moments, clusters
    rows = of_least_hashes(moments.tasks, enough)
    units = (rows[:, None] * moments.n_actions + np.arange(moments.n_actions)).reshape(-1)
    return moments.at(rows), clusters.of_units(units, moments.unit_rows.size)


class Found(NamedTuple):
    """Correlations (K,) at their mode, the last posterior of the search, and the log evidence without correlation.

    The last is NaN where the search did not start there, and -inf where clusters certainly differ.
    """

    rho: Array
    posterior: Any
    without: float


def search_correlations(moments: Moments, clusters: ClusterSums, learn: Callable[[Moments], Any]) -> Found:
    """Return the correlations at the mode of the expected log density, by EM; as :func:`learn_correlations`.

    The search starts at those that clusters of one unit tell without a hierarchy.
    """
    rho, certain = between_clusters(moments, clusters)
    before, without = None, -np.inf if certain else np.nan
    for step in range(_MOST_STEPS):
        say(f"Learning the correlation of rewards within clusters, step {step + 1} ...")
        posterior = learn(correlated(moments, clusters, rho))
        if not rho.any():
            without = posterior.log_evidence
        table = posterior.table()
        row = np.asarray(table.keys.require(moments.tasks))
        means = np.asarray(table.means)[row].reshape(-1, moments.unit_dim)
        covs = np.asarray(table.covs)[row].reshape(len(means), -1)
        new = _Residuals.of(moments, clusters, means, covs).correlations()
        change = new - rho
        if np.abs(change).max() < _ENOUGH:
            break
        remaining = np.ones_like(rho)  # share of the distance to the mode that a step of EM takes
        if before is not None:
            moved, less = rho - before[0], before[1] - change
            remaining = np.clip(np.divide(less, moved, out=remaining, where=moved != 0), _SLOWEST, 1.0)
        before = rho, change
        rho = np.clip(rho + change / remaining, 0.0, _LARGEST)
    return Found(new, posterior, without)


def between_clusters(moments: Moments, clusters: ClusterSums) -> tuple[Array, bool]:
    """Return a correlation for all rows (K,) from clusters of the same unit, and True where there certainly is one.

    Of N rows in C clusters in U units, the mean rewards of clusters about those of their unit have the mean square B,
    and rows about their cluster W, of expectation

        E W = s^2 (1 - rho)      E B = E W + n s^2 rho      n = (N - sum_u sum_c n_c^2 / N_u) / (C - U)

    where features are constant. Else rho is too large, and nothing is certain; a search starts there. B / W has the F
    distribution where rho is 0: log(B / W) is then about normal, of variance 2 / (C - U) + 2 / (N - C).
    """
    all_units = np.zeros(moments.unit_rows.size, dtype=np.int64)
    of_all = _Variances.of(moments, clusters, all_units)
    free, within, ratio, size = (float(values[0]) for values in of_all)
    zero = np.zeros(moments.n_actions)
    if free < _LEAST_FREE or within < _LEAST_FREE or not ratio > 1.0:
        return zero, False
    odds = (ratio - 1.0) / size
    certain = np.log(ratio) > _CERTAIN * np.sqrt(2.0 / free + 2.0 / within)
    return zero + min(odds / (1.0 + odds), _LARGEST), bool(certain) and moments.unit_dim == 1


class _Variances(NamedTuple):
    """Analysis of variance within units, for G groups of units; of a group without information ``ratio`` is NaN.

    Attributes
    ----------
    free, within : (G,) array
        Degrees of freedom between and within clusters.
    ratio : (G,) array
        B / W.
    size : (G,) array
        n.
    """

    free: Array
    within: Array
    ratio: Array
    size: Array

    @classmethod
    def of(cls, moments: Moments, clusters: ClusterSums, group: Codes) -> "_Variances":
        """Return that of units in the groups (units,), from the number 0 on."""
        p, n, unit = moments.unit_dim, clusters.size, clusters.unit
        count, of_cluster = int(group.max()) + 1, group[unit]

        def by_group(values: Array) -> Array:
            return np.asarray(np.bincount(of_cluster, values, count), dtype=np.float64)

        rows = np.bincount(unit, n, group.size)
        reward = clusters.sums[:, p]
        seen = np.bincount(group, np.bincount(unit, minlength=group.size) > 0, count)
        square = np.bincount(group, moments.unit_sums[:, packed_size(p + 1) - 1], count)
        means = np.square(np.bincount(unit, reward, group.size)) / np.maximum(rows, np.finfo(np.float64).tiny)
        total, of_clusters = by_group(n), by_group(reward**2 / n)
        free, within = by_group(np.ones_like(n)) - seen, total - by_group(np.ones_like(n))
        with np.errstate(divide="ignore", invalid="ignore"):
            between_square = (of_clusters - np.bincount(group, means, count)) / free
            ratio = between_square / ((square - of_clusters) / within)
            size = (total - by_group(n**2 / rows[unit])) / free
        usable = (free >= 1.0) & (within >= 1.0) & np.isfinite(ratio) & (ratio > 0.0) & (size > 0.0)
        return cls(free, within, np.where(usable, ratio, np.nan), size)


def by_variances(moments: Moments, clusters: ClusterSums) -> Array | None:
    """Return the correlations (K,) that an analysis of variance within units tells; None where it tells too little.

    With B_a, W_a and n_a of the units of action a, as of :func:`between_clusters`, and f_a and w_a degrees of freedom
    between and within clusters,

        o_a = (B_a / W_a - 1) / n_a  estimates  rho_a / (1 - rho_a)
        var o_a = (1 / n_a + o_a)^2 (2 / f_a + 2 / w_a)

    where features are constant, whatever the hierarchy. With the mean o of o_a by 1 / var o_a, all rho are 0 unless o
    is positive and o^2 / var o at rho = 0 is above log C, for C clusters. Actions have correlations of their own where
    sum_a (o_a - o)^2 / var o_a is above (K - 1) log C: twice the log likelihood ratios of normal o_a, by the criterion
    of Schwarz. f_a is (C_a - U_a) for U_a units with rows; where sizes of clusters differ it is smaller by the square
    of the mean of 1 - rho + n_c rho over its mean square, as Satterthwaite has it.

    Source: Searle, Casella and McCulloch, Variance Components, 1992, 3.6; Satterthwaite, Biometrics Bulletin 2, 1946.
    """
    if not _constant_features(clusters):
        return None
    K, C = moments.n_actions, clusters.size.size
    of_actions = _Variances.of(moments, clusters, np.arange(moments.unit_rows.size) % K)
    told = np.isfinite(of_actions.ratio)
    free, within, ratio, n = (values[told] for values in of_actions)
    if min(free.sum(), within.sum()) < _ENOUGH_FREE:
        return None
    odds = (ratio - 1.0) / n
    precision = n**2 / (2.0 / free + 2.0 / within)  # at rho = 0
    common = float(precision @ odds / precision.sum())
    if common <= 0.0 or common**2 * precision.sum() <= np.log(C):
        return np.zeros(K)
    for _ in range(_ROUNDS):
        effective = free * _equality(clusters, common, K)[told]
        precision = 1.0 / ((1.0 / n + common) ** 2 * (2.0 / effective + 2.0 / within))
        common = max(float(precision @ odds / precision.sum()), 0.0)
    if effective.sum() < _ENOUGH_FREE:
        return None
    of_action = np.full(K, common)
    if float(precision @ (odds - common) ** 2) > (odds.size - 1) * np.log(C):
        if not told[clusters.action].all() or effective.min() < _FREE_OF_ACTION:
            return None
        of_action[told] = np.maximum(odds, 0.0)
    return np.minimum(of_action / (1.0 + of_action), _LARGEST)


def _constant_features(clusters: ClusterSums) -> bool:
    """Return True for one feature that is the same in all rows, as an intercept alone is."""
    if clusters.sums.shape[1] != 3:
        return False
    feature = clusters.sums[:, 0] / clusters.size
    return bool(np.ptp(feature) <= _CONSTANT * np.abs(feature).max())


def _equality(clusters: ClusterSums, odds: float, actions: int) -> Array:
    """Return the square of the mean of 1 + n_c o over the mean square, for the clusters of each action (K,)."""
    weight = 1.0 + clusters.size * odds
    total, squares, count = (
        np.bincount(clusters.action, values, actions) for values in (weight, weight**2, np.ones_like(weight))
    )
    return np.asarray(total**2 / np.maximum(count * squares, np.finfo(np.float64).tiny))


def tasks_to_learn_from(tasks: int, sums: int, most: int) -> int:
    """Return how many tasks suffice to learn correlations: those with about ``most`` of the sums of clusters."""
    return max(_FEWEST_TASKS, int(tasks * most / max(sums, 1)))


class _Terms(NamedTuple):
    """Expected squares of an action: rows N, W, and for each size n of clusters their number and their sum of B."""

    rows: float
    within: float
    size: Array
    times: Codes
    between: Array


@dataclass(frozen=True, eq=False)
class _Residuals:
    """Expected squares of residuals: rows N, squares about clusters W and clusters of each action; n_c and B_c."""

    rows: Array
    within: Array
    action: Codes
    size: Array
    between: Array

    @classmethod
    def of(cls, moments: Moments, clusters: ClusterSums, means: Array, covs: Array) -> "_Residuals":
        """Return those under means (units, p) and packed covariances (units, q) of the coefficients of each unit."""
        p, K = moments.unit_dim, moments.n_actions
        offset = 0.0 if moments.unit_offset is None else moments.unit_offset
        theta = means - offset
        i, j = triangle(p)
        twice = np.where(i == j, 1.0, 2.0)
        sums = moments.unit_sums
        gram, cross, square = sums[:, : i.size], sums[:, i.size : i.size + p], sums[:, i.size + p]
        total = square - 2.0 * (theta * cross).sum(axis=1)
        total = total + (gram * twice * (theta[:, i] * theta[:, j] + covs)).sum(axis=1)
        phi, n = clusters.sums[:, :p], clusters.size
        residual = clusters.sums[:, p] - (phi * theta[clusters.unit]).sum(axis=1)
        spread = (phi[:, i] * phi[:, j] * twice * covs[clusters.unit]).sum(axis=1)
        between = (np.square(residual) + np.maximum(spread, 0.0)) / n
        action = np.arange(sums.shape[0]) % K
        rows = np.bincount(action, moments.unit_rows, K).astype(np.float64)
        within = np.bincount(action, total, K) - np.bincount(clusters.action, between, K)
        return cls(rows, np.maximum(within, 0.0), clusters.action, n, between)

    def correlations(self) -> Array:
        """Return the rho of each action that maximises the expected log density."""
        actions = [k for k in range(self.rows.size) if self.rows[k] > 0]
        terms = {k: self._of(k) for k in actions}
        common = _least(lambda rho: sum(self._negative(terms[k], rho) for k in actions))
        rho = np.full(self.rows.size, common)
        for k in actions if len(actions) > 1 else ():
            rho[k] = _least(partial(self._drawn, terms[k], common))
        return rho

    def _of(self, action: int) -> _Terms:
        """Return N, W, the sizes n of clusters, their numbers, and the sums of B over the clusters of a size."""
        some = self.action == action
        size, place = np.unique(self.size[some], return_inverse=True)
        place = place.reshape(-1)
        times, between = np.bincount(place), np.bincount(place, self.between[some]).astype(np.float64)
        return _Terms(float(self.rows[action]), float(self.within[action]), size, times, between)

    @classmethod
    def _drawn(cls, terms: _Terms, common: float, rho: float) -> float:
        """Return minus twice the log density of an action whose correlation is drawn to the common one."""
        return cls._negative(terms, rho) + ((rho - common) / _SPREAD) ** 2

    @staticmethod
    def _negative(terms: _Terms, rho: float) -> float:
        """Return minus twice the expected log density of an action."""
        rows, within, size, times, between = terms
        of_means = 1.0 - rho + size * rho
        variance = (within / (1.0 - rho) + float((between / of_means).sum())) / rows
        if variance <= 0.0:
            return 0.0
        log_det = (rows - times.sum()) * np.log1p(-rho) + float(times @ np.log(of_means))
        return float(log_det + rows * np.log(variance))


def _least(negative: Callable[[float], float]) -> float:
    """Return rho in [0, 0.99] where a function is least, 0 where nothing is below it there."""
    grid = np.linspace(0.0, _LARGEST, 34)
    values = [negative(rho) for rho in grid]
    best = int(np.argmin(values))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)]
    from scipy.optimize import minimize_scalar  # a quarter of the import of this package

    result = minimize_scalar(negative, bounds=(low, high), method="bounded", options={"xatol": 1e-6})
    return float(result.x) if result.fun < values[0] else 0.0
