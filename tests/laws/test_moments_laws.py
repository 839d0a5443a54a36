"""The laws of the moments: a commutative group of sums, blind to how the rows came."""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Array, id_column, seeds, task_ids

from hieropo._utils.packed import packed_size
from hieropo.errors import HieropoError, InputError, LogError, MismatchError, NumericalError
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.posterior import condition
from hieropo.moments.accumulation import Accumulator
from hieropo.moments.statistics import Moments
from hieropo.rows.columns import RowWeights

ROUNDING = 1e-12


@dataclass(frozen=True)
class Rows:
    """Some rows of a log."""

    ids: tuple[Hashable, ...]
    task: list[Hashable]
    phi: Array
    reward: Array
    weight: Array | None
    precision: Array | None = None
    sampling: Array | None = None

    def weights(self, at: Any = slice(None)) -> RowWeights:
        return RowWeights(self.weight, self.precision, self.sampling).some(at)

    def moments(self, at: Any = slice(None), features: str | None = None) -> Moments:
        task = [self.task[t] for t in np.arange(len(self.task))[at]]
        if not task:
            return Moments.zero(self.phi.shape[1], features=features)
        weights = self.weights(at)._asdict()
        return Moments.from_arrays(
            id_column(task), self.phi[at], self.reward[at], **weights, features=features
        )


@st.composite
def logs(draw: st.DrawFn, *, weighted: bool | None = None) -> Rows:
    """0 to 40 rows of up to six tasks; dyadic numbers, so that every sum of them is exact."""
    ids = draw(task_ids)
    dim, n = draw(st.integers(1, 5)), draw(st.integers(0, 40))
    rng = np.random.default_rng(draw(seeds))
    with_weights = draw(st.booleans()) if weighted is None else weighted
    with_precisions, with_samples = draw(st.booleans()), draw(st.booleans())
    return Rows(
        ids=ids,
        task=[ids[i] for i in rng.integers(0, len(ids), n)],
        phi=rng.integers(-64, 65, (n, dim)) / 16,
        reward=rng.integers(-64, 65, n) / 16,
        weight=rng.integers(1, 9, n) / 4 if with_weights else None,
        precision=2.0 ** rng.integers(-2, 3, n) if with_weights and with_precisions else None,
        sampling=rng.integers(1, 9, n) / 2 if with_weights and with_samples else None,
    )


def by_task(moments: Moments) -> dict[Hashable, tuple[Any, ...]]:
    """What is stored of each task, whatever their order."""
    return {
        s: (
            moments.sums[i].tolist(),
            float(moments.rows[i]),
            round(float(moments.log_precision[i]), 9) + 0.0,
            None if moments.squares is None else moments.squares[i].tolist(),
        )
        for i, s in enumerate(moments.keys.values.tolist())
    }


def nothing_of(stored: tuple[Any, ...]) -> tuple[Any, ...]:
    """What is stored of a task without rows."""
    none = [0.0] * len(stored[0])
    return none, 0.0, 0.0, None if stored[3] is None else none


def assert_equal(one: Moments, other: Moments) -> None:
    assert by_task(one) == by_task(other)
    assert one.allclose(other)
    assert one.n_rows == other.n_rows


# What they are


@given(logs())
def test_they_are_the_sums_of_their_definition(rows: Rows) -> None:
    moments, dim = rows.moments(), rows.phi.shape[1]
    assert moments.dim == dim
    assert moments.n_rows == rows.weights().counts(len(rows.task)).sum()
    assert set(moments.tasks.tolist()) == set(rows.task)
    for i, s in enumerate(moments.keys.values.tolist()):
        own = [t for t, other in enumerate(rows.task) if other == s]
        c, v, q = (
            np.ones(len(own)) if each is None else each[own]
            for each in (rows.weight, rows.precision, rows.sampling)
        )
        weight = c * v * q
        z = np.column_stack([rows.phi[own], rows.reward[own], np.ones(len(own))])
        full = z.T @ (weight[:, None] * z)
        packed = [full[k, j] for j in range(dim + 2) for k in range(j + 1)]
        np.testing.assert_array_equal(moments.sums[i], packed)
        np.testing.assert_array_equal(moments.gram(s), full[:dim, :dim])
        np.testing.assert_array_equal(moments.cross(s), full[:dim, dim])
        assert moments.rows[i] == (c * q).sum()
        assert moments.log_precision[i] == pytest.approx((c * q * np.log(v)).sum(), abs=1e-12)
        if rows.sampling is not None:
            assert moments.squares is not None
            full = z.T @ ((c * (q * v) ** 2)[:, None] * z)
            np.testing.assert_array_equal(
                moments.squares[i], [full[k, j] for j in range(dim + 2) for k in range(j + 1)]
            )


