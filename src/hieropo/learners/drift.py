"""Drift in a fit: where it is looked for, and the fit to rows as they count at the end of the log."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hieropo._utils.progress import say
from hieropo.errors import warn
from hieropo.estimation.crossed.drift import Constant, Drift, Still, learn_drift
from hieropo.estimation.crossed.mixture import CrossedHierarchies
from hieropo.estimation.crossed.two_part import TwoPartHierarchies
from hieropo.estimation.learning import Learning, Settings
from hieropo.estimation.sites import SiteRule
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
    learn: Callable[[Moments], Learning],
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
        Returns the fit to other moments.
    """
    if reads.drift is not None:
        return Followed(learned, moments, reads.drift, "")
    still_because = _still_because(roles, learned, settings, reads, sites)
    if still_because or reads.periods is None:
        return Followed(learned, moments, None, still_because)
    periods = reads.periods(moments)
    if periods is None:
        return Followed(learned, moments, None, "times")
    say("Learning how coefficients move in time ...")
    constant = Constant.of(moments, learned.posterior)
    drift = learn_drift(moments, periods, constant)
    if not drift.present:
        return Followed(learned, moments, drift, "")
    at_end = constant.at_end(moments, periods, drift)
    return Followed(learn(at_end), at_end, drift, "")


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
    warn(
        "The coefficients of this policy drift, and partial_fit does not know the times of the rows of its first log: "
        "it takes the new rows as rows of the end of that log. Where much time has passed since then, fit the rows of "
        "both logs together."
    )
    return drift
