"""As much of S3 as the clients use. GCS's XML API is the same, but for the names of some headers."""

from __future__ import annotations

import re
import time
from urllib.parse import quote
from xml.sax.saxutils import unescape

from benchmarks.servers.objects import Objects, Reply, Request, Stored, head, kept, serve

_KEY = re.compile(rb"<Key>([^<]*)</Key>")
_XML = b"Content-Type: application/xml\r\n"


class S3:
    """Path style; any bucket is there."""

    prefix = b"x-amz-"
    always = b"x-amz-request-id: 1\r\n"

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def make(self, body: bytes, headers: bytes = b"") -> Stored:
        """An object as this service serves it."""
        return Stored(body, headers)

    def answer(self, request: Request) -> Reply:
        name = request.path[1:]
        bucket, _, key = name.partition(b"/")
        method = request.method
        if not key:
            if method == b"GET" and "list-type" in request.query:
                return self._list(request, bucket)
            if method == b"POST":
                return self._delete_many(request, bucket)
            return Reply("BUCKET", 200)
        if method == b"PUT":
            return self._put(request, name)
        found = self._objects.get(name)
        if method == b"DELETE":
            self._objects.delete(name)
            return Reply("DELETE", 204)
        if found is None:
            return self._error(method.decode(), 404, b"NoSuchKey")
        return head(found) if method == b"HEAD" else serve(found, request.headers.get(b"range"))

    def _put(self, request: Request, name: bytes) -> Reply:
        absent_only = (
            request.headers.get(b"if-none-match") == b"*" or request.headers.get(b"x-goog-if-generation-match") == b"0"
        )
        if absent_only and self._objects.get(name):
            return self._error("PUT", 412, b"PreconditionFailed")
        stored = self.make(request.body, kept(request, self.prefix + b"meta-"))
        self._objects.put(name, stored)
        return Reply("PUT", 200, b"", stored.headers)

    def _list(self, request: Request, bucket: bytes) -> Reply:
        query, start = request.query, bucket + b"/"
        after = bytes.fromhex(query.get("continuation-token", "")) or start + query.get("start-after", "").encode()
        most = min(int(query.get("max-keys", 1000)), 1000)
        page, more = self._objects.page(start + query.get("prefix", "").encode(), after, most)
        for key, stored in page:
            stored.entry = stored.entry or _entry(key.partition(b"/")[2], stored)
        token = b"<NextContinuationToken>%s</NextContinuationToken>" % page[-1][0].hex().encode() if more else b""
        encoding = b"<EncodingType>url</EncodingType>" if query.get("encoding-type") else b""
        body = (
            b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>%s</Name><Prefix>%s</Prefix>%s%s'
            b"<KeyCount>%d</KeyCount><IsTruncated>%s</IsTruncated>%s</ListBucketResult>"
        ) % (
            bucket, quote(query.get("prefix", "")).encode(), encoding, token,
            len(page), b"true" if more else b"false", b"".join(stored.entry for _, stored in page),
        )  # fmt: skip
        return Reply("LIST", 200, body, _XML)

    def _delete_many(self, request: Request, bucket: bytes) -> Reply:
        told = []
        for key in _KEY.findall(request.body):
            self._objects.delete(bucket + b"/" + unescape(key.decode()).encode())
            told.append(b"<Deleted><Key>%s</Key></Deleted>" % key)
        return Reply("DELETE_MANY", 200, b"<DeleteResult>%s</DeleteResult>" % b"".join(told), _XML)

    @staticmethod
    def _error(kind: str, status: int, code: bytes) -> Reply:
        return Reply(kind, status, b"" if kind == "HEAD" else b"<Error><Code>%s</Code></Error>" % code, _XML)


def _entry(key: bytes, stored: Stored) -> bytes:
    modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.seconds)).encode()
    return (
        b"<Contents><Key>%s</Key><LastModified>%s</LastModified><ETag>%s</ETag><Size>%d</Size>"
        b"<StorageClass>STANDARD</StorageClass></Contents>"
    ) % (quote(key).encode(), modified, stored.etag, len(stored.body))
