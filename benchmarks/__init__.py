"""What this package costs, beside what else people use: ``python -m benchmarks``, or ``make bench``."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "localstack"))  # the launcher of the real servers
