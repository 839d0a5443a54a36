# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # How much is sharing worth? A world whose truth is known
#
# Forty stores give one of three offers. Each store's customers like them a little differently. We learn from logs of
# growing size by three ways: one regression for all stores, one for each store, and one hierarchical model. In a
# simulation the best policy is known, so that the loss of each can be computed.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa

from hieropo import FlatOPO, HierOPO, PooledOPO

stores, offers = 40, np.array(["none", "coupon", "gift"])
rng = np.random.default_rng(7)
worth = np.array([0.0, 0.3, 0.2]) + 0.4 * rng.normal(size=(stores, 3))  # of each offer in each store


def log(rows: int, seed: int) -> pa.Table:
    """Return a log of offers that were drawn at random."""
    draw = np.random.default_rng(seed)
    store, offer = draw.integers(stores, size=rows), draw.integers(3, size=rows)
    profit = worth[store, offer] + draw.normal(size=rows)
    return pa.table({"store": store, "offer": offers[offer], "profit": profit})


# %% [markdown]
# The loss of a policy is the mean over stores of the best offer's worth less that of the offer it takes.

# %%
columns = {"task": "store", "action": "offer", "reward": "profit"}
learners = {"pooled": PooledOPO(), "separate": FlatOPO(), "hierarchical": HierOPO(logging="random")}
requests = pa.table({"store": np.arange(stores)})


def loss(name: str, rows: int, seed: int) -> float:
    """Return the loss of a policy that was learned from a log of so many rows."""
    learner = learners[name].fit(log(rows, seed), **columns)
    code = {offer: k for k, offer in enumerate(offers.tolist())}
    chosen = np.array([code[offer] for offer in learner.predict(requests)])
    return float((worth.max(axis=1) - worth[np.arange(stores), chosen]).mean())


sizes, repeats = [400, 1200, 3600], 3
losses = {name: [[loss(name, rows, seed) for seed in range(repeats)] for rows in sizes] for name in learners}

# %%
fig, ax = plt.subplots()
for name, values in losses.items():
    ax.plot(sizes, np.mean(values, axis=1), marker="o", label=name)
ax.set(xscale="log", xlabel="rows of the log", ylabel="loss, a customer", ylim=(0, None))
ax.legend()

# %% [markdown]
# Pooling does not get better with more rows: it gives every store the same offer. Separate regressions follow the
# noise of few rows. The hierarchical model is as good as pooling where rows are few, as good as separate regressions
# where they are many, and better than both between. Three repeats are few: the numbers have noise of their own.

# %%
for name, values in losses.items():
    print(f"{name:12s}", np.mean(values, axis=1).round(3))
