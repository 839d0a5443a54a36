"""Covariances of every level and metadata: the deviance and slopes against brute force, the posterior, the optimum."""

import numpy as np
import pytest

from hieropo import (
    Gaussian,
    Hierarchy,
    HieropoWarning,
    InputError,
    Level,
    LogError,
    Metadata,
    Moments,
    NumericalError,
    UnknownTaskError,
    condition,
    estimate,
    estimate_levels,
)
from hieropo.estimation.tree_estimation import Tree, tree_likelihood
from hieropo.model.posterior import parents_of
from hieropo.rows.keys import Keys

REGION = {0: "N", 1: "N", 2: "S", 3: "S"}


class Log:
    """Tasks in four stores of two regions, with two numbers known of each task."""

    def __init__(self, seed: int, m: int, n: int, d: int = 2, stores: int = 4, noise_sd: float = 0.7) -> None:
        rng = np.random.default_rng(seed)
        self.d, self.m = d, m
        self.store = np.arange(m) % stores
        self.values = rng.standard_normal((m, 2)) + np.array([5.0, -1.0])
        self.kappa = rng.standard_normal((d, 2))
        self.cov, self.store_cov = 0.3 * np.eye(d) + 0.1, np.diag(np.linspace(0.2, 1.0, d))
        node = np.arange(1.0, d + 1) + rng.multivariate_normal(np.zeros(d), self.store_cov, size=stores)
        self.theta = node[self.store] + rng.multivariate_normal(np.zeros(d), self.cov, size=m)
        self.task = np.repeat(np.arange(m), n)
        self.phi = rng.standard_normal((m * n, d))
        self.phi[:, 0] = 1.0
        self.noise = noise_sd * rng.standard_normal(m * n)

    def reward(self, *, metadata: bool) -> np.ndarray:
        theta = self.theta + metadata * (self.values - self.values.mean(axis=0)) @ self.kappa.T
        return (self.phi * theta[self.task]).sum(axis=1) + self.noise

    def moments(self, *, metadata: bool = False) -> Moments:
        return Moments.from_arrays(self.task, self.phi, self.reward(metadata=metadata))

    def metadata(self) -> Metadata:
        return Metadata(range(self.m), self.values, ("size", "age"))

    def parents(self) -> dict[int, int]:
        return dict(enumerate(self.store.tolist()))

    def root_features(self, *, metadata: bool) -> np.ndarray:
        known = (self.values - self.values.mean(axis=0))[self.task]
        crossed = [self.phi[:, j] * known[:, k] for j in range(self.d) for k in range(2)]
        return np.column_stack([self.phi, *crossed]) if metadata else self.phi


def tree(log: Log, *, metadata: bool) -> Tree:
    moments = log.moments(metadata=metadata)
    zero = np.zeros((log.d, log.d))
    levels = (Level(zero, log.parents()), Level(zero, REGION))
    shape = Hierarchy(None, zero, 1.0, levels, log.metadata() if metadata else None)
    keys, parents = moments.keys, []
    for k in range(3):
        keys, parent = parents_of(keys, shape.levels, k)
        parents.append(parent)
    design = log.metadata().design(log.d, moments.keys) if metadata else None
    return Tree(moments.sums, log.d, tuple(parents), moments.n_rows, 0.0, design)


def brute(log: Log, ratios, criterion, *, metadata: bool) -> float:
    """-2 log likelihood from the covariance of all rewards, by its definition."""
    n, X, reward = log.task.size, log.root_features(metadata=metadata), log.reward(metadata=metadata)
    store = log.store[log.task]
    region = np.array([REGION[s] for s in store.tolist()])
    V = np.eye(n)
    for ratio, group in zip(ratios, (log.task, store, region), strict=True):
        V += (group[:, None] == group[None, :]) * (log.phi @ ratio @ log.phi.T)
    P = X.T @ np.linalg.solve(V, X)
    rest = reward - X @ np.linalg.solve(P, X.T @ np.linalg.solve(V, reward))
    degrees = n - X.shape[1] if criterion == "reml" else n
    squares = rest @ np.linalg.solve(V, rest)
    found = degrees * (np.log(2 * np.pi * squares / degrees) + 1) + np.linalg.slogdet(V)[1]
    return float(found + (np.linalg.slogdet(P)[1] if criterion == "reml" else 0.0))


