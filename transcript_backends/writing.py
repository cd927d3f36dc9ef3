"""`TranscriptWriter`: takes records one by one and stores them as segments, in order, in a thread of its own."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import math
import re
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from transcript_backends import keys
from transcript_backends.claiming import Claim
from transcript_backends.container import on_retry
from transcript_backends.errors import (
    InvalidSegmentError,
    JournalError,
    SegmentConflictError,
    StoreClosedError,
    StoreUnavailableError,
    TranscriptStoreError,
)
from transcript_backends.forks import tell_after_fork
from transcript_backends.hashing import sha256
from transcript_backends.journal import Batch, Header, Journal, Waiting
from transcript_backends.leftovers import leftovers
from transcript_backends.listing import list_once
from transcript_backends.machine import Machine, System
from transcript_backends.offloading import LONG_BYTES, MAX_ENTRY_BYTES, too_long
from transcript_backends.payloads import store_lines
from transcript_backends.records import MAX_LINE_BYTES, check_jsonl
from transcript_backends.refs import TranscriptRef

if TYPE_CHECKING:
    from transcript_backends.object_store import ObjectTranscriptStore

_log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0  # seconds between tries of a batch, each of which the store has tried for a minute


class WriterState(NamedTuple):
    """How a writer is doing.

    Attributes:
        pending_records, pending_bytes: appended, and not known to be stored.
        last_error: why the last try failed; None since one succeeded.
    """

    pending_records: int
    pending_bytes: int
    last_error: BaseException | None


class _Appended:
    """A record that a journal is to hold before `TranscriptWriter.append` returns."""

    __slots__ = ("error", "is_safe")

    def __init__(self) -> None:
        self.is_safe = False
        self.error: OSError | None = None  # it was taken back


class TranscriptWriter:
    """Appends records to one transcript. Safe to share between threads; a context manager.

    `append` returns at once; what was appended before a `flush` is durable when that returns. Records are stored in
    batches, one request each, in order: a batch that was ever sent is sent with the same bounds and bytes until it is known
    to be stored. While the store is unavailable batches wait, in bounded memory, and go out when it is back.

    `close`, the end of a ``with`` block and the end of the interpreter flush. A signal that kills the process does not: use
    ``spool_dir``, or turn it into an exit (``signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))``).

    A journal that can't be written is an outage of the journal, not of the writer: records go on being stored, `append`
    raises `JournalError` and takes nothing, and each call tries again.

    Args:
        store: where to.
        ref: the transcript.
        writer_id: who writes; default: the host's name and a random part, which no other writer has. Two live writers
            must not share one: at least one of them is told, at its first batch, at the first after ten idle seconds, or at
            one ten seconds after its first. After a delete of the transcript its number is added: ``mine`` writes as
            ``mine-g1``.
        spool_dir: a local directory to journal records in before `append` returns, so that neither a killed process nor a
            power cut loses any: the next writer of this transcript of this store with the same directory sends what was
            left. None: no journal.
        max_records, max_bytes, max_age: a batch goes out when it has so many records or bytes, or when its first record is
            so many seconds old.
        max_pending_bytes: how much may wait.
        when_full: ``block``: `append` waits; ``raise``: it raises `StoreUnavailableError`.
        offload_bytes: longer lines have their large strings stored outside, as payloads, so that an entry may have up to
            64 MiB; None: no line has, and 4 MiB is the limit.
        machine: threads and files; tests and simulations bring their own.

    Attributes:
        ref: the transcript.
        writer_id: under which its records are stored.

    Raises:
        TranscriptStoreError: the transcript can't be listed, or what a journal holds can't be sent.
        JournalError: the directory can't be written.
    """

    def __init__(
        self,
        store: ObjectTranscriptStore,
        ref: TranscriptRef,
        *,
        writer_id: str | None = None,
        spool_dir: str | None = None,
        max_records: int = 500,
        max_bytes: int = 1024 * 1024,
        max_age: float = 1.0,
        max_pending_bytes: int = 64 * 1024 * 1024,
        when_full: Literal["block", "raise"] = "block",
        offload_bytes: int | None = LONG_BYTES,
        machine: Machine | None = None,
    ) -> None:
        if min(max_records, max_bytes, max_pending_bytes) < 1 or not 0 <= max_age <= threading.TIMEOUT_MAX:
            raise ValueError("max_records, max_bytes and max_pending_bytes must be 1 or more, max_age seconds, 0 or more")
        if offload_bytes is not None and offload_bytes < 1:
            raise ValueError(f"offload_bytes must be 1 or more, or None, not {offload_bytes!r}")
        if when_full not in ("block", "raise"):
            raise ValueError(f"when_full must be 'block' or 'raise', not {when_full!r}")
        if writer_id is not None:
            keys.check_writer_id(writer_id)
        self.ref = ref
        self._store, self._offload_bytes = store, offload_bytes
        self._container, self._names = store._container, store._names(ref)
        self._clock, self._machine = self._container.clock, machine or System()
        self._limits = max_records, max_bytes, max_age
        self._max_pending_bytes, self._when_full = max_pending_bytes, when_full
        if spool_dir is not None:
            self._send_leftovers(spool_dir)
        listing = list_once(self._container, self._names)
        given = None if writer_id is None else keys.writer_id_in(listing.generation, writer_id)
        self.writer_id = given or _new_writer_id(self._machine)
        self._claim = Claim(self._container, self._names, self.writer_id, is_random=given is None)
        # What is below _stored is stored; below _confirmed, append has returned, or is about to; the lines are of the rest.
        self._next_seq = self._confirmed = self._stored = listing.next_seq
        self._lines: deque[bytes] = deque()
        self._times: deque[float] = deque()  # when each was appended
        self._appended: deque[_Appended] = deque()  # not confirmed yet
        self._pending_bytes = 0
        self._sent: Batch | None = None
        self._flush_below = self._next_seq
        self._tries = 0
        self._last_error: BaseException | None = None
        self._failed = False
        self._state: Literal["open", "closing", "closed", "forked"] = "open"
        self._changed = self._machine.condition()
        self._journal_is_down = False
        self._journal = self._open_journal(spool_dir) if spool_dir is not None else None
        tell_after_fork(self)
        self._thread = self._machine.start(f"writer of {ref}", self._run)
        _writers.add(self)

    @property
    def state(self) -> WriterState:
        """How it is doing."""
        # Without the lock, which is held while a journal is replaced.
        return WriterState(self._next_seq - self._stored, self._pending_bytes, self._last_error)

    def append(self, entry: Mapping[str, Any] | bytes | Any) -> int:
        """Take one record; gives its seq.

        Args:
            entry: a mapping, one line of JSON as bytes, an object whose method ``to_line`` gives one (a session entry), or
                one that msgspec can encode (a dataclass, a Struct).

        Raises:
            InvalidSegmentError: it is no JSON object, or too long, or no seq is left; nothing was taken.
            StoreUnavailableError: too much is waiting, with ``when_full="raise"``; nothing was taken.
            JournalError: it can't be written down; nothing was taken. Where the power fails before the journal works
                again, the record may be found in it all the same.
            TranscriptStoreError: what stopped the writer, a denial say; nothing was taken. `flush` tries again.
        """
        line = self._checked(_line(entry, MAX_LINE_BYTES if self._offload_bytes is None else MAX_ENTRY_BYTES))
        size = len(line) + 1
        with self._changed:
            self._check()
            while self._pending_bytes and self._pending_bytes + size > self._max_pending_bytes:
                if self._when_full == "raise":
                    raise StoreUnavailableError(
                        f"{self} has {self._pending_bytes} bytes waiting to be stored, {self._max_pending_bytes} is the limit: "
                        f"{self._last_error or 'the store is slower than the writer'}"
                    )
                self._flush_below = self._confirmed
                self._changed.notify_all()
                self._changed.wait()
                self._check()
            seq = self._next_seq
            if seq > keys.MAX_SEQ:
                raise InvalidSegmentError(f"{self.ref} has a record with the last number, {keys.MAX_SEQ}; use another session")
            position = self._write_down(seq, line) if self._journal is not None else 0
            self._lines.append(line)
            self._times.append(self._clock.monotonic())
            self._pending_bytes += size
            self._next_seq += 1
            if self._journal is None:
                self._confirm(self._next_seq)
                return seq
            self._appended.append(appended := _Appended())
        try:
            self._make_safe(self._journal, position, seq, appended)
        except BaseException:
            with self._changed:
                if appended.error is None:  # Ctrl-C: it may be on the disk, so it is sent like the others
                    self._confirm(seq + 1)
            raise
        return seq

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything appended before is durable.

        Args:
            timeout: seconds; None to wait as long as the store itself goes on trying.

        Raises:
            StoreUnavailableError: it did not get there; what is left is kept, and sent when the store is back.
            TranscriptStoreError: what stopped the writer; calling again tries again.
        """
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        with self._changed:
            if self._state in ("closed", "forked"):
                self._check()
            goal, tries = self._confirmed, self._tries
            self._flush_below = max(self._flush_below, goal)
            self._failed = False
            self._changed.notify_all()
            while self._stored < goal:
                if self._failed or self._tries > tries:
                    raise self._as_raised()
                remaining = None if deadline is None else deadline - self._clock.monotonic()
                if remaining is not None and remaining <= 0:
                    raise StoreUnavailableError(
                        f"{goal - self._stored} records of {self} are not stored after {timeout} seconds; they are kept, and "
                        f"sent when the store is back: {self._last_error or 'it has not answered yet'}"
                    )
                self._changed.wait(remaining)

    def close(self, timeout: float | None = None) -> None:
        """`flush`, and end. Where that fails the writer stays open, and goes on trying. A second call does nothing.

        Args:
            timeout: as for `flush`.
        """
        if self._state in ("closed", "forked"):
            return
        while self._state == "open":
            self.flush(timeout)
            with self._changed:
                self._changed.wait_for(lambda: not self._appended)  # other threads' calls come to their end
                if self._stored == self._next_seq:  # else: another thread goes on
                    self._state = "closing"
                    self._changed.notify_all()
        self._thread.join()
        with self._changed:
            before, self._state = self._state, "closed"
        if before == "closed":  # another thread was first
            return
        if self._journal is not None:
            self._journal.close(remove=True)
        _writers.discard(self)

    def __enter__(self) -> TranscriptWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self.close()
        else:
            self._close_soon()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.writer_id} of {self.ref}>"

    def after_fork(self) -> None:
        """It is the parent's: its thread, its records, its journal."""
        self._changed = self._machine.condition()
        self._state = "forked"
        if self._journal is not None:
            self._journal.close(remove=False)
        _writers.discard(self)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _close_soon(self) -> None:
        """`close` where the program or the task was interrupted: a store that does not answer must not keep it from ending."""
        try:
            self.close(_last_chance.seconds())
        except Exception as error:
            self._tell_of_rest(error)

    def _tell_of_rest(self, error: BaseException) -> None:
        kept = "they are kept in its journal" if self._journal is not None and not self._journal_is_down else "they are lost"
        _log.error("%s ends with %d records that are not stored: %s; %s", self, self.state.pending_records, error, kept)

    def _check(self) -> None:
        if self._state != "open":
            why = {"forked": "belongs to the parent process; open one here"}.get(self._state, "is closed; open another")
            raise StoreClosedError(f"{self} {why}")
        if self._failed:
            raise self._as_raised()

    def _checked(self, line: bytes) -> bytes:
        """The line, where what is stored of it will not be too long."""
        if self._offload_bytes is not None and (why := too_long(line, self._offload_bytes)):
            raise InvalidSegmentError(f"the entry {why}: make several entries of it")
        return line

    def _as_raised(self) -> BaseException:
        error = self._last_error
        assert error is not None
        kept = f"{self._next_seq - self._stored} records are kept; flush() tries again"
        if isinstance(error, TranscriptStoreError):
            raised: BaseException = type(error)(f"{error} ({kept})")
        else:
            raised = TranscriptStoreError(f"{self} has stopped: {type(error).__name__}: {error} ({kept})")
        raised.__cause__ = error
        return raised

    def _confirm(self, below: int) -> None:
        """The records below a seq are taken for good; the thread is told where it has something to do now."""
        before, self._confirmed = self._confirmed, max(self._confirmed, below)
        for _ in range(min(len(self._appended), self._confirmed - before)):
            self._appended.popleft().is_safe = True
        max_records, max_bytes, _ = self._limits
        is_first = before == self._stored  # its age counts from now on
        is_full = self._confirmed - self._stored >= max_records or self._pending_bytes >= max_bytes
        if is_first or is_full or self._journal is not None:
            self._changed.notify_all()

    def _send_leftovers(self, spool_dir: str) -> None:
        store, most_bytes = self._store, self._limits[1]
        with (
            self._reading(spool_dir),
            leftovers(self._machine, spool_dir, str(store), store._journal_identity(self.ref), self.ref, most_bytes) as found,
        ):
            for path, writer_id, batches, offload_bytes, says_so in found:
                for batch in batches:
                    try:
                        self._store_batch(batch, writer_id, offload_bytes, says_so=says_so)
                    except SegmentConflictError as error:
                        raise SegmentConflictError(
                            f"records {batch.seq_start} to {batch.seq_end} of {writer_id}, left in the journal {path!r}, "
                            f"can't be stored under its name: {error}; rename the journal to go on without them"
                        ) from error
                _log.info("sent %d batches that %s had left in %s", len(batches), writer_id, path)

    @staticmethod
    @contextlib.contextmanager
    def _reading(spool_dir: str) -> Iterator[None]:
        try:
            yield
        except TranscriptStoreError:  # some of which are OSErrors, too
            raise
        except OSError as error:
            raise JournalError(f"the journals in {spool_dir!r} can't be read: {error}; repair the disk, try again") from error

    # --- the journal --------------------------------------------------------------------------------------------------

    def _open_journal(self, spool_dir: str) -> Journal:
        header = Header(
            str(self._store), self._store._journal_identity(self.ref), self.ref, self.writer_id, self._offload_bytes
        )
        try:
            return Journal(
                self._machine, spool_dir, header, lambda: Waiting(self._sent, Batch(self._stored, list(self._lines)))
            )
        except FileExistsError as error:
            raise SegmentConflictError(
                f"another live writer on this machine has the writer id {self.writer_id!r}; give each its own, or none"
            ) from error
        except OSError as error:
            raise JournalError(
                f"no journal can be made in {spool_dir!r}: {error.strerror}; free or repair the disk, or name another directory"
            ) from error

    def _write_down(self, seq: int, line: bytes) -> int:
        assert self._journal is not None
        try:
            return self._journal.add(seq, line)
        except OSError as error:
            self._tell_of(error)
            raise self._not_written(error) from error

    def _make_safe(self, journal: Journal, position: int, seq: int, appended: _Appended) -> None:
        """Return when an appended record is on the disk, or raise where it was taken back."""
        failure: OSError | None = None
        try:
            journal.sync(position)
        except OSError as error:
            failure = error
        with self._changed:
            if appended.is_safe:  # another thread's flush reached as far
                return
            if appended.error is None and failure is None:
                self._journal_is_down = False
                self._confirm(seq + 1)
            elif appended.error is None:
                self._write_anew(journal)
            if appended.error is not None:
                raise self._not_written(appended.error) from appended.error

    def _write_anew(self, journal: Journal) -> None:
        """After a flush that failed: nobody knows what the disk holds. Write all that waits, or take back what is not safe."""
        try:
            journal.renew()
        except OSError as error:
            self._tell_of(error)
            journal.take_back(self._confirmed)
            while self._next_seq > self._confirmed:
                self._next_seq -= 1
                self._times.pop()
                self._pending_bytes -= len(self._lines.pop()) + 1
                self._appended.pop().error = error
            self._changed.notify_all()
        else:
            self._journal_is_down = False
            self._confirm(self._next_seq)

    def _not_written(self, error: OSError) -> JournalError:
        assert self._journal is not None
        return JournalError(
            f"the journal {self._journal.path!r} can't be written: {error.strerror}; nothing was taken: free or repair the "
            "disk, and append again"
        )

    def _tell_of(self, error: OSError) -> None:
        """Log an outage of the journal once."""
        assert self._journal is not None
        if not self._journal_is_down:
            _log.warning("the journal %s can't be written: %s; records go on being stored", self._journal.path, error)
        self._journal_is_down = True

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        on_retry.set(self._tried)
        pause = _FIRST_PAUSE
        while True:
            try:
                with self._changed:
                    is_new = self._sent is None
                    batch = self._next_batch()
                if batch is None:
                    return
                if is_new and self._journal is not None:
                    self._write_bounds(self._journal, batch)
                self._send(batch)
                pause = _FIRST_PAUSE
            except BaseException as error:
                is_outage = isinstance(error, StoreUnavailableError)
                with self._changed:
                    self._last_error = error
                    self._tries += 1
                    self._failed = not is_outage
                    self._changed.notify_all()
                    if is_outage:
                        self._changed.wait_for(lambda: self._state != "open", pause)
                        pause = min(2 * pause, _LONGEST_PAUSE)
                    else:
                        self._changed.wait_for(lambda: not self._failed or self._state != "open")

    def _tried(self, error: StoreUnavailableError) -> None:
        self._last_error = error

    def _next_batch(self) -> Batch | None:
        """Wait for a batch to send; None where there is none any more."""
        max_records, max_bytes, max_age = self._limits
        while self._sent is None:
            ready = self._confirmed - self._stored
            age = self._clock.monotonic() - self._times[0] if ready else 0.0
            is_full = ready >= max_records or self._pending_bytes >= max_bytes
            if ready and (is_full or self._flush_below > self._stored or age >= max_age):
                # The first batch under a claimed id is one record: who starts at the same seq collides.
                self._sent = self._cut(min(ready, max_records) if self._claim.begin_batch() else 1)
            elif self._state == "closing":
                return None
            else:
                self._changed.wait(max_age - age if ready else None)
        return self._sent

    def _cut(self, most_records: int) -> Batch:
        lines: list[bytes] = []
        remaining = self._limits[1]
        for line in islice(self._lines, most_records):
            remaining -= len(line) + 1
            if lines and remaining < 0:
                break
            lines.append(line)
        return Batch(self._stored, lines)

    def _write_bounds(self, journal: Journal, batch: Batch) -> None:
        """Written down, a batch is sent with the same bounds after a crash. Where that fails, the store is the safer place."""
        try:
            with self._changed:
                position = journal.cut(batch)
            journal.sync(position)
        except OSError as error:
            self._tell_of(error)

    def _send(self, batch: Batch) -> None:
        key, digest = self._store_batch(batch, self.writer_id, self._offload_bytes)
        if (other := self._claim.batch_is_stored(batch.seq_start, batch.seq_end, digest)) is not None:
            raise SegmentConflictError(
                f"another live writer of {self.ref} has the writer id {self.writer_id!r}: {other} is there, and not ours, "
                f"beside {key!r}; give each its own, or none"
            )
        with self._changed:
            self._sent = None
            for line in batch.lines:
                self._lines.popleft()
                self._times.popleft()
                self._pending_bytes -= len(line) + 1
            self._stored = batch.seq_end + 1
            self._last_error = None
            self._changed.notify_all()
            if self._journal is not None:
                self._journal.done(batch.seq_end, self._pending_bytes)

    def _store_batch(self, batch: Batch, writer_id: str, offload_bytes: int | None, *, says_so: bool = True) -> tuple[str, str]:
        """Store a batch; returns its key, and the sha256 of what is stored under it."""
        body = b""

        def append(lines: list[bytes]) -> str:
            nonlocal body
            body = batch._replace(lines=lines).body
            return self._store.append_segment(self.ref, batch.seq_start, batch.seq_end, writer_id, body)

        key = store_lines(self._container, self._names, batch.lines, offload_bytes, append, says_so=says_so)
        return key, sha256(body)


