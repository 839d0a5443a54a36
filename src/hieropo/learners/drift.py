"""Drift in a fit: where it is looked for, and the fit to rows as they count at the end of the log."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from hieropo._utils.progress import say
from hieropo.errors import warn
from hieropo.estimation.conditioning import condition_learned
from hieropo.estimation.crossed.drift import Constant, Drift, Still, learn_drift
from hieropo.estimation.crossed.mixture import CrossedHierarchies
from hieropo.estimation.crossed.shapes import Shapes
from hieropo.estimation.crossed.two_part import TwoPartHierarchies
from hieropo.estimation.crossed.walking import WalkErrors, WalkingHierarchies
from hieropo.estimation.learning import Learning, Settings
from hieropo.estimation.sites import SiteRule
from hieropo.features.maps import FeatureMap, action_positions
from hieropo.learners.drift_note import in_common_note
from hieropo.learners.further_reads import FurtherReads
from hieropo.logging_policy.incumbents import uses_choices
from hieropo.moments.statistics import Moments
from hieropo.rows.batches import Roles


class Followed(NamedTuple):
    """A fit, its moments, the drift that was learned, and why none was looked for; "" where it was."""

    learned: Learning
    moments: Any
    drift: Drift | None
    still_because: Still


def followed(
    learned: Learning,
    moments: Any,
    roles: Roles,
    settings: Settings,
    reads: FurtherReads,
    sites: SiteRule | None,
    learn: Callable[[Moments, Shapes | None], Learning],
) -> Followed:
    """Return a fit to rows as they count at the end of the log; the fit as it is where nothing moves.

    Parameters
    ----------
    learned : Learning
        The fit without drift.
    moments : Moments or MomentsInShards
        Of the rows.
    roles : Roles
    settings : Settings
    reads : FurtherReads
    sites : SiteRule or None
        Of a likelihood that is not Gaussian.
    learn : callable
        Returns the fit to other moments, with relative sizes of coefficients where these are known.
    """
    if reads.drift is not None:
        return Followed(with_errors(learned, moments, reads.walk_errors), moments, reads.drift, "")
    still_because = _still_because(roles, learned, settings, reads, sites)
    if still_because or reads.periods is None:
        return Followed(learned, moments, None, still_because)
    periods = reads.periods(moments)
    if periods is None:
        return Followed(learned, moments, None, "times")
    say("Learning how coefficients move in time ...")
    constant = Constant.of(moments, learned.posterior)
    drift, actions = learn_drift(moments, periods, constant)
    if not drift.present:
        return Followed(learned, moments, drift, "")
    if any(drift.in_common):
        warn(in_common_note(drift))
    at_end, errors = constant.at_end(moments, periods, drift, actions)
    first: Any = learned.hierarchy
    if drift.rates and not any(drift.in_common):
        ended = replace(learned, hierarchy=constant.hierarchies_at_end(first, drift, periods.span))
        ended = replace(ended, posterior=condition_learned(at_end, ended.hierarchy, None))
    else:  # W is proportional to M, and so is the covariance of interactions at the end
        ended = learn(at_end, first.shapes if moments.unit_dim > 1 else None)
    return Followed(with_errors(ended, at_end, errors), at_end, drift, "")


def with_errors(learned: Learning, moments: Moments, errors: WalkErrors | None) -> Learning:
    """Return a fit to rows of the end, with the errors of the walks."""
    if errors is None:
        return learned
    assert isinstance(learned.hierarchy, CrossedHierarchies)
    hierarchy = WalkingHierarchies.of(learned.hierarchy, errors.at(moments.keys))
    return replace(learned, hierarchy=hierarchy, posterior=condition_learned(moments, hierarchy, None))


def errors_so_far(hierarchy: Any, before: FeatureMap, features: FeatureMap) -> WalkErrors | None:
    """Return the errors of the walks of a fit to which rows are added, for a map with new actions."""
    if not isinstance(hierarchy, WalkingHierarchies):
        return None
    return hierarchy.errors.with_actions(action_positions(features, before), len(features.actions or ()))


def _still_because(
    roles: Roles, learned: Learning, settings: Settings, reads: FurtherReads, sites: SiteRule | None
) -> Still:
    """Return why coefficients are taken as constant in time, without a look at times; "" where there is no reason."""
    if roles.time is None or settings.drift is None:
        return "not asked"
    hierarchy: Any = learned.hierarchy
    if not isinstance(hierarchy, CrossedHierarchies):
        return "likelihood" if isinstance(hierarchy, TwoPartHierarchies) else "prior"
    levels, metadata = hierarchy.levels, hierarchy.metadata
    reasons: tuple[tuple[Still, bool], ...] = (
        ("choices", uses_choices(hierarchy)),
        ("groups", bool(levels) or metadata is not None),
        ("clusters", reads.clusters is not None),
        ("likelihood", sites is not None),
        ("precision", roles.precision is not None),
        ("moments", reads.periods is None),
    )
    return next((word for word, holds in reasons if holds), "")


def drift_of_first_rows(drift: Drift | None) -> Drift | None:
    """Return the drift of a fit to which rows are added, with a warning; None where nothing moves."""
    if drift is None or not drift.present:
        return None
    if not drift.moves:
        warn(
            "In the first log rows that are close in time have alike rewards. partial_fit takes the new rows as "
            "independent of each other. If they are alike too, fit the rows of both logs together."
        )
        return drift
    warn(
        "The coefficients of this policy drift, and partial_fit does not know the times of the rows of its first log: "
        "it takes the new rows as rows of the end of that log. Where much time has passed since then, fit the rows of "
        "both logs together."
    )
    return drift
