"""Laws of units (task, action) given the log, as arrays: without and with what all actions of a task have in common.

Without (:class:`TreeLaws`), theta_sa = mu_a + u_sa: a unit's parent is its action, whose parent is mu, so that
:mod:`steps` serves both levels, at O(p^3) a unit. To mu, the K actions are what tasks are to
:func:`hieropo.core.posterior.condition`: their sums are the [P b; b' c] that the units pass up, and their noise is 1.
Units of one task are not independent given the log: with M as in :mod:`steps` and C the covariance of all action means,
cov(theta_sa, theta_sb) = M_sa C_ab M_sb', and C_ab = M_a Sigma-bar M_b' for a != b.

With it (:class:`EffectLaws`), theta_sa = mu_a + b_s + u_sa, b_s ~ N(0, Sigma_b). Let A_sa and a_sa be what unit (s, a)
says of mu_a + b_s, one step up, and L_s L_s' = I + F'(sum_a A_sa) F, F F' = Sigma_b, E_s = L_s^-1 F'. Integrating b_s
out as well leaves the action means, stacked to d = K p, with

    X_s = E_s [A_s1 .. A_sK],   x_s = E_s sum_a a_sa
    P = sum_s blockdiag(A_sa) - X_s'X_s,   b = sum_s [a_sa] - X_s'x_s

which is one matrix product over the tasks, and one node of dimension d below mu. Down, with C = Q Q' the covariance and
m the mean of the stacked action means given the log,

    mu_a + b_s:  mean m_a + E_s'(x_s - X_s m),   root [E_s', Q_a - E_s'X_s Q]

and theta_sa as any child of that: O(K^2 p^3) a task, and d^2 numbers once.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from hieropo.core.gaussian import Array, Gaussian
from hieropo.core.hierarchy import Hierarchy
from hieropo.core.keys import Codes, Keys
from hieropo.core.packed import pack, packed_size, unpack
from hieropo.core.posterior import Posterior, condition
from hieropo.core.statistics import Moments
from hieropo.core.steps import Parents, down, square_roots, up, upper_factor

_ROOM = 2**21  # doubles of one array while tasks with effects are worked on


class UnitLaws(Protocol):
    """The laws of action means and units given the log."""

    hyper: Gaussian
    log_evidence: float

    @property
    def actions(self) -> tuple[Array, Array]:
        """Means (K, p) and packed covariances (K, p (p + 1) / 2) of the action means."""

    def tasks(self, part: slice) -> tuple[Array, Array]:
        """Means (n, K, p) and packed covariances (n, K, p (p + 1) / 2) of the units of some tasks."""

    def joint(self, row: int) -> Gaussian:
        """Law of all d coefficients of a task."""

    def along(self, vectors: Array, part: slice) -> tuple[Array, Array]:
        """Covariances (n, J, J) = own + shared shared' of v_js' theta_s, vectors (n, J, K, p), of some tasks.

        ``shared`` (n, J, d) is what they have in common with other tasks: for s != z, the covariance of v_js' theta_s
        and v_lz' theta_z is shared_sj' shared_zl.
        """

    def new(self, task_cov: Array) -> Gaussian:
        """Law of all d coefficients of a task without rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """The nodes of one level: what they know, and how they vary around their parents."""

    rows: Array
    scale: float
    factor: Array
    regular: bool

    @classmethod
    def of(cls, rows: Array, scale: float, cov: Array) -> "Nodes":
        """Factor the covariance of the level."""
        return cls(rows, scale, *upper_factor(cov))

    def below(self, means: Array, roots: Array, parent: Codes, part: slice) -> tuple[Array, Array]:
        """Means and packed covariances of some nodes, given all parents' means and roots of their covariances."""
        return self._down(Parents.of(means, roots, self.factor, regular=self.regular), parent, part)

    def given(self, means: Array, part: slice) -> tuple[Array, Array]:
        """Means and packed covariances of some nodes, each with a parent of its own that is known."""
        n, p = means.shape
        known = Parents(means, np.zeros((n, p, p)), np.zeros((0, p, p)), lower=True)
        return self._down(known, np.arange(n), part)

    def _down(self, parents: Parents, parent: Codes, part: slice) -> tuple[Array, Array]:
        means, covs, _ = down(self.rows[part], self.scale, self.factor, parent, parents)
        return means, covs

    def gains(self, part: slice) -> Array:
        """M = (I + Sigma G)^-1 of some nodes, (n, p, p)."""
        p = len(self.factor)
        parents = Parents.of(np.zeros((1, p)), np.eye(p)[None], self.factor, regular=self.regular)
        # C = F inner + outer with inner triangular is a rotation of I, so undo it: M C C' = M
        whole = self.factor @ parents.inner[0] + (parents.outer[0] if parents.outer.size else 0.0)
        rows = self.rows[part]
        zero = np.zeros(len(rows), dtype=np.int64)
        turned: Array = down(rows, self.scale, self.factor, zero, parents, gains=True)[2] @ whole.T
        return turned


