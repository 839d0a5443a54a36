"""From a log to its examination: one read, then the rules."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hieropo._utils.blas_threads import one_blas_thread
from hieropo._utils.progress import shows_progress
from hieropo.doctor.collecting import Collector, LogStatistics
from hieropo.doctor.examination import Examination, Finding, ordered
from hieropo.doctor.facts import facts
from hieropo.doctor.rules import features as rules_features
from hieropo.doctor.rules import incumbent as rules_incumbent
from hieropo.doctor.rules import propensities as rules_propensities
from hieropo.doctor.rules import tasks as rules_tasks
from hieropo.doctor.rules import time as rules_time
from hieropo.doctor.rules import values as rules_values
from hieropo.errors import LogError
from hieropo.logs.arrow.schema import check_columns, guess_roles, may_name_clusters, note_of
from hieropo.logs.bad_rows.row_hashes import is_hashable
from hieropo.logs.opening import open_log
from hieropo.passes.designs import design_of


@shows_progress
def examine(log: Any, *, guess: bool = True, **roles: Any) -> Examination:
    """Read a log once and return facts and findings for a reader who will learn from it.

    Parameters
    ----------
    log : path, Arrow table or stream, data frame, relation
        As for ``fit``. All its columns are read, those without a role to find repeated rows.
    guess : bool
        True to guess a role that is not named where exactly one column has a well-known name for it; ``guesses`` lists
        such roles.
    **roles : str, or sequence of str
        Names of columns: ``task``, ``action``, ``reward``, ``pscore``, ``weight``, ``time``, ``eligible``, and several
        for ``context``, ``levels``, ``metadata``.

    Returns
    -------
    Examination
        Facts, and findings of three severities: "stops" learning, "limits" conclusions, "note". Values that a role
        cannot take are counted and left out; no row is refused.

    Raises
    ------
    InputError, SchemaError, LogError
        The log or a column does not exist, a column cannot play its role, a file is incomplete, or there are no rows.

    Examples
    --------
    >>> import pyarrow as pa
    >>> profit = [1.0, 2.0, None, 4.0, 3.0] * 12
    >>> log = pa.table({"store": ["a", "b"] * 30, "offer": [0, 0, 1, 1] * 15, "profit": profit})
    >>> found = examine(log, task="store", action="offer", reward="profit")
    >>> found.stops, found.findings[0].place
    (True, "column 'profit' from row 2")
    """
    source = open_log(log, lenient=True, rereadable=bool(roles.get("context") or roles.get("time")))
    role_columns, guesses = guess_roles(source.schema, roles, _guessed(guess))
    named, of_log = role_columns, frozenset(source.schema.names)
    design = design_of(None, source, named, lenient=True, holes=True)
    source, role_columns = design.source, design.roles
    check_columns(source.schema, role_columns.items(), source.name, texts=True)
    hashed = tuple(
        field.name
        for field in source.schema
        if source.schema.names.count(field.name) == 1 and is_hashable(field.type) and field.name in of_log
    )
    columns = tuple(dict.fromkeys([*role_columns.columns, *hashed]))
    time = role_columns.time
    time_kind = None if time is None else source.schema.field(time).type
    task = role_columns.task
    note = note_of(source.schema.field(task)) if isinstance(task, str) else None
    playing = {*role_columns.columns, *named.columns}
    unnamed = tuple(
        name for name in hashed if name not in playing and may_name_clusters(source.schema.field(name).type)
    )
    collector = Collector(
        source.name, role_columns, hashed, time_kind=time_kind, task_note=note, unnamed=unnamed
    )
    for batch in source.batches(columns):
        collector.add(batch)
    with one_blas_thread:
        examination = examined(replace(collector.collected(), source=source), tuple(guesses))
    return replace(examination, roles=replace(examination.roles, context=named.context))


def _guessed(guess: bool) -> tuple[str, ...]:  # noqa: FBT001
    from hieropo.logs.arrow.schema import ROLE_NAMES

    return tuple(ROLE_NAMES) if guess else ()


def examined(stats: LogStatistics, guesses: tuple[str, ...] = ()) -> Examination:
    """Apply the rules to the statistics of a log.

    Raises
    ------
    LogError
        The log has no rows.
    """
    if not stats.looked_at:
        raise LogError(
            f"The {stats.name} has no rows, so that there is nothing to examine. Is it the right log, or did an "
            "earlier "
            "filter remove all rows?"
        )
    logging_policy = None if stats.sampled else rules_incumbent.incumbent(stats)
    return Examination(
        stats.name,
        stats.roles,
        guesses,
        facts(stats, logging_policy),
        ordered(list(_findings(stats, logging_policy))),
    )


def _findings(stats: LogStatistics, logging_policy: rules_incumbent.Incumbent | None) -> Iterator[Finding]:
    yield from rules_values.faults(stats)
    yield from rules_values.reward(stats)
    yield from rules_values.averaged(stats)
    yield from rules_features.features(stats)
    yield from rules_tasks.tasks(stats.cells.rows, stats.tasks.values, stats.roles, stats.task_note)
    yield from rules_tasks.no_action(stats.roles)
    if stats.roles.action is not None:
        yield from rules_tasks.few_or_many_actions(stats.roles.action, stats.actions.values, stats.usable)
    yield from rules_tasks.chosen(stats)
    coefficients = 1 + len(stats.roles.context)
    yield from rules_tasks.rare_actions(
        stats.roles.action, stats.actions.values, stats.cells.actions, coefficients
    )
    yield from rules_time.repeats(stats)
    yield from rules_tasks.alike_rows(stats)
    if stats.sampled:
        yield from rules_values.kept_by_chance(stats)
        return
    yield from rules_propensities.propensities(stats)
    yield from rules_incumbent.logging(stats, logging_policy)
    yield from rules_time.drift(stats)
    yield from rules_incumbent.overlap(stats, logging_policy)
    yield from rules_time.times(stats)
