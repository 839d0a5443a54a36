"""Likelihoods that are not Gaussian, as Gaussian sites: each row enters the sums with a pseudo-reward and a precision.

Near the posterior of its mean, N(mu_i, h_i), the log likelihood of row i is replaced by that of an observation

    z_i ~ N(phi_i' theta_s, sigma_a^2 / v_i)

of which :class:`SiteRule` gives the pseudo-reward z_i and the relative precision v_i. Moments of z with precisions v
then stand for the rows: posterior, policy, files, gate and evaluation are those of Gaussian rewards. A fit repeats
posterior, sites, sums until they agree.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.hashes import sample_of, with_values
from hieropo._utils.packed import triangle
from hieropo.errors import InputError
from hieropo.features.maps import FeatureMap
from hieropo.moments.statistics import Moments, add_rows
from hieropo.moments.units import one_action
from hieropo.rows.batches import Batch, Roles
from hieropo.rows.task_hash import task_hashes

Likelihood = Literal["gaussian", "robust", "two-part", "auto"]

_PIECE = 2**14  # rows worked on together, while they are in the cache
_ROLES = {  # columns that no likelihood but the Gaussian takes, and the reason
    "cluster": "the correlation within clusters is derived for Gaussian rewards",
    "precision": "a known precision scales the variance of a Gaussian reward",
    "sampling_weight": "standard errors of sampled rows are derived for Gaussian rewards",
}


_OF_TWO_PARTS = {  # settings that two parts go with, and leave unused
    "spreads": ("one", "auto"),
    "task_kinds": ("one", "auto"),
    "logging": ("unknown", "random", "adaptive"),
}


def check_likelihood(likelihood: Any, *, given: bool) -> None:
    """Raise InputError for a likelihood that is none, or that does not go with a given hierarchy.

    Parameters
    ----------
    likelihood : str
    given : bool
        True where the hierarchy, or its prior, is given.

    Raises
    ------
    InputError
        Says what to leave out.
    """
    if not (isinstance(likelihood, str) and likelihood in get_args(Likelihood)):
        choices = ", ".join(map(repr, get_args(Likelihood)))
        raise InputError(f"likelihood={likelihood!r}; one of {choices} is needed.")
    if given:
        refuse_likelihood(
            likelihood,
            "known= or a Gaussian as hyper",
            "its hierarchy is learned together with its pseudo-rewards",
        )


def refuse_likelihood(likelihood: str, setting: str, reason: str) -> None:
    """Raise InputError where a likelihood that is not Gaussian does not go with something.

    Parameters
    ----------
    likelihood : str
    setting : str
        The other setting, column or call.
    reason : str

    Raises
    ------
    InputError
        Names both.
    """
    if likelihood != "gaussian":
        raise InputError(
            f"likelihood={likelihood!r} does not go with {setting}: {reason}. Set likelihood='gaussian', or leave "
            "the other out."
        )


def check_roles_of_likelihood(likelihood: str, roles: Roles) -> None:
    """Raise InputError for columns for which sites are not derived.

    Raises
    ------
    InputError
        Names the column.
    """
    for role, reason in _ROLES.items():
        column = getattr(roles, role)
        if column is not None:
            refuse_likelihood(likelihood, f"{role}={column!r}", reason)
    for role in ("levels", "metadata"):
        columns = getattr(roles, role)
        if columns and likelihood == "two-part":
            refuse_likelihood(
                likelihood,
                f"{role}={list(columns)}",
                "both parts are derived for tasks without groups and metadata",
            )


def check_settings_of_likelihood(likelihood: str, **settings: Any) -> None:
    """Raise InputError for settings for which a likelihood in two parts is not derived.

    Raises
    ------
    InputError
        Names the setting.
    """
    if likelihood != "two-part":
        return
    for name, value in settings.items():
        if value not in _OF_TWO_PARTS[name]:
            refuse_likelihood(
                likelihood, f"{name}={value!r}", "that setting is derived for rewards in one part"
            )


class Sites(NamedTuple):
    """Pseudo-rewards z (n,) and relative precisions v (n,) of rows; None is 1."""

    reward: Array
    precision: Array | None = None


class SiteRule(Protocol):
    """A likelihood with its parameters: it turns rewards into sites."""

    name: str

    @property
    def warning(self) -> str:
        """A sentence where the rewards do not fit the likelihood; else empty."""
        ...

    def sites(self, reward: Array, mean: Array, variance: Array, action: Codes) -> Sites:
        """Return the sites of rows.

        Parameters
        ----------
        reward : (n,) array
        mean, variance : (n,) array
            mu and h: posterior of phi' theta of each row.
        action : (n,) int array
        """
        ...

    def note(self, actions: Iterable[Any]) -> str:
        """Return sentences about the likelihood for a summary."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as JSON can hold them, with the name."""
        ...


class SiteFit(NamedTuple):
    """A fit by sites.

    Attributes
    ----------
    learned : Learning
        Learned from the moments.
    moments : Moments
        Of the sites; those of the rewards where ``rule`` is None.
    rule : SiteRule or None
        None where Gaussian rewards were chosen.
    note : str
        A sentence where these were chosen although tails look heavy; else empty.
    """

    learned: Any
    moments: Moments
    rule: SiteRule | None
    note: str = ""


