"""`StateStore`: what an agent keeps of a session between two runs, by user, session and key. See docs/state.md."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from transcript_backends.container import Container
from transcript_backends.drivers.driver import ObjectInfo
from transcript_backends.errors import (
    AccessDeniedError,
    CorruptSegmentError,
    PartialDeleteError,
    SegmentNotFoundError,
    VersionConflictError,
)
from transcript_backends.hashing import sha256
from transcript_backends.object_store import ObjectTranscriptStore
from transcript_backends.registry import open_store
from transcript_backends.state import places, values
from transcript_backends.state.places import HASH, LIST, VALUE, File

_T = TypeVar("_T")
_Old = TypeVar("_Old")
_New = TypeVar("_New")

_MARK = "~"  # starts the versions of documents that are found elsewhere than in their first place: one for each before it
_PAUSES = (0.05, 0.2, 1.0)  # seconds in which a writer of a list gets its second file written
_SHORTEST, _LONGEST = 0.01, 1.0  # seconds at most between two tries of those who want one document at once


class Absent(enum.Enum):
    """The version of a document that is not there."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT


_Place = list[str]


class _Stored(NamedTuple):
    """What is known of a list without its items; ``ours`` where it is known that we wrote it."""

    version: str
    size: int
    sha256: str
    ours: bool

    def begins(self, body: bytes) -> bool:
        """Whether a list begins with this one: by a hash of every byte."""
        return self.size <= len(body) and sha256(body[: self.size]) == self.sha256


