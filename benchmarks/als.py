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
    print(f"{ratings.rating.size:,} ratings, rank {options.rank}, {options.iterations} iterations")
    for threads in sorted({1, processors()}):
        best = dict.fromkeys(contenders, (np.inf, np.inf))
        residual = {}
        for seed in range(options.repeat):
            for name, work in contenders.items():
                wall, used = time.perf_counter(), time.process_time()
                rows, columns = work(ratings, options, threads, seed)
                spent = time.perf_counter() - wall, time.process_time() - used
                best[name] = tuple(map(min, best[name], spent))
                rest = ratings.rating - (rows[ratings.user] * columns[ratings.movie]).sum(axis=1)
                residual[name] = rest.std()
        for name, (wall, used) in best.items():
            ratio = f", {best['cmfrec'][0] / wall:.2f} x cmfrec" if "cmfrec" in best else ""
            print(
                f"  {name:8s} {threads} thread(s)  {wall:6.2f} s, {used:5.2f} s of processor time{ratio}; "
                f"residual sd {residual[name]:.4f}"
            )


if __name__ == "__main__":
    main()
