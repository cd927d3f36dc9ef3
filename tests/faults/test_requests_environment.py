"""The clients of GCS and Azure take from the environment what the SDKs take, but once, and no password from a netrc file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests
from faults.azure_server import ACCOUNT, KEY_OF_ACCOUNT, AzureServer
from faults.gcs_server import GCSServer
from faults.scripted_server import ScriptedServer
from faults.setups import REF

from transcript_backends import ObjectTranscriptStore, open_store
from transcript_backends.drivers.clients import read_environment_once

LINE = b"{}\n"


class Cloud(NamedTuple):
    """A server, and what opens a store on it."""

    server: ScriptedServer
    url: str
    options: dict[str, Any]

    def open(self, endpoint: str) -> ObjectTranscriptStore:
        return open_store(self.url, engine="sdk", endpoint_url=endpoint, allow_http=True, **self.options)


@pytest.fixture(params=["gcs", "azure"])
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    server: ScriptedServer = GCSServer() if request.param == "gcs" else AzureServer()
    if request.param == "gcs":
        yield Cloud(server, "gs://bucket/p", {"anon": True})
    else:
        yield Cloud(server, "az://container/p", {"account_name": ACCOUNT, "account_key": KEY_OF_ACCOUNT})
    server.close()
    assert server.errors == []


def test_requests_go_through_the_proxy_that_the_environment_names(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, path = cloud.server.url.removesuffix(f"/{ACCOUNT}"), cloud.server.url.partition(f"/{ACCOUNT}")[1]
    monkeypatch.setenv("http_proxy", proxy)
    with cloud.open(f"http://storage.invalid{path}") as store:
        store.append_segment(REF, 0, 0, "w", LINE)
        assert len(store.list_segments(REF)) == 1
    assert {each.headers["host"] for each in cloud.server.log} == {"storage.invalid"}


def test_hosts_that_need_no_proxy_are_asked_without(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with cloud.open(cloud.server.url) as store:
        store.append_segment(REF, 0, 0, "w", LINE)
    assert cloud.server.requests("PUT")


def test_a_netrc_file_adds_no_password(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login me password mine\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with cloud.open(cloud.server.url) as store:
        store.append_segment(REF, 0, 0, "w", LINE)
    assert not any(each.headers.get("authorization", "").startswith("Basic") for each in cloud.server.log)


def test_the_environment_is_read_once_and_not_for_each_request(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    with cloud.open(cloud.server.url) as store:
        store.append_segment(REF, 0, 0, "w", LINE)
        monkeypatch.setenv("http_proxy", "http://proxy.invalid:1")
        store.append_segment(REF, 1, 1, "w", LINE)


def test_trust_and_proxies_are_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:1")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/authorities.pem")
    with requests.Session() as session:
        read_environment_once(session, "https://storage.invalid")
        assert (session.trust_env, session.verify) == (False, "/authorities.pem")
        assert session.proxies["https"] == "http://proxy.invalid:1"