class StateStore:
    """Values and lists by user, session and key, on every backend. Safe to share between threads; a context manager.

    Reads give one version whole. What a call has stored when it returns is durable. A user of None, or a blank one, is the
    anonymous user. ``type`` is anything msgspec can read (``dict``, a dataclass, a Struct), or a pydantic model.

    Args:
        store: a URL, whose root then holds the documents (None: that of `open_store`), or a store of transcripts, whose
            connections are shared, and below whose root they have a place of their own, ``=state/``.
        **options: for `open_store`.

    Raises:
        InvalidRefError: the store has placeholders to fill.
    """

    def __init__(self, store: str | ObjectTranscriptStore | None = None, /, **options: Any) -> None:
        self._shares = isinstance(store, ObjectTranscriptStore)
        if isinstance(store, ObjectTranscriptStore):
            if options:
                raise TypeError(f"a store that is open takes no options: {', '.join(options)}")
            self._store = store
        else:
            self._store = open_store(store, **options)
        self._store._check_filled()
        self._root = self._store._root + (places.SHARED if self._shares else "")

    # --- values -------------------------------------------------------------------------------------------------------

    def save(self, user: str | None, session: str, key: str, value: Any) -> str:
        """Store a value whatever is there; gives its version. Of several writers the last one wins.

        One request, where ids and key are of ``A-Z a-z 0-9 _ - .``; else it is looked for first.

        Raises:
            InvalidRefError: an id or the key can't be used.
            InvalidSegmentError: the value can't be written as JSON.
        """
        body, place = values.encode(value), self._place(user, session, key, VALUE)
        mark = self._find(place)[0] if len(place) > 1 else ""
        return mark + self._container.overwrite(place[len(mark)], body)

    def get(self, user: str | None, session: str, key: str, type: type[_T]) -> _T | None:  # noqa: A002
        """A value, None where there is none. One request.

        Raises:
            CorruptSegmentError: what is stored is not of this type.
        """
        return self.get_versioned(user, session, key, type)[0]

    def get_versioned(
        self,
        user: str | None,
        session: str,
        key: str,
        type: type[_T],  # noqa: A002
    ) -> tuple[_T | None, str | Absent]:
        """A value and its version; None and `ABSENT` where there is none."""
        for mark, storage_key in _marked(self._place(user, session, key, VALUE)):
            if (found := self._fetch(storage_key)) is not None:
                body, version = found
                return values.decode(body, type, self._name(storage_key)), mark + version
        return None, ABSENT

    def save_if_version(self, user: str | None, session: str, key: str, value: Any, expected: str | Absent) -> str:
        """Store a value where the stored one has the expected version still; gives the new one.

        Args:
            user, session, key, value: as for `save`.
            expected: what `get_versioned`, `save` or this has given; `ABSENT` stores only where there is none.

        Raises:
            VersionConflictError: another version is there, or none; nothing was written.
            StoreUnavailableError: it may have been stored or not; read it to know.
            ConditionalWritesUnsupportedError: the backend has no way to do this.
        """
        return self._swap(self._place(user, session, key, VALUE), values.encode(value), expected)

    def update(
        self,
        user: str | None,
        session: str,
        key: str,
        type: type[_T],  # noqa: A002
        change: Callable[[_T | None], _T],
    ) -> _T:
        """Change a value, however many do so at once; gives the new one.

        Args:
            user, session, key, type: as for `get`.
            change: gives the new value for the stored one, None for none. It may be called several times, and may change and
                give back what it gets.

        Raises:
            VersionConflictError: others came first again and again, until the time for retries was over.
            StoreUnavailableError, ConditionalWritesUnsupportedError: as for `save_if_version`.
        """
        return self._change(
            lambda: self.get_versioned(user, session, key, type),
            change,
            lambda value, version: self.save_if_version(user, session, key, value, version),
        )

    # --- lists --------------------------------------------------------------------------------------------------------

    def save_list(
        self, user: str | None, session: str, key: str, items: Iterable[Any], *, expected: str | Absent | None = None
    ) -> str:
        """Store a list; gives its version. Nothing is written where it is stored already.

        A list that has grown or changed is written whole, where nobody else has written since it was looked at: growth is
        tried again where what the others have stored is the begin of this list as well.

        Args:
            user, session, key: as for `save`.
            items: the whole list.
            expected: as for `save_if_version`; None replaces whatever is there when this begins.

        Raises:
            VersionConflictError: somebody else's items would have been overwritten; nothing was written.
        """
        place, body = self._place(user, session, key, LIST), values.encode_lines(items)
        if expected is not None:
            self._forget_hash(place)
            return self._swap(place, body, expected)
        contest, stored = _Contest(self._container), self._look(place)
        while True:
            if not (stored and stored.ours):
                self._forget_hash(place)
            if stored and stored.begins(body) and stored.size == len(body):
                return stored.version
            try:
                return self._swap(place, body, stored.version if stored else ABSENT)
            except VersionConflictError as error:
                stored = self._look(place)
                if stored and not stored.begins(body):
                    raise VersionConflictError(
                        f"{self._name(place[0])} was changed by somebody else while it was saved, to what this list does not "
                        "begin with; nothing was written. Read it again, and add to that (update_list does)"
                    ) from error
                if not contest.again():
                    raise

    def get_list(self, user: str | None, session: str, key: str, type: type[_T]) -> list[_T]:  # noqa: A002
        """The items of a list, none where there is no list. Two requests.

        Raises:
            CorruptSegmentError: an item is not of this type, or the Java implementation has died while it wrote the list.
        """
        return self.get_list_versioned(user, session, key, type)[0]

    def get_list_versioned(
        self,
        user: str | None,
        session: str,
        key: str,
        type: type[_T],  # noqa: A002
    ) -> tuple[list[_T], str | Absent]:
        """A list and its version; ``[]`` and `ABSENT` where there is none."""
        for mark, storage_key in _marked(self._place(user, session, key, LIST)):
            if (found := self._fetch_list(storage_key)) is not None:
                body, version = found
                return values.decode_lines(body, type, self._name(storage_key)), mark + version
        return [], ABSENT

    def update_list(
        self,
        user: str | None,
        session: str,
        key: str,
        type: type[_T],  # noqa: A002
        change: Callable[[list[_T]], list[_T]],
    ) -> list[_T]:
        """Change a list, however many do so at once; gives the new one. As `update`."""
        return self._change(
            lambda: self.get_list_versioned(user, session, key, type),
            change,
            lambda items, version: self.save_list(user, session, key, items, expected=version),
        )

    # --- sessions -----------------------------------------------------------------------------------------------------

    def exists(self, user: str | None, session: str) -> bool:
        """Whether a session has a document."""
        return any(file.is_document for _, file in self._files(*places.session_prefixes(self._root, user, session)))

    def delete(self, user: str | None, session: str, key: str | None = None) -> None:
        """Delete a session's documents, or the value and the list under one key. What is not there is no failure.

        Raises:
            PartialDeleteError: some could not be deleted; calling it again goes on with them.
        """
        prefixes = places.session_prefixes(self._root, user, session)
        if key is None:
            self._delete({info.key: info.version for info, _ in self._files(*prefixes)})
        else:
            self._delete([each for suffix in (VALUE, LIST, HASH) for each in places.documents(prefixes, key, suffix)])

    def list_session_ids(self, user: str | None) -> list[str]:
        """The ids of a user's sessions that have a document, each once, sorted."""
        files = self._files(*places.user_prefixes(self._root, user))
        return sorted({file.session for _, file in files if file.is_document})

    def clear(self) -> int:
        """Delete every document of every user below the root; gives how many sessions there were.

        Raises:
            PartialDeleteError: some could not be deleted.
        """
        found = list(self._files(self._root))
        self._delete({info.key: info.version for info, _ in found})
        return len({file[:2] for _, file in found if file.is_document})

    # --- life ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections, where they are this store's own."""
        if not self._shares:
            self._store.close()

    def __enter__(self) -> StateStore:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __str__(self) -> str:
        """The location as a URL, without settings."""
        return f"{self._container.driver.location}/{self._root}".rstrip("/")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _container(self) -> Container:
        return self._store._container

    def _place(self, user: str | None, session: str, key: str, suffix: str) -> _Place:
        """The storage keys that a document may have; a new one gets the first."""
        return places.documents(places.session_prefixes(self._root, user, session), key, suffix)

    def _name(self, storage_key: str) -> str:
        return f"{self._container.driver.location}/{storage_key}"

    def _fetch(self, storage_key: str) -> tuple[bytes, str] | None:
        try:
            return self._container.fetch(storage_key)
        except SegmentNotFoundError:
            return None

    def _fetch_list(self, storage_key: str) -> tuple[bytes, str] | None:
        """A list as it is stored. What we write is whole; the Java implementation writes into its files, the hash last."""
        for pause in (*_PAUSES, None):
            told = self._fetch(places.hash_of(storage_key))
            found = self._fetch(storage_key)
            if found is None or not values.is_torn(found[0], told and told[0]):
                return found
            if pause:
                self._container.clock.sleep(pause)
        raise CorruptSegmentError(
            f"{self._name(storage_key)} is not the list its .hash was written for, or ends within a line: who wrote it last "
            "has died at it. Save the list anew; or delete the .hash, or the rest of the line, to take it as it is"
        )

    def _look(self, place: _Place) -> _Stored | None:
        for mark, storage_key in _marked(place):
            try:
                info, stamp = self._container.look(storage_key)
                if stamp:
                    return _Stored(mark + info.version, info.size, stamp, ours=True)
                body, version = self._container.fetch(storage_key)
            except SegmentNotFoundError:
                continue
            return _Stored(mark + version, len(body), sha256(body), ours=False)
        return None

    def _find(self, place: _Place) -> tuple[str, str | None]:
        """The mark and the version of a document where it is; where it is not, those of a new one."""
        for mark, storage_key in _marked(place):
            with contextlib.suppress(SegmentNotFoundError):
                return mark, self._container.look(storage_key)[0].version
        return "", None

    def _forget_hash(self, place: _Place) -> None:
        """Let the Java implementation write the list whole when it writes next: it would add to what it has not written."""
        self._delete([places.hash_of(each) for each in place])

    def _swap(self, place: _Place, body: bytes, expected: str | Absent) -> str:
        """As `save_if_version`; it is written where it is."""
        if not isinstance(expected, (str, Absent)):
            raise TypeError(f"the expected version must be one that was given, or ABSENT, not {expected!r}")
        version = None if isinstance(expected, Absent) else expected.lstrip(_MARK)
        mark = "" if isinstance(expected, Absent) else expected[: len(expected) - len(version or "")]
        if len(mark) >= len(place) or (len(place) > 1 and (mark or version is None) and self._find(place) != (mark, version)):
            raise VersionConflictError(f"{self._name(place[0])} is not as it was read; nothing was written. Read it again")
        return mark + self._container.swap(place[len(mark)], body, version)

    def _change(
        self,
        read: Callable[[], tuple[_Old, str | Absent]],
        change: Callable[[_Old], _New],
        write: Callable[[_New, str | Absent], object],
    ) -> _New:
        contest = _Contest(self._container)
        while True:
            old, version = read()
            new = change(old)
            try:
                write(new, version)
                return new
            except VersionConflictError:
                if not contest.again():
                    raise

    def _files(self, *prefixes: str) -> Iterator[tuple[ObjectInfo, File]]:
        for prefix in prefixes:
            for info in self._container.list(prefix, unread=self._passed_over):
                if (file := places.parse(info.key[len(self._root) :])) is not None:
                    yield info, file

    def _passed_over(self, directory: str, reason: str) -> None:
        if places.may_hold(directory[len(self._root) :]):
            raise AccessDeniedError(f"could not list {self._name(directory)}: {reason}; there may be documents in it")

    def _delete(self, storage_keys: Sequence[str] | Mapping[str, str]) -> None:
        if failed := self._container.delete(storage_keys):
            raise PartialDeleteError(
                f"{len(failed)} of {len(storage_keys)} objects could not be deleted, {next(iter(failed))!r} for one: "
                f"{next(iter(failed.values()))}; delete again to go on with them",
                failed,
            )


def _marked(place: _Place) -> Iterator[tuple[str, str]]:
    """The places of a document in their order, each with what its versions start with."""
    return ((_MARK * number, each) for number, each in enumerate(place))


class _Contest:
    """The tries of one of several who want to write the same document."""

    def __init__(self, container: Container) -> None:
        self._clock, self._until = container.clock, container.clock.monotonic() + container.retry.deadline
        self._longest = _SHORTEST

    def again(self) -> bool:
        """Whether there is time for another try; pauses first, longer each time, and by chance."""
        pause = self._longest * self._clock.jitter()
        self._longest = min(2 * self._longest, _LONGEST)
        if self._clock.monotonic() + pause > self._until:
            return False
        self._clock.sleep(pause)
        return True
