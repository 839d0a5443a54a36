"""Summaries of a policy directory, as values that JSON can hold."""

from typing import Any

import numpy as np

from hieropo._utils.packed import packed_size, unpack
from hieropo._utils.text import counted, whole
from hieropo.errors import InputError, UnknownTaskError
from hieropo.estimation.crossed.mixture import CrossedHierarchies
from hieropo.estimation.hyper.corrected import HyperError
from hieropo.estimation.hyper.intervals import estimates, level_name
from hieropo.estimation.hyper.mixed import HyperDraws
from hieropo.learners.population import parts_of, verdict_of_parts
from hieropo.model.crossed.hierarchy import typical_noise
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy
from hieropo.passes.feature_choice import measured_from
from hieropo.policies.gating import GatedPolicy
from hieropo.rows.ids import typed_readings
from hieropo.storage.table import StoredUnits

LEVEL = 0.95  # of intervals


def summary(stored: Any) -> dict[str, Any]:
    """Summarise a policy, as JSON can hold it."""
    policy, hierarchy = stored.policy, stored.hierarchy
    keys, rows = policy.table.keys, np.asarray(policy.table.rows)
    features = policy.features
    return {
        "policy": str(stored.path),
        "provenance": stored.provenance,
        "tasks": len(keys),
        "first_tasks": [_plain(keys.id_of(row)) for row in range(min(3, len(keys)))],
        "rows": whole(float(rows.sum())),
        "rows_of_a_task": {"least": _of(rows, 0), "median": _of(rows, 50), "most": _of(rows, 100)},
        "actions": None if features is None or features.actions is None else list(features.actions),
        "context": None if features is None else list(features.columns),
        "measured_from": measured_from(features),
        "pessimism": policy.pessimism,
        "unseen": policy.unseen,
        "gate": _gate(policy),
        "noise_sd": None if hierarchy is None else _estimates(stored)["noise sd"],
        "log_evidence": stored.log_evidence,
        "levels": [level.name for level in getattr(hierarchy, "levels", ())],
        "crossed": _crossed(stored),
        **_uncertainty(stored),
        "features": _features(stored),
    }


def _gate(policy: Any) -> dict[str, Any] | None:
    if not isinstance(policy, GatedPolicy):
        return None
    passed = int(np.count_nonzero(policy.passed))
    return {
        "max_harm": policy.max_harm, "passed": passed, "kept": policy.harm.size - passed,
        "incumbent": _plain(policy.incumbent), "limits": list(policy.limits),
    }  # fmt: skip


def _crossed(stored: Any) -> dict[str, Any] | None:
    """Probabilities that parts of the crossed prior are zero, and the parts as a learner's summary has them."""
    hierarchy = stored.hierarchy
    if not isinstance(hierarchy, CrossedHierarchies):
        return None
    moments = stored.moments()
    parts = () if moments is None else parts_of(moments, hierarchy, LEVEL)
    return {
        "no_effect": hierarchy.no_effect, "no_action_effect": hierarchy.no_action_effect,
        "no_interaction": hierarchy.no_interaction, "verdict": verdict_of_parts(hierarchy), "level": LEVEL,
        "parts": parts,
    }  # fmt: skip


def _of(rows: Any, percent: int) -> int:
    return int(np.percentile(rows, percent)) if rows.size else 0


def _uncertainty(stored: Any) -> dict[str, Any]:
    """Return how the uncertainty of the hierarchy enters the bounds; None where the hierarchy was not saved."""
    told = {"noise_told": stored.provenance.get("noise_told", True)}
    if isinstance(stored.hierarchy, CrossedHierarchies):
        return {"uncertainty": "integrated", "hierarchies": len(stored.hierarchy), **told}
    if isinstance(stored.hyper_uncertainty, HyperDraws):
        return {"uncertainty": "integrated", "hierarchies": len(stored.hyper_uncertainty), **told}
    if isinstance(stored.hyper_uncertainty, HyperError):
        return {"uncertainty": "first-order", "hierarchies": None, **told}
    return {"uncertainty": None if stored.hierarchy is None else "plug-in", "hierarchies": None, **told}


def _features(stored: Any) -> list[dict[str, Any]]:
    policy, hyper = stored.policy, stored.hyper
    if isinstance(policy.table, StoredUnits):
        names, root = _unit_names(policy), hyper
    else:
        names, root = _names(policy), policy.table.prior if hyper is None else hyper
    spreads = _spreads(stored, len(names))
    return [
        {
            "name": name,
            "mean": None if root is None else float(root.mean[j]),
            "mean_sd": None if root is None else float(root.sd[j]),
            **{spread: None if sds is None else float(sds[j]) for spread, sds in spreads.items()},
        }
        for j, name in enumerate(names)
    ]


def _spreads(stored: Any, width: int) -> dict[str, Any]:
    """Standard deviations (d,) of what lies between the population and a task, from the tasks upwards."""
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
    told = _estimates(stored)
    prefixes = {"between_tasks_sd": ""}
    for k, level in enumerate(hierarchy.levels):
        prefixes[f"between_{level.name or k}_sd"] = f"{level_name(hierarchy, k)} "
    return {name: [told[f"{prefix}sd[{j}]"] for j in range(width)] for name, prefix in prefixes.items()}


def _estimates(stored: Any) -> dict[str, float]:
    """Estimates as `hieropo fit` shows them."""
    if not isinstance(stored.hierarchy, Hierarchy):
        return {"noise sd": typical_noise(stored.hierarchy.central().noise_var) ** 0.5}
    return estimates(stored.hyper_uncertainty, stored.hierarchy)


