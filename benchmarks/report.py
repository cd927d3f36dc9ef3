"""A run as Markdown: the goals, held or missed, and a table for each workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.figures import Figure, Figures, Spread, cpu, fact, rate, requests, seconds
from benchmarks.goals import ALL as GOALS
from benchmarks.goals import Goal
from benchmarks.scale import table
from benchmarks.workloads import ALL, Workload

_PLACES = {
    "s3": "S3, the stub",
    "gcs": "GCS, the stub",
    "azure": "Azure, the stub",
    "seaweedfs": "S3, SeaweedFS",
    "directory": "A directory",
    "here": "This process",
}
_FACTS = {
    "peak_mib": "peak, MiB",
    "p50_ms": "p50, ms",
    "p99_ms": "p99, ms",
    "p999_ms": "p99.9, ms",
    "lost": "records lost",
    "amplification": "bytes written, of the data",
}


def tables(run: Mapping[str, Any]) -> dict[str, str]:
    """The parts of docs/performance.md that a run fills, by name."""
    figures = Figures(run["samples"])
    return {"machine": machine(run, figures), "goals": goals(figures, quick=run["quick"]), "workloads": workloads(figures)}


def machine(run: Mapping[str, Any], figures: Figures) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    parts = [f"{run['machine']}; {run['rounds']} rounds on {run['when']}, {run['minutes']:.0f} minutes.", f"{versions}."]
    busy = [figures.values(workload, "raw sockets", _server_cpu) for workload in ("append-32", "read")]
    if all(busy):
        put, get = (Spread.of(values).middle for values in busy)
        parts.append(
            f"The stub takes {put:.0f} µs of CPU for an append and {get:.0f} µs for a get, so on a core of its own it could "
            f"answer {1e6 / put:,.0f} and {1e6 / get:,.0f} a second."
        )
    return "\n\n".join(parts)


def _server_cpu(sample: Mapping[str, Any]) -> float:
    return float(1e6 * sample["server_cpu_seconds"] / sample["operations"])


def goals(figures: Figures, *, quick: bool = False) -> str:
    """All goals; of a quick run those that are counted."""
    verdicts = {True: "held", False: "**missed**", None: "not measured"}
    rows = [
        (f"{goal.area}; {goal.promise}", _limit(goal), _spread(goal.measured(figures)), verdicts[goal.held(figures)])
        for goal in GOALS
        if goal.exact or not quick
    ]
    return table(("what", "goal", "median (least to most)", ""), rows)


def _limit(goal: Goal) -> str:
    sign = "≥" if goal.kind == "at least" else "≤"
    return f"{sign} {_number(goal.limit)} {goal.unit}".rstrip()


def workloads(figures: Figures) -> str:
    parts = []
    for where, place in _PLACES.items():
        shown = [_workload(each, figures) for each in ALL if each.where == where and each.name != "requests"]
        if any(shown):
            parts += [f"### {place}", *filter(None, shown)]
    return "\n\n".join(parts)


def _workload(workload: Workload, figures: Figures) -> str:
    """A workload's table; nothing where it was not run."""
    samples = {client: figures.samples(workload.name, client) for client in workload.clients}
    if not any(samples.values()):
        return ""
    once = all(each["operations"] == 1 for found in samples.values() for each in found)
    columns = {
        title: cells
        for title, figure in _columns(workload.unit, once=once).items()
        if any(cells := [_spread(figures.values(workload.name, client, figure)) for client in samples])
    }
    rows = [
        [client, *(cells[number] for cells in columns.values()), _times(workload, client, figures)]
        if samples[client]
        else [client, figures.missing(workload.name, client)]
        for number, client in enumerate(samples)
    ]
    rows += [[client, f"can't: {reason}"] for client, reason in workload.cannot.items()]
    title = f"**{workload.title[0].upper()}{workload.title[1:]}** (`{workload.name}`)"
    head = ["client", *columns, f"rate of {workload.rival}"]
    return "\n\n".join(filter(None, (title, table(head, rows), workload.remark)))


def _columns(unit: str, *, once: bool) -> dict[str, Figure]:
    """What is told of each client; ``once``: rates of a single operation say nothing."""
    first: dict[str, Figure] = {f"ms a {unit}": lambda sample: 1000 * seconds(sample)} if once else {f"{unit}s a second": rate}
    return {**first, "CPU each, µs": cpu, "requests each": requests, **{title: fact(name) for name, title in _FACTS.items()}}


def _times(workload: Workload, client: str, figures: Figures) -> str:
    ratios = figures.ratios((workload.name, client), (workload.name, workload.rival), rate)
    return f"{_number(Spread.of(ratios).middle)} x" if ratios else ""


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    middle, low, high = map(_number, Spread.of(values))
    return middle if low == high else f"{middle} ({low} to {high})"


def _number(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
