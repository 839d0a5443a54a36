"""Real tables with text and holes go from the raw file to decisions and an evaluation in six lines or four commands."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from real_data import needs_data, real_table

from hieropo import HierOPO, HieropoWarning, LogError, SchemaError, examine, open_log
from hieropo.cli import main

pytestmark = [
    needs_data,
    pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning"),  # each table has its limits; they are told
]

SCRIPTS = {
    "hillstrom_email": """
log = open_log(path, filter="recency = 1 and history > 500")
learner = HierOPO().fit(log, task="zip_code", action="segment", reward="visit", context=["channel"])
decisions = learner.decide(log)
evaluation = learner.evaluate(log, compare=False)
""",
    "oralytics_pilot": """
features = "state_tod + cyclic(decision_time, 'day')"
learner = HierOPO(features).fit(path, task="user_id", action="action", reward="quality", pscore="prob")
decisions = learner.decide(path)
evaluation = learner.evaluate(path, compare=False)
""",
    "obd_small": """
log = open_log(path, filter="item_id = 0 and campaign != 'all'")
context = ["user_feature_0", "timestamp"]
learner = HierOPO().fit(log, task="campaign", action="position", reward="click", context=context)
decisions = learner.decide(log)
evaluation = learner.evaluate(log, compare=False)
""",
    "ist_trial": """
log = open_log(path, filter="HOSPNUM < 20")
learner = HierOPO().fit(log, task="HOSPNUM", action="RXASP", reward="DIED", context=["AGE", "RATRIAL"])
decisions = learner.decide(log)
evaluation = learner.evaluate(log, compare=False)
""",
    "ggl_social_pressure": """
log = open_log(path, filter="cluster <= 20")
learner = HierOPO().fit(log, task="cluster", action="treatment", reward="primary_06", context=["sex"])
decisions = learner.decide(log)
evaluation = learner.evaluate(log, compare=False)
""",
    "star_aer": """
log = open_log(path, filter="readk > 0 and schoolidk < 20")
learner = HierOPO().fit(log, task="schoolidk", action="stark", reward="readk", context=["lunchk"])
decisions = learner.decide(log)
evaluation = learner.evaluate(log, compare=False)
""",
    "kenya_voter_reg": """
log = open_log(path, filter="poverty < 0.35")
learner = HierOPO().fit(log, task="block", action="treatment", reward="rv13", context=["mean_age"])
decisions = learner.decide(log)
evaluation = learner.evaluate(log, compare=False)
""",
    "routellm_mmlu": """
