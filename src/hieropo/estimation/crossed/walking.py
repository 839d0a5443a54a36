"""Hierarchies of a log whose coefficients walked, and their posterior with the errors of the walks.

Moments of rows as they count at the end (:mod:`hieropo.moments.periods`) take the path of the effects of actions as
known. Its error at the end, B Cov(w) B' of :mod:`action_walks`, is common to all tasks and independent of all else.
They are a mean over the rates of interactions: the rate is one for all tasks, and its error moves each of them by R_s x
(:mod:`hieropo.moments.uncertain_walks`). Both are added to the posterior under each hierarchy
(:mod:`hieropo.model.crossed.common_error`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.brief import brief
from hieropo.errors import MismatchError
from hieropo.estimation.crossed.kinds import TaskKinds
from hieropo.estimation.crossed.mixture import CrossedHierarchies, CrossedMixture, condition_hierarchies
from hieropo.model.crossed.common_error import ErrorRoots, WithCommonError, with_common_error
from hieropo.model.gaussian import frozen
from hieropo.model.hierarchy import Grouping
from hieropo.model.metadata import Metadata
from hieropo.model.steps import upper_factor
from hieropo.model.table import PosteriorTable
from hieropo.moments.statistics import Moments
from hieropo.rows.keys import Keys


@dataclass(frozen=True, slots=True, eq=False)
class RateError:
    """The error of the rate of interactions, R_s x, x ~ N(0, I) in common to all tasks.

    Parameters
    ----------
    tasks : Keys
        The m tasks of the log.
    root : (m, K p, D) array
        R_s; 0 for all other tasks.

    Raises
    ------
    MismatchError
        There is not one root for each task.
    """

    tasks: Keys
    root: Array

    __repr__ = brief

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", frozen(self.root))
        if self.root.ndim != 3 or len(self.root) != len(self.tasks):
            raise MismatchError(
                f"Roots of the error of the rate of drift have shape {self.root.shape}; one (K p, D) array is needed "
                f"for each of the {len(self.tasks)} tasks of the log. Hand in the roots that were made with its "
                "moments."
            )

    def of(self, keys: Keys) -> Array:
        """Return the roots (n, K p, D) of some tasks; 0 for tasks that are not in the log."""
        if keys is self.tasks:
            return self.root
        place = np.asarray(self.tasks.locate(keys.values))
        return np.where((place < 0)[:, None, None], 0.0, self.root[place])

    def at(self, keys: Keys) -> Self:
        """Return the error without tasks that are not among ``keys``."""
        return self if keys is self.tasks else type(self)(keys, self.of(keys))

    def with_actions(self, positions: Codes, n_actions: int) -> Self:
        """Return the error for a map of more actions, which have none; ``positions`` are those of the old ones."""
        p = self.root.shape[1] // positions.size
        wider = np.zeros((len(self.root), n_actions * p, self.root.shape[2]))
        wider[:, _columns(positions, p)] = self.root
        return type(self)(self.tasks, wider)


class WalkErrors(NamedTuple):
    """Errors of walks at the end of a log.

    Attributes
    ----------
    of_actions : (K p, K p) array
        Covariance of that of the path of the effects of actions; 0 where they do not walk.
    of_rate : RateError or None
        None where the rate of interactions is taken as known.
    """

    of_actions: Array
    of_rate: RateError | None = None

    def at(self, keys: Keys) -> Self:
        """Return the errors without those of tasks that are not among ``keys``, such as tasks that were forgotten."""
        return self if self.of_rate is None else self._replace(of_rate=self.of_rate.at(keys))

    def with_actions(self, positions: Codes, n_actions: int) -> Self:
        """Return the errors for a map of more actions, which have none; ``positions`` are those of the old ones."""
        p = len(self.of_actions) // positions.size
        columns = _columns(positions, p)
        wider = np.zeros((n_actions * p, n_actions * p))
        wider[np.ix_(columns, columns)] = self.of_actions
        of_rate = None if self.of_rate is None else self.of_rate.with_actions(positions, n_actions)
        return type(self)(wider, of_rate)


def _columns(positions: Codes, p: int) -> Codes:
    return np.asarray((positions[:, None] * p + np.arange(p)).reshape(-1))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WalkingHierarchies(CrossedHierarchies):
    """Hierarchies, and the errors of walks at the end of the log; made by :meth:`of`.

    Parameters
    ----------
    action_error : (K p, K p) array
        Covariance of the error of the path of the effects of actions.
    rate_error : RateError, optional
    """

    action_error: Array = field(default_factory=lambda: np.zeros((0, 0)))
    rate_error: RateError | None = None

    def __post_init__(self) -> None:
        CrossedHierarchies.__post_init__(self)
        object.__setattr__(self, "action_error", frozen(self.action_error))

    @classmethod
    def of(cls, hierarchies: CrossedHierarchies, errors: WalkErrors) -> Self:
        """Add the errors of walks to hierarchies that were learned from rows at the end.

        Raises
        ------
        MismatchError
            The errors are not of all K p coefficients.
        """
        size = hierarchies.n_actions * hierarchies.unit_dim
        rate = errors.of_rate
        if errors.of_actions.shape != (size, size) or (rate is not None and rate.root.shape[1] != size):
            shapes = [errors.of_actions.shape, *([] if rate is None else [rate.root.shape])]
            raise MismatchError(
                f"The errors of walks have the shapes {shapes}; {hierarchies.n_actions} actions of "
                f"{hierarchies.unit_dim} features have {size} coefficients. Both must come from one feature map."
            )
        return cls(**_parts(hierarchies), action_error=errors.of_actions, rate_error=rate)

    @property
    def errors(self) -> WalkErrors:
        """The errors of the walks."""
        return WalkErrors(self.action_error, self.rate_error)

    @property
    def still(self) -> CrossedHierarchies:
        """The same hierarchies without the errors."""
        return CrossedHierarchies(**_parts(self))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types, from which :meth:`from_dict` makes the same value; without what is of single tasks."""
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
        rate_error: RateError | None = None,
    ) -> Self:
        """Read what :meth:`to_dict` wrote."""
        still = CrossedHierarchies.from_dict(values, levels, metadata, task_noise)
        error = np.asarray(values["action_error"], dtype=np.float64)
        return cls.of(still, WalkErrors(error, rate_error))


