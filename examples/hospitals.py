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
# # Three hospitals, one policy, no shared rows
#
# Each hospital sums its own rows. Only the sums travel. The policy that is learned from them is the one that all rows
# together would give.

# %%
import numpy as np
import pyarrow as pa

from hieropo import HierOPO, LogMoments

columns = {"task": "ward", "action": "dose", "reward": "better"}
doses = np.array(["low", "middle", "high"])


def hospital(number: int) -> pa.Table:
    """Return the log of one hospital, which stays there."""
    rng = np.random.default_rng(number)
    ward, dose = 100 * number + rng.integers(6, size=400), rng.integers(3, size=400)
    better = np.array([0.0, 0.4, 0.2])[dose] + rng.normal(size=400)
    return pa.table({"ward": ward, "dose": doses[dose], "better": better})


# %% [markdown]
# At each hospital:

# %%
for number in (1, 2, 3):
    LogMoments.of(hospital(number), **columns).save(f"hospital-{number}")

# %% [markdown]
# Where the sums come together:

# %%
together = sum(LogMoments.load(f"hospital-{number}") for number in (1, 2, 3))
learner = HierOPO(logging="random").fit(together)
learner.summary()

# %% [markdown]
# The same rows in one table give the same policy:

# %%
at_once = HierOPO(logging="random").fit(
    pa.concat_tables([hospital(number) for number in (1, 2, 3)]), **columns
)
wards = pa.table({"ward": [100, 203, 305, 999]})
print(learner.predict(wards), at_once.predict(wards))
assert list(learner.predict(wards)) == list(at_once.predict(wards))

# %% [markdown]
# ## A patient withdraws
#
# Rows can be taken out of sums again. Here the rows of a ward are deleted, and those of the first hospital count nine
# tenths.

# %%
later = (
    LogMoments.load("hospital-1").scale(0.9) + LogMoments.load("hospital-2") + LogMoments.load("hospital-3")
)
without = later.without([203])
print(without)
HierOPO(logging="random").fit(without).choose({"ward": 203}).action
