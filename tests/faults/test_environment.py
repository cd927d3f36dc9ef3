"""The environment and the files of the clouds' own tools count as they do for those tools, unless the URL says otherwise.

What is looked at before secrets or transcripts are sent anywhere is where they are really sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from faults.engines import sdk_and_auto  # noqa: F401
from faults.gcs_server import GCSServer
from faults.s3_server import S3Server, reply
from faults.setups import REF, FakeClock, OpenS3

from transcript_backends import InvalidURLError, StoreUnavailableError, open_store
from transcript_backends.drivers.s3_client import make_client

LINE = b"{}\n"
KEYS = {"access_key_id": "A", "secret_access_key": "S"}
BEYOND = "http://minio.example:9000"

Say = Callable[[str], None]


@pytest.fixture
def in_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    """Writes the AWS configuration file."""
    file = tmp_path / "config"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    file.write_text("")

    def in_config(text: str) -> None:
        file.write_text(text)

    return in_config


# --- S3: settings -----------------------------------------------------------------------------------------------------

ADDRESSING = {
    "": "path", "auto": "path", "path": "path", "virtual": "virtual",
}  # fmt: skip


def url_of(**settings: Any) -> str:
    with contextlib.closing(make_client({"region": "us-east-1", **KEYS, **settings})) as client:
        return str(client.generate_presigned_url("get_object", {"Bucket": "bucket", "Key": "k"}).partition("?")[0])


@pytest.mark.parametrize("said", ADDRESSING)
@pytest.mark.parametrize("endpoint", ["", "https://minio.example"])
def test_the_addressing_style_of_the_profile_counts_and_the_url_s_before_it(in_config: Say, said: str, endpoint: str) -> None:
    in_config(f"[default]\ns3 =\n  addressing_style = {said}\n" if said else "[default]\n")
    settings = {"endpoint_url": endpoint} if endpoint else {}
    host = endpoint.removeprefix("https://") or "s3.amazonaws.com"
    path, virtual = f"https://{host}/bucket/k", f"https://bucket.{host}/k"
    is_virtual = said == "virtual" or (not endpoint and said != "path")
    assert url_of(**settings) == (virtual if is_virtual else path)
    for style, url in (("path", path), ("virtual", virtual)):
        assert url_of(addressing_style=style, **settings) == url


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ("use_dualstack_endpoint = true", "https://bucket.s3.dualstack.us-east-1.amazonaws.com/k"),
        ("use_fips_endpoint = true", "https://bucket.s3-fips.us-east-1.amazonaws.com/k"),
        ("s3 =\n  use_accelerate_endpoint = true", "https://bucket.s3-accelerate.amazonaws.com/k"),
        ("s3 =\n  us_east_1_regional_endpoint = regional", "https://bucket.s3.us-east-1.amazonaws.com/k"),
    ],
)
def test_other_settings_of_the_profile_count_too(in_config: Say, said: str, url: str) -> None:
    in_config(f"[default]\n{said}\n")
    assert url_of() == url


def has_checksum(server: S3Server) -> set[bool]:
    return {any(name.startswith("x-amz-checksum-") for name in each.headers) for each in server.requests("PUT")}


@pytest.mark.parametrize("place", ["environment", "profile"])
@pytest.mark.parametrize("said", ["when_supported", "when_required", "WHEN_SUPPORTED"])
def test_the_checksums_of_the_environment_and_of_the_profile_count_and_the_url_s_before_them(
    open_s3: OpenS3, server: S3Server, in_config: Say, monkeypatch: pytest.MonkeyPatch, place: str, said: str
) -> None:
    if place == "environment":
        monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", said)
    else:
        in_config(f"[default]\nrequest_checksum_calculation = {said}\n")
    open_s3().append_segment(REF, 0, 0, "w", LINE)
    assert has_checksum(server) == {said.lower() == "when_supported"}
    for choice in ("when_supported", "when_required"):
        server.objects.clear()
        server.log.clear()
        open_s3(checksum=choice).append_segment(REF, 0, 0, "w", LINE)
        assert has_checksum(server) == {choice == "when_supported"}


@pytest.mark.parametrize("said", ["", "when_required", "when_supported"])
def test_the_endpoint_of_the_environment_decides_on_checksums_only_where_nothing_is_said_of_them(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
    for name in ("REQUEST_CHECKSUM_CALCULATION", "RESPONSE_CHECKSUM_VALIDATION"):
        monkeypatch.setenv(f"AWS_{name}", said) if said else None
    with contextlib.closing(make_client(KEYS)) as client:
        config: Any = client.meta.config
        found = {config.request_checksum_calculation, config.response_checksum_validation}
        assert found == {said or "when_required"}


def test_the_region_is_that_of_the_environment_before_that_of_the_profile(
    in_config: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    def region(**settings: str) -> str:
        with contextlib.closing(make_client({**KEYS, **settings})) as client:
            return str(client.meta.region_name)

    assert region() == "us-east-1"
    in_config("[default]\nregion = eu-profile-1\n[profile other]\nregion = eu-other-1\n")
    assert region() == "eu-profile-1"
    assert region(profile="other") == "eu-other-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-default-1")
    assert region() == "eu-default-1"
    monkeypatch.setenv("AWS_REGION", "eu-env-1")
    assert region() == "eu-env-1"
    assert region(region="eu-url-1") == "eu-url-1"


@pytest.mark.parametrize("place", ["environment", "profile"])
def test_as_many_attempts_are_made_as_the_environment_or_the_profile_says_and_the_url_before_them(
    open_s3: OpenS3, server: S3Server, in_config: Say, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    if place == "environment":
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
    else:
        in_config("[default]\nmax_attempts = 3\n")
    server.always("LIST", reply(503, "SlowDown"))
    for options, attempts in (({}, 3), ({"max_attempts": 2}, 2)):
        server.log.clear()
        with pytest.raises(StoreUnavailableError):
            open_s3(**options).list_segments(REF)
        assert len(server.requests("LIST")) == attempts


def test_attempts_that_are_no_number_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "many")
    with open_store("s3://bucket/p", **KEYS) as store:
        assert store._container.retry.max_attempts == 10


def test_the_mode_of_defaults_has_its_time_out_and_the_url_s_comes_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def timeout(**settings: Any) -> float:
        with contextlib.closing(make_client({**KEYS, **settings})) as client:
            config: Any = client.meta.config
            return float(config.connect_timeout)

    assert timeout() == 5
    monkeypatch.setenv("AWS_DEFAULTS_MODE", "standard")
    assert timeout() == 3.1
    assert timeout(connect_timeout=7.0) == 7


@pytest.mark.parametrize("engine", ["sdk"])
def test_an_application_that_names_itself_is_named_to_the_service(
    open_s3: OpenS3, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SDK_UA_APP_ID", "billing")
    open_s3().list_segments(REF)
    assert server.log[0].headers["user-agent"].startswith(f"transcript-backends Boto3/{boto3.__version__} app/billing")


# --- S3: where it is sent ---------------------------------------------------------------------------------------------

PROFILES = {
    "profile": f"[default]\nendpoint_url = {BEYOND}\n",
    "service": f"[default]\nservices = mine\n[services mine]\ns3 =\n  endpoint_url = {BEYOND}\n",
}
SAYINGS = ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", *PROFILES]


@pytest.fixture(params=SAYINGS)
def say(request: pytest.FixtureRequest, in_config: Say, monkeypatch: pytest.MonkeyPatch) -> Say:
    """Names an endpoint outside of the URL."""

    def say(url: str) -> None:
        if request.param in PROFILES:
            in_config(PROFILES[request.param].replace(BEYOND, url))
        else:
            monkeypatch.setenv(request.param, url)

    return say


@pytest.mark.parametrize("engine", ["sdk"])
def test_plain_http_beyond_this_machine_has_to_be_allowed_whoever_says_it(say: Say, engine: str) -> None:
    say(BEYOND)
    with pytest.raises(InvalidURLError, match=r"the AWS configuration is http beyond this machine.*allow_http"):
        open_store("s3://bucket/p", engine=engine, **KEYS)
    open_store("s3://bucket/p?allow_http=true", engine=engine, **KEYS).close()
    open_store("s3://bucket/p?endpoint_url=https://minio.example", engine=engine, **KEYS).close()


def test_it_has_to_be_allowed_when_it_is_said_later_too(say: Say, engine: str) -> None:
    with open_store("s3://bucket/p", engine=engine, **KEYS) as store:
        say(BEYOND)
        with pytest.raises(InvalidURLError, match="allow_http"):
            store.list_segments(REF)


@pytest.mark.parametrize("engine", ["sdk"])
def test_endpoints_that_are_to_be_ignored_are(say: Say, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    say(BEYOND)
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    with open_store("s3://bucket/p", engine=engine, **KEYS) as store:
        assert "amazonaws.com" in store._container.driver.details
        assert store._container.driver.capabilities.create_only == "yes"


def test_the_endpoint_that_is_said_is_used_proved_and_named(say: Say, server: S3Server, clock: FakeClock, engine: str) -> None:
    say(server.url)
    with open_store("s3://bucket/p", engine=engine, clock=clock, **KEYS) as store:
        store.append_segment(REF, 0, 0, "w", LINE)
        assert server.url in store._container.driver.details
        assert server.url in store._container.identity
    assert server.kinds() == ["PUT", "PUT", "DELETE_MANY", "PUT"]


@pytest.mark.parametrize("url", ["https://me:c4n4ry@minio.example", "https://minio.example?key=c4n4ry", "minio.example"])
def test_an_endpoint_that_is_none_or_holds_a_secret_is_refused_and_not_repeated(say: Say, url: str) -> None:
    say(url)
    with pytest.raises(InvalidURLError, match="the endpoint in the environment or the AWS configuration") as caught:
        open_store("s3://bucket/p", **KEYS)
    assert "c4n4ry" not in str(caught.value)


def test_an_endpoint_that_names_the_bucket_is_refused_whoever_says_it(say: Say) -> None:
    say("https://bucket.s3.eu-west-1.amazonaws.com")
    with pytest.raises(InvalidURLError, match="names the bucket 'bucket' in its host already"):
        open_store("s3://bucket/p", **KEYS)


def test_credentials_of_a_role_are_not_fetched_in_the_clear(
    open_s3: OpenS3, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", BEYOND)
    with pytest.raises(InvalidURLError, match=r"the endpoint of STS is http beyond this machine.*allow_http"):
        open_s3(role_arn="arn:aws:iam::1:role/r").list_segments(REF)
    assert server.log == []


# --- GCS --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def gcs() -> Iterator[GCSServer]:
    server = GCSServer()
    yield server
    server.close()
    assert server.errors == []


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("STORAGE_EMULATOR_HOST", "http://fake-gcs:4443"),
        ("STORAGE_EMULATOR_HOST", "fake-gcs:4443"),
        ("API_ENDPOINT_OVERRIDE", "http://fake-gcs:4443"),
    ],
)
def test_an_emulator_beyond_this_machine_has_to_be_allowed(monkeypatch: pytest.MonkeyPatch, name: str, url: str) -> None:
    monkeypatch.setenv(name, url)
    with pytest.raises(InvalidURLError, match=r"STORAGE_EMULATOR_HOST.*is http beyond this machine.*allow_http"):
        open_store("gs://bucket/p", anon=True)
    open_store("gs://bucket/p?allow_http=true", anon=True).close()
    open_store("gs://bucket/p?endpoint_url=https://gcs.example", anon=True).close()


@pytest.mark.parametrize("name", ["STORAGE_EMULATOR_HOST", "API_ENDPOINT_OVERRIDE"])
def test_the_server_that_the_environment_names_is_used_proved_and_named(
    gcs: GCSServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, gcs.url)
    with open_store("gs://bucket/p", anon=True) as store:
        store.append_segment(REF, 0, 0, "w", LINE)
        assert gcs.url in store._container.identity
    assert gcs.kinds() == ["PUT", "PUT", "DELETE_MANY", "PUT"]


@pytest.mark.parametrize("url", ["https://me:c4n4ry@gcs.example", "https://gcs.example?key=c4n4ry"])
def test_an_emulator_s_address_that_holds_a_secret_is_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    with pytest.raises(InvalidURLError, match="the endpoint in the environment") as caught:
        open_store("gs://bucket/p", anon=True)
    assert "c4n4ry" not in str(caught.value)


# --- Azure ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "environment",
    [
        {"AZURE_STORAGE_SERVICE_ENDPOINT": "http://azurite:10000/devstoreaccount1", "AZURE_STORAGE_ACCOUNT_KEY": "aw=="},
        {"AZURE_STORAGE_CONNECTION_STRING": "BlobEndpoint=http://azurite:10000/devstoreaccount1;AccountKey=aw=="},
    ],
    ids=str,
)
def test_an_account_s_endpoint_beyond_this_machine_has_to_be_allowed(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidURLError, match="is http beyond this machine"):
        open_store("az://container/p")
    open_store("az://container/p?allow_http=true").close()
