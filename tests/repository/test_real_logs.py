"""The table of real logs is the one that its program makes: a slice is made again."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_data import DATA, needs_data

ROOT = Path(__file__).resolve().parents[2]
CLICKS = "## Clicks: Open Bandit Dataset, 10,000 rows a log"
ROUTING = "## Routing: MMLU, two models, 56 subjects"


@pytest.fixture(scope="module")
def program() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "experiments")
        yield importlib.import_module


def page(program: Any, title: str) -> list[dict[str, str]]:
    text = (ROOT / "docs" / "results" / "real_logs.md").read_text(encoding="utf-8")
    found: list[dict[str, str]] = program("tables").read_table(text, title)
    return found


@pytest.mark.slow
@needs_data
@pytest.mark.filterwarnings(
    "ignore:.*rewards differ from 0:hieropo.HieropoWarning"
)  # few clicks, as is said there
def test_the_table_of_clicks_is_made_again(program: Any) -> None:
    again = "\n".join(program("real_logs").clicks(DATA))
    assert page(program, CLICKS) == program("tables").read_table(again, CLICKS)


@pytest.mark.slow
@needs_data
def test_the_truth_of_routing_is_within_what_the_answers_allow(program: Any) -> None:
    subject, reward = program("real_logs").prompts(DATA)
    names = np.unique(subject)
    assert names.size == 56
    found = program("real_logs").routed(DATA, 1)["other rows"][0]
    each = np.array([reward[subject == name].mean(axis=0) for name in names])
    share = np.array([np.mean(subject == name) for name in names])
    assert abs(found["true"]) <= share @ (each.max(axis=1) - each.mean(axis=1)) + 0.02
    assert 0 <= found["harmed of all, gated"] <= found["harmed"] <= 1


def test_weighted_claims_of_routing_hold_as_often_as_they_say(program: Any) -> None:
    rows = {row["gain, judged on"]: row for row in page(program, ROUTING)}
    for name in ("SNIPS, other rows", "DR, other rows"):
        assert rows[name]["logs"] == "200"
        assert float(rows[name]["95 % intervals that hold it"].split()[0]) >= 0.9
