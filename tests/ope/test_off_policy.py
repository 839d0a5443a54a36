"""Off-policy estimates: exact expectations by enumeration, definitions row by row, and what is withheld."""

import importlib
import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hieropo.errors import InputError, LogError, MismatchError
from hieropo.ope.off_policy import Floor, OffPolicyMoments, OffPolicySums
from hieropo.ope.shrinkage import shrink
from hieropo.ope.value_estimates import (
    NAMES,
    Sample,
    bernstein,
    effective_rows,
    incumbent,
    ratios,
    task_gains,
    values,
)

RNG = np.random.default_rng


def summed(task: Any, r: Any, p: Any, pi: Any, q: Any, v: Any, **more: Any) -> OffPolicyMoments:
    made = OffPolicySums(float(np.min(r)), float(np.max(r)), len(r), **more)
    made.add(task, r, p, pi, q, v)
    return made.moments()


def sample_of(moments: OffPolicyMoments) -> Sample:
    return Sample(moments.sums, moments.squares, moments.groups, RNG(0))


def by_definition(name: str, r: Any, w: Any, q: Any, v: Any, tau: float, lam: float) -> float:
    e = r - q
    return float(
        {
            "IPS": np.mean(w * r),
            "SNIPS": np.sum(w * r) / np.sum(w),
            "DM": np.mean(v),
            "DR": np.mean(v + w * e),
            "SNDR": np.mean(v) + np.sum(w * e) / np.sum(w),
            "Switch-DR": np.mean(v + np.where(w <= tau, w * e, 0)),
            "DRos": np.mean(v + lam * w / (w**2 + lam) * e),
        }[name]
    )


# Two tasks, two actions, rewards 0 and 1; the policy takes action 1 in the first task and mixes in the second.
P_LOG = np.array([[0.7, 0.3], [0.5, 0.5]])
PI = np.array([[0.0, 1.0], [0.2, 0.8]])
MEAN = np.array([[0.2, 0.6], [0.5, 0.9]])
Q = np.array([[0.3, 0.5], [0.4, 0.4]])
TASKS = np.array([0, 1, 0])
TRUTH = float((PI * MEAN).sum(axis=1)[TASKS].mean())


def enumerated(name: str) -> tuple[float, float]:
    """Expectation of an estimate over all logs with the three rows, and of its definition; 1 / 0 counts as nothing."""
    total, direct, certain = 0.0, 0.0, 0.0
    for actions in itertools.product([0, 1], repeat=3):
        for rewards in itertools.product([0.0, 1.0], repeat=3):
            a, r = np.array(actions), np.array(rewards)
            mean = MEAN[TASKS, a]
            chance = float(np.prod(P_LOG[TASKS, a]) * np.prod(np.where(r == 1, mean, 1 - mean)))
            p, pi, q = P_LOG[TASKS, a], PI[TASKS, a], Q[TASKS, a]
            v = (PI * Q).sum(axis=1)[TASKS]
            w = pi / p
            made = OffPolicySums(0.0, 1.0, 3, switch=(1.6,), shrink=(2.0,))
            made.add(TASKS, r, p, pi, q, v)
            moments = made.moments()
            column = {"Switch-DR": "switch 1.6", "DRos": "shrink 2"}.get(name)
            certain += chance
            if w.sum() == 0 and name in ("SNIPS", "SNDR"):
                continue
            total += chance * float(ratios(moments, name, column).value(moments.sums.sum(axis=0)))
            direct += chance * by_definition(name, r, w, q, v, 1.6, 2.0)
    assert certain == pytest.approx(1.0)
    return total, direct


@pytest.mark.parametrize("name", NAMES[:-1])
def test_over_all_logs_each_estimate_has_the_expectation_of_its_definition(name: str) -> None:
    total, direct = enumerated(name)
    assert total == pytest.approx(direct, abs=1e-14)


@pytest.mark.parametrize("name", ["IPS", "DR"])
def test_over_all_logs_ips_and_dr_average_the_value(name: str) -> None:
    assert enumerated(name)[0] == pytest.approx(TRUTH, abs=1e-14)


