"""Moments of the table of sums that a text of :mod:`text` returns."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.packed import packed_size, triangle
from hieropo._utils.text import counted, thousands
from hieropo.errors import LogError, SchemaError
from hieropo.features.maps import Columns, FeatureMap, feature_map_from_dict
from hieropo.features.per_action import Crossed
from hieropo.features.terms.learned import LearnedTerms
from hieropo.logs.arrow.arrays import decoded, ids, numbers, task_ids
from hieropo.logs.arrow.log_source import LogSource, empty
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.clusters import ClusterTable
from hieropo.moments.recentring import at_final_origin, recentred
from hieropo.moments.row_sketch import RowSketch
from hieropo.moments.statistics import Moments, refuse_overflow
from hieropo.passes.feature_choice import has_origin, map_with
from hieropo.passes.warehouse.text import ONE_ROW, VERSION, has_intercept, roles_with
from hieropo.passes.worker import PassResult
from hieropo.rows.batches import Batch, Roles, column_tuple
from hieropo.rows.columns import HUGE
from hieropo.rows.ids import ONE_TASK, Ids, object_array, plain
from hieropo.rows.keys import Keys

_MARK = "about"
_REMAKE = (
    "Run the text of hieropo moments --sql-text once, and give its whole result, with all rows and columns."
)


@dataclass(frozen=True, slots=True, eq=False)
class SumsTable:
    """A table of sums, and its description.

    Parameters
    ----------
    name : str
    rows : pa.Table
        One row for each task and action, and for each cluster of these, by the names of the text.
    roles : Roles
    choice : FeatureMap, LearnedTerms, name or None
    """

    name: str
    rows: pa.Table
    roles: Roles
    choice: Any

    def column(self, name: str) -> Any:
        """Return a column as one array.

        Raises
        ------
        SchemaError
            The table lacks it.
        """
        if name not in self.rows.column_names:
            raise SchemaError(
                f"The {self.name} lacks the column {name!r}, which the text that made it has. {_REMAKE}"
            )
        return self.rows.column(name).combine_chunks()

    def numbers(self, name: str) -> Array:
        """Return a column of numbers."""
        return numbers(self.column(name), name, 0)


def summed_in_table(source: LogSource) -> tuple[FeatureMap, Roles, PassResult]:
    """Return the feature map, the roles and the sums of a table of sums.

    Raises
    ------
    SchemaError
        It is no table of sums.
    LogError
        Rows of the log cannot be used; the message has the number of each column. Or there are none.
    """
    table = _read(source)
    actions, codes = _actions(table)
    features = map_with(table.choice, table.roles, actions)
    if features.actions is not None:
        codes = features.action_codes(actions)[codes]
    measured = _with_origin(features, table)
    moments = _moments(table, measured, codes)
    clusters = None if table.roles.cluster is None else _clusters(table, measured, codes)
    rows = round(float(table.numbers("n_rows").sum()))
    if has_origin(table.choice):
        moments, final = recentred(moments, measured, features), features
    else:
        moments, final = at_final_origin(moments, measured)
    if clusters is not None:
        clusters = clusters.recentred(measured, final)
    return final, table.roles, PassResult(moments, _task_levels(table), RowSketch.unknown(rows), clusters)


def _read(source: LogSource) -> SumsTable:
    """Return a table of sums whose rows can be used."""
    schema = source.schema
    names = {name.lower(): name for name in schema.names}  # some warehouses write names in upper case
    if _MARK not in names or "problem" not in names:
        raise SchemaError(
            f"The {source.name} is no table of sums: it lacks the columns 'problem' and {_MARK!r}. {_REMAKE}"
        )
    lower = [name.lower() for name in schema.names]
    batches = [
        pa.RecordBatch.from_arrays([decoded(column) for column in batch.columns], names=lower)
        for batch in source.batches(schema.names)
    ]
    if not batches:
        raise empty(source.name)
    whole = pa.Table.from_batches(batches)
    described = [text for text in whole.column(_MARK).to_pylist() if text]
    problem = numbers(whole.column("problem").combine_chunks(), "problem", 0).astype(np.int64)
    document = _document(described, source.name)
    rows = SumsTable(source.name, whole, Roles(**document["roles"]), _choice(document["features"]))
    _refuse_problems(rows, problem, document["checks"])
    kept = whole.filter(pa.array(problem == 0))
    if not kept.num_rows:
        raise LogError(
            f"The {source.name} has no row of a task, so that the query had no rows, and nothing can be learned. Is "
            "it the right query?"
        )
    return replace(rows, rows=kept)


def _document(described: Sequence[str], name: str) -> Mapping[str, Any]:
    """Return the description of a table, which is in one of its rows."""
    if len(described) != 1:
        several = "none" if not described else f"{len(described)} of them"
        more = (
            " Moments of several tables add: LogMoments.from_sums(a) + LogMoments.from_sums(b)."
            if described
            else ""
        )
        raise SchemaError(
            f"The {name} has {several} of the rows that describe a table of sums, and one is needed. {_REMAKE}{more}"
        )
    try:
        document: dict[str, Any] = json.loads(described[0])
        version = document["version"] if document["hieropo"] == "sums" else None
    except (ValueError, KeyError, TypeError) as error:
        raise SchemaError(
            f"The description of the {name}, in column {_MARK!r}, cannot be read. {_REMAKE}"
        ) from error
    if version != VERSION:
        raise SchemaError(
            f"The {name} is a table of sums of version {version}, and this version of hieropo reads {VERSION}. Write "
            "the text again with this version."
        )
    return document


def _choice(stored: Any) -> Any:
    """Return the choice of features that :func:`text.choice_to_dict` wrote."""
    if stored is None or isinstance(stored, str):
        return stored
    return (
        LearnedTerms.from_dict(stored["terms"]) if "terms" in stored else feature_map_from_dict(stored["map"])
    )


def _refuse_problems(table: SumsTable, problem: Codes, checks: Sequence[Any]) -> None:
    """Raise LogError where rows of the log cannot be used; the message has their number for each column."""
    counts = table.numbers("n_rows")
    log_rows = float(counts[problem >= 0].sum())
    bad = problem > 0
    if not bad.any():
        return
    reasons = []
    for number in np.unique(problem[bad]).tolist():
        role, column, missing = checks[number - 1]
        rows = counted(float(counts[problem == number].sum()), "row")
        reasons.append(f"{rows} with {_broken(role, missing=missing)} in column {column!r}, the {role}")
    raise LogError(
        f"{counted(float(counts[bad].sum()), 'row')} of {thousands(log_rows)} of the query cannot be used: "
        f"{'; '.join(reasons)}. Nothing is filled in. Write the values that are meant in the query, or leave such rows "
        "out of it with a where."
    )


def _broken(role: str, *, missing: bool) -> str:
    """Return the kind of values that a check finds."""
    if missing:
        return "NULL"
    if role == "pscore":
        return "a number that is not above 0 and at most 1"
    least = {"weight": "below 0, ", "precision": "0 or below, ", "sampling_weight": "0 or below, "}.get(
        role, ""
    )
    return f"a value that is {least}NaN, infinite or beyond {HUGE:g} (whole numbers: 2**53)"


def _actions(table: SumsTable) -> tuple[Any, Codes]:
    """Return the distinct actions, sorted where they can be compared, and the number of each row's action."""
    if table.roles.action is None:
        return np.zeros(0, dtype=object), np.zeros(table.rows.num_rows, dtype=np.int64)
    keys, codes = Keys.factorize(ids(table.column("action_id"), "action_id", 0))
    order = _sorted(keys.values)
    position = np.empty(len(keys), dtype=np.int64)
    position[order] = np.arange(len(keys))
    values = np.empty(len(keys), dtype=object)
    values[:] = [plain(keys.values[k]) for k in order]
    return values, position[codes]


