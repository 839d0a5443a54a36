"""Features with a large common offset cost no digits: against the exact posterior of the raw columns."""

import json
from decimal import localcontext

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.dense import DIGITS, exact
from reference.raw import Raw, uncoordinated

from hieropo import (
    FlatOPO,
    Gaussian,
    Hierarchy,
    HierOPO,
    Level,
    LogMoments,
    Moments,
    OracleOPO,
    PooledOPO,
    condition,
    load_learner,
    load_policy,
)
from hieropo._utils.packed import unpack
from hieropo.cli import main
from hieropo.errors import HieropoWarning, MismatchError, NumericalError
from hieropo.features.maps import Columns, embedding, per_action
from hieropo.model.crossed.hierarchy import CrossedHierarchy, Kinds, Spreads
from hieropo.model.metadata import Metadata
from hieropo.model.moved_priors import moved_crossed, recentred_hierarchy
from hieropo.moments.recentring import at_final_origin, far_columns, near_first_rows, recentred
from hieropo.moments.units import UnitAccumulator
from hieropo.passes.identifiability import refuse_undetermined
from hieropo.passes.summing import sums
from hieropo.rows.batches import Roles

TOLERANCE = 1e-8
COLUMNS = ("stamp", "price", "level")
TABLE = [[1.0, 0.5], [1.0, -1.0], [1.0, 2.0]]
MAPS = {
    "per-action": per_action(["a", "b"], COLUMNS),
    "per-action, no intercept": per_action(["a", "b"], COLUMNS, intercept=False),
    "columns": Columns(COLUMNS),
    "table": embedding(["a", "b", "c"], TABLE, COLUMNS),
    "table, no intercept": embedding(["a", "b", "c"], TABLE, COLUMNS, intercept=False),
}
OFFSETS = (0.0, 30.0, 1e3, 1e6)
TYPES = ("float64", "float32", "int64")
SCALES = {"float64": (1.0, 0.02), "float32": (1.0, 64.0), "int64": (90.0, 7.0)}


def made(features, offset, kind, *, rows=60, tasks=3, seed=0):
    """A log with two columns that lie ``offset`` standard deviations from 0, and one near 0."""
    rng = np.random.default_rng(seed)
    own = rng.standard_normal((rows, 3))
    scales = np.array([*SCALES[kind], 1.0])
    x = (own + np.array([offset, -offset, 0.3])) * scales
    x[:, :2] = x[:, :2].astype(kind).astype(np.float64)
    count = 1 if features.actions is None else len(features.actions)
    codes, task = rng.integers(count, size=rows), np.arange(rows) % tasks
    slopes = rng.standard_normal((tasks, count, 3)) * 0.5 + 1.0
    reward = np.einsum("nj,nj->n", own, slopes[task, codes]) + task + codes + 0.3 * rng.standard_normal(rows)
    columns = {"task": task, "reward": reward, "level": x[:, 2]}
    columns |= {name: x[:, j].astype(kind) for j, name in enumerate(COLUMNS[:2])}
    if features.actions is not None:
        columns["action"] = np.array(features.actions)[codes]
    return pa.table(columns), (task.tolist(), x, codes, reward)


def roles(features):
    found = {"task": "task", "reward": "reward", "context": list(COLUMNS)}
    return found if features.actions is None else found | {"action": "action"}


