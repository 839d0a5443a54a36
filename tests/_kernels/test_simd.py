"""Every vector instruction and every access to memory by its address, against numpy."""

import numba
import numpy as np
import pytest

from hieropo._kernels.circulant import CirculantLayout
from hieropo._kernels.simd import lanes, pointers

LANES = lanes.LANES
load, store, constant = lanes.load, lanes.store, lanes.constant
times, larger, less = lanes.times, lanes.larger, lanes.less
inverse_root, reflection = lanes.inverse_root, lanes.reflection
add_tn, add_nn, add_nt, add_tv, add_nv = lanes.add_tn, lanes.add_nn, lanes.add_nt, lanes.add_tv, lanes.add_nv
lay, pick = lanes.lay, lanes.pick
word_at, code_at, put_code, bits_of = pointers.word_at, pointers.code_at, pointers.put_code, pointers.bits_of
pointer, fetch_ahead, less_product = pointers.pointer, pointers.fetch_ahead, pointers.less_product
lay_rows, scatter_columns, get_row = pointers.lay_rows, pointers.scatter_columns, pointers.get_row


@numba.njit
def of_vectors(x, y, z, value, out):
    a, b, c = load(x, 0), load(y, 0), load(z, 0)
    store(out, 0, a)
    store(out, 1, constant(value))
    store(out, 2, times(a, b))
    store(out, 3, larger(a, b))
    store(out, 4, less(c, a, b))
    store(out, 5, inverse_root(a, b))
    store(out, 6, reflection(c))
    store(out, 7, load(x, 1))


@pytest.mark.slow
def test_arithmetic_of_vectors() -> None:
    rng = np.random.default_rng(0)
    x, y, z = rng.standard_normal(2 * LANES), rng.standard_normal(LANES), np.abs(rng.standard_normal(LANES))
    x[:4], y[:4], z[3] = [2.0, 0.0, -1.0, np.nan], [0.0, 0.0, -2.0, 1.0], 0.0
    out = np.zeros(8 * LANES)
    of_vectors(x, y, z, 2.5, out)
    a, found = x[:LANES], out.reshape(8, LANES)
    some, s = a > y, np.sqrt(1.0 + z)
    with np.errstate(invalid="ignore", divide="ignore"):
        truth = [
            a, np.full(LANES, 2.5), a * y, np.where(some, a, y), z - a * y,
            np.where(some, 1.0 / np.sqrt(a), 0.0), np.where(z > 0.0, (1.0 + s) / (s * z), 0.0), x[LANES:],
        ]  # fmt: skip
    for one, two in zip(found, truth, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-15, atol=1e-15)


