"""A delete request that is carried out long after it was sent removes nothing that was written since."""

from __future__ import annotations

import contextlib

import pytest
from unit.setups import EVENTS, REF, Crash, ServerClock, append, crash, make

from transcript_backends import CompactionPolicy, ObjectTranscriptStore
from transcript_backends.container import Container
from transcript_backends.drivers.driver import Meaning
from transcript_backends.drivers.local import LocalObjectStore
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.drivers.wrappers import FaultyObjectStore, InjectedError


class LateObjectStore(FaultyObjectStore):
    """Keeps its first batch delete of segments in flight: the sender dies, or is told to try again."""

    dies = False

    def __init__(self, inner):
        super().__init__(inner)
        self.late = None

    def _around(self, operation, key, request):
        if operation == "delete_many" and key.endswith(".jsonl") and self.late is None:
            self.late = request
            if self.dies:
                crash()
            raise InjectedError(Meaning.TRY_AGAIN)
        return super()._around(operation, key, request)


@pytest.fixture(params=["memory", "local"])
def driver(request, tmp_path):
    return MemoryObjectStore() if request.param == "memory" else LocalObjectStore(str(tmp_path))


@pytest.fixture
def store(driver):
    return ObjectTranscriptStore(Container(driver))


@pytest.fixture
def late(driver):
    return LateObjectStore(driver)


def fill(store):
    return [append(store, seq, seq) for seq in range(4)]


def records(store):
    return [each.seq for each in store.records(REF)]


def compact(store):
    store.compact(REF, CompactionPolicy(full=True))


def delete(store):
    store.delete(REF)


def repair(store):
    store.verify(REF, repair=True)


def die_before_removing(driver):
    dying = LateObjectStore(driver)
    dying.dies = True
    with pytest.raises(Crash):
        compact(ObjectTranscriptStore(Container(dying)))


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize(
    ("call", "is_left_over"),
    [(compact, False), (delete, False), (compact, True), (repair, True)],
    ids=["compact", "delete", "finish a compaction", "repair"],
)
def test_a_late_delete_removes_nothing_of_the_next_life(driver, store, late, call, is_left_over, dies):
    fill(store)
    if is_left_over:
        die_before_removing(driver)
    late.dies = dies
    with contextlib.suppress(Crash):
        call(ObjectTranscriptStore(Container(late)))
    store.delete(REF)
    fill(store)
    late.late()
    assert records(store) == [0, 1, 2, 3]
    compact(store)
    assert records(store) == [0, 1, 2, 3]


def test_a_late_delete_of_one_that_died_removes_nothing_that_was_written_since():
    now = ServerClock()
    setup = make(memory=MemoryObjectStore("m", now=now))
    late = LateObjectStore(setup.memory)
    fill(setup.store)
    now.go_on(minutes=1)
    setup.put(f"{EVENTS}deleting-1", b"died")
    now.go_on(hours=2)
    ObjectTranscriptStore(Container(late)).verify(REF, repair=True)
    assert setup.keys() == [f"{EVENTS}deleted-1", f"{EVENTS}deleting-1"]
    fill(setup.store)
    late.late()
    assert records(setup.store) == [0, 1, 2, 3]


def test_a_source_that_was_written_again_since_it_was_read_is_not_removed():
    setup = make(memory=MemoryObjectStore("m", now=ServerClock()))  # by size and time it is the same
    keys = fill(setup.store)
    late = LateObjectStore(setup.memory)
    late.dies = True
    with pytest.raises(Crash):
        compact(ObjectTranscriptStore(Container(late)))
    setup.memory.delete_many(keys[:1])
    append(setup.store, 0, 0)
    late.late()
    assert set(keys) & set(setup.keys()) == {keys[0]}
    compact(setup.store)
    assert set(keys) & set(setup.keys()) == set()
    assert records(setup.store) == [0, 1, 2, 3]
