"""As much of Blob Storage as the driver uses, for a `ScriptedServer`: conditions, ranges, paged lists, batches, blocks.

The account is in the path, as emulators have it. Kinds of request: PUT GET HEAD LIST DELETE DELETE_MANY PUT_BLOCK PUT_BLOCKS.
"""

from __future__ import annotations

import datetime as dt
import itertools
import re
import ssl
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree as Xml
from xml.sax.saxutils import escape

import pytest
from faults.engines import check_engine
from faults.scripted_server import Fault, Reply, Request, ScriptedServer, Serve
from faults.setups import FakeClock

from transcript_backends import ObjectTranscriptStore, open_store

ACCOUNT = "devstoreaccount1"
KEY_OF_ACCOUNT = "c2VjcmV0"
SAS = "sv=2021-08-06&sp=rwdl&sr=c&se=2099-01-01T00%3A00%3A00Z&sig=c2VjcmV0"
OpenAzure = Callable[..., ObjectTranscriptStore]

_XML = {"Content-Type": "application/xml"}


@dataclass
class Stored:
    """A blob; `headers` are those it is served with."""

    body: bytes
    headers: dict[str, str]
    modified: str

    @property
    def etag(self) -> str:
        return self.headers["ETag"]


class AzureDialect:
    """One container, called ``container``.

    Attributes:
        objects: what is stored, by key.
        ignore_conditions: answer 201 to every conditional put, and overwrite.
        order: the order of listings.
        page_size: keys on a page where the client asks for no fewer.
        batch_order: the order in which the answers to a batch come.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self.blocks: dict[str, bytes] = {}
        self.ignore_conditions = False
        self.order: Callable[[Iterable[str]], Iterable[str]] = sorted
        self.page_size = 5000
        self.batch_order: Callable[[list[bytes]], Iterable[bytes]] = list
        self._numbers = itertools.count(0x8DD0000)

    def store(self, key: str, body: bytes, headers: dict[str, str] | None = None) -> Stored:
        """Put a blob there, as another client would have."""
        modified = format_datetime(dt.datetime.now(dt.timezone.utc), usegmt=True)
        served = {"ETag": f'"0x{next(self._numbers):X}"', "Last-Modified": modified, "x-ms-blob-type": "BlockBlob"}
        self.objects[key] = Stored(body, {**served, **(headers or {})}, modified)
        return self.objects[key]

    def name(self, request: Request) -> None:
        _, _, path = request.path[1:].partition("/")
        request.key = path.partition("/")[2]
        if "range" in request.headers:  # the service takes either, and this one first
            request.headers.setdefault("x-ms-range", request.headers["range"])
        request.kind = {"block": "PUT_BLOCK", "blocklist": "PUT_BLOCKS", "list": "LIST", "batch": "DELETE_MANY"}.get(
            request.query.get("comp", ""), request.method
        )

    def answer(self, request: Request) -> Reply:
        if not request.path.startswith(f"/{ACCOUNT}/container"):
            return self.error(404, "ContainerNotFound")
        reply: Reply = getattr(self, f"_{request.kind.lower()}")(request)
        reply.headers.setdefault("x-ms-request-id", f"R{next(self._numbers)}")
        return reply

    @staticmethod
    def error(status: int, code: str, detail: str = "") -> Reply:
        """An error; without a code, one that a balancer in front of the service may send."""
        if not code:
            return Reply(status)
        extra = f"<AuthenticationErrorDetail>{escape(detail)}</AuthenticationErrorDetail>" if detail else ""
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>scripted</Message>{extra}</Error>".encode()
        return Reply(status, body, {**_XML, "x-ms-error-code": code, "x-ms-request-id": "R-failed"})

    def _put(self, request: Request) -> Reply:
        present = self.objects.get(request.key)
        if not self.ignore_conditions:
            if present and request.headers.get("if-none-match") == "*":
                return self.error(409, "BlobAlreadyExists")
            expected = request.headers.get("if-match")
            if expected and expected != (present.etag if present else None):
                return self.error(412, "ConditionNotMet")
        kept = {name: value for name, value in request.headers.items() if name.startswith("x-ms-meta-")}
        found = self.store(request.key, request.body, kept)
        return Reply(201, headers={"ETag": found.etag, "Last-Modified": found.modified})

    def _put_block(self, request: Request) -> Reply:
        self.blocks[request.query["blockid"]] = request.body
        return Reply(201)

    def _put_blocks(self, request: Request) -> Reply:
        request.body = b"".join(self.blocks[each.text or ""] for each in Xml.fromstring(request.body))
        return self._put(request)

    def _get(self, request: Request) -> Reply:
        found = self.objects.get(request.key)
        if not found:
            return self.error(404, "BlobNotFound")
        if "x-ms-range" not in request.headers:
            return Reply(200, found.body, dict(found.headers))
        first, _, last = request.headers["x-ms-range"].removeprefix("bytes=").partition("-")
        start, end, size = int(first), min(int(last or 2**62), len(found.body) - 1), len(found.body)
        if start >= size:
            return self.error(416, "InvalidRange")
        return Reply(206, found.body[start : end + 1], {**found.headers, "Content-Range": f"bytes {start}-{end}/{size}"})

    def _head(self, request: Request) -> Reply:
        found = self.objects.get(request.key)
        return Reply(200, found.body, dict(found.headers)) if found else self.error(404, "BlobNotFound")

    def _list(self, request: Request) -> Reply:
        prefix, size = request.query.get("prefix", ""), min(self.page_size, int(request.query.get("maxresults", 5000)))
        keys = [key for key in self.order(self.objects) if key.startswith(prefix)]
        start = int(request.query.get("marker", 0))
        end = start + size
        return self.listing(keys[start:end], str(end) if end < len(keys) else "")

    def listing(self, keys: Iterable[str], marker: str, directories: Iterable[str] = ()) -> Reply:
        """One page: of these keys and directories, and with a marker where it is not the last."""
        entries = "".join(
            f"<Blob><Name>{escape(key)}</Name><Properties><Creation-Time>Sat, 01 Jan 2000 00:00:00 GMT</Creation-Time>"
            f"<Last-Modified>{found.modified}</Last-Modified><Etag>{found.etag[1:-1]}</Etag>"
            f"<ResourceType>file</ResourceType><Content-Length>{len(found.body)}</Content-Length>"
            "<BlobType>BlockBlob</BlobType></Properties><OrMetadata /></Blob>"
            for key, found in ((key, self.objects[key]) for key in keys)
        ) + "".join(
            f"<Blob><Name>{escape(name)}</Name><Properties><ResourceType>directory</ResourceType></Properties></Blob>"
            for name in directories
        )
        body = (
            "\ufeff<?xml version='1.0' encoding='utf-8'?><EnumerationResults ContainerName='container'>"
            f"<Blobs>{entries}</Blobs><NextMarker>{escape(marker)}</NextMarker></EnumerationResults>"
        )
        return Reply(200, body.encode(), dict(_XML))

    def _delete(self, request: Request) -> Reply:
        return Reply(202) if self.objects.pop(request.key, None) else self.error(404, "BlobNotFound")

    def _delete_many(self, request: Request, refused: dict[str, tuple[int, str]] | None = None) -> Reply:
        told = []
        sent = rb"Content-ID: (\d+)\r\n.*?\r\n\r\nDELETE /\w+/container/([^ ?]+)\S* HTTP/1.1\r\n"
        for number, path in re.findall(sent, request.body, re.DOTALL):
            key = unquote(path.decode())
            status, code = (refused or {}).get(key) or ((202, "") if self.objects.pop(key, None) else (404, "BlobNotFound"))
            told.append(
                b"--b1\r\nContent-Type: application/http\r\nContent-ID: %s\r\n\r\nHTTP/1.1 %d Said\r\n%s"
                b"x-ms-request-id: R\r\nContent-Length: 0\r\n\r\n"
                % (number, status, f"x-ms-error-code: {code}\r\n".encode() if code else b"")
            )
        body = b"".join([*self.batch_order(told), b"--b1--\r\n"])
        return Reply(202, body, {"Content-Type": "multipart/mixed; boundary=b1"})

    # --- faults of this dialect ---------------------------------------------------------------------------------------

    def page(self, *keys: str, marker: str, directories: Iterable[str] = ()) -> Fault:
        """Answer a LIST with this page; a marker that is a number leads back to the ordinary listing."""
        return lambda request, serve: self.listing(keys, marker, directories)

    def refuse(self, key: str, status: int, code: str) -> Fault:
        """Answer a DELETE_MANY with an error for this key; the others are deleted."""
        return lambda request, serve: self._delete_many(request, {key: (status, code)})


def reply(status: int, code: str, detail: str = "") -> Fault:
    """An error of Blob Storage, by code; the request has no effect. An answer to HEAD has the code in a header only."""
    return lambda request, serve: AzureDialect.error(status, code, detail)


def expired() -> Fault:
    """What is said to a SAS whose time is over."""
    return reply(403, "AuthenticationFailed", "Signature not valid in the specified time frame: Start [...] - Expiry [...]")


def with_status(status: int) -> Fault:
    """Carry the request out, and answer with another status."""

    def fault(request: Request, serve: Serve) -> Reply:
        answer = serve()
        answer.status = status
        return answer

    return fault


class AzureServer(ScriptedServer):
    """A `ScriptedServer` that speaks Blob Storage."""

    dialect: AzureDialect
    scheme = "http"

    def __init__(self) -> None:
        super().__init__(AzureDialect())

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self._http.server_port}/{ACCOUNT}"

    @property
    def objects(self) -> dict[str, Stored]:
        return self.dialect.objects


class TLSAzureServer(AzureServer):
    """Over TLS, which tokens need. Clients trust it by its certificate, `certificate`."""

    scheme = "https"

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.certificate = directory / "certificate.pem"
        self.certificate.write_bytes(_self_signed())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate)
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)


def _self_signed() -> bytes:
    """A key, and a certificate of it for this machine."""
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.timezone.utc)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "scripted")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + certificate.public_bytes(serialization.Encoding.PEM)


# --- fixtures ---------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def without_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that knows no account of its own."""
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(name="server")
def an_azure_server() -> Iterator[AzureServer]:
    server = AzureServer()
    yield server
    server.close()
    assert server.errors == []


@pytest.fixture(name="tls_server")
def a_tls_server(tmp_path: Path) -> Iterator[TLSAzureServer]:
    server = TLSAzureServer(tmp_path)
    yield server
    server.close()
    assert server.errors == []


@pytest.fixture(name="open_azure")
def an_opener(server: AzureServer, clock: FakeClock, engine: str) -> Iterator[OpenAzure]:
    """Opens ``az://container/p`` on the server; what is given is passed to `open_store`."""
    opened = []

    def open_azure(container: str = "container", **options: Any) -> ObjectTranscriptStore:
        chosen = {"account_key": KEY_OF_ACCOUNT, "clock": clock, "endpoint_url": server.url, "engine": engine, **options}
        store = open_store(f"az://{container}/p", **chosen)
        opened.append(store)
        return store

    yield open_azure
    for store in opened:
        store.close()


@pytest.fixture(name="store")
def a_store(open_azure: OpenAzure, server: AzureServer, engine: str) -> ObjectTranscriptStore:
    """A store whose server has proved to honour conditions; nothing is stored, and the log is empty."""
    store = open_azure()
    check_engine(store, engine)
    store._container.prove_create_only("p")
    server.objects.clear()
    server.log.clear()
    return store
