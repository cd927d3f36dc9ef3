"""Google Cloud Storage and the servers that speak its JSON API, through a client of google-cloud-storage.

The client brings credentials, endpoint and connections. The requests are made here, one for each operation: the client's own
methods hide the server's clock, the kind of an answer and the facts of a download, repeat requests by themselves, and delete
the object where a large upload looks damaged.

Conditional writes: ``ifGenerationMatch=0`` to create, ``ifGenerationMatch=<generation>`` to replace (JSON API reference,
Objects: insert). A service other than Google's own is asked to prove that it honours them before the first write.
"""

from __future__ import annotations

import base64
import contextlib
import email
import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import google.auth
from google.api_core import exceptions as sdk
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage  # type: ignore[import-untyped]
from google.oauth2 import service_account
from requests import Response
from requests import exceptions as http
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

from transcript_backends.drivers.clients import SharedClient, read_environment_once
from transcript_backends.drivers.driver import (
    Body,
    Capabilities,
    Failure,
    Head,
    IfMatch,
    Meaning,
    ObjectInfo,
    Page,
    PutMode,
    content_type,
    empty_body,
    http_time,
)
from transcript_backends.drivers.refusals import came_damaged, in_its_words, of_credentials
from transcript_backends.errors import InvalidURLError
from transcript_backends.hashing import md5
from transcript_backends.urls import Setting, StoreURL, check_endpoint, refuse_plain_http

SETTINGS = (
    Setting("endpoint_url", "url", ("endpoint", "endpoint_override")),
    Setting("allow_http", "bool"),
    Setting("anon", "bool", ("anonymous", "skip_signature", "no_sign_request")),
    Setting("service_account_file", aliases=("service_account_path",)),
    Setting("credentials", "object"),
    Setting("project", aliases=("project_id",)),
    Setting("user_project", aliases=("quota_project",)),
    Setting("storage_class"),
    Setting("kms_key_name"),
    Setting("verify", aliases=("ca_bundle",)),
    Setting("connect_timeout", "seconds"),
    Setting("read_timeout", "seconds"),
    Setting("max_pool_connections", "int"),
)

_BATCH = "/batch/storage/v1"

_MEANINGS = {
    401: Meaning.EXPIRED,
    403: Meaning.DENIED,
    404: Meaning.NOT_FOUND,
    408: Meaning.TRY_AGAIN,
    409: Meaning.TRY_AGAIN,  # another change of the same object was under way
    412: Meaning.PRECONDITION,
    501: Meaning.UNSUPPORTED,
}
_TOO_FAST = {"rateLimitExceeded", "userRateLimitExceeded"}  # also with status 403
_NO_BATCHES = (400, 404, 405, 501)
_LACKS = re.compile(r"does not have (storage\.[a-zA-Z]+\.[a-zA-Z]+) access")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+)")
_PART = re.compile(r"HTTP/\S+ ([0-9]{3})[^\n]*\n(?:[^\n]+\n)*\n?(.*)", re.DOTALL)


class _NotGCS(Exception):
    """A success that is none, or a refusal in no words of this service."""


class _NoBucket(Exception):
    """The bucket is missing; `sdk.NotFound` is an object that is."""


class _CutShort(Exception):
    """A body ended before all the bytes that were promised."""


