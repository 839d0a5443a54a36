"""Sums of tasks and actions add in order, and the tests made of them are what permutations and definitions say."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hieropo.doctor.statistics.column_summaries import Numbers, Repeats
from hieropo.doctor.statistics.times import Times
from hieropo.logging_policy import cells as at
from hieropo.logging_policy.cell_tests import difference, reaction, trend
from hieropo.logging_policy.cells import Cells, CellSums

TASKS, ACTIONS = 12, 3


def rows(seed: int, n: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    place, code = rng.integers(TASKS, size=n), rng.integers(ACTIONS, size=n)
    pscore = np.where(rng.random(n) < 0.1, np.nan, rng.uniform(0.1, 1.0, n))
    return place, code, rng.normal(2.0, 1.0, n) + code, pscore


def summed(*parts: tuple[np.ndarray, ...], most: int = at.MOST_CELLS) -> CellSums:
    found = CellSums(most)
    for place, code, reward, pscore in parts:
        found.add(place, code, reward, tasks=TASKS, actions=ACTIONS, pscore=pscore)
    return found


def slow_cell(place: np.ndarray, code: np.ndarray, reward: np.ndarray, s: int, a: int) -> list[float]:
    """Sums of one cell by their definition."""
    own = np.flatnonzero(place == s)
    i = [np.count_nonzero(code[own[: np.searchsorted(own, t)]] == a) for t in own if code[t] == a]
    j = [int(np.searchsorted(own, t)) for t in own if code[t] == a]
    r = [reward[t] for t in own if code[t] == a]
    each = [(1.0, y, y * y, y * p, y * q, q, q * q, p * q) for p, q, y in zip(i, j, r, strict=True)]
    return np.sum(each, axis=0).tolist() if each else [0.0] * 8


def test_sums_are_their_definition() -> None:
    place, code, reward, pscore = rows(0)
    found = summed((place, code, reward, pscore)).collected()
    for s in range(TASKS):
        for a in range(ACTIONS):
            mine = (place == s) & (code == a)
            p = pscore[mine & ~np.isnan(pscore)]
            cell = found.cells[s, a]
            np.testing.assert_allclose(cell[:8], slow_cell(place, code, reward, s, a), rtol=1e-12)
            np.testing.assert_allclose(
                cell[8:12], [p.size, (1 / p).sum(), (1 / p**2).sum(), np.log(p).sum()], rtol=1e-12
            )
            assert (cell[at.LOW], cell[at.HIGH]) == (p.min(), p.max())
    assert found.actions.tolist() == np.bincount(code).tolist()
    taken = found.tasks_of_actions()
    assert taken is not None
    assert taken.tolist() == [np.unique(place[code == a]).size for a in range(ACTIONS)]


def test_two_parts_of_a_log_add_whatever_the_order_of_their_ids() -> None:
    place, code, reward, pscore = rows(1)
    rng = np.random.default_rng(2)
    whole = summed((place, code, reward, pscore)).collected()
    for cut in (0, 1, 117, 300):
        first = summed((place[:cut], code[:cut], reward[:cut], pscore[:cut]))
        order, other = rng.permutation(TASKS), rng.permutation(ACTIONS)
        later = summed(
            (np.argsort(order)[place[cut:]], np.argsort(other)[code[cut:]], reward[cut:], pscore[cut:])
        )
        first.append(later, order, other, tasks=TASKS, actions=ACTIONS)
        found = first.collected()
        np.testing.assert_allclose(found.cells, whole.cells, rtol=1e-11, atol=1e-9)
        np.testing.assert_allclose(found.tasks, whole.tasks)
        assert found.actions.tolist() == whole.actions.tolist()
        assert found.tasks_of_actions() is not None
        assert found.tasks_of_actions().tolist() == whole.tasks_of_actions().tolist()  # type: ignore[union-attr]


def test_tasks_beyond_the_memory_are_counted_and_get_no_cells() -> None:
    place, code, reward, pscore = rows(3)
    found = summed((place, code, reward, pscore), most=4 * ACTIONS).collected()
    assert len(found.cells) == 4
    assert not found.complete
    assert found.rows.tolist() == np.bincount(place, minlength=TASKS).tolist()
    whole = summed((place, code, reward, pscore)).collected()
    np.testing.assert_array_equal(found.cells, whole.cells[:4])
    np.testing.assert_array_equal(found.complete_tasks().tasks, whole.tasks[:4])


def slow_reaction(place: np.ndarray, code: np.ndarray, reward: np.ndarray) -> tuple[float, list[np.ndarray]]:
    """Sum of e_t h_t by its definition, and h with the rows of each cell."""
    total, groups = 0.0, []
    h = np.zeros(place.size)
    for s in np.unique(place):
        own = np.flatnonzero(place == s)
        for k, t in enumerate(own):
            later = own[k + 1 :]
            count = np.count_nonzero(code[own] == code[t])
            share = (count - 1) / max(own.size - 1, 1)
            h[t] = (np.count_nonzero(code[later] == code[t]) - share * later.size) / own.size
        for a in np.unique(code[own]):
            cell = own[code[own] == a]
            if cell.size >= 2:
                total += float((reward[cell] - reward[cell].mean()) @ h[cell])
                groups.append(cell)
    return total, [np.column_stack([cell, h[cell]]) for cell in groups]


@pytest.mark.slow
def test_a_reaction_is_what_permutations_of_rewards_within_cells_say() -> None:
    place, code, reward, pscore = rows(4)
    found = reaction(summed((place, code, reward, pscore)).collected())
    assert found is not None
    score, groups = slow_reaction(place, code, reward)
    rng = np.random.default_rng(5)
    cells = [(reward[g[:, 0].astype(int)], g[:, 1]) for g in groups]
    draws = [sum(float(rng.permutation(r - r.mean()) @ h) for r, h in cells) for _ in range(2000)]
    assert found.z == pytest.approx(score / np.std(draws), rel=0.06)
    assert abs(np.mean(draws)) < 4 * np.std(draws) / 2000**0.5


def adaptive(seed: int, tasks: int = 40, each: int = 30) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Thompson-like choices: an action comes more often where it was rewarded well before."""
    rng = np.random.default_rng(seed)
    theta, n, total = rng.normal(size=(tasks, 2)), np.zeros((tasks, 2)), np.zeros((tasks, 2))
    place = np.tile(np.arange(tasks), each)
    code, reward = np.zeros(place.size, dtype=np.int64), np.zeros(place.size)
    for t, s in enumerate(place):
        belief = rng.normal(total[s] / (n[s] + 1), 1 / np.sqrt(n[s] + 1))
        code[t] = a = int(belief.argmax())
        reward[t] = theta[s, a] + rng.normal()
        n[s, a] += 1
        total[s, a] += reward[t]
    return place, code, reward


