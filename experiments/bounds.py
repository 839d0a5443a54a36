"""The paper's theorems against what is lost: whether they bound it, and how tightly.

    python experiments/bounds.py                # writes docs/results/bounds.md; some minutes on one processor
    python experiments/bounds.py --share 0.05 --out /tmp/bounds.md

In every run tasks and a log under uniform actions are drawn, the posterior is made with the hierarchy that all was
drawn from, and the policy of the theorems, which takes off alpha = sqrt(5 d log 1/delta) sds, is judged on 100 fresh
contexts of each task: its true loss V(best) - V(policy), every bound on it, and its certificate. The same is done for
the policy that takes off 0.1 sds, as in the paper's experiments.

Theorem 2 needs gamma. As the paper states it, one gamma serves all tasks; "theorem 2" takes what the log shows for all
theta, the smallest gamma with sum phi phi' >= gamma n_s I. "Each task's gamma" takes that of each task by itself.
"Smallest" makes the theorem as small as it can be read: G_* of the best policies for the true theta, which nobody can
know, on the contexts on which they are judged, each task's gamma, and the root of the sum of both terms, where the
paper has the sum of their roots. All bounds are for delta = 0.05 where nothing is said.

Worlds beyond the paper's are "one" and "two", where bounds come nearest to what is lost: with one feature of +1 or -1
and with two on the unit circle, tasks that differ little or much, and few rows; and "crooked", where Sigma_0 is far
from isotropic (condition number 10^4) and tasks look along one direction much more than along others, so that the
paper's proof fails there.

"Exact" bounds have the root of the chi-squared quantile in place of alpha. A seed gives the same figures with any
number of processes.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from numpy.typing import NDArray
from repeating import options, repeated
from tables import figure, provenance, table, write

from hieropo import Gaussian, Hierarchy, LCBPolicy, Moments, condition
from hieropo.evaluation.by_posterior.bounds import (
    Suboptimality,
    bounds,
    coverage,
    exact_constant,
    largest_delta,
    paper_constant,
    proof_step,
)
from hieropo.evaluation.by_posterior.certificates import certificates
from hieropo.model.posterior import Posterior
from hieropo.reproduce.synthetic.simulation import (
    draw_log,
    draw_tasks,
    suboptimality,
    synthetic_features,
    synthetic_hierarchy,
)

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator], Hierarchy]
Features = Callable[[tuple[int, ...], np.random.Generator], Array]

SEED = 20251129
ACTIONS, CONTEXTS, DELTA, PESSIMISM = 5, 100, 0.05, 0.1
DELTAS = (float(np.exp(-1.0)), 0.1, 0.05, 0.01)
OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "bounds.md"
FIRST = 3  # runs of each setting that are shown one by one, for a test to make again
TIGHTER = 50.0
TAKEN = ("alpha", f"{PESSIMISM:g}")

INTRODUCTION = """\
Tests of Theorem 2 of arXiv 2212.04720 as a bound on the loss of a policy, its tightness, and tighter bounds. The
problem is explained at the head of `experiments/bounds.py`, the bounds at that of
`src/hieropo/evaluation/by_posterior/bounds.py`. The hierarchy is known in all runs.
The seed is {seed}. After ± stands one Monte Carlo standard error. "Smallest" cannot be computed from a log; it
shows the part of gamma in the size of the theorem's bound. Where the bound of FlatOPO, for each task alone, is below
theorem 2, the theorem does not show the benefit of the hierarchy; "leave-one-out" does.
"""

FAILURES = """\
Number of tasks that lose more than a bound and, in parentheses, the largest ratio of loss to bound, with delta = 1/e,
0.1, 0.05 and 0.01; the pessimism of the policy is alpha.
"""
STEPS = """\
Tasks with a spectral norm of Sigma~_s Sigma_0^-1 above 1, which the proof excludes, and tasks where its conclusion
is wrong for some G_*.
"""
CONSTANTS = """\
alpha = sqrt(5 d log 1/delta) over the exact simultaneous constant; the largest delta for which alpha is large enough.
"""


def crooked(rng: np.random.Generator) -> Hierarchy:
    """Covariances with the condition number 10^4, turned at random."""
    turns = (np.linalg.qr(rng.standard_normal((4, 4)))[0] for _ in range(2))
    covs = [turn @ np.diag(10.0 ** -np.linspace(0, 4, 4)) @ turn.T for turn in turns]
    return Hierarchy(Gaussian(np.zeros(4), 10.0 ** rng.uniform(-4, 0) * covs[1]), covs[0], 1e-3)


def isotropic(rng: np.random.Generator, dim: int) -> Hierarchy:
    """Isotropic covariances of any size."""
    sds = 10.0 ** rng.uniform(-1, 1, 2)
    return synthetic_hierarchy(sds[0], dim=dim, task_sd=sds[1])


def signs(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """+1 or -1, the first two actions one each."""
    phi = np.where(rng.random(shape) < 0.5, -1.0, 1.0)
    phi[..., 0, :], phi[..., 1, :] = 1.0, -1.0
    return phi


def circle(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Unit vectors."""
    phi = rng.standard_normal(shape)
    return phi / np.linalg.norm(phi, axis=-1, keepdims=True)


