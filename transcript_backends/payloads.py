"""The payloads of a transcript: stored so that no delete takes them from what refers to them, and put back by readers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import closing
from typing import NamedTuple, TypeVar

from transcript_backends.container import Container
from transcript_backends.errors import (
    CorruptSegmentError,
    SegmentConflictError,
    SegmentNotFoundError,
    StoreUnavailableError,
)
from transcript_backends.keys import TranscriptKeys
from transcript_backends.listing import list_once
from transcript_backends.offloading import MARK, Outside, Reference, offload, split
from transcript_backends.records import MAX_LINE_BYTES, Record
from transcript_backends.workers import Coming, Crew, Workers

_T = TypeVar("_T")
_R = TypeVar("_R")

_AHEAD_BYTES = 8 * 1024 * 1024
_AHEAD_RECORDS = 100
_PAUSES = 0.25, 0.5, 1.0  # seconds that a payload is waited for which a writer is about to store again


# --- storing ----------------------------------------------------------------------------------------------------------


def store_lines(
    container: Container,
    names: TranscriptKeys,
    lines: list[bytes],
    offload_bytes: int | None,
    append: Callable[[list[bytes]], str],
    *,
    says_so: bool = True,
) -> str:
    """Store lines by ``append``, longer ones than a limit with their large strings outside; gives what that gives.

    Args:
        container, names: the transcript.
        lines: to store, without newlines.
        offload_bytes: the limit; None: there is none.
        says_so: as for `offload`.
        append: stores lines as a segment, always under the same key; may be called several times.

    Raises:
        StoreUnavailableError, SegmentConflictError, CorruptSegmentError: see `store_payloads`.
    """
    stored: list[bytes] = []
    payloads: dict[str, bytes] = {}
    for line in lines:
        short, outside = (line, {}) if offload_bytes is None else offload(line, offload_bytes, says_so=says_so)
        stored.append(short)
        payloads.update(outside)
    if not payloads:
        return append(stored)
    whole = (lambda: append(lines)) if max(map(len, lines)) <= MAX_LINE_BYTES else None
    return store_payloads(container, names, payloads, lambda: append(stored), whole)


def store_payloads(
    container: Container,
    names: TranscriptKeys,
    payloads: Mapping[str, bytes],
    append: Callable[[], str],
    append_whole: Callable[[], str] | None,
) -> str:
    """Store payloads and then, by ``append``, what refers to them; gives what that gives.

    A delete removes a payload that it finds, although what is stored right after it looked may need that. So all this counts
    as stored only where no delete was at work from a listing before the payloads to a listing after the segment: a later one
    finds both. A delete that purges leaves no trace but that the payloads are gone, and so they are looked for in the end.
    Else everything is done again when that delete is over. Where one is at work to begin with, the lines are stored
    whole.

    Args:
        container, names: the transcript.
        payloads: by sha256.
        append: may be called several times.
        append_whole: stores the same records under the same key without payloads; None where a line is too long for that.

    Raises:
        StoreUnavailableError: a delete is at work, or has died at it, and the lines can't be stored whole any more.
        SegmentConflictError: the key holds other content.
        CorruptSegmentError: another object is in the place of a payload.
    """
    clock, retry = container.clock, container.retry
    began, pause, whole = clock.monotonic(), retry.first_pause, append_whole
    while True:
        generation = _generation(container, names)
        if generation is not None:
            _for_each(container, lambda each: _create(container, names, *each), payloads.items())
            try:
                key = append()
            except SegmentConflictError:
                if append_whole is None:
                    raise
                return append_whole()  # as an earlier try has done
            is_safe = _generation(container, names) == generation
            if is_safe and all(_for_each(container, lambda each: container.exists(names.payload(each)), payloads)):
                return key
            whole = None
        elif whole:
            try:
                return whole()
            except SegmentConflictError:
                whole = None  # an earlier try has stored it with payloads
        if clock.monotonic() + pause - began > retry.deadline:
            raise StoreUnavailableError(
                f"{names.prefix!r} is being deleted, and values stored outside of their lines wait for that to end; if nobody "
                "is at it any more, call delete, or verify with repair, when it is an hour old"
            )
        clock.sleep(pause)
        pause = min(2 * pause, retry.longest_pause)


def _generation(container: Container, names: TranscriptKeys) -> int | None:
    """The generation of a transcript; None while a delete is at work."""
    listing = list_once(container, names)
    return None if listing.unfinished else listing.generation


def _for_each(container: Container, function: Callable[[_T], _R], values: Collection[_T]) -> list[_R]:
    if len(values) == 1:
        return [function(each) for each in values]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(container.parallel) as pool:
        return list(pool.map(function, values))


def _create(container: Container, names: TranscriptKeys, sha256: str, payload: bytes) -> None:
    key = names.payload(sha256)
    try:
        container.create(key, payload)
    except SegmentConflictError as error:
        raise CorruptSegmentError(
            f"{key!r} is not what its name says; put the original in its place, or remove it: it is stored again"
        ) from error


# --- reading ----------------------------------------------------------------------------------------------------------


def read_payload(container: Container, names: TranscriptKeys, reference: Reference) -> bytes:
    """The payload that a reference names.

    Raises:
        SegmentNotFoundError: it is not there.
        CorruptSegmentError: it is not what its name says.
    """
    key = names.payload(reference.sha256)
    payload, digest, fault, _ = container.read(key, expected=reference.sha256)
    if fault:
        raise CorruptSegmentError(f"payload {key!r} is damaged: it is {len(payload)} bytes with the sha256 {digest}")
    return payload


def resolved(
    container: Container,
    names: TranscriptKeys,
    records: Generator[Record, None, None],
    generation: int,
    crew: Crew | None = None,
) -> Generator[Record, None, None]:
    """Records with the values put back that were stored outside; the payloads of a few records to come are fetched ahead.

    Args:
        container, names: the transcript.
        records: as they are stored; closed at the end.
        generation: of the transcript when it was listed.
        crew: of the reading.

    Raises:
        CorruptSegmentError: a payload is missing or damaged.
    """
    crew = crew or Crew()
    fetch = _Fetch(container, names, generation, crew)
    coming: deque[_Coming] = deque()
    ahead = 0
    previous: Record | None = None
    failure: Exception | None = None
    is_over = False
    with crew, closing(records), closing(fetch):
        while coming or not is_over:
            if not coming:
                for record in records:
                    if MARK in record.line:
                        break
                    if record != previous:
                        yield record
                        previous = record
                else:
                    break
                coming.append(fetch.begin(record))
                ahead += coming[-1].size
            while not is_over and coming[0].outside and ahead < _AHEAD_BYTES and len(coming) < _AHEAD_RECORDS:
                try:
                    coming.append(fetch.begin(next(records)))
                    ahead += coming[-1].size
                except StopIteration:
                    is_over = True
                except Exception as error:  # the records before it come first
                    failure, is_over = error, True
            first = coming.popleft()
            ahead -= first.size
            whole = first.finish()
            if whole and whole != previous:  # equal is one that was stored both with payloads and whole
                yield whole
                previous = whole
    if failure:
        raise failure


class _Coming(NamedTuple):
    """A record whose payloads are under way."""

    record: Record
    outside: Outside | None
    payloads: dict[str, Coming[Reference, bytes | None]]

    @property
    def size(self) -> int:
        return len(self.record.line) + sum(each.size for each in (self.outside.references if self.outside else ()))

    def finish(self) -> Record | None:
        """The record as it was appended; None where it has been deleted."""
        if self.outside is None:
            return self.record
        try:
            payloads = {sha256: coming.result() for sha256, coming in self.payloads.items()}
            found = {sha256: payload for sha256, payload in payloads.items() if payload is not None}
            return self.record._replace(line=self.outside.restore(found)) if len(found) == len(payloads) else None
        except (CorruptSegmentError, ValueError) as error:
            raise _corrupt(self.record, str(error)) from error


class _Fetch:
    """Fetches the payloads of records."""

    def __init__(self, container: Container, names: TranscriptKeys, generation: int, crew: Crew) -> None:
        self._container, self._names, self._generation = container, names, generation
        self._workers = Workers(crew, container.parallel)

    def begin(self, record: Record) -> _Coming:
        try:
            outside = split(record.line)
        except RecursionError as error:
            raise _corrupt(record, "it is nested too deeply for what stands outside of it to be put back") from error
        if outside is None:
            return _Coming(record, None, {})
        payloads = {each.sha256: Coming(self._read, each) for each in outside.references}
        for coming in payloads.values():
            self._workers.begin(coming.fetch)
        return _Coming(record, outside, payloads)

    def _read(self, reference: Reference) -> bytes | None:
        """The payload; None where the transcript was deleted, or is being deleted, since it was listed."""
        for pause in (*_PAUSES, None):
            try:
                return read_payload(self._container, self._names, reference)
            except SegmentNotFoundError:
                if _generation(self._container, self._names) != self._generation:
                    return None
                if pause is not None:
                    self._container.clock.sleep(pause)
        raise CorruptSegmentError(f"payload {self._names.payload(reference.sha256)!r} is missing")

    def close(self) -> None:
        """Fetch no more. Takes no lock and waits for nothing."""
        self._workers.stop()


def _corrupt(record: Record, why: str) -> CorruptSegmentError:
    return CorruptSegmentError(
        f"record {record.seq} of writer {record.writer_id} can't be put together: {why}; resolve=False gives it as it is stored"
    )
