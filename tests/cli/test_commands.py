"""The command line as its callers meet it: exit codes, both streams, files; in processes where these matter."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import COMMAND, FIT, answers, called, hieropo_, make_log, refuses, succeeds

import hieropo
from hieropo.cli.console import Line
from hieropo.estimation.crossed.integration import integrate_crossed
from hieropo.estimation.crossed.mixture import CrossedHierarchies, condition_hierarchies
from hieropo.features.maps import per_action
from hieropo.learners.population import parts_in_words
from hieropo.logs.arrow.progress_source import ProgressSource
from hieropo.logs.opening import open_log
from hieropo.moments.units import UnitAccumulator


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log, requests and a policy; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("shop")
    pq.write_table(make_log(), folder / "log.parquet")
    requests = {
        "store": [0, 7, 99],
        "visits": [3.0, 4.0, 5.0],
        "name": ["a", "b", "c"],
        "offers": [["none", "gift"], ["none", "coupon", "gift"], ["none"]],
    }
    pq.write_table(pa.table(requests), folder / "requests.parquet")
    answers(
        "fit", "log.parquet", "-o", "policy", *FIT, "--context", "visits", "--pscore", "chance", folder=folder
    )
    return folder


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log whose columns describe the action, candidates and a policy."""
    folder = tmp_path_factory.mktemp("flights")
    rng = np.random.default_rng(1)
    price, stops = rng.uniform(1, 5, 300), rng.integers(0, 3, 300).astype(float)
    log = {
        "city": rng.choice(["Oslo", "Rome"], 300),
        "ones": np.ones(300),
        "price": price,
        "stops": stops,
        "bought": 3 - price / 2 - stops + rng.normal(0, 0.3, 300),
    }
    pq.write_table(pa.table({name: values.tolist() for name, values in log.items()}), folder / "log.parquet")
    search = {
        "search": ["x", "y", "x", "y", "y"],
        "city": ["Oslo", "Rome", "Oslo", "Rome", "Rome"],
        "ones": [1.0] * 5,
        "price": [4.0, 2.0, 1.0, 1.0, 3.0],
        "stops": [0.0, 1.0, 0.0, 1.0, 0.0],
    }
    pq.write_table(pa.table(search), folder / "search.parquet")
    answers("fit", "log.parquet", "-o", "policy", "--task", "city", "--reward", "bought",
             "--context", "ones,price,stops", folder=folder)  # fmt: skip
    return folder


def decisions(path: Path) -> dict[str, list[Any]]:
    return pq.read_table(path).to_pydict()


def edited(source: Path, target: Path, change: Callable[[pa.Table], pa.Table]) -> Path:
    pq.write_table(change(pq.read_table(source)), target)
    return target


def renamed(old: str, new: str) -> Callable[[pa.Table], pa.Table]:
    return lambda t: t.rename_columns([new if name == old else name for name in t.column_names])


class TestHelp:
    @pytest.mark.parametrize("command", ["fit", "decide", "inspect", "demo"])
    def test_every_command_explains_itself_with_an_example(self, command: str) -> None:
        text = answers(command, "--help")
        assert f"Usage: hieropo {command}" in text
        assert f"  hieropo {command}" in text.partition("Example")[2]

    def test_version(self) -> None:
        assert succeeds("--version") == f"hieropo, version {hieropo.__version__}\n"

    def test_help_loads_nothing_heavy(self) -> None:
        heavy = {"numpy", "numba", "pyarrow", "scipy"}
        code = f"import sys, hieropo.cli; sys.exit(str(sorted({heavy} & set(sys.modules))))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.stderr.strip() == "[]"

    def test_an_unknown_command_or_option_is_a_usage_error(self) -> None:
        assert "No such command 'fitt'" in refuses(2, "fitt")
        assert "No such option" in refuses(2, "inspect", "policy", "--taks", "1")


