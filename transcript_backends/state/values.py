"""Values and lists of state documents as JSON, typed by msgspec, which knows dataclasses, Structs and the like.

Models of pydantic are told by their methods, so pydantic is needed by those only who have some.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from transcript_backends.errors import CorruptSegmentError, InvalidSegmentError

_T = TypeVar("_T")
_SHA256 = re.compile(rb"[0-9a-f]{64}")
_HASH_OF_NOTHING = b"empty:0"


# --- write ------------------------------------------------------------------------------------------------------------


def encode(value: Any) -> bytes:
    """A value as JSON.

    Raises:
        InvalidSegmentError: it can't be written as JSON.
    """
    return _encoded([value])[:-1]


def encode_lines(items: Iterable[Any]) -> bytes:
    """Items as JSON, each on a line of its own.

    Raises:
        InvalidSegmentError: one of them can't be written as JSON.
    """
    return _encoded(list(items))


def _encoded(values: list[Any]) -> bytes:
    try:
        body = msgspec.json.Encoder(enc_hook=_plain).encode_lines(values)
        if b"null" in body and _holds_no_number(msgspec.to_builtins(values, enc_hook=_plain)):
            raise ValueError("it holds NaN or Infinity, which is not JSON; use None or a string")
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidSegmentError(f"the value can't be written as JSON: {error}") from error
    return body


def _plain(value: Any) -> Any:
    """What stands for an object that msgspec does not know."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"a {type(value).__name__} has no JSON form; use a dataclass, a msgspec Struct or a pydantic model")


def _holds_no_number(value: Any) -> bool:
    """Whether there is a float in it that JSON has no form for; msgspec writes those as null."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_holds_no_number, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_holds_no_number, value))


# --- read -------------------------------------------------------------------------------------------------------------


def decode(body: bytes, kind: type[_T], name: str) -> _T:
    """The value of a document.

    Raises:
        CorruptSegmentError: it is not JSON, or not of this type; the message names the document and the place.
    """
    try:
        return msgspec.json.decode(body, type=kind, dec_hook=_made)
    except (ValueError, RecursionError) as error:
        raise _corrupt(name, kind, error) from error


def decode_lines(body: bytes, kind: type[_T], name: str) -> list[_T]:
    """The items of a list.

    Raises:
        CorruptSegmentError: one of them is not JSON, or not of this type.
    """
    try:
        return msgspec.json.Decoder(kind, dec_hook=_made).decode_lines(body)
    except (ValueError, RecursionError) as error:
        raise _corrupt(name, kind, error) from error


def _corrupt(name: str, kind: Any, error: Exception) -> CorruptSegmentError:
    told = " ".join(str(error).split())[:500]
    return CorruptSegmentError(
        f"{name} is no JSON of the type {getattr(kind, '__name__', kind)}: {told}; read it as another type, or save it anew"
    )


def _made(kind: Any, plain: Any) -> Any:
    """An object of a class that msgspec does not know, from its JSON."""
    if hasattr(kind, "model_validate_json"):
        return kind.model_validate_json(msgspec.json.encode(plain))
    raise TypeError(f"{kind!r} can't be read from JSON; use a dataclass, a msgspec Struct or a pydantic model")


# --- lists of the Java implementation ---------------------------------------------------------------------------------


def is_torn(body: bytes, told: bytes | None) -> bool:
    """Whether a list is not the one that the ``.hash`` beside it was written for, or ends within a line.

    The hash is a sha256 over the number of items and the text of each. Older ones are not, and can't be checked.
    """
    if body and not body.endswith(b"\n"):
        return True
    told = (told or b"").strip()
    if told != _HASH_OF_NOTHING and not _SHA256.fullmatch(told):
        return False
    lines = [line for each in body.split(b"\n") if (line := each.rstrip(b"\r")).strip()]
    if not lines:
        return told != _HASH_OF_NOTHING
    digest = hashlib.sha256(b"size:%d;" % len(lines))
    for number, line in enumerate(lines):
        digest.update(b"%d:%b," % (number, line))
    return told != digest.hexdigest().encode()
