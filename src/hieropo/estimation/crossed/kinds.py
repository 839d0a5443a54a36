"""Kinds of tasks, found and chosen by their evidence: which tasks are alike, and in how many kinds they fall.

    theta_sa = beta + alpha_a + eta_ka + u_s + gamma_sa      eta_ka ~ N(0, c^2 s^2 M)      gamma_sa ~ N(0, m^2 s^2 M)

for a task s of kind k, in the words of :mod:`mixture`. A priori the number n of kinds is 2 to 6, each as likely as the
others, the probabilities of the kinds are uniform (Dirichlet(1, ..., 1)), c is half-Cauchy, and a and m are as without
kinds.

1. Partitions are found by variational steps from several starts (k-means++ on the estimates of single tasks). The bound

       log p >= sum_s kappa_s + Phi(r) + H(r) + log DM(sum_s r_s) + log n!

   of the shares r of the kinds in the tasks, with Phi of :mod:`propagation` for the aggregated rows of each kind and DM
   the probability of the sizes of the kinds under the uniform prior, says where no number of kinds can have ten times
   the evidence of one kind. A log that has none pays for this alone.
2. The partitions of the largest bounds are approximated by :mod:`propagation` at several m, where the labels are
   integrated out, and a task's label is judged by the rows of all others. The evidence along a and c is that of the
   aggregated rows; along m it is a spline. Every order of the kinds is a mode of its own: n! of them.
3. Where all partitions together have ten times the evidence of one kind, hierarchies of both are averaged by their
   evidence; else nothing changes. l and s^2 are those of one kind.

Cheeseman and Stutz (1996), Bayesian classification (AutoClass); Minka (2001), Expectation propagation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from scipy.special import gammaln, xlogy

from hieropo._utils.arrays import Array, Codes
from hieropo.errors import InputError, NumericalError, warn
from hieropo.estimation.crossed.shapes import Shapes
from hieropo.model.crossed.hierarchy import Kinds
from hieropo.model.crossed.kinds import (
    KindPosterior,
    flat_prior,
    kinds_basis,
    log_densities,
    shares_of,
    terms_of_kinds,
)
from hieropo.model.crossed.labels import LabelBasis
from hieropo.model.crossed.propagation import Factors, TaskTerms, inverted, propagate
from hieropo.model.crossed.steps import ObservedUnits
from hieropo.moments.statistics import Moments

TaskKindsSetting = Literal["one", "auto"] | int
MOST_KINDS = 6
ODDS = float(np.log(10.0))  # log Bayes factor from which kinds are used
_POSSIBLE = -1.5  # bound of the evidence of kinds over that of one, below which they are given up
_BEHIND = 6.0  # log evidence behind the best bound, up to which a partition is approximated
_PARTITIONS = 3  # that are approximated at most
_WIDEST = 64  # coefficients (n K + 1) p up to which they are
_ROOM = 2**21  # doubles of the information of all tasks under all kinds
_FEWEST, _MOST = 8, 300  # tasks
_SMALLEST = 3.0  # tasks that a kind has at least, by the sum of its probabilities
_STARTS, _STEPS = 4, 25
_WITHIN = (0.3, 0.6)  # m in units of that of one kind, where partitions are searched for
_INTERACTIONS = np.array([0.1, 0.2, 0.35, 0.5, 0.7, 1.0])  # the same, where they are approximated
_SIZES = np.geomspace(0.04, 5.0, 10)  # nodes of a and c
_BINS = 60  # of m
_BEYOND = 1.02  # end of the last of them, in units of its node
_CLOSE = 1e-5
_ROUNDS = 40  # of expectation propagation, in which a partition converges or is given up
_ALIKE = 0.05  # share of the tasks up to which two partitions are the same
_SEED = 20261129
_RARE = 0.04  # weight of a partition, with m = 0 or above, below which it is left out of those
_KEPT = 1e-4  # weight of a node that is kept, in units of the largest
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
            f"task_kinds={setting} is not used, and all tasks vary around one mean: the fit found no "
            f"{setting} kinds in this log. Kinds need {_FEWEST} to {_MOST} tasks in memory, at least {_SMALLEST:g} "
            f"tasks of each kind, no groups or metadata, and at most {_WIDEST} coefficients: (kinds x actions + 1) x "
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
    level_sd, noise_var : float
        l and s^2.
    """

    log_odds: float
    weights: Array
    few: Array
    action_sd: Array
    interaction_sd: Array
    kind_sd: Array
    mode: Codes
    modes: tuple[KindsMode, ...]
    level_sd: float
    noise_var: float

    def after(self, singles: int) -> LearnedKinds:
        """Return the kinds of hierarchies of which the first have one kind."""
        sd = np.concatenate([np.zeros(singles), self.kind_sd])
        mode = np.concatenate([np.full(singles, -1, dtype=np.int64), self.mode])
        return LearnedKinds(self.log_odds, sd, mode, self.modes)


