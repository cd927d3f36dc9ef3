"""Clients of GCS: shared by threads, not by forked processes, closed without a trace, and careful with where they send."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from faults.engines import sdk_and_obstore  # noqa: F401
from faults.gcs_server import GCSServer, OpenGCS, a_gcs_server, a_store, an_account, an_opener  # noqa: F401 - fixtures
from faults.scripted_server import Reply, Request, Serve
from faults.setups import KEY, REF, run_forked
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession
from google.cloud import storage

from transcript_backends import (
    GCSTranscriptStore,
    InvalidURLError,
    ObjectTranscriptStore,
    TranscriptStoreError,
    open_store,
)

LINE = b"{}\n"

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


def ready_client(server: GCSServer) -> storage.Client:
    return storage.Client(project="p", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url})


# --- threads ----------------------------------------------------------------------------------------------------------


def test_fifty_threads_may_open_and_use_stores_at_once(open_gcs: OpenGCS, server: GCSServer) -> None:
    barrier = threading.Barrier(50)

    def work(number: int) -> None:
        barrier.wait()
        open_gcs().append_segment(REF, number, number, "w", LINE)

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(work, range(50)))
    assert len(server.objects) == 50


def test_threads_that_use_a_new_store_at_once_make_one_client_and_one_probe(
    open_gcs: OpenGCS, server: GCSServer, account: str
) -> None:
    store, barrier = open_gcs(anon=None, service_account_file=account), threading.Barrier(16)

    def work(number: int) -> None:
        barrier.wait()
        store.append_segment(REF, number, number, "w", LINE)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert len(server.objects) == 16
    assert len(server.requests("PUT")) == 16 + 2
    assert server.dialect.tokens == ["token1"]


def test_thirty_two_threads_fit_into_the_pool_of_connections(
    store: ObjectTranscriptStore, server: GCSServer, caplog: pytest.LogCaptureFixture, engine: str
) -> None:
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda number: store.append_segment(REF, number, number, "w", LINE), range(320)))
    assert len(server.objects) == 320
    assert [each.getMessage() for each in caplog.records] == []
    most = 32 if engine == "sdk" else 64  # obstore gives a connection back in a thread of its own, perhaps too late
    assert len({each.port for each in server.requests("PUT")}) <= most, "connections are used again"


@pytest.mark.parametrize("engine", ["sdk"])
@pytest.mark.parametrize(("size", "full"), [(1, True), (8, False)])
def test_the_pool_is_as_large_as_it_was_set(
    open_gcs: OpenGCS, server: GCSServer, caplog: pytest.LogCaptureFixture, size: int, full: bool
) -> None:
    store, barrier = open_gcs(max_pool_connections=size), threading.Barrier(8)
    server.dialect.store(KEY, LINE)

    def read(number: int) -> None:
        with store.read_segment(KEY) as stream:
            barrier.wait()
            stream.read()

    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))
    assert any("pool is full" in each.getMessage() for each in caplog.records) == full


# --- processes --------------------------------------------------------------------------------------------------------


def test_a_forked_child_and_its_parent_append_on_connections_of_their_own(
    store: ObjectTranscriptStore, server: GCSServer
) -> None:
    store.append_segment(REF, 0, 0, "warm", LINE)

    def child() -> None:
        for number in range(20):
            store.append_segment(REF, number, number, "child", LINE)

    with ThreadPoolExecutor(1) as pool:
        forked = pool.submit(run_forked, child)
        for number in range(20):
            store.append_segment(REF, number, number, "parent", LINE)
        assert forked.result() == 0
    assert len(server.objects) == 41
    ports = {who: {each.port for each in server.requests("PUT") if who in each.key} for who in ("child", "parent")}
    assert ports["child"]
    assert not ports["child"] & ports["parent"]


def test_a_forked_child_fetches_a_token_of_its_own(open_gcs: OpenGCS, server: GCSServer, account: str) -> None:
    store = open_gcs(anon=None, service_account_file=account)
    store.append_segment(REF, 0, 0, "parent", LINE)
    assert run_forked(lambda: store.append_segment(REF, 0, 0, "child", LINE)) == 0
    used = {each.key: each.headers["authorization"] for each in server.requests("PUT") if "child" in each.key}
    assert list(used.values()) == ["Bearer token2"]


def test_a_ready_client_refuses_to_be_used_in_a_forked_child_and_stays_its_owners(server: GCSServer) -> None:
    client = ready_client(server)
    store = GCSTranscriptStore(client, "bucket", "p")
    store.append_segment(REF, 0, 0, "w", LINE)
    told, hear = os.pipe()

    def child() -> None:
        for call in (lambda: store.append_segment(REF, 1, 1, "w", LINE), lambda: store.list_segments(REF)):
            try:
                call()
            except TranscriptStoreError as error:
                os.write(hear, f"{error}\n".encode())

    assert run_forked(child) == 0
    os.close(hear)
    with open(told) as messages:
        assert [("fork" in each, "open the store in this process" in each) for each in messages] == [(True, True)] * 2
    store.append_segment(REF, 1, 1, "w", LINE)
    store.close()
    assert client.get_bucket("bucket").name == "bucket", "the client stays its owner's to close"
    client.close()


@pytest.mark.parametrize("closes", [True, False])
def test_a_program_that_appends_and_exits_prints_nothing(server: GCSServer, closes: bool) -> None:
    program = f"""
