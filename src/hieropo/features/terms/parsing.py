"""The parser of formulas such as ``device + spline(price, 4) + device:price``. Nothing is evaluated.

formula     = sum [";" setting {"," setting}]
sum         = product {"+" product}
product     = interaction {"*" interaction}             a * b is a + b + a:b
interaction = atom {":" atom}
atom        = "." | name | name "(" [argument {"," argument}] ")" | "(" sum ")"
argument    = [name "="] (name | text | number)
name        = a word, or any text in backquotes
"""

import re
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

from hieropo.errors import InputError
from hieropo.features.terms.terms import FUNCTIONS, ByType, Cross, EachColumn, Term, Terms

MAX_LENGTH = 20_000
MAX_TERMS = 1_000
MAX_DEPTH = 50
MAX_FACTORS = 8

_TOKENS = re.compile(
    r"""(?P<space>\s+)
    | (?P<name>[^\W\d]\w*)
    | (?P<quoted>`(?:[^`]|``)+`)
    | (?P<text>'(?:[^'\\]|\\[\\'])*'|"(?:[^"\\]|\\[\\"])*")
    | (?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<symbol>[+:*(),=;.])""",
    re.VERBOSE,
)


class Token(NamedTuple):
    """A piece of a formula, and its position from 0."""

    kind: str
    text: str
    position: int


class Argument(NamedTuple):
    """An argument of a function: its name or None, its value, and where it stands."""

    name: str | None
    value: Any
    is_column: bool
    token: Token


def parse(formula: str) -> Terms:
    """Return the terms of a formula. Nothing in it is evaluated.

    Raises
    ------
    InputError
        It is no formula; the message has the position and points at it.

    Examples
    --------
    >>> str(parse("device*price + spline( age,4 )"))
    'device + price + device:price + spline(age, 4)'
    """
    if not isinstance(formula, str):
        raise InputError(f"{formula!r} is no formula. Give text, such as 'device + spline(price, 4)'.")
    if len(formula) > MAX_LENGTH:
        raise InputError(
            f"The formula has {len(formula):,} characters, and at most {MAX_LENGTH:,} are read (position "
            f"{MAX_LENGTH}). Give a list of terms."
        )
    return _Parser(formula).parsed()


def terms_of(features: "str | Term | Sequence[str | Term] | Terms") -> Terms:
    """Return the terms of a formula, or of a list of terms and formulas.

    Raises
    ------
    InputError
        A text is no formula, or an entry is no term.
    """
    if isinstance(features, Terms):
        return features
    if isinstance(features, str):
        return parse(features)
    entries = [features] if isinstance(features, Term) else features
    terms: list[Term] = []
    for entry in entries:
        if not isinstance(entry, str | Term):
            raise InputError(
                f"features={features!r}: {entry!r} is no term. Give names of columns, or terms such as "
                "Spline('price', 4)."
            )
        terms.extend([entry] if isinstance(entry, Term) else parse(entry))
    return Terms(tuple(terms))