def test_over_all_logs_the_smoothed_bound_fails_no_more_often_than_it_says() -> None:
    failed = 0.0
    for actions in itertools.product([0, 1], repeat=3):
        for rewards in itertools.product([0.0, 1.0], repeat=3):
            a, r = np.array(actions), np.array(rewards)
            mean = MEAN[TASKS, a]
            chance = float(np.prod(P_LOG[TASKS, a]) * np.prod(np.where(r == 1, mean, 1 - mean)))
            made = OffPolicySums(0.0, 1.0, 3)
            made.add(TASKS, r, P_LOG[TASKS, a], PI[TASKS, a], np.zeros(3), np.zeros(3))
            found = values(made.moments(), level=0.4, rng=RNG(0))[-1]
            assert found.name == "LS"
            failed += chance * (found.low > TRUTH)
    assert failed <= 0.3


@pytest.fixture
def world() -> dict[str, Any]:
    rng = RNG(3)
    n, m, K = 3000, 60, 4
    task, a = rng.integers(m, size=n), rng.integers(K, size=n)
    p = rng.dirichlet(np.full(K, 2.0), size=m)[task]
    a = (rng.random((n, 1)) > np.cumsum(p, axis=1)).sum(axis=1).clip(0, K - 1)
    theta = rng.normal(size=(m, K))
    pi = rng.dirichlet(np.full(K, 0.5), size=m)
    q = theta + 0.3 * rng.normal(size=(m, K))
    at = np.arange(n)
    return {
        "task": task, "r": theta[task, a] + rng.normal(size=n), "p": p[at, a], "pi": pi[task, a], "q": q[task, a],
        "v": (pi * q).sum(axis=1)[task],
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES[:-1])
def test_sums_over_tasks_give_each_estimate_and_its_variances(name: str, world: dict[str, Any]) -> None:
    moments = summed(**world, switch=(3.0,), shrink=(10.0,))
    w = world["pi"] / world["p"]
    column = {"Switch-DR": "switch 3", "DRos": "shrink 10"}.get(name)
    each = ratios(moments, name, column)
    rest = world["r"], w, world["q"], world["v"]
    value = by_definition(name, *rest, 3.0, 10.0)
    total = moments.sums.sum(axis=0)
    assert float(each.value(total)) == pytest.approx(value, rel=1e-10)

    gain = each.minus(incumbent(moments))
    parts = np.array([world["r"], *rest[1:]])

    def without(i: int) -> float:
        r, *others = np.delete(parts, i, axis=1)
        return by_definition(name, r, *others, 3.0, 10.0) - float(r.mean())

    n, at = w.size, np.arange(0, 3000, 60)
    jackknife = np.array([value - world["r"].mean() - without(i) for i in at])
    influence = rowwise(world, 3.0, 10.0) @ gain.slope(total)
    assert np.allclose(influence[at], jackknife, rtol=0.05, atol=2e-6)
    by_task = np.bincount(world["task"], influence)
    assert sample_of(moments).variance(gain) == pytest.approx((by_task**2).sum() * 60 / 59, rel=1e-8)
    alone = summed(**{**world, "task": np.zeros(n, dtype=int)}, switch=(3.0,), shrink=(10.0,))
    assert sample_of(alone).variance(gain) == pytest.approx((influence**2).sum() * n / (n - 1), rel=1e-8)


def rowwise(world: dict[str, Any], tau: float, lam: float) -> Any:
    """z of every row, as the sums have it, with zeros for LS."""
    low, w, e = world["r"].min(), world["pi"] / world["p"], world["r"] - world["q"]
    cut = [np.where(w <= tau, w * e, 0), lam * w / (w * w + lam) * e]
    return np.stack(
        [
            w,
            w * (world["r"] - low),
            world["v"] - low,
            w * e,
            *cut,
            *np.zeros((4, w.size)),
            world["r"] - low,
            w**0,
        ],
        axis=1,
    )


