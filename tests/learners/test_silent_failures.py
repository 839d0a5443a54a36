"""What other tools get wrong without a word has to be loud here, or right: DESIGN's list, each from log to decision."""

import datetime as dt
import json
import math
import re
import shutil

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from command_line import called

from hieropo import HierOPO, LogMoments, examine, load_learner, load_policy
from hieropo.decisions.deciding import decide
from hieropo.errors import (
    ArtifactError,
    HieropoError,
    HieropoWarning,
    InputError,
    LogError,
    NumericalError,
    SchemaError,
    UnknownActionError,
)
from hieropo.features.maps import indicator
from hieropo.logs.arrow.schema import guess_roles
from hieropo.logs.interop.joining import join_rewards

COLUMNS = {"task": "store", "action": "offer", "reward": "profit", "pscore": "p"}
NAN = float("nan")


def log(n=400, **changes):
    """Rows of eight stores, where gifts pay; some columns changed."""
    rng = np.random.default_rng(0)
    store, gift, age = np.arange(n) % 8, rng.integers(0, 2, n), rng.normal(40, 10, n)
    columns = {
        "store": store.tolist(),
        "offer": [("none", "gift")[each] for each in gift],
        "profit": (gift + 0.05 * store + 0.1 * age + rng.normal(0, 0.3, n)).tolist(),
        "p": [0.5] * n,
        "age": age.tolist(),
        "visits": rng.poisson(3, n).tolist(),
    }
    for name, change in changes.items():
        columns[name] = [change(k, value) for k, value in enumerate(columns[name])]
    return columns


def at(row, value):
    return lambda k, before: value if k == row else before


def learner(**settings):
    return HierOPO(logging="random", uncertainty="plug-in", **settings)


@pytest.fixture(scope="module")
def fitted():
    return learner().fit(pa.table(log()), **COLUMNS, context=["age", "visits"])


