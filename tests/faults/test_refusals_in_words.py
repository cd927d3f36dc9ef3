"""What GCS and Azure say when they refuse: tried again where that helps, else in their own words, without their secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from faults import azure_server, gcs_server
from faults.azure_server import KEY_OF_ACCOUNT, AzureServer
from faults.engines import sdk_and_obstore  # noqa: F401
from faults.gcs_server import GCSServer
from faults.scripted_server import Fault, Reply, Request, ScriptedServer, Serve
from faults.setups import REF, FakeClock
from google.oauth2.credentials import Credentials

from transcript_backends import AccessDeniedError, ObjectTranscriptStore, TranscriptStoreError, open_store
from transcript_backends.drivers.driver import Meaning
from transcript_backends.drivers.refusals import came_damaged, of_credentials

LINE = b"{}\n"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


def azure_saying(status: int, code: str, text: str) -> Fault:
    def fault(request: Request, serve: Serve) -> Reply:
        answer = azure_server.AzureDialect.error(status, code)
        told = f"<Message>{text}\nRequestId:0a-1\nTime:2026-01-01T00:00:00Z</Message>"
        answer.body = re.sub(b"<Message>.*</Message>", told.encode(), answer.body)
        return answer

    return fault


class Cloud(NamedTuple):
    server: Any
    store: ObjectTranscriptStore
    saying: Callable[[int, str, str], Fault]


@pytest.fixture
def clouds(engine: str, clock: FakeClock) -> Iterator[Callable[[str], Cloud]]:
    opened: list[tuple[ScriptedServer, ObjectTranscriptStore]] = []

    def open_cloud(name: str) -> Cloud:
        server: ScriptedServer = GCSServer() if name == "gcs" else AzureServer()
        url = "gs://bucket/p" if name == "gcs" else "az://container/p"
        secret: dict[str, Any] = {"credentials": Credentials("t")} if name == "gcs" else {"account_key": KEY_OF_ACCOUNT}
        store = open_store(url, endpoint_url=server.url, engine=engine, clock=clock, **secret)
        opened.append((server, store))
        store._container.prove_create_only("p")
        server.log.clear()
        return Cloud(server, store, gcs_server.reply if name == "gcs" else azure_saying)

    yield open_cloud
    for server, store in opened:
        store.close()
        server.close()
        assert server.errors == []


def append(store: ObjectTranscriptStore) -> str:
    return store.append_segment(REF, 0, 0, "w", LINE)


MISSING = "writer@p.iam.gserviceaccount.com does not have storage.objects.create access to the Google Cloud Storage object"
DENIALS = {
    "gcs": ("gcs", 403, "forbidden", MISSING, MISSING),
    "gcs KMS": ("gcs", 403, "forbidden", "Permission denied on Cloud KMS key", "Permission denied on Cloud KMS key"),
    "azure": ("azure", 403, "AuthorizationFailure", "This request may not do that.", "This request may not do that"),
    "azure role": ("azure", 403, "AuthorizationPermissionMismatch", "This request is not.", "Storage Blob Data Contributor"),
    "azure key": ("azure", 403, "AuthenticationFailed", "Server failed to authenticate.", "Server failed to authenticate"),
    "azure other": ("azure", 409, "BlobInUse", "The blob has a lease on it.", "The blob has a lease on it"),
}


@pytest.mark.parametrize(("name", "status", "code", "text", "shown"), DENIALS.values(), ids=DENIALS)
def test_a_denial_says_why_in_the_words_of_the_service(
    clouds: Callable[[str], Cloud], name: str, status: int, code: str, text: str, shown: str
) -> None:
    server, store, saying = clouds(name)
    for kind, call in (("PUT", append), ("LIST", lambda store: store.list_segments(REF))):
        server.always(kind, saying(status, code, text))
        with pytest.raises(TranscriptStoreError) as caught:
            call(store)
        assert shown in str(caught.value)
        assert "RequestId" not in str(caught.value)


@pytest.mark.parametrize("name", ["gcs", "azure"])
def test_a_key_a_service_repeats_goes_no_further(clouds: Callable[[str], Cloud], name: str) -> None:
    server, store, saying = clouds(name)
    code = "forbidden" if name == "gcs" else "AuthorizationFailure"
    server.always("PUT", saying(403, code, f"The key {SECRET} may not do that"))
    with pytest.raises(AccessDeniedError) as caught:
        append(store)
    assert "The key ... may not do that" in str(caught.value)
    assert "wJalrXUtnFEMI" not in str(caught.value)


@pytest.mark.parametrize("engine", ["sdk"])  # the other speaks XML
def test_a_download_that_gcs_refuses_in_plain_text_names_the_permission_and_nothing_else(
    clouds: Callable[[str], Cloud],
) -> None:
    server, store, _ = clouds("gcs")
    key = append(store)
    refused = f"{SECRET} does not have storage.objects.get access to the Google Cloud Storage object.".encode()
    server.always("GET", lambda request, serve: Reply(403, refused, {"Content-Type": "text/html; charset=UTF-8"}))
    with pytest.raises(AccessDeniedError, match=r"HTTP 403: storage\.objects\.get is missing") as caught:
        store.read_segment(key)
    assert "wJalrXUtnFEMI" not in str(caught.value)


DAMAGE = {
    "gcs": ("gcs", 400, "invalid", 'Provided MD5 hash "a==" doesn\'t match calculated MD5 hash "b==".'),
    "gcs CRC": ("gcs", 400, "invalid", 'Provided CRC32C "a==" doesn\'t match calculated CRC32C "b==".'),
    "gcs XML": ("gcs", 400, "badDigest", "The MD5 you specified did not match what we received."),
    "azure": ("azure", 400, "Md5Mismatch", "The MD5 value specified in the request did not match what was calculated."),
    "azure CRC": ("azure", 400, "Crc64Mismatch", "The CRC64 value specified in the request did not match."),
}


@pytest.mark.parametrize(("name", "status", "code", "text"), DAMAGE.values(), ids=DAMAGE)
def test_a_body_that_arrived_damaged_is_sent_again(
    clouds: Callable[[str], Cloud], name: str, status: int, code: str, text: str
) -> None:
    server, store, saying = clouds(name)
    server.next("PUT", saying(status, code, text))
    assert server.objects[append(store)].body == LINE
    assert server.requests("PUT")[1:]


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("InvalidAccessKeyId", Meaning.UNAUTHENTICATED),
        ("InvalidClientTokenId", Meaning.UNAUTHENTICATED),
        ("AuthenticationFailed", Meaning.UNAUTHENTICATED),
        ("ExpiredTokenException", Meaning.EXPIRED),
        ("TokenRefreshRequired", Meaning.EXPIRED),
        ("AccessDenied", None),
        ("AuthorizationFailure", None),
        ("AuthorizationHeaderMalformed", None),
        ("InvalidContinuationToken", None),
        ("InvalidPageToken", None),
    ],
)
def test_a_word_about_who_asks_is_told_from_one_about_what_they_may_do(word: str, meaning: Meaning | None) -> None:
    assert of_credentials(word) is meaning


@pytest.mark.parametrize("word", ["BadDigest", "Md5Mismatch", "XAmzContentSHA256Mismatch", "IncompleteBody", "Crc64Mismatch"])
def test_the_words_for_damage_are_known(word: str) -> None:
    assert came_damaged(word)
    assert not came_damaged("SignatureDoesNotMatch")
    assert not came_damaged("InvalidRange")
