"""What a user says about the hierarchy, through the learner and the command line: what it changes, what it refuses."""

import json
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from placed_log import ROLES, table
from sklearn.base import clone

from hieropo import (
    ArtifactError,
    FlatOPO,
    Gaussian,
    Hierarchy,
    HierOPO,
    HieropoWarning,
    InputError,
    LogMoments,
    MismatchError,
    NumericalError,
    OracleOPO,
    PooledOPO,
    UnknownActionError,
    load_learner,
    load_policy,
)
from hieropo._utils.packed import packed_size
from hieropo.cli import main
from hieropo.estimation.crossed.mixture import CrossedHierarchies, CrossedMixture
from hieropo.estimation.hyper.corrected import HyperError
from hieropo.estimation.hyper.mixed import HyperDraws
from hieropo.estimation.learning import Settings
from hieropo.features.maps import indicator, per_action
from hieropo.model.crossed.described import condition_units
from hieropo.model.crossed.hierarchy import CrossedHierarchy, CrossedLevel
from hieropo.rows.batches import Roles
from hieropo.storage import layout
from hieropo.storage.load import verify_policy

COLUMNS = {**ROLES, "context": ["visits"]}
LOG = table()
PRIOR = Gaussian(np.array([5.0, 0.0, 5.0, 0.0]), 1e-4 * np.eye(4))
SHAPE = np.diag([1.0, 0.5, 2.0, 0.5]) + 0.1


def sds(learner: HierOPO) -> np.ndarray:
    """Of every coefficient of every task."""
    found = learner.posterior_.table()
    return np.sqrt(found.covs[:, [packed_size(j + 1) - 1 for j in range(found.dim)]])


def with_rare(log: pa.Table = LOG, row: int = 5) -> pa.Table:
    """A log in which one action comes once."""
    offers = log["offer"].to_pylist()
    offers[row] = "rare"
    return log.set_column(log.schema.get_field_index("offer"), "offer", pa.array(offers))


@pytest.mark.slow
def test_integrated_and_first_order_are_less_sure_of_tasks_than_the_plug_in() -> None:
    found = {
        way: HierOPO(task_cov="block", uncertainty=way).fit(LOG, **COLUMNS)
        for way in ("integrated", "first-order", "plug-in")
    }
    mean = {way: sds(learner).mean() for way, learner in found.items()}
    assert mean["integrated"] > mean["first-order"] > mean["plug-in"]
    assert {way: learner.learned_.method for way, learner in found.items()} == {way: way for way in found}
    np.testing.assert_array_equal(
        found["first-order"].hierarchy_.task_cov, found["plug-in"].hierarchy_.task_cov
    )
    auto = HierOPO(task_cov="block").fit(LOG, **COLUMNS)
    assert auto.learned_.method == "integrated"  # sixty tasks are few
    np.testing.assert_array_equal(sds(auto), sds(found["integrated"]))