def _sds(cov: Any) -> Any:
    return np.sqrt(np.maximum(np.diagonal(cov), 0.0))


def _unit_names(policy: Any) -> tuple[str, ...]:
    """Names of the features (1, x) of one action."""
    p, features = policy.table.means.shape[-1], policy.features
    if features is None:
        return tuple(f"feature {j}" for j in range(p))
    return (*["intercept"] * (p - len(features.columns)), *features.columns)


def _names(policy: Any) -> tuple[str, ...]:
    if policy.features is not None:
        return tuple(policy.features.names)
    return tuple(f"feature {j}" for j in range(policy.table.dim))


def task_summary(stored: Any, text: str, at: dict[str, float] | None) -> dict[str, Any]:
    """Summarise one task of a policy, as JSON can hold it.

    Raises
    ------
    UnknownTaskError
        No task is written like ``text``.
    InputError
        ``at`` does not name the context columns, or there is no feature map to read them.
    """
    policy = stored.policy
    table_, features = policy.table, policy.features
    task, row = _find(table_.keys, text)
    laws = _laws(table_, row)
    means, sds = (np.concatenate([getattr(law, what) for law in laws]) for what in ("mean", "sd"))
    found: dict[str, Any] = {
        "policy": str(stored.path),
        "task": _plain(task),
        "rows": whole(float(table_.rows[row])),
        "pessimism": policy.pessimism,
        "noise_told": stored.provenance.get("noise_told", True),
        "features": [
            {"name": name, "mean": float(mean), "sd": float(sd)}
            for name, mean, sd in zip(_names(policy), means, sds, strict=True)
        ],
        "context": None if features is None else list(features.columns),
        "at": None,
        "actions": None,
        "candidate": None,
    }
    context = _context(stored, features, row, at)
    if context is None:
        return found
    found["at"] = dict(zip(features.columns, context.tolist(), strict=True))
    if features.actions is None:
        found["candidate"] = _rewards(policy, task, laws, features.phi(context[None]))[0]
        return found
    rewards = _rewards(policy, task, laws, features.candidates(context[None])[0])
    found["actions"] = [
        {"action": action, **reward} for action, reward in zip(features.actions, rewards, strict=True)
    ]
    plain = policy.policy if isinstance(policy, GatedPolicy) else policy
    found["choice"] = plain.choose(task, context).action
    if isinstance(policy, GatedPolicy) and not policy.passes([task])[0]:
        found["choice"], found["kept_for_the_incumbent"] = _plain(policy.incumbent), True
    return found


def _laws(table_: Any, row: int) -> list[Gaussian]:
    """Law of a task's coefficients; where actions share a prior, of those of each action on its own."""
    means, covs = np.atleast_2d(table_.means[row]), np.atleast_2d(np.asarray(table_.covs[row]))
    return [Gaussian(mean, unpack(cov, mean.size)) for mean, cov in zip(means, covs, strict=True)]


def _rewards(policy: Any, task: Any, laws: list[Gaussian], phi: Any) -> list[dict[str, float]]:
    bounds = getattr(policy, "policy", policy).lower_bound(task, phi)
    found = []
    for k, row in enumerate(phi):
        apart = len(laws) > 1  # candidate k is action k, whose features stand in its own place
        law, own = (laws[k], row.reshape(len(laws), -1)[k]) if apart else (laws[0], row)
        (mean,), (variance,) = law.project(own[None])
        found.append({"lower_bound": float(bounds[k]), "mean": float(mean), "sd": float(variance**0.5)})
    return found


def _find(keys: Any, text: str) -> tuple[Any, int]:
    for reading in (text, *typed_readings(text)):
        row = keys.find(reading)
        if row >= 0:
            return keys.id_of(row), row
    first = ", ".join(str(_plain(keys.id_of(row))) for row in range(min(3, len(keys))))
    raise UnknownTaskError(
        f"Task {text!r} is not among the {counted(len(keys), 'task')} of this policy (such as {first}). Check its "
        "spelling; a new task gets the population's answer, which inspect shows without --task."
    )


def _context(stored: Any, features: Any, row: int, at: dict[str, float] | None) -> Any:
    """The context to look at; None where there is no way to choose one."""
    if features is None:
        if at is not None:
            raise InputError(
                "This policy was saved without a feature map, so --at cannot be read; leave it out."
            )
        return None
    if at is not None:
        if set(at) != set(features.columns):
            raise InputError(
                f"--at names {sorted(at)}; this policy reads the context columns {list(features.columns)}. "
                "Name each once."
            )
        return np.array([at[column] for column in features.columns])
    if not features.columns:
        return np.zeros(0)
    moments = stored.moments()
    if moments is None or features.actions is None or features.table is not None:
        return None
    sums, actions = np.asarray(moments.sums), len(features.actions)
    own = sums[row] if np.any(moments.rows[row]) else sums.sum(axis=0)
    apart = own.ndim == 2
    p = moments.unit_dim if apart else moments.dim
    last = (own.sum(axis=0) if apart else own)[packed_size(p + 1) :]  # sum w (phi, r, 1)
    each = last[:p].reshape(1 if apart else actions, -1).sum(axis=0) / last[p + 1]
    return features.unmeasured(each[None, int(features.intercept) :])[0]


def _plain(value: Any) -> Any:
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value, unit="auto"))
    return value.item() if isinstance(value, np.generic) else value
