"""Randomisation tests are silent where actions do nothing, and speak where they do something."""

from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hieropo.evaluation.passes.first_pass import RowSampler
from hieropo.learners.hieropo import HierOPO
from hieropo.ope.randomisation import Rows, no_effect, tasks_alike

CHANCE = np.array([0.4, 0.3, 0.2, 0.1])


def rows(
    seed: int, tasks: int = 20, n: int = 15, *, redraw: bool = False, columns: int = 0, **world: Any
) -> Rows:
    rng = np.random.default_rng(seed)
    action, interaction, by_context = (
        world.get(name, 0.0) for name in ("action", "interaction", "by_context")
    )
    task = np.repeat(np.arange(tasks), n)
    chance = rng.dirichlet(10 * CHANCE, size=tasks)[task]
    code = (rng.random(task.size)[:, None] > np.cumsum(chance, axis=1)[:, :-1]).sum(axis=1)
    x = rng.normal(size=(task.size, columns)) + 1.0
    reward = rng.normal(size=tasks)[task] + action * rng.normal(size=4)[code]
    reward += interaction * rng.normal(size=(tasks, 4))[task, code]
    if columns:
        reward += x[:, 0] + by_context * rng.normal(size=4)[code] * x[:, 0]
    reward += rng.normal(size=task.size) * np.asarray(world.get("noise", np.ones(4)))[code]
    return Rows(task, code, task, reward, x, np.ones(task.size), chance if redraw else None)


def p_values(test: Any, count: int, **world: Any) -> Any:
    return np.array([test(rows(k, **world), 99, np.random.default_rng([7, k])) for k in range(count)])


@pytest.mark.slow
@pytest.mark.parametrize("redraw", [False, True])
@pytest.mark.parametrize("columns", [0, 2])
def test_p_values_are_uniform_where_actions_have_no_effect(redraw: bool, columns: int) -> None:  # noqa: FBT001
    from scipy.stats import kstest

    p = p_values(no_effect, 200, redraw=redraw, columns=columns, noise=[2.0] * 4)
    assert np.isin(np.round(100 * p), np.arange(1, 101)).all()
    jitter = np.random.default_rng(0).random(200) / 100  # p is one of 100 numbers
    assert kstest(p - jitter, "uniform").pvalue > 0.005


@pytest.mark.slow
def test_noise_that_differs_between_actions_is_no_effect_on_means() -> None:
    noise = [1.0, 1.0, 1.0, 3.0]
    assert (p_values(no_effect, 200, noise=noise) <= 0.05).mean() < 0.11
    assert (p_values(tasks_alike, 200, noise=noise) <= 0.05).mean() < 0.13


@pytest.mark.slow
def test_tasks_are_alike_where_effects_are_the_same_in_all_of_them_and_contexts_vary_them() -> None:
    for world in ({"action": 1.0}, {"action": 1.0, "columns": 2, "by_context": 0.5}):
        assert (p_values(tasks_alike, 200, **world) <= 0.05).mean() < 0.11


@pytest.mark.slow
def test_effects_are_seen() -> None:
    assert (p_values(no_effect, 60, action=0.5) <= 0.05).mean() > 0.8
    assert (p_values(no_effect, 60, interaction=1.0) <= 0.05).mean() > 0.8
    assert (p_values(no_effect, 60, columns=2, by_context=0.7) <= 0.05).mean() > 0.8
    assert (p_values(tasks_alike, 60, interaction=1.0) <= 0.05).mean() > 0.8
    assert (p_values(no_effect, 60, action=0.5, redraw=True) <= 0.05).mean() > 0.8


def test_all_turns_of_a_small_log_bring_each_rank_once() -> None:
    """Two tasks of three rows have nine turns. Over all of them as logs, p <= q in at most a share q: exact."""
    task, action = np.repeat([0, 1], 3), np.array([0, 0, 1, 0, 1, 1])
    reward = np.random.default_rng(1).normal(size=6)
    found = []
    for first, second in product(range(3), range(3)):
        turned = np.concatenate([np.roll(reward[:3], first), np.roll(reward[3:], second)])
        table = Rows(task, action, task, turned, np.zeros((6, 0)), np.ones(6))
        p = no_effect(table, 1999, np.random.default_rng(5))
        assert p is not None
        found.append(p)
    assert max(np.mean(np.array(found) <= q + 0.03) / q for q in (1 / 9, 3 / 9, 6 / 9)) <= 1.5
    assert max(found) > 0.9


def test_nothing_is_told_where_nothing_can_tell() -> None:
    table = rows(1)
    one = np.zeros_like(table.action)
    same = Rows(table.task, one, table.task, table.reward, table.context, table.weight)
    assert no_effect(same, 99, np.random.default_rng(0)) is None
    flat = Rows(table.task, table.action, table.task, 5.0 + 0 * table.reward, table.context, table.weight)
    assert no_effect(flat, 99, np.random.default_rng(0)) is None
    alone = Rows(one, table.action, one, table.reward, table.context, table.weight)
    assert tasks_alike(alone, 99, np.random.default_rng(0)) is None
    assert no_effect(alone, 99, np.random.default_rng(0)) is not None


