"""Appends to Azure under faults: acknowledged means stored once, an error means what it says, nothing is overwritten."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator

import pytest
from azure.storage.blob import BlobServiceClient
from faults.azure_server import (  # noqa: F401 - fixtures
    ACCOUNT,
    KEY_OF_ACCOUNT,
    AzureServer,
    OpenAzure,
    a_store,
    an_azure_server,
    an_opener,
    expired,
    reply,
    with_status,
    without_an_account,
)
from faults.engines import sdk_and_auto  # noqa: F401
from faults.scripted_server import (
    BROKEN_HTML,
    XHTML,
    Fault,
    Reply,
    Request,
    Serve,
    drop_after_storing,
    drop_before_storing,
    html,
)
from faults.setups import KEY, REF, FakeClock

from transcript_backends import (
    AccessDeniedError,
    AzureTranscriptStore,
    ConditionalWritesUnsupportedError,
    ContainerNotFoundError,
    ObjectTranscriptStore,
    SegmentConflictError,
    StoreUnavailableError,
    TranscriptStoreError,
    UnexpectedResponseError,
)

LINE = b'{"a":1}\n'
OTHER = b'{"a":2}\n'


def append(store: ObjectTranscriptStore, line: bytes = LINE) -> str:
    return store.append_segment(REF, 0, 0, "w", line)


def stored(server: AzureServer) -> dict[str, bytes]:
    return {key: found.body for key, found in server.objects.items()}


@contextlib.contextmanager
def ready_client(server: AzureServer, **options: object) -> Iterator[BlobServiceClient]:
    account = {"account_name": ACCOUNT, "account_key": KEY_OF_ACCOUNT}
    with BlobServiceClient(server.url, credential=account, **options) as client:
        yield client


# --- lost answers -----------------------------------------------------------------------------------------------------


def test_a_create_whose_answer_was_lost_is_found_by_head_and_stored_once(
    store: ObjectTranscriptStore, server: AzureServer
) -> None:
    server.next("PUT", drop_after_storing())
    assert append(store) == KEY
    assert server.kinds() == ["PUT", "HEAD"]
    assert stored(server) == {KEY: LINE}


def test_a_lost_answer_followed_by_a_409_of_ones_own_is_success(store: ObjectTranscriptStore, server: AzureServer) -> None:
    server.next("PUT", drop_after_storing())
    server.next("HEAD", reply(503, "ServerBusy"))
    append(store)
    assert server.kinds() == ["PUT", "HEAD", "PUT", "HEAD"]  # the second PUT was answered 409 BlobAlreadyExists
    assert stored(server) == {KEY: LINE}


def test_a_409_that_the_sdk_met_in_its_own_retry_is_success(server: AzureServer) -> None:
    with ready_client(server, initial_backoff=0, increment_base=0, random_jitter_range=0) as client:
        store = AzureTranscriptStore(client, "container", "p")
        append(store, OTHER)
        server.objects.clear()
        server.log.clear()
        server.next("PUT", drop_after_storing())
        assert append(store) == KEY
    assert server.kinds() == ["PUT", "PUT", "HEAD"]
    assert stored(server) == {KEY: LINE}


def test_a_connection_dropped_before_storing_is_made_up_for_by_the_retry(
    store: ObjectTranscriptStore, server: AzureServer
) -> None:
    server.next("PUT", drop_before_storing(), drop_before_storing())
    append(store)
    assert server.kinds() == ["PUT", "HEAD", "PUT", "HEAD", "PUT"]
    assert stored(server) == {KEY: LINE}
    sent = {(each.body, each.headers["x-ms-meta-tbwrite"], each.headers["if-none-match"]) for each in server.requests("PUT")}
    assert len(sent) == 1, "every try sends the same bytes, write id and condition"


def test_a_read_time_out_whose_put_landed_is_success(open_azure: OpenAzure, server: AzureServer) -> None:
    store = open_azure(read_timeout=0.3)
    append(store)
    server.objects.clear()
    server.log.clear()
    server.next("PUT", server.slow(30))
    append(store)
    assert server.kinds() == ["PUT", "HEAD"]
    assert stored(server) == {KEY: LINE}


@pytest.mark.parametrize("status", [200, 201])
@pytest.mark.parametrize("body", [XHTML, BROKEN_HTML, b""])
def test_a_page_as_answer_to_put_is_not_taken_for_success(
    store: ObjectTranscriptStore, server: AzureServer, body: bytes, status: int
) -> None:
    server.next("PUT", html(status, body))
    append(store)
    assert server.kinds() == ["PUT", "HEAD", "PUT"]
    assert stored(server) == {KEY: LINE}


@pytest.mark.parametrize("engine", ["sdk"])  # obstore takes either, where an ETag comes with it
def test_a_put_answered_200_where_201_is_due_is_looked_into(store: ObjectTranscriptStore, server: AzureServer) -> None:
    server.next("PUT", with_status(200))
    append(store)
    assert server.kinds() == ["PUT", "HEAD"]
    assert stored(server) == {KEY: LINE}


def test_a_proxy_that_answers_every_put_is_named_as_such(store: ObjectTranscriptStore, server: AzureServer) -> None:
    server.always("PUT", html())
    with pytest.raises(UnexpectedResponseError, match=r"may have been stored or not.*check the endpoint"):
        append(store)
    assert stored(server) == {}


def test_a_redirect_is_not_followed(store: ObjectTranscriptStore, server: AzureServer) -> None:
    server.always("LIST", lambda request, serve: Reply(302, headers={"Location": f"{server.url}/container/elsewhere"}))
    with pytest.raises(UnexpectedResponseError, match="HTTP 302"):
        store.list_segments(REF)
    assert server.kinds() == ["LIST"]


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_a_create_is_one_request_whatever_its_size(store: ObjectTranscriptStore, server: AzureServer) -> None:
    body = os.urandom(1 << 20) * 70  # beyond 64 MiB the SDK would send blocks
    server.next("PUT", drop_after_storing())
    store._container.create(KEY, body)
    assert server.kinds() == ["PUT", "HEAD"]
    assert server.objects[KEY].body == body


def test_a_client_that_sends_blocks_overwrites_nothing_either(server: AzureServer) -> None:
    with ready_client(server, max_single_put_size=1000, max_block_size=1000, retry_total=0) as client:
        container = AzureTranscriptStore(client, "container", "p")._container
        container.create(KEY, bytes(2500))
        assert server.kinds()[-4:] == ["PUT_BLOCK", "PUT_BLOCK", "PUT_BLOCK", "PUT_BLOCKS"]
        server.next("PUT_BLOCKS", drop_after_storing())
        container.create("p/2", bytes(2500))
        with pytest.raises(SegmentConflictError):
            container.create(KEY, bytes(2600))
        assert server.requests("PUT_BLOCKS")[-1].headers["if-none-match"] == "*"
    assert {key: len(body) for key, body in stored(server).items()} == {KEY: 2500, "p/2": 2500}


def test_a_put_carries_its_condition_metadata_and_type(store: ObjectTranscriptStore, server: AzureServer) -> None:
    append(store)
    (sent,) = server.requests("PUT")
    assert sent.headers["if-none-match"] == "*"
    assert sent.headers["x-ms-blob-type"] == "BlockBlob"
    assert sent.headers["x-ms-blob-content-type"] == "application/x-ndjson"
    assert sent.headers["x-ms-meta-tbsha256"] == hashlib.sha256(LINE).hexdigest()
    assert sent.body == LINE


def test_tier_and_encryption_scope_go_along_with_each_put(open_azure: OpenAzure, server: AzureServer) -> None:
    append(open_azure(storage_class="Cold", encryption_scope="mine"))
    for sent in server.requests("PUT"):
        assert (sent.headers["x-ms-access-tier"], sent.headers["x-ms-encryption-scope"]) == ("Cold", "mine")


# --- what is temporary ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "times"),
    [
        (503, "ServerBusy", 6),
        (500, "OperationTimedOut", 2),
        (500, "InternalError", 4),
        (500, "", 1),
        (502, "", 1),
        (429, "", 3),
        (408, "", 1),
    ],
)
def test_what_is_temporary_is_tried_again_with_growing_jittered_pauses(
    store: ObjectTranscriptStore, server: AzureServer, clock: FakeClock, status: int, code: str, times: int
) -> None:
    server.next("PUT", *[reply(status, code)] * times)
    append(store)
    assert stored(server) == {KEY: LINE}
    assert len(server.requests("PUT")) == times + 1, "the SDK repeats nothing by itself"
    assert len(clock.pauses) == times
    for index, pause in enumerate(clock.pauses):
        assert 0.05 * 2**index <= pause < 0.1 * 2**index


@pytest.mark.parametrize("fault", [reply(503, "ServerBusy"), drop_before_storing()], ids=["503", "drop"])
def test_retries_used_up_say_that_the_outcome_is_unknown_and_calling_again_is_safe(
    store: ObjectTranscriptStore, server: AzureServer, clock: FakeClock, fault: Fault
) -> None:
    server.always("PUT", fault)
    with pytest.raises(StoreUnavailableError, match=r"may have been stored or not, and calling again .* is safe") as caught:
        append(store)
    for part in (KEY, "az://container", server.url):
        assert part in str(caught.value)
    assert caught.value.__cause__ is not None
    assert len(server.requests("PUT")) == 10
    assert clock.now <= 60
    server.always("PUT", None)
    append(store)
    assert stored(server) == {KEY: LINE}


def test_an_endpoint_nobody_listens_on_is_unavailable_and_named(open_azure: OpenAzure, clock: FakeClock) -> None:
    store = open_azure(endpoint_url=f"http://127.0.0.1:9/{ACCOUNT}")
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:9/.*NewConnectionError"):
        store.list_segments(REF)
    assert clock.now <= 60


def test_a_blob_that_vanishes_between_409_and_head_is_put_again(store: ObjectTranscriptStore, server: AzureServer) -> None:
    server.next("PUT", reply(409, "BlobAlreadyExists"))
    append(store)
    assert server.kinds() == ["PUT", "HEAD", "PUT"]
    assert stored(server) == {KEY: LINE}


# --- taken keys -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("described", [True, False], ids=["with metadata", "without metadata"])
@pytest.mark.parametrize("body", [OTHER, LINE + LINE], ids=["same size", "other size"])
def test_other_content_under_the_key_is_a_conflict_and_stays_untouched(
    store: ObjectTranscriptStore, server: AzureServer, body: bytes, described: bool
) -> None:
    described_by = {"x-ms-meta-tbwrite": "f" * 32, "x-ms-meta-tbsha256": hashlib.sha256(body).hexdigest()}
    before = server.dialect.store(KEY, body, described_by if described else {})
    with pytest.raises(SegmentConflictError, match="nothing was overwritten") as caught:
        append(store)
    assert KEY in str(caught.value)
    assert server.objects == {KEY: before}
    assert len(server.requests("PUT")) == 1


@pytest.mark.parametrize("described", [True, False], ids=["with metadata", "without metadata"])
def test_the_same_content_by_another_client_is_success(
    store: ObjectTranscriptStore, server: AzureServer, described: bool
) -> None:
    described_by = {"X-Ms-Meta-TbWrite": "f" * 32, "X-Ms-Meta-TbSha256": hashlib.sha256(LINE).hexdigest()}
    before = server.dialect.store(KEY, LINE, described_by if described else {})
    append(store)
    assert server.objects == {KEY: before}
    assert server.kinds() == (["PUT", "HEAD"] if described else ["PUT", "HEAD", "GET"])


def test_the_same_append_again_succeeds_and_overwrites_nothing(store: ObjectTranscriptStore, server: AzureServer) -> None:
    append(store)
    before = dict(server.objects)
    append(store)
    assert server.objects == before
    assert server.kinds() == ["PUT", "PUT", "HEAD"]


@pytest.mark.parametrize(
    ("status", "code"), [(409, "BlobAlreadyExists"), (412, "ConditionNotMet"), (403, "UnauthorizedBlobOverwrite")]
)
def test_each_way_to_say_that_the_key_is_taken_leads_to_a_look(
    store: ObjectTranscriptStore, server: AzureServer, status: int, code: str
) -> None:
    server.dialect.store(KEY, OTHER)
    server.always("PUT", reply(status, code))
    with pytest.raises(SegmentConflictError):
        append(store)
    assert server.kinds() == ["PUT", "HEAD", "GET"]  # same size, no metadata: compared


# --- the other 409s and 412s ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "error", "remedy"),
    [
        (409, "BlobImmutableDueToPolicy", AccessDeniedError, "retention policy or a legal hold"),
        (409, "PublicAccessNotPermitted", AccessDeniedError, "no anonymous requests"),
        (409, "BlobUsesCustomerSpecifiedEncryption", AccessDeniedError, "customer_key"),
        (409, "BlobArchived", TranscriptStoreError, "archive tier"),
        (409, "BlobBeingRehydrated", TranscriptStoreError, "archive tier"),
        (409, "SnapshotsPresent", TranscriptStoreError, "snapshots"),
        (409, "InvalidBlobType", TranscriptStoreError, "InvalidBlobType"),
        (409, "ResourceTypeMismatch", TranscriptStoreError, "ResourceTypeMismatch"),
        (409, "SomethingNew", TranscriptStoreError, "SomethingNew"),
        (412, "LeaseIdMissing", TranscriptStoreError, "lease"),
        (412, "LeaseIdMismatchWithBlobOperation", TranscriptStoreError, "LeaseIdMismatch"),
        (400, "InvalidHeaderValue", TranscriptStoreError, "api_version"),
        (409, "ContainerBeingDeleted", ContainerNotFoundError, "ContainerBeingDeleted"),
        (404, "ContainerNotFound", ContainerNotFoundError, "create the bucket"),
        (404, "ResourceNotFound", ContainerNotFoundError, "ResourceNotFound"),
    ],
)
def test_an_answer_of_another_kind_is_raised_at_once_and_never_taken_for_a_taken_key(
    store: ObjectTranscriptStore, server: AzureServer, status: int, code: str, error: type[Exception], remedy: str
) -> None:
    server.always("PUT", reply(status, code))
    with pytest.raises(error, match=remedy) as caught:
        append(store)
    assert not isinstance(caught.value, (SegmentConflictError, StoreUnavailableError))
    assert code in str(caught.value)
    assert server.kinds() == ["PUT"]
    assert stored(server) == {}


@pytest.mark.parametrize("status", [400, 404, 409, 412])
def test_an_error_that_names_no_code_is_no_answer_of_the_service(
    store: ObjectTranscriptStore, server: AzureServer, status: int
) -> None:
    server.always("LIST", html(status))
    with pytest.raises(UnexpectedResponseError, match="check the endpoint"):
        store.list_segments(REF)


# --- credentials ------------------------------------------------------------------------------------------------------


def test_a_sas_that_is_over_is_fetched_anew_once(
    open_azure: OpenAzure, server: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expire(request: Request, serve: Serve) -> Reply | None:
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=new")
        return expired()(request, serve)

    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=1&sig=old")
    store = open_azure(account_key=None)
    append(store)
    server.objects.clear()
    server.log.clear()
    server.next("PUT", expire)
    append(store)
    assert [each.query["sig"] for each in server.requests("PUT")] == ["old", "new"]
    assert stored(server) == {KEY: LINE}


@pytest.mark.parametrize(
    "fault", [expired(), reply(401, "InvalidAuthenticationInfo"), reply(401, "")], ids=["SAS", "token", "?"]
)
def test_credentials_that_stay_expired_are_an_access_error_after_one_renewal(
    open_azure: OpenAzure, server: AzureServer, fault: Fault
) -> None:
    store = open_azure()
    append(store)
    server.log.clear()
    server.always("PUT", fault)
    with pytest.raises(AccessDeniedError, match="expired"):
        append(store)
    assert server.kinds() == ["PUT", "PUT"]


WRONG_KEY = reply(403, "AuthenticationFailed")


@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        *[("append", fault) for fault in (WRONG_KEY, reply(401, "InvalidAuthenticationInfo"), reply(401, ""), expired())],
        *[(operation, WRONG_KEY) for operation in ("list", "read", "delete")],
    ],
    ids=["key", "token", "?", "over", "list", "read", "delete"],
)
def test_a_key_that_is_refused_is_replaced_by_the_one_that_the_environment_has_now(
    open_azure: OpenAzure, server: AzureServer, monkeypatch: pytest.MonkeyPatch, fault: Fault, operation: str
) -> None:
    def unless_new(request: Request, serve: Serve) -> Reply | None:
        return serve() if request.query.get("sig") == "new" else fault(request, serve)

    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=old")
    store = open_azure(account_key=None)
    append(store)
    server.log.clear()
    for kind in ("PUT", "LIST", "GET", "HEAD", "DELETE", "DELETE_MANY"):
        server.always(kind, unless_new)
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=new")
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: store.append_segment(REF, 1, 1, "w", LINE),
        "list": lambda: store.list_segments(REF),
        "read": lambda: store.read_segment(KEY).close(),
        "delete": lambda: store.delete(REF),
    }
    calls[operation]()
    assert [each.query.get("sig") for each in server.log][:2] == ["old", "new"]
    assert len([each for each in server.log if each.query.get("sig") == "old"]) == 1


def test_a_denial_that_stays_is_one_request_each_and_the_next_key_is_used_at_once(
    open_azure: OpenAzure, server: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY_OF_ACCOUNT)
    store = open_azure(account_key=None)
    append(store)
    server.log.clear()
    server.always("PUT", reply(403, "AuthenticationFailed"))
    for number in range(1, 4):
        with pytest.raises(AccessDeniedError, match="AuthenticationFailed"):
            store.append_segment(REF, number, number, "w", LINE)
    assert server.kinds() == ["PUT"] * 3
    refused = server.requests("PUT")[0].headers["authorization"]
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "b3RoZXI=")
    server.always("PUT", None)
    server.log.clear()
    store.append_segment(REF, 5, 5, "w", LINE)
    assert server.kinds() == ["PUT"]
    assert server.requests("PUT")[0].headers["authorization"] != refused


def test_a_blob_of_a_batch_that_is_refused_for_the_credentials_is_deleted_with_others(
    open_azure: OpenAzure, server: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=old")
    store = open_azure(account_key=None)
    keys = [f"{KEY}{number}" for number in range(2)]
    for key in keys:
        server.dialect.store(key, LINE)
    store.list_segments(REF)
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=new")
    server.next("DELETE_MANY", server.dialect.refuse(keys[0], 403, "AuthenticationFailed"))
    assert store._container.delete(keys) == {}
    assert stored(server) == {}


def test_a_ready_client_is_not_renewed(server: AzureServer) -> None:
    server.always("PUT", expired())
    with ready_client(server) as client, pytest.raises(AccessDeniedError, match="expired"):
        append(AzureTranscriptStore(client, "container", "p"))
    assert server.kinds() == ["PUT"]


@pytest.mark.parametrize("proved", [True, False])
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "AuthenticationFailed"),
        (403, "AuthorizationFailure"),
        (403, "AuthorizationPermissionMismatch"),
        (403, "InsufficientAccountPermissions"),
        (403, "AccountIsDisabled"),
        (403, "KeyVaultEncryptionKeyNotFound"),
        (401, "NoAuthenticationInformation"),
        (403, ""),
    ],
)
def test_a_denied_put_is_an_access_error_at_once(
    open_azure: OpenAzure, server: AzureServer, status: int, code: str, proved: bool
) -> None:
    store = open_azure()
    if proved:
        append(store)
        server.log.clear()
    server.always("PUT", reply(status, code))
    with pytest.raises(AccessDeniedError, match="credentials"):
        append(store)
    assert server.kinds() == ["PUT"]


def test_a_clock_that_is_off_is_forgiven_once_and_named(store: ObjectTranscriptStore, server: AzureServer) -> None:
    skewed = reply(403, "AuthenticationFailed", "Request date header too old: 'Fri, 01 Jan 2021 00:00:00 GMT'")
    server.next("PUT", skewed)
    append(store)
    server.next("PUT", skewed, skewed)
    with pytest.raises(AccessDeniedError, match="clock"):
        append(store)
    assert len(server.requests("PUT")) == 4


@pytest.mark.parametrize("fault", [drop_after_storing(), reply(409, "BlobAlreadyExists")], ids=["lost answer", "409"])
def test_a_refused_look_leaves_the_outcome_unknown_and_says_so(
    store: ObjectTranscriptStore, server: AzureServer, fault: Fault
) -> None:
    server.next("PUT", fault)
    server.always("HEAD", reply(403, "AuthorizationPermissionMismatch"))
    with pytest.raises(AccessDeniedError, match=r"may have been stored or not, and calling again .* is safe"):
        append(store)
    assert server.kinds() == ["PUT", "HEAD"]


def test_a_key_that_is_no_key_is_an_access_error_without_a_request(open_azure: OpenAzure, server: AzureServer) -> None:
    with pytest.raises(AccessDeniedError, match=r"no usable (Azure )?credentials"):
        append(open_azure(account_key="not base64"))
    assert server.kinds() == []


# --- conditions -------------------------------------------------------------------------------------------------------


def test_an_endpoint_that_ignores_conditions_is_refused_and_left_clean(open_azure: OpenAzure, server: AzureServer) -> None:
    server.dialect.ignore_conditions = True
    store = open_azure()
    for _ in range(2):
        with pytest.raises(ConditionalWritesUnsupportedError, match=r"conditional_writes=off") as caught:
            append(store)
        assert server.url in str(caught.value)
    assert stored(server) == {}


def test_the_probe_happens_once_a_store_and_is_removed(open_azure: OpenAzure, server: AzureServer) -> None:
    store = open_azure()
    for number in range(3):
        store.append_segment(REF, number, number, "w", LINE)
    assert server.kinds() == ["PUT", "PUT", "DELETE", "PUT", "PUT", "PUT"]
    assert len(server.objects) == 3


@pytest.mark.parametrize(("status", "code"), [(501, ""), (400, "ConditionHeadersNotSupported"), (400, "UnsupportedHeader")])
def test_a_put_whose_condition_is_not_supported_says_so(
    store: ObjectTranscriptStore, server: AzureServer, status: int, code: str
) -> None:
    server.always("PUT", reply(status, code))
    with pytest.raises(ConditionalWritesUnsupportedError, match=r"conditional_writes=off"):
        append(store)


def test_without_conditional_writes_a_read_before_refuses_other_content(open_azure: OpenAzure, server: AzureServer) -> None:
    server.dialect.ignore_conditions = True
    store = open_azure(conditional_writes="off")
    append(store)
    append(store)
    with pytest.raises(SegmentConflictError):
        append(store, OTHER)
    assert stored(server) == {KEY: LINE}
    assert server.kinds() == ["HEAD", "PUT", "HEAD", "HEAD"]
    assert "if-none-match" not in server.requests("PUT")[0].headers


# --- places -----------------------------------------------------------------------------------------------------------


def test_a_missing_container_is_never_an_empty_transcript(open_azure: OpenAzure, server: AzureServer) -> None:
    store = open_azure("nowhere")
    calls: list[Callable[[], object]] = [
        lambda: append(store),
        lambda: store.list_segments(REF),
        lambda: store.read_segment(KEY),
        lambda: store.delete(REF),
        lambda: store.next_seq(REF),
        lambda: list(store.list_refs()),
        lambda: list(store.records(REF)),
        lambda: store._container.exists(KEY),  # an answer to HEAD has no body to name it
    ]
    for call in calls:
        with pytest.raises(ContainerNotFoundError, match="az://nowhere"):
            call()
    assert stored(server) == {}


def test_mixed_faults_in_any_order_end_with_one_object(store: ObjectTranscriptStore, server: AzureServer) -> None:
    faults: list[Fault] = [
        drop_after_storing(), drop_before_storing(), reply(503, "ServerBusy"), with_status(200), html(),
    ]  # fmt: skip
    for number, (first, second) in enumerate(itertools.product(faults, faults)):
        server.next("PUT", first, second)
        key = store.append_segment(REF, number, number, "w", LINE)
        assert server.objects[key].body == LINE
        server.forget("PUT")
    assert len(server.objects) == len(faults) ** 2
