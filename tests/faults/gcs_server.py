"""As much of GCS's APIs as the drivers use, for a `ScriptedServer`: generations, ranges, paged lists, batches, tokens.

Objects can be put, read and looked at by the JSON API and by the XML API, whose paths are ``/bucket/key``.

Kinds of request: PUT (an upload) GET (a download) HEAD (of an object's resource) LIST DELETE DELETE_MANY BUCKET TOKEN. The
fixtures at the end are for the tests of faults, which import them.
"""

from __future__ import annotations

import base64
import email
import gzip
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qsl, unquote
from xml.sax.saxutils import escape

import pytest
from faults.engines import check_engine
from faults.scripted_server import Fault, Reply, Request, ScriptedServer, Serve
from faults.setups import FakeClock

from transcript_backends import ObjectTranscriptStore, open_store

OpenGCS = Callable[..., ObjectTranscriptStore]

_JSON = {"Content-Type": "application/json; charset=UTF-8"}


@dataclass
class Stored:
    """An object: its bytes and the members of its resource."""

    body: bytes
    generation: str
    created: datetime
    facts: dict[str, Any] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)

    def resource(self, key: str) -> dict[str, Any]:
        return {
            "kind": "storage#object",
            "name": key,
            "bucket": "bucket",
            "size": str(len(self.body)),
            "generation": self.generation,
            "timeCreated": f"{self.created:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z",
            **self.facts,
        }


