"""Run the benchmarks, or some of them; write figures, tables and pictures."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks import ROOT, plots, report, running
from benchmarks.measuring import cores
from benchmarks.scale import written
from benchmarks.workloads import ALL, BY_NAME, Workload

RESULTS = ROOT / "benchmarks" / "results"
FIGURES = "figures.json"
DOCUMENT = ROOT / "docs" / "performance.md"
_PACKAGES = (
    *("boto3", "aiobotocore", "google-cloud-storage", "azure-storage-blob", "obstore", "strands-agents"),
    *("fsspec", "msgspec", "pydantic", "uvloop"),
)


def main() -> None:
    arguments = _arguments()
    whole = not (arguments.quick or arguments.only)
    directory = arguments.results or (RESULTS if whole else None)
    if arguments.report:
        run = json.loads((RESULTS / FIGURES).read_text())
    else:
        chosen = [BY_NAME[name] for name in arguments.only] if arguments.only else [each for each in ALL if not each.asked_for]
        run = _run(chosen, 1 if arguments.quick else arguments.rounds, quick=arguments.quick)
    tables = report.tables(run)
    if directory:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / FIGURES).write_text(_as_json(run))
        for name, content in tables.items():
            (directory / f"{name}.md").write_text(content + "\n")
        if importlib.util.find_spec("matplotlib"):
            plots.draw(run, directory)
    if directory == RESULTS:
        DOCUMENT.write_text(written(DOCUMENT.read_text(), tables))
    print(tables["workloads"] if arguments.only else tables["goals"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", metavar="NAME", action="append", choices=sorted(BY_NAME), help="this workload; can be repeated"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of each workload (5)")
    parser.add_argument("--quick", action="store_true", help="one round of few operations, to see that all works")
    parser.add_argument("--results", type=Path, help="directory to write to; a whole run writes to benchmarks/results")
    parser.add_argument("--report", action="store_true", help="run nothing; make tables and pictures of the last whole run")
    return parser.parse_args()


def _as_json(run: dict[str, Any]) -> str:
    """A sample on each line, so that one run can be compared with another."""
    facts = json.dumps({name: value for name, value in run.items() if name != "samples"}, indent=1)
    return facts.removesuffix("\n}") + ',\n "samples": [\n  ' + ",\n  ".join(map(json.dumps, run["samples"])) + "\n ]\n}\n"


def _run(chosen: Sequence[Workload], rounds: int, *, quick: bool) -> dict[str, Any]:
    began = time.monotonic()
    samples = running.run(chosen, rounds, quick=quick)
    versions = {name: version for name in _PACKAGES if (version := _version(name))}
    system = f"{platform.system()} {platform.release()}"
    return {
        "machine": f"{cores()} cores, {_processor()}, {system}, Python {platform.python_version()}",
        "when": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "minutes": (time.monotonic() - began) / 60,
        "rounds": rounds,
        "quick": quick,
        "versions": versions,
        "samples": samples,
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    """The processor's name, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
