"""The dict of the Open Bandit Pipeline, in and out, on feedback that the pipeline itself made."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hieropo import HierOPO, embedding, indicator
from hieropo.errors import HieropoWarning, InputError, LogError, MismatchError, SchemaError
from hieropo.logs.interop.obp import action_dist, from_obp, to_obp
from hieropo.logs.reading import read
from hieropo.rows.batches import Roles

DATA = Path(__file__).parents[2] / "data"
ROLES = {"task": "task", "action": "action", "reward": "reward", "pscore": "pscore"}


def feedback(name):
    with np.load(DATA / f"obp_{name}.npz", allow_pickle=False) as stored:
        found = {key: stored[key] for key in stored.files}
    found = {"position": None} | found
    return found | {name: int(found[name]) for name in ("n_rounds", "n_actions")}


MEN, SYNTHETIC = feedback("random_men"), feedback("synthetic")
USERS = np.arange(300) % 12


def test_a_log_of_the_open_bandit_dataset_is_read():
    log = from_obp(MEN, task="position")
    roles = Roles(**ROLES, context=tuple(f"x{j}" for j in range(MEN["context"].shape[1])))
    (batch,) = read(log, roles)
    for found, name in ((batch.task, "position"), (batch.action, "action"), (batch.reward, "reward"),
                        (batch.pscore, "pscore"), (batch.context, "context")):  # fmt: skip
        np.testing.assert_array_equal(found, MEN[name])
    assert set(log["position"].to_pylist()) == {0, 1, 2}
    assert "expected_reward" not in from_obp(SYNTHETIC, task=USERS).column_names


def test_out_and_in_again_is_the_same_log_and_the_same_dict():
    log = from_obp(SYNTHETIC, task=USERS, context=["a", "b", "c"])
    out = to_obp(log, **ROLES, context=["a", "b", "c"])
    for name in ("n_rounds", "n_actions", "position"):
        assert out[name] == SYNTHETIC[name]
    for name in ("context", "action", "reward", "pscore", "action_context"):
        np.testing.assert_array_equal(out[name], SYNTHETIC[name])
    assert from_obp(out).equals(log.set_column(2, "reward", log["reward"].cast(pa.float64())))


def test_ids_of_actions_and_tasks_survive():
    log = pa.table(
        {"s": ["x", "y", "x"], "a": ["no", "yes", "yes"], "r": [1.0, 0.0, 2.0], "age": [1.0, 2.0, 3.0]}
    )
    out = to_obp(log, task="s", action="a", reward="r", context=["age"])
    assert out["pscore"] is None
    assert out["action"].tolist() == [0, 1, 1]
    assert out["action_ids"].tolist() == ["no", "yes"]
    assert from_obp(out).equals(log.rename_columns(["task", "action", "reward", "age"]))


@pytest.mark.slow
def test_the_policy_learned_on_a_dict_is_that_learned_on_the_one_written_from_it():
    """Also what the pipeline's estimators would be told of it: one action a round, in the pipeline's numbers."""
    context = [f"x{j}" for j in range(3)]
    first = from_obp(SYNTHETIC, task=USERS)
    out = to_obp(first, **ROLES, context=context)
    learners = [HierOPO().fit(log, **ROLES, context=context) for log in (first, from_obp(out))]
    dist = action_dist(learners[0].policy_, SYNTHETIC, task=USERS)
    np.testing.assert_array_equal(dist, action_dist(learners[1].policy_, out))
    assert dist.shape == (300, 4, 1)
    for row in (0, 17, 299):
        choice = learners[0].policy_.choose(USERS[row], SYNTHETIC["context"][row])
        np.testing.assert_array_equal(dist[row, :, 0], np.arange(4) == choice.action)


def half(part):
    """Feedback of the rounds in one half, and their tasks."""
    cut = {name: SYNTHETIC[name][part] for name in ("context", "action", "reward", "pscore")}
    return SYNTHETIC | cut | {"n_rounds": 150}, USERS[part]


@pytest.mark.slow
def test_the_value_of_a_policy_is_the_pipelines_ips():
    """Mean of pi(a | x) r / pscore over the dict, against what an evaluation makes of the log."""
    context = [f"x{j}" for j in range(3)]
    (first, users), (second, later) = half(slice(150)), half(slice(150, 300))
    learner = HierOPO().fit(from_obp(first, task=users), **ROLES, context=context)
    taken = action_dist(learner.policy_, second, task=later)[np.arange(150), second["action"], 0]
    found = learner.evaluate(from_obp(second, task=later)).estimate("IPS")
    np.testing.assert_allclose(found.value, np.mean(taken * second["reward"] / second["pscore"]), rtol=1e-12)


def test_action_context_is_a_table_for_an_embedding():
    log = from_obp(MEN, task="position")
    features = embedding(range(MEN["n_actions"]), MEN["action_context"][:, 3:])
    with pytest.warns(HieropoWarning, match="Only 13 of"):
        learner = HierOPO(features, task_cov="isotropic").fit(log, **ROLES)
    dist = action_dist(learner.policy_, MEN, task="position")
    assert dist.shape == (3000, 34, 3)
    np.testing.assert_array_equal(dist.sum(axis=1), 1.0)


def without(name):
    return {key: values for key, values in SYNTHETIC.items() if key != name}


@pytest.mark.parametrize(
    ("made", "task", "kind", "message"),
    [
        (without("action"), USERS, SchemaError, "entry 'action' is missing; the feedback has"),
        ({}, USERS, SchemaError, "'n_rounds' is missing; the feedback has none"),
        (SYNTHETIC | {"n_rounds": "300"}, USERS, SchemaError, "'n_rounds' is '300'; a whole number"),
        (SYNTHETIC, None, InputError, "no entry 'task', and the Open Bandit Pipeline knows no tasks"),
        (SYNTHETIC, "position", InputError, "no entry 'position'"),
        (SYNTHETIC, USERS[:9], MismatchError, "9 ids of tasks were handed over for 300 rounds"),
        (
            SYNTHETIC | {"reward": np.zeros(7)},
            USERS,
            SchemaError,
            r"'reward' has shape \(7,\), but n_rounds is 300",
        ),
        (SYNTHETIC | {"context": np.zeros(300)}, USERS, SchemaError, r"'context' has shape \(300,\)"),
        (SYNTHETIC | {"action": np.full(300, 4)}, USERS, LogError, "row 0: 4 is not between 0 and 3"),
        (SYNTHETIC | {"action": np.full(300, 0.5)}, USERS, SchemaError, "Continuous actions"),
        (SYNTHETIC | {"slate_id": USERS}, USERS, InputError, "slate feedback"),
        ((SYNTHETIC, SYNTHETIC), USERS, InputError, "is_timeseries_split"),
        (SYNTHETIC | {"task": np.array([None] * 300)}, None, LogError, "null|None"),
    ],
)
def test_what_is_no_such_feedback_is_refused(made, task, kind, message):
    with pytest.raises(kind, match=message):
        list(read(from_obp(made, task=task), Roles("task", "action", "reward")))


@pytest.mark.parametrize("names", [["a", "b"], ["a", "a", "b"], ["task", "b", "c"]])
def test_names_of_contexts_are_one_each(names):
    with pytest.raises(SchemaError, match=r"names were given|would share its name"):
        from_obp(SYNTHETIC, task=USERS, context=names)


def test_a_policy_of_other_actions_or_columns_is_refused():
    log = pa.table({"s": [1, 2, 1, 2], "a": [0, 1, 9, 1], "r": [1.0, 0.5, 0.0, 0.2]})
    learner = HierOPO(indicator([0, 1, 9]), task_cov="crossed").fit(log, task="s", action="a", reward="r")
    with pytest.raises(MismatchError, match="the action 9, which is not among the actions of the feedback"):
        action_dist(learner.policy_, SYNTHETIC, task=USERS)
