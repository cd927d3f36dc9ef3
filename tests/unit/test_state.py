"""State documents: lost answers, crashes, what others do meanwhile, and the trees of the Java implementation."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pydantic
import pytest
from faults.setups import FakeClock
from hypothesis import assume, given
from hypothesis import strategies as st
from unit.setups import REF, Crash, HookedObjectStore, StepObjectStore, append, crash, make

from transcript_backends import (
    ABSENT,
    AccessDeniedError,
    ConditionalWritesUnsupportedError,
    ContainerNotFoundError,
    CorruptSegmentError,
    InvalidRefError,
    ObjectTranscriptStore,
    PartialDeleteError,
    RuntimeContext,
    StateStore,
    StoreClosedError,
    StoreUnavailableError,
    VersionConflictError,
    open_store,
)
from transcript_backends.container import Container, RetryPolicy
from transcript_backends.drivers.driver import IfMatch, Meaning
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.drivers.wrappers import FaultyObjectStore, InjectedError, RecordingObjectStore, WrapperObjectStore
from transcript_backends.keys import escape
from transcript_backends.state import places

PLACE = ("u", "s", "k")
KEY = "u/s/k.json"
LIST = "u/s/k.jsonl"
HASH = "u/s/k.hash"


def states_on(driver, clock=None, **options):
    """A state store whose root is that of a driver."""
    states = StateStore(ObjectTranscriptStore(Container(driver, clock=clock or FakeClock(), **options)))
    states._root = ""
    return states


@pytest.fixture
def memory():
    return MemoryObjectStore("m")


@pytest.fixture
def others(memory):
    """What another process has open."""
    return states_on(memory)


class ForgettingObjectStore(WrapperObjectStore):
    """Keeps no metadata, as file systems do."""

    def put(self, key, body, *, mode, metadata):
        return self.inner.put(key, body, mode=mode, metadata={})


# --- answers that get lost --------------------------------------------------------------------------------------------


@pytest.fixture
def faulty(memory):
    return FaultyObjectStore(memory)


@pytest.mark.parametrize("meaning", [Meaning.TRY_AGAIN, Meaning.NO_ANSWER])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("absent", [False, True])
def test_a_lost_answer_is_found_by_looking_and_nothing_is_written_twice(memory, faulty, others, meaning, stored, absent):
    states = states_on(faulty)
    expected = ABSENT if absent else others.save(*PLACE, 1)
    writes = memory._writes
    faulty.fail("put", meaning, stored=stored)
    version = states.save_if_version(*PLACE, 2, expected)
    assert others.get_versioned(*PLACE, int) == (2, version)
    assert memory._writes == writes + 1


def test_an_sdk_that_has_repeated_a_lost_write_by_itself_is_seen_through(faulty, others):
    version = others.save(*PLACE, 1)
    faulty.fail("put", Meaning.PRECONDITION, stored=True)
    version = states_on(faulty).save_if_version(*PLACE, 2, version)
    assert others.get_versioned(*PLACE, int) == (2, version)


@pytest.mark.parametrize("stored", [False, True])
def test_where_it_can_not_be_told_it_is_neither_a_success_nor_a_conflict(memory, others, stored):
    """Another version is there, and it may or may not have come after ours."""
    version = others.save(*PLACE, 1)
    hooked = HookedObjectStore(memory)
    faulty = FaultyObjectStore(hooked)
    faulty.fail("put", stored=stored)
    hooked.before("head", lambda: others.save(*PLACE, 3))
    with pytest.raises(StoreUnavailableError, match="may have been stored and replaced since, or not: read it") as caught:
        states_on(faulty).save_if_version(*PLACE, 2, version)
    assert "another version is there now" in str(caught.value)
    assert others.get(*PLACE, int) == 3


@pytest.mark.parametrize("absent", [False, True])
def test_what_came_in_place_of_ours_is_a_conflict_though_an_answer_was_lost(memory, others, absent):
    """It tells which version it has replaced, so ours can't have been stored."""
    expected = ABSENT if absent else others.save(*PLACE, 1)
    hooked = HookedObjectStore(memory)
    faulty = FaultyObjectStore(hooked)
    faulty.fail("put")
    hooked.before("head", lambda: others.save_if_version(*PLACE, 3, expected))
    with pytest.raises(VersionConflictError, match="nothing was written"):
        states_on(faulty).save_if_version(*PLACE, 2, expected)
    faulty.fail("put")
    hooked.before("head", lambda: others.update(*PLACE, int, lambda value: value + 10))
    assert states_on(faulty).update(*PLACE, int, lambda value: value + 1) == 14


