"""Coefficients for each action: units that share one prior against one law of d = K p coefficients a task, in one run.

    python benchmarks/shared_actions.py [--tasks 10000] [--actions 20] [--width 5] [--rows 40]

Both start from the same rows, under the same hierarchy with a proper hyper-prior, and end with a policy's table and its
choices in one million requests (units) and ten thousand (others). "tied" adds an effect that all actions of a task have
in common, b_s ~ N(0, 0.2 I), to the units; its laws are others. CPU seconds are of the whole process, memory is what
the arrays hold: moments, table, and the largest that numpy had allocated at once on the way (tracemalloc). The two give
the same evidence and the same laws, which is printed. Compiled loops are loaded before.
"""

import argparse
import os
import time
import tracemalloc
from dataclasses import replace

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

import hieropo
from hieropo.core.shared_actions import SharedActions, condition_shared
from hieropo.core.units import UnitAccumulator


def draw(m, K, p, n, seed=0):
    rng = np.random.default_rng(seed)
    features = hieropo.per_action(range(K), [f"x{j}" for j in range(p - 1)])
    rows = m * n
    task, action = np.repeat(np.arange(m), n), rng.integers(0, K, rows)
    context = rng.standard_normal((rows, p - 1))
    return features, task, action, context, rng.standard_normal(rows)


def priors(K, p):
    hyper = hieropo.Gaussian(np.zeros(p), np.eye(p))
    shared = SharedActions(hyper, 0.3 * np.eye(p), 0.2 * np.eye(p), 1.0)
    cov = np.kron(np.ones((K, K)), hyper.cov) + np.kron(np.eye(K), shared.action_cov)
    dense = hieropo.Hierarchy(
        hieropo.Gaussian(np.zeros(K * p), cov), np.kron(np.eye(K), shared.task_cov), 1.0
    )
    return shared, dense


def unit_moments(features, task, action, context, reward, piece=100_000):
    total = UnitAccumulator(features)
    for start in range(0, len(task), piece):
        part = slice(start, start + piece)
        total.add(task[part], action[part], context[part], reward[part])
    return total.moments()


def dense_moments(features, task, action, context, reward, piece=100_000):
    total = hieropo.Accumulator(features.dim, features=features.fingerprint)
    for start in range(0, len(task), piece):
        part = slice(start, start + piece)
        total.add(task[part], features.phi(context[part], action[part]), reward[part])
    return total.moments()


def measured(work):
    """Result, CPU seconds and the peak of memory in MB; the peak is of a second run, since tracing costs time."""
    start = time.process_time()
    result = work()
    seconds = time.process_time() - start
    del result
    tracemalloc.start()
    result = work()
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return result, seconds, peak


def route(name, make, condition, hierarchy, features, requests):
    moments, made, peak_made = measured(make)

    def known():
        posterior = condition(moments, hierarchy)
        return posterior, posterior.table()

    found, conditioned, peak = measured(known)
    posterior, table = found
    policy = hieropo.LCBPolicy(posterior, features)
    tasks, context = requests
    policy.choose_many(tasks[:100], context[:100])
    start = time.process_time()
    policy.choose_many(tasks, context)
    each = (time.process_time() - start) / len(tasks) * 1e6
    sums = moments.sums.nbytes / 1e6
    laws = (table.means.nbytes + table.covs.nbytes) / 1e6
    print(
        f"  {name:6s} moments {made:7.2f} s {sums:7.0f} MB (peak {peak_made:6.0f})   condition and table "
        f"{conditioned:7.3f} s {laws:7.0f} MB (peak {peak:6.0f})   one request {each:6.2f} us"
    )
    return posterior, (made, conditioned, each, sums, laws)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--actions", type=int, default=20)
    parser.add_argument("--width", type=int, default=5)
    parser.add_argument("--rows", type=int, default=40)
    options = parser.parse_args()
    m, K, p = options.tasks, options.actions, options.width
    small = draw(50, K, p, options.rows, seed=1)
    shared, dense = priors(K, p)
    condition_shared(unit_moments(*small), shared).table()  # compile
    hieropo.condition(dense_moments(*small), dense).table()
    log = draw(m, K, p, options.rows)
    features = log[0]
    rng = np.random.default_rng(2)
    n = 1_000_000
    requests = rng.integers(0, m, n), rng.standard_normal((n, p - 1))
    few = requests[0][: n // 100], requests[1][: n // 100]
    print(f"{m:,} tasks, {K} actions of {p} features (d = {K * p}), {len(log[1]):,} rows; CPU seconds")
    units, ours = route("units", lambda: unit_moments(*log), condition_shared, shared, features, requests)
    tied = replace(shared, effect_cov=0.2 * np.eye(p))
    condition_shared(unit_moments(*small), tied).table()
    route("tied", lambda: unit_moments(*log), condition_shared, tied, features, few)
    whole, theirs = route("dense", lambda: dense_moments(*log), hieropo.condition, dense, features, few)
    ratios = [their / our for their, our in zip(theirs, ours, strict=True)]
    print(
        "  dense / units: moments {:.0f} x, condition and table {:.0f} x, a request {:.0f} x, "
        "memory of moments {:.0f} x and of the table {:.0f} x".format(*ratios)
    )
    gap = max(np.abs(units.task(s).cov - whole.task(s).cov).max() for s in (0, m // 2, m - 1))
    print(
        f"  log evidence {units.log_evidence:.6f} and {whole.log_evidence:.6f}; largest difference of cov {gap:.2g}"
    )


if __name__ == "__main__":
    main()
