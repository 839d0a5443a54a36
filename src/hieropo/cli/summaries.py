"""Summaries of a policy and of one of its tasks, as values that JSON can hold."""

from itertools import product
from typing import Any

import numpy as np

from hieropo._utils.packed import unpack
from hieropo._utils.text import counted, whole
from hieropo.errors import InputError, UnknownTaskError
from hieropo.estimation.crossed.drift import Drift
from hieropo.estimation.crossed.mixture import CrossedHierarchies, condition_hierarchies
from hieropo.estimation.crossed.two_part import TwoPartHierarchies
from hieropo.estimation.hyper.corrected import HyperError
from hieropo.estimation.hyper.intervals import estimates, level_name
from hieropo.estimation.hyper.mixed import HyperDraws
from hieropo.estimation.two_part import two_part_note
from hieropo.learners.drift_note import drift_note
from hieropo.learners.kinds import kinds_of
from hieropo.learners.population import (
    noise_of_tasks,
    parts_of,
    verdict_of_parts,
    verdict_of_spreads,
)
from hieropo.learners.saving import noise_identified
from hieropo.model.crossed.task_noise import mean_noise
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy
from hieropo.passes.feature_choice import measured_from
from hieropo.policies.gating import GatedPolicy
from hieropo.rows.ids import typed_readings

LEVEL = 0.95  # probability of intervals


def summary(stored: Any) -> dict[str, Any]:
    """Return the summary of a policy: tasks, rows, actions, hyper-parameters and coefficients."""
    policy, hierarchy = stored.policy, stored.hierarchy
    keys, rows = policy.table.keys, np.asarray(policy.table.rows)
    features = policy.features
    return {
        "policy": str(stored.path),
        "provenance": stored.provenance,
        "tasks": len(keys),
        "first_tasks": [_plain(keys.id_of(row)) for row in range(min(3, len(keys)))],
        "rows": whole(float(rows.sum())),
        "rows_of_a_task": {
            name: _percentile(rows, percent)
            for name, percent in (("least", 0), ("median", 50), ("most", 100))
        },
        "actions": None if features is None or features.actions is None else list(features.actions),
        "context": None if features is None else list(features.columns),
        "measured_from": measured_from(features),
        "pessimism": policy.pessimism,
        "unseen": policy.unseen,
        "gate": _gate(policy),
        "noise_sd": None if hierarchy is None else _estimates(stored)["noise sd"],
        "noise_of_tasks": noise_of_tasks(hierarchy) if isinstance(hierarchy, CrossedHierarchies) else "",
        "two_part": two_part_note(hierarchy) if isinstance(hierarchy, TwoPartHierarchies) else "",
        "likelihood_note": stored.provenance.get("likelihood_note", ""),
        "settings_note": stored.provenance.get("settings_note", ""),
        "drift": _drift(stored.provenance),
        "log_evidence": stored.log_evidence,
        "levels": [level.name for level in getattr(hierarchy, "levels", ())],
        "crossed": _crossed(stored),
        **_uncertainty(stored),
        "features": _features(stored),
    }


def _drift(provenance: dict[str, Any]) -> str:
    """Return sentences on how fast coefficients drift; empty where drift was not tested for."""
    if "drift" not in provenance:
        return ""
    drift = Drift.from_dict(provenance["drift"])
    text = drift_note(drift, "", provenance.get("columns", {}).get("time"))
    if drift.kappa > 0.0:
        text += " All coefficients of an action in a task drift, each in proportion to its variation between tasks."
    return text


def _gate(policy: Any) -> dict[str, Any] | None:
    if not isinstance(policy, GatedPolicy):
        return None
    passed = int(np.count_nonzero(policy.passed))
    return {
        "max_harm": policy.max_harm, "passed": passed, "kept": policy.harm.size - passed,
        "incumbent": _plain(policy.incumbent), "limits": list(policy.limits),
    }  # fmt: skip


def _crossed(stored: Any) -> dict[str, Any] | None:
    """Return the components of the crossed prior, and the posterior probabilities that they are zero."""
    hierarchy = stored.hierarchy
    if not isinstance(hierarchy, CrossedHierarchies):
        return None
    moments = stored.moments()
    parts = () if moments is None else parts_of(moments, hierarchy, LEVEL)
    mixed = moments is not None and hierarchy.mixed
    posterior = condition_hierarchies(moments, hierarchy) if mixed else None
    spreads = verdict_of_spreads(posterior) if posterior is not None and hierarchy.mixed_spreads else ""
    features = stored.policy.features
    kinds, kinds_verdict = kinds_of(posterior, None if features is None else features.actions)
    return {
        "no_effect": hierarchy.no_effect, "no_action_effect": hierarchy.no_action_effect,
        "no_interaction": hierarchy.no_interaction, "level": LEVEL,
        "verdict": " ".join(filter(None, [verdict_of_parts(hierarchy), spreads])),
        "parts": parts, "kinds": kinds, "kinds_verdict": kinds_verdict,
    }  # fmt: skip


def _percentile(rows: Any, percent: int) -> int:
    return int(np.percentile(rows, percent)) if rows.size else 0


