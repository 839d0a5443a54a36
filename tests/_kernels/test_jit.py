"""Machine code that several processes need at once is compiled by one of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
