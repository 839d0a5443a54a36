"""The contract of an adapter: logs and requests in, chosen actions and a record of their cost out.

An adapter is a program ``adapters/PEER.py`` that hands a dictionary of methods to ``run``, and another one of those
that take features of actions (movies). A method is a class with

    fit(log)                        learns; its CPU seconds and the peak of memory are recorded
    choose(requests)                an action for each request, (n,); its CPU seconds are recorded
    scores(requests)                optional, estimates of the expected rewards, (n, K): actions that are not eligible
                                    are then left out by hand, and the gain that the estimates claim is recorded
    choose_eligible(requests, may)  optional: the library itself is told which actions may be chosen, may (n, K)
    interval(request, action)       optional: low and high of the expected reward of an action in a task
    save(folder), load(folder)      optional: the library's own way to keep a fitted learner
    codes_actions = True            the class turns actions into numbers by hand

The program reads a job, a JSON file:

    method          name of the method
    logs            folders, each with train.parquet, requests.parquet and meta.json; chosen.parquet is added to each
    features        true: the actions of the logs have features (features.npy), and each row names the actions offered
    warm            a folder of a small log that is learned first and not counted (imports, compiled code), or null
    capabilities    a folder of logs by which abilities are tried, or null
    limit           CPU seconds that one log may take, or null
    budget          CPU seconds that all logs together may take, or null: none is begun after them
    result          the file that the record is written to

A log that fails, or takes longer, has its error in the record; others of its world (``WORLD-SEED``) are then left out.
Logs are learned in the order given, so a budget that is spent leaves out the last ones.
It needs numpy and pyarrow alone, and runs in the environment of the peer.
"""

import json
import os
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PICKLED = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


@dataclass(frozen=True)
class Log:
    """Rows of a log, as arrays and as the Arrow table that they came from; ``reward`` is None in requests.

    ``actions`` are the K actions in order, ``eligible`` (n, K) says which may be chosen, or is None. Where actions have
    features, they are 0 .. K-1, ``features`` is (K, d), and ``offered`` (n, k) are the actions of each row.
    """

    table: pa.Table
    columns: tuple
    actions: np.ndarray
    task: np.ndarray
    x: np.ndarray
    action: np.ndarray | None = None
    reward: np.ndarray | None = None
    p: np.ndarray | None = None
    eligible: np.ndarray | None = None
    features: np.ndarray | None = None
    offered: np.ndarray | None = None


