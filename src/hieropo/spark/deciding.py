"""Decisions for a Spark frame, by a policy that every worker maps from disk."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from hieropo.decisions.deciding import decide as decide_rows
from hieropo.decisions.deciding import eligible_column
from hieropo.decisions.decisions import Decisions
from hieropo.decisions.new_tasks import NewTasks
from hieropo.errors import InputError
from hieropo.learners.loading import new_tasks_of, roles_of
from hieropo.logs.arrow.arrays import decoded
from hieropo.logs.arrow.log_source import BATCH_ROWS, regroup
from hieropo.rows.batches import Roles, task_columns
from hieropo.spark.hashing import map_batches
from hieropo.spark.workers import check_workers, prepare_worker, session_of
from hieropo.storage.layout import POLICY
from hieropo.storage.load import StoredPolicy, load_policy


def decide(
    requests: Any,
    policy: str | os.PathLike[str],
    *,
    id: str | Sequence[str] | None = None,  # noqa: A002 - as of `HierOPO.decide`
    top: int = 1,
    **columns: Any,
) -> Any:
    """Return a Spark frame with the action of each request, as :meth:`HierOPO.decide` chooses it.

    Parameters
    ----------
    requests : DataFrame
    policy : path
        Directory of a policy at the same path on every worker. Its files are mapped, so that workers of one machine
        share their memory.
    id, top, **columns
        As of :meth:`HierOPO.decide`. A request that cannot be used has no action and a reason; ``strict`` and
        ``request`` are not taken.

    Returns
    -------
    DataFrame
        The columns of :class:`Decisions`, in the order of the rows of each partition.

    Raises
    ------
    InputError, SchemaError, ArtifactError
        The policy or a column is missing, or the first request shows that they do not fit.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    refused = [name for name in ("strict", "request") if name in columns]
    if refused:
        raise InputError(
            f"{refused[0]}={columns[refused[0]]!r} was given for decisions on Spark, where a worker sees a part of the "
            "requests alone. Leave it out: requests that cannot be used have no action and a reason."
        )
    location, given = os.path.realpath(policy), {"id": id, "top": top, **columns}
    check_workers(session_of(requests, None))
    first = requests.limit(1).toArrow()
    if not first.num_rows:
        raise InputError(
            "The Spark frame has no request, so that there is nothing to decide. Is a filter too narrow?"
        )
    schema = _plain_schema(_decided(location, first, given).schema)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for batch in regroup(batches, BATCH_ROWS):  # those of Spark have 10,000 rows
            table = _decided(location, batch, given)
            plain = [
                decoded(table.column(name).combine_chunks()).cast(schema.field(name).type)
                for name in schema.names
            ]
            yield pa.RecordBatch.from_arrays(plain, schema=schema)

    return map_batches(requests, work, from_arrow_schema(schema))


def _decided(location: str, requests: Any, given: dict[str, Any]) -> pa.Table:
    """Return the table of decisions for some requests; a worker loads a policy once."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # the reasons are in the table; nobody reads a worker's standard error
        stored, roles, new_tasks = _loaded(location, _version(location))
        column = eligible_column(stored.policy, roles.eligible, given.get("eligible"))
        task = task_columns(given.get("task")) or roles.task
        columns = {**given, "task": task, "eligible": column, "new_tasks": new_tasks}
        return Decisions.concatenated(list(decide_rows(stored.policy, requests, **columns))).table


def _version(location: str) -> tuple[int, ...]:
    """Return what differs where another policy was saved at a place; () where there is none."""
    with suppress(OSError):
        document = (Path(location) / POLICY.document).stat()
        return document.st_ino, document.st_mtime_ns, document.st_size
    return ()


@lru_cache(maxsize=2)
def _loaded(location: str, version: tuple[int, ...]) -> tuple[StoredPolicy, Roles, NewTasks | None]:  # noqa: ARG001 - a key
    stored = load_policy(location)
    return stored, roles_of(stored), new_tasks_of(stored)


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema without dictionaries and columns of nulls, which Spark has not."""
    fields = []
    for field in schema:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        fields.append(pa.field(field.name, pa.string() if pa.types.is_null(kind) else kind))
    return pa.schema(fields)