def test_smoothed_is_its_definition_and_its_bound_that_of_the_best_parameter(world: dict[str, Any]) -> None:
    low, high = world["r"].min(), world["r"].max()
    x = world["pi"] / world["p"] * (world["r"] - low)
    found = values(summed(**world), rng=RNG(0))[-1]
    grid = np.array([0.5, 2.0, 8.0, 32.0]) / np.sqrt(3000) / (high - low)
    logs = np.array([np.log1p(lam * x).mean() for lam in grid])
    assert found.parameter == pytest.approx(grid[0])
    assert found.value == pytest.approx(low + logs[0] / grid[0])
    assert found.se == pytest.approx(
        np.bincount(world["task"], np.log1p(grid[0] * x) - logs[0]).std() * 60 / 3000 / grid[0] / np.sqrt(59),
        rel=0.1,
    )
    assert found.low == pytest.approx(low + (np.expm1(logs - np.log(4 / 0.025) / 3000) / grid).max())
    wider = low + (np.expm1(logs - np.log(4 / 0.0125) / 3000) / grid).max()
    base = sample_of(summed(**world)).interval(incumbent(summed(**world)), 0.975)  # each end fails in 1.25 %
    assert found.gain_low == pytest.approx(wider - base.high, abs=0.05 * (base.high - base.value))


def test_batches_order_and_weights_do_not_matter(world: dict[str, Any]) -> None:
    whole = summed(**world)
    made = OffPolicySums(world["r"].min(), world["r"].max(), 3000)
    order = RNG(0).permutation(3000)
    for part in np.array_split(order, 7):
        made.add(*(world[key][part] for key in ("task", "r", "p", "pi", "q", "v")))
    again = made.moments()
    twice = OffPolicySums(world["r"].min(), world["r"].max(), 3000)
    twice.add(*world.values(), weight=np.full(3000, 2.0))
    for name in NAMES[:-1]:
        column = {"Switch-DR": "switch 10", "DRos": "shrink 100"}.get(name)
        a, b, c = (
            float(ratios(each, name, column).value(each.sums.sum(axis=0)))
            for each in (whole, again, twice.moments())
        )
        assert a == pytest.approx(b, rel=1e-11)
        assert a == pytest.approx(c, rel=1e-11)
    assert np.array_equal(whole.top, again.top)
    assert np.allclose(whole.groups.sum(axis=0), again.groups.sum(axis=0))
    assert np.allclose(2 * whole.groups, twice.moments().groups)
    assert effective_rows(whole) == pytest.approx(
        (world["pi"] / world["p"]).sum() ** 2 / ((world["pi"] / world["p"]) ** 2).sum()
    )


def test_groups_take_every_hundred_and_first_row_however_rows_are_cut_into_batches(
    world: dict[str, Any],
) -> None:
    made = OffPolicySums(world["r"].min(), world["r"].max(), 3000, switch=(3.0,), shrink=(10.0,))
    for part in np.split(np.arange(3000), [1, 150, 150, 1777]):
        made.add(*(world[key][part] for key in ("task", "r", "p", "pi", "q", "v")))
    z = rowwise(world, 3.0, 10.0)
    found = made.moments().groups
    z[:, 6:10], found[:, 6:10] = 0.0, 0.0
    assert np.allclose(found, [z[k::101].sum(axis=0) for k in range(101)])


def test_sums_of_parts_of_a_log_add_and_those_of_unlike_parameters_do_not(world: dict[str, Any]) -> None:
    parts = []
    for part in (np.arange(1010), np.arange(1010, 3000)):
        made = OffPolicySums(world["r"].min(), world["r"].max(), 3000)
        made.add(*(world[key][part] for key in ("task", "r", "p", "pi", "q", "v")))
        parts.append(made.moments())
    whole, both = summed(**world), parts[0] + parts[1]
    assert both.moments.allclose(whole.moments)
    assert np.array_equal(both.top, whole.top)
    assert np.allclose(both.groups, whole.groups)
    assert [each.value for each in values(both, rng=RNG(0))] == pytest.approx(
        [each.value for each in values(whole, rng=RNG(0))]
    )
    zeros = np.zeros(3000)
    unpredicted = summed(**{**world, "q": zeros, "v": zeros})
    assert (unpredicted + whole).predicted
    assert (whole + unpredicted).predicted
    with pytest.raises(MismatchError, match="switch"):
        whole + summed(**world, switch=(2.0,))


def test_a_row_of_weight_zero_is_absent(world: dict[str, Any]) -> None:
    weight = (np.arange(3000) >= 10) * 1.0
    made = OffPolicySums(world["r"].min(), world["r"].max(), 3000)
    made.add(*{**world, "p": np.where(weight > 0, world["p"], 1e-8)}.values(), weight=weight)
    left = OffPolicySums(world["r"].min(), world["r"].max(), 3000)
    left.add(*(each[10:] for each in world.values()))
    assert np.array_equal(made.moments().top, left.moments().top)
    assert made.moments().moments.allclose(left.moments().moments.covering(made.moments().moments.keys))


