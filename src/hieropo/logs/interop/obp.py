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
        What ``obtain_batch_bandit_feedback`` of a data set of ``obp`` (0.4 or 0.5) returns: ``n_rounds`` n,
        ``n_actions`` K, ``action`` (n,) in 0..K-1, ``reward`` (n,), ``context`` (n, c), and where there are any
        ``pscore`` (n,) and ``position`` (n,). What a log does not have is left out: ``expected_reward``, ``pi_b``,
        ``action_context`` (a table for :func:`hieropo.embedding`).
    task : str or (n,) ids, optional
        The pipeline has no tasks: name an entry with n ids, such as ``"position"``, or hand the ids over. Default the
        entry ``"task"``, which :func:`to_obp` writes.
    context : sequence of c str, optional
        Names of the context columns. Default the entry ``"context_names"``, else x0, x1, ...

    Returns
    -------
    pa.Table
        Columns ``task``, ``action``, ``reward``, ``pscore``, ``position`` and those of the context. Actions are whole
        numbers from 0, or the entry ``"action_ids"`` says their ids. Numbers keep their types; nothing is judged
        before the log is read.

    Raises
    ------
    SchemaError
        An entry is missing or of another shape than the rounds; columns would share a name.
    LogError
        An action is not in 0..K-1.
    InputError
        Not such a mapping, slate feedback, or nothing says what the tasks are.

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
            f"The entry 'context' has shape {contexts.shape}; ({n}, c) is needed, a row a round."
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
            "feedback of a data set with one action a round."
        )
    for name in _NEEDED:
        if feedback.get(name) is None:
            raise SchemaError(
                f"The entry {name!r} is missing; the feedback has {abbreviate(list(feedback), 40) or 'none'}. Is it "
                "what obtain_batch_bandit_feedback returned?"
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
            "Continuous actions have no list: cut them into pieces, or describe them by context columns."
        )
    outside = (codes < 0) | (codes >= size)
    if outside.any():
        row = int(outside.argmax())
        raise LogError(
            f"The entry 'action', row {row}: {codes[row]} is not between 0 and {size - 1}, but n_actions is {size}. "
            "Do the actions count from 1, or were some left out of the count?"
        )
    if feedback.get("action_ids") is None:
        return pa.array(codes)
    return id_column(_entry(feedback, "action_ids", size)).take(pa.array(codes))


def _tasks(feedback: Mapping[str, Any], task: str | ArrayLike | None, n: int) -> NDArray[Any]:
    if task is None or isinstance(task, str):
        name = "task" if task is None else task
        if feedback.get(name) is None:
            raise InputError(
                f"The feedback has no entry {name!r}, and the Open Bandit Pipeline knows no tasks. Say what they are: "
                "task='position', the name of another entry with an id a round, or an array with one."
            )
        return _entry(feedback, name, n)
    found = id_array(task, "task")
    if len(found) != n:
        raise MismatchError(
            f"{len(found)} ids of tasks were handed over for {n} rounds; one a round is needed."
        )
    return found


def _context_names(feedback: Mapping[str, Any], given: Sequence[str] | None, width: int) -> list[str]:
    stored = feedback.get("context_names") if given is None else given
    names = [f"x{j}" for j in range(width)] if stored is None else [str(name) for name in stored]
    if len(names) != width:
        raise SchemaError(
            f"{len(names)} names were given for {width} context columns: {abbreviate(names, 40)}."
        )
    twice = [name for name in names if name in OWN_COLUMNS or names.count(name) > 1]
    if twice:
        raise SchemaError(
            f"The context column {twice[0]!r} would share its name with another column of the log. Give other names, "
            "context=[...]."
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
    listed = indicator(distinct_values(source, action))
    batches = list(read(source, roles))
    found = {
        "n_rounds": sum(map(len, batches)),
        "n_actions": listed.dim,
        "context": np.concatenate([batch.context for batch in batches]),
        "action_context": np.eye(listed.dim, dtype=int),
        "action": np.concatenate([listed.action_codes(batch.action) for batch in batches]),
        "position": None,
        "reward": np.concatenate([batch.reward for batch in batches]),
        "pscore": None,
        "task": np.concatenate([batch.task for batch in batches]),
        "action_ids": id_array(listed.actions, "action"),
        "context_names": list(roles.context),
    }
    if pscore is not None:
        found["pscore"] = np.concatenate([batch.pscore for batch in batches if batch.pscore is not None])
    return found


def action_dist(
    policy: LCBPolicy | GatedPolicy, feedback: Mapping[str, Any], *, task: str | ArrayLike | None = None
) -> NDArray[np.float64]:
    """What a policy does in each round, as the estimators of the Open Bandit Pipeline take it.

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
        The policy has an action that the feedback has not, or reads another number of columns.
    SchemaError, InputError, LogError
        As :func:`from_obp`; a policy with a gate, whose incumbent's choices are not known.
    """
    if isinstance(policy, GatedPolicy):
        raise InputError(
            "A gated policy leaves tasks to the incumbent, whose choices are unknown; take policy.policy."
        )
    n, size = _checked(feedback), int(feedback["n_actions"])
    known = getattr(policy.features, "actions", None)
    if policy.features is None or known is None:
        raise InputError("The policy lists no actions, so it cannot choose between those of the feedback.")
    ids = np.arange(size) if feedback.get("action_ids") is None else _entry(feedback, "action_ids", size)
    places = {each: k for k, each in enumerate(ids.tolist())}
    strange = [each for each in known if each not in places]
    if strange:
        raise MismatchError(f"The policy has the action {strange[0]!r}, which the feedback has not.")
    contexts, width = np.asarray(feedback["context"], dtype=np.float64), len(policy.features.columns)
    if width not in (0, contexts.shape[1]):
        raise MismatchError(
            f"The policy reads {width} context columns, the feedback has {contexts.shape[1]}."
        )
    choices = policy.choose_many(_tasks(feedback, task, n), contexts if width else np.empty((n, 0)))
    code = np.array([places[each] for each in known])[choices.index[:, 0]]
    depth = 1 if feedback.get("position") is None else int(np.max(feedback["position"])) + 1
    found = np.zeros((n, size, depth))
    found[np.arange(n), code] = 1.0
    return found