def _uncertainty(stored: Any) -> dict[str, Any]:
    """Return the treatment of uncertain hyper-parameters in the bounds; None where no hierarchy was saved."""
    noise = {"noise_identified": noise_identified(stored.provenance)}
    if isinstance(stored.hierarchy, CrossedHierarchies):
        return {"uncertainty": "integrated", "hierarchies": len(stored.hierarchy), **noise}
    if isinstance(stored.hyper_uncertainty, HyperDraws):
        return {"uncertainty": "integrated", "hierarchies": len(stored.hyper_uncertainty), **noise}
    if isinstance(stored.hyper_uncertainty, HyperError):
        return {"uncertainty": "first-order", "hierarchies": None, **noise}
    return {"uncertainty": None if stored.hierarchy is None else "plug-in", "hierarchies": None, **noise}


def _features(stored: Any) -> list[dict[str, Any]]:
    policy, hyper = stored.policy, stored.hyper
    if policy.table.per_action:
        names, root = _unit_names(policy), hyper
    else:
        names, root = _names(policy), policy.table.prior if hyper is None else hyper
    sds_by_name = _variation(stored, len(names))
    return [
        {
            "name": name,
            "mean": None if root is None else float(root.mean[j]),
            "mean_sd": None if root is None else float(root.sd[j]),
            **{key: None if sds is None else float(sds[j]) for key, sds in sds_by_name.items()},
        }
        for j, name in enumerate(names)
    ]


def _variation(stored: Any, dim: int) -> dict[str, Any]:
    """Return the sds (d,) of coefficients between tasks, then between the nodes of each level, by name."""
    hierarchy = stored.hierarchy
    if hierarchy is None:
        return {"between_tasks_sd": None}
    if not isinstance(hierarchy, Hierarchy):
        central = hierarchy.central()
        groups = {
            f"between_{level.name or k}_sd": _sds(level.level_cov + level.interaction_cov)
            for k, level in enumerate(central.levels)
        }
        return {
            "between_tasks_sd": _sds(central.level_cov + central.interaction_cov),
            "level_sd": _sds(central.level_cov),
            "action_sd": _sds(central.action_cov),
            "interaction_sd": _sds(central.interaction_cov),
            **groups,
        }
    values = _estimates(stored)
    prefixes = {"between_tasks_sd": ""}
    for k, level in enumerate(hierarchy.levels):
        prefixes[f"between_{level.name or k}_sd"] = f"{level_name(hierarchy, k)} "
    return {name: [values[f"{prefix}sd[{j}]"] for j in range(dim)] for name, prefix in prefixes.items()}


def _estimates(stored: Any) -> dict[str, float]:
    """Return the estimates of noise and variation that `hieropo fit` shows."""
    if not isinstance(stored.hierarchy, Hierarchy):
        noise = getattr(stored.hierarchy, "task_noise", None)
        return {"noise sd": mean_noise(stored.hierarchy.central().noise_var, noise) ** 0.5}
    return estimates(stored.hyper_uncertainty, stored.hierarchy)


def _sds(cov: Any) -> Any:
    return np.sqrt(np.maximum(np.diagonal(cov), 0.0))


def _unit_names(policy: Any) -> tuple[str, ...]:
    """Return the names of the features (1, x) of one action."""
    p, features = policy.table.means.shape[-1], policy.features
    if features is None:
        return tuple(f"feature {j}" for j in range(p))
    return (*["intercept"] * (p - len(features.columns)), *features.columns)


def _names(policy: Any) -> tuple[str, ...]:
    if policy.features is not None:
        return tuple(policy.features.names)
    return tuple(f"feature {j}" for j in range(policy.table.dim))


def task_summary(stored: Any, texts: tuple[str, ...], at: dict[str, float] | None) -> dict[str, Any]:
    """Return the summary of one task of a policy: coefficients, and expected rewards in a context.

    Raises
    ------
    UnknownTaskError
        No task id reads as the texts.
    InputError
        ``at`` does not name the context columns, or the policy has no feature map.
    """
    policy = stored.policy
    table_, features = policy.table, policy.features
    task, row = find_task(table_.keys, texts)
    posteriors = _marginals(table_, row)
    means = np.concatenate([posterior.mean for posterior in posteriors])
    sds = np.concatenate([posterior.sd for posterior in posteriors])
    about: dict[str, Any] = {
        "policy": str(stored.path),
        "task": _plain(task),
        "rows": whole(float(table_.rows[row])),
        "pessimism": policy.pessimism,
        "noise_identified": noise_identified(stored.provenance),
        "features": [
            {"name": name, "mean": float(mean), "sd": float(sd)}
            for name, mean, sd in zip(_names(policy), means, sds, strict=True)
        ],
        "differs": _differs(stored, task),
        "kinds": _kinds(stored, task),
        "context": None if features is None else list(features.columns),
        "at": None,
        "actions": None,
        "candidate": None,
    }
    context = _context(stored, features, row, at)
    if context is None:
        return about
    about["at"] = dict(zip(features.columns, context.tolist(), strict=True))
    if features.actions is None:
        about["candidate"] = _rewards(policy, task, posteriors, features.phi(context[None]))[0]
        return about
    rewards = _rewards(policy, task, posteriors, features.candidates(context[None])[0])
    about["actions"] = [
        {"action": action, **reward} for action, reward in zip(features.actions, rewards, strict=True)
    ]
    ungated = policy.ungated
    about["choice"] = ungated.choose(task, context).action
    if isinstance(policy, GatedPolicy) and not policy.passes([task])[0]:
        about["choice"], about["kept_for_the_incumbent"] = _plain(policy.incumbent), True
    return about