def test_a_large_offset_of_rewards_moves_values_and_nothing_else(world: dict[str, Any]) -> None:
    plain = values(summed(**world), rng=RNG(0))
    recentred = values(
        summed(**{**world, "r": world["r"] + 2.0**30, "q": world["q"] + 2.0**30, "v": world["v"] + 2.0**30}),
        rng=RNG(0),
    )
    for one, other in zip(plain[1:5], recentred[1:5], strict=True):
        assert other.value - 2.0**30 == pytest.approx(one.value, abs=1e-5)
        assert other.gain == pytest.approx(one.gain, abs=1e-5)
        if one.name != "DM":
            assert other.gain_se == pytest.approx(one.gain_se, rel=1e-5)


def test_without_predictions_there_is_nothing_doubly_robust(world: dict[str, Any]) -> None:
    zeros = {**world, "q": np.zeros(3000), "v": np.zeros(3000)}
    assert [each.name for each in values(summed(**zeros), rng=RNG(0))] == ["IPS", "SNIPS", "LS"]


def test_every_estimate_has_the_same_fields_in_json_and_dm_and_ls_say_what_they_do_not_know(
    world: dict[str, Any],
) -> None:
    found = values(summed(**world), rng=RNG(0))
    assert [each.name for each in found] == list(NAMES)
    for each in found:
        told = each.to_dict()
        assert set(told) == set(found[0].to_dict())
        assert told["value"] is not None
    dm, ls = found[2], found[-1]
    assert (dm.to_dict()["low"], dm.to_dict()["se"]) == (None, None)
    assert ls.to_dict()["high"] is None
    assert ls.low < ls.value


def pareto_weights(d: dict[str, Any]) -> dict[str, Any]:
    return {**d, "p": 1 / (1 + 0.05 * RNG(2).pareto(1.1, 3000)), "pi": np.ones(3000)}


def halved_weights(d: dict[str, Any]) -> dict[str, Any]:
    """Weights with a tail of index 1 that are powers of 2, a third of them tied at 1."""
    w = 2.0 ** np.floor(np.log2(1 + RNG(5).pareto(1.0, 3000)))
    return {**d, "p": 1 / w, "pi": np.ones(3000)}


def few_large(d: dict[str, Any]) -> dict[str, Any]:
    w = np.where(np.arange(3000) < 3, 100.0, 1.0)
    return {**d, "p": 1 / w, "pi": np.where(np.arange(3000) < 1000, 1.0, 0.0)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda d: {**d, "p": d["p"] ** 0, "pi": np.where(np.arange(3000) < 9, 0.8, 0.0)},
            "5 largest weights make up 56%",
        ),
        (
            lambda d: {**d, "p": d["p"] ** 0, "pi": np.where(np.arange(3000) < 29, 0.8, 0.0)},
            "effective sample size of the .* is 29.0",
        ),
        (lambda d: {**d, "pi": d["pi"] * 0.4}, "the weights average 0.[34]"),
        (lambda d: {**d, "r": (np.arange(3000) < 6) * 1.0}, "rarer rewards"),
        (lambda d: {**d, "r": (np.arange(3000) >= 6) * 1.0}, "rarer rewards"),
        (lambda d: {**d, "r": np.where(np.arange(3000) == 7, 1e6, d["r"])}, "rarer rewards"),
        (pareto_weights, "Pareto index 0.[789]|Pareto index 1"),
        (halved_weights, r"the squared weights is [1-4]\.\d,"),
        (few_large, r"the squared weights is 3\.\d,"),
    ],
)
def test_what_cannot_be_trusted_is_withheld_with_the_reason(
    world: dict[str, Any], change: Any, reason: str
) -> None:
    ips = values(summed(**change(world)), rng=RNG(0))[0]
    assert ips.withheld is not None
    assert re.search(reason, ips.withheld), ips.withheld
    assert ips.shown().withheld is None
    assert all(each.withheld is None for each in values(summed(**world), rng=RNG(0)))