def _sorted(values: Any) -> Codes:
    """Return the order of ids (m,): sorted where they can be compared, else as they came."""
    listed = [plain(value) for value in values]
    try:
        return np.array(sorted(range(len(listed)), key=listed.__getitem__), dtype=np.int64)
    except TypeError:
        return np.arange(len(listed))


def _with_origin(features: FeatureMap, table: SumsTable) -> FeatureMap:
    """Return the map at the origin of the sums."""
    assert isinstance(features, Columns | Crossed)
    if not features.columns:
        return features
    origin = [float(table.numbers(f"o_{k}")[0]) for k in range(len(features.columns))]
    if has_intercept(features):
        return features.recentred(origin)
    reference = _reference(table)
    return (
        features.recentred(None) if reference < 0 else features.recentred(origin, features.columns[reference])
    )


def _reference(table: SumsTable) -> int:
    """Return the position of the feature that is the same in all rows; -1 without one."""
    return int(table.numbers(ONE_ROW)[0])


def _moments(table: SumsTable, features: FeatureMap, codes: Codes) -> Moments:
    """Return the moments, per action where each action has its own coefficients, tasks in the order of their ids."""
    count, first = len(features.columns) + 2, int(has_intercept(features))
    p = count - 2 + first
    units = 0 if features.actions is None else len(features.actions)
    keys, rows = Keys.factorize(_tasks(table))
    order = _sorted(keys.values)
    position = np.empty(len(keys), dtype=np.int64)
    position[order] = np.arange(len(keys))
    unit = position[rows] * max(units, 1) + (codes if units else 0)
    shape = (len(keys), units) if units else (len(keys),)

    def packed(name: str) -> Array:
        entry = np.concatenate([[count - 1], np.arange(count)]) if first else np.arange(count)
        i, j = triangle(p + 2)
        low, high = np.minimum(entry[i], entry[j]), np.maximum(entry[i], entry[j])
        sums = np.empty((*shape, packed_size(p + 2)))
        for k, (a, b) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            sums[..., k] = by_unit(table.numbers(f"{name}_{a}_{b}"))
        return sums

    def by_unit(values: Array) -> Array:
        return np.asarray(np.bincount(unit, values, int(np.prod(shape))), dtype=np.float64).reshape(shape)

    weighted = table.numbers(f"s_{count - 1}_{count - 1}")
    precise, sampled = table.roles.precision is not None, table.roles.sampling_weight is not None
    keys = Keys(keys.values[order])
    sums = packed("s")
    refuse_overflow(keys, sums)
    return Moments(
        keys, p, sums,
        by_unit(table.numbers("row_sum") if precise else weighted),
        by_unit(table.numbers("log_precision") if precise else np.zeros(unit.size)),
        features.fingerprint,
        packed("q") if sampled else None,
        _reward_offset(table, features, p),
    )  # fmt: skip


