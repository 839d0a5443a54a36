"""A further read of a log: its rows in memory, in the features of the moments that the first pass ended with."""

from typing import Any

import numpy as np

from hieropo._utils.text import thousands
from hieropo.errors import InputError
from hieropo.estimation.sites import LogRows
from hieropo.features.maps import FeatureMap
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.reading import read_again
from hieropo.moments.statistics import Moments
from hieropo.moments.units import one_action
from hieropo.rows.batches import Roles

_LARGEST = 2**32  # bytes of the rows


def rows_in_memory(
    source: Any, roles: Roles, features: FeatureMap, moments: Moments, rejects: Rejects | None = None
) -> LogRows:
    """Return the rows of a log.

    Parameters
    ----------
    source : LogSource
        It must be possible to read it again.
    roles : Roles
    features : FeatureMap
        Of the moments, with all of their actions.
    moments : Moments
        Of the same rows, per action.
    rejects : Rejects, optional
        Where rows that cannot be used are set aside.

    Raises
    ------
    InputError
        The rows need more than 4 GiB.
    """
    unit_map, p = one_action(features), moments.unit_dim
    assert unit_map is not None
    parts: list[tuple[Any, ...]] = []
    size = 0
    for batch in read_again(source, roles, rejects):
        codes = features.action_codes(batch.action, first_row=batch.first_row)
        size += len(batch)
        if size * (p + 4) * 8 > _LARGEST:
            raise InputError(
                f"{source.name} has more than {thousands(size)} rows of {p} features, which need over 4 GiB. A "
                "likelihood that is not Gaussian holds all rows in memory. Set likelihood='gaussian', or fit a "
                "sample of the tasks."
            )
        unit = np.asarray(moments.keys.require(batch.task)) * moments.n_actions + codes
        parts.append((unit, unit_map.phi(batch.context, np.zeros_like(codes)), batch.reward, batch.weight))
    unit, phi, reward = (np.concatenate([part[k] for part in parts]) for k in range(3))
    weighted = any(part[3] is not None for part in parts)
    count = None
    if weighted:
        count = np.concatenate([np.ones(part[2].size) if part[3] is None else part[3] for part in parts])
    return LogRows(moments, unit, np.ascontiguousarray(phi), reward, count)