def reasonable(features, rows):
    """A hierarchy of raw coefficients that expects effects of about 1 for each sd of a column, whatever its offset."""
    x = rows[1]
    center, scale = x.mean(axis=0), x.std(axis=0)
    first = int(getattr(features, "intercept", False))
    far = np.abs(center) > 10 * scale
    effects = [np.eye(3 + first)[0] / (1.0 if first else max(abs(center[0]), scale[0]))]
    for j in range(3):
        if first or not (j == 0 and far[0]):  # without an intercept the first column stands for it
            effect = np.zeros(3 + first)
            effect[first + j] = 1 / scale[j]
            if far[j]:  # it moves the reward around the mean of the column
                effect[0] -= center[j] / scale[j] / (1.0 if first else center[0])
            effects.append(effect)
    cov = np.kron(np.eye(features.dim // (3 + first)), np.transpose(effects) @ effects)
    return Hierarchy(Gaussian(np.zeros(features.dim), cov), 0.3 * cov, 0.1)


def check(learner, features, rows, truth, room=TOLERANCE):
    """Coefficients in the map's coordinates, in units of the features' sizes, and predictions at raw contexts."""
    task, x, codes, _ = rows
    seen = learner.features_
    size = np.sqrt((seen.phi(x, None if seen.actions is None else codes) ** 2).mean(axis=0))
    for each in [*range(max(task) + 1), None]:
        law = learner.posterior_.new_task() if each is None else learner.posterior_.task(each)
        mean, cov = truth.law(each, seen)
        scaled = np.outer(size, size)
        assert np.linalg.norm((law.mean - mean) * size) <= room * (
            np.linalg.norm(mean * size) + np.sqrt(np.linalg.norm(cov * scaled, 2))
        ), each
        assert np.linalg.norm((law.cov - cov) * scaled, 2) <= room * np.linalg.norm(cov * scaled, 2), each
    for t in range(0, len(task), 7):
        if seen.actions is None:
            law = learner.posterior_.task(task[t]).project(seen.phi(x[t : t + 1]))
            found = float(law[0][0]), float(np.sqrt(law[1][0]))
        else:
            action = seen.actions[codes[t]]
            choice = learner.policy_.choose(task[t], x[t], eligible=[action])
            found = choice.mean, choice.sd
        mean, sd = truth.reward(task[t], features, x[t], codes[t])
        assert abs(found[0] - mean) <= room * (abs(mean) + sd)
        assert abs(found[1] - sd) <= room * sd


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("features", MAPS.values(), ids=MAPS)
def test_a_known_hierarchy_gives_the_exact_posterior_at_any_offset(features, offset, kind):
    log, rows = made(features, offset, kind, rows=36)
    known = reasonable(features, rows)
    learner = HierOPO(features, known=known).fit(log, **roles(features))
    assert (learner.features_.origin is not None) == (offset > 100)
    hyper = known.hyper.mean, known.hyper.cov
    check(learner, features, rows, Raw(features, rows, known.task_cov, known.noise_var, hyper))


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("features", MAPS.values(), ids=MAPS)
def test_a_learned_hierarchy_gives_the_exact_posterior_at_any_offset(features, offset, kind):
    log, rows = made(features, offset, kind, tasks=4, rows=60)
    learner = HierOPO(features, uncertainty="plug-in", task_cov="diag").fit(log, **roles(features))
    learned = learner.hierarchy_
    with localcontext() as decimals:
        decimals.prec = DIGITS
        back = uncoordinated(learner.features_)
        raw_cov = back @ exact(learned.task_cov) @ back.T
    check(learner, features, rows, Raw(features, rows, raw_cov, learned.noise_var, None))


def test_sums_around_zero_lose_what_an_origin_keeps():
    features = MAPS["per-action"]
    _, rows = made(features, 1e6, "float64")
    task, x, codes, reward = rows
    known = reasonable(features, rows)
    truth = Raw(features, rows, known.task_cov, known.noise_var, (known.hyper.mean, known.hyper.cov))
    moments = Moments.from_arrays(task, features.phi(x, codes), reward)
    with pytest.raises(NumericalError, match="does not determine"):
        refuse_undetermined(moments, features)
    around_zero = condition(moments, known)
    mean, sd = truth.reward(0, features, x[0], codes[0])
    found = around_zero.task(0).project(features.phi(x[:1], codes[:1]))
    assert abs(found[0][0] - mean) > 1e-6 * (abs(mean) + sd) or abs(np.sqrt(found[1][0]) - sd) > 1e-6 * sd


def test_moments_moved_are_those_that_the_other_map_makes():
    rng = np.random.default_rng(4)
    for features in MAPS.values():
        _, (task, x, codes, reward) = made(features, 50.0, "float64", rows=40)
        own = None if features.actions is None else codes
        reference = None if getattr(features, "intercept", False) else "price"
        maps = [
            features,
            features.recentred((40.0, -2.0, 0.25), reference),
            features.recentred((50.0, -1.0, 0.0), reference and "stamp"),
        ]
        weight = rng.uniform(0.5, 2.0, 40)
        each = [
            Moments.from_arrays(task, one.phi(x, own), reward, weight, features=one.fingerprint)
            for one in maps
        ]
        for here, start in zip(maps, each, strict=True):
            for there, end in zip(maps, each, strict=True):
                assert recentred(start, here, there).allclose(end, 1e-11)
        assert recentred(each[1], maps[1], maps[1]) is each[1]


def test_moments_of_units_move_as_those_of_the_whole_map():
    features = MAPS["per-action"]
    _, (task, x, codes, reward) = made(features, 50.0, "float64")
    there = features.recentred((50.0, -1.0, 0.0))
    units = UnitAccumulator(features)
    units.add(task, codes, x, reward)
    direct = Moments.from_arrays(task, there.phi(x, codes), reward, features=there.fingerprint)
    assert recentred(units.moments(), features, there).dense().allclose(direct, 1e-11)
    both = at_final_origin(units.moments(), features.recentred((50.0, -1.0, 0.0)).recentred(None))
    assert both[1] == features  # nothing lies far


def test_moments_move_between_equivalent_maps_only():
    one, other = per_action(["a"], ["x"]), per_action(["a"], ["y"], intercept=False)
    made_by = Moments.from_arrays(["s"], one.phi([[1.0]], [0]), [1.0], features=one.fingerprint)
    with pytest.raises(MismatchError, match="differ by more than the origin"):
        recentred(made_by, one, other)
    with pytest.raises(MismatchError, match="were made by the feature map"):
        recentred(made_by, one.recentred((1.0,)), one)


@pytest.mark.parametrize("offset", [0.0, 1.0, 60.0])
@pytest.mark.parametrize("features", MAPS.values(), ids=MAPS)
def test_columns_that_do_not_lie_far_are_left_as_they_are(features, offset):
    log, _ = made(features, offset, "float64")
    learner = HierOPO(features, task_cov="isotropic", uncertainty="plug-in").fit(log, **roles(features))
    assert learner.features_ == features
    around_zero = sums(log, features, Roles(**{"action": None, **roles(features)})).moments
    np.testing.assert_array_equal(learner.moments_.sums, around_zero.sums)  # to the last bit


@pytest.mark.slow
def test_the_order_of_rows_files_and_batches_does_not_matter(tmp_path):
    """Sums are of numbers near 0, so that they differ by the rounding of sums alone: 1e-12 holds at any offset."""
    features = MAPS["per-action"]
    log, _ = made(features, 1e6, "float64", rows=5000, tasks=20)
    learners = []
    for seed, size in ((0, 5000), (1, 700), (2, 64)):
        order = np.random.default_rng(seed).permutation(5000)
        folder = tmp_path / str(seed)
        folder.mkdir()
        shuffled = log.take(pa.array(order))
        for start in range(0, 5000, size):
            pq.write_table(shuffled.slice(start, size), folder / f"{start:05}.parquet", row_group_size=100)
        learners.append(HierOPO(task_cov="diag", uncertainty="plug-in").fit(folder, **roles(features)))
    sorted_log = log.sort_by("stamp")  # the first rows lie elsewhere than the rest
    learners.append(HierOPO(task_cov="diag", uncertainty="plug-in").fit(sorted_log, **roles(features)))
    first, *others = learners
    for other in others:
        assert other.features_ == first.features_
        assert other.moments_.allclose(first.moments_, 1e-12)
        again = condition(other.moments_, first.hierarchy_).table()
        mine = first.posterior_.table()
        place = again.keys.locate(mine.keys.values)
        np.testing.assert_allclose(
            again.means[place], mine.means, rtol=0, atol=1e-12 * np.abs(mine.means).max()
        )
        np.testing.assert_allclose(again.covs[place], mine.covs, rtol=0, atol=1e-12 * np.abs(mine.covs).max())
        assert abs(other.hierarchy_.noise_var / first.hierarchy_.noise_var - 1) < 1e-8


def test_first_rows_far_from_all_others_cost_no_more_than_their_share():
    features = MAPS["per-action"]
    log, (_, x, codes, reward) = made(features, 1e6, "float64", rows=20_000, tasks=20)
    x[:20, :2] *= 1.1  # 20 rows lie 1e5 sds, within tasks, from the 19,980 others
    for k, column in enumerate(("stamp", "price")):
        log = log.set_column(log.schema.get_field_index(column), column, pa.array(x[:, k]))
    with pytest.warns(HieropoWarning, match="'stamp', 'price' are nearly collinear"):  # in those 20 rows
        learner = HierOPO(features, task_cov="isotropic", uncertainty="plug-in").fit(log, **roles(features))
    here = learner.features_
    assert np.abs(np.array(here.origin[:2]) - x[:, :2].mean(axis=0)).max() < 0.5 * x[:, 0].std()
    direct = Moments.from_arrays(np.zeros(20_000, dtype=int), here.phi(x, codes), reward)
    found = unpack(learner.moments_.around(None).sums.sum(axis=0), here.dim + 2)
    expected = unpack(direct.sums[0], here.dim + 2)
    size = np.sqrt(np.diagonal(expected))
    np.testing.assert_allclose(
        found / np.outer(size, size), expected / np.outer(size, size), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("constant", [0.1, 1.7e9, -3.0])
def test_a_constant_column_is_refused_as_before(constant):
    features = MAPS["per-action"]
    log, _ = made(features, 10.0, "float64")
    noise = np.where(np.arange(60) % 2, constant, np.nextafter(constant, 0))  # as rounding leaves it
    for values in (np.full(60, constant), noise):
        same = log.set_column(log.schema.get_field_index("stamp"), "stamp", pa.array(values))
        with pytest.raises(NumericalError, match="Column 'stamp' is constant"):
            HierOPO(features).fit(same, **roles(features))


def test_a_column_of_ones_is_the_reference_column_of_a_map_without_an_intercept():
    rng = np.random.default_rng(3)
    log, rows = made(MAPS["columns"], 1e6, "float64")
    log = log.set_column(log.schema.get_field_index("level"), "level", pa.array(np.ones(60)))
    rows[1][:, 2] = 1.0
    features = Columns(COLUMNS)
    learner = HierOPO(features, task_cov="diag", uncertainty="plug-in").fit(log, **roles(features))
    assert learner.features_.reference_column == "level"
    assert learner.features_.origin[2] == 1.0
    other = per_action(["all"], COLUMNS[:2])
    twin = HierOPO(other, task_cov="diag", uncertainty="plug-in").fit(
        log.append_column("action", pa.array(["all"] * 60)),
        task="task",
        reward="reward",
        action="action",
        context=list(COLUMNS[:2]),
    )
    assert twin.features_.origin == learner.features_.origin[:2]
    x = rows[1][rng.integers(60)]
    mine = learner.posterior_.task(1).project(learner.features_.phi(x[None]))
    theirs = twin.posterior_.task(1).project(twin.features_.phi(x[None, :2], [0]))
    np.testing.assert_allclose(mine[0], theirs[0], rtol=1e-6)  # as far as the two maximisations go


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_what_is_chosen_depends_on_the_rows_alone_and_leaves_nothing_far(data):
    """Whatever the offsets, spreads and constants, and wherever the first rows lie."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    columns = tuple("abcd"[: data.draw(st.integers(1, 4))])
    offsets = data.draw(st.lists(st.sampled_from([0.0, 3.0, -150.0, 1e4, -1e6]), min_size=4, max_size=4))
    spreads = data.draw(st.lists(st.sampled_from([0.0, 1e-3, 1.0, 1e5]), min_size=4, max_size=4))
    x = rng.standard_normal((200, 4)) + np.array(offsets)
    x = np.where(np.array(spreads) > 0, x * spreads, offsets)[:, : len(columns)]
    features = data.draw(
        st.sampled_from(
            [Columns(columns), per_action(["s"], columns), per_action(["s"], columns, intercept=False)]
        )
    )
    codes = None if features.actions is None else np.zeros(200, dtype=np.int64)
    found = []
    for order in (np.arange(200), rng.permutation(200), np.argsort(x[:, 0])):
        here = near_first_rows(features, x[order[:50]])
        taken = Moments.from_arrays(
            order % 3, here.phi(x[order], codes), rng.standard_normal(200), features=here.fingerprint
        )
        found.append(at_final_origin(taken, here))
    moments, there = found[0]
    for _, other in found[1:]:
        assert (other.origin is None) == (there.origin is None)
        if there.origin is not None:
            assert other.reference_column == there.reference_column
            np.testing.assert_allclose(other.origin, there.origin, rtol=1e-6)
    assert at_final_origin(moments, there)[1] == there
    assert not far_columns(moments, there)
    phi = there.phi(x, codes)
    vary = np.linalg.norm(phi - phi.mean(axis=0), axis=0) > 1e-9 * np.linalg.norm(phi, axis=0)
    assert not vary.any() or np.linalg.cond(phi[:, vary] / np.linalg.norm(phi[:, vary], axis=0)) < 300


class TestGivenPriors:
    """A hierarchy of raw coefficients expects the same rewards after it was moved."""

    @pytest.mark.parametrize("features", MAPS.values(), ids=MAPS)
    def test_expect_the_same_rewards(self, features):
        rng = np.random.default_rng(0)
        d, c = features.dim, 2
        reference = None if getattr(features, "intercept", False) else "stamp"
        there = features.recentred((16.0, -3.0, 0.0), reference)
        root = rng.standard_normal((d * (1 + c), d * (1 + c)))
        hyper = Gaussian(rng.standard_normal(d * (1 + c)), root @ root.T)
        level = Level(np.diag(rng.uniform(1, 2, d)), {1: "x", 2: "y"}, "group")
        known = Metadata([1, 2], rng.standard_normal((2, c)))
        given = Hierarchy(hyper, root[:d, :d] @ root[:d, :d].T, 0.5, (level,), known)
        found = recentred_hierarchy(given, features, there)
        x = rng.standard_normal((4, 3)) + np.array([16.0, -3.0, 0.0])
        codes = None if features.actions is None else rng.integers(len(features.actions), size=4)
        before, after = features.phi(x, codes), there.phi(x, codes)
        for one, other in ((given.task_cov, found.task_cov), (level.cov, found.levels[0].cov)):
            np.testing.assert_allclose(after @ other @ after.T, before @ one @ before.T, rtol=1e-9)
        for values in ([0.3, -1.0], [2.0, 0.5]):
            one, other = (before @ given.metadata.one(d, values), after @ found.metadata.one(d, values))
            np.testing.assert_allclose(other @ found.hyper.mean, one @ hyper.mean, rtol=1e-9)
            np.testing.assert_allclose(other @ found.hyper.cov @ other.T, one @ hyper.cov @ one.T, rtol=1e-9)

    @pytest.mark.parametrize("mixture", ["kinds", "spreads"])
    def test_mixtures_over_tasks_expect_the_same_rewards(self, mixture):
        features = MAPS["per-action"]
        rng, there = np.random.default_rng(1), features.recentred((16.0, -3.0, 0.0))
        K, d = len(features.actions), features.dim
        p = d // K
        root = rng.standard_normal((p, p))
        kinds = Kinds(np.array([0.4, 0.6]), root @ root.T, rng.standard_normal((2, K, p)))
        spreads = Spreads(np.array([0.0, 2.0]), np.array([0.4, 0.6]))
        more = {"kinds": kinds} if mixture == "kinds" else {"spreads": spreads}
        given = CrossedHierarchy(np.eye(p), np.eye(p), 0.5 * np.eye(p), np.ones(K), **more)
        found = moved_crossed(given, features, there)
        if mixture == "spreads":
            assert found.spreads is spreads
            return
        x, codes = rng.standard_normal((4, 3)) + np.array([16.0, -3.0, 0.0]), rng.integers(K, size=4)
        before, after = features.phi(x, codes), there.phi(x, codes)
        for one, other in zip(kinds.centres, found.kinds.centres, strict=True):
            np.testing.assert_allclose(after @ other.reshape(-1), before @ one.reshape(-1), rtol=1e-9)
        one, other = (np.kron(np.eye(K), each.kinds.effect_cov) for each in (given, found))
        np.testing.assert_allclose(after @ other @ after.T, before @ one @ before.T, rtol=1e-9)

    def test_with_metadata_of_their_own_shape(self):
        features = MAPS["per-action"]
        rng, there, d = np.random.default_rng(1), features.recentred((16.0, -3.0, 0.0)), features.dim
        known = Metadata([1, 2], rng.standard_normal((2, d, 1)))
        root = rng.standard_normal((d + 1, d + 1))
        given = Hierarchy(Gaussian(rng.standard_normal(d + 1), root @ root.T), np.eye(d), 0.5, (), known)
        found = recentred_hierarchy(given, features, there)
        x, codes = rng.standard_normal((4, 3)) + np.array([16.0, -3.0, 0.0]), rng.integers(2, size=4)
        moments = Moments.from_arrays([1, 2, 1, 2], features.phi(x, codes), rng.standard_normal(4))
        one = condition(moments, given)
        other = condition(recentred(moments, features, there), found)
        np.testing.assert_allclose(other.log_evidence, one.log_evidence, rtol=1e-9)
        for task in (1, 2):
            mine, theirs = (
                one.task(task).project(features.phi(x, codes)),
                other.task(task).project(there.phi(x, codes)),
            )
            np.testing.assert_allclose(theirs, mine, rtol=1e-8)

    @pytest.mark.parametrize("make", [FlatOPO, PooledOPO, OracleOPO], ids=["flat", "pooled", "oracle"])
    def test_of_baselines_are_of_raw_coefficients(self, make):
        features = MAPS["per-action"]
        log, rows = made(features, 1e4, "float64")
        known = reasonable(features, rows)
        mu = np.linspace(-1, 1, features.dim) * 1e-3
        more = (mu,) if make is OracleOPO else ()
        learner = make(*more, features, known=known).fit(log, **roles(features))
        raws = {FlatOPO: known.flat(), PooledOPO: known.pooled(), OracleOPO: known.oracle(mu)}
        raw = raws[make]
        truth = Raw(features, rows, raw.task_cov, raw.noise_var, (raw.hyper.mean, raw.hyper.cov))
        check(learner, features, rows, truth)

    def test_a_gaussian_and_a_shape_are_of_raw_coefficients(self):
        features = MAPS["per-action"]
        log, rows = made(features, 1e6, "float64")
        known = reasonable(features, rows)
        learner = HierOPO(features, hyper=known.hyper, task_cov=known.task_cov).fit(log, **roles(features))
        with localcontext() as decimals:
            decimals.prec = DIGITS
            share = exact(learner.hierarchy_.task_cov[1:2, 1:2] / known.task_cov[1, 1])[0, 0]
            truth = Raw(
                features, rows, share * exact(known.task_cov), learner.hierarchy_.noise_var,
                (known.hyper.mean, known.hyper.cov),
            )  # fmt: skip
        check(learner, features, rows, truth)


def whole_of(learner):
    moments = learner.moments_
    return moments.dense()


class TestInUse:
    """Everything that a fitted learner does is done in the map's coordinates, and reads raw columns."""

    @pytest.mark.slow
    @pytest.mark.parametrize("prior", ["flat", "crossed", "gaussian"])
    def test_comes_back_from_disk_and_learns_on(self, tmp_path, prior):
        features = MAPS["per-action"]
        log, rows = made(features, 1e5, "float64", rows=240, tasks=8)
        more, _ = made(features, 1e5, "float64", rows=160, tasks=8, seed=5)
        given = reasonable(features, rows).hyper if prior == "gaussian" else "flat"
        cov = "crossed" if prior == "crossed" else "diag"
        learner = HierOPO(hyper=given, task_cov=cov).fit(log, **roles(features))
        assert learner.features_.origin[:2] == (1e5, -2e3)
        learner.save(tmp_path / "policy")
        again = load_learner(tmp_path / "policy")
        assert again.features_ == learner.features_
        contexts = log.select(["task", *COLUMNS])
        assert again.predict(contexts).tolist() == learner.predict(contexts).tolist()
        for each in (learner, again):
            each.partial_fit(more)
        whole = HierOPO(learner.features_, hyper=again.hyper, task_cov=cov).fit(
            pa.concat_tables([log, more]), **roles(features)
        )
        for other in (again, whole):
            assert whole_of(other).allclose(whole_of(learner), 1e-12)
            for task in range(8):
                x = rows[1][task]
                mine, theirs = learner.policy_.choose(task, x), other.policy_.choose(task, x)
                assert mine.action == theirs.action
                assert abs(mine.mean - theirs.mean) <= 1e-6 * mine.sd

    def test_is_judged_as_if_its_columns_lay_near_zero(self):
        features = MAPS["per-action"]
        log, (_, x, _, _) = made(features, 1e6, "float64", rows=600, tasks=10)
        near = log
        settings = {"task_cov": "diag", "uncertainty": "plug-in"}
        learner = HierOPO(**settings).fit(log, **roles(features))
        for k, column in enumerate(("stamp", "price")):
            values = pa.array(x[:, k] - learner.features_.origin[k])
            near = near.set_column(near.schema.get_field_index(column), column, values)
        twin = HierOPO(**settings).fit(near, **roles(features))
        assert twin.features_.origin is None
        np.testing.assert_array_equal(twin.moments_.sums, learner.moments_.sums)
        far, plain = learner.evaluate(log, seed=1), twin.evaluate(near, seed=1)
        assert far.learned_from == plain.learned_from == "yes"
        assert far.model.difference.mean == pytest.approx(plain.model.difference.mean, rel=1e-9)
        assert far.estimate("DR").gain == pytest.approx(plain.estimate("DR").gain, rel=1e-6)

    def test_moments_of_days_far_apart_add_and_are_learned_from(self, tmp_path):
        features = MAPS["per-action"]
        log, _ = made(features, 1e5, "float64", rows=400, tasks=6)
        days = [log.sort_by("stamp").slice(0, 150), log.sort_by("stamp").slice(150)]
        parts = [LogMoments.of(day, **roles(features)) for day in days]
        assert parts[0].features != parts[1].features
        both = parts[0] + parts[1]
        assert both.features == (parts[1] + parts[0]).features == parts[1].features
        both.save(tmp_path / "moments")
        settings = {"task_cov": "diag", "uncertainty": "plug-in"}
        whole = HierOPO(**settings).fit(log, **roles(features))
        with pytest.warns(HieropoWarning, match="count twice"):
            twice = both + parts[0]
        for source in (both, tmp_path / "moments", twice - parts[0]):
            learner = HierOPO(**settings).fit(source)
            assert learner.features_ == whole.features_
            assert learner.moments_.allclose(whole.moments_, 1e-12)
        fixed = HierOPO(features.recentred((1e5, -2e3, 0.0)), **settings).fit(both)
        assert fixed.features_.origin == (1e5, -2e3, 0.0)
        assert HierOPO(features, **settings).fit(both).features_ == whole.features_

    def test_the_command_line_says_from_where(self, tmp_path):
        features = MAPS["per-action"]
        log, rows = made(features, 1e6, "float64", rows=240, tasks=8)
        pq.write_table(log, tmp_path / "log.parquet")
        path = str(tmp_path / "policy")
        names = ["--task", "task", "--action", "action", "--reward", "reward", "--context", ",".join(COLUMNS)]
        told = run(["fit", str(tmp_path / "log.parquet"), "-o", path, *names])
        assert " ".join(told.split()).count("the features are stamp - 1000000, price + 20000") == 1
        flat = run(
            ["fit", str(tmp_path / "log.parquet"), "-o", path + "-flat", *names, "--algorithm", "flat"]
        )
        assert " ".join(flat.split()).count("the features are stamp - 1000000, price + 20000") == 1
        assert "stamp - 1000000, price + 20000" in run(["inspect", path])
        found = json.loads(run(["inspect", path, "--task", "3", "--json"]))
        own = rows[1][np.asarray(rows[0]) == 3].mean(axis=0)
        assert [found["at"][name] for name in COLUMNS] == pytest.approx(own.tolist(), rel=1e-12)
        pq.write_table(log.select(["task", *COLUMNS]), tmp_path / "requests.parquet")
        run(["decide", path, str(tmp_path / "requests.parquet"), "-o", str(tmp_path / "decisions.parquet")])
        decided = pq.read_table(tmp_path / "decisions.parquet")
        stored = load_policy(path).policy
        assert decided["action"][0].as_py() == stored.choose(rows[0][0], rows[1][0]).action


def run(arguments):
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout
