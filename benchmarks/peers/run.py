"""Side by side: every peer on the same logs. Writes benchmarks/results/peers.json; render.py makes the page of it.

    python benchmarks/peers/run.py [--quick] [--methods NAME ...] [--work DIR] [--data DIR] [--processes N]

``make peers`` runs this and render.py; ``QUICK=1 make peers`` takes about ten minutes on two processors, and the
installations once. Each peer has an environment of its own, made by pip from ``requirements``. A method gets its
logs through the contract of ``adapters/contract.py``; one that fails, or takes more CPU seconds or memory than
allowed, is in the table with its error. ``--resume`` keeps the finished jobs of an earlier run with the same folder;
``--assemble`` runs nothing and takes what is there. ``--seeds``, ``--budget`` and the like cut the plan (``plans.py``).
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Lock

import judge
import paths
import peer_logs
import record
from environments import environment, installed, r_with_lme4
from methods import ADAPTERS, OURS, TOOLS, Tool, user_lines
from plans import FULL, LIMITS, QUICK, Plan

HERE = Path(__file__).resolve().parent
ROOT = paths.ROOT
QUICK_STUDIES = ("kenya", "oralytics", "star_grades")
ONE_LARGE = Lock()  # two logs of ten million rows at once would need more memory than a machine may have
LARGE = 5_000_000
UNREACHED = ("not run", "not reached", "budget spent", "no result")


@dataclass(frozen=True)
class Method:
    """A method with the interpreter that runs it."""

    name: str
    tool: Tool
    python: str

    @property
    def slow(self) -> bool:
        """Return True where the method has the limits of slow ones."""
        return self.name in self.tool.slow


def job(method: Method, folders: list[Path], work: Path, label: str, **limits: object) -> dict:
    """Run an adapter on some logs in a process of its own, and return its record."""
    stem = f"{method.tool.adapter}-{method.tool.methods[method.name]}-{method.tool.environment}-{label}"
    files = [work / "jobs" / f"{stem}.{end}" for end in ("job.json", "result.json", "err.txt")]
    files[0].parent.mkdir(parents=True, exist_ok=True)
    kept = finished(files[1])
    if limits.pop("resume") and kept:
        return kept
    if limits.pop("assemble"):
        return (
            json.loads(files[1].read_text(encoding="utf-8"))
            if files[1].exists()
            else {"logs": [], "error": "not run"}
        )
    files[1].unlink(missing_ok=True)
    warm = str(folders[0] if limits.get("features") else work / "logs" / "capabilities" / "plain")
    text = {
        "method": method.name,
        "logs": [str(folder) for folder in folders],
        "warm": warm,
        "result": str(files[1]),
    }
    memory = limits.pop("memory")
    files[0].write_text(json.dumps({**text, **limits}), encoding="utf-8")

    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (int(memory * 1e9),) * 2)

    with files[2].open("w", encoding="utf-8") as errors:
        command = [method.python, str(ADAPTERS / f"{method.tool.adapter}.py"), str(files[0])]
        done = subprocess.run(command, stderr=errors, stdout=errors, check=False, preexec_fn=limit_memory)
    found = json.loads(files[1].read_text(encoding="utf-8")) if files[1].exists() else {"logs": []}
    if done.returncode:
        last = (
            files[2].read_text(encoding="utf-8").strip().splitlines() or [f"exit code {done.returncode}"]
        )[-1]
        found["error"] = last[:200]
    files[1].write_text(json.dumps({**found, "finished": True}, indent=1) + "\n", encoding="utf-8")
    sys.stderr.write(f"{method.name}, {label}: {found.get('error', 'done')}\n")
    return found


def finished(path: Path) -> dict | None:
    """Return the record of a job that ended, with or without errors."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found if found.get("finished") else None


# -- logs --------------------------------------------------------------------------------------------------------------