def epsilon_greedy(seed: int, epsilon: float, rows: int = 1000, K: int = 4) -> dict[str, Any]:
    """A log of which chance chose a share, and a policy that often does something else than its greedy choice."""
    rng, m = RNG(seed), 30
    task, greedy = rng.integers(m, size=rows), rng.integers(K, size=m)
    policy = np.where(rng.random(m) < 0.3, greedy, rng.integers(K, size=m))
    action = np.where(rng.random(rows) < epsilon, rng.integers(K, size=rows), greedy[task])
    p = np.where(action == greedy[task], 1 - epsilon + epsilon / K, epsilon / K)
    theta = rng.normal(size=(m, K))
    return {
        "task": task, "r": theta[task, action] + rng.normal(size=rows), "p": p, "pi": 1.0 * (action == policy[task]),
        "q": 0.8 * theta[task, action], "v": 0.8 * theta[task, policy[task]],
    }  # fmt: skip


@pytest.mark.parametrize("epsilon", [0.2, 0.4, 0.8])
def test_tied_weights_that_are_bounded_have_no_heavy_tail(epsilon: float) -> None:
    for seed in range(8):
        found = summed(**epsilon_greedy(seed, epsilon))
        assert found.top[0] == pytest.approx(4 / epsilon)
        assert found.floor.propensity == pytest.approx(epsilon / 4)
        assert [each.withheld for each in values(found, rng=RNG(0))] == [None] * 8


def test_the_least_propensity_is_that_of_all_rows_that_count(world: dict[str, Any]) -> None:
    p = np.where(np.arange(3000) % 100 == 7, 0.01, np.maximum(world["p"], 0.011))
    p[4] = 0.01 * (1 + 1e-14)  # equal but for rounding
    weight = np.where(np.arange(3000) < 1000, 2.0, 1.0)
    weight[7] = 0.0
    made = OffPolicySums(world["r"].min(), world["r"].max(), 3000)
    for part in np.array_split(np.arange(3000), 4):
        rows = ({**world, "p": p}[key][part] for key in ("task", "r", "p", "pi", "q", "v"))
        made.add(*rows, weight=weight[part])
    assert made.moments().floor.propensity == 0.01
    assert made.moments().floor.rows == 9 * 2 + 20 + 2
    assert (made.moments() + summed(**world, switch=made.switch)).floor.propensity == min(
        0.01, world["p"].min()
    )
    assert OffPolicySums(0.0, 1.0, 1).moments().floor == Floor(1.0, 0.0)


def test_a_policy_that_no_row_follows_has_no_value_by_weights(world: dict[str, Any]) -> None:
    found = values(summed(**{**world, "pi": np.zeros(3000)}), rng=RNG(0))
    snips = found[1]
    assert snips.withheld is not None
    assert snips.to_dict()["value"] is None


