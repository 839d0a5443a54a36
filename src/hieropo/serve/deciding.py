"""One version of the policy as the service asks it, and the draw of an action with its exact propensity."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from hieropo._utils.arrays import Array, Mask
from hieropo.decisions.choosing import answer
from hieropo.decisions.deciding import request_columns
from hieropo.decisions.new_tasks import NewTasks
from hieropo.decisions.requests import RequestReader
from hieropo.errors import HieropoError, InputError, UnknownTaskError
from hieropo.features.terms.learned import LearnedTerms
from hieropo.learners.loading import new_tasks_of, roles_of
from hieropo.logs.arrow.writing import id_column
from hieropo.logs.engines.tables import TableSource
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import Choices, LCBPolicy
from hieropo.policies.sampling import best_probabilities
from hieropo.rows.batches import column_tuple
from hieropo.serve.columns import RecordColumns, as_kind
from hieropo.serve.messages import DecideRequest, Mode
from hieropo.serve.settings import Settings
from hieropo.storage.load import StoredPolicy, load_policy


class UndecidableError(InputError):
    """The present policy cannot decide a request, and the request names no incumbent's action."""


_ELIGIBLE = "__eligible__"
_NO_CHOICE = UndecidableError(
    "The policy can choose no action: no eligible action is known to it, the context is too large, or it refuses tasks "
    "that are not in its log. Correct the request, or name the incumbent's action in it."
)


