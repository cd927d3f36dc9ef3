"""The servers of the suite: each started once, on a free port of this machine, and stopped at the end."""

from collections.abc import Iterator

import localstack_servers
import pytest


@pytest.fixture(autouse=True)
def _isolated_from_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of whoever runs the tests, and no credentials that could reach a real cloud."""
    for name in ("TRANSCRIPT_STORE_URL", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in localstack_servers.CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def moto_server() -> Iterator[localstack_servers.Server]:
    with localstack_servers.running("moto") as server:
        yield server


@pytest.fixture(scope="session")
def localstack_server() -> Iterator[localstack_servers.Server]:
    with localstack_servers.running("localstack") as server:
        yield server
