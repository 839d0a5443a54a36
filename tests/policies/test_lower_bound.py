"""Policies: bounds, choices, ties, eligible actions, unseen tasks, sampling and its propensities."""

import datetime as dt
import os
import re
import subprocess
import sys
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, norm

from hieropo._kernels import backend
from hieropo._utils.packed import pack
from hieropo.errors import (
    HieropoWarning,
    InputError,
    LogError,
    MismatchError,
    NumericalError,
    UnknownActionError,
    UnknownTaskError,
)
from hieropo.features.maps import Columns, embedding, indicator, per_action
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.posterior import condition
from hieropo.model.table import PosteriorTable
from hieropo.moments.statistics import Moments
from hieropo.policies.lower_bound import Choice, LCBPolicy, SamplingPolicy
from hieropo.rows.ids import plain
from hieropo.rows.keys import Keys


def law(table: PosteriorTable, task: Hashable) -> tuple[Any, Any]:
    """Mean and full covariance of a task, entry by entry."""
    row = table.keys.find(task)
    if row < 0:
        return table.prior.mean, table.prior.cov
    cov = np.empty((table.dim, table.dim))
    for j in range(table.dim):
        for i in range(j + 1):
            cov[i, j] = cov[j, i] = table.covs[row, j * (j + 1) // 2 + i]
    return table.means[row], cov


def table(dim: int, tasks: Sequence[Hashable], seed: int = 0, rank: int | None = None) -> PosteriorTable:
    rng = np.random.default_rng(seed)
    rank = dim if rank is None else rank
    factor = rng.standard_normal((len(tasks), dim, rank))
    keys, _ = Keys.factorize(list(tasks))
    prior_factor = rng.standard_normal((dim, dim))
    return PosteriorTable.joint(
        keys=keys,
        means=rng.standard_normal((len(tasks), dim)),
        covs=pack(factor @ factor.transpose(0, 2, 1)),
        rows=np.zeros(len(tasks)),
        prior=Gaussian(rng.standard_normal(dim), prior_factor @ prior_factor.T),
    )


def bounds_by_loop(laws: PosteriorTable, task: Hashable, phi: Any, pessimism: float) -> Any:
    mean, cov = law(laws, task)
    found = []
    for x in phi:
        center = sum(x[i] * mean[i] for i in range(laws.dim))
        var = sum(x[i] * cov[i, j] * x[j] for i in range(laws.dim) for j in range(laws.dim))
        found.append((center - pessimism * np.sqrt(max(var, 0.0)), center, np.sqrt(max(var, 0.0))))
    return np.array(found)


SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 30))


@pytest.mark.parametrize("pessimism", [0.0, 0.1, 2.5, -1.0])
@pytest.mark.parametrize(("dim", "K"), [(1, 1), (3, 12), (4, 13), (10, 10), (7, 25), (33, 5)])
def test_lower_bound_equals_a_plain_loop(dim: int, K: int, pessimism: float) -> None:
    laws = table(dim, ["a", "b"], seed=dim)
    policy = LCBPolicy(laws, pessimism=pessimism)
    phi = np.random.default_rng(1).standard_normal((K, dim))
    for task in ("a", "b", "never seen"):
        truth = bounds_by_loop(laws, task, phi, pessimism)
        scale = 1 + np.abs(truth).max()
        np.testing.assert_allclose(policy.lower_bound(task, phi), truth[:, 0], atol=1e-12 * scale, rtol=0)
        choice = policy.choose(task, phi=phi)
        assert choice.index == truth[:, 0].argmax()
        np.testing.assert_allclose(choice[2:], truth[choice.index], atol=1e-12 * scale, rtol=0)


def test_bound_mean_and_sd_are_those_of_the_task_posterior() -> None:
    rng = np.random.default_rng(3)
    moments = Moments.from_arrays(
        np.repeat([10, 20, 30], 8), rng.standard_normal((24, 3)), rng.standard_normal(24)
    )
    hierarchy = Hierarchy(hyper=Gaussian(np.ones(3), np.eye(3)), task_cov=np.eye(3), noise_var=0.5)
    posterior = condition(moments, hierarchy)
    policy = LCBPolicy(posterior, pessimism=0.7)
    phi = rng.standard_normal((6, 3))
    for task in (10, 20, 30, 99):
        mean, var = posterior.task(task).project(phi)
        np.testing.assert_allclose(policy.lower_bound(task, phi), mean - 0.7 * np.sqrt(var), atol=1e-12)


def test_lower_bound_keeps_the_shape_of_phi() -> None:
    policy = LCBPolicy(table(3, [1]))
    phi = np.random.default_rng(0).standard_normal((2, 4, 5, 3))
    found = policy.lower_bound(1, phi)
    assert found.shape == (2, 4, 5)
    assert policy.lower_bound(1, phi[0, 0, 0]).shape == ()
    assert policy.lower_bound(1, phi[1, 2, 3]) == found[1, 2, 3]
    assert policy.lower_bound(1, np.empty((0, 3))).shape == (0,)


