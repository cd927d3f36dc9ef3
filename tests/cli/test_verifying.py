import json
import os
import shutil
import time

import pytest

from transcript_backends import AccessDeniedError, ObjectTranscriptStore, TranscriptRef

CONTENT = b"".join(b'{"n":%d}\n' % n for n in range(20))
SIZE = f"{len(CONTENT)} bytes"
OLD = time.time() - 2 * 3600


@pytest.fixture
def filled(invoke, store, tmp_path):
    """A transcript of 20 segments; gives a function for its files by kind, sorted."""
    invoke("import", "-", "demo/a/s", "--segment-lines", 1, stdin=CONTENT)
    return lambda kind="events": sorted((tmp_path / "store/demo/a/s" / kind).iterdir())


@pytest.fixture
def left_over(invoke, filled, tmp_path):
    """A compacted transcript with a source that a crash has left; gives its file."""
    source = filled()[3]
    kept = tmp_path / "kept"
    shutil.copy(source, kept)
    invoke("compact", "demo/a/s")
    shutil.copy(kept, source)
    os.utime(source, (OLD, OLD))
    return source


def test_a_sound_transcript_is_one_line(run, filled):
    assert run("verify", "demo/a/s").stdout.decode() == f"demo/a/s: ok, 20 records in 20 segments, {SIZE}\n"
    run("compact", "demo/a/s")
    done = run("verify", "--all")
    assert done.stdout.decode() == f"demo/a/s: ok, 20 records in 1 segment, {SIZE}\n"
    assert done.stderr == b""


def test_damage_is_found_and_named_with_exit_code_1(run, filled):
    filled()[5].write_bytes(b"{broken\n")
    filled()[6].write_bytes(b'{"n":6}\n{"n":7}\n')
    done = run("verify", "demo/a/s", code=1)
    *rows, summary = done.stdout.decode().splitlines()
    keys = [f"demo/a/s/events/{path.name}" for path in filled()]
    table = [tuple(row.split("\t")) for row in rows]
    assert ("damaged line", keys[5], "line 1 at byte 0 is no JSON object") in table
    assert ("wrong line count", keys[6], "it has 2 lines, its name says 1") in table
    assert all(len(row) == 3 for row in table)
    assert summary.startswith("demo/a/s: NOT OK, 2 problems, ")
    assert done.stderr == b""


def test_a_changed_compacted_segment_is_found(invoke, filled):
    invoke("compact", "demo/a/s")
    (path,) = filled()
    path.write_bytes(path.read_bytes().replace(b'"n":7', b'"n":8'))
    result = invoke("verify", "demo/a/s", code=1)
    assert result.stdout.startswith(f"wrong hash\tdemo/a/s/events/{path.name}\t")


def test_harmless_findings_are_said_and_exit_code_0(invoke, filled):
    filled()[4].unlink()
    assert invoke("verify", "demo/a/s").stdout.splitlines() == [
        "gap\tdemo/a/s/\tnobody has written seq 4",
        f"demo/a/s: ok, 1 harmless finding, 19 records in 19 segments, {len(CONTENT) - 8} bytes",
    ]


def test_repair_removes_a_source_left_beside_its_compacted_segment(run, left_over, filled):
    found = run("verify", "demo/a/s").stdout.decode()
    assert found.startswith(f"redundant segment\tdemo/a/s/events/{left_over.name}\t")
    assert left_over.exists()
    repaired = run("verify", "--repair", "demo/a/s").stdout.decode()
    assert repaired.splitlines() == [
        f"repaired\tdemo/a/s/events/{left_over.name}\tremoved",
        f"demo/a/s: ok, 1 object removed, 20 records in 1 segment, {SIZE}",
    ]
    assert not left_over.exists()
    assert run("verify", "demo/a/s").stdout.decode() == f"demo/a/s: ok, 20 records in 1 segment, {SIZE}\n"
    assert run("cat", "demo/a/s").stdout == CONTENT


def test_repair_finishes_a_delete_that_died_an_hour_ago_and_no_younger_one(invoke, filled):
    for path in filled():
        os.utime(path, (OLD - 60, OLD - 60))
    marker = filled()[0].parent / "deleting-1"
    marker.write_bytes(b"somebody")
    assert invoke("verify", "--repair", "demo/a/s", code=1).stdout.startswith("unfinished delete\tdemo/a/s/events/deleting-1\t")
    assert len(filled()) == 21
    os.utime(marker, (OLD, OLD))
    result = json.loads(invoke("verify", "--repair", "--json", "demo/a/s").stdout)
    assert (result["ok"], result["segments"], len(result["repaired"])) == (True, 0, 20)
    assert [path.name for path in filled()] == ["deleted-1", "deleting-1"]
    invoke("verify", "demo/a/s", code=3)


def test_unknown_transcripts_are_exit_code_3_and_the_others_are_verified(invoke, filled):
    result = invoke("verify", "no/such", "demo/a/s", code=3)
    assert result.stdout.startswith("demo/a/s: ok")
    assert result.stderr.startswith("transcripts: error: no such transcript: default/no/such (")
    filled()[5].write_bytes(b"{broken\n")
    assert "no such transcript" in invoke("verify", "no/such", "demo/a/s", code=1).stderr


def test_one_that_can_not_be_read_is_exit_code_1_and_does_not_stop_the_others(invoke, filled, monkeypatch):
    invoke("append", "demo/b/s", stdin=b"{}\n")
    real = ObjectTranscriptStore.verify

    def verify(self, ref, **options):
        if ref == TranscriptRef("demo", "a", "s"):
            raise AccessDeniedError("not yours")
        return real(self, ref, **options)

    monkeypatch.setattr(ObjectTranscriptStore, "verify", verify)
    result = invoke("verify", "--all", code=1)
    assert result.stdout == "demo/b/s: ok, 1 record in 1 segment, 3 bytes\n"
    assert result.stderr == "transcripts: error: demo/a/s: not yours\n"


def test_all_of_an_empty_store_is_no_error(invoke, tmp_path):
    (tmp_path / "store").mkdir()
    assert invoke("verify", "--all").output == ""


def test_neither_ref_nor_all_is_a_usage_error(invoke):
    assert "give REFs, or --all" in invoke("verify", code=2).stderr


def test_json_has_the_documented_members(invoke, left_over):
    result = json.loads(invoke("verify", "--json", "demo/a/s").stdout)
    (problem,) = result.pop("problems")
    assert result == {"ref": "demo/a/s", "ok": True, "segments": 1, "records": 20, "size": len(CONTENT), "repaired": []}
    assert set(problem) == {"kind", "key", "detail", "harmless"}
    assert (problem["kind"], problem["harmless"]) == ("redundant segment", True)


def test_findings_are_a_table_on_a_terminal(terminal, left_over, filled):
    shown, _ = terminal("verify", "demo/a/s", env={**os.environ, "COLUMNS": "300"})
    assert "kind" in shown
    assert "detail" in shown
    assert left_over.name in shown
    assert "1 harmless finding" in shown
    assert "\t" not in shown
