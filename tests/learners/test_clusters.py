"""Logs whose rows form clusters: the correlation that is learned, what is claimed, and what is refused."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import hieropo
from hieropo import FlatOPO, HierOPO, InputError, LogMoments, SchemaError
from hieropo.cli import main
from hieropo.estimation.conditioning import condition_learned
from hieropo.evaluation.passes.first_pass import FOLDS, fold_of
from hieropo.logs.reading import read
from hieropo.moments.clusters import correlated
from hieropo.rows.batches import Roles

pytestmark = pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")  # rows of a session share one draw
ROLES = {"task": "store", "action": "offer", "reward": "profit", "cluster": "session"}
SHARES = np.array([0.4, 0.3, 0.2, 0.1])


def a_log(
    shared: float, *, effect: float = 1.0, tasks: int = 60, sessions: int = 5, size: int = 5, seed: int = 0
):
    """Return a log of sessions of one action each, whose rewards share a part of their variance; and its theta."""
    rng = np.random.default_rng(seed)
    theta = 0.5 * rng.standard_normal((tasks, 1))
    theta = theta + effect * (0.2 * rng.standard_normal((1, 4)) + 0.3 * rng.standard_normal((tasks, 4)))
    session = np.repeat(np.arange(tasks * sessions), size)
    task, action = session // sessions, rng.choice(4, tasks * sessions, p=SHARES)[session]
    noise = np.sqrt(shared) * rng.standard_normal(tasks * sessions)[session]
    profit = theta[task, action] + noise + np.sqrt(1.0 - shared) * rng.standard_normal(task.size)
    columns = {
        "store": task, "offer": np.array(list("abcd"))[action], "profit": profit, "session": session,
        "p": SHARES[action],
    }  # fmt: skip
    return pa.table(columns), theta


@pytest.fixture(scope="module")
def log():
    return a_log(0.5)[0]


@pytest.fixture(scope="module")
def learner(log):
    return HierOPO(logging="random").fit(log, **ROLES, pscore="p")


def test_the_correlation_within_clusters_is_learned(learner) -> None:
    assert learner.cluster_correlation_ == pytest.approx(0.5, abs=0.12)
    independent = HierOPO(logging="random").fit(a_log(0.0)[0], **ROLES)
    assert (independent.cluster_correlation_ == 0).all()
    assert (
        HierOPO()
        .fit(a_log(0.0)[0].drop_columns("session"), **{**ROLES, "cluster": None})
        .cluster_correlation_
        is None
    )


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [60, 400, 2_000])  # of 400 a part tells first, and variances of 2,000 alone
def test_the_order_of_rows_does_not_matter(tasks: int) -> None:
    log = a_log(0.5, tasks=tasks)[0]
    order = np.random.default_rng(2).permutation(len(log))
    one, other = (HierOPO(logging="random").fit(some, **ROLES) for some in (log, log.take(order)))
    np.testing.assert_allclose(other.cluster_correlation_, one.cluster_correlation_, atol=1e-9)
    means = np.asarray(other.posterior_.table().means)[other.moments_.keys.require(one.moments_.tasks)]
    np.testing.assert_allclose(means, one.posterior_.table().means, atol=1e-7)


@pytest.mark.slow
def test_a_gain_where_sessions_differ_by_chance_alone_is_not_claimed() -> None:
    quiet, claimed = 0, 0
    for seed in range(4):
        log, _ = a_log(0.6, effect=0.0, seed=10 + seed)
        rows = HierOPO(logging="random").fit(log, **{**ROLES, "cluster": None}, pscore="p")
        clusters = HierOPO(logging="random").fit(log, **ROLES, pscore="p")
        assert clusters.hierarchy_.no_effect > rows.hierarchy_.no_effect
        claimed += rows.hierarchy_.no_effect < 0.05
        quiet += clusters.hierarchy_.no_effect > 0.2
    assert claimed >= 3  # rows taken as independent tell of effects that are not there
    assert quiet == 4


def test_rows_with_actions_of_their_own_count_as_independent_in_the_model(log) -> None:
    action = np.random.default_rng(5).choice(list("abcd"), len(log), p=SHARES)
    by_row = log.set_column(1, "offer", pa.array(action)).drop_columns("p")
    learner = HierOPO(logging="random").fit(by_row, **ROLES)
    assert (learner.cluster_correlation_ == 0).all()


@pytest.mark.slow
def test_a_log_whose_rows_are_alike_is_recognised_as_that_of_the_fit() -> None:
    log, _ = a_log(0.5, seed=4)
    clicks = log.set_column(2, "profit", pa.array((log["profit"].to_numpy() > 0) * 1.0)).drop_columns("p")
    learner = HierOPO(logging="random").fit(clicks, **ROLES)
    assert learner.cluster_correlation_.any()
    assert learner.evaluate(clicks, propensities="none").learned_from == "yes"


def test_folds_keep_clusters_whole(log) -> None:
    shuffled = log.take(np.random.default_rng(3).permutation(len(log)))
    folds = {}
    for batch in read(shuffled, Roles(**ROLES), batch_rows=97):
        for cluster, fold in zip(batch.cluster.tolist(), fold_of(batch, FOLDS, 1).tolist(), strict=True):
            folds.setdefault(cluster, set()).add(fold)
    assert all(len(some) == 1 for some in folds.values())
    sizes = np.bincount([next(iter(some)) for some in folds.values()], minlength=FOLDS)
    assert (sizes > 30).all()


def test_a_rival_with_the_choices_of_the_policy_has_its_standard_error_with_few_tasks() -> None:
    """Clusters in which the policies of the folds differ are one for each task, of the policy and of its rivals."""
    rng = np.random.default_rng(0)
    stores, offers = rng.integers(0, 10, 200), rng.integers(0, 3, 200)
    session = np.repeat(np.arange(200), 3)
    profit = (0.3**0.5 * rng.normal(size=200) + 0.3 * rng.normal(size=(10, 3))[stores, offers])[session]
    profit = profit + 0.7**0.5 * rng.normal(size=600)
    few = pa.table({"store": stores[session], "offer": offers[session], "profit": profit, "session": session})
    found = HierOPO(logging="random").fit(few, **ROLES).evaluate(few, compare=True)
    rival = next(one for one in found.comparisons if one.name == "separate")
    estimate = found.estimate("DR")
    assert estimate.by == "clusters"
    assert rival.lead_se == 0.0
    assert rival.gain_se == pytest.approx(estimate.gain_se, rel=1e-9)


@pytest.mark.slow
def test_an_evaluation_takes_clusters_as_independent_and_says_so(log, learner) -> None:
    evaluation = learner.evaluate(log, compare=True)
    by_rows = HierOPO(logging="random").fit(log, **{**ROLES, "cluster": None}, pscore="p").evaluate(log)
    assert evaluation.learned_from == "yes"
    assert (
        evaluation.estimate("DR").ess < by_rows.estimate("DR").ess / 3
    )  # five rows count as little more than one
    assert evaluation.model.gain.mean() < by_rows.model.gain.mean()
    assert "drawn for clusters" in evaluation.randomisation.refused
    assert evaluation.checks is None
    assert evaluation.any_n is None
    few = log.filter(pa.compute.less(log["store"], 12))
    assert learner.evaluate(few).estimate("DR").by == "clusters"
    assert learner.evaluate(log).estimate("DR").by == "tasks"


@pytest.mark.slow
def test_a_policy_without_clusters_is_evaluated_with_those_that_are_named(log) -> None:
    learner = HierOPO(logging="random").fit(log, **{**ROLES, "cluster": None}, pscore="p")
    named, without = learner.evaluate(log, cluster="session"), learner.evaluate(log)
    assert (
        named.estimate("DR").gain < without.estimate("DR").gain
    )  # no row of a session tells about its other rows


@pytest.mark.slow
def test_a_saved_policy_evaluates_as_the_learner_did(tmp_path, log, learner) -> None:
    path = learner.save(tmp_path / "policy")
    loaded = hieropo.load_learner(path)
    with pytest.raises(InputError, match="a policy on disk does not hold its clusters"):
        loaded.partial_fit(log)
    np.testing.assert_array_equal(loaded.cluster_correlation_, learner.cluster_correlation_)
    assert loaded.evaluate(log).to_dict()["by_weights"] == learner.evaluate(log).to_dict()["by_weights"]


@pytest.mark.slow
def test_the_command_line_takes_clusters(tmp_path, log) -> None:
    pq.write_table(log, tmp_path / "log.parquet")
    run, policy = CliRunner().invoke, str(tmp_path / "policy")
    arguments = [
        "--task",
        "store",
        "--action",
        "offer",
        "--reward",
        "profit",
        "--pscore",
        "p",
        "--cluster",
        "session",
    ]
    fitted = run(main, ["fit", str(tmp_path / "log.parquet"), "-o", policy, *arguments])
    assert fitted.exit_code == 0, fitted.output
    assert "rewards of one session share" in " ".join(fitted.output.split())
    evaluated = run(main, ["evaluate", policy, str(tmp_path / "log.parquet"), "--json"])
    assert evaluated.exit_code == 0, evaluated.output
    assert json.loads(evaluated.output)["by_weights"][0]["by"] == "tasks"


def test_actions_without_coefficients_of_their_own_share_one_correlation() -> None:
    log, _ = a_log(0.5)
    x = np.random.default_rng(0).normal(size=len(log))
    log = log.append_column("x", pa.array(x)).drop_columns(["offer", "p"])
    learner = HierOPO("columns").fit(log, task="store", reward="profit", context=["x"], cluster="session")
    assert learner.cluster_correlation_.shape == (1,)
    assert learner.cluster_correlation_ == pytest.approx(0.5, abs=0.15)


def test_an_answer_without_a_row_of_a_session_is_that_of_the_other_rows(tmp_path, log, learner) -> None:
    learner.save(tmp_path / "policy")
    pq.write_table(log, tmp_path / "log.parquet")
    explanation = learner.explain(7, log=log)
    assert explanation.rows_read == len(log)
    found = explanation.influential_rows[0]
    kept = [k for k in range(len(log)) if k != found.row]
    rest = LogMoments.of(log.take(kept), features=learner.features_, **ROLES, pscore="p")
    moments = rest.moments.around(learner.moments_.offset)
    moments = correlated(moments, rest.summed.clusters.at(moments), learner.cluster_correlation_)
    posterior = condition_learned(moments, learner.hierarchy_, learner._hyper_uncertainty)
    row = int(moments.keys.require([7])[0])
    mean = sum(
        weight * part.central().means(slice(row, row + 1))[0]
        for weight, part in zip(posterior.weights, posterior.parts(), strict=True)
    )
    means = dict(zip(learner.features_.actions, mean, strict=True))
    choice, rival = (action.action for action in explanation.actions[:2])
    lead = explanation.actions[0].mean - explanation.actions[1].mean
    assert found.mean == pytest.approx(means[choice], rel=1e-9)
    assert found.change == pytest.approx(means[choice] - means[rival] - lead, rel=1e-6)
    loaded = hieropo.load_learner(tmp_path / "policy").explain(7, log=tmp_path / "log.parquet")
    assert loaded.to_dict() == explanation.to_dict()
    command = [
        "explain",
        str(tmp_path / "policy"),
        "--task",
        "7",
        "--log",
        str(tmp_path / "log.parquet"),
        "--json",
    ]
    shown = CliRunner().invoke(main, command)
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.output)["influential_rows"][0]["row"] == found.row
    with pytest.raises(hieropo.MismatchError, match="are not those of the fit"):
        learner.explain(7, log=log.set_column(3, "session", pa.array(np.arange(len(log)))))


@pytest.mark.slow
def test_partial_fit_joins_rows_of_a_cluster_that_both_logs_hold(log, learner) -> None:
    order = np.random.default_rng(4).permutation(len(log))
    learnt = HierOPO(logging="random").fit(log.take(order[:900]), **ROLES, pscore="p")
    assert learnt.cluster_correlation_.any()
    learnt.partial_fit(log.take(order[900:1200])).partial_fit(LogMoments.of(log.take(order[1200:]), **ROLES))
    np.testing.assert_allclose(learnt.cluster_correlation_, learner.cluster_correlation_, atol=1e-6)
    rows = learner.moments_.keys.require(learnt.moments_.tasks)
    np.testing.assert_allclose(learnt.moments_.log_precision, learner.moments_.log_precision[rows], atol=1e-4)
    one, other = learner.posterior_.table(), learnt.posterior_.table()
    rows = one.keys.require(other.keys.values)
    np.testing.assert_allclose(np.asarray(other.means), np.asarray(one.means)[rows], atol=1e-6)


def test_partial_fit_takes_clusters_of_all_rows_or_of_none(log, learner) -> None:
    plain = HierOPO("columns").fit(log, task="store", reward="profit", context=["p"])
    with pytest.raises(SchemaError, match="known of all rows or of none"):
        plain.partial_fit(log, cluster="session")
    with pytest.raises(SchemaError, match="known of all rows or of none"):
        learner.partial_fit(log, cluster=None)
    with pytest.raises(InputError, match="does not go with precision"):
        learner.partial_fit(log, pscore=None, precision="p")


def test_clusters_that_cannot_be_used_are_refused(log) -> None:
    with pytest.raises(SchemaError, match="given two roles, task and cluster"):
        HierOPO().fit(log, **{**ROLES, "cluster": "store"})
    with pytest.raises(SchemaError, match="visit"):
        HierOPO().fit(log, **{**ROLES, "cluster": "visit"})
    with pytest.raises(InputError, match="does not go with precision"):
        HierOPO().fit(log, **ROLES, precision="p")
    with pytest.raises(InputError, match="is a baseline whose rows are independent"):
        FlatOPO().fit(log, **ROLES)
    holed = log.set_column(3, "session", pa.array([None, *log["session"].to_pylist()[1:]], pa.int64()))
    with pytest.raises(hieropo.LogError, match="'session', row 0"):
        HierOPO().fit(holed, **ROLES)
    lenient = HierOPO(logging="random").fit(holed, **ROLES, lenient=True)
    assert lenient.moments_.n_rows == len(log) - 1
