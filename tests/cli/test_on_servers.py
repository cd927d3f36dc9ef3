"""The command line against S3 servers, as `test_resuming.py` and `test_importing.py` do against files."""

import json
import random
import signal
import time

import pytest

from transcript_backends import TranscriptRef, open_store

REF = TranscriptRef.parse("demo/agent/s1")
_random = random.Random(7)
CONTENT = b"".join(
    json.dumps({"n": n, "text": "".join(_random.choices("abc \u2028\U0001f642\n\ud83d", k=n % 2000))}).encode() + b"\n"
    for n in range(1500)
)


@pytest.fixture(params=["moto_server", "localstack_server"])
def url(request, monkeypatch):
    """A bucket of the test's own, which the environment names."""
    url = request.getfixturevalue(request.param).new_bucket().url("some/prefix")
    monkeypatch.setenv("TRANSCRIPT_STORE_URL", url)
    return url


def test_an_import_comes_back_byte_for_byte(run, write):
    run("import", "--segment-bytes", 100_000, write(CONTENT), REF)
    assert run("cat", REF).stdout == CONTENT


def test_an_import_that_was_killed_goes_on(start, run, write, url):
    path = write(CONTENT)
    process = start("import", "--segment-lines", 1, path, REF)
    deadline = time.monotonic() + 60
    with open_store(url) as store:
        while len(store.list_segments(REF)) < 20:
            assert process.poll() is None
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert 20 <= len(store.list_segments(REF)) < 1500
        assert b"before them were there already" in run("import", path, REF).stdout
        assert run("cat", REF).stdout == CONTENT
        assert [record.seq for record in store.records(REF)] == list(range(1500))


def test_a_transcript_is_listed_checked_and_removed(run, write):
    run("append", REF, stdin=b'{"a":1}\n')
    assert run("ls").stdout.decode().split() == [str(REF)]
    assert run("doctor").returncode == 0
    run("rm", REF)
    assert run("ls").stdout == b""
    run("cat", REF, code=3)