RATIOS = [
    [np.array([[0.5, 0.1], [0.1, 0.3]]), np.array([[1.0, 0.2], [0.2, 0.5]]), np.eye(2)],
    [np.diag([0.4, 0.0]), np.outer([1.0, 2.0], [1.0, 2.0]), np.zeros((2, 2))],
]


@pytest.mark.parametrize("criterion", ["reml", "ml"])
@pytest.mark.parametrize("metadata", [False, True])
@pytest.mark.parametrize("ratios", RATIOS)
def test_the_deviance_of_a_tree_is_the_likelihood_of_the_rewards(ratios, metadata, criterion) -> None:
    log = Log(0, 12, 5)
    found = tree_likelihood(tree(log, metadata=metadata), ratios, criterion, 0.0)
    assert found.deviance == pytest.approx(brute(log, ratios, criterion, metadata=metadata), rel=1e-11)


@pytest.mark.parametrize("criterion", ["reml", "ml"])
@pytest.mark.parametrize("metadata", [False, True])
def test_the_slope_in_every_level_is_the_derivative(metadata, criterion) -> None:
    log, ratios = Log(1, 12, 5), RATIOS[0]
    found = tree_likelihood(tree(log, metadata=metadata), ratios, criterion, 0.0)
    for k in range(3):
        for i in range(2):
            for j in range(i + 1):
                change = np.zeros((2, 2))
                change[i, j] = change[j, i] = 1e-5
                sides = [
                    brute(
                        log,
                        [S + sign * change if at == k else S for at, S in enumerate(ratios)],
                        criterion,
                        metadata=metadata,
                    )
                    for sign in (1, -1)
                ]
                slope = found.slopes[k][i, j] * (1 if i == j else 2)
                assert slope == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("shape", ["full", "diag", "isotropic"])
@pytest.mark.parametrize("criterion", ["reml", "ml"])
def test_without_levels_it_is_the_estimate_of_two_levels(shape, criterion) -> None:
    moments = Log(2, 40, 8, d=3).moments()
    one, other = estimate(moments, shape, criterion), estimate_levels(moments, shape, criterion)
    assert other.chosen.deviance == pytest.approx(one.chosen.deviance, rel=1e-10)
    np.testing.assert_allclose(other.hierarchy.task_cov, one.hierarchy.task_cov, rtol=2e-3, atol=1e-4)
    assert other.hierarchy.noise_var == pytest.approx(one.hierarchy.noise_var, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["full", "diag", "isotropic"])
def test_no_other_covariances_are_likelier(shape) -> None:
    log = Log(3, 60, 6)
    found = estimate_levels(log.moments(), shape, levels={"store": log.parents(), "region": REGION})
    best = found.chosen.deviance
    hierarchy = found.hierarchy
    ratios = [cov / hierarchy.noise_var for cov in (hierarchy.task_cov, *(lv.cov for lv in hierarchy.levels))]
    assert brute(log, ratios, "reml", metadata=False) == pytest.approx(best, rel=1e-11)
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-1, 1.0):
        for k in range(3):
            for _ in range(5):
                change = {
                    "full": lambda: rng.standard_normal((2, 2)),
                    "diag": lambda: np.diag(rng.standard_normal(2)),
                    "isotropic": lambda: rng.standard_normal() * np.eye(2),
                }[shape]()
                root = np.linalg.cholesky(ratios[k] + 1e-12 * np.eye(2)) + size * change
                other = [root @ root.T if at == k else S for at, S in enumerate(ratios)]
                assert brute(log, other, "reml", metadata=False) >= best - 1e-7


