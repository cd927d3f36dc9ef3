import json
import os
import re
import signal
import threading
import time

import pytest

import transcript_backends.cli.copying as command
from transcript_backends import (
    AccessDeniedError,
    CompactionPolicy,
    ObjectTranscriptStore,
    StoreUnavailableError,
    TranscriptRef,
    open_store,
)

REF = "demo/agent/s1"
CONTENT = b"".join(b'{"n":%d,"text":"%s"}\n' % (n, b"x" * (n % 300)) for n in range(800))
FEW = b"".join(CONTENT.splitlines(keepends=True)[:84])
KB = f"{len(FEW) / 1000:.1f} kB"
MEMBERS = {"ref", "segments_found", "segments", "records", "bytes_written", "payloads", "verified", "beside"}


@pytest.fixture
def copy_url(tmp_path):
    return f"file://{tmp_path}/copy"


@pytest.fixture
def copy(copy_url):
    with open_store(copy_url) as copy:
        yield copy


@pytest.fixture
def fill(store):
    """Transcripts of some lines each, a segment so many lines."""

    def fill(*refs, content=FEW, lines=10, writer="w"):
        given = content.splitlines(keepends=True)
        for ref in map(TranscriptRef.parse, refs):
            for start in range(0, len(given), lines):
                part = given[start : start + lines]
                store.append_segment(ref, start, start + len(part) - 1, writer, b"".join(part))

    return fill


def records(store, ref):
    return [tuple(each) for each in store.records(TranscriptRef.parse(ref))]


def files(folder):
    """The segments in a directory."""
    return sorted(name for _, _, names in os.walk(folder) for name in names if name.endswith(".jsonl"))


# --- what comes out ---------------------------------------------------------------------------------------------------


def test_cp_copies_the_transcripts_named(run, fill, url, copy_url, copy):
    fill(REF, "demo/agent/s2", "demo/agent/s3")
    done = run("cp", url, copy_url, REF, "demo/agent/s2", REF)
    text = f"84 records copied, 9 segments, {KB}; 84 records verified"
    assert sorted(done.stdout.decode().splitlines()) == [
        f"2 transcripts, 2 copied: 168 records copied, 18 segments, {len(FEW) / 500:.1f} kB; 168 records verified",
        f"{REF}: {text}",
        f"demo/agent/s2: {text}",
    ]
    assert done.stderr == b""
    assert list(map(str, copy.list_refs())) == [REF, "demo/agent/s2"]
    assert run("cat", REF, "--store", copy_url).stdout == run("cat", REF).stdout


def test_cp_without_a_name_copies_all_and_again_finds_nothing_to_copy(invoke, fill, url, copy_url):
    refs = [f"demo/agent/s{n}" for n in range(10)]
    fill(*refs)
    assert invoke("cp", url, copy_url).stdout.splitlines()[-1].startswith("10 transcripts, 10 copied: ")
    assert invoke("ls", "--store", copy_url).stdout.splitlines() == refs
    assert invoke("cp", url, copy_url).stdout == "10 transcripts, 0 copied: nothing to copy; 840 records verified\n"
    assert invoke("sync", url, copy_url).stdout == "10 transcripts, 0 copied: nothing to copy\n"
    assert invoke("cp", url, copy_url, refs[0], "--no-verify").stdout.startswith(f"{refs[0]}: nothing to copy\n")


def test_sync_copies_what_is_new_and_never_deletes(invoke, fill, store, url, copy_url, copy):
    fill(REF, "demo/agent/gone")
    invoke("sync", url, copy_url)
    gone = records(store, "demo/agent/gone")
    invoke("rm", "demo/agent/gone")
    invoke("append", REF, stdin=b'{"new":1}\n{"new":2}\n')
    fill("demo/agent/new")
    result = [json.loads(line) for line in invoke("sync", url, copy_url, "--json").stdout.splitlines()]
    assert {each["ref"]: (each["segments"], each["records"], each["verified"]) for each in result} == {
        REF: (1, 2, 2),
        "demo/agent/new": (9, 84, 84),
    }
    assert records(copy, REF) == records(store, REF)
    assert records(copy, "demo/agent/gone") == gone