class GCSObjectStore:
    """One bucket.

    Args:
        client: a `storage.Client`, or a holder that makes one.
        bucket: its name.
        endpoint: the address of the service; None: as the client has it.
        user_project: the project that pays for the requests, where the bucket wants the requester to.
        storage_class, kms_key_name: for new objects, in place of the bucket's defaults.
        timeout: seconds to connect, and between bytes.
        verify: false, or the path of a CA bundle; None: the system's.
    """

    def __init__(
        self,
        client: storage.Client | SharedClient[storage.Client],
        bucket: str,
        *,
        endpoint: str | None = None,
        user_project: str | None = None,
        storage_class: str | None = None,
        kms_key_name: str | None = None,
        timeout: tuple[float, float] = (5, 30),
        verify: bool | str | None = None,
    ) -> None:
        self._shared = client if isinstance(client, SharedClient) else SharedClient(ready=client)
        endpoint = endpoint or str(self._shared.get().api_endpoint)
        self._objects = f"/storage/v1/b/{bucket}/o"
        self._billed = {"userProject": user_project} if user_project else {}
        self._class = {"storageClass": storage_class} if storage_class else {}
        self._encrypted = {"kmsKeyName": kms_key_name} if kms_key_name else {}
        self._timeout, self._verify = timeout, verify
        self._batches = True
        self.location = f"gs://{bucket}"
        known = (urlsplit(endpoint).hostname or "").endswith(".googleapis.com")
        # Emulators ignore the condition of a delete.
        self.capabilities = Capabilities(create_only="yes" if known else "probe", delete_batch=100, conditional_delete=known)
        self.details = f"endpoint {endpoint}"
        self.identity = self.location if known else f"{self.location} endpoint {endpoint}"

    def put(self, key: str, body: bytes, *, mode: PutMode, metadata: Mapping[str, str]) -> str:
        query = {"uploadType": "multipart", **self._encrypted}
        if isinstance(mode, IfMatch):
            query["ifGenerationMatch"] = mode.version
        elif mode == "create":
            query["ifGenerationMatch"] = "0"
        facts = {
            "name": key,
            "contentType": content_type(key),
            "metadata": dict(metadata),
            "md5Hash": base64.b64encode(bytes.fromhex(md5(body))).decode(),  # checked on arrival
            **self._class,
        }
        boundary = os.urandom(16).hex()
        data = b"".join((
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(facts)}\r\n".encode(),
            f"--{boundary}\r\nContent-Type: {content_type(key)}\r\n\r\n".encode(), body, f"\r\n--{boundary}--".encode(),
        ))  # fmt: skip
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        answer = self._send("POST", f"/upload{self._objects}", query, data=data, headers=headers)
        return _info(_resource(answer, "storage#object")).version

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> Body:
        if end is not None and end <= start:
            return empty_body(self.head(key))
        headers = {"Accept-Encoding": "gzip"}  # or else an object stored as gzip is unpacked on the way
        ranged = start > 0 or end is not None
        if ranged:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        try:
            answer = self._send("GET", self._path(key), {"alt": "media"}, headers=headers, stream=True)
        except sdk.GoogleAPICallError as error:
            if error.code != 416:
                raise
            return empty_body(self.head(key))  # past the end
        try:
            info, length = _received(key, answer, (start, end) if ranged else None)
            return Body(info, _Stream(answer, length))  # without metadata: the JSON API sends none with a download
        except BaseException:
            answer.close()
            raise

    def head(self, key: str) -> Head:
        told = _resource(self._send("GET", self._path(key)), "storage#object")
        return Head(_info(told), {name.lower(): value for name, value in (told.get("metadata") or {}).items()})

    def list_page(self, prefix: str, *, start_after: str = "", token: str | None = None) -> Page:
        query = {"prefix": prefix, "fields": "kind,nextPageToken,items(name,size,timeCreated,generation)"}
        if start_after:
            query["startOffset"] = start_after  # inclusive
        if token:
            query["pageToken"] = token
        answer = self._send("GET", self._objects, query)
        told = _resource(answer, "storage#objects")
        found = [info for info in map(_info, told.get("items") or ()) if info.key != start_after]
        return Page(found, told.get("nextPageToken") or None, http_time(answer.headers.get("Date")))

    def delete_many(self, keys: Sequence[str], *, versions: Mapping[str, str] | None = None) -> Mapping[str, Exception]:
        queries = {key: {"ifGenerationMatch": version} for key, version in (versions or {}).items()}
        if self._batches:
            try:
                return self._delete_batch(keys, queries)
            except (_NotGCS, sdk.GoogleAPICallError) as error:
                if isinstance(error, sdk.GoogleAPICallError) and error.code not in _NO_BATCHES:
                    raise
                self._batches = False  # a server without them; if it was something else, deleting one by one shows it
        failed: dict[str, Exception] = {}
        for key in keys:
            try:
                answer = self._send("DELETE", self._path(key), queries.get(key))
                if answer.status_code != 204:
                    _json(answer)  # emulators say 200 and null
            except (sdk.NotFound, sdk.PreconditionFailed):
                continue
            except (_NotGCS, sdk.GoogleAPICallError, http.RequestException) as error:
                failed[key] = error
        return failed

    def _delete_batch(self, keys: Sequence[str], queries: Mapping[str, Mapping[str, str]]) -> Mapping[str, Exception]:
        """Delete in one request. Its parts are told apart by their ids, and only their paths are given, as GCS asks for."""
        boundary = os.urandom(16).hex()

        def path(key: str) -> str:
            query = urlencode({**queries.get(key, {}), **self._billed})
            return f"{self._path(key)}?{query}" if query else self._path(key)

        parts = "".join(
            f"--{boundary}\r\nContent-Type: application/http\r\nContent-ID: <{number}>\r\n\r\n"
            f"DELETE {path(key)} HTTP/1.1\r\n\r\n\r\n"
            for number, key in enumerate(keys)
        )
        headers = {"Content-Type": f"multipart/mixed; boundary={boundary}"}
        answer = self._send("POST", _BATCH, data=f"{parts}--{boundary}--\r\n".encode(), headers=headers)
        outcomes = _parts(answer)
        failed: dict[str, Exception] = {}
        absent = False
        for number, key in enumerate(keys):
            status, content = outcomes.get(f"<response-{number}>", (0, ""))
            absent |= status == 404
            if not status:
                failed[key] = _NotGCS("a batch left this key out")
            elif status // 100 != 2 and status not in (404, 412):  # gone, or of another generation
                failed[key] = _refusal(status, content)
        if absent:
            self._need_bucket()
        return failed

    def classify(self, error: Exception) -> Failure | None:
        if isinstance(error, sdk.GoogleAPICallError):
            return _classify_answer(error)
        if isinstance(error, _NoBucket):
            return Failure(Meaning.CONTAINER_NOT_FOUND, str(error))
        if isinstance(error, (_NotGCS, http.TooManyRedirects)):
            return Failure(Meaning.NO_ANSWER, str(error))
        if isinstance(error, (auth.GoogleAuthError, http.RequestException, HTTPError, _CutShort, OSError)):
            return _classify_local(error)
        return None

    def renew(self) -> bool:
        return self._shared.renew()

    def close(self) -> None:
        self._shared.close()

    def _path(self, key: str) -> str:
        return f"{self._objects}/{quote(key, safe='')}"

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
    ) -> Response:
        """One request, and any answer but a success as an exception."""
        client = self._shared.get()
        answer: Response = client._http.request(
            method,
            f"{client._connection.get_api_base_url_for_mtls()}{path}",
            params={"prettyPrint": "false", **(query or {}), **self._billed},
            data=data,
            headers=dict(headers or {}),
            stream=stream,
            timeout=self._timeout,
            verify=self._verify,
        )
        if answer.status_code // 100 == 2:
            return answer
        error = _refusal(answer.status_code, answer.text)
        if answer.status_code == 404 and path.endswith(self._objects):
            raise _NoBucket("HTTP 404, no such bucket") if error.errors else _NotGCS("HTTP 404 that names no reason")
        if answer.status_code == 404 and path != _BATCH:
            self._need_bucket()
        raise error

    def _need_bucket(self) -> None:
        """Raise where the bucket is missing: to a request for an object GCS may say "no such object" then, too."""
        _resource(self._send("GET", self._objects, {"maxResults": "1", "fields": "kind"}), "storage#objects")


