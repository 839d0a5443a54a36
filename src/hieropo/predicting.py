"""Actions for requests, as the log had them."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo.core.gating import GatedPolicy
from hieropo.core.policy import LCBPolicy
from hieropo.scrutiny import warn_of_ids
from hieropo.sources.requests import Requests


def chosen(policy: LCBPolicy | GatedPolicy, requests: Iterable[Requests]) -> NDArray[Any]:
    """Choose an action for each request, (n,); None where a gate leaves it to the incumbent.

    Warns
    -----
    HieropoWarning
        No task is known, and their ids are of another type than those of the log.
    """
    features = policy.features
    keys: Any = policy.table.keys  # of both kinds, with ids
    assert features is not None
    actions, unseen = features.actions or (), 0
    found: list[Any] = []
    for batch in requests:
        mask = batch.eligible_mask(features)
        best = policy.choose_many(batch.task, batch.context, eligible=mask, first_row=batch.first_row)
        found.extend(actions[i] if i >= 0 else None for i in best.index[:, 0])
        unseen += int(np.count_nonzero(np.asarray(keys.locate(batch.task)) < 0))
    if unseen == len(found) and len(keys):
        warn_of_ids(keys.values[0], batch.task[0], "request")
    answer: NDArray[Any] = np.empty(len(found), dtype=object)
    answer[:] = found
    return answer