def test_a_variance_below_zero_by_rounding_counts_as_zero() -> None:
    laws = table(6, ["a"], rank=1)
    mean, cov = law(laws, "a")
    null = np.linalg.svd(cov)[2][3:]  # directions in which the covariance is 0 up to rounding, of either sign
    phi = 1e3 * null
    bound = LCBPolicy(laws, pessimism=1.0).lower_bound("a", phi)
    np.testing.assert_allclose(bound, phi @ mean, atol=1e-3)


@given(SHAPES, st.integers(0, 40), st.integers(0, 2**16), st.sampled_from([0.6, None]), st.integers(1, 4))
def test_choose_many_is_choose_bit_for_bit(
    shape: tuple[int, int],
    n: int,
    seed: int,
    share: float | None,
    threads: int,
) -> None:
    dim, K = shape
    rng = np.random.default_rng(seed)
    policy = LCBPolicy(table(dim, list(range(5)), seed), pessimism=rng.uniform(-1, 2))
    tasks = rng.integers(0, 7, n)
    phi = rng.integers(-1, 2, (n, K, dim)).astype(float)  # many ties
    eligible = rng.random((n, K)) < (1.0 if share is None else share)
    eligible[np.arange(n), rng.integers(0, K, n)] = True
    many = policy.choose_many(tasks, phi=phi, eligible=None if share is None else eligible, threads=threads)
    for r in range(n):
        one = policy.choose(tasks[r], phi=phi[r], eligible=None if share is None else eligible[r])
        assert one == Choice(None, *(values[r, 0] for values in many))
        bound = policy.lower_bound(tasks[r], phi[r])
        assert one.index == np.where(eligible[r], bound, -np.inf).argmax()
        assert one.lower_bound == bound[one.index]


@pytest.mark.parametrize("K", [2, 5, 12, 13, 40])
def test_equal_candidates_tie_wherever_they_stand_and_the_first_eligible_wins(K: int) -> None:
    rng = np.random.default_rng(K)
    policy = LCBPolicy(table(7, ["a"]), pessimism=0.3)
    phi = np.tile(rng.standard_normal(7) / 3, (K, 1))
    assert len(set(policy.lower_bound("a", phi).tolist())) == 1
    for first in range(K):
        eligible = np.arange(K) >= first
        assert policy.choose("a", phi=phi, eligible=eligible).index == first
        ranks = policy.choose_many(["a"], phi=phi[None], eligible=eligible[None], top=K).index[0]
        assert ranks.tolist() == [*range(first, K), *[-1] * first]


def test_of_candidates_that_are_equal_but_for_rounding_the_first_wins() -> None:
    rng = np.random.default_rng(0)
    laws = table(4, ["a"])
    policy = LCBPolicy(laws, pessimism=0.3)
    phi = np.tile(rng.standard_normal(4), (1, 6, 1))
    apart = 0
    for _ in range(20):
        near = phi * (1 + 4e-16 * rng.integers(-1, 2, phi.shape))
        bound = policy.lower_bound("a", near[0])
        apart += int(bound.argmax()) > 0
        assert policy.choose("a", phi=near[0]).index == 0
        assert policy.choose_many(["a"], phi=near, top=6).index[0].tolist() == list(range(6))
    assert apart > 5


@given(SHAPES, st.integers(0, 2**16), st.integers(1, 35))
def test_top_ranks_by_bound_then_index_within_the_eligible_set(
    shape: tuple[int, int], seed: int, top: int
) -> None:
    dim, K = shape
    rng = np.random.default_rng(seed)
    laws = table(dim, ["a"], seed)
    policy = LCBPolicy(laws)
    phi = rng.integers(-1, 2, (1, K, dim)).astype(float)
    eligible = rng.random((1, K)) < 0.5
    eligible[0, rng.integers(K)] = True
    found = policy.choose_many(["a"], phi=phi, eligible=eligible, top=top)
    bound = policy.lower_bound("a", phi[0])
    order = sorted(np.flatnonzero(eligible[0]), key=lambda k: (-bound[k], k))[:top]
    padded = order + [-1] * (top - len(order))
    assert found.index[0].tolist() == padded
    np.testing.assert_array_equal(found.lower_bound[0, : len(order)], bound[order])
    assert all(np.isnan(values[0, len(order) :]).all() for values in found[1:])
    np.testing.assert_array_equal(
        found.index[:, :1], policy.choose_many(["a"], phi=phi, eligible=eligible).index
    )


