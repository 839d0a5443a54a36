"""Drift of interactions and of levels, learned from how rows of a unit differ between periods.

With the walks of :mod:`hieropo.moments.periods`, and the effects of actions, L and the noise of actions as a fit
without drift has them, rewards are normal. Given kappa, eta and M_0, a share of the M of that fit,

    log p(r) = -n / 2 log c - 1/2 log|V|

up to a constant: c the squares of all rewards about the effects of actions with the covariance V, and the noise
variance at its mode.

The standard deviations that the walks gain over the log, in units of the noise, are a priori 0 with probability 1/2
each, else half-Cauchy (scale 1). Odds are the ratio of the evidence for a walk to that without it, averaged over all
else.

Interactions that move may walk, or fade: return to 0 at the rate lambda, with the covariance exp(-lambda |t - t'|) M_0
between two times. Fading is a priori as likely as a walk and as no change, lambda over the log half-Cauchy (scale 1).
It is looked for where the odds of a walk are above 1 and levels do not move, and its evidence is added to theirs.

Interactions decide the choices, so their rate is integrated (:mod:`hieropo.moments.uncertain_walks`): by no walk, with
its probability, and by the Gauss rules of the posteriors of the standard deviation given a walk and of log lambda given
that they fade (Golub and Welsch, 1969), each node with the mean of M_0 given it. Nodes with hardly any probability are
left out.

A walk is taken as 0 where its odds are at most 1. Where those of levels are above 10, the standard deviation is its
posterior mean. Between the two, the rate is that of the walk times its probability. The covariance of coefficients at
the end is a Schur complement of one that is linear in the rate, and so concave: it is at least the mean of that with
and without the walk.

Effects of actions that walk in all tasks alike (:mod:`action_walks`) are looked for first, as if nothing else moved.
Where they do, their mean path is subtracted from the rewards, the walks of tasks are learned from what is left, and the
evidence for the walk of actions is taken again, given these.

Noise that changes in time looks like a walk, whose variance grows. So where a walk is found, the noise variances of
periods may be alike, have a trend, or be free, as the residuals of the fit without drift show them; both sides of the
ratio are sums over these three, the last two with Schwarz's penalty, and the best of them stays.

Rows of one visit look like a walk too, where no column names the visits. So rows of one period may have an error in
common, those of a task and action or all those of a task, which is independent between periods: with Schwarz's penalty
and odds of ten to one, these are models of errors beside the three above.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from scipy.special import logsumexp

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import triangle, unpack
from hieropo.estimation.crossed.action_walks import (
    CLEAR,
    ActionWalk,
    TaskModel,
    learn_action_walk,
    share_of_walk,
    tasks_of_paths,
)
from hieropo.estimation.crossed.mixture import CrossedHierarchies
from hieropo.estimation.crossed.walking import RateError, WalkErrors
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.steps import upper_factor
from hieropo.moments.periods import (
    NOTHING_SHARED,
    PeriodSums,
    Shared,
    TaskSystems,
    UnitFactors,
    Walks,
    level_root,
    nearest_constant,
)
from hieropo.moments.statistics import Moments
from hieropo.moments.uncertain_walks import UncertainWalks
from hieropo.rows.task_hash import of_least_hashes

DriftSetting = Literal["auto"] | None
Still = Literal[
    "", "not asked", "prior", "choices", "groups", "clusters", "likelihood", "precision", "moments", "times"
]
_POSSIBLE = 0.0  # log odds from which a walk is averaged with none
_EXCLUDED = 0.01  # probability up to which a node of the rate of interactions is left out
_RATES = 2  # nodes of the rate of a walk, and of interactions that fade
_HOPELESS = -1.0  # log odds of each walk, the other as 0, below which both are not looked for together
_UNITS, _FEWEST = 2_000, 60  # coefficients, and tasks at least, that the walks are learned from
_LOG_STEP = float(np.log(2.0)) / 2
_NODES = np.exp(_LOG_STEP * np.arange(-8, 4, 2))  # of the standard deviation over the log, from 1/16 to 2
_FINE = 7  # the same where a walk may be there, over those that have weight
_LIGHT = 0.03  # weight of others at most, in units of the largest
_BEYOND = 1.5 * _LOG_STEP  # that they reach over them, on the log scale
_FADING = np.log(2.0) * np.exp(
    2.0 * _LOG_STEP * np.arange(-1, 5)
)  # rate times the time of the log: half in 2 to 1/16
_SIZES = np.array([0.7, 1.2, 2.0, 3.3])  # M_0 of interactions that fade, in units of M without drift
_ACTION_NODES = np.exp(2.0 * _LOG_STEP * np.arange(-8, 2))  # the same of actions, which all tasks tell
_LEAST, _ROUNDING = 1e-3, 1e-12
_NORMAL = 1.96
_COMMON = np.exp(
    _LOG_STEP * np.arange(-8, 5)
)  # variances that rows of a period have in common, from 1/16 to 4
_NEGLIGIBLE = 10.0  # log of the evidence below the best, from which on nothing in common is left out
_SHARES = np.array([0.1, 0.3, 0.6, 1.0])  # M_0 in units of M without drift
_FINE_SHARES = np.array([0.05, 0.15, 0.3, 0.45, 0.6, 0.8, 1.0])  # the same where something walks
_WORDS = {np.inf: "inf", -np.inf: "-inf"}  # JSON has no such numbers
_NUMBERS: dict[Any, Any] = {None: np.inf, "inf": np.inf, "-inf": -np.inf}  # None is of earlier files


class Rate(NamedTuple):
    """A node of the posterior of the rate of interactions.

    Attributes
    ----------
    weight : float
    kappa : float
        Variance that an interaction gains in a unit of time, in units of the noise; where it fades, in the first.
    start : float
        M_0 in units of M without drift.
    fading : float
        The rate at which interactions return to 0, their covariance M_0 as before; 0 for a walk.
    """

    weight: float
    kappa: float
    start: float
    fading: float = 0.0


@dataclass(frozen=True, slots=True)
class Drift:
    """The rates at which interactions of tasks and actions, and levels of tasks, move.

    Attributes
    ----------
    kappa, eta : float
        Mean variance that an interaction, and a level, gains in one unit of time, in units of the noise variance of a
        row; 0 where it does not move.
    log_odds, level_log_odds : float
        Log of the ratio of the evidence for either walk to that without it.
    half_life, shortest, longest : float
        Age at which a row of a usual task and action weighs half as much as a row at the end, and its 95 % interval,
        if interactions move; inf where they do not.
    start : float
        M_0 in units of the M of a fit without drift.
    period_noise : tuple of float
        Noise variance of the rows of each period over that of all.
    unit : str
        That of times: "" for numbers, else as numpy has it, such as "us".
    zeta : float
        Variance that the effect of an action gains in one unit of time in all tasks alike, as kappa; 0 where it does
        not move.
    action_log_odds : float
        Log of the ratio of the evidence for that walk to that without it; -inf where it was not looked for.
    action_sd : float
        Its standard deviation from the first period to the end, in units of the noise.
    shared, level_shared : float
        Variances in units of the noise that rows of one period have in common: those of a task and action, and all
        those of a task. 0 where they have none.
    rates : tuple of Rate
        Nodes of the posterior of kappa, whose weights add to 1; empty where interactions do not move.
    noise : float
        Noise variance over that of a fit without drift, where interactions move.
    """

    kappa: float
    eta: float
    log_odds: float
    level_log_odds: float
    half_life: float = np.inf
    shortest: float = np.inf
    longest: float = np.inf
    start: float = 1.0
    period_noise: tuple[float, ...] = ()
    unit: str = ""
    zeta: float = 0.0
    action_log_odds: float = -np.inf
    action_sd: float = 0.0
    shared: float = 0.0
    level_shared: float = 0.0
    rates: tuple[Rate, ...] = ()
    noise: float = 1.0

    @property
    def moves(self) -> bool:
        """True where something walks."""
        return self.kappa > 0.0 or self.eta > 0.0 or self.zeta > 0.0

    @property
    def present(self) -> bool:
        """True where something walks, or rows of one period have something in common."""
        return self.moves or any(self.in_common)

    @property
    def in_common(self) -> Shared:
        """The variances that rows of one period have in common."""
        return Shared(self.shared, self.level_shared)

    def noise_of(self, periods: PeriodSums) -> Array:
        """Return the noise variances (T,) of periods, 1 where they were not learned."""
        return np.array(self.period_noise) if self.period_noise else np.ones(periods.times.size)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types, from which :meth:`from_dict` makes the same value."""
        lists = {"period_noise": list(self.period_noise), "rates": [list(rate) for rate in self.rates]}
        values = {**asdict(self), **lists}
        return {
            name: _WORDS.get(value, value) if isinstance(value, float) else value
            for name, value in values.items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        parts: dict[str, Any] = {
            name: value if isinstance(value, list) else _NUMBERS.get(value, value)
            for name, value in values.items()
        }
        rates = tuple(Rate(*one) for one in values.get("rates", ()))
        return cls(**{**parts, "period_noise": tuple(values["period_noise"]), "rates": rates})


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """The hierarchy of a fit without drift, in units of its noise.

    Attributes
    ----------
    center : (K, p) array
        Posterior means of c_a = beta + alpha_a, less the offset of the moments.
    level, interaction : (p, p) array
        L, M; M at least a thousandth of what the features of a row vary by.
    walk : (p, p) array
        W, proportional to M and of mean phi' W phi = 1.
    level_var : float
        Mean of phi' L phi.
    noise_ratio : (K,) array
    fit : CrossedPosterior
        Under this hierarchy, taken as known.
    precision : (m,) array
        Of the rows of tasks.
    """

    center: Array
    level: Array
    interaction: Array
    walk: Array
    level_var: float
    noise_ratio: Array
    fit: Any
    precision: Array

    @classmethod
    def of(cls, moments: Moments, posterior: Any) -> Self:
        """Read the parts of the crossed prior off the posterior of a fit."""
        p, K = moments.unit_dim, moments.n_actions
        hierarchy: CrossedHierarchy = posterior.central_hierarchy
        noise = float(np.exp(np.mean(np.log(hierarchy.noise_var))))
        total = unpack(moments.unit_sums.sum(axis=0)[None], p + 2)[0]
        gram = total[:p, :p] / total[p + 1, p + 1]
        least = np.diag(1.0 / np.maximum(np.diagonal(gram), np.finfo(np.float64).tiny)) / p
        interaction = hierarchy.interaction_cov / noise + _LEAST * least
        walk = interaction / float((interaction * gram).sum())
        offset = np.zeros(p) if moments.unit_offset is None else moments.unit_offset
        central = posterior.central()
        center = np.array([central.action(a).mean for a in range(K)]) - offset
        return cls(
            center, hierarchy.level_cov / noise, interaction, walk,
            float((hierarchy.level_cov * gram).sum()) / noise, hierarchy.noise_var / noise, central,
            np.ones(len(moments)) if posterior.task_precision is None else posterior.task_precision,
        )  # fmt: skip

    def noise_of_periods(self, periods: PeriodSums, tasks: Codes) -> Array:
        """Return mean expected squares of residuals (T,) over their mean, and the numbers of rows (T,).

        ``periods`` are the sums of some ``tasks``, by their positions.
        """
        p = periods.dim
        i, j = triangle(p)
        twice = np.where(i == j, 1.0, 2.0)
        table, offset = self.fit.table(), self.fit.moments.unit_offset
        row = np.asarray(table.keys.require(self.fit.moments.tasks))[tasks]
        shape = len(row), len(self.noise_ratio), 1, -1
        fits = np.asarray(table.means)[row].reshape(shape) - (0.0 if offset is None else offset)
        covs = np.asarray(table.covs)[row].reshape(shape)
        sums = periods.sums
        gram, cross, square = sums[..., : i.size], sums[..., i.size : i.size + p], sums[..., i.size + p]
        spread = twice * (fits[..., i] * fits[..., j] + covs)
        square = square - 2.0 * (fits * cross).sum(axis=-1) + (gram * spread).sum(axis=-1)
        rows = periods.rows
        of_task = self.precision[tasks, None, None]
        of_periods = (of_task * square / self.noise_ratio[:, None]).sum(axis=(0, 1)) / rows
        return np.array([of_periods / (rows @ of_periods / rows.sum()), rows])

    @property
    def noise(self) -> float:
        """The noise variance that is the unit of all others."""
        return float(np.exp(np.mean(np.log(self.fit.hierarchy.noise_var))))

    @property
    def walks_in_interaction(self) -> float:
        """M / W, the number that the proportional M is of W."""
        return float(np.trace(self.interaction) / np.trace(self.walk))

    def at_end(
        self, moments: Moments, periods: PeriodSums, drift: Drift, actions: ActionWalk | None = None
    ) -> tuple[Moments, WalkErrors | None]:
        """Return the moments of rows as they count at the end of a log, and the errors of the walks."""
        center = self.center
        if actions is not None:
            center, periods = actions.end, periods.less(actions.before)
        rates = drift.rates or (Rate(1.0, drift.kappa, drift.start),)
        walks = tuple(
            Walks(
                center, rate.start * self.interaction,
                upper_factor(rate.start * self.interaction if rate.fading else rate.kappa * self.walk)[0],
                self.level_var, drift.eta, self.noise_ratio, drift.noise_of(periods), drift.in_common, rate.fading,
            )
            for rate in rates
        )  # fmt: skip
        uncertain = UncertainWalks(np.array([rate.weight for rate in rates]), walks)
        ended, roots = uncertain.at_end(moments, periods, self.precision)
        if actions is None and len(rates) == 1:
            return ended, None
        size = center.size
        of_actions = np.zeros((size, size)) if actions is None else self.noise * actions.error
        return ended, WalkErrors(of_actions, RateError(moments.keys, roots) if len(rates) > 1 else None)

    def hierarchies_at_end(self, first: CrossedHierarchies, drift: Drift, span: float) -> CrossedHierarchies:
        """Return the hierarchies of a fit without drift with the interactions, and the noise, of the end of the log.

        M at the end is the mean over the rates of what it is given each: of M_0 and of what a walk adds. With kinds of
        tasks M is that between tasks of all kinds: the kinds stay as they are, and interactions within a kind move.
        With different spreads what a walk adds is the same in all tasks.
        """
        sizes, within = first.weights * first.noise_var, first.interaction_sd**2
        between = (
            within
            if first.kinds is None
            else first.kinds.as_one(first.action_sd, first.interaction_sd)[1] ** 2
        )
        mean = float(sizes @ between / sizes.sum())
        gained = sum(rate.weight * rate.kappa for rate in drift.rates if not rate.fading) * span
        added, gone = gained / self.walks_in_interaction * mean, (1.0 - drift.start) * between
        square, scales = np.maximum(within - gone, 0.0) + added, first.spread_scales
        if first.mixed_spreads:
            of_spreads = np.maximum(within[:, None] * scales**2 - gone[:, None], 0.0) + added
            square = (first.spread_weights * of_spreads).sum(axis=1)
            scales = np.sqrt(of_spreads / np.where(square > 0.0, square, 1.0)[:, None])
        return replace(
            first,
            interaction_sd=np.sqrt(square),
            spread_scales=scales,
            noise_var=drift.noise * first.noise_var,
        )

    def walk_of_actions(
        self, moments: Moments, periods: PeriodSums, drift: Drift, *, first: bool = True
    ) -> ActionWalk | None:
        """Return the walk of actions, given those of tasks; None where there are too many actions and columns.

        ``first`` looks for it in fewer tasks, where there are hundreds or thousands.
        """
        tasks = TaskModel(
            drift.start * self.interaction, upper_factor(drift.kappa * self.walk)[0], self.level, drift.eta,
            self.noise_ratio[:, None] * drift.noise_of(periods), nearest_constant(moments), drift.in_common,
        )  # fmt: skip
        rows, precision = float(moments.rows.sum()), self.precision
        chosen = tasks_of_paths(moments.tasks, periods, first=first)
        if chosen is not None:
            rows *= chosen.size / len(moments)
            periods, precision = periods.at(chosen), precision[chosen]
        independent, _ = periods.whitened(drift.shared)
        return learn_action_walk(
            independent.times_precision(precision), self.walk, tasks, _axis(_ACTION_NODES, 2.0),
            _axis(_ACTION_NODES[::2], 4.0), rows,
        )  # fmt: skip


class LearnedDrift(NamedTuple):
    """The walks that a log shows; that of actions, or None where they do not move in all tasks alike."""

    drift: Drift
    actions: ActionWalk | None


def learn_drift(moments: Moments, periods: PeriodSums, constant: Constant) -> LearnedDrift:
    """Return the walks that a log shows; parameters are those of :func:`learn_task_walks`."""
    actions = constant.walk_of_actions(moments, periods, Drift(0.0, 0.0, -np.inf, -np.inf))
    if actions is None:
        return LearnedDrift(learn_task_walks(moments, periods, constant), None)
    if actions.log_odds > _POSSIBLE:
        drift = learn_task_walks(moments, periods, constant, actions)
        if drift.present:
            actions = constant.walk_of_actions(moments, periods, drift)
            assert actions is not None
    if actions.log_odds > _POSSIBLE and tasks_of_paths(moments.tasks, periods, first=True) is not None:
        actions = constant.walk_of_actions(moments, periods, drift, first=False)
        assert actions is not None
    odds = actions.log_odds
    if odds <= _POSSIBLE:
        return LearnedDrift(replace(learn_task_walks(moments, periods, constant), action_log_odds=odds), None)
    sd = float(np.sqrt(actions.zeta * periods.span))
    return LearnedDrift(replace(drift, zeta=actions.zeta, action_log_odds=odds, action_sd=sd), actions)


def learn_task_walks(
    moments: Moments, periods: PeriodSums, constant: Constant, actions: ActionWalk | None = None
) -> Drift:
    """Return the walks of interactions and levels that a log shows, effects of actions as constant.

    Parameters
    ----------
    moments : Moments
        Per action, of rows without precisions and sampling weights.
    periods : PeriodSums
        Of the same rows.
    constant : Constant
        The hierarchy that is learned from them as if nothing moved.
    actions : ActionWalk, optional
        Its path is subtracted from the rewards.
    """
    chosen, precision = np.arange(len(moments)), constant.precision
    enough = max(_UNITS // (moments.n_actions * moments.unit_dim), _FEWEST)
    if len(moments) > enough:
        chosen = of_least_hashes(moments.tasks, enough)
        periods, moments = periods.at(chosen), moments.at(chosen)
        precision = precision[chosen]
    if actions is not None:
        periods = periods.less(actions.before)
    span, axis = periods.span, _axis(_NODES, 2.0)
    center = constant.center if actions is None else actions.end
    evidence = _Evidence(periods, constant, precision, periods.rows, np.ones(periods.times.size), 0.0, center)
    odds = [_odds(evidence.table(axis, _STILL[1]), 0), _odds(evidence.table(_STILL[0], axis), 1)]
    if max(odds) < _HOPELESS:
        return Drift(0.0, 0.0, odds[0], odds[1], unit=periods.unit)
    table = evidence.table(axis, axis)
    odds = [_odds(table, k) for k in (0, 1)]
    if max(odds) > _POSSIBLE:
        profiles = evidence.of_profiles(*constant.noise_of_periods(periods, chosen))
        rivals = [_Rival(evidence, table), *(_Rival(one, one.table(axis, axis)) for one in profiles)]
        rivals.extend(_of_shared(_best(rivals), axis))
        best = _best(rivals)
        odds = [_odds(np.asarray(logsumexp([one.table for one in rivals], axis=0)), k) for k in (0, 1)]
        evidence, table = best
    if max(odds) <= _POSSIBLE:
        unit, task = evidence.shared
        of_start = np.exp(table[0, 0] - logsumexp(table[0, 0]))
        start = float(of_start @ _SHARES) if any(evidence.shared) else 1.0
        return Drift(
            0.0, 0.0, odds[0], odds[1], start=start, unit=periods.unit, shared=unit, level_shared=task
        )
    density = float((moments.rows**2).sum() / moments.rows.sum() / span)  # rows of a unit, in which a row is
    drift = _integrated(evidence, table, odds, density)
    return replace(
        drift, period_noise=tuple(evidence.period_noise.tolist()), unit=periods.unit,
        shared=evidence.shared.unit, level_shared=evidence.shared.task,
    )  # fmt: skip


def _integrated(evidence: "_Evidence", table: Array, odds: list[float], density: float) -> Drift:
    """Return the rates of walks, one of which may be there; ``density`` are rows of a unit in a unit of time."""
    span, none = evidence.periods.span, (np.zeros(1), np.zeros(1))
    kappas = _closer(table, 0) if odds[0] > _POSSIBLE else none
    etas = _closer(table, 1) if odds[1] > _POSSIBLE else none
    fine = evidence.table(kappas, etas, _FINE_SHARES)
    weight = np.exp(fine - logsumexp(fine))
    of_kappa, of_eta, of_start = (weight.sum(axis=others) for others in ((1, 2), (0, 2), (0, 1)))
    eta = share_of_walk(odds[1]) * float(of_eta @ etas[0]) ** 2 / span
    if odds[0] <= _POSSIBLE:
        return Drift(0.0, eta, odds[0], odds[1], start=float(of_start @ _FINE_SHARES))
    log_odds, of_walks, fading = odds[0], 1.0, None
    if eta == 0.0 and evidence.shared.task == 0.0:
        fading = evidence.fading_table()
        walks, fades = float(logsumexp(fine)), float(logsumexp(fading))
        log_odds += float(np.logaddexp(walks, fades)) - walks
        of_walks = 1.0 / (1.0 + float(np.exp(fades - walks)))
    moves = 1.0 / (1.0 + float(np.exp(-log_odds)))
    rates = _walking_rates(kappas[0], weight.sum(axis=1), moves * of_walks, span)
    if fading is not None:
        rates += _fading_rates(fading, moves * (1.0 - of_walks), evidence)
    if 1.0 - moves > _EXCLUDED:
        still = np.asarray(logsumexp(evidence.table(none, etas, _FINE_SHARES)[0], axis=0))
        rates.insert(0, Rate(1.0 - moves, 0.0, float(np.exp(still - logsumexp(still)) @ _FINE_SHARES)))
    rates = [rate for rate in rates if rate.weight > _EXCLUDED]
    whole = sum(rate.weight for rate in rates)
    rates = [rate._replace(weight=rate.weight / whole) for rate in rates]
    middle, (low, high) = float(of_kappa @ kappas[0]), _interval(kappas[0], of_kappa)
    half_life, shortest, longest = (
        float(np.log(2.0) * np.sqrt(span / density) / sd) for sd in (middle, high, low)
    )
    kappa, start = (sum(rate.weight * rate[k] for rate in rates) for k in (1, 2))
    noise = evidence.noise(middle, eta, float(of_start @ _FINE_SHARES)) / evidence.constant.noise
    return Drift(
        kappa, eta, log_odds, odds[1], half_life, shortest, longest, start, rates=tuple(rates), noise=noise
    )


def _walking_rates(sds: Array, weights: Array, share: float, span: float) -> list[Rate]:
    """Return the nodes of walks, of a share in all: from weights of standard deviations over the log, and of M_0."""
    of_sds = weights.sum(axis=1)
    starts = weights @ _FINE_SHARES / np.maximum(of_sds, np.finfo(np.float64).tiny)
    nodes, shares = gauss_rule(sds, of_sds, _RATES)
    return [
        Rate(share * one, sd**2 / span, float(np.interp(sd, sds, starts)))
        for sd, one in zip(nodes.tolist(), shares.tolist(), strict=True)
    ]


def _fading_rates(table: Array, share: float, evidence: "_Evidence") -> list[Rate]:
    """Return the nodes of interactions that fade, of a share in all, from a table of their evidence."""
    weights = np.exp(table - logsumexp(table))
    of_rates, logs = weights.sum(axis=1), np.log(_FADING)
    sizes = weights @ _SIZES / np.maximum(of_rates, np.finfo(np.float64).tiny)
    nodes, shares = gauss_rule(logs, of_rates, _RATES)
    constant, span = evidence.constant, evidence.periods.span
    unit, rates = constant.walks_in_interaction, []
    for node, one in zip(nodes.tolist(), shares.tolist(), strict=True):
        fading, size = float(np.exp(node)) / span, float(np.interp(node, logs, sizes))
        rates.append(Rate(share * one, 2.0 * fading * size * unit, size, fading))
    return rates


def gauss_rule(nodes: Array, weights: Array, count: int) -> tuple[Array, Array]:
    """Return ``count`` nodes and weights with the moments up to degree 2 ``count`` - 1 of a law on ``nodes``.

    The nodes are the eigenvalues of the Jacobi matrix of the law, made by Lanczos' method (Golub and Welsch, 1969, for
    discrete laws). Fewer are returned where fewer have all its moments.
    """
    vector = np.sqrt(weights / weights.sum())
    diagonal, beside, before = [], [], np.zeros_like(vector)
    last = 0.0
    for _ in range(min(count, int(np.count_nonzero(weights)))):
        along = nodes * vector - last * before
        diagonal.append(float(vector @ along))
        along = along - diagonal[-1] * vector
        last = float(np.linalg.norm(along))
        beside.append(last)
        if last <= 1e-12 * float(np.abs(nodes).max()):
            break
        before, vector = vector, along / last
    size = len(diagonal)
    jacobi = np.diag(diagonal) + np.diag(beside[: size - 1], 1) + np.diag(beside[: size - 1], -1)
    values, vectors = np.linalg.eigh(jacobi)
    return values, np.square(vectors[0])


class _Evidence(NamedTuple):
    """The log evidence of walks, for a model of the errors of rows that costs a penalty.

    That model is the noise variances (T,) of periods, and the variances that rows of one period have in common.
    """

    periods: PeriodSums
    constant: Constant
    precision: Array  # (m,)
    rows: Array  # (T,)
    period_noise: Array
    penalty: float
    center: Array  # (K, p), of actions
    shared: Shared = NOTHING_SHARED

    def of_profiles(self, noise: Array, rows: Array) -> "list[_Evidence]":
        """Return the same for noise with a trend, and for free noise, from residuals of periods and their rows (T,).

        One that gains less than its penalty is left out.
        """
        time = self.periods.since
        middle = rows @ time / rows.sum()
        slope = float((rows * (time - middle)) @ np.log(noise)) / float(rows @ (time - middle) ** 2)
        trend = np.exp(slope * (time - middle))
        n = float(self.rows.sum())
        penalties = 0.5 * np.log(n), 0.5 * (rows.size - 1) * np.log(n / rows.size)
        profiles = trend * rows.sum() / (rows @ trend), noise
        return [
            self._replace(period_noise=profile, penalty=float(penalty))
            for profile, penalty in zip(profiles, penalties, strict=True)
            if -0.5 * float(self.rows @ np.log(profile)) > penalty
        ]

    def table(self, kappa: tuple[Array, Array], eta: tuple[Array, Array], shares: Array = _SHARES) -> Array:
        """Return log weights of the nodes of both walks, and of M_0: (len(kappa), len(eta), len(shares))."""
        masses = kappa[1][:, None, None] + eta[1][:, None] - np.log(shares.size)
        return np.asarray(self._log_evidence(self._values(kappa[0], eta[0], shares)) + masses)

    def noise(self, sd: float, eta: float, share: float) -> float:
        """Return the noise variance at its mode, given walks."""
        of_level = np.array([np.sqrt(eta * self.periods.span)])
        return float(self._values(np.array([sd]), of_level, np.array([share]))[0, 0, 0, 0] / self.rows.sum())

    def _values(self, sds: Array, of_levels: Array, shares: Array) -> Array:
        """Return squares and log determinants (len(sds), len(of_levels), len(shares), 2)."""
        constant, span = self.constant, self.periods.span
        walk, ratio = upper_factor(constant.walk)[0], constant.noise_ratio[:, None] * self.period_noise
        values = np.zeros((sds.size, of_levels.size, shares.size, 2))
        roots = [self._prior(share) for share in shares.tolist()]
        for piece in self.periods.pieces():
            independent, log_det = self.periods.at(piece).whitened(self.shared.unit)
            values[..., 1] += log_det.sum()
            some = independent.times_precision(self.precision[piece])
            for i, sd in enumerate(sds.tolist()):
                factors = UnitFactors.at_start(some, ratio, sd / np.sqrt(span) * walk)
                for j, of_level in enumerate(of_levels.tolist()):
                    rate, shared = of_level**2 / span, self.shared.task
                    moves = rate > 0.0 or shared > 0.0
                    systems = TaskSystems.of(factors, level_root(some.since, rate, shared) if moves else None)
                    for k, root in enumerate(roots):
                        values[i, j, k] += self._of(systems, root)
        return values

    def fading_table(self) -> Array:
        """Return log weights of interactions that fade: of their rates and of M_0, as :meth:`table` has them.

        Levels do not move.
        """
        about = self._replace(
            periods=self.periods.less(self.center[:, None]), center=np.zeros_like(self.center)
        )
        constant, rates = self.constant, _FADING / self.periods.span
        ratio, of_level = constant.noise_ratio[:, None] * self.period_noise, upper_factor(constant.level)[0]
        values = np.zeros((rates.size, _SIZES.size, 2))
        for piece in about.periods.pieces(paths=True):
            independent, log_det = about.periods.at(piece).whitened(self.shared.unit)
            values[..., 1] += log_det.sum()
            some = independent.times_precision(self.precision[piece])
            for k, size in enumerate(_SIZES.tolist()):
                root = upper_factor(size * constant.interaction)[0]
                prior: Array = np.asarray(np.kron(np.eye(len(constant.noise_ratio)), root), dtype=np.float64)
                for i, rate in enumerate(rates.tolist()):
                    factors = UnitFactors.at_start(some, ratio, root, fading=rate)
                    values[i, k] += about._of(TaskSystems.of(factors, of_level), prior)
        mass = _axis(_FADING, 2.0)[1][1:]
        return np.asarray(self._log_evidence(values) + mass[:, None] - np.log(_SIZES.size))

    def _log_evidence(self, values: Array) -> Array:
        """Return the log evidence from squares and log determinants (..., 2)."""
        log_evidence = -0.5 * self.rows.sum() * np.log(values[..., 0]) - 0.5 * values[..., 1]
        return np.asarray(log_evidence - 0.5 * self.rows @ np.log(self.period_noise) - self.penalty)

    def _prior(self, share: float) -> Array:
        """Return a root of the covariance of all coefficients of a task in the first period."""
        constant, K = self.constant, len(self.constant.noise_ratio)
        unit = np.kron(np.eye(K), share * constant.interaction)
        return upper_factor(np.kron(np.ones((K, K)), constant.level) + unit)[0]

    def _of(self, systems: TaskSystems, root: Array) -> Array:
        """Return the squares about the effects of actions, and log|V|, of all tasks."""
        d, center = systems.score.shape[1], self.center.reshape(-1)
        fitted = systems.information @ center
        square = systems.square - 2.0 * systems.score @ center + fitted @ center
        joint = np.empty((len(square), d + 1, d + 1))
        joint[:, :d, :d] = np.eye(d) + root.T @ systems.information @ root
        joint[:, d, :d] = (systems.score - fitted) @ root
        joint[:, d, d] = (
            square + _ROUNDING * systems.square + np.finfo(np.float64).tiny
        )  # rewards may be explained
        pivots = np.diagonal(
            np.linalg.cholesky(joint), axis1=1, axis2=2
        )  # the last one squared is what is left
        log_det = systems.log_det.sum() + 2.0 * np.log(pivots[:, :d]).sum()
        return np.array([np.square(pivots[:, d]).sum(), log_det])


def _axis(nodes: Array, step: float) -> tuple[Array, Array]:
    """Return 0 and the nodes, and the logs of their prior masses: 1/2 at 0, else half-Cauchy."""
    mass = nodes / (1.0 + nodes**2) / np.pi * step * _LOG_STEP
    return np.append(0.0, nodes), np.log(np.append(0.5, mass))


_Axes = tuple[tuple[Array, Array], tuple[Array, Array]]
_STILL = _axis(np.zeros(0), 1.0), _axis(np.zeros(0), 1.0)


class _Rival(NamedTuple):
    """A model of the errors of rows, and its table."""

    evidence: _Evidence
    table: Array


def _best(rivals: list[_Rival]) -> _Rival:
    return max(rivals, key=lambda one: float(logsumexp(one.table)))


def _of_shared(rival: _Rival, axis: tuple[Array, Array]) -> list[_Rival]:
    """Return models in which rows of one period have something in common, where they can count for something.

    Its variance is the best one where nothing walks, or with the best walk. The price is Schwarz's penalty and, as for
    all extensions, odds of ten to one.
    """
    evidence, table = rival
    price = CLEAR + 0.5 * float(np.log(evidence.rows.sum()))
    evidence = evidence._replace(penalty=evidence.penalty + price)
    least, walk = float(table.max()) - _NEGLIGIBLE, _best_nodes(table, axis)
    of_walk = float(logsumexp(table[np.unravel_index(int(np.argmax(table)), table.shape)[:2]]))
    models: list[_Rival] = []
    for kind in (Shared(unit=1.0), Shared(task=1.0)):
        _, little = _variance(evidence, kind, walk, _COMMON[:1])
        _, roughly = _variance(evidence, kind, _STILL, _COMMON[::4])
        if roughly < least - _NEGLIGIBLE and little + price < of_walk:
            continue
        start, value = _variance(evidence, kind, _STILL)
        if value < least:
            start, _ = _variance(evidence, kind, walk)
        first = _Rival(start, start.table(axis, axis))
        closer, _ = _variance(evidence, kind, _best_nodes(first.table, axis))
        tables = [first]
        if closer.shared != start.shared:
            tables.append(_Rival(closer, closer.table(axis, axis)))
        models.extend(_Rival(one.evidence, one.table - np.log(len(tables))) for one in tables)
    return models


def _best_nodes(table: Array, axis: tuple[Array, Array]) -> _Axes:
    """Return the best node of both walks, as axes of one node."""
    best = np.unravel_index(int(np.argmax(table)), table.shape)
    kappa, eta = ((axis[0][[k]], axis[1][[k]]) for k in best[:2])
    return kappa, eta


def _variance(
    evidence: "_Evidence", kind: Shared, axes: _Axes, among: Array = _COMMON
) -> tuple["_Evidence", float]:
    """Return the model with the best variance that rows of one period have in common, and its log evidence."""
    models = [evidence._replace(shared=Shared(v * kind.unit, v * kind.task)) for v in among.tolist()]
    values = [float(logsumexp(model.table(*axes))) for model in models]
    best = int(np.argmax(values))
    return models[best], values[best]


def _marginal(table: Array, axis: int) -> Array:
    return np.asarray(logsumexp(table, axis=tuple(k for k in range(3) if k != axis)))


def _odds(table: Array, axis: int) -> float:
    marginal = _marginal(table, axis)
    return float(logsumexp(marginal[1:]) - marginal[0])


def _closer(table: Array, axis: int) -> tuple[Array, Array]:
    """Return nodes that span those above 0 of an axis of a table that have weight, and the logs of their masses."""
    marginal = _marginal(table, axis)[1:]
    heavy = np.flatnonzero(marginal > marginal.max() + np.log(_LIGHT))
    low, high = (float(np.log(_NODES[k])) for k in (heavy[0], heavy[-1]))
    logs = np.linspace(low - _BEYOND, high + _BEYOND, _FINE)
    nodes, mass = _axis(np.exp(logs), float(logs[1] - logs[0]) / _LOG_STEP)
    return nodes[1:], mass[1:]


def _interval(nodes: Array, weight: Array) -> tuple[float, float]:
    """Return the 95 % interval of a standard deviation whose log is about normal."""
    logs = np.log(np.maximum(nodes, np.finfo(np.float64).tiny))
    mean = float(weight @ logs)
    half = _NORMAL * float(np.sqrt(weight @ (logs - mean) ** 2))
    return float(np.exp(mean - half)), float(np.exp(mean + half))
