"""`EventLog` for asyncio and trio: the same names, to be awaited. See docs/async.md."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable
from functools import partial
from typing import Literal

from transcript_backends.aio import AsyncFollower, AsyncObjectTranscriptStore, Opening
from transcript_backends.events.log import EventLog, Events, EventStream, Place
from transcript_backends.events.paging import EventProblem, Page
from transcript_backends.events.sending import Given
from transcript_backends.events.types import Event
from transcript_backends.refs import TranscriptRef


class AsyncEventLog:
    """An `EventLog` for tasks.

    Args:
        store: where the transcript is.
        ref: names it.
    """

    def __init__(self, store: AsyncObjectTranscriptStore, ref: TranscriptRef) -> None:
        self._threads, self._log = store._threads, EventLog(store.blocking, ref)
        self.ref = ref

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.ref}>"

    async def send(self, events: Iterable[Given]) -> Events:
        """See `EventLog.send`. Where it is cancelled, the events may be stored or not: send them again, with their ids."""
        return await self._threads.run(partial(self._log.send, list(events)))

    async def append(self, events: Iterable[Given]) -> Events:
        """See `EventLog.append`. Where it is cancelled, as `send`."""
        return await self._threads.run(partial(self._log.append, list(events)))

    async def list(
        self,
        *,
        after: Place | None = None,
        before: Place | None = None,
        limit: int | None = None,
        types: Collection[str] | None = None,
        thread: str | None = None,
        order: Literal["asc", "desc"] = "asc",
    ) -> Page:
        """See `EventLog.list`."""
        read = partial(self._log.list, after=after, before=before, limit=limit, types=types, thread=thread, order=order)
        return await self._threads.run(read)

    def stream(
        self,
        last_event_id: Place | None = None,
        *,
        types: Collection[str] | None = None,
        thread: str | None = None,
        stop_when_idle: float | None = None,
        min_interval: float = 0.3,
        max_interval: float = 10.0,
        on_problem: Callable[[EventProblem], object] | None = None,
    ) -> Opening[AsyncEventStream]:
        """See `EventLog.stream`; ``async with log.stream() as stream``."""

        async def open_stream() -> AsyncEventStream:
            begin = partial(
                self._log.stream,
                last_event_id,
                types=types,
                thread=thread,
                stop_when_idle=stop_when_idle,
                min_interval=min_interval,
                max_interval=max_interval,
                on_problem=on_problem,
            )
            stream = await self._threads.run(begin)
            follower = AsyncFollower(
                self._threads,
                stream._follower,
                stop_when_idle=stop_when_idle,
                min_interval=min_interval,
                max_interval=max_interval,
            )
            return AsyncEventStream(stream, follower)

        return Opening(open_stream())


class AsyncEventStream(AsyncIterator[Event]):
    """An `EventStream` whose waiting takes no thread. Not for several tasks at once; a cancelled ``anext`` loses nothing."""

    def __init__(self, stream: EventStream, follower: AsyncFollower) -> None:
        self._stream, self._follower = stream, follower

    @property
    def cursor(self) -> str:
        """See `EventStream.cursor`."""
        return self._stream.cursor

    async def __anext__(self) -> Event:
        while True:
            event = self._stream._event(await anext(self._follower))
            if event is not None:
                return event

    async def close(self) -> None:
        """End the iteration, also from another task."""
        await self._follower.close()

    aclose = close

    async def __aenter__(self) -> AsyncEventStream:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()
