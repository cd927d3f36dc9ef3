"""Where transcripts are kept while something is measured: the stub, a real server, a directory."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode

import localstack_servers

from benchmarks import ROOT
from benchmarks.servers.stub import names

CONTAINER = "transcripts"
ACCOUNT = "devstoreaccount1"
ACCESS_KEY, SECRET_KEY, ACCOUNT_KEY = (
    localstack_servers.ENVIRONMENT[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_KEY")
)


class Slow(NamedTuple):
    """How slow answers are: seconds, and which share of them takes how many times as long."""

    latency: float = 0.0
    tail: float = 0.0
    factor: float = 10.0

    @property
    def mean(self) -> float:
        return self.latency * (1 + self.tail * (self.factor - 1))


FAST = Slow()
NETWORK = Slow(0.02, 0.01)


class Counts(NamedTuple):
    """What a server was asked: requests by kind, bytes of bodies received and sent; and the seconds of CPU it has used."""

    requests: Mapping[str, int] = {}
    received: int = 0
    sent: int = 0
    cpu: float = 0.0


class Place(NamedTuple):
    """A place to keep transcripts.

    Attributes:
        dialect: ``s3``, ``gcs``, ``azure`` or ``local``.
        endpoint: the server's address, with the account where the dialect has one; or a directory.
        container: the bucket.
        counts_requests: whether it is a stub, which counts and can be steered.
    """

    dialect: str
    endpoint: str
    container: str = CONTAINER
    counts_requests: bool = False

    @property
    def can_be_filled(self) -> bool:
        return self.counts_requests or self.dialect == "local"

    def url(self, scheme: str = "") -> str:
        """The store URL."""
        if self.dialect == "local":
            return f"{scheme or 'file'}://{self.endpoint}"
        return localstack_servers.PROTOCOLS[self.dialect].url(self.endpoint, self.container, "")

    def reset(self, slow: Slow = FAST) -> None:
        """Forget all objects; be so slow from now on. Only the stub does."""
        if self.counts_requests:
            self._steer("POST", f"/-/reset?{urlencode(slow._asdict())}")

    def slow(self, slow: Slow) -> None:
        """Be so slow from now on, the same requests each time, and keep the objects. Only the stub is."""
        if self.counts_requests:
            self._steer("POST", f"/-/slow?{urlencode(slow._asdict())}")

    def wait(self, seconds: int = 60) -> None:
        """Let so much time pass on the stub's clock, at once: readers look twice at what was stored just now."""
        if self.counts_requests:
            self._steer("POST", f"/-/wait?seconds={seconds}")

    def fill(self, prefix: str, count: int, *, records: int, line: bytes, writers: int = 1) -> None:
        """Store so many segments of so many equal records, as others would have: so many writers in turn."""
        if self.counts_requests:
            told = {"prefix": f"{self.container}/{prefix}", "count": count, "records": records, "writers": writers}
            self._steer("POST", "/-/fill", json.dumps({**told, "line": line.decode()}))
            return
        os.makedirs(os.path.join(self.endpoint, prefix))
        for name in names(count, records, writers):
            with open(os.path.join(self.endpoint, prefix, name), "wb") as file:
                file.write(line * records)

    def counts(self) -> Counts:
        """Since the last `reset` or `slow`; nothing where nobody counts."""
        return Counts(**self._steer("GET", "/-/counts")) if self.counts_requests else Counts()

    def _steer(self, method: str, path: str, body: str | None = None) -> Any:
        host = self.endpoint.removeprefix("http://").partition("/")[0]
        with contextlib.closing(http.client.HTTPConnection(host, timeout=60)) as connection:
            connection.request(method, path, body)
            answer = connection.getresponse().read()
        return json.loads(answer) if answer else None


Where = Literal["s3", "gcs", "azure", "seaweedfs", "directory", "here"]
NewPlace = Callable[[], AbstractContextManager[Place]]


@contextlib.contextmanager
def places(where: Where) -> Iterator[NewPlace]:
    """Places for one client after the other: the stub of a cloud, buckets of a real server, directories."""
    if where in ("directory", "here"):
        yield _directory
    elif where == "seaweedfs":
        with localstack_servers.running(where) as server:
            yield lambda: contextlib.nullcontext(Place(server.protocol, server.endpoint, server.new_bucket().bucket))
    else:
        with _stub(where) as place:
            yield lambda: contextlib.nullcontext(place)


@contextlib.contextmanager
def _stub(dialect: str) -> Iterator[Place]:
    """In a process of its own."""
    command = [sys.executable, "-m", "benchmarks.servers.stub", dialect]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            account = f"/{ACCOUNT}" if dialect == "azure" else ""
            yield Place(dialect, f"http://127.0.0.1:{port}{account}", counts_requests=True)
        finally:
            process.kill()


@contextlib.contextmanager
def _directory() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as path:
        yield Place("local", path)
