"""Logs from and for the Open Bandit Pipeline: its dict of bandit feedback."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from hieropo.errors import InputError, LogError, MismatchError, SchemaError
from hieropo.features.maps import indicator
from hieropo.logs.arrow.writing import id_column
from hieropo.logs.opening import open_log
from hieropo.logs.reading import distinct_values, read
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.batches import Roles
from hieropo.rows.ids import abbreviate, id_array

_NEEDED = ("n_rounds", "n_actions", "action", "reward", "context")
OWN_COLUMNS = ("task", "action", "reward", "pscore", "position")


def from_obp(
    feedback: Mapping[str, Any], *, task: str | ArrayLike | None = None, context: Sequence[str] | None = None
) -> pa.Table:
    """Turn bandit feedback of the Open Bandit Pipeline into a log.

    Parameters
    ----------
    feedback : mapping
        As ``obtain_batch_bandit_feedback`` of a data set of ``obp`` (0.4 or 0.5) returns it: ``n_rounds`` n,
        ``n_actions`` K, ``action`` (n,) in 0..K-1, ``reward`` (n,), ``context`` (n, c), and where there are any
        ``pscore`` (n,) and ``position`` (n,). Entries that a log has no place for are left out: ``expected_reward``,
        ``pi_b``, ``action_context`` (a table for :func:`hieropo.embedding`).
    task : str or (n,) ids, optional
        The pipeline has no tasks: name an entry with n ids, such as ``"position"``, or hand the ids over. Default the
        entry ``"task"``, which :func:`to_obp` writes.
    context : sequence of c str, optional
        Names of the context columns. Default the entry ``"context_names"``, else x0, x1, ...

    Returns
    -------
    pa.Table
        Columns ``task``, ``action``, ``reward``, ``pscore``, ``position`` and those of the context. Actions are whole
        numbers from 0, or the ids in the entry ``"action_ids"``. Numbers keep their types; values are checked when the
        log is read.

    Raises
    ------
    SchemaError
        An entry is missing or of another shape than the rounds; columns would share a name.
    LogError
        An action is not in 0..K-1.
    InputError
        Not such a mapping, slate feedback, or no ids of tasks.

    Examples
    --------
    >>> feedback = {"n_rounds": 2, "n_actions": 2, "action": np.array([1, 0]), "reward": np.array([1.0, 0.0]),
    ...             "context": np.array([[0.5], [2.0]]), "pscore": np.array([0.5, 0.5]), "position": None}
    >>> from_obp(feedback, task=["a", "b"]).column_names
    ['task', 'action', 'reward', 'pscore', 'x0']
    """
    n = _checked(feedback)
    contexts = np.asarray(feedback["context"])
    if contexts.ndim != 2 or len(contexts) != n:
        raise SchemaError(
            f"The entry 'context' has shape {contexts.shape}; ({n}, c) is needed, one row for each round."
        )
    names = _context_names(feedback, context, contexts.shape[1])
    columns = {"task": id_column(_tasks(feedback, task, n)), "action": _actions(feedback, n)}
    for name in ("reward", "pscore", "position"):
        if feedback.get(name) is not None:
            columns[name] = pa.array(_entry(feedback, name, n))
    for j, name in enumerate(names):
        columns[name] = pa.array(np.ascontiguousarray(contexts[:, j]))
    return pa.table(columns)


def _checked(feedback: Mapping[str, Any]) -> int:
    if not isinstance(feedback, Mapping):
        raise InputError(
            f"Bandit feedback is a dict, but a {type(feedback).__name__} was handed over. With "
            "is_timeseries_split=True the pipeline returns two of them: hand over one."
        )
    if "slate_id" in feedback:
        raise InputError(
            "This is slate feedback: several actions make one decision, which a row of a log cannot hold. Use the "
            "feedback of a data set with one action in each round."
        )
    for name in _NEEDED:
        if feedback.get(name) is None:
            raise SchemaError(
                f"The entry {name!r} is missing; the feedback has {abbreviate(list(feedback), 40) or 'none'}. Hand "
                "over the dict that obtain_batch_bandit_feedback returned."
            )
    for name in ("n_rounds", "n_actions"):
        if not isinstance(feedback[name], int | np.integer) or feedback[name] < 1:
            raise SchemaError(f"The entry {name!r} is {feedback[name]!r}; a whole number above 0 is needed.")
    return int(feedback["n_rounds"])


def _entry(feedback: Mapping[str, Any], name: str, n: int) -> NDArray[Any]:
    values = np.asarray(feedback[name])
    if values.shape != (n,):
        raise SchemaError(
            f"The entry {name!r} has shape {values.shape}, but n_rounds is {n}: shape ({n},) is needed. Were rounds "
            "filtered in one entry and not in the others?"
        )
    return values


def _actions(feedback: Mapping[str, Any], n: int) -> pa.Array:
    codes, size = _entry(feedback, "action", n), int(feedback["n_actions"])
    if codes.dtype.kind not in "iu":
        raise SchemaError(
            f"The entry 'action' holds {codes.dtype} numbers; whole numbers from 0 to {size - 1} are needed. "
            "Continuous actions cannot be listed: cut them into intervals, or describe them by context columns."
        )
    outside = (codes < 0) | (codes >= size)
    if outside.any():
        row = int(outside.argmax())
        raise LogError(
            f"The entry 'action', row {row}: {codes[row]} is not between 0 and {size - 1}, although n_actions is "
            f"{size}. Number the actions from 0, and count all of them in n_actions."
        )
    if feedback.get("action_ids") is None:
        return pa.array(codes)
    return id_column(_entry(feedback, "action_ids", size)).take(pa.array(codes))


def _tasks(feedback: Mapping[str, Any], task: str | ArrayLike | None, n: int) -> NDArray[Any]:
    if task is None or isinstance(task, str):
        name = "task" if task is None else task
        if feedback.get(name) is None:
            raise InputError(
                f"The feedback has no entry {name!r}, and the Open Bandit Pipeline knows no tasks. Name an entry with "
                "one id for each round, such as task='position', or hand over an array of ids."
            )
        return _entry(feedback, name, n)
    ids = id_array(task, "task")
    if len(ids) != n:
        raise MismatchError(
            f"{len(ids)} ids of tasks were handed over for {n} rounds; one for each round is needed."
        )
    return ids


def _context_names(feedback: Mapping[str, Any], stated: Sequence[str] | None, width: int) -> list[str]:
    listed = feedback.get("context_names") if stated is None else stated
    names = [f"x{j}" for j in range(width)] if listed is None else [str(name) for name in listed]
    if len(names) != width:
        raise SchemaError(
            f"{len(names)} names were given for {width} context columns: {abbreviate(names, 40)}."
        )
    clashing = [name for name in names if name in OWN_COLUMNS or names.count(name) > 1]
    if clashing:
        raise SchemaError(
            f"The context column {clashing[0]!r} would share its name with another column of the log. Give other "
            "names, context=[...]."
        )
    return names


def to_obp(
    log: Any, *, task: str, action: str, reward: str, pscore: str | None = None, context: Sequence[str] = ()
) -> dict[str, Any]:
    """Turn a log into bandit feedback of the Open Bandit Pipeline, in memory.

    Parameters
    ----------
    log : anything that :func:`hieropo.logs.open_log` takes
    task, action, reward, pscore, context
        Names of its columns.

    Returns
    -------
    dict
        ``n_rounds``, ``n_actions`` K, ``context`` (n, c), ``action_context`` (K, K), the identity as in the synthetic
        data of ``obp``, ``action`` (n,) in 0..K-1, ``position`` None, ``reward`` and ``pscore`` (n,). Beside what
        ``obp`` reads: ``task`` (n,), ``action_ids`` (K,), sorted, and ``context_names``, so that :func:`from_obp` gives
        the log back.

    Raises
    ------
    SchemaError, LogError
        A column or a row that cannot be used.
    """
    source = open_log(log, rereadable=True)
    roles = Roles(task, action, reward, pscore, context=tuple(context))
    action_map = indicator(distinct_values(source, action))
    batches = list(read(source, roles))
    feedback = {
        "n_rounds": sum(map(len, batches)),
        "n_actions": action_map.dim,
        "context": np.concatenate([batch.context for batch in batches]),
        "action_context": np.eye(action_map.dim, dtype=int),
        "action": np.concatenate([action_map.action_codes(batch.action) for batch in batches]),
        "position": None,
        "reward": np.concatenate([batch.reward for batch in batches]),
        "pscore": None,
        "task": np.concatenate([batch.task for batch in batches]),
        "action_ids": id_array(action_map.actions, "action"),
        "context_names": list(roles.context),
    }
    if pscore is not None:
        feedback["pscore"] = np.concatenate([batch.pscore for batch in batches if batch.pscore is not None])
    return feedback


def action_dist(
    policy: LCBPolicy | GatedPolicy, feedback: Mapping[str, Any], *, task: str | ArrayLike | None = None
) -> NDArray[np.float64]:
    """Return the action distribution of a policy in each round, for the estimators of the Open Bandit Pipeline.

    Parameters
    ----------
    policy : LCBPolicy
        ``learner.policy_``, learned from ``from_obp(feedback, ...)`` or from a log with the same ids; it reads all
        columns of ``feedback["context"]``, in their order, or none.
    feedback, task
        As for :func:`from_obp`.

    Returns
    -------
    (n, K, l) float
        1 at the action that is chosen, else 0; the same at each of the l positions (1 where there are none).

    Raises
    ------
    MismatchError
        The policy has an action that the feedback lacks, or reads another number of columns.
    SchemaError, InputError, LogError
        As :func:`from_obp`; a policy with a gate, whose incumbent's choices are not known.
    """
    if isinstance(policy, GatedPolicy):
        raise InputError(
            "A gated policy leaves some tasks to the incumbent (the logging policy), whose choices are unknown here. "
            "Hand over policy.policy, which chooses in every task."
        )
    n, size = _checked(feedback), int(feedback["n_actions"])
    policy_actions = getattr(policy.features, "actions", None)
    if policy.features is None or policy_actions is None:
        raise InputError(
            "The policy lists no actions, so it cannot choose between those of the feedback. Learn a policy with a "
            "column of actions."
        )
    ids = np.arange(size) if feedback.get("action_ids") is None else _entry(feedback, "action_ids", size)
    code_of = {action: k for k, action in enumerate(ids.tolist())}
    missing = [action for action in policy_actions if action not in code_of]
    if missing:
        raise MismatchError(
            f"The policy has the action {missing[0]!r}, which is not among the actions of the feedback. Hand over the "
            "feedback that the policy was learned from, or one with the same action_ids."
        )
    contexts, width = np.asarray(feedback["context"], dtype=np.float64), len(policy.features.columns)
    if width not in (0, contexts.shape[1]):
        raise MismatchError(
            f"The policy reads {width} context columns, but the feedback has {contexts.shape[1]}. Hand over feedback "
            "with the columns that the policy was learned from."
        )
    choices = policy.choose_many(_tasks(feedback, task, n), contexts if width else np.empty((n, 0)))
    code = np.array([code_of[action] for action in policy_actions])[choices.index[:, 0]]
    depth = 1 if feedback.get("position") is None else int(np.max(feedback["position"])) + 1
    chosen = np.zeros((n, size, depth))
    chosen[np.arange(n), code] = 1.0
    return chosen