class _Scales(NamedTuple):
    """The units of a log, and hyper-parameters that stay as they are without kinds: l, s^2 and a, m to start from."""

    units: ObservedUnits
    shapes: Shapes
    a: float
    level: float
    m: float
    noise: float

    def about_actions(self, m: float) -> TaskTerms:
        """Return the terms of all tasks about the coefficients of the actions, for one m."""
        noise = self.noise
        basis = np.eye(self.units.n_actions * self.units.dim)
        return TaskTerms.of(
            self.units, noise * m**2 * self.shapes.interaction, noise * self.level**2 * self.shapes.level, basis,
            np.ones(1),
        )  # fmt: skip

    def basis(self, n: int, a: float, c: float) -> LabelBasis:
        """Return the coefficients of n kinds as functions of z."""
        of_actions, of_kinds = (
            self.noise * a**2 * self.shapes.action,
            self.noise * c**2 * self.shapes.interaction,
        )
        return kinds_basis(of_actions, of_kinds, n, self.units.n_actions)

    def room(self, n: int) -> bool:
        """Return True where n kinds are few enough to be approximated."""
        return _room(n, len(self.units.tasks), self.units.n_actions, self.units.dim)


def _room(n: int, t: int, K: int, p: int) -> bool:
    D = (n * K + 1) * p
    return n * _SMALLEST <= t and D <= _WIDEST and n * t * D * D <= _ROOM


class _Aggregate(NamedTuple):
    """Rows of each kind about the coefficients of the actions: information (n, K p, K p) and score (n, K p)."""

    information: Array
    score: Array

    @classmethod
    def of(cls, about: TaskTerms, shares: Array) -> "_Aggregate":
        """Sum the terms of the tasks, by shares (t, n) of the kinds in them."""
        t, d = about.score.shape[1:]
        information = (shares.T @ about.information[0].reshape(t, d * d)).reshape(-1, d, d)
        return cls(information, shares.T @ about.score[0])

    def law(self, basis: LabelBasis) -> tuple[Array, float]:
        """Return the mean of z, and Phi."""
        below = np.array([basis.below(k) for k in range(len(self.score))])
        precision = np.diag(flat_prior(basis)) + (below.swapaxes(1, 2) @ self.information @ below).sum(axis=0)
        _, mean, phi = inverted(precision, np.einsum("kd,kdz->z", self.score, below))
        return mean, float(phi)

    def surface(self, grid: "_Grid") -> Array:
        """Return Phi for all a, zero first, and all c of a grid."""
        n = len(self.score)
        precision = np.zeros((len(grid.below), grid.below.shape[3], grid.below.shape[3]))
        for k in range(n):
            below = grid.below[:, k]
            precision += below.swapaxes(1, 2) @ (self.information[k] @ below)
        precision += np.diag(grid.prior)
        shift = np.einsum("kd,gkdz->gz", self.score, grid.below)
        return inverted(precision, shift)[2].reshape(len(_SIZES) + 1, -1)


class _Grid(NamedTuple):
    """Coefficients of n kinds as functions of z for all a, zero first, and all c: (a c, n, K p, D)."""

    below: Array
    prior: Array

    @classmethod
    def of(cls, scales: _Scales, n: int, c_sds: Array) -> "_Grid":
        """Make that of n kinds; D is the same for all since c > 0, and for one kind c = 0 there is none of a = 0."""
        some = [scales.basis(n, a, c) for a in np.append(0.0, _SIZES).tolist() for c in c_sds.tolist()]
        below = np.array([[basis.below(k) for k in range(n)] for basis in some])
        return cls(below, flat_prior(some[0]))


