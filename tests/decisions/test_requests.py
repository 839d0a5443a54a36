import pyarrow as pa
import pytest
from sample_logs import SOURCES

from hieropo.decisions.requests import read_requests
from hieropo.errors import LogError, SchemaError, UnknownActionError
from hieropo.features.maps import indicator

REQUESTS = pa.table(
    {
        "request": ["q0", "q1", "q2"],
        "s": ["a", "b", "a"],
        "x": [1.0, 2.0, 3.0],
        "can": [["u"], ["v", "u"], ["w"]],
    }
)


class TestRequests:
    @pytest.mark.parametrize(
        "make", [SOURCES["table"], SOURCES["polars"], SOURCES["parquet file"], SOURCES["duckdb"]]
    )
    def test_all_that_is_named_is_read(self, make, tmp_path):
        one, two = read_requests(make(REQUESTS, tmp_path), "s", ["x"], "can", "request", batch_rows=2)
        assert len(one) == 2
        assert one.task.tolist() == ["a", "b"]
        assert one.context.tolist() == [[1.0], [2.0]]
        assert one.eligible == [["u"], ["v", "u"]]
        assert one.request.tolist() == ["q0", "q1"]
        assert two.first_row == 2
        assert two.eligible == [["w"]]

    def test_only_the_task_is_needed(self):
        (batch,) = read_requests(REQUESTS, "s")
        assert batch.eligible is batch.request is None
        assert batch.context.shape == (3, 0)
        assert batch.eligible_mask(indicator(["u"])) is None

    def test_the_mask_says_which_actions_are_eligible(self):
        (batch,) = read_requests(REQUESTS, "s", eligible="can")
        mask = batch.eligible_mask(indicator(["u", "v", "w", "z"]))
        assert mask.tolist() == [
            [True, False, False, False],
            [True, True, False, False],
            [False, False, True, False],
        ]

    def test_unknown_eligible_actions_name_their_row(self):
        one, two = read_requests(REQUESTS, "s", eligible="can", batch_rows=2)
        with pytest.raises(UnknownActionError, match=r"'v' \(row 1\)"):
            one.eligible_mask(indicator(["u", "w"]))
        with pytest.raises(UnknownActionError, match=r"'w' \(row 2\)"):
            two.eligible_mask(indicator(["u", "v"]))

    @pytest.mark.parametrize(
        "can",
        [
            pa.array([[1, 2], [3]], pa.list_(pa.int16())),
            pa.array([[1, 2], [3]], pa.large_list(pa.uint32())),
            pa.array([[9], [1, 2], [3]], pa.list_(pa.int64())).slice(1),
            pa.array([[1, 2], [3]], pa.list_(pa.int64())),
        ],
    )
    def test_lists_of_every_kind_are_read(self, can):
        (batch,) = read_requests(pa.table({"s": ["a", "b"], "can": can}), "s", eligible="can")
        assert batch.eligible == [[1, 2], [3]]

    def test_lists_of_fixed_length_are_read(self):
        can = pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2))
        (batch,) = read_requests(pa.table({"s": ["a", "b"], "can": can}), "s", eligible="can")
        assert batch.eligible == [[1, 2], [3, 4]]

    @pytest.mark.parametrize(
        ("column", "values", "message"),
        [
            ("s", ["a", None, "b"], "'s', row 1: null"),
            ("x", [1.0, float("nan"), 2.0], "'x', row 1: nan is not a context"),
            ("x", [1.0, None, 2.0], "'x', row 1: null"),
            ("can", [["u"], None, ["u"]], "'can', row 1: null"),
            ("can", [["u"], ["v"], []], "'can', row 2: the list is empty"),
            ("can", [["u"], ["v", None], ["u"]], "'can', row 1: the list holds a null"),
            ("request", ["q", "q", None], "'request', row 2: null"),
        ],
    )
    def test_rows_that_cannot_be_used(self, column, values, message):
        table = REQUESTS.set_column(REQUESTS.schema.get_field_index(column), column, pa.array(values))
        with pytest.raises(LogError, match=message):
            list(read_requests(table, "s", ["x"], "can", "request"))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"task": "t"}, r"'t' \(role task\) is not in"),
            ({"task": ["s", "s"]}, "named twice"),
            ({"task": "s", "context": "x"}, "bare string"),
            ({"task": "s", "context": ["s"]}, "cannot be a context"),
            ({"task": "s", "eligible": "s"}, "cannot be a list of eligible actions.*Gather the actions"),
            ({"task": "can"}, "cannot be a task"),
        ],
    )
    def test_columns_that_cannot_be_used(self, arguments, message):
        with pytest.raises(SchemaError, match=message):
            read_requests(REQUESTS, **arguments)

    def test_no_requests_are_an_error(self):
        with pytest.raises(LogError, match="has no rows"):
            read_requests(REQUESTS.slice(0, 0), "s")
        with pytest.raises(LogError, match="has no rows"):
            list(read_requests(REQUESTS.slice(0, 0).to_reader(), "s"))
