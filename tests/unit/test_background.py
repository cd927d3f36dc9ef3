from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest
from unit.setups import REF, append, lines, make

from transcript_backends import CompactionPolicy, CompactionResult, InvalidRefError, StoreClosedError, TranscriptRef
from transcript_backends.background import BackgroundCompactor

REFS = [TranscriptRef("acme", "coder", f"s{n}") for n in range(4)]
PATIENCE = 60


class Stub:
    """Stands for a store: counts who is at work on what, waits where it is told to, and fails where it is told to."""

    def __init__(self, name="stub://one"):
        self.name = name
        self.done, self.failing, self.left = [], {}, []
        self.entered, self.go_on = threading.Semaphore(0), threading.Event()
        self.go_on.set()

    def __str__(self):
        return self.name

    def compact(self, ref, policy=None):
        self.entered.release()
        assert self.go_on.wait(PATIENCE)
        self.done.append(ref)
        if ref in self.failing:
            raise self.failing[ref]
        return CompactionResult(5, 2, 100, ["a", "b"], list(self.left))


class Rounds:
    """Gives the transcripts of a round, and tells when one begins: then the one before is over."""

    def __init__(self, refs=REFS):
        self.refs = refs
        self._begun = threading.Semaphore(0)

    def __call__(self):
        self._begun.release()
        return list(self.refs)

    def wait(self, number):
        for _ in range(number):
            assert self._begun.acquire(timeout=PATIENCE)


def test_it_compacts_every_transcript_there_is_and_adds_up():
    setup = make()
    for ref in REFS:
        for seq in range(20):
            append(setup.store, seq, seq, ref=ref)
    rounds = Rounds()
    with setup.store.compactor(interval=0, refs=lambda: rounds() and setup.store.list_refs()) as compactor:
        rounds.wait(2)
        assert compactor.running
    assert not compactor.running
    for ref in REFS:
        assert len(setup.store.list_segments(ref)) == 1
        assert [each.seq for each in setup.store.records(ref)] == list(range(20))
    assert compactor.totals == (4, 80, 4 * len(lines(range(20))))
    assert (compactor.errors, compactor.last_error) == (0, None)
    assert compactor.rounds >= 1


def test_by_default_it_goes_over_the_listing_with_the_policy_given():
    setup = make()
    for seq in range(5):
        append(setup.store, seq, seq)
    removed = threading.Event()
    real = setup.driver.delete_many
    setup.driver.delete_many = lambda keys, **versions: (real(keys, **versions), removed.set())[0]
    with setup.store.compactor(CompactionPolicy(full=True)):
        assert removed.wait(PATIENCE)
    assert len(setup.store.list_segments(REF)) == 1


def test_the_wait_between_rounds_ends_at_once_when_it_is_stopped():
    store, rounds = Stub(), Rounds()
    compactor = BackgroundCompactor(store, rounds, interval=1e6)
    rounds.wait(1)
    for _ in REFS:
        assert store.entered.acquire(timeout=PATIENCE)
    assert compactor.stop()
    assert store.done == REFS
    assert compactor.stop()
    assert "not running" in repr(compactor)


def test_stopping_waits_for_the_transcript_at_work_and_begins_no_other():
    store = Stub()
    store.go_on.clear()
    compactor = BackgroundCompactor(store, Rounds())
    assert store.entered.acquire(timeout=PATIENCE)
    assert compactor.stop(timeout=0) is False
    assert compactor.running
    store.go_on.set()
    assert compactor.stop(PATIENCE)
    assert store.done == REFS[:1]


def test_an_error_is_kept_counted_logged_and_told_and_the_others_are_compacted(caplog):
    store, rounds, told = Stub(), Rounds(), []
    error = store.failing[REFS[1]] = ZeroDivisionError("oh")
    with BackgroundCompactor(store, rounds, interval=0, on_error=lambda *each: told.append(each)) as compactor:
        rounds.wait(3)
    assert store.done[:8] == REFS * 2
    assert compactor.last_error is error
    assert compactor.errors == len(told) >= 2
    assert told[0] == (REFS[1], error)
    assert compactor.totals.transcripts >= 6
    record = caplog.records[0]
    assert (record.name, record.levelno) == ("transcript_backends.background", logging.WARNING)
    assert f"compacting {REFS[1]} on stub://one failed: ZeroDivisionError: oh" in record.getMessage()


@pytest.mark.parametrize("at", ["once", "later"])
def test_a_listing_that_fails_is_told_alike_without_a_transcript(caplog, at):
    store, rounds, told, error = Stub(), Rounds(), [], RuntimeError("no listing")

    def refs():
        yield from REFS[: 2 * (at == "later")]
        rounds()
        raise error

    with BackgroundCompactor(store, refs, interval=0, on_error=lambda *each: told.append(each)) as compactor:
        rounds.wait(3)
    assert told[:2] == [(None, error)] * 2
    assert compactor.last_error is error
    assert compactor.rounds == 0
    assert "going through the transcripts on stub://one failed: RuntimeError: no listing" in caplog.text
    assert store.done[:2] == REFS[: 2 * (at == "later")]


@pytest.mark.parametrize("failure", [ValueError, SystemExit])
def test_an_on_error_that_fails_does_not_end_the_thread(caplog, failure):
    store, rounds = Stub(), Rounds()
    store.failing[REFS[0]] = ValueError("oh")

    def on_error(*_):
        raise failure

    with BackgroundCompactor(store, rounds, interval=0, on_error=on_error) as compactor:
        rounds.wait(3)
    assert "on_error itself failed" in caplog.text
    assert compactor.errors >= 2


