"""What this package wants to reach, as data: each goal is held or missed by the run at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from benchmarks.figures import Figure, Figures, Sample, Spread, cpu, fact, rate, requests, seconds

_NAMES = {"sdk": "sdk engine", "obstore": "obstore engine", "hedged": "obstore engine, hedged"}
_NAMES.update(file="file store", entries="entries")
_ENGINES = ("sdk", "obstore")
_MIB = 1024 * 1024


class Goal(NamedTuple):
    """A promise: the median of what is measured is at least, or at most, so much.

    Attributes:
        area: what it is about.
        promise: what is measured.
        measured: one value for each round, nothing where it was not measured.
        unit: after the figures.
        exact: whether it is counted, so that a quick run on a busy machine tells it too.
    """

    area: str
    promise: str
    measured: Callable[[Figures], list[float]]
    kind: Literal["at least", "at most"]
    limit: float
    unit: str = "x"
    exact: bool = False

    def held(self, figures: Figures) -> bool | None:
        """None where it was not measured."""
        values = self.measured(figures)
        if not values:
            return None
        middle = Spread.of(values).middle
        return middle >= self.limit if self.kind == "at least" else middle <= self.limit


def _faster(area: str, workload: str, ours: str, rival: str, times: float) -> Goal:
    """At least so many times a rival's rate."""
    here, there = (workload, _NAMES[ours]), (workload, rival)
    return Goal(area, f"{ours}: rate of {rival}", lambda figures: figures.ratios(here, there, rate), "at least", times)


def _within(area: str, workload: str, ours: str, rival: str, share: float, figure: Figure, what: str) -> Goal:
    """At most such a share of what a rival takes."""
    here, there = (workload, _NAMES[ours]), (workload, rival)
    return Goal(area, f"{ours}: {what} of {rival}", lambda figures: figures.ratios(here, there, figure), "at most", share)


def _value(
    area: str, workload: str, ours: str, what: str, figure: Figure, most: float, unit: str = "", *, exact: bool = False
) -> Goal:
    """At most so much."""
    here = (workload, _NAMES[ours])
    return Goal(area, f"{ours}: {what}", lambda figures: figures.values(*here, figure), "at most", most, unit, exact)


def _of_bound(sample: Sample) -> float:
    """How many times the least that is possible at this latency."""
    return float(sample["seconds"] / sample["bound"])


def _counted(operation: str) -> Figure:
    """Requests of an operation, of those promised."""

    def share(sample: Sample) -> float:
        found = next(each for name, each in sample["counts"].items() if name.startswith(operation))
        return float(found["counted"] / found["promised"])

    return share


_COUNTS: dict[str, Figure] = {
    "an append, of 1": _counted("append"),
    "a list of n, of ceil(n/1000)": _counted("list"),
    "a read of n plain segments, of lists + n": _counted("read plain"),
    "a read of c compacted segments, of lists + 2c": _counted("read compacted"),
    "segments a reader meets while it grows, of 15 ceil(log16 n)": fact("worst_share"),
    "how often a byte is written, of 1 + ceil(log16 n)": fact("rewritten_share"),
}
_ONE, _MANY, _SLOW = "append 4 KiB, one at a time", "append 4 KiB, 32 at a time", "append 4 KiB, 32 at a time, 20 ms and a tail"
_LIST, _READ, _HEDGED = "list 10,000 segments, parsed", "cold read of 1,000 in order", "hedged gets"
_READ_SLOW = f"{_READ}, 20 ms and a tail"
_COMPACT, _LOCAL, _TYPED, _IMPORT = "compact 10,000 x 4 KiB", "a directory", "typed entries", "import transcript_backends"


def _tails() -> list[Goal]:
    return [
        _value("tail(50)", f"tail-{size}", ours, f"{what} of {int(size):,} records", figure, most, unit)
        for ours in _ENGINES
        for size in ("1000", "100000", "1000000")
        for what, figure, most, unit in (
            ("requests", requests, 3, ""),
            ("MiB", lambda sample: sample["sent"] / _MIB, 1, "MiB"),
        )
    ]


