"""A two-part likelihood under the crossed prior: is a reward 0 or not, and how large is an amount.

The expected reward of a row is P(r > 0) E[r | r > 0]. Relative to the mean reward E of the log, and to first order in
the effects, it is a sum of two coefficients, which two kinds of pseudo-rewards tell:

    phi' theta_sa = phi' (theta^c_sa + theta^a_sa)
    conversion  E (1{r > 0} - P) / P          of all rows,              P the share of positive rewards
    amounts     E (1 + log r - mean of log r)   of rows with r > 0

Given theta both are independent, as P(r > 0) and the law of amounts have no coefficient in common. Each has a crossed
prior of its own, integrated by itself; their posteriors are independent, too, and that of theta is their sum: means
and covariances add. Where the log shows no effect on conversion, the noise of zeros is in no comparison of
actions, and logarithms spare it the few largest amounts.

An amount may have any law that is alike in all rows up to a factor: the mean reward E, not a lognormal one, sets the
scale. Amounts of different spread between actions break that, as their means are then not as their logarithms.

Standard deviations of both parts are a priori half-Cauchy in units of the noise of one *positive* row, E: a row with
r = 0 tells next to nothing. For conversion, where a row has the noise E sqrt((1 - P) / P), shapes are shrunken by P.

Sources: Duan, Journal of the American Statistical Association 78, 1983 (two parts, smearing); Mullahy, Journal of
Health Economics 17, 1998.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Self

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import pack, unpack
from hieropo.errors import InputError
from hieropo.estimation.crossed.integration import integrate_crossed
from hieropo.estimation.crossed.mixture import CrossedHierarchies, CrossedMixture
from hieropo.estimation.crossed.shapes import Pattern, Shapes, learn_shapes, part_of_tasks, with_untold_noise
from hieropo.model.crossed.posterior import OneHierarchy
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Grouping
from hieropo.model.metadata import Metadata
from hieropo.model.table import PosteriorTable
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Unseen

_SHAPE_UNITS = 4_000  # units that relative sizes are learned from
FEWEST = 20  # positive rewards that a fit needs


class TwoPart(NamedTuple):
    """The scale of both parts.

    Attributes
    ----------
    share : float
        P: share of the rewards that are above 0.
    log_mean : float
        Mean of the logarithms of these.
    mean : float
        E: mean of all rewards.
    """

    share: float
    log_mean: float
    mean: float

    @classmethod
    def of(cls, moments: Moments) -> Self:
        """Return the scale of a log.

        Raises
        ------
        InputError
            The moments lack the sums over positive rewards; fewer than 20 of these, or no reward of 0.
        """
        positive = _positive(moments)
        p = moments.unit_dim
        total, amounts = (
            unpack(some.around(None).unit_sums.sum(axis=0), p + 2) for some in (moments, positive)
        )
        rows, paid = float(total[p + 1, p + 1]), float(amounts[p + 1, p + 1])
        if not FEWEST <= paid < rows:
            raise InputError(
                f"{paid:g} of {rows:g} rewards are above 0. A two-part likelihood learns from both whether a reward is "
                f"0 and how large it is, and needs rewards of 0 and at least {FEWEST} above 0. Set "
                "likelihood='gaussian'."
            )
        return cls(paid / rows, float(amounts[p, p + 1]) / paid, float(total[p, p + 1]) / rows)

    def conversion(self, moments: Moments) -> Moments:
        """Return the moments of the pseudo-rewards E (1{r > 0} - P) / P."""
        positive = _positive(moments)
        p, unit = moments.unit_dim, self.mean / self.share
        sums, paid = unpack(moments.around(None).sums, p + 2), unpack(positive.sums, p + 2)[..., p + 1]
        cross = unit * (paid - self.share * sums[..., p + 1])  # with phi, and with 1 in the last place
        square = unit**2 * ((1 - 2 * self.share) * paid[..., p + 1] + self.share**2 * sums[..., p + 1, p + 1])
        return _with_rewards(moments, sums, cross, square)

    def amounts(self, moments: Moments) -> Moments:
        """Return the moments of the pseudo-rewards E (1 + log r - mean of log r) of positive rewards."""
        positive = _positive(moments).around(None)
        p, shift = moments.unit_dim, 1.0 - self.log_mean
        sums = unpack(positive.sums, p + 2)
        last = sums[..., p + 1]
        cross = self.mean * (sums[..., p] + shift * last)
        square = self.mean**2 * (sums[..., p, p] + 2 * shift * last[..., p] + shift**2 * last[..., p + 1])
        return _with_rewards(positive, sums, cross, square)


def _positive(moments: Moments) -> Moments:
    if moments.positive is None:
        raise InputError(
            "The hierarchy is of a two-part likelihood, and these moments do not say which rewards are 0. Fit the log "
            "itself, with likelihood='two-part'."
        )
    return moments.positive


def _with_rewards(moments: Moments, sums: Array, cross: Array, square: Array) -> Moments:
    """Return moments with other rewards z: sums of z (phi, ., 1) in ``cross`` (..., p + 2), and of z^2."""
    p = moments.unit_dim
    cross[..., p] = square
    sums[..., p, :], sums[..., :, p] = cross, cross
    return replace(moments, sums=pack(sums), unit_offset=None, positive=None)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TwoPartHierarchies(CrossedHierarchies):
    """Hierarchies of both parts, and those of their sum, as pairs of one of each; made by :meth:`of_parts`.

    Parameters
    ----------
    scale : TwoPart
    conversion, amounts : CrossedHierarchies
    pairs : (H, 2) int array
        Of each hierarchy of the sum, the hierarchies of both parts among those that are conditioned.
    """

    scale: TwoPart = field(default=None)  # type: ignore[assignment]  # given, after fields with defaults
    conversion: CrossedHierarchies = field(default=None)  # type: ignore[assignment]
    amounts: CrossedHierarchies = field(default=None)  # type: ignore[assignment]
    pairs: Codes = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))

    @classmethod
    def of_parts(cls, scale: TwoPart, conversion: CrossedHierarchies, amounts: CrossedHierarchies) -> Self:
        """Return the hierarchies of the sum of both parts.

        Their noise is that of a row. With several coefficients for each action, the relative sizes of these are those
        of the mean covariances.
        """
        parts = _Nodes.of(conversion), _Nodes.of(amounts)
        pairs, weights = _coupled(*parts)
        shapes, sizes = zip(*(part.sizes(pairs[:, k]) for k, part in enumerate(parts)), strict=True)
        noises = [part.noise[pairs[:, k]] for k, part in enumerate(parts)]
        noise = noises[0] + noises[1] / scale.share
        mean_noise = [float(weights @ values) for values in (noises[0], noises[1] / scale.share)]
        ratio = sum(part * shape.noise_ratio for part, shape in zip(mean_noise, shapes, strict=True)) / sum(
            mean_noise
        )
        relative, sds = {}, {}
        for k, name in enumerate(("action", "level", "interaction")):
            covs = [getattr(shape, name) for shape in shapes]
            total = sum(float(weights @ size[k]) * cov for size, cov in zip(sizes, covs, strict=True))
            total = total if np.trace(total) > 0 else covs[0]
            traces = sum(size[k] * float(np.trace(cov)) for size, cov in zip(sizes, covs, strict=True))
            relative[name], sds[f"{name}_sd"] = total / float(np.trace(total)), np.sqrt(traces / noise)
        return cls(
            weights=weights, **sds, noise_var=noise, conditioned=weights,
            shapes=Shapes(**relative, noise_ratio=np.asarray(ratio), mode=shapes[0].mode),
            scale=scale, conversion=conversion, amounts=amounts, pairs=pairs,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types, from which :meth:`from_dict` makes the same value."""
        parts = {"conversion": self.conversion.to_dict(), "amounts": self.amounts.to_dict()}
        return {"kind": "two-part", "scale": self.scale._asdict(), **parts}

    @classmethod
    def from_dict(
        cls,
        values: Mapping[str, Any],
        levels: tuple[Grouping, ...] = (),
        metadata: Metadata | None = None,
        task_noise: Any = None,
    ) -> Self:
        """Read what :meth:`to_dict` wrote; there are no levels, metadata and noise of tasks."""
        del levels, metadata, task_noise
        parts = (CrossedHierarchies.from_dict(values[name]) for name in ("conversion", "amounts"))
        return cls.of_parts(TwoPart(**values["scale"]), *parts)


