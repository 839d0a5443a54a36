"""A multinomial logit of the incumbent's choices, by eligible actions and contexts, with effects of tasks.

    P(a | s, x) = lambda_sa e_a / Lambda,    e_a = exp(b_a + W_a' x) for eligible a, else 0

    Lambda = sum over actions b of lambda_sb e_b

with lambda_sa ~ Gamma(c pi_a, rate c): without e, the shares of :mod:`action_shares`. Given b and W, the
fixed point of

    lambda_sa = (n_sa + c pi_a) / (D_sa + c),   D_sa = sum over the rows of s of e_a / Lambda

which adds up to 1 over the actions, is the conditional mean of lambda with the latent times of Caron and Doucet
(Journal of Computational and Graphical Statistics 21, 2012) at theirs; with one e for all rows it is the posterior
mean of the Dirichlet law. A row is predicted without itself by taking it out of n and D. Given the lambda of each row
without itself, b and W are those of a logit with the offset log lambda; both are learned in turns. D may be taken
from a sample of a task's rows.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo._utils.ties import first_largest
from hieropo.logging_policy.action_shares import Shares, largest

_RIDGES = (1.0, 30.0, 1000.0)
_TUNED_ON = 20_000  # rows that the ridge and the concentration are chosen on
_SAME = 1e-7  # of a row's log score, which is less than fits are exact to
_ROUNDS = 4
_STEPS, _CLOSE = 60, 1e-6  # of the fixed point
_WORTH = 1e-4  # of a turn, in log score a row
_STAND_IN = 2.0  # rows that the mean of all tasks counts as, where a task is known by a sample


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Rows of a log, in random order.

    Attributes
    ----------
    task, action, fold : (n,) int
    context : (n, c) array
    mask : (n, K) bool or None
        Eligible actions.
    """

    task: Codes
    action: Codes
    fold: Codes
    context: Array
    mask: Mask | None

    def rows(self, part: "slice | Mask | Codes") -> "Sample":
        """Return some of them."""
        mask = None if self.mask is None else self.mask[part]
        return Sample(self.task[part], self.action[part], self.fold[part], self.context[part], mask)


@dataclass(frozen=True, slots=True, eq=False)
class TaskEffects:
    """Strengths of the actions in each task.

    Attributes
    ----------
    counts : (m + 1, K) array
        n_sa; the last row is an unknown task.
    prior : (K,) array
        c pi.
    concentration : float
        c.
    whole : (m + 1,) bool
        Tasks whose D is of all their rows.
    strength : (m + 1, K) array
        lambda.
    """

    counts: Array
    prior: Array
    concentration: float
    whole: Mask
    strength: Array

    def without_itself(self, task: Codes, pull: Array, taken: Codes) -> Array:
        """Return lambda (n, K) of each row's task without that row, which has the pull e (n, K)."""
        strength = self.strength[task]
        above = self.counts[task] + self.prior
        exposure = above / np.where(strength > 0, strength, 1.0) - self.concentration
        own = pull / (strength * pull).sum(axis=1, keepdims=True)
        part = ~self.whole[task]
        own[part] = exposure[part] / self.counts[task[part]].sum(axis=1, keepdims=True)
        above[np.arange(task.size), taken] -= 1.0
        return np.asarray(above / (np.maximum(exposure - own, 0.0) + self.concentration))


@dataclass(frozen=True, slots=True, eq=False)
class ActionLogit:
    """Effects of contexts and tasks; made by :func:`learn_logit`.

    The last of F + 1 is of all rows, the others leave a fold out.

    Attributes
    ----------
    mean, scale : (c,) array
        Of contexts; x is in standard deviations. An infinite scale for a column that does not vary.
    intercept, slope : (F + 1, K), (F + 1, c, K) array
        b and W.
    effects : tuple of TaskEffects
        F + 1 of them.
    ridge : float
        Prior precision of each slope.
    """

    mean: Array
    scale: Array
    intercept: Array
    slope: Array
    effects: tuple[TaskEffects, ...]
    ridge: float

    @property
    def concentration(self) -> float:
        """c: how little tasks differ beyond their contexts."""
        return self.effects[-1].concentration

    def chances(
        self,
        task: Codes,
        context: Array,
        mask: Mask | None,
        *,
        taken: Codes | None = None,
        fold: Codes | None = None,
    ) -> Array:
        """Return P(a | s, x), (n, K); 0 for a row of which no eligible action was ever taken.

        Parameters
        ----------
        task : (n,) int
        context : (n, c) array
        mask : (n, K) bool or None
        taken, fold : (n,) int, optional
            Of rows that were learned from: each is then said without itself, and by the logit without its fold.
        """
        x = (context - self.mean) / self.scale
        found = np.empty((task.size, self.intercept.shape[1]))
        part = np.full(task.size, len(self.effects) - 1) if fold is None else fold
        for f in np.unique(part):
            rows = np.flatnonzero(part == f)
            pull = pulls(self.intercept[f], self.slope[f], x[rows], None if mask is None else mask[rows])
            effects = self.effects[f]
            if taken is None:
                found[rows] = effects.strength[task[rows]] * pull
            else:
                found[rows] = effects.without_itself(task[rows], pull, taken[rows]) * pull
        return normalised(found)


