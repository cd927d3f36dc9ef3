"""The buffered writer: nothing lost, nothing twice, in order, whatever the store does meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from unittest import mock

import pytest
from unit.setups import REF, HookedObjectStore, append, make

from transcript_backends import (
    AccessDeniedError,
    CompactionPolicy,
    InvalidSegmentError,
    ObjectTranscriptStore,
    SegmentConflictError,
    StoreClosedError,
    StoreUnavailableError,
    TranscriptStoreError,
    open_store,
)
from transcript_backends.clock import SystemClock
from transcript_backends.container import Container, RetryPolicy
from transcript_backends.drivers.driver import Meaning
from transcript_backends.drivers.local import LocalObjectStore
from transcript_backends.drivers.wrappers import FaultyObjectStore, InjectedError, RecordingObjectStore, WrapperObjectStore
from transcript_backends.events import AgentMessage, GitHubRepositoryResource, Secret, SessionUpdated
from transcript_backends.forks import tell_after_fork

AT_HAND = {"max_age": 1e6, "max_records": 10**6}  # goes out by flush alone


class SwitchedObjectStore(WrapperObjectStore):
    """Answers puts with an error as long as there is one."""

    def __init__(self, inner):
        super().__init__(inner)
        self.error: Exception | None = None
        self.stores_all_the_same = False
        self.puts: list[tuple[str, bytes]] = []

    def put(self, key, body, *, mode, metadata):
        self.puts.append((key, body))
        if self.error is None:
            return super().put(key, body, mode=mode, metadata=metadata)
        if self.stores_all_the_same and len(self.puts) == 1:
            super().put(key, body, mode=mode, metadata=metadata)
        raise self.error

    def head(self, key):
        if self.error is not None:
            raise self.error
        return super().head(key)

    def classify(self, error):
        return FaultyObjectStore(self.inner).classify(error)


def switched():
    """A setup, a store that gives up at once, and the switch of its driver."""
    setup = make()
    switch = SwitchedObjectStore(RecordingObjectStore(setup.memory))
    return setup, ObjectTranscriptStore(Container(switch, retry=RetryPolicy(max_attempts=1))), switch


OUTAGE = InjectedError(Meaning.TRY_AGAIN)
DENIAL = InjectedError(Meaning.DENIED)


def wait_until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def seqs(store):
    return [record.seq for record in store.records(REF)]


# --- batches ----------------------------------------------------------------------------------------------------------


def test_opening_is_one_listing_and_a_batch_one_put():
    setup = make()
    for seq in range(20):
        append(setup.store, seq, seq)
    setup.store.compact(REF, CompactionPolicy(full=True))
    setup.driver.requests.clear()
    with setup.store.writer(REF, **AT_HAND) as writer:
        assert setup.driver.counts == {"list_page": 1}
        assert [writer.append({"n": n}) for n in range(3)] == [20, 21, 22]
        writer.flush()
        assert setup.driver.counts == {"list_page": 1, "put": 1}
        writer.append({"n": 3})
    assert setup.driver.counts == {"list_page": 1, "put": 2}
    assert [(each.seq_start, each.seq_end) for each in setup.store.list_segments(REF)][1:] == [(20, 22), (23, 23)]


@pytest.mark.parametrize(
    ("limits", "segments"),
    [
        ({"max_records": 4}, [(0, 3), (4, 7), (8, 9)]),
        ({"max_bytes": 30}, [(0, 2), (3, 5), (6, 8), (9, 9)]),
        ({"max_bytes": 1}, [(seq, seq) for seq in range(10)]),
        ({}, [(0, 9)]),
    ],
)
def test_batches_are_cut_by_records_and_bytes(limits, segments):
    setup = make()
    with setup.store.writer(REF, **{**AT_HAND, **limits}) as writer:
        for n in range(10):
            writer.append({"n": n})
    found = [(each.seq_start, each.seq_end) for each in setup.store.list_segments(REF)]
    assert found == segments
    assert [record.json() for record in setup.store.records(REF)] == [{"n": n} for n in range(10)]


def test_a_batch_goes_out_when_it_is_old_enough():
    setup = make()
    writer = setup.store.writer(REF, max_age=0.05)
    writer.append({})
    assert writer.state.pending_records == 1
    wait_until(lambda: seqs(setup.store) == [0])
    wait_until(lambda: writer.state == (0, 0, None))
    writer.close()


def test_many_threads_append_each_under_its_own_seq():
    setup = make()
    found: list[int] = []
    with setup.store.writer(REF, max_records=7) as writer:
        threads = [threading.Thread(target=lambda: found.extend(writer.append({}) for _ in range(200))) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == seqs(setup.store) == list(range(1000))


# --- entries ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Message:
    role: str
    text: str


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ({"text": "日本\n\u2028"}, b'{"text":"\\u65e5\\u672c\\n\\u2028"}'),
        (b'{ "kept" : 1e5 }', b'{ "kept" : 1e5 }'),
        (b'{"a":1}\r\n', b'{"a":1}'),
        (Message("user", "hi"), b'{"role":"user","text":"hi"}'),
        ({"lone": "\ud800"}, b'{"lone":"\\ud800"}'),
    ],
)
def test_an_entry_becomes_one_line(entry, line):
    setup = make()
    with setup.store.writer(REF) as writer:
        writer.append(entry)
    assert [record.line for record in setup.store.records(REF)] == [line]


@pytest.mark.parametrize(
    "entry",
    [b"", b"not json", b"[]", b"{}\n{}", {"a": float("nan")}, {"a": object()}, {1: {(): 2}}, 7, object(), "text", b"\xff"],
)
def test_what_is_no_entry_is_refused_and_nothing_is_taken(entry):
    setup = make()
    with setup.store.writer(REF) as writer:
        with pytest.raises(InvalidSegmentError):
            writer.append(entry)
        assert writer.append({}) == 0


@pytest.mark.parametrize("error", [RuntimeError("not ready"), KeyError("role"), KeyboardInterrupt()], ids=repr)
def test_what_an_entry_raises_while_it_is_written_is_raised_and_nothing_is_taken(tmp_path, error):
    class Entry:
        def to_line(self):
            raise error

    setup = make()
    with setup.store.writer(REF, spool_dir=str(tmp_path)) as writer:
        with pytest.raises(type(error)) as caught:
            writer.append(Entry())
        assert caught.value is error
        assert writer.state == (0, 0, None)
        assert writer.append({"n": 0}) == 0
    assert [record.json() for record in setup.store.records(REF)] == [{"n": 0}]


TOKEN = "ghp_0123456789"
REPOSITORY = GitHubRepositoryResource(url="https://example.org/a", authorization_token=Secret(TOKEN))


@pytest.mark.parametrize(
    "entry",
    [
        AgentMessage(unknown={"content": [Secret(TOKEN)]}),
        SessionUpdated(unknown={"authorization_token": Secret(TOKEN)}),
        SessionUpdated(unknown={"resources": [REPOSITORY]}),
        {"resource": REPOSITORY},
        {"token": Secret(TOKEN)},
        Message("user", Secret(TOKEN)),
        Secret(TOKEN),
    ],
)
def test_a_secret_is_never_written_down(tmp_path, entry):
    setup = make()
    with setup.store.writer(REF, spool_dir=str(tmp_path), **AT_HAND) as writer:
        with pytest.raises(InvalidSegmentError, match="can't be written as JSON") as caught:
            writer.append(entry)
        assert TOKEN not in str(caught.value) + str(caught.value.__cause__)
        writer.append(REPOSITORY)  # which leaves it out by itself
        journals = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    stored = b"".join(map(setup.body, setup.keys()))
    for written in (journals, stored):
        assert b"https://example.org/a" in written
        assert TOKEN.encode() not in written


# --- outages ----------------------------------------------------------------------------------------------------------


def test_batches_wait_in_order_while_the_store_is_away_and_go_out_as_they_were(monkeypatch):
    monkeypatch.setattr("transcript_backends.writing._FIRST_PAUSE", 0.01)
    setup, store, switch = switched()
    writer = store.writer(REF, max_records=5)
    switch.error = OUTAGE
    for n in range(23):
        writer.append({"n": n})
    wait_until(lambda: len(switch.puts) > 2)
    assert set(switch.puts) == {switch.puts[0]}
    assert isinstance(writer.state.last_error, StoreUnavailableError)
    assert writer.state[:2] == (23, sum(len(json.dumps({"n": n}, separators=(",", ":"))) + 1 for n in range(23)))
    with pytest.raises(StoreUnavailableError, match="could not create"):
        writer.flush()
    with pytest.raises(StoreUnavailableError, match="could not create"):
        writer.close()
    switch.error = None
    writer.close()
    assert writer.state == (0, 0, None)
    assert [record.json()["n"] for record in setup.store.records(REF)] == list(range(23))
    assert [(each.seq_start, each.seq_end) for each in setup.store.list_segments(REF)][:2] == [(0, 4), (5, 9)]


def test_a_writer_tells_of_an_outage_while_the_store_still_tries():
    setup = make()
    switch = SwitchedObjectStore(setup.memory)
    pausing, go_on = threading.Event(), threading.Event()

    class Clock(SystemClock):
        def sleep(self, seconds):
            pausing.set()
            assert go_on.wait(10)

    store = ObjectTranscriptStore(Container(switch, clock=Clock()))
    switch.error = OUTAGE
    writer = store.writer(REF, **AT_HAND)
    writer.append({})
    with pytest.raises(StoreUnavailableError, match="not stored after 0 seconds"):
        writer.flush(timeout=0)
    assert pausing.wait(10)
    assert "injected: temporarily unavailable; it is tried again" in str(writer.state.last_error)
    switch.error = None
    go_on.set()
    writer.close()
    assert writer.state == (0, 0, None)


def test_a_lost_answer_is_no_second_record(monkeypatch):
    monkeypatch.setattr("transcript_backends.writing._FIRST_PAUSE", 0.01)
    setup, store, switch = switched()
    writer = store.writer(REF, **AT_HAND)
    writer.append({})
    switch.error, switch.stores_all_the_same = OUTAGE, True
    with pytest.raises(StoreUnavailableError):
        writer.flush()
    assert seqs(setup.store) == [0]
    switch.error = None
    writer.close()
    assert seqs(setup.store) == [0]
    assert len(setup.store.list_segments(REF)) == 1


def test_what_waits_is_bounded_and_append_blocks_until_the_store_is_back(monkeypatch):
    monkeypatch.setattr("transcript_backends.writing._FIRST_PAUSE", 0.01)
    setup, store, switch = switched()
    switch.error = OUTAGE
    writer = store.writer(REF, max_records=2, max_pending_bytes=60)
    thread = threading.Thread(target=lambda: [writer.append({"n": n}) for n in range(50)])
    thread.start()
    wait_until(lambda: writer.state.pending_bytes > 40)
    time.sleep(0.05)
    assert thread.is_alive()
    assert writer.state.pending_bytes <= 60
    switch.error = None
    thread.join(10)
    writer.close()
    assert seqs(setup.store) == list(range(50))


def test_append_raises_where_it_is_told_not_to_block():
    setup, store, switch = switched()
    switch.error = OUTAGE
    writer = store.writer(REF, max_records=1, max_pending_bytes=30, when_full="raise")
    for taken in range(3):
        assert writer.append({"n": 1}) == taken
    with pytest.raises(StoreUnavailableError, match="bytes waiting"):
        writer.append({"n": 1})
    switch.error = None
    writer.close(timeout=20)
    assert seqs(setup.store) == [0, 1, 2]


def test_what_stops_a_writer_reaches_the_next_call_and_flush_tries_again():
    setup, store, switch = switched()
    switch.error = DENIAL
    writer = store.writer(REF, max_records=2)
    for n in range(3):
        writer.append({"n": n})
    wait_until(lambda: writer.state.last_error is not None)
    with pytest.raises(AccessDeniedError, match=r"3 records are kept; flush\(\) tries again"):
        writer.append({"n": 3})
    with pytest.raises(AccessDeniedError):
        writer.flush()
    switch.error = None
    writer.flush()
    assert writer.append({"n": 3}) == 3
    writer.close()
    assert [record.json()["n"] for record in setup.store.records(REF)] == [0, 1, 2, 3]


def test_a_bug_in_the_thread_is_told_too():
    setup, store, switch = switched()
    switch.error = ZeroDivisionError("a bug")
    writer = store.writer(REF, max_records=1)
    writer.append({})
    wait_until(lambda: writer.state.last_error is not None)
    with pytest.raises(TranscriptStoreError, match="ZeroDivisionError: a bug"):
        writer.append({})
    switch.error = None
    writer.close()
    assert seqs(setup.store) == [0]


def test_flush_waits_no_longer_than_it_is_told():
    hooks = []
    setup = make(wrap=lambda inner: hooks.append(HookedObjectStore(inner)) or hooks[0])
    release = threading.Event()
    hooks[0].before("put", lambda: release.wait(10))
    writer = setup.store.writer(REF, **AT_HAND)
    writer.append({})
    with pytest.raises(StoreUnavailableError, match=r"not stored after 0\.05 seconds"):
        writer.flush(timeout=0.05)
    release.set()
    writer.close()
    assert seqs(setup.store) == [0]


# --- two writers ------------------------------------------------------------------------------------------------------


def test_two_writers_without_ids_share_a_transcript():
    setup = make()
    with setup.store.writer(REF) as one, setup.store.writer(REF) as other:
        assert one.writer_id != other.writer_id
        for n in range(10):
            (one, other)[n % 2].append({"n": n})
    assert sorted(record.json()["n"] for record in setup.store.records(REF)) == list(range(10))


@pytest.mark.parametrize("first", [1, 5])
def test_a_second_live_writer_with_the_same_id_is_a_conflict(first):
    setup = make()
    one = setup.store.writer(REF, writer_id="same", **AT_HAND)
    other = setup.store.writer(REF, writer_id="same", **AT_HAND)
    for n in range(first):
        one.append({"one": n})
    one.flush()
    other.append({"other": 0})
    with pytest.raises(SegmentConflictError):
        other.close()
    one.append({"one": first})
    one.close()
    assert [record.json() for record in setup.store.records(REF)] == [{"one": n} for n in range(first + 1)]
    other._state = "closed"


def test_a_writer_id_goes_on_after_its_first_life():
    setup = make()
    for life in range(3):
        with setup.store.writer(REF, writer_id="mine") as writer:
            writer.append({"life": life})
            writer.append({"life": life})
    assert [record.json()["life"] for record in setup.store.records(REF)] == [0, 0, 1, 1, 2, 2]


# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_closed_writer_says_so():
    setup = make()
    writer = setup.store.writer(REF)
    writer.close()
    writer.close()
    for call in (lambda: writer.append({}), writer.flush):
        with pytest.raises(StoreClosedError, match="is closed"):
            call()


def test_a_with_block_that_fails_stores_what_was_appended():
    setup = make()

    def fail():
        with setup.store.writer(REF) as writer:
            writer.append({})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert seqs(setup.store) == [0]


@pytest.mark.parametrize(
    "end", ["", "sys.exit(3)", "raise ZeroDivisionError", "os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)"]
)
def test_the_end_of_the_interpreter_stores_what_was_appended(tmp_path, end):
    program = f"""
