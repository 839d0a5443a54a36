"""Learning the hierarchy: hieropo against lme4, mixedlm-rs and statsmodels on the same rows, in one run.

    python benchmarks/hierarchy.py [--peers PYTHON] [--cases sleepstudy,d4m100,...] [--data DIR]

PYTHON is an interpreter with the packages mixedlm-rs and statsmodels (an environment of its own); lme4 is used where
``Rscript`` has it (Debian: r-cran-lme4). What is absent is left out. The model is a random coefficient for every
feature and task, full covariance. Printed: the log likelihood of each, how far below the best it is, in relative terms,
CPU seconds of the fit alone, from data in memory, and by how much the fit raised the peak of resident memory (Linux;
R's is not measured). Every fit is a process of its own; hieropo's seconds are split into the pass over rows and the
fit. One BLAS thread.
"""

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"
# Else the small fit before the clock starts loads no compiled code.
os.environ["HIEROPO_BACKEND"] = "compiled"

import numpy as np
import pyarrow.parquet as pq

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
  cat(sprintf("%s\\t%.12g\\t%.6g\\tnan\\t\\n", if (reml) "reml" else "ml", as.numeric(logLik(m, REML = reml)),
    t[["user.self"]] + t[["sys.self"]]))
}
"""
FIT = """
import os, re, sys, time, warnings
import numpy as np
warnings.simplefilter("ignore")
x = np.load(sys.argv[1])
g, y, X = x["task"], x["reward"], x["phi"]
del x

def status(key):
    text = open("/proc/self/status").read() if os.path.exists("/proc/self/status") else ""
    found = re.search(key + r":\\s+(\\d+)", text)
    return int(found[1]) / 1024 if found else float("nan")

def watched(work):
    if os.path.exists("/proc/self/clear_refs"):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    before, start = status("VmRSS"), time.process_time()
    found = work()
    spent = time.process_time() - start
    return found, spent, status("VmHWM") - before

def report(criterion, value, spent, memory, note=""):
    print(criterion, repr(float(value)), spent, memory, note, sep="\\t")
"""
HIEROPO = """
import hieropo
few = np.arange(120) // 6
hieropo.estimate(hieropo.Moments.from_arrays(few, np.random.default_rng(0).normal(size=(120, 2)), few % 7 + 0.1 * few))
moments, rows, _ = watched(lambda: hieropo.Moments.from_arrays(g, X, y))
del g, X, y
for criterion in ("reml", "ml"):
    found, spent, memory = watched(lambda: hieropo.estimate(moments, "full", criterion))
    note = f"{rows:.3f} s for rows, {found.chosen.evaluations} evaluations"
    report(criterion, -found.chosen.deviance / 2, spent, memory, note)
"""
PEER = """
if sys.argv[2] == "mixedlm-rs":
    from mixedlm_rs import MixedLM
else:
    from statsmodels.regression.mixed_linear_model import MixedLM
for criterion in ("reml", "ml"):
    found, spent, memory = watched(lambda: MixedLM(y, X, groups=g, exog_re=X).fit(reml=criterion == "reml"))
    report(criterion, found.llf, spent, memory)
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


def insteval(data: Path) -> Rows:
    """Ratings of lectures: how a lecturer fares by the age of the lecture and outside his own department."""
    table = pq.read_table(data / "insteval.parquet")
    task = np.unique(np.array(table["d"].to_pylist(), dtype=str), return_inverse=True)[1]
    columns = [np.array(table[name].to_pylist(), dtype=float) for name in ("lectage", "service")]
    return task, np.column_stack([np.ones(task.size), *columns]), table["y"].to_numpy().astype(float)


def cases(data: Path) -> dict[str, Callable[[], Rows]]:
    return {
        "sleepstudy": lambda: sleepstudy(data),
        "insteval": lambda: insteval(data),
        "d4m10": lambda: simulated(4, 10, 50),
        "d4m100": lambda: simulated(4, 100, 50),
        "d10m100": lambda: simulated(10, 100, 50),
        "d4m100 rank 3": lambda: simulated(4, 100, 50, rank=3),
        "d6m1000 n4": lambda: simulated(6, 1000, 4),
        "d4m100 sd 1e-5": lambda: simulated(4, 100, 50, sd=1e-5),
        "d4m100 sd 1e5": lambda: simulated(4, 100, 50, sd=1e5),
        "d4m100 scales": lambda: simulated(4, 100, 50, scales=4.0),
        "d4m1e4": lambda: simulated(4, 10_000, 50),
        "d10m1e4": lambda: simulated(10, 10_000, 50),
        "d10m1e5": lambda: simulated(10, 100_000, 50),
        "d10m1e6": lambda: simulated(10, 1_000_000, 12),  # hieropo alone
    }


Line = tuple[str, str, float, float, float, str]  # who, criterion, log likelihood, CPU seconds, MB, note


def fits(rows: Rows, python: str | None, folder: Path) -> Iterator[Line]:
    task, phi, reward = rows
    arrays = folder / "rows.npz"
    np.savez(arrays, task=task, phi=phi, reward=reward)
    commands = {"hieropo": [sys.executable, "-c", FIT + HIEROPO, str(arrays)]}
    if python and task.size <= 10_000_000:
        commands["mixedlm-rs"] = [python, "-c", FIT + PEER, str(arrays), "mixedlm-rs"]
        if task.size <= 10_000:
            commands["statsmodels"] = [python, "-c", FIT + PEER, str(arrays), "statsmodels"]
    if shutil.which("Rscript") and task.size <= 100_000 and phi.shape[1] < 10:
        script, table = folder / "fit.R", folder / "rows.csv"
        with table.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["g", "y", *(f"x{j}" for j in range(phi.shape[1]))])
            writer.writerows(
                [s, repr(y), *map(repr, x)]
                for s, y, x in zip(task.tolist(), reward.tolist(), phi.tolist(), strict=True)
            )
        script.write_text(LME4)
        commands["lme4"] = ["Rscript", str(script), str(table)]
    for name, command in commands.items():
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            print(f"    {name}: failed ({last[:90]})")
            continue
        for line in done.stdout.splitlines():
            criterion, value, seconds, memory, note = line.split("\t")
            yield name, criterion, float(value), float(seconds), float(memory), note


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", help="a Python interpreter that has mixedlm-rs and statsmodels")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("HIEROPO_DATA", "../shared/data")))
    parser.add_argument("--cases", default="", help="comma-separated; default all")
    options = parser.parse_args()
    known = cases(options.data)
    for name in options.cases.split(",") if options.cases else known:
        rows = known[name]()
        print(f"{name}: {rows[0].size:,} rows", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            lines = list(fits(rows, options.peers, Path(folder)))
        for criterion in ("reml", "ml"):
            here = [line for line in lines if line[1] == criterion]
            best, fast = max(line[2] for line in here), here[0][3]
            for who, _, value, seconds, memory, note in here:
                gap = (best - value) / max(abs(best), 1.0)
                print(
                    f"    {criterion:5s} {who:12s} log likelihood {value:18.8f}  {gap:8.1e} below  "
                    f"{seconds:8.3f} s  {seconds / fast:7.1f} x  {memory:7.1f} MB  {note}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
