"""Learning the hierarchy: hieropo against lme4, mixedlm-rs and statsmodels on the same rows, in one run.

    python benchmarks/hierarchy.py [--peers PYTHON] [--cases sleepstudy,d4m100,...] [--data DIR]

PYTHON is an interpreter with the packages mixedlm-rs and statsmodels (an environment of its own); lme4 is used where
``Rscript`` has it (Debian: r-cran-lme4). What is absent is left out. The model is a random coefficient for every
feature and task, full covariance. Printed: the log likelihood of each, how far below the best it is, in relative terms,
and CPU seconds of the fit alone, from data in memory. hieropo's seconds are split into the pass over rows and the fit.
One BLAS thread.
"""

import argparse
import csv
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import pyarrow.parquet as pq

import hieropo

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]

LME4 = """
suppressMessages(library(lme4))
a <- commandArgs(TRUE)
x <- read.csv(a[1])
f <- paste(grep("^x", names(x), value = TRUE), collapse = "+")
for (reml in c(TRUE, FALSE)) {
  t <- proc.time()
  m <- suppressWarnings(suppressMessages(lmer(as.formula(paste("y ~ 0 +", f, "+ (0 +", f, "| g)")), x, REML = reml,
    control = lmerControl(calc.derivs = FALSE, check.conv.singular = "ignore"))))
  t <- proc.time() - t
  cat(sprintf("%.12g %.6g\\n", as.numeric(logLik(m, REML = reml)), t[["user.self"]] + t[["sys.self"]]))
}
"""
PYTHON = """
import sys, time, warnings
import numpy as np
warnings.simplefilter("ignore")
x = np.loadtxt(sys.argv[1], delimiter=",", skiprows=1)
g, y, X = x[:, 0].astype(int), x[:, 1], np.ascontiguousarray(x[:, 2:])
if sys.argv[2] == "mixedlm-rs":
    from mixedlm_rs import MixedLM
else:
    from statsmodels.regression.mixed_linear_model import MixedLM
for reml in (True, False):
    t = time.process_time()
    m = MixedLM(y, X, groups=g, exog_re=X).fit(reml=reml)
    print(repr(float(m.llf)), time.process_time() - t)
"""


def simulated(
    d: int, m: int, n: int, *, rank: int | None = None, sd: float = 1.0, scales: float = 0.0
) -> Rows:
    rng = np.random.default_rng(d * 1000 + m)
    sizes = np.maximum(rng.poisson(n, m) if n > d else np.full(m, n), 1)
    task = np.repeat(np.arange(m), sizes)
    phi = rng.standard_normal((task.size, d))
    phi[:, 0] = 1.0
    theta = 1.0 + rng.standard_normal((m, rank or d)) @ rng.standard_normal((rank or d, d)) / np.sqrt(d)
    reward = (phi * theta[task]).sum(axis=1) + sd * rng.standard_normal(task.size)
    return task, phi * np.logspace(-scales, scales, d), reward


def sleepstudy(data: Path) -> Rows:
    table = pq.read_table(data / "sleepstudy.parquet")
    days = table["Days"].to_numpy().astype(float)
    task = np.unique(table["Subject"].to_pylist(), return_inverse=True)[1]
    return task, np.column_stack([np.ones(days.size), days]), table["Reaction"].to_numpy()


def cases(data: Path) -> dict[str, Callable[[], Rows]]:
    return {
        "sleepstudy": lambda: sleepstudy(data),
        "d4m100": lambda: simulated(4, 100, 50),
        "d10m100": lambda: simulated(10, 100, 50),
        "d4m100 rank 3": lambda: simulated(4, 100, 50, rank=3),
        "d4m1000 n4": lambda: simulated(6, 1000, 4),
        "d4m100 sd 1e-5": lambda: simulated(4, 100, 50, sd=1e-5),
        "d4m100 sd 1e5": lambda: simulated(4, 100, 50, sd=1e5),
        "d4m100 scales": lambda: simulated(4, 100, 50, scales=4.0),
        "d4m1e4": lambda: simulated(4, 10_000, 50),
        "d10m1e4": lambda: simulated(10, 10_000, 50),
        "d10m1e5": lambda: simulated(10, 100_000, 50),
    }


def ours(rows: Rows) -> Iterator[tuple[str, float, float, str]]:
    for criterion in ("reml", "ml"):
        start = time.process_time()
        moments = hieropo.Moments.from_arrays(*rows)
        middle = time.process_time()
        found = hieropo.estimate(moments, "full", criterion)
        end = time.process_time()
        note = f"{middle - start:.3f} s for rows, {found.chosen.evaluations} evaluations"
        yield criterion, -found.chosen.deviance / 2, end - middle, note


def peers(rows: Rows, python: str | None, folder: Path) -> Iterator[tuple[str, str, float, float]]:
    task, phi, reward = rows
    path = folder / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["g", "y", *(f"x{j}" for j in range(phi.shape[1]))])
        writer.writerows(
            [s, repr(y), *(repr(v) for v in x)]
            for s, y, x in zip(task.tolist(), reward.tolist(), phi.tolist(), strict=True)
        )
    commands = {}
    if python:
        commands["mixedlm-rs"] = [python, "-c", PYTHON, str(path), "mixedlm-rs"]
        if task.size <= 10_000:
            commands["statsmodels"] = [python, "-c", PYTHON, str(path), "statsmodels"]
    if shutil.which("Rscript") and task.size <= 10_000:
        script = folder / "fit.R"
        script.write_text(LME4)
        commands["lme4"] = ["Rscript", str(script), str(path)]
    for name, command in commands.items():
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            print(f"    {name}: failed ({last[:90]})")
            continue
        for criterion, line in zip(("reml", "ml"), done.stdout.split("\n"), strict=False):
            value, seconds = line.split()
            yield name, criterion, float(value), float(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", help="a Python interpreter that has mixedlm-rs and statsmodels")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("HIEROPO_DATA", "../shared/data")))
    parser.add_argument("--cases", default="", help="comma-separated; default all")
    options = parser.parse_args()
    known = cases(options.data)
    hieropo.estimate(hieropo.Moments.from_arrays(*simulated(2, 20, 9)))  # compile
    for name in options.cases.split(",") if options.cases else known:
        rows = known[name]()
        print(f"{name}: {rows[0].size:,} rows")
        lines = [("hieropo", *line) for line in ours(rows)]
        with tempfile.TemporaryDirectory() as folder:
            lines += [(*line, "") for line in peers(rows, options.peers, Path(folder))]
        for criterion in ("reml", "ml"):
            here = [line for line in lines if line[1] == criterion]
            best, fast = max(line[2] for line in here), here[0][3]
            for who, _, value, seconds, note in here:
                gap = (best - value) / max(abs(best), 1.0)
                print(
                    f"    {criterion:5s} {who:12s} log likelihood {value:18.8f}  {gap:8.1e} below  "
                    f"{seconds:8.3f} s  {seconds / fast:7.1f} x  {note}"
                )


if __name__ == "__main__":
    main()
