"""The async face of `StateStore`; `transcript_backends.aio` has its names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import transcript_backends as blocking
from transcript_backends.hopping import THREADS, Opening, Threads

if TYPE_CHECKING:
    from transcript_backends.object_store import ObjectTranscriptStore
    from transcript_backends.state.store import Absent

_T = TypeVar("_T")


class AsyncStateStore:
    """A `StateStore` for tasks. An async context manager.

    A write that is cancelled goes on, and may be stored or not; `save_if_version` after it tells which by a conflict.

    Args:
        store: the store.
        threads: how many calls may be under way at once in an event loop.

    Attributes:
        blocking: the store that was given.
    """

    def __init__(self, store: blocking.StateStore, *, threads: int = THREADS) -> None:
        self.blocking = store
        self._threads = Threads(threads)

    async def save(self, user: str | None, session: str, key: str, value: Any) -> str:
        """See `StateStore.save`."""
        return await self._threads.run(partial(self.blocking.save, user, session, key, value))

    async def get(self, user: str | None, session: str, key: str, type: type[_T]) -> _T | None:  # noqa: A002
        """See `StateStore.get`."""
        return await self._threads.run(lambda: self.blocking.get(user, session, key, type))

    async def get_versioned(
        self,
        user: str | None,
        session: str,
        key: str,
        type: type[_T],  # noqa: A002
    ) -> tuple[_T | None, str | Absent]:
        """See `StateStore.get_versioned`."""
        return await self._threads.run(lambda: self.blocking.get_versioned(user, session, key, type))

    async def save_if_version(self, user: str | None, session: str, key: str, value: Any, expected: str | Absent) -> str:
        """See `StateStore.save_if_version`."""
        return await self._threads.run(partial(self.blocking.save_if_version, user, session, key, value, expected))

    async def update(
        self,
        user: str | None,
        session: str,
        key: str,
        type: type[_T],  # noqa: A002
        change: Callable[[_T | None], _T],
    ) -> _T:
        """See `StateStore.update`; ``change`` is called in a thread."""
        return await self._threads.run(lambda: self.blocking.update(user, session, key, type, change))

    async def save_list(
        self, user: str | None, session: str, key: str, items: Iterable[Any], *, expected: str | Absent | None = None
    ) -> str:
        """See `StateStore.save_list`."""
        return await self._threads.run(partial(self.blocking.save_list, user, session, key, items, expected=expected))

    async def get_list(self, user: str | None, session: str, key: str, type: type[_T]) -> list[_T]:  # noqa: A002
        """See `StateStore.get_list`."""
        return await self._threads.run(lambda: self.blocking.get_list(user, session, key, type))

    async def get_list_versioned(
        self,
        user: str | None,
        session: str,
        key: str,
        type: type[_T],  # noqa: A002
    ) -> tuple[list[_T], str | Absent]:
        """See `StateStore.get_list_versioned`."""
        return await self._threads.run(lambda: self.blocking.get_list_versioned(user, session, key, type))

    async def update_list(
        self,
        user: str | None,
        session: str,
        key: str,
        type: type[_T],  # noqa: A002
        change: Callable[[list[_T]], list[_T]],
    ) -> list[_T]:
        """See `StateStore.update_list`; ``change`` is called in a thread."""
        return await self._threads.run(lambda: self.blocking.update_list(user, session, key, type, change))

    async def exists(self, user: str | None, session: str) -> bool:
        """See `StateStore.exists`."""
        return await self._threads.run(partial(self.blocking.exists, user, session))

    async def delete(self, user: str | None, session: str, key: str | None = None) -> None:
        """See `StateStore.delete`."""
        await self._threads.run(partial(self.blocking.delete, user, session, key))

    async def list_session_ids(self, user: str | None) -> list[str]:
        """See `StateStore.list_session_ids`."""
        return await self._threads.run(partial(self.blocking.list_session_ids, user))

    async def clear(self) -> int:
        """See `StateStore.clear`."""
        return await self._threads.run(self.blocking.clear)

    async def close(self) -> None:
        """See `StateStore.close`."""
        await self._threads.finish(self.blocking.close)

    async def __aenter__(self) -> AsyncStateStore:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __str__(self) -> str:
        return str(self.blocking)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


class StateStore(Opening[AsyncStateStore]):
    """Opens what `transcript_backends.StateStore` does, with ``async with`` or ``await``.

    Args:
        store, **options: as there; of an async store, its ``blocking`` is to be given.
        threads: how many calls may be under way at once in an event loop.
    """

    def __init__(self, store: str | ObjectTranscriptStore | None = None, /, *, threads: int = THREADS, **options: Any) -> None:
        async def opened() -> AsyncStateStore:
            given = await Threads(1).run(lambda: blocking.StateStore(store, **options), undo=lambda given: given.close())
            return AsyncStateStore(given, threads=threads)

        super().__init__(opened())
