"""Clients of S3: shared by threads, not by forked processes, closed without a trace, and careful with where they send."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import boto3
import pytest
from faults.engines import sdk_and_auto  # noqa: F401
from faults.s3_server import S3Server, reply
from faults.scripted_server import Reply, Request, Serve
from faults.setups import REF, OpenS3, run_forked

from transcript_backends import (
    InvalidURLError,
    ObjectTranscriptStore,
    S3TranscriptStore,
    TranscriptStoreError,
    open_store,
)

LINE = b"{}\n"


pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


def test_fifty_threads_may_open_and_use_stores_at_once(open_s3: OpenS3, server: S3Server) -> None:
    barrier = threading.Barrier(50)

    def work(number: int) -> None:
        barrier.wait()
        open_s3().append_segment(REF, number, number, "w", LINE)

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(work, range(50)))
    assert len(server.objects) == 50


def test_threads_that_use_a_new_store_at_once_make_one_client_and_one_probe(open_s3: OpenS3, server: S3Server) -> None:
    store, barrier = open_s3(), threading.Barrier(16)

    def work(number: int) -> None:
        barrier.wait()
        store.append_segment(REF, number, number, "w", LINE)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert len(server.objects) == 16
    assert len(server.requests("PUT")) == 16 + 2


def test_threads_whose_credentials_expire_together_all_succeed(store: ObjectTranscriptStore, server: S3Server) -> None:
    refused: set[str] = set()
    barrier = threading.Barrier(8)

    def expire_once_each(request: Request, serve: Serve) -> Reply | None:
        if request.key in refused:
            return serve()
        refused.add(request.key)
        return reply(400, "ExpiredToken")(request, serve)

    def work(number: int) -> None:
        barrier.wait()
        store.append_segment(REF, number, number, "w", LINE)

    server.always("PUT", expire_once_each)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(server.objects) == 8


def test_thirty_two_threads_fit_into_the_pool_of_connections(
    store: ObjectTranscriptStore, server: S3Server, caplog: pytest.LogCaptureFixture, engine: str
) -> None:
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda number: store.append_segment(REF, number, number, "w", LINE), range(320)))
    assert len(server.objects) == 320
    assert [each.getMessage() for each in caplog.records] == []
    most = 32 if engine == "sdk" else 64  # obstore gives a connection back in a thread of its own, perhaps too late
    assert len({each.port for each in server.requests("PUT")}) <= most, "connections are used again"


def test_a_forked_child_and_its_parent_append_on_connections_of_their_own(
    store: ObjectTranscriptStore, server: S3Server
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


def test_a_fork_while_another_thread_probes_leaves_the_child_able_to_append(open_s3: OpenS3, server: S3Server) -> None:
    store, probing, go_on = open_s3(), threading.Event(), threading.Event()

    def hold(request: Request, serve: Serve) -> Reply:
        probing.set()
        go_on.wait(30)
        return serve()

    server.next("PUT", hold)
    with ThreadPoolExecutor(1) as pool:
        parent = pool.submit(store.append_segment, REF, 0, 0, "parent", LINE)
        assert probing.wait(10)
        status = run_forked(lambda: store.append_segment(REF, 0, 0, "child", LINE))
        go_on.set()
        parent.result()
    assert status == 0
    assert len(server.objects) == 2


def test_a_ready_client_refuses_to_be_used_in_a_forked_child(server: S3Server) -> None:
    client = boto3.client(
        "s3", endpoint_url=server.url, region_name="eu-test-1", aws_access_key_id="A", aws_secret_access_key="S"
    )
    store = S3TranscriptStore(client, "bucket", "p")
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
    assert client.head_bucket(Bucket="bucket"), "the client stays its owner's to close"
    client.close()


@pytest.mark.parametrize("closes", [True, False])
def test_a_program_that_appends_and_exits_prints_nothing(server: S3Server, closes: bool) -> None:
    program = f"""
from transcript_backends import TranscriptRef, open_store
store = open_store("s3://bucket/p?endpoint_url={server.url}", access_key_id="A", secret_access_key="S")
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


def test_a_closed_store_says_so_and_sends_nothing(store: ObjectTranscriptStore, server: S3Server) -> None:
    store.close()
    store.close()
    for call in (
        lambda: store.append_segment(REF, 0, 0, "w", LINE), lambda: store.list_segments(REF), lambda: store.delete(REF),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="closed"):
            call()
    assert server.kinds() == []


@pytest.mark.parametrize("host", ["minio.example", "10.0.0.1:9000", "127.0.0.1.example", "localhost.example"])
def test_plain_http_beyond_this_machine_has_to_be_allowed(host: str) -> None:
    with pytest.raises(InvalidURLError, match="allow_http"):
        open_store(f"s3://bucket?endpoint_url=http://{host}")
    open_store(f"s3://bucket?endpoint_url=http://{host}&allow_http=true").close()


@pytest.mark.parametrize("checksum", [None, "when_required", "when_supported"])
def test_newer_checksum_headers_go_to_a_custom_endpoint_only_where_asked_for(
    open_s3: OpenS3, server: S3Server, checksum: str | None
) -> None:
    store = open_s3(checksum=checksum)
    store.append_segment(REF, 0, 0, "w", LINE)
    for sent in server.requests("PUT"):
        newer = [name for name in sent.headers if name.startswith(("x-amz-checksum", "x-amz-sdk-checksum"))]
        assert bool(newer) == (checksum == "when_supported")
        assert sent.headers["if-none-match"] == "*"
    with store.read_segment(store.list_segments(REF)[0].key) as stream:
        assert stream.read() == LINE


def test_a_store_without_secrets_in_its_arguments_can_be_sent_to_another_process(server: S3Server) -> None:
    store = open_store(f"s3://bucket/p?endpoint_url={server.url}", region="eu-test-1")
    assert str(pickle.loads(pickle.dumps(store))) == "s3://bucket/p"


def test_an_endpoint_from_the_environment_is_a_custom_endpoint_too(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
    with open_store("s3://bucket/p", addressing_style="path", access_key_id="A", secret_access_key="S") as store:
        store.append_segment(REF, 0, 0, "w", LINE)
    assert server.kinds() == ["PUT", "PUT", "DELETE_MANY", "PUT"]
    assert not any(name.startswith("x-amz-checksum") for each in server.requests("PUT") for name in each.headers)
