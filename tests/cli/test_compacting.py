import json
import re
import signal
import threading

import pytest

from transcript_backends import AccessDeniedError, ObjectTranscriptStore, StoreUnavailableError, TranscriptRef

CONTENT = b"".join(b'{"n":%d,"text":"%s"}\n' % (n, b"x" * (50 + n % 7)) for n in range(60))
REFS = [f"{tenant}/{agent}/s{n}" for tenant in ("acme", "umbrella") for agent in ("coder", "tester") for n in range(5)]


@pytest.fixture
def fill(invoke):
    """Import the same lines into transcripts, a segment a line."""

    def fill(*refs, lines=1):
        for ref in refs:
            invoke("import", "-", ref, "--segment-lines", lines, stdin=CONTENT)

    return fill


@pytest.fixture
def segments(store):
    return lambda ref: len(store.list_segments(TranscriptRef.parse(ref)))


def test_compact_merges_and_cat_gives_the_same_bytes(run, fill, segments):
    fill("demo/a/s")
    done = run("compact", "demo/a/s")
    size = f"{len(CONTENT) / 1000:.1f} kB written"
    assert done.stdout.decode().splitlines() == [
        f"demo/a/s: 60 segments -> 1, {size}",
        f"1 transcript, 1 compacted: 60 segments -> 1, {size}",
    ]
    assert done.stderr == b""
    assert run("cat", "demo/a/s").stdout == CONTENT
    assert segments("demo/a/s") == 1


def test_compacting_again_says_that_there_is_nothing_to_merge(invoke, fill):
    fill("demo/a/s")
    invoke("compact", "demo/a/s")
    assert invoke("compact", "demo/a/s").stdout == (
        "demo/a/s: 1 segment, nothing to merge\n1 transcript, 0 compacted: 1 segment -> 1, 0 bytes written\n"
    )
    assert invoke("compact", "--all").stdout == "1 transcript, 0 compacted: 1 segment -> 1, 0 bytes written\n"


def test_all_is_narrowed_by_tenant_and_agent(invoke, fill, segments):
    fill(*REFS)
    lines = invoke("compact", "--all", "--tenant", "acme", "--agent", "coder").stdout.splitlines()
    assert sorted(line.partition(":")[0] for line in lines[:-1]) == REFS[:5]
    assert lines[-1].startswith("5 transcripts, 5 compacted: 300 segments -> 5, ")
    assert [segments(ref) for ref in REFS] == [1] * 5 + [60] * 15
    invoke("compact", "--all")
    assert [segments(ref) for ref in REFS] == [1] * 20
    assert all(invoke("cat", ref).stdout_bytes == CONTENT for ref in REFS)


def test_the_policys_options_are_used(invoke, fill, segments):
    fill("demo/a/s", lines=15)
    for options in ([], ["--min-segments", 5], ["--full", "--min-age", 3600], ["--full", "--target-bytes", 1]):
        invoke("compact", "demo/a/s", *options)
        assert segments("demo/a/s") == 4, options
    invoke("compact", "demo/a/s", "--full", "--target-bytes", len(CONTENT) * 2 // 3)
    assert segments("demo/a/s") == 2
    invoke("compact", "demo/a/s", "--full")
    assert segments("demo/a/s") == 1
    assert invoke("cat", "demo/a/s").stdout_bytes == CONTENT


# --- dry run ----------------------------------------------------------------------------------------------------------


def test_a_dry_run_writes_nothing_and_its_numbers_are_those_of_the_compaction_after_it(invoke, fill, store, monkeypatch):
    fill("demo/a/s")
    before = store.list_segments(TranscriptRef("demo", "a", "s"))
    text = invoke("compact", "--dry-run", "demo/a/s").stdout
    plan = json.loads(invoke("compact", "--dry-run", "--json", "demo/a/s").stdout)
    assert store.list_segments(TranscriptRef("demo", "a", "s")) == before
    expected = f"60 segments -> 1, {len(CONTENT) / 1000:.1f} kB to write, 60 gets, 2 puts, 2 lists, 1 delete"
    assert text == f"demo/a/s: {expected}\n1 transcript, 1 to compact: {expected}\n"

    from transcript_backends.drivers.local import LocalObjectStore

    puts = []
    real = LocalObjectStore.put
    monkeypatch.setattr(LocalObjectStore, "put", lambda *args, **kwargs: puts.append(1) or real(*args, **kwargs))
    result = json.loads(invoke("compact", "--json", "demo/a/s").stdout)
    common = plan.keys() & result.keys()
    assert common == {"ref", "segments_before", "segments_after", "bytes_written"}
    assert {name: plan[name] for name in common} == {name: result[name] for name in common}
    assert plan["puts"] == len(puts) == 2


def test_a_dry_run_of_all_sums_up(invoke, fill):
    fill(*REFS[:3])
    fill("demo/a/small", lines=60)
    lines = invoke("compact", "--dry-run", "--all", "--jobs", 1).stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:3]] == REFS[:3]
    assert lines[3].startswith("4 transcripts, 3 to compact: 181 segments -> 4, ")
    assert lines[3].endswith(", 180 gets, 6 puts, 7 lists, 3 deletes")
    assert len(lines) == 4


