"""What the settings of an S3 store put into its requests, and what is said where they don't fit the bucket."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from faults.engines import sdk_and_auto  # noqa: F401
from faults.s3_server import S3Server, reply
from faults.scripted_server import BROKEN_HTML, Reply, Request, Serve, html
from faults.setups import KEY, REF, OpenS3

from transcript_backends import (
    AccessDeniedError,
    CompactionPolicy,
    InvalidURLError,
    ObjectTranscriptStore,
    TranscriptStoreError,
    UnexpectedResponseError,
    open_store,
)
from transcript_backends.drivers.driver import IfMatch
from transcript_backends.drivers.s3_client import make_client

LINE = b"{}\n"
ROLE = "arn:aws:iam::123456789012:role/transcripts"


def do_everything(store: ObjectTranscriptStore) -> None:
    for number in range(4):
        store.append_segment(REF, number, number, "w", LINE)
    store.append_segment(REF, 0, 0, "w", LINE)
    assert len(list(store.records(REF, start_seq=2))) == 2
    store.compact(REF, CompactionPolicy(full=True))
    assert store.verify(REF).ok
    assert list(store.list_refs()) == [REF]
    store.append_segment(REF, 9, 9, "w", LINE)
    store.delete(REF)


# --- encryption and storage class -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "headers"),
    [
        ({"sse": "AES256"}, {"x-amz-server-side-encryption": "AES256"}),
        (
            {"sse": "aws:kms", "sse_kms_key_id": "alias/logs", "bucket_key": True},
            {
                "x-amz-server-side-encryption": "aws:kms",
                "x-amz-server-side-encryption-aws-kms-key-id": "alias/logs",
                "x-amz-server-side-encryption-bucket-key-enabled": "true",
            },
        ),
        ({"sse": "aws:kms:dsse"}, {"x-amz-server-side-encryption": "aws:kms:dsse"}),
        ({"storage_class": "INTELLIGENT_TIERING"}, {"x-amz-storage-class": "INTELLIGENT_TIERING"}),
        ({}, {}),
    ],
    ids=["AES256", "KMS", "KMS twice", "class", "none"],
)
def test_every_put_carries_the_encryption_and_the_storage_class_and_nothing_else_does(
    open_s3: OpenS3, server: S3Server, options: dict[str, Any], headers: dict[str, str]
) -> None:
    do_everything(open_s3(**options))
    do_everything(open_s3(**options, conditional_writes="off"))  # these puts are plain overwrites
    driver = open_s3(**options)._container.driver
    version = driver.put("x", b"1", mode="overwrite", metadata={})
    driver.put("x", b"2", mode=IfMatch(version), metadata={})
    conditions = {(each.headers.get("if-none-match"), each.headers.get("if-match")) for each in server.requests("PUT")}
    assert conditions == {("*", None), (None, None), (None, version)}
    for each in server.log:
        sent = {
            name: value
            for name, value in each.headers.items()
            if name.startswith(("x-amz-server-side-encryption", "x-amz-storage-class"))
        }
        assert sent == (headers if each.kind == "PUT" else {}), each.kind


def test_settings_come_from_the_url_too(server: S3Server) -> None:
    url = f"s3://bucket/p?endpoint_url={server.url}&sse=aws:kms&sse_kms_key_id=arn:aws:kms:eu-test-1:1:key/k&bucket_key=no"
    with open_store(url, access_key_id="A", secret_access_key="S") as store:
        store.append_segment(REF, 0, 0, "w", LINE)
    for each in server.requests("PUT"):
        assert each.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "arn:aws:kms:eu-test-1:1:key/k"
        assert each.headers["x-amz-server-side-encryption-bucket-key-enabled"] == "false"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("sse=aws:fsx", "sse .* must be one of AES256, aws:kms, aws:kms:dsse"),
        ("sse_kms_key_id=k", "sse_kms_key_id has no effect without sse"),
        ("bucket_key=true", "bucket_key has no effect without sse"),
        ("external_id=x", "external_id has no effect without role_arn"),
        ("role_session_name=x", "role_session_name has no effect without role_arn"),
        ("anon=true&role_arn=x", "anon signs no request, and role_arn says as whom"),
        ("anon=true&profile=x", "anon signs no request, and profile says as whom"),
        ("storage_class=DEEP_ARCHIVE", "DEEP_ARCHIVE is an archive"),
        ("storage_class=GLACIER", "GLACIER is an archive"),
        ("addressing_style=virtual&force_path_style=true", "contradict one another"),
        ("force_path_style=true&virtual_hosted_style_request=true", "contradict one another"),
    ],
)
def test_settings_that_could_not_work_are_refused_before_any_request(query: str, message: str) -> None:
    with pytest.raises(InvalidURLError, match=message):
        open_store(f"s3://bucket/p?{query}")


def test_versions_can_not_be_purged_of_a_directory_bucket_which_has_none() -> None:
    with pytest.raises(InvalidURLError, match="keeps no versions"):
        open_store("s3://data--use1-az4--x-s3/p?purge_versions=true")


def test_an_object_moved_to_an_archive_is_named_as_such(store: ObjectTranscriptStore, server: S3Server) -> None:
    store.append_segment(REF, 0, 0, "w", LINE)
    server.always("GET", reply(403, "InvalidObjectState"))
    with pytest.raises(TranscriptStoreError, match=r"InvalidObjectState, .*it is in an archive; restore it"):
        store.read_segment(KEY)


def test_a_denied_put_with_a_key_of_ones_own_tells_what_the_key_must_allow(open_s3: OpenS3, server: S3Server) -> None:
    server.always("PUT", reply(403, "AccessDenied"))
    with pytest.raises(AccessDeniedError, match=r"kms:GenerateDataKey and kms:Decrypt"):
        open_s3(sse="aws:kms").append_segment(REF, 0, 0, "w", LINE)


# --- whose bucket, and who pays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("purge", [False, True])
@pytest.mark.parametrize("batches", [True, False])
def test_every_request_names_the_owner_and_the_payer(open_s3: OpenS3, server: S3Server, purge: bool, batches: bool) -> None:
    if not batches:
        server.always("DELETE_MANY", reply(501, "NotImplemented"))
    do_everything(open_s3(expected_bucket_owner="123456789012", requester_pays=True, purge_versions=purge))
    kinds = {"PUT", "GET", "HEAD", "LIST", "DELETE_MANY", *(["VERSIONS"] if purge else []), *([] if batches else ["DELETE"])}
    assert set(server.kinds()) == kinds
    for each in server.log:
        assert each.headers.get("x-amz-expected-bucket-owner") == "123456789012", each.kind
        assert each.headers.get("x-amz-request-payer") == "requester", each.kind


def test_neither_owner_nor_payer_is_named_unasked(open_s3: OpenS3, server: S3Server) -> None:
    do_everything(open_s3())
    sent = {name for each in server.log for name in each.headers}
    assert sent.isdisjoint({"x-amz-expected-bucket-owner", "x-amz-request-payer"})


def unless(header: str, value: str) -> Callable[[Request, Serve], Reply]:
    """Deny each request without this header, as S3 does."""
    denied = reply(403, "AccessDenied")
    return lambda request, serve: serve() if request.headers.get(header) == value else denied(request, serve)  # type: ignore[return-value]


def test_a_bucket_whose_requester_pays_is_suggested_and_then_served_by_the_setting(open_s3: OpenS3, server: S3Server) -> None:
    for kind in ("PUT", "GET", "HEAD", "LIST", "DELETE_MANY"):
        server.always(kind, unless("x-amz-request-payer", "requester"))
    for call in (
        lambda store: store.append_segment(REF, 0, 0, "w", LINE),
        lambda store: store.list_segments(REF),
        lambda store: store.read_segment(KEY),
    ):
        with pytest.raises(AccessDeniedError, match="set requester_pays"):
            call(open_s3())
    do_everything(open_s3(requester_pays=True))


def test_a_bucket_of_another_account_is_an_access_error_that_names_the_setting(open_s3: OpenS3, server: S3Server) -> None:
    server.always("LIST", unless("x-amz-expected-bucket-owner", "123456789012"))
    with pytest.raises(AccessDeniedError, match="not of expected_bucket_owner"):
        open_s3(expected_bucket_owner="999999999999").list_segments(REF)
    assert open_s3(expected_bucket_owner="123456789012").list_segments(REF) == []


# --- roles ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sts(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server gives roles as well."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
    return server


def signers(server: S3Server, kind: str) -> list[str]:
    return [each.headers["authorization"].partition("Credential=")[2].partition("/")[0] for each in server.requests(kind)]


def test_requests_are_signed_with_the_credentials_of_the_role(open_s3: OpenS3, sts: S3Server) -> None:
    store = open_s3(role_arn=ROLE, external_id="tenant 7", role_session_name="writer-1")
    do_everything(store)
    (asked,) = sts.requests("ASSUME_ROLE")
    sent = {name: values[0] for name, values in parse_qs(asked.body.decode()).items()}
    assert {name: sent[name] for name in ("Action", "RoleArn", "ExternalId", "RoleSessionName")} == {
        "Action": "AssumeRole", "RoleArn": ROLE, "ExternalId": "tenant 7", "RoleSessionName": "writer-1",
    }  # fmt: skip
    assert signers(sts, "ASSUME_ROLE") == ["AKIATEST"]
    assert set(signers(sts, "PUT") + signers(sts, "LIST")) == {"ASIATEST1"}
    assert {each.headers["x-amz-security-token"] for each in sts.requests("PUT")} == {"roletoken1"}


def test_a_session_without_a_name_is_named_for_this_package_and_without_an_external_id(open_s3: OpenS3, sts: S3Server) -> None:
    open_s3(role_arn=ROLE).list_segments(REF)
    sent = parse_qs(sts.requests("ASSUME_ROLE")[0].body.decode())
    assert sent["RoleSessionName"] == ["transcript-backends"]
    assert "ExternalId" not in sent


@pytest.mark.parametrize("engine", ["sdk"])  # obstore asks no more than ten times a second
def test_the_role_is_assumed_anew_before_its_credentials_expire(open_s3: OpenS3, sts: S3Server) -> None:
    sts.dialect.credentials_live = timedelta(minutes=5)  # less than botocore keeps in hand
    store = open_s3(role_arn=ROLE)
    store.append_segment(REF, 0, 0, "w", LINE)
    sts.log.clear()
    store.append_segment(REF, 1, 1, "w", LINE)
    sts.dialect.credentials_live = timedelta(hours=1)
    for number in range(2, 5):
        store.append_segment(REF, number, number, "w", LINE)
    assert sts.kinds() == ["ASSUME_ROLE", "PUT", "ASSUME_ROLE", "PUT", "PUT", "PUT"]
    first, second, *others = signers(sts, "PUT")
    assert first != second
    assert set(others) == {second}


def test_credentials_of_a_role_that_are_refused_as_expired_are_fetched_anew_once(open_s3: OpenS3, sts: S3Server) -> None:
    store = open_s3(role_arn=ROLE)
    store.append_segment(REF, 0, 0, "w", LINE)
    sts.log.clear()
    sts.next("PUT", reply(400, "ExpiredToken"))
    store.append_segment(REF, 1, 1, "w", LINE)
    assert sts.kinds() == ["PUT", "ASSUME_ROLE", "PUT"]
    assert signers(sts, "PUT") == ["ASIATEST1", "ASIATEST2"]


def sts_error(status: int, code: str) -> Callable[[Request, Serve], Reply]:
    body = f"<ErrorResponse><Error><Code>{code}</Code><Message>scripted</Message></Error></ErrorResponse>".encode()
    return lambda request, serve: Reply(status, body, {"Content-Type": "text/xml"})


def test_a_role_that_may_not_be_assumed_is_an_access_error_that_says_so(open_s3: OpenS3, sts: S3Server) -> None:
    sts.always("ASSUME_ROLE", sts_error(403, "AccessDenied"))
    for call in (lambda store: store.append_segment(REF, 0, 0, "w", LINE), lambda store: store.list_segments(REF)):
        with pytest.raises(AccessDeniedError, match="these credentials may not assume the role"):
            call(open_s3(role_arn=ROLE))
    assert set(sts.kinds()) == {"ASSUME_ROLE"}
    assert sts.objects == {}


def test_a_throttled_role_is_tried_again(open_s3: OpenS3, sts: S3Server) -> None:
    sts.next("ASSUME_ROLE", *[sts_error(400, "Throttling")] * 4)
    open_s3(role_arn=ROLE).append_segment(REF, 0, 0, "w", LINE)
    assert KEY in sts.objects


def test_a_page_in_place_of_credentials_is_no_answer(open_s3: OpenS3, sts: S3Server) -> None:
    sts.always("ASSUME_ROLE", html(body=BROKEN_HTML))
    with pytest.raises(UnexpectedResponseError, match="endpoint"):
        open_s3(role_arn=ROLE).list_segments(REF)


def test_nobody_to_assume_a_role_as_is_an_access_error_without_a_request(open_s3: OpenS3, sts: S3Server) -> None:
    store = open_s3(role_arn=ROLE, access_key_id=None, secret_access_key=None)
    with pytest.raises(AccessDeniedError, match="no usable AWS credentials"):
        store.list_segments(REF)
    assert sts.kinds() == []


def test_a_role_is_assumed_with_the_credentials_of_a_profile(
    open_s3: OpenS3, sts: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    file.write_text("[writer]\naws_access_key_id = AKIAPROFILE\naws_secret_access_key = x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    open_s3(role_arn=ROLE, profile="writer", access_key_id=None, secret_access_key=None).list_segments(REF)
    assert signers(sts, "ASSUME_ROLE") == ["AKIAPROFILE"]
    assert set(signers(sts, "LIST")) == {"ASIATEST1"}


def test_anonymous_requests_are_not_signed(open_s3: OpenS3, server: S3Server) -> None:
    do_everything(open_s3(anon=True, access_key_id=None, secret_access_key=None))
    assert not any("authorization" in each.headers for each in server.log)


# --- where the bucket goes, and whom to trust -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "https://bucket.s3.amazonaws.com/k"),
        ({"addressing_style": "path"}, "https://s3.amazonaws.com/bucket/k"),
        ({"force_path_style": True}, "https://s3.amazonaws.com/bucket/k"),
        ({"force_path_style": False}, "https://bucket.s3.amazonaws.com/k"),
        ({"virtual_hosted_style_request": True}, "https://bucket.s3.amazonaws.com/k"),
        ({"virtual_hosted_style_request": False}, "https://s3.amazonaws.com/bucket/k"),
        ({"endpoint_url": "https://minio.example"}, "https://minio.example/bucket/k"),
        ({"endpoint_url": "https://minio.example", "addressing_style": "virtual"}, "https://bucket.minio.example/k"),
        ({"endpoint_url": "https://minio.example", "virtual_hosted_style_request": True}, "https://bucket.minio.example/k"),
        ({"endpoint_url": "https://minio.example", "force_path_style": True}, "https://minio.example/bucket/k"),
    ],
    ids=str,
)
def test_the_bucket_goes_where_the_addressing_style_says_by_any_of_its_names(settings: dict[str, Any], url: str) -> None:
    client = make_client({"region": "us-east-1", "access_key_id": "A", "secret_access_key": "S", **settings})
    with contextlib.closing(client):
        assert client.generate_presigned_url("get_object", {"Bucket": "bucket", "Key": "k"}).partition("?")[0] == url


@pytest.mark.parametrize("region", ["eu-other-1", None])
def test_a_bucket_in_another_region_is_followed_where_the_answer_names_it(
    store: ObjectTranscriptStore, server: S3Server, region: str | None
) -> None:
    def redirect(request: Request, serve: Serve) -> Reply:
        if region and f"/{region}/" in request.headers["authorization"]:
            return serve()
        answer = server.dialect.error(301, "PermanentRedirect")
        if region:
            answer.headers["x-amz-bucket-region"] = region
        return answer

    server.always("PUT", redirect)
    if region is None:
        with pytest.raises(TranscriptStoreError, match="the bucket is in another region"):
            store.append_segment(REF, 0, 0, "w", LINE)
        return
    for seq in range(3):
        store.append_segment(REF, seq, seq, "w", LINE)
    regions = [each.headers["authorization"].split("/")[2] for each in server.requests("PUT")]
    assert regions[-3:] == ["eu-other-1"] * 3
    assert len(regions) <= 5
    assert KEY in server.objects


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that vouches for itself, and its key, in one file."""
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.now(timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "authority.pem"
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)
    return file


