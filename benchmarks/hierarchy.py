"""Learning the hierarchy: hieropo against lme4, mixedlm-rs and statsmodels on the same rows, in one run.

    python benchmarks/hierarchy.py [--mixedlm-rs PYTHON] [--statsmodels PYTHON] [--cases ...] [--data DIR]

PYTHON is an interpreter with that package (an environment of its own); lme4 is used where ``Rscript`` has it (Debian:
r-cran-lme4). Absent peers are left out. The model is a random coefficient for every
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
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"
# Else the small fit before the clock starts loads no compiled code.
os.environ["HIEROPO_BACKEND"] = "compiled"

import numpy as np
import pyarrow.parquet as pq
import record

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
  cat(sprintf("%s\\t%.12g\\t%.6g\\tnan\\n", if (reml) "reml" else "ml", as.numeric(logLik(m, REML = reml)),
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

def report(criterion, value, spent, memory, *passes):
    print(criterion, repr(float(value)), spent, memory, *passes, sep="\\t")
"""
HIEROPO = """
import hieropo
few = np.arange(120) // 6
hieropo.estimate(hieropo.Moments.from_arrays(few, np.random.default_rng(0).normal(size=(120, 2)), few % 7 + 0.1 * few))
moments, rows, _ = watched(lambda: hieropo.Moments.from_arrays(g, X, y))
del g, X, y
for criterion in ("reml", "ml"):
    found, spent, memory = watched(lambda: hieropo.estimate(moments, "full", criterion))
    report(criterion, -found.chosen.deviance / 2, spent, memory, rows, found.chosen.evaluations)
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


PEERS = ("mixedlm-rs", "statsmodels")


def fits(rows: Rows, pythons: dict[str, str | None], folder: Path) -> Iterator[dict[str, Any]]:
    """Fits of all tools by both criteria, or their errors."""
    task, phi, reward = rows
    arrays = folder / "rows.npz"
    np.savez(arrays, task=task, phi=phi, reward=reward)
    commands = {"hieropo": [sys.executable, "-c", FIT + HIEROPO, str(arrays)]}
    for name, most in zip(PEERS, (10_000_000, 10_000), strict=True):
        python = pythons[name]
        if python and task.size <= most:
            commands[name] = [python, "-c", FIT + PEER, str(arrays), name]
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
            yield {"tool": name, "criterion": "", "error": last[:90]}
            continue
        for line in done.stdout.splitlines():
            criterion, value, seconds, memory, *passes = line.split("\t")
            mb = None if memory == "nan" else float(memory)
            fit = {
                "tool": name,
                "criterion": criterion,
                "value": float(value),
                "cpu": float(seconds),
                "mb": mb,
            }
            rows_cpu, evaluations = passes if name == "hieropo" else (None, None)
            yield fit | ({"rows_cpu": float(rows_cpu), "passes": float(evaluations)} if rows_cpu else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in PEERS:
        parser.add_argument(f"--{name}", dest=name, help=f"a Python interpreter that has {name}")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("HIEROPO_DATA", "../shared/data")))
    parser.add_argument("--cases", default="", help="comma-separated; default all but d10m1e6")
    options = parser.parse_args()
    known = cases(options.data)
    for name in options.cases.split(",") if options.cases else list(known)[:-1]:
        rows = known[name]()
        with tempfile.TemporaryDirectory() as folder:
            pythons = {peer: getattr(options, peer) for peer in PEERS}
            lines = list(fits(rows, pythons, Path(folder)))
        record.finish("hierarchy", {"rows": rows[0].size, "fits": lines}, part=name)


if __name__ == "__main__":
    main()
