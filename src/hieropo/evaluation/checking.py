"""Whether rewards are as the model predicts them, row by row."""

from typing import Any

import numpy as np

from hieropo.core.features import FeatureMap
from hieropo.core.keys import Keys
from hieropo.core.predictive import Checks, PredictiveChecks
from hieropo.evaluation.judging import Rows


class Checking:
    """Hands rows of a log to predictive checks.

    Parameters
    ----------
    posterior : Posterior or one with the same views
        With all tasks of the log.
    features : FeatureMap
    keys : Keys
        The tasks of the log.
    learned_from : bool
        Whether the posterior was learned from these rows; each is then predicted without itself.
    """

    def __init__(self, posterior: Any, features: FeatureMap, keys: Keys, *, learned_from: bool) -> None:
        self._checks = Checks(posterior, features, learned_from=learned_from)
        self._at = np.asarray(posterior.moments.keys.require(keys.values))

    def add(self, rows: Rows) -> None:
        """Take some rows."""
        batch = rows.batch
        number = batch.first_row + np.arange(len(batch)) if batch.rows is None else batch.rows
        self._checks.add(
            self._at[rows.place],
            rows.codes,
            batch.context,
            batch.reward,
            batch.weight,
            batch.precision,
            number=number,
        )

    def checks(self) -> PredictiveChecks:
        """Return the checks of all rows so far."""
        return self._checks.checks()