@dataclass(frozen=True, slots=True)
class Scores:
    """Posterior of the expected rewards of n requests, for the K actions of the policy, and its choices.

    Parameters
    ----------
    best : list of n int
        The action with the largest lower bound, -1 where none can be chosen.
    mean, sd : (n, K) float
        Of the expected reward of each action; NaN where the request does not allow it.
    known : list of n bool
        The task is in the log.
    kept : list of n bool, or None
        The gate leaves the task to the incumbent; None without a gate.
    unseen : dict of n bool
        Which requests have a level that the policy does not know, by column.
    refused : dict
        Errors of requests for which no action can be chosen, by position.
    """

    best: list[int]
    mean: Array
    sd: Array
    known: list[bool]
    kept: list[bool] | None
    refused: dict[int, HieropoError]
    unseen: Mapping[str, Mask] = field(default_factory=dict)

    def unseen_in(self, row: int) -> list[str]:
        """Return what the policy does not know in a request: "task", and "level:COLUMN" for each such level."""
        unseen = [] if self.known[row] else ["task"]
        if not self.unseen:
            return unseen
        return unseen + [f"level:{column}" for column, rows in self.unseen.items() if rows[row]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The action that was done in one request, and its probability.

    Parameters
    ----------
    action : id
    propensity : float
    mode : {"policy", "explore", "gate", "shadow", "fallback"}
    probabilities : sequence of pairs (action, probability)
        Of all actions with a positive probability.
    mean, sd : float or None
        Posterior of the expected reward of the action; None for an action that the policy does not know.
    would : id or None
        The action that the policy would have taken, where the incumbent's was done.
    control : bool
        The decision was left to the incumbent by the control share.
    """

    action: Any
    propensity: float
    mode: Mode
    probabilities: Sequence[tuple[Any, float]]
    mean: float | None = None
    sd: float | None = None
    would: Any = None
    control: bool = False


@dataclass(frozen=True, eq=False)
class Engine:
    """One version of the policy, ready to decide.

    Parameters
    ----------
    number : int
        Of the version.
    stored : StoredPolicy
    columns : RecordColumns
    noise_sd : float
        Of a reward.

    Attributes
    ----------
    actions : tuple of ids
    codes : dict
        The position of each action.
    nullable : frozenset of str
        Context columns whose value may be unknown: the log had missing values there, or its formula has
        ``missing='prior'``.
    """

    number: int
    stored: StoredPolicy
    columns: RecordColumns
    noise_sd: float
    actions: tuple[Any, ...] = field(init=False)
    codes: dict[Any, int] = field(init=False)
    nullable: frozenset[str] = field(init=False)
    _new_tasks: NewTasks | None = field(init=False)

    def __post_init__(self) -> None:
        features = self.stored.features
        assert features is not None
        assert features.actions is not None
        object.__setattr__(self, "actions", tuple(_plain(action) for action in features.actions))
        object.__setattr__(self, "codes", {action: code for code, action in enumerate(self.actions)})
        object.__setattr__(self, "nullable", frozenset(_nullable(getattr(features, "terms", None))))
        object.__setattr__(self, "_new_tasks", new_tasks_of(self.stored, remember=False))

    @classmethod
    def load(cls, number: int, path: Path, columns: RecordColumns) -> Self:
        """Load a version from its directory.

        Raises
        ------
        ArtifactError
            The directory is no policy, or is damaged.
        InputError
            The policy does not read the columns of the record.
        """
        stored = load_policy(path)
        roles = roles_of(stored)
        features = stored.features
        assert features is not None
        if features.actions is None:
            raise InputError(
                "The policy has no list of actions, so that it cannot answer requests that name actions. Fit with "
                "an action column."
            )
        terms = getattr(features, "terms", None)
        context = features.columns if terms is None else terms.sources
        wanted = (
            tuple(name for name, _ in columns.task), columns.action, tuple(name for name, _ in columns.context),
            tuple(name for name, _ in columns.levels), tuple(name for name, _ in columns.metadata),
        )  # fmt: skip
        reads = column_tuple(roles.task), roles.action, tuple(context), roles.levels, roles.metadata
        if reads != wanted:
            raise InputError(
                f"The policy reads the columns {reads}, and the record has {wanted}, so that the two do not join. Fit "
                "the policy with the columns of the record, or start a new state."
            )
        noise = stored.provenance.get("noise_sd")
        return cls(number, stored, columns, 1.0 if noise is None else float(noise))

    @property
    def policy(self) -> LCBPolicy | GatedPolicy:
        """Return the policy, with its gate if it has one."""
        return self.stored.policy

    @property
    def simple(self) -> bool:
        """Return True where contexts are numbers and tasks have no groups, so that requests need no table."""
        return self._new_tasks is None and getattr(self.stored.features, "terms", None) is None

    def score(
        self, tasks: Sequence[Any], requests: Sequence[DecideRequest], numbers: Array | None = None
    ) -> Scores:
        """Return the posterior of the eligible actions of each request.

        ``requests`` are checked by :meth:`RecordColumns.check`. ``numbers`` are those of
        :meth:`RecordColumns.numbers_of`, where they are there already: then no request names an action.
        """
        masks = None if numbers is not None else self._masks(requests)
        if self.simple:
            contexts = self.columns.matrix(requests) if numbers is None else numbers
            return self._score_numbers(tasks, contexts, masks)
        return self._score_rows(tasks, requests, masks)

    def _masks(self, requests: Sequence[DecideRequest]) -> Any:
        """Return which known actions (n, K) each request allows; None where all are allowed."""
        if all(request.eligible is None and request.exclude is None for request in requests):
            return None
        masks = np.ones((len(requests), len(self.actions)), dtype=np.bool_)
        for row, request in enumerate(requests):
            if request.eligible is not None:
                masks[row] = False
                masks[row, [self.codes[action] for action in request.eligible if action in self.codes]] = True
            if request.exclude:
                masks[row, [self.codes[action] for action in request.exclude if action in self.codes]] = False
        return masks

    def _score_numbers(self, tasks: Sequence[Any], contexts: Array, masks: Any) -> Scores:
        policy, top = self.policy, len(self.actions)
        inner = policy.ungated
        keys = policy.table.keys
        ids = id_array(tasks)
        located = np.asarray(keys.locate(ids), dtype=np.int64)
        refused: dict[int, HieropoError] = {}
        try:
            choices = inner.choose_many(
                ids, contexts, eligible=masks, top=top, located=located, refused=refused
            )
        except UnknownTaskError:
            choices = Choices(np.full((len(ids), top), -1), *np.full((3, len(ids), top), np.nan))
            refused = dict.fromkeys(range(len(ids)), _NO_CHOICE)
        refused = dict.fromkeys(refused, _NO_CHOICE)
        kept = (~policy.passes_rows(located)).tolist() if isinstance(policy, GatedPolicy) else None
        return _scores(choices, located >= 0, kept, refused)

    def _score_rows(self, tasks: Sequence[Any], requests: Sequence[DecideRequest], masks: Any) -> Scores:
        """Return the scores of requests whose contexts are encoded by terms, or whose tasks have groups."""
        table = self._table(tasks, requests, masks)
        roles = roles_of(self.stored)
        features = self.stored.features
        assert features is not None
        columns = request_columns(
            features,
            self._new_tasks,
            task=roles.task,
            carried=(),
            eligible=None if masks is None else _ELIGIBLE,
        )
        (batch,) = RequestReader(TableSource(table, "request"), columns, strict=False).batches()
        policy = self.policy
        inner = policy.ungated
        answers = answer(inner, batch, self._new_tasks, top=len(self.actions), strict=False)
        refused: dict[int, HieropoError] = {}
        for fault in answers.faults:
            column = f" (column {fault.column!r})" if fault.column else ""
            error = UndecidableError(
                f"The policy cannot decide the request: {fault.reason}{column}. Correct the request, or name the "
                "incumbent's action in it."
            )
            refused.update(dict.fromkeys(np.flatnonzero(fault.bad).tolist(), error))
        kept = None
        if isinstance(policy, GatedPolicy):
            located = np.asarray(policy.table.keys.locate(id_array(tasks)), dtype=np.int64)
            kept = (~policy.passes_rows(located)).tolist()
        groups = zip(roles.levels, answers.groups, strict=False)
        unseen = {**batch.unknown, **{level: valid & ~known for level, (known, valid) in groups}}
        return replace(_scores(answers.choices, answers.task_known, kept, refused), unseen=unseen)

    def _table(self, tasks: Sequence[Any], requests: Sequence[DecideRequest], masks: Any) -> pa.Table:
        empty = self.columns.schema()
        arrays: dict[str, pa.Array] = {}
        for part, (name, _) in enumerate(self.columns.task):
            values = [task[part] if isinstance(task, tuple) else task for task in tasks]
            arrays[name] = pa.array(values, empty.field(name).type)
        for name, kind in self.columns.values:
            values = [as_kind(request.context.get(name), kind) for request in requests]
            arrays[name] = pa.array(values, empty.field(name).type)
        if masks is not None:
            ids = id_column(self.actions)
            lists = [ids.take(pa.array(np.flatnonzero(mask))).to_pylist() for mask in masks]
            arrays[_ELIGIBLE] = pa.array(lists, pa.list_(ids.type))
        return pa.table(arrays)

    def eligible(self, request: DecideRequest) -> list[Any]:
        """Return the actions that a request allows, in its order; those of the policy where it names none."""
        listed = list(dict.fromkeys(self.actions if request.eligible is None else request.eligible))
        if not request.exclude:
            return listed
        excluded = set(request.exclude)
        return [action for action in listed if action not in excluded]


def _scores(
    choices: Choices, known: Any, kept: list[bool] | None, refused: dict[int, HieropoError]
) -> Scores:
    """Return choices by rank as scores by action."""
    mean, sd = np.full((2, *choices.index.shape), np.nan)
    rows, ranks = np.nonzero(choices.index >= 0)
    codes = choices.index[rows, ranks]
    mean[rows, codes], sd[rows, codes] = choices.mean[rows, ranks], choices.sd[rows, ranks]
    return Scores(choices.index[:, 0].tolist(), mean, sd, known.tolist(), kept, refused)


def settle(
    engine: Engine,
    request: DecideRequest,
    scores: Scores,
    row: int,
    settings: Settings,
    rng: np.random.Generator,
) -> tuple[Outcome, list[Any]]:
    """Return the action that is done in one scored request, and the eligible actions.

    Raises
    ------
    UndecidableError
        No action can be done: none is eligible or known, or the incumbent's is needed and not named.
    """
    eligible = engine.eligible(request)
    incumbent = request.incumbent
    if incumbent is None and isinstance(engine.policy, GatedPolicy):
        incumbent = _plain(engine.policy.incumbent)
    error = scores.refused.get(row)
    if error is not None or scores.best[row] < 0:
        return _fallen_back(error, incumbent), eligible or [incumbent]
    policy = _policy_probabilities(engine, scores, row, eligible, settings)
    if settings.shadow:
        return _kept(engine, scores, row, incumbent, "shadow", policy, rng), eligible
    if scores.kept is not None and scores.kept[row]:
        return _kept(engine, scores, row, incumbent, "gate", policy, rng), eligible
    return _drawn(engine, scores, row, policy, incumbent, settings, rng), eligible


def _fallen_back(error: HieropoError | None, incumbent: Any) -> Outcome:
    if incumbent is not None:
        return Outcome(incumbent, 1.0, "fallback", [(incumbent, 1.0)])
    raise (
        error
        if error is not None
        else UndecidableError("No action is eligible, so that none can be chosen. Name one.")
    )


def _policy_probabilities(
    engine: Engine, scores: Scores, row: int, eligible: list[Any], settings: Settings
) -> dict[Any, float]:
    """Return the probability f + (1 - sum f) w of each eligible action, f = floor / K."""
    best = engine.actions[scores.best[row]]
    weights = {best: 1.0}
    if settings.exploration == "sampling":
        shares = best_shares(scores.mean[row], scores.sd[row])
        weights = dict(zip(engine.actions, shares.tolist(), strict=True))
    if settings.exploration == "none" or (settings.floor == 0 and settings.exploration == "floor"):
        return {best: 1.0}
    share = settings.floor / len(eligible)
    rest = 1.0 - settings.floor
    return {action: share + rest * weights.get(action, 0.0) for action in eligible}


def _kept(
    engine: Engine, scores: Scores, row: int, incumbent: Any, mode: Mode, policy: dict[Any, float],
    rng: np.random.Generator,
) -> Outcome:  # fmt: skip
    """Return the outcome of a decision that is the incumbent's for certain."""
    if incumbent is None:
        raise UndecidableError(
            "The decision is left to the incumbent (the logging policy), whose action is not known, so that there is "
            "no action to answer. Name it in the request: incumbent."
        )
    mean, sd = _posterior_of(engine, scores, row, incumbent)
    return Outcome(incumbent, 1.0, mode, [(incumbent, 1.0)], mean, sd, _draw(policy, rng)[0])


def _drawn(
    engine: Engine, scores: Scores, row: int, policy: dict[Any, float], incumbent: Any, settings: Settings,
    rng: np.random.Generator,
) -> Outcome:  # fmt: skip
    """Return the outcome of a draw from the policy's probabilities mixed with the control share."""
    control, share = False, settings.control if incumbent is not None else 0.0
    would: Any = None
    probabilities = policy
    if share:
        probabilities = {action: (1.0 - share) * p for action, p in policy.items()}
        probabilities[incumbent] = probabilities.get(incumbent, 0.0) + share
        control = bool(rng.random() < share)
    action = incumbent if control else _draw(policy, rng)[0]
    if control:
        would = _draw(policy, rng)[0]
    mean, sd = _posterior_of(engine, scores, row, action)
    positive = [(candidate, p) for candidate, p in probabilities.items() if p > 0]
    mode: Mode = "policy" if len(positive) == 1 else "explore"
    return Outcome(action, probabilities[action], mode, positive, mean, sd, would, control)


def _draw(probabilities: dict[Any, float], rng: np.random.Generator) -> tuple[Any, float]:
    """Draw an action; probabilities sum to 1."""
    if len(probabilities) == 1:
        return next(iter(probabilities.items()))
    mark, total, last = rng.random(), 0.0, None
    for action, probability in probabilities.items():
        if probability > 0:
            last = action, probability
            total += probability
            if mark < total:
                break
    assert last is not None
    return last


def best_shares(mean: Array, sd: Array) -> Array:
    """Return the probabilities of being best (..., K); 0 for actions without a posterior."""
    allowed = np.isfinite(mean)
    return best_probabilities(np.where(allowed, mean, -np.inf), np.where(allowed, sd, 1.0))


def _posterior_of(engine: Engine, scores: Scores, row: int, action: Any) -> tuple[float | None, float | None]:
    code = engine.codes.get(action)
    if code is None or math.isnan(scores.mean[row, code]):
        return None, None
    return float(scores.mean[row, code]), float(scores.sd[row, code])


def _nullable(terms: LearnedTerms | None) -> Iterator[str]:
    """Yield the context columns that may be missing."""
    if terms is not None:
        prior = terms.formula.missing == "prior"
        yield from (column.name for column in terms.columns if column.missing or prior)


def id_array(ids: Sequence[Any]) -> Any:
    """Return ids as an array; tuples stay objects."""
    if ids and isinstance(ids[0], int):
        return np.array(ids, dtype=np.int64)
    array = np.empty(len(ids), dtype=object)
    array[:] = ids
    return array


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
