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
    """Write a log as contextual-bandit examples of Vowpal Wabbit, whole or not at all.

    An example has the task in the namespace Task, the context in Context, and where actions have features (all forms
    but ``cb``) their id in Action. To learn for each task apart, cross them: ``-q TA``, or ``--interactions TCA``.

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
    ``%`` and two digits, which ``from_vw(..., quoted=True)`` reads back; Vowpal Wabbit does not mind.
    """
    if form not in get_args(Form):
        raise InputError(f"form={form!r} is none of {', '.join(map(repr, get_args(Form)))}.")
    ignored = [name for name in (task, action, *context) if form == "dsjson" and name.startswith("_")]
    if ignored:
        raise SchemaError(
            f"Column {ignored[0]!r} cannot be written as dsjson: Vowpal Wabbit passes over names that begin with _. "
            "Rename it, or write cb_adf."
        )
    source = open_log(log, rereadable=True)
    listed = indicator(distinct_values(source, action))
    roles = Roles(task, action, reward, pscore, context=tuple(context), eligible=eligible)
    rows = 0

    def lines() -> Iterator[str]:
        nonlocal rows
        for row in _rows(read(source, roles), listed):
            rows += 1
            yield _FORMS[form](row, roles, listed.actions)

    write_lines(path, lines())
    return Written(str(path), rows, listed.actions)


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


def _rows(batches: Iterator[Batch], listed: Crossed) -> Iterator[_Row]:
    everything = list(range(1, listed.dim + 1))
    for batch in batches:
        codes = listed.action_codes(batch.action, first_row=batch.first_row)
        lists = None if batch.eligible is None else batch.eligible.lists
        for k in range(len(batch)):
            taken, at = int(codes[k]) + 1, batch.first_row + k
            eligible = everything
            if lists is not None:
                eligible = [int(code) + 1 for code in listed.action_codes(lists[k], first_row=at)]
            assert batch.pscore is not None  # its role is asked for
            yield _Row(
                at, str(plain(batch.task[k])), taken, reward_of(batch.reward[k]), float(batch.pscore[k]),
                batch.context[k].tolist(), eligible, lists is not None,
            )  # fmt: skip


def _word(name: object) -> str:
    return str(name).translate(_SIGNS)


def _shared(row: _Row, roles: Roles) -> str:
    """The features of a line that do not depend on the action."""
    numbers = (f" {_word(name)}:{value!r}" for name, value in zip(roles.context, row.context, strict=True))
    context = "".join(numbers)
    return f"|Task {_word(roles.task)}={_word(row.task)}" + (f" |Context{context}" if context else "")


def _cb(row: _Row, roles: Roles, _: tuple[Any, ...]) -> str:
    others = [str(each) for each in row.eligible if each != row.action] if row.limited else []
    if row.limited and not others:
        raise LogError(
            f"Row {row.number}: one action was eligible, which the form cb cannot say. Leave such rows out, or write "
            "cb_adf."
        )
    label = " ".join([f"{row.action}:{row.cost!r}:{row.pscore!r}", *others])
    return f"{label} {_shared(row, roles)}"


def _cb_adf(row: _Row, roles: Roles, actions: tuple[Any, ...]) -> str:
    lines = [f"shared {_shared(row, roles)}"]
    for each in row.eligible:
        label = f"{each}:{row.cost!r}:{row.pscore!r} " if each == row.action else ""
        lines.append(f"{label}|Action {_word(roles.action)}={_word(plain(actions[each - 1]))}")
    return "\n".join([*lines, ""])


def _dsjson(row: _Row, roles: Roles, actions: tuple[Any, ...]) -> str:
    place = row.eligible.index(row.action)
    rest = [k for k in range(1, len(row.eligible) + 1) if k != place + 1]
    found = {
        "_label_cost": row.cost,
        "_label_probability": row.pscore,
        "_label_Action": place + 1,
        "_labelIndex": place,
        "Version": "1",
        "EventId": str(row.number),
        "a": [place + 1, *rest],
        "c": {
            "Task": {roles.task: row.task},
            "Context": dict(zip(roles.context, row.context, strict=True)),
            "_multi": [{"Action": {roles.action: str(plain(actions[each - 1]))}} for each in row.eligible],
        },
    }
    return json.dumps(found, ensure_ascii=False, allow_nan=False)


_FORMS: dict[str, Callable[[_Row, Roles, tuple[Any, ...]], str]] = {
    "cb": _cb,
    "cb_adf": _cb_adf,
    "dsjson": _dsjson,
}
