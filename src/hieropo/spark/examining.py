"""The doctor on a Spark frame: exact counts from one aggregate, and rules over all rows of some tasks."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from hieropo._utils.text import counted, percent
from hieropo.doctor.examination import Examination, Finding, ordered
from hieropo.doctor.examine import examine
from hieropo.errors import InputError
from hieropo.logs.arrow.log_source import empty
from hieropo.logs.arrow.schema import ROLE_NAMES, check_columns, guess_roles
from hieropo.rows.batches import Roles, column_tuple
from hieropo.spark.hashing import SHARD, quoted, with_shards
from hieropo.spark.sources import arrow_schema

_MOST_PARTS = 2**20
_EXACT = {
    "missing": "Missing",
    "NaN": "NaN",
    "infinite": "Infinite",
}  # reasons that an aggregate of Spark counts
_ONE_BY_ONE = (
    "context",
    "term",
    "eligible",
    "cluster",
    "request",
)  # roles whose missing values are no fault, or lists


class _Counts(NamedTuple):
    """Exact counts of a frame: rows, values that a role cannot take by (column, reason), actions, about its tasks."""

    rows: int
    unusable: dict[tuple[str, str], int]
    actions: int | None
    about_tasks: int | None


def doctor(
    frame: Any, *, rows: int = 1_000_000, seed: int = 0, guess: bool = True, **roles: Any
) -> Examination:
    """Examine a Spark frame as :func:`hieropo.doctor.examine` does a log.

    One aggregate counts the rows, the actions, and the missing, NaN and infinite values of each role, exactly. All
    other findings come from rows that the driver takes in: all of them up to ``rows``, else all rows of one task in S,
    where S is the least power of two that brings about ``rows``. These are the tasks of one shard, by the hash of
    :mod:`hieropo.rows.task_hash`, so that what is found within tasks is found of whole tasks. The examination says
    which findings are of all rows. Without a column of tasks the sample is one of rows.

    Parameters
    ----------
    frame : DataFrame
        Read twice.
    rows : int
        Rows to take in, about.
    seed : int
        Of the sample: its shard is ``seed`` modulo S.
    guess, **roles
        As of :func:`hieropo.doctor.examine`.

    Returns
    -------
    Examination
        ``facts["of_all_rows"]`` has the exact counts; the other facts are of the rows that were taken in.

    Raises
    ------
    InputError, SchemaError, LogError
        As of :func:`hieropo.doctor.examine`.
    """
    if rows < 1:
        raise InputError(f"rows={rows!r}; a number of at least 1 is needed. Leave it out for a million.")
    schema = arrow_schema(frame)
    role_columns, guesses = guess_roles(schema, roles, tuple(ROLE_NAMES) if guess else ())
    check_columns(schema, role_columns.items(), "Spark frame", texts=True)
    counts = _counts(frame, role_columns)
    if not counts.rows:
        raise empty("Spark frame")
    parts = 1
    while counts.rows > rows * parts and parts < _MOST_PARTS:
        parts *= 2
    found = examine(_some(frame, role_columns, parts, seed).toArrow(), guess=False, **_by_role(role_columns))
    facts = {**found.facts, "of_all_rows": _facts(counts, parts)}
    name = "Spark frame" if parts == 1 else f"Spark frame, {_share(role_columns, parts)}"
    findings = [
        *(finding for finding in found.findings if not _is_exact(finding)),
        *_findings(counts, role_columns, found.facts["rows"], parts),
    ]
    return replace(found, name=name, guesses=tuple(guesses), facts=facts, findings=ordered(findings))


def _by_role(roles: Roles) -> dict[str, Any]:
    return {role: column for role in Roles.names() if (column := getattr(roles, role))}


def _some(frame: Any, roles: Roles, parts: int, seed: int) -> Any:
    """Return all rows of the tasks of one shard; of no column of tasks, a share of the rows."""
    if parts == 1:
        return frame
    if roles.task is None:
        return frame.sample(fraction=1.0 / parts, seed=seed)
    from pyspark.sql import functions as f

    sharded = with_shards(frame, column_tuple(roles.task), parts)
    return sharded.filter(f.col(SHARD) == seed % parts).drop(SHARD)


def _counts(frame: Any, roles: Roles) -> _Counts:
    """Return the exact counts, by one aggregate."""
    from pyspark.sql import functions as f

    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    columns = dict.fromkeys(column for role, column in roles.items() if role not in _ONE_BY_ONE)
    wanted: dict[tuple[str, str], Any] = {}
    for column in columns:
        value = f.col(quoted(column))
        wanted[column, "missing"] = value.isNull()
        if kinds[column] in ("double", "float"):
            wanted[column, "NaN"] = f.isnan(value)
            wanted[column, "infinite"] = f.abs(value) == float("inf")
    sums = [f.count_if(bad).alias(str(k)) for k, bad in enumerate(wanted.values())]
    if roles.action is not None:
        sums.append(f.count_distinct(f.col(quoted(roles.action))).alias("actions"))
    if roles.task is not None:
        tasks = [f.col(quoted(column)) for column in column_tuple(roles.task)]
        sums.append(f.approx_count_distinct(f.hash(*tasks) if len(tasks) > 1 else tasks[0]).alias("tasks"))
    found = frame.agg(f.count(f.lit(1)).alias("rows"), *sums).collect()[0].asDict()
    unusable = {key: found[str(k)] for k, key in enumerate(wanted) if found[str(k)]}
    return _Counts(found["rows"], unusable, found.get("actions"), found.get("tasks"))


def _is_exact(finding: Finding) -> bool:
    """Return True for a finding about values that were counted in all rows."""
    return finding.kind == "unusable value" and finding.text.partition(":")[0] in _EXACT.values()


def _share(roles: Roles, parts: int) -> str:
    return f"one {'row' if roles.task is None else 'task'} in {parts:,}"


def _findings(counts: _Counts, roles: Roles, sampled: int, parts: int) -> Iterator[Finding]:
    named = {column: role for role, column in reversed(list(roles.items()))}
    for reason, title in _EXACT.items():
        columns = {column: n for (column, why), n in counts.unusable.items() if why == reason}
        if columns:
            said = "; ".join(
                f"column {column!r} ({named[column]}) in {counted(n, 'row')} ({percent(n / counts.rows)})"
                for column, n in columns.items()
            )
            yield Finding(
                "stops", "unusable value", ", ".join(f"column {column!r}" for column in columns),
                f"{title}, counted in all rows: {said}.",
                "Fill such values in where they are known, filter the rows, or sum with lenient=True, which sets them "
                "aside and counts them.",
            )  # fmt: skip
    if parts > 1:
        tasks = "" if counts.about_tasks is None else f", about {counts.about_tasks:,} tasks"
        yield Finding(
            "note", "sample", "Spark frame",
            f"The frame has {counted(counts.rows, 'row')}{tasks}. Its missing, NaN and infinite values, and its "
            f"actions, were counted in all rows; the other findings and the facts are of {_share(roles, parts)} "
            f"({counted(sampled, 'row')}).",
            "Raise rows= to examine more, or take another seed= to see which findings are those of the sample alone.",
        )  # fmt: skip


def _facts(counts: _Counts, parts: int) -> Mapping[str, Any]:
    unusable = [
        {"column": column, "reason": reason, "rows": n} for (column, reason), n in counts.unusable.items()
    ]
    return {
        "rows": counts.rows, "actions": counts.actions, "tasks_about": counts.about_tasks, "unusable": unusable,
        "examined_one_in": parts,
    }  # fmt: skip
