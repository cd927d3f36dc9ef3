"""The async face of the library: the same names, for asyncio and trio. See docs/async.md.

Every call is one hop to a thread, so many at a time for each store. A thread can't be killed: where a caller is cancelled, the
call it has begun goes on, and nobody waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import transcript_backends as blocking
from transcript_backends.errors import StoreClosedError, StoreUnavailableError
from transcript_backends.extras import needed_by
from transcript_backends.records import Record
from transcript_backends.writing import TranscriptWriter, WriterState

with needed_by("transcript_backends.aio", "aio", "anyio"):
    from anyio import CancelScope, Event, get_cancelled_exc_class, move_on_after
    from anyio.lowlevel import checkpoint

    from transcript_backends.hopping import THREADS, AsyncIteration, Opening, Threads, in_background
    from transcript_backends.state.aio import AsyncStateStore, StateStore

if TYPE_CHECKING:
    from transcript_backends.background import BackgroundCompactor, CompactionTotals
    from transcript_backends.catalog import Glance, Skipped
    from transcript_backends.copying import CopyResult
    from transcript_backends.deletion import DeleteResult
    from transcript_backends.diagnosis import Check
    from transcript_backends.following import Follower
    from transcript_backends.keys import Ids
    from transcript_backends.listing import SegmentInfo
    from transcript_backends.object_store import ObjectTranscriptStore
    from transcript_backends.planning import CompactionEstimate
    from transcript_backends.refs import RuntimeContext, TranscriptRef
    from transcript_backends.store import CompactionPolicy, CompactionResult
    from transcript_backends.verifying import VerifyReport

__all__ = [
    "AsyncBackgroundCompactor",
    "AsyncFollower",
    "AsyncIteration",
    "AsyncObjectTranscriptStore",
    "AsyncSegmentStream",
    "AsyncStateStore",
    "AsyncTranscriptWriter",
    "Opening",
    "StateStore",
    "copy_transcript",
    "diagnose",
    "open_store",
]

_LONG = 64 * 1024  # characters


# --- reading ----------------------------------------------------------------------------------------------------------


class AsyncFollower(AsyncIterator[Record]):
    """A `Follower` whose waiting takes no thread. Not for several tasks at once.

    A cancelled ``anext`` loses nothing: the next one goes on. It may be called with a timeout, again and again.
    """

    def __init__(
        self,
        threads: Threads,
        follower: Follower,
        *,
        stop_when_idle: float | None,
        min_interval: float,
        max_interval: float,
    ) -> None:
        self._threads, self._follower = threads, follower
        self._stop_when_idle, self._intervals = stop_when_idle, (min_interval, max_interval)
        self._coming: AsyncIteration[Record] | None = None
        self._closed = Event()
        self._pause = 0.0
        self._due = self._looked = self._active = time.monotonic()

    @property
    def cursor(self) -> str:
        """See `Follower.cursor`."""
        return self._follower.cursor

    async def __anext__(self) -> Record:
        if not self._pause:
            self._active = time.monotonic()
        while not self._closed.is_set():
            if self._coming is None:
                until = self._due if self._stop_when_idle is None else min(self._due, self._active + self._stop_when_idle)
                with move_on_after(until - time.monotonic()):
                    await self._closed.wait()
                    break
                self._looked = time.monotonic()
                self._coming = AsyncIteration(self._threads, self._follower._look, may_resume=True)
            try:
                record = await anext(self._coming)
            except StopAsyncIteration:
                self._coming = None
                shortest, longest = self._intervals
                self._pause = min(max(2 * self._pause, shortest), longest)
                self._due = time.monotonic() + self._pause * (0.75 + self._follower._clock.jitter() / 2)
                if self._stop_when_idle is not None and max(self._looked - self._active, 0) >= self._stop_when_idle:
                    break
                continue
            self._pause = 0.0
            return self._follower._took(record)
        raise StopAsyncIteration

    async def close(self) -> None:
        """End the iteration, also from another task."""
        self._closed.set()
        if self._coming is not None:
            await self._coming.aclose()

    aclose = close

    async def __aenter__(self) -> AsyncFollower:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


class AsyncSegmentStream:
    """The bytes of a segment. An async context manager; a cancelled `read` closes it, since nobody knows what comes next."""

    def __init__(self, threads: Threads, stream: BinaryIO) -> None:
        self._threads, self._stream = threads, stream
        self._cut_short = False

    async def read(self, size: int = -1, /) -> bytes:
        """So many bytes, fewer at the end only; -1: all that is left."""
        if self._cut_short:
            raise StoreClosedError("a read of this segment was cancelled; open it again")
        try:
            return await self._threads.run(partial(self._stream.read, size))
        except get_cancelled_exc_class():
            self._cut_short = True
            in_background(self._stream.close)
            raise

    async def close(self) -> None:
        """Give the connection back."""
        await self._threads.finish(self._stream.close)

    async def __aenter__(self) -> AsyncSegmentStream:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


# --- writing ----------------------------------------------------------------------------------------------------------


class AsyncTranscriptWriter:
    """A `TranscriptWriter` for the tasks of one event loop. An async context manager, which flushes even when cancelled."""

    def __init__(
        self, threads: Threads, writer: TranscriptWriter, *, when_full: Literal["block", "raise"], has_journal: bool
    ) -> None:
        self._threads, self._writer, self._when_full, self._has_journal = threads, writer, when_full, has_journal
        self._closing = threading.Lock()
        self.ref, self.writer_id = writer.ref, writer.writer_id

    @property
    def state(self) -> WriterState:
        """See `TranscriptWriter.state`."""
        return self._writer.state

    async def append(self, entry: Mapping[str, Any] | bytes | Any) -> int:
        """See `TranscriptWriter.append`. No hop to a thread, but with a journal, or where encoding takes long.

        Where it is cancelled nothing was taken; in a thread it may have been.
        """
        await checkpoint()
        may_block = self._has_journal or _takes_long(entry)
        while True:
            try:
                if may_block:
                    return await self._threads.run(partial(self._writer.append, entry))
                return self._writer.append(entry)
            except StoreUnavailableError:
                if self._when_full == "raise":
                    raise
            with suppress(StoreUnavailableError):
                await self._threads.run(self._writer.flush)

    async def flush(self, timeout: float | None = None) -> None:
        """See `TranscriptWriter.flush`."""
        await self._threads.run(partial(self._writer.flush, timeout))

    async def close(self, timeout: float | None = None) -> None:
        """See `TranscriptWriter.close`."""

        def close() -> None:
            with self._closing:  # an earlier call may go on for nobody
                self._writer.close(timeout)

        await self._threads.run(close)

    async def __aenter__(self) -> AsyncTranscriptWriter:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        with CancelScope(shield=True):
            if kind is None or issubclass(kind, Exception):
                await self.close()
            else:
                await self._threads.run(self._writer._close_soon)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.writer_id} of {self.ref}>"


def _takes_long(entry: Any) -> bool:
    """Whether encoding and checking an entry may take more than a millisecond."""
    if not isinstance(entry, (Mapping, bytes, bytearray, memoryview)):
        return True  # nobody knows what is in it
    size, waiting = 0, [entry]
    while waiting and size < _LONG:
        each = waiting.pop()
        if isinstance(each, Mapping):
            size += len(each)
            waiting += each.values()
        elif isinstance(each, (list, tuple)):
            size += len(each)
            waiting += each
        else:
            size += len(each) if isinstance(each, (str, bytes, bytearray, memoryview)) else 1
    return size >= _LONG


# --- the store --------------------------------------------------------------------------------------------------------


class AsyncObjectTranscriptStore:
    """An `ObjectTranscriptStore` for tasks. An async context manager.

    Args:
        store: the store, for example one made from a client of your own.
        threads: how many calls may be under way at once in an event loop.

    Attributes:
        blocking: the store that was given.
    """

    def __init__(self, store: ObjectTranscriptStore, *, threads: int = THREADS) -> None:
        self.blocking = store
        self._threads = Threads(threads)

    @property
    def placeholders(self) -> list[str]:
        """The names that a runtime context must fill."""
        return self.blocking.placeholders

    @property
    def ids(self) -> Ids:
        """See `ObjectTranscriptStore`."""
        return self.blocking.ids

    # --- the protocol -------------------------------------------------------------------------------------------------

    async def append_segment(
        self,
        ref: TranscriptRef,
        seq_start: int,
        seq_end: int,
        writer_id: str,
        jsonl: bytes,
        *,
        offload_bytes: int | None = None,
    ) -> str:
        """See `ObjectTranscriptStore.append_segment`. Where it is cancelled, call it again: what was stored is recognised."""
        append = partial(self.blocking.append_segment, offload_bytes=offload_bytes)
        return await self._threads.run(partial(append, ref, seq_start, seq_end, writer_id, jsonl))

    async def list_segments(self, ref: TranscriptRef) -> list[SegmentInfo]:
        """See `ObjectTranscriptStore.list_segments`."""
        return await self._threads.run(partial(self.blocking.list_segments, ref))

    def read_segment(self, segment_key: str) -> Opening[AsyncSegmentStream]:
        """See `ObjectTranscriptStore.read_segment`; ``async with store.read_segment(key) as stream``."""

        async def open_segment() -> AsyncSegmentStream:
            stream = await self._threads.run(partial(self.blocking.read_segment, segment_key), undo=_close_stream)
            return AsyncSegmentStream(self._threads, stream)

        return Opening(open_segment())

    async def compact(self, ref: TranscriptRef, policy: CompactionPolicy | None = None) -> CompactionResult:
        """See `TranscriptStore.compact`."""
        return await self._threads.run(partial(self.blocking.compact, ref, policy))

    def with_runtime_context(self, rc: RuntimeContext) -> AsyncObjectTranscriptStore:
        """See `ObjectTranscriptStore.with_runtime_context`. The view shares this store's threads too."""
        view = AsyncObjectTranscriptStore(self.blocking.with_runtime_context(rc), threads=self._threads.most)
        view._threads = self._threads
        return self if view.blocking is self.blocking else view

    async def delete(self, ref: TranscriptRef, *, purge: bool = False) -> DeleteResult:
        """See `TranscriptStore.delete`."""
        return await self._threads.run(partial(self.blocking.delete, ref, purge=purge))

    # --- more than the protocol ---------------------------------------------------------------------------------------

    def records(
        self,
        ref: TranscriptRef,
        *,
        start_seq: int = 0,
        end_seq: int | None = None,
        limit: int | None = None,
        reverse: bool = False,
        resolve: bool = True,
    ) -> AsyncIteration[Record]:
        """See `ObjectTranscriptStore.records`; ``async for record in store.records(ref)``. Reads a little ahead."""
        return AsyncIteration(
            self._threads,
            partial(
                self.blocking.records,
                ref,
                start_seq=start_seq,
                end_seq=end_seq,
                limit=limit,
                reverse=reverse,
                resolve=resolve,
            ),
        )

    async def tail(self, ref: TranscriptRef, n: int, *, resolve: bool = True) -> list[Record]:
        """See `ObjectTranscriptStore.tail`."""
        return await self._threads.run(partial(self.blocking.tail, ref, n, resolve=resolve))

    def follow(
        self,
        ref: TranscriptRef,
        *,
        cursor: str | None = None,
        stop_when_idle: float | None = None,
        min_interval: float = 0.3,
        max_interval: float = 10.0,
        resolve: bool = True,
        last: int | None = None,
    ) -> AsyncFollower:
        """See `ObjectTranscriptStore.follow`; ``async for record in store.follow(ref)``."""
        follower = self.blocking.follow(
            ref,
            cursor=cursor,
            stop_when_idle=stop_when_idle,
            min_interval=min_interval,
            max_interval=max_interval,
            resolve=resolve,
            last=last,
        )
        return AsyncFollower(
            self._threads,
            follower,
            stop_when_idle=stop_when_idle,
            min_interval=min_interval,
            max_interval=max_interval,
        )

    def writer(
        self,
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
    ) -> Opening[AsyncTranscriptWriter]:
        """See `ObjectTranscriptStore.writer`; ``async with store.writer(ref) as writer``."""

        async def open_writer() -> AsyncTranscriptWriter:
            writer = await self._threads.run(
                partial(
                    self.blocking.writer,
                    ref,
                    writer_id=writer_id,
                    spool_dir=spool_dir,
                    max_records=max_records,
                    max_bytes=max_bytes,
                    max_age=max_age,
                    max_pending_bytes=max_pending_bytes,
                    when_full="raise" if when_full == "block" else when_full,  # it is a task that waits, not a thread
                    offload_bytes=offload_bytes,
                ),
                undo=TranscriptWriter.close,
            )
            return AsyncTranscriptWriter(self._threads, writer, when_full=when_full, has_journal=spool_dir is not None)

        return Opening(open_writer())

    async def next_seq(self, ref: TranscriptRef) -> int:
        """See `ObjectTranscriptStore.next_seq`."""
        return await self._threads.run(partial(self.blocking.next_seq, ref))

    async def own_writer_id(self, ref: TranscriptRef, writer_id: str) -> str:
        """See `ObjectTranscriptStore.own_writer_id`."""
        return await self._threads.run(partial(self.blocking.own_writer_id, ref, writer_id))

    def list_refs(
        self,
        tenant: str | None = None,
        agent_id: str | None = None,
        *,
        on_skipped: Callable[[Skipped], object] | None = None,
    ) -> AsyncIteration[TranscriptRef]:
        """See `ObjectTranscriptStore.list_refs`; ``async for ref in store.list_refs()``. A thread calls ``on_skipped``."""
        return AsyncIteration(self._threads, partial(self.blocking.list_refs, tenant, agent_id, on_skipped=on_skipped))

    async def glance(self) -> Glance:
        """See `ObjectTranscriptStore.glance`."""
        return await self._threads.run(self.blocking.glance)

    async def verify(self, ref: TranscriptRef, *, repair: bool = False) -> VerifyReport:
        """See `ObjectTranscriptStore.verify`."""
        return await self._threads.run(partial(self.blocking.verify, ref, repair=repair))

    async def estimate_compaction(self, ref: TranscriptRef, policy: CompactionPolicy | None = None) -> CompactionEstimate:
        """See `ObjectTranscriptStore.estimate_compaction`."""
        return await self._threads.run(partial(self.blocking.estimate_compaction, ref, policy))

    @property
    def identity(self) -> str:
        """See `ObjectTranscriptStore.identity`."""
        return self.blocking.identity

    def compactor(
        self,
        policy: CompactionPolicy | None = None,
        *,
        interval: float = 600.0,
        refs: Callable[[], Iterable[TranscriptRef]] | None = None,
        on_error: Callable[[TranscriptRef | None, BaseException], object] | None = None,
    ) -> AsyncBackgroundCompactor:
        """See `ObjectTranscriptStore.compactor`; ``refs`` and ``on_error`` are called in its thread."""
        compactor = self.blocking.compactor(policy, interval=interval, refs=refs, on_error=on_error)
        return AsyncBackgroundCompactor(self._threads, compactor)

    async def close(self) -> None:
        """See `ObjectTranscriptStore.close`. What goes on for nobody in a thread may fail then."""
        await self._threads.finish(self.blocking.close)

    async def __aenter__(self) -> AsyncObjectTranscriptStore:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __str__(self) -> str:
        return str(self.blocking)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), threads=self._threads.most), (self.blocking,)


