"""Actions for requests, as the log had them."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo.decisions.deciding import choices_of
from hieropo.decisions.requests import NewTaskPolicies, Requests, UnknownTasks
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import LCBPolicy


def chosen(
    policy: LCBPolicy | GatedPolicy, requests: Iterable[Requests], new_tasks: NewTaskPolicies | None = None
) -> NDArray[Any]:
    """Choose an action for each request, (n,); None where a gate leaves it to the incumbent.

    Warns
    -----
    HieropoWarning
        No request is of a task that the policy knows.
    """
    features = policy.features
    assert features is not None
    actions, unknown_tasks = features.actions or (), UnknownTasks(policy.table.keys)
    found: list[Any] = []
    for batch in requests:
        best = choices_of(policy, batch, new_tasks)
        found.extend(actions[i] if i >= 0 else None for i in best.index[:, 0])
        unknown_tasks.add(batch.task)
    unknown_tasks.finish()
    answer: NDArray[Any] = np.empty(len(found), dtype=object)
    answer[:] = found
    return answer
