"""An examination as one HTML file."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from command_line import answers

from hieropo import examine

BAD = "</script><img src=x onerror=alert(1)>"


def log(rows: int = 400) -> pa.Table:
    rng = np.random.default_rng(0)
    offer = np.array(["none", f"{BAD}gift"])[rng.integers(2, size=rows)]
    reward = rng.integers(2, size=rows).astype(float)
    return pa.table({"store": rng.integers(9, size=rows), "offer": offer, "profit": reward})


def test_it_holds_all_findings_and_escapes_ids(tmp_path: Path) -> None:
    examination = examine(log(), task="store", action="offer", reward="profit")
    text = examination.report(tmp_path / "doctor.html").read_text()
    assert "<img" not in text
    assert text.count("<svg") == 3
    assert text.count("<li>") - text.count('<li><a href="#') == len(examination.findings)
    assert examination.report(tmp_path / "again.html").read_text() == text
    assert "<script" not in examination._repr_html_()


def test_facts_count_tasks_by_their_rows_and_rows_by_action() -> None:
    facts = examine(log(), task="store", action="offer", reward="profit").facts
    histogram, most = facts["tasks"]["histogram"], facts["actions"]["most"]
    assert sum(histogram["tasks"]) == 9
    assert len(histogram["edges"]) == len(histogram["tasks"]) + 1
    assert sum(one["rows"] for one in most) == 400
    assert most[0]["rows"] >= most[1]["rows"]


def test_the_command_writes_it(tmp_path: Path) -> None:
    pq.write_table(log(), tmp_path / "log.parquet")
    roles = ("--task", "store", "--action", "offer", "--reward", "profit")
    assert "holds the examination" in answers(
        "doctor", tmp_path / "log.parquet", *roles, "--html", tmp_path / "d.html"
    )
    assert (tmp_path / "d.html").read_text().startswith("<!DOCTYPE html>")
