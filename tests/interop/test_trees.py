"""Trees that the Java harness and the Go control plane write and read, and ours, each read by all three."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal

import pytest
from interop.others import (
    JavaEntry,
    Numbered,
    Objects,
    go_events,
    java_context,
    java_entries,
    java_line,
    java_results,
    java_state,
    put_java_session,
)

from transcript_backends import CompactionPolicy, ObjectTranscriptStore, SkippedCount, StateStore, TranscriptRef, open_store
from transcript_backends.entries import (
    MessageEntry,
    SessionCompaction,
    SessionTree,
    ToolResultEntry,
    ToolUseEntry,
    encode,
)

REF = TranscriptRef("acme", "coder", "s1")
FULL = CompactionPolicy(min_segments=2, full=True)


@pytest.fixture(params=["file", "ministack_server", "fake_gcs_server", "azurite_server"])
def store(request: pytest.FixtureRequest, tmp_path) -> Iterator[ObjectTranscriptStore]:
    where = request.param
    url = f"file://{tmp_path}" if where == "file" else request.getfixturevalue(where).new_bucket().url("some/root")
    with open_store(url) as store:
        yield store


@pytest.fixture
def objects(store: ObjectTranscriptStore) -> Objects:
    return Objects(store)


def tree_of(store: ObjectTranscriptStore, ref: TranscriptRef = REF) -> SessionTree:
    tree = SessionTree()
    tree.feed(store.records(ref))
    return tree


def ids(entries) -> list[str]:
    return [each.id for each in entries]


# --- theirs, read by ours ---------------------------------------------------------------------------------------------


def test_a_session_of_the_java_harness_is_read_line_for_line(store, objects):
    lines = put_java_session(objects, REF, 13)
    records = list(store.records(REF))
    assert [record.line.decode() for record in records] == lines
    assert [record.seq for record in records] == list(range(len(lines)))
    assert len({record.writer_id for record in records}) == 14
    assert [segment.seq_start for segment in store.list_segments(REF)] == list(range(0, len(lines), 4))
    assert [store.tail(REF, 2)[-1].line.decode(), store.next_seq(REF)] == [lines[-1], len(lines)]


def test_its_entries_are_typed_and_lose_no_digit(store, objects):
    lines = put_java_session(objects, REF, 3)
    tree = tree_of(store)
    assert tree.problems() == []
    assert [encode(entry).decode() for entry in tree.entries] == lines
    for line, entry in zip(lines, tree.entries, strict=True):
        values = json.loads(line, parse_float=Decimal)
        assert (entry.type, entry.id, entry.parent_id) == (values["type"], values["id"], values.get("parentId"))
        assert entry.timestamp_ns == values["timestamp"] * 10**9
    assert [(call.use.id, ids(call.results)) for call in tree.tool_calls()] == [
        (f"a{turn}:use:call_{turn}", [f"t{turn}:result:call_{turn}"]) for turn in range(3)
    ]
    assert {each.speaker for each in tree.entries if isinstance(each, MessageEntry)} == {"user", "assistant"}
    assert ids(tree.path("img")) == ids(tree.entries)
    assert ids(tree.context()) == java_context(objects, str(REF)) == ["sum", "q2", "a2", "img"]


def test_our_compaction_of_its_session_changes_nothing_for_it_or_for_us(store, objects):
    lines = put_java_session(objects, REF, 20)
    before = java_entries(objects, str(REF)), java_context(objects, str(REF)), tree_of(store).entries
    assert store.compact(REF, FULL).segments_after == 1
    assert (java_entries(objects, str(REF)), java_context(objects, str(REF)), tree_of(store).entries) == before
    assert [record.line.decode() for record in store.records(REF)] == lines
    assert [each.id for each in go_events(objects, str(REF))] == ids(before[2])


def test_a_session_that_it_began_goes_on_with_ours(store, objects):
    lines = put_java_session(objects, REF, 2)
    with store.writer(REF) as writer:
        seq = writer.append(MessageEntry.user("And now?", parent_id="img"))
    assert seq == len(lines)
    context = tree_of(store).context()
    assert ids(context) == java_context(objects, str(REF))
    assert ids(context)[:-1] == ["sum", "q1", "a1", "img"]
    last = java_entries(objects, str(REF))[-1]
    assert last == JavaEntry("message", context[-1].id, "img")


def test_two_replicas_of_it_with_the_same_numbers_are_both_read(store, objects):
    for writer in ("bbbbbbbb", "aaaaaaaa"):
        for turn in range(3):
            lines = [java_line("message", f"{writer}{2 * turn + n}", turn, role="USER", content="x") for n in range(2)]
            objects.put(f"{REF}/events/{2 * turn}-{2 * turn + 1}-{writer}.jsonl", *lines)
    expected = [f"{writer}{seq}" for seq in range(6) for writer in ("aaaaaaaa", "bbbbbbbb")]
    assert ids(tree_of(store).entries) == expected
    store.compact(REF, FULL)
    assert ids(tree_of(store).entries) == expected
    assert [each.id for each in java_entries(objects, str(REF))] == expected


def test_a_compaction_of_it_that_died_before_it_removed_the_sources_shows_no_entry_twice(store, objects):
    lines = put_java_session(objects, REF, 3)
    objects.put(f"{REF}/events/0-{len(lines) - 1}-compacted.jsonl", *lines)
    tree = tree_of(store)
    assert [encode(entry).decode() for entry in tree.entries] == lines
    assert tree.problems() == []
    assert ids(tree.context()) == ["sum", "q2", "a2", "img"]


@pytest.mark.parametrize("is_cleaned", [True, False], ids=["finished", "died"])
def test_what_it_has_compacted_is_right_for_verify_also_where_its_replicas_overlapped(store, objects, is_cleaned):
    lines = [java_line("message", f"m{n}", n, role="USER", content="x") for n in range(9)]
    objects.put(f"{REF}/events/0-3-compacted.jsonl", *lines[:6])  # two of them had the same number, twice
    objects.put(f"{REF}/events/8-9-compacted.jsonl", lines[6])  # with a gap before its last
    if not is_cleaned:
        objects.put(f"{REF}/events/0-1-0a0b0c0d.jsonl", *lines[:2])
    for _ in range(2):
        report = store.verify(REF)
        assert report.ok
        assert {each.kind for each in report.problems} <= {"overlap", "gap", "orphan index", "redundant segment"}
        assert [each.id for each in tree_of(store).entries] == [f"m{n}" for n in range(7)]
        store.compact(REF, FULL)


@pytest.mark.parametrize("writer", ["host_name_8080__", "unknown", "compacted"])
def test_the_writer_ids_it_makes_are_read(store, objects, writer):
    objects.put(f"default/coder/s/events/0-0-{writer}.jsonl", java_line("message", "m", 0, role="USER", content="z"))
    assert [record.writer_id for record in store.records(TranscriptRef.parse("coder/s"))] == [writer]


# --- one store, ids as they are -----------------------------------------------------------------------------------------

ODD = ["user@host", "a b", "café", "50%+1?#", "k=v"]


@pytest.mark.parametrize("session", ODD)
def test_with_raw_ids_all_write_and_read_one_transcript(store, objects, session):
    raw = ObjectTranscriptStore(store._container, store._root, ids="raw")
    ref, path = TranscriptRef("my company", "coder", session), f"my company/coder/{session}"
    lines = put_java_session(objects, path, 2)
    skipped = SkippedCount()
    assert list(store.list_refs(on_skipped=skipped)) == []
    assert [repr(path) in each and "ids=raw" in each for each in skipped.messages] == [True]
    assert list(raw.list_refs(on_skipped=skipped)) == [ref]
    with raw.writer(ref) as writer:
        writer.append(MessageEntry.user("And now?", parent_id="img"))
    seen = ids(tree_of(raw, ref).entries)
    assert len(seen) == len(lines) + 1
    assert raw.compact(ref, FULL).segments_after == 1
    assert ids(tree_of(raw, ref).entries) == seen
    assert [each.id for each in java_entries(objects, path)] == seen
    assert [each.id for each in go_events(objects, path)] == seen
    assert len(skipped) == 1


# --- state documents --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun_by", ["java", "ours"])
@pytest.mark.parametrize("place", [("user@host", "a b", "plan"), ("u", "s", "café"), ("日本", "s", "key with blank 100%")])
def test_a_state_document_is_one_whoever_writes_it(store, objects, place, begun_by):
    states, key = StateStore(store), f"=state/{java_state(*place)}"
    if begun_by == "java":
        objects.replace(key, "1")
    else:
        states.save(*place, 1)
        assert objects.get(key) == b"1"
    assert states.update(*place, int, lambda value: value + 1) == 2
    assert objects.get(key) == b"2"
    objects.replace(key, "3")
    assert states.get(*place, int) == 3
    assert states.list_session_ids(place[0]) == [place[1]]
    assert len(objects.names("=state")) == 1


# --- ours, read by theirs ---------------------------------------------------------------------------------------------


def write_ours(store: ObjectTranscriptStore) -> list:
    """Two replicas, one after the other, in many segments: all types, one they don't know, one with values stored apart."""
    written = []
    parent = None
    for replica in ("replica-b", "replica-a"):
        with store.writer(REF, writer_id=replica) as writer:
            for turn in range(12):
                question = MessageEntry.user(f"{replica} {turn} é🙂", parent_id=parent)
                call = ToolUseEntry.new("shell", {"command": "ls", "n": 1.5}, parent_id=question.id)
                answer = ToolResultEntry.new(call, f"{turn}\n" * (50_000 if turn == 7 else 1))
                reply = MessageEntry.assistant("Done.", parent_id=answer.id)
                written += [question, call, answer, reply]
                parent = reply.id
                for each in (question, call, answer, {"type": "note", "id": f"n{len(written)}"}, reply):
                    writer.append(each)
                writer.flush()
    return written


