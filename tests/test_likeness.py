"""How alike tasks are: the numbers behind the table, the verdict, the words."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from hieropo import HierOPO, InputError, PooledOPO
from hieropo.cli import main

ROLES = {"task": "task", "action": "action", "reward": "reward"}


def log(
    seed: int, *, mean: float = 1.0, sd: float = 0.5, tasks: int = 80, rows: int = 20, noise: float = 0.7
) -> pa.Table:
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(tasks), rows)
    action = rng.integers(2, size=task.size)
    theta = mean * np.array([1.0, -1.0]) + sd * rng.standard_normal((tasks, 2))
    reward = theta[task, action] + noise * rng.standard_normal(task.size)
    return pa.table({"task": task, "action": np.array(["a", "b"])[action], "reward": reward})


def test_the_numbers_are_those_of_the_population() -> None:
    found = HierOPO().fit(log(0), **ROLES).summary()
    assert (found.tasks, found.rows, found.levels) == (80, 1600, ())
    a, b = found.coefficients
    assert (a.name, b.name) == ("a", "b")
    for each, mean in ((a, 1.0), (b, -1.0)):
        assert each.mean.lower < mean < each.mean.upper
        assert each.between.lower < 0.5 < each.between.upper
        assert each.mean.lower < each.mean.value < each.mean.upper
    assert found.noise_sd.lower < 0.7 < found.noise_sd.upper
    # an action comes in half of the rows: .49 / (.25 / 2) rows weigh as much as the population
    assert a.rows == pytest.approx(0.49 / 0.125, rel=0.6)


def test_as_many_rows_as_it_says_make_a_task_count_half() -> None:
    learner = HierOPO(task_cov="diag", uncertainty="plug-in").fit(log(1), **ROLES)
    need = learner.summary(models=False).coefficients[0].rows
    cov, noise_var = learner.hierarchy_.task_cov[0, 0], learner.hierarchy_.noise_var
    share = np.mean(np.array(log(1)["action"]) == "a")
    own = need * share / noise_var
    assert own * cov == pytest.approx(
        1.0, rel=1e-9
    )  # shrunken half way between its own mean and the population's


@pytest.mark.parametrize(
    ("made", "best", "says"),
    [
        ({"sd": 0.5}, {"isotropic", "diag"}, "sharing pays"),
        ({"sd": 0.0}, {"pooled"}, "one answer for all"),
        ({"mean": 0.0, "sd": 2.0, "rows": 60}, {"separate", "isotropic"}, "each could be taken alone"),
    ],
)
def test_the_verdict_is_what_the_log_was_made_of(made, best, says) -> None:
    found = HierOPO().fit(log(2, **made), **ROLES).summary()
    assert found.models[0].name in best
    assert says in found.verdict
    evidence = [model.evidence for model in found.models]
    assert evidence == sorted(evidence, reverse=True)
    assert {model.name for model in found.models} == {"separate", "pooled", "isotropic", "diag", "full"}
    for model in found.models:
        assert model.evidence == pytest.approx(model.log_likelihood - model.parameters * np.log(80) / 2)


def test_groups_and_shared_actions_have_columns_of_their_own() -> None:
    table = log(3)
    group = pa.array([f"g{k % 8}" for k in table["task"].to_pylist()])
    grouped = HierOPO().fit(table.append_column("group", group), **ROLES, levels=["group"]).summary()
    assert grouped.levels == ("group",)
    assert grouped.coefficients[0].levels[0].upper is not None
    shared = HierOPO(hyper="shared").fit(table, **ROLES).summary()
    assert shared.levels == ("between actions",)
    (only,) = shared.coefficients
    assert only.name == "intercept"
    assert only.levels[0].value > 0.5
    assert "between actions" in str(shared)


def test_it_reads_as_text_and_as_json() -> None:
    found = HierOPO().fit(log(4), **ROLES).summary(level=0.8)
    text = str(found)
    for words in ("80 tasks", "80 % intervals", "rows to outweigh", "evidence", "learning"):
        assert words in text
    whole = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert whole["coefficients"][0]["between"]["value"] == found.coefficients[0].between.value
    equal = HierOPO(uncertainty="plug-in").fit(log(4, sd=0.0), **ROLES).summary(models=False)
    assert equal.models == ()
    assert json.dumps(equal.to_dict(), allow_nan=False)


def test_without_learning_there_is_nothing_to_summarise() -> None:
    with pytest.raises(InputError, match="not fitted"):
        HierOPO().summary()
    with pytest.raises(InputError, match="nothing learned"):
        PooledOPO().fit(log(5), **ROLES).summary()
    with pytest.raises(InputError, match="not a probability"):
        HierOPO().fit(log(5), **ROLES).summary(level=95)


def test_one_task_has_no_likeness() -> None:
    one = log(6, tasks=1)
    with pytest.warns(UserWarning, match="one task"):
        found = HierOPO().fit(one, **ROLES).summary()
    assert found.tasks == 1
    assert found.coefficients[0].rows == np.inf
    assert "never" in str(found)


def test_the_command_line_says_it_after_a_fit(tmp_path) -> None:
    pq.write_table(log(7), tmp_path / "log.parquet")
    command = ["fit", str(tmp_path / "log.parquet"), "-o", str(tmp_path / "policy")]
    command += ["--task", "task", "--action", "action", "--reward", "reward"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert "How alike 80 tasks are" in done.output
    assert "sharing pays" in done.output
    as_json = json.loads(CliRunner().invoke(main, [*command, "--json"]).output)
    assert as_json["summary"]["tasks"] == 80
