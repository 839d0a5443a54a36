"""Small logs, policies and services for the tests of the service."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hieropo import HierOPO

OFFERS = ("none", "coupon", "gift")
_EFFECT = np.array([0.0, 0.3, 0.6])
COLUMNS = {"task": "store", "action": "offer", "reward": "profit", "context": ["age"]}


def expected(store: int, offer: str, age: float) -> float:
    """Return the expected profit in the world of the log."""
    code = OFFERS.index(offer)
    return float(_EFFECT[code] * (1 + 0.3 * age) + 0.2 * np.sin(store) * code)


def log(rows: int = 600, stores: int = 12, seed: int = 0, *, text_ids: bool = False) -> pa.Table:
    rng = np.random.default_rng(seed)
    store, offer, age = rng.integers(stores, size=rows), rng.integers(3, size=rows), rng.normal(size=rows)
    profit = _EFFECT[offer] * (1 + 0.3 * age) + 0.2 * np.sin(store) * offer + 0.5 * rng.normal(size=rows)
    ids = np.array([f"store {number}" for number in range(stores)])[store] if text_ids else store
    return pa.table({"store": ids, "offer": np.array(OFFERS)[offer], "profit": profit, "age": age})


def learner(**given: Any) -> HierOPO:
    return HierOPO(logging="random").fit(log(**given), **COLUMNS)


def grouped(folder: Path) -> Path:
    """Save a policy of stores in regions, with a context of text."""
    rows = log()
    store = rows["store"].to_numpy()
    regions = np.array(["north", "south", "west"])[store % 3]
    devices = np.array(["phone", "desk"])[np.arange(len(rows)) % 2]
    rows = rows.append_column("region", pa.array(regions)).append_column("device", pa.array(devices))
    columns = {**COLUMNS, "context": ["age", "device"], "levels": ["region"]}
    return HierOPO(logging="random").fit(rows, **columns).save(folder / "grouped")


def saved(folder: Path, **given: Any) -> Path:
    return learner(**given).save(folder / "policy")


def run(work: Any) -> Any:
    return asyncio.run(work)


def wait_for_windows(service: Any, seconds: float = 20.0) -> None:
    """Let the service's clock run ahead, so that all windows are closed."""
    service.clock._origin += int(seconds * 1e6)


def rewards_of(decisions: Sequence[Any], seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    return [0.3 * (len(decision.action) % 4) + 0.5 * float(rng.normal()) for decision in decisions]
