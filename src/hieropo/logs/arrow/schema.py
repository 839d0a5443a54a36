"""Check the roles of columns in an Arrow schema before a row is read, and guess them where a name is unambiguous."""

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

NOTE = "hieropo.note"  # metadata of a field: the reason of its type
MIXED = pa.dense_union(
    [pa.field("", pa.null())]
)  # type of columns whose values have several types; they are read as text
SOURCE = "hieropo.source"  # metadata of a field: the column of the log that it was made of
TIME_OF_TEXT = b"hieropo.time_of_text"  # metadata of a field of times that were read from text
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


def source_of(field: pa.Field) -> str | None:
    """Return the column of the log that an encoded column was made of; None for a column of the log."""
    source = (field.metadata or {}).get(SOURCE.encode())
    return None if source is None else source.decode()


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
    "cluster": (is_id, "an id (text, a whole number, a date, a UUID)"),
    "id": (is_id, "an id (text, a whole number, a date, a UUID)"),
    "request": (is_id, "an id (text, a whole number, a date, a UUID)"),
    "eligible": (is_list_of_ids, "a list of action ids"),
    "time": (is_time, "a date, a time stamp or a number"),
    "filter": (lambda _: True, "anything"),
    "term": (lambda _: True, "anything"),
}
_NUMBER = (is_number, "a number")
_ELIGIBLE_ADVICE = (
    "The policy chooses only among the actions that this column lists. Add it; or name the column that lists them here "
    "(eligible=..., --eligible); or state that every action can be taken (eligible=False, --all-eligible)."
)
_TIME_ADVICE = (
    "Convert text to a date or a time stamp first, such as by pandas.to_datetime; files and frames with text of ISO "
    "8601, such as 2024-05-31 or 2024-05-31T14:30:00Z, are read as they are."
)
_SET_ASIDE_ADVICE = (
    "Correct such values, or set rows with them aside: lenient=True, on the command line --lenient."
)


def can_play(kind: pa.DataType, role: str) -> bool:
    """Return whether a column of this type can play a role."""
    return _TESTS.get(role, _NUMBER)[0](kind)


def may_name_clusters(kind: pa.DataType) -> bool:
    """Return whether values of this type may be ids of clusters; floats may be whole numbers with holes."""
    return can_play(kind, "cluster") and not (kinds.is_decimal(kind) or kinds.is_boolean(kind))


def check_columns(
    schema: pa.Schema,
    roles: Iterable[tuple[str, str]],
    name: str,
    *,
    texts: bool | None = None,
    sample_of: Callable[[str], str] = lambda _: "",
) -> None:
    """Check that each column (role, column) is there once and of a type that can play its role.

    Parameters
    ----------
    schema : pa.Schema
    roles : iterable of (role, column)
    name : str
        Name of the source.
    texts : bool, optional
        True where a column of text may hold numbers, and rows with other values are set aside; None where rows cannot
        be set aside at all.
    sample_of : callable
        Returns a sentence on the values of a column of text.

    Raises
    ------
    SchemaError
        Names the column, its role, its Arrow type, the source ``name`` and a likely cause.
    """
    roles = list(roles)
    for role, column in roles:  # before types: where a column is missing, text is not yet a category
        count = schema.names.count(column)
        if count == 0:
            raise SchemaError(_missing(schema, role, column, name))
        if count > 1:
            raise SchemaError(
                f"The {name} has {count} columns named {column!r} (role {role}), at positions "
                f"{schema.get_all_field_indices(column)}, so the name does not say which is meant. Did a join leave "
                "both? Rename or drop one."
            )
    for role, column in roles:
        field = schema.field(column)
        readable = role in NUMBER_ROLES and (holds_text(field.type) or field.type == MIXED)
        if not can_play(field.type, role) and not (texts and readable):
            advice = [sample_of(column), _SET_ASIDE_ADVICE] if readable and texts is not None else []
            if role == "context" and holds_text(field.type):
                advice.append("Or take it as a category by a formula: features='category(...)'.")
            raise SchemaError(" ".join(filter(None, [_wrong_type(field, role, name), *advice])))


def check_listed(schema: pa.Schema, eligible: str | None, name: str) -> None:
    """Check that requests have the column of eligible actions that the policy was fitted with, if any.

    Raises
    ------
    SchemaError
        The column is missing; the message says how to name the column, or to state that there is none.
    """
    if eligible is not None and eligible not in schema.names:
        raise SchemaError(f"{_missing(schema, 'eligible', eligible, name)} {_ELIGIBLE_ADVICE}")


def _missing(schema: pa.Schema, role: str, column: str, name: str) -> str:
    names = [field.name for field in schema if source_of(field) is None]  # not those made by terms
    by_lower_case = {columns.casefold(): columns for columns in reversed(names)}
    similar = [by_lower_case[match] for match in get_close_matches(column.casefold(), by_lower_case, n=3)]
    hint = f" Did you mean {' or '.join(map(repr, similar))}?" if similar else ""
    in_words = "context" if role == "term" else role
    return f"Column {column!r} (role {in_words}) is not in the {name}.{hint} Its columns: {abbreviate(names, 40)}."


def _wrong_type(field: pa.Field, role: str, name: str) -> str:
    need = _TESTS.get(role, _NUMBER)[1]
    kind = "mixed type" if field.type == MIXED else f"Arrow type {field.type}"
    note = note_of(field)
    advice = [_type_advice(field.type, role)] if note is None else [note]
    if note is not None and role == "time" and holds_text(field.type):
        advice.append(_TIME_ADVICE)
    return (
        f"Column {field.name!r} of the {name} is of {kind}, which cannot be {_article(role)}: {need} is needed. "
        f"{' '.join(advice)}"
    )


