"""What a policy is worth and whom it would hurt: whole evaluations, against the truth and against brute force."""

import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import norm

from hieropo.errors import (
    HieropoWarning,
    InputError,
    LogError,
    SchemaError,
    UnknownActionError,
    UnknownTaskError,
)
from hieropo.learners.hieropo import HierOPO
from hieropo.model.crossed.posterior import condition_crossed
from hieropo.model.posterior import condition
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import LCBPolicy

TASKS, ACTIONS = 30, np.array(["a", "b", "c"])
THETA = np.random.default_rng(0).normal(size=(TASKS, 3, 2)) * 0.3
COLUMNS: dict[str, Any] = {"task": "store", "action": "offer", "reward": "profit", "context": ["x"]}


def log(seed: int, n: int = 3000, tasks: int = TASKS, **more: Any) -> pa.Table:
    rng = np.random.default_rng(seed)
    store, x = rng.integers(tasks, size=n), rng.normal(size=n)
    chance = np.array([0.5, 0.3, 0.2])
    offer = rng.choice(3, size=n, p=chance)
    theta = THETA[store % TASKS]
    at = np.arange(n)
    profit = theta[at, offer, 0] + theta[at, offer, 1] * x + rng.normal(size=n)
    columns = {"store": store, "offer": ACTIONS[offer], "x": x, "profit": profit, "p": chance[offer], **more}
    return pa.table(columns)


@pytest.fixture(scope="module")
def learner() -> HierOPO:
    return HierOPO(logging="random").fit(log(1), pscore="p", **COLUMNS)


def truth(learner: HierOPO) -> tuple[float, float]:
    """Value of the policy and of the incumbent, over many contexts."""
    rng = np.random.default_rng(9)
    store, x = rng.integers(TASKS, size=200_000), rng.normal(size=200_000)
    chosen = learner.policy_.choose_many(store, x[:, None]).index[:, 0]
    mean = THETA[store, :, 0] + THETA[store, :, 1] * x[:, None]
    return float(mean[np.arange(200_000), chosen].mean()), float((mean @ [0.5, 0.3, 0.2]).mean())


@pytest.mark.slow
def test_new_rows_are_judged_by_model_and_by_weights_and_both_hold_the_truth(learner: HierOPO) -> None:
    found = learner.evaluate(log(2, 20_000))
    value, incumbent = truth(learner)
    assert (found.learned_from, found.propensities, found.new_tasks) == ("no", "logged", 0)
    model = found.model
    assert model.new.low < value < model.new.high
    assert model.difference.low < value - incumbent < model.difference.high
    for name in ("IPS", "SNIPS", "DR", "SNDR"):
        each = found.estimate(name)
        assert each.withheld is None
        assert abs(each.value - value) < 4 * each.se
        assert abs(each.gain - (value - incumbent)) < 4 * each.gain_se
    assert found.limits == ()
    assert found.any_n is not None
    for (low, high), name in zip(found.any_n, ("value", "gain"), strict=True):
        assert low < getattr(found.estimate("IPS"), name) < high
        assert low < (value if name == "value" else value - incumbent) < high


TaskMarginals = list[tuple[float, np.ndarray, np.ndarray]]


def joint_laws(parts: Any, tasks: list[int]) -> TaskMarginals:
    """Weight, means (m, d) and covariances (m, d, m, d) of all tasks, under each hierarchy."""
    found = []
    for weight, part in parts:
        mean, cov = np.zeros((len(tasks), 6)), np.zeros((len(tasks), 6, len(tasks), 6))
        for i, s in enumerate(tasks):
            mean[i] = part.task(s).mean
            for j, t in enumerate(tasks[: i + 1]):
                cov[i, :, j] = part.cov_between(s, t)
                cov[j, :, i] = cov[i, :, j].T
        found.append((float(weight), mean, cov))
    return found


