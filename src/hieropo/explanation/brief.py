"""Short explanations of the choices in several tasks, at their mean contexts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hieropo._utils.text import Report
from hieropo._utils.ties import first_largest
from hieropo.explanation.contexts import mean_context, shown_id
from hieropo.model.attribution import own_shares, without_rows
from hieropo.model.crossed.task_noise import moments_of_log
from hieropo.model.protocol import TaskPosterior
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import LCBPolicy


@dataclass(frozen=True, slots=True)
class Brief(Report):
    """The choice in one task at its mean context, and where its expected reward comes from.

    Attributes
    ----------
    task, choice, rival : id
    mean : float
        Expected reward of the choice: the sum of ``prior``, ``own`` and ``others``.
    prior, own, others : float
        Shares of the prior, of the task's own rows and of the rows of other tasks.
    lead : float
        Of the choice over the rival, in lower bounds.
    without_own : id or None
        The choice without the task's own rows; None where the other rows leave it open.
    """

    task: Any
    choice: Any
    rival: Any
    mean: float
    prior: float
    own: float
    others: float
    lead: float
    without_own: Any


def briefs(
    posterior: TaskPosterior, policy: LCBPolicy | GatedPolicy, tasks: Sequence[Any]
) -> tuple[Brief, ...]:
    """Return short explanations of the choices in some tasks of the log.

    There are none where the mean context of a task is not known, there are fewer than two actions, or rewards were
    learned in two parts.

    Raises
    ------
    UnknownTaskError
        A task is not in the log.
    """
    acting = policy.ungated
    features, moments = acting.features, posterior.moments
    explained = not getattr(posterior, "in_two_parts", False)
    if not explained or features is None or len(features.actions or ()) < 2 or not len(tasks):
        return ()
    rows = np.asarray(moments.keys.require(list(tasks)))
    contexts = [mean_context(moments_of_log(posterior), features, int(row)) for row in rows]
    if any(context is None for context in contexts):
        return ()
    phi = features.candidates(np.array(contexts).reshape(len(rows), -1))
    best = acting.choose_many(list(tasks), phi=phi, top=2)
    chosen = phi[np.arange(len(rows)), best.index[:, 0]]
    mean, prior, own = (values[:, 0] for values in own_shares(posterior, rows, chosen[:, None]))
    left, covs = without_rows(posterior, rows, phi, rows)
    bounds = left - acting.pessimism * np.sqrt(np.maximum(np.einsum("nkk->nk", covs), 0.0))
    names = [shown_id(action) for action in features.actions or ()]
    return tuple(
        Brief(
            shown_id(task), names[best.index[i, 0]], names[best.index[i, 1]], float(mean[i]), float(prior[i]),
            float(own[i]), float(mean[i] - prior[i] - own[i]),
            float(best.lower_bound[i, 0] - best.lower_bound[i, 1]),
            None if np.isnan(bounds[i]).any() else names[int(first_largest(bounds[i]))],
        )
        for i, task in enumerate(tasks)
    )  # fmt: skip