class _Nodes(NamedTuple):
    """The hierarchies of a part that its posterior is made of: the central one alone where that stands for all.

    Attributes
    ----------
    weights, noise : (H,) array
    sds : (3, H) array
        Of actions, levels and interactions, in units of the noise.
    shapes : Shapes
    """

    weights: Array
    noise: Array
    sds: Array
    shapes: Shapes

    @classmethod
    def of(cls, hierarchies: CrossedHierarchies) -> Self:
        h = hierarchies
        sds = np.stack([h.action_sd, h.level_sd, h.interaction_sd])
        if not h.determined:
            some = np.flatnonzero(h.conditioned)
            return cls(h.conditioned[some], h.noise_var[some], sds[:, some], h.shapes)
        noise = float(h.weights @ h.noise_var)
        central = sds @ (h.weights * np.sqrt(h.noise_var)) / np.sqrt(noise)
        return cls(np.ones(1), np.full(1, noise), central[:, None], h.shapes)

    @property
    def without_effect(self) -> Array:
        """True where actions have no effect, (H,)."""
        return np.asarray((self.sds[0] == 0) & (self.sds[2] == 0))

    def sizes(self, nodes: Codes) -> tuple[Shapes, list[Array]]:
        """Return the shapes, and the variances (n,) that they are multiplied by, of some nodes."""
        return self.shapes, [self.noise[nodes] * sd[nodes] ** 2 for sd in self.sds]


