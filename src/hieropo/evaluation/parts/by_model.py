"""What the posterior says a policy is worth: in all, for each task, and how likely it does harm."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo._utils.text import Report
from hieropo.estimation.hyper.mixed import normal_mixture_below, normal_mixture_quantile
from hieropo.evaluation.by_posterior.certificates import certificates, rows_needed, value_distributions
from hieropo.evaluation.by_posterior.value_distributions import total
from hieropo.evaluation.passes.judging import Contexts, FeatureSums
from hieropo.features.maps import FeatureMap
from hieropo.rows.keys import Keys

_TASKS = 2_000  # of which certificates are drawn
_DRAWS = 1_000
_SAME = 1e-12


@dataclass(frozen=True, slots=True)
class ValueSummary(Report):
    """A value in reward units: its posterior mean and sd, an equal-tailed interval, and how likely it is below zero.

    ``zero`` is the probability that it is exactly 0, as a gain is where actions have no effect.
    """

    mean: float
    sd: float
    low: float
    high: float
    below: float
    zero: float = 0.0


@dataclass(frozen=True, eq=False)
class ByModel:
    """What the posterior says; made by :func:`by_model`.

    Attributes
    ----------
    new, incumbent, difference : Worth
        Mean over all rows of the log, with the covariance between tasks.
    judged : Worth
        As ``difference``, of the policies that weighted rewards judge: where rows were learned from, those learned
        without a fifth of them.
    keys : Keys
        The m tasks of the log.
    weight : (m,) array
    value, value_sd, incumbent_value, incumbent_sd, gain, gain_sd, harm : (m,) array
        Of each task; ``harm`` is the probability that the policy is worse than the incumbent there.
    certificate : (m,) array
        With probability ``level`` the best policy for this task is better by no more; NaN where it was not drawn.
    delta : (m, d) array
        Mean features of the policy's actions less those of the incumbent.
    level : float
    """

    new: ValueSummary
    incumbent: ValueSummary
    difference: ValueSummary
    judged: ValueSummary
    keys: Keys
    weight: Array
    value: Array
    value_sd: Array
    incumbent_value: Array
    incumbent_sd: Array
    gain: Array
    gain_sd: Array
    harm: Array
    certificate: Array
    delta: Array
    level: float
    _posterior: Any
    _rows: Codes
    _features: FeatureMap
    _contexts: Contexts
    _pessimism: float

    def rows_needed(self, tasks: Any, epsilon: float, rng: np.random.Generator) -> Array:
        """Return how many more rows like its own each of these tasks needs until its certificate is below ``epsilon``.

        That is, is expected to be, as :func:`worth.rows_needed` says; infinite where no number of rows is enough.

        Raises
        ------
        UnknownTaskError
            A task is not in the log.
        """
        place, context, _, weight, mask = self._contexts.collected()
        at = np.asarray(self.keys.require(tasks))
        own = np.isin(place, at)
        asked, values = rows_needed(
            self._posterior, self._rows[place[own]], self._features.candidates(context[own]), epsilon,
            mask=None if mask is None else mask[own], weight=weight[own], level=self.level,
            pessimism=self._pessimism, rng=rng,
        )  # fmt: skip
        found = dict(zip(asked.tolist(), values.tolist(), strict=True))
        return np.array([found[int(self._rows[k])] for k in at])

    def gated(self, passed: Mask) -> ValueSummary:
        """Return what the policy is worth beyond the incumbent when it acts in these tasks (m,) alone."""
        share = self.weight / self.weight.sum()
        vectors = np.where(passed[:, None], self.delta * share[:, None], 0.0)
        return _worths(self._posterior, self._rows, vectors[None], self.level)[0]


def by_model(
    posterior: Any,
    features: FeatureMap,
    keys: Keys,
    sums: FeatureSums,
    contexts: Contexts,
    *,
    pessimism: float,
    level: float,
    rng: np.random.Generator,
) -> ByModel:
    """Judge a policy by the posterior.

    Parameters
    ----------
    posterior : Posterior or one with the same views
        With all tasks of the log.
    features : FeatureMap
    keys : Keys
        The m tasks of the log.
    sums : FeatureSums
        Over the rows of the log.
    contexts : Contexts
        Rows that stand for each task.
    pessimism : float
        Of the policy.
    level : float
        Of intervals and certificates.
    rng : numpy Generator
        For certificates.
    """
    weight = sums.weight
    share = weight[:, None]
    new, old = sums.new / share, sums.old / share
    changed = np.abs(new - old) > _SAME * np.abs(old)  # by more than rounding
    delta = np.where(changed, new - old, 0.0)
    part = (weight / weight.sum())[:, None]
    rows = np.asarray(posterior.moments.keys.require(keys.values))
    vectors = [new * part, old * part, delta * part]
    if sums.shift is not None:
        vectors.append(delta * part + sums.shift.sums / weight.sum())
    worths = _worths(posterior, rows, np.stack(vectors), level)
    laws = value_distributions(posterior, _placed(posterior, rows, np.stack([new, old, delta])))
    mean, sd, below = (each[:, rows] for each in laws)
    return ByModel(
        worths[0],
        worths[1],
        worths[2],
        worths[-1],
        keys,
        weight,
        mean[0],
        sd[0],
        mean[1],
        sd[1],
        mean[2],
        sd[2],
        below[2],
        _certificates(posterior, features, rows, contexts, level, rng),
        delta,
        level,
        posterior,
        rows,
        features,
        contexts,
        pessimism,
    )


def _placed(posterior: Any, rows: Codes, vectors: Array) -> Array:
    """Vectors (..., m, d) of the tasks of the log, among all tasks of the posterior."""
    placed = np.zeros((*vectors.shape[:-2], len(posterior.moments.keys), vectors.shape[-1]))
    placed[..., rows, :] = vectors
    return placed


def _worths(posterior: Any, rows: Codes, vectors: Array, level: float) -> list[ValueSummary]:
    law = total(posterior, _placed(posterior, rows, vectors))
    whole, found = law.gaussian(), []
    for j in range(len(vectors)):
        means, sds = law.means[:, j], np.sqrt(np.maximum(law.covs[:, j, j], 0.0))
        low, high = (
            float(normal_mixture_quantile(law.weights, means, sds, q))
            for q in ((1 - level) / 2, (1 + level) / 2)
        )
        below = float(normal_mixture_below(law.weights, means, sds))
        zero = float(law.weights[(means == 0) & (sds == 0)].sum())
        found.append(ValueSummary(float(whole.mean[j]), float(whole.sd[j]), low, high, below, zero))
    return found


def _certificates(
    posterior: Any,
    features: FeatureMap,
    rows: Codes,
    contexts: Contexts,
    level: float,
    rng: np.random.Generator,
) -> Array:
    found = np.full(len(rows), np.nan)
    place, context, index, weight, mask = contexts.collected()
    drawn = np.arange(len(rows)) if len(rows) <= _TASKS else np.sort(rng.permutation(len(rows))[:_TASKS])
    own = np.isin(place, drawn)
    phi = features.candidates(context[own])
    tasks, values = certificates(
        posterior, rows[place[own]], phi, index[own], mask=None if mask is None else mask[own], weight=weight[own],
        level=level, rng=rng, n_samples=_DRAWS,
    )  # fmt: skip
    back = {int(row): k for k, row in enumerate(rows)}
    found[[back[int(task)] for task in tasks]] = values
    return found
