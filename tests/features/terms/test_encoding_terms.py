"""Columns of terms equal their definitions, by scikit-learn and scipy, and do not depend on the order of rows."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import CubicSpline
from sklearn.preprocessing import OneHotEncoder

from hieropo.errors import InputError, SchemaError
from hieropo.features.terms import parse
from hieropo.features.terms.doubts import directions
from hieropo.features.terms.learned import LearnedTerms, terms_differences
from hieropo.features.terms.learning import SourceColumn, learn, resolve
from hieropo.features.terms.sketch import CELLS, Quantiles, fixed_point
from hieropo.features.terms.splines import natural_spline
from hieropo.features.terms.statistics import LogColumns, wanted
from hieropo.features.terms.values import Values, on_clock

RNG = np.random.default_rng(5)


def values_of(column: Sequence[Any]) -> Values:
    missing = np.array([value is None for value in column])
    present = [value for value in column if value is not None]
    if isinstance(present[0], str):
        texts = tuple(dict.fromkeys(present))
        codes = np.array([-1 if value is None else texts.index(value) for value in column])
        return Values("text", missing, codes=codes, texts=texts)
    if isinstance(present[0], np.datetime64):
        instants = np.array([np.datetime64(0, "us") if v is None else v for v in column]).astype("M8[us]")
        return Values("time", missing, instants=instants.astype(np.int64))
    numbers = np.array([0.0 if value is None else float(value) for value in column])
    return Values("boolean" if isinstance(present[0], bool) else "number", missing, numbers=numbers)


def learned(
    formula: str,
    columns: dict[str, Sequence[Any]],
    weight: Any = None,
    parts: Sequence[slice] = (slice(None),),
) -> LearnedTerms:
    terms, values = parse(formula), {name: values_of(column) for name, column in columns.items()}
    kinds = {name: SourceColumn(column.kind, column.zone) for name, column in values.items()}
    resolved = resolve(terms, tuple(columns), kinds)
    needs = wanted([found.term for found in resolved], values=terms.missing == "prior")
    total = LogColumns(needs)
    for part in parts:
        some = LogColumns(needs)
        some.add({n: values_of(columns[n][part]) for n in needs}, None if weight is None else weight[part])
        total.merge(some)
    return learn(terms, resolved, kinds, total)


def design(terms: LearnedTerms, columns: dict[str, Sequence[Any]]) -> Any:
    encoded = terms.encode({name: values_of(column) for name, column in columns.items()})
    assert not encoded.refused
    return np.array(encoded.columns).T


def test_a_category_is_coded_to_sum_to_zero_as_scikit_learns_dummies_say() -> None:
    device = RNG.choice(["phone", "web", "tablet", "tv"], 200).tolist()
    terms = learned("category(device)", {"device": device})
    dummies = OneHotEncoder(sparse_output=False).fit_transform(np.array(device)[:, None])
    assert np.array_equal(design(terms, {"device": device}), dummies[:, :-1] - dummies[:, -1:])
    assert terms.names == ("device=phone", "device=tablet", "device=tv")
    assert np.array_equal(
        design(terms, {"device": ["fridge"]}), np.zeros((1, 3))
    )  # unknown: the mean of the levels


def test_rare_levels_are_one_class_and_a_new_level_belongs_to_it() -> None:
    device = ["a"] * 5 + ["b"] * 4 + ["c"] * 2 + ["d"]
    terms = learned("category(device, max_levels=2)", {"device": device})
    assert terms.names == ("device=a", "device=b")
    assert design(terms, {"device": ["a", "b", "c", "new"]}).tolist() == [[1, 0], [0, 1], [-1, -1], [-1, -1]]
    unknown = terms.encode({"device": values_of(["a", "c", "new"])}).unknown["device"]
    assert unknown.tolist() == [False, True, True]


def test_a_natural_spline_is_that_of_scipy_and_linear_beyond_its_knots() -> None:
    price = RNG.lognormal(2.0, 1.0, 500)
    terms = learned("spline(price, 4)", {"price": price.tolist()})
    knots = np.quantile(price, [0, 0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(terms.terms[0].knots, knots, rtol=1e-15)
    cardinal = CubicSpline(knots, np.eye(5), bc_type="natural")
    np.testing.assert_allclose(design(terms, {"price": price.tolist()}), cardinal(price)[:, 1:], atol=1e-12)
    beyond = natural_spline(np.array([knots[0] - 3.0, knots[-1] + 7.0]), knots)
    ends = [
        cardinal(knots[0]) - 3.0 * cardinal(knots[0], 1),
        cardinal(knots[-1]) + 7.0 * cardinal(knots[-1], 1),
    ]
    np.testing.assert_allclose(beyond, ends, atol=1e-11)
    np.testing.assert_allclose(natural_spline(price, knots).sum(axis=1), 1.0, atol=1e-12)


def test_cycles_steps_logarithms_and_interactions_equal_their_formulas() -> None:
    at = np.datetime64("2026-01-01T00:00", "us") + RNG.integers(0, 10**14, 300).astype("m8[us]")
    price, tier = RNG.gamma(2.0, 5.0, 300), RNG.choice(["low", "mid", "high"], 300)
    columns = {"at": list(at), "price": price.tolist(), "tier": tier.tolist()}
    terms = learned(
        "cyclic(at, 'week') + ordered(tier, 'low', 'mid', 'high') + log(price, plus=1) + tier:price", columns
    )
    hours = (at - np.datetime64("2026-01-05T00:00", "us")) / np.timedelta64(1, "h")  # a Monday
    rank = np.array([["low", "mid", "high"].index(level) for level in tier])
    dummy = (tier == "high").astype(float) - (tier == "mid"), (tier == "low").astype(float) - (tier == "mid")
    truth = [
        np.sin(2 * np.pi * hours / 168),
        np.cos(2 * np.pi * hours / 168),
        rank >= 1,
        rank >= 2,
        np.log1p(price),
    ]
    np.testing.assert_allclose(
        design(terms, columns), np.stack([*truth, *(d * price for d in dummy)], axis=1), atol=1e-12
    )
    assert terms.names == (
        "sin(week of at)", "cos(week of at)", "tier>=mid", "tier>=high", "log(price + 1)", "tier=high:price",
        "tier=low:price",
    )  # fmt: skip


def test_parts_of_dates_are_those_of_the_calendar_in_a_time_zone() -> None:
    at = np.datetime64("2026-03-28T20:00", "us") + np.arange(0, 60, 1).astype(
        "m8[h]"
    )  # clocks go forward on the 29th
    clock = on_clock(at.astype(np.int64), "Europe/Amsterdam").view("M8[us]")
    truth = [
        moment.item().replace(tzinfo=ZoneInfo("UTC")).astimezone(ZoneInfo("Europe/Amsterdam"))
        for moment in at
    ]
    assert clock.tolist() == [moment.replace(tzinfo=None) for moment in truth]
    terms = learned("date_part(at, 'weekday')", {"at": list(at)})
    assert terms.names == (
        "weekday of at=Mon",
        "weekday of at=Tue",
        "weekday of at=Sat",
    )  # and Sunday, minus their sum
    assert design(terms, {"at": [np.datetime64("2026-03-30T01:00")]}).tolist() == [[1.0, 0.0, 0.0]]


def test_missing_values_have_an_indicator_where_the_log_had_them() -> None:
    columns = {"price": [1.0, None, 3.0, 4.0], "device": ["a", None, "b", "a"], "age": [1.0, 2.0, 3.0, None]}
    terms = learned("price + device + age + price:age", columns)
    assert terms.names == (
        "price",
        "device=a",
        "age",
        "price:age",
        "price, device (missing)",
        "age (missing)",
    )
    assert design(terms, columns).tolist() == [
        [1, 1, 1, 1, 0, 0], [0, 0, 2, 0, 1, 0], [3, -1, 3, 9, 0, 0], [4, 1, 0, 0, 0, 1],
    ]  # fmt: skip


def test_a_value_that_is_missing_for_the_first_time_is_refused_or_unknown() -> None:
    columns = {"price": [1.0, 2.0, 9.0], "device": ["a", "b", "a"]}
    one = {"price": values_of([None, 5.0]), "device": values_of([None, "a"])}
    refused = learned("price + device", columns).encode(one).refused
    assert [(item.column, item.reason, item.rows.tolist()) for item in refused] == [
        ("price", "missing", [True, False]), ("device", "missing", [True, False]),
    ]  # fmt: skip
    terms = learned("price + device; missing='prior'", columns)
    assert pytest.approx(np.array([[4.0, 1 / 3], [5.0, 1.0]])) == np.array(terms.encode(one).columns).T


def test_an_unknown_value_has_the_means_and_the_covariance_of_the_columns_over_the_log() -> None:
    columns: dict[str, Any] = {
        "price": RNG.gamma(2.0, 3.0, 5000).tolist(),
        "device": RNG.choice(["a", "b", "c"], 5000, p=[0.6, 0.3, 0.1]).tolist(),
        "at": (np.datetime64("2026-01-01", "us") + RNG.integers(0, 10**13, 5000)).tolist(),
        "yes": (RNG.random(5000) < 0.2).tolist(),
    }
    columns["at"] = [np.datetime64(value) for value in columns["at"]]
    formula = "price + spline(price, 3) + device + cyclic(at, 'week') + yes + device:price; missing='prior'"
    terms = learned(formula, columns)
    rows = design(terms, columns)
    unknown: dict[str, Any] = {name: [None, column[0]] for name, column in columns.items()}
    context = np.array(terms.encode({name: values_of(column) for name, column in unknown.items()}).columns).T
    assert context[0, :9] == pytest.approx(rows[:, :9].mean(axis=0), rel=2e-3, abs=2e-3)
    assert context[1] == pytest.approx(rows[0])
    doubtful, roots = directions(terms.doubts, context)
    assert doubtful.tolist() == [0]
    for part in (slice(0, 4), slice(4, 6), slice(6, 8), slice(8, 9)):
        cov = np.atleast_2d(np.cov(rows[:, part].T, bias=True))
        assert (roots[0].T @ roots[0])[part, part] == pytest.approx(cov, rel=5e-3, abs=2e-3)
    again = LearnedTerms.from_dict(json.loads(json.dumps(terms.to_dict())))
    assert np.array_equal(directions(again.doubts, context)[1], roots)
    assert not directions(terms.doubts, rows)[0].size


def test_numbers_that_have_no_logarithm_or_are_too_large_are_refused() -> None:
    terms = learned("log(price)", {"price": [1.0, 2.0]})
    refused = terms.encode({"price": values_of([0.0, np.inf, 1e300])}).refused
    assert {item.reason: item.rows.tolist() for item in refused} == {
        "infinite": [False, True, False], "huge": [False, False, True], "not above 0": [True, True, True],
    }  # fmt: skip


COLUMN = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from(["a", "b", "c", "", "None", "é"])),
        st.one_of(st.none(), st.floats(-1e6, 1e6), st.integers(0, 3).map(float)),
        st.integers(0, 3),
    ),
    min_size=4,
    max_size=40,
)


@pytest.mark.slow
@given(COLUMN, st.randoms(), st.integers(1, 4))
def test_the_map_is_the_same_for_any_order_and_any_parts(rows: list[Any], random: Any, parts: int) -> None:
    rows = [("a", 1.0, 1), ("b", 2.5, 1), *rows]
    shuffled = random.sample(rows, len(rows))
    formula = "category(d, max_levels=2) + spline(x, 3); missing='prior'"
    maps = []
    for order, cuts in ((rows, 1), (shuffled, parts)):
        columns = {"d": [row[0] for row in order], "x": [row[1] for row in order]}
        weight = np.array([row[2] for row in order], dtype=np.float64)
        edges = np.linspace(0, len(order), cuts + 1).astype(int)
        slices = [slice(a, b) for a, b in pairwise(edges) if b > a]
        usable = [s for s in slices if any(columns["d"][s]) and any(v is not None for v in columns["x"][s])]
        maps.append(
            learned(formula, columns, weight, slices if len(usable) == len(slices) else [slice(None)])
        )
    assert maps[0].to_dict() == maps[1].to_dict()
    repeated = [row for row in rows for _ in range(row[2])]
    columns = {"d": [row[0] for row in repeated], "x": [row[1] for row in repeated]}
    assert learned(formula, columns).to_dict() == maps[0].to_dict()  # a weight of k is k rows
    assert LearnedTerms.from_dict(maps[0].to_dict()) == maps[0]


def test_a_sketch_of_many_numbers_is_near_their_quantiles_in_bounded_memory() -> None:
    numbers = 1.7e9 + RNG.normal(size=100_000) * 1e4
    sketch = Quantiles()
    sketch.add(numbers, fixed_point(None, numbers.size))
    assert len(sketch.counts) <= CELLS
    shares = [0.0, 0.1, 0.5, 0.99, 1.0]
    assert np.abs(np.array(sketch.at(shares)) - np.quantile(numbers, shares)).max() < 1e4 / 20


def test_terms_that_do_not_fit_their_columns_are_refused_with_those_that_do() -> None:
    columns = {
        "device": ["a", "b"],
        "price": [1.0, 2.0],
        "at": [np.datetime64("2026-01-01"), np.datetime64("2026-02-01")],
    }
    for formula, message in (
        ("spline(device, 3)", r"category\(device\)"),
        ("cyclic(price, 'week')", "dates or times"),
        ("log(at)", r"cyclic\(at, 'week'\)"),
        ("device:at", "which cycle"),
        ("ordered(device)", "List its levels"),
        ("cyclic(at, 'week', zone='UTC')", "times without one"),
        ("yes_no(price)", "booleans"),
    ):
        with pytest.raises(SchemaError, match=message):
            learned(formula, columns)


def test_too_many_columns_are_refused_and_many_are_told() -> None:
    columns = {"zip": [str(k % 200) for k in range(400)], "one": ["a"] * 400}
    with pytest.raises(
        InputError, match=r"199 columns .* 128 are allowed: category\(zip, max_levels=500\) has 199"
    ):
        learned("category(zip, max_levels=500)", columns)
    wide = learned("category(zip, max_levels=40) + one; max_columns=50", columns)
    assert "40 columns for each action" in wide.described()
    assert "'one' has one value only" in wide.described()


def test_differences_of_two_maps_are_named() -> None:
    columns = {"device": ["a", "b", "c"], "price": [1.0, 2.0, 3.0]}
    base = learned("category(device) + spline(price, 2)", columns)
    assert terms_differences(base, base) == []
    for formula, changed, message in (
        ("category(device)", columns, "the formulas"),
        (
            "category(device) + spline(price, 2)",
            {**columns, "device": ["a", "b", "d"]},
            "levels ['a', 'b', 'd']",
        ),
        (
            "category(device) + spline(price, 2)",
            {**columns, "price": [1.0, 2.0, 5.0]},
            "knots [1.0, 2.0, 5.0]",
        ),
        (
            "category(device) + spline(price, 2)",
            {**columns, "price": [1.0, None, 3.0]},
            "with missing values",
        ),
    ):
        assert message in " ".join(terms_differences(base, learned(formula, changed)))
    assert terms_differences(base, None) == ["terms that make columns in the first only"]
