"""Logs that have rows in common are told, by a fingerprint of a fixed size."""

import json

import numpy as np
import pytest

from hieropo.errors import InputError
from hieropo.moments.row_sketch import SIZE, WHOLE, RowSketch, RowSketcher, action_marks, row_hashes


def rows(seed: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=n), rng.normal(size=(n, 3)), rng.integers(5, size=n)


def sketch(data: tuple[np.ndarray, np.ndarray, np.ndarray], batch: int = 10_000) -> RowSketch:
    made = RowSketcher(range(5))
    for start in range(0, data[0].size, batch):
        made.add(*(each[start : start + batch] for each in data))
    return made.sketch()


def taken(data: tuple[np.ndarray, ...], at: object) -> tuple[np.ndarray, ...]:
    return tuple(each[at] for each in data)


@pytest.mark.parametrize("n", [500, 5_000, 50_000])
def test_a_sketch_holds_the_smallest_hashes_whatever_batches_and_order(n: int) -> None:
    data = rows(0, n)
    order = np.random.default_rng(1).permutation(n)
    expected = np.sort(row_hashes(*data[:2], action_marks(range(5))[data[2]]))[:SIZE]
    for made in (sketch(data, 700), sketch(data, 10**6), sketch(taken(data, order), 999)):
        assert np.array_equal(made.hashes, expected)
        assert made.rows == n
        assert abs(made.distinct / n - 1) < 4 / np.sqrt(SIZE)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_the_share_of_common_rows_is_estimated(share: float) -> None:
    first, second = rows(0, 40_000), rows(1, 40_000)
    k = int(share * 40_000)
    mixed = tuple(np.concatenate([a[:k], b[k:]]) for a, b in zip(first, second, strict=True))
    found = sketch(mixed).share_in(sketch(first))
    assert found is not None
    assert abs(found - share) < 4 * np.sqrt(0.25 / SIZE)
    assert (found == 0) == (share == 0)


def test_a_small_part_and_a_grown_log_are_told() -> None:
    data = rows(0, 100_000)
    whole, part = sketch(data), sketch(taken(data, slice(5_000, 8_000)))
    assert part.share_in(whole) == 1.0
    back = whole.share_in(part)
    assert back is not None
    assert abs(back - 0.03) < 0.02


def test_rows_that_are_equal_by_chance_tell_nothing() -> None:
    rng = np.random.default_rng(0)
    clicks = (rng.integers(2, size=5000) * 1.0, np.zeros((5000, 0)), rng.integers(5, size=5000))
    made = sketch(clicks, 5000)
    assert made.hashes.size == 10
    assert made.share_in(made) is None
    assert sketch(rows(0, 5)).share_in(sketch(rows(0, 5))) is None  # too few to be compared


def test_sketches_of_parts_add_up_and_come_back_from_json() -> None:
    data = rows(3, 9_000)
    parts = sketch(taken(data, slice(0, 4_000))) + sketch(taken(data, slice(4_000, 9_000)))
    whole = sketch(data)
    back = RowSketch.from_dict(json.loads(json.dumps(parts.to_dict())))
    for each in (parts, back):
        assert np.array_equal(each.hashes, whole.hashes)
        assert each.rows == 9_000
    assert (RowSketch.none() + whole).share_in(whole) == 1.0


def test_what_is_left_of_a_log_is_told_from_what_was_taken_out_of_it() -> None:
    data = rows(4, 40_000)
    whole, first = sketch(data), sketch(taken(data, slice(0, 30_000)))
    rest = sketch(taken(data, slice(30_000, 40_000)))
    left = whole - first
    assert left.rows == 10_000
    assert left.limit == whole.limit < rest.limit
    assert np.array_equal(left.hashes, rest.hashes[rest.hashes <= np.uint64(left.limit)])
    assert abs(left.distinct / 10_000 - 1) < 4 / np.sqrt(left.hashes.size)
    for log, share in ((rest, 1.0), (first, 0.0), (whole, 0.25)):
        found = log.share_in(left)
        assert found is not None
        assert abs(found - share) <= 4 * np.sqrt(share * (1 - share) / SIZE)
    both = left + first
    assert np.array_equal(both.hashes, whole.hashes)
    assert (both.rows, both.limit) == (whole.rows, whole.limit)
    nothing = whole - whole
    assert (nothing.rows, nothing.hashes.size, nothing.share_in(whole)) == (0, 0, None)
    back = RowSketch.from_dict(json.loads(json.dumps(left.to_dict())))
    assert np.array_equal(back.hashes, left.hashes)
    assert (back.rows, back.limit) == (left.rows, left.limit)


def test_rows_of_which_nothing_is_known_make_a_sum_tell_nothing() -> None:
    known = sketch(rows(5, 2_000))
    mixed = known + RowSketch.unknown(50)
    assert (mixed.rows, mixed.hashes.size, mixed.limit) == (2_050, 0, 0)
    assert mixed.share_in(known) is None
    assert known.share_in(mixed) is None
    assert RowSketch.none().limit == WHOLE


def test_other_actions_in_the_map_and_their_order_change_no_hash() -> None:
    reward, context, code = rows(6, 3_000)
    names = np.array(["a", "b", "c", "d", "e"])
    other = ["z", "e", "d", "c", "q", "b", "a"]
    codes = np.array([other.index(name) for name in names])[code]
    one, two = RowSketcher(names.tolist()), RowSketcher(other)
    one.add(reward, context, code)
    two.add(reward, context, codes)
    assert np.array_equal(one.sketch().hashes, two.sketch().hashes)
    turned = RowSketcher(names.tolist())
    turned.add(reward, context, codes % 5)
    assert (turned.sketch().share_in(one.sketch()) or 0.0) < 0.5


def test_every_number_of_a_row_counts_and_zero_has_one_sign() -> None:
    reward, context, code = np.array([1.0]), np.array([[2.0, 3.0]]), np.array([1])
    base = row_hashes(reward, context, code)[0]
    others = [
        row_hashes(reward + 1e-12, context, code), row_hashes(reward, context[:, ::-1].copy(), code),
        row_hashes(reward, context, code + 1), row_hashes(reward, context, None),
        row_hashes(reward, context[:, :1], code),
    ]  # fmt: skip
    assert len({base, *(each[0] for each in others)}) == 6
    assert row_hashes(np.array([-0.0]), context, code) == row_hashes(np.array([0.0]), context, code)


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(InputError, match="2 contexts do not fit 3 rewards"):
        RowSketcher().add(np.zeros(3), np.zeros((2, 1)), None)
