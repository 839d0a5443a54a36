"""The comparison with other tools: its arithmetic, and the contract of adapters on a tiny log; no peer is installed."""

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[2]
Load = Callable[[str], Any]


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    with pytest.MonkeyPatch.context() as patch:
        for folder in ("experiments", "benchmarks", "benchmarks/peers", "benchmarks/peers/adapters"):
            patch.syspath_prepend(ROOT / folder)
        yield importlib.import_module


# -- the judge ---------------------------------------------------------------------------------------------------------


def test_gain_best_and_harm_of_choices(load: Load) -> None:
    truth = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 4.0]])
    score = load("judge").simulated_score(
        np.array([0, 1, 1]), truth, np.array([0.5, 0.5]), np.array([0.25, 0.25, 0.5]), np.array([0, 1, 2])
    )
    assert score.gain == pytest.approx(0.25 * 0.5 - 0.25 * 0.5 + 0.5 * 2)
    assert score.best == pytest.approx(0.25 * 0.5 + 0.25 * 0.5 + 0.5 * 2)
    assert score.harmed == pytest.approx(1 / 3)


def test_incumbent_is_zero_and_oracle_a_hundred_percent(load: Load) -> None:
    best = np.array([1.0, 2.0, 3.0])
    assert load("judge").percent(best, best) == (pytest.approx(100), pytest.approx(0))
    assert load("judge").percent(0 * best, best) == (0, 0)
    assert load("judge").percent(0 * best, 0 * best) == (None, None)  # no action has an effect


def test_errors_of_values_and_leads_are_those_of_repeated_draws(load: Load) -> None:
    rng = np.random.default_rng(0)
    best = rng.uniform(1, 2, (2_000, 20))
    gain = 0.5 * best + 0.1 * rng.standard_normal(best.shape)
    other = gain - 0.05 + 0.02 * rng.standard_normal(best.shape)
    values = np.array([load("judge").percent(*pair) for pair in zip(gain, best, strict=True)])
    leads = np.array([load("judge").lead(*three) for three in zip(gain, other, best, strict=True)])
    for found in (values, leads):
        assert found[:, 1].mean() == pytest.approx(found[:, 0].std(), rel=0.06)
    assert leads[:, 0].mean() == pytest.approx(100 * 0.05 / 1.5, rel=0.02)


@pytest.mark.parametrize(
    ("lead", "error", "words"),
    [(-2.0, 1.0, "**below**"), (-1.0, 1.0, "within one error"), (2.0, 1.0, "first")],
)
def test_verdict_compares_with_one_standard_error(load: Load, lead: float, error: float, words: str) -> None:
    assert load("render").verdict(lead, error) == words


# -- actions with features ---------------------------------------------------------------------------------------------


class BestFeature:
    """The offered action with the largest first feature."""

    def fit(self, log: Any) -> None:
        assert np.array_equal(log.features[log.action][:, 0], log.reward)

    def choose(self, requests: Any) -> np.ndarray:
        scores = requests.features[requests.offered][:, :, 0]
        return np.take_along_axis(requests.offered, scores.argmax(axis=1)[:, None], axis=1)[:, 0]


@pytest.fixture
def offers(load: Load, tmp_path: Path) -> Path:
    """A run of the paper's setting: the reward of a movie is its first feature, for each of two tasks."""
    rng = np.random.default_rng(0)
    movies = rng.standard_normal((6, 2))
    offered = np.array([rng.permutation(6)[:3] for _ in range(40)])
    rows = load("peer_logs").movielens.Rows(
        clusters=None, theta=np.array([[1.0, 0.0], [1.0, 0.0]]), movies=movies, task=np.arange(20) % 2,
        candidates=offered[:20], action=np.arange(20) % 3,
        reward=movies[offered[:20][np.arange(20), np.arange(20) % 3], 0], judged=offered[20:].reshape(2, 10, 3),
    )  # fmt: skip
    load("peer_logs").movielens_folder(rows, tmp_path / "movielens-500-0")
    return tmp_path / "movielens-500-0"


