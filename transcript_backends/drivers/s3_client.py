"""The boto3 client of a store: its endpoint, its credentials, and its ways with connections and checksums."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import boto3
import botocore.exceptions as sdk
import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    CredentialProvider,
    CredentialResolver,
    DeferredRefreshableCredentials,
)
from botocore.utils import parse_timestamp

from transcript_backends.drivers.driver import http_time
from transcript_backends.drivers.s3_listing import quicken
from transcript_backends.errors import InvalidURLError
from transcript_backends.urls import refuse_plain_http

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_SESSION_NAME = "transcript-backends"
SERVER_ERROR = "ServerError"  # beside the members of an answer: it came with a status of 500 or more


def check_endpoint(bucket: str, settings: Mapping[str, Any]) -> None:
    """Refuse an ``endpoint_url`` that names the bucket, or sends everything in the clear."""
    first, _, rest = (urlsplit(settings.get("endpoint_url") or "").hostname or "").partition(f"{bucket}.")
    if not first and re.search(r"(^|\.)s3[.-]|^localhost$", rest):
        raise InvalidURLError(
            f"endpoint_url names the bucket {bucket!r} in its host already; leave it out there, it is added where needed"
        )
    refuse_plain_http(settings)


def addressing_style(settings: Mapping[str, Any]) -> Any:
    """Where the bucket goes, in the path or in the host, by any of the tools' names for it."""
    said: set[str] = {settings["addressing_style"]} if "addressing_style" in settings else set()
    if "force_path_style" in settings:
        said.add("path" if settings["force_path_style"] else "auto")
    if "virtual_hosted_style_request" in settings:
        said.add("virtual" if settings["virtual_hosted_style_request"] else "path")
    if len(said) > 1:
        raise InvalidURLError(
            "addressing_style, force_path_style and virtual_hosted_style_request contradict one another; give one of them"
        )
    return said.pop() if said else "path" if settings.get("endpoint_url") else "auto"


def is_aws(endpoint: str) -> bool:
    """Whether an endpoint is AWS's own."""
    host = urlsplit(endpoint).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))


def make_client(settings: Mapping[str, Any]) -> S3Client:
    """A client set up on purpose; what is not set here is the SDK's own chain (environment, profile, role).

    - time-outs of 5 s to connect and 30 s between bytes, where the SDK waits 60 s;
    - one try: `transcript_backends.container` repeats requests, since it alone knows how to resolve a lost create;
    - a pool as large as the threads that may share it, with TCP keep-alive;
    - checksums: the SDK's defaults on AWS; elsewhere only where required, since many servers refuse the newer ones. The
      sha256 in each object's metadata is ours;
    - less work for the SDK, which would check each request once more, compose its user agent anew, and read each time at
      length (`parse_time`).
    """
    session = boto3.Session(
        botocore_session=_fast_session(settings.get("profile")),
        region_name=settings.get("region") or os.environ.get("AWS_REGION"),  # boto3 reads only AWS_DEFAULT_REGION
        aws_access_key_id=settings.get("access_key_id"),
        aws_secret_access_key=settings.get("secret_access_key"),
        aws_session_token=settings.get("session_token"),
    )
    region = session.region_name or "us-east-1"
    verify = settings.get("verify")
    trust = {"true": True, "false": False}.get(verify, verify) if verify else None
    common: dict[str, Any] = {
        "connect_timeout": settings.get("connect_timeout", 5),
        "read_timeout": settings.get("read_timeout", 30),
        "retries": {"mode": "standard", "total_max_attempts": 1},
    }
    if settings.get("role_arn"):
        create = partial(session.client, region_name=region, verify=trust, config=Config(**common))
        session = _assume_role(session, create, settings)

    def make(checksum: Literal["when_supported", "when_required"]) -> S3Client:
        config = Config(
            max_pool_connections=settings.get("max_pool_connections", 64),
            tcp_keepalive=True,
            request_checksum_calculation=checksum,
            response_checksum_validation=checksum,
            s3={"addressing_style": addressing_style(settings)},
            user_agent=f"transcript-backends Boto3/{boto3.__version__}",
            parameter_validation=False,
            **common,
            **({"signature_version": UNSIGNED} if settings.get("anon") else {}),
        )
        made = session.client("s3", region_name=region, endpoint_url=settings.get("endpoint_url"), verify=trust, config=config)
        quicken(made)
        made.meta.events.register_first("before-parse.*.*", _tell_server_errors)
        return made

    checksum = settings.get("checksum", "auto")
    if checksum != "auto":
        return make(checksum)
    endpoint = settings.get("endpoint_url")
    client = make("when_supported" if endpoint is None or is_aws(endpoint) else "when_required")
    if endpoint is None and not is_aws(client.meta.endpoint_url):  # from AWS_ENDPOINT_URL or the profile
        client.close()
        client = make("when_required")
    return client


def _tell_server_errors(response_dict: Mapping[str, Any], customized_response_dict: dict[str, Any], **rest: object) -> None:
    """Keep what the status was: boto3 goes on to make a 500 of a success that is not XML."""
    if response_dict["status_code"] >= 500:
        customized_response_dict[SERVER_ERROR] = True


def _fast_session(profile: str | None) -> botocore.session.Session:
    session = botocore.session.Session(profile=profile)
    with contextlib.suppress(AttributeError, TypeError, ValueError):  # an undocumented name: without it, the SDK is slower
        session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=parse_time)
    return session


def parse_time(value: Any) -> datetime:
    """A time as the SDK's own parser reads it, which takes 50 us to try all forms that its services write."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            if value.endswith("Z"):
                return datetime.fromisoformat(f"{value[:-1]}+00:00")
        if value.endswith("GMT") and (time := http_time(value)):
            return time
    found: datetime = parse_timestamp(value)
    return found


def _assume_role(source: boto3.Session, create_client: partial[Any], settings: Mapping[str, Any]) -> boto3.Session:
    """A session with the credentials of a role, which botocore fetches with those of another and renews as they expire."""
    credentials = source.get_credentials()
    if credentials is None:
        raise sdk.NoCredentialsError
    optional = {"ExternalId": settings.get("external_id")}
    fetcher = AssumeRoleCredentialFetcher(
        create_client,
        credentials,
        settings["role_arn"],
        extra_args={
            "RoleSessionName": settings.get("role_session_name", _SESSION_NAME),
            **{name: value for name, value in optional.items() if value},
        },
    )
    session = botocore.session.Session(profile=settings.get("profile"))
    session.register_component("credential_provider", CredentialResolver([_RoleProvider(fetcher)]))
    return boto3.Session(botocore_session=session, region_name=source.region_name)


class _RoleProvider(CredentialProvider):
    METHOD = "assume-role"

    def __init__(self, fetcher: AssumeRoleCredentialFetcher) -> None:
        super().__init__()
        self._fetcher = fetcher

    def load(self) -> DeferredRefreshableCredentials:
        return DeferredRefreshableCredentials(self._fetcher.fetch_credentials, self.METHOD)