COLUMNS: dict[str, Any] = {"task": "store", "action": "offer", "reward": "profit"}


def log(seed: int, effect: float, *, by_row: bool = False, **more: Any) -> pa.Table:
    rng = np.random.default_rng(seed)
    store, x = np.repeat(np.arange(30), 20), rng.normal(size=600)
    chance = np.tile(CHANCE, (600, 1))
    if by_row:
        chance = np.exp(x[:, None] * [0.5, 0.2, 0.0, -0.5])
        chance /= chance.sum(axis=1, keepdims=True)
    offer = (rng.random(600)[:, None] > np.cumsum(chance, axis=1)[:, :-1]).sum(axis=1)
    profit = effect * offer + x + rng.normal(size=600)
    columns = {
        "store": store,
        "offer": offer,
        "x": x,
        "profit": profit,
        "p": chance[np.arange(600), offer],
        **more,
    }
    return pa.table(columns)


@pytest.mark.slow
def test_an_evaluation_says_how_actions_were_drawn_and_whether_p_values_are_exact() -> None:
    table = log(1, 0.3)
    learner = HierOPO(logging="random").fit(table, **COLUMNS, pscore="p")
    found = learner.evaluate(table)
    tests = found.randomisation
    assert (tests.exact, tests.draws, tests.rows, tests.refused) == (True, 199, 600, None)
    assert tests.no_effect == pytest.approx(1 / 200)
    text = " ".join(str(found).split())
    assert "Actions have an effect (p = 0.005)." in text
    assert "exact if actions were drawn with the logged propensities" in text
    assert found.to_dict()["randomisation"]["no_effect"] == tests.no_effect
    estimated = learner.evaluate(table, propensities="estimated").randomisation
    assert not estimated.exact
    assert "estimated" in estimated.how
    varied = learner.evaluate(log(2, 0.3, by_row=True)).randomisation
    assert not varied.exact
    assert "differ between rows of a task" in varied.how
    assert varied.no_effect is not None
    assert varied.no_effect < 0.05
    none = learner.evaluate(table, propensities="none").randomisation
    assert (none.no_effect, none.refused) == (
        None,
        "Importance weighting was turned off (propensities='none').",
    )
    adaptive = HierOPO(logging="adaptive").fit(table, **COLUMNS, pscore="p").evaluate(table)
    assert not adaptive.randomisation.exact


@pytest.mark.slow
def test_lists_of_eligible_actions_are_kept_when_actions_are_drawn() -> None:
    rng = np.random.default_rng(3)
    lists = [[0, 1, 2, 3] if k % 2 else [0, 1] for k in range(600)]
    table = log(3, 0.0)
    offer = np.array([rng.choice(each) for each in lists])
    table = table.set_column(1, "offer", pa.array(offer)).append_column("can", pa.array(lists))
    table = table.set_column(4, "p", pa.array([1 / len(each) for each in lists]))
    learner = HierOPO(logging="random").fit(table, **COLUMNS, pscore="p", eligible="can")
    tests = learner.evaluate(table).randomisation
    assert tests.exact
    assert "same eligible actions" in tests.how


def test_a_large_log_keeps_the_same_rows_however_it_is_cut() -> None:
    from hieropo.rows.batches import Batch

    def kept(step: int) -> Any:
        keeper = RowSampler(4, 1, 0, max_rows=100)
        for start in range(0, 1000, step):
            n = min(step, 1000 - start)
            at = np.arange(start, start + n)
            batch = Batch(at, at % 4, at.astype(float), at[:, None].astype(float), first_row=start)
            keeper.add(batch, at, at % 4, None)
        return keeper.sample()

    one, many = kept(1000), kept(7)
    assert 60 < one.task.size <= 100
    assert np.array_equal(one.task, many.task)
    assert (one.reward == one.task).all()


def test_one_row_of_each_action_in_each_task_does_not_tell_differences_between_tasks_from_noise() -> None:
    rng, tasks = np.random.default_rng(0), 30
    task, action = np.repeat(np.arange(tasks), 4), np.tile(np.arange(4), tasks)
    log = Rows(task, action, task, rng.normal(size=task.size), np.zeros((task.size, 0)), np.ones(task.size))
    assert tasks_alike(log, 99, rng) is None
    assert no_effect(log, 99, rng) is not None


def test_rewards_that_actions_settle_are_not_said_to_differ_between_tasks() -> None:
    rng, log = np.random.default_rng(0), rows(0)
    settled = Rows(log.task, log.action, log.task, log.action + 3.0 * log.task, log.context, log.weight)
    assert tasks_alike(settled, 99, rng) is None
    assert no_effect(settled, 99, rng) == 0.01
