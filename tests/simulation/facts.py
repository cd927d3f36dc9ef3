"""What really happened in a schedule, kept beside the library, and what every answer must agree with."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from simulation.outcome import Violation

from transcript_backends import Record, SegmentInfo, TranscriptRef
from transcript_backends.keys import MarkerKey, SegmentName, TranscriptKeys
from transcript_backends.verifying import VerifyReport

REF = TranscriptRef("t", "a", "s")
NAMES = TranscriptKeys("", REF.prefix)


class Delete:
    """One call of delete: what was there, whether it has a marker, and whether it may still take in what is appended."""

    def __init__(self, there: set[Record]) -> None:
        self.there = there
        self.has_begun = False
        self.takes_in = True


class Followed:
    """What has been given for one cursor after the other.

    Attributes:
        mistaken: of the records, those that came after a delete had ended which had not when the follower looked, and stand
            under keys that it may have seen in the life before: they are given again.
    """

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.cursor: str | None = None
        self.mistaken: set[Record] = set()


class Look:
    """One look at the transcript, still going on: what it must show, must not show, and need not, being deleted."""

    def __init__(self, must: set[Record], keys: set[str], never: set[Record], touched: set[Record]) -> None:
        self.must = must
        self.keys = keys
        self.never = never
        self.touched = touched
        self.may_be_deleted = False  # because a delete, or the repair of one, is running at some time of it
        self.is_overtaken = False  # by a delete from its beginning to its end


class Facts:
    """The records by what must be true of them.

    Attributes:
        content: the records in each segment that stands in the store, compacted or not.
        present: records that were stored or acknowledged, ever.
        touched: those of them that a delete may have removed, and nobody has stored since deletes ended.
        gone: those that a finished delete found at its beginning, and nobody has stored since.
        keys: the body of each key that append_segment returned.
        looks: the looks that are going on.
        followed: what followers were given, and of that what none is at work on.
        deletes_ended: how many have finished.
        births: how often something was stored under a key.
    """

    def __init__(self) -> None:
        self.content: dict[str, list[Record]] = {}
        self.present: set[Record] = set()
        self.touched: set[Record] = set()
        self.gone: set[Record] = set()
        self.keys: dict[str, bytes] = {}
        self.looks: list[Look] = []
        self.followed: list[Followed] = []
        self.idle_followed: list[Followed] = []
        self._ever_touched: set[Record] = set()
        self._lives: Counter[str] = Counter()  # by writer id
        self._bodies: defaultdict[str, set[bytes]] = defaultdict(set)  # of keys, in all their lives
        self._by_line: dict[bytes, Record] = {}
        self._acknowledged_before: dict[Record, set[Record]] = {}
        self._acknowledged: dict[str, set[Record]] = {}
        self._deletes: list[Delete] = []
        self._stored_keys: set[str] = set()
        self._touched_keys: set[str] = set()
        self._doomed = Counter[str]()
        self._repairing: dict[str, Collection[str]] = {}
        self.deletes_ended = 0
        self.births = Counter[str]()

    # --- events -------------------------------------------------------------------------------------------------------

    def new_record(self, seq: int, writer_id: str, padding: int) -> Record:
        line = b'{"n":%d,"w":"%s","l":%d,"p":"%s"}' % (seq, writer_id.encode(), self._lives[writer_id], b"." * padding)
        return self._by_line.setdefault(line, Record(seq, writer_id, line))

    def free_writer_ids(self) -> set[str]:
        """Those that were used in an earlier life, of which nothing is left and nobody removes anything any more."""
        if self._deletes or any(self._doomed.values()):
            return set()
        return {each.writer_id for each in self.present} - {each.writer_id for each in self._stored_records()}

    def begins_anew(self, writer_id: str) -> None:
        """From now on another writer has this id."""
        self._lives[writer_id] += 1
        for key in [key for key, body in self.keys.items() if self.records_in(body)[0].writer_id == writer_id]:
            del self.keys[key]

    def stored(self, key: str, body: bytes) -> None:
        """An object has come into being."""
        self.births[key] += 1
        match NAMES.parse(key):
            case SegmentName(generation=generation):
                records = self.content[key] = self.records_in(body)
                if generation is None:
                    self._stored_keys.add(key)
                    self._bodies[key].add(body)
                    for record in records:
                        self._acknowledged_before.setdefault(record, set(self._acknowledged.get(record.writer_id, ())))
                    self.present.update(records)
                    self.gone.difference_update(records)
                    for look in self.looks:
                        look.never.difference_update(records)
                    for delete in self._deletes:
                        delete.there.difference_update(records)
                    if any(delete.takes_in for delete in self._deletes) or any(
                        key in keys for keys in self._repairing.values()
                    ):
                        self._touch(records)
                    elif not self._deletes and not self._doomed[key]:
                        self.touched.difference_update(records)
                        self._touched_keys.discard(key)
            case MarkerKey(done=False):  # also one whose owner died long ago
                self._touch(self._stored_records())

    def removed(self, key: str) -> None:
        self.content.pop(key, None)

    def acknowledged(self, key: str, body: bytes) -> None:
        """append_segment has returned."""
        for record in self.records_in(body):
            self.present.add(record)
            self._acknowledged.setdefault(record.writer_id, set()).add(record)
        self.keys[key] = body

    def delete_begins(self) -> Delete:
        self._deletes.append(Delete(self._stored_records()))
        for look in self.looks:
            look.may_be_deleted = True
        self._touch(self._deletes[-1].there)
        return self._deletes[-1]

    def delete_ends(self, delete: Delete, *, finished: bool) -> None:
        self._deletes.remove(delete)
        if finished:
            self.deletes_ended += 1
            for look in self.looks:
                look.is_overtaken = True
            self.gone.update(delete.there)

    @contextmanager
    def unconditional(self, keys: Iterable[str]) -> Iterator[None]:
        """What goes on inside removes whatever these keys hold by then.

        So it also removes what is stored again under one of them after the delete of a whole transcript: nothing short of
        conditional deletes can help that, so it is no fault.
        """
        keys = list(keys)
        self._doomed.update(keys)
        try:
            yield
        finally:
            self._doomed.subtract(keys)

    def lives_of(self, key: str) -> int:
        """How many contents a key has had."""
        return len(self._bodies[key])

    def is_under_a_key_of_the_past(self, record: Record) -> bool:
        """Whether a key that a record was stored under has had another content."""
        return any(record.line in body.splitlines() for bodies in self._bodies.values() if len(bodies) > 1 for body in bodies)

    def outlived(self, key: str) -> None:
        """A request of the delete of a whole transcript is carried out now, on what it was sent for, long after it was sent.

        Where that is a compacted segment, it takes what was appended once more meanwhile as well: this was removed, or is about
        to be, since that segment holds it.
        """
        self._touch(self.content.get(key, ()))
        for look in self.looks:
            look.may_be_deleted = True

    def repairs(self, actor: str, keys: Collection[str]) -> None:
        """Keep what somebody finishes a dead delete by: its requests may be made again, after a key was stored again."""
        self._repairing[actor] = keys
        if keys:
            for look in self.looks:
                look.may_be_deleted = True

    def new_followed(self) -> Followed:
        self.followed.append(Followed())
        return self.followed[-1]

    def _touch(self, records: Iterable[Record]) -> None:
        self.touched.update(records)
        self._ever_touched.update(records)
        self._touched_keys |= self._stored_keys
        for look in self.looks:
            look.must.difference_update(records)
            look.touched.update(records)
            look.keys -= self._stored_keys

    def records_in(self, body: bytes) -> list[Record]:
        unknown = [line for line in body.splitlines() if line not in self._by_line]
        if unknown:
            raise Violation(f"lines nobody wrote: {unknown}")
        return [self._by_line[line] for line in body.splitlines()]

    def _stored_records(self) -> set[Record]:
        return {record for records in self.content.values() for record in records}

    # --- invariants ---------------------------------------------------------------------------------------------------

    @contextmanager
    def look(self) -> Iterator[Look]:
        """What goes on inside is a look at the transcript."""
        look = Look(self.present - self.touched, self.keys.keys() - self._touched_keys, set(self.gone), set(self.touched))
        look.may_be_deleted = bool(self._deletes or self._doomed)
        self.looks.append(look)
        try:
            yield look
        finally:
            self.looks.remove(look)

    def check_records(self, look: Look, found: Sequence[Record]) -> None:
        if len(set(found)) < len(found):
            _fail("shown twice", {each for each in found if found.count(each) > 1}, found)
        if any(later[:2] < earlier[:2] for earlier, later in pairwise(found)):
            _fail("out of order", [], found)
        _fail_if("never written", set(found) - self.present, found)
        _fail_if("lost", look.must - set(found), found)
        _fail_if("deleted, and back", look.never & set(found), found)
        earlier = {each for record in found for each in self._acknowledged_before[record] if each.seq < record.seq}
        if look.is_overtaken:
            return
        _fail_if("shown without what its writer wrote before it", earlier - look.touched - set(found), found)

    def check_followed(self, followed: Followed, *, is_all: bool = False) -> None:
        given = Counter(followed.records)
        _fail_if(
            "followed twice",
            {each for each in given if given[each] > 1} - self._ever_touched - followed.mistaken,
            followed.records,
        )
        _fail_if("never written", given.keys() - self.present, followed.records)
        if is_all:
            _fail_if("not followed", self.present - self._ever_touched - given.keys(), followed.records)

    def check_copy(self, look: Look, found: Sequence[Record]) -> None:
        """``found`` is what the destination holds."""
        if len(set(found)) < len(found):
            _fail("copied twice", {each for each in found if found.count(each) > 1}, found)
        _fail_if("never written", set(found) - self.present, found)
        _fail_if("not copied", look.must - set(found), found)

    def check_report(self, look: Look, report: VerifyReport) -> None:
        """Where nobody deletes, there is nothing to find but what is harmless, or left of a delete that has died."""
        found = [each for each in report.problems if not each.harmless and each.kind != "unfinished delete"]
        if found and not look.may_be_deleted:
            raise Violation(f"faults where there are none: {found}")

    def check_next_seq(self, look: Look, next_seq: int) -> None:
        _fail_if(f"not below next_seq {next_seq}", {each for each in look.must if each.seq >= next_seq}, [])

    def check_segments(self, look: Look, segments: Sequence[SegmentInfo]) -> None:
        if [each.seq_start for each in segments] != sorted(each.seq_start for each in segments):
            raise Violation(f"segments out of order: {segments}")
        uncovered = {
            record for record in look.must if not any(each.seq_start <= record.seq <= each.seq_end for each in segments)
        }
        _fail_if("in no listed segment", uncovered, [])

    def check_refs(self, look: Look, refs: Sequence[TranscriptRef]) -> None:
        if refs not in ([REF], []):
            raise Violation(f"transcripts nobody has begun: {refs}")
        if not refs:
            _fail_if("in no listed transcript", look.must, [])
        elif self.present <= look.never:
            raise Violation("deleted, and listed as a transcript")

    def _is_of_the_next_life(self, key: str, body: bytes) -> bool:
        """Whether these are the records that a key names, of another writer of that name, who cut them otherwise."""
        name, records = NAMES.parse(key), self.records_in(body)
        assert isinstance(name, SegmentName)
        range_of = [(seq, name.writer_id) for seq in range(name.seq_start, name.seq_end + 1)]
        lives = {each.json()["l"] for each in records}
        return [each[:2] for each in records] == range_of and len(lives) == 1 and 0 not in lives

    def check_segment(self, look: Look, key: str, body: bytes | None) -> None:
        """``body`` is None where read_segment says there is no such segment."""
        if body is None:
            if key in look.keys:
                raise Violation(f"no longer readable: {key}")
        elif body not in self._bodies[key] and not self._is_of_the_next_life(key, body):
            raise Violation(f"{key} reads as {body!r}, not {self._bodies[key]!r}")
        elif set(self.records_in(body)) <= look.never:
            raise Violation(f"deleted, and readable: {key}")


def _fail_if(what: str, records: Iterable[Record], found: Sequence[Record]) -> None:
    if records:
        _fail(what, records, found)


def _fail(what: str, records: Iterable[Record], found: Sequence[Record]) -> None:
    shown = " ".join(f"{each.seq}:{each.writer_id}" for each in found)
    raise Violation(f"{what}: {' '.join(sorted(f'{each.seq}:{each.writer_id}' for each in records))}; read: {shown}")