def draw(plan: Plan, work: Path) -> dict[str, list[Path]]:
    """Draw the simulated logs that are not there yet; folders of each world."""
    of_values = {**peer_logs.WORLDS, **peer_logs.BY_ROWS, **peer_logs.NO_EFFECT}
    names = dict.fromkeys(plan.worlds(of_values), plan.seeds)
    names |= dict.fromkeys(plan.worlds({**peer_logs.BY_TASKS, **peer_logs.SCALE}), 1)
    folders: dict[str, list[Path]] = {}
    for name, count in names.items():
        folders[name] = [work / "logs" / f"{name}-{seed}" for seed in range(count)]
        for seed, folder in enumerate(folders[name]):
            if not (folder / "truth.npz").exists():
                peer_logs.simulate(name, seed, folder)
    peer_logs.capability_logs(work / "logs" / "capabilities")
    return folders


def cut(plan: Plan, work: Path, data: Path | None) -> tuple[dict, dict[str, list[Path]]]:
    """Cut the real logs into halves; studies and folders of each."""
    if data is None:
        return {}, {}
    chosen = QUICK_STUDIES if plan.quick else tuple(peer_logs.STUDIES)
    studies = {name: peer_logs.STUDIES[name](data) for name in chosen}
    folders = {name: [work / "logs" / f"{name}-{half}" for half in range(plan.halves)] for name in studies}
    for name, study in studies.items():
        for half, folder in enumerate(folders[name]):
            peer_logs.half_folder(study, half, folder)
    return studies, folders


def paper(plan: Plan, work: Path, data: Path | None) -> dict[str, list[Path]]:
    """Draw the paper's MovieLens logs where its ratings are there."""
    if data is None or not (data / "ml1m_ratings_notime.parquet").exists():
        return {}
    return peer_logs.movielens_folders(plan.worlds(peer_logs.MOVIELENS), plan.seeds, data, work / "logs")


# -- results -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Logs:
    """Logs of values: folders by world, the label of their job, and the studies among them by name."""

    label: str
    folders: dict[str, list[Path]]
    studies: dict

    @property
    def in_order(self) -> list[Path]:
        """The first seed of each world first."""
        seeds = range(max(map(len, self.folders.values()), default=0))
        return [of[seed] for seed in seeds for of in self.folders.values() if seed < len(of)]


def values(method: Method, plan: Plan, work: Path, logs: Logs, **more: object) -> dict:
    """Run a method on all logs of values, the first seed of each world first, and judge it."""
    plan = plan.for_method(slow=method.slow)
    found = job(method, logs.in_order, work, logs.label, budget=plan.budget, limit=plan.seconds,
                memory=plan.memory, resume=plan.resume, assemble=plan.assemble, **more)  # fmt: skip
    result: dict = {"capabilities": found.get("capabilities"), "error": found.get("error"), "worlds": {}}
    by_folder = {entry["folder"]: entry for entry in found["logs"]}
    left_out = found.get("error") or ("budget spent" if "spent" in found else "not reached")
    for name, of_world in logs.folders.items():
        entries = [by_folder[str(folder)] for folder in of_world if str(folder) in by_folder]
        error = next((entry["error"] for entry in entries if "error" in entry), None)
        if error or not entries:
            result["worlds"][name] = {"error": error or left_out}
        elif name in logs.studies:
            result["worlds"][name] = real_result(logs.studies[name], entries)
        else:
            result["worlds"][name] = simulated_result(entries)
    return result