def read(path: Path) -> Log:
    """Read train.parquet or requests.parquet of a folder."""
    meta = json.loads((path.parent / "meta.json").read_text(encoding="utf-8"))
    table, columns = pq.read_table(path), tuple(meta["context"])
    x = (
        np.column_stack([table[name].to_numpy() for name in columns])
        if columns
        else np.empty((len(table), 0))
    )
    fields = {name: table[name].to_numpy(zero_copy_only=False) for name in ("action", "reward", "p")
              if name in table.column_names}  # fmt: skip
    if "eligible" in table.column_names:
        flat = table["eligible"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        fields["eligible"] = flat.reshape(len(table), -1)
        table = table.drop_columns("eligible")
    if "offered" in table.column_names:
        flat = table["offered"].combine_chunks().flatten().to_numpy()
        fields |= {"offered": flat.reshape(len(table), -1), "features": np.load(path.parent / "features.npy")}
    return Log(table, columns, np.array(meta["actions"]), table["task"].to_numpy(), x, **fields)


def best_offered(offered: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the action with the best score of those offered in each request, both (n, k)."""
    return np.take_along_axis(offered, scores.argmax(axis=1)[:, None], axis=1)[:, 0]


def chosen(method: object, requests: Log) -> tuple:
    """Return the chosen actions (n,) and how eligible actions were respected: "asked", "by scores", "no" or ""."""
    if requests.eligible is None:
        return np.asarray(method.choose(requests)), ""
    if hasattr(method, "choose_eligible"):
        return np.asarray(method.choose_eligible(requests, requests.eligible)), "asked"
    if hasattr(method, "scores"):
        scores = np.where(requests.eligible, np.asarray(method.scores(requests)), -np.inf)
        return requests.actions[scores.argmax(axis=1)], "by scores"
    return np.asarray(method.choose(requests)), "no"


def cpu() -> float:
    """Return CPU seconds of this process and of the processes it waited for."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in usage)


def peak() -> float:
    """Return the peak of resident memory in MB: of this process, or of a larger one that it waited for."""
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    own = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return max(int(own.split()[1]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024


def learned(make: type, folder: Path) -> dict:
    """Learn from one folder, answer its requests, and return the costs."""
    train, requests = read(folder / "train.parquet"), read(folder / "requests.parquet")
    start, method = cpu(), make()
    method.fit(train)
    fitted, memory = cpu(), peak()
    actions, eligible = chosen(method, requests)
    decided = cpu()
    pq.write_table(pa.table({"action": pa.array(actions.tolist())}), folder / f"chosen-{os.getpid()}.parquet")
    return {
        "folder": str(folder), "rows": len(train.table), "requests": len(requests.table), "fit_seconds": fitted - start,
        "decide_seconds": decided - fitted, "peak_mb": memory, "eligible": eligible,
        "claimed": claimed(method, train, requests, actions), "chosen": f"chosen-{os.getpid()}.parquet",
    }  # fmt: skip


def claimed(method: object, train: Log, requests: Log, actions: np.ndarray) -> float | None:
    """Return the mean score of the chosen actions less that of the log's actions by their shares.

    Requests are weighed by the rows of their task. None where a method has no scores, or where eligible actions are
    given.
    """
    if requests.eligible is not None or not hasattr(method, "scores"):
        return None
    scores = np.asarray(method.scores(requests), dtype=float)
    place = {action: k for k, action in enumerate(requests.actions.tolist())}
    shares = np.bincount([place[action] for action in train.action.tolist()], minlength=len(place))
    mine = scores[np.arange(len(scores)), [place[action] for action in actions.tolist()]]
    tasks, task = np.unique(requests.task, return_inverse=True)
    rows = np.bincount(np.searchsorted(tasks, train.task), minlength=len(tasks))
    weight = (rows / np.bincount(task))[task]
    return float(weight @ (mine - scores @ shares / shares.sum()) / weight.sum())


class TooLongError(Exception):
    """A log took more CPU seconds than the job allows."""


def _stop(number: int, frame: object) -> None:
    del number, frame
    raise TooLongError


def within(limit: float | None, work: object, *arguments: object) -> tuple:
    """Return the result of a call and None, or None and its error; it may take ``limit`` CPU seconds."""
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, limit or 0.0)
    try:
        return work(*arguments), None
    except TooLongError:
        return None, f"more than {limit:g} CPU s"
    except Exception as failure:  # noqa: BLE001  the record names it
        traceback.print_exc()
        words = (str(failure).strip().splitlines() or [""])[0]
        return None, f"{type(failure).__name__}: {words}"[:200]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


# -- abilities, each tried -----------------------------------------------------------------------------------------


def try_interval(make: type, folder: Path) -> str:
    """Ask for the interval of an action in a task."""
    if not hasattr(make, "interval"):
        return "no"
    method, requests = make(), read(folder / "plain" / "requests.parquet")
    method.fit(read(folder / "plain" / "train.parquet"))
    low, high = method.interval(_first(requests, 1), requests.actions[0])
    return "yes" if np.isfinite([low, high]).all() and low < high else f"no: [{low}, {high}]"


def try_new_task(make: type, folder: Path) -> str:
    """Ask for a decision in a task without rows."""
    method, requests = make(), read(folder / "plain" / "requests.parquet")
    method.fit(read(folder / "plain" / "train.parquet"))
    few = _first(requests, 5)
    task = np.full(5, int(requests.task.max()) + 1000)
    table = few.table.set_column(few.table.column_names.index("task"), "task", pa.array(task))
    return _answers(method, replace(few, task=task, table=table))


def try_eligible(make: type, folder: Path) -> str:
    """Forbid an action and look for it among the decisions."""
    method, requests = make(), read(folder / "plain" / "requests.parquet")
    method.fit(read(folder / "plain" / "train.parquet"))
    free = np.asarray(method.choose(requests))
    often = max(requests.actions.tolist(), key=free.tolist().count)
    may = np.repeat((requests.actions != often)[None], len(requests.table), axis=0)
    actions, way = chosen(method, replace(requests, eligible=may))
    if way == "no" or (actions == often).any():
        return "no"
    return "yes" if way == "asked" else "by hand, from scores"


def try_saving(make: type, folder: Path) -> str:
    """Save, load and compare decisions; look for pickles in the files."""
    if not hasattr(make, "save"):
        return "no"
    method, requests = make(), read(folder / "plain" / "requests.parquet")
    method.fit(read(folder / "plain" / "train.parquet"))
    with tempfile.TemporaryDirectory() as place:
        method.save(Path(place))
        files = [path for path in Path(place).rglob("*") if path.is_file()]
        if any(path.read_bytes()[:2] in PICKLED for path in files):
            return "no: a pickle"
        loaded = make()
        loaded.load(Path(place))
        alike = np.array_equal(np.asarray(loaded.choose(requests)), np.asarray(method.choose(requests)))
    return "yes" if alike else "no: decisions differ"


def try_no_p(make: type, folder: Path) -> str:
    """Learn from a log without propensities."""
    method = make()
    method.fit(read(folder / "no_p" / "train.parquet"))
    return _answers(method, read(folder / "no_p" / "requests.parquet"))


def try_text(make: type, folder: Path) -> str:
    """Learn from a log whose actions are words."""
    method = make()
    method.fit(read(folder / "text" / "train.parquet"))
    answer = _answers(method, read(folder / "text" / "requests.parquet"))
    return "by hand, coded" if answer == "yes" and getattr(make, "codes_actions", False) else answer


def try_nan(make: type, folder: Path) -> str:
    """Learn with a twentieth of a context missing; compare the decisions with those of the whole log."""
    methods, requests = [], read(folder / "plain" / "requests.parquet")
    for name in ("plain", "nan"):
        methods.append(make())
        methods[-1].fit(read(folder / name / "train.parquet"))
    whole, holes = (np.asarray(method.choose(requests)) for method in methods)
    return f"{100 * (whole == holes).mean():.0f} % of the decisions alike"


TRIALS = {
    "interval of a task": try_interval,
    "task without rows": try_new_task,
    "eligible actions": try_eligible,
    "save and load without pickle": try_saving,
    "NaN in a context": try_nan,
    "log without propensities": try_no_p,
    "actions as text": try_text,
}


def capabilities(make: type, folder: Path, limit: float | None) -> dict:
    """Return the answer to each trial; an error is its own answer."""
    answers = {}
    for name, trial in TRIALS.items():
        answer, error = within(limit, trial, make, folder)
        answers[name] = answer or f"error: {error}"[:160]
    return answers


def _first(requests: Log, count: int) -> Log:
    cut = {name: getattr(requests, name)[:count] for name in ("task", "x")}
    return replace(requests, table=requests.table.slice(0, count), **cut)


def _answers(method: object, requests: Log) -> str:
    actions = np.asarray(method.choose(requests)).tolist()
    return "yes" if set(actions) <= set(requests.actions.tolist()) else f"no: chose {actions[0]!r}"


def learned_within(limit: float | None, make: type, folder: Path) -> dict:
    """Learn from one folder; the record of a failure has an error."""
    found, error = within(limit, learned, make, folder)
    return found or {"folder": str(folder), "error": error}


class NoFeatures:
    """A method whose library takes no features of actions."""

    def fit(self, log: Log) -> None:
        raise NotImplementedError("no features of actions")


def run(methods: dict, with_features: dict | None = None) -> None:
    """Do the job that the command line names."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    make, limit = methods[job["method"]], job.get("limit")
    if job.get("features"):
        make = (with_features or {}).get(job["method"], NoFeatures)
    os.environ["PEERS_SECONDS"] = str(int(limit or 0))  # an adapter that starts a process limits it too
    warnings.simplefilter("ignore")
    record: dict = {"method": job["method"], "logs": []}
    if job.get("warm"):
        record["warm"] = learned_within(limit, make, Path(job["warm"]))
    if job.get("capabilities"):
        record["capabilities"] = capabilities(make, Path(job["capabilities"]), limit)
    failed, start, budget = set(), cpu(), job.get("budget") or float("inf")
    for folder in map(Path, job["logs"]):
        world = folder.name.rpartition("-")[0]
        if cpu() - start > budget:
            record["spent"] = budget
            break
        if world not in failed:
            record["logs"].append(learned_within(limit, make, folder))
            failed |= {world} if "error" in record["logs"][-1] else set()
        Path(job["result"]).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    Path(job["result"]).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
