"""The paper's synthetic problems, from settings to folder: runs against brute force, killed processes, what is left."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from scipy.stats import chi2, norm

from hieropo import ArtifactError, InputError
from hieropo.cli import main
from hieropo.cli.commands.reproduce import bar
from hieropo.reproduce import experiment
from hieropo.reproduce.experiment import EndedProcessError, Experiment, as_completed, run_missing
from hieropo.reproduce.judging import REFUSED, choices, losses, pessimism
from hieropo.reproduce.settings import Algorithm, Open, Settings, settings_of, shipped
from hieropo.reproduce.synthetic import experiment as synthetic
from hieropo.reproduce.synthetic.simulation import synthetic_features, synthetic_run
from hieropo.reproduce.writing import summarised

ROOT = Path(__file__).resolve().parents[2]
PAPER = ROOT / "docs" / "paper" / "synthetic"

SMALL = """
seed = 7
[[algorithms]]
name = "HierOPO"
prior = "hierarchical"
pessimism = 0.1
[[algorithms]]
name = "learned"
prior = "learned"
pessimism = 0.1
[synthetic]
runs = 6
dim = 2
actions = 3
noise_sd = 0.5
task_sd = 0.5
hyper_sd = [1.0]
tasks = 3
rows = 40
rows_grid = [30, 60]
tasks_grid = [3]
[synthetic.alternatives]
hyper_sd = 1.0
rows = [30]
algorithms = ["HierOPO"]
of.even = { rows_of_tasks = "even" }
[movielens]
runs = 1
few_runs = 1
rank = 2
ridge = 1.0
iterations = 1
noise_sd = 0.5
clusters = 2
tasks = 3
actions = 2
rows_grid = [10]
counts = { ratings = 9, users = 3, movies = 3, by_rating = [9] }
[beyond]
runs = 1
rows_grid = [10]
pessimism = 0.1
added_rows = 5.0
"""


@pytest.fixture(scope="module")
def shipped_settings() -> Settings:
    return settings_of(shipped(), "paper.toml")


# --- settings -------------------------------------------------------------------------------------------------------


def test_the_shipped_settings_are_the_papers(shipped_settings: Settings) -> None:
    what = shipped_settings.synthetic
    assert (what.dim, what.actions, what.noise_sd, what.task_sd, what.hyper_sd) == (
        4,
        5,
        0.5,
        0.5,
        (0.5, 1.0),
    )
    assert (what.tasks, what.rows) == (10, 500)
    assert (min(what.rows_grid), max(what.rows_grid)) == (50, 2500)
    assert (min(what.tasks_grid), max(what.tasks_grid)) == (5, 200)
    assert what.runs >= 300
    assert [each.pessimism for each in shipped_settings.algorithms[:3]] == [0.1, 0.1, 0.1]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seed = 7", "", "lacks the setting 'seed'"),
        ("seed = 7", "sead = 7\nseed = 7", "unknown setting 'sead'"),
        ("seed = 7", "seed = 7.5", "the file.seed is 7.5; a whole number"),
        ("seed = 7", "seed = true", "the file.seed is True; a whole number"),
        ("seed = 7", "seed =", "is not TOML"),
        ('prior = "learned"', 'prior = "bayes"', r"algorithms\[1\].prior is 'bayes'; one of 'oracle', "),
        (
            "pessimism = 0.1",
            'pessimism = "much"',
            r"algorithms\[0\].pessimism is 'much'; one of 'calibrated'",
        ),
        ("rows_grid = [30, 60]", "rows_grid = 30", "synthetic.rows_grid is 30; a list"),
        ("rows_grid = [30, 60]", "rows_grid = [30, 0]", "below 1"),
        ("task_sd = 0.5", "task_sd = -0.5", "not positive"),
        ('name = "learned"', 'name = "HierOPO"', "names of their own"),
        ('algorithms = ["HierOPO"]', 'algorithms = ["Other"]', "'Other', which is no algorithm"),
        ('rows_of_tasks = "even"', 'rows_of_task = "even"', "unknown setting 'rows_of_task'"),
        ('rows_of_tasks = "even"', 'evaluated_on = "logged"', "Set `contexts`, the number"),
        ('rows_of_tasks = "even"', "evaluation_contexts = 0", "at least 0 and 1"),
        ("ridge = 1.0", "ridge = 0.0", "its ridge or noise_sd is not positive"),
        ("added_rows = 5.0", "added_rows = 0.0", "added_rows that are not positive"),
        ("users = 3, ", "", "movielens.counts lacks the setting 'users'"),
        ("rows_grid = [10]", "rows_grid = [10]\nopen = { starts = 0 }", "movielens.open has starts"),
        ("rows_grid = [10]", 'rows_grid = [10]\nopen = { truth = "x" }', "one of 'factors', 'drawn'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name_and_place(old: str, new: str, said: str) -> None:
    assert old in SMALL
    with pytest.raises(InputError, match=said):
        settings_of(SMALL.replace(old, new, 1), "small.toml")


def test_pessimism_in_words_is_the_constant_it_stands_for() -> None:
    def sds(word: Any) -> float:
        return pessimism(Algorithm("a", "hierarchical", word, 0.9), 4)

    assert sds(0.3) == 0.3
    assert sds("calibrated") == pytest.approx(norm.ppf(0.9))
    assert sds("simultaneous") == pytest.approx(np.sqrt(chi2.ppf(0.9, 4)))
    assert sds("theorem") == pytest.approx(np.sqrt(5 * 4 * np.log(10)))


# --- one run --------------------------------------------------------------------------------------------------------


def brute_force_choice(
    prior: str, problem: Any, truth: Any, log: Any, candidates: np.ndarray, alpha: float
) -> np.ndarray:
    """Condition the joint Gaussian of all theta_s on the rewards, from the definition of each prior."""
    m, d = truth.theta.shape
    eye = np.eye(d)
    between, common = problem.task_sd**2 * eye, 1.0**2 * eye
    mean = np.zeros(m * d)
    if prior == "oracle":
        mean, common = np.tile(truth.root, m), 0 * eye
    if prior == "flat":
        between, common = between + common, 0 * eye
    if prior == "pooled":
        between = 0 * eye
    cov = np.kron(np.eye(m), between) + np.kron(np.ones((m, m)), common)
    design = np.zeros((log.reward.size, m * d))
    for t, (s, phi) in enumerate(zip(log.task, log.phi, strict=True)):
        design[t, s * d : (s + 1) * d] = phi
    gain = np.linalg.solve(
        design @ cov @ design.T + problem.noise_sd**2 * np.eye(len(design)), design @ cov
    ).T
    after, spread = mean + gain @ (log.reward - design @ mean), cov - gain @ design @ cov
    chosen = np.empty(candidates.shape[:2], dtype=int)
    for s in range(m):
        part = slice(s * d, (s + 1) * d)
        for e, phi in enumerate(candidates[s]):
            sd = np.sqrt(np.einsum("ki,ij,kj->k", phi, spread[part, part], phi))
            chosen[s, e] = (phi @ after[part] - alpha * sd).argmax()
    return chosen


@pytest.mark.parametrize("prior", ["oracle", "hierarchical", "flat", "pooled"])
@pytest.mark.parametrize("alpha", [0.1, 1.5])
def test_a_run_is_what_brute_force_makes_of_the_same_draws(prior: Any, alpha: float) -> None:
    problem, cell = settings_of(SMALL, "small.toml").synthetic, synthetic.Cell(1.0, 4, 15)
    world = synthetic.draw(problem, cell, np.random.default_rng(3))
    rng = np.random.default_rng(3)
    truth, log = synthetic_run(synthetic.hierarchy(problem, 1.0), 4, 15, rng, n_actions=problem.actions)
    candidates = synthetic_features((4, problem.open.evaluation_contexts, problem.actions, problem.dim), rng)
    algorithm = Algorithm("one", prior, alpha)
    (chosen,), _ = choices(world, [algorithm])
    expected = brute_force_choice(prior, problem, truth, log, candidates, alpha)
    assert np.array_equal(chosen, expected)
    lost = []
    for s in range(4):
        for phi, k in zip(candidates[s], expected[s], strict=True):
            lost.append((phi @ truth.theta[s]).max() - phi[k] @ truth.theta[s])
    assert losses(world, [algorithm]) == {"one": pytest.approx(np.mean(lost)), REFUSED: 0.0}


def drawn(seed: int, **open_: Any) -> synthetic.World:
    problem = replace(settings_of(SMALL, "small.toml").synthetic, open=Open(**open_))
    return synthetic.draw(problem, synthetic.Cell(1.0, 3, 60), np.random.default_rng(seed))


def test_each_decision_that_the_paper_leaves_open_does_what_it_says() -> None:
    usual = drawn(0, evaluation_contexts=7)
    assert usual.candidates.shape == (3, 7, 3, 2)
    assert not np.array_equal(usual.candidates[0], usual.candidates[1])
    common = drawn(0, evaluation_contexts=7, evaluated_on="common")
    assert np.array_equal(common.candidates[0], common.candidates[2])
    assert np.array_equal(usual.weights, np.full(3, 1 / 3))
    by_rows = drawn(0, averaged_over="rows")
    assert np.array_equal(
        by_rows.weights, np.array([by_rows.moments.rows[by_rows.moments.keys.find(s)] for s in range(3)]) / 60
    )
    assert sorted(drawn(0, rows_of_tasks="even").moments.rows) == [20, 20, 20]
    assert sorted(usual.moments.rows) != [20, 20, 20]
    pool = drawn(0, contexts=1, evaluated_on="logged")
    assert pool.candidates.shape == (3, 1, 3, 2)
    # The rows are all of one context: how often each of its three actions was logged comes out of the Gram matrix.
    corner = np.triu_indices(2)
    products = np.stack([np.outer(phi, phi)[corner] for phi in pool.candidates[0, 0]], axis=1)
    counts = np.linalg.solve(products, sum(pool.moments.gram(s) for s in range(3))[corner])
    assert counts == pytest.approx(np.round(counts), abs=1e-6)
    assert counts.min() > 5
    assert counts.sum() == pytest.approx(60)
    assert drawn(0, contexts=2).candidates.shape == (3, 100, 3, 2)


@pytest.mark.slow
def test_a_run_depends_on_seed_cell_and_number_alone() -> None:
    settings = settings_of(SMALL, "small.toml")
    first, second = list(synthetic.cells(settings))[:2]
    found = synthetic.one_run(settings, first, 1)
    assert synthetic.one_run(settings, first, 1) == found
    fewer = replace(settings, synthetic=replace(settings.synthetic, rows_grid=(30,), runs=2))
    assert synthetic.one_run(fewer, first, 1) == found
    others = [
        synthetic.one_run(settings, first, 2),
        synthetic.one_run(settings, second, 1),
        synthetic.one_run(replace(settings, seed=8), first, 1),
    ]
    assert all(other["HierOPO"] != found["HierOPO"] for other in others)


# --- summaries and the journal --------------------------------------------------------------------------------------


def test_a_summary_is_the_mean_with_its_error_and_the_paired_difference() -> None:
    runs = [{"a": 1.0, "b": 2.0}, {"a": 2.0, "b": 4.0}, {"a": 3.0, "b": 3.0}, {"a": 6.0, "b": 7.0}]
    first, second = summarised({"rows": 5}, runs, ["a", "b"], "a")
    assert (first.mean, first.difference, first.difference_se) == (3.0, 0.0, 0.0)
    assert first.se == pytest.approx(np.sqrt(14 / 3 / 4))
    assert (second.mean, second.difference) == (4.0, 1.0)
    assert second.difference_se == pytest.approx(np.sqrt(2 / 3 / 4))
    assert second.first == (2.0, 4.0, 3.0)
    assert second.columns()["rows"] == 5
    (alone,) = summarised({}, runs[:1], ["a"], "missing")
    assert np.isnan([alone.se, alone.difference]).all()


def journal_of(path: Path, **depends: Any) -> experiment.Journal:
    return experiment.Journal(path, {"seed": 1, **depends}, "abc")


def test_runs_are_read_back_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    runs = [experiment.Run("cell", k, {"a": 0.1 + k, "b": 1 / 3}) for k in range(3)]
    journal_of(path).add(runs)
    assert journal_of(path).runs == {each.key: each for each in runs}
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(last, len(whole)):
        path.write_bytes(whole[:end])
        assert list(journal_of(path).runs.values()) == runs[:2]
        assert path.read_bytes() == whole[:last]  # so that the next line does not hang on a torn one


def test_a_journal_of_other_settings_or_an_edited_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    journal_of(path).add([experiment.Run("cell", 0, {"a": 0.1})])
    with pytest.raises(ArtifactError, match=r"other settings \(open differ\).*another folder"):
        journal_of(path, open=1)
    text = path.read_text()
    path.write_text(text.replace('"run": 0', '"run": "x"'))
    with pytest.raises(ArtifactError, match=r"Line 2 of .*runs.jsonl is not a run"):
        journal_of(path)
    path.write_text("[]\n" + text)
    with pytest.raises(ArtifactError, match="Line 1"):
        journal_of(path)
    with pytest.raises(ArtifactError, match="cannot be written or read"):
        journal_of(tmp_path)


# --- processes ------------------------------------------------------------------------------------------------------


def dies(piece: int) -> int:
    if piece == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return piece


def fails(_: Any, __: int) -> dict[str, float]:
    raise InputError("nothing can be drawn.")


@pytest.mark.slow
def test_a_process_that_is_killed_is_an_error_that_says_how_to_go_on() -> None:
    with pytest.raises(EndedProcessError, match="The same command goes on"):
        list(as_completed(dies, range(6), 2))


def alive_in_group(group: int) -> list[str]:
    """Processes of a group that have not ended; one that nobody has asked for its end yet has state Z."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = path.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of) == group and state != "Z":
            found.append(path.parent.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc here, which lists processes")
@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them_even_where_it_is_killed(tmp_path: Path) -> None:
    settings = tmp_path / "small.toml"
    settings.write_text(SMALL.replace("runs = 6", "runs = 10000"))
    words = [
        "synthetic",
        "--settings",
        str(settings),
        "--no-figures",
        "--processes",
        "2",
        "-o",
        str(tmp_path / "out"),
    ]
    running = subprocess.Popen(command(*words), stdout=subprocess.DEVNULL, start_new_session=True)
    runs, limit = tmp_path / "out" / "runs.jsonl", time.monotonic() + 60
    while time.monotonic() < limit and not (runs.exists() and runs.read_bytes().count(b"\n") > 5):
        time.sleep(0.01)
    assert len(alive_in_group(running.pid)) > 2
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    while alive_in_group(running.pid) and time.monotonic() < limit:
        time.sleep(0.01)
    assert not alive_in_group(running.pid)


@pytest.mark.slow
def test_a_run_that_fails_is_named(tmp_path: Path) -> None:
    cell = synthetic.Cell(1.0, 3, 30)
    with pytest.raises(InputError, match="nothing can be drawn") as caught:
        run_missing(Experiment("x", {}, {cell: 1}, fails), tmp_path, 1, lambda _, __: None)
    assert caught.value.__notes__ == ["(In run 0 of hyper_sd 1, tasks 3, rows 30, as set.)"]


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", "from hieropo.cli import main; main()", "reproduce", *words]


def values(folder: Path) -> Any:
    return pq.read_table(folder / "runs.parquet").to_pylist()


@pytest.mark.slow
def test_the_figures_are_the_same_with_any_number_of_processes_and_after_a_kill(tmp_path: Path) -> None:
    settings = tmp_path / "small.toml"
    settings.write_text(SMALL.replace("runs = 6", "runs = 60").replace('prior = "learned"', 'prior = "flat"'))
    words = ["synthetic", "--settings", str(settings), "--no-figures", "-o"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run(command(*words, str(whole), "--processes", "1"), check=True, capture_output=True)
    running = subprocess.Popen(
        command(*words, str(broken), "--processes", "2"), stdout=subprocess.DEVNULL, start_new_session=True
    )
    runs, limit = broken / "runs.jsonl", time.monotonic() + 60
    while time.monotonic() < limit and not (runs.exists() and runs.read_bytes().count(b"\n") > 10):
        time.sleep(0.005)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    before = runs.read_bytes()
    assert 10 < before.count(b"\n") < 230
    assert not (broken / "results.md").exists()
    subprocess.run(command(*words, str(broken), "--processes", "2"), check=True, capture_output=True)
    assert runs.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    assert values(broken) == values(whole)
    # a third start finds all runs made, and more runs leave those that are there
    done = subprocess.run(command(*words, str(broken), "--json"), check=True, capture_output=True)
    assert [each["runs"] for each in json.loads(done.stdout)["results"]] == [60] * 7


# --- the command ----------------------------------------------------------------------------------------------------


def invoke(*words: str) -> Any:
    return CliRunner().invoke(main, ["reproduce", *words])


@pytest.mark.slow
def test_the_command_leaves_tables_and_pictures_with_their_origin_inside(tmp_path: Path) -> None:
    settings = tmp_path / "small.toml"
    settings.write_text(SMALL)
    found = invoke(
        "synthetic",
        "--settings",
        str(settings),
        "-o",
        str(tmp_path / "a" / "b"),
        "--runs",
        "2",
        "--seed",
        "5",
    )
    assert found.exit_code == 0, found.output
    assert "Mean suboptimality over 2 runs at each point" in found.output
    out = tmp_path / "a" / "b"
    names = {"figure.png", "figure.svg", "figure_all.png", "figure_all.svg"}
    assert {path.name for path in out.iterdir()} == names | {
        "results.md",
        "results.parquet",
        "runs.jsonl",
        "runs.parquet",
    }
    for name in ("results.parquet", "runs.parquet"):
        inside = {key.decode(): value.decode() for key, value in pq.read_schema(out / name).metadata.items()}
        assert inside["seed"] == "5"
        assert inside["settings"] == SMALL
        assert re.match("[0-9a-f]{40}|release", inside["commit"])
        for picture in names:
            assert inside["commit"].encode() in (out / picture).read_bytes()
    text = (out / "results.md").read_text()
    assert "hieropo reproduce synthetic -o DIR --settings small.toml --runs 2 --seed 5" in text
    rows = pq.read_table(out / "results.parquet").to_pylist()
    row = next(each for each in rows if each["rows"] == 60 and each["algorithm"] == "learned")
    every = [each["value"] for each in values(out) if each["rows"] == 60 and each["figure"] == "learned"]
    assert row["first"] == every
    assert row["mean"] == pytest.approx(np.mean(every))
    assert (
        f"| learned | {next(each for each in rows if each['algorithm'] == 'learned')['mean']:.4f} ±" in text
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["synthetic"], 2, "Missing option '-o'"),
        (["synthetic", "-o", "x", "--settings", "missing.toml"], 1, "missing.toml cannot be read"),
        (["synthetic", "-o", "x", "--runs", "0"], 2, "0 is not in the range"),
        (["synthetic", "-o", "file/x", "--no-figures"], 1, "The folder file/x cannot be made"),
    ],
)
def test_what_cannot_be_done_is_refused(
    words: list[str], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    found = invoke(*words)
    assert found.exit_code == code
    assert said in found.output
    assert not Path("x").exists()


def test_without_matplotlib_it_is_said_before_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    found = invoke("synthetic", "-o", str(tmp_path / "x"))
    assert found.exit_code == 1
    assert "pip install 'hieropo[plots]'" in found.output
    assert "--no-figures" in found.output
    assert not (tmp_path / "x").exists()


def test_the_bar_says_how_far_it_is() -> None:
    assert bar(0, 100, 0.0, 0) == f"[{'.' * 30}] 0 of 100 runs"
    assert bar(50, 100, 20.0, 40) == f"[{'#' * 15}{'.' * 15}] 50 of 100 runs, about 25 s left"
    assert bar(10, 1000, 10.0, 10).endswith("10 of 1,000 runs, about 16 min left")
    assert bar(100, 100, 9.0, 100) == f"[{'#' * 30}] 100 of 100 runs"
