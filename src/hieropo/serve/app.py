"""The network edge: routes, keys, limits and errors (RFC 9457) around a service."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from hieropo.errors import HieropoError
from hieropo.serve.bodies import activate_body, batch_body, decide_body, offer_body, rewards_body
from hieropo.serve.deciding import UndecidableError
from hieropo.serve.journal import ConflictError, FullError
from hieropo.serve.keys import Keyring, Role
from hieropo.serve.messages import (
    Live,
    Problem,
    RewardStatuses,
)
from hieropo.serve.openapi import ARCHIVES, document
from hieropo.serve.service import LateError, Service, UnknownIdError
from hieropo.serve.state import RetiredError
from hieropo.serve.uploads import incoming

_JSON, _PROBLEM = "application/json", "application/problem+json"
_TICK = 1.0  # seconds between looks at whether a segment or a refresh is due
_encode = msgspec.json.Encoder().encode

_LOG = logging.getLogger("hieropo.serve")

Handler = Callable[[Request], Awaitable[Response]]


class RefusedError(Exception):
    """A request that is refused, with its status, a title, a sentence and headers."""

    status: int
    title: str
    detail: str
    headers: dict[str, str]

    def __init__(self, status: int, title: str, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.title, self.detail, self.headers = status, title, detail, headers


def too_large(most: int) -> RefusedError:
    """Return the refusal of a body of more than ``most`` bytes."""
    return RefusedError(
        413,
        "Too large",
        f"The body is larger than {most:,} bytes. Send less in one request.",
        connection="close",
    )


def too_slow(seconds: float) -> RefusedError:
    """Return the refusal of a body that is not there after so many seconds."""
    return RefusedError(
        408, "Too slow", f"The body did not arrive within {seconds:g} s. Send it at once.", connection="close"
    )


@dataclass(frozen=True, slots=True)
class Edge:
    """The handlers of one service.

    Parameters
    ----------
    service : Service
    keys : Keyring
        Without keys every request is allowed, from this machine alone.
    """

    service: Service
    keys: Keyring

    # decisions

    async def decide(self, request: Request) -> Response:
        """Decide one request."""
        body = decide_body(await self._body(request))
        return Response(await self.service.answer(body), media_type=_JSON)

    def ask(self, raw: bytes, done: Callable[[bytes | BaseException], None]) -> None:
        """Decide the request in a body; the encoded answer or an error is handed over."""
        self.service.ask(decide_body(raw), done)

    async def decide_batch(self, request: Request) -> Response:
        """Decide a batch: all or none."""
        bodies = batch_body(await self._body(request))
        self._check_batch(len(bodies))
        answers = await self.service.answers(bodies) if bodies else []
        return Response(b'{"decisions":[' + b",".join(answers) + b"]}", media_type=_JSON)

    async def activate_decision(self, request: Request) -> Response:
        """Activate a deferred decision."""
        body = activate_body(await self._body(request))
        return _answer(await self.service.activate_decision(body.decision_id))

    async def reward(self, request: Request) -> Response:
        """Record rewards."""
        rewards = rewards_body(await self._body(request))
        self._check_batch(len(rewards))
        return _answer(RewardStatuses(await self.service.reward(rewards) if rewards else []))

    # policies

    async def versions(self, _: Request) -> Response:
        """List the versions."""
        return _answer(self.service.versions())

    async def offer(self, request: Request) -> Response:
        """Check and copy a policy: an archive in the body, or a directory of the server that the body names."""
        try:
            if _media_type(request) in ARCHIVES:
                with incoming(self.service.state.path) as folder:
                    await self._store(request, folder / "archive")
                    number = await run_in_threadpool(self.service.offer_archive, folder / "archive")
            else:
                body = offer_body(await self._body(request))
                number = await run_in_threadpool(self.service.offer, body.path)
        except HieropoError as error:
            raise RefusedError(422, "Unusable policy", str(error)) from error
        except OSError as error:
            raise FullError("The disk takes no policy") from error
        versions = self.service.versions().versions
        return _answer(next(version for version in versions if version.number == number), 201)

    async def activate(self, request: Request) -> Response:
        """Let another version decide."""
        number = int(request.path_params["number"])
        await run_in_threadpool(self.service.activate, number)
        return _answer(self.service.versions())

    # jobs

    async def refresh(self, _: Request) -> Response:
        """Start a refresh."""
        return _answer(await run_in_threadpool(self.service.start, "refresh"), 202)

    async def forget_task(self, request: Request) -> Response:
        """Start forgetting a task."""
        return await self._forget("task", request)

    async def forget_subject(self, request: Request) -> Response:
        """Start forgetting a subject."""
        return await self._forget("subject", request)

    async def _forget(self, kind: str, request: Request) -> Response:
        given = request.query_params.get("purge", "true")
        if given not in ("true", "false"):
            raise RefusedError(
                422, "Unusable request", "The parameter purge is neither true nor false. Set one."
            )
        in_path = "id" in request.path_params
        text = request.path_params["id"] if in_path else _id_in_query(request)
        if len(text) > 256 or any(ord(character) < 32 for character in text):
            raise RefusedError(422, "Unusable request", "The id has too many characters or unprintable ones.")
        if not text and (in_path or kind == "subject"):
            raise RefusedError(
                422, "Unusable request",
                "The id is empty. Name one; a task whose id is the empty text goes into the query, as in ?id=.",
            )  # fmt: skip
        argument = self.service.forgotten_argument(kind, text, purge=given == "true")
        return _answer(await run_in_threadpool(self.service.start, f"forget-{kind}", argument), 202)

    async def job(self, request: Request) -> Response:
        """Return a job."""
        job = await run_in_threadpool(self.service.job, request.path_params["id"])
        if job is None:
            raise UnknownIdError("No job has this id.")
        return _answer(job)

    # the service itself

    async def live(self, _: Request) -> Response:
        """Answer that the process lives."""
        return _answer(Live(live=True))

    async def ready(self, _: Request) -> Response:
        """Return the readiness."""
        ready = self.service.ready()
        return _answer(ready, 200 if ready.ready else 503)

    async def metrics(self, _: Request) -> Response:
        """Return the metrics."""
        text = self.service.metrics.text(
            waiting=self.service.journal.waiting, version=self.service.engine.number
        )
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, _: Request) -> Response:
        """Return the description of the API."""
        engine = self.service.engine
        described = document(engine.columns, engine.nullable, keys=bool(len(self.keys)))
        return Response(_encode(described), media_type=_JSON)

    # checks

    def _check_batch(self, size: int) -> None:
        most = self.service.settings.max_batch
        if size > most:
            raise RefusedError(
                413, "Too large", f"The batch has {size:,} entries, more than {most:,}. Split it."
            )

    @staticmethod
    def check_json(kind: str) -> None:
        """Refuse a body that is not declared as JSON."""
        if kind.partition(";")[0].strip().lower() != _JSON:
            raise RefusedError(
                415, "Unsupported media type", f"The body is not declared as JSON. Set content-type: {_JSON}."
            )

    async def _body(self, request: Request) -> bytes:
        """Return the body of a request, within the limits of size and time."""
        self.check_json(request.headers.get("content-type", ""))
        settings = self.service.settings
        parts: list[bytes] = []
        await _received(request, parts.append, seconds=settings.timeout, most=settings.max_body)
        return b"".join(parts)

    async def _store(self, request: Request, path: Path) -> None:
        """Write the body of a request, an archive, to a file, within the limits of size and time."""
        settings = self.service.settings
        with path.open("xb") as file:
            await _received(request, file.write, seconds=60 * settings.timeout, most=settings.max_policy)

    def guarded(self, route: str, handler: Handler, role: Role | None) -> Handler:
        """Return a handler that checks the key, counts the time, and answers errors as problems."""

        async def handle(request: Request) -> Response:
            start = time.perf_counter()
            try:
                if role is not None:
                    headers = request.headers
                    self.check_client(headers.get("host", ""), headers.get("authorization", ""), role)
                return await handler(request)
            except Exception as error:  # noqa: BLE001 - every error becomes a problem
                return self.problem(error)
            finally:
                self.service.metrics.took(route, time.perf_counter() - start)

        return handle

    def check_client(self, host: str, authorization: str, role: Role) -> None:
        """Refuse a request without the key that its role needs; the texts are of its headers."""
        if not len(self.keys):
            host = host.rsplit(":", 1)[0].strip("[]")
            if host not in ("localhost", "127.0.0.1", "::1", "testserver"):
                raise RefusedError(
                    403, "Forbidden",
                    "The service has no keys, and answers only requests to this machine by its loopback name. Make "
                    "keys to serve other names.",
                )  # fmt: skip
            return
        scheme, _, token = authorization.partition(" ")
        allowed = self.keys.allows(token.strip(), role) if scheme.lower() == "bearer" else None
        if allowed is None:
            raise RefusedError(
                401, "Unauthorized", "A key is needed. Send the header authorization: Bearer KEY.",
                **{"www-authenticate": "Bearer"},
            )  # fmt: skip
        if not allowed:
            raise RefusedError(403, "Forbidden", "The role of this key does not allow this request.")

    def problem(self, error: BaseException) -> Response:
        """Return the problem that an error is, and count it."""
        status, title, detail, headers = described(error)
        self.service.metrics.refused({503: "full", 401: "key", 403: "key"}.get(status, str(status)))
        return problem(status, title, detail, headers)


def _id_in_query(request: Request) -> str:
    ids = request.query_params.getlist("id")
    if len(ids) != 1:
        raise RefusedError(
            422,
            "Unusable request",
            "The query does not name one id. Set the parameter id once, as in ?id=ID.",
        )
    return ids[0]


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _received(request: Request, take: Callable[[bytes], Any], *, seconds: float, most: int) -> None:
    """Hand over the body of a request part by part; refuse one that is too slow or too large."""
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise too_large(most)
                take(part)
    except TimeoutError:
        raise too_slow(seconds) from None


_BUSY = "The record cannot take more now, so that nothing was recorded. Send the request again later."
_FAILED = "The service failed in a way that was not foreseen. Its own log has more."


def described(error: BaseException) -> tuple[int, str, str, dict[str, str]]:
    """Return status, title, sentence and headers of an error; none of them holds a value of the request."""
    if isinstance(error, RefusedError):
        return error.status, error.title, error.detail, error.headers
    if isinstance(error, FullError):
        return 503, "Busy", _BUSY, {"retry-after": "1"}
    for kinds, status, title, detail in _ERRORS:
        if isinstance(error, kinds):
            return status, title, detail(error), {}
    _LOG.error("A request failed.", exc_info=error)
    return 500, "Internal error", _FAILED, {}


def _without_values(error: HieropoError) -> str:
    """Return the message of an error of the service; one of a lower package can quote an id, and stays inside."""
    last, module = error.__traceback__, ""
    while last is not None:
        module, last = last.tb_frame.f_globals.get("__name__", ""), last.tb_next
    if module.startswith("hieropo.serve."):
        return str(error)
    return f"The policy cannot use the request ({type(error).__name__}). Check task, context and eligible actions."


def _of_body(error: msgspec.ValidationError) -> str:
    """Return the message of an error of a body; the name of a field that the API does not have stays inside."""
    text = str(error)
    if "unknown field" in text:
        return "An object has a field that the API does not have. GET /openapi.json lists the fields."
    if text == "Expected `array`, got `object`":
        return "A list is needed. Put brackets around the object: [{...}]."
    return f"{text}. GET /openapi.json describes the body of each request."


_ERRORS: tuple[tuple[Any, int, str, Callable[[Any], str]], ...] = (
    (
        msgspec.ValidationError,
        422,
        "Unusable request",
        lambda error: f"The body cannot be read. {_of_body(error)}",
    ),
    (
        (msgspec.DecodeError, UnicodeDecodeError),
        422,
        "Unusable request",
        lambda _: "The body cannot be read. It is no JSON in UTF-8.",
    ),
    (ConflictError, 422, "Conflict", str),
    ((UnknownIdError, LookupError), 404, "Not found", str),
    (LateError, 409, "Too late", str),
    ((UndecidableError, RetiredError), 409, "Conflict", str),
    (HieropoError, 422, "Unusable request", _without_values),
    (ClientDisconnect, 400, "Disconnected", lambda _: "The client went away."),
)


def problem(status: int, title: str, detail: str, headers: dict[str, str] | None = None) -> Response:
    """Return an error in the form of RFC 9457."""
    body = _encode(Problem("about:blank", title, status, detail))
    return Response(body, status, headers, media_type=_PROBLEM)


def _answer(value: Any, status: int = 200) -> Response:
    return Response(_encode(value), status, media_type=_JSON)


def make_app(service: Service, keys: Keyring, *, on_stop: Callable[[], None] | None = None) -> Starlette:
    """Return the ASGI application of a service."""
    edge = Edge(service, keys)
    table: list[tuple[str, str, Handler, Role | None]] = [
        ("POST", "/v1/decide", edge.decide, "writer"),
        ("POST", "/v1/decide:batch", edge.decide_batch, "writer"),
        ("POST", "/v1/activate", edge.activate_decision, "writer"),
        ("POST", "/v1/rewards", edge.reward, "writer"),
        ("GET", "/v1/policies", edge.versions, "reader"),
        ("POST", "/v1/policies", edge.offer, "admin"),
        ("POST", "/v1/policies/{number:int}:activate", edge.activate, "admin"),
        ("POST", "/v1/refresh", edge.refresh, "admin"),
        ("DELETE", "/v1/tasks", edge.forget_task, "admin"),
        ("DELETE", "/v1/subjects", edge.forget_subject, "admin"),
        ("DELETE", "/v1/tasks/{id:path}", edge.forget_task, "admin"),
        ("DELETE", "/v1/subjects/{id:path}", edge.forget_subject, "admin"),
        ("GET", "/v1/jobs/{id}", edge.job, "reader"),
        ("GET", "/livez", edge.live, None),
        ("GET", "/readyz", edge.ready, None),
        ("GET", "/metrics", edge.metrics, "reader"),
        ("GET", "/openapi.json", edge.openapi, None),
    ]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        timer = asyncio.create_task(_timer(service))
        yield
        timer.cancel()
        await run_in_threadpool(service.close)
        if on_stop is not None:
            on_stop()

    routes = [
        Route(path, edge.guarded(path, handler, role), methods=[method])
        for method, path, handler, role in table
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _refusal(routes)})


def _refusal(routes: Sequence[Route]) -> Handler:
    """Return the handler of requests without a route; a path with other methods lists all of them."""

    async def refuse(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 404)
        headers = dict(getattr(error, "headers", None) or {})
        if status == 405:
            path = request.scope["path"]
            methods = {
                method for route in routes if route.path_regex.match(path) for method in route.methods or ()
            }
            headers = {"allow": ", ".join(sorted(methods))}
        details = {
            404: "There is no such path. GET /openapi.json lists the paths.",
            405: "The path has other methods.",
        }
        titles = {404: "Not found", 405: "Method not allowed"}
        return problem(status, titles.get(status, "Refused"), details.get(status, "It was refused."), headers)

    return refuse  # type: ignore[return-value]  # starlette hands an error over too


async def _timer(service: Service) -> None:
    """Seal and refresh when it is time."""
    settings = service.settings
    sealed = refreshed = time.monotonic()
    while True:
        await asyncio.sleep(min(_TICK, settings.seal_every))
        now = time.monotonic()
        try:
            if now - sealed >= settings.seal_every:
                sealed = now
                await run_in_threadpool(service.start, "seal")
            if now - refreshed >= (settings.refresh_every or math.inf):
                refreshed = now
                await run_in_threadpool(service.start, "refresh")
        except (FullError, RuntimeError):
            continue  # full or closing: the next look tries again
