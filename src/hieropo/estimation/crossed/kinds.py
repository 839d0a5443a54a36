"""Kinds of tasks, found and chosen by their evidence: which tasks are alike, and in how many kinds they fall.

    theta_sa = beta + alpha_a + eta_ka + u_s + gamma_sa      eta_ka ~ N(0, c^2 s^2 M)      gamma_sa ~ N(0, m^2 s^2 M)

for a task s of kind k, in the words of :mod:`mixture`. A priori the number n of kinds is 2 to 6, each as likely as the
others, the probabilities of the kinds are uniform (Dirichlet(1, ..., 1)), c is half-Cauchy, and a and m are as without
kinds.

1. Partitions are found by variational steps from several starts (k-means++ on the estimates of single tasks). The bound

       log p >= sum_s kappa_s + Phi(r) + H(r) + log DM(sum_s r_s) + log n!

   of the shares r of the kinds in the tasks, with Phi of :mod:`propagation` for the aggregated rows of each kind and DM
   the probability of the sizes of the kinds under the uniform prior, says where no number of kinds can have ten times
   the evidence of one kind (:mod:`kind_partitions`). A log that has none pays for this alone.
2. The partitions of the largest bounds are approximated by :mod:`propagation` at several m, where the labels are
   integrated out, and a task's label is judged by the rows of all others. The evidence along a and c is that of the
   aggregated rows; along m it is a spline. Every order of the kinds is a mode of its own: n! of them.
3. Where all partitions together have ten times the evidence of one kind, hierarchies of both are averaged by their
   evidence; else nothing changes. s^2 is that of one kind, and so is l, unless the bound is larger by more than 1 at
   another.

Cheeseman and Stutz (1996), Bayesian classification (AutoClass); Minka (2001), Expectation propagation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from hieropo._kernels.reference.gaussians import phi
from hieropo._utils.arrays import Array, Codes
from hieropo.errors import InputError, NumericalError, warn
from hieropo.estimation.crossed.grid import DECIMALS
from hieropo.estimation.crossed.kind_partitions import (
    SMALLEST,
    WIDEST,
    WITHIN,
    Aggregate,
    Partition,
    Scales,
    partitions,
    room_for,
    sizes_of_kinds,
)
from hieropo.estimation.crossed.shapes import Shapes
from hieropo.model.crossed.hierarchy import Kinds
from hieropo.model.crossed.kinds import (
    LEAST,
    KindPosterior,
    flat_prior,
    terms_of_kinds,
)
from hieropo.model.crossed.propagation import Factors, propagate
from hieropo.model.crossed.steps import ObservedUnits
from hieropo.model.steps import upper_factor
from hieropo.moments.statistics import Moments
from hieropo.rows.ids import Ids

TaskKindsSetting = Literal["one", "auto"] | int
MOST_KINDS = 6
ODDS = float(np.log(10.0))  # log Bayes factor from which kinds are used
_POSSIBLE = -1.5  # bound of the evidence of kinds over that of one, below which they are given up
_FEWEST, _MOST = 8, 300  # tasks
_INTERACTIONS = np.array([0.1, 0.2, 0.35, 0.5, 0.7, 1.0])  # the same, where they are approximated
_SIZES = np.geomspace(0.04, 5.0, 10)  # nodes of a and c
_NARROW = 0.2  # standard deviation of log m below which nodes follow it
_DEVIATIONS = np.array([-5.0, -3.0, -1.5, 0.0, 1.5, 3.0, 5.0])  # in units of it
_BINS = 60  # of m
_BEYOND = 1.02  # end of the last of them, in units of its node
_NODES_OF_ONE, _BINS_OF_ONE = 13, 97  # of m with one kind
_OUTSIDE = 12.0  # log evidence behind the best m, from which on those further away have no weight
_CLOSE = 1e-6  # change of responsibilities at which a fixed point is reached: less would tell in units and rounding
_APART = 0.5  # of two kinds, below which a fixed point is no partition
_ROUNDS = 80  # of expectation propagation, in which a partition converges or is given up
_RARE = 0.04  # weight of a partition, with m = 0 or above, below which it is left out of those
_SIZE_DECIMALS = 6  # of arctan of a, c and m, where nodes that stand for all are chosen
_KEPT = 1e-4  # weight of a node that is kept, in units of the largest
_PREFERRED = 1e-6  # by which the most probable of nodes that serve alike comes before others
_SHOWN = 100  # nodes that stand for all where standard deviations are summarised


def check_task_kinds(setting: Any) -> None:
    """Raise InputError where a setting of the kinds of tasks is none of its choices."""
    if setting in ("one", "auto") and isinstance(setting, str):
        return
    if isinstance(setting, bool) or not isinstance(setting, int) or not 2 <= setting <= MOST_KINDS:
        raise InputError(
            f"task_kinds={setting!r}; 'one', 'auto' or a number of kinds from 2 to {MOST_KINDS} is needed."
        )


def warn_of_unused(setting: TaskKindsSetting) -> None:
    """Warn where a number of kinds was asked for and cannot be used.

    Warns
    -----
    HieropoWarning
        The setting is a number.
    """
    if isinstance(setting, int):
        warn(
            f"task_kinds={setting} is not used, and all tasks vary around one mean: the fit did not find "
            f"{setting} kinds in this log. Kinds need {_FEWEST} to {_MOST} tasks in memory, at least {SMALLEST:g} "
            f"tasks of each kind, no groups or metadata, and at most {WIDEST} coefficients: (kinds x actions + 1) x "
            "features. Set fewer kinds, or task_kinds='one'."
        )


class KindsMode(NamedTuple):
    """One partition of the tasks.

    Attributes
    ----------
    weights : (n,) array
        Probabilities of the kinds.
    centres : (n, K, p) array
        Their coefficients, from which :func:`condition_kinds` finds it again.
    """

    weights: Array
    centres: Array


@dataclass(frozen=True, slots=True, eq=False)
class LearnedKinds:
    """Kinds of the tasks in each of H hierarchies.

    Attributes
    ----------
    log_odds : float
        Log Bayes factor of several kinds against one.
    sd : (H,) array
        c, in units of the noise; 0 where there is one kind.
    mode : (H,) int array
        Partition of the tasks, -1 where there is one kind.
    modes : tuple of KindsMode
    """

    log_odds: float
    sd: Array
    mode: Codes
    modes: tuple[KindsMode, ...]

    def of(self, node: int, cov: Array) -> Kinds | None:
        """Return the kinds of one hierarchy, c = 1 at a covariance; None where it has one kind."""
        at = int(self.mode[node])
        if at < 0:
            return None
        return Kinds(self.modes[at].weights, float(self.sd[node]) ** 2 * cov, self.modes[at].centres)

    def numbers(self) -> Codes:
        """Return the number of kinds (H,) of each hierarchy."""
        of_modes = np.array([1, *(mode.weights.size for mode in self.modes)], dtype=np.int64)
        return of_modes[self.mode + 1]

    def as_one(self, action_sd: Array, interaction_sd: Array) -> tuple[Array, Array]:
        """Return a and m (H,) of the Gaussian that has the covariances of tasks of all kinds."""
        alike = np.array([1.0, *(float(np.square(mode.weights).sum()) for mode in self.modes)])[self.mode + 1]
        return (
            np.sqrt(action_sd**2 + alike * self.sd**2),
            np.sqrt(interaction_sd**2 + (1 - alike) * self.sd**2),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types, from which :meth:`from_dict` makes the same value to the last bit."""
        modes = [{"weights": one.weights.tolist(), "centres": one.centres.tolist()} for one in self.modes]
        return {"log_odds": self.log_odds, "sd": self.sd.tolist(), "mode": self.mode.tolist(), "modes": modes}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        modes = tuple(
            KindsMode(np.asarray(one["weights"], dtype=float), np.asarray(one["centres"], dtype=float))
            for one in values["modes"]
        )
        sd, mode = np.asarray(values["sd"], dtype=np.float64), np.asarray(values["mode"], dtype=np.int64)
        return cls(float(values["log_odds"]), sd, mode, modes)


