"""Readers that are dropped in the middle, also by the garbage collector, keep nobody waiting; nor does the end of a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from faults import dropping
from faults.engines import HAS_OBSTORE
from faults.s3_server import S3Server
from faults.scripted_server import Reply, Request, Serve

from transcript_backends import open_store

SETTINGS = {"region": "us-east-1", "access_key_id": "AKID", "secret_access_key": "never-shown"}
ENGINES = [{"engine": "sdk"}, {"engine": "sdk", "hedge": True}, *([{"engine": "obstore"}] if HAS_OBSTORE else [])]


def drop(url: str, where: str) -> None:
    """Run `dropping`, which takes seconds, and ages where it has to wait for anything."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run(
        [sys.executable, dropping.__file__, url, where],
        env=environment,
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "went on\n", "")


@pytest.mark.parametrize("where", ["main", "thread", "worker", "exit"])
def test_readers_in_memory_are_dropped_without_waiting(where: str) -> None:
    drop("memory", where)


@pytest.mark.parametrize("where", ["main", "thread", "exit"])
@pytest.mark.parametrize("options", ENGINES, ids=lambda options: "-".join(map(str, options.values())))
def test_readers_of_a_server_that_never_answers_are_dropped_without_waiting(
    server: S3Server, options: dict[str, Any], where: str
) -> None:
    options = {"endpoint_url": server.url, "conditional_writes": "off", "read_timeout": 600, **SETTINGS, **options}
    with open_store("s3://bucket", **options) as store:
        stuck = dropping.fill(store)

    def never(request: Request, serve: Serve) -> Reply | None:
        if request.key.endswith(dropping.STUCK) or request.key in stuck:
            return server.slow(3600)(request, serve)
        return serve()

    server.always("GET", never)
    drop(f"s3://bucket {json.dumps(options)}", where)