def _coupled(first: _Nodes, second: _Nodes) -> tuple[Codes, Array]:
    """Return pairs (H, 2) of nodes and their weights: few pairs, with the weights of both parts as they are.

    Both parts are independent: exactly so as to whether there is an effect at all; within the nodes with an effect,
    and those without, as nearly as pairs in random order are.
    """
    rng, pairs, weights = np.random.default_rng(0), [], []
    for effect in (True, False):
        for other in (True, False):
            i, j = (
                np.flatnonzero(nodes.without_effect != has)
                for nodes, has in ((first, effect), (second, other))
            )
            if not (i.size and j.size):
                continue
            i, j = rng.permutation(i), rng.permutation(j)
            ends = [np.cumsum(nodes.weights[some]) for nodes, some in ((first, i), (second, j))]
            mass = float(ends[0][-1] * ends[1][-1])
            stops = [end / end[-1] for end in ends]
            cuts = np.union1d(stops[0][:-1], stops[1][:-1])
            edges = np.concatenate([[0.0], cuts, [1.0]])
            middle = (edges[1:] + edges[:-1]) / 2
            pairs.append(
                np.stack([i[np.searchsorted(stops[0], middle)], j[np.searchsorted(stops[1], middle)]], axis=1)
            )
            weights.append(mass * np.diff(edges))
    return np.concatenate(pairs), np.concatenate(weights)


class SummedPart(OneHierarchy):
    """The sum of two independent posteriors, each under one hierarchy."""

    moments: Moments
    hierarchy: Any

    def __init__(self, moments: Moments, hierarchy: Any, first: Any, second: Any) -> None:
        self.moments = moments
        self.hierarchy = hierarchy
        self._both = first, second
        self.log_evidence: float = float(first.log_evidence + second.log_evidence)

    @property
    def hyper(self) -> Gaussian:
        """The law of beta."""
        return _sum(part.hyper for part in self._both)

    def action(self, action: int) -> Gaussian:
        """Return the law of beta + alpha_a; errors as :meth:`CrossedPosterior.action`."""
        return _sum(part.action(action) for part in self._both)

    def unit(self, task: object, action: int, *, unseen: Unseen = "error") -> Gaussian:
        """Return the law of theta_sa; errors as :meth:`CrossedPosterior.unit`."""
        return _sum(part.unit(task, action, unseen=unseen) for part in self._both)

    def task(self, task: object, *, unseen: Unseen = "error") -> Gaussian:
        """Return the joint law of all coefficients of a task; errors as :meth:`CrossedPosterior.unit`."""
        return _sum(part.task(task, unseen=unseen) for part in self._both)

    def new_task(self) -> Gaussian:
        """Return the joint law of all d coefficients of a task that has no rows."""
        return _sum(part.new_task() for part in self._both)

    def table(self) -> PosteriorTable:
        """Return the laws of all units, each on its own."""
        first, second = (part.table() for part in self._both)
        return _summed_tables(first, second, self.moments)

    def joint(self, rows: Codes) -> tuple[Array, Array]:
        """Return means (n, d) and covariances (n, d, d) of the tasks at some rows of the moments."""
        (mean, cov), (other_mean, other_cov) = (part.joint(rows) for part in self._both)
        return mean + other_mean, cov + other_cov

    def total(self, vectors: Array) -> tuple[Array, Array]:
        """Mean (J,) and covariance (J, J) of sum_s v_js' theta_s over all tasks of the log, vectors (J, m, d)."""
        (mean, cov), (other_mean, other_cov) = (part.total(vectors) for part in self._both)
        return mean + other_mean, cov + other_cov

    def along(self, vectors: Array, part: slice) -> tuple[Array, Array, Array]:
        """Means (n, J), and covariances in two parts; as :meth:`CrossedPosterior.along`."""
        laws = [one.along(vectors, part) for one in self._both]
        return (
            laws[0][0] + laws[1][0], laws[0][1] + laws[1][1], np.concatenate([laws[0][2], laws[1][2]], axis=-1)
        )  # fmt: skip


