"""``python -m mutants.schedules N WORLD``: run N schedules of the simulation in one process, up to the first that fails."""

import logging
import sys

from simulation.batches import WORLDS
from simulation.outcome import FailedSchedule

logging.disable()
for seed in range(int(sys.argv[1])):
    try:
        WORLDS[sys.argv[2]](seed)
    except FailedSchedule as failure:
        sys.exit(failure.reason)
