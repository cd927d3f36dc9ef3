"""What a finalizer reaches takes no lock and waits for nothing; whoever closes a reader finds that all is given back."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref

import pytest
from unit.setups import REF, HookedObjectStore, StreamCountingObjectStore, append, make

from transcript_backends import StoreUnavailableError, copy_transcript
from transcript_backends.drivers.driver import Meaning
from transcript_backends.drivers.hedging import HedgedObjectStore
from transcript_backends.drivers.wrappers import FaultyObjectStore


class Gate:
    """Lets no get of certain keys through until it is opened."""

    def __init__(self, hooked, *keys):
        self.open, self.reached = threading.Event(), threading.Semaphore(0)
        for key in keys:
            hooked.before("get", self._pass, key=key)

    def _pass(self):
        self.reached.release()
        assert self.open.wait(30)


def gated(count=40, *keys):
    """A setup with segments of one record, and a gate before some of them."""
    hooks = []
    setup = make(wrap=lambda inner: hooks.append(HookedObjectStore(inner)) or hooks[0])
    for seq in range(count):
        append(setup.store, seq, seq)
    return setup, Gate(hooks[0], *(keys or [f"/{seq:019d}-" for seq in (1, 2, 3)]))


def fill_with_payloads(setup):
    with setup.store.writer(REF, offload_bytes=1000) as writer:
        for number in range(20):
            writer.append({"n": number, "large": str(number) * 5_000})
    return [each.rpartition("/")[2] for each in setup.keys(f"{REF.prefix}payloads/")]


@pytest.fixture
def locks(monkeypatch):
    """Every lock that readers make from now on."""
    made = []

    def recorded():
        made.append(threading.Lock())
        return made[-1]

    monkeypatch.setattr("transcript_backends.workers.Lock", recorded)
    return made


def end_with_locks_held(locks, end):
    """Call something while this thread holds every lock, as it may be when the garbage collector runs."""
    held = [each for each in locks if each.acquire(blocking=False)]
    thread = threading.Thread(target=end, daemon=True)
    thread.start()
    thread.join(10)
    for each in held:
        each.release()
    assert not thread.is_alive()
    assert held


def records_of(setup):
    return setup.store.records(REF)


def follow(setup):
    return setup.store.follow(REF)


@pytest.mark.parametrize("read", [records_of, follow])
def test_a_reader_is_dropped_while_its_locks_are_held_and_requests_are_in_flight(locks, read):
    setup, gate = gated()
    readers = [read(setup)]
    assert next(readers[0]).seq == 0
    assert gate.reached.acquire(timeout=10)
    end_with_locks_held([*locks, setup.memory._lock, setup.store._container.indexes._lock], readers.clear)
    gate.open.set()


def test_a_reader_that_resolves_is_dropped_while_its_locks_are_held_and_requests_are_in_flight(locks):
    hooks = []
    setup = make(wrap=lambda inner: hooks.append(HookedObjectStore(inner)) or hooks[0])
    for key in fill_with_payloads(setup):
        if key not in next(setup.store.records(REF, resolve=False)).line.decode():
            gate = Gate(hooks[0], key)
            break
    readers = [setup.store.records(REF)]
    assert next(readers[0]).json()["n"] == 0
    assert gate.reached.acquire(timeout=10)
    end_with_locks_held([*locks, setup.memory._lock], readers.clear)
    gate.open.set()


def test_what_comes_after_a_reader_was_dropped_is_closed_and_its_threads_end():
    streams = []
    setup = make(wrap=lambda inner: streams.append(StreamCountingObjectStore(HookedObjectStore(inner))) or streams[0])
    for seq in range(40):
        append(setup.store, seq, seq)
    large = b'{"x":"%s"}\n' % (b"x" * 2_000_000)  # is received only as it is read
    setup.store.append_segment(REF, 1, 1, "large", large)
    gate = Gate(streams[0].inner, "-large")
    before = set(threading.enumerate())
    records = setup.store.records(REF)
    assert next(records).seq == 0
    assert gate.reached.acquire(timeout=10)
    threads = set(threading.enumerate()) - before
    assert threads
    del records
    assert any(each.is_alive() for each in threads)
    gate.open.set()
    for each in threads:
        each.join(10)
    assert not any(each.is_alive() for each in threads)
    assert streams[0].open == set()


def test_a_garbage_collection_in_a_thread_that_fetches_ends_its_own_reader():
    hooks = []
    setup = make(wrap=lambda inner: hooks.append(HookedObjectStore(inner)) or hooks[0])
    for seq in range(40):
        append(setup.store, seq, seq)
    collected, may_go, dropped = [], threading.Event(), threading.Event()

    def collect():
        assert may_go.wait(10)
        gc.collect()
        collected.append(threading.current_thread())
        dropped.set()

    hooks[0].before("get", collect, key=f"/{2:019d}-")
    gc.disable()
    try:
        holder = [setup.store.records(REF)]
        holder.append(holder)
        assert next(holder[0]).seq == 0
        is_gone = weakref.ref(holder[0])
        del holder
        may_go.set()
        assert dropped.wait(10)
    finally:
        gc.enable()
    assert is_gone() is None
    assert collected != [threading.main_thread()]
    collected[0].join(10)
    assert not collected[0].is_alive()


def test_whoever_closes_a_reader_waits_for_its_requests():
    setup, gate = gated()
    for read in (records_of, follow):
        before = set(threading.enumerate())
        reader = read(setup)
        assert next(reader).seq == 0
        closing = threading.Thread(target=lambda reader=reader: reader.__exit__() if read is follow else reader.close())
        closing.start()
        if read is records_of:
            closing.join(0.1)
            assert closing.is_alive()
        gate.open.set()
        closing.join(10)
        assert set(threading.enumerate()) <= before


def test_a_reader_that_fails_or_is_over_has_nothing_in_flight():
    faults = []
    setup = make(wrap=lambda inner: faults.append(FaultyObjectStore(inner)) or faults[0])
    for seq in range(100):
        append(setup.store, seq, seq)
    before = set(threading.enumerate())
    for _ in range(20):
        assert len(list(setup.store.records(REF, limit=5))) == 5
        assert set(threading.enumerate()) <= before
        faults[0].fail("get", Meaning.DENIED)
        with pytest.raises(PermissionError):
            list(setup.store.records(REF))
        assert set(threading.enumerate()) <= before


def test_a_copy_that_fails_writes_nothing_more():
    source, destination = make(), []
    for seq in range(200):
        append(source.store, seq, seq)
    target = make(wrap=lambda inner: destination.append(FaultyObjectStore(inner)) or destination[0])
    before = set(threading.enumerate())
    for _ in range(10):
        destination[0].fail("put")
        destination[0].fail("put", Meaning.DENIED)
        with pytest.raises((PermissionError, StoreUnavailableError)):
            copy_transcript(source.store, target.store, REF)
        there = target.keys()
        assert set(threading.enumerate()) <= before
        assert target.keys() == there


def test_a_loop_runs_over_the_generator_itself_and_what_is_left_of_it_can_be_closed():
    setup, _ = gated(5, "none")
    records = setup.store.records(REF)
    assert next(records).seq == 0
    assert [record.seq for record in records] == [1, 2, 3, 4]
    with pytest.raises(StopIteration):
        next(records)
    records.close()
    with contextlib.closing(setup.store.records(REF)) as records, pytest.raises(ZeroDivisionError):
        records.throw(ZeroDivisionError)
    records = setup.store.records(REF)
    assert records.send(None).seq == 0
    records.close()
    assert list(records) == []


def test_a_hedged_store_that_is_dropped_ends_its_threads():
    setup, _ = gated(3, "none")
    before = set(threading.enumerate())
    hedged = HedgedObjectStore(setup.memory)
    key = setup.keys()[0]
    assert hedged.get(key).stream.read(1)
    threads = set(threading.enumerate()) - before
    assert threads
    del hedged
    for each in threads:
        each.join(10)
        assert not each.is_alive()