import os, signal, sys, time
from transcript_backends import TranscriptRef, open_store
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
writer = open_store({str(tmp_path)!r}).writer(TranscriptRef("acme", "coder", "s1"), max_age=1e6)
for n in range(100):
    writer.append({{"n": n}})
{end}
"""
    subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, timeout=60)
    assert seqs(open_store(str(tmp_path))) == list(range(100))


def test_a_forked_child_does_not_write_for_its_parent():
    setup = make()
    with setup.store.writer(REF, **AT_HAND) as writer:
        writer.append({})
        if (child := os.fork()) == 0:
            try:
                writer.append({})
            except StoreClosedError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert seqs(setup.store) == [0]


def test_a_fork_after_a_spooled_writer_was_closed_leaves_other_files_and_stores_alone(tmp_path):
    setup = make()
    closed = setup.store.writer(REF, spool_dir=str(tmp_path / "spool"))
    closed.close()
    other = os.open(tmp_path / "other", os.O_CREAT | os.O_WRONLY)  # perhaps under the journal's number
    told = []

    class Failing:
        def after_fork(self):
            raise ZeroDivisionError

    class Told:
        def after_fork(self):
            told.append(self)

    aware = [Told(), Failing(), Told(), Failing(), Told()]
    for each in aware:
        tell_after_fork(each)
    if (child := os.fork()) == 0:
        try:
            os.write(other, b"x")
        except OSError:
            os._exit(1)
        os._exit(10 + len(told))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 13
    os.close(other)
    assert closed.state.pending_records == 0


@pytest.mark.parametrize(
    "wrong", [{"max_records": 0}, {"max_bytes": 0}, {"max_age": -1}, {"max_pending_bytes": 0}, {"when_full": "drop"}]
)
def test_limits_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        make().store.writer(REF, **wrong)


# --- the spool --------------------------------------------------------------------------------------------------------


def local(directory):
    """A store in a directory, that gives up at once, and the switch of its driver."""
    switch = SwitchedObjectStore(LocalObjectStore(str(directory)))
    return ObjectTranscriptStore(Container(switch, retry=RetryPolicy(max_attempts=1))), switch


def dies(tmp_path, work):
    """Run ``work(store, switch, spool_dir)`` in a process that ends without a word."""
    if (child := os.fork()) == 0:
        try:
            work(*local(tmp_path / "store"), str(tmp_path / "spool"))
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_a_dead_writer_had_not_sent_is_sent_once_by_the_next(tmp_path):
    def work(store, switch, spool_dir):
        writer = store.writer(REF, spool_dir=spool_dir, max_records=4)
        for n in range(6):
            writer.append({"n": n})
        wait_until(lambda: seqs(store) == [0, 1, 2, 3])
        switch.error = OUTAGE
        for n in range(6, 11):
            writer.append({"n": n})
        wait_until(lambda: writer.state.last_error is not None)

    dies(tmp_path, work)
    store, _ = local(tmp_path / "store")
    assert seqs(store) == [0, 1, 2, 3]
    with store.writer(REF, spool_dir=str(tmp_path / "spool")) as writer:
        assert writer.append({"n": 11}) == 11
    assert [record.json()["n"] for record in store.records(REF)] == list(range(12))
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_batch_that_may_have_been_stored_is_sent_as_it_was(tmp_path):
    def work(store, switch, spool_dir):
        writer = store.writer(REF, spool_dir=spool_dir, **AT_HAND)
        for n in range(5):
            writer.append({"n": n})
        switch.error, switch.stores_all_the_same = OUTAGE, True
        with contextlib.suppress(StoreUnavailableError):
            writer.flush()
        for n in range(5, 8):
            writer.append({"n": n})

    dies(tmp_path, work)
    store, switch = local(tmp_path / "store")
    (sent,) = (each.key for each in store.list_segments(REF))
    store.writer(REF, spool_dir=str(tmp_path / "spool")).close()
    assert switch.puts[0][0] == sent
    assert seqs(store) == list(range(8))


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_journal_cut_short_gives_all_before_the_cut(tmp_path, cut):
    def work(store, switch, spool_dir):
        writer = store.writer(REF, spool_dir=spool_dir, **AT_HAND)
        for n in range(5):
            writer.append({"n": n})

    dies(tmp_path, work)
    (journal,) = (tmp_path / "spool").iterdir()
    stored = journal.read_bytes()
    journal.write_bytes(stored[:-cut])
    store, _ = local(tmp_path / "store")
    store.writer(REF, spool_dir=str(tmp_path / "spool")).close()
    assert seqs(store) == list(range(stored[: stored.rindex(b"\n", 0, -cut) + 1].count(b"\nR")))


def test_the_journal_of_a_living_writer_and_of_another_transcript_are_left_alone(tmp_path):
    setup = make()
    other_ref = dataclasses.replace(REF, session_id="s2")
    with (
        setup.store.writer(REF, spool_dir=str(tmp_path), **AT_HAND) as living,
        setup.store.writer(other_ref, spool_dir=str(tmp_path), **AT_HAND) as other,
    ):
        living.append({"n": 0})
        other.append({"n": 0})
        setup.store.writer(REF, spool_dir=str(tmp_path)).close()
        assert seqs(setup.store) == []
        assert len(list(tmp_path.iterdir())) == 2
    assert seqs(setup.store) == [0]


def test_a_journal_that_cannot_be_written_takes_nothing_and_spoils_nothing(tmp_path):
    def work(store, switch, spool_dir):
        writer = store.writer(REF, spool_dir=spool_dir, **AT_HAND)
        writer.append({"n": 0})
        write = os.write

        def no_space(file, data):
            write(file, bytes(data[:3]))
            raise OSError(28, "No space left on device")

        with mock.patch("transcript_backends.journal.os.write", no_space), pytest.raises(OSError, match="No space left"):
            writer.append({"n": 1})
        assert writer.append({"n": 1}) == 1

    dies(tmp_path, work)
    store, _ = local(tmp_path / "store")
    store.writer(REF, spool_dir=str(tmp_path / "spool")).close()
    assert [record.json()["n"] for record in store.records(REF)] == [0, 1]


def test_a_journal_does_not_grow_without_end(tmp_path):
    def work(store, switch, spool_dir):
        with mock.patch("transcript_backends.journal._ROTATE_BYTES", 1000):
            writer = store.writer(REF, spool_dir=spool_dir, **AT_HAND)
            for n in range(300):
                writer.append({"n": n})
                if n % 10 == 9:
                    writer.flush()
                    assert sum(each.stat().st_size for each in os.scandir(spool_dir)) < 3000
            writer.append({"n": 300})

    dies(tmp_path, work)
    store, _ = local(tmp_path / "store")
    store.writer(REF, spool_dir=str(tmp_path / "spool")).close()
    assert seqs(store) == list(range(301))


def test_a_second_living_writer_with_a_journal_and_the_same_id_is_refused(tmp_path):
    setup = make()
    with (
        setup.store.writer(REF, writer_id="same", spool_dir=str(tmp_path)),
        pytest.raises(SegmentConflictError, match="another live writer on this machine"),
    ):
        setup.store.writer(REF, writer_id="same", spool_dir=str(tmp_path))
    setup.store.writer(REF, writer_id="same", spool_dir=str(tmp_path)).close()


def test_records_left_at_the_end_of_the_interpreter_are_told_and_stay_in_the_journal(tmp_path):
    program = f"""
import os
from transcript_backends import TranscriptRef, open_store
store = open_store({str(tmp_path / "store")!r})
writer = store.writer(TranscriptRef("acme", "coder", "s1"), spool_dir={str(tmp_path / "spool")!r}, max_age=1e6)
writer.append({{}})
store.close()
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert "ends with 1 records that are not stored" in ended.stderr
    store, _ = local(tmp_path / "store")
    store.writer(REF, spool_dir=str(tmp_path / "spool")).close()
    assert seqs(store) == [0]