@numba.njit
def all_products(which, C, A, B, sizes, sign):
    rows, columns, n, e = sizes
    if which == 0:
        add_tn(C, 0, A, 0, B, 0, rows, columns, n, e, sign)
    elif which == 1:
        add_nn(C, 0, A, 0, B, 0, rows, columns, n, e, sign)
    elif which == 2:
        add_nt(C, 0, A, 0, B, 0, rows, columns, n, e, sign)
    elif which == 3:
        add_tv(C, 0, A, 0, B, 0, rows, n, e, sign)
    else:
        add_nv(C, 0, A, 0, B, 0, rows, n, e, sign)


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize(("rows", "columns", "n"), [(1, 1, 1), (4, 4, 3), (5, 7, 6), (8, 3, 0), (0, 4, 2)])
def test_products_of_matrices(which: int, rows: int, columns: int, n: int) -> None:
    e, rng = 13, np.random.default_rng(rows)
    A, B, C = (rng.standard_normal((e, e, LANES)) for _ in range(3))
    found = C.copy()
    all_products(which, found.ravel(), A.ravel(), B.ravel(), (rows, columns, n, e), -0.5)
    left = A[:n, :rows].swapaxes(0, 1) if which in (0, 3) else A[:rows, :n]
    if which < 3:
        right = B[:columns, :n].swapaxes(0, 1) if which == 2 else B[:n, :columns]
        truth = C[:rows, :columns] - 0.5 * np.einsum("pkl,kql->pql", left, right)
        np.testing.assert_allclose(found[:rows, :columns], truth, rtol=1e-13, atol=1e-13)
        whole = 4 * (-(-rows // 4)), 4 * (-(-columns // 4))  # tiles of four are written
        np.testing.assert_array_equal(found[whole[0] :], C[whole[0] :])
        np.testing.assert_array_equal(found[:, whole[1] :], C[:, whole[1] :])
    else:
        truth = C[0, :rows] - 0.5 * np.einsum("pkl,kl->pl", left, B[0, :n])
        np.testing.assert_allclose(found[0, :rows], truth, rtol=1e-13, atol=1e-13)
        np.testing.assert_array_equal(found[0, 4 * (-(-rows // 4)) :], C[0, 4 * (-(-rows // 4)) :])


@numba.njit
def side_by_side(S, row, n, R, addresses, T):
    lay(S, row, S.shape[1], R, addresses, 1, n, 3.0)
    pick(T, row, S.shape[1], R, addresses, 1, n, 1.0)


@pytest.mark.parametrize("n", [0, 7, 8, 19])
def test_rows_are_laid_side_by_side_and_picked_up(n: int) -> None:
    rng = np.random.default_rng(n)
    S, T = rng.standard_normal((11, 20)), np.zeros((11, 20))
    addresses, R = rng.permutation(30)[:20], np.zeros(40 * LANES)
    side_by_side(S, 2, n, R, addresses, T)
    whole = n // 8 * 8
    truth = np.zeros((40, LANES))
    truth[addresses[:whole] + 1] = 3.0 * S[2:10, :whole].T
    np.testing.assert_array_equal(R.reshape(40, LANES), truth)
    np.testing.assert_array_equal(T[2:10, :whole], 3.0 * S[2:10, :whole])
    assert not T[:, whole:].any()
    assert not T[10:].any()


@numba.njit
def by_address(address, kind, n, narrow):
    fetch_ahead(address)
    found = numba.carray(pointer(address, kind), (n,))
    return word_at(address + 3), code_at(address, narrow), found[n - 1]


@numba.njit
def of_numbers(x, a, b):
    return bits_of(x), less_product(x, a, b)


@numba.njit
def write_codes(address, code):
    put_code(address, code, 0)
    put_code(address + 8, code, 1)


def test_memory_by_its_address() -> None:
    raw = np.arange(40, dtype=np.uint8)
    raw[:8] = np.array([-5], dtype=np.int64).view(np.uint8)
    word, code, last = by_address(raw.ctypes.data, numba.float64, 2, 0)
    assert word == int.from_bytes(raw[3:11].tobytes(), "little")
    assert code == -5
    assert last == raw[8:16].view(np.float64)[0]
    assert by_address(raw.ctypes.data, numba.int32, 3, 1)[1:] == (-5, raw[8:12].view(np.int32)[0])
    write_codes(raw.ctypes.data, -7)
    assert raw[:8].view(np.int64)[0] == -7
    assert raw[8:12].view(np.int32)[0] == -7
    assert raw[12] == 12  # four bytes were written
    x, a, b = 1.0, 1.0 + 2.0**-30, 1.0 - 2.0**-30
    bits, difference = of_numbers(x, a, b)
    assert bits == np.float64(x).view(np.uint64)
    assert difference == x - a * b  # rounded twice, and not once


@numba.njit
def columns_to_rows(C, Z, width, rows, count, again):
    lay_rows(C, Z, width, rows, count, again)


@pytest.mark.parametrize("count", [2, 3, 5, 8, 13])
@pytest.mark.parametrize("rows", [1, 4, 7])
def test_columns_become_rows(count: int, rows: int) -> None:
    layout, rng = CirculantLayout(count), np.random.default_rng(count)
    C, Z = rng.standard_normal((count + 4, rows + 5)), np.zeros((rows + 4) * layout.row)
    columns_to_rows(C, Z, layout.row, rows, count, layout.again)
    found = Z.reshape(-1, layout.row)[:rows]
    np.testing.assert_array_equal(found[:, :count], C[:count, :rows].T)
    np.testing.assert_array_equal(found[:, count : count + layout.again], C[: layout.again, :rows].T)


@numba.njit
def wait_and_return(C, t, addresses, vectors, narrow, Z, count, again):
    scatter_columns(C, t, addresses, vectors, narrow)
    get_row(addresses[1], Z, 0, vectors, count, again, narrow)


@pytest.mark.parametrize("narrow", [0, 1])
@pytest.mark.parametrize("count", [3, 4, 9])
def test_rows_wait_in_memory_and_come_back(narrow: int, count: int) -> None:
    layout, rng = CirculantLayout(count), np.random.default_rng(count)
    C = rng.standard_normal((count + 4, 12))
    size = (4 if narrow else 8) * 4 * layout.width
    memory, Z = np.zeros(4 * size, dtype=np.uint8), np.zeros(layout.row + 8)
    addresses = memory.ctypes.data + size * np.array([2, 0, 3, 1])
    wait_and_return(C, 2, addresses, layout.width, narrow, Z, count, (layout.again + 3) // 4)
    kind = np.float32 if narrow else np.float64
    rows = memory.view(kind).reshape(4, -1)[[2, 0, 3, 1], :count]
    np.testing.assert_array_equal(rows, C[:count, 2:6].T.astype(kind))
    np.testing.assert_array_equal(Z[:count], C[:count, 3].astype(kind))
    np.testing.assert_array_equal(Z[count : count + layout.again], C[: layout.again, 3].astype(kind))