def _line(entry: Any, longest: int) -> bytes:
    """An entry as one line of JSON, without its newline."""
    if isinstance(entry, (bytes, bytearray, memoryview)):
        raw = bytes(entry)
    elif isinstance(entry, Mapping):
        try:
            raw = json.dumps(entry, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidSegmentError(f"the entry can't be written as JSON: {error}") from error
    else:
        import msgspec

        try:
            raw = entry.to_line() if hasattr(entry, "to_line") else msgspec.json.encode(entry)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidSegmentError(f"a {type(entry).__name__} can't be written as JSON: {error}") from error
    body = check_jsonl(raw, longest=longest)
    if body.count(b"\n") != 1:
        raise InvalidSegmentError(f"an entry is one line, this has {body.count(10)}; append them one by one")
    return body[:-1]


def _new_writer_id(machine: Machine) -> str:
    host = re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname())[:32].strip("-") or "writer"
    return f"{host}-{machine.token()}"


_LAST_SECONDS = 10.0
_AGAIN_SECONDS = 60.0  # after this a program has gone on, and is interrupted anew


class _LastChance:
    """The time that an interrupted program gives all of its writers together for what is not stored."""

    def __init__(self) -> None:
        self._ends = -math.inf

    @property
    def is_given(self) -> bool:
        return time.monotonic() < self._ends + _AGAIN_SECONDS

    def seconds(self) -> float:
        """What is left of it."""
        if not self.is_given:
            self._ends = time.monotonic() + _LAST_SECONDS
        return max(0.0, self._ends - time.monotonic())

    def end(self) -> None:
        """Nobody wants to wait any more."""
        self._ends = time.monotonic()


_last_chance = _LastChance()
_writers: set[TranscriptWriter] = set()


def _flush_all() -> None:
    for writer in list(_writers):
        was_interrupted = _last_chance.is_given or isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
        try:
            writer.close(_last_chance.seconds() if was_interrupted else None)
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C
                _last_chance.end()
            writer._tell_of_rest(error)
        if writer._journal is not None:
            with contextlib.suppress(OSError):
                writer._journal.close(remove=False)


atexit.register(_flush_all)
