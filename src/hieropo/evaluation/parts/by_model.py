"""Value, gain and probability of harm of a policy under the posterior, over the log and for each task."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo._utils.blas_threads import one_blas_thread
from hieropo._utils.brief import brief
from hieropo._utils.text import Report, counted
from hieropo.estimation.hyper.mixed import normal_mixture_below, normal_mixture_quantile
from hieropo.evaluation.by_posterior.certificates import certificates, rows_needed, value_distributions
from hieropo.evaluation.by_posterior.value_distributions import total
from hieropo.evaluation.passes.judging import Contexts, FeatureSums
from hieropo.explanation.brief import Brief, briefs
from hieropo.features.maps import FeatureMap
from hieropo.model.protocol import TaskPosterior
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.keys import Keys

_TASKS = 2_000  # that get certificates
_DRAWS = 1_000
_SAME = 1e-12  # relative difference of features that is rounding error
_NUMBERS = 1e7  # in vectors of all tasks that are made at once


@dataclass(frozen=True, slots=True)
class ValueSummary(Report):
    """A value in reward units: its posterior mean and sd, an equal-tailed interval, and P(value < 0).

    ``zero`` is the probability that it is exactly 0, as a gain is where actions have no effect.
    """

    mean: float
    sd: float
    low: float
    high: float
    below: float
    zero: float = 0.0

    __repr__ = brief


@dataclass(frozen=True, eq=False)
class ByModel:
    """Values of a policy and of the incumbent under the posterior; made by :func:`by_model`.

    Attributes
    ----------
    new, incumbent, difference : ValueSummary
        Mean over all rows of the log, with the covariance between tasks.
    judged : ValueSummary
        As ``difference``, of the policies that importance weighting evaluates: the cross-fitted ones, where the policy
        was learned from these rows.
    keys : Keys
        The m tasks of the log.
    weight : (m,) array
    value, value_sd, incumbent_value, incumbent_sd, gain, gain_sd, harm : (m,) array
        Figures of each task; ``harm`` is the probability that the policy is worse than the incumbent there.
    delta : (m, d) array
        Mean features of the policy's actions less those of the incumbent.
    action_shares : (2, K) array
        Shares of the rows in which the policy takes each action, and in which the incumbent took it.
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
    delta: Array
    action_shares: Array
    level: float
    _posterior: TaskPosterior
    _rows: Codes
    _features: FeatureMap
    _contexts: Contexts
    _pessimism: float
    _seed: int

    @cached_property
    def certificate(self) -> Array:
        """Bound on the gain of the best policy for each task over this one, at probability ``level`` (m,).

        By draws, as :func:`certificates.certificates`, when it is first asked for; NaN where there is none, as for
        tasks beyond a random 2,000.
        """
        rng = np.random.default_rng([self._seed, 3])
        return _certificates(self._posterior, self._features, self._rows, self._contexts, self.level, rng)

    def __repr__(self) -> str:
        gain = self.difference
        return f"ByModel({counted(len(self.gain), 'task')}, gain {gain.mean:.4g} +- {gain.sd:.2g})"

    def rows_needed(self, tasks: Any, epsilon: float, rng: np.random.Generator) -> Array:
        """Return the number of further rows of each task after which its expected certificate is below ``epsilon``.

        Rows are like the task's own, as in :func:`certificates.rows_needed`; infinite where no number is enough.

        Raises
        ------
        UnknownTaskError
            A task is not in the log.
        """
        task_rows, context, _, weight, mask = self._contexts.collected()
        rows = np.asarray(self.keys.require(tasks))
        of_tasks = np.isin(task_rows, rows)
        answered, values = rows_needed(
            self._posterior, self._rows[task_rows[of_tasks]], self._features.candidates(context[of_tasks]), epsilon,
            mask=None if mask is None else mask[of_tasks], weight=weight[of_tasks], level=self.level,
            pessimism=self._pessimism, rng=rng,
        )  # fmt: skip
        rows_by_task = dict(zip(answered.tolist(), values.tolist(), strict=True))
        return np.array([rows_by_task[int(self._rows[k])] for k in rows])

    @property
    def actions(self) -> tuple[Any, ...] | None:
        """The actions of the policy, or None where contexts describe candidates."""
        return self._features.actions

    @property
    def columns(self) -> tuple[str, ...]:
        """The context columns."""
        return tuple(self._features.columns)

    def contexts(self) -> Array:
        """Return contexts (n, c) that stand for those of the log."""
        return np.asarray(self._contexts.collected()[1], dtype=np.float64)

    def action_values(self, context: Array) -> list[list[ValueSummary]]:
        """Return the expected reward of each action in each context (n, c), averaged over tasks by their rows.

        Of n contexts each has a list of K summaries.
        """
        phi = self._features.candidates(context)
        n, k, d = phi.shape
        share = self.weight / self.weight.sum()
        step = max(1, int(_NUMBERS / (share.size * d)))
        flat = phi.reshape(n * k, d)
        values = [
            value
            for start in range(0, n * k, step)
            for value in _summaries(
                self._posterior, self._rows, share[:, None] * flat[start : start + step, None], self.level
            )
        ]
        return [values[row * k : (row + 1) * k] for row in range(n)]

    def briefs(self, policy: LCBPolicy | GatedPolicy, tasks: Sequence[Any]) -> tuple[Brief, ...]:
        """Return short explanations of the choices in some tasks, at their mean contexts; as :func:`briefs`."""
        return briefs(self._posterior, policy, tasks)

    def gated(self, passed: Mask) -> ValueSummary:
        """Return the gain of the policy over the incumbent where it acts in these tasks (m,) alone."""
        share = self.weight / self.weight.sum()
        vectors = np.where(passed[:, None], self.delta * share[:, None], 0.0)
        return _summaries(self._posterior, self._rows, vectors[None], self.level)[0]


