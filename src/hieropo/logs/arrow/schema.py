"""Roles of columns in an Arrow schema: checked before a row is read, and guessed where names leave no doubt."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from hieropo.errors import SchemaError
from hieropo.logs.arrow.arrays import is_uuid
from hieropo.rows.batches import Roles
from hieropo.rows.ids import abbreviate

NOTE = "hieropo.note"  # metadata of a field: why its type is as it is
MIXED = pa.dense_union(
    [pa.field("", pa.null())]
)  # of columns that have no one type; they are handed out as text
NUMBER_ROLES = ("reward", "pscore", "weight", "precision", "sampling_weight", "context", "metadata")

_NUMBERS = (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_decimal, kinds.is_null)
_TEXTS = (kinds.is_string, kinds.is_large_string, kinds.is_string_view)
_SCALARS = (
    *_NUMBERS,
    *_TEXTS,
    kinds.is_binary,
    kinds.is_large_binary,
    kinds.is_binary_view,
    kinds.is_fixed_size_binary,
    kinds.is_date,
    kinds.is_timestamp,
    is_uuid,
)
_LISTS = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list)


def _is_any(kind: pa.DataType, tests: Iterable[Callable[[pa.DataType], bool]]) -> bool:
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    return any(test(kind) for test in tests)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds text, not encoded."""
    return any(test(kind) for test in _TEXTS)


def holds_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds text, encoded or not."""
    return _is_any(kind, _TEXTS)


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column of this type can be a reward, a propensity, a weight, a precision or a context."""
    return _is_any(kind, _NUMBERS)


def is_id(kind: pa.DataType) -> bool:
    """Return whether a column of this type can name tasks or actions."""
    return _is_any(kind, _SCALARS)


def is_list_of_ids(kind: pa.DataType) -> bool:
    """Return whether a column of this type can list eligible actions."""
    return any(test(kind) for test in _LISTS) and is_id(kind.value_type)


def is_time(kind: pa.DataType) -> bool:
    """Return whether a column of this type can say when an action was chosen."""
    return is_number(kind) or _is_any(kind, (kinds.is_date, kinds.is_timestamp))


_TESTS: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "task": (is_id, "an id (text, a whole number, a date, a UUID)"),
    "action": (is_id, "an id (text, a whole number, a date, a UUID)"),
    "level": (is_id, "an id (text, a whole number, a date, a UUID)"),
    "id": (is_id, "an id (text, a whole number, a date, a UUID)"),
    "request": (is_id, "an id (text, a whole number, a date, a UUID)"),
    "eligible": (is_list_of_ids, "a list of action ids"),
    "time": (is_time, "a date, a time stamp or a number"),
    "filter": (lambda _: True, "anything"),
}
_NUMBER = (is_number, "a number")
_UNLISTED = (
    "A choice never leaves the actions that this column lists. Add it; or name the column that lists them here "
    "(eligible=..., --eligible); or say that every action can be taken (eligible=False, --all-eligible)."
)
_ASIDE = "Mend such values, or have rows with them set aside: lenient=True, on the command line --lenient."


def can_play(kind: pa.DataType, role: str) -> bool:
    """Return whether a column of this type can play a role."""
    return _TESTS.get(role, _NUMBER)[0](kind)


def check_columns(
    schema: pa.Schema,
    roles: Iterable[tuple[str, str]],
    name: str,
    *,
    texts: bool | None = None,
    shown: Callable[[str], str] = lambda _: "",
) -> None:
    """Check that each column (role, column) is there once and of a type that can play its role.

    Parameters
    ----------
    schema : pa.Schema
    roles : iterable of (role, column)
    name : str
        Of the source.
    texts : bool, optional
        Whether a column of text may be named as numbers, so that values which are none are set aside; None where
        rows cannot be set aside at all.
    shown : callable
        Gives a sentence on what a column of text holds.

    Raises
    ------
    SchemaError
        Names the column, its role, its Arrow type, the source ``name`` and a likely cause.
    """
    for role, column in roles:
        count = schema.names.count(column)
        if count == 0:
            raise SchemaError(_missing(schema, role, column, name))
        if count > 1:
            raise SchemaError(
                f"The {name} has {count} columns named {column!r} (role {role}), at positions "
                f"{schema.get_all_field_indices(column)}; which is meant? Did a join leave both? Rename "
                "or drop one."
            )
        field = schema.field(column)
        readable = role in NUMBER_ROLES and (holds_text(field.type) or field.type == MIXED)
        if not can_play(field.type, role) and not (texts and readable):
            more = [shown(column), _ASIDE] if readable and texts is not None else []
            raise SchemaError(" ".join(filter(None, [_unfit(field, role, name), *more])))


