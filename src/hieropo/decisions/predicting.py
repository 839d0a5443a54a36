"""The chosen action of each request, as an array of action ids."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo.decisions.deciding import choices_of
from hieropo.decisions.requests import NewTaskPolicies, Requests, UnknownTasks
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import LCBPolicy


def chosen_actions(
    policy: LCBPolicy | GatedPolicy, requests: Iterable[Requests], new_tasks: NewTaskPolicies | None = None
) -> NDArray[Any]:
    """Return the chosen action of each request, (n,); None where a gate leaves the task to the incumbent.

    Warns
    -----
    HieropoWarning
        No request is of a task in the log.
    """
    features = policy.features
    assert features is not None
    actions, unknown_tasks = features.actions or (), UnknownTasks(policy.table.keys)
    ids: list[Any] = []
    for batch in requests:
        best = choices_of(policy, batch, new_tasks)
        ids.extend(actions[i] if i >= 0 else None for i in best.index[:, 0])
        unknown_tasks.add(batch.task)
    unknown_tasks.finish()
    array: NDArray[Any] = np.empty(len(ids), dtype=object)
    array[:] = ids
    return array
