"""Learners: scikit-learn's manners, every kind of log, and bad input."""

import warnings

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.base import clone

import hieropo
import hieropo.learners.from_moments as learner_module
from hieropo import FlatOPO, Hierarchy, HierOPO, OracleOPO, PooledOPO
from hieropo.logs import encoding

COLUMNS = {"task": "store", "action": "offer", "reward": "margin", "pscore": "p", "context": ["age"]}
LEARNERS = [HierOPO(), FlatOPO(), PooledOPO(), OracleOPO([0.0] * 6)]


def make_log(n: int = 1500, tasks: int = 20, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    store, age, offer = rng.integers(0, tasks, n), rng.standard_normal(n), rng.integers(0, 3, n)
    theta = np.random.default_rng(1).standard_normal((1, 3, 2)) + 0.4 * np.random.default_rng(
        2
    ).standard_normal((tasks, 3, 2))
    margin = theta[store, offer, 0] + theta[store, offer, 1] * age + 0.5 * rng.standard_normal(n)
    return pa.table(
        {
            "store": [f"store {s}" for s in store],
            "age": age,
            "offer": np.array(["free", "half", "two"])[offer].tolist(),
            "margin": margin,
            "p": np.full(n, 1 / 3),
        }
    )


LOG = make_log()


def edited(**columns: object) -> pa.Table:
    table = LOG
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table


@pytest.mark.parametrize("learner", LEARNERS, ids=repr)
def test_it_is_cloned_and_its_settings_are_read_and_set(learner: HierOPO) -> None:
    twin = clone(learner.set_params(pessimism=0.7))
    assert type(twin) is type(learner)
    assert twin.get_params() == learner.get_params()
    assert twin.pessimism == 0.7
    with pytest.raises(hieropo.InputError, match="pesimism"):
        twin.set_params(pesimism=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS, ids=repr)
def test_it_learns_predicts_and_comes_back_from_disk(learner: HierOPO, tmp_path) -> None:
    fitted = clone(learner).fit(LOG, **COLUMNS)
    actions = fitted.predict(LOG)
    assert len(actions) == LOG.num_rows
    assert set(actions) <= {"free", "half", "two"}
    stored = hieropo.load_policy(fitted.save(tmp_path / "policy"))
    assert stored.moments().allclose(fitted.moments_)
    for row in LOG.slice(0, 50).to_pylist():
        assert stored.policy.choose(row["store"], [row["age"]]) == fitted.policy_.choose(
            row["store"], [row["age"]]
        )


def test_settings_stay_as_given() -> None:
    learner = HierOPO(pessimism=0.3)
    before = learner.get_params()
    learner.fit(LOG, **COLUMNS)
    assert learner.get_params() == before


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "folder", "table", "reader", "pandas", "polars", "duckdb"])
def test_every_kind_of_log_gives_the_same_policy(kind: str, tmp_path) -> None:
    truth = HierOPO().fit(LOG, **COLUMNS)
    if kind == "file":
        log = tmp_path / "log.parquet"
        pq.write_table(LOG, log)
    elif kind == "folder":
        log = tmp_path / "log"
        log.mkdir()
        for part, start in enumerate(range(0, 1500, 400)):
            pq.write_table(LOG.slice(start, 400), log / f"{part}.parquet")
    elif kind == "duckdb":
        duckdb = pytest.importorskip("duckdb")
        log = duckdb.connect().from_arrow(LOG)
    else:
        log = {
            "table": lambda: LOG,
            "reader": lambda: LOG.to_reader(max_chunksize=100),
            "pandas": LOG.to_pandas,
            "polars": lambda: pl.from_arrow(LOG),
        }[kind]()
    found = HierOPO().fit(log, **COLUMNS)
    assert found.moments_.allclose(truth.moments_)
    mine, theirs = (each.hierarchy_.central() for each in (found, truth))
    np.testing.assert_allclose(mine.interaction_cov, theirs.interaction_cov, rtol=1e-8)


@pytest.mark.slow
def test_partial_fit_equals_one_fit() -> None:
    whole = HierOPO().fit(LOG, **COLUMNS)
    parts = HierOPO().partial_fit(LOG.slice(0, 700), **COLUMNS).partial_fit(LOG.slice(700))
    assert parts.moments_.allclose(whole.moments_)
    np.testing.assert_allclose(parts.posterior_.hyper.mean, whole.posterior_.hyper.mean, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["weight", "precision", "sampling_weight", "time"])
def test_partial_fit_names_a_column_that_more_rows_lack(role: str) -> None:
    log = LOG.append_column("more", pa.array(np.full(LOG.num_rows, 1.0)))
    fitted = HierOPO().fit(log, **COLUMNS | {role: "more"})
    with pytest.raises(hieropo.SchemaError, match=f"Column 'more' .role {role}. is not in the Arrow table"):
        fitted.partial_fit(log.drop_columns("more"))


