"""A gate leaves tasks to the incumbent, in memory, on disk and in files of decisions."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hieropo.decisions import decide
from hieropo.errors import ArtifactError, HieropoError, InputError, LogError, MismatchError
from hieropo.features.maps import Columns, indicator, per_action
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.posterior import condition
from hieropo.moments.statistics import Moments
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.storage import layout
from hieropo.storage.load import load_policy
from hieropo.storage.save import save_policy

ACTIONS = ("left", "right", "stay")
TASKS = ["a", "b", "c"]
FEATURES = per_action(ACTIONS, ["x"])


@pytest.fixture(scope="module")
def policy() -> LCBPolicy:
    rng = np.random.default_rng(3)
    n = 120
    codes = rng.integers(3, size=n)
    phi = FEATURES.phi(rng.normal(size=(n, 1)), codes)
    moments = Moments.from_arrays(
        [TASKS[k % 3] for k in range(n)], phi, rng.normal(size=n), features=FEATURES.fingerprint
    )
    return LCBPolicy(condition(moments, Hierarchy(None, np.eye(6), 1.0)), FEATURES, pessimism=0.3)


@pytest.fixture
def gated(policy: LCBPolicy) -> GatedPolicy:
    return GatedPolicy(policy, [0.01, 0.4, 0.05], 0.05)


def test_a_task_passes_up_to_the_limit_and_not_above(gated: GatedPolicy) -> None:
    assert gated.passed.tolist() == [True, False, True]
    assert gated.passes(["c", "b", "a", "new"]).tolist() == [True, False, True, False]


def test_a_task_that_was_not_judged_does_not_pass(policy: LCBPolicy) -> None:
    assert GatedPolicy(policy, [np.nan, 0.0, 1.0], 1.0).passed.tolist() == [False, True, True]


def test_where_a_task_passes_choices_are_those_of_the_policy_and_else_none(
    policy: LCBPolicy, gated: GatedPolicy
) -> None:
    tasks, context = ["a", "b", "new", "c"], np.array([[0.5], [-1.0], [0.2], [2.0]])
    plain, found = (each.choose_many(tasks, context, top=2) for each in (policy, gated))
    for before, after in zip(plain, found, strict=True):
        assert np.array_equal(before[[0, 3]], after[[0, 3]])
    assert (found.index[[1, 2]] == -1).all()
    assert np.isnan(found.mean[[1, 2]]).all()
    alone = gated.choose("b", context[1])
    assert (alone.action, alone.index) == (None, -1)
    assert np.isnan(alone.lower_bound)
    assert gated.choose("c", context[3]) == policy.choose("c", context[3])


def test_a_known_incumbent_is_what_the_others_get_with_its_own_bounds(policy: LCBPolicy) -> None:
    gated = GatedPolicy(policy, [0.01, 0.4, 0.05], 0.05, incumbent="stay")
    context = np.array([[0.5], [-1.0], [0.2]])
    found = gated.choose_many(["a", "b", "new"], context)
    for row, task in ((1, "b"), (2, "new")):
        alone = policy.choose(task, context[row], eligible=["stay"])
        assert found.index[row, 0] == 2
        assert gated.choose(task, context[row]) == alone
        assert (found.lower_bound[row, 0], found.mean[row, 0], found.sd[row, 0]) == alone[2:]


def test_an_incumbent_that_a_request_does_not_allow_is_told(policy: LCBPolicy) -> None:
    gated = GatedPolicy(policy, [1.0, 1.0, 1.0], 0.05, incumbent="stay")
    mask = np.array([[True, True, True], [True, True, False]])
    with pytest.raises(LogError, match=r"Row 8: .*'stay' is not eligible"):
        gated.choose_many(["a", "b"], np.zeros((2, 1)), eligible=mask, first_row=7)


@pytest.mark.parametrize(
    ("harm", "limit", "incumbent", "kind", "match"),
    [
        ([0.1], 0.05, None, MismatchError, "3 tasks"),
        ([0.1, 0.2, 0.3], 1.5, None, InputError, "max_harm=1.5"),
        ([0.1, 0.2, 0.3], float("nan"), None, InputError, "max_harm=nan"),
        ([0.1, 0.2, 0.3], 0.05, "up", HieropoError, "'up'"),
    ],
)
def test_a_gate_that_makes_no_sense_is_refused(
    policy: LCBPolicy, harm: Any, limit: float, incumbent: Any, kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=match):
        GatedPolicy(policy, harm, limit, incumbent)


@pytest.mark.parametrize("incumbent", [None, "stay"])
def test_a_gate_comes_back_from_disk(policy: LCBPolicy, tmp_path: Path, incumbent: Any) -> None:
    gated = GatedPolicy(policy, [0.01, np.nan, 0.05], 0.05, incumbent, ("few rows",))
    save_policy(gated, tmp_path / "policy")
    stored = load_policy(tmp_path / "policy").policy
    assert isinstance(stored, GatedPolicy)
    assert (stored.max_harm, stored.incumbent, stored.limits) == (0.05, incumbent, ("few rows",))
    assert np.array_equal(stored.harm, gated.harm, equal_nan=True)
    tasks, context = [*TASKS, "new"], np.linspace(-1, 1, 4)[:, None]
    for before, after in zip(
        gated.choose_many(tasks, context), stored.choose_many(tasks, context), strict=True
    ):
        assert np.array_equal(before, after, equal_nan=True)


def test_a_damaged_gate_is_refused_by_name(policy: LCBPolicy, gated: GatedPolicy, tmp_path: Path) -> None:
    place = save_policy(gated, tmp_path / "policy")
    raw = bytearray((place / layout.GATE).read_bytes())
    raw[len(raw) // 2] ^= 1
    (place / layout.GATE).write_bytes(bytes(raw))
    with pytest.raises(ArtifactError, match=r"gate\.arrow"):
        load_policy(place)
    save_policy(policy, place)
    assert not (place / layout.GATE).exists()


def test_decisions_say_what_is_left_to_the_incumbent(policy: LCBPolicy, gated: GatedPolicy) -> None:
    requests = pa.table({"task": ["b", "a", "new"], "x": [0.1, 0.2, 0.3]})
    (part,) = decide(gated, requests, task="task", top=2)
    rows = part.table.to_pylist()
    assert (part.requests, part.unseen, part.kept) == (3, 1, 2)
    assert [(row["row"], row["kept_incumbent"], row["action"] is None) for row in rows] == [
        (0, True, True), (1, False, False), (1, False, False), (2, True, True),
    ]  # fmt: skip
    assert rows[0]["mean"] is None
    named = GatedPolicy(policy, gated.harm, 0.05, incumbent="right")
    (part,) = decide(named, requests, task="task")
    assert part.table["action"].to_pylist()[::2] == ["right", "right"]
    assert part.table["kept_incumbent"].to_pylist() == [True, False, True]
    assert part.table["mean"].null_count == 0


def test_a_gate_without_a_list_of_actions_takes_no_incumbent_and_no_candidates_in_rows() -> None:
    moments = Moments.from_arrays(["a", "b"] * 5, np.arange(20.0).reshape(10, 2), np.arange(10.0))
    plain = LCBPolicy(condition(moments, Hierarchy(None, np.eye(2), 1.0)), Columns(("x", "y")))
    with pytest.raises(InputError, match="no list of actions"):
        GatedPolicy(plain, [0.0, 0.0], 0.05, incumbent="left")
    rows = pa.table({"task": ["a"], "r": [1], "x": [0.1], "y": [0.2]})
    with pytest.raises(InputError, match="gate needs a policy with a list of actions"):
        list(decide(GatedPolicy(plain, [0.0, 0.0], 0.05), rows, task="task", request="r"))


def test_a_gate_over_no_tasks_leaves_everything_to_the_incumbent() -> None:
    features = indicator(["left", "right"])
    prior = condition(Moments.zero(2), Hierarchy(None, np.eye(2), 1.0).oracle(np.zeros(2)))
    gated = GatedPolicy(LCBPolicy(prior, features), [], 0.05)
    assert gated.choose_many(["a", "b"], np.zeros((2, 0))).index.ravel().tolist() == [-1, -1]
