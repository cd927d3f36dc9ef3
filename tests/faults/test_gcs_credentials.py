"""Credentials of GCS: fetched, renewed once where they expired, refused with what to do, and never shown."""

from __future__ import annotations

import json
import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.engines import sdk_and_obstore  # noqa: F401
from faults.gcs_server import (  # noqa: F401 - fixtures
    GCSServer,
    OpenGCS,
    a_gcs_server,
    a_store,
    an_account,
    an_opener,
    json_instead,
    reply,
)
from faults.scripted_server import BROKEN_HTML, Fault, Reply, Request, Serve, drop_before_storing, html, truncated
from faults.setups import KEY, REF, FakeClock
from google.cloud import storage
from google.oauth2 import service_account
from google.oauth2.credentials import Credentials

from transcript_backends import (
    AccessDeniedError,
    GCSTranscriptStore,
    InvalidURLError,
    ObjectTranscriptStore,
    TranscriptStoreError,
    open_store,
)

LINE = b'{"a":1}\n'


def append(store: ObjectTranscriptStore, number: int = 0) -> str:
    return store.append_segment(REF, number, number, "w", LINE)


def tokens_used(server: GCSServer, kind: str = "PUT") -> list[str]:
    return [each.headers["authorization"] for each in server.requests(kind)]


@pytest.fixture
def proved(open_gcs: OpenGCS, server: GCSServer, account: str) -> ObjectTranscriptStore:
    """A store that has appended with the service account's first token; the log is empty."""
    store = open_gcs(anon=None, service_account_file=account)
    append(store, 9)
    server.log.clear()
    return store


# --- fetched ----------------------------------------------------------------------------------------------------------


def test_a_service_account_fetches_one_token_for_many_requests(open_gcs: OpenGCS, server: GCSServer, account: str) -> None:
    store = open_gcs(anon=None, service_account_file=account)
    for number in range(3):
        append(store, number)
    assert len(store.list_segments(REF)) == 3
    assert server.dialect.tokens == ["token1"]
    assert {each.headers["authorization"] for each in server.log if each.kind != "TOKEN"} == {"Bearer token1"}


