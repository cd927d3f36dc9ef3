"""The public event types of the session API, and the rules for those that a client may send."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Union

import msgspec
from msgspec import UNSET, Meta, UnsetType

from transcript_backends.events.model import (
    Count,
    EventId,
    Fault,
    FileId,
    Json,
    Model,
    Text,
    ThreadId,
    Time,
    build,
    invalid,
    near,
)

Blocks = Annotated[list[Json], Meta(min_length=1)]
FRAMES = "event_start", "event_delta"


def text(*texts: str) -> list[Json]:
    """Content of text blocks."""
    return [{"type": "text", "text": each} for each in texts]


class Event(Model, frozen=True, kw_only=True):
    """What every event may hold; each type says what it must.

    Attributes:
        id: begins with ``evt_``; empty until it is sent.
        processed_at: when it was processed, RFC 3339 with a zone; many events of agents have none.
        session_thread_id: of the thread it belongs to.
    """

    id: EventId = ""
    processed_at: Time | UnsetType | None = UNSET
    session_thread_id: ThreadId | UnsetType | None = UNSET
    content: list[Json] | str | UnsetType | None = UNSET
    input: Json | UnsetType | None = UNSET
    name: str | UnsetType | None = UNSET
    tool_use_id: str | UnsetType | None = UNSET
    mcp_tool_use_id: str | UnsetType | None = UNSET
    custom_tool_use_id: str | UnsetType | None = UNSET
    is_error: bool | UnsetType | None = UNSET
    result: Any = UNSET
    deny_message: str | UnsetType | None = UNSET
    rubric: Json | UnsetType | None = UNSET
    outcome_id: str | UnsetType | None = UNSET
    stop_reason: Any = UNSET
    error: Any = UNSET
    usage: Any = UNSET

    sendable: ClassVar[bool] = False  # by a client

    @property
    def type(self) -> str:
        """As it is written."""
        return str(self.__struct_config__.tag)

    def faults(self) -> list[Fault]:
        return list(_block_faults(self.content)) if isinstance(self.content, list) else []


def _block_faults(content: list[Json], *, only_text: bool = False) -> Iterator[Fault]:
    for number, block in enumerate(content):
        kind = block.get("type")
        if not isinstance(kind, str):
            yield Fault(f"content[{number}].type", "it is missing" if kind is None else "expected str")
        elif only_text and kind != "text":
            yield Fault(f"content[{number}].type", f"it must be 'text', not {kind!r}")
        elif kind == "text" and not isinstance(block.get("text"), str):
            yield Fault(f"content[{number}].text", "it is missing" if "text" not in block else "expected str")


class UnknownEvent(Event, frozen=True):
    """An event of a type that this version does not know; written again as it was read."""

    @property
    def type(self) -> str:
        return str(self.unknown["type"])


# --- what a client may send -------------------------------------------------------------------------------------------


class UserMessage(Event, frozen=True, kw_only=True, tag="user.message"):
    """What the user says: at least one block."""

    sendable = True
    content: Blocks


class UserInterrupt(Event, frozen=True, tag="user.interrupt"):
    """Stops a thread; all where it names none."""

    sendable = True


class UserToolConfirmation(Event, frozen=True, kw_only=True, tag="user.tool_confirmation"):
    """Lets a tool run, or not."""

    sendable = True
    tool_use_id: Text
    result: Literal["allow", "deny"]


class UserToolResult(Event, frozen=True, kw_only=True, tag="user.tool_result"):
    """What a built-in tool gave that a worker of one's own has run."""

    sendable = True
    tool_use_id: Text
    content: list[Json] | UnsetType = UNSET


class UserCustomToolResult(Event, frozen=True, kw_only=True, tag="user.custom_tool_result"):
    """What a tool of the client gave."""

    sendable = True
    custom_tool_use_id: Text
    content: list[Json] | UnsetType = UNSET


class UserDefineOutcome(Event, frozen=True, kw_only=True, tag="user.define_outcome"):
    """What is to come out, and how that is judged.

    Attributes:
        rubric: ``{"type": "text", "content": ...}`` or ``{"type": "file", "file_id": ...}``.
    """

    sendable = True
    description: Text
    rubric: Json
    max_iterations: Count | UnsetType = UNSET

    def faults(self) -> list[Fault]:
        match self.rubric.get("type"):
            case "text" if not isinstance(self.rubric.get("content"), str):
                return [Fault("rubric.content", "a rubric of type text needs it, a str")]
            case "file" if not _is_file_id(self.rubric.get("file_id")):
                return [Fault("rubric.file_id", "a rubric of type file needs it, an id that begins with file_")]
            case str():
                return super().faults()
        return [Fault("rubric.type", "it must be a str, text or file")]


class SystemMessage(Event, frozen=True, kw_only=True, tag="system.message"):
    """Text blocks for the model, right after an event of the user or a tool's result."""

    sendable = True
    content: Blocks

    def faults(self) -> list[Fault]:
        return list(_block_faults(self.content, only_text=True))


def may_precede_system_message(event: Event) -> bool:
    """Whether it is an event of the user, or a tool's result."""
    return event.type.startswith("user.") or event.type.endswith("tool_result")


def _is_file_id(value: object) -> bool:
    try:
        msgspec.convert(value, FileId)
    except msgspec.ValidationError:
        return False
    return True


# --- what agents and sessions tell ------------------------------------------------------------------------------------


class AgentMessage(Event, frozen=True, tag="agent.message"):
    """What the agent says."""


class AgentThinking(Event, frozen=True, tag="agent.thinking"):
    """A stretch of thinking that has ended."""


