"""Importance-weighted estimates of a value and of a gain, their intervals, and reasons to withhold them.

With z_i (k,) for every row and Z their sum, a statistic sum_j (a_j' Z) / (b_j' Z) moves, to first order, by g' z_i
when row i comes in, with

    g = sum_j (a_j - rho_j b_j) / (b_j' Z),   rho_j = (a_j' Z) / (b_j' Z),   g' Z = 0

So its variance is g' (sum_i z_i z_i') g where rows are independent, and sum_s (g' Z_s)^2, Z_s the sum of a task, where
only tasks are. An end of an interval is the farther of two: t's, and that of a studentised bootstrap (Hall, The
Bootstrap and Edgeworth Expansion, 1992), which follows the skewness that rare rewards and large weights bring; t's is
the safer where tails are heavy on both sides.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.brief import brief
from hieropo._utils.packed import triangle
from hieropo._utils.text import Report, counted
from hieropo._utils.ties import ROUNDING, exceeds, first_smallest, reaches
from hieropo.errors import InputError
from hieropo.estimation.hyper.importance import pareto_tail
from hieropo.moments.clusters import Clustered
from hieropo.ope.joined_rows import Units
from hieropo.ope.off_policy import OffPolicyMoments, column

FEW_TASKS = 30  # effective tasks below which rows are taken as independent
_GROUPS = 401  # groups of tasks for the bootstrap, where there are more tasks; their sums keep the skewness
_FEW_GROUPS = 20  # groups below which there is no bootstrap
_DRAWS = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class Ratios:
    """The statistic base + sum_j (a_j' Z) / (b_j' Z).

    Parameters
    ----------
    above, below : (J, k) array
        a_j and b_j.
    base : float
        A constant, such as the least reward; kept separate so that it does not reduce the precision of the rest.
    """

    above: Array
    below: Array
    base: float = 0.0

    def value(self, total: Array) -> Array:
        """Return the statistic for sums Z (..., k)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios: Array = ((total @ self.above.T) / (total @ self.below.T)).sum(axis=-1)
        return self.base + ratios

    def slope(self, total: Array) -> Array:
        """Return g (..., k): the statistic moves by g' z_i when row i comes in."""
        denominators = total @ self.below.T
        ratio = (total @ self.above.T) / denominators
        gradient: Array = (1 / denominators) @ self.above - (ratio / denominators) @ self.below
        return gradient

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
    by : {"tasks", "clusters", "rows", "tasks and clusters"}
        The units that are taken as independent.
    """

    value: float
    se: float
    low: float
    high: float
    by: str


@dataclass(frozen=True, eq=False)
class Sample:
    """Sums of rows that give variances and intervals of statistics.

    Tasks are taken as independent where their effective number (sum n_s)^2 / sum n_s^2 is 30 or more. Otherwise rows
    are, or clusters of rows where these are known; intervals then hold for these tasks alone. Where policies are
    cross-fitted, rows of two folds depend on each other if they move the policy of the other's fold. Errors by tasks
    contain this. Of few tasks, the rows, or clusters, in which the policies of the folds differ are one unit for each
    task.

    Where tasks are many and clusters span them, as days do, rows of one task and rows of one cluster depend on each
    other. The variance is then that by tasks plus that by clusters less that by both together, and no less than
    either (Cameron, Gelbach and Miller, Journal of Business & Economic Statistics 29, 2011). Student's t has the
    degrees of freedom of the dimension with fewer units.

    Parameters
    ----------
    tasks : (m, k) array
        Z_s of each task; the last entry counts rows, n_s.
    squares : (k, k) array
        sum z z' over all rows or clusters.
    groups : (B, k) array
        Sums of z over groups of rows.
    rng : numpy Generator
        For the bootstrap.
    clusters : Clustered, optional
        Sums of z over clusters of rows.
    joined : Units, optional
        Rows, those of a task that depend on each other as one.
    """

    tasks: Array
    squares: Array
    groups: Array
    rng: np.random.Generator
    clusters: Clustered | None = None
    joined: Units | None = None

    @cached_property
    def total(self) -> Array:
        """Z, (k,)."""
        return np.asarray(self.tasks.sum(axis=0))

    @cached_property
    def effective_tasks(self) -> float:
        """(sum n_s)^2 / sum n_s^2."""
        return _effective_count(self.tasks[:, -1])

    @property
    def by(self) -> str:
        """The units that are taken as independent: "tasks", "clusters", "rows" or "tasks and clusters"."""
        many = many_tasks(self.tasks[:, -1])
        if self.clusters is None:
            return "tasks" if many else "rows"
        if not many:
            return "clusters"
        return "tasks and clusters" if self.clusters.spans_units else "tasks"

    @cached_property
    def _cluster_totals(self) -> Array:
        assert self.clusters is not None
        return self.clusters.totals

    def variance(self, ratios: Ratios) -> float:
        """Variance of a statistic."""
        g = ratios.slope(self.total)
        if self.by == "tasks":
            return _one_way(self.tasks, g)
        if self.by == "tasks and clusters":
            assert self.clusters is not None
            by_task, by_cluster = _one_way(self.tasks, g), _one_way(self._cluster_totals, g)
            return max(by_task + by_cluster - _one_way(self.clusters.sums, g), by_task, by_cluster)
        n, squares = float(self.total[-1]), self.squares
        if self.clusters is not None:
            n = float(len(self._cluster_totals))
        elif self.joined is not None:
            n, squares = self.joined.number, self.joined.squares
        return max(float(g @ squares @ g), 0.0) * n / max(n - 1.0, 1.0)

    def interval(self, ratios: Ratios, level: float) -> Interval:
        """Return the interval of a statistic at confidence ``level``.

        Raises
        ------
        InputError
            The level is not a probability.
        """
        from scipy.special import stdtrit

        if not 0.0 < level < 1.0:
            raise InputError(f"level={level!r} is not a probability in (0, 1).")
        if (self.total @ ratios.below.T == 0).any():  # no weight at all
            return Interval(np.nan, np.inf, -np.inf, np.inf, self.by)
        value, se = float(ratios.value(self.total)), float(np.sqrt(self.variance(ratios)))
        dof = max(self._effective - 1.0, 1.0)
        below = above = float(stdtrit(dof, (1 + level) / 2))
        t = self.studentised(ratios) if se > 0 else np.zeros(0)
        if t.size > _DRAWS / 2:
            low, high = np.quantile(t, [(1 - level) / 2, (1 + level) / 2])
            below, above = max(below, float(high)), max(above, -float(low))
        return Interval(value, se, value - below * se, value + above * se, self.by)

    def studentised(self, ratios: Ratios) -> Array:
        """Return bootstrap draws of (statistic* - statistic) / se* over groups; none with few groups."""
        draw_counts, groups = self._draw_counts, self._independent_sums
        if not draw_counts.size:
            return np.zeros(0)
        J = len(ratios.above)
        group_sums = groups @ np.concatenate([ratios.above, ratios.below]).T
        statistic = Ratios(np.eye(2 * J)[:J], np.eye(2 * J)[J:])
        totals = draw_counts @ group_sums
        squares = draw_counts @ (group_sums[:, :, None] * group_sums[:, None, :]).reshape(
            len(group_sums), 4 * J * J
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = statistic.slope(totals)
            variances = np.einsum("bi,bij,bj->b", slope, squares.reshape(-1, 2 * J, 2 * J), slope)
            estimate = statistic.value(group_sums.sum(axis=0))
            # A variance below rounding error counts as 0.
            variances[variances <= 1e-20 * estimate**2] = 0.0
            t = (statistic.value(totals) - estimate) / np.sqrt(
                variances * len(group_sums) / (len(group_sums) - 1)
            )
        finite: Array = t[np.isfinite(t)]
        return finite

    @property
    def _effective(self) -> float:
        """The effective number of independent units."""
        if self.by == "rows":
            return float(self.total[-1]) if self.joined is None else self.joined.effective
        if self.by == "tasks":
            return self.effective_tasks
        clusters = _effective_count(self._cluster_totals[:, -1])
        return clusters if self.by == "clusters" else min(self.effective_tasks, clusters)

    @cached_property
    def _independent_sums(self) -> Array:
        sums = self.groups if self.joined is None else self.joined.groups
        if self.by != "rows":
            of_tasks = self.by == "tasks" or (
                self.by != "clusters" and self._effective == self.effective_tasks
            )
            sums = self.tasks if of_tasks else self._cluster_totals
            if len(sums) > _GROUPS:
                padded = np.zeros((-(-len(sums) // _GROUPS) * _GROUPS, sums.shape[1]))
                padded[: len(sums)] = sums
                sums = padded.reshape(-1, _GROUPS, sums.shape[1]).sum(axis=0)
        return sums[sums[:, -1] > 0]

    @cached_property
    def _draw_counts(self) -> Array:
        """Return how often each group is drawn, (draws, groups)."""
        b = len(self._independent_sums)
        if b < _FEW_GROUPS:
            return np.zeros((0, b))
        return self.rng.multinomial(b, np.full(b, 1 / b), size=_DRAWS).astype(np.float64)


def many_tasks(rows: Array) -> bool:
    """Return True where tasks of so many rows (m,) are enough to be taken as the independent units."""
    return reaches(_effective_count(rows), FEW_TASKS)


def _one_way(sums: Array, g: Array) -> float:
    """Return the variance of g' sum_c Z_c for sums Z_c (C, k) of independent units, whose mean is 0."""
    n = int(np.count_nonzero(sums[:, -1]))
    return float(((sums @ g) ** 2).sum()) * n / max(n - 1, 1)


