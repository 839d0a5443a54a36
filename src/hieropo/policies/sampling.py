"""A policy that explores by posterior sampling (Thompson sampling), with exact propensities."""

from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hieropo._utils.arrays import Array, Mask
from hieropo._utils.brief import brief
from hieropo._utils.text import counted
from hieropo.errors import InputError
from hieropo.features.maps import FeatureMap
from hieropo.model.table import HasTable, PosteriorTable
from hieropo.policies.candidates import Candidates
from hieropo.policies.marginals import Marginal, TaskMarginals
from hieropo.rows.keys import Unseen

_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
_NODE_WEIGHTS = _NODE_WEIGHTS / _NODE_WEIGHTS.sum()
_POINTS = 24, 40, 96, 288, 1024  # of sums over equally spaced rewards
_APART = 0.7  # of the least sd, at most, between them
_REACH = 6.5  # standard deviations beyond which a normal reward is not looked for
_BLOCK = 2**16  # doubles of phi that are made at a time
_GRID = 2**14  # doubles of an array over common points, which the caches hold


class SampledChoice(NamedTuple):
    """The action drawn in one request.

    Parameters
    ----------
    action : id
        None where the policy's feature map has no list of actions.
    index : int
        Its position among the candidates.
    propensity : float
        The probability with which it was drawn; log it as ``pscore``.
    propensities : (K,) float
        The propensity of every candidate; 0 for those not eligible.
    """

    action: Any
    index: int  # type: ignore[assignment]  # hides tuple.index, which a choice does not need
    propensity: float
    propensities: Array


class SampledChoices(NamedTuple):
    """The action drawn in each of n requests.

    Parameters
    ----------
    index : (n,) int
    propensity : (n,) float
        Log it as ``pscore``.
    propensities : (n, K) float
    """

    index: NDArray[np.int64]  # type: ignore[assignment]
    propensity: Array
    propensities: Array

    def __repr__(self) -> str:
        return brief(self)


