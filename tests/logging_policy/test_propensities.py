"""Estimated propensities, and what is said of logged ones."""

from itertools import product

import numpy as np
import pytest

from hieropo.errors import InputError, LogError
from hieropo.logging_policy.action_logit import (
    ActionLogit,
    Sample,
    Shares,
    always_one_action,
    learn_logit,
    learn_shares,
)
from hieropo.logging_policy.logged_propensities import LoggedPscores
from hieropo.logging_policy.propensities import LoggedActions, LoggingModel

FOLDS = 5


def softmax(eta):
    found = np.exp(eta - eta.max(axis=1, keepdims=True))
    return found / found.sum(axis=1, keepdims=True)


def draw(rng, chance):
    total = chance.sum(axis=1, keepdims=True)
    return np.asarray((np.cumsum(chance, axis=1) <= rng.random((len(chance), 1)) * total).sum(axis=1))


def collected(
    task, action, K, context=None, mask=None, *, fold=None, step=None, most=200_000
) -> LoggingModel:
    columns = 0 if context is None else context.shape[1]
    total = LoggedActions(K, rng=np.random.default_rng(5), columns=columns, folds=FOLDS, most=most)
    for start in range(0, len(task), step or len(task)):
        part = slice(start, start + (step or len(task)))
        total.add(
            task[part],
            action[part],
            None if context is None else context[part],
            None if mask is None else mask[part],
            fold=None if fold is None else fold[part],
        )
    return total.learn()


def world(seed, m=40, n=60, K=4, c=2, *, tasks=0.7, contexts=0.6):
    """Task (N,), fold (N,), contexts whose means differ between tasks, true propensities and actions."""
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(m), n)
    x = rng.normal(size=(m * n, c)) + rng.normal(size=(m, c))[task]
    slope = contexts * rng.normal(size=(c, K))
    chance = softmax(x @ slope + tasks * rng.normal(size=(m, K))[task])
    return task, rng.integers(0, FOLDS, m * n), x, chance, draw(rng, chance)


def taken(table, action):
    return table[np.arange(action.size), action]


# Shares


def slow_score(counts, c):
    """Log score of rows that are predicted without themselves, row by row."""
    rows = counts.sum(axis=1)
    weights = np.array([1 / (1 + (n - 1) / (1 + c)) for n in rows])
    pi = sum(w * row for w, row in zip(weights, counts, strict=True))
    pi = pi / pi.sum()
    total = 0.0
    for row in counts:
        for a, times in enumerate(row):
            for _ in range(times):
                left = row.copy()
                left[a] -= 1
                total += np.log((left[a] + c * pi[a]) / (left.sum() + c))
    return total, pi


def test_the_concentration_maximises_the_score_of_rows_that_are_left_out():
    rng = np.random.default_rng(0)
    counts = np.array(
        [
            rng.multinomial(n, p)
            for n, p in zip([3, 9, 20, 1, 7, 30], rng.dirichlet([1, 2, 1], 6), strict=True)
        ]
    )
    shares = learn_shares(counts)
    grid = np.exp(np.linspace(np.log(1e-3), np.log(1e6), 400))
    best = max(slow_score(counts, c)[0] for c in grid)
    score, pi = slow_score(counts, shares.concentration)
    assert score >= best - 1e-3
    np.testing.assert_allclose(shares.population, pi, rtol=1e-12)


@pytest.mark.parametrize("c", [0.5, 8.0, 100.0])
def test_the_concentration_of_a_dirichlet_law_is_found(c):
    rng = np.random.default_rng(1)
    pi = np.array([0.5, 0.3, 0.2])
    counts = np.array([rng.multinomial(40, p) for p in rng.dirichlet(c * pi, 2_000)])
    shares = learn_shares(counts)
    assert 0.85 < shares.concentration / c < 1.18
    np.testing.assert_allclose(shares.population, pi, atol=0.02)


