"""Objects of the session API as typed structs: what they must hold is checked, what nobody knows of is kept."""

from __future__ import annotations

import difflib
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta

from transcript_backends.errors import InvalidEventError

_UNKNOWN = "(unknown)"  # no member of an object has this name

_DAY, _CLOCK = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?"
_PATTERNS: dict[str, str] = {rf"\A{_DAY}[Tt]{_CLOCK}([Zz]|[+-]\d\d:\d\d)\Z": "a time with its zone, as 2026-01-31T12:00:00Z"}
Time = Annotated[str, Meta(pattern=next(iter(_PATTERNS)))]
"""RFC 3339, as it was written."""

Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0)]
Json = dict[str, Any]
Makers = Mapping[str, Callable[[Json], Any]]


def _id(prefix: str) -> Meta:
    pattern = rf"\A{prefix}_[!-~]+\Z"
    _PATTERNS[pattern] = f"an id that begins with {prefix}_"
    return Meta(pattern=pattern)


EventId = Annotated[str, _id("evt")]
SessionId = Annotated[str, _id("sess")]
ThreadId = Annotated[str, _id("sthr")]
AgentId = Annotated[str, _id("agent")]
FileId = Annotated[str, _id("file")]
MemoryStoreId = Annotated[str, _id("memstore")]


def new_id(prefix: str) -> str:
    """An id that nobody else has: ``evt``, ``sess`` or ``sthr``, the time in milliseconds, and 48 random bits, hexadecimal."""
    return f"{prefix}_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(6)}"


class Fault(NamedTuple):
    """What is wrong with an object.

    Attributes:
        path: the member, as ``content[0].text``; empty for the whole.
        reason: what is wrong with it.
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


def invalid(path: str, reason: str) -> InvalidEventError:
    """An error that says what is wrong, for whoever knows what it is wrong with."""
    return InvalidEventError(str(Fault(path, reason)), path=path, reason=reason)


def within(outer: str, error: InvalidEventError) -> InvalidEventError:
    """The same error, of a member of a member."""
    return invalid(f"{outer}.{error.path}".removesuffix("."), error.reason)


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """An object. Members that are not set are ``UNSET``, which is false; ``None`` stands for a null that was written.

    Attributes:
        unknown: members that this version does not know; written again as they were read.
    """

    unknown: Json = msgspec.field(default_factory=dict, name=_UNKNOWN)

    nested: ClassVar[Makers] = {}  # make the members that are objects of their own, or arrays of them
    withheld: ClassVar[frozenset[str]] = frozenset()  # members that are never written

    def faults(self) -> list[Fault]:
        """What is wrong beyond the types of the members."""
        return []

    def members(self) -> Json:
        """The object as it is written."""
        found: Json = {}
        if self.__struct_config__.tag is not None:
            found["type"] = self.__struct_config__.tag
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name != "unknown" and value is not UNSET and (value or name != "id"):
                found[name] = _plain(value)
        found |= self.unknown
        return {name: value for name, value in found.items() if name not in self.withheld} if self.withheld else found

    def to_line(self) -> bytes:
        """The object as one line of JSON.

        Raises:
            ValueError: JSON can't hold it.
        """
        return dumps(self.members())


_Model = TypeVar("_Model", bound=Model)


def _plain(value: Any) -> Any:
    if isinstance(value, Model):
        return value.members()
    return [_plain(each) for each in value] if isinstance(value, list) else value


def dumps(members: Any) -> bytes:
    """A value as one line of JSON.

    Raises:
        ValueError: JSON can't hold it (infinity, an object of some class).
    """
    try:
        return json.dumps(members, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half a character
        return json.dumps(members, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, RecursionError) as error:
        raise ValueError(f"JSON can't hold it: {error}") from error


def build(cls: type[_Model], members: Mapping[str, Any]) -> _Model:
    """An object from its members, checked.

    Raises:
        InvalidEventError: names the member and what is wrong.
    """
    tag = cls.__struct_config__.tag
    fields = {name for name in cls.__struct_fields__ if name != "unknown"}
    known: Json = {"type": tag} if tag is not None else {}
    unknown: Json = {}
    for name, value in members.items():
        if name in fields:
            known[name] = _nested(cls.nested[name], name, value) if name in cls.nested else value
        elif tag is None or name != "type":
            unknown[name] = value
    if unknown:
        known[_UNKNOWN] = unknown
    try:
        model = msgspec.convert(known, cls, dec_hook=_hide)
    except msgspec.ValidationError as error:
        raise _explained(error, cls) from error
    for fault in model.faults():
        raise invalid(*fault)
    return model


def _nested(make: Callable[[Json], Model], name: str, value: Any) -> Any:
    def built(path: str, each: Any) -> Any:
        if each is None:
            return None  # for the type of the member to judge
        if not isinstance(each, Mapping):
            raise invalid(path, f"expected object, got {type(each).__name__}")
        try:
            return make(dict(each))
        except InvalidEventError as error:
            raise within(path, error) from error

    return [built(f"{name}[{n}]", each) for n, each in enumerate(value)] if isinstance(value, list) else built(name, value)


class Secret:
    """A text that is neither shown nor stored: only `reveal` gives it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text."""
        return self._text

    def __repr__(self) -> str:
        return "Secret('***')"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> str:
        raise TypeError("a secret is not written down; hand it over in another way")


def _hide(kind: type, value: object) -> Secret:
    if kind is Secret and isinstance(value, str) and value:
        return Secret(value)
    raise ValueError("expected str, not empty")


_MISSING = re.compile(r"Object missing required field `([^`]+)`")
_AT = re.compile(r"(.*?)(?: - at `(?:key` in `)?\$([^`]*)`)?", re.DOTALL)
_REGEX = re.compile(r"Expected `str` matching regex (.*)")


def _explained(error: msgspec.ValidationError, cls: type[Model]) -> InvalidEventError:
    """The words of msgspec, in ours."""
    found = _AT.fullmatch(str(error))
    assert found is not None
    reason, path = found.group(1), (found.group(2) or "").removeprefix(".")
    if missing := _MISSING.fullmatch(reason):
        return invalid(f"{path}.{missing.group(1)}".removeprefix("."), "it is missing")
    if pattern := _REGEX.fullmatch(reason):
        words = next((words for known, words in _PATTERNS.items() if repr(known) == pattern.group(1)), pattern.group(1))
        return invalid(path, f"it must be {words}")
    if reason.startswith("Invalid enum value"):
        choices = ", ".join(map(repr, _choices(get_type_hints(cls).get(path))))
        return invalid(path, f"{reason[len('Invalid enum value ') :]} is none of {choices}")
    if reason.endswith("of length >= 1"):
        return invalid(path, "it must not be empty")
    return invalid(path, reason[0].lower() + reason[1:].replace("`", ""))


def _choices(hint: Any) -> list[str]:
    """What a type of a member lets one choose from."""
    if get_origin(hint) is Literal:
        return [str(each) for each in get_args(hint)]
    return [choice for each in get_args(hint) for choice in _choices(each)]


def near(name: object, names: list[str]) -> str:
    """``; did you mean ...?`` where a name is nearly one of some others."""
    close = difflib.get_close_matches(name, names, 1) if isinstance(name, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""