@pytest.fixture
def https(server: S3Server, authority: Path) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority)
    server._http.socket = context.wrap_socket(server._http.socket, server_side=True)
    return server.url.replace("http://", "https://")


def test_a_server_nobody_vouches_for_is_an_error_that_names_the_setting(open_s3: OpenS3, https: str) -> None:
    with pytest.raises(TranscriptStoreError, match=r"certificate not trusted.* see the setting verify"):
        open_s3(endpoint_url=https).list_segments(REF)


def test_the_bundle_of_the_environment_is_trusted_and_the_setting_wins_over_it(
    open_s3: OpenS3, https: str, authority: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority))
    do_everything(open_s3(endpoint_url=https))
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "nothing.pem"))
    do_everything(open_s3(endpoint_url=https, verify=str(authority)))
    monkeypatch.delenv("AWS_CA_BUNDLE")
    do_everything(open_s3(endpoint_url=https, ca_bundle=str(authority)))


@pytest.mark.parametrize("place", ["profile", "REQUESTS_CA_BUNDLE"])
def test_the_bundle_of_the_sdk_s_other_places_is_trusted_too(
    open_s3: OpenS3, https: str, authority: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    if place == "profile":
        (tmp_path / "config").write_text(f"[default]\nca_bundle = {authority}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    else:
        monkeypatch.setenv(place, str(authority))
    store = open_s3(endpoint_url=https)
    store.append_segment(REF, 0, 0, "w", LINE)
    assert store.list_segments(REF)


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_trust_can_be_given_up(open_s3: OpenS3, https: str) -> None:
    do_everything(open_s3(endpoint_url=https, verify="false"))