@pytest.mark.slow
def test_the_crossed_prior_is_taken_where_each_action_has_coefficients_of_its_own() -> None:
    learner = HierOPO().fit(LOG, **COLUMNS)
    named = HierOPO(task_cov="crossed").fit(LOG, **COLUMNS)
    integrated = HierOPO(uncertainty="integrated").fit(LOG, **COLUMNS)
    assert isinstance(learner.hierarchy_, CrossedHierarchies)
    assert isinstance(learner.posterior_, CrossedMixture)
    assert learner.moments_.per_action
    assert not hasattr(learner, "learned_")
    assert not hasattr(learner, "estimate_")
    for other in (named, integrated):
        np.testing.assert_array_equal(other.posterior_.table().means, learner.posterior_.table().means)
        np.testing.assert_array_equal(other.posterior_.table().covs, learner.posterior_.table().covs)
    for features, columns in (("indicator", ROLES), ("per-action", COLUMNS)):
        assert isinstance(HierOPO(features).fit(LOG, **columns).hierarchy_, CrossedHierarchies)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "columns"),
    [
        ({"task_cov": "block"}, {}),
        ({"task_cov": SHAPE}, {}),
        ({"uncertainty": "plug-in"}, {}),
        ({"uncertainty": "first-order"}, {}),
        ({"hyper": PRIOR}, {}),
        ({"known": Hierarchy(PRIOR, SHAPE, 1.0)}, {}),
        ({"features": "columns"}, {"action": None}),
        ({"task_cov": "isotropic"}, {"levels": ["store"]}),
    ],
    ids=" ".join,
)
def test_elsewhere_the_older_hierarchy_is_learned(settings, columns) -> None:
    learner = HierOPO(**settings).fit(LOG, **{**COLUMNS, **columns})
    assert isinstance(learner.hierarchy_, Hierarchy)
    assert not learner.moments_.per_action


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "columns"),
    [
        ({}, {"levels": ["region", "store"]}),
        ({"task_cov": "crossed"}, {"metadata": ["size"]}),
        ({"logging": "frozen"}, {}),
        ({"uncertainty": "integrated"}, {"levels": ["store"], "metadata": ["size"]}),
    ],
    ids=" ".join,
)
def test_groups_metadata_and_choices_go_into_the_crossed_prior(settings, columns) -> None:
    learner = HierOPO(**settings).fit(LOG, **{**COLUMNS, **columns})
    assert isinstance(learner.hierarchy_, CrossedHierarchies)
    assert [level.name for level in learner.hierarchy_.levels] == columns.get("levels", [])[::-1]
    assert (learner.hierarchy_.metadata is None) == (
        not columns.get("metadata") and not settings.get("logging")
    )
    text = " ".join(str(learner.summary()).split())
    assert ("effect of an action in one store" in text) == ("levels" in columns)
    assert ("effect of an action that depends on metadata" in text) == ("metadata" in columns)


def crossed_prior(**change) -> CrossedHierarchy:
    """Two actions with an intercept and the column of visits."""
    parts = {
        "action_cov": np.diag([0.3, 0.1]),
        "level_cov": np.diag([1.0, 0.2]),
        "interaction_cov": 0.1 * np.eye(2),
    }
    return CrossedHierarchy(**{**parts, "noise_var": np.array([0.3, 0.5]), **change})


@pytest.mark.slow
def test_a_crossed_prior_that_is_given_is_conditioned_and_saved(tmp_path: Path) -> None:
    stores = dict(zip(LOG["user"].to_pylist(), LOG["store"].to_pylist(), strict=True))
    groups = CrossedLevel(np.diag([0.5, 0.0]), np.diag([0.2, 0.0]), stores, "store")
    for known in (crossed_prior(), crossed_prior(levels=(groups,))):
        learner = HierOPO(known=known).fit(LOG, **COLUMNS)
        assert learner.hierarchy_ is known
        truth = condition_units(learner.moments_, known)
        np.testing.assert_array_equal(learner.posterior_.table().means, truth.table().means)
        assert learner.posterior_.log_evidence == truth.log_evidence
        with pytest.raises(InputError, match="no estimated hierarchy to summarise"):
            learner.summary()
        path = learner.save(tmp_path / f"{len(known.levels)}")
        verify_policy(path)
        again = load_learner(path)
        assert isinstance(again.hierarchy_, CrossedHierarchy)
        np.testing.assert_array_equal(again.posterior_.table().means, learner.posterior_.table().means)
        assert again.known.to_dict() == known.to_dict()
        assert learner.evaluate(LOG).model.new.mean == again.evaluate(LOG).model.new.mean
        assert CliRunner().invoke(main, ["inspect", str(path)]).exit_code == 0