def slanted(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Unit vectors near one direction."""
    phi = 0.03 * rng.standard_normal(shape) + circle((shape[-1],), rng)
    return phi / np.linalg.norm(phi, axis=-1, keepdims=True)


def known(hyper_sd: float, _: np.random.Generator) -> Hierarchy:
    """The paper's hierarchy."""
    return synthetic_hierarchy(hyper_sd)


WORLDS: dict[str, tuple[Draw, Features]] = {
    "sigma_q = 0.5": (partial(known, 0.5), synthetic_features),
    "sigma_q = 1": (partial(known, 1.0), synthetic_features),
    "one": (partial(isotropic, dim=1), signs),
    "two": (partial(isotropic, dim=2), circle),
    "crooked": (crooked, slanted),
}


@dataclass(frozen=True)
class Setting:
    """A world, tasks m, rows n of the whole log, and how many runs."""

    world: str
    tasks: int
    rows: int
    runs: int

    @property
    def label(self) -> str:
        """Name of a row."""
        return f"{self.world}, m = {self.tasks}, n = {self.rows}"


PAPER = (
    Setting("sigma_q = 0.5", 10, 500, 150),
    Setting("sigma_q = 0.5", 10, 2000, 150),
    Setting("sigma_q = 1", 10, 50, 150),
    Setting("sigma_q = 1", 10, 500, 150),
    Setting("sigma_q = 1", 50, 500, 40),
    Setting("sigma_q = 1", 100, 500, 20),
)
OTHERS = tuple(
    Setting(world, m, n, 1000)
    for world, m, sizes in (("one", 4, (8, 80)), ("two", 4, (8, 80)), ("crooked", 10, (100, 1000)))
    for n in sizes
)
CROOKED = tuple(s for s in OTHERS if s.world == "crooked")
ALIKE = tuple(s for s in OTHERS if s.world != "crooked")  # Sigma_0 = s^2 I
SETTINGS = (*PAPER, *OTHERS)

NAMES = (
    "loss",
    "certificate",
    "posterior, exact",
    "posterior",
    "leave-one-out",
    "repaired",
    "theorem 1 (mu known)",
    "theorem 2, smallest",
    "theorem 2, each task's gamma",
    "theorem 2",
    "FlatOPO",
)
BOUNDED = ("theorem 2, smallest", "theorem 2", "posterior, exact")


@dataclass(frozen=True)
class Run:
    """Figures of one run.

    ``means`` (2, names): means over tasks for the policies that take off alpha and 0.1 sds. ``nearest`` (deltas, 3):
    the largest loss over theorem 2, smallest and from the log, and over the posterior's with the exact constant.
    ``failed`` (deltas, 3): how many tasks lose more. ``gamma`` (3,): smallest and median from the log, and median with
    the true G_*. ``step`` (3,): tasks with a norm above 1, tasks where the conclusion of the proof's step is wrong, and
    the largest norm.
    """

    means: Array
    nearest: Array
    failed: Array
    gamma: Array
    step: Array


@dataclass(frozen=True)
class World:
    """The draws of a run: parameters (m, d), candidates (m, E, K, d), and the posterior given the log."""

    theta: Array
    candidates: Array
    posterior: Posterior

    @property
    def best(self) -> Array:
        """Second moments (m, d, d) of the features of the best actions."""
        index = np.einsum("sekd,sd->sek", self.candidates, self.theta).argmax(axis=2)
        phi = np.take_along_axis(self.candidates, index[:, :, None, None], axis=2)[:, :, 0]
        return np.einsum("sei,sej->sij", phi, phi) / phi.shape[1]

    def chosen(self, pessimism: float) -> NDArray[np.int64]:
        """Actions of a policy in each context, (m, E)."""
        m, d = len(self.candidates), self.candidates.shape[-1]
        policy = LCBPolicy(self.posterior, pessimism=pessimism)
        tasks = np.repeat(self.posterior.moments.tasks, CONTEXTS)
        found = policy.choose_many(tasks, phi=self.candidates.reshape(-1, ACTIONS, d))
        return found.index[:, 0].reshape(m, -1)

    def loss(self, pessimism: float) -> Array:
        """V(best) - V(policy) of each task."""
        return suboptimality(self.theta, self.candidates, self.chosen(pessimism))

    def certified(self, pessimism: float, rng: np.random.Generator) -> Array:
        """Certificate of each task."""
        phi = self.candidates.reshape(-1, *self.candidates.shape[2:])
        index, rows = self.chosen(pessimism).ravel(), np.repeat(np.arange(len(self.candidates)), CONTEXTS)
        return certificates(self.posterior, rows, phi, index, level=1 - DELTA, rng=rng).values


def draw(setting: Setting, rng: np.random.Generator) -> World:
    """Draw tasks, a log, and contexts to be judged on."""
    make, features = WORLDS[setting.world]
    hierarchy, m = make(rng), setting.tasks
    truth = draw_tasks(hierarchy, np.arange(m), rng)
    task = rng.integers(m, size=setting.rows)
    log = draw_log(truth, task, features((setting.rows, ACTIONS, hierarchy.dim), rng), rng)
    moments = Moments.from_arrays(log.task, log.phi, log.reward).covering(truth.keys)
    theta = truth.theta[truth.keys.require(moments.tasks)]
    candidates = features((m, CONTEXTS, ACTIONS, hierarchy.dim), rng)
    return World(theta, candidates, condition(moments, hierarchy))


def one_run(setting: Setting, run: int) -> Run:
    """Draw a world and a log, and compare bounds with what is lost."""
    rng = np.random.default_rng([SEED, SETTINGS.index(setting), run])
    world = draw(setting, rng)
    post, best = world.posterior, world.best
    certify = setting in PAPER
    means = np.stack([row(world, None, rng, certify=certify), row(world, PESSIMISM, rng, certify=certify)])
    nearest, failed = np.empty((2, len(DELTAS), 3))
    for k, delta in enumerate(DELTAS):
        alpha = paper_constant(post.dim, delta)
        loss = world.loss(alpha)
        said = (
            joint(bounds(post, delta=delta, best=best).tasks),
            bounds(post, delta=delta, common=True).tasks.theorem_2,
            bounds(post, delta=delta, constant="exact", pessimism=alpha).tasks.posterior,
        )
        nearest[k] = [(loss / each).max() for each in said]
        failed[k] = [(loss > each).sum() for each in said]
    step = proof_step(post)
    seen = post.moments.rows > 0
    of_log, favourable = coverage(post.moments)[seen], coverage(post.moments, best=best)[seen]
    gamma = np.array([of_log.min(), np.median(of_log), np.median(favourable)])
    wrong = np.array([(step.norm > 1 + 1e-9).sum(), (step.ratio > 1 + 1e-9).sum(), step.norm.max()])
    return Run(means, nearest, failed, gamma, wrong)


def joint(found: Suboptimality) -> Array:
    """Theorem 2 with the root of the sum of its terms."""
    return np.hypot(found.task_term, found.hyper_term)


def row(world: World, pessimism: float | None, rng: np.random.Generator, *, certify: bool) -> Array:
    """Means over tasks of NAMES, for the policy that takes off that much, or alpha."""
    post = world.posterior
    p = paper_constant(post.dim, DELTA) if pessimism is None else pessimism
    log = bounds(post, delta=DELTA, pessimism=p).tasks
    figures = (
        world.loss(p),
        world.certified(p, rng) if certify else np.full(len(world.theta), np.nan),
        bounds(post, delta=DELTA, pessimism=p, constant="exact").tasks.posterior,
        log.posterior,
        log.leave_one_out,
        log.repaired,
        log.theorem_1,
        joint(bounds(post, delta=DELTA, pessimism=p, best=world.best).tasks),
        log.theorem_2,
        bounds(post, delta=DELTA, pessimism=p, common=True).tasks.theorem_2,
        log.flat,
    )
    return np.array([each.mean() for each in figures])


def over(runs: list[Run], name: str, policy: int) -> tuple[float, float, float]:
    """Mean, standard error and smallest of a bound over the certificate of the same policy."""
    means = np.array([run.means[policy] for run in runs])
    ratio = means[:, NAMES.index(name)] / means[:, NAMES.index("certificate")]
    return float(ratio.mean()), float(ratio.std(ddof=1) / np.sqrt(len(ratio))), float(ratio.min())


def goals(results: dict[Setting, list[Run]]) -> str:
    """A goal and its result."""
    lines = []
    for words, settings in (
        ("the paper's settings", PAPER),
        ("worlds one and two", ALIKE),
        ("world crooked", CROOKED),
    ):
        for column, name in enumerate(BOUNDED):
            failed = sum(run.failed[:, column] for s in settings for run in results[s])
            tasks = sum(s.tasks * len(results[s]) for s in settings)
            share = float((failed / tasks / np.array(DELTAS)).max())
            found = f"{failed.sum():.0f} of {tasks * len(DELTAS)}; {share:.3f} delta at most"
            never = settings is PAPER
            met = failed.sum() == 0 if never else share <= 1
            wish = "never" if never else "at most a share delta, for each delta"
            lines.append((f"{name} fails, {words}", wish, found, "yes" if met else "no"))
    for policy, words in enumerate(TAKEN):
        for name in ("theorem 2", "theorem 2, smallest"):
            for setting in PAPER:
                mean, error, least = over(results[setting], name, policy)
                wish = f"{name} over certificate, pessimism {words}, {setting.label}"
                found = f"{figure(mean, error, 1)}, smallest {least:.1f}"
                lines.append((wish, f">= {TIGHTER:g}", found, "yes" if mean >= TIGHTER else "no"))
    return table(("goal", "wanted", "found", "met"), lines)


def tight(results: dict[Setting, list[Run]]) -> list[str]:
    """Chapters on the paper's settings: one column a setting."""
    parts = []
    for policy, words in enumerate(TAKEN):
        cells = []
        for setting in PAPER:
            means = np.array([run.means[policy] for run in results[setting]])
            errors = means.std(axis=0, ddof=1) / np.sqrt(len(means))
            cells.append([figure(v, e) for v, e in zip(means.mean(axis=0), errors, strict=True)])
        lines = [(name, *(column[k] for column in cells)) for k, name in enumerate(NAMES)]
        parts.append(f"## The paper's synthetic problem, the policy with pessimism {words}\n")
        parts.append(table(("mean over tasks", *(s.label for s in PAPER)), lines))
    lines = [
        (
            s.label,
            *(f"{v:.3f}" for v in np.mean([run.gamma for run in results[s]], axis=0)),
            str(len(results[s])),
        )
        for s in PAPER
    ]
    return [
        *parts,
        "## Gamma\n",
        table(("setting", "from the log, worst task", "median task", "with the true G_*", "runs"), lines),
    ]


def failures(results: dict[Setting, list[Run]]) -> str:
    """Table of how often, and how nearly, bounds fail."""
    lines = []
    for setting, runs in results.items():
        nearest = np.max([run.nearest for run in runs], axis=(0, 1))
        failed = np.sum([run.failed for run in runs], axis=(0, 1))
        cells = [f"{n:.0f} ({v:.3f})" for n, v in zip(failed, nearest, strict=True)]
        lines.append((setting.label, str(setting.tasks * len(runs) * len(DELTAS)), *cells))
    return table(("setting", "tasks x deltas", *BOUNDED), lines)


def steps(results: dict[Setting, list[Run]]) -> str:
    """Table of where the proof fails."""
    lines = []
    for setting, runs in results.items():
        found = np.array([run.step for run in runs])
        tasks = setting.tasks * len(runs)
        shares = [f"{v:.3f}" for v in found[:, :2].sum(axis=0) / tasks]
        lines.append((setting.label, str(tasks), *shares, f"{found[:, 2].max():.3g}"))
    return table(("setting", "tasks", "norm above 1", "conclusion wrong", "largest norm"), lines)


def constants() -> str:
    """Table of alpha and the exact constant."""
    lines = []
    for d in (1, 2, 4, 10, 30, 100):
        pairs = [(paper_constant(d, delta), exact_constant(d, delta)) for delta in DELTAS[:1] + DELTAS[2:]]
        cells = [f"{alpha:.2f} / {kappa:.2f} = {alpha / kappa:.2f}" for alpha, kappa in pairs]
        lines.append((str(d), *cells, f"{largest_delta(d):.3f}"))
    head = ("d", *(f"delta = {delta:.3f}" for delta in DELTAS[:1] + DELTAS[2:]), "alpha true up to delta")
    return table(head, lines)


def first_runs(results: dict[Setting, list[Run]]) -> str:
    """Table of the first runs of each setting, without what is drawn for certificates."""
    names = [name for name in NAMES if name != "certificate"]
    rows = []
    for setting, runs in results.items():
        for run, each in enumerate(runs[:FIRST]):
            cells = [f"{each.means[0, NAMES.index(name)]:.6f}" for name in names]
            rows.append((f"{setting.label}, run {run}", *cells))
    return table(("run", *names), rows)


def main() -> None:
    """Run all settings and write the tables."""
    chosen = options(__doc__, OUT, "bounds.py")
    results = repeated(
        one_run,
        {each: each.runs for each in SETTINGS},
        chosen,
        least=FIRST,
        told=lambda setting, runs: f"{setting.label}: {runs[0].means[0].round(3)}",
    )
    parts = [
        "# The paper's bounds, and tighter ones\n",
        INTRODUCTION.format(seed=SEED),
        provenance(chosen.command),
        "## Goals\n",
        goals(results),
        *tight(results),
        "## Tasks that lose more than a bound\n",
        FAILURES,
        failures(results),
        "## Where the proof of theorem 2 fails\n",
        STEPS,
        steps(results),
        "## Constants\n",
        CONSTANTS,
        constants(),
        "## The first runs\n",
        first_runs(results),
    ]
    write(chosen.out, parts)


if __name__ == "__main__":
    main()