class _Stream:
    """The bytes of an answer as they were stored, and not one fewer than promised."""

    def __init__(self, answer: Response, length: int) -> None:
        self._answer, self._left = answer, length

    def read(self, size: int, /) -> bytes:
        if not self._left:
            return b""
        chunk: bytes = self._answer.raw.read(min(size, self._left), decode_content=False)
        if not chunk:
            raise _CutShort(f"the body ended {self._left} bytes early")
        self._left -= len(chunk)
        return chunk

    def close(self) -> None:
        self._answer.raw.close()  # not into the pool, which has a lock: it may be a finalizer that closes this


def _classify_answer(error: sdk.GoogleAPICallError) -> Failure:
    status, reasons = int(error.code or 0), [each["reason"] for each in error.errors]
    detail = ", ".join((f"HTTP {status}", *reasons))
    meaning = _MEANINGS.get(status) or (Meaning.TRY_AGAIN if status >= 500 else Meaning.OTHER)
    if status in (400, 403):
        meaning = next(filter(None, map(of_credentials, reasons)), meaning)
    if status == 400 and any(map(came_damaged, (*reasons, error.message))):
        meaning = Meaning.TRY_AGAIN
    if status < 400:
        meaning = Meaning.NO_ANSWER
    elif status == 429 or (status == 403 and _TOO_FAST.intersection(reasons)):
        return Failure(Meaning.TRY_AGAIN, detail, refused=True)
    elif status == 401 and "required" in reasons:
        meaning = Meaning.DENIED  # nobody in particular asked, so there is nothing to renew
    elif status == 400 and {"required", "userProjectMissing"}.intersection(reasons):
        detail += ": where the requester pays for a bucket, set user_project"
    elif not error.message.startswith("HTTP ") and (told := in_its_words(meaning, error.message)):
        detail += f": {told}"
    return Failure(meaning, detail)


