"""No failure of Azure puts a secret into a message, a repr, a log record or a pickle."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable, Iterator

import pytest
import requests
from azure.core.exceptions import ServiceRequestError
from azure.storage.blob import BlobServiceClient
from faults.azure_server import (  # noqa: F401 - fixtures
    ACCOUNT,
    AzureServer,
    OpenAzure,
    TLSAzureServer,
    a_tls_server,
    an_azure_server,
    an_opener,
    expired,
    reply,
    without_an_account,
)
from faults.engines import sdk_and_auto  # noqa: F401
from faults.scripted_server import BROKEN_HTML, Fault, drop_before_storing, html, truncated
from faults.setups import REF, FakeClock

from transcript_backends import AzureTranscriptStore, ObjectTranscriptStore, TranscriptStoreError, open_store

CANARY = "Y2FuYXJ5Y2FuYXJ5"
SAS = f"sv=2021-08-06&sp=rwdl&sr=c&se=2099-01-01T00%3A00%3A00Z&sig={CANARY}"
SECRETS = {
    "key": {"account_key": CANARY},
    "SAS": {"account_key": None, "sas_token": f"?{SAS}"},
    "connection": {"account_key": None, "connection_string": f"AccountName={ACCOUNT};AccountKey={CANARY}"},
    "connection with SAS": {
        "account_key": None,
        "connection_string": f"BlobEndpoint=https://{ACCOUNT}.blob.core.windows.net/;SharedAccessSignature={SAS}",
    },
}
_ECHO = f"The MAC signature found in the HTTP request '...' is not the same; AccountKey={CANARY}&sig={CANARY}"
FAULTS: dict[str, Fault] = {
    **{
        code: reply(status, code)
        for status, code in [
            (403, "AuthorizationFailure"), (401, "InvalidAuthenticationInfo"), (409, "BlobImmutableDueToPolicy"),
            (503, "ServerBusy"), (409, "BlobAlreadyExists"), (412, "ConditionNotMet"), (501, "NotImplemented"),
            (400, "InvalidHeaderValue"), (404, "ContainerNotFound"),
        ]
    },
    "expired": expired(),
    "echo": reply(403, "AuthenticationFailed"),
    "page": html(),
    "broken page": html(body=BROKEN_HTML),
    "truncated": truncated(1),
    "dropped": drop_before_storing(),
}  # fmt: skip


def calls(store: ObjectTranscriptStore, key: str) -> list[Callable[[], object]]:
    def read() -> bytes:
        with store.read_segment(key) as stream:
            return stream.read()

    return [
        lambda: store.append_segment(REF, 0, 0, "w", b'{"a":1}'),
        lambda: store.append_segment(REF, 0, 0, "w", b'{"a":2}'),
        lambda: store.list_segments(REF),
        read,
        lambda: list(store.records(REF)),
        lambda: store.delete(REF),
    ]


def said_by(store: ObjectTranscriptStore) -> Iterator[str]:
    """All that a failing store says of itself and of what went wrong."""
    driver = store._container.driver
    yield from (repr(store), str(store), repr(store._container), repr(driver), driver.details, driver.location)
    for call in calls(store, "p/acme/coder/s1/events/0-0-w.jsonl"):
        try:
            call()
        except TranscriptStoreError as error:
            yield from (str(error), repr(error), "".join(traceback.format_exception(error)), repr(pickle.dumps(error)))


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_no_failure_shows_a_secret(
    open_azure: OpenAzure, server: AzureServer, caplog: pytest.LogCaptureFixture, fault: Fault, secret: dict[str, str]
) -> None:
    store = open_azure(**secret, max_attempts=3)
    with caplog.at_level(logging.DEBUG, "transcript_backends"):
        store.append_segment(REF, 5, 5, "w", b"{}")
        for kind in ("PUT", "GET", "HEAD", "LIST", "DELETE", "DELETE_MANY"):
            server.always(kind, fault)
        said = list(said_by(store))
    records = [each for each in caplog.records if each.name.startswith("transcript_backends")]
    said += [f"{each.getMessage()} {each.args!r} {each.exc_text}" for each in records]
    assert len(said) > 10
    assert CANARY not in "\n".join(said)
    if "SAS" in str(secret) or "sas_token" in secret:
        assert server.log[-1].query["sig"] == CANARY, "it was in use"


@pytest.mark.parametrize("trusted", [True, False], ids=["refused", "not trusted"])
def test_a_connection_that_fails_does_not_show_the_sas(tls_server: TLSAzureServer, trusted: bool) -> None:
    endpoint = f"https://127.0.0.1:9/{ACCOUNT}" if trusted else tls_server.url
    with open_store(f"az://container/p?endpoint_url={endpoint}", sas_token=SAS, max_attempts=1) as store:
        said = list(said_by(store))
    assert len(said) > 10
    assert CANARY not in "\n".join(said)


@pytest.mark.parametrize("trusted", [True, False], ids=["refused", "not trusted"])
def test_a_client_whose_errors_show_the_sas_is_used_without_showing_it(
    tls_server: TLSAzureServer, trusted: bool, clock: FakeClock
) -> None:
    endpoint = f"https://127.0.0.1:9/{ACCOUNT}" if trusted else tls_server.url
    client = BlobServiceClient(endpoint, credential=SAS, retry_total=0, session=requests.Session())
    with client, pytest.raises(ServiceRequestError, match=CANARY):
        client.get_container_client("container").get_blob_client("x").exists()
    assert CANARY in client.url
    client = BlobServiceClient(endpoint, credential=SAS, retry_total=0, session=requests.Session())
    with client:
        store = AzureTranscriptStore(client, "container", "p")
        store._container.clock = clock
        said = list(said_by(store))
    assert len(said) > 10
    assert CANARY not in "\n".join(said)


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_a_store_that_holds_a_secret_can_not_be_pickled(open_azure: OpenAzure, secret: dict[str, str]) -> None:
    store = open_azure(clock=None, **secret)
    with pytest.raises(TypeError, match="secret") as caught:
        pickle.dumps(store)
    assert CANARY not in str(caught.value)
