"""The posteriors of all tasks as a policy reads them: a table in memory, or mapped from files."""

from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

from hieropo._utils.arrays import Array
from hieropo._utils.brief import brief
from hieropo._utils.packed import pack, unpack
from hieropo.model.gaussian import Gaussian
from hieropo.rows.keys import TaskKeys


@dataclass(frozen=True, slots=True, eq=False)
class PosteriorTable:
    """Posteriors of all tasks side by side, of d features, or of p features of each of K actions.

    A table per action holds the marginal posterior of every unit, which is one action within one task; covariances
    between two actions of a task are not part of it.

    Attributes
    ----------
    keys : TaskKeys
        The index of the ids of the m tasks.
    means : (m, d) or (m, K, p) array
    covs : (m, d (d + 1) / 2) or (m, K, p (p + 1) / 2) array
        Upper triangles packed by columns: entry (i <= j) at j (j + 1) / 2 + i.
    rows : (m,) array
        Number of rows of each task, by their weights.
    prior_means, prior_covs : array shaped as those of one task
        Posterior of a task that is not in the table.
    """

    keys: TaskKeys
    means: Array
    covs: Array
    rows: Array
    prior_means: Array
    prior_covs: Array

    __repr__ = brief

    @classmethod
    def joint(cls, keys: TaskKeys, means: Array, covs: Array, rows: Any, prior: Gaussian) -> Self:
        """Return a table of the joint posteriors of all features, with the prior of a task that is not in it."""
        return cls(keys, means, covs, rows, prior.mean, pack(prior.cov))

    @property
    def per_action(self) -> bool:
        """True for a table of one marginal per action; False for one of all features jointly."""
        return self.prior_means.ndim == 2

    @property
    def n_marginals(self) -> int:
        """The number of marginals of a task: that of actions in a table per action, else 1."""
        return len(self.prior_means) if self.per_action else 1

    @property
    def dim(self) -> int:
        """The number d of features of the feature map; d = K p in a table per action."""
        return int(self.prior_means.size)

    @property
    def prior(self) -> Gaussian:
        """The posterior of a task that is not in a table of all features."""
        return self.marginal(-1)

    def marginal(self, row: int, action: int = 0) -> Gaussian:
        """Return the posterior of the task in a row, or of one of its actions; of a task not in the table at -1."""
        mean, cov = (self.prior_means, self.prior_covs) if row < 0 else (self.means[row], self.covs[row])
        if self.per_action:
            mean, cov = mean[action], cov[action]
        return Gaussian.trusted(mean.copy(), unpack(cov, mean.size))


@runtime_checkable
class HasTable(Protocol):
    """Anything that gives a table on demand, such as a posterior."""

    def table(self) -> PosteriorTable:
        """Return the posterior of every task."""