def _classify_local(error: Exception) -> Failure:
    """What an exception means for which no answer of the service stands. Those of google.auth may quote tokens."""
    name = type(error).__name__
    if isinstance(error, auth.InvalidOperation):
        return Failure(Meaning.DENIED, "HTTP 401: requests without credentials are not allowed here")
    if isinstance(error, auth.GoogleAuthError):
        if error.retryable or isinstance(error, (auth.TransportError, auth.TimeoutError)):
            return Failure(Meaning.TRY_AGAIN, f"{name} while credentials were fetched")
        if isinstance(error, auth.RefreshError):
            return Failure(Meaning.EXPIRED, f"{name}: no new token for these credentials")
        # Where none are found, no client is kept, and each request looks anew.
        meaning = Meaning.DENIED if isinstance(error, auth.DefaultCredentialsError) else Meaning.UNAUTHENTICATED
        return Failure(
            meaning,
            f"{name}: no usable Google credentials found; log in again (gcloud auth application-default login), or see "
            "GOOGLE_APPLICATION_CREDENTIALS and the settings service_account_file, credentials, anon",
        )
    if isinstance(error, http.SSLError):
        return Failure(Meaning.OTHER, f"{name}: the TLS connection failed (certificate not trusted? see the setting verify)")
    lost = (http.ConnectionError, http.Timeout, http.ChunkedEncodingError, HTTPError, _CutShort)
    return Failure(Meaning.TRY_AGAIN if isinstance(error, lost) else Meaning.OTHER, name)


def _refusal(status: int, content: str) -> sdk.GoogleAPICallError:
    """The exception for an answer, with the words and reasons of GCS where it has them. Nobody else's words are repeated."""
    message, reasons = f"HTTP {status}", []
    if found := _LACKS.search(content):  # as downloads are refused, in plain text
        message = f"{found[1]} is missing"
    with contextlib.suppress(ValueError, TypeError, LookupError):
        told = json.loads(content)["error"]
        message, reasons = str(told["message"]), [{"reason": str(each["reason"])} for each in told["errors"]]
    error: sdk.GoogleAPICallError = sdk.from_http_status(status, message, errors=reasons)  # type: ignore[no-untyped-call]
    return error


def _json(answer: Response) -> Any:
    try:
        return answer.json()
    except ValueError as error:
        raise _NotGCS(f"HTTP {answer.status_code} with an answer that is not JSON") from error


def _resource(answer: Response, kind: str) -> dict[str, Any]:
    told = _json(answer)
    if not isinstance(told, dict) or told.get("kind") != kind:
        raise _NotGCS(f"HTTP {answer.status_code} with an answer that is no {kind}")
    return told


def _info(told: Mapping[str, Any]) -> ObjectInfo:
    """An object's facts from its resource; the time to the second, which is all that a download tells of it."""
    try:
        created = datetime.fromisoformat(told["timeCreated"][:19]).replace(tzinfo=timezone.utc)
        return ObjectInfo(told["name"], int(told["size"]), created, str(told["generation"]))
    except (KeyError, TypeError, ValueError) as error:
        raise _NotGCS("an object without name, size, timeCreated or generation") from error


def _received(key: str, answer: Response, asked: tuple[int, int | None] | None) -> tuple[ObjectInfo, int]:
    """The facts of an object that is being received, and how many bytes of it are to come."""
    headers = answer.headers
    try:
        if asked:
            found = _CONTENT_RANGE.fullmatch(headers["Content-Range"])
            first, last, size = map(int, found.groups()) if found else (-1, -1, -1)
            start, end = asked
            if (first, last) != (start, (size if end is None else min(end, size)) - 1):
                raise _NotGCS(f"a Content-Range that was not asked for: {headers['Content-Range']!r}")
            length = last - first + 1
        else:
            size = length = int(headers.get("X-Goog-Stored-Content-Length") or headers["Content-Length"])
        if int(headers.get("Content-Length", length)) != length:
            raise _NotGCS("a body of another length than was stored")
        created = http_time(headers["Last-Modified"])
        if created is None:
            raise _NotGCS("a download whose Last-Modified is no time")
        return ObjectInfo(key, size, created, headers["X-Goog-Generation"]), length
    except (KeyError, TypeError, ValueError) as error:
        raise _NotGCS("a download without the headers that GCS sends with it") from error