def test_partial_fit_names_a_new_action() -> None:
    fitted = HierOPO(task_cov="diag").fit(LOG, **COLUMNS)
    with pytest.raises(hieropo.UnknownActionError, match=r"triple.*fit with the rows of both logs"):
        fitted.partial_fit(edited(offer=["triple"] * LOG.num_rows))


def test_known_hyper_parameters_are_not_estimated() -> None:
    known = Hierarchy(hieropo.Gaussian(np.zeros(6), np.eye(6)), 0.2 * np.eye(6), 0.3)
    assert HierOPO(known=known).fit(LOG, **COLUMNS).hierarchy_ is known
    assert not PooledOPO(known=known).fit(LOG, **COLUMNS).hierarchy_.task_cov.any()
    np.testing.assert_array_equal(
        FlatOPO(known=known).fit(LOG, **COLUMNS).hierarchy_.task_cov, 1.2 * np.eye(6)
    )
    np.testing.assert_array_equal(
        OracleOPO(np.ones(6), known=known).fit(LOG, **COLUMNS).hierarchy_.hyper.mean, np.ones(6)
    )


def test_sharing_beats_every_task_alone_and_pooling() -> None:
    log, rng = make_log(n=600, tasks=30, seed=5), np.random.default_rng(3)
    theta = np.random.default_rng(1).standard_normal((1, 3, 2)) + 0.4 * np.random.default_rng(
        2
    ).standard_normal((30, 3, 2))
    ages = rng.standard_normal(200)
    value = {}
    for learner in (HierOPO(), FlatOPO(), PooledOPO()):
        policy = learner.fit(log, **COLUMNS).policy_
        worth = []
        for s in range(30):
            chosen = policy.choose_many([f"store {s}"] * 200, ages[:, None]).index[:, 0]
            worth.append((theta[s, chosen, 0] + theta[s, chosen, 1] * ages).mean())
        value[type(learner).__name__] = np.mean(worth)
    assert value["HierOPO"] > max(value["FlatOPO"], value["PooledOPO"])


def test_integer_ids_and_a_log_of_one_indicator_an_action() -> None:
    log = edited(store=np.arange(LOG.num_rows) % 7 - 3)
    fitted = HierOPO().fit(log, task="store", action="offer", reward="margin")
    assert fitted.features_.dim == 3
    assert fitted.moments_.tasks.tolist() == [-3, -2, -1, 0, 1, 2, 3]
    with pytest.raises(hieropo.UnknownTaskError, match="type"):
        fitted.posterior_.task("2", unseen="error")


def test_columns_that_describe_the_action_themselves() -> None:
    fitted = HierOPO().fit(LOG, task="store", reward="margin", context=["age"])
    assert fitted.features_.names == ("age",)
    assert fitted.policy_.choose("store 1", phi=[[0.0], [1.0]]).index in (0, 1)
    with pytest.raises(hieropo.InputError, match=r"each candidate is a row.*decide --request"):
        fitted.predict(LOG)


@pytest.mark.parametrize(
    ("log", "columns", "error", "said"),
    [
        (LOG.slice(0, 0), {}, hieropo.LogError, "no rows"),
        (LOG, {"reward": "margn"}, hieropo.SchemaError, "margin"),
        (LOG, {"action": "offers"}, hieropo.SchemaError, "offer"),
        (LOG, {"context": "age"}, hieropo.SchemaError, "bare string"),
        (LOG.append_column("age", LOG["margin"]), {}, hieropo.SchemaError, "age"),
        (edited(margin=[np.nan] + [0.0] * 1499), {}, hieropo.LogError, "row 0"),
        (edited(margin=[0.0] * 70 + [np.inf] + [0.0] * 1429), {}, hieropo.LogError, "row 70"),
        (edited(age=[0.0] * 9 + [np.inf] + [0.0] * 1490), {}, hieropo.LogError, "row 9"),
        (edited(store=[None, *["a"] * 1499]), {}, hieropo.LogError, "store"),
        (edited(p=[1.5] * 1500), {}, hieropo.LogError, "p"),
        (edited(p=[0.0] * 1500), {}, hieropo.LogError, "p"),
        (edited(margin=["high"] * 1500), {}, hieropo.SchemaError, "margin"),
        (edited(age=[0.0] * 1500), {}, hieropo.NumericalError, "0 in every row"),
        (edited(margin=[0.0] * 70 + [1e300] + [0.0] * 1429), {}, hieropo.LogError, "row 70: 1e\\+300"),
        (
            LOG.append_column("w", pa.array([0.0] * 1500)),
            {"weight": "w"},
            hieropo.LogError,
            "the weight, is 0",
        ),
        (LOG.drop_columns("store"), {}, hieropo.SchemaError, "store"),
        (LOG, {"action": None, "context": ()}, hieropo.SchemaError, "Name action"),
        (LOG, {"action": None, "context": ["age"], "reward": "margn"}, hieropo.SchemaError, "margin"),
        ("nowhere.parquet", {}, hieropo.InputError, "nowhere"),
    ],
)
def test_a_log_that_cannot_be_used_is_refused(log, columns, error, said) -> None:
    with pytest.raises(error, match=said):
        HierOPO().fit(log, **{**COLUMNS, **columns})