# --- splitting the work -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_shards_are_a_partition_that_is_the_same_everywhere(invoke, fill, shards):
    fill(*REFS, lines=60)
    seen = []
    for number in range(1, shards + 1):
        result = invoke("compact", "--all", "--dry-run", "--json", "--shard", f"{number}/{shards}")
        seen += [json.loads(line)["ref"] for line in result.stdout.splitlines()]
    assert sorted(seen) == sorted(REFS)


def test_a_shard_is_given_by_the_sha256_of_the_transcripts_prefix(invoke, fill):
    fill("acme/coder/s0", lines=60)  # sha256("acme/coder/s0/") is 59...07 in hexadecimal
    import hashlib

    number = int(hashlib.sha256(b"acme/coder/s0/").hexdigest(), 16) % 3 + 1
    assert invoke("compact", "--all", "--dry-run", "--json", "--shard", f"{number}/3").stdout
    assert not invoke("compact", "--all", "--dry-run", "--json", "--shard", f"{number % 3 + 1}/3").stdout


@pytest.mark.parametrize("jobs", [1, 3])
def test_so_many_are_compacted_at_once_and_no_more_are_taken_from_the_listing(invoke, fill, monkeypatch, jobs):
    fill(*REFS[:10], lines=60)
    together, lock, full = [0, 0, 0], threading.Lock(), threading.Event()
    real_compact, real_list = ObjectTranscriptStore.compact, ObjectTranscriptStore.list_refs

    def compact(*args):
        with lock:
            together[0] += 1
            together[1] = max(together[:2])
            if together[1] == jobs:
                full.set()
        assert full.wait(60)
        try:
            return real_compact(*args)
        finally:
            with lock:
                together[0] -= 1
                together[2] += 1

    taken = []

    def list_refs(*args, **options):
        for ref in real_list(*args, **options):
            taken.append(ref)
            assert len(taken) <= together[2] + jobs
            yield ref

    monkeypatch.setattr(ObjectTranscriptStore, "compact", compact)
    monkeypatch.setattr(ObjectTranscriptStore, "list_refs", list_refs)
    assert "10 transcripts, 0 compacted" in invoke("compact", "--all", "--jobs", jobs).stdout
    assert together == [0, jobs, 10]


# --- failures ---------------------------------------------------------------------------------------------------------


def test_one_that_fails_is_named_and_does_not_stop_the_others(invoke, fill, monkeypatch, segments):
    fill(*REFS[:4])
    real = ObjectTranscriptStore.compact

    def compact(self, ref, policy):
        if str(ref) == REFS[1]:
            raise AccessDeniedError("not yours; ask for access")
        if str(ref) == REFS[2]:
            raise ZeroDivisionError
        return real(self, ref, policy)

    monkeypatch.setattr(ObjectTranscriptStore, "compact", compact)
    result = invoke("compact", "--all", "--json", code=1)
    errors = {each["ref"]: each for each in map(json.loads, result.stderr.splitlines())}
    assert {ref: each["error"] for ref, each in errors.items()} == {
        REFS[1]: "AccessDeniedError",
        REFS[2]: "ZeroDivisionError",
    }
    assert [segments(ref) for ref in REFS[:4]] == [1, 60, 60, 1]
    result = invoke("compact", *REFS[:2], code=1)
    assert f"transcripts: error: {REFS[1]}: not yours; ask for access; what is merged stays merged" in result.stderr
    assert "1 transcript, 0 compacted" in result.stdout


