"""`BackgroundCompactor`: compaction in a thread of a long-running process."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from transcript_backends.errors import StoreClosedError
from transcript_backends.forks import tell_after_fork
from transcript_backends.refs import TranscriptRef
from transcript_backends.store import CompactionPolicy, CompactionResult, TranscriptStore

_log = logging.getLogger(__name__)


class CompactionTotals(NamedTuple):
    """What has been done so far.

    Attributes:
        transcripts: how many times a transcript was changed.
        segments: how many were merged into others.
        bytes_written: of compacted segments.
    """

    transcripts: int = 0
    segments: int = 0
    bytes_written: int = 0


class BackgroundCompactor:
    """Compacts transcripts in rounds, one at a time, in a daemon thread that starts at once. A context manager.

    What goes wrong is logged as a warning, counted, kept and told to ``on_error``, and the thread goes on with the next
    transcript. It ends with `stop`, with the process, or where the store was closed, which is such an error too. Two of them
    in one process never work on one transcript at the same time: the later one leaves it for its next round. A forked child
    has no such thread: its copy is not running, and a new one can be made there.

    Args:
        store: where the transcripts are.
        refs: gives the transcripts of a round.
        policy: when segments are merged.
        interval: seconds between two rounds.
        on_error: called with the transcript, None where it was another thing, and the error.

    Attributes:
        rounds: how many are complete.
        errors: how many things went wrong.
        last_error: the last of them.
    """

    def __init__(
        self,
        store: TranscriptStore,
        refs: Callable[[], Iterable[TranscriptRef]],
        policy: CompactionPolicy | None = None,
        *,
        interval: float = 600.0,
        on_error: Callable[[TranscriptRef | None, BaseException], object] | None = None,
    ) -> None:
        if not 0 <= interval <= threading.TIMEOUT_MAX:
            raise ValueError(f"the interval must be a number of seconds, 0 or more, not {interval!r}")
        self._store, self._refs, self._policy, self._interval, self._on_error = store, refs, policy, interval, on_error
        self.rounds = 0
        self.errors = 0
        self.last_error: BaseException | None = None
        self._totals = CompactionTotals()
        self._left: dict[TranscriptRef, list[tuple[str, str]]] = {}  # what was said already
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = threading.Thread(target=self._run, name=f"compactor of {store}", daemon=True)
        tell_after_fork(self)
        self._thread.start()

    @property
    def totals(self) -> CompactionTotals:
        """What has been done so far."""
        return self._totals

    @property
    def running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self, timeout: float | None = None) -> bool:
        """Begin no other transcript, and wait for the one at work; tells whether the thread has ended.

        Args:
            timeout: seconds to wait at most.
        """
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self.running

    def __enter__(self) -> BackgroundCompactor:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._store}, {'running' if self.running else 'not running'}>"

    def after_fork(self) -> None:
        """The thread is the parent's alone."""
        self._thread = None
        self._stopping = threading.Event()  # the inherited one may be in use
        self._stopping.set()

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                for ref in self._refs():
                    if self._stopping.is_set():
                        return
                    try:
                        self._compact(ref)
                    except Exception as error:
                        self._tell(ref, error)
                self.rounds += 1
            except Exception as error:
                self._tell(None, error)
            self._stopping.wait(self._interval)

    def _compact(self, ref: TranscriptRef) -> None:
        with _at_work.claim(getattr(self._store, "identity", str(self._store)), ref) as is_ours:
            if not is_ours:
                return
            result = self._store.compact(ref, self._policy)
        self._tell_left(ref, result)
        before, after, written, merged, _ = result
        if merged or before != after:
            transcripts, segments, total = self._totals
            self._totals = CompactionTotals(transcripts + 1, segments + before - after + len(merged), total + written)

    def _tell_left(self, ref: TranscriptRef, result: CompactionResult) -> None:
        """Log what could not be merged, once."""
        if result.left != self._left.pop(ref, []):
            for key, reason in result.left:
                _log.warning("%s: %s could not be merged: %s", ref, key, reason)
        if result.left:
            self._left[ref] = result.left

    def _tell(self, ref: TranscriptRef | None, error: Exception) -> None:
        if isinstance(error, RuntimeError) and "interpreter shutdown" in str(error):  # no thread can be started any more
            self._stopping.set()
            return
        self.errors += 1
        self.last_error = error
        what = f"compacting {ref}" if ref else "going through the transcripts"
        if isinstance(error, StoreClosedError):
            self._stopping.set()
            what += ", which ends now,"
        _log.warning("%s on %s failed: %s: %s", what, self._store, type(error).__name__, error, exc_info=error)
        if self._on_error is not None:
            try:
                self._on_error(ref, error)
            except BaseException:  # SystemExit would end the thread without a word
                _log.warning("on_error itself failed", exc_info=True)


class _AtWork:
    """The transcripts that are being compacted in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claimed: set[tuple[str, TranscriptRef]] = set()
        tell_after_fork(self)

    @contextlib.contextmanager
    def claim(self, store: str, ref: TranscriptRef) -> Iterator[bool]:
        """Gives whether the transcript is the caller's until the end of the block."""
        claim = (store, ref)
        with self._lock:
            is_new = claim not in self._claimed
            self._claimed.add(claim)
        try:
            yield is_new
        finally:
            if is_new:
                with self._lock:
                    self._claimed.discard(claim)

    def after_fork(self) -> None:
        """What the parent's threads are at work on, they are at work on there."""
        self._lock = threading.Lock()
        self._claimed = set()


_at_work = _AtWork()
