"""The end of a transcript, what is added to it, and where a cursor file goes on."""

import errno
import json
import os
import re
import select
import signal
import time

import pytest

from transcript_backends import ObjectTranscriptStore, StoreUnavailableError, TranscriptRef, open_store
from transcript_backends.cli import tailing

REF = "demo/a/s"
LINES = [b'{"n":%d}\n' % n for n in range(100)]


@pytest.fixture
def append(invoke):
    """Append the lines of these numbers, as another writer each time."""
    return lambda *numbers: invoke("append", REF, "--segment-lines", 3, stdin=b"".join(LINES[n] for n in numbers))


@pytest.fixture
def quick(monkeypatch):
    """No pauses between looks; gives what to do in place of them, one after the other, before Ctrl-C ends all."""
    todo = []

    def wait(seconds):
        todo.append(seconds)
        if not steps:
            raise KeyboardInterrupt
        steps.pop(0)()

    steps = []
    monkeypatch.setattr(tailing, "_wait", wait)
    return steps, todo


def read_until(process, last):
    """The lines of a process that goes on, up to one; within half a minute."""
    output, deadline = b"", time.monotonic() + 30
    while not output.endswith(last):
        assert select.select([process.stdout], [], [], deadline - time.monotonic())[0], output
        chunk = os.read(process.stdout.fileno(), 65536)
        assert chunk, (output, process.stderr.read())
        output += chunk
    return output.splitlines(keepends=True)


def test_the_last_ten_or_n_come_oldest_first_byte_for_byte(invoke, append):
    append(*range(25))
    assert invoke("tail", REF).stdout_bytes == b"".join(LINES[15:25])
    assert invoke("tail", "-n", 3, REF).stdout_bytes == b"".join(LINES[22:25])
    assert invoke("tail", "-n", 1000, REF).stdout_bytes == b"".join(LINES[:25])
    assert invoke("tail", "-n", 0, REF).stdout_bytes == b""
    assert invoke("tail", "-n", 0, "no/such", code=3).stdout == ""


def test_what_is_added_is_shown_once_until_ctrl_c(invoke, append, quick):
    append(*range(25))
    steps, pauses = quick
    steps += [lambda: append(25, 26), lambda: None, lambda: invoke("compact", "--full", REF), lambda: append(27)]
    result = invoke("tail", "-f", "-n", 2, REF, code=130)
    assert result.stdout_bytes == b"".join(LINES[23:28])
    assert result.stderr == "transcripts: error: interrupted\n"
    assert [round(pause, 1) <= 2 * 1.25 for pause in pauses] == [True] * 5


def test_it_looks_ever_more_rarely_until_something_is_added(invoke, append, quick, monkeypatch):
    monkeypatch.setattr(tailing.random, "uniform", lambda *_: 1)
    append(0)
    steps, pauses = quick
    steps += [*([lambda: None] * 7), lambda: append(1), lambda: None]
    invoke("tail", "-f", REF, code=130)
    assert pauses == pytest.approx([0.3, 0.6, 1.2, 2.4, 4.8, 9.6, 10, 10, 0.3, 0.6])


def test_a_transcript_that_does_not_exist_yet_is_waited_for(invoke, append, quick):
    quick[0].append(lambda: append(0))
    result = invoke("tail", "-f", REF, code=130)
    assert result.stdout_bytes == LINES[0]
    assert result.stderr.startswith(f"transcripts: warning: no such transcript yet: {REF}; waiting for it\n")


def test_an_outage_is_told_once_and_outlasted(invoke, append, quick, monkeypatch):
    append(0)
    real = ObjectTranscriptStore.follow

    def gone(*_, **__):
        raise StoreUnavailableError("gone")

    def break_it():
        monkeypatch.setattr(ObjectTranscriptStore, "follow", gone)

    def mend_it():
        monkeypatch.setattr(ObjectTranscriptStore, "follow", real)
        append(1)

    quick[0].extend([break_it, lambda: None, mend_it, break_it])
    result = invoke("tail", "-f", REF, code=130)
    assert result.stdout_bytes == LINES[0] + LINES[1]
    assert result.stderr.count("transcripts: warning: gone; trying again\n") == 2
    break_it()
    assert invoke("tail", "-f", REF, code=6).stderr == "transcripts: error: gone\n"


def test_a_cursor_file_goes_on_where_the_last_run_ended(run, append, tmp_path):
    cursor = tmp_path / "seen.json"
    append(*range(25))
    assert run("tail", "--cursor", cursor, REF).stdout == b"".join(LINES[:25])
    assert run("tail", "--cursor", cursor, REF).stdout == b""
    append(25, 26)
    run("compact", "--full", REF)
    assert run("tail", "--cursor", cursor, "-n", 1, REF).stdout == LINES[25] + LINES[26]
    assert run("tail", "--cursor", cursor, REF).stdout == b""
    assert json.loads(cursor.read_bytes())["ref"] == REF
    assert set(os.listdir(tmp_path)) == {"seen.json", "store"}


def test_a_cursor_file_may_be_where_nothing_can_be_flushed(tmp_path, monkeypatch):
    def fsync(file):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", fsync)
    file = tailing._CursorFile(str(tmp_path / "seen.json"), TranscriptRef.parse(REF))
    file.save("here")
    assert file.load() == "here"


def test_a_cursor_file_may_begin_at_the_end(run, append, tmp_path):
    append(*range(25))
    assert run("tail", "--cursor", tmp_path / "a", "-n", 0, REF).stdout == b""
    assert run("tail", "--cursor", tmp_path / "b", "-n", 2, REF).stdout == LINES[23] + LINES[24]
    append(25)
    for name in "ab":
        assert run("tail", "--cursor", tmp_path / name, REF).stdout == LINES[25]


