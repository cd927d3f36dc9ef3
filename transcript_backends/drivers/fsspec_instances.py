"""Instances of fsspec's filesystems, safe to use from threads and after a fork."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from transcript_backends.drivers.clients import SharedClient
from transcript_backends.errors import InvalidURLError, MissingExtraError
from transcript_backends.extras import is_ours
from transcript_backends.forks import tell_after_fork

_OF_AN_EVENT_LOOP = ("asynchronous", "loop")  # from inside which no instance of ours is used
_STILL_GOOD = (FileNotFoundError, FileExistsError, PermissionError)  # is an instance that has answered so


class _Turns:
    """One lock for the process, new in a forked child, where nobody is left to release it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        tell_after_fork(self)

    def after_fork(self) -> None:
        self.lock = threading.Lock()


_in_memory = _Turns()


class Instances:
    """Instances of a filesystem, new ones in a forked child, none of which remembers a listing.

    fsspec's are for one thread each, so they are lent to one caller at a time; only those with an event loop inside are
    shared. The filesystem in memory is one for the whole process and not safe under threads (of creators of a file at the
    same time several win), so its callers take turns.
    """

    def __init__(self, filesystem: type[Any], options: Mapping[str, Any], arguments: Sequence[Any] = ()) -> None:
        self._filesystem, self._arguments = filesystem, arguments
        self._options = {name: value for name, value in options.items() if name not in _OF_AN_EVENT_LOOP}
        self._shared = SharedClient(self._make) if filesystem.async_impl else None
        self._in_memory = issubclass(filesystem, MemoryFileSystem)
        self._idle: list[Any] = []
        tell_after_fork(self)

    def _make(self) -> Any:
        try:
            made = self._filesystem(*self._arguments, **{**self._options, "skip_instance_cache": True})
        except (TypeError, ValueError) as error:
            raise InvalidURLError(
                f"{self._filesystem.__name__} can't be made with these storage_options ({', '.join(self._options) or 'none'}); "
                "see its documentation"
            ) from error
        made.dircache.use_listings_cache = False  # not as an option, which SFTP would pass on to SSH
        return made

    @contextlib.contextmanager
    def lend(self) -> Iterator[Any]:
        """An instance for one piece of work.

        Raises:
            MissingExtraError: the filesystem needs a package that is not installed, which may show only when it is used.
        """
        try:
            with self._lend() as lent:
                yield lent
        except ImportError as error:
            if isinstance(error, MissingExtraError) or is_ours(error):
                raise
            raise MissingExtraError(
                f"{self._filesystem.__name__} needs a package that is not installed: {error}", name=error.name
            ) from error

    @contextlib.contextmanager
    def _lend(self) -> Iterator[Any]:
        if self._shared is not None:
            yield self._shared.get()
            return
        with _in_memory.lock if self._in_memory else contextlib.nullcontext():
            try:
                lent = self._idle.pop()
            except IndexError:
                lent = self._make()
            try:
                yield lent
            except _STILL_GOOD:
                self._idle.append(lent)
                raise
            self._idle.append(lent)

    def renew(self) -> None:
        """Forget all instances: their connections end when those who use them are done."""
        self._idle = []
        if self._shared is not None:
            self._shared.renew()

    def after_fork(self) -> None:
        self._idle = []
