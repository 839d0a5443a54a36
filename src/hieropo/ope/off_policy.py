"""Sums of the terms of off-policy estimates: of a policy's value, and of its gain over the incumbent.

With w = pi(a | x) / p(a | x), a prediction q and e = r - q(x, a), v = sum_a pi(a | x) q(x, a), the estimates are

    IPS   mean w r                        SNIPS  mean w r / mean w
    DM    mean v                          DR     mean (v + w e)          SNDR   mean v + mean w e / mean w
    Switch-DR  mean (v + 1{w <= tau} w e)          DRos  mean (v + lambda w / (w^2 + lambda) e)
    LS    low + mean log(1 + lambda w (r - low)) / lambda

All are means of a few columns c of every row, or ratios of such means. So :class:`Moments` of c and of the reward are
sufficient for every estimate, every difference and its variance, by rows and by tasks; no row is kept. Sums are taken
of r - low and v - low, so that a large offset of the rewards does not lose precision.

A row of weight k counts as k rows. A row of sampling weight q = 1 / P(it was kept) adds q c, and q is one more column:
every mean is then sum q c / sum q, and its variance is the robust one, from sums of q^2 c c'.

Sources: Dudik, Erhan, Langford and Li (Statistical Science 29, 2014) for DR; Swaminathan and Joachims (NeurIPS 2015)
for the self-normalised ones; Wang, Agarwal and Dudik (ICML 2017) for Switch; Su, Dimakopoulou, Krishnamurthy and Dudik
(ICML 2020) for DRos; Sakhi, Aouali, Alquier and Chopin (NeurIPS 2024) for LS.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hieropo._utils.arrays import Array, Mask
from hieropo._utils.packed import packed_size, unpack
from hieropo._utils.ties import ROUNDING
from hieropo.errors import InputError, LogError, MismatchError
from hieropo.moments.accumulation import Accumulator
from hieropo.moments.clusters import Clustered, ClusterTotals
from hieropo.moments.statistics import Moments
from hieropo.ope.joined_rows import GROUPS, JoinedRows, Units, add_in_turn
from hieropo.rows.ids import Ids

SWITCH = (100.0, 30.0, 10.0, 3.0)
SHRINK = (1e4, 1e3, 100.0, 10.0)
# lambda of LS times sqrt(rows) (high - low); one of them is within a factor 2 of the best
_SMOOTH = (0.5, 2.0, 8.0, 32.0)
_TOP = 200  # largest weights that are kept
_FIRST = ("w", "w r", "v", "w e")


@dataclass(frozen=True, eq=False)
class OffPolicyMoments:
    """Sums of the terms of all estimators, for every task; sums of two parts of a log add.

    Attributes
    ----------
    moments : Moments
        Of the columns c and of the reward, less ``low``.
    switch, shrink : tuple of float
        tau of Switch-DR and lambda of DRos, the least biased first.
    smoothing : tuple of float
        lambda of LS.
    low, high : float
        Range of rewards.
    predicted : bool
        True where predictions q were given.
    sampled : bool
        True where rows have sampling weights; their column comes before the reward.
    top : (k,) array
        The largest weights, descending; at most 200.
    groups : (101, k) array
        Sums of z = (c, r, 1) over every 101st row, for the bootstrap.
    floor : Floor
        The least propensity of all rows, including those whose action the policy does not take.
    clusters : Clustered or None
        Sums of z over clusters, where rows form these. Squares and effective sizes are then those of clusters. Sums of
        parts of a log do not add, as a cluster may have rows in both.
    dependent : (C,) bool array or None
        Mask of the sums of clusters that depend on other clusters of their task, since the policies of the folds differ
        in a row of them; None where it is not known, or a cluster spans tasks.
    joined : Units or None
        Rows, those of a task that depend on each other as one; None where rows form clusters, or it is not known.
    """

    moments: Moments
    switch: tuple[float, ...]
    shrink: tuple[float, ...]
    smoothing: tuple[float, ...]
    low: float
    high: float
    predicted: bool
    sampled: bool
    top: Array
    groups: Array
    floor: "Floor"
    clusters: Clustered | None = None
    dependent: Mask | None = None
    joined: Units | None = None

    @cached_property
    def names(self) -> dict[str, int]:
        """Position in z of each column; ``one`` is the sampling weight where there is one, else the last entry."""
        grids = {"switch": self.switch, "shrink": self.shrink, "log": self.smoothing}
        grid_columns = [column(kind, parameter) for kind, grid in grids.items() for parameter in grid]
        last_columns = ("one", "reward", "row") if self.sampled else ("reward", "one")
        return {name: position for position, name in enumerate((*_FIRST, *grid_columns, *last_columns))}

    @property
    def size(self) -> int:
        """Number k of entries of z = (c, r, 1)."""
        return self.moments.dim + 2

    @property
    def sums(self) -> Array:
        """Z_s (m, k): sums of z over each task."""
        return np.asarray(self.moments.sums[:, packed_size(self.size - 1) :])

    @cached_property
    def total(self) -> Array:
        """Z (k,): sum of z over all rows."""
        return np.asarray(self.sums.sum(axis=0))

    @cached_property
    def squares(self) -> Array:
        """Sum of z z' over all rows, or of Z_c Z_c' over all clusters, (k, k)."""
        if self.clusters is not None:
            return self.clusters.squares
        return np.asarray(unpack(self.moments.sums.sum(axis=0), self.size))

    @cached_property
    def independent(self) -> Clustered | None:
        """Clusters, those of a task that depend on each other as one; None where rows form no clusters."""
        if self.clusters is None or self.dependent is None or not self.dependent.any():
            return self.clusters
        return self.clusters.joined(self.dependent)

    @property
    def rows(self) -> float:
        """Sum n of the rows' weights, or of their sampling weights where they have these."""
        return float(self.total[self.names["one"]])

    def form(self, **columns: float) -> Array:
        """Return the vector f (k,) for which f' z is the sum of these columns times their factors."""
        coefficients = np.zeros(self.size)
        for name, factor in columns.items():
            coefficients[self.names[name]] += factor
        return coefficients

    def __add__(self, other: "OffPolicyMoments") -> "OffPolicyMoments":
        if not isinstance(other, OffPolicyMoments):
            return NotImplemented
        if any(part.clusters is not None or part.joined is not None for part in (self, other)):
            raise MismatchError(
                "Sums of rows that form clusters, or depend on each other, do not add: a cluster may have rows in both."
                " Sum all rows in one pass."
            )
        for name in ("switch", "shrink", "smoothing", "low", "high", "sampled"):
            own_value, other_value = getattr(self, name), getattr(other, name)
            if own_value != other_value:
                raise MismatchError(
                    f"Sums with {name}={own_value} and sums with {name}={other_value} do not add: their columns "
                    "differ. "
                    "Make both with the same range of rewards, number of rows and parameters."
                )
        return OffPolicyMoments(
            self.moments + other.moments, self.switch, self.shrink, self.smoothing, self.low, self.high,
            self.predicted or other.predicted, self.sampled,
            _largest(self.top, other.top), self.groups + other.groups,
            self.floor + other.floor,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Floor:
    """The least propensity of some rows and the number of rows that have it; 1 without rows. Parts of a log add."""

    propensity: float = 1.0
    rows: float = 0.0

    def __add__(self, other: "Floor") -> "Floor":
        least = min(self.propensity, other.propensity)
        rows = sum(floor.rows for floor in (self, other) if floor.propensity <= least * (1.0 + ROUNDING))
        return Floor(least, rows)

    @classmethod
    def of(cls, propensities: Array, counts: Array) -> "Floor":
        """Return the floor of rows with these propensities (n,) and counts (n,)."""
        present = propensities[counts > 0]
        if not present.size:
            return cls()
        least = float(present.min())
        return cls(least, float(counts[propensities <= least * (1.0 + ROUNDING)].sum()))


def column(kind: str, parameter: float) -> str:
    """Return the name of the column of a tau or lambda."""
    return f"{kind} {parameter:g}"


def _largest(one: Array, other: Array) -> Array:
    both = np.concatenate([one, other])
    if both.size > _TOP:
        both = np.partition(both, both.size - _TOP)[-_TOP:]
    return np.sort(both)[::-1]


@dataclass(eq=False)
class OffPolicySums:
    """Accumulate the terms of estimators batch by batch; :meth:`moments` returns their sums.

    Parameters
    ----------
    low, high : float
        Range in which all rewards lie.
    rows : float
        Approximate number of rows to come, for the smoothing of LS: lambda = (1/2, 2, 8 and 32) / (sqrt(rows)
        (high - low)).
    switch, shrink : sequence of float
        tau of Switch-DR and lambda of DRos to choose from.
    smoothing : sequence of float, optional
        lambda of LS, in place of those.
    sampled : bool
        True where rows come with sampling weights.

    Raises
    ------
    InputError
        The range is empty, or a parameter is not positive.
    """

    low: float
    high: float
    rows: float
    switch: tuple[float, ...] = SWITCH
    shrink: tuple[float, ...] = SHRINK
    smoothing: tuple[float, ...] = ()
    sampled: bool = False
    _total: Accumulator = field(init=False, repr=False)
    _groups: Array = field(init=False, repr=False)
    _top: Array = field(init=False, repr=False)
    _seen: int = field(init=False, repr=False, default=0)
    _predicted: bool = field(init=False, repr=False, default=False)
    _floor: Floor = field(init=False, repr=False, default=Floor())
    _clusters: ClusterTotals | None = field(init=False, repr=False, default=None)
    _dependent: ClusterTotals | None = field(init=False, repr=False, default=None)
    _joined: JoinedRows | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if not (np.isfinite([self.low, self.high]).all() and self.low <= self.high):
            raise InputError(
                f"The range of rewards is {self.low} to {self.high}. Its ends must be finite and in ascending order."
            )
        scale = np.sqrt(max(self.rows, 1)) * (self.high - self.low or 1.0)
        self.smoothing = tuple(self.smoothing) or tuple(float(factor / scale) for factor in _SMOOTH)
        for name in ("switch", "shrink", "smoothing"):
            grid = tuple(sorted(map(float, getattr(self, name)), reverse=True))
            if not grid or min(grid) <= 0:
                raise InputError(f"{name}={grid}. Give one or more positive numbers.")
            setattr(self, name, grid)
        columns = len(_FIRST) + len(self.switch) + len(self.shrink) + len(self.smoothing) + int(self.sampled)
        self._total = Accumulator(columns, expected=int(self.rows))
        self._groups, self._top = np.zeros((GROUPS, columns + 2)), np.zeros(0)

    def add(  # noqa: PLR0913, PLR0917 - one parameter for each column
        self,
        task: Any,
        reward: ArrayLike,
        pscore: ArrayLike,
        target: ArrayLike,
        q_taken: ArrayLike,
        v_target: ArrayLike,
        weight: ArrayLike | None = None,
        sampling_weight: ArrayLike | None = None,
        cluster: Ids | None = None,
        dependent: Mask | None = None,
    ) -> None:
        """Add a batch of n rows.

        Parameters
        ----------
        task : (n,) ids
        reward : (n,) array
        pscore : (n,) array
            p(a | x) of the logged action, above 0.
        target : (n,) array
            pi(a | x) of the logged action.
        q_taken, v_target : (n,) array
            q(x, a) of the logged action, and sum_a pi(a | x) q(x, a), with a q that was not fitted to this row; zeros
            without predictions.
        weight : (n,) array, optional
            A row of weight k equals the row k times.
        sampling_weight : (n,) array, optional
            1 / P(the row was kept), above 0; only with ``sampled``, where the default is 1.
        cluster : (n,) ids, optional
            Of all batches or of none; ``task`` then has numbers.
        dependent : (n,) bool array, optional
            Mask of the rows whose target depends on other rows of their task; default none. Of all batches or of none;
            ``task`` then has numbers.

        Raises
        ------
        LogError
            A propensity is not in (0, 1]; a reward is outside the range.
        InputError
            A value is not finite; a target is not a probability; lengths differ.
        """
        r, p, pi, q, v = (
            np.asarray(values, dtype=np.float64) for values in (reward, pscore, target, q_taken, v_target)
        )
        self._check(r, p, pi, q, v)
        w, e, x = pi / p, r - q, np.maximum(r - self.low, 0.0)
        we, wx = w * e, w * x
        z = np.ones((r.size, self._groups.shape[1]))
        columns = iter(z.T)
        for values in (w, wx, v - self.low, we):
            next(columns)[:] = values
        for tau in self.switch:
            np.multiply(we, w <= tau, out=next(columns))
        for lam in self.shrink:
            np.multiply(we, lam / (w * w + lam), out=next(columns))
        for lam in self.smoothing:
            np.log1p(lam * wx, out=next(columns))
        if self.sampled:
            next(columns)[:] = 1.0
        next(columns)[:] = x
        if sampling_weight is not None:
            inverse_probability = np.asarray(sampling_weight, dtype=np.float64)
            invalid = ~(np.isfinite(inverse_probability) & (inverse_probability > 0))
            _refuse(
                invalid,
                inverse_probability,
                "sampling_weight",
                "and must be a finite number above 0: it is 1 / P(the row was kept).",
                LogError,
            )
            z[:, :-1] *= inverse_probability[:, None]
            w = w * inverse_probability
        self._total.add(task, np.ascontiguousarray(z[:, :-2]), z[:, -2], weight)
        counts = (
            np.ones(r.size) if weight is None else np.asarray(weight, dtype=np.float64)
        )  # add() above has checked them
        self._group(z if weight is None else z * counts[:, None], task, cluster)
        if dependent is not None:
            self._add_dependent(z, task, None if weight is None else counts, cluster, dependent)
        taken = (w > 0) & (counts > 0)
        self._top = _largest(self._top, w[taken] * counts[taken])
        self._floor += Floor.of(p, counts)
        self._predicted |= bool(v.any() or q.any())

    def _group(self, z: Array, task: Any, cluster: Ids | None) -> None:
        """Add rows to the groups in turn, continuing where the last batch ended; and to their clusters."""
        add_in_turn(self._groups, self._seen, z)
        self._seen += len(z)
        if cluster is not None:
            self._clusters = self._clusters or ClusterTotals(z.shape[1])
            self._clusters.add(task, cluster, z)

    def _add_dependent(
        self, z: Array, task: Any, counts: Array | None, cluster: Ids | None, dependent: Mask
    ) -> None:
        """Add rows that depend on other rows of their task, or their clusters."""
        if cluster is not None:
            self._dependent = self._dependent or ClusterTotals(1)
            self._dependent.add(task, cluster, np.asarray(dependent, dtype=np.float64)[:, None])
            return
        self._joined = self._joined or JoinedRows(z.shape[1])
        self._joined.add(task, z, counts, dependent)

    def _check(self, r: Array, p: Array, pi: Array, q: Array, v: Array) -> None:
        for name, values in (("reward", r), ("pscore", p), ("target", pi), ("q_taken", q), ("v_target", v)):
            if values.shape != r.shape or values.ndim != 1:
                raise InputError(
                    f"{name} has shape {values.shape} and reward has shape {r.shape}. Hand in one number a row."
                )
            _refuse(
                ~np.isfinite(values), values, name, "and is not finite. Hand in finite numbers.", InputError
            )
        reason = (
            "and the probability of a logged action is in (0, 1]. Does it stand for a missing value, or belong to "
            "another action?"
        )
        _refuse((p <= 0) | (p > 1), p, "pscore", reason, LogError)
        reason = "and the policy's probability of an action is in [0, 1]."
        _refuse((pi < 0) | (pi > 1 + 1e-9), pi, "target", reason, InputError)
        slack = 1e-9 * max(abs(self.low), abs(self.high))
        reason = f"outside the given range {self.low} to {self.high}."
        _refuse((r < self.low - slack) | (r > self.high + slack), r, "reward", reason, LogError)

    def moments(self) -> OffPolicyMoments:
        """Return the sums of all batches so far."""
        moments, clusters, dependent = self._total.moments(), None, None
        if self._clusters is not None:
            clusters = self._clusters.sums()
            if self._dependent is not None and not clusters.spans_units:
                dependent = self._dependent.sums().sums[:, 0] > 0.0
            clusters = replace(clusters, unit=np.asarray(moments.keys.require(clusters.unit)))
        return OffPolicyMoments(
            moments, self.switch, self.shrink, self.smoothing, self.low, self.high,
            self._predicted, self.sampled, self._top.copy(), self._groups.copy(), self._floor, clusters, dependent,
            None if self._joined is None else self._joined.units(),
        )  # fmt: skip


def _refuse(bad: NDArray[np.bool_], values: Array, name: str, reason: str, error: type[InputError]) -> None:
    if bad.any():
        row = int(bad.argmax())
        raise error(f"{name}[{row}] is {values[row]}, {reason}")
