"""A log of users in stores in regions, for tests of levels and metadata."""

import numpy as np
import pyarrow as pa


def table(seed: int = 0, users: int = 60, rows: int = 12, **columns) -> pa.Table:
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(users), rows)
    store = user % 12
    size = np.linspace(-1.0, 1.0, users)
    offer = rng.integers(2, size=user.size)
    good = rng.normal(0, 1, 12)[store] + 0.5 * rng.normal(0, 1, users)[user] + 2.0 * size[user]
    found = {
        "user": user,
        "store": np.array([f"s{k}" for k in store]),
        "region": np.where(store < 6, "north", "south"),
        "size": size[user],
        "visits": rng.normal(0, 1, user.size),
        "offer": np.array(["a", "b"])[offer],
        "profit": offer * good + rng.normal(0, 0.5, user.size),
    }
    return pa.table(found | columns)


ROLES = {"task": "user", "action": "offer", "reward": "profit"}
