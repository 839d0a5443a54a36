"""What a policy directory holds, as values that JSON can hold."""

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID

import numpy as np

from hieropo.core.gaussian import Gaussian
from hieropo.core.packed import unpack
from hieropo.errors import InputError, UnknownTaskError


def summary(stored: Any) -> dict[str, Any]:
    """What a policy is, as JSON can hold it."""
    policy, hierarchy, hyper = stored.policy, stored.hierarchy, stored.hyper
    keys, rows = policy.table.keys, np.asarray(policy.table.rows)
    features = policy.features
    return {
        "policy": str(stored.path),
        "provenance": stored.provenance,
        "tasks": len(keys),
        "first_tasks": [_plain(keys.id_of(row)) for row in range(min(3, len(keys)))],
        "rows": int(rows.sum()),
        "rows_of_a_task": {"least": _of(rows, 0), "median": _of(rows, 50), "most": _of(rows, 100)},
        "actions": None if features is None or features.actions is None else list(features.actions),
        "context": None if features is None else list(features.columns),
        "pessimism": policy.pessimism,
        "unseen": policy.unseen,
        "noise_sd": None if hierarchy is None else float(hierarchy.noise_var**0.5),
        "log_evidence": stored.log_evidence,
        "levels": [] if hierarchy is None else [level.name for level in hierarchy.levels],
        "features": _features(policy, hierarchy, hyper),
    }


def _of(rows: Any, percent: int) -> int:
    return int(np.percentile(rows, percent)) if rows.size else 0


def _features(policy: Any, hierarchy: Any, hyper: Any) -> list[dict[str, Any]]:
    root = policy.table.prior if hyper is None else hyper
    between = None if hierarchy is None else np.sqrt(np.diagonal(hierarchy.task_cov))
    levels = () if hierarchy is None else hierarchy.levels
    return [
        {
            "name": name,
            "mean": float(root.mean[j]),
            "mean_sd": float(root.sd[j]),
            "between_tasks_sd": None if between is None else float(between[j]),
            **{
                f"between_{level.name or k}_sd": float(max(level.cov[j, j], 0.0) ** 0.5)
                for k, level in enumerate(levels)
            },
        }
        for j, name in enumerate(_names(policy))
    ]


def _names(policy: Any) -> tuple[str, ...]:
    if policy.features is not None:
        return tuple(policy.features.names)
    return tuple(f"feature {j}" for j in range(policy.table.dim))


def task_summary(stored: Any, text: str, at: dict[str, float] | None) -> dict[str, Any]:
    """What a policy knows of one task, as JSON can hold it.

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
    theta = Gaussian(table_.means[row], unpack(np.asarray(table_.covs[row]), table_.dim))
    found: dict[str, Any] = {
        "policy": str(stored.path),
        "task": _plain(task),
        "rows": int(table_.rows[row]),
        "pessimism": policy.pessimism,
        "features": [
            {"name": name, "mean": float(theta.mean[j]), "sd": float(theta.sd[j])}
            for j, name in enumerate(_names(policy))
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
        found["candidate"] = _rewards(policy, task, theta, features.phi(context[None]))[0]
        return found
    rewards = _rewards(policy, task, theta, features.candidates(context[None])[0])
    found["actions"] = [
        {"action": action, **reward} for action, reward in zip(features.actions, rewards, strict=True)
    ]
    found["choice"] = max(found["actions"], key=lambda each: each["lower_bound"])["action"]
    return found


def _rewards(policy: Any, task: Any, theta: Gaussian, phi: Any) -> list[dict[str, float]]:
    means, variances = theta.project(phi)
    bounds = policy.lower_bound(task, phi)
    return [
        {"lower_bound": float(bounds[k]), "mean": float(means[k]), "sd": float(variances[k] ** 0.5)}
        for k in range(len(phi))
    ]


def _find(keys: Any, text: str) -> tuple[Any, int]:
    for reading in _readings(text):
        row = keys.find(reading)
        if row >= 0:
            return keys.id_of(row), row
    first = ", ".join(str(_plain(keys.id_of(row))) for row in range(min(3, len(keys))))
    raise UnknownTaskError(
        f"Task {text!r} is not among the {len(keys):,} tasks of this policy (such as {first}). Check its "
        "spelling; a new task gets the population's answer, which inspect shows without --task."
    )


def _readings(text: str) -> Iterator[Any]:
    """What an id written like this may have been in the log."""
    yield text
    readers: tuple[Callable[[str], Any], ...] = (
        int, float, dt.date.fromisoformat, dt.datetime.fromisoformat, np.datetime64, UUID,
    )  # fmt: skip
    for reader in readers:
        with suppress(ValueError, OverflowError):
            yield reader(text)
    yield from {"true": (True,), "false": (False,)}.get(text.lower(), ())


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
    own = moments.sums[row] if moments.rows[row] else moments.sums.sum(axis=0)
    d = moments.dim
    last = own[(d + 1) * (d + 2) // 2 :]  # sum w (phi, r, 1)
    each = last[:d].reshape(len(features.actions), -1).sum(axis=0) / last[d + 1]
    return each[int(features.intercept) :]


def _plain(value: Any) -> Any:
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value, unit="auto"))
    return value.item() if isinstance(value, np.generic) else value
