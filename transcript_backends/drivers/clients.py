"""SDK clients: one per driver and process, made when first needed."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from transcript_backends.errors import TranscriptStoreError

_T = TypeVar("_T")


class SharedClient(Generic[_T]):
    """A client that all threads share and that a forked child makes anew, since sockets must not be shared with it.

    Args:
        make: makes the client.
        ready: the client, where the caller brought it; a child can't make such a one again.
    """

    def __init__(self, make: Callable[[], _T] | None = None, *, ready: _T | None = None) -> None:
        self._make = make
        self._client = ready
        self._lock = threading.Lock()
        _all.add(self)

    def get(self) -> _T:
        """The client, made now if need be. Client construction is not thread-safe in every SDK, so it is locked."""
        client = self._client
        if client is None:
            with self._lock:
                if self._client is None:
                    if self._make is None:
                        raise TranscriptStoreError(
                            "this store was made with a ready client in the parent process, and a client must not be shared "
                            "across a fork: open the store in this process, or by its URL"
                        )
                    self._client = self._make()
                client = self._client
        return client

    def renew(self) -> bool:
        """Make the client anew when it is next needed; False where it can't be."""
        if self._make is not None:
            self._client = None
        return self._make is not None

    def close(self) -> None:
        """Close a client made here; one that was brought along belongs to its owner."""
        client: Any = self._client
        if self._make is not None and client is not None:
            client.close()

    def _forked(self) -> None:
        self._client = None
        self._lock = threading.Lock()


_all: weakref.WeakSet[SharedClient[Any]] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_all):
        each._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