@pytest.mark.parametrize("stored", [False, True])
def test_what_came_after_that_tells_nothing(memory, others, stored):
    version = others.save(*PLACE, 1)
    hooked = HookedObjectStore(memory)
    faulty = FaultyObjectStore(hooked)
    faulty.fail("put", stored=stored)
    hooked.before("head", lambda: [others.update(*PLACE, int, lambda value: value + 10) for _ in range(2)])
    with pytest.raises(StoreUnavailableError, match="may have been stored and replaced since"):
        states_on(faulty).save_if_version(*PLACE, 2, version)


@pytest.mark.parametrize("absent", [False, True])
def test_what_the_service_has_refused_is_not_lost(memory, others, absent):
    """It says that nothing was done: whatever others have written since, ours was not."""
    expected = ABSENT if absent else others.save(*PLACE, 1)
    hooked = HookedObjectStore(memory)
    faulty = FaultyObjectStore(hooked)
    faulty.fail("put", refused=True)
    hooked.before("head", lambda: [others.save(*PLACE, number) for number in (3, 4)])
    with pytest.raises(VersionConflictError, match="another version is there now; nothing was written"):
        states_on(faulty).save_if_version(*PLACE, 2, expected)
    faulty.fail("put", refused=True, times=3)
    hooked.before("head", lambda: [others.update(*PLACE, int, lambda value: value + 10) for _ in range(2)])
    assert states_on(faulty).update(*PLACE, int, lambda value: value + 1) == 25


@pytest.mark.parametrize("refused_first", [False, True])
def test_a_refusal_tells_nothing_of_another_try(memory, others, refused_first):
    version = others.save(*PLACE, 1)
    hooked = HookedObjectStore(memory)
    faulty = FaultyObjectStore(hooked)
    for refused in (refused_first, not refused_first):
        faulty.fail("put", stored=not refused, refused=refused)
    faulty.fail("head")
    hooked.before("head", lambda: [others.save(*PLACE, number) for number in (3, 4)])
    with pytest.raises(StoreUnavailableError, match="may have been stored and replaced since"):
        states_on(faulty).save_if_version(*PLACE, 2, version)


def test_refusals_alone_leave_no_doubt_about_the_outcome(faulty, others):
    version = others.save(*PLACE, 1)
    faulty.fail("put", refused=True, times=10)
    with pytest.raises(StoreUnavailableError) as caught:
        states_on(faulty).save_if_version(*PLACE, 2, version)
    assert "may have been stored" not in str(caught.value)
    assert others.get_versioned(*PLACE, int) == (1, version)


def test_what_vanished_after_a_lost_answer_can_not_be_told_either(memory, others):
    version = others.save(*PLACE, 1)
    hooked = HookedObjectStore(memory)
    faulty = FaultyObjectStore(hooked)
    faulty.fail("put", stored=True)
    hooked.before("head", lambda: others.delete(*PLACE))
    with pytest.raises(StoreUnavailableError, match="nothing is there now; it may have been stored"):
        states_on(faulty).save_if_version(*PLACE, 2, version)


def test_a_conflict_is_certain_even_where_it_takes_several_looks(faulty, others):
    stale = others.save(*PLACE, 1)
    others.save(*PLACE, 3)
    faulty.fail("head", times=2)
    with pytest.raises(VersionConflictError, match=r"'u/s/k\.json' on memory://m is not as it was read: another version"):
        states_on(faulty).save_if_version(*PLACE, 2, stale)


def test_the_same_bytes_of_another_are_not_ours(memory, faulty, others):
    """Two that count from 1 both write 2."""
    version = others.save(*PLACE, 1)
    hooked = HookedObjectStore(faulty)
    hooked.before("put", lambda: others.save_if_version(*PLACE, 2, version))
    with pytest.raises(VersionConflictError):
        states_on(hooked).save_if_version(*PLACE, 2, version)
    with pytest.raises(VersionConflictError):
        states_on(faulty).save_if_version(*PLACE, 2, ABSENT)


@pytest.mark.parametrize("stored", [False, True])
def test_without_metadata_a_lost_answer_is_told_by_the_version_or_not_at_all(memory, others, stored):
    version = others.save(*PLACE, 1)
    faulty = FaultyObjectStore(ForgettingObjectStore(memory))
    faulty.fail("put", stored=stored)
    states = states_on(faulty)
    if stored:
        with pytest.raises(StoreUnavailableError, match="may have been stored"):
            states.save_if_version(*PLACE, 2, version)
    else:
        states.save_if_version(*PLACE, 2, version)
    assert others.get(*PLACE, int) == 2


def test_retries_that_are_used_up_say_that_the_outcome_is_unknown(faulty, others):
    version = others.save(*PLACE, 1)
    faulty.fail("put", times=10**6)
    with pytest.raises(StoreUnavailableError, match=r"could not replace 'u/s/k\.json'.*it may have been stored or not"):
        states_on(faulty).save_if_version(*PLACE, 2, version)
    with pytest.raises(StoreUnavailableError, match=r"could not write 'u/s/k\.json'.*it may have been stored or not"):
        states_on(faulty).save(*PLACE, 2)