answers = "select subject, length(prompt) as size, '{0}' as model, {0}_correct as correct from '{1}' limit 3000"
log = sql(" union all ".join(f"({answers.format(m, path)})" for m in ("mixtral_8x7b", "gpt4_1106")), ":memory:")
learner = HierOPO("log(size)").fit(log, task="subject", action="model", reward="correct")
decisions = learner.decide(log)
evaluation = learner.evaluate(log, compare=False)
""",
}
COLUMNS = {
    "hillstrom_email": {"channel=Phone"},
    "oralytics_pilot": {"state_tod", "sin(day of decision_time)"},
    "obd_small": {"sin(day of timestamp)"},
    "ist_trial": {"AGE", "RATRIAL=N", "RATRIAL (missing)"},
    "ggl_social_pressure": {"sex=Female"},
    "star_aer": {"lunchk=free", "lunchk (missing)"},
    "kenya_voter_reg": {"mean_age", "mean_age (missing)"},
    "routellm_mmlu": {"log(size)"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_six_lines_of_python_go_from_a_raw_table_to_decisions_and_an_evaluation(name: str) -> None:
    lines = SCRIPTS[name].strip()
    assert len(f"from hieropo import HierOPO, open_log, sql\n{lines}".splitlines()) <= 6
    scope: dict[str, Any] = {"path": real_table(f"{name}.parquet")}
    exec(f"from hieropo import HierOPO, open_log, sql\n{lines}", scope)
    learner, decisions, evaluation = scope["learner"], scope["decisions"], scope["evaluation"]
    assert set(learner.features_.columns) >= COLUMNS[name]
    assert not decisions.undecided
    assert set(decisions["action"].to_pylist()) <= set(learner.features_.actions)
    assert np.isfinite(evaluation.model.difference.mean)
    assert evaluation.sentences()["verdict"]


COMMANDS = {
    "hillstrom_email": ["--task", "zip_code", "--action", "segment", "--reward", "visit", "--context",
                        "channel", "--filter", "recency = 1 and history > 500"],
    "oralytics_pilot": ["--task", "user_id", "--action", "action", "--reward", "quality", "--pscore", "prob",
                        "--features", "state_tod + cyclic(decision_time, 'day')"],
    "obd_small": ["--task", "campaign", "--action", "position", "--reward", "click", "--context",
                  "user_feature_0,timestamp", "--filter", "item_id = 0 and campaign != 'all'"],
    "ist_trial": ["--task", "HOSPNUM", "--action", "RXASP", "--reward", "DIED", "--context", "AGE,RATRIAL",
                  "--filter", "HOSPNUM < 20"],
    "ggl_social_pressure": ["--task", "cluster", "--action", "treatment", "--reward", "primary_06", "--context",
                            "sex", "--filter", "cluster <= 20"],
    "star_aer": ["--task", "schoolidk", "--action", "stark", "--reward", "readk", "--context", "lunchk",
                 "--filter", "readk > 0 and schoolidk < 20"],
    "kenya_voter_reg": ["--task", "block", "--action", "treatment", "--reward", "rv13", "--context",
                        "mean_age", "--filter", "poverty < 0.35"],
    "routellm_mmlu": ["--task", "subject", "--action", "model", "--reward", "correct", "--features", "log(size)",
                      "--sql", " union all ".join(
                          f"select subject, length(prompt) as size, '{model}' as model, {model}_correct as correct "
                          "from '{0}' where size < 150" for model in ("mixtral_8x7b", "gpt4_1106"))],
}  # fmt: skip


def done(*words: object) -> str:
    """Return the output of a command that may warn."""
    result = CliRunner().invoke(main, [str(word) for word in words], prog_name="hieropo")
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_four_commands_go_from_a_raw_table_to_decisions_and_an_evaluation(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = real_table(f"{name}.parquet")
    words = [word.format(path) for word in COMMANDS[name]]
    rows = words[-2:] if words[-2] in ("--filter", "--sql") else []
    log = ":memory:" if "--sql" in rows else path
    done("fit", log, *words, "-o", "policy")
    assert "action" in done("inspect", "policy")
    decided = json.loads(done("decide", "policy", log, *rows, "-o", "decisions.parquet", "--json"))
    evaluated = json.loads(done("evaluate", "policy", log, *rows, "--no-compare", "--json"))
    assert decided["requests_without_an_action"] == 0
    assert pq.read_table("decisions.parquet")["action"].null_count == 0
    assert evaluated["rows"] == decided["requests"]


def test_free_text_is_no_category_unless_a_formula_says_so() -> None:
    table = pq.read_table(real_table("routellm_mmlu.parquet")).slice(0, 2000)
    log = pa.table({"subject": table["subject"], "prompt": table["prompt"], "model": ["a", "b"] * 1000,
                    "right": table["mixtral_8x7b_correct"]})  # fmt: skip
    roles = {"task": "subject", "action": "model", "reward": "right"}
    with pytest.raises(SchemaError, match=r"'prompt' has 1,911 different texts .* category\(prompt\)"):
        HierOPO().fit(log, context=["prompt"], **roles)
    learner = HierOPO("category(prompt, max_levels=3)").fit(log, **roles)
    assert len(learner.features_.columns) == 3
    assert max(map(len, learner.features_.columns)) < 50
    assert set(learner.predict(log.slice(0, 50)).tolist()) <= {"a", "b"}


def test_the_doctor_examines_columns_of_text() -> None:
    context = ["channel", "history_segment", "recency", "newbie"]
    found = examine(
        real_table("hillstrom_email.parquet"),
        task="zip_code",
        action="segment",
        reward="visit",
        context=context,
    )
    assert not found.stops
    assert found.roles.context == tuple(context)


@pytest.mark.slow
def test_requests_that_the_log_did_not_prepare_for_are_set_aside_by_their_own_column() -> None:
    path = real_table("hillstrom_email.parquet")
    log = open_log(path, filter="zip_code = 'Rural'")
    columns = {"task": "zip_code", "action": "segment", "reward": "visit"}
    learner = HierOPO("channel + recency").fit(log, **columns)
    table = pa.Table.from_batches(log.batches(log.schema.names)).slice(0, 2000)
    channel = [None if k in (3, 7) else value for k, value in enumerate(table["channel"].to_pylist())]
    holes = table.set_column(table.schema.get_field_index("channel"), "channel", pa.array(channel))
    with pytest.raises(LogError, match=r"'channel', row 3 .*null"):
        learner.evaluate(holes)
    with pytest.warns(HieropoWarning, match="set aside"):
        evaluation = learner.evaluate(holes, lenient=True)
    (reason,) = evaluation.rejected.reasons  # type: ignore[union-attr]  # a lenient evaluation has them
    assert (reason.column, reason.reason, reason.rows, reason.first_row) == ("channel", "missing", 2, 3)