@dataclass(frozen=True, slots=True, eq=False)
class TaskKinds:
    """Kinds of tasks that a log shows, for the most probable number of them.

    Attributes
    ----------
    log_odds : float
        Log Bayes factor of several kinds against one.
    numbers : dict
        Posterior probability of each number of kinds, 1 among them.
    probability : (m, n) array
        Of each kind in each task, given n kinds; the largest kind first.
    effects : (n, K, p) array
        Coefficients of the actions in each kind: posterior means.
    """

    log_odds: float
    numbers: dict[int, float]
    probability: Array
    effects: Array

    @property
    def kind(self) -> Codes:
        """The most probable kind (m,) of each task, 1 for the first."""
        return np.asarray(self.probability.argmax(axis=1) + 1, dtype=np.int64)


def task_kinds_of(
    learned: LearnedKinds, weights: Array, of_parts: Array, parts: Iterable[Any]
) -> TaskKinds | None:
    """Return the kinds of tasks by posteriors under the hierarchies that are conditioned.

    Parameters
    ----------
    learned : LearnedKinds
    weights : (H,) array
        Of all hierarchies.
    of_parts : array
        Of the posteriors.
    parts : iterable of posteriors
    """
    numbers = np.bincount(learned.numbers(), weights)
    some = [
        (weight, part)
        for weight, part in zip(of_parts.tolist(), parts, strict=True)
        if isinstance(part, KindPosterior)
    ]
    if not some:
        return None
    by_number = np.bincount([part.kinds.weights.size for _, part in some], [weight for weight, _ in some])
    chosen = [(weight, part) for weight, part in some if part.kinds.weights.size == by_number.argmax()]
    whole = sum(weight for weight, _ in chosen)
    probability = sum(weight / whole * part.responsibilities[:-1] for weight, part in chosen)
    effects = sum(weight / whole * part.effects() for weight, part in chosen)
    shown = {int(n): float(numbers[n]) for n in np.flatnonzero(numbers)}
    return TaskKinds(learned.log_odds, shown, np.asarray(probability), np.asarray(effects))


