"""Find the rows of a record batch that cannot be used, and why: the counterpart of checks that stop at the first."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hieropo.core.arrays import Mask
from hieropo.core.eligible import Eligible
from hieropo.core.features import FeatureMap
from hieropo.core.ids import Ids, may_be_rounded
from hieropo.core.keys import Keys
from hieropo.core.logs import Roles
from hieropo.core.rules import RULES
from hieropo.errors import UnknownActionError
from hieropo.sources.arrays import EXACT, decoded, ids, lists
from hieropo.sources.rejected import LIST_ROUNDED, NO_NUMBER, ROUNDED
from hieropo.sources.schema import holds_text
from hieropo.sources.text_numbers import text_numbers


@dataclass(frozen=True, slots=True, eq=False)
class Fault:
    """Rows whose value in one column cannot be used, for one reason.

    Parameters
    ----------
    column, reason : str
    bad : (n,) bool
    """

    column: str
    reason: str
    bad: Mask


def sift(found: pa.RecordBatch, roles: Roles, features: FeatureMap | None = None) -> list[Fault]:
    """Find every row that cannot be used; without those, the batch passes all checks of rows.

    Parameters
    ----------
    found : pa.RecordBatch
        With the columns of the roles, each of a type that can play its role.
    roles : Roles
    features : FeatureMap, optional
        Its actions are the known ones; without it all are.
    """
    faults: list[Fault] = []
    for role, column in roles.items():
        for reason, bad in _FINDERS.get(role, _wrong_numbers)(found.column(column), role):
            if bad.any():
                faults.append(Fault(column, reason, bad))
    if roles.action is not None:
        faults.extend(_wrong_actions(found, roles, features, any_of(faults, found.num_rows)))
    return faults


def any_of(faults: list[Fault], rows: int) -> Mask:
    """Rows (n,) that have any of the faults."""
    bad: Mask = np.zeros(rows, dtype=np.bool_)
    for fault in faults:
        bad |= fault.bad
    return bad


def _absent(column: pa.Array) -> tuple[pa.Array, Mask]:
    """Return a column, decoded, and which of its values are null."""
    column = decoded(column)
    if pa.types.is_null(column.type):
        return column, np.ones(len(column), dtype=np.bool_)
    return column, column.is_null().to_numpy(zero_copy_only=False)


def _wrong_ids(column: pa.Array, _: str) -> Iterator[tuple[str, Mask]]:
    column, absent = _absent(column)
    yield "missing", absent
    if pa.types.is_floating(column.type):
        values = column.to_numpy(zero_copy_only=False)
        yield "NaN", np.isnan(values) & ~absent
        yield ROUNDED, may_be_rounded(values) & ~absent


def _wrong_numbers(column: pa.Array, role: str) -> Iterator[tuple[str, Mask]]:
    found, faults = _as_numbers(column)
    yield from faults
    absent = np.any([bad for _, bad in faults], axis=0)
    if absent.all():
        return
    values = found.cast(pa.float64(), safe=False).fill_null(1.0).to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore"):
        for rule in RULES[role]:
            for reason, test in rule.broken:
                yield reason, test(values) & ~absent


def _as_numbers(column: pa.Array) -> tuple[pa.Array, list[tuple[str, Mask]]]:
    """Return a column as numbers, and which of its values are none."""
    if holds_text(column.type):
        found, missing, wrong, rounded = text_numbers(column)
        return found, [("missing", missing), (NO_NUMBER, wrong), ("above 2**53", rounded)]
    column, absent = _absent(column)
    rounded = np.zeros(len(column), dtype=np.bool_)
    if column.type in (pa.int64(), pa.uint64()):
        whole = column.fill_null(0).to_numpy(zero_copy_only=False)
        rounded = (whole > EXACT) | (whole < -EXACT if column.type == pa.int64() else False)
    return column, [("missing", absent), ("above 2**53", rounded)]


def _wrong_times(column: pa.Array, role: str) -> Iterator[tuple[str, Mask]]:
    plain = decoded(column)
    if pa.types.is_temporal(plain.type):
        yield "missing", _absent(plain)[1]
    else:
        yield from _wrong_numbers(plain, role)


def _wrong_lists(column: pa.Array, _: str) -> Iterator[tuple[str, Mask]]:
    _, absent = _absent(column)
    yield "missing", absent
    lengths = pc.fill_null(pc.list_value_length(column), 1).to_numpy(zero_copy_only=False)
    yield "an empty list", (lengths == 0) & ~absent
    entries = column.flatten()
    owner = np.repeat(np.arange(len(column)), np.where(absent, 0, lengths))

    def holding(bad: Mask) -> Mask:
        rows = np.zeros(len(column), dtype=np.bool_)
        rows[owner[bad]] = True
        return rows

    if entries.null_count:
        yield "a list with a null", holding(_absent(entries)[1])
    if pa.types.is_floating(entries.type):
        yield LIST_ROUNDED, holding(may_be_rounded(entries.to_numpy(zero_copy_only=False)))


_FINDERS = {
    "task": _wrong_ids, "action": _wrong_ids, "level": _wrong_ids, "eligible": _wrong_lists, "time": _wrong_times,
}  # fmt: skip


def _wrong_actions(
    found: pa.RecordBatch, roles: Roles, features: FeatureMap | None, before: Mask
) -> Iterator[Fault]:
    """Actions that the features do not know, or that are not in their own lists, in rows without another fault."""
    rows = np.flatnonzero(~before)
    if not rows.size or (features is None and roles.eligible is None):
        return
    good = found.filter(pa.array(~before))
    assert roles.action is not None
    taken, codes = Keys.factorize(ids(good.column(roles.action), roles.action, 0))

    def fault(column: str, reason: str, bad: Mask) -> Iterator[Fault]:
        if bad.any():
            everywhere = np.zeros(found.num_rows, dtype=np.bool_)
            everywhere[rows[bad]] = True
            yield Fault(column, reason, everywhere)

    if features is not None:
        yield from fault(roles.action, "an unknown action", _unknown(features, taken.values)[codes])
    if roles.eligible is not None:
        entries, starts = lists(good.column(roles.eligible), roles.eligible, 0)
        listed, which = Keys.factorize(entries)
        owner = np.repeat(np.arange(rows.size), np.diff(starts))
        strange = np.zeros(rows.size, dtype=np.bool_)
        if features is not None:
            strange[owner[_unknown(features, listed.values)[which]]] = True
        yield from fault(roles.eligible, "a list with an unknown action", strange)
        lacking = Eligible(entries, starts).lacking(taken.values[codes])
        yield from fault(roles.eligible, "a list without the action taken", lacking)


def _unknown(features: FeatureMap, actions: Ids) -> Mask:
    found = np.zeros(len(actions), dtype=np.bool_)
    for k in range(len(actions)):
        try:
            features.action_codes(actions[k : k + 1])
        except UnknownActionError:
            found[k] = True
    return found
