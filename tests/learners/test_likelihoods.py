"""Likelihoods of rewards that are not Gaussian: refusals, robust fits, files and evaluation."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hieropo import CrossedHierarchy, HierOPO, LogMoments, load_learner
from hieropo.errors import HieropoWarning, InputError
from hieropo.serve.state import columns_of

pytestmark = pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")
ROLES: dict[str, Any] = {"task": "site", "action": "offer", "reward": "profit"}
SHARES = np.array([0.4, 0.3, 0.2, 0.1])


def a_log(
    seed: int = 0, *, tasks: int = 60, rows: int = 25, noise: str = "t3", effects: float = 1.0
) -> tuple[pa.Table, Any]:
    """Return a log with Student-t, Gaussian or skewed noise of variance 1, and its true means (tasks, 4)."""
    rng = np.random.default_rng([1604, seed])
    theta = 0.5 * rng.standard_normal((tasks, 1)) + effects * 0.2 * rng.standard_normal(4)
    theta = theta + effects * 0.3 * rng.standard_normal((tasks, 4))
    task, action = np.repeat(np.arange(tasks), rows), rng.choice(4, tasks * rows, p=SHARES)
    errors = {
        "t3": rng.standard_t(3, task.size) / np.sqrt(3),
        "normal": rng.standard_normal(task.size),
        "skewed": rng.exponential(1.0, task.size) - 1.0,
        "by action": (rng.exponential(1.0, task.size) - 1.0) * np.where(action < 2, 1.0, -1.0),
    }[noise]
    profit = theta[task, action] + errors
    return pa.table({"site": task, "offer": np.array(list("abcd"))[action], "profit": profit}), theta


def with_gross(log: pa.Table, row: int, size: float) -> pa.Table:
    """Return the log with one reward moved by ``size``."""
    profit = log["profit"].to_numpy().copy()
    profit[row] += size
    return log.set_column(2, "profit", pa.array(profit))


def choices(log: pa.Table, **settings: Any) -> list[str]:
    learner = HierOPO(logging="random", **settings).fit(log, **ROLES)
    return [str(action) for action in learner.predict(pa.table({"site": np.arange(60)}))]


@pytest.fixture(scope="module")
def fitted() -> HierOPO:
    return HierOPO(logging="random", likelihood="robust").fit(a_log()[0], **ROLES)


class TestOneGrossReward:
    """60 tasks of 5 rows: one reward of 1e3 or 1e4 noise standard deviations."""

    @pytest.mark.parametrize(("row", "size"), [(7, 1e3), (123, -1e4)])
    def test_turns_a_tie_at_most_beside_its_own_task(self, row: int, size: float) -> None:
        log, _ = a_log(rows=5, noise="normal", effects=2.0)
        turned = {}
        for name in ("gaussian", "robust"):
            before, after = (choices(some, likelihood=name) for some in (log, with_gross(log, row, size)))
            turned[name] = {task for task in range(60) if before[task] != after[task]} - {row // 5}
        assert len(turned["robust"]) <= 1
        assert len(turned["gaussian"]) >= 4

    def test_is_no_asymmetry(self) -> None:
        log, _ = a_log(rows=5, noise="normal")
        rule = HierOPO(logging="random", likelihood="robust").fit(with_gross(log, 7, 1e3), **ROLES).sites_
        assert rule.warning == ""
        assert 0.5 / 300 < rule.tails.gross < 2 / 300


class TestStudentErrors:
    def test_degrees_and_scale_are_those_of_the_world(self, fitted: HierOPO) -> None:
        rule = fitted.sites_
        assert 2.5 <= rule.tails.degrees <= 4.0
        np.testing.assert_allclose(rule.scale, np.sqrt(1 / 3), rtol=0.12)
        assert rule.warning == ""
        assert fitted.noise_sd == pytest.approx(np.sqrt(0.5), rel=0.1)  # variance of the t location

    def test_means_are_nearer_to_the_truth(self, fitted: HierOPO) -> None:
        log, theta = a_log()
        gaussian = HierOPO(logging="random").fit(log, **ROLES)
        robust, usual = (
            float(np.square(learner.posterior_.table().means[:, :, 0] - theta).mean())
            for learner in (fitted, gaussian)
        )
        assert robust < 0.85 * usual

    def test_the_two_steps_of_a_large_log_give_about_the_same(
        self, fitted: HierOPO, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hieropo.estimation.robust._LARGE", 1000)
        large = HierOPO(logging="random", likelihood="robust").fit(a_log()[0], **ROLES).posterior_.table()
        table = fitted.posterior_.table()
        away = (large.means - table.means)[:, :, 0] / np.sqrt(table.covs[:, :, 0])
        assert np.sqrt(np.square(away).mean()) < 0.1

    def test_normal_errors_give_the_gaussian_fit(self) -> None:
        log, _ = a_log(noise="normal")
        robust, usual = (
            HierOPO(logging="random", likelihood=name).fit(log, **ROLES) for name in ("robust", "gaussian")
        )
        table, other = robust.posterior_.table(), usual.posterior_.table()
        away = (table.means - other.means)[:, :, 0] / np.sqrt(other.covs[:, :, 0])
        assert np.abs(away).max() < 0.15
        assert robust.sites_.tails.degrees >= 25.0

    def test_skewness_that_differs_between_actions_is_a_warning(self) -> None:
        log, _ = a_log(noise="by action")
        with pytest.warns(HieropoWarning, match="skewness differs between actions"):
            learner = HierOPO(logging="random", likelihood="robust").fit(log, **ROLES)
        assert "The robust fit learns the centre of the errors, which is then not the mean" in " ".join(
            str(learner.summary()).split()
        )

    def test_alike_skewness_is_another_warning(self) -> None:
        with pytest.warns(HieropoWarning, match="skewed alike in all actions"):
            HierOPO(logging="random", likelihood="robust").fit(a_log(noise="skewed")[0], **ROLES)


class TestAuto:
    """The evidence chooses, and errors have to be symmetric."""

    @pytest.mark.parametrize("noise", ["normal", "skewed"])
    def test_gives_the_gaussian_fit_to_the_bit(self, noise: str, tmp_path: Path) -> None:
        log, _ = a_log(noise=noise)
        auto, usual = (
            HierOPO(logging="random", likelihood=name).fit(log, **ROLES) for name in ("auto", "gaussian")
        )
        assert auto.sites_ is None
        np.testing.assert_array_equal(auto.posterior_.table().means, usual.posterior_.table().means)
        note = "errors are skewed, so that the centre of a robust fit is not the mean."
        texts = [" ".join(one.summary().note.split()) for one in (auto, usual)]
        assert (note in texts[0]) == (noise == "skewed")
        assert texts[1] == " ".join(texts[0].replace(auto._likelihood_note, "").split())
        loaded = load_learner(auto.save(tmp_path / "policy"))
        assert loaded.summary().note == auto.summary().note

    def test_takes_heavy_tails_of_both_sides(self, fitted: HierOPO) -> None:
        auto = HierOPO(logging="random", likelihood="auto").fit(a_log()[0], **ROLES)
        np.testing.assert_array_equal(auto.posterior_.table().means, fitted.posterior_.table().means)

    def test_noise_of_tasks_is_no_heavy_tail(self) -> None:
        log, _ = a_log(noise="normal")
        loud = np.repeat(10.0 ** np.random.default_rng(5).uniform(-0.5, 0.5, 60), 25)
        log = log.set_column(2, "profit", pa.array(loud * log["profit"].to_numpy()))
        learner = HierOPO(logging="random", likelihood="auto").fit(log, **ROLES)
        assert learner.sites_ is None
        assert learner.hierarchy_.task_noise is not None

    def test_without_an_effect_nothing_is_claimed(self) -> None:
        log, _ = a_log(3, effects=0.0)
        learner = HierOPO(logging="random", likelihood="auto").fit(log, **ROLES)
        gain = learner.evaluate(log, propensities="none").model.difference
        assert learner.sites_ is not None
        assert learner.hierarchy_.no_effect > 0.5
        assert gain.low <= 0.0 <= gain.high

    def test_mostly_zero_rewards_are_refused_or_gaussian(self) -> None:
        log, _ = a_log(noise="normal")
        profit = np.where(np.random.default_rng(1).random(1500) < 0.9, 0.0, log["profit"].to_numpy())
        log = log.set_column(2, "profit", pa.array(profit))
        with pytest.raises(InputError, match=r"The reward is 0 in \d+% of the rows"):
            HierOPO(logging="random", likelihood="robust").fit(log, **ROLES)
        assert HierOPO(logging="random", likelihood="auto").fit(log, **ROLES).sites_ is None


class TestFilesAndEvaluation:
    def test_a_policy_on_disk_keeps_the_likelihood(self, fitted: HierOPO, tmp_path: Path) -> None:
        loaded = load_learner(fitted.save(tmp_path / "policy"))
        assert loaded.likelihood == "robust"
        assert loaded.sites_.to_dict() == fitted.sites_.to_dict()
        np.testing.assert_allclose(
            loaded.posterior_.table().means, fitted.posterior_.table().means, rtol=1e-12
        )
        assert "Student-t with 3 degrees of freedom" in " ".join(str(loaded.summary()).split())

    def test_rows_of_the_fit_are_recognised_and_cross_fitted(self, fitted: HierOPO) -> None:
        evaluation = fitted.evaluate(a_log()[0], propensities="estimated")
        assert evaluation.learned_from == "yes"
        assert evaluation.refused is None
        assert evaluation.checks is None
        assert any("Predictions are not checked" in limit for limit in evaluation.limits)

    def test_pessimism_is_chosen_from_the_log(self) -> None:
        learner = HierOPO(logging="random", likelihood="robust", pessimism="cv").fit(
            a_log(tasks=20)[0], **ROLES
        )
        assert learner.policy_.pessimism >= 0.0

    def test_weights_are_copies(self) -> None:
        log, _ = a_log(tasks=20)
        twice = pa.concat_tables([log, log])
        weighted = log.append_column("w", pa.array(np.full(len(log), 2.0)))
        one, two = (
            HierOPO(logging="random", likelihood="robust").fit(some, **ROLES, **more)
            for some, more in ((twice, {}), (weighted, {"weight": "w"}))
        )
        np.testing.assert_allclose(
            one.posterior_.table().means, two.posterior_.table().means, rtol=1e-3, atol=1e-3
        )


class TestRefusals:
    """Settings, columns and calls with which no other likelihood goes."""

    @pytest.mark.parametrize(
        ("settings", "columns"),
        [
            ({"known": CrossedHierarchy}, {}),
            ({"task_cov": "full"}, {}),
            ({}, {"cluster": "day"}),
            ({}, {"precision": "weight"}),
            ({}, {"sampling_weight": "weight"}),
        ],
    )
    def test_settings_and_columns(self, settings: dict[str, Any], columns: dict[str, str]) -> None:
        log, _ = a_log(tasks=5)
        log = log.append_column("day", pa.array(np.arange(len(log)) // 5))
        log = log.append_column("weight", pa.array(np.ones(len(log))))
        if "known" in settings:
            settings = {"known": HierOPO(logging="random").fit(log, **ROLES).hierarchy_.central()}
        with pytest.raises(InputError, match="likelihood='robust' does not go with"):
            HierOPO(logging="random", likelihood="robust", **settings).fit(log, **ROLES, **columns)

    def test_moments_and_further_rows(self, fitted: HierOPO) -> None:
        log, _ = a_log(tasks=5)
        with pytest.raises(InputError, match="does not go with moments: they hold no rows"):
            HierOPO(likelihood="robust").fit(LogMoments.of(log, **ROLES))
        with pytest.raises(InputError, match="does not go with partial_fit"):
            fitted.partial_fit(log)
        with pytest.raises(InputError, match=r"does not go with explain\(log=\)"):
            fitted.explain(0, log=a_log()[0])

    def test_the_service(self, fitted: HierOPO) -> None:
        with pytest.raises(InputError, match="does not go with the service"):
            columns_of(fitted)

    def test_an_unknown_name(self) -> None:
        with pytest.raises(InputError, match="likelihood='tweedie'; one of 'gaussian'"):
            HierOPO(likelihood="tweedie").fit(a_log(tasks=5)[0], **ROLES)  # type: ignore[arg-type]


def test_the_order_of_rows_does_not_matter_where_a_sample_tells_the_tails() -> None:
    rng, n = np.random.default_rng(3), 9_000  # more rows than the sample
    offer, store = rng.integers(0, 3, n), np.array([f"t{k}" for k in rng.integers(0, 30, n)])
    log = pa.table({"store": store, "offer": offer, "profit": 0.3 * offer + rng.standard_t(3, n)})
    means = []
    for order in (np.arange(n), rng.permutation(n)):
        shuffled = log.take(pa.array(order))
        learner = HierOPO(likelihood="robust").fit(shuffled, task="store", action="offer", reward="profit")
        table = learner.policy_.table
        means.append(np.asarray(table.means)[np.argsort(np.asarray(table.keys.values, dtype=str))])
    np.testing.assert_allclose(means[0], means[1], rtol=0, atol=1e-9)