def test_choices_among_offered_actions_are_judged_by_their_expected_rewards(load: Load, offers: Path) -> None:
    job = {"method": "x", "logs": [str(offers)], "result": str(offers / "r.json"), "features": True}
    (offers / "job.json").write_text(json.dumps(job))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["adapter", str(offers / "job.json")])
        load("contract").run({"x": Best}, {"x": BestFeature})
        (entry,) = json.loads((offers / "r.json").read_text())["logs"]
        score = load("judge").score_folder(offers, entry["chosen"])
        assert score.gain == pytest.approx(score.best)
        assert score.best > 0
        load("contract").run({"x": Best})
    (entry,) = json.loads((offers / "r.json").read_text())["logs"]
    assert load("render").words(entry["error"]) == "no features of actions"


def test_an_action_that_was_not_offered_is_no_choice(load: Load) -> None:
    offered = np.array([[4, 7], [7, 1]])
    assert load("judge").positions(offered, np.array([7, 7])).tolist() == [1, 0]
    with pytest.raises(ValueError, match="1 of 2 actions were not offered"):
        load("judge").positions(offered, np.array([7, 4]))


# -- the plan ----------------------------------------------------------------------------------------------------------


def test_the_page_says_where_a_plan_was_cut(load: Load) -> None:
    plans = load("plans")
    assert plans.cuts(vars(plans.FULL)) == []
    cut = plans.replace(plans.FULL, seeds=10, scale_seconds=180)
    assert plans.cuts(vars(cut)) == [
        "10 seeds in place of 20",
        "180 CPU s for a log of the scale in place of 900",
    ]
    assert cut.for_method(slow=True).seconds == cut.slow_seconds
    assert cut.for_method(slow=False) is cut


