"""What a policy is worth in each task: laws, certificates and rows needed, against slow truths and closed forms."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference.dense import Array
from scipy import stats

from hieropo._utils.packed import packed_size, unpack
from hieropo.errors import InputError, MismatchError
from hieropo.estimation.crossed.integration import integrate_crossed
from hieropo.estimation.crossed.mixture import condition_hierarchies
from hieropo.estimation.hyper.corrected import HyperError, correct
from hieropo.estimation.hyper.mixed import HyperDraws, mix
from hieropo.evaluation.by_posterior.certificates import certificates, rows_needed, value_distributions
from hieropo.features.maps import per_action
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import condition_crossed
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy, Level
from hieropo.model.posterior import condition
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitAccumulator

ROOT = Path(__file__).resolve().parents[2]
M, D, K, N = 6, 3, 4, 40
Z95 = stats.norm.ppf(0.95)
COVS = [np.cov(np.random.default_rng(k).standard_normal((D, 40))) for k in range(4)]
HIERARCHY = Hierarchy(None, COVS[0], 0.7)


def log(seed: int = 0, n: int = 30) -> Moments:
    rng = np.random.default_rng(seed)
    task = np.concatenate([np.arange(M), rng.integers(0, M, n - M)])
    return Moments.from_arrays(task, rng.standard_normal((n, D)), rng.standard_normal(n))


def unit_moments() -> Moments:
    rng = np.random.default_rng(3)
    sums, n = UnitAccumulator(per_action(range(K), ["x"])), 5 * M
    sums.add(
        np.tile(np.arange(M), 5), rng.integers(0, K, n), rng.standard_normal((n, 1)), rng.random(n) + 0.5
    )
    return sums.moments()


def units(*, level: bool) -> Any:
    covs = [cov[:2, :2] for cov in COVS]
    level_cov = covs[2] if level else np.zeros((2, 2))
    return condition_crossed(
        unit_moments(), CrossedHierarchy(covs[1], level_cov, covs[0], np.array([0.7, 0.5, 1.2, 0.7]))
    )


def mixture_of_units() -> Any:
    moments = unit_moments()
    return condition_hierarchies(moments, integrate_crossed(moments))


def mixture() -> Any:
    weights, noise = np.array([0.7, 0.25, 0.05]), np.array([0.5, 0.7, 4.0])
    covs = np.array([COVS[0], 0.1 * COVS[1], 5 * COVS[2]])
    return mix(log(), HIERARCHY, HyperDraws(weights, covs, noise, np.zeros((3, 0, D, D))))


KINDS: dict[str, Callable[[], Any]] = {
    "two levels": lambda: condition(log(), HIERARCHY),
    "tree": lambda: condition(
        log(),
        Hierarchy(None, COVS[0], 0.7, (Level(COVS[1], dict(zip(range(M), "NNSSNS", strict=True))),)),
    ),
    "mixture": mixture,
    "corrected": lambda: correct(
        log(), HIERARCHY, HyperError(D, 0.5 * np.cov(np.eye(packed_size(D)) + 0.1), 20)
    ),
    "units": lambda: units(level=False),
    "units with a level": lambda: units(level=True),
    "mixture of units": mixture_of_units,
}
kinds = pytest.mark.parametrize("post", [pytest.param(make(), id=name) for name, make in KINDS.items()])


def parts(post: Any) -> list[tuple[float, Any]]:
    """The hierarchies that a posterior mixes, with their weights."""
    return list(zip(post.weights, post.parts(), strict=True))


# Laws of tasks


@kinds
def test_the_law_of_each_task_is_that_of_its_mixture(post: Any) -> None:
    v = np.random.default_rng(1).standard_normal((2, M, post.dim))
    found = value_distributions(post, v)
    for row, task in enumerate(post.moments.keys.values.tolist()):
        mean, var = post.task(task).project(v[:, row])
        np.testing.assert_allclose(found.mean[:, row], mean, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found.sd[:, row], np.sqrt(var), rtol=1e-10)
        below = np.zeros(2)
        for weight, part in parts(post):
            here, spread = part.task(task).project(v[:, row])
            below += weight * stats.norm.cdf(0.0, here, np.sqrt(spread))
        np.testing.assert_allclose(found.below[:, row], below, rtol=1e-9)


@kinds
def test_leading_axes_are_asked_one_by_one(post: Any) -> None:
    v = np.random.default_rng(1).standard_normal((2, 3, M, post.dim))
    found = value_distributions(post, v)
    for i, j in np.ndindex(2, 3):
        for whole, one in zip(found, value_distributions(post, v[i, j]), strict=True):
            np.testing.assert_allclose(whole[i, j], one, rtol=1e-12, atol=1e-14)


@kinds
def test_a_policy_that_does_the_same_does_no_harm(post: Any) -> None:
    v = np.zeros((M, post.dim))
    v[2] = 1.0
    found = value_distributions(post, v)
    still = np.arange(M) != 2
    for each in found:
        assert (each[still] == 0.0).all()
        assert each[2] != 0.0


def test_what_is_known_for_sure_does_harm_or_does_not() -> None:
    sure = condition(
        log(), Hierarchy(Gaussian(np.array([1.0, 0.0, 0.0]), np.zeros((3, 3))), np.zeros((3, 3)), 1.0)
    )
    found = value_distributions(sure, [[[1.0, 5.0, 0.0]] * M, [[-1.0, 5.0, 0.0]] * M])
    assert (found.mean == [[1.0], [-1.0]]).all()
    assert not found.sd.any()
    assert (found.below == [[0.0], [1.0]]).all()


def test_the_tail_of_a_mixture_is_not_that_of_its_moments() -> None:
    post = mixture()
    v = np.zeros((M, D))
    v[:, 0] = 1.0
    law = value_distributions(post, v)
    matched = stats.norm.cdf(-law.mean / law.sd)
    assert np.abs(law.below - matched).max() > 0.02


def test_vectors_of_other_tasks_are_refused() -> None:
    with pytest.raises(
        MismatchError, match=r"shape \(5, 3\)\. .* shape \(\.\.\., m, d\), with the m = 6 tasks"
    ):
        value_distributions(KINDS["two levels"](), np.zeros((M - 1, D)))


# Certificates


def contexts(d: int, seed: int = 4) -> dict[str, Array]:
    """Contexts of four of the tasks, out of order; in some not every action is eligible."""
    rng = np.random.default_rng(seed)
    rows, phi = rng.choice([5, 0, 3, 1], N), rng.standard_normal((N, K, d))
    mask = rng.random((N, K)) < 0.6
    chosen = rng.integers(0, K, N)
    mask[np.arange(N), chosen] = True
    return {"rows": rows, "phi": phi, "chosen": chosen, "mask": mask, "weight": rng.uniform(0.1, 3.0, N)}


def losses(asked: dict[str, Array], row: int, theta: Array) -> Array:
    """V(pi_*) - V(pi) of one task under each theta, context by context."""
    total, weights = np.zeros(len(theta)), 0.0
    for at in np.flatnonzero(asked["rows"] == row):
        values = asked["phi"][at] @ theta.T
        best = values[asked["mask"][at]].max(axis=0)
        total += asked["weight"][at] * (best - values[asked["chosen"][at]])
        weights += asked["weight"][at]
    return total / weights


@pytest.mark.slow
@kinds
def test_a_certificate_is_the_quantile_of_what_the_best_policy_adds(post: Any) -> None:
    asked = contexts(post.dim)
    found = certificates(post, **asked, rng=np.random.default_rng(0), n_samples=8000)
    assert found.rows.tolist() == [0, 1, 3, 5]
    rng = np.random.default_rng(1)
    for row, value in zip(found.rows.tolist(), found.values, strict=True):
        task = post.moments.keys.values.tolist()[row]
        share = 0.0
        for weight, part in parts(post):
            share += weight * (losses(asked, row, part.task(task).sample(rng, 40_000)) <= value).mean()
        assert abs(share - 0.95) < 4 * np.sqrt(0.95 * 0.05 * (1 / 8000 + 1 / 40_000))


def test_of_one_context_and_two_actions_it_has_a_closed_form() -> None:
    post = condition(
        Moments.from_arrays([0, 1, 1], np.ones((3, 1)), [-3.0, 0.2, 0.4]), Hierarchy(None, [[1.0]], 1.0)
    )
    phi, rows = np.tile([[0.0], [1.0]], (2, 1, 1)), np.arange(2)
    for chosen, sign in ((0, 1.0), (1, -1.0)):
        found = certificates(
            post, rows, phi, np.full(2, chosen), level=0.9, rng=np.random.default_rng(0), n_samples=100_000
        )
        laws = [post.task(task) for task in (0, 1)]
        wanted = [max(0.0, sign * law.mean[0] + stats.norm.ppf(0.9) * law.sd[0]) for law in laws]
        np.testing.assert_allclose(found.values, wanted, atol=0.02)
        assert max(wanted) > 0.5


def test_where_theta_is_known_it_is_the_loss() -> None:
    truth = np.array([0.5, -1.0, 2.0])
    sure = condition(log(), Hierarchy(Gaussian(truth, np.zeros((3, 3))), np.zeros((3, 3)), 1.0))
    asked = contexts(D)
    found = certificates(sure, **asked, rng=np.random.default_rng(0), n_samples=50)
    wanted = [losses(asked, row, truth[None])[0] for row in found.rows]
    np.testing.assert_allclose(found.values, wanted, rtol=1e-12)


@pytest.mark.slow
def test_the_truth_is_above_as_often_as_the_level_says() -> None:
    post, level, draws = KINDS["two levels"](), 0.75, 3  # the largest of 3 draws
    rng = np.random.default_rng(5)
    theta = post.task(0).sample(rng, 4000)
    asked = {name: array[:3] for name, array in contexts(D).items()}
    asked["rows"] = np.zeros(3, dtype=np.int64)
    held = [
        losses(asked, 0, each[None])[0]
        <= certificates(post, **asked, level=level, rng=rng, n_samples=draws).values[0]
        for each in theta
    ]
    assert abs(np.mean(held) - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 4000)


def test_the_order_of_contexts_and_the_scale_of_weights_do_not_matter() -> None:
    post, asked, order = KINDS["mixture"](), contexts(D), np.random.default_rng(2).permutation(N)
    found = certificates(post, **asked, rng=np.random.default_rng(0))
    turned = {name: array[order] for name, array in asked.items()}
    turned["weight"] = 7.0 * turned["weight"]
    again = certificates(post, **turned, rng=np.random.default_rng(0))
    np.testing.assert_allclose(again.values, found.values, rtol=1e-10)


def test_pieces_of_contexts_are_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from hieropo.evaluation.by_posterior import certificates as worth

    post, asked = KINDS["two levels"](), contexts(D)
    whole = certificates(post, **asked, rng=np.random.default_rng(0), n_samples=100)
    monkeypatch.setattr(worth, "_MAX_NUMBERS", 3 * K * 100)
    again = certificates(post, **asked, rng=np.random.default_rng(0), n_samples=100)
    np.testing.assert_allclose(again.values, whole.values, rtol=1e-12)


def _set(name: str, at: Any, value: object) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def spoil(asked: dict[str, Any]) -> dict[str, Any]:
        array = asked[name].copy()
        array[at] = value
        return {**asked, name: array}

    return spoil


@pytest.mark.parametrize(
    ("spoil", "error", "says"),
    [
        (_set("rows", 3, M), InputError, r"rows\[3\] is 6; it must be in 0 .. 5"),
        (_set("rows", 3, -1), InputError, r"rows\[3\] is -1"),
        (_set("chosen", 2, K), InputError, r"chosen\[2\] is 4; it must be in 0 .. 3"),
        (
            lambda asked: {**asked, "rows": asked["rows"] + 0.0},
            MismatchError,
            r"type float64; integers of shape \(40,\)",
        ),
        (lambda asked: {**asked, "phi": asked["phi"][..., :2]}, MismatchError, r"\(n, K, 3\) is needed"),
        (lambda asked: {**asked, "mask": asked["mask"][:, :2]}, MismatchError, r"mask of shape \(40, 2\)"),
        (_set("phi", (4, 1, 2), np.nan), InputError, "Context 4 has features that are not finite"),
        (_set("mask", 6, value=False), InputError, "Context 6 has .* no eligible action"),
        (_set("weight", 8, -1.0), InputError, "Context 8 has .* the weight -1.0"),
        (
            lambda asked: {**asked, "weight": np.where(asked["rows"] == 3, 0.0, 1.0)},
            InputError,
            "task 3 have the",
        ),
        (
            lambda asked: _set("mask", (1, asked["chosen"][1]), value=False)(asked),
            InputError,
            "Context 1: action . was chosen and is not eligible",
        ),
        (lambda asked: {**asked, "level": 1.0}, InputError, r"level=1.0 is not a probability in \(0, 1\)"),
        (lambda asked: {**asked, "n_samples": 18}, InputError, "18 draws .* at least 19 are needed"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    spoil: Callable[[dict[str, Any]], dict[str, Any]], error: type[Exception], says: str
) -> None:
    asked: dict[str, Any] = contexts(D)
    asked["mask"][1] = asked["mask"][6] = True
    with pytest.raises(error, match=says):
        certificates(KINDS["two levels"](), **spoil(asked), rng=np.random.default_rng(0))


def test_nothing_asked_is_nothing_found() -> None:
    found = certificates(
        KINDS["mixture"](), np.zeros(0, dtype=int), np.zeros((0, K, D)), np.zeros(0, dtype=int),
        rng=np.random.default_rng(0),
    )  # fmt: skip
    assert found.rows.size == found.values.size == 0


# Rows needed


def expected_of_two(law: Gaussian, info: float, pessimism: float, k: float) -> float:
    """Expected certificate of a choice between 0 and theta after k rows, by quadrature."""
    mean, var = law.mean[0], law.cov[0, 0]
    then = var / (1 + k * info * var)
    nodes = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    future = mean + np.sqrt(var - then) * nodes
    taken = future - pessimism * np.sqrt(then) > 0
    return float(np.maximum(0.0, Z95 * np.sqrt(then) + np.where(taken, -future, future)).mean())


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.25, 0.1, 0.02])
@pytest.mark.parametrize("reward", [0.1, 1.0])
@pytest.mark.parametrize(
    ("pessimism", "borrowed", "info"), [(0.0, 0.0, 1.0), (1.0, 0.0, 1.0), (0.0, 2.0, 3.0)]
)
def test_of_two_actions_the_rows_needed_have_a_closed_form(
    reward: float, epsilon: float, pessimism: float, borrowed: float, info: float
) -> None:
    """Rows of task 0 tell 1, those of task 1 tell 9; two of its own and two of the fleet, 3 in the mean."""
    moments = Moments.from_arrays([0, 0, 1, 1], [[1.0], [1.0], [3.0], [3.0]], [reward, reward, 0.0, 0.0])
    post = condition(moments, Hierarchy(Gaussian([0.0], [[0.0]]), [[1.0]], 1.0))
    given = {"pessimism": pessimism, "borrowed": borrowed}
    (found,) = rows_needed(post, [0], [[[0.0], [1.0]]], epsilon, rng=np.random.default_rng(0), **given).values
    reached = (k for k in range(1, 2000) if expected_of_two(post.task(0), info, pessimism, k) <= epsilon)
    least = next(reached)
    assert abs(found - least) <= 0.12 * least + (0.0 if least > 8 else 1.0)


@pytest.mark.parametrize(
    ("kind", "pessimism", "borrowed"), [("two levels", 2.0, 0.0), ("units with a level", 0.0, 2.0)]
)
def test_after_the_rows_needed_the_certificate_is_what_was_wanted(
    kind: str, pessimism: float, borrowed: float
) -> None:
    """Draw the truth and what the rows say of it, learn again, choose again, certify again."""
    post, row = KINDS[kind](), 3
    d, rng, law = post.dim, np.random.default_rng(1), post.task(row)
    rows, phi = np.full(5, row), rng.standard_normal((5, K, d))
    phi[:, 0] *= 4.0  # what would be chosen, if it could be
    asked = {"mask": np.tile(np.arange(K) > 0, (5, 1)), "weight": np.array([1.0, 9.0, 1.0, 1.0, 1.0])}

    def choice(mean: Array, cov: Array) -> Array:
        sd = np.sqrt(np.einsum("nki,ij,nkj->nk", phi, cov, phi))
        return 1 + (phi @ mean - pessimism * sd)[:, 1:].argmax(axis=1)

    now = certificates(post, rows, phi, choice(law.mean, law.cov), rng=rng, **asked).values[0]
    asked |= {"pessimism": pessimism, "borrowed": borrowed}
    (found,) = rows_needed(post, rows, phi, now / 2, rng=rng, **asked).values
    assert 5 < found < 200
    own, fleet = design_of(post, [row]), design_of(post, list(range(M)))
    seen = found * (own[0] + borrowed * fleet[0] / fleet[1]) / (own[1] + borrowed)
    then = np.linalg.solve(np.eye(d) + law.cov @ seen, law.cov)
    then, values = (then + then.T) / 2, []
    for theta in law.sample(rng, 400):
        score = seen @ theta + Gaussian(np.zeros(d), seen).sample(rng, 1)[0]
        mean = law.mean + then @ (score - seen @ law.mean)
        worth = phi @ Gaussian(mean, then).sample(rng, 500).T
        taken = np.take_along_axis(worth, choice(mean, then)[:, None, None], 1)[:, 0]
        loss = asked["weight"] @ (worth[:, 1:].max(axis=1) - taken) / asked["weight"].sum()
        values.append(np.quantile(loss, 0.95))
    assert np.mean(values) == pytest.approx(now / 2, rel=0.12)


def design_of(post: Any, rows: list[int]) -> tuple[Array, int]:
    """Sum of phi phi' / sigma^2 over the rows of some tasks, and their number."""
    moments, total = post.moments, np.zeros((post.dim, post.dim))
    n = int(moments.rows[rows].sum())
    if not moments.per_action:
        return unpack(moments.sums[rows].sum(axis=0), D + 2)[:D, :D] / post.hierarchy.noise_var, n
    p = moments.unit_dim
    for a, noise_var in enumerate(post.hierarchy.noise_var):
        at = slice(a * p, (a + 1) * p)
        total[at, at] = unpack(moments.sums[rows, a].sum(axis=0), p + 2)[:p, :p] / noise_var
    return total, n


