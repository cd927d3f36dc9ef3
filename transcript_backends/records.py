"""Records, and the rules of a JSONL payload. Works on bytes, never does I/O."""

from __future__ import annotations

import functools
import json
import re
from collections import deque
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, NamedTuple

from transcript_backends.errors import CorruptSegmentError, InvalidSegmentError

MAX_LINE_BYTES = 4 * 1024 * 1024  # longer lines can't be read by other readers of the layout

_BOM = b"\xef\xbb\xbf"
_CR_LF = re.compile(rb"\r+\n")


class Record(NamedTuple):
    """One line of a transcript.

    Attributes:
        seq: its number, 0 ... 2^63-1. Two writers may use the same.
        writer_id: who wrote it; with ``seq`` it identifies the record.
        line: the bytes as stored, without the newline.
    """

    seq: int
    writer_id: str
    line: bytes

    def json(self) -> Any:
        """The parsed object.

        Raises:
            CorruptSegmentError: the line is not JSON (another program's write was cut short, say).
        """
        try:
            return json.loads(self.line, parse_int=_parse_int)
        except (ValueError, RecursionError) as error:
            raise CorruptSegmentError(f"record {self.seq} of writer {self.writer_id} is not JSON: {error}") from error


def _parse_int(digits: str) -> int:
    return int(digits) if len(digits) < 4000 else int(Decimal(digits))  # int() refuses text this long


def normalize(jsonl: bytes, count: int) -> bytes:
    """The payload of a segment of ``count`` records as it is stored: `check_jsonl`, and the right number of lines.

    Raises:
        InvalidSegmentError: names the line and what is wrong with it.
    """
    body, lines = _checked(jsonl, 1, MAX_LINE_BYTES)
    if lines != count:
        raise InvalidSegmentError(f"the payload has {lines} lines, the range names {count} records; one line is one record")
    return body


def check_jsonl(jsonl: bytes, *, first_line: int = 1, longest: int = MAX_LINE_BYTES) -> bytes:
    """Whole lines as they are stored: each a JSON object of at most 4 MiB, ended by one LF, all else byte for byte.

    CR LF line ends become LF, a missing final newline is added.

    Args:
        jsonl: UTF-8, one JSON object a line, at least one.
        first_line: the number that messages give the first line.
        longest: how many bytes a line may have.

    Raises:
        InvalidSegmentError: names the line and what is wrong with it.
    """
    return _checked(jsonl, first_line, longest)[0]


def _checked(jsonl: bytes, first_line: int, longest: int) -> tuple[bytes, int]:
    """As `check_jsonl`, and the number of lines."""
    if not isinstance(jsonl, (bytes, bytearray, memoryview)):
        raise InvalidSegmentError(f"the payload must be bytes, not {type(jsonl).__name__}; encode text as UTF-8")
    body = bytes(jsonl)
    if not body:
        raise InvalidSegmentError("the payload is empty; a segment holds at least one record")
    if not body.endswith(b"\n"):
        body += b"\n"
    if b"\r" in body:
        body = _CR_LF.sub(b"\n", body)
    lines = body.split(b"\n")
    lines.pop()
    if len(body) > longest or not _are_plain_objects(body, lines):
        for number, line in enumerate(lines, first_line):
            _check_line(line, number, longest)
    return body, len(lines)


def _are_plain_objects(body: bytes, lines: Iterable[bytes]) -> bool:
    """Whether the fast parsers take a payload and each of its lines, as they nearly always do."""
    try:
        body.isascii() or body.decode()
        deque(map(_fast_parser(), lines), maxlen=0)
    except (ValueError, RecursionError):
        return False
    return True


def _check_line(line: bytes, number: int, longest: int) -> None:
    """Accept one line (without its newline) of a payload, or raise an `InvalidSegmentError` naming its number."""
    if len(line) > longest:
        raise InvalidSegmentError(
            f"line {number} is {len(line)} bytes long, {longest} is the limit; keep large values outside the line"
        )
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise InvalidSegmentError(f"line {number} is not UTF-8 at byte {error.start}: {error.reason}") from error
    if not _is_plain_object(line):
        _explain(line, number)


def is_object(line: bytes) -> bool:
    """Whether a line is a JSON object."""
    try:
        return _is_plain_object(line) or isinstance(_parse_strictly(line), dict)
    except (ValueError, RecursionError):
        return False


def _is_plain_object(line: bytes) -> bool:
    """Whether the fast parser takes the line as a JSON object. It refuses some that are one (lone surrogates)."""
    try:
        _fast_parser()(line)
    except (ValueError, RecursionError):
        return False
    return True


@functools.cache
def _fast_parser() -> Callable[[bytes], object]:
    import msgspec  # 30 ms to import, which programs that only read don't pay

    return msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _explain(line: bytes, number: int) -> None:
    """The verdict of the standard library's parser, in words."""
    if not line.strip():
        raise InvalidSegmentError(f"line {number} is blank; every line must hold one JSON object")
    if line.startswith(_BOM):
        raise InvalidSegmentError(f"line {number} starts with a byte-order mark; remove its three bytes EF BB BF")
    if b"\0" in line:
        raise InvalidSegmentError(f"line {number} holds a raw NUL byte at {line.index(0)}; write it as \\u0000 inside a string")

    try:
        value = _parse_strictly(line)
    except RecursionError as error:
        raise InvalidSegmentError(f"line {number} is nested too deeply for JSON parsers") from error
    except ValueError as error:
        raise InvalidSegmentError(f"line {number} is not JSON: {error}") from error
    if not isinstance(value, dict):
        kind = {list: "an array", str: "a string", float: "a number", bool: "true or false", type(None): "null"}[type(value)]
        raise InvalidSegmentError(f"line {number} is {kind}; every line must be a JSON object")


def _parse_strictly(line: bytes) -> Any:
    """The value of a line by the standard library's parser, which takes more than JSON and guesses encodings if it is let."""

    def refuse(name: str) -> None:
        raise ValueError(f"it holds {name}, which is not JSON; write null or a string")

    return json.loads(line.decode(), parse_constant=refuse, parse_int=float)
