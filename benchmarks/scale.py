"""A million sessions: what compaction costs on which schedule, and which limit is met first.

    python -m benchmarks.scale            # prints the tables of docs/scale.md, in ten seconds
    python -m benchmarks.scale --write    # puts them there

The sessions are made up, from a seed; what is merged and when is decided by the package's own planner. `Life` counts the
requests that the package makes, which a test checks against a real store.
"""

from __future__ import annotations

import functools
import math
import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from transcript_backends import CompactionPolicy, SegmentInfo
from transcript_backends.planning import must_settle, next_run
from transcript_backends.prices import PRICES, Prices, dollars

PAGE = 1000  # objects of a listing; keys of a batch delete
DAY, HOUR, MINUTE = 86_400, 3600, 60
TIME, WRITER = datetime(2026, 1, 1, tzinfo=timezone.utc), "w"

SESSIONS, RECORDS = 1_000_000, 10_000  # begun in a day; in each, on average

# What a request takes, for the compactors' time: assumptions, but for the CPU, which is boto3's as measured.
LATENCY, PARALLEL, CPU, BANDWIDTH = 0.02, 8, 0.001, 100e6


class Requests(NamedTuple):
    """How many of each kind, and the bytes they move."""

    puts: int = 0
    gets: int = 0
    lists: int = 0
    deletes: int = 0  # batches
    removed: int = 0  # objects in them
    bytes_up: int = 0
    bytes_down: int = 0

    def plus(self, other: Requests) -> Requests:
        return Requests._make(map(sum, zip(self, other, strict=True)))

    def dollars(self, prices: Prices) -> float:
        return prices.requests(
            puts=self.puts, gets=self.gets, lists=self.lists, bytes_up=self.bytes_up, bytes_down=self.bytes_down
        )

    @property
    def number(self) -> int:
        return self.puts + self.gets + self.lists + self.deletes

    @property
    def seconds(self) -> float:
        """Of one thread that makes them: gets several at once, all else one after the other."""
        waits = self.number - self.gets + math.ceil(self.gets / PARALLEL)
        return waits * LATENCY + self.number * CPU + (self.bytes_up + self.bytes_down) / BANDWIDTH


