"""The lines of a session as typed values: what each type holds, and how it becomes a line again.

Decoding keeps the line beside the values, which costs a pointer and makes encoding exact: unknown members, the form and the
digits of numbers, escapes. So entries are frozen, and `SessionEntry.replace` is how another value gets into one.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Raw, field

from transcript_backends.entries import timestamps
from transcript_backends.errors import CorruptSegmentError, InvalidEntryError
from transcript_backends.records import Record

if TYPE_CHECKING:
    from typing import ClassVar

_Entry = TypeVar("_Entry", bound="SessionEntry")


class SessionEntry:
    """What all entries have in common.

    Attributes:
        id: names the entry; entries of the same id are the same entry. Empty where the line has none.
        parent_id: the entry it follows; None for the first one of a session.
        timestamp_json: the timestamp as it stands in the line, a number or a string.
    """

    __slots__ = ("_line",)  # of one that was decoded

    if TYPE_CHECKING:
        id: str
        parent_id: str | None
        timestamp_json: Raw
        _line: bytes
        __struct_fields__: ClassVar[tuple[str, ...]]
        __struct_encode_fields__: ClassVar[tuple[str, ...]]
        __struct_config__: ClassVar[msgspec.structs.StructConfig]

    @property
    def type(self) -> str:
        """The ``type`` in the line."""
        return str(self.__struct_config__.tag)

    @property
    def timestamp(self) -> datetime | None:
        """When it was made: UTC, cut to microseconds (`timestamp_ns` is exact). None where the line does not say.

        Raises:
            InvalidEntryError: the line holds something else.
        """
        return timestamps.moment(self.timestamp_json)

    @property
    def timestamp_ns(self) -> int | None:
        """The timestamp in nanoseconds since 1970. Raises as `timestamp`."""
        return timestamps.nanoseconds(self.timestamp_json)

    @property
    def text(self) -> str:
        """What it says; for a tool call its input as JSON."""
        return ""

    @property
    def extra(self) -> dict[str, Any]:
        """The members of its line that this version does not know, parsed.

        Raises:
            CorruptSegmentError: they are no JSON (which nobody looked at before).
        """
        known = {self.__struct_config__.tag_field, *self.__struct_encode_fields__}
        members = Record(0, "", encode(self)).json()
        return {name: value for name, value in members.items() if name not in known}

    def replace(self: _Entry, **changes: Any) -> _Entry:
        """The same entry with other values for these fields; all else of its line stays (halves of characters as U+FFFD)."""
        changed: _Entry = msgspec.structs.replace(self, **changes)  # type: ignore[type-var]
        if (line := getattr(self, "_line", None)) is not None:
            members, fresh = _members(line), _members(encode(changed))
            for name, wire in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
                if name in changes and wire in fresh:
                    members[wire] = fresh[wire]
                elif name in changes:
                    members.pop(wire, None)
            _keep(changed, "_line", _encoder.encode(members))
        return changed

    def says_the_same(self, other: SessionEntry) -> bool:
        """Whether they are equal but for their timestamps."""
        names = (name for name in self.__struct_fields__ if name != "timestamp_json")
        if type(self) is not type(other) or any(getattr(self, name) != getattr(other, name) for name in names):
            return False
        return _unknown(self) == _unknown(other)

    def to_line(self) -> bytes:
        """`encode`; how a `TranscriptWriter` stores it."""
        return encode(self)

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        values["timestamp_json"] = bytes(self.timestamp_json)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SessionEntry):
            return NotImplemented
        return self.timestamp_json == other.timestamp_json and self.says_the_same(other)

    __hash__ = None  # type: ignore[assignment]  # lists are among the values

    def __copy__(self: _Entry) -> _Entry:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return decode, (encode(self),)


class _Typed(
    SessionEntry,
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,  # values from JSON hold no cycles
    omit_defaults=True,
    rename="camel",
    tag_field="type",
):
    id: str
    parent_id: str | None = None
    timestamp_json: Raw = field(name="timestamp")


class MessageEntry(_Typed, frozen=True, kw_only=True, gc=False, tag="message"):
    """A message of the conversation.

    Attributes:
        role: as it stands in the line; other programs write it in upper case. See `speaker`.
        content: its text.
        tool_call_id: the call that a message of a tool answers.
        block_types: what it holds besides text, where it has none.
    """

    role: str
    content: str
    tool_call_id: str | None = None
    block_types: list[str] | None = None

    @classmethod
    def new(
        cls,
        role: str,
        content: str,
        *,
        id: str | None = None,  # noqa: A002
        parent_id: str | None = None,
        timestamp: datetime | None = None,
        tool_call_id: str | None = None,
        block_types: list[str] | None = None,
    ) -> MessageEntry:
        """A message of now, with an id of its own, unless they are given."""
        return cls(
            id=id or _new_id(),
            parent_id=parent_id,
            timestamp_json=timestamps.written(timestamp),
            role=role,
            content=content,
            tool_call_id=tool_call_id,
            block_types=block_types,
        )

    @classmethod
    def user(cls, content: str, *, parent_id: str | None = None) -> MessageEntry:
        """What the user says now."""
        return cls.new("user", content, parent_id=parent_id)

    @classmethod
    def assistant(cls, content: str, *, parent_id: str | None = None) -> MessageEntry:
        """What the model says now."""
        return cls.new("assistant", content, parent_id=parent_id)

    @classmethod
    def system(cls, content: str, *, parent_id: str | None = None) -> MessageEntry:
        """What the model is told beside the conversation."""
        return cls.new("system", content, parent_id=parent_id)

    @property
    def speaker(self) -> str:
        """The role in lower case: ``user``, ``assistant``, ``system`` or ``tool``."""
        return self.role.lower()

    @property
    def text(self) -> str:
        return self.content


class ToolUseEntry(_Typed, frozen=True, kw_only=True, gc=False, tag="tool_use"):
    """A call of a tool.

    Attributes:
        tool_call_id: pairs it with its result.
        name: the tool's.
        input: its arguments. Where ``truncated``, their beginning as text, in ``_preview``.
        original_size: in characters, where truncated.
    """

    tool_call_id: str
    name: str
    input: dict[str, Any]
    truncated: bool = field(default_factory=bool)  # which is always written
    original_size: int | None = None

    @classmethod
    def new(
        cls,
        name: str,
        input: Mapping[str, Any],  # noqa: A002
        *,
        tool_call_id: str | None = None,
        id: str | None = None,  # noqa: A002
        parent_id: str | None = None,
        timestamp: datetime | None = None,
    ) -> ToolUseEntry:
        """A call of now, with ids of its own, unless they are given."""
        return cls(
            id=id or _new_id(),
            parent_id=parent_id,
            timestamp_json=timestamps.written(timestamp),
            tool_call_id=tool_call_id or _new_id(),
            name=name,
            input=dict(input),
        )

    @property
    def text(self) -> str:
        return json.dumps(self.input, ensure_ascii=False)


class ToolResultEntry(_Typed, frozen=True, kw_only=True, gc=False, tag="tool_result"):
    """What a tool has answered.

    Attributes:
        tool_call_id: pairs it with its call.
        name: the tool's.
        output: the answer's text, cut short where ``truncated``.
        output_block_types: what the answer consisted of.
        original_size: in characters, where truncated.
    """

    tool_call_id: str
    name: str
    output: str
    output_block_types: list[str] | None = None
    truncated: bool = field(default_factory=bool)
    original_size: int | None = None

    @classmethod
    def new(
        cls,
        call: ToolUseEntry,
        output: str,
        *,
        id: str | None = None,  # noqa: A002
        parent_id: str | None = None,
        timestamp: datetime | None = None,
        output_block_types: list[str] | None = None,
    ) -> ToolResultEntry:
        """The answer to a call, now and with an id of its own unless they are given; it follows the call, or ``parent_id``."""
        return cls(
            id=id or _new_id(),
            parent_id=parent_id or call.id,
            timestamp_json=timestamps.written(timestamp),
            tool_call_id=call.tool_call_id,
            name=call.name,
            output=output,
            output_block_types=output_block_types,
        )

    @property
    def text(self) -> str:
        return self.output


class CompactionEntry(_Typed, frozen=True, kw_only=True, gc=False, tag="compaction"):
    """From here on the model sees a summary, and the messages from one on. What was before stays in the transcript.

    Attributes:
        first_kept_entry_id: the first entry whose messages the model still sees.
        summary_entry_id: what it sees in place of those before.
    """

    first_kept_entry_id: str
    summary_entry_id: str

    @classmethod
    def new(
        cls,
        first_kept_entry_id: str,
        summary: SummaryEntry,
        *,
        id: str | None = None,  # noqa: A002
        parent_id: str | None = None,
        timestamp: datetime | None = None,
    ) -> CompactionEntry:
        """A compaction of now, with an id of its own, unless they are given; it follows its summary, or ``parent_id``."""
        return cls(
            id=id or _new_id(),
            parent_id=parent_id or summary.id,
            timestamp_json=timestamps.written(timestamp),
            first_kept_entry_id=first_kept_entry_id,
            summary_entry_id=summary.id,
        )


class SummaryEntry(_Typed, frozen=True, kw_only=True, gc=False, tag="summary"):
    """What messages were about that the model no longer sees.

    Attributes:
        summary: the text.
        format: how it is written.
    """

    summary: str
    format: str = field(default_factory=lambda: "structured")

    @classmethod
    def new(
        cls,
        summary: str,
        *,
        format: str = "structured",  # noqa: A002
        id: str | None = None,  # noqa: A002
        parent_id: str | None = None,
        timestamp: datetime | None = None,
    ) -> SummaryEntry:
        """A summary of now, with an id of its own, unless they are given."""
        return cls(
            id=id or _new_id(),
            parent_id=parent_id,
            timestamp_json=timestamps.written(timestamp),
            summary=summary,
            format=format,
        )

    @property
    def text(self) -> str:
        return self.summary


class RawEntry(SessionEntry, msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, rename="camel"):
    """An entry of a type that this version does not know, or one that is not what its type demands. Its members are in `extra`.

    Attributes:
        type: as it stands in the line; empty where it has none.
    """

    type: str = ""
    id: str = ""
    parent_id: str | None = None
    timestamp_json: Raw = field(name="timestamp", default=timestamps.ABSENT)

    @classmethod
    def read(cls, line: bytes) -> RawEntry:
        """Any JSON object as a raw entry.

        Raises:
            InvalidEntryError: the line is no JSON object.
        """
        members = _members(line)
        kind, own, parent = (_string(members.get(name)) for name in ("type", "id", "parentId"))
        stamp = members.get("timestamp", timestamps.ABSENT)
        entry = cls(type=kind or "", id=own or "", parent_id=parent, timestamp_json=stamp)
        _keep(entry, "_line", line)
        return entry


_Known = MessageEntry | ToolUseEntry | ToolResultEntry | CompactionEntry | SummaryEntry
Entry = _Known | RawEntry

_KNOWN_TYPES = {str(each.__struct_config__.tag) for each in _Known.__args__}
_decode = msgspec.json.Decoder(_Known).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_encoder = msgspec.json.Encoder()
_keep: Any = msgspec.structs.force_setattr
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

# An escaped half of a character, which the fast parser refuses: whole characters and other escapes are passed over.
_HALF = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\[^u]")
_MISSING = re.compile(r"Object missing required field `(.+)`")
_WRONG = re.compile(r"(.+) - at `\$\.(.+)`")


def decode(line: bytes) -> Entry:
    """The entry that a line holds; a `RawEntry` where its type is unknown. A member that is null counts as absent.

    Raises:
        InvalidEntryError: it is no JSON object, or not what its type demands.
    """
    try:
        entry = _decode(line)
    except _UNREADABLE:
        entry = _decode_odd(line)
    _keep(entry, "_line", line)
    return entry


def encode(entry: SessionEntry) -> bytes:
    """The entry as a line, without a newline. Decoded from one, it is that line."""
    line: bytes | None = getattr(entry, "_line", None)
    if line is not None:
        return line.strip()
    try:
        return _encoder.encode(entry)
    except UnicodeEncodeError:  # half a character, which JSON can only hold as an escape
        return json.dumps(_as_json(entry), separators=(",", ":"), allow_nan=False).encode()


def _decode_odd(line: bytes) -> Any:
    """What the fast way does not take: unknown types, nulls, no id, halves of characters. And what is no entry."""
    members = {name: value for name, value in _members(line).items() if bytes(value) != b"null"}
    kind = _string(members.get("type"))
    if kind not in _KNOWN_TYPES:
        return RawEntry.read(line)
    members.setdefault("id", Raw(b'""'))
    members.setdefault("timestamp", timestamps.ABSENT)
    try:
        return _decode(_encoder.encode(members))
    except _UNREADABLE as error:
        raise _explained(str(error), kind) from error


def _members(line: bytes) -> dict[str, Raw]:
    """The members of a line as they stand in it, but for halves of characters."""
    try:
        line.decode()  # the fast parser does not look into what it passes over
        try:
            return _decode_members(line)
        except msgspec.DecodeError:
            return _decode_members(_HALF.sub(lambda each: each[0] if len(each[0]) != 6 else rb"\ufffd", line))
    except _UNREADABLE as error:
        raise InvalidEntryError(f"the line is no JSON object that can be read ({error}); an entry is one") from error


def _explained(error: str, kind: str | None) -> InvalidEntryError:
    if found := _MISSING.match(error):
        member, reason = found[1], "is missing"
    elif found := _WRONG.fullmatch(error):
        member, reason = found[2], f"is not what it should be: {found[1]}"
    else:
        member, reason = "", f"can't be read: {error}"
    what = f"{member!r} of" if member else "a member of"
    return InvalidEntryError(f"{what} a {kind} entry {reason}; RawEntry.read takes it as it is", member)


def _string(raw: Raw | None) -> str | None:
    """The string in a member; None where it is anything else."""
    try:
        return None if raw is None else msgspec.json.decode(raw, type=str)
    except _UNREADABLE:
        return None


def _unknown(entry: SessionEntry) -> dict[str, Any]:
    """Its extra members, or the line where they can't be parsed."""
    try:
        return entry.extra if hasattr(entry, "_line") else {}
    except CorruptSegmentError:
        return {"": encode(entry)}


def _as_json(entry: SessionEntry) -> dict[str, Any]:
    """The members as the standard library writes them."""
    values = {name: getattr(entry, name) for name in entry.__struct_fields__}
    values["timestamp_json"] = json.loads(bytes(entry.timestamp_json))
    wires = zip(entry.__struct_encode_fields__, values.values(), strict=True)
    return {"type": entry.type, **{wire: value for wire, value in wires if value is not None}}


def _new_id() -> str:
    return str(uuid.uuid4())