def by_model(
    posterior: TaskPosterior,
    features: FeatureMap,
    keys: Keys,
    sums: FeatureSums,
    contexts: Contexts,
    *,
    pessimism: float,
    level: float,
    seed: int,
) -> ByModel:
    """Evaluate a policy by the posterior.

    Parameters
    ----------
    posterior : TaskPosterior
        With all tasks of the log.
    features : FeatureMap
    keys : Keys
        The m tasks of the log.
    sums : FeatureSums
        Over the rows of the log.
    contexts : Contexts
        Sampled contexts of each task.
    pessimism : float
        Of the policy.
    level : float
        Of intervals and certificates.
    seed : int
        Of the draws of certificates.
    """
    weight = sums.weight
    share = weight[:, None]
    new, logged = sums.new / share, sums.old / share
    changed = np.abs(new - logged) > _SAME * np.abs(logged)
    delta = np.where(changed, new - logged, 0.0)
    part = (weight / weight.sum())[:, None]
    rows = np.asarray(posterior.moments.keys.require(keys.values))
    vectors = [new * part, logged * part, delta * part]
    if sums.shift is not None:
        vectors.append(delta * part + sums.shift.sums / weight.sum())
    summaries = _summaries(posterior, rows, np.stack(vectors), level)
    distributions = value_distributions(posterior, _placed(posterior, rows, np.stack([new, logged, delta])))
    mean, sd, below = (values[:, rows] for values in distributions)
    return ByModel(
        summaries[0],
        summaries[1],
        summaries[2],
        summaries[-1],
        keys,
        weight,
        mean[0],
        sd[0],
        mean[1],
        sd[1],
        mean[2],
        sd[2],
        below[2],
        delta,
        sums.actions,
        level,
        posterior,
        rows,
        features,
        contexts,
        pessimism,
        seed,
    )


def _placed(posterior: TaskPosterior, rows: Codes, vectors: Array) -> Array:
    """Return vectors (..., m, d) of the tasks of the log among zeros for all other tasks of the posterior."""
    placed = np.zeros((*vectors.shape[:-2], len(posterior.moments.keys), vectors.shape[-1]))
    placed[..., rows, :] = vectors
    return placed


def _summaries(posterior: TaskPosterior, rows: Codes, vectors: Array, level: float) -> list[ValueSummary]:
    joint = total(posterior, _placed(posterior, rows, vectors))
    moments, summaries = joint.gaussian(), []
    for j in range(len(vectors)):
        means, sds = joint.means[:, j], np.sqrt(np.maximum(joint.covs[:, j, j], 0.0))
        low, high = (
            float(normal_mixture_quantile(joint.weights, means, sds, q))
            for q in ((1 - level) / 2, (1 + level) / 2)
        )
        below = float(normal_mixture_below(joint.weights, means, sds))
        zero = float(joint.weights[(means == 0) & (sds == 0)].sum())
        summaries.append(ValueSummary(float(moments.mean[j]), float(moments.sd[j]), low, high, below, zero))
    return summaries


@one_blas_thread
def _certificates(
    posterior: TaskPosterior,
    features: FeatureMap,
    rows: Codes,
    contexts: Contexts,
    level: float,
    rng: np.random.Generator,
) -> Array:
    table = np.full(len(rows), np.nan)
    task_rows, context, index, weight, mask = contexts.collected()
    drawn = np.arange(len(rows)) if len(rows) <= _TASKS else np.sort(rng.permutation(len(rows))[:_TASKS])
    of_drawn = np.isin(task_rows, drawn)
    phi = features.candidates(context[of_drawn])
    tasks, values = certificates(
        posterior, rows[task_rows[of_drawn]], phi, index[of_drawn], mask=None if mask is None else mask[of_drawn],
        weight=weight[of_drawn],
        level=level, rng=rng, n_samples=_DRAWS,
    )  # fmt: skip
    position = {int(row): k for k, row in enumerate(rows)}
    table[[position[int(task)] for task in tasks]] = values
    return table