def pages(objects: int) -> int:
    return max(1, -(-objects // PAGE))


class Life:
    """One session over time, in names and sizes: what its writer appends, and what a compactor does that knows nothing of it.

    Attributes:
        segments: by seq.
        appended, compacted: the requests of the writer, and of compactions.
        records, size: of all that was appended.
        worst_fan_in: the most segments that a compaction left, as a share of 15 for each tier.
    """

    def __init__(self) -> None:
        self.segments: list[SegmentInfo] = []
        self.appended = self.compacted = Requests()
        self.records = self.size = 0
        self.worst_fan_in = 0.0
        self._merges = 0
        self._merged: set[str] = set()  # the compacted segments
        self._orphans: dict[str, float] = {}  # indexes of what was merged further -> when it was

    def append(self, records: int, size: int) -> None:
        start, self.records = self.records, self.records + records
        self.segments.append(SegmentInfo(f"{start}", start, self.records - 1, WRITER, TIME, size))
        self.size += size
        self.appended = self.appended.plus(Requests(puts=1, bytes_up=size))

    def compact(self, now: float, policy: CompactionPolicy) -> None:
        """See `transcript_backends.compaction`: index and segment are written, all is listed again, the sources go."""
        lists, gets, deletes, removed, puts, moved = pages(self.objects), 0, 0, 0, 0, 0
        known: set[str] = set()
        if self._orphans:  # all indexes are read, to see that these were merged further
            known = self._indexes()
            gets += len(known)
        if old := [key for key, since in self._orphans.items() if now - since >= HOUR]:
            lists, deletes, removed = lists + pages(self.objects), pages(len(old)), len(old)
            for key in old:
                del self._orphans[key]
        unsettled: dict[str, Sequence[SegmentInfo]] = {}
        while (run := next_run(self.segments, (), policy)) or unsettled:
            if run is None or must_settle(unsettled, run):
                if self._orphans:
                    gets += len(self._indexes() - known)
                    known |= self._indexes()
                doomed = sum(map(len, unsettled.values()))
                lists += pages(self.objects + doomed)
                deletes, removed = deletes + pages(doomed), removed + doomed
                self._orphans |= {each.key: now for part in unsettled.values() for each in part if each.writer_id != WRITER}
                unsettled.clear()
                continue
            compacted = {each.key for each in run if each.writer_id != WRITER}
            gets += len(run) + len(compacted - known)
            known |= compacted
            merged = self._merge(run)
            unsettled[merged.key] = run
            puts += 2
            moved += merged.size
        self.compacted = self.compacted.plus(Requests(puts, gets, lists, deletes, removed, moved, moved))
        self.worst_fan_in = max(self.worst_fan_in, len(self.segments) / (15 * tiers(self.appended.puts)))

    def _merge(self, run: Sequence[SegmentInfo]) -> SegmentInfo:
        self._merges += 1
        size = sum(each.size for each in run)
        writer_id = f"compacted-0-{self._merges:016x}"
        merged = SegmentInfo(writer_id, run[0].seq_start, run[-1].seq_end, writer_id, TIME, size)
        at = self.segments.index(run[0])
        self.segments[at : at + len(run)] = [merged]
        self._merged = (self._merged - {each.key for each in run}) | {merged.key}
        return merged

    def _indexes(self) -> set[str]:
        return self._merged | self._orphans.keys()

    @property
    def objects(self) -> int:
        return len(self.segments) + len(self._merged) + len(self._orphans)

    @property
    def read(self) -> Requests:
        """One full read by a reader that knows nothing yet."""
        return Requests(gets=self.objects, lists=pages(self.objects), bytes_down=self.size)  # each once, indexes too

    @property
    def rewritten(self) -> float:
        """How many times its bytes were written, the append included."""
        return 1 + self.compacted.bytes_up / self.size


def tiers(segments: int, min_segments: int = 16) -> int:
    """ceil(log(segments) / log(min_segments)), at least 1."""
    found = 1
    while min_segments**found < segments:
        found += 1
    return found


# --- a population of sessions -----------------------------------------------------------------------------------------


class Session(NamedTuple):
    """When it appends, in seconds since it began, and (records, bytes) of each append."""

    times: Sequence[float]
    appends: Sequence[tuple[int, int]]


def population(sessions: int, batch: int, seed: int = 1) -> Iterator[Session]:
    """Sessions of 10,000 records on average, 3 seconds and 1 KiB each; lengths, paces and sizes are log-normal."""
    chance = random.Random(seed)

    def around(mean: float, sigma: float) -> float:
        return mean * math.exp(chance.gauss(-sigma * sigma / 2, sigma))

    for _ in range(sessions):
        records, pace, line = max(1, round(around(RECORDS, 0.7))), around(3, 0.5), around(1024, 0.5)
        now, times, appends = 0.0, [], []
        while records > 0:
            taken = min(records, max(1, round(around(batch, 0.4))) if batch > 1 else 1)
            now += chance.expovariate(1 / (taken * pace))
            times.append(now)
            appends.append((taken, max(1, round(taken * around(line, 0.5)))))
            records -= taken
        yield Session(times, appends)


class Schedule(NamedTuple):
    """When a session is compacted: every so many seconds, or so many appends, and in full an hour after its end."""

    title: str
    seconds: float = 0
    appends: int = 0
    at_end: bool = False


NEVER = Schedule("never")
AT_END = Schedule("once, in full, after the end", at_end=True)
RECOMMENDED = Schedule("each 64 appends, and in full after the end", appends=64, at_end=True)
SCHEDULES = (
    NEVER,
    Schedule("each minute", seconds=MINUTE),
    Schedule("each 10 minutes", seconds=10 * MINUTE),
    Schedule("each hour", seconds=HOUR),
    Schedule("each 16 appends", appends=16),
    Schedule("each 64 appends", appends=64),
    RECOMMENDED,
    AT_END,
)
LIVE, FULL = CompactionPolicy(), CompactionPolicy(full=True)


class Figures(NamedTuple):
    """Of all sessions together.

    Attributes:
        appended, compacted: requests.
        fan_in, most: segments that are there after an append: the mean, and the most.
        worst_fan_in, worst_rewritten: of any session, as a share of what the design allows.
        rewritten: how many times a byte is written, the append included.
        objects: of a session at its end, on average.
        seconds: that a session is alive, on average.
    """

    sessions: int
    records: int
    size: int
    appended: Requests
    compacted: Requests
    fan_in: float
    most: int
    worst_fan_in: float
    worst_rewritten: float
    rewritten: float
    objects: float
    seconds: float


def lives(session: Session, schedule: Schedule) -> Iterator[Life]:
    """The life of a session, as it is after each append, and last at its end."""
    life, due = Life(), schedule.seconds
    for number, (now, append) in enumerate(zip(session.times, session.appends, strict=True), 1):
        while 0 < due <= now:
            life.compact(due, LIVE)
            due += schedule.seconds
        life.append(*append)
        if schedule.appends and number % schedule.appends == 0:
            life.compact(now, LIVE)
        yield life
    if schedule.at_end:
        life.compact(session.times[-1] + HOUR, FULL)


def simulate(schedule: Schedule, sessions: Sequence[Session]) -> Figures:
    seen: list[int] = []
    ended: list[Life] = []
    for session in sessions:
        for life in lives(session, schedule):
            seen.append(len(life.segments))
        ended.append(life)
    size = sum(life.size for life in ended)
    compacted = total(life.compacted for life in ended)
    return Figures(
        sessions=len(ended),
        records=sum(life.records for life in ended),
        size=size,
        appended=total(life.appended for life in ended),
        compacted=compacted,
        fan_in=sum(seen) / len(seen),
        most=max(seen),
        worst_fan_in=max(life.worst_fan_in for life in ended),
        worst_rewritten=max(life.rewritten / (1 + tiers(life.appended.puts)) for life in ended),
        rewritten=1 + compacted.bytes_up / size,
        objects=sum(life.objects for life in ended) / len(ended),
        seconds=sum(session.times[-1] for session in sessions) / len(sessions),
    )


def total(parts: Iterable[Requests]) -> Requests:
    return functools.reduce(Requests.plus, parts, Requests())


# --- tables -----------------------------------------------------------------------------------------------------------

SAMPLE = {1: 5, 10: 30, 100: 60}  # sessions simulated, by batch
S3_WRITES, GCS_WRITES, AZURE_REQUESTS = 3500, 1000, 20_000  # a second: of a partition, of a new bucket, of an account


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Markdown; all columns but the first are figures."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


@functools.cache
def figures(schedule: Schedule, batch: int = 10) -> Figures:
    return simulate(schedule, list(population(SAMPLE[batch], batch)))


def schedules_table() -> str:
    def row(schedule: Schedule) -> list[str]:
        found = figures(schedule)
        million, many = 1e6 / found.records, SESSIONS * RECORDS / found.records
        return [
            schedule.title,
            *(f"{number * million:,.0f}" for number in (found.compacted.puts, found.compacted.gets, found.compacted.lists)),
            dollars(found.compacted.dollars(PRICES["s3"]) * million),
            f"{found.compacted.dollars(PRICES['s3']) / found.appended.dollars(PRICES['s3']):.0%}",
            f"{found.rewritten:.1f}",
            f"{found.fan_in:.0f}",
            str(found.most),
            f"{found.compacted.seconds * many / DAY:,.0f}",
            f"{found.compacted.number * CPU * many / DAY:,.0f}",
        ]

    head = ["compacted", "PUT", "GET", "LIST", "S3", "of appends", "written", "segments", "most", "threads", "cores"]
    return table(head, map(row, SCHEDULES))


def rates_table() -> str:
    def row(batch: int) -> list[str]:
        found = figures(RECOMMENDED, batch)
        done, a_second = found.appended.plus(found.compacted), SESSIONS * RECORDS / found.records / DAY
        writes = (done.puts + done.removed) * a_second
        requests = (done.puts + done.gets + done.lists + done.removed) * a_second
        return [
            str(batch),
            *(f"{number * a_second:,.0f}" for number in (found.appended.puts, done.puts, done.removed, done.gets, done.lists)),
            f"{done.bytes_up * a_second / 1e6:,.0f}",
            dollars(done.dollars(PRICES["s3"]) * a_second * DAY),
            f"{math.ceil(writes / S3_WRITES)}",
            f"{20 * max(0, math.ceil(math.log2(writes / GCS_WRITES)))} min",
            f"{math.ceil(requests / AZURE_REQUESTS)}",
        ]

    head = ["records an append", "appends/s", "PUT/s", "removed/s", "GET/s", "LIST/s", "MB/s up", "S3 a day"]
    return table([*head, "S3 partitions", "GCS ramp", "Azure accounts"], map(row, SAMPLE))


def listing_table() -> str:
    def row(title: str, objects: float) -> list[str]:
        lists = math.ceil(SESSIONS * min(objects / PAGE, 2))  # a session that has shown enough is jumped over
        cost = dollars(PRICES["s3"].requests(lists=lists))
        return [title, f"{objects:,.0f}", f"{lists:,}", cost, f"{lists * LATENCY / MINUTE:,.1f} min"]

    rows = [row(f"as appended, {batch} to a segment", RECORDS / batch) for batch in SAMPLE]
    rows += [row(f"compacted {each.title}", figures(each).objects) for each in (SCHEDULES[5], RECOMMENDED, AT_END)]
    return table(["sessions", "objects in each", "LIST", "S3", "one after the other"], rows)


def bounds_table() -> str:
    def row(schedule: Schedule) -> list[str]:
        shares = [getattr(figures(schedule, batch), name) for batch in batches for name in ("worst_fan_in", "worst_rewritten")]
        return [schedule.title, *(f"{share:.2f}" for share in shares)]

    batches = (10, 100)
    head = [f"{name}, {batch} to a segment" for batch in batches for name in ("segments", "written")]
    return table(["compacted", *head], map(row, SCHEDULES[1:6]))


def looks_table() -> str:
    rows = []
    for seconds in (0.3, 1, 10, 60, 600, 3600):
        looks = DAY / seconds
        cost = [dollars(prices.requests(lists=looks)) for prices in PRICES.values()]
        rows.append([f"each {seconds:g} s", f"{looks:,.0f}", *cost, f"{SESSIONS / seconds:,.0f}"])
    return table(["one session is listed", "LIST a day", *PRICES, "LIST/s for a million"], rows)


def tables() -> dict[str, str]:
    return {
        "schedules": schedules_table(),
        "bounds": bounds_table(),
        "rates": rates_table(),
        "listing": listing_table(),
        "looks": looks_table(),
    }


def written(text: str, found: Mapping[str, str]) -> str:
    """A document with each table between its marks."""
    for name, content in found.items():
        parts = re.split(rf"(<!-- {name}: .*-->\n)(?s:.*?)(<!-- end -->)", text)
        if len(parts) != 4:
            raise SystemExit(f"the document has {(len(parts) - 1) // 3} places for the table {name!r}, and needs one")
        before, begin, end, after = parts
        text = f"{before}{begin}{content}\n{end}{after}"
    return text


def main(document: str, found: Mapping[str, str], arguments: Sequence[str]) -> None:
    if "--write" in arguments:
        path = Path(__file__).parent.parent / "docs" / document
        path.write_text(written(path.read_text(), found))
        return
    for name, content in found.items():
        print(f"{name}\n\n{content}\n")


if __name__ == "__main__":
    main("scale.md", tables(), sys.argv[1:])