def test_a_write_that_may_overwrite_is_repeated_until_it_is_answered(faulty, others):
    faulty.fail("put", stored=True, times=3)
    version = states_on(faulty).save(*PLACE, 2)
    assert others.get_versioned(*PLACE, int) == (2, version)


def test_a_counter_counts_each_of_many_lost_answers_once(faulty, others):
    states = states_on(faulty)
    for number in range(20):
        faulty.fail("put", stored=bool(number % 2))
        assert states.update(*PLACE, int, lambda value: (value or 0) + 1) == number + 1
    assert others.get(*PLACE, int) == 20


def test_an_update_is_tried_again_with_what_others_have_written(memory, others):
    hooked, clock = HookedObjectStore(memory), FakeClock()
    for number in range(5):
        hooked.before("put", lambda: others.update(*PLACE, int, lambda value: (value or 0) + 10), after=number)
    seen = []
    result = states_on(hooked, clock).update(*PLACE, int, lambda value: seen.append(value) or (value or 0) + 1)
    assert (result, seen) == (51, [None, 10, 20, 30, 40, 50])
    assert len(clock.pauses) == 5
    assert all(0 <= pause <= 0.01 * 2**number for number, pause in enumerate(clock.pauses))


def test_an_update_gives_up_when_its_time_is_over(memory, others):
    class Interfered(WrapperObjectStore):
        def put(self, key, body, *, mode, metadata):
            others.save(*PLACE, 0)
            return self.inner.put(key, body, mode=mode, metadata=metadata)

    clock = FakeClock()
    with pytest.raises(VersionConflictError):
        states_on(Interfered(memory), clock, retry=RetryPolicy(deadline=20)).update(*PLACE, int, lambda _: 1)
    assert 15 < clock.now <= 20


@pytest.mark.parametrize("wrong", [0, None, 1.5])
def test_an_expected_version_is_one_that_was_given(others, wrong):
    with pytest.raises(TypeError, match="one that was given, or ABSENT"):
        others.save_if_version(*PLACE, 1, wrong)


# --- servers that have no conditions -----------------------------------------------------------------------------------


class CarelessObjectStore(WrapperObjectStore):
    """Of a service nobody knows; ignores the conditions of some kinds of puts."""

    capabilities = replace(MemoryObjectStore().capabilities, create_only="probe")

    def __init__(self, inner, ignores):
        super().__init__(inner)
        self._ignores = ignores

    def put(self, key, body, *, mode, metadata):
        mode = "overwrite" if isinstance(mode, self._ignores) else mode
        return self.inner.put(key, body, mode=mode, metadata=metadata)


def test_a_server_that_ignores_versions_is_found_out_and_refused(memory, others):
    version = others.save(*PLACE, 1)
    states = states_on(CarelessObjectStore(memory, IfMatch))
    for call in (lambda: states.save_if_version(*PLACE, 2, version), lambda: states.update(*PLACE, int, lambda _: 2)):
        with pytest.raises(
            ConditionalWritesUnsupportedError, match=r"writes that replace one version only.*conditional_writes=off"
        ):
            call()
    assert others.get(*PLACE, int) == 1
    assert list(memory._objects) == [KEY]
    states.save_if_version("u", "s", "other", 1, ABSENT)  # creates it does refuse
    with pytest.raises(ConditionalWritesUnsupportedError, match="create-only writes"):
        states_on(CarelessObjectStore(memory, str)).save_if_version("u", "s", "third", 1, ABSENT)


def test_a_server_that_honours_them_is_asked_once(memory, others):
    version = others.save(*PLACE, 1)
    recording = RecordingObjectStore(CarelessObjectStore(memory, ()))
    states = states_on(recording)
    version = states.save_if_version(*PLACE, 2, version)
    assert [each.operation for each in recording.requests] == ["put", "put", "put", "delete_many", "put"]
    assert all(each.key.startswith("u/s/.probe-") for each in recording.requests[:-1])
    recording.requests.clear()
    states.save_if_version(*PLACE, 3, version)
    assert [each.operation for each in recording.requests] == ["put"]
    assert list(memory._objects) == [KEY]


def test_without_conditions_a_look_comes_first(memory, others):
    states = states_on(CarelessObjectStore(memory, (IfMatch, str)), conditional_writes="off")
    version = states.save_if_version(*PLACE, 1, ABSENT)
    later = states.save_if_version(*PLACE, 2, version)
    for stale in (version, ABSENT):
        with pytest.raises(VersionConflictError):
            states.save_if_version(*PLACE, 3, stale)
    assert others.get_versioned(*PLACE, int) == (2, later)