def check_listed(schema: pa.Schema, eligible: str | None, name: str) -> None:
    """Check that the rows for which a policy chooses have its column of eligible actions, where there is one.

    Raises
    ------
    SchemaError
        They do not; says how to name the column, or that there is none.
    """
    if eligible is not None and eligible not in schema.names:
        raise SchemaError(f"{_missing(schema, 'eligible', eligible, name)} {_UNLISTED}")


def _missing(schema: pa.Schema, role: str, column: str, name: str) -> str:
    folded = {known.casefold(): known for known in reversed(schema.names)}
    near = [folded[match] for match in get_close_matches(column.casefold(), folded, n=3)]
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    known = abbreviate(schema.names, 40)
    return f"Column {column!r} (role {role}) is not in the {name}.{hint} Its columns: {known}."


def _unfit(field: pa.Field, role: str, name: str) -> str:
    need = _TESTS.get(role, _NUMBER)[1]
    kind = "mixed type" if field.type == MIXED else f"Arrow type {field.type}"
    why = (field.metadata or {}).get(NOTE.encode())
    return (
        f"Column {field.name!r} of the {name} is of {kind}, which cannot be {_article(role)}: {need} is needed. "
        f"{_cure(field.type, role) if why is None else why.decode()}"
    )


def _article(role: str) -> str:
    text = "list of eligible actions" if role == "eligible" else role
    return f"an {text}" if text[0] in "aeiou" else f"a {text}"


def _cure(kind: pa.DataType, role: str) -> str:
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    if role == "eligible":
        return "Gather the actions of each row in one list column."
    if kinds.is_nested(kind):
        return "Spread its entries over columns, one for each."
    if role == "time":
        return "Read text as a date or a time stamp before."
    if role == "context" and not kinds.is_temporal(kind):
        return "Text is not read as numbers: cast it, or spread categories over 0/1 columns."
    if kinds.is_temporal(kind):
        return "Make it a number that says what matters, such as the hour or the days since a date."
    return "Cast the column before; text is not read as numbers."


KNOWN = {
    "task": (
        "task", "task_id", "user", "user_id", "customer", "customer_id", "client_id", "member_id", "account_id",
        "tenant", "tenant_id", "store", "store_id", "campaign", "campaign_id", "site_id", "school_id", "patient_id",
        "subject_id", "visitor_id",
    ),
    "action": (
        "action", "action_id", "action_taken", "chosen_action", "arm", "arm_id", "item_id", "offer", "offer_id",
        "treatment", "variant", "variant_id",
    ),
    "reward": (
        "reward", "rewards", "outcome", "payoff", "click", "clicked", "conversion", "converted", "response", "profit",
    ),
    "pscore": (
        "pscore", "propensity", "propensity_score", "prob", "probability", "action_prob", "action_probability",
        "action_propensity", "logging_prob", "logging_propensity", "logged_propensity", "behavior_prob",
        "behaviour_prob",
    ),
    "weight": ("case_weight", "row_weight"),
    "sampling_weight": ("sampling_weight", "inverse_sampling_probability"),
    "eligible": ("eligible", "eligible_actions", "available_actions", "action_set"),
    "time": (
        "time", "timestamp", "ts", "datetime", "date", "event_time", "event_timestamp", "decision_time", "created_at",
        "decided_at", "logged_at", "occurred_at",
    ),
}  # fmt: skip
_COSTS = {
    "cost", "costs", "loss", "losses", "regret", "penalty", "latency", "error", "errors", "churn", "churned",
}  # fmt: skip
_NEEDED = ("task", "reward")


