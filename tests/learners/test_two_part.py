"""Two-part likelihoods of a learner: choice by "auto", refusals, files, evaluation."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hieropo import HierOPO, LogMoments, load_learner
from hieropo.errors import HieropoWarning, InputError
from hieropo.serve.state import columns_of
from hieropo.storage.load import verify_policy

pytestmark = pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")
ROLES: dict[str, Any] = {"task": "shop", "action": "offer", "reward": "revenue"}
TASKS = 30


def revenues(
    seed: int = 0, *, rows: int = 60, share: float = 0.15, spread: bool = False, effect: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw tasks, actions and revenues: mostly zero, else lognormal; ``effect`` is that of action 0 on amounts."""
    rng = np.random.default_rng([1605, seed])
    task, action = np.repeat(np.arange(TASKS), rows), rng.integers(0, 3, TASKS * rows)
    level, sd = 0.4 * rng.standard_normal(TASKS), np.array([0.4, 1.0, 1.6]) if spread else np.ones(3)
    logs = 3.0 + level[task] + effect * (action == 0) + sd[action] * rng.standard_normal(task.size)
    return task, action, np.where(rng.random(task.size) < share, np.exp(logs), 0.0)


def table(task: np.ndarray, action: np.ndarray, revenue: np.ndarray, **more: np.ndarray) -> pa.Table:
    return pa.table({"shop": task, "offer": np.array(list("abc"))[action], "revenue": revenue, **more})


@pytest.fixture(scope="module")
def log() -> pa.Table:
    return table(*revenues(effect=1.0))


@pytest.fixture(scope="module")
def fitted(log: pa.Table) -> HierOPO:
    return HierOPO(logging="random", likelihood="two-part").fit(log, **ROLES)


class TestFit:
    def test_learns_an_effect_on_amounts(self, fitted: HierOPO, log: pa.Table) -> None:
        hierarchy = fitted.hierarchy_
        assert hierarchy.amounts.no_effect < 0.01
        assert hierarchy.conversion.no_effect > 0.5
        choices = fitted.predict(pa.table({"shop": np.arange(TASKS)}))
        assert (choices == "a").mean() > 0.95
        gain = fitted.evaluate(log, propensities="none").model.difference
        mean = log["revenue"].to_numpy().mean()
        truth = mean * (
            3 * np.e / (np.e + 2) - 1
        )  # of always taking the action whose amounts are e times larger
        assert 0.6 * truth < gain.mean < 1.1 * truth
        assert gain.low < truth < gain.high

    def test_the_summary_says_so(self, fitted: HierOPO, log: pa.Table) -> None:
        text = " ".join(str(fitted.summary()).split())
        share = 100 * float((log["revenue"].to_numpy() > 0).mean())
        assert f"Rewards are learned in two parts: {share:.3g} % are above 0" in text
        assert fitted.likelihood_ == "two-part"

    def test_new_tasks_take_the_prior(self, fitted: HierOPO) -> None:
        assert fitted.predict(pa.table({"shop": [9_999]})).tolist() == ["a"]

    @pytest.mark.slow
    def test_weights_are_copies(self) -> None:
        columns = revenues(1, rows=20)
        weighted = table(*columns, w=np.full(columns[0].size, 2.0))
        twice = pa.concat_tables([table(*columns)] * 2)
        one = HierOPO(logging="random", likelihood="two-part").fit(twice, **ROLES)
        two = HierOPO(logging="random", likelihood="two-part").fit(weighted, **ROLES, weight="w")
        np.testing.assert_allclose(
            one.posterior_.table().means, two.posterior_.table().means, rtol=1e-9, atol=1e-9
        )

    @pytest.mark.slow
    def test_contexts_have_coefficients(self) -> None:
        task, action, revenue = revenues(2)
        x = np.random.default_rng(0).standard_normal(task.size)
        revenue = revenue * np.exp(np.where(action == 0, x, -x))
        learner = HierOPO(logging="random", likelihood="two-part").fit(
            table(task, action, revenue, x=x), **ROLES, context=["x"]
        )
        requests = pa.table({"shop": [0, 0], "x": [2.0, -2.0]})
        assert learner.predict(requests)[0] == "a" != learner.predict(requests)[1]

    def test_rewards_below_zero_are_refused(self) -> None:
        task, action, revenue = revenues()
        revenue[7] = -3.0
        with pytest.raises(InputError, match=r"1 reward is below 0, the least -3"):
            HierOPO(logging="random", likelihood="two-part").fit(table(task, action, revenue), **ROLES)

    def test_gamma_amounts_are_a_warning(self) -> None:
        task, action, revenue = revenues(6)
        revenue = np.where(revenue > 0, np.random.default_rng(1).gamma(0.5, 1.0, task.size), 0.0)
        with pytest.warns(HieropoWarning, match="Positive rewards are not lognormal"):
            HierOPO(logging="random", likelihood="two-part").fit(table(task, action, revenue), **ROLES)

    def test_amounts_of_another_spread_are_a_warning(self) -> None:
        with pytest.warns(HieropoWarning, match="spread of the logarithms of positive rewards differs"):
            HierOPO(logging="random", likelihood="two-part").fit(table(*revenues(spread=True)), **ROLES)


