"""Lists of eligible actions that a log had are asked of requests: in memory, on disk, on the command line."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import answers, refuses

from hieropo import (
    HierOPO,
    HieropoWarning,
    LogError,
    LogMoments,
    MismatchError,
    SchemaError,
    load_learner,
)
from hieropo.policies.gating import GatedPolicy

COLUMNS = {"task": "shop", "action": "offer", "reward": "profit"}
NAMED = ["--task", "shop", "--action", "offer", "--reward", "profit", "--pscore", "p", "--logging", "random"]


def logged(seed: int = 0, tasks: int = 12, rows: int = 40) -> pa.Table:
    """Rows of tasks that each have a menu of three out of six actions."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[Any]] = {name: [] for name in ("shop", "offer", "profit", "p", "menu")}
    for shop in range(tasks):
        menu = sorted(np.random.default_rng(shop).choice(6, 3, replace=False).tolist())
        worth = np.random.default_rng(100 + shop).normal(size=6)
        for _ in range(rows):
            offer = int(rng.choice(menu))
            row = (f"s{shop}", offer, worth[offer] + 0.5 * rng.normal(), 1 / 3, menu)
            for name, value in zip(found, row, strict=True):
                found[name].append(value)
    return pa.table(found)


def requested(log: pa.Table) -> pa.Table:
    _, rows = np.unique(log["shop"].to_numpy(zero_copy_only=False), return_index=True)
    return log.select(["shop", "menu"]).take(np.sort(rows))


def outside(choices: Sequence[Any], requests: pa.Table) -> int:
    """How many choices are of no eligible action."""
    menus = requests["menu"].to_pylist()
    return sum(each is not None and each not in menu for each, menu in zip(choices, menus, strict=True))


@pytest.fixture(scope="module")
def log() -> pa.Table:
    return logged()


@pytest.fixture(scope="module")
def learner(log: pa.Table) -> HierOPO:
    return HierOPO(logging="random").fit(log, **COLUMNS, eligible="menu")


@pytest.fixture(scope="module")
def unlisted(log: pa.Table) -> HierOPO:
    """Fitted without a word on menus."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HieropoWarning)  # it recommends eligible=
        return HierOPO(logging="random").fit(log, **COLUMNS)


def test_a_choice_stays_among_the_actions_that_the_request_lists(log: pa.Table, learner: HierOPO) -> None:
    requests = requested(log)
    assert outside(learner.predict(requests), requests) == 0
    renamed = requests.rename_columns(["shop", "can"])
    assert learner.predict(renamed, eligible="can").tolist() == learner.predict(requests).tolist()
    assert outside(learner.predict(requests, eligible=False), requests) > 0


@pytest.mark.slow
def test_requests_and_later_logs_without_lists_are_refused(log: pa.Table, learner: HierOPO) -> None:
    asked = r"'menu' \(role eligible\) is not in .* The policy chooses only among .*eligible=False"
    with pytest.raises(SchemaError, match=asked):
        learner.predict(requested(log).select(["shop"]))
    with pytest.raises(SchemaError, match=asked):
        learner.evaluate(log.drop_columns("menu"))
    learner.evaluate(log.drop_columns("menu"), eligible=False, pscore="p")


@pytest.mark.slow
def test_a_gate_remembers_the_lists_that_its_harm_was_judged_with(
    log: pa.Table, unlisted: HierOPO, tmp_path: Path
) -> None:
    requests = requested(log)
    assert outside(unlisted.predict(requests), requests) > 0  # nobody ever named the lists
    gated = unlisted.evaluate(log, pscore="p", eligible="menu").gate(0.4)
    assert gated.eligible == "menu"
    back = load_learner(unlisted.save(tmp_path / "policy", policy=gated))
    assert isinstance(back.policy_, GatedPolicy)
    assert (back.policy_.eligible, back.roles_.eligible) == ("menu", "menu")
    choices = back.predict(requests)
    assert sum(each is not None for each in choices) > 3
    assert outside(choices, requests) == 0
    with pytest.raises(SchemaError, match="'menu'"):
        back.predict(requests.select(["shop"]))


@pytest.mark.slow
def test_the_command_line_takes_lists_from_the_log_to_decisions(log: pa.Table, tmp_path: Path) -> None:
    requests = requested(log)
    pq.write_table(log, tmp_path / "log.parquet")
    pq.write_table(requests, tmp_path / "requests.parquet")
    pq.write_table(requests.select(["shop"]), tmp_path / "bare.parquet")
    answers("moments", tmp_path / "log.parquet", "-o", tmp_path / "sums", *NAMED[:-2], "--eligible", "menu")
    answers("fit", tmp_path / "sums", "-o", tmp_path / "by_sums", "--logging", "random")
    answers("fit", tmp_path / "log.parquet", "-o", tmp_path / "by_rows", *NAMED, "--eligible", "menu")
    answers(
        "evaluate",
        tmp_path / "by_rows",
        tmp_path / "log.parquet",
        "--gate",
        tmp_path / "gated",
        "--max-harm",
        "0.4",
    )
    for policy in ("by_sums", "by_rows", "gated"):
        out = tmp_path / f"{policy}.parquet"
        answers("decide", tmp_path / policy, tmp_path / "requests.parquet", "-o", out)
        assert outside(pq.read_table(out)["action"].to_pylist(), requests) == 0
        error = refuses(1, "decide", tmp_path / policy, tmp_path / "bare.parquet", "-o", out)
        assert "'menu' (role eligible)" in error
        assert "--all-eligible" in error
        answers("decide", tmp_path / policy, tmp_path / "bare.parquet", "-o", out, "--all-eligible")
    words = "decide", tmp_path / "by_rows", tmp_path / "bare.parquet", "-o", tmp_path / "out.parquet"
    assert "Give one" in refuses(2, *words, "--all-eligible", "--eligible", "menu")


def test_moments_of_logs_with_and_without_lists_do_not_mix(log: pa.Table) -> None:
    with_lists, without = (LogMoments.of(log, **COLUMNS, eligible=each) for each in ("menu", None))
    with pytest.raises(MismatchError, match="eligible='menu' and eligible=None"):
        _ = with_lists + without
    assert HierOPO(logging="random").fit(with_lists).roles_.eligible == "menu"


def test_a_list_without_the_action_that_was_taken_is_refused_by_all_that_read_the_log(log: pa.Table) -> None:
    menus = log["menu"].to_pylist()
    menus[7] = [offer for offer in menus[7] if offer != log["offer"][7].as_py()]
    torn = log.set_column(log.schema.get_field_index("menu"), "menu", pa.array(menus))
    why = r"'menu', row 7: the action taken, \d, is not in its list of actions, \d, \d\. .*add it, or leave such"
    for read in (HierOPO().fit, LogMoments.of):
        with pytest.raises(LogError, match=why):
            read(torn, **COLUMNS, eligible="menu")
    with pytest.warns(HieropoWarning, match="a list without the action taken in 'menu'"):
        found = HierOPO(logging="random").fit(torn, **COLUMNS, eligible="menu", lenient=True)
    assert found.rejected_.rows == 1


def test_a_column_of_lists_is_a_name_or_false(log: pa.Table, learner: HierOPO) -> None:
    for read in (learner.predict, learner.evaluate):
        with pytest.raises(SchemaError, match=r"eligible=True names no column\. Give the name"):
            read(log, eligible=True)