def test_a_session_of_ours_is_read_by_all_three_alike_before_and_after_compaction(store, objects):
    written = write_ours(store)
    expected = [(entry.type, entry.id) for entry in written]

    def seen() -> list[list[tuple[str, str]]]:
        ours = [entry for entry in tree_of(store).entries if entry.type != "note"]
        assert ours == written
        return [
            [(entry.type, entry.id) for entry in ours],
            [(each.type, each.id) for each in go_events(objects, str(REF))],
            [(each.type, each.id) for each in java_entries(objects, str(REF))],
        ]

    assert seen() == [expected] * 3
    assert store.compact(REF, CompactionPolicy(min_segments=4)).merged
    assert seen() == [expected] * 3
    assert store.compact(REF, FULL).segments_after == 1
    assert seen() == [expected] * 3
    assert go_events(objects, str(REF))[-1] == Numbered(len(written) - 1, "message", written[-1].id)
    assert [each.parent for each in java_entries(objects, str(REF))] == [entry.parent_id for entry in written]


def test_an_answer_with_its_value_stored_apart_is_told_to_be_cut_to_those_who_know_no_payloads(store, objects):
    written = [each for each in write_ours(store) if isinstance(each, ToolResultEntry)]
    for _ in range(2):
        for entry, theirs in zip(written, java_results(objects, str(REF)), strict=True):
            is_apart = len(entry.output) > 65536
            assert theirs[1:] == ((True, len(entry.output)) if is_apart else (False, None))
            assert (theirs.output == entry.output) == (not is_apart)
        ours = [entry for entry in tree_of(store).entries if isinstance(entry, ToolResultEntry)]
        assert [(each.output, each.truncated, each.original_size) for each in ours] == [
            (each.output, False, None) for each in written
        ]
        store.compact(REF, FULL)


