"""Estimates of a value and of a gain by weighted rewards, their intervals, and which can be trusted.

With z_i (k,) known of every row and Z their sum, a statistic sum_j (a_j' Z) / (b_j' Z) moves, to first order, by g' z_i
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
from hieropo._utils.packed import triangle
from hieropo._utils.text import Report, agreeing, counted
from hieropo._utils.ties import ROUNDING, exceeds, first_smallest, reaches
from hieropo.errors import InputError
from hieropo.estimation.hyper.importance import pareto_tail
from hieropo.ope.off_policy import OffPolicyMoments, column

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


NAMES = ("IPS", "SNIPS", "DM", "DR", "SNDR", "Switch-DR", "DRos", "LS")
FEW_EFFECTIVE = 30.0
_FEW_EVENTS = 5.0
_HANDFUL, _MUCH = 5, 0.5  # so many weights may not hold so much of all
_OFF = 0.05  # by which the mean weight may differ from 1
_KEPT = "its bound is for logs of all rows, and these were kept by chance (sampling_weight)"
_LIKE = 3.0  # the largest weight over the median of the largest, below which they have no tail
_FLOOR = 20.0  # rows at the least propensity: propensities below it are then 6 times as rare, or would have been seen
_TAIL = 0.7  # of a generalised Pareto distribution, above which a mean of weights is not told


@dataclass(frozen=True, slots=True)
class ValueEstimate(Report):
    """One estimate.

    Attributes
    ----------
    name : str
    value, se, low, high : float
        Value of the policy in reward units, standard error and interval. DM has no error by rows: what is not known
        of its predictions is not in them. The interval of IPS holds that of SNIPS too: IPS does not see when large
        weights happen to be missing from the log, while the mean weight does. The intervals of Switch-DR and DRos are
        those of DR, since nothing else tells the bias of what they cut. LS has a lower end alone; it holds for any
        distribution of rewards of which the least possible one is known.
    gain, gain_se, gain_low, gain_high : float
        The same of the difference to the incumbent.
    ess : float
        Effective number of rows, (sum w)^2 / sum w^2; all rows for DM.
    by : {"tasks", "rows"}
        What is taken as independent.
    withheld : str or None
        Why it is not to be trusted.
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

    def shown(self) -> "ValueEstimate":
        """Return the estimate as if it could be trusted."""
        return replace(self, withheld=None)


def effective_rows(moments: OffPolicyMoments) -> float:
    """(sum w)^2 / sum w^2."""
    return _effective(moments, moments.form(w=1.0))


def _effective(moments: OffPolicyMoments, form: Array) -> float:
    """(sum y)^2 / sum y^2 for y = form' z."""
    squares = float(form @ moments.squares @ form)
    return float(moments.total @ form) ** 2 / squares if squares > 0 else 0.0


def incumbent(moments: OffPolicyMoments) -> Ratios:
    """Mean reward of the log."""
    return Ratios(moments.form(reward=1.0)[None], moments.form(one=1.0)[None], moments.low)


def ratios(moments: OffPolicyMoments, name: str, cut: str | None = None) -> Ratios:
    """Return an estimate as ratios of means; ``cut`` is the column of tau or lambda.

    Raises
    ------
    InputError
        No estimate of that name is one.
    """
    one, w = moments.form(one=1.0), moments.form(w=1.0)
    low = moments.low  # which IPS alone weighs
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
        raise InputError(f"There is no estimate {name!r} by ratios; there are {list(forms)}.")
    above, below = forms[name]
    return Ratios(np.array([moments.form(**each) for each in above]), np.array(below), low)