class TreeLaws:
    """Units below actions below mu.

    Parameters
    ----------
    units : Nodes
        The m K units; action a of the task in row s stands in row s K + a.
    rows : (K,) int array
        Rows of each action.
    hyper : Gaussian or None
    action_cov : (p, p) array
    """

    def __init__(self, units: Nodes, rows: Codes, hyper: Gaussian | None, action_cov: Array) -> None:
        K, p = len(rows), len(action_cov)
        parent = np.tile(np.arange(K), len(units.rows) // K)
        said, log_det = up(units.rows, units.scale, units.factor, parent, K)
        self._units, self._action_cov = units, action_cov
        self._between = _two_levels(said, rows, hyper, action_cov)
        self._shape = K, p
        self.hyper = self._between.hyper
        self.log_evidence = self._between.log_evidence - 0.5 * log_det

    @property
    def actions(self) -> tuple[Array, Array]:
        """As :class:`UnitLaws`."""
        table = self._between.table()
        return table.means, table.covs

    def tasks(self, part: slice) -> tuple[Array, Array]:
        """As :class:`UnitLaws`."""
        (K, p), means = self._shape, self.actions[0]
        n = part.stop - part.start
        parent = np.tile(np.arange(K), n)
        found, covs = self._units.below(means, self._roots, parent, _units(part, K))
        return found.reshape(n, K, p), covs.reshape(n, K, packed_size(p))

    def joint(self, row: int) -> Gaussian:
        """As :class:`UnitLaws`."""
        part = _units(slice(row, row + 1), self._shape[0])
        means, own = self._units.given(self.actions[0], part)
        return _whole(means, self._units.gains(part) @ self._root, own)

    def along(self, vectors: Array, part: slice) -> tuple[Array, Array]:
        """As :class:`UnitLaws`."""
        n, J, K, p = vectors.shape
        units = _units(part, K)
        _, own = self._units.given(np.zeros((n * K, p)), units)
        seen = np.einsum("njki,nkil->njkl", vectors, self._units.gains(units).reshape(n, K, p, p))
        return _own(vectors, own), seen.reshape(n, J, K * p) @ self._root.reshape(K * p, K * p)

    def new(self, task_cov: Array) -> Gaussian:
        """As :class:`UnitLaws`."""
        return _whole(self.actions[0], self._root, np.tile(pack(task_cov), (self._shape[0], 1)))

    @cached_property
    def _roots(self) -> Array:
        return square_roots(unpack(self.actions[1], self._shape[1]))

    @cached_property
    def _root(self) -> Array:
        """Square root (K, p, d) of the covariance of all action means."""
        K, p = self._shape
        nodes = Nodes.of(self._between.moments.sums, 1.0, self._action_cov)
        every = slice(0, K)
        _, own = nodes.given(np.tile(self.hyper.mean, (K, 1)), every)
        whole = _whole(self.actions[0], nodes.gains(every) @ square_roots(self.hyper.cov[None])[0], own)
        root: Array = square_roots(whole.cov[None])[0].reshape(K, p, K * p)
        return root


class EffectLaws:
    """Units tied by an effect of their task, below actions below mu; parameters as :class:`TreeLaws`.

    Parameters
    ----------
    effect_cov : (p, p) array
        Sigma_b.
    """

    def __init__(
        self, units: Nodes, rows: Codes, hyper: Gaussian | None, action_cov: Array, effect_cov: Array
    ) -> None:
        K, p = len(rows), len(action_cov)
        self._units, self._shape = units, (K, p)
        self._factor = upper_factor(effect_cov)[0]
        joint, log_det = self._up(len(units.rows) // K)
        d = K * p
        factor, regular = upper_factor(action_cov)
        every = np.kron(np.eye(K), factor).astype(np.float64)
        actions = Nodes(pack(joint)[None], 1.0, every, regular)
        zero = np.zeros(1, dtype=np.int64)
        said, part = up(actions.rows, 1.0, actions.factor, zero, 1)
        places = np.concatenate([np.tile(np.arange(p), K), [p]])  # every action looks at mu in the same way
        ones = np.zeros((d + 1, p + 1))
        ones[np.arange(d + 1), places] = 1.0
        above = pack(ones.T @ unpack(said[0], d + 1) @ ones)[None]
        root = _two_levels(above, np.array([rows.sum()]), hyper, np.zeros((p, p)))
        self.hyper = root.hyper
        self.log_evidence = root.log_evidence - 0.5 * (log_det + part)
        spread = np.zeros((1, d, d))
        spread[0, :, :p] = np.tile(square_roots(self.hyper.cov[None])[0], (K, 1))
        mean, cov = actions.below(np.tile(self.hyper.mean, K)[None], spread, zero, slice(0, 1))
        self._mean = mean.reshape(K, p)
        self._root = square_roots(unpack(cov, d))[0].reshape(K, p, d)

    @property
    def actions(self) -> tuple[Array, Array]:
        """As :class:`UnitLaws`."""
        return self._mean, pack(self._root @ self._root.swapaxes(1, 2))

    def tasks(self, part: slice) -> tuple[Array, Array]:
        """As :class:`UnitLaws`."""
        K, p = self._shape
        n = part.stop - part.start
        means, covs = np.empty((n, K, p)), np.empty((n, K, packed_size(p)))
        for some in self._pieces(part):
            at = slice(some.start - part.start, some.stop - part.start)
            means[at], own, roots = self._down(some)
            covs[at] = own + pack(roots @ roots.swapaxes(2, 3))
        return means, covs

    def joint(self, row: int) -> Gaussian:
        """As :class:`UnitLaws`."""
        means, own, roots = self._down(slice(row, row + 1))
        return _whole(means[0], roots[0], own[0])

    def along(self, vectors: Array, part: slice) -> tuple[Array, Array]:
        """As :class:`UnitLaws`."""
        n, J, K, p = vectors.shape
        own, shared = np.empty((n, J, J)), np.empty((n, J, K * p))
        for some in self._pieces(part):
            at = slice(some.start - part.start, some.stop - part.start)
            _, covs, roots = self._down(some)
            size = len(covs)
            seen = vectors[at].reshape(size, J, K * p) @ roots.reshape(size, K * p, -1)
            effect = seen[:, :, :p]
            own[at] = _own(vectors[at], covs) + effect @ effect.swapaxes(1, 2)
            shared[at] = seen[:, :, p:]
        return own, shared

    def new(self, task_cov: Array) -> Gaussian:
        """As :class:`UnitLaws`."""
        K, p = self._shape
        effect = np.broadcast_to(self._factor, (K, p, p))
        roots = np.concatenate([effect, self._root], axis=2)
        return _whole(self._mean, roots, np.tile(pack(task_cov), (K, 1)))

    def _pieces(self, part: slice) -> list[slice]:
        K, p = self._shape
        step = max(1, _ROOM // (K * p * (K + 1) * p))
        return [slice(at, min(at + step, part.stop)) for at in range(part.start, part.stop, step)]

    def _up(self, m: int) -> tuple[Array, float]:
        """Return the message of all tasks to the stacked action means, (d + 1, d + 1), and sum log|I + G Sigma|."""
        K, p = self._shape
        d = K * p
        total, log_det = np.zeros((d + 1, d + 1)), 0.0
        for part in self._pieces(slice(0, m)):
            said, _, X, more = self._seen(part)
            sums = said.sum(axis=0)
            for a in range(K):
                place = np.concatenate([np.arange(a * p, (a + 1) * p), [d]])
                total[np.ix_(place, place)] += sums[a]
            flat = X.reshape(-1, d + 1)
            total -= flat.T @ flat
            log_det += more
        return total, log_det

    def _seen(self, part: slice) -> tuple[Array, Array, Array, float]:
        """[A_sa a_sa; a_sa' c_sa] (n, K, p + 1, p + 1), E_s (n, p, p), [X_s x_s] (n, p, d + 1), log determinants."""
        (K, p), units, F = self._shape, _units(part, self._shape[0]), self._factor
        n = part.stop - part.start
        rows = self._units.rows[units]
        said, log_det = up(rows, self._units.scale, self._units.factor, np.arange(len(rows)), len(rows))
        joint = unpack(said, p + 1).reshape(n, K, p + 1, p + 1)
        together = joint.sum(axis=1)
        lower = np.linalg.cholesky(np.eye(p) + F.T @ together[:, :p, :p] @ F)
        E = np.linalg.solve(lower, np.broadcast_to(F.T, (n, p, p)))
        stacked = np.empty((n, p, K * p + 1))
        stacked[:, :, :-1] = joint[:, :, :p, :p].transpose(0, 2, 1, 3).reshape(n, p, K * p)
        stacked[:, :, -1] = together[:, :p, p]
        log_det += 2 * float(np.log(np.diagonal(lower, axis1=1, axis2=2)).sum())
        return joint, E, E @ stacked, log_det

    def _down(self, part: slice) -> tuple[Array, Array, Array]:
        """Means (n, K, p) of units, their own packed covariances, and roots (n, K, p, p + d) of what they share."""
        (K, p), units = self._shape, _units(part, self._shape[0])
        n, d = part.stop - part.start, K * p
        _, E, X, _ = self._seen(part)
        back = E.swapaxes(1, 2)
        effect = (back @ (X[:, :, -1:] - X[:, :, :-1] @ self._mean.reshape(d, 1)))[:, None, :, 0]
        means, own = self._units.given((self._mean + effect).reshape(n * K, p), units)
        roots = np.empty((n, K, p, p + d))
        roots[:, :, :, :p] = back[:, None]
        roots[:, :, :, p:] = self._root - (back @ (X[:, :, :-1] @ self._root.reshape(d, d)))[:, None]
        gains = self._units.gains(units).reshape(n, K, p, p)
        return means.reshape(n, K, p), own.reshape(n, K, packed_size(p)), gains @ roots


def _units(part: slice, K: int) -> slice:
    return slice(part.start * K, part.stop * K)


def _own(vectors: Array, covs: Array) -> Array:
    """Sum over actions of v_ja' cov_a v_la, (n, J, J), for vectors (n, J, K, p) and packed covariances of units."""
    n, J, K, p = vectors.shape
    turned = np.einsum("njki,nkil->njkl", vectors, unpack(covs.reshape(n, K, -1), p))
    found: Array = turned.reshape(n, J, K * p) @ vectors.reshape(n, J, K * p).swapaxes(1, 2)
    return found


def _two_levels(said: Array, rows: Codes, hyper: Gaussian | None, cov: Array) -> Posterior:
    """Posterior of nodes below mu from what their children say, packed (k, q): as of tasks, with noise 1."""
    p = len(cov)
    sums = np.zeros((len(said), packed_size(p + 2)))
    sums[:, : said.shape[1]] = said
    moments = Moments(Keys(np.arange(len(said))), p, sums, rows.astype(np.float64), np.zeros(len(said)))
    return condition(moments, Hierarchy(hyper, cov, 1.0))


def _whole(means: Array, roots: Array, own: Array) -> Gaussian:
    """Joint law of K nodes with means (K, p): covariance H H', H the stacked roots (K, p, r), plus each one's own."""
    K, p = means.shape
    stacked = roots.reshape(K * p, roots.shape[2])
    cov: Array = stacked @ stacked.T
    cov = (cov + cov.T) / 2
    np.einsum("aiaj->aij", cov.reshape(K, p, K, p))[...] += unpack(own, p)
    return Gaussian.trusted(means.reshape(-1).copy(), cov)
