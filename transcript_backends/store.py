"""`TranscriptStore`: the protocol programs are written against, and the values that go through it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, Protocol

from transcript_backends.deletion import DeleteResult
from transcript_backends.listing import SegmentInfo
from transcript_backends.refs import RuntimeContext, TranscriptRef


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """When neighbouring segments are merged.

    Attributes:
        min_segments: how many neighbours of similar size make a run.
        target_bytes: size a merged segment is aimed at; one as large as this is never rewritten.
        min_age: seconds by the server's clock that a segment must be old.
        full: as few objects as ``target_bytes`` allows, for a session that has ended.
    """

    min_segments: int = 16
    target_bytes: int = 32 * 1024 * 1024
    min_age: float = 0.0
    full: bool = False


class CompactionResult(NamedTuple):
    """What a compaction did; ``left`` holds (key, reason) of segments that could not be merged."""

    segments_before: int
    segments_after: int
    bytes_written: int
    merged: list[str]
    left: list[tuple[str, str]]


class TranscriptStore(Protocol):
    """Append-only storage of transcripts as immutable segments, safe with any number of writers."""

    def append_segment(self, ref: TranscriptRef, seq_start: int, seq_end: int, writer_id: str, jsonl: bytes) -> str:
        """Store a segment durably, exactly once, never over another; gives its key.

        Calling it again with the same arguments is safe and gives the same key, so a caller that does not know whether a
        call succeeded repeats it.

        Args:
            ref: the transcript.
            seq_start, seq_end: inclusive, 0 ... 2^63-1.
            writer_id: 1 to 64 of ``A-Z a-z 0-9 _ -``; every writer of a transcript needs its own.
            jsonl: UTF-8, one JSON object a line, seq_end - seq_start + 1 lines of at most 4 MiB.

        Raises:
            InvalidSegmentError, InvalidRefError: nothing was written.
            SegmentConflictError: this writer has stored other records under this range.
            StoreUnavailableError: the retries are used up; it may have been stored or not.
            AccessDeniedError, ContainerNotFoundError, ConditionalWritesUnsupportedError, UnexpectedResponseError.
        """

    def list_segments(self, ref: TranscriptRef) -> list[SegmentInfo]:
        """What to read, in order of seq, for the whole transcript; empty only where the store says there is nothing.

        Raises:
            ContainerNotFoundError, AccessDeniedError, StoreUnavailableError, UnexpectedResponseError.
        """

    def read_segment(self, segment_key: str) -> BinaryIO:
        """Open a segment as a stream of bytes; a context manager, and the caller closes it.

        Raises:
            SegmentNotFoundError: no such segment; InvalidSegmentError: the key is none of a segment in this store.
        """

    def compact(self, ref: TranscriptRef, policy: CompactionPolicy | None = None) -> CompactionResult:
        """Merge small segments into large ones; what readers see does not change."""

    def with_runtime_context(self, rc: RuntimeContext) -> TranscriptStore:
        """A view of the store with the placeholders of its URL filled from ``rc``; the store itself where it has none.

        Raises:
            InvalidRefError: the context has no value for a placeholder.
        """

    def delete(self, ref: TranscriptRef, *, purge: bool = False) -> DeleteResult:
        """Delete all that the transcript holds now; what others append meanwhile stays, and no compaction brings anything back.

        An append counts as one after the delete if the service carries it out then: also one that was sent before, whose caller
        was told of a time-out, say. No service can take such a request back; where that matters, delete when the writers have
        ended, or once more.

        Args:
            ref: the transcript.
            purge: remove the small markers that guard against compactions under way too; for when nothing else runs.

        Raises:
            AccessDeniedError: deletes are refused (a permission is missing, a retention policy); nothing was written or hidden.
            PartialDeleteError: some objects are still there; calling again goes on.
        """
