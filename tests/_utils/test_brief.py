"""The repr of every public object is one short line that a person can read."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import pytest

import hieropo as h
from hieropo._utils.brief import brief

PHI = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])


@dataclass(frozen=True)
class Value:
    number: float
    array: Any = None
    text: str = ""
    many: tuple[Any, ...] = ()

    __repr__ = brief


class Pair(NamedTuple):
    left: Any
    right: Any

    __repr__ = brief


def test_fields_at_their_default_are_left_out() -> None:
    assert repr(Value(1 / 3)) == "Value(number=0.333333)"
    assert repr(Value(2.0, text="a")) == "Value(number=2, text='a')"
    assert repr(Value(np.float64(2.0), text=np.str_("a"))) == "Value(number=2, text='a')"


def test_large_values_are_shortened() -> None:
    assert (
        repr(Pair(np.array([1.0, 0.25]), np.zeros((30, 2)))) == "Pair(left=[1, 0.25], right=<30 x 2 float64>)"
    )
    assert repr(Value(0.0, many=tuple(range(100)))) == "Value(number=0, many=(0, 1, 2, 3, ... 96 more))"
    assert repr(Value(0.0, many=(Value(1.0, "a" * 90),) * 3)) == "Value(number=0, many=<3 Value>)"
    assert repr(Pair("a" * 200, {k: k for k in range(99)})) == f"Pair(left='{'a' * 96}...', right=<99 keys>)"
    assert repr(Value(1.0, "a" * 90, "b" * 90, ("c" * 90,))).endswith("b', ...)")


def objects() -> dict[str, Any]:
    log = files("hieropo.data") / "thornton.parquet"
    columns = {"task": "villnum", "action": "incentive", "reward": "reward", "pscore": "pscore"}
    learner = h.HierOPO().fit(log, **columns, context=["distvct"])
    evaluation = learner.evaluate(log)
    moments = h.Moments.from_arrays(["a", "a", "b"], PHI, [1.0, 0.2, 0.4])
    level = h.Level(np.eye(2), {"a": "x", "b": "x"}, "group")
    hierarchy = h.Hierarchy(h.Gaussian(np.zeros(2), np.eye(2)), np.eye(2), 0.25, (level,))
    posterior = h.condition(moments, hierarchy)
    policy = h.LCBPolicy(posterior)
    two_levels = h.condition(moments, h.Hierarchy(h.Gaussian(np.zeros(2), np.eye(2)), np.eye(2), 0.25))
    sampling = h.SamplingPolicy(posterior, random_state=0)
    parts = ("model", "claim", "comparisons", "randomisation", "keys", "checks")
    return {
        **{name: value for name, value in vars(learner).items() if name.endswith("_")},
        **{name: getattr(evaluation, name) for name in parts},
        "estimate": evaluation.estimate("DR"),
        "learner": learner, "summary": learner.summary(), "evaluation": evaluation,
        "gate": evaluation.gate(), "moments": moments, "hierarchy": hierarchy, "level": level, "posterior": posterior,
        "policy": policy, "gaussian": posterior.task("a"), "table": posterior.table(), "sampling": sampling,
        "choice": policy.choose("a", phi=PHI), "choices": policy.choose_many(["a"], phi=PHI[None]),
        "sampled": sampling.choose_many(["a"], phi=PHI[None]), "metadata": h.Metadata(["a", "b"], [[1.0], [2.0]]),
        "columns": h.Columns(("a", "b")), "indicator": h.indicator(["a"]),
        "embedding": h.embedding(["a"], [[1.0, 2.0]]),
        "accumulator": h.Accumulator(2), "log moments": h.LogMoments.of(log, **columns), "log": h.open_log(log),
        "filtered": h.open_log(log, filter="distvct < 2"), "examination": h.examine(log, **columns),
        "query": h.sql("select 1", ":memory:"), "bounds": h.bounds(two_levels), "assumption": h.assumptions(two_levels),
        "estimated": h.estimate(h.Moments.from_arrays(list("abcabcabc") * 3, np.tile(PHI, (9, 1)), range(27))),
    }  # fmt: skip


@pytest.fixture(scope="module")
def public() -> dict[str, Any]:
    return objects()


@pytest.mark.slow
def test_public_objects_have_one_readable_line(public: dict[str, Any]) -> None:
    plain = {name: value for name, value in public.items() if type(value) is not tuple}
    texts = {name: repr(value) for name, value in plain.items()}
    texts |= {
        f"{name}[0]": repr(value[0]) for name, value in public.items() if type(value) is tuple and value
    }
    bad = {
        name: text
        for name, text in texts.items()
        if len(text) > 360 or "\n" in text or " object at 0x" in text or "array(" in text
    }
    assert not bad
    assert texts["log"].startswith("<Parquet file ")
    assert texts["log"].endswith("thornton.parquet': 2,825 rows, 8 columns>")
    assert texts["roles_"] == (
        "Roles(task='villnum', action='incentive', reward='reward', pscore='pscore', context=('distvct',))"
    )
