"""Learning from the record: running sums over its segments, and a refreshed policy that is judged before it acts.

The sums go through the rows one after the other in the order of the record, also from one refresh to the next. So they
equal those of one pass over all rows to the last bit, wherever the segments begin and end.

With a half-life h a row decided at t weighs 2^((t - t_0) / h), and the total is scaled at the end so that the newest
row weighs 1. The sums are kept in units of a power of two, which changes the exponents of their numbers alone.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hieropo.errors import HieropoError, HieropoWarning, InputError
from hieropo.evaluation.evaluation import Evaluation
from hieropo.features.maps import FeatureMap, merged_map
from hieropo.learners.hieropo import HierOPO
from hieropo.logs.encoding import opened_requests
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.row_sketch import RowSketch
from hieropo.moments.units import one_action
from hieropo.passes.log_moments import LogMoments, has_per_action_sums
from hieropo.passes.summing import sums
from hieropo.passes.worker import PassResult
from hieropo.serve.columns import ELIGIBLE, PROPENSITY, TIME, RecordColumns
from hieropo.serve.settings import Settings

WEIGHT = "record_weight"
_JUDGED = 200_000  # newest rows on which policies are compared


@dataclass(frozen=True, slots=True)
class RunningTotal:
    """Sums over the rows of a record, in units of 2^exponent.

    Parameters
    ----------
    moments : LogMoments
    exponent : int
    last : int
        Time of the newest row in microseconds; 0 without a row.
    """

    moments: LogMoments
    exponent: int = 0
    last: int = 0


def base_moments(learner: HierOPO) -> LogMoments:
    """Return the moments that a fitted learner was learned from; their rows are none of the record's.

    Where rows formed clusters, they are those of correlated rows, and each row of the record is a cluster of its own.
    """
    summed = PassResult(learner.moments_, learner._task_levels, RowSketch.none())
    return LogMoments(learner.features_, replace(learner.roles_, cluster=None), summed)


def without_rows(moments: LogMoments) -> LogMoments:
    """Return the same for no rows."""
    none = moments.moments.select([]) if len(moments) else moments.moments
    return replace(moments, summed=PassResult(none, TaskLevels(moments.roles), RowSketch.none()))


def with_rows(
    total: RunningTotal, rows: pa.Table, columns: RecordColumns, settings: Settings, created: int
) -> RunningTotal:
    """Return the total with further rows of the record, one after the other.

    Raises
    ------
    LogError
        A row cannot be used.
    """
    moments = total.moments
    rows = learnable(rows, columns, moments.features)
    if not rows.num_rows:
        return total
    roles = columns.roles(moments.roles)
    features = _with_actions(moments.features, rows.column(columns.action).unique().to_pylist())
    moments = moments.on(features)
    exponent, last = total.exponent, int(pc.max(rows.column(TIME)).cast(pa.int64()).as_py())
    if settings.half_life is not None:
        rows, exponent = _weighted(rows, settings.half_life, created, total.exponent)
        if exponent != total.exponent:
            moments = moments.scale(2.0 ** (total.exponent - exponent))
        roles = replace(roles, weight=WEIGHT)
    summed = sums(
        opened_requests(rows, features), features, roles, per_action=has_per_action_sums(features),
        start=(0, [moments.summed]),
    )  # fmt: skip
    return RunningTotal(LogMoments(features, roles, summed), exponent, last)


def _weighted(rows: pa.Table, half_life: float, created: int, before: int) -> tuple[pa.Table, int]:
    """Return rows with weights in units of 2^exponent, and the exponent, which only grows."""
    times = rows.column(TIME).cast(pa.int64()).to_numpy()
    exponents = (times - created) / (1e6 * half_life)
    exponent = max(before, math.floor(float(exponents.max())))
    whole = np.floor(exponents)
    weights = np.exp2(exponents - whole) * np.exp2(np.maximum(whole - exponent, -1000.0))
    return rows.append_column(WEIGHT, pa.array(weights)), exponent


def current(total: RunningTotal, settings: Settings, created: int) -> LogMoments:
    """Return the moments in which the newest row weighs 1."""
    if settings.half_life is None or not total.last:
        return total.moments
    exponent = (total.last - created) / (1e6 * settings.half_life)
    return total.moments.scale(2.0 ** (total.exponent - exponent))


def learnable(rows: pa.Table, columns: RecordColumns, features: FeatureMap) -> pa.Table:
    """Return the rows without those of new actions, where features describe actions by given columns.

    Such features have no coefficients for a new action: nothing can be learned of it, and little from it.
    """
    if one_action(features) is not None:
        return rows
    known = pa.array(list(features.actions or ()), rows.schema.field(columns.action).type)
    return rows.filter(pc.is_in(rows.column(columns.action), known))


def _with_actions(features: FeatureMap, actions: Sequence[Any]) -> FeatureMap:
    known = set(features.actions or ())
    new = [action for action in actions if action not in known]
    if not new:
        return features
    more = replace(features, actions=tuple(sorted(new)))  # type: ignore[type-var]  # a Crossed map
    return merged_map(features, more)


def learned(moments: LogMoments, like: HierOPO) -> tuple[HierOPO, list[str]]:
    """Return a learner with the settings of another, fitted to moments, and the warnings of the fit.

    Where the coefficients of the other drift, its rows are in the moments as rows of their end, and the error of the
    drift of its actions stays in the posterior.

    Raises
    ------
    HieropoError
        The moments cannot be learned from.
    """
    params = like.get_params()
    if params.get("known") is None:
        params["features"] = None  # the moments have the features
    if params.get("pessimism") == "cv":
        params["pessimism"] = float(like.policy_.pessimism)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", HieropoWarning)
        learner = type(like)(**params).fit(moments)
        learner._with_drift_of(like)
    return learner, [str(warning.message) for warning in caught]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The comparison of a refreshed policy with the active one.

    Parameters
    ----------
    swap : bool
        The rule of the settings holds.
    reason : str
        Why, with the numbers.
    evaluation : Evaluation or None
    """

    swap: bool
    reason: str
    evaluation: Evaluation | None = None


