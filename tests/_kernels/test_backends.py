"""Two backends that give the same: plain numpy, the definition, and compiled loops, held against it to rounding."""

import os
import subprocess
import sys
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hieropo._kernels import backend, compiled_steps
from hieropo._kernels import cells as kernels_cells
from hieropo._kernels import choice as kernels_choice
from hieropo._kernels import ids as kernels_ids
from hieropo._kernels import partition_buffers as compiled_buffers
from hieropo._kernels import periods as kernels_periods
from hieropo._kernels import propagation as kernels_propagation
from hieropo._kernels import ratings as kernels_ratings
from hieropo._kernels import rows as kernels_rows
from hieropo._kernels import statistics as kernels_statistics
from hieropo._kernels.circulant import BLOCK, KINDS, CirculantLayout
from hieropo._kernels.reference import cells as reference_cells
from hieropo._kernels.reference import choice as reference_choice
from hieropo._kernels.reference import ids as reference_ids
from hieropo._kernels.reference import periods as reference_periods
from hieropo._kernels.reference import propagation as reference_propagation
from hieropo._kernels.reference import ratings as reference_ratings
from hieropo._kernels.reference import rows as reference_rows
from hieropo._kernels.reference import statistics as reference_statistics
from hieropo._kernels.reference import steps as reference_steps
from hieropo._utils.packed import pack, packed_size, triangle, unpack
from hieropo.errors import InputError
from hieropo.model.steps import pivot_tolerance, upper_factor
from hieropo.moments.accumulation import Sums, Work
from hieropo.moments.column_pass import Block, Hashing, PartitionBuffers, Phi
from hieropo.rows.texts import Text

Array = np.ndarray[Any, np.dtype[Any]]
CLOSE = 1e-12
EVERY = {
    "rows": (backend.rows, kernels_rows, reference_rows),
    "statistics": (backend.statistics, kernels_statistics, reference_statistics),
    "cells": (backend.cells, kernels_cells, reference_cells),
    "ids": (backend.ids, kernels_ids, reference_ids),
    "steps": (backend.steps, compiled_steps, reference_steps),
    "periods": (backend.periods, kernels_periods, reference_periods),
    "choice": (backend.choice, kernels_choice, reference_choice),
    "propagation": (backend.propagation, kernels_propagation, reference_propagation),
    "ratings": (backend.ratings, kernels_ratings, reference_ratings),
}


def near(one: Array, two: Array, size: float | None = None, room: float = CLOSE) -> None:
    """Assert equality to rounding, relative to the size of the numbers that were added."""
    one, two = np.asarray(one, dtype=float), np.asarray(two, dtype=float)
    scale = float(np.abs(two).max(initial=0.0)) if size is None else size
    np.testing.assert_allclose(one, two, rtol=room, atol=room * scale)


# Which one is taken


@pytest.mark.parametrize("area", EVERY)
def test_the_size_of_the_work_decides(area, monkeypatch) -> None:
    choose, compiled, reference = EVERY[area]
    monkeypatch.delenv("HIEROPO_BACKEND", raising=False)
    assert choose(0) is reference
    assert choose(2**40) is compiled
    monkeypatch.setenv("HIEROPO_BACKEND", "compiled")
    assert choose(0) is compiled
    monkeypatch.setenv("HIEROPO_BACKEND", "reference")
    assert choose(2**40) is reference


@pytest.mark.parametrize("area", EVERY)
def test_all_that_python_calls_is_there_twice(area) -> None:
    _, compiled, reference = EVERY[area]
    called = {
        "steps": {"step_up", "step_down"},
        "propagation": {"one_round"},
        "rows": {"add_columns", "add_matrix", "move_sums", "pack_sums"},
    }
    twins = {name for name in vars(reference) if not name.startswith("_") and callable(vars(reference)[name])}
    twins &= set(vars(compiled))
    assert called.get(area, set()) <= twins
    for name in twins:
        if vars(reference)[name].__module__ == reference.__name__:
            plain = getattr(vars(compiled)[name], "py_func", vars(compiled)[name])
            code = plain.__code__
            other = getattr(vars(reference)[name], "__wrapped__", vars(reference)[name]).__code__
            names = other.co_varnames[: other.co_argcount]
            assert code.co_varnames[: code.co_argcount] == names, name


def test_another_backend_is_refused_by_name(monkeypatch) -> None:
    monkeypatch.setenv("HIEROPO_BACKEND", "fast")
    with pytest.raises(InputError, match=r"HIEROPO_BACKEND is 'fast'.*'reference'.*'compiled'"):
        backend.rows(1)


