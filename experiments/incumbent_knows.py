"""Incumbents that knew something: what is claimed and what is true, with and without using how often they took actions.

    python experiments/incumbent_knows.py             # writes docs/results/incumbent_knows.md; some minutes
    python experiments/incumbent_knows.py --share 0.2 --out /tmp/knows.md

In every run m tasks of K = 5 actions are drawn, with n rows each and noise of sd 1. In the world "actions" theta_sa ~
N(mu_a, 1/4), mu_a ~ N(0, 0.09), and phi is the indicator of the action. In the world "context" each action has a slope,
too, of the same law, on one column x ~ N(0, 1). The incumbent takes a with probability

- "softmax b": proportional to exp(b phi(x, a)' theta_s): it knows theta_s, and does not learn from these rows;
- "random": 1/K;
- "adaptive": 0.9 softmax 2 of its own ridge estimates from the task's rows before, + 0.1/K.

A policy is learned from the log and acts on the posterior mean. With delta_s the mean features, over the contexts of
task s, of what the policy does less those of what the incumbent did, its gain there is delta_s' theta_s: as
``learner.evaluate`` has it. (The incumbent's probabilities know theta_s. A model that is told them, and not what they
know, would understate the incumbent.) Claimed is the posterior mean; harmed is a task whose true gain is below 0;
covered is one whose true gain is within mean +- 1.96 sd. The gate hands a task to the policy where P(gain < 0) <= 0.05
by the model, and otherwise keeps the incumbent, with gain 0. "In expectation" is against the mean over what the
incumbent might have done in these contexts, instead of what it did. Rules:

- "plain": ``logging="random"``, or "adaptive", which learns alike;
- "informed": ``logging="frozen"``, shares of actions, or coefficients of a logit of choices, as metadata of the task;
- "cv": plain, acting on mean - pessimism sd with the pessimism that the logged probabilities choose;
- "tests": what the log's own tests suggest: where the incumbent knew (z > 4), adaptive if actions react to rewards (z >
  3.5), else frozen; else random.

"Plain" with an adaptive incumbent is right, "informed" is known misuse. A task is one figure, standard errors are of
means over runs. A seed gives the same figures with any number of processes.
"""

import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from repeating import options, repeated
from tables import figure, provenance, table, write

from hieropo import HierOPO, LCBPolicy, Moments
from hieropo.estimation.learning import Learning, Settings, learning
from hieropo.evaluation.by_posterior.certificates import value_distributions
from hieropo.features.maps import indicator, per_action
from hieropo.features.per_action import Crossed
from hieropo.logging_policy.incumbents import Reactions, knowledge
from hieropo.model.task_levels import TaskLevels
from hieropo.rows.batches import Roles

Array = NDArray[np.float64]
Codes = NDArray[np.int64]

SEED = 20260214
ACTIONS, MU_SD, TASK_SD = 5, 0.3, 0.5
Z, GATE, KNEW, REACTED, GOAL = 1.959963984540054, 0.05, 4.0, 3.5, 5.0
OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "incumbent_knows.md"
MAPS = {"actions": indicator(range(ACTIONS)), "context": per_action(range(ACTIONS), ["x"])}
INCUMBENTS = ("softmax 2", "softmax 4", "random", "adaptive")
RULES = ("plain", "informed", "cv", "tests")
COLUMNS = (
    "claimed",
    "true",
    "harmed",
    "covered",
    "gated, true",
    "gated, harmed",
    "gated, acts",
    "gated, harmed in expectation",
)
FIRST = 2  # runs of each setting that are shown one by one, for a test to make again


@dataclass(frozen=True)
class Setting:
    """A world, its incumbent, tasks m, rows n of each task, how many runs, and of how many "cv" is learned, too."""

    world: str
    incumbent: str
    tasks: int
    rows: int
    runs: int
    cv_runs: int

    @property
    def label(self) -> str:
        """World, incumbent and sizes in words."""
        return f"{self.world}, {self.incumbent}, m = {self.tasks}, {self.rows} rows"


SETTINGS = tuple(
    Setting(world, incumbent, m, n, *runs)
    for world in MAPS
    for incumbent in INCUMBENTS
    for m, runs in ((40, (20, 10)), (400, (4, 3)))
    for n in (15, 60)
)


class World(NamedTuple):
    """True theta (m, d), and the log in the order of rounds t: context, chances of all actions, action, reward."""

    theta: Array
    x: Array
    chances: Array
    action: Codes
    reward: Array


