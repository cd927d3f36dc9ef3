"""Clients of Azure: shared by threads, not by forked processes, closed without a trace, and careful with where they send."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.storage.blob import BlobServiceClient, CustomerProvidedEncryptionKey
from faults.azure_server import (  # noqa: F401 - fixtures
    ACCOUNT,
    KEY_OF_ACCOUNT,
    AzureServer,
    OpenAzure,
    TLSAzureServer,
    a_store,
    a_tls_server,
    an_azure_server,
    an_opener,
    reply,
    without_an_account,
)
from faults.engines import sdk_and_auto  # noqa: F401
from faults.scripted_server import Reply, Request, Serve
from faults.setups import KEY, REF, FakeClock

from transcript_backends import (
    AccessDeniedError,
    AzureTranscriptStore,
    InvalidURLError,
    ObjectTranscriptStore,
    StoreUnavailableError,
    TranscriptStoreError,
    open_store,
)

LINE = b"{}\n"

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


def run_forked(child: Callable[[], object]) -> int:
    """Run `child` in a forked process and give its exit status: 0 where it returned, 14 where it took half a minute."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)
            child()
            status = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# --- threads ----------------------------------------------------------------------------------------------------------


def test_threads_that_use_a_new_store_at_once_make_one_client_and_one_probe(open_azure: OpenAzure, server: AzureServer) -> None:
    store, barrier = open_azure(), threading.Barrier(16)

    def work(number: int) -> None:
        barrier.wait()
        store.append_segment(REF, number, number, "w", LINE)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert len(server.objects) == 16
    assert len(server.requests("PUT")) == 16 + 2


def test_threads_whose_credentials_expire_together_all_succeed(store: ObjectTranscriptStore, server: AzureServer) -> None:
    refused: set[str] = set()
    barrier = threading.Barrier(8)

    def expire_once_each(request: Request, serve: Serve) -> Reply | None:
        if request.key in refused:
            return serve()
        refused.add(request.key)
        return reply(401, "InvalidAuthenticationInfo")(request, serve)

    def work(number: int) -> None:
        barrier.wait()
        store.append_segment(REF, number, number, "w", LINE)

    server.always("PUT", expire_once_each)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(server.objects) == 8


def test_thirty_two_threads_fit_into_the_pool_of_connections(
    store: ObjectTranscriptStore, server: AzureServer, caplog: pytest.LogCaptureFixture, engine: str
) -> None:
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda number: store.append_segment(REF, number, number, "w", LINE), range(320)))
    assert len(server.objects) == 320
    assert [each.getMessage() for each in caplog.records] == []
    most = 32 if engine == "sdk" else 64  # obstore gives a connection back in a thread of its own, perhaps too late
    assert len({each.port for each in server.requests("PUT")}) <= most, "connections are used again"


# --- forks ------------------------------------------------------------------------------------------------------------