# The filter over periods


@pytest.mark.parametrize("p", [1, 2, 5])
@pytest.mark.parametrize("columns", ["level", "levels", "features"])
def test_filters_over_periods_agree(p: int, columns: str) -> None:
    rng = np.random.default_rng(p)
    m, K, T = 7, 3, 4
    z = rng.standard_normal((m * K, T, 3, p + 2))
    z[..., p + 1] = 1.0
    sums = pack(z.swapaxes(2, 3) @ z)
    sums[::4, 1] = 0.0
    width, first, by_period = {"level": (1, p + 1, 0), "levels": (1, p + 1, 1), "features": (p, 0, 1)}[
        columns
    ]
    C = width * (T if by_period else 1)
    root = np.triu(rng.standard_normal((p, p)))
    moves = np.array([[0.3, 1.0, 1.0], [0.0, 1.2, 1.0], [1.0, 1.0, 0.7], [0.5, 1.5, 0.8]])
    for order, roots in ((np.arange(T), root), (np.arange(T)[::-1].copy(), root), (np.arange(T), 0.0 * root)):
        found = []
        for loops in (kernels_periods, reference_periods):
            out = (
                np.zeros((m * K, p, p)) + np.eye(p), np.zeros((m * K, p, 1 + C)),
                np.zeros((m * K, 1 + C, 1 + C)), np.zeros(m * K),
            )  # fmt: skip
            loops.filter_units(
                sums, 1.0 + rng.integers(1, 2, (K, T)).astype(float), order, moves, roots,
                np.array([width, first, by_period]), *out,
            )  # fmt: skip
            found.append(out)
        for one, two in zip(*found, strict=True):
            near(one, two)


# The steps


def packed_rows(
    rng: np.random.Generator, m: int, d: int, *, scale: float = 1.0, rank: int | None = None
) -> Array:
    """Packed sums of m tasks with 0 to 2 d + 1 rows each; columns from ``rank`` on repeat the first."""
    found = np.zeros((m, packed_size(d + 1)))
    for row in found:
        z = rng.standard_normal((rng.integers(0, 2 * d + 2), d + 1)) * np.append(np.full(d, scale), 1.0)
        if rank is not None:
            z[:, rank:d] = z[:, :1]
        row[:] = pack(z.T @ z)
    return found


def both_steps(
    rows: Array, factor: Array, k: int, *, outer: bool = False, scale: float = 0.7
) -> list[tuple[Array, ...]]:
    m, d = len(rows), len(factor)
    rng = np.random.default_rng(d)
    parent = rng.integers(0, k, m)
    inner = np.tril(rng.standard_normal((k, d, d)))
    known = (
        rng.standard_normal((k, d)),
        inner,
        0.1 * rng.standard_normal((k if outer else 0, d, d)),
        not outer,
    )
    found = []
    for steps in (compiled_steps, reference_steps):
        up = np.zeros((k, packed_size(d + 1)))
        down = np.zeros((m, d)), np.zeros((m, packed_size(d))), np.zeros((m, d, d))
        log_det = steps.step_up(rows, 0, m, scale, factor, pivot_tolerance(d), parent, up)
        steps.step_down(rows, 0, m, scale, factor, pivot_tolerance(d), parent, known, down)
        found.append((np.array(log_det), up, *down))
    return found


