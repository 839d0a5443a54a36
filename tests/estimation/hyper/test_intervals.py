"""Intervals of a hierarchy's numbers: the profile likelihood by its definition, how often they hold, when none is."""

import json
import warnings
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner
from scipy import optimize, special, stats

from hieropo import HierOPO, HieropoWarning, Moments, estimate, estimate_levels, load_learner
from hieropo._utils.packed import unpack
from hieropo.cli import main
from hieropo.estimation.hyper.intervals import error_intervals
from hieropo.estimation.hyper.profile_intervals import noise_degrees, noise_trend, profile_intervals
from hieropo.estimation.hyper.uncertainty import learn

Array = np.ndarray

ROLES = {"task": "task", "action": "action", "reward": "reward"}


def one_way(seed: int | list[int], rows: list[int], sd: float) -> tuple[Array, Array, Array]:
    """Rewards of tasks with so many rows each and noise N(0, 1): task, phi and reward."""
    rng = np.random.default_rng(seed)
    theta = 1 + sd * rng.normal(size=len(rows))
    task = np.repeat(np.arange(len(rows)), rows)
    return task, np.ones((task.size, 1)), theta[task] + rng.normal(size=task.size)


def slopes(
    seed: int, tasks: int, rows: int, sds: list[float], share: float = 0.0
) -> tuple[Array, Array, Array]:
    """Rewards with an intercept and slopes, that differ between tasks with correlations ``share``."""
    rng = np.random.default_rng(seed)
    d = len(sds)
    cov = (share + (1 - share) * np.eye(d)) * np.outer(sds, sds)
    theta = 1 + rng.multivariate_normal(np.zeros(d), cov, size=tasks)
    task, phi = np.repeat(np.arange(tasks), rows), rng.normal(size=(tasks * rows, d))
    phi[:, 0] = 1
    return task, phi, (phi * theta[task]).sum(axis=1) + rng.normal(size=task.size)


# The profile likelihood, by its definition


def restricted_deviance(
    log: tuple[Array, Array, Array], groups: list[Array], covs: list[Array], noise: float
) -> float:
    """-2 log restricted likelihood from the covariance of all rewards, up to a constant."""
    _, phi, reward = log
    V = noise * np.eye(reward.size)
    for group, cov in zip(groups, covs, strict=True):
        V += (group[:, None] == group[None, :]) * (phi @ cov @ phi.T)
    P = phi.T @ np.linalg.solve(V, phi)
    rest = reward - phi @ np.linalg.solve(P, phi.T @ np.linalg.solve(V, reward))
    return float(rest @ np.linalg.solve(V, rest) + np.linalg.slogdet(V)[1] + np.linalg.slogdet(P)[1])


def least(
    log: tuple[Array, Array, Array], groups: list[Array], start: Array, place: int, value: float | None
) -> float:
    """The least deviance over all variances >= 0 of diagonal covariances and the noise, one of them fixed."""
    d = log[1].shape[1]
    free = np.arange(start.size) != place if value is not None else np.ones(start.size, dtype=bool)

    def at(x: Array) -> float:
        z = start.copy()
        z[free] = x
        if value is not None:
            z[place] = value
        return restricted_deviance(
            log, groups, [np.diag(v) for v in z[:-1].reshape(-1, d)], float(np.exp(z[-1]))
        )

    bounds = [*[(0.0, None)] * (start.size - 1), (None, None)]
    ends = [each for each, is_free in zip(bounds, free, strict=True) if is_free]
    found = optimize.minimize(
        at, start[free], method="L-BFGS-B", bounds=ends, options={"ftol": 1e-12, "gtol": 1e-7}
    )
    return float(found.fun)


