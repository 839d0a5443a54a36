"""Speed of choices: ratios to the best of several NumPy formulations, measured in one run.

    python benchmarks/choice.py            # a million requests, about two minutes
    python benchmarks/choice.py --quick    # a tenth of it

Batches: 10 candidates of 10 features each, 100,000 tasks. NumPy is given covariances that are already full
matrices, which spares it the unpacking, works on pieces that stay in the cache (several sizes are tried, the
best is taken) and runs on one thread. Rounds take turns; the ratio is that of the fastest rounds. Both are
given the rows of the tasks in the table; looking ids up is timed by itself.

Limits. One request reads 800 bytes of features in order and 520 bytes at a random place of a table of 52 MB,
and needs 750 multiply-adds. "reading alone" touches the same bytes and does little else; "computing alone"
answers requests whose data are in the cache. On one core of a Zen 4 server (2.6 GHz nominal, a shared virtual
machine) reading takes about 100 ns a request and computing about 95 ns, of which half is multiply-adds (they
reach 29 Gflop/s at d = 32, K = 100) and half turning the candidates on their side, square roots, comparisons.
Choosing takes 150 ns: the two overlap in part, so no rearrangement of the arithmetic could save more than a
third, and a second thread gains what the memory has left.

One decision: ``policy.choose(task, phi=phi)`` on a policy mapped from disk and on one in memory. Nine tenths
of it are Python: finding the task, checking phi, entering and leaving the compiled loop, making the tuple.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import numba
import numpy as np
import record

from hieropo._kernels import choice as kernels
from hieropo._utils.packed import pack
from hieropo.model.gaussian import Gaussian
from hieropo.model.table import PosteriorTable
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.keys import Keys
from hieropo.storage.load import load_policy
from hieropo.storage.save import save_policy

Array = np.ndarray[Any, np.dtype[Any]]
Case = tuple[Array, Array, Array, Array]  # phi, rows, means, full covs
PESSIMISM = 0.1
os.environ.setdefault(
    "HIEROPO_BACKEND", "compiled"
)  # policies in the cache are small, and would be scored by numpy
PIECES = (64, 256, 1024, 4096)


class Rows:
    """Keys whose ids are the rows of the table themselves."""

    def __init__(self, m: int) -> None:
        self.m = m

    def __len__(self) -> int:
        return self.m

    def find(self, key: int) -> int:
        return key

    def locate(self, ids: Array) -> Array:
        return ids

    def unknown_message(self, key: object, row: int | None = None) -> str:
        return f"{key!r}, row {row}"


def make(m: int, d: int, seed: int = 0) -> tuple[PosteriorTable, Array]:
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((m, d, d)) / np.sqrt(d)
    covs = factor @ factor.transpose(0, 2, 1)
    keys = Keys(np.arange(m))
    prior = Gaussian(np.zeros(d), np.eye(d))
    return PosteriorTable.joint(
        keys, rng.standard_normal((m, d)), pack(covs), np.zeros(m, np.int64), prior
    ), covs


def pick(mean: Array, var: Array) -> tuple[Array, ...]:
    sd = np.sqrt(np.maximum(var, 0.0, out=var), out=var)
    bound = mean - PESSIMISM * sd
    best = bound.argmax(axis=1)
    each = np.arange(len(best))
    return best, bound[each, best], mean[each, best], sd[each, best]


def matmul_sum(phi: Array, mean: Array, cov: Array) -> tuple[Array, ...]:
    product = phi @ cov
    product *= phi
    return pick((phi @ mean[:, :, None])[:, :, 0], product.sum(axis=2))


def matmul_ones(phi: Array, mean: Array, cov: Array) -> tuple[Array, ...]:
    product = phi @ cov
    product *= phi
    return pick((phi @ mean[:, :, None])[:, :, 0], product @ np.ones(phi.shape[2]))


def matmul_vecdot(phi: Array, mean: Array, cov: Array) -> tuple[Array, ...]:
    return pick(np.matvec(phi, mean), np.vecdot(phi @ cov, phi))


def outer_product(phi: Array, mean: Array, cov: Array) -> tuple[Array, ...]:
    n, K, d = phi.shape
    squares = (phi[:, :, :, None] * phi[:, :, None, :]).reshape(n, K, d * d)
    return pick((phi @ mean[:, :, None])[:, :, 0], (squares @ cov.reshape(n, d * d, 1))[:, :, 0])


def einsum(phi: Array, mean: Array, cov: Array) -> tuple[Array, ...]:
    return pick(np.einsum("nki,ni->nk", phi, mean), np.einsum("nki,nki->nk", phi @ cov, phi))


FORMULATIONS = (matmul_sum, matmul_ones, matmul_vecdot, outer_product, einsum)


def in_pieces(formulation: Callable[..., Any], piece: int, case: Case) -> list[Array]:
    phi, rows, means, covs = case
    parts = []
    for start in range(0, len(rows), piece):
        part = rows[start : start + piece]
        parts.append(formulation(phi[start : start + piece], means[part], covs[part]))
    return [np.concatenate(values) for values in zip(*parts, strict=True)]


fetch = kernels._fetch


@numba.njit(nogil=True, fastmath=True)
def touch(means: Array, covs: Array, rows: Array, phi: Array) -> float:
    """Read what choosing must read."""
    total = 0.0
    for r in range(phi.shape[0]):
        soon = rows[min(r + 8, rows.size - 1)]
        fetch(np.int64(covs[soon].ctypes.data), covs.shape[1])
        fetch(np.int64(means[soon].ctypes.data), means.shape[1])
        for k in range(phi.shape[1]):
            for j in range(phi.shape[2]):
                total += phi[r, k, j]
        row = rows[r]
        for j in range(means.shape[1]):
            total += means[row, j]
        for p in range(covs.shape[1]):
            total += covs[row, p]
    return total


def seconds(work: Callable[[], Any]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def best_pieces(case: Case) -> dict[str, int]:
    """Each formulation's best piece, found on a twentieth of the requests."""
    phi, rows, means, covs = case
    some = max(len(rows) // 20, 4096)
    sample = (phi[:some], rows[:some], means, covs)
    found = {}
    for formulation in FORMULATIONS:
        times = {
            piece: min(seconds(lambda f=formulation, p=piece: in_pieces(f, p, sample)) for _ in range(3))
            for piece in PIECES
        }
        found[formulation.__name__] = min(times, key=lambda piece: times[piece])
    return found


def batches(n: int, m: int, rounds: int) -> dict[str, Any]:
    """Seconds of choices for all requests, by each way."""
    K = d = 10
    table, covs = make(m, d)
    rng = np.random.default_rng(1)
    phi, tasks = rng.standard_normal((n, K, d)), rng.integers(0, m, n)
    case = (phi, tasks, table.means, covs)
    policy = LCBPolicy(replace(table, keys=Rows(m)))
    truth = in_pieces(matmul_sum, 1024, case)
    ours = policy.choose_many(tasks, phi=phi)
    for mine, other in zip(ours, truth, strict=True):
        np.testing.assert_allclose(mine[:, 0], other, rtol=1e-9, atol=1e-9)
    works: dict[str, Callable[[], Any]] = {}
    for name, piece in best_pieces(case).items():
        formulation = globals()[name]
        works[f"numpy {name}, {piece} a piece"] = lambda f=formulation, p=piece: in_pieces(f, p, case)
    works["choose_many, 1 thread"] = lambda: policy.choose_many(tasks, phi=phi, threads=1)
    works["choose_many, 2 threads"] = lambda: policy.choose_many(tasks, phi=phi, threads=2)
    works["looking ids up alone"] = lambda: table.keys.locate(tasks)
    works["reading alone"] = lambda: touch(table.means, table.covs, tasks, phi)
    works["reading alone"]()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(seconds(work))
    fastest = {name: min(values) for name, values in times.items()}
    return {"requests": n, "tasks": m, "rounds": rounds, "seconds": fastest}


def computing_alone() -> Iterator[dict[str, float]]:
    """Times of requests whose data stay in the cache, on one thread."""
    for n, K, d, m in ((2000, 10, 10, 100), (8000, 4, 4, 100), (80, 100, 32, 20), (50, 50, 100, 4)):
        table, _ = make(m, d)
        rng = np.random.default_rng(1)
        phi, tasks = rng.standard_normal((n, K, d)), rng.integers(0, m, n)
        policy = LCBPolicy(replace(table, keys=Rows(m)))
        time = min(seconds(lambda: policy.choose_many(tasks, phi=phi, threads=1)) for _ in range(200))  # noqa: B023
        flop = 2 * n * K * (d * (d + 1) / 2 + 2 * d)
        yield {"d": d, "K": K, "ns": time / n * 1e9, "gflops": flop / time / 1e9}


def decisions(count: int, m: int) -> dict[str, dict[str, float]]:
    """Microseconds of one decision, ``policy.choose(task, phi=phi)``."""
    K = d = 10
    table, _ = make(m, d)
    rng = np.random.default_rng(2)
    phi = rng.standard_normal((1000, K, d))
    tasks = rng.integers(0, m, count).tolist()
    microseconds = {}
    with tempfile.TemporaryDirectory() as folder:
        path = save_policy(LCBPolicy(table), Path(folder) / "policy")
        for name, policy in (("from disk", load_policy(path).policy), ("in memory", LCBPolicy(table))):
            policy.choose(0, phi=phi[0])
            spent = np.array(list(one_by_one(policy, tasks, phi))) / 1e3
            quantiles = np.percentile(spent, [50, 99, 99.9]).tolist()
            microseconds[name] = dict(zip(("p50", "p99", "p99.9"), quantiles, strict=True))
    return microseconds


def one_by_one(policy: LCBPolicy, tasks: list[int], phi: Array) -> Iterator[int]:
    for r, task in enumerate(tasks):
        candidates = phi[r % len(phi)]
        start = perf_counter_ns()
        policy.choose(task, phi=candidates)
        yield perf_counter_ns() - start


def on_one_blas_thread() -> None:
    """Start anew where the environment says otherwise, or names the BLAS kernels of another processor."""
    wanted = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    if "OPENBLAS_CORETYPE" in os.environ or any(os.environ.get(k) != v for k, v in wanted.items()):
        kept = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
        os.execve(sys.executable, [sys.executable, *sys.argv], {**kept, **wanted})


def main() -> None:
    on_one_blas_thread()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    results = batches(100_000 if quick else 1_000_000, 10_000 if quick else 100_000, 5 if quick else 7)
    cached, m = list(computing_alone()), 100_000
    decision = decisions(20_000 if quick else 100_000, m)
    record.finish("choice", {**results, "cached": cached, "policy_tasks": m, "decision": decision})


if __name__ == "__main__":
    main()
