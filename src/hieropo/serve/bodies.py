"""JSON bodies as messages.

A key that comes twice in one object is refused, since it is not known which value was meant. A whole number that is
written with a fraction of 0, such as 3.0, is the same number in JSON, and is taken as an id too.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from hieropo.serve.messages import ActivateRequest, DecideRequest, OfferRequest, Reward

_M = TypeVar("_M")
_EXACT = 2.0**53  # whole numbers up to this size are told apart as floats


class RepeatedKeyError(msgspec.ValidationError):
    """An object of a body has one key twice."""


def _reader(kind: Any) -> Callable[[bytes], Any]:
    """Return a function that decodes a message; one that fails for a float is tried with whole numbers as such."""
    decode = msgspec.json.Decoder(kind).decode

    def read(raw: bytes) -> Any:
        try:
            return decode(raw)
        except msgspec.ValidationError as error:
            if "got `float`" not in str(error):
                raise
            try:
                values = json.loads(raw, parse_float=_number, object_pairs_hook=_without_repetition)
            except (ValueError, RecursionError):
                raise error from None
            return msgspec.convert(values, kind)

    return read


_one, _many, _some = _reader(DecideRequest), _reader(list[DecideRequest]), _reader(list[Reward])
_activation, _offer = _reader(ActivateRequest), _reader(OfferRequest)


def decide_body(raw: bytes) -> DecideRequest:
    """Return a request for a decision.

    Raises
    ------
    msgspec.DecodeError, msgspec.ValidationError
        It is no JSON, or not of the type.
    RepeatedKeyError
        An object has one key twice.
    """
    request: DecideRequest = _one(raw)
    if raw.count(b":") != _keys(request):
        refuse_repeated_keys(raw)
    return request


def batch_body(raw: bytes) -> list[DecideRequest]:
    """Return requests for decisions; errors as :func:`decide_body`."""
    requests: list[DecideRequest] = _many(raw)
    return _checked(raw, requests, _keys)


def rewards_body(raw: bytes) -> list[Reward]:
    """Return rewards; errors as :func:`decide_body`."""
    rewards: list[Reward] = _some(raw)
    return _checked(raw, rewards, lambda reward: 3 + (reward.client_at is not None))


def activate_body(raw: bytes) -> ActivateRequest:
    """Return an activation; errors as :func:`decide_body`."""
    activation: ActivateRequest = _activation(raw)
    return _checked(raw, [activation], lambda _: 1)[0]


def offer_body(raw: bytes) -> OfferRequest:
    """Return an offer; errors as :func:`decide_body`."""
    offer: OfferRequest = _offer(raw)
    return _checked(raw, [offer], lambda _: 1)[0]


def _checked(raw: bytes, messages: list[_M], keys: Callable[[_M], int]) -> list[_M]:
    if raw.count(b":") != sum(map(keys, messages)):
        refuse_repeated_keys(raw)
    return messages


def _keys(request: DecideRequest) -> int:
    """Return a lower bound of the number of keys in the text of a request.

    A text has a colon for each key, and perhaps more in its strings. So where the text has as many colons as this
    bound, no key is there twice, and it need not be read again.
    """
    return (
        1 + len(request.context) + bool(request.context) + (request.decision_id is not None)
        + (request.subject is not None) + (request.eligible is not None) + (request.exclude is not None)
        + (request.incumbent is not None) + request.defer + (request.client_at is not None)
    )  # fmt: skip


def refuse_repeated_keys(raw: bytes) -> None:
    """Refuse JSON in which an object has one key twice, also where one of them is written with escapes.

    Raises
    ------
    RepeatedKeyError
    """
    json.loads(raw, object_pairs_hook=_without_repetition)


def _without_repetition(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise RepeatedKeyError(
            "An object has one key twice, so that it is not known which value was meant. Send each key once."
        )
    return values


def _number(text: str) -> int | float:
    """Return a number with a fraction as an int where it is whole, and its digits are exact."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < _EXACT else value
