"""`Sessions`: the session objects of a user and their threads, as documents that are changed by compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeVar, overload

from msgspec import UNSET
from msgspec.structs import replace

from transcript_backends.errors import CorruptSegmentError, InvalidEventError
from transcript_backends.events.model import Json, build, invalid, new_id, within
from transcript_backends.events.sessions import (
    FileResource,
    GitHubRepositoryResource,
    Resource,
    Session,
    Status,
    Thread,
    check_transition,
    resource,
    trimmed,
)
from transcript_backends.state import ABSENT, StateStore

_SESSION, _THREADS = "session", "threads"  # keys of the documents

_Either = TypeVar("_Either", Session, Thread)
Threads = list[Thread]


@dataclass(frozen=True)
class SessionPage(Sequence[Session]):
    """Some sessions of a user: a sequence of them, with what was seen on the way.

    Attributes:
        sessions: by id, which is by age where `Sessions` has made them.
        problems: by id, what is wrong with a document that is none.
        after: where to go on; None where there are no more.
    """

    sessions: list[Session]
    problems: dict[str, str]
    after: str | None

    @overload
    def __getitem__(self, place: int) -> Session: ...

    @overload
    def __getitem__(self, place: slice) -> list[Session]: ...

    def __getitem__(self, place: int | slice) -> Session | list[Session]:
        return self.sessions[place]

    def __len__(self) -> int:
        return len(self.sessions)


class Sessions:
    """The sessions of one user. Where several change one at once, each change is made to what the one before has left.

    Args:
        states: where the documents are.
        user: whose; None: nobody's.
        now: tells the time.
    """

    def __init__(
        self, states: StateStore, user: str | None = None, *, now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
    ) -> None:
        self._states, self._user, self._now = states, user, now

    # --- sessions -----------------------------------------------------------------------------------------------------

    def create(
        self,
        agent: Mapping[str, Any],
        environment_id: str,
        *,
        status: Status = "idle",
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        environment_variables: Mapping[str, str] | None = None,
        resources: Sequence[Resource | Mapping[str, Any]] = (),
        vault_ids: Sequence[str] = (),
        deployment_id: str | None = None,
    ) -> Session:
        """Store a new session, with a snapshot of an agent. Tokens of repositories are needed, and not stored.

        Raises:
            InvalidEventError: names the member and what is wrong; nothing was stored.
        """
        now = self._time()
        try:
            session = build(
                Session,
                {
                    "id": new_id("sess"),
                    "agent": trimmed(agent),
                    "environment_id": environment_id,
                    "status": status,
                    "title": title,
                    "metadata": metadata or {},
                    "environment_variables": environment_variables or {},
                    "resources": [_mounted(number, each, now) for number, each in enumerate(resources)],
                    "vault_ids": list(vault_ids),
                    "deployment_id": deployment_id,
                    "created_at": now,
                    "updated_at": now,
                },
            )
        except InvalidEventError as error:
            raise _refused("the session", error) from error
        self._states.save_if_version(self._user, session.id, _SESSION, session.members(), ABSENT)
        return session

    def get(self, session_id: str) -> Session | None:
        """A session; None where there is none.

        Raises:
            InvalidEventError: what is stored is none.
        """
        stored = self._states.get(self._user, session_id, _SESSION, dict)
        return None if stored is None else _read(Session, stored, session_id)

    def update(self, session_id: str, change: Callable[[Session], Session]) -> Session:
        """Change a session; gives what is stored then, with a new ``updated_at``.

        Args:
            session_id: which.
            change: gives the new session for the stored one (``lambda session: msgspec.structs.replace(session, title="x")``);
                may be called several times.

        Raises:
            InvalidEventError: there is no such session, or the change breaks a rule: the id, the agent and the time of creation
                stay; a status goes where it may (`check_transition`). Nothing was stored.
        """

        def changed(stored: Json | None) -> Json:
            if stored is None:
                raise InvalidEventError(f"there is no session {session_id!r}; it may have been deleted")
            before = _read(Session, stored, session_id)
            return self._changed(before, change(before), ("id", "agent", "created_at")).members()

        stored = self._states.update(self._user, session_id, _SESSION, dict, changed)
        return _read(Session, stored, session_id)

    def set_status(self, session_id: str, status: Status) -> Session:
        """Change the status of a session, as `update` does."""
        return self.update(session_id, lambda session: replace(session, status=status))

    def archive(self, session_id: str) -> Session:
        """Archive a session, as `update` does; one that is archived stays as it is."""
        return self.update(session_id, lambda session: replace(session, archived_at=session.archived_at or self._time()))

    def list(self, *, after: str | None = None, limit: int = 20) -> SessionPage:
        """A page of sessions. Lists the user's documents, and gets one for each session of the page.

        Args:
            after: ``page.after`` of the page before.
            limit: how many at most.
        """
        if limit < 1:
            raise ValueError(f"limit must be 1 or more, not {limit!r}")
        ids = [each for each in self._states.list_session_ids(self._user) if each.startswith("sess_") and each > (after or "")]
        page = SessionPage([], {}, ids[limit - 1] if len(ids) > limit else None)
        for session_id in ids[:limit]:
            try:
                session = self.get(session_id)
            except (InvalidEventError, CorruptSegmentError) as error:
                page.problems[session_id] = str(error)
            else:
                page.sessions.extend([session] if session is not None else [])
        return page

    # --- threads ------------------------------------------------------------------------------------------------------

    def create_thread(self, session_id: str, agent: Mapping[str, Any], *, parent_thread_id: str | None = None) -> Thread:
        """Store a new thread of a session, running. The first one is the coordinator's, and the only one without a parent.

        Raises:
            InvalidEventError: there is no such session or no such parent, or another has no parent; nothing was stored.
        """
        if self.get(session_id) is None:
            raise InvalidEventError(f"there is no session {session_id!r}; it may have been deleted")
        now = self._time()
        members = {
            "id": new_id("sthr"),
            "session_id": session_id,
            "parent_thread_id": parent_thread_id,
            "agent": trimmed(agent, of_a_thread=True),
            "status": "running",
            "created_at": now,
            "updated_at": now,
        }
        try:
            thread = build(Thread, members)
        except InvalidEventError as error:
            raise _refused("the thread", error) from error

        def added(stored: Json | None) -> Json:
            threads = stored or {}
            if parent_thread_id is not None and parent_thread_id not in threads:
                raise _refused("the thread", invalid("parent_thread_id", f"{session_id} has no thread {parent_thread_id!r}"))
            if parent_thread_id is None and threads:
                raise _refused("the thread", invalid("parent_thread_id", "only the coordinator's, which is there, has none"))
            return threads | {thread.id: thread.members()}

        self._states.update(self._user, session_id, _THREADS, dict, added)
        return thread

    def update_thread(self, session_id: str, thread_id: str, change: Callable[[Thread], Thread]) -> Thread:
        """Change a thread, as `update` changes a session; its session and its parent stay too."""

        def changed(stored: Json | None) -> Json:
            if thread_id not in (stored or {}):
                raise InvalidEventError(f"session {session_id!r} has no thread {thread_id!r}")
            assert stored is not None
            before = _read(Thread, stored[thread_id], thread_id)
            after = self._changed(before, change(before), ("id", "agent", "created_at", "session_id", "parent_thread_id"))
            return stored | {thread_id: after.members()}

        stored = self._states.update(self._user, session_id, _THREADS, dict, changed)
        return _read(Thread, stored[thread_id], thread_id)

    def threads(self, session_id: str) -> Threads:
        """The threads of a session, the coordinator's first, each after its parent.

        Raises:
            InvalidEventError: what is stored is none.
        """
        stored = self._states.get(self._user, session_id, _THREADS, dict) or {}
        return [_read(Thread, members, thread_id) for thread_id, members in stored.items()]

    # --- inside -------------------------------------------------------------------------------------------------------

    def _changed(self, before: _Either, after: _Either, fixed: Sequence[str]) -> _Either:
        """What is to be stored after a change, where the change is allowed."""
        what = f"{before.type} {before.id!r}"
        try:
            check_transition(before.status, after.status)
            for name in fixed:
                if getattr(before, name) != getattr(after, name):
                    raise invalid(name, "it can't be changed")
            return build(type(after), after.members() | {"updated_at": self._time()})
        except InvalidEventError as error:
            raise _refused(what, error) from error

    def _time(self) -> str:
        return self._now().astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _mounted(number: int, given: Resource | Mapping[str, Any], now: str) -> Json:
    """A resource as a new session has it."""
    try:
        each = given if isinstance(given, Resource) else resource(given)
        if isinstance(each, GitHubRepositoryResource) and each.authorization_token is UNSET:
            raise invalid("authorization_token", "it is missing; it is used to clone the repository, and not stored")
    except InvalidEventError as error:
        raise within(f"resources[{number}]", error) from error
    if isinstance(each, FileResource):
        each = replace(each, mount_path=each.path)
    if isinstance(each, (FileResource, GitHubRepositoryResource)):
        each = replace(each, id=new_id("rsrc"), created_at=now, updated_at=now)
    return each.members()


def _read(cls: type[_Either], members: Mapping[str, Any], name: str) -> _Either:
    try:
        return build(cls, members)
    except InvalidEventError as error:
        raise _refused(f"the document of {name!r}", error) from error


def _refused(what: str, error: InvalidEventError) -> InvalidEventError:
    path, reason = error.path, error.reason
    return InvalidEventError(f"{what} is refused: {error}", path=path, reason=reason)
