import contextlib
import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from click.testing import CliRunner

from transcript_backends import ObjectTranscriptStore, StoreUnavailableError, TranscriptRef, open_store
from transcript_backends.cli.app import program

COMMAND = [sys.executable, "-W", "error", "-m", "transcript_backends.cli"]


@pytest.fixture
def url(tmp_path, monkeypatch):
    """A store of the test's own, which the environment names."""
    url = f"file://{tmp_path}/store"
    monkeypatch.setenv("TRANSCRIPT_STORE_URL", url)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # what is left in a buffer at the end is a part of the tests
    return url


@pytest.fixture
def run(url):
    """Run the real command to its end."""

    def run(*arguments, stdin=b"", code=0, **settings):
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
        done = subprocess.run([*COMMAND, *map(str, arguments)], input=stdin, timeout=120, check=False, **settings)
        assert done.returncode == code, done
        assert b"Traceback" not in (done.stderr or b"")
        return done

    return run


@pytest.fixture
def terminal(run):
    """Run the real command with one of its outputs on a terminal; gives what is shown there, and what the other output got."""

    def terminal(*arguments, output="stdout", **settings):
        ours, theirs = pty.openpty()
        try:
            done = run(*arguments, **{output: theirs}, **settings)
        finally:
            os.close(theirs)
        shown = b""
        with suppress(OSError):  # how Linux ends a terminal that nobody holds any more
            while chunk := os.read(ours, 65536):
                shown += chunk
        os.close(ours)
        return shown.decode(), done.stderr if output == "stdout" else done.stdout

    return terminal


@pytest.fixture
def start(url):
    """Start the real command; it is killed at the end of the test."""
    processes = []

    def start(*arguments, **settings):
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
        # A suite in the background of a shell ignores Ctrl-C, and what it starts would too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        processes.append(subprocess.Popen([*COMMAND, *map(str, arguments)], **settings))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def invoke(url):
    """Run the command in this process; ``code`` None takes any exit code."""

    def invoke(*arguments, stdin=b"", code=0):
        result = CliRunner().invoke(program, list(map(str, arguments)), input=stdin)
        assert code in (result.exit_code, None), (result.output, result.exception)
        return result

    return invoke


@pytest.fixture
def store(url):
    with open_store(url) as store:
        yield store


@pytest.fixture
def records(store):
    """The records of a transcript as (seq, line)."""
    return lambda ref: [(each.seq, each.line) for each in store.records(TranscriptRef.parse(ref))]


@pytest.fixture
def write(tmp_path):
    """Make an input file."""

    def write(content, name="input.jsonl"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.fixture
def closed_pipe():
    """A pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.fixture
def failing_after():
    """A context in which the store is gone after so many segments."""

    @contextlib.contextmanager
    def failing_after(segments):
        real, remaining = ObjectTranscriptStore.append_segment, iter(range(segments))

        def append_segment(*args, **options):
            if next(remaining, None) is None:
                raise StoreUnavailableError("gone")
            return real(*args, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ObjectTranscriptStore, "append_segment", append_segment)
            yield

    return failing_after
