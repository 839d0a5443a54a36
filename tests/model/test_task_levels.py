"""Groups and metadata of tasks, from the columns of a log: what fits, what does not, and the learner that uses them."""

import datetime as dt
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from placed_log import ROLES, table

from hieropo import FlatOPO, HierOPO, InputError, LogError, SchemaError, load_policy
from hieropo.cli import main
from hieropo.logs.reading import read
from hieropo.model.task_levels import TaskLevels
from hieropo.rows.batches import Roles


def test_levels_and_metadata_are_read_from_the_log() -> None:
    log = table()
    roles = Roles(**ROLES, levels=("region", "store"), metadata=("size",))
    task_levels = TaskLevels(roles)
    for batch in read(log, roles, batch_rows=100):
        task_levels.add(batch)
    levels = task_levels.levels()
    assert list(levels) == ["store", "region"]
    assert levels["store"][13] == "s1"
    assert levels["region"]["s1"] == "north"
    assert len(levels["store"]) == 60
    metadata = task_levels.metadata()
    assert metadata is not None
    assert metadata.values[metadata.tasks.find(59), 0] == 1.0


@pytest.mark.slow
def test_a_learner_shares_strength_within_groups() -> None:
    log = table()
    learner = HierOPO().fit(log, **ROLES, levels=["region", "store"])
    names = [level.name for level in learner.hierarchy_.levels]
    assert names == ["store", "region"]
    b = learner.features_.names.index("b")
    assert learner.hierarchy_.central().levels[0].interaction_cov[0, 0] > 0.1
    group = learner.posterior_.node(0, "s3")
    fresh = learner.posterior_.new_task("s3")
    np.testing.assert_array_equal(fresh.mean, group.mean)
    assert fresh.cov[b, b] < learner.posterior_.new_task().cov[b, b]
    again = HierOPO().fit(log, **ROLES, levels=["region", "store", "user"])  # the task may close the list
    np.testing.assert_array_equal(again.posterior_.table().means, learner.posterior_.table().means)


def test_metadata_explain_what_they_can() -> None:
    log = table()
    plain = HierOPO(task_cov="diag").fit(log, **ROLES)
    known = HierOPO(task_cov="diag").fit(log, **ROLES, metadata=["size"])
    b = plain.features_.names.index("b")
    assert known.hierarchy_.task_cov[b, b] < 0.7 * plain.hierarchy_.task_cov[b, b]
    large, small = (known.posterior_.new_task(metadata=[size]).mean[b] for size in (1.0, -1.0))
    assert large - small == pytest.approx(4.0, abs=1.5)


@pytest.mark.slow
def test_more_rows_bring_more_groups() -> None:
    log = table()
    first, second = log.slice(0, 360), log.slice(360)
    columns = {"levels": ["store"], "metadata": ["size"]}
    grown = HierOPO().fit(first, **ROLES, **columns).partial_fit(second)
    whole = HierOPO().fit(log, **ROLES, **columns)
    np.testing.assert_allclose(grown.posterior_.table().means, whole.posterior_.table().means, atol=1e-6)
    with pytest.raises(SchemaError, match="fitted with the levels"):
        grown.partial_fit(second, levels=["region"])


def recentred(log: pa.Table, column: str, value: object) -> pa.Table:
    values = log[column].to_pylist()
    values[-1] = value
    return log.set_column(log.schema.get_field_index(column), column, pa.array(values))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (
            ("store", "s3"),
            LogError,
            "row 719: 59 of column 'user' is in 's3' here and in 's11' in an earlier row",
        ),
        (
            ("region", "north"),
            LogError,
            "row 719: 's11' of column 'store' is in 'north' here and in 'south'",
        ),
        (("size", 7.0), LogError, "row 719: 7.0 for task 59, and 1.0 in an earlier row"),
        (("size", float("nan")), LogError, "row 719: nan for task 59. Metadata are finite"),
        (("store", None), LogError, "Column 'store', row 719: null"),
    ],
)
def test_a_place_that_changes_is_named(change, error, says) -> None:
    log = recentred(table(), *change)
    with pytest.raises(error, match=says):
        HierOPO().fit(log, **ROLES, levels=["region", "store"], metadata=["size"])


@pytest.mark.parametrize(
    ("columns", "error", "says"),
    [
        ({"levels": "store"}, SchemaError, "levels is the bare string 'store'"),
        ({"levels": ["town"]}, SchemaError, "'town' \\(role level\\) is not in"),
        ({"metadata": ["store"]}, SchemaError, "cannot be a metadata: a number is needed"),
        ({"levels": ["offer"]}, SchemaError, "two roles, action and level"),
        ({"levels": ["store", "store"]}, SchemaError, "named twice"),
        ({"metadata": ["one"]}, InputError, "'one' has one value for all tasks"),
    ],
)
def test_columns_that_cannot_place_tasks_are_refused(columns, error, says) -> None:
    with pytest.raises(error, match=says):
        HierOPO().fit(table(one=pa.array(np.ones(720))), **ROLES, **columns)


def test_baselines_have_one_level() -> None:
    with pytest.raises(InputError, match="FlatOPO is a baseline"):
        FlatOPO().fit(table(), **ROLES, levels=["store"])


@pytest.mark.slow
def test_dates_group_too() -> None:
    day = pa.array([dt.date(2024, 1, 1 + s) for s in np.repeat(np.arange(60), 12) % 12])
    learner = HierOPO().fit(table(day=day), **ROLES, levels=["day"])
    assert len(set(learner.hierarchy_.levels[0].parent.values())) == 12


@pytest.mark.slow
def test_the_command_line_learns_groups_and_metadata(tmp_path) -> None:
    pq.write_table(table(), tmp_path / "log.parquet")
    command = ["fit", str(tmp_path / "log.parquet"), "-o", str(tmp_path / "policy"), "--task", "user"]
    command += ["--action", "offer", "--reward", "profit", "--levels", "region,store"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(main, ["inspect", str(tmp_path / "policy")])
    assert "store, sd" in shown.output
    assert "region, sd" in shown.output
    as_json = json.loads(CliRunner().invoke(main, ["inspect", str(tmp_path / "policy"), "--json"]).output)
    assert as_json["levels"] == ["store", "region"]
    stored = load_policy(tmp_path / "policy")
    assert stored.hierarchy.levels[0].parent[13] == "s1"
    assert stored.provenance["columns"]["levels"] == ["region", "store"]
