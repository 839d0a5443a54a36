"""Effects of the levels of categories, learned from the rewards of a log before its design is summed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hieropo._utils.arrays import Array, Codes
from hieropo.errors import InputError, SchemaError
from hieropo.features.terms.effects import (
    FOLDS,
    MOST,
    MOST_ACTIONS,
    LearnedEffect,
    learned_variances,
    nested,
)
from hieropo.features.terms.learned import LearnedColumn, LearnedTerm, positions_of
from hieropo.features.terms.learning import SourceColumn
from hieropo.features.terms.statistics import LogColumns
from hieropo.features.terms.terms import Effect, Terms
from hieropo.logs.arrow.arrays import as_numpy, decoded
from hieropo.logs.arrow.log_source import LogSource
from hieropo.logs.encoding import column_values, loose_numbers, task_parts
from hieropo.rows.batches import Roles, column_tuple

_ROUNDS = 20  # of the means of tasks and actions, each given the other
_TINY = float(np.finfo(np.float64).tiny)
_DIGITS = 12  # of sums, so that the order of rows does not show


def learned_effects(
    terms: Terms, source: LogSource, roles: Roles, columns: Mapping[str, SourceColumn], statistics: LogColumns
) -> dict[Effect, LearnedTerm]:
    """Return the effects of a formula, learned by one read of their columns, the task, the action and the reward.

    A reward is the sum of means of its task and its action, the effect of its level, and noise. Means of tasks are
    shrunken by their variance.

    Raises
    ------
    SchemaError
        The log has no column of tasks, of actions, or of rewards.
    InputError
        It has too few tasks, or too many actions.
    """
    effects = [term for term in terms if isinstance(term, Effect)]
    if not effects:
        return {}
    if roles.task is None or roles.action is None:
        raise SchemaError(
            f"{effects[0]} needs a column of tasks and one of actions: rows of a task see the effects that the rows of "
            "other tasks tell, on each action. Without tasks, take the column itself as the task."
        )
    return {effect: _learned(effect, source, roles, columns, statistics) for effect in effects}


class _Cells(NamedTuple):
    """Rows, sums and sums of squares of rewards by task, action and level, of c cells."""

    task: Any
    action: Any
    level: Any
    rows: Any
    sums: Any
    squares: Any


@dataclass
class _Index:
    """Numbers of ids as text, in the order in which they come."""

    numbers: dict[str, int]

    def codes(self, texts: pa.Array) -> Codes:
        """Return the number of each id (n,); new ones get the next."""
        entries = texts.dictionary_encode()
        numbers = [
            self.numbers.setdefault(text, len(self.numbers)) for text in entries.dictionary.to_pylist()
        ]
        codes: Codes = np.array(numbers, dtype=np.int64)[as_numpy(entries.indices)]
        return codes


def _learned(
    effect: Effect,
    source: LogSource,
    roles: Roles,
    columns: Mapping[str, SourceColumn],
    statistics: LogColumns,
) -> LearnedTerm:
    counts = statistics.columns[effect.column].levels
    levels = tuple(sorted(sorted(counts, key=lambda level: (-counts[level], level))[:MOST]))
    expected = LearnedColumn(effect.column, columns[effect.column].kind, columns[effect.column].zone)
    actions, parts = _Index({}), _Index({})
    task_part: dict[int, int] = {}
    of_batches: list[_Cells] = []
    for batch, row in _batches(source, roles, effect.column):
        values = column_values(batch.column(effect.column), expected, row)[0]
        level, task = positions_of(levels, values), parts.codes(_texts_of(batch, column_tuple(roles.task)))
        action = actions.codes(_texts_of(batch, column_tuple(roles.action)))
        task_part.update(
            zip(task.tolist(), task_parts(batch, column_tuple(roles.task)).tolist(), strict=True)
        )
        reward = loose_numbers(batch.column(roles.reward))
        weight = np.ones(level.size) if roles.weight is None else loose_numbers(batch.column(roles.weight))
        kept = (level >= 0) & ~values.missing & np.isfinite(reward) & (weight > 0)
        of_batches.append(_cells(task[kept], action[kept], level[kept], reward[kept], weight[kept]))
    cells = _joined(of_batches)
    _check(effect, len(task_part), len(actions.numbers))
    labels = tuple(sorted(actions.numbers))
    rank = np.argsort(np.argsort(list(actions.numbers)))
    cells = cells._replace(action=rank[cells.action])
    part = np.array([task_part[task] for task in range(len(task_part))])
    return LearnedTerm(effect, levels, effect=_fitted(cells, part, len(levels), labels, roles))


def _batches(source: LogSource, roles: Roles, column: str) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the rows with a task and an action, and the number of the first of each batch."""
    named = [name for role, name in roles.items() if role in ("task", "action", "reward", "weight")]
    row = 0
    for batch in source.batches(list(dict.fromkeys([*named, column]))):
        present = np.ones(batch.num_rows, dtype=np.bool_)
        for role, name in roles.items():
            if role in ("task", "action"):
                present &= as_numpy(batch.column(name).is_valid())
        yield batch if present.all() else batch.filter(pa.array(present)), row
        row += batch.num_rows


