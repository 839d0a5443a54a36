"""Terms of context columns: what learning a map costs beside the pass, and whether its columns are those of formulaic.

    python benchmarks/terms.py              2 million rows of 10,000 tasks (about 100 MB on disk, deleted after)
    python benchmarks/terms.py --rows N
    python benchmarks/terms.py --formulaic  compare design matrices alone; needs formulaic, which evaluates its formulas

CPU seconds of all threads, the smallest of three runs.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import record

from hieropo import HierOPO
from hieropo._utils.arrays import Array
from hieropo.features.terms import parse
from hieropo.features.terms.learned import LearnedTerms
from hieropo.features.terms.learning import SourceColumn, learn, resolve
from hieropo.features.terms.statistics import LogColumns, wanted
from hieropo.features.terms.values import Values
from hieropo.logs.opening import open_log
from hieropo.passes.checkpoints import features_and_sums
from hieropo.passes.designs import design_of
from hieropo.passes.log_moments import has_per_action_sums
from hieropo.rows.batches import Roles

FORMULAS = (
    "x + y",
    "category(device) + x + y",
    "category(device) + spline(x, 4) + y",
    "category(device) + x + y; missing='prior'",
    "effect(city) + x + y",
)


def log_of(rows: int) -> pa.Table:
    """Return rows of numbers and text."""
    rng = np.random.default_rng(0)
    city = rng.integers(0, 1_000, rows)
    offer = rng.integers(0, 3, rows)
    return pa.table(
        {
            "store": rng.integers(0, 10_000, rows), "offer": offer, "x": rng.normal(size=rows),
            "y": rng.gamma(2.0, 3.0, rows),
            "device": pa.array(rng.integers(0, 8, rows).astype(str)).dictionary_encode(),
            "city": pa.array(city.astype(str)).dictionary_encode(),
            "profit": 0.3 * rng.normal(size=(1_000, 3))[city, offer] + rng.normal(size=rows),
        }
    )  # fmt: skip


def least(work: Callable[[], Any]) -> float:
    """Return the smallest CPU time of three runs."""
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def costs(rows: int) -> dict[str, dict[str, float]]:
    """Return the cost of learning the map, of the pass, and of a whole fit, for some formulas."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        pq.write_table(log_of(rows), path)
        spent = {}
        for formula in FORMULAS:
            terms, source = parse(formula), open_log(path)
            roles = Roles(task="store", action="offer", reward="profit", context=terms.columns)
            design = design_of(formula, source, roles)
            of_map = least(lambda f=formula, s=source, r=roles: design_of(f, s, r))
            of_pass = least(
                lambda d=design: features_and_sums(d.source, d.choice, d.roles, has_per_action_sums)
            )
            start = time.process_time()
            HierOPO(formula).fit(path, task="store", action="offer", reward="profit")
            spent[formula] = {"map": of_map, "pass": of_pass, "fit": time.process_time() - start}
    return spent


def values_of(column: Any) -> Values:
    """Return a column of numbers or text without missing values."""
    none = np.zeros(len(column), dtype=np.bool_)
    if isinstance(column[0], str):
        texts, codes = np.unique(column, return_inverse=True)
        return Values("text", none, codes=codes, texts=tuple(texts.tolist()))
    return Values("number", none, numbers=np.asarray(column, dtype=np.float64))


def learned(formula: str, columns: dict[str, Any]) -> tuple[LearnedTerms, Array]:
    """Return the map of some columns, and the design (n, d)."""
    terms, values = parse(formula), {name: values_of(column) for name, column in columns.items()}
    kinds = {name: SourceColumn(column.kind) for name, column in values.items()}
    resolved = resolve(terms, tuple(columns), kinds)
    statistics = LogColumns(wanted([found.term for found in resolved], values=False))
    statistics.add({name: values[name] for name in statistics.columns})
    found = learn(terms, resolved, kinds, statistics)
    return found, np.array(found.encode(values).columns).T


def formulaic_differences() -> dict[str, float]:
    """Return the largest difference of design matrices from those of formulaic, where the definitions agree."""
    import pandas as pd
    from formulaic import model_matrix

    rng, n = np.random.default_rng(5), 3_000
    columns = {
        "price": rng.gamma(2.0, 5.0, n).round(2), "size": rng.normal(40.0, 9.0, n).round(1),
        "device": rng.choice(["phone", "web", "tablet", "tv"], n), "tier": rng.choice(["low", "mid", "high"], n),
    }  # fmt: skip
    frame = pd.DataFrame(columns)
    knots = learned("spline(size, 4)", columns)[0].terms[0].knots
    device = "C(device, contr.sum)"
    steps = "C(tier, contr.diff(backward=True), levels=['low', 'mid', 'high'])"
    pairs = (
        ("category(device)", f"0 + {device}"), ("price", "0 + price"), ("log(price, plus=1)", "0 + log(price + 1)"),
        ("device:price", f"0 + {device}:price"), ("spline(size, 4)", f"0 + cr(size, knots={list(knots[1:-1])})"),
        ("ordered(tier, 'low', 'mid', 'high')", steps),
    )  # fmt: skip
    gaps = {}
    for ours, theirs in pairs:
        design = learned(ours, columns)[1]
        other = np.asarray(model_matrix(theirs, frame), dtype=np.float64)[:, -design.shape[1] :]
        if ours.startswith("ordered"):  # steps less their means over the levels
            design, other = design - design.mean(axis=0), other - other.mean(axis=0)
        if ours.startswith("category"):  # without an intercept formulaic has all levels
            other = np.asarray(model_matrix(f"1 + {device}", frame), dtype=np.float64)[:, 1:]
        if ours == "device:price":
            other = np.asarray(
                model_matrix(f"1 + {device} + price + {device}:price", frame), dtype=np.float64
            )[:, 5:]
        gaps[ours] = float(np.abs(design - other).max())
    return gaps


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--formulaic", action="store_true")
    given = parser.parse_args()
    if given.formulaic:
        record.finish("terms", {"differences": formulaic_differences()}, part="formulaic")
    else:
        record.finish("terms", {"rows": given.rows, "formulas": costs(given.rows)})
