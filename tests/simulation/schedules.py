"""The actors, and the shapes of schedules.

A general mix; torn listings (readers against compactors); overtaken ones; deletes that are in flight for a whole generation;
several lives of one transcript, followed while the server's clock steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

from simulation.facts import NAMES, REF, Facts, Followed, Look
from simulation.outcome import FailedSchedule, Violation
from simulation.scheduler import Actor, Scheduler, Weather

from transcript_backends import (
    CompactionPolicy,
    CorruptSegmentError,
    ObjectTranscriptStore,
    PartialDeleteError,
    Record,
    SegmentConflictError,
    SegmentNotFoundError,
    StoreUnavailableError,
    copy_transcript,
)
from transcript_backends.container import Container
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.following import Follower
from transcript_backends.listing import list_once
from transcript_backends.workers import Crew

SHAPES = 5  # of schedules, which seeds take in turn


def run(seed: int) -> Scheduler:
    """Run one schedule, of one of five shapes."""
    random = Random(seed)
    weather = random.choice((Weather(), Weather(0.02, 0.015, 0.001), Weather(0.08, 0.03, 0.004)))
    scheduler = Scheduler(random, random.choice((2, 3, None)), weather, conditional=random.random() < 0.7)
    try:
        (_general, _torn, _overtaken, _outlived, _relived)[seed % SHAPES](scheduler)
        first, then = (_read, _ask, _follow_to_the_end), (_compact_fully, _read, _ask, _read_more_keys, _follow_to_the_end)
        for work in (*first, _finish_dead_deletes, *then):
            scheduler.start("last", work)
            scheduler.run_out()
    except Exception as error:
        raise FailedSchedule("stores", seed, error, scheduler.story()) from error
    finally:
        for actor in list(scheduler.actors):
            scheduler.kill(actor)
    return scheduler


def _general(scheduler: Scheduler) -> None:
    random = scheduler.random
    started = 0
    deletes = random.choice((0, 1, 3, 10))
    works: list[Callable[[Actor], None]] = [_write] * 9 + [_compact] * 9 + [_read] * 6
    works += (
        [_copy] * 2
        + [_follow] * 3
        + [_read_keys] * 3
        + [_ask] * 2
        + [_repair] * (not scheduler.is_unsteady)
        + [_repeat] * 2
        + [_delete] * deletes
    )
    for _ in range(random.randint(40, 140)):
        if not scheduler.actors or (len(scheduler.actors) < 6 and random.random() < 0.3):
            work = random.choice(works) if started > 1 else _write
            scheduler.start(f"{work.__name__.strip('_')} {started}", work)
            started += 1
        if random.random() < 0.01:
            scheduler.pass_hours()
        if scheduler.actors:
            scheduler.step()
    scheduler.run_out()
    while scheduler.late:
        scheduler.land(random.randrange(len(scheduler.late)))


def _torn(scheduler: Scheduler) -> None:
    weather = scheduler.weather
    _begin(scheduler, scheduler.random.randint(5, 9))
    for number in range(6):
        if number < 2:
            scheduler.start(
                f"read {number}", scheduler.random.choice((_read, _read, _read_more_keys, _ask, _copy, _copy))
            ).slow = True
        else:
            scheduler.start(f"compact {number}", _compact)
    scheduler.run_out(weather)


def _overtaken(scheduler: Scheduler) -> None:
    """Others come and go while one look is under way."""
    weather, random = scheduler.weather, scheduler.random
    _begin(scheduler, random.randint(1, 4))
    scheduler.weather = weather
    look = scheduler.start("look", random.choice((_read, _read_more_keys, _ask, _list_refs, _list_refs, _follow, _copy)))
    for _ in range(random.randint(1, 3)):
        for _ in range(random.randint(0, 8)):
            if look in scheduler.actors:
                scheduler.step()
        if look in scheduler.actors:
            scheduler.actors.remove(look)
            work = random.choice((_compact_fully, _compact_fully, _compact_fully, _compact, _delete, _write))
            scheduler.start(f"{work.__name__.strip('_')} {len(scheduler.trace)}", work)
            scheduler.run_out(weather)
            scheduler.actors.append(look)
    scheduler.run_out(weather)
    while scheduler.late:
        scheduler.land(0)


def _outlived(scheduler: Scheduler) -> None:
    """Deletes are in flight while the transcript is deleted whole, and written again."""
    weather, random = scheduler.weather, scheduler.random
    _begin(scheduler, random.randint(2, 5))
    for number in range(random.randint(1, 3)):
        scheduler.start(f"first {number}", random.choice((_compact_fully, _compact_fully, _compact, _repair, _delete)))
        scheduler.run_out(replace(weather, late_delete=random.choice((0.0, 0.5, 1.0))))
    for generation in range(random.randint(1, 2)):
        scheduler.start(f"delete {generation}", _delete)
        scheduler.run_out(weather)
        for number in range(random.randint(1, 6)):
            work = random.choice((_repeat, _repeat, _repeat, _write, _compact))
            scheduler.start(f"{work.__name__.strip('_')} 1{generation}{number}", work)
            if random.random() < 0.5:
                scheduler.run_out(weather)
            if scheduler.late and random.random() < 0.5:
                scheduler.land(random.randrange(len(scheduler.late)))
        scheduler.run_out(weather)
    while scheduler.late:
        scheduler.land(random.randrange(len(scheduler.late)))


def _relived(scheduler: Scheduler) -> None:
    """Deleted and begun anew, again and again."""
    random = scheduler.random
    scheduler.is_unsteady = True
    works = [_write, _write, _follow, _follow, _delete, random.choice((_compact, _write, _delete))]
    for number in range(random.randint(6, 16)):
        work = random.choice(works) if number else _write
        scheduler.start(f"{work.__name__.strip('_')} {number}", work)
        for _ in range(random.choice((1, 5, 20, 60))):
            if scheduler.actors:
                scheduler.step()
    scheduler.run_out()
    while scheduler.late:
        scheduler.land(0)


def _begin(scheduler: Scheduler, segments: int) -> None:
    """So many segments, each of another writer."""
    for number in range(segments):
        scheduler.start(f"w{number}", lambda actor: _append(actor, [_new(actor, int(actor.name[1:]))]))
        scheduler.run_out()


# --- what actors do ---------------------------------------------------------------------------------------------------


def _write(actor: Actor) -> None:
    """Append some segments; now and then once more, or as another program would have cut them.

    A writer of the next life may have the name of one of the life before.
    """
    busy = {each.writer_id for each in actor.scheduler.actors}
    if not actor.scheduler.late and (free := sorted(actor.facts.free_writer_ids() - busy)) and actor.random.random() < 0.7:
        actor.writer_id = actor.random.choice(free)
        actor.facts.begins_anew(actor.writer_id)
    with actor.facts.look() as look:
        try:
            seq = actor.store.next_seq(REF)
        except StoreUnavailableError:
            return _excuse(actor)
        actor.facts.check_next_seq(look, seq)
    done: list[Record] = []
    for _ in range(actor.random.randint(1, 4)):
        records = [_new(actor, seq + number) for number in range(actor.random.randint(1, 2))]
        if not _append(actor, records):
            return None
        done += records
        seq += len(records)
        chance = actor.random.random()
        if chance < 0.1:
            _append(actor, records)
        elif chance < 0.2 and len(done) > 1:
            first = actor.random.randrange(len(done) - 1)
            _append(actor, done[first : first + actor.random.randint(1, 3)])
    return None


def _repeat(actor: Actor) -> None:
    """A writer that never got to know that it was done, days ago."""
    if actor.facts.keys:
        records = actor.facts.records_in(actor.random.choice(list(actor.facts.keys.values())))
        actor.writer_id = records[0].writer_id
        _append(actor, records)


def _new(actor: Actor, seq: int) -> Record:
    return actor.facts.new_record(seq, actor.writer_id, actor.random.choice((0, 0, 0, 50)))


def _append(actor: Actor, records: list[Record]) -> bool:
    body = b"".join(each.line + b"\n" for each in records)
    for _ in range(3):
        actor.faults = 0
        try:
            key = actor.store.append_segment(REF, records[0].seq, records[-1].seq, records[0].writer_id, body)
        except StoreUnavailableError:
            _excuse(actor)
        else:
            actor.facts.acknowledged(key, body)
            return True
    return False


def _read(actor: Actor) -> None:
    for _ in range(actor.random.randint(1, 2)):
        with actor.facts.look() as look:
            actor.faults = 0
            try:
                is_reverse = actor.random.random() < 0.2
                found = list(actor.store.records(REF, reverse=is_reverse))[:: -1 if is_reverse else 1]
            except StoreUnavailableError:
                return _excuse(actor)
            actor.facts.check_records(look, found)
    return None


def _follow(actor: Actor) -> None:
    """Go on with what another follower has begun, or begin."""
    facts = actor.facts
    followed = facts.idle_followed.pop() if facts.idle_followed else facts.new_followed()
    try:
        _go_on_following(actor, followed, actor.random.choice((0.0, 2.0, 20.0)))
    finally:
        facts.idle_followed.append(followed)


def _go_on_following(actor: Actor, followed: Followed, stop_when_idle: float) -> None:
    actor.faults = 0
    try:
        with actor.store.follow(REF, cursor=followed.cursor, stop_when_idle=stop_when_idle) as follower:
            ended = _count_at_each_look(follower, actor.facts)
            for record in follower:
                followed.records.append(record)
                if actor.facts.deletes_ended > ended[-1] and actor.facts.is_under_a_key_of_the_past(record):
                    followed.mistaken.add(record)
                followed.cursor = follower.cursor
    except StoreUnavailableError:
        _excuse(actor)
    actor.facts.check_followed(followed)


def _count_at_each_look(follower: Follower, facts: Facts) -> list[int]:
    """How many deletes had ended whenever a follower looked."""
    counts: list[int] = []
    read = follower._read

    def counting(crew: Crew) -> Generator[Record, None, None]:
        counts.append(facts.deletes_ended)
        yield from read(crew)

    follower._read = counting  # type: ignore[method-assign]
    return counts


def _follow_to_the_end(actor: Actor) -> None:
    is_deleting = list_once(actor.store._container, NAMES).deleting
    for followed in actor.facts.followed:
        _go_on_following(actor, followed, 0.0)
        actor.facts.check_followed(followed, is_all=not is_deleting)


def _finish_dead_deletes(actor: Actor) -> None:
    """As a repair does, but for removing what the server's clock says is older."""
    listing = list_once(actor.store._container, NAMES)
    if listing.deleting:
        actor.store._container.create(NAMES.deleted(listing.generation), b"")


