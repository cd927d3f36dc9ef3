"""A loopback HTTP server that behaves, until a test tells it not to: a stateful service, and a script of faults before it.

What it speaks is a `Dialect`; what goes wrong is a `Fault`, by kind of request and in order. A fault gets the request and
`serve`, which carries it out and gives the ordinary reply: it may call that or not, and change what comes back. None
cuts the connection.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

XHTML = b"<html><head><title>Log in</title></head><body><p>Welcome</p></body></html>"
BROKEN_HTML = b"<!doctype html><html><br><p>Log in &nbsp; <b>here"


@dataclass
class Request:
    """One request as it arrived; header names are lower-case, `kind` is the dialect's word for it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    port: int
    kind: str = ""
    key: str = ""


@dataclass
class Reply:
    """An answer; with `sent` only so many bytes of the body are sent, then the connection is cut."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    sent: int | None = None


Serve = Callable[[], Reply]
Fault = Callable[[Request, Serve], "Reply | None"]


class Dialect(Protocol):
    """A service: tells what a request is, and carries it out on what is stored."""

    def name(self, request: Request) -> None:
        """Set `kind` and `key`."""

    def answer(self, request: Request) -> Reply: ...


# --- faults that every dialect shares ---------------------------------------------------------------------------------


def honest() -> Fault:
    """No fault: to let a request pass before a later one fails."""
    return lambda request, serve: serve()


def drop_before_storing() -> Fault:
    """Cut the connection; the request has no effect."""
    return lambda request, serve: None


def drop_after_storing() -> Fault:
    """Carry the request out and cut the connection before the answer."""

    def fault(request: Request, serve: Serve) -> None:
        serve()

    return fault


def html(status: int = 200, body: bytes = XHTML) -> Fault:
    """What a proxy or a login page answers; the request has no effect."""
    return lambda request, serve: Reply(status, body, {"Content-Type": "text/html"})


def truncated(count: int) -> Fault:
    """The ordinary reply, cut off after `count` bytes of its body although its length promises them all."""

    def fault(request: Request, serve: Serve) -> Reply:
        reply = serve()
        reply.sent = count
        return reply

    return fault


# --- the server -------------------------------------------------------------------------------------------------------


class ScriptedServer:
    """Serves a dialect on a free port of 127.0.0.1 until `close`."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.log: list[Request] = []
        self.errors: list[BaseException] = []
        self._script: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._standing: dict[str, Fault] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._http = _HTTPServer(("127.0.0.1", 0), _Handler)
        self._http.scripted = self
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def next(self, kind: str, *faults: Fault) -> None:
        """What happens to the next requests of a kind, one each, in order."""
        self._script[kind].extend(faults)

    def always(self, kind: str, fault: Fault | None) -> None:
        """What happens to every request of a kind for which nothing else is next; None ends it."""
        if fault:
            self._standing[kind] = fault
        else:
            self._standing.pop(kind, None)

    def forget(self, kind: str) -> None:
        """Drop what `next` planned and no request has met."""
        self._script[kind].clear()

    def slow(self, seconds: float) -> Fault:
        """Carry the request out, answer later: after `seconds`, or when the server closes."""

        def fault(request: Request, serve: Serve) -> Reply:
            reply = serve()
            self._closing.wait(seconds)
            return reply

        return fault

    def kinds(self) -> list[str]:
        """The kinds of all requests so far, in order. A head that was refused to obstore and then asked by an SDK is one."""
        return [
            each.kind
            for before, each in zip([None, *self.log], self.log, strict=False)
            if not (before and before.kind == each.kind == "HEAD" and _agent(before) == "transcript-backends" != _agent(each))
        ]

    def requests(self, kind: str) -> list[Request]:
        return [each for each in self.log if each.kind == kind]

    def handle(self, request: Request) -> Reply | None:
        self.dialect.name(request)
        with self._lock:
            self.log.append(request)
            planned = self._script[request.kind]
            fault = planned.popleft() if planned else self._standing.get(request.kind, honest())

        def serve() -> Reply:
            with self._lock:
                return self.dialect.answer(request)

        return fault(request, serve)

    def close(self) -> None:
        self._closing.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


def _agent(request: Request) -> str:
    return request.headers.get("user-agent", "")


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    scripted: ScriptedServer

    def handle_error(self, request: object, client_address: object) -> None:
        import sys

        error = sys.exc_info()[1]
        if error and not isinstance(error, ConnectionError):  # those are clients that went away
            self.scripted.errors.append(error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet for head and body
    disable_nagle_algorithm = True
    server: _HTTPServer

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        request = Request(self.command, unquote(parts.path), query, headers, body, self.client_address[1])
        reply = self.server.scripted.handle(request)
        if reply is None:
            self._cut()
            return
        self.send_response(reply.status)
        for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body[: reply.sent])
        if reply.sent is not None:
            self.wfile.flush()
            self.close_connection = True  # an end in order: a reset could overtake the bytes sent

    def handle_expect_100(self) -> bool:
        go_on = super().handle_expect_100()
        self.wfile.flush()
        return go_on

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def _cut(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
        self.close_connection = True

    def log_message(self, *args: object) -> None:
        pass