def test_a_crossed_prior_moves_with_the_origin_of_a_map() -> None:
    near = LOG
    visits = pa.array(np.asarray(near["visits"], dtype=float) + 1e6)
    far = near.set_column(near.column_names.index("visits"), "visits", visits)
    here = crossed_prior()
    back = np.array([[1.0, -1e6], [0.0, 1.0]])  # to coefficients of visits + 1e6
    recentred = {
        name: back @ getattr(here, name) @ back.T for name in ("action_cov", "level_cov", "interaction_cov")
    }
    one = HierOPO(known=here).fit(near, **COLUMNS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HieropoWarning)
        other = HierOPO(known=crossed_prior(**recentred)).fit(far, **COLUMNS)
    means = one.policy_.choose_many([0, 7, 59], [[0.0], [1.0], [-2.0]])
    there = other.policy_.choose_many([0, 7, 59], [[1e6], [1e6 + 1], [1e6 - 2]])
    np.testing.assert_allclose(there.mean, means.mean, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_new_actions_join_and_borrow(tmp_path: Path) -> None:
    log = with_rare()
    known = log.filter(pa.compute.not_equal(log["offer"], "rare"))
    rest = log.filter(pa.compute.equal(log["offer"], "rare"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HieropoWarning)
        whole = HierOPO().fit(log, **COLUMNS)
        first = HierOPO().fit(known, **COLUMNS)
        stored = load_learner(first.save(tmp_path / "policy"))
        sums = HierOPO().fit(known, **COLUMNS).partial_fit(LogMoments.of(rest, **COLUMNS))
        for grown in (first.partial_fit(rest), stored.partial_fit(rest), sums):
            assert grown.features_.actions == whole.features_.actions
            table, truth = (each.posterior_.table() for each in (grown, whole))
            np.testing.assert_allclose(table.means, truth.means, rtol=1e-7, atol=1e-9)
        given = HierOPO(per_action(list(known["offer"].unique().to_pylist()), ["visits"])).fit(
            known, **COLUMNS
        )
        with pytest.raises(UnknownActionError, match="keeps the actions of the first log"):
            given.partial_fit(rest)


def test_groups_of_many_coefficients_are_left_to_the_older_hierarchy() -> None:
    rng = np.random.default_rng(0)
    user = rng.integers(0, 20, 600)
    log = pa.table({
        ROLES["task"]: user, ROLES["action"]: rng.integers(0, 70, 600), ROLES["reward"]: rng.normal(size=600),
        "store": [f"s{k % 4}" for k in user],
    })  # fmt: skip
    choices = Settings("auto", "flat", "auto", None)
    features, roles = indicator(range(70)), Roles("user", "action", "reward", levels=("store",))
    assert not choices.crossed(features, roles)
    assert choices.crossed(features, Roles("user", "action", "reward"))
    with pytest.raises(InputError, match=r"71 coefficients under the crossed prior.* at most 64"):
        HierOPO(task_cov="crossed").fit(log, **ROLES, levels=["store"])


def test_blocks_leave_actions_uncorrelated_and_features_of_one_free() -> None:
    learner = HierOPO(task_cov="block", uncertainty="plug-in").fit(LOG, **COLUMNS)
    cov = learner.hierarchy_.task_cov
    assert not cov[:2, 2:].any()
    assert cov[2, 3] != 0
    assert learner.estimate_.chosen.shape == "block"
    full = HierOPO(task_cov="full", uncertainty="plug-in").fit(LOG, **COLUMNS)
    assert full.hierarchy_.task_cov[:2, 2:].any()


def test_an_array_is_known_up_to_its_scale() -> None:
    learner = HierOPO(task_cov=SHAPE, uncertainty="plug-in").fit(LOG, **COLUMNS)
    ratio = learner.hierarchy_.task_cov / SHAPE
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-12)
    assert ratio[0, 0] > 0
    twice = HierOPO(task_cov=(2 * SHAPE).tolist(), uncertainty="plug-in").fit(LOG, **COLUMNS)
    np.testing.assert_allclose(twice.hierarchy_.task_cov, learner.hierarchy_.task_cov, rtol=1e-5)


def test_a_gaussian_is_the_hyper_prior() -> None:
    flat, given = HierOPO(uncertainty="plug-in").fit(LOG, **COLUMNS), HierOPO(hyper=PRIOR).fit(LOG, **COLUMNS)
    assert given.hierarchy_.hyper is PRIOR
    np.testing.assert_array_equal(given.hierarchy_.task_cov, flat.hierarchy_.task_cov)
    np.testing.assert_allclose(given.posterior_.hyper.mean[[0, 2]], 5.0, atol=0.6)  # it is all but certain
    assert abs(flat.posterior_.hyper.mean[[0, 2]]).max() < 1.0
    assert not hasattr(given, "learned_")


def test_the_crossed_prior_lets_a_rare_action_borrow() -> None:
    log = with_rare()
    with pytest.raises(
        NumericalError, match="Too few rows, or too few different contexts, come with the action 'rare'"
    ):
        HierOPO(task_cov="block").fit(log, **COLUMNS)
    with pytest.warns(HieropoWarning, match="'rare' .1 row. of 720 rows is so rare"):
        learner = HierOPO().fit(log, **COLUMNS)
    assert isinstance(learner.hierarchy_, CrossedHierarchies)
    rare = learner.features_.actions.index("rare")
    for part in learner.posterior_.parts():
        borrowed, strange = part.action(rare), part.new_action()
        assert (borrowed.sd <= strange.sd * (1 + 1e-9)).all()
    often = learner.posterior_.action(learner.features_.actions.index("a"))
    assert (learner.posterior_.action(rare).sd > often.sd).all()
    assert set(learner.predict(log)) <= {"a", "b", "rare"}
    assert not hasattr(learner, "learned_")


def test_the_crossed_prior_still_asks_that_all_rows_together_tell_each_feature() -> None:
    flat = table(visits=pa.array(np.zeros(720)))
    with pytest.raises(NumericalError, match=r"'any action:visits'.*0 in every row"):
        HierOPO().fit(flat, **COLUMNS)
    with pytest.raises(NumericalError, match="Column 'visits' is constant"):
        HierOPO().fit(table(visits=pa.array(np.ones(720))), **COLUMNS)


@pytest.mark.filterwarnings("ignore:The action 'rare':hieropo.HieropoWarning")
def test_an_action_that_hardly_says_how_metadata_matter_is_told_in_words() -> None:
    with pytest.raises(NumericalError) as caught:
        HierOPO(task_cov="diag").fit(with_rare(), **ROLES, metadata=["size"])
    assert "move with the metadata ['size']" in caught.value.__notes__[0]


@pytest.mark.slow
def test_more_rows_equal_one_fit_under_the_crossed_prior() -> None:
    log = with_rare()
    with pytest.warns(HieropoWarning, match="is so rare"):
        whole = HierOPO().fit(log, **COLUMNS)
    with pytest.warns(HieropoWarning):
        grown = HierOPO().partial_fit(log.slice(0, 300), **COLUMNS).partial_fit(log.slice(300))
    assert grown.moments_.n_rows == whole.moments_.n_rows == 720
    for name in ("means", "covs", "prior_means"):
        ours, theirs = (getattr(each.posterior_.table(), name) for each in (grown, whole))
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_the_sums_of_one_form_do_not_go_on_in_the_other() -> None:
    for first, then in (("auto", "block"), ("block", "crossed"), ("diag", "auto")):
        learner = HierOPO(task_cov=first).fit(LOG, **COLUMNS).set_params(task_cov=then)
        with pytest.raises(InputError, match="Call fit with all rows again"):
            learner.partial_fit(LOG)
    learner.set_params(task_cov="round")
    with pytest.raises(InputError, match="task_cov='round'"):
        learner.partial_fit(LOG)


@pytest.mark.slow
def test_settings_that_change_leave_nothing_of_the_fit_before() -> None:
    learner = HierOPO(task_cov="block").fit(LOG, **COLUMNS)
    assert learner.learned_.estimate is learner.estimate_
    known = Hierarchy(PRIOR, SHAPE, 0.3)
    learner.set_params(known=known).fit(LOG, **COLUMNS)
    assert not hasattr(learner, "learned_")
    assert not hasattr(learner, "estimate_")
    learner.set_params(known=None).fit(LOG, **COLUMNS)
    assert learner.learned_.estimate is learner.estimate_
    learner.set_params(task_cov="auto").fit(LOG, **COLUMNS)
    assert not hasattr(learner, "learned_")
    assert not hasattr(learner, "estimate_")


WAYS = {
    "integrated": ({"task_cov": "full", "uncertainty": "integrated"}, {}, HyperDraws),
    "first-order": ({"uncertainty": "first-order"}, {}, HyperError),
    "plug-in": ({"uncertainty": "plug-in"}, {}, type(None)),
    "block": ({"task_cov": "block"}, {}, HyperDraws),
    "array": ({"task_cov": SHAPE}, {}, HyperDraws),
    "gaussian": ({"hyper": PRIOR}, {}, type(None)),
    "crossed": ({}, {}, type(None)),
    "crossed indicator": ({"task_cov": "crossed", "features": "indicator"}, {"context": []}, type(None)),
    "tree": ({"task_cov": "isotropic"}, {"levels": ["region", "store"], "metadata": ["size"]}, HyperDraws),
    "crossed tree": ({}, {"levels": ["region", "store"], "metadata": ["size"]}, type(None)),
    "crossed frozen": ({"logging": "frozen"}, {}, type(None)),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_every_policy_comes_back_from_disk_and_is_made_again(way: str, tmp_path: Path) -> None:
    settings, columns, kind = WAYS[way]
    learner = HierOPO(**settings).fit(LOG, **{**COLUMNS, **columns})
    path = learner.save(tmp_path / "policy")
    stored = load_policy(path)
    assert isinstance(stored.hyper_uncertainty, kind)
    verify_policy(path)
    tasks, contexts = [0, 7, 59, 99], np.array([[0.0], [1.0], [-2.0], [0.5]])
    contexts = contexts[:, : len(learner.features_.columns)]
    ours, theirs = (each.choose_many(tasks, contexts) for each in (learner.policy_, stored.policy))
    for name in ("index", "lower_bound", "mean", "sd"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def tampered(path: Path, change) -> None:
    """Change the document and close it by its own checksum, as somebody would who knows the format."""
    document = json.loads((path / layout.POLICY.document).read_bytes())
    document.pop("checksum", None)
    change(document)
    (path / layout.POLICY.document).write_bytes(layout.encode(document))


def less_spread(document: dict) -> None:
    hyper_uncertainty = document["doubt"]
    hyper_uncertainty["task_covs"] = (0.5 * np.asarray(hyper_uncertainty["task_covs"])).tolist()


def less_error(document: dict) -> None:
    document["doubt"]["cov"] = (0.25 * np.asarray(document["doubt"]["cov"])).tolist()


def no_doubt(document: dict) -> None:
    del document["doubt"]


def of_hierarchies(name: str, change):
    """Change one array of the hierarchies of the crossed prior."""

    def changed(document: dict) -> None:
        document["hierarchy"][name] = change(np.asarray(document["hierarchy"][name])).tolist()

    return changed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "change"),
    [
        ("integrated", less_spread),
        ("first-order", less_error),
        ("integrated", no_doubt),
        ("first-order", no_doubt),
        ("crossed", of_hierarchies("interaction_sd", lambda sd: 0.5 * sd)),
        ("crossed", of_hierarchies("action_sd", lambda sd: 0.5 * sd)),
        ("crossed", of_hierarchies("noise_var", lambda noise: 0.9 * noise)),
        ("crossed", of_hierarchies("conditioned", lambda w: (w**2) / (w**2).sum())),
    ],
)
def test_a_doubt_that_was_changed_is_refused(way: str, change, tmp_path: Path) -> None:
    settings = {} if way == "crossed" else {"task_cov": "block", "uncertainty": way}
    path = HierOPO(**settings).fit(LOG, **COLUMNS).save(tmp_path / "policy")
    tampered(path, lambda _: None)
    verify_policy(path)
    tampered(path, change)
    with pytest.raises(ArtifactError, match=r"moments give|when saved"):
        verify_policy(path)


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"hyper": "wide"}, InputError, "hyper='wide'; 'flat' or a Gaussian"),
        ({"hyper": np.eye(2)}, InputError, "'flat' or a Gaussian is needed"),
        ({"hyper": "shared"}, InputError, "hyper='shared' is gone: the crossed prior .*Leave hyper out"),
        (
            {"hyper": Gaussian(np.zeros(3), np.eye(3))},
            MismatchError,
            "hyper has the dimension 3; task_cov has 4",
        ),
        ({"uncertainty": "none"}, InputError, "uncertainty='none'; one of 'auto', 'integrated'"),
        ({"task_cov": "round"}, InputError, "task_cov='round'; one of 'auto'.*'block', 'crossed'"),
        ({"task_cov": None}, InputError, "task_cov=None"),
        ({"task_cov": np.eye(3)}, InputError, "\\(4, 4\\) is needed"),
        ({"task_cov": -np.eye(4)}, NumericalError, "negative eigenvalue -1"),
        ({"task_cov": np.triu(np.ones((4, 4)))}, InputError, "not symmetric"),
        ({"known": Hierarchy(PRIOR, SHAPE, 1.0), "hyper": PRIOR}, InputError, "holds its own hyper-prior"),
        (
            {"known": Hierarchy(PRIOR, SHAPE, 1.0), "task_cov": "crossed"},
            InputError,
            "does not go with known=",
        ),
        ({"known": Hierarchy(PRIOR, SHAPE, 1.0), "uncertainty": "integrated"}, InputError, "taken as known"),
        ({"task_cov": "crossed", "uncertainty": "plug-in"}, InputError, "go with uncertainty='plug-in'"),
        ({"task_cov": "crossed", "uncertainty": "first-order"}, InputError, "always integrated. Leave one"),
        ({"hyper": PRIOR, "uncertainty": "first-order"}, InputError, "leave uncertainty at 'auto'"),
        ({"hyper": PRIOR, "task_cov": "crossed"}, InputError, "does not go with a Gaussian as hyper"),
        (
            {"task_cov": "crossed", "features": "columns"},
            InputError,
            "task_cov='crossed' is for actions with",
        ),
        ({"task_cov": "block", "features": "columns"}, InputError, "task_cov='block' is for actions with"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, error, says) -> None:
    with pytest.raises(error, match=says):
        HierOPO(**settings).fit(LOG, **COLUMNS)