def _effective_count(rows: Array) -> float:
    """Return (sum n)^2 / sum n^2 for the rows n (m,) of units; 0 without rows."""
    squares = float(rows @ rows)
    return float(rows.sum()) ** 2 / squares if squares > 0 else 0.0


def empirical_bernstein(
    value: float, variance: float, spread: float, n: float, level: float
) -> tuple[float, float]:
    """Return an interval of the mean of n independent values whose range is ``spread``, valid for any n.

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


NAMES = ("IPS", "SNIPS", "DM", "DR", "SNDR", "Switch-DR", "DRos", "LS")
FEW_EFFECTIVE = 30.0
_FEW_EVENTS = 5.0
_HANDFUL, _MUCH = 5, 0.5  # so many weights may not make up a larger share of all
_OFF = 0.05  # largest deviation of the mean weight from 1
_KEPT = "its bound needs all rows of a log, and these are a random sample (sampling_weight)"
_DEPENDENT = "its bound needs independent rows, and these form clusters"
_LIKE = 3.0  # largest weight over the median of the largest ones, below which they have no tail
_FLOOR = 20.0  # rows at the least propensity that make it credible as a lower bound of all propensities
_TAIL = 0.7  # index of a generalised Pareto distribution above which the mean of the weights is not estimable


@dataclass(frozen=True, slots=True)
class ValueEstimate(Report):
    """One importance-weighted estimate of the value and the gain of a policy.

    Attributes
    ----------
    name : str
    value, se, low, high : float
        Value of the policy in reward units, standard error and interval. DM has none: the rows do not
        show the error of its predictions. The interval of IPS includes that of SNIPS: IPS does not notice when large
        weights happen to be missing from the log, and the mean weight does. The intervals of Switch-DR and DRos are
        those of DR, since the bias of cutting weights is not identified otherwise. LS has a lower end alone, valid for
        any distribution of rewards with a known lower bound.
    gain, gain_se, gain_low, gain_high : float
        The same of the difference to the incumbent.
    ess : float
        Effective sample size, (sum w)^2 / sum w^2; all rows for DM. Where rows form clusters, w are their sums.
    by : {"tasks", "clusters", "rows", "tasks and clusters"}
        The units that are taken as independent.
    withheld : str or None
        Reason why it is not to be trusted.
    parameter : float or None
        tau or lambda; infinite where nothing was cut.
    """

    name: str
    value: float
    se: float
    low: float
    high: float
    gain: float
    gain_se: float
    gain_low: float
    gain_high: float
    ess: float
    by: str
    withheld: str | None
    parameter: float | None = None

    __repr__ = brief

    def shown(self) -> "ValueEstimate":
        """Return the estimate as if it could be trusted."""
        return replace(self, withheld=None)


def effective_rows(moments: OffPolicyMoments) -> float:
    """Return the effective sample size of the weights, (sum w)^2 / sum w^2."""
    return _effective(moments, moments.form(w=1.0))


def _effective(moments: OffPolicyMoments, form: Array) -> float:
    """Return (sum y)^2 / sum y^2 for y = form' z."""
    squares = float(form @ moments.squares @ form)
    return float(moments.total @ form) ** 2 / squares if squares > 0 else 0.0


def incumbent(moments: OffPolicyMoments) -> Ratios:
    """Return the mean reward of the log, the value of the incumbent."""
    return Ratios(moments.form(reward=1.0)[None], moments.form(one=1.0)[None], moments.low)


def ratios(moments: OffPolicyMoments, name: str, cut: str | None = None) -> Ratios:
    """Return an estimate as ratios of means; ``cut`` is the column of tau or lambda.

    Raises
    ------
    InputError
        There is no estimate of that name.
    """
    one, w = moments.form(one=1.0), moments.form(w=1.0)
    low = moments.low  # IPS weights it; the others add it at the end
    forms: dict[str, tuple[list[dict[str, float]], list[Array]]] = {
        "IPS": ([{"w r": 1.0, "w": low, "one": -low}], [one]),
        "SNIPS": ([{"w r": 1.0}], [w]),
        "DM": ([{"v": 1.0}], [one]),
        "DR": ([{"v": 1.0, "w e": 1.0}], [one]),
        "SNDR": ([{"v": 1.0}, {"w e": 1.0}], [one, w]),
        "Switch-DR": ([{"v": 1.0, str(cut): 1.0}], [one]),
        "DRos": ([{"v": 1.0, str(cut): 1.0}], [one]),
    }
    if name not in forms:
        raise InputError(f"There is no estimate {name!r}. The names are {list(forms)}.")
    above, below = forms[name]
    return Ratios(np.array([moments.form(**each) for each in above]), np.array(below), low)


def values(
    moments: OffPolicyMoments, *, level: float = 0.95, rng: np.random.Generator
) -> tuple[ValueEstimate, ...]:
    """Return all estimates of the value and the gain.

    Parameters
    ----------
    moments : OffPolicyMoments
    level : float
        Of intervals; of LS the lower end holds with (1 + level) / 2, as one end of the others does.
    rng : numpy Generator
        For the bootstrap.

    Raises
    ------
    InputError
        There are no rows.
    """
    if moments.rows <= 0:
        raise InputError("There are no rows to estimate from. Is the log empty, or are all weights 0?")
    clusters = moments.independent
    squares = moments.squares if clusters is None else clusters.squares
    sample = Sample(moments.sums, squares, moments.groups, rng, clusters, moments.joined)
    names = NAMES[:5] if moments.predicted else NAMES[:2]
    estimates = [_estimate(moments, name, sample, level) for name in names]
    if moments.predicted:
        estimates += [
            _cut(moments, name, estimates[names.index("DR")], sample) for name in ("Switch-DR", "DRos")
        ]
    return (*estimates, _smoothed(moments, sample, level))


def _estimate(moments: OffPolicyMoments, name: str, sample: Sample, level: float) -> ValueEstimate:
    policy, baseline = ratios(moments, name), incumbent(moments)
    value, gain = (sample.interval(ratios_of, level) for ratios_of in (policy, policy.minus(baseline)))
    ess = effective_rows(moments)
    if name == "IPS":
        normalised = ratios(moments, "SNIPS")
        value = _joined(value, sample.interval(normalised, level))
        gain = _joined(gain, sample.interval(normalised.minus(baseline), level))
    if name == "DM":
        value, gain = (
            Interval(ratios_of.value, np.nan, np.nan, np.nan, ratios_of.by) for ratios_of in (value, gain)
        )
        ess = _effective(moments, moments.form(one=1.0))
    return ValueEstimate(
        name, value.value, value.se, value.low, value.high, gain.value, gain.se, gain.low, gain.high, ess,
        value.by, None if name == "DM" else _withheld(moments, sample),
    )  # fmt: skip


