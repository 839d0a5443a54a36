"""Split the log, fit and evaluate policies; then fit the whole log, and save a policy with its decisions."""

import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np

from hieropo._utils.arrays import Mask
from hieropo.decisions.deciding import decide
from hieropo.demo.log import DemoLog, Scenario
from hieropo.demo.value import Estimate, Findings, judge, snips
from hieropo.doctor.examine import examine
from hieropo.errors import ArtifactError, HieropoWarning, InputError
from hieropo.learners.hieropo import HierOPO
from hieropo.logs.arrow.writing import write_tables
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.posterior import condition
from hieropo.moments.statistics import Moments
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.batches import column_tuple

Progress = Callable[[Iterable[int]], Iterable[int]]

RIDGE = "ridge for each task"


@dataclass(frozen=True)
class Left:
    """Paths of the files of the demonstration, the number of decisions, and a task of the policy.

    ``report`` is None where the log lacks the eligible actions, so that the policy cannot be evaluated on it.
    """

    log: Path
    policy: Path
    requests: Path
    decisions: Path
    n_decisions: int
    task: Any
    report: Path | None = None


def ridge(moments: Moments, hier: HierOPO) -> LCBPolicy:
    """Separate ridge regressions with penalty 1: theta_s ~ N(0, noise_var I), with pessimism 0."""
    moments = moments.dense()
    d = moments.dim
    known = Gaussian(np.zeros(d), np.zeros((d, d)))
    prior = Hierarchy(hyper=known, task_cov=np.eye(d), noise_var=1.0)
    return LCBPolicy(condition(moments, prior), hier.features_, pessimism=0.0)


def compare(scenario: Scenario, *, splits: int, seed: int, watch: Progress = iter) -> Findings:
    """Evaluate policies on random halves of the log, each fitted to the other half.

    Parameters
    ----------
    scenario : Scenario
    splits : int
        Halves are drawn from all rows alike, not within tasks.
    seed : int
    watch : callable, optional
        Is handed the numbers of the splits and passes them on, to show progress.

    Raises
    ------
    InputError
        ``splits`` is not positive.
    """
    if splits < 1:
        raise InputError(f"splits={splits}; at least one split is needed.")
    log = DemoLog(scenario)
    rng = np.random.default_rng(seed)
    values: dict[str, list[Estimate]] = {}
    events: dict[str, list[int]] = {}
    incumbent = []
    for _ in watch(range(splits)):
        held_out = np.ones(len(log), dtype=np.bool_)
        held_out[rng.permutation(len(log))[: len(log) // 2]] = False
        incumbent.append(snips(log.reward, (held_out & log.incumbent).astype(np.float64)))
        for name, policy in _policies(log, ~held_out):
            matched = held_out & log.judged & log.follows(policy)
            values.setdefault(name, []).append(snips(log.reward, matched / log.pscore))
            events.setdefault(name, []).append(int(np.count_nonzero(log.reward[matched])))
    return _findings(log, splits, seed, incumbent, values, events)


def _policies(log: DemoLog, train: Mask) -> Iterator[tuple[str, Any]]:
    rows = log.rows.filter(train)
    for name, make in log.scenario.learners:
        learner = log.fit(make(), rows)
        yield name, learner.policy_
        if name == "HierOPO":
            yield RIDGE, ridge(learner.moments_, learner)


def _findings(
    log: DemoLog,
    splits: int,
    seed: int,
    incumbent: list[Estimate],
    values: dict[str, list[Estimate]],
    events: dict[str, list[int]],
) -> Findings:
    base = Estimate.average(incumbent)
    mean = {name: Estimate.average(estimates) for name, estimates in values.items()}
    count = {name: float(np.mean(counts)) for name, counts in events.items()}
    first = next(iter(mean))
    return Findings(
        scenario=log.scenario,
        rows=len(log),
        tasks=len(log.keys),
        splits=splits,
        seed=seed,
        incumbent=base.value,
        incumbent_se=base.se,
        policies=tuple(judge(name, mean[name], base, log.tasks, count[name]) for name in mean),
        rivals=tuple(
            judge(name, mean[first], mean[name], log.tasks, min(count[first], count[name]))
            for name in mean if name != first
        ),
    )  # fmt: skip


def leave_behind(scenario: Scenario, folder: Path) -> Left:
    """Fit HierOPO to the whole log and write log, policy, requests and decisions to ``folder``.

    Raises
    ------
    ArtifactError
        The folder cannot be made, or holds something else under these names.
    """
    left = _paths(folder)
    log = DemoLog(scenario)
    with as_file(files("hieropo.data") / f"{scenario.name}.parquet") as path:
        shutil.copyfile(path, left["log"])
    learner = log.fit(HierOPO(), log.rows)
    learner.save(left["policy"], provenance={"log": str(left["log"])})
    eligible = "eligible" if scenario.eligible else None
    write_tables(left["requests"], [_requests(log, learner)])
    decisions = decide(learner.policy_, left["requests"], task=scenario.roles.task, eligible=eligible)
    n = write_tables(left["decisions"], (part.table for part in decisions))
    return Left(**left, n_decisions=n, task=log.keys.values[0], report=_report(log, learner, left["log"]))


def _report(log: DemoLog, learner: HierOPO, path: Path) -> Path | None:
    """Write the report of the policy on the log that it was learned from."""
    scenario = log.scenario
    if scenario.eligible is not None:
        return None
    with warnings.catch_warnings():  # the report says it
        warnings.simplefilter("ignore", HieropoWarning)
        evaluation = learner.evaluate(path)
        roles = {role: column for role, column in scenario.roles.to_dict().items() if column}
        examination = examine(path, guess=False, **roles)
    return evaluation.report(path.with_name("report.html"), title=scenario.question, examination=examination)


def _paths(folder: Path) -> dict[str, Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(
            f"The folder {folder} cannot be made: {error.strerror}. Name another one."
        ) from error
    names = {"log": "log.parquet", "policy": "policy", "requests": "requests.parquet"}
    return {role: folder / name for role, name in {**names, "decisions": "decisions.parquet"}.items()}


def _requests(log: DemoLog, learner: HierOPO) -> Any:
    """Return the requests: every row where contexts differ; else one for each task, with the actions it allows."""
    roles = log.scenario.roles
    if roles.context:
        return log.rows.select([*column_tuple(roles.task), *roles.context])
    actions = learner.features_.actions or ()
    mask = log.eligible(actions)
    requests: dict[str, list[Any]] = {roles.task_name: log.keys.values.tolist()}
    if mask is not None:
        requests["eligible"] = [[actions[k] for k in np.flatnonzero(row)] for row in mask]
    return requests