def along(laws: TaskMarginals, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, means and sds of sum_s v_s' theta_s; 0 where nothing but rounding is left of both."""
    means = np.array([float(np.sum(vector * mean)) for _, mean, _ in laws])
    variances = np.array([float(np.einsum("ia,iajb,jb->", vector, cov, vector)) for *_, cov in laws])
    some = (variances > 1e-14) | (np.abs(means) > 1e-12)
    weights = np.array([weight for weight, *_ in laws])
    return weights, np.where(some, means, 0.0), np.sqrt(np.where(some, variances, 0.0))


def below(laws: tuple[np.ndarray, np.ndarray, np.ndarray], end: float) -> float:
    """Return P(< end) of a mixture of normals, some of them points."""
    weights, means, sds = laws
    points = np.where(sds > 0, sds, 1.0)
    return float(weights @ np.where(sds > 0, norm.cdf((end - means) / points), means < end))


def is_worth(worth: Any, laws: TaskMarginals, vector: np.ndarray) -> None:
    weights, means, sds = law = along(laws, vector)
    mean = weights @ means
    assert worth.mean == pytest.approx(mean, rel=1e-9, abs=1e-12)
    assert worth.sd**2 == pytest.approx(weights @ (sds**2 + (means - mean) ** 2), rel=1e-8)
    for end, level in ((worth.low, 0.025), (worth.high, 0.975)):  # which may be a point of some weight
        assert below(law, end - 1e-5 * worth.sd) <= level <= below(law, end + 1e-5 * worth.sd)


@pytest.mark.slow
def test_the_model_says_what_brute_force_over_rows_says() -> None:
    learner = HierOPO(logging="random", task_cov="block").fit(log(1), pscore="p", **COLUMNS)
    plain = HierOPO(known=learner.hierarchy_, logging="random").fit(log(1), **COLUMNS)
    assert_is_brute_force(plain, [(1.0, condition(learner.moments_, learner.hierarchy_))], TASKS)


@pytest.mark.slow
def test_the_model_of_the_crossed_prior_says_what_brute_force_over_rows_says() -> None:
    learner = HierOPO(logging="random").fit(log(1, 400, tasks=8), pscore="p", **COLUMNS)
    hierarchies = learner.hierarchy_
    parts = [
        (hierarchies.conditioned[k], condition_crossed(learner.moments_, hierarchies.hierarchy(int(k))))
        for k in np.flatnonzero(hierarchies.conditioned)
    ]
    assert len(parts) > 5
    assert_is_brute_force(learner, parts, 8)


def assert_is_brute_force(learner: HierOPO, parts: Any, m: int) -> None:
    table = log(3, 400, tasks=m)
    found = learner.evaluate(table, propensities="none").model
    store, x = table["store"].to_numpy(), table["x"].to_numpy()
    codes = learner.features_.action_codes(table["offer"].to_numpy(zero_copy_only=False))
    tasks = np.unique(store)
    laws = joint_laws(parts, tasks.tolist())
    sums = np.zeros((2, tasks.size, 6))
    for i in range(400):
        s = int(np.searchsorted(tasks, store[i]))
        chosen = learner.policy_.choose(int(store[i]), x[i : i + 1]).index
        for k, code in enumerate((chosen, int(codes[i]))):
            sums[k, s] += learner.features_.phi(x[i : i + 1][:, None], np.array([code]))[0] / 400
    is_worth(found.new, laws, sums[0])
    is_worth(found.incumbent, laws, sums[1])
    is_worth(found.difference, laws, sums[0] - sums[1])
    at = np.asarray(found.keys.locate(tasks))
    rows = np.bincount(np.searchsorted(tasks, store))
    delta = (sums[0] - sums[1]) * 400 / rows[:, None]
    for i, row in enumerate(at):
        law = along(laws, np.where(np.arange(tasks.size)[:, None] == i, delta, 0.0))
        weights, means, sds = law
        gain = weights @ means
        sd = np.sqrt(weights @ (sds**2 + (means - gain) ** 2))
        assert found.gain[row] == pytest.approx(gain, rel=1e-9, abs=1e-12)
        assert found.gain_sd[row] == pytest.approx(sd, rel=1e-7)
        assert found.harm[row] == pytest.approx(below(law, 0.0), abs=1e-9)
    share = rows / 400
    passed = found.harm <= np.median(found.harm[at])
    assert 0 < passed.sum() < passed.size
    is_worth(found.gated(passed), laws, np.where(passed[at][:, None], delta * share[:, None], 0.0))


@pytest.mark.slow
def test_rows_that_were_learned_from_do_not_flatter_the_policy() -> None:
    """Rewards are noise: weighting the rows that a policy was learned from finds a gain, cross-fitting finds none."""
    naive, fitted = [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        n = 600
        offer = rng.integers(4, size=n)
        table = pa.table(
            {
                "store": rng.integers(40, size=n),
                "offer": offer,
                "profit": rng.normal(size=n),
                "p": np.full(n, 0.25),
            }
        )
        columns = {"task": "store", "action": "offer", "reward": "profit", "pscore": "p"}
        learner = HierOPO(task_cov="isotropic", uncertainty="plug-in", logging="random").fit(table, **columns)
        found = learner.evaluate(table)
        assert found.learned_from == "yes"
        fitted.append(found.estimate("IPS").gain)
        chosen = learner.predict(table)
        naive.append(
            float(np.mean((chosen == offer) * 4 * table["profit"].to_numpy()))
            - table["profit"].to_numpy().mean()
        )
    se = np.std(fitted) / np.sqrt(6)
    assert abs(np.mean(fitted)) < 4 * se
    assert np.mean(naive) > np.mean(fitted) + 2 * se


@pytest.mark.slow
def test_a_log_that_has_grown_is_judged_by_policies_of_its_other_rows(learner: HierOPO) -> None:
    grown = pa.concat_tables([log(1), log(7)])
    found = learner.evaluate(grown)
    assert found.learned_from == "partly"
    value, incumbent = truth(learner)
    assert abs(found.estimate("DR").gain - (value - incumbent)) < 4 * found.estimate("DR").gain_se + 0.05
    assert "learned from some of these rows" in str(found)


@pytest.mark.slow
def test_estimated_propensities_do_as_well_as_logged_ones(learner: HierOPO) -> None:
    table = log(2, 20_000)
    logged, estimated = (learner.evaluate(table, propensities=kind) for kind in ("logged", "estimated"))
    assert estimated.propensities == "estimated"
    for name in ("SNIPS", "DR"):
        a, b = logged.estimate(name), estimated.estimate(name)
        assert abs(a.gain - b.gain) < a.gain_se
    assert any("are estimated" in limit for limit in estimated.limits)


@pytest.mark.slow
def test_a_log_without_chance_is_refused_by_weights_and_answered_by_the_model() -> None:
    table = log(5)
    store = table["store"].to_numpy()
    own = table.filter(pa.array(table["offer"].to_numpy(zero_copy_only=False) == ACTIONS[store % 3]))
    with pytest.warns(HieropoWarning, match="Every task with several rows got one and the same action"):
        learner = HierOPO(task_cov="isotropic", logging="random").fit(own, **COLUMNS)
    found = learner.evaluate(own)
    assert found.estimates == ()
    assert found.refused is not None
    assert "There is no overlap" in found.refused
    assert np.isfinite(found.model.difference.mean)
    assert "no verdict" in str(found)
    with pytest.raises(InputError, match="There is no overlap"):
        found.estimate("DR")
    ones = log(5, p=np.ones(3000))
    with pytest.warns(HieropoWarning, match="add to more than 1"):
        learner = HierOPO(logging="random").fit(ones, pscore="p", **COLUMNS)
    refused = learner.evaluate(ones).refused
    assert refused is not None
    assert "propensity 1" in refused


@pytest.mark.slow
def test_new_tasks_are_judged_as_new_tasks_or_refused(learner: HierOPO) -> None:
    table = log(2, 2000, tasks=TASKS + 5)
    found = learner.evaluate(table)
    assert found.new_tasks == 5
    assert "new to the policy" in str(found)
    columns = found.per_task()
    new = np.isin(columns["task"], np.arange(TASKS, TASKS + 5))
    assert (columns["gain_sd"][new] > 0).all()
    assert columns["value_sd"][new].min() > columns["value_sd"][~new].mean()
    gated = found.gate(0.5)
    assert gated.harm.size == TASKS  # of the policy's own tasks; new ones are left to the incumbent
    strict = HierOPO(unseen="error", logging="random").fit(log(1), **COLUMNS)
    with pytest.raises(UnknownTaskError, match="is unknown"):
        strict.evaluate(table)
    region = np.array(["n", "s"])[log(1)["store"].to_numpy() % 2]
    placed = HierOPO(task_cov="diag", logging="random").fit(
        log(1, region=region), levels=["region"], **COLUMNS
    )
    with pytest.raises(LogError, match=r"not known to the policy \(5 such tasks\)"):
        placed.evaluate(table)
    assert placed.evaluate(log(2)).new_tasks == 0


@pytest.mark.slow
def test_the_same_rows_under_ids_of_another_type_are_not_taken_out_of_the_tasks_that_they_were_of(
    learner: HierOPO,
) -> None:
    table = log(1)
    texts = table.set_column(0, "store", table["store"].cast("string"))
    with pytest.warns(HieropoWarning, match="of type str"):
        found = learner.evaluate(texts)
    assert (found.learned_from, found.new_tasks) == ("partly", TASKS)


@pytest.mark.slow
def test_a_weight_of_k_is_k_rows() -> None:
    weight = np.random.default_rng(3).integers(1, 4, size=1500)
    plain = {**COLUMNS, "pscore": "p"}
    learner = HierOPO(logging="random").fit(log(1, 1500, w=weight), weight="w", **plain)
    later = log(2, 1500, w=weight)
    repeated = later.take(pa.array(np.repeat(np.arange(1500), weight)))
    repeated = repeated.set_column(5, "w", pa.array(np.ones(repeated.num_rows)))
    once, again = (learner.evaluate(table) for table in (later, repeated))
    for name in ("new", "incumbent", "difference"):
        a, b = getattr(once.model, name), getattr(again.model, name)
        assert (a.mean, a.sd) == pytest.approx((b.mean, b.sd), rel=1e-9)
    for name in ("IPS", "SNIPS", "DR", "SNDR"):
        assert once.estimate(name).gain == pytest.approx(again.estimate(name).gain, rel=1e-9)
    halves = log(3, 1500, w=np.full(1500, 0.4))
    light = HierOPO().fit(halves, weight="w", **plain).evaluate(halves)
    assert np.isfinite(light.model.difference.mean)


@pytest.mark.slow
def test_lists_of_eligible_actions_bound_what_is_judged(learner: HierOPO) -> None:
    table = log(2, 4000)
    offer = table["offer"].to_pylist()
    lists = [sorted({each, "a"}) for each in offer]
    found = learner.evaluate(
        table.append_column("can", pa.array(lists)), eligible="can", propensities="estimated"
    )
    assert found.propensities == "estimated"
    chosen = learner.predict(table.append_column("can", pa.array(lists)), eligible="can")
    assert all(action in can for action, can in zip(chosen, lists, strict=True))
    wrong = [["b"] if each == "a" else can for each, can in zip(offer, lists, strict=True)]
    row = offer.index("a")
    with pytest.raises(LogError, match=rf"row {row}: the action taken, 'a', is not in its list"):
        learner.evaluate(table.append_column("can", pa.array(wrong)), eligible="can")


@pytest.mark.parametrize(
    ("change", "kind", "match"),
    [
        (lambda t: t.set_column(4, "p", pa.array(np.where(np.arange(3000) == 7, 0.0, 0.3))), LogError, r"row 7"),
        (lambda t: t.set_column(4, "p", pa.array(np.where(np.arange(3000) == 7, 1.5, 0.3))), LogError, r"above 1"),
        (lambda t: t.set_column(4, "p", pa.array(np.where(np.arange(3000) == 7, np.nan, 0.3))), LogError, r"row 7"),
        (
            lambda t: t.set_column(4, "p", pa.array(np.where(np.arange(3000) == 7, 1e-300, 0.3))),
            LogError, r"row 7: 1e-300 .* outweigh all others",
        ),
        (lambda t: t.drop_columns(["p"]), SchemaError, r"'p'"),
        (lambda t: t.drop_columns(["x"]), SchemaError, r"'x'"),
        (lambda t: t.slice(0, 0), LogError, r"no rows"),
        (
            lambda t: t.set_column(1, "offer", pa.array(["z" if k == 9 else "a" for k in range(3000)])),
            UnknownActionError, r"'z'",
        ),
    ],
)  # fmt: skip
def test_a_log_that_cannot_be_used_is_refused(
    learner: HierOPO, change: Any, kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=match):
        learner.evaluate(change(log(2)))


def test_rewards_on_another_scale_are_told(learner: HierOPO) -> None:
    table = log(2)
    cents = table.set_column(3, "profit", pa.array(100 * table["profit"].to_numpy()))
    shifted = table.set_column(3, "profit", pa.array(table["profit"].to_numpy() + 3.0))
    assert any("another unit" in limit for limit in learner.evaluate(cents).limits)
    assert any("differs from its prediction" in limit for limit in learner.evaluate(shifted).limits)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"level": 1.0}, "level=1.0"), ({"max_harm": 0.0}, "max_harm=0.0"), ({"propensities": "x"}, "propensities='x'"),
        ({"seed": -1}, "seed=-1"), ({"folds": 3}, "no option 'folds'"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(learner: HierOPO, options: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        learner.evaluate(log(2), **options)


def test_propensities_that_are_not_there_and_policies_without_actions_are_refused() -> None:
    plain = HierOPO(logging="random").fit(log(1), **COLUMNS)
    with pytest.raises(InputError, match="no column of propensities"):
        plain.evaluate(log(2), propensities="logged")
    described = HierOPO("columns").fit(log(1), task="store", reward="profit", context=["x", "p"])
    with pytest.raises(InputError, match="lists no actions"):
        described.evaluate(log(2))
    with pytest.raises(InputError, match="not fitted"):
        HierOPO().evaluate(log(2))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_figures_and_json_holds_all_of_them(learner: HierOPO) -> None:
    first, second = (learner.evaluate(log(1), seed=3) for _ in range(2))
    told = json.dumps(first.to_dict(), allow_nan=False)
    assert told == json.dumps(second.to_dict(), allow_nan=False)
    assert str(first) == str(second)
    columns = first.per_task()
    assert len(columns) == TASKS
    assert np.isfinite(columns["certificate"]).all()
    assert (columns["certificate"] >= 0).all()


@pytest.mark.slow
def test_the_gate_passes_tasks_by_their_harm_and_is_judged_as_a_whole(learner: HierOPO) -> None:
    found = learner.evaluate(log(2, 6000))
    limit = float(np.median(found.model.harm))
    gated = found.gate(limit)
    assert isinstance(gated, GatedPolicy)
    harm = dict(zip(found.keys.values.tolist(), found.model.harm.tolist(), strict=True))
    for task in range(TASKS):
        assert gated.passes([task])[0] == (harm[task] <= limit)
    later = HierOPO(logging="random").fit(log(1), pscore="p", **COLUMNS)
    later.policy_ = gated
    judged = later.evaluate(log(8, 6000))
    passed = np.asarray(gated.passes(judged.keys.values))
    assert (judged.model.delta[~passed] == 0).all()
    assert (judged.model.gain[~passed] == 0).all()
    assert (judged.model.harm[~passed] == 0).all()
    assert judged.estimate("DR").withheld is None
    assert judged.estimate("IPS").ess > found.estimate("IPS").ess
    assert judged.shares()["unchanged"] == pytest.approx(1 - passed.mean())
    assert later.evaluate(log(1)).refused is not None  # the rows that it was learned from set the gate
    with pytest.raises(InputError, match="has a gate already"):
        judged.gate()


@pytest.mark.slow
def test_more_rows_take_a_gate_off_and_say_so() -> None:
    later = HierOPO(logging="random").fit(log(1), pscore="p", **COLUMNS)
    later.policy_ = later.evaluate(log(2)).gate()
    with pytest.warns(HieropoWarning, match="had a gate.*gate it again"):
        later.partial_fit(log(3))
    assert isinstance(later.policy_, LCBPolicy)


@pytest.mark.slow
def test_the_crossed_prior_is_judged_as_blocks_are() -> None:
    crossed = HierOPO(logging="random").fit(log(1), pscore="p", **COLUMNS)
    plain = HierOPO(logging="random", task_cov="block").fit(log(1), pscore="p", **COLUMNS)
    a, b = (each.evaluate(log(2, 6000)) for each in (crossed, plain))
    assert a.model.difference.mean == pytest.approx(b.model.difference.mean, abs=3 * b.model.difference.sd)
    assert crossed.evaluate(log(1)).learned_from == "yes"


@pytest.mark.slow
def test_an_incumbent_that_knew_or_learned_is_told_and_a_random_one_is_not() -> None:
    rng = np.random.default_rng(4)
    m, n = 60, 40
    theta = rng.normal(size=(m, 4)) * 0.5
    knows = np.exp(2 * theta)
    knows /= knows.sum(axis=1, keepdims=True)

    def table(kind: str) -> pa.Table:
        rows, sums, times = [], np.zeros((m, 4)), np.zeros((m, 4))
        for _ in range(n):
            chance = knows if kind == "knows" else np.full((m, 4), 0.25)
            if kind == "learns":
                chance = np.exp(2 * sums / (times + 1))
                chance = 0.9 * chance / chance.sum(axis=1, keepdims=True) + 0.025
            action = (rng.random((m, 1)) > np.cumsum(chance, axis=1)).sum(axis=1).clip(0, 3)
            reward = theta[np.arange(m), action] + rng.normal(size=m)
            sums[np.arange(m), action] += reward
            times[np.arange(m), action] += 1
            rows.append((np.arange(m), action, reward))
        task, action, reward = (np.concatenate(each) for each in zip(*rows, strict=True))
        return pa.table({"store": task, "offer": action, "profit": reward, "when": np.arange(reward.size)})

    columns = {"task": "store", "action": "offer", "reward": "profit", "time": "when"}
    for kind, logging, match in (
        ("knows", "random", "Fit with logging='frozen'"), ("learns", "random", "Fit with logging='adaptive'"),
        ("learns", "frozen", "uses the same rewards twice"), ("knows", "frozen", None), ("learns", "adaptive", None),
        ("random", "random", None), ("random", "frozen", None),
    ):  # fmt: skip
        rows = table(kind)
        limits = HierOPO(logging=logging).fit(rows, **columns).evaluate(rows, propensities="none").limits  # type: ignore[arg-type]
        assert (match is None) == (limits == ()), (kind, logging, limits)
        assert match is None or match in limits[0]
    with pytest.warns(HieropoWarning, match="the incumbent knew something"):
        HierOPO().fit(table("knows").drop(["when"]), **{**columns, "time": None})
    rows = table("learns")
    learner = HierOPO(logging="random").fit(rows, **columns)
    mixed = rows.set_column(3, "when", rows["when"].take(pa.array(rng.permutation(len(rows)))))
    for later, time, why in (
        (rows, False, "no time column is named"), (rows.drop(["when"]), None, "no time column is named"),
        (mixed, None, "rows are not in the order of time"),
    ):  # fmt: skip
        (limit,) = learner.evaluate(later, propensities="none", time=time).limits  # type: ignore[arg-type]
        assert "or learned from these rows. The log does not tell which: " + why in limit
    with pytest.raises(SchemaError, match="'hour'"):
        learner.evaluate(rows, time="hour")
    frozen = HierOPO(logging="frozen").fit(rows, **columns)
    assert frozen.evaluate(rows, propensities="none", time=False).limits == ()


@pytest.mark.slow
def test_an_action_is_named_by_its_id_where_propensities_do_not_match() -> None:
    rows = log(2, 6000)
    wrong = log(2, 6000, p=np.minimum(1.5 * rows["p"].to_numpy(), 1.0))
    learner = HierOPO(logging="random").fit(log(1), pscore="p", **COLUMNS)
    (text,) = [each for each in learner.evaluate(wrong).limits if "do not match" in each]
    named = re.search(r"1 / p of action ('?\w+'?) averages", text)
    assert named is not None
    assert named.group(1) in {repr(action) for action in learner.features_.actions}


@pytest.mark.slow
def test_pessimism_can_be_chosen_from_the_log() -> None:
    chosen = HierOPO(pessimism="cv", logging="random").fit(log(1), pscore="p", **COLUMNS)
    choice = chosen.pessimism_
    assert chosen.policy_.pessimism == choice.chosen
    assert choice.chosen in choice.grid
    best = int(choice.value.argmax())
    assert choice.se[best] == 0
    assert (
        choice.value[best] - choice.value[choice.grid == choice.chosen]
        <= choice.se[choice.grid == choice.chosen]
    )
    assert "Chosen" in str(choice)
    json.dumps(choice.to_dict(), allow_nan=False)
    with pytest.raises(InputError, match=r"pessimism=.cv. fits parts of all rows.*Call fit with all rows"):
        chosen.partial_fit(log(2))
    with pytest.raises(InputError, match="Leave one out"):
        HierOPO(pessimism="cv", level=0.9).fit(log(1), **COLUMNS)
    with (
        pytest.warns(HieropoWarning, match="add to more than 1"),
        pytest.raises(InputError, match="cannot be chosen"),
    ):
        HierOPO(pessimism="cv", logging="random").fit(log(5, p=np.ones(3000)), pscore="p", **COLUMNS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [6, 20])
@pytest.mark.filterwarnings("ignore::hieropo.errors.HieropoWarning")
def test_rewards_that_are_mostly_zero_are_judged_on_the_rows_that_were_learned_from(seed: int) -> None:
    """Subtracting a fold leaves rounding where all rewards that are left are 0."""
    rng = np.random.default_rng(seed)
    n = 2000
    store, offer = rng.integers(50, size=n), rng.integers(4, size=n)
    profit = np.where(rng.random(n) < 0.03, rng.gamma(2, 10, size=n).round(2), 0.0)
    table = pa.table({"store": store, "offer": offer, "profit": profit})
    roles = {"task": "store", "action": "offer", "reward": "profit"}
    found = HierOPO(logging="random").fit(table, **roles).evaluate(table)
    assert found.estimate("SNDR").se > 0


def blocks(seed: int, *, rotate: bool) -> tuple[pa.Table, np.ndarray]:
    """A log of 100 tasks, each with two rows for each of six actions or of their draws, and the means (100, 6)."""
    rng = np.random.default_rng(seed)
    mean, store = 0.7 * rng.normal(size=(100, 6)), np.repeat(np.arange(100), 12)
    drawn = [rng.permutation(np.arange(12) % 6) if rotate else rng.integers(6, size=12) for _ in range(100)]
    offer = np.concatenate(drawn)
    profit = mean[store, offer] + rng.normal(size=100)[store] + rng.normal(size=1200)
    names = np.array(list("abcdef"))[offer]
    return pa.table({"store": store, "offer": names, "profit": profit, "p": np.full(1200, 1 / 6)}), mean


@pytest.mark.slow
@pytest.mark.parametrize("rotate", [True, False], ids=["rotation", "draws"])
def test_rotation_within_tasks_biases_cross_fitting_and_is_told(rotate: bool) -> None:  # noqa: FBT001
    columns: dict[str, Any] = {"task": "store", "action": "offer", "reward": "profit", "pscore": "p"}
    errors, told = [], []
    for seed in (41, 42, 43):
        table, mean = blocks(seed, rotate=rotate)
        learner = HierOPO(logging="random").fit(table, **columns)
        found = learner.evaluate(table, randomise=False, compare=False)
        chosen = ["abcdef".index(action) for action in learner.predict(pa.table({"store": np.arange(100)}))]
        gain = (mean[np.arange(100), chosen] - mean.mean(axis=1)).mean()
        errors.append(found.estimate("IPS").gain - gain)
        told.append(
            any("differ less between tasks than with independent draws" in limit for limit in found.limits)
        )
        later = learner.evaluate(blocks(seed + 10, rotate=rotate)[0], randomise=False, compare=False)
        assert not any(
            "more evenly" in limit for limit in later.limits
        )  # these rows taught the policy nothing
    assert told == [rotate] * 3
    assert (np.mean(errors) < -0.3) == rotate
