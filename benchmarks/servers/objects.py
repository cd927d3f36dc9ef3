"""What the dialects have in common: objects in key order, and the answers about one of them."""

from __future__ import annotations

import hashlib
import itertools
import time
from bisect import bisect_left, bisect_right, insort
from email.utils import formatdate
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

_numbers = itertools.count(1_700_000_000_000_000)
_ahead = 0  # seconds of this clock


def now() -> int:
    """The time of this server, in seconds since 1970."""
    return int(time.time()) + _ahead


def wait(seconds: int) -> None:
    """Let that much time pass, at once."""
    global _ahead
    _ahead += seconds


class Request:
    """A request; header names are in lower case, the path is decoded."""

    __slots__ = ("body", "headers", "method", "path", "query")

    def __init__(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        method, target, _ = first.split(b" ")
        path, _, query = target.partition(b"?")
        self.method = method
        self.path = unquote_to_bytes(path) if b"%" in path else path
        self.query = dict(parse_qsl(query.decode(), keep_blank_values=True)) if query else {}
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        self.body = b""


class Reply(NamedTuple):
    """An answer: ``headers`` are lines, each with its end; ``length`` is the body's, where a HEAD leaves that out."""

    kind: str
    status: int
    body: bytes = b""
    headers: bytes = b""
    length: int | None = None


class Stored:
    """An object.

    Attributes:
        headers: those it is served with.
        entry: its part of a listing, once it was listed.
        facts: its metadata, where they are not headers.
        number: its version.
        etag: in quotes; by default as S3's, by which clients see that it is S3 who answers.
        seconds: when it was stored.
    """

    __slots__ = ("body", "entry", "etag", "facts", "headers", "number", "seconds")

    def __init__(self, body: bytes, headers: bytes = b"", etag: str = '"{md5}"') -> None:
        self.body = body
        self.facts: object = None
        self.number, self.seconds = next(_numbers), now()
        self.etag = etag.format(md5=hashlib.md5(body).hexdigest(), number=self.number).encode()
        self.headers = b"ETag: %s\r\nLast-Modified: %s\r\n%s" % (self.etag, http_time(self.seconds), headers)
        self.entry = b""


class Objects:
    """All objects, by ``container/key``."""

    def __init__(self) -> None:
        self._found: dict[bytes, Stored] = {}
        self._keys: list[bytes] = []

    def get(self, key: bytes) -> Stored | None:
        return self._found.get(key)

    def put(self, key: bytes, stored: Stored) -> None:
        if key not in self._found:
            insort(self._keys, key)
        self._found[key] = stored

    def delete(self, key: bytes) -> bool:
        if self._found.pop(key, None) is None:
            return False
        del self._keys[bisect_left(self._keys, key)]
        return True

    def page(self, prefix: bytes, after: bytes, size: int) -> tuple[list[tuple[bytes, Stored]], bool]:
        """So many objects below a prefix, behind a key; and whether there are more."""
        start = max(bisect_left(self._keys, prefix), bisect_right(self._keys, after))
        end = bisect_left(self._keys, prefix + b"\xff", start)
        return [(key, self._found[key]) for key in self._keys[start : min(end, start + size)]], start + size < end


def http_time(seconds: int, _known: dict[int, bytes] = {}) -> bytes:  # noqa: B006 - remembers the last one
    if seconds not in _known:
        _known.clear()
        _known[seconds] = formatdate(seconds, usegmt=True).encode()
    return _known[seconds]


def kept(request: Request, prefix: bytes) -> bytes:
    """The headers that an object is served with as it was stored."""
    return b"".join(
        b"%s: %s\r\n" % (name, value) for name, value in request.headers.items() if name.startswith((prefix, b"content-type"))
    )


def serve(found: Stored, wanted: bytes | None) -> Reply:
    """The answer to a GET, of the range that a header asks for."""
    if wanted is None:
        return Reply("GET", 200, found.body, found.headers)
    first, _, last = wanted.removeprefix(b"bytes=").partition(b"-")
    size = len(found.body)
    if not first:  # the last so many
        first, last = b"%d" % max(size - int(last), 0), b""
    start, end = int(first), min(int(last or size), size - 1)
    if start >= size:
        return Reply("GET", 416, b"", b"Content-Range: bytes */%d\r\n" % size)
    return Reply(
        "GET", 206, found.body[start : end + 1], found.headers + b"Content-Range: bytes %d-%d/%d\r\n" % (start, end, size)
    )


def head(found: Stored) -> Reply:
    """The answer to a HEAD."""
    return Reply("HEAD", 200, b"", found.headers, len(found.body))
