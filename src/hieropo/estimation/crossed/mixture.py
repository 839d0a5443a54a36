"""The crossed prior with its variances integrated out: a grid of standard deviations, zero among them.

With A = a^2 s^2 I, L = l^2 s^2 I, M = m^2 s^2 I and noise s^2 rho_a, a priori and independently

    a, m:  0 with probability 1/2, else half-Cauchy (scale 1, so in units of the noise)
    l:     half-Cauchy of scale sqrt(1 + m^2), since rows of one action a task tell l^2 / (1 + m^2) alone
    s^2:   1 / s^2, integrated in closed form: with q the square of the rewards at s = 1 and n - p degrees of freedom,
           evidence  Gamma((n - p) / 2) (q / 2)^(-(n - p) / 2)  and  E[s^2 | log] = q / (n - p - 2)

They are integrated on a grid (:mod:`grid`). The covariances of :mod:`shapes` take the place of I, and its noise
variances that of rho, where columns or actions differ.

With metadata the grid is that of the sums of :mod:`unit_designs`, whose further columns have no share of L and M. With
levels, groups have L_g = l_g^2 s^2 L and M_g = m_g^2 s^2 M, with the laws of l and m. That of m_g of the first level is
a fourth axis of the grid. Its l_g, which decides nothing, and the standard deviations of higher levels are taken at
their mode, given that of the others; each m_g may be zero there.

A subset of the nodes is conditioned: within each pattern of zeros nonnegative weights with the same polynomial
moments of (u_a, u_l, u_m), up to degree 3 (2 where m_g varies, too), as all nodes have (such weights exist on as few
nodes as there are moments: Tchakaloff's theorem). Given a node everything is Gaussian, with E[s^2 | log] for s^2
(exactly it is a t of n - p degrees of freedom, of this variance), so that the posterior is a finite mixture. The
nodes a = m = 0 say that actions have no effect: there every difference between policies is exactly 0.

Where the log shows that tasks differ in the spread of their interactions (:mod:`spreads`), or are of several kinds
(:mod:`kinds`), hierarchies with such a mixture are averaged with those without, by their evidence.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.memory import release_freed
from hieropo._utils.packed import packed_size, triangle
from hieropo._utils.text import counted
from hieropo._utils.threads import in_threads, processors
from hieropo.errors import InputError
from hieropo.estimation.crossed.kinds import (
    LearnedKinds,
    TaskKinds,
    task_kinds_of,
)
from hieropo.estimation.crossed.shapes import (
    Shapes,
)
from hieropo.estimation.crossed.task_noise import EqualBecause
from hieropo.estimation.hyper.mixed import Components
from hieropo.model.crossed.described import AnyCrossed, Prepared, condition_units, covering
from hieropo.model.crossed.hierarchy import CrossedHierarchy, CrossedLevel, CrossedPrior, Spreads
from hieropo.model.crossed.posterior import CrossedPosterior, check_crossed
from hieropo.model.crossed.spreads import SpreadPosterior
from hieropo.model.crossed.task_noise import TaskNoise
from hieropo.model.gaussian import Gaussian, frozen, plus
from hieropo.model.hierarchy import Grouping
from hieropo.model.metadata import Metadata
from hieropo.model.table import PosteriorTable
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Unseen

SpreadsSetting = Literal["one", "auto"]
_WIDE = 16  # columns from which the arithmetic of one hierarchy outweighs its calls
_KEPT = 2**26  # doubles of all conditioned nodes together that are kept between views
_MIXED_AT_ONCE = 1_024  # tasks
_KEPT_SUMS = 2**22  # doubles of one conditioned node up to which the sums that it is made of are kept
_KEPT_FOR_TABLE = 2**24  # of those up to which the table keeps them; of more it needs one node at a time
_AT_ONCE = 2**18  # doubles of laws that are mixed under all hierarchies before the next ones are computed


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CrossedHierarchies(CrossedPrior):
    """The hierarchies that a log leaves possible, with weights.

    Parameters
    ----------
    weights : (H,) array
        Positive; add to 1.
    action_sd, level_sd, interaction_sd : (H,) array
        a, l, m in units of the noise.
    noise_var : (H,) array
        E[s^2 | log] of each.
    conditioned : (H,) array
        Weights of those that posteriors are made of; 0 for most, and for all where the log tells the standard
        deviations so well that the :meth:`central` hierarchy stands for all.
    shapes : Shapes
        Covariances at a = l = m = s = 1, and noise variances over s^2.
    group_level_sd, group_interaction_sd : (H, q) array
        l_g, m_g of each of q levels in units of the noise, from the tasks upwards.
    levels : tuple of Grouping
        Groups of the tasks, and so on upwards.
    metadata : Metadata, optional
        Known of the tasks.
    spread_scales, spread_weights : (H, n) array
        A mixture of spreads of each: task s has interactions of sd c_k m with probability w_k, sum_k w_k c_k^2 = 1.
        n = 0 where no hierarchy has one; a weight of 1 for c = 1 is one spread.
    spread_odds : float
        Log Bayes factor of a mixture of spreads against one spread; -inf where the log shows none.
    kinds : LearnedKinds, optional
        Kinds of the tasks in each hierarchy; ``interaction_sd`` is then that within a kind. None where the log shows
        no kinds.
    task_noise : TaskNoise, optional
        Precisions of the rows of each task, where noise differs between tasks.
    equal_noise_because : {"", "constant", "mean", "rows"}
        The rule that keeps noise equal although the evidence is for unequal noise; as :class:`Findings` has it. With
        ``task_noise``, the rule by which no task counts as less noisy than the median one.

    Raises
    ------
    InputError
        Shapes do not fit, or the weights are no weights.
    """

    weights: Array
    action_sd: Array
    level_sd: Array
    interaction_sd: Array
    noise_var: Array
    conditioned: Array
    shapes: Shapes
    group_level_sd: Array = field(default_factory=lambda: np.zeros(0))
    group_interaction_sd: Array = field(default_factory=lambda: np.zeros(0))
    levels: tuple[Grouping, ...] = ()
    metadata: Metadata | None = None
    spread_scales: Array = field(default_factory=lambda: np.zeros(0))
    spread_weights: Array = field(default_factory=lambda: np.zeros(0))
    spread_odds: float = -np.inf
    kinds: LearnedKinds | None = None
    task_noise: TaskNoise | None = None
    equal_noise_because: EqualBecause = ""

    def __post_init__(self) -> None:
        for name in _ARRAYS:
            object.__setattr__(self, name, frozen(getattr(self, name)))
        for name in _GROUP_ARRAYS:
            values = frozen(getattr(self, name).reshape(self.weights.size, len(self.levels)))
            object.__setattr__(self, name, values)
        for name in _SPREAD_ARRAYS:
            values = frozen(getattr(self, name).reshape(self.weights.size, -1))
            object.__setattr__(self, name, values)
        sizes = {name: getattr(self, name).shape for name in _ARRAYS}
        if set(sizes.values()) != {(self.weights.size,)} or not self.weights.size:
            raise InputError(
                f"One number for each hierarchy is needed, in arrays of one shape (H,); got {sizes}."
            )
        for name in ("weights", "conditioned"):
            values = getattr(self, name)
            if name == "conditioned" and self.determined:
                continue
            if not (values >= 0).all() or abs(float(values.sum()) - 1.0) > 1e-6:
                raise InputError(
                    f"The least of {name} is {values.min():.3g} and all add to {values.sum():.6g}; weights of at "
                    "least 0 that add to 1 are needed."
                )

    def __len__(self) -> int:
        return int(self.weights.size)

    def __repr__(self) -> str:
        return (
            f"CrossedHierarchies({len(self)} hierarchies of {counted(self.n_actions, 'action')}, P(no effect) "
            f"{self.no_effect:.2g}, P(no action effect) {self.no_action_effect:.2g}, P(no interaction) "
            f"{self.no_interaction:.2g})"
        )

    @property
    def unit_dim(self) -> int:
        """Coefficients of one action: p, or P with those of metadata."""
        return len(self.shapes.level)

    @property
    def n_actions(self) -> int:
        """K."""
        return int(self.shapes.noise_ratio.size)

    @property
    def determined(self) -> bool:
        """True where posteriors are those of the central hierarchy, since the log leaves hardly any other."""
        return not self.conditioned.any()

    @property
    def without_effects(self) -> NDArray[np.bool_]:
        """True (H,) where A = M = 0: actions have no effect in any task or group."""
        return np.asarray((self.action_sd == 0) & self._same_in_tasks)

    @property
    def no_effect(self) -> float:
        """P(A = M = 0 | log): actions have no effect in any task or group."""
        return self._share(self.without_effects)

    @property
    def no_action_effect(self) -> float:
        """P(A = 0 | log): no action does anything that it does in all tasks."""
        return self._share(self.action_sd == 0)

    @property
    def no_interaction(self) -> float:
        """P(M = 0 | log): actions do the same in all tasks and groups, up to what metadata say."""
        return self._share(self._same_in_tasks)

    @property
    def mixed_spreads(self) -> bool:
        """True where the log shows that tasks differ in the spread of their interactions."""
        return self.spread_weights.size > 0

    @property
    def mixed(self) -> bool:
        """True where tasks are a mixture, of spreads or of kinds."""
        return self.mixed_spreads or self.kinds is not None

    def spreads(self, node: int) -> Spreads | None:
        """Return the mixture of spreads of one of the hierarchies; None where it has one spread."""
        if not self.mixed_spreads or self.spread_weights[node].max() == 1.0:
            return None
        return Spreads(self.spread_scales[node], self.spread_weights[node])

    @property
    def _same_in_tasks(self) -> NDArray[np.bool_]:
        same = (self.interaction_sd == 0) & ~self.group_interaction_sd.any(axis=1)
        return np.asarray(same if self.kinds is None else same & (self.kinds.sd == 0))

    def _share(self, chosen: NDArray[np.bool_]) -> float:
        return float(self.weights[chosen].sum())

    def hierarchy(self, node: int) -> CrossedHierarchy:
        """Return one of the hierarchies."""
        a, level, m = (float(sd[node] ** 2) for sd in (self.action_sd, self.level_sd, self.interaction_sd))
        groups = self.group_level_sd[node] ** 2, self.group_interaction_sd[node] ** 2
        scaled = self._scaled(a, level, m, groups, float(self.noise_var[node]))
        kinds = None
        if self.kinds is not None:
            kinds = self.kinds.of(node, float(self.noise_var[node]) * self.shapes.interaction)
        return replace(scaled, spreads=self.spreads(node), kinds=kinds)

    def central(self) -> CrossedHierarchy:
        """Return the hierarchy of the posterior means of standard deviations and of noise variances.

        Means of variances do not exist where two actions, or tasks, are all that tells one. Of a mixture of spreads it
        has the mean square, in all tasks; of kinds the variance between tasks of all kinds.
        """
        noise = float(self.weights @ self.noise_var)
        sizes = self.weights * np.sqrt(self.noise_var)
        action_sd, interaction_sd = self.action_sd, self.interaction_sd
        if self.kinds is not None:
            action_sd, interaction_sd = self.kinds.as_one(action_sd, interaction_sd)
        parts = (action_sd, self.level_sd, interaction_sd)
        a, level, m = (float(sizes @ sd) ** 2 / noise for sd in parts)
        groups = (sizes @ self.group_level_sd) ** 2 / noise, (sizes @ self.group_interaction_sd) ** 2 / noise
        return self._scaled(a, level, m, groups, noise)

    def _scaled(
        self, action: float, level: float, interaction: float, groups: tuple[Array, Array], noise: float
    ) -> CrossedHierarchy:
        s = self.shapes
        levels = tuple(
            CrossedLevel(
                level_var * noise * s.level,
                interaction_var * noise * s.interaction,
                grouping.parent,
                grouping.name,
            )
            for grouping, level_var, interaction_var in zip(self.levels, *groups, strict=True)
        )
        return CrossedHierarchy(
            action * noise * s.action, level * noise * s.level, interaction * noise * s.interaction,
            noise * s.noise_ratio, levels, self.metadata,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types, from which :meth:`from_dict` makes the same value to the last bit.

        Groups and metadata of tasks, and the noise of tasks, are not in it.
        """
        return {
            "kind": "crossed",
            "equal_noise_because": self.equal_noise_because,
            **{name: getattr(self, name).tolist() for name in (*_ARRAYS, *_GROUP_ARRAYS)},
            "shapes": {name: part.tolist() for name, part in self.shapes._asdict().items()},
            **(self._spreads_to_dict() if self.mixed_spreads else {}),
            **({} if self.kinds is None else {"kinds": self.kinds.to_dict()}),
        }

    def _spreads_to_dict(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).tolist() for name in _SPREAD_ARRAYS}
        return {**arrays, "spread_odds": self.spread_odds}

    @classmethod
    def from_dict(
        cls,
        values: Mapping[str, Any],
        levels: tuple[Grouping, ...] = (),
        metadata: Metadata | None = None,
        task_noise: TaskNoise | None = None,
    ) -> Self:
        """Read what :meth:`to_dict` wrote; with groups, metadata and noise of the tasks."""
        arrays = {name: np.asarray(values[name], dtype=np.float64) for name in (*_ARRAYS, *_GROUP_ARRAYS)}
        shapes = {name: np.asarray(part, dtype=np.float64) for name, part in values["shapes"].items()}
        spreads = {
            name: np.asarray(values[name], dtype=np.float64) for name in _SPREAD_ARRAYS if name in values
        }
        return cls(
            **arrays, shapes=Shapes(**shapes), levels=levels, metadata=metadata, **spreads,
            spread_odds=float(values.get("spread_odds", -np.inf)),
            kinds=LearnedKinds.from_dict(values["kinds"]) if "kinds" in values else None,
            task_noise=task_noise, equal_noise_because=values["equal_noise_because"],
        )  # fmt: skip