def checked_against_the_definition(log: tuple[Array, Array, Array], parents: list[int] | None = None) -> None:
    """At ends above 0 the ratio is the one that is asked for, and at a lower end of 0 it is below that."""
    moments, d = Moments.from_arrays(*log), log[1].shape[1]
    groups = [log[0]]
    if parents is None:
        found = estimate(moments, "diag")
    else:
        groups.append(np.array(parents)[log[0]])
        found = estimate_levels(moments, "diag", levels={"region": dict(enumerate(parents))})
    covs = [found.hierarchy.task_cov, *(level.cov for level in found.hierarchy.levels)]
    start = np.array([*np.concatenate([np.diagonal(cov) for cov in covs]), np.log(found.hierarchy.noise_var)])
    best = least(log, groups, start, -1, None)
    intervals = profile_intervals(moments, found, 0.95)
    assert len(intervals) == len(covs) * d
    for (k, j), ends in intervals.items():
        squares = np.unique(groups[k]).size - 1
        bartlett = squares * (np.log(squares / 2) - special.digamma(squares / 2))
        ratio = {end: least(log, groups, start, k * d + j, end**2) - best for end in ends}
        assert ratio[ends.upper] / stats.chi2.ppf(0.95, 1) == pytest.approx(bartlett, rel=0.06)
        if ends.lower > 0:
            assert ratio[ends.lower] == pytest.approx(ratio[ends.upper], rel=0.04)
        else:
            assert ratio[0.0] < 1.02 * ratio[ends.upper]


@pytest.mark.parametrize(
    "log",
    [
        one_way(0, [10] * 5, 0.0),
        one_way(1, [10] * 5, 1.0),
        one_way(3, [40, 1, 2, 3, 4, 5, 2, 1, 1, 8], 0.5),
        slopes(0, 12, 7, [0.5, 0.2]),
        slopes(4, 12, 7, [1.0, 0.0]),
    ],
    ids=["equal tasks", "balanced", "one large task", "slopes", "a slope that does not vary"],
)
def test_ends_are_where_the_profile_likelihood_has_fallen_by_so_much(log) -> None:
    checked_against_the_definition(log)


def test_of_a_tree_they_are_too() -> None:
    rng = np.random.default_rng(5)
    parents = [s % 6 for s in range(18)]
    task = np.repeat(np.arange(18), 5)
    theta = 0.7 * rng.normal(size=6)[parents] + 0.3 * rng.normal(size=18)
    checked_against_the_definition((task, np.ones((90, 1)), theta[task] + rng.normal(size=90)), parents)


@pytest.mark.parametrize("shape", ["isotropic", "given"])
def test_multiples_of_one_matrix_have_one_interval(shape) -> None:
    task, phi, reward = slopes(2, 15, 6, [0.6, 0.6])
    V = np.eye(2) if shape == "isotropic" else np.array([[1.0, 0.5], [0.5, 2.0]])
    moments = Moments.from_arrays(task, phi, reward)
    found = estimate(moments, "isotropic" if shape == "isotropic" else V)
    intervals = profile_intervals(moments, found, 0.9, None if shape == "isotropic" else V)

    def at(x: float, noise: float) -> float:
        return restricted_deviance((task, phi, reward), [task], [x * V], noise)

    def best_of(x: float) -> float:
        return optimize.minimize_scalar(
            lambda log_noise: at(x, np.exp(log_noise)), bounds=(-1, 1), method="bounded"
        ).fun

    lowest = min(best_of(x) for x in np.linspace(0.05, 1.5, 60) / V[0, 0])
    for j in (0, 1):
        by = [(best_of(end**2 / V[j, j]) - lowest) / stats.chi2.ppf(0.9, 1) for end in intervals[0, j]]
        assert by == pytest.approx([1.03, 1.03], abs=0.05)
    assert intervals[0, 1].upper == pytest.approx(intervals[0, 0].upper * np.sqrt(V[1, 1] / V[0, 0]))


def test_a_given_matrix_whose_multiple_is_zero_has_an_interval_from_zero() -> None:
    moments = Moments.from_arrays(*slopes(1, 10, 8, [0.0, 0.0]))
    V = np.array([[1.0, 0.5], [0.5, 2.0]])
    learned = learn(moments, V)
    assert learned.estimate.hierarchy.task_cov[0, 0] == pytest.approx(0.0, abs=1e-9)
    ends = {each.name: each for each in learned.hyper_intervals()}["sd[0]"]
    assert ends.lower == pytest.approx(0.0, abs=1e-6)
    assert 0.05 < ends.upper < 1.0


