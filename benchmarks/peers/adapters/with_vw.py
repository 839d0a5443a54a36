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


class Adf:
    """--cb_adf with --interactions xa, ta, xt, xta and several passes."""

    kind = "mtr"

    def fit(self, log: Log) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.model, data = Path(self.folder.name) / "model", Path(self.folder.name) / "log.txt"
        data.write_text(lines(log), encoding="utf-8")
        options = f"--cb_adf --cb_type {self.kind} --interactions xa --interactions ta --interactions xt"
        options += f" --interactions xta -b 22 --passes {PASSES} -k --cache_file {self.model}.cache --quiet"
        Workspace(f"{options} -d {data} -f {self.model}").finish()

    def choose(self, requests: Log) -> np.ndarray:
        data, out = Path(self.folder.name) / "requests.txt", Path(self.folder.name) / "out.txt"
        data.write_text(lines(requests), encoding="utf-8")
        Workspace(f"-t -i {self.model} -d {data} -p {out} --quiet").finish()
        best = [int(line.split(":")[0]) for line in out.read_text(encoding="utf-8").splitlines() if line]
        return requests.actions[best]

    def save(self, folder: Path) -> None:
        (folder / "model").write_bytes(self.model.read_bytes())

    def load(self, folder: Path) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.model = Path(self.folder.name) / "model"
        self.model.write_bytes((folder / "model").read_bytes())


class DoublyRobust(Adf):
    """The same with --cb_type dr."""

    kind = "dr"


if __name__ == "__main__":
    run({"Vowpal Wabbit, mtr": Adf, "Vowpal Wabbit, dr": DoublyRobust})
