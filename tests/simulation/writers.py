"""Writers on a simulated machine: what they confirm is stored once, in order, and no call hangs."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from random import Random
from unittest import mock

from simulation.machine import Fate, Process, Weather, World
from simulation.outcome import FailedSchedule, Violation

from transcript_backends import (
    CompactionPolicy,
    JournalError,
    PartialDeleteError,
    Record,
    SegmentConflictError,
    StoreClosedError,
    StoreUnavailableError,
    TranscriptRef,
    writing,
)
from transcript_backends.keys import SegmentName, TranscriptKeys
from transcript_backends.writing import TranscriptWriter

REF = TranscriptRef("t", "a", "s")
SPOOL = "spool"
_NAMES = TranscriptKeys("", REF.prefix)
_ROTATE_BYTES = 300
_SHARED = "same"  # the writer id of two hosts
_LONG = 1e6  # seconds or records that never come


class Facts:
    """What really happened, kept beside the library.

    Attributes:
        known: every entry that anybody has called append with.
        safe: those that must be found: append has confirmed them in a journal, or flush has.
        refused: those that no call has taken.
        uncertain: those of them that may be found all the same, the power having failed before the disk was well again.
        stored: those in segments that the store has accepted.
        touched: those that a delete may have removed.
        numbers: seq and writer id of those that append has confirmed, by entry.
        followed, cursor: what followers were given, one after the other, and where the next one goes on.
    """

    def __init__(self, world: World) -> None:
        self.known: set[str] = set()
        self.safe: set[str] = set()
        self.refused: set[str] = set()
        self.uncertain: set[str] = set()
        self.stored: set[str] = set()
        self.touched: set[str] = set()
        self.deletes = 0
        self.numbers: dict[str, tuple[int, str]] = {}
        self.followed: list[Record] = []
        self.cursor: str | None = None
        self.is_followed = False
        self.not_neutral: defaultdict[Process, set[str]] = defaultdict(set)
        self._ids = itertools.count()
        self._world = world
        self._sent: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
        world.on_death.append(self._died)
        world.on_request.append(self._asked)
        self._put = world.memory.put
        world.memory.put = self._stored_by  # type: ignore[method-assign]

    def new_entry(self, random: Random) -> str:
        entry = f"e{next(self._ids)}" + "." * random.choice((0, 0, 0, 40))
        self.known.add(entry)
        return entry

    def _stored_by(self, key: str, body: bytes, **options: object) -> str:
        version = self._put(key, body, **options)  # type: ignore[arg-type]
        name = _NAMES.parse(key)
        if isinstance(name, SegmentName) and name.generation is None:
            entries = set(map(entry_of, body.splitlines()))
            self.stored |= entries
            if self.deletes:
                self.touched |= entries
        return version

    def _asked(self, operation: str, key: str) -> None:
        """A batch that was ever sent keeps its bounds, also in the hands of the next writer; unless the disk has failed."""
        name = _NAMES.parse(key) if operation == "put" else None
        if not isinstance(name, SegmentName) or name.generation is not None or self._world.disk_faults:
            return
        first, last, writer_id = name
        for start, end in self._sent[writer_id] - {(first, last)}:
            if first <= end and start <= last and writer_id != _SHARED:
                raise Violation(f"{writer_id} sends {first} to {last}, and has sent {start} to {end}")
        self._sent[writer_id].add((first, last))

    def delete_begins(self) -> None:
        self.deletes += 1
        self.touched |= self.stored

    def delete_ends(self) -> None:
        self.deletes -= 1

    def _died(self, process: Process, fate: Fate) -> None:
        if fate is Fate.POWER_CUT or {"truncate", "read"} & set(process.disk_faults):
            self.uncertain |= self.not_neutral[process]
        if process.deletes:
            self.delete_ends()

    # --- what must hold -----------------------------------------------------------------------------------------------

    def check(self, found: list[Record], must: set[str]) -> None:
        entries = [entry_of(each.line) for each in found]
        counts = Counter(entries)
        _none("shown twice", {each for each in counts if counts[each] > 1})
        _none("never appended", counts.keys() - self.known)
        _none("refused, and there", (counts.keys() & self.refused) - self.uncertain)
        _none("lost", must - counts.keys())
        if [each[:2] for each in found] != sorted(each[:2] for each in found):
            raise Violation(f"out of order: {[each[:2] for each in found]}")
        for each in found:
            if (where := self.numbers.get(entry_of(each.line))) and where != each[:2]:
                raise Violation(f"{entry_of(each.line)} was confirmed as {where}, and is {each[:2]}")

    def must_be_there(self) -> set[str]:
        """What any look that begins now must show."""
        return (self.stored & self.safe) - self.touched


def entry_of(line: bytes) -> str:
    found: str = json.loads(line)["e"]
    return found


def _none(what: str, entries: set[str]) -> None:
    if entries:
        raise Violation(f"{what}: {sorted(entries)}")


def run(seed: int) -> World:
    """Run one schedule."""
    random = Random(seed)
    world = World(random, random.choice(_WEATHERS))
    shape = _SHAPES[seed % len(_SHAPES)]
    facts = Facts(world)
    try:
        with mock.patch("transcript_backends.journal._ROTATE_BYTES", _ROTATE_BYTES):
            shape(world, facts)
    except Exception as error:
        raise FailedSchedule("writers", seed, error, world.story()) from error
    finally:
        for thread in list(world.threads):
            world.kill(thread.process)
        writing._writers.clear()
    return world


_WEATHERS = (
    Weather(death=0.004),
    Weather(store=0.05, store_outage=0.02, death=0.006),
    Weather(disk=0.08, disk_outage=0.005),
    Weather(disk=0.05, disk_outage=0.01, death=0.005, store=0.02),
    Weather(power=0.006, death=0.002),
    Weather(power=0.006, store=0.05, store_outage=0.01),
    Weather(power=0.005, disk=0.05, store=0.05, store_outage=0.005),
)


# --- shapes of schedules ----------------------------------------------------------------------------------------------


def _agents(world: World, facts: Facts) -> None:
    """Writers with random ids that come and go beside readers, compactors and deletes."""
    random = world.random
    others = random.choice(([], [_compact, _read, _follow], [_compact, _read, _delete]))
    for number in range(random.randint(1, 5)):
        spool_dir = SPOOL if random.random() < 0.8 else None
        process = Process(world, f"agent {number}", _agent(facts, spool_dir=spool_dir))
        for _ in range(random.randint(0, 150)):
            if others and random.random() < 0.02 and len(world.threads) < 12:
                _start(world, random.choice(others), facts)
            if world.threads:
                world.step()
        if random.random() < 0.2:
            world.kill(process)
    world.run_out(world.weather)
    _finish(world, facts)


def _one_id(world: World, facts: Facts) -> None:
    """A writer with an id of its own, one life after the other."""
    for number in range(world.random.randint(2, 4)):
        Process(world, f"life {number}", _agent(facts, spool_dir=SPOOL, writer_id="mine"))
        for _ in range(world.random.randint(20, 200)):
            if world.threads:
                world.step()
        for thread in list(world.threads):
            world.kill(thread.process)
        while world.late:
            world.land(0)
    _finish(world, facts)


def _at_once(world: World, facts: Facts) -> None:
    """Many start at the same moment, where the dead have left something."""
    random = world.random
    Process(world, "dead", _agent(facts, spool_dir=SPOOL))
    for _ in range(random.randint(20, 200)):
        if world.threads:
            world.step()
    for thread in list(world.threads):
        world.kill(thread.process)
    for number in range(random.randint(2, 4)):
        Process(world, f"agent {number}", _agent(facts, spool_dir=SPOOL))
    world.run_out(world.weather)
    _finish(world, facts)


def _busy(world: World, facts: Facts) -> None:
    """A writer that is never idle: its journal is bounded by what waits."""
    world.weather = Weather(store=world.weather.store)
    process = Process(world, "busy", _never_idle(facts))
    process.mortal = False
    world.run_out(world.weather)
    _finish(world, facts)


def _two_hosts(world: World, facts: Facts) -> None:
    """Two writers under one id, which is forbidden: whatever a follower misses, at least one of them is told."""
    random = world.random
    world.weather = Weather(store=random.choice((0.0, 0.05)))
    told: list[str] = []
    hosts = [Process(world, f"host {number}", _host(facts, told)) for number in range(2)]
    for each in hosts:
        each.mortal = False
    while not all(each.dead for each in hosts):
        if random.random() < 0.05 and len(world.threads) < 8:
            _start(world, random.choice((_compact, _follow, _follow)), facts)
        world.step()
    world.run_out(world.weather)
    while world.late:
        world.land(0)
    _start(world, _follow, facts)
    world.run_out()
    missed = (facts.safe & facts.stored) - {entry_of(each.line) for each in facts.followed}
    if missed and not told:
        raise Violation(f"nobody was told, and a follower missed {sorted(missed)}")


_SHAPES = (_agents, _agents, _one_id, _at_once, _agents, _one_id, _two_hosts, _agents, _at_once, _busy)


def _start(world: World, work: Callable[[Process, Facts], None], facts: Facts) -> None:
    Process(world, f"{work.__name__.strip('_')} {len(world.trace)}", lambda process: work(process, facts))


def _finish(world: World, facts: Facts) -> None:
    """All faults end, the next writer comes, and everything must be there."""
    world.weather = Weather()
    while world.late:
        world.land(0)

    def succeed(process: Process) -> None:
        _open(process, spool_dir=SPOOL).close()

    Process(world, "successor", succeed)
    world.run_out()
    left = {name for name in world.directory.names if not (world.power_cuts and ".damaged-" in name)}
    if left:
        raise Violation(f"left on the disk: {sorted(left)}")
    _start(world, _read_all, facts)
    world.run_out()
    _start(world, _follow, facts)
    world.run_out()
    given = Counter(entry_of(each.line) for each in facts.followed)
    _none("followed twice", {each for each in given if given[each] > 1} - facts.touched)
    _none("not followed", facts.safe - facts.touched - given.keys())


# --- what processes do ------------------------------------------------------------------------------------------------


def _open(process: Process, *, spool_dir: str | None, writer_id: str | None = None) -> TranscriptWriter:
    random = process.random
    return TranscriptWriter(
        process.store,
        REF,
        writer_id=writer_id,
        spool_dir=spool_dir,
        max_records=random.choice((1, 2, 5, 10**6)),
        max_bytes=random.choice((40, 150, 10**6)),
        max_age=random.choice((0.0, 1.0, 5.0, _LONG)),
        max_pending_bytes=random.choice((100, 300, 10**6)),
        when_full=random.choice(("block", "raise")),
        offload_bytes=None,
        machine=process,
    )


def _agent(facts: Facts, *, spool_dir: str | None, writer_id: str | None = None) -> Callable[[Process], None]:
    def work(process: Process) -> None:
        random = process.random
        try:
            writer = _open(process, spool_dir=spool_dir, writer_id=writer_id)
        except (StoreUnavailableError, JournalError):
            return _excuse(process)
        appenders = [
            process.start(f"appender{number}", lambda: _append_some(process, writer, facts, is_journaled=spool_dir is not None))
            for number in range(random.choice((1, 1, 2, 3)))
        ]
        if random.random() < 0.1:
            process.sleep(random.random() * 3)
            _fork(process, writer)
        if random.random() < 0.7:
            for each in appenders:
                each.join()
        if random.random() < 0.7:
            _close(process, writer, facts)
        return None

    return work


def _append_some(process: Process, writer: TranscriptWriter, facts: Facts, *, is_journaled: bool) -> None:
    random = process.random
    unflushed: list[str] = []
    for _ in range(random.randint(1, 6)):
        entry = facts.new_entry(random)
        for _ in range(random.randint(1, 3)):
            if _append(process, writer, facts, entry, is_journaled=is_journaled):
                unflushed.append(entry)
                break
        chance = random.random()
        if chance < 0.2 and _flush(process, writer):
            _none("flushed, and not stored", set(unflushed) - facts.stored)
            facts.safe.update(unflushed)
        elif chance < 0.4:
            process.sleep(random.choice((0.1, 1.0, 8.0)))


def _append(process: Process, writer: TranscriptWriter, facts: Facts, entry: str, *, is_journaled: bool) -> bool:
    """Whether the writer has taken the entry."""
    refused_before = entry in facts.refused
    facts.refused.discard(entry)  # while the call is running it may be found
    uncertain = facts.not_neutral[process]
    uncertain_before = set(uncertain)
    try:
        seq = writer.append({"e": entry})
    except JournalError:
        uncertain.add(entry)
        facts.refused.add(entry)
        return False
    except (StoreUnavailableError, SegmentConflictError, StoreClosedError):
        facts.refused.add(entry)
        if not refused_before:
            uncertain.discard(entry)
        return False
    facts.numbers[entry] = (seq, writer.writer_id)
    if is_journaled:
        facts.safe.add(entry)
        uncertain -= uncertain_before  # the journal is on the disk, without what was taken back before
    return True


def _flush(process: Process, writer: TranscriptWriter) -> bool:
    try:
        writer.flush(process.random.choice((None, None, 3.0)))
    except (StoreUnavailableError, SegmentConflictError, StoreClosedError):
        return False
    return True


def _close(process: Process, writer: TranscriptWriter, facts: Facts) -> None:
    for _ in range(50):
        timeout = process.random.choice((None, None, 30.0))
        try:
            writer.close(timeout)
        except StoreUnavailableError:
            if timeout is None:
                _excuse(process)
            continue
        for call in (lambda: writer.append({}), writer.flush):
            try:
                call()
            except StoreClosedError:
                continue
            raise Violation("a closed writer goes on")
        waiting = {each for each, (_, writer_id) in facts.numbers.items() if writer_id == writer.writer_id} - facts.stored
        _none("closed, and not stored", waiting)
        facts.safe |= {each for each, (_, writer_id) in facts.numbers.items() if writer_id == writer.writer_id}
        return


def _fork(process: Process, writer: TranscriptWriter) -> None:
    """A child inherits a writer, which is its parent's."""
    inherited = copy.copy(writer)
    inherited._journal = copy.copy(writer._journal)

    def live(child: Process) -> None:
        inherited._machine = child
        if inherited._journal is not None:
            inherited._journal._machine, inherited._journal._disk = child, child.disk
        inherited.after_fork()
        try:
            inherited.append({"e": "a child's"})
        except StoreClosedError:
            inherited.close()
            child.sleep(child.random.random() * 20)
            return
        raise Violation("a forked child appends")

    process.fork(f"child of {process.name}", live)