def _parts(hierarchies: CrossedHierarchies) -> dict[str, Any]:
    return {one.name: getattr(hierarchies, one.name) for one in fields(CrossedHierarchies)}


class WalkingMixture(CrossedMixture):
    """Posterior of every task and action at the end of the log.

    Attributes
    ----------
    still : CrossedMixture
        The same, the path of the effects of actions and the rate of interactions taken as known.
    """

    moments: Moments
    hierarchy: WalkingHierarchies
    still: CrossedMixture

    def __init__(self, moments: Moments, hierarchies: WalkingHierarchies) -> None:
        super().__init__(moments, hierarchies)
        self.still = condition_hierarchies(moments, hierarchies.still)
        self.moments = self.still.moments  # one copy of weighted sums
        root = upper_factor(hierarchies.action_error)[0]
        rate = hierarchies.rate_error
        none = np.zeros((len(self.moments), len(root), 0))
        of_tasks = none if rate is None else rate.of(self.moments.keys)
        self._roots = ErrorRoots(root[:, root.any(axis=0)], of_tasks)

    def central(self) -> WithCommonError:  # type: ignore[override]  # of the same views
        """Return the posterior under the central hierarchy, taken as known."""
        return WithCommonError(self.still.central(), self._roots)

    def parts(self) -> Iterator[WithCommonError]:  # type: ignore[override]
        """Yield the posterior under each hierarchy that is conditioned, in the order of ``weights``."""
        for part in self.still.parts():
            yield WithCommonError(part, self._roots)

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
        return with_common_error(self.still.table(), self._roots)
