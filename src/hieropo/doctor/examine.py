"""From a log to its examination: one read, then the rules."""

from collections.abc import Iterator
from typing import Any

from hieropo._utils.blas_threads import one_blas_thread
from hieropo.doctor.collecting import Collected, Collector
from hieropo.doctor.examination import Examination, Finding, ordered
from hieropo.doctor.facts import facts
from hieropo.doctor.rules import features as rules_features
from hieropo.doctor.rules import incumbent as rules_incumbent
from hieropo.doctor.rules import propensities as rules_propensities
from hieropo.doctor.rules import tasks as rules_tasks
from hieropo.doctor.rules import time as rules_time
from hieropo.doctor.rules import values as rules_values
from hieropo.errors import LogError
from hieropo.logs.arrow.schema import check_columns, guess_roles
from hieropo.logs.bad_rows.row_hashes import is_hashable
from hieropo.logs.opening import open_log


def examine(log: Any, *, guess: bool = True, **roles: Any) -> Examination:
    """Read a log once and say what should be known before learning from it.

    Parameters
    ----------
    log : path, Arrow table or stream, data frame, relation
        As for ``fit``. All its columns are read, those without a role to find repeated rows.
    guess : bool
        Whether a role that is not named is guessed where one column bears a well-known name; ``guesses`` says so.
    **roles : str, or sequence of str
        Names of columns: ``task``, ``action``, ``reward``, ``pscore``, ``weight``, ``time``, ``eligible``, and several
        for ``context``, ``levels``, ``metadata``.

    Returns
    -------
    Examination
        Facts, and findings by severity: what stops learning, what limits conclusions, what is good to know. Values that
        a role cannot take are counted and left out; no row is refused.

    Raises
    ------
    InputError, SchemaError, LogError
        There is no such log or column, a column cannot play its role, a file is torn, there is no row.

    Examples
    --------
    >>> import pyarrow as pa
    >>> profit = [1.0, 2.0, None, 4.0, 3.0] * 12
    >>> log = pa.table({"store": ["a", "b"] * 30, "offer": [0, 0, 1, 1] * 15, "profit": profit})
    >>> found = examine(log, task="store", action="offer", reward="profit")
    >>> found.stops, found.findings[0].place
    (True, "column 'profit' from row 2")
    """
    source = open_log(log, lenient=True)
    named, told = guess_roles(source.schema, roles, _guessed(guess))
    check_columns(source.schema, named.items(), source.name, texts=True)
    hashed = tuple(
        field.name
        for field in source.schema
        if source.schema.names.count(field.name) == 1 and is_hashable(field.type)
    )
    columns = tuple(dict.fromkeys([*named.columns, *hashed]))
    collector = Collector(source.name, named, hashed)
    for batch in source.batches(columns):
        collector.add(batch)
    with one_blas_thread:
        return examined(collector.collected(), tuple(told))


def _guessed(guess: bool) -> tuple[str, ...]:  # noqa: FBT001
    from hieropo.logs.arrow.schema import ROLE_NAMES

    return tuple(ROLE_NAMES) if guess else ()


def examined(seen: Collected, guesses: tuple[str, ...] = ()) -> Examination:
    """Say what was collected of a log means.

    Raises
    ------
    LogError
        There is no row.
    """
    if not seen.looked_at:
        raise LogError(
            f"The {seen.name} has no rows. Is it the right one, and did an earlier filter leave anything?"
        )
    found = None if seen.sampled else rules_incumbent.incumbent(seen)
    return Examination(
        seen.name, seen.roles, guesses, facts(seen, found), ordered(list(_findings(seen, found)))
    )


def _findings(seen: Collected, found: rules_incumbent.Incumbent | None) -> Iterator[Finding]:
    yield from rules_values.faults(seen)
    yield from rules_values.reward(seen)
    yield from rules_features.features(seen)
    yield from rules_tasks.tasks(seen.cells.rows, seen.tasks.values, seen.roles.task)
    if seen.roles.action is not None:
        yield from rules_tasks.few_or_many_actions(seen.roles.action, seen.actions.values, seen.usable)
    yield from rules_tasks.chosen(seen)
    coefficients = 1 + len(seen.roles.context)
    yield from rules_tasks.rare_actions(
        seen.roles.action, seen.actions.values, seen.cells.actions, coefficients
    )
    yield from rules_time.repeats(seen)
    if seen.sampled:
        yield from rules_values.kept_by_chance(seen)
        return
    yield from rules_propensities.propensities(seen)
    yield from rules_incumbent.logging(seen, found)
    yield from rules_time.drift(seen)
    yield from rules_incumbent.overlap(seen, found)
    yield from rules_time.times(seen)