def test_json_has_the_documented_members(invoke, fill, url, copy_url):
    fill(REF)
    planned = json.loads(invoke("cp", "--json", "--dry-run", url, copy_url).stdout)
    result = json.loads(invoke("cp", "--json", url, copy_url).stdout)
    assert planned.keys() == result.keys() == MEMBERS
    assert {**planned, "verified": 84} == result
    assert result["records"] == 84


def test_a_dry_run_writes_nothing(invoke, fill, url, copy_url, copy):
    fill(REF)
    assert invoke("cp", "--dry-run", url, copy_url).stdout.splitlines() == [
        f"{REF}: 84 records to copy, 9 segments, {KB}",
        f"1 transcript, 1 to copy: 84 records to copy, 9 segments, {KB}",
    ]
    assert list(copy.list_refs()) == []


def test_an_empty_source_says_so(invoke, url, copy_url, tmp_path):
    (tmp_path / "store").mkdir()
    assert invoke("sync", url, copy_url).stdout == f"no transcripts in {url}\n"


def test_what_the_copy_holds_besides_is_a_warning(invoke, fill, url, copy_url):
    fill(REF)
    invoke("append", REF, "--store", copy_url, stdin=b'{"own":1}\n')
    result = invoke("cp", url, copy_url)
    assert result.stderr == f"transcripts: warning: {REF}: {copy_url} holds 1 record that {url} does not\n"
    assert json.loads(invoke("cp", "--json", url, copy_url).stdout)["beside"] == 1


def test_300_transcripts_with_8_jobs(run, fill, store, url, copy_url, copy):
    refs = [f"tenant-{n % 3}/agent/s{n}" for n in range(300)]
    fill(*refs, content=b'{"a":1}\n{"b":2}\n', lines=1)
    for ref in refs[::10]:
        store.compact(TranscriptRef.parse(ref), CompactionPolicy(full=True))
    done = run("cp", "--jobs", 8, url, copy_url)
    assert done.stdout.decode().splitlines()[-1].startswith("300 transcripts, 300 copied: 600 records copied, 570 segments, ")
    assert sorted(map(str, copy.list_refs())) == sorted(refs)
    assert all(records(copy, ref) == records(store, ref) for ref in refs)


@pytest.mark.parametrize("jobs", [1, 3])
def test_so_many_are_copied_at_once(invoke, fill, url, copy_url, monkeypatch, jobs):
    fill(*(f"demo/agent/s{n}" for n in range(9)), content=b"{}\n")
    together, lock, full = [0, 0], threading.Lock(), threading.Event()
    real = command.copy_transcript

    def copy_transcript(*args, **options):
        with lock:
            together[0] += 1
            together[1] = max(together)
            if together[1] == jobs:
                full.set()
        assert full.wait(60)
        try:
            return real(*args, **options)
        finally:
            with lock:
                together[0] -= 1

    monkeypatch.setattr(command, "copy_transcript", copy_transcript)
    invoke("cp", "--jobs", jobs, url, copy_url)
    assert together == [0, jobs]


def test_how_many_are_done_is_shown_on_a_terminal_only(terminal, fill, url, copy_url):
    fill(REF, "demo/agent/s2")
    shown, stdout = terminal("cp", url, copy_url, output="stderr")
    assert "2 transcripts done" in shown
    assert re.fullmatch(rb"(demo/agent/s\d: 84 records copied, [^\n]+\n){2}2 transcripts, 2 copied: [^\n]+\n", stdout)
    shown, _ = terminal("cp", "--json", url, copy_url, output="stderr")
    assert shown == ""


# --- failures ---------------------------------------------------------------------------------------------------------


def test_one_that_fails_is_named_at_the_end_and_stops_no_other(invoke, fill, store, url, copy_url, copy, monkeypatch):
    refs = [f"demo/agent/s{n}" for n in range(6)]
    fill(*refs)
    real = command.copy_transcript

    def copy_transcript(ours, theirs, ref, **options):
        if str(ref) == refs[2]:
            raise AccessDeniedError("not yours; ask for access")
        if str(ref) == refs[4]:
            raise ZeroDivisionError
        return real(ours, theirs, ref, **options)

    monkeypatch.setattr(command, "copy_transcript", copy_transcript)
    result = invoke("cp", url, copy_url, code=1)
    errors = result.stderr.splitlines()
    advice = "what is copied stays copied; run the same command again for the rest"
    assert f"transcripts: error: {refs[2]}: not yours; ask for access; {advice}" in errors
    assert errors[-1] == f"transcripts: error: 2 transcripts failed: {refs[2]}, {refs[4]}"
    assert result.stdout.splitlines()[-1].startswith("4 transcripts, 4 copied: ")
    errors = [json.loads(line) for line in invoke("cp", "--json", url, copy_url, code=1).stderr.splitlines()]
    assert {each["ref"]: each["error"] for each in errors} == {refs[2]: "AccessDeniedError", refs[4]: "ZeroDivisionError"}
    monkeypatch.undo()
    monkeypatch.setenv("TRANSCRIPT_STORE_URL", url)
    invoke("cp", url, copy_url)
    assert all(records(copy, ref) == records(store, ref) for ref in refs)


