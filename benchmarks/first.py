"""What a process pays once: ``python -m benchmarks.first CLIENT PLACE`` opens a client, appends, and prints what that took."""

from __future__ import annotations

import json
import sys

from benchmarks.measuring import LINE_4K, Bench
from benchmarks.places import Place


def main(client: str, place: str) -> None:
    bench = Bench(client, Place(**json.loads(place)))
    with bench.measuring(1):
        bench.open()
        bench.client.append("first", 0, LINE_4K)
    print(json.dumps(bench.result))
    bench.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
