"""lme4 in R: a mixed model whose predictions (BLUPs) are turned into a policy by hand."""

import csv
import os
import resource
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from contract import Log, TooLongError, best_offered, run

LEARN = """
suppressMessages(library(lme4))
a <- commandArgs(TRUE)
d <- read.csv(a[1])
d$action <- factor(d$action); d$task <- factor(d$task)
x <- grep("^x", names(d), value = TRUE)
each <- if (length(x)) paste("action + action:(", paste(x, collapse = " + "), ")") else "action"
level <- if (length(x)) paste("(1 +", paste(x, collapse = " + "), "|| task)") else "(1 | task)"
f <- as.formula(paste("reward ~ 0 +", each, "+", level, "+ (1 | task:action)"))
m <- suppressWarnings(suppressMessages(lmer(f, d, control = lmerControl(calc.derivs = FALSE,
  check.conv.singular = "ignore"))))
saveRDS(m, a[2])
"""
DECIDE = """
suppressMessages(library(lme4))
a <- commandArgs(TRUE)
m <- readRDS(a[1]); d <- read.csv(a[2])
k <- levels(model.frame(m)$action)
s <- sapply(k, function(action) { d$action <- factor(action, levels = k); d$task <- factor(d$task)
  predict(m, d, allow.new.levels = TRUE) })
write.table(matrix(s, ncol = length(k), dimnames = list(NULL, k)), a[3], sep = ",", row.names = FALSE)
"""
LEARN_MOVIES = """
suppressMessages(library(lme4))
a <- commandArgs(TRUE)
d <- read.csv(a[1])
d$task <- factor(d$task)
phi <- paste("0 +", paste(grep("^f", names(d), value = TRUE), collapse = " + "))
m <- suppressWarnings(suppressMessages(lmer(as.formula(paste("reward ~", phi, "+ (", phi, "|| task)")), d,
  control = lmerControl(calc.derivs = FALSE, check.conv.singular = "ignore"))))
b <- coef(m)$task
write.csv(rbind(b, fixef(m)[names(b)]), a[2], row.names = c(rownames(b), ""))
"""


def write_csv(path: Path, log: Log) -> None:
    fields = {"task": log.task, **dict(zip(log.columns, log.x.T, strict=True))}
    if log.reward is not None:
        fields |= {"action": log.action, "reward": log.reward}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            name if name in ("task", "action", "reward") else f"x{k}" for k, name in enumerate(fields)
        )
        writer.writerows(zip(*(values.tolist() for values in fields.values()), strict=True))


def limit_seconds() -> None:
    """Limit the CPU seconds of R to those of the job."""
    seconds = int(os.environ.get("PEERS_SECONDS", "0"))
    if seconds:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


class R:
    """Programs in a folder that goes with the learner."""

    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.place = Path(self.folder.name)

    def r(self, program: str, *files: str) -> None:
        (self.place / "program.R").write_text(program, encoding="utf-8")
        command = ["Rscript", "program.R", *files]
        done = subprocess.run(
            command, cwd=self.place, capture_output=True, text=True, check=False, preexec_fn=limit_seconds
        )
        if done.returncode < 0:
            raise TooLongError
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])


class Blup(R):
    """reward ~ action x context, with deviations of each task in level, slopes and actions."""

    def fit(self, log: Log) -> None:
        self.begin()
        self.actions = log.actions
        write_csv(self.place / "log.csv", log)
        self.r(LEARN, "log.csv", "model.rds")

    def scores(self, requests: Log) -> np.ndarray:
        write_csv(self.place / "requests.csv", requests)
        self.r(DECIDE, "model.rds", "requests.csv", "scores.csv")
        with (self.place / "scores.csv").open(encoding="utf-8") as file:
            names, *rows = csv.reader(file)
        scores, known = np.array(rows, dtype=float), [str(action) for action in self.actions.tolist()]
        found = np.full((len(scores), len(known)), -np.inf)
        found[:, [known.index(name) for name in names]] = scores
        return found

    def choose(self, requests: Log) -> np.ndarray:
        return self.actions[self.scores(requests).argmax(axis=1)]


class BlupMovies(R):
    """reward ~ features of actions, with deviations of each task that are independent by feature."""

    def fit(self, log: Log) -> None:
        self.begin()
        with (self.place / "log.csv").open("w", newline="", encoding="utf-8") as file:
            writer, phi = csv.writer(file), log.features[log.action]
            writer.writerow(["task", "reward", *(f"f{k}" for k in range(phi.shape[1]))])
            writer.writerows(zip(log.task.tolist(), log.reward.tolist(), *phi.T.tolist(), strict=True))
        self.r(LEARN_MOVIES, "log.csv", "coef.csv")
        with (self.place / "coef.csv").open(encoding="utf-8") as file:
            _, *rows = csv.reader(file)
        self.coef = {task: np.array(values, dtype=float) for task, *values in rows}

    def choose(self, requests: Log) -> np.ndarray:
        coef = np.stack([self.coef.get(str(task), self.coef[""]) for task in requests.task.tolist()])
        scores = np.einsum("nkp,np->nk", requests.features[requests.offered], coef)
        return best_offered(requests.offered, scores)


if __name__ == "__main__":
    run({"lme4, BLUPs by hand": Blup}, {"lme4, BLUPs by hand": BlupMovies})