@pytest.mark.parametrize("shape", ["diag", "full", "block"])
def test_units_of_reward_and_columns_do_not_matter_to_them(shape) -> None:
    task, phi, reward = slopes(3, 30, 8, [1.0, 0.4, 0.2, 0.5], 0.4)
    by, blocks = np.array([1.0, 100.0, 0.01, 3.0]), 2 if shape == "block" else None
    intervals = []
    for log in ((task, phi, reward), (task, phi * by, 7 * reward)):
        moments = Moments.from_arrays(*log)
        intervals.append(profile_intervals(moments, estimate(moments, shape, blocks=blocks), 0.95))
    for j in range(4):
        for one, other in zip(intervals[0][0, j], intervals[1][0, j], strict=True):
            assert other * by[j] / 7 == pytest.approx(one, rel=0.02, abs=1e-4)


def test_one_block_is_full_and_well_known_tasks_give_wisharts_law() -> None:
    """With many rows a task, the sum of squares of a coefficient is v chi2_(m - 1), whatever the others are."""
    task, phi, reward = slopes(6, 12, 400, [1.0, 0.7, 0.5], 0.6)
    moments = Moments.from_arrays(task, phi, reward)
    found = estimate(moments, "full")
    full = profile_intervals(moments, found, 0.95)
    assert full == profile_intervals(moments, estimate(moments, "block", blocks=1), 0.95)
    own = [np.linalg.lstsq(phi[task == s], reward[task == s], rcond=None)[0] for s in range(12)]
    squares, k = 11 * np.var(own, axis=0, ddof=1), 11
    bound = stats.chi2.ppf(0.95, 1) * k * (np.log(k / 2) - special.digamma(k / 2))
    for j in range(3):
        ratio = [k * np.log(end**2) + squares[j] / end**2 for end in full[0, j]]
        lowest = k * np.log(squares[j] / k) + k
        assert np.array(ratio) - lowest == pytest.approx([bound, bound], rel=0.08)


# How often they hold


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tasks", "rows", "sd"),
    [(5, 10, 0.0), (10, 10, 0.1), (20, 20, 0.1), (50, 10, 0.1), (10, 5, 0.5), (5, 20, 2.0)],
)
def test_intervals_of_sds_hold_and_reach_zero(tasks, rows, sd) -> None:
    """60 logs of each cell; docs/results/spreads.md has more of both."""
    held = []
    for seed in range(60):
        moments = Moments.from_arrays(*one_way(seed, [rows] * tasks, sd))
        ends = profile_intervals(moments, estimate(moments), 0.95)[0, 0]
        held.append(ends.lower <= sd <= ends.upper)
    assert np.mean(held) >= 0.9  # three standard errors below what docs/results/spreads.md has


@pytest.mark.slow
def test_what_is_printed_is_within_what_is_printed_as_its_interval() -> None:
    for seed in range(8):
        learned = learn(Moments.from_arrays(*one_way(seed, [10] * 5, 0.0)))
        found = {each.name: each for each in learned.hyper_intervals()}["sd[0]"]
        assert found.lower == 0
        assert found.lower < found.estimate <= found.upper


@pytest.mark.slow
def test_a_tree_with_more_variances_than_can_be_drawn_has_an_interval_of_each() -> None:
    """Clicks that nothing explains: 33 variances, of which most are estimated as zero."""
    rng = np.random.default_rng(0)
    n, task = 1400, rng.integers(160, size=1400)
    log = pd.DataFrame({"task": task, "group": task % 40, "action": rng.integers(4, size=n)})
    log[["x", "y", "z"]] = rng.normal(size=(n, 3))
    log["reward"] = rng.integers(2, size=n)
    learner = HierOPO(task_cov="diag")
    learner.fit(log, **ROLES, context=["x", "y", "z"], levels=["group"])  # a warning is an error
    summary = learner.summary()
    for each in summary.coefficients:
        for spread in (each.between, *each.levels):
            assert 0 == spread.lower <= spread.value <= spread.upper
            assert 0.05 < spread.upper < 0.3
    text = str(summary)
    assert "(0 to 0)" not in text
    assert "never" not in text
    assert "over " in text