def test_what_a_task_never_tries_it_never_learns() -> None:
    task = np.array([0, 0, 0, 1, 1, 1])
    phi = np.eye(2)[[0, 0, 0, 0, 1, 1]]  # task 0 never takes the second action
    post = condition(Moments.from_arrays(task, phi, np.zeros(6)), Hierarchy(None, np.eye(2), 1.0))
    asked = [0, 1], np.tile(np.eye(2), (2, 1, 1)), 0.2

    def needed(**given: float) -> list[float]:
        return rows_needed(post, *asked, rng=np.random.default_rng(0), **given).values.tolist()

    alone, helped = needed(), needed(borrowed=1.0)
    assert alone[0] == np.inf
    assert 10 <= alone[1] <= 22  # 16 with these draws
    assert 35 <= helped[0] <= 65  # 49 with these draws


def test_a_task_without_rows_is_given_the_fleets_design() -> None:
    moments = (
        log()
        + Moments.from_arrays([99], np.zeros((1, D)), [0.0])
        - Moments.from_arrays([99], np.zeros((1, D)), [0.0])
    )
    post = condition(moments, HIERARCHY)
    row, phi = post.moments.keys.find(99), np.random.default_rng(1).standard_normal((4, K, D))
    assert post.moments.rows[row] == 0
    found = rows_needed(post, np.full(4, row), phi, 0.5, rng=np.random.default_rng(0))
    assert 2 <= found.values[0] <= 4