class TestFit:
    @pytest.mark.slow
    def test_tells_what_it_made_and_what_comes_next(self, shop: Path, tmp_path: Path) -> None:
        text = succeeds("fit", shop / "log.parquet", "-o", tmp_path / "policy", *FIT)
        assert "HierOPO learned from 400 rows of 8 tasks" in text
        assert f"Next: hieropo inspect {tmp_path / 'policy'}" in text

    @pytest.mark.slow
    def test_makes_the_policy_of_the_library(self, shop: Path) -> None:
        stored = hieropo.load_policy(shop / "policy")
        learner = hieropo.HierOPO().fit(
            shop / "log.parquet", task="store", action="offer", reward="profit", context=("visits",)
        )
        np.testing.assert_array_equal(stored.policy.table.means, learner.posterior_.table().means)
        assert stored.provenance["log"] == "log.parquet"
        assert stored.provenance["columns"]["context"] == ["visits"]

    @pytest.mark.slow
    def test_json_alone_is_on_standard_output(self, shop: Path, tmp_path: Path) -> None:
        found = json.loads(
            answers("fit", shop / "log.parquet", "-o", tmp_path / "p", *FIT, "--algorithm", "pooled",
                     "--level", "0.95", "--json")
        )  # fmt: skip
        assert (found["learner"], found["rows"], found["tasks"], found["actions"]) == ("PooledOPO", 400, 8, 3)
        assert found["pessimism"] == pytest.approx(1.645, abs=1e-3)
        assert found["warnings"] == []

    @pytest.mark.slow
    def test_spreads_of_tasks_are_a_setting(self, shop: Path, tmp_path: Path) -> None:
        answers("fit", shop / "log.parquet", "-o", tmp_path / "p", *FIT, "--spreads", "one")
        assert hieropo.load_learner(tmp_path / "p").spreads == "one"

    @pytest.mark.slow
    @pytest.mark.parametrize(("word", "setting"), [("auto", "auto"), ("3", 3)])
    def test_kinds_of_tasks_are_a_setting(self, shop: Path, tmp_path: Path, word: str, setting: Any) -> None:
        done = called("fit", shop / "log.parquet", "-o", tmp_path / "p", *FIT, "--task-kinds", word)
        assert done.exit_code == 0, done.output
        assert ("task_kinds=3 is not used" in done.stderr) == (setting == 3)  # this log shows no kinds
        assert hieropo.load_learner(tmp_path / "p").task_kinds == setting

    @pytest.mark.slow
    def test_the_likelihood_is_a_setting(self, shop: Path, tmp_path: Path) -> None:
        text = succeeds("fit", shop / "log.parquet", "-o", tmp_path / "p", *FIT, "--likelihood", "robust")
        assert "The robust likelihood: errors are" in text
        assert hieropo.load_learner(tmp_path / "p").sites_.name == "robust"
        assert "robust: sums and noise are of pseudo-rewards" in succeeds("inspect", tmp_path / "p")

    @pytest.mark.slow
    def test_takes_a_feature_map_from_a_file(self, shop: Path, tmp_path: Path) -> None:
        features = per_action(["none", "gift", "coupon"], ["visits"], intercept=False)
        (tmp_path / "map.json").write_text(json.dumps(features.to_dict()), encoding="utf-8-sig")
        answers("fit", shop / "log.parquet", "-o", tmp_path / "p", *FIT, "--features", tmp_path / "map.json")
        assert hieropo.load_policy(tmp_path / "p").features == features

    @pytest.mark.slow
    def test_a_warning_is_told_and_does_not_fail(self, shop: Path, tmp_path: Path) -> None:
        log = edited(
            shop / "log.parquet",
            tmp_path / "one.parquet",
            lambda t: t.filter(pa.compute.equal(t["store"], 1)),
        )
        done = called("fit", log, "-o", tmp_path / "p", *FIT, "--json")
        assert done.exit_code == 0
        assert "Warning: The log has one task" in done.stderr
        assert "The log has one task" in json.loads(done.stdout)["warnings"][0]

    @pytest.mark.slow
    def test_columns_with_well_known_names_need_no_options(self, shop: Path, tmp_path: Path) -> None:
        done = called("fit", shop / "log.parquet", "-o", tmp_path / "p", "--json")
        assert done.exit_code == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["guesses"] == [
            "Column 'store' is taken as the task, by its name.",
            "Column 'offer' is taken as the action, by its name.",
            "Column 'profit' is taken as the reward, by its name.",
        ]
        assert done.stderr.splitlines() == [f"Note: {each}" for each in found["guesses"]]
        roles = hieropo.load_learner(tmp_path / "p").roles_
        assert roles.to_dict() == found["columns"]
        assert (roles.task, roles.action, roles.reward, roles.pscore) == ("store", "offer", "profit", None)

    def test_what_could_be_meant_in_two_ways_is_not_guessed(self, shop: Path, tmp_path: Path) -> None:
        log = pq.read_table(shop / "log.parquet")
        pq.write_table(log.append_column("user_id", log["store"]), tmp_path / "two.parquet")
        error = refuses(1, "fit", tmp_path / "two.parquet", "-o", tmp_path / "p")
        assert "More than one column could be the task: 'store' and 'user_id'" in error
        assert not (tmp_path / "p").exists()

    def test_usage_errors(self, shop: Path, tmp_path: Path) -> None:
        log, out = shop / "log.parquet", ("-o", tmp_path / "p")
        assert "both set the lower bound. Give one" in refuses(
            2, "fit", log, *out, *FIT, "--level", "0.9", "--pessimism", "1"
        )
        assert "'both(' is none of" in refuses(2, "fit", log, *out, *FIT, "--features", "both(")
        assert "95.0 is not between 0 and 1" in refuses(2, "fit", log, *out, *FIT, "--level", "95")
        assert "nan is not a finite number" in refuses(2, "fit", log, *out, *FIT, "--pessimism", "nan")
        plain = ("--task", "store", "--reward", "profit", "--no-guess")
        assert "Give --action" in refuses(2, "fit", log, *out, *plain)
        flat = refuses(2, "fit", log, *out, *FIT, "--algorithm", "flat", "--spreads", "one")
        assert "flat has none of them" in flat
        assert "from 2 to 6 is needed" in refuses(2, "fit", log, *out, *FIT, "--task-kinds", "9")
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda t: t.slice(0, 0), ["has no rows"]),
            (renamed("profit", "Profit"), ["'profit'", "'Profit'"]),
            (lambda t: t.append_column("offer", t["offer"]), ["2 columns named 'offer'"]),
            (lambda t: t.set_column(3, "profit", pa.array([None] * 399 + [1.0])), ["row 0", "null"]),
        ],
        ids=["empty", "renamed", "twice", "null"],
    )  # fmt: skip
    def test_a_log_that_cannot_be_used(
        self, shop: Path, tmp_path: Path, change: Callable[[pa.Table], pa.Table], words: list[str]
    ) -> None:
        log = edited(shop / "log.parquet", tmp_path / "log.parquet", change)
        error = refuses(1, "fit", log, "-o", tmp_path / "policy", *FIT)
        assert [word for word in words if word not in error] == []
        assert not (tmp_path / "policy").exists()

    @pytest.mark.parametrize(
        ("text", "said"),
        [(None, "There is no file"), ("[1]", "a list"), ('{"map": "new"}', "'new'"), ("{", "JSON|Expecting")],
    )
    def test_a_file_that_holds_no_feature_map(
        self, shop: Path, tmp_path: Path, text: str | None, said: str
    ) -> None:
        file = tmp_path / "map.json"
        if text is not None:
            file.write_text(text, encoding="utf-8")
        error = refuses(1, "fit", shop / "log.parquet", "-o", tmp_path / "p", *FIT, "--features", file)
        assert re.search(said, error)
        assert str(file) in error

    @pytest.mark.slow
    def test_files_that_are_not_there_or_are_something_else(self, shop: Path, tmp_path: Path) -> None:
        assert "There is no file or folder" in refuses(1, "fit", tmp_path / "log", "-o", tmp_path / "p", *FIT)
        (tmp_path / "torn.parquet").write_bytes(b"PAR1 torn")
        assert "torn.parquet" in refuses(1, "fit", tmp_path / "torn.parquet", "-o", tmp_path / "p", *FIT)
        assert "directory with other files" in refuses(1, "fit", shop / "log.parquet", "-o", shop, *FIT)

    @pytest.mark.slow
    def test_debug_gives_the_traceback(self, tmp_path: Path) -> None:
        done = hieropo_("fit", tmp_path / "log", "-o", tmp_path / "p", *FIT, "--debug")
        assert done.returncode == 1
        assert "Traceback" in done.stderr
        assert "There is no file or folder" in done.stderr


