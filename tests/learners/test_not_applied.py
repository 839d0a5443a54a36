"""Settings that a fit does not apply are refused, or told in the summary, on disk and by inspect."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from hieropo import Gaussian, HierOPO, InputError, LogMoments, load_learner
from hieropo.cli import main
from hieropo.errors import HieropoWarning
from hieropo.estimation.crossed.kinds import kinds_out_of_reach
from hieropo.estimation.crossed.spreads import spreads_out_of_reach
from hieropo.learners import in_shards
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.passes.sharded import ShardedMoments

ROLES: dict[str, Any] = {"task": "store", "action": "offer", "reward": "profit"}


def log(tasks: int = 12, rows: int = 12) -> pa.Table:
    """Return a log of sessions of three rows, the offer of a session drawn once."""
    rng = np.random.default_rng(4)
    store = np.repeat(np.arange(tasks), rows)
    session = np.arange(store.size) // 3
    offer = rng.integers(0, 3, session.max() + 1)[session]
    effect = rng.normal(size=(tasks, 3))
    return pa.table(
        {
            "store": store, "region": store % 3, "offer": offer, "session": session,
            "visits": rng.normal(size=store.size),
            "profit": effect[store, offer] + rng.normal(size=store.size), "kept": np.ones(store.size),
            "age": rng.random(store.size),
        }
    )  # fmt: skip


def note(learner: HierOPO) -> str:
    return learner.summary(models=False).note


def sharded(path: Path, table: pa.Table, **roles: Any) -> Path:
    ShardedMoments.of(LogMoments.of(table, features="indicator", **ROLES, **roles), path, shards=4)
    return path


def test_a_log_with_too_many_tasks_says_that_spreads_were_not_looked_for(tmp_path: Path) -> None:
    learner = HierOPO(logging="random").fit(log(1_001, 6), **ROLES)
    words = "unusually large effects or none: the search needs 8 to 1,000 tasks with rows, and this log has 1,001."
    assert words in note(learner)
    saved = learner.save(tmp_path / "policy")
    assert words in note(load_learner(saved))
    shown = CliRunner().invoke(main, ["inspect", str(saved)])
    assert words in " ".join(shown.output.split())
    of_kinds = "The fit did not look for kinds of tasks: the search needs 8 to 300 tasks with rows, and this log has "
    assert of_kinds in note(learner)
    assert note(HierOPO(logging="random", spreads="one").fit(log(1_001, 6), **ROLES)) == f"{of_kinds}1,001."
    of_one = HierOPO(logging="random", spreads="one", task_kinds="one")
    assert note(of_one.fit(log(1_001, 6), **ROLES)) == ""
    assert note(HierOPO(logging="random").fit(log(), **ROLES)) == ""
    assert note(HierOPO(logging="random").fit(log(1, 30), **{**ROLES, "task": None})).count("look for") == 0
    wide: Any = SimpleNamespace(n_actions=10, unit_dim=4, rows=np.ones((700, 10)))
    assert "at most 31 coefficients" in spreads_out_of_reach(wide)
    assert "too many coefficients" in kinds_out_of_reach(
        SimpleNamespace(**{**vars(wide), "rows": np.ones((30, 10))})
    )
    grouped = HierOPO(logging="random").fit(log(), **ROLES, levels=["region"])
    words = "unusually large effects or none, nor for kinds of tasks: tasks have groups or metadata."
    assert words in note(grouped)
    grouped = HierOPO(logging="random", spreads="one").fit(log(), **ROLES, levels=["region"])
    assert note(grouped) == "The fit did not look for kinds of tasks: tasks have groups or metadata."


def test_shards_say_which_settings_they_do_not_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_shards, "JOINED", 0)
    place = sharded(tmp_path / "s", log(40), cluster="session")
    learner = HierOPO().fit(place)
    for words in (
        "unusually large effects or none, nor for kinds of tasks: the fit is from moments in shards.",
        "did not test whether the incumbent knew something about the tasks: the fit is from moments in shards.",
        "takes the correlation within clusters at its mode: the fit is from moments in shards.",
    ):
        assert words in note(learner)
    shown = CliRunner().invoke(main, ["inspect", str(learner.save(tmp_path / "policy"))])
    assert "unusually large effects or none, nor for kinds of tasks:" in " ".join(shown.output.split())


def test_a_correlation_at_its_mode_is_said_with_the_reason() -> None:
    roles = {**ROLES, "cluster": "session"}
    mode = "takes the correlation within clusters at its mode:"
    assert mode not in note(HierOPO(logging="random").fit(log(), **roles))
    with pytest.warns(HieropoWarning, match="task_kinds=2 is not used"):
        kinds = note(HierOPO(logging="random", task_kinds=2).fit(log(), **roles, levels=["region"]))
    assert f"{mode} tasks have groups or metadata." in kinds
    varied = note(HierOPO(logging="random").fit(log(), **roles, context=["visits"]))
    assert f"{mode} rows of one cluster have different features or actions." in varied
    assert f"{mode} tasks have groups or metadata." in note(
        HierOPO(logging="random").fit(log(), **roles, levels=["region"])
    )


def test_kinds_of_tasks_keep_the_correlation_at_its_mode() -> None:
    rng = np.random.default_rng(2)
    store = np.repeat(np.arange(18), 30)
    offer = rng.integers(0, 3, store.size // 3).repeat(3)
    pays = np.array([[2.0, 0.0, -2.0], [-2.0, 2.0, 0.0], [0.0, -2.0, 2.0]])
    table = pa.table({
        "store": store, "offer": offer, "session": np.arange(store.size) // 3,
        "profit": pays[store % 3, offer] + rng.standard_normal(store.size),
    })  # fmt: skip
    learner = HierOPO(logging="random").fit(table, **ROLES, cluster="session")
    assert learner.posterior_.task_kinds is not None
    assert "takes the correlation within clusters at its mode: tasks are of several kinds." in note(learner)


def test_drift_that_sums_cannot_show_is_still_said_by_a_loaded_learner(tmp_path: Path) -> None:
    made = LogMoments.of(log(), features="indicator", **ROLES, time="visits")
    learner = HierOPO(logging="random").fit(made)
    assert "moments hold no times" in note(learner)
    loaded = load_learner(learner.save(tmp_path / "policy"))
    assert note(loaded).count("moments hold no times") == 1
    assert note(load_learner(loaded.save(tmp_path / "again"))).count("moments hold no times") == 1


@pytest.mark.parametrize(
    ("settings", "roles"),
    [
        ({"task_cov": "block"}, {}),
        ({"hyper": Gaussian(np.zeros(3), np.eye(3))}, {}),
        ({"uncertainty": "plug-in"}, {}),
        ({}, {"sampling_weight": "kept"}),
        ({"features": "columns"}, {"action": None, "context": ["visits"]}),
        ({"known": CrossedHierarchy(*np.ones((3, 1, 1)), np.ones(3))}, {}),
    ],
)
def test_a_number_of_kinds_without_a_model_that_has_them_is_refused(
    settings: dict[str, Any], roles: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=r"task_kinds=2 has no effect with"):
        HierOPO(logging="random", task_kinds=2, **settings).fit(log(), **{**ROLES, **roles})
