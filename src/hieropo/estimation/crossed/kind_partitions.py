"""Partitions of the tasks into kinds, and bounds of their log evidence: the test that a log without kinds pays for.

In the words of :mod:`kinds`, m, a and c are fixed. A variational step takes the mean of the coefficients of all kinds
given the shares r of the kinds in the tasks, and the shares given that mean. The bound

    log p >= sum_s kappa_s + Phi(r) + H(r) + log DM(sum_s r_s) + log n!

grows in nearly every step. Steps of all starts with one number of kinds are taken side by side. Where a bound passes
the test, m and l of each partition are those where its bound, the shares kept, is largest.
"""

from typing import NamedTuple, Self

import numpy as np
from scipy.special import gammaln, xlogy

from hieropo._kernels.reference.gaussians import inverted
from hieropo._utils.arrays import Array
from hieropo.estimation.crossed.shapes import Shapes
from hieropo.model.crossed.kinds import flat_prior, kinds_basis
from hieropo.model.crossed.labels import LabelBasis
from hieropo.model.crossed.propagation import TaskTerms
from hieropo.model.crossed.steps import ObservedUnits

SMALLEST = 3.0  # tasks that a kind has at least, by the sum of its probabilities
WITHIN = (0.3, 0.6)  # m in units of that of one kind, where partitions are searched for
WIDEST = 64  # coefficients (n K + 1) p up to which kinds are looked for
_ROOM = 2**21  # doubles of the information of all tasks under all kinds
_BEHIND = 6.0  # log evidence behind the best bound, up to which a partition is approximated
_PARTITIONS = 3  # that are approximated at most
_STARTS, _STEPS = 4, 25
_FIRST = 2  # step from which on a start may end
_GAIN = 0.01  # of the bound in one step, below which it does
_AHEAD = 8.0  # times that gain, by which the bound may grow yet
_NODES = np.geomspace(0.1, 1.0, 8)  # of m, in units of that of one kind, between which a bound is a spline
_LEVELS = np.geomspace(0.4, 5.0, 8)  # of l alike
_LEAST_LEVEL = 0.02  # l from which on it is sought
_MOVED = 1.0  # of the bound, from which on l is changed
_FINE = 93  # values of m where it is read
_ALIKE = 0.05  # share of the tasks up to which two partitions are the same
_SEED = 20261129


class Scales(NamedTuple):
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
        return room_for(n, len(self.units.tasks), self.units.n_actions, self.units.dim)


def room_for(n: int, t: int, K: int, p: int) -> bool:
    """Return True where n kinds of t tasks, K actions and p columns are few enough to be approximated."""
    D = (n * K + 1) * p
    return n * SMALLEST <= t and D <= WIDEST and n * t * D * D <= _ROOM


class Aggregate(NamedTuple):
    """Rows of each kind about the coefficients of the actions: information (n, K p, K p) and score (n, K p)."""

    information: Array
    score: Array

    @classmethod
    def of(cls, about: TaskTerms, shares: Array) -> Self:
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


def sizes_of_kinds(counts: Array) -> Array:
    """Log of n! times the Dirichlet-multinomial probability of some labels with these counts (..., n)."""
    n, total = counts.shape[-1], counts.sum(axis=-1)
    return np.asarray(gammaln(n) + gammaln(counts + 1).sum(axis=-1) - gammaln(total + n) + gammaln(n + 1))


class Partition(NamedTuple):
    """Shares of the kinds in the tasks.

    Attributes
    ----------
    shares : (t, n) array
    bound : float
        Lower bound of the log evidence.
    m : float
        Where the bound is largest; 0 where it was taken at one m alone.
    width : float
        Standard deviation of log m, by the curvature of the bound.
    level : float
        l of the bound.
    """

    shares: Array
    bound: float
    level: float
    m: float = 0.0
    width: float = np.inf

    @property
    def n(self) -> int:
        """The number of kinds."""
        return int(self.shares.shape[1])

    def alike(self, other: "Partition") -> bool:
        """Return True for the same partition, in any order of the kinds."""
        if self.n != other.n:
            return False
        away = np.abs(self.in_order_of(other).shares - other.shares).sum() / 2
        return bool(away <= _ALIKE * len(self.shares))

    def in_order_of(self, other: "Partition") -> "Partition":
        """Return the same with its kinds in the order of those of another partition of as many."""
        from scipy.optimize import linear_sum_assignment

        _, columns = linear_sum_assignment(-(other.shares.T @ self.shares))
        return self._replace(shares=self.shares[:, columns])

    def by_size(self) -> "Partition":
        """Return the same with the largest kind first."""
        return self._replace(shares=self.shares[:, np.argsort(-self.shares.sum(axis=0), kind="stable")])