class TestDecide:
    @pytest.mark.slow
    def test_decides_as_the_library_does(self, shop: Path, tmp_path: Path) -> None:
        out = tmp_path / "decisions.parquet"
        text = answers("decide", shop / "policy", shop / "requests.parquet", "-o", out)
        assert "3 decisions for 3 requests" in text
        assert "Requests of tasks that are not in the log, decided by the prior of the population: 1." in text
        policy = hieropo.load_policy(shop / "policy").policy
        expected = [policy.choose(task, [x]) for task, x in ((0, 3.0), (7, 4.0), (99, 5.0))]
        found = decisions(out)
        assert list(found) == [
            "row", "store", "visits", "name", "offers", "action", "rank", "propensity", "lower_bound", "mean", "sd",
            "runner_up", "task_known", "kept_incumbent", "reason",
        ]  # fmt: skip
        assert found["task_known"] == [True, True, False]
        assert (found["row"], found["store"], found["rank"]) == ([0, 1, 2], [0, 7, 99], [1, 1, 1])
        assert found["action"] == [choice.action for choice in expected]
        for name in ("lower_bound", "mean", "sd"):
            assert found[name] == [getattr(choice, name) for choice in expected]

    def test_keeps_to_eligible_actions_and_ranks_the_best(self, shop: Path, tmp_path: Path) -> None:
        out = tmp_path / "decisions.parquet"
        found = json.loads(
            answers("decide", shop / "policy", shop / "requests.parquet", "-o", out, "--eligible", "offers",
                     "--id", "name", "--top", "2", "--json")
        )  # fmt: skip
        assert (found["requests"], found["rows"], found["requests_of_unseen_tasks"]) == (3, 5, 1)
        table = decisions(out)
        assert table["name"] == ["a", "a", "b", "b", "c"]
        assert table["rank"] == [1, 2, 1, 2, 1]
        assert set(table["action"][:2]) == {"none", "gift"}
        assert table["action"][4] == "none"
        assert table["lower_bound"][0] >= table["lower_bound"][1]

    def test_pessimism_can_be_changed(self, shop: Path, tmp_path: Path) -> None:
        out = tmp_path / "decisions.parquet"
        answers("decide", shop / "policy", shop / "requests.parquet", "-o", out, "--pessimism", "2")
        found = decisions(out)
        for bound, mean, sd in zip(found["lower_bound"], found["mean"], found["sd"], strict=True):
            assert bound == pytest.approx(mean - 2 * sd, rel=1e-12)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (renamed("visits", "visit"), ["'visits'", "Did you mean 'visit'"]),
            (lambda t: t.append_column("visits", t["visits"]), ["2 columns named 'visits'"]),
            (lambda t: t.set_column(3, "offers", pa.array([["gift"], [], ["gift"]])), ["row 1", "empty"]),
            (lambda t: t.set_column(3, "offers", pa.array([["gift"], ["gfit"], ["a"]])), ["'gfit'", "row 1"]),
            (lambda t: t.slice(0, 0), ["has no rows"]),
            (lambda t: t.set_column(1, "visits", pa.array([1.0, float("nan"), 2.0])), ["'visits'", "row 1"]),
        ],
        ids=["renamed", "twice", "nothing eligible", "unknown action", "empty", "nan"],
    )  # fmt: skip
    def test_requests_that_cannot_be_used(
        self, shop: Path, tmp_path: Path, change: Callable[[pa.Table], pa.Table], words: list[str]
    ) -> None:
        requests = edited(shop / "requests.parquet", tmp_path / "requests.parquet", change)
        out = tmp_path / "decisions.parquet"
        out.write_text("what stood there before")
        error = refuses(1, "decide", shop / "policy", requests, "-o", out, "--eligible", "offers", "--strict")
        assert [word for word in words if word not in error] == []
        assert out.read_text() == "what stood there before"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["decisions.parquet", "requests.parquet"]

    def test_places_that_cannot_be_written(self, shop: Path, tmp_path: Path) -> None:
        words = ("decide", shop / "policy", shop / "requests.parquet", "-o")
        assert "there is no folder" in refuses(1, *words, tmp_path / "no" / "d.parquet")
        assert "is a folder" in refuses(1, *words, tmp_path)
        assert "which the decisions would replace" in refuses(2, *words, shop / "requests.parquet")

    def test_a_column_that_decisions_have_themselves(self, shop: Path, tmp_path: Path) -> None:
        requests = edited(shop / "requests.parquet", tmp_path / "requests.parquet", renamed("name", "row"))
        out = tmp_path / "d.parquet"
        answers("decide", shop / "policy", requests, "-o", out, "--id", "row")
        found = decisions(out)
        assert (found["row"], found["request_row"]) == ([0, 1, 2], ["a", "b", "c"])

    @pytest.mark.slow
    def test_tasks_of_another_type_are_warned_about(self, shop: Path, tmp_path: Path) -> None:
        requests = tmp_path / "requests.parquet"
        pq.write_table(pa.table({"store": ["zero", "seven"], "visits": [3.0, 4.0]}), requests)
        done = called("decide", shop / "policy", requests, "-o", tmp_path / "d.parquet", "--json")
        assert done.exit_code == 0
        (warning,) = json.loads(done.stdout)["warnings"]
        assert "No request is of a task that the log had" in warning
        assert "type str, such as 'zero', those of the log of type int, such as 0" in warning
        assert warning in done.stderr

    @pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "arrow"])
    def test_the_ending_names_the_format(self, shop: Path, tmp_path: Path, ending: str) -> None:
        words = ("decide", shop / "policy", shop / "requests.parquet", "-o")
        answers(*words, tmp_path / "d.parquet", "--id", "name")
        answers(*words, tmp_path / f"d.{ending}", "--id", "name")
        log = hieropo.open_log(tmp_path / f"d.{ending}")
        table = pa.Table.from_batches(log.batches(log.schema.names))
        for name, values in decisions(tmp_path / "d.parquet").items():
            assert list(map(str, table[name].to_pylist())) == list(map(str, values)) or (
                table[name].cast(pa.float64()).to_pylist() == values
            )

    def test_an_ending_of_no_format_is_refused(self, shop: Path, tmp_path: Path) -> None:
        words = ("decide", shop / "policy", shop / "requests.parquet", "-o")
        assert "no format of decisions" in refuses(2, *words, tmp_path / "d.xlsx")
        assert "Leave --format out" in refuses(2, *words, tmp_path / "d.csv", "--format", "csv")
        assert "both write to standard output" in refuses(2, *words, "-", "--json")

    def test_a_policy_without_a_feature_map(self, shop: Path, tmp_path: Path) -> None:
        moments = hieropo.Moments.from_arrays([0, 7], [[1.0, 0.0], [0.0, 1.0]], [1.0, 2.0])
        hierarchy = hieropo.Hierarchy(
            hyper=hieropo.Gaussian(np.zeros(2), np.eye(2)), task_cov=np.eye(2), noise_var=1.0,
            levels=(hieropo.Level(np.eye(2), {0: "north", 7: "south"}, "region"),),
        )  # fmt: skip
        policy = hieropo.LCBPolicy(hieropo.condition(moments, hierarchy))
        hieropo.save_policy(policy, tmp_path / "policy", moments=moments, hierarchy=hierarchy)
        words = (shop / "requests.parquet", "-o", tmp_path / "d.parquet", "--task", "store")
        assert "without a feature map" in refuses(1, "decide", tmp_path / "policy", *words)
        assert "region, sd" in answers("inspect", tmp_path / "policy")
        assert "without a feature map" in answers("inspect", tmp_path / "policy", "--task", "7")
        assert "Leave --at out" in refuses(1, "inspect", tmp_path / "policy", "--task", "7", "--at", "a=1")


