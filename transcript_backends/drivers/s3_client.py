"""The boto3 client of a store: its endpoint, its credentials, and its ways with connections and checksums."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import boto3
import botocore.exceptions as sdk
import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.configprovider import ConfiguredEndpointProvider
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
from transcript_backends.urls import check_endpoint, refuse_plain_http

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_CHECKSUMS = ("request_checksum_calculation", "response_checksum_validation")
_SESSION_NAME = "transcript-backends"
SERVER_ERROR = "ServerError"  # beside the members of an answer: it came with a status of 500 or more


def see_endpoint(bucket: str, settings: Mapping[str, Any]) -> None:
    """Refuse an endpoint that names the bucket, or sends everything in the clear, wherever it was said."""
    endpoint = settings.get("endpoint_url") or _configured_endpoint(settings)
    if not endpoint:
        return
    name = _source(settings)
    first, _, rest = (urlsplit(check_endpoint(name, endpoint)).hostname or "").partition(f"{bucket}.")
    if not first and re.search(r"(^|\.)s3[.-]|^localhost$", rest):
        raise InvalidURLError(
            f"{name} names the bucket {bucket!r} in its host already; leave it out there, it is added where needed"
        )
    refuse_plain_http(endpoint, settings, name)


def _configured_endpoint(settings: Mapping[str, Any]) -> str | None:
    """The endpoint for S3 in the environment or a profile, before there is a client that tells it."""
    with contextlib.suppress(sdk.BotoCoreError, AttributeError, TypeError):  # the next request says why; or another SDK
        session = open_session(settings)
        if not session.get_config_variable("ignore_configured_endpoint_urls"):
            found = ConfiguredEndpointProvider(session.full_config, session.get_scoped_config(), "s3").provide()
            return None if found is None else str(found)
    return None


def around(settings: Mapping[str, Any]) -> dict[str, Any]:
    """How often to try, by ``AWS_MAX_ATTEMPTS`` or the profile, where they say it."""
    with contextlib.suppress(sdk.BotoCoreError, ValueError):  # the next request says why; or that is no number
        found = open_session(settings).get_config_variable("max_attempts")
        return {"max_attempts": int(found)} if found and int(found) > 0 else {}
    return {}


def _source(settings: Mapping[str, Any]) -> str:
    return "endpoint_url" if settings.get("endpoint_url") else "the endpoint in the environment or the AWS configuration"


def addressing_style(settings: Mapping[str, Any]) -> Any:
    """Where the bucket goes, in the path or in the host, by any of the tools' names for it; None where nothing is said."""
    said: set[str] = {settings["addressing_style"]} if "addressing_style" in settings else set()
    if "force_path_style" in settings:
        said.add("path" if settings["force_path_style"] else "auto")
    if "virtual_hosted_style_request" in settings:
        said.add("virtual" if settings["virtual_hosted_style_request"] else "path")
    if len(said) > 1:
        raise InvalidURLError(
            "addressing_style, force_path_style and virtual_hosted_style_request contradict one another; give one of them"
        )
    return said.pop() if said else None


def is_aws(endpoint: str) -> bool:
    """Whether an endpoint is AWS's own."""
    host = urlsplit(endpoint).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))


