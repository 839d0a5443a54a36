"""The table of decisions: columns of the requests, then columns of the answers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from hieropo._utils.arrays import Codes, Mask
from hieropo.decisions.choosing import Answers
from hieropo.errors import SchemaError
from hieropo.logs.bad_rows.rejects import BadValues, Reason

_BEFORE = ("row",)
_AFTER = ("action", "rank", "propensity", "lower_bound", "mean", "sd", "runner_up", "task_known")
_LAST = ("kept_incumbent", "reason")
PREFIX = "request_"


class ColumnNames:
    """Names of the columns of a table of decisions.

    Parameters
    ----------
    own : sequence of str
        Columns of the requests that it carries along. One with the name of another column gets the prefix ``request_``.
    levels : sequence of str
        Levels of the log.
    leveled : sequence of str
        Context columns that have levels.

    Raises
    ------
    SchemaError
        The name with the prefix is taken as well.
    """

    levels: tuple[str, ...]
    leveled: dict[str, str]
    own: dict[str, str]

    def __init__(self, own: Sequence[str], levels: Sequence[str], leveled: Sequence[str] = ()) -> None:
        names = {level: f"{level}_known" for level in levels}
        self.levels = tuple(
            name if name not in _AFTER else f"level_{name}" for name in names.values()
        )  # a level may be called "task"
        taken = {*_AFTER, *self.levels}
        self.leveled = {
            column: f"context_{column}_known" if f"{column}_known" in taken else f"{column}_known"
            for column in leveled
        }
        reserved = {*_BEFORE, *_AFTER, *self.levels, *self.leveled.values(), *_LAST}
        self.own = {column: f"{PREFIX}{column}" if column in reserved else column for column in own}
        repeated = next((name for column, name in self.own.items() if column != name and name in own), None)
        if repeated is not None:
            column = repeated.removeprefix(PREFIX)
            raise SchemaError(
                f"The requests have the columns {column!r} and {repeated!r}. Decisions have a column {column!r} "
                f"themselves, and that of the requests would be called {repeated!r}. Rename one, or name the columns "
                "to carry along: id=[...], --id on the command line."
            )


def table_of(
    answers: Answers,
    own: dict[str, pa.Array],
    names: ColumnNames,
    *,
    number: Codes,
    unknown: Mapping[str, Mask],
    actions: pa.Array | None = None,
    candidates: Codes | None = None,
) -> pa.Table:
    """Return the table of decisions for n requests.

    Parameters
    ----------
    answers : Answers
        Of n requests, with one choice more than the table ranks: the runner-up of the last.
    own : dict of arrays
        Columns to carry along; a row for each request, or for each number of a candidate.
    number : (n,) int
        Numbers of the rows of the requests.
    unknown : mapping of arrays
        By context column, which rows have an unknown level; a row for each request, or for each number of a candidate.
    actions : array, optional
        Ids of the actions, by their indices; None where candidates are rows.
    candidates : (n, K) int, optional
        Numbers of the rows of the candidates.
    """
    choices = answers.choices
    n, top = choices.index.shape[0], choices.index.shape[1] - 1
    listed = choices.index[:, :top] >= 0
    listed[~listed[:, 0], 0] = True  # a request without an action has a row too
    rows, ranks = np.nonzero(listed) if top > 1 else (np.arange(n), np.zeros(n, dtype=np.int64))
    every = top == 1
    best = choices.index[:, 0] if every else choices.index[rows, ranks]
    next_best = choices.index[:, 1] if every else choices.index[rows, ranks + 1]
    columns: dict[str, Any] = {}
    if candidates is None:
        columns["row"] = number if every else number[rows]
        taken = rows
    else:
        columns["row"] = taken = _numbers_of(candidates, rows, np.maximum(best, 0))
    for column, name in names.own.items():
        values = own[column]
        columns[name] = values if every and candidates is None else values.take(pa.array(taken))
    if actions is not None:
        columns["action"] = _looked_up(actions, best)
    columns["rank"] = ranks + 1
    columns["propensity"] = pa.array(np.where(ranks == 0, 1.0, 0.0), mask=best < 0)
    for name in ("lower_bound", "mean", "sd"):
        values = getattr(choices, name)
        columns[name] = pa.array(
            values[:, 0] if every else values[rows, ranks], from_pandas=True
        )  # NaN is null
    if candidates is None:
        columns["runner_up"] = _looked_up(actions, next_best)
    else:
        runner_up = _numbers_of(candidates, rows, np.maximum(next_best, 0))
        columns["runner_up"] = pa.array(runner_up, mask=next_best < 0)
    unusable = ~answers.usable
    columns["task_known"] = pa.array(answers.task_known[rows], mask=unusable[rows])
    for name, (known, valid) in zip(names.levels, answers.groups, strict=True):
        columns[name] = pa.array(known[rows], mask=~valid[rows])
    for column, name in names.leveled.items():
        columns[name] = pa.array(~unknown[column][taken], mask=unusable[rows])
    columns["kept_incumbent"] = answers.kept[rows]
    columns["reason"] = (
        _reasons(answers.faults, n).take(pa.array(rows)) if answers.faults else _no_reason(rows.size)
    )
    return pa.table(columns)


def _numbers_of(candidates: Codes, rows: Codes, index: Codes) -> Codes:
    numbers: Codes = candidates[rows, np.minimum(index, candidates.shape[1] - 1)]
    return numbers


def _looked_up(actions: pa.Array, codes: Codes) -> pa.Array:
    return actions.take(pa.array(codes, mask=codes < 0))


def _no_reason(n: int) -> pa.Array:
    return pa.nulls(n, pa.string())


def _reasons(faults: Iterable[BadValues], n: int) -> pa.Array:
    """Return the reasons of each of n requests as text; null where it can be used."""
    texts: list[str | None] = [None] * n
    for fault in faults:
        text = f"{fault.column}: {fault.reason}" if fault.column else fault.reason
        for row in np.flatnonzero(fault.bad).tolist():
            before = texts[row]
            texts[row] = text if before is None else f"{before}; {text}"
    return pa.array(texts, pa.string())


def counted_reason(fault: BadValues, rows: pa.RecordBatch, first_row: int) -> Reason:
    """Return the count of the rows of a batch that have a fault, with the value of the first where there is one."""
    if fault.column in rows.schema.names:
        return fault.counted(rows, first_row)
    bad = fault.bad
    return Reason(fault.column, fault.reason, int(np.count_nonzero(bad)), first_row + int(bad.argmax()), None)