def test_answers_do_not_depend_on_threads_or_on_where_pieces_of_a_batch_begin() -> None:
    rng = np.random.default_rng(5)
    n = 30_000  # several pieces
    policy = LCBPolicy(table(6, list(range(50))))
    tasks, phi = rng.integers(0, 50, n), rng.standard_normal((n, 8, 6))
    one, two, three = (policy.choose_many(tasks, phi=phi, threads=t) for t in (1, 2, 3))
    tail = policy.choose_many(tasks[12_345:], phi=phi[12_345:])
    for a, b, c, d in zip(one, two, three, tail, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
        np.testing.assert_array_equal(a[12_345:], d)


def test_read_only_strided_and_integer_inputs_give_the_same_answer() -> None:
    rng = np.random.default_rng(0)
    laws = table(4, ["a", "b"])
    phi = rng.integers(-5, 6, (3, 6, 4))
    truth = LCBPolicy(laws).choose_many(["a", "b", "c"], phi=phi.astype(float))
    for array in (laws.means, laws.covs):
        array.flags.writeable = False
    policy = LCBPolicy(laws)
    sealed = phi.astype(float)
    sealed.flags.writeable = False
    for given_phi in (
        phi,
        phi.tolist(),
        sealed,
        np.asfortranarray(sealed),
        np.repeat(sealed, 2, axis=1)[:, ::2],
    ):
        found = policy.choose_many(("a", "b", "c"), phi=given_phi)
        np.testing.assert_array_equal(found.index, truth.index)
        np.testing.assert_array_equal(found.lower_bound, truth.lower_bound)


def test_flavours_of_arrays_compile_nothing_anew(monkeypatch) -> None:
    monkeypatch.setenv("HIEROPO_BACKEND", "compiled")
    laws = table(4, ["a"])
    phi, eligible = np.ones((2, 6, 4)), np.ones((2, 6), dtype=bool)

    def ask() -> int:
        policy = LCBPolicy(laws)
        policy.choose_many(["a", "b"], phi=phi, eligible=eligible)
        policy.choose("a", phi=phi[0].tolist(), eligible=eligible[0])
        policy.lower_bound("a", phi)
        loops = backend.choice(0)
        return sum(len(loop.signatures) for loop in (loops.choose, loops.choose_one, loops.score))

    before = ask()
    phi, eligible = phi.astype(np.float32), np.asfortranarray(eligible)
    for array in (phi, eligible, laws.means, laws.covs):
        array.flags.writeable = False
    assert ask() == before


def test_features_map_makes_the_candidates() -> None:
    rng = np.random.default_rng(0)
    actions = ["mail", "call", "wait"]
    features = embedding(actions, rng.standard_normal((3, 2)), ["age", "income"])
    policy = LCBPolicy(table(features.dim, [1, 2]), features)
    context = rng.standard_normal((20_000, 2))
    tasks = rng.integers(1, 4, 20_000)
    phi = features.candidates(context)
    many = policy.choose_many(tasks, context)
    np.testing.assert_array_equal(many.index, policy.choose_many(tasks, phi=phi).index)
    for r in range(50):
        one = policy.choose(tasks[r], context[r])
        assert one == policy.choose(tasks[r], phi=phi[r])
        assert one.action == actions[many.index[r, 0]]
        allowed = policy.choose(tasks[r], context[r], eligible=["wait", "call"])
        assert allowed == policy.choose(tasks[r], context[r], eligible=[False, True, True])
        assert allowed.action in ("wait", "call")


def test_a_map_without_context_columns_needs_no_context() -> None:
    policy = LCBPolicy(table(3, [1]), indicator(["x", "y", "z"]))
    assert policy.choose(1).index == policy.choose_many([1, 1]).index[1, 0]


def test_empty_batches_are_answered() -> None:
    policy = LCBPolicy(table(3, [1]))
    found = policy.choose_many(np.array([], dtype=np.int64), phi=np.empty((0, 4, 3)), top=2)
    assert [values.shape for values in found] == [(0, 2)] * 4
    assert found.index.dtype == np.int64


# Settings


def test_level_is_the_one_sided_normal_quantile() -> None:
    laws = table(2, [1])
    assert LCBPolicy(laws).pessimism == 0.1
    assert LCBPolicy(laws, level=0.5).pessimism == 0.0
    assert LCBPolicy(laws, level=0.95).pessimism == pytest.approx(1.6448536269514722, rel=1e-15)
    policy = LCBPolicy(laws, level=0.9)
    phi = np.array([1.0, -2.0])
    mean, cov = law(laws, 1)
    marginal = norm(phi @ mean, np.sqrt(phi @ cov @ phi))
    assert marginal.sf(policy.lower_bound(1, phi)) == pytest.approx(0.9)


def test_negative_pessimism_gives_an_upper_bound() -> None:
    laws = table(3, [1])
    phi = np.random.default_rng(2).standard_normal((5, 3))
    lower, upper = (LCBPolicy(laws, pessimism=p).lower_bound(1, phi) for p in (1.0, -1.0))
    mean = LCBPolicy(laws, pessimism=0).lower_bound(1, phi)
    assert (upper > lower).all()
    np.testing.assert_allclose((upper + lower) / 2, mean, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pessimism": 1.0, "level": 0.9}, "Both pessimism=1.0 and level=0.9"),
        ({"level": 95}, r"level=95 is not a credible level in \(0, 1\). Write 95 % as level=0.95"),
        ({"level": float("nan")}, "level=nan"),
        ({"pessimism": float("inf")}, "pessimism=inf is not finite"),
        ({"unseen": "nan"}, r"unseen='nan' is not a choice .*\. Set it to \"prior\""),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LCBPolicy(table(2, [1]), **settings)


def test_a_table_or_a_feature_map_of_another_dimension_is_refused() -> None:
    laws = table(3, [1, 2])
    with pytest.raises(MismatchError, match="makes 2 features, but the posterior has dimension 3"):
        LCBPolicy(laws, indicator(["a", "b"]))
    with pytest.raises(MismatchError, match=r"packed covariances \(2, 3\)"):
        LCBPolicy(replace(laws, covs=laws.covs[:, :3]))


def test_a_posterior_made_with_another_feature_map_is_refused() -> None:
    used, other = Columns(("a", "b")), Columns(("b", "a"))
    moments = Moments.from_arrays([1, 1], np.eye(2), [0.0, 1.0], features=used.fingerprint)
    posterior = condition(moments, Hierarchy(Gaussian(np.zeros(2), np.eye(2)), np.eye(2), 1.0))
    LCBPolicy(posterior, used)
    with pytest.raises(MismatchError, match="Give the feature map with which the log was read"):
        LCBPolicy(posterior, other)
    with pytest.raises(MismatchError, match="Give the feature map with which the log was read"):
        SamplingPolicy(posterior, other, random_state=0)


def test_a_policy_is_a_value() -> None:
    policy = LCBPolicy(table(2, [1]))
    with pytest.raises(AttributeError):
        policy.pessimism = 3.0  # type: ignore[misc]


def test_repr_says_how_it_was_made() -> None:
    laws = table(2, [1, 2])
    assert repr(LCBPolicy(laws)) == ("LCBPolicy(<2 tasks, dimension 2>, None, pessimism=0.1, unseen='prior')")
    assert repr(SamplingPolicy(laws, random_state=1)) == (
        "SamplingPolicy(<2 tasks, dimension 2>, None, n_samples=1000, uniform=0.0, unseen='prior')"
    )


# Requests that cannot be answered


def test_unseen_tasks_get_the_prior_or_an_error() -> None:
    laws = table(2, [3, 5])
    phi = np.eye(2)[None]
    truth = bounds_by_loop(laws, "unseen", phi[0], 0.1)
    assert LCBPolicy(laws).choose(4, phi=phi[0]).lower_bound == pytest.approx(truth[:, 0].max())
    strict = LCBPolicy(laws, unseen="error")
    with pytest.raises(UnknownTaskError, match="Task 4 is unknown"):
        strict.choose(4, phi=phi[0])
    with pytest.raises(UnknownTaskError, match=r"Task 4 \(row 1\) is unknown"):
        strict.choose_many([3, 4], phi=phi.repeat(2, axis=0))
    with pytest.raises(UnknownTaskError, match=r"3 of type int.*of type str"):
        strict.choose("3", phi=phi[0])


def test_a_known_id_of_another_type_is_not_taken_for_a_new_task_silently() -> None:
    phi = np.eye(2)[None]
    policy = LCBPolicy(table(2, [3, 5]))
    with pytest.warns(
        HieropoWarning, match=r"Task '3' is of type str and unknown, but 3 of type int is known"
    ):
        policy.choose("3", phi=phi[0])
    with pytest.warns(HieropoWarning, match=r"Task '5' \(row 0\)"):
        policy.choose_many(["5"], phi=phi)
    with pytest.warns(HieropoWarning, match="Task 3 is of type int and unknown, but '3' of type str"):
        LCBPolicy(table(2, ["3"])).choose(3, phi=phi[0])


@pytest.mark.parametrize(
    ("known", "asked"),
    [
        ("100", " 100"), ("100", "0100"), ("100", 100.0), ("North", "north"), ("a", b"a"), (100, "100.0"),
        (True, "true"), (np.datetime64("2024-01-05", "ns"), "2024-01-05"),
        (dt.date(2024, 1, 5), "2024-01-05"), ("2024-01-05", dt.date(2024, 1, 5)), (0.5, "0.50"),
        ("2024-01-05", dt.datetime(2024, 1, 5)), (UUID(int=7), str(UUID(int=7))),
        (dt.datetime(2024, 1, 5, 10, tzinfo=dt.UTC), "2024-01-05 10:00Z"),
        (dt.datetime(2024, 1, 5, 10, tzinfo=dt.UTC), dt.datetime(2024, 1, 5, 10)),
    ],
)  # fmt: skip
def test_a_task_that_reads_as_a_known_one_is_not_answered_silently(known: Any, asked: Any) -> None:
    phi = np.eye(2)[None]
    laws = table(2, np.array([known]) if isinstance(known, np.datetime64) else [known])
    policy, shown = LCBPolicy(laws), re.escape(repr(plain(known)))
    for call in (
        lambda: policy.choose(asked, phi=phi[0]),
        lambda: policy.choose_many([asked, asked], phi=phi.repeat(2, axis=0)),
        lambda: SamplingPolicy(laws, random_state=0).choose(asked, phi=phi[0]),
    ):
        with pytest.warns(
            HieropoWarning, match=rf"Task .*unknown, but {shown} .*is known; the prior is used\. \w+"
        ):
            call()
    with pytest.raises(UnknownTaskError, match=f"among them {shown}"):
        LCBPolicy(laws, unseen="error").choose(asked, phi=phi[0])


@pytest.mark.parametrize(
    "asked", ["new", "+", "1e400", "", "9" * 40, 2.5, b"\xff", dt.date(2024, 1, 5), UUID(int=8)]
)
def test_a_task_that_reads_as_no_other_is_a_new_one(asked: Any) -> None:
    policy = LCBPolicy(table(2, ["100", 7, "North"]))
    assert policy.choose(asked, phi=np.eye(2)) == policy.choose("another", phi=np.eye(2))


@pytest.mark.parametrize("null", [None, float("nan"), np.datetime64("NaT")])
def test_null_tasks_are_refused(null: Any) -> None:
    policy = LCBPolicy(table(2, ["a"]))
    with pytest.raises(LogError, match="task of a request is"):
        policy.choose(null, phi=np.eye(2))
    with pytest.raises(LogError, match=r"[Rr]ow 1"):
        policy.choose_many(["a", null], phi=np.zeros((2, 2, 2)))


@pytest.mark.parametrize("kind", [LCBPolicy, SamplingPolicy])
@pytest.mark.parametrize(
    ("task", "bad", "unseen", "error"),
    [("b", 0.0, "error", UnknownTaskError), (None, 0.0, "prior", LogError), (0, 0.0, "prior", HieropoWarning),
     ("a", np.nan, "prior", LogError), ("a", 1e308, "prior", NumericalError)],
)  # fmt: skip
def test_rows_are_counted_from_the_first_row(
    kind: Any, task: Any, bad: float, unseen: str, error: type[Exception]
) -> None:
    settings = {"random_state": 0} if kind is SamplingPolicy else {}
    policy = kind(table(2, ["a", "0"]), unseen=unseen, **settings)
    phi = np.zeros((2, 2, 2))
    phi[1] = bad
    with pytest.raises(error, match=r"[Rr]ow 1001\b"):
        policy.choose_many(["a", task], phi=phi, first_row=1000)


@pytest.mark.parametrize("kind", [LCBPolicy, SamplingPolicy])
def test_rows_of_contexts_are_counted_from_the_first_row(kind: Any) -> None:
    settings = {"random_state": 0} if kind is SamplingPolicy else {}
    policy = kind(table(2, ["a"]), per_action(["go"], ["x"]), **settings)
    with pytest.raises(LogError, match="Column 'x', row 1001: nan"):
        policy.choose_many(["a", "a"], [[0.0], [np.nan]], first_row=1000)


def test_a_bare_string_is_not_a_list_of_tasks() -> None:
    with pytest.raises(InputError, match=r"such as \['ab'\]"):
        LCBPolicy(table(2, ["a", "b"])).choose_many("ab", phi=np.zeros((2, 2, 2)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("K", [3, 14])
def test_features_that_are_not_finite_are_named(value: float, K: int) -> None:
    features = per_action([f"act{k}" for k in range(K)], [])
    policy = LCBPolicy(table(K, ["a"]), features)
    phi = np.zeros((4, K, K))
    phi[2, K - 1, 1] = value
    place = rf"candidate {K - 1} \(action 'act{K - 1}'\): feature 1 \('act1'\) is {value}"
    with pytest.raises(LogError, match=f"Row 2, {place}"):
        policy.choose_many(["a"] * 4, phi=phi)
    with pytest.raises(LogError, match=f"request of task 'a', {place}"):
        policy.choose("a", phi=phi[2])
    with pytest.raises(LogError, match=place):
        policy.lower_bound("a", phi[2])
    with pytest.raises(LogError, match=rf"Task 'a', candidate {3 * K - 1}: feature 1"):
        policy.lower_bound("a", phi)
    others = np.ones((4, K), dtype=bool)
    others[:, K - 1] = False
    assert (policy.choose_many(["a"] * 4, phi=phi, eligible=others).index == 0).all()


def test_of_several_bad_rows_the_first_is_named_whatever_the_threads() -> None:
    n = 60_000
    policy = LCBPolicy(table(4, ["a"]))
    phi = np.ones((n, 5, 4))
    phi[[31_000, 59_999], 0, 0] = np.nan
    for threads in (1, 3):
        with pytest.raises(LogError, match="Row 31000, candidate 0: feature 0 is nan"):
            policy.choose_many(["a"] * n, phi=phi, threads=threads)


def test_scores_that_overflow_are_refused() -> None:
    with pytest.raises(NumericalError, match=r"overflows; features reach 1e\+200"):
        LCBPolicy(table(2, ["a"])).choose("a", phi=[[1.0, 2.0], [1e200, 1.0]])


def test_an_empty_eligible_set_is_refused() -> None:
    policy = LCBPolicy(table(2, [1]), indicator(["x", "y"]))
    phi = np.zeros((3, 2, 2))
    eligible = np.ones((3, 2), dtype=bool)
    eligible[1] = False
    with pytest.raises(LogError, match="Row 1 has no eligible action among 2 candidates"):
        policy.choose_many([1, 1, 1], phi=phi, eligible=eligible)
    for empty in ([], [False, False], np.zeros(2, dtype=bool)):
        with pytest.raises(LogError, match="request of task 1 has no eligible action"):
            policy.choose(1, eligible=empty)
        with pytest.raises(LogError, match="request of task 1 has no eligible action"):
            SamplingPolicy(table(2, [1]), policy.features, random_state=0).choose(1, eligible=empty)
    with pytest.raises(LogError, match="no eligible action among 0 candidates"):
        LCBPolicy(table(2, [1])).choose(1, phi=np.empty((0, 2)))


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        ({"phi": np.zeros((3, 4))}, MismatchError, r"phi has shape \(3, 4\), and this policy needs \(K, 2\)"),
        ({"phi": np.zeros(2)}, MismatchError, r"phi has shape \(2,\)"),
        ({"phi": [["1", "2"], ["3", "4"]]}, InputError, "phi holds values of type <U1; numbers are needed"),
        ({"phi": [[1.0, None], [2.0, 3.0]]}, InputError, "phi holds values of type object"),
        ({"phi": [[1.0, 2.0], [3.0]]}, InputError, "phi is not an array of numbers"),
        ({"phi": np.zeros((3, 2))}, MismatchError, "3 candidates, but the policy's feature map lists 2"),
        ({"phi": np.zeros((2, 2)), "context": [1.0]}, InputError, "Both context and phi"),
        ({"context": [1.0]}, LogError, "context has shape"),
        ({"eligible": [True]}, InputError, r"eligible has shape \(1,\), but the request has 2 candidates"),
        ({"eligible": ["z"]}, UnknownActionError, "'z'"),
        ({"eligible": "x"}, InputError, "eligible='x' is not a mask or a sequence of action ids"),
        ({"eligible": 1}, InputError, "eligible=1 is not a mask"),
    ],
)
def test_requests_that_do_not_fit_are_refused(
    request_: dict[str, Any], error: type[Exception], message: str
) -> None:
    policy = LCBPolicy(table(2, [1]), indicator(["x", "y"]))
    with pytest.raises(error, match=message):
        policy.choose(1, **request_)


def test_policies_without_actions_say_what_they_need() -> None:
    bare, columns = LCBPolicy(table(2, [1])), LCBPolicy(table(2, [1]), Columns(("a", "b")))
    with pytest.raises(InputError, match=r"has no feature map.*phi=\.\.\."):
        bare.choose(1, [1.0, 2.0])
    with pytest.raises(InputError, match="a feature map without a list of actions"):
        columns.choose_many([1], [[1.0, 2.0]])
    with pytest.raises(InputError, match=r"eligible=\['x'\] is not a boolean mask"):
        bare.choose(1, phi=np.eye(2), eligible=["x"])
    assert columns.choose(1, phi=np.eye(2)).action is None


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        ({"phi": np.zeros((3, 2, 2))}, InputError, "phi has 3 requests, but 2 tasks"),
        ({"phi": np.zeros((2, 2))}, MismatchError, r"this policy needs \(n, K, 2\)"),
        ({"context": np.zeros((2, 0)), "phi": np.zeros((2, 2, 2))}, InputError, "Both context and phi"),
        ({"context": np.zeros((3, 0))}, InputError, "3 contexts were given for 2 tasks"),
        ({"eligible": np.ones((2, 2))}, InputError, r"shape \(2, 2\) and type float64. Give booleans"),
        ({"eligible": np.ones(2, dtype=bool)}, InputError, r"booleans of shape \(2, 2\)"),
        ({"top": 0}, InputError, "top=0"),
    ],
)
def test_batches_that_do_not_fit_are_refused(
    request_: dict[str, Any], error: type[Exception], message: str
) -> None:
    policy = LCBPolicy(table(2, [1]), indicator(["x", "y"]))
    with pytest.raises(error, match=message):
        policy.choose_many([1, 1], **request_)


