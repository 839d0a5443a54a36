"""The logs that ship are what their README says, made by the script, and agree with independent copies."""

import hashlib
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from real_data import real_table

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "src" / "hieropo" / "data"


@pytest.fixture(scope="module")
def thornton() -> pa.Table:
    return pq.read_table(DATA / "thornton.parquet")


@pytest.fixture(scope="module")
def obd() -> pa.Table:
    return pq.read_table(DATA / "obd.parquet")


def copy_of(name: str) -> pa.Table:
    return pq.read_table(real_table(name))


def script() -> ModuleType:
    found = importlib.util.spec_from_file_location("make_demo_data", ROOT / "scripts" / "make_demo_data.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def column(table: pa.Table, name: str) -> np.ndarray:
    values = table.column(name)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return values.to_numpy(zero_copy_only=False)


@pytest.mark.filterwarnings("ignore")  # of pandas, which the script needs
def test_shipped_files_have_the_hashes_of_the_script() -> None:
    expected = script().EXPECTED
    assert {path.name for path in DATA.glob("*.parquet")} < set(expected)
    for name, digest in expected.items():
        assert hashlib.sha256((DATA / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.parametrize("name", ["thornton", "obd"])
def test_shipped_files_are_small_and_attributed(name: str) -> None:
    path = DATA / f"{name}.parquet"
    assert path.stat().st_size < 1_000_000
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"
    for document in ("README.md", "NOTICE.md"):
        assert f"## {path.name}" in (DATA / document).read_text(encoding="utf-8")


def test_thornton_has_complete_rows_and_nothing_about_health(thornton: pa.Table) -> None:
    assert thornton.column_names == [
        "villnum", "age", "distvct", "tinc", "incentive", "got", "reward", "pscore",
    ]  # fmt: skip
    assert thornton.num_rows == 2825
    assert all(values.null_count == 0 for values in thornton.columns)
    assert len(set(column(thornton, "villnum"))) == 119


def test_thornton_buckets_shares_and_reward_follow_from_incentive_and_outcome(thornton: pa.Table) -> None:
    tinc, got = column(thornton, "tinc"), column(thornton, "got")
    names = np.array(["none", "small", "medium", "large"])
    bucket = np.digitize(tinc, [0.01, 1.2, 2.2])
    assert (column(thornton, "incentive") == names[bucket]).all()
    np.testing.assert_allclose(column(thornton, "pscore"), np.bincount(bucket)[bucket] / 2825, rtol=1e-12)
    np.testing.assert_allclose(column(thornton, "reward"), got - 0.08 * tinc, atol=1e-12)
    assert np.bincount(bucket).tolist() == [621, 1233, 680, 291]


def test_thornton_agrees_with_the_independent_copy(thornton: pa.Table) -> None:
    other = copy_of("thornton_hiv.parquet").select(["villnum", "got", "distvct", "tinc", "age"])
    values = np.column_stack([column(other, name).astype(float) for name in other.column_names])
    complete = values[~np.isnan(values).any(axis=1)]
    for j, name in enumerate(other.column_names):
        np.testing.assert_allclose(column(thornton, name), complete[:, j], atol=5e-6, rtol=0)


def test_obd_has_six_logs_of_ten_thousand_rows_with_few_clicks(obd: pa.Table) -> None:
    policy, campaign, click = (column(obd, name) for name in ("behavior_policy", "campaign", "click"))
    clicks = {
        (p, c): (int(here.sum()), int(click[here].sum()))
        for p in ("random", "bts")
        for c in ("all", "men", "women")
        if (here := (policy == p) & (campaign == c)).any()
    }
    assert clicks == {
        ("random", "all"): (10_000, 38), ("random", "men"): (10_000, 46), ("random", "women"): (10_000, 46),
        ("bts", "all"): (10_000, 42), ("bts", "men"): (10_000, 69), ("bts", "women"): (10_000, 46),
    }  # fmt: skip


def test_obd_tasks_and_items_are_named_by_campaign(obd: pa.Table) -> None:
    campaign = column(obd, "campaign")
    place = np.array(["", "left", "center", "right"])[column(obd, "position")]
    assert (column(obd, "task") == np.char.add(np.char.add(campaign.astype(str), "-"), place)).all()
    numbers = np.char.zfill(column(obd, "item_id").astype(str), 2)
    assert (column(obd, "item") == np.char.add(np.char.add(campaign.astype(str), "-"), numbers)).all()
    assert (len(set(column(obd, "task"))), len(set(column(obd, "item")))) == (9, 160)


def test_obd_random_log_is_uniform_and_every_propensity_is_one(obd: pa.Table) -> None:
    pscore, campaign = column(obd, "propensity"), column(obd, "campaign")
    random = column(obd, "behavior_policy") == "random"
    for name, items in (("all", 80), ("men", 34), ("women", 46)):
        np.testing.assert_allclose(pscore[random & (campaign == name)], 1 / items, rtol=1e-12)
    assert pscore.min() > 0
    assert pscore.max() <= 1


def test_obd_agrees_with_the_independent_copy(obd: pa.Table) -> None:
    other = copy_of("obd_small.parquet")
    same = ["behavior_policy", "campaign", "position", "item_id", "click", "timestamp"]
    for name in same:
        assert (column(obd, name) == column(other, name)).all(), name
    np.testing.assert_array_equal(column(obd, "propensity"), column(other, "propensity_score"))
    for k in range(4):
        hashes = column(other, f"user_feature_{k}").astype(str)
        assert (column(obd, f"user_feature_{k}") == np.array([text[:8] for text in hashes])).all()
