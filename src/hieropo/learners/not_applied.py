"""Settings that a fit does not apply: refused where they were asked for, else told in its summary with the reason."""

from collections.abc import Iterator
from typing import Any

from hieropo.errors import InputError
from hieropo.estimation.crossed.correlation import MOST_CLUSTERS, integrable
from hieropo.estimation.crossed.kinds import kinds_out_of_reach
from hieropo.estimation.crossed.mixture import CrossedHierarchies
from hieropo.estimation.crossed.spreads import spreads_out_of_reach
from hieropo.estimation.crossed.two_part import TwoPartHierarchies
from hieropo.estimation.learning import Settings
from hieropo.learners.clusters_in_shards import ClustersInShards
from hieropo.logging_policy.incumbents import uses_choices
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.clusters import ClusterTable
from hieropo.moments.in_shards import MomentsInShards

_SHARDS = "the fit is from moments in shards"
_CHOICES = "the choices of the incumbent are used as evidence"
_GROUPS = "tasks have groups or metadata"


def refuse_kinds(settings: Settings, *, crossed: bool) -> None:
    """Raise InputError where a number of kinds of tasks is set, and the model has none.

    Parameters
    ----------
    settings : Settings
    crossed : bool
        True for the crossed prior.

    Raises
    ------
    InputError
        Names the setting, and the settings that it does not go with.
    """
    if isinstance(settings.task_kinds, str) or (crossed and settings.known is None):
        return
    asked = f"task_kinds={settings.task_kinds!r} has no effect"
    if settings.known is not None:
        raise InputError(
            f"{asked} with known=: kinds of tasks are learned, and a given hierarchy is taken as it is. Leave "
            "task_kinds= out, or known=."
        )
    raise InputError(
        f"{asked} without the crossed prior: no other prior has kinds of tasks. The crossed prior needs a column of "
        "actions, coefficients of their own for each action, hyper='flat', and no sampling weights. Leave task_kinds= "
        "out, or change the setting that excludes the crossed prior."
    )


def settings_note(
    hierarchy: Any, moments: Any, settings: Settings, correlation_at_mode: str | None = None
) -> str:
    """Return sentences on settings that a fit did not apply, each with its reason; empty where it applied all.

    Parameters
    ----------
    hierarchy : Hierarchy, CrossedHierarchies or another that was learned or given
    moments : Moments or MomentsInShards
        That it was learned from.
    settings : Settings
    correlation_at_mode : str, optional
        As :func:`mode_because`; None where the correlation within clusters is integrated, or there is none.
    """
    return " ".join(_sentences(hierarchy, moments, settings, correlation_at_mode))


def _sentences(hierarchy: Any, moments: Any, settings: Settings, at_mode: str | None) -> Iterator[str]:
    if settings.known is None and isinstance(hierarchy, CrossedHierarchies | TwoPartHierarchies):
        yield from _mixtures(hierarchy, moments, settings)
    if isinstance(moments, MomentsInShards) and settings.logging == "unknown":
        yield f"The fit did not test whether the incumbent knew something about the tasks: {_SHARDS}."
    if at_mode == "" and uses_choices(hierarchy):
        at_mode = _CHOICES
    elif at_mode == "" and getattr(hierarchy, "mixed_spreads", False):
        at_mode = "tasks have different spreads"
    elif at_mode == "" and getattr(hierarchy, "mixed", False):
        at_mode = "tasks are of several kinds"
    if at_mode:
        yield (
            f"The fit takes the correlation within clusters at its mode: {at_mode}. Intervals leave out its "
            "uncertainty."
        )


def _mixtures(hierarchy: Any, moments: Any, settings: Settings) -> Iterator[str]:
    """Yield sentences on spreads and kinds of tasks that were not looked for."""
    never = _not_sought(hierarchy, moments)
    if len(moments) == 1 or (not never and hierarchy.mixed):
        return
    of_spreads = (never or spreads_out_of_reach(moments)) if settings.spreads == "auto" else ""
    of_kinds = (never or kinds_out_of_reach(moments)) if settings.task_kinds != "one" else ""
    both = bool(of_spreads) and of_spreads == of_kinds
    if of_spreads:
        yield (
            "The fit did not look for tasks in which actions have unusually large effects or none"
            f"{', nor for kinds of tasks' if both else ''}: {of_spreads}. If a few tasks have large effects, claimed "
            "gains are too large: up to 1.6 times the true ones in simulated logs."
        )
    if of_kinds and not both:
        yield f"The fit did not look for kinds of tasks: {of_kinds}."


def _not_sought(hierarchy: Any, moments: Any) -> str:
    """Return why no mixture over tasks is looked for, whatever their number; empty where one is."""
    if isinstance(hierarchy, TwoPartHierarchies):
        return "the likelihood has two parts"
    if isinstance(moments, MomentsInShards):
        return _SHARDS
    if uses_choices(hierarchy):
        return _CHOICES
    return _GROUPS if hierarchy.levels or hierarchy.metadata is not None else ""


def mode_because(
    moments: Any,
    clusters: ClusterTable | ClustersInShards | None,
    task_levels: TaskLevels,
    settings: Settings,
) -> str | None:
    """Return why the correlation within clusters is taken at its mode.

    None where there are no clusters of two rows, or so many that the mode suffices; empty where it is integrated.
    """
    if clusters is None:
        return None
    if isinstance(clusters, ClustersInShards):
        return _SHARDS
    sums = clusters.at(moments)
    if (sums.size <= 1.0).all() or len(sums.size) > MOST_CLUSTERS:
        return None
    reasons = (
        ("the hierarchy is given", settings.known is not None),
        ("the prior is not the crossed one", not moments.per_action),
        (_GROUPS, bool(task_levels.levels()) or task_levels.metadata() is not None),
        ("logging='frozen' uses the choices of the incumbent", settings.logging == "frozen"),
        ("a number of kinds of tasks is set", not isinstance(settings.task_kinds, str)),
        ("rows of one cluster have different features or actions", not integrable(moments, sums)),
    )
    return next((reason for reason, holds in reasons if holds), "")
