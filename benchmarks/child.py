"""One client, one round: ``python -m benchmarks.child JOB`` prints a line of JSON for each workload it has run."""

from __future__ import annotations

import json
import sys

from benchmarks.measuring import Bench
from benchmarks.places import Place
from benchmarks.workloads import BY_NAME
from transcript_backends import InvalidURLError


def main(job: str) -> None:
    told = json.loads(job)
    place = Place(**told["place"])
    bench = Bench(told["client"], place, quick=told["quick"])
    for name in told["workloads"]:
        workload = BY_NAME[name]
        place.reset()
        bench.result = {"workload": name, "client": bench.name, "round": told["round"]}
        try:
            if workload.opened and bench.client is None:
                bench.open()
            workload.run(bench)
        except (ImportError, InvalidURLError) as error:  # a package, or a setting of this one, that is not there
            bench.note(missing=str(error))
        print(json.dumps(bench.result), flush=True)
    bench.close()


if __name__ == "__main__":
    main(sys.argv[1])