@dataclass(frozen=True, eq=False)
class LogRows:
    """The rows of a log in memory.

    Attributes
    ----------
    moments : Moments
        Of the rewards, per action.
    unit : (n,) int array
        Unit s K + a of each row.
    phi : (n, p) array
        Features of the unit.
    reward : (n,) array
    count : (n,) array or None
        Weights of the rows; None is 1.
    """

    moments: Moments
    unit: Codes
    phi: Array
    reward: Array
    count: Array | None = None

    def __len__(self) -> int:
        return int(self.reward.size)

    @cached_property
    def action(self) -> Codes:
        """The code of the action of each row, (n,)."""
        return self.unit % self.moments.n_actions

    def sample(self, most: int) -> Codes:
        """Return the positions of at most ``most`` rows, ascending; which rows does not depend on their order."""
        n = len(self)
        if n <= most:
            return np.arange(n)
        task = task_hashes(np.asarray(self.moments.keys.values)).astype(np.uint64)
        hashes = with_values(task[self.unit // self.moments.n_actions], self.reward)
        if self.count is not None:
            hashes = with_values(hashes, self.count)
        for feature in self.phi.T:  # to 24 binary digits, since an origin may differ by rounding
            hashes = with_values(hashes, feature.astype(np.float32))
        return sample_of(hashes, with_values(hashes, self.action), most)

    @property
    def counts(self) -> Array:
        """The weights of the rows, (n,)."""
        return np.ones(len(self)) if self.count is None else self.count

    @cached_property
    def _offset(self) -> Array | float:
        return 0.0 if self.moments.unit_offset is None else self.phi @ self.moments.unit_offset

    def sums(self, sites: Sites) -> Moments:
        """Return the moments of sites: of the same tasks, rows and offset."""
        moments, v = self.moments, sites.precision
        factors = self.count if v is None else v * self.counts
        sums, log_precision = np.zeros_like(moments.unit_sums), np.zeros_like(moments.unit_rows)
        add_rows(
            self.unit,
            self.phi,
            sites.reward - self._offset,
            np.zeros(0) if factors is None else factors,
            sums,
        )
        if v is not None:
            log_precision += np.bincount(self.unit, self.counts * np.log(v), log_precision.size)
        return replace(
            moments,
            sums=sums.reshape(moments.sums.shape),
            log_precision=log_precision.reshape(moments.rows.shape),
        )

    def with_positive(self) -> Moments:
        """Return the moments of the rewards with the sums over positive ones, of their logarithms, beside them."""
        paid = np.flatnonzero(self.reward > 0.0)
        sums = np.zeros_like(self.moments.unit_sums)
        counts = np.zeros(0) if self.count is None else self.count[paid]
        add_rows(self.unit[paid], self.phi[paid], np.log(self.reward[paid]), counts, sums)
        moments = self.moments
        rows = np.zeros_like(moments.unit_rows)
        rows += np.bincount(self.unit[paid], self.counts[paid], rows.size)
        return moments.with_positive(sums.reshape(moments.sums.shape), rows.reshape(moments.rows.shape))

    def predicted(self, posterior: Any) -> tuple[Array, Array]:
        """Return the posterior means and variances (n,) of phi' theta of the rows."""
        table = posterior.table()
        place = np.asarray(table.keys.require(self.moments.tasks))
        means, covs = (
            np.asarray(values)[place].reshape(self.moments.unit_rows.size, -1)
            for values in (table.means, table.covs)
        )
        return _along(self.phi, means, covs, self.unit)


def marginals(table: Any, place: Codes, action: Codes, phi: Array) -> tuple[Array, Array]:
    """Return means and variances (n,) of phi' theta under a table per action.

    Parameters
    ----------
    table : PosteriorTable
    place : (n,) int array
        Rows of the table; -1 is a task that it does not have.
    action : (n,) int array
    phi : (n, p) array
    """
    K, p = table.n_marginals, phi.shape[1]
    means = np.concatenate([np.asarray(table.means).reshape(-1, p), table.prior_means.reshape(-1, p)])
    covs = np.concatenate(
        [np.asarray(table.covs).reshape(len(means) - K, -1), table.prior_covs.reshape(K, -1)]
    )
    return _along(phi, means, covs, np.where(place < 0, len(table.keys), place) * K + action)


def _along(phi: Array, means: Array, covs: Array, unit: Codes) -> tuple[Array, Array]:
    """Return means and variances (n,) of phi' theta from those of units (u, p), (u, q), at the unit of each row."""
    i, j = triangle(phi.shape[1])
    covs = covs * np.where(i == j, 1.0, 2.0)
    mean, variance = np.empty((2, unit.size))
    for start in range(0, unit.size, _PIECE):
        part = slice(start, start + _PIECE)
        f, at = phi[part], unit[part]
        mean[part] = np.einsum("np,np->n", f, means[at])
        variance[part] = np.einsum("nq,nq->n", f[:, i] * f[:, j], covs[at])
    return mean, np.maximum(variance, 0.0)


def as_sites(batch: Batch, codes: Codes, rule: SiteRule, table: Any, features: FeatureMap) -> Batch:
    """Return a batch whose rewards are those of its sites, with their precisions.

    Parameters
    ----------
    batch : Batch
    codes : (n,) int array
        Actions in the map.
    rule : SiteRule
    table : PosteriorTable
        Of the policy that the rule was learned with.
    features : FeatureMap
    """
    unit_map = one_action(features)
    assert unit_map is not None
    place = np.asarray(table.keys.locate(batch.task))
    mean, variance = marginals(table, place, codes, unit_map.phi(batch.context, np.zeros_like(codes)))
    sites = rule.sites(batch.reward, mean, variance, codes)
    return replace(batch, reward=sites.reward, precision=sites.precision)
