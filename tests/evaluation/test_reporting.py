"""The report of an evaluation: its numbers and sentences are those of the evaluation."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hieropo import Evaluation, HierOPO, examine
from hieropo._utils.text import percent
from hieropo.evaluation.parts.claims import Claim
from hieropo.evaluation.reporting import Recommendation, document_of, recommendation
from hieropo.report import Gates, Intervals, TaskTable, page

BAD = '</script><img src=x onerror="alert(1)">'


def log(effect: float, seed: int = 1, rows: int = 2000, tasks: int = 12) -> pa.Table:
    rng = np.random.default_rng(seed)
    store, offer, visits = (
        rng.integers(tasks, size=rows),
        rng.integers(3, size=rows),
        rng.uniform(0, 2, size=rows),
    )
    theta = effect * np.random.default_rng(7).normal(size=(tasks, 3))
    return pa.table(
        {
            "store": np.array([f"{BAD}{k}" for k in range(tasks)])[store],
            "offer": np.array(["none", "coupon", f"{BAD}gift"])[offer],
            "visits": visits,
            "profit": theta[store, offer] + 0.3 * visits + rng.normal(size=rows),
            "p": np.full(rows, 1 / 3),
        }
    )


@cache
def evaluation(effect: float, tasks: int = 12) -> Evaluation:
    rows = log(effect, tasks=tasks)
    learner = HierOPO(logging="random")
    learner.fit(rows, task="store", action="offer", reward="profit", context=["visits"], pscore="p")
    return learner.evaluate(rows)


def blocks(found: Evaluation, section: str, **options: Any) -> list[Any]:
    document = document_of(found, **options)
    return list(next(one.blocks for one in document.sections if one.name == section))


@pytest.mark.slow
def test_sections_come_in_the_order_of_a_decision() -> None:
    names = [section.name for section in document_of(evaluation(1.0)).sections]
    order = "verdict gain trust harm why alike checks needed actions limits provenance mail"
    assert names == order.split()


@pytest.mark.slow
def test_sentences_are_those_of_the_text_and_numbers_those_of_the_evaluation() -> None:
    found = evaluation(1.0)
    printed = " ".join(str(found).split())
    for sentence in found.sentences().values():
        assert sentence in printed
    verdict, *_ = blocks(found, "verdict")
    assert verdict.text.startswith(found.sentences()["verdict"])
    shares = dict(zip(found.model.actions or (), found.model.action_shares[0].tolist(), strict=True))
    most = max(shares, key=lambda action: shares[action])
    texts = [block.text for block in blocks(found, "verdict")]
    assert any(
        text.startswith(f"The policy takes {most} in {percent(shares[most])} of the rows") for text in texts
    )
    (chart, *_) = blocks(found, "gain")
    lines = {line.label: line for line in chart.intervals}
    assert lines["this policy, by the model"].value == found.model.difference.mean
    assert lines["this policy, DR"].low == found.claim.estimate.gain_low
    assert {f"{rival.name}, DR" for rival in found.comparisons} < set(lines)


@pytest.mark.slow
def test_a_gate_shows_the_gain_of_the_tasks_that_pass() -> None:
    found = evaluation(1.0)
    gates = next(block for block in blocks(found, "harm") if isinstance(block, Gates))
    chosen = gates.gates[gates.chosen]
    assert chosen.limit == found.max_harm
    assert chosen.gain == found.gated_gain().mean
    assert chosen.acts == found.shares()["improved"]
    assert gates.gates[-1].harmed == pytest.approx(found.expected_harm)
    assert [gate.limit for gate in gates.gates] == sorted(gate.limit for gate in gates.gates)


@pytest.mark.slow
def test_all_tasks_are_in_the_table_and_a_line_each_where_they_are_few() -> None:
    found = evaluation(1.0)
    table = next(block for block in blocks(found, "harm") if isinstance(block, TaskTable))
    assert table.columns["task"] == tuple(found.keys.values.tolist())
    assert np.allclose(table.columns["gain"], found.model.gain, atol=0.01)
    chart = next(block for block in blocks(found, "harm") if isinstance(block, Intervals))
    assert len(chart.intervals) == 12
    assert [line.marked for line in chart.intervals].count(True) == (~found.passed).sum()


@pytest.mark.slow
def test_beyond_sixty_tasks_there_is_a_density() -> None:
    found = evaluation(0.5, 70)
    histogram, chart = (
        block for block in blocks(found, "harm") if type(block).__name__ in ("Histogram", "Intervals")
    )
    assert sum(histogram.counts) == 70
    assert sum(histogram.marked) == (~found.passed).sum()
    assert len(chart.intervals) <= 30


@pytest.mark.slow
def test_contexts_have_a_curve_for_each_action() -> None:
    found = evaluation(1.0)
    worth, curves = blocks(found, "actions")
    assert len(worth.intervals) == len(curves.curves) == 3
    assert curves.title.startswith("Expected reward by visits")
    for curve in curves.curves:  # 0.3 a visit
        slope = (curve.mean[-1] - curve.mean[0]) / (curves.x[-1] - curves.x[0])
        assert slope == pytest.approx(0.3, abs=0.15)
        assert all(
            low < mean < high for low, mean, high in zip(curve.low, curve.mean, curve.high, strict=True)
        )


@pytest.mark.slow
def test_choices_of_the_tasks_at_either_end_are_explained() -> None:
    found = evaluation(1.0)
    _, harmed, improved = blocks(found, "why")
    assert len(harmed.rows) <= 5
    assert len(improved.rows) == 5
    task, choice, _, mean, own, rest, *_ = improved.rows[0]
    assert float(mean) == pytest.approx(float(own) + float(rest), abs=2e-3)
    assert choice in {"none", "coupon", f"{BAD}gift"}
    table = next(block for block in blocks(found, "harm") if isinstance(block, TaskTable))
    assert task == table.columns["task"][table.improved[0]]


@pytest.mark.slow
def test_no_effect_is_not_shipped() -> None:
    found = evaluation(0.0)
    assert recommendation(found).advice == "collect more"
    assert "does not show a gain" in blocks(found, "mail")[0].text


@pytest.mark.parametrize(
    ("verdict", "agreement", "advice"),
    [
        ("worse", "agrees", "do not ship"),
        ("not shown", "does not contradict", "collect more"),
        (None, None, "collect more"),
        ("shown", "contradicts", "collect more"),
        ("shown", "agrees", "ship"),
    ],
)
def test_the_recommendation_follows_the_verdict(verdict: Any, agreement: Any, advice: str) -> None:
    found = replace(evaluation(1.0), max_harm=0.999999, claim=Claim(verdict, agreement=agreement))
    assert recommendation(found) == Recommendation(advice, recommendation(found).reason)
    held = replace(found, max_harm=1e-300)
    assert recommendation(held).advice == (advice if advice != "ship" else "ship with a gate")


@pytest.mark.slow
def test_a_report_is_the_same_each_time_and_escapes_ids(tmp_path: Path) -> None:
    found = evaluation(1.0)
    examination = examine(
        log(1.0), task="store", action="offer", reward="profit", pscore="p", context=["visits"]
    )
    first, second = (
        found.report(tmp_path / f"{k}.html", title=BAD, examination=examination).read_bytes()
        for k in range(2)
    )
    assert first == second
    assert len(first) < 300_000
    text = first.decode()
    assert "<img" not in text
    assert all(f"{finding.next}"[:20] in text for finding in examination.findings if finding.next.isalnum())
    told = json.loads(json.dumps(found.document().to_dict(), allow_nan=False))
    assert told["version"] == 1


@pytest.mark.slow
def test_a_gated_policy_and_a_log_without_chance_have_a_report_too() -> None:
    rows = log(1.0, seed=2)
    learner = HierOPO(logging="random")
    learner.fit(log(1.0), task="store", action="offer", reward="profit", context=["visits"], pscore="p")
    learner.policy_ = learner.evaluate(log(1.0)).gate()
    found = learner.evaluate(rows, propensities="none")
    assert "Collect more" in page(document_of(found))
    assert not any(isinstance(block, Gates) for block in blocks(found, "harm"))


def test_a_notebook_shows_verdict_and_gain() -> None:
    html = evaluation(1.0)._repr_html_()
    assert "How much it gains" in html
    assert "<script" not in html


@pytest.mark.slow
def test_a_summary_and_a_report_show_how_alike_tasks_are_in_the_same_blocks() -> None:
    found = evaluation(1.0)
    assert found.population is not None
    summary = found.population()
    html = summary._repr_html_()
    assert "effect of an action in one task" in html
    assert blocks(found, "alike")[:-1] == summary.blocks()
