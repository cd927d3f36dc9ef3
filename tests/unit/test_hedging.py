"""A hedged driver asks again for what takes long, takes what comes first, and leaves nothing behind."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from unit.setups import REF, append, make

from transcript_backends import open_store
from transcript_backends.clock import SystemClock
from transcript_backends.drivers import hedging
from transcript_backends.drivers.driver import Meaning
from transcript_backends.drivers.hedging import HedgedObjectStore
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.drivers.wrappers import InjectedError, RecordingObjectStore, WrapperObjectStore


class HeldObjectStore(WrapperObjectStore):
    """Holds some gets back until they are released, and fails others; by their number, from 1."""

    def __init__(self, inner):
        super().__init__(inner)
        self.gets = 0
        self.held: dict[int, threading.Event] = {}
        self.failing: set[int] = set()
        self.closed = threading.Semaphore(0)
        self._lock = threading.Lock()

    def get(self, key, *, start=0, end=None):
        with self._lock:
            self.gets += 1
            number = self.gets
        if number in self.held:
            assert self.held[number].wait(10)
        if number in self.failing:
            raise InjectedError(Meaning.NOT_FOUND)
        body = super().get(key, start=start, end=end)
        return body._replace(stream=SimpleNamespace(read=body.stream.read, close=self.closed.release))

    def hold_next(self):
        self.held[self.gets + 1] = event = threading.Event()
        return event


@pytest.fixture
def held():
    memory = MemoryObjectStore("m")
    memory.put("k", b"content", mode="create", metadata={})
    return HeldObjectStore(memory)


@pytest.fixture
def hedged(held):
    """Has answered so many gets that it knows how long one takes."""
    hedged = HedgedObjectStore(held)
    for _ in range(40):
        hedged.get("k").stream.close()
        assert held.closed.acquire(timeout=10)
    assert held.gets == 40
    yield hedged
    for event in held.held.values():
        event.set()
    hedged.close()


def test_a_get_that_takes_long_is_asked_again_and_the_late_answer_is_closed(hedged, held):
    release = held.hold_next()
    assert hedged.get("k", start=3).stream.read(10) == b"tent"
    assert held.gets == 42
    release.set()
    assert held.closed.acquire(timeout=10)
    assert not held.closed.acquire(blocking=False)


def test_the_first_answer_counts_where_the_second_is_the_slow_one(hedged, held):
    first, second = held.hold_next(), threading.Event()
    held.held[42] = second
    threading.Timer(0.05, first.set).start()
    assert hedged.get("k").stream.read(10) == b"content"
    second.set()
    assert held.closed.acquire(timeout=10)


@pytest.mark.parametrize("failing", [{41}, {42}])
def test_an_answer_counts_more_than_a_failure_that_came_first(hedged, held, failing):
    held.failing = failing
    held.held = {41: threading.Event(), 42: threading.Event()}
    for number, event in held.held.items():
        threading.Timer(0.05 if number in failing else 0.1, event.set).start()
    assert hedged.get("k").stream.read(10) == b"content"


def test_where_both_fail_it_has_failed(hedged, held):
    threading.Timer(0.05, held.hold_next().set).start()
    held.failing = {41, 42}
    with pytest.raises(InjectedError) as caught:
        hedged.get("k")
    assert caught.value.meaning is Meaning.NOT_FOUND


def test_a_quick_failure_is_not_repeated(hedged, held):
    held.failing = {41}
    with pytest.raises(InjectedError):
        hedged.get("k")
    assert held.gets == 41


def test_no_more_than_one_in_twenty_is_asked_again(hedged, held):
    slow = held.get
    held.get = lambda *args, **options: (SystemClock().sleep(4 * hedging._SHORTEST), slow(*args, **options))[1]
    for _ in range(30):
        hedged.get("k").stream.close()
    assert 70 < held.gets <= 70 + 0.05 * 70 + 1


def test_nothing_but_gets_is_ever_repeated():
    setup = make(wrap=lambda inner: RecordingObjectStore(HedgedObjectStore(inner)))
    append(setup.store, 0, 3)
    list(setup.store.records(REF))
    setup.store.delete(REF)
    outer = setup.store._container.driver
    assert setup.driver.requests == outer.requests
    outer.close()


@pytest.mark.parametrize("hedge", [True, False])
def test_it_is_an_option_of_any_store(tmp_path, hedge):
    with open_store(f"file://{tmp_path}?hedge={str(hedge).lower()}") as store, open_store(f"{tmp_path}", hedge=hedge) as other:
        append(store, 0, 3)
        assert [record.seq for record in other.records(REF)] == [0, 1, 2, 3]
        assert {isinstance(each._container.driver, HedgedObjectStore) for each in (store, other)} == {hedge}