def test_a_listing_that_fails_ends_it_after_what_is_under_way(invoke, fill, monkeypatch):
    fill(*REFS[:2])
    real = ObjectTranscriptStore.list_refs

    def list_refs(*args, **options):
        yield from real(*args, **options)
        raise StoreUnavailableError("gone")

    monkeypatch.setattr(ObjectTranscriptStore, "list_refs", list_refs)
    result = invoke("compact", "--all", code=6)
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr == "transcripts: error: gone; what is merged stays merged; run it again for the rest\n"


def test_what_could_not_be_merged_is_shown_and_no_error(invoke, fill, store, tmp_path):
    fill("demo/a/s")
    damaged = store.list_segments(TranscriptRef("demo", "a", "s"))[30].key
    (tmp_path / "store" / damaged).write_bytes(b"{broken\n")
    result = invoke("compact", "demo/a/s", "--full")
    assert result.stdout.startswith("demo/a/s: 60 segments -> 3, ")
    assert result.stderr.startswith(f"transcripts: warning: demo/a/s: {damaged} is left as it is: record 30 is no JSON object")
    (left,) = json.loads(invoke("compact", "--json", "demo/a/s", "--full", "--min-segments", 2).stdout)["left"]
    assert left == {"key": damaged, "reason": "record 30 is no JSON object"}


def test_unknown_transcripts_are_exit_code_3_and_the_others_are_compacted(invoke, fill, segments):
    fill("demo/a/s")
    for options in (["--dry-run"], []):
        result = invoke("compact", *options, "no/such", "demo/a/s", code=3)
        assert result.stderr.startswith("transcripts: error: no such transcript: default/no/such (")
        assert result.stdout.startswith("demo/a/s: 60 segments -> 1, ")
    assert segments("demo/a/s") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give REFs, or --all"),
        (["--all", "a/b"], "but not both"),
        (["a/b", "--tenant", "x"], "choose among --all"),
        (["a/b", "--shard", "1/2"], "choose among --all"),
        (["--all", "--shard", "0/2"], "is not I/N"),
        (["--all", "--shard", "3/2"], "is not I/N"),
        (["--all", "--shard", "1"], "is not I/N"),
        (["--all", "--jobs", "0"], "x>=1"),
        (["--all", "--min-segments", "1"], "x>=2"),
        (["--all", "--min-age", "-1"], "x>=0"),
        (["a"], "does not name a transcript"),
    ],
)
def test_bad_arguments_are_usage_errors(invoke, arguments, message):
    assert message in invoke("compact", *arguments, code=2).stderr


def test_json_has_the_documented_members(invoke, fill):
    fill("demo/a/s")
    plan = json.loads(invoke("compact", "--json", "--dry-run", "demo/a/s").stdout)
    changes = {"ref", "segments_before", "segments_after", "bytes_written"}
    assert set(plan) == {*changes, "gets", "puts", "lists", "deletes"}
    result = json.loads(invoke("compact", "--json", "demo/a/s").stdout)
    assert result == {
        "ref": "demo/a/s", "segments_before": 60, "segments_after": 1, "bytes_written": len(CONTENT), "left": []
    }  # fmt: skip


def test_ctrl_c_ends_it_at_once_and_no_record_is_lost(start, run, fill):
    fill(*REFS)
    process = start("compact", "--all", "--jobs", 2)
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate(timeout=60)
    assert b"60 segments -> 1" in first
    if process.returncode == 130:
        assert stderr == b"transcripts: error: interrupted; what is merged stays merged; run it again for the rest\n"
    else:  # it was faster
        assert (process.returncode, stderr) == (0, b"")
        assert b"20 transcripts" in rest
    run("compact", "--all")
    assert all(run("cat", ref).stdout == CONTENT for ref in REFS[::6])