def guess_roles(
    schema: pa.Schema, given: Mapping[str, Any], guessed: Collection[str] = tuple(KNOWN)
) -> tuple[Roles, list[str]]:
    """Complete the roles that were given by those that names of columns leave no doubt about.

    A role is guessed only where exactly one column bears a well-known name of it: letters and digits are compared,
    so that ``userId`` is ``user_id``. Columns that were given a role are left out, and so are columns whose type
    cannot play an optional role. Contexts, levels and metadata are never guessed.

    Parameters
    ----------
    schema : pa.Schema
    given : mapping
        Column, or columns, of each role that the caller names; None and empty ones are not given.
    guessed : collection of str
        Roles that may be guessed.

    Returns
    -------
    roles : Roles
    told : list of str
        A sentence for each guess, and for each role that more than one column could play.

    Raises
    ------
    SchemaError
        The task or the reward is neither given nor can be told.
    """
    named = {role: columns for role, columns in given.items() if columns}
    taken = {column for columns in named.values() for column in _listed(columns)}
    free = [column for column in schema.names if column not in taken]
    told = []
    for role, names in KNOWN.items():
        if role in named or role not in guessed:
            continue
        found = _bearing(schema, free, role)
        if len(found) == 1:
            named[role] = found[0]
            told.append(f"Column {found[0]!r} is taken as the {_said(role)}, by its name.")
        elif found and role not in _NEEDED:
            told.append(f"No column is taken as the {_said(role)}: {_either(found)} could be.")
        elif not found and (called := _called(free, names)):
            told.append(_unfitting(schema.field(called[0]), role))
    for role in _NEEDED:
        if role not in named:
            raise SchemaError(_unknown(role, schema, free))
    return Roles(**{"action": None, **named}), told


def like_a_cost(name: str) -> bool:
    """Return whether a column is named like something of which less is better."""
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).casefold())
    return not _COSTS.isdisjoint(words)


def _listed(columns: Any) -> tuple[Any, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _bearing(schema: pa.Schema, free: list[str], role: str) -> list[str]:
    """Columns that bear a well-known name of a role."""
    found = _called(free, KNOWN[role])
    if role in _NEEDED or len(set(found)) < len(found):
        return found
    return [column for column in found if can_play(schema.field(column).type, role)]


def _called(columns: list[str], names: tuple[str, ...]) -> list[str]:
    bare = {_bare(name) for name in names}
    return [column for column in columns if _bare(column) in bare]


def _bare(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


def _unfitting(field: pa.Field, role: str) -> str:
    """Say that a column is named like a role that its type cannot play."""
    why = (field.metadata or {}).get(NOTE.encode())
    more = "" if why is None else f" {why.decode()}"
    return (
        f"Column {field.name!r} is not taken as the {_said(role)}, as its name suggests, since its type is "
        f"{'mixed' if field.type == MIXED else field.type}.{more}"
    )


def _said(role: str) -> str:
    return {"pscore": "propensity", "eligible": "list of eligible actions"}.get(role, role)


def _either(columns: list[str]) -> str:
    return " and ".join(repr(column) for column in columns)


def _unknown(role: str, schema: pa.Schema, free: list[str]) -> str:
    name = f"Name it: {role}='...', on the command line --{role}."
    found = _bearing(schema, free, role)
    if found:
        return (
            f"More than one column could be the {role}, {_either(found)}, and nothing is guessed then. {name}"
        )
    costs = [column for column in free if like_a_cost(column)] if role == "reward" else []
    if costs:
        return (
            f"No column is known to be the reward, and {costs[0]!r} looks like a cost. Larger rewards are better: make "
            f"a column of -{costs[0]} and name that, reward='...', on the command line --reward."
        )
    such = ", ".join(KNOWN[role][:4])
    return (
        f"The role {role} needs a column, and none bears a well-known name of one (such as {such}). {name} Columns: "
        f"{abbreviate(schema.names, 40)}."
    )
