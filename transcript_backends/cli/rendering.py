"""Records as people read them: one line each, as wide as the terminal, whatever they hold."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from transcript_backends import Record
from transcript_backends.cli.session import size, visible

_WRITER_CELLS, _KIND_CELLS, _SIZE_CELLS = 12, 11, 9
_SHARE_CELLS = 24  # what a part is worth being seen of, where another is long
_WIDE = 110  # cells from which there is room for dates
_MOST_PARTS, _DEEPEST = 20, 12  # of one entry: what else there is would not fit on a line

_ROLES = ("role", "author")
_TIMES = ("timestamp", "created_at", "createdAt", "processed_at", "time", "ts")
_NAMES = ("name", "toolName", "tool_name")
_ARGUMENTS = ("input", "arguments", "args")
_HOLDERS = (  # of text, of blocks of it, or of calls
    *("command", "thinking", "text", "content", "parts", "summary", "output", "result", "response", "message"),
    *("error", "errorMessage", "error_message", "description"),
    *("tool_calls", "function", "functionCall", "function_call", "functionResponse", "function_response"),
)
_STATES = ("stateDelta", "state_delta")
_KNOWN = {*_ROLES, *_TIMES, "type", "id", "parentId", "parent_id", "uuid", "parentUuid"}

CALL, ASIDE, _ERROR = "bold yellow", "dim", "red"
_STYLES: tuple[tuple[str, str], ...] = (  # of a type or a role: the first that is found in it
    ("error|fail|terminated", _ERROR),
    ("tool|function|bash", "yellow"),
    ("change|session|span|state|status|custom", "blue"),
    ("summary|compact", "magenta"),
    ("user|human", "bold green"),
    ("assistant|agent|model", "bold cyan"),
    ("system|developer", "magenta"),
    ("", "blue"),
)

_Part = tuple[str, str]  # a text and its style


class Renderer:
    """Gives records as lines of text for an output, coloured where that is a terminal.

    Once there are records of two writers, each line says who wrote it.
    """

    def __init__(self, output: TextIO) -> None:
        # It never writes to the output itself: it would end the program in its own way where nobody reads any more.
        self._console = Console(file=io.StringIO(), force_terminal=output.isatty() or None, highlight=False)
        self._writers: set[str] = set()

    def __call__(self, *records: Record) -> Iterator[str]:
        self._writers.update(record.writer_id for record in records)
        for record in records:
            yield self.draw(describe(record, self._console.width, with_writer=len(self._writers) > 1))

    def draw(self, line: Text) -> str:
        """A line for the output, which may be longer than a terminal's."""
        with self._console.capture() as captured:
            self._console.print(line, soft_wrap=True)
        return captured.get()


def describe(record: Record, width: int, *, with_writer: bool) -> Text:
    """A record in at most ``width`` cells: seq, time, writer, kind, what it says, size. No line makes it fail."""
    entry = _parse(record.line)
    moment = next(filter(None, (_time(entry.get(name)) for name in _TIMES)), None) if entry else None
    line = Text(f"{record.seq:>6} ", no_wrap=True)
    if width >= _WIDE:
        _add(line, f"{moment:%Y-%m-%d %H:%M:%S} " if moment else " " * 20, ASIDE, 20)
    else:
        _add(line, f"{moment:%H:%M:%S} " if moment else " " * 9, ASIDE, 9)
    if with_writer:  # the end of its id, where the random part is
        shown = visible(record.writer_id[-_WRITER_CELLS:])
        _add(line, f"{shown[-_WRITER_CELLS:]:{_WRITER_CELLS}} ", ASIDE, _WRITER_CELLS + 1)
    if entry is None:
        kind, style, parts = "not JSON", _ERROR, iter([(record.line[: 4 * width].decode(errors="backslashreplace"), "")])
    else:
        kind = _kind(entry)
        style = _ERROR if _is_error(entry) else style_of(kind)
        parts = _parts_of(entry)
    shown = kind if len(kind) <= 2 * _KIND_CELLS else f"…{kind[1 - 2 * _KIND_CELLS :]}"  # types differ at their end
    _add(line, f"{shown:{_KIND_CELLS}} ", style, 2 * _KIND_CELLS + 1)
    room = width - line.cell_len - _SIZE_CELLS - 1
    line.append(_body(list(islice(parts, _MOST_PARTS)), max(room, 0)))
    line.append(f" {size(len(record.line)):>{_SIZE_CELLS}}", ASIDE)
    line.truncate(width, overflow="ellipsis")
    return line


