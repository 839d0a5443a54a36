"""Findings of a fit about its log: the rules of the doctor, on the rows of its pass and on the moments that it made."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.packed import unpack
from hieropo.doctor.collecting import Collected
from hieropo.doctor.examination import Finding
from hieropo.doctor.rules import features as rules_features
from hieropo.doctor.rules import incumbent as rules_incumbent
from hieropo.doctor.rules import propensities as rules_propensities
from hieropo.doctor.rules import tasks as rules_tasks
from hieropo.doctor.rules import time as rules_time
from hieropo.doctor.rules import values as rules_values
from hieropo.errors import LogError, warn
from hieropo.estimation.learning import Learning
from hieropo.features.maps import Columns, FeatureMap
from hieropo.features.per_action import Crossed
from hieropo.logging_policy.incumbents import KNEW, crossed_knowledge, knowledge
from hieropo.model.hierarchy import Hierarchy
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitMoments
from hieropo.passes.identifiability import gram_blocks
from hieropo.passes.rejection import constant_reward
from hieropo.rows.batches import Roles

AnyMoments = Moments | UnitMoments


def of_moments(
    moments: AnyMoments, features: FeatureMap, roles: Roles, *, learning: bool, listed: bool, varied: bool
) -> Iterator[Finding]:
    """Yield findings about moments.

    Parameters
    ----------
    moments : Moments or UnitMoments
    features : FeatureMap
    roles : Roles
    learning : bool
        Whether a hierarchy is learned from them.
    listed : bool
        Whether the actions are those of the log, not of a map that was handed in.
    varied : bool
        Whether rewards were seen to differ, which sums do not tell where they lie far from 0.
    """
    units = moments.units if isinstance(moments, UnitMoments) else moments
    value = None if varied else constant_reward(units)
    if value is not None and learning and moments.n_rows > 1:
        yield rules_values.constant(roles.reward, value)
    if learning:
        rows = moments.rows.reshape(len(moments), -1).sum(axis=1)
        told = rules_tasks.tasks(rows, moments.tasks, roles.task)
        yield from (each for each in told if each.kind != "one task")  # which learning a hierarchy warns of
    gram = _contexts(moments, features)
    if gram is not None:
        yield from rules_features.alike(features.columns, gram)
    if listed and roles.action is not None and features.actions is not None:
        yield from rules_tasks.few_or_many_actions(roles.action, features.actions, moments.n_rows)


def _contexts(moments: AnyMoments, features: FeatureMap) -> NDArray[np.float64] | None:
    """Sums of (1, x)(1, x)' over all rows; None where the features do not hold them."""
    units = moments.units if isinstance(moments, UnitMoments) else moments
    d = units.dim
    if getattr(features, "pivot", None) is not None:
        return None  # columns are multiples of one less than themselves
    if isinstance(features, Columns):
        total = unpack(units.sums.sum(axis=0), d + 2)
        order = [d + 1, *range(d)]
        return np.asarray(total[np.ix_(order, order)])
    if not isinstance(features, Crossed) or features.table is not None or not features.intercept:
        return None
    if units is not moments:
        return np.asarray(unpack(units.sums.sum(axis=0), d + 2)[:d, :d])
    return np.asarray(gram_blocks(units, features).sum(axis=0))


def of_rows(seen: Collected, coefficients: int) -> Iterator[Finding]:
    """Yield findings about rows; about counts only where all rows were seen.

    Parameters
    ----------
    seen : Collected
    coefficients : int
        Of each action, where nothing but its own rows tells them; else 0.
    """
    if not seen.usable:
        return
    yield from rules_values.sign(seen)
    yield from rules_values.outlying(seen)
    if seen.looked_at == seen.all_rows:
        yield from rules_values.variation(seen)
        yield from rules_tasks.chosen(seen)
        yield from of_counts(seen.cells.actions, seen.actions.values, seen.roles, coefficients)
    yield from rules_time.repeats(seen)
    if seen.sampled:
        yield from rules_values.kept_by_chance(seen)
        return
    yield from rules_propensities.propensities(seen)
    yield from rules_incumbent.reacting(seen, rules_incumbent.reaction_of(seen))
    yield from rules_time.drift(seen)
    yield from rules_time.times(seen)


def of_counts(
    rows: NDArray[np.int64], actions: Sequence[Any] | NDArray[Any], roles: Roles, coefficients: int
) -> Iterator[Finding]:
    """Yield findings about the rows of each action (K,) that alone tell its ``coefficients``; 0 where others do too."""
    if coefficients:
        yield from rules_tasks.rare_actions(roles.action, actions, rows, coefficients)


def of_learning(
    moments: AnyMoments, features: FeatureMap, roles: Roles, found: Learning, seen: Collected | None
) -> Iterator[Finding]:
    """Yield findings of a learned hierarchy about the policy that made the log."""
    if moments.sampled:
        return
    if isinstance(moments, UnitMoments):
        assert not isinstance(found.hierarchy, Hierarchy)
        z = crossed_knowledge(moments, features, found.hierarchy.central())
    else:
        z = None if found.estimate is None else knowledge(moments, features, found.estimate.hierarchy)
    if z is None or abs(z) <= KNEW:
        return
    if seen is None:
        yield from rules_incumbent.knowing(z, roles, None, "moments do not hold the order of rows")
    else:
        yield from rules_incumbent.knowing(
            z, roles, rules_incumbent.reaction_of(seen), rules_incumbent.unordered(seen)
        )


def raise_or_warn(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Raise for the first that stops learning, warn of those that limit it, and return all.

    Raises
    ------
    LogError
        Something stops learning.

    Warns
    -----
    HieropoWarning
        Something limits what may be concluded from a policy that is learned.
    """
    every = tuple(findings)
    for each in every:
        if each.severity == "stops":
            raise LogError(str(each))
    for each in every:
        if each.severity == "limits" and not each.judging:
            warn(str(each))
    return every
