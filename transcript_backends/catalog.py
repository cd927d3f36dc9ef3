"""Which transcripts there are below a root, and what else is there that looks like one."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from typing import Literal, NamedTuple

from transcript_backends import keys
from transcript_backends.container import Container
from transcript_backends.drivers.driver import ObjectInfo
from transcript_backends.errors import InvalidRefError
from transcript_backends.keys import IndexKey, MarkerKey, SegmentName, Spelling, TranscriptKeys
from transcript_backends.listing import stable_listing
from transcript_backends.refs import TranscriptRef

_log = logging.getLogger(__name__)

_NAMED = 3  # of those left out, in a message


class Skipped(NamedTuple):
    """What a listing of transcripts leaves out.

    Attributes:
        path: below the root, as it is written there.
        reason: ``spelling``: a transcript whose ids are written in another way than this store's; ``no records``: payloads,
            indexes or dead segments without a segment to read: another program has deleted or moved what was there, or a
            delete or an append has died.
        ids: for ``spelling``, the value of the store's setting ``ids`` that reads it; empty where none does.
    """

    path: str
    reason: Literal["spelling", "no records"]
    ids: str = ""


class SkippedCount:
    """Counts what listings leave out, and tells of it in a few words. Call it with each; as ``on_skipped``, say."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], dict[str, None]] = {}

    def __call__(self, skipped: Skipped) -> None:
        self._found.setdefault(skipped[1:], {})[skipped.path] = None

    def __len__(self) -> int:
        return sum(map(len, self._found.values()))

    @property
    def messages(self) -> list[str]:
        """A sentence for each reason: how many, the first few, and what to do."""
        return [_message(reason, ids, list(paths)) for (reason, ids), paths in self._found.items()]


def _message(reason: str, ids: str, paths: list[str]) -> str:
    number = "1 transcript is" if len(paths) == 1 else f"{len(paths)} transcripts are"
    names = ", ".join(map(repr, paths[:_NAMED])) + ", ..." * (len(paths) > _NAMED)
    if reason == "no records":
        return (
            f"{number} left out without a segment, but with payloads or indexes: {names}; another program has deleted the "
            "segments, or a delete or an append has died: delete what is not needed"
        )
    remedy = f"open the store with ids={ids} for them" if ids else "no setting reads them: rename them"
    return f"{number} left out whose ids are spelled otherwise than in this store: {names}; {remedy}"


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
        if (found := keys.split_key(root, info.key)) and found.names_three:
            return Glance(True)
        other = other or info.key
    return Glance(bool(other) or not root, other)


def list_refs(
    container: Container,
    root: str,
    spelling: Spelling,
    tenant: str | None = None,
    agent_id: str | None = None,
    on_skipped: Callable[[Skipped], object] | None = None,
) -> Iterator[TranscriptRef]:
    """The transcripts that hold a segment, each once, in order of their keys.

    Costs at most one request a thousand objects, and at most two a session: once a session has shown enough, the rest of
    it is jumped over. One that seems to hold no segment, though it shows an index, may have been compacted while it was being
    listed, and is listed by itself. What is left out goes to ``on_skipped``, or into a warning at the end.

    A directory that can't be read is passed over, with a warning where a transcript may be in it.
    """
    count = SkippedCount()
    skip = count if on_skipped is None else on_skipped
    if agent_id is not None:
        spelling.write(agent_id, "agent id")  # or what is wrong with it
    unread = _Unread(root, spelling)
    for path, sighting in _sessions(container, root, _prefix(root, spelling, tenant, agent_id), skip, unread):
        ids = keys.read_path(spelling, path)
        if ids is None:
            if sighting.holds_data and (agent_id is None or _may_be(path, agent_id)):
                skip(_misspelt(path, spelling))
        elif agent_id is None or ids[1] == agent_id:
            if sighting.alive:
                yield TranscriptRef(*ids)
            elif unread.is_in(f"{root}{path}/"):
                continue
            elif _is_torn(container, root, path, sighting):
                yield TranscriptRef(*ids)
            elif sighting.holds_data:
                skip(Skipped(path, "no records"))
    for skipped in _misplaced(container, root, spelling, tenant, agent_id, unread):
        skip(skipped)
    for message in count.messages:
        _log.warning("%s/%s: %s", container.driver.location, root, message)


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

    @property
    def holds_data(self) -> bool:
        """Whether there is anything but markers."""
        return bool(self.has_plain_segment or self._generations or self.has_left_events)