def _sum(laws: Iterator[Gaussian]) -> Gaussian:
    first, second = laws
    return Gaussian.trusted(first.mean + second.mean, first.cov + second.cov)


def _summed_tables(first: PosteriorTable, second: PosteriorTable, moments: Moments) -> PosteriorTable:
    return PosteriorTable(
        first.keys, first.means + second.means, first.covs + second.covs, moments.rows.sum(axis=1),
        first.prior_means + second.prior_means, first.prior_covs + second.prior_covs,
    )  # fmt: skip


class TwoPartPosterior(CrossedMixture):
    """Posterior of the expected rewards of every task and action, given zeros and amounts.

    Attributes
    ----------
    moments : Moments
        Of the rewards, with the sums over positive ones.
    hierarchy : TwoPartHierarchies
    conversion, amounts : CrossedMixture
        Posteriors of both parts, whose sum this is.
    """

    hierarchy: TwoPartHierarchies
    conversion: CrossedMixture
    amounts: CrossedMixture
    in_two_parts = True

    def __init__(self, moments: Moments, hierarchies: TwoPartHierarchies) -> None:
        super().__init__(moments, hierarchies)
        scale = hierarchies.scale
        self.conversion = CrossedMixture(scale.conversion(moments), hierarchies.conversion)
        self.amounts = CrossedMixture(scale.amounts(moments), hierarchies.amounts)

    def central(self) -> SummedPart:  # type: ignore[override]  # of the same views
        """Return the sum of the posteriors under the central hierarchies, taken as known."""
        parts = self.conversion.central(), self.amounts.central()
        return SummedPart(self.moments, self.central_hierarchy, *parts)

    def parts(self) -> Iterator[SummedPart]:  # type: ignore[override]
        """Yield the sum under each pair of hierarchies, in the order of ``weights``."""
        first, second = (_node_of(part) for part in (self.conversion, self.amounts))
        for node, (i, j) in enumerate(self.hierarchy.pairs.tolist()):
            yield SummedPart(self.moments, self.hierarchy.hierarchy(node), first(i), second(j))

    @cached_property
    def hyper(self) -> Gaussian:
        """Mean and covariance of beta."""
        return _sum(part.hyper for part in (self.conversion, self.amounts))

    @cached_property
    def log_evidence(self) -> float:
        """Log evidence of both parts."""
        return self.conversion.log_evidence + self.amounts.log_evidence

    @cached_property
    def _table(self) -> PosteriorTable:
        return _summed_tables(self.conversion.table(), self.amounts.table(), self.moments)


def _node_of(part: CrossedMixture) -> Any:
    """Return the function from the number of a conditioned node to its posterior; few are kept where they are large."""
    if part._doubles * part.weights.size <= _KEPT or part.hierarchy.determined:
        return list(part.parts()).__getitem__
    return lru_cache(maxsize=2)(lambda k: part._of_node(part._nodes[k]))


_KEPT = 2**25  # doubles of all conditioned nodes of a part that are kept between views


def integrate_two_part(moments: Moments, similar: Any = None) -> TwoPartHierarchies:
    """Integrate the crossed priors of both parts over their standard deviations.

    Parameters
    ----------
    moments : Moments
        With the sums over positive rewards.
    similar : TwoPartHierarchies, optional
        Those of a log that shares most rows, as :func:`integrate_crossed` takes them.

    Raises
    ------
    InputError, NumericalError
        As :meth:`TwoPart.of` and :func:`integrate_crossed`.
    """
    scale = TwoPart.of(moments)
    near = similar if isinstance(similar, TwoPartHierarchies) else None
    conversion = _observed(scale.conversion(moments))
    amounts = _observed(scale.amounts(moments))
    start = None if near is None else near.conversion.shapes.mode
    some = part_of_tasks(conversion, max(_SHAPE_UNITS // moments.unit_dim, 500))
    assert isinstance(some, Moments)  # as all moments in memory
    shapes = learn_shapes(some, Pattern.of(moments.unit_dim), start)
    shapes = with_untold_noise(shapes, conversion)
    shapes = shapes._replace(
        action=scale.share * shapes.action,
        level=scale.share * shapes.level,
        interaction=scale.share * shapes.interaction,
    )
    return TwoPartHierarchies.of_parts(
        scale,
        integrate_crossed(
            conversion, shapes, similar=None if near is None else near.conversion, equal_noise=True
        ),
        integrate_crossed(amounts, similar=None if near is None else near.amounts, equal_noise=True),
    )


def _observed(moments: Moments) -> Moments:
    """Return the moments of the tasks that have rows."""
    return moments.at(np.flatnonzero(moments.rows.any(axis=1)))