def test_a_context_that_is_not_finite_is_named_by_its_row_in_the_batch() -> None:
    features = per_action(["x", "y"], ["age"])
    policy = LCBPolicy(table(4, [1]), features)
    context = np.zeros((70_000, 1))
    context[69_000] = np.nan
    with pytest.raises(LogError, match="'age', row 69000"):
        policy.choose_many(np.ones(70_000, dtype=int), context)


# Sampling


def sampling(seed: int | np.random.Generator = 0, **settings: Any) -> SamplingPolicy:
    return SamplingPolicy(table(3, ["a", "b"], seed=4), **{"random_state": seed, **settings})


def test_propensities_sum_to_one_and_stay_in_the_eligible_set() -> None:
    rng = np.random.default_rng(0)
    for uniform in (0.0, 0.2, 1.0):
        policy = sampling(uniform=uniform, n_samples=200)
        for _ in range(20):
            phi = rng.standard_normal((6, 3))
            eligible = rng.random(6) < 0.5
            eligible[rng.integers(6)] = True
            choice = policy.choose("a", phi=phi, eligible=eligible)
            assert choice.propensities.sum() == pytest.approx(1.0, abs=1e-12)
            assert not choice.propensities[~eligible].any()
            assert choice.propensity == choice.propensities[choice.index] > 0
            assert eligible[choice.index]
            if uniform:
                assert (choice.propensities[eligible] >= uniform / eligible.sum()).all()


