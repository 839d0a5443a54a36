"""Findings of a fit about its log: rules of the doctor on the statistics of its pass, and on its moments."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.packed import unpack
from hieropo.doctor.collecting import LogStatistics
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
from hieropo.passes.identifiability import gram_blocks
from hieropo.passes.rejection import constant_reward
from hieropo.rows.batches import Roles


def of_moments(
    moments: Moments,
    features: FeatureMap,
    roles: Roles,
    *,
    learning: bool,
    listed: bool,
    varied: bool,
    task_note: str | None = None,
) -> Iterator[Finding]:
    """Yield findings about moments.

    Parameters
    ----------
    moments : Moments
    features : FeatureMap
    roles : Roles
    learning : bool
        True where a hierarchy is learned from them.
    listed : bool
        True where the actions are those of the log, not of a feature map that the user gave.
    varied : bool
        True where the pass saw different rewards; sums cannot tell where rewards are far from 0.
    task_note : str, optional
        The reason why the column of tasks is text, of the source.
    """
    if learning and not varied:
        yield from of_total(moments, roles)
    if learning:
        rows = moments.rows.reshape(len(moments), -1).sum(axis=1)
        findings = rules_tasks.tasks(rows, moments.tasks, roles, task_note)
        yield from (each for each in findings if each.kind != "one task")  # learning warns of that itself
    gram = _contexts(moments, features)
    if gram is not None:
        yield from rules_features.alike(features.columns, gram)
    if listed and roles.action is not None and features.actions is not None:
        yield from rules_tasks.few_or_many_actions(roles.action, features.actions, moments.n_rows)


def of_total(moments: Moments, roles: Roles) -> Iterator[Finding]:
    """Yield findings that follow from the sums over all tasks."""
    constant = constant_reward(moments)
    if constant is not None and moments.n_rows > 1:
        yield rules_values.constant(roles.reward, constant)


def _contexts(moments: Moments, features: FeatureMap) -> NDArray[np.float64] | None:
    """Return the sum of (1, x)(1, x)' over all rows; None where the features do not contain (1, x)."""
    d = moments.unit_dim
    if getattr(features, "reference_column", None) is not None:
        return None  # columns are measured relative to the reference column
    if isinstance(features, Columns):
        total = unpack(moments.unit_sums.sum(axis=0), d + 2)
        order = [d + 1, *range(d)]
        return np.asarray(total[np.ix_(order, order)])
    if not isinstance(features, Crossed) or features.table is not None or not features.intercept:
        return None
    if moments.per_action:
        return np.asarray(unpack(moments.unit_sums.sum(axis=0), d + 2)[:d, :d])
    return np.asarray(gram_blocks(moments, features).sum(axis=0))


def of_rows(stats: LogStatistics, coefficients: int) -> Iterator[Finding]:
    """Yield findings about rows; findings about counts only where all rows were examined.

    Parameters
    ----------
    seen : LogStatistics
    coefficients : int
        Coefficients of each action that only its own rows inform; 0 where other rows inform them too.
    """
    if not stats.usable:
        return
    yield from rules_values.sign(stats)
    yield from rules_values.outlying(stats)
    yield from rules_values.averaged(stats)
    if stats.looked_at == stats.all_rows:
        yield from rules_values.variation(stats)
        yield from rules_tasks.chosen(stats)
        yield from of_counts(stats.cells.actions, stats.actions.values, stats.roles, coefficients)
    yield from rules_time.repeats(stats)
    if stats.sampled:
        yield from rules_values.kept_by_chance(stats)
        return
    yield from rules_propensities.propensities(stats)
    yield from rules_incumbent.reacting(stats, rules_incumbent.reaction_of(stats))
    yield from rules_time.drift(stats)
    yield from rules_time.times(stats)


def of_counts(
    rows: NDArray[np.int64], actions: Sequence[Any] | NDArray[Any], roles: Roles, coefficients: int
) -> Iterator[Finding]:
    """Yield findings about the rows (K,) of actions; ``coefficients`` as in :func:`of_rows`."""
    if coefficients:
        yield from rules_tasks.rare_actions(roles.action, actions, rows, coefficients)


def of_learning(
    moments: Moments, features: FeatureMap, roles: Roles, learning: Learning, stats: LogStatistics | None
) -> Iterator[Finding]:
    """Yield findings about the incumbent that need a learned hierarchy."""
    if moments.sampled:
        return
    if moments.per_action:
        assert not isinstance(learning.hierarchy, Hierarchy)
        z = crossed_knowledge(learning.posterior.moments, features, learning.hierarchy.central())
    else:
        z = None if learning.estimate is None else knowledge(moments, features, learning.estimate.hierarchy)
    if z is None or abs(z) <= KNEW:
        return
    if stats is None:
        yield from rules_incumbent.knowing(z, roles, None, "moments do not record the order of rows")
    else:
        yield from rules_incumbent.knowing(
            z, roles, rules_incumbent.reaction_of(stats), rules_incumbent.unordered(stats)
        )


def raise_or_warn(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Raise the first finding that stops learning, warn of those that limit conclusions, and return all.

    Raises
    ------
    LogError
        A finding stops learning.

    Warns
    -----
    HieropoWarning
        A finding limits the conclusions.
    """
    found = tuple(findings)
    for finding in found:
        if finding.severity == "stops":
            raise LogError(str(finding))
    for finding in found:
        if finding.severity == "limits" and not finding.judging:
            warn(str(finding))
    return found
