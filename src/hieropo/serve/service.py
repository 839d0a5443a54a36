"""The service without its network: requests in, recorded answers out, jobs in the background."""

import asyncio
import datetime as dt
import hashlib
import logging
import os
import re
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct

from hieropo._utils.arrays import Array
from hieropo.errors import HieropoError, SchemaError
from hieropo.policies.gating import GatedPolicy
from hieropo.serve.deciding import Engine, Outcome, settle
from hieropo.serve.forgetting import forget
from hieropo.serve.journal import (
    ACTIVE,
    DEFERRED,
    EVENT,
    Clock,
    ConflictError,
    FullError,
    Journal,
    NewDecision,
    activate,
    record_decisions,
    record_rewards,
)
from hieropo.serve.learning import current, judged, learnable, learned
from hieropo.serve.messages import (
    DecideRequest,
    Decision,
    Job,
    JobKind,
    Mode,
    Probability,
    Ready,
    Reward,
    RewardStatus,
    Value,
    Version,
    Versions,
)
from hieropo.serve.metrics import Metrics
from hieropo.serve.plain import PlainDecider
from hieropo.serve.segments import read_rows
from hieropo.serve.settings import Settings
from hieropo.serve.state import State
from hieropo.serve.uploads import unpacked
from hieropo.serve.usable import in_words
from hieropo.serve.watching import Watch, watch

_LOG = logging.getLogger("hieropo.serve")
_ENCODER = msgspec.json.Encoder()
_DECISION = msgspec.json.Decoder(Decision)
_WHOLE = re.compile(r"-?0*[0-9]{1,19}")
_GROUP = 256  # single requests that are decided together
_MANY = 3  # requests from which on they are checked together
_WAIT = 0.002  # seconds for which requests wait for others at most


class UnknownIdError(Exception):
    """An id of a request names nothing that is known."""


class LateError(Exception):
    """The window of a decision is over."""