def test_tasks_that_do_not_differ_get_the_shares_of_all():
    rng = np.random.default_rng(2)
    pi = np.array([0.6, 0.3, 0.1])
    shares = learn_shares(rng.multinomial(20, pi, 500))
    assert np.abs(shares.strengths(np.arange(500)) - pi).max() < 0.06  # raw shares are off by up to .5


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_mean_weight_of_an_action_is_one_under_the_dirichlet_law(n):
    """By enumeration of all logs of a task: E[1{a_1 = a} / p without row 1] = 1, exactly."""
    c, pi = 1.7, np.array([0.2, 0.5, 0.3])
    expected = np.zeros(3)
    for log in product(range(3), repeat=n):
        chance, seen = 1.0, np.zeros(3)
        for a in log:
            chance *= (seen[a] + c * pi[a]) / (seen.sum() + c)
            seen[a] += 1
        shares = Shares(np.vstack([seen, np.zeros(3)]), np.array([n, 0.0]), pi, c)
        expected[log[0]] += chance / shares.taken(np.array([0]), np.array([log[0]]))[0]
    np.testing.assert_allclose(expected, 1.0, rtol=1e-12)


def test_what_is_said_of_a_row_does_not_change_with_its_action():
    pi, c = np.array([0.2, 0.5, 0.3]), 2.5
    said = []
    for action in range(3):
        counts = np.array([[4.0, 0, 1], [0, 0, 0]])
        counts[0, action] += 1
        shares = Shares(counts, counts.sum(axis=1), pi, c)
        said.append(shares.strengths(np.array([0]), None, np.array([action]))[0])
    np.testing.assert_allclose(said, np.tile((np.array([4, 0, 1]) + c * pi) / (5 + c), (3, 1)), rtol=1e-13)


# The model


@pytest.mark.slow
def test_probabilities_add_to_one_stay_eligible_and_agree_with_those_of_the_action_taken():
    task, fold, x, _, action = world(3, K=5)
    mask = np.random.default_rng(0).random((task.size, 5)) < 0.6
    mask[np.arange(task.size), action] = True
    for context, allowed in ((None, None), (x, None), (None, mask), (x, mask)):
        model = collected(task, action, 5, context, allowed, fold=fold)
        for own in (None, action):
            table = model.probabilities(task, context, allowed, taken=own, fold=fold)
            np.testing.assert_allclose(table.sum(axis=1), 1.0, rtol=1e-12)
            assert (table >= 0).all()
            assert allowed is None or (table[~allowed] == 0).all()
        np.testing.assert_allclose(
            model.taken(task, action, context, allowed, fold=fold), taken(table, action), rtol=1e-12
        )


def test_an_unknown_task_gets_what_all_tasks_do_and_an_action_never_taken_gets_nothing():
    task, _, _, _, action = world(4, K=3)
    model = collected(task, action, 4)
    np.testing.assert_allclose(model.probabilities(np.array([-1]))[0], model.shares.population, rtol=1e-12)
    assert model.probabilities(np.array([-1]))[0, 3] == 0
    alone = np.array([[False, False, False, True]])
    assert (model.probabilities(np.array([0]), None, alone) == 0).all()
    assert any("never taken" in each for each in model.findings)


def test_batches_of_any_length_give_the_same_model():
    task, fold, x, _, action = world(5)
    one = collected(task, action, 4, x, fold=fold)
    many = collected(task, action, 4, x, fold=fold, step=37)
    np.testing.assert_allclose(
        many.taken(task, action, x, fold=fold), one.taken(task, action, x, fold=fold), rtol=1e-9
    )


def test_a_log_with_more_rows_than_are_kept_is_told_from_all_counts_and_a_sample():
    task, fold, x, chance, action = world(6, m=20, n=500)
    model = collected(task, action, 4, x, fold=fold, step=1_000, most=3_000)
    np.testing.assert_array_equal(
        model.shares.counts[:-1], np.bincount(task * 4 + action, minlength=80).reshape(20, 4)
    )
    assert model.calibration.rows == 3_000
    found = model.taken(task, action, x, fold=fold)
    truth = taken(chance, action)
    assert np.log(found).mean() > np.log(truth).mean() - 0.02
    assert np.log(model.shares.taken(task, action)).mean() < np.log(truth).mean() - 0.2


