"""The commands that a command names as the next ones run as they are printed."""

import datetime as dt
import shlex

import pandas as pd
import pytest
from click.testing import CliRunner
from command_line import make_log

from hieropo.cli import main

ROLES = ["--task", "store", "--action", "offer", "--reward", "profit"]


def run(*words):
    done = CliRunner().invoke(main, [str(word) for word in words], prog_name="hieropo")
    assert done.exit_code == 0, done.output
    return done.stdout


def next_commands(text):
    """The commands at the end of a text, as words."""
    _, _, end = text.rpartition("Next: ")
    commands = [shlex.split(line) for line in end.strip().splitlines() if line]
    assert all(words[0] == "hieropo" for words in commands), text
    return [words[1:] for words in commands]


def follow(text, seen, **placeholders):
    """Run all that is named, and all that this names in turn; return the names of the commands."""
    if "Next: " not in text:
        return seen
    for named in next_commands(text):
        words = [placeholders.get(word, word) for word in named]
        if words not in seen:
            seen.append(words)
            follow(run(*words), seen, **placeholders)
    return seen


def broken(frame):
    frame["profit"] = frame["profit"].astype(str)
    frame.loc[3, "profit"] = "n/a?"
    return frame


def dated(frame):
    return frame.assign(store=[dt.date(2026, 1, 1) + dt.timedelta(days=int(each)) for each in frame["store"]])


SCENARIOS = {
    "plain": (lambda frame: frame, ROLES),
    "guessed": (lambda frame: frame.rename(columns={"store": "user_id", "offer": "action", "profit": "click"}), []),
    "lenient": (broken, [*ROLES, "--lenient"]),
    "filter and types": (
        lambda frame: frame, [*ROLES, "--filter", "visits < 4 and store != '3'", "--type", "store=text"]
    ),
    "candidates": (lambda frame: frame.drop(columns="offer"), [*ROLES[:2], *ROLES[4:], "--context", "visits"]),
    "pooled": (dated, [*ROLES, "--algorithm", "pooled"]),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")
@pytest.mark.parametrize(
    ("make", "scenario"),
    [
        pytest.param(make, scenario, marks=[pytest.mark.slow] if (make, scenario) != ("fit", "plain") else [])
        for scenario in SCENARIOS
        for make in ("fit", "moments")
        if (make, scenario) != ("moments", "pooled")
    ],
)
def test_each_runs(tmp_path, monkeypatch, make, scenario):
    change, options = SCENARIOS[scenario]
    monkeypatch.chdir(tmp_path)
    frame = change(make_log().to_pandas())
    frame.to_csv("a log.csv", index=False)
    clean = frame[pd.to_numeric(frame.get("profit", frame.get("click")), errors="coerce").notna()]
    clean.assign(profit=clean.get("profit", clean.get("click")).astype(float)).to_parquet("clean.parquet")
    placeholders = {"LOG.parquet": "clean.parquet", "REQUESTS.parquet": "clean.parquet", "COL": "visits"}
    done = follow(run(make, "a log.csv", "-o", "the store's policy", *options), [], **placeholders)
    judged = [] if scenario == "candidates" else ["evaluate"]
    assert {words[0] for words in done} >= {"inspect", "decide", *judged}
    assert any("--task" in words for words in done)
