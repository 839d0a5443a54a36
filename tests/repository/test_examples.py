"""The notebooks in ``examples`` run, and are in the percent format of jupytext."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_a_notebook_in_the_list(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ---\n# jupyter:\n#   jupytext:\n")
    assert "format_name: percent" in text
    cells = re.split(r"^# %%", text, flags=re.MULTILINE)[1:]
    assert cells[0].startswith(" [markdown]\n# # ")
    for cell in cells:
        if cell.startswith(" [markdown]"):
            assert all(line.startswith("#") for line in cell.splitlines()[1:] if line)
    assert f"({path.name})" in (path.parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path))
    plt.close("all")
