"""Answers of Azure Blob Storage: taken as they come, read, and told apart.

Reads and listings leave the SDK when their answer arrives: it would hold a body in memory, in pieces of a request each, and
take eight times as long over a listing. Its hook for raw answers serves for that.
"""

from __future__ import annotations

import email
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote
from xml.etree import ElementTree as Xml

import requests
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)
from urllib3.exceptions import HTTPError

from transcript_backends.drivers.driver import Failure, Meaning, ObjectInfo, Page, http_time
from transcript_backends.drivers.refusals import came_damaged, in_its_words, of_credentials

_MEANINGS = {
    "BlobAlreadyExists": Meaning.PRECONDITION,
    "ConditionNotMet": Meaning.PRECONDITION,
    "TargetConditionNotMet": Meaning.PRECONDITION,
    "UnauthorizedBlobOverwrite": Meaning.PRECONDITION,  # a SAS that may create but not write met a blob
    "BlobNotFound": Meaning.NOT_FOUND,
    "ContainerNotFound": Meaning.CONTAINER_NOT_FOUND,
    "ContainerBeingDeleted": Meaning.CONTAINER_NOT_FOUND,
    "ResourceNotFound": Meaning.CONTAINER_NOT_FOUND,  # also what an anonymous reader of a private container is told
    "InvalidAuthenticationInfo": Meaning.EXPIRED,
    "NoAuthenticationInformation": Meaning.DENIED,
    "PublicAccessNotPermitted": Meaning.DENIED,
    "BlobImmutableDueToPolicy": Meaning.DENIED,
    "BlobUsesCustomerSpecifiedEncryption": Meaning.DENIED,
    "BlobCustomerSpecifiedEncryptionMismatch": Meaning.DENIED,
    "ConditionHeadersNotSupported": Meaning.UNSUPPORTED,
    "UnsupportedHeader": Meaning.UNSUPPORTED,
}
_MEANINGS_BY_STATUS = {
    401: Meaning.EXPIRED,
    403: Meaning.DENIED,
    408: Meaning.TRY_AGAIN,
    429: Meaning.TRY_AGAIN,
    501: Meaning.UNSUPPORTED,
    505: Meaning.UNSUPPORTED,
}
_REMEDIES = {
    "AuthorizationPermissionMismatch": "the role or the SAS lacks a permission (Storage Blob Data Contributor has all of them)",
    "BlobImmutableDueToPolicy": "a retention policy or a legal hold protects the blob; wait until it ends, or have it lifted",
    "BlobArchived": "the blob is in the archive tier; rehydrate it first",
    "BlobBeingRehydrated": "the blob is on its way out of the archive tier; wait until it is there",
    "BlobUsesCustomerSpecifiedEncryption": "the blob was stored with a key of its own; give it as customer_key",
    "InvalidHeaderValue": "if this server does not know the version of the protocol, set api_version to one it does",
    "LeaseIdMissing": "somebody holds a lease on the blob; have it released or broken first",
    "PublicAccessNotPermitted": "this account takes no anonymous requests",
    "SnapshotsPresent": "the blob has snapshots, which are never deleted along with it; delete them first",
}
_NO_BATCH_DELETE = (
    "FeatureNotSupported",
    "FeatureNotYetSupportedForHierarchicalNamespaceAccounts",
    "InvalidQueryParameterValue",
    "UnsupportedHttpVerb",
    "UnsupportedQueryParameter",
)
_CONNECTION_LOST = (
    ServiceRequestError,
    ServiceResponseError,
    HTTPError,  # of urllib3, while a body was received
    ConnectionError,
    TimeoutError,
)
_OF_THE_SDK = re.compile("Operation returned an invalid status")
_NO_CREDENTIALS = "no usable Azure credentials found"
_OUT_OF_TIME = re.compile(r"not valid in the specified time frame|token is expired", re.IGNORECASE)
_OUT_OF_STEP = re.compile(r"date header", re.IGNORECASE)
_PART = re.compile(rb"HTTP/1\.[01] ([0-9]{3})")
_PART_CODE = re.compile(rb"^x-ms-error-code: *(\w+)", re.IGNORECASE | re.MULTILINE)

_T = TypeVar("_T")


class NotBlob(Exception):
    """A success that is none: a member which Blob Storage always sends is missing."""


class Lost(Exception):
    """No answer came; the text is the kind of failure."""


class TLSFailed(Exception):
    """The connection was not trusted."""


class NoCredentials(Exception):
    """No token could be had; the text is the kind of failure."""


#: What `send` raises.
FAILURES = (AzureError, NotBlob, Lost, TLSFailed, NoCredentials)