@final
class SamplingPolicy:
    """Draw each action with its posterior probability of being the best (Thompson sampling).

    ``n_samples`` vectors theta are drawn from the task's posterior. The share of them under which a candidate
    is the best eligible one, ties going to the first, is its propensity p; the action is then drawn from p.
    So p is the exact probability of the action given these samples, not an estimate. An inverse-propensity
    estimate with it is unbiased for every policy that takes only actions with p > 0. An action that is best in
    fewer than about one of ``n_samples`` samples often gets p = 0; with ``uniform`` above 0 every p is positive.

    Parameters
    ----------
    source : Posterior or PosteriorTable
    features : FeatureMap, optional
        Makes the candidates of a context; without it requests bring phi along.
    random_state : int or numpy.random.Generator
        The same seed gives the same sequence of choices, alone and in batches. A policy holds one stream of random
        numbers: give each thread or process a policy of its own.
    n_samples : int
    uniform : float
        In [0, 1]: the share of requests with an eligible action drawn uniformly;
        ``p = (1 - uniform) * share + uniform / number of eligible actions``.
    unseen : "prior" or "error"
        Behaviour for a task that is not in the table.

    Raises
    ------
    InputError
        No explicit ``random_state``, ``n_samples`` below 1, ``uniform`` outside [0, 1]; the table holds separate
        marginals of actions, and no joint posterior.
    MismatchError
        The feature map is not that of the posterior, or has another dimension.
    """

    __slots__ = ("_candidates", "_marginals", "_rng", "features", "n_samples", "table", "uniform", "unseen")

    features: FeatureMap | None
    n_samples: int
    uniform: float

    def __init__(
        self,
        source: PosteriorTable | HasTable,
        features: FeatureMap | None = None,
        *,
        random_state: int | np.random.Generator,
        n_samples: int = 1000,
        uniform: float = 0.0,
        unseen: Unseen = "prior",
    ) -> None:
        if n_samples < 1:
            raise InputError(
                f"n_samples={n_samples} draws no sample, and propensities are shares of samples. Set it to 1 or more."
            )
        if not 0.0 <= uniform <= 1.0:
            raise InputError(
                f"uniform={uniform!r} is not in [0, 1]. Give the share of uniformly drawn actions."
            )
        self._rng = _generator(random_state)
        joint = getattr(source, "dense", None)  # of actions with coefficients of their own
        self._marginals = TaskMarginals(source if joint is None else joint(), unseen)
        if self._marginals.table.per_action:
            raise InputError(
                "SamplingPolicy draws all coefficients of a task jointly, and this table holds separate marginals of "
                "actions. Give the joint posterior, posterior.dense()."
            )
        self._candidates = Candidates(features, self._marginals.dim, self._marginals.fingerprint)
        self.table: PosteriorTable = self._marginals.table
        self.features = features
        self.n_samples = int(n_samples)
        self.uniform = float(uniform)
        self.unseen: Unseen = unseen

    def __repr__(self) -> str:
        return (
            f"SamplingPolicy(<{counted(len(self.table.keys), 'task')}, dimension {self._marginals.dim}>, "
            f"{self.features!r}, n_samples={self.n_samples}, uniform={self.uniform!r}, unseen={self.unseen!r})"
        )

    def choose(
        self,
        task: Any,
        context: ArrayLike | None = None,
        *,
        phi: ArrayLike | None = None,
        eligible: Any = None,
    ) -> SampledChoice:
        """Draw an action for one request; parameters and errors as in :meth:`LCBPolicy.choose`."""
        posterior = self._marginals.find(task)
        rows = self._candidates.one(context, phi)
        mask = self._candidates.mask(eligible, len(rows))
        index, propensities = self._draw(posterior, rows, mask, f"The request of task {task!r}")
        actions = self._candidates.actions
        action = None if actions is None else actions[index]
        return SampledChoice(action, index, float(propensities[index]), propensities)

    def choose_many(
        self,
        tasks: Any,
        context: ArrayLike | None = None,
        *,
        phi: ArrayLike | None = None,
        eligible: ArrayLike | None = None,
        first_row: int = 0,
    ) -> SampledChoices:
        """Draw an action for each of n requests, as :meth:`choose` would one after the other.

        Parameters and errors are those of :meth:`LCBPolicy.choose_many`.
        """
        marginals = self._marginals
        rows = marginals.locate(tasks, first_row)
        n = rows.size
        make, K = self._candidates.supply(context, phi, n, first_row)
        masks = self._candidates.masks(eligible, n, K)
        index = np.zeros(n, dtype=np.int64)
        propensities = np.zeros((n, K))
        step = max(1, _BLOCK // max(K * marginals.dim, 1))
        for start in range(0, n, step):
            features = make(slice(start, start + step))
            for r, candidates in enumerate(features, start):
                posterior = marginals.at(int(rows[r]))
                mask = masks[r] if len(masks) else self._candidates.mask(None, K)
                index[r], propensities[r] = self._draw(posterior, candidates, mask, f"Row {first_row + r}")
        return SampledChoices(index, np.take_along_axis(propensities, index[:, None], 1)[:, 0], propensities)

    def _draw(self, posterior: Marginal, phi: Array, mask: Mask, place: str) -> tuple[int, Array]:
        """Draw a candidate of one request; return its index and the propensities of all."""
        allowed = mask if mask.size else np.ones(len(phi), dtype=np.bool_)
        wins = np.zeros(len(phi), dtype=np.int64)
        thetas = posterior.gaussian().sample(self._rng, self.n_samples)
        if not self._marginals.loops().count_wins(thetas, phi, allowed, wins):
            raise self._candidates.refusal(place, phi, mask)
        share = self.uniform / np.count_nonzero(allowed)
        propensities = np.where(allowed, (1.0 - self.uniform) * (wins / self.n_samples) + share, 0.0)
        if self._rng.random() < self.uniform:
            index = self._rng.choice(np.flatnonzero(allowed))
        else:  # the winner under one of the samples
            index = np.searchsorted(np.cumsum(wins), self._rng.integers(self.n_samples), side="right")
        return int(index), propensities


def best_probabilities(mean: Array, sd: Array) -> Array:
    """Return the probability that each of K independent normal expected rewards is the largest, (..., K).

    The largest of x_a ~ N(mean_a, sd_a^2) is x_a with the density ``phi_a(x) prod_{b != a} Phi_b(x)``. It is summed
    over equally spaced x, at most 0.7 of the least sd apart: the error falls exponentially with their number. Where
    that takes too many, it is Gauss-Hermite quadrature over each x_a. The sums are scaled to 1 together. A policy
    that draws its action from the returned numbers has them as its exact propensities, whatever the error of the
    quadrature. Shares are those of marginal posteriors: unlike :class:`SamplingPolicy` it takes no account of the
    correlation between the rewards of two actions.

    Parameters
    ----------
    mean, sd : (..., K) array
        Of the expected reward of each action; an sd of 0 is allowed. A mean of -inf gives the probability 0.

    Examples
    --------
    >>> best_probabilities(np.array([0.0, 0.0]), np.array([1.0, 2.0])).round(6)
    array([0.5, 0.5])
    """
    K = mean.shape[-1]
    means, sds = mean.reshape(-1, K), sd.reshape(-1, K)
    shares = np.zeros(means.shape)
    step = max(1, _GRID // (K * _POINTS[0]))
    for start in range(0, len(means), step):
        part = slice(start, start + step)
        shares[part] = _best_shares(means[part], sds[part])
    return shares.reshape(mean.shape)


def _best_shares(mean: Array, sd: Array) -> Array:
    """Return the probabilities (n, K) of :func:`best_probabilities`."""
    low = (mean - _REACH * sd).max(axis=1)  # below it some action is certainly larger
    high = (mean + _REACH * sd).max(axis=1)
    chance = mean + _REACH * sd >= low[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = (high - low) / (_APART * np.where(chance, sd, np.inf).min(axis=1))
    if needed.min(initial=1.0) > 0 and needed.max(initial=1.0) < _POINTS[0]:
        shares = _on_one_grid(mean, sd, low, high, _POINTS[0])
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))
    shares = np.zeros(mean.shape)
    fewest = 0
    for points in _POINTS:
        rows = np.flatnonzero((needed > fewest) & (needed < points))
        if rows.size:
            shares[rows] = _on_one_grid(mean[rows], sd[rows], low[rows], high[rows], points)
        fewest = points
    for row in np.flatnonzero(~((needed > 0) & (needed < fewest))).tolist():
        contenders = chance[row]
        shares[row, contenders] = _on_grids_of_their_own(mean[row, contenders], sd[row, contenders])
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def _on_one_grid(mean: Array, sd: Array, low: Array, high: Array, points: int) -> Array:
    """Return the integrals (n, K) of phi_a prod_{b != a} Phi_b by sums over common points, but for a factor."""
    from scipy.special import ndtr

    precision = 1.0 / sd
    x = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, points)
    z = x[:, None, :] - mean[:, :, None]  # (n, K, q)
    z *= precision[:, :, None]
    below = np.maximum(ndtr(z), 1e-300)
    z *= z
    z *= -0.5
    ratio = np.exp(z, out=z)
    ratio /= below
    return np.asarray((ratio @ below.prod(axis=1)[:, :, None])[:, :, 0] * precision)


def _on_grids_of_their_own(mean: Array, sd: Array) -> Array:
    """Return the integrals (K,) by Gauss-Hermite quadrature over each action's own reward."""
    from scipy.special import ndtr

    scale = np.maximum(sd, 1e-12 * max(float(np.max(np.abs(mean))), 1.0))
    draws = mean[:, None] + scale[:, None] * _NODES  # (K, q)
    below = ndtr((draws[:, :, None] - mean) / scale)  # (K, q, K)
    below[np.arange(mean.size), :, np.arange(mean.size)] = 1.0
    return np.asarray(below.prod(axis=2) @ _NODE_WEIGHTS)


def _generator(random_state: object) -> np.random.Generator:
    if isinstance(random_state, np.random.Generator):
        return random_state
    if (
        isinstance(random_state, int | np.integer)
        and not isinstance(random_state, bool)
        and random_state >= 0
    ):
        return np.random.default_rng(int(random_state))
    raise InputError(
        f"random_state={random_state!r} is not a seed, and choices must be repeatable. Give an integer of at least 0 "
        "or a numpy.random.Generator."
    )
