"""What obstore needs to know of each cloud: where its SDK would send a request, as whom, and how it names a refusal.

obstore reads the environment by rules of its own: whatever an SDK would not have taken from there is set here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from obstore.store import AzureStore, GCSStore, S3Store

from transcript_backends.drivers.obstore import Service
from transcript_backends.drivers.obstore_answers import (
    AskTheSDK,
    Elsewhere,
    NoContainer,
    NoCredentials,
    NotAnAnswer,
    Refusal,
)
from transcript_backends.hashing import md5
from transcript_backends.urls import StoreURL

if TYPE_CHECKING:
    from transcript_backends.drivers.azure import AzureObjectStore
    from transcript_backends.drivers.gcs import GCSObjectStore
    from transcript_backends.drivers.s3 import S3ObjectStore

_AZURE_STORAGE = "https://storage.azure.com/.default"
_AZURE_ETAG = re.compile(r'"?0x[0-9A-F]+"?')  # as of no web server
_AZURE_KINDS = re.compile(r"not valid in the specified time frame|token is expired|date header", re.IGNORECASE)


class _Credentials:
    """Gives an SDK's credentials to obstore, and keeps what went wrong, of which obstore has only the text."""

    def __init__(self, fetch: Callable[[], dict[str, Any]]) -> None:
        self._fetch = fetch
        self._failure: Exception | None = None

    def __call__(self) -> Any:
        self._failure = None
        try:
            return self._fetch()
        except Exception as error:
            self._failure = error
            raise

    def failure(self) -> Exception:
        return self._failure or NoCredentials()


def _options(settings: Mapping[str, Any], endpoint: str, bundles: Iterable[str | None]) -> Any:
    """How to connect, as the SDK does; and one try, since only `transcript_backends.container` can resolve a lost create.

    Args:
        settings: of the store.
        endpoint: where to.
        bundles: paths of certificates, the first of which is trusted beside the system's own, which may be none.
    """
    with open(next(path for path in bundles if path and os.path.isfile(path)), "rb") as file:
        bundle = file.read()
    return {
        "client_options": {
            "allow_http": endpoint.startswith("http:"),  # nor does a redirect lead there from https
            "connect_timeout": timedelta(seconds=settings.get("connect_timeout", 5)),
            "read_timeout": timedelta(seconds=settings.get("read_timeout", 30)),
            "timeout": timedelta(days=1),  # of a whole body, however slowly it is read
            "pool_max_idle_per_host": str(settings.get("max_pool_connections", 64)),
            "root_certificate": bundle,
            "user_agent": "transcript-backends",
        },
        "retry_config": {"max_retries": 0},
    }


def _bundles(default: str) -> list[str | None]:
    """The paths of certificates that requests trusts, by precedence."""
    return [os.environ.get("REQUESTS_CA_BUNDLE"), os.environ.get("CURL_CA_BUNDLE"), default]


# --- S3 ---------------------------------------------------------------------------------------------------------------


def s3(driver: S3ObjectStore, url: StoreURL, settings: Mapping[str, Any]) -> Service:
    """S3, by the endpoint and the credentials of the boto3 client."""
    import botocore.exceptions as sdk
    from botocore.httpsession import where

    from transcript_backends.drivers.s3_client import open_session

    bucket = url.container

    def fetch() -> dict[str, Any]:
        client: Any = driver._shared.get()
        found = client._request_signer._credentials
        if found is None:
            raise sdk.NoCredentialsError
        now, until = found.get_frozen_credentials(), getattr(found, "_expiry_time", None)
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": until and until.astimezone(timezone.utc),
        }

    credentials = _Credentials(fetch)

    def make() -> S3Store:
        client: Any = driver._shared.get()
        place = _bucket_url(client, bucket)
        trusted = open_session(settings).get_config_variable("ca_bundle")
        virtual = (urlsplit(place).hostname or "").startswith(f"{bucket}.")
        config: Any = {
            "aws_endpoint_url_s3": place if virtual else place.removesuffix(f"/{bucket}"),
            "virtual_hosted_style_request": virtual,
            "region": client.meta.region_name,
            "skip_signature": bool(settings.get("anon")),
            "request_payer": bool(settings.get("requester_pays")),
            "unsigned_payload": False,
            "s3_express": False,
            "conditional_put": "etag",
        }
        if client.meta.config.request_checksum_calculation == "when_supported":
            config["checksum_algorithm"] = "SHA256"  # a bucket with object lock insists on one
        for name, theirs in _S3_ENCRYPTION.items():
            if name in settings:
                config[theirs] = settings[name]
        return S3Store(
            bucket,
            config=config,
            credential_provider=credentials,
            **_options(
                {**settings, "connect_timeout": client.meta.config.connect_timeout},
                place,
                [trusted, os.environ.get("REQUESTS_CA_BUNDLE"), where()],
            ),
        )

    def refused(operation: str, refusal: Refusal) -> Exception:
        if refusal.status in (301, 307) or refusal.code in _ELSEWHERE:
            return Elsewhere()
        code = refusal.code or str(refusal.status)
        answer: Any = {
            "Error": {"Code": code, "Message": refusal.sentence},
            "ResponseMetadata": {"HTTPStatusCode": refusal.status, "RequestId": refusal.request_id},
        }
        return sdk.ClientError(answer, operation)

    vouches = None if settings.get("sse", "").startswith("aws:kms") else _is_md5
    return Service(make, refused, credentials.failure, vouches, storage_class=settings.get("storage_class"))


