"""Tasks of several columns, and logs without a column of tasks."""

import datetime as dt
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from command_line import answers, make_log

from hieropo import (
    FlatOPO,
    HierOPO,
    LogMoments,
    OracleOPO,
    PooledOPO,
    SchemaError,
    UnknownTaskError,
    examine,
    load_learner,
    load_policy,
)  # fmt: skip

LOG = make_log()
CITIES = np.array(["Utrecht", "Nijmegen", "Delft", "Gouda"])
BRANCHES = np.array([3, 7])
PAIRS = LOG.append_column("city", pa.array(CITIES[np.asarray(LOG["store"]) // 2].tolist())).append_column(
    "branch", pa.array(BRANCHES[np.asarray(LOG["store"]) % 2])
)
COLUMNS = {"action": "offer", "reward": "profit", "pscore": "chance", "context": ["visits"]}
TASK = ["city", "branch"]


def pair(store: int) -> tuple[str, int]:
    return str(CITIES[store // 2]), int(BRANCHES[store % 2])


@pytest.fixture(scope="module")
def plain() -> HierOPO:
    return HierOPO().fit(LOG, task="store", **COLUMNS)


@pytest.fixture(scope="module")
def joint() -> HierOPO:
    return HierOPO().fit(PAIRS, task=TASK, **COLUMNS)


class TestSeveralColumns:
    @pytest.mark.slow
    def test_name_the_same_tasks_as_one_column_would(self, plain: HierOPO, joint: HierOPO) -> None:
        assert len(joint.moments_) == 8
        for store in range(8):
            first, second = plain.policy_.choose(store, [2.0]), joint.policy_.choose(pair(store), [2.0])
            assert second.action == first.action
            assert second.lower_bound == pytest.approx(first.lower_bound, rel=1e-9)

    def test_ids_come_back_as_they_were(self, joint: HierOPO) -> None:
        ids = joint.moments_.keys.values.tolist()
        assert sorted(ids) == sorted(pair(store) for store in range(8))
        assert {type(part) for key in ids for part in key} == {str, int}
        assert joint.roles_.task == ("city", "branch")
        assert "city, branch" in repr(joint.roles_).replace("'", "")

    def test_an_unknown_pair_is_named(self) -> None:
        policy = HierOPO(unseen="error").fit(PAIRS, task=TASK, **COLUMNS).policy_
        with pytest.raises(UnknownTaskError, match=r"Task \('Utrecht', 9\) is unknown; 8 tasks are known"):
            policy.choose(("Utrecht", 9), [2.0])

    @pytest.mark.slow
    def test_predictions_and_evaluations_know_the_pairs(self, plain: HierOPO, joint: HierOPO) -> None:
        assert joint.predict(PAIRS).tolist() == plain.predict(LOG).tolist()
        first, second = plain.evaluate(LOG, compare=False), joint.evaluate(PAIRS, compare=False)
        assert second.learned_from == "yes"
        assert second.estimate("DR").gain == pytest.approx(first.estimate("DR").gain, abs=1e-6)

    @pytest.mark.slow
    def test_tables_have_the_columns(self, joint: HierOPO) -> None:
        found = joint.evaluate(PAIRS, compare=False).per_task()
        assert found.columns[:3] == ("city", "branch", "rows")
        assert found.to_pandas().set_index(["city", "branch"]).loc[("Delft", 7), "rows"] > 0
        table = joint.coefficients()
        assert table.columns == ("city", "branch", "coefficient", "mean", "sd")
        assert len(table) == 8 * 6
        one, posterior = joint.coefficients(("Delft", 7)), joint.posterior_.task(("Delft", 7))
        assert np.allclose(one["mean"], posterior.mean)
        assert np.allclose(one["sd"], posterior.sd)
        assert one["coefficient"].tolist() == list(joint.features_.names)

    def test_are_saved_and_read_back(self, joint: HierOPO, tmp_path: Path) -> None:
        joint.save(tmp_path / "policy")
        stored = load_policy(tmp_path / "policy")
        assert stored.policy.choose(("Delft", 7), [2.0]) == joint.policy_.choose(("Delft", 7), [2.0])
        assert stored.provenance["columns"]["task"] == ["city", "branch"]
        learner = load_learner(tmp_path / "policy")
        assert learner.roles_ == joint.roles_
        again = learner.partial_fit(PAIRS)
        assert again.moments_.n_rows == 800
        assert len(again.moments_) == 8

    def test_moments_of_days_are_merged(self, joint: HierOPO, tmp_path: Path) -> None:
        columns = {"task": TASK, "action": "offer", "reward": "profit", "context": ["visits"]}
        parts = [LogMoments.of(PAIRS.slice(start, 200), **columns) for start in (0, 200)]
        (parts[0] + parts[1]).save(tmp_path / "moments")
        learner = HierOPO().fit(LogMoments.load(tmp_path / "moments"))
        assert (
            learner.policy_.choose(("Gouda", 3), [2.0]).action
            == joint.policy_.choose(("Gouda", 3), [2.0]).action
        )
        assert len(LogMoments.load(tmp_path / "moments").without([("Gouda", 3)])) == 7

    @pytest.mark.parametrize("column", [
        pa.array([dt.date(2026, 1, 1 + s % 3) for s in range(400)]),
        pa.array([s % 3 for s in range(400)], pa.uint8()),
        pa.array([dt.datetime(2026, 1, 1, s % 3) for s in range(400)], pa.timestamp("us")),
        pa.array([s % 3 == 1 for s in range(400)]),
        pa.array([f"x{s % 3}" for s in range(400)]).dictionary_encode(),
    ], ids=lambda column: str(column.type)[:9])  # fmt: skip
    def test_of_every_type(self, column: pa.Array, tmp_path: Path) -> None:
        log = LOG.append_column("part", column)
        learner = HierOPO().fit(log, task=("store", "part"), action="offer", reward="profit")
        expected = set(zip(log["store"].to_pylist(), log["part"].to_pylist(), strict=True))
        assert set(learner.moments_.keys.values.tolist()) == expected
        learner.save(tmp_path / "policy")
        keys = load_policy(tmp_path / "policy").policy.table.keys
        assert all(keys.find(key) >= 0 for key in expected)

    @pytest.mark.slow
    def test_a_level_may_be_one_of_them(self) -> None:
        learner = HierOPO().fit(PAIRS, task=TASK, levels=["city"], action="offer", reward="profit")
        assert (
            learner.predict(pa.table({"city": ["Delft"] * 2, "branch": [99, 3]})).tolist() == ["coupon"] * 2
        )

    def test_a_null_in_one_of_them_is_named_and_can_be_set_aside(self) -> None:
        city = pa.array([None if row == 5 else city for row, city in enumerate(PAIRS["city"].to_pylist())])
        torn = PAIRS.set_column(PAIRS.schema.get_field_index("city"), "city", city)
        with pytest.raises(Exception, match="Column 'city', row 5: null"):
            HierOPO().fit(torn, task=TASK, action="offer", reward="profit")
        with pytest.warns(match="1 of 400 rows"):
            learner = HierOPO().fit(torn, task=TASK, action="offer", reward="profit", lenient=True)
        assert learner.moments_.n_rows == 399
        assert examine(torn, task=TASK, action="offer", reward="profit").facts["rows"] == 400

    def test_a_column_that_is_not_there_is_named(self) -> None:
        with pytest.raises(SchemaError, match=r"Column 'town' \(role task\)"):
            HierOPO().fit(PAIRS, task=["town", "branch"], action="offer", reward="profit")
        with pytest.raises(SchemaError, match="Task column 'city' is named twice"):
            HierOPO().fit(PAIRS, task=["city", "city"], action="offer", reward="profit")

    def test_one_in_a_list_is_one_column(self, plain: HierOPO) -> None:
        assert HierOPO().fit(LOG, task=["store"], **COLUMNS).roles_ == plain.roles_

    def test_many_rows_are_read_in_place(self) -> None:
        log = pa.concat_tables([PAIRS] * 500)
        moments = LogMoments.of(log, task=TASK, action="offer", reward="profit").moments
        assert len(moments) == 8
        assert moments.n_rows == 200_000

    def test_in_a_frame(self) -> None:
        learner = HierOPO().fit(pl.from_arrow(PAIRS), task=TASK, action="offer", reward="profit")
        assert len(learner.moments_) == 8


class TestWithoutAColumn:
    def test_the_summary_and_a_finding_say_so(self) -> None:
        learner = HierOPO().fit(LOG, **COLUMNS)
        assert "No column of tasks is named" in str(learner.summary()).replace("\n", " ")
        (finding,) = [each for each in learner.findings_ if each.kind == "no task"]
        assert "A column of ids that is wrong in some rows can be the task" in str(finding).replace("\n", " ")
        assert "No column of tasks is named" not in str(
            HierOPO().fit(PAIRS, task=TASK, action="offer", reward="profit").summary()
        )

    @pytest.mark.slow
    @pytest.mark.parametrize("learner", [HierOPO(), FlatOPO(), PooledOPO(), OracleOPO([0.0] * 6)])
    def test_all_rows_are_one_task_in_every_learner(self, learner: HierOPO, tmp_path: Path) -> None:
        learner.fit(LOG, **COLUMNS)
        assert learner.moments_.keys.values.tolist() == ["all"]
        assert learner.roles_.task is None
        choice = learner.policy_.choose("all", [3.0])
        assert choice.action == "coupon"  # 1 + 0.5 * 3.5 of all stores, against 2
        assert learner.predict(LOG.select(["visits"])).tolist() == ["coupon"] * 400
        assert learner.evaluate(LOG).verdict == "shown"
        assert learner.coefficients().columns == ("coefficient", "mean", "sd")
        learner.save(tmp_path / "policy")
        assert load_policy(tmp_path / "policy").policy.choose("all", [3.0]) == choice
        assert load_learner(tmp_path / "policy").roles_.task is None

    @pytest.mark.slow
    def test_it_equals_a_column_with_one_id(self) -> None:
        one = LOG.append_column("one", pa.array(["all"] * 400))
        first = HierOPO().fit(LOG, **COLUMNS).posterior_.task("all")
        second = HierOPO().fit(one, task="one", **COLUMNS).posterior_.task("all")
        assert np.array_equal(first.mean, second.mean)

    def test_levels_need_a_task(self) -> None:
        with pytest.raises(
            SchemaError, match=r"\['store'\] are levels or metadata of tasks, and no column of tasks"
        ):
            HierOPO().fit(LOG, levels=["store"], action="offer", reward="profit")

    def test_an_examination_and_moments_do_without(self) -> None:
        found = examine(LOG.drop_columns(["store"]), action="offer", reward="profit")
        assert not found.stops
        assert any("all rows are one task" in guess for guess in found.guesses)
        assert LogMoments.of(LOG, action="offer", reward="profit").moments.n_rows == 400


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    pq.write_table(PAIRS.drop_columns(["store"]), folder / "log.parquet")
    requests = pa.table({"city": ["Delft", "Breda"], "branch": [7, 3], "visits": [3.0, 2.0]})
    pq.write_table(requests, folder / "requests.parquet")
    return folder


class TestOnTheCommandLine:
    def test_several_columns(self, shop: Path, tmp_path: Path) -> None:
        roles = ("--action", "offer", "--reward", "profit", "--context", "visits", "--pscore", "chance")
        policy, tasks = tmp_path / "policy", ("--task", "city", "--task", "branch")
        assert "of 8 tasks" in answers("fit", shop / "log.parquet", "-o", policy, *tasks, *roles)
        text = answers("inspect", policy, "--task", "Delft", "--task", "7")
        assert "Task ('Delft', 7) of" in text
        assert "--task Utrecht --task" in answers("inspect", policy) or "--task" in answers("inspect", policy)
        out = tmp_path / "decisions.parquet"
        answers("decide", policy, shop / "requests.parquet", "-o", out)
        decided = pq.read_table(out)
        assert decided.select(["city", "branch"]).to_pydict() == {
            "city": ["Delft", "Breda"],
            "branch": [7, 3],
        }
        assert decided.schema.field("branch").type == pa.int64()

    def test_no_column(self, shop: Path, tmp_path: Path) -> None:
        done = answers_with_notes(
            "fit", shop / "log.parquet", "-o", tmp_path / "p", "--action", "offer", "--reward", "profit"
        )
        assert "all rows are one task" in done
        out = tmp_path / "decisions.parquet"
        answers("decide", tmp_path / "p", shop / "requests.parquet", "-o", out)
        assert pq.read_table(out).column_names[:5] == ["row", "city", "branch", "visits", "action"]
        assert pc.unique(pq.read_table(out)["action"]).to_pylist() == ["coupon"]


def answers_with_notes(*words: object) -> str:
    from click.testing import CliRunner

    from hieropo.cli import main

    done = CliRunner().invoke(main, [str(word) for word in words], prog_name="hieropo")
    assert done.exit_code == 0, done.output
    return done.output