class TestCandidates:
    """Policies whose features are columns: each row of the requests is a candidate."""

    @pytest.mark.slow
    def test_rows_of_one_request_compete(self, flights: Path, tmp_path: Path) -> None:
        out = tmp_path / "decisions.parquet"
        text = answers(
            "decide", flights / "policy", flights / "search.parquet", "-o", out, "--request", "search"
        )
        assert "2 decisions for 2 requests" in text
        found = decisions(out)
        assert list(found) == [
            "row", "search", "city", "ones", "price", "stops", "rank", "propensity", "lower_bound", "mean", "sd",
            "runner_up", "task_known", "kept_incumbent", "reason",
        ]  # fmt: skip
        assert (found["search"], found["city"]) == (["x", "y"], ["Oslo", "Rome"])
        policy = hieropo.load_policy(flights / "policy").policy
        first = policy.choose("Oslo", phi=[[1, 4, 0], [1, 1, 0]])
        second = policy.choose("Rome", phi=[[1, 2, 1], [1, 1, 1], [1, 3, 0]])
        assert found["row"] == [[0, 2][first.index], [1, 3, 4][second.index]]
        assert found["lower_bound"] == [first.lower_bound, second.lower_bound]

    @pytest.mark.slow
    def test_top_ranks_candidates(self, flights: Path, tmp_path: Path) -> None:
        out = tmp_path / "decisions.parquet"
        words = ("--request", "search", "--top", "9")
        answers("decide", flights / "policy", flights / "search.parquet", "-o", out, *words)
        found = decisions(out)
        assert found["rank"] == [1, 2, 1, 2, 3]
        assert sorted(found["row"]) == [0, 1, 2, 3, 4]

    @pytest.mark.slow
    def test_usage(self, flights: Path, tmp_path: Path) -> None:
        words = ("decide", flights / "policy", flights / "search.parquet", "-o", tmp_path / "d.parquet")
        assert "Give --request" in refuses(2, *words)
        assert "--eligible price needs a policy with a list of actions" in refuses(
            2, *words, "--request", "search", "--eligible", "price"
        )
        assert "described by columns" in answers("inspect", flights / "policy")
        assert "Give --at ones=...,price=...,stops=..." in answers(
            "inspect", flights / "policy", "--task", "Oslo"
        )

    def test_inspect_values_a_candidate(self, flights: Path) -> None:
        at = ("inspect", flights / "policy", "--task", "Oslo", "--at", "ones=1,price=4,stops=0")
        found = json.loads(answers(*at, "--json"))
        choice = hieropo.load_policy(flights / "policy").policy.choose("Oslo", phi=[[1, 4, 0]])
        assert found["candidate"]["lower_bound"] == choice.lower_bound
        assert "at ones = 1, price = 4, stops = 0" in answers(*at)

    def test_a_request_of_two_tasks(self, flights: Path, tmp_path: Path) -> None:
        cities = pa.array(["Oslo", "Rome", "Rome", "Rome", "Rome"])
        change = lambda t: t.set_column(1, "city", cities)  # noqa: E731
        search = edited(flights / "search.parquet", tmp_path / "search.parquet", change)
        words = (flights / "policy", search, "-o", tmp_path / "d", "--request", "search", "--strict")
        error = refuses(1, "decide", *words)
        assert (
            "Request 'x' (column 'search') has two tasks (column 'city'): 'Oslo' in row 0, 'Rome' in row 2"
            in error
        )


