"""Amazon S3 and the servers that speak its protocol, through boto3.

Conditional writes: ``If-None-Match: *`` to create, ``If-Match: <ETag>`` to replace (S3 API reference, PutObject). A service
other than AWS's own is asked to prove that it honours them before the first write.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import boto3
import botocore.exceptions as sdk
from botocore import UNSIGNED
from botocore.config import Config
from botocore.parsers import ResponseParserError

from transcript_backends.drivers.clients import SharedClient
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
)
from transcript_backends.errors import InvalidURLError
from transcript_backends.urls import Setting, StoreURL

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

SETTINGS = (
    Setting("region", aliases=("region_name", "aws_region")),
    Setting("endpoint_url", "url", ("endpoint", "endpoint_override", "aws_endpoint")),
    Setting("addressing_style", choices=("auto", "path", "virtual")),
    Setting("profile", aliases=("aws_profile",)),
    Setting("anon", "bool", ("anonymous", "skip_signature", "no_sign_request")),
    Setting("checksum", choices=("auto", "when_supported", "when_required")),
    Setting("verify", aliases=("ca_bundle",)),
    Setting("allow_http", "bool"),
    Setting("connect_timeout", "seconds"),
    Setting("read_timeout", "seconds"),
    Setting("max_pool_connections", "int"),
    Setting("access_key_id", aliases=("aws_access_key_id",), secret=True),
    Setting("secret_access_key", aliases=("aws_secret_access_key",), secret=True),
    Setting("session_token", aliases=("aws_session_token",), secret=True),
)

_MEANINGS = {
    "NoSuchBucket": Meaning.CONTAINER_NOT_FOUND,
    "NoSuchKey": Meaning.NOT_FOUND,
    "ExpiredToken": Meaning.EXPIRED,
    "ExpiredTokenException": Meaning.EXPIRED,
    "TokenRefreshRequired": Meaning.EXPIRED,
    "RequestTimeTooSkewed": Meaning.CLOCK_SKEW,
    "ConditionalRequestConflict": Meaning.TRY_AGAIN,
    "OperationAborted": Meaning.TRY_AGAIN,
    "RequestTimeout": Meaning.TRY_AGAIN,
    "InternalError": Meaning.TRY_AGAIN,  # these three also stand in the answer to a batch, without a status
    "ServiceUnavailable": Meaning.TRY_AGAIN,
    "SlowDown": Meaning.TRY_AGAIN,
    "NotImplemented": Meaning.UNSUPPORTED,
}
_MEANINGS_BY_STATUS = {
    401: Meaning.DENIED,
    403: Meaning.DENIED,
    404: Meaning.NOT_FOUND,
    408: Meaning.TRY_AGAIN,
    412: Meaning.PRECONDITION,
    429: Meaning.TRY_AGAIN,
    501: Meaning.UNSUPPORTED,
}
_NO_CREDENTIALS = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.CredentialRetrievalError,
    sdk.NoAuthTokenError,
    sdk.SSOError,
    sdk.ProfileNotFound,
)
_CONNECTION_LOST = (
    sdk.HTTPClientError,
    sdk.ConnectionError,
    sdk.IncompleteReadError,  # the body was cut short
    ConnectionError,
    TimeoutError,
)
_ELSEWHERE = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301", "307")
_NO_BATCH_DELETE = ("MissingContentMD5", "NotImplemented", "MalformedXML", "MethodNotAllowed")


class _NotS3(Exception):
    """A success that is none: a member which S3 always sends is missing."""


class S3ObjectStore:
    """One bucket.

    Args:
        client: a boto3 S3 client, or a holder that makes one.
        bucket: its name.
    """

    def __init__(self, client: S3Client | SharedClient[S3Client], bucket: str) -> None:
        self._shared = client if isinstance(client, SharedClient) else SharedClient(ready=client)
        self._bucket = bucket
        self._batch_delete = True
        self.location = f"s3://{bucket}"

    @property
    def capabilities(self) -> Capabilities:
        try:
            known = _is_aws(self._shared.get().meta.endpoint_url)
        except sdk.BotoCoreError:  # no client can be made; the next request says why
            known = False
        plain = not self._bucket.endswith("--x-s3")  # directory buckets list in no order and refuse StartAfter
        # Elsewhere StartAfter is not trusted either: some servers skip keys that come after it (localstack#13745).
        return Capabilities(create_only="yes" if known else "probe", ordered_lists=plain, start_after=plain and known)

    @property
    def details(self) -> str:
        try:
            meta = self._shared.get().meta
        except sdk.BotoCoreError:
            return ""
        return f"endpoint {meta.endpoint_url}, region {meta.region_name}"

    def put(self, key: str, body: bytes, *, mode: PutMode, metadata: Mapping[str, str]) -> str:
        request: dict[str, Any] = {}
        if isinstance(mode, IfMatch):
            request["IfMatch"] = mode.version
        elif mode == "create":
            request["IfNoneMatch"] = "*"
        answer = self._shared.get().put_object(
            Bucket=self._bucket, Key=key, Body=body, Metadata=metadata, ContentType=content_type(key), **request
        )
        return str(_member(answer, "ETag"))

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> Body:
        if end is not None and end <= start:
            return Body(self.head(key).info, io.BytesIO())
        ranged = start > 0 or end is not None
        request: dict[str, Any] = {"Range": f"bytes={start}-{'' if end is None else end - 1}"} if ranged else {}
        try:
            answer = self._shared.get().get_object(Bucket=self._bucket, Key=key, **request)
        except sdk.ClientError as error:
            if _status(error) != 416:
                raise
            return Body(self.head(key).info, io.BytesIO())  # nothing there: past the end
        try:
            size = _size_from_range(_member(answer, "ContentRange"), start) if ranged else _member(answer, "ContentLength")
            return Body(_info(key, size, answer), answer["Body"])
        except BaseException:
            answer["Body"].close()
            raise

    def head(self, key: str) -> Head:
        answer = self._shared.get().head_object(Bucket=self._bucket, Key=key)
        return Head(_info(key, _member(answer, "ContentLength"), answer), answer.get("Metadata", {}))

    def list_page(self, prefix: str, *, start_after: str = "", token: str | None = None) -> Page:
        hint = {"StartAfter": start_after} if start_after and self.capabilities.start_after else {}
        request: dict[str, Any] = {"ContinuationToken": token} if token else hint
        answer = self._shared.get().list_objects_v2(Bucket=self._bucket, Prefix=prefix, **request)
        truncated = _member(answer, "IsTruncated")
        if "Name" not in answer and "KeyCount" not in answer:
            raise _NotS3("a listing without Name and KeyCount")
        found = [_info(_member(each, "Key"), _member(each, "Size"), each) for each in answer.get("Contents", ())]
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        now = parsedate_to_datetime(date) if date else None
        return Page(found, _member(answer, "NextContinuationToken") if truncated else None, now)

    def delete_many(self, keys: Sequence[str]) -> Mapping[str, Exception]:
        if self._batch_delete:
            try:
                return self._delete_batch(keys)
            except sdk.ClientError as error:
                if error.response["Error"].get("Code") not in _NO_BATCH_DELETE:
                    raise
                self._batch_delete = False  # an older server that wants a Content-MD5, which boto3 no longer sends
        failed: dict[str, Exception] = {}
        for key in keys:
            try:
                self._shared.get().delete_object(Bucket=self._bucket, Key=key)
            except (sdk.ClientError, sdk.BotoCoreError) as error:
                failed[key] = error
        return failed

    def _delete_batch(self, keys: Sequence[str]) -> Mapping[str, Exception]:
        answer = self._shared.get().delete_objects(Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in keys]})
        failed: dict[str, Exception] = {
            each["Key"]: sdk.ClientError({"Error": {"Code": each.get("Code", "unknown")}}, "DeleteObjects")
            for each in answer.get("Errors", ())
        }
        told = failed.keys() | {each["Key"] for each in answer.get("Deleted", ())}
        if not told:
            raise _NotS3("an answer to DeleteObjects that names no key")
        failed.update((key, _NotS3("DeleteObjects left this key out")) for key in keys if key not in told)
        return failed

    def classify(self, error: Exception) -> Failure | None:
        if isinstance(error, sdk.ClientError):
            return _classify_answer(error)
        if isinstance(error, (_NotS3, ResponseParserError)):
            return Failure(Meaning.NO_ANSWER, str(error) if isinstance(error, _NotS3) else "the answer is not XML of S3")
        if isinstance(error, _NO_CREDENTIALS):
            return Failure(Meaning.DENIED, f"{type(error).__name__}: no usable AWS credentials found")
        if isinstance(error, sdk.SSLError):
            return Failure(
                Meaning.OTHER, "SSLError: the TLS connection failed (certificate not trusted? see the setting verify)"
            )
        if isinstance(error, _CONNECTION_LOST):
            return Failure(Meaning.TRY_AGAIN, type(error).__name__)
        if isinstance(error, (sdk.BotoCoreError, OSError)):
            return Failure(Meaning.OTHER, f"{type(error).__name__}: {error}")
        return None

    def renew(self) -> bool:
        return self._shared.renew()

    def close(self) -> None:
        self._shared.close()


def _classify_answer(error: sdk.ClientError) -> Failure:
    code, status = error.response["Error"].get("Code", "unknown"), _status(error)
    answer = error.response.get("ResponseMetadata", {})
    if code == "500" and "html" in answer.get("HTTPHeaders", {}).get("content-type", ""):
        return Failure(Meaning.NO_ANSWER, "the answer is a web page")  # botocore makes a 500 of a 200 that is not XML
    request_id = answer.get("RequestId")
    detail = ", ".join(filter(None, (code, f"HTTP {status}" if status else "", f"request {request_id}" if request_id else "")))
    if code in _ELSEWHERE:
        detail += ": the bucket is in another region or behind another endpoint; set region or endpoint_url"
    if code == "400" and error.operation_name == "HeadObject":
        code = "ExpiredToken"  # a head's answer has no body to name it; a malformed request is no other possibility here
    meaning = _MEANINGS.get(code) or _MEANINGS_BY_STATUS.get(status)
    if meaning is None:
        meaning = Meaning.TRY_AGAIN if status >= 500 else Meaning.OTHER
    if status == 404 and code not in _MEANINGS and error.operation_name not in ("GetObject", "HeadObject", "DeleteObject"):
        meaning = Meaning.NO_ANSWER  # no object was asked for, and S3 would have named the bucket
    return Failure(meaning, detail)


def _status(error: sdk.ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _member(answer: Mapping[str, Any], name: str) -> Any:
    if name not in answer:
        raise _NotS3(f"a success without {name}")
    return answer[name]


def _size_from_range(content_range: str, start: int) -> int:
    """The size of the whole object, from ``bytes 5-9/10``."""
    span, _, size = content_range.partition("/")
    if not span.startswith(f"bytes {start}-") or not size.isdecimal():
        raise _NotS3(f"a Content-Range that was not asked for: {content_range!r}")
    return int(size)


def _info(key: str, size: int, answer: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(key, size, _member(answer, "LastModified").astimezone(timezone.utc), _member(answer, "ETag"))


# --- from a URL -------------------------------------------------------------------------------------------------------


def open_url(url: StoreURL, settings: Mapping[str, Any]) -> S3ObjectStore:
    """A driver for ``s3://bucket``; the client is made when first used, and anew in a forked child."""
    _check_endpoint(url.container, settings)
    return S3ObjectStore(SharedClient(lambda: _make_client(settings)), url.container)


