"""Amazon S3 and the servers that speak its protocol, through boto3.

Conditional writes: ``If-None-Match: *`` to create, ``If-Match: <ETag>`` to replace (S3 API reference, PutObject). A service
other than AWS's own is asked to prove that it honours them before the first write.
"""

from __future__ import annotations

import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timezone
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import botocore.exceptions as sdk
from botocore.credentials import RefreshableCredentials
from botocore.parsers import ResponseParserError
from botocore.retries.standard import RetryContext, ThrottledRetryableChecker, TransientRetryableChecker

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
    empty_body,
    http_time,
)
from transcript_backends.drivers.refusals import came_damaged, in_its_words, of_credentials, sentence
from transcript_backends.drivers.s3_client import SERVER_ERROR, addressing_style, around, is_aws, make_client, see_endpoint
from transcript_backends.drivers.s3_listing import LISTED
from transcript_backends.errors import InvalidURLError
from transcript_backends.urls import Setting, StoreURL

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

__all__ = ["SETTINGS", "S3ObjectStore", "around", "open_url"]

SETTINGS = (
    Setting("region", aliases=("region_name", "aws_region")),
    Setting("endpoint_url", "url", ("endpoint", "endpoint_override", "aws_endpoint")),
    Setting("addressing_style", choices=("auto", "path", "virtual")),
    Setting("force_path_style", "bool", ("s3ForcePathStyle",)),
    Setting("virtual_hosted_style_request", "bool"),
    Setting("profile", aliases=("aws_profile",)),
    Setting("role_arn"),
    Setting("external_id"),
    Setting("role_session_name"),
    Setting("anon", "bool", ("anonymous", "skip_signature", "no_sign_request")),
    Setting("expected_bucket_owner"),
    Setting("requester_pays", "bool", ("request_payer",)),
    Setting("sse", choices=("AES256", "aws:kms", "aws:kms:dsse")),
    Setting("sse_kms_key_id"),
    Setting("bucket_key", "bool"),
    Setting("storage_class"),
    Setting("purge_versions", "bool"),
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

_PUT_MEMBERS = {
    "sse": "ServerSideEncryption",
    "sse_kms_key_id": "SSEKMSKeyId",
    "bucket_key": "BucketKeyEnabled",
    "storage_class": "StorageClass",
}
_NEEDS = {"external_id": "role_arn", "role_session_name": "role_arn", "sse_kms_key_id": "sse", "bucket_key": "sse"}
_ARCHIVES = ("GLACIER", "DEEP_ARCHIVE")

_MEANINGS = {
    "NoSuchBucket": Meaning.CONTAINER_NOT_FOUND,
    "NoSuchKey": Meaning.NOT_FOUND,
    "InvalidObjectState": Meaning.OTHER,
    "RequestTimeTooSkewed": Meaning.CLOCK_SKEW,
    "ConditionalRequestConflict": Meaning.TRY_AGAIN,
    "OperationAborted": Meaning.TRY_AGAIN,
    "AccessDenied": Meaning.DENIED,  # this and the next two are also found in the response to a batch, without a status
    "InternalError": Meaning.TRY_AGAIN,
    "ServiceUnavailable": Meaning.TRY_AGAIN,
    "NotImplemented": Meaning.UNSUPPORTED,
}
_REFUSED = ("ConditionalRequestConflict", "OperationAborted")
_RETRIED_BY_THE_SDK = (TransientRetryableChecker(), ThrottledRetryableChecker())
_MEANINGS_BY_STATUS = {
    401: Meaning.UNAUTHENTICATED,
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
    sdk.UnknownCredentialError,
    sdk.RefreshWithMFAUnsupportedError,
    sdk.MetadataRetrievalError,
    sdk.NoAuthTokenError,
    sdk.TokenRetrievalError,
    sdk.UnknownTokenProviderError,
    sdk.SSOError,
    *filter(None, [getattr(sdk, "LoginError", None)]),  # of newer ones
    sdk.ProfileNotFound,
    sdk.ConfigParseError,
    sdk.ConfigNotFound,
)
_FETCHING = ("botocore.credentials", "botocore.tokens")
_CONNECTION_LOST = (
    sdk.HTTPClientError,
    sdk.ConnectionError,
    sdk.IncompleteReadError,  # the body was cut short
    ConnectionError,
    TimeoutError,
)
_ELSEWHERE = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301", "307")
_BATCH = 1000
_SENT_UNASKED_BYTES = 1024 * 1024
_GONE = ("NoSuchKey", "NoSuchVersion")
_NO_BATCH_DELETE = ("MissingContentMD5", "NotImplemented", "MalformedXML", "MethodNotAllowed")


class _NotS3(Exception):
    """A success that is none: a member which S3 always sends is missing."""


class S3ObjectStore:
    """One bucket.

    Args:
        client: a boto3 S3 client, or a holder that makes one.
        bucket: its name.
        settings: of `SETTINGS`, those that go with requests: owner, payer, encryption, storage class, what a delete removes.
    """

    def __init__(
        self,
        client: S3Client | SharedClient[S3Client],
        bucket: str,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._shared = client if isinstance(client, SharedClient) else SharedClient(ready=client)
        self._bucket = bucket
        self._always: dict[str, Any] = {"Bucket": bucket}
        if "expected_bucket_owner" in settings:
            self._always["ExpectedBucketOwner"] = settings["expected_bucket_owner"]
        if settings.get("requester_pays"):
            self._always["RequestPayer"] = "requester"
        self._with_puts = {member: settings[name] for name, member in _PUT_MEMBERS.items() if name in settings}
        self._purge_versions = bool(settings.get("purge_versions"))
        self._batch_delete = True
        self._one_pass = True
        self.location = f"s3://{bucket}"

    def _endpoint(self) -> tuple[str, str]:
        """Address and region; empty where no client can be made: the next request says why."""
        try:
            meta = self._shared.get().meta
        except Exception as error:
            if self.classify(error) is None:
                raise
            return "", ""
        return meta.endpoint_url, meta.region_name

    @property
    def capabilities(self) -> Capabilities:
        known = is_aws(self._endpoint()[0])
        plain = not _is_directory_bucket(self._bucket)  # those list in no order and refuse StartAfter
        # Elsewhere StartAfter is not trusted either: some servers skip keys that come after it (localstack#13745).
        return Capabilities(
            create_only="yes" if known else "probe",
            ordered_lists=plain,
            one_pass=self._one_pass,
            start_after=plain and known,
        )

    @property
    def details(self) -> str:
        endpoint, region = self._endpoint()
        return f"endpoint {endpoint}, region {region}" if endpoint else ""

    @property
    def identity(self) -> str:
        """A bucket of AWS has its name for itself, whichever endpoint and region it was asked for in."""
        endpoint, _ = self._endpoint()
        return self.location if not endpoint or is_aws(endpoint) else f"{self.location} endpoint {endpoint}"

    def put(self, key: str, body: bytes, *, mode: PutMode, metadata: Mapping[str, str]) -> str:
        request = {**self._always, **self._with_puts}
        if isinstance(mode, IfMatch):
            request["IfMatch"] = mode.version
        elif mode == "create":
            request["IfNoneMatch"] = "*"
        # boto3 sends bytes as it sends a file, and asks first whether they are welcome: a round trip that pays for many only.
        sent: Any = bytearray(body) if len(body) <= _SENT_UNASKED_BYTES else body
        answer = self._shared.get().put_object(Key=key, Body=sent, Metadata=metadata, ContentType=content_type(key), **request)
        return str(_member(answer, "ETag"))

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> Body:
        if end is not None and end <= start:
            return empty_body(self.head(key))
        ranged = start > 0 or end is not None
        request: dict[str, Any] = {"Range": f"bytes={start}-{'' if end is None else end - 1}"} if ranged else {}
        try:
            answer = self._shared.get().get_object(Key=key, **self._always, **request)
        except sdk.ClientError as error:
            if _status(error) != 416:
                raise
            return empty_body(self.head(key))  # past the end
        try:
            size = _size_from_range(_member(answer, "ContentRange"), start) if ranged else _member(answer, "ContentLength")
            return Body(_info(key, size, answer), answer["Body"], _metadata(answer))
        except BaseException:
            answer["Body"].close()
            raise

    def head(self, key: str) -> Head:
        answer = self._shared.get().head_object(Key=key, **self._always)
        return Head(_info(key, _member(answer, "ContentLength"), answer), _metadata(answer))

    def list_page(self, prefix: str, *, start_after: str = "", token: str | None = None) -> Page:
        hint = {"StartAfter": start_after} if start_after and self.capabilities.start_after else {}
        request: dict[str, Any] = {"ContinuationToken": token} if token else hint
        answer = self._shared.get().list_objects_v2(Prefix=prefix, **self._always, **request)
        is_truncated = _member(answer, "IsTruncated")
        if "Name" not in answer and "KeyCount" not in answer:
            raise _NotS3("a listing without Name and KeyCount")
        found = list[ObjectInfo](answer.get(LISTED, ()))  # type: ignore[call-overload]
        found += [_info(_member(each, "Key"), _member(each, "Size"), each) for each in answer.get("Contents", ())]
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        if "MinIO" in headers.get("server", ""):
            self._one_pass = False  # it walks directories, each of whose names it reads at once
        # A token contradicts a server that calls this page the last, and is believed: it costs a request at the most.
        following = _member(answer, "NextContinuationToken") if is_truncated else answer.get("NextContinuationToken")
        return Page(found, following or None, http_time(headers.get("date")))

    def delete_many(self, keys: Sequence[str]) -> Mapping[str, Exception]:
        if self._purge_versions:
            return self._delete_versions(keys)
        return self._delete([{"Key": key} for key in keys])

    def _delete_versions(self, keys: Sequence[str]) -> Mapping[str, Exception]:
        """Delete all versions and delete markers of some keys; the latest last, or an older one would show again.

        One listing of what is between the keys is less than one for each of them.
        """
        wanted = frozenset(keys)
        common = os.path.commonprefix(list(keys))  # noqa: RUF071 - of characters is what is meant
        return self._erase(common, lambda version, _: version["Key"] in wanted)

    def purge(self, prefix: str) -> Mapping[str, Exception]:
        """Where the store was told to: delete all below a prefix but what is there, old versions and delete markers."""
        if not self._purge_versions:
            return {}
        return self._erase(prefix, lambda version, is_marker: is_marker or not _member(version, "IsLatest"))

    def _erase(self, prefix: str, is_doomed: Callable[[Mapping[str, Any], bool], bool]) -> Mapping[str, Exception]:
        """Delete versions; ``is_doomed`` is told of each, and whether it is a delete marker."""
        older: list[dict[str, Any]] = []
        latest: list[dict[str, Any]] = []
        for page in self._pages_of_versions(prefix):
            for name in ("Versions", "DeleteMarkers"):
                for each in page.get(name, ()):
                    if is_doomed(each, name == "DeleteMarkers"):
                        rank = latest if _member(each, "IsLatest") else older
                        rank.append({"Key": each["Key"], "VersionId": _member(each, "VersionId")})
        failed: dict[str, Exception] = {}
        for rank in (older, latest):
            doomed = [each for each in rank if each["Key"] not in failed]
            for start in range(0, len(doomed), _BATCH):
                failed.update(self._delete(doomed[start : start + _BATCH]))
        return failed

    def _pages_of_versions(self, prefix: str) -> Iterator[Mapping[str, Any]]:
        start: dict[str, Any] = {}
        while True:
            page = self._shared.get().list_object_versions(Prefix=prefix, **start, **self._always)
            is_truncated, before = _member(page, "IsTruncated"), start
            _member(page, "Name")
            yield page
            # As in `list_page`: a page that names a next one is not the last.
            if not (_member(page, "NextKeyMarker") if is_truncated else page.get("NextKeyMarker")):
                return
            version = page.get("NextVersionIdMarker")
            start = {"KeyMarker": page["NextKeyMarker"], **({"VersionIdMarker": version} if version else {})}
            if start == before:
                if is_truncated:
                    raise _NotS3("the same page of versions again and again")
                return

    def _delete(self, doomed: Sequence[Any]) -> Mapping[str, Exception]:
        """Delete keys, or versions of them, in one request or each in its own; gives the failures by key."""
        if self._batch_delete:
            try:
                return self._delete_batch(doomed)
            except sdk.ClientError as error:
                if _code(error) not in _NO_BATCH_DELETE:
                    raise
                self._batch_delete = False  # an older server that wants a Content-MD5, which boto3 no longer sends
        failed: dict[str, Exception] = {}
        for each in doomed:
            try:
                self._shared.get().delete_object(**self._always, **each)
            except (sdk.ClientError, sdk.BotoCoreError) as error:
                if _code(error) not in _GONE:
                    failed[each["Key"]] = error
        return failed

    def _delete_batch(self, doomed: Sequence[Any]) -> Mapping[str, Exception]:
        answer = self._shared.get().delete_objects(Delete={"Objects": list(doomed)}, **self._always)
        errors, deleted = answer.get("Errors", ()), answer.get("Deleted", ())
        failed: dict[str, Exception] = {
            each["Key"]: sdk.ClientError(
                {"Error": {"Code": each.get("Code", "unknown"), "Message": each.get("Message", "")}}, "DeleteObjects"
            )
            for each in errors
            if each.get("Code") not in _GONE
        }
        told = Counter(each["Key"] for each in (*errors, *deleted))
        if not told:
            raise _NotS3("an answer to DeleteObjects that names no key")
        asked = Counter(each["Key"] for each in doomed)
        failed.update((key, _NotS3("DeleteObjects left this key out")) for key in asked if told[key] < asked[key])
        return failed

    def classify(self, error: Exception) -> Failure | None:
        if isinstance(error, sdk.ClientError):
            failure, hint = _classify_answer(error), self._hint(error)
            return failure._replace(detail=f"{failure.detail}: {hint}") if hint else failure
        if isinstance(error, (_NotS3, ResponseParserError)):
            return Failure(Meaning.NO_ANSWER, str(error) if isinstance(error, _NotS3) else "the answer is not XML of S3")
        if isinstance(error, sdk.SSLError):
            return Failure(
                Meaning.OTHER, "SSLError: the TLS connection failed (certificate not trusted? see the setting verify)"
            )
        if isinstance(error, _CONNECTION_LOST):
            return Failure(Meaning.TRY_AGAIN, type(error).__name__)
        if isinstance(error, _NO_CREDENTIALS) or _came_while_fetching(error):
            told = sentence(error) if isinstance(error, sdk.BotoCoreError) else ""
            return Failure(
                Meaning.UNAUTHENTICATED, f"{type(error).__name__}: no usable AWS credentials found: {told}".rstrip(": ")
            )
        if isinstance(error, (sdk.BotoCoreError, OSError)):
            return Failure(Meaning.OTHER, f"{type(error).__name__}: {error}")
        return None

    def _hint(self, error: sdk.ClientError) -> str:
        """What an answer leaves unsaid."""
        code, operation = _code(error), error.operation_name
        if code in _ELSEWHERE:
            return "the bucket is in another region or behind another endpoint; set region or endpoint_url"
        if code == "InvalidObjectState":
            return "it is in an archive; restore it"
        told = sentence(error.response["Error"].get("Message"))
        if code not in ("AccessDenied", "403"):
            return told if _meaning(error) in (Meaning.OTHER, Meaning.UNAUTHENTICATED) else ""
        if operation == "AssumeRole":
            return "these credentials may not assume the role"
        if self._purge_versions and operation == "ListObjectVersions":
            return "purge_versions needs s3:ListBucketVersions"
        if self._purge_versions and operation in ("DeleteObject", "DeleteObjects"):
            return "a retention or legal hold keeps it, or s3:DeleteObjectVersion is missing"
        if told := in_its_words(Meaning.DENIED, told):
            return told
        causes = ["a permission is missing"]
        if "ExpectedBucketOwner" in self._always:
            causes.append("the bucket is not of expected_bucket_owner")
        if "RequestPayer" not in self._always:
            causes.append("the requester pays (then set requester_pays)")
        if self._with_puts.get("ServerSideEncryption", "").startswith("aws:kms"):
            causes.append("the key's policy does not allow kms:GenerateDataKey and kms:Decrypt")
        return ", or ".join(causes)

    @property
    def credentials(self) -> object:
        client: Any = self._shared.get()
        found = client._request_signer._credentials
        if found is None:
            return ()
        return None if isinstance(found, RefreshableCredentials) else tuple(found.get_frozen_credentials())

    def renew(self) -> bool:
        return self._shared.renew()

    def close(self) -> None:
        self._shared.close()


def _classify_answer(error: sdk.ClientError) -> Failure:
    code, status = _code(error), _status(error)
    answer = error.response.get("ResponseMetadata", {})
    page = "html" in answer.get("HTTPHeaders", {}).get("content-type", "")
    if code == "500" and page and not error.response.get(SERVER_ERROR):
        return Failure(Meaning.NO_ANSWER, "the answer is a web page")  # botocore makes a 500 of a 200 that is not XML
    request_id = answer.get("RequestId")
    detail = ", ".join(filter(None, (code, f"HTTP {status}" if status else "", f"request {request_id}" if request_id else "")))
    return Failure(_meaning(error), detail, refused=status == 429 or code in _REFUSED)


def _meaning(error: sdk.ClientError) -> Meaning:
    code, status = _code(error), _status(error)
    if code == "400" and error.operation_name == "HeadObject":
        code = "ExpiredToken"  # a head's answer has no body to name it; a malformed request is no other possibility here
    if found := _MEANINGS.get(code):
        return found
    context = RetryContext(1, parsed_response={"Error": {"Code": code}})
    if came_damaged(code) or any(each.is_retryable(context) for each in _RETRIED_BY_THE_SDK):
        return Meaning.TRY_AGAIN
    if found := of_credentials(code):
        return found
    if code == "403" and error.operation_name == "HeadObject":
        return Meaning.UNAUTHENTICATED  # or else it is about what they may do, which a head's answer does not tell
    if status < 500 and _came_while_fetching(error):
        return Meaning.UNAUTHENTICATED
    if status == 404 and error.operation_name not in ("GetObject", "HeadObject", "DeleteObject"):
        return Meaning.NO_ANSWER  # no object was asked for, and S3 would have named the bucket
    return _MEANINGS_BY_STATUS.get(status) or (Meaning.TRY_AGAIN if status >= 500 else Meaning.OTHER)


def _came_while_fetching(error: Exception) -> bool:
    """Whether an exception came up while the SDK was fetching credentials, whatever its kind: a file, a program, a service."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__") in _FETCHING for frame, _ in frames)


def _is_directory_bucket(bucket: str) -> bool:
    return bucket.endswith("--x-s3")


def _code(error: Exception) -> str:
    """The service's word for what went wrong; empty where it was not the service."""
    return str(error.response["Error"].get("Code", "unknown")) if isinstance(error, sdk.ClientError) else ""


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


def _metadata(answer: Mapping[str, Any]) -> dict[str, str]:
    """Lower-case names, which HTTP servers may spell otherwise."""
    return {name.lower(): value for name, value in answer.get("Metadata", {}).items()}


def _info(key: str, size: int, answer: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(key, size, _member(answer, "LastModified").astimezone(timezone.utc), _member(answer, "ETag"))


# --- from a URL -------------------------------------------------------------------------------------------------------


def open_url(url: StoreURL, settings: Mapping[str, Any]) -> S3ObjectStore:
    """A driver for ``s3://bucket``; the client is made when first used, and anew in a forked child."""
    see_endpoint(url.container, settings)
    addressing_style(settings)
    for name, needed in _NEEDS.items():
        if name in settings and needed not in settings:
            raise InvalidURLError(f"{name} has no effect without {needed}; give both, or neither")
    signers = [name for name in ("profile", "role_arn", "access_key_id") if name in settings]
    if settings.get("anon") and signers:
        raise InvalidURLError(f"anon signs no request, and {signers[0]} says as whom to sign; give one of them")
    if settings.get("storage_class") in _ARCHIVES:
        raise InvalidURLError(
            f"storage_class {settings['storage_class']} is an archive, which can't be read before it is restored; "
            "GLACIER_IR and INTELLIGENT_TIERING can"
        )
    if settings.get("purge_versions") and _is_directory_bucket(url.container):
        raise InvalidURLError(f"{url.container!r} is a directory bucket, which keeps no versions; leave purge_versions out")
    return S3ObjectStore(SharedClient(lambda: make_client(settings)), url.container, settings)