def _never_idle(facts: Facts) -> Callable[[Process], None]:
    def work(process: Process) -> None:
        try:
            writer = _open(process, spool_dir=SPOOL)
        except StoreUnavailableError:
            return
        most = 0
        for _ in range(60):
            _append(process, writer, facts, facts.new_entry(process.random), is_journaled=True)
            most = max(most, writer.state.pending_bytes)
            size = sum(len(each.content) for each in process.world.directory.names.values())
            if size > 2 * _ROTATE_BYTES + 8 * most:
                raise Violation(f"the journal has {size} bytes where {most} waited at most")
        _close(process, writer, facts)

    return work


def _host(facts: Facts, told: list[str]) -> Callable[[Process], None]:
    def work(process: Process) -> None:
        process.sleep(process.random.choice((0.0, 2.0, 20.0)))
        try:
            writer = _open(process, spool_dir=None, writer_id=_SHARED)
            for _ in range(process.random.randint(2, 6)):
                _store_some(process, writer, facts, process.random.randint(1, 3))
                process.sleep(process.random.choice((0.1, 3.0, 15.0, 15.0)))
            for _ in range(5):  # until the second look at its claim is over
                process.sleep(3.0)
                _store_some(process, writer, facts, 1)
        except StoreUnavailableError:
            _excuse(process)
        except SegmentConflictError:
            told.append(process.name)

    return work


