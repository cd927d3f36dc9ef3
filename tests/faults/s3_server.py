"""As much of S3 as the driver uses, for a `ScriptedServer`: path style, conditions, ranges, paged lists, batch deletes.

Kinds of request: PUT GET HEAD LIST VERSIONS DELETE DELETE_MANY HEAD_BUCKET, and those that give credentials: ASSUME_ROLE,
CREATE_SESSION (of directory buckets).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from urllib.parse import quote
from xml.etree import ElementTree as Xml
from xml.sax.saxutils import escape

from faults.scripted_server import Fault, Reply, Request, ScriptedServer, Serve

_XML = {"Content-Type": "application/xml"}
_BY_PARAMETER = {"versions": "VERSIONS", "session": "CREATE_SESSION"}
_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


@dataclass
class Stored:
    """An object; `headers` are those it is served with."""

    body: bytes
    headers: dict[str, str]
    modified: datetime

    @property
    def etag(self) -> str:
        return self.headers["ETag"]


class S3Dialect:
    """One bucket. It keeps no versions: each object has one, called ``null``.

    Attributes:
        bucket: its name.
        objects: what is stored, by key.
        ignore_conditions: answer 200 to every conditional put, and overwrite.
        order: the order of listings.
        page_size: keys on a page where the client asks for no fewer.
        credentials_live: how long those that are given away do.
    """

    def __init__(self) -> None:
        self.bucket = "bucket"
        self.objects: dict[str, Stored] = {}
        self.credentials_live = timedelta(hours=1)
        self.ignore_conditions = False
        self.order: Callable[[Iterable[str]], Iterable[str]] = sorted
        self.page_size = 1000
        self._requests = itertools.count(1)
        self._credentials = itertools.count(1)

    def store(self, key: str, body: bytes, headers: dict[str, str] | None = None) -> Stored:
        """Put an object there, as another client would have."""
        now = datetime.now(timezone.utc)
        served = {"ETag": f'"{hashlib.md5(body).hexdigest()}"', "Last-Modified": format_datetime(now, usegmt=True)}
        self.objects[key] = Stored(body, {**served, **(headers or {})}, now)
        return self.objects[key]

    def name(self, request: Request) -> None:
        bucket, _, request.key = request.path[1:].partition("/")
        request.kind = request.method
        if not bucket:
            request.kind = "ASSUME_ROLE"
        elif not request.key:
            request.kind = {"GET": "LIST", "POST": "DELETE_MANY", "HEAD": "HEAD_BUCKET"}[request.method]
            request.kind = next((kind for name, kind in _BY_PARAMETER.items() if name in request.query), request.kind)

    def answer(self, request: Request) -> Reply:
        if request.kind != "ASSUME_ROLE" and not request.path.startswith(f"/{self.bucket}"):
            return self.error(404, "NoSuchBucket")
        reply: Reply = getattr(self, f"_{request.kind.lower()}")(request)
        reply.headers.setdefault("x-amz-request-id", f"R{next(self._requests)}")
        return reply

    @staticmethod
    def error(status: int, code: str, extra: str = "") -> Reply:
        return Reply(status, f"<Error><Code>{code}</Code><Message>scripted</Message>{extra}</Error>".encode(), dict(_XML))

    def _put(self, request: Request) -> Reply:
        present = self.objects.get(request.key)
        if not self.ignore_conditions:
            expected = request.headers.get("if-match")
            if expected and not present:
                return self.error(404, "NoSuchKey")
            if (present and request.headers.get("if-none-match") == "*") or (expected and present and expected != present.etag):
                return self.error(412, "PreconditionFailed")
        kept = {name: value for name, value in request.headers.items() if name.startswith(("x-amz-meta-", "content-type"))}
        return Reply(200, headers={"ETag": self.store(request.key, request.body, kept).etag})

    def _get(self, request: Request) -> Reply:
        found = self.objects.get(request.key)
        if not found:
            return self.error(404, "NoSuchKey")
        if "range" not in request.headers:
            return Reply(200, found.body, dict(found.headers))
        first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
        start, end, size = int(first), min(int(last or 2**62), len(found.body) - 1), len(found.body)
        if start >= size:
            return self.error(416, "InvalidRange")
        return Reply(206, found.body[start : end + 1], {**found.headers, "Content-Range": f"bytes {start}-{end}/{size}"})

    def _head(self, request: Request) -> Reply:
        found = self.objects.get(request.key)
        return Reply(200, found.body, dict(found.headers)) if found else Reply(404)

    def _head_bucket(self, request: Request) -> Reply:
        return Reply(200)

    def _list(self, request: Request) -> Reply:
        prefix, size = request.query.get("prefix", ""), min(self.page_size, int(request.query.get("max-keys", 1000)))
        start_text, _, after = request.query.get("continuation-token", "0:" + request.query.get("start-after", "")).partition(
            ":"
        )
        keys = [key for key in self.order(self.objects) if key.startswith(prefix) and key > after]
        start = int(start_text)
        end = start + size
        return self.listing(prefix, keys[start:end], f"{end}:{after}" if end < len(keys) else None)

    def listing(self, prefix: str, keys: Iterable[str], token: str | None) -> Reply:
        """One page: of these keys, and with a token where it is not the last."""
        contents = "".join(
            f"<Contents><Key>{quote(key)}</Key><LastModified>{found.modified:%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
            f"<ETag>{escape(found.etag)}</ETag><Size>{len(found.body)}</Size></Contents>"
            for key, found in ((key, self.objects[key]) for key in keys)
        )
        more = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
        return Reply(
            200,
            f"<ListBucketResult {_NAMESPACE}><Name>{self.bucket}</Name><Prefix>{quote(prefix)}</Prefix>"
            f"<EncodingType>url</EncodingType><IsTruncated>{str(bool(token)).lower()}</IsTruncated>"
            f"{more}{contents}</ListBucketResult>".encode(),
            dict(_XML),
        )

    def _versions(self, request: Request) -> Reply:
        versions = "".join(
            f"<Version><Key>{quote(key)}</Key><VersionId>null</VersionId><IsLatest>true</IsLatest></Version>"
            for key in sorted(self.objects)
            if key.startswith(request.query["prefix"])
        )
        return Reply(
            200,
            f"<ListVersionsResult {_NAMESPACE}><Name>{self.bucket}</Name><EncodingType>url</EncodingType>"
            f"<IsTruncated>false</IsTruncated>{versions}</ListVersionsResult>".encode(),
            dict(_XML),
        )

    def _delete(self, request: Request) -> Reply:
        self.objects.pop(request.key, None)
        return Reply(204)

    def _delete_many(self, request: Request, refused: dict[str, str] | None = None) -> Reply:
        told = ""
        for element in Xml.fromstring(request.body).iterfind("{*}Object/{*}Key"):
            key = element.text or ""
            if code := (refused or {}).get(key):
                told += f"<Error><Key>{escape(key)}</Key><Code>{code}</Code><Message>scripted</Message></Error>"
            else:
                self.objects.pop(key, None)
                told += f"<Deleted><Key>{escape(key)}</Key></Deleted>"
        return Reply(200, f"<DeleteResult {_NAMESPACE}>{told}</DeleteResult>".encode(), dict(_XML))

    def _assume_role(self, request: Request) -> Reply:
        who = "<AssumedRoleUser><AssumedRoleId>A:s</AssumedRoleId><Arn>arn:aws:sts::1:assumed-role/r/s</Arn></AssumedRoleUser>"
        return Reply(
            200,
            f"<AssumeRoleResponse><AssumeRoleResult>{who}{self._new_credentials()}</AssumeRoleResult></AssumeRoleResponse>".encode(),
            dict(_XML),
        )

    def _create_session(self, request: Request) -> Reply:
        return Reply(
            200, f"<CreateSessionResult {_NAMESPACE}>{self._new_credentials()}</CreateSessionResult>".encode(), dict(_XML)
        )

    def _new_credentials(self) -> str:
        number, until = next(self._credentials), datetime.now(timezone.utc) + self.credentials_live
        return (
            f"<Credentials><AccessKeyId>ASIATEST{number}</AccessKeyId><SecretAccessKey>rolesecret{number}</SecretAccessKey>"
            f"<SessionToken>roletoken{number}</SessionToken><Expiration>{until:%Y-%m-%dT%H:%M:%SZ}</Expiration></Credentials>"
        )

    # --- faults of this dialect ---------------------------------------------------------------------------------------

    def page(self, *keys: str, token: str | None) -> Fault:
        """Answer a LIST with this page; a token of the form ``<index>:`` leads back to the ordinary listing."""
        return lambda request, serve: self.listing(request.query.get("prefix", ""), keys, token)

    def refuse(self, key: str, code: str) -> Fault:
        """Answer a DELETE_MANY with an error for this key; the others are deleted."""
        return lambda request, serve: self._delete_many(request, {key: code})


def reply(status: int, code: str, extra: str = "") -> Fault:
    """An error of S3, by code; the request has no effect. An answer to HEAD has no body, and so no code."""
    return lambda request, serve: S3Dialect.error(status, code, extra)


def without_range() -> Fault:
    """Answer a ranged GET with the whole object and 200."""

    def fault(request: Request, serve: Serve) -> Reply:
        request.headers.pop("range", None)
        return serve()

    return fault


class S3Server(ScriptedServer):
    """A `ScriptedServer` that speaks S3."""

    dialect: S3Dialect

    def __init__(self) -> None:
        super().__init__(S3Dialect())

    @property
    def objects(self) -> dict[str, Stored]:
        return self.dialect.objects
