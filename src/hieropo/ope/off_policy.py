"""Off-policy estimates of a policy's value, and of its gain over the incumbent, from sums over tasks.

With w = pi(a | x) / p(a | x), a prediction q and e = r - q(x, a), v = sum_a pi(a | x) q(x, a), the estimates are

    IPS   mean w r                        SNIPS  mean w r / mean w
    DM    mean v                          DR     mean (v + w e)          SNDR   mean v + mean w e / mean w
    Switch-DR  mean (v + 1{w <= tau} w e)          DRos  mean (v + lambda w / (w^2 + lambda) e)
    LS    low + mean log(1 + lambda w (r - low)) / lambda

All are linear in, or ratios of, means of a few columns c of every row. So :class:`Moments` of c, with the reward beside
them, hold every estimate, every difference and its variance, by rows and by tasks; and no row is kept. The sums are
taken of r - low and v - low, which keeps the digits of rewards with a large offset.

A row of weight k is k rows. A row of sampling weight q = 1 / P(it was kept) adds q c, with q itself as one more column:
every mean is then sum q c / sum q, and its variance the robust one, by sums of q^2 c c'.

Sources: Dudik, Erhan, Langford and Li (Statistical Science 29, 2014) for DR; Swaminathan and Joachims (NeurIPS 2015)
for the self-normalised ones; Wang, Agarwal and Dudik (ICML 2017) for Switch; Su, Dimakopoulou, Krishnamurthy and Dudik
(ICML 2020) for DRos; Sakhi, Aouali, Alquier and Chopin (NeurIPS 2024) for LS.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.packed import packed_size, unpack
from hieropo._utils.ties import ROUNDING
from hieropo.errors import InputError, LogError, MismatchError
from hieropo.moments.accumulation import Accumulator
from hieropo.moments.statistics import Moments

SWITCH = (100.0, 30.0, 10.0, 3.0)
SHRINK = (1e4, 1e3, 100.0, 10.0)
_SMOOTH = (0.5, 2.0, 8.0, 32.0)  # over sqrt(rows) (high - low): one of them is within 2 of the best lambda
_TOP = 200  # weights that are kept
_GROUPS = 101  # of rows; a prime, so that what comes back every so many rows is spread over all of them
_FIRST = ("w", "w r", "v", "w e")


@dataclass(frozen=True, eq=False)
class OffPolicyMoments:
    """Sums of the terms of all estimators, for every task. They add.

    Attributes
    ----------
    moments : Moments
        Of the columns c, and the reward, less ``low``.
    switch, shrink : tuple of float
        tau of Switch-DR and lambda of DRos, from the least biased on.
    smoothing : tuple of float
        lambda of LS.
    low, high : float
        Range of rewards.
    predicted : bool
        Whether there were predictions q.
    sampled : bool
        Whether rows have sampling weights; their column comes before the reward.
    top : (k,) array
        The largest weights, descending; at most 200.
    groups : (101, k) array
        Sums of z = (c, r, 1) over every 101st row.
    floor : Floor
        The least propensity of all rows, those that the policy would not have taken among them.
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

    @cached_property
    def names(self) -> dict[str, int]:
        """Place in z of each column; ``one`` is the sampling weight where there is one, else the last."""
        kinds = {"switch": self.switch, "shrink": self.shrink, "log": self.smoothing}
        grids = [column(kind, each) for kind, grid in kinds.items() for each in grid]
        last = ("one", "reward", "row") if self.sampled else ("reward", "one")
        return {name: place for place, name in enumerate((*_FIRST, *grids, *last))}

    @property
    def size(self) -> int:
        """Entries k of z = (c, r, 1)."""
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
        """Sum of z z' over all rows, (k, k)."""
        return np.asarray(unpack(self.moments.sums.sum(axis=0), self.size))

    @property
    def rows(self) -> float:
        """Sum of the rows' weights, n; of sampling weights, where there are some."""
        return float(self.total[self.names["one"]])

    def form(self, **columns: float) -> Array:
        """Vector f (k,) with f' z a sum of these columns times their factors, of rewards and values less ``low``."""
        found = np.zeros(self.size)
        for name, factor in columns.items():
            found[self.names[name]] += factor
        return found

    def __add__(self, other: "OffPolicyMoments") -> "OffPolicyMoments":
        if not isinstance(other, OffPolicyMoments):
            return NotImplemented
        for name in ("switch", "shrink", "smoothing", "low", "high", "sampled"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise MismatchError(
                    f"Sums with {name}={mine} and sums with {name}={theirs} do not add. Make both with the same "
                    "range of rewards, number of rows and parameters."
                )
        return OffPolicyMoments(
            self.moments + other.moments, self.switch, self.shrink, self.smoothing, self.low, self.high,
            self.predicted or other.predicted, self.sampled,
            _largest(self.top, other.top), self.groups + other.groups,
            self.floor + other.floor,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Floor:
    """The least propensity, 1 where there are no rows, and how many rows have it; of parts of a log it adds."""

    propensity: float = 1.0
    rows: float = 0.0

    def __add__(self, other: "Floor") -> "Floor":
        least = min(self.propensity, other.propensity)
        rows = sum(each.rows for each in (self, other) if each.propensity <= least * (1.0 + ROUNDING))
        return Floor(least, rows)

    @classmethod
    def of(cls, propensities: Array, counts: Array) -> "Floor":
        """Find it among propensities (n,) of rows that count so often (n,)."""
        present = propensities[counts > 0]
        if not present.size:
            return cls()
        least = float(present.min())
        return cls(least, float(counts[propensities <= least * (1.0 + ROUNDING)].sum()))


def column(kind: str, parameter: float) -> str:
    """Name of the column of a tau or lambda."""
    return f"{kind} {parameter:g}"


def _largest(one: Array, other: Array) -> Array:
    both = np.concatenate([one, other])
    if both.size > _TOP:
        both = np.partition(both, both.size - _TOP)[-_TOP:]
    return np.sort(both)[::-1]


@dataclass(eq=False)
class OffPolicySums:
    """Terms of estimators in the making, batch by batch; the mutable edge of a pass over a log.

    Parameters
    ----------
    low, high : float
        Range in which all rewards lie.
    rows : float
        About how many there will be, for the smoothing of LS: lambda = (1/2, 2, 8 and 32) / (sqrt(rows) (high - low)).
    switch, shrink : sequence of float
        tau and lambda to choose from.
    smoothing : sequence of float, optional
        lambda of LS, instead.
    sampled : bool
        Whether rows come with sampling weights.

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

    def __post_init__(self) -> None:
        if not (np.isfinite([self.low, self.high]).all() and self.low <= self.high):
            raise InputError(f"Rewards from {self.low} to {self.high} are no range.")
        scale = np.sqrt(max(self.rows, 1)) * (self.high - self.low or 1.0)
        self.smoothing = tuple(self.smoothing) or tuple(float(each / scale) for each in _SMOOTH)
        for name in ("switch", "shrink", "smoothing"):
            grid = tuple(sorted(map(float, getattr(self, name)), reverse=True))
            if not grid or min(grid) <= 0:
                raise InputError(f"{name}={grid}; one or more positive numbers are needed.")
            setattr(self, name, grid)
        columns = len(_FIRST) + len(self.switch) + len(self.shrink) + len(self.smoothing) + int(self.sampled)
        self._total = Accumulator(columns)
        self._groups, self._top = np.zeros((_GROUPS, columns + 2)), np.zeros(0)

    def add(
        self,
        task: Any,
        reward: ArrayLike,
        pscore: ArrayLike,
        target: ArrayLike,
        q_taken: ArrayLike,
        v_target: ArrayLike,
        weight: ArrayLike | None = None,
        sampling_weight: ArrayLike | None = None,
    ) -> None:
        """Add rows.

        Parameters
        ----------
        task : (n,) ids
        reward : (n,) array
        pscore : (n,) array
            p(a | x) of the logged action, above 0.
        target : (n,) array
            pi(a | x) of the logged action.
        q_taken, v_target : (n,) array
            q(x, a) of the logged action, and sum_a pi(a | x) q(x, a), of a q that was not fitted to this row; zeros
            where there is none.
        weight : (n,) array, optional
            A row of weight k equals the row k times.
        sampling_weight : (n,) array, optional
            1 / P(the row was kept), above 0; with ``sampled`` alone, where it is 1 by default.

        Raises
        ------
        LogError
            A propensity that is not in (0, 1]; a reward outside the range.
        InputError
            A value that is not finite; a target that is no probability; lengths differ.
        """
        r, p, pi, q, v = (
            np.asarray(each, dtype=np.float64) for each in (reward, pscore, target, q_taken, v_target)
        )
        self._check(r, p, pi, q, v)
        w, e, x = pi / p, r - q, np.maximum(r - self.low, 0.0)
        we, wx = w * e, w * x
        z = np.ones((r.size, self._groups.shape[1]))
        columns = iter(z.T)
        for each in (w, wx, v - self.low, we):
            next(columns)[:] = each
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
            kept = np.asarray(sampling_weight, dtype=np.float64)
            wrong = ~(np.isfinite(kept) & (kept > 0))
            _refuse(wrong, kept, "sampling_weight", "and 1 / P(the row was kept) is above 0.", LogError)
            z[:, :-1] *= kept[:, None]
            w = w * kept
        self._total.add(task, np.ascontiguousarray(z[:, :-2]), z[:, -2], weight)
        counts = (
            np.ones(r.size) if weight is None else np.asarray(weight, dtype=np.float64)
        )  # checked by then
        self._group(z if weight is None else z * counts[:, None])
        some = (w > 0) & (counts > 0)
        self._top = _largest(self._top, w[some] * counts[some])
        self._floor += Floor.of(p, counts)
        self._predicted |= bool(v.any() or q.any())

    def _group(self, z: Array) -> None:
        """Deal rows out to the groups in turn, on from where the last batch ended."""
        start = self._seen % _GROUPS
        self._seen += len(z)
        padded = np.zeros((-(-(start + len(z)) // _GROUPS) * _GROUPS, z.shape[1]))
        padded[start : start + len(z)] = z
        self._groups += padded.reshape(-1, _GROUPS, z.shape[1]).sum(axis=0)

    def _check(self, r: Array, p: Array, pi: Array, q: Array, v: Array) -> None:
        for name, each in (("reward", r), ("pscore", p), ("target", pi), ("q_taken", q), ("v_target", v)):
            if each.shape != r.shape or each.ndim != 1:
                raise InputError(
                    f"{name} has shape {each.shape}, and reward {r.shape}; one of each a row is needed."
                )
            _refuse(~np.isfinite(each), each, name, "finite numbers are needed.", InputError)
        reason = (
            "and an action that was taken has a probability in (0, 1]. Was it filled in for a missing value, or is it "
            "of another action?"
        )
        _refuse((p <= 0) | (p > 1), p, "pscore", reason, LogError)
        reason = "and the policy takes an action with a probability in [0, 1]."
        _refuse((pi < 0) | (pi > 1 + 1e-9), pi, "target", reason, InputError)
        slack = 1e-9 * max(abs(self.low), abs(self.high))
        reason = f"outside the range {self.low} to {self.high} that was given."
        _refuse((r < self.low - slack) | (r > self.high + slack), r, "reward", reason, LogError)

    def moments(self) -> OffPolicyMoments:
        """Return the sums of all batches so far."""
        return OffPolicyMoments(
            self._total.moments(), self.switch, self.shrink, self.smoothing, self.low, self.high,
            self._predicted, self.sampled, self._top.copy(), self._groups.copy(), self._floor,
        )  # fmt: skip


def _refuse(bad: NDArray[np.bool_], found: Array, name: str, reason: str, kind: type[InputError]) -> None:
    if bad.any():
        row = int(bad.argmax())
        raise kind(f"{name}[{row}] is {found[row]}, {reason}")