def test_with_many_nodes_the_truth_comes_out() -> None:
    log = Log(4, 6000, 8, d=2, stores=600)
    found = estimate_levels(
        log.moments(metadata=True), "full", levels={"store": log.parents()}, metadata=log.metadata()
    )
    hierarchy = found.hierarchy
    np.testing.assert_allclose(hierarchy.task_cov, log.cov, atol=0.04)
    np.testing.assert_allclose(hierarchy.levels[0].cov, log.store_cov, atol=0.15)
    assert hierarchy.noise_var == pytest.approx(0.49, rel=0.03)
    root = condition(log.moments(metadata=True), hierarchy).hyper
    np.testing.assert_allclose(root.mean[2:].reshape(2, 2), log.kappa, atol=5 * root.sd[2:].max())
    assert root.sd[2:].max() < 0.03
    assert found.chosen.evaluations < 40


def extended(log: Log) -> Moments:
    """The same model as plain features: metadata times phi, whose coefficients do not differ between tasks."""
    return Moments.from_arrays(log.task, log.root_features(metadata=True), log.reward(metadata=True))


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("hyper", [None, Gaussian(np.arange(6.0), np.diag([1, 2, 0.5, 1, 3, 0.1]))])
def test_metadata_are_features_whose_coefficients_all_tasks_share(grouped, hyper) -> None:
    log = Log(5, 12, 3)
    cov, store_cov = log.cov, log.store_cov if grouped else np.zeros((2, 2))
    pad = lambda S: np.pad(S, (0, 4))  # noqa: E731
    levels = (Level(store_cov, log.parents()),) if grouped else ()
    wide = tuple(Level(pad(level.cov), level.parent) for level in levels)
    known = Hierarchy(hyper, cov, 0.4, levels, log.metadata())
    found = condition(log.moments(metadata=True), known)
    truth = condition(extended(log), Hierarchy(hyper, pad(cov), 0.4, wide))
    assert found.log_evidence == pytest.approx(truth.log_evidence, rel=1e-10)
    np.testing.assert_allclose(found.hyper.mean, truth.hyper.mean, rtol=1e-8, atol=1e-9)
    Z = {s: known.metadata.one(2, log.values[s]) for s in range(12)}
    table = found.table()
    for s in range(12):
        mine, theirs = found.task(s), truth.task(s)
        np.testing.assert_allclose(mine.mean, Z[s] @ theirs.mean, rtol=1e-8)
        np.testing.assert_allclose(mine.cov, Z[s] @ theirs.cov @ Z[s].T, rtol=1e-7, atol=1e-10)
        np.testing.assert_allclose(table.means[table.keys.find(s)], mine.mean, rtol=1e-12)
    between = Z[0] @ truth.cov_between(0, 5) @ Z[5].T
    np.testing.assert_allclose(found.cov_between(0, 5), between, rtol=1e-6, atol=1e-9)
    new = found.new_task(metadata=[6.0, 0.5])
    Z_new, whole = known.metadata.one(2, [6.0, 0.5]), truth.new_task()
    np.testing.assert_allclose(new.mean, Z_new @ whole.mean, rtol=1e-8)
    np.testing.assert_allclose(new.cov, Z_new @ whole.cov @ Z_new.T, rtol=1e-7)
    if grouped:
        np.testing.assert_allclose(found.node(0, 1).mean, truth.node(0, 1).mean[:2], rtol=1e-8)
        near = found.new_task(1, metadata=[6.0, 0.5])
        np.testing.assert_allclose(near.mean, Z_new @ truth.node(0, 1).mean, rtol=1e-8)