def test_a_copy_that_is_not_the_same_is_exit_code_1(invoke, fill, url, copy_url, copy, tmp_path):
    fill(REF)
    invoke("cp", url, copy_url)
    segment = tmp_path / "copy" / copy.list_segments(TranscriptRef.parse(REF))[1].key
    segment.write_bytes(segment.read_bytes().replace(b'{"n":12,', b'{"n":21,'))
    result = invoke("cp", url, copy_url, code=1)
    assert f"transcripts: error: {REF}: {copy_url}/{REF}/ does not hold what was read from {url}/{REF}/" in result.stderr
    assert "record 12 of writer w is missing there or another, 1 of 84 in all" in result.stderr
    assert "1 transcript failed: " in result.stderr
    invoke("cp", "--no-verify", url, copy_url)


def test_other_content_in_the_copy_is_an_error(invoke, fill, url, copy_url, copy):
    fill(REF)
    copy.append_segment(TranscriptRef.parse(REF), 0, 9, "w", b'{"other":1}\n' * 10)
    assert "holds other content already" in invoke("cp", url, copy_url, code=1).stderr


def test_unknown_transcripts_are_exit_code_3_and_the_others_are_copied(invoke, fill, url, copy_url, copy):
    fill(REF)
    for options in (["--dry-run"], []):
        result = invoke("cp", *options, url, copy_url, "no/such", REF, code=3)
        assert result.stderr.startswith("transcripts: error: no such transcript: default/no/such (")
    assert list(map(str, copy.list_refs())) == [REF]


def test_a_listing_that_fails_ends_it_after_what_is_under_way(invoke, fill, url, copy_url, monkeypatch):
    fill(REF, "demo/agent/s2")
    real = ObjectTranscriptStore.list_refs

    def list_refs(*args, **options):
        yield from real(*args, **options)
        raise StoreUnavailableError("gone")

    monkeypatch.setattr(ObjectTranscriptStore, "list_refs", list_refs)
    result = invoke("sync", url, copy_url, code=6)
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr.startswith("transcripts: error: gone; what is copied stays copied; ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cp"], "Missing argument 'SRC_URL'"),
        (["cp", "/a"], "Missing argument 'DST_URL'"),
        (["cp", "relative", "/b"], "'relative' is not a store URL"),
        (["sync", "/a", "/b", "demo/agent/s1"], "unexpected extra argument"),
        (["cp", "/a", "/b", "x"], "does not name a transcript"),
        (["cp", "/a", "/b", "--jobs", "0"], "x>=1"),
        (["cp", "s3://bucket/x", "s3://bucket/x/"], "s3://bucket/x is both source and destination"),
        (["sync", "s3://b?region=us-east-1", "s3://b/?region=us-east-1"], "is both source and destination"),
        (["cp", "memory://x/{tenant}", "memory://y"], "has placeholders ({tenant})"),
        (["cp", "s3://bucket?secret_access_key=hunter2", "memory://y"], "looks like a secret"),
        (["--store", "memory://z", "cp", "memory://x", "memory://y"], "--store has no meaning here"),
    ],
)
def test_bad_arguments_are_usage_errors(invoke, arguments, message):
    result = invoke(*arguments, code=2)
    assert message in result.stderr
    assert "hunter2" not in result.stderr