def values(
    moments: OffPolicyMoments, *, level: float = 0.95, rng: np.random.Generator
) -> tuple[ValueEstimate, ...]:
    """Return all estimates that there can be.

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
        raise InputError("There are no rows, so that nothing can be estimated.")
    sample = Sample(moments.sums, moments.squares, moments.groups, rng)
    names = NAMES[:5] if moments.predicted else NAMES[:2]
    found = [_estimate(moments, name, sample, level) for name in names]
    if moments.predicted:
        found += [_cut(moments, name, found[names.index("DR")], sample) for name in ("Switch-DR", "DRos")]
    return (*found, _smoothed(moments, sample, level))


def _estimate(moments: OffPolicyMoments, name: str, sample: Sample, level: float) -> ValueEstimate:
    own, base = ratios(moments, name), incumbent(moments)
    value, gain = (sample.interval(each, level) for each in (own, own.minus(base)))
    ess = effective_rows(moments)
    if name == "IPS":
        normalised = ratios(moments, "SNIPS")
        value = _joined(value, sample.interval(normalised, level))
        gain = _joined(gain, sample.interval(normalised.minus(base), level))
    if name == "DM":
        value, gain = (Interval(each.value, np.nan, np.nan, np.nan, each.by) for each in (value, gain))
        ess = _effective(moments, moments.form(one=1.0))
    return ValueEstimate(
        name, value.value, value.se, value.low, value.high, gain.value, gain.se, gain.low, gain.high, ess,
        value.by, None if name == "DM" else _withheld(moments, sample),
    )  # fmt: skip


def _joined(own: Interval, other: Interval) -> Interval:
    return replace(own, low=min(own.low, other.low), high=max(own.high, other.high))


def _cut(moments: OffPolicyMoments, name: str, dr: ValueEstimate, sample: Sample) -> ValueEstimate:
    """DR with large weights cut as far as variance + max(bias^2 - its variance, 0) falls, bias as by the uncut ones.

    Of cuts with equal errors the largest is taken, which cuts the least.
    """
    kind, grid = {"Switch-DR": ("switch", moments.switch), "DRos": ("shrink", moments.shrink)}[name]
    whole = ratios(moments, "DR")
    cuts, errors = [whole], [dr.se**2]
    for each in grid:  # in descending order
        own = ratios(moments, name, column(kind, each))
        bias = whole.minus(own)
        error = float(bias.value(moments.total)) ** 2 - sample.variance(bias)
        cuts.append(own)
        errors.append(sample.variance(own) + max(error, 0.0))
    at = int(first_smallest(errors))
    best, parameter, chosen = errors[at], (np.inf, *grid)[at], cuts[at]
    value = float(chosen.value(moments.total))
    gain_by = chosen.minus(incumbent(moments))
    gain = float(gain_by.value(moments.total))
    return replace(
        dr, name=name, value=value, se=float(np.sqrt(best)), low=min(dr.low, value), high=max(dr.high, value),
        gain=gain, gain_se=float(np.sqrt(sample.variance(gain_by) + best - sample.variance(chosen))),
        gain_low=min(dr.gain_low, gain), gain_high=max(dr.gain_high, gain), parameter=parameter,
    )  # fmt: skip


def _smoothed(moments: OffPolicyMoments, sample: Sample, level: float) -> ValueEstimate:
    """LS: with x >= 0, E prod (1 + lambda x_i) <= (1 + lambda V)^n, so Markov's inequality bounds V from below.

    The estimate has the least of L lambda, which is the least biased; the bound is the largest of those of all, each
    with an L-th of the error.
    """
    n, low, alpha = moments.rows, moments.low, (1 - level) / 2
    forms = {lam: moments.form(**{column("log", lam): 1.0}) for lam in moments.smoothing}

    def bound(error: float) -> float:
        logs = {lam: float(moments.total @ form) / n for lam, form in forms.items()}
        ends = [np.expm1(log - np.log(len(logs) / error) / n) / lam for lam, log in logs.items()]
        return low + float(max(ends))

    lam, one = min(forms), moments.form(one=1.0)
    own = Ratios((forms[lam] / lam)[None], one[None], low)
    gain = own.minus(incumbent(moments))
    above = sample.interval(incumbent(moments), 1 - alpha).high
    return ValueEstimate(
        "LS", float(own.value(moments.total)), float(np.sqrt(sample.variance(own))), bound(alpha), np.inf,
        float(gain.value(moments.total)), float(np.sqrt(sample.variance(gain))), bound(alpha / 2) - above, np.inf,
        effective_rows(moments), sample.by, _KEPT if moments.sampled else _unsupported(moments, sample), lam,
    )  # fmt: skip


def bernstein(
    moments: OffPolicyMoments, largest: float, *, level: float = 0.95
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Intervals of IPS, of the value and of the gain, that hold for any number of independent rows.

    Parameters
    ----------
    moments : OffPolicyMoments
    largest : float
        The largest weight that there could be: one over the least probability with which any action is logged.
    level : float

    Raises
    ------
    InputError
        A weight was larger.
    """
    if moments.top.size and moments.top[0] > largest * (1 + 1e-9):
        raise InputError(f"largest={largest!r}, and a row has the weight {moments.top[0]}.")
    n, found = moments.rows, []
    own, base = ratios(moments, "IPS"), incumbent(moments)
    for each, least in ((own, 0.0), (own.minus(base), -1.0)):
        ends = np.outer([least, largest + least], [moments.low, moments.high])
        g = each.slope(moments.total) * n
        variance = max(float(g @ moments.squares @ g), 0.0) / n
        value = float(each.value(moments.total))
        found.append(empirical_bernstein(value, variance, float(np.ptp(ends)), n, level))
    return found[0], found[1]


