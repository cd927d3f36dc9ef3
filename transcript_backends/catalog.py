"""Which transcripts there are below a root."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import NamedTuple

from transcript_backends import keys
from transcript_backends.container import Container
from transcript_backends.drivers.driver import ObjectInfo
from transcript_backends.keys import IndexKey, MarkerKey, SegmentName, TranscriptKeys
from transcript_backends.listing import stable_listing
from transcript_backends.refs import TranscriptRef

_log = logging.getLogger(__name__)


class Glance(NamedTuple):
    """What the first objects below a store's root show.

    Attributes:
        is_there: whether there is such a place: the bucket, container or directory, and below a prefix of it any object.
        other: the key of an object that belongs to no transcript, where none of the first thousand does; else empty.
    """

    is_there: bool
    other: str = ""


def glance(container: Container, root: str) -> Glance:
    """One request, which also shows whether the bucket or container is there."""
    container.see_there()
    other = ""
    for info in islice(container.list(root, unread=lambda *_: None), _ENOUGH):
        if keys.split_key(root, info.key):
            return Glance(True)
        other = other or info.key
    return Glance(bool(other) or not root, other)


def list_refs(
    container: Container, root: str, tenant: str | None = None, agent_id: str | None = None
) -> Iterator[TranscriptRef]:
    """The transcripts that hold a segment, each once, in order of their keys.

    Costs at most one request a thousand objects, and at most two a session: once a session has shown enough, the rest of
    it is jumped over. One that seems to hold no segment, though it shows an index, may have been compacted while it was being
    listed, and is listed by itself.

    A directory that can't be read is passed over, with a warning where a transcript may be in it.
    """
    prefix = root
    agent = None if agent_id is None else keys.check_id(agent_id, "agent id") + "/"
    if tenant is not None:
        prefix += keys.check_id(tenant, "tenant") + "/" + (agent or "")
    unread = _Unread(root)
    for ids, sighting in _sessions(container, root, prefix, unread):
        ref = TranscriptRef(*ids)
        if agent_id is not None and ids[1] != agent_id:
            continue
        if sighting.alive or (not unread.is_in(ref) and _is_torn(container, root, ref, sighting)):
            yield ref


_Ids = tuple[str, str, str]
_ENOUGH = 1000  # objects of one session: a page


class _Sighting:
    """What has been seen of a session so far."""

    def __init__(self) -> None:
        self.has_plain_segment = False
        self.has_left_events = False  # in key order, no segment or marker comes after the first index or payload
        self.has_index = False
        self._generations: set[int | None] = set()
        self._marker = 0

    def add(self, parsed: keys.ParsedKey) -> None:
        match parsed:
            case SegmentName(generation=None):
                self.has_plain_segment = True
            case SegmentName(generation=generation):
                self._generations.add(generation)
            case MarkerKey(_, number):
                self._marker = max(self._marker, number)
            case _:
                self.has_left_events = True
                self.has_index |= isinstance(parsed, IndexKey)

    @property
    def settled(self) -> bool:
        """Whether more objects, in key order, change nothing."""
        return self.has_plain_segment or self.has_left_events

    @property
    def alive(self) -> bool:
        return self.has_plain_segment or self._marker in self._generations


class _Unread:
    """The directories that can't be read, of which each is told once where a transcript may be in it."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._told: set[str] = set()

    def __call__(self, directory: str, reason: str) -> None:
        if directory not in self._told and keys.may_hold(self._root, directory):
            self._told.add(directory)
            _log.warning("%s can't be read, and what transcripts have in it is left out: %s", directory, reason)

    def is_in(self, ref: TranscriptRef) -> bool:
        return any(each.startswith(self._root + ref.prefix) for each in self._told)


def _is_torn(container: Container, root: str, ref: TranscriptRef, sighting: _Sighting) -> bool:
    """Whether the listing that found nothing alive was wrong."""
    doubtful = sighting.has_index or not container.driver.capabilities.one_pass
    return doubtful and bool(stable_listing(container, TranscriptKeys(root, ref.prefix)).segments)


def _sessions(container: Container, root: str, prefix: str, unread: _Unread) -> Iterator[tuple[_Ids, _Sighting]]:
    able = container.driver.capabilities
    if not able.ordered_lists:
        sightings: dict[_Ids, _Sighting] = {}
        for ids, parsed in _recognised(root, container.list(prefix, unread=unread)):
            sightings.setdefault(ids, _Sighting()).add(parsed)
        yield from sorted(sightings.items(), key=lambda seen: TranscriptRef(*seen[0]).prefix)
        return
    start_after: str | None = ""
    while start_after is not None:
        objects = _recognised(root, container.list(prefix, start_after=start_after, unread=unread))
        start_after = None
        for ids, group in groupby(objects, key=lambda each: each[0]):
            sighting = _Sighting()
            for count, (_, parsed) in enumerate(group, 1):
                sighting.add(parsed)
                if count >= _ENOUGH and sighting.settled and able.start_after:
                    start_after = f"{root}{TranscriptRef(*ids).prefix}~"  # past all the names in it
                    break
            yield ids, sighting
            if start_after is not None:
                break


def _recognised(root: str, objects: Iterable[ObjectInfo]) -> Iterator[tuple[_Ids, keys.ParsedKey]]:
    return filter(None, (keys.split_key(root, info.key) for info in objects))
