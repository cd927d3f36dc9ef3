"""Trying out, step by step, all that a store must be able to do: what ``transcripts doctor`` shows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

from transcript_backends.errors import TranscriptStoreError
from transcript_backends.object_store import ObjectTranscriptStore
from transcript_backends.refs import RuntimeContext, TranscriptRef
from transcript_backends.registry import engine_of, open_store
from transcript_backends.workers import ClosableGenerator


class Check(NamedTuple):
    """One thing tried.

    Attributes:
        name: what.
        passed: whether it works.
        detail: what was seen, or what is wrong and how to mend it.
    """

    name: str
    passed: bool
    detail: str


def diagnose(url: str | None = None, /, **options: Any) -> Iterator[Check]:
    """Check a store with a small transcript of its own; stops at the first step that fails.

    The transcript is removed at the end, and where the iterator, a generator, is closed early; not where it is only dropped.

    Args:
        url: as for ``open_store``.
        **options: as for ``open_store``; fewer retries than usual unless ``max_attempts`` says otherwise.
    """
    undoing = contextlib.ExitStack()
    return ClosableGenerator(_checks(url, options, undoing), undoing.close)


def _checks(url: str | None, options: dict[str, Any], undoing: contextlib.ExitStack) -> Generator[Check, None, None]:
    """Check; what is to be undone is in ``undoing``, for a caller that has seen enough."""
    try:
        store = open_store(url, **{"max_attempts": 2, **options})
    except TranscriptStoreError as error:
        yield Check("the store's URL", False, str(error))
        return
    undoing.callback(store.close)
    try:
        yield Check("the store's URL", True, str(store))
        if engine := engine_of(url, **options):
            yield Check("engine", True, engine)
        yield from _try_all(_filled(store), undoing)
        for remark in getattr(store._container.driver, "remarks", ()):  # found out on the way
            yield Check("remark", True, remark)
    except GeneratorExit:  # a finalizer's, perhaps, which must not wait for requests
        raise
    except BaseException:
        undoing.close()
        raise
    undoing.close()


def _filled(store: ObjectTranscriptStore) -> ObjectTranscriptStore:
    """A store with placeholders is checked under values that are nobody's."""
    names = store.placeholders
    own = dict.fromkeys(names, "transcripts-doctor")
    return store.with_runtime_context(
        RuntimeContext(own.get("user_id"), own.get("tenant"), own.get("session_id"), attributes=own)
    )


def _try_all(store: ObjectTranscriptStore, undoing: contextlib.ExitStack) -> Iterator[Check]:
    ref = TranscriptRef("transcripts-doctor", "check", os.urandom(8).hex())
    first, second = b'{"check":1}\n', b'{"check":2}\n'

    def write() -> str:
        return f"a segment was stored: {store.append_segment(ref, 0, 0, 'doctor', first)}"

    def write_again() -> str:
        try:
            store.append_segment(ref, 0, 0, "doctor", second)
        except FileExistsError:
            return "a second segment under the same key was refused, the first is untouched"
        raise TranscriptStoreError("a second segment under the same key was accepted: use a store with conditional writes")

    def find() -> str:
        segments = store.list_segments(ref)
        if len(segments) != 1:
            raise TranscriptStoreError(f"the listing shows {len(segments)} segments where one was stored: listings lag or lie")
        return f"the listing shows it, stored at {segments[0].created_at} by the server's clock"

    def read() -> str:
        lines = [record.line + b"\n" for record in store.records(ref)]
        if lines != [first]:
            raise TranscriptStoreError(f"{lines!r} came back where {first!r} was stored: something changes the data on its way")
        return "the same bytes came back"

    def remove() -> str:
        return f"{store.delete(ref, purge=True).deleted} object removed, nothing of the check is left"

    steps: list[tuple[str, Callable[[], str]]] = [
        ("list", lambda: f"{len(store.list_segments(ref))} segments of a transcript that does not exist"),
        ("write", write),
        ("create-only", write_again),
        ("find", find),
        ("read", read),
        ("delete", remove),
    ]
    removed = True

    def clean_up() -> None:
        if not removed:
            with contextlib.suppress(TranscriptStoreError):
                remove()

    undoing.callback(clean_up)
    for name, step in steps:
        removed = name in ("list", "delete")
        check = _tried(name, step)
        yield check
        if not check.passed:
            return


def _tried(name: str, step: Callable[[], str]) -> Check:
    try:
        return Check(name, True, step())
    except TranscriptStoreError as error:
        return Check(name, False, str(error))