class PartitionSearch(NamedTuple):
    """Rows of the tasks about the actions at one m, and their estimates one by one."""

    scales: Scales
    about: TaskTerms
    estimates: Array  # (t, K p)

    @classmethod
    def of(cls, scales: Scales, m: float) -> Self:
        """Estimate each task around the mean of all."""
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
        nearest = np.full(len(self.estimates), np.inf)
        for _ in range(n - 1):
            away = self.estimates - self.estimates[chosen[-1]]
            squares = np.einsum("ti,ti->t", (away[:, None] @ self.about.information[0])[:, 0], away)
            nearest = np.minimum(nearest, np.maximum(squares, 1e-12))
            chosen.append(int(rng.choice(len(nearest), p=nearest / nearest.sum())))
        return self.estimates[chosen]

    def steps(self, centres: Array, least: float = -np.inf) -> list[Partition]:
        """Take variational steps from each of S starts, centres (S, n, K p), where every kind keeps its tasks.

        A start whose bound is not on the way to ``least`` is left where it is.
        """
        S, n, d = centres.shape
        t, scales = self.about.score.shape[1], self.scales
        basis = scales.basis(n, max(scales.a, 0.05), max(scales.m, 0.05))
        below, prior = np.array([basis.below(k) for k in range(n)]), np.diag(flat_prior(basis))
        information, score = self.about.information[0].reshape(t, d * d), self.about.score[0]
        log_weights, bound = np.full((S, n), -np.log(n)), np.full(S, -np.inf)
        found: dict[int, Partition] = {}
        start, constant = np.arange(S), float(self.about.constant.sum())
        for step in range(_STEPS):
            squares = (centres[..., :, None] * centres[..., None, :]).reshape(-1, d * d)
            joint = (centres.reshape(-1, d) @ score.T - 0.5 * (squares @ information.T)).reshape(-1, n, t)
            joint += log_weights[:, :, None]
            shares = np.exp(joint - joint.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)  # (S, n, t)
            counts = shares.sum(axis=2)
            full = counts.min(axis=1) >= 1.0
            start, bound, shares, counts = start[full], bound[full], shares[full], counts[full]
            if not start.size:
                break
            log_weights = np.log(counts + 1) - np.log(t + n)
            mean, phi = _laws(information, score, shares, below, prior)
            centres = np.einsum("kdz,sz->skd", below, mean)
            last, bound = bound, phi - xlogy(shares, shares).sum(axis=(1, 2)) + sizes_of_kinds(counts)
            gain = bound - last
            ends = (step >= _FIRST) & ((gain < _GAIN) | (bound + _AHEAD * gain < least - constant))
            ends |= step == _STEPS - 1
            for at in np.flatnonzero(ends & (counts.min(axis=1) >= SMALLEST)).tolist():
                found[int(start[at])] = Partition(
                    shares[at].T.copy(), float(bound[at]) + constant, scales.level
                )
            start, bound, centres, log_weights = (
                part[~ends] for part in (start, bound, centres, log_weights)
            )
            if not start.size:
                break
        return [found[at] for at in sorted(found)]


def _laws(information: Array, score: Array, shares: Array, below: Array, prior: Array) -> tuple[Array, Array]:
    """Means (S, D) of z, and Phi (S,), by shares (S, n, t) of the kinds and rows of tasks (t, d d), (t, d)."""
    S, n, t = shares.shape
    d, by_kind = score.shape[1], shares.reshape(S * n, t)
    of_kinds = (by_kind @ information).reshape(S, n, d, d)
    precision = prior + (below.swapaxes(1, 2) @ of_kinds @ below).sum(axis=1)
    _, mean, phi = inverted(precision, np.einsum("skd,kdz->sz", (by_kind @ score).reshape(S, n, d), below))
    return mean, phi


