"""Vowpal Wabbit: contextual bandit with action-dependent features and interactions of context, task and action."""

import tempfile
from pathlib import Path

import numpy as np
from contract import Log, run
from vowpalwabbit import Workspace

PASSES = 10


def lines(log: Log) -> str:
    """A log in VW's text format; costs are rewards with the other sign."""
    text, names = [], [str(action) for action in log.actions.tolist()]
    for row in range(len(log.task)):
        values = " ".join(f"{name}:{value:.6g}" for name, value in zip(log.columns, log.x[row], strict=True))
        text.append(f"shared |x one {values} |t t{log.task[row]}")
        for action in names:
            label = ""
            if log.reward is not None and action == str(log.action[row]):
                label = f"0:{-log.reward[row]:.6g}{'' if log.p is None else f':{log.p[row]:.6g}'} "
            text.append(f"{label}|a a{action}")
        text.append("")
    return "\n".join(text) + "\n"


def movie_lines(log: Log) -> str:
    """The same of a log whose actions have features: those of each action that was offered."""
    of_action = [" ".join(f"f{k}:{value:.6g}" for k, value in enumerate(row)) for row in log.features]
    text = []
    for row, offered in enumerate(log.offered.tolist()):
        text.append(f"shared |t t{log.task[row]}")
        for action in offered:
            label = ""
            if log.reward is not None and action == log.action[row]:
                label = f"0:{-log.reward[row]:.6g}:{log.p[row]:.6g} "
            text.append(f"{label}|a {of_action[action]}")
        text.append("")
    return "\n".join(text) + "\n"


class Adf:
    """--cb_adf with --interactions xa, ta, xt, xta and several passes."""

    kind, interactions, lines = "mtr", ("xa", "ta", "xt", "xta"), staticmethod(lines)

    def fit(self, log: Log) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.model, data = Path(self.folder.name) / "model", Path(self.folder.name) / "log.txt"
        data.write_text(self.lines(log), encoding="utf-8")
        options = f"--cb_adf --cb_type {self.kind} " + " ".join(
            f"--interactions {of}" for of in self.interactions
        )
        options += f" -b 22 --passes {PASSES} -k --cache_file {self.model}.cache --quiet"
        Workspace(f"{options} -d {data} -f {self.model}").finish()

    def best(self, requests: Log) -> np.ndarray:
        data, out = Path(self.folder.name) / "requests.txt", Path(self.folder.name) / "out.txt"
        data.write_text(self.lines(requests), encoding="utf-8")
        Workspace(f"-t -i {self.model} -d {data} -p {out} --quiet").finish()
        first = [int(line.split(":")[0]) for line in out.read_text(encoding="utf-8").splitlines() if line]
        return np.array(first)

    def choose(self, requests: Log) -> np.ndarray:
        return requests.actions[self.best(requests)]

    def save(self, folder: Path) -> None:
        (folder / "model").write_bytes(self.model.read_bytes())

    def load(self, folder: Path) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.model = Path(self.folder.name) / "model"
        self.model.write_bytes((folder / "model").read_bytes())


class DoublyRobust(Adf):
    """The same with --cb_type dr."""

    kind = "dr"


class Movies(Adf):
    """--cb_adf on the features of actions and their interactions with the task."""

    interactions, lines = ("ta",), staticmethod(movie_lines)

    def choose(self, requests: Log) -> np.ndarray:
        return np.take_along_axis(requests.offered, self.best(requests)[:, None], axis=1)[:, 0]


class DoublyRobustMovies(Movies):
    """The same with --cb_type dr."""

    kind = "dr"


if __name__ == "__main__":
    run(
        {"Vowpal Wabbit, mtr": Adf, "Vowpal Wabbit, dr": DoublyRobust},
        {"Vowpal Wabbit, mtr": Movies, "Vowpal Wabbit, dr": DoublyRobustMovies},
    )
