"""The servers of the suite: each started once, on a free port of this machine, and stopped at the end."""

import os
from collections.abc import Iterator
from typing import Any

import localstack_servers
import pytest


@pytest.fixture(autouse=True)
def _isolated_from_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of whoever runs the tests, and no credentials that could reach a real cloud."""
    monkeypatch.delenv("TRANSCRIPT_STORE_URL", raising=False)
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR_HOST")):
            monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in localstack_servers.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def _fixture(name: str) -> Any:
    def server() -> Iterator[localstack_servers.Server]:
        with localstack_servers.running(name) as running:
            yield running

    return pytest.fixture(scope="session", name=f"{name.removesuffix('-server').replace('-', '_')}_server")(server)


_moto = _fixture("moto")
_localstack = _fixture("localstack")
_ministack = _fixture("ministack")
_seaweedfs = _fixture("seaweedfs")
_fake_gcs = _fixture("fake-gcs-server")
_azurite = _fixture("azurite")