# --- lists: what others do meanwhile ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("meanwhile", "fine"),
    [([1, 2], True), ([1, 2, 3], True), ([], True), ([1, 5], False), ([5], False), ([1, 2, 3, 4], False), (None, True)],
)
@pytest.mark.parametrize("keeps_metadata", [True, False])
def test_what_another_saves_meanwhile_is_never_overwritten_unseen(memory, others, meanwhile, fine, keeps_metadata):
    others.save_list(*PLACE, [1])
    hooked = HookedObjectStore(memory)
    hooked.before("put", lambda: others.delete(*PLACE) if meanwhile is None else others.save_list(*PLACE, meanwhile))
    states = states_on(hooked if keeps_metadata else ForgettingObjectStore(hooked))
    if fine:
        version = states.save_list(*PLACE, [1, 2, 3])
        assert others.get_list_versioned(*PLACE, int) == ([1, 2, 3], version)
    else:
        with pytest.raises(VersionConflictError, match=r"memory://m/u/s/k\.jsonl was changed by somebody else while it was"):
            states.save_list(*PLACE, [1, 2, 3])
        assert others.get_list(*PLACE, int) == meanwhile


def test_a_new_list_does_not_overwrite_one_that_has_come_meanwhile(memory, others):
    hooked = HookedObjectStore(memory)
    hooked.before("put", lambda: others.save_list(*PLACE, [7]))
    with pytest.raises(VersionConflictError):
        states_on(hooked).save_list(*PLACE, [1])
    assert others.get_list(*PLACE, int) == [7]


def test_items_are_compared_all_of_them_and_whole(others):
    """A hash of some of them would take these for one."""
    items = [f"item {number}" for number in range(3000)]
    for number in (1, 777, 1499, 2998):
        others.save_list(*PLACE, items)
        changed = [*items[:number], "other", *items[number + 1 :], "more"]
        others.save_list(*PLACE, changed)
        assert others.get_list(*PLACE, str) == changed
    others.save_list(*PLACE, [12])
    others.save_list(*PLACE, [1, 2])
    assert others.get_list(*PLACE, int) == [1, 2]


def test_the_requests_of_a_list(memory):
    recording = RecordingObjectStore(memory)
    states = states_on(recording)

    def requests(call):
        recording.requests.clear()
        call()
        return [each.operation for each in recording.requests]

    assert requests(lambda: states.save_list(*PLACE, [1])) == ["head", "delete_many", "put"]
    assert requests(lambda: states.save_list(*PLACE, [1])) == ["head"]
    assert requests(lambda: states.save_list(*PLACE, [1, 2])) == ["head", "put"]
    assert requests(lambda: states.save_list(*PLACE, [2])) == ["head", "put"]
    assert requests(lambda: states.get_list(*PLACE, int)) == ["get", "get"]
    assert requests(lambda: states.save(*PLACE, 1)) == ["put"]
    assert requests(lambda: states.get(*PLACE, int)) == ["get"]
    assert requests(lambda: states.save_if_version(*PLACE, 1, states.save(*PLACE, 0))) == ["put", "put"]


# --- crashes --------------------------------------------------------------------------------------------------------------


def java_hash(lines):
    """What the Java implementation writes beside a list of these lines."""
    if not lines:
        return b"empty:0"
    items = "".join(f"{number}:{line}," for number, line in enumerate(lines))
    return hashlib.sha256(f"size:{len(lines)};{items}".encode()).hexdigest().encode()


def put_java_list(memory, lines, key=LIST):
    memory.put(key, "".join(f"{line}\n" for line in lines).encode(), mode="overwrite", metadata={})
    memory.put(key.removesuffix("l").removesuffix(".json") + ".hash", java_hash(lines), mode="overwrite", metadata={})


@pytest.mark.parametrize("by_java", [False, True])
@pytest.mark.parametrize("keeps_metadata", [True, False])
@pytest.mark.parametrize("after", [["1", "2", "3"], ["9"], []])
def test_a_crash_at_any_request_leaves_a_whole_list_that_can_be_saved(by_java, keeps_metadata, after):
    before, crashed = ["1", "2"], 0
    for number in range(10):
        memory = MemoryObjectStore("m")
        if by_java:
            put_java_list(memory, before)
        else:
            states_on(memory).save_list(*PLACE, [1, 2])
        inner = memory if keeps_metadata else ForgettingObjectStore(memory)
        try:
            states_on(StepObjectStore(inner, number, crash)).save_list(*PLACE, map(int, after))
        except Crash:
            crashed += 1
        found = states_on(memory).get_list(*PLACE, int)
        assert found in ([1, 2], list(map(int, after)))
        if HASH in memory._objects:  # else Java writes it whole: never does it add to what it has not written
            assert memory._objects[HASH].body == java_hash(list(map(str, found)))
        states_on(inner).save_list(*PLACE, [5, 6])
        assert states_on(memory).get_list(*PLACE, int) == [5, 6]
    assert 2 <= crashed < 10


