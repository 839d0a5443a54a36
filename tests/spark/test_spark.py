"""Sums and decisions on Spark, with real workers on local[2]: those of one machine."""

import json
import os
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from cluster_tables import check_same_clusters
from spark_sessions import COLUMNS, CONTEXT, MARKS, TABLE, check_equal, session, skip_without_spark

from hieropo import HierOPO, LogMoments
from hieropo.doctor import examine
from hieropo.errors import ArtifactError, HieropoWarning, InputError, LogError, SchemaError
from hieropo.features.maps import per_action
from hieropo.passes.sharded import ShardedMoments
from hieropo.rows.task_hash import shards_of

skip_without_spark()
pytestmark = MARKS


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with session("local[2, 3]") as started:
        yield started


@pytest.fixture(scope="module")
def frame(spark: Any) -> Any:
    return spark.createDataFrame(TABLE).repartition(2).cache()


@pytest.mark.parametrize("how", ["rows", "partitions"])
def test_a_frame_gives_the_sums_and_the_policy_of_one_machine(frame: Any, tmp_path: Path, how: Any) -> None:
    import hieropo.spark

    sharded = hieropo.spark.moments(frame, out=tmp_path / "shards", shards=4, how=how, **CONTEXT)
    expected = LogMoments.of(TABLE, **CONTEXT)
    check_equal(sharded.joined(), expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shards"]
    for k, shard in enumerate(sharded.shards()):
        assert (shards_of(shard.tasks, 4) == k).all()
    learner = HierOPO().fit(sharded)
    learner.save(tmp_path / "policy")
    requests = frame.select("store", "visits", "stamp")
    decided = hieropo.spark.decide(requests, tmp_path / "policy", id=["store", "visits"]).toArrow()
    wanted = HierOPO().fit(expected).decide(TABLE, id=["store", "visits"])
    assert decided.column_names == wanted.table.column_names
    names = ("visits", "store", "action")
    rows = [
        sorted(zip(*(table[name].to_pylist() for name in names), strict=True))
        for table in (decided, wanted.table)
    ]
    assert rows[0] == rows[1]


def test_a_frame_is_shuffled_where_partial_sums_have_more_bytes_than_its_rows(
    spark: Any, tmp_path: Path
) -> None:
    import hieropo.spark

    for tasks, way in ((3, "partitions"), (2000, "rows")):
        numbers = np.arange(4000)
        table = pa.table({"store": numbers % tasks, "size": numbers % 7 / 7.0, "profit": numbers % 11 / 11.0})
        given: Any = {"task": "store", "reward": "profit", "context": ["size"]}
        sharded = hieropo.spark.moments(spark.createDataFrame(table), out=tmp_path / way, shards=64, **given)
        assert sharded.provenance["how"] == way
        check_equal(sharded.joined(), LogMoments.of(table, **given))


def test_all_roles_and_a_task_of_several_columns(frame: Any, tmp_path: Path) -> None:
    import hieropo.spark

    given = {**CONTEXT, "task": ["name", "opened"], "weight": "weight", "precision": "precision"}
    check_equal(
        hieropo.spark.moments(frame, out=tmp_path / "a", shards=2, **given).joined(),
        LogMoments.of(TABLE, **given),
    )
    given = {
        **COLUMNS,
        "task": "opened",
        "features": LogMoments.of(TABLE, features="device", **COLUMNS).features,
    }
    check_equal(
        hieropo.spark.moments(frame, out=tmp_path / "b", shards=2, **given).joined(),
        LogMoments.of(TABLE, **given),
    )


@pytest.mark.parametrize("way", ["rows", "partitions", "files"])
def test_clusters_that_files_and_partitions_share_have_the_sums_of_one_machine(
    spark: Any, tmp_path: Path, way: str
) -> None:
    import hieropo.spark

    rng = np.random.default_rng(8)
    store = (TABLE["store"].to_numpy() + 5) // 2**33
    offer = np.unique(TABLE["offer"].to_numpy(), return_inverse=True)[1]
    visit = (store // 2 * 3 + offer) * 2 + rng.integers(
        2, size=600
    )  # of two stores, in all files and partitions
    profit = TABLE["profit"].to_numpy() + 2.0 * rng.normal(size=visit.max() + 1)[visit]
    table = TABLE.set_column(TABLE.column_names.index("profit"), "profit", pa.array(profit))
    table = table.append_column("visit", pa.array([f"visit {k} é" for k in visit]))
    given = {**CONTEXT, "cluster": "visit", "weight": "weight"}
    (tmp_path / "log").mkdir()
    for k in range(4):
        pq.write_table(table.slice(150 * k, 150), tmp_path / "log" / f"{k}.parquet")
    rows = tmp_path / "log" if way == "files" else spark.createDataFrame(table).repartition(3)
    made = hieropo.spark.moments(rows, out=tmp_path / "out", shards=32, spark=spark, how=way, **given)
    assert min(made.sums().shard_tasks) == 0  # a shard without a row has no clusters
    mine, expected = made.joined().at_final_origin(), LogMoments.of(table, **given)
    check_equal(mine, expected)
    assert mine.summed.clusters is not None
    assert expected.summed.clusters is not None
    check_same_clusters(mine.summed.clusters, expected.summed.clusters)
    settings: Any = {"known": HierOPO().fit(expected).hierarchy_.central()}
    fitted, plain = (HierOPO(**settings).fit(some) for some in (made, expected))
    assert plain.cluster_correlation_.any()
    np.testing.assert_allclose(fitted.cluster_correlation_, plain.cluster_correlation_, rtol=1e-9)


def test_a_cluster_that_is_missing_is_told_or_set_aside(spark: Any, tmp_path: Path) -> None:
    import hieropo.spark

    visit = pa.array([None if k == 37 else k // 5 for k in range(600)], pa.int64())
    table = TABLE.append_column("visit", visit)
    rows, given = spark.createDataFrame(table), {**CONTEXT, "cluster": "visit"}
    with pytest.raises(LogError, match=r"^Column 'visit', row \d+: .* In shuffled part \d"):
        hieropo.spark.moments(rows, out=tmp_path / "x", shards=2, how="rows", **given)
    with pytest.warns(HieropoWarning):
        made = hieropo.spark.moments(rows, out=tmp_path / "out", shards=2, lenient=True, **given)
    assert made.provenance["how"] == "rows"
    clusters = made.joined().summed.clusters
    assert clusters is not None
    assert clusters.sums[:, -1].sum() == made.n_rows == 599


def test_the_hash_of_expressions_is_that_of_the_files(spark: Any) -> None:
    from hieropo.spark.hashing import SHARD, with_shards

    rng = np.random.default_rng(0)
    wide = np.concatenate(
        [rng.integers(-(2**63), 2**63 - 1, size=50), [0, 1, -1, 2**32, 2**63 - 1, -(2**63)]]
    )
    columns = {
        "wide": pa.array(wide),
        "small": pa.array(wide.astype(np.int16)),
        "text": pa.array([f"é {k} \U0001f600" for k in wide]),
        "bytes": pa.array([str(k).encode() for k in wide]),
    }
    table = spark.createDataFrame(pa.table(columns))
    for name in columns:
        table = with_shards(table, [name], 1024).withColumnRenamed(SHARD, f"shard of {name}")
    hashed = table.toArrow()
    for name in columns:
        ids = (
            hashed[name].to_numpy()
            if name in ("wide", "small")
            else np.array(hashed[name].to_pylist(), dtype=object)
        )
        assert hashed[f"shard of {name}"].to_pylist() == shards_of(ids, 1024).tolist()


def test_workers_read_files_in_groups(spark: Any, tmp_path: Path) -> None:
    import hieropo.spark

    (tmp_path / "log").mkdir()
    for k in range(5):
        pq.write_table(TABLE.slice(120 * k, 120), tmp_path / "log" / f"{k}.parquet")
    given = {**CONTEXT, "levels": ["region"], "metadata": ["size"]}
    sharded = hieropo.spark.moments(
        tmp_path / "log", out=tmp_path / "shards", shards=4, spark=spark, groups=3, **given
    )
    check_equal(sharded.joined(), LogMoments.of(TABLE, **given))
    assert sharded.sketch.rows == 600
    one = [sharded.shard(k).moments.sums.tobytes() for k in range(4)]
    again = hieropo.spark.moments(
        tmp_path / "log", out=tmp_path / "again", shards=4, spark=spark, groups=3, **given
    )
    assert [again.shard(k).moments.sums.tobytes() for k in range(4)] == one


def test_the_text_of_sums_runs_on_spark(spark: Any, frame: Any) -> None:
    frame.createOrReplaceTempView("log")
    terms = LogMoments.of(TABLE, features="device + visits + stamp", **COLUMNS).features.terms
    given = {**COLUMNS, "features": terms, "precision": "precision", "levels": ["region"]}
    text = LogMoments.sums_sql("select * from log", "spark", **given)
    mine, expected = LogMoments.from_sums(spark.sql(text).toArrow()), LogMoments.of(TABLE, **given)
    check_equal(mine, expected)
    given = {**CONTEXT, "task": "device", "cluster": "name"}
    text = LogMoments.sums_sql("select * from log", "spark", **given)
    mine, expected = LogMoments.from_sums(spark.sql(text).toArrow()), LogMoments.of(TABLE, **given)
    check_equal(mine, expected)
    assert mine.summed.clusters is not None
    assert expected.summed.clusters is not None
    check_same_clusters(mine.summed.clusters, expected.summed.clusters)


def test_a_worker_that_is_killed_changes_nothing(frame: Any, tmp_path: Path) -> None:
    import hieropo.spark

    mark = str(tmp_path / "killed")

    def dies_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not os.path.exists(mark):  # noqa: PTH110 - shipped to workers by value
            with open(mark, "w"):  # noqa: PTH123
                os._exit(1)

    dying = frame.mapInArrow(dies_once, frame.schema)
    features = per_action(["coupon", "gift", "none"], ["visits", "stamp"])
    sharded = hieropo.spark.moments(dying, out=tmp_path / "shards", shards=2, features=features, **CONTEXT)
    assert Path(mark).exists()
    check_equal(sharded.joined(), LogMoments.of(TABLE, features=features, **CONTEXT))


def test_bad_rows_are_told_without_a_java_trace(spark: Any, tmp_path: Path) -> None:
    import hieropo.spark

    values = pa.array([None if k == 37 else value for k, value in enumerate(TABLE["profit"].to_pylist())])
    bad = spark.createDataFrame(TABLE.set_column(TABLE.column_names.index("profit"), "profit", values))
    with pytest.raises(LogError, match=r"^Column 'profit', row \d+: .* In shuffled part \d") as caught:
        hieropo.spark.moments(bad, out=tmp_path / "x", shards=2, how="rows", **CONTEXT)
    with pytest.raises(LogError, match=r"^Column 'profit', row \d+: .* In group \d"):
        hieropo.spark.moments(bad, out=tmp_path / "x", shards=2, how="partitions", **CONTEXT)
    assert "java" not in str(caught.value).lower()
    with pytest.raises(SchemaError, match="'Profit'"):
        hieropo.spark.moments(bad, out=tmp_path / "x", **{**CONTEXT, "reward": "Profit"})
    with pytest.raises(LogError, match="Spark frame has no rows"):
        hieropo.spark.moments(bad.filter("visits < 0"), out=tmp_path / "x", **COLUMNS)


def test_what_is_not_done_on_spark_is_refused_with_the_way(frame: Any, tmp_path: Path) -> None:
    import hieropo.spark

    with pytest.raises(InputError, match=r"through the driver.*hieropo\.spark\.moments"):
        LogMoments.of(frame, **COLUMNS)
    with pytest.raises(InputError, match="is learned from all rewards"):
        hieropo.spark.moments(frame, out=tmp_path / "x", features="effect(device)", **COLUMNS)
    with pytest.raises(InputError, match="address of an object store"):
        hieropo.spark.moments(frame, out="s3://bucket/x", **COLUMNS)
    with pytest.raises(InputError, match="needs the path"):
        hieropo.spark.moments(frame, out=tmp_path / "x", how="files", **COLUMNS)
    with pytest.raises(InputError, match="how='sql' is not known"):
        hieropo.spark.moments(frame, out=tmp_path / "x", how="sql", **COLUMNS)
    with pytest.raises(InputError, match="does not go with precision"):
        hieropo.spark.moments(frame, out=tmp_path / "x", cluster="region", precision="precision", **COLUMNS)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(InputError, match="exists and is not empty"):
        hieropo.spark.moments(frame, out=tmp_path / "full", **COLUMNS)
    with pytest.raises(InputError, match="power of two"):
        hieropo.spark.moments(frame, out=tmp_path / "x", shards=3, **COLUMNS)
    with pytest.raises(TypeError, match="got 'reword'"):
        hieropo.spark.moments(frame, out=tmp_path / "x", reword="profit")
    with pytest.raises(InputError, match="strict=True"):
        hieropo.spark.decide(frame, tmp_path, strict=True)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_a_zip_is_refused_with_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    import hieropo
    from hieropo.spark.workers import valued, values_of

    class Frame:
        def toArrow(self) -> pa.Table:
            return pa.Table.from_batches([valued(3, lambda: 1.0)])

    monkeypatch.setattr(hieropo, "__file__", "packages.zip/hieropo/__init__.py")
    with pytest.raises(InputError) as caught:
        values_of(Frame())
    error = str(caught.value)
    assert "was shipped as packages.zip/hieropo" in error
    assert "packed environment" in error


FORMULA = {"features": "category(device, 2) + spline(visits, 3) + cyclic(opened, 'week')"}
TERMS: list[tuple[str, dict[str, Any]]] = [
    ("rows", FORMULA),
    ("files", FORMULA),
    ("rows", {"context": ["device", "visits", "gaps"]}),
    ("files", {"context": ["visits", "gaps"], "weight": "weight"}),
]


@pytest.mark.parametrize(("way", "given"), TERMS)
def test_workers_learn_the_terms_of_one_machine(
    spark: Any, tmp_path: Path, way: str, given: dict[str, Any]
) -> None:
    import hieropo.spark

    gaps = pa.array([None if k % 7 == 3 else k / 100 for k in range(600)])
    table = TABLE.append_column("gaps", gaps)
    (tmp_path / "log").mkdir()
    for k in range(2):
        pq.write_table(table.slice(300 * k, 300), tmp_path / "log" / f"{k}.parquet")
    rows = spark.createDataFrame(table).repartition(3) if way == "rows" else tmp_path / "log"
    made = hieropo.spark.moments(rows, out=tmp_path / "out", shards=2, spark=spark, **COLUMNS, **given)
    check_equal(made.joined().at_final_origin(), LogMoments.of(table, **COLUMNS, **given))


@pytest.mark.parametrize("way", ["rows", "files", "text"])
def test_rows_that_cannot_be_used_are_set_aside_counted_and_listed(
    spark: Any, tmp_path: Path, way: str
) -> None:
    import hieropo.spark

    columns = {name: TABLE[name].to_pylist() for name in ("store", "offer", "profit", "visits")}
    columns["profit"][3], columns["profit"][400], columns["visits"][17] = None, float("nan"), float("inf")
    columns["offer"][50], columns["store"][51] = None, None
    columns["profit"][500], columns["store"][500] = float("inf"), 7  # the one row of its task
    bad = pa.table(columns)
    (tmp_path / "log").mkdir()
    for k in range(2):
        if way == "text":
            pa_csv.write_csv(bad.slice(300 * k, 300), tmp_path / "log" / f"{k}.csv")
        else:
            pq.write_table(bad.slice(300 * k, 300), tmp_path / "log" / f"{k}.parquet")
    given = {**COLUMNS, "context": ["visits"]}
    with pytest.warns(HieropoWarning) as expected_warning:
        expected = LogMoments.of(
            bad if way == "rows" else tmp_path / "log", lenient=True, rejects=tmp_path / "one.csv", **given
        )
    rows = spark.createDataFrame(bad) if way == "rows" else tmp_path / "log"
    with pytest.warns(HieropoWarning) as warning:
        made = hieropo.spark.moments(
            rows,
            out=tmp_path / "out",
            shards=2,
            spark=spark,
            rejects=tmp_path / "spark.csv",
            lenient=True,
            **given,
        )
    check_equal(made.joined().at_final_origin(), expected)
    set_aside, counted = made.provenance["set_aside"], expected.rejected.to_dict()
    for name in ("read", "rows", "lost_tasks"):
        assert set_aside[name] == counted[name], name
    found = [(reason["column"], reason["reason"], reason["rows"]) for reason in set_aside["reasons"]]
    assert sorted(found) == sorted((r["column"], r["reason"], r["rows"]) for r in counted["reasons"])
    one, listed = ((tmp_path / name).read_text().splitlines() for name in ("one.csv", "spark.csv"))
    assert len(one) == len(listed) == 7
    if way != "rows":
        assert one == listed
        texts = [
            next(str(one.message) for one in some if one.category is HieropoWarning).split(" Each is")[0]
            for some in (warning, expected_warning)
        ]
        assert texts[0] == texts[1]
        assert [line.split(",")[1:] for line in one] == [line.split(",")[1:] for line in listed]
    with pytest.raises(LogError, match="6 of 600 rows"):
        hieropo.spark.moments(rows, out=tmp_path / "x", spark=spark, rejects=tmp_path / "strict.csv", **given)
    assert not (tmp_path / "x").exists()


def test_types_of_spark_are_those_of_arrow(spark: Any, tmp_path: Path) -> None:
    import hieropo.spark

    base = spark.createDataFrame(TABLE)
    base.createOrReplaceTempView("typed")
    typed = spark.sql(
        """select cast(name as binary) as bytes, repeat(name, 3000) as long_name, offer, visits,
        array('coupon', 'gift', 'none') as offers, cast(profit as decimal(12, 4)) as profit,
        cast(1 + pmod(store, 7) as decimal(20, 0)) as number, cast(null as double) as nothing,
        timestamp_micros(cast(1.7e15 + pmod(store, 40) * 1e9 as bigint)) as at,
        cast(timestamp_micros(cast(1.7e15 + pmod(store, 40) * 1e9 as bigint)) as timestamp_ntz) as clock from typed"""
    ).cache()
    table = typed.toArrow()
    roles: dict[str, Any] = {"action": "offer", "reward": "profit", "context": ["visits"]}
    for k, task in enumerate(("bytes", ["long_name", "number"], ["at", "clock"])):
        given = {**roles, "task": task, "eligible": "offers", "time": "at"}
        made = hieropo.spark.moments(typed, out=tmp_path / str(k), shards=2, **given)
        check_equal(made.joined(), LogMoments.of(table, **given))
    with pytest.raises(LogError, match="'nothing', row 0: null"):
        hieropo.spark.moments(typed, out=tmp_path / "x", task="number", action="offer", reward="nothing")


def test_an_evaluation_has_the_numbers_of_one_machine(frame: Any, tmp_path: Path) -> None:
    import hieropo.spark

    rng = np.random.default_rng(3)
    later = TABLE.set_column(
        TABLE.column_names.index("profit"), "profit", pa.array(rng.normal(40, 2, size=600))
    )
    learner = HierOPO().fit(TABLE, **CONTEXT)
    learner.save(tmp_path / "policy")
    rows = frame.sparkSession.createDataFrame(later).repartition(2).cache()
    found = hieropo.spark.evaluate(rows, tmp_path / "policy", folder=tmp_path, seed=1)
    expected = learner.evaluate(rows.toArrow(), seed=1)
    assert found.origin["evaluated on"] == "Spark frame"
    mine, theirs = found.to_dict(), expected.to_dict()
    for entry in (mine, theirs):
        entry.pop("origin", None)
    assert json.dumps(mine, default=str) == json.dumps(theirs, default=str)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy"]
    with pytest.raises(LogError, match="no rows"):
        hieropo.spark.evaluate(rows.filter("visits < 0"), learner, folder=tmp_path)
    profits = pa.array([None if k == 37 else value for k, value in enumerate(TABLE["profit"].to_pylist())])
    bad = TABLE.set_column(TABLE.column_names.index("profit"), "profit", profits)
    with pytest.raises(LogError, match=r"'profit', row \d+: null"):  # and no file, which would be gone
        hieropo.spark.evaluate(
            frame.sparkSession.createDataFrame(bad).repartition(2), learner, folder=tmp_path
        )
    with pytest.raises(ArtifactError, match="is no directory"):
        hieropo.spark.evaluate(rows, learner, folder=tmp_path / "none")


@pytest.mark.parametrize("task", ["store", "name"])  # hashed by expressions, and by workers
def test_names_of_columns_may_have_dots_and_quotes(frame: Any, tmp_path: Path, task: str) -> None:
    import hieropo.spark

    names = {task: "the.task", "visits": "no. of visits", "profit": "`net` profit"}
    table = TABLE.rename_columns([names.get(name, name) for name in TABLE.column_names])
    rows = frame.sparkSession.createDataFrame(table).repartition(2).cache()
    columns = {"task": "the.task", "action": "offer", "reward": "`net` profit", "context": ["no. of visits"]}
    for how in ("rows", "partitions"):
        sharded = hieropo.spark.moments(rows, out=tmp_path / how, shards=4, how=how, **columns)
        check_equal(sharded.joined(), LogMoments.of(table, **columns))
    learner = HierOPO().fit(table, **columns)
    learner.save(tmp_path / "policy")
    decided = hieropo.spark.decide(rows, tmp_path / "policy", id=["weight", "no. of visits"]).toArrow()
    wanted = learner.decide(rows.toArrow(), id=["weight", "no. of visits"]).table
    assert decided.drop_columns("row").to_pylist() == wanted.drop_columns("row").to_pylist()
    assert str(hieropo.spark.evaluate(rows, learner, folder=tmp_path)) == str(
        learner.evaluate(rows.toArrow())
    )


def test_the_doctor_counts_all_rows_and_examines_whole_tasks(spark: Any, frame: Any) -> None:
    import hieropo.spark

    whole = hieropo.spark.doctor(frame, **CONTEXT)
    expected = examine(TABLE, **CONTEXT)
    assert whole.facts["tasks"] == expected.facts["tasks"]
    assert {finding.kind for finding in whole.findings} == {finding.kind for finding in expected.findings}
    counts = dict(whole.facts["of_all_rows"])
    assert abs(counts.pop("tasks_about") - 40) <= 4  # a sketch of Spark
    assert counts == {"rows": 600, "actions": 3, "unusable": [], "examined_one_in": 1}
    profit = TABLE["profit"].to_pylist()
    profit[:5] = [None, None, float("nan"), float("inf"), -float("inf")]
    bad = spark.createDataFrame(
        TABLE.set_column(TABLE.column_names.index("profit"), "profit", pa.array(profit))
    )
    some = hieropo.spark.doctor(bad, rows=200, seed=3, **CONTEXT)
    tasks = [k for k in np.unique(TABLE["store"]).tolist() if shards_of(np.array([k]), 4)[0] == 3]
    rows = np.isin(TABLE["store"].to_numpy(), tasks)
    assert some.facts["tasks"]["number"] == len(tasks)
    assert some.facts["rows"] == rows.sum()
    assert some.facts["of_all_rows"]["unusable"] == [
        {"column": "profit", "reason": "missing", "rows": 2},
        {"column": "profit", "reason": "NaN", "rows": 1},
        {"column": "profit", "reason": "infinite", "rows": 2},
    ]
    assert "one task in 4" in some.name
    assert [finding.kind for finding in some.of("stops")] == ["unusable value"] * 3
    assert any("counted in all rows; the other findings" in finding.text for finding in some.of("note"))
    with pytest.raises(SchemaError, match="'Profit'"):
        hieropo.spark.doctor(frame, reward="Profit")


@pytest.mark.parametrize("prior", ["crossed", "full"])
def test_a_fit_on_workers_has_the_bits_of_the_fit_in_shards(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prior: str
) -> None:
    import hieropo.spark
    from hieropo.estimation import reml
    from hieropo.learners import in_shards
    from hieropo.spark.fitting import OnWorkers

    moments = LogMoments.of(TABLE, **CONTEXT)
    settings: Any = {"task_cov": "full", "uncertainty": "first-order"}
    if prior == "crossed":  # its learning evaluates hundreds of times, each a job
        settings = {"known": HierOPO(task_cov="crossed").fit(moments).hierarchy_.central()}
    monkeypatch.setattr(in_shards, "JOINED", 0)
    monkeypatch.setattr(reml, "KEPT", 0)
    sharded = ShardedMoments.of(moments, tmp_path / "shards", shards=4)
    plain = HierOPO(**settings).fit(sharded)
    jobs: list[int] = []
    in_session = OnWorkers.__call__

    def counted(self: Any, work: Any, load: Any, numbers: Any) -> Iterator[Any]:
        jobs.append(len(numbers))
        return in_session(self, work, load, numbers)

    monkeypatch.setattr(OnWorkers, "__call__", counted)
    fitted = hieropo.spark.fit(tmp_path / "shards", spark, HierOPO(**settings))
    assert jobs
    assert fitted.posterior_.log_evidence == plain.posterior_.log_evidence
    fitted.save(tmp_path / "policy")
    plain.save(tmp_path / "plain")
    names = sorted(file.name for file in (tmp_path / "plain").iterdir() if file.suffix != ".json")
    assert names
    for name in names:
        assert (tmp_path / "policy" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    given = {"policy": tmp_path / "policy", "id": ["store", "visits"]}
    decided = hieropo.spark.decide(spark.createDataFrame(TABLE).select("store", "visits", "stamp"), **given)
    wanted = plain.decide(TABLE, id=["store", "visits"]).table
    names = ["store", "visits", "action", "lower_bound"]
    decisions = [
        sorted(zip(*(table[name].to_pylist() for name in names), strict=True))
        for table in (decided.toArrow(), wanted)
    ]
    assert decisions[0] == decisions[1]  # the policy of shards holds no moments


def test_a_python_that_cannot_run_hieropo_is_told_before_any_row_is_read(
    spark: Any, frame: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hieropo.spark

    venv.EnvBuilder(symlinks=True).create(tmp_path / "bare")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(tmp_path / "bare" / "bin" / "python"))
    told = r"PYSPARK_PYTHON=.*has no module '(pyarrow|hieropo|numpy)'.*Set PYSPARK_PYTHON"
    with pytest.raises(InputError, match=told) as caught:
        hieropo.spark.moments(frame, out=tmp_path / "x", **COLUMNS)
    assert "Traceback" not in str(caught.value)
    with pytest.raises(InputError, match=told):
        hieropo.spark.decide(frame, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["bare"]


def test_another_release_on_a_worker_is_refused(monkeypatch: pytest.MonkeyPatch, spark: Any) -> None:
    import hieropo
    from hieropo.spark.workers import check_workers

    check_workers(spark)
    monkeypatch.setattr(hieropo, "__version__", "0.0.7")
    with pytest.raises(InputError, match=r"A worker of Spark has hieropo .*, and this session has 0\.0\.7"):
        check_workers(spark)