def softmax(values: Array) -> Array:
    """Probabilities (..., K) proportional to exp of the values."""
    raised = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def draw(setting: Setting, rng: np.random.Generator) -> World:
    """Draw tasks, and let the incumbent act in each n times; x (n, m, p), chances (n, m, K), action, reward (n, m)."""
    m, n = setting.tasks, setting.rows
    p = MAPS[setting.world].dim // ACTIONS
    theta = rng.normal(0, MU_SD, (ACTIONS, p)) + rng.normal(0, TASK_SD, (m, ACTIONS, p))
    x = np.ones((n, m, p))
    x[:, :, 1:] = rng.standard_normal((n, m, p - 1))
    gram, cross = np.tile(np.eye(p), (m, ACTIONS, 1, 1)), np.zeros((m, ACTIONS, p))
    chances, action, reward = np.empty((n, m, ACTIONS)), np.empty((n, m), dtype=np.int64), np.empty((n, m))
    tasks = np.arange(m)
    for t in range(n):
        values = np.einsum("map,mp->ma", theta, x[t])
        if setting.incumbent == "random":
            chances[t] = 1 / ACTIONS
        elif setting.incumbent == "adaptive":
            seen = np.linalg.solve(gram, cross[..., None])[..., 0]
            chances[t] = 0.9 * softmax(2 * np.einsum("map,mp->ma", seen, x[t])) + 0.1 / ACTIONS
        else:
            chances[t] = softmax(float(setting.incumbent.split()[1]) * values)
        last = (rng.random((m, 1)) > chances[t].cumsum(axis=1)).sum(axis=1)
        action[t] = np.minimum(last, ACTIONS - 1)
        reward[t] = values[tasks, action[t]] + rng.standard_normal(m)
        gram[tasks, action[t]] += x[t][:, :, None] * x[t][:, None, :]
        cross[tasks, action[t]] += reward[t][:, None] * x[t]
    return World(theta.reshape(m, -1), x, chances, action, reward)


class Judged(NamedTuple):
    """Claimed and true gain, that in expectation, sd of the claim, and P(harm), each (m,)."""

    claimed: Array
    true: Array
    expected: Array
    sd: Array
    below: Array

    def columns(self) -> Array:
        """Means over tasks in the order of ``COLUMNS``."""
        harmed, acts = self.true < -1e-9, (self.below <= GATE) & (self.sd > 0)
        covered = np.abs(self.true - self.claimed) <= Z * self.sd + 1e-9
        worse = (self.expected < -1e-9) & acts
        rows = (self.claimed, self.true, harmed, covered, self.true * acts, harmed & acts, acts, worse)
        return np.array([each.mean() for each in rows])


def judge(world: World, posterior: Any, pessimism: float = 0.0) -> Judged:
    """Judge the policy that acts on mean - pessimism sd."""
    n, m, p = world.x.shape
    theta = world.theta.reshape(m, ACTIONS, p)
    if pessimism:
        features = MAPS["actions"] if p == 1 else MAPS["context"]
        policy = LCBPolicy(posterior, features, pessimism=pessimism)
        context = world.x[..., 1:].reshape(n * m, p - 1)
        chosen = policy.choose_many(np.tile(np.arange(m), n), context, threads=1).index[:, 0].reshape(n, m)
    else:
        means = np.asarray(posterior.table().means).reshape(m, ACTIONS, p)
        chosen = np.einsum("map,nmp->nma", means, world.x).argmax(axis=2)
    one = np.eye(ACTIONS)
    delta, mean_delta = (
        np.einsum("nma,nmp->map", one[chosen] - incumbent, world.x) / n
        for incumbent in (one[world.action], world.chances)
    )
    laws = value_distributions(posterior, delta.reshape(m, -1))
    true, expected = ((each * theta).sum(axis=(1, 2)) for each in (delta, mean_delta))
    return Judged(laws.mean, true, expected, laws.sd, laws.below)


def reaction(world: World, posterior: Any, features: Crossed) -> float:
    """Test whether actions react to rewards before them: z, with residuals from the posterior means."""
    n, m, p = world.x.shape
    place, codes = np.tile(np.arange(m), n), world.action.ravel()
    phi = features.phi(world.x[..., 1:].reshape(n * m, p - 1), codes)
    away = world.reward.ravel() - (phi * np.asarray(posterior.table().means)[place]).sum(axis=1)
    counts = np.bincount(place * ACTIONS + codes, minlength=m * ACTIONS).reshape(m, ACTIONS)
    test = Reactions(counts)
    test.add(place, codes, away)
    return test.reaction().z


