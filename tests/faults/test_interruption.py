"""Ctrl-C while a server does not answer: one short flush in all, and the program ends as one that was interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from faults.engines import HAS_OBSTORE
from faults.s3_server import S3Server

HEAD = """
    import asyncio, signal, sys, time
    from transcript_backends import TranscriptRef, aio, open_store, writing
    writing._LAST_SECONDS = 1.0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background of a shell ignores it
    store = open_store("s3://bucket", region="us-east-1", access_key_id="AKID", secret_access_key="x", engine=sys.argv[2],
                       conditional_writes="off", endpoint_url=sys.argv[1], read_timeout=600)
    REF = TranscriptRef("acme", "coder", "s1")
"""
PROGRAMS = {
    "a with block": """
        with store.writer(REF) as writer, store.writer(TranscriptRef("acme", "coder", "s2")) as other:
            writer.append({"n": 0})
            other.append({"n": 0})
            time.sleep(60)
    """,
    "a flush": """
        writer = store.writer(REF)
        writer.append({"n": 0})
        writer.flush()
    """,
    "a close at the end of the block": """
        with store.writer(REF) as writer:
            writer.append({"n": 0})
    """,
    "no block": """
        writer = store.writer(REF)
        writer.append({"n": 0})
        time.sleep(60)
    """,
    "the end of the program": """
        writer = store.writer(REF)
        writer.append({"n": 0})
    """,
    "a task": """
        async def main():
            async with aio.AsyncObjectTranscriptStore(store).writer(REF) as writer:
                await writer.append({"n": 0})
                await asyncio.sleep(60)
        asyncio.run(main())
    """,
}


ENGINES = ["sdk", *(["obstore"] if HAS_OBSTORE else [])]


def interrupted(server: S3Server, program: str, *arguments: str, stdin: str = "", **environment: str) -> tuple[int, str]:
    """Run a program, and press Ctrl-C once half a second after its first put; gives its exit code and its errors."""
    server.always("PUT", server.slow(3600))
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(stdin)
            process.stdin.close()
            process.stdin = None  # which `communicate` would close again
            while not server.requests("PUT"):
                assert process.poll() is None
                time.sleep(0.05)
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            _, stderr = process.communicate(timeout=30)
        finally:
            process.kill()
    assert time.monotonic() - began < 8
    return process.returncode, stderr


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("where", PROGRAMS)
def test_one_interruption_ends_a_program_whose_store_does_not_answer(server: S3Server, where: str, engine: str) -> None:
    program = textwrap.dedent(HEAD) + textwrap.dedent(PROGRAMS[where])
    returncode, stderr = interrupted(server, program, server.url, engine)
    assert "ends with 1 records that are not stored" in stderr
    if where != "the end of the program":
        assert returncode == -signal.SIGINT
        assert stderr.rstrip().endswith("KeyboardInterrupt") or "\nKeyboardInterrupt" in stderr


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("command", ["import", "append"])
def test_one_interruption_ends_a_command_whose_store_does_not_answer(server: S3Server, command: str, engine: str) -> None:
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program += "\nfrom transcript_backends.cli import main; main()"
    url = f"s3://bucket?endpoint_url={server.url}&engine={engine}&conditional_writes=off&read_timeout=600&region=us-east-1"
    keys = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "x", "TRANSCRIPT_STORE_URL": url}
    arguments = [command, *(["-"] if command == "import" else []), "demo/a/s"]
    returncode, stderr = interrupted(server, program, *arguments, stdin="{}\n", **keys)
    assert returncode == 130
    assert "interrupted; " in stderr
