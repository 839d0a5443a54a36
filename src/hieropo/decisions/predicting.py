"""The chosen action of each request, as an array of action ids."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo.decisions.choosing import AnyPolicy, choices_of, locate
from hieropo.decisions.requests import NewTaskPolicies, RequestReader, UnknownTasks


def chosen_actions(
    policy: AnyPolicy, reader: RequestReader, new_tasks: NewTaskPolicies | None = None
) -> NDArray[Any]:
    """Return the chosen action of each request of a strict reader, (n,); None where a gate leaves the task.

    Warns
    -----
    HieropoWarning
        No request is of a task in the log.
    """
    features = policy.features
    assert features is not None
    actions, counter = features.actions or (), UnknownTasks(policy.table.keys)
    ids: list[Any] = []
    for batch in reader.batches():
        requests = batch.requests
        located = locate(policy, requests)
        best = choices_of(policy, requests, located, new_tasks)
        ids.extend(actions[i] if i >= 0 else None for i in best.index[:, 0])
        counter.add(requests.task, int(np.count_nonzero(located < 0)))
    counter.finish()
    array: NDArray[Any] = np.empty(len(ids), dtype=object)
    array[:] = ids
    return array
