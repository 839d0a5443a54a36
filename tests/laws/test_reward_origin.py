"""Where rewards have their zero decides nothing: a constant added to all moves the population mean, and only that."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from strategies import seeds

from hieropo import (
    Gaussian,
    Hierarchy,
    HierOPO,
    LogMoments,
    Moments,
    OracleOPO,
    PooledOPO,
    condition,
    estimate,
    examine,
    load_learner,
)
from hieropo._utils.packed import packed_size, unpack
from hieropo.errors import HieropoWarning
from hieropo.estimation.crossed.mixture import CrossedHierarchies
from hieropo.estimation.shapes import noise_inside
from hieropo.features.maps import Columns, FeatureMap, embedding, indicator, per_action
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import condition_crossed
from hieropo.moments import column_pass
from hieropo.moments.recentring import offset_near
from hieropo.moments.spread import about_fit, about_mean, constant, mean_reward
from hieropo.moments.units import UnitAccumulator
from hieropo.passes.summing import sums
from hieropo.rows.batches import Roles
from hieropo.storage.load import verify_policy

TOLERANCE = 1e-8
SHIFTS = (-30.0, 1e3, 1e6)  # standard deviations
ROLES: dict[str, Any] = {"task": "task", "action": "action", "reward": "reward"}
TASKS, ROWS = 12, 360


@cache
def rows(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    task, action, x = rng.integers(TASKS, size=ROWS), rng.integers(2, size=ROWS), rng.normal(size=ROWS)
    theta = np.array([1.0, 0.3]) + 0.7 * rng.normal(size=(TASKS, 2))
    slope = 0.4 * rng.normal(size=(TASKS, 2))
    reward = theta[task, action] + slope[task, action] * x + 0.5 * rng.normal(size=ROWS)
    return {
        "task": task, "action": np.array(["a", "b"])[action], "x": x, "reward": reward / reward.std(),
        "group": task % 4, "size": (0.37 * task) % 1.0, "w": 1.0 + task % 3, "p": np.full(ROWS, 0.5),
        "ones": np.ones(ROWS), "a": (action == 0) * 1.0, "b": (action == 1) * 1.0,
        "stamp": 4e5 + 3.0 * x,
    }  # fmt: skip


def log(shift: float, seed: int = 0, part: slice = slice(None)) -> pa.Table:
    columns = rows(seed)
    return pa.table({**columns, "reward": columns["reward"] + shift}).slice(*part.indices(ROWS)[:2])


def numbers(learner: HierOPO) -> dict[str, np.ndarray]:
    """All that is known of tasks and of the hierarchy but for means; rewards have sd 1."""
    table, hierarchy = learner.posterior_.table(), learner.hierarchy_
    covs = [getattr(hierarchy, name, None) for name in ("task_cov", "action_cov")]
    if isinstance(hierarchy, Hierarchy):
        covs += [level.cov for level in hierarchy.levels]
    if isinstance(hierarchy, CrossedHierarchies):
        central = hierarchy.central()
        covs += [cov for level in central.levels for cov in (level.level_cov, level.interaction_cov)]
        covs += [central.action_cov, central.level_cov, central.interaction_cov, hierarchy.conditioned]
        covs += [hierarchy.weights, hierarchy.action_sd, hierarchy.interaction_sd]
    noise_var = getattr(hierarchy, "noise_var", None)
    found = [table.covs, noise_var, learner.posterior_.hyper.cov, *covs]
    return {str(k): np.asarray(each) for k, each in enumerate(found) if each is not None}


def same_but_for(
    shift: float, recentred: HierOPO, still: HierOPO, vector: np.ndarray, *, scale: float = 1.0
) -> None:
    """Means move by the shift times a vector (d,) of features that is 1 in all rows; all else stays."""
    now, then = (
        np.asarray(each.posterior_.table().means).reshape(-1, vector.size) for each in (recentred, still)
    )
    np.testing.assert_allclose(
        now - then, np.tile(shift * vector, (len(now), 1)), rtol=0, atol=TOLERANCE * scale
    )
    hyper = recentred.posterior_.hyper.mean - still.posterior_.hyper.mean
    units = still.moments_.per_action  # have the mean of one action; metadata have more behind
    width = still.moments_.unit_dim if units else vector.size
    np.testing.assert_allclose(hyper[:width], shift * vector[:width], rtol=0, atol=TOLERANCE * scale)
    np.testing.assert_allclose(hyper[width:], 0.0, rtol=0, atol=TOLERANCE * scale)
    after, before = numbers(recentred), numbers(still)
    for name, value in before.items():
        np.testing.assert_allclose(
            after[name], value, rtol=0, atol=TOLERANCE * np.abs(value).max(initial=1e-300)
        )
    assert recentred.posterior_.log_evidence == pytest.approx(still.posterior_.log_evidence, abs=1e-6)


HIERARCHIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "auto": ({"uncertainty": "integrated", "task_cov": "block"}, {"context": ["x"]}),
    "plug-in": ({"uncertainty": "plug-in"}, {"context": ["x"]}),
    "first order": ({"uncertainty": "first-order"}, {"context": ["x"]}),
    "full": ({"task_cov": "full"}, {}),
    "diagonal": ({"task_cov": "diag"}, {}),
    "isotropic": ({"task_cov": "isotropic"}, {}),
    "block": ({"task_cov": "block", "uncertainty": "plug-in"}, {"context": ["x"]}),
    "scaled": ({"task_cov": np.diag([2.0, 1.0]), "uncertainty": "plug-in"}, {}),
    "crossed": ({}, {"context": ["x"]}),
    "crossed indicator": ({}, {}),
    "crossed weights": ({}, {"weight": "w"}),
    "crossed precisions": ({}, {"precision": "w"}),
    "levels": ({"task_cov": "diag"}, {"levels": ["group"]}),
    "metadata": ({"task_cov": "diag"}, {"metadata": ["size"]}),
    "crossed levels": ({}, {"levels": ["group"]}),
    "crossed metadata": ({}, {"metadata": ["size"], "context": ["x"]}),
    "crossed both": ({}, {"levels": ["group"], "metadata": ["size"]}),
    "both": ({"uncertainty": "plug-in"}, {"levels": ["group"], "metadata": ["size"]}),
    "frozen": ({"logging": "frozen"}, {}),
    "weights": ({"task_cov": "block"}, {"weight": "w"}),
    "precisions": ({"task_cov": "block"}, {"precision": "w"}),
    "sampling weights": ({}, {"sampling_weight": "w"}),
    "far contexts": ({"task_cov": "diag", "uncertainty": "plug-in"}, {"context": ["stamp"]}),
}


@cache
def fitted(name: str, shift: float) -> HierOPO:
    settings, columns = HIERARCHIES[name]
    return HierOPO(**settings).fit(log(shift), **ROLES, **columns)


@pytest.mark.slow
@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("name", HIERARCHIES)
@pytest.mark.filterwarnings("ignore::hieropo.errors.HieropoWarning")
def test_a_constant_moves_the_population_mean_and_nothing_else(name: str, shift: float) -> None:
    still, recentred = fitted(name, 0.0), fitted(name, shift)
    width = still.features_.dim // 2
    same_but_for(shift, recentred, still, np.tile(np.eye(width)[0], 2))
    assert (still.moments_.offset is None, recentred.moments_.offset is None) == (True, False)


@pytest.mark.slow
@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("name", ["auto", "crossed", "crossed indicator", "levels", "first order"])
@pytest.mark.filterwarnings("ignore::hieropo.errors.HieropoWarning")
def test_what_is_said_of_the_tasks_does_not_move(name: str, shift: float) -> None:
    one, other = fitted(name, 0.0).summary(), fitted(name, shift).summary()
    assert other.verdict == one.verdict
    assert [model.name for model in other.models] == [model.name for model in one.models]
    for mine, theirs in zip(one.models, other.models, strict=True):
        assert theirs.evidence == pytest.approx(mine.evidence, abs=1e-6)
    for each, recentred in zip(one.coefficients, other.coefficients, strict=True):
        there = (
            shift if each.name.endswith("a") or each.name.endswith("b") or each.name == "intercept" else 0.0
        )
        assert recentred.mean.value - there == pytest.approx(each.mean.value, abs=TOLERANCE)
        assert recentred.mean.lower - there == pytest.approx(each.mean.lower, abs=TOLERANCE)
        assert recentred.between.value == pytest.approx(each.between.value, abs=TOLERANCE)
        assert recentred.rows == pytest.approx(each.rows, rel=1e-7)
    tasks, x = (
        np.arange(TASKS),
        np.linspace(-2.0, 2.0, TASKS)[:, None][:, : len(fitted(name, 0.0).features_.columns)],
    )
    chosen = [fitted(name, at).policy_.choose_many(tasks, x).index for at in (0.0, shift)]
    np.testing.assert_array_equal(*chosen)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This log does not identify the noise:hieropo.HieropoWarning")
@pytest.mark.parametrize("shift", [10.0, 1000.0, 1e6])
@pytest.mark.parametrize("settings", [{"uncertainty": "plug-in"}, {"task_cov": "diag"}], ids=str)
def test_one_row_for_each_task_and_action(settings: dict[str, Any], shift: float) -> None:
    """No task has more rows than features: the floor under the noise is relative to residuals."""
    rng = np.random.default_rng(3)
    S, K = 40, 5
    theta = rng.normal(size=(S, 1)) + rng.normal(size=(S, K))
    reward = (theta + 0.5 * rng.normal(size=(S, K))).ravel()
    columns = {"task": np.repeat(np.arange(S), K), "action": np.tile(list("abcde"), S)}
    found = []
    for at in (0.0, shift):
        with pytest.warns(HieropoWarning, match="has more rows than its features"):
            learner = HierOPO(**settings).fit(pa.table({**columns, "reward": reward + at}), **ROLES)
        found.append(learner)
    same_but_for(shift, found[1], found[0], np.ones(K), scale=3.0)
    assert found[0].summary().verdict == found[1].summary().verdict


@pytest.mark.slow
@pytest.mark.parametrize("shift", [10.0, 1000.0, 1e6])
@pytest.mark.filterwarnings("ignore:This log does not identify the noise:hieropo.HieropoWarning")
def test_one_row_for_each_task_and_action_under_the_crossed_prior(shift: float) -> None:
    """Its noise variance is integrated, so that no floor is needed."""
    rng = np.random.default_rng(3)
    S, K = 40, 5
    reward = (rng.normal(size=(S, 1)) + rng.normal(size=(S, K)) + 0.5 * rng.normal(size=(S, K))).ravel()
    columns = {"task": np.repeat(np.arange(S), K), "action": np.tile(list("abcde"), S)}
    still, recentred = (
        HierOPO().fit(pa.table({**columns, "reward": reward + at}), **ROLES) for at in (0.0, shift)
    )
    same_but_for(shift, recentred, still, np.ones(K), scale=3.0)
    assert still.summary().verdict == recentred.summary().verdict


@pytest.mark.slow
@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("settings", [{"uncertainty": "plug-in"}, {}], ids=str)
def test_rewards_without_noise(settings: dict[str, Any], shift: float) -> None:
    """The floor is relative to how much rewards vary. The evidence hangs on rounding there, and is not compared."""
    rng = np.random.default_rng(1)
    task, action = rng.integers(15, size=200), rng.integers(2, size=200)
    reward = rng.normal(size=(15, 2))[task, action]
    found = []
    for at in (0.0, shift):
        table = pa.table({"task": task, "action": np.array(["a", "b"])[action], "reward": reward + at})
        with pytest.warns(HieropoWarning, match="without noise"):
            found.append(HierOPO(**settings).fit(table, **ROLES))
    still, recentred = found
    difference = np.asarray(recentred.posterior_.table().means) - np.asarray(still.posterior_.table().means)
    np.testing.assert_allclose(difference, shift, rtol=0, atol=TOLERANCE)
    if not settings:  # the crossed prior
        assert recentred.hierarchy_.no_effect == pytest.approx(still.hierarchy_.no_effect, abs=1e-6)
        return
    assert recentred.hierarchy_.noise_var == pytest.approx(still.hierarchy_.noise_var, rel=1e-6)
    np.testing.assert_allclose(recentred.hierarchy_.task_cov, still.hierarchy_.task_cov, rtol=1e-6)


@pytest.mark.parametrize("shift", SHIFTS)
def test_a_given_prior_is_in_units_of_the_reward_and_moves_with_it(shift: float) -> None:
    """A Gaussian, known= and mu= say where the mean is: with the prior moved as well, answers are the same ones."""

    def given(at: float) -> list[HierOPO]:
        prior, one = Gaussian(np.full(2, at), [[0.5, 0.1], [0.1, 0.3]]), np.eye(2)
        return [
            HierOPO(hyper=prior).fit(log(at), **ROLES),
            HierOPO(known=Hierarchy(prior, 0.5 * one, 0.3)).fit(log(at), **ROLES),
            HierOPO(known=Hierarchy(None, 0.5 * one, 0.3)).fit(log(at), **ROLES),
            OracleOPO(np.full(2, at)).fit(log(at), **ROLES),
        ]

    for still, recentred in zip(given(0.0), given(shift), strict=True):
        same_but_for(shift, recentred, still, np.ones(2))
    # The prior that does not move draws the mean to where it was.
    left = HierOPO(hyper=Gaussian(np.zeros(2), np.eye(2))).fit(log(shift), **ROLES)
    assert np.abs(left.posterior_.hyper.mean).max() < np.abs(given(shift)[0].posterior_.hyper.mean).max()


def test_complete_pooling_moves_too() -> None:
    still, recentred = (PooledOPO().fit(log(at), **ROLES) for at in (0.0, 1e6))
    same_but_for(1e6, recentred, still, np.ones(2))


MAPS: dict[str, tuple[FeatureMap, np.ndarray]] = {
    "a column of ones": (Columns(("x", "ones")), np.array([0.0, 1.0])),
    "columns that add to one": (Columns(("a", "b", "x")), np.array([1.0, 1.0, 0.0])),
    "a table": (embedding(["a", "b"], [[1.0, 0.0], [1.0, 2.0]], ("x",)), np.array([1.0, 0.0, 0.0, 0.0])),
    "rows of a table that add to one": (embedding(["a", "b"], [[0.3, 0.7], [0.6, 0.4]]), np.ones(2)),
    "no intercept": (per_action(["a", "b"], ["ones", "x"], intercept=False), np.array([1.0, 0.0, 1.0, 0.0])),
    "far and no intercept": (
        per_action(["a", "b"], ["ones", "stamp"], intercept=False),
        np.array([1.0, 0, 1, 0]),
    ),
}


@pytest.mark.parametrize("shift", [-30.0, 1e6])
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.filterwarnings("ignore:The columns 'a', 'b' are nearly collinear")
def test_every_map_that_holds_a_constant_keeps_the_law(name: str, shift: float) -> None:
    features, vector = MAPS[name]
    named = {"task": "task", "reward": "reward", **({"action": "action"} if features.actions else {})}
    settings = {"task_cov": "diag", "uncertainty": "plug-in"}
    still, recentred = (HierOPO(features, **settings).fit(log(at), **named) for at in (0.0, shift))
    same_but_for(shift, recentred, still, vector)


def test_a_map_without_a_constant_is_another_model_and_is_warned_of() -> None:
    """Around 0, the rewards are no combination of its features: nothing moves them there without loss."""
    named = {"task": "task", "reward": "reward", "context": ["x"]}
    with pytest.warns(
        HieropoWarning, match=r"Column 'reward' lies around 1e\+06 .* no combination of the features"
    ):
        learner = HierOPO(uncertainty="plug-in").fit(log(1e6), **named)
    assert learner.moments_.offset is None


def test_the_doctor_finds_nothing_in_rewards_far_from_zero() -> None:
    kinds = [{each.kind for each in examine(log(at), **ROLES, context=["x"]).findings} for at in (0.0, 1e6)]
    assert kinds[0] == kinds[1]


def judged(shift: float, settings: dict[str, Any]) -> list[Any]:
    """On the rows that were learned from, and on others."""
    learner = HierOPO(**settings).fit(log(shift, part=slice(200)), **ROLES, pscore="p", context=["x"])
    return [learner.evaluate(log(shift, part=part)) for part in (slice(200), slice(200, ROWS))]


def figures(found: Any, shift: float) -> dict[str, Any]:
    """What an evaluation says, less the constant; without IPS, which weighs rewards themselves, and P(value < 0)."""
    model, checks = found.model, found.checks
    parts: dict[str, Any] = {
        name: getattr(model, name) for name in ("gain", "gain_sd", "harm", "certificate", "value_sd")
    }
    parts |= {"value": model.value - shift, "mean": model.new.mean - shift, "tasks": found.task_estimates}
    parts |= {"difference": list(model.difference.to_dict().values())}
    for each in found.estimates:
        if each.name != "IPS":
            ends = [getattr(each, name) - shift for name in ("value", "low", "high")]
            rest = [getattr(each, name) for name in ("se", "gain", "gain_se", "gain_low", "gain_high", "ess")]
            parts[each.name] = [*ends, *rest]
    return parts | ({} if checks is None else {"checks": checks.sd})


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"task_cov": "full"}, {}], ids=str)
@pytest.mark.filterwarnings("ignore::hieropo.errors.HieropoWarning")
def test_an_evaluation_moves_by_the_constant(settings: dict[str, Any]) -> None:
    before = judged(0.0, settings)
    for shift in (-30.0, 1e6):
        for still, recentred in zip(before, judged(shift, settings), strict=True):
            assert (recentred.learned_from, recentred.limits) == (still.learned_from, still.limits)
            assert [each.withheld for each in recentred.estimates] == [
                each.withheld for each in still.estimates
            ]
            now, then = figures(recentred, shift), figures(still, 0.0)
            assert now.keys() == then.keys()
            for name, value in then.items():
                np.testing.assert_allclose(now[name], value, rtol=1e-8, atol=1e-7, err_msg=name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hieropo.errors.HieropoWarning")
def test_a_pessimism_that_is_chosen_does_not_move() -> None:
    found = [HierOPO(pessimism="cv").fit(log(at), **ROLES, pscore="p").pessimism_ for at in (0.0, 1e6)]
    still, recentred = found
    assert recentred.chosen == still.chosen
    np.testing.assert_allclose(recentred.value - 1e6, still.value, rtol=0, atol=1e-7)
    np.testing.assert_allclose(recentred.se, still.se, rtol=0, atol=1e-7)


class TestMoments:
    """The offset is a change of coordinates: exact, whatever it is."""

    @staticmethod
    def drawn(seed: int) -> tuple[Any, ...]:
        rng = np.random.default_rng(seed)
        task, phi = rng.integers(4, size=30), rng.normal(size=(30, 3))
        return task, phi, rng.normal(size=30), rng.uniform(0.5, 2.0, 30)

    @given(seeds)
    def test_sums_around_an_offset_are_those_of_what_it_leaves(self, seed: int) -> None:
        task, phi, reward, weight = self.drawn(seed)
        offset = np.random.default_rng(seed + 1).normal(size=3)
        more = {"precision": weight, "sampling_weight": 1.0 + weight}
        moments = Moments.from_arrays(task, phi, reward, weight, **more)
        direct = Moments.from_arrays(task, phi, reward - phi @ offset, weight, **more)
        there = moments.around(offset)
        np.testing.assert_allclose(there.sums, direct.sums, rtol=0, atol=1e-12 * np.abs(direct.sums).max())
        np.testing.assert_allclose(
            there.squares, direct.squares, rtol=0, atol=1e-12 * np.abs(direct.squares).max()
        )
        assert there.around(None).allclose(moments, 1e-12)
        assert there.allclose(moments, 1e-12)
        for s in moments.tasks.tolist():
            np.testing.assert_allclose(
                there.cross(s), moments.cross(s), atol=1e-12 * np.abs(moments.sums).max()
            )
            assert there.reward_squares(s) == pytest.approx(moments.reward_squares(s), rel=1e-10)
        np.testing.assert_allclose(
            there.transformed(np.diag([2.0, 3.0, 4.0])).offset, offset / [2.0, 3.0, 4.0]
        )

    @given(seeds)
    def test_the_posterior_gives_the_offset_back(self, seed: int) -> None:
        task, phi, reward, weight = self.drawn(seed)
        rng = np.random.default_rng(seed + 1)
        moments = Moments.from_arrays(task, phi, reward, weight)
        for hyper in (None, Gaussian(rng.normal(size=3), np.diag([1.0, 0.0, 2.0]))):
            hierarchy = Hierarchy(hyper, np.diag([1.0, 0.5, 0.0]), 0.7)
            plain = condition(moments, hierarchy)
            other = condition(moments.around(rng.normal(size=3)), hierarchy)
            assert other.log_evidence == pytest.approx(plain.log_evidence, rel=1e-10)
            for one, two in (
                (plain.hyper, other.hyper), (plain.new_task(), other.new_task()), (plain.task(0), other.task(0)),
            ):  # fmt: skip
                np.testing.assert_allclose(two.mean, one.mean, rtol=0, atol=1e-10)
                np.testing.assert_allclose(two.cov, one.cov, rtol=0, atol=1e-12)
            np.testing.assert_allclose(other.table().means, plain.table().means, rtol=0, atol=1e-10)

    @given(seeds)
    def test_units_give_the_offset_back_in_every_view(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        features, one = per_action(["a", "b", "c"], ["x"]), np.eye(2)
        total = UnitAccumulator(features)
        total.add(
            rng.integers(4, size=40), rng.integers(3, size=40), rng.normal(size=(40, 1)), rng.normal(size=40)
        )
        plain = total.moments()
        recentred = plain.around(np.tile(rng.normal(size=2), 3))
        for level in (0.0, 0.3):
            crossed = CrossedHierarchy(one, level * one, 0.5 * one, np.array([0.7, 0.4, 1.1]))
            mine, theirs = (condition_crossed(each, crossed) for each in (plain, recentred))
            for view in (
                lambda p: p.hyper, lambda p: p.action(1), lambda p: p.new_action(), lambda p: p.unit(2, 1),
                lambda p: p.task(0), lambda p: p.new_task(),
            ):  # fmt: skip
                np.testing.assert_allclose(view(theirs).mean, view(mine).mean, rtol=0, atol=1e-10)
                np.testing.assert_allclose(view(theirs).cov, view(mine).cov, rtol=0, atol=1e-12)
            np.testing.assert_allclose(theirs.table().means, mine.table().means, rtol=0, atol=1e-10)
            np.testing.assert_allclose(
                theirs.table().prior_means, mine.table().prior_means, rtol=0, atol=1e-10
            )
            np.testing.assert_allclose(theirs.dense_arrays()[0], mine.dense_arrays()[0], rtol=0, atol=1e-10)
            assert theirs.log_evidence == pytest.approx(mine.log_evidence, rel=1e-10)
        crossed = CrossedHierarchy(one, 0.5 * one, 0.2 * one, np.full(3, 0.7))
        mine, theirs = (condition_crossed(each, crossed) for each in (plain, recentred))
        for view in (
            lambda p: p.hyper, lambda p: p.action(1), lambda p: p.new_action(), lambda p: p.unit(2, 1),
            lambda p: p.task(0), lambda p: p.new_task(), lambda p: p.effects(), lambda p: p.unit_new_action(3),
            lambda p: p.difference(1, 0, 2),
        ):  # fmt: skip
            np.testing.assert_allclose(view(theirs).mean, view(mine).mean, rtol=0, atol=1e-9)
            np.testing.assert_allclose(view(theirs).cov, view(mine).cov, rtol=0, atol=1e-10)
        np.testing.assert_allclose(theirs.table().means, mine.table().means, rtol=0, atol=1e-9)
        np.testing.assert_allclose(theirs.table().prior_means, mine.table().prior_means, rtol=0, atol=1e-9)
        assert theirs.log_evidence == pytest.approx(mine.log_evidence, rel=1e-9)

    @given(seeds)
    def test_moments_with_unlike_offsets_add_and_subtract(self, seed: int) -> None:
        task, phi, reward, weight = self.drawn(seed)
        rng = np.random.default_rng(seed + 1)
        whole = Moments.from_arrays(task, phi, reward, weight)
        half = [
            Moments.from_arrays(task[s], phi[s], reward[s], weight[s]) for s in (slice(12), slice(12, None))
        ]
        one, other = (each.around(rng.normal(size=3)) for each in half)
        assert (one + other).allclose(whole, 1e-11)
        assert (other + one).allclose(whole, 1e-11)
        assert ((one + other) - one).covering(whole.keys).allclose(half[1].covering(whole.keys), 1e-8)
        np.testing.assert_array_equal((Moments.zero(3) + one).offset, one.offset)
        assert not (one - one).sums.any()

    @pytest.mark.parametrize("intercept", [True, False])
    def test_units_and_the_dense_moments_have_it_too(self, intercept: bool) -> None:  # noqa: FBT001
        features = per_action(["a", "b"], ["ones", "x"][intercept:], intercept=intercept)
        columns = rows()
        x = np.column_stack([columns[name] for name in features.columns])
        codes = features.action_codes(columns["action"])
        offset = np.tile([1e5, 0.0], 2)
        total = UnitAccumulator(features, offset=offset)
        total.add(columns["task"], codes, x, columns["reward"] + 1e5)
        plain = UnitAccumulator(features)
        plain.add(columns["task"], codes, x, columns["reward"])
        units, around_zero = total.moments(), plain.moments()
        np.testing.assert_allclose(units.unit_sums, around_zero.unit_sums, rtol=0, atol=1e-8)
        np.testing.assert_array_equal(units.offset, offset)
        np.testing.assert_array_equal(units.dense().offset, offset)
        assert units.around(None).around(offset).allclose(units, 1e-5)
        again = UnitAccumulator.after(features, units).moments()
        np.testing.assert_array_equal(again.unit_offset, units.unit_offset)
        np.testing.assert_array_equal(units.select([3, 1]).offset, offset)


@pytest.mark.parametrize("kind", ["f4", "f8", "i8"])
@pytest.mark.parametrize("buffered", [False, True])
def test_columns_that_lie_in_memory_are_summed_around_the_offset(
    kind: str,
    buffered: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hieropo.passes import worker as lanes

    if buffered:
        monkeypatch.setattr(column_pass, "_CACHE", 0)
    rng = np.random.default_rng(0)
    n = 3000
    task, action, x = rng.integers(50, size=n), rng.integers(2, size=n), rng.normal(size=n).astype(np.float32)
    reward = (rng.integers(-40, 40, size=n) + 100_000).astype(kind)
    table = pa.table({"task": task, "action": np.array(["a", "b"])[action], "x": x, "reward": reward})
    features = per_action(["a", "b"], ["x"])
    offset, roles = np.tile([1e5, 0.0], 2), Roles("task", "action", "reward", context=("x",))
    by_batches = sums(table, features, roles, offset=offset).moments
    monkeypatch.setattr(lanes, "_FEW", 0)
    in_place = sums(table, features, roles, offset=offset).moments
    np.testing.assert_array_equal(in_place.sums, by_batches.sums)  # to the last bit
    near = Moments.from_arrays(task, features.phi(x[:, None], action), reward - 1e5).select(in_place.tasks)
    np.testing.assert_allclose(in_place.sums, near.sums, rtol=1e-12, atol=1e-9)


def test_the_rows_of_a_table_or_of_columns_are_summed_in_place_as_in_batches(monkeypatch) -> None:
    from hieropo.passes import worker as lanes

    n = ROWS
    for name in ("a table", "a column of ones", "columns that add to one"):
        features, vector = MAPS[name]
        action = "action" if features.actions else None
        roles = Roles("task", action, "reward", context=features.columns)
        found = []
        for few in (10 * n, 0):
            monkeypatch.setattr(lanes, "_FEW", few)
            found.append(sums(log(1e4), features, roles, offset=1e4 * vector).moments)
        assert found[0].allclose(found[1], 1e-13)
        plain = sums(log(0.0), features, roles).moments
        np.testing.assert_allclose(found[1].sums, plain.sums, rtol=0, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["flat", "crossed"])
def test_it_comes_back_from_disk_adds_up_and_goes_on(prior: str, tmp_path: Path) -> None:
    settings = {"uncertainty": "plug-in"} if prior == "flat" else {}
    columns = {**ROLES, "context": ["x"]}
    whole = HierOPO(**settings).fit(log(1e6), **columns)
    whole.save(tmp_path / "policy")
    verify_policy(tmp_path / "policy")
    again = load_learner(tmp_path / "policy")
    np.testing.assert_array_equal(again.moments_.offset, whole.moments_.offset)
    parts = [LogMoments.of(log(1e6 + at, part=part), **columns) for at, part in zip(
        (0.0, 0.0), (slice(150), slice(150, None)), strict=True
    )]  # fmt: skip
    for k, part in enumerate(parts):
        part.save(tmp_path / str(k))
    both = LogMoments.load(tmp_path / "0") + LogMoments.load(tmp_path / "1")
    vector = np.tile([1.0, 0.0], 2)
    same_but_for(0.0, HierOPO(**settings).fit(both), whole, vector)
    less = both - LogMoments.load(tmp_path / "1")
    same_but_for(0.0, HierOPO(**settings).fit(less), HierOPO(**settings).fit(parts[0]), vector)
    first = HierOPO(**settings).fit(log(1e6, part=slice(150)), **columns)
    first.save(tmp_path / "first")
    more = load_learner(tmp_path / "first").partial_fit(log(1e6, part=slice(150, None)))
    same_but_for(0.0, more, whole, vector)


def test_a_checkpoint_goes_on_around_the_same_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hieropo.passes import checkpoints

    folder = tmp_path / "log"
    folder.mkdir()
    for k in range(3):
        pq.write_table(log(1e6 + 100.0 * k, part=slice(100 * k, 100 * k + 100)), folder / f"{k}.parquet")
    whole = HierOPO(uncertainty="plug-in").fit(folder, **ROLES)
    write, seen = checkpoints.write_checkpoint, []

    def killed(path: Any, found: Any) -> None:
        write(path, found)
        seen.append(found.files)
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "write_checkpoint", killed)
    with pytest.raises(KeyboardInterrupt):
        HierOPO(uncertainty="plug-in").fit(folder, **ROLES, checkpoint=tmp_path / "c")
    monkeypatch.undo()
    again = HierOPO(uncertainty="plug-in").fit(folder, **ROLES, checkpoint=tmp_path / "c")
    np.testing.assert_array_equal(again.moments_.offset, whole.moments_.offset)
    same_but_for(0.0, again, whole, np.ones(2), scale=100.0)


def test_rewards_that_do_not_lie_far_are_summed_as_they_are() -> None:
    for shift in (0.0, 0.2, -1.0):
        learner = HierOPO(uncertainty="plug-in").fit(log(shift), **ROLES)
        assert learner.moments_.offset is None
        features = learner.features_
        direct = sums(log(shift), features, Roles("task", "action", "reward")).moments
        np.testing.assert_array_equal(learner.moments_.sums, direct.sums)


def test_the_offset_is_a_number_that_a_person_can_read() -> None:
    none = lambda: None  # noqa: E731
    reward = 123456.789 + np.random.default_rng(0).normal(size=100)
    np.testing.assert_array_equal(offset_near(indicator(["a"]), reward, none), [123456.9])
    assert offset_near(indicator(["a"]), np.zeros(5), none) is None
    assert offset_near(indicator(["a"]), np.zeros(0), none) is None
    np.testing.assert_array_equal(offset_near(indicator(["a"]), np.full(5, -3.25), none), [-3.25])
    assert offset_near(Columns(("x",)), reward, none) is None  # of rows that cannot be read


def test_how_much_rewards_vary_has_no_zero() -> None:
    task, action, reward = (rows()[name] for name in ("task", "action", "reward"))
    phi = indicator(["a", "b"]).phi(None, (action == "b").astype(np.int64))
    plain = Moments.from_arrays(task, phi, reward)
    for shift in (3.0, 1e5):
        far = plain.around(np.full(2, -shift))
        far = Moments(far.keys, 2, far.sums, far.rows, far.log_precision)  # of r + shift, around 0
        assert about_mean(far) == pytest.approx(about_mean(plain), rel=1e-5)
        assert about_fit(far) == pytest.approx(about_fit(plain), rel=1e-5)
        assert mean_reward(far) == pytest.approx(reward.mean() + shift, rel=1e-12)
        assert noise_inside(far)[:2] == pytest.approx(noise_inside(plain)[:2], rel=1e-4)
        np.testing.assert_allclose(constant(far), np.ones(2), rtol=1e-12)
        assert mean_reward(far.around(np.full(2, shift))) == pytest.approx(reward.mean() + shift, rel=1e-12)
    assert about_mean(plain) == pytest.approx(reward.var(), rel=1e-12)
    rest = reward - phi @ np.linalg.lstsq(phi, reward)[0]
    assert about_fit(plain) == pytest.approx(rest @ rest / (ROWS - 2), rel=1e-12)
    assert constant(Moments.from_arrays(task, phi[:, :1], reward)) is None
    assert about_mean(Moments.from_arrays([0, 0], np.ones((2, 1)), [2.0, 2.0])) == pytest.approx(4.0)
    assert estimate(plain).hierarchy.noise_var == pytest.approx(
        estimate(plain.around(np.full(2, 7.0))).hierarchy.noise_var, rel=1e-9
    )
    total = unpack(plain.sums.sum(axis=0), 4)
    assert plain.sums.shape[1] == packed_size(4)
    assert total[3, 3] == ROWS
