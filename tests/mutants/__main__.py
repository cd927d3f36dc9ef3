"""``python -m mutants``: break each rule of the product, one at a time, and see that a test notices."""

from __future__ import annotations

import argparse
import re
import sys
import time

from mutants import table
from mutants.mutations import load
from mutants.running import BaselineError, Result, run


def main() -> bool:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--only", default="", metavar="PATTERN", help="those whose `area: rule` has a match of this pattern")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    mutations = load()
    chosen = [each for each in mutations if re.search(arguments.only, f"{each.area}: {each.name}")]
    began = time.monotonic()
    results: list[Result] = []
    print(f"{len(chosen)} mutations; the product as it is comes first", flush=True)
    try:
        for each in run(chosen, arguments.processes):
            results.append(each)
            mark = "" if each.is_fine else "  <-- not as the list says"
            print(
                f"{len(results):3}/{len(chosen)} {each.verdict:9} {each.seconds:5.1f} s  {each.mutation.area}: "
                f"{each.mutation.name} ({each.by}){mark}",
                flush=True,
            )
    except BaselineError as error:
        print(error)
        return False
    table.write(results, mutations)
    wrong = [each for each in results if not each.is_fine]
    caught = sum(each.verdict in ("caught", "timeout") for each in results)
    print(f"{len(results)} mutations, {caught} caught, {time.monotonic() - began:.0f} s")
    for each in wrong:
        print(f"{each.verdict}: {each.mutation.area}: {each.mutation.name}: {each.by}")
    return bool(results) and not wrong


if __name__ == "__main__":
    sys.exit(not main())