# --- the trees of the Java implementation ---------------------------------------------------------------------------------


def b64(text):
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def test_a_tree_of_the_java_implementation_is_read_as_it_is(tmp_path):
    """Files as it writes them: pretty values, lines of items, hashes; ids in base64 where they need it."""
    for user, session in (("__anon__", "s-1"), ("alice", "s.1"), (b64("bob@ex.com"), b64("日本 1")), ("alice", b64("a:b"))):
        directory = tmp_path / user / session
        directory.mkdir(parents=True)
        (directory / "agent_state.json").write_text('{\n  "id" : "7",\n  "extra" : null\n}')
        lines = ['{"role":"USER","content":"hi"}', '{"role":"ASSISTANT","content":"日本"}']
        (directory / "memory_messages.jsonl").write_text("".join(f"{line}\n" for line in lines))
        (directory / "memory_messages.hash").write_bytes(java_hash(lines))
    with StateStore(f"file://{tmp_path}") as states:
        for user, session in ((None, "s-1"), ("alice", "s.1"), ("bob@ex.com", "日本 1"), ("alice", "a:b")):
            assert states.get(user, session, "agent_state", dict) == {"id": "7", "extra": None}
            assert [each["role"] for each in states.get_list(user, session, "memory_messages", dict)] == ["USER", "ASSISTANT"]
            assert states.exists(user, session)
        assert states.list_session_ids("alice") == ["a:b", "s.1"]
        assert states.list_session_ids("bob@ex.com") == ["日本 1"]
        assert states.list_session_ids(None) == ["s-1"]
        assert states.clear() == 4
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


def test_the_java_implementation_finds_what_is_written_for_plain_ids(tmp_path):
    with StateStore(f"file://{tmp_path}") as states:
        states.save("alice", "s-1", "agent_state", {"id": "7"})
        states.save_list(None, "s.1", "memory_messages", [{"n": 1}, {"n": 2}])
    assert (tmp_path / "alice/s-1/agent_state.json").read_text() == '{"id":"7"}'
    assert (tmp_path / "__anon__/s.1/memory_messages.jsonl").read_text() == '{"n":1}\n{"n":2}\n'


PLACES = [
    ("user@host", "s 1", "k"),
    ("u", "s", "café"),
    ("u", "s", "key with blank"),
    ("日本", "a:b", "50%+1?#k=v~"),
    (None, "a b", "plan"),
    ("u", "tab\there", "k"),
]


def in_java(user, session, key):
    """Where the Java implementation has a document."""
    ids = ("__anon__" if user is None else user, session)
    return "/".join([*(each if re.fullmatch(r"[\w.-]+", each, re.ASCII) else b64(each) for each in ids), key])


def escaped(user, session, key):
    """Where one without regard to Java had it."""
    return "/".join(map(escape, ("__anon__" if user is None else user, session, key)))


@pytest.mark.parametrize("where", [in_java, escaped])
@pytest.mark.parametrize("place", PLACES, ids=map(str, PLACES))
def test_a_document_is_read_and_written_where_it_is(memory, others, place, where):
    key = f"{where(*place)}.json"
    memory.put(key, b"1", mode="create", metadata={})
    value, version = others.get_versioned(*place, int)
    assert value == 1
    with pytest.raises(VersionConflictError):
        others.save_if_version(*place, 2, ABSENT)
    newer = others.save_if_version(*place, 2, version)
    with pytest.raises(VersionConflictError):
        others.save_if_version(*place, 3, version)
    memory.put(key, b"3", mode="overwrite", metadata={})  # by the other one
    with pytest.raises(VersionConflictError):
        others.save_if_version(*place, 4, newer)
    assert others.update(*place, int, lambda value: value + 1) == 4
    assert others.save(*place, 5) == others.get_versioned(*place, int)[1]
    assert list(memory._objects) == [key]
    assert memory._objects[key].body == b"5"
    if where is escaped or place[1].isprintable():
        assert others.list_session_ids(place[0]) == [place[1]]
    others.delete(*place)
    assert memory._objects == {}


@pytest.mark.parametrize("where", [in_java, escaped])
@pytest.mark.parametrize("place", PLACES, ids=map(str, PLACES))
def test_a_list_is_read_and_written_where_it_is(memory, others, place, where):
    key = f"{where(*place)}.jsonl"
    put_java_list(memory, ["1", "2"], key)
    version = others.save_list(*place, [1, 2])
    assert others.get_list_versioned(*place, int) == ([1, 2], version)
    others.save_list(*place, [1, 2, 3])
    assert others.update_list(*place, int, lambda items: items[1:]) == [2, 3]
    assert list(memory._objects) == [key]
    put_java_list(memory, ["7"], key)
    assert others.get_list(*place, int) == [7]