class MixedKinds(NamedTuple):
    """Nodes of the hyper-parameters with kinds of tasks, with weights.

    Attributes
    ----------
    log_odds : float
        Log Bayes factor of kinds against one kind.
    weights, few : (H,) array
        Of all nodes, and of those that stand for all; both add to 1.
    action_sd, interaction_sd, kind_sd : (H,) array
        a, m and c.
    mode : (H,) int array
        Partition of each node.
    modes : tuple of KindsMode
    level_sd : (H,) array
        l.
    noise_var : float
        s^2.
    """

    log_odds: float
    weights: Array
    few: Array
    action_sd: Array
    interaction_sd: Array
    kind_sd: Array
    mode: Codes
    modes: tuple[KindsMode, ...]
    level_sd: Array
    noise_var: float

    def after(self, singles: int) -> LearnedKinds:
        """Return the kinds of hierarchies of which the first have one kind."""
        sd = np.concatenate([np.zeros(singles), self.kind_sd])
        mode = np.concatenate([np.full(singles, -1, dtype=np.int64), self.mode])
        return LearnedKinds(self.log_odds, sd, mode, self.modes)


def _surface(scales: Scales, rows: Aggregate, kind_sds: Array) -> Array:
    """Return Phi (11, c) for all a, zero first, and some c: the effects of all kinds integrated."""
    n, K, p = len(rows.score), scales.units.n_actions, scales.units.dim
    of_actions, of_kinds = (
        np.kron(np.eye(K), upper_factor(scales.noise * cov)[0])
        for cov in (scales.shapes.action, scales.shapes.interaction)
    )
    size = K * p
    below = np.zeros((n, size, (n + 1) * size + p))
    below[:, :, :size], below[:, :, -p:] = of_actions, np.tile(np.eye(p), (K, 1))
    for k in range(n):
        below[k, :, (k + 1) * size : (k + 2) * size] = of_kinds
    information = (below.swapaxes(1, 2) @ (rows.information @ below)).sum(axis=0)
    shift = np.einsum("kd,kdz->z", rows.score, below)
    a, c = (part.ravel()[:, None] for part in np.meshgrid(_with_zero(_SIZES), kind_sds, indexing="ij"))
    sds = np.concatenate(
        [np.repeat(a, size, axis=1), np.repeat(c, n * size, axis=1), np.ones((a.size, p))], axis=1
    )
    precision = information * (sds[:, :, None] * sds[:, None, :])
    at = np.arange((n + 1) * size)
    precision[:, at, at] += 1.0
    return phi(precision, shift * sds).reshape(-1, kind_sds.size)