class _Along(NamedTuple):
    """Bounds of partitions along m and l, the shares kept."""

    scales: Scales

    def of_rows(self, about: TaskTerms, some: list[Partition]) -> Array:
        """Return the part of the bound of each partition, of one number of kinds, that m and l change."""
        shares = np.array([one.shares.T for one in some])
        basis = self.scales.basis(some[0].n, max(self.scales.a, 0.05), max(self.scales.m, 0.05))
        below = np.array([basis.below(k) for k in range(some[0].n)])
        d = below.shape[1]
        rows = about.information[0].reshape(-1, d * d), about.score[0]
        return _laws(*rows, shares, below, np.diag(flat_prior(basis)))[1] + float(about.constant.sum())

    def best(self, some: list[Partition]) -> list[Partition]:
        """Return partitions of one number of kinds, each with its largest bound along m."""
        nodes = self.scales.m * _NODES
        values = np.array([self.of_rows(self.scales.about_actions(m), some) for m in nodes.tolist()])
        fine, along, bend = _curve(nodes, values)
        shares = np.array([one.shares.T for one in some])
        of_shares = sizes_of_kinds(shares.sum(axis=2)) - xlogy(shares, shares).sum(axis=(1, 2))
        best = []
        for j, one in enumerate(some):
            at = int(along[:, j].argmax())
            inside = 0 < at < _FINE - 1 and bend[at, j] > 0
            width = float(1 / np.sqrt(bend[at, j])) if inside else np.inf
            bound = max(one.bound, float(along[at, j] + of_shares[j]))
            best.append(one._replace(bound=bound, m=float(fine[at]), width=width))
        return best

    def level(self, one: Partition) -> float:
        """Return l where the bound of a partition is largest; that of the hierarchy where it gains hardly more."""
        nodes = max(self.scales.level, _LEAST_LEVEL) * _LEVELS
        values = [
            self.of_rows(self.scales._replace(level=level).about_actions(one.m), [one])
            for level in nodes.tolist()
        ]
        fine, along, _ = _curve(nodes, np.array(values))
        at = int(along[:, 0].argmax())
        here = float(np.interp(np.log(max(self.scales.level, nodes[0])), np.log(fine), along[:, 0]))
        return float(fine[at]) if along[at, 0] > here + _MOVED else self.scales.level


def _curve(nodes: Array, values: Array) -> tuple[Array, Array, Array]:
    """Return sizes between some nodes, and values (nodes, ...) and the bend of their curve along the logarithm."""
    from scipy.interpolate import CubicSpline

    logs = np.log(nodes)
    fine = np.linspace(logs[0], logs[-1], _FINE)
    curve = CubicSpline(logs, values)
    return np.exp(fine), curve(fine), -curve(fine, 2)


def _searched(scales: Scales, n: int, least: float, rng: np.random.Generator) -> list[Partition]:
    """Return where all starts with n kinds end."""
    ends: list[Partition] = []
    for share in WITHIN:
        search = PartitionSearch.of(scales, share * scales.m)
        ends += search.steps(np.array([search.start(n, rng) for _ in range(_STARTS)]), least)
    return ends


def _best_ends(
    scales: Scales, n: int, least: float, rng: np.random.Generator
) -> tuple[list[Partition], Scales]:
    """Return partitions into n kinds, best first, at their m where a bound is above ``least``; and their l."""
    ends = _searched(scales, n, least, rng)
    if ends and max(one.bound for one in ends) > least:
        ends = _Along(scales).best(ends)
        level = _Along(scales).level(max(ends, key=lambda one: one.bound))
        if level != scales.level:
            scales = scales._replace(level=level)
            others = _searched(scales, n, least, rng)
            ends += _Along(scales).best(others) if others else []
    return sorted(ends, key=lambda one: -one.bound), scales


def partitions(scales: Scales, numbers: tuple[int, ...], least: float) -> list[Partition]:
    """Return the partitions of the largest bounds, best first; none where no bound reaches ``least``.

    Where a partition asks for another l, all are sought with that, too.
    """
    rng = np.random.default_rng(_SEED)
    some: list[Partition] = []
    best_before = -np.inf
    for n in numbers:
        ends, scales = _best_ends(scales, n, least, rng)
        some += ends
        best = ends[0].bound if ends else -np.inf
        if n >= 3 and best < max(best_before, least):  # more kinds have less evidence
            break
        best_before = max(best, best_before)
    some.sort(key=lambda one: -one.bound)
    chosen: list[Partition] = []
    for one in some if some and some[0].bound >= least else []:
        if len(chosen) == _PARTITIONS or one.bound < some[0].bound - _BEHIND:
            break
        if not any(one.alike(other) for other in chosen):
            first = next((other for other in chosen if other.n == one.n), None)
            chosen.append(one.by_size() if first is None else one.in_order_of(first))
    return chosen
