"""Logs whose noise differs between tasks: one answer by fit, more rows, files, evaluation and explanation."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from hieropo import HierOPO, LogMoments, load_learner
from hieropo.cli import main
from hieropo.storage import load_policy, verify_policy

pytestmark = pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")
ROLES = {"task": "site", "action": "offer", "reward": "profit"}
SHARES = np.array([0.4, 0.3, 0.2, 0.1])


def a_log(
    seed: int = 0, *, tasks: int = 30, rows: int = 25, unequal: bool = True, cluster: bool = False
) -> Any:
    """Return a log whose noise variances differ 100-fold between tasks, or are equal; and these variances."""
    rng = np.random.default_rng([1602, seed])
    theta = 0.5 * rng.standard_normal((tasks, 1)) + 0.2 * rng.standard_normal(4)
    theta = theta + 0.3 * rng.standard_normal((tasks, 4))
    variance = 10.0 ** rng.uniform(-1, 1, tasks) if unequal else np.ones(tasks)
    task, action = np.repeat(np.arange(tasks), rows), rng.choice(4, tasks * rows, p=SHARES)
    profit = theta[task, action] + np.sqrt(variance)[task] * rng.standard_normal(task.size)
    table = pa.table({"site": task, "offer": np.array(list("abcd"))[action], "profit": profit})
    return table.append_column("day", pa.array(np.arange(task.size) // 5)) if cluster else table, variance


@pytest.fixture(scope="module")
def fitted() -> HierOPO:
    return HierOPO(logging="random").fit(a_log()[0], **ROLES)


def test_moments_of_a_learner_are_those_of_its_rows(fitted: HierOPO) -> None:
    made = LogMoments.of(a_log()[0], **ROLES)
    np.testing.assert_allclose(fitted.moments_.rows, made.moments.rows)
    np.testing.assert_allclose(fitted.moments_.sums.sum(), made.moments.sums.sum())
    again = HierOPO(logging="random").fit(made)
    np.testing.assert_allclose(again.policy_.table.means, fitted.policy_.table.means, rtol=1e-8)


def test_further_rows_give_the_fit_to_all(fitted: HierOPO) -> None:
    table, _ = a_log()
    parts = HierOPO(logging="random").fit(table.slice(0, 500), **ROLES).partial_fit(table.slice(500))
    np.testing.assert_allclose(parts.policy_.table.means, fitted.policy_.table.means, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(parts.policy_.table.covs, fitted.policy_.table.covs, rtol=1e-5)


def test_a_policy_on_disk_keeps_the_noise_of_tasks(fitted: HierOPO, tmp_path: Path) -> None:
    saved = fitted.save(tmp_path / "policy")
    verify_policy(saved)
    loaded = load_learner(saved)
    noise, before = loaded.hierarchy_.task_noise, fitted.hierarchy_.task_noise
    np.testing.assert_array_equal(noise.precision, before.precision)
    assert (noise.degrees, noise.mean_variance) == (before.degrees, before.mean_variance)
    assert loaded.noise_sd == fitted.noise_sd
    np.testing.assert_array_equal(loaded.posterior_.table().means, fitted.posterior_.table().means)
    assert str(loaded.summary()).count("Noise differs between tasks") == 1
    more = loaded.partial_fit(a_log(1)[0])
    assert more.hierarchy_.task_noise is not None
    (saved / "noise.arrow").write_bytes(b"torn")
    with pytest.raises(Exception, match=r"noise\.arrow"):
        _ = load_policy(saved).hierarchy


def test_summaries_say_it(fitted: HierOPO, tmp_path: Path) -> None:
    summary = fitted.summary()
    assert summary.noise_of_tasks.startswith("Noise differs between tasks: in 90 % of them its sd is from")
    assert summary.to_dict()["noise_of_tasks"] == summary.noise_of_tasks
    assert "Noise differs between tasks" in fitted._repr_html_()
    _, variance = a_log()
    assert fitted.noise_sd == pytest.approx(np.sqrt(variance.mean()), rel=0.15)
    path = str(fitted.save(tmp_path / "policy"))
    text = CliRunner().invoke(main, ["inspect", path]).output
    assert "Noise differs" in text
    about = json.loads(CliRunner().invoke(main, ["inspect", path, "--json"]).output)
    assert about["noise_sd"] == pytest.approx(fitted.noise_sd)
    assert HierOPO(logging="random").fit(a_log(unequal=False)[0], **ROLES).summary().noise_of_tasks == ""


def test_the_rule_that_keeps_noise_equal_is_named() -> None:
    table, _ = a_log(unequal=False, rows=60)
    rate = np.exp(table["profit"].to_numpy() + 1.0)
    spent = table.set_column(2, "profit", pa.array(np.random.default_rng(0).poisson(rate).astype(float)))
    learner = HierOPO(logging="random").fit(spent, **ROLES)
    assert learner.hierarchy_.task_noise is None
    assert "it depends on the mean reward" in str(learner.summary())


def test_checks_of_predictions_know_the_noise_of_each_task(fitted: HierOPO) -> None:
    checks = fitted.evaluate(a_log()[0], propensities="none").checks
    assert checks is not None
    assert checks.sd == pytest.approx(1.0, abs=0.1)
    sds = checks.by_task.sd
    assert 0.4 < np.min(sds) <= np.max(sds) < 1.8  # with one noise for all they would differ tenfold
    assert not any("noise" in finding.lower() for finding in checks.findings)


@pytest.mark.slow
def test_explanations_leave_out_rows_of_their_precision(fitted: HierOPO) -> None:
    table, variance = a_log()
    explanation = fitted.explain(int(np.argmin(variance)), log=table)  # refuses rows whose sums are others
    assert explanation.rows_read == len(table)
    assert fitted.explain(10_000).rows == 0.0  # a task without rows


def test_rows_that_share_a_cause_have_equal_noise() -> None:
    table, _ = a_log(cluster=True)
    learner = HierOPO(logging="random").fit(table, **ROLES, cluster="day")
    assert learner.hierarchy_.task_noise is None
