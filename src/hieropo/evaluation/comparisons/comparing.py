"""Importance-weighted values of policies, which do not rest on the model, and their paired differences.

With q, p and the rows of the doubly robust estimate, a row adds q(x, pi(x)) + 1{pi(x) = a} (r - q(x, a)) / p to the
value of a policy pi, and r where pi keeps the incumbent. q was fitted without the row. So the difference of two
policies is the mean of a difference row by row, whose variance is far below that of either value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo._utils.brief import brief
from hieropo._utils.packed import packed_size, unpack
from hieropo._utils.text import Report
from hieropo._utils.ties import reaches
from hieropo.evaluation.comparisons.crossfit import Judge
from hieropo.evaluation.comparisons.rivals import Rival
from hieropo.evaluation.passes.first_pass import FOLDS, fold_of
from hieropo.evaluation.passes.judging import ActionFeatures, Rows
from hieropo.evaluation.passes.propensity import Propensity
from hieropo.moments.accumulation import Accumulator
from hieropo.moments.clusters import ClusterTotals
from hieropo.ope.joined_rows import JoinedRows, add_in_turn
from hieropo.ope.off_policy import OffPolicySums
from hieropo.ope.value_estimates import FEW_EFFECTIVE, Ratios, Sample

_GROUPS = 101


class RowPredictions(NamedTuple):
    """Columns of some rows from which importance-weighted differences are computed.

    Parameters
    ----------
    fold, chosen : (n,) int
        The judge of each row, and the action that it chooses.
    propensity, of_logged, of_chosen : (n,) array
        Propensity of the logged action; predicted rewards of the logged and of the chosen action.
    own : (n, p) array or None
        Features that all actions have in the contexts; None where they depend on the action.
    """

    fold: Codes
    chosen: Codes
    propensity: Array
    of_logged: Array
    of_chosen: Array
    own: Array | None


@dataclass(frozen=True, slots=True)
class Comparison(Report):
    """Another policy compared with the evaluated one, by doubly robust estimates on the same rows.

    Attributes
    ----------
    name : str
    value : float
        In reward units.
    gain, gain_se, gain_low, gain_high : float
        Its difference to the incumbent.
    lead, lead_se, lead_low, lead_high : float
        The evaluated policy less this one, row by row.
    ess : float
        Effective sample size.
    note : str
        Origin of the policy.
    withheld : str or None
        Reason why the figures are not reliable.
    """

    name: str
    value: float
    gain: float
    gain_se: float
    gain_low: float
    gain_high: float
    lead: float
    lead_se: float
    lead_low: float
    lead_high: float
    ess: float
    note: str
    withheld: str | None = None

    __repr__ = brief


class Comparing:
    """Sums rows for other policies, batch by batch.

    Parameters
    ----------
    rivals : mapping of names to Rival
    notes : mapping of names to str
    low : float
        The least reward, which is subtracted before rewards are summed.
    seed : int
        Of the folds.
    expected : int
        Rows to come at least, where that is known.
    """

    def __init__(
        self, rivals: dict[str, Rival], notes: dict[str, str], low: float, seed: int, expected: int = 0
    ) -> None:
        self._rivals, self._notes, self._low, self._seed = rivals, notes, low, seed
        self._columns = 2 * len(rivals) + 2  # of the policy, values and weights of the others, one
        self._total = Accumulator(self._columns, expected=expected)
        self._groups = np.zeros((_GROUPS, self._columns + 2))
        self._clusters: ClusterTotals | None = None
        self._dependent: ClusterTotals | None = None
        self._joined: dict[tuple[int, ...], JoinedRows] = {}  # for the policies of which folds differ

    def add(
        self,
        rows: Rows,
        predictions: RowPredictions,
        judges: Sequence[Judge],
        dependent: Mask | None = None,
    ) -> None:
        """Add rows with their predictions; ``dependent`` as :meth:`OffPolicySums.add`, for the evaluated policy."""
        batch, n, own = rows.batch, rows.codes.size, predictions.own
        rival_fold = fold_of(batch, FOLDS, self._seed)
        correction = (batch.reward - predictions.of_logged) / predictions.propensity
        z = np.ones((n, self._columns + 2))
        choices: list[Codes] = []
        value = predictions.of_chosen + np.where(predictions.chosen == rows.codes, correction, 0.0)
        z[:, 0] = np.where(rows.kept, batch.reward, value) - self._low
        for c, rival in enumerate(self._rivals.values()):
            index = rival.choose(rows, rival_fold)
            choices.append(index)
            same, stays = index == rows.codes, index < 0
            of_chosen = np.zeros(n)
            for k, judge in enumerate(judges):
                part = np.flatnonzero(~stays & (predictions.fold == k))
                if part.size:
                    own_of_part = None if own is None else own[part]
                    of_chosen[part] = judge.predict(
                        rows.place[part], batch.context[part], index[part], own_of_part
                    )
            value = np.where(stays, batch.reward, of_chosen + np.where(same, correction, 0.0))
            z[:, 1 + 2 * c] = value - self._low
            z[:, 2 + 2 * c] = np.where(stays, 1.0, np.where(same, 1.0 / predictions.propensity, 0.0))
        z[:, -2] = batch.reward - self._low
        if batch.sampling_weight is not None:
            z[:, :-1] *= np.asarray(batch.sampling_weight)[:, None]
        counts = batch.weight
        self._total.add(rows.place, np.ascontiguousarray(z[:, :-2]), z[:, -2], counts)
        if dependent is not None:
            self._add_dependent(rows, z, self._differing(rows, dependent, choices))
        if counts is not None:
            z = z * np.asarray(counts)[:, None]
        add_in_turn(self._groups, batch.first_row, z)
        if batch.cluster is not None:
            self._clusters = self._clusters or ClusterTotals(z.shape[1])
            self._clusters.add(rows.place, batch.cluster, z)

    def _differing(self, rows: Rows, dependent: Mask, choices: list[Codes]) -> Mask:
        """Return the rows (n, 1 + R) in which folds of the policy, and of each rival of these choices, differ."""
        of_rivals = map(_differs_by_fold, self._rivals.values(), repeat(rows), choices)
        return np.column_stack([dependent, *of_rivals])

    def _add_dependent(self, rows: Rows, z: Array, differing: Mask) -> None:
        """Add rows (n, k) to the units of the gain of each rival, and of the lead of the policy over it.

        Of clusters, the rows in which folds of the policy, or of a rival, differ are counted.
        """
        batch, columns = rows.batch, differing.astype(np.float64)
        if batch.cluster is not None:
            self._dependent = self._dependent or ClusterTotals(columns.shape[1])
            self._dependent.add(rows.place, batch.cluster, columns)
            return
        counts = None if batch.weight is None else np.asarray(batch.weight)
        for c in range(len(self._rivals)):
            for policies in ((1 + c,), (0, 1 + c)):
                joined = self._joined.setdefault(policies, JoinedRows(z.shape[1]))
                joined.add(rows.place, z, counts, np.asarray(differing[:, list(policies)].any(axis=1)))

    def comparisons(self, level: float, rng: np.random.Generator) -> tuple[Comparison, ...]:
        """Return the figures of all policies after the last row."""
        moments, k = self._total.moments(), self._columns + 2
        sums = np.asarray(moments.sums)
        clusters = None if self._clusters is None else self._clusters.sums()
        squares = unpack(sums.sum(axis=0), k) if clusters is None else clusters.squares
        dependent = None
        if self._dependent is not None and clusters is not None and not clusters.spans_units:
            dependent = self._dependent.sums().sums > 0.0

        def sample_of(*policies: int) -> Sample:
            """Return the sums, the rows or clusters of a task in which folds of one of these policies differ as one."""
            if policies in self._joined:
                units = self._joined[policies].units()
                return Sample(sums[:, packed_size(k - 1) :], squares, self._groups, rng, joined=units)
            joined, of_joined = clusters, squares
            if clusters is not None and dependent is not None:
                joined = clusters.joined(np.asarray(dependent[:, policies].any(axis=1)))
                of_joined = joined.squares
            return Sample(sums[:, packed_size(k - 1) :], of_joined, self._groups, rng, joined)

        sample = sample_of()
        constant = np.eye(k)[k - 3]
        comparisons = []
        for c, name in enumerate(self._rivals):
            value, weight = 1 + 2 * c, 2 + 2 * c

            def mean(*columns: int) -> Ratios:
                form = np.eye(k)[columns[0]] - (np.eye(k)[columns[1]] if len(columns) > 1 else 0.0)
                return Ratios(form[None], constant[None])

            of_gain, of_lead = sample, sample
            if dependent is not None or self._joined:
                of_gain, of_lead = sample_of(1 + c), sample_of(0, 1 + c)
            gain = of_gain.interval(mean(value, k - 2), level)
            lead = of_lead.interval(mean(0, value), level)
            ess = float(sample.total[weight]) ** 2 / max(float(squares[weight, weight]), 1e-300)
            few = None if reaches(ess, FEW_EFFECTIVE) else _too_few(ess)
            comparisons.append(
                Comparison(
                    name, self._low + float(mean(value).value(sample.total)), gain.value, gain.se, gain.low, gain.high,
                    lead.value, lead.se, lead.low, lead.high, ess, self._notes[name], few,
                )
            )  # fmt: skip
        return tuple(comparisons)


def _too_few(ess: float) -> str:
    return f"the effective sample size is {ess:.1f}, below {FEW_EFFECTIVE:g}: too few rows hold an action of the policy"


def _differs_by_fold(rival: Rival, rows: Rows, index: Codes) -> Mask:
    """Return the mask of the rows (n,) in which a policy of another fold does not choose ``index`` (n,), an action."""
    differs = np.zeros(index.size, dtype=np.bool_)
    for fold in range(FOLDS):
        differs |= rival.choose(rows, np.full(index.size, fold)) != index
    return differs & (index >= 0)


class Weighing:
    """Passes rows of a log to estimators, with predictions that were fitted without the row that they correct.

    Parameters
    ----------
    sums : OffPolicySums
    propensity : callable
        Batch, tasks, logged actions and eligible actions to the propensities of the logged actions, (n,).
    judges : sequence of Judge
        One, learned from other rows; or one for each fold, learned without it, which then replaces the policy.
    seed : int
        Of the folds.
    missing : sequence of int
        Codes of actions that the judges lack; the rows in which the policy takes them are counted.
    shift : ActionFeatures, optional
        Takes the features of the judges' actions less those of the policy's, in rows in which they differ.
    comparing : Comparing, optional
        Takes the same rows for other policies.
    few_tasks : bool
        True where rows, or clusters, are the independent units. Rows of a task that are judged otherwise without
        another fold depend on each other, and are marked.
    """

    def __init__(
        self,
        sums: OffPolicySums,
        propensity: Propensity,
        judges: Sequence[Judge],
        seed: int,
        missing: Sequence[int],
        shift: ActionFeatures | None = None,
        comparing: Comparing | None = None,
        *,
        few_tasks: bool = False,
    ) -> None:
        self._few_tasks = few_tasks
        self._sums, self._propensity, self._judges, self._seed = sums, propensity, judges, seed
        self._missing, self._tasks_of_missing = missing, np.zeros(0, dtype=np.int64)
        self._shift, self._comparing = shift, comparing

    def add(self, rows: Rows) -> None:
        """Add a batch of rows."""
        batch, n = rows.batch, len(rows.batch)
        if self._missing:
            of_missing = np.isin(rows.index, self._missing)
            self._tasks_of_missing = np.append(self._tasks_of_missing, rows.place[of_missing])
        propensity = self._propensity(batch, rows.place, rows.codes, rows.mask)
        n_judges = len(self._judges)
        fold = fold_of(batch, n_judges, self._seed) if n_judges > 1 else np.zeros(n, dtype=np.int64)
        index, of_logged, of_chosen = rows.index.copy(), np.zeros(n), np.zeros(n)
        own = self._judges[0].own_features(batch.context)
        for k, judge in enumerate(self._judges):
            part = np.flatnonzero(fold == k)
            if not part.size:
                continue
            context, codes = batch.context[part], rows.codes[part]
            if n_judges > 1:
                allowed = None if rows.mask is None else rows.mask[part]
                index[part] = judge.choose(batch.task[part], context, allowed)
            own_of_part = None if own is None else own[part]
            of_logged[part] = judge.predict(rows.place[part], context, codes, own_of_part)
            of_chosen[part] = judge.predict(rows.place[part], context, index[part], own_of_part)
        if self._shift is not None:
            differs = np.flatnonzero(index != rows.index)
            place, context = rows.place[differs], batch.context[differs]
            weight = batch.weights.some(differs).counts(differs.size)
            self._shift.add(place, context, index[differs], weight)
            self._shift.add(place, context, rows.index[differs], -weight)
        dependent = self._dependent(rows, index) if self._few_tasks else None
        if self._comparing is not None:
            predictions = RowPredictions(fold, index, propensity, of_logged, of_chosen, own)
            self._comparing.add(rows, predictions, self._judges, dependent)
        same = (index == rows.codes).astype(np.float64)
        target = np.where(rows.kept, propensity, same)  # a kept incumbent repeats its action
        self._sums.add(
            rows.place,
            batch.reward,
            propensity,
            target,
            of_logged,
            of_chosen,
            batch.weight,
            batch.sampling_weight,
            batch.cluster,
            dependent,
        )

    def _dependent(self, rows: Rows, index: Codes) -> Mask:
        """Return the mask of the rows (n,) in which a judge does not choose ``index`` (n,); none with one judge."""
        differs = np.zeros(index.size, dtype=np.bool_)
        for judge in self._judges if len(self._judges) > 1 else ():
            differs |= judge.choose(rows.batch.task, rows.batch.context, rows.mask) != index
        return differs & ~rows.kept

    def rows_of_missing(self, tasks: int) -> Codes:
        """Return the rows of each task (m,) in which the policy takes an action that the judges lack."""
        return np.bincount(self._tasks_of_missing, minlength=tasks)