@pytest.mark.slow
def test_fewer_rows_are_needed_for_less_and_none_for_what_is_so_now() -> None:
    post, asked = KINDS["mixture"](), contexts(D)
    given = {name: asked[name] for name in ("rows", "phi", "mask", "weight")}
    found = [
        rows_needed(post, epsilon=epsilon, rng=np.random.default_rng(0), pessimism=0.5, **given).values
        for epsilon in (0.05, 0.2, 1.0, 50.0)
    ]
    assert (np.diff(found, axis=0) <= 0).all()
    assert (found[0] > found[2]).all()
    assert (found[-1] == 0.0).all()


def test_where_nothing_is_open_no_rows_are_needed() -> None:
    sure = condition(log(), Hierarchy(Gaussian(np.ones(3), np.zeros((3, 3))), np.zeros((3, 3)), 1.0))
    phi = np.random.default_rng(1).standard_normal((4, K, D))
    assert rows_needed(sure, [0, 0, 1, 1], phi, 1e-9, rng=np.random.default_rng(0)).values.tolist() == [
        0.0,
        0.0,
    ]


@pytest.mark.parametrize(
    "given", [{"epsilon": 0.0}, {"epsilon": np.nan}, {"pessimism": -1.0}, {"borrowed": -1.0}]
)
def test_what_no_rows_can_reach_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(given))}={next(iter(given.values()))!r}"):
        rows_needed(
            KINDS["two levels"](),
            [0],
            np.zeros((1, K, D)),
            **{"epsilon": 0.1, **given},
            rng=np.random.default_rng(0),
        )


