"""Time and chance, as an injected component: tests and simulations bring their own."""

from __future__ import annotations

import os
import time
from typing import Protocol


class Clock(Protocol):
    """What the library asks of time and chance."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""

    def sleep(self, seconds: float) -> None: ...

    def jitter(self) -> float:
        """A random number, 0 <= x < 1."""


class SystemClock:
    """The machine's."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def jitter(self) -> float:
        return int.from_bytes(os.urandom(4), "big") / 2**32
