"""The progress line: where it can be seen, when it appears, and the time left."""

import io
import time
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from hieropo import HierOPO
from hieropo._utils import progress
from hieropo._utils.progress import Line, active_line, duration, say, shows_progress, steps
from hieropo.logs.arrow.progress_source import ProgressSource
from hieropo.logs.opening import open_log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Notebook(io.StringIO):
    __module__ = "ipykernel.iostream"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))
    return stream


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "PAUSE", 0.0)


def test_a_line_appears_while_one_long_step_runs(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    with Line() as line:
        line.say("Step 1")
        for _ in range(300):
            if terminal.getvalue():
                break
            time.sleep(0.01)
    assert terminal.getvalue().startswith("\r\x1b[KStep 1")
    assert terminal.getvalue().endswith("\r\x1b[K")


@pytest.mark.usefixtures("impatient")
def test_learning_shows_its_steps_and_the_time_left(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "TICK", 0.0)
    rng = np.random.default_rng(0)
    log = pa.table({"s": rng.integers(0, 20, 400), "a": rng.integers(0, 2, 400), "r": rng.normal(size=400)})
    HierOPO().fit(log, task="s", action="a", reward="r")
    assert "Learning the variation between tasks, step 2 of" in terminal.getvalue()
    assert "s left" in terminal.getvalue()


@pytest.mark.usefixtures("impatient")
def test_steps_within_a_step_are_not_counted(terminal: Terminal) -> None:
    with Line():
        for _ in steps(range(2), "Fold", 2):
            list(steps(range(3), "Grid", 3))
        list(steps(range(3), "Later", 3))
    assert "Fold 2 of 2" in terminal.getvalue()
    assert "Grid" not in terminal.getvalue()
    assert "Later 3 of 3" in terminal.getvalue()


def test_short_work_shows_nothing(terminal: Terminal) -> None:
    with Line() as line:
        line.say("Step 1", now=True)
    assert terminal.getvalue() == ""


@pytest.mark.usefixtures("impatient")
def test_piped_work_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))
    with Line() as line:
        line.say("Step 1", now=True)
        assert active_line() is None
    assert stream.getvalue() == ""


@pytest.mark.usefixtures("impatient")
def test_a_notebook_overwrites_by_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Notebook()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))
    with Line() as line:
        line.say("Step 10", now=True)
        line.say("Step", now=True)
    assert "\x1b" not in stream.getvalue()
    assert "\rStep   " in stream.getvalue()
    assert stream.getvalue().endswith("\r    \r")


@pytest.mark.usefixtures("impatient")
def test_the_time_left_follows_from_the_share(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with Line() as line:
        line.say("Read 0 rows", share=0.0)
        clock[0] += 10.0
        line.say("Read 1 rows", share=0.25)
        assert terminal.getvalue().endswith("Read 1 rows, 30 s left")
        line.say("Fold 1", share=0.0)  # another stage
        clock[0] += 10.0
        line.say("Fold 2", share=0.5)
        assert terminal.getvalue().endswith("Fold 2, 10 s left")
        line.say("Computing", now=True)
        clock[0] += 5.0
        line.say("Computing", now=True)
        assert terminal.getvalue().endswith("Computing 5 s")


def test_durations() -> None:
    assert [duration(s) for s in (0.2, 40.0, 170.0, 9000.0)] == ["1 s", "40 s", "3 min", "2.5 h"]


@pytest.mark.usefixtures("impatient")
def test_lines_within_a_line_write_to_it(terminal: Terminal) -> None:
    @shows_progress
    def inner() -> list[int]:
        say("Inner")
        return list(steps([1, 2], "Step", 2))

    with Line() as outer:
        assert inner() == [1, 2]
        assert active_line() is outer
    assert active_line() is None
    text = terminal.getvalue()
    assert text.index("Inner") < text.index("Step 1 of 2") < text.index("Step 2 of 2")


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_fits_and_evaluations_in_python_show_their_rows(terminal: Terminal) -> None:
    rng = np.random.default_rng(0)
    log = pa.table({"t": rng.integers(0, 9, 500), "a": rng.integers(0, 2, 500), "r": rng.normal(size=500)})
    learner = HierOPO(logging="random").fit(log, task="t", action="a", reward="r")
    assert "Learning the variation between tasks ..." in terminal.getvalue()
    learner.evaluate(log, compare=False)
    assert "Learning without fold 5 of 5" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_source_is_wrapped_once_and_where_it_is_seen(terminal: Terminal) -> None:
    table = pa.table({"a": [1, 2]})
    assert not isinstance(open_log(table), ProgressSource)
    with Line() as line:
        source = open_log(table)
        assert isinstance(source, ProgressSource)
        assert open_log(source) is not None
        assert not isinstance(ProgressSource(source, line)._source, ProgressSource)
    assert terminal.getvalue() == ""