@given(logs())
def test_they_are_values(rows: Rows) -> None:
    moments = rows.moments()
    for array in (moments.sums, moments.rows, moments.log_precision, moments.tasks):
        assert not array.flags.writeable
    before = by_task(moments)
    _ = moments + moments
    _ = moments - moments
    _ = moments.scale(0.5)
    assert by_task(moments) == before


# A commutative group


@given(logs(), seeds)
def test_any_split_in_any_order_gives_equal_moments(rows: Rows, seed: int) -> None:
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(rows.task))
    cuts = np.sort(rng.integers(0, len(order) + 1, rng.integers(0, 5)))
    parts = [rows.moments(at) for at in np.split(order, cuts)]
    total = Moments.zero(rows.phi.shape[1])
    for part in parts:
        total = total + part
    assert_equal(total, rows.moments())


@given(logs(), seeds)
def test_an_accumulator_gives_the_same(rows: Rows, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.integers(0, len(rows.task) + 1, 3))
    accumulator = Accumulator(rows.phi.shape[1])
    for at in np.split(np.arange(len(rows.task)), cuts):
        if at.size:
            accumulator.add(
                id_column([rows.task[t] for t in at]), rows.phi[at], rows.reward[at], *rows.weights(at)
            )
    assert_equal(accumulator.moments(), rows.moments())


