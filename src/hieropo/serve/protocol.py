"""The connections of clients: limits on the time of a request, and decisions that are answered without the application.

``POST /v1/decide`` has a way of its own from the parser to the service, as uvicorn's scopes, tasks and queues and
Starlette's routes take three times the processor time of a decision. All other requests go to the application. So do
decisions that are unusual: sent before an earlier request of the connection is answered, with ``Expect``, an upgrade,
or by a client that does not read its answers.
"""

import asyncio
import time
from typing import Any

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from hieropo.serve.app import Edge, RefusedError, too_large, too_slow

_PATH, _ROUTE = b"/v1/decide", "/v1/decide"
_MAX_HEAD = 524_288  # bytes of the head of a request, and of what came with its first ones
_HEAD = STATUS_LINE[200] + b"content-type: application/json\r\n"


class TimedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on the time in which the head of a request must arrive, and on its size.

    A timer is set where a head is not complete with the bytes that are there, so that most requests need none.
    """

    head_timeout: float = 10.0
    _awaited = True  # the head of a request: from the connection on, and from its first byte on
    _head_size = 0
    _guard: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Parse bytes, and watch time and size of what is not complete."""
        super().data_received(data)
        if self._awaited:
            self._head_size += len(data)
            if self._head_size > _MAX_HEAD and self._in_head:
                self.transport.abort()
            self._watch()

    @property
    def _in_head(self) -> bool:
        """True where the head of a request is awaited, and not its body."""
        return self._awaited

    def on_message_begin(self) -> None:
        """Wait for the head of a request."""
        super().on_message_begin()
        self._awaited, self._head_size = True, 0

    def on_headers_complete(self) -> None:
        """Stop waiting: the head is there."""
        self._awaited = False
        self._relax()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._awaited = False
        self._relax()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self._awaited and self._guard is None and not self.transport.is_closing():
            self._guard = self.loop.call_later(self.head_timeout, self._expired)

    def _expired(self) -> None:
        self.transport.abort()

    def _relax(self) -> None:
        if self._guard is not None:
            self._guard.cancel()
            self._guard = None


class DirectProtocol(TimedProtocol):
    """A protocol that answers requests for one decision by itself."""

    edge: Edge

    @property
    def _in_head(self) -> bool:
        cycle: Any = self.cycle
        return self._awaited and not (isinstance(cycle, DirectCycle) and cycle.waits)

    def on_headers_complete(self) -> None:
        """Take up a request for one decision; hand others over."""
        if self.url != _PATH or not self._takes():
            super().on_headers_complete()
            return
        self._relax()
        cycle: Any = DirectCycle(self)
        self.cycle = cycle
        self._awaited = not cycle.response_complete  # the body, which has the same time as a head

    def _takes(self) -> bool:
        before: Any = self.cycle
        return (
            self.parser.get_method() == b"POST"
            and (before is None or before.response_complete)
            and not (self.expect_100_continue or self.flow.write_paused or self.parser.should_upgrade())
        )

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        cycle: Any = self.cycle
        if isinstance(cycle, DirectCycle):
            cycle.take(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Decide: the body is there."""
        cycle: Any = self.cycle
        if isinstance(cycle, DirectCycle):
            self._awaited = False
            self._relax()
            cycle.decide()
        else:
            super().on_message_complete()

    def _expired(self) -> None:
        cycle: Any = self.cycle
        if isinstance(cycle, DirectCycle) and cycle.waits:
            cycle.refuse(too_slow(self.head_timeout))
        else:
            super()._expired()


class _NoEvent:
    """Stands for the event with which uvicorn's cycles wake their tasks."""

    @staticmethod
    def set() -> None:
        """Do nothing: there is no task."""


class DirectCycle:
    """A request for one decision, from its head to its answer, in the place of a cycle of uvicorn.

    Parameters
    ----------
    protocol : DirectProtocol
        The head of the request is complete.
    """

    __slots__ = ("_body", "_protocol", "_start", "disconnected", "keep_alive", "response_complete", "waits")

    response_complete: bool
    disconnected: bool
    waits: bool
    keep_alive: bool
    message_event = _NoEvent

    def __init__(self, protocol: DirectProtocol) -> None:
        self._protocol = protocol
        self._start = time.perf_counter()
        self._body = b""
        self.response_complete = self.disconnected = False
        self.waits = True  # for its body
        parser = protocol.parser
        self.keep_alive = parser.should_keep_alive() and parser.get_http_version() != "1.0"
        host = kind = authorization = b""
        for name, value in protocol.headers:
            if name == b"host":
                host = host or value
            elif name == b"content-type":
                kind = kind or value
            elif name == b"authorization":
                authorization = authorization or value
        try:
            protocol.edge.check_client(host.decode("latin-1"), authorization.decode("latin-1"), "writer")
            protocol.edge.check_json(kind.decode("latin-1"))
        except RefusedError as error:
            self.refuse(error)

    def take(self, part: bytes) -> None:
        """Take a part of the body; refuse one that is too large."""
        if self.response_complete:
            return
        self._body = self._body + part if self._body else part
        most = self._protocol.edge.service.settings.max_body
        if len(self._body) > most:
            self.refuse(too_large(most))

    def decide(self) -> None:
        """Ask the service: the body is complete."""
        self.waits = False
        if self.response_complete:
            return
        edge = self._protocol.edge
        try:
            edge.ask(self._body, self.answer)
        except Exception as error:  # noqa: BLE001 - every error becomes a problem
            self.refuse(error)

    def answer(self, result: bytes | BaseException) -> None:
        """Send an answer, or the problem that an error is."""
        if not isinstance(result, bytes):
            self.refuse(result)
            return
        self._send(_HEAD, result)

    def refuse(self, error: BaseException) -> None:
        """Send the problem that an error is."""
        response: Response = self._protocol.edge.problem(error)
        self.keep_alive = self.keep_alive and response.headers.get("connection") != "close"
        head = [STATUS_LINE[response.status_code]]
        head += [
            b"%b: %b\r\n" % pair
            for pair in response.raw_headers
            if pair[0] not in (b"content-length", b"connection")
        ]
        self._send(b"".join(head), bytes(response.body))

    def _send(self, head: bytes, body: bytes) -> None:
        protocol = self._protocol
        self.response_complete, self.waits = True, False
        protocol.edge.service.metrics.took(_ROUTE, time.perf_counter() - self._start)
        transport = protocol.transport
        if self.disconnected or transport.is_closing():
            return
        parts = [head]
        parts += [b"%b: %b\r\n" % pair for pair in protocol.server_state.default_headers]
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"content-length: %d\r\n\r\n" % len(body))
        parts.append(body)
        transport.write(b"".join(parts))
        if not self.keep_alive:
            transport.close()
        protocol.on_response_complete()