def test_propensities_are_the_shares_of_samples_in_which_an_action_wins() -> None:
    laws = table(3, ["a"], seed=2)
    phi = np.random.default_rng(7).standard_normal((5, 3))
    found = SamplingPolicy(laws, random_state=11, n_samples=400).choose("a", phi=phi).propensities
    thetas = Gaussian(*law(laws, "a")).sample(np.random.default_rng(11), 400)
    wins = np.bincount([int(np.argmax([x @ theta for x in phi])) for theta in thetas], minlength=5)
    np.testing.assert_array_equal(found, wins / 400)
    exact = SamplingPolicy(laws, random_state=1, n_samples=200_000).choose("a", phi=phi).propensities
    np.testing.assert_allclose(found, exact, atol=4 * 0.5 / np.sqrt(400))


def test_actions_are_drawn_with_the_propensities_reported() -> None:
    phi = np.random.default_rng(1).standard_normal((4, 3))
    policy = sampling(seed=3, n_samples=50, uniform=0.1)
    drawn, expected = np.zeros(4), np.zeros(4)
    for _ in range(3000):
        choice = policy.choose("a", phi=phi)
        drawn[choice.index] += 1
        expected += choice.propensities
    assert chisquare(drawn, expected).pvalue > 0.01


def test_inverse_propensity_estimates_are_unbiased_where_every_action_has_a_share() -> None:
    rewards = np.array([1.0, -2.0, 0.5, 3.0])
    target = np.array([0.1, 0.2, 0.3, 0.4])
    phi = np.random.default_rng(1).standard_normal((4, 3))
    choices = sampling(seed=8, n_samples=20, uniform=0.3).choose_many(
        ["a"] * 4000, phi=np.tile(phi, (4000, 1, 1))
    )
    values = target[choices.index] * rewards[choices.index] / choices.propensity
    error = (values.mean() - target @ rewards) / (values.std() / np.sqrt(values.size))
    assert abs(error) < 3


