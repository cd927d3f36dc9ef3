"""SDK clients: one per driver and process, made when first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from transcript_backends.errors import TranscriptStoreError
from transcript_backends.forks import tell_after_fork

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
        tell_after_fork(self)

    def get(self) -> _T:
        """The client, made now if need be. Client construction is not thread-safe in every SDK, so it is locked."""
        client = self._client
        if client is None:
            with self._lock:
                client = self._client
                if client is None:
                    if self._make is None:
                        raise TranscriptStoreError(
                            "this store was made with a ready client in the parent process, and a client must not be shared "
                            "across a fork: open the store in this process, or by its URL"
                        )
                    client = self._client = self._make()
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

    def after_fork(self) -> None:
        """Forget the parent's client, and its lock, which another thread may have held."""
        self._client = None
        self._lock = threading.Lock()


def read_environment_once(session: Any, url: str) -> None:
    """Take what the environment says of proxies and trust now, for a session of requests that sends to one service.

    It would read all of the environment for each request, a fifth of what that costs, and a netrc file, whose password it
    puts in the place of the client's signature.
    """
    found = session.merge_environment_settings(url, {}, None, None, None)
    session.trust_env = False
    session.proxies, session.verify = found["proxies"], found["verify"]
