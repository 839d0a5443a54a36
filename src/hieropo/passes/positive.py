"""The sums over the rows of a log with positive rewards, of the logarithms of these."""

from dataclasses import replace

import numpy as np

from hieropo._utils.arrays import Codes
from hieropo.features.maps import FeatureMap
from hieropo.moments.statistics import Moments
from hieropo.passes.worker import accumulator, add_rows
from hieropo.rows.batches import Batch


class PositiveSums:
    """Sums rows with positive rewards, batch by batch; the mutable edge of a pass over a log.

    Parameters
    ----------
    features : FeatureMap
    """

    def __init__(self, features: FeatureMap) -> None:
        self._features, self._total = features, accumulator(features, per_action=True)
        self._empty = True

    def add(self, batch: Batch, codes: Codes, rows: Codes | None = None) -> None:
        """Add those of the rows of a batch, or at ``rows``, with rewards above 0; ``codes`` (n,) are their actions."""
        paid = batch.reward > 0.0
        some = np.flatnonzero(paid) if rows is None else rows[paid[rows]]
        if some.size:
            logs = np.zeros(len(batch))
            logs[some] = np.log(batch.reward[some])
            add_rows(self._total, self._features, replace(batch, reward=logs), codes, some)
            self._empty = False

    def beside(self, moments: Moments) -> Moments:
        """Return the moments of the same rows with these sums beside them."""
        if self._empty:
            return moments.with_positive(0.0 * moments.sums, 0.0 * moments.rows)
        positive = self._total.moments().covering(moments.keys)
        positive = positive.at(positive.keys.locate(moments.keys.values))
        return moments.with_positive(positive.sums, positive.rows)