def _log_masses(sds: Array, most: float = np.inf) -> Array:
    """Log prior masses of the bins around some sizes of a half-Cauchy law, the last of them up to ``most``."""
    edges = np.concatenate([[0.0], np.sqrt(sds[1:] * sds[:-1]), [most]])
    return np.asarray(np.log(np.diff(2 / np.pi * np.arctan(edges))))


def _log_masses_with_zero(sds: Array, most: float = np.inf) -> Array:
    return np.asarray(np.append(0.0, _log_masses(sds, most)) - np.log(2.0))


def _sizes_of_kinds(counts: Array) -> float:
    """Log of n! times the Dirichlet-multinomial probability of some labels with these counts (n,)."""
    n = counts.size
    return float(gammaln(n) + gammaln(counts + 1).sum() - gammaln(counts.sum() + n) + gammaln(n + 1))


class _Partition(NamedTuple):
    """Shares (t, n) of the kinds in the tasks, and the bound of its log evidence."""

    shares: Array
    bound: float

    @property
    def n(self) -> int:
        """The number of kinds."""
        return int(self.shares.shape[1])

    def alike(self, other: "_Partition") -> bool:
        """Return True for the same partition, in any order of the kinds."""
        if self.n != other.n:
            return False
        away = np.abs(self.in_order_of(other).shares - other.shares).sum() / 2
        return bool(away <= _ALIKE * len(self.shares))

    def in_order_of(self, other: "_Partition") -> "_Partition":
        """Return the same with its kinds in the order of those of another partition of as many."""
        from scipy.optimize import linear_sum_assignment

        _, columns = linear_sum_assignment(-(other.shares.T @ self.shares))
        return self._replace(shares=self.shares[:, columns])

    def by_size(self) -> "_Partition":
        """Return the same with the largest kind first."""
        return self._replace(shares=self.shares[:, np.argsort(-self.shares.sum(axis=0), kind="stable")])


class _Search(NamedTuple):
    """Rows of the tasks about the actions at one m, and their estimates one by one."""

    scales: _Scales
    about: TaskTerms
    estimates: Array  # (t, K p)

    @classmethod
    def of(cls, scales: _Scales, m: float) -> "_Search":
        about = scales.about_actions(m)
        G, B = about.information[0], about.score[0]
        d = B.shape[1]
        cov = scales.noise * max(scales.m, 0.02) ** 2 * scales.shapes.interaction
        prior = np.kron(np.eye(scales.units.n_actions), cov)
        small = 1e-9 * np.trace(G.sum(axis=0)) * np.eye(d)
        pooled = np.linalg.solve(G.sum(axis=0) + small, B.sum(axis=0))
        single = np.linalg.solve(np.eye(d) + G @ prior, (B - G @ pooled)[..., None])[..., 0] @ prior
        return cls(scales, about, pooled + single)

    def start(self, n: int, rng: np.random.Generator) -> Array:
        """Draw the centres (n, K p) of k-means++, by distances in the metric of a task's rows."""
        chosen = [int(rng.integers(len(self.estimates)))]
        for _ in range(n - 1):
            away = self.estimates[:, None] - self.estimates[chosen]
            squares = np.einsum("tki,tij,tkj->tk", away, self.about.information[0], away).min(axis=1)
            squares = np.maximum(squares, 1e-12)
            chosen.append(int(rng.choice(len(squares), p=squares / squares.sum())))
        return self.estimates[chosen]

    def steps(self, centres: Array) -> _Partition | None:
        """Take variational steps from some centres; None where a kind is left without tasks."""
        n, bound = len(centres), -np.inf
        scales = self.scales
        basis = scales.basis(n, max(scales.a, 0.05), max(scales.m, 0.05))
        below = np.array([basis.below(k) for k in range(n)])
        log_weights = np.full(n, -np.log(n))
        for step in range(_STEPS):
            shares = shares_of(log_densities(self.about, centres) + log_weights)
            counts = shares.sum(axis=0)
            if counts.min() < 1.0:
                return None
            log_weights = np.log(counts + 1) - np.log(counts.sum() + n)
            mean, phi = _Aggregate.of(self.about, shares).law(basis)
            centres = below @ mean
            last, bound = bound, phi - float(xlogy(shares, shares).sum()) + _sizes_of_kinds(counts)
            if step > 2 and bound - last < 0.01:
                break
        if counts.min() < _SMALLEST:
            return None
        return _Partition(shares, bound + float(self.about.constant.sum()))