def frozen(seed: int, tasks: int = 40, each: int = 30) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Choices that know theta and do not learn."""
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=(tasks, 2))
    place = np.tile(np.arange(tasks), each)
    chance = 1 / (1 + np.exp(theta[:, 0] - theta[:, 1]))
    code = (rng.random(place.size) < chance[place]).astype(np.int64)
    return place, code, theta[place, code] + rng.normal(size=place.size)


def collected(place: np.ndarray, code: np.ndarray, reward: np.ndarray) -> Cells:
    found = CellSums()
    found.add(place, code, reward, tasks=int(place.max()) + 1, actions=int(code.max()) + 1)
    return found.collected()


def test_an_incumbent_that_learns_reacts_and_one_that_knows_does_not() -> None:
    learns = [reaction(collected(*adaptive(seed, tasks=100))) for seed in range(10)]
    knows = [reaction(collected(*frozen(seed))) for seed in range(200)]
    assert min(found.z for found in learns if found) > 3.5
    z = np.array([found.z for found in knows if found])
    assert z.size == 200
    assert abs(z.mean()) < 4 / 200**0.5
    assert 0.85 < z.std() < 1.15


def test_a_trend_of_rewards_is_found_with_its_size() -> None:
    still = np.array([trend(collected(*frozen(seed))).z for seed in range(200)])  # type: ignore[union-attr]
    assert abs(still.mean()) < 4 / 200**0.5
    assert 0.85 < still.std() < 1.15
    place, code, reward = frozen(0, tasks=100, each=60)
    recentred = trend(collected(place, code, reward + np.repeat(np.linspace(0, 1, 60), 100)))
    assert recentred is not None
    assert recentred.z > 5
    assert recentred.effect == pytest.approx(1.0, rel=0.15)  # the noise has sd 1


def test_shares_that_differ_are_told_from_equal_ones() -> None:
    rng = np.random.default_rng(6)
    shares = np.array([0.5, 0.3, 0.1, 0.06, 0.03, 0.01])
    equal = []
    for _ in range(300):
        sizes = rng.integers(1, 30, 100)
        found = difference(np.array([rng.multinomial(n, shares) for n in sizes]).astype(float))
        assert found is not None
        equal.append(found.z)
    assert max(equal) < 4
    assert abs(np.mean(equal)) < 0.25
    drawn = np.array([rng.multinomial(50, rng.dirichlet([4.0, 3.0, 2.0])) for _ in range(400)]).astype(float)
    found = difference(drawn)
    assert found is not None
    assert found.z > 10
    assert found.effect == pytest.approx(0.1, rel=0.2)  # 1 / (1 + c) with c = 9
    assert difference(np.zeros((3, 2))) is None


def test_repeated_rows_are_counted_and_beyond_the_limit_estimated() -> None:
    rng = np.random.default_rng(7)
    hashes = rng.integers(2**64, size=20_000, dtype=np.uint64)
    again = np.concatenate([hashes, hashes[:1000]])
    exact, rough, other = Repeats(), Repeats(1024), Repeats(1024)
    for part in np.array_split(again, 7):
        exact.add(part)
        rough.add(part)
    found, about = exact.counts(), rough.counts()
    assert (found.rows, found.distinct, found.repeated, found.exact) == (21_000, 20_000, 1000, True)
    assert found.times == {1: 19_000, 2: 1000}
    assert not about.exact
    assert sum(about.times.values()) <= 1024
    assert about.distinct == pytest.approx(20_000, rel=4 / 700**0.5)
    assert found.beyond_chance
    assert found.copies == 1
    for part in (again[:3000], again[3000:]):
        more = Repeats(1024)
        more.add(part)
        other.update(more)
    assert other.counts() == about


def test_equal_rows_by_chance_are_not_called_copies() -> None:
    rng = np.random.default_rng(8)
    for kinds in (5, 100, 3000, 100_000):
        shares = rng.dirichlet(np.full(kinds, 0.5))
        drawn = Repeats()
        drawn.add(rng.choice(kinds, 20_000, p=shares).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        assert not drawn.counts().beyond_chance
        assert drawn.counts().copies == 1


def test_a_log_that_was_read_twice_has_every_row_twice() -> None:
    twice = Repeats()
    for _ in range(2):
        twice.add(np.random.default_rng(9).integers(2**64, size=500, dtype=np.uint64))
    assert twice.counts().copies == 2


def test_times_do_not_depend_on_how_a_log_is_cut_and_see_a_gap() -> None:
    rng = np.random.default_rng(10)
    time = np.sort(rng.uniform(1.7e9, 1.7e9 + 3e6, 4000))
    time = time[(time < 1.7e9 + 1e6) | (time > 1.7e9 + 1.6e6)]
    place, reward = rng.integers(5, size=time.size), rng.normal(size=time.size)

    def line(order: np.ndarray, parts: int) -> Times:
        found = Times()
        for at_ in np.array_split(order, parts):
            found.add(time[at_], place[at_], reward[at_], 5)
        return found

    ahead, mixed = np.arange(time.size), rng.permutation(time.size)
    one, many, shuffled = (line(*each).timeline() for each in ((ahead, 1), (ahead, 9), (mixed, 5)))
    assert one is not None
    assert many is not None
    assert shuffled is not None
    for other in (many, shuffled):
        assert (other.first, other.width) == (one.first, one.width)
        np.testing.assert_allclose(other.sums, one.sums, atol=1e-9)
    assert (one.back, one.back_in_task, many.back) == (0, 0, 0)
    steps = np.diff(time[mixed])
    assert shuffled.back == np.count_nonzero(steps < 0)
    begin, end = one.longest_gap()
    assert begin == pytest.approx(1.7e9 + 1e6, abs=2 * one.width)
    assert end == pytest.approx(1.7e9 + 1.6e6, abs=2 * one.width)
    appended = line(mixed[:1000], 2)
    appended.append(line(mixed[1000:], 3), np.arange(5), 5)
    joined = appended.timeline()
    assert joined is not None
    for name in ("steps", "back", "steps_in_task", "back_in_task", "same_in_task"):
        assert getattr(joined, name) == getattr(shuffled, name)
    np.testing.assert_allclose(joined.sums, one.sums, atol=1e-9)


def test_steps_within_tasks_are_counted_by_their_definition() -> None:
    rng = np.random.default_rng(11)
    time, place = rng.integers(50, size=300).astype(float), rng.integers(4, size=300)
    time[::7] = np.nan
    found, first = Times(), Times()
    found.add(time, place, np.zeros(300), 4)
    first.add(time[:120], place[:120], np.zeros(120), 4)
    later = Times()
    later.add(time[120:], place[120:], np.zeros(180), 4)
    first.append(later, np.arange(4), 4)
    own = [time[(place == s) & ~np.isnan(time)] for s in range(4)]
    steps = [b - a for each in own for a, b in pairwise(each)]
    for line in (found.timeline(), first.timeline()):
        assert line is not None
        assert line.back_in_task == sum(step < 0 for step in steps)
        assert line.same_in_task == sum(step == 0 for step in steps)
        assert line.steps_in_task == len(steps)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda time: time, None),
        (lambda time: np.zeros(time.size), "one time"),
        (lambda time: -time, "not in the order of time"),
        (lambda time: time // 40, "many rows have the time of the row before"),
        (lambda time: np.where(time == 100, 99, time), None),
    ],
)
def test_order_is_that_of_time_where_times_of_a_task_grow(change: Any, why: str | None) -> None:
    time = np.arange(400.0)
    found = Times()
    found.add(change(time), np.arange(400) % 4, np.zeros(400), 4)
    line = found.timeline()
    assert line is not None
    said = line.disorder()
    assert said is None if why is None else why in str(said)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([3.0, 3.0], "constant"),
        ([0.0, 1.0, 1.0], "binary"),
        ([-1.0, 0.5], "binary"),
        ([0.0, 1.0, 7.0], "count"),
        ([0.5, 1.5, 2.5], "few values"),
        (np.linspace(0.1, 9.7, 500), "continuous"),
        (np.arange(500.0), "count"),
    ],
)
def test_kinds_of_numbers(values: list[float], kind: str) -> None:
    whole, first = Numbers(), Numbers()
    whole.add(np.array([*values, np.nan]))
    assert whole.kind == kind
    for part in np.array_split(np.asarray(values), 2):
        more = Numbers()
        more.add(part)
        first.update(more)
    assert (first.kind, first.rows, first.low, first.high) == (kind, len(values), min(values), max(values))
    assert (first.mean, first.sd) == (pytest.approx(np.mean(values)), pytest.approx(np.std(values)))
