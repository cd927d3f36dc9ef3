"""Deleting a transcript so that nothing of it comes back, whatever else is running (docs/storage-contract.md)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta
from operator import attrgetter
from typing import NamedTuple

from transcript_backends import errors
from transcript_backends.container import Container, unused_key
from transcript_backends.drivers.driver import ObjectInfo
from transcript_backends.filesystem import is_full
from transcript_backends.keys import EVENTS, SegmentName, TranscriptKeys
from transcript_backends.listing import Listing, Marker, SegmentInfo, gaps, stable_listing

_ABANDONED = timedelta(hours=1)  # after this long by the server's clock a marker's owner counts as dead
_PATIENCE_SECONDS = 50 * 60  # a delete that takes longer can no longer rely on its own marker


class DeleteResult(NamedTuple):
    """What a delete did.

    Attributes:
        deleted: how many objects of the transcript were there and are gone: segments, indexes, payloads.
        generation: the number of this delete; 0 where there was nothing to delete.
    """

    deleted: int
    generation: int


def delete_transcript(container: Container, names: TranscriptKeys, *, purge: bool) -> DeleteResult:
    """Delete all that a transcript holds when this is called; what is appended meanwhile stays.

    Raises:
        AccessDeniedError: nothing may be deleted; nothing was deleted, and readers see all of it.
        StoreUnavailableError: the store is not, or there is no room on the disk, not even for an empty file.
        PartialDeleteError: something is still there; calling again finishes the work.
    """
    began = container.clock.monotonic()
    before = _list(container, names)
    if not _content(before) and not before.unfinished:
        if purge:
            _remove(container, before.markers)
            _purge_rest(container, names)
        return DeleteResult(0, before.generation)
    first = _delete_first(container, names, before)
    container.gaps.keep(names.prefix, frozenset(gaps(each for each in before.segments if each.key != first)))  # one is ours
    number, standing = _claim(container, names, before.generation + 1)

    doomed = _content(standing)
    total = len(doomed) + (first is not None and first not in doomed)
    failed = container.delete(doomed)

    after = _list(container, names)
    rewritten = set(after.payloads) - set(standing.payloads)  # by what is appended meanwhile; nothing else has its key again
    remaining = _content(after).keys() - {each.key for each in rewritten}
    again = [key for key in doomed if key in remaining and key not in failed]
    failed.update((key, "written again while it was being deleted") for key in again if container.exists(key))
    overtaken = {key: version for key, version in _older_than(after, number).items() if key not in failed}
    failed.update(container.delete(overtaken))
    if failed:
        raise _in_part(f"{len(failed)} of {total} objects below {names.prefix!r} could not be deleted", failed)

    own = next((each for each in after.markers if not each.done and each.number == number), None)
    if own is None or container.clock.monotonic() - began > _PATIENCE_SECONDS:
        raise errors.PartialDeleteError(
            f"the delete of {names.prefix!r} took so long that its marker may have been taken for abandoned; call delete again"
        )
    if not purge:
        container.create(names.deleted(number), b"")
    # Our own stays, even now: a listing that shows neither of our two, come too early for one and too late for the other,
    # would take what it shows for that of the life before.
    finished = {each.number: each for each in after.markers if each.done and (purge or each.number < number)}
    others = [each for each in after.markers if not each.done and each.number != number]
    dead = [each for each in after.unfinished if own.info.created_at - each.info.created_at > _ABANDONED]
    _remove(container, [each for each in others if each.number in finished or each in dead])
    _remove(container, list(finished.values()))  # later, or it would leave one that looks like that of a delete at work
    if purge:
        _remove(container, [own])  # last: until then nobody compacts
        _purge_rest(container, names)
    return DeleteResult(total, number)


def _purge_rest(container: Container, names: TranscriptKeys) -> None:
    """Remove old versions as well, of whatever was deleted here before: by compactions too, and by deletes without a purge."""
    if failed := container.purge(names.prefix):
        raise _in_part(f"{len(failed)} keys below {names.prefix!r} have old versions that could not be removed", failed)


def _in_part(what: str, failed: dict[str, str]) -> errors.PartialDeleteError:
    shown = "; ".join(f"{key}: {reason}" for key, reason in list(failed.items())[:3])
    return errors.PartialDeleteError(f"{what} ({shown}); call delete again to finish", failed)


def finish_abandoned_deletes(container: Container, names: TranscriptKeys) -> tuple[list[str], dict[str, str]]:
    """Finish deletes whose owner died: those an hour old, for what is older than their marker, by the server's clock.

    Gives the keys removed, and key -> reason of those that could not be.
    """
    listing = _list(container, names)
    now = container.server_time()
    abandoned = [each for each in listing.unfinished if now and now - each.info.created_at > _ABANDONED]
    if not abandoned:
        return [], {}
    latest = max(abandoned, key=lambda each: each.number)
    old = [each for each in _objects(listing) if each.created_at < latest.info.created_at]
    kept = set(listing.payloads if set(listing.segments).difference(old) else ())  # what came later may refer to any of them
    doomed = _versions(listing, (each for each in old if each not in kept))
    failed = container.delete(doomed)
    if not failed:
        container.create(names.deleted(latest.number), b"")
        others = {each.info.key: each.info.version for each in abandoned if each is not latest}
        doomed.update(others)
        failed = container.delete(others)
    return [key for key in doomed if key not in failed], failed


def _delete_first(container: Container, names: TranscriptKeys, listing: Listing) -> str | None:
    """Delete one segment before a marker says so, to see whether anything can be deleted; returns its key.

    A marker hides what is compacted, so one that is written by somebody who may not delete, or under a retention policy,
    would hide records that stay. It can't be withdrawn: that would be a delete. Of the segments it is the youngest, which a
    retention policy keeps for longest, but not one that holds up ``next_seq``: a process that dies right after this leaves no
    marker, and without one no seq may be used again. Where that leaves none, nothing is compacted, and a key is tried where
    there is nothing.

    Raises:
        AccessDeniedError: it can't.
    """
    next_seq = listing.next_seq
    spare = (each for each in reversed(listing.segments) if each.seq_end + 1 < next_seq or each.name in listing.indexes)
    youngest = max(spare, key=attrgetter("created_at"), default=None)
    if youngest is None:
        container.delete_one(unused_key(f"{names.prefix}{EVENTS}".rstrip("/")))
        return None
    container.delete_one(youngest.key, listing.versions.get(youngest.key, ""))
    return youngest.key


def _claim(container: Container, names: TranscriptKeys, number: int) -> tuple[int, Listing]:
    """Write a ``deleting`` marker of our own, shared with no other delete; gives its number, and what stood after it."""
    while True:
        if not _create_marker(container, names, number):
            number += 1
            continue
        standing = _list(container, names)
        if not any(each.number > number or (each.done and each.number == number) for each in standing.markers):
            return number, standing
        # Another delete has used and finished this number since, or begun a later generation, of which records may be there.
        _remove(container, [each for each in standing.markers if not each.done and each.number == number])
        number = standing.generation + 1


def _create_marker(container: Container, names: TranscriptKeys, number: int) -> bool:
    """Whether a ``deleting`` marker of this number is ours now; False where it is, or may be, another delete's.

    On a full disk there is still room for an empty file, mostly: then the marker is one.
    """
    key = names.deleting(number)
    token = os.urandom(16).hex().encode()  # unique content, or two deletes would take one marker for their own
    try:
        container.create(key, token)
        return True
    except errors.SegmentConflictError:
        return False
    except errors.StoreUnavailableError as error:
        if not is_full(error.__cause__):
            raise
    try:
        return container.create(key, b"")  # of equal content; only where this call has created it, it is ours for sure
    except errors.SegmentConflictError:
        return False
    except errors.StoreUnavailableError as error:
        if not is_full(error.__cause__):
            raise
        place = f"{container.driver.location}/{names.prefix}"
        raise errors.StoreUnavailableError(
            f"there is no room for the marker of a delete, {key!r}, not even for an empty file: make some on that disk, by "
            f"removing a file that is not needed, and delete again; or, while nothing else uses it, remove {place}"
        ) from error


def _objects(listing: Listing) -> list[SegmentInfo | ObjectInfo]:
    """All that belongs to the transcript, markers aside."""
    return [*listing.segments, *listing.dead, *listing.indexes.values(), *listing.payloads]


def _versions(listing: Listing, objects: Iterable[SegmentInfo | ObjectInfo]) -> dict[str, str]:
    """The versions of some objects of a listing, by key."""
    return {each.key: each.version if isinstance(each, ObjectInfo) else listing.versions.get(each.key, "") for each in objects}


def _content(listing: Listing) -> dict[str, str]:
    return _versions(listing, _objects(listing))


def _older_than(listing: Listing, number: int) -> dict[str, str]:
    """Compacted segments and indexes that a compaction begun before this delete has put there since."""
    segments = (segment for segment in listing.dead if _is_older(segment.name, number))
    indexes = (info for name, info in listing.indexes.items() if _is_older(name, number))
    return _versions(listing, [*segments, *indexes])


def _is_older(name: SegmentName, number: int) -> bool:
    return name.generation is not None and name.generation < number


def _list(container: Container, names: TranscriptKeys) -> Listing:
    """Everything, with the versions of all where they are of use: there may be very many."""
    return stable_listing(container, names, payloads=True, versioned=container.driver.capabilities.conditional_delete)


def _remove(container: Container, markers: Iterable[Marker]) -> None:
    failed = container.delete({each.info.key: each.info.version for each in markers})
    if failed:
        raise errors.PartialDeleteError(f"deletion markers could not be removed: {failed}; call delete again", failed)