def test_a_level_that_no_log_can_tell_has_none() -> None:
    moments = Moments.from_arrays(*one_way(0, [6] * 8, 0.5))
    for node in (lambda _: "all", lambda s: f"of {s}"):
        with pytest.warns(HieropoWarning, match="is not learned"):
            found = estimate_levels(moments, levels={"region": {s: node(s) for s in range(8)}})
        assert set(profile_intervals(moments, found, 0.95)) == {(0, 0)}


def test_rewards_without_noise_have_intervals_too() -> None:
    task, phi, _ = slopes(0, 10, 6, [1.0, 0.0])
    theta = np.random.default_rng(1).normal(size=10)
    moments = Moments.from_arrays(task, phi, theta[task] + phi[:, 1])
    with pytest.warns(HieropoWarning, match="without noise"):
        found = estimate(moments)
    ends = profile_intervals(moments, found, 0.95)
    assert ends[0, 0].lower < np.std(theta) < ends[0, 0].upper
    assert ends[0, 0].upper < 3
    assert ends[0, 1].lower == 0
    assert ends[0, 1].upper < 1e-4


# The noise


def information(log: tuple[Array, Array, Array], S: Array, pairs: list[tuple[int, int]]) -> Array:
    """Expected curvature of the restricted deviance in entries of S and log sigma^2, by its definition."""
    task, phi, reward = log
    same = task[:, None] == task[None, :]
    V = np.eye(reward.size) + same * (phi @ S @ phi.T)
    half = np.linalg.solve(V, phi)
    P = np.linalg.inv(V) - half @ np.linalg.solve(phi.T @ half, half.T)  # noqa: TID251 - the definition
    units = []
    for i, j in pairs:
        unit = np.zeros((len(S), len(S)))
        unit[i, j] = unit[j, i] = 1
        units.append(same * (phi @ unit @ phi.T))
    sides = [P @ unit for unit in (*units, V)]
    return np.array([[np.sum(one * other.T) for other in sides] for one in sides])


@pytest.mark.parametrize("shape", ["full", "diag"])
def test_the_error_of_the_noise_is_that_of_the_information(shape) -> None:
    log = slopes(5, 60, 3, [1.0, 0.7], 0.5)
    moments = Moments.from_arrays(*log)
    found = estimate(moments, shape)
    pairs = [(0, 0), (1, 1)] if shape == "diag" else [(0, 0), (0, 1), (1, 1)]
    S = found.hierarchy.task_cov / found.hierarchy.noise_var
    error = 2 * np.linalg.inv(information(log, S, pairs))[-1, -1]  # noqa: TID251 - the definition
    assert 2 / noise_degrees(moments, found) == pytest.approx(error, rel=0.02)
    learned = learn(moments, shape, uncertainty="first-order", estimated=found)
    trend = noise_trend(moments, found.hierarchy)
    noise = error_intervals(learned.hyper_uncertainty, found.hierarchy, 0.95, trend)[0]
    width = (
        np.log(noise.upper / noise.lower) / 1.959964
    )  # of log sigma, in standard errors: 2 of log sigma are 1 of its square
    assert width == pytest.approx(np.sqrt(error), rel=0.1)


def test_replicate_rows_tell_the_noise_and_one_row_of_each_action_does_not() -> None:
    assert noise_degrees(*fitted(one_way(0, [10] * 5, 0.5))) == pytest.approx(5 * 9)
    assert noise_degrees(*fitted(one_way(1, [2] * 10, 0.5))) == pytest.approx(10)
    for shape in ("full", "diag", "isotropic"):
        log = untold(0, 60, 4, 0.5)
        phi = np.eye(4)[log["action"]]
        assert abs(noise_degrees(*fitted((log["task"], phi, log["reward"]), shape))) < 1.5


def fitted(log, shape: str = "auto"):
    moments = Moments.from_arrays(*(np.asarray(each) for each in log))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HieropoWarning)
        return moments, estimate(moments, shape)


