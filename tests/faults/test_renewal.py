"""Credentials that are refused, or can't be had: looked up anew once, used where they are others, and else reported."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from hashlib import sha1
from pathlib import Path
from typing import Any

import botocore.exceptions as botocore
import pytest
from botocore.credentials import SSOProvider
from botocore.tokens import SSOTokenProvider
from faults.engines import sdk_and_auto  # noqa: F401
from faults.s3_server import S3Server, reply
from faults.scripted_server import Fault, Reply, Request, Serve
from faults.setups import KEY, REF, OpenS3

from transcript_backends import AccessDeniedError, ObjectTranscriptStore
from transcript_backends.cli.app import program
from transcript_backends.drivers.driver import Meaning
from transcript_backends.drivers.s3 import S3ObjectStore

LINE = b"{}\n"
KINDS = ("PUT", "GET", "HEAD", "LIST", "DELETE_MANY")
REFUSALS = [
    (403, "InvalidAccessKeyId"),
    (400, "InvalidToken"),
    (403, "SignatureDoesNotMatch"),
    (400, "ExpiredToken"),
    (403, "InvalidSecurity"),
    (401, "Unauthorized"),
]


def append(store: ObjectTranscriptStore, number: int = 0) -> str:
    return store.append_segment(REF, number, number, "w", LINE)


def read(store: ObjectTranscriptStore) -> None:
    with store.read_segment(KEY) as stream:
        assert stream.read() == LINE


OPERATIONS: dict[str, Callable[[ObjectTranscriptStore], object]] = {
    "append": lambda store: append(store, 5),
    "append again": append,
    "list": lambda store: store.list_segments(REF),
    "read": read,
    "look": lambda store: store._container.look(KEY),
    "delete": lambda store: store.delete(REF),
}


def signed_by(request: Request) -> str:
    return request.headers["authorization"].partition("Credential=")[2].partition("/")[0]


def unless_signed_by(name: str, refusal: Fault) -> Fault:
    def fault(request: Request, serve: Serve) -> Reply | None:
        return serve() if signed_by(request).startswith(name) else refusal(request, serve)

    return fault


@pytest.fixture
def log_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Writes a key into the default profile."""
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    def log_in(name: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {name}\naws_secret_access_key = x\naws_session_token = y\n")

    log_in("OLDKEY")
    return log_in


@pytest.fixture
def of_profile(open_s3: OpenS3, log_in: object, server: S3Server) -> ObjectTranscriptStore:
    """A store that has appended with the key of the profile; the log is empty."""
    store = open_s3(access_key_id=None, secret_access_key=None)
    append(store)
    server.log.clear()
    return store


# --- refused ----------------------------------------------------------------------------------------------------------


REPLACED = [("append", status, code) for status, code in REFUSALS] + [(name, *REFUSALS[0]) for name in OPERATIONS][1:]


@pytest.mark.parametrize(("name", "status", "code"), REPLACED)
def test_a_key_that_is_refused_is_replaced_by_the_one_that_the_profile_has_now(
    of_profile: ObjectTranscriptStore,
    server: S3Server,
    log_in: Callable[[str], None],
    name: str,
    status: int,
    code: str,
) -> None:
    for kind in KINDS:
        server.always(kind, unless_signed_by("NEWKEY", reply(status, code)))
    log_in("NEWKEY")
    OPERATIONS[name](of_profile)
    by_old = [each.kind for each in server.log if signed_by(each) == "OLDKEY" and each.kind != "HEAD_BUCKET"]
    assert len(by_old) == 1
    server.log.clear()
    read(of_profile) if KEY in server.objects else append(of_profile)
    assert {signed_by(each) for each in server.log} == {"NEWKEY"}


@pytest.mark.parametrize(("status", "code"), REFUSALS)
def test_a_denial_that_stays_is_one_request_each_and_the_next_key_is_used_at_once(
    of_profile: ObjectTranscriptStore, server: S3Server, log_in: Callable[[str], None], status: int, code: str
) -> None:
    for kind in KINDS:
        server.always(kind, unless_signed_by("NEWKEY", reply(status, code)))
    requests = []
    for number in range(1, 5):
        before = len(server.log)
        with pytest.raises(AccessDeniedError):
            append(of_profile, number)
        requests.append(len(server.log) - before)
    assert requests == [2 if code == "ExpiredToken" else 1, 1, 1, 1]
    log_in("NEWKEY")
    server.log.clear()
    append(of_profile, 5)
    assert [signed_by(each) for each in server.log] == ["NEWKEY"]


def test_a_permission_that_is_missing_is_not_a_matter_of_other_credentials(
    of_profile: ObjectTranscriptStore, server: S3Server, log_in: Callable[[str], None]
) -> None:
    server.always("PUT", reply(403, "AccessDenied"))
    log_in("NEWKEY")
    for number in range(2):
        with pytest.raises(AccessDeniedError):
            append(of_profile, number)
    assert [signed_by(each) for each in server.log] == ["OLDKEY"] * 2


ROLE = "arn:aws:iam::123456789012:role/transcripts"


@pytest.fixture
def of_role(open_s3: OpenS3, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> ObjectTranscriptStore:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
    store = open_s3(role_arn=ROLE)
    append(store)
    server.log.clear()
    return store


@pytest.mark.parametrize(("status", "code"), REFUSALS)
def test_a_role_whose_credentials_are_refused_is_assumed_anew(
    of_role: ObjectTranscriptStore, server: S3Server, status: int, code: str
) -> None:
    server.always("PUT", unless_signed_by("ASIATEST2", reply(status, code)))
    append(of_role, 1)
    assert server.kinds() == ["PUT", "ASSUME_ROLE", "PUT"]


def test_a_role_whose_credentials_stay_refused_doubles_no_request(of_role: ObjectTranscriptStore, server: S3Server) -> None:
    server.always("PUT", reply(403, "InvalidAccessKeyId"))
    for number in range(1, 5):
        with pytest.raises(AccessDeniedError, match="InvalidAccessKeyId"):
            append(of_role, number)
    assert len(server.requests("PUT")) == 2 + 3
    server.always("PUT", None)
    append(of_role, 5)


def test_a_key_that_sts_refuses_is_replaced_too(
    open_s3: OpenS3, server: S3Server, log_in: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
    server.always("ASSUME_ROLE", unless_signed_by("NEWKEY", sts_refusal(403, "InvalidClientTokenId")))
    store = open_s3(access_key_id=None, secret_access_key=None, role_arn=ROLE)
    with pytest.raises(AccessDeniedError, match="InvalidClientTokenId"):
        append(store)
    log_in("NEWKEY")
    append(store)
    assert KEY in server.objects


def sts_refusal(status: int, code: str) -> Fault:
    body = f"<ErrorResponse><Error><Code>{code}</Code><Message>scripted</Message></Error></ErrorResponse>".encode()
    return lambda request, serve: Reply(status, body, {"Content-Type": "text/xml"})


# --- not to be had ----------------------------------------------------------------------------------------------------


class SSO:
    """A log-in by the AWS command line, as far as its files go; the portal is the server."""

    def __init__(self, home: Path, config: str) -> None:
        self._cache = home / ".aws/sso/cache"
        self._cache.mkdir(parents=True)
        (home / ".aws/config").write_text(config)

    def log_in(self, *, ago: timedelta = timedelta(0)) -> None:
        until = datetime.now(timezone.utc) + timedelta(hours=1) - ago
        token = {"accessToken": "t", "expiresAt": f"{until:%Y-%m-%dT%H:%M:%SZ}"}
        for name in ("corp", "https://corp.example/start"):
            (self._cache / f"{sha1(name.encode()).hexdigest()}.json").write_text(json.dumps(token))


SSO_CONFIGS = {
    "session": "[default]\nsso_session = corp\nsso_account_id = 1\nsso_role_name = r\n"
    "[sso-session corp]\nsso_region = eu-test-1\nsso_start_url = https://corp.example/start\n",
    "legacy": "[default]\nsso_account_id = 1\nsso_role_name = r\n"
    "sso_region = eu-test-1\nsso_start_url = https://corp.example/start\n",
}


@pytest.fixture(params=SSO_CONFIGS)
def sso(request: pytest.FixtureRequest, tmp_path: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> SSO:
    for kind in (SSOProvider, SSOTokenProvider):
        monkeypatch.setattr(kind, "_SSO_TOKEN_CACHE_DIR", str(tmp_path / ".aws/sso/cache"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / ".aws/config"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_SSO", server.url)
    sso = SSO(tmp_path, SSO_CONFIGS[request.param])

    def portal(request: Request, serve: Serve) -> Reply:
        if not request.path.startswith("/federation"):
            return serve()
        until = datetime.now(timezone.utc) + timedelta(minutes=5)  # so that each request needs the log-in
        given = {"accessKeyId": "A", "secretAccessKey": "S", "sessionToken": "T", "expiration": until.timestamp() * 1000}
        return Reply(200, json.dumps({"roleCredentials": given}).encode(), {"Content-Type": "application/json"})

    server.always("GET", portal)
    return sso


@pytest.mark.parametrize("was_logged_in", [True, False])
def test_a_log_in_that_is_over_is_an_access_error_and_works_again_after_the_next_one(
    open_s3: OpenS3, server: S3Server, sso: SSO, was_logged_in: bool
) -> None:
    store = open_s3(access_key_id=None, secret_access_key=None)
    if was_logged_in:
        sso.log_in()
        append(store)
        store._container.driver.renew()  # as though its credentials were over
        server.log.clear()
    sso.log_in(ago=timedelta(hours=3))
    for call in (append, lambda store: store.list_segments(REF)):
        with pytest.raises(AccessDeniedError, match=r"no usable AWS credentials.*log in again"):
            call(store)
    assert not [each for each in server.log if not each.path.startswith("/federation")]
    sso.log_in()
    append(store)
    assert store.list_segments(REF)


@pytest.mark.parametrize("engine", ["sdk"])
def test_the_command_line_ends_as_for_any_denial(
    server: S3Server, sso: SSO, engine: str, capfd: pytest.CaptureFixture[str]
) -> None:
    sso.log_in(ago=timedelta(hours=3))
    with pytest.raises(SystemExit) as ended:
        program.main(["--store", f"s3://bucket/p?endpoint_url={server.url}&engine={engine}", "ls"])
    assert ended.value.code == 5
    shown = capfd.readouterr().err
    assert shown.count("\n") == 1
    assert "log in again" in shown


BROKEN = {
    "no such program": "credential_process = /nowhere/program",
    "a program that fails": f"credential_process = {sys.executable} -c 'raise SystemExit(3)'",
    "a program that prints no JSON": f"credential_process = {sys.executable} -c 'print(1, 2)'",
    "a program that prints another thing": f"credential_process = {sys.executable} -c 'print([])'",
    "no such token": "role_arn = r\nweb_identity_token_file = /nowhere/token",
    "half a key": "aws_access_key_id = A",
    "no such source": "role_arn = r\nsource_profile = nobody",
    "a loop": "role_arn = r\nsource_profile = other\n[profile other]\nrole_arn = r\nsource_profile = default",
    "no such kind of source": "role_arn = r\ncredential_source = Nothing",
    "a log-in without a session": "sso_session = nobody\nsso_account_id = 1\nsso_role_name = r",
    "no configuration": "][",
}


@pytest.mark.parametrize("engine", ["sdk"])
@pytest.mark.parametrize("settings", BROKEN.values(), ids=BROKEN)
def test_credentials_that_can_not_be_had_for_any_reason_are_an_access_error_until_they_can(
    open_s3: OpenS3, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    file = tmp_path / "config"
    file.write_text(f"[default]\n{settings}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
    store = open_s3(access_key_id=None, secret_access_key=None)
    with pytest.raises(AccessDeniedError, match="log in again"):
        append(store)
    assert server.kinds() == []
    file.write_text("[default]\naws_access_key_id = A\naws_secret_access_key = S\n")
    append(store)


FAMILIES: list[Exception] = [
    botocore.NoCredentialsError(),
    botocore.TokenRetrievalError(provider="sso", error_msg="Token has expired and refresh failed"),
    botocore.UnauthorizedSSOTokenError(),
    botocore.SSOTokenLoadError(error_msg="none"),
    botocore.NoAuthTokenError(),
    botocore.CredentialRetrievalError(provider="custom-process", error_msg="failed"),
    botocore.MetadataRetrievalError(error_msg="none"),
    botocore.RefreshWithMFAUnsupportedError(),
    botocore.LoginRefreshRequired(),
]


@pytest.mark.parametrize("error", FAMILIES, ids=lambda error: type(error).__name__)
def test_the_families_of_the_sdk_s_exceptions_about_credentials_are_known(error: Exception) -> None:
    driver: Any = S3ObjectStore.__new__(S3ObjectStore)
    failure = driver.classify(error)
    assert failure is not None
    assert failure.meaning is Meaning.UNAUTHENTICATED
    assert type(error).__name__ in failure.detail


def test_a_portal_that_can_not_be_reached_is_an_outage(
    open_s3: OpenS3, server: S3Server, monkeypatch: pytest.MonkeyPatch, log_in: Callable[[str], None]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
    server.next("ASSUME_ROLE", *[lambda request, serve: None] * 2, sts_refusal(503, "ServiceUnavailable"))  # type: ignore[list-item]
    append(open_s3(role_arn=ROLE))
    assert KEY in server.objects