def pulls(intercept: Array, slope: Array, x: Array, mask: Mask | None) -> Array:
    """Return e (n, K), up to a factor for each row."""
    found = intercept + x @ slope
    if mask is not None:
        found = np.where(mask, found, -np.inf)
    return np.asarray(np.exp(found - found.max(axis=1, keepdims=True)))


def normalised(strength: Array) -> Array:
    """Make rows (n, K) add to 1; rows of zeros stay."""
    total = strength.sum(axis=1, keepdims=True)
    return np.asarray(strength / np.where(total > 0, total, 1.0))


def learn_logit(shares: Shares, sample: Sample, folds: int) -> ActionLogit:
    """Learn the effects of contexts and tasks.

    Parameters
    ----------
    shares : Shares
        Of all rows.
    sample : Sample
        All rows, or some of each task.
    folds : int
    """
    mean, spread = sample.context.mean(axis=0), sample.context.std(axis=0)
    scale = np.where(spread > 1e-12 * np.abs(mean), spread, np.inf)
    turns = _Turns(shares, sample, (sample.context - mean) / scale)
    small = turns.whole_tasks()
    log_c, ridge = float(np.log(shares.concentration)), _RIDGES[0]
    effects = turns.effects(None, log_c)
    offset, fitted, last = effects.strength[sample.task], None, -np.inf
    for turn in range(_ROUNDS):
        if turn == 1 and mean.size:
            ridge = turns.best_ridge(offset, folds)
        fitted = turns.fit(offset, ridge, fitted)
        log_c = largest(partial(small.score, fitted), grid=6)
        effects = turns.effects(fitted, log_c, effects.strength)
        offset, score = turns.left_out(fitted, effects)
        if score - last < _WORTH:
            break
        last = score
    assert fitted is not None
    fits = [turns.fit(offset, ridge, fitted, without=f) for f in range(folds)]
    every = tuple(turns.effects(each, log_c, effects.strength) for each in fits)
    K, coefficients = shares.n_actions, np.array([*fits, fitted])
    slope = coefficients[:, K:].reshape(folds + 1, -1, K)
    return ActionLogit(mean, scale, coefficients[:, :K], slope, (*every, effects), ridge)