@pytest.mark.parametrize("place", PLACES[:-1], ids=map(str, PLACES[:-1]))
def test_a_new_document_is_where_the_java_implementation_looks_for_it(memory, others, place):
    others.save(*place, 1)
    others.save_list(*place, [1])
    assert sorted(memory._objects) == [f"{in_java(*place)}.json", f"{in_java(*place)}.jsonl"]
    assert others.list_session_ids(place[0]) == [place[1]]


@pytest.mark.parametrize(
    "place",
    [
        ("u", "s", "a/b"),
        ("u", "s", "../k"),
        ("u", "s", ".k"),
        ("u", "..", "k"),
        ("YSBi", "s", "k"),
        ("u", ".s", "k"),
        ("u", "s.", "k"),
    ],
)
def test_what_would_be_in_another_place_in_java_is_escaped(memory, others, place):
    others.save(*place, 1)
    (key,) = memory._objects
    assert key.count("/") == 2
    assert key != f"{in_java(*place)}.json"
    assert others.get(*place, int) == 1
    assert others.list_session_ids(place[0]) == [place[1]]


def test_a_version_that_was_elsewhere_is_not_written_over_what_came_before_it(memory, others):
    place = ("user@host", "s", "k")
    memory.put(f"{escaped(*place)}.json", b"1", mode="create", metadata={})
    version = others.get_versioned(*place, int)[1]
    memory.put(f"{in_java(*place)}.json", b"2", mode="create", metadata={})
    for expected in (version, ABSENT, "~~~~~1"):
        with pytest.raises(VersionConflictError, match="is not as it was read"):
            others.save_if_version(*place, 3, expected)
    assert others.get(*place, int) == 2


def test_what_stands_beside_a_list_is_no_document_and_goes_with_it(memory, others):
    put_java_list(memory, ["1", "2"])
    memory.put("u/t/k.hash", b"empty:0", mode="create", metadata={})
    assert others.list_session_ids("u") == ["s"]
    assert (others.exists("u", "s"), others.exists("u", "t")) == (True, False)
    others.delete(*PLACE)
    assert list(memory._objects) == ["u/t/k.hash"]


def test_a_list_that_java_has_not_finished_is_never_shown(memory):
    hooked, clock = HookedObjectStore(memory), FakeClock()
    states = states_on(hooked, clock)
    put_java_list(memory, ["1", "2"])
    for body in (b"1\n", b"1\n2\n3\n", b"1\n3\n", b"1\n2", b"1\n2\n3", b""):
        memory.put(LIST, body, mode="overwrite", metadata={})
        with pytest.raises(
            CorruptSegmentError, match=r"m/u/s/k\.jsonl is not the list its \.hash was written for.*Save the list"
        ):
            states.get_list(*PLACE, int)
    hooked.before("get", lambda: put_java_list(memory, ["1", "2", "3"]), key=HASH, after=2)
    assert states.get_list(*PLACE, int) == [1, 2, 3]
    memory.put(LIST, b"1\n2\n", mode="overwrite", metadata={})
    states.save_list(*PLACE, [1, 2])
    assert (states.get_list(*PLACE, int), HASH in memory._objects) == ([1, 2], False)


@pytest.mark.parametrize("told", [b"empty:0", b"empty:0\n"])
def test_an_empty_list_of_java_is_one(memory, others, told):
    memory.put(LIST, b"\n", mode="create", metadata={})
    memory.put(HASH, told, mode="create", metadata={})
    assert others.get_list(*PLACE, int) == []


def test_a_hash_of_before_is_no_reason_to_refuse_a_list(memory, others):
    memory.put(LIST, b'{"a":1}\r\n\r\n{"a":2}\r\n', mode="create", metadata={})
    memory.put(HASH, b"-7a3f2c11", mode="create", metadata={})
    assert others.get_list(*PLACE, dict) == [{"a": 1}, {"a": 2}]
    lines = ['{"a":1}', '{"a":2}']
    memory.put(HASH, java_hash(lines), mode="overwrite", metadata={})
    assert others.get_list(*PLACE, dict) == [{"a": 1}, {"a": 2}]


# --- names ------------------------------------------------------------------------------------------------------------------

IDS = st.one_of(
    st.text(min_size=1, max_size=12),
    st.text(st.sampled_from("ab=._-/ @é"), min_size=1, max_size=8),
    st.text(min_size=1, max_size=6).map(b64),
).filter(lambda text: (text.strip() and max(text) < "\ud800") or max(text) > "\udfff")


def place(user, session, key="k"):
    return places.documents(places.session_prefixes("r/", user, session), key, ".json")[0]