def test_a_forked_child_and_its_parent_append_on_connections_of_their_own(
    store: ObjectTranscriptStore, server: AzureServer
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


def test_a_ready_client_refuses_to_be_used_in_a_forked_child(server: AzureServer) -> None:
    with BlobServiceClient(server.url, credential=AzureNamedKeyCredential(ACCOUNT, KEY_OF_ACCOUNT), retry_total=0) as client:
        store = AzureTranscriptStore(client, "container", "p")
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
        assert client.get_container_client("container").get_blob_client(KEY).exists(), "it stays its owner's to close"


# --- life -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closes", [True, False])
def test_a_program_that_appends_and_exits_prints_nothing(server: AzureServer, closes: bool) -> None:
    program = f"""
from transcript_backends import TranscriptRef, open_store
store = open_store("az://container/p?endpoint_url={server.url}", account_key="{KEY_OF_ACCOUNT}")
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


def test_a_closed_store_says_so_and_sends_nothing(store: ObjectTranscriptStore, server: AzureServer) -> None:
    store.close()
    store.close()
    for call in (
        lambda: store.append_segment(REF, 0, 0, "w", LINE), lambda: store.list_segments(REF), lambda: store.delete(REF),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="closed"):
            call()
    assert server.kinds() == []


def test_a_store_without_secrets_in_its_arguments_can_be_sent_to_another_process(
    server: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY_OF_ACCOUNT)
    store = open_store(f"az://container/p?endpoint_url={server.url}", tier="Cool")
    again = pickle.loads(pickle.dumps(store))
    again.append_segment(REF, 0, 0, "w", LINE)
    again.close()
    assert str(again) == "az://container/p"
    assert len(server.objects) == 1


def test_a_netrc_file_does_not_replace_the_signature(
    store: ObjectTranscriptStore, server: AzureServer, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    netrc = os.path.join(str(tmp_path), "netrc")
    with open(netrc, "w") as file:
        file.write("default login me password mine\n")
    monkeypatch.setenv("NETRC", netrc)
    store.append_segment(REF, 0, 0, "w", LINE)
    assert server.requests("PUT")[0].headers["authorization"].startswith(f"SharedKey {ACCOUNT}:")


def test_the_version_of_the_protocol_can_be_chosen(open_azure: OpenAzure, server: AzureServer) -> None:
    open_azure(api_version="2021-12-02").append_segment(REF, 0, 0, "w", LINE)
    assert {each.headers["x-ms-version"] for each in server.log} == {"2021-12-02"}
    with pytest.raises(InvalidURLError, match="Unsupported API version '1999-01-01'"):
        open_azure(api_version="1999-01-01").list_segments(REF)


# --- over TLS ---------------------------------------------------------------------------------------------------------


class Token(NamedTuple):
    token: str
    expires_on: int


class Tokens:
    """A credential whose tokens are numbered."""

    def __init__(self) -> None:
        self.count = 0

    def get_token(self, *scopes: str, **options: object) -> Token:
        self.count += 1
        return Token(f"t{self.count}", int(time.time()) + 3600)


@pytest.fixture
def open_tls(tls_server: TLSAzureServer, clock: FakeClock) -> Iterator[OpenAzure]:
    opened = []

    def open_tls(**options: object) -> ObjectTranscriptStore:
        chosen = {"endpoint_url": tls_server.url, "verify": str(tls_server.certificate), "clock": clock, **options}
        opened.append(open_store("az://container/p", **chosen))
        return opened[-1]

    yield open_tls
    for store in opened:
        store.close()


def tokens_sent(server: AzureServer, kind: str) -> list[str]:
    return [each.headers["authorization"].removeprefix("Bearer ") for each in server.requests(kind)]


def test_a_token_is_kept_until_it_is_refused_and_then_fetched_anew_once(
    open_tls: OpenAzure, tls_server: TLSAzureServer
) -> None:
    store = open_tls(credential=Tokens())
    store.append_segment(REF, 0, 0, "w", LINE)
    tls_server.next("PUT", reply(401, "InvalidAuthenticationInfo"))
    store.append_segment(REF, 1, 1, "w", LINE)
    assert tokens_sent(tls_server, "PUT")[-3:] == ["t1", "t1", "t2"]
    assert len(tls_server.objects) == 2


def test_tokens_that_stay_refused_are_an_access_error_after_one_renewal(
    open_tls: OpenAzure, tls_server: TLSAzureServer
) -> None:
    store = open_tls(credential=Tokens())
    tls_server.always("LIST", reply(401, "InvalidAuthenticationInfo"))
    with pytest.raises(AccessDeniedError, match="expired"):
        store.list_segments(REF)
    assert tokens_sent(tls_server, "LIST") == ["t1", "t2"]


def test_a_token_that_is_refused_as_wrong_is_fetched_anew_and_a_denial_that_stays_doubles_nothing(
    open_tls: OpenAzure, tls_server: TLSAzureServer
) -> None:
    store = open_tls(credential=Tokens())
    store.append_segment(REF, 0, 0, "w", LINE)
    tls_server.log.clear()
    tls_server.next("PUT", reply(403, "AuthenticationFailed"))
    store.append_segment(REF, 1, 1, "w", LINE)
    assert tokens_sent(tls_server, "PUT") == ["t1", "t2"]
    tls_server.log.clear()
    tls_server.always("PUT", reply(403, "AuthenticationFailed"))
    for number in range(2, 5):
        with pytest.raises(AccessDeniedError, match="AuthenticationFailed"):
            store.append_segment(REF, number, number, "w", LINE)
    assert len(tls_server.requests("PUT")) == 2 + 2


def test_batches_carry_the_token_too(open_tls: OpenAzure, tls_server: TLSAzureServer) -> None:
    store = open_tls(credential=Tokens())
    for number in range(3):
        store.append_segment(REF, number, number, "w", LINE)
    assert store.delete(REF).deleted == 3
    assert tls_server.requests("DELETE_MANY")[0].body.count(b"Bearer t1") == 2


def test_a_credential_that_finds_nothing_is_an_access_error_without_a_request(
    open_tls: OpenAzure, tls_server: TLSAzureServer
) -> None:
    from azure.identity import CredentialUnavailableError

    class Nothing:
        def get_token(self, *scopes: str, **options: object) -> Token:
            raise CredentialUnavailableError("nobody is logged in")

    store = open_tls(credential=Nothing())
    for call in (lambda: store.append_segment(REF, 0, 0, "w", LINE), lambda: store.list_segments(REF)):
        with pytest.raises(AccessDeniedError, match="no usable Azure credentials"):
            call()
    assert tls_server.log == []


def failures_of_a_log_in() -> list[tuple[Exception, bool]]:
    """What a credential may raise, and whether it is an outage."""
    from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ServiceRequestError
    from azure.identity import CredentialUnavailableError

    def of(status: int, kind: type[HttpResponseError] = ClientAuthenticationError) -> HttpResponseError:
        error = kind("AADSTS70043: The refresh token has expired")
        error.status_code = status
        return error

    return [
        (CredentialUnavailableError("Please run 'az login'"), False),
        (ClientAuthenticationError("Authentication failed"), False),
        (of(400), False),
        (of(401), False),
        (of(404, HttpResponseError), False),
        (ValueError("not a certificate"), False),
        (FileNotFoundError("/nowhere/token"), False),
        (of(503), True),
        (of(429), True),
        (ServiceRequestError("no route"), True),
        (TimeoutError(), True),
    ]


@pytest.mark.parametrize(
    ("error", "is_outage"), failures_of_a_log_in(), ids=lambda each: str(getattr(each, "status_code", "") or repr(each))[:40]
)
def test_a_log_in_that_is_over_is_an_access_error_and_works_again_after_the_next_one(
    open_tls: OpenAzure, tls_server: TLSAzureServer, error: Exception, is_outage: bool
) -> None:
    class LogIn(Tokens):
        def get_token(self, *scopes: str, **options: object) -> Token:
            if failing:
                raise error
            return super().get_token()

    failing = True
    store = open_tls(credential=LogIn(), max_attempts=2)
    kind = StoreUnavailableError if is_outage else AccessDeniedError
    for call in (lambda: store.append_segment(REF, 0, 0, "w", LINE), lambda: store.list_segments(REF)):
        with pytest.raises(kind, match="while a token was fetched" if is_outage else "no usable Azure.*log in again"):
            call()
    assert tls_server.log == []
    failing = False
    store.append_segment(REF, 0, 0, "w", LINE)
    assert len(store.list_segments(REF)) == 1


def test_a_credential_that_the_environment_describes_wrongly_is_an_access_error(
    open_tls: OpenAzure, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TENANT_ID": "t", "CLIENT_ID": "c", "CLIENT_CERTIFICATE_PATH": "/nowhere/certificate"}.items():
        monkeypatch.setenv(f"AZURE_{name}", value)
    store = open_tls(account_name="devstoreaccount1")
    with pytest.raises(AccessDeniedError, match="no usable Azure credentials"):
        store.list_segments(REF)


def test_a_key_of_ones_own_goes_along_with_writes_reads_and_heads(open_tls: OpenAzure, tls_server: TLSAzureServer) -> None:
    key = CustomerProvidedEncryptionKey("a2V5", "aGFzaA==")
    store = open_tls(account_key=KEY_OF_ACCOUNT, customer_key=key)
    segment = store.append_segment(REF, 0, 0, "w", LINE)
    store.append_segment(REF, 0, 0, "w", LINE)
    with store.read_segment(segment) as stream:
        assert stream.read() == LINE
    for kind in ("PUT", "HEAD", "GET"):
        for sent in tls_server.requests(kind):
            assert sent.headers["x-ms-encryption-key"] == "a2V5"
            assert sent.headers["x-ms-encryption-algorithm"] == "AES256"


def test_a_certificate_nobody_vouches_for_is_an_error_at_once_that_names_the_setting(
    open_tls: OpenAzure, tls_server: TLSAzureServer
) -> None:
    store = open_tls(account_key=KEY_OF_ACCOUNT, verify=None)
    with pytest.raises(TranscriptStoreError, match="see the setting verify"):
        store.list_segments(REF)
    assert tls_server.log == []


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_verification_can_be_switched_off(open_tls: OpenAzure) -> None:
    open_tls(account_key=KEY_OF_ACCOUNT, verify="false").append_segment(REF, 0, 0, "w", LINE)