def test_contexts_that_say_nothing_are_left_out():
    task, fold, x, _, action = world(7, contexts=0.0)
    model = collected(task, action, 4, x, fold=fold)
    assert model.logit is None
    assert model.columns == 0
    np.testing.assert_array_equal(model.taken(task, action), model.shares.taken(task, action))


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [0.0, 0.7])
def test_contexts_are_told_from_tasks_whose_contexts_differ(tasks):
    task, fold, x, chance, action = world(8, m=100, tasks=tasks)
    model = collected(task, action, 4, x, fold=fold)
    found, truth = model.taken(task, action, x, fold=fold), taken(chance, action)
    assert np.log(found).mean() > np.log(truth).mean() - (0.02 if tasks else 0.003)
    assert abs(model.calibration.slope - 1.0) < 0.06
    assert model.calibration.gain > 10 * model.calibration.gain_se
    assert model.deterministic is None
    assert model.findings == ()
    if not tasks:  # all that tasks differ in are their contexts
        assert model.logit.concentration > 100 > model.shares.concentration


def slow_chance(logit: ActionLogit, f, s, x, allowed):
    z = (x - logit.mean) / logit.scale
    pull = [
        np.exp(logit.intercept[f, a] + logit.slope[f, :, a] @ z) * allowed[a] for a in range(allowed.size)
    ]
    strength = logit.effects[f].strength[s] * np.array(pull)
    return strength / strength.sum()


def test_the_logit_is_its_formula_and_its_strengths_are_a_fixed_point():
    task, fold, x, _, action = world(9, m=6, n=50)
    mask = np.random.default_rng(1).random((task.size, 4)) < 0.7
    mask[np.arange(task.size), action] = True
    sample = Sample(task, action, fold, x, mask)
    counts = np.bincount(task * 4 + action, minlength=24).reshape(6, 4)
    logit = learn_logit(learn_shares(counts), sample, FOLDS)
    table = logit.probabilities(task, x, mask)
    exposure = np.zeros((6, 4))
    effects = logit.effects[-1]
    for i in range(task.size):
        np.testing.assert_allclose(table[i], slow_chance(logit, -1, task[i], x[i], mask[i]), rtol=1e-10)
        exposure[task[i]] += table[i] / effects.strength[task[i]]  # e / Lambda
    want = (counts + effects.prior) / (exposure + effects.concentration)
    np.testing.assert_allclose(effects.strength[:-1], want, rtol=1e-4)
    held_out = logit.probabilities(task, x, mask, fold=fold)
    np.testing.assert_allclose(held_out[7], slow_chance(logit, fold[7], task[7], x[7], mask[7]), rtol=1e-10)


def test_a_row_is_taken_out_of_the_logit_as_if_the_task_were_learned_without_it():
    task, fold, x, _, action = world(10, m=30, n=40)
    counts = np.bincount(task * 4 + action, minlength=120).reshape(30, 4)
    shares = learn_shares(counts)
    logit = learn_logit(shares, Sample(task, action, fold, x, None), FOLDS)
    table = logit.probabilities(task, x, None, taken=action)
    effects, z = logit.effects[-1], (x - logit.mean) / logit.scale
    pull = np.exp(logit.intercept[-1] + z @ logit.slope[-1])
    for i in (0, 45, 700):
        others = np.flatnonzero((task == task[i]) & (np.arange(task.size) != i))
        left = counts[task[i]] - np.eye(4)[action[i]]
        strength = effects.strength[task[i]]
        for _ in range(500):
            exposure = (pull[others] / (pull[others] @ strength)[:, None]).sum(axis=0)
            strength = (left + effects.prior) / (exposure + effects.concentration)
        want = strength * pull[i] / (strength @ pull[i])
        np.testing.assert_allclose(table[i], want, atol=0.01)  # the pulls of the other rows are not said anew


def test_one_list_of_eligible_actions_for_each_task_gives_shares_among_them():
    rng = np.random.default_rng(11)
    mask = np.repeat(np.array([[True, True, False], [True, True, True]]), 200, axis=0)
    task = np.repeat(np.arange(80), 5)
    action = draw(rng, np.where(mask, np.array([0.5, 0.3, 0.2]), 0.0))
    model = collected(task, action, 3, None, mask, fold=rng.integers(0, FOLDS, 400))
    effects = model.logit.effects[-1]
    left_out = effects.leave_one_out(task, np.where(mask, 1.0, 0.0), action)
    counts = effects.counts[task] + effects.prior - np.eye(3)[action]
    assert model.logit.concentration > 10
    found = left_out[:200, 0] / left_out[:200, :2].sum(axis=1)
    np.testing.assert_allclose(found, counts[:200, 0] / counts[:200, :2].sum(axis=1), rtol=1e-6)


