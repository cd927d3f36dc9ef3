"""Finding out that two live writers share a writer id, which their users must not let happen.

A writer id of a user's choice is claimed: the first batch under it is a single record, so that two writers that begin at
the same seq collide, and after it one listing shows whether the id holds anything from that seq on that is not this
writer's. The other writer may be slow, and not see this one in its own listing: so a writer that was idle claims its id
again, and a new one looks once more some seconds later. Of two writers that go on, at least one is told.
"""

from __future__ import annotations

from transcript_backends.container import Container
from transcript_backends.errors import SegmentNotFoundError
from transcript_backends.keys import SegmentName, TranscriptKeys
from transcript_backends.listing import SegmentInfo
from transcript_backends.ranges import Ranges
from transcript_backends.reading import look

_IDLE_SECONDS = 10.0


class Claim:
    """A writer's claim to its id.

    Args:
        container, names: the transcript.
        writer_id: the id.
        is_random: whether it is nobody else's, and needs no claim.
    """

    def __init__(self, container: Container, names: TranscriptKeys, writer_id: str, *, is_random: bool) -> None:
        self._container, self._names, self._writer_id = container, names, writer_id
        self._is_random = is_random
        self._is_claimed = self._is_settled = is_random
        self._stored: dict[tuple[int, int], str] = {}  # sha256 by range, of what was stored since the id was claimed
        self._began: int | None = None  # with this seq
        self._stored_at = self._claimed_at = 0.0

    def begin_batch(self) -> bool:
        """Whether the next batch may hold more than one record."""
        if not self._is_random and self._is_claimed and self._container.clock.monotonic() - self._stored_at > _IDLE_SECONDS:
            self._is_claimed = False
        return self._is_claimed

    def batch_is_stored(self, seq_start: int, seq_end: int, sha256: str) -> str | None:
        """Know of a batch that was stored; returns the name of what another writer has stored under the id, if that shows."""
        if self._is_random:
            return None
        now = self._container.clock.monotonic()
        if not self._is_claimed or self._is_settled:
            self._stored.clear()
        is_late = self._is_claimed and now - self._stored_at > _IDLE_SECONDS
        self._stored[seq_start, seq_end] = sha256
        self._began = seq_start if self._began is None else self._began
        self._stored_at = now
        if self._is_claimed and not is_late and (self._is_settled or now - self._claimed_at <= _IDLE_SECONDS):
            return None
        if (other := self._other()) is not None:
            return other
        self._is_settled = self._is_settled or self._is_claimed
        if not self._is_claimed:
            self._is_claimed, self._claimed_at = True, now
        return None

    def _other(self) -> str | None:
        """What is under the id from the first seq claimed on, and not among what was stored; or one seq twice, ever."""
        first, last = next(iter(self._stored))[0], max(end for _, end in self._stored)
        began = first if self._began is None else self._began
        plan = look(self._container, self._names)
        standing: list[SegmentInfo] = []
        merged: dict[SegmentName, str] = {}
        for segment in plan.segments:
            if segment.writer_id == self._writer_id:
                if segment.seq_end >= first and (segment.seq_start, segment.seq_end) not in self._stored:
                    return segment.key
                standing += [segment] if segment.seq_end >= began else []
                continue
            index = plan.indexes.find(segment.name)
            if index is None:
                continue
            for source in index.sources:
                start, end, writer_id = source.name
                if writer_id == self._writer_id:
                    merged[source.name] = source.sha256
                    if end >= first and self._stored.get((start, end)) != source.sha256:
                        return self._names.segment(*source.name)
            runs = [run[:3] for run in index.runs if run.writer_id == self._writer_id and run.seq_end >= began]
            if any(run[2] > last for run in runs) or Ranges(runs).repeated:
                return f"{runs[-1][1]} to {runs[-1][2]} in {segment.key}"
        # One that is merged was removed, and its key free for another writer.
        again = (each for each in standing if each.name in merged)
        return next((each.key for each in again if self._is_another(each.key, merged[each.name])), None)

    def _is_another(self, key: str, sha256: str) -> bool:
        try:
            return self._container.read(key).sha256 != sha256
        except SegmentNotFoundError:  # the merged one, removed only now
            return False
