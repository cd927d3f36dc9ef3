"""Calls that hold up Ctrl-C until they are done: those of the main thread, which alone hears of it, are made by another one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")

_idle: list[_Helper] = []


class _Helper:
    """A thread that makes one call after the other. A daemon: nobody waits for a call that was interrupted."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[tuple[Any, BaseException | None]]]] = SimpleQueue()
        threading.Thread(target=self._work, name="calls of the main thread", daemon=True).start()

    def run(self, call: Callable[[], _T]) -> _T:
        outcome: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._calls.put((call, outcome))
        result, error = outcome.get()  # which a signal interrupts
        _idle.append(self)
        if error is not None:
            raise error
        returned: _T = result
        return returned

    def _work(self) -> None:
        while True:
            call, outcome = self._calls.get()
            try:
                outcome.put((call(), None))
            except BaseException as error:
                outcome.put((None, error))
            del call, outcome


def interruptibly(call: Callable[[], _T]) -> _T:
    """What a call gives or raises. In the main thread an exception that a signal raises does not wait for it."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    return (_idle.pop() if _idle else _Helper()).run(call)