@given(st.none() | IDS, IDS)
def test_ids_are_read_from_a_key_as_they_were_written(user, session):
    key = place(user, session)
    assert re.fullmatch(r"r/[A-Za-z0-9_.=-]+/[A-Za-z0-9_.=-]+/k\.json", key)
    assert places.parse(key.removeprefix("r/")) == (user, session, True)


@given(IDS, IDS)
def test_no_two_users_share_a_place_whoever_wrote_it(one, other):
    assume(one != other)
    ours, theirs = (set(places.user_prefixes("r/", each)) for each in (one, other))
    assert place(one, "s") != place(other, "s")
    assert not ours & theirs or not all(each.isprintable() for each in (one, other))  # Java's own ids can meet so
    assert not ours & set(places.user_prefixes("r/", None))


@pytest.mark.parametrize(
    "rest",
    [
        "a/b",
        "a/b/c",
        "a/b/c.txt",
        "a/b/.c.json",
        "a/b/c/d.json",
        "a//c.json",
        "/b/c.json",
        "é/b/c.json",
        "=2/b/c.json",
        "=61/b/c.json",
        "./b/c.json",
        "a/../c.json",
        "a/b/events/0-0-w.jsonl",
        "=state/u/s/k.json",
    ],
)
def test_what_is_somebody_elses_is_left_alone(memory, others, rest):
    assert places.parse(rest) is None
    memory.put(rest, b"1", mode="create", metadata={})
    assert others.clear() == 0
    assert list(memory._objects) == [rest]


@pytest.mark.parametrize("user", ["..", ".", "../../etc", "/etc", "..\\x", "a/../..", "\0"])
def test_no_id_leaves_its_place(tmp_path, user):
    root = tmp_path / "a/b/root"
    with StateStore(f"file://{root}") as states:
        for place in ((user, "s", "k"), ("u", user, "k"), ("u", "s", user)):
            states.save(*place, 1)
            states.save_list(*place, [1])
            assert (states.get(*place, int), states.get_list(*place, int)) == (1, [1])
            states.delete(*place)
    assert {each.name for each in tmp_path.rglob("*") if each.is_dir()} >= {"root"}
    assert all(root in each.parents for each in tmp_path.rglob("*") if each.is_file())
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_a_key_may_be_just_so_long(others):
    others.save("u", "s", "k" * 249, 1)
    others.save_list("u", "s", "k" * 249, [1])
    for place in (("u", "s", "k" * 250), ("é" * 40 + "u", "s", "k" * 250)):
        with pytest.raises(InvalidRefError, match=r"makes a name of 256 bytes.*use shorter ids"):
            others.save(*place, 1)
    deep = states_on(MemoryObjectStore())
    deep._root = "r/" * 300
    with pytest.raises(InvalidRefError, match="1024 in all are the limits"):
        deep.save("u" * 200, "s" * 200, "k" * 100, 1)


# --- types ------------------------------------------------------------------------------------------------------------------


class Model(pydantic.BaseModel):
    role: str
    when: pydantic.AwareDatetime | None = None
    parts: list[Model] = []


@dataclasses.dataclass
class Holder:
    models: list[Model]


def test_models_of_pydantic_are_written_and_read_wherever_they_are(others):
    model = Model(role="user", when="2026-01-01T00:00:00Z", parts=[Model(role="tool")])
    others.save(*PLACE, model)
    assert others.get(*PLACE, Model) == model
    others.save(*PLACE, Holder([model]))
    assert others.get(*PLACE, Holder) == Holder([model])
    others.save(*PLACE, {"a": model})
    assert others.get(*PLACE, dict[str, Model]) == {"a": model}
    others.save_list(*PLACE, [model, model])
    assert others.get_list(*PLACE, Model) == [model, model]


def test_a_model_that_does_not_fit_is_an_error_that_names_the_place(others):
    others.save(*PLACE, {"role": 1})
    with pytest.raises(CorruptSegmentError, match=r"memory://m/u/s/k\.json is no JSON of the type Model: .*role.*string"):
        others.get(*PLACE, Model)


def test_pydantic_is_needed_by_nobody_else():
    code = "import sys; from transcript_backends import StateStore; states = StateStore('memory://x')"
    code += "; states.save('u', 's', 'k', {}); states.get('u', 's', 'k', dict); print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- errors are no answers ----------------------------------------------------------------------------------------------------

READS = {
    "get": lambda states: states.get(*PLACE, int),
    "get_list": lambda states: states.get_list(*PLACE, int),
    "save_list": lambda states: states.save_list(*PLACE, [1]),
    "save": lambda states: states.save(*PLACE, 1),
    "save_if_version": lambda states: states.save_if_version(*PLACE, 1, ABSENT),
    "exists": lambda states: states.exists("u", "s"),
    "list_session_ids": lambda states: states.list_session_ids("u"),
    "delete": lambda states: states.delete("u", "s"),
    "clear": lambda states: states.clear(),
}


