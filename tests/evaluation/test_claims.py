"""What an evaluation says that a log shows: a gain, none, or a loss; and when the model is said to agree."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hieropo.evaluation.parts.by_model import ValueSummary
from hieropo.evaluation.parts.claims import agreement, claim
from hieropo.learners.hieropo import HierOPO
from hieropo.ope.value_estimates import ValueEstimate

COLUMNS: dict[str, Any] = {"task": "store", "action": "offer", "reward": "profit", "pscore": "p"}
CHANCE = np.array([0.4, 0.3, 0.2, 0.1])


def log(
    seed: int,
    tasks: int = 40,
    rows: int = 25,
    action: float = 0.2,
    interaction: float = 0.3,
    level: float = 0.5,
) -> pa.Table:
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=4) * action + rng.normal(size=(tasks, 4)) * interaction
    theta += rng.normal(size=(tasks, 1)) * level
    store, offer = np.repeat(np.arange(tasks), rows), rng.choice(4, size=tasks * rows, p=CHANCE)
    profit = theta[store, offer] + rng.normal(size=store.size)
    return pa.table({"store": store, "offer": offer, "profit": profit, "p": CHANCE[offer]})


def permuted(table: pa.Table, seed: int) -> pa.Table:
    """Return the log with the rewards of each task in another order."""
    store, rng = table["store"].to_numpy(), np.random.default_rng(seed)
    order = np.lexsort([rng.random(store.size), store])
    rewards = np.empty(store.size)
    rewards[np.lexsort([np.arange(store.size), store])] = table["profit"].to_numpy()[order]
    return table.set_column(table.column_names.index("profit"), "profit", pa.array(rewards))


def estimate(gain: float, low: float, high: float, withheld: str | None = None) -> ValueEstimate:
    se = (high - low) / 3.92
    return ValueEstimate("DR", gain, se, low, high, gain, se, low, high, 500.0, "tasks", withheld)


def worth(mean: float, sd: float) -> ValueSummary:
    return ValueSummary(mean, sd, mean - 1.959964 * sd, mean + 1.959964 * sd, 0.5)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.1, 0.3, "shown"), (-0.1, 0.3, "not shown"), (0.0, 0.0, "not shown"), (-0.3, -0.1, "worse")],
)
def test_the_interval_of_the_doubly_robust_gain_decides(low: float, high: float, verdict: str) -> None:
    found = claim([estimate((low + high) / 2, low, high)], None, worth(0.2, 0.1), "no", 0.95)
    assert found.verdict == verdict
    assert found.reason is None


@pytest.mark.parametrize(
    ("weighted", "model", "word"),
    [
        ((0.2, 0.1, 0.3), (0.22, 0.05), "agrees"),
        ((-0.2, -0.3, -0.1), (-0.22, 0.05), "agrees"),
        (
            (0.0, -0.2, 0.2),
            (0.1, 0.02),
            "does not contradict",
        ),  # it holds the figure, and shows nothing itself
        ((0.1, -0.2, 0.4), (0.3, 0.5), "does not contradict"),
        ((0.2, 0.1, 0.3), (0.15, 0.2), "does not contradict"),  # the model's own interval holds 0
        ((0.2, 0.1, 0.3), (0.34, 0.06), "agrees"),  # .14 away; sqrt(.1^2 + .1176^2) = .154
        ((0.2, 0.1, 0.3), (0.36, 0.06), "contradicts"),
        ((0.0, -0.05, 0.05), (0.3, 0.05), "contradicts"),
        ((0.2, 0.0, 0.3), (0.36, 0.0), "contradicts"),  # the half of the interval towards the model counts
        ((0.2, 0.0, 0.3), (0.05, 0.0), "does not contradict"),
    ],
)
def test_the_model_agrees_only_where_both_leave_out_0_on_one_side(
    weighted: tuple[float, float, float], model: tuple[float, float], word: str
) -> None:
    assert agreement(estimate(*weighted), worth(*model), 0.95) == word


def test_nothing_is_shown_without_an_estimate_that_can_be_trusted() -> None:
    none = claim([], "Without chance.", worth(0.2, 0.1), "no", 0.95)
    assert (none.verdict, none.reason, none.agreement) == (None, "Without chance.", None)
    withheld = claim([estimate(0.2, 0.1, 0.3, "too few")], None, worth(0.2, 0.1), "no", 0.95)
    assert withheld.verdict is None
    assert withheld.reason is not None
    assert "too few" in withheld.reason


@pytest.mark.slow
def test_the_first_sentence_says_which_of_three_it_is() -> None:
    table = log(1, tasks=40, rows=60, action=0.5)
    learner = HierOPO(logging="random").fit(table, **COLUMNS)
    found = learner.evaluate(table)
    assert found.verdict == "shown"
    assert str(found).startswith("The log shows a gain over the incumbent: ")
    later = log(1, tasks=40, rows=60, action=0.5)
    turned = later.set_column(2, "profit", pa.array(-later["profit"].to_numpy()))
    worse = learner.evaluate(turned)
    assert worse.verdict == "worse"
    assert str(worse).startswith("The log shows the policy to be worse than the incumbent: ")
    nothing = log(2, action=0.0, interaction=0.0)
    silent = HierOPO(logging="random").fit(nothing, **COLUMNS).evaluate(nothing)
    assert silent.verdict == "not shown"
    assert silent.claim.agreement != "agrees"
    assert str(silent).startswith("The log does not show a gain over the incumbent, nor a loss: ")
    alone = learner.evaluate(table, propensities="none")
    assert alone.verdict is None
    assert str(alone).startswith(
        "The log gives no verdict on the gain over the incumbent. Importance weighting was turned off"
    )
    told = found.to_dict()
    assert (told["verdict"], told["claim"]["by"]) == ("shown", "DR")
    assert told["claim"]["gain"] == found.estimate("DR").gain


@pytest.mark.slow
def test_a_withheld_estimate_shows_nothing_even_where_all_are_asked_for() -> None:
    table = log(3, tasks=4, rows=12)
    found = HierOPO(logging="random").fit(table, **COLUMNS).evaluate(table, show_all=True)
    assert found.estimate("DR").withheld is None
    assert found.verdict is None


@pytest.mark.slow
def test_new_rows_are_said_not_to_update_the_claim_of_the_model() -> None:
    learner = HierOPO(logging="random").fit(log(1), **COLUMNS)
    new, own = learner.evaluate(log(5)), learner.evaluate(log(1))
    assert "These rows do not update it" in " ".join(str(new).split())
    assert "do not update" not in str(own)
    assert new.model.judged == new.model.difference
    partly = learner.evaluate(pa.concat_tables([log(1), log(5)]))
    assert partly.learned_from == "partly"
    assert partly.verdict is not None
    assert partly.claim.agreement is None
    assert partly.claim.unlike is not None


@pytest.mark.slow
def test_the_model_is_compared_with_weights_on_the_same_policies() -> None:
    """Few rows a task: policies of four fifths of them are worth clearly less, and the model is right on both."""
    tasks, rows = 3000, 10
    rng = np.random.default_rng(3)
    theta = rng.normal(size=(tasks, 4)) * 0.5
    store, offer = np.repeat(np.arange(tasks), rows), rng.choice(4, size=tasks * rows, p=CHANCE)
    profit = theta[store, offer] + rng.normal(size=store.size)
    table = pa.table({"store": store, "offer": offer, "profit": profit, "p": CHANCE[offer]})
    learner = HierOPO(logging="random").fit(table, **COLUMNS)
    found = learner.evaluate(table)
    gain = found.model.difference.mean - found.model.judged.mean
    assert gain > 3 * found.estimate("DR").gain_se / 4
    chosen = np.asarray(learner.predict(pa.table({"store": np.arange(tasks)})), dtype=np.int64)
    truth = float((theta[np.arange(tasks), chosen] - theta @ CHANCE).mean())
    assert found.model.difference.low < truth < found.model.difference.high
    assert abs(found.model.judged.mean - found.estimate("DR").gain) < 2.5 * found.estimate("DR").gain_se
    assert found.claim.agreement == "agrees"
    assert "the policy itself, learned from all rows, gains" in " ".join(str(found).split())


@pytest.mark.slow
def test_the_model_of_the_policies_that_are_judged_is_its_law_of_their_choices() -> None:
    """By hand: the posterior of all rows, applied to what the policy of each fold does in the rows of that fold."""
    from hieropo.evaluation.comparisons.crossfit import cross_fit
    from hieropo.evaluation.entry import subject_of
    from hieropo.evaluation.passes.first_pass import FOLDS, fold_moments, row_folds
    from hieropo.logs.opening import open_log
    from hieropo.logs.reading import read

    table = log(4, tasks=12)
    learner = HierOPO(logging="random").fit(table, **COLUMNS)
    found = learner.evaluate(table, seed=2)
    subject = subject_of(learner)
    roles = replace(learner.roles_)
    batches = list(read(open_log(table), roles))
    parts = fold_moments(batches, subject.features, FOLDS, 2, per_action=True, offset=subject.moments.offset)
    fits = cross_fit(subject, parts, np.ones(4, dtype=np.int64))
    store, offer = table["store"].to_numpy(), table["offer"].to_numpy()
    fold = row_folds(0, store.size, FOLDS, 2)
    index = np.empty(store.size, dtype=np.int64)
    for k, policy in enumerate(fits.policies):
        own = fold == k
        index[own] = policy.choose_many(store[own], np.zeros((own.sum(), 0))).index[:, 0]
    means = np.array([subject.posterior.task(s).mean for s in range(12)])
    gain = float((means[store, index] - means[store, offer]).mean())
    assert found.model.judged.mean == pytest.approx(gain, rel=1e-8, abs=1e-12)


@pytest.mark.slow
def test_permuted_rewards_show_nothing() -> None:
    """Rewards permuted within tasks: at most 5 % of logs may show anything; of 60 logs, 8 are too many at 1 %.

    The verdict is that of cross-fitted weights. So most policies are plug-in ones, which take a tenth of the time.
    """
    shown = []
    for seed in range(60):
        table = permuted(log(seed, tasks=40), seed)
        fast = {"task_cov": "isotropic", "uncertainty": "plug-in"} if seed % 10 else {}
        learner = HierOPO(logging="random", **fast).fit(table, **COLUMNS)
        shown.append(learner.evaluate(table).verdict)
    assert sum(verdict != "not shown" for verdict in shown) <= 7
    assert sum(verdict == "shown" for verdict in shown) <= 4


@pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")
def test_a_log_whose_folds_are_too_small_to_learn_from_is_evaluated_by_the_model_alone() -> None:
    table = pa.table({"store": [1, 2], "offer": ["x", "y"], "profit": [0.0, 1.0]})
    columns = {"task": "store", "action": "offer", "reward": "profit"}
    found = HierOPO().fit(table, **columns).evaluate(table)
    assert found.verdict is None
    assert "at least 2 rows are needed" in " ".join(str(found).split())


@pytest.mark.slow
def test_randomisation_tests_are_left_out_on_request() -> None:
    table = log(4, tasks=12)
    learner = HierOPO(logging="random").fit(table, **COLUMNS)
    without, full = learner.evaluate(table, randomise=False), learner.evaluate(table)
    assert "not asked for" in without.randomisation.refused
    assert full.randomisation.refused is None
    assert without.estimate("DR") == full.estimate("DR")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("no_effect", "says"), [(0.005, "Their effect differs"), (0.3, "Taken alone, the test")]
)
def test_two_randomisation_tests_that_disagree_are_told_apart(no_effect: float, says: str) -> None:
    table = log(0)
    found = HierOPO(logging="random").fit(table, **COLUMNS).evaluate(table)
    tests = replace(found.randomisation, no_effect=no_effect, tasks_alike=0.01)
    assert f"{says}" in " ".join(str(replace(found, randomisation=tests)).split())
