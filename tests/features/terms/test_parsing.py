"""Formulas: each is read back from its own text, nothing is evaluated, and every error points at its place."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hieropo.errors import InputError
from hieropo.features.terms import (
    ByType,
    Cat,
    Cross,
    Cyclic,
    DatePart,
    Log,
    Number,
    Ordered,
    Spline,
    Term,
    Terms,
    YesNo,
    parse,
    terms_of,
)
from hieropo.features.terms.terms import EachColumn

NAMES = st.one_of(
    st.sampled_from(["price", "log", "x y", "é", "a`b", "'", "1", "None"]), st.text(min_size=1, max_size=6)
)
TEXTS = st.text(max_size=5)
NUMBERS = st.floats(-1e9, 1e9, allow_nan=False)
SIMPLE: st.SearchStrategy[Term] = st.one_of(
    st.builds(ByType, NAMES),
    st.builds(Number, NAMES),
    st.builds(YesNo, NAMES),
    st.builds(Cat, NAMES, st.integers(1, 50)),
    st.builds(Ordered, NAMES, st.lists(TEXTS, min_size=2, unique=True).map(tuple)),
    st.builds(Ordered, NAMES, st.lists(NUMBERS, min_size=2, unique=True).map(sorted).map(tuple)),
    st.builds(Spline, NAMES, st.integers(1, 50)),
    st.builds(Cyclic, NAMES, st.sampled_from(["day", "week", "year", 24, 2.5]), st.integers(1, 5)),
    st.builds(DatePart, NAMES, st.sampled_from(["hour", "month"]), st.sampled_from([None, "UTC", "Asia/Tokyo"])),
    st.builds(Log, NAMES, NUMBERS),
)  # fmt: skip
CROSSES = st.lists(SIMPLE, min_size=2, max_size=3, unique=True).map(lambda factors: Cross(*factors))
TERMS = st.builds(
    lambda terms, missing, most: Terms(tuple(terms), missing, most),
    st.lists(st.one_of(SIMPLE, CROSSES, st.just(EachColumn())), min_size=1, max_size=5),
    st.sampled_from(["refuse", "prior"]),
    st.integers(1, 500),
)


@pytest.mark.slow
@given(TERMS)
def test_a_formula_is_read_back_from_its_text(terms: Terms) -> None:
    assert parse(str(terms)) == terms


def test_products_and_parentheses_are_sums_of_interactions() -> None:
    assert str(parse("a*b")) == "a + b + a:b"
    assert str(parse("(a + b):(c + d)")) == "a:c + a:d + b:c + b:d"
    assert str(parse("a + a + b")) == "a + b"
    assert terms_of(["a", Spline("p", 3), Cross("a", "p")]) == parse("a + spline(p, 3) + a:p")


@pytest.mark.parametrize(
    ("formula", "position", "message"),
    [
        ("", 0, "the formula ends"),
        ("price +", 7, "the formula ends"),
        ("price + (device", 15, "position 8 is not closed"),
        ("Alter Kunde + device", 6, "'Kunde' is not expected here. Write a name with blanks in backquotes."),
        ("price $ 2", 6, "no meaning"),
        ("a + eval('1')", 4, "'eval' is no function"),
        ("a + spline(p, 99)", 4, "df=99"),
        ("a + spline(p q)", 13, "a comma"),
        ("spline(4)", 7, "name of a column"),
        ("cyclic(at, 'moon')", 0, "'moon'"),
        ("date_part(at, 'hour', zone='Mars')", 0, "no time zone"),
        ("a:a", 0, "no interaction"),
        ("`open", 0, "not closed"),
        ("a; missing='drop'", 0, "missing='drop'"),
        ("a.b", 1, "not expected"),
        ("a + log(x, plus=b)", 16, "a number or a text"),
        ("*".join("abcdefghijkl"), 0, "more than"),
        ("(" * 60 + "a", 50, "nested"),
    ],
)
def test_an_error_points_at_its_place(formula: str, position: int, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as error:
        parse(formula)
    text = str(error.value)
    assert f"position {position}:" in text
    shown, caret = text.splitlines()[-2:]
    assert caret.strip() == "^"
    if position < len(formula):
        assert shown[caret.index("^")] == formula[position]


HOSTILE = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="ab+:*(),='\"`\\;.1e-_ \n", max_size=60),
    st.lists(
        st.sampled_from(
            ["__import__", "(", ")", "'os'", ".", "system", "lambda", ":", "x", "+", "*", "{", "}", "[", "]", "=",
             "eval", "spline", "category", ",", "`", "9" * 50, "1e999", "-", "\x00", "f'{x}'", ";", "missing", "@"]
        ),
        max_size=25,
    ).map("".join),
)  # fmt: skip


@settings(max_examples=400)
@given(HOSTILE)
def test_a_hostile_formula_is_terms_or_an_error_with_a_position(formula: str) -> None:
    ran: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("eval", "exec", "compile", "__import__"):
            patch.setattr(f"builtins.{name}", lambda *what, **_: ran.append(what), raising=True)
        try:
            found: Terms | InputError = parse(formula)
        except InputError as error:
            found = error
    assert not ran
    if isinstance(found, Terms):
        assert parse(str(found)) == found
    else:
        assert re.search(r"position \d+", str(found))


def test_a_formula_that_is_too_long_or_no_text_is_refused() -> None:
    with pytest.raises(InputError, match="20,001 characters"):
        parse("a" * 20_001)
    with pytest.raises(InputError, match="no formula"):
        parse(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no term"):
        terms_of(["a", 3])  # type: ignore[list-item]
