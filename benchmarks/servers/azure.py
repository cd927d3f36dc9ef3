"""As much of Azure Blob Storage as the clients use; the account is in the path, as emulators have it."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes
from xml.sax.saxutils import escape

from benchmarks.servers.objects import Objects, Reply, Request, Stored, head, http_time, kept, serve

_XML = b"Content-Type: application/xml\r\n"
_PART = re.compile(rb"Content-ID: (\d+)\r\n.*?\r\n\r\nDELETE /\w+/([^ ?]+)", re.DOTALL)


class Azure:
    """Any account and container is there."""

    always = b"x-ms-request-id: 1\r\nx-ms-version: 2021-12-02\r\n"

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def make(self, body: bytes, headers: bytes = b"") -> Stored:
        """An object as this service serves it."""
        return Stored(body, headers + b"x-ms-blob-type: BlockBlob\r\n", '"0x{number:X}"')

    def answer(self, request: Request) -> Reply:
        name = request.path[1:].partition(b"/")[2]
        container, _, key = name.partition(b"/")
        asked, method = request.query.get("comp"), request.method
        if not key:
            if asked == "list":
                return self._list(request, container)
            return self._batch(request) if asked == "batch" else Reply("CONTAINER", 201)
        if method == b"PUT":
            return self._put(request, name)
        found = self._objects.get(name)
        if found is None:
            return self._error(method.decode(), 404, b"BlobNotFound")
        if method == b"DELETE":
            self._objects.delete(name)
            return Reply("DELETE", 202)
        if method == b"HEAD":
            return head(found)
        return serve(found, request.headers.get(b"x-ms-range") or request.headers.get(b"range"))

    def _put(self, request: Request, name: bytes) -> Reply:
        if request.headers.get(b"if-none-match") == b"*" and self._objects.get(name):
            return self._error("PUT", 409, b"BlobAlreadyExists")
        stored = self.make(request.body, kept(request, b"x-ms-meta-"))
        self._objects.put(name, stored)
        return Reply("PUT", 201, b"", stored.headers)

    def _list(self, request: Request, container: bytes) -> Reply:
        query, start = request.query, container + b"/"
        after = bytes.fromhex(query.get("marker", ""))
        prefix = start + query.get("prefix", "").encode()
        page, more = self._objects.page(prefix, after, int(query.get("maxresults", 5000)))
        for key, stored in page:
            stored.entry = stored.entry or _entry(key.partition(b"/")[2], stored)
        entries = b"".join(stored.entry for _, stored in page)
        marker = page[-1][0].hex().encode() if more else b""
        body = (
            b"\xef\xbb\xbf<?xml version='1.0' encoding='utf-8'?><EnumerationResults ContainerName='%s'>"
            b"<Prefix>%s</Prefix><Blobs>%s</Blobs><NextMarker>%s</NextMarker></EnumerationResults>"
        ) % (container, escape(query.get("prefix", "")).encode(), entries, marker)
        return Reply("LIST", 200, body, _XML)

    def _batch(self, request: Request) -> Reply:
        told = []
        for number, path in _PART.findall(request.body):
            gone = self._objects.delete(unquote_to_bytes(path))
            told.append(
                b"--b\r\nContent-Type: application/http\r\nContent-ID: %s\r\n\r\nHTTP/1.1 %s\r\n"
                b"x-ms-request-id: 1\r\nContent-Length: 0\r\n\r\n"
                % (number, b"202 Accepted" if gone else b"404 Not Found\r\nx-ms-error-code: BlobNotFound")
            )
        return Reply("DELETE_MANY", 202, b"".join([*told, b"--b--\r\n"]), b"Content-Type: multipart/mixed; boundary=b\r\n")

    @staticmethod
    def _error(kind: str, status: int, code: bytes) -> Reply:
        body = b"" if kind == "HEAD" else b"<?xml version='1.0'?><Error><Code>%s</Code><Message>no</Message></Error>" % code
        return Reply(kind, status, body, _XML + b"x-ms-error-code: %s\r\n" % code)


def _entry(key: bytes, stored: Stored) -> bytes:
    modified = http_time(stored.seconds)
    return (
        b"<Blob><Name>%s</Name><Properties><Creation-Time>%s</Creation-Time><Last-Modified>%s</Last-Modified>"
        b"<Etag>%s</Etag><Content-Length>%d</Content-Length><Content-Type>application/x-ndjson</Content-Type>"
        b"<BlobType>BlockBlob</BlobType><LeaseStatus>unlocked</LeaseStatus><LeaseState>available</LeaseState>"
        b"</Properties><OrMetadata /></Blob>"
    ) % (escape(key.decode()).encode(), modified, modified, stored.etag.strip(b'"'), len(stored.body))