def test_actions_that_are_seldom_eligible_are_not_taken_for_unliked_ones():
    rng = np.random.default_rng(12)
    m, n, liked = 50, 80, np.array([0.2, 0.2, 0.6])
    task = np.repeat(np.arange(m), n)
    mask = np.ones((m * n, 3), dtype=bool)
    mask[:, 2] = rng.random(m * n) < 0.2
    chance = np.where(mask, liked, 0.0)
    chance /= chance.sum(axis=1, keepdims=True)
    action = draw(rng, chance)
    fold = rng.integers(0, FOLDS, m * n)
    model = collected(task, action, 3, None, mask, fold=fold)
    table = model.probabilities(task, None, mask, taken=action, fold=fold)
    assert np.abs(table - chance).mean() < 0.01
    naive = model.shares.strengths(task, mask, action)
    assert np.abs(naive / naive.sum(axis=1, keepdims=True) - chance).mean() > 0.05


# Without chance


def test_logging_without_chance_is_seen_in_tasks():
    rng = np.random.default_rng(13)
    task = np.repeat(np.arange(50), 6)
    assert "every task" in collected(task, rng.integers(0, 3, 50)[task], 3).deterministic
    assert "one action only" in collected(task, np.zeros(300, dtype=int), 3).deterministic
    assert collected(task, rng.integers(0, 3, 300), 3).deterministic is None
    assert (
        collected(np.arange(50), rng.integers(0, 3, 50), 3).deterministic is None
    )  # one row a task shows nothing
    assert always_one_action(np.array([[2, 0], [0, 2]])) is None  # happens by chance
    assert always_one_action(np.array([[20, 0], [0, 20]])) is not None
    rare = rng.random(300) < 0.004
    assert collected(task, rare.astype(int), 2).deterministic is None  # an action that is rare in all tasks


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["line", "interval", "own"])
def test_logging_without_chance_is_seen_in_contexts(rule):
    task, fold, x, _, _ = world(14, m=40, n=100)
    own = np.random.default_rng(0).normal(size=40)[task]
    action = {"line": x @ [1.0, 2.0] > 0, "interval": np.abs(x[:, 0]) > 0.8, "own": x[:, 0] > own}[
        rule
    ].astype(int)
    used = x[:, :1] if rule == "own" else x
    model = collected(task, action, 2, used, fold=fold)
    assert "contexts determine the action" in model.deterministic
    again = collected(
        task,
        np.where(np.random.default_rng(1).random(task.size) < 0.5, action, 1 - action),
        2,
        used,
        fold=fold,
    )
    assert again.deterministic is None


def test_a_choice_of_one_is_no_choice():
    task, action = np.repeat(np.arange(20), 10), np.arange(200) % 3
    mask = np.eye(3, dtype=bool)[action]
    model = collected(task, action, 3, None, mask, fold=np.arange(200) % FOLDS)
    assert model.deterministic == "no row had more than one eligible action"
    np.testing.assert_allclose(model.taken(task, action, None, mask, fold=np.arange(200) % FOLDS), 1.0)


def test_contexts_that_move_actions_in_a_way_that_no_logit_knows_are_reported():
    rng = np.random.default_rng(15)
    task, fold, x, _, _ = world(15, m=40, n=100)
    high = np.where(np.abs(x[:, 0]) > 0.9, 0.85, 0.15)
    model = collected(task, draw(rng, np.stack([high, 1 - high], axis=1)), 2, x, fold=fold)
    assert model.deterministic is None
    assert any("miss an effect of contexts" in each for each in model.findings)
    assert model.calibration.agreement > model.calibration.agreement_predicted + 0.1


