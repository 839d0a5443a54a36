"""The messages of the API as types; bodies are decoded into them, and `/openapi.json` is made from them."""

import atexit
import gc
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

Mode = Literal["policy", "explore", "gate", "shadow", "fallback"]
Status = Literal["recorded", "duplicate", "late", "unknown"]

_PLAIN_TEXT = r"^[^\x00-\x1f\x7f]*$"
Key = Annotated[
    str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:-]+$", description="An id of the client.")
]
Text = Annotated[str, Meta(max_length=256, pattern=_PLAIN_TEXT)]
Id = Text | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Time = Annotated[
    str, Meta(max_length=64, pattern=r"^[0-9TZ:+. -]*$", description="The client's time, kept as it came.")
]
Value = None | bool | float | Annotated[str, Meta(max_length=1024, pattern=_PLAIN_TEXT)]
Actions = Annotated[list[Id], Meta(min_length=1, max_length=10_000)]
Finite = Annotated[float, Meta(ge=-1e300, le=1e300)]

# The last collection of a process (Python 3.11, msgspec 0.22) can crash on a message that still lives.
# It does not visit frozen objects.
atexit.register(gc.freeze)


class Message(Struct, frozen=True, gc=False):  # type: ignore[call-arg]  # msgspec's
    """A message of the service, immutable, and without reference cycles, so that no collection has to visit it."""


class Body(Message, forbid_unknown_fields=True):  # type: ignore[call-arg]
    """The body of a request; an unknown field is an error."""


class DecideRequest(Body):
    """A request for a decision. Without ``decision_id`` the service makes one."""

    task: Id | Annotated[list[Id], Meta(min_length=1, max_length=8)]
    context: dict[str, Value] = field(default_factory=dict)
    decision_id: Key | None = None
    subject: Text | None = None
    eligible: Actions | None = None
    exclude: list[Id] | None = None
    incumbent: Id | None = None
    defer: bool = False
    client_at: Time | None = None


class Probability(Message):
    """An eligible action and the probability with which it was taken."""

    action: Id
    probability: float


class Decision(Message):
    """The answer to a request. ``propensity`` is the probability of the action that was done."""

    decision_id: str
    action: Id
    propensity: float
    probabilities: list[Probability]
    mode: Mode
    policy_version: int
    task_known: bool
    unseen: list[str]
    reward_deadline: str | None


class Decisions(Message):
    """The answers to a batch, in the order of the requests."""

    decisions: list[Decision]


class ActivateRequest(Body):
    """The activation of a deferred decision."""

    decision_id: Key


class Reward(Body):
    """A reward of a decision."""

    reward_id: Key
    decision_id: Key
    value: Finite
    client_at: Time | None = None


class RewardStatus(Message):
    """The outcome of one reward."""

    reward_id: str
    status: Status


class RewardStatuses(Message):
    """The outcomes of rewards, in their order."""

    rewards: list[RewardStatus]


class OfferRequest(Body):
    """A policy directory on the server's disk, to be checked, copied and offered."""

    path: Annotated[str, Meta(min_length=1, max_length=4096)]


class Version(Message):
    """A version of the policy."""

    number: int
    state: Literal["offered", "active", "retired", "removed"]
    reason: str
    created: str
    through: int


class Versions(Message):
    """All versions, oldest first."""

    active: int
    versions: list[Version]


class Job(Message):
    """A job in the background."""

    job_id: str
    kind: Literal["refresh", "forget-task", "forget-subject", "seal"]
    state: Literal["queued", "running", "done", "failed"]
    result: str | None = None


class Live(Message):
    """The process answers."""

    live: bool


class Ready(Message):
    """``ready`` is False while the service cannot record. ``judgeable`` is False where propensities are all 1."""

    ready: bool
    policy_version: int
    judgeable: bool
    notes: list[str]


class Problem(Message):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


class Event(Message, array_like=True):  # type: ignore[call-arg]
    """A decision as the record keeps it: the request that matters, and the answer."""

    task: Id | list[Id]
    context: dict[str, Value]
    at: int
    decision: Decision
    eligible: list[Id]
    subject: str | None = None
    client_at: str | None = None
    mean: float | None = None
    sd: float | None = None
    would: Id | None = None
    control: bool = False
