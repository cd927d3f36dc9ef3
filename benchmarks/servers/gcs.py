"""As much of Google Cloud Storage as the clients use: the JSON API of google-cloud-storage, and the XML API."""

from __future__ import annotations

import json
import re
import time
from typing import Any
from urllib.parse import unquote_to_bytes

from benchmarks.servers.objects import Reply, Request, Stored, serve
from benchmarks.servers.s3 import S3

_JSON = b"Content-Type: application/json; charset=UTF-8\r\n"
_OBJECT = re.compile(rb"^(?:/download|/upload)?/storage/v1/b/([^/]+)(?:/o(?:/(.*))?)?$", re.DOTALL)
_PART = re.compile(rb"Content-ID: ?<(.*?)>.*?DELETE /storage/v1/b/([^/]+)/o/([^ ?]+)", re.DOTALL)


class GCS(S3):
    """Any bucket is there."""

    prefix = b"x-goog-"
    always = b"x-guploader-uploadid: 1\r\n"

    def make(self, body: bytes, headers: bytes = b"") -> Stored:
        stored = Stored(body, headers)
        stored.headers += b"X-Goog-Generation: %d\r\nX-Goog-Stored-Content-Length: %d\r\n" % (stored.number, len(body))
        return stored

    def answer(self, request: Request) -> Reply:
        found = _OBJECT.match(request.path)
        if request.path.startswith(b"/batch/"):
            return self._batch(request)
        if not found:
            return super().answer(request)
        bucket, key = found[1], found[2]
        if request.path.startswith(b"/upload/"):
            return self._upload(request, bucket)
        if key is None:
            return self._items(request, bucket)
        stored = self._objects.get(bucket + b"/" + key)
        if stored is None:
            return Reply(request.method.decode(), 404, b'{"error":{"code":404,"message":"No such object","errors":[]}}', _JSON)
        if request.method == b"DELETE":
            self._objects.delete(bucket + b"/" + key)
            return Reply("DELETE", 204)
        if request.query.get("alt") == "media":
            return serve(stored, request.headers.get(b"range"))
        return Reply("HEAD", 200, _resource(bucket, key, stored), _JSON)

    def _upload(self, request: Request, bucket: bytes) -> Reply:
        boundary = request.headers[b"content-type"].partition(b"boundary=")[2].strip(b'"')
        _, facts, content, _ = request.body.split(b"--" + boundary)
        told = json.loads(facts.partition(b"\r\n\r\n")[2])
        key = told["name"].encode()
        if request.query.get("ifGenerationMatch") == "0" and self._objects.get(bucket + b"/" + key):
            return Reply("PUT", 412, b'{"error":{"code":412,"message":"conditionNotMet","errors":[]}}', _JSON)
        stored = self.make(content.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n"))
        stored.facts = told.get("metadata")
        self._objects.put(bucket + b"/" + key, stored)
        return Reply("PUT", 200, _resource(bucket, key, stored), _JSON)

    def _items(self, request: Request, bucket: bytes) -> Reply:
        query, start = request.query, bucket + b"/"
        if not request.path.endswith(b"/o"):
            return Reply("BUCKET", 200, b'{"kind":"storage#bucket","name":"%s"}' % bucket, _JSON)
        after = bytes.fromhex(query.get("pageToken", ""))
        if not after and query.get("startOffset"):
            after = start + query["startOffset"].encode()[:-1]
        page, more = self._objects.page(start + query.get("prefix", "").encode(), after, int(query.get("maxResults", 1000)))
        for key, stored in page:
            stored.entry = stored.entry or _resource(bucket, key.partition(b"/")[2], stored)
        token = b'"nextPageToken":"%s",' % page[-1][0].hex().encode() if more else b""
        entries = b",".join(stored.entry for _, stored in page)
        return Reply("LIST", 200, b'{"kind":"storage#objects",%s"items":[%s]}' % (token, entries), _JSON)

    def _batch(self, request: Request) -> Reply:
        told = []
        for number, bucket, path in _PART.findall(request.body):
            status = 204 if self._objects.delete(bucket + b"/" + unquote_to_bytes(path)) else 404
            told.append(
                b"--b\r\nContent-Type: application/http\r\nContent-ID: <response-%s>\r\n\r\n"
                b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n\r\n" % (number, status)
            )
        return Reply("DELETE_MANY", 200, b"".join([*told, b"--b--\r\n"]), b"Content-Type: multipart/mixed; boundary=b\r\n")


def _resource(bucket: bytes, key: bytes, stored: Stored) -> bytes:
    told: dict[str, Any] = {
        "kind": "storage#object",
        "name": key.decode(),
        "bucket": bucket.decode(),
        "size": str(len(stored.body)),
        "generation": str(stored.number),
        "timeCreated": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.seconds)),
    }
    if stored.facts:
        told["metadata"] = stored.facts
    return json.dumps(told).encode()