@pytest.mark.parametrize("name", READS)
def test_a_denial_is_not_taken_for_an_absence(faulty, name):
    for operation in ("get", "head", "put", "list_page", "delete_many"):
        faulty.fail(operation, Meaning.DENIED, times=10)
    with pytest.raises(AccessDeniedError):
        READS[name](states_on(faulty))


@pytest.mark.parametrize("name", ["get", "get_list", "exists", "list_session_ids", "delete", "clear"])
def test_a_missing_directory_is_not_taken_for_an_empty_one(tmp_path, name):
    (tmp_path / "store").mkdir()
    with StateStore(f"file://{tmp_path}/store") as states:
        (tmp_path / "store").rmdir()
        with pytest.raises(ContainerNotFoundError):
            READS[name](states)


def test_what_could_not_be_deleted_is_named_and_goes_when_it_is_asked_again(memory, others):
    others.save(*PLACE, 1)
    others.save("u", "s", "l", 1)

    class Holding(FaultyObjectStore):
        def delete_many(self, keys, *, versions=None):
            self.inner.delete_many([key for key in keys if key != KEY])
            return {key: InjectedError(Meaning.DENIED) for key in keys if key == KEY}

    with pytest.raises(
        PartialDeleteError, match=r"1 of 2 objects could not be deleted, 'u/s/k.json' for one: injected"
    ) as caught:
        states_on(Holding(memory)).delete("u", "s")
    assert caught.value.failed == {KEY: "injected: access denied"}
    others.delete("u", "s")
    assert memory._objects == {}


# --- the store underneath ---------------------------------------------------------------------------------------------------


def test_a_url_names_the_place_itself_and_a_store_has_one_below(tmp_path):
    with StateStore(f"file://{tmp_path}/p") as direct, open_store(f"file://{tmp_path}/p") as store:
        direct.save(*PLACE, 1)
        shared = StateStore(store)
        shared.save(*PLACE, 2)
        assert (direct.get(*PLACE, int), shared.get(*PLACE, int)) == (1, 2)
        assert [str(direct), str(shared)] == [f"file://{tmp_path}/p", f"file://{tmp_path}/p/=state"]
        assert repr(shared) == f"<StateStore file://{tmp_path}/p/=state>"
        with StateStore(f"file://{tmp_path}/p/=state") as again:
            assert again.get(*PLACE, int) == 2
        assert (direct.clear(), shared.get(*PLACE, int)) == (1, 2)


def test_documents_at_the_root_of_transcripts_leave_them_alone(tmp_path):
    """The same root by URL: what is beside the documents is not theirs."""
    with StateStore(f"file://{tmp_path}/p") as states, open_store(f"file://{tmp_path}/p") as store:
        append(store, 0, 2)
        states.save(REF.tenant, REF.agent_id, "k", 1)
        assert (list(store.list_refs()), states.list_session_ids(REF.tenant)) == ([REF], [REF.agent_id])
        assert states.clear() == 1
        assert [record.seq for record in store.records(REF)] == [0, 1, 2]


def test_a_shared_store_stays_open_and_ones_own_is_closed():
    setup = make("p/")
    with StateStore(setup.store) as states:
        states.save(*PLACE, 1)
    assert states.get(*PLACE, int) == 1
    assert setup.keys() == ["p/=state/u/s/k.json"]
    with StateStore("memory://closing") as states:
        pass
    with pytest.raises(StoreClosedError):
        states.get(*PLACE, int)


def test_options_go_to_the_store_that_is_opened():
    with StateStore("memory://x", max_attempts=3) as states:
        assert states._container.retry.max_attempts == 3
    with pytest.raises(TypeError, match="takes no options: max_attempts"):
        StateStore(make().store, max_attempts=3)


def test_placeholders_are_filled_first():
    setup = make("{tenant}/")
    with pytest.raises(InvalidRefError, match="placeholders to fill"):
        StateStore(setup.store)
    StateStore(setup.store.with_runtime_context(RuntimeContext(tenant="t"))).save(*PLACE, 1)
    assert setup.keys() == ["t/=state/u/s/k.json"]


def test_a_store_survives_pickling(tmp_path):
    with StateStore(f"file://{tmp_path}/p") as states:
        states.save(*PLACE, 1)
        with pickle.loads(pickle.dumps(states)) as again:
            assert again.get(*PLACE, int) == 1


def test_the_examples_of_the_guide_run(capsys):
    guide = (Path(__file__).resolve().parents[2] / "docs/state.md").read_text()
    shown = []
    for example, output in re.findall(r"^```python\n(.*?)^```\n+```\n(.*?)^```", guide, re.MULTILINE | re.DOTALL):
        exec(compile(example, "docs/state.md", "exec"), {})
        assert capsys.readouterr().out == output
        shown.append(output)
    assert len(shown) >= 2
