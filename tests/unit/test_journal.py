"""A journal whose disk fails, is shared, damaged or in the way: nothing confirmed is lost, nothing is stored twice."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from unit.setups import REF, HookedObjectStore, append, make

from transcript_backends import (
    CompactionPolicy,
    InvalidSegmentError,
    JournalError,
    ObjectTranscriptStore,
    SegmentConflictError,
    writing,
)
from transcript_backends.clock import SystemClock
from transcript_backends.container import Container, RetryPolicy
from transcript_backends.drivers.driver import Meaning
from transcript_backends.drivers.local import LocalObjectStore
from transcript_backends.drivers.wrappers import InjectedError, WrapperObjectStore
from transcript_backends.journal import FORMAT, Header, encode, name_prefix
from transcript_backends.keys import MAX_SEQ
from transcript_backends.leftovers import leftovers
from transcript_backends.machine import System, SystemDisk
from transcript_backends.offloading import offload

AT_HAND = {"max_age": 1e6, "max_records": 10**6}  # goes out by flush alone
pytestmark = pytest.mark.timeout(60)  # a hang is what some of these are about
SECONDS = 10  # a call that takes longer hangs


@pytest.fixture(autouse=True)
def _no_writer_is_left() -> Iterator[None]:
    yield
    writing._writers.clear()  # what a test has left behind must not hold up the end of the interpreter


class Disk:
    """Makes calls on journals fail.

    Attributes:
        fails: is asked for each call, with its name and what it writes.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.fails: Callable[[str, bytes], bool] = lambda call, data: False
        self.error = errno.ENOSPC
        for call in ("write", "fsync", "ftruncate"):
            patch.setattr(os, call, self._failing(call, getattr(os, call)))

    def _failing(self, call: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def on_disk(file: int, *arguments: Any) -> Any:
            data = bytes(arguments[0]) if call == "write" else b""
            if ".journal" in os.readlink(f"/proc/self/fd/{file}") and self.fails(call, data):
                if data[1:]:
                    function(file, data[: len(data) // 2])
                raise OSError(self.error, os.strerror(self.error))
            return function(file, *arguments)

        return on_disk


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


class NamedObjectStore(WrapperObjectStore):
    """The store of a server, in a directory; may be away."""

    def __init__(self, directory: Path, location: str, details: str = "") -> None:
        super().__init__(LocalObjectStore(str(directory)))
        self._location, self._details = location, details
        self.is_away = False

    @property
    def location(self) -> str:
        return self._location

    @property
    def details(self) -> str:
        return self._details

    def put(self, key: str, body: bytes, *, mode: Any, metadata: Any) -> str:
        if self.is_away:
            raise InjectedError(Meaning.TRY_AGAIN)
        return super().put(key, body, mode=mode, metadata=metadata)

    def classify(self, error: Exception) -> Any:
        from transcript_backends.drivers.driver import Failure

        return Failure(error.meaning, "away") if isinstance(error, InjectedError) else super().classify(error)


def named(directory: Path, location: str = "s3://bucket", details: str = "") -> ObjectTranscriptStore:
    return ObjectTranscriptStore(Container(NamedObjectStore(directory, location, details), retry=RetryPolicy(max_attempts=1)))


def local(tmp_path: Path) -> ObjectTranscriptStore:
    return ObjectTranscriptStore(Container(LocalObjectStore(str(tmp_path / "store"))))


def numbers(store: ObjectTranscriptStore) -> list[int]:
    return [record.json()["n"] for record in store.records(REF)]


def journals(directory: Path) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.endswith(".journal"))


def dies(work: Callable[[], object]) -> None:
    """Do something in a process that is killed right after it."""
    if (child := os.fork()) == 0:
        try:
            work()
        except BaseException:
            logging.exception("the child failed")
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- a disk that fails ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [b"C", b"D"], ids=["the bounds of a batch", "what is stored"])
def test_a_writer_outlives_a_journal_that_cannot_be_written_in_its_thread(tmp_path: Path, disk: Disk, kind: bytes) -> None:
    store = local(tmp_path)
    writer = store.writer(REF, spool_dir=str(tmp_path / "spool"), **AT_HAND)
    writer.append({"n": 0})
    disk.fails = lambda call, data: data[:1] == kind
    writer.flush(timeout=SECONDS)
    assert numbers(store) == [0]
    disk.fails = lambda call, data: False
    assert writer.append({"n": 1}) == 1
    writer.close(timeout=SECONDS)
    assert writer.state == (0, 0, None)
    store.writer(REF, spool_dir=str(tmp_path / "spool")).close(timeout=SECONDS)
    assert numbers(store) == [0, 1]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
@pytest.mark.parametrize("broken", ["write", "fsync"])
def test_append_takes_a_record_or_raises(tmp_path: Path, disk: Disk, broken: str, error: int) -> None:
    def work() -> None:
        writer = local(tmp_path).writer(REF, spool_dir=str(tmp_path / "spool"), max_age=1e6, max_records=2)
        disk.error = error
        n = refused = 0
        while n < 20:
            disk.fails = lambda call, data: call == broken and n % 3 == 1 and refused < 2
            if n % 3 == 1 and refused < 2:
                with pytest.raises(JournalError, match=f"spool.*{os.strerror(error)}"):
                    writer.append({"n": n})
                refused += 1
            else:
                writer.append({"n": n})
                n, refused = n + 1, 0

    dies(work)
    store = local(tmp_path)
    store.writer(REF, spool_dir=str(tmp_path / "spool")).close()
    assert numbers(store) == list(range(20))


def test_what_was_appended_by_several_threads_and_not_flushed_is_raised_by_each(tmp_path: Path, disk: Disk) -> None:
    def work() -> None:
        writer = local(tmp_path).writer(REF, spool_dir=str(tmp_path / "spool"), **AT_HAND)
        count = [0]

        def fails(call: str, data: bytes) -> bool:
            count[0] += 1
            return count[0] % 5 == 0

        disk.fails = fails

        def run(thread: int) -> None:
            for n in range(20):
                while True:
                    with contextlib.suppress(JournalError):
                        writer.append({"n": n, "thread": thread})
                        break

        threads = [threading.Thread(target=run, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        assert writer.state.pending_records == 80

    dies(work)
    store = local(tmp_path)
    store.writer(REF, spool_dir=str(tmp_path / "spool")).close()
    found = [(each["thread"], each["n"]) for each in (record.json() for record in store.records(REF))]
    assert sorted(found) == [(thread, n) for thread in range(4) for n in range(20)]


def test_a_writer_that_is_interrupted_while_it_appends_can_be_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, flush = local(tmp_path), SystemDisk.flush
    with store.writer(REF, spool_dir=str(tmp_path / "spool"), **AT_HAND) as writer:
        writer.append({"n": 0})

        def interrupted(disk: SystemDisk, file: int) -> None:
            monkeypatch.setattr(SystemDisk, "flush", flush)
            raise KeyboardInterrupt

        monkeypatch.setattr(SystemDisk, "flush", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.append({"n": 1})
        writer.close(timeout=SECONDS)
    assert numbers(store) == [0, 1]


def test_a_journal_whose_flush_failed_is_replaced_before_it_is_trusted_again(tmp_path: Path, disk: Disk) -> None:
    spool = tmp_path / "spool"
    with local(tmp_path).writer(REF, spool_dir=str(spool), **AT_HAND) as writer:
        writer.append({"n": 0})
        (journal,) = spool.iterdir()
        before = journal.stat().st_ino
        left = [1]
        disk.fails = lambda call, data: call == "fsync" and bool(left and left.pop())
        writer.flush()  # cannot write the bounds of the batch down
        assert not left
        assert journal.stat().st_ino == before
        writer.append({"n": 1})
        assert journal.stat().st_ino != before


def test_close_ends_where_what_it_waits_for_is_taken_back(tmp_path: Path, disk: Disk) -> None:
    writer = local(tmp_path).writer(REF, spool_dir=str(tmp_path / "spool"), **AT_HAND)
    flushing, go_on = threading.Event(), threading.Event()

    def fails(call: str, data: bytes) -> bool:
        if flushing.is_set():
            return True
        if call == "fsync":
            flushing.set()
            assert go_on.wait(SECONDS)
        return call == "fsync"

    disk.fails = fails
    raised: list[OSError] = []

    def append_one() -> None:
        try:
            writer.append({"n": 0})
        except JournalError as error:
            raised.append(error)

    threads = [threading.Thread(target=each, daemon=True) for each in (append_one, writer.close)]
    threads[0].start()
    assert flushing.wait(SECONDS)
    threads[1].start()
    while not writer._changed._waiters:  # type: ignore[attr-defined]
        pass
    go_on.set()
    for each in threads:
        each.join(SECONDS)
        assert not each.is_alive()
    assert len(raised) == 1


# --- who shares a directory -------------------------------------------------------------------------------------------


def test_two_writers_that_start_at_the_same_moment_leave_each_other_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, spool = local(tmp_path), tmp_path / "spool"
    flock = fcntl.flock
    others: list[Any] = []

    def lock(file: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        others.append(store.writer(REF, spool_dir=str(spool)))
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", lock)
    one = store.writer(REF, spool_dir=str(spool), **AT_HAND)
    one.append({"n": 0})
    assert len(journals(spool)) == 2
    others[0].close()
    assert len(journals(spool)) == 1
    one.close()
    assert journals(spool) == []


@pytest.mark.parametrize("harm", ["removed", "renamed", "replaced"])
def test_a_journal_that_has_lost_its_name_is_written_anew(tmp_path: Path, harm: str) -> None:
    spool = tmp_path / "spool"

    def work() -> None:
        writer = local(tmp_path).writer(REF, spool_dir=str(spool), **AT_HAND)
        writer.append({"n": 0})
        (journal,) = (spool / name for name in journals(spool))
        if harm == "renamed":
            journal.rename(tmp_path / "elsewhere")
        else:
            journal.unlink()
        if harm == "replaced":
            journal.touch()
        writer.append({"n": 1})

    dies(work)
    store = local(tmp_path)
    store.writer(REF, spool_dir=str(spool)).close()
    assert numbers(store) == [0, 1]


def test_a_name_that_was_lost_and_given_to_another_file_is_left_to_it(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with local(tmp_path).writer(REF, spool_dir=str(spool), **AT_HAND) as writer:
        (journal,) = (spool / name for name in journals(spool))
        journal.unlink()
        journal.write_text("somebody else's")
        writer.append({"n": 0})
        assert len(journals(spool)) == 2
    assert journal.read_text() == "somebody else's"
    assert journals(spool) == [journal.name]


def test_a_journal_that_is_replaced_keeps_the_bounds_of_what_was_sent(tmp_path: Path, disk: Disk) -> None:
    spool = str(tmp_path / "spool")

    def work() -> None:
        store = named(tmp_path / "store")
        store._container.driver.is_away = True
        writer = store.writer(REF, spool_dir=spool, **AT_HAND)
        for n in range(3):
            writer.append({"n": n})
        with pytest.raises(ConnectionError):
            writer.flush()
        left = [1]
        disk.fails = lambda call, data: call == "fsync" and bool(left and left.pop())
        writer.append({"n": 3})  # into a journal that is replaced

    dies(work)
    store = named(tmp_path / "store")
    store.writer(REF, spool_dir=spool).close()
    assert [(each.seq_start, each.seq_end) for each in store.list_segments(REF)] == [(0, 2), (3, 3)]


def test_what_was_left_for_one_server_is_not_sent_to_another(tmp_path: Path) -> None:
    spool = str(tmp_path / "spool")
    servers = [(tmp_path / name, f"endpoint http://{name}.example") for name in ("one", "other")]

    def work() -> None:
        store = named(servers[0][0], details=servers[0][1])
        store._container.driver.is_away = True
        store.writer(REF, spool_dir=spool, **AT_HAND).append({"n": 0})

    dies(work)
    one, other = (named(directory, details=details) for directory, details in servers)
    other.writer(REF, spool_dir=spool).close()
    assert numbers(other) == []
    one.writer(REF, spool_dir=spool).close()
    assert numbers(one) == [0]
    assert os.listdir(spool) == []


def test_a_journal_that_never_idles_is_bounded_by_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transcript_backends.journal._ROTATE_BYTES", 1000)
    spool = tmp_path / "spool"
    setup = make()
    store, _ = setup.store, setup.driver
    writer = store.writer(REF, spool_dir=str(spool), **AT_HAND)
    put = setup.driver.put

    def put_and_append(*arguments: Any, **options: Any) -> str:
        version: str = put(*arguments, **options)
        writer.append({"n": len(store.list_segments(REF))})
        return version

    monkeypatch.setattr(setup.driver, "put", put_and_append)
    writer.append({"n": 0})
    for _ in range(300):
        writer.flush()
        assert sum(each.stat().st_size for each in os.scandir(spool)) < 3000
        assert writer.state.pending_records > 0
    monkeypatch.setattr(setup.driver, "put", put)
    writer.close()
    assert numbers(store) == list(range(301))


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [0, 1, 10, 50, 99, 100])
def test_what_is_whole_of_a_damaged_journal_is_sent_and_the_rest_kept(
    tmp_path: Path, line: int, caplog: pytest.LogCaptureFixture
) -> None:
    spool = tmp_path / "spool"

    def work() -> None:
        writer = local(tmp_path).writer(REF, spool_dir=str(spool), **AT_HAND)
        for n in range(100):
            writer.append({"n": n})

    dies(work)
    (journal,) = (spool / name for name in journals(spool))
    lines = journal.read_bytes().splitlines(keepends=True)
    records = [number for number, each in enumerate(lines) if each.startswith(b"R")]
    damaged = 0 if line == 0 else records[line - 1]
    lines[damaged] = lines[damaged][:12] + b"\x00" + lines[damaged][13:]
    journal.write_bytes(stored := b"".join(lines))
    store = local(tmp_path)
    store.writer(REF, spool_dir=str(spool)).close()
    assert numbers(store) == [n for n in range(100) if n != line - 1]
    assert journals(spool) == []
    (kept,) = spool.iterdir()
    assert kept.read_bytes()[: len(stored)] == stored
    assert str(kept) in caplog.text


@pytest.mark.parametrize(("letter", "other"), [(b"R", b"C"), (b"R", b"D"), (b"C", b"R"), (b"D", b"R"), (b"R", b"X")])
def test_a_letter_of_another_line_is_damage(tmp_path: Path, letter: bytes, other: bytes) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    store = local(tmp_path)
    header = Header(str(store), store.identity, REF, "dead-0123", None)
    lines = [("R", b'0 {"n":0}'), ("D", b"0"), ("R", b'1 {"n":1}'), ("C", b"1 1"), ("R", b'2 {"n":2}')]
    encoded = [encode(*line) for line in lines]
    at = max(number for number, line in enumerate(encoded) if line[:1] == letter)
    encoded[at] = other + encoded[at][1:]  # as where a line was cut short, and another began at its place as the power went
    (spool / header.name).write_bytes(header.line * 2 + b"".join(encoded))
    store.writer(REF, spool_dir=str(spool)).close()
    expected = {b"R": [1], b"C": [1, 2], b"D": [0, 1, 2]}[letter]
    assert numbers(store) == expected
    assert len(list(spool.iterdir())) == 1, "it is kept"


def test_a_journal_whose_sent_batch_is_damaged_lets_the_next_writer_open(tmp_path: Path) -> None:
    spool = tmp_path / "spool"

    def work() -> None:
        store = named(tmp_path / "store")
        writer = store.writer(REF, spool_dir=str(spool), **AT_HAND)
        for n in range(5):
            writer.append({"n": n})
        store._container.driver.is_away = True
        with contextlib.suppress(ConnectionError):
            writer.flush()

    dies(work)
    (journal,) = (spool / name for name in journals(spool))
    stored = journal.read_bytes()
    journal.write_bytes(stored.replace(b'{"n":2}', b'{"n":7}'))
    store = named(tmp_path / "store")
    store.writer(REF, spool_dir=str(spool)).close()
    assert numbers(store) == [0, 1, 3, 4]


def test_a_journal_without_a_whole_header_is_left_alone_and_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dies(lambda: local(tmp_path).writer(REF, spool_dir=str(tmp_path / "spool"), **AT_HAND).append({"n": 0}))
    (journal,) = (tmp_path / "spool" / name for name in journals(tmp_path / "spool"))
    stored = journal.read_bytes().replace(b'"writer"', b'"Writer"')
    journal.write_bytes(stored)
    local(tmp_path).writer(REF, spool_dir=str(tmp_path / "spool")).close()
    assert journal.read_bytes() == stored
    assert f"{journal} is left alone: it has a damaged header" in caplog.text


def test_a_journal_of_a_later_version_is_left_alone_and_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dies(lambda: local(tmp_path).writer(REF, spool_dir=str(tmp_path / "spool"), **AT_HAND).append({"n": 0}))
    (journal,) = (tmp_path / "spool" / name for name in journals(tmp_path / "spool"))
    *_, record = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(stored := encode("H", b'{"format":4}') + record)
    local(tmp_path).writer(REF, spool_dir=str(tmp_path / "spool")).close()
    assert journal.read_bytes() == stored
    assert f"{journal} is left alone: it has format 4" in caplog.text


@pytest.mark.parametrize("version", [1, 2])
def test_a_journal_of_an_earlier_format_is_sent(tmp_path: Path, version: int) -> None:
    store, spool = local(tmp_path), tmp_path / "spool"
    spool.mkdir()
    ids = [REF.tenant, REF.agent_id, REF.session_id]
    header = {"format": version, "store": str(store), "ref": ids, "writer": "old-0123", "offload": None}
    lines = [("R", b'0 {"n":0}'), ("R", b'1 {"n":1}'), ("C", b"0 1"), ("D", b"1"), ("R", b'2 {"n":2}')]
    content = encode("H", json.dumps(header).encode(), is_old=True)
    content += b"".join(encode(*line, is_old=True) for line in lines)
    (spool / f"{name_prefix(str(store), REF)}old-0123.journal").write_bytes(content)
    store.writer(REF, spool_dir=str(spool)).close()
    assert [record[:2] for record in store.records(REF)] == [(2, "old-0123")]
    assert os.listdir(spool) == []


@pytest.mark.parametrize("version", [2, FORMAT])
def test_a_batch_that_was_stored_is_sent_with_the_bytes_of_its_time(tmp_path: Path, version: int) -> None:
    store, spool = local(tmp_path), tmp_path / "spool"
    spool.mkdir()
    line = b'{"type":"tool_result","output":"%s","truncated":false}' % (b"x" * 100_000)
    stored, payloads = offload(line, 1000, says_so=version == FORMAT)
    names = store._names(REF)
    for digest, payload in payloads.items():
        store._container.create(names.payload(digest), payload)
    store.append_segment(REF, 0, 0, "old-0123", stored)
    header = {"format": version, "store": str(store), "identity": store.identity, "ref": [*REF.prefix.split("/")[:3]]}
    header |= {"writer": "old-0123", "offload": 1000}
    content = encode("H", json.dumps(header).encode(), is_old=version < FORMAT)
    content += b"".join(encode(*each, is_old=version < FORMAT) for each in [("R", b"0 " + line), ("C", b"0 0")])
    (spool / f"{name_prefix(str(store), REF)}old-0123.journal").write_bytes(content)
    store.writer(REF, spool_dir=str(spool)).close()
    assert [record.line for record in store.records(REF)] == [line]
    assert os.listdir(spool) == []


@pytest.mark.parametrize("member", ["tenant", "agent_id", "session_id"])
def test_what_another_transcript_has_left_is_left_to_it(tmp_path: Path, member: str) -> None:
    other = dataclasses.replace(REF, **{member: "other"})
    spool = str(tmp_path / "spool")
    dies(lambda: local(tmp_path).writer(other, spool_dir=spool, **AT_HAND).append({"n": 0}))
    store = local(tmp_path)
    store.writer(REF, spool_dir=spool).close()
    assert list(store.list_refs()) == []
    store.writer(other, spool_dir=spool).close()
    assert [record.json() for record in store.records(other)] == [{"n": 0}]


@pytest.mark.parametrize(("session", "is_sent"), [("s1", True), ("a b", False)])
def test_what_is_left_goes_only_to_where_it_was_to_go_however_ids_are_spelled(
    tmp_path: Path, session: str, is_sent: bool
) -> None:
    """Where both spellings have one place, either sends it; else a part of it may be stored already, at the other one."""
    ref, spool = dataclasses.replace(REF, session_id=session), str(tmp_path / "spool")
    dies(lambda: local(tmp_path).writer(ref, spool_dir=spool, **AT_HAND).append({"n": 0}))
    raw = ObjectTranscriptStore(Container(LocalObjectStore(str(tmp_path / "store"))), ids="raw")
    raw.writer(ref, spool_dir=spool).close()
    assert len(list(raw.records(ref))) == is_sent
    local(tmp_path).writer(ref, spool_dir=spool).close()
    assert [record.json() for record in local(tmp_path).records(ref)] == [{"n": 0}]


def test_what_is_left_and_can_not_be_stored_is_kept_and_named(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    dies(lambda: local(tmp_path).writer(REF, writer_id="mine", spool_dir=str(spool), **AT_HAND).append({"n": 0}))
    store = local(tmp_path)
    append(store, 0, 0, "mine")
    (journal,) = journals(spool)
    for _ in range(2):
        with pytest.raises(SegmentConflictError, match=f"records 0 to 0 of mine.*{journal}.*rename the journal"):
            store.writer(REF, spool_dir=str(spool))
    assert journals(spool) == [journal]


@pytest.mark.parametrize("is_file", [True, False])
def test_a_directory_that_can_not_be_used_is_named(tmp_path: Path, is_file: bool) -> None:
    if is_file:
        (tmp_path / "spool").touch()
    else:
        (tmp_path / "spool").symlink_to(tmp_path / "nowhere" / "spool")
    with pytest.raises(JournalError, match="spool"):
        local(tmp_path).writer(REF, spool_dir=str(tmp_path / "spool"))


@pytest.mark.parametrize("appends_more", [True, False])
@pytest.mark.parametrize("lives_on", [True, False])
def test_a_forked_child_leaves_the_journal_to_the_next_writer(tmp_path: Path, lives_on: bool, appends_more: bool) -> None:
    spool = str(tmp_path / "spool")
    reading, writing_end = os.pipe()

    def work() -> None:
        writer = local(tmp_path).writer(REF, spool_dir=spool, **AT_HAND)
        writer.append({"n": 0})
        ready, running = os.pipe()
        if (child := os.fork()) == 0:
            os.close(writing_end)
            os.write(running, b"1")
            if lives_on:
                os.read(reading, 1)
            writing._flush_all()  # as at the end of an interpreter
            os._exit(0)
        os.read(ready, 1)  # until then the child holds the journal too
        if not lives_on:
            os.waitpid(child, 0)
        if appends_more:
            writer.append({"n": 1})

    dies(work)
    store = local(tmp_path)
    store.writer(REF, spool_dir=spool).close()
    os.close(writing_end)
    os.close(reading)
    assert numbers(store) == ([0, 1] if appends_more else [0])


# --- numbers and names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spooled", [True, False])
def test_a_record_that_can_never_be_stored_is_refused(tmp_path: Path, spooled: bool) -> None:
    setup = make()
    append(setup.store, MAX_SEQ - 1, MAX_SEQ - 1)
    spool_dir = str(tmp_path) if spooled else None
    writer = setup.store.writer(REF, spool_dir=spool_dir, **AT_HAND)
    assert writer.append({"n": 0}) == MAX_SEQ
    for _ in range(2):
        with pytest.raises(InvalidSegmentError, match="last number"):
            writer.append({"n": 1})
    writer.close()
    setup.store.writer(REF, spool_dir=spool_dir).close()
    assert setup.store.next_seq(REF) == MAX_SEQ + 1
    assert os.listdir(tmp_path) == []


class Hours(SystemClock):
    """A clock that can be set forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


@pytest.mark.parametrize("compacted", [True, False])
def test_a_writer_that_was_idle_finds_out_that_another_has_its_id(compacted: bool) -> None:
    setup, clock = make(), Hours()
    store = ObjectTranscriptStore(Container(setup.memory, clock=clock))
    idle = store.writer(REF, writer_id="same", **AT_HAND)
    idle.append({"idle": 0})
    idle.flush()
    with store.writer(REF, writer_id="same", **AT_HAND) as other:
        for n in range(3):
            other.append({"other": n})
        other.flush()
        if compacted:
            store.compact(REF, CompactionPolicy(min_segments=2, full=True))
        clock.ahead = 3600.0
        for n in range(2):
            idle.append({"idle": n})
        with pytest.raises(SegmentConflictError):
            idle.flush()
    if not compacted:  # else its key was free again
        assert [record.json() for record in store.records(REF)] == [{"idle": 0}, *({"other": n} for n in range(3))]
    idle._state = "closed"


def test_a_new_writer_finds_out_later_that_another_was_at_work_under_its_id() -> None:
    setup, clock = make(), Hours()
    hooks = HookedObjectStore(setup.memory)
    store = ObjectTranscriptStore(Container(hooks, clock=clock))
    first = store.writer(REF, writer_id="same", **AT_HAND)
    first.append({"first": 0})
    first.flush()
    second = store.writer(REF, writer_id="same", **AT_HAND)
    second.append({"second": 0})
    second.append({"second": 1})
    second.flush()
    append(store, 1, 3, "same")  # what the first sends next, not idle, and with bounds of its own
    clock.ahead = 6.0
    second.append({"second": 2})
    second.flush()
    clock.ahead = 12.0
    second.append({"second": 3})
    with pytest.raises(SegmentConflictError):
        second.flush()
    first._state = second._state = "closed"


@pytest.mark.parametrize("merged_again", [True, False])
@pytest.mark.parametrize("pause", [11.0, 4.0])  # seconds: with a claim for each record, or one claim for all of them
def test_a_writer_finds_out_later_that_another_has_written_where_its_records_were_merged(
    pause: float, merged_again: bool
) -> None:
    full = CompactionPolicy(min_segments=2, full=True)
    setup, clock = make(), Hours()
    store = ObjectTranscriptStore(Container(setup.memory, clock=clock))
    writer = store.writer(REF, writer_id="same", **AT_HAND)
    for n in range(3):
        writer.append({"n": n})
        writer.flush()
        clock.ahead += pause
    assert store.compact(REF, full).merged
    append(store, 1, 1, "same")  # whose keys are free again
    if merged_again:
        assert store.compact(REF, full).merged
    writer.append({"n": 3})
    with pytest.raises(SegmentConflictError):
        writer.flush()
    writer._state = "closed"


def test_a_merged_segment_that_is_removed_while_a_writer_looks_for_others_is_nobody_elses() -> None:
    setup, clock = make(), Hours()
    hooks = HookedObjectStore(setup.memory)
    store = ObjectTranscriptStore(Container(hooks, clock=clock))
    writer = store.writer(REF, writer_id="same", **AT_HAND)
    for n in range(3):
        writer.append({"n": n})
        writer.flush()
        clock.ahead += 4.0
    key = store.list_segments(REF)[1].key
    body = setup.memory.get(key).stream.read(-1)
    assert store.compact(REF, CompactionPolicy(min_segments=2, full=True)).merged
    setup.put(key, body)  # not removed yet
    hooks.before("get", lambda: setup.memory.delete_many([key]), key=key)
    writer.append({"n": 3})
    writer.close()
    assert setup.keys(key) == []
    assert numbers(store) == list(range(4))


def test_the_bounds_of_what_a_dead_writer_left_are_on_the_disk_under_its_name_before_it_is_sent(tmp_path: Path) -> None:
    spool = str(tmp_path / "spool")
    dies(lambda: local(tmp_path).writer(REF, spool_dir=spool, **AT_HAND).append({"n": 0}))

    class TracedDisk(SystemDisk):
        calls: ClassVar[list[str]] = []

        def __getattribute__(self, name: str) -> Any:
            if not name.startswith("_") and name != "calls":
                self.calls.append(name)
            return super().__getattribute__(name)

    store, machine = local(tmp_path), System()
    machine.disk = TracedDisk()  # type: ignore[misc]
    with leftovers(machine, spool, str(store), store.identity, REF, 1 << 20) as found:
        assert next(found).batches
        assert TracedDisk.calls[-3:] == ["write", "flush", "flush_directory"]


@pytest.mark.parametrize("limits", [{"max_records": 2}, {"max_bytes": 10}])
def test_the_first_batch_of_a_claimed_id_is_one_record_however_full_it_is(limits: dict[str, int]) -> None:
    setup = make()
    writer = setup.store.writer(REF, writer_id="mine", **{**AT_HAND, **limits})
    with writer._changed:  # so that the thread finds all of them
        for n in range(5):
            writer.append({"n": n})
    writer.close()
    assert setup.store.list_segments(REF)[0].seq_end == 0
    assert numbers(setup.store) == list(range(5))


def test_an_id_that_is_somebody_elses_stays_so() -> None:
    setup = make()
    writer = setup.store.writer(REF, writer_id="same", **AT_HAND)
    append(setup.store, 0, 3, "same")  # by one that began at the same seq, with another batch
    writer.append({"n": 0})
    for _ in range(3):
        with pytest.raises(SegmentConflictError, match="another live writer"):
            writer.flush()
    writer._state = "closed"


def test_a_writer_with_an_id_of_its_own_takes_another_name_after_a_delete(tmp_path: Path) -> None:
    setup = make()
    for life in range(3):
        with setup.store.writer(REF, writer_id="mine", spool_dir=str(tmp_path)) as writer:
            assert writer.writer_id == ("mine", "mine-g1", "mine-g2")[life]
            assert writer.append({"n": life}) == 0
        setup.store.delete(REF)