def _differs(stored: Any, task: Any) -> float | None:
    """Return the probability that effects of actions in a task are unusually large; None where that is not known."""
    hierarchy = stored.hierarchy
    if not isinstance(hierarchy, CrossedHierarchies) or not hierarchy.mixed_spreads:
        return None
    moments = stored.moments()
    if moments is None:
        return None
    posterior = condition_hierarchies(moments, hierarchy)
    row, differing = posterior.moments.keys.find(task), posterior.differing
    return None if differing is None or row < 0 else float(differing[row])


def _kinds(stored: Any, task: Any) -> list[float] | None:
    """Return the probability of each kind for a task; None where there are no kinds, or that is not known."""
    hierarchy = stored.hierarchy
    if not isinstance(hierarchy, CrossedHierarchies) or hierarchy.kinds is None:
        return None
    moments = stored.moments()
    if moments is None:
        return None
    posterior = condition_hierarchies(moments, hierarchy)
    row, kinds = posterior.moments.keys.find(task), posterior.task_kinds
    return None if kinds is None or row < 0 else [float(value) for value in kinds.probability[row]]


def _marginals(table_: Any, row: int) -> list[Gaussian]:
    """Return the posterior of a task's coefficients; one marginal per action where the table holds these."""
    means, covs = np.atleast_2d(table_.means[row]), np.atleast_2d(np.asarray(table_.covs[row]))
    return [Gaussian(mean, unpack(cov, mean.size)) for mean, cov in zip(means, covs, strict=True)]


def _rewards(policy: Any, task: Any, posteriors: list[Gaussian], phi: Any) -> list[dict[str, float]]:
    """Return lower bound, mean and sd of the expected reward of each candidate (rows of ``phi``)."""
    bounds = getattr(policy, "policy", policy).lower_bound(task, phi)
    rewards = []
    for k, features in enumerate(phi):
        if len(posteriors) > 1:  # candidate k is action k; only its block of the features is not 0
            posterior, block = posteriors[k], features.reshape(len(posteriors), -1)[k]
        else:
            posterior, block = posteriors[0], features
        (mean,), (variance,) = posterior.project(block[None])
        rewards.append({"lower_bound": float(bounds[k]), "mean": float(mean), "sd": float(variance**0.5)})
    return rewards


def find_task(keys: Any, texts: tuple[str, ...]) -> tuple[Any, int]:
    """Return the task id that reads as the texts of its columns, and its row."""
    text = texts[0] if len(texts) == 1 else texts
    for parts in product(*((part, *typed_readings(part)) for part in texts)):
        row = keys.find(parts if len(parts) > 1 else parts[0])
        if row >= 0:
            return keys.id_of(row), row
    raise _unknown(keys, text)


def task_or_new(keys: Any, texts: tuple[str, ...]) -> Any:
    """Return the task id that reads as the texts of its columns: one of the log, else a new one of the same types."""
    try:
        return find_task(keys, texts)[0]
    except UnknownTaskError:
        like = keys.id_of(0) if len(keys) else texts[0]
        likes = like if isinstance(like, tuple) else (like,)
        if len(likes) != len(texts):
            raise
        parts = [
            next((part for part in (text, *typed_readings(text)) if type(part) is type(_plain(known))), None)
            for text, known in zip(texts, likes, strict=True)
        ]
        if None in parts:
            raise
        return tuple(parts) if isinstance(like, tuple) else parts[0]


def _unknown(keys: Any, text: Any) -> UnknownTaskError:
    first = ", ".join(str(_plain(keys.id_of(row))) for row in range(min(3, len(keys))))
    return UnknownTaskError(
        f"Task {text!r} is not among the {counted(len(keys), 'task')} of this policy (such as {first}). Check its "
        "spelling. A task that is not in the log has the prior of the population, which inspect shows without --task."
    )


def _context(stored: Any, features: Any, row: int, at: dict[str, float] | None) -> Any:
    """Return the context ``at``, else the mean context of the task's rows; None where there is neither."""
    if features is None:
        if at is not None:
            raise InputError(
                "This policy was saved without a feature map, so it has no context columns for --at. Leave --at out."
            )
        return None
    if at is not None:
        if set(at) != set(features.columns):
            raise InputError(
                f"--at names {sorted(at)}, and this policy reads the context columns {list(features.columns)}. "
                "Give a number for each of these."
            )
        return np.array([at[column] for column in features.columns])
    from hieropo.explanation.contexts import mean_context

    return mean_context(stored.moments() if features.columns else None, features, row)


def _plain(value: Any) -> Any:
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value, unit="auto"))
    return value.item() if isinstance(value, np.generic) else value