def note_of(field: pa.Field) -> str | None:
    """Return the reason of the type of a column that was read from text; None without one."""
    note = (field.metadata or {}).get(NOTE.encode())
    return None if note is None else note.decode()


def _article(role: str) -> str:
    text = "list of eligible actions" if role == "eligible" else role
    return f"an {text}" if text[0] in "aeiou" else f"a {text}"


def _type_advice(kind: pa.DataType, role: str) -> str:
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    if role == "eligible":
        return "Gather the actions of each row in one list column."
    if kinds.is_nested(kind):
        return "Give each of its entries a column of its own."
    if role == "time":
        return _TIME_ADVICE
    if role == "context" and not kinds.is_temporal(kind):
        return "Text is not read as numbers: cast it."
    if kinds.is_temporal(kind):
        return "Compute a number from it, such as the hour of the day or the days since a date."
    return "Cast the column first; text is not read as numbers."


ROLE_NAMES: dict[str, tuple[str, ...]] = {
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
_REQUIRED = ("task", "reward")


def guess_roles(
    schema: pa.Schema, given: Mapping[str, Any], guessed: Collection[str] = tuple(ROLE_NAMES)
) -> tuple[Roles, list[str]]:
    """Return the roles that were given, and further ones guessed from unambiguous names of columns.

    A role is guessed only where exactly one column bears a well-known name of it: letters and digits are compared,
    so that ``userId`` is ``user_id``. Columns that were given a role are left out, and so are columns whose type
    cannot play an optional role. Contexts, levels and metadata are never guessed. Without a column of tasks all rows
    are one task.

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
    notes : list of str
        A sentence for each guess, and for each role that more than one column could play.

    Raises
    ------
    SchemaError
        The reward is neither given nor can be guessed, or several columns could be the task.
    """
    named = {role: columns for role, columns in given.items() if columns}
    used = {column for columns in named.values() for column in _as_names(columns)}
    free = [column for column in schema.names if column not in used]
    notes = []
    for role, names in ROLE_NAMES.items():
        if role in named or role not in guessed:
            continue
        candidates = _candidates(schema, free, role)
        if len(candidates) == 1:
            named[role] = candidates[0]
            notes.append(f"Column {candidates[0]!r} is taken as the {_role_in_words(role)}, by its name.")
        elif candidates and role not in _REQUIRED:
            notes.append(
                f"No column is taken as the {_role_in_words(role)}: {_joined_names(candidates)} could be."
            )
        elif not candidates and (same_name := _named_like(free, names)):
            notes.append(_named_but_wrong_type(schema.field(same_name[0]), role))
    if "task" not in named and not ("task" in guessed and _candidates(schema, free, "task")):
        named["task"] = None
        notes.append(
            "No column of tasks is named, and none has a well-known name of one: all rows are one task."
        )
    missing = next((role for role in _REQUIRED if role not in named), None)
    if missing is not None:
        raise SchemaError(_not_guessed(missing, schema, free))
    return Roles(**{"action": None, **named}), notes


def like_a_cost(name: str) -> bool:
    """Return whether the name of a column suggests a cost, of which less is better."""
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).casefold())
    return not _COSTS.isdisjoint(words)


def _as_names(columns: Any) -> tuple[Any, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _candidates(schema: pa.Schema, free: list[str], role: str) -> list[str]:
    """Return the columns that have a well-known name of a role."""
    candidates = _named_like(free, ROLE_NAMES[role])
    if role in _REQUIRED or len(set(candidates)) < len(candidates):
        return candidates
    return [column for column in candidates if can_play(schema.field(column).type, role)]


def _named_like(columns: list[str], names: tuple[str, ...]) -> list[str]:
    bare = {_letters_and_digits(name) for name in names}
    return [column for column in columns if _letters_and_digits(column) in bare]


def _letters_and_digits(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


def _named_but_wrong_type(field: pa.Field, role: str) -> str:
    """Return the note on a column whose name suggests a role that its type cannot play."""
    note = note_of(field)
    note_text = "" if note is None else f" {note}"
    if note is None and role == "time" and holds_text(field.type):
        option = f"time={field.name!r}, on the command line --time {field.name}"
        note_text = f" Where it is text of ISO 8601, name it: {option}."
    return (
        f"Column {field.name!r} is not taken as the {_role_in_words(role)}, as its name suggests, since its type is "
        f"{'mixed' if field.type == MIXED else field.type}.{note_text}"
    )


def _role_in_words(role: str) -> str:
    return {"pscore": "propensity", "eligible": "list of eligible actions"}.get(role, role)


def _joined_names(columns: list[str]) -> str:
    return " and ".join(repr(column) for column in columns)


def _not_guessed(role: str, schema: pa.Schema, free: list[str]) -> str:
    advice = f"Name it: {role}='...', on the command line --{role}."
    candidates = _candidates(schema, free, role)
    if len(candidates) == 1:
        return (
            f"The role {role} needs a column, and none is guessed here. {candidates[0]!r} has a well-known name of "
            f"one. {advice}"
        )
    if candidates:
        return (
            f"More than one column could be the {role}: {_joined_names(candidates)}. Roles are guessed only where one "
            f"column could play them. {advice}"
        )
    costs = [column for column in free if like_a_cost(column)] if role == "reward" else []
    if costs:
        return (
            f"No column has a well-known name of a reward, and {costs[0]!r} looks like a cost. Larger rewards are "
            f"better: make a column of -{costs[0]} and name that, reward='...', on the command line --reward."
        )
    examples = ", ".join(ROLE_NAMES[role][:4])
    return (
        f"The role {role} needs a column, and none has a well-known name of one (such as {examples}). {advice} "
        f"Columns: {abbreviate(schema.names, 40)}."
    )
