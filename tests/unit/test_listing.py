from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.setups import EVENTS, REF, HookedObjectStore, ServerClock, UnorderedObjectStore, append, line, make

from transcript_backends import CompactionPolicy, InvalidRefError, Record, Skipped, StoreUnavailableError, TranscriptRef
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.drivers.wrappers import WrapperObjectStore
from transcript_backends.index import SegmentIndex, Source, build
from transcript_backends.keys import SegmentName

COMPACTED = "compacted-{}-0123456789abcdef"
PAYLOAD = "a" * 64


def shown(setup):
    return [each.key.removeprefix(EVENTS) for each in setup.store.list_segments(REF)]


# --- one transcript ---------------------------------------------------------------------------------------------------


def test_segments_come_in_the_order_of_their_numbers_whoever_wrote_them():
    setup = make()
    names = [
        "0-1-b.jsonl",
        "2-9-a.jsonl",
        "10-10-a.jsonl",
        "10-10-b.jsonl",
        "10-11-a.jsonl",
        "99-100-a.jsonl",
        "1000-1000-compacted.jsonl",
    ]
    for name in reversed(names):
        setup.put(EVENTS + name, b"{}\n")
    padded = append(setup.store, 50, 50).removeprefix(EVENTS)
    assert shown(setup) == [*names[:5], padded, *names[5:]]
    assert setup.store.next_seq(REF) == 1001