def untold(seed: int, tasks: int, actions: int, noise_sd: float) -> pd.DataFrame:
    """One row of each task and action: what all actions of a task share, what one has, and noise."""
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=(tasks, 1)) + rng.normal(size=(tasks, actions))
    reward = 100 + theta + noise_sd * rng.normal(size=(tasks, actions))
    at = np.repeat(np.arange(tasks), actions), np.tile(np.arange(actions), tasks)
    return pd.DataFrame(
        {"task": at[0], "action": at[1], "reward": reward.ravel(), "theta": 100 + theta.ravel()}
    )


@pytest.mark.slow
@pytest.mark.parametrize("noise_sd", [0.5, 1.0])
def test_where_the_noise_is_not_told_no_interval_is_given_and_that_is_said(noise_sd) -> None:
    log = untold(3, 407, 5, noise_sd)
    with pytest.warns(HieropoWarning) as caught:
        learner = HierOPO(task_cov="full").fit(log, **ROLES)
    assert any("Intervals would not hold" in str(each.message) for each in caught)
    assert not learner.learned_.noise_identified
    assert learner.learned_.hyper_intervals() == ()
    table = learner.posterior_.table()
    sds = np.sqrt(np.diagonal(unpack(table.covs, 5), axis1=1, axis2=2))
    assert sds.mean() < 1.42  # of theta itself
    theta = log["theta"].to_numpy().reshape(407, 5)
    assert 0.8 < np.mean(np.abs(table.means - theta) < 1.96 * sds) < 0.99
    summary = learner.summary()
    assert summary.noise_sd.upper is None
    assert all(each.mean.upper is None and each.between.upper is None for each in summary.coefficients)
    text = str(summary)
    assert " % intervals" not in text
    assert "no interval is given" in " ".join(text.split())
    assert json.dumps(summary.to_dict(), allow_nan=False)


@pytest.mark.parametrize(("asked", "method"), [("first-order", "plug-in"), ("integrated", "integrated")])
def test_asking_for_another_way_does_not_tell_the_noise(asked, method) -> None:
    log = untold(1, 60, 3, 1.0)
    with pytest.warns(HieropoWarning):
        learned = HierOPO(task_cov="full", uncertainty=asked).fit(log, **ROLES).learned_
    assert learned.method == method
    assert learned.hyper_intervals() == ()


@pytest.mark.slow
def test_a_policy_on_disk_says_that_the_noise_is_not_told(tmp_path) -> None:
    log = untold(2, 40, 3, 1.0)
    with pytest.warns(HieropoWarning):
        learner = HierOPO(task_cov="full").fit(pa.Table.from_pandas(log), **ROLES)
    load_learner(learner.save(tmp_path / "policy")).save(tmp_path / "again")
    for name in ("policy", "again"):
        for more in ([], ["--task", "3"]):
            done = CliRunner().invoke(main, ["inspect", str(tmp_path / name), *more])
            assert done.exit_code == 0, done.output
            assert "does not identify the noise variance" in " ".join(done.output.split())
    told = pd.concat([log, log.assign(reward=log["reward"] + np.random.default_rng(0).normal(size=len(log)))])
    HierOPO(task_cov="full").fit(told, **ROLES).save(tmp_path / "told")
    assert "tell the noise" not in CliRunner().invoke(main, ["inspect", str(tmp_path / "told")]).output


@pytest.mark.slow
def test_where_the_shape_alone_tells_the_noise_intervals_of_tasks_hold() -> None:
    """Four rows a task of two actions with a context: no task has more rows than features."""
    held = {0.5: [], 2.0: []}
    for noise_sd, seed in [(noise_sd, seed) for noise_sd in held for seed in range(8)]:
        rng = np.random.default_rng(seed)
        theta = 1 + rng.normal(size=(100, 4))
        task, action = np.repeat(np.arange(100), 4), np.arange(400) % 2
        phi = np.zeros((400, 4))
        phi[np.arange(400), 2 * action], phi[np.arange(400), 2 * action + 1] = 1, rng.normal(size=400)
        reward = (phi * theta[task]).sum(axis=1) + noise_sd * rng.normal(size=400)
        with pytest.warns(HieropoWarning, match="No task has more rows"):
            learned = learn(Moments.from_arrays(task, phi, reward))
        assert learned.noise_identified
        table = learned.posterior.table()
        sds = np.sqrt(np.diagonal(unpack(table.covs, 4), axis1=1, axis2=2))
        held[noise_sd].append(np.mean(np.abs(table.means - theta) < 1.96 * sds))
    for shares in held.values():
        assert 0.93 < np.mean(shares) < 0.97