@given(st.integers(0, 3), seeds)
def test_any_split_of_any_numbers_is_equal_to_rounding(exponent: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, dim = 60, 4
    rows = Rows(
        (),
        rng.integers(0, 4, n).tolist(),
        10.0**exponent * rng.standard_normal((n, dim)),
        rng.random(n),
        None,
    )
    order = rng.permutation(n)
    parts = [rows.moments(at) for at in np.split(order, 4)]
    whole, summed = rows.moments(), parts[3] + (parts[1] + parts[0]) + parts[2]
    assert summed.allclose(whole)
    for s in whole.keys.values.tolist():
        size = np.abs(whole.gram(s)).max()
        assert np.abs(summed.gram(s) - whole.gram(s)).max() <= ROUNDING * size


@given(logs(), seeds)
def test_plus_commutes_associates_and_has_an_inverse(rows: Rows, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b, c = (rows.moments(rng.random(len(rows.task)) < 0.5) for _ in range(3))
    zero = Moments.zero(rows.phi.shape[1])
    assert_equal(a + b, b + a)
    assert_equal((a + b) + c, a + (b + c))
    assert_equal(a + zero, a)
    assert_equal(zero + a, a)
    assert_equal(a - zero, a)
    nothing = a - a
    assert not nothing.sums.any()
    assert not nothing.rows.any()
    assert np.abs(nothing.log_precision).max(initial=0.0) == 0.0
    assert nothing.n_rows == 0
    for s, stored in by_task((a + b) - b).items():
        assert stored == by_task(a).get(s, nothing_of(stored))


@given(seeds)
def test_a_task_whose_rows_are_all_taken_away_leaves_no_rounding_behind(seed: int) -> None:
    rng = np.random.default_rng(seed)
    phi, reward, weight = rng.standard_normal((9, 3)), rng.standard_normal(9), rng.uniform(0.1, 3.0, 9)
    task = np.array(["stays"] * 4 + ["goes"] * 5)

    def part(at: Array) -> Moments:
        return Moments.from_arrays(task[at], phi[at], reward[at], weight[at], precision=weight[::-1][at])

    everything = part(rng.permutation(9))
    for row in rng.permutation(np.arange(4, 9)):
        everything = everything - part(np.array([row]))
    sums, rows, log_precision, _ = by_task(everything)["goes"]
    assert not any(sums)
    assert rows == 0
    assert log_precision == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_rows_that_are_left_have_sums_of_squares_that_rows_can_have(seed: int) -> None:
    """Rewards that are mostly zero: where those taken away hold all that are not, rounding is left of their squares."""
    rng = np.random.default_rng(seed)
    n = 400
    task, part = rng.integers(20, size=n), rng.integers(4, size=n)
    phi = np.eye(3)[rng.integers(3, size=n)] * rng.normal(size=(n, 1))
    reward = np.where((part > 0) & (rng.random(n) < 0.3), rng.gamma(2.0, 10.0, size=n), 0.0)

    def of(rows: Array) -> Moments:
        return Moments.from_arrays(task[rows], phi[rows], reward[rows])

    left, kept = of(part >= 0), np.ones(n, dtype=bool)
    for k in rng.permutation([1, 2, 3]):
        left, kept = left - of(part == k), kept & (part != k)
        assert (left.sums[:, [packed_size(j + 1) - 1 for j in range(5)]] >= 0).all()
    near = of(kept).covering(left.keys).select(left.tasks)
    np.testing.assert_allclose(left.sums, near.sums, atol=1e-9 * np.square(reward).sum())
    condition(left, Hierarchy(None, np.eye(3), 1.0))


@given(logs())
def test_plus_keeps_the_union_of_tasks(rows: Rows) -> None:
    half = len(rows.task) // 2
    a, b = rows.moments(slice(None, half)), rows.moments(slice(half, None))
    ids = (a + b).tasks.tolist()
    assert len(ids) == len(set(ids))
    assert set(ids) == set(rows.task)
    # A task whose rows were taken away is still a task.
    assert set((a - a).tasks.tolist()) == set(a.tasks.tolist())


@given(logs(weighted=False), st.integers(1, 4))
def test_a_weight_of_k_is_k_repetitions(rows: Rows, k: int) -> None:
    repeated = Rows(rows.ids, rows.task * k, np.tile(rows.phi, (k, 1)), np.tile(rows.reward, k), None)
    weighted = Rows(rows.ids, rows.task, rows.phi, rows.reward, np.full(len(rows.task), float(k)))
    assert_equal(repeated.moments(), weighted.moments())


@given(logs(weighted=True))
def test_the_log_twice_with_half_the_sampling_weight_has_the_same_sums(rows: Rows) -> None:
    q = np.ones(len(rows.task)) if rows.sampling is None else rows.sampling
    assert rows.weight is not None
    precision = None if rows.precision is None else np.tile(rows.precision, 2)
    once = Rows(rows.ids, rows.task, rows.phi, rows.reward, rows.weight, rows.precision, q)
    phi, reward, weight = np.tile(rows.phi, (2, 1)), np.tile(rows.reward, 2), np.tile(rows.weight, 2)
    twice = Rows(rows.ids, rows.task * 2, phi, reward, weight, precision, np.tile(q / 2, 2))
    for (sums, n, logs_, squares), other in zip(
        by_task(once.moments()).values(), by_task(twice.moments()).values(), strict=True
    ):
        assert (sums, n, logs_) == other[:3]
        np.testing.assert_array_equal(squares, 2 * np.asarray(other[3]))


@given(logs(weighted=True), seeds)
def test_a_row_of_weight_zero_counts_as_absent(rows: Rows, seed: int) -> None:
    absent = np.random.default_rng(seed).random(len(rows.task)) < 0.5
    assert rows.weight is not None
    zeroed = replace(rows, weight=np.where(absent, 0.0, rows.weight))
    seen = by_task(rows.moments(~absent))
    for s, stored in by_task(zeroed.moments()).items():
        assert stored == seen.get(s, nothing_of(stored))


@given(logs(), st.sampled_from([0.25, 0.5, 1.0, 2.0]), st.sampled_from([0.5, 1.0, 4.0]))
def test_scaling_is_linear(rows: Rows, c: float, e: float) -> None:
    moments = rows.moments()
    half = len(rows.task) // 2
    a, b = rows.moments(slice(None, half)), rows.moments(slice(half, None))
    for one, other in [
        (moments.scale(c), a.scale(c) + b.scale(c)),
        (moments.scale(c).scale(e), moments.scale(c * e)),
        (moments.scale(1.0), moments),
    ]:
        assert_equal(one, other)
    np.testing.assert_array_equal(moments.scale(c).sums, c * moments.sums)
    np.testing.assert_array_equal(moments.scale(c).rows, c * moments.rows)


@pytest.mark.parametrize("factor", [-1.0, 0.0, np.nan, np.inf])
def test_only_a_positive_finite_factor_scales(factor: float) -> None:
    with pytest.raises(InputError, match=r"scale|factor|discount"):
        Moments.from_arrays(["a"], np.ones((1, 2)), [1.0]).scale(factor)


@given(logs(), seeds)
def test_select_keeps_what_is_asked_for(rows: Rows, seed: int) -> None:
    moments = rows.moments()
    rng = np.random.default_rng(seed)
    some = [s for s in moments.keys.values.tolist() if rng.random() < 0.5]
    part = moments.select(some)
    assert by_task(part) == {s: stored for s, stored in by_task(moments).items() if s in some}
    counts = rows.weights().counts(len(rows.task))
    assert part.n_rows == sum(c for s, c in zip(rows.task, counts.tolist(), strict=True) if s in some)


def test_select_names_a_task_that_is_not_there() -> None:
    with pytest.raises(HieropoError, match="nobody"):
        Moments.from_arrays(["a"], np.ones((1, 2)), [1.0]).select(["nobody"])


def test_select_gives_each_task_once() -> None:
    moments = Moments.from_arrays(["a", "b"], np.ones((2, 1)), [1.0, 2.0])
    try:
        twice = moments.select(["a", "b", "a"])
    except InputError:
        return
    assert twice.tasks.tolist() == ["a", "b"]
    assert twice.n_rows == 2


# What does not belong together


def test_moments_of_unlike_feature_maps_refuse() -> None:
    one = Moments.from_arrays(["a"], np.ones((1, 2)), [1.0], features="f00d")
    other = Moments.from_arrays(["a"], np.ones((1, 2)), [1.0], features="beef")
    wide = Moments.from_arrays(["a"], np.ones((1, 3)), [1.0], features="f00d")
    for unlike in (other, wide, Moments.zero(2, features="beef"), Moments.zero(3)):
        with pytest.raises(MismatchError):
            one + unlike
        with pytest.raises(MismatchError):
            one - unlike
    assert (one + one).features == "f00d"
    assert (one - one).features == "f00d"
    assert one.scale(0.5).features == "f00d"


# Ids


@pytest.mark.parametrize(
    "ids",
    [
        [3, 1, 3],
        ["b", "a", "b"],
        [1, "1", 1],
        np.array([2**63 + 1, 5, 2**63 + 1], dtype=np.uint64),
        np.array(["2024-01-02", "2023-01-02", "2024-01-02"], dtype="datetime64[D]"),
        np.array([3, 1, 3], dtype=np.int8),
    ],
)
def test_ids_are_kept_as_given(ids: Any) -> None:
    moments = Moments.from_arrays(ids, np.ones((3, 1)), [1.0, 2.0, 4.0])
    assert len(moments.tasks) == 2
    assert moments.cross(ids[0])[0] == 5.0
    assert moments.cross(ids[1])[0] == 2.0
    assert set(moments.tasks.tolist()) == set(ids.tolist() if isinstance(ids, np.ndarray) else ids)


def test_ids_of_two_kinds_join() -> None:
    numbers = Moments.from_arrays([1, 2], np.ones((2, 1)), [1.0, 2.0])
    strings = Moments.from_arrays(["1", "3"], np.ones((2, 1)), [4.0, 8.0])
    both = numbers + strings
    assert set(both.tasks.tolist()) == {1, 2, "1", "3"}
    assert [both.cross(s)[0] for s in (1, 2, "1", "3")] == [1.0, 2.0, 4.0, 8.0]


# Bad rows


def good(n: int = 4) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "task": ["a", "b", "a", "c"][:n],
        "phi": rng.random((n, 2)),
        "reward": rng.random(n),
        "weight": 1 + rng.random(n),
    }


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", ["phi", "reward", "weight"])
@pytest.mark.parametrize("row", [0, 3])
def test_a_number_that_is_none_is_named(bad: float, column: str, row: int) -> None:
    rows = good()
    rows[column][row] = bad
    with pytest.raises(LogError, match=rf"(?is)(?=.*{column})(?=.*\b{row}\b)(?=.*{bad})"):
        Moments.from_arrays(**rows)
    accumulator = Accumulator(2)
    with pytest.raises(LogError, match=str(row)):
        accumulator.add(rows["task"], rows["phi"], rows["reward"], rows["weight"])


@pytest.mark.parametrize("bad", [-1.0, -1e-300])
def test_a_negative_weight_is_named(bad: float) -> None:
    rows = good()
    rows["weight"][2] = bad
    with pytest.raises(LogError, match=r"(?is)(?=.*weight)(?=.*\b2\b)"):
        Moments.from_arrays(**rows)


def test_a_failed_batch_leaves_the_accumulator_as_it_was() -> None:
    rows = good()
    accumulator = Accumulator(2)
    accumulator.add(rows["task"], rows["phi"], rows["reward"])
    before = by_task(accumulator.moments())
    broken = {**rows, "task": ["new", "new", "new", "new"], "reward": np.array([1.0, 2.0, 3.0, np.nan])}
    with pytest.raises(LogError):
        accumulator.add(broken["task"], broken["phi"], broken["reward"])
    assert by_task(accumulator.moments()) == before


@pytest.mark.parametrize("null", [None, np.nan, np.datetime64("NaT"), "pandas"])
def test_a_null_id_is_named(null: Any) -> None:
    if null == "pandas":
        null = pytest.importorskip("pandas").NA
    rows = good()
    rows["task"] = ["a", None, "a", "c"]
    rows["task"][1] = null
    with pytest.raises(LogError, match=r"\b1\b"):
        Moments.from_arrays(**rows)


@pytest.mark.parametrize(
    "change",
    [
        {"task": ["a", "b", "a"]},
        {"phi": np.ones((3, 2))},
        {"phi": np.ones(4)},
        {"phi": np.ones((4, 2, 1))},
        {"reward": np.ones(3)},
        {"reward": np.ones((4, 1))},
        {"weight": np.ones(5)},
        {"weight": np.ones((4, 1))},
        {"task": np.array([["a"], ["b"], ["a"], ["c"]])},
        {"task": "abca"},
        {"reward": ["high", "low", "high", "low"]},
        {"phi": np.array([["x", "y"]] * 4)},
        {"reward": np.ones(4) * 1j},
    ],
)
def test_rows_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Moments.from_arrays(**{**good(), **change})


def test_moments_that_are_no_sums_of_rows_name_their_task_as_it_was_written() -> None:
    some = Moments.from_arrays(np.array([38, 39]), np.ones((2, 1)), [1.0, 2.0])
    twice = some - some.select([39]) - some.select([39])
    with pytest.raises(NumericalError, match="The moments of task 39 are no sums of rows: -1 rows"):
        condition(twice, Hierarchy(hyper=None, task_cov=np.eye(1), noise_var=1.0))


def test_an_accumulator_refuses_other_dimensions() -> None:
    with pytest.raises(InputError, match=r"(?s)(?=.*\b2\b)(?=.*\b3\b)"):
        Accumulator(3).add(["a"], np.ones((1, 2)), [1.0])


@pytest.mark.parametrize("dim", [0, -1])
def test_there_is_no_space_of_no_dimension(dim: int) -> None:
    with pytest.raises(InputError):
        Moments.zero(dim)