def test_a_compacted_context_is_the_same_for_the_java_harness(store, objects):
    written = write_ours(store)
    with store.writer(REF) as writer:
        made = SessionCompaction(tree_of(store), keep=3).append(writer, "They listed files.")
        writer.append(MessageEntry.user("go on", parent_id=made.id))
    context = tree_of(store).context()
    assert [entry.text for entry in context[:1] + context[-1:]] == ["They listed files.", "go on"]
    assert len(context) == 5
    assert ids(context) == java_context(objects, str(REF))
    assert [each.id for each in go_events(objects, str(REF))][: len(written)] == ids(written)


def test_two_live_writers_are_all_read_and_in_one_order_once_compacted(store, objects):
    """The Go program goes by segments, so until then it shows the records of one writer before those of the other."""
    for writer in ("aa", "bb"):
        for start in (0, 2):
            lines = [encode(MessageEntry.new("user", writer, id=f"{writer}{start + n}")) for n in range(2)]
            store.append_segment(REF, start, start + 1, writer, b"\n".join(lines))
    ours = ids(tree_of(store).entries)
    assert ours == ["aa0", "bb0", "aa1", "bb1", "aa2", "bb2", "aa3", "bb3"]
    assert sorted(each.id for each in go_events(objects, str(REF))) == sorted(ours)
    store.compact(REF, FULL)
    assert [each.id for each in go_events(objects, str(REF))] == ours


def test_markers_and_indexes_are_no_events_for_others(store, objects):
    write_ours(store)
    store.compact(REF, FULL)
    store.delete(REF)
    store.append_segment(REF, 0, 0, "w", encode(MessageEntry.new("user", "anew", id="m")))
    assert any(name.startswith("deleted-") for name in objects.names(f"{REF}/events"))
    assert go_events(objects, str(REF)) == [Numbered(0, "message", "m")]
    assert java_entries(objects, str(REF)) == [JavaEntry("message", "m", None)]
    assert ids(tree_of(store).entries) == ["m"]