@pytest.mark.parametrize(
    ("learner", "error", "said"),
    [
        (HierOPO(features=42), hieropo.InputError, "features=42"),
        (HierOPO(features="peraction"), hieropo.InputError, "'per-action'"),
        (HierOPO(features="indicator"), hieropo.SchemaError, "reads no context"),
        (
            HierOPO(hieropo.Columns(["price"])),
            hieropo.SchemaError,
            "differs from the columns of the feature map",
        ),
        (HierOPO(known="flat"), hieropo.InputError, "a Hierarchy or a CrossedHierarchy is needed"),
        (HierOPO(unseen="zero"), hieropo.InputError, "unseen='zero'"),
        (OracleOPO([0.0] * 5), hieropo.MismatchError, "has 6 features"),
    ],
)
def test_settings_that_do_not_fit_are_refused(learner: HierOPO, error, said) -> None:
    with pytest.raises(error, match=said):
        learner.fit(LOG, **COLUMNS)


@pytest.mark.slow
def test_the_context_columns_of_a_feature_map_need_not_be_named_again() -> None:
    features = hieropo.per_action(["free", "half", "two"], ["age"])
    fitted = HierOPO(features).fit(LOG, task="store", action="offer", reward="margin")
    assert fitted.roles_.context == ("age",)
    assert fitted.moments_.allclose(HierOPO().fit(LOG, **COLUMNS).moments_)


@pytest.mark.slow
def test_ids_of_another_type_are_warned_about_where_the_caller_stands() -> None:
    fitted = HierOPO().fit(LOG, **COLUMNS)
    other = edited(store=[1] * 1500)
    for call in (fitted.predict, fitted.partial_fit):
        with pytest.warns(
            hieropo.HieropoWarning, match="type int, such as 1, those of the log of type str"
        ) as caught:
            call(other)
        assert caught[0].filename == __file__


def test_more_rows_take_the_names_of_columns_only() -> None:
    with pytest.raises(TypeError, match="'margins'"):
        HierOPO().fit(LOG, **COLUMNS).partial_fit(LOG, margins="margin")


def test_an_unfitted_learner_says_so() -> None:
    with pytest.raises(hieropo.InputError, match="not fitted"):
        HierOPO().predict(LOG)


@pytest.mark.parametrize("n", [1, 2])
def test_a_log_of_one_or_two_rows(n: int) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = HierOPO().fit(LOG.slice(0, n), task="store", action="offer", reward="margin")
    assert any(issubclass(w.category, hieropo.HieropoWarning) for w in caught)
    assert np.isfinite(fitted.posterior_.hyper.mean).all()
    assert fitted.predict(LOG.slice(0, n)).size == n


def test_one_task_is_warned_about() -> None:
    with pytest.warns(hieropo.HieropoWarning, match="one task"):
        fitted = HierOPO().fit(edited(store=["only"] * 1500), **COLUMNS)
    assert fitted.predict(edited(store=["only"] * 1500)).size == 1500
    dense = HierOPO(task_cov="block")
    with pytest.warns(hieropo.HieropoWarning, match="one task"):
        dense.fit(edited(store=["only"] * 1500), **COLUMNS)
    assert not dense.hierarchy_.task_cov.any()


def test_a_fit_opens_its_log_and_makes_its_settings_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"settings": 0, "log": 0}

    def counted(name: str, function: object) -> object:
        def call(*args: object, **kwargs: object) -> object:
            calls[name] += 1
            return function(*args, **kwargs)  # type: ignore[operator]

        return call

    monkeypatch.setattr(learner_module, "Settings", counted("settings", learner_module.Settings))
    monkeypatch.setattr(encoding, "open_log", counted("log", encoding.open_log))
    far = edited(age=np.asarray(LOG["age"]) + 1e6)  # so that the map gets an origin
    HierOPO(task_cov="diag", pessimism=0.5).fit(far, **COLUMNS)
    assert calls == {"settings": 1, "log": 1}
