"""What a listing of a transcript shows: segments, markers, generation, and what is somebody else's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import groupby
from typing import NamedTuple

from transcript_backends import keys
from transcript_backends.container import Container
from transcript_backends.drivers.driver import ObjectInfo
from transcript_backends.keys import IndexKey, MarkerKey, PayloadKey, SegmentKey, TranscriptKeys
from transcript_backends.refs import TranscriptRef


class SegmentInfo(NamedTuple):
    """One immutable segment.

    Attributes:
        key: relative to the container, the store's root included.
        seq_start, seq_end: inclusive.
        writer_id: who wrote it.
        created_at: aware, UTC, the server's clock.
        size: bytes.
    """

    key: str
    seq_start: int
    seq_end: int
    writer_id: str
    created_at: datetime
    size: int


class Marker(NamedTuple):
    """A deletion marker."""

    done: bool
    number: int
    info: ObjectInfo


class Listing:
    """One listing of a transcript, sorted out. Pure.

    Attributes:
        segments: what readers may use, by (seq_start, seq_end, writer_id, key).
        dead: compacted segments of an older generation: left by a compaction that a delete overtook.
        indexes: (generation of its segment, the object) of every segment index.
        payloads: offloaded payloads.
        markers: deletion markers.
        foreign: how many objects are somebody else's.
        generation: the highest number among the markers, 0 without any.
    """

    def __init__(self, names: TranscriptKeys, objects: Iterable[ObjectInfo]) -> None:
        found: list[tuple[int | None, SegmentInfo]] = []
        self.indexes: list[tuple[int, ObjectInfo]] = []
        self.payloads: list[ObjectInfo] = []
        self.markers: list[Marker] = []
        self.foreign = 0
        for info in objects:
            match names.parse(info.key):
                case SegmentKey(name):
                    found.append((name.generation, SegmentInfo(info.key, *name, info.created_at, info.size)))
                case IndexKey(name):
                    self.indexes.append((name.generation or 0, info))
                case PayloadKey():
                    self.payloads.append(info)
                case MarkerKey(done, number):
                    self.markers.append(Marker(done, number, info))
                case None:
                    self.foreign += 1
        self.generation = max((each.number for each in self.markers), default=0)
        alive = (None, self.generation)
        self.segments = sorted(
            (segment for generation, segment in found if generation in alive),
            key=lambda each: (each.seq_start, each.seq_end, each.writer_id, each.key),
        )
        self.dead = [(generation, segment) for generation, segment in found if generation not in alive]

    @property
    def next_seq(self) -> int:
        """One past the highest seq, 0 for an empty transcript."""
        return max((each.seq_end for each in self.segments), default=-1) + 1


def list_transcript(container: Container, names: TranscriptKeys) -> Listing:
    """List what belongs to reading a transcript: ``events/`` and ``index/``."""
    # Payloads sort last and may be many: an ordered store is not asked for them. Nothing of ours sorts before events/, so
    # no start is given: servers have answered one with nothing at all.
    end = names.prefix + keys.PAYLOADS if container.driver.capabilities.ordered_lists else None
    objects = container.list(names.prefix)
    return Listing(names, _until(objects, end))


def list_everything(container: Container, names: TranscriptKeys) -> Listing:
    """List all objects of a transcript, payloads included."""
    return Listing(names, container.list(names.prefix))


def _until(objects: Iterable[ObjectInfo], end: str | None) -> Iterator[ObjectInfo]:
    for info in objects:
        if end is not None and info.key >= end:
            return
        yield info


def list_refs(
    container: Container, root: str, tenant: str | None = None, agent_id: str | None = None
) -> Iterator[TranscriptRef]:
    """The transcripts that hold a segment, each once, in order of their keys.

    Costs at most one request a thousand objects, and at most two a session: once a session has shown enough, the rest of
    it is jumped over.
    """
    prefix = root
    agent = None if agent_id is None else keys.check_id(agent_id, "agent id") + "/"
    if tenant is not None:
        prefix += keys.check_id(tenant, "tenant") + "/" + (agent or "")
    for ids in _live_sessions(container, root, prefix):
        if agent_id is None or ids[1] == agent_id:
            yield TranscriptRef(*ids)


_Ids = tuple[str, str, str]
_ENOUGH = 1000  # objects of one session: a page


class _Sighting:
    """What has been seen of a session so far."""

    def __init__(self) -> None:
        self.has_plain_segment = False
        self.has_left_events = False  # in key order, no segment or marker comes after the first index or payload
        self._generations: set[int] = set()
        self._marker = 0

    def add(self, parsed: keys.ParsedKey) -> None:
        match parsed:
            case SegmentKey(name) if name.generation is None:
                self.has_plain_segment = True
            case SegmentKey(name):
                self._generations.add(name.generation or 0)
            case MarkerKey(_, number):
                self._marker = max(self._marker, number)
            case _:
                self.has_left_events = True

    @property
    def settled(self) -> bool:
        """Whether more objects, in key order, change nothing."""
        return self.has_plain_segment or self.has_left_events

    @property
    def alive(self) -> bool:
        return self.has_plain_segment or self._marker in self._generations


def _live_sessions(container: Container, root: str, prefix: str) -> Iterator[_Ids]:
    able = container.driver.capabilities
    if not able.ordered_lists:
        sightings: dict[_Ids, _Sighting] = {}
        for ids, parsed in _recognised(root, container.list(prefix)):
            sightings.setdefault(ids, _Sighting()).add(parsed)
        alive = (ids for ids, sighting in sightings.items() if sighting.alive)
        yield from sorted(alive, key=lambda ids: TranscriptRef(*ids).prefix)
        return
    start_after: str | None = ""
    while start_after is not None:
        objects = _recognised(root, container.list(prefix, start_after=start_after))
        start_after = None
        for ids, group in groupby(objects, key=lambda each: each[0]):
            sighting = _Sighting()
            for count, (_, parsed) in enumerate(group, 1):
                sighting.add(parsed)
                if count >= _ENOUGH and sighting.settled and able.start_after:
                    start_after = f"{root}{TranscriptRef(*ids).prefix}~"  # past all the names in it
                    break
            if sighting.alive:
                yield ids
            if start_after is not None:
                break


def _recognised(root: str, objects: Iterable[ObjectInfo]) -> Iterator[tuple[_Ids, keys.ParsedKey]]:
    return filter(None, (keys.split_key(root, info.key) for info in objects))