class _Answered(Exception):
    """Carries an answer past the rest of the SDK."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer


class Tokens:
    """A token credential of the SDK, with failures that can be told from those of the storage service.

    Both services say the same, in the same exceptions, and others come from programs and files that a credential asks.
    """

    def __init__(self, credential: Any) -> None:
        self._credential = credential

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._credential, name)
        return partial(_ask_for_token, found) if name in ("get_token", "get_token_info") else found


def _ask_for_token(ask: Callable[..., _T], *scopes: str, **options: Any) -> _T:
    try:
        return ask(*scopes, **options)
    except Exception as error:
        name, status = type(error).__name__, getattr(error, "status_code", None) or 0
        causes = (error, error.__cause__)
        if status in (408, 429) or status >= 500 or any(isinstance(each, _CONNECTION_LOST) for each in causes):
            raise Lost(f"{name} while a token was fetched") from error
        raise NoCredentials(name) from error


class Stream:
    """The body of an answer."""

    def __init__(self, answer: Any) -> None:
        self._response = answer.internal_response

    def read(self, size: int, /) -> bytes:
        data: bytes = self._response.raw.read(size, decode_content=False)
        return data

    def close(self) -> None:
        self._response.raw.close()  # not into the pool, which has a lock: it may be a finalizer that closes this


# --- requests and answers ---------------------------------------------------------------------------------------------


def send(request: Callable[[], _T]) -> _T:
    """Send a request.

    What an SDK says of a lost connection holds the URL, and that may hold a SAS: it is raised anew, without a trace of it.
    """
    try:
        return request()
    except ClientAuthenticationError:
        raise
    except (ValueError, IndexError):  # DeserializationError is of the first kind
        lost: Exception = NotBlob("an answer the SDK can't read")
    except (AzureError, requests.RequestException) as error:
        if isinstance(error, HttpResponseError) and error.status_code is not None:
            raise
        cause = getattr(error, "inner_exception", None) or error
        lost = TLSFailed() if isinstance(cause, requests.exceptions.SSLError) else Lost(type(cause).__name__)
    raise lost


def take(call: Callable[..., object], **options: Any) -> Any:
    """The answer to a request as it came, its body not yet read."""

    def stop(response: Any) -> None:
        if response.http_response.status_code in (200, 202, 206):
            raise _Answered(response.http_response)

    try:
        send(lambda: call(raw_response_hook=stop, **options))
    except _Answered as answered:
        return answered.answer
    raise NotBlob("a success of another kind")


def _code(error: HttpResponseError) -> str:
    """The error code of the service; empty where it is not the service that answers."""
    headers: Mapping[str, str] = getattr(error.response, "headers", {})
    told = headers.get("x-ms-error-code") or getattr(error, "error_code", None) or ""
    return str(getattr(told, "value", told))


def is_gone(error: Exception) -> bool:
    """Whether a deletion failed since there was nothing to delete, or another version than the one to be deleted."""
    return isinstance(error, HttpResponseError) and _code(error) in ("BlobNotFound", "ConditionNotMet")


def knows_no_batches(error: HttpResponseError) -> bool:
    """Whether a batch failed since the server takes none."""
    return _code(error) in _NO_BATCH_DELETE or error.status_code in (405, 501)


def classify(error: Exception) -> Failure | None:
    """What an exception means; None for one that is no answer of the service but a bug."""
    if isinstance(error, HttpResponseError) and error.status_code is not None:
        return _classify_answer(error)
    if isinstance(error, (ClientAuthenticationError, NoCredentials)):
        name = str(error) if isinstance(error, NoCredentials) else type(error).__name__
        return Failure(Meaning.UNAUTHENTICATED, f"{name}: {_NO_CREDENTIALS}")
    if isinstance(error, NotBlob):
        return Failure(Meaning.NO_ANSWER, str(error))
    if isinstance(error, TLSFailed):
        return Failure(Meaning.OTHER, "the TLS connection failed (certificate not trusted? see the setting verify)")
    if isinstance(error, Lost):
        return Failure(Meaning.TRY_AGAIN, str(error))
    if isinstance(error, _CONNECTION_LOST):
        return Failure(Meaning.TRY_AGAIN, type(error).__name__)
    if isinstance(error, (AzureError, OSError)):
        return Failure(Meaning.OTHER, type(error).__name__)
    return None


def _classify_answer(error: HttpResponseError) -> Failure:
    status, code = error.status_code or 0, _code(error)
    request_id = getattr(error.response, "headers", {}).get("x-ms-request-id")
    detail = ", ".join(filter(None, (code, f"HTTP {status}", f"request {request_id}" if request_id else "")))
    meaning = _MEANINGS.get(code) or of_credentials(code) or _MEANINGS_BY_STATUS.get(status)
    if code == "AuthenticationFailed":  # the text says of what kind
        if _OUT_OF_TIME.search(error.message):
            return Failure(Meaning.EXPIRED, detail)
        if _OUT_OF_STEP.search(error.message):
            return Failure(Meaning.CLOCK_SKEW, detail)
    if meaning is None and status >= 500:
        meaning = Meaning.TRY_AGAIN
    if meaning is None and isinstance(error, ClientAuthenticationError):
        return Failure(Meaning.UNAUTHENTICATED, f"{detail}: {_NO_CREDENTIALS}")  # from the token service
    if meaning is None:
        meaning = Meaning.OTHER if code else Meaning.NO_ANSWER  # the service names each of its errors
    if came_damaged(code):
        meaning = Meaning.TRY_AGAIN
    told = _REMEDIES.get(code) or ("" if _OF_THE_SDK.match(error.message) else in_its_words(meaning, error.message))
    return Failure(meaning, f"{detail}: {told}" if told and code else detail, refused=status == 429)


def member(answer: Mapping[str, Any], name: str) -> Any:
    """What every answer of the service has."""
    if answer.get(name) is None:
        raise NotBlob(f"a success without {name}")
    return answer[name]


def info_of_body(key: str, answer: Any, start: int | None) -> ObjectInfo:
    """The facts of a whole object, from the answer to a read from ``start`` on; None where no range was asked for."""
    if answer.status_code != (200 if start is None else 206):
        raise NotBlob("a whole blob where a part was asked for, or a part where the whole was")
    if start is None:
        return info_of(key, answer.headers)
    told = member(answer.headers, "content-range")  # bytes 5-9/10
    span, _, size = told.partition("/")
    if not span.startswith(f"bytes {start}-"):
        raise NotBlob(f"a Content-Range that was not asked for: {told!r}")
    return info_of(key, answer.headers)._replace(size=_size(size))


def _size(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise NotBlob(f"a size that is none: {text!r}")
    return int(text)


def _time(text: str) -> datetime:
    time = http_time(text)
    if time is None:
        raise NotBlob("a time that is none")
    return time


def info_of(key: str, headers: Mapping[str, str]) -> ObjectInfo:
    """The facts of an object that came whole."""
    member(headers, "x-ms-blob-type")  # what else is asked for here, a web page may have too
    size, modified = _size(member(headers, "content-length")), _time(member(headers, "last-modified"))
    return ObjectInfo(key, size, modified, member(headers, "etag"))


def metadata_of(headers: Mapping[str, str]) -> dict[str, str]:
    """The metadata of an object, with lower-case names."""
    start = "x-ms-meta-"
    return {name[len(start) :].lower(): value for name, value in headers.items() if name.lower().startswith(start)}


def page_of(answer: Any) -> Page:
    """The page of a listing."""
    try:
        listing = Xml.fromstring(send(answer.body))  # noqa: S314 - the account's own service, read as its SDK does
    except Xml.ParseError as error:
        raise NotBlob("a listing that is not XML") from error
    marker = listing.find("NextMarker")
    if listing.tag != "EnumerationResults" or marker is None:
        raise NotBlob("a listing without EnumerationResults and NextMarker")
    found = [info for blob in listing.iterfind("Blobs/Blob") if (info := _listed(blob)) is not None]
    date = answer.headers.get("date")
    return Page(found, marker.text or None, _time(date) if date else None)


def _listed(blob: Xml.Element) -> ObjectInfo | None:
    """An entry of a listing; None for a directory of a hierarchical namespace."""
    name, properties = blob.find("Name"), blob.find("Properties")
    if name is None or not name.text or properties is None:
        raise NotBlob("a listed blob without Name or Properties")
    facts = {each.tag: each.text for each in properties}
    if facts.get("ResourceType") == "directory":
        return None
    etag = member(facts, "Etag")
    return ObjectInfo(
        unquote(name.text) if name.get("Encoded") == "true" else name.text,
        _size(member(facts, "Content-Length")),
        _time(member(facts, "Last-Modified")),
        etag if etag.startswith('"') else f'"{etag}"',  # as in a header
    )


def failures_of(answer: Any, keys: Sequence[str]) -> dict[str, Exception]:
    """The keys that a batch did not delete, from its answer."""
    told = {}
    head = f"Content-Type: {answer.headers.get('content-type', '')}\r\n\r\n".encode()
    for part in email.message_from_bytes(head + send(answer.body)).walk():
        body = part.get_payload(decode=True)
        found = _PART.match(body) if isinstance(body, bytes) else None
        if found:
            code = _PART_CODE.search(found.string)
            told[part.get("Content-ID", "").strip()] = _part(int(found.group(1)), code.group(1).decode() if code else "")
    if not told:
        raise NotBlob("an answer to a batch that names no key")
    left_out = NotBlob("the answer to a batch left this key out")
    outcomes = ((key, told.get(str(number), left_out)) for number, key in enumerate(keys))  # their order tells nothing
    return {key: outcome for key, outcome in outcomes if outcome is not None and not is_gone(outcome)}


def _part(status: int, code: str) -> Exception | None:
    """The outcome of one request of a batch."""
    if status == 202:
        return None
    error = HttpResponseError(code)
    error.status_code = status
    error.error_code = code  # type: ignore[attr-defined]
    return error