@pytest.mark.parametrize(("ours", "theirs"), [("", "/backup"), ("/deep/er", ""), ("", "/a/b/c"), ("", "/default/x/y/events")])
def test_a_store_inside_the_other_is_another_store(invoke, tmp_path, ours, theirs):
    source, destination = f"file://{tmp_path}/root{ours}", f"file://{tmp_path}/root{theirs}"
    for name in ("s1", "events", "index"):
        invoke("append", f"demo/agent/{name}", "--store", source, stdin=b'{"a":1}\n{"b":2}\n')
    before = invoke("ls", "--store", source).stdout
    for _ in range(2):
        invoke("sync", source, destination)
        assert invoke("ls", "--store", source).stdout == invoke("ls", "--store", destination).stdout == before
    assert "nothing to copy; 6 records verified" in invoke("cp", source, destination).stdout


# --- interruptions ----------------------------------------------------------------------------------------------------


def wait_for(process, folder, segments):
    deadline = time.monotonic() + 60
    while len(files(folder)) < segments:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline


@pytest.mark.parametrize("segments", [1, 40, 200])
def test_after_a_kill_the_same_command_copies_the_rest_and_nothing_twice(
    start, run, fill, store, url, copy_url, copy, tmp_path, segments
):
    fill(REF, content=CONTENT, lines=2)
    process = start("cp", url, copy_url)
    wait_for(process, tmp_path / "copy", segments)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    there = len(files(tmp_path / "copy"))
    assert segments <= there < 400
    result = json.loads(run("cp", "--json", url, copy_url).stdout)
    assert (result["segments"], result["verified"]) == (400 - there, 800)
    assert files(tmp_path / "copy") == files(tmp_path / "store")
    assert records(copy, REF) == records(store, REF)


@pytest.mark.parametrize("compacted", ["source", "copy", "both"])
def test_a_kill_and_a_compaction_before_the_same_command_is_run_again(
    start, run, fill, store, url, copy_url, copy, tmp_path, compacted
):
    fill(REF, content=CONTENT, lines=2)
    before = records(store, REF)
    process = start("cp", url, copy_url)
    wait_for(process, tmp_path / "copy", 60)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    there = len(files(tmp_path / "copy")) * 2
    for name, where in (("source", url), ("copy", copy_url)):
        if compacted in (name, "both"):
            run("compact", "--full", "--all", "--store", where)
    result = json.loads(run("cp", "--json", url, copy_url).stdout)
    assert (result["records"], result["verified"]) == (800 - there, 800)
    assert records(copy, REF) == records(store, REF) == before
    lines = sum(
        (tmp_path / "copy" / each.key).read_bytes().count(b"\n") for each in copy.list_segments(TranscriptRef.parse(REF))
    )
    assert lines == 800


def test_ctrl_c_exits_130_and_says_that_the_same_command_goes_on(start, run, fill, url, copy_url, store, copy, tmp_path):
    refs = [f"demo/agent/s{n}" for n in range(8)]
    fill(*refs, lines=1)
    process = start("sync", url, copy_url)
    wait_for(process, tmp_path / "copy", 50)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == (
        b"transcripts: error: interrupted; what is copied stays copied; run the same command again for the rest"
    )
    run("sync", url, copy_url)
    assert all(records(copy, ref) == records(store, ref) for ref in refs)


def test_writers_at_work_on_the_source_lose_nothing_of_what_they_had_written(start, run, store, url, copy_url, copy):
    ref, stop = TranscriptRef.parse(REF), threading.Event()
    acknowledged = {"v": 0, "w": 0}

    def write(writer):
        with open_store(url) as own:
            while not stop.wait(0.003):
                seq = acknowledged[writer]
                own.append_segment(ref, seq, seq + 1, writer, b'{"n":%d}\n{"n":%d}\n' % (seq, seq + 1))
                acknowledged[writer] = seq + 2

    threads = [threading.Thread(target=write, args=(writer,)) for writer in acknowledged]
    for each in threads:
        each.start()
    try:
        while min(acknowledged.values()) < 60:
            assert all(each.is_alive() for each in threads)
        for _ in range(2):
            before = dict(acknowledged)
            run("cp", url, copy_url)
            copied = records(copy, REF)
            store.compact(ref)
            for writer, count in before.items():
                seqs = [seq for seq, who, _ in copied if who == writer]
                assert seqs == list(range(len(seqs)))
                assert len(seqs) >= count
    finally:
        stop.set()
        for each in threads:
            each.join(60)
    run("cp", url, copy_url)
    assert records(copy, REF) == records(store, REF)
    assert len(records(copy, REF)) == sum(acknowledged.values())
