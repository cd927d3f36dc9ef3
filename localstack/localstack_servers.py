"""Real S3 servers on this machine, without Docker: ``python -m localstack_servers moto|localstack``.

Each starts on a free port of 127.0.0.1 with a bucket in it, is waited for until it stores and returns an object, and is
stopped with all its children. Tests use the same functions as fixtures.
"""

from __future__ import annotations

import argparse
import contextlib
import os
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
from typing import TYPE_CHECKING, NamedTuple

import boto3
import botocore.exceptions
from botocore.config import Config

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_HERE = Path(__file__).resolve().parent
_READY_SECONDS = 90

#: What the servers take as credentials; they check none.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


class ServerMissingError(RuntimeError):
    """A server is not installed; the message says how to install it."""


class Server(NamedTuple):
    """A running server.

    Attributes:
        name: which.
        endpoint: its address.
        bucket: an empty bucket in it.
    """

    name: str
    endpoint: str
    bucket: str

    def new_bucket(self) -> Server:
        """The same server with a bucket of its own, empty."""
        bucket = f"bucket-{secrets.token_hex(6)}"
        with contextlib.closing(_client(self)) as client:
            client.create_bucket(Bucket=bucket)
        return self._replace(bucket=bucket)

    def url(self, prefix: str = "") -> str:
        """The store URL to use."""
        path = f"/{prefix}" if prefix else ""
        return f"s3://{self.bucket}{path}?endpoint_url={self.endpoint}"


class _Kind(NamedTuple):
    command: Callable[[int], list[str]]
    environment: Callable[[int], dict[str, str]]


def _moto_command(port: int) -> list[str]:
    program = Path(sys.executable).with_name("moto_server")
    if not program.exists():
        raise ServerMissingError("moto is not installed here: pip install 'moto[server,s3]==5.2.5'")
    return [str(program), "-H", "127.0.0.1", "-p", str(port)]


def _localstack_command(port: int) -> list[str]:
    python = Path(os.environ.get("LOCALSTACK_PYTHON") or _HERE.parent / ".venv-localstack" / "bin" / "python")
    if not python.exists():
        raise ServerMissingError(f"LocalStack is not installed in {python.parent.parent}: make .venv-localstack/ready")
    return [str(python), "-m", "localstack.runtime.main"]


def _localstack_environment(port: int) -> dict[str, str]:
    return {
        "SERVICES": "s3",
        "EAGER_SERVICE_LOADING": "1",
        "GATEWAY_LISTEN": f"127.0.0.1:{port}",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "DISABLE_EVENTS": "1",
    }


KINDS = {
    "moto": _Kind(_moto_command, lambda port: {}),
    "localstack": _Kind(_localstack_command, _localstack_environment),
}


@contextlib.contextmanager
def running(name: str, bucket: str = "transcripts") -> Iterator[Server]:
    """Start a server, give it when it works, stop it at the end.

    Raises:
        ServerMissingError: it is not installed.
        RuntimeError: it did not start; the message holds the end of what it printed.
    """
    port = free_port()
    directory = tempfile.mkdtemp(prefix=f"{name}-")  # also keeps this folder off the server's import path
    server = Server(name, f"http://127.0.0.1:{port}", bucket)
    log = Path(directory, "log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            KINDS[name].command(port),
            env={**os.environ, **KINDS[name].environment(port)},
            cwd=directory,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_ready(server, process, log)
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _client(server: Server) -> S3Client:
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        config=Config(connect_timeout=1, read_timeout=10, retries={"total_max_attempts": 1, "mode": "standard"}),
    )


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until an object can be stored and read: an open port comes earlier than that."""
    deadline = time.monotonic() + _READY_SECONDS
    with contextlib.closing(_client(server)) as client:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                client.create_bucket(Bucket=server.bucket)
                client.put_object(Bucket=server.bucket, Key="ready", Body=b"1")
                client.get_object(Bucket=server.bucket, Key="ready")["Body"].read()
                client.delete_object(Bucket=server.bucket, Key="ready")
            except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
                time.sleep(0.1)
            else:
                return
    raise RuntimeError(f"{server.name} did not start; it printed: {log.read_text(errors='replace')[-2000:]}")


def main() -> None:
    """Run a server until Ctrl-C, and say how to use it."""
    parser = argparse.ArgumentParser(prog="localstack_servers", description="Run an S3 server on this machine.")
    parser.add_argument("name", choices=sorted(KINDS))
    with running(parser.parse_args().name) as server:
        print(f"{server.name} is ready. In another terminal:\n")
        for name, value in CREDENTIALS.items():
            print(f"export {name}={value}")
        print(f"export TRANSCRIPT_STORE_URL='{server.url()}'\ntranscripts doctor\n\nCtrl-C stops it.", flush=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    try:
        main()
    except (ServerMissingError, RuntimeError) as problem:
        sys.exit(f"localstack_servers: {problem}")