def _clusters(table: SumsTable, features: FeatureMap, codes: Codes) -> ClusterTable:
    """Return the sums of clusters: the products with 1 of the rows, which are grouped by cluster too."""
    one = len(features.columns) + 1
    entries = [*([one] if has_intercept(features) else []), *range(one + 1)]
    sums = np.column_stack([table.numbers(f"s_{k}_{one}") for k in entries])
    (tasks, task), (clusters, cluster) = (
        Keys.factorize(values) for values in (_tasks(table), ids(table.column("cluster_id"), "cluster_id", 0))
    )
    action = codes if features.actions is not None else np.zeros_like(codes)
    offset = _reward_offset(table, features, len(entries) - 2)
    counted = np.flatnonzero(sums[:, -1] > 0)  # rows of weight 0 do not count
    by_row = ClusterTable(tasks, clusters, task, action, cluster, sums, offset)
    return by_row.at_rows(counted)


def _tasks(table: SumsTable) -> Ids:
    """Return the task of each row: of one column its ids, of several tuples, of none the one task of the log."""
    names = tuple(f"task_{k}" for k in range(len(column_tuple(table.roles.task))))
    if not names:
        return object_array([ONE_TASK] * table.rows.num_rows)
    batch = pa.RecordBatch.from_arrays([table.column(name) for name in names], names=names)
    return task_ids(batch, names[0] if len(names) == 1 else names, 0)


def _reward_offset(table: SumsTable, features: FeatureMap, p: int) -> Array | None:
    """Return the offset (p,) of a unit: the mean reward on the feature that is the same in all rows."""
    mean = float(table.numbers(f"o_{len(features.columns)}")[0])
    if not mean:
        return None
    offset = np.zeros(p)
    if has_intercept(features):
        offset[0] = mean
    else:
        reference = _reference(table)
        offset[reference] = mean / float(table.numbers(f"o_{reference}")[0])
    return offset


def _task_levels(table: SumsTable) -> TaskLevels:
    """Return groups and metadata of the tasks, from the columns by which rows were grouped."""
    levels = TaskLevels(table.roles)
    for batch in _batches(table):
        levels.add(batch)
    return levels


def _batches(table: SumsTable) -> Iterator[Batch]:
    roles = table.roles
    if not (roles.levels or roles.metadata):
        return
    n = table.rows.num_rows
    groups = [table.column(f"level_{k}") for k in range(len(roles.levels))]
    known = [table.numbers(f"metadata_{k}") for k in range(len(roles.metadata))]
    yield Batch(
        task=_tasks(table),
        action=None,
        reward=np.zeros(n),
        context=np.zeros((n, 0)),
        roles=roles_with(roles, ()),
        levels=tuple(ids(column, name, 0) for column, name in zip(groups, roles.levels, strict=True)),
        metadata=np.column_stack(known) if known else None,
    )
