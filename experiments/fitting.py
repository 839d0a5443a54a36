"""Fit a learner in experiments: as a user would who follows a refusal's advice."""

import warnings
from typing import Any, NamedTuple

import pyarrow as pa

from hieropo import HierOPO, HieropoWarning, NumericalError


class Fitted(NamedTuple):
    """A fitted learner, whether it warned, and whether its settings were refused."""

    learner: HierOPO
    warned: bool
    refused: bool


SIMPLER = ("diag", "isotropic")


def fit(learner: HierOPO, rows: pa.Table, **roles: Any) -> Fitted:
    """Fit; where Sigma_0 cannot be learned, again with a simpler one, as the message advises."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HieropoWarning)
        refused = 0
        while True:
            try:
                learner.fit(rows, **roles)
                break
            except NumericalError:
                if refused == len(SIMPLER):
                    raise
                learner.set_params(task_cov=SIMPLER[refused])
                refused += 1
    return Fitted(learner, any(issubclass(each.category, HieropoWarning) for each in caught), refused > 0)