class _Parser:
    """A recursive descent over the tokens of one formula."""

    def __init__(self, formula: str) -> None:
        self._formula = formula
        self._tokens = self._tokenised()
        self._next = 0
        self._depth = 0

    def parsed(self) -> Terms:
        """Return the terms of the whole formula."""
        terms = self._sum()
        settings = self._settings() if self._takes(";") else {}
        token = self._peek()
        if token.kind != "end":
            hint = ". Write a name with blanks in backquotes." if token.kind == "name" else ""
            raise self._error(token, f"{token.text!r} is not expected here{hint}")
        try:
            return Terms(tuple(terms), **settings)
        except InputError as error:
            raise self._error(self._tokens[0], str(error)) from error

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        while True:
            token = self._take()
            if token.text not in ("missing", "max_columns") or not self._takes("="):
                raise self._error(token, "a setting is needed: missing='prior' or max_columns=200")
            settings[token.text] = self._literal(self._take())
            if not self._takes(","):
                return settings

    def _tokenised(self) -> list[Token]:
        tokens, position, text = [], 0, self._formula
        while position < len(text):
            match = _TOKENS.match(text, position)
            if match is None:
                unfinished = text[position] in "`'\""
                raise self._error(
                    Token("", text[position], position),
                    "a quote is opened and not closed, or holds a backslash that escapes nothing"
                    if unfinished
                    else f"{text[position]!r} has no meaning in a formula",
                )
            if match.lastgroup != "space":
                tokens.append(Token(str(match.lastgroup), match[0], position))
            position = match.end()
        tokens.append(Token("end", "", len(text)))
        return tokens

    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._peek()
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _takes(self, symbol: str) -> bool:
        token = self._peek()
        if token.kind != "symbol" or token.text != symbol:
            return False
        self._take()
        return True

    def _sum(self) -> list[Term]:
        terms = self._product()
        while self._takes("+"):
            terms = self._joined(terms, self._product())
        return terms

    def _product(self) -> list[Term]:
        start = self._peek()
        terms = self._interaction()
        while self._takes("*"):
            right = self._interaction()
            terms = self._joined(self._joined(terms, right), self._crossed(start, terms, right))
        return terms

    def _interaction(self) -> list[Term]:
        start = self._peek()
        terms = self._atom()
        while self._takes(":"):
            terms = self._crossed(start, terms, self._atom())
        return terms

    def _joined(self, left: list[Term], right: list[Term]) -> list[Term]:
        terms = list(dict.fromkeys([*left, *right]))
        if len(terms) > MAX_TERMS:
            raise self._error(self._peek(), f"the formula has more than {MAX_TERMS:,} terms")
        return terms

    def _crossed(self, start: Token, left: list[Term], right: list[Term]) -> list[Term]:
        if len(left) * len(right) > MAX_TERMS:
            raise self._error(start, f"the formula has more than {MAX_TERMS:,} terms")
        crosses: dict[Term, None] = {}
        for pair in product(left, right):
            try:
                cross = Cross(*pair)
            except InputError as error:
                raise self._error(start, str(error)) from error
            if len(cross.factors) > MAX_FACTORS:
                raise self._error(start, f"an interaction has more than {MAX_FACTORS} factors")
            crosses[cross] = None
        return list(crosses)

    def _atom(self) -> list[Term]:
        token = self._take()
        if token.kind == "symbol" and token.text == ".":
            return [EachColumn()]
        if token.kind == "symbol" and token.text == "(":
            return self._group(token)
        if token.kind == "name" and self._takes("("):
            return [self._call(token)]
        if token.kind in ("name", "quoted"):
            return [ByType(_name(token))]
        what = "the formula ends" if token.kind == "end" else f"{token.text!r} stands"
        raise self._error(token, f"{what} where a column or a term is needed")

    def _group(self, token: Token) -> list[Term]:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(token, f"parentheses are nested more than {MAX_DEPTH} deep")
        terms = self._sum()
        self._depth -= 1
        if not self._takes(")"):
            raise self._error(self._peek(), f"the parenthesis of position {token.position} is not closed")
        return terms

    def _call(self, function: Token) -> Term:
        term = FUNCTIONS.get(function.text)
        if term is None:
            raise self._error(
                function,
                f"{function.text!r} is no function of formulas. The functions are {', '.join(FUNCTIONS)}",
            )
        arguments: list[Argument] = []
        while not self._takes(")"):
            if arguments and not self._takes(","):
                raise self._error(self._peek(), f"a comma or the end of {function.text}(...) is needed")
            arguments.append(self._argument())
        return self._made(term, function, arguments)

    def _argument(self) -> Argument:
        token = self._take()
        if token.kind == "name" and self._takes("="):
            value = self._take()
            return Argument(token.text, self._literal(value), is_column=False, token=token)
        if token.kind in ("name", "quoted"):
            return Argument(None, _name(token), is_column=True, token=token)
        return Argument(None, self._literal(token), is_column=False, token=token)

    def _literal(self, token: Token) -> Any:
        if token.kind == "text":
            return re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL)
        if token.kind != "number" or len(token.text) > 40:
            raise self._error(token, "a number or a text in quotes is needed")
        is_whole = re.fullmatch(r"-?\d+", token.text) is not None
        return int(token.text) if is_whole else float(token.text)

    def _made(self, term: type[Term], function: Token, arguments: list[Argument]) -> Term:
        """Return a term with these arguments."""
        if not arguments or not arguments[0].is_column:
            place = arguments[0].token if arguments else function
            raise self._error(place, f"the first argument of {function.text}(...) is the name of a column")
        positional, settings = self._bound(arguments)
        if term.varargs is not None:
            positional = [positional[0], tuple(positional[1:])]
        try:
            return term(*positional, **settings)
        except InputError as error:
            raise self._error(function, str(error)) from error
        except TypeError as error:  # too many arguments, or a name of none
            reason = str(error).split("() ")[-1]
            raise self._error(function, f"{function.text}() {reason}") from error

    def _bound(self, arguments: list[Argument]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments by position and by name."""
        settings: dict[str, Any] = {}
        positional: list[Any] = [arguments[0].value]
        for argument in arguments[1:]:
            if argument.is_column or (argument.name is None and settings):
                raise self._error(argument.token, f"{argument.token.text!r} is not expected here")
            if argument.name is None:
                positional.append(argument.value)
            elif argument.name in settings:
                raise self._error(argument.token, f"{argument.name!r} is given twice")
            else:
                settings[argument.name] = argument.value
        return positional, settings

    def _error(self, token: Token, reason: str) -> InputError:
        start = max(0, token.position - 30)
        before, after = (
            self._formula[start : token.position],
            self._formula[token.position : token.position + 30],
        )
        advice = "" if reason.endswith(".") else ". Correct the formula there."
        return InputError(
            f"The formula cannot be read at position {token.position}: {reason}{advice}\n"
            f"    {_one_line(before + after)}\n    {' ' * len(before)}^"
        )


def _name(token: Token) -> str:
    return token.text[1:-1].replace("``", "`") if token.kind == "quoted" else token.text


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