def _partitions(scales: _Scales, numbers: tuple[int, ...], least: float) -> list[_Partition]:
    """Return the partitions of the largest bounds, best first; none where no bound reaches ``least``."""
    rng = np.random.default_rng(_SEED)
    searches = [_Search.of(scales, share * scales.m) for share in _WITHIN]
    partitions: list[_Partition] = []
    best_before = -np.inf
    for n in numbers:
        starts = [search.steps(search.start(n, rng)) for search in searches for _ in range(_STARTS)]
        some = sorted((one for one in starts if one is not None), key=lambda one: -one.bound)
        for one in some:
            if not any(one.alike(other) for other in partitions):
                partitions.append(one)
        best = some[0].bound if some else -np.inf
        if n >= 3 and best < max(best_before, least):  # more kinds have less evidence
            break
        best_before = max(best, best_before)
    partitions.sort(key=lambda one: -one.bound)
    if not partitions or partitions[0].bound < least:
        return []
    close = [one for one in partitions if one.bound > partitions[0].bound - _BEHIND]
    chosen: list[_Partition] = []
    for one in close[:_PARTITIONS]:
        first = next((other for other in chosen if other.n == one.n), None)
        chosen.append(one.by_size() if first is None else one.in_order_of(first))
    return chosen


class _Approximated(NamedTuple):
    """One partition, integrated: log evidence of all, and log weights of its nodes (m, a, c)."""

    mode: KindsMode
    log_weights: Array  # (bins of m, 1 + sizes, sizes), with prior masses
    m: Array

    @property
    def log_evidence(self) -> float:
        """Of this partition, in all orders of its kinds."""
        return float(np.logaddexp.reduce(self.log_weights.ravel()))


def _approximated(scales: _Scales, partition: _Partition) -> _Approximated | None:
    """Integrate m, a and c; None where the partition is no mode, or a kind is left with too few tasks."""
    n, shares = partition.n, partition.shares
    a, c = max(scales.a, 0.05), max(scales.m, 0.05)
    prior = _log_masses_with_zero(_SIZES)[:, None] + _log_masses(_SIZES)
    grid = _Grid.of(scales, n, _SIZES)
    ms = np.append(0.0, _INTERACTIONS * scales.m)
    start = int(np.argmin(np.abs(_INTERACTIONS - _WITHIN[0]))) + 1
    centres = None
    by_m: dict[int, tuple[Array, Array]] = {}
    for at in [start, *range(start + 1, ms.size), *range(start - 1, -1, -1)]:
        about = scales.about_actions(float(ms[at]))
        if at == start - 1:
            shares = by_m[start][1]
        if at == start:  # a and c of the partition
            surface = _Aggregate.of(about, shares).surface(grid) + prior
            i, j = np.unravel_index(int(surface.argmax()), surface.shape)
            a, c = float(np.append(0.0, _SIZES)[i]), float(_SIZES[j])
        basis = scales.basis(n, a, c)
        terms = terms_of_kinds(about, basis)
        weights = (shares.sum(axis=0) + 1) / (len(shares) + n)
        law, _ = propagate(
            terms, weights, flat_prior(basis), Factors.averaged(terms, shares), close=_CLOSE, rounds=_ROUNDS
        )
        shares = law.responsibilities
        counts = shares.sum(axis=0)
        if counts.min() < _SMALLEST or not law.converged:
            if at == start:
                return None
            by_m[at] = np.full_like(prior, -np.inf), by_m[start][1]
            shares = by_m[start][1]
            continue
        along = _Aggregate.of(about, shares)
        value = law.log_evidence + _sizes_of_kinds(counts) - float(counts @ np.log(weights))
        by_m[at] = value + along.surface(grid) - along.law(basis)[1], shares
        if at == start:
            centres = np.array([basis.below(k) @ law.mean for k in range(n)])
            mode_weights = weights
    K, p = scales.units.n_actions, scales.units.dim
    assert centres is not None
    values = np.array([by_m[at][0] for at in range(ms.size)])
    bins = np.geomspace(_INTERACTIONS[0] * scales.m, _INTERACTIONS[-1] * scales.m, _BINS)
    fine = _along_m(ms[1:], values[1:], bins)
    mass = _log_masses_with_zero(bins, _BEYOND * float(bins[-1]))  # a larger m adds no evidence for kinds
    log_weights = np.concatenate([values[:1], fine]) + mass[:, None, None] + prior
    return _Approximated(KindsMode(mode_weights, centres.reshape(n, K, p)), log_weights, np.append(0.0, bins))