def make_client(settings: Mapping[str, Any]) -> S3Client:
    """A client set up on purpose; what is not set here is the SDK's own chain (environment, profile, role).

    The environment and the profile come before what is preferred here.

    - time-outs of 5 s to connect and 30 s between bytes, where the SDK waits 60 s;
    - one try: `transcript_backends.container` repeats requests, since it alone knows how to resolve a lost create;
    - a pool as large as the threads that may share it, with TCP keep-alive;
    - checksums: the SDK's defaults on AWS; elsewhere only where required, since many servers refuse the newer ones. The
      sha256 in each object's metadata is ours;
    - less work for the SDK, which would check each request once more, compose its user agent anew, and read each time at
      length (`parse_time`).
    """
    chain = open_session(settings)
    session = boto3.Session(
        botocore_session=chain,
        region_name=settings.get("region") or os.environ.get("AWS_REGION"),  # boto3 reads only AWS_DEFAULT_REGION
        aws_access_key_id=settings.get("access_key_id"),
        aws_secret_access_key=settings.get("secret_access_key"),
        aws_session_token=settings.get("session_token"),
    )
    region = session.region_name or "us-east-1"
    verify = settings.get("verify")
    trust = {"true": True, "false": False}.get(verify, verify) if verify else None
    mode = chain.get_config_variable("defaults_mode")
    common: dict[str, Any] = {
        "connect_timeout": settings.get("connect_timeout", 5 if mode == "legacy" else None),  # None: that of the mode
        "read_timeout": settings.get("read_timeout", 30),
        "retries": {"mode": "standard", "total_max_attempts": 1},
    }
    source: Any = session

    def ask_sts(service: str, **options: Any) -> Any:
        made: Any = source.client(service, region_name=region, verify=trust, config=Config(**common), **options)
        refuse_plain_http(made.meta.endpoint_url, settings, "the endpoint of STS")
        return made

    if settings.get("role_arn"):
        session = _assume_role(source, ask_sts, settings)
    app, style = chain.get_config_variable("user_agent_appid"), addressing_style(settings)
    checksum = settings.get("checksum", "auto")

    def make(preferred: Literal["when_supported", "when_required"]) -> S3Client:
        checksums = dict.fromkeys(_CHECKSUMS, preferred if checksum == "auto" else checksum)
        options: dict[str, Any] = {
            **common,
            **_unsaid(chain, tcp_keepalive=True),
            **(_unsaid(chain, **checksums) if checksum == "auto" else checksums),
            **({"s3": {"addressing_style": style}} if style else {}),
            **({"signature_version": UNSIGNED} if settings.get("anon") else {}),
        }
        config = Config(
            max_pool_connections=settings.get("max_pool_connections", 64),
            user_agent=f"transcript-backends Boto3/{boto3.__version__}{f' app/{app}' if app else ''}",
            parameter_validation=False,
            **options,
        )
        made = session.client("s3", region_name=region, endpoint_url=settings.get("endpoint_url"), verify=trust, config=config)
        refuse_plain_http(made.meta.endpoint_url, settings, _source(settings))
        quicken(made)
        made.meta.events.register_first("before-parse.*.*", _tell_server_errors)
        return made

    endpoint = settings.get("endpoint_url")
    client = make("when_supported" if endpoint is None or is_aws(endpoint) else "when_required")
    if checksum == "auto" and endpoint is None and not is_aws(client.meta.endpoint_url):  # from AWS_ENDPOINT_URL or the profile
        client.close()
        client = make("when_required")
    return client


def _unsaid(session: botocore.session.Session, **preferences: Any) -> dict[str, Any]:
    """Those of some preferences of which neither the environment nor the profile says anything."""
    in_profile = session.get_scoped_config()

    def is_said(name: str) -> bool:
        theirs, variable, *_ = session.session_var_map.get(name, (name, None))
        return theirs in in_profile or variable in os.environ

    return {name: value for name, value in preferences.items() if not is_said(name)}


def _tell_server_errors(response_dict: Mapping[str, Any], customized_response_dict: dict[str, Any], **rest: object) -> None:
    """Keep what the status was: boto3 goes on to make a 500 of a success that is not XML."""
    if response_dict["status_code"] >= 500:
        customized_response_dict[SERVER_ERROR] = True


def open_session(settings: Mapping[str, Any]) -> botocore.session.Session:
    """The SDK's chain of environment, profile and defaults, read now."""
    session = botocore.session.Session(profile=settings.get("profile"))
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


def _assume_role(source: boto3.Session, create_client: Callable[..., Any], settings: Mapping[str, Any]) -> boto3.Session:
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