@pytest.mark.parametrize("wrap", [lambda inner: inner, UnorderedObjectStore])
@pytest.mark.parametrize("page_size", [1, 2, 3, 100])
def test_every_page_is_read_in_whatever_order_it_comes(wrap, page_size):
    setup = make(memory=MemoryObjectStore("m", page_size=page_size), wrap=wrap)
    for seq in (3, 1, 0, 2, 4):
        append(setup.store, seq, seq)
    assert [each.seq_start for each in setup.store.list_segments(REF)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count", [1, 9, 10, 11, 30])
def test_a_listing_costs_one_request_a_page(count):
    setup = make(memory=MemoryObjectStore("m", page_size=10))
    for seq in range(count):
        append(setup.store, seq, seq)
    setup.driver.requests.clear()
    assert len(setup.store.list_segments(REF)) == count
    assert setup.driver.counts == {"list_page": math.ceil(count / 10)}


def test_payloads_are_not_paged_through_to_list_segments():
    setup = make(memory=MemoryObjectStore("m", page_size=10))
    append(setup.store, 0, 0)
    for number in range(100):
        setup.put(f"{REF.prefix}payloads/{number:064x}")
    setup.driver.requests.clear()
    assert len(setup.store.list_segments(REF)) == 1
    assert setup.driver.counts == {"list_page": 1}


FOREIGN = [
    "events", "events/", "events/.DS_Store", "events/_SUCCESS", "events/_$folder$", "events/.0-0-w.jsonl.tmp-7-1a2b",
    "events/5-4-w.jsonl", "events/0-0-w.jsonl.gz",
    "events/0-0-w.jsonl\n", "events/sub/0-0-w.jsonl", "events/١-٢-w.jsonl", f"events/{2**63}-{2**63}-w.jsonl",
    f"events/{'9' * 5000}-{'9' * 5000}-w.jsonl", "events/deleted-01",
    "events/deleting-0", "events/deleting-x", "0-0-w.jsonl", "", "a/0-0-w.jsonl", "index/x.json", f"payloads/{PAYLOAD}x",
    "notes.txt", "zzz/0-0-w.jsonl",
]  # fmt: skip


@pytest.mark.parametrize("wrap", [lambda inner: inner, UnorderedObjectStore])
def test_objects_of_somebody_else_are_ignored(wrap):
    setup = make(wrap=wrap)
    key = append(setup.store, 0, 0)
    for rest in FOREIGN:
        setup.put(REF.prefix + rest, b"not ours")
    setup.put("acme/coder/s10/events/5-5-w.jsonl", b"{}\n")
    assert [each.key for each in setup.store.list_segments(REF)] == [key]
    assert len(list(setup.store.records(REF))) == setup.store.next_seq(REF) == 1


@pytest.mark.parametrize(
    ("markers", "alive"),
    [
        ([], 0),
        (["deleted-1"], 1),
        (["deleting-2"], 2),
        (["deleted-3", "deleting-2"], 3),
        (["deleted-9", "deleting-10"], 10),
        (["deleted-01"], 0),
    ],
)
def test_only_compacted_segments_of_the_present_generation_are_shown(markers, alive):
    setup = make()
    for number in (0, 1, 2, 3, 10, 11):
        setup.put(f"{EVENTS}{number}-{number}-{COMPACTED.format(number)}.jsonl", b"{}\n")
    for marker in markers:
        setup.put(EVENTS + marker)
    setup.put(f"{EVENTS}5-5-w.jsonl", b"{}\n")
    setup.put(f"{EVENTS}6-6-compacted.jsonl", b"{}\n")
    seqs = sorted([5, 6, alive])
    assert [each.seq_start for each in setup.store.list_segments(REF)] == seqs
    assert [each.seq for each in setup.store.records(REF)] == seqs
    assert setup.store.next_seq(REF) == max(seqs) + 1


# --- listings while others compact ------------------------------------------------------------------------------------

FULL = CompactionPolicy(full=True)
INDEX = f"{REF.prefix}index/"


class BackwardObjectStore(UnorderedObjectStore):
    """Lists all keys from the last to the first, two a page."""

    def list_page(self, prefix, *, start_after="", token=None):
        objects, following = [], None
        while True:
            page = super().list_page(prefix, token=following)
            objects += page.objects
            if (following := page.token) is None:
                break
        left = sorted((each for each in objects if token is None or each.key < token), reverse=True)
        return page._replace(objects=left[:2], token=left[1].key if len(left) > 2 else None)


def records_of(seqs):
    return [Record(seq, "w", line(seq)) for seq in seqs]


@pytest.mark.parametrize("wrap", [lambda inner: inner, UnorderedObjectStore, BackwardObjectStore])
@pytest.mark.parametrize("second", [None, 0, 1, 2, 3, 5, 8])
def test_a_compaction_between_any_two_pages_hides_nothing(wrap, second):
    for first in range(16):
        memory = MemoryObjectStore("m", page_size=2)
        hooks = HookedObjectStore(memory)
        reading = make(memory=memory, wrap=lambda inner, hooks=hooks: wrap(hooks))
        others = make(memory=memory)
        for seq in range(7):
            append(others.store, seq, seq)
        if first % 2:
            others.store.compact(REF, CompactionPolicy(min_segments=3))

        def merge_more(others=others):
            append(others.store, 7, 7)
            others.store.compact(REF, FULL)

        hooks.before("list_page", lambda others=others: others.store.compact(REF, FULL), after=first)
        if second is not None:
            hooks.before("list_page", merge_more, after=first + second)
        assert list(reading.store.records(REF))[:7] == records_of(range(7))


def compacted_segment(seqs, sources=()):
    """A compacted segment that is not stored: its key, body, index key and index."""
    body, index = build(records_of(seqs), 0, [Source(name, 1, "") for name in sources])
    return f"{EVENTS}{index.name}", body, f"{INDEX}{index.name}.json", index


@pytest.mark.parametrize("count", [1, 3])
def test_an_index_whose_segment_was_never_written_costs_a_head_and_a_listing(count):
    setup = make()
    append(setup.store, 0, 9)
    for seq in range(count):
        _, _, key, index = compacted_segment([seq])
        setup.put(key, index.to_json())
    setup.driver.requests.clear()
    assert len(setup.store.list_segments(REF)) == 1
    counts = setup.driver.counts
    assert (counts["list_page"], counts["head"]) == (2, count)
    assert setup.driver.requests[-1] == ("list_page", INDEX)
    assert setup.store.next_seq(REF) == 10


def test_segments_merged_further_and_further_are_explained_without_a_head():
    setup = make()
    for seq in range(5):
        append(setup.store, 2 * seq, 2 * seq)
        append(setup.store, 2 * seq + 1, 2 * seq + 1)
        setup.store.compact(REF, FULL)
    assert len(setup.keys(INDEX)) == 5
    setup.driver.requests.clear()
    assert list(setup.store.records(REF)) == records_of(range(10))
    assert (setup.driver.counts["list_page"], setup.driver.counts["head"]) == (1, 0)
    assert setup.driver.counts["get"] <= 6


def test_a_segment_born_after_its_page_is_looked_for_again():
    setup = make(wrap=HookedObjectStore)
    append(setup.store, 0, 0)
    key, body, index_key, index = compacted_segment([0, 1])
    setup.put(index_key, index.to_json())
    setup.store._container.driver.before("head", lambda: setup.put(key, body))
    assert list(setup.store.records(REF)) == records_of([0, 1])


NAMED = pytest.mark.parametrize("is_named", [True, False])  # or removed only because the other holds its records


@NAMED
@pytest.mark.parametrize("shift", range(0, 80, 10))
def test_a_segment_merged_further_while_its_result_is_being_looked_for_hides_nothing(shift, is_named):
    memory = MemoryObjectStore("m", page_size=2)
    setup = make(memory=memory, wrap=HookedObjectStore)
    hooks = setup.store._container.driver
    seqs = [shift + each for each in range(4)]
    for seq in seqs:
        append(setup.store, seq, seq)
    plain = setup.keys(EVENTS)
    key, body, index_key, index = compacted_segment(seqs[:3])
    further, larger, further_index_key, further_index = compacted_segment(seqs, [index.name] if is_named else [])

    def merge():  # its result comes to stand on the page that was read, and the one source that is gone is on the next
        setup.put(index_key, index.to_json())
        setup.put(key, body)
        setup.memory.delete_many([plain[2]])
        setup.put(further_index_key, further_index.to_json())

    def merge_further():
        setup.put(further, larger)
        setup.memory.delete_many([key])

    hooks.before("list_page", merge, after=1)
    hooks.before("head", merge_further, after=1)
    assert list(setup.store.records(REF)) == records_of(seqs)


@NAMED
def test_of_segments_that_may_be_unborn_the_one_with_fewer_records_is_looked_at_first_whatever_their_names(is_named):
    memory = MemoryObjectStore("m", page_size=3)
    setup = make(memory=memory, wrap=HookedObjectStore)
    hooks = setup.store._container.driver
    for seq in range(4):
        append(setup.store, seq, seq)
    plain = setup.keys(EVENTS)
    key, body, index_key, index = compacted_segment([1, 2, 3])
    further, larger, further_index_key, further_index = compacted_segment(range(4), [index.name] if is_named else [])
    assert further < key

    def merge():  # the result is on the page that was read, a source of it was on the next
        setup.put(index_key, index.to_json())
        setup.put(key, body)
        setup.memory.delete_many([plain[3]])
        setup.put(further_index_key, further_index.to_json())

    def merge_further():
        setup.put(further, larger)
        setup.memory.delete_many([key])

    hooks.before("list_page", merge, after=1)
    hooks.before("head", merge_further, after=1)
    assert list(setup.store.records(REF)) == records_of(range(4))


def test_of_segments_with_the_same_records_the_one_that_stays_is_looked_for_last():
    setup = make()
    twice = [Record(0, "w", line(0)), Record(0, "w", line(1))]
    for records in (twice, twice[::-1]):
        _, index = build(records, 0, [])
        setup.put(f"{INDEX}{index.name}.json", index.to_json())
    setup.driver.requests.clear()
    setup.store.list_segments(REF)
    heads = [key for operation, key in setup.driver.requests if operation == "head"]
    assert len(heads) == 2
    assert heads[0] > heads[1]


@NAMED
def test_an_index_that_was_new_when_its_source_was_looked_for_is_not_missed(is_named):
    setup = make(wrap=HookedObjectStore)
    hooks = setup.store._container.driver
    append(setup.store, 0, 0)
    _, _, index_key, index = compacted_segment([0, 1])
    setup.put(index_key, index.to_json())
    further, larger, further_index_key, further_index = compacted_segment([0, 1, 2], [index.name] if is_named else [])

    def appear():  # the first was born, merged and removed between two looks
        setup.put(further_index_key, further_index.to_json())
        setup.put(further, larger)

    hooks.before("head", appear)
    assert list(setup.store.records(REF)) == records_of([0, 1, 2])


def test_a_listing_that_stays_torn_is_an_error():
    class HidingObjectStore(WrapperObjectStore):
        def list_page(self, prefix, **more):
            page = super().list_page(prefix, **more)
            return page._replace(objects=[each for each in page.objects if "/events/" not in each.key])

    setup = make()
    append(setup.store, 0, 0)
    append(setup.store, 1, 1)
    setup.store.compact(REF, FULL)
    hiding = make(memory=setup.memory, wrap=HidingObjectStore)
    with pytest.raises(StoreUnavailableError, match=r"is being compacted faster than it can be listed; try again"):
        hiding.store.list_segments(REF)


@pytest.mark.parametrize("size_differs", [False, True])
def test_what_an_index_names_as_merged_is_left_out_when_it_is_as_old_and_as_large(size_differs):
    setup = make()
    source = append(setup.store, 0, 0)
    body, index = build(records_of([0, 1]), 0, [Source(SegmentName(0, 0, "w"), len(line(0)) + 1 + size_differs, "")])
    key = setup.put(f"{EVENTS}{index.name}", body)
    setup.put(f"{INDEX}{index.name}.json", index.to_json())
    assert SegmentIndex.parse(setup.body(f"{INDEX}{index.name}.json"), key) == index
    assert [each.key for each in setup.store.list_segments(REF)] == [source, key][not size_differs :]
    assert list(setup.store.records(REF)) == records_of([0, 1])


@pytest.mark.parametrize("seq", [3, 4, 5])
def test_a_source_is_left_out_wherever_it_stands_in_what_it_was_merged_into(seq):
    clock = ServerClock()
    setup = make(memory=MemoryObjectStore("m", now=clock))
    append(setup.store, seq, seq)
    clock.go_on(seconds=1)
    body, index = build(records_of([3, 4, 5]), 0, [Source(SegmentName(seq, seq, "w"), len(line(seq)) + 1, "")])
    setup.put(f"{INDEX}{index.name}.json", index.to_json())
    key = setup.put(f"{EVENTS}{index.name}", body)
    assert [each.key for each in setup.store.list_segments(REF)] == [key]


# --- all transcripts --------------------------------------------------------------------------------------------------

ids = st.sampled_from(["a", "a-b", "a.b", "a0", "A", "ä", "a/b", "日本", "..", "~", "a b", "=a", "z"])
refs = st.builds(TranscriptRef, ids, ids, ids)


@given(st.sets(refs, max_size=12), st.integers(1, 5), st.booleans())
@settings(max_examples=150)
def test_each_transcript_is_listed_once_in_the_order_of_keys(expected, page_size, ordered):
    setup = make(
        "root/",
        memory=MemoryObjectStore("m", page_size=page_size),
        wrap=(lambda inner: inner) if ordered else UnorderedObjectStore,
    )
    for ref in expected:
        append(setup.store, 0, 0, ref=ref)
        append(setup.store, 1, 1, ref=ref)
    found = list(setup.store.list_refs())
    assert set(found) == expected
    assert [each.prefix for each in found] == sorted(each.prefix for each in expected)
    for tenant in {each.tenant for each in expected}:
        assert list(setup.store.list_refs(tenant)) == [each for each in found if each.tenant == tenant]
    for agent in {each.agent_id for each in expected}:
        assert list(setup.store.list_refs(agent_id=agent)) == [each for each in found if each.agent_id == agent]
    for ref in expected:
        assert list(setup.store.list_refs(ref.tenant, ref.agent_id)) == [
            each for each in found if (each.tenant, each.agent_id) == (ref.tenant, ref.agent_id)
        ]


def test_filters_that_fit_nothing_list_nothing():
    setup = make()
    append(setup.store, 0, 0)
    assert (
        list(setup.store.list_refs("acm"))
        == list(setup.store.list_refs("acme", "code"))
        == list(setup.store.list_refs(agent_id="acme"))
        == []
    )


@pytest.mark.parametrize(
    "filters", [{"tenant": ""}, {"tenant": 5}, {"agent_id": " "}, {"agent_id": 5}, {"tenant": "t", "agent_id": "x" * 256}]
)
def test_a_filter_that_can_be_no_id_is_refused(filters):
    with pytest.raises(InvalidRefError, match=r"tenant|agent id"):
        list(make().store.list_refs(**filters))


@pytest.mark.parametrize("wrap", [lambda inner: inner, UnorderedObjectStore])
@pytest.mark.parametrize(
    ("objects", "listed"),
    [
        (["events/0-0-w.jsonl"], True),
        (["events/deleted-1"], False),
        (["events/deleting-2", "events/deleted-1"], False),
        ([f"payloads/{PAYLOAD}"], False),
        ([f"index/0-0-{COMPACTED.format(0)}.jsonl.json"], False),
        ([f"events/0-0-{COMPACTED.format(0)}.jsonl"], True),
        ([f"events/0-0-{COMPACTED.format(0)}.jsonl", "events/deleted-1"], False),
        ([f"events/0-0-{COMPACTED.format(1)}.jsonl", "events/deleted-1"], True),
        ([f"events/0-0-{COMPACTED.format(0)}.jsonl", "events/deleted-1", "events/5-5-w.jsonl"], True),
        (["events/0-0-compacted.jsonl", "events/deleted-1"], True),
        ([f"events/0-0-{COMPACTED.format(10)}.jsonl", "events/deleted-10", "events/deleted-2"], True),
        ([f"events/0-0-{COMPACTED.format(2)}.jsonl", "events/deleted-10", "events/deleted-2"], False),
        (["events/notes.txt", "events/5-4-w.jsonl"], False),
    ],
)
def test_a_transcript_is_listed_when_there_is_a_segment_to_read(wrap, objects, listed):
    setup = make(wrap=wrap)
    for rest in objects:
        setup.put(REF.prefix + rest, b"{}\n")
    assert list(setup.store.list_refs()) == ([REF] if listed else [])
    assert bool(setup.store.list_segments(REF)) == listed


@pytest.mark.parametrize("wrap", [lambda inner: inner, UnorderedObjectStore])
def test_paths_that_are_no_transcripts_are_ignored(wrap):
    setup = make("root/", wrap=wrap)
    for key in [
        "acme/coder/s1/events/0-0-w.jsonl", "root/a/b/events/0-0-w.jsonl", "root/a/b/c/d/events/0-0-w.jsonl",
        "root//b/c/events/0-0-w.jsonl", "root/a/=/c/events/0-0-w.jsonl",
        "root/a/=41/c/events/0-0-w.jsonl", f"root/{'x' * 256}/b/c/events/0-0-w.jsonl", "root/ä/b/c/events/0-0-w.jsonl",
        "root/README", "root/a/ /c/events/0-0-w.jsonl",
        "root/a/=20/c/events/0-0-w.jsonl", "rooty/a/b/c/events/0-0-w.jsonl",
    ]:  # fmt: skip
        setup.put(key, b"{}\n")
    append(setup.store, 0, 0)
    skipped = []
    assert list(setup.store.list_refs(on_skipped=skipped.append)) == [REF]
    raw, neither = (
        ["ä/b/c", "a/=/c"],
        ["a/b", "a/b/c/d", "/b/c", f"{'x' * 256}/b/c", "a/=41/c", "a/ /c", "a/=20/c"],
    )
    assert sorted(skipped) == sorted(
        [Skipped(each, "spelling", "raw") for each in raw] + [Skipped(each, "spelling") for each in neither]
    )


@pytest.mark.parametrize("wrap", [lambda inner: inner, UnorderedObjectStore])
@pytest.mark.parametrize(
    ("objects", "told"),
    [
        ([f"payloads/{PAYLOAD}"], True),
        ([f"index/0-0-{COMPACTED.format(0)}.jsonl.json"], True),
        ([f"events/0-0-{COMPACTED.format(0)}.jsonl", "events/deleted-1"], True),
        (["events/deleting-1", f"payloads/{PAYLOAD}"], True),
        (["events/deleting-1", "events/deleted-1"], False),
        (["events/notes.txt", "other/x"], False),
        ([f"payloads/{PAYLOAD}", "events/0-0-w.jsonl"], False),
    ],
)
def test_what_is_left_of_a_transcript_without_its_records_is_told_of(wrap, objects, told):
    setup = make(wrap=wrap)
    for rest in objects:
        setup.put(REF.prefix + rest, b"{}\n")
    skipped = []
    list(setup.store.list_refs(on_skipped=skipped.append))
    assert skipped == [Skipped(str(REF), "no records")] * told
    assert (setup.store.delete(REF).deleted > 0) == (told or "events/0-0-w.jsonl" in objects)


def test_what_a_listing_leaves_out_is_logged_where_nobody_asks_for_it(caplog):
    setup = make("root/")
    for name in ("a b", "c d", "é", "f g", "a/b", "s1"):
        setup.put(f"root/acme/coder/{name}/events/0-0-w.jsonl", b"{}\n")
    setup.put(f"root/acme/coder/s2/payloads/{PAYLOAD}", b"x")
    assert list(setup.store.list_refs()) == [REF]
    assert [each.getMessage() for each in caplog.records] == [
        "memory://m/root/: 1 transcript is left out whose ids are spelled otherwise than in this store: 'acme/coder/a/b'; no "
        "setting reads them: rename them",
        "memory://m/root/: 4 transcripts are left out whose ids are spelled otherwise than in this store: 'acme/coder/a b', "
        "'acme/coder/c d', 'acme/coder/f g', ...; open the store with ids=raw for them",
        "memory://m/root/: 1 transcript is left out without a segment, but with payloads or indexes: 'acme/coder/s2'; another "
        "program has deleted the segments, or a delete or an append has died: delete what is not needed",
    ]


@pytest.mark.parametrize("agent", ["my agent", "a=20b", "coder"])
def test_what_is_left_out_is_told_of_those_only_that_were_asked_for(agent):
    setup = make()
    for path in ("acme/my agent/s", "acme/a=20b/s =41", "acme/coder/s t", "other/x y/s"):
        setup.put(f"{path}/events/0-0-w.jsonl", b"{}\n")
    skipped = []
    assert list(setup.store.list_refs(agent_id=agent, on_skipped=skipped.append)) == []
    assert {each.path.split("/")[1] for each in skipped} == {agent}


def test_the_rest_of_a_long_session_is_jumped_over():
    setup = make()
    long, longer, *short = (TranscriptRef("t", "a", each) for each in ("s1", "s1-", "s1.x", "s10", "s1z"))
    for ref in (long, longer, *short):
        for seq in range(3 if ref in short else 5000):
            setup.put(f"{ref.prefix}events/{seq:019d}-{seq:019d}-w.jsonl", b"{}\n")
    assert set(setup.store.list_refs()) == {long, longer, *short}
    assert setup.driver.counts["list_page"] <= 5


@pytest.mark.parametrize("markers", [[], ["deleted-1"], ["deleted-1", "deleted-2"]])
def test_a_session_of_more_than_a_page_of_compacted_segments_is_alive_or_dead_by_all_its_markers(markers):
    setup = make()
    for seq in range(1100):
        setup.put(f"{EVENTS}{seq:019d}-{seq:019d}-{COMPACTED.format(1)}.jsonl", b"{}\n")
    for marker in markers:
        setup.put(EVENTS + marker)
    assert list(setup.store.list_refs()) == [REF] * (markers == ["deleted-1"])


@pytest.mark.parametrize(("first", "listed"), [(f"events/0-0-{COMPACTED.format(0)}.jsonl", True), ("events/deleted-1", False)])
def test_the_payloads_of_a_session_are_jumped_over(first, listed):
    setup = make()
    setup.put(REF.prefix + first, b"{}\n")
    for number in range(5000):
        setup.put(f"{REF.prefix}payloads/{number:064x}")
    append(setup.store, 0, 0, ref=TranscriptRef("b", "b", "b"))
    setup.driver.requests.clear()
    assert list(setup.store.list_refs()) == [REF] * listed + [TranscriptRef("b", "b", "b")]
    assert setup.driver.counts["list_page"] <= 3


def test_the_first_transcripts_are_there_before_the_last_page_is_asked_for():
    setup = make(memory=MemoryObjectStore("m", page_size=2))
    for number in range(10):
        append(setup.store, 0, 0, ref=TranscriptRef("t", "a", f"s{number}"))
    setup.driver.requests.clear()
    assert next(setup.store.list_refs()) == TranscriptRef("t", "a", "s0")
    assert setup.driver.counts["list_page"] == 1


def test_a_transcript_that_was_compacted_under_the_eyes_of_the_listing_is_there():
    torn = []

    class Torn(WrapperObjectStore):
        """Lists once while segments become one: the place of the new one is past, the others are gone when it comes there."""

        def list_page(self, prefix, *, start_after="", token=None):
            page = self.inner.list_page(prefix, start_after=start_after, token=token)
            kept = [each for each in page.objects if not (torn and each.key.startswith(EVENTS))]
            torn.clear()
            return page._replace(objects=kept)

    setup = make(wrap=Torn)
    for writer in ("a", "b"):
        append(setup.store, 0, 0, writer)
    setup.store.compact(REF, CompactionPolicy(full=True))
    torn.append(True)
    assert list(setup.store.list_refs()) == [REF]
    assert setup.driver.counts["list_page"] > 1
    assert torn == []
