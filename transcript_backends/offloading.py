"""Large values outside of their line: a payload for each, a preview in its place, and readers that put it back byte for byte.

A line that is too long has its longest strings taken out, the longest first, until it is short enough. Nothing else of the
line changes but that it gets one more member, ``_offloaded``, which says what was where, and that a tool's call or result
says that it is cut, in the members that programs without payloads look at. So putting back what was there and taking that
member out gives the bytes that were appended: numbers, escapes, blanks and repeated names included. Pure: what stores and
fetches payloads is in `payloads`.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from transcript_backends.errors import CorruptSegmentError
from transcript_backends.hashing import sha256
from transcript_backends.records import MAX_LINE_BYTES

MAX_ENTRY_BYTES = 64 * 1024 * 1024
LONG_BYTES = 64 * 1024  # longer lines have their large strings stored outside, where nobody says otherwise
MEMBER = "_offloaded"

# A batch that is sent again must get the same bytes: a version that changes these has to send older journals as before.
_LEAST = 2048  # characters in the line: shorter strings are not worth an object
_LEAST_SAVED = 1024  # bytes: nor are those whose preview is hardly shorter
_SHOWN = 256  # characters of the head and of the tail

_NAME = f'"{MEMBER}"'
MARK = _NAME.encode()
"""Without it in a stored line, the line has no values outside."""
_LIST = re.compile(rf"(?<!\\){_NAME}[ \t\n\r]*:[ \t\n\r]*(?=\[)")
_SHA256 = re.compile("[0-9a-f]{64}")
_FORMS = "text", "ascii", "json"
_COLON = re.compile(r"[ \t\n\r]*:")
_CUT, _WHOLE_SIZE = "truncated", "originalSize"
_MAY_BE_CUT = {"tool_result": "output", "tool_use": "input"}  # types of entries, and what of them they say it of
_BLANKS = re.compile(r"[ \t\n\r]*")
_parser = json.JSONDecoder(parse_int=len, parse_float=len)  # numbers may be longer than int() takes


class Reference(NamedTuple):
    """One entry of ``_offloaded``.

    Attributes:
        pointer: where the string was (RFC 6901).
        sha256, size: of the payload, in bytes.
        form: how the payload becomes that string again. ``text``, the default: it is the string's text, written with no more
            escapes than JSON demands; ``ascii``: its text, written in ASCII; ``json``: it is what stood in the line.
        was: of the entry's own members that say that it is cut, by name, what stood in the line before; None: it was not there.
    """

    pointer: str
    sha256: str
    size: int
    form: str = "text"
    was: Mapping[str, str | None] | None = None

    def to_json(self) -> str:
        members = self._asdict()
        if self.form == "text":
            del members["form"]
        if not self.was:
            del members["was"]
        return json.dumps(members, separators=(",", ":"))

    def quoted(self, payload: bytes) -> str:
        """The string as it stood in the line."""
        if self.form not in _FORMS:
            raise CorruptSegmentError(f"payload {self.sha256} has the form {self.form!r}, which a newer version may know")
        return payload.decode() if self.form == "json" else _quote(payload.decode(), self.form)


class Outside(NamedTuple):
    """A line that has values outside: its pieces, and references where the values belong."""

    pieces: list[str | Reference]

    @property
    def references(self) -> list[Reference]:
        return [each for each in self.pieces if isinstance(each, Reference)]

    def restore(self, payloads: Mapping[str, bytes]) -> bytes:
        """The line as it was appended; ``payloads`` by sha256."""
        return "".join(each if isinstance(each, str) else each.quoted(payloads[each.sha256]) for each in self.pieces).encode()


def offload(line: bytes, limit: int, *, says_so: bool = True) -> tuple[bytes, dict[str, bytes]]:
    """What to store of a line that is longer than ``limit`` bytes: a shorter line, and payloads by sha256.

    The same line always gives the same. One without large strings stays as it is. One that reads as if it had values outside
    already has one taken out, however short it is, so that readers take out what was put in, and no more.

    ``says_so``: whether a tool's call or result says of itself that it is cut, as versions before 0.2 did not have it.
    """
    try:
        taken = split(line)
        if len(line) <= limit and taken is None:
            return line, {}
        stored, payloads = _shortened(line, limit, taken.references[0].pointer if taken else None, says_so=says_so)
        outside = split(stored)
    except RecursionError:  # JSON parsers differ in how deep they go
        return line, {}
    return (stored, payloads) if outside and outside.restore(payloads) == line else (line, {})


def too_long(line: bytes, limit: int) -> str:
    """Why a line is too long to be stored, even with its large strings outside; empty where it is not."""
    if len(line) <= MAX_LINE_BYTES // 2 or (size := len(offload(line, limit)[0])) <= MAX_LINE_BYTES:
        return ""
    remark = f", and still {size} with its large strings stored outside" if size < len(line) else ""
    return f"is {len(line)} bytes long{remark}; {MAX_LINE_BYTES} is the limit"


def _shortened(line: bytes, limit: int, forced: str | None, *, says_so: bool) -> tuple[bytes, dict[str, bytes]]:
    """The same without a check; ``forced`` points to a string that is taken out in any case."""
    text = line.decode()
    found = _strings(text, 2 if forced else _LEAST)
    size = len(line) + len(f",{_NAME}:[]")
    payloads: dict[str, bytes] = {}
    edits: list[tuple[int, int, str, Reference]] = []
    for pointer, (start, end) in sorted(found.items(), key=lambda each: (each[0] != forced, each[1][0] - each[1][1], each[1])):
        if pointer != forced and (size <= limit or end - start < _LEAST):
            break
        reference, payload, preview = _take_out(text[start:end], pointer)
        entry = reference.to_json()
        saved = len(text[start:end].encode()) - len(preview.encode()) - len(entry) - 1
        if saved >= _LEAST_SAVED or pointer == forced:
            payloads[reference.sha256] = payload
            edits.append((start, end, preview, reference))
            size -= saved
    edits.sort(key=lambda each: each[0])
    references = [each[3] for each in edits]
    changes = [each[:3] for each in edits]
    added = ""
    if says_so and (marks := _marks(text, references)):
        references[0] = references[0]._replace(was={name: was for name, (was, _, _) in marks.items()})
        changes += [(*place, now) for _, place, now in marks.values() if place]
        added = "".join(f',"{name}":{now}' for name, (_, place, now) in marks.items() if not place)
    pieces, position = [], 0
    for start, end, now in sorted(changes):
        pieces += [text[position:start], now]
        position = end
    close = text.rindex("}")
    member = f"{added},{_NAME}:[{','.join(each.to_json() for each in references)}]"
    return "".join([*pieces, text[position:close], member, text[close:]]).encode(), payloads


def _marks(text: str, references: list[Reference]) -> dict[str, tuple[str | None, tuple[int, int] | None, str]]:
    """What a call or a result has to say of itself: by name what stands there, where, and what it becomes."""
    if not any(f'"{each}"' in text for each in _MAY_BE_CUT):
        return {}
    members = _members(text)
    kind = text[slice(*members["type"][1:])] if "type" in members else ""
    what = _MAY_BE_CUT.get(kind.strip('"'), "")
    if what not in members or not any(each.pointer.split("/")[1] == what for each in references):
        return {}
    whole = text[slice(*members[what][1:])]
    size = len(json.loads(whole)) if whole.startswith('"') else len(whole)
    found: dict[str, tuple[str | None, tuple[int, int] | None, str]] = {}
    for name, now in ((_CUT, "true"), (_WHOLE_SIZE, str(size))):
        place = members[name][1:] if name in members else None
        was = text[slice(*place)] if place else None
        if name == _CUT and was not in (None, "false", "null"):
            return {}  # cut before, and says from what
        found[name] = was, place, now
    return found


def _members(text: str) -> dict[str, tuple[int, int, int]]:
    """Of each member of an object, the last of that name: where the name begins, and where the value begins and ends."""
    found = {}
    at = _past_blanks(text, text.index("{") + 1)
    while text[at] == '"':
        name, end = _parser.raw_decode(text, at)
        start = _past_blanks(text, _past_blanks(text, end) + 1)
        _, stop = _parser.raw_decode(text, start)
        found[name] = at, start, stop
        at = _past_blanks(text, stop)
        if text[at] == ",":
            at = _past_blanks(text, at + 1)
    return found


def _past_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def split(line: bytes) -> Outside | None:
    """Take a stored line apart; None where it has no values outside, or its ``_offloaded`` is another program's.

    Raises:
        RecursionError: it is nested too deeply.
    """
    if MARK not in line:
        return None
    try:
        text = line.decode()
        found = _LIST.match(text, text.rindex(_NAME))  # not behind a backslash: that would be in a string
        if not found:
            return None
        entries, end = json.JSONDecoder().raw_decode(text, found.end())
        references = _references(entries)
        if not references or text[end:].strip(" \t\n\r") != "}":
            return None
        tree = _parser.decode(text)
        shortest = min(len(_value(tree, pointer)) for pointer in references)
        places = _strings(text, shortest + 2)
        edits: list[tuple[int, int, Reference | str]]
        edits = [(*places[pointer], reference) for pointer, reference in references.items()]
        was = {name: text for each in references.values() for name, text in (each.was or {}).items()}
        edits += _unmarked(text, was) if was else []
        edits.sort(key=lambda each: each[0])
    except (ValueError, LookupError, TypeError):
        return None
    pieces: list[str | Reference] = []
    position = 0
    for start, stop, now in [*edits, (text.rindex(",", 0, found.start()), end, "")]:
        pieces += [text[position:start], *([now] if now else [])]
        position = stop
    return Outside([*pieces, text[position:]])


def _unmarked(text: str, was: Mapping[str, str | None]) -> list[tuple[int, int, Reference | str]]:
    """What becomes what, for members to be as they were before they said that the entry is cut."""
    members = _members(text)
    return [
        (text.rindex(",", 0, members[name][0]), members[name][2], "") if before is None else (*members[name][1:], before)
        for name, before in was.items()
    ]


def _references(entries: list[Any]) -> dict[str, Reference]:
    """By pointer; empty where one of the entries is none."""
    found: dict[str, Reference] = {}
    for each in entries:
        match each:
            case {"pointer": str(pointer), "sha256": str(sha256), "size": int(size)} if _SHA256.fullmatch(sha256):
                was = each.get("was", {})
                if not isinstance(was, dict) or not all(isinstance(before, (str, type(None))) for before in was.values()):
                    return {}
                found[pointer] = Reference(pointer, sha256, size, each.get("form", "text"), was or None)
            case _:
                return {}
    return found if len(found) == len(entries) else {}


def _take_out(token: str, pointer: str) -> tuple[Reference, bytes, str]:
    """The reference that takes the place of a JSON string, its payload, and its preview as a JSON string."""
    text = json.loads(token)
    form = next((form for form in _FORMS[:2] if _quote(text, form) == token), "json")
    try:
        payload = token.encode() if form == "json" else text.encode()
    except UnicodeEncodeError:  # half a character
        form, payload = "json", token.encode()
    reference = Reference(pointer, sha256(payload), len(payload), form)
    note = f"\n[... a preview: the whole is stored as a payload of {len(payload)} bytes ...]\n"
    preview = text[:_SHOWN] + note + text[max(_SHOWN, len(text) - _SHOWN) :]
    return reference, payload, _quote(preview.encode(errors="replace").decode(), form)


def _quote(text: str, form: str) -> str:
    return json.dumps(text, ensure_ascii=form == "ascii")


def _strings(text: str, least: int) -> dict[str, tuple[int, int]]:
    """Begin and end of the strings in an object that are so many characters long, quotes and escapes included, by pointer.

    Not those that a pointer can't tell: with a name on the way that is repeated, or the top ``_offloaded``.
    """
    found = list(_long_strings(text, least))
    if not found:
        return {}
    pieces, position = [], 0
    for start, end in found:
        pieces += [text[position:start], "NaN"]  # no JSON, so there is no other
        position = end
    counter = itertools.count()
    decoder = json.JSONDecoder(
        object_pairs_hook=_kept, parse_int=len, parse_float=len, parse_constant=lambda _: _Place(next(counter))
    )
    tree = decoder.decode("".join([*pieces, text[position:]]))
    todo = [(f"/{_escaped(name)}", value) for name, value in tree or () if name != MEMBER]
    places: dict[str, tuple[int, int]] = {}
    while todo:
        pointer, value = todo.pop()
        if isinstance(value, _Place):
            places[pointer] = found[value]
        else:
            members = value if isinstance(value, tuple) else enumerate(value)
            todo += [(f"{pointer}/{_escaped(name)}", each) for name, each in members if type(each) in _KEPT]
    return places


def _long_strings(text: str, least: int) -> Iterator[tuple[int, int]]:
    """Begin and end of strings in JSON that are values."""
    plain = text.replace("\\\\", "__").replace('\\"', "__")  # now every quote begins or ends a string
    quotes = position = 0
    for found in re.finditer(rf'"[^"]{{{least - 2},}}(?=")', plain):
        quotes += plain.count('"', position, found.start())
        position = found.start()
        end = found.end() + 1
        if quotes % 2 == 0 and not _COLON.match(plain, end):
            yield position, end


class _Place(int):
    """Which of the strings found stands here."""


_KEPT = frozenset((tuple, list, _Place))


def _kept(members: list[tuple[str, Any]]) -> tuple[tuple[str, Any], ...] | None:
    """The members of an object that may hold one of the strings, without repeated names."""
    kept = [each for each in members if type(each[1]) in _KEPT]
    if kept and len({name for name, _ in members}) < len(members):
        counts = Counter(name for name, _ in members)
        kept = [each for each in kept if counts[each[0]] == 1]
    return tuple(kept) or None


def _escaped(name: str | int) -> str:
    return str(name).replace("~", "~0").replace("/", "~1")


def _value(tree: Any, pointer: str) -> str:
    """The string at a pointer; a LookupError, TypeError or ValueError where there is none."""
    for name in pointer.split("/")[1:]:
        tree = tree[int(name)] if isinstance(tree, list) else tree[name.replace("~1", "/").replace("~0", "~")]
    if not isinstance(tree, str):
        raise TypeError
    return tree