def _read_keys(actor: Actor) -> None:
    _read_these(actor, 2)


def _read_more_keys(actor: Actor) -> None:
    _read_these(actor, 6)


def _read_these(actor: Actor, count: int) -> None:
    for key in actor.random.sample(sorted(actor.facts.keys), min(count, len(actor.facts.keys))):
        with actor.facts.look() as look:
            actor.faults = 0
            body: bytes | None = None
            try:
                with actor.store.read_segment(key) as stream:
                    body = stream.read()
            except SegmentNotFoundError:
                pass
            except StoreUnavailableError:
                return _excuse(actor)
            actor.facts.check_segment(look, key, body)
    return None


def _copy(actor: Actor) -> None:
    """Copy everything into another store, which has no faults."""
    destination = ObjectTranscriptStore(Container(MemoryObjectStore(), clock=actor, parallel=1))
    with actor.facts.look() as look:
        actor.faults = 0
        try:
            copy_transcript(actor.store, destination, REF, verify=actor.random.choice(("all", "new", "off")))
        except StoreUnavailableError:
            return _excuse(actor)
        except (SegmentNotFoundError, CorruptSegmentError, SegmentConflictError) as error:
            if not look.may_be_deleted:
                raise Violation(f"a copy of what nobody deletes ends with {error}") from error
            return None
        actor.facts.check_copy(look, list(destination.records(REF)))
    return None