def _store_some(process: Process, writer: TranscriptWriter, facts: Facts, count: int) -> None:
    entries = [facts.new_entry(process.random) for _ in range(count)]
    with contextlib.suppress(StoreUnavailableError):  # too much is waiting, or an outage: it goes on with others
        for entry in entries:
            writer.append({"e": entry})
        writer.flush()
        facts.safe.update(entries)


def _compact(process: Process, facts: Facts) -> None:
    policy = CompactionPolicy(min_segments=process.random.choice((2, 3)), full=process.random.random() < 0.3)
    try:
        process.store.compact(REF, policy)
    except StoreUnavailableError:
        _excuse(process)


def _delete(process: Process, facts: Facts) -> None:
    facts.delete_begins()
    process.deletes = True
    try:
        process.store.delete(REF)
    except PartialDeleteError:
        pass
    except StoreUnavailableError:
        _excuse(process)
    process.deletes = False
    facts.delete_ends()


def _read(process: Process, facts: Facts) -> None:
    must = facts.must_be_there()
    try:
        found = list(process.store.records(REF))
    except StoreUnavailableError:
        return _excuse(process)
    facts.check(found, must - facts.touched)
    return None


def _read_all(process: Process, facts: Facts) -> None:
    facts.check(list(process.store.records(REF)), facts.safe - facts.touched)


def _follow(process: Process, facts: Facts) -> None:
    """Read on what an earlier follower has not given."""
    if facts.is_followed:
        return
    facts.is_followed = True
    try:
        with process.store.follow(REF, cursor=facts.cursor, stop_when_idle=process.random.choice((0.0, 5.0))) as follower:
            for record in follower:
                facts.followed.append(record)
                facts.cursor = follower.cursor
    except StoreUnavailableError:
        _excuse(process)
    finally:
        facts.is_followed = False


def _excuse(process: Process) -> None:
    """The store, or the disk, may be called unavailable where it was."""
    if not process.store_faults and not process.disk_faults:
        raise Violation(f"{process.name} was told of an outage that was none")