def _close_stream(stream: BinaryIO) -> None:
    stream.close()


class AsyncBackgroundCompactor:
    """A `BackgroundCompactor` that a task can stop. An async context manager."""

    def __init__(self, threads: Threads, compactor: BackgroundCompactor) -> None:
        self._threads, self._compactor = threads, compactor

    @property
    def rounds(self) -> int:
        """How many are complete."""
        return self._compactor.rounds

    @property
    def errors(self) -> int:
        """How many things went wrong."""
        return self._compactor.errors

    @property
    def last_error(self) -> BaseException | None:
        """The last of them."""
        return self._compactor.last_error

    @property
    def totals(self) -> CompactionTotals:
        """What has been done so far."""
        return self._compactor.totals

    @property
    def running(self) -> bool:
        """Whether its thread is alive."""
        return self._compactor.running

    async def stop(self, timeout: float | None = None) -> bool:
        """See `BackgroundCompactor.stop`."""
        await self._threads.finish(partial(self._compactor.stop, timeout))
        return not self.running

    async def __aenter__(self) -> AsyncBackgroundCompactor:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._compactor!r}>"


# --- functions --------------------------------------------------------------------------------------------------------


def open_store(url: str | None = None, /, *, threads: int = THREADS, **options: Any) -> Opening[AsyncObjectTranscriptStore]:
    """Open the store a URL names, as `transcript_backends.open_store` does, with ``async with`` or ``await``.

    Args:
        url, **options: as there.
        threads: how many calls may be under way at once in an event loop.
    """

    async def opened() -> AsyncObjectTranscriptStore:
        opening = Threads(1)
        store = await opening.run(lambda: blocking.open_store(url, **options), undo=lambda store: store.close())
        return AsyncObjectTranscriptStore(store, threads=threads)

    return Opening(opened())


async def copy_transcript(
    source: AsyncObjectTranscriptStore,
    destination: AsyncObjectTranscriptStore,
    ref: TranscriptRef,
    *,
    verify: Literal["all", "new", "off"] = "all",
    dry_run: bool = False,
) -> CopyResult:
    """Copy what is missing, as `transcript_backends.copy_transcript` does."""
    ours, theirs = source.blocking, destination.blocking
    return await source._threads.run(lambda: blocking.copy_transcript(ours, theirs, ref, verify=verify, dry_run=dry_run))


def diagnose(url: str | None = None, /, **options: Any) -> AsyncIteration[Check]:
    """Check a store step by step, as `transcript_backends.diagnose` does."""
    return AsyncIteration(Threads(1), lambda: blocking.diagnose(url, **options))
