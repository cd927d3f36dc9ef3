"""The session object of the session API: its agent, resources, statistics and threads."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType, field

from transcript_backends.events.model import (
    AgentId,
    Count,
    Fault,
    FileId,
    Json,
    Makers,
    MemoryStoreId,
    Model,
    Seconds,
    Secret,
    SessionId,
    Text,
    ThreadId,
    Time,
    build,
    invalid,
)

Status = Literal["rescheduling", "running", "idle", "canceling", "terminated"]
ThreadStatus = Literal["running", "idle", "rescheduling", "terminated"]

_NEXT: dict[str, tuple[str, ...]] = {
    "rescheduling": ("running", "idle", "canceling", "terminated"),
    "running": ("rescheduling", "idle", "canceling", "terminated"),
    "idle": ("rescheduling", "running", "canceling", "terminated"),
    "canceling": ("idle", "terminated"),
    "terminated": (),
}

_NOT_IN_A_SNAPSHOT = "created_at", "updated_at", "archived", "archived_at", "metadata"
_UPLOADS = "/mnt/session/uploads/"


def check_transition(before: str, after: str) -> None:
    """See that a session or a thread may go from one status to another; to the same it may.

    ``canceling`` leads to ``idle`` or ``terminated``, ``terminated`` to nothing, all others to any.

    Raises:
        InvalidEventError: it may not.
    """
    if after != before and after not in _NEXT[before]:
        raise invalid("status", f"it can't go from {before!r} to {after!r}, only to {', '.join(_NEXT[before]) or 'nothing'}")


# --- agents -----------------------------------------------------------------------------------------------------------


class AgentReference(Model, frozen=True, kw_only=True):
    """Which agent a session is to use.

    Attributes:
        version: to be pinned; 0: the latest that is active.
    """

    id: AgentId
    type: Literal["agent"] = "agent"
    version: Count = 0

    @classmethod
    def of(cls, value: str | Mapping[str, Any]) -> AgentReference:
        """From an agent id, or an object with ``id``, ``type`` and perhaps ``version``.

        Raises:
            InvalidEventError: it is neither.
        """
        if isinstance(value, str):
            return build(cls, {"id": value})
        if not isinstance(value, Mapping):
            raise invalid("", f"an agent is named by a str or an object, not {type(value).__name__}")
        if "type" not in value:
            raise invalid("type", "it is missing; an agent that is given as an object needs it, 'agent'")
        return build(cls, value)


class Agent(Model, frozen=True, kw_only=True):
    """The agent of a session as it was when that was made, or one of those that it coordinates.

    Attributes:
        type: ``agent``, or ``self`` for the coordinator among its own.
        model: a name, or an object, in which ``effective_context_window`` is in tokens.
        multiagent: what it coordinates; its ``agents`` are whole definitions too.
    """

    id: AgentId | UnsetType = UNSET
    type: Literal["agent", "self"] | UnsetType = UNSET
    version: Count | UnsetType = UNSET
    name: str | UnsetType = UNSET
    description: str | UnsetType | None = UNSET
    system: str | UnsetType | None = UNSET
    model: str | Json | UnsetType = UNSET
    multiagent: Json | UnsetType | None = UNSET


def snapshot(agent: Mapping[str, Any]) -> Agent:
    """An agent as a session shows it: see `trimmed`.

    Raises:
        InvalidEventError: names the member and what is wrong.
    """
    return build(Agent, trimmed(agent))


def trimmed(agent: Mapping[str, Any], *, of_a_thread: bool = False) -> Json:
    """The members of an agent that a session shows: not its dates, archiving and metadata, and its instructions as ``system``.

    So are the agents that it coordinates, which coordinate none themselves; nor does one ``of_a_thread``.
    """
    left_out = {*_NOT_IN_A_SNAPSHOT, *(["multiagent"] if of_a_thread else [])}
    found = {name: value for name, value in agent.items() if name not in left_out}
    if "instructions" in found:
        found["system"] = found.pop("instructions")
    model, multiagent = found.get("model"), found.get("multiagent")
    if isinstance(model, Mapping):
        window = model.get("effective_context_window")
        if not (isinstance(window, int) and window > 0):
            found["model"] = {name: value for name, value in model.items() if name != "effective_context_window"}
    if isinstance(multiagent, Mapping) and isinstance(multiagent.get("agents"), list):
        agents = [trimmed(each, of_a_thread=True) if isinstance(each, Mapping) else each for each in multiagent["agents"]]
        found["multiagent"] = {**multiagent, "agents": agents}
    return found


# --- resources --------------------------------------------------------------------------------------------------------


class Resource(Model, frozen=True, kw_only=True):
    """What is mounted into a session. Of a type that this version does not know, one of these itself."""

    withheld = frozenset({"authorization_token"})


if TYPE_CHECKING:
    Resources = list[Resource]
else:
    Resources = list  # `resource` makes what is in it


class FileResource(Resource, frozen=True, kw_only=True, tag="file"):
    """A file, mounted below ``/mnt/session/uploads/`` where nothing else is said."""

    file_id: FileId
    id: Text | UnsetType = UNSET
    mount_path: str | UnsetType | None = UNSET
    created_at: Time | UnsetType = UNSET
    updated_at: Time | UnsetType = UNSET

    @property
    def path(self) -> str:
        """Where it is mounted."""
        return self.mount_path or f"{_UPLOADS}{self.file_id}"


class GitHubRepositoryResource(Resource, frozen=True, kw_only=True, tag="github_repository"):
    """A repository.

    Attributes:
        authorization_token: to clone it with; whoever makes a session must give it, and it is neither stored nor shown.
    """

    url: Text
    authorization_token: Secret | UnsetType = UNSET
    id: Text | UnsetType = UNSET
    mount_path: str | UnsetType | None = UNSET
    checkout: Json | UnsetType | None = UNSET
    created_at: Time | UnsetType = UNSET
    updated_at: Time | UnsetType = UNSET


class MemoryStoreResource(Resource, frozen=True, kw_only=True, tag="memory_store"):
    """A memory store. Has no id and no dates of its own."""

    memory_store_id: MemoryStoreId
    access: Literal["read_write", "read_only", ""] | UnsetType | None = UNSET
    instructions: Annotated[str, Meta(max_length=4096)] | UnsetType | None = UNSET
    name: str | UnsetType | None = UNSET
    description: str | UnsetType | None = UNSET
    mount_path: str | UnsetType | None = UNSET

    def faults(self) -> list[Fault]:
        return [Fault(each, "a memory store has none") for each in ("id", "created_at", "updated_at") if each in self.unknown]


def resource(members: Mapping[str, Any]) -> Resource:
    """A resource from its members.

    Raises:
        InvalidEventError: names the member and what is wrong.
    """
    kind = members.get("type")
    if not isinstance(kind, str):
        raise invalid("type", "it is missing" if kind is None else "expected str")
    return build(_RESOURCES.get(kind, Resource), members)


_RESOURCES: dict[str, type[Resource]] = {
    "file": FileResource,
    "github_repository": GitHubRepositoryResource,
    "memory_store": MemoryStoreResource,
}


# --- sessions and threads ---------------------------------------------------------------------------------------------


class Stats(Model, frozen=True, kw_only=True):
    """Seconds: how long it was at work, and how long it has been there."""

    active_seconds: Seconds = 0
    duration_seconds: Seconds = 0


class Session(Model, frozen=True, kw_only=True):
    """A session as the API shows it."""

    id: SessionId
    type: Literal["session"] = "session"
    agent: Agent
    environment_id: Text
    status: Status
    title: str | None = None
    metadata: Json = field(default_factory=dict)
    environment_variables: dict[str, str] = field(default_factory=dict)
    resources: Resources = field(default_factory=list)
    vault_ids: list[str] = field(default_factory=list)
    deployment_id: str | None = None
    outcome_evaluations: list[Any] = field(default_factory=list)
    stats: Stats = Stats()
    archived_at: Time | None = None
    created_at: Time
    updated_at: Time

    nested: ClassVar[Makers] = {"agent": partial(build, Agent), "resources": resource, "stats": partial(build, Stats)}
    withheld = frozenset({"agent_id", "turn_status", "memory_store_ids", "usage"})  # of earlier versions of the API


class Thread(Model, frozen=True, kw_only=True):
    """One thread of a session; the coordinator's has no parent."""

    id: ThreadId
    type: Literal["session_thread"] = "session_thread"
    session_id: SessionId
    parent_thread_id: ThreadId | None = None
    agent: Agent
    status: ThreadStatus
    stats: Stats | None = None
    archived_at: Time | None = None
    created_at: Time
    updated_at: Time

    nested: ClassVar[Makers] = {"agent": partial(build, Agent), "stats": partial(build, Stats)}
    withheld = frozenset({"agent_id", "agent_version", "name", "role", "stop_reason", "created_by_tool_use_id", "usage"})

    def faults(self) -> list[Fault]:
        return [Fault("agent.multiagent", "the agent of a thread has none")] if self.agent.multiagent is not UNSET else []
