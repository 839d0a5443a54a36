"""Words agree with the number that they go with."""

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

import hieropo
from hieropo import HierOPO, Moments, examine
from hieropo._utils.text import Report, agreeing, counted, resolved
from hieropo.logging_policy.action_logit import always_one_action
from hieropo.logs.bad_rows.rejects import Rejected
from hieropo.rows.keys import Keys


def test_nouns_and_verbs_follow_the_number() -> None:
    assert [counted(n, "row") for n in (0, 1, 2, 2825)] == ["0 rows", "1 row", "2 rows", "2,825 rows"]
    assert [agreeing(n, "is", "are") for n in (0, 1, 2)] == ["are", "is", "are"]


def test_one_of_a_kind_is_said_in_the_singular() -> None:
    one = Moments.from_arrays(["a"], [[1.0]], [2.0])
    assert repr(one) == "Moments(1 task, 1 row, 1 feature)"
    assert "; 1 task is known ('a')." in Keys(np.array(["a"], dtype=object)).unknown_message("b")
    counts = 9.0 * np.tile([[1.0, 0.0], [0.0, 1.0]], (50, 1))
    counts[0] = 1.0
    assert str(always_one_action(counts)).startswith("all but 1 task with several rows")
    assert Rejected(1, 1).counted().startswith("1 of 1 row ")


def test_findings_of_one_row_or_one_action_are_in_the_singular() -> None:
    n = 400
    rng = np.random.default_rng(0)
    log = {"t": rng.integers(8, size=n), "a": rng.integers(2, size=n).astype(object), "r": np.zeros(n)}
    log["r"][3] = 1.0
    log["a"][log["t"] == 3] = 2
    log["a"] = log["a"].astype(int)
    texts = [str(each) for each in examine(pa.table(log), task="t", action="a", reward="r").findings]
    assert any(each.startswith("Only 1 of 400 rewards differs from 0") for each in texts)
    assert any(each.startswith("1 action of 3 was taken in one task only") for each in texts)
    assert not any(word in each for each in texts for word in ("1 actions", "1 tasks", "1 rows"))
    log["r"] = rng.normal(size=n)
    log["r"][5] = np.nan
    with pytest.warns(hieropo.HieropoWarning) as warned:
        HierOPO("indicator", task_cov="crossed").fit(
            pa.table(log), task="t", action="a", reward="r", lenient=True
        )
    assert any(re.search(r"1 of 400 rows .* was set aside\.", str(each.message)) for each in warned)


def test_a_number_far_from_zero_is_written_to_the_digits_of_its_interval() -> None:
    assert resolved(1e6 + 0.2471, 0.4) == "1,000,000.247"
    assert resolved(-12345.678, 30.0) == "-12,345.7"
    assert resolved(0.6117, 0.03) == "0.6117"
    assert resolved(0.0, 0.03) == "0"
    assert resolved(1e6, 0.0) == "1e+06"


def test_json_holds_dataclasses_arrays_and_no_numbers_that_are_not_finite() -> None:
    @dataclass(frozen=True, slots=True)
    class Result(Report):
        name: str
        values: np.ndarray
        pair: tuple[float, float]
        inner: "Result | None" = None

    result = Result(
        "one", np.array([1.0, np.nan]), (np.float64(2.5), np.inf), Result("two", np.arange(2), (0.0, 1.0))
    )
    assert result.to_dict() == {
        "name": "one", "values": [1.0, None], "pair": [2.5, None],
        "inner": {"name": "two", "values": [0, 1], "pair": [0.0, 1.0], "inner": None},
    }  # fmt: skip
