"""What is peculiar to the engine `obstore`: its environment, its processes, its sizes, and what it says of failures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from faults.azure_server import AzureServer
from faults.gcs_server import GCSServer
from faults.s3_server import S3Server, reply
from faults.scripted_server import Reply, Request, ScriptedServer, Serve, drop_before_storing
from faults.setups import REF, OpenS3, run_forked
from google.oauth2.credentials import Credentials

from transcript_backends import InvalidURLError, ObjectTranscriptStore, TranscriptStoreError, diagnose, open_store
from transcript_backends.drivers import obstore_answers as answers
from transcript_backends.drivers.driver import Meaning
from transcript_backends.drivers.obstore import ObstoreObjectStore

LINE = b'{"a":1}\n'
KEY = "p/acme/coder/s1/events/k"


@pytest.fixture
def engine() -> str:
    return "obstore"


def append(store: ObjectTranscriptStore, number: int = 0) -> str:
    return store.append_segment(REF, number, number, "w", LINE)


def by_obstore(request: Request) -> bool:
    return request.headers["user-agent"] == "transcript-backends"


# --- the choice -------------------------------------------------------------------------------------------------------

KEYS = {"access_key_id": "A", "secret_access_key": "S"}


def test_the_driver_is_that_of_the_choice() -> None:
    for engine, is_obstore in (("auto", True), ("obstore", True), ("sdk", False), (None, True)):
        with open_store("s3://bucket/p", engine=engine, **KEYS) as store:
            assert isinstance(store._container.driver, ObstoreObjectStore) == is_obstore
    with open_store("s3://bucket/p?engine=sdk", **KEYS) as store:
        assert not isinstance(store._container.driver, ObstoreObjectStore)
    with pytest.raises(InvalidURLError, match=r"engine .* must be one of auto, sdk, obstore"):
        open_store("s3://bucket/p?engine=fast")


def test_the_checks_of_a_store_name_its_engine_and_the_reason() -> None:
    url = "s3://bucket?endpoint_url=http://127.0.0.1:9"
    shown = {
        settings: next(each.detail for each in diagnose(f"{url}{settings}", max_attempts=1, **KEYS) if each.name == "engine")
        for settings in ("", "&engine=sdk", "&expected_bucket_owner=1")
    }
    assert shown == {
        "": "obstore, since it is installed, and can do all that was asked for",
        "&engine=sdk": "sdk, since engine=sdk was asked for",
        "&expected_bucket_owner=1": "sdk, since obstore can't follow the setting expected_bucket_owner",
    }


def test_obstore_is_not_imported_where_the_sdk_serves() -> None:
    code = """if True:
        import sys
        from transcript_backends import open_store
        open_store("s3://bucket", engine="sdk", access_key_id="A", secret_access_key="S").close()
        print("obstore" in sys.modules)
        open_store("s3://bucket", access_key_id="A", secret_access_key="S").close()
        print("obstore" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


# --- environment ------------------------------------------------------------------------------------------------------

ELSEWHERE = "http://127.0.0.1:1"
VARIABLES = {
    "s3": {
        "AWS_ENDPOINT": ELSEWHERE, "AWS_ENDPOINT_URL": ELSEWHERE, "AWS_ENDPOINT_URL_S3": ELSEWHERE, "AWS_BUCKET": "other",
        "AWS_SKIP_SIGNATURE": "true", "AWS_UNSIGNED_PAYLOAD": "true", "AWS_REQUEST_PAYER": "requester",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true", "AWS_S3_EXPRESS": "true", "AWS_CONDITIONAL_PUT": "disabled",
        "AWS_SESSION_TOKEN": "other", "AWS_REGION": "other-1", "AWS_ACCESS_KEY_ID": "OTHER", "AWS_PROXY_URL": ELSEWHERE,
    },
    "azure": {
        "AZURE_STORAGE_ACCOUNT_KEY": "b3RoZXI=", "AZURE_STORAGE_ACCESS_KEY": "b3RoZXI=", "AZURE_STORAGE_SAS_KEY": "sig=other",
        "AZURE_STORAGE_TOKEN": "other", "AZURE_CREDENTIAL_TYPE": "sas_token", "AZURE_STORAGE_USE_EMULATOR": "true",
        "AZURE_SKIP_SIGNATURE": "true", "AZURE_STORAGE_ENDPOINT": ELSEWHERE, "AZURE_ENDPOINT": ELSEWHERE,
        "AZURE_USE_FABRIC_ENDPOINT": "true", "AZURE_CONTAINER_NAME": "other", "AZURE_STORAGE_ACCOUNT_NAME": "other",
    },
    "gcs": {
        "GOOGLE_BASE_URL": ELSEWHERE, "GOOGLE_BEARER_TOKEN": "other", "GOOGLE_BUCKET": "other", "GOOGLE_SKIP_SIGNATURE": "true",
        "GOOGLE_APPLICATION_CREDENTIALS": "/nowhere",
    },
}  # fmt: skip
OPENERS: dict[str, tuple[type[ScriptedServer], Callable[[str], ObjectTranscriptStore]]] = {
    "s3": (
        S3Server,
        lambda url: open_store(
            f"s3://bucket/p?engine=obstore&endpoint_url={url}", access_key_id="AKIATEST", secret_access_key="s", region="eu-1"
        ),
    ),
    "azure": (
        AzureServer,
        lambda url: open_store(f"az://container/p?engine=obstore&endpoint_url={url}", account_key="c2VjcmV0"),
    ),
    "gcs": (
        GCSServer,
        lambda url: open_store(f"gs://bucket/p?engine=obstore&endpoint_url={url}", credentials=Credentials("mine")),
    ),
}


@pytest.fixture(params=OPENERS)
def cloud(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def of_cloud(cloud: str) -> Iterator[tuple[Any, Callable[[], ObjectTranscriptStore]]]:
    """A server, and how to open a store on it."""
    kind, opener = OPENERS[cloud]
    server = kind()
    yield server, lambda: opener(server.url)
    server.close()
    assert server.errors == []


def sent(server: Any, opener: Callable[[], ObjectTranscriptStore]) -> tuple[Any, ...]:
    """What a first append sends, but for what differs each time."""
    server.objects.clear()
    server.log.clear()
    with opener() as store:
        append(store)
    last = server.requests("PUT")[-1]
    assert by_obstore(last)
    signed = last.headers["authorization"].partition("Signature=")[0].partition(":")[0]
    return last.path, sorted(last.query), sorted(last.headers), signed, last.headers.get("if-none-match")


def test_variables_of_obstore_s_own_have_no_say(
    of_cloud: tuple[Any, Callable[[], ObjectTranscriptStore]], cloud: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sent(*of_cloud)
    for name, value in VARIABLES[cloud].items():
        monkeypatch.setenv(name, value)
    assert sent(*of_cloud) == expected


# --- redirects, which obstore follows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("etag", ['"5f3b-1a2b"', 'W/"1a"', f'"{"0" * 32}"'], ids=["nginx", "weak", "another's"])
def test_a_page_that_a_redirect_leads_to_is_never_taken_for_a_success(
    of_cloud: tuple[Any, Callable[[], ObjectTranscriptStore]], cloud: str, etag: str
) -> None:
    server, opener = of_cloud
    facts = {"ETag": etag, "Last-Modified": "Sat, 01 Jan 2000 00:00:00 GMT", "Content-Type": "text/html"}
    with opener() as store:
        store._container.prove_create_only("p")
        server.log.clear()
        server.next("PUT", lambda request, serve: Reply(303, headers={"Location": "/login/page"}))
        server.next("GET", lambda request, serve: Reply(200, b"Log in", facts))
        key = append(store)
        assert server.objects[key].body == LINE
        assert [each.method for each in server.log][:2] == ["PUT", "GET"]
        assert len(server.requests("PUT")) == 2
        see_other = Reply(206, b"Log in", {**facts, "Content-Range": "bytes 0-5/6"})
        server.always("GET", lambda request, serve: see_other)
        with pytest.raises(TranscriptStoreError):
            store.read_segment(key)


def test_where_etags_are_no_md5_puts_are_the_sdk_s_from_the_second_on(store: ObjectTranscriptStore, server: S3Server) -> None:
    def with_kms(request: Request, serve: Serve) -> Reply:
        answer = serve()
        if answer.status == 200:
            answer.headers["ETag"] = server.objects[request.key].headers["ETag"] = f'"{"5" * 32}"'
        return answer

    server.always("PUT", with_kms)
    for number in range(3):
        append(store, number)
    assert [(each.kind, by_obstore(each)) for each in server.log] == [
        ("PUT", True), ("HEAD", True), ("PUT", False), ("PUT", False),
    ]  # fmt: skip
    assert len(list(store.records(REF))) == 3
    assert {by_obstore(each) for each in server.requests("GET")} == {True}


def test_puts_with_a_key_of_kms_are_the_sdk_s(open_s3: OpenS3, server: S3Server) -> None:
    store = open_s3(sse="aws:kms")
    append(store)
    assert len(list(store.records(REF))) == 1
    assert {each.kind: by_obstore(each) for each in server.log if each.kind in ("PUT", "GET")} == {"PUT": False, "GET": True}


# --- processes and sizes ----------------------------------------------------------------------------------------------


def test_a_child_of_a_process_that_used_obstore_uses_the_sdk_and_the_parent_goes_on(
    store: ObjectTranscriptStore, open_s3: OpenS3, server: S3Server
) -> None:
    def child() -> None:
        append(store, 1)
        append(open_s3(), 2)

    append(store, 0)
    assert run_forked(child) == 0
    append(store, 3)
    appends = [each for each in server.requests("PUT") if ".probe" not in each.key]
    assert [by_obstore(each) for each in appends] == [True, False, False, True]
    assert len(server.objects) == 4


def test_a_large_body_is_left_to_the_sdk_which_has_time_for_it(store: ObjectTranscriptStore, server: S3Server) -> None:
    for size, is_small in ((8 << 20, True), ((8 << 20) + 1, False)):
        store._container.create(f"{KEY}{size}", bytes(size))
        assert by_obstore(server.requests("PUT")[-1]) == is_small
        assert len(server.objects[f"{KEY}{size}"].body) == size


def test_listings_and_deletions_are_the_sdk_s(store: ObjectTranscriptStore, server: S3Server) -> None:
    append(store)
    assert len(list(store.records(REF))) == 1
    store.delete(REF, purge=True)
    assert {each.kind: by_obstore(each) for each in server.log} == {
        "PUT": True, "GET": True, "LIST": False, "DELETE_MANY": False,
    }  # fmt: skip


def test_the_credentials_of_a_role_are_asked_for_again_before_they_expire(
    open_s3: OpenS3, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
    store = open_s3(role_arn="arn:aws:iam::1:role/r")
    append(store)
    driver: Any = store._container.driver
    given = driver._shared.get().credential_provider()
    told = driver.sdk._shared.get()._request_signer._credentials._expiry_time
    assert given["expires_at"] == told
    assert given["access_key_id"] == "ASIATEST1"


# --- what obstore says ------------------------------------------------------------------------------------------------

PUT = "Error performing PUT https://a.blob.core.windows.net/c/k?sv=1&sig=canary in 1.2ms - "
DEBUG = '\n\nDebug source:\nGeneric {\n    uri: "https://a/c/k?sig=canary",\n}'


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"Generic S3 error: {PUT}HTTP error: error sending request{DEBUG}", answers.Lost),
        (f"Generic S3 error: HTTP error: request or response body error{DEBUG}", answers.Lost),
        (
            f"Generic S3 error: {PUT}HTTP error: error sending request{DEBUG} InvalidCertificate(UnknownIssuer)",
            answers.TLSFailed,
        ),
        (
            f"Generic S3 error: Unable to extract metadata from headers: ETag Header missing from response{DEBUG}",
            answers.NotAnAnswer,
        ),
        (f"Generic S3 error: Received non-partial response when range requested{DEBUG}", answers.NotAnAnswer),
        (f"something new{DEBUG}", answers.NotAnAnswer),
        (
            "The operation lacked valid authentication credentials for path External AWS credential provider: Error: canary",
            answers.NoCredentials,
        ),
    ],
)
def test_a_failure_is_told_apart_by_its_text_and_none_of_it_is_kept(text: str, kind: type[Exception]) -> None:
    def fail() -> None:
        raise OSError(text)

    with pytest.raises(kind) as caught:
        answers.ask(fail)
    assert caught.value.__cause__ is caught.value.__context__ is None
    failure = answers.classify(caught.value)
    assert failure is not None
    assert "canary" not in f"{caught.value!r} {failure.detail}"
    assert failure.meaning is not Meaning.PRECONDITION


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            f"Object at location k already exists: {PUT}Server returned non-2xx status code: 409 Conflict: "
            f"<?xml?>\n<Error><Code>BlobAlreadyExists</Code><Message>m\nRequestId:0a-1\nTime:t</Message></Error>{DEBUG}",
            (409, "BlobAlreadyExists", "0a-1"),
        ),
        (
            f"Generic S3 error: {PUT}Server returned non-2xx status code: 503 Service Unavailable: "
            f"<Error><Code>SlowDown</Code><RequestId>R1</RequestId></Error>{DEBUG}",
            (503, "SlowDown", "R1"),
        ),
        (f"k not found: {PUT}Server returned non-2xx status code: 404 Not Found: {DEBUG}", (404, "", "")),
        (
            f"Generic S3 error: {PUT}Server returned non-2xx status code: 502 Bad Gateway: <html>HTTP error: 403</html>{DEBUG}",
            (502, "", ""),
        ),
        (f"Generic S3 error: {PUT}Received redirect without LOCATION, this normally indicates{DEBUG}", (301, "", "")),
        ("Generic MicrosoftAzure error: Wanted range starting at 5, but object was only 5 bytes long", (416, "", "")),
    ],
)
def test_a_refusal_is_told_by_status_code_and_request(text: str, told: tuple[int, str, str]) -> None:
    def fail() -> None:
        raise OSError(text)

    with pytest.raises(answers.Refused) as caught:
        answers.ask(fail)
    assert caught.value.refusal[:3] == told
    assert "canary" not in repr(caught.value)


def test_what_obstore_says_is_nowhere_in_the_error(store: ObjectTranscriptStore, server: S3Server) -> None:
    for fault in (drop_before_storing(), reply(400, "InvalidRequest")):
        server.always("PUT", fault)
        with pytest.raises(TranscriptStoreError) as caught:
            append(store)
        chain: list[BaseException] = [caught.value]
        while error := chain[-1].__cause__ or chain[-1].__context__:
            chain.append(error)
        assert not any(type(each).__module__.startswith("obstore") for each in chain)


def test_certificates_that_are_none_are_an_error_that_names_the_way_out(
    open_s3: OpenS3, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bundle.pem").write_text("-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "bundle.pem"))
    with pytest.raises(TranscriptStoreError, match="engine=sdk does without it"):
        append(open_s3())