def _parts(answer: Response) -> dict[str, tuple[int, str]]:
    """Status and content of each part of a batch's answer, by its id."""
    kind = answer.headers.get("Content-Type", "").encode()
    message = email.message_from_bytes(b"Content-Type: " + kind + b"\r\n\r\n" + answer.content)
    if not message.is_multipart():
        raise _NotGCS("an answer to a batch that has no parts")
    found = {}
    for part in message.walk():
        told = None if part.is_multipart() else _PART.match(str(part.get_payload()).replace("\r\n", "\n"))
        if told:
            found[str(part["Content-ID"])] = (int(told[1]), told[2])
    return found


# --- from a URL -------------------------------------------------------------------------------------------------------


def open_url(url: StoreURL, settings: Mapping[str, Any]) -> GCSObjectStore:
    """A driver for ``gs://bucket``; the client is made when first used, and anew in a forked child."""
    endpoint = _address(settings)
    chosen = [name for name in ("anon", "service_account_file", "credentials") if settings.get(name)]
    if len(chosen) > 1:
        raise InvalidURLError(f"{' and '.join(chosen)} exclude one another: give one of them")
    verify = settings.get("verify")
    return GCSObjectStore(
        SharedClient(lambda: _make_client(settings)),
        url.container,
        endpoint=endpoint,
        user_project=settings.get("user_project"),
        storage_class=settings.get("storage_class"),
        kms_key_name=settings.get("kms_key_name"),
        timeout=(settings.get("connect_timeout", 5), settings.get("read_timeout", 30)),
        verify={"true": True, "false": False}.get(verify, verify) if verify else None,
    )


def _address(settings: Mapping[str, Any]) -> str:
    """Where the client will send requests, by the URL, else by what the environment tells all Google clients.

    Raises:
        InvalidURLError: that is not to be trusted.
    """
    client = _client(settings, project="-", credentials=AnonymousCredentials())  # type: ignore[no-untyped-call]
    try:
        found = str(client._connection.get_api_base_url_for_mtls())
    finally:
        client.close()
    name = "endpoint_url" if settings.get("endpoint_url") else "the endpoint in the environment (STORAGE_EMULATOR_HOST?)"
    refuse_plain_http(check_endpoint(name, found), settings, name)
    return found


def _emulator() -> str | None:
    """The emulator that the environment names, with or without a scheme."""
    host = os.environ.get("STORAGE_EMULATOR_HOST")
    return f"http://{host}" if host and "://" not in host else host


def _client(settings: Mapping[str, Any], **options: Any) -> storage.Client:
    endpoint = settings.get("endpoint_url") or _emulator()
    return storage.Client(**options, client_options={"api_endpoint": endpoint} if endpoint else None)


def _make_client(settings: Mapping[str, Any]) -> storage.Client:
    """A client with the credentials asked for, else the application default ones, and connections for many threads."""
    endpoint = settings.get("endpoint_url")
    credentials = settings.get("credentials")
    if path := settings.get("service_account_file"):
        credentials = _from_file(path)
    elif settings.get("anon") or (not credentials and not endpoint and _emulator()):
        credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
    elif not credentials:
        credentials, _ = google.auth.default()
    client = _client(settings, project=settings.get("project"), credentials=credentials)
    session = client._http
    adapter = HTTPAdapter(pool_maxsize=settings.get("max_pool_connections", 64))
    session.mount("http://", adapter)
    if not session.is_mtls:
        session.mount("https://", adapter)
    read_environment_once(session, client._connection.get_api_base_url_for_mtls())
    session.headers["User-Agent"] = "transcript-backends (gzip)"  # the second word asks for compressed listings
    return client


def _from_file(path: str) -> Any:
    try:
        return service_account.Credentials.from_service_account_file(path)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise auth.MalformedError(f"{path} is no readable key of a service account") from error  # type: ignore[no-untyped-call]