def _parse(line: bytes) -> dict[str, Any] | None:
    """The entry a line holds; None where it is none."""
    try:
        entry = json.loads(line, parse_int=lambda digits: int(digits) if len(digits) < 20 else float(digits))
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _body(parts: list[_Part], room: int) -> Text:
    """The parts in exactly so many cells; those that follow a long one have a share of up to two thirds."""
    body = Text()
    for number, (text, style) in enumerate(parts, 1):
        left = room - body.cell_len
        share = min(sum(min(len(later), _SHARE_CELLS) + 1 for later, _ in parts[number:]), left * 2 // 3)
        _add(body, f"{' ' if number > 1 else ''}{text}", style, left - share)
    body.truncate(room, overflow="ellipsis", pad=True)
    return body


def _add(line: Text, text: str, style: str, cells: int) -> None:
    """The only way for what a record holds to get into a line: nothing is left in it that a terminal would obey.

    The number of characters is limited too, since those that are zero cells wide could be any number.
    """
    part = Text(visible(text[: 4 * cells + 4]), style)
    part.truncate(max(cells, 0), overflow="ellipsis")
    line.append(part)


def style_of(kind: str) -> str:
    """The style of a type or a role."""
    return next(style for rule, style in _STYLES if re.search(rule, kind.lower()))


# --- what an entry says -----------------------------------------------------------------------------------------------


def _kind(entry: Mapping[str, Any]) -> str:
    """Its type; of a message the role."""
    kind = _string(entry, "type")
    for each in (entry, entry.get("message"), entry.get("content")):
        if kind in ("", "message") and isinstance(each, dict) and (role := _string(each, *_ROLES)):
            return role.lower() if role.isupper() else role
    return kind or "-"


def _is_error(entry: Mapping[str, Any]) -> bool:
    message = entry.get("message")
    inner = message if isinstance(message, dict) else entry
    return any(each.get(name) is True for each in (entry, inner) for name in ("isError", "is_error"))


def _parts_of(entry: dict[str, Any]) -> Iterator[_Part]:
    """What it says, in parts; what else it holds where it says nothing."""
    said = False
    for part in _parts(entry):
        said = True
        yield part
    rest = {name: value for name, value in entry.items() if name not in _KNOWN and value not in (None, "", [], {})}
    if not said:
        yield members(rest), ""
    whole = entry.get("originalSize")
    if entry.get("truncated") is True and isinstance(whole, int):
        yield f"[cut from {size(whole)}]", ASIDE
    apart = entry.get("_offloaded")
    for each in apart if isinstance(apart, list) else ():
        if isinstance(each, dict) and isinstance(each.get("size"), int):
            yield f"[{size(each['size'])} stored apart]", ASIDE


def _parts(value: Any, depth: int = 0) -> Iterator[_Part]:
    """Texts, calls and results in a value, from above down; a block that holds none is named."""
    if isinstance(value, str):
        if text := _first_line(value):
            yield text, ""
    elif isinstance(value, list) and depth < _DEEPEST:
        for each in value:
            found = False
            for part in _parts(each, depth + 1):
                found = True
                yield part
            if not found and isinstance(each, dict) and (kind := _string(each, "type")) not in ("", "text", "thinking"):
                yield f"[{kind}]", ASIDE
    elif isinstance(value, dict) and depth < _DEEPEST:
        if name := _string(value, *_NAMES):
            yield name + next((f"({members(value[each])})" for each in _ARGUMENTS if each in value), ""), CALL
        for holder in _HOLDERS:
            style = {"thinking": "italic", "error": _ERROR, "errorMessage": _ERROR, "error_message": _ERROR}.get(holder, "")
            for text, own in _parts(value.get(holder), depth + 1):
                yield text, own or style
        for place in (value, value.get("actions")):
            for name in _STATES:
                if isinstance(place, dict) and place.get(name):
                    yield f"state: {members(place[name])}", ""


def _first_line(text: str) -> str:
    """Its first line that is not blank, with a mark where there are more. Looks at no more than could be shown."""
    start, _, rest = text[:20_000].strip().partition("\n")
    return " ".join(start.split()) + (" …" if rest else "")


def members(value: Any) -> str:
    """``path=src/main.py, limit=20``: the members of an object, shortened, and anything else as JSON."""
    if not isinstance(value, dict):
        return _brief(value)
    return ", ".join(f"{name[:100]}={_brief(each)}" for name, each in islice(value.items(), _MOST_PARTS))


def _brief(value: Any) -> str:
    if isinstance(value, str):
        return _first_line(value)
    try:
        return json.dumps(value, ensure_ascii=False)[:1000]
    except RecursionError:
        return "..."


def _string(holder: Mapping[str, Any], *names: str) -> str:
    """The first of its members of these names that is text."""
    return next((value[:200] for name in names if isinstance(value := holder.get(name), str) and value), "")


def _time(value: Any) -> datetime | None:
    """A time in UTC: seconds or milliseconds since 1970, or RFC 3339, which Python 3.10 can't read where it ends in Z."""
    try:
        if isinstance(value, str):
            found = re.match(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,]\d+)?(?:([+-])(\d\d):?(\d\d))?", value)
            if found is None:
                return None
            day, time, sign, hours, minutes = found.groups()
            offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
            return datetime.fromisoformat(f"{day}T{time}") + (offset if sign == "-" else -offset)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value > 1e11 else value, timezone.utc)
    except (ValueError, OverflowError, OSError):
        pass
    return None
