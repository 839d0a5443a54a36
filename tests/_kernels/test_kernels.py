"""Compiled loops: they run without a cache and from many threads; chunks and threads do not change results."""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import pytest

import hieropo
from hieropo import Gaussian, Hierarchy, Moments, condition
from hieropo._kernels import jit
from hieropo._kernels.circulant import CirculantLayout
from hieropo._kernels.circulant_updates import add_circulant, add_run
from hieropo._utils.packed import triangle
from hieropo.model import steps

PROGRAM = """
import numpy as np
from hieropo._kernels import ids  # compiled in half a second; it calls intrinsics of another module
text = np.frombuffer(b"twenty-four bytes of it.", dtype=np.uint8)
print(ids._hashed(text.ctypes.data, 0, text.size))
"""


@pytest.mark.slow
def test_without_a_place_for_the_cache_they_still_run(tmp_path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    answers = []
    for place in [str(blocked / "cache"), str(tmp_path / "cache")]:
        environment = {**os.environ, "NUMBA_CACHE_DIR": place, "HIEROPO_BACKEND": "compiled"}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        answers.append(int(done.stdout))
    assert answers[0] == answers[1]
    assert list((tmp_path / "cache").rglob("*.nbc"))


@pytest.mark.slow
def test_an_edit_of_any_compiled_source_is_seen(tmp_path) -> None:
    package = tmp_path / "hieropo"
    shutil.copytree(Path(hieropo.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        "HIEROPO_BACKEND": "compiled",
    }

    def run() -> int:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    before = run()
    assert run() == before
    pointers = package / "_kernels" / "simd" / "pointers.py"
    source = pointers.read_text()
    edited = source.replace(
        "        value.align = 1\n        return value\n",
        "        value.align = 1\n        return builder.add(value, number(1))\n",
    )
    assert edited != source
    pointers.write_text(edited)
    assert run() != before


def test_the_mark_of_the_cache_covers_all_that_kernels_import() -> None:
    kernels = Path(hieropo.__file__).parent / "_kernels"
    read = {f"_utils.{Path(name).stem}" for name in jit._READ}
    imported = {
        name
        for file in kernels.rglob("*.py")
        for name in re.findall(r"^from hieropo\.([\w.]+) import", file.read_text(), re.MULTILINE)
        if not name.startswith("_kernels")
        and not jit._PLAIN & {file.stem, file.parent.name}
        and file.stem != "jit"  # it compiles the others and holds no loop
    }
    assert imported <= read


@pytest.fixture(params=["reference", "compiled"])
def backend(request, monkeypatch) -> str:
    monkeypatch.setenv("HIEROPO_BACKEND", request.param)
    return request.param


def problem(m: int, d: int = 3) -> tuple[Moments, Hierarchy]:
    rng = np.random.default_rng(0)
    task = rng.integers(0, m, 6 * m)
    moments = Moments.from_arrays(task, rng.standard_normal((6 * m, d)), rng.standard_normal(6 * m))
    return moments, Hierarchy(Gaussian(np.zeros(d), np.eye(d)), np.eye(d), 1.0)


@pytest.mark.usefixtures("backend")
def test_many_threads_at_once_get_equal_answers() -> None:
    moments, hierarchy = problem(500)

    def work(_: int) -> tuple[float, bytes]:
        posterior = condition(moments, hierarchy)
        return posterior.log_evidence, posterior.table().covs.tobytes()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(work, range(32)))
    assert len(set(answers)) == 1


@pytest.mark.usefixtures("backend")
def test_the_number_of_threads_does_not_change_the_answer(monkeypatch) -> None:
    moments, hierarchy = problem(1000)
    monkeypatch.setattr(steps, "_CHUNK", 104)
    many = condition(moments, hierarchy)
    table = many.table()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    one = condition(moments, hierarchy)
    assert one.log_evidence == many.log_evidence
    np.testing.assert_array_equal(one.table().covs, table.covs)
    np.testing.assert_array_equal(one.table().means, table.means)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("d", [1, 2, 5, 9, 17, 33])
def test_every_dimension_agrees_with_numpy(d: int) -> None:
    moments, hierarchy = problem(20, d)
    posterior = condition(moments, hierarchy)
    eye = np.eye(d)
    P, b = np.zeros((d, d)), np.zeros(d)
    for s in moments.tasks:
        A = np.linalg.solve(eye + moments.gram(s), np.column_stack([moments.gram(s), moments.cross(s)]))
        P, b = P + A[:, :d], b + A[:, d]
    np.testing.assert_allclose(posterior.hyper.mean, np.linalg.solve(eye + P, b), rtol=1e-9, atol=1e-11)
    for s in moments.tasks[:3]:
        G = moments.gram(s)
        tilde = np.linalg.solve(eye + G, eye)
        cov = tilde + tilde @ posterior.hyper.cov @ tilde
        np.testing.assert_allclose(posterior.task(s).cov, cov, rtol=1e-9, atol=1e-11)


@numba.njit
def one_by_one(address, left, right, rows, stride, sizes):
    for t in range(rows):
        place = t * stride
        add_circulant(address, left, place, right, place, sizes[0], sizes[1], sizes[2], sizes[3])


@numba.njit
def in_a_run(address, left, right, rows, stride, sizes):
    add_run(address, left, 0, right, 0, rows, stride, sizes[0], sizes[1], sizes[2], sizes[3])


@pytest.mark.parametrize("count", [2, 3, 5, 8, 11, 12, 13, 16, 20, 21, 24, 33, 34, 50])
def test_rows_of_a_run_give_the_same_bits_as_rows_one_by_one(count) -> None:
    layout, (i, j) = CirculantLayout(count), triangle(count)
    rng = np.random.default_rng(count)
    for rows in (1, 2, 7):
        Z, weight = rng.standard_normal((rows, count)), rng.uniform(0.5, 2.0, (rows, 1))
        right, left = np.zeros((2, rows, layout.row))
        right[:, :count], right[:, count : count + layout.again] = Z, Z[:, : layout.again]
        left[:, :count] = weight * Z
        start = rng.standard_normal(layout.length)
        found = [start.copy(), start.copy()]
        for way, sums in zip((one_by_one, in_a_run), found, strict=True):
            sizes = layout.count, layout.whole, layout.width, layout.last
            way(sums.ctypes.data, left.reshape(-1), right.reshape(-1), rows, layout.row, sizes)
        assert (found[0] == found[1]).all()
        added = (found[0] - start)[layout.offsets()]
        np.testing.assert_allclose(added, (weight * Z[:, i] * Z[:, j]).sum(axis=0), rtol=1e-12, atol=1e-13)
