"""Real tables with text and holes go from the raw file to decisions and an evaluation in a few lines."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from real_data import needs_data, real_table

from hieropo import HierOPO, HieropoWarning, LogError, PooledOPO, SchemaError, examine, open_log

pytestmark = [
    needs_data,
    pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning"),  # each table has its limits; they are told
]

TABLES: dict[str, dict[str, Any]] = {
    "hillstrom_email": {
        "task": "zip_code", "action": "segment", "reward": "visit",
        "context": ["channel", "history_segment", "recency", "newbie"],
    },
    "oralytics_pilot": {
        "task": "user_id", "action": "action", "reward": "quality", "pscore": None,
        "features": "state_tod + cyclic(decision_time, 'day') + cyclic(decision_time, 'week') + state_b_bar",
    },
    "obd_small": {
        "task": "campaign", "action": "position", "reward": "click",
        "context": ["user_feature_0", "user_feature_1", "timestamp", "user-item_affinity_34"],
    },
    "ist_trial": {
        "task": "HOSPNUM", "action": "RXASP", "reward": "DIED", "context": ["SEX", "AGE", "RCONSC", "RATRIAL"],
    },
    "ggl_social_pressure": {
        "task": "cluster", "action": "treatment", "reward": "primary_06", "context": ["sex", "general_04"],
    },
    "star_aer": {
        "task": "schoolidk", "action": "stark", "reward": "readk", "context": ["gender", "ethnicity", "lunchk"],
        "filter": "readk > 0",
    },
    "kenya_voter_reg": {
        "task": "block", "action": "treatment", "reward": "rv13", "features": "log(distance) + mean_age",
        "filter": "poverty < 0.35",
    },
}  # fmt: skip
QUICK = ("obd_small", "ist_trial", "ggl_social_pressure")  # many rows: learned by a quick learner
COLUMNS = {
    "hillstrom_email": {"channel=Phone", "recency", "newbie"},
    "oralytics_pilot": {"state_tod", "sin(day of decision_time)", "state_b_bar"},
    "obd_small": {"user-item_affinity_34", "user-item_affinity_34 (missing)", "sin(day of timestamp)"},
    "ist_trial": {"SEX=F", "AGE", "RATRIAL=N", "RATRIAL (missing)"},
    "ggl_social_pressure": {"sex=Female"},
    "star_aer": {"gender=female", "lunchk=free", "ethnicity (missing)"},
    "kenya_voter_reg": {"log(distance)", "mean_age", "mean_age (missing)"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_a_raw_table_becomes_decisions_and_an_evaluation(name: str) -> None:
    columns = dict(TABLES[name])
    log = open_log(real_table(f"{name}.parquet"), filter=columns.pop("filter", None))
    learner = (PooledOPO if name in QUICK else HierOPO)(columns.pop("features", None))
    learner.fit(log, **columns)
    assert COLUMNS[name] <= set(learner.features_.columns)
    requests = pa.Table.from_batches(log.batches(log.schema.names)).slice(0, 200)
    assert set(learner.predict(requests).tolist()) <= set(learner.features_.actions or ())
    evaluation = learner.evaluate(
        log, compare=False, propensities="auto" if name == "oralytics_pilot" else "none"
    )
    assert np.isfinite(evaluation.model.difference.mean)


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
    found = examine(real_table("hillstrom_email.parquet"), **TABLES["hillstrom_email"])
    assert not found.stops
    assert "channel=Phone" in found.roles.context


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