def _joined(first: Interval, second: Interval) -> Interval:
    return replace(first, low=min(first.low, second.low), high=max(first.high, second.high))


def _cut(moments: OffPolicyMoments, name: str, dr: ValueEstimate, sample: Sample) -> ValueEstimate:
    """Return DR with large weights cut, at the parameter with the least variance + max(bias^2 - its variance, 0).

    The bias is the difference to DR without a cut. Of parameters with equal errors the one that cuts least is taken.
    """
    kind, grid = {"Switch-DR": ("switch", moments.switch), "DRos": ("shrink", moments.shrink)}[name]
    uncut = ratios(moments, "DR")
    cuts, errors = [uncut], [dr.se**2]
    for parameter_value in grid:  # in descending order
        cut_ratios = ratios(moments, name, column(kind, parameter_value))
        bias = uncut.minus(cut_ratios)
        error = float(bias.value(moments.total)) ** 2 - sample.variance(bias)
        cuts.append(cut_ratios)
        errors.append(sample.variance(cut_ratios) + max(error, 0.0))
    best_index = int(first_smallest(errors))
    best_error, parameter, chosen = errors[best_index], (np.inf, *grid)[best_index], cuts[best_index]
    value = float(chosen.value(moments.total))
    gain_ratios = chosen.minus(incumbent(moments))
    gain = float(gain_ratios.value(moments.total))
    return replace(
        dr, name=name, value=value, se=float(np.sqrt(best_error)), low=min(dr.low, value), high=max(dr.high, value),
        gain=gain, gain_se=float(np.sqrt(sample.variance(gain_ratios) + best_error - sample.variance(chosen))),
        gain_low=min(dr.gain_low, gain), gain_high=max(dr.gain_high, gain), parameter=parameter,
    )  # fmt: skip


def _smoothed(moments: OffPolicyMoments, sample: Sample, level: float) -> ValueEstimate:
    """Return LS: with x >= 0, E prod (1 + lambda x_i) <= (1 + lambda V)^n, so Markov's inequality bounds V from below.

    The estimate takes the least biased of L lambdas, the smallest. The bound is the largest of the bounds of all, each
    at an L-th of the error probability.
    """
    n, low, alpha = moments.rows, moments.low, (1 - level) / 2
    forms = {lam: moments.form(**{column("log", lam): 1.0}) for lam in moments.smoothing}

    def bound(error: float) -> float:
        logs = {lam: float(moments.total @ form) / n for lam, form in forms.items()}
        ends = [np.expm1(log - np.log(len(logs) / error) / n) / lam for lam, log in logs.items()]
        return low + float(max(ends))

    lam, one = min(forms), moments.form(one=1.0)
    value_ratios = Ratios((forms[lam] / lam)[None], one[None], low)
    gain = value_ratios.minus(incumbent(moments))
    incumbent_upper = sample.interval(incumbent(moments), 1 - alpha).high
    return ValueEstimate(
        "LS", float(value_ratios.value(moments.total)), float(np.sqrt(sample.variance(value_ratios))),
        bound(alpha), np.inf,
        float(gain.value(moments.total)), float(np.sqrt(sample.variance(gain))), bound(alpha / 2) - incumbent_upper,
        np.inf,
        effective_rows(moments), sample.by, _unbounded(moments) or _unsupported(moments, sample), lam,
    )  # fmt: skip


