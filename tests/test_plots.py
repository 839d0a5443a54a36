"""Plots: they draw the numbers of results on the Axes that is given, and fit nothing."""

import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import matplotlib as mpl
import numpy as np
import pyarrow as pa
import pytest
from matplotlib import pyplot as plt

from hieropo import Evaluation, HierOPO, plots
from hieropo.errors import InputError

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


@cache
def results(tasks: int = 12, **columns: str) -> tuple[HierOPO, Evaluation]:
    rng = np.random.default_rng(1)
    store, offer, visits = (
        rng.integers(tasks, size=900),
        rng.integers(3, size=900),
        rng.uniform(0, 2, size=900),
    )
    theta = np.random.default_rng(7).normal(size=(tasks, 3))
    profit = 100 + theta[store, offer] + 0.3 * visits + rng.normal(size=900)
    log = pa.table({
        "store": store, "offer": np.array(["none", "coupon", "gift"])[offer], "visits": visits, "profit": profit,
        "p": np.full(900, 1 / 3),
    })  # fmt: skip
    learner = HierOPO(logging="random").fit(
        log, task="store", action="offer", reward="profit", context=["visits"], **columns
    )
    return learner, learner.evaluate(log, compare=False, propensities="auto" if columns else "none")


@pytest.mark.slow
@pytest.mark.parametrize(("tasks", "lines"), [(12, 12), (70, 30)])
def test_a_caterpillar_has_the_gain_of_each_task_or_of_the_ends(tasks: int, lines: int) -> None:
    _, found = results(tasks, pscore="p")
    ax = plots.caterpillar(found)
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert len(labels) == len(set(labels)) <= lines
    values = sorted(
        float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() in "oD" and len(line.get_xdata())
    )
    if tasks == lines:
        assert values == pytest.approx(sorted(found.model.gain))


@pytest.mark.slow
def test_every_plot_draws_on_the_axes_that_is_given() -> None:
    learner, found = results(pscore="p")
    draws: list[Any] = [
        lambda ax: plots.caterpillar(found, ax=ax),
        lambda ax: plots.gains(found, ax=ax),
        lambda ax: plots.overlap(found, ax=ax),
        lambda ax: plots.calibration(found, ax=ax),
        lambda ax: plots.effect(found, "visits", actions=["gift"], ax=ax),
        lambda ax: plots.pooling(learner, "gift", ax=ax),
    ]
    figure, axes = plt.subplots(len(draws))
    for draw, ax in zip(draws, axes, strict=True):
        assert draw(ax) is ax
        assert ax.get_title()
        assert ax.get_xlabel()
    figure.canvas.draw()
    assert len(plt.get_fignums()) == 1


@pytest.mark.slow
def test_pooling_leads_from_the_own_rows_to_the_posterior_mean() -> None:
    learner, _ = results(pscore="p")
    own, drawn = (np.asarray(line.get_xdata()) for line in plots.pooling(learner, "gift:visits").lines[:2])
    j = learner.features_.names.index("gift:visits")
    want = np.sort([learner.posterior_.task(task).mean[j] for task in range(12)])
    assert drawn == pytest.approx(want)
    centre = learner.posterior_.new_task().mean[j]
    assert np.abs(drawn - centre).mean() < np.abs(own - centre).mean()
    level = np.asarray(plots.pooling(learner, "gift").lines[0].get_xdata())
    assert level.mean() == pytest.approx(100, abs=2)  # the offset of rewards is in it


def test_estimates_of_few_rows_do_not_stretch_the_axis() -> None:
    ends, beyond = plots._limits(np.array([*np.linspace(0, 1, 30), 200.0, np.nan]), np.full(32, 0.5))
    assert beyond == 1
    assert -0.2 < ends[0] < 0.0
    assert 1.0 < ends[1] < 1.5
    assert plots._limits(np.full(2, np.nan), np.ones(2)) == ((0.0, 2.0), 0)


@pytest.mark.slow
def test_an_effect_is_that_of_the_report() -> None:
    _, found = results(pscore="p")
    ax = plots.effect(found, "visits")
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {"none", "coupon", "gift"}
    x, y = ax.lines[0].get_data()
    assert (y[-1] - y[0]) / (x[-1] - x[0]) == pytest.approx(0.3, abs=0.25)


def test_what_cannot_be_drawn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, found = results()
    with pytest.raises(InputError, match="no importance-weighted estimates of tasks"):
        plots.overlap(found)
    with pytest.raises(InputError, match="not among the context columns"):
        plots.effect(found, "price")
    with pytest.raises(InputError, match="not among the actions"):
        plots.effect(found, "visits", actions=["cash"])
    with pytest.raises(InputError, match="not among the features"):
        plots.pooling(learner, "cash")
    with pytest.raises(InputError, match="not fitted"):
        plots.pooling(HierOPO(), "gift")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="pip install"):
        plots.gains(found)
