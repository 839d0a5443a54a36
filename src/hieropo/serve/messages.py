"""The messages of the API as types; bodies are decoded into them, and `/openapi.json` is made from them."""

import atexit
import gc
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from hieropo.rows.columns import HUGE

Mode = Literal["policy", "explore", "gate", "shadow", "fallback"]
Status = Literal["recorded", "duplicate", "late", "unknown"]
VersionState = Literal["offered", "active", "retired", "removed"]
JobKind = Literal["refresh", "forget-task", "forget-subject", "seal"]

_END = r"$(?!\n)"  # `$` alone also stands before a last line break
PLAIN_TEXT = r"^[^\x00-\x1f\x7f]*" + _END
Key = Annotated[
    str,
    Meta(
        min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:-]+" + _END, description="An id of the client."
    ),
]
Text = Annotated[str, Meta(max_length=256, pattern=PLAIN_TEXT)]
Id = Text | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Time = Annotated[
    str,
    Meta(max_length=64, pattern=r"^[0-9TZ:+. -]*" + _END, description="The client's time, kept as it came."),
]
Value = None | bool | float | Annotated[str, Meta(max_length=1024, pattern=PLAIN_TEXT)]
Actions = Annotated[list[Id], Meta(min_length=1, max_length=10_000)]
Number = Annotated[float, Meta(ge=-HUGE, le=HUGE)]  # as logs hold them

# The last collection of a process (Python 3.11, msgspec 0.22) can crash on a message that still lives.
# It does not visit frozen objects.
atexit.register(gc.freeze)


class Message(Struct, frozen=True, gc=False):
    """A message of the service, immutable, and without reference cycles, so that no collection has to visit it."""


class Body(Message, frozen=True, forbid_unknown_fields=True):
    """The body of a request; an unknown field is an error."""


class DecideRequest(Body, frozen=True):
    """A request for a decision. Without ``decision_id`` the service makes one."""

    task: Id | Annotated[list[Id], Meta(min_length=1, max_length=8)]
    context: dict[str, Value] = field(default_factory=dict)
    decision_id: Key | None = None
    subject: Annotated[str, Meta(min_length=1, max_length=256, pattern=PLAIN_TEXT)] | None = None
    eligible: Actions | None = None
    exclude: list[Id] | None = None
    incumbent: Id | None = None
    defer: bool = False
    client_at: Time | None = None


class Probability(Message, frozen=True):
    """An eligible action and the probability with which it was taken."""

    action: Id
    probability: float


class Decision(Message, frozen=True):
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


class Decisions(Message, frozen=True):
    """The answers to a batch, in the order of the requests."""

    decisions: list[Decision]


class ActivateRequest(Body, frozen=True):
    """The activation of a deferred decision."""

    decision_id: Key


class Reward(Body, frozen=True):
    """A reward of a decision."""

    reward_id: Key
    decision_id: Key
    value: Number
    client_at: Time | None = None


class RewardStatus(Message, frozen=True):
    """The outcome of one reward."""

    reward_id: str
    status: Status


class RewardStatuses(Message, frozen=True):
    """The outcomes of rewards, in their order."""

    rewards: list[RewardStatus]


class OfferRequest(Body, frozen=True):
    """A policy directory on the server's disk, to be checked, copied and offered."""

    path: Annotated[str, Meta(min_length=1, max_length=4096)]


class Version(Message, frozen=True):
    """A version of the policy."""

    number: int
    state: VersionState
    reason: str
    created: str
    through: int


class Versions(Message, frozen=True):
    """All versions, oldest first."""

    active: int
    versions: list[Version]


class Job(Message, frozen=True):
    """A job in the background."""

    job_id: str
    kind: JobKind
    state: Literal["queued", "running", "done", "failed"]
    result: str | None = None


class Live(Message, frozen=True):
    """The process answers."""

    live: bool


class Ready(Message, frozen=True):
    """``ready`` is False while the service cannot record. ``judgeable`` is False where propensities are all 1."""

    ready: bool
    policy_version: int
    judgeable: bool
    notes: list[str]


class Problem(Message, frozen=True):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


class Event(Message, frozen=True, array_like=True):
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