class ModelRequestStart(Event, frozen=True, kw_only=True, tag="span.model_request_start"):
    """A request to the model has begun."""

    processed_at: Time


class ModelRequestEnd(Event, frozen=True, kw_only=True, tag="span.model_request_end"):
    """A request to the model has ended, by itself or not."""

    processed_at: Time
    is_error: bool
    model_request_start_id: EventId


class AgentToolUse(Event, frozen=True, tag="agent.tool_use"):
    """The agent calls a built-in tool."""


class AgentToolResult(Event, frozen=True, tag="agent.tool_result"):
    """What a built-in tool gave."""


class AgentCustomToolUse(Event, frozen=True, tag="agent.custom_tool_use"):
    """The agent calls a tool of the client."""


class AgentMcpToolUse(Event, frozen=True, tag="agent.mcp_tool_use"):
    """The agent calls a tool of an MCP server."""


class AgentMcpToolResult(Event, frozen=True, tag="agent.mcp_tool_result"):
    """What a tool of an MCP server gave."""


class AgentThreadContextCompacted(Event, frozen=True, tag="agent.thread_context_compacted"):
    """The context of a thread was made shorter."""


class AgentThreadMessageReceived(Event, frozen=True, tag="agent.thread_message_received"):
    """A thread was told something by another."""


class AgentThreadMessageSent(Event, frozen=True, tag="agent.thread_message_sent"):
    """A thread told another something."""


class SessionUpdated(Event, frozen=True, tag="session.updated"):
    """The session object has changed."""


class SessionDeleted(Event, frozen=True, tag="session.deleted"):
    """The session was deleted."""


class SessionError(Event, frozen=True, tag="session.error"):
    """Something went wrong."""


class SessionStatusIdle(Event, frozen=True, tag="session.status_idle"):
    """The session waits for a client."""


class SessionStatusRescheduled(Event, frozen=True, tag="session.status_rescheduled"):
    """The session is about to be run again."""


class SessionStatusRunning(Event, frozen=True, tag="session.status_running"):
    """The session runs."""


class SessionStatusTerminated(Event, frozen=True, tag="session.status_terminated"):
    """The session has ended for good."""


class SessionThreadCreated(Event, frozen=True, tag="session.thread_created"):
    """There is another thread."""


class SessionThreadStatusIdle(Event, frozen=True, tag="session.thread_status_idle"):
    """A thread waits."""


class SessionThreadStatusRescheduled(Event, frozen=True, tag="session.thread_status_rescheduled"):
    """A thread is about to be run again."""


class SessionThreadStatusRunning(Event, frozen=True, tag="session.thread_status_running"):
    """A thread runs."""


class SessionThreadStatusTerminated(Event, frozen=True, tag="session.thread_status_terminated"):
    """A thread has ended for good."""


class OutcomeEvaluationStart(Event, frozen=True, tag="span.outcome_evaluation_start"):
    """An outcome is about to be judged."""


class OutcomeEvaluationOngoing(Event, frozen=True, tag="span.outcome_evaluation_ongoing"):
    """An outcome is being judged."""


class OutcomeEvaluationEnd(Event, frozen=True, tag="span.outcome_evaluation_end"):
    """An outcome was judged."""


# --- reading and checking ---------------------------------------------------------------------------------------------

TYPES: dict[str, type[Event]] = {
    str(each.__struct_config__.tag): each for each in Event.__subclasses__() if each is not UnknownEvent
}
"""The public event types by name."""

SENDABLE = sorted(tag for tag, cls in TYPES.items() if cls.sendable)
"""Those that a client may send."""


@functools.cache
def _decoder() -> Callable[[bytes], Event]:
    return msgspec.json.Decoder(Union[tuple(TYPES.values())]).decode  # noqa: UP007


def decode(line: bytes) -> Event:
    """The event on a line, as it is stored: one with an id; of a type that is not known, an `UnknownEvent`.

    Raises:
        InvalidEventError: it is none; names the member and what is wrong.
    """
    try:
        event: Event | None = _decoder()(line)  # takes known members only
    except (ValueError, RecursionError):
        event = None
    if event is None or event.unknown:
        event = event_of(_object(line))
    for fault in event.faults():
        raise invalid(*fault)
    if not event.id:
        raise invalid("id", "it is missing")
    return event


def event_of(members: Mapping[str, Any]) -> Event:
    """An event from its members, with an id or without.

    Raises:
        InvalidEventError: names the member and what is wrong.
    """
    if not isinstance(members, Mapping):
        raise invalid("", f"an event is an object, not {type(members).__name__}")
    kind = members.get("type")
    if not isinstance(kind, str):
        raise invalid("type", "it is missing" if kind is None else f"expected str, got {type(kind).__name__}")
    if kind in FRAMES:
        raise invalid("type", f"{kind} is a frame of a stream: it makes a preview (Preview.feed), and is never stored")
    return build(TYPES.get(kind, UnknownEvent), members)


def _object(line: bytes) -> Any:
    try:
        return json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise invalid("", f"it is not JSON: {error}") from error


def _refuse(name: str) -> None:
    raise ValueError(f"it holds {name}")


def check_sendable(event: Event) -> None:
    """See that it is of a type that a client may send.

    Raises:
        InvalidEventError: it is not.
    """
    if not event.sendable:
        raise invalid("type", f"a client can't send {event.type!r}, only {', '.join(SENDABLE)}{near(event.type, SENDABLE)}")


def check_public(event: Event) -> None:
    """See that it is of a public type.

    Raises:
        InvalidEventError: it is not.
    """
    if event.type not in TYPES:
        raise invalid("type", f"{event.type!r} is no public event type{near(event.type, sorted(TYPES))}")