def test_an_empty_cursor_file_is_one_that_holds_nothing_yet(run, append, tmp_path):
    append(0)
    (tmp_path / "seen").touch()
    assert run("tail", "--cursor", tmp_path / "seen", REF).stdout == LINES[0]
    assert run("tail", "--cursor", tmp_path / "seen", REF).stdout == b""


def test_a_cursor_file_that_is_a_link_stays_one(run, append, tmp_path):
    append(0)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    run("tail", "--cursor", tmp_path / "link", REF)
    assert (tmp_path / "link").is_symlink()
    assert run("tail", "--cursor", tmp_path / "real", REF).stdout == b""


def test_a_transcript_that_does_not_exist_leaves_no_cursor_that_could_hide_it(run, append, tmp_path):
    run("tail", "--cursor", tmp_path / "seen", REF, code=3)
    append(0)
    assert run("tail", "--cursor", tmp_path / "seen", REF).stdout == LINES[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "is no file that 'transcripts tail --cursor' has written"),
        ('{"ref": "demo/a/s", "cursor": 5}', "is no file that 'transcripts tail --cursor' has written"),
        ("[]", "is no file that 'transcripts tail --cursor' has written"),
        ('{"ref": "demo/a/other", "cursor": "x"}', "holds the cursor of demo/a/other, not of demo/a/s"),
        ('{"ref": "demo/a/s", "cursor": "x"}', "is no cursor of a follower"),
    ],
)
def test_a_cursor_that_is_none_is_a_usage_error_and_left_alone(run, append, tmp_path, content, message):
    append(0)
    file = tmp_path / "seen"
    file.write_text(content)
    done = run("tail", "--cursor", file, REF, code=2)
    assert message in done.stderr.decode()
    assert str(file) in done.stderr.decode()
    assert done.stdout == b""
    assert file.read_text() == content


def test_a_cursor_that_could_not_be_kept_is_an_error_before_anything_is_shown(run, append, tmp_path):
    append(0)
    done = run("tail", "--cursor", tmp_path / "no" / "such", REF, code=2)
    assert b"there is no such directory to keep the cursor in" in done.stderr
    assert done.stdout == b""
    assert run("tail", "--cursor", tmp_path, REF, code=2).stdout == b""


def test_a_follower_that_was_killed_may_repeat_and_never_skips(start, append, tmp_path):
    cursor, seen = tmp_path / "seen", []
    for life in range(4):
        append(*range(10 * life, 10 * life + 5))
        process = start("tail", "-f", "--cursor", cursor, REF)
        shown = read_until(process, LINES[10 * life + 4])
        append(*range(10 * life + 5, 10 * life + 10))
        shown += read_until(process, LINES[10 * life + 9])
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert shown == sorted(set(shown), key=LINES.index)
        seen += shown
    assert list(dict.fromkeys(seen)) == LINES[:40]


def test_ctrl_c_ends_it_with_all_that_was_shown_kept(start, run, append, tmp_path):
    cursor = tmp_path / "seen"
    append(*range(5))
    process = start("tail", "-f", "--cursor", cursor, REF)
    assert read_until(process, LINES[4]) == LINES[:5]
    deadline = time.monotonic() + 30
    while not cursor.exists():
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (130, b"", b"transcripts: error: interrupted\n")
    assert run("tail", "--cursor", cursor, REF).stdout == b""


def test_the_cursor_is_not_kept_where_the_output_could_not_be_written(run, append, closed_pipe, tmp_path):
    append(0)
    cursor = tmp_path / "seen"
    assert run("tail", "--cursor", cursor, REF, stdout=closed_pipe, code=141).stderr == b""
    with open("/dev/full", "wb") as full:
        run("tail", "--cursor", cursor, REF, stdout=full, code=1)
    assert not cursor.exists()
    with open(tmp_path / "output", "wb") as output:
        run("tail", "--cursor", cursor, REF, stdout=output)
    assert (tmp_path / "output").read_bytes() == LINES[0]
    assert cursor.exists()


def test_a_follower_that_waits_ends_when_its_reader_does(start, append):
    append(0)
    process = start("tail", "-f", REF)
    assert read_until(process, LINES[0]) == LINES[:1]
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == b""


def test_a_long_look_keeps_its_cursor_as_it_goes(run, invoke, append, tmp_path, monkeypatch):
    append(*range(9))
    kept = []
    monkeypatch.setattr(tailing, "_SAVE_EVERY", 0.0)
    monkeypatch.setattr(tailing._Tailing, "_save", lambda _, cursor: kept.append(cursor))
    invoke("tail", "--cursor", tmp_path / "seen", REF)
    assert len(kept) == 10
    with open_store(f"file://{tmp_path}/store") as store:
        for count, cursor in enumerate(kept[:9], 1):
            with store.follow(TranscriptRef.parse(REF), cursor=cursor, stop_when_idle=0) as follower:
                assert [record.line + b"\n" for record in follower] == LINES[count:9]


def test_on_a_terminal_it_is_pretty_and_names_the_writers(terminal, append):
    append(0)
    append(1)
    shown, _ = terminal("tail", REF)
    first, second = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert "n=0" in first
    assert "n=1" in second
    assert '{"n"' not in shown
    assert len(first.split()) == len(second.split()) == 6  # seq, writer, kind, what it says, size and its unit


def test_the_ends_of_a_compacted_transcript_are_the_same(run, append):
    append(*range(30))
    before = run("tail", "-n", 7, REF).stdout
    run("compact", "--full", REF)
    assert run("tail", "-n", 7, REF).stdout == before == b"".join(LINES[23:30])