def test_a_new_task_of_which_nothing_is_known_is_drawn_from_those_known() -> None:
    log = Log(6, 30, 4)
    known = Hierarchy(None, log.cov, 0.4, (), log.metadata())
    post = condition(log.moments(metadata=True), known)
    each = [post.new_task(metadata=log.values[s]) for s in range(30)]
    means = np.array([law.mean for law in each])
    np.testing.assert_allclose(post.new_task().mean, means.mean(axis=0), rtol=1e-9)
    mixed = np.mean([law.cov for law in each], axis=0) + np.cov(means.T, bias=True)
    np.testing.assert_allclose(post.new_task().cov, mixed, rtol=1e-8)


def test_designs_of_ones_own_are_used_as_they_are() -> None:
    # theta_sj = mu_j + kappa g_sj + u_sj: one coefficient for all features
    log = Log(7, 25, 4)
    shares = np.random.default_rng(8).standard_normal((25, 2, 1))
    theta = log.theta + 0.8 * (shares - shares.mean(axis=0))[:, :, 0]
    reward = (log.phi * theta[log.task]).sum(axis=1) + log.noise
    moments = Moments.from_arrays(log.task, log.phi, reward)
    for shape in ("full", "diag"):
        found = estimate_levels(moments, shape, metadata=Metadata(range(25), shares))
        root = condition(moments, found.hierarchy).hyper
        assert root.dim == 3
        assert abs(root.mean[2] - 0.8) < 4 * root.sd[2] < 1.0


def test_a_table_in_pieces_is_the_table() -> None:
    log = Log(9, 50, 3)
    post = condition(log.moments(metadata=True), Hierarchy(None, log.cov, 0.4, (), log.metadata()))
    whole = post.table()
    parts = [post.tasks(slice(k, k + 10)) for k in range(0, 50, 10)]
    np.testing.assert_allclose(np.concatenate([part[0] for part in parts]), whole.means, rtol=1e-13)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Metadata([1, 1], np.eye(2)), InputError, "Task 1 has more than one row"),
        (
            lambda: Metadata([1, 2], [[1.0, np.nan], [0.0, 1.0]]),
            LogError,
            "'metadata 1' is not finite for task 1",
        ),
        (lambda: Metadata([1, 2], [[1.0, 3.0], [0.0, 3.0]], ("a", "b")), InputError, "'b' has one value"),
        (lambda: Metadata([1, 2], [["x"], ["y"]]), InputError, "0/1 columns"),
        (lambda: Metadata([1, 2], np.ones(2)), InputError, "shape"),
        (lambda: Metadata([1, 2], np.eye(2), ("a",)), InputError, "1 names"),
    ],
)
def test_metadata_that_cannot_be_used_are_refused(make, error, says) -> None:
    with pytest.raises(error, match=says):
        make()


def test_a_task_without_metadata_or_place_is_named() -> None:
    log = Log(10, 12, 3)
    some = Metadata(range(11), log.values[:11])
    with pytest.raises(UnknownTaskError, match="Task 11 has rows and no metadata"):
        estimate_levels(log.moments(), metadata=some)
    with pytest.raises(InputError, match="11 has no parent at level 'store'"):
        estimate_levels(log.moments(), levels={"store": dict.fromkeys(range(11), 0)})
    with pytest.raises(InputError, match="of shape \\(2,\\)"):
        log.metadata().one(2, [1.0])
    with pytest.raises(LogError, match="not finite"):
        log.metadata().one(2, [1.0, np.inf])


def test_tasks_of_which_something_is_known_but_nothing_logged_get_an_answer() -> None:
    log = Log(11, 12, 3)
    few = Moments.from_arrays(log.task[:30], log.phi[:30], log.reward(metadata=True)[:30])
    post = condition(few, Hierarchy(None, log.cov, 0.4, (), log.metadata()))
    np.testing.assert_allclose(post.task(11).mean, post.new_task(metadata=log.values[11]).mean, rtol=1e-9)