def test_the_application_default_credentials_are_used_where_nothing_else_is_said(
    open_gcs: OpenGCS, server: GCSServer, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", account)
    append(open_gcs(anon=None))
    assert set(tokens_used(server)) == {"Bearer token1"}


def test_credentials_can_be_an_argument(open_gcs: OpenGCS, server: GCSServer) -> None:
    append(open_gcs(anon=None, credentials=Credentials(token="mine")))
    assert set(tokens_used(server)) == {"Bearer mine"}


@pytest.mark.parametrize("engine", ["sdk"])
def test_requests_without_credentials_carry_none(store: ObjectTranscriptStore, server: GCSServer) -> None:
    append(store)
    assert not any("authorization" in each.headers for each in server.log)


# --- renewed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PUT", "LIST", "GET", "HEAD", "DELETE_MANY"])
def test_a_token_that_expired_is_replaced_within_the_request(
    proved: ObjectTranscriptStore, server: GCSServer, clock: FakeClock, kind: str
) -> None:
    server.always(kind, lambda request, serve: reply(401, "authError")(request, serve) if server.dialect.tokens[1:] == []
                  else serve())  # fmt: skip
    append(proved)
    append(proved)
    with proved.read_segment(KEY) as stream:
        assert stream.read() == LINE
    assert proved.delete(REF).deleted == 2
    assert server.dialect.tokens == ["token1", "token2"]
    assert set(tokens_used(server, kind)[-1:]) == {"Bearer token2"}
    assert clock.pauses == []


def test_a_key_that_was_replaced_on_disk_is_read_anew_once(
    proved: ObjectTranscriptStore, server: GCSServer, account: str
) -> None:
    def rotate(request: Request, serve: Serve) -> Reply | None:
        told = json.loads(Path(account).read_text())
        Path(account).write_text(json.dumps({**told, "token_uri": f"{server.url}/token?new"}))
        return reply(401, "authError")(request, serve)

    def only_the_new(request: Request, serve: Serve) -> Reply | None:
        return serve() if "new" in request.query else json_instead(b'{"error":"invalid_grant"}', 400)(request, serve)

    server.always("TOKEN", only_the_new)
    server.next("PUT", rotate)
    append(proved)
    assert tokens_used(server) == ["Bearer token1", "Bearer token2"]
    assert server.objects[KEY].body == LINE


def test_an_object_of_a_batch_that_is_refused_for_the_credentials_is_deleted_with_others(
    proved: ObjectTranscriptStore, server: GCSServer
) -> None:
    keys = [f"p/{number}" for number in range(2)]
    for key in keys:
        server.dialect.store(key, LINE)
    server.next("DELETE_MANY", server.dialect.refuse(keys[0], 401, "authError"))
    assert proved._container.delete(keys) == {}
    assert not any(key in server.objects for key in keys)
    assert server.kinds() == ["DELETE_MANY", "TOKEN", "DELETE_MANY"]


def test_a_log_in_that_is_over_works_again_after_the_next_one(
    open_gcs: OpenGCS, server: GCSServer, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_this_log_in(request: Request, serve: Serve) -> Reply | None:
        refused = b'{"error":"invalid_grant","error_description":"Reauthentication is needed.","error_subtype":"invalid_rapt"}'
        return serve() if b"refresh_token=new" in request.body else json_instead(refused, 400)(request, serve)

    def log_in(name: str) -> None:
        told = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": name}
        Path(account).write_text(json.dumps({**told, "token_uri": f"{server.url}/token"}))

    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", account)
    monkeypatch.setattr("google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{server.url}/token")
    server.always("TOKEN", of_this_log_in)
    log_in("old")
    store = open_gcs(anon=None)
    for _ in range(2):
        with pytest.raises(AccessDeniedError, match="log in again"):
            append(store)
    assert set(server.kinds()) == {"TOKEN"}
    log_in("new")
    append(store)
    assert KEY in server.objects


def test_a_token_of_credentials_that_are_an_argument_is_replaced_where_it_is_refused(
    open_gcs: OpenGCS, server: GCSServer, account: str
) -> None:
    given = service_account.Credentials.from_service_account_file(account)
    store = open_gcs(anon=None, credentials=given.with_scopes(["https://www.googleapis.com/auth/devstorage.read_write"]))
    append(store)
    server.log.clear()
    refused = server.dialect.tokens[-1]
    server.always("PUT", lambda request, serve: reply(401, "authError")(request, serve)
                  if request.headers["authorization"] == f"Bearer {refused}" else serve())  # fmt: skip
    append(store, 1)
    assert server.kinds() == ["PUT", "TOKEN", "PUT"]


def test_a_denial_that_stays_doubles_no_request_from_the_second_on(
    proved: ObjectTranscriptStore, server: GCSServer, engine: str
) -> None:
    server.always("PUT", reply(401, "authError"))
    each = 3 if engine == "sdk" else 1  # google.auth tries three tokens
    for expected in (2 * each, each, each):
        server.log.clear()
        with pytest.raises(AccessDeniedError, match="log in again"):
            append(proved)
        assert len(server.requests("PUT")) == expected
    server.always("PUT", None)
    append(proved)


def test_credentials_that_stay_expired_are_an_access_error_after_one_renewal(
    proved: ObjectTranscriptStore, server: GCSServer, clock: FakeClock, engine: str
) -> None:
    server.always("PUT", reply(401, "authError"))
    with pytest.raises(AccessDeniedError, match="expired and renewing them did not help"):
        append(proved)
    assert len(server.requests("PUT")) == 2 * (3 if engine == "sdk" else 1)  # of each client, google.auth tries three tokens
    assert clock.pauses == []


def test_a_token_that_is_refused_is_an_access_error_after_one_renewal(
    proved: ObjectTranscriptStore, server: GCSServer, clock: FakeClock, engine: str
) -> None:
    server.always("TOKEN", json_instead(b'{"error":"invalid_grant","error_description":"Account deleted"}', 400))
    server.always("PUT", reply(401, "authError"))
    with pytest.raises(AccessDeniedError, match="RefreshError: no new token"):
        append(proved)
    assert len(server.requests("TOKEN")) == (2 if engine == "sdk" else 1)  # google.auth asked once more before the renewal
    assert clock.pauses == []


def test_a_connection_lost_while_a_token_is_fetched_is_tried_again(
    open_gcs: OpenGCS, server: GCSServer, account: str, clock: FakeClock
) -> None:
    server.next("TOKEN", drop_before_storing(), drop_before_storing())
    append(open_gcs(anon=None, service_account_file=account))
    assert len(clock.pauses) == 2
    assert set(tokens_used(server)) == {"Bearer token1"}


def test_a_bare_token_that_expired_fails_without_a_pause(open_gcs: OpenGCS, server: GCSServer, clock: FakeClock) -> None:
    store = open_gcs(anon=None, credentials=Credentials(token="mine"))
    server.always("LIST", reply(401, "authError"))
    with pytest.raises(AccessDeniedError, match="expired"):
        store.list_segments(REF)
    assert len(server.requests("LIST")) == 2
    assert clock.pauses == []


def test_a_ready_client_is_not_renewed(server: GCSServer) -> None:
    options = {"api_endpoint": server.url}
    client = storage.Client(project="p", credentials=Credentials(token="mine"), client_options=options)
    server.always("LIST", reply(401, "authError"))
    with pytest.raises(AccessDeniedError, match="expired"):
        GCSTranscriptStore(client, "bucket", "p").list_segments(REF)
    assert server.kinds() == ["LIST"]
    client.close()


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["required", ""])
def test_requests_without_credentials_that_are_refused_are_an_access_error_at_once(
    store: ObjectTranscriptStore, server: GCSServer, reason: str
) -> None:
    server.always("LIST", reply(401, reason))
    with pytest.raises(AccessDeniedError, match="requests without credentials are not allowed"):
        store.list_segments(REF)
    assert server.kinds() == ["LIST"]


OPERATIONS: dict[str, Callable[[ObjectTranscriptStore], object]] = {
    "append": append,
    "list": lambda store: store.list_segments(REF),
    "read": lambda store: store.read_segment(KEY),
    "delete": lambda store: store.delete(REF),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_missing_credentials_are_an_access_error_without_a_request(
    open_gcs: OpenGCS, server: GCSServer, operation: Callable[[ObjectTranscriptStore], object]
) -> None:
    with pytest.raises(AccessDeniedError, match=r"no usable Google credentials.*gcloud auth application-default login"):
        operation(open_gcs(anon=None))
    assert server.kinds() == []


def test_credentials_that_are_there_later_are_used_without_a_restart(
    open_gcs: OpenGCS, server: GCSServer, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_gcs(anon=None)
    with pytest.raises(AccessDeniedError, match="log in again"):
        append(store)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", account)
    append(store)
    assert KEY in server.objects


@pytest.mark.parametrize("content", [None, b"", b"{}", b"not JSON", b'{"type":"service_account"}', b"\xff"], ids=repr)
def test_a_key_that_can_not_be_read_is_an_access_error(
    open_gcs: OpenGCS, server: GCSServer, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "key.json"
    if content is not None:
        path.write_bytes(content)
    store = open_gcs(anon=None, service_account_file=str(path))
    with pytest.raises(AccessDeniedError, match="no usable Google credentials"):
        append(store)
    assert server.kinds() == []


def test_two_kinds_of_credentials_are_one_too_many(account: str) -> None:
    with pytest.raises(InvalidURLError, match="anon and service_account_file exclude one another"):
        open_store("gs://bucket", anon=True, service_account_file=account)
    with pytest.raises(InvalidURLError, match="exclude one another"):
        open_store(f"gs://bucket?service_account_file={account}", credentials=Credentials(token="mine"))


@pytest.mark.parametrize("name", ["credentials", "token", "access_token", "private_key", "X-Goog-Signature"])
def test_a_secret_in_the_url_is_refused(name: str) -> None:
    with pytest.raises(InvalidURLError, match=name) as caught:
        open_store(f"gs://bucket?{name}=canary")
    assert "canary" not in str(caught.value)


# --- never shown ------------------------------------------------------------------------------------------------------

CANARY = "ya29.canarytoken"

FAULTS: dict[str, Fault] = {
    **{
        f"{status} {reason}": reply(status, reason, "scripted" if reason else f"Bearer {CANARY} was not right")
        for status, reason in [
            (400, "required"), (401, "authError"), (401, "required"), (403, "forbidden"), (403, "rateLimitExceeded"), (403, ""),
            (404, "notFound"), (409, "conflict"), (412, "conditionNotMet"), (416, "x"), (429, "y"), (501, "z"), (503, ""),
        ]
    },
    "page": html(),
    "broken page": html(body=BROKEN_HTML),
    "JSON": json_instead(f'{{"token":"{CANARY}"}}'.encode()),
    "truncated": truncated(1),
    "dropped": drop_before_storing(),
}  # fmt: skip


def _read(store: ObjectTranscriptStore) -> bytes:
    with store.read_segment(KEY) as stream:
        return stream.read()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_no_failure_shows_a_token(open_gcs: OpenGCS, server: GCSServer, caplog: pytest.LogCaptureFixture, fault: Fault) -> None:
    store = open_gcs(anon=None, credentials=Credentials(token=CANARY), max_attempts=3)
    seen = [repr(store), str(store), repr(store._container.driver), store._container.driver.details]
    calls = [*OPERATIONS.values(), _read, lambda store: list(store.records(REF)), lambda store: append(store, 5)]
    with caplog.at_level(logging.DEBUG, "transcript_backends"):
        append(store, 5)
        for kind in ("PUT", "GET", "HEAD", "LIST", "DELETE_MANY", "DELETE"):
            server.always(kind, fault)
        for call in calls:
            try:
                call(store)
            except TranscriptStoreError as error:
                seen += [str(error), repr(error), repr(pickle.dumps(error)), "".join(traceback.format_exception(error))]
    records = [each for each in caplog.records if each.name.startswith("transcript_backends")]
    seen += [f"{each.getMessage()} {each.args!r} {each.exc_text}" for each in records]
    assert len(seen) > 10
    assert CANARY not in "\n".join(seen)
    assert set(tokens_used(server)) == {f"Bearer {CANARY}"}, "it was in use"


def test_a_refused_token_request_shows_nothing_of_it(proved: ObjectTranscriptStore, server: GCSServer, account: str) -> None:
    server.always("TOKEN", json_instead(f'{{"error":"invalid_grant","error_description":"{CANARY}"}}'.encode(), 400))
    server.always("PUT", reply(401, "authError"))
    with pytest.raises(AccessDeniedError) as caught:
        append(proved)
    assert CANARY not in f"{caught.value}{caught.value!r}"


def test_a_store_that_holds_credentials_can_not_be_pickled(open_gcs: OpenGCS) -> None:
    store = open_gcs(anon=None, credentials=Credentials(token=CANARY), clock=None)
    with pytest.raises(TypeError, match="secret") as caught:
        pickle.dumps(store)
    assert CANARY not in str(caught.value)