def test_calibration_is_that_of_the_rows():
    task, fold, x, _, action = world(16)
    model = collected(task, action, 4, x, fold=fold)
    found, table = model.calibration, model.probabilities(task, x, taken=action, fold=fold)
    assert found.score == pytest.approx(np.log(taken(table, action)).mean(), rel=1e-9)
    assert found.pairs.sum() == table.size
    assert found.predicted @ found.pairs == pytest.approx(task.size)
    assert found.observed @ found.pairs == pytest.approx(task.size)
    logs = np.log(table)
    slopes = np.linspace(0.8, 1.2, 401)
    fits = [np.log(taken(softmax(s * logs), action)).sum() for s in slopes]
    assert found.slope == pytest.approx(slopes[int(np.argmax(fits))], abs=0.005)


# What they are for


def ips_errors(kind, seed, m=60, n=25, K=4):
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(m), n)
    x = rng.normal(size=(m * n, 2)) + 0.7 * rng.normal(size=(m, 2))[task]
    q = 0.7 * rng.normal(size=(m, K))[task] + x @ (0.5 * rng.normal(size=(2, K)))
    by_task, by_context = (
        rng.dirichlet(np.full(K, 2.0), m)[task],
        softmax(x @ (0.5 * rng.normal(size=(2, K)))),
    )
    chance = by_task if kind == "task" else by_context
    action = draw(rng, chance)
    reward = taken(q, action) + rng.normal(size=task.size)
    policy = (q + rng.normal(size=(m, K))[task]).argmax(axis=1)
    fold = rng.integers(0, FOLDS, task.size)
    model = collected(task, action, K, x, fold=fold)
    same, truth = policy == action, taken(q, policy).mean()
    chances = taken(chance, action), model.taken(task, action, x, fold=fold)
    return [(same * reward / p).mean() - truth for p in chances]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["task", "context"])
def test_weighted_rewards_are_no_worse_with_estimated_propensities_than_with_true_ones(kind):
    errors = np.array([ips_errors(kind, seed) for seed in range(30)])
    known, estimated = np.sqrt((errors**2).mean(axis=0))
    assert estimated < 1.1 * known
    assert abs(errors[:, 1].mean()) < 3.5 * errors[:, 1].std() / np.sqrt(len(errors))


# Bad input


def test_what_does_not_fit_is_refused():
    task, fold, x, _, action = world(17, m=5, n=20)
    total = LoggedActions(4, rng=np.random.default_rng(0), columns=2)
    with pytest.raises(InputError, match="no rows to learn"):
        total.learn()
    with pytest.raises(InputError, match=r"actions in 0 \.\. 3"):
        total.add(task, action + 4, x, fold=fold)
    with pytest.raises(InputError, match="Give both for each row"):
        total.add(task, action, x)
    with pytest.raises(InputError, match=r"Give folds in 0 \.\. 4"):
        total.add(task, action, x, fold=fold + 1)
    with pytest.raises(InputError, match="two folds"):
        LoggedActions(4, rng=np.random.default_rng(0), folds=1)
    total.add(task, action, x, fold=fold)
    mask = np.ones((task.size, 4), dtype=bool)
    with pytest.raises(InputError, match="for all rows or for none"):
        total.add(task, action, x, mask, fold=fold)
    lists = LoggedActions(4, rng=np.random.default_rng(0))
    mask[3, action[3]] = False
    with pytest.raises(LogError, match=r"Row 3 .* not among its eligible"):
        lists.add(task, action, None, mask, fold=fold)
    mask[4] = False
    with pytest.raises(InputError, match="Row 4 has no eligible action"):
        lists.add(task, action, None, mask, fold=fold)


def test_rows_of_another_log_and_missing_contexts_are_refused():
    task, fold, x, _, action = world(18)
    model = collected(task, action, 4, x, fold=fold)
    with pytest.raises(InputError, match="2 context columns"):
        model.probabilities(task)
    with pytest.raises(InputError, match="fold of each row"):
        model.taken(task, action, x)
    plain = collected(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 0]), 2)
    with pytest.raises(InputError, match=r"Row 1 has the action 1 .* never taken"):
        plain.taken(np.array([0, 1]), np.array([0, 1]))
    with pytest.raises(InputError, match="3 actions were given for 2"):
        plain.taken(np.array([0, 1]), np.array([0, 1, 1]))