def test_one_candidate_is_drawn_with_certainty() -> None:
    choice = sampling().choose("a", phi=[[1.0, 0.0, 0.0]])
    assert (choice.index, choice.propensity) == (0, 1.0)


@pytest.mark.parametrize("K", [2, 9, 30])
def test_ties_between_samples_go_to_the_first_eligible(K: int) -> None:
    phi = np.tile([0.3, -1.0, 0.7], (K, 1))
    eligible = np.arange(K) > 0
    choice = sampling().choose("a", phi=phi, eligible=eligible)
    assert (choice.index, choice.propensity) == (1, 1.0)


def test_the_same_random_state_gives_the_same_choices_alone_and_in_batches() -> None:
    rng = np.random.default_rng(0)
    tasks = ["a", "b", "unseen", "a"] * 5
    phi = rng.standard_normal((20, 6, 3))
    eligible = rng.random((20, 6)) < 0.7
    eligible[:, 0] = True
    settings = {"n_samples": 64, "uniform": 0.2}
    many = sampling(5, **settings).choose_many(tasks, phi=phi, eligible=eligible)
    again = sampling(np.random.default_rng(5), **settings).choose_many(tasks, phi=phi, eligible=eligible)
    single = sampling(5, **settings)
    for r, task in enumerate(tasks):
        one = single.choose(task, phi=phi[r], eligible=eligible[r])
        assert (one.index, one.propensity) == (many.index[r], many.propensity[r])
        np.testing.assert_array_equal(one.propensities, many.propensities[r])
    for a, b in zip(many, again, strict=True):
        np.testing.assert_array_equal(a, b)
    other = sampling(6, **settings).choose_many(tasks, phi=phi, eligible=eligible)
    assert (other.propensities != many.propensities).any()


