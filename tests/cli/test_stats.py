import json
import os
from collections import Counter

import pytest

from transcript_backends import AccessDeniedError, CompactionPolicy, ObjectTranscriptStore, TranscriptRef
from transcript_backends.prices import PRICES

CONTENT = b"".join(b'{"n":%d,"text":"%s"}\n' % (n, b"x" * (50 + n % 7)) for n in range(60))
KB = f"{len(CONTENT) / 1000:.1f} kB"


@pytest.fixture
def fill(invoke):
    """Import the same lines into transcripts, a segment a line."""

    def fill(*refs, lines=1, content=CONTENT):
        for ref in refs:
            invoke("import", "-", ref, "--segment-lines", lines, stdin=content)

    return fill


def stats(invoke, *arguments, code=0):
    return json.loads(invoke("stats", "--json", *arguments, code=code).stdout)


def test_stats_of_a_transcript_show_size_requests_savings_and_dollars(run, fill):
    fill("demo/a/s")
    assert run("stats", "demo/a/s", "--prices", "s3").stdout.decode().splitlines() == [
        f"demo/a/s: 60 segments (0 merged), {KB}, 60 records",
        "  a full read:        60 gets, 1 list, $0.000029",
        "  compacting:         60 segments -> 1, 60 gets, 2 puts, 2 lists, 1 delete, $0.000044",
        "  a full read then:   at most 2 gets, 1 list, $0.0000058",
        "  pays off after:     2 reads",
        f"  a month of storage: {KB}, $0.000000092",
        "  prices:             Amazon S3 Standard, us-east-1, 2026-07; estimates",
    ]


def test_without_prices_there_are_no_dollars(run, fill):
    fill("demo/a/s")
    run("compact", "demo/a/s")
    assert run("stats", "demo/a/s").stdout.decode().splitlines() == [
        f"demo/a/s: 1 segment (1 merged), {KB}, about 60 records",
        "  a full read:        2 gets, 1 list",
        "  compacting:         nothing to merge",
        f"  a month of storage: {KB}",
    ]


def test_json_has_the_documented_members(invoke, fill):
    fill("demo/a/s")
    found = stats(invoke, "demo/a/s", "--prices", "gcs")
    requests = {"gets": 60, "puts": 2, "lists": 2, "deletes": 1}
    assert {key: value for key, value in found.items() if key != "dollars"} == {
        "ref": "demo/a/s", "segments": 60, "merged": 0, "size": len(CONTENT), "records": 60,
        "read": {"gets": 60, "lists": 1},
        "compact": {"segments_before": 60, "segments_after": 1, "bytes_written": len(CONTENT), **requests},
        "read_after": {"gets": 2, "lists": 1},
        "prices": "gcs",
    }  # fmt: skip
    prices = PRICES["gcs"]
    assert found["dollars"] == {
        "read": prices.requests(gets=60, lists=1),
        "compact": prices.requests(gets=60, puts=2, lists=2),
        "read_after": prices.requests(gets=2, lists=1),
        "storage": prices.storage(len(CONTENT)),
    }
    bare = stats(invoke, "demo/a/s")
    assert (bare["prices"], bare["dollars"]) == (None, None)


def test_bytes_cost_where_the_service_bills_them(invoke, fill):
    fill("demo/a/s")
    found, express = stats(invoke, "demo/a/s", "--prices", "s3-express")["dollars"], PRICES["s3-express"]
    moved = {"bytes_up": len(CONTENT), "bytes_down": len(CONTENT)}
    assert found["compact"] == express.requests(gets=60, puts=2, lists=2, **moved)
    assert found["read"] == express.requests(gets=60, lists=1, bytes_down=len(CONTENT))


def test_the_stores_own_prices_are_the_default(invoke, fill, monkeypatch):
    fill("demo/a/s")
    for location, name in {"s3://b/p": "s3", "gs://b": "gcs", "az://c@a": "azure", "s3://b--x-s3": "s3-express"}.items():
        monkeypatch.setattr(ObjectTranscriptStore, "__str__", lambda self, location=location: location)
        assert stats(invoke, "demo/a/s")["prices"] == name
    assert stats(invoke, "demo/a/s", "--prices", "s3")["prices"] == "s3"


@pytest.mark.parametrize(("server", "name"), [("moto_server", "s3"), ("fake_gcs_server", "gcs"), ("azurite_server", "azure")])
def test_stats_of_a_service_are_in_its_prices(request, monkeypatch, invoke, fill, server, name):
    monkeypatch.setenv("TRANSCRIPT_STORE_URL", request.getfixturevalue(server).new_bucket().url("some/prefix"))
    fill("demo/a/s1", "demo/a/s2")
    invoke("compact", "demo/a/s1")
    found = stats(invoke, "demo")
    assert (found["segments"], found["merged"], found["records"], found["size"]) == (61, 1, 120, 2 * len(CONTENT))
    assert found["read"] == {"gets": 62, "lists": 2}
    assert found["dollars"]["read"] == PRICES[name].requests(**found["read"])
    assert PRICES[name].title in invoke("stats", "demo").stdout