class GCSDialect:
    """One bucket, called ``bucket``.

    Attributes:
        objects: what is stored, by key.
        ignore_conditions: overwrite whatever an upload asks for.
        order: the order of listings.
        page_size: objects on a page.
        tokens: access tokens given out, in order.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self.ignore_conditions = False
        self.order: Callable[[Iterable[str]], Iterable[str]] = sorted
        self.page_size = 1000
        self.tokens: list[str] = []
        self._generations = itertools.count(1_700_000_000_000_001)

    def store(self, key: str, body: bytes, facts: dict[str, Any] | None = None) -> Stored:
        """Put an object there, as another client would have."""
        self.objects[key] = Stored(body, str(next(self._generations)), datetime.now(timezone.utc), facts or {})
        return self.objects[key]

    def name(self, request: Request) -> None:
        _, _, request.key = request.path.partition("/o/")
        if request.path == "/token":
            request.kind = "TOKEN"
        elif _is_xml(request):
            request.key = request.path[1:].partition("/")[2]
            request.kind = request.method
        elif request.path.startswith("/batch/"):
            request.kind = "DELETE_MANY"
        elif request.path.startswith("/upload/"):
            request.kind = "PUT"
            facts, _ = _halves(request)
            request.key = facts["name"]
        elif request.method == "GET":
            of_object = "GET" if request.query.get("alt") == "media" else "HEAD"
            request.kind = of_object if request.key else "LIST" if request.path.endswith("/o") else "BUCKET"
        else:
            request.kind = request.method

    def answer(self, request: Request) -> Reply:
        if _is_xml(request):
            return self._xml(request)
        reply: Reply = getattr(self, f"_{request.kind.lower()}")(request)
        return reply

    def _xml(self, request: Request) -> Reply:
        """As of the XML API: conditions and facts in headers, errors with a code of their own."""
        found = self.objects.get(request.key)
        if request.path.partition("/")[2].partition("/")[0] != "bucket":
            return xml_error(404, "NoSuchBucket")
        if request.method == "PUT":
            expected = request.headers.get("x-goog-if-generation-match")
            if expected is not None and not self.ignore_conditions and expected != (found.generation if found else "0"):
                return xml_error(412, "PreconditionFailed")
            start = "x-goog-meta-"
            sent = {name[len(start) :]: value for name, value in request.headers.items() if name.startswith(start)}
            kept = self.store(request.key, request.body, {"metadata": sent, "contentType": request.headers["content-type"]})
            return Reply(200, headers={"ETag": '"e"', "X-Goog-Generation": kept.generation})
        if not found:
            return xml_error(404, "NoSuchKey")
        reply = self._get(request)
        if reply.status == 416:
            return xml_error(416, "InvalidRange")
        sent = {f"X-Goog-Meta-{name}": value for name, value in found.facts.get("metadata", {}).items()}
        reply.headers.update({"ETag": f'"{found.generation}"', **sent})
        return reply

    @staticmethod
    def error(status: int, reason: str, message: str = "scripted") -> Reply:
        told = {"code": status, "message": message, "errors": [{"domain": "global", "reason": reason, "message": message}]}
        return Reply(status, json.dumps({"error": told}).encode(), dict(_JSON))

    def _missing(self, request: Request) -> Reply | None:
        """The answer where bucket or object is missing. Of an object in a missing bucket it is that of a missing object."""
        bucket = request.path.partition("/b/")[2].partition("/")[0]
        if request.kind in ("PUT", "LIST"):
            return None if bucket == "bucket" else self.error(404, "notFound", "The specified bucket does not exist.")
        if bucket == "bucket" and request.key in self.objects:
            return None
        message = f"No such object: {bucket}/{request.key}"
        if request.kind == "GET":
            return Reply(404, message.encode(), {"Content-Type": "text/html; charset=UTF-8"})
        return self.error(404, "notFound", message)

    def _put(self, request: Request) -> Reply:
        if missing := self._missing(request):
            return missing
        facts, body = _halves(request)
        present, expected = self.objects.get(facts.pop("name")), request.query.get("ifGenerationMatch")
        if expected is not None and not self.ignore_conditions and expected != (present.generation if present else "0"):
            return self.error(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
        if facts["md5Hash"] != base64.b64encode(hashlib.md5(body).digest()).decode():
            return self.error(400, "invalid", "Provided MD5 hash doesn't match calculated MD5 hash")
        stored = self.store(request.key, body, facts)
        stored.query = request.query
        return self._told(stored.resource(request.key))

    @staticmethod
    def _told(told: dict[str, Any]) -> Reply:
        return Reply(200, json.dumps(told).encode(), dict(_JSON))

    def _get(self, request: Request) -> Reply:
        if not _is_xml(request) and (missing := self._missing(request)):
            return missing
        found = self.objects[request.key]
        body, encoding = found.body, found.facts.get("contentEncoding", "identity")
        headers = {
            "Content-Type": found.facts.get("contentType", "application/octet-stream"),
            "Last-Modified": format_datetime(found.created, usegmt=True),
            "X-Goog-Generation": found.generation,
            "X-Goog-Stored-Content-Length": str(len(body)),
            "X-Goog-Stored-Content-Encoding": encoding,
        }
        if encoding == "gzip" and "gzip" not in request.headers.get("accept-encoding", ""):
            return Reply(200, gzip.decompress(body), {**headers, "Warning": "214 UploadServer gunzipped"})  # and no range
        if encoding == "gzip":
            headers["Content-Encoding"] = "gzip"
        if "range" not in request.headers:
            return Reply(200, body, headers)
        first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or 2**62), len(body) - 1)
        if start >= len(body):
            return Reply(416, b"", {"Content-Range": f"bytes */{len(body)}"})
        return Reply(206, body[start : end + 1], {**headers, "Content-Range": f"bytes {start}-{end}/{len(body)}"})

    def _head(self, request: Request) -> Reply:
        return self._missing(request) or self._told(self.objects[request.key].resource(request.key))

    def _list(self, request: Request) -> Reply:
        if missing := self._missing(request):
            return missing
        prefix, after = request.query.get("prefix", ""), request.query.get("startOffset", "")
        keys = [key for key in self.order(self.objects) if key.startswith(prefix) and key >= after]
        start = int(request.query.get("pageToken", "0"))
        end = start + min(self.page_size, int(request.query.get("maxResults", 1000)))
        return self.listing(keys[start:end], str(end) if end < len(keys) else None)

    def listing(self, keys: Iterable[str], token: str | None) -> Reply:
        """One page: of these keys, and with a token where it is not the last."""
        items = [self.objects[key].resource(key) for key in keys]
        more = {"nextPageToken": token} if token else {}
        return self._told({"kind": "storage#objects", **more, **({"items": items} if items else {})})

    def _delete(self, request: Request) -> Reply:
        if missing := self._missing(request):
            return missing
        if request.query.get("ifGenerationMatch", self.objects[request.key].generation) != self.objects[request.key].generation:
            return self.error(412, "conditionNotMet")
        del self.objects[request.key]
        return Reply(204)

    def _delete_many(self, request: Request, refused: dict[str, Reply] | None = None, left_out: str = "") -> Reply:
        answers = []
        for part in _multipart(request):
            _, path, _ = str(part.get_payload()).split(" ", 2)
            name, _, query = path.partition("?")
            inner = Request("DELETE", unquote(name), dict(parse_qsl(query)), {}, b"", 0)
            self.name(inner)
            if inner.key == left_out:
                continue
            reply = (refused or {}).get(inner.key) or self._delete(inner)
            head = f"Content-Type: application/http\r\nContent-ID: <response-{str(part['Content-ID'])[1:]}\r\n\r\n"
            lines = f"HTTP/1.1 {reply.status} X\r\n" + "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
            answers.append(f"--batch_x\r\n{head}{lines}Content-Length: {len(reply.body)}\r\n\r\n{reply.body.decode()}\r\n")
        answers.reverse()  # they are told apart by their ids
        body = "".join(answers) + "--batch_x--\r\n"
        return Reply(200, body.encode(), {"Content-Type": "multipart/mixed; boundary=batch_x"})

    def _bucket(self, request: Request) -> Reply:
        return self._told({"kind": "storage#bucket", "name": "bucket"})

    def _token(self, request: Request) -> Reply:
        self.tokens.append(f"token{len(self.tokens) + 1}")
        return self._told({"access_token": self.tokens[-1], "expires_in": 3600, "token_type": "Bearer"})

    # --- faults of this dialect ---------------------------------------------------------------------------------------

    def page(self, *keys: str, token: str | None) -> Fault:
        """Answer a LIST with this page; a token that is a number leads back to the ordinary listing."""
        return lambda request, serve: self.listing(keys, token)

    def refuse(self, key: str, status: int, reason: str) -> Fault:
        """Answer a DELETE_MANY with an error for this key; the others are deleted."""
        return lambda request, serve: self._delete_many(request, {key: self.error(status, reason)})

    def leave_out(self, key: str) -> Fault:
        """Answer a DELETE_MANY without a word of this key, which stays; the others are deleted."""
        return lambda request, serve: self._delete_many(request, left_out=key)


def _is_xml(request: Request) -> bool:
    return not request.path.startswith(("/storage/", "/upload/", "/batch/", "/token"))


def xml_error(status: int, code: str, message: str = "scripted") -> Reply:
    told = f"<Code>{code}</Code><Message>scripted</Message><Details>{escape(message)}</Details>"
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error>{told}</Error>"
    return Reply(status, body.encode(), {"Content-Type": "application/xml; charset=UTF-8"})


def _multipart(request: Request) -> list[Any]:
    kind = request.headers["content-type"].encode()
    return list(email.message_from_bytes(b"Content-Type: " + kind + b"\r\n\r\n" + request.body).get_payload())


def _halves(request: Request) -> tuple[dict[str, Any], bytes]:
    """Resource and body of an upload, the body to the byte."""
    boundary = request.headers["content-type"].partition("boundary=")[2].encode()
    _, first, second, end = request.body.split(b"--" + boundary)
    assert end == b"--"
    facts = json.loads(first.partition(b"\r\n\r\n")[2])
    return facts, second.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")


def reply(status: int, reason: str = "", message: str = "scripted") -> Fault:
    """An error of GCS, by status and reason; the request has no effect. Without a reason it is plain text."""

    def fault(request: Request, serve: Serve) -> Reply:
        if _is_xml(request) and reason:
            return xml_error(status, reason[0].upper() + reason[1:], message)
        if not reason:
            return Reply(status, message.encode(), {"Content-Type": "text/plain"})
        return GCSDialect.error(status, reason, message)

    return fault


def json_instead(body: bytes, status: int = 200) -> Fault:
    """A success of something else that speaks JSON; the request has no effect."""
    return lambda request, serve: Reply(status, body, dict(_JSON))


def with_headers(**headers: str | None) -> Fault:
    """The ordinary reply with other headers (``_`` for ``-``); None leaves one out."""

    def fault(request: Request, serve: Serve) -> Reply:
        answer = serve()
        for name, value in headers.items():
            answer.headers.pop(name.replace("_", "-"), None)
            if value is not None:
                answer.headers[name.replace("_", "-")] = value
        return answer

    return fault


def without_range() -> Fault:
    """Answer a ranged GET with the whole object and 200."""

    def fault(request: Request, serve: Serve) -> Reply:
        request.headers.pop("range", None)
        return serve()

    return fault


class GCSServer(ScriptedServer):
    """A `ScriptedServer` that speaks GCS."""

    dialect: GCSDialect

    def __init__(self) -> None:
        super().__init__(GCSDialect())

    @property
    def objects(self) -> dict[str, Stored]:
        return self.dialect.objects


# --- fixtures ---------------------------------------------------------------------------------------------------------


@pytest.fixture(name="server")
def a_gcs_server(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[GCSServer]:
    """A server, on a machine without credentials of its own."""
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "nothing"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    server = GCSServer()
    yield server
    server.close()
    assert server.errors == []


@pytest.fixture(name="open_gcs")
def an_opener(server: GCSServer, clock: FakeClock, engine: str) -> Iterator[OpenGCS]:
    """Opens ``gs://bucket/p`` on the server; what is given is passed to `open_store`."""
    opened = []

    def open_gcs(bucket: str = "bucket", **options: Any) -> ObjectTranscriptStore:
        store = open_store(
            f"gs://{bucket}/p?endpoint_url={server.url}", **{"anon": True, "clock": clock, "engine": engine, **options}
        )
        opened.append(store)
        return store

    yield open_gcs
    for store in opened:
        store.close()


@pytest.fixture(name="store")
def a_store(open_gcs: OpenGCS, server: GCSServer, engine: str) -> ObjectTranscriptStore:
    """A store whose server has proved to honour conditions; nothing is stored, and the log is empty."""
    store = open_gcs()
    check_engine(store, engine)
    store._container.prove_create_only("p")
    server.objects.clear()
    server.log.clear()
    return store


@pytest.fixture(name="account")
def an_account(server: GCSServer, tmp_path: Any) -> str:
    """The path of a service account's key, whose tokens come from the server."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    path = tmp_path / "account.json"
    told = {"type": "service_account", "client_email": "a@b.c", "private_key": pem, "token_uri": f"{server.url}/token"}
    path.write_text(json.dumps(told))
    return str(path)