def test_a_certain_posterior_is_exploited() -> None:
    laws = table(3, ["a"], rank=0)
    phi = np.random.default_rng(0).standard_normal((5, 3))
    choice = SamplingPolicy(laws, random_state=0).choose("a", phi=phi)
    assert choice.propensity == 1.0
    assert choice.index == LCBPolicy(laws).choose("a", phi=phi).index


def test_sampling_names_actions_and_reads_contexts() -> None:
    features = per_action(["x", "y"], ["age"])
    laws = table(4, [1], seed=9)
    choice = SamplingPolicy(laws, features, random_state=0).choose(1, [0.5])
    assert choice.action == features.actions[choice.index]
    many = SamplingPolicy(laws, features, random_state=0).choose_many([1], [[0.5]])
    assert many.index[0] == choice.index
    assert many.propensities.shape == (1, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"random_state": None}, "random_state=None is not a seed.*integer of at least 0"),
        ({"random_state": True}, "random_state=True"),
        ({"random_state": -1}, "random_state=-1"),
        ({"n_samples": 0}, "n_samples=0"),
        ({"uniform": 1.5}, "uniform=1.5 is not in"),
    ],
)
def test_sampling_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sampling(**settings)


def test_sampling_refuses_what_it_cannot_score() -> None:
    policy = SamplingPolicy(table(3, ["a"]), random_state=0, unseen="error")
    with pytest.raises(UnknownTaskError, match="'b'"):
        policy.choose("b", phi=np.eye(3))
    with pytest.raises(LogError, match="Row 1, candidate 2: feature 0 is nan"):
        policy.choose_many(["a", "a"], phi=[np.eye(3), np.diag([1.0, 1.0, np.nan])[:, ::-1]])


