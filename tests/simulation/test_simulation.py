"""The library's own code under some thousands of schedules; `python -m simulation` runs more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from simulation.batches import WORLDS, run_batches

SCHEDULES = {"stores": 2500, "writers": 1200}
TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("world", WORLDS)
def test_no_schedule_breaks_the_contract(world: str) -> None:
    failures = [reason for _, _, failed in run_batches(world, range(SCHEDULES[world]), 2) for reason in failed]
    assert failures == []


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("seed", [4, 5])
def test_a_seed_always_gives_the_same_schedule(world: str, seed: int) -> None:
    stories = {
        subprocess.run(
            [sys.executable, "-m", "simulation", str(seed), "--of", world],
            cwd=TESTS,
            env={"PYTHONHASHSEED": str(hash_seed)},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for hash_seed in range(3)
    }
    assert len(stories) == 1
