"""Lines of a session as typed values: this package's entries, and the same shapes by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from benchmarks.places import Place


class Decoder:
    """Has ``decode``, of one line."""

    decode: Callable[[bytes], Any]

    def __init__(self, place: Place) -> None: ...

    def close(self) -> None: ...


class Entries(Decoder):
    """`transcript_backends.entries`, which keeps unknown types, unknown members and the digits of timestamps."""

    def __init__(self, place: Place) -> None:
        from transcript_backends import entries

        self.decode = entries.decode


class Json(Decoder):
    """The standard library, without types."""

    def __init__(self, place: Place) -> None:
        self.decode = json.loads


_COMMON = {"id": str, "parentId": str | None, "timestamp": str}
_CALL = {"toolCallId": str, "name": str}
_SHAPES: dict[str, dict[str, Any]] = {
    "message": {"role": str, "content": str},
    "tool_use": {**_CALL, "input": dict[str, Any], "truncated": bool},
    "tool_result": {**_CALL, "output": str, "truncated": bool},
    "compaction": {"firstKeptEntryId": str, "summaryEntryId": str},
    "summary": {"summary": str, "format": str},
}


class Msgspec(Decoder):
    """A bare tagged union of msgspec."""

    def __init__(self, place: Place) -> None:
        import msgspec

        structs = [
            msgspec.defstruct(tag, [*_COMMON.items(), *shape.items()], tag=tag, tag_field="type", gc=False)
            for tag, shape in _SHAPES.items()
        ]
        union: Any = structs[0]
        for each in structs[1:]:
            union |= each
        self.decode = msgspec.json.Decoder(union).decode


class Pydantic(Decoder):
    """A discriminated union of pydantic."""

    def __init__(self, place: Place) -> None:
        import pydantic

        models = [
            pydantic.create_model(
                tag, type=(Literal[tag], tag), **{name: (kind, ...) for name, kind in {**_COMMON, **shape}.items()}
            )
            for tag, shape in _SHAPES.items()
        ]
        union: Any = models[0]
        for each in models[1:]:
            union |= each
        self.decode = pydantic.TypeAdapter(Annotated[union, pydantic.Field(discriminator="type")]).validate_json


def lines(count: int) -> Iterable[bytes]:
    """A session of all types, some 750 bytes a line."""
    text = "The tests fail since the key holds a colon; I will look at how it is parsed. " * 7
    values: dict[str, dict[str, Any]] = {
        "message": {"role": "assistant", "content": text},
        "tool_use": {"toolCallId": "call", "name": "bash", "input": {"command": text, "timeout": 60}, "truncated": False},
        "tool_result": {"toolCallId": "call", "name": "bash", "output": text, "truncated": False},
        "compaction": {"firstKeptEntryId": "f" * 36, "summaryEntryId": "s" * 36},
        "summary": {"summary": text, "format": "structured"},
    }
    often = ("message", "tool_use", "tool_result") * 6 + ("summary", "compaction")
    for number in range(count):
        kind = often[number % len(often)]
        common = {
            "type": kind,
            "id": f"{number:036d}",
            "parentId": f"{number - 1:036d}",
            "timestamp": "2026-11-30T10:11:12.345Z",
        }
        yield json.dumps({**common, **values[kind]}, separators=(",", ":")).encode()