def _check_endpoint(bucket: str, settings: Mapping[str, Any]) -> None:
    endpoint = settings.get("endpoint_url")
    if endpoint is None:
        return
    parts = urlsplit(endpoint)
    first, _, rest = (parts.hostname or "").partition(f"{bucket}.")
    if not first and re.search(r"(^|\.)s3[.-]|^localhost$", rest):
        raise InvalidURLError(
            f"endpoint_url names the bucket {bucket!r} in its host already; leave it out there, it is added where needed"
        )
    if parts.scheme == "http" and not settings.get("allow_http") and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise InvalidURLError("endpoint_url is http beyond this machine: use https, or allow_http=true to accept the risk")


def _make_client(settings: Mapping[str, Any]) -> S3Client:
    """A client set up on purpose; what is not set here is the SDK's own chain (environment, profile, role).

    - time-outs of 5 s to connect and 30 s between bytes, where the SDK waits 60 s;
    - one try: `transcript_backends.container` repeats requests, since it alone knows how to resolve a lost create;
    - a pool as large as the threads that may share it, with TCP keep-alive;
    - checksums: the SDK's defaults on AWS; elsewhere only where required, since many servers refuse the newer ones. The
      sha256 in each object's metadata is ours.
    """
    session = boto3.Session(
        profile_name=settings.get("profile"),
        region_name=settings.get("region") or os.environ.get("AWS_REGION"),  # boto3 reads only AWS_DEFAULT_REGION
        aws_access_key_id=settings.get("access_key_id"),
        aws_secret_access_key=settings.get("secret_access_key"),
        aws_session_token=settings.get("session_token"),
    )
    verify = settings.get("verify")

    def make(checksum: Literal["when_supported", "when_required"]) -> S3Client:
        config = Config(
            connect_timeout=settings.get("connect_timeout", 5),
            read_timeout=settings.get("read_timeout", 30),
            max_pool_connections=settings.get("max_pool_connections", 64),
            tcp_keepalive=True,
            retries={"mode": "standard", "total_max_attempts": 1},
            request_checksum_calculation=checksum,
            response_checksum_validation=checksum,
            s3={"addressing_style": settings.get("addressing_style") or ("path" if settings.get("endpoint_url") else "auto")},
            user_agent_extra="transcript-backends",
            **({"signature_version": UNSIGNED} if settings.get("anon") else {}),
        )
        return session.client(
            "s3",
            region_name=session.region_name or "us-east-1",
            endpoint_url=settings.get("endpoint_url"),
            verify={"true": True, "false": False}.get(verify, verify) if verify else None,
            config=config,
        )

    checksum = settings.get("checksum", "auto")
    if checksum != "auto":
        return make(checksum)
    endpoint = settings.get("endpoint_url")
    client = make("when_supported" if endpoint is None or _is_aws(endpoint) else "when_required")
    if endpoint is None and not _is_aws(client.meta.endpoint_url):  # from AWS_ENDPOINT_URL or the profile
        client.close()
        client = make("when_required")
    return client


def _is_aws(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))