_ELSEWHERE = ("AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
_S3_ENCRYPTION = {
    "sse": "server_side_encryption",
    "sse_kms_key_id": "sse_kms_key_id",
    "bucket_key": "sse_bucket_key_enabled",
}


def _is_md5(etag: str, body: bytes) -> bool:
    """Whether an ETag is that of a body, as S3 has it wherever it does not encrypt with KMS."""
    return etag.strip('"') == md5(body)


def _bucket_url(client: Any, bucket: str) -> str:
    """Where a boto3 client would send a request for this bucket, which depends on much; none is sent."""
    found = []

    def stop(params: Mapping[str, Any], **rest: object) -> tuple[object, dict[str, Any]]:
        found.append(str(params["url"]))
        return SimpleNamespace(status_code=200), {}

    client.meta.events.register("before-call.s3.HeadBucket", stop)
    try:
        client.head_bucket(Bucket=bucket)
    finally:
        client.meta.events.unregister("before-call.s3.HeadBucket", stop)
    return found[0].rstrip("/")


# --- Google Cloud Storage ---------------------------------------------------------------------------------------------


def gcs(driver: GCSObjectStore, url: StoreURL, settings: Mapping[str, Any]) -> Service:
    """Google Cloud Storage, by its XML API, which is the one that obstore speaks."""
    from certifi import where
    from google.api_core import exceptions as sdk
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import Request

    given: tuple[Any, Any] = (None, None)

    def fetch() -> dict[str, Any]:
        nonlocal given
        client = driver._shared.get()
        found = client._credentials
        if isinstance(found, AnonymousCredentials):
            return {"token": "", "expires_at": None}  # an empty one is not sent
        before, token = given
        is_refused = before is not None and before is not client and token == found.token  # the client was made anew for it
        if is_refused or not found.valid:
            found.refresh(Request())
        given = (client, found.token)
        return {"token": found.token, "expires_at": found.expiry and found.expiry.replace(tzinfo=timezone.utc)}

    credentials = _Credentials(fetch)

    def make() -> GCSStore:
        base = driver._shared.get()._connection.get_api_base_url_for_mtls()
        config: Any = {"base_url": base, "skip_signature": False}
        options = _options(settings, base, _bundles(where()))
        options["client_options"]["default_headers"] = {"accept-encoding": "gzip"}  # else what is stored as gzip is unpacked
        return GCSStore(url.container, config=config, credential_provider=credentials, **options)

    def refused(operation: str, refusal: Refusal) -> Exception:
        status, code = refusal.status, refusal.code
        if code == "NoSuchBucket":
            return NoContainer("HTTP 404, no such bucket")
        if operation == "HeadObject" and status < 500:
            return AskTheSDK()
        if status == 404 and not code:
            return NotAnAnswer("HTTP 404 that names no reason")
        reason = "required" if code == "AuthenticationRequired" else code[:1].lower() + code[1:]  # as in the JSON API
        reasons = [{"reason": reason}] if code else []
        error: Exception = sdk.from_http_status(status, refusal.sentence or code, errors=reasons)  # type: ignore[no-untyped-call]
        return error

    return Service(make, refused, credentials.failure, lambda version, body: True, "version", settings.get("storage_class"))


# --- Azure ------------------------------------------------------------------------------------------------------------


def azure(driver: AzureObjectStore, url: StoreURL, settings: Mapping[str, Any]) -> Service:
    """Azure Blob Storage."""
    from azure.core.credentials import AzureSasCredential
    from azure.core.exceptions import HttpResponseError
    from certifi import where

    from transcript_backends.drivers.azure_account import ANONYMOUS, find_account

    def fetch() -> dict[str, Any]:
        found = find_account(url, settings, os.environ).credential
        if isinstance(found, str):
            return {"access_key": found, "expires_at": None}
        if isinstance(found, AzureSasCredential):
            return {"sas_token": found.signature, "expires_at": None}
        token = driver._shared.get().credential.get_token(_AZURE_STORAGE)
        return {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, timezone.utc)}

    credentials = _Credentials(fetch)

    def make() -> AzureStore:
        account = find_account(url, settings, os.environ)
        config: Any = {
            "endpoint": account.endpoint,
            "account_name": account.name or "-",  # for a signature with a key, which needs the name
            "skip_signature": account.credential is ANONYMOUS,
            "use_emulator": False,
            "use_fabric_endpoint": False,
        }
        return AzureStore(
            url.container,
            config=config,
            credential_provider=credentials,
            **_options(settings, account.endpoint, _bundles(where())),
        )

    def refused(operation: str, refusal: Refusal) -> Exception:
        if operation == "HeadObject" and refusal.status < 500:
            return AskTheSDK()
        error = HttpResponseError("; ".join((refusal.sentence, *_AZURE_KINDS.findall(refusal.body))))
        error.status_code = refusal.status
        error.error_code = refusal.code  # type: ignore[attr-defined]
        error.response = SimpleNamespace(headers={"x-ms-request-id": refusal.request_id})
        return error

    def vouches(version: str, body: bytes) -> bool:
        return _AZURE_ETAG.fullmatch(version) is not None

    return Service(make, refused, credentials.failure, vouches, storage_class=settings.get("tier"))
