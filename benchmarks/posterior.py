"""Posteriors of many tasks from given moments: hieropo against the best batched numpy, in one run.

    python benchmarks/posterior.py [--tasks 1000000] [--dim 10] [--repeat 3]

Both start from moments in memory, each in the layout that suits it, with known hyper-parameters, and end with the
hyper-posterior, all task means and all task covariances. The numpy formulations use numpy.linalg and matmul on
stacks, chunked so that a chunk stays in cache; the fastest of them in this run is the yardstick. One thread means one
processor for the whole process (sched_setaffinity) and one BLAS thread.

The limit: the two passes take about 1.5 d^3 + 3.2 d^3 multiply-adds a task (see _kernels/tree_steps.py). The
program shows the rate reached on one thread.
"""

import argparse
import os
import time

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import record

import hieropo
from hieropo._kernels import backend
from hieropo._utils.packed import pack, packed_size
from hieropo.rows.keys import Keys


def moments_of(tasks: int, dim: int, seed: int) -> hieropo.Moments:
    """Moments of tasks with 20 + dim rows each; 4096 distinct ones, repeated."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((4096, 20 + dim, dim + 2))
    z[:, :, -1] = 1.0
    distinct = pack(np.einsum("tni,tnj->tij", z, z))
    sums = np.tile(distinct, (tasks // 4096 + 1, 1))[:tasks]
    rows = np.full(tasks, 20.0 + dim)
    return hieropo.Moments(Keys(np.arange(tasks)), dim, sums, rows, np.zeros(tasks))


def numpy_keep(G, B, S0, mu_q, S_q, chunk):
    """A = (I + G Sigma_0)^-1 once a task, kept for the way down."""
    m, d, _ = G.shape
    A = np.empty_like(G)
    P, b, eye = np.zeros((d, d)), np.zeros(d), np.eye(d)
    for start in range(0, m, chunk):
        part = slice(start, start + chunk)
        A[part] = np.linalg.inv(eye + G[part] @ S0)  # noqa: TID251  # the peer
        P += (A[part] @ G[part]).sum(axis=0)
        b += (A[part] @ B[part, :, None]).sum(axis=0)[:, 0]
    return numpy_down(A, G, B, S0, mu_q, S_q, P, b, chunk)


def numpy_solve(G, B, S0, mu_q, S_q, chunk):
    """P and b from one solve, A by inverting again on the way down."""
    m, d, _ = G.shape
    P, b, eye = np.zeros((d, d)), np.zeros(d), np.eye(d)
    for start in range(0, m, chunk):
        part = slice(start, start + chunk)
        both = np.linalg.solve(eye + G[part] @ S0, np.concatenate([G[part], B[part, :, None]], axis=2)).sum(
            axis=0
        )
        P, b = P + both[:, :d], b + both[:, d]
    return numpy_down(None, G, B, S0, mu_q, S_q, P, b, chunk)


def numpy_down(A, G, B, S0, mu_q, S_q, P, b, chunk):  # noqa: PLR0913, PLR0917
    m, d, _ = G.shape
    eye = np.eye(d)
    S_bar = S_q @ np.linalg.inv(eye + P @ S_q)  # noqa: TID251
    mu_bar = mu_q + S_bar @ (b - P @ mu_q)
    means, covs = np.empty((m, d)), np.empty((m, d, d))
    for start in range(0, m, chunk):
        part = slice(start, start + chunk)
        a = np.linalg.inv(eye + G[part] @ S0) if A is None else A[part]  # noqa: TID251
        tilde = S0 @ a
        means[part] = mu_bar + (tilde @ (B[part] - G[part] @ mu_bar)[:, :, None])[:, :, 0]
        covs[part] = tilde + a.transpose(0, 2, 1) @ (S_bar @ a)
    return mu_bar, S_bar, means, covs


def ours(moments, hierarchy):
    posterior = hieropo.condition(moments, hierarchy)
    table = posterior.table()
    return posterior.hyper.mean, posterior.hyper.cov, table.means, table.covs


def timed(work, repeat):
    times, result = [], None
    for _ in range(repeat):
        result = None  # free the last result's memory first
        start = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - start)
    return min(times), result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    m, d = options.tasks, options.dim
    rng = np.random.default_rng(0)
    root = rng.standard_normal((d, d)) / np.sqrt(d)
    S0, S_q, mu_q = root @ root.T + 0.1 * np.eye(d), np.eye(d), np.zeros(d)
    moments = moments_of(m, d, seed=1)
    hierarchy = hieropo.Hierarchy(hieropo.Gaussian(mu_q, S_q), S0, 1.0)
    G = np.empty((m, d, d))
    rows, columns = np.triu_indices(d)
    G[:, rows, columns] = G[:, columns, rows] = moments.sums[:, columns * (columns + 1) // 2 + rows]
    B = moments.sums[:, packed_size(d) : packed_size(d) + d].copy()
    with backend.forced(backend.COMPILED):  # so few tasks would load no compiled loop
        ours(moments_of(64, d, seed=1), hierarchy)

    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, processors[:1])
    peers = {}
    for name, work in {"keep the inverse": numpy_keep, "solve, invert again": numpy_solve}.items():
        for chunk in (256, 2048, 16384):
            seconds, expected = timed(lambda w=work, c=chunk: w(G, B, S0, mu_q, S_q, c), options.repeat)
            peers[f"{name}, chunks of {chunk}"] = seconds
    one, found = timed(lambda: ours(moments, hierarchy), options.repeat)
    os.sched_setaffinity(0, processors)
    two, _ = timed(lambda: ours(moments, hierarchy), options.repeat)
    triangle = columns * (columns + 1) // 2 + rows
    error = max(
        np.abs(found[2] - expected[2]).max(),
        np.abs(found[3][:, triangle] - expected[3][:, rows, columns]).max(),
    )
    results = {
        "tasks": m,
        "dim": d,
        "difference": float(error),
        "peers": peers,
        "processors": len(processors),
    }
    size = 8 * (2 * packed_size(d + 1) + d + packed_size(d))  # bytes that a task moves
    results |= {"seconds": {"1": one, "2": two}, "bytes": size}
    record.finish("posterior", results, part=f"d = {d}")


if __name__ == "__main__":
    main()
