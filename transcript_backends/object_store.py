"""`ObjectTranscriptStore`: transcripts on any object store. A thin front over the modules that do the work."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from transcript_backends import keys
from transcript_backends.catalog import Glance, Skipped, glance, list_refs
from transcript_backends.container import Container
from transcript_backends.deletion import DeleteResult, delete_transcript
from transcript_backends.errors import InvalidRefError, InvalidSegmentError, InvalidURLError
from transcript_backends.keys import Ids, SegmentName, Spelling, TranscriptKeys
from transcript_backends.listing import SegmentInfo, list_once, stable_listing
from transcript_backends.offloading import MAX_ENTRY_BYTES
from transcript_backends.payloads import resolved, store_lines
from transcript_backends.reading import look, read_backwards, read_records, read_segment
from transcript_backends.records import Record, check_jsonl, normalize
from transcript_backends.refs import RuntimeContext, TranscriptRef
from transcript_backends.store import CompactionPolicy, CompactionResult
from transcript_backends.workers import ClosableGenerator, Crew

if TYPE_CHECKING:
    from transcript_backends.background import BackgroundCompactor
    from transcript_backends.following import Follower
    from transcript_backends.planning import CompactionEstimate
    from transcript_backends.verifying import VerifyReport
    from transcript_backends.writing import TranscriptWriter


class ObjectTranscriptStore:
    """Implements `TranscriptStore` on one container. Safe to share between threads; a context manager.

    Args:
        container: where the objects are.
        root: prefix of all keys, empty or ending in ``/``; may hold placeholders (``{tenant}/``).
        ids: how ids are written in keys: ``escaped`` to ASCII, or ``raw``, as other programs write them that escape nothing.
            One store has one way: what is written in the other is reported, and not read (docs/storage-contract.md).
        reopen: makes the same store again, for pickling; None where only its owner can.
    """

    def __init__(
        self,
        container: Container,
        root: str = "",
        *,
        ids: Ids = "escaped",
        reopen: tuple[Callable[..., ObjectTranscriptStore], tuple[Any, ...]] | None = None,
    ) -> None:
        self._container = container
        self._root = root
        if ids not in ("escaped", "raw"):
            raise InvalidURLError(f"ids must be one of escaped, raw, not {ids!r}")
        self.ids: Ids = ids
        self.placeholders = keys.placeholders(root)  # the names that a runtime context must fill
        self._reopen = reopen

    # --- the protocol -------------------------------------------------------------------------------------------------

    def append_segment(
        self,
        ref: TranscriptRef,
        seq_start: int,
        seq_end: int,
        writer_id: str,
        jsonl: bytes,
        *,
        offload_bytes: int | None = None,
    ) -> str:
        """See `TranscriptStore.append_segment`. One request where all goes well, and some more where a value is stored apart.

        ``offload_bytes``: lines longer than this have their large strings stored outside, as a writer stores them, so that
        one may have up to 64 MiB; None: every line is stored as it is. The same for the same lines, or it is a conflict.
        """
        names = self._names(ref)
        key = names.segment(*self._checked_name(seq_start, seq_end, writer_id))
        count = seq_end - seq_start + 1

        def create(lines: bytes) -> str:
            self._container.create(key, normalize(lines, count), {"tbcount": str(count), "tbschema": "1"})
            return key

        if offload_bytes is None:
            return create(jsonl)
        lines = check_jsonl(jsonl, longest=MAX_ENTRY_BYTES).split(b"\n")[:-1]
        return store_lines(self._container, names, lines, offload_bytes, lambda stored: create(b"\n".join(stored)))

    def list_segments(self, ref: TranscriptRef) -> list[SegmentInfo]:
        """See `TranscriptStore.list_segments`. One request for each thousand objects, and one for each compacted segment."""
        return list(look(self._container, self._names(ref)).segments)

    def read_segment(self, segment_key: str) -> BinaryIO:
        """See `TranscriptStore.read_segment`. One request."""
        self._check_filled()
        split = keys.split_key(self._root, segment_key) if isinstance(segment_key, str) else None
        path, parsed = split or ("", None)
        ids = keys.read_path(self._spelling, path)
        if ids is None or not isinstance(parsed, SegmentName):
            raise InvalidSegmentError(
                f"{segment_key!r} is no key of a segment in {self}; keys come from append_segment and list_segments"
            )
        return read_segment(self._container, self._names(TranscriptRef(*ids)), segment_key, parsed)

    def compact(self, ref: TranscriptRef, policy: CompactionPolicy | None = None) -> CompactionResult:
        """See `TranscriptStore.compact`."""
        from transcript_backends.compaction import compact  # what only compactors need takes 10 ms to import

        return compact(self._container, self._names(ref), policy or CompactionPolicy())

    def with_runtime_context(self, rc: RuntimeContext) -> ObjectTranscriptStore:
        """See `TranscriptStore.with_runtime_context`. The view shares this store's connections."""
        if not self.placeholders:
            return self
        values = {name: rc.value(name) for name in self.placeholders}
        missing = [name for name, value in values.items() if value is None]
        if missing:
            raise InvalidRefError(f"the runtime context has no {', '.join(missing)}, which {self} needs; set it")
        given = {name: value for name, value in values.items() if value is not None}
        root = keys.fill(self._root, given, self._spelling)
        reopen = (_filled, (*self._reopen, rc)) if self._reopen else None
        return ObjectTranscriptStore(self._container, root, ids=self.ids, reopen=reopen)

    def delete(self, ref: TranscriptRef, *, purge: bool = False) -> DeleteResult:
        """See `TranscriptStore.delete`."""
        return delete_transcript(self._container, self._names(ref), purge=purge)

    # --- more than the protocol ---------------------------------------------------------------------------------------

    def records(
        self,
        ref: TranscriptRef,
        *,
        start_seq: int = 0,
        end_seq: int | None = None,
        limit: int | None = None,
        reverse: bool = False,
        resolve: bool = True,
    ) -> Generator[Record, None, None]:
        """The records in order of (seq, writer id), each once; a generator that holds a connection until it is closed.

        To close it also waits for the requests in flight. To drop it takes no lock and waits for nothing.

        Args:
            ref: the transcript.
            start_seq, end_seq: inclusive bounds.
            limit: how many at most.
            reverse: from the last one back; only what is taken is read.
            resolve: put offloaded values back; else lines are as they are stored, with previews.

        Raises:
            CorruptSegmentError: a payload is missing or damaged.
        """
        names = self._names(ref)
        plan = look(self._container, names)
        crew = Crew()
        read = read_backwards if reverse else partial(read_records, crew=crew)
        found = read(self._container, names, plan, start_seq=start_seq, end_seq=end_seq, limit=limit)
        if resolve:
            found = resolved(self._container, names, found, plan.generation, crew)
        return ClosableGenerator(found, crew.wait)

    def tail(self, ref: TranscriptRef, n: int, *, resolve: bool = True) -> list[Record]:
        """The last ``n`` records, oldest first. Reads little more than them, however long the transcript is.

        ``resolve``: as for `records`.
        """
        if n < 0:
            raise ValueError(f"n must be 0 or more, not {n}")
        return list(self.records(ref, limit=n, reverse=True, resolve=resolve))[::-1]

    def follow(
        self,
        ref: TranscriptRef,
        *,
        cursor: str | None = None,
        stop_when_idle: float | None = None,
        min_interval: float = 0.3,
        max_interval: float = 10.0,
        resolve: bool = True,
        last: int | None = None,
    ) -> Follower:
        """The records that are there, and new ones as they appear; see `Follower`. A look that finds nothing is one listing."""
        from transcript_backends.following import Follower

        return Follower(
            self._container,
            self._names(ref),
            cursor=cursor,
            stop_when_idle=stop_when_idle,
            min_interval=min_interval,
            max_interval=max_interval,
            resolve=resolve,
            last=last,
        )

    def writer(
        self,
        ref: TranscriptRef,
        *,
        writer_id: str | None = None,
        spool_dir: str | None = None,
        max_records: int = 500,
        max_bytes: int = 1024 * 1024,
        max_age: float = 1.0,
        max_pending_bytes: int = 64 * 1024 * 1024,
        when_full: Literal["block", "raise"] = "block",
        offload_bytes: int | None = 64 * 1024,
    ) -> TranscriptWriter:
        """A buffered writer of one transcript; see `TranscriptWriter` for what it takes. One listing."""
        from transcript_backends.writing import TranscriptWriter

        return TranscriptWriter(
            self,
            ref,
            writer_id=writer_id,
            spool_dir=spool_dir,
            max_records=max_records,
            max_bytes=max_bytes,
            max_age=max_age,
            max_pending_bytes=max_pending_bytes,
            when_full=when_full,
            offload_bytes=offload_bytes,
        )

    def next_seq(self, ref: TranscriptRef) -> int:
        """One past the highest seq of any writer, 0 for an empty transcript. One request for each thousand objects."""
        return list_once(self._container, self._names(ref)).next_seq

    def own_writer_id(self, ref: TranscriptRef, writer_id: str) -> str:
        """The id under which a writer with an id of its own appends to a transcript now; ``<id>-g<n>`` after its n-th delete.

        For ids that are used again after a delete: under the same id, `append_segment` would store the same keys again, and not
        every service can keep a request of before the delete from removing them. Takes as many requests as `next_seq`.

        Raises:
            InvalidSegmentError: this can't be a writer id.
        """
        names, checked = self._names(ref), keys.check_writer_id(writer_id)
        return keys.writer_id_in(list_once(self._container, names, only=()).generation, checked)

    def list_refs(
        self,
        tenant: str | None = None,
        agent_id: str | None = None,
        *,
        on_skipped: Callable[[Skipped], object] | None = None,
    ) -> Iterator[TranscriptRef]:
        """The transcripts that hold a segment, each once, in order of their keys; a page of the listing at a time.

        A directory that nothing was ever written to is as good as empty; `glance` tells whether it is there.

        Args:
            tenant, agent_id: only theirs.
            on_skipped: told of what is left out: transcripts whose ids are written otherwise than this store writes them, and
                those of which other than records is left. `SkippedCount` counts them. Default: a logged warning at the end.

        Raises:
            ContainerNotFoundError: there is no such bucket or container, or the directory is gone.
        """
        self._check_filled()
        return list_refs(self._container, self._root, self._spelling, tenant, agent_id, on_skipped)

    def glance(self) -> Glance:
        """Whether the place is there, and what is in it that is no transcript's. One request.

        Raises:
            ContainerNotFoundError: there is no such bucket, container or directory.
        """
        self._check_filled()
        return glance(self._container, self._root)

    def verify(self, ref: TranscriptRef, *, repair: bool = False) -> VerifyReport:
        """Read and check every byte of a transcript.

        Args:
            ref: the transcript.
            repair: remove what is provably redundant, and finish deletes that died an hour ago.
        """
        from transcript_backends.verifying import verify

        return verify(self._container, self._names(ref), repair=repair)

    def estimate_compaction(self, ref: TranscriptRef, policy: CompactionPolicy | None = None) -> CompactionEstimate:
        """What `compact` would do now. Lists the transcript, and reads and writes no segment."""
        from transcript_backends.planning import estimate

        names = self._names(ref)
        listing = stable_listing(self._container, names)
        batch = self._container.driver.capabilities.delete_batch
        return estimate(listing, policy or CompactionPolicy(), self._container.server_time(), delete_batch=batch)

    def compactor(
        self,
        policy: CompactionPolicy | None = None,
        *,
        interval: float = 600.0,
        refs: Callable[[], Iterable[TranscriptRef]] | None = None,
        on_error: Callable[[TranscriptRef | None, BaseException], object] | None = None,
    ) -> BackgroundCompactor:
        """Compact again and again, in a thread of this process; see `BackgroundCompactor`, which stops it.

        Args:
            policy: as for `compact`.
            interval: seconds between the end of one round and the begin of the next.
            refs: gives the transcripts of a round; default: all there are.
            on_error: called in that thread with what went wrong, and with the transcript, None where it was another thing.
        """
        from transcript_backends.background import BackgroundCompactor

        self._check_filled()
        return BackgroundCompactor(self, refs or self.list_refs, policy, interval=interval, on_error=on_error)

    @property
    def identity(self) -> str:
        """Tells this store from every other, also from one of the same location on another server. Holds no secret."""
        return f"{self._container.identity} {self}{' ids=raw' * (self.ids == 'raw')}"

    def close(self) -> None:
        """Close the connections, those of views included; later calls raise `StoreClosedError`."""
        self._container.close()

    def __enter__(self) -> ObjectTranscriptStore:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __str__(self) -> str:
        """The store's location as a URL, without settings."""
        return f"{self._container.driver.location}/{self._root}".rstrip("/")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._reopen is None:
            raise TypeError(
                f"{self!r} can't be pickled: it holds a client, an object, a secret or memory of this process; open the store "
                "in the other process"
            )
        return self._reopen

    # --- inside -------------------------------------------------------------------------------------------------------

    def _journal_identity(self, ref: TranscriptRef) -> str:
        """What a writer's journal names: most transcripts are at one place, however ids are written."""
        base = f"{self._container.identity} {self}"
        return base if self._names(ref).prefix == self._root + ref.prefix else f"{base} ids={self.ids}"

    @cached_property
    def _spelling(self) -> Spelling:
        """Made when first needed, since what a driver can do may depend on its client."""
        return keys.ESCAPED if self.ids == "escaped" else Spelling("raw", self._container.driver.capabilities.unfit_in_names)

    def _names(self, ref: TranscriptRef) -> TranscriptKeys:
        self._check_filled()
        if not isinstance(ref, TranscriptRef):
            raise InvalidRefError(
                f"a transcript is named by a TranscriptRef, not {type(ref).__name__}; see TranscriptRef.parse"
            )
        return TranscriptKeys(self._root, self._spelling.prefix(ref.tenant, ref.agent_id, ref.session_id))

    def _check_filled(self) -> None:
        if self.placeholders:
            wanted = ", ".join(self.placeholders)
            raise InvalidRefError(
                f"{self} has placeholders to fill ({wanted}): use store.with_runtime_context(RuntimeContext(...)) first"
            )

    @staticmethod
    def _checked_name(seq_start: int, seq_end: int, writer_id: str) -> tuple[int, int, str]:
        keys.check_range(seq_start, seq_end)
        return seq_start, seq_end, keys.check_writer_id(writer_id)


def _filled(
    reopen: Callable[..., ObjectTranscriptStore], arguments: tuple[Any, ...], rc: RuntimeContext
) -> ObjectTranscriptStore:
    return reopen(*arguments).with_runtime_context(rc)