class _Turns:
    """Blocks of coefficients that are learned in turns, and their rows; coefficients are (b, W) as one vector."""

    def __init__(self, shares: Shares, sample: Sample, x: Array) -> None:
        self._shares, self._sample, self._x = shares, sample, x
        m, n = len(shares.counts), sample.task.size
        self._adds = csr_matrix((np.ones(n), (sample.task, np.arange(n))), shape=(m, n))
        self._kept = np.bincount(sample.task, minlength=m).astype(np.float64)
        self._whole = self._kept >= shares.rows

    def whole_tasks(self) -> "_Turns":
        """Return some tasks with all their rows in the sample: what the concentration is chosen on."""
        names, first = np.unique(self._sample.task, return_index=True)
        names = names[np.argsort(first)]
        most = np.searchsorted(np.cumsum(self._kept[names]), _TUNED_ON)
        names = np.sort(names[: max(int(most), 1)])
        rows = np.flatnonzero(np.isin(self._sample.task, names))
        part = self._sample.rows(rows)
        part = replace(part, task=np.searchsorted(names, part.task))
        shares = self._shares
        return _Turns(
            replace(
                shares, counts=shares.counts[np.append(names, -1)], rows=shares.rows[np.append(names, -1)]
            ),
            part,
            self._x[rows],
        )

    def _pulls(self, coefficients: Array | None) -> Array:
        sample, K = self._sample, self._shares.n_actions
        if coefficients is None:
            coefficients = np.zeros(K + K * self._x.shape[1])
        return pulls(coefficients[:K], coefficients[K:].reshape(-1, K), self._x, sample.mask)

    def effects(self, coefficients: Array | None, log_c: float, start: Array | None = None) -> TaskEffects:
        """Return the fixed point; without coefficients, tasks that are all the same."""
        c, shares, task = float(np.exp(log_c)), self._shares, self._sample.task
        strength = np.tile(shares.population, (len(shares.counts), 1)) if start is None else start
        above = shares.counts + c * shares.population
        pull = self._pulls(coefficients)
        for _ in range(0 if coefficients is None else _STEPS):
            ratio = pull / np.einsum("nk,nk->n", strength[task], pull)[:, None]
            exposure = self._adds @ ratio
            if not self._whole.all():
                guess = exposure + _STAND_IN * ratio.mean(axis=0)
                guess *= (shares.rows / (strength * guess).sum(axis=1))[:, None]
                exposure = np.where(self._whole[:, None], exposure, guess)
            new = above / (exposure + c)
            new /= new.sum(
                axis=1, keepdims=True
            )  # as at the fixed point, where strength adds D up to the rows
            recentred, strength = float(np.abs(new - strength).max()), new
            if recentred < _CLOSE:
                break
        return TaskEffects(shares.counts, c * shares.population, c, self._whole, strength)

    def left_out(self, coefficients: Array, effects: TaskEffects) -> tuple[Array, float]:
        """Return lambda (n, K) of each row without itself, and the mean log score of all rows."""
        pull, action = self._pulls(coefficients), self._sample.action
        found = effects.without_itself(self._sample.task, pull, action)
        chance = normalised(found * pull)[np.arange(action.size), action]
        return found, float(np.log(chance).mean())

    def score(self, coefficients: Array, log_c: float) -> float:
        """Return that score for a concentration."""
        return self.left_out(coefficients, self.effects(coefficients, log_c))[1]

    def fit(
        self, offset: Array, ridge: float, start: Array | None, without: int = -1, most: int | None = None
    ) -> Array:
        """Fit coefficients for strengths (n, K) of each row, without a fold."""
        sample = self._sample
        rows = np.flatnonzero(sample.fold[:most] != without)
        part = sample.rows(rows)
        return _fit(offset[rows], self._x[rows], part.mask, part.action, ridge, start)

    def best_ridge(self, offset: Array, folds: int) -> float:
        """Return the ridge with the best log score of two folds that were left out."""
        K, scores = self._shares.n_actions, []
        for ridge in _RIDGES:
            total = 0.0
            for f in range(min(folds, 2)):
                found = self.fit(offset, ridge, None, without=f, most=_TUNED_ON)
                rows = np.flatnonzero(self._sample.fold[:_TUNED_ON] == f)
                part = self._sample.rows(rows)
                pull = pulls(found[:K], found[K:].reshape(-1, K), self._x[rows], part.mask)
                chance = normalised(offset[rows] * pull)[np.arange(rows.size), part.action]
                total += float(np.log(chance).sum())
            scores.append(total)
        room = _SAME * min(self._sample.fold.size, _TUNED_ON)
        return _RIDGES[::-1][int(first_largest(scores[::-1], room=room))]  # of equal ones the strongest


def _fit(
    offset: Array, x: Array, mask: Mask | None, action: Codes, ridge: float, start: Array | None
) -> Array:
    """Coefficients (b, W), of the multinomial logit with log strengths as offset; ridge on W, 1 on b."""
    n, K = offset.shape
    possible = offset > 0 if mask is None else mask & (offset > 0)
    base = np.where(possible, np.log(np.where(possible, offset, 1.0)), -np.inf)
    at, scale = np.arange(n), 1.0 / max(n, 1)
    penalty = np.concatenate([np.ones(K), np.full(x.shape[1] * K, ridge)])

    def loss(z: Array) -> tuple[float, Array]:
        eta = base + z[:K] + x @ z[K:].reshape(-1, K)
        eta -= eta.max(axis=1, keepdims=True)
        chance = np.exp(eta)
        total = chance.sum(axis=1, keepdims=True)
        value = float(np.log(total).sum() - eta[at, action].sum())
        chance /= total
        chance[at, action] -= 1.0
        slope = np.concatenate([chance.sum(axis=0), (x.T @ chance).ravel()])
        return scale * (value + 0.5 * float(penalty @ z**2)), scale * (slope + penalty * z)

    origin = np.zeros(penalty.size) if start is None else start
    options = {"maxiter": 300, "gtol": 1e-6, "ftol": 1e-10}
    return np.asarray(minimize(loss, origin, jac=True, method="L-BFGS-B", options=options).x)
