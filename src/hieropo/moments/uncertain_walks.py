"""Rows at the end of a log whose rate of drift is uncertain: one set of sums, and the error that the rate leaves.

Under rate k, of weight w_k, the coefficients of a unit at the end are N(b_k, M_k) a priori and N(t_k, V_k) given its
rows; effects of actions and levels are taken at their means. With all rates they are a mixture of

    mean t = sum_k w_k t_k        covariance V + sum_k w_k (t_k - t) (t_k - t)'        V = sum_k w_k V_k

The prior N(b, M), b = sum_k w_k b_k and M = sum_k w_k M_k, is divided out of N(t, V) as for one rate:

    J = V^-1 - M^-1 = V^-1 (sum_k w_k M_k (I + J_k M_k)^-1 J_k M_k) M^-1        h = V^-1 (t - b)

J is positive semi-definite, since each V_k is at most M_k. The square and the log determinant are such that the log
density of the rows is the mean of those under the rates. The second part of the covariance comes from the rate, which
is one for all units: it is the error R x, x ~ N(0, I), with the columns sqrt(w_k) (t_k - t) of R. All units and tasks
have x in common, so that it does not average out in sums over tasks.
"""

from dataclasses import dataclass

import numpy as np

from hieropo._utils.arrays import Array
from hieropo.moments.periods import Ends, PeriodSums, Walks, counted_at_end, regular_inverse
from hieropo.moments.statistics import Moments


@dataclass(frozen=True, slots=True, eq=False)
class UncertainWalks:
    """Walks of several rates.

    Attributes
    ----------
    weights : (R,) array
        Add to 1.
    walks : tuple of Walks
        Of the same noise.
    """

    weights: Array
    walks: tuple[Walks, ...]

    def at_end(self, moments: Moments, periods: PeriodSums, precision: Array) -> tuple[Moments, Array]:
        """Return moments as :meth:`Walks.at_end`, and the roots (m, K p, R) of the error of the rate.

        With one rate there is no error, and R = 0.
        """
        p, (m, K) = moments.unit_dim, moments.rows.shape
        R = len(self.walks) if len(self.walks) > 1 else 0
        errors = np.zeros((m, K, p, R))

        def ends(some: PeriodSums, constant: Array, piece: slice) -> Ends:
            each = [walks.ends(some, constant) for walks in self.walks]
            if not R:
                return each[0]
            units, errors[piece] = self._mixed(each, periods.span)
            return units

        ended = counted_at_end(moments, periods, precision, self.walks[0], ends)
        return ended, errors.reshape(m, K * p, R)

    def _mixed(self, each: list[Ends], span: float) -> tuple[Ends, Array]:
        """Return the information of the mixture, and the columns (m, K, p, R) of the error of the rate."""
        p = each[0].score.shape[-1]
        priors = [walks.prior(span) for walks in self.walks]
        prior, middle = self._mean(priors), self._mean([one.middle for one in each])
        means, covs, gains, left, log_det = [], [], [], [], []
        for units, own in zip(each, priors, strict=True):
            spread = np.eye(p) + units.information @ own
            solved = _solved(spread, np.concatenate([units.information, units.score[..., None]], axis=-1))
            seen, along = own @ solved[..., :p] @ own, (own @ solved[..., p:])[..., 0]
            means.append(units.middle + along)
            gains.append(seen)
            covs.append(own - seen)
            left.append(units.square - (units.score * along).sum(axis=-1))
            log_det.append(units.log_det + np.linalg.slogdet(spread)[1])
        mean, cov = self._mean(means), self._mean(covs)
        away = mean - middle
        solved = _solved(cov, np.concatenate([self._mean(gains), away[..., None]], axis=-1))
        information, score = solved[..., :p] @ regular_inverse(prior), solved[..., p]
        information = (information + information.swapaxes(-1, -2)) / 2
        mixed = Ends(
            information, score, self._mean(left) + (score * away).sum(axis=-1),
            self._mean(log_det) - np.linalg.slogdet(np.eye(p) + information @ prior)[1], middle,
        )  # fmt: skip
        columns = [np.sqrt(w) * (one - mean) for w, one in zip(self.weights, means, strict=True)]
        return mixed, np.stack(columns, axis=-1)

    def _mean(self, values: list[Array]) -> Array:
        return np.asarray(sum(w * one for w, one in zip(self.weights.tolist(), values, strict=True)))


def _solved(matrices: Array, right: Array) -> Array:
    return np.asarray(right / matrices if matrices.shape[-1] == 1 else np.linalg.solve(matrices, right))