@pytest.mark.parametrize("m", [0, 1, 7, 8, 9, 100])
@pytest.mark.parametrize("d", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("outer", [False, True])
def test_steps_agree(m: int, d: int, outer) -> None:
    rng = np.random.default_rng(m)
    A = rng.standard_normal((d, d))
    for k in (1, 3):
        for one, two in zip(
            *both_steps(packed_rows(rng, m, d), upper_factor(A @ A.T)[0], k, outer=outer), strict=True
        ):
            near(one, two)


@pytest.mark.parametrize("d", [1, 2, 4, 9])
@pytest.mark.parametrize("scale", [30.0, 1e3, 1e6])
@pytest.mark.parametrize("rank", [None, 1])
def test_steps_agree_where_rows_outweigh_the_prior(d: int, scale: float, rank: int | None) -> None:
    rng = np.random.default_rng(3)
    A, rows = rng.standard_normal((d, d)), packed_rows(rng, 40, d, scale=scale, rank=rank)
    found = both_steps(rows, upper_factor(A @ A.T)[0], 2)
    sizes = (np.linalg.norm(unpack(table, d), 2, axis=(1, 2)) for table in (rows, found[1][3]))
    kappa = float(np.prod(list(sizes), axis=0).max())  # sums that are stored tell no posterior more closely
    for k, (one, two) in enumerate(zip(*found, strict=True)):
        near(one, two, room=1e-10 if k < 2 else 1e-10 + 4 * np.finfo(float).eps * kappa)


def test_steps_agree_where_prior_or_rows_are_singular_or_missing() -> None:
    rng = np.random.default_rng(4)
    rows = np.concatenate([np.zeros((9, 10)), packed_rows(rng, 30, 3, rank=1)])
    for factor in (np.zeros((3, 3)), np.diag([1.0, 0.0, 2.0])):
        for one, two in zip(*both_steps(rows, factor, 4, outer=True), strict=True):
            near(one, two)


def test_steps_are_the_formulas() -> None:
    rng, d = np.random.default_rng(5), 3
    rows, A = packed_rows(rng, 6, d), rng.standard_normal((d, d))
    factor, mean, root = (
        upper_factor(A @ A.T)[0],
        rng.standard_normal((1, d)),
        np.tril(rng.standard_normal((1, d, d))),
    )
    up, one = np.zeros((6, 10)), np.zeros(6, dtype=np.int64)
    down = np.zeros((6, d)), np.zeros((6, 6)), np.zeros((0, d, d))
    known = mean, root, np.zeros((0, d, d)), True
    log_det = reference_steps.step_up(rows, 0, 6, 0.5, factor, pivot_tolerance(d), np.arange(6), up)
    reference_steps.step_down(rows, 0, 6, 0.5, factor, pivot_tolerance(d), one, known, down)
    total, cov = 0.0, factor @ factor.T
    for s in range(6):
        T = 0.5 * unpack(rows[s], d + 1)
        G, B = T[:d, :d], T[:d, d]
        H = np.eye(d) + G @ cov
        total += np.log(np.linalg.det(H))
        near(unpack(up[s], d + 1)[:d, :d], np.linalg.solve(H, G), room=1e-11)
        near(unpack(up[s], d + 1)[:d, d], np.linalg.solve(H, B), room=1e-11)
        near(up[s, -1], T[d, d] - B @ cov @ np.linalg.solve(H, B), room=1e-11)
        tilde = np.linalg.solve(np.eye(d) + cov @ G, cov)  # given the parent
        spread = np.linalg.solve(np.eye(d) + cov @ G, factor @ root[0])
        near(down[0][s], mean[0] + tilde @ (B - G @ mean[0]), room=1e-11)
        near(unpack(down[1][s], d), tilde + spread @ spread.T, room=1e-11)
    near(log_det, total)


# Choices


def policy_table(rng: np.random.Generator, m: int, d: int, K: int | None) -> tuple[Array, Array]:
    lead = (m,) if K is None else (m, K)
    roots = rng.standard_normal((*lead, d, d))
    return rng.standard_normal((*lead, d)), pack(roots @ np.swapaxes(roots, -1, -2))


@pytest.mark.parametrize("d", [1, 2, 5, 11])
@pytest.mark.parametrize("per_action", [False, True])
@pytest.mark.parametrize("n", [0, 1, 300])
def test_choices_agree(d: int, per_action, n: int) -> None:
    rng, K = np.random.default_rng(d), 7
    means, covs = policy_table(rng, 5, d, K if per_action else None)
    prior = policy_table(rng, 1, d, K if per_action else None)
    rows = rng.integers(-1, 5, n)
    phi = rng.standard_normal((n, 1 if per_action and d > 2 else K, d))
    phi[: n // 3] = np.round(phi[: n // 3])  # ties
    for eligible in (np.zeros((0, 0), dtype=bool), rng.random((n, K)) < 0.5):
        if len(eligible):
            eligible[:, 3] = True
        for top in (1, 3, 9):
            found = []
            for loops in (kernels_choice, reference_choice):
                index, out = np.full((n, top), -1), np.full((3, n, top), np.nan)
                assert loops.choose(means, covs, *prior, rows, phi, eligible, 0.7, index, *out) == -1
                found.append((index, *out))
            np.testing.assert_array_equal(found[0][0], found[1][0])
            for one, two in zip(found[0][1:], found[1][1:], strict=True):
                np.testing.assert_allclose(one, two, rtol=CLOSE, atol=1e-11)


@pytest.mark.parametrize("per_action", [False, True])
def test_one_choice_agrees_with_many_and_stops_alike(per_action) -> None:
    rng, K, d = np.random.default_rng(0), 6, 3
    means, covs = policy_table(rng, 4, d, K if per_action else None)
    phi, out = rng.standard_normal((K, d)), np.zeros((2, 3, K))
    none = np.zeros(0, dtype=bool)
    for row in range(4):
        one, two = (
            loops.choose_one(means, covs, row, phi, none, 0.1) for loops in (kernels_choice, reference_choice)
        )
        assert one[0] == two[0]
        near(np.array(one[1:]), np.array(two[1:]))
        for loops, places in zip((kernels_choice, reference_choice), out, strict=True):
            loops.score(means, covs, row, phi, 0.1, *places)
        near(*out)
        assert out[1, 0, two[0]] == two[1]  # to the last bit
    phi[2, 1] = np.nan
    only = np.arange(K) == 2
    for loops in (kernels_choice, reference_choice):
        assert loops.choose_one(means, covs, 0, phi, none, 0.1)[0] == -1
        assert loops.choose_one(means, covs, 0, phi, only, 0.1)[0] == -1
        assert loops.choose_one(means, covs, 0, phi, ~only, 0.1)[0] >= 0
        assert loops.choose_one(means, covs, 0, phi, np.zeros(K, dtype=bool), 0.1)[0] == -1


@pytest.mark.parametrize("S", [0, 1, 500])
def test_wins_agree(S: int) -> None:
    rng = np.random.default_rng(1)
    thetas, phi = rng.standard_normal((S, 4)), rng.standard_normal((6, 4))
    phi[4] = phi[1]  # the first of two that are equal wins
    for eligible in (np.ones(6, dtype=bool), np.arange(6) > 0, np.arange(6) == 4):
        wins = np.zeros((2, 6), dtype=np.int64)
        for loops, counts in zip((kernels_choice, reference_choice), wins, strict=True):
            assert loops.count_wins(thetas, phi, eligible, counts)
        np.testing.assert_array_equal(*wins)
    phi[5] = np.inf
    for loops in (kernels_choice, reference_choice):
        assert loops.count_wins(thetas, phi, np.ones(6, dtype=bool), wins[0]) == (S == 0)
        assert loops.count_wins(thetas, phi, np.zeros(6, dtype=bool), wins[0]) == (S == 0)


# Ids


def test_texts_get_the_same_numbers_and_may_change_hands() -> None:
    rng = np.random.default_rng(0)
    words = ["", "a", "b", "ab", "a\0", "\0", "12345678", "123456789", "ä" * 9, "x" * 100, "x" * 101]
    words += [f"store {i}" for i in range(300)] + [str(k) * 7 for k in range(40)]
    batches = [[words[k] for k in rng.integers(0, len(words), n)] for n in (0, 1, 1000, 3, 400)]
    truth: dict[str, int] = {}
    for batch in batches:
        for word in batch:
            truth.setdefault(word, len(truth))
    for order in ([kernels_ids] * 5, [reference_ids] * 5, [kernels_ids, reference_ids] * 3):
        slots, own, ends, count = (
            np.zeros(1024, np.uint64),
            np.zeros(20_000, np.uint8),
            np.zeros(2000, np.int64),
            0,
        )
        for loops, batch in zip(order, batches, strict=False):
            texts, out = Text.of(batch), np.zeros(len(batch), dtype=np.int64)
            data = texts.data.copy() if texts.data.size else np.zeros(0, np.uint8)
            count = loops.find_texts(data, texts.ends, np.arange(len(batch)), slots, own, ends, count, out)
            assert out.tolist() == [truth[word] for word in batch]
            wider = np.zeros(2 * slots.size, np.uint64)
            loops.spread_slots(slots, wider)
            slots = wider
        assert count == len(truth)
        assert Text(own, ends[: count + 1]).strings() == list(truth)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_numbers_get_the_same_places(kind) -> None:
    rng = np.random.default_rng(0)
    for n in (0, 1, 1000):
        numbers, found = rng.integers(0, 50, n).astype(kind), []
        for loops in (kernels_ids, reference_ids):
            table = np.full(60, -1, dtype=np.int32)
            table[:10] = np.arange(10)
            out, fresh = (
                np.zeros(n, dtype=np.int64),
                np.zeros(60, dtype=np.int64),
            )
            count = loops.find_numbers(numbers, table, out, fresh)
            table[fresh[:count]] = 10 + np.arange(count)
            loops.enter_numbers(numbers, table, out)
            found.append((out, fresh[:count].copy(), table))
        for one, two in zip(*found, strict=True):
            np.testing.assert_array_equal(one, two)


# Cells and times


def test_cells_agree_whatever_the_batches() -> None:
    rng, n, K, m = np.random.default_rng(0), 700, 5, 9
    place, code = rng.integers(-1, m, n), rng.integers(-1, K, n)
    reward, pscore, share = rng.standard_normal(n), rng.uniform(0.1, 1.0, n), rng.uniform(0.5, 1.0, n)
    pscore[rng.random(n) < 0.2] = np.nan
    none = np.zeros(0)
    for p, u in ((pscore, share), (pscore, none), (none, none)):
        found = []
        for loops, ends in (
            (kernels_cells, [0, n]),
            (reference_cells, [0, n]),
            (reference_cells, [0, 0, 1, 250, n]),
        ):
            cells, tasks = np.zeros((6 * K, 16)), np.zeros((m, 3))  # the last tasks get no cells
            actions, taken = np.zeros(K, dtype=np.int64), np.zeros((m, 1), dtype=np.uint8)
            for start, stop in pairwise(ends):
                s = slice(start, stop)
                loops.add_cells(place[s], code[s], reward[s], p[s], u[s], K, cells, tasks, actions, taken)
            found.append((cells, tasks, actions, taken))
        for other in found[1:]:
            for one, two in zip(found[0], other, strict=True):
                near(one, two)


def test_steps_in_time_agree() -> None:
    rng, m = np.random.default_rng(0), 6
    for n in (0, 1, 500):
        place, time = rng.integers(-1, m, n), np.round(rng.random(n) * 20)
        time[rng.random(n) < 0.2] = np.nan
        found = []
        for loops, ends in (
            (kernels_cells, [0, n]),
            (reference_cells, [0, n]),
            (reference_cells, [0, n // 3, n]),
        ):
            first, last, counts = np.full(m + 1, np.nan), np.full(m + 1, np.nan), np.zeros(4, dtype=np.int64)
            sums = np.zeros((8, 3))
            for start, stop in pairwise(ends):
                loops.follow(place[start:stop], time[start:stop], first, last, counts)
                loops.add_squares(place[start:stop], np.arange(start, stop) * 0.5, sums)
            found.append((first, last, counts, sums))
        for other in found[1:]:
            for one, two in zip(found[0], other, strict=True):
                near(one, two)


# Rows


@pytest.mark.parametrize("n", [0, 1, 500])
@pytest.mark.parametrize("d", [0, 1, 4])
def test_sums_and_hashes_of_rows_agree(n: int, d: int) -> None:
    rng, m = np.random.default_rng(n), 5
    code, phi, reward = rng.integers(0, m, n), rng.standard_normal((n, d)), rng.standard_normal(n)
    reward[: n // 9] = -0.0
    weights = rng.integers(0, 3, n) * 0.5
    for weight in (np.zeros(0), weights):
        sums = np.zeros((2, m, packed_size(d + 2)))
        for loops, table in zip((kernels_statistics, reference_statistics), sums, strict=True):
            loops.accumulate(code, phi, reward, weight, table)
        near(*sums)
    for marks in (np.zeros(0, dtype=np.int64), code):
        hashes = np.zeros((2, n), dtype=np.int64)
        for loops, out in zip((kernels_statistics, reference_statistics), hashes, strict=True):
            loops.hash_rows(reward.view(np.int64), phi.view(np.int64), marks, out)
        np.testing.assert_array_equal(*hashes)


def running(memory: Array, entries: int) -> Sums:
    layout = CirculantLayout(entries)
    return Sums(
        memory.ctypes.data,
        layout.length,
        layout.whole,
        layout.width,
        layout.last,
        entries,
        layout.again,
        layout.row,
    )


@pytest.mark.parametrize("d", [1, 2, 5, 14])
@pytest.mark.parametrize("weighted", [False, True])
def test_matrices_agree(d: int, weighted) -> None:
    rng, m = np.random.default_rng(d), 4
    layout = CirculantLayout(d + 2)
    for n in (0, 1, 400):
        code, phi, reward = rng.integers(0, m, n), rng.standard_normal((n, d)), rng.standard_normal(n)
        weight = rng.integers(0, 3, n) * 0.7 if weighted else np.zeros(0)
        packed = []
        for loops in (kernels_rows, reference_rows):
            memory = np.zeros(m * layout.length)
            loops.add_matrix(code, phi, reward, weight, running(memory, d + 2), Work.of(layout))
            packed.append(memory.reshape(m, -1)[:, layout.offsets()])
            before = packed[-1].copy()
            assert loops.pack_sums(memory.ctypes.data, layout.length, m, layout.offsets())
            np.testing.assert_array_equal(memory[: before.size], before.ravel())
        near(*packed)


@pytest.mark.parametrize("entries", [1, 6, 2**18])
def test_sums_move_to_a_table_and_back(monkeypatch, entries) -> None:
    """Plain numpy moves some entries at once, with the bits of the loop."""
    monkeypatch.setattr(reference_rows, "_ENTRIES", entries)
    rng = np.random.default_rng(0)
    source, target = np.array([[0, 2], [1, 3]]), np.array([[0, 1], [1, 4]])
    rows, there, back = np.array([2, 0, 1]), (False,), (True,)
    sums = rng.standard_normal((6, 4))
    tables = []
    for loops in (kernels_rows, reference_rows):
        table, again = np.ones((3, 5)), np.zeros((6, 4))
        assert loops.move_sums(sums.ctypes.data, 4, 0, 4, rows, source, target, table, *there)
        assert loops.move_sums(sums[4:].ctypes.data, 4, 4, 2, rows, source, target, table, *there)
        loops.move_sums(again.ctypes.data, 4, 0, 6, rows, source, target, table, *back)
        tables.append(np.concatenate([table.ravel(), again.ravel()]))
        sums_with_inf = sums.copy()
        sums_with_inf[3, 1] = np.inf
        assert not loops.move_sums(sums_with_inf.ctypes.data, 4, 0, 6, rows, source, target, table, *there)
    np.testing.assert_array_equal(*tables)


def columns_of(rng: np.random.Generator, n: int, kinds: list[str]) -> list[Array]:
    return [
        np.round(rng.standard_normal(n) * 20).astype(kind.replace("f", "<f").replace("i", "<i"))
        for kind in kinds
    ]


def add_in_place(
    loops: ModuleType, columns: list[Array], case: dict[str, Any], start: int = 0
) -> tuple[Any, ...]:
    """Add columns (reward, contexts, weight) to fresh sums; the row that stopped, the sums and the hashes."""
    c, n = len(columns) - 2, columns[0].size
    phi = Phi(c, case["intercept"], case["origin"], case["pivot"], case["table"], case["known"], c + 2)
    entries = (c if not phi.table.size else phi.table.shape[1] * (c + phi.intercept)) + 2
    layout, memory = CirculantLayout(entries), np.zeros(6 * CirculantLayout(entries).length)
    C, P = np.zeros((len(columns) + 5, BLOCK)), np.zeros((entries + 4, BLOCK))
    C[c + 1] = P[entries - 1] = 1.0
    block = Block(C, np.zeros(BLOCK, np.uint64), P, np.zeros_like(P))
    state, kept = np.zeros(1, dtype=np.int64), np.zeros(2048, dtype=np.uint64)
    hashing = Hashing(
        np.arange(4) + 7, np.uint64(2**63), np.arange(64, dtype=np.uint64) ^ np.uint64(1), kept, state
    )
    spots = [c, *range(c), c + 2]
    where = np.array(
        [(v.ctypes.data, KINDS.index(v.dtype.str[1:]), at) for v, at in zip(columns, spots, strict=True)]
    )
    limits = np.array([[-1e70, 1e70]] * (c + 1) + [[0.0, 1e70]])
    stopped = loops.add_columns(
        start, where, limits, case["code"][:n], case["action"][:n], phi, hashing, running(memory, entries),
        PartitionBuffers.none(), block, Work.of(layout),
    )  # fmt: skip
    return stopped, memory.reshape(6, -1)[:, layout.offsets()], np.unique(kept[: state[0]])


@pytest.mark.parametrize("kinds", [["f8", "f8", "f4", "f8"], ["i4", "f4", "i8", "f4"]])
@pytest.mark.parametrize("intercept", [0, 1])
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("origin", [None, -1, 1])
def test_columns_in_place_agree(kinds, intercept: int, mapped, origin: int | None) -> None:
    rng = np.random.default_rng(0)
    for n in (1, BLOCK, 1000):
        columns = columns_of(rng, n, kinds)
        columns[-1] = np.abs(columns[-1]) % 3  # weights, some 0
        d = 2 if not mapped else 3 * (2 + intercept)
        case = {
            "intercept": intercept if mapped else 0,
            "origin": np.zeros(0) if origin is None else np.array([3.0, -2.0]),
            "pivot": -1 if origin is None else origin,
            "table": rng.standard_normal((4, 3)) if mapped else np.zeros((0, 0)),
            "known": np.append(rng.standard_normal(d), 0.5) if origin == 1 else np.zeros(0),
            "code": rng.integers(0, 6, n),
            "action": rng.integers(0, 4, n),
        }
        one, two = (add_in_place(loops, columns, case) for loops in (kernels_rows, reference_rows))
        assert one[0] == two[0] == n
        near(one[1], two[1])
        np.testing.assert_array_equal(one[2], two[2])


@pytest.mark.parametrize("bad", [0, 127, 128, 500])
def test_columns_stop_at_the_block_of_a_bad_value(bad: int) -> None:
    rng = np.random.default_rng(0)
    columns = columns_of(rng, 600, ["f8", "f8", "f8"])
    columns[-1] = np.ones(600)
    columns[1][bad] = np.nan
    case = {
        "intercept": 0, "origin": np.zeros(0), "pivot": -1, "table": np.zeros((0, 0)), "known": np.zeros(0),
        "code": rng.integers(0, 6, 600), "action": np.zeros(600, dtype=np.int64),
    }  # fmt: skip
    one, two = (add_in_place(loops, columns, case) for loops in (kernels_rows, reference_rows))
    assert one[0] == two[0] == bad // BLOCK * BLOCK
    near(one[1], two[1])
    where, limits = np.array([(columns[1].ctypes.data, KINDS.index("f8"))]), np.array([[-1e70, 1e70]])
    for loops in (kernels_rows, reference_rows):
        assert loops.clean_blocks(where, limits, 600) == bad // BLOCK * BLOCK
        assert loops.clean_blocks(where, limits, bad) == bad


@pytest.mark.parametrize("narrow", [0, 1])
@pytest.mark.parametrize("weighted", [0, 1])
def test_buffers_that_compiled_code_filled_are_flushed_alike(narrow: int, weighted: int) -> None:
    rng, count, n_buffers, room, shift = np.random.default_rng(0), 5, 2, 40, 2
    layout, size = CirculantLayout(count), 4 if narrow else 8
    stride = size * 4 * layout.width
    found = []
    Z = np.round(rng.standard_normal((n_buffers * room, count)) * 8)
    codes = rng.integers(0, 4, n_buffers * room) + np.repeat([0, 4], room)
    for loops in (compiled_buffers, reference_rows):
        buffer = np.zeros((n_buffers * room + 1) * stride, dtype=np.uint8)
        rows = buffer[: n_buffers * room * stride].reshape(-1, stride)
        rows[:, : size * count] = Z.astype(f"f{size}").view(np.uint8)
        rows[:, size * (count - 1) : size * count] = codes.astype(f"i{size}")[:, None].view(np.uint8)
        buffers = PartitionBuffers(
            buffer.ctypes.data, stride, size * (count - 1), narrow,
            rng.uniform(size=n_buffers * room) * 0 + 0.5 if weighted else np.zeros(0), weighted,
            np.array([room, 17]), room, shift,
            *(np.zeros(n, dtype=np.int32) for n in (1 << shift, room, room)),
        )  # fmt: skip
        memory = np.zeros(8 * layout.length)
        loops.flush_buffers(0, 2, buffers, running(memory, count), Work.of(layout))
        assert not buffers.fill.any()
        found.append(memory.reshape(8, -1)[:, layout.offsets()])
    near(*found)
    i, j = triangle(count)
    rows_ = np.column_stack([Z[:, :-1], np.ones(len(Z))])[: room + 17]
    truth = np.zeros((8, i.size))
    np.add.at(truth, codes[: room + 17], (0.5 if weighted else 1.0) * rows_[:, i] * rows_[:, j])
    near(found[1], truth)


# Ratings


@pytest.mark.parametrize("k", [1, 3, 8, 9])
def test_sums_of_a_factorisation_agree(k: int) -> None:
    rng, m, p = np.random.default_rng(k), 6, 9
    for n in (0, 1, 300):
        code, other, value = rng.integers(0, m, n), rng.integers(0, p, n), rng.standard_normal(n)
        padded = np.zeros((p + 1, -(-k // 8) * 8))
        padded[:p, :k] = rng.standard_normal((p, k))
        sums, ordered = np.zeros((2, m, packed_size(k + 1))), []
        for loops, table in zip((kernels_ratings, reference_ratings), sums, strict=True):
            start, others, values = (
                np.zeros(m + 1, dtype=np.int64),
                np.zeros_like(other),
                np.zeros_like(value),
            )
            loops.by_code(code, other, value, start, others, values)
            ordered.append((start, others, values))
            for first, last in ((0, 2), (2, 2), (2, m)):
                loops.cross_products(start, others, values, first, last, k, padded.ravel(), table)
        for one, two in zip(*ordered, strict=True):
            np.testing.assert_array_equal(one, two)
        near(*sums)


# Expectation propagation


def rounds_of_both(
    information: Array, score: Array, constant: Array, gamma: Array, least: float
) -> list[tuple[bool, list[Array]]]:
    """Return of each backend whether all laws are Gaussian, and all that a round sets."""
    n, t, D = score.shape
    factors = information.mean(axis=0), score.mean(axis=0)
    results = []
    for loops in (kernels_propagation, reference_propagation):
        found = [np.empty(shape) for shape in ((t, n), (n, t), (n, t, D), (t, D, D), (t, D), (t,))]
        log_weights, nu = np.log(np.full(n, 1 / n)), factors[1].sum(axis=0)
        gaussian = loops.one_round(
            information, score, constant, log_weights, gamma, nu, *factors, least, *found
        )
        results.append((bool(gaussian), found))
    return results


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("D", [1, 3, 13])
@pytest.mark.parametrize("least", [0.0, 1e-3])
def test_rounds_of_propagation_agree(n: int, D: int, least: float) -> None:
    rng, t = np.random.default_rng(n + D), 9
    roots = rng.standard_normal((n, t, D, 4))
    information, score = roots @ roots.swapaxes(2, 3), 2 * rng.standard_normal((n, t, D))
    constant = rng.standard_normal((n, t))
    constant[0, :2] += 30.0  # two tasks have one label
    gamma = np.eye(D) + information.mean(axis=0).sum(axis=0)
    (one, compiled), (two, plain) = rounds_of_both(information, score, constant, gamma, least)
    assert one
    assert two
    for first, second in zip(compiled, plain, strict=True):
        near(first, second, room=1e-11)
    if least:
        np.testing.assert_array_equal(plain[3][:2], information[0, :2])
        np.testing.assert_array_equal(compiled[3][:2], information[0, :2])


def test_a_round_says_where_a_law_is_no_gaussian() -> None:
    information = np.tile(np.eye(2), (2, 3, 1, 1))
    results = rounds_of_both(information, np.ones((2, 3, 2)), np.zeros((2, 3)), np.eye(2) / 2, 0.0)
    assert [gaussian for gaussian, _ in results] == [False, False]


# The commands


@pytest.mark.slow
def test_small_work_neither_compiles_nor_loads_what_compiles(tmp_path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "HIEROPO_BACKEND"}
    environment["NUMBA_CACHE_DIR"] = str(tmp_path / "cache")
    program = """
import sys
from importlib.resources import files
from hieropo.cli import main
log = str(files("hieropo.data") / "thornton.parquet")
roles = ["--task", "villnum", "--action", "incentive", "--reward", "reward", "--context", "distvct"]
for words in (["fit", log, "-o", "villages", *roles], ["evaluate", "villages", log],
              ["inspect", "villages", "--task", "17"], ["decide", "villages", log, "-o", "decisions.parquet"]):
    sys.argv = ["hieropo", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
print("loaded:", [name for name in ("numba", "llvmlite") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("loaded: []\n")
    assert not (tmp_path / "cache").exists()


LATER = """
import sys
import numpy as np, pyarrow as pa
from numba.core import event
import hieropo, hieropo.passes.worker
rng = np.random.default_rng(0)
n = 900
log = pa.table({
    "shop": [f"shop {i}" for i in rng.integers(0, 30, n)],
    "action": np.array(["a", "b"])[rng.integers(0, 2, n)].tolist(),
    "age": rng.standard_normal(n), "reward": rng.standard_normal(n), "p": np.full(n, 0.5),
})
roles = dict(task="shop", action="action", reward="reward", context=["age"], pscore="p")
with event.install_recorder("numba:compile") as compiled:
    for few, prior in ((0, "crossed"), (10**9, "full")):  # in place, and by batches
        hieropo.passes.worker._FEW = few
        learner = hieropo.HierOPO(task_cov=prior).fit(log, **roles)
        learner.predict(log.drop_columns(["reward", "p"]))
        learner.evaluate(log)
        learner.policy_.choose("shop 1", [0.5])
print("compiled:", [entry[1].data["dispatcher"].__name__ for entry in compiled.buffer])
"""


@pytest.mark.slow
def test_after_the_command_nothing_is_left_to_compile() -> None:
    environment = {**os.environ, "HIEROPO_BACKEND": "compiled"}
    command = "from hieropo.cli import main; main(['compile', '--json'])"
    for program in (command, LATER):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout == "compiled: []\n"