@pytest.mark.parametrize(
    "columns", [{"levels": ["store"]}, {"metadata": ["size"]}], ids=["levels", "metadata"]
)
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"known": Hierarchy(PRIOR, SHAPE, 1.0)}, "holds its own levels and metadata"),
        ({"task_cov": "block"}, "got 'block'"),
        ({"task_cov": SHAPE}, "got an array"),
        ({"uncertainty": "first-order"}, "two levels without metadata"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_settings_that_have_no_use_for_groups_are_refused(settings, says, columns) -> None:
    with pytest.raises(InputError, match=says):
        HierOPO(**settings).fit(LOG, **COLUMNS, **columns)


@pytest.mark.parametrize("learner", [FlatOPO, PooledOPO], ids=lambda each: each.__name__)
def test_a_baseline_has_neither_a_hyper_prior_nor_uncertainty(learner) -> None:
    for setting in ({"hyper": PRIOR}, {"uncertainty": "plug-in"}):
        with pytest.raises(TypeError, match=next(iter(setting))):
            learner(**setting)
    with pytest.raises(InputError, match="task_cov='round'"):
        learner(task_cov="round").fit(LOG, **COLUMNS)


def test_a_baseline_learns_blocks_too() -> None:
    block = OracleOPO([0.0] * 4, task_cov="block").fit(LOG, **COLUMNS).hierarchy_.task_cov
    wanted = HierOPO(task_cov="block", uncertainty="plug-in").fit(LOG, **COLUMNS).hierarchy_.task_cov
    np.testing.assert_array_equal(block, wanted)


@pytest.mark.parametrize(
    "learner",
    [
        HierOPO(task_cov=SHAPE, hyper="flat", uncertainty="integrated"),
        HierOPO(hyper=PRIOR),
        FlatOPO(task_cov=SHAPE, level=0.9),
        PooledOPO(task_cov="block"),
        OracleOPO([0.0] * 4, task_cov=SHAPE),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_clone_has_the_same_settings(learner: HierOPO) -> None:
    ours, theirs = learner.get_params(), clone(learner).get_params()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if isinstance(value, Gaussian):
            np.testing.assert_array_equal(theirs[name].mean, value.mean)
            np.testing.assert_array_equal(theirs[name].cov, value.cov)
        else:
            np.testing.assert_array_equal(theirs[name], value)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    pq.write_table(with_rare(), path)
    return path


def fit(log: Path, output: Path, *words: str):
    command = [
        "fit",
        str(log),
        "-o",
        str(output),
        "--task",
        "user",
        "--action",
        "offer",
        "--reward",
        "profit",
    ]
    return CliRunner().invoke(main, [*command, *words], prog_name="hieropo")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "settings", "columns"),
    [
        (["--context", "visits"], {}, {"context": ["visits"]}),
        (["--task-cov", "crossed", "--context", "visits"], {}, {"context": ["visits"]}),
        (["--task-cov", "block"], {"task_cov": "block"}, {}),
        (["--uncertainty", "integrated"], {"uncertainty": "integrated"}, {}),
        (["--uncertainty", "first-order"], {"uncertainty": "first-order"}, {}),
        (["--uncertainty", "plug-in"], {"uncertainty": "plug-in"}, {}),
        (["--levels", "region,store", "--metadata", "size"], {},
         {"levels": ["region", "store"], "metadata": ["size"]}),
    ],
    ids=["default", "crossed", "block", "integrated", "first-order", "plug-in", "tree"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:The action 'rare':hieropo.HieropoWarning")
def test_the_command_line_makes_the_policy_of_the_learner(words, settings, columns, log, tmp_path) -> None:
    if "metadata" in columns:
        log = tmp_path / "plain.parquet"
        pq.write_table(LOG, log)
    done = fit(log, tmp_path / "policy", *words)
    assert done.exit_code == 0, done.output
    learner = HierOPO(**settings).fit(log, **ROLES, **columns)
    stored = load_policy(tmp_path / "policy")
    np.testing.assert_array_equal(stored.policy.table.means, learner.posterior_.table().means)
    np.testing.assert_array_equal(stored.policy.table.covs, learner.posterior_.table().covs)
    verify_policy(tmp_path / "policy")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--task-cov", "crossed", "--algorithm", "flat"], 1, "task_cov='crossed'"),
        (["--uncertainty", "plug-in", "--algorithm", "pooled"], 2, "are settings of --algorithm hier"),
        (["--levels", "store", "--algorithm", "flat"], 1, "FlatOPO is a baseline"),
        (["--task-cov", "crossed", "--uncertainty", "plug-in"], 1, "always integrated"),
        (["--task-cov", "wide"], 2, "'wide' is not one of"),
        (["--hyper", "shared"], 2, "No such option '--hyper'"),
        (["--task-cov", "block", "--context", "visits"], 1, "come with the action 'rare'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_command_line_refuses_what_does_not_fit(words, code, says, log, tmp_path) -> None:
    with warnings.catch_warnings():
        done = fit(log, tmp_path / "policy", *words)
    assert done.exit_code == code, done.output
    assert says in " ".join(done.stderr.split())
    assert not (tmp_path / "policy").exists()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"pessimism": "a"}, "pessimism='a' is of type str, and not a number"),
        ({"pessimism": float("nan")}, "is not finite. Give a number"),
        ({"level": 2}, "level=2 is not a credible level"),
        ({"level": "high"}, "level=.high. is of type str"),
        ({"level": 0.9, "pessimism": 1.0}, "each sets the lower bound. Give one"),
    ],
)
def test_what_a_policy_cannot_act_on_is_refused_before_the_log_is_read(settings, says) -> None:
    with pytest.raises(InputError, match=says):
        HierOPO(**settings).fit("no such file.parquet", task="t", action="a", reward="r")