def costs(entries: list) -> dict:
    middle = sorted(entries, key=lambda entry: entry["fit_seconds"])[len(entries) // 2]
    return {
        name: middle[name]
        for name in ("rows", "requests", "fit_seconds", "decide_seconds", "peak_mb", "eligible")
    }


def simulated_result(entries: list) -> dict:
    scores = [judge.score_folder(Path(entry["folder"]), entry["chosen"]) for entry in entries]
    claims = [entry["claimed"] for entry in entries]
    return {**costs(entries), "scores": [asdict(score) for score in scores], "claims": claims}


def real_result(study: object, entries: list) -> dict:
    pairs = []
    for half, entry in enumerate(entries):
        chosen = judge.pq.read_table(Path(entry["folder"]) / entry["chosen"])["action"].to_numpy(
            zero_copy_only=False
        )
        pairs.append(judge.half_gain(study, half, chosen))
    return {
        **costs(entries),
        "gains": [gain for gain, _ in pairs],
        "replaced": sum(lost for _, lost in pairs) / len(pairs),
    }


def scale(method: Method, plan: Plan, work: Path, folders: dict[str, list[Path]]) -> dict:
    """Run a method on logs of growing size, a process each, until one fails, or must by the seconds of the last."""
    results: dict = {}
    failed, rows, spent = False, 1, 0.0
    for name, (folder,) in folders.items():
        world = peer_logs.ALL[name].world
        growth = world.tasks * world.rows / rows
        if failed or spent * growth > 2 * plan.scale_seconds:
            reason = "a smaller log failed" if failed else f"a smaller log took {spent:.0f} CPU s"
            results[name] = {"error": f"not tried: {reason}"}
            continue
        with ONE_LARGE if world.tasks * world.rows >= LARGE else nullcontext():
            found = job(method, [folder], work, name, limit=plan.scale_seconds, memory=plan.memory,
                        resume=plan.resume, assemble=plan.assemble)  # fmt: skip
        entry = found["logs"][0] if found["logs"] else {"error": found.get("error", "no result")}
        failed = entry.get("error", UNREACHED[0]) not in UNREACHED
        results[name] = {"error": entry["error"]} if "error" in entry else simulated_result([entry])
        if "error" not in entry:
            rows, spent = entry["rows"], entry["fit_seconds"] + entry["decide_seconds"]
    return results


def setup(chosen: list[str] | None, plan: Plan, work: Path, processes: int) -> tuple[list[Method], dict]:
    """Make the environments, some at once; methods that can run, and what each tool is."""
    methods, tools = [], {}
    wanted = {tool.environment: None for tool in TOOLS.values() if not chosen or {*tool.methods} & {*chosen}}
    with ThreadPoolExecutor(processes) as pool:
        made = {
            name: pool.submit(environment, name, work / "environments") for name in wanted if name is not None
        }
    for name, tool in TOOLS.items():
        mine = [method for method in tool.methods if not chosen or method in chosen]
        if not mine:
            continue
        python, error = sys.executable, r_with_lme4() if name == "lme4" else None
        if tool.environment:
            environment_made = made[tool.environment].result()
            python, error = str(environment_made.python), environment_made.error
        tools[name] = {"methods": mine, "error": error}
        if error is None:
            tools[name] |= measured(name, tool, python, plan, work)
            methods += [Method(method, tool, python) for method in mine]
        sys.stderr.write(f"{name}: {error or 'there'}\n")
    return methods, tools


def measured(name: str, tool: Tool, python: str, plan: Plan, work: Path) -> dict:
    """Return the size and the import of a tool; those of an earlier run where it goes on."""
    path = work / "tools" / f"{name}.json"
    if path.exists() and (plan.resume or plan.assemble):
        return json.loads(path.read_text(encoding="utf-8"))
    if plan.assemble or not tool.distribution:
        return {}
    path.parent.mkdir(parents=True, exist_ok=True)
    found = installed(Path(python), tool.distribution, tool.module)
    path.write_text(json.dumps(found), encoding="utf-8")
    return found


def compile_ours(methods: list[Method], plan: Plan, work: Path, sizes: dict[str, list[Path]]) -> None:
    """Compile hieropo's loops into their cache on disk, as its first fit does; the seconds are not counted."""
    ours = [method for method in methods if method.name == OURS]
    if ours:
        job(ours[0], sizes["by-tasks-1000"], work, "compile", limit=None, memory=plan.memory,
            resume=plan.resume, assemble=plan.assemble)  # fmt: skip


def compared(python: str | None, plan: Plan) -> dict:
    """Compare estimates where sb-obp is there; a run that only assembles takes what is recorded."""
    if plan.assemble:
        there = (record.FOLDER / "off_policy.json").exists()
        return record.read("off_policy")["results"] if there else {"error": "not run"}
    return estimators(python) if python else {"error": "sb-obp is not installed"}


def estimators(python: str) -> dict:
    """Compare estimates with those of sb-obp by ``benchmarks/off_policy.py``."""
    program = HERE.parent / "off_policy.py"
    command = [sys.executable, str(program), "--peer", python, "--rows", "1000000", "--tasks", "10000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    return record.read("off_policy")["results"]


def taken_from(results: dict, tools: dict, earlier: Path | None) -> dict | None:
    """Take what this run did not reach from the record of an earlier run of the same logs; say which run that is.

    A world has the same logs by seed in every run, so that pairs of methods stay pairs.
    """
    if earlier is None:
        return None
    document = json.loads(earlier.read_text(encoding="utf-8"))
    before = document["results"]
    for name in tools.keys() & before["tools"].keys():
        if not tools[name].get("version"):
            tools[name] = {**before["tools"][name], "methods": tools[name]["methods"]}
    both = results.keys() & before["methods"].keys()
    cells = sum(filled(results[name], before["methods"][name]) for name in both)
    return {"made": document["made"], "seeds": before["plan"]["seeds"], "cells": cells}


def filled(mine: dict, before: dict) -> int:
    """Fill what a method did not reach with results of an earlier run; return the number of worlds and sizes."""
    mine["capabilities"] = mine["capabilities"] or before["capabilities"]
    count = 0
    for kind in ("worlds", "scale"):
        for world, entry in before[kind].items():
            unreached = mine[kind].get(world, {}).get("error") in UNREACHED
            if unreached and entry.get("error") not in UNREACHED:
                mine[kind][world], count = entry, count + 1
    return count


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", default=os.environ.get("QUICK") == "1")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--assemble", action="store_true")
    parser.add_argument(
        "--earlier", type=Path, help="record of a run from which cells are taken that this one did not reach"
    )
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "peers")
    parser.add_argument("--data", type=Path, default=os.environ.get("HIEROPO_DATA"))
    parser.add_argument("--processes", type=int, default=2)
    for name, words in LIMITS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, help=f"{words}; the page says where it is cut"
        )
    return parser.parse_args()


