"""The evidence of the crossed prior, and its slope, where units have far fewer rows than columns.

In coefficients kappa of scaled columns, theta = T'kappa, with R_u'R_u the information of the rows of a unit, R_u of as
many rows as it has rank, and y_u what they say,

    y_s ~ N(Z_s (alpha, beta), V_s)        V_s = diag(exp w) + R_s L R_s' + blocks R_u M R_u'

so that no p x p matrix of a unit is factored: with H H' = V_s, X_s = H^-1 Z_s and alpha = A^1/2 z, N = X'X + (I, 0),

    log evidence = -(sum log|V_s| + log|N|) / 2 - dof / 2 log q
    d / d t_Lj   = L_j sum_s  -|l|^2 + |l'X N^-1/2|^2 + dof / q (l'r)^2

l = H^-1 R_s e_j, r = H^-1 (y - Z (alpha, beta)); and so for M with the rows of a unit, for w with those of an action,
and for A by the variances and means of z.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import unpack
from hieropo.errors import NumericalError
from hieropo.model.crossed.steps import ObservedUnits, RootSums, pivoted_root
from hieropo.moments.statistics import Moments

_WIDE = 16  # columns from which it may pay
_SHARE = 0.5  # rows over columns of units, up to which it does


class FewRows(NamedTuple):
    """Rows that say the same as the moments, at most as many of each unit as it has rows.

    Attributes
    ----------
    rows : (N, p) array
        R, on kappa; those of a task side by side.
    rewards : (N,) array
        y.
    action : (N,) int array
    starts : (t + 1,) int array
        Of the rows of each task.
    rest : (K,) array
        Squares of rewards that the rows leave.
    counts : (K,) array
        Rows of the log of each action.
    constant : float
        What else the log evidence has.
    """

    rows: Array
    rewards: Array
    action: Codes
    starts: Codes
    rest: Array
    counts: Array
    constant: float

    @staticmethod
    def pays(moments: Moments) -> bool:
        """Return True if units have so many columns and so few rows that this is the faster way."""
        p = moments.unit_dim
        observed = int(np.count_nonzero(moments.rows))
        return p >= _WIDE and float(np.minimum(moments.rows, p).sum()) <= _SHARE * p * observed

    @classmethod
    def of(cls, moments: Moments, transform: Array) -> "FewRows":
        """Take roots of the information of each unit; ``transform`` is T."""
        K, p = moments.n_actions, moments.unit_dim
        units = ObservedUnits.of(moments, np.ones(K))
        sums = unpack(units.rows, p + 1)
        parts = [pivoted_root(one[:p, :p], one[:p, p], float(one[p, p])) for one in sums]
        ranks = np.array([len(root) for root, *_ in parts], dtype=np.int64)
        left = np.array([max(part[3], 0.0) for part in parts])
        log_size = float(np.linalg.slogdet(transform)[1])
        constant = (moments.n_rows - p) * np.log(2 * np.pi) - float(moments.log_precision.sum())
        return cls(
            np.concatenate([root for root, *_ in parts]) @ transform.T,
            np.concatenate([y for _, y, *_ in parts]),
            np.repeat(units.action, ranks),
            np.append(0, np.cumsum(ranks))[units.starts],
            np.bincount(units.action, left, K).astype(np.float64),
            moments.rows.sum(axis=0),
            -0.5 * float(constant) + log_size,
        )

    def variance_slope(self, log_sds: list[Array], log_noise: Array) -> Array:
        """Slope (3 p,) along (t_A, t_L, t_M) without what posterior means have of it: minus what they explain."""
        return self.evidence(log_sds, log_noise, 1.0, 0.0, scale=0.0)[1][: 3 * self.rows.shape[1]]

    def evidence(
        self, log_sds: list[Array], log_noise: Array, dof: float, least: float, *, scale: float | None = None
    ) -> tuple[float, Array]:
        """Log evidence with s^2 integrated, noise at least ``least``, and its slope along (t_A, t_L, t_M, w).

        ``scale`` is the weight of squares of means in the slope, by default dof / q.

        Raises
        ------
        NumericalError
            The rows leave a direction of beta open.
        """
        from scipy.linalg import cho_solve, cholesky, solve_triangular

        (action, level, interaction), (K, p) = log_sds, (self.rest.size, self.rows.shape[1])
        ratio, d = np.exp(log_noise), self.rest.size * self.rows.shape[1]
        of_level = self._covariances(np.diag(np.exp(2 * level)), within_action=False)
        of_interaction = self._covariances(np.diag(np.exp(2 * interaction)), within_action=True)
        covs = [one + other for one, other in zip(of_level, of_interaction, strict=True)]
        whitened, X, v, log_det = self._whitened(covs, ratio)
        X[:, :d] *= np.tile(np.exp(action), K)
        information = X.T @ X
        information[np.arange(d), np.arange(d)] += 1.0
        try:
            root = cholesky(information)
        except np.linalg.LinAlgError as error:
            raise NumericalError(
                "The rows do not determine beta, the coefficients that all tasks and actions share: their information "
                "matrix is singular. Is a column constant zero, or a combination of others? Leave it out."
            ) from error
        solution = cho_solve((root, False), X.T @ v)
        r, z = v - X @ solution, solution[:d]
        q = float(r @ r + z @ z + (self.rest / ratio).sum())
        square = max(q, 0.0) + dof * least
        scale = dof / square if scale is None else scale
        log_det += 2.0 * float(np.log(np.diagonal(root)).sum())
        log_det += float((self.counts - np.bincount(self.action, minlength=K)) @ log_noise)
        value = self.constant - 0.5 * log_det - 0.5 * dof * float(np.log(square))
        shared = solve_triangular(root, X.T, trans="T").T
        variance = np.square(solve_triangular(root, np.eye(len(root)))).sum(axis=1)
        slope = (variance[:d] + scale * np.square(z) - 1.0).reshape(K, p) * (self.counts > 0)[:, None]
        along, noise = self._sums(whitened, X, shared, r, scale, ratio)
        of_units = (along[:d] * np.exp(-2 * np.tile(action, K))).reshape(K, p).sum(axis=0)
        left = np.bincount(self.action, minlength=K) - self.counts + scale * self.rest / ratio
        slopes = [slope.sum(axis=0), np.exp(2 * level) * along[d:], np.exp(2 * interaction) * of_units]
        return value, np.concatenate([*slopes, noise + 0.5 * left])

    def _tasks(self) -> list[slice]:
        return [slice(first, last) for first, last in zip(self.starts, self.starts[1:], strict=False)]

    def _covariances(self, cov: Array, *, within_action: bool) -> list[Array]:
        """R_s cov R_s' of the rows of each task, 0 between actions where ``within_action``."""
        covs = []
        for part in self._tasks():
            R, code = self.rows[part], self.action[part]
            of_rows = (R @ cov) @ R.T
            covs.append(of_rows * (code[:, None] == code) if within_action else of_rows)
        return covs

    def _whitened(self, covs: list[Array], ratio: Array) -> tuple[list[Array], Array, Array, float]:
        """H^-1 of each task, H^-1 Z (N, (K + 1) p), H^-1 y, and sum log|V_s|; ``covs`` are V_s without noise."""
        from scipy.linalg.lapack import dtrtri

        K, p = ratio.size, self.rows.shape[1]
        whitened, X, log_det = [], np.zeros((len(self.rows), (K + 1) * p)), 0.0
        v = np.empty(len(self.rows))
        for part, cov in zip(self._tasks(), covs, strict=True):
            R, code = self.rows[part], self.action[part]
            root = np.linalg.cholesky(cov + np.diag(ratio[code]))
            log_det += 2.0 * float(np.log(np.diagonal(root)).sum())
            inverse = dtrtri(root, lower=1)[0]
            for a in np.unique(code).tolist():
                members = np.flatnonzero(code == a)
                X[part, a * p : a * p + p] = inverse[:, members] @ R[members]
            X[part, K * p :] = inverse @ R
            v[part] = inverse @ self.rewards[part]
            whitened.append(inverse)
        return whitened, X, v, log_det

    def way_up(
        self, level_cov: Array, interaction_cov: Array, noise_ratio: Array
    ) -> Callable[[float, float], RootSums]:
        """Return the function from l^2 and m^2 to the messages of all tasks to the root, where L = l^2 ``level_cov``.

        M = m^2 ``interaction_cov``. The covariances are in the coordinates of ``rows``.
        """
        of_level = self._covariances(level_cov, within_action=False)
        of_interaction = self._covariances(interaction_cov, within_action=True)
        K, p = self.rest.size, self.rows.shape[1]
        d = K * p
        log_noise = float(np.log(noise_ratio[self.action]).sum())
        rest = float((self.rest / noise_ratio).sum())

        def root_sums(level_var: float, interaction_var: float) -> RootSums:
            covs = [
                level_var * one + interaction_var * other
                for one, other in zip(of_level, of_interaction, strict=True)
            ]
            _, X, v, log_det = self._whitened(covs, noise_ratio)
            information, score = X.T @ X, X.T @ v
            level = np.empty((p + 1, p + 1))
            level[:p, :p], level[:p, p], level[p, :p] = information[d:, d:], score[d:], score[d:]
            level[p, p] = float(v @ v) + rest
            return RootSums(
                level, information[d:, :d].reshape(p, K, p), information[:d, :d].reshape(K, p, K, p),
                score[:d].reshape(K, p), log_det - log_noise,
            )  # fmt: skip

        return root_sums

    def _sums(
        self, whitened: list[Array], X: Array, shared: Array, r: Array, scale: float, ratio: Array
    ) -> tuple[Array, Array]:
        """Sums over tasks of -|l|^2 + |l'shared|^2 + scale (l'r)^2 for each column l of X, and slopes along w."""
        along, per_row = np.zeros(X.shape[1]), np.empty(len(X))
        for inverse, part in zip(whitened, self._tasks(), strict=True):
            columns, projected, residual = X[part], shared[part], r[part]
            seen = np.flatnonzero(columns.any(axis=0))
            columns = columns[:, seen]
            along[seen] += np.square(columns.T @ projected).sum(axis=1) - np.square(columns).sum(axis=0)
            along[seen] += scale * np.square(columns.T @ residual)
            back = inverse.T @ projected
            per_row[part] = np.square(back).sum(axis=1) - np.square(inverse).sum(axis=0)
            per_row[part] += scale * np.square(inverse.T @ residual)
        noise = 0.5 * ratio * np.bincount(self.action, per_row, ratio.size)
        return along, noise
