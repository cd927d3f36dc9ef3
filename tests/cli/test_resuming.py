import os
import signal
import time

import pytest

from transcript_backends import TranscriptRef

REF = "demo/agent/s1"
CONTENT = b"".join(b'{"n":%d,"text":"%s"}\n' % (n, b"x" * (n % 300)) for n in range(4000))


def _stop_after(process, tmp_path, segments, sign):
    """Send a signal once so many segments are in the store."""
    events = tmp_path / "store" / REF / "events"
    deadline = time.monotonic() + 60
    while not events.is_dir() or sum(name.endswith(".jsonl") for name in os.listdir(events)) < segments:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
    process.send_signal(sign)
    return process.communicate(timeout=60)


def _all_there_once(records):
    assert records(REF) == list(enumerate(CONTENT.splitlines()))


@pytest.mark.parametrize("options", [[], ["--segment-lines", "7"]], ids=["default size", "other size"])
@pytest.mark.parametrize("segments", [1, 10, 300])
def test_after_a_kill_the_same_command_stores_the_rest_and_nothing_twice(
    start, run, write, tmp_path, records, segments, options
):
    path = write(CONTENT)
    process = start("import", "--segment-lines", 1, path, REF)
    _stop_after(process, tmp_path, segments, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    message = run("import", *options, path, REF).stdout.decode()
    assert "before them were there already" in message
    assert run("cat", REF).stdout == CONTENT
    _all_there_once(records)


def test_an_import_killed_again_and_again_ends_complete(start, run, write, tmp_path, records):
    path = write(CONTENT)
    for segments, size in ((2, 3), (30, 1), (60, 5)):
        process = start("import", "--segment-lines", size, path, REF)
        _stop_after(process, tmp_path, segments, signal.SIGKILL)
    run("import", path, REF)
    _all_there_once(records)


def test_ctrl_c_exits_130_and_says_that_the_same_command_goes_on(start, run, write, tmp_path, records):
    path = write(CONTENT)
    process = start("import", "--segment-lines", 1, path, REF)
    stdout, stderr = _stop_after(process, tmp_path, 20, signal.SIGINT)
    assert process.returncode == 130
    assert stdout == b""
    assert stderr.startswith(b"transcripts: error: interrupted; ")
    assert stderr.endswith(b" of 4000 lines are stored; run the same command again to go on\n")
    run("import", path, REF)
    _all_there_once(records)


def test_an_import_from_standard_input_or_other_files_with_the_same_lines_goes_on_too(start, run, write, tmp_path, records):
    process = start("import", "--segment-lines", 1, write(CONTENT), REF)
    _stop_after(process, tmp_path, 20, signal.SIGKILL)
    middle = CONTENT.index(b"\n", len(CONTENT) // 2) + 1
    run("import", write(CONTENT[:middle], "one"), "-", REF, stdin=CONTENT[middle:])
    _all_there_once(records)


def test_records_appended_between_the_runs_stay_and_the_import_keeps_its_place(invoke, write, records, failing_after):
    path = write(b'{"a":0}\n{"a":1}\n{"a":2}\n')
    with failing_after(1):
        result = invoke("import", "--segment-lines", 1, path, "demo/s", code=6)
    assert result.stderr == "transcripts: error: gone; 1 of 3 lines are stored; run the same command again to go on\n"
    invoke("append", "demo/s", stdin=b'{"b":1}\n')
    invoke("import", path, "demo/s")
    assert sorted(records("demo/s")) == [(0, b'{"a":0}'), (1, b'{"a":1}'), (1, b'{"b":1}'), (2, b'{"a":2}')]


def test_an_append_cut_short_says_how_much_is_stored(invoke, failing_after):
    with failing_after(1):
        result = invoke("append", "--segment-lines", 2, "demo/a/s", stdin=b"{}\n" * 5, code=6)
    assert "gone; 2 of 5 lines are stored; see with 'transcripts ls demo/a/s' what is there" in result.stderr


def test_an_import_whose_beginning_is_gone_is_a_conflict(invoke, store, write, tmp_path):
    path = write(b'{"a":0}\n{"a":1}\n{"a":2}\n')
    invoke("import", "--segment-lines", 1, path, "demo/a/s")
    first = store.list_segments(TranscriptRef("demo", "a", "s"))[0]
    (tmp_path / "store" / first.key).unlink()
    assert "whose beginning is gone" in invoke("import", path, "demo/a/s", code=4).stderr
    invoke("rm", "demo/a/s")
    invoke("import", path, "demo/a/s")
    assert invoke("cat", "demo/a/s").stdout == '{"a":0}\n{"a":1}\n{"a":2}\n'


def _keys(store):
    return {each.key for each in store.list_segments(TranscriptRef("demo", "a", "s"))}


def test_an_import_after_a_delete_shares_no_key_with_the_one_before_it(invoke, store, write, records, failing_after):
    path = write(b'{"a":0}\n{"a":1}\n{"a":2}\n')
    lives = []
    for _ in range(3):
        with failing_after(1):
            invoke("import", "--segment-lines", 1, path, "demo/a/s", code=6)
        assert "1 before them were there already" in invoke("import", "--segment-lines", 1, path, "demo/a/s").stdout
        assert "nothing to do" in invoke("import", path, "demo/a/s").stdout
        invoke("compact", "--full", "demo/a/s")
        assert "nothing to do" in invoke("import", path, "demo/a/s").stdout
        assert records("demo/a/s") == [(0, b'{"a":0}'), (1, b'{"a":1}'), (2, b'{"a":2}')]
        invoke("rm", "demo/a/s")
        with failing_after(2):
            invoke("import", "--segment-lines", 1, path, "demo/a/s", code=6)
        lives.append(_keys(store))
        invoke("rm", "demo/a/s")
    assert [len(each) for each in lives] == [2, 2, 2]
    assert len(set.union(*lives)) == 6


def test_an_import_under_the_name_of_before_a_delete_is_gone_on_with(invoke, store, write, records):
    """As earlier versions have named it."""
    content = b'{"a":0}\n{"a":1}\n{"a":2}\n'
    path, ref = write(content), TranscriptRef("demo", "a", "s")
    invoke("import", "--segment-lines", 1, path, "demo/a/s")
    (plain,) = {each.writer_id for each in store.list_segments(ref)}
    invoke("rm", "demo/a/s")
    store.append_segment(ref, 0, 0, plain, b'{"a":0}\n')
    assert "1 before them were there already" in invoke("import", path, "demo/a/s").stdout
    assert {each.writer_id for each in store.list_segments(ref)} == {plain}
    assert [line for _, line in records("demo/a/s")] == content.splitlines()
