"""Compute the explanation of one choice from a posterior and a policy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array, Mask
from hieropo._utils.ties import first_largest, ordered
from hieropo.errors import InputError, MismatchError, UnknownTaskError
from hieropo.estimation.hyper.mixed import normal_mixture_below
from hieropo.explanation.contexts import mean_context, shown_id
from hieropo.explanation.explanation import ActionValue, Explanation, Influence, RowInfluence, Shares
from hieropo.explanation.row_influences import LogOfFit, most_influential_rows
from hieropo.explanation.turning import turns
from hieropo.features.maps import FeatureMap
from hieropo.logs.encoding import encoded_rows
from hieropo.model.attribution import Attribution, attribution, without_tasks
from hieropo.model.crossed.task_noise import moments_of_log
from hieropo.model.protocol import TaskPosterior
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import LCBPolicy

_TRIED, _SHOWN = 12, 5  # tasks that are left out exactly, and those that are shown
_SAME = 1e-6  # of an expected reward: a difference between the posterior and the policy's table

Context = Mapping[str, float] | ArrayLike | None


def explain(
    posterior: TaskPosterior,
    policy: LCBPolicy | GatedPolicy,
    task: Any,
    context: Context = None,
    *,
    eligible: Sequence[Any] | None = None,
    log: LogOfFit | None = None,
) -> Explanation:
    """Explain the choice of a policy in one task and context.

    Parameters
    ----------
    posterior : TaskPosterior
        That the policy was made of, with the moments of all tasks.
    policy : LCBPolicy or GatedPolicy
    task : id
    context : mapping of column to number, or (c,), optional
        By default the mean context of the task's rows. Where the feature map has no list of actions, (n, c): one row
        for each candidate.
    eligible : sequence of action ids, optional
        Default all.
    log : LogOfFit, optional
        The rows that the policy was learned from. Then the explanation has the rows that change the answer most, each
        with the answer without it.

    Raises
    ------
    UnknownTaskError
        The task is not among those of the moments. A task without rows is one of them in the posterior given
        ``moments.covering``.
    InputError
        The policy has no feature map; the context does not fit its columns; there is no context to take by default.
    UnknownActionError, LogError
        As :meth:`LCBPolicy.choose`.
    MismatchError
        The policy was not made of this posterior, or the posterior not learned from ``log``.
    SchemaError
        A column of ``log`` is missing or cannot play its role.
    """
    acting = policy.ungated
    if getattr(posterior, "in_two_parts", False):
        raise InputError(
            "The policy was learned with a two-part likelihood, for which the shares of the prior, the task's own rows "
            "and other tasks in an answer are not derived. Fit with likelihood='gaussian' to explain choices."
        )
    features, moments = acting.features, moments_of_log(posterior)
    if features is None:
        raise InputError(
            "This policy has no feature map, so that a context has no features to explain. Make the policy with its "
            "feature map, LCBPolicy(posterior, features)."
        )
    row = _row_of(moments.keys, task)
    x = _context(moments, features, row, context)
    phi, names = _candidates(features, x)
    best = acting.choose_many([task], phi=phi[None], eligible=_mask(acting, eligible, len(phi)), top=len(phi))
    index = best.index[0][best.index[0] >= 0]
    actions = tuple(
        ActionValue(names[k], *(float(values[0, j]) for values in (best.mean, best.sd, best.lower_bound)))
        for j, k in enumerate(index)
    )
    vectors, labels = _vectors(features, phi[index])
    split = attribution(posterior, row, vectors)
    _refuse_other(split.means[0], actions[0])
    counts = moments.rows.reshape(len(moments), -1).sum(axis=1)
    seen = np.delete(counts, row)
    return Explanation(
        task=shown_id(task),
        rows=float(counts[row]),
        other_tasks=float(np.count_nonzero(seen)),
        other_rows=float(seen.sum()),
        context=_named(features, x, context),
        actions=actions,
        pessimism=acting.pessimism,
        better=_better(posterior, row, vectors[:2]) if len(actions) > 1 else None,
        kept=isinstance(policy, GatedPolicy) and not bool(policy.passes([task])[0]),
        mean=_shares("mean", split, 0, row),
        lead=_shares("lead", split, 1, row) if len(actions) > 1 else None,
        coefficients=tuple(
            _shares(label, split, len(split.means) - len(labels) + j, row) for j, label in enumerate(labels)
        ),
        **_influences(posterior, acting, row, phi[index], actions, split, counts),
        turns=turns(acting, task, x, context, moments, _mask(acting, eligible, len(phi)), actions[0].action),
        hierarchies=len(posterior.weights),
        **_rows(posterior, acting, row, vectors, phi[index], actions, split, log),
    )


def _row_of(keys: Any, task: Any) -> int:
    row = int(keys.find(task))
    if row < 0:
        raise UnknownTaskError(
            f"{keys.unknown_message(task)} To explain a task without rows, take the posterior given moments that have "
            "it: moments.covering(tasks)."
        )
    return row


def _named(features: FeatureMap, x: Array, context: Any) -> dict[str, Any]:
    """Return the context by the names that the user gave it, else by those of the columns of the map."""
    if x.ndim > 1:
        return {}
    if isinstance(context, Mapping):
        plain = (bool, int, float, str)
        return {name: value if isinstance(value, plain) else str(value) for name, value in context.items()}
    return dict(zip(features.columns, x.tolist(), strict=True))


def _context(moments: Any, features: FeatureMap, row: int, context: Context) -> Array:
    """Return the context (c,), or those of the candidates (n, c)."""
    columns = list(features.columns)
    if context is None:
        mean = mean_context(moments, features, row)
        if mean is None:
            raise InputError(
                f"The context is missing: the mean context of a task's rows is not known for these features. Give a "
                f"number for each of the columns {columns}."
            )
        return mean
    if isinstance(context, Mapping):
        sources = getattr(features, "sources", columns)
        if set(context) == set(sources) and list(sources) != columns:
            return np.asarray(encoded_rows(features, [context])[0])
        if set(context) != set(columns):
            raise InputError(
                f"The context names {sorted(context)}, and this policy reads the context columns {list(sources)}. "
                "Give a number for each of these."
            )
        return np.array([float(context[column]) for column in columns])
    given = np.asarray(context, dtype=np.float64)
    if features.actions is not None and given.shape != (len(columns),):
        raise InputError(
            f"The context has shape {given.shape}, and this policy reads the context columns {columns}. Give one "
            "number for each of these."
        )
    return given


def _candidates(features: FeatureMap, x: Array) -> tuple[Array, list[Any]]:
    """Return the features (K, d) and the names of the candidates."""
    if features.actions is not None:
        return features.candidates(x[None])[0], [shown_id(action) for action in features.actions]
    rows = np.atleast_2d(x)
    return features.phi(rows), [f"candidate {k}" for k in range(len(rows))]


def _mask(policy: LCBPolicy, eligible: Sequence[Any] | None, n: int) -> Mask | None:
    if eligible is None:
        return None
    return np.asarray(policy._candidates.mask(eligible, n))[None]


def _vectors(features: FeatureMap, phi: Array) -> tuple[Array, list[str]]:
    """Return phi of the choice, its difference to the rival, and the coefficients that these depend on, by name."""
    some = phi[:2]
    used = np.flatnonzero(some.any(axis=0))
    lead = [some[0] - some[1]] if len(some) > 1 else []
    return np.stack([some[0], *lead, *np.eye(phi.shape[1])[used]]), [features.names[j] for j in used]


def _refuse_other(mean: float, choice: ActionValue) -> None:
    if abs(mean - choice.mean) > _SAME * max(abs(mean), abs(choice.mean), choice.sd):
        raise MismatchError(
            f"By these moments the expected reward of {choice.action!r} is {mean:.6g}, and by the policy it is "
            f"{choice.mean:.6g}: the policy was learned from other rows. Give the moments that it was learned from."
        )


def _shares(name: str, split: Attribution, j: int, row: int) -> Shares:
    own = float(split.tasks[j, row])
    others = float(np.delete(split.tasks[j], row).sum())
    return Shares(name, float(split.means[j]), float(split.prior[j]), own, others)


def _better(posterior: TaskPosterior, row: int, vectors: Array) -> float:
    """Return P(the choice is at least as good as the rival); ``vectors`` are of the choice and of the difference."""
    difference = np.ascontiguousarray(vectors[None, 1:])
    laws = [
        (weight * share[0], mean[0, 0], variance[0, 0])
        for weight, part in zip(posterior.weights.tolist(), posterior.parts(), strict=True)
        for share, mean, variance in part.mixtures(difference, slice(row, row + 1))
    ]
    weights, means, variances = (np.array(values) for values in zip(*laws, strict=True))
    return 1.0 - float(normal_mixture_below(weights, means, np.sqrt(np.maximum(variances, 0.0))))


def _influences(
    posterior: TaskPosterior,
    policy: LCBPolicy,
    row: int,
    phi: Array,
    actions: tuple[ActionValue, ...],
    split: Attribution,
    counts: Array,
) -> dict[str, Any]:
    """Return the answers without the task's own rows, and without those of the most influential other tasks."""
    j = min(1, len(actions) - 1)  # of the lead, or of the mean where there is no rival
    order = ordered(-np.abs(split.changes[j]))
    tried = [k for k in order[: _TRIED + 1].tolist() if k != row and counts[k] > 0][:_TRIED]
    means, covs = without_tasks(posterior, row, phi, np.array([row, *tried]))
    sds = np.sqrt(np.maximum(np.einsum("nkk->nk", covs), 0.0))
    bounds = means - policy.pessimism * sds
    ids, found = posterior.moments.keys.values, []
    for i, k in enumerate([row, *tried]):
        left = _chosen(bounds[i], actions)
        lead = float(bounds[i, 0] - bounds[i, 1]) if len(actions) > 1 else float("nan")
        shares = float(split.tasks[0, k]), float(split.tasks[j, k]) if len(actions) > 1 else float("nan")
        found.append(Influence(shown_id(ids[k]), float(counts[k]), *shares, left, float(means[i, 0]), lead))
    effect = (
        means @ (np.eye(len(phi))[0] - (np.eye(len(phi))[1] if len(actions) > 1 else 0.0)) - split.means[j]
    )
    kept = ordered(-np.abs(np.where(np.isnan(effect[1:]), np.inf, effect[1:])))[:_SHOWN]
    return {"own": found[0], "influential": tuple(found[1 + k] for k in kept.tolist())}


