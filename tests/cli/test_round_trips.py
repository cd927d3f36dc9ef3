"""Whole sessions through one store after the other, with nothing lost or changed on the way."""

import json
import random

import pytest

from transcript_backends import CompactionPolicy, TranscriptRef, open_store

REFS = {"long lines": "acme/coder/long", "many lines": "日本/代 理/=2E=2E"}
IDS = ["A", "A-B", "A.C", "a b", "..", "日本", "=41", "x/y", "n" * 200, "\U0001f642", "events", "\u00e9", "e\u0301"]


def session(seed, lines, longest):
    """A coding agent's session: messages, tool calls and their output, in many scripts, some lines very long."""
    chance = random.Random(seed)
    words = ["theme", "const", "größe", "日本語", "\U0001f642", "\u2028", "\\u0000", '"', "\t", "{}", "\x7f", "—", "\ufeff"]
    written = [{"type": "session", "id": f"{seed}", "cwd": "/home/someone/work", "modelId": "model"}]
    for number in range(lines - 1):
        size = int(longest ** chance.random())
        text = " ".join(chance.choices(words, k=max(1, size // 6)))
        kind = chance.choice(["user", "assistant", "toolResult"])
        content = [
            {"type": "text", "text": text},
            {"type": "toolCall", "id": f"call_{number}", "arguments": {"path": text[:40]}},
        ]
        message = {
            "role": kind,
            "content": content[: 1 + (kind == "assistant")],
            "usage": {"cost": chance.random(), "n": 10**30},
        }
        written.append({"type": "message", "message": message, "timestamp": f"2025-11-20T23:{number % 60:02d}:02.351Z"})
    return b"".join(
        json.dumps(each, ensure_ascii=bool(number % 5), separators=(",", ":") if number % 2 else None).encode() + b"\n"
        for number, each in enumerate(written)
    )


SESSIONS = {"long lines": session(1, 600, 60_000), "many lines": session(2, 1500, 3_000)}


def records(store, ref):
    return [tuple(each) for each in store.records(TranscriptRef.parse(ref))]


@pytest.mark.parametrize("name", SESSIONS)
@pytest.mark.parametrize("compacted", [(), (0, 1, 2, 3), (1, 2)], ids=["as written", "compacted everywhere", "on the way"])
def test_a_session_goes_through_memory_a_directory_s3_and_a_directory_byte_for_byte(
    invoke, moto_server, tmp_path, name, compacted
):
    content, ref = SESSIONS[name], REFS[name]
    urls = [
        f"memory://{tmp_path.name}/start",
        f"file://{tmp_path}/one",
        moto_server.new_bucket().url("some/prefix"),
        f"file://{tmp_path}/two",
    ]
    invoke("import", "-", ref, "--segment-lines", 20, "--store", urls[0], stdin=content)
    with open_store(urls[0]) as first:
        expected = records(first, ref)
    assert [line for _, _, line in expected] == content.split(b"\n")[:-1]
    for position, url in enumerate(urls):
        if position:
            assert f"{len(expected)} records verified" in invoke("cp", urls[position - 1], url).stdout
        if position in compacted:
            invoke("compact", "--full", ref, "--store", url)
        assert invoke("cat", ref, "--store", url).stdout_bytes == content
        with open_store(url) as store:
            assert records(store, ref) == expected
            assert store.verify(TranscriptRef.parse(ref)).ok
    for url in urls[1:]:
        assert "0 copied: nothing to copy" in invoke("sync", urls[0], url).stdout


def test_a_session_goes_through_the_servers_of_every_cloud(invoke, moto_server, fake_gcs_server, azurite_server, tmp_path):
    content, ref = SESSIONS["long lines"], REFS["long lines"]
    servers = (moto_server, fake_gcs_server, azurite_server)
    urls = [f"file://{tmp_path}/one", *(each.new_bucket().url("some/prefix") for each in servers), f"file://{tmp_path}/two"]
    invoke("import", "-", ref, "--segment-lines", 20, "--store", urls[0], stdin=content)
    for before, after in ((urls[n], urls[n + 1]) for n in range(len(urls) - 1)):
        assert "600 records copied, 30 segments" in invoke("cp", before, after).stdout
        assert invoke("cat", ref, "--store", after).stdout_bytes == content
        assert "0 copied: nothing to copy" in invoke("sync", urls[0], after).stdout


def test_any_ids_and_interleaved_writers_go_through_all_stores(invoke, moto_server, tmp_path):
    urls = [f"file://{tmp_path}/one", moto_server.new_bucket().url("deep/prefix"), f"memory://{tmp_path.name}"]
    refs = [TranscriptRef(*ids) for each in IDS for ids in ((each, "a", "s"), ("t", each, each))]
    with open_store(urls[0]) as store:
        for number, ref in enumerate(refs):
            for seq in range(0, 12, 2):
                for writer in ("v", "w"):
                    store.append_segment(ref, seq, seq + 1, writer, b'{"n":%d}\n{"of":"%s"}\n' % (number, writer.encode()))
            if number % 3 == 0:
                store.compact(ref, CompactionPolicy(full=True))
        expected = {ref: records(store, str(ref)) for ref in refs}
    for before, after in ((urls[0], urls[1]), (urls[1], urls[2])):
        last = invoke("cp", before, after, "--jobs", 8).stdout.splitlines()[-1]
        assert last.startswith(f"{len(refs)} transcripts, {len(refs)} copied: {24 * len(refs)} records copied, ")
        with open_store(after) as store:
            assert {ref: records(store, str(ref)) for ref in store.list_refs()} == expected


def test_what_java_wrote_goes_through(invoke, tmp_path):
    """Unpadded names, a writer a turn, two replicas with the same ranges, and what its compaction leaves."""
    events = tmp_path / "java" / "acme" / "coder" / "s1" / "events"
    events.mkdir(parents=True)
    for start, writer in ((0, "aaaaaaaa"), (0, "bbbbbbbb"), (2, "aaaaaaaa"), (9, "cccccccc"), (10, "host_name_8080__")):
        end = start + 1 if start != 9 else 9
        body = b"".join(b'{"id":"%s-%d","type":"message"}\n' % (writer.encode(), seq) for seq in range(start, end + 1))
        (events / f"{start}-{end}-{writer}.jsonl").write_bytes(body)
    merged = tmp_path / "java" / "acme" / "coder" / "merged" / "events"
    merged.mkdir(parents=True)
    (merged / "0-2-compacted.jsonl").write_bytes(b'{"id":"a"}\n{"id":"b"}\n{"id":"c"}\n')
    (merged / "1-1-aaaaaaaa.jsonl").write_bytes(b'{"id":"b"}\n')  # a source that a crash has left
    with open_store(f"file://{tmp_path}/java") as source, open_store(f"file://{tmp_path}/copy") as copy:
        for command in ("sync", "cp"):
            invoke(command, f"file://{tmp_path}/java", f"file://{tmp_path}/copy")
            for ref, count in (("acme/coder/s1", 9), ("acme/coder/merged", 3)):
                assert records(copy, ref) == records(source, ref)
                assert len(records(copy, ref)) == count