FRAMES = {
    "pandas": pd.DataFrame,
    "polars": lambda columns: pl.DataFrame(columns, strict=False),
    "arrow": pa.table,
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
class TestAMissingValueIsNeverANumber:
    @pytest.mark.parametrize("value", [None, NAN])
    def test_a_reward_that_is_missing_is_not_0(self, frame, value):
        with pytest.raises(LogError, match=r"'profit', row 17: n(ull|an)"):
            learner().fit(frame(log(profit=at(17, value))), **COLUMNS)

    @pytest.mark.parametrize("value", [None, NAN])
    def test_a_propensity_that_is_missing_is_not_1(self, frame, value, fitted):
        broken = frame(log(p=at(17, value)))
        with pytest.raises(LogError, match=r"'p', row 17: n(ull|an)"):
            learner().fit(broken, **COLUMNS)
        with pytest.raises(LogError, match=r"'p', row 17: n(ull|an)"):
            fitted.evaluate(broken)

    @pytest.mark.parametrize("value", [None, NAN])
    def test_a_context_that_is_missing_is_not_0_nor_a_mean(self, frame, value, fitted):
        broken = frame(log(age=at(17, value)))
        with pytest.raises(LogError, match=r"'age', row 17: n(ull|an)"):
            fitted.predict(broken)
        few = frame(log(age=lambda k, age: value if k in range(17, 27) else age))
        apart = learner().fit(few, **COLUMNS, context=["age", "visits"])
        assert apart.features_.columns == ("age", "visits", "age (missing)")
        assert fitted.features_.columns == ("age", "visits")


def test_numbers_with_holes_need_no_formula_wherever_rows_are_read(tmp_path):
    broken = pa.table(log(age=lambda k, age: None if k % 5 == 2 else age))
    formula = learner(features="age + visits").fit(broken, **COLUMNS)
    columns = {**COLUMNS, "context": ["age", "visits"]}
    file = tmp_path / "log.csv"
    pc.write_csv(broken, file)
    for fit in (learner().fit(broken, **columns), learner().fit(file, **columns, lenient=True)):
        assert fit.features_.columns == ("age", "visits", "age (missing)")
        assert fit.policy_.table.means == pytest.approx(formula.policy_.table.means, rel=1e-6, abs=1e-9)
        assert "Missing values have columns of their own: age (missing)." in " ".join(
            str(fit.summary()).split()
        )
    assert fit.rejected_ is None or not fit.rejected_.rows
    moments = LogMoments.of(broken, **columns)
    assert moments.features.columns == fit.features_.columns
    checkpointed = learner().fit(file, **columns, checkpoint=tmp_path / "sums")
    assert checkpointed.features_.columns == fit.features_.columns
    request = {"store": 3, "age": None, "visits": 2}
    assert fit.choose(request) == formula.choose(request)
    assert examine(broken, **columns).roles.context == ("age", "visits")


def test_a_reward_that_is_missing_is_the_error_where_a_context_is_missing_too():
    both = pa.table(log(age=at(3, None), profit=at(17, None)))
    with pytest.raises(LogError, match="'profit', row 17: null"):
        learner().fit(both, **COLUMNS, context=["age"])


@pytest.mark.parametrize(
    ("value", "said"), [(0.0, "must be above 0"), (-0.1, "must be above 0"), (1.5, "above 1")]
)
def test_an_impossible_propensity_is_not_clipped(value, said, fitted):
    broken = pa.table(log(p=at(17, value)))
    for use in (lambda: learner().fit(broken, **COLUMNS), lambda: fitted.evaluate(broken)):
        with pytest.raises(LogError, match=f"'p', row 17: {value}.*{said}"):
            use()


def test_infinite_and_overflowing_rewards_do_not_swallow_the_others():
    for value in (float("inf"), -float("inf"), 1e200):
        with pytest.raises(LogError, match="'profit', row 17: "):
            learner().fit(pa.table(log(profit=at(17, value))), **COLUMNS)


def test_a_cost_is_not_taken_for_a_reward():
    costs = pa.table(log()).rename_columns(["store", "offer", "cost", "p", "age", "visits"])
    with pytest.raises(SchemaError, match=r"'cost' looks like a cost\. Larger rewards are better"):
        guess_roles(costs.schema, {})


@pytest.mark.parametrize("name", ["cost", "regret_per_visit", "pageLoss"])
def test_a_reward_that_is_named_like_a_cost_is_found(name):
    costs = pa.table(log()).rename_columns(["store", "offer", name, "p", "age", "visits"])
    (found,) = [each for each in examine(costs, **COLUMNS | {"reward": name}).findings if "cost" in each.kind]
    assert found.severity == "limits"
    assert f"name a column of -{name}" in found.next


def test_actions_that_are_text_stay_text(fitted, tmp_path):
    assert fitted.features_.actions == ("gift", "none")
    assert set(fitted.predict(pa.table(log()))) == {"gift"}
    assert load_policy(fitted.save(tmp_path / "p")).policy.choose(3, [40.0, 3.0]).action == "gift"
    digits = learner().fit(pa.table(log(offer=lambda _, value: "10" if value == "gift" else "9")), **COLUMNS)
    assert digits.features_.actions == ("10", "9")  # no number, and not sorted as one
    assert digits.policy_.choose(3).action == "10"


def test_rewards_that_are_text_are_not_read_as_numbers_nor_as_nothing():
    texts = pa.table(log(profit=lambda _, value: str(value)))
    with pytest.raises(
        SchemaError, match="'profit' of the Arrow table is of Arrow type string, which cannot be a reward"
    ):
        learner().fit(texts, **COLUMNS)


def test_an_id_of_another_type_is_not_another_action():
    numbered = learner().fit(pa.table(log(offer=lambda _, value: int(value == "gift"))), **COLUMNS)
    with pytest.raises(UnknownActionError, match="knows 1 of type int, but this is of type str"):
        numbered.predict(pa.table({"store": [0], "can": [["1"]]}), eligible="can")


def test_actions_that_the_policy_does_not_know_are_not_left_out(fitted):
    later = pa.table(log(offer=at(17, "voucher")))
    for use in (lambda: fitted.evaluate(later), lambda: load_again(fitted).partial_fit(later)):
        with pytest.raises(UnknownActionError, match=r"'voucher' \(row 17\)"):
            use()
    listed = pa.table(log()).append_column("can", pa.array([["gift", "voucher"]] * 400))
    with pytest.raises(UnknownActionError, match="'voucher'"):
        fitted.predict(listed, eligible="can")


def load_again(fitted):
    return learner(features=fitted.features_).fit(pa.table(log()), **COLUMNS, context=["age", "visits"])


def test_actions_that_the_log_does_not_have_get_no_invented_value():
    with pytest.raises(NumericalError, match="'voucher'"):
        learner(features=indicator(["gift", "none", "voucher"])).fit(pa.table(log()), **COLUMNS)


def test_a_feature_that_is_missing_at_decision_time_is_no_0(fitted):
    with pytest.raises(SchemaError, match=r"'visits' \(role context\) is not in"):
        fitted.predict(pa.table(log()).drop_columns(["visits"]))


def test_features_are_read_by_name_in_whatever_order_they_come(fitted):
    table = pa.table(log())
    turned = table.select(table.column_names[::-1])
    np.testing.assert_array_equal(fitted.predict(turned), fitted.predict(table))
    again = learner().fit(turned, **COLUMNS, context=["age", "visits"])
    np.testing.assert_array_equal(again.moments_.sums, fitted.moments_.sums)


def test_features_of_another_order_do_not_mix(fitted):
    with pytest.raises(SchemaError, match="fitted with the context columns"):
        fitted.partial_fit(pa.table(log()), context=["visits", "age"])


@pytest.mark.parametrize("value", [None, NAN])
def test_a_task_that_a_side_table_lacks_is_not_placed_somewhere(value):
    joined = pa.table(log()).append_column(
        "size", pa.array([value if k % 8 == 5 else 1.0 * (k % 8) for k in range(400)])
    )
    with pytest.raises(LogError, match=r"'size', row 5: n(ull|an)"):
        learner().fit(joined, **COLUMNS, metadata=["size"])
    regions = pa.table(log()).append_column(
        "region", pa.array([None if k % 8 == 5 else "ab"[k % 2] for k in range(400)])
    )
    with pytest.raises(LogError, match="'region', row 5: null"):
        learner().fit(regions, **COLUMNS, levels=["region"])


def test_a_saved_policy_comes_back_as_it_was(fitted, tmp_path):
    path = fitted.save(tmp_path / "p")
    stored, table = load_policy(path), pa.table(log())
    again = load_learner(path)
    for other in (stored.policy.table, again.policy_.table):
        for name in ("means", "covs"):
            np.testing.assert_array_equal(
                np.asarray(getattr(other, name)), np.asarray(getattr(fitted.policy_.table, name))
            )
    np.testing.assert_array_equal(again.predict(table), fitted.predict(table))
    assert (again.roles_, stored.features) == (fitted.roles_, fitted.features_)


def test_a_saved_policy_that_changed_is_refused(fitted, tmp_path):
    path = fitted.save(tmp_path / "p")
    for file in sorted(each for each in path.rglob("*") if each.is_file()):
        copy = tmp_path / "copy"
        shutil.copytree(path, copy)
        damaged = copy / file.relative_to(path)
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 0x55
        damaged.write_bytes(bytes(content))
        with pytest.raises(ArtifactError):
            load_policy(copy)
        shutil.rmtree(copy)


def test_the_command_line_is_as_loud(tmp_path):
    cases = {"profit": NAN, "p": 0.0, "age": math.inf, "store": None, "offer": None}
    for column, value in cases.items():
        pq.write_table(pa.table(log(**{column: at(17, value)})), tmp_path / "log.parquet")
        words = ["fit", "log.parquet", "-o", "p", "--pscore", "p", "--context", "age"]
        done = called(*words, folder=tmp_path)
        assert (done.exit_code, done.stdout) == (1, ""), done.stdout
        assert f"Column {column!r}, row 17: " in done.stderr
        assert not (tmp_path / "p").exists()


def test_every_refusal_is_of_hieropos_own_tree():
    for error in (ArtifactError, LogError, NumericalError, SchemaError, UnknownActionError):
        assert issubclass(error, HieropoError)


WHOLE = [2**60 + 64 * k for k in range(8)]  # float64 has every 256th number here: one or two of these
ROUNDED = (
    r"(row 0|line [12] of '.*'): the id 1\.15\d*e\+18 is a float64 of size 2\*\*53 or more.*Int64.*later cast does "
    r"not bring"
)


def merged(column="store", **changes):
    """The log in a frame whose ids went through a merge that left a row without one for a while."""
    frame = pd.DataFrame(log(**changes))
    ids = pd.Series(WHOLE)[np.arange(len(frame)) % 8].reset_index(drop=True)
    frame[column] = ids.reindex(range(len(ids) + 1))[:-1]
    return frame


ID_FILES = {
    "parquet": lambda frame, path: frame.to_parquet(path),
    "csv": lambda frame, path: frame.to_csv(path, index=False),
    "csv.gz": lambda frame, path: frame.to_csv(path, index=False),
    "jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    "arrow": lambda frame, path: frame.to_feather(path),
}
ID_FRAMES = {
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "encoded": lambda frame: frame.astype({"store": "category"}),
    "stream": lambda frame: pa.Table.from_pandas(frame).to_reader(),
}


class TestWholeNumbersThatBecameFloatsAreNoIds:
    def test_they_would_be_fewer(self):
        assert merged()["store"].nunique() == 3

    @pytest.mark.parametrize("form", [*ID_FRAMES, *ID_FILES])
    def test_as_tasks_of_a_log(self, form, tmp_path):
        if form in ID_FRAMES:
            made = ID_FRAMES[form](merged())
        else:
            made = tmp_path / f"log.{form}"
            ID_FILES[form](merged(), made)
        with pytest.raises(LogError, match=f"'store', {ROUNDED}"):
            learner().fit(made, **COLUMNS)

    def test_leniently_they_are_counted_by_their_reason(self):
        with pytest.raises(
            LogError,
            match=r"400 with an id that may be rounded in 'store' \(first in row 0, counted from 0: 1\.15",
        ):
            learner().fit(merged(), **COLUMNS, lenient=True)
        few = log(store=lambda k, value: float(WHOLE[0] if k in (17, 30) else value))
        with pytest.warns(match="2 of 400 rows.*2 with an id that may be rounded in 'store'"):
            found = learner().fit(pa.table(few), **COLUMNS, lenient=True)
        assert found.moments_.n_rows == 398
        assert sorted(found.moments_.tasks.tolist()) == list(range(8))

    def test_the_doctor_says_so(self):
        finding = examine(merged(), **COLUMNS).findings[0]
        assert "An id that may be rounded: column 'store' (task) in 400 rows" in str(finding)
        assert "before a merge" in str(finding)

    @pytest.mark.parametrize(("column", "columns"), [("offer", {}), ("region", {"levels": ["region"]})])
    def test_as_actions_and_groups(self, column, columns):
        with pytest.raises(LogError, match=f"'{column}', {ROUNDED}"):
            learner().fit(merged(column), **COLUMNS, **columns)

    def test_in_lists_of_eligible_actions(self):
        good = pa.table(log(offer=lambda _, value: WHOLE[value == "gift"]) | {"can": [WHOLE[:2]] * 400})
        assert learner().fit(good, **COLUMNS, eligible="can").features_.actions == tuple(WHOLE[:2])
        lists = pa.array([[1.0, 2.0]] * 3 + [[float(each) for each in WHOLE[:2]]] * 397)
        bad = good.set_column(good.schema.get_field_index("can"), "can", lists)
        with pytest.raises(LogError, match=f"'can', {ROUNDED.replace('row 0', 'row 3')}"):
            learner().fit(bad, **COLUMNS, eligible="can")
        with pytest.raises(LogError, match="397 with a list with an id that may be rounded in 'can'"):
            learner().fit(bad, **COLUMNS, eligible="can", lenient=True)

    def test_in_requests(self, tmp_path):
        found = learner().fit(pa.table(log(store=lambda k, _: WHOLE[k % 8])), **COLUMNS)
        requests = merged()[:8]
        stored = load_policy(found.save(tmp_path / "policy")).policy
        with pytest.raises(LogError, match=f"'store', {ROUNDED}"):
            found.predict(requests)
        for policy in (found.policy_, stored):
            with pytest.raises(InputError, match=r"^The id 1\.15\d*e\+18 is a float64 of size"):
                policy.choose(float(WHOLE[1]))
            with pytest.raises(LogError, match=f"'task', {ROUNDED}"):
                policy.choose_many(requests["store"].to_numpy())
        ids = pa.table({"store": WHOLE, "name": [float(each) for each in WHOLE]})
        with pytest.raises(LogError, match=f"'name', {ROUNDED}"):
            next(decide(found.policy_, ids, task="name", strict=True))

    def test_float32_has_them_from_2_to_the_24_on(self):
        made = pa.table(log(store=lambda k, _: 2**24 + k % 8))
        with pytest.raises(LogError, match=r"is a float32 of size 2\*\*24"):
            learner().fit(
                made.set_column(0, "store", made["store"].cast(pa.float32(), safe=False)), **COLUMNS
            )

    def test_in_a_join(self):
        pytest.importorskip("duckdb")
        ids = [float(each) for each in WHOLE]
        decisions = pa.table({"id": ids, "at": range(8)})
        rewards = decisions.append_column("reward", pa.array(ids))
        with pytest.raises(LogError, match=f"'id' of the Arrow table, {ROUNDED}"):
            join_rewards(decisions, rewards, id="id", time="at", window=1, default=0.0)

    def test_floats_that_say_which_they_are_stay_ids(self):
        found = learner().fit(pa.table(log(store=lambda k, _: float(2**53 - 1 - k % 8))), **COLUMNS)
        assert len(found.moments_) == 8
        assert found.moments_.keys.find(float(2**53 - 8)) >= 0


DAYS = [dt.date(2024, 1, day) for day in range(1, 9)]
STRANGE = {  # tasks of the log, one of requests of which it has none, and what is said
    "blanks": (
        [str(100 + k) for k in range(8)],
        " 100",
        "Task ' 100' (row 0) is unknown, but '100' is known",
    ),
    "dates as text": (
        DAYS,
        "2024-01-05",
        "Task '2024-01-05' (row 0) is of type str and unknown, but datetime.date",
    ),
    "text for numbers": (
        list(range(8)),
        "7",
        "Task '7' (row 0) is of type str and unknown, but 7 of type int",
    ),
    "other text": (
        list("abcdefgh"),
        "x",
        "No request is of a task that the log had, .* 'x', those of the log such as 'a'",
    ),
    "another day": (DAYS, "2024-02-01", "type str, such as '2024-02-01', those of the log of type date"),
}


@pytest.mark.parametrize(("ids", "asked", "said"), STRANGE.values(), ids=STRANGE)
class TestRequestsOfWhichNoneIsKnown:
    def fitted(self, ids, tmp_path):
        found = learner().fit(pa.table(log(store=lambda k, _: ids[k % 8])), **COLUMNS)
        return found, found.save(tmp_path / "policy")

    @pytest.mark.slow
    def test_are_warned_about_where_they_are_answered(self, ids, asked, said, tmp_path):
        found, place = self.fitted(ids, tmp_path)
        requests, texts = pa.table({"store": [asked, asked]}), set()
        pq.write_table(requests, tmp_path / "requests.parquet")
        for call in (
            lambda: found.predict(requests),
            lambda: load_learner(place).predict(requests),
            lambda: list(decide(found.policy_, requests, task="store")),
            lambda: list(decide(load_policy(place).policy, tmp_path / "requests.parquet", task="store")),
        ):
            with pytest.warns(HieropoWarning) as caught:
                call()
            texts.update(str(each.message) for each in caught)
        command = ["decide", place, tmp_path / "requests.parquet", "-o", tmp_path / "out.parquet", "--json"]
        done = called(*command)
        assert done.exit_code == 0, done.output
        texts.update(json.loads(done.stdout)["warnings"])
        (text,) = texts  # the same from Python and on the command line
        assert re.search(said.replace("(", r"\(").replace(")", r"\)"), text)
        assert (
            "None of these 2 requests is of a known task" in text
            or "No request is of a task that the log had" in text
        )


def test_requests_of_some_new_tasks_are_not_warned_about():
    found = learner().fit(pa.table(log()), **COLUMNS)
    requests = pa.table({"store": [*range(8), 99]})
    assert len(found.predict(requests)) == 9
    assert [part.unseen for part in decide(found.policy_, requests, task="store")] == [1]


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_columns_of_an_extreme_size_are_named_where_a_fit_fails():
    huge = pa.table(log(age=lambda _, value: value * 1e40))
    with pytest.raises(NumericalError, match="Column 'age' has values of about 4e\\+41, so that"):
        HierOPO(logging="random").fit(huge, **COLUMNS, context=["age"])