def planned(given: argparse.Namespace) -> Plan:
    """Return the plan that the command line asks for."""
    limits = {name: getattr(given, name) for name in LIMITS if getattr(given, name) is not None}
    whole = QUICK if given.quick else FULL
    return replace(whole, resume=given.resume, assemble=given.assemble, **limits)


def main() -> None:
    """Run everything and write the results."""
    given, load = arguments(), os.getloadavg()
    plan, work = planned(given), given.work.resolve()
    methods, tools = setup(given.methods, plan, work, given.processes)
    drawn = draw(plan, work)
    studies, halves = cut(plan, work, given.data and Path(given.data))
    sizes = {
        name: drawn.pop(name) for name in list(drawn) if name in peer_logs.BY_TASKS or name in peer_logs.SCALE
    }
    compile_ours(methods, plan, work, sizes)
    judged, movies, large = {}, {}, {}
    worlds = Logs("values", {**drawn, **halves}, studies)
    of_paper = Logs("movielens", paper(plan, work, given.data and Path(given.data)), {})
    with ThreadPoolExecutor(given.processes) as pool:
        trials, in_turn = (
            str(work / "logs" / "capabilities"),
            sorted(methods, key=lambda method: method.slow),
        )
        for method in in_turn if of_paper.folders else ():
            movies[method.name] = pool.submit(values, method, plan, work, of_paper, features=True)
        for method in in_turn:
            judged[method.name] = pool.submit(values, method, plan, work, worlds, capabilities=trials)
        for method in in_turn:
            large[method.name] = pool.submit(scale, method, plan, work, sizes)
    results = {}
    for method in methods:
        found = judged[method.name].result()
        if of_paper.folders:
            found["worlds"] |= movies[method.name].result()["worlds"]
        results[method.name] = {**found, "scale": large[method.name].result()}
    taken = taken_from(results, tools, given.earlier)
    for method in methods:
        results[method.name]["lines"] = user_lines(method.tool.adapter, method.tool.methods[method.name])
    obp = next((method.python for method in methods if method.tool.environment == "sb-obp"), None)
    record.write("peers", {
        "plan": asdict(plan), "ours": OURS, "tools": tools, "methods": results,
        "earlier": taken,
        "studies": {name: len(study.reward) for name, study in studies.items()},
        "estimators": compared(obp, plan),
    }, load=load)  # fmt: skip


if __name__ == "__main__":
    main()