def cross_fitted(world: World, features: Crossed) -> tuple[Any, float]:
    """Posterior and pessimism of a learner with ``pessimism="cv"`` and logged probabilities."""
    n, m, _ = world.x.shape
    codes = world.action.ravel()
    rows = pa.table({
        "task": np.tile(np.arange(m), n), "action": codes, "reward": world.reward.ravel(),
        "pscore": world.chances.reshape(n * m, ACTIONS)[np.arange(n * m), codes],
        **{name: world.x[..., 1 + j].ravel() for j, name in enumerate(features.columns)},
    })  # fmt: skip
    learner = HierOPO(features, pessimism="cv", logging="random")
    learner.fit(
        rows, task="task", action="action", reward="reward", pscore="pscore", context=features.columns
    )
    return learner.posterior_, learner.pessimism_.chosen


@dataclass(frozen=True)
class Run:
    """Columns (rules, COLUMNS), not a number where a rule was not learned, z of both tests, pessimism by "cv"."""

    columns: Array
    knew: float
    reacted: float
    kappa: float
    pessimism: float


def one_run(setting: Setting, run: int) -> Run:
    """Draw a world, learn by every rule and judge it by the truth."""
    rng = np.random.default_rng([SEED, SETTINGS.index(setting), run])
    world, features = draw(setting, rng), MAPS[setting.world]
    n, m, p = world.x.shape
    phi = features.phi(world.x[..., 1:].reshape(n * m, p - 1), world.action.ravel())
    moments = Moments.from_arrays(
        np.tile(np.arange(m), n), phi, world.reward.ravel(), features=features.fingerprint
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few tasks, which is what is looked at
        plain, informed = (_learned(moments, features, each) for each in ("random", "frozen"))
        cv = cross_fitted(world, features) if run < setting.cv_runs else None
    knew = knowledge(moments, features, plain.estimate.hierarchy) or 0.0
    reacted = reaction(world, plain.posterior, features)
    kappa = informed.hierarchy.metadata is not None
    found = {"plain": judge(world, plain.posterior), "informed": judge(world, informed.posterior)}
    found["tests"] = found["informed" if knew > KNEW and reacted <= REACTED else "plain"]
    if cv is not None:
        found["cv"] = judge(world, *cv)
    columns = [found[name].columns() if name in found else np.full(len(COLUMNS), np.nan) for name in RULES]
    return Run(
        np.array(columns),
        knew,
        reacted,
        float(informed.posterior.hyper.mean[features.dim :].mean()) if kappa else 0.0,
        cv[1] if cv is not None else np.nan,
    )


def _learned(moments: Moments, features: Crossed, logging: Any) -> Learning:
    settings = Settings("auto", "flat", "auto", None, logging)
    return learning(moments, TaskLevels(Roles("task", "action", "reward")), settings, features)


def means(runs: list[Run]) -> tuple[Array, Array]:
    """Means and standard errors (rules, columns) over the runs that have the rule."""
    columns = np.array([run.columns for run in runs])
    counts = np.isfinite(columns[:, :, :1]).sum(axis=0)
    middle = np.nansum(columns, axis=0) / np.maximum(counts, 1)
    spread = np.nansum((columns - middle) ** 2, axis=0) / np.maximum(counts - 1, 1)
    return np.where(counts, middle, np.nan), np.where(
        counts > 1, np.sqrt(spread / np.maximum(counts, 1)), np.nan
    )


def misused(setting: Setting, rule: str) -> bool:
    """True where the documentation advises against the rule."""
    return setting.incumbent == "adaptive" and rule == "informed"


def goal_table(results: dict[Setting, list[Run]]) -> str:
    """Share of all tasks that a gated rule harms, and what it gains; the goal is at most 5 % harmed in every cell."""
    rows = []
    for setting, runs in results.items():
        mean, error = means(runs)
        row = [setting.label]
        for k, rule in enumerate(RULES):
            harmed, by = 100 * mean[k, 5], 100 * error[k, 5]
            mark = " (misuse)" if misused(setting, rule) else " **missed**" if harmed > GOAL else ""
            row += [f"{mean[k, 4]:+.3f}", figure(harmed, by, 1) + mark]
        rows.append(row)
    return table(["world", *(f"{rule}: {part}" for rule in RULES for part in ("gain", "harmed, %"))], rows)


def rule_table(results: dict[Setting, list[Run]], rule: str) -> str:
    """Table of claimed and true gains of a rule, without a gate."""
    rows = []
    for setting, runs in results.items():
        mean, error = (each[RULES.index(rule)] for each in means(runs))
        rows.append([
            setting.label + (" (misuse)" if misused(setting, rule) else ""),
            figure(mean[0], error[0]), figure(mean[1], error[1]),
            figure(100 * mean[2], 100 * error[2], 1), figure(mean[3], error[3]), f"{100 * mean[6]:.0f}",
        ])  # fmt: skip
    return table(["world", "claimed gain", "true gain", "harmed, %", "coverage", "gate acts, %"], rows)


def test_table(results: dict[Setting, list[Run]]) -> str:
    """Table of the log's own tests, and of kappa."""
    rows = []
    for setting, runs in results.items():
        knew, reacted, kappa = (
            np.array([getattr(r, name) for r in runs]) for name in ("knew", "reacted", "kappa")
        )
        chosen = [r.pessimism for r in runs if np.isfinite(r.pessimism)]
        frozen = np.sum((knew > KNEW) & (reacted <= REACTED))
        adaptive = np.sum((knew > KNEW) & (reacted > REACTED))
        rows.append([
            setting.label, f"{knew.mean():+.1f}", f"{reacted.mean():+.1f}", f"{kappa.mean():.2f}",
            f"{len(runs) - frozen - adaptive} / {frozen} / {adaptive}", ", ".join(f"{c:g}" for c in sorted(chosen)),
        ])  # fmt: skip
    head = ["world", "z knew", "z reacts", "kappa", "random / frozen / adaptive", "pessimism by cv"]
    return table(head, rows)


def first_table(results: dict[Setting, list[Run]]) -> str:
    """True gains of the first runs one by one."""
    rows = [
        [f"{setting.label}, run {k}", *(f"{value:.6f}" for value in run.columns[:2, 1]), f"{run.knew:.4f}",
         f"{run.reacted:.4f}"]
        for setting, runs in results.items() if setting.tasks == 40
        for k, run in enumerate(runs[:FIRST])
    ]  # fmt: skip
    return table(["run", "plain", "informed", "z knew", "z reacts"], rows)


def over(results: dict[Setting, list[Run]], incumbents: Iterable[str], **sizes: Any) -> Array:
    """Means (rules, columns) over the cells of these incumbents, each cell alike."""
    cells = [
        means(runs)[0]
        for setting, runs in results.items()
        if setting.incumbent in incumbents and all(getattr(setting, k) == v for k, v in sizes.items())
    ]
    return np.asarray(np.mean(cells, axis=0))


def verdict(results: dict[Setting, list[Run]]) -> str:
    """Sentences on the cells that miss the goal."""
    return (
        f"The goal: a gated rule harms at most {GOAL:.0f} % of all tasks, in every cell and for every rule except "
        f"known misuse. {_missed(results, 5)} In expectation: {_missed(results, 7)}"
    )


def _missed(results: dict[Setting, list[Run]], column: int) -> str:
    missed, cells = [], 0
    for setting, runs in results.items():
        mean, error = means(runs)
        for k, rule in enumerate(RULES):
            if misused(setting, rule) or not np.isfinite(mean[k, column]):
                continue
            cells += 1
            if 100 * mean[k, column] > GOAL:
                missed.append(
                    f"{rule} in {setting.label} ({figure(100 * mean[k, column], 100 * error[k, column], 1)} %)"
                )
    return f"Of {cells} cells {len(missed)} miss it: {'; '.join(missed) or 'none'}."


def claims(results: dict[Setting, list[Run]]) -> str:
    """Table of the figures that were first reported, and of these results."""

    def words(cell: Array) -> str:
        said = [
            f"{rule} claims {cell[k, 0]:+.3f} where the truth is {cell[k, 1]:+.3f}, harms {100 * cell[k, 2]:.0f} % of "
            f"tasks and covers {cell[k, 3]:.2f}"
            for k, rule in enumerate(RULES[:2])
        ]
        return "; ".join(said)

    rows = []
    for world in MAPS:
        knew = over(results, ("softmax 2", "softmax 4"), world=world)
        random, adaptive = (over(results, (each,), world=world) for each in ("random", "adaptive"))
        cost = 100 * (1 - random[1, 1] / random[0, 1])
        rows += [
            ["+.162 claimed, +.014 true, 22 % harmed; informed +.104 true, 6.7 % harmed", world, words(knew)],
            ["informed costs 5 % where the log was random", world, f"{cost:.1f} %: {words(random)}"],
            ["(of incumbents that learned nothing was said)", world, words(adaptive)],
        ]
    return table(["reported first", "world", "here, in the mean of its cells"], rows)


def report(results: dict[Setting, list[Run]], command: str) -> list[str]:
    """Paragraphs and tables of the results."""
    return [
        "# Incumbents that knew something of the tasks",
        verdict(results),
        (
            "The worlds, the rules and the gate are explained at the head of `experiments/incumbent_knows.py`. The "
            f"seed is {SEED}. After ± stands one Monte Carlo standard error, over the runs of a cell: "
            f"{SETTINGS[0].runs} with 40 tasks, {SETTINGS[2].runs} with 400; of cv, which learns six times, "
            f"{SETTINGS[0].cv_runs} and {SETTINGS[2].cv_runs}."
        ),
        provenance(command),
        "## Gated: true gain, and share of all tasks harmed",
        goal_table(results),
        "## The first report, checked",
        claims(results),
        READING,
        *(part for rule in RULES for part in (f"## Without a gate: {rule}", rule_table(results, rule))),
        "## Results of the log's own tests",
        (
            "z knew and z reacts are means over runs; kappa is that of the informed fit (0 where shares do not vary, "
            "the mean of two with contexts), exactly 1 / strength in theory. Then the shares of runs in which tests "
            "suggest random, frozen and adaptive."
        ),
        test_table(results),
        f"## The first {FIRST} runs of each cell with 40 tasks",
        "True gains without a gate, and both tests.",
        first_table(results),
    ]


READING = """\
Confirmed. Without contexts the first report is right in kind and in size: under an incumbent that knew the tasks, the
posterior mean ("plain") claims twelve times the true gain and harms a quarter of the tasks; with strength 4, 40 tasks
and 15 rows it is much worse than the incumbent. Informed by the incumbent's choices the policy gains +0.145, harms 7 %,
and covers at least 0.965. With contexts plain is worse still: it loses in the mean, harms half of the tasks and covers
0.71. There shares alone correct a part; logits of choices, with slopes, gain +0.112, harm 10 % and cover 0.92 to 0.97.
Their cost under a random log is 0.1 to 0.2 %, not 5 %.

The gate, by the log's own tests or informed, harms at most 3.1 % of the tasks in every cell, compared with the actions
of the incumbent or with its expectation. All misses are of plain and cv, in logs with contexts whose incumbent knew.
Without contexts the gate holds under every rule (at most 1.7 %): there plain loses gain, not safety.

Not confirmed. Informed claims are still too large in small logs: +0.138 for +0.050 with strength 4, 40 tasks and 15
rows, and +0.235 for +0.141 with contexts and strength 2. Kappa replaces a likelihood by a normal prior, with one
covariance for tasks with informative and with uninformative choices. And the option "frozen" for an incumbent that
learned from these rows is a serious error: up to 11.4 % of all tasks are harmed under the gate, and coverage falls to
0.57. More tasks make it worse.

Pessimism chosen by the logged probabilities needs neither the knowledge of the incumbent nor an informed fit. In each
of the 16 cells of incumbents that knew it gains less than informed. It does not correct P(harm) of the model.

The tests suggest the right option wherever there are 400 tasks or 60 rows. With 40 tasks and 15 rows they miss 6 of 40
incumbents that knew without contexts and 1 of 40 with, and report 6 of 20 that learn, with contexts, as frozen.
"""


def main() -> None:
    """Run everything and write the tables."""
    chosen = options(__doc__, OUT, "incumbent_knows.py")
    results = repeated(
        one_run,
        {each: each.runs for each in SETTINGS},
        chosen,
        least=1,
        told=lambda setting, runs: f"{setting}: {len(runs)} runs",
        chunk=1,
    )
    write(chosen.out, report(results, chosen.command))


if __name__ == "__main__":
    main()