def _unbounded(moments: OffPolicyMoments) -> str | None:
    """Return the reason why no bound for independent rows holds."""
    return _KEPT if moments.sampled else None if moments.clusters is None else _DEPENDENT


def bernstein(
    moments: OffPolicyMoments, largest: float, *, level: float = 0.95
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return intervals of IPS for the value and the gain that hold for any number of independent rows.

    Parameters
    ----------
    moments : OffPolicyMoments
    largest : float
        Upper bound of the weights: one over the least propensity of any action.
    level : float

    Raises
    ------
    InputError
        A weight is larger.
    """
    if moments.top.size and moments.top[0] > largest * (1 + 1e-9):
        raise InputError(
            f"largest={largest!r}, but a row has the weight {moments.top[0]}. The bound needs an upper limit of all "
            "weights."
        )
    n, intervals = moments.rows, []
    policy, baseline = ratios(moments, "IPS"), incumbent(moments)
    for statistic, least in ((policy, 0.0), (policy.minus(baseline), -1.0)):
        ends = np.outer([least, largest + least], [moments.low, moments.high])
        g = statistic.slope(moments.total) * n
        variance = max(float(g @ moments.squares @ g), 0.0) / n
        value = float(statistic.value(moments.total))
        intervals.append(empirical_bernstein(value, variance, float(np.ptp(ends)), n, level))
    return intervals[0], intervals[1]


def _withheld(moments: OffPolicyMoments, sample: Sample) -> str | None:
    top, total, ess = moments.top, float(moments.total[0]), effective_rows(moments)
    top_sum = float(top[:_HANDFUL].sum())
    if exceeds(top_sum, _MUCH * total):
        return f"the {_HANDFUL} largest weights make up {top_sum / total:.0%} of the sum of weights"
    if not reaches(ess, FEW_EFFECTIVE):
        rows = round(moments.rows)
        return (
            f"the effective sample size of the {counted(rows, 'row')} is {ess:.1f}, below {FEW_EFFECTIVE:g}: too few "
            "rows "
            "hold an action of the policy"
        )
    if not reaches(events := _events(moments), _FEW_EVENTS):
        return (
            f"the effective number of rows with the rarer rewards is {events:.1f} under the policy, too few to "
            "estimate "
            "their rate"
        )
    return _heavy(moments) or _unsupported(moments, sample)


def _heavy(moments: OffPolicyMoments) -> str | None:
    """Return the reason why the largest weights allow no mean or no interval; None where they are similar, or bounded.

    They are bounded where many rows of the log share its least propensity, as the exploring rows of an epsilon-greedy
    log do: no weight exceeds its inverse. Elsewhere a Pareto distribution is fitted to the largest weights. It does not
    fit tied weights; then the effective number of rows of their squares, (sum w^2)^2 / sum w^4, has to be large enough.
    With a tail of index k above 1/2 it is about 2k / (2k - 1), however many rows there are (Albrecher and Teugels,
    Scandinavian Actuarial Journal, 2006).
    """
    top = moments.top
    if top.size < 25 or top[0] <= _LIKE * np.median(top) or reaches(moments.floor.rows, _FLOOR):
        return None
    tail = pareto_tail(np.log(top))
    if tail > _TAIL:
        return (
            f"the largest weights have too heavy a tail for a mean (Pareto index {tail:.2f}, limit {_TAIL:g})"
        )
    tied = bool((np.diff(-top[: top.size // 5 + 1]) <= ROUNDING * top[0]).any())
    w = moments.form(w=1.0)
    spread = float(w @ moments.squares @ w) ** 2 / float((top**4).sum())
    if tied and not reaches(spread, _FEW_EVENTS):
        return f"the effective number of rows of the squared weights is {spread:.1f}, too few for a standard error"
    return None


def _events(moments: OffPolicyMoments) -> float:
    """Return the effective number of rows of w (r - low) or of w (high - r), the smaller: of 0 and 1, the rarer one."""
    if moments.high == moments.low:
        return np.inf
    above = moments.form(**{"w r": 1.0})
    below = moments.form(**{"w r": -1.0, "w": moments.high - moments.low})
    return min(_effective(moments, above), _effective(moments, below))


def _unsupported(moments: OffPolicyMoments, sample: Sample) -> str | None:
    weights = Ratios(moments.form(w=1.0)[None], moments.form(one=1.0)[None])
    mean, se = float(weights.value(moments.total)), float(np.sqrt(sample.variance(weights)))
    if abs(mean - 1.0) > max(_OFF, 4.0 * se):
        return (
            f"the weights average {mean:.3g}, where 1 is expected if the propensities are right and the incumbent "
            "could "
            "take every action that the policy takes"
        )
    return None


def task_gains(moments: OffPolicyMoments, name: str = "SNDR") -> tuple[Array, Array, Array]:
    """Estimate the gain of each task by itself.

    Weights are normalised over all tasks, and a row's contribution is given one variance for all tasks. A task's own
    variance is not used, since it correlates with its estimate: a task with few rare rewards by chance shows little
    variance too, and would get too much weight. Where policy and incumbent take the same actions, the gain is 0 without
    error; a task without rows has an infinite error.

    Returns
    -------
    gain, se, ess : (m,) array
    """
    gain_ratios = ratios(moments, name).minus(incumbent(moments))
    sums, packed = moments.sums, moments.moments.sums
    one, weights = moments.form(one=1.0), moments.form(w=1.0)
    denominators = moments.total @ gain_ratios.below.T / moments.rows
    with np.errstate(
        divide="ignore", invalid="ignore"
    ):  # without any logged action of the policy there is no ratio
        form = np.where(denominators[:, None] != 0, gain_ratios.above / denominators[:, None], np.nan).sum(
            axis=0
        )
    rows, n, w = sums[:, -1], sums @ one, sums @ weights
    safe_n = np.where(n > 0, n, 1.0)
    i, j = triangle(moments.size)

    clusters = moments.clusters

    def products(left: Array, right: Array) -> Array:
        """Return the sum of (left' z) (right' z) over the rows, or the clusters, of each task."""
        if clusters is not None:
            of_clusters = (clusters.sums @ left) * (clusters.sums @ right)
            return np.bincount(clusters.unit, of_clusters, len(sums)).astype(np.float64)
        both = np.outer(left, right)
        return np.asarray(packed @ np.where(i == j, both[i, j], both[i, j] + both[j, i]))

    w_squares, n_squares = products(weights, weights), products(one, one)
    differs = (
        w_squares - 2 * products(weights, one) + n_squares > 0
    )  # sum (w - 1)^2, exactly 0 where all w are 1
    gain = np.where(differs, sums @ form / safe_n, 0.0)
    within = products(form, form) - 2 * gain * products(form, one) + gain**2 * n_squares
    units = rows if clusters is None else np.bincount(clusters.unit, minlength=len(sums))
    degrees = np.where(units > 0, (units - 1.0) / np.maximum(units, 1.0), 0.0)  # degrees of freedom a row
    variance = np.maximum(within, 0.0)[differs].sum() / max(float((degrees * n_squares)[differs].sum()), 1.0)
    se = np.where(n > 0, np.where(differs, np.sqrt(variance * n_squares) / safe_n, 0.0), np.inf)
    return gain, se, np.divide(w**2, w_squares, out=np.zeros_like(n), where=w_squares > 0)