class _Unread:
    """The directories that can't be read, of which each is told once where a transcript may be in it."""

    def __init__(self, root: str, spelling: Spelling) -> None:
        self._root = root
        self._spelling = spelling
        self._told: set[str] = set()

    def __call__(self, directory: str, reason: str) -> None:
        if directory not in self._told and keys.may_hold(self._root, self._spelling, directory):
            self._told.add(directory)
            _log.warning("%s can't be read, and what transcripts have in it is left out: %s", directory, reason)

    def is_in(self, prefix: str) -> bool:
        return any(each.startswith(prefix) for each in self._told)


def _is_torn(container: Container, root: str, path: str, sighting: _Sighting) -> bool:
    """Whether the listing that found nothing alive was wrong."""
    doubtful = sighting.has_index or not container.driver.capabilities.one_pass
    return doubtful and bool(stable_listing(container, TranscriptKeys(root, f"{path}/")).segments)


def _sessions(
    container: Container, root: str, prefix: str, skip: Callable[[Skipped], object], unread: _Unread
) -> Iterator[tuple[str, _Sighting]]:
    """Each session with an object of ours, by its path below the root."""
    able = container.driver.capabilities
    if not able.ordered_lists:
        sightings: dict[str, _Sighting] = {}
        for path, parsed in _recognised(root, container.list(prefix, unread=unread), skip):
            sightings.setdefault(path, _Sighting()).add(parsed)
        yield from sorted(sightings.items(), key=lambda seen: f"{seen[0]}/")
        return
    start_after: str | None = ""
    while start_after is not None:
        objects = _recognised(root, container.list(prefix, start_after=start_after, unread=unread), skip)
        start_after = None
        for path, group in groupby(objects, key=lambda each: each[0]):
            sighting = _Sighting()
            for count, (_, parsed) in enumerate(group, 1):
                sighting.add(parsed)
                if count >= _ENOUGH and sighting.settled and able.start_after:
                    start_after = f"{root}{path}/~"  # past all the names in it
                    break
            yield path, sighting
            if start_after is not None:
                break


def _recognised(
    root: str, objects: Iterable[ObjectInfo], skip: Callable[[Skipped], object]
) -> Iterator[tuple[str, keys.ParsedKey]]:
    """The path and the kind of each object of ours. A segment in another depth is nobody's, and left out."""
    for info in objects:
        found = keys.split_key(root, info.key)
        if found is None:
            continue
        if found.names_three:
            yield found
        else:
            skip(Skipped(found.path, "spelling"))


# --- what is written otherwise ----------------------------------------------------------------------------------------


def _prefix(root: str, spelling: Spelling, tenant: str | None, agent_id: str | None) -> str:
    """Where the transcripts of a tenant are, or of one of its agents."""
    if tenant is None:
        return root
    agent = "" if agent_id is None else spelling.write(agent_id, "agent id") + "/"
    return f"{root}{spelling.write(tenant, 'tenant')}/{agent}"


def _misspelt(path: str, spelling: Spelling) -> Skipped:
    return Skipped(path, "spelling", next((each.ids for each in _others(spelling) if keys.read_path(each, path)), ""))


def _others(spelling: Spelling) -> list[Spelling]:
    return [each for each in (keys.ESCAPED, keys.RAW) if each.ids != spelling.ids]


def _may_be(path: str, wanted: str) -> bool:
    """Whether the agent in a path may be this one, in whatever spelling."""
    segment = path.split("/")[1]
    return wanted in (segment, keys.ESCAPED.read(segment), keys.RAW.read(segment))


def _misplaced(
    container: Container, root: str, spelling: Spelling, tenant: str | None, agent_id: str | None, unread: _Unread
) -> Iterator[Skipped]:
    """What there is of a tenant, or of one of its agents, where another spelling writes it."""
    prefix = _prefix(root, spelling, tenant, agent_id)
    for other in _others(spelling):
        with contextlib.suppress(InvalidRefError):  # too long for that one
            if (others := _prefix(root, other, tenant, agent_id)) != prefix:
                for path, sighting in _sessions(container, root, others, lambda _: None, unread):
                    if sighting.holds_data:
                        yield _misspelt(path, spelling)
