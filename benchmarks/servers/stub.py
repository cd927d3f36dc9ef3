"""A throw-away object store in memory, so fast that the client is what is measured: ``python -m benchmarks.servers.stub s3``.

It checks no signature and keeps nothing. One process, one event loop (uvloop where it is installed), keep-alive. It prints
its port. Requests below ``/-/`` steer it: see `Stub`.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import cast

from benchmarks.servers.azure import Azure
from benchmarks.servers.gcs import GCS
from benchmarks.servers.objects import Objects, Reply, Request, http_time, now, wait
from benchmarks.servers.s3 import S3

DIALECTS: dict[str, type[S3 | Azure]] = {"s3": S3, "gcs": GCS, "azure": Azure}


class Stub:
    """The objects, how fast they are served, and what was asked.

    - ``POST /-/reset?latency=0.02&tail=0.01&factor=10``: forget all; from now on each answer takes so many seconds, and that
      share of them so many times as long, always the same ones;
    - ``POST /-/slow?...``: the same, and forget nothing but the counts;
    - ``POST /-/wait?seconds=60``: let that much time pass, at once: what was stored is as old then;
    - ``POST /-/fill``: store segments of equal lines, as the body, JSON, tells;
    - ``GET /-/counts``: requests by kind, bytes of bodies received and sent, seconds of CPU.
    """

    def __init__(self, dialect: str) -> None:
        self._make = DIALECTS[dialect]
        self._reset({})

    def _reset(self, told: dict[str, str]) -> None:
        self._objects = Objects()
        self._dialect = self._make(self._objects)
        self._slow(told)

    def _slow(self, told: dict[str, str]) -> None:
        self._latency, self._tail, self._factor = (
            float(told.get(name, normal)) for name, normal in (("latency", 0), ("tail", 0), ("factor", 10))
        )
        self._chance = random.Random(1)
        self._requests: Counter[str] = Counter()
        self._received = self._sent = 0

    def delay(self) -> float:
        """Seconds until the answer."""
        if not self._latency:
            return 0.0
        return self._latency * (self._factor if self._chance.random() < self._tail else 1)

    def answer(self, request: Request) -> tuple[bytes, bytes]:
        """Head and body of the answer."""
        steering = request.path.startswith(b"/-/")
        reply = self._steer(request) if steering else self._dialect.answer(request)
        if not steering:
            self._requests[reply.kind] += 1
            self._received += len(request.body)
            self._sent += len(reply.body)
        size = len(reply.body) if reply.length is None else reply.length
        return (
            b"HTTP/1.1 %d X\r\nDate: %s\r\n%s%sContent-Length: %d\r\n\r\n"
            % (reply.status, http_time(now()), self._dialect.always, reply.headers, size),
            reply.body,
        )

    def _steer(self, request: Request) -> Reply:
        what = request.path.removeprefix(b"/-/")
        if what == b"counts":
            told = {"requests": self._requests, "received": self._received, "sent": self._sent, "cpu": time.process_time()}
            return Reply(what.decode(), 200, json.dumps(told).encode())
        if what == b"fill":
            self._fill(**json.loads(request.body))
        elif what == b"wait":
            wait(int(request.query["seconds"]))
        else:
            {b"reset": self._reset, b"slow": self._slow}[what](request.query)
        return Reply(what.decode(), 200)

    def _fill(self, prefix: str, count: int, records: int, writers: int, line: str) -> None:
        body = line.encode() * records
        for name in names(count, records, writers):
            self._objects.put((prefix + name).encode(), self._dialect.make(body))


def names(count: int, records: int, writers: int) -> Iterator[str]:
    """The names of so many segments of so many records, by so many writers in turn; of the first, as the clients name it."""
    for number in range(count):
        first, writer = number * records, f"writer{number % writers or ''}"
        yield f"{first:019d}-{first + records - 1:019d}-{writer}.jsonl"


class Connection(asyncio.Protocol):
    """One client: a request at a time."""

    def __init__(self, stub: Stub) -> None:
        self._stub = stub
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._have = self._need = 0
        self._request: Request | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)
        self._have += len(data)
        if self._have < self._need:
            return
        data = b"".join(self._parts) if len(self._parts) > 1 else data
        if self._request is None:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._parts = [data]
                return
            self._request = Request(data[:end])
            size = int(self._request.headers.get(b"content-length", 0))
            data = data[end + 4 :]
            if len(data) < size:
                if b"expect" in self._request.headers:
                    self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                self._parts, self._have, self._need = [data], len(data), size
                return
        request, self._request = self._request, None
        self._parts, self._have, self._need = [], 0, 0
        request.body = data
        answer = self._stub.answer(request)
        if delay := self._stub.delay():
            self._loop.call_later(delay, self._transport.writelines, answer)
        else:
            self._transport.writelines(answer)


async def main(dialect: str) -> None:
    stub = Stub(dialect)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(stub), "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        from uvloop import run
    except ImportError:
        from asyncio import run
    run(main(sys.argv[1]))
