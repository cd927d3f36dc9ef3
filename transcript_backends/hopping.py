"""From tasks to threads and back: blocking calls, iterators and openings for asyncio and trio, which `aio` is made of.

A thread can't be killed: where a caller is cancelled, the call it has begun goes on, and nobody waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from transcript_backends.errors import StoreClosedError
from transcript_backends.extras import needed_by
from transcript_backends.records import Record

with needed_by("transcript_backends.aio", "aio", "anyio"):
    from anyio import CapacityLimiter, get_cancelled_exc_class, sleep, to_thread
    from anyio.lowlevel import RunVar

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Closable = TypeVar("_Closable", bound=AbstractAsyncContextManager[Any])

THREADS = 16  # of a store, where nobody says otherwise

_POLL = 0.02  # seconds between two looks at a thread that goes on for nobody
_BATCH_ITEMS, _BATCH_BYTES, _BATCH_SECONDS = 256, 1024 * 1024, 0.05  # fetched in one hop; the first to be reached counts


class Threads:
    """Runs blocking calls in threads: ``most`` at a time in an event loop, and as many again whose callers were cancelled."""

    def __init__(self, most: int) -> None:
        if most < 1:
            raise ValueError(f"threads must be 1 or more, not {most!r}")
        self.most = most
        self._left: set[Future[Any]] = set()  # calls that nobody waits for any more

    async def run(self, call: Callable[[], _T], *, undo: Callable[[_T], object] | None = None) -> _T:
        """What a call gives; where nobody is there to take it any more, ``undo`` is."""
        while len(self._left) >= self.most:
            await sleep(_POLL)
        future: Future[list[_T]] = Future()

        def work() -> _T:
            nonlocal call
            if not future.set_running_or_notify_cancel():
                raise CancelledError
            given: list[_T] = []
            try:
                given.append(call())
                return given[0]
            finally:
                del call  # a thread that is idle may remember its last work
                future.set_result(given)

        def ended(_: object) -> None:
            self._left.discard(future)
            for each in future.result():
                if undo is not None:
                    in_background(partial(undo, each))

        try:
            return await to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter())
        except BaseException:
            if not future.cancel():  # it has begun
                self._left.add(future)
                future.add_done_callback(ended)
            raise

    async def finish(self, call: Callable[[], object]) -> None:
        """Run what must be run, and may be twice; where the caller is cancelled, without waiting for it."""
        try:
            await self.run(call)
        except get_cancelled_exc_class():
            in_background(call)
            raise

    def _limiter(self) -> CapacityLimiter:
        limiters = _limiters.get(None)
        if limiters is None:
            _limiters.set(limiters := WeakKeyDictionary())
        if self not in limiters:
            limiters[self] = CapacityLimiter(self.most)
        return limiters[self]


_limiters: RunVar[WeakKeyDictionary[Threads, CapacityLimiter]] = RunVar("transcript_backends")  # those of an event loop


def in_background(call: Callable[[], object]) -> None:
    """Run what may block where nobody can wait for it. Fit for finalizers: `threading.Thread` would take a lock, and wait."""

    def work() -> None:
        try:
            call()
        except Exception as error:
            _log.warning("what had to be closed could not be: %s: %s", type(error).__name__, error, exc_info=error)

    with suppress(RuntimeError):  # the interpreter is about to end
        start_new_thread(work, ())


class Opening(Generic[_Closable]):
    """Something about to be opened: ``async with opening as it`` also closes it, ``it = await opening`` does not."""

    def __init__(self, coroutine: Coroutine[Any, Any, _Closable]) -> None:
        self._coroutine = coroutine
        self._opened: _Closable | None = None

    def __await__(self) -> Generator[Any, Any, _Closable]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> _Closable:
        self._opened = await self._coroutine
        return self._opened

    async def __aexit__(self, *exc_info: Any) -> None:
        assert self._opened is not None
        await self._opened.__aexit__(*exc_info)


class AsyncIteration(AsyncIterator[_T]):
    """Iterates over what a blocking iterator gives, fetched in threads, up to some hundred items a hop.

    It holds a connection until it is exhausted, closed or dropped: ``async for`` does with it what is right, also where it is
    left early. A cancelled ``anext`` closes it. An async context manager; not for several tasks at once.
    """

    def __init__(self, threads: Threads, begin: Callable[[], Iterator[_T]], *, may_resume: bool = False) -> None:
        self._threads, self._begin, self._may_resume = threads, begin, may_resume
        self._items: Iterator[_T] | None = None
        self._fetching = threading.Lock()
        self._ready: deque[_T] = deque()
        self._error: BaseException | None = None
        self._ended = False

    async def __anext__(self) -> _T:
        while not self._ready:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._ended:
                raise StopAsyncIteration
            if self._fetching.locked():  # for an earlier call, which was cancelled
                await sleep(_POLL)
                continue
            try:
                await self._threads.run(self._fetch)
            except BaseException:
                if not self._may_resume:
                    self._end(StoreClosedError("this iteration was cancelled, and closed; begin another"))
                    in_background(self._close)
                raise
        return self._ready.popleft()

    async def aclose(self) -> None:
        """End the iteration, and give its connection back."""
        self._end()
        if self._items is not None or self._fetching.locked():
            await self._threads.finish(self._close)

    async def __aenter__(self) -> AsyncIteration[_T]:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if self._items is not None:
            in_background(partial(_close, self._items))

    def _end(self, error: BaseException | None = None) -> None:
        self._ended, self._error = True, error
        self._ready = deque()  # a thread may still be filling the other one

    # --- in a thread --------------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        with self._fetching:
            until, size, ready = time.monotonic() + _BATCH_SECONDS, 0, self._ready
            try:
                if self._items is None and not self._ended:
                    self._items = self._begin()
                while self._items is not None and not self._ended:
                    item = next(self._items)
                    ready.append(item)
                    size += len(item.line) if isinstance(item, Record) else 0
                    if len(ready) >= _BATCH_ITEMS or size >= _BATCH_BYTES or time.monotonic() >= until:
                        return
            except StopIteration:
                self._items, self._ended = None, True
            except BaseException as error:
                if not self._ended:
                    self._items, self._ended, self._error = None, True, error

    def _close(self) -> None:
        with self._fetching:
            items, self._items = self._items, None
            _close(items)


def _close(items: object) -> None:
    if isinstance(items, Generator):
        items.close()
