"""Many schedules, on several cores."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Protocol

from simulation import schedules, writers
from simulation.outcome import FailedSchedule

BATCH = 100


class World(Protocol):
    """What a schedule leaves."""

    @property
    def trace(self) -> Sequence[object]:
        """A line for each step."""

    def story(self) -> str:
        """All that happened, as text."""


WORLDS: dict[str, Callable[[int], World]] = {"stores": schedules.run, "writers": writers.run}


def run_batch(world: str, seeds: range) -> tuple[int, int, list[str]]:
    """Run some schedules; returns how many there were, how many steps they took, and what failed."""
    steps, failed = 0, []
    for seed in seeds:
        try:
            steps += len(WORLDS[world](seed).trace)
        except FailedSchedule as failure:
            failed.append(failure.reason)
    return len(seeds), steps, failed


def run_batches(world: str, seeds: range, processes: int) -> Iterator[tuple[int, int, list[str]]]:
    """The same for many, batch by batch."""
    batches = [seeds[first : first + BATCH] for first in range(0, len(seeds), BATCH)]
    with ProcessPoolExecutor(processes, get_context("spawn"), logging.disable) as pool:
        yield from pool.map(partial(run_batch, world), batches)