def judged(learner: HierOPO, active: Any, rows: pa.Table, settings: Settings) -> Judgement:
    """Return the judgement of a refreshed policy on rows that the active one has not seen.

    Parameters
    ----------
    learner : HierOPO
        The refreshed one; its estimates on rows that it learned from are cross-fitted.
    active : path
        Of the active policy.
    rows : pa.Table
        The new rows of the record, of which the newest 200,000 are used.
    settings : Settings
        With the rule.
    """
    rule = settings.swap
    if rule == "never":
        return Judgement(swap=False, reason="The rule is 'never': a refreshed policy waits to be activated.")
    if rule == "always" and settings.max_harm is None:
        return Judgement(swap=True, reason="The rule is 'always'.")
    try:
        evaluation = evaluated(learner, active, rows, settings)
    except HieropoError as error:
        reason = f"The new rows give no doubly robust comparison ({type(error).__name__})."
        return Judgement(swap=False, reason=reason)
    if rule == "always":
        return Judgement(swap=True, reason="The rule is 'always'.", evaluation=evaluation)
    return _by_lead(evaluation, rows.num_rows, settings)


def _by_lead(evaluation: Evaluation, rows: int, settings: Settings) -> Judgement:
    """Return the judgement by the doubly robust lead over the active policy, and by predictive checks."""
    rule = settings.swap
    comparison = next((one for one in evaluation.comparisons if one.name == "active"), None)
    if comparison is None or comparison.withheld is not None:
        why = evaluation.refused if comparison is None else f"{comparison.withheld}."
        return Judgement(swap=False, reason=f"There is no reliable comparison: {why}", evaluation=evaluation)
    holds = bool((comparison.lead_low if rule == "better" else comparison.lead_high) > 0)
    reason = (
        f"Doubly robust lead over the active policy {comparison.lead:.4g} a decision ({comparison.lead_low:.4g} to "
        f"{comparison.lead_high:.4g}) on {rows:,} rows that it has not seen; the rule {rule!r} "
        f"{'holds' if holds else 'does not hold'}."
    )
    kinds = _misfits(evaluation) if settings.checks else ()
    if kinds:
        reason += (
            f" Predictive checks found the new rows at odds with the refreshed policy: {', '.join(kinds)}. `hieropo "
            "evaluate` on the log says where; with checks = false they stop no swap."
        )
    return Judgement(holds and not kinds, reason, evaluation)


def _misfits(evaluation: Evaluation) -> tuple[str, ...]:
    """Return the kinds of misfit that the predictive checks found; none of them names a task."""
    misfits = () if evaluation.checks is None else evaluation.checks.misfits
    return tuple(dict.fromkeys(misfit.kind for misfit in misfits if misfit.finding is not None))


def evaluated(learner: HierOPO, active: Any, rows: pa.Table, settings: Settings) -> Evaluation:
    """Return the evaluation of a learner on rows of the record, compared with the active policy.

    Raises
    ------
    HieropoError
        The rows cannot be evaluated.
    """
    if not settings.explores and float(pc.min(rows.column(PROPENSITY)).as_py()) >= 1.0:
        raise InputError(
            "Every row has propensity 1, so that the log holds no evidence on other actions. Set exploration to "
            "'floor' or 'sampling'."
        )
    newest = rows.slice(max(0, rows.num_rows - _JUDGED))
    if learner.roles_.weight == WEIGHT:
        newest = newest.append_column(WEIGHT, pa.array(np.ones(newest.num_rows)))
    options: dict[str, Any] = {} if settings.max_harm is None else {"max_harm": settings.max_harm}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HieropoWarning)
        return learner.evaluate(
            newest,
            pscore=PROPENSITY,
            eligible=ELIGIBLE,
            time=TIME,
            compare={"active": str(active)},
            randomise=False,
            **options,
        )