def _with_zero(sds: Array) -> Array:
    return np.append(0.0, sds)


def _log_masses(sds: Array, most: float = np.inf) -> Array:
    """Log prior masses of the bins around some sizes of a half-Cauchy law, the last of them up to ``most``."""
    edges = np.concatenate([[0.0], np.sqrt(sds[1:] * sds[:-1]), [most]])
    return np.asarray(np.log(np.diff(2 / np.pi * np.arctan(edges))))


def _log_masses_with_zero(sds: Array, most: float = np.inf) -> Array:
    return np.asarray(np.append(0.0, _log_masses(sds, most)) - np.log(2.0))


class _Approximated(NamedTuple):
    """One partition, integrated: log evidence of all, and log weights of its nodes (m, a, c)."""

    mode: KindsMode
    level: float
    log_weights: Array  # (bins of m, 1 + sizes, sizes), with prior masses
    m: Array

    @property
    def log_evidence(self) -> float:
        """Of this partition, in all orders of its kinds."""
        return float(np.logaddexp.reduce(self.log_weights.ravel()))


class _Point(NamedTuple):
    """A fixed point of the propagation at one m, with the log evidence (1 + sizes, sizes) of all a and c there."""

    mode: KindsMode
    shares: Array
    log_evidence: Array


class _Points(NamedTuple):
    """Makes fixed points of n kinds near one (a, c), places on the grid of both."""

    scales: Scales
    n: int
    a: int
    c: int
    apart: float

    @classmethod
    def near(cls, scales: Scales, partition: Partition, m: float, apart: float) -> Self:
        """Take the (a, c) of the largest posterior density given the shares of a partition."""
        rows = Aggregate.of(scales.about_actions(m), partition.shares)
        a, c = np.unravel_index(int((_surface(scales, rows, _SIZES) + _PRIOR).argmax()), _PRIOR.shape)
        return cls(scales, partition.n, int(a), int(c), apart)

    def at(self, m: float, shares: Array) -> _Point | None:
        """Return the fixed point that some shares (t, n) lead to; None where a kind is left with too few tasks."""
        scales, n = self.scales, self.n
        about = scales.about_actions(m)
        basis = scales.basis(n, float(_with_zero(_SIZES)[self.a]), float(_SIZES[self.c]))
        terms = terms_of_kinds(about, basis)
        weights = (shares.sum(axis=0) + 1) / (len(shares) + n)
        law, _ = propagate(
            terms, weights, flat_prior(basis), Factors.averaged(terms, shares), close=_CLOSE, rounds=_ROUNDS,
            least=LEAST,
        )  # fmt: skip
        shares = law.responsibilities
        counts = shares.sum(axis=0)
        if counts.min() < SMALLEST or not law.converged or apart(shares) < self.apart:
            return None
        along = _surface(scales, Aggregate.of(about, shares), _SIZES)
        value = law.log_evidence + float(sizes_of_kinds(counts) - counts @ np.log(weights))
        centres = np.array([basis.below(k) @ law.mean for k in range(n)])
        mode = KindsMode(weights, centres.reshape(n, scales.units.n_actions, scales.units.dim))
        return _Point(mode, shares, value + along - along[self.a, self.c])


def apart(shares: Array) -> float:
    """Return how far the two kinds that are most alike share no tasks, by shares (t, n): 1 none, 0 each alike.

    Near 0 the propagation has settled between the orders of the kinds: these are then no modes of their own, and its
    evidence is wrong by 4 to 12 for 12 tasks, as the sum over all labels of a small log says.
    """
    first, second = np.triu_indices(shares.shape[1], 1)
    away = np.abs(shares[:, first] - shares[:, second]).sum(axis=0)
    counts = shares.sum(axis=0)
    return float((away / (counts[first] + counts[second])).min())