def test_a_log_that_must_take_too_long_is_not_tried(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    run = load("run")
    tried = []

    def job(method: Any, folders: list[Path], work: Path, label: str, **limits: Any) -> dict[str, Any]:
        del method, folders, work, limits
        tried.append(label)
        world = load("peer_logs").ALL[label].world
        return {
            "logs": [{"rows": world.tasks * world.rows, "fit_seconds": world.tasks / 50, "decide_seconds": 0}]
        }

    monkeypatch.setattr(run, "job", job)
    monkeypatch.setattr(run, "simulated_result", lambda entries: {"entries": entries})
    folders = {f"by-tasks-{tasks}": [Path()] for tasks in (100, 1_000, 10_000, 100_000)}
    found = run.scale(None, load("plans").QUICK, Path(), folders)
    assert tried == ["by-tasks-100", "by-tasks-1000"]
    assert found["by-tasks-10000"] == {"error": "not tried: a smaller log took 20 CPU s"}


def test_cells_that_a_run_did_not_reach_are_those_of_an_earlier_one(load: Load, tmp_path: Path) -> None:
    run = load("run")
    before = {
        "capabilities": {"x": "yes"},
        "worlds": {"a": {"n": 1}, "b": {"n": 1}},
        "scale": {"c": {"n": 1}},
    }
    document = {"made": "then", "results": {"plan": {"seeds": 5}, "methods": {"m": before, "gone": before},
                                                "tools": {"t": {"methods": ["m"], "version": "1"}}}}  # fmt: skip
    (tmp_path / "peers.json").write_text(json.dumps(document))
    mine = {"m": {"capabilities": None, "worlds": {"a": {"error": "not run"}, "b": {"error": "KeyError: 3"}},
                  "scale": {"c": {"n": 2}}}}  # fmt: skip
    tools = {"t": {"methods": ["m", "new"]}}
    assert run.taken_from(mine, tools, tmp_path / "peers.json") == {"made": "then", "seeds": 5, "cells": 1}
    assert tools == {"t": {"methods": ["m", "new"], "version": "1"}}
    assert mine["m"] == {
        "capabilities": {"x": "yes"}, "worlds": {"a": {"n": 1}, "b": {"error": "KeyError: 3"}}, "scale": {"c": {"n": 2}}
    }  # fmt: skip


# -- the contract ------------------------------------------------------------------------------------------------------


class Best:
    """The best mean of the log, for all."""

    def fit(self, log: Any) -> None:
        if np.isnan(log.x).any():
            raise ValueError("NaN in x")
        self.means = [log.reward[log.action == action].mean() for action in log.actions.tolist()]

    def scores(self, requests: Any) -> np.ndarray:
        return np.tile(self.means, (len(requests.task), 1))

    def choose(self, requests: Any) -> np.ndarray:
        return requests.actions[self.scores(requests).argmax(axis=1)]


class Slow(Best):
    def fit(self, log: Any) -> None:
        super().fit(log)
        while True:
            pass


def job(load: Load, folder: Path, method: str, **more: Any) -> dict[str, Any]:
    path = folder / "job.json"
    result = folder / "result.json"
    path.write_text(json.dumps({"method": method, "result": str(result), **more}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["adapter", str(path)])
        load("contract").run({"best": Best, "slow": Slow})
    found: dict[str, Any] = json.loads(result.read_text())
    return found


@pytest.fixture(scope="module")
def tiny(load: Load, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers")
    load("peer_logs").simulate("tasks-10", 0, folder / "tasks-10-0")
    load("peer_logs").capability_logs(folder / "capabilities")
    return folder


def test_a_log_is_learned_and_judged(load: Load, tiny: Path) -> None:
    found = job(load, tiny, "best", logs=[str(tiny / "tasks-10-0")], limit=60)
    (entry,) = found["logs"]
    assert entry["rows"] == 1_000
    assert entry["peak_mb"] > 0
    score = load("judge").score_folder(Path(entry["folder"]), entry["chosen"])
    actions = pq.read_table(Path(entry["folder"]) / entry["chosen"])["action"].to_numpy()
    with np.load(tiny / "tasks-10-0" / "truth.npz") as truth:
        one = truth["truth"][:, actions[0]] - truth["truth"] @ truth["shares"]
        assert score.gain == pytest.approx(truth["weight"] @ one)
        assert truth["weight"].sum() == pytest.approx(1)
    assert score.gain <= score.best


def test_a_limit_of_cpu_seconds_ends_a_log_and_leaves_out_its_world(load: Load, tiny: Path) -> None:
    logs = [str(tiny / "tasks-10-0")] * 2
    found = job(load, tiny, "slow", logs=logs, limit=0.1)
    assert [entry["error"] for entry in found["logs"]] == ["more than 0.1 CPU s"]


def test_no_log_is_begun_after_the_budget(load: Load, tiny: Path) -> None:
    found = job(
        load, tiny, "slow", logs=[str(tiny / name) for name in ("tasks-10-0", "x-0")], limit=0.2, budget=0.1
    )
    assert [entry["error"] for entry in found["logs"]] == ["more than 0.2 CPU s"]
    assert found["spent"] == 0.1


def test_claimed_gain_is_of_scores_by_rows_of_tasks(load: Load) -> None:
    contract, method = load("contract"), Best()
    method.scores = lambda _: np.array([[1.0, 3.0], [5.0, 1.0], [2.0, 2.0]])  # type: ignore[method-assign]
    train = contract.Log(
        pa.table({}), (), np.array([0, 1]), np.array([4, 4, 4, 9]), np.empty((4, 0)), np.array([0, 0, 0, 1])
    )
    requests = contract.Log(pa.table({}), (), np.array([0, 1]), np.array([4, 9, 9]), np.empty((3, 0)))
    found = contract.claimed(method, train, requests, np.array([1, 0, 0]))
    gains = np.array([3 - 1.5, 5 - 4, 0])  # the log's shares are 3/4 and 1/4
    assert found == pytest.approx(np.array([0.75, 0.125, 0.125]) @ gains)
    assert (
        contract.claimed(
            method, train, contract.replace(requests, eligible=np.ones((3, 2), bool)), train.action
        )
        is None
    )


def test_leads_are_of_the_seeds_that_both_methods_reached(load: Load) -> None:
    render = load("render")

    def entry(*gains: float) -> dict[str, Any]:
        return {"scores": [{"gain": gain, "best": 10.0, "harmed": 0.0} for gain in gains]}

    assert render.lead_over(entry(1, 2, 9, 9), entry(2, 4)) == (pytest.approx(-15), pytest.approx(5))
    worlds = {"ours": entry(1, 2, 9, 9), "also": entry(9, 9, 9, 9), "few": entry(90), "half": entry(0, 0)}
    results = {
        "ours": "ours", "studies": {}, "plan": {"seeds": 4}, "tools": {"hieropo": {"methods": ["ours", "also"]}},
        "methods": {name: {"worlds": {"plain": found}} for name, found in worlds.items()},
    }  # fmt: skip
    ((_, best, difference, words),) = render.verdict_rows(results)
    assert (best, difference, words) == ("half", "15.0 ± 5.0 %", "first")
    assert render.reached(results, worlds["half"]) == " (2 of 4)"
    assert not render.reached(results, worlds["ours"])


def test_abilities_are_answers_of_trials(load: Load, tiny: Path) -> None:
    found = job(load, tiny, "best", logs=[], capabilities=str(tiny / "capabilities"), limit=60)[
        "capabilities"
    ]
    assert found == {
        "interval of a task": "no",
        "task without rows": "yes",
        "eligible actions": "by hand, from scores",
        "save and load without pickle": "no",
        "NaN in a context": "error: ValueError: NaN in x",
        "log without propensities": "yes",
        "actions as text": "yes",
    }


def test_actions_without_a_chance_are_left_out(load: Load) -> None:
    contract, method = load("contract"), Best()
    method.means = [1.0, 2.0, 3.0]
    requests = contract.Log(
        pa.table({}), (), np.array(["a", "b", "c"]), np.arange(2), np.empty((2, 0)),
        eligible=np.array([[True, True, False], [True, False, True]]),
    )  # fmt: skip
    actions, way = contract.chosen(method, requests)
    assert actions.tolist() == ["b", "c"]
    assert way == "by scores"


def test_a_new_task_has_no_columns_of_its_own(load: Load) -> None:
    by_hand = load("by_hand")
    tasks = by_hand.Coded(np.array([7, 3, 7]))
    code = tasks.codes(np.array([3, 7, 5, 9]))
    assert code.tolist() == [0, 1, -1, -1]
    phi = np.arange(8.0).reshape(4, 2) + 1
    columns = by_hand.wide(phi, code, 2).toarray()
    assert np.array_equal(columns[:, :2], phi)
    assert np.array_equal(columns[0, 2:], [1, 2, 0, 0])
    assert np.array_equal(columns[1, 2:], [0, 0, 3, 4])
    assert not columns[2:, 2:].any()


# -- the table ---------------------------------------------------------------------------------------------------------


def test_lines_of_user_code_follow_names_and_leave_docstrings_out(load: Load, tmp_path: Path) -> None:
    (tmp_path / "with_x.py").write_text(
        '"""Head."""\n\nK = 3\nUNUSED = 4\n\ndef helper(a):\n    """Doc."""\n    return K + a  # remark\n\n'
        "class A:\n    # remark\n    def fit(self):\n        if K:\n            helper(1)\n"
    )
    (tmp_path / "by_hand.py").write_text("def other():\n    return 1\n")
    assert load("methods").user_lines("with_x", "A", tmp_path) == 1 + 2 + 4


def test_every_method_has_its_adapter_class_and_pinned_requirements(load: Load) -> None:
    methods = load("methods")
    for tool in methods.TOOLS.values():
        known = methods.definitions(methods.ADAPTERS / f"{tool.adapter}.py")
        assert set(tool.methods.values()) <= set(known)
        if tool.environment:
            text = (methods.ADAPTERS.parent / "requirements" / f"{tool.environment}.txt").read_text()
            assert all("==" in line for line in text.splitlines())
