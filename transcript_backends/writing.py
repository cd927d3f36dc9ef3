"""`TranscriptWriter`: takes records one by one and stores them as segments, in order, in a thread of its own."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import re
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from transcript_backends import keys
from transcript_backends.container import on_retry
from transcript_backends.errors import (
    InvalidSegmentError,
    SegmentConflictError,
    StoreClosedError,
    StoreUnavailableError,
    TranscriptStoreError,
)
from transcript_backends.forks import tell_after_fork
from transcript_backends.journal import Batch, Journal, leftovers
from transcript_backends.offloading import MAX_ENTRY_BYTES, offload
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


class TranscriptWriter:
    """Appends records to one transcript. Safe to share between threads; a context manager.

    `append` returns at once; what was appended before a `flush` is durable when that returns. Records are stored in
    batches, one request each, in order: a batch that was ever sent is sent with the same bounds and bytes until it is known
    to be stored. While the store is unavailable batches wait, in bounded memory, and go out when it is back.

    `close`, the end of a ``with`` block and the end of the interpreter flush. A signal that kills the process does not: use
    ``spool_dir``, or turn it into an exit (``signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))``).

    Args:
        store: where to.
        ref: the transcript.
        writer_id: who writes; default: the host's name and a random part, which no other writer has. Two live writers
            must not share one: it is found out at their first batch at the latest where they start at the same seq.
        spool_dir: a local directory to journal records in before `append` returns, so that a killed process loses none: the
            next writer of this transcript with the same directory sends what was left. None: no journal.
        max_records, max_bytes, max_age: a batch goes out when it has so many records or bytes, or when its first record is
            so many seconds old.
        max_pending_bytes: how much may wait.
        when_full: ``block``: `append` waits; ``raise``: it raises `StoreUnavailableError`.
        offload_bytes: longer lines have their large strings stored outside, as payloads, so that an entry may have up to
            64 MiB; None: no line has, and 4 MiB is the limit.

    Raises:
        TranscriptStoreError: the transcript can't be listed, or what a journal holds can't be sent.
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
        offload_bytes: int | None = 64 * 1024,
    ) -> None:
        if min(max_records, max_bytes, max_pending_bytes) < 1 or not 0 <= max_age <= threading.TIMEOUT_MAX:
            raise ValueError("max_records, max_bytes and max_pending_bytes must be 1 or more, max_age seconds, 0 or more")
        if offload_bytes is not None and offload_bytes < 1:
            raise ValueError(f"offload_bytes must be 1 or more, or None, not {offload_bytes!r}")
        if when_full not in ("block", "raise"):
            raise ValueError(f"when_full must be 'block' or 'raise', not {when_full!r}")
        self.ref = ref
        self.writer_id = _new_writer_id() if writer_id is None else keys.check_writer_id(writer_id)
        self._store, self._offload_bytes = store, offload_bytes
        self._limits = max_records, max_bytes, max_age
        self._max_pending_bytes, self._when_full = max_pending_bytes, when_full
        self._claimed = writer_id is None  # a random id is nobody else's
        if spool_dir is not None:
            self._send_leftovers(spool_dir, max_bytes)
        self._next_seq = self._stored = store.next_seq(ref)  # what is below _stored is stored
        self._journal = self._open_journal(spool_dir) if spool_dir is not None else None
        self._changed = threading.Condition()
        self._cut: deque[Batch] = deque()
        self._open = Batch(self._next_seq, [])
        self._open_bytes = self._pending_bytes = 0
        self._open_since = 0.0
        self._flush_below = self._next_seq
        self._tries = 0
        self._last_error: BaseException | None = None
        self._failed = False
        self._state: Literal["open", "closing", "closed", "forked"] = "open"
        tell_after_fork(self)
        self._thread = threading.Thread(target=self._run, name=f"writer of {ref}", daemon=True)
        self._thread.start()
        _writers.add(self)

    @property
    def state(self) -> WriterState:
        """How it is doing."""
        # Without the lock, which is held while a journal is flushed.
        return WriterState(self._next_seq - self._stored, self._pending_bytes, self._last_error)

    def append(self, entry: Mapping[str, Any] | bytes | Any) -> int:
        """Take one record; gives its seq.

        Args:
            entry: a mapping, one line of JSON as bytes, an object whose method ``to_line`` gives one (a session entry), or
                one that msgspec can encode (a dataclass, a Struct).

        Raises:
            InvalidSegmentError: it is no JSON object, or too long; nothing was taken.
            StoreUnavailableError: too much is waiting, with ``when_full="raise"``; nothing was taken.
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
                self._flush_below = self._next_seq
                self._changed.notify_all()
                self._changed.wait()
                self._check()
            seq = self._next_seq
            if self._journal is not None:
                self._journal.add(seq, line)
            if self._open.lines and self._open_bytes + size > self._limits[1] and self._claimed:
                self._cut_open()
                self._changed.notify_all()
            if not self._open.lines:
                self._open_since = time.monotonic()
            self._open.lines.append(line)
            self._open_bytes += size
            self._pending_bytes += size
            self._next_seq += 1
            if len(self._open.lines) == 1:
                self._changed.notify_all()  # its age counts from now on
            if len(self._open.lines) >= self._limits[0] and self._claimed:
                self._cut_open()
                self._changed.notify_all()
        if self._journal is not None:
            self._journal.sync()
        return seq

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything appended before is durable.

        Args:
            timeout: seconds; None to wait as long as the store itself goes on trying.

        Raises:
            StoreUnavailableError: it did not get there; what is left is kept, and sent when the store is back.
            TranscriptStoreError: what stopped the writer; calling again tries again.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            if self._state in ("closed", "forked"):
                self._check()
            goal, tries = self._next_seq, self._tries
            self._flush_below = max(self._flush_below, goal)
            self._failed = False
            self._changed.notify_all()
            while self._stored < goal:
                if self._failed or self._tries > tries:
                    raise self._as_raised()
                remaining = None if deadline is None else deadline - time.monotonic()
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

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.writer_id} of {self.ref}>"

    def after_fork(self) -> None:
        """It is the parent's: its thread, its records, its journal."""
        self._changed = threading.Condition()
        self._state = "forked"
        if self._journal is not None:
            self._journal.close(remove=False)
        _writers.discard(self)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._state != "open":
            why = {"forked": "belongs to the parent process; open one here"}.get(self._state, "is closed; open another")
            raise StoreClosedError(f"{self} {why}")
        if self._failed:
            raise self._as_raised()

    def _checked(self, line: bytes) -> bytes:
        """The line, where what is stored of it will not be too long."""
        if self._offload_bytes is not None and len(line) > MAX_LINE_BYTES // 2:
            stored, _ = offload(line, self._offload_bytes)
            if len(stored) > MAX_LINE_BYTES:
                raise InvalidSegmentError(
                    f"the entry is {len(line)} bytes long, and still {len(stored)} with its large strings stored outside; "
                    f"{MAX_LINE_BYTES} is the limit: make several entries of it"
                )
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

    def _cut_open(self) -> None:
        self._cut.append(self._open)
        if self._journal is not None:
            self._journal.cut(self._open)
        self._open = Batch(self._open.seq_end + 1, [])
        self._open_bytes = 0

    def _send_leftovers(self, spool_dir: str, most_bytes: int) -> None:
        with leftovers(spool_dir, str(self._store), self.ref, most_bytes) as found:
            for path, writer_id, batches, offload_bytes in found:
                for batch in batches:
                    self._store_batch(batch, writer_id, offload_bytes)
                _log.info("sent %d batches that %s had left in %s", len(batches), writer_id, path)

    def _open_journal(self, spool_dir: str) -> Journal:
        try:
            return Journal(spool_dir, str(self._store), self.ref, self.writer_id, self._offload_bytes)
        except FileExistsError as error:
            raise SegmentConflictError(
                f"another live writer on this machine has the writer id {self.writer_id!r}; give each its own, or none"
            ) from error

    def _store_batch(self, batch: Batch, writer_id: str, offload_bytes: int | None) -> str:
        def append(lines: list[bytes]) -> str:
            body = batch._replace(lines=lines).body
            return self._store.append_segment(self.ref, batch.seq_start, batch.seq_end, writer_id, body)

        return store_lines(self._store._container, self._store._names(self.ref), batch.lines, offload_bytes, append)

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        on_retry.set(self._tried)
        pause = _FIRST_PAUSE
        while True:
            try:
                with self._changed:
                    batch = self._next_batch()
                if batch is None:
                    return
                self._send(batch)
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
            else:
                pause = _FIRST_PAUSE
                with self._changed:
                    self._cut.popleft()
                    self._stored = batch.seq_end + 1
                    self._pending_bytes -= sum(len(line) + 1 for line in batch.lines)
                    self._last_error = None
                    if self._journal is not None:
                        self._journal.done(batch.seq_end, empty=self._stored == self._next_seq)
                    self._changed.notify_all()

    def _tried(self, error: StoreUnavailableError) -> None:
        self._last_error = error

    def _next_batch(self) -> Batch | None:
        """Wait for a batch to send; None where there is none any more."""
        max_records, max_bytes, max_age = self._limits
        while not self._cut:
            lines = len(self._open.lines)
            age = time.monotonic() - self._open_since
            is_full = lines >= max_records or self._open_bytes >= max_bytes  # while the writer id is not claimed yet
            if lines and (is_full or self._flush_below > self._open.seq_start or age >= max_age):
                if not self._claimed and lines > 1:  # the first batch is one record: who starts at the same seq collides
                    rest = self._open.lines[1:]
                    del self._open.lines[1:]
                    self._cut_open()
                    self._open.lines.extend(rest)
                    self._open_bytes = sum(len(line) + 1 for line in rest)
                else:
                    self._cut_open()
                break
            if self._state == "closing":
                return None
            self._changed.wait(max_age - age if lines else None)
        return self._cut[0]

    def _send(self, batch: Batch) -> None:
        key = self._store_batch(batch, self.writer_id, self._offload_bytes)
        if not self._claimed:
            others = [
                each.key
                for each in self._store.list_segments(self.ref)
                if each.writer_id == self.writer_id and each.seq_end >= batch.seq_start and each.key != key
            ]
            if others:
                raise SegmentConflictError(
                    f"another live writer of {self.ref} has the writer id {self.writer_id!r}: {others[0]!r} is not ours; give "
                    "each its own, or none"
                )
            self._claimed = True


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


def _new_writer_id() -> str:
    host = re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname())[:32].strip("-") or "writer"
    return f"{host}-{secrets.token_hex(6)}"


_writers: set[TranscriptWriter] = set()


def _flush_all() -> None:
    for writer in list(_writers):
        pending = writer.state.pending_records
        try:
            writer.close()
        except Exception as error:
            _log.error("%s ends with %d records that are not stored: %s", writer, pending, error)
        if writer._journal is not None:
            with contextlib.suppress(OSError):
                writer._journal.close(remove=False)


atexit.register(_flush_all)