@pytest.mark.parametrize("counts", [np.zeros((3, 2)), np.array([[1, -1]]), np.zeros(4)])
def test_counts_that_are_none_are_refused(counts):
    with pytest.raises(InputError, match="not counts of actions"):
        learn_shares(counts)


# Logged propensities


def checked(task, action, pscore, K, mask=None, step=10_000):
    total = LoggedPscores([f"action {a}" for a in range(K)])
    for start in range(0, len(task), step):
        part = slice(start, start + step)
        total.add(task[part], action[part], pscore[part], None if mask is None else mask[part])
    return total.check()


def test_right_propensities_pass():
    low = 0
    for seed in range(60):
        task, _, _, chance, action = world(100 + seed, m=35, n=30, tasks=0.5, contexts=0.3)
        found = checked(task, action, taken(chance, action), 4)
        assert found.findings == ()
        assert found.deterministic is None
        low += found.p_value < 0.1
    assert low <= 14  # of 60, where 6 are expected


def test_means_and_their_errors_are_those_of_the_rows():
    task, _, _, chance, action = world(19, m=10, n=30)
    mask = np.random.default_rng(0).random((task.size, 4)) < 0.8
    mask[np.arange(task.size), action] = True
    pscore = taken(chance, action)
    found = checked(task, action, pscore, 4, mask, step=17)
    for a in range(4):
        values = np.where(action == a, 1 / pscore, 0.0)[mask[:, a]]
        assert found.inverse[a] == pytest.approx(values.mean())
        assert found.inverse_se[a] == pytest.approx(values.std(ddof=1) / np.sqrt(values.size))
    assert found.counts.sum() == found.rows == task.size
    assert (found.low, found.high) == (pscore.min(), pscore.max())


@pytest.mark.parametrize("wrong", ["another action's", "doubled", "constant", "squared"])
def test_wrong_propensities_are_found(wrong):
    task, _, _, chance, action = world(20, m=60, n=60)
    right = taken(chance, action)
    pscore = {
        "another action's": taken(chance, (action + 1) % 4),
        "doubled": np.minimum(2 * right, 1.0),
        "constant": np.full(task.size, 0.25),
        "squared": right**2,
    }[wrong]
    found = checked(task, action, pscore, 4)
    assert found.p_value < 1e-6
    assert any("do not match" in each for each in found.findings) == (wrong == "doubled")
    assert any("predict the actions better" in each for each in found.findings) == (wrong != "doubled")
    assert found.constant == (wrong == "constant")


def test_of_two_actions_that_are_equally_far_off_the_first_is_named():
    rng = np.random.default_rng(3)
    for seed in range(20):
        task, action = rng.integers(20, size=1000 + seed), rng.integers(2, size=1000 + seed)
        found = checked(task, action, np.where(action == 1, 0.7, 0.3), 2)
        z = np.abs((found.inverse - 1) / found.inverse_se)
        assert z[0] == pytest.approx(z[1], rel=1e-12)
        (text,) = [each for each in found.findings if "do not match" in each]
        assert "of action 'action 0' " in text


def test_logging_with_probability_one_is_named_and_single_choices_are_none():
    task, action = np.repeat(np.arange(20), 10), np.arange(200) % 3
    assert "propensity 1" in checked(task, action, np.ones(200), 3).deterministic
    mask = np.eye(3, dtype=bool)[action]
    assert "more than one eligible" in checked(task, action, np.ones(200), 3, mask).deterministic
    some = np.where(np.arange(200) < 40, 1.0, 0.3)
    assert any("20% of the rows" in each for each in checked(task, action, some, 3).findings)


def test_bad_logged_propensities_are_refused():
    total = LoggedPscores("ab")
    with pytest.raises(InputError, match="no rows with propensities"):
        total.check()
    for bad in (0.0, 1.2, np.nan):
        with pytest.raises(InputError, match=r"row 1 of this batch is not in \(0, 1\]"):
            total.add(np.array([0, 0]), np.array([0, 1]), np.array([0.5, bad]))
    with pytest.raises(InputError, match="do not fit"):
        total.add(np.array([0, 0]), np.array([0]), np.array([0.5]))
