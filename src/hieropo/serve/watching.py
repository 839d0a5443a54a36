"""Watching of rewards against predictions, with a stated probability of any false alarm, and shares of a log.

For each action, the first reward of each task under a version is standardised by its prediction,
``z = (r - mean) / sqrt(sd^2 + noise^2)``. While the version predicts well these are independent between tasks, with
mean 0 and variance 1. The mixture ``E_n = (1 + n)^(-1/2) exp(S_n^2 / (2 (1 + n)))``, S_n the sum of n of them, has
expectation 1 at most where they are normal or sub-Gaussian with variance 1, so that by Ville's inequality
``P(some E_n >= K / alpha for one of K actions) <= alpha``, at whatever times it is looked at (Robbins, 1970).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hieropo._utils.arrays import Array
from hieropo._utils.text import Report
from hieropo.serve.columns import MODE, PROPENSITY, TIME, UNSEEN, VERSION, RecordColumns

_PARTS, _PART_ROWS = 12, 10  # parts of time at most, and rows of a part at least


@dataclass(frozen=True, slots=True)
class RewardPart:
    """Rewards and predictions of an action in a part of the time.

    Attributes
    ----------
    at : int
        Mean time in microseconds.
    rows : int
    reward, reward_error : float
        Mean reward, and its standard error.
    predicted : float
        Mean prediction.
    """

    at: int
    rows: int
    reward: float
    reward_error: float
    predicted: float


@dataclass(frozen=True, slots=True)
class ModePart:
    """The share of each mode in the rows of a part of the time; ``at`` as in :class:`RewardPart`."""

    at: int
    shares: dict[str, float]


@dataclass(frozen=True, slots=True)
class ActionWatch:
    """The check of one action.

    Attributes
    ----------
    action : id
    tasks : int
        Tasks whose first reward counts.
    mean_z : float
        Their mean standardised residual.
    evidence : float
        Largest E_n so far; an alarm where it reaches ``limit``.
    alarm_since : int or None
        Time of the first alarm in microseconds.
    history : tuple of RewardPart
        Parts of equally many rows with a prediction, the oldest first.
    """

    action: Any
    tasks: int
    mean_z: float
    evidence: float
    alarm_since: int | None
    history: tuple[RewardPart, ...] = ()


@dataclass(frozen=True, slots=True)
class Watch(Report):
    """The state of a record under one version.

    Attributes
    ----------
    rows : int
        Rows of the version.
    actions : tuple of ActionWatch
    limit : float
        Evidence at which an alarm is raised.
    modes : dict
        Number of rows of each mode.
    ess : float
        Effective sample size of the rows for a policy that is compared by weights 1 / propensity.
    tasks_shift : float
        Total variation distance between the mixes of tasks in the older and the newer half of the rows.
    unseen : dict
        Number of rows with something that the version did not know: "task", "action", and "level:COLUMN".
    context_shifts : dict
        For each column of the contexts, the difference between the newer and the older half of the rows: of the means
        in standard deviations where it holds numbers or times, else the total variation distance.
    left_out : dict
        Number of decisions of the whole record that a refresh does not learn from, by reason.
    mode_history : tuple of ModePart
        Parts of equally many rows, the oldest first.
    """

    rows: int
    actions: tuple[ActionWatch, ...]
    limit: float
    modes: dict[str, int]
    ess: float
    tasks_shift: float
    unseen: dict[str, int] = field(default_factory=dict)
    context_shifts: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    mode_history: tuple[ModePart, ...] = ()

    def mode_share(self, mode: str) -> float:
        """Return the share of rows of a mode, such as "gate"; 0 without rows."""
        return self.modes.get(mode, 0) / max(self.rows, 1)

    @property
    def unseen_shares(self) -> dict[str, float]:
        """Return the share of rows with something that the policy does not know, by its kind."""
        return {kind: rows / max(self.rows, 1) for kind, rows in {"task": 0, **self.unseen}.items()}

    @property
    def alarms(self) -> tuple[Any, ...]:
        """Return the actions with an alarm."""
        return tuple(one.action for one in self.actions if one.alarm_since is not None)


def evidence(z: Array) -> Array:
    """Return E_n of the sums of the first n standardised residuals, (n,)."""
    n = np.arange(1, z.size + 1)
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(np.cumsum(z) ** 2 / (2.0 * (1.0 + n))) / np.sqrt(1.0 + n))


def watch(
    rows: pa.Table,
    columns: RecordColumns,
    version: int,
    false_alarms: float,
    left_out: Mapping[str, int] | None = None,
) -> Watch:
    """Return the watch over the rows of one version in a log.

    Parameters
    ----------
    rows : pa.Table
        Of the record, in its order.
    false_alarms : float
        Probability of any alarm where predictions are right.
    left_out : mapping, optional
        Number of decisions that a refresh does not learn from, by reason.
    """
    rows = rows.filter(pc.equal(rows.column(VERSION), version))
    codes = _task_codes(rows, columns)
    action = rows.column(columns.action).combine_chunks().dictionary_encode()
    actions = action.dictionary.to_pylist()
    limit = max(len(actions), 1) / max(false_alarms, 1e-300)
    mean, sd = (rows.column(name).to_numpy() for name in ("predicted_mean", "predicted_sd"))
    reward = rows.column(columns.reward).to_numpy()
    with np.errstate(invalid="ignore", divide="ignore"):
        z = (reward - mean) / sd
    times = rows.column(TIME).cast(pa.int64()).to_numpy()
    indices = action.indices.to_numpy()
    checks = []
    for code, name in enumerate(actions):
        places = np.flatnonzero((indices == code) & np.isfinite(z))
        _, first = np.unique(codes[places], return_index=True)
        history = tuple(_reward_part(times[part], reward[part], mean[part]) for part in _parts(places))
        first = places[np.sort(first)]
        checks.append(_checked(name, z[first], times[first], limit, history))
    modes = rows.column(MODE).value_counts().to_pylist()
    weights = 1.0 / rows.column(PROPENSITY).to_numpy()
    return Watch(
        rows.num_rows, tuple(checks), limit, {entry["values"]: entry["counts"] for entry in modes},
        float(weights.sum() ** 2 / (weights**2).sum()) if rows.num_rows else 0.0, _shift(codes),
        _unseen(rows), {name: _context_shift(rows.column(name)) for name, _ in columns.values}, dict(left_out or {}),
        _mode_history(rows.column(MODE), times),
    )  # fmt: skip


def _parts(places: Any) -> list[Any]:
    """Return places of rows in parts of nearly equal sizes; none where the rows are too few for two parts."""
    parts = min(_PARTS, places.size // _PART_ROWS)
    return list(np.array_split(places, parts)) if parts > 1 else []


def _reward_part(times: Any, reward: Array, predicted: Array) -> RewardPart:
    error = float(reward.std(ddof=1) / np.sqrt(reward.size))
    return RewardPart(
        int(times.mean()), int(reward.size), float(reward.mean()), error, float(predicted.mean())
    )


def _mode_history(modes: pa.ChunkedArray, times: Any) -> tuple[ModePart, ...]:
    encoded = modes.combine_chunks().dictionary_encode()
    names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    return tuple(
        ModePart(
            int(times[part].mean()), {name: float((codes[part] == k).mean()) for k, name in enumerate(names)}
        )
        for part in _parts(np.arange(codes.size))
    )


def _checked(action: Any, z: Array, times: Any, limit: float, history: tuple[RewardPart, ...]) -> ActionWatch:
    if not z.size:
        return ActionWatch(action, 0, 0.0, 0.0, None)
    values = evidence(z)
    crossed = np.flatnonzero(values >= limit)
    since = int(times[crossed[0]]) if crossed.size else None
    largest = float(min(values.max(), 1e300))
    return ActionWatch(action, int(z.size), float(z.mean()), largest, since, history)


def _task_codes(rows: pa.Table, columns: RecordColumns) -> Any:
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    for name, _ in columns.task:
        encoded = rows.column(name).combine_chunks().dictionary_encode()
        codes = codes * max(len(encoded.dictionary), 1) + encoded.indices.to_numpy()
    return codes


def _unseen(rows: pa.Table) -> dict[str, int]:
    if UNSEEN not in rows.column_names:
        return {}
    kinds = pc.list_flatten(rows.column(UNSEEN).combine_chunks())
    return {entry["values"]: entry["counts"] for entry in kinds.value_counts().to_pylist()}


def _context_shift(column: pa.ChunkedArray) -> float:
    """Return the shift of a column of contexts between the older and the newer half; missing values are left out."""
    if pa.types.is_string(column.type) or pa.types.is_boolean(column.type):
        return _shift(column.combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy())
    numbers = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
    values = numbers.cast(pa.float64()).to_numpy()
    half = values.size // 2
    older, newer = (part[np.isfinite(part)] for part in (values[:half], values[half:]))
    if not older.size or not newer.size:
        return 0.0
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        shift = float((newer.mean() - older.mean()) / np.concatenate([older, newer]).std())
    return shift if np.isfinite(shift) else 0.0


def _shift(codes: Any) -> float:
    half = codes.size // 2
    if not half:
        return 0.0
    _, numbers = np.unique(codes, return_inverse=True)
    size = int(numbers.max()) + 1
    older, newer = (
        np.bincount(part, minlength=size) / part.size for part in (numbers[:half], numbers[half:])
    )
    return float(np.abs(older - newer).sum() / 2)
