"""A driver around another that does not wait for its slowest gets: it asks a second time, and takes what comes first.

One get in a hundred takes ten times as long as the others on object stores, and whoever reads segments in order waits for it.
Objects never change, so asking twice is safe; writes are never repeated here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import cached_property
from statistics import median

from transcript_backends.drivers.driver import Body, ObjectStore
from transcript_backends.drivers.wrappers import WrapperObjectStore
from transcript_backends.forks import tell_after_fork
from transcript_backends.workers import Crew, Workers

_SLOW = 3  # times the median
_SHORTEST = 0.005  # seconds: below, it is this machine that is slow
_KNOWN, _EVERY = 100, 16  # durations that make a median, and how many of them are new when it is taken again
_AT_MOST = 0.05  # of all gets are asked again, so that a store in trouble is not given twice the work


class HedgedObjectStore(WrapperObjectStore):
    """Repeats a get that takes three times as long as the median of the last ones; at most one in twenty.

    What counts is the time until the answer begins: a body is read from where it came. A failure counts where both fail.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._durations: deque[float] = deque(maxlen=_KNOWN)
        self._patience: float | None = None
        self._gets = self._repeated = 0
        self._lock = threading.Lock()
        tell_after_fork(self)

    @cached_property
    def _workers(self) -> Workers:
        return Workers(Crew(), 2 * self.capabilities.concurrency)

    def _begin(self, ask: Callable[[], Body]) -> Future[Body]:
        future: Future[Body] = Future()

        def work() -> None:
            try:
                future.set_result(ask())
            except BaseException as error:
                future.set_exception(error)

        self._workers.begin(work)
        return future

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> Body:
        def ask() -> Body:
            began = time.monotonic()
            body = self.inner.get(key, start=start, end=end)
            self._learn(time.monotonic() - began)
            return body

        first = self._begin(ask)
        if wait([first], self._patience).done or not self._may_repeat():
            return first.result()
        asked = {first, self._begin(ask)}
        answered: set[Future[Body]] = set()
        while asked and all(each.exception() is not None for each in answered):
            done, asked = wait(asked, return_when=FIRST_COMPLETED)
            answered |= done
        taken = next((each for each in answered if each.exception() is None), first)
        for each in (answered | asked) - {taken}:
            each.add_done_callback(_drop)
        return taken.result()

    def close(self) -> None:
        self._stop()
        super().close()

    def _stop(self) -> None:
        if "_workers" in self.__dict__:
            self._workers.stop()

    __del__ = _stop

    def after_fork(self) -> None:
        """The threads are the parent's."""
        self.__dict__.pop("_workers", None)
        self._lock = threading.Lock()

    def _may_repeat(self) -> bool:
        with self._lock:
            may = self._repeated < _AT_MOST * self._gets
            self._repeated += may
            return may

    def _learn(self, seconds: float) -> None:
        with self._lock:
            self._durations.append(seconds)
            self._gets += 1
            if self._gets % _EVERY == 0:
                self._patience = max(_SLOW * median(self._durations), _SHORTEST)


def _drop(late: Future[Body]) -> None:
    if not late.cancelled() and late.exception() is None:
        late.result().stream.close()