@pytest.mark.parametrize("shape", ["auto", "full", "diag", "isotropic"])
def test_odd_trees_are_learned_or_refused(shape) -> None:
    log = Log(12, 12, 6)
    with pytest.warns(HieropoWarning, match="Level 'store' has one node"):
        one = estimate_levels(log.moments(), shape, levels={"store": dict.fromkeys(range(12), "all")})
    assert np.isfinite(one.hierarchy.levels[0].cov).all()  # told from nothing, but not an error
    with pytest.warns(HieropoWarning, match="Level 'store' has a node for each task"):
        alone = estimate_levels(log.moments(), shape, levels={"store": {s: s for s in range(12)}})
    assert np.isfinite(alone.hierarchy.task_cov).all()
    same = Moments.from_arrays(log.task, log.phi, log.phi.sum(axis=1) + log.noise)
    equal = estimate_levels(same, shape, levels={"store": log.parents()})
    assert np.trace(equal.hierarchy.levels[0].cov) < 0.2


@pytest.mark.parametrize("seed", range(4))
def test_a_level_with_a_node_for_each_task_adds_nothing_to_two_levels(seed) -> None:
    rng = np.random.default_rng(seed)
    moments = Moments.from_arrays(np.repeat(np.arange(6), 2), np.ones((12, 1)), rng.standard_normal(12))
    two = estimate(moments, "diag")
    with pytest.warns(HieropoWarning, match="Level 'g' has a node for each task"):
        three = estimate_levels(moments, "diag", levels={"g": {s: s for s in range(6)}})
    assert three.chosen.deviance == pytest.approx(two.chosen.deviance, abs=1e-7)
    together = three.hierarchy.task_cov + three.hierarchy.levels[0].cov
    np.testing.assert_allclose(together, two.hierarchy.task_cov, rtol=1e-3, atol=1e-4)
    assert three.hierarchy.noise_var == pytest.approx(two.hierarchy.noise_var, rel=1e-3)


def test_a_feature_that_is_zero_is_named() -> None:
    log = Log(13, 12, 6)
    phi = np.column_stack([log.phi, np.zeros(log.task.size)])
    moments = Moments.from_arrays(log.task, phi, log.reward(metadata=False))
    for shape in ("full", "diag"):
        with pytest.raises(NumericalError, match="not determined"):
            estimate_levels(moments, shape, levels={"store": log.parents()})


def test_units_of_features_and_rewards_do_not_matter() -> None:
    log = Log(14, 40, 6)
    by = np.array([1e-3, 1e4])
    plain = estimate_levels(log.moments(), "full", levels={"store": log.parents()}).hierarchy
    moments = Moments.from_arrays(log.task, log.phi * by, 1e5 * log.reward(metadata=False))
    scaled = estimate_levels(moments, "full", levels={"store": log.parents()}).hierarchy
    for one, other in (
        (plain.task_cov, scaled.task_cov),
        (plain.levels[0].cov, scaled.levels[0].cov),
    ):
        np.testing.assert_allclose(other * np.outer(by, by) / 1e10, one, rtol=1e-3, atol=1e-5)


def test_keys_of_metadata_keep_their_order() -> None:
    metadata = Metadata([30, 10, 20], [[3.0], [1.0], [2.0]])
    design = metadata.design(1, Keys(np.array([10, 20, 30])))
    np.testing.assert_allclose(design.values[:, 0], [-1.0, 0.0, 1.0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:No task has more rows")
@pytest.mark.parametrize("shape", ["full", "diag", "isotropic"])
def test_one_row_a_task_ends_in_numbers(shape) -> None:
    rng = np.random.default_rng(0)
    phi = np.eye(3)[rng.integers(3, size=60)]
    moments = Moments.from_arrays(np.arange(60), phi, rng.standard_normal(60))
    levels = {"group": {s: s % 4 for s in range(60)}}
    found = estimate_levels(moments, shape, levels=levels).hierarchy
    assert np.isfinite(found.task_cov).all()
    assert np.isfinite(found.levels[0].cov).all()
