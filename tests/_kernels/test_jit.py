"""Machine code that several processes need at once is compiled by one of them."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hieropo._kernels.jit import _Turns

PROGRAM = """
import numpy as np, sys
from hieropo import LogMoments
import pyarrow as pa
print("ready", flush=True)
sys.stdin.readline()
log = pa.table({"task": np.arange(600) % 7, "x": np.arange(600) % 5 / 5.0, "reward": np.arange(600) % 3 / 3.0})
print(LogMoments.of(log, task="task", reward="reward", context=["x"]).moments.sums.sum())
"""


@pytest.mark.slow
def test_processes_that_need_the_same_code_compile_it_once(tmp_path: Path) -> None:
    variables = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(tmp_path),
        "NUMBA_DEBUG_CACHE": "1",
        "HIEROPO_BACKEND": "compiled",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=variables, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for _ in range(2)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0].splitlines()[-1] == outputs[1].splitlines()[-1]
    saved = [line for output in outputs for line in output.splitlines() if "data saved" in line]
    assert saved
    assert len(saved) == len(set(saved))


def _in_child(work: Callable[[], None]) -> int | None:
    """Return the exit code of a child that does some work; None where it does not end within five seconds."""
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        try:
            work()
        finally:
            os._exit(0)
    for _ in range(500):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # a fork with threads is the subject
@pytest.mark.parametrize("patience", [60.0, 0.05])
def test_a_fork_while_another_thread_compiles_does_not_block_the_child(
    tmp_path: Path, patience: float
) -> None:
    turns, entered, leave = _Turns(patience), threading.Event(), threading.Event()

    def compile_something() -> None:
        with turns.of(tmp_path):
            entered.set()
            leave.wait(30.0)

    def compile_in_child() -> None:
        with turns.of(tmp_path / "of the child"):
            pass

    thread = threading.Thread(target=compile_something)
    thread.start()
    entered.wait()
    if patience > 1.0:  # the fork waits for the thread
        threading.Timer(0.3, leave.set).start()
    assert _in_child(compile_in_child) == 0
    assert leave.is_set() == (patience > 1.0)
    leave.set()
    thread.join()
    with turns.of(tmp_path):  # and the parent goes on
        pass
    assert turns._depth == 0


def test_a_thread_that_waits_in_vain_to_fork_leaves_the_lock_of_another_fork_alone(tmp_path: Path) -> None:
    turns = _Turns(0.05)

    def fork_in_vain() -> None:
        turns._before_fork()
        turns._after_fork()

    def enter() -> None:
        with turns.of(tmp_path):
            entered.set()

    turns._before_fork()
    thread, entered = threading.Thread(target=fork_in_vain), threading.Event()
    thread.start()
    thread.join()
    turns._after_fork()
    threading.Thread(target=enter, daemon=True).start()
    assert entered.wait(5.0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_thread_that_compiles_may_fork(tmp_path: Path) -> None:
    turns = _Turns()

    def nested() -> None:
        with turns.of(tmp_path):
            pass

    with turns.of(tmp_path):
        assert _in_child(nested) == 0
    assert turns._depth == 0