class TestAuto:
    def test_takes_two_parts_for_revenues(self, fitted: HierOPO, log: pa.Table) -> None:
        auto = HierOPO(logging="random", likelihood="auto").fit(log, **ROLES)
        assert auto.likelihood_ == "two-part"
        np.testing.assert_array_equal(auto.posterior_.table().means, fitted.posterior_.table().means)

    @pytest.mark.parametrize(
        "world",
        [
            "spread",
            "counts",
            "binary",
            "normal amounts",
            "negative",
            pytest.param("few zeros", marks=pytest.mark.slow),
        ],
    )
    def test_takes_the_gaussian_fit_for_other_rewards(self, world: str) -> None:
        task, action, revenue = revenues(
            3, spread=world == "spread", share=0.7 if world == "few zeros" else 0.15
        )
        rng = np.random.default_rng(4)
        if world == "counts":
            revenue = rng.poisson(0.3, task.size).astype(float)
        elif world == "binary":
            revenue = (revenue > 0).astype(float)
        elif world == "normal amounts":
            revenue = np.where(revenue > 0, 10.0 + rng.standard_normal(task.size), 0.0)
        elif world == "gamma":
            revenue = np.where(revenue > 0, rng.gamma(0.5, 1.0, task.size), 0.0)
        elif world == "negative":
            revenue[3] = -1.0
        some = table(task, action, revenue)
        auto, usual = (
            HierOPO(logging="random", likelihood=name).fit(some, **ROLES) for name in ("auto", "gaussian")
        )
        assert auto.likelihood_ == "gaussian"
        np.testing.assert_array_equal(auto.posterior_.table().means, usual.posterior_.table().means)

    @pytest.mark.slow
    def test_with_levels_is_gaussian(self, log: pa.Table) -> None:
        region = log["shop"].to_numpy() // 10
        auto = HierOPO(logging="random", likelihood="auto").fit(
            log.append_column("region", pa.array(region)), **ROLES, levels=["region"]
        )
        assert auto.likelihood_ == "gaussian"

    @pytest.mark.slow
    def test_permuted_rewards_are_no_claim(self) -> None:
        task, action, revenue = revenues(5)
        some = table(task, action, np.random.default_rng(0).permutation(revenue))
        learner = HierOPO(logging="random", likelihood="auto").fit(some, **ROLES)
        gain = learner.evaluate(some, propensities="none").model.difference
        assert learner.likelihood_ == "two-part"
        assert gain.low <= 0.0 <= gain.high


class TestFilesAndEvaluation:
    def test_a_policy_on_disk_is_the_same(self, fitted: HierOPO, log: pa.Table, tmp_path: Path) -> None:
        path = fitted.save(tmp_path / "policy")
        verify_policy(path)
        loaded = load_learner(path)
        assert loaded.likelihood_ == "two-part"
        np.testing.assert_array_equal(loaded.posterior_.table().means, fitted.posterior_.table().means)
        first, second = (
            learner.evaluate(log, propensities="none").model.difference for learner in (fitted, loaded)
        )
        assert (first.mean, first.low) == (second.mean, second.low)

    @pytest.mark.slow
    def test_rows_of_the_fit_are_cross_fitted_and_gated(self, fitted: HierOPO, log: pa.Table) -> None:
        evaluation = fitted.evaluate(log, propensities="estimated")
        assert evaluation.learned_from == "yes"
        assert evaluation.refused is None
        assert evaluation.checks is None
        assert any("Predictions are not checked" in limit for limit in evaluation.limits)
        dr = next(estimate for estimate in evaluation.estimates if estimate.name == "DR")
        assert dr.gain > 0.0
        assert "<30 of 30 tasks pass>" in repr(evaluation.gate())

    def test_other_rows_and_new_tasks_are_evaluated(self, fitted: HierOPO) -> None:
        task, action, revenue = revenues(9, effect=1.0)
        later = table(task + 15, action, revenue)
        evaluation = fitted.evaluate(later, propensities="none")
        assert evaluation.new_tasks == 15
        assert evaluation.model.difference.mean > 0.0


class TestRefusals:
    def test_settings_and_columns(self, log: pa.Table) -> None:
        log = log.append_column("more", pa.array(np.ones(len(log))))
        for settings, columns in (
            ({}, {"metadata": ["more"]}), ({}, {"precision": "more"}), ({"task_kinds": 2}, {}),
            ({"logging": "frozen"}, {}), ({"task_cov": "full"}, {}),
        ):  # fmt: skip
            with pytest.raises(InputError, match="likelihood='two-part' does not go with"):
                HierOPO(**{"logging": "random", "likelihood": "two-part", **settings}).fit(
                    log, **ROLES, **columns
                )

    def test_moments_further_rows_explanations_and_the_service(self, fitted: HierOPO, log: pa.Table) -> None:
        with pytest.raises(InputError, match="does not go with moments"):
            HierOPO(likelihood="two-part").fit(LogMoments.of(log, **ROLES))
        with pytest.raises(InputError, match="does not go with partial_fit"):
            fitted.partial_fit(log)
        with pytest.raises(InputError, match="shares of the prior, the task's own rows and other tasks"):
            fitted.explain(3)
        with pytest.raises(InputError, match="does not go with the service"):
            columns_of(fitted)