def _along_m(m: Array, values: Array, bins: Array) -> Array:
    """Interpolate log evidences (nodes, ...) along log m."""
    from scipy.interpolate import PchipInterpolator

    low = np.where(np.isfinite(values), values, values[np.isfinite(values)].min() - 50)
    return np.asarray(PchipInterpolator(np.log(m), low, axis=0)(np.log(bins)))


def _one_kind(scales: _Scales) -> float:
    """Log evidence of one kind, a and m integrated."""
    shares = np.ones((len(scales.units.tasks), 1))
    bases = [scales.basis(1, a, 0.0) for a in np.append(0.0, _SIZES).tolist()]
    bins, values = np.geomspace(scales.m / 4, scales.m * 4, 25), []
    for m in np.append(0.0, bins).tolist():
        about = scales.about_actions(m)
        rows = _Aggregate.of(about, shares)
        along = np.array([rows.law(basis)[1] for basis in bases]) + _log_masses_with_zero(_SIZES)
        values.append(float(about.constant.sum()) + float(np.logaddexp.reduce(along)))
    return float(np.logaddexp.reduce(np.array(values) + _log_masses_with_zero(bins)))


def _enough_tasks(moments: Moments) -> bool:
    return bool(_FEWEST <= np.count_nonzero(moments.rows.any(axis=1)) <= _MOST)


def kinds_out_of_reach(moments: Moments) -> str:
    """Return why kinds of tasks are not looked for, as a sentence has it; empty where they are."""
    t, K, p = int(np.count_nonzero(moments.rows.any(axis=1))), moments.n_actions, moments.unit_dim
    if not _enough_tasks(moments):
        return f"the search needs {_FEWEST} to {_MOST:,} tasks with rows, and this log has {t:,}"
    if not _room(2, t, K, p):
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
    scales = _Scales(units, shapes, a, level, m, noise)
    numbers = tuple(n for n in (range(2, MOST_KINDS + 1) if number is None else (number,)) if scales.room(n))
    if not numbers:
        return None
    try:
        return _integrated(scales, numbers, given=number is not None)
    except (NumericalError, np.linalg.LinAlgError):  # a log that says too little of a task without the others
        return None


def _integrated(scales: _Scales, numbers: tuple[int, ...], *, given: bool) -> MixedKinds | None:
    about = scales.about_actions(scales.m)
    plain = _Aggregate.of(about, np.ones((len(scales.units.tasks), 1)))
    near = float(about.constant.sum()) + plain.law(scales.basis(1, scales.a, 0.0))[1]
    partitions = _partitions(scales, numbers, -np.inf if given else near + _POSSIBLE)
    tried = (_approximated(scales, partition) for partition in partitions)
    some = [partition for partition in tried if partition is not None]
    if not some:
        return None
    evidence = np.array([one.log_evidence for one in some])
    log_odds = float(np.logaddexp.reduce(evidence) - np.log(len(numbers)) - _one_kind(scales))
    if not given and not log_odds > ODDS:
        return None
    return _flat(scales, some, log_odds)


def _flat(scales: _Scales, some: list[_Approximated], log_odds: float) -> MixedKinds:
    """Put the nodes of all partitions side by side, and choose the few that stand for all."""
    log_weights = np.concatenate([one.log_weights.ravel() for one in some])
    sizes: list[Any] = []
    for at, one in enumerate(some):
        m, a, c = (part.ravel() for part in np.meshgrid(one.m, np.append(0.0, _SIZES), _SIZES, indexing="ij"))
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
        tuple(one.mode for one in some), scales.level, scales.noise,
    )  # fmt: skip


def _few(weights: Array, m: Array, others: tuple[Array, Array]) -> Array:
    """Return weights on few nodes with the same mean and variance of m, and the same means of a and c."""
    from scipy.optimize import nnls

    share = weights / weights.sum()
    rows = [np.ones(share.size)]
    for sd in (*others, m):
        u = np.arctan(sd)
        away = u - share @ u
        rows.append(away / max(float(np.sqrt(share @ away**2)), 1e-12))
    rows.append(rows[-1] ** 2)
    table = np.array(rows)
    few = nnls(table, table @ share)[0]
    return np.asarray(few * (weights.sum() / few.sum()), dtype=np.float64)
