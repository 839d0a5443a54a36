"""Alternating least squares on MovieLens 1M: hieropo against cmfrec, in one run.

    python benchmarks/als.py DATA [--rank 10] [--iterations 15] [--repeat 5]

DATA is what `hieropo reproduce movielens --data` takes. cmfrec (`pip install cmfrec`) solves the same problem: explicit
ratings, ridge lambda = 1 that is not multiplied by the number of ratings, nothing centred, no biases, float64, exact
solves. Times are from ratings in memory to factors, with what each does to order them; programs take turns, and of each
the fastest of all repeats counts. The standard deviation of the training residuals shows that they do the same.
"""

import argparse
import os
import time

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import record

from hieropo._utils.threads import processors
from hieropo.reproduce.movielens.als import factorize
from hieropo.reproduce.movielens.ratings import read_ratings
from hieropo.reproduce.settings import settings_of, shipped


def ours(ratings, options, threads, seed):
    found = factorize(
        ratings.user, ratings.movie, ratings.rating, np.random.default_rng(seed),
        rank=options.rank, iterations=options.iterations, threads=threads,
    )  # fmt: skip
    return found.rows, found.columns


def cmfrec(ratings, options, threads, seed):
    from cmfrec import CMF
    from scipy.sparse import coo_matrix

    matrix = coo_matrix((ratings.rating, (ratings.user.astype(np.int32), ratings.movie.astype(np.int32))))
    model = CMF(
        k=options.rank, lambda_=1.0, niter=options.iterations, nthreads=threads, random_state=seed + 1, method="als",
        use_cg=False, user_bias=False, item_bias=False, center=False, scale_lam=False, use_float=False, verbose=False,
        precompute_for_predictions=False,
    )  # fmt: skip
    model.fit(matrix)
    return model.A_, model.B_


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--rank", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=15)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    ratings = read_ratings(options.data, settings_of(shipped(), "paper.toml").movielens.counts)
    contenders = {"hieropo": ours}
    try:
        import cmfrec as _  # noqa: F401
    except ImportError:
        print("cmfrec is not installed here: pip install cmfrec")
    else:
        contenders["cmfrec"] = cmfrec
    start = time.perf_counter()
    ours(ratings, argparse.Namespace(rank=options.rank, iterations=1), 1, 0)
    print(f"first call, which may compile: {time.perf_counter() - start:.2f} s")
    by_threads = {}
    for threads in sorted({1, processors()}):
        best = dict.fromkeys(contenders, (np.inf, np.inf))
        residual = {}
        for seed in range(options.repeat):
            for name, work in contenders.items():
                clock, used = time.perf_counter(), time.process_time()
                rows, columns = work(ratings, options, threads, seed)
                spent = time.perf_counter() - clock, time.process_time() - used
                best[name] = tuple(map(min, best[name], spent))
                rest = ratings.rating - (rows[ratings.user] * columns[ratings.movie]).sum(axis=1)
                residual[name] = float(rest.std())
        by_threads[str(threads)] = {
            name: {"clock": clock, "cpu": cpu, "residual": residual[name]}
            for name, (clock, cpu) in best.items()
        }
    sizes = {name: getattr(options, name) for name in ("rank", "iterations", "repeat")}
    record.finish("als", {"ratings": ratings.rating.size, **sizes, "threads": by_threads})


if __name__ == "__main__":
    main()