@pytest.mark.parametrize("full", [False, True])
def test_a_read_after_a_compaction_takes_no_more_than_was_said(invoke, fill, store, tmp_path, monkeypatch, full):
    ref = TranscriptRef("demo", "a", "s")
    fill("demo/a/s")
    store.compact(ref)
    fill("demo/a/s", lines=5, content=b"".join(b'{"k":%d}\n' % n for n in range(100)))
    before = stats(invoke, "demo/a/s", *["--full"] * full)
    assert before["merged"] == 1
    counts = Counter()
    from transcript_backends.drivers.local import LocalObjectStore

    real = LocalObjectStore.get
    monkeypatch.setattr(LocalObjectStore, "get", lambda *args, **more: counts.update(["get"]) or real(*args, **more))

    def read():
        counts.clear()
        invoke("cat", "demo/a/s")
        return counts["get"]

    assert read() == before["read"]["gets"]
    store.compact(ref, CompactionPolicy(full=full))
    for path in (tmp_path / "store").rglob("*.json*"):  # the index of what was merged twice goes after an hour
        os.utime(path, (0, 0))
    store.compact(ref, CompactionPolicy(full=full))
    assert read() <= before["read_after"]["gets"] < before["read"]["gets"]
    assert stats(invoke, "demo/a/s")["segments"] == before["compact"]["segments_after"]


def test_stats_read_no_segment_and_write_nothing(invoke, fill, monkeypatch):
    fill("demo/a/s")
    from transcript_backends.drivers.local import LocalObjectStore

    def forbidden(*_, **__):
        raise AssertionError

    for operation in ("get", "put", "delete_many"):
        monkeypatch.setattr(LocalObjectStore, operation, forbidden)
    assert stats(invoke, "demo/a/s")["segments"] == 60


# --- several ----------------------------------------------------------------------------------------------------------


def test_a_tenant_is_the_sum_and_the_ten_largest(invoke, fill):
    for number in range(12):
        fill(f"acme/coder/s{number:02}", content=b'{"n":1}\n' * (number + 1))
    fill("umbrella/coder/s", "acme/tester/s")
    found = stats(invoke, "acme", "--prices", "s3")
    size = sum(range(1, 13)) * 8 + len(CONTENT)
    assert (found["of"], found["transcripts"], found["size"]) == ("acme", 13, size)
    assert found["records"] == found["segments"] == found["read"]["gets"] == sum(range(1, 13)) + 60
    assert found["read"]["lists"] == 13
    assert [each["ref"] for each in found["largest"]] == ["acme/tester/s"] + [f"acme/coder/s{n:02}" for n in range(11, 2, -1)]
    assert found["largest"][1] == {"ref": "acme/coder/s11", "segments": 12, "merged": 0, "size": 96, "records": 12}
    lines = invoke("stats", "acme", "--prices", "s3").stdout.splitlines()
    assert lines[0].startswith("acme: 13 transcripts, 138 segments (0 merged), ")
    assert lines[-11:-9] == ["largest:", f"  acme/tester/s: 60 segments (0 merged), {KB}, 60 records"]


def test_an_agent_is_named_by_two_ids_and_a_slash_and_without_one_where_no_session_has_that_name(invoke, fill):
    fill("acme/coder/s1", "acme/coder/s2", "acme/tester/s", lines=60)
    for what in ("acme/coder", "acme/coder/"):
        assert stats(invoke, what)["transcripts"] == 2
    fill("default/acme/coder", lines=20)
    assert stats(invoke, "acme/coder")["ref"] == "default/acme/coder"
    assert stats(invoke, "acme/coder/")["transcripts"] == 2
    assert stats(invoke, "acme/")["transcripts"] == 3
    assert stats(invoke)["transcripts"] == 4


def test_ids_are_written_as_in_a_ref(invoke, fill):
    fill("a=20b/c d/s", lines=60)
    assert stats(invoke, "a b")["transcripts"] == stats(invoke, "a=20b/c=20d/")["transcripts"] == 1


def test_an_empty_store_is_no_error(invoke, tmp_path):
    (tmp_path / "store").mkdir()
    assert stats(invoke) | {"of": ""} == stats(invoke) | {"of": "", "transcripts": 0, "segments": 0, "largest": []}
    assert ": 0 transcripts, 0 segments (0 merged), 0 bytes, 0 records\n" in invoke("stats").stdout


@pytest.mark.parametrize("what", ["no/such", "no/such/session", "nobody", "nobody/"])
def test_what_is_not_there_is_exit_code_3(invoke, fill, what):
    fill("demo/a/s", lines=60)
    assert what.strip("/").split("/")[-1] in invoke("stats", what, code=3).stderr
    assert json.loads(invoke("stats", "--json", what, code=3).stderr)["message"].startswith("no ")


@pytest.mark.parametrize("arguments", [["a/b/c/d"], [""], ["/"], ["a", "b"], ["a", "--prices", "r2"], ["a", "--jobs", "0"]])
def test_bad_arguments_are_usage_errors(invoke, arguments):
    invoke("stats", *arguments, code=2)


def test_one_that_fails_is_named_and_the_others_are_counted(invoke, fill, monkeypatch):
    fill("acme/a/s1", "acme/a/s2", lines=60)
    real = ObjectTranscriptStore.list_segments

    def list_segments(self, ref):
        if ref.session_id == "s1":
            raise AccessDeniedError("not yours; ask for access")
        return real(self, ref)

    monkeypatch.setattr(ObjectTranscriptStore, "list_segments", list_segments)
    result = invoke("stats", "acme", code=1)
    assert result.stderr == "transcripts: error: acme/a/s1: not yours; ask for access\n"
    assert result.stdout.startswith("acme: 1 transcript, 1 segment (0 merged)")