# The committed table


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "experiments")
    return importlib.import_module("worth")


@pytest.mark.slow
@pytest.mark.parametrize("bias", [0.0, 0.1])
def test_tenths_show_a_probability_that_is_off_and_their_errors_are_those_of_runs(
    experiment: Any, bias: float
) -> None:
    rng, shape = np.random.default_rng(0), (1, 1, 50)

    def run() -> Any:
        said, common = rng.uniform(0.1, 0.75, shape), rng.uniform(-0.1, 0.1)  # runs differ
        harmed = rng.random(shape) < said + common + bias
        return experiment.Run(np.zeros(1), np.zeros(1), said, harmed, rng.random(shape) < 0.2)

    found = np.array([experiment.tenths([run() for _ in range(40)], 0, 0) for _ in range(200)])
    gaps = found[:, 1] - found[:, 0]
    np.testing.assert_allclose(gaps.mean(axis=0), bias, atol=0.01)
    np.testing.assert_allclose(found[:, 2].mean(axis=0), gaps.std(axis=0), rtol=0.2)


def test_the_first_runs_of_the_experiment_are_the_committed_ones(experiment: Any) -> None:
    text = (ROOT / "docs" / "results" / "worth.md").read_text(encoding="utf-8")
    rows = {
        row["run"]: row for row in importlib.import_module("tables").read_table(text, "## The first runs")
    }
    for setting in (s for s in experiment.SETTINGS if s.methods == experiment.KNOWN):
        for k in range(experiment.FIRST):
            run = experiment.one_run(setting, k)
            row = rows[f"{setting.world}, m = {setting.tasks}, known, run {k}"]
            for name, share in zip(experiment.COLUMNS, run.shares[0], strict=True):
                # One choice, or one draw, may turn on the last digit of another processor.
                assert share == pytest.approx(float(row[name]), abs=1.01 / setting.tasks), name
            for name, mean in zip(experiment.MEANS, run.means[0], strict=True):
                assert mean == pytest.approx(float(row[name]), rel=0.01, abs=1e-4), name


def test_what_the_table_says_of_its_goals_is_what_it_holds(experiment: Any) -> None:
    text = (ROOT / "docs" / "results" / "worth.md").read_text(encoding="utf-8")
    rows = importlib.import_module("tables").read_table(text, "## Goals")
    for row in rows:
        value = float(row["found"].split(" ± ")[0])
        if row["wanted"] == f"within {experiment.POINTS} points":
            inside = abs(value) <= experiment.POINTS
        else:
            low, _, high = row["wanted"].removeprefix(">= ").partition(" to ")
            inside = float(low) <= value <= float(high or 1.0)
        assert row["met"] == ("yes" if inside else "no"), row
        assert (row["goal"] in text.split("| goal |")[0]) == (not inside), row
