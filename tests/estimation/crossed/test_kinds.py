"""Kinds of tasks that a log shows, and that other logs do not: chosen, integrated, stored, shown."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from scipy.special import gammaln

from hieropo import HierOPO, load_learner
from hieropo._kernels.reference.gaussians import inverted
from hieropo.cli import main
from hieropo.cli.inspection import kind_in_words
from hieropo.errors import HieropoWarning, InputError
from hieropo.estimation.crossed import kinds as search
from hieropo.estimation.crossed.integration import integrate_crossed
from hieropo.estimation.crossed.kind_partitions import PartitionSearch, Scales, sizes_of_kinds
from hieropo.estimation.crossed.mixture import condition_hierarchies
from hieropo.estimation.crossed.shapes import Shapes
from hieropo.model.crossed.kinds import flat_prior, terms_of_kinds
from hieropo.model.crossed.propagation import Factors, propagate
from hieropo.model.crossed.steps import ObservedUnits
from hieropo.moments.statistics import Moments

EFFECTS = np.array([[1.0, 0.0, -1.0], [-1.0, 1.0, 0.0], [0.0, -1.0, 1.2]])  # of three actions in three kinds
ROLES = {"task": "task", "action": "action", "reward": "reward"}


def rows(size: float, seed: int = 0, *, m: int = 30, within: float = 0.1, each: int = 24) -> dict[str, Any]:
    """Rows of each of m tasks and 3 actions; tasks s, s + 3, ... are of one kind, with effects ``size``."""
    rng = np.random.default_rng(seed)
    task, action = np.repeat(np.arange(m), each), rng.integers(0, 3, each * m)
    theta = size * EFFECTS[np.arange(m) % 3] + 0.5 * rng.standard_normal((m, 1))
    theta = theta + within * rng.standard_normal((m, 3))
    reward = theta[task, action] + rng.standard_normal(task.size)
    names = np.array(["mail", "call", "visit"])
    return {"task": [f"t{s}" for s in task], "action": names[action], "reward": reward}


def fitted(log: dict[str, Any], task_kinds: Any = "auto") -> HierOPO:
    return HierOPO(logging="random", task_kinds=task_kinds).fit(pa.table(log), **ROLES)


@pytest.fixture(scope="module")
def three() -> HierOPO:
    return fitted(rows(1.0))


def test_the_order_of_rows_does_not_choose_partitions_and_nodes(three: HierOPO) -> None:
    log = rows(1.0)
    order = np.random.default_rng(3).permutation(len(log["task"]))
    other = fitted({name: np.asarray(column)[order] for name, column in log.items()})
    place = np.asarray(other.posterior_.moments.keys.require(three.posterior_.moments.keys.values))
    table, of_other = three.posterior_.table(), other.posterior_.table()
    np.testing.assert_allclose(np.asarray(of_other.means)[place], table.means, rtol=0, atol=1e-3)
    np.testing.assert_allclose(np.asarray(of_other.covs)[place], table.covs, rtol=5e-3)


def test_kinds_are_found_and_each_task_is_of_its_own(three: HierOPO) -> None:
    hierarchies, kinds = three.hierarchy_, three.posterior_.task_kinds
    assert hierarchies.kinds.log_odds > np.log(10)
    assert hierarchies.weights.sum() == pytest.approx(1)
    assert hierarchies.conditioned.sum() == pytest.approx(1)
    assert kinds.numbers[3] > 0.5
    assert sum(kinds.numbers.values()) == pytest.approx(1)
    np.testing.assert_allclose(kinds.probability.sum(axis=1), 1)
    of = np.array([int(str(task)[1:]) % 3 for task in three.moments_.keys.values])
    assert all(len(set(kinds.kind[of == k].tolist())) == 1 for k in range(3))
    assert (kinds.probability.max(axis=1) > 0.9).mean() > 0.8
    away = kinds.effects[:, :, 0] - kinds.effects[:, :, 0].mean(axis=1, keepdims=True)
    best = {three.features_.actions[a] for a in away.argmax(axis=1)}
    assert best == {"mail", "call", "visit"}


def test_a_new_task_has_the_covariance_of_all_kinds(three: HierOPO) -> None:
    law = three.posterior_.new_task()
    contrast = np.array([1.0, -1.0, 0.0])
    between = np.var(EFFECTS @ contrast)
    assert float(contrast @ law.cov @ contrast) == pytest.approx(between, rel=0.5)
    central = three.hierarchy_.central()
    assert 2 * float(central.interaction_cov[0, 0]) == pytest.approx(between, rel=0.6)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_log_of_one_kind_has_the_answer_of_one_kind(seed: int) -> None:
    moments = fitted(rows(0.0, seed, within=0.3), "one").posterior_.moments
    auto, one = integrate_crossed(moments, task_kinds="auto"), integrate_crossed(moments)
    assert json.dumps(auto.to_dict()) == json.dumps(one.to_dict())
    assert condition_hierarchies(moments, auto).task_kinds is None


def test_kinds_are_not_divided_where_rows_tell_how_their_tasks_vary() -> None:
    learner = fitted(rows(0.6, m=60, within=0.1, each=600))
    assert learner.posterior_.task_kinds.numbers[3] > 0.9
    hierarchies = learner.hierarchy_
    of_kinds = hierarchies.weights * (hierarchies.kinds.mode >= 0)
    assert float(of_kinds @ hierarchies.interaction_sd) == pytest.approx(0.1, rel=0.25)


def test_kinds_are_looked_for_without_a_word() -> None:
    log = pa.table(rows(1.2, 3, m=18))
    assert HierOPO(logging="random").fit(log, **ROLES).posterior_.task_kinds is not None
    assert HierOPO(logging="random", task_kinds="one").fit(log, **ROLES).posterior_.task_kinds is None


def test_a_number_of_kinds_is_used_without_evidence() -> None:
    learner = fitted(rows(0.6, 3, m=20), 2)
    kinds = learner.posterior_.task_kinds
    assert kinds.numbers == pytest.approx({2: 1.0})
    assert kinds.probability.shape == (20, 2)


def test_a_little_evidence_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    log = rows(0.65, m=18)
    assert fitted(log).posterior_.task_kinds is None
    monkeypatch.setattr(search, "ODDS", 0.0)  # the search does not give this log up; the threshold alone does
    assert 0.0 < fitted(log).hierarchy_.kinds.log_odds < np.log(10)


@pytest.mark.parametrize("value", ["two", 1, 7, 2.0, True, None])
def test_a_setting_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match="task_kinds="):
        fitted(rows(1.0), value)


def test_a_fixed_point_between_the_orders_of_the_kinds_is_no_partition() -> None:
    """Its evidence was up to 12 too large, so that kinds were found where there are none."""
    alike = np.full((12, 3), 1 / 3) + 0.01 * np.random.default_rng(0).standard_normal((12, 3))
    assert search.apart(alike) < 0.1
    assert search.apart(np.eye(3)[np.arange(12) % 3]) == 1.0


def test_the_unit_of_contexts_and_rounding_do_not_choose_the_nodes() -> None:
    rng, m = np.random.default_rng(0), np.repeat([0.1, 0.2, 0.4], 16)
    a, c = np.tile(np.repeat([0.0, 0.1, 0.3, 0.5], 4), 3), np.tile([0.2, 0.4, 0.8, 1.6], 12)
    share = rng.dirichlet(np.ones(m.size))
    few = search._few(share, m, (a, c))
    for seed in range(10):
        noise = 1 + 1e-14 * np.random.default_rng(seed).standard_normal(m.size)
        np.testing.assert_allclose(search._few(share * noise, m * noise, (a, c)), few, atol=1e-9)


def test_a_log_of_few_tasks_has_one_kind() -> None:
    few = fitted(rows(1.0, m=6), "one").posterior_.moments
    assert search.mixed_kinds(few, Shapes.equal(few), (0.1, 0.5, 0.3), 1.0) is None


@pytest.mark.parametrize("levels", [(), ("region",)])
def test_a_number_that_cannot_be_used_is_warned_of(levels: tuple[str, ...]) -> None:
    log = rows(1.0, m=6)
    log["region"] = [task[-1] in "024" for task in log["task"]]
    learner = HierOPO(logging="random", task_kinds=3)
    with pytest.warns(HieropoWarning, match="task_kinds=3 is not used"):
        learner.fit(pa.table(log), **ROLES, levels=levels)
    assert learner.posterior_.task_kinds is None


def test_the_evidence_is_that_of_all_assignments() -> None:
    """Every assignment of nine tasks to two kinds, their probabilities integrated, at one value of a, c, m, l, s."""
    few: Moments = fitted(rows(0.8, 4, m=9), "one").posterior_.moments
    shapes = Shapes(np.eye(1), np.eye(1), np.eye(1), np.ones(3))
    scales = Scales(ObservedUnits.of(few, np.ones(3)), shapes, 0.2, 0.5, 0.4, 1.0)
    about, basis = scales.about_actions(0.12), scales.basis(2, 0.2, 0.5)
    below = np.array([basis.below(k) for k in range(2)])
    shares = np.eye(2)[np.array(list(product(range(2), repeat=9)))]
    information = np.einsum("jtk,tde,kdy,kez->jyz", shares, about.information[0], below, below, optimize=True)
    shift = np.einsum("jtk,td,kdz->jz", shares, about.score[0], below, optimize=True)
    phi = inverted(information + np.diag(flat_prior(basis)), shift)[2]
    counts = shares.sum(axis=1)
    of_sizes = gammaln(2) + gammaln(counts + 1).sum(axis=1) - gammaln(9 + 2)
    exact = float(np.logaddexp.reduce(phi + of_sizes) + about.constant.sum())
    start = shares[np.argmax(phi + of_sizes)]
    terms = terms_of_kinds(about, basis)
    weights = (start.sum(axis=0) + 1) / 11
    law, _ = propagate(terms, weights, flat_prior(basis), Factors.averaged(terms, start))
    counts = law.responsibilities.sum(axis=0)
    value = law.log_evidence + sizes_of_kinds(counts) - float(counts @ np.log(weights))
    assert value == pytest.approx(exact, abs=0.3)
    centres = np.einsum("kdz,z->kd", below, law.mean)
    (bound,) = PartitionSearch(scales, about, np.zeros((9, 3))).steps(centres[None])
    assert exact - 3 < bound.bound < exact


def test_the_summary_names_kinds_and_their_best_actions(three: HierOPO) -> None:
    summary = three.summary()
    assert [kind.tasks for kind in summary.kinds] == [10, 10, 10]
    assert {kind.best_action for kind in summary.kinds} == {"mail", "call", "visit"}
    assert "Tasks are of several kinds" in str(summary)
    assert "effect of an action in one kind of tasks" in str(summary)
    assert json.loads(json.dumps(summary.to_dict()))["kinds"][0]["kind"] == 1
    table = three.coefficients("t4")
    assert set(pa.table(table)["kind"].to_pylist()) <= {1, 2, 3}
    assert min(pa.table(table)["kind_probability"].to_pylist()) > 0.5


def test_a_saved_policy_has_its_kinds(three: HierOPO, tmp_path: Path) -> None:
    three.save(tmp_path / "policy")
    shown = CliRunner().invoke(main, ["inspect", str(tmp_path / "policy")])
    assert shown.exit_code == 0, shown.output
    assert three.summary().kinds_verdict in " ".join(shown.output.split())
    again = load_learner(tmp_path / "policy")
    assert again.task_kinds == "auto"
    assert json.dumps(again.hierarchy_.to_dict()) == json.dumps(three.hierarchy_.to_dict())
    np.testing.assert_array_equal(again.posterior_.table().means, three.posterior_.table().means)


def test_a_probability_of_a_kind_is_said_in_words() -> None:
    assert kind_in_words([0.02, 0.97, 0.01]) == "This task is of kind 2 of 3 with probability 0.97."
    assert kind_in_words([0.999, 0.001]).endswith("above 0.99.")


@pytest.mark.slow
def test_rows_that_come_later_move_the_kinds(three: HierOPO) -> None:
    more = rows(1.0, 9)
    grown = fitted(rows(1.0)).partial_fit(pa.table(more), **ROLES)
    assert grown.posterior_.task_kinds.probability.max(axis=1).mean() > (
        three.posterior_.task_kinds.probability.max(axis=1).mean()
    )