@pytest.mark.parametrize(
    ("key", "value", "kind", "match"),
    [
        ("p", 0.0, LogError, r"pscore\[5\] is 0"),
        ("p", 1.2, LogError, r"pscore\[5\] is 1\.2"),
        ("p", np.nan, InputError, r"pscore\[5\] is nan"),
        ("r", np.inf, InputError, r"reward\[5\] is inf"),
        ("r", 99.0, LogError, r"reward\[5\] is 99.*outside the given range"),
        ("q", np.nan, InputError, r"q_taken\[5\]"),
        ("pi", 1.2, InputError, r"target\[5\] is 1\.2"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(
    world: dict[str, Any], key: str, value: float, kind: type[Exception], match: str
) -> None:
    made = OffPolicySums(-10.0, 10.0, 3000)
    changed = world[key].copy()
    changed[5] = value
    with pytest.raises(kind, match=match):
        made.add(*{**world, key: changed}.values())


def test_parameters_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match=r"The range of rewards is 1.* ascending order"):
        OffPolicySums(1.0, 0.0, 10)
    with pytest.raises(InputError, match="positive numbers"):
        OffPolicySums(0.0, 1.0, 10, switch=(0.0,))
    with pytest.raises(InputError, match="no rows"):
        values(OffPolicySums(0.0, 1.0, 0).moments(), rng=RNG(0))


def test_the_cut_with_the_least_estimated_error_is_taken_and_cuts_nothing_where_nothing_is_large(
    world: dict[str, Any],
) -> None:
    found = {each.name: each for each in values(summed(**world), rng=RNG(0))}
    n, w = 3000, world["pi"] / world["p"]
    z = world["v"], w * (world["r"] - world["q"])

    def squared_error(factor: Any) -> float:
        own, bias = z[0] + factor * z[1], (1 - factor) * z[1]
        sums = [np.bincount(world["task"], x - x.mean()) for x in (own, bias)]
        own_var, bias_var = (float((x**2).sum()) * 60 / 59 / n**2 for x in sums)
        return own_var + max(float(bias.mean()) ** 2 - bias_var, 0.0)

    for name, grid, kept in (
        ("Switch-DR", (np.inf, 100, 30, 10, 3), lambda tau: w <= tau),
        ("DRos", (np.inf, 1e4, 1e3, 100, 10), lambda lam: 1 / (w * w / lam + 1)),
    ):
        errors = [squared_error(kept(each)) for each in grid]
        best = grid[int(np.argmin(errors))]
        assert found[name].parameter == best
        assert found[name].se == pytest.approx(np.sqrt(min(errors)))
        assert found[name].value == pytest.approx(float((z[0] + kept(best) * z[1]).mean()))
        assert found[name].low <= min(found["DR"].low, found[name].value)
        assert found[name].high >= max(found["DR"].high, found[name].value)
    even = {**world, "p": np.full(3000, 0.5), "pi": np.full(3000, 0.5)}
    assert [each.parameter for each in values(summed(**even), rng=RNG(0))][-3] == np.inf


def shaken(moments: OffPolicyMoments, seed: int) -> OffPolicyMoments:
    """The same sums as another processor rounds them."""
    sums = moments.moments.sums * (1.0 + 1e-15 * RNG(seed).uniform(-1, 1, moments.moments.sums.shape))
    return replace(moments, moments=replace(moments.moments, sums=sums))


def test_rounding_decides_neither_the_cut_nor_what_is_withheld(world: dict[str, Any]) -> None:
    even = summed(**{**world, "p": np.full(3000, 0.5), "pi": np.full(3000, 0.5)})
    n = 30  # whose weights are equal: they count as 30 rows, and that is enough
    r = (np.arange(n) % 2).astype(float)
    few = summed(np.arange(n), r, np.full(n, 0.3), np.full(n, 0.1), np.zeros(n), np.zeros(n))
    withheld = set()
    for seed in range(30):
        assert [each.parameter for each in values(shaken(even, seed), rng=RNG(0))][-3] == np.inf
        found = values(shaken(few, seed), rng=RNG(0))
        withheld.add(found[0].withheld)
        assert found[0].by == "tasks"
    assert len(withheld) == 1
    assert "average" in str(withheld.pop())


def test_the_interval_of_ips_holds_that_of_snips(world: dict[str, Any]) -> None:
    ips, snips = values(summed(**world), rng=RNG(0))[:2]
    sample = sample_of(summed(**world))
    own = sample.interval(ratios(summed(**world), "IPS"), 0.95)
    assert (ips.low, ips.high) == (min(own.low, snips.low), max(own.high, snips.high))
    assert ips.gain_low <= snips.gain_low
    assert ips.gain_high >= snips.gain_high


def test_bernstein_intervals_hold_and_a_larger_weight_than_there_can_be_is_refused() -> None:
    rng, missed, zero = RNG(0), np.zeros(2), np.zeros(300)
    for _ in range(200):
        a, r = rng.integers(4, size=300), rng.random(300)
        r = (r < 0.05 + 0.05 * a) * 1.0
        moments = summed(np.zeros(300, dtype=int), r, np.full(300, 0.25), (a == 3) * 1.0, r * 0, r * 0)
        if moments.high == 0:
            continue
        value, gain = bernstein(moments, 4.0, level=0.8)
        missed += not value[0] <= 0.2 <= value[1], not gain[0] <= 0.075 <= gain[1]
    assert (missed <= 40).all()
    w = (a == 3) * 4.0
    log = np.log(15.0)
    assert value[1] == pytest.approx((w * r).mean() + np.sqrt(2 * (w * r).var() * log / 300) + 12 * log / 300)
    assert gain[1] - gain[0] == pytest.approx(
        2 * (np.sqrt(2 * ((w - 1) * r).var() * log / 300) + 12 * log / 300)
    )
    signed = summed(np.zeros(300, dtype=int), 2 * r - 1, np.full(300, 0.25), (a == 3) * 1.0, zero, zero)
    ends, spread = bernstein(signed, 4.0, level=0.8)[1], 6.0  # (w - 1) r lies in [-3, 3]
    half = np.sqrt(2 * ((w - 1) * (2 * r - 1)).var() * log / 300) + 3 * spread * log / 300
    assert ends[1] - ends[0] == pytest.approx(2 * half)
    with pytest.raises(InputError, match="has the weight 4"):
        bernstein(moments, 3.0)


def test_gains_of_tasks_are_those_of_their_rows(world: dict[str, Any]) -> None:
    same = world["task"] < 5
    world = {
        **world,
        "pi": np.where(same, world["p"], world["pi"]),
        "v": np.where(same, world["q"], world["v"]),
    }
    moments = summed(**world)
    w = world["pi"] / world["p"]
    each = world["v"] + w * (world["r"] - world["q"]) - world["r"]
    gain, se, ess = task_gains(moments, "DR")
    rows = [world["task"] == task for task in moments.moments.keys.values.tolist()]
    within = sum(((each[own] - each[own].mean()) ** 2).sum() for own in rows[5:])
    pooled = np.sqrt(within / (sum(own.sum() for own in rows[5:]) - 55))
    for k, own in enumerate(rows):
        assert gain[k] == pytest.approx(each[own].mean(), abs=1e-10)
        assert se[k] == pytest.approx(pooled / np.sqrt(own.sum()) if k >= 5 else 0.0)
        assert ess[k] == pytest.approx(w[own].sum() ** 2 / (w[own] ** 2).sum())
    normalised = world["v"] + w * (world["r"] - world["q"]) / w.mean() - world["r"]
    assert task_gains(moments)[0][7] == pytest.approx(normalised[rows[7]].mean(), abs=1e-10)
    assert np.array_equal(task_gains(moments)[0][:5], np.zeros(5))


def test_a_task_without_rows_has_no_known_gain(world: dict[str, Any]) -> None:
    made = OffPolicySums(world["r"].min(), world["r"].max(), 3000)
    made.add(*world.values(), weight=(world["task"] != 3) * 1.0)
    gain, se, ess = task_gains(made.moments())
    assert (gain[3], se[3], ess[3]) == (0.0, np.inf, 0.0)
    assert np.isfinite(se[[2, 4]]).all()


@pytest.mark.slow
def test_shrunken_gains_of_tasks_cover_on_average_where_rewards_are_rare() -> None:
    rng, hits, worlds = RNG(0), [], 30
    for _ in range(worlds):
        task, a = np.repeat(np.arange(100), 100), rng.integers(3, size=10_000)
        chance = np.clip(0.03 + 0.015 * rng.normal(size=(100, 3)), 0.001, 1)
        r = (rng.random(10_000) < chance[task, a]) * 1.0
        zero = np.zeros(10_000)
        gain, se, _ = task_gains(summed(task, r, zero + 1 / 3, (a == 2) * 1.0, zero, zero))
        truth = chance[:, 2] - chance.mean(axis=1)
        found = shrink(gain, se)
        assert np.mean((found.value - truth) ** 2) < np.mean((gain - truth) ** 2)
        hits.append(np.mean((found.low <= truth) & (truth <= found.high)))
    assert np.mean(hits) > 0.93


def test_the_first_run_of_the_committed_table_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).resolve().parents[2]
    monkeypatch.syspath_prepend(root / "experiments")
    study, tables = importlib.import_module("off_policy"), importlib.import_module("tables")
    text = (root / "docs" / "results" / "off_policy.md").read_text(encoding="utf-8")
    stored = tables.read_table(text, f"## The first run of {study.FIRST}")
    for row, again in zip(stored, study.first(study.FIRST), strict=True):
        assert row["estimate"] == again[0]
        for cell, figure in zip(list(row.values())[1:], again[1:], strict=True):
            assert float(cell) == pytest.approx(float(figure), abs=2e-5, nan_ok=True)