def _texts_of(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Array:
    """Return ids of one or several columns as text (n,)."""
    texts = [decoded(batch.column(name)).cast(pa.string()) for name in columns]
    return texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, "\0")


def _cells(task: Codes, action: Codes, level: Codes, reward: Array, weight: Array) -> _Cells:
    """Return the cells of n rows."""
    return _grouped(_Cells(task, action, level, weight, weight * reward, weight * reward**2))


def _joined(parts: Sequence[_Cells]) -> _Cells:
    return _grouped(_Cells(*(np.concatenate(values) for values in zip(*parts, strict=True))))


def _grouped(cells: _Cells) -> _Cells:
    """Return cells of which none is there twice."""
    order = np.lexsort((cells.level, cells.action, cells.task))
    cells = _Cells(*(values[order] for values in cells))
    keys = np.stack([cells.task, cells.action, cells.level])
    starts = (
        np.flatnonzero(np.concatenate([[True], (np.diff(keys) != 0).any(axis=0)])) if order.size else order
    )
    sums = (np.add.reduceat(values, starts) if starts.size else values for values in cells[3:])
    return _Cells(*(key[starts] for key in keys), *sums)


def _check(effect: Effect, n_tasks: int, n_actions: int) -> None:
    if n_tasks < 2:
        raise InputError(
            f"{effect} sees in the rows of a task the effects that the rows of other tasks tell, and the log has "
            f"{n_tasks} task. Take {effect.column!r} as the task, or as a category with max_levels."
        )
    if n_actions > MOST_ACTIONS:
        raise InputError(
            f"{effect} has a column for each action, and the log has {n_actions:,} actions; at most {MOST_ACTIONS} are "
            f"allowed. Take {effect.column!r} as the task, as a level of tasks, or as a category with max_levels."
        )


def _fitted(
    cells: _Cells, part: Codes, n_levels: int, labels: tuple[str, ...], roles: Roles
) -> LearnedEffect | None:
    """Return the effects of levels; None where the log shows no variation between levels."""
    task, action = _means(cells, part.size, len(labels))
    offset = task[cells.task] + action[cells.action]
    sums = cells.sums - cells.rows * offset
    squares = cells.squares - 2 * offset * cells.sums + cells.rows * offset**2
    n_actions = len(labels)
    place = (part[cells.task] * n_levels + cells.level) * n_actions + cells.action
    shape = (FOLDS, n_levels, n_actions)
    by_part = [
        np.bincount(place, values, FOLDS * n_levels * n_actions).reshape(shape)
        for values in (cells.rows, sums)
    ]
    rows, total = (values.sum(axis=0) for values in by_part)
    seen = rows > 0
    within = float(squares.sum() - (total[seen] ** 2 / rows[seen]).sum())
    freedom = float(rows.sum() - np.count_nonzero(seen))
    if freedom <= 0 or within <= 0:
        return None
    variances = learned_variances(rows, total, within / freedom)
    if not (variances.main or variances.own):
        return None
    size = float(np.abs(by_part[1]).max())
    rounded = np.round(by_part[1] / size, _DIGITS) * size
    return LearnedEffect(labels, column_tuple(roles.task), nested(by_part[0]), nested(rounded), variances)


def _means(cells: _Cells, n_tasks: int, n_actions: int) -> tuple[Array, Array]:
    """Return the means of tasks, shrunken, and of actions, of which a reward is the sum."""
    rows = np.bincount(cells.task, cells.rows, n_tasks)
    of_action = np.bincount(cells.action, cells.rows, n_actions)
    task, action = np.zeros(n_tasks), np.zeros(n_actions)
    noise = spread = 0.0
    for _ in range(_ROUNDS):
        rest = cells.sums - cells.rows * task[cells.task]
        action = np.bincount(cells.action, rest, n_actions) / of_action
        rest = cells.sums - cells.rows * action[cells.action]
        sums = np.bincount(cells.task, rest, n_tasks)
        if not noise:
            squares = (
                cells.squares - 2 * action[cells.action] * cells.sums + cells.rows * action[cells.action] ** 2
            )
            noise, spread = _of_tasks(rows, sums, float(squares.sum()))
        task = spread * sums / (spread * rows + noise) if spread else np.zeros(n_tasks)
    return task, action


def _of_tasks(rows: NDArray[Any], sums: NDArray[Any], squares: float) -> tuple[float, float]:
    """Return the variance within and that between tasks, by their mean squares."""
    rows, sums = rows[rows > 0].astype(np.float64), sums[rows > 0]
    total, others = float(rows.sum()), max(rows.size - 1.0, 1.0)
    of_tasks = float((sums**2 / rows).sum())
    within = max((squares - of_tasks) / max(total - rows.size, 1.0), _TINY)
    between = (of_tasks - float(sums.sum()) ** 2 / total) / others
    size = (total - float((rows**2).sum()) / total) / others
    return within, max((between - within) / max(size, _TINY), 0.0)