from transcript_backends import TranscriptRef, open_store
store = open_store("gs://bucket/p?endpoint_url={server.url}&anon=true")
store.append_segment(TranscriptRef("a", "b", "c"), 0, 0, "w", b"{{}}")
assert list(store.records(TranscriptRef("a", "b", "c")))
{"store.close()" if closes else ""}
"""
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-X", "dev", "-c", program],
        capture_output=True, env=environment, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert len(server.objects) == 1


def test_a_store_without_secrets_in_its_arguments_can_be_sent_to_another_process(server: GCSServer) -> None:
    store = open_store(f"gs://bucket/p?endpoint_url={server.url}", anon=True, storage_class="NEARLINE")
    assert str(pickle.loads(pickle.dumps(store))) == "gs://bucket/p"


def test_a_closed_store_says_so_and_sends_nothing(store: ObjectTranscriptStore, server: GCSServer) -> None:
    store.close()
    store.close()
    for call in (
        lambda: store.append_segment(REF, 0, 0, "w", LINE), lambda: store.list_segments(REF), lambda: store.delete(REF),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="closed"):
            call()
    assert server.kinds() == []


# --- requests ---------------------------------------------------------------------------------------------------------


def use(store: ObjectTranscriptStore) -> None:
    store.append_segment(REF, 0, 0, "w", LINE)
    assert len(list(store.records(REF))) == 1
    store.append_segment(REF, 0, 0, "w", LINE)
    store.delete(REF, purge=True)


def test_no_request_is_made_behind_the_scenes(server: GCSServer) -> None:
    client = ready_client(server)
    threads = set(threading.enumerate())
    use(GCSTranscriptStore(client, "bucket", "p"))
    for thread in set(threading.enumerate()) - threads:  # the SDK asks for the bucket in one, for the sake of its telemetry
        thread.join(2 if "_fetch_background" in repr(thread) else 0)
    assert "BUCKET" not in server.kinds()
    client.get_bucket("bucket")
    assert server.kinds()[-1] == "BUCKET", "which would be seen"
    client.close()


@pytest.mark.parametrize("engine", ["sdk"])
def test_time_outs_and_trust_are_those_that_were_set(open_gcs: OpenGCS, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []
    original = AuthorizedSession.request

    def request(self: AuthorizedSession, *args: Any, **options: Any) -> Any:
        sent.append(options)
        return original(self, *args, **options)

    monkeypatch.setattr(AuthorizedSession, "request", request)
    for options, timeout, verify in [
        ({}, (5, 30), None),
        ({"connect_timeout": 1.5, "read_timeout": "7"}, (1.5, 7.0), None),
        ({"verify": "true"}, (5, 30), True),
        ({"verify": "false"}, (5, 30), False),
        ({"ca_bundle": "/x.pem"}, (5, 30), "/x.pem"),
    ]:
        sent.clear()
        use(open_gcs(**options))  # type: ignore[arg-type]
        assert len(sent) > 5
        assert {(each["timeout"], each["verify"]) for each in sent} == {(timeout, verify)}


def test_a_ready_client_that_retries_by_itself_is_not_asked_to(server: GCSServer) -> None:
    client = ready_client(server)
    store = GCSTranscriptStore(client, "bucket", "p")

    def lose(request: Request, serve: Serve) -> Reply | None:
        serve()
        return None

    store._container.prove_create_only("p")
    server.log.clear()
    server.next("PUT", lose)
    assert store.append_segment(REF, 0, 0, "w", LINE) == KEY
    assert server.kinds() == ["PUT", "HEAD"]
    client.close()


def test_a_ready_client_takes_the_payer_beside_it(server: GCSServer) -> None:
    client = ready_client(server)
    use(GCSTranscriptStore(client, "bucket", user_project="payer"))
    assert {each.query["userProject"] for each in server.log} == {"payer"}
    client.close()


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["gcs.example", "10.0.0.1:9000", "127.0.0.1.example", "localhost.example"])
def test_plain_http_beyond_this_machine_has_to_be_allowed(host: str) -> None:
    with pytest.raises(InvalidURLError, match="allow_http"):
        open_store(f"gs://bucket?endpoint_url=http://{host}")
    open_store(f"gs://bucket?endpoint_url=http://{host}&allow_http=true").close()


@pytest.mark.parametrize("scheme", ["gs", "gcs"])
@pytest.mark.parametrize("form", ["http://{}", "{}"])
def test_the_emulator_of_the_environment_is_used_without_credentials(
    server: GCSServer, monkeypatch: pytest.MonkeyPatch, form: str, scheme: str
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", form.format(server.url.removeprefix("http://")))
    with open_store(f"{scheme}://bucket/p") as store:
        use(store)
        assert server.url in store._container.driver.details
    assert len(server.log) > 5
    assert not any("authorization" in each.headers for each in server.log)


def test_an_endpoint_in_the_url_wins_over_the_emulator_and_keeps_its_credentials(
    server: GCSServer, monkeypatch: pytest.MonkeyPatch, account: str
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", account)
    with open_store(f"gs://bucket/p?endpoint_url={server.url}") as store:
        store.append_segment(REF, 0, 0, "w", LINE)
    assert {each.headers.get("authorization") for each in server.requests("PUT")} == {"Bearer token1"}


def test_without_an_endpoint_it_is_googles() -> None:
    with open_store("gs://bucket") as store:
        assert store._container.driver.details == "endpoint https://storage.googleapis.com"


def test_a_redirect_to_a_login_page_is_no_answer(store: ObjectTranscriptStore, server: GCSServer) -> None:
    from transcript_backends import UnexpectedResponseError

    for target in (f"{server.url}/storage/v1/b/bucket", "/storage/v1/b/bucket/o"):  # another kind of answer; a circle
        server.always("LIST", lambda request, serve, target=target: Reply(302, b"", {"Location": target}))  # type: ignore[misc]
        calls: list[Callable[[], object]] = [lambda: store.list_segments(REF), lambda: store.delete(REF)]
        for call in calls:
            with pytest.raises(UnexpectedResponseError):
                call()
