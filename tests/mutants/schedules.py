"""``python -m mutants.schedules N``: run N schedules of the simulation in one process, up to the first that fails."""

import logging
import sys

from simulation.schedules import FailedSchedule, run

logging.disable()
for seed in range(int(sys.argv[1])):
    try:
        run(seed)
    except FailedSchedule as failure:
        sys.exit(failure.reason)
