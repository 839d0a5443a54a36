"""Summaries of the population: the numbers behind the table, the verdict, the words."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from scipy.stats import chi2

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
    found = HierOPO(task_cov="block").fit(log(0), **ROLES).summary()
    assert (found.tasks, found.rows, found.levels) == (80, 1600, ())
    a, b = found.coefficients
    assert (a.name, b.name) == ("a", "b")
    for each, mean in ((a, 1.0), (b, -1.0)):
        assert each.mean.lower < mean < each.mean.upper
        assert each.between.lower < 0.5 < each.between.upper
        assert each.mean.lower < each.mean.value < each.mean.upper
    assert found.noise_sd.lower < 0.7 < found.noise_sd.upper
    table = found.table()
    assert table.columns[:4] == ("coefficient", "mean", "mean_low", "mean_high")
    assert table["mean"].tolist() == [a.mean.value, b.mean.value]
    assert table.to_pandas().set_index("coefficient").loc["a", "between_tasks_sd_high"] == a.between.upper
    # an action comes in half of the rows: .49 / (.25 / 2) rows weigh as much as the population
    assert a.rows == pytest.approx(0.49 / 0.125, rel=0.6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_parts_of_the_crossed_prior_are_those_of_the_population(seed: int) -> None:
    """Actions are 1 and -1, and each varies between tasks by .5 on its own: no level, and all of it interaction."""
    learner = HierOPO().fit(log(seed), **ROLES)
    found = learner.summary()
    assert (found.tasks, found.rows, found.levels, found.models) == (80, 1600, (), ())
    for each, name, mean in zip(found.coefficients, "ab", (1.0, -1.0), strict=True):
        assert each.name == name
        assert each.mean.lower < mean < each.mean.upper
        assert each.mean.upper - each.mean.lower < 0.35
        assert each.between.value == pytest.approx(0.5, rel=0.25)
        assert each.between.upper is None
    level, action, interaction = found.parts
    assert level.zero is None  # a level always differs a little
    assert level.sd.lower < 0.25
    assert action.zero < 0.01
    assert 0.3 < action.sd.lower < 1.5 < action.sd.upper
    assert interaction.zero == learner.hierarchy_.no_interaction < 0.01
    assert interaction.sd.value == pytest.approx(0.5, abs=0.12)
    for part in found.parts:
        assert part.sd.lower <= part.sd.value <= part.sd.upper


def test_the_noise_of_the_crossed_prior_is_known_as_well_as_the_rows_tell_it() -> None:
    """Its interval is as wide as that of an sd from as many degrees of freedom as rows leave, or wider."""
    found = HierOPO().fit(log(0), **ROLES).summary()
    assert found.noise_sd.lower < 0.7 < found.noise_sd.upper
    width = np.log(found.noise_sd.upper / found.noise_sd.lower)
    assert width > 0.9 * 2 * 1.96 / np.sqrt(2 * (1600 - 160))


@pytest.mark.slow
def test_intervals_of_the_parts_of_the_crossed_prior_hold() -> None:
    """Fewer than 15 of 20 hold with probability .0003 if each does with .95."""
    held = np.zeros(4, dtype=int)
    for seed in range(20):
        rng = np.random.default_rng(500 + seed)
        effects = 0.4 * rng.standard_normal(4) + 0.5 * rng.standard_normal((60, 1))
        theta = effects + 0.5 * rng.standard_normal((60, 4))
        task, action = np.repeat(np.arange(60), 20), rng.choice(4, 1200, p=[0.4, 0.3, 0.2, 0.1])
        reward = theta[task, action] + rng.standard_normal(1200)
        rows = pa.table({"task": task, "action": np.array(list("abcd"))[action], "reward": reward})
        found = HierOPO(logging="random").fit(rows, **ROLES).summary()
        ranges = (found.noise_sd, *(part.sd for part in found.parts))
        truths = (1.0, 0.5, 0.4, 0.5)  # noise, level, action, interaction
        held += [each.lower < truth < each.upper for each, truth in zip(ranges, truths, strict=True)]
    assert (held >= 15).all(), held


def test_rows_of_the_crossed_prior_are_by_the_formula_of_the_field() -> None:
    """Rows of a task are of all its actions: a coefficient of one action is told by its share of them."""
    learner = HierOPO().fit(log(1), **ROLES)
    for k, (each, name) in enumerate(zip(learner.summary().coefficients, "ab", strict=True)):
        share = np.mean(np.array(log(1)["action"]) == name)
        noise_var = learner.hierarchy_.central().noise_var[k]
        assert each.rows == pytest.approx(noise_var / (each.between.value**2 * share), rel=1e-6)


def test_as_many_rows_as_it_says_make_a_task_count_half() -> None:
    learner = HierOPO(task_cov="diag", uncertainty="plug-in").fit(log(1), **ROLES)
    need = learner.summary(models=False).coefficients[0].rows
    cov, noise_var = learner.hierarchy_.task_cov[0, 0], learner.hierarchy_.noise_var
    share = np.mean(np.array(log(1)["action"]) == "a")
    own = need * share / noise_var
    assert own * cov == pytest.approx(
        1.0, rel=1e-9
    )  # shrunken half way between its own mean and the population's


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "best", "says"),
    [
        ({"sd": 0.5}, {"isotropic", "diag"}, "sharing pays"),
        ({"sd": 0.0}, {"pooled"}, "one policy for all"),
        ({"mean": 0.0, "sd": 2.0, "rows": 60}, {"separate", "isotropic"}, "separate policies may do as well"),
    ],
)
def test_the_verdict_is_what_the_log_was_made_of(made, best, says) -> None:
    found = HierOPO(task_cov="block").fit(log(2, **made), **ROLES).summary()
    assert found.models[0].name in best
    assert says in found.verdict
    evidence = [model.evidence for model in found.models]
    assert evidence == sorted(evidence, reverse=True)
    assert {model.name for model in found.models} == {"separate", "pooled", "isotropic", "diag", "full"}
    for model in found.models:
        assert model.evidence == pytest.approx(model.log_likelihood - model.parameters * np.log(80) / 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "says", "parts"),
    [
        ({}, "these effects vary between tasks: a policy for each task can pay", "101"),
        ({"sd": 0.0}, "The log does not show that these effects vary between tasks, so one action", "110"),
        ({"mean": 0.0, "sd": 0.0}, "The log shows no effect of actions", "100"),
        ({"tasks": 3, "rows": 4, "mean": 0.2}, "does not settle", "???"),
    ],
)
def test_the_verdict_of_the_crossed_prior_is_what_the_log_was_made_of(made, says, parts) -> None:
    learner = HierOPO().fit(log(2, **made), **ROLES)
    found = learner.summary()
    assert says in found.verdict
    assert found.models == ()
    hierarchies = learner.hierarchy_
    level, action, interaction = (part.zero for part in found.parts)
    assert (level, action, interaction) == (None, hierarchies.no_action_effect, hierarchies.no_interaction)
    if parts == "100":
        assert min(action, interaction, hierarchies.no_effect) > 0.8
        assert f"{hierarchies.no_effect:.2g}" in found.verdict
    elif parts == "110":
        assert action < 0.05
        assert interaction > 0.8
    elif parts == "101":
        assert interaction < 0.05


@pytest.mark.slow
def test_groups_and_parts_have_columns_of_their_own() -> None:
    table = log(3)
    group = pa.array([f"g{k % 8}" for k in table["task"].to_pylist()])
    grouped = (
        HierOPO(task_cov="diag").fit(table.append_column("group", group), **ROLES, levels=["group"]).summary()
    )
    assert grouped.levels == ("group",)
    assert grouped.coefficients[0].levels[0].upper is not None
    assert grouped.parts == ()
    crossed = HierOPO(task_cov="crossed").fit(table, **ROLES).summary()
    assert crossed.levels == ()
    names = ("level of a task", "effect of an action in all tasks", "effect of an action in one task")
    assert tuple(part.name for part in crossed.parts) == names
    text = str(crossed)
    for words in (*names, "P(zero)", "80 tasks", "95 % intervals", "rows to outweigh", "learning"):
        assert words in text
    assert "evidence" not in text
    whole = json.loads(json.dumps(crossed.to_dict(), allow_nan=False))
    assert whole["parts"][2] == {
        "name": names[2],
        "sd": {"value": crossed.parts[2].sd.value, "lower": crossed.parts[2].sd.lower,
               "upper": crossed.parts[2].sd.upper},
        "zero": crossed.parts[2].zero, "integrated": True,
    }  # fmt: skip
    assert crossed.verdict == HierOPO().fit(table, **ROLES).summary().verdict  # which is the default


def test_it_reads_as_text_and_as_json() -> None:
    found = HierOPO(task_cov="block").fit(log(4), **ROLES).summary(level=0.8)
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
    with pytest.raises(InputError, match=r"no estimated hierarchy.*Fit HierOPO"):
        PooledOPO().fit(log(5), **ROLES).summary()
    with pytest.raises(InputError, match="not a probability"):
        HierOPO().fit(log(5), **ROLES).summary(level=95)


def test_one_task_has_no_likeness() -> None:
    one = log(6, tasks=1)
    with pytest.warns(UserWarning, match="one task"):
        found = HierOPO(task_cov="block").fit(one, **ROLES).summary()
    assert found.tasks == 1
    assert found.coefficients[0].rows == np.inf
    assert "never" in str(found)


def test_one_task_is_warned_about_by_default_too() -> None:
    with pytest.warns(UserWarning, match="one task"):
        HierOPO().fit(log(6, tasks=1), **ROLES)


@pytest.mark.slow
def test_the_command_line_says_it_after_a_fit(tmp_path) -> None:
    pq.write_table(log(7), tmp_path / "log.parquet")
    command = ["fit", str(tmp_path / "log.parquet"), "-o", str(tmp_path / "policy")]
    command += ["--task", "task", "--action", "action", "--reward", "reward"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert "Variation between 80 tasks" in done.output
    assert "effect of an action in one task" in done.output
    assert "a policy for each task can pay" in " ".join(done.output.split())
    as_json = json.loads(CliRunner().invoke(main, [*command, "--json"]).output)
    assert as_json["summary"]["tasks"] == 80
    level, *effects = as_json["summary"]["parts"]
    assert level["zero"] is None
    assert [part["zero"] < 0.01 for part in effects] == [True] * 2
    done = CliRunner().invoke(main, [*command, "--task-cov", "block"])
    assert done.exit_code == 0, done.output
    assert "sharing pays" in done.output


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tasks", [30, 100])
def test_the_interval_of_the_level_is_as_wide_as_that_of_means_of_tasks(tasks: int, seed: int) -> None:
    rng, rows = np.random.default_rng(seed), 40
    task, action = np.repeat(np.arange(tasks), rows), rng.integers(2, size=tasks * rows)
    net = rng.normal(0, 0.5, tasks)[task] + rng.normal(0, 1, task.size)
    table = pa.table({"task": task, "action": action, "reward": net + 0.3 * action})
    part = HierOPO().fit(table, **ROLES).summary().parts[0]
    between = np.var(net.reshape(tasks, rows).mean(axis=1)) * tasks
    lower, upper = (np.sqrt(between / chi2.ppf(p, tasks - 1) - 1 / rows) for p in (0.975, 0.025))
    assert lower < part.sd.value < upper
    assert (part.sd.lower, part.sd.upper) == pytest.approx((lower, upper), rel=0.2)
