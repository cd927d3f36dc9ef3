"""The least that a client can do: sockets and one loop around epoll. It shows what the machine and the stub allow.

It signs nothing and looks at no header but the length; no client of a real service can be as fast.
"""

from __future__ import annotations

import re
import select
import socket
from collections.abc import Iterable, Sequence

from benchmarks.clients import AT_ONCE, segment_key
from benchmarks.places import Place

_LENGTH = re.compile(rb"Content-Length: (\d+)")


class Raw:
    """PUT and GET, 32 at a time, in any order."""

    def __init__(self, place: Place) -> None:
        host, _, port = place.endpoint.removeprefix("http://").partition(":")
        self._sockets = {}
        self._poll = select.epoll()
        for _ in range(AT_ONCE):
            each = socket.create_connection((host, int(port)))
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[each.fileno()] = each
            self._poll.register(each, select.EPOLLIN)
        self._bucket = place.container

    def _request(self, method: str, session: str, seq: int, body: bytes = b"") -> bytes:
        head = f"{method} /{self._bucket}/{segment_key(session, seq)} HTTP/1.1\r\nHost: localhost\r\n"
        head += f"If-None-Match: *\r\nContent-Length: {len(body)}\r\n\r\n" if body else "\r\n"
        return head.encode() + body

    def _send(self, requests: Iterable[bytes]) -> int:
        """Send requests, each when a connection is free; gives how many bytes of bodies came."""
        remaining = iter(requests)
        missing: dict[int, int] = {}
        received = 0

        def send_next(number: int) -> None:
            if (request := next(remaining, None)) is not None:
                self._sockets[number].sendall(request)
                missing[number] = 0

        for number in self._sockets:
            send_next(number)
        while missing:
            for number, _ in self._poll.poll():
                data = self._sockets[number].recv(1 << 18)
                if not missing[number]:
                    head = data.index(b"\r\n\r\n") + 4
                    found = _LENGTH.search(data)
                    assert found, data[:head]
                    assert data[9:10] == b"2", data[:head]
                    received += int(found[1])
                    missing[number] = head + int(found[1])
                missing[number] -= len(data)
                if not missing[number]:
                    del missing[number]
                    send_next(number)
        return received

    def append(self, session: str, seq: int, line: bytes) -> object:
        return self._send([self._request("PUT", session, seq, line)])

    def append_all(self, session: str, seqs: Sequence[int], line: bytes) -> object:
        return self._send(self._request("PUT", session, seq, line) for seq in seqs)

    def read_all(self, session: str, seqs: Sequence[int]) -> int:
        """GET so many, whose keys are known; gives the bytes."""
        return self._send(self._request("GET", session, seq) for seq in seqs)

    def close(self) -> None:
        self._poll.close()
        for each in self._sockets.values():
            each.close()