class TestInspect:
    @pytest.mark.slow
    def test_shows_tasks_actions_and_features(self, shop: Path) -> None:
        text = answers("inspect", "policy", folder=shop)
        for part in ("HierOPO from log.parquet", "8, such as 0, 1, 2", "coupon, gift, none", "intercept", "visits",
                     "between tasks, sd", "Next: hieropo inspect policy --task 0"):  # fmt: skip
            assert part in text

    def test_html_has_the_facts_and_the_pictures(self, shop: Path, tmp_path: Path) -> None:
        page = tmp_path / "policy.html"
        text = answers("inspect", shop / "policy", "--html", page)
        assert f"{page} shows the same with pictures" in text
        written = page.read_text(encoding="utf-8")
        for part in (
            "8, such as 0, 1, 2",
            "Tasks by their rows",
            "Population means",
            "level of a task, sd",
            "</svg>",
        ):
            assert part in written
        answers("inspect", shop / "policy", "--task", "3", "--html", page, "--json")
        of_task = page.read_text(encoding="utf-8")
        choice = hieropo.load_policy(shop / "policy").policy.choose(3, [3.0]).action
        assert f"The choice here is {choice}" in of_task
        assert "Actions by their lower bound" in of_task

    @pytest.mark.slow
    def test_json_holds_the_hierarchy(self, shop: Path) -> None:
        found = json.loads(answers("inspect", "policy", "--json", folder=shop))
        stored = hieropo.load_policy(shop / "policy")
        assert stored.hyper is not None
        assert stored.hierarchy is not None
        assert [each["mean"] for each in found["features"]] == stored.hyper.mean.tolist()
        assert (found["tasks"], found["rows"], found["actions"]) == (8, 400, ["coupon", "gift", "none"])

    def test_dates_are_short_and_equal_tasks_are_said(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        days = np.datetime64("2026-01-01", "us") + np.timedelta64(1, "D") * rng.integers(0, 5, 300)
        offer = np.array(["a", "b"])[rng.integers(0, 2, 300)].tolist()
        log = pa.table({"store": days, "offer": offer, "profit": rng.normal(size=300)})
        pq.write_table(log, tmp_path / "log.parquet")
        fit = ("fit", tmp_path / "log.parquet", "-o", tmp_path / "policy", *FIT)
        answers(*fit, "--uncertainty", "plug-in")
        text = answers("inspect", tmp_path / "policy")
        assert "such as 2026-01-01, 2026-01-02, 2026-01-03" in text
        assert "An sd of 0 between tasks" in text
        assert "bounds do not account for the error" in " ".join(text.split())
        answers(*fit, "--uncertainty", "first-order")
        assert "do not account" not in answers("inspect", tmp_path / "policy")
        assert "Task 2026-01-02" in answers("inspect", tmp_path / "policy", "--task", "2026-01-02")

    def test_a_task_at_a_context(self, shop: Path) -> None:
        found = json.loads(answers("inspect", shop / "policy", "--task", "7", "--at", "visits=4", "--json"))
        policy = hieropo.load_policy(shop / "policy").policy
        choice = policy.choose(7, [4.0])
        assert found["choice"] == choice.action
        best = next(each for each in found["actions"] if each["action"] == choice.action)
        assert best["lower_bound"] == choice.lower_bound
        assert best["sd"] == pytest.approx(choice.sd, rel=1e-9)

    def test_a_task_at_the_mean_context_of_its_rows(self, shop: Path) -> None:
        log = pq.read_table(shop / "log.parquet").to_pydict()
        own = [x for store, x in zip(log["store"], log["visits"], strict=True) if store == 7]
        found = json.loads(answers("inspect", shop / "policy", "--task", "7", "--json"))
        assert found["rows"] == len(own)
        assert found["at"]["visits"] == pytest.approx(np.mean(own), rel=1e-12)
        assert "at visits = " in answers("inspect", shop / "policy", "--task", "7")

    def test_errors(self, shop: Path) -> None:
        policy = shop / "policy"
        assert "Task '8' is not among the 8 tasks" in refuses(1, "inspect", policy, "--task", "8")
        assert f"Task '{2**60}' is not among" in refuses(
            1, "inspect", policy, "--task", 2**60
        )  # no float of it is tried
        assert "--at is the context of one task. Give --task" in refuses(
            2, "inspect", policy, "--at", "visits=1"
        )
        assert "is not NAME=VALUE" in refuses(2, "inspect", policy, "--task", "1", "--at", "visits")
        for at in ("visits=x", "visits=nan"):
            assert "is not NAME=NUMBER" in refuses(2, "inspect", policy, "--task", "1", "--at", at)
        assert "reads the context columns ['visits']" in refuses(
            2, "inspect", policy, "--task", "1", "--at", "x=1"
        )

    @pytest.mark.slow
    def test_a_policy_that_is_not_there_or_is_damaged(self, shop: Path, tmp_path: Path) -> None:
        assert "does not exist" in refuses(1, "inspect", tmp_path / "policy")
        assert "does not hold a policy" in refuses(1, "inspect", tmp_path)
        damaged = tmp_path / "damaged"
        shutil.copytree(shop / "policy", damaged)
        content = bytearray((damaged / "tasks.arrow").read_bytes())
        content[len(content) // 2] ^= 1
        (damaged / "tasks.arrow").write_bytes(content)
        assert "tasks.arrow" in refuses(1, "inspect", damaged)
        (damaged / "tasks.arrow").unlink()
        assert "tasks.arrow" in refuses(
            1, "decide", damaged, shop / "requests.parquet", "-o", tmp_path / "d.parquet"
        )


@pytest.fixture(scope="module")
def blocks(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy learned with one covariance block for each action."""
    policy = tmp_path_factory.mktemp("blocks") / "policy"
    answers("fit", shop / "log.parquet", "-o", policy, *FIT, "--context", "visits", "--task-cov", "block")
    return policy


class TestInspectHowTasksAreAlike:
    """What a policy says of the hierarchy that it was made with."""

    def test_the_crossed_prior(self, shop: Path) -> None:
        text = answers("inspect", shop / "policy")
        for part in ("between tasks, sd", "intercept", "visits", "values of the hyper-parameters"):
            assert part in text
        found = json.loads(answers("inspect", shop / "policy", "--json"))
        stored = hieropo.load_policy(shop / "policy")
        assert stored.hyper is not None
        hierarchies = stored.hierarchy
        assert isinstance(hierarchies, CrossedHierarchies)
        for name in ("no_effect", "no_action_effect", "no_interaction"):
            assert found["crossed"][name] == getattr(hierarchies, name)
        assert (found["uncertainty"], found["hierarchies"]) == ("integrated", len(hierarchies))
        assert [each["name"] for each in found["features"]] == ["intercept", "visits"]
        assert [each["mean"] for each in found["features"]] == stored.hyper.mean.tolist()
        central = hierarchies.central()
        for key, cov in (
            ("between_tasks_sd", central.level_cov + central.interaction_cov),
            ("level_sd", central.level_cov),
            ("action_sd", central.action_cov),
            ("interaction_sd", central.interaction_cov),
        ):
            found_sds = [each[key] for each in found["features"]]
            np.testing.assert_allclose(np.square(found_sds), np.diagonal(cov), atol=1e-15)

    def test_all_parts_of_the_crossed_prior_are_shown(self, shop: Path) -> None:
        text = answers("inspect", shop / "policy")
        first = json.loads(answers("inspect", shop / "policy", "--json"))["features"][0]
        for name in ("between_tasks_sd", "level_sd", "action_sd", "interaction_sd"):
            assert f"{first[name]:.4f}" in text, name
        summary = hieropo.load_learner(shop / "policy").summary()
        assert parts_in_words(summary.parts) in text
        assert summary.verdict in " ".join(text.split())
        assert "P(no effect)" in text
        as_json = json.loads(answers("inspect", shop / "policy", "--json"))["crossed"]
        assert as_json["parts"] == summary.to_dict()["parts"]
        assert as_json["verdict"] == summary.verdict

    def test_blocks_have_no_probabilities_of_parts(self, blocks: Path) -> None:
        found = json.loads(answers("inspect", blocks, "--json"))
        assert found["crossed"] is None
        names = [each["name"] for each in found["features"]]
        assert names[:2] == ["coupon", "coupon:visits"]
        assert "coupon:visits" in answers("inspect", blocks)

    def test_numbers_of_the_crossed_prior_are_those_after_fit(self, shop: Path, tmp_path: Path) -> None:
        fit = ("fit", shop / "log.parquet", "-o", tmp_path / "p", *FIT, "--context", "visits", "--json")
        told = json.loads(answers(*fit))
        found = json.loads(answers("inspect", tmp_path / "p", "--json"))
        assert found["noise_sd"] == told["noise_sd"] == told["summary"]["noise_sd"]["value"]
        for k, other in enumerate(told["summary"]["coefficients"]):
            each = found["features"][k % 2]
            assert each["between_tasks_sd"] == pytest.approx(other["between"]["value"], rel=1e-12)
            between = np.hypot(each["level_sd"], each["interaction_sd"])
            assert between == pytest.approx(each["between_tasks_sd"], rel=1e-12)
        zeros = {part["name"]: part["zero"] for part in told["summary"]["parts"]}
        assert zeros["effect of an action in all tasks"] == found["crossed"]["no_action_effect"]
        assert zeros["effect of an action in one task"] == found["crossed"]["no_interaction"]

    @pytest.mark.parametrize("prior", ["crossed", "block"])
    def test_a_task_of_several_actions(self, shop: Path, blocks: Path, prior: str) -> None:
        policy = shop / "policy" if prior == "crossed" else blocks
        found = json.loads(answers("inspect", policy, "--task", "7", "--at", "visits=4", "--json"))
        choice = hieropo.load_policy(policy).policy.choose(7, [4.0])
        assert found["choice"] == choice.action
        best = next(each for each in found["actions"] if each["action"] == choice.action)
        assert best["lower_bound"] == choice.lower_bound
        assert best["mean"] == pytest.approx(choice.mean, rel=1e-9)
        assert best["sd"] == pytest.approx(choice.sd, rel=1e-9)
        assert [each["name"] for each in found["features"]][:2] == ["coupon", "coupon:visits"]
        log = pq.read_table(shop / "log.parquet").to_pydict()
        own = [x for store, x in zip(log["store"], log["visits"], strict=True) if store == 7]
        mean = json.loads(answers("inspect", policy, "--task", "7", "--json"))["at"]["visits"]
        assert mean == pytest.approx(np.mean(own), rel=1e-12)

    def test_a_policy_with_its_hierarchies_alone(self, tmp_path: Path) -> None:
        features = per_action(["a", "b"], ["x"])
        rng = np.random.default_rng(0)
        total = UnitAccumulator(features)
        total.add(
            rng.integers(0, 5, 60), rng.integers(0, 2, 60), rng.normal(size=(60, 1)), rng.normal(size=60)
        )
        hierarchies = integrate_crossed(total.moments())
        posterior = condition_hierarchies(total.moments(), hierarchies)
        hieropo.save_policy(hieropo.LCBPolicy(posterior, features), tmp_path / "p", hierarchy=hierarchies)
        found = json.loads(answers("inspect", tmp_path / "p", "--json"))
        first, central = found["features"][0], hierarchies.central()
        assert first["mean"] is None  # it was saved without the hyper-posterior
        spreads = [first[name] for name in ("level_sd", "action_sd", "interaction_sd")]
        parts = (central.level_cov, central.action_cov, central.interaction_cov)
        np.testing.assert_allclose(spreads, [np.sqrt(cov[0, 0]) for cov in parts], rtol=1e-12)
        assert found["crossed"]["no_effect"] == hierarchies.no_effect
        assert found["crossed"]["parts"] == []  # which need the contexts of the log
        assert found["crossed"]["verdict"] in " ".join(answers("inspect", tmp_path / "p").split())

    @pytest.mark.parametrize(
        ("way", "says"),
        [
            ("integrated", "values of the hyper-parameters"),
            ("first-order", "first-order: bounds are corrected"),
            ("plug-in", "taken as known"),
        ],
    )
    def test_how_the_uncertainty_is_carried(self, shop: Path, tmp_path: Path, way: str, says: str) -> None:
        fit = ("fit", shop / "log.parquet", "-o", tmp_path / "p", *FIT, "--task-cov", "block")
        answers(*fit, "--uncertainty", way)
        assert says in answers("inspect", tmp_path / "p")
        found = json.loads(answers("inspect", tmp_path / "p", "--json"))
        assert found["uncertainty"] == way
        hyper_uncertainty = hieropo.load_policy(tmp_path / "p").hyper_uncertainty
        assert found["hierarchies"] == (len(hyper_uncertainty) if way == "integrated" else None)

    @pytest.mark.parametrize("way", ["integrated", "first-order", "plug-in"])
    @pytest.mark.parametrize("levels", [(), ("--levels", "town")])
    def test_one_policy_has_the_same_numbers_after_fit_and_in_inspect(
        self, shop: Path, tmp_path: Path, way: str, levels: tuple[str, ...]
    ) -> None:
        if levels and way == "first-order":
            return
        placed = lambda t: t.append_column("town", pa.array([f"t{s % 4}" for s in t["store"].to_pylist()]))  # noqa: E731
        log = edited(shop / "log.parquet", tmp_path / "log.parquet", placed)
        shape = "--task-cov", ("diag" if levels else "block")
        fit = ("fit", log, "-o", tmp_path / "p", *FIT, "--uncertainty", way, *shape, *levels, "--json")
        told = json.loads(answers(*fit))["summary"]
        found = json.loads(answers("inspect", tmp_path / "p", "--json"))
        assert found["noise_sd"] == told["noise_sd"]["value"]
        for each, other in zip(found["features"], told["coefficients"], strict=True):
            assert each["mean"] == pytest.approx(other["mean"]["value"], rel=1e-12)
            assert each["between_tasks_sd"] == other["between"]["value"]
            if levels:
                assert each["between_town_sd"] == other["levels"][0]["value"]

    @pytest.mark.slow
    def test_columns_of_groups_and_metadata_are_named(self, shop: Path, tmp_path: Path) -> None:
        placed = lambda t: t.append_column("town", pa.array([f"t{s % 4}" for s in t["store"].to_pylist()]))  # noqa: E731
        log = edited(shop / "log.parquet", tmp_path / "log.parquet", placed)
        answers("fit", log, "-o", tmp_path / "p", *FIT, "--levels", "town")
        text = answers("inspect", tmp_path / "p")
        assert "levels town" in text
        assert "town, sd" in text


class TestDemo:
    @pytest.mark.slow
    def test_prints_a_table_a_verdict_and_the_next_steps(self, tmp_path: Path) -> None:
        text = answers("demo", "--splits", "2", folder=tmp_path)
        for part in ("the incentives as drawn", "HierOPO", "PooledOPO", "The log shows a gain", "It does not show",
                     "seed 0", "demo/decisions.parquet", "hieropo inspect demo/policy"):  # fmt: skip
            assert part in text
        after = [line.strip() for line in text.split("Next:", 1)[1].splitlines()]
        for command in after:
            assert command.startswith("hieropo ")
            answers(*command.split()[1:], folder=tmp_path)

    def test_usage(self) -> None:
        assert "--splits" in refuses(2, "demo", "--splits", "0")
        assert "--data" in refuses(2, "demo", "--data", "movielens")


class TestStreams:
    @pytest.mark.slow
    def test_a_closed_pipe_leaves_no_traceback(self, shop: Path) -> None:
        process = subprocess.Popen(
            [*COMMAND, "inspect", str(shop / "policy"), "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == ""
        process.stderr.close()

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "arrow"])
    def test_the_end_of_the_reader_of_rows_is_quiet(self, shop: Path, tmp_path: Path, kind: str) -> None:
        with (tmp_path / "requests.csv").open("w") as file:
            file.write("store,visits\n" + "".join(f"{k % 8},{k % 7}\n" for k in range(100_000)))
        process = subprocess.Popen(
            [*COMMAND, "decide", str(shop / "policy"), str(tmp_path / "requests.csv"), "-o", "-", "--format", kind],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert len(process.stdout.read(10)) == 10
        process.stdout.close()
        assert process.wait(timeout=120) == 141
        assert process.stderr.read() == b""
        process.stderr.close()

    @pytest.mark.slow
    def test_an_interrupt_is_one_line_and_leaves_nothing(self, tmp_path: Path) -> None:
        process = subprocess.Popen(
            [*COMMAND, "demo", "--splits", "1000000"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        )  # fmt: skip
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (130, "")
        assert err == "\nInterrupted. No partly written file is left.\n"
        assert not list(tmp_path.iterdir())

    def test_an_interrupt_names_the_sums_that_are_left(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("hieropo.logs.opening.open_log", interrupted)
        (tmp_path / "log.csv").write_text("store,offer,profit\n1,a,2\n")
        sums = tmp_path / "sums"
        call = [
            "fit",
            tmp_path / "log.csv",
            "-o",
            tmp_path / "policy",
            "--reward",
            "profit",
            "--checkpoint",
            sums,
        ]
        assert called(*call).stderr == "\nInterrupted. No partly written file is left.\n"
        sums.mkdir()
        done = called(*call)
        assert done.exit_code == 130
        assert f"{sums} holds the sums of the files that were read. The same command goes on" in done.stderr

    @pytest.mark.slow
    def test_a_terminal_sees_progress_and_a_clean_line_and_json_holds_the_results(
        self, tmp_path: Path
    ) -> None:
        ours, theirs = pty.openpty()
        program = "from hieropo._utils import progress; progress.PATIENCE = 0.0; from hieropo.cli import main; main()"
        command = [sys.executable, "-c", program, "demo", "--splits", "3", "--seed", "5", "-o", "x", "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, cwd=tmp_path)
        os.close(theirs)
        seen = b""
        with suppress(OSError):  # the other end is closed
            while part := os.read(ours, 4096):
                seen += part
        os.close(ours)
        out, _ = process.communicate(timeout=60)
        assert b" of 3" in seen
        assert seen.endswith(b"\r\x1b[K")
        found = json.loads(out)
        assert (found["seed"], found["splits"], found["rows"], found["tasks"]) == (5, 3, 2825, 119)
        assert found["policies"][0]["name"] == "HierOPO"
        assert all((tmp_path / path).exists() for path in found["files"].values())


def test_a_watched_source_is_the_source(shop: Path) -> None:
    source = open_log(shop / "log.parquet")
    watched = ProgressSource(source, Line())
    assert open_log(watched) is watched
    assert (watched.name, watched.schema, watched.n_rows) == (source.name, source.schema, source.n_rows)
    assert watched.rereadable == source.rereadable
    assert list(watched.batches(["store"], 100)) == list(source.batches(["store"], 100))