_SPREAD_ARRAYS = ("spread_scales", "spread_weights")
_GROUP_ARRAYS = ("group_level_sd", "group_interaction_sd")
_ARRAYS = ("weights", "action_sd", "level_sd", "interaction_sd", "noise_var", "conditioned")


class CrossedMixture:
    """Posterior of every task and action, the variances of the crossed prior integrated.

    Made by :func:`condition_hierarchies`.

    Attributes
    ----------
    moments : Moments
        Each row of the precision of its task, where noise differs between tasks.
    log_moments : Moments
        Of the rows as they are in the log.
    hierarchy : CrossedHierarchies
    weights : (H,) array
        Of the Gaussians whose mixture the posterior is.
    """

    moments: Moments
    weights: Array

    def __init__(self, moments: Moments, hierarchies: CrossedHierarchies) -> None:
        noise = hierarchies.task_noise
        self.log_moments = moments
        self.moments = moments if noise is None else noise.weighted(moments)
        self.hierarchy = hierarchies
        self._nodes = [int(node) for node in np.flatnonzero(hierarchies.conditioned)]
        self.weights = np.ones(1) if hierarchies.determined else hierarchies.conditioned[self._nodes]

    @property
    def dim(self) -> int:
        """Features d = K p of the feature map."""
        return self.moments.dim

    @cached_property
    def central_hierarchy(self) -> CrossedHierarchy:
        """The hierarchy that stands for the mixture where one must."""
        return self.hierarchy.central()

    @property
    def noise_variances(self) -> Array:
        """Noise variances (K,) of the actions, of the central hierarchy and a row of precision 1."""
        return self.central_hierarchy.noise_var

    @property
    def task_precision(self) -> Array | None:
        """Precisions (m,) of the rows of tasks besides their own; None where noise is equal."""
        noise = self.hierarchy.task_noise
        return None if noise is None else noise.of(self.moments.keys)

    def central(self) -> AnyCrossed:
        """Return the posterior under the central hierarchy, taken as known."""
        return condition_units(self.moments, self.central_hierarchy)

    def task_slices(self, width: int) -> Iterator[slice]:  # noqa: ARG002 - of the interface of all posteriors
        """Yield one slice of all tasks, since :meth:`parts` may condition all tasks anew each time it is called."""
        yield slice(0, len(self.moments))

    @cached_property
    def hyper(self) -> Gaussian:
        """Mean and covariance of (beta, kappa), kappa the common effects of metadata; beta alone without metadata."""
        return self._mixed([part.hyper for part in self.parts()])

    @cached_property
    def log_evidence(self) -> float:
        """Log evidence of the hierarchies, averaged by their posterior weights."""
        return float(self.weights @ np.array([part.log_evidence for part in self.parts()]))

    @cached_property
    def differing(self) -> Array | None:
        """Probability (m,) that effects of actions in a task are twice as large as in three quarters of the tasks.

        None where the log does not show that tasks differ in the spread of their interactions.
        """
        if not self.hierarchy.mixed_spreads:
            return None
        probability = np.zeros(len(self.moments))
        for weight, part in zip(self.weights.tolist(), self.parts(), strict=True):
            if isinstance(part, SpreadPosterior):
                probability += weight * part.differing
        return probability

    @cached_property
    def task_kinds(self) -> TaskKinds | None:
        """Probability of each kind in each task; None where the log shows no kinds."""
        if self.hierarchy.kinds is None:
            return None
        return task_kinds_of(self.hierarchy.kinds, self.hierarchy.weights, self.weights, self.parts())

    def parts(self) -> Iterator[AnyCrossed]:
        """Yield the posterior under each hierarchy that is conditioned, in the order of ``weights``."""
        if self._doubles * self.weights.size <= _KEPT:
            yield from self._kept
            return
        yield from self._conditioned()

    @property
    def _doubles(self) -> int:
        """Of one conditioned node: sums, laws and slopes of its units, and laws of its tasks."""
        p = self.moments.unit_dim
        square, units = 2 * p * p + p, int(np.count_nonzero(self.moments.rows))
        return units * (2 * packed_size(p + 1) + square) + len(self.moments) * (packed_size(p + 1) + square)

    @cached_property
    def _prepared(self) -> Prepared:
        return self._prepare()

    def _prepare(self) -> Prepared:
        """Sums of the moments where s = 1."""
        return Prepared.of(self.moments, self.hierarchy.hierarchy(0), self.hierarchy.shapes.noise_ratio)

    @property
    def _plain(self) -> bool:
        """True for tasks without groups and metadata: then the sums are those of the moments, without a copy."""
        return not self.hierarchy.levels and self.hierarchy.metadata is None

    @cached_property
    def _kept(self) -> list[AnyCrossed]:
        return list(self._conditioned())

    def _conditioned(self) -> Iterator[AnyCrossed]:
        h = self.hierarchy
        if h.determined:
            yield self._sums_for_one().condition(self.central_hierarchy, float(h.weights @ h.noise_var))
        for node in self._nodes:
            yield self._of_node(node)

    def _of_node(self, node: int) -> AnyCrossed:
        return self._sums_for_one().condition(
            self.hierarchy.hierarchy(node), float(self.hierarchy.noise_var[node])
        )

    def _sums_for_one(self) -> Prepared:
        """Sums that are kept, unless they are copies of those of many tasks."""
        return self._prepared if self._plain or self._doubles <= _KEPT_SUMS else self._prepare()

    def _tables(self) -> Iterator[PosteriorTable]:
        """Yield the table of units under each hierarchy, one on each processor at once where they have many columns."""
        if self._kept_for_table:
            yield from (part.table() for part in self._kept)
            return
        if self.moments.unit_dim < _WIDE or self.hierarchy.determined:
            for part in self._conditioned():
                yield part.table()
                del part  # before the next one is made
            return
        for start in range(0, len(self._nodes), processors()):
            some = self._nodes[start : start + processors()]
            yield from in_threads(lambda node: self._of_node(node).table(), some, processors())

    @property
    def _kept_for_table(self) -> bool:
        doubles = self._doubles * self.weights.size
        return "_kept" in self.__dict__ or doubles <= min(_KEPT, _KEPT_FOR_TABLE)

    def _mixed(self, laws: list[Gaussian]) -> Gaussian:
        return self._components(laws).gaussian()

    def _components(self, laws: list[Gaussian]) -> Components:
        return Components(
            self.weights, np.array([law.mean for law in laws]), np.array([law.cov for law in laws])
        )

    def action(self, action: int) -> Gaussian:
        """Return mean and covariance of beta + alpha_a; errors as :meth:`CrossedPosterior.action`."""
        return self._mixed([part.action(action) for part in self.parts()])

    def components(self, task: object, action: int) -> Components:
        """Return the Gaussians whose mixture is the posterior of theta_sa; errors as :meth:`CrossedPosterior.unit`."""
        return self._components([part.unit(task, action) for part in self.parts()])

    def unit(self, task: object, action: int, *, unseen: Unseen = "prior") -> Gaussian:
        """Return mean and covariance of theta_sa; errors as :meth:`CrossedPosterior.unit`."""
        return self._mixed([part.unit(task, action, unseen=unseen) for part in self.parts()])

    def task(self, task: object, *, unseen: Unseen = "prior") -> Gaussian:
        """Return mean and covariance of all d coefficients of a task; errors as :meth:`CrossedPosterior.unit`."""
        return self.task_components(task, unseen=unseen).gaussian()

    def task_components(self, task: object, *, unseen: Unseen = "prior") -> Components:
        """Return the Gaussians whose mixture is the posterior of all d coefficients of a task."""
        return self._components([part.task(task, unseen=unseen) for part in self.parts()])

    def new_task(self, *parent: object, **place: Any) -> Gaussian:
        """Return mean and covariance of all d coefficients of a task that has no rows.

        With levels and metadata: of a group, of ``metadata``; as :meth:`DescribedPosterior.new_task`.
        """
        return self._mixed([part.new_task(*parent, **place) for part in self.parts()])

    def node(self, level: int, node: object) -> Gaussian:
        """Return mean and covariance of all d coefficients of a group; errors as :meth:`TreePosterior.node`."""
        return self._mixed([part.node(level, node) for part in self.parts()])  # type: ignore[union-attr]

    def table(self) -> PosteriorTable:
        """Return means and covariances of all units, each on its own."""
        return self._table

    def dense(self) -> PosteriorTable:
        """Return the joint law of all d coefficients of every task: m d (d + 1) / 2 numbers.

        For what needs the covariances between actions of a task, such as :class:`SamplingPolicy`, where m d^2 is small.
        """
        mean, cov = _mixed_arrays(self.weights, (part.dense_arrays() for part in self.parts()), self.dim)
        rows = self.moments.rows.sum(axis=1)
        return PosteriorTable.joint(self.moments.keys, mean, cov, rows, self.new_task())

    @cached_property
    def _table(self) -> PosteriorTable:
        if self._by_pieces:
            release_freed()  # by the search for the hierarchies
            return self._table_by_pieces(
                [part for part in self.parts() if isinstance(part, CrossedPosterior)]
            )
        priors: list[tuple[Array, Array]] = []

        def arrays() -> Iterator[tuple[Array, Array]]:
            for table in self._tables():
                priors.append((table.prior_means, table.prior_covs))
                yield table.means, table.covs
                del table  # before the next one is made

        mean, covs = _mixed_arrays(self.weights, arrays(), self.moments.unit_dim)
        return self._of_arrays(mean, covs, priors)

    @property
    def _by_pieces(self) -> bool:
        """True where laws of few columns are too many to be kept under all hierarchies, and their roots are not."""
        D = (self.moments.n_actions + 1) * self.moments.unit_dim
        few_unknowns = self.weights.size * D * D <= _KEPT_FOR_TABLE
        labelled = self.hierarchy.mixed_spreads or self.hierarchy.kinds is not None
        plain = self._plain and not labelled and self.moments.unit_dim < _WIDE
        return plain and few_unknowns and not self._kept_for_table

    def _table_by_pieces(self, parts: list[CrossedPosterior]) -> PosteriorTable:
        """Mix the laws of some tasks under all hierarchies before those of the next tasks are computed."""
        m, K, p = len(self.moments), self.moments.n_actions, self.moments.unit_dim
        mean, covs = np.empty((m, K, p)), np.empty((m, K, packed_size(p)))
        step = max(_AT_ONCE // (8 * K * (p + packed_size(p))), 1) * 8
        for first in range(0, m, step):
            piece = slice(first, min(first + step, m))
            laws = (part.arrays(piece) for part in parts)
            mean[piece], covs[piece] = _mixed_arrays(self.weights, laws, p)
        offset = self.moments.unit_offset
        priors = [part.prior_arrays for part in parts]
        return self._of_arrays(mean, covs, [(plus(means, offset), cov) for means, cov in priors])

    def _of_arrays(self, mean: Array, covs: Array, priors: list[tuple[Array, Array]]) -> PosteriorTable:
        prior_mean, prior_cov = _mixed_arrays(self.weights, iter(priors), self.moments.unit_dim)
        rows = self.moments.rows.sum(axis=1)
        return PosteriorTable(self.moments.keys, mean, covs, rows, prior_mean, prior_cov)

    def __repr__(self) -> str:
        none = self.hierarchy.no_effect
        return f"CrossedMixture({self.moments!r}, {self.weights.size} hierarchies, P(no effect) {none:.3g})"


def _mixed_arrays(weights: Array, laws: Iterator[tuple[Array, Array]], p: int) -> tuple[Array, Array]:
    """Means (..., p) and packed covariances (..., p (p + 1) / 2) of mixtures, from those under each hierarchy.

    Products are formed for some tasks at a time, so that no more than the sums are held for all.
    """
    i, j = triangle(p)
    first, cov = next(laws)  # squares of differences from the first keep digits
    if weights.size == 1:
        return first, cov
    mean, covs = np.zeros_like(first), weights[0] * cov
    del cov
    pieces = [slice(start, start + _MIXED_AT_ONCE) for start in range(0, len(first), _MIXED_AT_ONCE)]
    for weight in weights[1:].tolist():
        part_mean, part_cov = next(laws)  # not by zip, which holds the last ones while the next are made
        for piece in pieces:
            away = part_mean[piece] - first[piece]
            mean[piece] += weight * away
            covs[piece] += weight * (part_cov[piece] + away[..., i] * away[..., j])
        del part_mean, part_cov
    for piece in pieces:
        covs[piece] -= mean[piece][..., i] * mean[piece][..., j]
    return mean + first, covs


def conditioned(hierarchies: CrossedHierarchies) -> list[tuple[CrossedHierarchy, float]]:
    """Return the hierarchies that posteriors are made of, and the noise variance of each in units of the shapes'."""
    if hierarchies.determined:
        return [(hierarchies.central(), float(hierarchies.weights @ hierarchies.noise_var))]
    nodes = np.flatnonzero(hierarchies.conditioned).tolist()
    return [(hierarchies.hierarchy(node), float(hierarchies.noise_var[node])) for node in nodes]


def condition_hierarchies(moments: Moments, hierarchies: CrossedHierarchies) -> CrossedMixture:
    """Condition the hierarchies that a log leaves possible on the log; a pure function.

    Raises
    ------
    MismatchError, NumericalError
        As :func:`condition_crossed`.
    """
    first = hierarchies.hierarchy(0)
    if hierarchies.metadata is None:
        check_crossed(moments, first)
    return CrossedMixture(covering(moments, first), hierarchies)
