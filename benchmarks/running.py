"""Rounds: in each, every client in turn, in an order that changes, in a process of its own."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import localstack_servers

from benchmarks import ROOT
from benchmarks.figures import Sample
from benchmarks.places import NewPlace, Where, places
from benchmarks.workloads import Workload

_LONGEST = 300  # seconds a client may take in a round


def run(
    workloads: Sequence[Workload], rounds: int, *, quick: bool = False, tell: Callable[[str], object] = print
) -> list[Sample]:
    """Run workloads; gives what each client has measured in each round."""
    samples: list[Sample] = []
    for where, there in _by_place(workloads):
        with places(where) as new_place:
            for number in range(min(rounds, max(each.rounds for each in there))):
                jobs = list(_jobs([each for each in there if number < each.rounds]))
                random.Random(number).shuffle(jobs)
                for client, names in jobs:
                    tell(f"{where}, round {number + 1}: {client}")
                    samples += _measure(new_place, client, names, number, quick=quick)
    return samples


def _by_place(workloads: Iterable[Workload]) -> Iterable[tuple[Where, list[Workload]]]:
    places: defaultdict[Where, list[Workload]] = defaultdict(list)
    for each in workloads:
        places[each.where].append(each)
    return places.items()


def _jobs(workloads: Sequence[Workload]) -> Iterator[tuple[str, list[str]]]:
    """Clients, each with the workloads that one process does for it."""
    for client in dict.fromkeys(name for each in workloads for name in each.clients):
        together = [each.name for each in workloads if client in each.clients and not each.alone]
        if together:
            yield client, together
        yield from ((client, [each.name]) for each in workloads if client in each.clients and each.alone)


def _measure(new_place: NewPlace, client: str, names: list[str], number: int, *, quick: bool) -> list[Sample]:
    with new_place() as place:
        job = {"place": place._asdict(), "client": client, "workloads": names, "round": number, "quick": quick}
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.child", json.dumps(job)],
            env={**_environment(), **localstack_servers.ENVIRONMENT},
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=_LONGEST,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{client} failed in {', '.join(names)}: {done.stderr[-3000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _environment() -> dict[str, str]:
    """Without the configuration and the credentials of whoever runs this."""
    foreign = ("AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR_HOST", "TRANSCRIPT_STORE_URL")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {
        **kept,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