def _withheld(moments: OffPolicyMoments, sample: Sample) -> str | None:
    top, total, ess = moments.top, float(moments.total[0]), effective_rows(moments)
    handful = float(top[:_HANDFUL].sum())
    if exceeds(handful, _MUCH * total):
        return f"the {_HANDFUL} largest weights hold {handful / total:.0%} of all"
    if not reaches(ess, FEW_EFFECTIVE):
        rows = round(moments.rows)
        count = agreeing(rows, "counts", "count")
        return f"the {counted(rows, 'row')} {count} as {ess:.1f}: too few take what the policy takes"
    if not reaches(events := _events(moments), _FEW_EVENTS):
        return (
            f"the rarer rewards of the rows that take what the policy takes count as {events:.1f} rows, too few to "
            "tell how rare they are"
        )
    return _heavy(moments) or _unsupported(moments, sample)


def _heavy(moments: OffPolicyMoments) -> str | None:
    """Say why the largest weights leave no mean or no interval; None where they are alike, or bounded.

    They are bounded where many rows of the log share its least propensity, as the rows that chance chose in an
    epsilon-greedy log do: no weight exceeds its inverse. Elsewhere a Pareto distribution is fitted to the largest
    weights. It does not fit weights that are tied; then their squares have to come from enough rows, (sum w^2)^2 /
    sum w^4. With a tail of index k above 1/2 these are about 2k / (2k - 1), however many rows there are (Albrecher and
    Teugels, Scandinavian Actuarial Journal, 2006).
    """
    top = moments.top
    if top.size < 25 or top[0] <= _LIKE * np.median(top) or reaches(moments.floor.rows, _FLOOR):
        return None
    tail = pareto_tail(np.log(top))
    if tail > _TAIL:
        return f"the largest weights grow so fast (Pareto tail {tail:.2f}) that no mean of them is told"
    tied = bool((np.diff(-top[: top.size // 5 + 1]) <= ROUNDING * top[0]).any())
    w = moments.form(w=1.0)
    spread = float(w @ moments.squares @ w) ** 2 / float((top**4).sum())
    if tied and not reaches(spread, _FEW_EVENTS):
        return f"the squares of the weights count as {spread:.1f} rows, too few to tell how far the estimate is off"
    return None


def _events(moments: OffPolicyMoments) -> float:
    """Effective rows of w (r - low), or of w (high - r) where they are fewer; of rewards 0 and 1 those of the rarer."""
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
            f"the weights average {mean:.3g}, and would average 1 if the propensities were right and the incumbent "
            "could take every action that the policy takes"
        )
    return None


def task_gains(moments: OffPolicyMoments, name: str = "SNDR") -> tuple[Array, Array, Array]:
    """Estimate the gain of each task alone.

    Weights are normalised over all tasks, and a row's contribution has the same variance in all of them. A task's own
    variance, or that of its weights, is not taken: both go with its estimate, since a task with few rare rewards by
    chance shows little variance too, and tasks would be believed the more the worse they fared. Where the policy does
    all that the incumbent does, the gain is 0 without error; a task without rows has an infinite error.

    Returns
    -------
    gain, se, ess : (m,) array
    """
    own = ratios(moments, name).minus(incumbent(moments))
    sums, packed = moments.sums, moments.moments.sums
    one, weights = moments.form(one=1.0), moments.form(w=1.0)
    over = moments.total @ own.below.T / moments.rows
    with np.errstate(
        divide="ignore", invalid="ignore"
    ):  # a policy of none of the logged actions has no ratio
        form = np.where(over[:, None] != 0, own.above / over[:, None], np.nan).sum(axis=0)
    rows, n, w = sums[:, -1], sums @ one, sums @ weights
    some = np.where(n > 0, n, 1.0)
    i, j = triangle(moments.size)

    def products(left: Array, right: Array) -> Array:
        """Sum of (left' z) (right' z) over the rows of each task."""
        both = np.outer(left, right)
        return np.asarray(packed @ np.where(i == j, both[i, j], both[i, j] + both[j, i]))

    w_squares, kept = products(weights, weights), products(one, one)
    changed = w_squares - 2 * products(weights, one) + kept > 0  # sum (w - 1)^2, exactly 0 where all w are 1
    gain = np.where(changed, sums @ form / some, 0.0)
    within = products(form, form) - 2 * gain * products(form, one) + gain**2 * kept
    share = np.where(
        rows > 0, (rows - 1.0) / np.where(rows > 0, rows, 1.0), 0.0
    )  # of its squares that are free
    variance = np.maximum(within, 0.0)[changed].sum() / max(float((share * kept)[changed].sum()), 1.0)
    se = np.where(n > 0, np.where(changed, np.sqrt(variance * kept) / some, 0.0), np.inf)
    return gain, se, np.divide(w**2, w_squares, out=np.zeros_like(n), where=w_squares > 0)
