"""Policies that an evaluation compares with: plain ones learned from the log, and those that the user names."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import unpack
from hieropo._utils.ties import first_largest
from hieropo.decisions.requests import read_requests
from hieropo.errors import InputError, SchemaError
from hieropo.evaluation.passes.first_pass import FOLDS, RowSample
from hieropo.evaluation.passes.judging import Predictions, Rows
from hieropo.features.maps import FeatureMap
from hieropo.logs.opening import open_log
from hieropo.moments.statistics import Moments
from hieropo.moments.units import one_action
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.batches import Roles
from hieropo.rows.ids import plain
from hieropo.rows.keys import Keys
from hieropo.storage.load import load_policy

_PIECE = 2048  # tasks at once
MAX_FEATURES = 4e8  # of all candidates in all rows
MAX_WORK = 2e9  # multiplications that regressions of all tasks may take
_NOTHING = 1e-12


@dataclass(frozen=True, eq=False)
class Blocks:
    """Sums over the rows of each task, by actions where these have coefficients of their own (B = K), else B = 1.

    Parameters
    ----------
    gram, cross : (m, B, p, p), (m, B, p) array
        Sums of w phi phi', and of w phi r.
    weight, rewards : (m,) array
        Sums of w, and of w r.
    n_rows : float
        Rows of all tasks.
    offset : (B, p) array
        Coefficients of a prediction that was subtracted from r.
    intercept : bool
        True where the first feature is 1.
    """

    gram: Array
    cross: Array
    weight: Array
    rewards: Array
    n_rows: float
    offset: Array
    intercept: bool


def work_of(features: FeatureMap, tasks: int) -> float:
    """Return the approximate number of multiplications of :func:`ridge` for all folds."""
    b, p = _shape(features)
    return float(FOLDS * tasks * b * p**3)


def _shape(features: FeatureMap) -> tuple[int, int]:
    action_map = one_action(features)
    return (1, features.dim) if action_map is None else (len(features.actions or ()), action_map.dim)


def blocks_of(moments: Moments, features: FeatureMap, *, pooled: bool = False) -> Blocks:
    """Return the sums of each task of some moments, or of all tasks together."""
    b, p = _shape(features)
    action_map, sums = one_action(features), np.asarray(moments.sums)
    if pooled:
        sums = sums.sum(axis=0, keepdims=True)
    m = len(sums)
    gram, cross, last = np.empty((m, b, p, p)), np.empty((m, b, p)), np.empty((m, 2))
    for start in range(0, m, _PIECE):
        part = slice(start, start + _PIECE)
        if moments.per_action:
            units = unpack(sums[part], p + 2)
            gram[part], cross[part] = units[..., :p, :p], units[..., :p, p]
            last[part] = units[..., p:, p + 1].sum(axis=1)
            continue
        d, block = moments.dim, np.arange(b)
        matrices = unpack(sums[part], d + 2)
        blocks = matrices[:, :d, :d].reshape(-1, b, p, b, p)
        gram[part] = blocks[:, block, :, block, :].swapaxes(0, 1)
        cross[part], last[part] = matrices[:, :d, d].reshape(-1, b, p), matrices[:, d:, d + 1]
    offset = np.zeros((b, p)) if moments.offset is None else moments.offset.reshape(b, p)
    count = float(moments.n_rows)
    return Blocks(
        gram, cross, last[:, 1], last[:, 0], count, offset, action_map is not None and action_map.intercept
    )


def ridge(blocks: Blocks) -> Array:
    """Return the coefficients (m, B, p) of a ridge regression of each task by itself.

    The penalty has the weight of one row; it shrinks the predictions of every action to the mean reward of the task.
    Of sums over all tasks it is the pooled regression.
    """
    p = blocks.gram.shape[-1]
    size = np.einsum("sbjj->j", blocks.gram) / max(blocks.n_rows, 1.0)
    penalty = np.where(size > _NOTHING, size, 1.0)
    target = np.zeros(blocks.cross.shape)
    if blocks.intercept:
        target[:, :, 0] = (blocks.rewards / np.where(blocks.weight > 0, blocks.weight, 1.0))[:, None]
    left = blocks.gram + penalty * np.eye(p)
    right = blocks.cross + penalty * target
    return np.asarray(np.linalg.solve(left, right[..., None])[..., 0] + blocks.offset)


def action_scores(sample: RowSample, propensity: Array, n_actions: int) -> Array:
    """Return the importance-weighted mean reward (folds, K) of each action in the rows outside each fold.

    An action without such rows gets -inf.
    """
    sums = np.zeros((2, FOLDS, n_actions))
    weight = sample.weight / propensity
    for total, values in zip(sums, (weight, weight * sample.reward), strict=True):
        np.add.at(total, (sample.fold, sample.action), values)
    weights, rewards = sums.sum(axis=1, keepdims=True) - sums
    has_rows = weights > _NOTHING * max(float(weight.sum()), 1.0)
    return np.asarray(np.where(has_rows, rewards / np.where(has_rows, weights, 1.0), -np.inf))


def best(scores: Array, mask: NDArray[np.bool_] | None) -> Codes:
    """Return the eligible action (n,) with the largest score (n, K); the first eligible one where none has a score."""
    if mask is not None:
        scores = np.where(mask, np.maximum(scores, -np.finfo(np.float64).max), -np.inf)
    return first_largest(scores)


INCUMBENT = -1  # in place of an action: the incumbent chooses
ONE, POOLED, SEPARATE = USUAL = ("one action for all", "pooled", "separate")
_BLOCK = 2**20  # features of candidates that are made at once


class Rival(Protocol):
    """A policy to compare with, which chooses an action in each row."""

    def choose(self, rows: Rows, fold: Codes) -> Codes:
        """Return the action (n,) in each row of these folds (n,), or -1 where the incumbent chooses."""


@dataclass(frozen=True, eq=False)
class OneAction:
    """The eligible action with the largest mean reward in the other folds.

    Parameters
    ----------
    scores : (folds, K) array
    """

    scores: Array

    def choose(self, rows: Rows, fold: Codes) -> Codes:
        """Return the action in each row."""
        return best(self.scores[fold], rows.mask)


@dataclass(frozen=True, eq=False)
class Regressions:
    """The action with the largest prediction, by coefficients of each fold.

    Parameters
    ----------
    features : FeatureMap
    tables : list of (m or 1, d) array
        One, or one for each fold.
    table_rows : list of (tasks of the log,) int
        Row of each task in the tables.
    """

    features: FeatureMap
    tables: list[Array]
    table_rows: list[Codes]

    def choose(self, rows: Rows, fold: Codes) -> Codes:
        """Return the action in each row."""
        actions = np.empty(rows.codes.size, dtype=np.int64)
        single = len(self.tables) == 1
        for k, (table, table_rows) in enumerate(zip(self.tables, self.table_rows, strict=True)):
            in_fold = np.arange(fold.size) if single else np.flatnonzero(fold == k)
            step = max(1, _BLOCK // self.features.dim)
            for start in range(0, in_fold.size, step):
                part = in_fold[start : start + step]
                scores = self._scores(table, table_rows[rows.place[part]], rows.batch.context[part])
                actions[part] = best(scores, None if rows.mask is None else rows.mask[part])
        return actions

    def _scores(self, table: Array, table_row: Codes, context: Array) -> Array:
        action_map, width = one_action(self.features), len(self.features.actions or ())
        if action_map is None:
            predictions = Predictions(table, self.features)
            codes = [np.full(table_row.size, k) for k in range(width)]
            return np.stack([predictions.of(table_row, context, code) for code in codes], axis=1)
        phi = action_map.phi(context, np.zeros(table_row.size, dtype=np.int64))
        coefficients = table.reshape(len(table), width, -1)
        if len(table) == 1:
            return np.asarray(phi @ coefficients[0].T)
        return np.asarray(np.einsum("np,nkp->nk", phi, coefficients[table_row]))


@dataclass(frozen=True, eq=False)
class ActionTable:
    """An action for each task; the incumbent chooses in tasks that have none, and where the action is not eligible.

    Parameters
    ----------
    codes : (m,) int
        For the tasks of the log; -1 for none.
    """

    codes: Codes

    def choose(self, rows: Rows, fold: Codes) -> Codes:  # noqa: ARG002  # the protocol's signature
        """Return the action in each row."""
        actions = self.codes[rows.place]
        if rows.mask is None:
            return actions
        can_act = (actions >= 0) & rows.mask[np.arange(actions.size), np.maximum(actions, 0)]
        return np.where(can_act, actions, INCUMBENT)


@dataclass(frozen=True, eq=False)
class PolicyRival:
    """A policy that the user names, unchanged.

    Parameters
    ----------
    policy : LCBPolicy or GatedPolicy
    columns : (c,) int
        Its context columns among those of the log.
    codes : (K',) int
        Its actions among those of the policy that is evaluated.
    """

    policy: LCBPolicy | GatedPolicy
    columns: Codes
    codes: Codes

    def choose(self, rows: Rows, fold: Codes) -> Codes:  # noqa: ARG002  # the protocol's signature
        """Return the action in each row; -1 where the gate keeps the incumbent, or none of its actions is eligible."""
        batch = rows.batch
        actions = np.full(rows.codes.size, INCUMBENT)
        mask = None if rows.mask is None else rows.mask[:, self.codes]
        can_act = np.arange(actions.size) if mask is None else np.flatnonzero(mask.any(axis=1))
        if can_act.size:
            allowed = None if mask is None else mask[can_act]
            context = batch.context[can_act][:, self.columns]
            index = self.policy.choose_many(batch.task[can_act], context, eligible=allowed).index[:, 0]
            actions[can_act] = np.where(index >= 0, self.codes[np.maximum(index, 0)], INCUMBENT)
        return actions


@dataclass(frozen=True, eq=False)
class NamedRival:
    """A policy that the user names, before the tasks of the log are known: learned, or an action for each task."""

    name: str
    learned: PolicyRival | None = None
    tasks: Keys | None = None
    codes: Codes | None = None

    def rival(self, keys: Keys) -> Rival:
        """Return the policy for the tasks of a log."""
        if self.learned is not None:
            return self.learned
        assert self.codes is not None
        if self.tasks is None:  # one action for all
            return ActionTable(np.full(len(keys), self.codes[0]))
        rows = np.asarray(self.tasks.locate(keys.values))
        if not (rows >= 0).any():
            raise InputError(
                f"compare: {self.name!r} has none of the tasks of this log, such as {keys.values[:1].tolist()[0]!r}, "
                "so that the incumbent would choose everywhere. Check the type and the spelling of its tasks."
            )
        return ActionTable(np.where(rows >= 0, self.codes[np.maximum(rows, 0)], INCUMBENT))


def named_rivals(compare: Any, features: FeatureMap, roles: Roles) -> tuple[NamedRival, ...]:
    """Return the policies that the user names to compare with.

    Parameters
    ----------
    compare : bool or mapping
        Names with a policy or a fitted learner, the directory of one, a mapping or a table of tasks and actions (a
        frame or a path; columns named as in the log, or "task" and "action"), or one action.
    features : FeatureMap
        Of the policy that is evaluated.
    roles : Roles
        Of the log.

    Raises
    ------
    InputError, SchemaError, LogError, UnknownActionError, ArtifactError
        A value is none of these, or has actions or contexts that the policy does not have.
    """
    if isinstance(compare, bool):
        return ()
    if not isinstance(compare, Mapping) or not all(isinstance(name, str) for name in compare):
        raise InputError(
            f"compare={compare!r} is neither True, False nor a mapping; name the policies to compare with, such as "
            "compare={'today': {'store 1': 'gift'}, 'always gift': 'gift'}."
        )
    return tuple(_named(name, value, features, roles) for name, value in compare.items())


def _named(name: str, value: Any, features: FeatureMap, roles: Roles) -> NamedRival:
    policy = _policy(value)
    if policy is not None:
        return NamedRival(name, learned=_learned(name, policy, features))
    if isinstance(value, Mapping):
        if not value:
            raise InputError(f"compare: {name!r} has no task; a mapping of tasks to actions is needed.")
        return _of_tasks(name, list(value), features.action_codes(list(value.values())))
    if hasattr(value, "__arrow_c_stream__") or (
        isinstance(value, str | os.PathLike) and Path(value).exists()
    ):
        return _table(name, value, features, roles)
    return NamedRival(name, None, None, features.action_codes([value]))


def _policy(value: Any) -> LCBPolicy | GatedPolicy | None:
    value = getattr(value, "policy_", value)
    if isinstance(value, LCBPolicy | GatedPolicy):
        return value
    if isinstance(value, str | os.PathLike) and (Path(value) / "policy.json").exists():
        return load_policy(value).policy
    return None


def _learned(name: str, policy: LCBPolicy | GatedPolicy, features: FeatureMap) -> PolicyRival:
    other = policy.features
    if other is None or other.actions is None:
        raise InputError(
            f"compare: the policy {name!r} lists no actions, so that its choices cannot be "
            "compared with the actions of the log. Name a policy that lists them."
        )
    terms, of_other = getattr(features, "terms", None), getattr(other, "terms", None)
    if of_other is not None and (terms is None or terms.identity() != of_other.identity()):
        raise InputError(
            f"compare: the policy {name!r} makes its columns by the terms {str(of_other.formula)!r} of its own log, "
            "and the rows are read with the columns of the policy that is evaluated. Fit one of them with the feature "
            "map of the other, features=other.features_, or evaluate each by itself."
        )
    plain_columns = features.columns if terms is None or of_other is not None else terms.plain
    missing = [column for column in other.columns if column not in plain_columns]
    if missing:
        raise InputError(
            f"compare: the policy {name!r} reads the context column {missing[0]!r}, which the policy that is evaluated "
            "does not read. Fit one of them with the columns of the other."
        )
    columns = np.array([features.columns.index(column) for column in other.columns], dtype=np.int64)
    return PolicyRival(policy, columns, features.action_codes(other.actions))


def _table(name: str, source: Any, features: FeatureMap, roles: Roles) -> NamedRival:
    log = open_log(source)
    columns: list[Any] = []
    usual_columns = [("task", roles.task), ("action", roles.action or "action")]
    if not isinstance(roles.task, str):
        columns.append(roles.task)
        usual_columns = usual_columns[1:]
    for role, usual in usual_columns:
        column = next((known for known in (usual, role) if known in log.schema.names), None)
        if column is None:
            raise SchemaError(
                f"compare: {name!r} has the columns {log.schema.names}, and neither {usual!r} nor {role!r}. Give it a "
                f"row for each task, with its {role}."
            )
        columns.append(column)
    parts = list(read_requests(log, columns[0], request=columns[1]))
    tasks = np.concatenate([part.task for part in parts])
    actions = np.concatenate([np.asarray(part.request) for part in parts])
    return _of_tasks(name, tasks, features.action_codes(actions))


def _of_tasks(name: str, tasks: Any, codes: Codes) -> NamedRival:
    keys, rows = Keys.factorize(tasks)
    codes_by_task = np.full(len(keys), INCUMBENT)
    codes_by_task[rows] = codes
    repeated = np.flatnonzero(codes_by_task[rows] != codes)
    if repeated.size:
        task = keys.id_of(int(rows[repeated[0]]))
        raise InputError(
            f"compare: {name!r} has two actions for the task {plain(task)!r}; a task needs one. Leave one of them out."
        )
    return NamedRival(name, None, keys, codes_by_task)