def _rows(
    posterior: TaskPosterior,
    policy: LCBPolicy,
    row: int,
    vectors: Array,
    phi: Array,
    actions: tuple[ActionValue, ...],
    split: Attribution,
    log: LogOfFit | None,
) -> dict[str, Any]:
    """Return the answers without the rows of the log that change the lead most; nothing without a log."""
    if log is None:
        return {}
    assert policy.features is not None
    j = min(1, len(actions) - 1)
    left = most_influential_rows(
        posterior, policy.features, row, vectors[j], phi, split.changes[j], log, n=_TRIED
    )
    sds = np.sqrt(np.maximum(np.einsum("nkk->nk", left.covs), 0.0))
    bounds = left.means - policy.pessimism * sds
    tasks, names = posterior.moments.keys, policy.features.actions
    influences = [
        RowInfluence(
            row=int(left.number[i]),
            task=shown_id(tasks.id_of(int(left.rows.task[i]))),
            action=None if names is None else shown_id(names[int(left.rows.action[i])]),
            reward=float(left.rows.reward[i]),
            change=float(left.change[i]),
            choice=_chosen(bounds[i], actions),
            mean=float(left.means[i, 0]),
            lead=float(bounds[i, 0] - bounds[i, 1]) if len(actions) > 1 else float("nan"),
        )
        for i in range(len(left.number))
    ]
    return {
        "influential_rows": tuple(influences[:_SHOWN]),
        "rows_read": left.n_rows,
        "tasks_read": left.n_tasks,
    }


def _chosen(bounds: Array, actions: tuple[ActionValue, ...]) -> Any:
    """Return the action with the largest lower bound (J,); None where it is open."""
    return None if np.isnan(bounds).any() else actions[int(first_largest(bounds))].action
