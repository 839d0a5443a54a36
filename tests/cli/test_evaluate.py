"""``hieropo evaluate`` as its callers meet it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import answers, fails, refuses

from hieropo import load_policy

FIT = ["--task", "store", "--action", "offer", "--reward", "profit", "--logging", "random"]


def log(seed: int, rows: int = 1500, tasks: int = 12) -> pa.Table:
    rng = np.random.default_rng(seed)
    store, offer = rng.integers(tasks, size=rows), rng.integers(3, size=rows)
    theta = np.random.default_rng(0).normal(size=(12, 3))
    profit = theta[store % 12, offer] + rng.normal(size=rows)
    names = np.array(["none", "coupon", "gift"])
    return pa.table({"store": store, "offer": names[offer], "profit": profit, "p": np.full(rows, 1 / 3)})


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    pq.write_table(log(1), folder / "log.parquet")
    pq.write_table(log(2), folder / "later.parquet")
    pq.write_table(log(3, tasks=14), folder / "more.parquet")
    answers("fit", folder / "log.parquet", "-o", folder / "policy", *FIT, "--pscore", "p")
    return folder


def told(*words: object) -> dict[str, Any]:
    found = json.loads(answers("evaluate", *words, "--json"))
    assert isinstance(found, dict)
    return found


def test_it_says_what_the_policy_is_worth_and_whom_it_would_hurt(shop: Path) -> None:
    text = answers("evaluate", shop / "policy", shop / "later.parquet")
    for part in (
        "1,500 rows of 12 tasks",
        "by the model, a row",
        "importance-weighted",
        "most likely harmed",
        "SNDR",
    ):
        assert part in text
    assert "The policy was not learned from these rows" in text


def test_json_holds_the_same_and_the_rows_of_the_fit_are_recognised(shop: Path) -> None:
    found = told(shop / "policy", shop / "log.parquet")
    assert (found["learned_from"], found["propensities"], found["rows"]) == ("yes", "logged", 1500)
    names = [each["name"] for each in found["by_weights"]]
    assert names == ["IPS", "SNIPS", "DM", "DR", "SNDR", "Switch-DR", "DRos", "LS"]
    assert found["by_model"]["gain"]["low"] < found["by_model"]["gain"]["high"]
    assert len(found["worst_tasks"]) == 5
    assert sum(found["share_of_tasks"].values()) == pytest.approx(1.0)


@pytest.mark.slow
def test_a_file_of_tasks_and_a_gated_policy_are_written(shop: Path, tmp_path: Path) -> None:
    later = shop / "later.parquet"
    found = told(
        shop / "policy", later, "--per-task", tmp_path / "tasks.parquet", "--gate", tmp_path / "gated",
        "--max-harm", "0.01", "--incumbent", "none",
    )  # fmt: skip
    assert found["written"] == {"per_task": str(tmp_path / "tasks.parquet"), "gate": str(tmp_path / "gated")}
    tasks = pq.read_table(tmp_path / "tasks.parquet")
    assert tasks.num_rows == 12
    assert {"task", "gain", "harm", "certificate", "weighted_gain", "effective_rows"} <= set(
        tasks.column_names
    )
    gated = load_policy(tmp_path / "gated").policy
    passed = dict(zip(tasks["task"].to_pylist(), tasks["passed"].to_pylist(), strict=True))
    assert gated.passes(list(passed)).tolist() == list(passed.values())  # type: ignore[union-attr]
    assert "kept" in answers("decide", tmp_path / "gated", later, "-o", tmp_path / "d.parquet", "--json")
    kept = pq.read_table(tmp_path / "d.parquet").filter(pa.compute.field("kept_incumbent"))
    assert set(kept["action"].to_pylist()) <= {"none"}
    answers("evaluate", shop / "policy", later, "--gate", tmp_path / "open", "--max-harm", "0.01")
    judged = told(tmp_path / "open", later)
    assert judged["share_of_tasks"]["unchanged"] == pytest.approx(1 - np.mean(list(passed.values())))
    assert "gate" in answers("inspect", tmp_path / "gated")
    refuses(2, "decide", tmp_path / "gated", later, "-o", tmp_path / "e.parquet", "--pessimism", "1")


@pytest.mark.slow
def test_the_rows_that_uncertain_tasks_need_are_told(shop: Path) -> None:
    found = told(shop / "policy", shop / "later.parquet", "--epsilon", "0.2")
    assert len(found["rows_needed"]) == 10
    assert all(each["rows"] is None or each["rows"] >= 0 for each in found["rows_needed"])
    assert "more rows until its policy is within" in answers(
        "evaluate", shop / "policy", shop / "later.parquet", "--epsilon", "0.2"
    )


@pytest.mark.slow
def test_without_propensities_they_are_estimated_or_left_out(shop: Path, tmp_path: Path) -> None:
    answers("fit", shop / "log.parquet", "-o", tmp_path / "bare", *FIT)
    assert told(tmp_path / "bare", shop / "later.parquet")["propensities"] == "estimated"
    assert told(tmp_path / "bare", shop / "later.parquet", "--pscore", "p")["propensities"] == "logged"
    assert told(tmp_path / "bare", shop / "later.parquet", "--propensities", "none")["by_weights"] == []


def test_new_tasks_are_counted(shop: Path) -> None:
    assert told(shop / "policy", shop / "more.parquet")["new_tasks"] == 2


@pytest.mark.slow
def test_pessimism_chosen_from_the_log_is_shown(shop: Path, tmp_path: Path) -> None:
    found = json.loads(
        answers(
            "fit",
            shop / "log.parquet",
            "-o",
            tmp_path / "cv",
            *FIT,
            "--pscore",
            "p",
            "--pessimism",
            "cv",
            "--json",
        )
    )
    assert found["pessimism"] == found["pessimism_choice"]["chosen"]
    assert load_policy(tmp_path / "cv").policy.pessimism == found["pessimism"]


@pytest.mark.parametrize(
    ("words", "code", "match"),
    [
        (("--per-task", "tasks.csv"), 2, "not the name of a Parquet file"),
        (("--incumbent", "none"), 2, "there is no gate. Give --gate"),
        (("--gate", "new", "--incumbent", "nothing"), 2, "not an action of the policy, which has"),
        (("--max-harm", "2"), 2, "not between 0 and 1"),
        (("--level", "0"), 2, "not between 0 and 1"),
        (("--pscore", "chance"), 1, "Column 'chance'"),
        (("--epsilon", "0"), 2, "0"),
    ],
)
def test_what_makes_no_sense_is_refused(shop: Path, words: tuple[str, ...], code: int, match: str) -> None:
    words = tuple(str(shop / "new") if word == "new" else word for word in words)
    assert match in refuses(code, "evaluate", shop / "policy", shop / "later.parquet", *words)
    assert not (shop / "new").exists()


@pytest.mark.slow
def test_a_process_that_fails_says_why_and_leaves_nothing(shop: Path, tmp_path: Path) -> None:
    assert "policy" in fails(1, "evaluate", tmp_path / "none", shop / "log.parquet")
    pq.write_table(log(4).set_column(3, "p", pa.array(np.zeros(1500))), tmp_path / "zero.parquet")
    text = refuses(
        1, "evaluate", shop / "policy", tmp_path / "zero.parquet", "--per-task", tmp_path / "t.parquet"
    )
    assert "must be above 0" in text
    assert not (tmp_path / "t.parquet").exists()
    assert "--gate" in answers("evaluate", "--help")


@pytest.mark.slow
def test_a_report_is_one_file_and_the_same_each_time(shop: Path, tmp_path: Path) -> None:
    command = ["report", shop / "policy", shop / "later.parquet", "--title", "Do <we> ship?", "-o"]
    assert "holds the report" in answers(*command, tmp_path / "a.html")
    content = json.loads(answers(*command, tmp_path / "b.html", "--json"))
    text = (tmp_path / "a.html").read_text()
    assert text == (tmp_path / "b.html").read_text()
    assert "<h1>Do &lt;we&gt; ship?</h1>" in text
    assert (content["format"], content["version"]) == ("hieropo report", 1)
    evaluation = content["evaluation"]
    assert f"{evaluation['claim']['gain']:.4g}" in text
    provenance = next(section for section in content["sections"] if section["name"] == "provenance")
    facts = dict(provenance["blocks"][0]["facts"])
    assert facts["policy"] == str(shop / "policy")
    assert len(facts["sha256 of policy.json"]) == 64
    refuses(2, "report", shop / "policy", shop / "later.parquet")


def test_a_report_of_a_policy_with_a_category_and_two_columns_of_tasks_examines_the_columns_of_the_log(
    tmp_path: Path,
) -> None:
    table, rng = log(5, rows=600), np.random.default_rng(5)
    age = pa.array(rng.integers(18, 80, size=600), mask=rng.random(600) < 0.1)
    visit = pa.array([f"visit {k // 2}" for k in range(600)])
    device = pa.array(np.array(["web", "app", "shop"])[rng.integers(3, size=600)])
    for name, column in (("device", device), ("age of customer", age), ("visit", visit)):
        table = table.append_column(name, column)
    columns = ["--context", "device,age of customer", "--cluster", "visit", "--pscore", "p"]
    table = table.append_column("city", pa.array(["Köln", "Łódź"] * 300))
    pq.write_table(table, tmp_path / "log.parquet")
    answers("fit", tmp_path / "log.parquet", "-o", tmp_path / "policy", "--task", "city", *FIT, *columns)
    text = answers("report", tmp_path / "policy", tmp_path / "log.parquet", "--json", "--no-compare")
    assert json.loads(text)["format"] == "hieropo report"
    assert "--cluster visit" not in text  # the policy knows this column: no advice to name it
    assert "No column of tasks is named" not in text


def test_a_place_that_takes_no_file_is_refused_before_the_work(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "page.html"
    for call in (["report", "no-policy", "no-log.parquet", "-o"], ["doctor", "no-log.parquet", "--html"]):
        assert f"there is no folder {nowhere.parent}" in refuses(1, *call, nowhere)
        text = refuses(1, *call, tmp_path)
        assert f"{tmp_path} is a folder" in text
        assert ".html" in text
