"""Logs whose coefficients move in time: one answer by fit, more rows, files, evaluation and explanation."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from hieropo import (
    ArtifactError,
    HierOPO,
    HieropoWarning,
    InputError,
    LogMoments,
    MismatchError,
    load_learner,
)
from hieropo.cli import main
from hieropo.estimation.crossed import action_walks, drift
from hieropo.estimation.crossed.walking import RateError, WalkErrors, WalkingHierarchies
from hieropo.model.attribution import attribution, without_tasks
from hieropo.serve.learning import base_moments, learned
from hieropo.storage import verify_policy

ROLES = {"task": "site", "action": "offer", "reward": "profit", "time": "when"}
WEEK = 7 * 86_400


def a_log(
    seed: int = 0,
    *,
    move: float = 0.8,
    rows: int = 80,
    tasks: int = 25,
    dates: bool = False,
    alike: float = 0.0,
) -> pa.Table:
    """Return a log whose interactions walk by a sd of ``move`` over its ten weeks, and actions by ``alike`` in all."""
    rng = np.random.default_rng([1609, seed])
    steps, n = 20, tasks * rows
    theta = 0.5 * rng.standard_normal((tasks, 1)) + 0.3 * rng.standard_normal((tasks, 3))
    path = theta + np.cumsum(move / steps**0.5 * rng.standard_normal((steps, tasks, 3)), axis=0)
    task, time, action = rng.integers(0, tasks, n), rng.random(n), rng.integers(0, 3, n)
    if alike:
        path = path + np.cumsum(alike / steps**0.5 * rng.standard_normal((steps, 1, 3)), axis=0)
    profit = 0.5 * (path[(time * steps).astype(int), task, action] + rng.standard_normal(n)) + 3.0
    when: Any = 10 * time
    if dates:
        when = np.datetime64("2026-01-01T00:00:00", "us") + (when * WEEK * 1e6).astype("timedelta64[us]")
    names = np.array(list("abc"))[action]
    return pa.table({"site": task, "offer": names, "profit": profit, "when": when, "pages": rng.random(n)})


@pytest.fixture(scope="module")
def fitted() -> HierOPO:
    return HierOPO(logging="random").fit(a_log(), **ROLES)


@pytest.fixture(scope="module")
def unasked() -> HierOPO:
    return HierOPO(logging="random", drift=None).fit(a_log(), **ROLES)


def test_old_rows_count_less_and_the_summary_says_how_much(fitted: HierOPO, unasked: HierOPO) -> None:
    drift = fitted.drift_
    assert drift is not None
    assert drift.kappa > 0
    assert 0.5 < drift.shortest < drift.half_life < drift.longest < 10.0
    text = str(fitted.summary())
    assert f"a row counts half at an age of {drift.half_life:.3g}" in " ".join(text.split())
    assert "in units of column 'when'" in " ".join(text.split())
    assert fitted.posterior_.table().covs.mean() > unasked.posterior_.table().covs.mean()
    np.testing.assert_array_equal(fitted.moments_.rows, unasked.moments_.rows)
    assert unasked.drift_ is None
    assert "time" not in unasked.summary().note


@pytest.mark.parametrize("room", ["the walks of tasks", "the walk of actions"])
def test_the_order_of_rows_does_not_choose_the_tasks_that_tell_drift(
    monkeypatch: pytest.MonkeyPatch, room: str
) -> None:
    if room == "the walks of tasks":
        monkeypatch.setattr(drift, "_UNITS", 100)
    else:
        monkeypatch.setattr(action_walks, "_FIRST_ROOM", 20_000)
        monkeypatch.setattr(action_walks, "_ROOM", 20_000)
    log = a_log(tasks=80, rows=30, alike=0.5)
    log = log.set_column(0, "site", log["site"].cast(pa.string()))  # texts are numbered as they come
    order = np.random.default_rng(1).permutation(len(log))
    one, other = (HierOPO(logging="random").fit(rows, **ROLES).drift_ for rows in (log, log.take(order)))
    assert one is not None
    assert other is not None
    assert one.present
    for name in ("kappa", "log_odds", "zeta", "action_log_odds", "half_life"):
        assert getattr(other, name) == pytest.approx(getattr(one, name), rel=1e-6), name


def test_inspect_says_how_fast_the_past_fades(fitted: HierOPO, unasked: HierOPO, tmp_path: Path) -> None:
    texts = []
    for name, learner in (("moving", fitted), ("still", unasked)):
        learner.save(tmp_path / name)
        page = tmp_path / f"{name}.html"
        shown = CliRunner().invoke(main, ["inspect", str(tmp_path / name), "--html", str(page)])
        assert shown.exit_code == 0, shown.output
        texts.append((" ".join(shown.output.split()), page.read_text()))
    age = f"a row counts half at an age of {fitted.drift_.half_life:.3g}"
    for text in texts[0]:
        assert age in text
        assert "each in proportion to its variation between tasks" in text
    assert not any("drift" in text for text in texts[1])


def test_ages_are_said_in_weeks_where_times_are_dates(fitted: HierOPO) -> None:
    dated = HierOPO(logging="random").fit(a_log(dates=True), **ROLES)
    assert dated.drift_ is not None
    assert dated.drift_.unit == "us"
    assert dated.drift_.half_life / (WEEK * 1e6) == pytest.approx(fitted.drift_.half_life, rel=1e-6)
    np.testing.assert_allclose(dated.policy_.table.means, fitted.policy_.table.means, rtol=1e-6)
    assert f"{7 * fitted.drift_.half_life:.3g} days" in " ".join(str(dated.summary()).split())


def test_the_order_of_rows_and_the_zero_of_rewards_do_not_matter(fitted: HierOPO) -> None:
    table = a_log()
    shuffled = table.take(np.random.default_rng(0).permutation(len(table)))
    again = HierOPO(logging="random").fit(shuffled, **ROLES)
    order = again.policy_.table.keys.require(fitted.policy_.table.keys.values)
    np.testing.assert_allclose(again.policy_.table.means[order], fitted.policy_.table.means, rtol=1e-7)
    moved = table.set_column(2, "profit", pa.array(table["profit"].to_numpy() + 1e5))
    high = HierOPO(logging="random").fit(moved, **ROLES)
    np.testing.assert_allclose(high.policy_.table.means - 1e5, fitted.policy_.table.means, atol=1e-5)


def test_a_log_without_drift_has_the_answer_of_before_to_the_bit() -> None:
    still = a_log(move=0.0, rows=30)
    auto, none = (HierOPO(logging="random", drift=drift).fit(still, **ROLES) for drift in ("auto", None))
    assert auto.drift_ is not None
    assert not auto.drift_.present
    np.testing.assert_array_equal(auto.policy_.table.means, none.policy_.table.means)
    np.testing.assert_array_equal(auto.policy_.table.covs, none.policy_.table.covs)
    np.testing.assert_array_equal(auto.moments_.sums, none.moments_.sums)
    assert "The log does not show that coefficients drift in time." in auto.summary().note


@pytest.fixture(scope="module")
def alike() -> HierOPO:
    return HierOPO(logging="random").fit(a_log(move=0.0, alike=0.8), **ROLES)


def test_actions_that_walk_in_all_tasks_alike_have_a_common_error(alike: HierOPO) -> None:
    drift = alike.drift_
    assert drift is not None
    assert drift.zeta > 0
    assert drift.kappa == 0.0
    assert 0.2 < drift.action_sd < 2.0
    text = " ".join(alike.summary().note.split())
    assert "Effects of actions in all tasks alike drift in time" in text
    error = alike.hierarchy_.action_error
    still = alike.posterior_.still
    p = alike.moments_.unit_dim
    np.testing.assert_allclose(alike.posterior_.task(0).cov, still.task(0).cov + error, rtol=1e-9)
    np.testing.assert_allclose(
        alike.policy_.table.covs[0, 1, 0], still.table().covs[0, 1, 0] + error[p, p], rtol=1e-9
    )
    vectors = np.ones((1, len(alike.moments_), 3)) * np.array([1.0, -1.0, 0.0])
    more = next(part.total(vectors)[1] for part in alike.posterior_.parts())
    less = next(part.total(vectors)[1] for part in still.parts())
    total = vectors.sum(axis=1)
    np.testing.assert_allclose(more, less + total @ error @ total.T, rtol=1e-9)
    assert str(alike.explain(0))
    assert alike.evaluate(a_log(move=0.0, alike=0.8)).model is not None


def test_explanations_leave_the_common_error_to_the_covariance(alike: HierOPO) -> None:
    split = attribution(alike.posterior_, 3, np.eye(3))
    np.testing.assert_allclose(split.prior + split.tasks.sum(axis=1), split.means, rtol=1e-9)
    others = np.array([3, 5])
    means, covs = without_tasks(alike.posterior_, 3, np.eye(3), others)
    still_means, still_covs = without_tasks(alike.posterior_.still, 3, np.eye(3), others)
    np.testing.assert_allclose(means, still_means, rtol=1e-9)
    np.testing.assert_allclose(covs, still_covs + alike.hierarchy_.action_error, rtol=1e-9, atol=1e-15)
    shares = alike.explain(3).mean
    assert shares.prior + shares.own + shares.others == pytest.approx(shares.mean, rel=1e-9)


def test_a_policy_on_disk_keeps_the_common_error(alike: HierOPO, tmp_path: Path) -> None:
    saved = alike.save(tmp_path / "policy")
    verify_policy(saved)
    loaded = load_learner(saved)
    assert loaded.drift_ == alike.drift_
    np.testing.assert_array_equal(loaded.posterior_.table().covs, alike.posterior_.table().covs)
    np.testing.assert_array_equal(loaded.hierarchy_.action_error, alike.hierarchy_.action_error)
    more = a_log(1, rows=10)
    renamed = pa.array(["d" if offer == "a" else offer for offer in more["offer"].to_pylist()])
    with pytest.warns(HieropoWarning, match="coefficients of this policy drift"):
        loaded.partial_fit(more.set_column(1, "offer", renamed))
    assert loaded.hierarchy_.action_error.shape == (4, 4)
    assert not loaded.hierarchy_.action_error[3].any()
    np.testing.assert_array_equal(loaded.hierarchy_.action_error[:3, :3], alike.hierarchy_.action_error)


def test_a_policy_on_disk_keeps_its_drift(fitted: HierOPO, tmp_path: Path) -> None:
    saved = fitted.save(tmp_path / "policy")
    verify_policy(saved)
    loaded = load_learner(saved)
    assert loaded.drift_ == fitted.drift_
    assert loaded.get_params()["drift"] == "auto"
    np.testing.assert_array_equal(loaded.posterior_.table().means, fitted.posterior_.table().means)
    assert "counts half" in loaded.summary().note
    before = loaded.moments_.n_rows
    with pytest.warns(HieropoWarning, match="coefficients of this policy drift"):
        loaded.partial_fit(a_log(1, rows=10))
    assert loaded.moments_.n_rows == before + 250
    assert loaded.drift_ == fitted.drift_


def test_the_error_of_the_rate_is_one_of_all_tasks(fitted: HierOPO) -> None:
    """It adds to covariances within and between tasks, and so to sums over tasks, as its definition says."""
    drift, error = fitted.drift_, fitted.hierarchy_.rate_error
    assert drift is not None
    assert sum(rate.weight for rate in drift.rates) == pytest.approx(1.0)
    assert sum(rate.weight * rate.kappa for rate in drift.rates) == pytest.approx(drift.kappa)
    roots, still = error.of(fitted.moments_.keys), fitted.posterior_.still
    assert roots.shape == (25, 3, len(drift.rates))
    assert np.abs(roots).max() > 0.01
    np.testing.assert_allclose(
        fitted.posterior_.task(3).cov, still.task(3).cov + roots[3] @ roots[3].T, rtol=1e-9
    )
    np.testing.assert_allclose(fitted.posterior_.task(3).mean, still.task(3).mean, rtol=1e-12)
    np.testing.assert_allclose(
        fitted.policy_.table.covs[..., 0],
        still.table().covs[..., 0] + np.square(roots).sum(axis=2),
        rtol=1e-9,
    )
    np.testing.assert_allclose(fitted.posterior_.new_task().cov, still.new_task().cov, rtol=1e-9)
    vectors = np.random.default_rng(0).standard_normal((2, 25, 3))
    parts = zip(fitted.posterior_.parts(), still.parts(), strict=True)
    part, inner = next(parts)
    common = np.einsum("jsd,sdx->jx", vectors, roots)
    np.testing.assert_allclose(part.total(vectors)[1], inner.total(vectors)[1] + common @ common.T, rtol=1e-9)
    mean, within, shared = part.along(vectors.swapaxes(0, 1), slice(0, 25))
    of_tasks = within + np.einsum("sjx,slx->sjl", shared, shared)
    np.testing.assert_allclose(of_tasks.sum(axis=0).shape, (2, 2))
    means, covs = part.joint(np.arange(25))
    np.testing.assert_allclose(
        of_tasks, np.einsum("jsd,sde,lse->sjl", vectors, covs, vectors), rtol=1e-7, atol=1e-12
    )
    np.testing.assert_allclose(mean, np.einsum("jsd,sd->sj", vectors, means), rtol=1e-9, atol=1e-12)
    across = part.across(3, vectors[:, 3], vectors.swapaxes(0, 1), slice(0, 25))
    before = inner.across(3, vectors[:, 3], vectors.swapaxes(0, 1), slice(0, 25))
    both = np.einsum("jd,dx,sex,lse->jsl", vectors[:, 3], roots[3], roots, vectors)
    np.testing.assert_allclose(across, before + both, rtol=1e-9, atol=1e-12)


def test_the_hierarchy_is_learned_once(fitted: HierOPO, unasked: HierOPO) -> None:
    """That of the end has the weights of a fit without drift, and interactions and noise as the walk gives them."""
    drift, one, first = fitted.drift_, fitted.hierarchy_.still, unasked.hierarchy_
    assert drift is not None
    for name in ("weights", "conditioned", "action_sd", "level_sd"):
        np.testing.assert_array_equal(getattr(one, name), getattr(first, name))
    np.testing.assert_allclose(one.noise_var, drift.noise * first.noise_var, rtol=1e-12)
    assert 0.5 < drift.noise < 1.0
    added = one.interaction_sd**2 - drift.start * first.interaction_sd**2
    assert added.min() > 0.1
    np.testing.assert_allclose(added, added[0], rtol=1e-9)


def test_within_kinds_interactions_gain_all_that_the_walk_adds() -> None:
    """The walk is in units of M between tasks of all kinds, of which the kinds are most."""
    rng = np.random.default_rng(0)
    site = np.repeat(np.arange(30), 120)
    action, when = rng.integers(0, 3, site.size), rng.random(site.size)
    kinds = 2.0 * np.array([[1.0, 0.0, -1.0], [-1.0, 1.0, 0.0], [0.0, -1.0, 1.2]])
    theta = (
        kinds[np.arange(30) % 3] + 0.5 * rng.standard_normal((30, 1)) + 0.05 * rng.standard_normal((30, 3))
    )
    path = theta + 0.6 / 20**0.5 * np.cumsum(rng.standard_normal((20, 30, 3)), axis=0)
    profit = path[(20 * when).astype(int), site, action] + rng.standard_normal(site.size)
    log = pa.table({"site": site, "offer": action, "profit": profit, "when": when})
    first, moved = (HierOPO(logging="random", drift=drift).fit(log, **ROLES) for drift in (None, "auto"))
    hierarchy = moved.hierarchy_
    assert first.hierarchy_.kinds is not None
    assert hierarchy.kinds is not None
    sds = [float(one.weights @ one.interaction_sd) for one in (first.hierarchy_, hierarchy)]
    assert 0.55 < np.sqrt(sds[1] ** 2 - sds[0] ** 2) < 0.75
    table = moved.posterior_.table()
    errors = np.asarray(table.means)[..., 0] - path[-1][:, np.asarray(moved.features_.actions)]
    assert np.std(errors / np.sqrt(np.asarray(table.covs)[..., 0])) < 1.15


def test_a_walk_adds_the_same_in_tasks_of_small_and_of_large_effects() -> None:
    rng = np.random.default_rng([11, 0])
    site, action = rng.integers(0, 60, 4800), rng.integers(0, 4, 4800)
    when, size = rng.random(4800), np.where(np.arange(60) < 6, 1.3, 0.1)[:, None]
    theta = 0.3 * rng.standard_normal((60, 1)) + size * rng.standard_normal((60, 4))
    path = theta + 0.7 / 20**0.5 * np.cumsum(rng.standard_normal((20, 60, 4)), axis=0)
    profit = path[(20 * when).astype(int), site, action] + rng.standard_normal(4800)
    log = pa.table({"site": site, "offer": action, "profit": profit, "when": when})
    first, moved = (
        HierOPO(logging="random", drift=drift).fit(log, **ROLES).hierarchy_ for drift in (None, "auto")
    )
    assert first.mixed_spreads
    np.testing.assert_array_equal(first.spread_weights, moved.spread_weights)
    np.testing.assert_allclose((moved.spread_weights * moved.spread_scales**2).sum(axis=1), 1.0, rtol=1e-9)
    of_end, of_start = (one.interaction_sd[:, None] ** 2 * one.spread_scales**2 for one in (moved, first))
    assert of_end.min() > 0.3 > of_start.min(axis=1).max()
    assert (of_end - of_start).min() > 0.0


def test_a_task_that_was_forgotten_is_in_no_file(tmp_path: Path) -> None:
    log = a_log()
    named = log.set_column(0, "site", pa.array([f"site {site:04d}!" for site in log["site"].to_pylist()]))
    first = HierOPO(logging="random").fit(named, **ROLES)
    again, _ = learned(base_moments(first).without(["site 0007!"]), first)
    error = again.hierarchy_.rate_error
    np.testing.assert_array_equal(np.delete(first.hierarchy_.rate_error.root, 7, axis=0), error.root)
    saved = again.save(tmp_path / "policy")
    assert all(b"site 0007!" not in file.read_bytes() for file in saved.iterdir())
    assert any(b"site 0008!" in file.read_bytes() for file in saved.iterdir())


def test_a_policy_on_disk_keeps_the_error_of_the_rate(fitted: HierOPO, tmp_path: Path) -> None:
    saved = fitted.save(tmp_path / "policy")
    verify_policy(saved)
    loaded = load_learner(saved)
    before = fitted.hierarchy_.rate_error
    np.testing.assert_array_equal(loaded.hierarchy_.rate_error.root, before.root)
    np.testing.assert_array_equal(loaded.posterior_.table().covs, fitted.posterior_.table().covs)
    more = a_log(1, rows=10, tasks=30)
    renamed = pa.array(["d" if offer == "a" else offer for offer in more["offer"].to_pylist()])
    with pytest.warns(HieropoWarning, match="coefficients of this policy drift"):
        loaded.partial_fit(more.set_column(1, "offer", renamed))
    keys = loaded.moments_.keys
    roots = loaded.hierarchy_.rate_error.of(keys)
    assert roots.shape == (30, 4, len(fitted.drift_.rates))
    old = keys.require(fitted.moments_.keys.values)
    np.testing.assert_array_equal(roots[old][:, :3], before.root)
    assert not roots[:, 3].any()
    assert not np.delete(roots, old, axis=0).any()
    (saved / "drift.arrow").write_bytes(b"torn")
    with pytest.raises(ArtifactError):
        load_learner(saved)


def test_errors_of_other_shapes_are_refused(fitted: HierOPO) -> None:
    still, root = fitted.hierarchy_.still, np.zeros((25, 6, 2))
    with pytest.raises(MismatchError, match=r"one \(K p, D\) array is needed for each of the 25 tasks"):
        RateError(fitted.moments_.keys, root[:3])
    with pytest.raises(MismatchError, match="Both must come from one feature map"):
        WalkingHierarchies.of(still, WalkErrors(np.zeros((3, 3)), RateError(fitted.moments_.keys, root)))


def test_a_new_task_has_no_error_of_the_rate(fitted: HierOPO) -> None:
    part = next(iter(fitted.posterior_.parts()))
    assert part.roots.of_tasks.any()
    mean, cov = part.joint(np.array([-1, 2]))
    new, third = part.new_task(), part.task(fitted.moments_.tasks[2])
    np.testing.assert_allclose(mean, [new.mean, third.mean], atol=1e-12)
    np.testing.assert_allclose(cov, [new.cov, third.cov], atol=1e-12)


def visits(*, mixed: bool = False, tasks: int = 30, move: float = 0.0) -> pa.Table:
    """Return a log of visits of five rows that share half of the noise variance, of one action unless ``mixed``."""
    rng = np.random.default_rng(1610)
    visit, each = np.arange(tasks * 16), 5
    site, row = np.repeat(visit % tasks, each), np.repeat(visit, each)
    effect = 0.5 * rng.standard_normal((tasks, 1)) + 0.3 * rng.standard_normal((tasks, 3))
    action = rng.integers(0, 3, row.size) if mixed else rng.integers(0, 3, visit.size)[row]
    when = (10 * rng.random(visit.size))[row] + 1e-3 * rng.random(row.size)
    mood = rng.standard_normal(visit.size)[row] + rng.standard_normal(row.size)
    walk = move * np.cumsum(rng.standard_normal((20, tasks, 3)) / 20**0.5, axis=0)
    profit = effect[site, action] + walk[(1.99 * when).astype(int), site, action] + mood / 2**0.5
    names = np.array(list("abc"))[action]
    return pa.table({"site": site, "offer": names, "profit": profit, "when": when, "visit": row})


@pytest.mark.parametrize("mixed", [False, True])
def test_rows_of_visits_are_no_drift(tmp_path: Path, *, mixed: bool) -> None:
    table = visits(mixed=mixed)
    with pytest.warns(HieropoWarning, match=r"close in time have alike rewards .* name it by cluster="):
        learner = HierOPO(logging="random").fit(table, **ROLES)
    drift = learner.drift_
    assert drift is not None
    assert not drift.moves
    assert drift.present
    assert (drift.level_shared > 0.1 > drift.shared) if mixed else (drift.shared > 0.4 > drift.level_shared)
    note = learner.summary().note
    assert "does not show that coefficients drift" in note
    assert "The fit counts such rows as fewer rows." in note
    none = HierOPO(logging="random", drift=None).fit(table, **ROLES)
    if not mixed:
        assert learner.posterior_.table().covs.mean() > 1.2 * none.posterior_.table().covs.mean()
    loaded = load_learner(learner.save(tmp_path / "policy"))
    assert loaded.drift_ == drift
    with pytest.warns(HieropoWarning, match="takes the new rows as independent"):
        loaded.partial_fit(a_log(1, rows=10))
    with pytest.raises(InputError, match="rows that are close in time have alike rewards"):
        learner.explain(0, log=table)


@pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")
def test_visits_that_drift_are_both() -> None:
    drift = HierOPO(logging="random").fit(visits(tasks=60, move=1.5), **ROLES).drift_
    assert drift is not None
    assert drift.kappa > 0.0
    assert 0.2 < drift.shared < 2.0


def test_an_evaluation_says_what_its_figures_are_of(fitted: HierOPO) -> None:
    report = fitted.evaluate(a_log())
    assert report.learned_from == "yes"
    assert report.checks is None
    assert any("Coefficients may drift in time" in limit for limit in report.limits)
    assert report.estimates
    cv = HierOPO(logging="random", pessimism="cv").fit(a_log(), **ROLES)
    assert cv.drift_ == fitted.drift_
    later = fitted.evaluate(a_log(3).slice(0, 500))
    assert later.learned_from == "no"
    assert not any("mean over the log" in limit for limit in later.limits)


def test_one_row_is_not_explained(fitted: HierOPO) -> None:
    assert str(fitted.explain(0))
    with pytest.raises(InputError, match="coefficients drift"):
        fitted.explain(0, log=a_log())


@pytest.mark.parametrize(
    ("settings", "columns", "reason"),
    [
        ({"task_cov": "diag"}, {}, "under the crossed prior only"),
        ({}, {"levels": ["region"]}, "groups or metadata"),
        ({"logging": "frozen"}, {}, "choices of the incumbent"),
        ({}, {"precision": "sure"}, "rows have precisions"),
        ({}, {"cluster": "visit"}, "rows form clusters"),
    ],
)
@pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")
def test_it_says_why_it_does_not_look(settings: Any, columns: Any, reason: str) -> None:
    table = a_log(rows=12)
    n = len(table)
    table = table.append_column("region", pa.array(np.asarray(table["site"]) % 4))
    table = table.append_column("sure", pa.array(np.where(np.arange(n) % 2, 1.0, 2.0)))
    table = table.append_column("visit", pa.array(np.arange(n) // 3))
    learner = HierOPO(**{"logging": "random", **settings}).fit(table, **ROLES, **columns)
    assert learner.drift_ is None
    assert reason in learner.summary().note


@pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")
def test_moments_and_few_times_tell_no_drift() -> None:
    made = HierOPO(logging="random").fit(LogMoments.of(a_log(), **ROLES))
    assert made.drift_ is None
    assert "moments hold no times" in made.summary().note
    table = a_log()
    halves = table.set_column(3, "when", pa.array(np.round(table["when"].to_numpy() / 10)))
    few = HierOPO(logging="random").fit(halves, **ROLES)
    assert few.drift_ is None
    assert "too few different times" in few.summary().note
    one = HierOPO(logging="random").fit(halves.set_column(3, "when", pa.array(np.ones(len(table)))), **ROLES)
    assert "too few different times" in one.summary().note


def test_contexts_move_too() -> None:
    context = HierOPO(logging="random").fit(a_log(), **ROLES, context=["pages"])
    assert context.drift_ is not None
    assert context.drift_.kappa > 0
    assert np.isfinite(context.policy_.table.means).all()


def test_other_words_are_refused() -> None:
    with pytest.raises(InputError, match="drift='yes'; 'auto' or None is needed"):
        HierOPO(drift="yes").fit(a_log(), **ROLES)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_command_takes_it(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    log = tmp_path / "log.parquet"
    pq.write_table(a_log(), log)
    columns = [
        "--task",
        "site",
        "--action",
        "offer",
        "--reward",
        "profit",
        "--time",
        "when",
        "--logging",
        "random",
    ]
    out = str(tmp_path / "policy")
    fit = CliRunner().invoke(main, ["fit", str(log), "-o", out, *columns])
    assert fit.exit_code == 0, fit.output
    assert "counts half" in " ".join(fit.output.split())
    none = CliRunner().invoke(main, ["fit", str(log), "-o", out, *columns, "--drift", "none"])
    assert "counts half" not in " ".join(none.output.split())
    wrong = CliRunner().invoke(
        main, ["fit", str(log), "-o", out, *columns, "--drift", "none", "--algorithm", "pooled"]
    )
    assert wrong.exit_code == 2


def test_the_mean_of_equal_times_may_round_to_a_later_time() -> None:
    log = a_log(alike=1.0, move=0.0, rows=40)
    days = np.floor(log["when"].to_numpy())

    def last_mean_is_late(when: np.ndarray) -> bool:
        last = when[days == days.max()]
        return bool(np.bincount(np.zeros(last.size, dtype=int), last)[0] / last.size > last[0])

    seconds = (1.7e9 + 0.1 * k + 86_400.3 * days for k in range(1, 100))
    learners = []
    for when in (days, next(filter(last_mean_is_late, seconds))):
        at_days = log.set_column(log.column_names.index("when"), "when", pa.array(when))
        learners.append(HierOPO(logging="random").fit(at_days, **ROLES))
    by_day, by_second = (learner.drift_ for learner in learners)
    assert by_day is not None
    assert by_second is not None
    assert by_second.zeta * 86_400.3 == pytest.approx(by_day.zeta, rel=1e-6)
    assert by_day.zeta > 0.0