def _approximated(scales: Scales, partition: Partition, least_apart: float) -> _Approximated | None:
    """Integrate m, a and c; None where the partition is no mode, or a kind is left with too few tasks."""
    scales = scales._replace(level=partition.level)
    if partition.width < _NARROW:
        ms = _with_zero(partition.m * np.exp(partition.width * _DEVIATIONS))
        start = _DEVIATIONS.size // 2 + 1
    else:
        ms = _with_zero(_INTERACTIONS * scales.m)
        start = int(np.argmin(np.abs(_INTERACTIONS - WITHIN[0]))) + 1
    points = _Points.near(scales, partition, float(ms[start]), least_apart)
    first = points.at(float(ms[start]), partition.shares)
    if first is None:
        return None
    values = np.full((ms.size, *_PRIOR.shape), -np.inf)
    values[start] = first.log_evidence
    for outwards in (range(start + 1, ms.size), range(start - 1, -1, -1)):
        shares = first.shares
        for at in outwards:
            point = points.at(float(ms[at]), shares)
            if point is None:
                continue
            values[at], shares = point.log_evidence, point.shares
            if point.log_evidence.max() < values.max() - _OUTSIDE:
                break
    bins = np.geomspace(ms[1], ms[-1], _BINS)
    fine = _along_m(ms[1:], values[1:], bins)
    mass = _log_masses_with_zero(bins, _BEYOND * float(bins[-1]))  # a larger m adds no evidence for kinds
    log_weights = np.concatenate([values[:1], fine]) + mass[:, None, None] + _PRIOR
    return _Approximated(first.mode, scales.level, log_weights, _with_zero(bins))


def _along_m(m: Array, values: Array, bins: Array) -> Array:
    """Interpolate log evidences (nodes, ...) along log m."""
    from scipy.interpolate import CubicSpline, PchipInterpolator

    if np.isfinite(values).all():
        return np.asarray(CubicSpline(np.log(m), values, axis=0)(np.log(bins)))
    low = np.where(np.isfinite(values), values, values[np.isfinite(values)].min() - 50)
    return np.asarray(PchipInterpolator(np.log(m), low, axis=0)(np.log(bins)))


def _one_kind(scales: Scales) -> float:
    """Log evidence of one kind, a and m integrated."""
    from scipy.interpolate import CubicSpline

    shares = np.ones((len(scales.units.tasks), 1))
    nodes, values = np.geomspace(scales.m / 4, scales.m * 4, _NODES_OF_ONE), []
    for m in _with_zero(nodes).tolist():
        about = scales.about_actions(m)
        along = _surface(scales, Aggregate.of(about, shares), np.zeros(1))[:, 0] + _PRIOR_OF_ACTIONS
        values.append(float(about.constant.sum()) + float(np.logaddexp.reduce(along)))
    bins = np.geomspace(nodes[0], nodes[-1], _BINS_OF_ONE)
    fine = CubicSpline(np.log(nodes), values[1:])(np.log(bins))
    return float(np.logaddexp.reduce(np.append(values[0], fine) + _log_masses_with_zero(bins)))


_PRIOR_OF_ACTIONS = _log_masses_with_zero(_SIZES)
_PRIOR = _PRIOR_OF_ACTIONS[:, None] + _log_masses(_SIZES)  # of a, zero first, and c


def _enough_tasks(moments: Moments) -> bool:
    return bool(_FEWEST <= np.count_nonzero(moments.rows.any(axis=1)) <= _MOST)


def kinds_out_of_reach(moments: Moments) -> str:
    """Return why kinds of tasks are not looked for, as a sentence has it; empty where they are."""
    t, K, p = int(np.count_nonzero(moments.rows.any(axis=1))), moments.n_actions, moments.unit_dim
    if not _enough_tasks(moments):
        return f"the search needs {_FEWEST} to {_MOST:,} tasks with rows, and this log has {t:,}"
    if not room_for(2, t, K, p):
        return f"two kinds of {K:,} actions with {p:,} columns in {t:,} tasks have too many coefficients"
    return ""


def mixed_kinds(
    moments: Moments, shapes: Shapes, sds: tuple[float, float, float], noise: float, number: int | None = None
) -> MixedKinds | None:
    """Return the kinds of tasks that a log shows; None where it does not.

    Parameters
    ----------
    moments : Moments
    shapes : Shapes
    sds : (float, float, float)
        a, l and m of the one kind that the log has otherwise, in units of the noise.
    noise : float
        Its s^2.
    number : int, optional
        Kinds that there are; default as the evidence says, none unless it is ten to one for them.
    """
    a, level, m = sds
    if not _enough_tasks(moments) or m <= 0:
        return None
    units = ObservedUnits.of(moments, shapes.noise_ratio).over(noise)
    units = units.of_tasks(_by_id(moments.keys.values[units.tasks]))
    scales = Scales(units, shapes, a, level, m, noise)
    numbers = tuple(n for n in (range(2, MOST_KINDS + 1) if number is None else (number,)) if scales.room(n))
    if not numbers:
        return None
    try:
        return _integrated(scales, numbers, given=number is not None)
    except (NumericalError, np.linalg.LinAlgError):  # a log that says too little of a task without the others
        return None


