"""Making threads do something at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, TypeVar

_T = TypeVar("_T")


class Racing:
    """How hard a contract races. Override where a service gets slow as many want one key.

    Attributes:
        rounds: how often a race is run.
        creators: how many run it.
    """

    rounds: ClassVar[int] = 20
    creators: ClassVar[int] = 16


def all_at_once(calls: Sequence[Callable[[], _T]]) -> list[_T | Exception]:
    """Run calls in as many threads, released together; gives their results or exceptions in order."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], _T]) -> _T | Exception:
        barrier.wait(timeout=60)
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def many_at_a_time(call: Callable[[int], object], count: int) -> None:
    """Call with each number below ``count``, in a few threads, to be done sooner."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(call, range(count)))
