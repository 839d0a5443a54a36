"""Hierarchies of a log whose actions walked in all tasks alike, and their posterior.

Moments of rows as they count at the end (:mod:`hieropo.moments.periods`) take the path of the effects of actions as
known. Its error at the end, B Cov(w) B' of :mod:`action_walks`, is common to all tasks and independent of all else: it
is added to the posterior under each hierarchy (:mod:`hieropo.model.crossed.common_error`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Self

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo.errors import MismatchError
from hieropo.estimation.crossed.kinds import TaskKinds
from hieropo.estimation.crossed.mixture import CrossedHierarchies, CrossedMixture, condition_hierarchies
from hieropo.model.crossed.common_error import WithCommonError, with_error_of_actions
from hieropo.model.gaussian import frozen
from hieropo.model.hierarchy import Grouping
from hieropo.model.metadata import Metadata
from hieropo.model.steps import upper_factor
from hieropo.model.table import PosteriorTable
from hieropo.moments.statistics import Moments


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WalkingHierarchies(CrossedHierarchies):
    """Hierarchies, and the error of the effects of actions at the end of the log; made by :meth:`of`.

    Parameters
    ----------
    action_error : (K p, K p) array
        Its covariance.
    """

    action_error: Array = field(default_factory=lambda: np.zeros((0, 0)))

    def __post_init__(self) -> None:
        CrossedHierarchies.__post_init__(self)
        object.__setattr__(self, "action_error", frozen(self.action_error))

    @classmethod
    def of(cls, hierarchies: CrossedHierarchies, action_error: Array) -> Self:
        """Add the error of a path to hierarchies that were learned from rows at the end.

        Raises
        ------
        MismatchError
            The error is not of all K p coefficients.
        """
        size = hierarchies.n_actions * hierarchies.unit_dim
        if action_error.shape != (size, size):
            raise MismatchError(
                f"The error of the effects of actions has shape {action_error.shape}; {hierarchies.n_actions} actions "
                f"of {hierarchies.unit_dim} features need {(size, size)}. Both must come from one feature map."
            )
        return cls(**_parts(hierarchies), action_error=action_error)

    @property
    def still(self) -> CrossedHierarchies:
        """The same hierarchies without the error."""
        return CrossedHierarchies(**_parts(self))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types, from which :meth:`from_dict` makes the same value."""
        return {
            **CrossedHierarchies.to_dict(self),
            "kind": "crossed walking",
            "action_error": self.action_error.tolist(),
        }

    @classmethod
    def from_dict(
        cls,
        values: Mapping[str, Any],
        levels: tuple[Grouping, ...] = (),
        metadata: Metadata | None = None,
        task_noise: Any = None,
    ) -> Self:
        """Read what :meth:`to_dict` wrote."""
        still = CrossedHierarchies.from_dict(values, levels, metadata, task_noise)
        return cls.of(still, np.asarray(values["action_error"], dtype=np.float64))


def _parts(hierarchies: CrossedHierarchies) -> dict[str, Any]:
    return {one.name: getattr(hierarchies, one.name) for one in fields(CrossedHierarchies)}


def with_actions(error: Array, positions: Codes, n_actions: int) -> Array:
    """Return the error for a map of more actions, which have none; ``positions`` are those of the old ones."""
    p = len(error) // positions.size
    columns = (positions[:, None] * p + np.arange(p)).reshape(-1)
    wider = np.zeros((n_actions * p, n_actions * p))
    wider[np.ix_(columns, columns)] = error
    return wider


class WalkingMixture(CrossedMixture):
    """Posterior of every task and action at the end of the log.

    Attributes
    ----------
    still : CrossedMixture
        The same, the path of the effects of actions taken as known.
    """

    moments: Moments
    hierarchy: WalkingHierarchies
    still: CrossedMixture

    def __init__(self, moments: Moments, hierarchies: WalkingHierarchies) -> None:
        super().__init__(moments, hierarchies)
        self.still = condition_hierarchies(moments, hierarchies.still)
        self.moments = self.still.moments  # one copy of weighted sums
        self._error_root = upper_factor(hierarchies.action_error)[0]

    def central(self) -> WithCommonError:  # type: ignore[override]  # of the same views
        """Return the posterior under the central hierarchy, taken as known."""
        return WithCommonError(self.still.central(), self._error_root)

    def parts(self) -> Iterator[WithCommonError]:  # type: ignore[override]
        """Yield the posterior under each hierarchy that is conditioned, in the order of ``weights``."""
        for part in self.still.parts():
            yield WithCommonError(part, self._error_root)

    @cached_property
    def differing(self) -> Array | None:
        """As :attr:`CrossedMixture.differing`."""
        return self.still.differing

    @cached_property
    def task_kinds(self) -> TaskKinds | None:
        """As :attr:`CrossedMixture.task_kinds`."""
        return self.still.task_kinds

    @cached_property
    def _table(self) -> PosteriorTable:
        return with_error_of_actions(self.still.table(), self.hierarchy.action_error)
