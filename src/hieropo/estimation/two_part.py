"""A two-part likelihood: where rewards suit it, and the fit; the mathematics are in :mod:`crossed.two_part`."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.special import digamma, gammaln, polygamma

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.text import counted
from hieropo.errors import InputError, warn
from hieropo.estimation.crossed.two_part import FEWEST, TwoPartHierarchies
from hieropo.estimation.sites import LogRows, SiteFit

Learn = Callable[..., Any]  # from moments, and a similar hierarchy or None, to a Learning

_ZEROS = 0.5  # share of rewards of 0 from which "auto" looks for two parts
_TIES = 0.1  # share of the amounts that are one and the same, up to which they are amounts and no counts
_CLEAR = float(np.log(10.0))
_CHANCE = 0.01  # probability of a deviation that is not taken as chance
_NEWTON = 5  # steps to the shape of a gamma law
_FEWEST_OF_ACTION = 5  # amounts of an action whose spread is compared


class Amounts(NamedTuple):
    """Rewards above 0.

    Attributes
    ----------
    logs : (n,) array
        Their logarithms.
    action : (n,) int array
    weight : (n,) array
        Weights.
    zeros : float
        Share of all rewards that are 0.
    """

    logs: Array
    action: Codes
    weight: Array
    zeros: float

    @classmethod
    def of(cls, rows: LogRows) -> Self:
        """Return those of a log without rewards below 0."""
        paid = np.flatnonzero(rows.reward > 0.0)
        count = rows.counts
        zeros = float(count[rows.reward == 0.0].sum() / max(count.sum(), 1e-300))
        return cls(np.log(rows.reward[paid]), rows.action[paid], count[paid], zeros)

    @property
    def tied(self) -> float:
        """The share of the most frequent amount."""
        return float(np.unique(self.logs, return_counts=True)[1].max(initial=0) / max(self.logs.size, 1))

    @property
    def log_odds(self) -> float:
        """Log likelihood ratio of amounts that are lognormal to amounts that are normal or gamma, the better of both.

        The logarithms of lognormal amounts tell more than the amounts do, those of gamma amounts less.
        """
        share = self.weight / self.weight.sum()
        top = float(self.logs.max())
        amounts, logs = np.exp(self.logs - top), self.logs - top  # in units of the largest
        mean, log_mean = float(share @ amounts), float(share @ logs)
        normal, lognormal = float(share @ (amounts - mean) ** 2), float(share @ (logs - log_mean) ** 2)
        if min(normal, lognormal) <= 0.0:
            return -np.inf
        of_lognormal = -log_mean - 0.5 * np.log(2 * np.pi * np.e * lognormal)
        of_normal = -0.5 * np.log(2 * np.pi * np.e * normal)
        shape = _gamma_shape(np.log(mean) - log_mean)
        of_gamma = (shape - 1) * log_mean - shape - shape * np.log(mean / shape) - gammaln(shape)
        return float(self.weight.sum() * (of_lognormal - max(of_normal, of_gamma)))

    @property
    def alike(self) -> bool:
        """True where the spread of the logarithms does not differ between actions by more than chance."""
        groups = [self.logs[self.action == a] for a in np.unique(self.action)]
        groups = [group for group in groups if group.size >= _FEWEST_OF_ACTION]
        if len(groups) < 2:
            return True
        from scipy.stats import levene  # 30 MB, which few fits need

        return bool(levene(*groups, center="median").pvalue > _CHANCE)


def _gamma_shape(gap: float) -> float:
    """Return the shape k of the likeliest gamma law: log k - psi(k) is the log of the mean less the mean of logs."""
    shape = (3 - gap + np.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
    for _ in range(_NEWTON):
        shape /= 1 + (np.log(shape) - digamma(shape) - gap) / (1 - shape * polygamma(1, shape))
    return float(shape)


def suits_two_parts(rows: LogRows) -> bool:
    """Return True where "auto" takes a two-part likelihood.

    At least half of the rewards are 0 and all others are above 0; these are no counts, are ten to one for a lognormal
    law against a normal and a gamma law, and have logarithms of one spread in all actions.
    """
    if (rows.reward < 0.0).any():
        return False
    amounts = Amounts.of(rows)
    if amounts.zeros < _ZEROS or float(amounts.weight.sum()) < FEWEST:
        return False
    return amounts.tied <= _TIES and amounts.log_odds > _CLEAR and amounts.alike


def fit_two_part(rows: LogRows, learn: Learn) -> SiteFit:
    """Return the fit with a two-part likelihood; its moments hold the sums over positive rewards.

    Parameters
    ----------
    rows : LogRows
    learn : callable
        From moments, and a similar hierarchy or None, to a Learning.

    Raises
    ------
    InputError
        A reward is below 0; too few rewards are 0, or above 0.

    Warns
    -----
    HieropoWarning
        The spread of the logarithms of amounts differs between actions, so that mean logarithms do not order the
        means; or amounts are rather normal or gamma than lognormal.
    """
    n = int((rows.reward < 0.0).sum())
    if n:
        raise InputError(
            f"{counted(n, 'reward')} {'is' if n == 1 else 'are'} below 0, the least {rows.reward.min():.6g}. "
            "likelihood='two-part' is for rewards that are 0 or an amount above 0, whose logarithm it takes. Set "
            "likelihood='gaussian', or subtract refunds and costs from their amounts first."
        )
    moments = rows.with_positive()
    learned = learn(moments, None)
    amounts = Amounts.of(rows)
    if amounts.log_odds < 0.0:
        warn(
            "Positive rewards are not lognormal: a normal or a gamma distribution fits them better. A two-part fit "
            "compares their logarithms, which then have less information than the amounts. Use likelihood='gaussian', "
            "or 'auto', which chooses by the log."
        )
    if not amounts.alike:
        warn(
            "The spread of the logarithms of positive rewards differs between actions. A two-part fit compares the "
            "mean logarithms. Of two actions with the same mean logarithm, the one with the larger spread pays more, "
            "so that comparisons may be wrong. Use likelihood='gaussian', whose means are right."
        )
    return SiteFit(learned, moments, None)


def two_part_note(hierarchies: TwoPartHierarchies) -> str:
    """Return sentences on a two-part fit for a summary."""
    scale, parts = hierarchies.scale, (hierarchies.conversion, hierarchies.amounts)
    whether, amounts = (1.0 - part.no_effect for part in parts)
    return (
        f"Rewards are learned in two parts: {100 * scale.share:.3g} % are above 0, and the logarithms of these are "
        f"compared. The probability that actions change how often a reward is above 0 is {whether:.2g}; that they "
        f"change how large it is then, {amounts:.2g}. Standard deviations are of both parts together."
    )


def two_part_or(other: Callable[[LogRows, Learn], SiteFit]) -> Callable[[LogRows, Learn], SiteFit]:
    """Return the fit that takes a two-part likelihood where rewards suit it, and ``other`` elsewhere.

    It is ``other``, too, where the settings of the fit do not go with two parts, as with levels of tasks.
    """

    def fit(rows: LogRows, learn: Learn) -> SiteFit:
        if suits_two_parts(rows):
            two_part = fit_two_part(rows, learn)
            if isinstance(two_part.learned.hierarchy, TwoPartHierarchies):
                return two_part
        return other(rows, learn)

    return fit