def _ask(actor: Actor) -> None:
    actor.random.choice((_ask_for_next_seq, _list_segments, _list_refs, _verify, _estimate))(actor)


def _ask_for_next_seq(actor: Actor) -> None:
    _look(actor, lambda look: actor.facts.check_next_seq(look, actor.store.next_seq(REF)))


def _list_segments(actor: Actor) -> None:
    _look(actor, lambda look: actor.facts.check_segments(look, actor.store.list_segments(REF)))


def _list_refs(actor: Actor) -> None:
    _look(actor, lambda look: actor.facts.check_refs(look, list(actor.store.list_refs())))


def _verify(actor: Actor) -> None:
    _look(actor, lambda look: actor.facts.check_report(look, actor.store.verify(REF)))


def _estimate(actor: Actor) -> None:
    _look(actor, lambda _: actor.store.estimate_compaction(REF))


def _look(actor: Actor, check: Callable[[Look], None]) -> None:
    with actor.facts.look() as look:
        actor.faults = 0
        try:
            check(look)
        except StoreUnavailableError:
            _excuse(actor)


def _compact(actor: Actor) -> None:
    for _ in range(actor.random.randint(1, 3)):
        _compact_by(
            actor,
            CompactionPolicy(
                min_segments=actor.random.choice((2, 2, 3, 4)),
                target_bytes=actor.random.choice((150, 400, 1 << 25, 1 << 25)),
                full=actor.random.random() < 0.3,
            ),
        )


def _compact_fully(actor: Actor) -> None:
    _compact_by(actor, CompactionPolicy(full=True))


def _compact_by(actor: Actor, policy: CompactionPolicy) -> None:
    with _compacting(actor):
        result = actor.store.compact(REF, policy)
        damaged = [each for each in result.left if "sha256" in each[1] or "bytes" in each[1]]
        if actor.garbled < 2 and any(actor.facts.lives_of(key) < 2 for key, _ in damaged):
            raise Violation(f"one response was taken for damage: {damaged}")


@contextmanager
def _compacting(actor: Actor) -> Iterator[None]:
    actor.faults = actor.garbled = 0
    actor.compacts = True
    try:
        yield
    except StoreUnavailableError:
        _excuse(actor)
    except CorruptSegmentError:  # an index that came with another byte twice
        if actor.garbled < 2:
            raise


def _repair(actor: Actor) -> None:
    with _compacting(actor):
        actor.store.verify(REF, repair=True)


def _delete(actor: Actor) -> None:
    for _ in range(3):
        actor.faults = 0
        actor.delete = delete = actor.facts.delete_begins()
        finished = False
        try:
            actor.store.delete(REF)
            finished = True
        except PartialDeleteError:
            pass
        except StoreUnavailableError:
            _excuse(actor)
        actor.delete = None
        actor.facts.delete_ends(delete, finished=finished)
        if finished:
            return


def _excuse(actor: Actor) -> None:
    """The store may be called unavailable where it was."""
    if not actor.faults:
        raise Violation(f"{actor.name} was told that the store is unavailable, which it was not")
