"""Threads that fetch for a reader, and that nobody has to wait for.

A reader may be dropped in the middle. Then a finalizer ends its generators: the garbage collector's, say, which runs in any
thread and between any two steps of a program, also where that thread holds a lock of the reader's or is one of those that
fetch for it. So what a finalizer reaches takes no lock and waits for nothing: `Workers.stop` only drops references and wakes
threads, which end by themselves. They are daemons, so that a program that ends does not wait for requests in flight either.

Whoever closes a reader does wait for them: `Crew`, `ClosableGenerator`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

_A = TypeVar("_A")
_T = TypeVar("_T")


class Crew:
    """The threads of one reading, and of the readings inside it.

    A context manager: at the end it waits for its threads, but not where a generator is left early, which may be a finalizer's
    doing. Stop their `Workers` before.
    """

    def __init__(self, outer: Crew | None = None) -> None:
        self._outer = outer
        self._threads: set[Thread] = set()

    def start(self, work: Callable[[], object]) -> None:
        """Run something in a new thread."""
        thread = Thread(target=work, name="fetching", daemon=True)
        thread.start()
        crew: Crew | None = self
        while crew is not None:
            crew._threads.difference_update([each for each in tuple(crew._threads) if not each.is_alive()])
            crew._threads.add(thread)
            crew = crew._outer

    def wait(self) -> None:
        """Wait until all threads have ended."""
        for thread in tuple(self._threads):
            thread.join()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        while error is not None and not isinstance(error, GeneratorExit):
            error = error.__context__  # closing may have failed
        if error is None:
            self.wait()


class Workers:
    """Runs calls in threads, at most so many at once, in order. What a call raises ends its thread: let it raise nothing.

    Args:
        crew: starts the threads, each when it is needed; they end when this is stopped.
        most: how many threads.
    """

    def __init__(self, crew: Crew, most: int) -> None:
        self._crew, self._most = crew, most
        self._wake: SimpleQueue[bool] = SimpleQueue()  # whose `put` is made for finalizers
        self._lock = Lock()  # for the three below
        self._not_begun: deque[Callable[[], object]] = deque()
        self._at_work = self._idle = 0  # threads

    def begin(self, call: Callable[[], object]) -> None:
        """Run a call as soon as a thread is free."""
        with self._lock:
            self._not_begun.append(call)
            is_one_more = self._at_work < self._most
            self._at_work += is_one_more
            is_there = is_one_more and self._idle > 0
            self._idle -= is_there
        if is_there:
            self._wake.put(True)
        elif is_one_more:
            self._crew.start(self._work)

    def stop(self) -> None:
        """Begin nothing more; threads end after the call they are at. Takes no lock and waits for nothing."""
        self._not_begun.clear()
        for _ in range(self._most):
            self._wake.put(False)

    def _work(self) -> None:
        """Run calls until none is left, and then wait to be woken: to be told of each call takes much longer."""
        call: Callable[[], object] | None
        while True:
            with self._lock:
                try:
                    call = self._not_begun.popleft()
                except IndexError:
                    call = None
                    self._at_work -= 1
                    self._idle += 1
            if call is not None:
                call()
            elif not self._wake.get():
                return


class Coming(Generic[_A, _T]):
    """What a worker gets for something: a future, at a tenth of its price.

    Args:
        get: called once, by `fetch`.
        of: what it is called with.
    """

    __slots__ = ("_error", "_get", "_has_come", "_is_dropped", "_result", "of")

    def __init__(self, get: Callable[[_A], _T], of: _A) -> None:
        self._get: Callable[[_A], _T] | None = get
        self.of = of
        self._result: _T | None = None
        self._error: BaseException | None = None
        self._is_dropped = False
        self._has_come = Lock()  # held until then
        self._has_come.acquire()

    def fetch(self) -> None:
        """Get it, or keep the error."""
        get, self._get = self._get, None
        assert get is not None
        try:
            self._result = get(self.of)
        except BaseException as error:
            self._error = error
        if self._is_dropped:
            self._result = None
        self._has_come.release()

    def result(self) -> _T:
        """What was got, or the error, once it has come."""
        with self._has_come:
            pass
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def drop(self) -> None:
        """Forget the result, also one that has yet to come: a stream closes itself when nobody knows it any more."""
        self._is_dropped = True
        self._result = None


class ClosableGenerator(Generator[_T, None, None]):
    """A generator that does more where it is closed than where it is dropped: no finalizer calls ``at_close``.

    Args:
        inner: the generator. A loop runs over this one itself, and pays nothing for what is around it.
        at_close: called after it is closed.
    """

    def __init__(self, inner: Generator[_T, None, None], at_close: Callable[[], object]) -> None:
        self._inner, self._at_close = inner, at_close

    def __iter__(self) -> Generator[_T, None, None]:
        return self._inner

    def __next__(self) -> _T:
        return next(self._inner)

    def send(self, value: None, /) -> _T:
        return self._inner.send(value)

    def throw(self, *error: Any) -> _T:
        return self._inner.throw(*error)

    def close(self) -> None:
        """End it, and wait until all that it holds is given back."""
        try:
            self._inner.close()
        finally:
            self._at_close()