def test_on_error_may_stop_it():
    store = Stub()
    store.failing[REFS[0]] = ValueError("oh")
    ready, stopped = threading.Event(), []

    def on_error(*_):
        assert ready.wait(PATIENCE)
        stopped.append(compactor.stop())

    compactor = BackgroundCompactor(store, Rounds(), on_error=on_error)
    ready.set()
    assert compactor.stop(PATIENCE)
    assert stopped == [False]
    assert store.done == REFS[:1]


def test_it_ends_with_a_message_where_the_store_is_closed(caplog):
    setup, ended = make(), threading.Event()
    append(setup.store, 0, 0)
    setup.store.close()
    compactor = setup.store.compactor(interval=0, on_error=lambda *_: ended.set())
    assert ended.wait(PATIENCE)
    compactor._thread.join(PATIENCE)
    assert not compactor.running
    assert isinstance(compactor.last_error, StoreClosedError)
    assert compactor.errors == 1
    assert "which ends now" in caplog.text


def test_what_can_not_be_merged_is_logged_once(caplog):
    store, rounds = Stub(), Rounds(REFS[:1])
    store.left = [("the/key", "it is broken")]
    with BackgroundCompactor(store, rounds, interval=0) as compactor:
        rounds.wait(4)
    assert caplog.messages == [f"{REFS[0]}: the/key could not be merged: it is broken"]
    assert compactor.errors == 0


def test_two_never_work_on_one_transcript_at_once():
    store, same = Stub(), Stub()
    store.go_on.clear()
    first = BackgroundCompactor(store, Rounds(REFS[:1]), interval=1e6)
    assert store.entered.acquire(timeout=PATIENCE)
    rounds = Rounds(REFS[:2])
    with BackgroundCompactor(same, rounds, interval=0):
        rounds.wait(3)
    assert set(same.done) == {REFS[1]}
    other, rounds = Stub("stub://other"), Rounds(REFS[:1])
    with BackgroundCompactor(other, rounds, interval=0):
        rounds.wait(2)
    assert other.done
    store.go_on.set()
    assert first.stop(PATIENCE)
    rounds = Rounds(REFS[:1])
    with BackgroundCompactor(same, rounds, interval=0):
        rounds.wait(2)
    assert REFS[0] in same.done


def test_stores_of_one_location_on_different_servers_do_not_hold_each_other_up():
    one, other = Stub(), Stub()
    one.identity, other.identity = "stub:// here", "stub:// there"
    one.go_on.clear()
    first = BackgroundCompactor(one, Rounds(REFS[:1]), interval=1e6)
    assert one.entered.acquire(timeout=PATIENCE)
    rounds = Rounds(REFS[:1])
    with BackgroundCompactor(other, rounds, interval=0):
        rounds.wait(2)
    assert other.done
    one.go_on.set()
    assert first.stop(PATIENCE)


@pytest.mark.parametrize("interval", [-1, float("nan"), float("inf"), 1e300])
def test_an_interval_that_nobody_can_wait_for_is_refused(interval):
    with pytest.raises(ValueError, match="the interval must be a number of seconds"):
        make().store.compactor(interval=interval)


def test_a_store_with_placeholders_to_fill_is_refused_at_once():
    with pytest.raises(InvalidRefError, match="placeholders to fill"):
        make("{tenant}/").store.compactor()


_FORKING = """if True:
    import os, threading
    from transcript_backends import TranscriptRef
    from transcript_backends.background import BackgroundCompactor, _at_work
    from transcript_backends.store import CompactionResult

    ref, entered, go_on = TranscriptRef("t", "a", "s"), threading.Event(), threading.Event()
    class Store:
        def compact(self, ref, policy):
            if os.getpid() == parent:
                entered.set()
                go_on.wait(60)
            else:
                child_entered.set()
            return CompactionResult(2, 1, 1, ["k"], [])
    parent = os.getpid()
    compactor = BackgroundCompactor(Store(), lambda: [ref], interval=1e6)
    assert entered.wait(60)
    with _at_work._lock:
        child = os.fork()
    if not child:
        child_entered = threading.Event()
        assert not compactor.running and threading.active_count() == 1
        assert compactor.stop() and "not running" in repr(compactor)
        with BackgroundCompactor(Store(), lambda: [ref], interval=1e6) as own:  # what the parent is at work on is free here
            assert own.running and child_entered.wait(60)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert compactor.running
    go_on.set()
    assert compactor.stop(60)
    print("fine")
"""


def test_a_forked_child_has_no_thread_and_can_start_its_own():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FORKING], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")


_ENDING = """if True:
    import logging, threading
    from transcript_backends import CompactionPolicy, TranscriptRef, open_store
    logging.basicConfig()
    store, first = open_store("memory://ending"), threading.Event()
    refs = [TranscriptRef("t", "a", str(n)) for n in range(200)]
    for ref in refs:
        for seq in range(3):
            store.append_segment(ref, seq, seq, "w", b"{}")
    def endless():
        for ref in refs:
            yield ref
            first.set()
    store.compactor(CompactionPolicy(full=True), interval=0, refs=endless)
    first.wait(60)
"""


def test_a_process_that_ends_meanwhile_ends_without_a_word():
    done = subprocess.run([sys.executable, "-c", _ENDING], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
