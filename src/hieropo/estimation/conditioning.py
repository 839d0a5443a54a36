"""Condition a learned hierarchy of either kind on moments."""

from typing import Any

from hieropo.errors import UnknownTaskError
from hieropo.estimation.crossed.in_shards import condition_with_crossed
from hieropo.estimation.crossed.mixture import CrossedHierarchies
from hieropo.estimation.crossed.two_part import TwoPartHierarchies, TwoPartPosterior
from hieropo.estimation.crossed.walking import WalkingHierarchies, WalkingMixture
from hieropo.estimation.hyper.uncertainty import HyperUncertainty, condition_with
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.task_noise import moments_of_log
from hieropo.model.hierarchy import Hierarchy
from hieropo.rows.ids import matching_known_id, plain
from hieropo.rows.keys import Keys


def condition_learned(
    moments: Any,
    hierarchy: Hierarchy | CrossedHierarchy | CrossedHierarchies,
    hyper_uncertainty: HyperUncertainty,
) -> Any:
    """Return the posterior of a learned hierarchy given moments, with the uncertainty of the hierarchy.

    Raises
    ------
    MismatchError, InputError, NumericalError
        As :func:`condition_with` and :func:`condition_with_crossed`.
    """
    if isinstance(hierarchy, Hierarchy):
        return condition_with(moments, hierarchy, hyper_uncertainty)
    if isinstance(hierarchy, TwoPartHierarchies):
        return TwoPartPosterior(moments, hierarchy)
    if isinstance(hierarchy, WalkingHierarchies):
        return WalkingMixture(moments, hierarchy)
    return condition_with_crossed(moments, hierarchy)


def with_task(
    posterior: Any,
    hierarchy: Hierarchy | CrossedHierarchy | CrossedHierarchies,
    hyper_uncertainty: HyperUncertainty,
    task: Any,
) -> Any:
    """Return the posterior of all tasks and of one more, which has no rows; the same posterior where it has the task.

    Raises
    ------
    UnknownTaskError
        The task is unknown, and tasks have groups or metadata, which are not known of it; or its id is of another type
        than those of the log, or may mean one of them.
    """
    keys = posterior.moments.keys
    if keys.find(task) >= 0:
        return posterior
    known = keys.id_of(0)
    if matching_known_id(task, keys) is not None or not isinstance(task, type(known)):
        raise UnknownTaskError(keys.unknown_message(task))
    if hierarchy.levels or hierarchy.metadata is not None:
        raise UnknownTaskError(
            f"Task {plain(task)!r} has no rows in the log, and tasks have groups or metadata, which are not known of "
            "this one. Its prior depends on them. Explain a task of the log; `decide` chooses for a new task whose "
            "request has the columns of its groups and metadata."
        )
    covered = moments_of_log(posterior).covering(Keys.factorize([task])[0])
    return condition_learned(covered, hierarchy, hyper_uncertainty)
