"""A clock that never waits: a pause is written down, and time passes by as much."""

from __future__ import annotations

import random


class FakeClock:
    def __init__(self, seed: int = 7) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self._random = random.Random(seed)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def jitter(self) -> float:
        return self._random.random()