def _by_id(ids: Ids) -> Codes:
    """Return the order (n,) of ids, of others than numbers that of their texts: it chooses where searches start."""
    texts = ids if ids.dtype.kind in "iufM" else np.array([str(task) for task in ids.tolist()])
    return np.argsort(texts, kind="stable")


def _integrated(scales: Scales, numbers: tuple[int, ...], *, given: bool) -> MixedKinds | None:
    about = scales.about_actions(scales.m)
    plain = Aggregate.of(about, np.ones((len(scales.units.tasks), 1)))
    near = float(about.constant.sum()) + plain.law(scales.basis(1, scales.a, 0.0))[1]
    sought = partitions(scales, numbers, -np.inf if given else near + _POSSIBLE)
    least = 0.0 if given else _APART
    some = [
        one for one in (_approximated(scales, partition, least) for partition in sought) if one is not None
    ]
    if not some:
        return None
    evidence = np.array([one.log_evidence for one in some])
    log_odds = float(np.logaddexp.reduce(evidence) - np.log(len(numbers)) - _one_kind(scales))
    if not given and not log_odds > ODDS:
        return None
    return _flat(scales, some, log_odds)


def _flat(scales: Scales, some: list[_Approximated], log_odds: float) -> MixedKinds:
    """Put the nodes of all partitions side by side, and choose the few that stand for all."""
    log_weights = np.concatenate([one.log_weights.ravel() for one in some])
    sizes: list[Any] = []
    for at, one in enumerate(some):
        m, a, c = (part.ravel() for part in np.meshgrid(one.m, _with_zero(_SIZES), _SIZES, indexing="ij"))
        sizes.append((m, a, c, np.full(m.size, at)))
    m, a, c, mode = (np.concatenate(part) for part in zip(*sizes, strict=True))
    share = np.exp(log_weights - log_weights.max())
    kept = share > _KEPT
    share, m, a, c, mode = (part[kept] for part in (share / share[kept].sum(), m, a, c, mode))
    few = np.zeros(share.size)
    for pattern in np.unique(2 * mode + (m > 0)):
        members = np.flatnonzero(2 * mode + (m > 0) == pattern)
        if share[members].sum() > _RARE:
            few[members] = _few(share[members], m[members], (a[members], c[members]))
    few /= few.sum()
    order = np.lexsort((m, mode))
    points = np.searchsorted(np.cumsum(share[order]), (np.arange(_SHOWN) + 0.5) / _SHOWN)
    shown = np.bincount(order[np.minimum(points, order.size - 1)], minlength=order.size) / _SHOWN
    taken = (few > 0) | (shown > 0)
    return MixedKinds(
        log_odds, shown[taken], few[taken], a[taken], m[taken], c[taken], mode[taken],
        tuple(one.mode for one in some), np.array([one.level for one in some])[mode[taken]], scales.noise,
    )  # fmt: skip


def _few(weights: Array, m: Array, others: tuple[Array, Array]) -> Array:
    """Return weights on few nodes with the same mean and variance of m, and the same means of a and c.

    Logs of weights, and sizes, are rounded, so that rounding elsewhere does not decide which nodes are taken.
    """
    from scipy.optimize import nnls

    share = np.exp(np.round(np.log(weights / weights.sum()), DECIMALS))
    share /= share.sum()
    rows = [np.ones(share.size)]
    for sd in (*others, m):
        u = np.round(np.arctan(sd), _SIZE_DECIMALS)
        away = u - share @ u
        rows.append(away / max(float(np.sqrt(share @ away**2)), 1e-12))
    rows.append(rows[-1] ** 2)
    table = np.array(rows)
    first = 1.0 + _PREFERRED * share / share.max()  # of nodes that serve alike, not as rounding has it
    few = first * nnls(table * first, table @ share)[0]
    return np.asarray(few * (weights.sum() / few.sum()), dtype=np.float64)
