"""``python -m simulation SEED`` replays a schedule and prints it; ``--count N`` runs N of them from that seed on."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from simulation.batches import BATCH, WORLDS, run_batches
from simulation.outcome import FailedSchedule


def _run_many(world: str, seeds: range, processes: int) -> bool:
    began, done, steps, failures = time.monotonic(), 0, 0, 0
    for more_done, more_steps, failed in run_batches(world, seeds, processes):
        done, steps, failures = done + more_done, steps + more_steps, failures + len(failed)
        print("".join(f"{reason}\n" for reason in failed), end="", flush=True)
        if done == len(seeds) or done % (100 * BATCH) == 0:
            rate = done / (time.monotonic() - began)
            print(f"{done} schedules, {steps} steps, {failures} failed, {rate:.0f} schedules/s", flush=True)
    return not failures


def main() -> bool:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--count", type=int, default=0, help="run this many schedules, the first with SEED")
    parser.add_argument(
        "--of", choices=WORLDS, default="stores", help="readers, compactors and deletes; or writers on a machine"
    )
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    logging.disable()  # torn lines and the like are what this is about
    if arguments.count:
        return _run_many(arguments.of, range(arguments.seed, arguments.seed + arguments.count), arguments.processes)
    try:
        print(WORLDS[arguments.of](arguments.seed).story())
    except FailedSchedule as failure:
        print(failure)
        return False
    return True


if __name__ == "__main__":
    sys.exit(not main())
