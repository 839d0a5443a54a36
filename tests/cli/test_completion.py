"""The shell completes commands, options, paths and columns of the log."""

from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.shell_completion import CompletionItem, ShellComplete
from command_line import answers, make_log

from hieropo.cli import main


def completed(words: list[str], incomplete: str) -> list[CompletionItem]:
    return ShellComplete(main, {}, "hieropo", "_HIEROPO_COMPLETE").get_completions(words, incomplete)


def values(words: list[str], incomplete: str) -> list[str]:
    return [item.value for item in completed(words, incomplete)]


def test_commands_and_options() -> None:
    assert values([], "dec") == ["decide"]
    assert "--task-cov" in values(["fit"], "--task")
    assert values(["fit", "log.parquet", "--task-cov"], "di") == ["diag"]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["fit"], "file"),
        (["fit", "log.parquet", "-o"], "dir"),
        (["fit", "log.parquet", "--rejects"], "file"),
        (["evaluate"], "dir"),
        (["evaluate", "policy"], "file"),
        (["decide", "policy", "requests.parquet", "-o"], "file"),
        (["moments", "merge"], "file"),
    ],
)
def test_paths(words: list[str], kind: str) -> None:
    assert {item.type for item in completed(words, "lo")} == {kind}


@pytest.mark.parametrize("name", ["log.parquet", "log.csv"])
def test_columns_of_the_log(name: str, tmp_path: Path) -> None:
    write = pq.write_table if name.endswith("parquet") else pyarrow.csv.write_csv
    write(make_log(), tmp_path / name)
    fit = ["fit", str(tmp_path / name)]
    assert values([*fit, "--reward"], "p") == ["profit"]
    assert values([*fit, "--task", "store", "--context"], "visits,c") == ["visits,chance"]


def test_a_log_that_cannot_be_read_gives_no_columns(tmp_path: Path) -> None:
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    assert values(["fit", str(tmp_path / "torn.parquet"), "--task"], "") == []
    assert values(["fit", str(tmp_path / "none.csv"), "--task"], "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_names_the_command(shell: str) -> None:
    text = answers("completion", shell)
    assert "_HIEROPO_COMPLETE" in text
    assert f"{shell}_complete" in text
