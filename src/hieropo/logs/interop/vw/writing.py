"""A log as a file that Vowpal Wabbit reads."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from hieropo.errors import InputError, LogError, SchemaError
from hieropo.features.maps import Crossed, indicator
from hieropo.logs.arrow.writing import write_lines
from hieropo.logs.interop.vw.example import reward_of
from hieropo.logs.interop.vw.log import Form
from hieropo.logs.opening import open_log
from hieropo.logs.reading import distinct_values, read
from hieropo.rows.batches import Batch, Roles
from hieropo.rows.ids import plain

_SIGNS = str.maketrans({sign: f"%{ord(sign):02X}" for sign in "%|:=' \t\r\n"})


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written.

    Attributes
    ----------
    path : str
    rows : int
        Number of examples.
    actions : tuple of ids
        Action 1, 2, ... of Vowpal Wabbit.
    """

    path: str
    rows: int
    actions: tuple[Any, ...]


def to_vw(  # noqa: PLR0913  # a path, a form, and the roles of a log
    log: Any,
    path: str | Path,
    form: Form,
    *,
    task: str,
    action: str,
    reward: str,
    pscore: str,
    context: Sequence[str] = (),
    eligible: str | None = None,
) -> Written:
    """Write a log as contextual-bandit examples of Vowpal Wabbit; after an error no partial file is left.

    An example has the task in the namespace Task, the context in Context, and where actions have features (all forms
    but ``cb``) their id in Action. To learn each task separately, cross them: ``-q TA``, or ``--interactions TCA``.

    Parameters
    ----------
    log : anything that :func:`hieropo.logs.open_log` takes
    path : str or Path
    form : "cb", "cb_adf" or "dsjson"
    task, action, reward, context, eligible
        Names of columns.
    pscore : str
        Column of logged propensities, without which Vowpal Wabbit learns nothing.

    Returns
    -------
    Written
        Actions are numbered from 1 in the order of their ids.

    Raises
    ------
    SchemaError, LogError
        A column or a row that cannot be used; in the form ``cb``, a row with one eligible action.
    InputError
        No such form.
    ArtifactError
        The file cannot be written.

    Notes
    -----
    cost = -reward. Ids become text. In lines of text the signs ``% | : = '`` and blanks of ids and names are written as
    ``%`` and two digits, which ``from_vw(..., quoted=True)`` reads back; Vowpal Wabbit reads them as other characters.
    """
    if form not in get_args(Form):
        raise InputError(f"form={form!r} is none of {', '.join(map(repr, get_args(Form)))}.")
    ignored = [name for name in (task, action, *context) if form == "dsjson" and name.startswith("_")]
    if ignored:
        raise SchemaError(
            f"Column {ignored[0]!r} cannot be written as dsjson: Vowpal Wabbit ignores names that begin with _. Rename "
            "the column, or write the form cb_adf."
        )
    source = open_log(log, rereadable=True)
    action_map = indicator(distinct_values(source, action))
    roles = Roles(task, action, reward, pscore, context=tuple(context), eligible=eligible)
    rows = 0

    def lines() -> Iterator[str]:
        nonlocal rows
        for row in _rows(read(source, roles), action_map):
            rows += 1
            yield _FORMS[form](row, roles, action_map.actions)

    write_lines(path, lines())
    return Written(str(path), rows, action_map.actions)


@dataclass(frozen=True, slots=True)
class _Row:
    number: int
    task: str
    action: int  # from 1
    cost: float
    pscore: float
    context: list[float]
    eligible: list[int]
    limited: bool


def _rows(batches: Iterator[Batch], action_map: Crossed) -> Iterator[_Row]:
    all_actions = list(range(1, action_map.dim + 1))
    for batch in batches:
        codes = action_map.action_codes(batch.action, first_row=batch.first_row)
        lists = None if batch.eligible is None else batch.eligible.lists
        for k in range(len(batch)):
            action, row = int(codes[k]) + 1, batch.first_row + k
            eligible = all_actions
            if lists is not None:
                eligible = [int(code) + 1 for code in action_map.action_codes(lists[k], first_row=row)]
            assert batch.pscore is not None  # to_vw requires the role
            yield _Row(
                row, str(plain(batch.task[k])), action, reward_of(batch.reward[k]), float(batch.pscore[k]),
                batch.context[k].tolist(), eligible, lists is not None,
            )  # fmt: skip


def _word(name: object) -> str:
    return str(name).translate(_SIGNS)


def _shared(row: _Row, roles: Roles) -> str:
    """Return the features of a line that do not depend on the action."""
    numbers = (f" {_word(name)}:{value!r}" for name, value in zip(roles.context, row.context, strict=True))
    context = "".join(numbers)
    return f"|Task {_word(roles.task_name)}={_word(row.task)}" + (f" |Context{context}" if context else "")


def _cb(row: _Row, roles: Roles, _: tuple[Any, ...]) -> str:
    others = [str(action) for action in row.eligible if action != row.action] if row.limited else []
    if row.limited and not others:
        raise LogError(
            f"Row {row.number}: only one action was eligible, which the form cb cannot express. Drop such rows, or "
            "write the form cb_adf."
        )
    label = " ".join([f"{row.action}:{row.cost!r}:{row.pscore!r}", *others])
    return f"{label} {_shared(row, roles)}"


def _cb_adf(row: _Row, roles: Roles, actions: tuple[Any, ...]) -> str:
    lines = [f"shared {_shared(row, roles)}"]
    for action in row.eligible:
        label = f"{action}:{row.cost!r}:{row.pscore!r} " if action == row.action else ""
        lines.append(f"{label}|Action {_word(roles.action)}={_word(plain(actions[action - 1]))}")
    return "\n".join([*lines, ""])


def _dsjson(row: _Row, roles: Roles, actions: tuple[Any, ...]) -> str:
    position = row.eligible.index(row.action)
    others = [k for k in range(1, len(row.eligible) + 1) if k != position + 1]
    example = {
        "_label_cost": row.cost,
        "_label_probability": row.pscore,
        "_label_Action": position + 1,
        "_labelIndex": position,
        "Version": "1",
        "EventId": str(row.number),
        "a": [position + 1, *others],
        "c": {
            "Task": {roles.task_name: row.task},
            "Context": dict(zip(roles.context, row.context, strict=True)),
            "_multi": [
                {"Action": {roles.action: str(plain(actions[action - 1]))}} for action in row.eligible
            ],
        },
    }
    return json.dumps(example, ensure_ascii=False, allow_nan=False)


_FORMS: dict[str, Callable[[_Row, Roles, tuple[Any, ...]], str]] = {
    "cb": _cb,
    "cb_adf": _cb_adf,
    "dsjson": _dsjson,
}
