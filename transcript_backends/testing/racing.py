"""Making threads do something at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")

ROUNDS = 50
CREATORS = 16


def all_at_once(pool: ThreadPoolExecutor, calls: Sequence[Callable[[], _T]]) -> list[_T | Exception]:
    """Run calls in as many threads of the pool, released together; gives their results or exceptions in order."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], _T]) -> _T | Exception:
        barrier.wait(timeout=60)
        try:
            return call()
        except Exception as error:
            return error

    return list(pool.map(run, calls))
