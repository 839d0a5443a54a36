"""Cost of the first seconds: importing, the first fit with nothing compiled, the first fit of a later process.

    python benchmarks/startup.py [--repeat 5]

Every figure is of fresh processes; the median is printed. The log is small: it is fitted in numpy, and nothing
compiles. HIEROPO_BACKEND=compiled shows what compiling costs: the cache of compiled loops is put into a new directory
for the cold runs. ``import hieropo`` may take at most 0.15 s more than ``import numpy``; the first fit 1.5 s.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

import record

TIMED = "import time; start = time.perf_counter(); import {0}; print(time.perf_counter() - start)"
FIT = """
import time
import numpy as np, pyarrow as pa
import hieropo
rng = np.random.default_rng(0)
n = 4000
log = pa.table({
    "task": [f"store {i}" for i in rng.integers(0, 50, n)],
    "action": np.array(["a", "b", "c"])[rng.integers(0, 3, n)].tolist(),
    "age": rng.standard_normal(n),
    "reward": rng.standard_normal(n),
})
start = time.perf_counter()
learner = hieropo.HierOPO().fit(log, task="task", action="action", reward="reward", context=["age"])
middle = time.perf_counter()
learner.policy_.choose("store 1", [0.5])
print(middle - start, time.perf_counter() - middle)
"""


def run(program: str, cache: str | None = None) -> list[float]:
    environment = {**os.environ, **({"NUMBA_CACHE_DIR": cache} if cache else {})}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return [float(value) for value in done.stdout.split()]


def median(runs: list[list[float]], column: int = 0) -> float:
    return statistics.median(values[column] for values in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    numpy, hieropo = ([run(TIMED.format(name)) for _ in range(repeat)] for name in ("numpy", "hieropo"))
    cold, warm = [], []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(run(FIT, cache))
            warm.append(run(FIT, cache))
    fits = {
        name: {"fit": median(runs), "choice": median(runs, 1)}
        for name, runs in (("nothing compiled", cold), ("from the cache", warm))
    }
    imports = {"numpy": median(numpy), "hieropo": median(hieropo)}
    backend = os.environ.get("HIEROPO_BACKEND", "")
    record.finish("startup", {"repeat": repeat, "import": imports, "fits": fits}, part=backend)


if __name__ == "__main__":
    main()
