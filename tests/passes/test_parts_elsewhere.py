"""A log whose parts other machines read is learned from, and set aside from, as one that is read here."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hieropo.logs.arrow.log_source import LogSource
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.engines.tables import TableSource
from hieropo.logs.reading import distinct_values, read
from hieropo.passes.designs import design_of
from hieropo.rows.batches import Roles
from hieropo.rows.keys import Keys

ROLES = Roles("store", "offer", "profit", context=("device", "visits"))


def log(n: int = 90) -> pa.Table:
    rng = np.random.default_rng(7)
    return pa.table(
        {
            "store": rng.integers(9, size=n),
            "offer": np.array(["a", "b", "c"])[rng.integers(3, size=n)],
            "profit": rng.normal(size=n),
            "device": np.array(["phone", "tablet"])[rng.integers(2, size=n)],
            "visits": pa.array([None if k == 61 else float(k % 17) for k in range(n)]),
        }
    )


class Elsewhere(TableSource):
    """A table of which its reader sees the first ten rows, and others all in three parts."""

    def __init__(self, table: pa.Table) -> None:
        super().__init__(table.slice(0, 10), "log elsewhere")
        self._parts = [table.slice(30 * k, 30) for k in range(3)]

    def each(self, columns: Sequence[str], work: Callable[[LogSource], Any]) -> list[Any]:
        return [work(TableSource(part.select(list(columns)), "part")) for part in self._parts]


@pytest.mark.parametrize("choice", [None, "category(device) + spline(visits, 3)"])
def test_terms_are_those_of_one_reader(choice: str | None) -> None:
    table = log()
    mine = design_of(choice, Elsewhere(table), ROLES)
    expected = design_of(choice, TableSource(table, "log"), ROLES)
    assert mine.choice == expected.choice
    assert mine.roles == expected.roles
    assert any("missing" in name for name in mine.roles.context)


def test_a_missing_number_is_found_beyond_the_first_rows() -> None:
    roles = Roles("store", "offer", "profit", context=("visits",))
    assert design_of(None, Elsewhere(log()), roles, holes=True).roles.context != ("visits",)
    assert design_of(None, Elsewhere(log().slice(0, 60)), roles, holes=True).roles.context == ("visits",)


def test_actions_are_those_of_all_parts() -> None:
    table = log().set_column(1, "offer", pa.array(["a"] * 80 + ["d"] * 10))
    assert distinct_values(Elsewhere(table), "offer") == ("a", "d")


def test_rows_that_parts_set_aside_are_those_of_one_reader() -> None:
    columns = log().to_pydict()
    columns["profit"][4] = columns["profit"][40] = None
    columns["profit"][75], columns["store"][75], columns["offer"][76] = float("inf"), 77, None
    table, roles = pa.table(columns), Roles("store", "offer", "profit")
    total, whole, kept = Rejects(), Rejects(), 0
    tasks = []
    for k in range(3):
        part, source = Rejects(), TableSource(table.slice(30 * k, 30), "part")
        batches = list(read(source, roles, rejects=part))
        tasks += [task for batch in batches for task in batch.task.tolist()]
        part.forget(Keys(np.unique(tasks)))
        total.merge(deepcopy(part), 30 * k)
        kept += sum(len(batch) for batch in batches)
    for _ in read(TableSource(table, "log"), roles, rejects=whole):
        pass
    keys = Keys(np.unique(tasks))
    mine, expected = total.finish(kept, keys), whole.finish(kept, keys)
    assert mine.reasons == expected.reasons
    assert (
        (mine.read, mine.rows, mine.lost_tasks)
        == (expected.read, expected.rows, expected.lost_tasks)
        == (90, 4, (77,))
    )