def test_how_many_are_done_is_shown_on_a_terminal_only(terminal, fill):
    fill(*REFS[:3])
    shown, stdout = terminal("compact", "--all", output="stderr")
    assert "3 transcripts done" in shown
    assert re.fullmatch(rb"(acme/coder/s\d: 60 segments -> 1, [^\n]+\n){3}3 transcripts, 3 compacted[^\n]+\n", stdout)
    shown, _ = terminal("compact", "--all", "--json", output="stderr")
    assert shown == ""


# --- imports afterwards -----------------------------------------------------------------------------------------------


def test_importing_again_after_a_compaction_does_nothing(invoke, write, records):
    path = write(CONTENT)
    invoke("append", "demo/a/s", stdin=b'{"before":1}\n')
    invoke("import", "--segment-lines", 2, path, "demo/a/s")
    invoke("append", "demo/a/s", stdin=b'{"after":1}\n')
    before = records("demo/a/s")
    for options in ([], ["--full"]):
        invoke("compact", *options, "demo/a/s")
        result = json.loads(invoke("import", "--json", path, "demo/a/s").stdout)
        assert (result["imported"], result["already"], result["seq_start"], result["seq_end"]) == (0, 60, 1, 60)
    assert records("demo/a/s") == before


@pytest.mark.parametrize("there", [1, 20, 59])
def test_an_import_cut_short_and_compacted_goes_on_without_repeat_or_miss(invoke, write, records, there, failing_after):
    path = write(CONTENT)
    _import_in_part(invoke, failing_after, path, there)
    invoke("append", "demo/a/other", stdin=b"{}\n")
    invoke("compact", "--full", "--all")
    result = json.loads(invoke("import", "--json", path, "demo/a/s").stdout)
    assert (result["already"], result["imported"]) == (there, 60 - there)
    assert records("demo/a/s") == list(enumerate(CONTENT.splitlines()))
    assert "nothing to do" in invoke("import", path, "demo/a/s").stdout


def test_an_import_killed_and_compacted_goes_on(start, run, write, tmp_path, records):
    path = write(CONTENT * 50)
    process = start("import", "--segment-lines", 1, path, "demo/a/s")
    events = tmp_path / "store" / "demo" / "a" / "s" / "events"
    while not events.is_dir() or len(list(events.glob("*.jsonl"))) < 40:
        assert process.poll() is None
    process.kill()
    process.communicate()
    run("compact", "demo/a/s")
    assert b"before them were there already" in run("import", path, "demo/a/s").stdout
    assert records("demo/a/s") == list(enumerate((CONTENT * 50).splitlines()))


def test_another_import_into_a_compacted_transcript_goes_after_it(invoke, write, records):
    invoke("import", write(CONTENT), "demo/a/s", "--segment-lines", 1)
    invoke("compact", "demo/a/s")
    other = write(b"{}\n" + CONTENT, "other")
    assert "61 lines imported into demo/a/s (1 segment, seq 60-120)" in invoke("import", other, "demo/a/s").stdout
    assert len(records("demo/a/s")) == 121


def test_an_import_whose_beginning_is_gone_is_a_conflict_after_a_compaction_too(invoke, store, write, tmp_path):
    path = write(CONTENT)
    invoke("import", path, "demo/a/s", "--segment-lines", 1)
    (tmp_path / "store" / store.list_segments(TranscriptRef("demo", "a", "s"))[0].key).unlink()
    invoke("compact", "demo/a/s")
    assert "whose beginning is gone" in invoke("import", path, "demo/a/s", code=4).stderr


def test_beside_a_segment_merged_by_another_program_an_earlier_run_is_found_too(
    invoke, write, records, tmp_path, failing_after
):
    path = write(CONTENT)
    _import_in_part(invoke, failing_after, path, 20)
    foreign = tmp_path / "store/demo/a/s/events/0000000000000000100-0000000000000000101-compacted.jsonl"
    foreign.write_bytes(b'{"id":"a"}\n{"id":"b"}\n')
    assert json.loads(invoke("import", "--json", path, "demo/a/s").stdout)["already"] == 20
    assert records("demo/a/s")[:60] == list(enumerate(CONTENT.splitlines()))


def _import_in_part(invoke, failing_after, path, segments):
    """An import of single lines that dies after so many."""
    with failing_after(segments):
        invoke("import", "--segment-lines", 1, path, "demo/a/s", code=6)