def _over_bare(figures: Figures) -> list[float]:
    bare = {each["round"]: each["seconds"] for each in figures.samples("import", "bare Python")}
    return [1000 * (each["seconds"] - bare[each["round"]]) for each in figures.samples("import", "transcript_backends")]


def _before_over_after(ours: str) -> Goal:
    before, after = ("read-network", _NAMES[ours]), ("read-compacted-network", _NAMES[ours])
    return Goal(
        _READ_SLOW,
        f"{ours}: time before, of that after compaction",
        lambda it: it.ratios(before, after, seconds),
        "at least",
        20,
    )


ALL = (
    *(
        _value("requests", "requests", ours, what, figure, 1, "x", exact=True)
        for ours in _ENGINES
        for what, figure in _COUNTS.items()
    ),
    _faster(_ONE, "append-1", "obstore", "boto3", 6),
    _faster(_ONE, "append-1", "obstore", "obstore", 0.85),
    _faster(_ONE, "append-1", "sdk", "boto3", 1.35),
    _faster(_MANY, "append-32", "obstore", "boto3", 13),
    _faster(_MANY, "append-32", "obstore", "obstore", 0.75),
    _faster(_MANY, "append-32", "sdk", "boto3", 1.4),
    _value(_SLOW, "append-32-network", "obstore", "time, of the bound (75 % of its rate)", _of_bound, 1 / 0.75, "x"),
    _faster(_SLOW, "append-32-network", "obstore", "boto3", 2),
    *(
        goal
        for cloud, sdk, times in (("gcs", "google-cloud-storage", 6), ("azure", "azure-storage-blob", 12))
        for workload, area in ((f"{cloud}-append-1", _ONE), (f"{cloud}-append-32", _MANY))
        for goal in (_faster(area, workload, "obstore", sdk, times), _faster(area, workload, "sdk", sdk, 1))
    ),
    _within(_LIST, "list", "obstore", "boto3", 1 / 12, cpu, "CPU"),
    _within(_LIST, "list", "sdk", "boto3", 1 / 2, cpu, "CPU"),
    _faster(_READ, "read", "obstore", "boto3", 10),
    _value(_READ_SLOW, "read-network", "obstore", "time, of the ideal", _of_bound, 1.7, "x"),
    _value(_READ_SLOW, "read-network", "hedged", "time, of the ideal", _of_bound, 1.35, "x"),
    _within(_HEDGED, "hedging", "hedged", "obstore engine", 0.55, fact("p999_ms"), "p99.9"),
    _within(_HEDGED, "hedging", "hedged", "obstore engine", 1.02, requests, "requests"),
    *map(_before_over_after, _ENGINES),
    *_tails(),
    _faster(_COMPACT, "compact", "obstore", "boto3", 11),
    _within(_COMPACT, "compact", "obstore", "raw sockets", 3, seconds, "time"),
    _faster(_COMPACT, "compact", "sdk", "boto3", 1.5),
    *(_value(_COMPACT, "compact", ours, "memory above the start", fact("peak_mib"), 40, "MiB") for ours in _ENGINES),
    _within(f"{_LOCAL}, append", "local-append", "file", "system calls", 1.15, seconds, "time"),
    _faster(f"{_LOCAL}, append", "local-append", "file", "fsspec store", 1),
    _faster(f"{_LOCAL}, list", "local-list", "file", "fsspec store", 10),
    _faster(f"{_LOCAL}, read", "local-read", "file", "fsspec store", 3),
    _within(_TYPED, "typed", "entries", "msgspec", 1.15, cpu, "CPU"),
    _within(_TYPED, "typed", "entries", "pydantic", 0.4, cpu, "CPU"),
    Goal(_IMPORT, "over bare Python", _over_bare, "at most", 40, "ms"),
    Goal(
        _IMPORT,
        "cloud SDKs loaded",
        lambda it: it.values("import", "transcript_backends", lambda sample: len(sample["sdks"])),
        "at most",
        0,
        "",
        exact=True,
    ),
)