def test_a_few_replicates_do_and_then_intervals_come_back() -> None:
    log = untold(0, 60, 3, 0.5)
    again = log.iloc[:90].assign(reward=log["theta"][:90] + 0.5 * np.random.default_rng(9).normal(size=90))
    learned = HierOPO(task_cov="full").fit(pd.concat([log, again]), **ROLES).learned_
    assert learned.noise_identified
    noise = {each.name: each for each in learned.hyper_intervals()}["noise sd"]
    assert noise.lower < 0.5 < noise.upper
    assert noise.upper / noise.lower < 2


def test_levels_nest() -> None:
    moments = Moments.from_arrays(*one_way(2, [8] * 12, 0.7))
    found = estimate(moments)
    ends = [profile_intervals(moments, found, level)[0, 0] for level in (0.5, 0.8, 0.95, 0.99)]
    for inner, outer in pairwise(ends):
        assert outer.lower <= inner.lower < inner.upper < outer.upper


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "tasks"), [(3, 407), (3, 100), (4, 407)])
def test_one_row_of_each_action_tells_the_crossed_prior_nothing_of_the_interaction(seed, tasks) -> None:
    """Noise and interaction are one variance there: what is known of their share is the prior's, half at 0."""
    with pytest.warns(
        HieropoWarning, match="does not identify the noise of rewards apart from differences between tasks"
    ):
        learner = HierOPO().fit(untold(seed, tasks, 5, 1.0), **ROLES)
    assert 0.35 < learner.hierarchy_.no_interaction < 0.7
    summary = learner.summary()
    assert "a policy for each task can pay" not in summary.verdict
    ranges = [
        summary.noise_sd,
        *(part.sd for part in summary.parts),
        *(one.mean for one in summary.coefficients),
    ]
    assert all(each.lower is None and each.upper is None for each in ranges)
    again = untold(seed, tasks, 5, 1.0)
    told = HierOPO().fit(pd.concat([again, again.iloc[:20]]), **ROLES).summary()  # a warning is an error
    assert told.noise_sd.lower is not None


@pytest.mark.slow
def test_the_interval_of_the_level_reaches_zero_where_tasks_do_not_differ() -> None:
    """A slab alone shuts 0 out by its shape; an interval must not, where the log allows 0."""
    reach = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        task, action = np.repeat(np.arange(5), 10), rng.integers(0, 2, 50)
        frame = pd.DataFrame({"task": task, "action": action, "reward": rng.normal(size=50)})
        level = HierOPO().fit(frame, **ROLES).summary().parts[0]
        reach += level.sd.lower == 0.0
    assert reach >= 9
    differ = rng.normal(size=40)[np.repeat(np.arange(40), 10)] + rng.normal(size=400)
    frame = pd.DataFrame(
        {"task": np.repeat(np.arange(40), 10), "action": rng.integers(0, 2, 400), "reward": differ}
    )
    assert HierOPO().fit(frame, **ROLES).summary().parts[0].sd.lower > 0.5


@pytest.mark.parametrize("seed", [0, 2])
def test_rewards_without_noise_in_clusters_have_a_summary(seed: int) -> None:
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(10), 20)
    log = pd.DataFrame(
        {
            "task": task,
            "action": "a",
            "reward": rng.normal(size=10)[task],
            "session": rng.integers(0, 66, 200),
            "size": 1.0 * task,
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HieropoWarning)
        learner = HierOPO().fit(log, **ROLES, metadata=["size"], cluster="session")
    assert learner.summary(models=False).rows is not None