# Where threads meet the loops

CONCURRENT = """
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from hieropo.model.gaussian import Gaussian
from hieropo.model.table import PosteriorTable
from hieropo.rows.keys import Keys
from hieropo.policies.lower_bound import LCBPolicy
d, m = 5, 40
rng = np.random.default_rng(0)
covs = np.zeros((m, 15))
covs[:, [0, 2, 5, 9, 14]] = 1.0
prior = Gaussian(np.zeros(d), np.eye(d))
table = PosteriorTable.joint(Keys(np.arange(m)), rng.standard_normal((m, d)), covs, np.zeros(m), prior)
policy = LCBPolicy(table)
phi = rng.standard_normal((400, 7, d))
tasks = rng.integers(0, m, 400)
def work(start):  # every thread meets the loops before they are compiled or loaded
    one = [policy.choose(int(tasks[r]), phi=phi[r]).index for r in range(start, 400, 8)]
    return one, policy.choose_many(tasks, phi=phi, threads=2).index[start::8, 0].tolist()
with ThreadPoolExecutor(8) as pool:
    answers = list(pool.map(work, range(8)))
assert all(one == many for one, many in answers)
print("equal")
"""


@pytest.mark.slow
def test_many_threads_may_meet_the_loops_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONCURRENT],
        env={**os.environ, "HIEROPO_BACKEND": "compiled"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "equal"), done.stderr


@pytest.mark.slow
def test_threads_share_a_policy() -> None:
    rng = np.random.default_rng(0)
    policy = LCBPolicy(table(5, list(range(30))))
    tasks, phi = rng.integers(0, 30, 3000), rng.standard_normal((3000, 11, 5))
    serial = [policy.choose(int(task), phi=x) for task, x in zip(tasks, phi, strict=True)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda r: policy.choose(int(tasks[r]), phi=phi[r]), range(3000)))
    assert found == serial


def test_policies_load_numba_only_when_they_score() -> None:
    code = "import sys, hieropo.policies.lower_bound; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