class Service:
    """A decision service on a state directory; one process at a time.

    Parameters
    ----------
    path : path
        The state; made where it does not exist.
    settings : Settings, optional
    policy : path, optional
        The first policy of a new state.
    seed : int, optional
        Of the draws of actions; without it they come from the system's entropy.

    Raises
    ------
    ArtifactError, InputError
        As :class:`State`.
    """

    settings: Settings
    state: State
    journal: Journal
    clock: Clock
    metrics: Metrics
    draining: bool

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: Settings | None = None,
        *,
        policy: str | os.PathLike[str] | None = None,
        seed: int | None = None,
    ) -> None:
        self.settings = Settings() if settings is None else settings
        self.state = State(Path(path), self.settings, policy)
        self.journal = self.state.open_journal
        self.clock = self.journal.clock
        self.metrics = Metrics()
        self._rng = np.random.default_rng(seed)
        self._jobs = ThreadPoolExecutor(1, thread_name_prefix="jobs")
        self._arrived: list[tuple[DecideRequest, Callable[[bytes | BaseException], None]]] = []
        self._writing = False
        self._expected, self._wait = 1, 0.0  # size of the last group, and seconds to wait for as many
        self._enough: asyncio.Future[None] | None = None
        self._plain: PlainDecider | None = None
        self.draining = False
        self.watched: Watch | None = None
        try:
            self.engine: Engine = self.state.engine()
            self._warm()
            self._resume()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Finish the job at work, write all that waits, and give the state free."""
        self.draining = True
        self._jobs.shutdown(wait=True, cancel_futures=True)
        self.state.close()

    def _warm(self) -> None:
        """Decide once for nobody, so that the first request does not wait for compilation."""
        request = DecideRequest(task=0)
        if self.engine.simple:
            context: dict[str, Value] = {name: 0.0 for name, _ in self.state.columns.context}
            request = DecideRequest(task=0, context=context)
            tasks = [self.engine.policy.table.keys.values[:1].tolist()[0]]
            self.engine.score(tasks, [request])

    # decisions

    def ask(self, request: DecideRequest, done: Callable[[bytes | BaseException], None]) -> None:
        """Decide one request, and hand over its encoded answer, once it is recorded, or its error (:meth:`answers`).

        Requests that arrive while others are being written are scored and written together.
        """
        self._arrived.append((request, done))
        if self._enough is not None and len(self._arrived) >= self._expected:
            _finish(self._enough)
        if not self._writing:
            self._writing = True
            loop = asyncio.get_running_loop()
            loop.call_soon(lambda: loop.create_task(self._decide_arrived()))

    async def answer(self, request: DecideRequest) -> bytes:
        """Return the encoded answer to one request; errors as :meth:`answers`."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def done(result: bytes | BaseException) -> None:
            if future.done():
                return
            if isinstance(result, bytes):
                future.set_result(result)
            else:
                future.set_exception(result)

        self.ask(request, done)
        return await future

    async def _decide_arrived(self) -> None:
        """Decide all requests that have arrived, and those that arrive meanwhile."""
        loop = asyncio.get_running_loop()
        while self._arrived:
            await self._wait_for_more(loop)
            start = loop.time()
            group, self._arrived = self._arrived[:_GROUP], self._arrived[_GROUP:]
            results: Sequence[bytes | BaseException]
            try:
                results = await self._answers([request for request, _ in group], separate=True)
            except Exception:  # noqa: BLE001 - some request of the group has an error: each is decided alone
                alone = (self._answers([request]) for request, _ in group)
                answered = await asyncio.gather(*alone, return_exceptions=True)
                results = [one if isinstance(one, BaseException) else one[0] for one in answered]
            for (_, done), result in zip(group, results, strict=True):
                try:
                    done(result)
                except Exception:  # noqa: BLE001 - one client's connection is no other's matter
                    _LOG.exception("An answer could not be handed over.")
            self._expected, self._wait = len(group), min(_WAIT, (loop.time() - start) / 4)
        self._writing = False

    async def _wait_for_more(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for as many requests as the last group had, for a part of the time that it took.

        Clients that were answered together ask again at nearly the same time. Without this the first of them would be
        written alone, and all others would wait for two commits.
        """
        if len(self._arrived) >= self._expected:
            return
        self._enough = enough = loop.create_future()
        timer = loop.call_later(self._wait, _finish, enough)
        await enough
        timer.cancel()
        self._enough = None

    async def decide(self, requests: Sequence[DecideRequest]) -> list[Decision]:
        """Return recorded decisions for requests; all of a batch or none; errors as :meth:`answers`."""
        return [_DECISION.decode(answer) for answer in await self.answers(requests)]

    async def answers(self, requests: Sequence[DecideRequest]) -> list[bytes]:
        """Return the encoded answers to requests, which are recorded; all of a batch or none.

        Raises
        ------
        InputError
            A request cannot be decided, or an id comes again with another body (ConflictError).
        FullError
            The record takes no more, and a request has no incumbent to fall back on.
        """
        return [answer for answer in await self._answers(requests) if isinstance(answer, bytes)]

    async def _answers(
        self, requests: Sequence[DecideRequest], *, separate: bool = False
    ) -> list[bytes | ConflictError]:
        """Return answers; those of separate requests can be errors."""
        made = self._prepared(requests)
        operation = record_decisions([one.new for one in made], separate=separate)
        try:
            stored = await self.journal.submit(operation, asyncio.get_running_loop(), len(made))
        except FullError:
            return [*self._unrecorded(requests)]
        recorded = [one for one, before in zip(made, stored, strict=True) if before is None]
        replayed = sum(isinstance(before, bytes) for before in stored)
        unseen = [one.unseen for one in recorded if one.unseen]
        self.metrics.decided([one.mode for one in recorded], unseen, replayed)
        if len(recorded) == len(made):
            return [one.answer for one in made]
        return [
            one.answer
            if before is None
            else before
            if isinstance(before, ConflictError)
            else _ENCODER.encode(EVENT.decode(before).decision)
            for one, before in zip(made, stored, strict=True)
        ]

    def _prepared(self, requests: Sequence[DecideRequest]) -> list["Made"]:
        engine, settings, rng = self.engine, self.settings, self._rng
        tasks, numbers = self._checked(requests, engine)
        scores = engine.score(tasks, requests, numbers)
        stamp = self._stamp()
        ids = self._ids(requests, stamp[0])
        if self._plain is None or self._plain.engine is not engine:
            self._plain = PlainDecider(engine, settings)
        plain = self._plain
        made: list[Made | None] = [None] * len(requests)
        rows = plain.rows(requests, scores)
        if rows:
            for row, decided in zip(rows, plain.decide(scores, rows, ids, stamp[2], rng), strict=True):
                unseen = scores.unseen_in(row)
                answer, mode, mean, sd = decided
                made[row] = _made(
                    requests[row],
                    ids[row],
                    stamp,
                    answer,
                    mode,
                    unseen,
                    plain.eligible,
                    (mean, sd, None, False),
                )
        for row in [row for row, one in enumerate(made) if one is None]:
            try:
                outcome, eligible = settle(engine, requests[row], scores, row, settings, rng)
            except HieropoError as error:
                raise _placed(error, row, len(requests)) from None
            made[row] = self._settled(
                engine, requests[row], outcome, eligible, ids[row], stamp, unseen=scores.unseen_in(row)
            )
        return [one for one in made if one is not None]

    @staticmethod
    def _checked(requests: Sequence[DecideRequest], engine: Engine) -> tuple[list[Any], Array | None]:
        """Return the tasks of requests, which are checked, and their contexts (n, c) where all of these are numbers."""
        columns, nullable = engine.columns, engine.nullable
        if len(requests) >= _MANY:
            numbers, known = columns.numbers_of(requests), columns.tasks_of(requests)
            if numbers is not None and known is not None:
                return known, numbers
        tasks = []
        for row, request in enumerate(requests):
            try:
                tasks.append(columns.task_of(request.task))
                columns.check(request, nullable)
            except SchemaError as error:
                raise _placed(error, row, len(requests)) from None
        return tasks, None

    def _stamp(self) -> tuple[int, int, str]:
        """Return the time of decisions that are made now, their deadline, and that as text."""
        at = self.clock()
        deadline = at + int(self.settings.window * 1e6)
        return at, deadline, iso(deadline)

    @staticmethod
    def _ids(requests: Sequence[DecideRequest], at: int) -> list[str]:
        """Return the ids of decisions: those of the requests, and new ones where a request has none.

        New ids begin with the time, so that their index grows at its end; 76 bits are random.
        """
        fresh, time = secrets.token_hex(16 * len(requests)), f"{at:013x}"
        ids = [
            time + fresh[32 * row + 13 : 32 * row + 32]
            if request.decision_id is None
            else request.decision_id
            for row, request in enumerate(requests)
        ]
        if len(set(ids)) < len(ids):
            raise ConflictError(
                "Two requests of the batch have the same decision_id, and one id names one decision. Send each once."
            )
        return ids

    @staticmethod
    def _settled(
        engine: Engine,
        request: DecideRequest,
        outcome: Outcome,
        eligible: list[Any],
        id_: str,
        stamp: tuple[int, int, str],
        *,
        unseen: list[str],
    ) -> "Made":
        if request.eligible is not None and any(action not in engine.codes for action in eligible):
            unseen.append("action")
        decision = Decision(
            id_, outcome.action, outcome.propensity,
            [Probability(action, probability) for action, probability in outcome.probabilities],
            outcome.mode, engine.number, "task" not in unseen, unseen, stamp[2],
        )  # fmt: skip
        named = [action for action, _ in outcome.probabilities if action not in eligible]
        if named:
            eligible = [*eligible, *named]  # the incumbent's action, where the request does not list it
        sd = None if outcome.sd is None else float(np.hypot(outcome.sd, engine.noise_sd))
        return _made(
            request, id_, stamp, _ENCODER.encode(decision), outcome.mode, unseen, eligible,
            (outcome.mean, sd, outcome.would, outcome.control),
        )  # fmt: skip

    def _unrecorded(self, requests: Sequence[DecideRequest]) -> list[bytes]:
        """Return the incumbent's actions where the record is full; they are counted, and no reward can join them."""
        policy = self.engine.policy
        usual = policy.incumbent if isinstance(policy, GatedPolicy) else None
        asked = [usual if request.incumbent is None else request.incumbent for request in requests]
        incumbents = [incumbent for incumbent in asked if incumbent is not None]
        if len(incumbents) < len(asked):
            self.metrics.refused("full", len(requests))
            raise FullError("The record is full")
        self.metrics.unrecorded(len(requests))
        decisions = [
            Decision(
                request.decision_id or secrets.token_hex(16), incumbent, 1.0, [Probability(incumbent, 1.0)],
                "fallback", self.engine.number, task_known=False, unseen=[], reward_deadline=None,
            )
            for request, incumbent in zip(requests, incumbents, strict=True)
        ]  # fmt: skip
        return [_ENCODER.encode(decision) for decision in decisions]

    async def activate_decision(self, decision_id: str) -> Decision:
        """Activate a deferred decision, and return it.

        Raises
        ------
        UnknownIdError, LateError, FullError
            There is no such decision; its window is over; the record takes no more.
        """
        loop = asyncio.get_running_loop()
        result = await self.journal.submit(activate(decision_id, self.clock), loop)
        if result == "unknown":
            raise UnknownIdError("No decision has this decision_id. Decide first.")
        if result == "late":
            raise LateError(
                "The reward window of this deferred decision is over, so that it cannot enter the log any more. Decide "
                "again."
            )
        return EVENT.decode(result).decision

    async def reward(self, rewards: Sequence[Reward]) -> list[RewardStatus]:
        """Record rewards, and return the status of each.

        Raises
        ------
        ConflictError
            A reward_id comes again with another body; nothing is recorded.
        FullError
            The record takes no more.
        """
        loop = asyncio.get_running_loop()
        statuses = await self.journal.submit(record_rewards(rewards, self.clock), loop, len(rewards))
        self.metrics.rewarded(statuses)
        return [
            RewardStatus(reward.reward_id, status) for reward, status in zip(rewards, statuses, strict=True)
        ]

    # policies

    def versions(self) -> Versions:
        """Return all versions."""
        manifest = self.state.manifest
        versions = [Version(v.number, v.state, v.reason, v.created, v.through) for v in manifest.versions]
        return Versions(manifest.active, versions)

    def offer(self, path: str | os.PathLike[str]) -> int:
        """Check a policy directory, copy it into the state as a version, and return its number.

        Raises
        ------
        UnknownIdError
            There is no such directory.
        HieropoError
            It holds no policy, or one that does not fit the record.
        """
        from hieropo.learners.loading import load_learner
        from hieropo.storage.load import verify_policy

        if not os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises for a name that is too long
            raise UnknownIdError("The server has no directory at this path. Send the path of a policy there.")
        verify_policy(path)
        learner = load_learner(path)
        self.state.refuse_other_ids(learner)
        return self.state.offer(learner, "offered", self.state.manifest.sums_through, gated=learner.policy_)

    def offer_archive(self, archive: Path) -> int:
        """Check the policy in an archive, keep it as a version, and return its number; errors as :meth:`offer`."""
        folder = unpacked(archive, archive.with_name("policy"), most=self.settings.max_policy)
        return self.offer(folder)

    def activate(self, number: int) -> None:
        """Let another version decide, without a failed request.

        Raises
        ------
        LookupError, RetiredError
            There is no such version; it is retired.
        """
        self.engine = self.state.activate(number)

    def ready(self) -> Ready:
        """Return the readiness, and notes on what the log can be used for."""
        notes = []
        if self.journal.full:
            notes.append("The record cannot be written: check the space on the disk.")
        if self.draining:
            notes.append("The service is shutting down.")
        if not self.settings.explores:
            notes.append(
                "Without exploration every action is logged with propensity 1. Such a log cannot be used to evaluate "
                "another policy. Set exploration to 'floor' or 'sampling'."
            )
        if self.watched is not None and self.watched.alarms:
            notes.append("Rewards of some actions are not as predicted; `hieropo status` names them.")
        ready = not self.journal.full and not self.draining
        return Ready(ready, self.engine.number, self.settings.explores, notes)

    # jobs

    def start(self, kind: JobKind, argument: str | None = None) -> Job:
        """Put a job on disk and into the queue, and return it."""
        id_ = secrets.token_hex(8)

        def put(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO jobs (id, kind, argument, state) VALUES (?, ?, ?, 'queued')",
                (id_, kind, argument),
            )

        self.journal.run(put)
        self._jobs.submit(self._run, id_)
        return Job(id_, kind, "queued")

    def job(self, id: str) -> Job | None:  # noqa: A002
        """Return a job by its id."""

        def get(connection: sqlite3.Connection) -> Any:
            return connection.execute("SELECT kind, state, result FROM jobs WHERE id = ?", (id,)).fetchone()

        row = self.journal.run(get)
        if row is None:
            return None
        return Job(id, row[0], "running" if row[1] == "erasing" else row[1], row[2])

    def _resume(self) -> None:
        """Queue the jobs that an earlier process did not finish."""

        def unfinished(connection: sqlite3.Connection) -> list[str]:
            rows = connection.execute(
                "SELECT id FROM jobs WHERE state IN ('queued', 'running', 'erasing') ORDER BY seq"
            ).fetchall()
            return [id_ for (id_,) in rows]

        for id_ in self.journal.run(unfinished):
            self._jobs.submit(self._run, id_)
        self._jobs.submit(self._watch)

    def wait(self) -> None:
        """Wait for all jobs in the queue."""
        self._jobs.submit(lambda: None).result()

    def _run(self, id: str) -> None:  # noqa: A002
        """Run a job; its errors become its result."""

        def get(connection: sqlite3.Connection) -> Any:
            connection.execute("UPDATE jobs SET state = 'running' WHERE id = ? AND state = 'queued'", (id,))
            return connection.execute("SELECT kind, argument, state FROM jobs WHERE id = ?", (id,)).fetchone()

        try:
            kind, argument, state = self.journal.run(get)
            result, outcome = None, "done"
            if state != "erasing":
                result = self._steps()[kind](argument)
            if kind.startswith("forget"):
                self._set_job(id, "erasing", result)
                self.journal.erase()
        except FullError:
            return  # the disk is full or the service stops: the job stays, and the next start takes it up
        except Exception as error:  # noqa: BLE001 - the job's owner reads it
            outcome, result = "failed", _why(error)
        self._set_job(id, outcome, result)

    def _set_job(self, id: str, state: str, result: str | None) -> None:  # noqa: A002
        def put(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE jobs SET state = ?, argument = NULL, result = coalesce(?, result) WHERE id = ?",
                (state, result, id),
            )

        self.journal.run(put)

    def _steps(self) -> dict[str, Callable[[str | None], str]]:
        return {
            "seal": self._seal,
            "refresh": self._refresh,
            "forget-task": lambda argument: self._forget("task", argument),
            "forget-subject": lambda argument: self._forget("subject", argument),
        }

    def _seal(self, _: str | None) -> str:
        made = self.state.seal()
        if made:
            self._watch()
        return f"{made:,} segments were sealed."

    def _watch(self) -> None:
        try:
            rows = read_rows(self.state.path, self.state.manifest.segments, "log", self.state.columns)
            self.watched = watch(
                rows,
                self.state.columns,
                self.engine.number,
                self.settings.false_alarms,
                self.state.left_out(),
            )
        except (HieropoError, OSError):
            return
        self.metrics.watching(self.watched)

    def _refresh(self, _: str | None) -> str:
        state = self.state
        state.seal()
        total = state.summed()
        version = state.manifest.version(state.manifest.active)
        assert version is not None
        if version.through >= state.manifest.sums_through:
            return "Nothing was learned: there is no row that the active policy has not learned from."
        learner, warned = learned(current(total, self.settings, state.manifest.created), state.learner())
        rows = learnable(state.new_rows(), state.columns, learner.features_)
        judgement = judged(learner, state.path / version.folder, rows, self.settings)
        gated = None
        if self.settings.max_harm is not None and judgement.evaluation is not None:
            before = state.engine().policy
            incumbent = before.incumbent if isinstance(before, GatedPolicy) else None
            gated = judgement.evaluation.gate(self.settings.max_harm, incumbent=incumbent)
        reason = judgement.reason + (f" Warnings of the fit: {len(warned)}." if warned else "")
        left_out = state.left_out(after=version.through)
        if left_out:
            reason += f" Not learned from: {in_words(left_out)}."
        number = state.offer(learner, reason, state.manifest.sums_through, gated)
        if judgement.swap and (gated is not None or self.settings.max_harm is None):
            self.activate(number)
            self._watch()
            return f"Version {number} is active. {reason}"
        return f"Version {number} is offered, and version {state.manifest.active} stays active. {reason}"

    def _forget(self, kind: str, argument: str | None) -> str:
        given = msgspec.json.decode(argument or "{}")
        id_ = tuple(given["id"]) if isinstance(given["id"], list) else given["id"]
        result = forget(self.state, kind, id_, purge=bool(given["purge"]))
        self.engine = self.state.engine()
        self._watch()
        return result

    def forgotten_argument(self, kind: str, text: str, *, purge: bool) -> str:
        """Return the argument of a job that forgets the task or subject with this id in a path.

        Raises
        ------
        InputError
            It cannot be an id of a task.
        """
        value: Any = text
        if kind == "task":
            columns = self.state.columns.task
            if len(columns) > 1:
                try:
                    value = msgspec.json.decode(text)
                except msgspec.DecodeError:
                    value = [text]
            elif columns[0][1] == "int":
                value = int(text) if _WHOLE.fullmatch(text) and -(2**63) <= int(text) < 2**63 else text
            self.state.columns.task_of(value)
        return _ENCODER.encode({"id": value, "purge": purge}).decode()


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Made(Struct, frozen=True, gc=False):
    """A decision that is ready to be recorded, with its encoded answer."""

    new: NewDecision
    answer: bytes
    mode: Mode
    unseen: list[str]


def _made(
    request: DecideRequest, id_: str, stamp: tuple[int, int, str], answer: bytes, mode: Mode, unseen: list[str],
    eligible: Any, rest: tuple[float | None, float | None, Any, bool],
) -> Made:  # fmt: skip
    """Return a decision with its event, encoded as :class:`messages.Event` is; ``rest`` are its last four fields."""
    event = _ENCODER.encode(
        (
            request.task, request.context, stamp[0], Raw(answer), eligible, request.subject, request.client_at, *rest,
        )
    )  # fmt: skip
    digest = None
    if request.decision_id is not None:
        digest = hashlib.blake2b(_ENCODER.encode(request), digest_size=16).digest()
    state = DEFERRED if request.defer else ACTIVE
    return Made(NewDecision(id_, digest, stamp[1], state, event), answer, mode, unseen)


def iso(time: int) -> str:
    """Return a time in microseconds as text in ISO form."""
    return dt.datetime.fromtimestamp(time / 1e6, dt.UTC).isoformat(timespec="milliseconds")


def _why(error: Exception) -> str:
    """Return why a job failed, for the one who started it."""
    if isinstance(error, HieropoError):
        return str(error)
    if isinstance(error, OSError):
        return f"The disk could not be used ({error.strerror}). Nothing is lost. Free space, and start the job again."
    _LOG.error("A job failed.", exc_info=error)
    return f"An internal error: {type(error).__name__}. The service's own log has more."


def _placed(error: HieropoError, row: int, rows: int) -> HieropoError:
    """Return an error with the number of its request in a batch."""
    return type(error)(f"Request {row}: {error}") if rows > 1 else error
