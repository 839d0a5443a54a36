"""Whatever a log holds, the doctor answers, or says in hieropo's own words why it cannot be read."""

import datetime as dt
import json
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hieropo
from hieropo import examine
from hieropo.doctor.collecting import LogStatistics
from hieropo.doctor.examination import SEVERITIES
from hieropo.doctor.fitting import of_rows
from hieropo.doctor.in_pass import PassStatistics
from hieropo.features.maps import Columns
from hieropo.logs.arrow.schema import can_play
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.opening import open_log
from hieropo.passes.summing import sums
from hieropo.rows.batches import Roles

Rng = np.random.Generator
LOGS = 250
SPECIAL = [0.0, 1.0, np.nan, np.inf, -np.inf, 1e300, -0.0, 5e-324, 1e80]
DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def some(rng: Rng, values: Any) -> list[Any]:
    """Return the values, in half of the columns with nulls."""
    absent = rng.random(len(values)) < (0.1 if rng.random() < 0.5 else 0.0)
    return [None if gone else value for gone, value in zip(absent, values, strict=True)]


def drawn(rng: Rng, pool: list[Any], n: int) -> list[Any]:
    return some(rng, [pool[k] for k in rng.integers(len(pool), size=n)])


IDS: list[Callable[[Rng, int], Any]] = [
    lambda rng, n: pa.array(some(rng, rng.integers(-3, 5, n).tolist())),
    lambda rng, n: pa.array(rng.integers(0, 3, n).astype(np.int8)),
    lambda rng, n: pa.array(drawn(rng, ["", "a", "ü", "\x00x"], n), pa.string()),
    lambda rng, n: pa.array(drawn(rng, ["p", "q"], n), pa.string_view()),
    lambda rng, n: pa.array(drawn(rng, ["x", "y"], n), pa.string()).dictionary_encode(),
    lambda rng, n: pa.array(drawn(rng, [b"", b"a"], n), pa.binary()),
    lambda rng, n: pa.array(drawn(rng, [DAY.date(), dt.date(1, 1, 1)], n), pa.date32()),
    lambda rng, n: pa.array(
        drawn(rng, [DAY, DAY + dt.timedelta(seconds=1)], n), pa.timestamp("us", tz="UTC")
    ),
    lambda rng, n: pa.array(drawn(rng, [2**63, 2**63 + 1], n), pa.uint64()),
    lambda rng, n: pa.array(drawn(rng, [0.0, -0.0, 1.5, np.nan], n), pa.float64()),
]
NUMBERS: list[Callable[[Rng, int], Any]] = [
    lambda rng, n: pa.array(rng.normal(size=n).astype(np.float32)),
    lambda rng, n: pa.array(rng.uniform(0, 1, n)),
    lambda rng, n: pa.array(drawn(rng, SPECIAL, n), pa.float64()),
    lambda rng, n: pa.array(rng.normal(size=n) * 10.0 ** rng.integers(-300, 300)),
    lambda rng, n: pa.array(some(rng, rng.integers(-3, 5, n).tolist()), pa.int64()),
    lambda rng, n: pa.array(drawn(rng, [2**62, 3], n), pa.int64()),
    lambda rng, n: pa.array(drawn(rng, [True, False], n), pa.bool_()),
    lambda rng, n: pa.array(drawn(rng, [Decimal("-0.25"), Decimal("7.5")], n), pa.decimal128(9, 2)),
    lambda _, n: pa.nulls(n),
]
OTHERS: list[Callable[[Rng, int], Any]] = [
    lambda rng, n: pa.array([None if rng.random() < 0.1 else [0, 1][: rng.integers(3)] for _ in range(n)]),
    lambda _, n: pa.array([{"a": 1}] * n, pa.struct({"a": pa.int8()})),
    lambda rng, n: pa.array(drawn(rng, [dt.timedelta(1), dt.timedelta(0)], n), pa.duration("us")),
    lambda rng, n: pa.array(drawn(rng, [dt.time(1), dt.time(2)], n), pa.time64("us")),
]
HOMES = {
    "task": IDS, "action": IDS, "reward": NUMBERS, "pscore": NUMBERS, "weight": NUMBERS, "x": NUMBERS, "y": NUMBERS,
    "level": IDS, "known": NUMBERS, "time": [*IDS[5:8], NUMBERS[1]], "can": OTHERS[:1],
}  # fmt: skip


def a_log(rng: Rng) -> tuple[pa.Table, dict[str, Any]]:
    """A table of any kinds of columns, mostly such as can play their role, and which roles they are given."""
    n = int(rng.choice([0, 1, 2, 3, 20, 200]))
    columns = {}
    for name, home in HOMES.items():
        kinds = home if rng.random() < 0.97 else [*IDS, *NUMBERS, *OTHERS]
        columns[name] = kinds[rng.integers(len(kinds))](rng, n)
    roles: dict[str, Any] = {"task": "task", "reward": "reward"}
    optional = {
        "action": ("action", 0.8), "pscore": ("pscore", 0.4), "weight": ("weight", 0.2), "time": ("time", 0.4),
        "eligible": ("can", 0.1), "context": (["x", "y"], 0.5), "levels": (["level"], 0.2),
        "metadata": (["known"], 0.2),
    }  # fmt: skip
    roles |= {role: given for role, (given, chance) in optional.items() if rng.random() < chance}
    return pa.table(columns), roles


def of_usable_rows(table: pa.Table, roles: Roles) -> LogStatistics | None:
    """The statistics of a pass that sets unusable rows aside; None without numeric context, or usable rows."""
    source = open_log(table, lenient=True)
    statistics = PassStatistics(source, roles, most=150)
    with suppress(hieropo.LogError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if roles.context and all(
            can_play(table.schema.field(name).type, "context") for name in roles.context
        ):
            rejects = Rejects(lenient=True)
            sums(source, Columns(roles.context), roles, rejects=rejects, reducers=[statistics])
    return statistics.collected()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_the_doctor_answers_or_says_why_not(seed: int) -> None:
    rng, seen = np.random.default_rng(seed), Counter[str]()
    for _ in range(LOGS):
        table, roles = a_log(rng)
        try:
            found = examine(table, guess=False, **roles)
        except hieropo.InputError as error:
            seen[type(error).__name__] += 1
            continue
        seen["stops" if found.stops else "goes"] += 1
        watched = of_usable_rows(table, found.roles)
        assert watched is None or all(each.severity in SEVERITIES for each in of_rows(watched, 2))
        seen["watched"] += watched is not None
        assert str(found)
        assert found._repr_html_()
        json.dumps(found.to_dict(), allow_nan=False, default=str)
    assert min(seen["stops"], seen["goes"], seen["SchemaError"], seen["LogError"]) > 5, seen
    assert seen["stops"] + seen["goes"] > LOGS / 2, seen
    assert seen["watched"] > 5, seen
