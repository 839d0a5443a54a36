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
# # Which incentive should each village get?
#
# In 119 villages of Malawi people were offered an incentive, drawn at random, to collect the result of a medical test
# (Thornton 2008). The reward is 1 where the result was collected, less 0.08 for each dollar that was paid. The log
# ships with hieropo. Each village is a task.

# %%
from importlib.resources import files

from hieropo import HierOPO, examine, plots

log = files("hieropo.data") / "thornton.parquet"
columns = {
    "task": "villnum",
    "action": "incentive",
    "reward": "reward",
    "context": ["distvct"],
    "pscore": "pscore",
}
examine(log, **columns)

# %% [markdown]
# The doctor found nothing that stops learning. `logging="random"` says that the incentives were drawn at random, so
# that they carry no knowledge of the villages.

# %%
learner = HierOPO(logging="random").fit(log, **columns)
learner

# %% [markdown]
# ## Is the policy worth anything?
#
# The first estimate rests on the propensities of the log, not on the model.

# %%
evaluation = learner.evaluate(log)
evaluation

# %%
ax = plots.caterpillar(evaluation)

# %% [markdown]
# ## Why this incentive here?
#
# With the log at hand, the rows that matter most are named too.

# %%
learner.explain(17, {"distvct": 2.0}, log=log)

# %% [markdown]
# ## Hand it on
#
# A gate leaves a village to the incumbent where harm is too likely. The report is one HTML file.

# %%
gated = evaluation.gate(0.05)
learner.save("villages", policy=gated)
evaluation.report("report.html", title="Which incentive should each village get?")
