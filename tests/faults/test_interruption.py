"""Ctrl-C while a server gives no answer: one short flush in all, and the program ends as one that was interrupted."""

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
    def say(): print("ready", flush=True)
"""
PROGRAMS = {
    "a with block": """
        with store.writer(REF) as writer, store.writer(TranscriptRef("acme", "coder", "s2")) as other:
            writer.append({"n": 0})
            other.append({"n": 0})
            say()
            time.sleep(60)
    """,
    "a flush": """
        writer = store.writer(REF)
        writer.append({"n": 0})
        say()
        writer.flush()
    """,
    "a close at the end of the block": """
        with store.writer(REF) as writer:
            writer.append({"n": 0})
            say()
    """,
    "no block": """
        writer = store.writer(REF)
        writer.append({"n": 0})
        say()
        time.sleep(60)
    """,
    "the end of the program": """
        writer = store.writer(REF)
        writer.append({"n": 0})
        say()
    """,
    "a task": """
        async def main():
            async with aio.AsyncObjectTranscriptStore(store).writer(REF) as writer:
                await writer.append({"n": 0})
                say()
                await asyncio.sleep(60)
        asyncio.run(main())
    """,
}


@pytest.mark.parametrize("engine", ["sdk", *(["obstore"] if HAS_OBSTORE else [])])
@pytest.mark.parametrize("where", PROGRAMS)
def test_one_interruption_ends_a_program_whose_store_does_not_answer(server: S3Server, where: str, engine: str) -> None:
    server.always("PUT", server.slow(3600))
    program = textwrap.dedent(HEAD) + textwrap.dedent(PROGRAMS[where])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", program, server.url, engine]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            _, stderr = process.communicate(timeout=30)
        finally:
            process.kill()
    assert time.monotonic() - began < 8
    assert "ends with 1 records that are not stored" in stderr
    if where != "the end of the program":
        assert process.returncode == -signal.SIGINT
        assert stderr.rstrip().endswith("KeyboardInterrupt") or "\nKeyboardInterrupt" in stderr


@pytest.mark.parametrize("engine", ["sdk", *(["obstore"] if HAS_OBSTORE else [])])
@pytest.mark.parametrize("command", ["import", "append"])
def test_one_interruption_ends_a_command_whose_store_does_not_answer(server: S3Server, command: str, engine: str) -> None:
    server.always("PUT", server.slow(3600))
    url = f"s3://bucket?endpoint_url={server.url}&engine={engine}&conditional_writes=off&read_timeout=600&region=us-east-1"
    keys = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "x", "TRANSCRIPT_STORE_URL": url}
    environment = {**os.environ, **keys, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    start += "\nfrom transcript_backends.cli import main; main()"
    arguments = [sys.executable, "-c", start, command, *(["-"] if command == "import" else []), "demo/a/s"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(arguments, env=environment, **pipes) as process:  # type: ignore[call-overload]
        try:
            process.stdin.write(b"{}\n")
            process.stdin.close()
            process.stdin = None
            while not server.requests("PUT"):
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            _, stderr = process.communicate(timeout=30)
        finally:
            process.kill()
    assert time.monotonic() - began < 8
    assert process.returncode == 130
    assert b"interrupted; " in stderr
